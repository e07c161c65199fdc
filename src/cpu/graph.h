/* cpu/graph.h - executables and their plans.

   Creates an executable from the nodes of a graph (ds__cpu_graph_instantiate), writes its plan
   (ds__cpu_plan_build), and frees both. The core keeps the shadow graph (ds__body), so entries
   that change a graph do nothing. A change of an executable drops its plan.

   Invariants: a plan changes only while no launch uses it, or by the launch whose turn it is,
   before that runs. It lives until the executable and all launches have dropped it, and keeps the
   payloads of its nodes and the executable alive. After a change, either `dirty` is set and there
   is no plan, or `changed` lists the nodes that were set; the next launch or upload makes or
   changes the plan. Event nodes are numbered in the order of the entries, which
   ds__cpu_launch_events repeats.
   Locks: takes none itself. The core's lock of the executable orders changes, uploads and
   launches. Dropping a plan under that lock runs no destructor of the user, because the shadow
   graph still owns the payloads.
   Threads: caller's threads. The last reference to a plan or an executable may be dropped by the
   owner of a launching stream, also a worker; payload destructors then run there. */
#ifndef DS__CPU_GRAPH_H
#define DS__CPU_GRAPH_H

#include "types.h"
#include "queue.h"
#include "stream.h"
#include "graph_plan.h"
#include "together.h"

static void ds__cpu_exec_unref(ds__cpu_exec *x);
static void ds__cpu_exec_destroy(void *exec);
static ds_result ds__cpu_exec_create(const ds__body *body, unsigned flags, ds__cpu_exec **out);

/* Frees a condition, which may be NULL, with the executables of its bodies. */
static void ds__cpu_condition_destroy(ds__cpu_condition *c) {
    for (uint32_t i = 0; c && i < c->count; i++)
        if (c->body[i])
            ds__cpu_exec_destroy(c->body[i]);
    ds__host_free(c);
}

/* Makes the executables of the bodies of a conditional node. */
static ds_result ds__cpu_condition_create(const ds__node *n, ds__cpu_condition **out) {
    const ds__body *bodies = n->child;
    ds__cpu_condition *c = ds__host_alloc(sizeof *c + bodies->count * sizeof c->body[0]);
    ds_result r = DS_OK;
    *out = c;
    if (!c)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a conditional node");
    c->kind = n->op.u.condition.kind;
    c->word = n->op.u.condition.word;
    c->count = bodies->count;
    for (uint32_t i = 0; i < c->count && r == DS_OK; i++)
        r = ds__cpu_exec_create(bodies->node[i]->child, 0, &c->body[i]);
    return r;
}

/* Drops a reference to a plan, which may be NULL. The last one frees the plan, and drops the
   payloads of its nodes and the executable. */
static void ds__cpu_plan_unref(ds__cpu_plan *p) {
    if (!p || atomic_fetch_sub(&p->users, 1) != 1)
        return;
    ds__cpu_exec *x = p->exec;
    for (size_t i = 0; i < p->objects; i++)
        ds__object_unref(p->object[i]);
    if (p->lanes == 0 || p->direct != p->block[0])
        ds__host_free(p->direct);
    for (uint32_t i = 0; i < p->lanes; i++)
        ds__host_free(p->block[i]);
    for (uint32_t i = 0; i < p->conditions; i++)
        ds__cpu_condition_destroy(p->condition[i]);
    ds__host_free(p->condition);
    ds__host_free(p->object);
    ds__host_free(p);
    ds__cpu_exec_unref(x);
}

/* Numbers of the next nodes of some kinds, in the order of the entries. */
typedef struct ds__cpu_numbers {
    uint32_t records;
    uint32_t waits;
    uint32_t conditions;
} ds__cpu_numbers;

/* Gives the operation of a node in the form for lanes; a disabled node does nothing. The arguments
   of a kernel stay in the node. next: numbers the nodes that have data in a launch or plan. */
