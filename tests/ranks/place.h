/* A rank of a test of process groups: its group, its streams, and checks that all ranks can use.

   The same test functions run with the engine "local", where each rank is a thread of this process
   (tests/unit/test_ranks.c), and with the engine "mpi" (collectives.c). A failed check is counted
   and printed; it does not end the function, since the other ranks would wait for this one. */
#ifndef RANKS_PLACE_H
#define RANKS_PLACE_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, OWN = 3, DEVICES = RANKS * OWN };

#define LIMIT_NS 8000000000u

/* A rank and its devices. Rank r has the devices begin[r] to begin[r + 1] of the group. */
typedef struct place {
    ds_ranks ranks; /* the group of the test */
    ds_ranks side;  /* of the same ranks: hosts meet in it */
    const char *engine;
    int rank;
    int size;
    int type;       /* of all devices */
    size_t devices; /* of the group */
    size_t begin[RANKS + 1];
    size_t first;
    size_t own;
    ds_device device[OWN];
    ds_stream stream[OWN];
    ds_stream side_stream[OWN];
    void (*test_fn)(struct place *p);
    char id[DS_RANKS_ID_SIZE]; /* "": MPI */
    int layout;
} place;

static _Atomic int failures; /* of the running test */
static const char *running = "no test";
static uint64_t test_seed = 1;

#define CHECK(condition, ...)                                                              \
    do {                                                                                   \
        if (!(condition) && atomic_fetch_add(&failures, 1) < 5) {                          \
            fprintf(stderr, "%s, rank %d of %d, layout %d, line %d: %s", running, p->rank, \
                    p->size, p->layout, __LINE__, #condition);                             \
            fprintf(stderr, ": " __VA_ARGS__);                                             \
            fprintf(stderr, "\n");                                                         \
        }                                                                                  \
    } while (0)

/* Checks that a call succeeds, and gives its result. */
#define OK(call)                                                                     \
    do {                                                                             \
        ds_result ok_ = (call);                                                      \
        CHECK(ok_ == DS_OK, "%s: %s", ds_result_get_name(ok_), ds_error_get_last()); \
    } while (0)

/* Checks that a call is refused with the code, and that the sentence has the words. */
#define REFUSED(call, code, words)                                                   \
    do {                                                                             \
        ds_result is_ = (call);                                                      \
        CHECK(is_ == (code), "%s: %s", ds_result_get_name(is_),                      \
              is_ < 0 ? ds_error_get_last() : "");                                   \
        CHECK(is_ >= 0 || strstr(ds_error_get_last(), words), "the sentence \"%s\"", \
              ds_error_get_last());                                                  \
    } while (0)

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* Returns the next number below `limit`: the same on all ranks if they draw alike. */
static size_t draw(uint64_t *state, size_t limit) {
    *state += 0x9e3779b97f4a7c15u;
    return (size_t)(mix(*state) >> 8) % limit;
}

static uint64_t draw_begin(const place *p, uint64_t salt) {
    return mix(test_seed * 1000003 + salt) + p->devices * 977 + (uint64_t)p->size * 31;
}

static void sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int is_local(const place *p) {
    return strcmp(p->engine, "local") == 0;
}

static int is_mpi(const place *p) {
    return strcmp(p->engine, "mpi") == 0;
}

static int is_cpu(const place *p) {
    return p->type == DS_DEVICE_CPU;
}

/* Number of devices of a rank. Layouts 1 and 2: that number; 3: the ranks differ. */
static size_t own_of(int layout, int rank) {
    return layout < 3 ? (size_t)layout : 1 + (size_t)(rank + 1) % 3;
}

static int rank_of(const place *p, size_t device) {
    int rank = 0;
    while (device >= p->begin[rank + 1])
        rank++;
    return rank;
}

static int is_mine(const place *p, size_t device) {
    return device >= p->first && device < p->first + p->own;
}

/* Returns this rank in a group of `count` ranks of p, in this order, which the caller creates. */
static place place_among(const place *p, const int *ranks, int count) {
    place q = *p;
    q.size = count;
    q.devices = 0;
    for (int i = 0; i < count; i++) {
        if (ranks[i] == p->rank)
            q.rank = i;
        q.begin[i] = q.devices;
        q.devices += p->begin[ranks[i] + 1] - p->begin[ranks[i]];
    }
    q.begin[count] = q.devices;
    q.first = q.begin[q.rank];
    return q;
}

/* Options of a collective on the streams of the test. */
static ds_comm_options options_of(const place *p, size_t root) {
    ds_comm_options o;
    memset(&o, 0, sizeof o);
    o.ranks = p->ranks;
    o.streams = p->stream;
    o.stream_count = p->own;
    o.root = root;
    return o;
}

/* Waits until all hosts have come here. */
static void meet(place *p) {
    ds_comm_options o = options_of(p, 0);
    o.ranks = p->side;
    o.streams = p->side_stream;
    OK(ds_ranks_barrier(&o));
    OK(ds_stream_synchronize(p->side_stream[0]));
}

static void synchronize(place *p) {
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_synchronize(p->stream[i]));
}

