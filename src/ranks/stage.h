/* ranks/stage.h - a collective of a group on the streams of this rank.

   Opens a call (ds__stage_open): group, streams and tensors. Enqueues operations of the engine
   (ds__stage_net). ds__stage_close ends the call. ranks/stage_memory.h has the memory of a call.

   Policy:
   1. The stream of the first device leads: operations of the engine are on it. Before the first
      one it waits for the other streams, and at the end they wait for it.
   2. The engine reads and writes contiguous tensors in place if it reaches their memory
      (ds__reach). Everything else is copied: strided tensors, and memory of a GPU through pinned
      memory if the engine does not reach it.
   3. Temporary memory is freed by a later call, when its operation has passed: an operation that
      was abandoned may still use it.

   Invariants: the engine's memory is ready when the leading stream reaches the operation. Arguments
   are checked before anything is enqueued.
   Locks: `calls` of the group is held from ds__stage_open to ds__stage_close.
   Threads: caller's threads. */
#ifndef DS__RANKS_STAGE_H
#define DS__RANKS_STAGE_H

#include "types.h"
#include "failure.h"
#include "run.h"
#include "capture.h"
#include "group.h"

enum { DS__STAGE_DEVICES = 4 }; /* devices of a rank for which a call allocates no memory */

/* A tensor of a call. */
typedef struct ds__stile {
    ds__dims d;
    ds_tensor t;   /* as it was passed */
    size_t device; /* index among those of the rank: whose stream uses it */
    int receives;  /* 1: an input that a transfer writes */
} ds__stile;

/* Contiguous memory of a call. */
typedef struct ds__smem {
    void *at;
    int host;      /* 1: host memory */
    size_t device; /* else: index among those of the rank */
} ds__smem;

/* Memory that an engine can use in an operation. */
typedef enum ds__reach {
    DS__REACH_HOST, /* of the host; pinned for the copies of GPUs */
    DS__REACH_LEAD, /* of the leading device */
    DS__REACH_ALL   /* of the host and all devices of the rank */
} ds__reach;

typedef struct ds__stage {
    ds__group *g;
    const ds_comm_options *options;
    const ds_ranks_options *more; /* of the options; never NULL */
    ds__rcall call;
    size_t count; /* devices of this rank; of an exchange, transfers */
    const ds_device *own;
    ds_stream *stream;
    ds__stream *lead; /* pinned */
    ds__reach reach;  /* memory that the engine can use */
    size_t leading;   /* index of the leading device; `count`: one that no tensor is on */
    int capturing;
    int joined;   /* 1: the leading stream has waited for the others */
    int opened;   /* 1: `calls` is held */
    int observed; /* 1: observers know of the call */
    int enqueued; /* 1: an operation of the engine is */
    unsigned step;
    ds__stile *in;
    ds__stile *out;
    size_t ins;
    size_t outs;
    ds__rtemp *temps; /* of this call */
    void *chunks;     /* memory of the call; each begins with the address of the previous one */
    ds_stream stream_first[DS__STAGE_DEVICES];
    ds__stile tile_first[2];
    size_t used; /* of `first`, in which the first allocations are */
    _Alignas(16) char first[1024];
} ds__stage;

/* A step of a collective: the collective ends if the step fails. The caller of the collective
   closes the stage. */
#define DS__TRY(step)             \
    do {                          \
        ds_result ds__r = (step); \
        if (ds__r < 0)            \
            return ds__r;         \
    } while (0)

/* Returns memory until ds__stage_close, or NULL with the sentence. */
static void *ds__stage_alloc(ds__stage *st, size_t size) {
    if (size <= sizeof st->first - st->used) {
        void *at = st->first + st->used;
        st->used += (size + 15) & ~(size_t)15;
        return at;
    }
    void **chunk = size < SIZE_MAX - 16 ? ds__host_alloc(size + 16) : NULL;
    if (!chunk) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a collective");
        return NULL;
    }
    *chunk = st->chunks;
    st->chunks = chunk;
    return (char *)chunk + 16;
}

