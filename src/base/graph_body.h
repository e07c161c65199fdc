/* base/graph_body.h - shadow graph: nodes, dependencies and attached objects.

   The core keeps a shadow graph (ds__body) of every graph: nodes with copies of their arguments,
   their dependencies, and the objects that the graph keeps alive. The CPU driver runs the shadow
   graph itself; the CUDA driver keeps a CUDA graph beside it, node for node. ds__node_create,
   ds__body_append and ds__body_copy build shadow graphs, ds__body_destroy ends one.

   Invariants: a node holds its kernel or event by a reference. A user's object (ds__object: a
   host function's argument, an attached object) counts its owners: graphs, executables and
   pending launches. The last owner runs the destructor, once. Dependencies are indices of nodes
   of the same body, each at most once. `hooked` is set if the body or a child has an object with
   a launch_fn.
   Locks: functions that read or change a body expect the lock of its graph or executable; while
   a capture adds to the graph, also ds__g.capture_lock. Dropping a reference takes the lock of
   the object table. ds__object_unref, ds__node_destroy and ds__body_destroy run the user's
   destructor with the last owner; where that can happen, they must be called without a lock.
   Threads: any thread; ds__object_ref and ds__object_unref also run on threads of the
   library. */
#ifndef DS__BASE_GRAPH_BODY_H
#define DS__BASE_GRAPH_BODY_H

#include "thread_block.h"
#include "error.h"
#include "handle.h"
#include "pin.h"
#include "object.h"
#include "operation.h"
#include "driver.h"
#include "state.h"

/* Called at each launch of an executable that has the object: before the launch with DS_NOT_READY,
   and after it with its result. */
typedef ds_result (*ds__launch_fn)(void *user, ds__stream *s, ds_result how);

/* Takes (1) or releases (0) the object for a launch. A launch takes its objects in the order of
   their addresses. */
typedef void (*ds__launch_lock_fn)(void *user, int take);

struct ds__object {
    _Atomic int owners;
    void *user;
    ds_host_fn dtor_fn;
    /* of ds__capture_attachment: its key and its capture */
    const void *key;
    uint64_t capture;
    ds__launch_fn launch_fn;           /* or NULL */
    ds__launch_lock_fn launch_lock_fn; /* set if launch_fn is */
};

struct ds__node {
    ds_node_kind kind;
    ds_device device;
    int priority;
    int enabled;
    ds__op op; /* its arguments and grid are the node's own */
    char *label;
    uint32_t *deps; /* indices of the nodes that it starts after */
    uint32_t dep_count;
    size_t dep_room;
    ds__object *payload; /* a host function's argument */
    /* the child graph; of a conditional node: a graph with a child node for each body */
    ds__body *child;
    void *native; /* the driver's */
};

struct ds__body {
    const ds__driver *driver;
    ds_device device;
    uint32_t serial; /* number of the graph, which its node handles carry */
    uint32_t origin; /* number of the graph that it was copied from */
    uint32_t count;
    size_t room;
    ds__node **node;
    ds__object **object;
    size_t object_count;
    size_t object_room;
    int hooked;      /* 1: the body, or a child graph, has objects with a launch_fn */
    int conditional; /* 1: the body has conditional nodes */
    void *native;    /* the driver's */
};

static const char *const ds__node_names[] = { "empty",      "kernel",        "copy",
                                              "fill",       "host function", "event record",
                                              "event wait", "child graph",   "native",
                                              "values",     "condition" };

/* Returns an object with one owner. NULL: no memory, and the sentence is set. */
static ds__object *ds__object_create(void *user, ds_host_fn dtor_fn) {
    ds__object *o = ds__host_alloc(sizeof *o);
    if (!o) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an object");
        return NULL;
    }
    o->user = user;
    o->dtor_fn = dtor_fn;
    atomic_store(&o->owners, 1);
    return o;
}

static ds__object *ds__object_ref(ds__object *o) {
    if (o)
        atomic_fetch_add(&o->owners, 1);
    return o;
}

/* Drops a reference; the last one runs the destructor. Any thread, also of the library; NULL is
   allowed. */
static void ds__object_unref(ds__object *o) {
    if (!o || atomic_fetch_sub(&o->owners, 1) != 1)
        return;
    ds__user_code outer = ds__user_code_begin();
    if (o->dtor_fn)
        o->dtor_fn(o->user);
    ds__user_code_end(&outer);
    ds__host_free(o);
}

