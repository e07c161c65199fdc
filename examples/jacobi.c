/* jacobi.c - solves Laplace's equation on a rectangle by Jacobi's iteration, on all devices, and
   compares the result with a plain loop.

   Compile:  cc -O2 -I. examples/jacobi.c -o jacobi -pthread
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/jacobi.c -o jacobi -pthread
   Run:      ./jacobi                       512 x 512 points, 1000 sweeps
             ./jacobi NX NY SWEEPS PARTS    rows are divided into PARTS; 0: one per device

   Points at the edge keep their values: 1 on top, 0 elsewhere. A sweep replaces each inner point by
   the mean of its four neighbours. A part has some rows, and above and below them a copy of the
   neighbour's next row, the halo. In a sweep each part

       computes its first and last row, and copies them to the neighbours' halos   (stream "halo")
       computes its other rows at the same time                                    (stream "inner")

   The sweep of all parts is captured into one graph with these streams as branches, so one call
   launches a sweep on all devices. Sweeps take turns between two arrays, so there are two graphs.
   Every 100 sweeps the devices compute the largest change of a point.

   Exit status: 0 fine, 1 something failed, 2 the result is wrong. */
#define DEVSTREAM_IMPLEMENTATION
#include "jacobi.kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PARTS = 64 };

typedef struct part {
    ds_device device;
    ds_stream inner;
    ds_stream halo;
    ds_event done;     /* of the stream that recorded it last */
    size_t first;      /* its first row in the whole field */
    size_t rows;       /* without the halos */
    float *field[2];   /* on the device: the two arrays of rows + 2 rows */
    uint32_t *largest; /* on the device: bits of the largest change */
} part;

static size_t nx = 512;
static size_t ny = 512;
static int sweeps = 1000;
static int parts;
static part all[MOST_PARTS];

/* ---- parts ----------------------------------------------------------------------------------- */

static void open_part(int i, ds_device device, const float *start) {
    part *p = &all[i];
    ds_stream_desc inner = { .device = device, .label = "inner" };
    ds_stream_desc halo = { .device = device, .label = "halo", .priority = DS_PRIORITY_HIGH };
    p->device = device;
    p->first = 1 + (ny - 2) * (size_t)i / (size_t)parts;
    p->rows = 1 + (ny - 2) * (size_t)(i + 1) / (size_t)parts - p->first;
    DS_CHECK(ds_stream_create(&inner, &p->inner));
    DS_CHECK(ds_stream_create(&halo, &p->halo));
    DS_CHECK(ds_event_create(0, "done", &p->done));

    size_t bytes = (p->rows + 2) * nx * sizeof(float);
    for (int k = 0; k < 2; k++) {
        DS_CHECK(ds_device_alloc(device, bytes, (void **)&p->field[k]));
        DS_CHECK(ds_copy(p->field[k], start + (p->first - 1) * nx, bytes, p->inner));
    }
    DS_CHECK(ds_device_alloc(device, sizeof(uint32_t), (void **)&p->largest));
    DS_CHECK(ds_stream_synchronize(p->inner));
}

static void close_part(part *p) {
    DS_CHECK(ds_device_free(p->field[0]));
    DS_CHECK(ds_device_free(p->field[1]));
    DS_CHECK(ds_device_free(p->largest));
    DS_CHECK(ds_event_destroy(p->done));
    DS_CHECK(ds_stream_destroy(p->inner));
    DS_CHECK(ds_stream_destroy(p->halo));
}

/* ---- a sweep --------------------------------------------------------------------------------- */

/* Computes rows of a part from array `from` into the other one. Row 0 is the upper halo. */
static void sweep_rows(part *p, int from, size_t row, size_t count, ds_stream stream) {
    const float *in = p->field[from] + (row - 1) * nx;
    float *out = p->field[!from] + row * nx + 1;
    DS_CHECK(DS_LAUNCH(sweep, stream, nx - 2, count, in, out));
}

static void copy_row(part *to, size_t to_row, part *from, size_t row, int k) {
    DS_CHECK(ds_copy_peer(to->field[k] + to_row * nx, to->device, from->field[k] + row * nx,
                          from->device, nx * sizeof(float), from->halo));
}

/* The stream waits for what another stream of the part has so far. */
static void wait_for(ds_stream waits, part *p, ds_stream other) {
    DS_CHECK(ds_event_record(p->done, other));
    DS_CHECK(ds_stream_wait_event(waits, p->done));
}

/* Captures a sweep. The capture begins on the first stream. A stream that waits for an event of it
   belongs to it too, until the first stream waits for that stream. */
static ds_graph_exec capture_sweep(int from) {
    ds_stream origin = all[0].inner;
    ds_graph graph;
    ds_graph_exec exec;
    DS_CHECK(ds_capture_begin(origin, DS_CAPTURE_THREAD_LOCAL));
    DS_CHECK(ds_event_record(all[0].done, origin));
    for (part *p = all; p < all + parts; p++) {
        DS_CHECK(ds_stream_wait_event(p->inner, all[0].done));
        DS_CHECK(ds_stream_wait_event(p->halo, all[0].done));
    }
    for (part *p = all; p < all + parts; p++) {
        sweep_rows(p, from, 1, 1, p->halo);
        sweep_rows(p, from, p->rows, 1, p->halo);
        if (p > all)
            copy_row(p - 1, p[-1].rows + 1, p, 1, !from);
        if (p < all + parts - 1)
            copy_row(p + 1, 0, p, p->rows, !from);
        sweep_rows(p, from, 2, p->rows - 2, p->inner);
    }
    for (part *p = all; p < all + parts; p++) {
        wait_for(origin, p, p->halo);
        wait_for(origin, p, p->inner);
    }
    DS_CHECK(ds_capture_end(origin, &graph));
    DS_CHECK(ds_graph_instantiate(graph, NULL, &exec));
    DS_CHECK(ds_graph_destroy(graph));
    return exec;
}

