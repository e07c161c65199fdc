/* devices.c - what devices there are, how they reach each other, and how fast copies are.

   Compile:  cc -O2 -I. examples/devices.c -o devices -pthread
     or, to see GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/devices.c -o devices -pthread
   Run:      ./devices [--size SIZE] [--runs N]   SIZE in bytes, or with K, M or G; 64M and 5 unless
                                                  given
             ./devices --all                      also the attributes of each device
             DEVSTREAM_CPU_DEVICES=2 ./devices    with two virtual CPU devices

   Every rate is the median of N copies of SIZE bytes, in GB/s (10^9 bytes per second, each byte
   counted once), timed with events on the stream that copies; the host's memcpy is timed with the
   clock. Before each row the source is filled with a new pattern and the target with something
   else, and afterwards the target is compared.

   Exit status: 0 fine, 1 something failed, 2 a copy was wrong. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
/* a failed DS_CHECK of this program */
#define DS_CHECK_HANDLER(result, text, file, line)             \
    do {                                                       \
        fprintf(stderr, "devices: %s\n", ds_error_get_last()); \
        goto fail;                                             \
    } while (0)

#include "devstream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FINE = 0, FAILED = 1, WRONG = 2, MAX_RUNS = 1000 };

typedef struct bench {
    size_t size;      /* bytes of a copy */
    int runs;         /* copies of which the median is taken */
    int all;          /* 1: print all attributes */
    uint64_t pattern; /* number of the pattern last made */
    void *source;     /* pinned: the pattern */
    void *back;       /* pinned: what came back */
    ds_event begin, end;
    double gbps[MAX_RUNS];
} bench;

/* ---- what there is --------------------------------------------------------------------------- */

static int print_device(ds_device device) {
    ds_device_properties p;
    char name[DS_DEVICE_NAME_SIZE], uuid[37];
    size_t available = 0;
    int least = 0, greatest = 0;
    DS_CHECK(ds_device_format(device, name, sizeof name));
    DS_CHECK(ds_device_get_properties(device, &p));
    DS_CHECK(ds_device_get_memory_info(device, &available, NULL));
    DS_CHECK(ds_device_get_priority_range(device, &least, &greatest));
    DS_CHECK(ds_uuid_format(p.uuid, uuid, sizeof uuid));
    printf("%-8s %s\n", name, p.name);
    printf("         memory %.1f GiB, %.1f GiB free\n", (double)p.total_memory / 0x1p30,
           (double)available / 0x1p30);
    if (p.major)
        printf("         capability %d.%d, %d multiprocessors\n", p.major, p.minor,
               p.multiprocessors);
    else
        printf("         %d worker threads\n", p.multiprocessors);
    printf("         priorities %d (least urgent) to %d (most urgent)\n", least, greatest);
    printf("         unified addressing %s, pci %s\n", p.unified_addressing ? "yes" : "no",
           p.pci[0] ? p.pci : "none");
    printf("         uuid %s\n", uuid);
    return FINE;
fail:
    return FAILED;
}

/* Every attribute that the device has. */
static int print_attributes(ds_device device) {
#define ATTRIBUTE(name, value, text) name,
    static const ds_attribute all[] = { DS_ATTRIBUTES(ATTRIBUTE) };
#undef ATTRIBUTE
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t value;
        ds_result r = ds_device_get_attribute(device, all[i], &value);
        if (r == DS_ERR_UNSUPPORTED)
            continue;
        DS_CHECK(r);
        printf("         %s %" PRId64 "\n", ds_attribute_get_name(all[i]), value);
    }
    return FINE;
fail:
    return FAILED;
}