static ds__body *ds__body_copy(const ds__body *from, int with_serial);
static void ds__body_destroy(ds__body *b);

/* Frees a node and drops its references. A destructor of the user may run. NULL is allowed. */
static void ds__node_destroy(ds__node *n) {
    if (!n)
        return;
    if (n->kind == DS_NODE_KERNEL) {
        if (n->op.u.kernel.kernel)
            ds__unref(&ds__g.kernels, n->op.u.kernel.kernel);
        ds__host_free((void *)(uintptr_t)n->op.u.kernel.args);
        ds__host_free((void *)(uintptr_t)n->op.u.kernel.grid);
    }
    if (n->kind == DS_NODE_VALUES)
        ds__host_free((void *)(uintptr_t)n->op.u.values.list);
    if ((n->kind == DS_NODE_EVENT_RECORD || n->kind == DS_NODE_EVENT_WAIT) && n->op.u.event.object)
        ds__unref(&ds__g.events, n->op.u.event.object);
    ds__object_unref(n->payload);
    if (n->child)
        ds__body_destroy(n->child);
    ds__host_free(n->label);
    ds__host_free(n->deps);
    ds__host_free(n);
}

/* Frees a node that is not used. The payload's destructor does not run; the caller ends the
   payload. */
static void ds__node_discard(ds__node *n) {
    if (n && n->payload)
        n->payload->dtor_fn = NULL;
    ds__node_destroy(n);
}

static ds__node *ds__no_node(ds__node *n) {
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a node");
    ds__node_discard(n);
    return NULL;
}

static void *ds__copy_bytes(const void *from, size_t size) {
    void *to = ds__host_alloc(size);
    return to ? memcpy(to, from, size) : NULL;
}

/* Copies the arguments and the grid of a kernel, and keeps the kernel. Returns 0 if there is no
   memory; the node then has what was copied. An overlap belongs to an edge of CUDA's graph, not to
   the node. */
static int ds__node_take_kernel(ds__node *n, const ds__op *op) {
    ds_grid grid;
    ds__ref(op->u.kernel.kernel);
    n->op.u.kernel.args =
        op->u.kernel.args_size ? ds__copy_bytes(op->u.kernel.args, op->u.kernel.args_size) : NULL;
    n->op.u.kernel.grid = NULL;
    if (op->u.kernel.grid) {
        grid = *op->u.kernel.grid;
        grid.flags &= ~(unsigned)DS_GRID_OVERLAP;
        n->op.u.kernel.grid = ds__copy_bytes(&grid, sizeof grid);
    }
    return (!op->u.kernel.args_size || n->op.u.kernel.args) &&
           (!op->u.kernel.grid || n->op.u.kernel.grid);
}

/* Makes the payload of a host function with a destructor. Returns 0 if there is no memory, and the
   sentence is set. */
static int ds__node_take_host(ds__node *n, const ds__op *op) {
    n->op.u.host.dtor_fn = NULL;
    if (!op->u.host.dtor_fn)
        return 1;
    n->payload = ds__object_create(op->u.host.user, op->u.host.dtor_fn);
    return n->payload != NULL;
}

/* Takes the child graph, or a copy of it without DS__OP_GIVEN. Returns 0 if there is no memory, and
   the sentence is set. */
static int ds__node_take_child(ds__node *n, const ds__op *op, ds__body *child) {
    n->child = op->flags & DS__OP_GIVEN ? child : ds__body_copy(child, 0);
    n->op.flags = 0;
    return n->child != NULL;
}

static ds_node_kind ds__node_kind_of(int op_kind) {
    static const ds_node_kind kinds[] = { [DS__OP_NOTHING] = DS_NODE_EMPTY,
                                          [DS__OP_KERNEL] = DS_NODE_KERNEL,
                                          [DS__OP_COPY] = DS_NODE_COPY,
                                          [DS__OP_FILL] = DS_NODE_FILL,
                                          [DS__OP_HOST] = DS_NODE_HOST,
                                          [DS__OP_RECORD] = DS_NODE_EVENT_RECORD,
                                          [DS__OP_WAIT] = DS_NODE_EVENT_WAIT,
                                          [DS__OP_EXTERNAL_RECORD] = DS_NODE_EVENT_RECORD,
                                          [DS__OP_EXTERNAL_WAIT] = DS_NODE_EVENT_WAIT,
                                          [DS__OP_GRAPH] = DS_NODE_CHILD,
                                          [DS__OP_VALUES] = DS_NODE_VALUES,
                                          [DS__OP_CONDITION] = DS_NODE_CONDITION };
    return kinds[op_kind];
}

