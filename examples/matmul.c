/* matmul.c - a matrix product by two kernels, one over items and one over blocks with tiles in
   shared memory, and how fast they are. Both are compared with a plain loop.

   Compile:  cc -O2 -I. examples/matmul.c -o matmul -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/matmul.c -o matmul -pthread
   Run:      ./matmul              500 x 520 by 520 x 510
             ./matmul M K N        M x K by K x N

   Each number of the result is a sum in the same order in all three, so the bits are the same.

   Exit status: 0 fine, 1 something failed, 2 the result is wrong. */
#define DEVSTREAM_IMPLEMENTATION
#include "matmul.kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t m = 500;
static uint32_t k = 520;
static uint32_t n = 510;

/* Memory of the device with a copy on the host. */
typedef struct matrix {
    float *host;
    float *device;
    size_t bytes;
} matrix;

static matrix matrix_new(size_t rows, size_t columns) {
    matrix x = { .bytes = rows * columns * sizeof(float) };
    DS_CHECK(ds_pinned_alloc(x.bytes, (void **)&x.host));
    DS_CHECK(ds_device_alloc(ds_device_current(), x.bytes, (void **)&x.device));
    for (size_t i = 0; i < rows * columns; i++)
        x.host[i] = (float)(int)(i * 2654435761u >> 8 & 1023) / 512 - 1;
    return x;
}

static void matrix_free(matrix x) {
    DS_CHECK(ds_pinned_free(x.host));
    DS_CHECK(ds_device_free(x.device));
}

static ds_result launch(int tiled, matrix a, matrix b, matrix c, ds_stream s) {
    if (tiled)
        return DS_LAUNCH(matmul_tiled, s, (n + TILE - 1) / TILE, (m + TILE - 1) / TILE, m, n, k,
                         a.device, b.device, c.device);
    return DS_LAUNCH(matmul_plain, s, n, m, k, a.device, b.device, c.device);
}

/* Returns the time of a launch in ms, the best of 5. */
static double time_launch(int tiled, matrix a, matrix b, matrix c, ds_stream s) {
    ds_event begin;
    ds_event end;
    double best = 1e30;
    DS_CHECK(ds_event_create(DS_EVENT_TIMING, "begin", &begin));
    DS_CHECK(ds_event_create(DS_EVENT_TIMING, "end", &end));
    for (int run = 0; run < 5; run++) {
        double ms;
        DS_CHECK(ds_event_record(begin, s));
        DS_CHECK(launch(tiled, a, b, c, s));
        DS_CHECK(ds_event_record(end, s));
        DS_CHECK(ds_event_synchronize(end));
        DS_CHECK(ds_event_get_elapsed_ms(begin, end, &ms));
        best = ms < best ? ms : best;
    }
    DS_CHECK(ds_event_destroy(begin));
    DS_CHECK(ds_event_destroy(end));
    return best;
}

/* A product is rounded before it is added, as in the kernels; without volatile some compilers fuse
   both. */
static void plain(const float *a, const float *b, float *c) {
    for (size_t y = 0; y < m; y++)
        for (size_t x = 0; x < n; x++) {
            float sum = 0;
            for (size_t i = 0; i < k; i++) {
                volatile float product = a[y * k + i] * b[i * n + x];
                sum += product;
            }
            c[y * n + x] = sum;
        }
}

/* FNV-1a of the bits. */
static uint32_t checksum(const float *numbers, size_t count) {
    uint32_t hash = 0x811c9dc5u;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        hash = (hash ^ bits) * 0x01000193u;
    }
    return hash;
}

int main(int argc, char **argv) {
    if (argc == 4) {
        m = (uint32_t)strtoul(argv[1], NULL, 10);
        k = (uint32_t)strtoul(argv[2], NULL, 10);
        n = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    if ((argc != 1 && argc != 4) || !m || !k || !n) {
        fprintf(stderr, "usage: matmul [M K N]\n");
        return 1;
    }

    matrix a = matrix_new(m, k);
    matrix b = matrix_new(k, n);
    matrix c = matrix_new(m, n);
    float *expected = malloc(c.bytes);
    int result = 0;
    char name[DS_DEVICE_NAME_SIZE];
    ds_stream s;
    if (!expected)
        return 1;
    plain(a.host, b.host, expected);

    DS_CHECK(ds_stream_create(NULL, &s));
    DS_CHECK(ds_copy(a.device, a.host, a.bytes, s));
    DS_CHECK(ds_copy(b.device, b.host, b.bytes, s));
    DS_CHECK(ds_device_format(ds_device_current(), name, sizeof name));
    printf("%u x %u by %u x %u on %s\n", m, k, k, n, name);
    for (int tiled = 0; tiled < 2; tiled++) {
        DS_CHECK(ds_fill(c.device, 0, 4, c.bytes / 4, s));
        double ms = time_launch(tiled, a, b, c, s);
        DS_CHECK(ds_copy(c.host, c.device, c.bytes, s));
        DS_CHECK(ds_stream_synchronize(s));
        int same = memcmp(c.host, expected, c.bytes) == 0;
        printf("%-16s %10.3f ms  %8.2f GFLOP/s\n", tiled ? "tiles, by blocks" : "by items", ms,
               2e-6 * m * k * n / ms);
        printf("check: %s, checksum %08x\n", same ? "the same bits as a plain loop" : "WRONG",
               (unsigned)checksum(c.host, c.bytes / sizeof(float)));
        result = same ? result : 2;
    }

    matrix_free(a);
    matrix_free(b);
    matrix_free(c);
    free(expected);
    DS_CHECK(ds_stream_destroy(s));
    DS_CHECK(ds_shutdown());
    return result;
}
