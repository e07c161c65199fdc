/* ranks/in_process.h - collectives of one process by NCCL.

   Runs a collective whose options have the engine "nccl" (ds__inproc_run), and tells whether NCCL
   runs one, and why (ds__inproc_explain).

   Policy: a list of devices has a group of one rank, whose devices are ranks of NCCL. It is created
   by the first collective and kept until ds_shutdown or a checkpoint. If NCCL cannot run the
   collective, the layer below does it without NCCL.

   Invariants: a group that has failed is replaced at the next call.
   Locks: ds__inprocs.lock guards the list; no other lock is taken under it.
   Threads: caller's threads. */
#ifndef DS__RANKS_IN_PROCESS_H
#define DS__RANKS_IN_PROCESS_H

#include "../comm/internal.h"
#include "../plan/types.h"
#include "types.h"
#include "group.h"
#include "nccl_op.h"

/* The group of a list of devices. */
typedef struct ds__inproc {
    struct ds__inproc *next;
    ds_ranks ranks;
    size_t count;
    ds_device device[];
} ds__inproc;

static struct {
    ds__spinlock lock;
    ds__inproc *first;
} ds__inprocs;

/* ---- what NCCL can run ----------------------------------------------------------------------- */

/* DS_OK, or the reason why NCCL does not run a collective. */
static ds_result ds__inproc_check(const ds__engine_question *q) {
    ds_result r = DS_OK;
    if (q->count < 2)
        return ds__fail(DS_ERR_UNSUPPORTED, "there are less than two devices");
    if (q->reduces && !q->any_order)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "devstream computes this reduction; NCCL computes integers, and sums and "
                        "products with DS_COMM_ANY_ORDER");
    for (size_t i = 0; i < q->count && r == DS_OK; i++) {
        ds_device d = q->devices[i];
        if (d.type != DS_DEVICE_CUDA)
            return ds__fail(DS_ERR_UNSUPPORTED, "%s:%d is no GPU", ds__type_name(d.type), d.index);
        for (size_t k = 0; k < i; k++)
            if (d.index == q->devices[k].index)
                return ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has two tensors", d.index);
        r = ds__device_resolve(d, &d);
    }
    return r == DS_OK ? ds__nccl_load() : r;
}

/* Calls ds__inproc_check without an error of the call. */
static ds_result ds__inproc_ask(const ds__engine_question *q) {
    ds__quiet outer = ds__quiet_begin();
    ds_result r = ds__inproc_check(q);
    ds__quiet_end(&outer);
    return r;
}

