/* heaps.h - the work of the allocator's rows, the same for devstream, peers and limit. Taken in
   after
     typedef ... heap;                               what one thread allocates from
     static void *heap_get(heap *h, size_t bytes);   ends the program when there is no memory
     static void heap_put(heap *h, void *block);
   The bytes are never touched. */
#include "alloc.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MIB = 1 << 20, STEPS = 1 << 16 /* drawn beforehand, and repeated */, LIVE = 64 };

BENCH_FN uint64_t heap_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Uniform in its logarithm. */
BENCH_FN size_t heap_random_size(uint64_t *state, double low, double high) {
    return (size_t)(low * pow(high / low, (double)(heap_random(state) >> 11) / 9007199254740992.0));
}

/* ---- one block, 64 blocks -------------------------------------------------------------------- */

/* Another block is live: some peers give up a part of their heap that holds none. */
BENCH_FN double heap_pairs(heap *h, size_t bytes) {
    int n = bench_quick() ? 200000 : 500000;
    void *other = heap_get(h, bytes);
    double t = bench_now_ns();
    for (int i = 0; i < n; i++)
        heap_put(h, heap_get(h, bytes));
    t = bench_now_ns() - t;
    heap_put(h, other);
    return t / n;
}

typedef struct live {
    heap *h;
    void *block[LIVE];

    struct {
        uint32_t slot, bytes;
    } step[STEPS];
} live;

BENCH_FN live *live_new(heap *h, uint64_t seed) {
    live *l = malloc(sizeof *l);
    if (!l)
        exit(1);
    l->h = h;
    for (int i = 0; i < LIVE; i++)
        l->block[i] = heap_get(h, heap_random_size(&seed, 512, 64.0 * MIB));
    for (int i = 0; i < STEPS; i++) {
        l->step[i].slot = (uint32_t)(heap_random(&seed) % LIVE);
        l->step[i].bytes = (uint32_t)heap_random_size(&seed, 512, 64.0 * MIB);
    }
    return l;
}

BENCH_FN double live_run(live *l) {
    int rounds = bench_quick() ? 3 : 10;
    double t = bench_now_ns();
    for (int k = 0; k < rounds; k++)
        for (int i = 0; i < STEPS; i++) {
            void **slot = &l->block[l->step[i].slot];
            heap_put(l->h, *slot);
            *slot = heap_get(l->h, l->step[i].bytes);
        }
    return (bench_now_ns() - t) / ((double)rounds * STEPS);
}

BENCH_FN void live_delete(live *l) {
    for (int i = 0; i < LIVE; i++)
        heap_put(l->h, l->block[i]);
    free(l);
}

/* ---- two threads ----------------------------------------------------------------------------- */

typedef struct runner {
    live *l;
    pthread_barrier_t *start;
    double ns;
} runner;

static void *runner_main(void *user) {
    runner *r = user;
    pthread_barrier_wait(r->start);
    r->ns = live_run(r->l);
    return NULL;
}

/* Each thread has a heap; the mean of their times. */
BENCH_FN double live_run_two(live *const l[2]) {
    pthread_barrier_t start;
    pthread_t thread[2];
    runner r[2];
    if (pthread_barrier_init(&start, NULL, 2))
        abort();
    for (int i = 0; i < 2; i++) {
        r[i] = (runner){ l[i], &start, 0 };
        if (pthread_create(&thread[i], NULL, runner_main, &r[i]))
            abort();
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&start);
    return (r[0].ns + r[1].ns) / 2;
}

/* ---- traces ---------------------------------------------------------------------------------- */

typedef struct trace {
    size_t count, pairs, slots; /* slots: most blocks alive at a time */
    uint64_t peak;              /* most bytes */
    trace_op *op;               /* id: its slot */
    void **block;
} trace;

/* Reads $BENCH_TRACES/NAME.trace. Ids become slots, which are taken again when they are free, so
   that the table of blocks stays in the cache. A file that is no trace ends the program. */