static int print_peers(ds_device_type type, int count) {
    char name[DS_DEVICE_NAME_SIZE];
    printf("\nHow a copy from the row's device reaches the column's\n%-8s", "");
    for (int to = 0; to < count; to++) {
        DS_CHECK(ds_device_format((ds_device){ (int32_t)type, to }, name, sizeof name));
        printf(" %8s", name);
    }
    printf("\n");
    for (int from = 0; from < count; from++) {
        DS_CHECK(ds_device_format((ds_device){ (int32_t)type, from }, name, sizeof name));
        printf("%-8s", name);
        for (int to = 0; to < count; to++) {
            int direct = 0;
            DS_CHECK(ds_device_can_access_peer((ds_device){ (int32_t)type, from },
                                               (ds_device){ (int32_t)type, to }, &direct));
            printf(" %8s", from == to ? "self" : direct ? "direct" : "staged");
        }
        printf("\n");
    }
    return FINE;
fail:
    return FAILED;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A new pattern in the source; no two patterns agree in any 8 bytes. */
static void make_pattern(bench *b) {
    uint64_t seed = ++b->pattern << 40;
    unsigned char *to = b->source;
    for (size_t i = 0; i < b->size; i += 8) {
        uint64_t word = (seed + i) * 0x9e3779b97f4a7c15u; /* odd: different words stay different */
        memcpy(to + i, &word, b->size - i < 8 ? b->size - i : 8);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(bench *b) {
    qsort(b->gbps, (size_t)b->runs, sizeof *b->gbps, by_value);
    return (b->gbps[b->runs / 2] + b->gbps[(b->runs - 1) / 2]) / 2;
}

static double rate(size_t bytes, double ms) {
    return ms > 0 ? 1e-6 * (double)bytes / ms : 0;
}

/* Times copies from one place to another on a stream; the first, which is not counted, warms the
   memory up. */
static int time_copies(bench *b, void *to, ds_device to_device, const void *from,
                       ds_device from_device, ds_stream stream, double *out) {
    int peer = to_device.type != DS_DEVICE_HOST && from_device.type != DS_DEVICE_HOST;
    for (int i = -1; i < b->runs; i++) {
        double ms = 0;
        DS_CHECK(ds_event_record(b->begin, stream));
        if (peer)
            DS_CHECK(ds_copy_peer(to, to_device, from, from_device, b->size, stream));
        else
            DS_CHECK(ds_copy(to, from, b->size, stream));
        DS_CHECK(ds_event_record(b->end, stream));
        DS_CHECK(ds_event_synchronize(b->end));
        DS_CHECK(ds_event_get_elapsed_ms(b->begin, b->end, &ms));
        if (i >= 0)
            b->gbps[i] = rate(b->size, ms);
    }
    *out = median(b);
    return FINE;
fail:
    return FAILED;
}

/* Compares a place with the pattern. */
static int verify(bench *b, const void *place, const char *what, ds_stream stream) {
    if (place != b->back) {
        memset(b->back, 0xa5, b->size);
        DS_CHECK(ds_copy(b->back, place, b->size, stream));
        DS_CHECK(ds_stream_synchronize(stream));
    }
    if (memcmp(b->back, b->source, b->size) == 0)
        return FINE;
    fprintf(stderr, "devices: WRONG: %s: what arrived is not what was sent\n", what);
    return WRONG;
fail:
    return FAILED;
}

/* One row: pattern -> from (when it is not the source itself) -> to, timed; then compared. */
static int row(bench *b, const char *what, void *to, ds_device to_device, void *from,
               ds_device from_device, ds_stream stream) {
    double gbps = 0;
    int result;
    make_pattern(b);
    if (from != b->source)
        DS_CHECK(ds_copy(from, b->source, b->size, stream));
    DS_CHECK(ds_fill(to, 0xa5, 1, b->size, stream));
    DS_CHECK(ds_stream_synchronize(stream));
    if (time_copies(b, to, to_device, from, from_device, stream, &gbps) != FINE)
        goto fail;
    if ((result = verify(b, to, what, stream)) == FINE)
        printf("%-28s %8.2f\n", what, gbps);
    return result;
fail:
    return FAILED;
}

static int bench_open(bench *b, ds_device device, ds_stream *out) {
    ds_stream_desc desc = { .device = device, .label = "devices" };
    DS_CHECK(ds_stream_create(&desc, out));
    /* an event belongs to the first device it is recorded on */
    DS_CHECK(ds_event_create(DS_EVENT_TIMING, "begin", &b->begin));
    DS_CHECK(ds_event_create(DS_EVENT_TIMING, "end", &b->end));
    return FINE;
fail:
    return FAILED;
}

static void bench_close(bench *b, ds_stream stream) {
    if (b->begin.id)
        DS_IGNORE(ds_event_destroy(b->begin));
    if (b->end.id)
        DS_IGNORE(ds_event_destroy(b->end));
    if (stream.id)
        DS_IGNORE(ds_stream_destroy(stream));
    b->begin.id = b->end.id = 0;
}

/* Host to device, device to host, and inside of the device. */
static int measure_device(bench *b, ds_device device) {
    ds_device host = { DS_DEVICE_HOST, 0 };
    ds_stream stream = { 0 };
    char name[DS_DEVICE_NAME_SIZE], what[3 * DS_DEVICE_NAME_SIZE];
    void *first = NULL, *second = NULL;
    int result = FAILED;
    if (bench_open(b, device, &stream) != FINE)
        goto fail;
    DS_CHECK(ds_device_format(device, name, sizeof name));
    DS_CHECK(ds_device_alloc(device, b->size, &first));
    DS_CHECK(ds_device_alloc(device, b->size, &second));
    snprintf(what, sizeof what, "host (pinned) -> %s", name);
    if ((result = row(b, what, first, device, b->source, host, stream)) != FINE)
        goto fail;
    snprintf(what, sizeof what, "%s -> host (pinned)", name);
    if ((result = row(b, what, b->back, host, first, device, stream)) != FINE)
        goto fail;
    snprintf(what, sizeof what, "%s -> %s", name, name);
    result = row(b, what, second, device, first, device, stream);
fail:
    DS_IGNORE(ds_device_free(first));
    DS_IGNORE(ds_device_free(second));
    bench_close(b, stream);
    return result;
}

static int measure_pair(bench *b, ds_device from_device, ds_device to_device) {
    ds_stream stream = { 0 };
    char from_name[DS_DEVICE_NAME_SIZE], to_name[DS_DEVICE_NAME_SIZE],
        what[3 * DS_DEVICE_NAME_SIZE];
    void *from = NULL, *to = NULL;
    int direct = 0, result = FAILED;
    if (bench_open(b, from_device, &stream) != FINE)
        goto fail;
    DS_CHECK(ds_device_format(from_device, from_name, sizeof from_name));
    DS_CHECK(ds_device_format(to_device, to_name, sizeof to_name));
    DS_CHECK(ds_device_can_access_peer(from_device, to_device, &direct));
    DS_CHECK(ds_device_alloc(from_device, b->size, &from));
    DS_CHECK(ds_device_alloc(to_device, b->size, &to));
    snprintf(what, sizeof what, "%s -> %s%s", from_name, to_name, direct ? "" : " (staged)");
    result = row(b, what, to, to_device, from, from_device, stream);
fail:
    DS_IGNORE(ds_device_free(from));
    DS_IGNORE(ds_device_free(to));
    bench_close(b, stream);
    return result;
}

/* What the machine itself does, to compare with. */
static int measure_memcpy(bench *b) {
    make_pattern(b);
    memset(b->back, 0xa5, b->size);
    for (int i = -1; i < b->runs; i++) {
        struct timespec t0, t1;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        memcpy(b->back, b->source, b->size);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        if (i >= 0)
            b->gbps[i] = rate(b->size, 1e3 * (double)(t1.tv_sec - t0.tv_sec) +
                                           1e-6 * (double)(t1.tv_nsec - t0.tv_nsec));
    }
    if (memcmp(b->back, b->source, b->size) != 0) {
        fprintf(stderr, "devices: WRONG: memcpy\n");
        return WRONG;
    }
    printf("%-28s %8.2f\n", "memcpy, one thread", median(b));
    return FINE;
}

/* ---- putting it together --------------------------------------------------------------------- */

static int measure_all(bench *b, const ds_backend_info *backend) {
    int count = backend->device_count, result = FINE;
    for (int i = 0; i < count && result == FINE; i++)
        result = measure_device(b, (ds_device){ (int32_t)backend->type, i });
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count && result == FINE; to++)
            if (from != to)
                result = measure_pair(b, (ds_device){ (int32_t)backend->type, from },
                                      (ds_device){ (int32_t)backend->type, to });
    return result;
}

static int run(bench *b) {
    char report[1024];
    ds_backend_info backend[DS_BACKEND_COUNT];
    int result = FAILED;
    DS_CHECK(ds_backend_format(report, sizeof report));
    printf("Backends\n%s\nDevices\n", report);
    for (int i = 0; i < DS_BACKEND_COUNT; i++) {
        DS_CHECK(ds_backend_get_info(i, &backend[i]));
        for (int k = 0; k < backend[i].device_count; k++)
            if (print_device((ds_device){ (int32_t)backend[i].type, k }) != FINE ||
                (b->all && print_attributes((ds_device){ (int32_t)backend[i].type, k }) != FINE))
                goto fail;
    }
    for (int i = 0; i < DS_BACKEND_COUNT; i++)
        if (backend[i].device_count > 0 &&
            print_peers(backend[i].type, backend[i].device_count) != FINE)
            goto fail;
    DS_CHECK(ds_pinned_alloc(b->size, &b->source));
    DS_CHECK(ds_pinned_alloc(b->size, &b->back));
    printf("\n%-28s %8s\n", "Copies", "GB/s");
    result = measure_memcpy(b);
    for (int i = 0; i < DS_BACKEND_COUNT && result == FINE; i++)
        result = measure_all(b, &backend[i]);
    if (result == FINE)
        printf("(medians of %d copies of %zu bytes; everything copied was compared)\n", b->runs,
               b->size);
fail:
    DS_IGNORE(ds_pinned_free(b->source));
    DS_IGNORE(ds_pinned_free(b->back));
    return result;
}

static int parse_size(const char *text, size_t *out) {
    char *end = NULL;
    unsigned long long n = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    int shift = !end || !*end ? 0 : *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : -1;
    if (n == 0 || shift < 0 || (shift > 0 && end[1]) || n > (SIZE_MAX >> 1) >> shift)
        return FAILED;
    *out = (size_t)n << shift;
    return FINE;
}

int main(int argc, char **argv) {
    static bench b;
    int i = 1, result;
    b.size = (size_t)64 << 20;
    b.runs = 5;
    for (; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        size_t runs = 0;
        if (strcmp(argv[i], "--all") == 0) {
            b.all = 1;
            continue;
        }
        if (strcmp(argv[i], "--size") == 0 && parse_size(value, &b.size) == FINE) {
            i++;
            continue;
        }
        if (strcmp(argv[i], "--runs") != 0 || parse_size(value, &runs) != FINE || runs > MAX_RUNS)
            break;
        b.runs = (int)runs;
        i++;
    }
    if (i < argc) {
        fprintf(stderr, "usage: devices [--all] [--size SIZE] [--runs N]   (N from 1 to %d)\n",
                MAX_RUNS);
        return FAILED;
    }
    result = run(&b);
    if (ds_shutdown() < 0 && result == FINE) {
        fprintf(stderr, "devices: %s\n", ds_error_get_last());
        result = FAILED;
    }
    return result;
}