static void ds__cpu_lane_op(const ds__cpu_flat *f, const ds__cpu_plan *p, ds__cpu_numbers *next,
                            ds__op *out) {
    const ds__node *n = f->node;
    memset(out, 0, sizeof *out);
    out->kind = DS__OP_NOTHING;
    if (!n)
        return;
    int enabled = n->enabled;
    switch (n->kind) {
    case DS_NODE_KERNEL:
    case DS_NODE_COPY:
    case DS_NODE_FILL:
    case DS_NODE_HOST:
    case DS_NODE_VALUES:
        if (enabled)
            *out = n->op;
        break;
    case DS_NODE_EVENT_RECORD:
        out->kind = DS__CPU_OP_NODE_RECORD;
        out->u.wait.upto = next->records++;
        break;
    case DS_NODE_EVENT_WAIT:
        out->kind = DS__CPU_OP_NODE_WAIT;
        out->u.wait.upto = next->waits++;
        break;
    case DS_NODE_CONDITION:
        out->kind = DS__CPU_OP_CONDITION;
        out->u.own.ptr = p->condition[next->conditions++];
        break;
    default:
        break;
    }
}

/* Finds the nodes of all flat nodes again, in the order of ds__cpu_flatten: the core replaces nodes
   when they change. */
static void ds__cpu_regather(ds__cpu_exec *x, const ds__body *b, uint32_t *at) {
    for (uint32_t i = 0; i < b->count; i++)
        x->flat[(*at)++].node = b->node[i];
    for (uint32_t i = 0; i < b->count; i++) {
        if (!ds__cpu_is_flat(b->node[i]))
            continue;
        ++*at; /* the flat node before those of the child */
        ds__cpu_regather(x, b->node[i]->child, at);
    }
}

/* Returns the number of payloads and attached objects of a graph and its children. out: gets a
   reference to each; NULL: they are only counted. */
static size_t ds__cpu_objects_of(const ds__body *b, ds__object **out) {
    size_t n = 0;
    for (size_t i = 0; i < b->object_count; i++, n++)
        if (out)
            out[n] = ds__object_ref(b->object[i]);
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->node[i]->payload && out)
            out[n] = ds__object_ref(b->node[i]->payload);
        n += b->node[i]->payload != NULL;
        if (b->node[i]->child)
            n += ds__cpu_objects_of(b->node[i]->child, out ? out + n : NULL);
    }
    return n;
}

/* Writes an operation of that size to a plan; the arguments of a kernel, or the operations on
   words, follow its head. */
static void ds__cpu_op_write(char *to, const ds__op *op, size_t bytes) {
    if (op->kind != DS__OP_KERNEL) {
        memcpy(to, op, bytes < sizeof *op ? bytes : sizeof *op);
        if (op->kind == DS__OP_VALUES)
            memcpy(to + DS__CPU_ARGS_AT, op->u.values.list,
                   op->u.values.count * sizeof(ds_value_op));
        return;
    }
    memcpy(to, op, DS__CPU_ARGS_AT);
    if (op->u.kernel.args_size)
        memcpy(to + DS__CPU_ARGS_AT, op->u.kernel.args, op->u.kernel.args_size);
}

/* Writes the operations of all lanes (write), or only adds up their bytes in x->bytes, from 0. */
static void ds__cpu_plan_fill(ds__cpu_exec *x, ds__cpu_plan *p, int write) {
    ds__cpu_numbers next = { 0, 0, 0 };
    memset(x->bytes, 0, x->lanes * sizeof *x->bytes);
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__cpu_entry *e = &x->entry[i];
        ds__cpu_flat *f = &x->flat[e->flat];
        size_t *at = &x->bytes[e->lane];
        ds__op op;
        if (e->waits) {
            memset(&op, 0, sizeof op);
            op.kind = DS__CPU_OP_LANE_WAIT;
            op.u.wait.stream = x->lane[f->lane];
            op.u.wait.upto = f->number;
        } else {
            ds__cpu_lane_op(f, p, &next, &op);
            f->place.lane = e->lane;
            f->place.at = (uint32_t)*at;
            f->place.bytes = (uint32_t)ds__cpu_op_bytes(&op);
        }
        size_t bytes = ds__cpu_op_bytes(&op);
        if (write)
            ds__cpu_op_write((char *)p->block[e->lane] + offsetof(ds__cpu_block, data) + *at, &op,
                             bytes);
        *at += bytes;
    }
}

