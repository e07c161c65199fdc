/* ring.c - measures latency and bandwidth of the collectives of a process group, and checks their
   results. The table has the columns of nccl-tests.

   Compile:  cc -O2 -I. examples/ring.c -o ring -pthread -ldl
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/ring.c -o ring -pthread -ldl
   Run:      mpiexec -n 2 ./ring                  two ranks; ./ring --help has the options
             ./ring --devices 4                   one process with four devices

   Columns:
       size     bytes of the larger buffer of a device: the output of all_gather, the input of
                reduce_scatter, either one of the others
       count    elements of the smaller buffer
       time     mean of one operation of the slowest rank; the operations follow each other on the
                streams, and the host waits after the last one, with --wait after each
       algbw    algorithm bandwidth: size / time
       busbw    bus bandwidth: algbw times the factor of nccl-tests' PERFORMANCE.md, so that the
                figure can be compared with that of a link for any number of devices
       #wrong   elements of all devices that differ from the expected ones

   The element type is float32. All values are small whole numbers, so sums are exact in any order.

   Exit status: 0 fine, 1 something failed or an element is wrong. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FINE = 0, FAILED = 1 };

enum { MOST_DEVICES = 64, PERIOD = 13 };

#define CHECK(call)                                             \
    do {                                                        \
        if ((call) < 0) {                                       \
            fprintf(stderr, "ring: %s\n", ds_error_get_last()); \
            return FAILED;                                      \
        }                                                       \
    } while (0)

typedef struct options {
    size_t min; /* bytes */
    size_t max;
    size_t factor;
    const char *op; /* NULL: all */
    int iterations;
    int devices; /* of this rank */
    int any_order;
    int wait; /* for each operation */
    int cpu;  /* use CPU devices although there are GPUs */
} options;

static options opt = {
    .min = 8, .max = (size_t)64 << 20, .factor = 2, .iterations = 20, .devices = 1
};

/* ---- devices of this rank -------------------------------------------------------------------- */

typedef struct team {
    ds_ranks ranks;
    ds_ranks_info info;
    size_t count; /* devices of this rank */
    size_t first; /* index in the group of the first one */
    size_t total; /* devices of the group */
    ds_device device[MOST_DEVICES];
    ds_stream stream[2 * MOST_DEVICES]; /* a transfer has one, too */
    void *in[MOST_DEVICES];
    void *out[MOST_DEVICES];
    float *host; /* pinned: a buffer of a device */
    ds_comm_options comm;
} team;

/* Tensors of one call: a part of the buffers. */
typedef struct call {
    int64_t in_count; /* elements of a device's input and output */
    int64_t out_count;
    ds_tensor in[MOST_DEVICES];
    ds_tensor out[MOST_DEVICES];
    const ds_tensor *ins[MOST_DEVICES];
    const ds_tensor *outs[MOST_DEVICES];
} call;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns element i of the input of a device of the group. */
static float input(size_t device, size_t i) {
    return (float)((i + device) % PERIOD);
}

/* Chooses devices: those of the ranks on one machine follow each other. */
static int choose_devices(team *t) {
    ds_device first;
    ds_ranks_launch launch;
    int available = 0;
    ds_ranks_launch_get(&launch);
    CHECK(ds_device_get_current(&first));
    CHECK(ds_device_get_count((ds_device_type)first.type, &available));
    int begin = first.type == DS_DEVICE_CPU || launch.local_rank < 0 ? 0 : launch.local_rank;
    t->count = (size_t)opt.devices;
    for (int i = 0; i < opt.devices; i++)
        t->device[i] = (ds_device){ first.type, (begin * opt.devices + i) % available };
    return FINE;
}

/* Creates the group of all ranks, or one of this process alone if no launcher started it. */
static int join(team *t) {
    if (choose_devices(t) != FINE)
        return FAILED;
    CHECK(ds_ranks_init(
        &(ds_ranks_desc){ .devices = t->device, .device_count = t->count, .label = "ring" },
        &t->ranks));
    CHECK(ds_ranks_get_info(t->ranks, &t->info));
    t->first = t->info.first_device;
    t->total = t->info.device_count;
    t->comm = (ds_comm_options){ .streams = t->stream,
                                 .stream_count = t->count,
                                 .flags = opt.any_order ? DS_COMM_ANY_ORDER : 0,
                                 .ranks = t->ranks };
    return FINE;
}

