/* comm.c - collectives on the CPU driver with two workers, and what the machine allows, in turn
   and on the same memory. comm [OP [SIZE [ROUNDS]]]: only these rows, as "sum4" or "bcast2 4k
   100000" (devstream alone, once: for a profiler). */
#include "bench.h"
#include "comm.h"
#include "second.h"
#include "../devstream_comm.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { DEVICES = 8, TURNS = 4, SIZES = sizeof bench_comm_sizes / sizeof *bench_comm_sizes };
typedef struct op op;

struct op {
    const char *id;
    int devices, from, to; /* whole tensors that are read, and written */
    int parts;             /* 1: scatter, 2: gather: between a whole and a part on each device */
    ds_result (*enqueue)(const op *o);
};

static float *memory[DEVICES + 2]; /* the last two are on device 0 and 1 */
static float *part[2];             /* for scatter and gather, on device 0 and 1 */
static ds_stream streams[DEVICES];
static ds_tensor shown[DEVICES + 2], shown_part[2];
static const ds_tensor *tensors[DEVICES + 2], *parts[2];
static int64_t length[1], part_length[1];
static ds_tensor *fresh[DEVICES];
static ds_comm_options options;

static void check(ds_result r) {
    if (r >= 0)
        return;
    fprintf(stderr, "devstream: %s: %s\n", ds_result_get_name(r), ds_error_get_last());
    exit(1);
}

/* ---- the collectives ------------------------------------------------------------------------- */

static ds_result broadcast(const op *o) {
    return ds_comm_broadcast_into(tensors[0], tensors + 1, (size_t)o->to, &options);
}

static ds_result scatter(const op *o) {
    (void)o;
    return ds_comm_scatter_into(tensors[0], parts, 2, 0, &options);
}

static ds_result gather(const op *o) {
    (void)o;
    return ds_comm_gather_into(parts, 2, 0, tensors[0], &options);
}

static ds_result sum(const op *o) {
    return ds_comm_reduce_into(tensors, (size_t)o->from, DS_REDUCE_SUM, tensors[DEVICES], &options);
}

static ds_result all_sum(const op *o) {
    return ds_comm_all_reduce(tensors, tensors + DEVICES, (size_t)o->from, DS_REDUCE_SUM, &options);
}

static ds_result broadcast_new(const op *o) {
    static const ds_device where[] = { { DS_DEVICE_CPU, 1 },
                                       { DS_DEVICE_CPU, 2 },
                                       { DS_DEVICE_CPU, 3 } };
    ds_result r = ds_comm_broadcast(tensors[0], where, (size_t)o->to, &options, fresh);
    for (int i = 0; i < o->to && r == DS_OK; i++)
        r = ds_tensor_free(fresh[i]);
    return r;
}

static ds_result sum_new(const op *o) {
    ds_result r = ds_comm_reduce_add(tensors, (size_t)o->from, (ds_device){ DS_DEVICE_CPU, 0 },
                                     &options, fresh);
    return r == DS_OK ? ds_tensor_free(fresh[0]) : r;
}

static const op ops[] = { { "bcast2", 2, 1, 1, 0, broadcast },
                          { "bcast4", 4, 1, 3, 0, broadcast },
                          { "scatter2", 2, 1, 1, 1, scatter },
                          { "gather2", 2, 1, 1, 2, gather },
                          { "sum2", 2, 2, 1, 0, sum },
                          { "sum4", 4, 4, 1, 0, sum },
                          { "sum8", 8, 8, 1, 0, sum },
                          { "all2", 2, 2, 2, 0, all_sum },
                          { "new_bcast2", 2, 1, 1, 0, broadcast_new },
                          { "new_sum4", 4, 4, 1, 0, sum_new } };

