/* replay.c - replays a recorded log of allocations against configurations of the allocator, to see
   how each would have done.

   Compile:  cc -O2 -I. examples/replay.c -o replay -pthread
   Run:      ./replay bench/data/train.trace.xz
                      against devstream's default configuration and three others
             ./replay LOG "preset:torch,max_split_size_mb:200" ""
                      against these two; "" is the default
             ./replay --device 28 LOG
                      on devices of 28 GiB
             ./replay --passes 10 LOG
                      ten times with each configuration; the first pass is not timed

   LOG is a trace (bench/data/README.md has its layout; .xz needs the program xz), or what
   ds_resource_create_log wrote, or a snapshot that ds_mem_write_snapshot_file wrote as JSON while history was
   recorded: so a program that ran out of memory on a GPU can be looked into where there is none. A
   configuration is what DEVSTREAM_ALLOC_CONF would hold.

   Nothing is copied or computed, and no memory is touched: it runs on the CPU driver, whose devices
   may be larger than the machine. For each configuration it prints:

       reserved    most memory that was taken from the device, MiB
       /live       reserved divided by the most bytes that were live at a time; 1 would be perfect
       idle        how much of the reserved memory was not live, at the moment when most was
                   reserved
       driver      calls to the driver for memory
       retries     how often the cache had to be given back first
       ns/pair     time of an allocation and its free, the median of all passes but the first

   A history tells when blocks were freed, not which streams had used them: a block ends when its
   free was completed. What history had already lost, or had not seen begin, is left out, and
   counted in the first line.

   Exit status: 0 fine, also when a configuration runs out of memory, which is said; 1 something
   failed (standard error says what). */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct op {
    uint32_t block; /* which one */
    uint32_t place; /* device and stream where it is allocated; FREE: it is freed */
    uint64_t bytes;
} op;

#define FREE UINT32_MAX

typedef struct place {
    int device;
    uint64_t stream;
} place;

enum { MOST_DEVICES = 64, MOST_PLACES = 4096, MOST_PASSES = 100 };

static struct {
    op *op;
    size_t count, room;
    uint32_t blocks; /* numbers of blocks */
    place place[MOST_PLACES];
    uint32_t places;
    int devices;
    size_t pairs;
    uint64_t peak, left_out;
} the_log;

static int fail(const char *what, const char *why) {
    fprintf(stderr, "replay: %s: %s\n", what, why);
    exit(1);
    return 0;
}

static void *checked(void *p) {
    if (!p)
        fail("bookkeeping", "out of memory");
    return p;
}

static void put(uint32_t block, uint32_t where, uint64_t bytes) {
    if (the_log.count == the_log.room) {
        the_log.room = the_log.room * 2 + 4096;
        the_log.op = checked(realloc(the_log.op, the_log.room * sizeof *the_log.op));
    }
    the_log.op[the_log.count].block = block;
    the_log.op[the_log.count].place = where;
    the_log.op[the_log.count++].bytes = bytes;
}

/* ---- reading files --------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t size, room;
} text;

static void read_all(FILE *f, const char *path, text *t) {
    for (size_t got = 1; got; t->size += got) {
        if (t->size + 65536 + 1 > t->room)
            t->at = checked(realloc(t->at, t->room = t->room * 2 + 131072));
        got = fread(t->at + t->size, 1, 65536, f);
    }
    if (ferror(f))
        fail(path, "cannot be read");
    t->at[t->size] = 0;
}

static void unpack(const char *path, text *t) {
    int ends[2], status = 1;
    fflush(NULL);
    if (pipe(ends))
        fail(path, "no pipe");
    pid_t child = fork();
    if (child < 0)
        fail(path, "no process for xz");
    if (!child) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execlp("xz", "xz", "-dc", "--", path, (char *)NULL);
        fprintf(stderr, "replay: the program xz is not installed\n");
        _exit(1);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "rb");
    if (!f)
        fail(path, "no pipe");
    t->size = 0;
    read_all(f, path, t);
    fclose(f);
    if (waitpid(child, &status, 0) != child || status)
        fail(path, "xz cannot unpack it");
}

/* ---- traces ---------------------------------------------------------------------------------- */

typedef struct trace_head {
    char magic[8];
    uint64_t count, ids;
} trace_head;