/* Returns the largest change of a point in the last sweep, which has ended. */
static float get_largest_change(void) {
    float largest = 0;
    for (part *p = all; p < all + parts; p++) {
        DS_CHECK(ds_fill(p->largest, 0, 4, 1, p->inner));
        DS_CHECK(DS_LAUNCH(largest_change, p->inner, p->rows, (uint32_t)nx, p->field[0] + nx,
                           p->field[1] + nx, p->largest));
    }
    for (part *p = all; p < all + parts; p++) {
        float change;
        DS_CHECK(ds_copy(&change, p->largest, sizeof change, p->inner));
        DS_CHECK(ds_stream_synchronize(p->inner));
        largest = change > largest ? change : largest;
    }
    return largest;
}

/* Returns the seconds that the sweeps took. */
static double run(void) {
    ds_graph_exec step[2] = { capture_sweep(0), capture_sweep(1) };
    struct timespec begin;
    struct timespec end;
    timespec_get(&begin, TIME_UTC);
    for (int k = 1; k <= sweeps; k++) {
        DS_CHECK(ds_graph_launch(step[(k - 1) % 2], all[0].inner));
        if (k % 100 != 0 && k != sweeps)
            continue;
        DS_CHECK(ds_stream_synchronize(all[0].inner));
        printf("sweep %5d   largest change %.8f\n", k, (double)get_largest_change());
    }
    timespec_get(&end, TIME_UTC);
    DS_CHECK(ds_graph_exec_destroy(step[0]));
    DS_CHECK(ds_graph_exec_destroy(step[1]));
    return difftime(end.tv_sec, begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* ---- main ------------------------------------------------------------------------------------ */

static float *field_new(void) {
    float *field = calloc(nx * ny, sizeof *field);
    if (!field)
        exit(1);
    for (size_t x = 0; x < nx; x++)
        field[x] = 1;
    return field;
}

static void plain_sweep(const float *in, float *out) {
    for (size_t y = 1; y < ny - 1; y++)
        for (size_t at = y * nx + 1; at < y * nx + nx - 1; at++)
            out[at] = 0.25f * ((in[at - 1] + in[at + 1]) + (in[at - nx] + in[at + nx]));
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

/* Compares the result with a plain loop. */
static int check(const float *result) {
    float *plain[2] = { field_new(), field_new() };
    for (int k = 0; k < sweeps; k++)
        plain_sweep(plain[k % 2], plain[!(k % 2)]);
    int same = memcmp(result, plain[sweeps % 2], nx * ny * sizeof(float)) == 0;
    printf("check: %s, checksum %08x\n", same ? "the same bits as a plain loop" : "WRONG",
           (unsigned)checksum(result, nx * ny));
    free(plain[0]);
    free(plain[1]);
    return same;
}

/* Sets the options; 0 if there is a wrong one. */
static int read_arguments(int argc, char **argv) {
    long value[4] = { (long)nx, (long)ny, sweeps, 0 };
    for (int i = 1; i < argc && i <= 4; i++)
        value[i - 1] = strtol(argv[i], NULL, 10);
    nx = (size_t)value[0];
    ny = (size_t)value[1];
    sweeps = (int)value[2];
    parts = value[3] < MOST_PARTS ? (int)value[3] : MOST_PARTS;
    return argc <= 5 && value[0] >= 3 && value[1] >= 4 && value[2] >= 1 && value[3] >= 0;
}

int main(int argc, char **argv) {
    if (!read_arguments(argc, argv)) {
        fprintf(stderr, "usage: jacobi [NX [NY [SWEEPS [PARTS]]]]\n");
        return 1;
    }

    /* Without GPUs there are as many virtual devices as DEVSTREAM_CPU_DEVICES says, or 4. */
    ds_cpu_desc cpu = { .devices = getenv("DEVSTREAM_CPU_DEVICES") ? 0 : 4 };
    ds_device first;
    int devices;
    char name[DS_DEVICE_NAME_SIZE];
    DS_CHECK(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    DS_CHECK(ds_device_get_current(&first));
    DS_CHECK(ds_device_format(first, name, sizeof name));
    DS_CHECK(ds_device_get_count((ds_device_type)first.type, &devices));
    if (!parts)
        parts = devices < MOST_PARTS ? devices : MOST_PARTS;
    if ((size_t)parts > (ny - 2) / 2)
        parts = (int)((ny - 2) / 2); /* of two rows each */

    float *field = field_new();
    for (int i = 0; i < parts; i++)
        open_part(i, (ds_device){ first.type, i % devices }, field);
    double seconds = run();
    for (part *p = all; p < all + parts; p++) {
        size_t bytes = p->rows * nx * sizeof(float);
        DS_CHECK(ds_copy(field + p->first * nx, p->field[sweeps % 2] + nx, bytes, p->inner));
        DS_CHECK(ds_stream_synchronize(p->inner));
        close_part(p);
    }
    DS_CHECK(ds_shutdown());

    printf("%zu x %zu points, %d sweeps in %d parts from %s: %.3f ms, %.2f GB/s\n", nx, ny, sweeps,
           parts, name, 1e3 * seconds, 8e-9 * (double)(nx * ny) * sweeps / seconds);
    int same = check(field);
    free(field);
    return same ? 0 : 2;
}
