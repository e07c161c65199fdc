/* Random programs under the trace layer: an operation that the program orders after another one
   does not begin before the other one's end, whatever the streams, events and threads. The order is
   that of vector clocks, which this test keeps beside the calls.

   Each thread of a program enqueues on streams of its own, beside the others (read lock). While it
   waits for another thread's work or records an event, no other thread enqueues (write lock). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_trace.h"
#include "trace_file.h"
#include "unit.h"

enum { STREAMS = 6, EVENTS = 4, STEPS = 400, SIZE = 4096, THREADS = 3 };

/* For each stream, the number of its operations that are ordered before. */
typedef struct clock {
    int n[STREAMS];
} clock_of;

/* An operation of the program, by its line in the source, which is the number of the step. */
typedef struct step {
    int stream;
    clock_of before; /* and its own number */
} step;

static struct {
    step step[STEPS + 1];
    ds_stream stream[STREAMS];
    ds_event event[EVENTS];
    clock_of now[STREAMS];
    clock_of kept[EVENTS];
    int recorded[EVENTS];
    char *memory[STREAMS];
    char *pinned;
    int threads;
    uint64_t seed;
} p;

static pthread_rwlock_t calls = PTHREAD_RWLOCK_INITIALIZER;
static __thread uint64_t chance;

static unsigned pick(unsigned n) {
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(chance >> 33) % n;
}

static void join(clock_of *c, const clock_of *with) {
    for (int i = 0; i < STREAMS; i++)
        if (c->n[i] < with->n[i])
            c->n[i] = with->n[i];
}

static void host(void *user) {
    for (int i = 0; i < 100; i++)
        ((volatile char *)user)[i]++;
}

/* Enqueues an operation with a record, whose line is the number of the step. */
static void enqueue(int number, int s) {
    p.step[number].stream = s;
    p.step[number].before = p.now[s];
    p.now[s].n[s] = ++p.step[number].before.n[s];
    ds_site_set("random", number);
    switch (pick(3)) {
    case 0:
        ok((ds_fill)(p.memory[s], 1, 1, pick(2) ? SIZE : 16 * SIZE, p.stream[s]));
        break;
    case 1:
        ok((ds_copy)(p.memory[s] + 16 * SIZE, p.memory[s], pick(2) ? SIZE : 16 * SIZE,
                     p.stream[s]));
        break;
    default:
        ok((ds_stream_launch_host_func)(p.stream[s], host, p.pinned + s * SIZE, NULL));
    }
}

static void order(int s) {
    int e = (int)pick(EVENTS);
    int other = (int)pick(STREAMS);
    unsigned kind = pick(3);
    if (kind == 0 && s == STREAMS - 1) /* of another device than the events */
        kind = 2;
    switch (kind) {
    case 0:
        ok(ds_event_record(p.event[e], p.stream[s]));
        p.kept[e] = p.now[s];
        p.recorded[e] = 1;
        break;
    case 1:
        ok(ds_stream_wait_event(p.stream[s], p.event[e]));
        if (p.recorded[e])
            join(&p.now[s], &p.kept[e]);
        break;
    default:
        ok(ds_stream_wait_stream(p.stream[s], p.stream[other]));
        join(&p.now[s], &p.now[other]);
    }
}

/* Makes the objects of a program. The last stream is on another device, if there is one. */
static void furnish(ds_device device, ds_device other) {
    void *pinned;
    memset(&p.now, 0, sizeof p.now);
    memset(&p.recorded, 0, sizeof p.recorded);
    memset(&p.step, 0, sizeof p.step);
    ok(ds_pinned_alloc(STREAMS * SIZE, &pinned));
    p.pinned = pinned;
    for (int i = 0; i < STREAMS; i++) {
        void *memory;
        ds_device where = i + 1 < STREAMS ? device : other;
        ok(ds_stream_create(&(ds_stream_desc){ .device = where }, &p.stream[i]));
        ok(ds_device_alloc(where, 32 * SIZE, &memory));
        p.memory[i] = memory;
    }
    for (int i = 0; i < EVENTS; i++)
        ok(ds_event_create(i & 1 ? DS_EVENT_TIMING : 0, NULL, &p.event[i]));
}