/* Bytes of a buffer: parts of one element may need more than opt.max. */
static size_t buffer_bytes(const team *t) {
    size_t least = t->total * sizeof(float);
    return opt.max > least ? opt.max : least;
}

static int open_buffers(team *t) {
    size_t bytes = buffer_bytes(t);
    CHECK(ds_pinned_alloc(bytes, (void **)&t->host));
    for (size_t i = 0; i < t->count; i++) {
        CHECK(ds_stream_create(&(ds_stream_desc){ .device = t->device[i] }, &t->stream[i]));
        CHECK(ds_device_alloc(t->device[i], bytes, &t->in[i]));
        CHECK(ds_device_alloc(t->device[i], bytes, &t->out[i]));
        t->stream[t->count + i] = t->stream[i];
        for (size_t k = 0; k < bytes / sizeof(float); k++)
            t->host[k] = input(t->first + i, k);
        CHECK(ds_copy(t->in[i], t->host, bytes, t->stream[i]));
        CHECK(ds_stream_synchronize(t->stream[i]));
    }
    return FINE;
}

static int close_buffers(team *t) {
    for (size_t i = 0; i < t->count; i++) {
        CHECK(ds_device_free(t->in[i]));
        CHECK(ds_device_free(t->out[i]));
        CHECK(ds_stream_destroy(t->stream[i]));
    }
    CHECK(ds_pinned_free(t->host));
    return FINE;
}

static int wait_for_all(const team *t) {
    for (size_t i = 0; i < t->count; i++)
        CHECK(ds_stream_synchronize(t->stream[i]));
    return FINE;
}

/* ---- operations ------------------------------------------------------------------------------ */

static ds_result run_all_reduce(const team *t, const call *c) {
    return ds_comm_all_reduce(c->ins, c->outs, t->count, DS_REDUCE_SUM, &t->comm);
}

static ds_result run_all_gather(const team *t, const call *c) {
    return ds_comm_all_gather(c->ins, c->outs, t->count, &t->comm);
}

static ds_result run_reduce_scatter(const team *t, const call *c) {
    return ds_comm_reduce_scatter(c->ins, c->outs, t->count, DS_REDUCE_SUM, &t->comm);
}

/* The root is device 0 of the group; other ranks have no input. */
static ds_result run_broadcast(const team *t, const call *c) {
    return ds_comm_broadcast_into(t->first == 0 ? c->ins[0] : NULL, c->outs, t->count, &t->comm);
}

/* Each device sends to the next one and receives from the one before. */
static ds_result run_send_receive(const team *t, const call *c) {
    ds_ranks_transfer transfers[2 * MOST_DEVICES];
    ds_comm_options with = t->comm;
    with.stream_count = 2 * t->count;
    with.flags = 0;
    for (size_t i = 0; i < t->count; i++) {
        size_t k = t->first + i;
        transfers[i] = (ds_ranks_transfer){ c->ins[i], DS_RANKS_SEND, i, (k + 1) % t->total };
        transfers[t->count + i] =
            (ds_ranks_transfer){ c->outs[i], DS_RANKS_RECEIVE, i, (k + t->total - 1) % t->total };
    }
    return ds_ranks_exchange(transfers, 2 * t->count, &with);
}

/* Returns the sum of element i of all inputs. */
static float input_sum(const team *t, size_t i) {
    static float sums[PERIOD];
    static size_t devices;
    if (devices != t->total) {
        devices = t->total;
        for (size_t k = 0; k < PERIOD; k++)
            for (size_t d = 0; d < devices; d++)
                sums[k] += input(d, k);
    }
    return sums[i % PERIOD];
}

