/* race.c - frequent bugs of programs with streams, and the reports of the check layer about them.

   Compile:  cc -O2 -I. examples/race.c -o race -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/race.c -o race -pthread
   Run:      ./race              lists the bugs
             ./race BUG          runs a program with this bug and prints the reports
             ./race BUG fixed    runs the corrected program

   Each bug is a function below. The layer decides from the order that the program states, so the
   reports are the same on each run, on a GPU and on the CPU.

   Exit status: 0 no report, 1 the layer has reported a bug, 2 a call failed or BUG is not known. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#define DS_CHECK_HANDLER(result, text, file, line) return FAILED
#include "devstream_check.h"
#include "devstream_alloc.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { FINE = 0, REPORTED = 1, FAILED = 2, SIZE = 4096, STEPS = 4 };

static ds_stream upload;
static ds_stream compute;
static ds_event event[2];
static char *device[2]; /* SIZE bytes each */
static char *host[2];   /* pinned, SIZE bytes each */

/* ---- waits and events ------------------------------------------------------------------------ */

/* Two buffers in turn. The event says that the buffer may be overwritten, but is recorded before
   the work that reads the buffer. */
static int early_event(int fixed) {
    for (int i = 0; i < STEPS; i++) {
        int slot = i % 2;
        if (i >= 2)
            DS_CHECK(ds_stream_wait_event(upload, event[slot]));
        DS_CHECK(ds_fill(device[slot], (uint32_t)i, 1, SIZE, upload));
        DS_CHECK(ds_stream_wait_stream(compute, upload));
        if (!fixed)
            DS_CHECK(ds_event_record(event[slot], compute));
        DS_CHECK(ds_copy(host[slot], device[slot], SIZE, compute));
        if (fixed)
            DS_CHECK(ds_event_record(event[slot], compute));
    }
    return FINE;
}

/* One event is recorded on two streams. A wait counts the last record only. */
static int two_records(int fixed) {
    DS_CHECK(ds_fill(device[0], 1, 1, SIZE, upload));
    DS_CHECK(ds_event_record(event[0], upload));
    DS_CHECK(ds_fill(device[1], 1, 1, SIZE, compute));
    DS_CHECK(ds_event_record(event[fixed], compute));
    DS_CHECK(ds_stream_wait_event(compute, event[0]));
    return ds_copy(host[0], device[0], SIZE, compute) < 0;
}

/* ds_copy_sync runs on the legacy stream, which does not wait for non-blocking streams. */
static int legacy(int fixed) {
    DS_CHECK(ds_fill(device[0], 1, 1, SIZE, compute));
    if (fixed)
        DS_CHECK(ds_stream_synchronize(compute));
    return ds_copy_sync(host[0], device[0], SIZE) < 0;
}

/* The word that says "ready" is written before the data. */
static int value(int fixed) {
    uint32_t *ready = (void *)host[1];
    *ready = 0;
    if (!fixed)
        DS_CHECK(ds_stream_write_value32(upload, ready, 1));
    DS_CHECK(ds_fill(device[0], 1, 1, SIZE, upload));
    if (fixed)
        DS_CHECK(ds_stream_write_value32(upload, ready, 1));
    DS_CHECK(ds_stream_wait_value32(compute, ready, 1, DS_VALUE_WAIT_GEQ));
    return ds_copy(host[0], device[0], SIZE, compute) < 0;
}

/* ---- the host -------------------------------------------------------------------------------- */

/* The host reads a result before the copy has arrived. */
static int host_read(int fixed) {
    DS_CHECK(ds_copy(host[0], device[0], SIZE, compute));
    if (fixed)
        DS_CHECK(ds_stream_synchronize(compute));
    ds_host_read(host[0], SIZE);
    return fixed && host[0][0] != 0; /* the device has zeros */
}

static atomic_int full;
static int hands_over;

static void *load(void *unused) {
    (void)unused;
    ds_host_write(host[0], SIZE);
    memset(host[0], 1, SIZE);
    if (hands_over)
        DS_IGNORE(ds_check_release(&full));
    full = 1;
    return NULL;
}

/* A thread fills a buffer for another thread. A flag hands the buffer over, and nothing tells the
   layer. With the option "threads", only order that the program declares counts. */