static void prepare(const op *o, size_t bytes) {
    static ds_stream given[DEVICES];
    length[0] = (int64_t)(bytes / 4);
    part_length[0] = length[0] / 2;
    for (int i = 0; i < DEVICES + 2; i++) {
        shown[i] = (ds_tensor){
            memory[i], { DS_DEVICE_CPU, i % DEVICES }, 1, ds_float32(), length, NULL, 0
        };
        tensors[i] = &shown[i];
    }
    for (int i = 0; i < 2; i++) {
        shown_part[i] =
            (ds_tensor){ part[i], { DS_DEVICE_CPU, i }, 1, ds_float32(), part_length, NULL, 0 };
        parts[i] = &shown_part[i];
    }
    for (int i = 0; i < DEVICES; i++)
        given[i] =
            streams[(o->enqueue == broadcast || o->enqueue == broadcast_new) && i < DEVICES - 1
                        ? i + 1
                        : i];
    options = (ds_comm_options){ .streams = given, .stream_count = DEVICES, .stream = streams[0] };
}

static float *input(const op *o, int i) {
    return o->parts == 2 ? part[i] : memory[i];
}

static int inputs(const op *o) {
    return o->parts == 2 ? 2 : o->from;
}

static float *output(const op *o, int i) {
    if (o->parts)
        return o->parts == 1 ? part[i] : memory[0];
    return memory[o->enqueue == sum || o->enqueue == all_sum ? DEVICES + i : i + 1];
}

static size_t outputs(const op *o) {
    return o->parts == 1 ? 2 : (size_t)o->to;
}

static void fill(const op *o, size_t bytes) {
    size_t n = bytes / 4 / (o->parts == 2 ? 2 : 1);
    for (int i = 0; i < inputs(o); i++)
        for (size_t k = 0; k < n; k++)
            input(o, i)[k] =
                bench_comm_value(o->parts ? 0 : (size_t)i, k + (o->parts == 2 ? (size_t)i * n : 0));
    for (size_t i = 0; i < outputs(o); i++)
        memset(output(o, (int)i), 255, bytes / (o->parts == 1 ? 2 : 1));
}

static int right(const op *o, size_t bytes) {
    /* of large ones a part */
    size_t n = bytes / 4 / (o->parts == 1 ? 2 : 1), step = bytes > (1 << 20) ? 61 : 1;
    for (size_t i = 0; i < outputs(o); i++)
        for (size_t k = 0; k < n; k += step) {
            float want = 0;
            for (int s = 0; s < o->from; s++)
                want += bench_comm_value(o->parts ? 0 : (size_t)s, k + (o->parts == 1 ? i * n : 0));
            if (output(o, (int)i)[k] != want)
                return 0;
        }
    return 1;
}

static void rounds(const op *o, int n, double *out_ns) {
    double last = bench_now_ns();
    for (int k = 0; k < n; k++) {
        check(o->enqueue(o));
        for (int i = 0; i < o->devices; i++)
            check(ds_stream_synchronize(streams[i]));
        double now = bench_now_ns();
        out_ns[k] = now - last;
        last = now;
    }
}

/* ---- the limit: one pass, whatever it takes -------------------------------------------------- */

enum { MOST = 8 };

/* multiples of 32 elements */
typedef void (*pass_fn)(float *const *dst, const float *const *src, size_t from, size_t to);

#define PLAIN_PASS(name, sources, targets)                                                 \
    static void name(float *const *dst, const float *const *src, size_t from, size_t to) { \
        for (size_t i = from; i < to; i++) {                                               \
            float v = src[0][i];                                                           \
            for (int s = 1; s < (sources); s++)                                            \
                v += src[s][i];                                                            \
            for (int d = 0; d < (targets); d++)                                            \
                dst[d][i] = v;                                                             \
        }                                                                                  \
    }