static float want_all_reduce(const team *t, size_t device, size_t count, size_t i) {
    (void)device, (void)count;
    return input_sum(t, i);
}

static float want_all_gather(const team *t, size_t device, size_t count, size_t i) {
    size_t part = count / t->total;
    (void)device;
    return input(i / part, i % part);
}

static float want_reduce_scatter(const team *t, size_t device, size_t count, size_t i) {
    return input_sum(t, device * count + i);
}

static float want_broadcast(const team *t, size_t device, size_t count, size_t i) {
    (void)t, (void)device, (void)count;
    return input(0, i);
}

static float want_send_receive(const team *t, size_t device, size_t count, size_t i) {
    (void)count;
    return input((device + t->total - 1) % t->total, i);
}

/* Buffers that have one part for each device of the group. */
typedef enum divided { NONE, INPUT, OUTPUT } divided;

typedef struct operation {
    const char *name;
    divided divided;
    int rounds; /* bus bandwidth: the factor is rounds * (n - 1) / n; 0: the factor is 1 */
    ds_result (*run_fn)(const team *t, const call *c);
    /* element i of the output of a device, which has `count` elements */
    float (*want_fn)(const team *t, size_t device, size_t count, size_t i);
} operation;

static const operation operations[] = {
    { "all_reduce", NONE, 2, run_all_reduce, want_all_reduce },
    { "all_gather", OUTPUT, 1, run_all_gather, want_all_gather },
    { "reduce_scatter", INPUT, 1, run_reduce_scatter, want_reduce_scatter },
    { "broadcast", NONE, 0, run_broadcast, want_broadcast },
    { "send_receive", NONE, 0, run_send_receive, want_send_receive },
};

enum { OPERATIONS = sizeof operations / sizeof *operations };

/* ---- measurement ----------------------------------------------------------------------------- */

/* Describes the buffers of an operation of about `bytes` bytes, at least one element in a part. */
static void call_describe(team *t, const operation *op, size_t bytes, call *c) {
    int64_t n = (int64_t)t->total;
    int64_t whole = (int64_t)(bytes / sizeof(float));
    int64_t part = whole / n > 0 ? whole / n : 1;
    c->in_count = op->divided == NONE ? whole : part;
    c->out_count = c->in_count;
    if (op->divided == INPUT)
        c->in_count = part * n;
    if (op->divided == OUTPUT)
        c->out_count = part * n;
    for (size_t i = 0; i < t->count; i++) {
        c->in[i] = ds_tensor_of(t->in[i], t->device[i], ds_float32(), 1, &c->in_count);
        c->out[i] = ds_tensor_of(t->out[i], t->device[i], ds_float32(), 1, &c->out_count);
        c->ins[i] = &c->in[i];
        c->outs[i] = &c->out[i];
    }
}

/* Runs an operation several times, after a fifth as many to warm up. */
static int measure(const team *t, const operation *op, const call *c, double *out_seconds) {
    for (int i = 0; i <= opt.iterations / 5; i++)
        CHECK(op->run_fn(t, c));
    CHECK(ds_ranks_barrier(
        &(ds_comm_options){ .streams = t->stream, .stream_count = t->count, .ranks = t->ranks }));
    if (wait_for_all(t) != FINE)
        return FAILED;

    double begin = now();
    for (int i = 0; i < opt.iterations; i++) {
        CHECK(op->run_fn(t, c));
        if (opt.wait && wait_for_all(t) != FINE)
            return FAILED;
    }
    if (wait_for_all(t) != FINE)
        return FAILED;
    *out_seconds = (now() - begin) / opt.iterations;
    return FINE;
}

/* Counts the elements of this rank's outputs that are wrong. */
static int count_wrong(const team *t, const operation *op, const call *c, int64_t *out_wrong) {
    size_t count = (size_t)c->out_count;
    *out_wrong = 0;
    for (size_t d = 0; d < t->count; d++) {
        CHECK(ds_copy(t->host, t->out[d], count * sizeof(float), t->stream[d]));
        CHECK(ds_stream_synchronize(t->stream[d]));
        for (size_t i = 0; i < count; i++)
            *out_wrong += !(t->host[i] == op->want_fn(t, t->first + d, count, i));
    }
    return FINE;
}