/* Options of a group with the devices of this rank. */
static ds_ranks_desc desc_of(const place *p) {
    ds_ranks_desc d;
    const char *id = *p->id ? p->id : NULL;
    memset(&d, 0, sizeof d);
    d.engine = p->engine;
    d.id = id;
    d.rank = id ? p->rank : 0;
    d.size = id ? p->size : 0;
    d.devices = p->device;
    d.device_count = p->own;
    d.timeout_ns = LIMIT_NS;
    d.record = "";
    return d;
}

/* Creates the groups and streams of a rank, whose engine, rank, size, type and layout are set. */
static int place_begin(place *p) {
    int count = 1;
    int before = atomic_load(&failures);
    ds_stream_desc stream;
    memset(&stream, 0, sizeof stream);
    p->own = own_of(p->layout, p->rank);
    for (int r = 0; r < p->size; r++)
        p->begin[r + 1] = p->begin[r] + own_of(p->layout, r);
    p->devices = p->begin[p->size];
    p->first = p->begin[p->rank];
    OK(ds_device_get_count((ds_device_type)p->type, &count));
    for (size_t i = 0; i < p->own; i++) {
        p->device[i].type = p->type;
        p->device[i].index = (int)(p->first + i) % count;
        stream.device = p->device[i];
        OK(ds_stream_create(&stream, &p->stream[i]));
        OK(ds_stream_create(&stream, &p->side_stream[i]));
    }
    ds_ranks_desc d = desc_of(p);
    OK(ds_ranks_init(&d, &p->ranks));
    OK(ds_ranks_split(p->ranks, 0, p->rank, &p->side));
    return atomic_load(&failures) == before;
}

static void place_end(place *p) {
    OK(ds_ranks_finalize(p->side));
    OK(ds_ranks_finalize(p->ranks));
    for (size_t i = 0; i < p->own; i++) {
        OK(ds_stream_destroy(p->stream[i]));
        OK(ds_stream_destroy(p->side_stream[i]));
    }
}

/* Runs a test on this rank. */
static void place_run(place *p) {
    if (place_begin(p))
        p->test_fn(p);
    place_end(p);
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* Keeps a stream busy until it is opened: a wait for a word, or a host function. */
typedef struct gate {
    uint32_t *word;
} gate;

static void gate_wait(void *user) {
    const gate *g = user;
    while (!__atomic_load_n(g->word, __ATOMIC_ACQUIRE))
        sleep_ms(1);
}

static void gate_close(place *p, gate *g, ds_stream stream, int by_host_function) {
    void *word = NULL;
    OK(ds_mem_pinned_alloc(sizeof(uint32_t), &word));
    g->word = word;
    *g->word = 0;
    if (by_host_function)
        OK(ds_stream_launch_host_func(stream, gate_wait, g, NULL));
    else
        OK(ds_stream_wait_value32(stream, g->word, 1, DS_VALUE_WAIT_EQ));
}

static void gate_open(gate *g) {
    __atomic_store_n(g->word, 1, __ATOMIC_RELEASE);
}

static void gate_free(place *p, gate *g) {
    OK(ds_mem_pinned_free(g->word));
}

/* ---- time limit of a test -------------------------------------------------------------------- */

static void late(int number) {
    static const char text[] = "[  FAILED  ] beyond its time limit: ";
    (void)number;
    (void)!write(1, text, sizeof text - 1);
    (void)!write(1, running, strlen(running));
    (void)!write(1, "\n", 1);
    _exit(1);
}

/* Gives the next test DS_TEST_TIMEOUT seconds. */
static void limit_time(void) {
    const char *text = getenv("DS_TEST_TIMEOUT");
    unsigned seconds = text ? (unsigned)atoi(text) : 0;
    signal(SIGALRM, late);
    alarm(seconds ? seconds : 120);
}

#endif
