/* A group of one rank with several devices, for failures at each step of a call: no other rank is
   waited for, and all calls are on the thread of the test.

   A test arms a failure: the nth allocation of this thread, or what the engine's stand-in offers.
   The call then gives its result, the group works or has failed for good, and nothing is left. */
#ifndef RANKS_SOLO_H
#define RANKS_SOLO_H

#include "devstream_ranks.h"
#include "unit.h"
#include "expect.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 130, FEW = 2 };

enum {
    BROADCAST,
    SCATTER,
    GATHER,
    REDUCE,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    EXCHANGE, /* each device sends to the next one */
    BARRIER
};

enum { DENSE, STRIDED, PINNED };

/* A collective of floats: each device has a tensor of `part` elements for each device, or one such
   part. */
typedef struct verb {
    int kind;
    int in; /* DENSE ... */
    int out;
    int dim;
    int64_t part;
    unsigned flags;
    int uneven; /* 1: the first device has an element more, the last one an element less */
    int most;   /* steps that fail; 0: all */
} verb;

/* The group. */
typedef struct setup {
    const char *engine;
    int type;   /* of its devices */
    size_t own; /* number of devices */
    int same;   /* 1: they are all device 0 */
    unsigned flags;
    const char *record;
    uint64_t limit_ns;
    int warm; /* 1: the group has had an operation before the call that fails */
} setup;

typedef struct side {
    ds_tensor t;
    int64_t shape[2];
    int64_t strides[2];
    size_t bytes; /* of its memory */
    size_t step;  /* elements between two of them */
} side;

typedef struct solo {
    int rank; /* for EXPECT */
    ds_ranks group;
    ds_device device[MOST];
    ds_stream stream[MOST];
    side in[MOST];
    side out[MOST];
    int64_t sizes[MOST];
} solo;

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocations of the library, in a list. */
typedef struct block {
    _Alignas(16) struct block *next;
    struct block *before;
} block;

static block blocks = { &blocks, &blocks };
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local long scarce; /* the nth allocation of the thread fails; 0: none */
static _Thread_local int refused; /* 1: it has */

static void *scarce_alloc(size_t size, void *unused) {
    (void)unused;
    if (scarce > 0 && --scarce == 0) {
        refused = 1;
        return NULL;
    }
    block *b = malloc(sizeof *b + size);
    if (!b)
        return NULL;
    memset(b + 1, 0xa5, size);
    pthread_mutex_lock(&blocks_lock);
    b->next = blocks.next;
    b->before = &blocks;
    b->next->before = blocks.next = b;
    pthread_mutex_unlock(&blocks_lock);
    return b + 1;
}

static void scarce_free(void *ptr, void *unused) {
    block *b = (block *)ptr - 1;
    (void)unused;
    pthread_mutex_lock(&blocks_lock);
    b->next->before = b->before;
    b->before->next = b->next;
    pthread_mutex_unlock(&blocks_lock);
    free(b);
}

/* Frees the blocks that are left after ds_shutdown, and returns their number. */
static int blocks_left(void) {
    int count = 0;
    while (blocks.next != &blocks) {
        scarce_free(blocks.next + 1, NULL);
        count++;
    }
    return count;
}

static void (*begin_fn)(void); /* called before devstream is initialized */

static void library_begin(void) {
    if (begin_fn)
        begin_fn();
    ds_init_desc desc = { .allocator = { scarce_alloc, scarce_free, NULL }, .layers = "fault" };
    ok(ds_init(&desc));
}

/* ---- the group ------------------------------------------------------------------------------- */

static ds_result solo_join(solo *me, const setup *how, const char *id) {
    ds_ranks_desc desc = { .engine = how->engine,
                           .size = id ? 1 : 0,
                           .id = id,
                           .devices = me->device,
                           .device_count = how->own,
                           .flags = how->flags,
                           .timeout_ns = how->limit_ns ? how->limit_ns : 20000000000u,
                           .record = how->record ? how->record : "",
                           .label = "solo" };
    return ds_ranks_init(&desc, &me->group);
}