BENCH_FN trace *trace_read(const char *name) {
    const char *folder = getenv("BENCH_TRACES");
    char path[512];
    trace *t = calloc(1, sizeof *t);
    trace_head head = { { 0 }, 0, 0 };
    struct stat s;
    snprintf(path, sizeof path, "%.400s/%.80s.trace", folder ? folder : "build/bench/traces", name);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &s)) {
        perror(path);
        exit(1);
    }
    if (!t || read(fd, &head, sizeof head) != (ssize_t)sizeof head ||
        memcmp(head.magic, TRACE_MAGIC, 8) || head.count > UINT32_MAX || head.ids > UINT32_MAX ||
        (uint64_t)s.st_size != sizeof head + head.count * sizeof(trace_op)) {
        fprintf(stderr, "%s: not a trace\n", path);
        exit(1);
    }
    t->count = (size_t)head.count;
    t->op = malloc(t->count * sizeof *t->op + 1);
    uint32_t *slot = malloc((size_t)head.ids * 4 + 1), *spare = malloc((size_t)head.ids * 4 + 1);
    size_t spares = 0;
    uint64_t now = 0;
    if (!t->op || !slot || !spare)
        exit(1);
    for (size_t got = 0, want = t->count * sizeof *t->op; got < want;) {
        ssize_t n = read(fd, (char *)t->op + got, want - got);
        if (n <= 0) {
            perror(path);
            exit(1);
        }
        got += (size_t)n;
    }
    close(fd);
    for (size_t i = 0; i < t->count; i++) {
        trace_op *o = &t->op[i];
        if (o->id >= head.ids) {
            fprintf(stderr, "%s: not a trace\n", path);
            exit(1);
        }
        if (o->free) {
            now -= o->bytes;
            o->id = spare[spares++] = slot[o->id];
            continue;
        }
        o->id = slot[o->id] = spares ? spare[--spares] : (uint32_t)t->slots++;
        t->pairs++;
        if ((now += o->bytes) > t->peak)
            t->peak = now;
    }
    free(slot);
    free(spare);
    if (!(t->block = calloc(t->slots + 1, sizeof *t->block)))
        exit(1);
    return t;
}

BENCH_FN double trace_run(trace *t, heap *h) {
    void **block = t->block;
    double start = bench_now_ns();
    for (const trace_op *o = t->op, *end = o + t->count; o < end; o++) {
        if (o->free)
            heap_put(h, block[o->id]);
        else
            block[o->id] = heap_get(h, o->bytes);
    }
    return (bench_now_ns() - start) / (double)t->pairs;
}

/* The same, with live blocks kept in order: 0 when two of them overlap. */
BENCH_FN int trace_check(trace *t, heap *h) {
    typedef struct range {
        uintptr_t from, to;
    } range;

    range *r = malloc((t->slots + 1) * sizeof *r);
    size_t n = 0;
    int right = r != NULL;
    for (size_t i = 0; right && i < t->count; i++) {
        const trace_op *o = &t->op[i];
        uintptr_t from =
            (uintptr_t)(o->free ? t->block[o->id] : (t->block[o->id] = heap_get(h, o->bytes)));
        size_t low = 0, high = n;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (r[middle].from < from)
                low = middle + 1;
            else
                high = middle;
        }
        if (o->free) {
            heap_put(h, t->block[o->id]);
            memmove(r + low, r + low + 1, (--n - low) * sizeof *r);
            continue;
        }
        right = (!low || r[low - 1].to <= from) && (low == n || from + o->bytes <= r[low].from);
        memmove(r + low + 1, r + low, (n++ - low) * sizeof *r);
        r[low] = (range){ from, from + o->bytes };
    }
    free(r);
    return right;
}

static const char *const trace_names[] = { "train", "serve", "rand", "vision", "table" };

enum { TRACES = sizeof trace_names / sizeof *trace_names };

/* What peers and limit measure, too. */
BENCH_FN void heap_rows(heap *h, const char *source) {
    int n = bench_quick() ? 3 : 5;
    heap_pairs(h, MIB);
    BENCH_REPEAT("alloc_pair", source, n, heap_pairs(h, MIB));
    live *l = live_new(h, 1);
    live_run(l);
    BENCH_REPEAT("alloc_live", source, n, live_run(l));
    live_delete(l);
}

BENCH_FN void heap_rows_traces(heap *h, const char *source) {
    for (int i = 0; i < TRACES; i++) {
        char row[32];
        trace *t = trace_read(trace_names[i]);
        snprintf(row, sizeof row, "alloc_%s", trace_names[i]);
        trace_run(t, h);
        BENCH_REPEAT(row, source, 3, trace_run(t, h));
        free(t->op);
        free(t->block);
        free(t);
    }
}

BENCH_FN void heap_rows_two(heap *a, heap *b, const char *row, const char *source) {
    live *l[2] = { live_new(a, 1), live_new(b, 2) };
    live_run_two(l);
    BENCH_REPEAT(row, source, bench_quick() ? 3 : 5, live_run_two(l));
    live_delete(l[0]);
    live_delete(l[1]);
}