typedef struct trace_op {
    uint32_t free, id;
    uint64_t bytes;
} trace_op;

static void read_trace(const text *t, const char *path) {
    trace_head head;
    trace_op o;
    if (t->size < sizeof head)
        fail(path, "the trace is cut off");
    memcpy(&head, t->at, sizeof head);
    if ((t->size - sizeof head) / sizeof o < head.count || head.ids > UINT32_MAX)
        fail(path, "the trace is cut off");
    if (head.ids > head.count) /* each block has a line that allocates it */
        fail(path, "the trace claims more blocks than it has lines");
    the_log.devices = 1;
    the_log.places = 1;
    the_log.blocks = (uint32_t)head.ids;
    for (uint64_t i = 0; i < head.count; i++) {
        memcpy(&o, t->at + sizeof head + i * sizeof o, sizeof o);
        if (o.id >= head.ids || o.free > 1)
            fail(path, "the trace is damaged");
        put(o.id, o.free ? FREE : 0, o.bytes);
    }
}

/* ---- histories ------------------------------------------------------------------------------- */

/* Blocks that live, by device and address: open addressing, never shrunk. */
typedef struct known {
    uint64_t address;
    uint32_t device, block;
    int used, live, freeing;
} known;

static known *table;
static size_t table_size, table_used;