static void ds__inproc_explain(const ds__engine_question *q, char *out, size_t size) {
    char library[64];
    if (ds__inproc_ask(q) < 0) {
        snprintf(out, size, "not used: %s", ds__quiet_reason());
        return;
    }
    ds__nccl_library(library, sizeof library);
    snprintf(out, size, "used, %s: each of the %zu GPUs is a rank of its communicator", library,
             q->count);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static ds_result ds__inproc_create(const ds_device *devices, size_t count, ds_ranks *out) {
    char id[DS_RANKS_ID_SIZE];
    ds__nccl_ticket ticket;
    ds_result r = ds__nccl_id_create(&ticket);
    if (r < 0)
        return r;
    ds__nccl_id_format(&ticket, id);
    ds_ranks_desc desc = { .engine = "nccl",
                           .size = 1,
                           .id = id,
                           .devices = devices,
                           .device_count = count,
                           .record = "",
                           .label = "engine nccl" };
    DS__KEEPING(r, (ds_ranks_init)(&desc, out));
    return r;
}

/* Ends groups that were taken out of the list. */
static void ds__inproc_end(ds__inproc *list) {
    ds_result r;
    while (list) {
        ds__inproc *next = list->next;
        DS__KEEPING(r, (ds_ranks_finalize)(list->ranks));
        DS_IGNORE(r);
        ds__host_free(list);
        list = next;
    }
}

/* Ends all groups; ds_shutdown and checkpoints do that first. */
static void ds__inproc_end_all(void) {
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc *list = ds__inprocs.first;
    ds__inprocs.first = NULL;
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(list);
}

/* Returns the link of the list that has the group of these devices, or its end. The lock is
   held. */
static ds__inproc **ds__inproc_at(const ds_device *devices, size_t count) {
    ds__inproc **at = &ds__inprocs.first;
    while (*at &&
           ((*at)->count != count || memcmp((*at)->device, devices, count * sizeof *devices) != 0))
        at = &(*at)->next;
    return at;
}

/* Returns the group of a list of devices, or a zeroed handle. `made` is added, unless there is a
   group already; it is ended then. */
static ds_ranks ds__inproc_get(const ds_device *devices, size_t count, ds__inproc *made) {
    ds_ranks ranks = { 0 };
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc **at = ds__inproc_at(devices, count);
    if (!*at) {
        *at = made;
        made = NULL;
    }
    if (*at)
        ranks = (*at)->ranks;
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(made);
    return ranks;
}

/* Takes the group of these devices out of the list, if it is still this one, and ends it. */
static void ds__inproc_drop(const ds_device *devices, size_t count, ds_ranks ranks) {
    ds__inproc *gone = NULL;
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc **at = ds__inproc_at(devices, count);
    if (*at && (*at)->ranks.id == ranks.id) {
        gone = *at;
        *at = gone->next;
        gone->next = NULL;
    }
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(gone);
}

/* Returns 1 if the group has not failed. */
static int ds__inproc_lives(ds_ranks ranks) {
    ds__group *g = ds__group_pin(ranks);
    int lives = g && !atomic_load(&g->failed);
    if (g)
        ds__group_unpin(g);
    return lives;
}

/* Finds the group of a list of devices, or creates it. */
static ds_result ds__inproc_find(const ds_device *devices, size_t count, ds_ranks *out) {
    *out = ds__inproc_get(devices, count, NULL);
    if (out->id && ds__inproc_lives(*out))
        return DS_OK;
    if (out->id)
        ds__inproc_drop(devices, count, *out);
    ds__inproc *e = ds__host_alloc(sizeof *e + count * sizeof *devices);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %zu devices", count);
    ds_result r = ds__inproc_create(devices, count, &e->ranks);
    if (r < 0) {
        ds__host_free(e);
        return r;
    }
    e->count = count;
    memcpy(e->device, devices, count * sizeof *devices);
    *out = ds__inproc_get(devices, count, e);
    return DS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A call for a group, with a list of one tensor for each device. */
typedef struct ds__inproc_call {
    ds__comm_call call;
    ds_comm_options options;
    ds_ranks_options more;
    size_t count;
    size_t root;
    int64_t *sizes; /* the begin of a block of memory that has the next three, too */
    const ds_tensor **list;
    ds_stream *streams;
    ds_device *devices;
} ds__inproc_call;

/* Returns the single tensor of a call, or NULL: both sides are lists. */
static const ds_tensor *ds__inproc_single(const ds__comm_call *c) {
    switch (c->verb) {
    case DS__VERB_BROADCAST:
    case DS__VERB_SCATTER:
        return c->in[0];
    case DS__VERB_GATHER:
    case DS__VERB_REDUCE:
        return c->out[0];
    default:
        return NULL;
    }
}

/* Returns 1 if all tensors are there, and the lists have the same devices. */
static int ds__inproc_reads(const ds__comm_call *c, int single, int from_outs) {
    const ds_tensor *const *list = from_outs ? c->out : c->in;
    size_t count = from_outs ? c->out_count : c->in_count;
    if (!count || !c->in || !c->out)
        return 0;
    if (single && !ds__inproc_single(c))
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!list[i] || (!single && (!c->out[i] || ds__device_key(c->out[i]->device) !=
                                                       ds__device_key(list[i]->device))))
            return 0;
    return 1;
}

/* Sets the place of the single tensor in the list. Returns 0 if no entry is on its device. */
static int ds__inproc_place(ds__inproc_call *a, const ds_tensor *single) {
    while (a->root < a->count &&
           ds__device_key(a->devices[a->root]) != ds__device_key(single->device))
        a->root++;
    if (a->root < a->count)
        return 1;
    if (a->call.verb != DS__VERB_BROADCAST)
        return 0;
    a->list[a->count] = single; /* a broadcast into itself */
    a->devices[a->count] = single->device;
    a->streams[a->count] = a->options.stream;
    a->count++;
    return 1;
}

/* Gives the sizes of parts that differ. */
static int ds__inproc_divide(ds__inproc_call *a) {
    int dim = a->call.dim;
    if (a->call.verb != DS__VERB_SCATTER && a->call.verb != DS__VERB_GATHER)
        return 1;
    for (size_t i = 0; i < a->count; i++) {
        const ds_tensor *t = a->list[i];
        int k = dim < 0 ? dim + t->ndim : dim;
        if (k < 0 || k >= t->ndim)
            return 0;
        a->sizes[i] = t->shape[k];
    }
    a->more.sizes = a->sizes;
    a->options.ranks_options = &a->more;
    return 1;
}

/* Copies the list of a call, with the devices and streams of its tensors. Returns 0 if memory is
   exhausted. */
static int ds__inproc_list(ds__inproc_call *a, const ds_tensor *const *list, size_t count) {
    const ds_comm_options *o = a->call.options;
    size_t n = count + 1; /* for ds__inproc_place */
    a->sizes = ds__host_alloc(
        n * (sizeof *a->sizes + sizeof *a->list + sizeof *a->streams + sizeof *a->devices));
    if (!a->sizes)
        return 0;
    a->list = (const ds_tensor **)(void *)(a->sizes + n);
    a->streams = (ds_stream *)(void *)(a->list + n);
    a->devices = (ds_device *)(void *)(a->streams + n);
    a->count = count;
    for (size_t i = 0; i < count; i++) {
        a->list[i] = list[i];
        a->devices[i] = list[i]->device;
        a->streams[i] = o->streams && i < o->stream_count ? o->streams[i] : (ds_stream){ 0 };
    }
    return 1;
}

/* Prepares a call for a group. Returns 0 if its tensors are none for NCCL. */
static int ds__inproc_arrange(const ds__comm_call *c, ds__inproc_call *a) {
    int from_outs = c->verb == DS__VERB_BROADCAST || c->verb == DS__VERB_SCATTER;
    int single = from_outs || c->verb == DS__VERB_GATHER || c->verb == DS__VERB_REDUCE;
    memset(a, 0, sizeof *a);
    a->call = *c;
    a->options = *c->options;
    if (!ds__inproc_reads(c, single, from_outs) ||
        !ds__inproc_list(a, from_outs ? c->out : c->in, from_outs ? c->out_count : c->in_count) ||
        (single && !ds__inproc_place(a, ds__inproc_single(c))) || !ds__inproc_divide(a))
        return 0;
    a->options.engine = NULL;
    a->options.topology = NULL;
    a->options.plan = NULL;
    a->options.streams = a->streams;
    a->options.stream_count = a->count;
    a->options.root = a->root;
    a->call.options = &a->options;
    if (from_outs) {
        a->call.out = a->list;
        a->call.out_count = a->count;
    }
    return 1;
}

/* Makes the stream of the root's device and that of the single tensor wait for each other. */
static ds_result ds__inproc_join(const ds__inproc_call *a, int before) {
    ds_stream own = a->streams[a->root];
    ds_stream single = a->options.stream;
    ds_result r = DS_OK;
    if (!ds__inproc_single(&a->call))
        return DS_OK;
    if (!own.id)
        r = ds__stream_current(a->devices[a->root], &own);
    if (r == DS_OK && !single.id)
        r = ds__stream_current(a->devices[a->root], &single);
    if (r < 0 || own.id == single.id)
        return r;
    return before ? ds__wait_stream(own, single) : ds__wait_stream(single, own);
}

/* Returns 1 if NCCL runs the call. */
static int ds__inproc_accepts(const ds__inproc_call *a) {
    ds_reduce_op op = a->call.op;
    ds_dtype t = a->list[0]->dtype;
    int reduces = a->call.verb == DS__VERB_ALL_REDUCE || a->call.verb == DS__VERB_REDUCE ||
                  a->call.verb == DS__VERB_REDUCE_SCATTER;
    int any =
        a->options.flags & DS_COMM_ANY_ORDER || t.code == DS_CODE_INT || t.code == DS_CODE_UINT;
    ds__engine_question q = { reduces, any && ds__nccl_reduces(t, op), a->devices, a->count };
    return ds__inproc_ask(&q) == DS_OK;
}

/* Runs a collective of one process by NCCL. Returns 0 if the layer below has to do it. */
static int ds__inproc_run(const ds__comm_call *c, ds_result (*across_fn)(const ds__comm_call *c),
                          ds_result *out) {
    ds__inproc_call a;
    int runs = ds__inproc_arrange(c, &a) && ds__inproc_accepts(&a);
    if (runs) {
        *out = ds__inproc_find(a.devices, a.count, &a.options.ranks);
        if (*out == DS_OK)
            *out = ds__inproc_join(&a, 1);
        if (*out == DS_OK)
            *out = across_fn(&a.call);
        if (*out == DS_OK)
            *out = ds__inproc_join(&a, 0);
    }
    ds__host_free(a.sizes);
    return runs;
}

#endif