/* Allocates operations in one piece. NULL: no memory, or too many bytes for the offsets of 32
   bits. */
static ds__cpu_block *ds__cpu_piece_alloc(size_t bytes) {
    if (bytes > UINT32_MAX - 64)
        return NULL;
    /* one operation more: a read of a whole ds__op stays inside */
    return ds__host_alloc(offsetof(ds__cpu_block, data) + bytes + sizeof(ds__op));
}

/* Allocates the operations of all lanes. Returns 0 if there is no memory. */
static int ds__cpu_plan_alloc(const ds__cpu_exec *x, ds__cpu_plan *p) {
    for (uint32_t i = 0; i < p->lanes; i++) {
        p->block[i] = ds__cpu_piece_alloc(x->bytes[i]);
        if (!p->block[i])
            return 0;
    }
    return 1;
}

/* Makes the conditions of a plan, in the order of the entries. Returns 0 if there is no memory. */
static int ds__cpu_plan_conditions(const ds__cpu_exec *x, ds__cpu_plan *p) {
    if (!x->conditions)
        return 1;
    p->condition = ds__host_alloc(x->conditions * sizeof *p->condition);
    ds_result r = p->condition ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < x->entries && r == DS_OK; i++) {
        const ds__node *n = x->entry[i].waits ? NULL : x->flat[x->entry[i].flat].node;
        if (n && n->kind == DS_NODE_CONDITION)
            r = ds__cpu_condition_create(n, &p->condition[p->conditions++]);
    }
    return r == DS_OK;
}

/* Writes the operations and objects of the executable into a plan. Returns 0 if there is no
   memory. */
static int ds__cpu_plan_write(ds__cpu_exec *x, ds__cpu_plan *p) {
    if (!ds__cpu_plan_conditions(x, p))
        return 0;
    p->lanes = x->lanes;
    ds__cpu_plan_fill(x, p, 0);
    if (!ds__cpu_plan_alloc(x, p))
        return 0;
    size_t objects = ds__cpu_objects_of(x->body, NULL);
    if (objects) {
        p->object = ds__host_alloc(objects * sizeof *p->object);
        if (!p->object)
            return 0;
    }
    p->objects = ds__cpu_objects_of(x->body, p->object);
    ds__cpu_plan_fill(x, p, 1);
    if (x->lanes == 1) {
        p->direct = p->block[0];
        p->direct_bytes = (uint32_t)x->bytes[0];
    }
    return 1;
}

/* Makes the plan of the executable anew; pending launches keep the old one. After a failure, the
   next launch tries again. */
static ds_result ds__cpu_plan_build(ds__cpu_exec *x) {
    uint32_t flats = 0;
    x->dirty = 1; /* the places of the operations may change before a failure */
    ds__cpu_plan *p = ds__host_alloc(sizeof *p + x->lanes * sizeof p->block[0]);
    if (p) {
        atomic_store(&p->users, 1);
        atomic_fetch_add_explicit(&x->users, 1, memory_order_relaxed);
        p->exec = x;
        p->gate = x->gate;
        p->gate_base = x->gate_base;
    }
    ds__cpu_regather(x, x->body, &flats);
    if (!p || !ds__cpu_plan_write(x, p)) {
        ds__cpu_plan_unref(p);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                        (unsigned)x->flats);
    }
    ds__cpu_plan_unref(x->plan);
    x->plan = p;
    x->dirty = 0;
    x->changes = 0;
    return DS_OK;
}

/* Makes a patch of the nodes that were set. NULL: no memory, or an operation has another size
   now. */