static known *look_up(uint64_t address, uint32_t device) {
    if (2 * (table_used + 1) > table_size) {
        known *old = table;
        size_t old_size = table_size;
        table = checked(calloc(table_size = old_size ? 2 * old_size : 4096, sizeof *table));
        table_used = 0;
        for (size_t i = 0; i < old_size; i++)
            if (old[i].used)
                *look_up(old[i].address, old[i].device) = old[i];
        free(old);
    }
    size_t i =
        (size_t)((address >> 9 ^ device) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (table_size - 1);
    while (table[i].used && (table[i].address != address || table[i].device != device))
        i = (i + 1) & (table_size - 1);
    if (!table[i].used) {
        table[i].used = 1;
        table[i].address = address;
        table[i].device = device;
        table_used++;
    }
    return &table[i];
}

typedef struct entry {
    char action[24];
    uint64_t address, bytes, stream;
} entry;

static void take_entry(const entry *e, uint32_t device) {
    int alloc = !strcmp(e->action, "alloc"), requested = !strcmp(e->action, "free_requested");
    if (!alloc && !requested && strcmp(e->action, "free_completed"))
        return;
    known *k = look_up(e->address, device);
    if (requested) {
        k->freeing = 1;
        return;
    }
    /* an allocation at this address: its free has been completed, unseen */
    if (k->live && (!alloc || k->freeing)) {
        put(k->block, FREE, 0);
        k->live = 0;
    } else if (!alloc || k->live) {
        the_log.left_out++;
    }
    if (!alloc || k->live)
        return;
    uint32_t p = 0;
    while (p < the_log.places &&
           (the_log.place[p].device != (int)device || the_log.place[p].stream != e->stream))
        p++;
    if (p == MOST_PLACES)
        fail("the history", "has more than 4,096 streams");
    if (p == the_log.places) {
        the_log.place[p].device = (int)device;
        the_log.place[p].stream = e->stream;
        the_log.places++;
    }
    k->live = 1;
    k->freeing = 0;
    put(k->block = the_log.blocks++, p, e->bytes);
}

/* A reader for JSON that knows only what it looks for: device_traces, in it a list for each
   device, in each list entries. */
typedef struct json {
    const char *p;
    const char *path;
    int depth;
} json;

static void json_space(json *j) {
    j->p += strspn(j->p, " \t\r\n");
}

static int json_take(json *j, char c) {
    json_space(j);
    if (*j->p != c)
        return 0;
    j->p++;
    return 1;
}

static void json_need(json *j, char c) {
    if (!json_take(j, c))
        fail(j->path, "is not the JSON of a snapshot");
}

/* A string without its escapes resolved, cut to fit. */
static void json_string(json *j, char *out, size_t size) {
    size_t n = 0;
    json_need(j, '"');
    for (; *j->p && *j->p != '"'; j->p++) {
        if (*j->p == '\\' && j->p[1])
            j->p++;
        if (n + 1 < size)
            out[n++] = *j->p;
    }
    if (size)
        out[n] = 0;
    json_need(j, '"');
}

static void json_skip(json *j) {
    json_space(j);
    if (++j->depth > 200)
        fail(j->path, "is nested too deeply");
    if (*j->p == '"') {
        json_string(j, NULL, 0);
    } else if (*j->p == '{' || *j->p == '[') {
        int object = *j->p++ == '{';
        char end = object ? '}' : ']';
        while (!json_take(j, end)) {
            if (object) {
                json_string(j, NULL, 0);
                json_need(j, ':');
            }
            json_skip(j);
            if (!json_take(j, ',')) {
                json_need(j, end);
                break;
            }
        }
    } else {
        size_t n = strcspn(j->p, ",]} \t\r\n");
        if (!n)
            fail(j->path, "is not the JSON of a snapshot");
        j->p += n;
    }
    j->depth--;
}

static uint64_t json_number(json *j) {
    char *end;
    json_space(j);
    uint64_t n = strtoull(j->p, &end, 10);
    json_skip(j); /* also what is no number, or has a fraction */
    return n;
}

static void json_entry(json *j, uint32_t device) {
    entry e;
    char key[24];
    memset(&e, 0, sizeof e);
    json_need(j, '{');
    while (!json_take(j, '}')) {
        json_string(j, key, sizeof key);
        json_need(j, ':');
        json_space(j);
        if (!strcmp(key, "action") && *j->p == '"')
            json_string(j, e.action, sizeof e.action);
        else if (!strcmp(key, "addr"))
            e.address = json_number(j);
        else if (!strcmp(key, "size"))
            e.bytes = json_number(j);
        else if (!strcmp(key, "stream"))
            e.stream = json_number(j);
        else
            json_skip(j);
        if (!json_take(j, ',')) {
            json_need(j, '}');
            break;
        }
    }
    take_entry(&e, device);
}

static void read_history(const text *t, const char *path) {
    json j = { t->at, path, 0 };
    char key[24];
    json_need(&j, '{');
    while (!json_take(&j, '}')) {
        json_string(&j, key, sizeof key);
        json_need(&j, ':');
        if (strcmp(key, "device_traces"))
            json_skip(&j);
        else {
            json_need(&j, '[');
            for (uint32_t device = 0; !json_take(&j, ']'); device++) {
                if (device == MOST_DEVICES)
                    fail(path, "has more than 64 devices");
                the_log.devices = (int)device + 1;
                json_need(&j, '[');
                while (!json_take(&j, ']')) {
                    json_entry(&j, device);
                    if (!json_take(&j, ',')) {
                        json_need(&j, ']');
                        break;
                    }
                }
                if (!json_take(&j, ',')) {
                    json_need(&j, ']');
                    break;
                }
            }
        }
        if (!json_take(&j, ',')) {
            json_need(&j, '}');
            break;
        }
    }
}

/* ---- lines of ds_resource_create_log ---------------------------------------------------------------- */

static void read_lines(const text *t, const char *path) {
    const char *line = t->at;
    the_log.devices = 1;
    while ((line = strchr(line, '\n')) != NULL && *++line) {
        unsigned long long address, bytes, stream;
        char action[20];
        entry e;
        if (sscanf(line, "%*u,%19[^,],%llx,%llu,%llu", action, &address, &bytes, &stream) != 4)
            fail(path, "has a line that ds_resource_create_log did not write");
        memset(&e, 0, sizeof e);
        snprintf(e.action, sizeof e.action, "%s",
                 strcmp(action, "allocate") ? strcmp(action, "free") ? "" : "free_completed"
                                            : "alloc");
        e.address = address;
        e.bytes = bytes;
        e.stream = stream;
        take_entry(&e, 0);
    }
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Every operation makes sense; what is left at the end is freed there, so that the log can be
   replayed again. */
static void complete(const char *path) {
    uint64_t *bytes = checked(calloc((size_t)the_log.blocks + 1, sizeof *bytes)), now = 0;
    unsigned char *live = checked(calloc((size_t)the_log.blocks + 1, 1));
    size_t count = the_log.count;
    for (size_t i = 0; i < count; i++) {
        op *o = &the_log.op[i];
        int is_free = o->place == FREE;
        if (live[o->block] != is_free)
            fail(path, "allocates or frees a block twice");
        live[o->block] = !is_free;
        if (is_free) {
            now -= bytes[o->block];
            continue;
        }
        the_log.pairs++;
        if ((now += bytes[o->block] = o->bytes) > the_log.peak)
            the_log.peak = now;
    }
    for (uint32_t b = 0; b < the_log.blocks; b++)
        if (live[b])
            put(b, FREE, bytes[b]);
    free(bytes);
    free(live);
    if (!the_log.pairs)
        fail(path, "holds no allocation (was history recorded?)");
}

static void read_log(const char *path) {
    text t = { NULL, 0, 0 };
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    read_all(f, path, &t);
    fclose(f);
    if (t.size > 6 && !memcmp(t.at, "\3757zXZ", 6))
        unpack(path, &t);
    if (t.size >= 8 && !memcmp(t.at, "DSTRACE1", 8))
        read_trace(&t, path);
    else if (t.at[strspn(t.at, " \t\r\n")] == '{')
        read_history(&t, path);
    else if (!strncmp(t.at, "time_us,action,pointer,size,stream\n", 35))
        read_lines(&t, path);
    else
        fail(path,
             "is neither a trace, nor a snapshot as JSON, nor lines of ds_resource_create_log");
    free(t.at);
    free(table);
    complete(path);
}

/* ---- replaying ------------------------------------------------------------------------------- */

static ds_stream streams[MOST_PLACES];
static void **blocks;

static size_t reserved(void) {
    size_t sum = 0;
    for (int i = 0; i < the_log.devices; i++)
        sum += ds_mem_get_reserved(ds_cpu(i));
    return sum;
}

/* ns per pair; negative: no memory for operation *at. *out_reserved not NULL: the most that was
   reserved, and what was live then. */
static double pass(size_t *at, size_t *out_reserved, uint64_t *out_live) {
    struct timespec from, to;
    uint64_t live = 0, *bytes = out_reserved
                                    ? checked(calloc((size_t)the_log.blocks + 1, sizeof *bytes))
                                    : NULL;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (size_t i = 0; i < the_log.count; i++) {
        const op *o = &the_log.op[i];
        *at = i;
        ds_result r = o->place == FREE
                          ? ds_mem_free(blocks[o->block])
                          : ds_mem_alloc((size_t)o->bytes, streams[o->place], &blocks[o->block]);
        if (r < 0) {
            free(bytes);
            return -1;
        }
        if (o->place == FREE)
            blocks[o->block] = NULL;
        if (!bytes)
            continue;
        if (o->place == FREE) {
            live -= bytes[o->block];
            continue;
        }
        live += bytes[o->block] = o->bytes;
        size_t now = reserved();
        if (now > *out_reserved) {
            *out_reserved = now;
            *out_live = live;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    free(bytes);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           (double)the_log.pairs;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ds_result begin(const char *options, size_t device_bytes) {
    ds_cpu_desc cpu;
    ds_init_desc desc;
    ds_result r;
    memset(&cpu, 0, sizeof cpu);
    memset(&desc, 0, sizeof desc);
    memset(streams, 0, sizeof streams);
    cpu.devices = the_log.devices;
    cpu.memory_limit = device_bytes;
    desc.cpu = &cpu;
    if ((r = ds_init(&desc)) < 0 || (*options && (r = ds_mem_configure_text(options)) < 0))
        return r;
    for (uint32_t p = 0; p < the_log.places; p++) {
        ds_stream_desc s = ds_stream_desc_torch();
        s.device = ds_cpu(the_log.place[p].device);
        if ((r = ds_stream_create(&s, &streams[p])) < 0)
            return r;
    }
    return DS_OK;
}

/* One line of the table; 0 when devstream failed otherwise than for lack of memory. */
static int replay(const char *options, size_t device_bytes, int passes) {
    double ns[MOST_PASSES], t = 0;
    size_t most = 0, at = 0;
    uint64_t live = 0, calls = 0, retries = 0;
    if (begin(options, device_bytes) < 0) {
        fprintf(stderr, "replay: %s\n", ds_error_get_last());
        return 0;
    }
    for (int i = 0; i < passes && t >= 0; i++)
        t = ns[i] = pass(&at, i ? NULL : &most, &live);
    printf("%-44s ", *options ? options : "(default)");
    if (t < 0) {
        const char *why = ds_error_get_last(), *call = strstr(why, "ds_mem_alloc: ");
        if (call)
            why = call + strlen("ds_mem_alloc: ");
        printf("at operation %zu: %.*s\n", at, (int)strcspn(why, ";\n"), why);
    } else {
        size_t peak = 0;
        for (int i = 0; i < the_log.devices; i++) {
            ds_mem_stats s = { 0 };
            peak += ds_mem_get_max_reserved(ds_cpu(i));
            if (ds_mem_get_stats(ds_cpu(i), &s) < 0)
                continue;
            calls += (uint64_t)s.num_device_alloc;
            retries += (uint64_t)s.num_alloc_retries;
        }
        /* peaks of devices are not at one time */
        if (the_log.devices > 1 || peak < most)
            peak = most;
        qsort(ns + 1, (size_t)passes - 1, sizeof *ns, by_value);
        printf("%10.1f %7.3f %5.1f%% %7llu %7llu %8.1f\n", (double)peak / (1 << 20),
               (double)peak / (double)the_log.peak, 100 * (1 - (double)live / (double)most),
               (unsigned long long)calls, (unsigned long long)retries, ns[1 + (passes - 1) / 2]);
    }
    for (uint32_t b = 0; b < the_log.blocks; b++) /* after a pass that ended early */
        if (blocks[b] && ds_mem_free(blocks[b]) < 0) {
            fprintf(stderr, "replay: %s\n", ds_error_get_last());
            return 0;
        }
    memset(blocks, 0, the_log.blocks * sizeof *blocks);
    for (uint32_t p = 0; p < the_log.places; p++)
        if (ds_stream_destroy(streams[p]) < 0) {
            fprintf(stderr, "replay: %s\n", ds_error_get_last());
            return 0;
        }
    if (ds_shutdown() >= 0)
        return 1;
    fprintf(stderr, "replay: %s\n", ds_error_get_last());
    return 0;
}

static void usage(FILE *f) {
    fputs("usage: replay [--device GIB] [--passes N] LOG [CONFIGURATION...]\n"
          "  LOG            a trace (also .xz), or a snapshot with history as JSON\n"
          "  CONFIGURATION  as in DEVSTREAM_ALLOC_CONF; none: the default, plain segments, "
          "preset:torch and preset:cupy\n"
          "  --device GIB   memory of a device; default: 256\n"
          "  --passes N     2 to 100, default 4\n",
          f);
}

int main(int argc, char **argv) {
    static const char *const usual[] = { "", "expandable_segments:False", "preset:torch",
                                         "preset:cupy" };
    int i = 1, passes = 4, fine = 1;
    double gib = 256;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        if (!strcmp(argv[i], "--help")) {
            usage(stdout);
            return 0;
        }
        if (i + 1 < argc && !strcmp(argv[i], "--device"))
            gib = strtod(argv[++i], NULL);
        else if (i + 1 < argc && !strcmp(argv[i], "--passes"))
            passes = atoi(argv[++i]);
        else {
            usage(stderr);
            return 1;
        }
    }
    if (i >= argc || passes < 2 || passes > MOST_PASSES || !(gib > 0 && gib < 100000)) {
        usage(stderr);
        return 1;
    }
    unsetenv("DEVSTREAM_ALLOC_CONF"); /* the configurations are those of the command line */
    read_log(argv[i++]);
    blocks = checked(calloc((size_t)the_log.blocks + 1, sizeof *blocks));
    printf("%zu allocations on %u streams of %d devices, at most %.1f MiB live", the_log.pairs,
           the_log.places, the_log.devices, (double)the_log.peak / (1 << 20));
    if (the_log.left_out)
        printf("; %llu entries left out", (unsigned long long)the_log.left_out);
    printf("\n%-44s %10s %7s %6s %7s %7s %8s\n", "configuration", "reserved", "/live", "idle",
           "driver", "retries", "ns/pair");
    for (int k = 0; fine && (i + k < argc || (i == argc && k < 4)); k++)
        fine = replay(i < argc ? argv[i + k] : usual[k], (size_t)(gib * (double)(1 << 30)), passes);
    free(blocks);
    free(the_log.op);
    return !fine;
}
