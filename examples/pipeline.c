/* pipeline.c - blurs a gray picture of any size in constant memory: pieces of a file are copied to
   the device, go through two kernels, are copied back, and are written to a file. Copies in both
   directions, kernels and the host's work on files run at the same time.

   Compile:  cc -O2 -I. examples/pipeline.c -o pipeline -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/pipeline.c -o pipeline -pthread
   Run:      ./pipeline             a picture that the program makes in a temporary file
             ./pipeline IN [OUT]    IN, OUT: binary PGM files (P5) with values up to 255; without
                                    OUT, the result goes to a temporary file

   A piece is ROWS rows of the picture. It has three stages, each on a stream of its own:

       copy in  -->  blur_rows, blur_columns  -->  copy back

   A stage waits for an event of the stage before. There are three slots with buffers for a piece:
   one piece is copied in while the kernels work on a second and a third is copied back. The host
   waits for a slot only before it uses the slot again. At the end a plain loop checks the output.

   Exit status: 0 fine, 1 something failed, 2 the result is wrong. */
#define DEVSTREAM_IMPLEMENTATION
#include "pipeline.kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 3, ROWS = 64 };

typedef struct picture {
    FILE *file;
    long start; /* of the first pixel in the file */
    size_t nx;
    size_t ny;
} picture;

typedef struct slot {
    uint8_t *in;  /* pinned: the rows of the piece and RADIUS more around it */
    uint8_t *out; /* pinned: the rows of the piece, blurred */
    uint8_t *device_in;
    uint16_t *device_sums;
    uint8_t *device_out;
    ds_event copied;   /* in */
    ds_event computed; /* device_out */
    ds_event done;     /* out */
    size_t rows;       /* of the piece; 0: the slot is free */
} slot;

static slot slots[SLOTS];
static ds_stream copy_in;
static ds_stream compute;
static ds_stream copy_back;