/* Makes a node of an operation. The node copies the memory of the operation, and keeps its kernel
   or event. Returns NULL if there is no memory, and the sentence is set. */
static ds__node *ds__node_create(const ds__op *op, ds_device device, int priority) {
    ds__node *n = ds__host_alloc(sizeof *n);
    if (!n)
        return ds__no_node(n);
    n->kind = ds__node_kind_of(op->kind);
    n->device = device;
    n->priority = priority;
    n->enabled = 1;
    n->op = *op;
    n->op.flags = (uint8_t)(op->flags & ~(unsigned)(DS__OP_OUTSIDE | DS__OP_INSIDE));

    int taken = 1;
    switch (n->kind) {
    case DS_NODE_KERNEL:
        if (!ds__node_take_kernel(n, op))
            return ds__no_node(n);
        break;
    case DS_NODE_COPY:
    case DS_NODE_FILL:
        n->op.flags = (uint8_t)(op->flags & ~(unsigned)DS__OP_BLOCKS);
        break;
    case DS_NODE_VALUES:
        n->op.u.values.list =
            ds__copy_bytes(op->u.values.list, op->u.values.count * sizeof *op->u.values.list);
        if (!n->op.u.values.list)
            return ds__no_node(n);
        break;
    case DS_NODE_HOST:
        taken = ds__node_take_host(n, op);
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        ds__ref(op->u.event.object);
        break;
    case DS_NODE_CHILD:
        taken = ds__node_take_child(n, op, op->u.graph.body);
        break;
    case DS_NODE_CONDITION:
        taken = ds__node_take_child(n, op, op->u.condition.bodies);
        n->op.u.condition.bodies = NULL;
        break;
    case DS_NODE_EMPTY:
    case DS_NODE_NATIVE:
        break;
    }
    if (!taken) {
        ds__node_destroy(n);
        return NULL;
    }
    return n;
}

/* Returns a copy of a node without its dependencies. Both share the payload. NULL: no memory, and
   the sentence is set. */
static ds__node *ds__node_copy(const ds__node *from) {
    ds__op op = from->op;
    if (from->kind == DS_NODE_CHILD)
        op.u.graph.body = from->child;
    if (from->kind == DS_NODE_CONDITION)
        op.u.condition.bodies = from->child;
    ds__node *n = ds__node_create(&op, from->device, from->priority);
    if (!n)
        return NULL;
    n->kind = from->kind;
    n->enabled = from->enabled;
    n->payload = ds__object_ref(from->payload);
    if (from->label)
        n->label = ds__copy_text(from->label, 255);
    if (from->label && !n->label) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a node");
        ds__node_destroy(n);
        return NULL;
    }
    return n;
}

/* Makes room for one more element in an array of a graph. Returns 0 if there is no memory, and the
   sentence is set. */
static int ds__graph_array_reserve(void *array, size_t element, size_t count, size_t *room) {
    if (ds__array_reserve(array, element, count, 1, room))
        return 1;
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
    return 0;
}

static int ds__node_depends(const ds__node *n, uint32_t on) {
    for (uint32_t i = 0; i < n->dep_count; i++)
        if (n->deps[i] == on)
            return 1;
    return 0;
}

/* Adds a dependency, unless the node has it. Returns 0 if there is no memory. */
static int ds__node_depend(ds__node *n, uint32_t on) {
    if (ds__node_depends(n, on))
        return 1;
    if (!ds__graph_array_reserve(&n->deps, sizeof *n->deps, n->dep_count, &n->dep_room))
        return 0;
    n->deps[n->dep_count++] = on;
    return 1;
}

/* Returns a number of a graph, never 0. */
static uint32_t ds__next_serial(void) {
    uint32_t serial;
    do
        serial = atomic_fetch_add(&ds__g.next_graph, 1) + 1;
    while (serial == 0);
    return serial;
}

/* Returns an empty body. NULL: no memory, and the sentence is set. */
static ds__body *ds__body_create(const ds__driver *driver, ds_device device) {
    ds__body *b = ds__host_alloc(sizeof *b);
    if (!b) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        return NULL;
    }
    b->driver = driver;
    b->device = device;
    b->serial = ds__next_serial();
    return b;
}

