/* limits.c - what the machine allows for the queue rows: two threads that spin on a cache line,
   one futex call, nothing. */
#include "bench.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spinning is only a limit with a processor for each; a stolen one must not hang the program. */
#define SPIN_UNTIL(condition)                           \
    for (unsigned spins_ = 1; !(condition); spins_++) { \
        if (spins_ % 100000)                            \
            bench_pause();                              \
        else                                            \
            sched_yield();                              \
    }

/* ---- rings: one producer, one consumer, an operation is a hash and a number ------------------ */

enum { RING = 1024 };

typedef struct ring {
    struct {
        uint64_t *h, n;
    } slot[RING];

    _Alignas(64) atomic_size_t head; /* written by the consumer */
    _Alignas(64) atomic_size_t tail; /* written by the producer */
    /* the producer's copy: it looks again only when the ring seems full */
    _Alignas(64) size_t head_seen;
} ring;

static ring rings[8];
static _Alignas(64) uint64_t hashes[64];
static size_t width, total;

static void *consume(void *user) {
    (void)user;
    for (size_t left = total; left;) {
        size_t did = 0;
        for (size_t q = 0; q < width; q++) {
            ring *r = &rings[q];
            size_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
            size_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
            did += tail - head;
            for (; head != tail; head++)
                bench_fold(r->slot[head % RING].h, r->slot[head % RING].n);
            atomic_store_explicit(&r->head, head, memory_order_release);
        }
        left -= did;
        if (!did)
            bench_pause();
    }
    return NULL;
}

static double through_rings(size_t queues, size_t n) {
    pthread_t thread;
    uint64_t want[8] = { 0 };
    memset(hashes, 0, sizeof hashes);
    width = queues;
    total = n -= n % queues;
    for (size_t i = 0; i < n; i++)
        bench_fold(&want[i % queues], i);
    if (pthread_create(&thread, NULL, consume, NULL))
        abort();
    bench_sleep_us(1000); /* until it spins */
    double t = bench_now_ns();
    for (size_t i = 0; i < n; i += queues)
        for (size_t q = 0; q < queues; q++) {
            ring *r = &rings[q];
            size_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
            if (tail - r->head_seen == RING)
                SPIN_UNTIL(
                    tail - (r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire)) <
                    RING)
            r->slot[tail % RING].h = &hashes[8 * q];
            r->slot[tail % RING].n = i + q;
            atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
        }
    pthread_join(thread, NULL); /* a few us among n operations */
    t = bench_now_ns() - t;
    for (size_t q = 0; q < queues; q++)
        if (hashes[8 * q] != want[q])
            return NAN;
    return t / (double)n;
}

/* ---- a token between two spinning threads ---------------------------------------------------- */

enum { TRIPS = 50000 };

static _Alignas(64) atomic_int token;

static void *answer(void *user) {
    (void)user;
    for (int i = 0; i < TRIPS; i++) {
        SPIN_UNTIL(atomic_load_explicit(&token, memory_order_acquire) == 2 * i + 1)
        atomic_store_explicit(&token, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

static double round_trip(void) {
    pthread_t thread;
    atomic_store(&token, 0);
    if (pthread_create(&thread, NULL, answer, NULL))
        abort();
    bench_sleep_us(1000);
    double t = bench_now_ns();
    for (int i = 0; i < TRIPS; i++) {
        atomic_store_explicit(&token, 2 * i + 1, memory_order_release);
        SPIN_UNTIL(atomic_load_explicit(&token, memory_order_acquire) == 2 * i + 2)
    }
    t = bench_now_ns() - t;
    pthread_join(thread, NULL);
    return t / TRIPS;
}

/* ---- waking a sleeper ------------------------------------------------------------------------ */

static atomic_int word, stop;

static void *sleeper(void *user) {
    (void)user;
    while (!atomic_load(&stop))
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return NULL;
}

static double wake(int n) {
    pthread_t thread;
    double v[512];
    atomic_store(&stop, 0);
    if (pthread_create(&thread, NULL, sleeper, NULL))
        abort();
    for (int i = 0; i < n; i++) {
        bench_sleep_us(2000);
        v[i] = bench_now_ns();
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        v[i] = bench_now_ns() - v[i];
    }
    atomic_store(&stop, 1);
    atomic_store(&word, 1);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    pthread_join(thread, NULL);
    return bench_median(v, n);
}

static double idle_us(void) {
    bench_sleep_us(1000);
    double t = bench_cpu_ns();
    bench_sleep_us(199000);
    return (bench_cpu_ns() - t) / 1e3;
}

static double two_atomics(void) {
    enum { N = 1000000 };

    static atomic_int pins;
    double t = bench_now_ns();
    for (int i = 0; i < N; i++) {
        atomic_fetch_add(&pins, 1);
        atomic_fetch_sub(&pins, 1);
    }
    return (bench_now_ns() - t) / N;
}

int main(void) {
    int n = bench_quick() ? 3 : 5;
    BENCH_REPEAT("idle_cpu", "limit", bench_quick() ? 1 : 3, idle_us());
    BENCH_REPEAT("handle_pin", "limit", n, two_atomics());
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
        double trip[8];
        for (int i = 0; i < n; i++)
            trip[i] = round_trip();
        double ns = bench_median(trip, n);
        BENCH_REPEAT("queue1", "limit", n, through_rings(1, 1000000));
        BENCH_REPEAT("queue8", "limit", n, through_rings(8, 1000000));
        bench_put("hop", "limit", ns / 2);
        bench_put("forkjoin", "limit", ns);
        bench_put("wait_hot", "limit", ns);
    }
    double ns = wake(bench_quick() ? 50 : 200);
    bench_put("wait_parked", "limit", ns);
    bench_put("submit_parked", "limit", ns);
    bench_put("host_wait", "limit", ns);
    return bench_failed;
}
