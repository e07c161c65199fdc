/* memory.c - a program that runs out of memory although half of its memory is free, explains
   itself, and does better.

   Compile:  cc -O2 -I. examples/memory.c -o memory -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/memory.c -o memory -pthread
   Run:      ./memory              writes memory.html and memory.pickle into the current folder
             ./memory --out NAME   writes NAME.html and NAME.pickle
             ./memory --cpu        uses the CPU although there is a GPU

   The program is a video editor in small: it decodes frames, keeps every second one as a still,
   gives the others back, and then wants to put together one large panorama. It may use LIMIT bytes
   of the device. By the sums there is room: the frames that were given back are more than the
   panorama needs. But they lie between the stills, and memory that is in pieces is of no use to one
   large block.

   That is done twice. With plain segments, as cudaMalloc gives them, the panorama fails. The
   program prints the report that the allocator has made of it, and writes a snapshot: memory.html
   opens in any browser and shows the pieces, and memory.pickle is for PyTorch's viewer
   (pytorch.org/memory_viz). Then the same with growing segments, which put pages of memory wherever
   addresses are free: nothing fails, as far as the device has virtual memory; a GPU and the CPU
   driver have.

   What it checks: the first panorama fails although so much is free; the contents of all stills are
   right in the end; the snapshot was written; the second panorama is there, with its contents.

   Exit status: 0 fine, 1 something failed (standard error says what), 2 the results are wrong. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <stdio.h>
#include <string.h>

enum { FINE = 0, FAILED = 1, WRONG = 2 };

#define MIB ((size_t)1 << 20)
#define FRAMES 48
#define FRAME (8 * MIB)
#define PANORAMA (160 * MIB)
#define LIMIT (480 * MIB)

static const char *out = "memory";
static ds_device device;
static ds_stream stream;

/* ---- the work -------------------------------------------------------------------------------- */

typedef struct film {
    void *still[FRAMES / 2];
    void *panorama;
} film;

/* Every frame is filled with its number, in stream order. */
static int decode(film *f) {
    void *frame[FRAMES];
    for (int i = 0; i < FRAMES; i++) {
        ds_mem_label_push(i % 2 ? "stills" : "frames being decoded");
        DS_CHECK(ds_mem_alloc(FRAME, stream, &frame[i]));
        ds_mem_label_pop();
        DS_CHECK(ds_fill(frame[i], (uint32_t)i, 4, FRAME / 4, stream));
    }
    DS_CHECK(ds_mem_annotate(device, "decoded"));
    for (int i = 0; i < FRAMES; i += 2) {
        /* the stream may still write to it: what comes next on the stream comes after that */
        DS_CHECK(ds_mem_free(frame[i]));
        f->still[i / 2] = frame[i + 1];
    }
    DS_CHECK(ds_mem_annotate(device, "frames given back"));
    return FINE;
}

/* DS_OK, or what the allocation said. */
static ds_result panorama(film *f) {
    ds_mem_request request = { .size = PANORAMA, .stream = stream, .label = "panorama" };
    ds_result r = ds_mem_alloc_with(&request, &f->panorama);
    return r < 0 ? r : ds_fill(f->panorama, 0xcafe, 4, PANORAMA / 4, stream);
}

/* 1 when the first and last word of a block are as they were filled. */
static int holds(const void *block, size_t size, uint32_t value, int *result) {
    uint32_t word[2] = { 0, 0 };
    if (ds_copy(&word[0], block, 4, stream) < 0 ||
        ds_copy(&word[1], (const char *)block + size - 4, 4, stream) < 0 ||
        ds_stream_synchronize(stream) < 0) {
        fprintf(stderr, "memory: %s\n", ds_error_get_last());
        *result = FAILED;
    } else if (word[0] != value || word[1] != value) {
        fprintf(stderr, "memory: WRONG: a block holds %u and %u, not %u\n", (unsigned)word[0],
                (unsigned)word[1], (unsigned)value);
        *result = WRONG;
    }
    return *result == FINE;
}

static int finish(film *f) {
    int result = FINE;
    for (int i = 0; i < FRAMES / 2 && result == FINE; i++)
        holds(f->still[i], FRAME, (uint32_t)(2 * i + 1), &result);
    if (f->panorama && result == FINE)
        holds(f->panorama, PANORAMA, 0xcafe, &result);
    if (result != FINE)
        return result;
    for (int i = 0; i < FRAMES / 2; i++)
        DS_CHECK(ds_mem_free(f->still[i]));
    DS_CHECK(ds_mem_free(f->panorama));
    DS_CHECK(ds_mem_empty_cache(device, NULL));
    return FINE;
}

/* ---- explaining it --------------------------------------------------------------------------- */

/* The largest free block, and all of them. */
typedef struct pieces {
    size_t largest, all;
} pieces;

static void add_piece(const ds_mem_block *block, void *user) {
    pieces *p = user;
    if (block->state != DS_BLOCK_FREE)
        return;
    p->all += block->size;
    if (block->size > p->largest)
        p->largest = block->size;
}

