/* ranks/stage.h - a collective of a group on the streams of this rank.

   Opens a call (ds__stage_open): group, streams and tensors. Enqueues operations of the engine
   (ds__stage_net). ds__stage_close ends the call. ranks/stage_memory.h has the memory of a call,
   ranks/steps.h its operations.

   Policy:
   1. The rank is one member of the communicator, or each of its devices is one
      (ds__stage_member). The stream of a member's first device leads: operations of the engine are
      on it. Before the first one it waits for the member's other streams, and at the end they wait
      for it.
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
    DS__REACH_LEAD, /* of the member's leading device */
    DS__REACH_ALL   /* of the host and all devices of the rank */
} ds__reach;

/* A member of the communicator on this rank. */
typedef struct ds__stage_member {
    size_t number;  /* in the communicator */
    size_t leading; /* index of its leading stream; DS__STAGE_NONE: it takes no part */
    ds__stile *in;  /* its tensors */
    ds__stile *out;
    size_t ins;
    size_t outs;
    ds__smem from; /* memory of its operation */
    ds__smem to;
    ds__stile *flat; /* all_to_all: contiguous forms of `in`, then of `out` */
} ds__stage_member;

#define DS__STAGE_NONE SIZE_MAX

typedef struct ds__stage {
    ds__group *g;
    const ds_comm_options *options;
    const ds_ranks_options *more; /* of the options; never NULL */
    ds__rcall call;
    size_t count; /* devices of this rank; of an exchange, transfers */
    const ds_device *own;
    const size_t *device_of; /* of an exchange: the device of each transfer; else NULL */
    ds_stream *stream;
    ds__stream *lead; /* pinned: the operations of the rank are submitted on it */
    ds__reach reach;  /* memory that the engine can use */
    int root;         /* member that has the single tensor */
    int dim;          /* that is split or joined */
    struct ds__slices *slices;
    size_t moved; /* bytes of the step on this rank */

    int size;            /* members of the communicator */
    const size_t *first; /* the first device of each, and their number */
    int each;            /* 1: its members are devices */
    size_t members;      /* those of this rank */
    ds__stage_member *member;
    ds__stage_member one;   /* storage of a single one */
    ds__stage_member whole; /* all tensors, as if the rank were one member */

    /* of the selected member, or of `whole` (ds__stage_select) */
    ds__stage_member *at;
    int me;         /* its number */
    size_t leading; /* index of its leading stream; `count`: one without a tensor */
    ds__stile *in;
    ds__stile *out;
    size_t ins;
    size_t outs;

    int capturing;
    int joined;   /* 1: the leading stream has waited for the others */
    int opened;   /* 1: `calls` is held */
    int observed; /* 1: observers know of the call */
    int enqueued; /* 1: an operation of the engine is */
    unsigned step;
    ds__rtemp *temps; /* of this call */
    void *chunks;     /* memory of the call; each begins with the address of the previous one */
    ds_stream stream_first[DS__STAGE_DEVICES];
    ds__stile tile_first[2];
    size_t used; /* of `room`, in which the first allocations are */
    _Alignas(16) char room[1024];
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
    if (size <= sizeof st->room - st->used) {
        void *at = st->room + st->used;
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

/* ---- members --------------------------------------------------------------------------------- */

/* Selects a member, or `whole`. */
static void ds__stage_select(ds__stage *st, ds__stage_member *m) {
    st->at = m;
    st->me = (int)m->number;
    st->leading = m->leading;
    st->in = m->in;
    st->out = m->out;
    st->ins = m->ins;
    st->outs = m->outs;
}

/* Returns the member to which stream i belongs. */
static ds__stage_member *ds__stage_member_of(const ds__stage *st, size_t i) {
    if (!st->each)
        return &st->member[0];
    return &st->member[st->device_of ? st->device_of[i] : i];
}

/* Returns the index of the leading stream of the rank or, if devices are members, of device m. */
static size_t ds__stage_leader(const ds__stage *st, size_t m) {
    const ds__group *g = st->g;
    size_t i = 0;
    if (st->each && !st->device_of)
        return m;
    if (st->each) {
        while (i < st->count && st->device_of[i] != m)
            i++;
        return i < st->count ? i : DS__STAGE_NONE;
    }
    while (g->engine->enqueue && i < st->count &&
           ds__device_key(st->own[i]) != ds__device_key(g->own[0]))
        i++; /* the engine enqueues behind the group's first device */
    return i;
}

/* Describes the members of this rank, and selects them all. */
static ds_result ds__stage_members(ds__stage *st) {
    const ds__group *g = st->g;
    st->size = st->each ? (int)g->devices : g->size;
    st->first = st->each ? g->each : g->first;
    st->members = st->each ? g->owns : 1;
    st->member = &st->one;
    if (st->members > 1)
        st->member = ds__stage_alloc(st, st->members * sizeof *st->member);
    if (!st->member)
        return DS_ERR_OUT_OF_MEMORY;
    memset(st->member, 0, st->members * sizeof *st->member);
    for (size_t m = 0; m < st->members; m++) {
        st->member[m].leading = ds__stage_leader(st, m);
        st->member[m].number = st->each ? g->first[g->rank] + m : (size_t)g->rank;
    }
    st->whole = (ds__stage_member){ .number = st->member[0].number,
                                    .leading = st->each ? 0 : st->member[0].leading };
    ds__stage_select(st, &st->whole);
    return DS_OK;
}

/* Gives each member its tensors, which lie in the order of their devices. */
static void ds__stage_divide(ds__stage *st) {
    const ds__stage_member *all = &st->whole;
    if (!st->each || st->device_of) {
        st->member[0].in = all->in;
        st->member[0].out = all->out;
        st->member[0].ins = all->ins;
        st->member[0].outs = all->outs;
        return;
    }
    for (size_t i = all->ins; i-- > 0;) {
        st->member[all->in[i].device].in = &all->in[i];
        st->member[all->in[i].device].ins++;
    }
    for (size_t i = all->outs; i-- > 0;) {
        st->member[all->out[i].device].out = &all->out[i];
        st->member[all->out[i].device].outs++;
    }
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

/* Requires that the streams of all members capture, or none. */
static ds_result ds__stage_check_captures(const ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds_capture_info info;
        size_t i = st->member[m].leading;
        if (i == DS__STAGE_NONE)
            continue;
        memset(&info, 0, sizeof info);
        DS__KEEPING(r, (ds_capture_get_info)(st->stream[i], &info));
        if (r == DS_OK && (info.status == DS_CAPTURE_ACTIVE) != st->capturing)
            r = ds__fail(DS_ERR_ILLEGAL_STATE,
                         "the stream of device %zu of this rank %s, but that of another device %s; "
                         "bring both into the capture, for example by ds_stream_wait_stream",
                         m, st->capturing ? "does not capture" : "captures",
                         st->capturing ? "does" : "does not");
    }
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
    return r == DS_OK && st->members > 1 ? ds__stage_check_captures(st) : r;
}

/* Prepares a call, so that ds__stage_close may be called. */
static void ds__stage_init(ds__stage *st, const ds_comm_options *options) {
    static const ds_ranks_options usual = { .sizes = NULL };
    st->options = options;
    st->more = options->ranks_options ? options->ranks_options : &usual;
    st->g = NULL;
    st->own = NULL;
    st->device_of = NULL;
    st->temps = NULL;
    st->chunks = NULL;
    st->lead = NULL;
    st->capturing = st->joined = st->opened = st->observed = st->enqueued = 0;
    st->step = 0;
    st->used = 0;
    st->members = 0;
    st->whole = (ds__stage_member){ .number = 0 };
    ds__stage_select(st, &st->whole);
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

static ds_result ds__stage_check_options(const ds__stage *st, int kind) {
    const ds_comm_options *options = st->options;
    DS__REQUIRE_RESERVED("ds_ranks_options", st->more);
    DS__REQUIRE(options->root < st->g->devices,
                "options->root is %zu, but the group has %zu devices", options->root,
                st->g->devices);
    DS__REQUIRE(options->stream_count <= st->count, "%zu streams were passed for %zu %s",
                options->stream_count, st->count,
                kind == DS__NET_EXCHANGE ? "transfers" : "devices of this rank");
    if (DS__LIKELY(!st->more->nccl))
        return DS_OK;
    DS__REQUIRE_RESERVED("ds_ranks_nccl", st->more->nccl);
    return st->g->engine->configures
               ? st->g->engine->configures((ds__net_kind)kind)
               : ds__fail(DS_ERR_UNSUPPORTED, "ranks_options->nccl is set for engine \"%s\"",
                          st->g->engine->name);
}

/* Opens a call on the group of the options, which ds__stage_init has prepared. kind: the operation,
   for messages and the recorder. `own` and `count` are the devices of the streams; NULL: those of
   the rank. A barrier is an operation of the rank. */
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
    st->each = st->g->each && kind != DS__NET_BARRIER;
    r = ds__stage_members(st);
    if (r < 0)
        return r;
    ds__stage_reach(st, ds__stage_moves((ds__net_kind)kind));
    st->call = (ds__rcall){ .fn = ds__tls.fn,
                            .site = ds__tls.site,
                            .kind = kind,
                            .root = options->root,
                            .timeout_ns =
                                st->more->timeout_ns ? st->more->timeout_ns : st->g->timeout_ns };
    r = ds__stage_check_options(st, kind);
    if (r < 0)
        return r;
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
    ds__stile *tile = st->tile_first;
    if (ins + outs > 2)
        tile = ds__stage_alloc(st, (ins + outs) * sizeof *tile);
    if (!tile)
        return DS_ERR_OUT_OF_MEMORY;
    st->whole.in = tile;
    st->whole.out = tile + ins;
    st->whole.ins = ins;
    st->whole.outs = outs;
    ds__stage_select(st, &st->whole);
    for (size_t i = 0; i < ins; i++)
        DS__TRY(ds__stile_read(st, in[i], "input tensor", ins == 1 && st->count > 1 ? single : i,
                               &st->in[i]));
    for (size_t i = 0; i < outs; i++)
        DS__TRY(ds__stile_read(st, out[i], "output tensor", outs == 1 && st->count > 1 ? single : i,
                               &st->out[i]));
    st->call.dtype = st->in[0].d.dtype;
    ds__stage_divide(st);
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
    ds__stage_select(st, &st->whole);
    if (st->opened) {
        if (DS__UNLIKELY(r < 0 && st->enqueued))
            ds__stage_break(st, r);
        for (size_t i = 0; i < st->count && st->joined; i++) {
            size_t lead = ds__stage_member_of(st, i)->leading;
            ds_result one = i == lead ? DS_OK : ds__wait_stream(st->stream[i], st->stream[lead]);
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

/* Makes the leading streams wait for the other streams of their members, once. */
static ds_result ds__stage_join(ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->count && !st->joined && r == DS_OK; i++) {
        size_t lead = ds__stage_member_of(st, i)->leading;
        if (i != lead)
            r = ds__wait_stream(st->stream[lead], st->stream[i]);
    }
    st->joined = 1;
    return r;
}

#endif
