/* layers.c - the cost of the layers check and trace: the same work without and with one, in turn.

   layers [COMMAND...]: prints tables in Markdown; the time of each command is compared, too.
   layers CASE NUMBER prints one figure; a table starts such a process for each figure, so that
   nothing is left of an earlier one. Times of launches are those of the calls: the streams wait for
   a gate, so no worker runs. Exit 0, or 1 if something failed. */
#define DEVSTREAM_IMPLEMENTATION
#ifndef WITHOUT_HEADER
#include "../devstream_check.h"
#include "../devstream_trace.h"
#endif
#include "../devstream_kernel.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"

enum { RANGES = 1000, FLOATS = 16, BATCH = 2000, ROUNDS = 31, STREAMS = 64, PASSES = 5 };

#define OK(call)                                          \
    do {                                                  \
        if ((call) < 0) {                                 \
            fprintf(stderr, "%s\n", ds_error_get_last()); \
            exit(1);                                      \
        }                                                 \
    } while (0)

DS_KERNEL_1D(add, i, n, DS_READ(float, a, n), DS_READ(float, b, n), DS_WRITE(float, c, n)) {
    c[i] = a[i] + b[i];
}

DS_KERNEL_1D(load, i, n, DS_READ(float, a, n)) {
    if (a[i] < 0)
        abort();
}

DS_KERNEL_1D(store, i, n, DS_WRITE(float, a, n)) {
    a[i] = 1;
}

static ds_stream stream[STREAMS], gate_stream;
static ds_event gate, joined[STREAMS];
static float *range[RANGES];
static _Atomic int is_open;
static int lines; /* streams in use */

static void wait_for_gate(void *user) {
    (void)user;
    while (!is_open)
        bench_sleep_us(20);
}

/* Lets all streams wait until gate_open. */
static void gate_close(void) {
    is_open = 0;
    OK(ds_stream_launch_host_func(gate_stream, wait_for_gate, NULL, NULL));
    OK(ds_event_record(gate, gate_stream));
    for (int i = 0; i < lines; i++)
        OK(ds_stream_wait_event(stream[i], gate));
}

static void gate_open(void) {
    is_open = 1;
    OK(ds_device_synchronize(ds_device_current()));
}

static void prepare(int streams) {
    lines = streams;
    OK(ds_stream_create(NULL, &gate_stream));
    OK(ds_event_create(0, NULL, &gate));
    for (int i = 0; i < lines; i++) {
        OK(ds_stream_create(NULL, &stream[i]));
        OK(ds_event_create(0, NULL, &joined[i]));
    }
    for (int i = 0; i < RANGES; i++) {
        OK(ds_device_alloc(ds_device_current(), FLOATS * sizeof(float), (void **)&range[i]));
        OK(ds_fill(range[i], 0, 4, FLOATS, stream[i % lines]));
    }
    OK(ds_device_synchronize(ds_device_current()));
}

/* Launches operation i: each stream uses its own share of the ranges, and every 16 operations it
   waits for its neighbour. */
static void launch(int line, int i) {
    int share = RANGES / lines;
    int own = share * line;
    OK(DS_LAUNCH(add, stream[line], FLOATS, range[own + i % share], range[own + (i + 1) % share],
                 range[own + (i + 2) % share]));
    if (i % 16)
        return;
    OK(ds_event_record(joined[line], stream[line]));
    OK(ds_stream_wait_event(stream[(line + 1) % lines], joined[line]));
}

/* ns of a launch with three operands, in so many streams. */
static double time_launches(int streams) {
    static double v[ROUNDS];
    prepare(streams);
    for (int r = 0; r < ROUNDS; r++) {
        gate_close();
        double began = bench_now_ns();
        for (int i = 0; i < BATCH; i++)
            launch(i % lines, i / lines);
        v[r] = (bench_now_ns() - began) / BATCH;
        gate_open();
    }
    return bench_median(v, ROUNDS);
}

/* ns of a write after reads by so many streams, all of which it waits for. */
static double time_worst(int streams) {
    static double v[ROUNDS];
    prepare(streams);
    for (int r = 0; r < ROUNDS; r++) {
        double spent = 0;
        for (int k = 0; k < 40; k++) {
            for (int i = 0; i < lines; i++)
                OK(DS_LAUNCH(load, stream[i], FLOATS, range[k]));
            for (int i = 1; i < lines; i++)
                OK(ds_stream_wait_stream(stream[0], stream[i]));
            double began = bench_now_ns();
            OK(DS_LAUNCH(store, stream[0], FLOATS, range[k]));
            spent += bench_now_ns() - began;
        }
        v[r] = spent / 40;
        OK(ds_device_synchronize(ds_device_current()));
    }
    return bench_median(v, ROUNDS);
}