/* ---- opening a call -------------------------------------------------------------------------- */

static ds_result ds__stage_stream(ds__stage *st, size_t i) {
    const ds_comm_options *o = st->options;
    ds_device own = st->own[i];
    ds_device on;
    ds_result r = DS_OK;
    st->stream[i] = o->streams && i < o->stream_count ? o->streams[i] : (ds_stream){ 0 };
    if (!st->stream[i].id)
        return ds__stream_current(own, &st->stream[i]);
    DS__KEEPING(r, (ds_stream_get_device)(st->stream[i], &on));
    if (r == DS_OK && ds__device_key(on) != ds__device_key(own))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                     "streams[%zu] is on %s:%d, but device %zu of this rank is %s:%d", i,
                     ds__type_name(on.type), on.index, i, ds__type_name(own.type), own.index);
    return r;
}

/* Finds out whether the leading stream captures, and refuses a capture that the engine cannot
   record. */
static ds_result ds__stage_check_capture(ds__stage *st) {
    ds_capture_info info;
    if (!st->g->engine->enqueue && !atomic_load(&ds__g.capture_count))
        return DS_OK; /* a capture of another library is refused by the driver */
    memset(&info, 0, sizeof info);
    ds_result r = st->lead->driver->capture_query(st->lead->native, &info);
    st->capturing = info.status == DS_CAPTURE_ACTIVE;
    if (r == DS_OK && st->capturing && !st->g->engine->captures)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "engine \"%s\": an operation belongs to one call, and the order of calls on "
                     "all ranks; a launch of a graph cannot repeat it. End the capture before",
                     st->g->engine->name);
    return r;
}

/* Prepares a call, so that ds__stage_close may be called. */
static void ds__stage_init(ds__stage *st, const ds_comm_options *options) {
    static const ds_ranks_options usual = { .sizes = NULL };
    st->options = options;
    st->more = options->ranks_options ? options->ranks_options : &usual;
    st->g = NULL;
    st->own = NULL;
    st->temps = NULL;
    st->chunks = NULL;
    st->lead = NULL;
    st->capturing = st->joined = st->opened = st->observed = st->enqueued = 0;
    st->step = 0;
    st->used = 0;
    st->ins = st->outs = 0;
    st->in = st->out = NULL;
}

/* Returns the first index of the group's leading device, behind which an engine enqueues. */
static size_t ds__stage_leading(const ds__stage *st) {
    size_t i = 0;
    while (i < st->count && ds__device_key(st->own[i]) != ds__device_key(st->g->own[0]))
        i++;
    return i;
}

/* Finds out whether the engine reaches the memory of the devices in such an operation. */
static void ds__stage_reach(ds__stage *st, ds__net_kind kind) {
    const ds__group *g = st->g;
    if (g->driver->type == DS_DEVICE_CPU)
        st->reach = DS__REACH_ALL;
    else if (!g->gpu || !g->engine->reaches(kind))
        st->reach = DS__REACH_HOST;
    else
        st->reach = g->engine->enqueue ? DS__REACH_LEAD : DS__REACH_ALL;
}

/* Returns the operation that moves the data of a collective in fixed order. */
static ds__net_kind ds__stage_moves(ds__net_kind kind) {
    int reduces =
        kind == DS__NET_ALL_REDUCE || kind == DS__NET_REDUCE || kind == DS__NET_REDUCE_SCATTER;
    return reduces ? DS__NET_ALL_TO_ALL : kind;
}

/* Opens a call on the group of the options, which ds__stage_init has prepared. kind: the operation,
   for messages and the recorder. `own` and `count` are the devices of the streams; NULL: those of
   the rank. */