static void clear(void) {
    for (int i = 0; i < STREAMS; i++) {
        ok(ds_stream_synchronize(p.stream[i]));
        ok(ds_stream_destroy(p.stream[i]));
    }
    for (int i = 0; i < STREAMS; i++)
        ok(ds_device_free(p.memory[i]));
    for (int i = 0; i < EVENTS; i++)
        ok(ds_event_destroy(p.event[i]));
    ok(ds_pinned_free(p.pinned));
}

/* Compares all pairs of operations. error_ns: by how much times of different streams may differ.
   Returns the number of ordered pairs. */
static size_t compare(const trace_file *t, uint64_t error_ns) {
    const trace_record *of[STEPS + 1] = { NULL };
    size_t ordered = 0;
    for (size_t i = 0; i < t->records; i++) {
        const trace_record *r = &t->record[i];
        if (r->kind > 4 || strcmp(trace_text(t, r->file), "random") != 0)
            continue;
        assert_true(r->line <= STEPS);
        assert_null(of[r->line]);
        of[r->line] = r;
    }
    for (int i = 1; i <= STEPS; i++)
        for (int k = 1; k <= STEPS; k++) {
            const step *a = &p.step[i];
            const step *b = &p.step[k];
            if (i == k || !a->before.n[a->stream] || !b->before.n[b->stream] ||
                b->before.n[a->stream] < a->before.n[a->stream])
                continue;
            assert_true(of[i] && of[k]);
            ordered++;
            if (of[k]->begin + (a->stream == b->stream ? 0 : error_ns) < of[i]->end)
                fail_msg("step %d begins %llu ns before the end of step %d", k,
                         (unsigned long long)(of[i]->end - of[k]->begin), i);
        }
    return ordered;
}

/* Takes the steps of one thread. */
static void *take_steps(void *index) {
    int own = (int)(uintptr_t)index;
    chance = p.seed * THREADS + (uint64_t)own;
    for (int i = own + 1; i <= STEPS; i += p.threads) {
        int s = (int)pick((unsigned)(STREAMS / p.threads)) * p.threads + own;
        int enqueues = (int)pick(2);
        if (enqueues)
            pthread_rwlock_rdlock(&calls);
        else
            pthread_rwlock_wrlock(&calls);
        if (enqueues)
            enqueue(i, s);
        else
            order(s);
        pthread_rwlock_unlock(&calls);
    }
    return NULL;
}

static void run(ds_device device, ds_device other, int threads, uint64_t error_ns) {
    char path[64];
    trace_file t;
    snprintf(path, sizeof path, "/tmp/devstream-trace-%d.html", (int)getpid());
    furnish(device, other);
    ok(ds_trace_start(&(ds_trace_desc){ .file = path }));
    pthread_t thread[THREADS];
    p.threads = threads;
    for (uintptr_t i = 1; i < (uintptr_t)threads; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, take_steps, (void *)i), 0);
    take_steps(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(thread[i], NULL);
    clear();
    ok(ds_trace_stop());
    assert_true(trace_read(path, &t));
    assert_int_equal(t.dropped, 0);
    assert_true(compare(&t, error_ns) > STEPS);
    json_free_all();
    unlink(path);
}

static void test_times_do_not_contradict_the_order(void **state) {
    static ds_cpu_desc cpu = { .devices = 2 };
    const char *programs = getenv("DS_TRACE_PROGRAMS");
    const char *first = getenv("DS_TRACE_FIRST");
    int count = programs ? atoi(programs) : 20;
    (void)state;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "trace" }));
    for (int i = 0; i < count; i++) {
        int threads = i % 2 ? THREADS : 1;
        p.seed = (first ? (uint64_t)atoi(first) : 1) + (uint64_t)i;
        run(ds_cpu(0), ds_cpu(1), threads, 0);
        /* the base of a device's times is less exact while the host is busy */
        if (ds_backend_is_available(DS_DEVICE_CUDA))
            run(ds_cuda(0), ds_cuda(0), threads, 5000000);
    }
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_times_do_not_contradict_the_order) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