#if defined(__x86_64__)
#define UNROLL _Pragma("GCC unroll 8") /* else the sums would lie in memory */
#define WIDE_PASS(name, store, sources, targets)                                                 \
    __attribute__((target("avx2"))) static void name(float *const *dst, const float *const *src, \
                                                     size_t from, size_t to) {                   \
        for (size_t i = from; i < to; i += 32) {                                                 \
            __m256 v[4];                                                                         \
            UNROLL for (size_t k = 0; k < 4; k++) v[k] = _mm256_loadu_ps(src[0] + i + 8 * k);    \
            UNROLL for (size_t s = 1; s < (sources); s++) UNROLL for (size_t k = 0; k < 4; k++)  \
                v[k] = _mm256_add_ps(v[k], _mm256_loadu_ps(src[s] + i + 8 * k));                 \
            UNROLL for (size_t d = 0; d < (targets); d++) UNROLL for (size_t k = 0; k < 4; k++)  \
                store(dst[d] + i + 8 * k, v[k]);                                                 \
        }                                                                                        \
        _mm_sfence();                                                                            \
    }
#else
#define WIDE_PASS(name, store, sources, targets) PLAIN_PASS(name, sources, targets)
#endif
#define PASSES(sources, targets)                                              \
    PLAIN_PASS(plain_##sources##_##targets, sources, targets)                 \
    WIDE_PASS(wide_##sources##_##targets, _mm256_storeu_ps, sources, targets) \
    WIDE_PASS(around_##sources##_##targets, _mm256_stream_ps, sources, targets)
PASSES(1, 1)
PASSES(1, 3)
PASSES(2, 1)
PASSES(4, 1)
PASSES(8, 1)
PASSES(2, 2)

static void copies_1(float *const *dst, const float *const *src, size_t from, size_t to) {
    memcpy(dst[0] + from, src[0] + from, 4 * (to - from));
}

static void copies_3(float *const *dst, const float *const *src, size_t from, size_t to) {
    for (size_t n; from < to; from += n) /* what was read stays near */
        for (int d = (n = to - from < 4096 ? to - from : 4096, 0); d < 3; d++)
            memcpy(dst[d] + from, src[0] + from, 4 * n);
}

static pass_fn way(const op *o, int which) {
#define WAYS(sources, targets, copy)                                                              \
    if (o->from == (sources) && o->to == (targets)) {                                             \
        static const pass_fn wide[] = { wide_##sources##_##targets, around_##sources##_##targets, \
                                        copy },                                                   \
                             plain[] = { plain_##sources##_##targets, NULL, copy };               \
        return has_wide ? wide[which] : plain[which];                                             \
    }
    int has_wide = 0;
#if defined(__x86_64__)
    has_wide = __builtin_cpu_supports("avx2") != 0;
#endif
    WAYS(1, 1, copies_1)
    WAYS(1, 3, copies_3)
    WAYS(2, 1, NULL) WAYS(4, 1, NULL) WAYS(8, 1, NULL) WAYS(2, 2, NULL) return NULL;
}

static struct {
    pass_fn way;
    float *dst[MOST];
    const float *src[MOST];
    size_t from, to;
} job; /* of the second thread */

static void run_job(void) {
    job.way(job.dst, job.src, job.from, job.to);
}

static void limit_rounds(const op *o, pass_fn pass, int threads, size_t bytes, int n,
                         double *out_ns) {
    size_t elements = bytes / 4, half = threads == 2 ? elements / 2 / 32 * 32 : elements;
    for (int i = 0; i < o->from; i++)
        job.src[i] = memory[i];
    /* a part or a whole: as much memory */
    for (int i = 0; i < o->to; i++)
        job.dst[i] = o->parts ? memory[1] : output(o, i);
    job.way = pass, job.from = half, job.to = elements;
    bench_second_begin(threads == 2 ? run_job : NULL);
    double last = bench_now_ns();
    for (int k = -2; k < n; k++) { /* two that do not count */
        bench_second_go();
        pass(job.dst, job.src, 0, half);
        bench_second_await();
        double now = bench_now_ns();
        if (k >= 0)
            out_ns[k] = now - last;
        last = now;
    }
    bench_second_end();
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void run(const op *o, size_t size) {
    static double mine[2 * 1000], limit[6][2 * 1000];
    size_t bytes = bench_comm_sizes[size].bytes;
    int n = bench_comm_rounds(size), turns = n >= 4 * TURNS ? TURNS : 2, each = n / turns, fine = 1,
        had = 0, is_new = !strncmp(o->id, "new_", 4);
    double warm[20], best = NAN;
    char row[32];
    snprintf(row, sizeof row, "%s_%s", o->id, bench_comm_sizes[size].suffix);
    prepare(o, bytes);
    fill(o, bytes);
    for (int turn = 0; turn < turns; turn++) {
        rounds(o, n >= 100 ? 20 : 1, warm);
        rounds(o, each, mine + turn * each);
        if (turn == 0 && !is_new)
            fine = right(o, bytes);
        for (int k = 0; k < 6 && !is_new; k++) {
            pass_fn pass = way(o, k % 3);
            if (!pass || (k % 3 == 1 && bytes < (1 << 20)) || (bytes < 65536 && k < 3) ||
                (bytes > 65536 && k >= 3))
                continue;
            limit_rounds(o, pass, k < 3 ? 2 : 1, bytes, each, limit[k] + turn * each);
            had |= 1 << k;
        }
    }
    bench_put(row, "devstream",
              fine ? bench_median(mine, each * turns) / bench_comm_sizes[size].unit_ns : NAN);
    for (int k = 0; k < 6; k++) {
        double v = had >> k & 1 ? bench_median(limit[k], each * turns) : NAN;
        if (!(v >= best) && !isnan(v))
            best = v;
    }
    if (!is_new)
        bench_put(row, "limit", best / bench_comm_sizes[size].unit_ns);
}

int main(int argc, char **argv) {
    ds_cpu_desc cpu = { .devices = DEVICES, .workers = 2 };
    ds_init_desc init = { .cpu = &cpu };
    size_t most = SIZES - (bench_quick() ? 1 : 0), first = 0;
    check(ds_init(&init));
    if (argc > 2) {
        while (first < SIZES && strcmp(bench_comm_sizes[first].suffix, argv[2]))
            first++;
        most = first + 1 < SIZES ? first + 1 : SIZES;
    }
    size_t bytes = bench_comm_sizes[most - 1].bytes;
    for (int i = 0; i < DEVICES; i++) {
        ds_stream_desc desc = { .device = ds_cpu(i) };
        check(ds_stream_create(&desc, &streams[i]));
    }
    for (int i = 0; i < DEVICES + 4; i++) {
        void *p;
        check(ds_device_alloc(ds_cpu(i % DEVICES % (i < DEVICES + 2 ? DEVICES : 2)),
                              i < DEVICES + 2 ? bytes : bytes / 2, &p));
        if (i < DEVICES + 2)
            memory[i] = p;
        else
            part[i - DEVICES - 2] = p;
    }
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        int is_new = !strncmp(ops[k].id, "new_", 4);
        if (argc > 1 && strcmp(ops[k].id, argv[1]))
            continue;
        if (argc > 3) {
            int n = atoi(argv[3]);
            double *ns = malloc((size_t)n * sizeof *ns);
            if (!ns)
                return 1;
            prepare(&ops[k], bytes);
            fill(&ops[k], bytes);
            rounds(&ops[k], n, ns);
            printf("%s %s: median %g ns, a tenth below", argv[1], argv[2], bench_median(ns, n));
            /* the median has sorted them */
            printf(" %g, a hundredth below %g\n", ns[n / 10], ns[n / 100]);
            free(ns);
            continue;
        }
        for (size_t s = first; s < most; s++)
            if (bench_comm_rounds(s) && (!is_new || s == 0 || s == 2))
                run(&ops[k], s);
    }
    return bench_failed;
}
