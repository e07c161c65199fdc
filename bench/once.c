/* once.c - devstream's and OpenMP's rows about kernels that are written once, and the limit. All
   three are measured in turns in one process, on the same inputs. Without -fopenmp OpenMP's rows
   are left out. */
#define DEVSTREAM_IMPLEMENTATION
#include "once.kernels.h"

#include "bench.h"
#include "once.h"
#include "second.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static float *in[2]; /* inputs */
static float *out;   /* the result of all three: memory in other pages may be faster or slower */
static float *kept;  /* a copy of devstream's result */
static ds_stream stream;

static void check(ds_result r) {
    if (r < 0) {
        fprintf(stderr, "%s\n", ds_error_get_last());
        exit(1);
    }
}

/* The columns of a square-like image of n inner points. */
static size_t columns(size_t n) {
    size_t nx = 64;
    while (nx * nx < n)
        nx *= 2;
    return nx;
}

/* ---- devstream ------------------------------------------------------------------------------- */

static void ds_add(size_t n) {
    check(DS_LAUNCH(add, stream, n, in[0], in[1], out));
    check(ds_stream_synchronize(stream));
}

static void ds_saxpy(size_t n) {
    check(DS_LAUNCH(saxpy, stream, n, 0.5f, in[0], out));
    check(ds_stream_synchronize(stream));
}

static void ds_stencil(size_t n) {
    size_t nx = columns(n);
    check(DS_LAUNCH(stencil, stream, nx, n / nx, in[0], out));
    check(ds_stream_synchronize(stream));
}

/* ---- OpenMP ---------------------------------------------------------------------------------- */

#ifdef _OPENMP
static void omp_add(size_t n) {
    const float *a = in[0];
    const float *b = in[1];
    float *c = out;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] + b[i];
}

static void omp_saxpy(size_t n) {
    const float *a = in[0];
    float *c = out;
    float factor = 0.5f;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++)
        c[i] = factor * a[i] + c[i];
}

static void omp_stencil(size_t n) {
    const float *a = in[0];
    float *c = out;
    size_t nx = columns(n);
    size_t ny = n / nx;
    size_t row = nx + 2;
#pragma omp parallel for schedule(static)
    for (size_t y = 0; y < ny; y++) {
#pragma omp simd
        for (size_t x = 0; x < nx; x++) {
            size_t at = (y + 1) * row + x + 1;
            c[at] = 0.25f * ((a[at - 1] + a[at + 1]) + (a[at - row] + a[at + row]));
        }
    }
}

/* Ends the threads that spin. */
static void omp_rest(void) {
#if _OPENMP >= 201811
    omp_pause_resource_all(omp_pause_soft);
#else
    bench_sleep_us(20000);
#endif
}
#else
#define omp_add NULL
#define omp_saxpy NULL
#define omp_stencil NULL

static void omp_rest(void) {
}
#endif

/* ---- the limit ------------------------------------------------------------------------------- */

/* Items from to `to` - 1; of the stencil, rows of nx items. */
typedef void (*part_fn)(size_t from, size_t to, size_t nx);

static void add_part(size_t from, size_t to, size_t nx) {
    const float *a = in[0];
    const float *b = in[1];
    float *c = out;
    (void)nx;
#pragma omp simd
    for (size_t i = from; i < to; i++)
        c[i] = a[i] + b[i];
}

static void add_around(size_t from, size_t to, size_t nx) {
#if defined(__x86_64__)
    (void)nx;
    for (size_t i = from; i < to; i += 4)
        _mm_stream_ps(out + i, _mm_add_ps(_mm_load_ps(in[0] + i), _mm_load_ps(in[1] + i)));
    _mm_sfence();
#else
    add_part(from, to, nx);
#endif
}

static void saxpy_part(size_t from, size_t to, size_t nx) {
    const float *a = in[0];
    float *c = out;
    float factor = 0.5f;
    (void)nx;
#pragma omp simd
    for (size_t i = from; i < to; i++)
        c[i] = factor * a[i] + c[i];
}

static void stencil_part(size_t from, size_t to, size_t nx) {
    const float *a = in[0];
    float *c = out;
    size_t row = nx + 2;
    for (size_t y = from; y < to; y++) {
#pragma omp simd
        for (size_t x = 0; x < nx; x++) {
            size_t at = (y + 1) * row + x + 1;
            c[at] = 0.25f * ((a[at - 1] + a[at + 1]) + (a[at - row] + a[at + row]));
        }
    }
}

static struct {
    part_fn part;
    size_t from, to, nx;
} job; /* of the second thread */

static void run_job(void) {
    job.part(job.from, job.to, job.nx);
}