/* ns of a launch in a block that has so many small accesses. */
static double time_pieces(int pieces) {
    static double v[ROUNDS];
    float *block;
    prepare(4);
    OK(ds_device_alloc(ds_device_current(), (size_t)pieces * 64, (void **)&block));
    for (int r = 0; r < ROUNDS; r++) {
        double began = bench_now_ns();
        for (int i = 0; i < BATCH; i++)
            OK(DS_LAUNCH(store, stream[0], 16, block + (size_t)(i * 7 % pieces) * 16));
        v[r] = (bench_now_ns() - began) / BATCH;
        OK(ds_device_synchronize(ds_device_current()));
    }
    return bench_median(v, ROUNDS);
}

static int submitters;
static pthread_barrier_t barrier;
static double thread_began[STREAMS], thread_ended[STREAMS];

static void *submitter(void *user) {
    int first = (int)(intptr_t)user;
    pthread_barrier_wait(&barrier);
    thread_began[first] = bench_now_ns();
    int own = lines / submitters;
    for (int i = 0; i < BATCH; i++)
        launch(first + i % own, i / own);
    thread_ended[first] = bench_now_ns();
    return NULL;
}

/* ns of a launch, when so many threads launch at the same time: time divided by all launches. */
static double time_threads(int threads) {
    static double v[ROUNDS];
    prepare(16);
    submitters = threads;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int r = 0; r < ROUNDS; r++) {
        pthread_t thread[STREAMS];
        gate_close();
        for (int t = 0; t < threads; t++)
            pthread_create(&thread[t], NULL, submitter, (void *)(intptr_t)(t * lines / threads));
        double first = INFINITY, last = 0;
        for (int t = 0; t < threads; t++) {
            pthread_join(thread[t], NULL);
            first = fmin(first, thread_began[t * lines / threads]);
            last = fmax(last, thread_ended[t * lines / threads]);
        }
        v[r] = (last - first) / (BATCH * threads);
        gate_open();
    }
    return bench_median(v, ROUNDS);
}

/* ns of a graph launch for each of its distinct pointers. */
static double time_liveness(int nodes) {
    static double v[ROUNDS];
    ds_graph graph;
    ds_graph_exec exec;
    prepare(1);
    OK(ds_capture_begin(stream[0], DS_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < nodes; i++)
        OK(DS_LAUNCH(store, stream[0], FLOATS, range[i]));
    OK(ds_capture_end(stream[0], &graph));
    OK(ds_graph_instantiate(graph, NULL, &exec));
    for (int r = 0; r < ROUNDS; r++) {
        gate_close();
        double began = bench_now_ns();
        for (int i = 0; i < 20; i++)
            OK(ds_graph_launch(exec, stream[0]));
        v[r] = (bench_now_ns() - began) / 20 / nodes;
        gate_open();
    }
    return bench_median(v, ROUNDS);
}

#ifndef WITHOUT_HEADER
/* Bytes of the layer for a live range with one access. */
static double count_bytes(int count) {
    ds_check_stats before, after;
    char *ptr;
    prepare(4);
    OK(ds_check_get_stats(&before));
    for (int i = 0; i < count; i++) {
        OK(ds_device_alloc(ds_device_current(), 256, (void **)&ptr));
        OK(ds_fill(ptr, 0, 1, 256, stream[i % lines]));
    }
    OK(ds_check_get_stats(&after));
    return (double)(after.bytes - before.bytes) / count;
}
#else
static double count_bytes(int count) {
    return 0.0 * count;
}
#endif

static double thread_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ns of a tiny kernel on one stream, from the first launch to the end of the wait. what: 0: time,
   1: time of the processor of the calling thread in the launches, 2: of all threads. */
static double time_queue(int what) {
    static double v[ROUNDS];
    prepare(1);
    for (int r = 0; r < ROUNDS; r++) {
        double start = what == 2 ? bench_cpu_ns() : what ? thread_cpu_ns() : bench_now_ns();
        for (int i = 0; i < 5 * BATCH; i++)
            OK(DS_LAUNCH(store, stream[0], 1, range[0]));
        if (what == 1)
            v[r] = (thread_cpu_ns() - start) / (5 * BATCH);
        OK(ds_stream_synchronize(stream[0]));
        if (what != 1)
            v[r] = ((what ? bench_cpu_ns() : bench_now_ns()) - start) / (5 * BATCH);
        bench_sleep_us(5000); /* the records are written */
    }
    return bench_median(v, ROUNDS);
}

static const struct {
    const char *name;
    double (*measure)(int number);
} cases[] = { { "launch", time_launches }, { "worst", time_worst },    { "pieces", time_pieces },
              { "threads", time_threads }, { "nodes", time_liveness }, { "bytes", count_bytes },
              { "queue", time_queue } };

static int measure(const char *name, int number) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, name) == 0) {
            printf("%.3f\n", cases[i].measure(number));
            fflush(stdout);
            _Exit(0);
        }
    return 1;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char *self;