static int show(const char *when) {
    pieces p = { 0, 0 };
    DS_CHECK(ds_mem_for_each_block(device, add_piece, &p));
    printf(
        "%-38s %4zu MiB allocated, %4zu MiB reserved, %4zu MiB free, the largest piece %3zu MiB\n",
        when, ds_mem_get_allocated(device) / MIB, ds_mem_get_reserved(device) / MIB, p.all / MIB,
        p.largest / MIB);
    return FINE;
}

static int write_snapshot(ds_mem_format format, const char *ending) {
    char path[512];
    if (snprintf(path, sizeof path, "%s.%s", out, ending) >= (int)sizeof path) {
        fprintf(stderr, "memory: %s is too long\n", out);
        return FAILED;
    }
    DS_CHECK(ds_mem_write_snapshot_file(format, 0, path));
    FILE *f = fopen(path, "rb");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    if (f)
        fclose(f);
    if (size < 1000) {
        fprintf(stderr, "memory: WRONG: %s has %ld bytes\n", path, size);
        return WRONG;
    }
    printf("wrote %s\n", path);
    return FINE;
}

/* ---- twice ----------------------------------------------------------------------------------- */

static int set_policy(int growing) {
    ds_mem_config config = ds_mem_config_default();
    config.expandable_segments = growing;
    config.limit = LIMIT;
    DS_CHECK(ds_mem_configure(device, &config));
    return FINE;
}

/* Runs out, although more than a panorama is free. */
static int in_pieces(void) {
    film f = { { NULL }, NULL };
    pieces p = { 0, 0 };
    int result;
    printf("plain segments, limit %zu MiB\n", LIMIT / MIB);
    if (set_policy(0) != FINE)
        return FAILED;
    DS_CHECK(ds_mem_history_start(NULL));
    if (decode(&f) != FINE || show("  after decoding:") != FINE)
        return FAILED;
    DS_CHECK(ds_mem_for_each_block(device, add_piece, &p));
    ds_result r = panorama(&f);
    if (r != DS_ERR_OUT_OF_MEMORY && r != DS_ERR_LIMIT_EXCEEDED) {
        fprintf(stderr, "memory: WRONG: the panorama should not have fitted\n");
        return r < 0 ? FAILED : WRONG;
    }
    printf("the panorama failed, which was to be shown. In short:\n\n%s\n\nIn full:\n\n%s\n",
           ds_error_get_last(), ds_mem_get_last_report());
    if (p.all < PANORAMA) {
        fprintf(stderr, "memory: WRONG: only %zu bytes were free\n", p.all);
        return WRONG;
    }
    if ((result = write_snapshot(DS_SNAPSHOT_HTML, "html")) != FINE)
        return result;
    if ((result = write_snapshot(DS_SNAPSHOT_PICKLE, "pickle")) != FINE)
        return result;
    DS_CHECK(ds_mem_history_stop());
    return finish(&f);
}

/* The same program with another policy. */
static int growing(void) {
    film f = { { NULL }, NULL };
    ds_mem_stats stats = { 0 };
    printf("\ngrowing segments, limit %zu MiB\n", LIMIT / MIB);
    if (set_policy(1) != FINE || decode(&f) != FINE || show("  after decoding:") != FINE)
        return FAILED;
    DS_CHECK(ds_mem_get_stats(device, &stats));
    if (stats.segment[DS_STAT_ALL].current) {
        printf("this device has no virtual memory, so it has no growing segments either\n");
        return finish(&f);
    }
    if (panorama(&f) < 0) {
        fprintf(stderr, "memory: WRONG: %s\n", ds_error_get_last());
        return WRONG;
    }
    if (show("  with the panorama:") != FINE)
        return FAILED;
    return finish(&f);
}

static const char USAGE[] = "usage: memory [options]\n"
                            "Runs out of memory, explains why, and does better.\n"
                            "  --out NAME   write NAME.html and NAME.pickle (memory)\n"
                            "  --cpu        use the CPU although there is a GPU\n";

static int work(int cpu) {
    char name[DS_DEVICE_NAME_SIZE];
    size_t total = 0;
    int result;
    if (cpu)
        DS_CHECK(ds_device_set_current(ds_cpu(0)));
    DS_CHECK(ds_device_get_current(&device));
    DS_CHECK(ds_device_format(device, name, sizeof name));
    DS_CHECK(ds_device_get_memory_info(device, NULL, &total));
    printf("device: %s, %zu MiB\n\n", name, total / MIB);
    DS_CHECK(ds_stream_create(NULL, &stream));
    result = in_pieces();
    if (result == FINE)
        result = growing();
    DS_CHECK(ds_stream_destroy(stream));
    return result;
}

int main(int argc, char **argv) {
    int cpu = 0, result;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return fputs(USAGE, stdout) < 0;
        if (strcmp(argv[i], "--cpu") == 0)
            cpu = 1;
        else if (strcmp(argv[i], "--out") == 0 && i + 1 < argc)
            out = argv[++i];
        else {
            fprintf(stderr, "memory: cannot understand \"%s\"\n%s", argv[i], USAGE);
            return FAILED;
        }
    }
    result = work(cpu);
    if (ds_shutdown() < 0 && result == FINE) {
        fprintf(stderr, "memory: %s\n", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        perror("memory: standard output");
        result = FAILED;
    }
    return result;
}
