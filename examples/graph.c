/* graph.c - the demo's pipeline, captured once and launched for every piece: what that saves,
   checked.

   Compile:  cc -O2 -I. examples/graph.c -o graph -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/graph.c -o graph -pthread
   Run:      ./graph                      examples/data/digits.csv, again and again up to 64 MiB
             ./graph --dot FILE           and writes a picture of the graph to FILE:
                                          dot -Tsvg FILE -o graph.svg
             ./graph --help               the options

   A piece's way, in enqueue(); the pieces are small, so that what it costs to submit work counts:

       clear the results, copy the piece in
         -+- count its bytes (kernel "histogram") -+- add both, copy the results back
          +- sum them up (kernel "checksum") ------+

   The two kernels are on two streams, forked and joined by events. Four slots, each with streams
   and buffers of its own, take turns. The first time every piece is enqueued. The second time the
   calls of enqueue() were captured, once per slot: they ran nothing and became the nodes of a
   graph, and one ds_graph_launch per piece stands for all of them.

   A graph repeats what was captured, the same addresses and the same numbers. The bytes of a piece
   come through memory at a fixed place, the slot's pinned buffer. The piece's position in the input
   is a number among the arguments of "checksum": ds_graph_exec_set_node sets it before each launch,
   in launch(). Setting it and launching the graph must cost less than to enqueue the work. The
   last piece has another size: for that enqueue() is captured anew, and ds_graph_exec_update takes
   over the differences.

   Exit status: 0 fine, 1 something failed (standard error says what), 2 the results are wrong. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "demo.kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FINE = 0, FAILED = 1, WRONG = 2 };

/* ---- the pipeline ---------------------------------------------------------------------------- */

enum { SLOTS = 4, ROW = WORDS * sizeof(uint64_t) };

typedef struct slot {
    ds_stream stream, side;
    ds_event fork, join;
    uint64_t *out;     /* pinned: the results, and after them */
    unsigned char *in; /* the piece */
    /* device: three rows of results, of both kernels together and of each, and after them */
    uint64_t *rows;
    unsigned char *data; /* the piece */
    ds_graph graph;
    ds_graph_exec exec;
    /* the node of the kernel "checksum", its description and its arguments */
    ds_graph_node sum_node;
    ds_node_desc sum;
    struct checksum_args sum_args;
    size_t size, captured; /* bytes of the piece, and of the pieces for which the graph is */
    uint64_t offset;       /* the piece's position in the input */
    int pending;           /* submitted and not taken */
} slot;

typedef struct way {       /* of running the pipeline: enqueued, or as graphs */
    uint64_t total[WORDS]; /* the results of all pieces */
    double seconds;        /* its time */
    double submit;         /* processor time of the calls that submit */
    double *each;          /* of each piece: the time of these calls */
} way;

static slot slots[SLOTS];
static way ways[2];
static FILE *file;

static struct {
    const char *path, *dot;
    uint64_t piece, total;
    int cpu, damage;
} options = { .piece = 64 << 10 };

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