static ds_result ds__stage_open(ds__stage *st, int kind) {
    const ds_comm_options *options = st->options;
    ds_result r = DS_OK;
    st->g = ds__group_pin(options->ranks);
    if (!st->g)
        return DS_ERR_INVALID_HANDLE;
    if (!st->own) {
        st->own = st->g->own;
        st->count = st->g->owns;
    }
    st->leading = st->g->engine->enqueue ? ds__stage_leading(st) : 0;
    ds__stage_reach(st, ds__stage_moves((ds__net_kind)kind));
    st->call = (ds__rcall){ .fn = ds__tls.fn,
                            .site = ds__tls.site,
                            .kind = kind,
                            .root = options->root,
                            .timeout_ns =
                                st->more->timeout_ns ? st->more->timeout_ns : st->g->timeout_ns };
    DS__REQUIRE_RESERVED("ds_ranks_options", st->more);
    DS__REQUIRE(options->root < st->g->devices,
                "options->root is %zu, but the group has %zu devices", options->root,
                st->g->devices);
    DS__REQUIRE(options->stream_count <= st->count, "%zu streams were passed for %zu %s",
                options->stream_count, st->count,
                kind == DS__NET_EXCHANGE ? "transfers" : "devices of this rank");
    st->stream = st->stream_first;
    if (st->count >= DS__STAGE_DEVICES)
        st->stream = ds__stage_alloc(st, (st->count + 1) * sizeof *st->stream);
    if (!st->stream)
        return DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < st->count && r == DS_OK; i++)
        r = ds__stage_stream(st, i);
    if (r == DS_OK && st->leading == st->count)
        r = ds__stream_current(st->own[st->count], &st->stream[st->count]);
    if (r < 0)
        return r;
    st->lead = ds__stream_pin(st->stream[st->leading]);
    if (!st->lead)
        return DS_ERR_INVALID_HANDLE;
    st->call.stream = st->stream[st->leading].id;
    return ds__stage_check_capture(st);
}

/* Reads a tensor of device i of the rank. */
static ds_result ds__stile_read(ds__stage *st, const ds_tensor *tensor, const char *words, size_t i,
                                ds__stile *out) {
    ds__name name = ds__name_of(words, i);
    ds_device own = st->own[i];
    DS__REQUIRE(tensor, "%s is NULL", ds__name_text(name));
    ds_result r = ds__tensor_read(tensor, name, &out->d);
    if (r < 0)
        return r;
    if (out->d.device.type != DS_DEVICE_HOST &&
        ds__device_key(out->d.device) != ds__device_key(own))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "%s is on %s:%d, but device %zu of this rank is %s:%d", ds__name_text(name),
                        ds__type_name(out->d.device.type), out->d.device.index, i,
                        ds__type_name(own.type), own.index);
    out->t = *tensor;
    out->device = i;
    out->receives = 0;
    return DS_OK;
}

/* Requires one data type. */
static ds_result ds__stage_check_types(const ds__stage *st) {
    char name[2][DS_DTYPE_NAME_SIZE];
    ds_dtype a = st->call.dtype;
    for (size_t i = 0; i < st->ins + st->outs; i++) {
        ds_dtype b = st->in[i].d.dtype;
        if (!(ds_dtype_equal)(a, b))
            return ds__fail(DS_ERR_INVALID_VALUE, "%s tensor at index %zu has type %s, others %s",
                            i < st->ins ? "input" : "output", i < st->ins ? i : i - st->ins,
                            ds__dtype_name(b, name[0]), ds__dtype_name(a, name[1]));
    }
    return DS_OK;
}

/* Reads the inputs and outputs of a call: one for each device of the rank, or a single one for
   device `single`. */
