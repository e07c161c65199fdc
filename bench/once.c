/* once.c - the CPU form of kernels that are written once, beside the same loops with OpenMP. Both
   are measured in turns in one process. Prints a table of microseconds per launch with its wait; the ratio is
   devstream's median divided by OpenMP's. */
#define DEVSTREAM_IMPLEMENTATION
#include "once.kernels.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SMALLEST = 12, LARGEST = 26, ROUNDS = 15 };

#define CHECK(call)                                       \
    do {                                                  \
        if ((call) < 0) {                                 \
            fprintf(stderr, "%s\n", ds_error_get_last()); \
            exit(1);                                      \
        }                                                 \
    } while (0)

static float *a, *b, *c, *d;
static ds_stream stream;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A square-like image of n inner points. */
static void sides(size_t n, size_t *nx, size_t *ny) {
    *nx = 64;
    while (*nx * *nx < n)
        *nx *= 2;
    *ny = n / *nx;
}

__attribute__((noinline)) static void omp_add(size_t n) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++)
        d[i] = a[i] + b[i];
}

__attribute__((noinline)) static void omp_saxpy(size_t n) {
    float factor = 0.5f;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++)
        d[i] = factor * a[i] + d[i];
}

__attribute__((noinline)) static void omp_stencil(size_t n) {
    size_t nx, ny;
    sides(n, &nx, &ny);
    size_t row = nx + 2;
#pragma omp parallel for schedule(static)
    for (size_t y = 0; y < ny; y++) {
#pragma omp simd
        for (size_t x = 0; x < nx; x++) {
            size_t at = (y + 1) * row + x + 1;
            d[at] = 0.25f * ((a[at - 1] + a[at + 1]) + (a[at - row] + a[at + row]));
        }
    }
}

static void ds_add(size_t n) {
    CHECK(DS_LAUNCH(add, stream, n, a, b, c));
}

static void ds_saxpy(size_t n) {
    CHECK(DS_LAUNCH(saxpy, stream, n, 0.5f, a, c));
}

static void ds_stencil(size_t n) {
    size_t nx, ny;
    sides(n, &nx, &ny);
    CHECK(DS_LAUNCH(stencil, stream, nx, ny, a, c));
}

static int by_value(const void *x, const void *y) {
    double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

/* Microseconds of one call, over some repetitions. */
static double time_of(void (*run)(size_t), size_t n, int repeat, int wait) {
    double start = now_us();
    for (int i = 0; i < repeat; i++) {
        run(n);
        if (wait)
            CHECK(ds_stream_synchronize(stream));
    }
    return (now_us() - start) / repeat;
}

int main(void) {
    static const struct {
        const char *name;
        void (*ours)(size_t), (*theirs)(size_t);
    } rows[] = { { "c = a + b", ds_add, omp_add },
                 { "c = f a + c", ds_saxpy, omp_saxpy },
                 { "5-point stencil", ds_stencil, omp_stencil } };

    size_t room = ((size_t)1 << LARGEST) + ((size_t)1 << 16);
    CHECK(ds_stream_create(NULL, &stream));
    float **const all[] = { &a, &b, &c, &d };
    for (int k = 0; k < 4; k++) {
        CHECK(ds_device_alloc(ds_device_current(), room * sizeof(float), (void **)all[k]));
        for (size_t i = 0; i < room; i++)
            (*all[k])[i] = (float)(i % 1000) / 1000;
    }
    memcpy(d, c, room * sizeof(float));
    omp_set_num_threads(omp_get_num_procs());

    printf("| kernel | items | devstream, us | OpenMP, us | ratio |\n|---|---:|---:|---:|---:|\n");
    int wrong = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int bits = SMALLEST; bits <= LARGEST; bits += 2) {
            size_t n = (size_t)1 << bits;
            int repeat = bits < 20 ? 1 << (20 - bits) : 1;
            double ours[ROUNDS], theirs[ROUNDS];
            for (int k = 0; k < ROUNDS; k++) {
                ours[k] = time_of(rows[r].ours, n, repeat, 1);
                theirs[k] = time_of(rows[r].theirs, n, repeat, 0);
            }
            wrong |= memcmp(c, d, n * sizeof(float)) != 0;
            qsort(ours, ROUNDS, sizeof *ours, by_value);
            qsort(theirs, ROUNDS, sizeof *theirs, by_value);
            printf("| %s | 2^%d | %.2f | %.2f | %.2f |\n", rows[r].name, bits, ours[ROUNDS / 2],
                   theirs[ROUNDS / 2], ours[ROUNDS / 2] / theirs[ROUNDS / 2]);
            fflush(stdout);
        }
    if (wrong)
        printf("WRONG: the results differ\n");
    return wrong || ds_shutdown() < 0;
}