static ds__cpu_patch *ds__cpu_patch_create(ds__cpu_exec *x) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < x->changes; i++) /* the first flat nodes are those of the body */
        bytes += sizeof(ds__cpu_place) + x->flat[x->changed[i]].place.bytes;
    ds__cpu_patch *patch = ds__host_alloc(sizeof *patch + bytes);
    for (uint32_t i = 0; i < x->changes && patch; i++) {
        ds__cpu_flat *f = &x->flat[x->changed[i]];
        ds__cpu_numbers none = { 0, 0, 0 };
        char *to = (char *)(patch + 1) + patch->bytes;
        ds__op op;
        f->node = x->body->node[x->changed[i]];
        ds__cpu_lane_op(f, x->plan, &none, &op);
        if (ds__cpu_op_bytes(&op) != f->place.bytes) {
            ds__host_free(patch);
            return NULL;
        }
        memcpy(to, &f->place, sizeof f->place);
        ds__cpu_op_write(to + sizeof f->place, &op, f->place.bytes);
        patch->bytes += sizeof f->place + f->place.bytes;
    }
    return patch;
}

/* Writes a patch, which may be NULL, into the plan, and frees it. No launch runs the plan. */
static void ds__cpu_patch_apply(ds__cpu_plan *p, ds__cpu_patch *patch) {
    if (!patch)
        return;
    const char *from = (const char *)(patch + 1);
    ds__cpu_place place;
    for (size_t at = 0; at < patch->bytes; at += sizeof place + place.bytes) {
        memcpy(&place, from + at, sizeof place);
        memcpy((char *)p->block[place.lane] + offsetof(ds__cpu_block, data) + place.at,
               from + at + sizeof place, place.bytes);
        if (p->direct && p->direct != p->block[0])
            memcpy((char *)p->direct + offsetof(ds__cpu_block, data) + place.direct_at,
                   from + at + sizeof place, place.bytes);
    }
    ds__host_free(patch);
}

/* Returns 1 if a launch may use the plan. */
static int ds__cpu_plan_is_used(const ds__cpu_plan *p) {
    /* acquire: after the last reads of launches that are done */
    return atomic_load_explicit(&p->users, memory_order_acquire) > 1;
}

/* Brings the plan of the executable up to date. out_patch: gets changes that the next launch must
   write, because pending launches use the plan; if it is NULL, the changes are left for the next
   launch. */
static ds_result ds__cpu_plan_refresh(ds__cpu_exec *x, ds__cpu_patch **out_patch) {
    if (DS__LIKELY(!x->dirty && !x->changes))
        return DS_OK;
    int used = !x->dirty && ds__cpu_plan_is_used(x->plan);
    if (used && !out_patch)
        return DS_OK;
    ds__cpu_patch *patch = x->dirty ? NULL : ds__cpu_patch_create(x);
    if (!patch)
        return ds__cpu_plan_build(x);
    if (used)
        *out_patch = patch;
    else
        ds__cpu_patch_apply(x->plan, patch);
    x->changes = 0;
    return DS_OK;
}

/* Drops a reference to an executable. The last one frees it, and destroys its lanes and its
   gate. */
static void ds__cpu_exec_unref(ds__cpu_exec *x) {
    if (atomic_fetch_sub(&x->users, 1) != 1)
        return;
    for (uint32_t i = 0; x->lane && i < x->lanes; i++)
        if (x->lane[i]) {
            x->lane[i]->head = NULL;
            ds__cpu_stream_destroy(x->lane[i]);
        }
    if (x->gate) {
        atomic_store(&x->gate->state, DS__CPU_IDLE);
        ds__cpu_stream_destroy(x->gate);
    }
    for (uint32_t i = 0; i < x->flats; i++)
        ds__host_free(x->flat[i].deps);
    ds__host_free(x->flat);
    ds__host_free(x->entry);
    ds__host_free(x->lane);
    ds__host_free(x->base);
    ds__host_free(x->bytes);
    ds__host_free(x->changed);
    ds__host_free(x->operations);
    ds__host_free(x);
}

/* Drops the owner's reference, and the plan; pending launches keep both. */
static void ds__cpu_exec_destroy(void *exec) {
    ds__cpu_exec *x = exec;
    ds__cpu_plan_unref(x->plan);
    x->plan = NULL;
    ds__cpu_exec_unref(x);
}