/* Combines a number of each rank, which is not negative: the sum or the maximum. The other devices
   of a rank have 0. */
static int combine(const team *t, ds_dtype type, void *number, ds_reduce_op op) {
    int64_t one = 1;
    uint64_t words[MOST_DEVICES] = { 0 };
    ds_tensor tensors[MOST_DEVICES];
    const ds_tensor *list[MOST_DEVICES];
    memcpy(words, number, sizeof *words);
    for (size_t i = 0; i < t->count; i++) {
        tensors[i] = ds_tensor_of(&words[i], (ds_device){ DS_DEVICE_HOST, 0 }, type, 1, &one);
        list[i] = &tensors[i];
    }
    ds_comm_options with = t->comm;
    with.flags = 0;
    CHECK(ds_comm_all_reduce(list, list, t->count, op, &with));
    if (wait_for_all(t) != FINE)
        return FAILED;
    memcpy(number, words, sizeof *words);
    return FINE;
}

static void print_row(const team *t, const operation *op, const call *c, double seconds,
                      int64_t wrong) {
    int64_t most = c->in_count > c->out_count ? c->in_count : c->out_count;
    int64_t least = c->in_count < c->out_count ? c->in_count : c->out_count;
    double n = (double)t->total;
    double rate = (double)most * sizeof(float) / seconds / 1e9;
    printf("%12lld %12lld %8s %11.2f %9.3f %9.3f %8lld\n", (long long)most * (int)sizeof(float),
           (long long)least, "float32", seconds * 1e6, rate,
           rate * (op->rounds ? op->rounds * (n - 1) / n : 1), (long long)wrong);
    fflush(stdout);
}

/* Measures one size of an operation, prints its row, and adds its wrong elements. */
static int run_size(team *t, const operation *op, size_t bytes, int64_t *wrong_sum) {
    static call c;
    double seconds;
    int64_t wrong;
    call_describe(t, op, bytes, &c);
    for (size_t i = 0; i < t->count; i++)
        CHECK(ds_fill(t->out[i], 0xff, 1, (size_t)c.out_count * sizeof(float), t->stream[i]));
    if (measure(t, op, &c, &seconds) != FINE || count_wrong(t, op, &c, &wrong) != FINE ||
        combine(t, ds_float64(), &seconds, DS_REDUCE_MAX) != FINE ||
        combine(t, ds_int64(), &wrong, DS_REDUCE_SUM) != FINE)
        return FAILED;
    if (t->info.rank == 0)
        print_row(t, op, &c, seconds, wrong);
    *wrong_sum += wrong;
    return FINE;
}

static int run_operations(team *t) {
    int64_t wrong = 0;
    char name[DS_DEVICE_NAME_SIZE];
    CHECK(ds_device_format(t->device[0], name, sizeof name));
    if (t->info.rank == 0) {
        printf("# %zu devices from %s, %d ranks, engine %s%s%s, %s\n", t->total, name, t->info.size,
               t->info.engine, *t->info.library ? ", " : "", t->info.library,
               opt.any_order ? "sums in any order" : "sums in fixed order");
        printf("# mean of %d iterations%s\n", opt.iterations,
               opt.wait ? ", each with a wait of the host" : "");
    }
    for (int i = 0; i < OPERATIONS; i++) {
        const operation *op = &operations[i];
        if (opt.op && strcmp(opt.op, op->name) != 0)
            continue;
        if (t->info.rank == 0)
            printf("#\n# %s\n#%11s %12s %8s %11s %9s %9s %8s\n", op->name, "size (B)", "count",
                   "type", "time (us)", "algbw", "busbw", "#wrong");
        for (size_t bytes = opt.min; bytes <= opt.max; bytes *= opt.factor)
            if (run_size(t, op, bytes, &wrong) != FINE)
                return FAILED;
    }
    if (t->info.rank == 0)
        printf("#\n# wrong elements: %lld\n", (long long)wrong);
    return wrong ? FAILED : FINE;
}