/* Writes the id of the next group, or gives NULL: the engine has none. */
static const char *solo_id(const setup *how, char id[DS_RANKS_ID_SIZE]) {
    if (strcmp(how->engine, "mpi") == 0)
        return NULL;
    ok(ds_ranks_id_create(how->engine, id, DS_RANKS_ID_SIZE));
    return id;
}

static void solo_streams(solo *me, const setup *how) {
    memset(me, 0, sizeof *me);
    for (size_t i = 0; i < how->own; i++) {
        me->device[i] = (ds_device){ how->type, how->same ? 0 : (int)i };
        ds_stream_desc desc = { .device = me->device[i] };
        if (how->same && i)
            me->stream[i] = me->stream[0];
        else
            ok(ds_stream_create(&desc, &me->stream[i]));
    }
}

static void solo_begin(solo *me, const setup *how) {
    char id[DS_RANKS_ID_SIZE];
    library_begin();
    solo_streams(me, how);
    ok(solo_join(me, how, solo_id(how, id)));
}

static void streams_end(solo *me, const setup *how) {
    for (size_t i = 0; i < (how->same ? 1 : how->own); i++)
        DS_IGNORE(ds_stream_destroy(me->stream[i])); /* the failure of its work */
}

/* ---- tensors --------------------------------------------------------------------------------- */

static float value(size_t device, int64_t e) {
    return (float)((device * 3 + (size_t)e) % 7 + 1);
}

static int is_part(const verb *v, int output) {
    return output ? v->kind == SCATTER || v->kind == REDUCE_SCATTER
                  : v->kind == GATHER || v->kind == ALL_GATHER;
}

/* Returns the elements before part k. */
static int64_t part_at(const verb *v, size_t k) {
    return (int64_t)k * v->part + (v->uneven && k ? 1 : 0);
}

static int64_t part_size(const verb *v, size_t own, size_t k) {
    return v->part + (v->uneven && k == 0) - (v->uneven && k == own - 1);
}

static void side_make(solo *me, const setup *how, const verb *v, size_t k, int output) {
    side *s = output ? &me->out[k] : &me->in[k];
    int form = output ? v->out : v->in;
    int64_t all = (int64_t)how->own * v->part;
    ds_device on = me->device[k];
    void *at = NULL;
    int64_t count = is_part(v, output) ? part_size(v, how->own, k) : all;
    s->step = form == STRIDED ? 2 : 1;
    s->bytes = (size_t)(count + 1) * s->step * sizeof(float);
    if (form == PINNED) {
        on = (ds_device){ DS_DEVICE_HOST, 0 };
        ok(ds_mem_pinned_alloc(s->bytes, &at));
    } else {
        ok(ds_mem_alloc(s->bytes, me->stream[k], &at));
    }
    s->shape[0] = s->shape[v->dim] = v->dim ? 1 : count;
    s->shape[v->dim] = count;
    s->strides[0] = count * (int64_t)s->step;
    s->strides[v->dim] = (int64_t)s->step;
    s->t = ds_tensor_of(at, on, ds_float32(), v->dim + 1, s->shape);
    s->t.strides = s->strides;
}

/* Writes elements to the memory of a tensor. */
static void side_write(solo *me, size_t k, side *s, const float *data) {
    float *spread = calloc(1, s->bytes);
    if (!spread)
        abort();
    for (size_t e = 0; s->step > 1 && e < s->bytes / sizeof *spread / s->step; e++)
        spread[e * s->step] = data[e];
    ok(ds_copy(s->t.data, s->step > 1 ? spread : data, s->bytes, me->stream[k]));
    ok(ds_stream_synchronize(me->stream[k]));
    free(spread);
}

