/* contention.c - locked instructions, and cache lines that move between threads, for each
   operation, with many workers: contention [WORKERS...]. The machine may have fewer processors: the
   counts depend on the paths that threads take, and only little on the time. Standard output gets a
   table for docs/bench.md. Compile with gcc (counted.h). */
#include "counted.h"
#define DEVSTREAM_IMPLEMENTATION
#include "../devstream.h"
#include <pthread.h>

enum { OPERATIONS = 20000, STREAMS = 64, CALLERS = 8 };

static void check(ds_result r) {
    if (r >= 0)
        return;
    fprintf(stderr, "devstream: %s: %s\n", ds_result_get_name(r), ds_error_get_last());
    exit(1);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int add(size_t first, size_t count, const void *args) {
    uint64_t *const *to = args;
    (void)first, (void)count;
    ++**to;
    return 0;
}

static ds_kernel kernel;
static ds_stream stream[STREAMS];
static ds_event event[STREAMS];
static uint64_t *sums; /* of each stream, in a line of its own */

static void launch(int s) {
    uint64_t *to = sums + 8 * s;
    check(ds_kernel_launch(kernel, 1, &to, sizeof to, stream[s]));
}

/* Each of these runs on a thread that calls devstream, and has `per` operations. */
typedef struct caller {
    pthread_t thread;
    int first, streams, per;
    counted made; /* by its calls */
} caller;

static void one_stream(const caller *c) {
    for (int i = 0; i < c->per; i++)
        launch(c->first);
    check(ds_stream_synchronize(stream[c->first]));
}

static void round_robin(const caller *c) {
    for (int i = 0; i < c->per; i++)
        launch(c->first + i % c->streams);
    for (int s = 0; s < c->streams; s++)
        check(ds_stream_synchronize(stream[c->first + s]));
}

/* each launch finds its stream idle or polled */
static void waits(const caller *c) {
    for (int i = 0; i < c->per; i++) {
        launch(c->first + i % c->streams);
        check(ds_stream_synchronize(stream[c->first + i % c->streams]));
    }
}

static void hops(const caller *c) {
    for (int i = 0; i < c->per; i++) {
        int from = c->first + i % c->streams, to = c->first + (i + 1) % c->streams;
        launch(from);
        check(ds_event_record(event[from], stream[from]));
        check(ds_stream_wait_event(stream[to], event[from]));
    }
    for (int s = 0; s < c->streams; s++)
        check(ds_stream_synchronize(stream[c->first + s]));
}

static const struct {
    const char *title;
    void (*run)(const caller *);
    int callers, streams; /* streams of each caller */
} rows[] = { { "one stream", one_stream, 1, 1 },
             { "8 streams in turn", round_robin, 1, 8 },
             { "8 streams in turn, a wait after each", waits, 1, 8 },
             { "hop between 2 streams by events", hops, 1, 2 },
             { "8 callers, a stream each", one_stream, CALLERS, 1 },
             { "8 callers, 8 streams each", round_robin, CALLERS, 8 },
             { "8 callers, a stream each, a wait after each", waits, CALLERS, 1 },
             { "8 callers, hops between 2 streams each", hops, CALLERS, 2 } };

static int row;

static void *call(void *arg) {
    caller *c = arg;
    rows[row].run(c); /* the thread's state, and all estimates */
    counted *mine = counted_mine();
    memset(mine, 0, sizeof *mine);
    rows[row].run(c);
    c->made = *mine;
    memset(mine, 0, sizeof *mine); /* only threads of the library are left */
    return NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

static counted all(void) {
    counted sum = { 0 };
    for (int i = 0; i < COUNTED_THREADS; i++) {
        sum.locked += counted_of[i].locked;
        sum.transferred += counted_of[i].transferred;
        sum.global += counted_of[i].global;
    }
    return sum;
}

/* The workers' counts include those of the callers' first round: both run twice. */
static void measure(int workers) {
    static caller callers[CALLERS];
    int n = rows[row].callers;
    counted before = all(), mine = { 0 };
    for (int i = 0; i < n; i++) {
        callers[i] = (caller){ .first = i * rows[row].streams, .streams = rows[row].streams };
        callers[i].per = OPERATIONS / n;
        if (pthread_create(&callers[i].thread, NULL, call, &callers[i]))
            abort();
    }
    for (int i = 0; i < n; i++) {
        pthread_join(callers[i].thread, NULL);
        mine.locked += callers[i].made.locked;
        mine.transferred += callers[i].made.transferred;
        mine.global += callers[i].made.global;
    }
    counted after = all();
    double ops = OPERATIONS / n * n;
    printf("| %d workers, %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", workers, rows[row].title,
           (double)mine.locked / ops, (double)mine.transferred / ops,
           (double)(after.locked - before.locked) / (2 * ops),
           (double)(after.transferred - before.transferred) / (2 * ops),
           ((double)mine.global + (double)(after.global - before.global) / 2) / ops);
}

int main(int argc, char **argv) {
    static const char *const usual[] = { "2", "8", "32", "128" };
    static uint64_t memory[8 * STREAMS];
    sums = memory;
    counted_from = (const char *)&ds__cpu;
    counted_to = counted_from + sizeof ds__cpu;
    printf("| | calls: locked | calls: lines | workers: locked | workers: lines | lines of the "
           "driver's own state |\n|---|---:|---:|---:|---:|---:|\n");
    for (int i = 0; i < (argc > 1 ? argc - 1 : 4); i++) {
        ds_cpu_desc cpu = { .workers = atoi(argc > 1 ? argv[i + 1] : usual[i]) };
        ds_init_desc init = { .cpu = &cpu };
        ds_kernel_desc desc = { .name = "add", .cpu_fn = add, .args_size = sizeof(void *) };
        ds_stream_desc on = { .device = ds_cpu(0) };
        check(ds_init(&init));
        check(ds_kernel_create(&desc, &kernel));
        for (int s = 0; s < STREAMS; s++) {
            check(ds_stream_create(&on, &stream[s]));
            check(ds_event_create(0, NULL, &event[s]));
        }
        for (row = 0; row < (int)(sizeof rows / sizeof *rows); row++)
            measure(cpu.workers);
        check(ds_shutdown());
    }
    return 0;
}