static void fail(const char *text) {
    fprintf(stderr, "pipeline: %s\n", text);
    exit(1);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Makes a picture of rings. */
static FILE *make_file(void) {
    FILE *file = tmpfile();
    if (!file)
        fail("cannot make a temporary file");
    fprintf(file, "P5\n640 480\n255\n");
    for (int y = 0; y < 480; y++)
        for (int x = 0; x < 640; x++)
            putc(((x - 320) * (x - 320) + (y - 240) * (y - 240)) / 64 % 256, file);
    rewind(file);
    return file;
}

static picture picture_open(const char *name) {
    picture p = { .file = name ? fopen(name, "rb") : make_file() };
    unsigned long nx;
    unsigned long ny;
    unsigned most;
    if (!p.file)
        fail("cannot read the picture");
    if (fscanf(p.file, "P5 %lu %lu %u", &nx, &ny, &most) != 3 || !nx || !ny || most > 255)
        fail("not a binary PGM file with values up to 255");
    p.start = ftell(p.file) + 1;
    p.nx = nx;
    p.ny = ny;
    return p;
}

/* Reads row y and puts the border around it. Outside of the picture are the pixels of its edge. */
static void read_row(picture *p, long y, uint8_t *to) {
    long last = (long)p->ny - 1;
    y = y < 0 ? 0 : y;
    y = y > last ? last : y;
    if (fseek(p->file, p->start + y * (long)p->nx, SEEK_SET) != 0 ||
        fread(to + RADIUS, 1, p->nx, p->file) != p->nx)
        fail("the picture ends too early");
    memset(to, to[RADIUS], RADIUS);
    memset(to + RADIUS + p->nx, to[RADIUS + p->nx - 1], RADIUS);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void open_slot(slot *s, size_t nx) {
    ds_device here = ds_device_current();
    size_t window = ROWS + 2 * RADIUS;
    DS_CHECK(ds_pinned_alloc((nx + 2 * RADIUS) * window, (void **)&s->in));
    DS_CHECK(ds_pinned_alloc(nx * ROWS, (void **)&s->out));
    DS_CHECK(ds_device_alloc(here, (nx + 2 * RADIUS) * window, (void **)&s->device_in));
    DS_CHECK(ds_device_alloc(here, 2 * nx * window, (void **)&s->device_sums));
    DS_CHECK(ds_device_alloc(here, nx * ROWS, (void **)&s->device_out));
    DS_CHECK(ds_event_create(0, "copied", &s->copied));
    DS_CHECK(ds_event_create(0, "computed", &s->computed));
    DS_CHECK(ds_event_create(0, "done", &s->done));
}

static void close_slot(slot *s) {
    DS_CHECK(ds_pinned_free(s->in));
    DS_CHECK(ds_pinned_free(s->out));
    DS_CHECK(ds_device_free(s->device_in));
    DS_CHECK(ds_device_free(s->device_sums));
    DS_CHECK(ds_device_free(s->device_out));
    DS_CHECK(ds_event_destroy(s->copied));
    DS_CHECK(ds_event_destroy(s->computed));
    DS_CHECK(ds_event_destroy(s->done));
}

/* Enqueues the three stages; nothing here waits. */
static void submit(slot *s, size_t nx) {
    size_t window = s->rows + 2 * RADIUS;
    DS_CHECK(ds_copy(s->device_in, s->in, (nx + 2 * RADIUS) * window, copy_in));
    DS_CHECK(ds_event_record(s->copied, copy_in));

    DS_CHECK(ds_stream_wait_event(compute, s->copied));
    DS_CHECK(DS_LAUNCH(blur_rows, compute, nx, window, s->device_in, s->device_sums));
    DS_CHECK(DS_LAUNCH(blur_columns, compute, nx, s->rows, s->device_sums, s->device_out));
    DS_CHECK(ds_event_record(s->computed, compute));

    DS_CHECK(ds_stream_wait_event(copy_back, s->computed));
    DS_CHECK(ds_copy(s->out, s->device_out, nx * s->rows, copy_back));
    DS_CHECK(ds_event_record(s->done, copy_back));
}

/* Waits for the slot's piece, if there is one, and writes it. */
static void finish(slot *s, size_t nx, FILE *out) {
    if (!s->rows)
        return;
    DS_CHECK(ds_event_synchronize(s->done));
    if (fwrite(s->out, 1, nx * s->rows, out) != nx * s->rows)
        fail("cannot write the output");
    s->rows = 0;
}

static void blur(picture *p, FILE *out) {
    slot *s = slots;
    fprintf(out, "P5\n%zu %zu\n255\n", p->nx, p->ny);
    for (size_t first = 0; first < p->ny; first += ROWS) {
        finish(s, p->nx, out);
        s->rows = p->ny - first < ROWS ? p->ny - first : ROWS;
        for (size_t i = 0; i < s->rows + 2 * RADIUS; i++)
            read_row(p, (long)(first + i) - RADIUS, s->in + i * (p->nx + 2 * RADIUS));
        submit(s, p->nx);
        s = s < slots + SLOTS - 1 ? s + 1 : slots;
    }
    for (int i = 0; i < SLOTS; i++) {
        finish(s, p->nx, out);
        s = s < slots + SLOTS - 1 ? s + 1 : slots;
    }
}

/* ---- the check, main ------------------------------------------------------------------------- */

/* Returns whether the output has the pixels of a plain loop. */
static int check(picture *p, FILE *out) {
    static const unsigned weight[2 * RADIUS + 1] = { 1, 4, 6, 4, 1 };
    size_t row = p->nx + 2 * RADIUS;
    uint8_t *window = malloc(row * (2 * RADIUS + 1));
    int same = window && fseek(out, -(long)(p->nx * p->ny), SEEK_END) == 0;
    for (size_t y = 0; same && y < p->ny; y++) {
        for (int k = 0; k <= 2 * RADIUS; k++)
            read_row(p, (long)y + k - RADIUS, window + (size_t)k * row);
        for (size_t x = 0; same && x < p->nx; x++) {
            unsigned sum = 128;
            for (size_t k = 0; k <= 2 * RADIUS; k++)
                for (size_t i = 0; i <= 2 * RADIUS; i++)
                    sum += weight[k] * weight[i] * window[k * row + x + i];
            same = getc(out) == (int)(sum / 256);
        }
    }
    free(window);
    return same;
}

/* FNV-1a of the pixels. */
static uint32_t checksum(const picture *p, FILE *out) {
    uint32_t hash = 0x811c9dc5u;
    if (fseek(out, -(long)(p->nx * p->ny), SEEK_END) != 0)
        return 0;
    for (int byte = getc(out); byte != EOF; byte = getc(out))
        hash = (hash ^ (uint32_t)byte) * 0x01000193u;
    return hash;
}

int main(int argc, char **argv) {
    picture p = picture_open(argc > 1 ? argv[1] : NULL);
    FILE *out = argc > 2 ? fopen(argv[2], "w+b") : tmpfile();
    if (!out)
        fail("cannot write the output");

    char name[DS_DEVICE_NAME_SIZE];
    DS_CHECK(ds_device_format(ds_device_current(), name, sizeof name));
    DS_CHECK(ds_stream_create(&(ds_stream_desc){ .label = "copy in" }, &copy_in));
    DS_CHECK(ds_stream_create(&(ds_stream_desc){ .label = "compute" }, &compute));
    DS_CHECK(ds_stream_create(&(ds_stream_desc){ .label = "copy back" }, &copy_back));
    for (int i = 0; i < SLOTS; i++)
        open_slot(&slots[i], p.nx);
    struct timespec begin;
    struct timespec end;
    timespec_get(&begin, TIME_UTC);
    blur(&p, out);
    timespec_get(&end, TIME_UTC);
    for (int i = 0; i < SLOTS; i++)
        close_slot(&slots[i]);
    DS_CHECK(ds_stream_destroy(copy_in));
    DS_CHECK(ds_stream_destroy(compute));
    DS_CHECK(ds_stream_destroy(copy_back));
    DS_CHECK(ds_shutdown());

    double ms =
        1e3 * difftime(end.tv_sec, begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("%zu x %zu pixels on %s in %.3f ms\n", p.nx, p.ny, name, ms);
    int same = fflush(out) == 0 && check(&p, out);
    printf("check: %s, checksum %08x\n", same ? "the same bytes as a plain loop" : "WRONG",
           (unsigned)checksum(&p, out));
    fclose(p.file);
    fclose(out);
    return same ? 0 : 2;
}
