/* queues.h - the queue rows, the same for devstream and its peers.

   The program that includes this file must define these plain functions first, so that nothing
   stands between the row and the library:
       q_fold(q, h, n)              puts bench_fold(h, n) on queue q (0 to 7)
       q_gather(q, h, from, count)  puts bench_gather on queue q
       q_record(q), q_wait(q, p)    later work on q comes after p's latest record
       q_sync(q)                    waits for queue q
       q_events(on)                 optional, with Q_EVENTS: the row that follows does or does not
                                    use records
   Instead of q_record and q_wait it may define Q_OWN_EVENTS, double q_hop(n) and double
   q_forkjoin(n). These return the ns of one hop or fork and join, or NaN if the result is wrong.
   With Q_HOST, q_host(q, h, n) puts bench_fold(h, n) on queue q as a function that may block its
   thread.
   It also defines Q_OPS, Q_HOPS, Q_FORKS, Q_HOT: how many to run, so that slow peers stay within
   the time. */

#define Q_H(i) (q_hash + 8 * (i)) /* the hash of queue i, in a cache line of its own */
static uint64_t *q_hash;          /* 64 numbers; the program sets it */

static void q_reset(void) {
    memset(q_hash, 0, 64 * sizeof *q_hash);
}

/* n operations round-robin over the first width queues, ns per operation. */
__attribute__((always_inline)) static inline double q_queue(unsigned width, uint64_t n) {
    uint64_t want[8] = { 0 }, i;
    unsigned q;
    n -= n % width;
    for (i = 0; i < n; i++)
        bench_fold(&want[i % width], i);
    q_reset();
    double t = bench_now_ns();
    for (i = 0; i < n; i += width)
        for (q = 0; q < width; q++)
            q_fold(q, Q_H(q), i + q);
    for (q = 0; q < width; q++)
        q_sync(q);
    t = bench_now_ns() - t;
    for (q = 0; q < width; q++)
        if (*Q_H(q) != want[q])
            return NAN;
    return t / (double)n;
}

#ifndef Q_OWN_EVENTS
#ifndef Q_EVENTS
static void q_events(int on) {
    (void)on;
}
#endif

static double q_hop(uint64_t n) {
    uint64_t want = 0, i;
    for (i = 0; i < n; i++)
        bench_fold(&want, i);
    q_reset();
    q_events(1);
    double t = bench_now_ns();
    for (i = 0; i < n; i++) {
        unsigned q = i & 1;
        q_fold(q, Q_H(0), i);
        q_record(q);
        q_wait(q ^ 1, q);
    }
    q_sync(0);
    q_sync(1);
    t = bench_now_ns() - t;
    q_events(0);
    return *Q_H(0) == want ? t / (double)n : NAN;
}
#endif

/* What n fork-joins leave in the root's hash. */
static uint64_t q_forkjoin_want(uint64_t n) {
    uint64_t h[64] = { 0 }, i;
    unsigned q;
    for (i = 0; i < n; i++) {
        bench_fold(&h[0], i);
        for (q = 1; q < 8; q++)
            bench_gather(&h[8 * q], &h[0], 1);
        bench_gather(&h[0], &h[8], 7);
    }
    return h[0];
}

#ifndef Q_OWN_EVENTS
static double q_forkjoin(uint64_t n) {
    uint64_t i;
    unsigned q;
    q_reset();
    q_events(1);
    double t = bench_now_ns();
    for (i = 0; i < n; i++) {
        q_fold(0, Q_H(0), i);
        q_record(0);
        for (q = 1; q < 8; q++) {
            q_wait(q, 0);
            q_gather(q, Q_H(q), Q_H(0), 1);
            q_record(q);
        }
        for (q = 1; q < 8; q++)
            q_wait(0, q);
        q_gather(0, Q_H(0), Q_H(1), 7);
    }
    for (q = 0; q < 8; q++)
        q_sync(q);
    t = bench_now_ns() - t;
    q_events(0);
    return *Q_H(0) == q_forkjoin_want(n) ? t / (double)n : NAN;
}
#endif

static double q_wait_hot(uint64_t n) {
    uint64_t want = 0, i;
    q_reset();
    double t = bench_now_ns();
    for (i = 0; i < n; i++) {
        q_fold(0, Q_H(0), i);
        q_sync(0);
    }
    t = bench_now_ns() - t;
    for (i = 0; i < n; i++)
        bench_fold(&want, i);
    return *Q_H(0) == want ? t / (double)n : NAN;
}

/* Medians over n samples, each after 2 ms of sleep, in which every worker has gone to sleep. */
static void q_parked(const char *source, int n) {
    double whole[512], submit[512];
    uint64_t want = 0;
    q_reset();
    for (int i = 0; i < 2 * n; i++) { /* in turn: with and without the wait in the measured time */
        bench_sleep_us(2000);
        double t0 = bench_now_ns();
        q_fold(0, Q_H(0), (uint64_t)i);
        double t1 = bench_now_ns();
        q_sync(0);
        double t2 = bench_now_ns();
        if (i % 2)
            submit[i / 2] = t1 - t0;
        else
            whole[i / 2] = t2 - t0;
        bench_fold(&want, (uint64_t)i);
    }
    bench_put("wait_parked", source, *Q_H(0) == want ? bench_median(whole, n) : NAN);
    bench_put("submit_parked", source, *Q_H(0) == want ? bench_median(submit, n) : NAN);
}

#ifdef Q_HOST
/* Median and 90th percentile of n rounds of a host function and its wait. */
static void q_host_wait(const char *source, int n) {
    static double v[20000];
    uint64_t want = 0;
    q_reset();
    for (int i = 0; i < n; i++) {
        double t = bench_now_ns();
        q_host(0, Q_H(0), (uint64_t)i);
        q_sync(0);
        v[i] = bench_now_ns() - t;
        bench_fold(&want, (uint64_t)i);
    }
    double median = bench_median(v, n); /* sorts */
    bench_put("host_wait", source, *Q_H(0) == want ? median : NAN);
    bench_put("host_wait_p90", source, *Q_H(0) == want ? v[n * 9 / 10] : NAN);
}
#endif

static double q_idle_us(void) {
    if (isnan(q_queue(8, 1000)))
        return NAN;
    bench_sleep_us(1000);
    double t = bench_cpu_ns();
    bench_sleep_us(199000);
    return (bench_cpu_ns() - t) / 1e3;
}

static void q_run(const char *source) {
    int n = bench_quick() ? 3 : 5;
    BENCH_REPEAT("queue1", source, n, q_queue(1, Q_OPS));
    BENCH_REPEAT("queue8", source, n, q_queue(8, Q_OPS));
    BENCH_REPEAT("hop", source, n, q_hop(Q_HOPS));
    BENCH_REPEAT("forkjoin", source, n, q_forkjoin(Q_FORKS));
    BENCH_REPEAT("wait_hot", source, n, q_wait_hot(Q_HOT));
    q_parked(source, bench_quick() ? 25 : 150);
#ifdef Q_HOST
    for (int i = 0; i < n; i++)
        q_host_wait(source, bench_quick() ? 2000 : 20000);
#endif
    BENCH_REPEAT("idle_cpu", source, bench_quick() ? 1 : 3, q_idle_us());
}