/* Returns the figure that a command prints, or with `timed` its seconds. */
static double run(const char *command, int timed) {
    char line[512];
    double value = NAN;
    double start = bench_now_ns();
    FILE *f = popen(command, "r");
    if (!f)
        return NAN;
    while (fgets(line, sizeof line, f))
        if (!timed)
            value = strtod(line, NULL);
    bench_failed |= pclose(f) != 0;
    return timed ? (bench_now_ns() - start) / 1e9 : value;
}

/* Prints a row: medians of both commands, in turn, and their difference or ratio. */
static void row(const char *title, const char *without, const char *with, int timed, double goal) {
    double v[2][PASSES];
    for (int i = 0; i < PASSES; i++)
        for (int side = 0; side < 2; side++) {
            int on = (side + i) & 1;
            v[on][i] = run(on ? with : without, timed);
        }
    double off = bench_median(v[0], PASSES);
    double on = bench_median(v[1], PASSES);
    printf(timed ? "| %s | %.2f | %.2f | %.2f times |" : "| %s | %.1f | %.1f | %+.1f |", title, off,
           on, timed ? on / off : on - off);
    if (goal > 0)
        printf(" %.0f | %s |\n", goal, on - off <= goal ? "met" : "**not met**");
    else
        printf(" - | - |\n");
    fflush(stdout);
}

/* Prints a row of a command without a layer and with it. on: what turns the layer on. */
static void compare(const char *title, const char *command, const char *on, int timed,
                    double goal) {
    char without[512];
    char with[512];
    snprintf(without, sizeof without, "DEVSTREAM_CHECK=0 %s", command);
    snprintf(with, sizeof with, "%s %s", on, command);
    row(title, without, with, timed, goal);
}

static const char check_on[] = "DEVSTREAM_CHECK=quiet";

static void figure(const char *title, const char *name, int number, const char *on, double goal) {
    char command[400];
    snprintf(command, sizeof command, "%s %s %d", self, name, number);
    compare(title, command, on, 0, goal);
}

/* Prints a row of a program without the headers, and one with them that turns no layer on. */
static void compare_headers(void) {
    char without[512];
    char with[512];
    snprintf(without, sizeof without, "%s_without launch 16", self);
    snprintf(with, sizeof with, "%s launch 16", self);
    row("launch, program without the headers, and with them, ns", without, with, 0, 0);
}

static void head(const char *layer) {
    printf("| %s | without | with the layer | cost | goal | goal met |\n"
           "|---|---:|---:|---:|---:|---:|\n",
           layer);
}

static void check_table(int count, char *const *commands) {
    head("check");
    figure("launch, 3 operands in 1,000 ranges, 4 streams, ns", "launch", 4, check_on, 100);
    figure("the same, 16 streams, ns", "launch", 16, check_on, 100);
    figure("the same, 64 streams, ns", "launch", 64, check_on, 100);
    compare_headers();
    figure("64 readers, then a write: the write, ns", "worst", 64, check_on, 0);
    figure("launch in a block with 1,000 accesses, ns", "pieces", 1000, check_on, 0);
    figure("launch, 16 streams, 1 thread, ns", "threads", 1, check_on, 0);
    figure("the same, 2 threads, ns", "threads", 2, check_on, 0);
    figure("the same, 4 threads, ns", "threads", 4, check_on, 0);
    figure("graph launch, checks of each distinct pointer, ns", "nodes", 500, check_on, 0);
    figure("memory of a range with one access, bytes", "bytes", 20000, check_on, 0);
    for (int i = 0; i < count; i++) {
        const char *name = strrchr(commands[i], '/');
        char title[80];
        snprintf(title, sizeof title, "%s, s", name ? name + 1 : commands[i]);
        compare(title, commands[i], check_on, 1, 0);
    }
}

static void trace_table(void) {
    static const char ring[] = "DEVSTREAM_TRACE=1";
    char file[400];
    snprintf(file, sizeof file, "DEVSTREAM_TRACE=%s.html", self);
    printf("\n");
    head("trace");
    figure("launch, calling thread, CPU time, ns", "queue", 1, ring, 40);
    figure("launch and execution, all threads, CPU time, ns", "queue", 2, ring, 0);
    figure("one queue, end to end, ns", "queue", 0, ring, 0);
    figure("the same, with a page, ns", "queue", 0, file, 0);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 3 && strchr(argv[1], '/') == NULL) /* no command */
        return measure(argv[1], atoi(argv[2]));

    check_table(argc - 1, argv + 1);
    trace_table();
    return bench_failed;
}