static ds_result ds__stage_tensors(ds__stage *st, const ds_tensor *const *in, size_t ins,
                                   const ds_tensor *const *out, size_t outs, size_t single) {
    st->in = st->tile_first;
    if (ins + outs > 2)
        st->in = ds__stage_alloc(st, (ins + outs) * sizeof *st->in);
    if (!st->in)
        return DS_ERR_OUT_OF_MEMORY;
    st->out = st->in + ins;
    st->ins = ins;
    st->outs = outs;
    for (size_t i = 0; i < ins; i++)
        DS__TRY(ds__stile_read(st, in[i], "input tensor", ins == 1 && st->count > 1 ? single : i,
                               &st->in[i]));
    for (size_t i = 0; i < outs; i++)
        DS__TRY(ds__stile_read(st, out[i], "output tensor", outs == 1 && st->count > 1 ? single : i,
                               &st->out[i]));
    st->call.dtype = st->in[0].d.dtype;
    return ds__stage_check_types(st);
}

/* Notes the number of elements for the recorder and the comparison. varies: ranks differ in it. */
static void ds__stage_count(ds__stage *st, const ds__stile *tile, int varies) {
    st->call.varies = varies;
    st->call.count = varies ? 0 : (uint64_t)tile->d.count;
}

/* Requires a list with one tensor for each device of the rank. */
static ds_result ds__stage_check_count(const ds__stage *st, const void *list, size_t count,
                                       const char *words) {
    DS__REQUIRE(list, "%s is NULL", words);
    DS__REQUIRE(count == st->count, "%s has %zu tensors, but this rank has %zu devices", words,
                count, st->count);
    return DS_OK;
}

/* Notifies observers of the call; kind: DS__SEEN_BEGIN or DS__SEEN_END. Without memory for their
   description, they see no operands. */
__attribute__((cold, noinline)) static void ds__stage_observe(ds__stage *st, int kind,
                                                              ds_result r) {
    size_t n = st->ins + st->outs;
    ds__seen_operand *list = n ? ds__stage_alloc(st, n * sizeof *list) : NULL;
    ds__runs *runs = list ? ds__stage_alloc(st, n * sizeof *runs) : NULL;
    for (size_t i = 0; runs && i < n; i++) {
        const ds__stile *tile = &st->in[i];
        int writes = tile->receives || i >= st->ins;
        list[i] = (ds__seen_operand){ .bytes = tile->d.bytes,
                                      .device = tile->d.device,
                                      .stream = st->stream[tile->device],
                                      .reads = !writes,
                                      .writes = writes };
        ds__comm_copy tensor = { tile->d.item, tile->d.ndim, tile->d.shape, NULL, tile->d.strides };
        if (tile->d.bytes)
            ds__runs_observe(&tensor, tile->d.first, &runs[i], &list[i]);
    }
    ds__observer_notify(
        &(ds__seen){ .kind = kind, .operand = list, .operands = runs ? n : 0, .result = r });
}

/* Begins to enqueue: everything was checked. */
static ds_result ds__stage_begin(ds__stage *st) {
    ds__mutex_lock(&st->g->calls);
    st->opened = 1;
    ds_result r = ds__group_report(st->g);
    if (DS__UNLIKELY(st->g->temps != NULL) && !st->capturing)
        ds__group_free_temps(st->g, atomic_load(&st->g->passed));
    if (r == DS_OK && ds__observer_is_set()) {
        ds__stage_observe(st, DS__SEEN_BEGIN, DS_OK);
        st->observed = 1;
    }
    ds__tls.unwatched++;
    return r;
}

/* Records the uses of the tensors' blocks with the allocator, which does not reuse their memory
   before the streams have passed the operation. */
static ds_result ds__stage_note_uses(ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->ins + st->outs && r == DS_OK; i++) {
        const ds__stile *tile = &st->in[i];
        if (!tile->d.bytes)
            continue;
        if (tile->d.device.type == DS_DEVICE_HOST) {
            r = ds__pinned_operand(tile->d.first, st->stream[tile->device]);
            continue;
        }
        ds__stream *s = ds__stream_pin(st->stream[tile->device]);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        r = ds__mem_operand(tile->d.first, s, st->stream[tile->device]);
        ds__stream_unpin(s);
    }
    return r;
}

/* Fails the group after a call that was enqueued in part: the other ranks wait for the rest, and
   later operations would not meet theirs. */