/* Returns the microseconds of a pass over `count` items or rows with one or two threads. */
static double limit_us(part_fn part, int threads, size_t count, size_t nx, int repeat) {
    size_t half = threads == 2 ? count / 2 / 16 * 16 : count;
    job.part = part;
    job.from = half;
    job.to = count;
    job.nx = nx;
    bench_second_begin(threads == 2 ? run_job : NULL);
    double start = 0;
    for (int k = -1; k < repeat; k++) { /* one that does not count */
        if (k == 0)
            start = bench_now_ns();
        bench_second_go();
        part(0, half, nx);
        bench_second_await();
    }
    double us = (bench_now_ns() - start) / 1e3 / repeat;
    bench_second_end();
    return us;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct row {
    const char *id;
    void (*ours)(size_t n);
    void (*theirs)(size_t n); /* NULL without OpenMP */
    part_fn parts[2];         /* ways of the limit; the second may be NULL */
} row;

static const row rows[] = {
    { "once_add", ds_add, omp_add, { add_part, add_around } },
    { "once_saxpy", ds_saxpy, omp_saxpy, { saxpy_part, NULL } },
    { "once_stencil", ds_stencil, omp_stencil, { stencil_part, NULL } },
};

/* Returns the microseconds of one run, after others, in which threads wake up. */
static double run_us(void (*run)(size_t n), size_t n, int repeat) {
    for (int i = 0; i < repeat / 2 + 1; i++)
        run(n);
    double start = bench_now_ns();
    for (int i = 0; i < repeat; i++)
        run(n);
    return (bench_now_ns() - start) / 1e3 / repeat;
}

static double limit_of(const row *r, size_t n, int repeat, int rounds) {
    double v[ONCE_ROUNDS];
    double best = NAN;
    size_t nx = columns(n);
    size_t count = r->ours == ds_stencil ? n / nx : n;
    for (int way = 0; way < 4; way++) {
        part_fn part = r->parts[way / 2];
        if (!part)
            continue;
        for (int k = 0; k < rounds; k++)
            v[k] = limit_us(part, 1 + way % 2, count, nx, repeat);
        double us = bench_median(v, rounds);
        best = us >= best ? best : us;
    }
    return best;
}

/* Sets items to their start values. */
static void set_start(float *items, size_t count) {
    for (size_t i = 0; i < count; i++)
        items[i] = (float)(i % 1000) / 1000;
}

/* Returns whether devstream and OpenMP have the same result. */
static int is_equal(const row *r, size_t n) {
    size_t room = n + ((size_t)1 << 16);
    if (!r->theirs)
        return 1;
    set_start(out, room);
    r->ours(n);
    memcpy(kept, out, room * sizeof(float));
    set_start(out, room);
    r->theirs(n);
    omp_rest();
    return !memcmp(kept, out, room * sizeof(float));
}

static void measure(const row *r, int bits) {
    double ours[ONCE_ROUNDS];
    double theirs[ONCE_ROUNDS];
    char name[32];
    size_t n = (size_t)1 << bits;
    int repeat = bits < 22 ? 1 << (22 - bits) : 1;
    int rounds = bench_quick() ? 3 : ONCE_ROUNDS;
    int equal = is_equal(r, n);
    for (int k = 0; k < rounds; k++)
        for (int turn = 0; turn < 2; turn++) { /* each goes first as often as the other */
            if ((k + turn) % 2 == 0) {
                ours[k] = run_us(r->ours, n, repeat);
            } else if (r->theirs) {
                theirs[k] = run_us(r->theirs, n, repeat);
                omp_rest();
            }
        }
    snprintf(name, sizeof name, "%s_%d", r->id, bits);
    bench_put(name, "devstream", equal ? bench_median(ours, rounds) : NAN);
    if (r->theirs)
        bench_put(name, "openmp", bench_median(theirs, rounds));
    bench_put(name, "limit", limit_of(r, n, repeat, rounds / 3));
}

int main(void) {
    int largest = bench_quick() ? ONCE_LARGEST_QUICK : ONCE_LARGEST;
    size_t room = ((size_t)1 << largest) + ((size_t)1 << 16);
    float **const all[] = { &in[0], &in[1], &out, &kept };
    check(ds_stream_create(NULL, &stream));
    for (int k = 0; k < 4; k++) {
        check(ds_device_alloc(ds_device_current(), room * sizeof(float), (void **)all[k]));
        set_start(*all[k], room);
    }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int bits = ONCE_SMALLEST; bits <= largest; bits += 2)
            measure(&rows[r], bits);
    return bench_failed || ds_shutdown() < 0;
}