/* Makes an executable of a graph, which must exist as long as the executable has its owner. */
static ds_result ds__cpu_exec_create(const ds__body *body, unsigned flags, ds__cpu_exec **out) {
    ds__cpu_exec *x = ds__host_alloc(sizeof *x);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    atomic_store(&x->users, 1);
    x->body = body;
    x->flags = flags;
    ds_result r = DS_OK;
    if (!ds__cpu_lay_out(x) || !ds__cpu_make_lanes(x))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                     (unsigned)body->count);
    if (r == DS_OK)
        r = ds__cpu_plan_build(x);
    if (r < 0) {
        ds__cpu_exec_destroy(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

static ds_result ds__cpu_graph_instantiate(ds__body *graph, ds__body *copy, unsigned flags,
                                           void **out) {
    ds__cpu_exec *x = NULL;
    (void)graph;
    ds_result r = ds__cpu_exec_create(copy, flags, &x);
    *out = x;
    return r;
}

/* Refuses a cooperative kernel that does not fit, and starts its threads. */
static ds_result ds__cpu_node_ready(const ds__node *n) {
    return n->kind == DS_NODE_KERNEL ? ds__cpu_together_ready(n->device.index, 0, &n->op) : DS_OK;
}

/* The entries that change a graph do nothing else: the core keeps the graphs. */
static ds_result ds__cpu_graph_create(ds__body *body) {
    (void)body;
    return DS_OK;
}

static ds_result ds__cpu_graph_clone(ds__body *from, ds__body *to) {
    (void)from;
    (void)to;
    return DS_OK;
}

static ds_result ds__cpu_graph_add(ds__body *body, uint32_t index) {
    return ds__cpu_node_ready(body->node[index]);
}

static ds_result ds__cpu_graph_edges(ds__body *body, const ds_graph_node *from,
                                     const ds_graph_node *to, size_t count) {
    (void)body;
    (void)from;
    (void)to;
    (void)count;
    return DS_OK;
}

static ds_result ds__cpu_graph_set(ds__body *body, uint32_t index, ds__node *fresh) {
    (void)body;
    (void)index;
    return ds__cpu_node_ready(fresh);
}

static ds_result ds__cpu_graph_attach(ds__body *body, ds__object *object) {
    (void)body;
    (void)object;
    return DS_OK;
}

/* Drops the plan, which keeps payloads alive, at once; pending launches keep it. The core changes
   the shadow graph after the entry has returned, and the next launch makes a plan. */
static ds_result ds__cpu_exec_changed(ds__cpu_exec *x) {
    ds__cpu_plan_unref(x->plan);
    x->plan = NULL;
    x->dirty = 1;
    return DS_OK;
}

/* Notes that a node is set. The plan stays, because kernels, copies, fills and operations on words
   have no payloads; after a change of another kind of node the plan is dropped. */
static ds_result ds__cpu_exec_node_changed(ds__cpu_exec *x, uint32_t index) {
    ds_node_kind kind = x->body->node[index]->kind;
    if (x->dirty)
        return DS_OK;
    if ((kind != DS_NODE_KERNEL && kind != DS_NODE_COPY && kind != DS_NODE_FILL &&
         kind != DS_NODE_VALUES) ||
        x->changes >= x->flats ||
        !ds__array_reserve(&x->changed, sizeof *x->changed, x->changes, 1, &x->changed_room))
        return ds__cpu_exec_changed(x);
    x->changed[x->changes++] = index;
    return DS_OK;
}

static ds_result ds__cpu_exec_update(void *exec, ds__body *graph,
                                     ds_graph_update_reason *out_reason, uint32_t *out_node) {
    (void)graph;
    (void)out_reason;
    (void)out_node;
    return ds__cpu_exec_changed(exec);
}

static ds_result ds__cpu_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    ds_result r = ds__cpu_node_ready(fresh);
    return r < 0 ? r : ds__cpu_exec_node_changed(exec, index);
}

static ds_result ds__cpu_exec_enable(void *exec, uint32_t index, int enabled) {
    (void)enabled;
    return ds__cpu_exec_node_changed(exec, index);
}

#endif