static int work_all(void) {
    static team t;
    ds_cpu_desc cpu = { .devices = getenv("DEVSTREAM_CPU_DEVICES") ? 0 : opt.devices };
    CHECK(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    if (opt.cpu)
        CHECK(ds_device_set_current(ds_cpu(0)));
    if (join(&t) != FINE)
        return FAILED;
    int result = open_buffers(&t);
    if (result == FINE)
        result = run_operations(&t);
    if (result == FINE)
        result = close_buffers(&t);
    if (result != FINE)
        DS_IGNORE(ds_ranks_abort(t.ranks, "this rank cannot go on"));
    CHECK(ds_ranks_finalize(t.ranks));
    return result;
}

/* ---- options and main ------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: ring [options]\n"
    "Measures the collectives of all ranks that mpiexec or srun has started.\n"
    "  --min SIZE      smallest size in bytes (8); K, M and G are powers of 1024\n"
    "  --max SIZE      largest size (64M)\n"
    "  --factor N      ratio of a size and the one before (2)\n"
    "  --op NAME       all_reduce, all_gather, reduce_scatter, broadcast or send_receive (all)\n"
    "  --any-order     let the engine choose the order of sums\n"
    "  --wait          wait on the host for each operation\n"
    "  --iterations N  measured iterations (20)\n"
    "  --devices N     devices of this rank (1)\n"
    "  --cpu           use virtual CPU devices although there are GPUs\n"
    "  --help          this text\n";

/* Reads a number with K, M or G behind it. Returns 0 if it is none, or not within the limits. */
static int parse_number(const char *text, size_t least, size_t most, size_t *out) {
    char *end = NULL;
    if (!text || *text < '0' || *text > '9')
        return 0;
    unsigned long long n = strtoull(text, &end, 10);
    const char *units = "KMG";
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (*end && (!unit || end[1]))
        return 0;
    *out = (size_t)n << (unit ? 10 * (unit - units + 1) : 0);
    return n <= most && *out >= least && *out <= most;
}

static int parse_count(const char *text, size_t most, int *out) {
    size_t n = 0;
    int good = parse_number(text, 1, most, &n);
    *out = (int)n;
    return good;
}

static int parse_op(const char *text) {
    for (int i = 0; text && i < OPERATIONS; i++)
        if (strcmp(text, operations[i].name) == 0)
            opt.op = text;
    return opt.op != NULL;
}

/* Reads one option with a value. */
static int parse_value(const char *name, const char *value) {
    const size_t most = (size_t)1 << 34;
    if (strcmp(name, "--min") == 0)
        return parse_number(value, sizeof(float), most, &opt.min);
    if (strcmp(name, "--max") == 0)
        return parse_number(value, sizeof(float), most, &opt.max);
    if (strcmp(name, "--factor") == 0)
        return parse_number(value, 2, 1024, &opt.factor);
    if (strcmp(name, "--iterations") == 0)
        return parse_count(value, 1000000, &opt.iterations);
    if (strcmp(name, "--devices") == 0)
        return parse_count(value, MOST_DEVICES, &opt.devices);
    return strcmp(name, "--op") == 0 && parse_op(value);
}

static int parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--any-order") == 0)
            opt.any_order = 1;
        else if (strcmp(argv[i], "--wait") == 0)
            opt.wait = 1;
        else if (strcmp(argv[i], "--cpu") == 0)
            opt.cpu = 1;
        else if (parse_value(argv[i], i + 1 < argc ? argv[i + 1] : NULL))
            i++;
        else {
            fprintf(stderr, "ring: cannot understand \"%s\"\n%s", argv[i], USAGE);
            return FAILED;
        }
    }
    return FINE;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argc, argv) != FINE)
        return FAILED;
    int result = work_all();
    if (ds_shutdown() < 0 && result == FINE) {
        fprintf(stderr, "ring: %s\n", ds_error_get_last());
        result = FAILED;
    }
    return fflush(stdout) == 0 ? result : FAILED;
}