static int threads(int fixed) {
    pthread_t loader;
    hands_over = fixed;
    if (pthread_create(&loader, NULL, load, NULL))
        return FAILED;
    while (!full)
        sched_yield();
    if (fixed)
        DS_IGNORE(ds_check_acquire(&full));
    ds_result r = ds_copy(device[0], host[0], SIZE, upload);
    pthread_join(loader, NULL);
    return r < 0 ? FAILED : FINE;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Two streams write tiles of one picture; the tiles have a column in common. */
static int tiles(int fixed) {
    char *right = device[0] + (fixed ? 32 : 31);
    DS_CHECK(ds_fill_2d(device[0], 64, 1, 1, 32, SIZE / 64, upload));
    return ds_fill_2d(right, 64, 2, 1, 32, SIZE / 64, compute) < 0;
}

/* A block is freed while another stream than its own uses it. */
static int record_use(int fixed) {
    void *block;
    DS_CHECK(ds_mem_alloc(SIZE, upload, &block));
    DS_CHECK(ds_fill(block, 1, 1, SIZE, upload));
    DS_CHECK(ds_stream_wait_stream(compute, upload));
    DS_CHECK(ds_copy(host[0], block, SIZE, compute));
    if (fixed)
        DS_CHECK(ds_mem_record_use(block, compute));
    return ds_mem_free(block) < 0;
}

/* A block is used after it was freed. */
static int use_after_free(int fixed) {
    void *block;
    DS_CHECK(ds_mem_alloc(SIZE, compute, &block));
    if (!fixed)
        DS_CHECK(ds_mem_free(block));
    DS_CHECK(ds_fill(block, 1, 1, SIZE, compute));
    if (fixed)
        DS_CHECK(ds_mem_free(block));
    return FINE;
}

/* A graph is launched after its memory was freed. */
static int graph_memory(int fixed) {
    void *block;
    ds_graph graph;
    ds_graph_exec exec;
    DS_CHECK(ds_mem_alloc(SIZE, compute, &block));
    DS_CHECK(ds_capture_begin(compute, DS_CAPTURE_THREAD_LOCAL));
    DS_CHECK(ds_fill(block, 1, 1, SIZE, compute));
    DS_CHECK(ds_capture_end(compute, &graph));
    DS_CHECK(ds_graph_instantiate(graph, NULL, &exec));
    if (!fixed)
        DS_CHECK(ds_mem_free(block));
    DS_CHECK(ds_graph_launch(exec, compute));
    if (fixed)
        DS_CHECK(ds_mem_free(block));
    DS_CHECK(ds_graph_exec_destroy(exec));
    return ds_graph_destroy(graph) < 0;
}

/* ---- main ------------------------------------------------------------------------------------ */

typedef struct bug {
    const char *name;
    const char *text;
    int (*run)(int fixed);
    const char *options; /* of the layer */
} bug;

static const bug bugs[] = {
    { "early-event", "an event is recorded before the work that it stands for", early_event, "1" },
    { "two-records", "a wait for an event that two streams record", two_records, "1" },
    { "legacy", "a copy on the legacy stream of data of a non-blocking stream", legacy, "1" },
    { "value", "a stream writes the word \"ready\" before the data", value, "1" },
    { "host-read", "the host reads a result before it has waited", host_read, "1" },
    { "threads", "threads hand a buffer over, undeclared", threads, "threads" },
    { "tiles", "two streams write tiles that overlap", tiles, "1" },
    { "record-use", "a block is freed while another stream uses it", record_use, "1" },
    { "use-after-free", "a block is used after it was freed", use_after_free, "1" },
    { "graph-memory", "a graph uses memory that was freed", graph_memory, "1" },
};

static int open_all(const char *options) {
    ds_device current;
    char name[DS_DEVICE_NAME_SIZE];
    DS_CHECK(ds_init(&(ds_init_desc){ .check = options }));
    DS_CHECK(ds_device_get_current(&current));
    DS_CHECK(ds_device_format(current, name, sizeof name));
    printf("device %s\n", name);
    DS_CHECK(ds_stream_create(&(ds_stream_desc){ .label = "upload" }, &upload));
    DS_CHECK(ds_stream_create(&(ds_stream_desc){ .label = "compute" }, &compute));
    for (int i = 0; i < 2; i++) {
        DS_CHECK(ds_event_create(0, NULL, &event[i]));
        DS_CHECK(ds_device_alloc(current, SIZE, (void **)&device[i]));
        DS_CHECK(ds_pinned_alloc(SIZE, (void **)&host[i]));
        DS_CHECK(ds_fill_sync(device[i], 0, 1, SIZE));
    }
    return FINE;
}

static int close_all(ds_check_stats *out_stats) {
    DS_CHECK(ds_stream_synchronize(upload));
    DS_CHECK(ds_stream_synchronize(compute));
    DS_CHECK(ds_check_get_stats(out_stats));
    for (int i = 0; i < 2; i++) {
        DS_CHECK(ds_event_destroy(event[i]));
        DS_CHECK(ds_device_free(device[i]));
        DS_CHECK(ds_pinned_free(host[i]));
    }
    DS_CHECK(ds_stream_destroy(upload));
    DS_CHECK(ds_stream_destroy(compute));
    return ds_shutdown() < 0 ? FAILED : FINE;
}

static int run(const bug *b, int fixed) {
    ds_check_stats stats;
    if (open_all(b->options) != FINE || b->run(fixed) != FINE || close_all(&stats) != FINE) {
        fprintf(stderr, "race: %s\n", ds_error_get_last());
        return FAILED;
    }
    return stats.reports ? REPORTED : FINE;
}

int main(int argc, char **argv) {
    size_t count = sizeof bugs / sizeof bugs[0];
    int fixed = argc == 3 && strcmp(argv[2], "fixed") == 0;
    for (size_t i = 0; i < count && (argc == 2 || fixed); i++)
        if (strcmp(argv[1], bugs[i].name) == 0)
            return run(&bugs[i], fixed);
    printf("usage: race BUG [fixed]\n");
    for (size_t i = 0; i < count; i++)
        printf("  %-15s %s\n", bugs[i].name, bugs[i].text);
    return argc == 1 ? FINE : FAILED;
}