/* Creates the tensors, and writes the inputs. */
static void solo_tensors(solo *me, const setup *how, const verb *v) {
    enum { PERIOD = 7 };

    static float *pattern; /* value(0, e); that of other devices begins elsewhere */
    static size_t size;
    size_t all = how->own * (size_t)v->part + PERIOD + 1;
    if (size < all) {
        free(pattern);
        pattern = malloc(all * sizeof *pattern);
        if (!pattern)
            abort();
        for (size = 0; size < all; size++)
            pattern[size] = value(0, (int64_t)size);
    }
    for (size_t k = 0; k < how->own; k++) {
        side_make(me, how, v, k, 0);
        side_make(me, how, v, k, 1);
        side_write(me, k, &me->in[k], pattern + k * 3 % PERIOD);
        me->sizes[k] = part_size(v, how->own, k);
    }
}

static void solo_free(solo *me, const setup *how, const verb *v) {
    for (size_t k = 0; k < how->own; k++) {
        DS_IGNORE(v->in == PINNED ? ds_mem_pinned_free(me->in[k].t.data)
                                  : ds_mem_free(me->in[k].t.data));
        DS_IGNORE(v->out == PINNED ? ds_mem_pinned_free(me->out[k].t.data)
                                   : ds_mem_free(me->out[k].t.data));
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static ds_result exchange(solo *me, const setup *how, ds_comm_options *o) {
    static ds_ranks_transfer list[2 * MOST];
    static ds_stream streams[2 * MOST];
    for (size_t k = 0; k < how->own; k++) {
        list[2 * k] = (ds_ranks_transfer){ &me->in[k].t, DS_RANKS_SEND, k, (k + 1) % how->own };
        list[2 * k + 1] = (ds_ranks_transfer){ &me->out[k].t, DS_RANKS_RECEIVE, k,
                                               (k + how->own - 1) % how->own };
        streams[2 * k] = streams[2 * k + 1] = me->stream[k];
    }
    o->streams = streams;
    o->stream_count = 2 * how->own;
    return ds_ranks_exchange(list, 2 * how->own, o);
}

/* The last device is the root. */
static ds_result solo_call(solo *me, const setup *how, const verb *v) {
    static const ds_tensor *in[MOST];
    static const ds_tensor *out[MOST];
    size_t n = how->own;
    ds_ranks_options more = { .sizes = v->uneven ? me->sizes : NULL };
    ds_comm_options o = { .streams = me->stream,
                          .stream_count = n,
                          .ranks = me->group,
                          .root = n - 1,
                          .flags = v->flags,
                          .ranks_options = &more };
    for (size_t k = 0; k < n; k++) {
        in[k] = &me->in[k].t;
        out[k] = &me->out[k].t;
    }
    switch (v->kind) {
    case BROADCAST:
        return ds_comm_broadcast_into(in[n - 1], out, n, &o);
    case SCATTER:
        return ds_comm_scatter_into(in[n - 1], out, n, v->dim, &o);
    case GATHER:
        return ds_comm_gather_into(in, n, v->dim, out[n - 1], &o);
    case REDUCE:
        return ds_comm_reduce_into(in, n, DS_REDUCE_SUM, out[n - 1], &o);
    case ALL_REDUCE:
        return ds_comm_all_reduce(in, out, n, DS_REDUCE_SUM, &o);
    case ALL_GATHER:
        return ds_comm_all_gather(in, out, n, &o);
    case REDUCE_SCATTER:
        return ds_comm_reduce_scatter(in, out, n, DS_REDUCE_SUM, &o);
    case ALL_TO_ALL:
        return ds_comm_all_to_all(in, out, n, &o);
    case EXCHANGE:
        return exchange(me, how, &o);
    default:
        return ds_ranks_barrier(&o);
    }
}

/* Returns element e of the output of device k. */
static float expected(const setup *how, const verb *v, size_t k, int64_t e) {
    size_t part = 0;
    float sum = 0;
    int64_t first = v->kind == REDUCE_SCATTER || v->kind == SCATTER ? part_at(v, k) : 0;
    while (part + 1 < how->own && part_at(v, part + 1) <= e)
        part++;
    switch (v->kind) {
    case BROADCAST:
    case SCATTER:
        return value(how->own - 1, first + e);
    case GATHER:
    case ALL_GATHER:
        return value(part, e - part_at(v, part));
    case ALL_TO_ALL:
        return value(part, part_at(v, k) + e - part_at(v, part));
    case EXCHANGE:
        return value((k + how->own - 1) % how->own, e);
    default:
        for (size_t d = 0; d < how->own; d++)
            sum += value(d, first + e);
        return sum;
    }
}

static int has_result(const setup *how, const verb *v, size_t k) {
    return v->kind == GATHER || v->kind == REDUCE ? k == how->own - 1 : v->kind != BARRIER;
}

/* Waits for the call, and checks its results; of a large tensor, some elements. */
static void solo_check(solo *me, const setup *how, const verb *v) {
    for (size_t k = 0; k < how->own; k++) {
        side *s = &me->out[k];
        int64_t count = s->shape[v->dim];
        int64_t step = count < 100000 ? 1 : 4099;
        int wrong = 0;
        float *got = malloc(s->bytes);
        if (!got)
            abort();
        OK(ds_copy(got, s->t.data, s->bytes, me->stream[k]));
        OK(ds_stream_synchronize(me->stream[k]));
        for (int64_t e = count - 1; has_result(how, v, k) && e >= 0; e -= step)
            wrong += got[(size_t)e * s->step] != expected(how, v, k, e);
        if (wrong)
            fprintf(stderr, "verb %d, device %zu: %d elements are wrong\n", v->kind, k, wrong);
        atomic_fetch_add(&failures, wrong != 0);
        free(got);
    }
}

static ds_result solo_wait(solo *me, const setup *how) {
    ds_result r = DS_OK;
    for (size_t k = 0; k < how->own; k++) {
        ds_result one = ds_stream_synchronize(me->stream[k]);
        r = r < 0 ? r : one;
    }
    return r;
}

/* Arms a failure; nth 0: none. disarm_fn returns 1 if it has come. */
typedef struct fault {
    void (*arm_fn)(long nth);
    int (*disarm_fn)(void);
    ds_result code;
    const char *words; /* of the sentence */
    int leaks;         /* 1: memory of abandoned operations is never freed */
} fault;

static void scarce_arm(long nth) {
    scarce = nth;
    refused = 0;
}

static int scarce_disarm(void) {
    scarce = 0;
    return refused;
}

static const fault no_memory = { scarce_arm, scarce_disarm, DS_ERR_OUT_OF_MEMORY, "memory", 0 };

/* Entries of the driver, of all threads. */
static void driver_arm(long nth) {
    char rule[32];
    snprintf(rule, sizeof rule, "*:%ld", nth);
    ok(ds__fault_parse(rule));
}

static int driver_disarm(void) {
    int hit = (int64_t)atomic_load(&ds__fault.left) <= 0;
    ok(ds__fault_parse(NULL));
    return hit;
}

static const fault driver_fails = { driver_arm, driver_disarm, DS_ERR_DRIVER, "injected fault", 0 };

static void solo_end(solo *me, const setup *how, const fault *f) {
    OK(ds_ranks_finalize(me->group));
    streams_end(me, how);
    DS_IGNORE(ds_shutdown()); /* the failure of a stream */
    int left = blocks_left();
    if (left && !f->leaks) {
        fprintf(stderr, "%d allocations are left\n", left);
        atomic_fetch_add(&failures, 1);
    }
}

/* Runs a call in which the nth step fails. Returns 0 if it has fewer steps. */
static int solo_attempt(const setup *how, const verb *v, const fault *f, long nth) {
    static solo alone;
    solo *me = &alone;
    solo_begin(me, how);
    solo_tensors(me, how, v);
    if (how->warm) {
        OK(solo_call(me, how, &(verb){ .kind = BARRIER }));
        OK(solo_wait(me, how));
    }

    f->arm_fn(nth);
    ds_result r = solo_call(me, how, v);
    int hit = f->disarm_fn();

    if (r < 0)
        EXPECT(r, f->code, f->words);
    ds_result waited = solo_wait(me, how);
    ds_result status = ds_ranks_get_status(me->group);
    if (status == DS_OK && r < 0) /* nothing was enqueued */
        OK(solo_call(me, how, v));
    if (status == DS_OK)
        solo_check(me, how, v);
    else
        EXPECT(status, f->code, f->words);
    if (status < 0 && r == DS_OK && waited == DS_OK)
        EXPECT(DS_ERR_FAILED, DS_OK, "the stream has not failed");
    if (!hit)
        OK(r);
    solo_free(me, how, v);
    solo_end(me, how, f);
    return hit;
}

/* Runs each call until none of its steps is left to fail. */
__attribute__((unused)) static void solo_each(const setup *how, const verb *verbs, size_t count,
                                              const fault *f) {
    for (size_t i = 0; i < count; i++) {
        long nth = 1 + harness_first();
        atomic_store(&failures, 0);
        alarm(120);
        while (solo_attempt(how, &verbs[i], f, nth) && !atomic_load(&failures) &&
               (!verbs[i].most || nth < verbs[i].most))
            nth += harness_every();
        alarm(0);
        if (atomic_load(&failures))
            fail_msg("%s, %zu devices, verb %zu, step %ld", how->engine, how->own, i, nth);
        if (getenv("SOLO_SHOW"))
            fprintf(stderr, "%s %d %zu verb %zu: %ld\n", how->engine, how->type, how->own, i, nth);
    }
}

/* Returns 1 if the group may grow. No rank joins. */
static int solo_grows(const setup *how) {
    return strcmp(how->engine, "mpi") != 0;
}

/* Creates groups in the ways that the engine has. Returns the first failure. */
static ds_result solo_create(solo *me, const setup *how, const char *id, ds_ranks made[3]) {
    char grow_id[DS_RANKS_ID_SIZE];
    ds_result r = solo_join(me, how, id);
    if (r == DS_OK)
        r = ds_ranks_split(me->group, 3, 0, &made[0]);
    if (r == DS_OK)
        r = ds_ranks_shrink(me->group, NULL, 0, &made[1]);
    if (r == DS_OK && solo_grows(how))
        r = ds_ranks_grow_id(me->group, grow_id, sizeof grow_id);
    if (r == DS_OK && solo_grows(how))
        r = ds_ranks_grow(me->group, 2, &made[2]);
    return r;
}

/* Creates groups while the nth step fails. Returns 0 if there are fewer steps. */
static int solo_attempt_creation(const setup *how, const fault *f, long nth) {
    static solo alone;
    solo *me = &alone;
    char id[DS_RANKS_ID_SIZE];
    ds_ranks made[3] = { { 0 } };
    library_begin();
    solo_streams(me, how);
    const char *text = solo_id(how, id);

    f->arm_fn(nth);
    ds_result r = solo_create(me, how, text, made);
    int hit = f->disarm_fn();

    if (r < 0 && r != DS_ERR_TIMEOUT)
        EXPECT(r, f->code, f->words);
    if (!hit)
        EXPECT(r, solo_grows(how) ? DS_ERR_TIMEOUT : DS_OK, "");
    setup later = *how;
    later.limit_ns = 0;
    if (!me->group.id)
        OK(solo_join(me, &later, solo_id(how, id)));
    for (int i = 0; i < 3; i++)
        OK(ds_ranks_finalize(made[i]));
    solo_end(me, how, f);
    return hit;
}

__attribute__((unused)) static void solo_each_creation(const setup *how, const fault *f) {
    long nth = 1 + harness_first();
    atomic_store(&failures, 0);
    alarm(120);
    while (solo_attempt_creation(how, f, nth) && !atomic_load(&failures))
        nth += harness_every();
    alarm(0);
    if (atomic_load(&failures))
        fail_msg("%s, %zu devices, creation, step %ld", how->engine, how->own, nth);
    if (getenv("SOLO_SHOW"))
        fprintf(stderr, "%s %d %zu creation: %ld\n", how->engine, how->type, how->own, nth);
}

static const verb verbs[] = {
    { .kind = BROADCAST, .part = 3 },
    { .kind = BROADCAST, .part = 3, .in = STRIDED, .out = STRIDED },
    { .kind = SCATTER, .part = 3 },
    { .kind = SCATTER, .part = 3, .in = STRIDED, .out = STRIDED, .uneven = 1 },
    { .kind = SCATTER, .part = 3, .dim = 1, .uneven = 1 },
    { .kind = GATHER, .part = 3 },
    { .kind = GATHER, .part = 3, .in = STRIDED, .out = STRIDED, .dim = 1 },
    { .kind = ALL_GATHER, .part = 3 },
    { .kind = ALL_GATHER, .part = 3, .in = STRIDED, .out = STRIDED, .uneven = 1 },
    { .kind = ALL_TO_ALL, .part = 3 },
    { .kind = ALL_TO_ALL, .part = 3, .in = STRIDED, .out = STRIDED },
    { .kind = EXCHANGE, .part = 3 },
    { .kind = EXCHANGE, .part = 3, .in = STRIDED, .out = STRIDED },
    { .kind = BARRIER, .part = 1 },
    { .kind = REDUCE, .part = 3 },
    { .kind = REDUCE, .part = 3, .in = STRIDED, .out = STRIDED, .flags = DS_COMM_ANY_ORDER },
    { .kind = ALL_REDUCE, .part = 3 },
    { .kind = ALL_REDUCE, .part = 3, .in = PINNED, .out = PINNED },
    { .kind = ALL_REDUCE, .part = 3, .in = STRIDED, .out = STRIDED, .flags = DS_COMM_ANY_ORDER },
    { .kind = ALL_REDUCE, .part = 5001 },
    { .kind = ALL_REDUCE, .part = 5001, .in = STRIDED, .out = STRIDED },
    { .kind = REDUCE, .part = 5001, .in = PINNED, .out = PINNED },
    { .kind = REDUCE_SCATTER, .part = 3 },
    { .kind = REDUCE_SCATTER, .part = 3, .in = STRIDED, .out = STRIDED, .uneven = 1 },
    { .kind = REDUCE_SCATTER, .part = 3, .flags = DS_COMM_ANY_ORDER, .uneven = 1 },
    { .kind = REDUCE_SCATTER,
      .part = 3,
      .in = STRIDED,
      .out = STRIDED,
      .flags = DS_COMM_ANY_ORDER },
};

__attribute__((unused)) static const verb many_verbs[] = {
    { .kind = BROADCAST, .part = 1 },  { .kind = SCATTER, .part = 1 },
    { .kind = GATHER, .part = 1 },     { .kind = ALL_GATHER, .part = 1 },
    { .kind = ALL_TO_ALL, .part = 1 }, { .kind = EXCHANGE, .part = 1 },
    { .kind = BARRIER, .part = 1 },    { .kind = ALL_REDUCE, .part = 1 },
    { .kind = REDUCE, .part = 100 },   { .kind = REDUCE_SCATTER, .part = 1 },
};

/* For GPUs that the engine does not reach. The stand-in needs a second for a reduction of two
   tensors. */
static const verb large_verbs[] = {
    { .kind = BROADCAST, .part = 2 << 20 },
    { .kind = BROADCAST, .part = (2 << 20) + 1, .in = PINNED },
    { .kind = ALL_REDUCE, .part = 2 << 20, .flags = DS_COMM_ANY_ORDER },
    { .kind = REDUCE, .part = (2 << 20) + 1, .out = PINNED, .flags = DS_COMM_ANY_ORDER },
};

__attribute__((unused)) static const verb slow_verb = {
    .kind = ALL_REDUCE, .part = 1 << 20, .in = STRIDED, .flags = DS_COMM_ANY_ORDER, .most = 6
};

enum {
    VERBS = sizeof verbs / sizeof *verbs,
    MANY_VERBS = sizeof many_verbs / sizeof *many_verbs,
    LARGE_VERBS = sizeof large_verbs / sizeof *large_verbs
};

/* devstream may be initialized. */
static int has_gpus_now(void) {
    int count = 0;
    return ds_device_get_count(DS_DEVICE_CUDA, &count) == DS_OK && count > 1;
}

static int has_gpus(void) {
    int has = has_gpus_now();
    DS_IGNORE(ds_shutdown());
    return has;
}

#endif