__attribute__((cold, noinline)) static void ds__stage_break(ds__stage *st, ds_result r) {
    ds__group *g = st->g;
    ds__kept_error error;
    ds__error_save(&error);
    ds__rop op = { .call = st->call, .number = ds__group_listed(g) };
    ds__mutex_lock(&g->lock);
    ds__group_fail_op(g, &op, r, "was enqueued in part: %s", ds__error_reason(&error));
    ds__mutex_unlock(&g->lock);
    ds__error_restore(&error);
}

/* Leaves the temporary memory to the group, until the operations of the call have passed. */
static void ds__stage_keep_temps(ds__stage *st) {
    ds__group *g = st->g;
    uint64_t listed = st->temps ? ds__group_listed(g) : 0;
    while (st->temps) {
        ds__rtemp *t = st->temps;
        st->temps = t->next;
        t->number = st->capturing ? 0 : listed;
        t->next = g->temps;
        g->temps = t;
    }
    if (st->capturing)
        ds__group_free_temps(g, 0); /* in the order of the capture */
}

/* Ends the call, and returns its result. */
static ds_result ds__stage_close(ds__stage *st, ds_result r) {
    ds__group *g = st->g;
    if (st->opened) {
        if (DS__UNLIKELY(r < 0 && st->enqueued))
            ds__stage_break(st, r);
        for (size_t i = 0; i < st->count && st->joined; i++) {
            ds_result one =
                i == st->leading ? DS_OK : ds__wait_stream(st->stream[i], st->stream[st->leading]);
            r = r < 0 ? r : one;
        }
        if (r == DS_OK)
            r = ds__stage_note_uses(st);
        ds__tls.unwatched--;
        if (st->observed)
            ds__stage_observe(st, DS__SEEN_END, r);
        ds__stage_keep_temps(st);
        ds__mutex_unlock(&g->calls);
    }
    if (r < 0 && st->opened && atomic_load(&g->failed))
        r = ds__group_report(g); /* a step of the call has reported the failure of a stream */
    while (st->chunks) {
        void **chunk = st->chunks;
        st->chunks = *chunk;
        ds__host_free(chunk);
    }
    if (st->lead)
        ds__stream_unpin(st->lead);
    if (g)
        ds__group_unpin(g);
    return r;
}

/* Makes the leading stream wait for the others, once. */
static ds_result ds__stage_join(ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->count && !st->joined && r == DS_OK; i++)
        if (i != st->leading)
            r = ds__wait_stream(st->stream[st->leading], st->stream[i]);
    st->joined = 1;
    return r;
}

/* ---- operations of the engine ---------------------------------------------------------------- */

/* Returns an operation whose call is that of the stage; NULL: no memory. tables: bytes. */
static ds__rop *ds__stage_op(ds__stage *st, ds__net_kind kind, size_t tables) {
    ds__rop *op = ds__rop_take(st->g, tables);
    if (!op)
        return NULL;
    op->call = st->call;
    op->call.step = st->step++;
    op->net.kind = kind;
    op->net.dtype = st->call.dtype;
    op->net.reduce_op = st->call.op;
    op->net.on_gpu = st->g->gpu && st->reach != DS__REACH_HOST;
    return op;
}

/* Enqueues an operation and the wait for it. bytes: how much it moves on this rank. */
static ds_result ds__stage_net(ds__stage *st, ds__rop *op, size_t bytes) {
    ds_result r = ds__stage_join(st);
    if (r < 0) {
        ds__rop_give_back(op);
        return r;
    }
    if (DS__UNLIKELY(st->capturing && st->g->engine->enqueue))
        return ds__capture_native(st->stream[st->leading], st->lead, op, bytes);
    if (DS__UNLIKELY(st->capturing))
        return ds__capture_rop(st->stream[st->leading], op, op->used_bytes);
    st->enqueued = 1;
    return ds__rop_submit(op, st->lead, bytes, NULL);
}

#endif