/* The time of this thread on a processor. */
static double processor_time(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* The whole way of a piece. Each call queues work or, while the stream captures, makes a node. */
static ds_result enqueue(ds_stream stream, void *user) {
    slot *s = user;
    size_t blocks = (s->size + BLOCK - 1) / BLOCK;
    const uint32_t *data = (const uint32_t *)s->data;
    uint64_t *counts = s->rows + WORDS;
    uint64_t *sums = counts + WORDS;
    ds_result r = ds_fill(s->rows, 0, 4, 3 * ROW / 4, stream);
    if (r >= 0)
        r = ds_copy(s->data, s->in, s->size, stream);
    if (r >= 0)
        r = ds_event_record(s->fork, stream);
    /* fork: from here on the other stream captures too */
    if (r >= 0)
        r = ds_stream_wait_event(s->side, s->fork);
    if (r >= 0)
        r = DS_LAUNCH(histogram, stream, blocks, data, counts, s->size);
    if (r >= 0)
        r = DS_LAUNCH(checksum, s->side, blocks, data, sums, s->size, s->offset);
    if (r >= 0)
        r = ds_event_record(s->join, s->side);
    /* join: without it the capture could not end */
    if (r >= 0)
        r = ds_stream_wait_event(stream, s->join);
    if (r >= 0)
        r = DS_LAUNCH(add_rows, stream, WORDS, s->rows, counts, 2);
    if (r >= 0)
        r = ds_copy(s->out, s->rows, ROW, stream);
    return r;
}

/* Finds the node of the kernel "checksum" among those that were captured, and copies its
   description and arguments. */
static int find_summing(slot *s, ds_graph_node *out) {
    ds_graph_node nodes[16];
    ds_kernel kernel;
    size_t count;
    out->id = 0;
    DS_CHECK(ds_kernel_def_get_kernel(&checksum_def, &kernel));
    DS_CHECK(ds_graph_get_nodes(s->graph, nodes, 16, &count));
    for (size_t i = 0; i < count && i < 16 && !out->id; i++) {
        DS_CHECK(ds_graph_get_node(s->graph, nodes[i], &s->sum, NULL));
        if (s->sum.kind == DS_NODE_KERNEL && s->sum.u.kernel.kernel.id == kernel.id)
            *out = nodes[i];
    }
    if (!out->id) {
        fprintf(stderr, "graph: the captured graph has no node of the kernel checksum\n");
        return FAILED;
    }
    memcpy(&s->sum_args, s->sum.u.kernel.args, sizeof s->sum_args);
    s->sum.u.kernel.args = &s->sum_args;
    return FINE;
}

/* Captures enqueue() for pieces of the slot's present size: into a new executable, or into the
   one there is, whose nodes are still named by the first graph. */
static int capture(slot *s) {
    ds_graph_node node;
    if (s->graph.id)
        DS_CHECK(ds_graph_destroy(s->graph));
    DS_CHECK(ds_capture_function(s->stream, enqueue, s, &s->graph));
    if (find_summing(s, &node) != FINE)
        return FAILED;
    s->captured = s->size;
    if (s->exec.id) {
        DS_CHECK(ds_graph_exec_update(s->exec, s->graph, NULL));
        return FINE;
    }
    DS_CHECK(ds_graph_instantiate(s->graph, NULL, &s->exec));
    s->sum_node = node;
    return FINE;
}

/* Sets the position of the piece among the arguments of "checksum", and launches the graph. */
static ds_result launch(slot *s) {
    s->sum_args.offset = s->offset;
    ds_result r = ds_graph_exec_set_node(s->exec, s->sum_node, &s->sum);
    return r < 0 ? r : ds_graph_launch(s->exec, s->stream);
}

/* Waits for the slot's piece, if there is one, and adds its results. */
static int take(slot *s, way *w) {
    if (!s->pending)
        return FINE;
    s->pending = 0;
    DS_CHECK(ds_stream_synchronize(s->stream));
    for (int i = 0; i < WORDS; i++)
        w->total[i] += s->out[i];
    return FINE;
}

/* The next bytes of the file, which begins again at its end. */
static int read_piece(unsigned char *to, size_t size) {
    for (size_t n = 0, got; n < size; n += got) {
        got = fread(to + n, 1, size - n, file);
        if (got > 0)
            continue;
        if (ferror(file) || ftell(file) <= 0) {
            fprintf(stderr, "graph: cannot read %s\n", options.path);
            return FAILED;
        }
        rewind(file);
    }
    return FINE;
}

/* All of the input, by enqueuing every piece or by launching its slot's graph. */
static int run(int graphs, way *w) {
    double start = now(), begin, used;
    uint64_t offset = 0;
    rewind(file);
    for (slot *s = slots; offset < options.total; s = s < slots + SLOTS - 1 ? s + 1 : slots) {
        uint64_t left = options.total - offset;
        if (take(s, w) != FINE)
            return FAILED;
        s->offset = offset;
        s->size = (size_t)(left < options.piece ? left : options.piece);
        if (read_piece(s->in, s->size) != FINE)
            return FAILED;
        if (graphs && options.damage && offset == 0)
            s->in[0] ^= 1;
        used = processor_time();
        begin = now();
        if (graphs && s->size != s->captured && capture(s) != FINE)
            return FAILED;
        s->pending = 1;
        DS_CHECK(graphs ? launch(s) : enqueue(s->stream, s));
        w->each[offset / options.piece] = now() - begin;
        w->submit += processor_time() - used;
        offset += s->size;
    }
    for (slot *s = slots; s < slots + SLOTS; s++)
        if (take(s, w) != FINE)
            return FAILED;
    w->seconds = now() - start;
    return FINE;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Compiles the kernels before the first launch, so that this is not timed. */
static int load_kernels(ds_device device) {
    ds_kernel_def *const def[] = { &histogram_def, &checksum_def, &add_rows_def };
    for (size_t i = 0; i < sizeof def / sizeof *def; i++) {
        ds_kernel kernel;
        DS_CHECK(ds_kernel_def_get_kernel(def[i], &kernel));
        DS_CHECK(ds_kernel_load(kernel, device));
    }
    return FINE;
}

static int open_slot(slot *s, ds_device device) {
    ds_stream_desc stream = { .device = device, .label = "slot" },
                   side = { .device = device, .label = "side of a slot" };
    void *pinned, *memory;
    s->size = (size_t)options.piece;
    DS_CHECK(ds_stream_create(&stream, &s->stream));
    DS_CHECK(ds_stream_create(&side, &s->side));
    DS_CHECK(ds_event_create(0, "fork", &s->fork));
    DS_CHECK(ds_event_create(0, "join", &s->join));
    DS_CHECK(ds_pinned_alloc(ROW + s->size, &pinned));
    s->out = pinned;
    s->in = (unsigned char *)pinned + ROW;
    DS_CHECK(ds_device_alloc(device, 3 * ROW + s->size, &memory));
    s->rows = memory;
    s->data = (unsigned char *)memory + 3 * ROW; /* on a multiple of 16, as the kernels want it */
    return FINE;
}

/* Freeing memory waits for what is under way after a failure. */
static void close_all(void) {
    for (slot *s = slots; s < slots + SLOTS; s++) {
        DS_IGNORE(ds_device_free(s->rows));
        DS_IGNORE(ds_pinned_free(s->out));
        if (s->graph.id)
            DS_IGNORE(ds_graph_destroy(s->graph));
        if (s->exec.id)
            DS_IGNORE(ds_graph_exec_destroy(s->exec));
        if (s->fork.id)
            DS_IGNORE(ds_event_destroy(s->fork));
        if (s->join.id)
            DS_IGNORE(ds_event_destroy(s->join));
        if (s->side.id)
            DS_IGNORE(ds_stream_destroy(s->side));
        if (s->stream.id)
            DS_IGNORE(ds_stream_destroy(s->stream));
    }
    if (file)
        fclose(file);
    free(ways[0].each);
    free(ways[1].each);
}

/* ---- the check, options and main ------------------------------------------------------------- */

static uint32_t adler(const uint64_t *results, uint64_t bytes) {
    uint64_t n = bytes % ADLER, s = results[SUM] % ADLER, w = results[WEIGHTED] % ADLER;
    uint64_t a = (1 + s) % ADLER, b = (n + n * s + ADLER - w) % ADLER;
    return (uint32_t)(b << 16 | a);
}

static int differ(const char *what, const uint64_t *count, uint32_t sum, const way *w) {
    int same = memcmp(count, w->total + COUNTS, 256 * sizeof *count) == 0 &&
               sum == adler(w->total, options.total);
    if (!same)
        fprintf(stderr, "graph: WRONG: the results of %s differ\n", what);
    return !same;
}

/* Against an ordinary loop over the same bytes, which shares nothing with the kernels, and
   against each other. */
static int check(void) {
    uint64_t count[256] = { 0 };
    uint32_t a = 1, b = 0, sum;
    rewind(file);
    for (uint64_t n = 0; n < options.total; n++) {
        unsigned char byte;
        int c = getc(file);
        if (c != EOF)
            byte = (unsigned char)c;
        else if (read_piece(&byte, 1) != FINE)
            return FAILED;
        count[byte]++;
        a = (a + byte) % 65521;
        b = (b + a) % 65521;
    }
    sum = b << 16 | a;
    if (differ("enqueued work and an ordinary loop", count, sum, &ways[0]) +
        differ("graphs and an ordinary loop", count, sum, &ways[1]) +
        differ("enqueued work and graphs", ways[0].total + COUNTS,
               adler(ways[0].total, options.total), &ways[1]))
        return WRONG;
    printf("check            both as an ordinary loop: checksum %08x (Adler-32), and the count of "
           "every byte\n",
           (unsigned)sum);
    return FINE;
}

static const char USAGE[] =
    "usage: graph [options] [FILE]\n"
    "Counts the bytes of FILE on a device in small pieces: enqueued each time, then by launching "
    "graphs.\n"
    "Without FILE: examples/data/digits.csv, again and again up to 67108864 bytes.\n"
    "  --total BYTES   read so many bytes in all; the file again and again as needed\n"
    "  --piece BYTES   of a piece (65536)\n"
    "  --dot FILE      write the graph to FILE, in Graphviz' language\n"
    "  --cpu           use the CPU although there is a GPU\n"
    "  --damage        change a byte before a graph is launched, to see the check find it\n";

static int parse_size(const char *text, uint64_t most, uint64_t *out) {
    char *end = NULL;
    *out = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    return end && !*end && *out >= 1 && *out <= most;
}

static int parse_options(char **a) {
    for (a++; *a; a++) {
        if (strcmp(*a, "--cpu") == 0)
            options.cpu = 1;
        else if (strcmp(*a, "--damage") == 0)
            options.damage = 1;
        else if (strcmp(*a, "--dot") == 0 && a[1])
            options.dot = *++a;
        else if (strcmp(*a, "--total") == 0 && parse_size(a[1], (uint64_t)1 << 40, &options.total))
            a++;
        else if (strcmp(*a, "--piece") == 0 && parse_size(a[1], (uint64_t)1 << 30, &options.piece))
            a++;
        else if (**a != '-' && !options.path)
            options.path = *a;
        else {
            fprintf(stderr, "graph: cannot understand \"%s\"\n%s", *a, USAGE);
            return FAILED;
        }
    }
    return FINE;
}

static int open_all(void) {
    ds_device device;
    char name[DS_DEVICE_NAME_SIZE];
    if (!options.path && !options.total)
        options.total = 64 << 20;
    if (!options.path)
        options.path = "examples/data/digits.csv";
    file = fopen(options.path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0 || ftell(file) <= 0) {
        fprintf(stderr, "graph: %s is not there, or is no file with bytes in it\n", options.path);
        return FAILED;
    }
    if (!options.total)
        options.total = (uint64_t)ftell(file);
    if (options.cpu)
        DS_CHECK(ds_device_set_current(ds_cpu(0)));
    DS_CHECK(ds_device_get_current(&device));
    DS_CHECK(ds_device_format(device, name, sizeof name));
    printf("device           %s\n", name);
    for (int i = 0; i < SLOTS; i++)
        if (open_slot(&slots[i], device) != FINE)
            return FAILED;
    for (int i = 0; i < 2; i++) {
        ways[i].each = calloc((size_t)(options.total / options.piece + 1), sizeof(double));
        if (!ways[i].each) {
            fprintf(stderr, "graph: out of memory for the times of the pieces\n");
            return FAILED;
        }
    }
    return load_kernels(device);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median and not the mean: while a call submits, the system may give the processor to a worker,
   whose time the mean would contain. */
static double median(double *times, size_t count) {
    qsort(times, count, sizeof *times, compare);
    return times[count / 2];
}

static int work(void) {
    double begin, pieces;
    if (open_all() != FINE || run(0, &ways[0]) != FINE)
        return FAILED;
    begin = now();
    for (slot *s = slots; s < slots + SLOTS; s++) {
        s->size = (size_t)options.piece;
        if (capture(s) != FINE)
            return FAILED;
    }
    begin = now() - begin;
    pieces = (double)((options.total + options.piece - 1) / options.piece);
    if (options.dot)
        DS_CHECK(ds_graph_write_dot_file(slots[0].graph, DS_DOT_PLAIN, options.dot));
    if (run(1, &ways[1]) != FINE)
        return FAILED;
    printf("input            %s, %llu bytes in %.0f pieces\n", options.path,
           (unsigned long long)options.total, pieces);
    printf("captured         in %.3f us a slot, with its executable\n",
           1e6 * begin / (double)SLOTS);
    for (int i = 0; i < 2; i++)
        printf("%s %11.3f ms, %9.3f us a piece; to submit it %.3f us of processor time, median "
               "%.3f us\n",
               i ? "graphs launched" : "enqueued       ", 1e3 * ways[i].seconds,
               1e6 * ways[i].seconds / pieces, 1e6 * ways[i].submit / pieces,
               1e6 * median(ways[i].each, (size_t)pieces));
    return check();
}

int main(int argc, char **argv) {
    int result;
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argv) != FINE)
        return FAILED;
    result = work();
    close_all();
    if (ds_shutdown() < 0 && result == FINE) {
        fprintf(stderr, "graph: %s\n", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        perror("graph: standard output");
        result = FAILED;
    }
    return result;
}