static void ds__body_destroy(ds__body *b) {
    if (b->native)
        b->driver->graph_destroy(b);
    for (uint32_t i = 0; i < b->count; i++)
        ds__node_destroy(b->node[i]);
    for (size_t i = 0; i < b->object_count; i++)
        ds__object_unref(b->object[i]);
    ds__host_free(b->node);
    ds__host_free(b->object);
    ds__host_free(b);
}

/* Appends a node with its dependencies, each of which occurs once. The body owns the node then; on
   failure the caller does. */
static ds_result ds__body_append(ds__body *b, ds__node *n, const uint32_t *deps, size_t count) {
    if (b->count == UINT32_MAX - 1)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the graph has too many nodes");
    if (count) { /* otherwise the node keeps its own */
        n->deps = ds__copy_bytes(deps, count * sizeof *deps);
        if (!n->deps)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        n->dep_room = count;
        n->dep_count = (uint32_t)count;
    }
    if (!ds__graph_array_reserve(&b->node, sizeof *b->node, b->count, &b->room))
        return DS_ERR_OUT_OF_MEMORY;
    b->node[b->count++] = n;
    if (n->child && n->child->hooked)
        b->hooked = 1;
    if (n->kind == DS_NODE_CONDITION)
        b->conditional = 1;
    return DS_OK;
}

/* Adds an object to the body, which becomes an owner of it. */
static ds_result ds__body_object_add(ds__body *b, ds__object *o) {
    if (!ds__graph_array_reserve(&b->object, sizeof *b->object, b->object_count, &b->object_room))
        return DS_ERR_OUT_OF_MEMORY;
    b->object[b->object_count++] = ds__object_ref(o);
    if (o->launch_fn)
        b->hooked = 1;
    return DS_OK;
}

/* Copies nodes, dependencies and kept objects, but nothing of the driver. with_serial: the nodes of
   the copy have the same handles. */
static ds__body *ds__body_copy(const ds__body *from, int with_serial) {
    ds__body *b = ds__body_create(from->driver, from->device);
    if (!b)
        return NULL;
    if (with_serial)
        b->serial = from->serial;
    b->origin = from->serial;
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < from->count && r == DS_OK; i++) {
        ds__node *n = ds__node_copy(from->node[i]);
        r = n ? ds__body_append(b, n, from->node[i]->deps, from->node[i]->dep_count)
              : DS_ERR_OUT_OF_MEMORY;
        if (r < 0)
            ds__node_destroy(n);
    }
    for (size_t i = 0; i < from->object_count && r == DS_OK; i++)
        r = ds__body_object_add(b, from->object[i]);
    if (r == DS_OK)
        return b;
    ds__body_destroy(b);
    return NULL;
}

/* Marks the nodes and all nodes that they depend on, directly or not. mark: one byte for each node
   of the body. Returns 0 if there is no memory. */
static int ds__body_ancestors(const ds__body *b, const uint32_t *nodes, size_t count,
                              unsigned char *mark) {
    uint32_t *stack = ds__host_alloc((b->count + 1) * sizeof *stack);
    uint32_t depth = 0;
    if (!stack)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!mark[nodes[i]]) {
            mark[nodes[i]] = 1;
            stack[depth++] = nodes[i];
        }
    while (depth) {
        const ds__node *n = b->node[stack[--depth]];
        for (uint32_t i = 0; i < n->dep_count; i++)
            if (!mark[n->deps[i]]) {
                mark[n->deps[i]] = 1;
                stack[depth++] = n->deps[i];
            }
    }
    ds__host_free(stack);
    return 1;
}

/* "node 3 (kernel add_rows)" */
static const char *ds__node_text(const ds__node *n, uint32_t index, char *out, size_t size) {
    const char *name = n->kind == DS_NODE_KERNEL ? n->op.u.kernel.kernel->name : "";
    snprintf(out, size, "node %u (%s%s%.60s%s%.60s)", (unsigned)index, ds__node_names[n->kind],
             *name ? " " : "", name, n->label ? " " : "", n->label ? n->label : "");
    return out;
}

static const char *ds__node_print(const ds__body *b, uint32_t index, char *out, size_t size) {
    return ds__node_text(b->node[index], index, out, size);
}

#endif
