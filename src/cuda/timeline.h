/* cuda/timeline.h - timelines: numbers that other libraries pass.

   Implements the entries `timeline_create` to `library_end`, and enqueues work of other libraries
   (ds__cuda_submit_remote): a host function that begins the work, and a wait for a word of pinned
   memory that holds the number. The host function returns as soon as the work has begun.

   Policy: cudaFreeHost waits for all devices, also for streams that wait for another process. The
   end of a timeline must not, so its memory is kept for another one, whose numbers continue.

   Invariants: the word only grows. CUDA has no way to make a stream fail: a timeline that fails
   passes all numbers, and the core reports the cause (base/drive.h).
   Locks: `host_lock` guards the list of free timelines.
   Threads: any. The caller lets one thread at a time pass or fail a timeline. */
#ifndef DS__CUDA_TIMELINE_H
#define DS__CUDA_TIMELINE_H

#include "types.h"
#include "call.h"
#include "host_func.h"
#include "host_memory.h"
#include "value.h"

/* A timeline in pinned memory. */
typedef struct ds__cuda_timeline {
    uint64_t word; /* first member: streams wait for it */
    struct ds__cuda_timeline *next;
} ds__cuda_timeline;

static ds_result ds__cuda_timeline_create(void **out, uint64_t *out_base) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    ds__cuda_timeline *t = ds__cuda.free_timelines;
    if (t)
        ds__cuda.free_timelines = t->next;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    *out = t;
    *out_base = t ? t->word : 0;
    if (t)
        return DS_OK;
    ds_result r = ds__cuda_host_alloc(sizeof *t, out);
    if (r == DS_OK)
        memset(*out, 0, sizeof *t);
    return r;
}

static void ds__cuda_timeline_pass(void *timeline, uint64_t upto) {
    uint64_t *word = timeline;
    if (upto > __atomic_load_n(word, __ATOMIC_RELAXED))
        __atomic_store_n(word, upto, __ATOMIC_SEQ_CST);
}

static void ds__cuda_timeline_fail(void *timeline, uint64_t from, ds_result code,
                                   const char *text) {
    (void)from;
    (void)code;
    (void)text;
    /* a wait takes the difference to its number as signed */
    ds__cuda_timeline_pass(timeline, INT64_MAX);
}

static uint64_t ds__cuda_timeline_get(const void *timeline) {
    return __atomic_load_n((const uint64_t *)timeline, __ATOMIC_SEQ_CST);
}

static void ds__cuda_timeline_destroy(void *timeline) {
    ds__cuda_timeline *t = timeline;
    ds__spinlock_lock(&ds__cuda.host_lock);
    int failed = t->word == INT64_MAX;
    t->next = failed ? ds__cuda.failed_timelines : ds__cuda.free_timelines;
    if (failed)
        ds__cuda.failed_timelines = t;
    else
        ds__cuda.free_timelines = t;
    ds__spinlock_unlock(&ds__cuda.host_lock);
}

/* Calls of another library, which may use the device. */
typedef struct ds__cuda_library {
    ds__cuda_scope scope;
    int relaxed;
    enum cudaStreamCaptureMode mode;
} ds__cuda_library;

_Static_assert(sizeof(ds__cuda_library) <= sizeof(ds__library_scope), "a scope fits into it");

/* If the device cannot be made current, the library reports a failure of its own, and the end has
   nothing to undo. */
static void ds__cuda_library_begin(int device, ds__library_scope *out) {
    ds__cuda_library l = { .relaxed = 0 };
    if (ds__cuda_scope_begin(&l.scope, device) == DS_OK)
        l.relaxed = ds__cuda_relax(&l.scope, &l.mode);
    memcpy(out->words, &l, sizeof l);
}

static void ds__cuda_library_end(const ds__library_scope *scope) {
    ds__cuda_library l;
    memcpy(&l, scope->words, sizeof l);
    ds__cuda_unrelax(&l.scope, l.relaxed, l.mode);
    ds__cuda_scope_end(&l.scope);
}

/* Frees the memory of a list of timelines; a device is current. */
static void ds__cuda_end_timelines(const ds__cuda_scope *scope, ds__cuda_timeline **list) {
    while (*list) {
        ds__cuda_timeline *t = *list;
        *list = t->next;
        (void)DS__RT_CODE(*scope, cudaFreeHost, (t));
    }
}

static void ds__cuda_remote_run(void *user) {
    atomic_store(&((ds__remote *)user)->ran, 1);
}

/* The destructor of the host function: it also runs if the function did not. */
static void ds__cuda_remote_end(void *user) {
    ds__remote *remote = user;
    (void)remote->begin_fn(remote,
                           atomic_load(&remote->ran) ? DS__REMOTE_ARRIVED : DS__REMOTE_FAILED);
}

/* Enqueues a wait for the number of a timeline or, with `passes`, the passing of it, behind that of
   the number before: the streams of a timeline have no other order. scope: that of the stream, or
   NULL. */
static ds_result ds__cuda_timeline_submit(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          const ds__op *op, int passes) {
    void *timeline = op->u.remote.timeline;
    uint64_t number = op->u.remote.upto;
    ds_value_op list[2] = {
        { .address = timeline,
          .value = number - (passes != 0),
          .kind = DS_VALUE_WAIT_GEQ,
          .size = 8 },
        { .address = timeline, .value = number, .kind = DS_VALUE_WRITE, .size = 8 }
    };
    ds__op values = { .kind = DS__OP_VALUES, .line = op->line, .file = op->file };
    values.u.values.list = list;
    values.u.values.count = passes ? 2 : 1;
    return scope ? ds__cuda_values_in(scope, s, &values) : ds__cuda_values(s, &values);
}

/* Lets another library enqueue work on the stream. */
static ds_result ds__cuda_submit_library(const ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = op->u.remote.begin->enqueue_fn(op->u.remote.begin, s->handle);
    if (r == DS_OK && op->u.remote.timeline)
        r = ds__cuda_timeline_submit(&scope, s, op, 1);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Enqueues work of another library, and the wait for it. */
static ds_result ds__cuda_submit_remote(const ds__cuda_stream *s, const ds__op *op) {
    ds_result r = DS_OK;
    if (op->u.remote.begin && op->u.remote.begin->enqueue_fn)
        return ds__cuda_submit_library(s, op);
    if (op->u.remote.begin) {
        ds__op host = { .kind = DS__OP_HOST, .line = op->line, .file = op->file };
        host.u.host.fn = ds__cuda_remote_run;
        host.u.host.user = op->u.remote.begin;
        host.u.host.dtor_fn = ds__cuda_remote_end;
        host.u.host.stream = s->handle_id;
        atomic_store(&op->u.remote.begin->taken, 1);
        r = ds__cuda_submit_host(s, &host);
        if (r < 0)
            atomic_store(&op->u.remote.begin->taken, 0);
    }
    if (r < 0 || !op->u.remote.timeline)
        return r;
    return ds__cuda_timeline_submit(NULL, s, op, 0);
}

#endif
