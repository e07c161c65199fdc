/* core/graph_add.h - graphs: nodes by hand, edges, list of nodes.

   Makes a node of a description (ds__node_of_desc) and appends it to a graph (ds_graph_add).
   Adds edges between nodes (ds_graph_add_edges) and returns the nodes of a graph
   (ds_graph_get_nodes).

   Invariants: a graph has no cycle, and a node depends on another one at most once. A call adds
   its node, or all of its edges, or nothing. The payload of a refused host node is ended by
   ds__refuse_payload, without a lock.
   Locks: the graph's lock, and ds__g.capture_lock inside of it while a capture adds to the graph
   (ds__graph_share). A child graph is copied under its own lock, before the parent's is taken.
   ds__node_of_desc also runs under an executable's lock. Under these locks run the driver's
   kernel_load, condition_load, event_create (inside of e->bind), device_peer and pointer_query.
   The driver's graph_add and graph_edges may also run under the capture lock.
   Threads: any. */
#ifndef DS__CORE_GRAPH_ADD_H
#define DS__CORE_GRAPH_ADD_H

#include "init.h"
#include "device.h"
#include "submit.h"
#include "event.h"
#include "copy.h"
#include "value.h"
#include "host_func.h"
#include "kernel.h"
#include "graph.h"

/* Returns the number of items that the description of a kernel node asks for. */
static ds_result ds__desc_items(const ds_kernel_node *k, const ds__kernel *kernel, size_t *out) {
    *out = k->items;
    if (k->grid) {
        ds_result r = ds__grid_items(k->grid, out);
        if (r < 0)
            return ds__fail_append(r, " (kernel %s)", kernel->name);
        DS__REQUIRE(!(k->grid->flags & DS_GRID_OVERLAP),
                    "kernel %s: a node has no previous kernel of a stream; DS_GRID_OVERLAP is for "
                    "launches, also captured ones",
                    kernel->name);
    }
    DS__REQUIRE(*out > 0, "kernel %s: a node needs at least one item", kernel->name);
    return DS_OK;
}

/* Finds the device of a node that is not of the memory of its operands: that of the description,
   else that of the graph. */
static ds_result ds__desc_device(const ds__body *b, const ds_node_desc *d, ds_device *device) {
    *device = d->device.type == DS_DEVICE_CURRENT && d->device.index == 0 ? b->device : d->device;
    DS__RESOLVE(*device);
    if (device->type != b->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the node is for %s:%d, but the graph is for devices of type %s",
                        ds__type_name(device->type), device->index, ds__type_name(b->device.type));
    return DS_OK;
}

/* The functions ds__desc_KIND check one kind of description and fill its operation, which refers to
   memory of the description; ds__node_create takes copies. The caller unpins *pinned after that. */
static ds_result ds__desc_kernel(const ds__body *b, const ds_node_desc *d, ds__op *op,
                                 ds_device *device, void **pinned) {
    const ds_kernel_node *k = &d->u.kernel;
    ds_result r = ds__desc_device(b, d, device);
    if (r < 0)
        return r;
    ds__kernel *kernel = ds__pin(&ds__g.kernels, k->kernel.id);
    *pinned = kernel;
    if (!kernel)
        return ds__fail(DS_ERR_INVALID_HANDLE, k->kernel.id
                                                   ? "the kernel was destroyed or never existed"
                                                   : "no kernel was given (the handle is zero)");
    DS__REQUIRE(k->args_size == kernel->args_size && (k->args || !k->args_size),
                "kernel %s has %zu bytes of arguments; the call passes %zu at %p", kernel->name,
                kernel->args_size, k->args_size, k->args);
    size_t items;
    r = ds__desc_items(k, kernel, &items);
    if (r < 0)
        return r;
    op->u.kernel.kernel = kernel;
    op->u.kernel.items = items;
    op->u.kernel.args_size = k->args_size;
    op->u.kernel.args = k->args;
    ds__op_set_grid(op, k->grid);
    return b->driver->kernel_load(device->index, kernel);
}

static ds_result ds__desc_values(const ds__body *b, const ds_node_desc *d, ds__op *op,
                                 ds_device *device) {
    const ds_values_node *v = &d->u.values;
    DS__REQUIRE(v->count, "the node has no operations on words");
    ds_result r = ds__desc_device(b, d, device);
    if (r == DS_OK)
        r = ds__values_check(b->driver, *device, v->ops, v->count);
    op->u.values.list = v->ops;
    op->u.values.count = v->count;
    return r;
}

static ds_result ds__desc_event(const ds__body *b, const ds_node_desc *d, ds__op *op,
                                ds_device *device, void **pinned) {
    if (d->device.type != DS_DEVICE_CURRENT || d->device.index != 0)
        *device = d->device;
    DS__RESOLVE(*device);
    ds__event *e = ds__event_pin(d->u.event);
    *pinned = e;
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int64_t bound = atomic_load(&e->device);
    ds_result r = DS_OK;
    if (device->type != b->device.type || (bound >= 0 && (int)(bound >> 32) != b->device.type))
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the event and the graph belong to different drivers");
    if (r == DS_OK)
        r = ds__event_claim(e, b->driver, *device, d->kind != DS_NODE_EVENT_RECORD);
    if (r == DS_OK)
        ds__event_settle(e, 1); /* the event stays there even if its first record fails */
    op->u.event.event = atomic_load_explicit(&e->native, memory_order_acquire);
    op->u.event.object = e;
    return r;
}

/* Copies a graph; native: with what the driver has of it. */
static ds_result ds__graph_copy_body(ds_graph graph, int native, ds__body **out) {
    ds__graph *g = ds__graph_lock(graph);
    ds_result r = DS_OK;
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    if (atomic_load(&g->capturing)) {
        r = ds__being_captured(g);
    } else if (native) {
        r = ds__body_clone(g->body, out);
    } else {
        *out = ds__body_copy(g->body, 0);
        r = *out ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    }
    return ds__graph_unlock(g, r);
}

/* Appends a copy of a graph to the bodies of a conditional node. */
static ds_result ds__bodies_append(ds__body **bodies, ds_graph graph) {
    ds__op op = ds__op_init(DS__OP_GRAPH | DS__OP_GIVEN << 8);
    memset(&op.u, 0, sizeof op.u);
    ds_result r = ds__graph_copy_body(graph, 0, &op.u.graph.body);
    if (r < 0)
        return r;
    if (!*bodies)
        *bodies = ds__body_create(op.u.graph.body->driver, op.u.graph.body->device);
    ds__node *n = *bodies ? ds__node_create(&op, op.u.graph.body->device, 0) : NULL;
    if (!n) {
        ds__body_destroy(op.u.graph.body);
        return DS_ERR_OUT_OF_MEMORY;
    }
    r = ds__body_append(*bodies, n, NULL, 0);
    if (r < 0)
        ds__node_destroy(n);
    return r;
}

/* Copies the bodies of a conditional node into a graph with a child node for each of them. */
static ds_result ds__bodies_copy(const ds_condition_node *c, ds__body **out) {
    /* the limits of CUDA (docs/gpu) */
    static const size_t most[] = { 2, 1, UINT16_MAX };
    ds_result r = DS_OK;
    DS__REQUIRE((unsigned)c->kind <= DS_CONDITION_SWITCH, "kind is %d; use a DS_CONDITION_* kind",
                (int)c->kind);
    DS__REQUIRE(c->count >= 1 && c->count <= most[c->kind],
                "the conditional node has %zu bodies; 1 to %zu are allowed", c->count,
                most[c->kind]);
    DS__REQUIRE(c->bodies, "bodies is NULL");
    for (size_t i = 0; i < c->count && r == DS_OK; i++) {
        r = ds__bodies_append(out, c->bodies[i]);
        if (r < 0)
            ds__fail_append(r, " (body %zu)", i);
    }
    return r;
}

/* Copies the child graph of a description, or the bodies of a conditional node. Must be called
   before the parent is locked, so that two locks of graphs are never held. On failure, the caller
   destroys *out if it is not NULL. */
static ds_result ds__child_copy(const ds_node_desc *d, ds__body **out) {
    *out = NULL;
    if (d && d->kind == DS_NODE_CONDITION)
        return ds__bodies_copy(&d->u.condition, out);
    return d && d->kind == DS_NODE_CHILD ? ds__graph_copy_body(d->u.child, 1, out) : DS_OK;
}

/* Discards a node that was not added. The caller gets its child graph back and frees it without a
   lock, since the copy may be the last owner of objects of the user. */
static void ds__node_refuse(ds__node *n, ds__body **child) {
    if (n && n->child) {
        *child = n->child;
        n->child = NULL;
    }
    ds__node_discard(n);
}

/* Refuses members of later versions. */
static ds_result ds__desc_reserved(const ds_node_desc *d) {
    DS__REQUIRE_RESERVED("ds_node_desc", d);
    if (d->kind == DS_NODE_KERNEL)
        DS__REQUIRE_RESERVED("ds_kernel_node", &d->u.kernel);
    if (d->kind == DS_NODE_COPY)
        DS__REQUIRE_RESERVED("ds_copy_node", &d->u.copy);
    if (d->kind == DS_NODE_FILL)
        DS__REQUIRE_RESERVED("ds_fill_node", &d->u.fill);
    if (d->kind == DS_NODE_HOST)
        DS__REQUIRE_RESERVED("ds_host_node", &d->u.host);
    if (d->kind == DS_NODE_VALUES)
        DS__REQUIRE_RESERVED("ds_values_node", &d->u.values);
    if (d->kind == DS_NODE_CONDITION)
        DS__REQUIRE_RESERVED("ds_condition_node", &d->u.condition);
    return DS_OK;
}

static ds_result ds__desc_copy(const ds__body *b, const ds_node_desc *d, ds__op *op) {
    const ds_copy_node *c = &d->u.copy;
    size_t height = c->height ? c->height : 1;
    size_t dst_pitch = height > 1 ? c->dst_pitch : c->width;
    size_t src_pitch = height > 1 ? c->src_pitch : c->width;
    if (!c->width || dst_pitch < c->width || src_pitch < c->width)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "a copy of %zu rows of %zu bytes has pitches %zu and %zu; a row must not "
                        "be 0 or exceed a pitch",
                        height, c->width, dst_pitch, src_pitch);
    ds_result r = ds__copy_op(b->driver, op,
                              &(ds__copy_request){ .dst = c->dst,
                                                   .src = c->src,
                                                   .dst_pitch = dst_pitch,
                                                   .src_pitch = src_pitch,
                                                   .width = c->width,
                                                   .height = height,
                                                   .flags = DS_COPY_HOST_STABLE });
    if (r == DS_OK && ds__copy_crosses(op))
        r = ds__fail(DS_ERR_CROSS_DRIVER,
                     "a graph cannot copy between devices of different drivers");
    return r;
}

static ds_result ds__desc_fill(const ds__body *b, const ds_node_desc *d, ds__op *op) {
    const ds_fill_node *f = &d->u.fill;
    size_t height = f->height ? f->height : 1;
    if (!f->width)
        return ds__fail(DS_ERR_INVALID_VALUE, "the fill has 0 elements; width must be at least 1");
    return ds__fill_op(
        b->driver, op,
        &(ds__fill_request){ .ptr = f->ptr,
                             .pitch = height > 1 ? f->pitch : f->width * f->value_size,
                             .value_size = f->value_size,
                             .width = f->width,
                             .height = height,
                             .value = f->value,
                             .flags = DS_COPY_HOST_STABLE });
}

static ds_result ds__desc_host(const ds_node_desc *d, ds__op *op) {
    if (!d->u.host.fn)
        return ds__fail(DS_ERR_INVALID_VALUE, "the function is NULL");
    op->u.host.fn = d->u.host.fn;
    op->u.host.user = d->u.host.user;
    op->u.host.dtor_fn = d->u.host.dtor_fn;
    return DS_OK;
}

/* The node takes the copy of the child graph, which ds__child_copy made. */
static ds_result ds__desc_child(const ds__body *b, ds__body *child, ds__op *op) {
    if (child->driver->type != b->driver->type)
        return ds__fail(DS_ERR_CROSS_DRIVER, "the child graph belongs to another driver");
    if (child->conditional)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "a graph with conditional nodes cannot be a child graph");
    op->flags = DS__OP_GIVEN;
    op->u.graph.body = child;
    return DS_OK;
}

/* Returns 1 if a copy or fill has an operand in memory of a device: CUDA's own node, no host
   function. */
static int ds__touches_device(const ds__op *op) {
    return ds__place_of(op, DS__OP_DST) >= DS__AT_DEVICE ||
           (op->kind == DS__OP_COPY && ds__place_of(op, DS__OP_SRC) >= DS__AT_DEVICE);
}

/* Refuses nodes that a body of a conditional node cannot have (CUDA C++ Programming Guide,
   "Conditional Graph Nodes"). */
static ds_result ds__body_is_conditionable(const ds__body *body, ds_device device) {
    char text[160];
    for (uint32_t i = 0; i < body->count; i++) {
        const ds__node *n = body->node[i];
        const char *why = NULL;
        if (n->device.index != device.index)
            why = "it is on another device than the conditional node";
        else if (n->kind == DS_NODE_HOST || n->kind == DS_NODE_EVENT_RECORD ||
                 n->kind == DS_NODE_EVENT_WAIT || n->kind == DS_NODE_VALUES ||
                 n->kind == DS_NODE_NATIVE)
            why = "a node of this kind cannot be in a body";
        else if ((n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL) &&
                 !ds__touches_device(&n->op))
            why = "it touches no memory of a device";
        if (why)
            return ds__fail(DS_ERR_UNSUPPORTED, "%s: %s", ds__node_text(n, i, text, sizeof text),
                            why);
        if (n->kind == DS_NODE_CHILD) {
            ds_result r = ds__body_is_conditionable(n->child, device);
            if (r < 0)
                return ds__fail_append(r, " in %s", ds__node_text(n, i, text, sizeof text));
        }
    }
    return DS_OK;
}

/* The node takes the copies of its bodies, which ds__child_copy made. */
static ds_result ds__desc_condition(const ds__body *b, const ds_node_desc *d, ds__body *bodies,
                                    ds__op *op, ds_device *device) {
    const ds_condition_node *c = &d->u.condition;
    const ds_value_op word = { (void *)(uintptr_t)c->word, 0, DS_VALUE_WAIT_EQ, 4 };
    ds_result r = ds__desc_device(b, d, device);
    if (r == DS_OK)
        r = ds__values_check(b->driver, *device, &word, 1);
    if (r == DS_OK && bodies->hooked)
        r = ds__fail(DS_ERR_UNSUPPORTED,
                     "a body of a conditional node cannot have fills of random numbers by a "
                     "generator");
    for (uint32_t i = 0; i < bodies->count && r == DS_OK; i++) {
        const ds__body *body = bodies->node[i]->child;
        if (body->driver != b->driver)
            r = ds__fail(DS_ERR_CROSS_DRIVER, "the body belongs to another driver");
        else
            r = ds__body_is_conditionable(body, *device);
        if (r < 0)
            ds__fail_append(r, " (body %u)", (unsigned)i);
    }
    if (r == DS_OK)
        r = b->driver->condition_load(device->index);
    op->flags = DS__OP_GIVEN;
    op->u.condition.word = c->word;
    op->u.condition.bodies = bodies;
    op->u.condition.kind = (int)c->kind;
    return r;
}

/* Fills the operation by the kind of the description. *pinned, if not NULL, is a kernel or an event
   that the caller must unpin, also on failure. */
static ds_result ds__desc_fill_op(const ds__body *b, const ds_node_desc *d, ds__body *child,
                                  ds__op *op, ds_device *device, void **pinned) {
    switch (d->kind) {
    case DS_NODE_KERNEL:
        return ds__desc_kernel(b, d, op, device, pinned);
    case DS_NODE_COPY:
        return ds__desc_copy(b, d, op);
    case DS_NODE_FILL:
        return ds__desc_fill(b, d, op);
    case DS_NODE_HOST:
        return ds__desc_host(d, op);
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        return ds__desc_event(b, d, op, device, pinned);
    case DS_NODE_CHILD:
        return ds__desc_child(b, child, op);
    case DS_NODE_VALUES:
        return ds__desc_values(b, d, op, device);
    case DS_NODE_CONDITION:
        return ds__desc_condition(b, d, child, op, device);
    case DS_NODE_EMPTY:
    case DS_NODE_NATIVE:
        break;
    }
    return DS_OK;
}

/* Makes a node of the operation, with the label of the description. */
static ds_result ds__desc_make_node(const ds_node_desc *d, const ds__op *op, ds_device device,
                                    ds__body **child, ds__node **out) {
    ds__node *n = ds__node_create(op, device, d->priority);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    if (n->child)
        *child = NULL;
    if (d->label)
        n->label = ds__copy_text(d->label, 255);
    if (d->label && !n->label) {
        ds__node_refuse(n, child);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
    }
    *out = n;
    return DS_OK;
}

/* Checks the description and makes a node of it. child: the graph that ds__child_copy made; the
   node has taken it if *child becomes NULL. On failure the caller ends the payload. */
static ds_result ds__node_of_desc(const ds__body *b, const ds_node_desc *d, ds__body **child,
                                  ds__node **out) {
    static const uint16_t kinds[] = { DS__OP_NOTHING, DS__OP_KERNEL, DS__OP_COPY,     DS__OP_FILL,
                                      DS__OP_HOST,    DS__OP_RECORD, DS__OP_WAIT,     DS__OP_GRAPH,
                                      DS__OP_JUMP,    DS__OP_VALUES, DS__OP_CONDITION };
    *out = NULL;
    DS__REQUIRE(d, "desc is NULL");
    DS__REQUIRE((unsigned)d->kind < sizeof kinds / sizeof kinds[0] && d->kind != DS_NODE_NATIVE,
                "kind is %d; use a DS_NODE_* kind other than DS_NODE_NATIVE", (int)d->kind);
    ds_result r = ds__desc_reserved(d);
    if (r < 0)
        return r;

    ds__op op = ds__op_init(kinds[d->kind]);
    ds_device device = b->device;
    void *pinned = NULL;
    memset(&op.u, 0, sizeof op.u);
    r = ds__desc_fill_op(b, d, *child, &op, &device, &pinned);
    if (r == DS_OK)
        r = ds__desc_make_node(d, &op, device, child, out);

    if (pinned)
        ds__unpin(d->kind == DS_NODE_KERNEL ? &ds__g.kernels : &ds__g.events, pinned);
    return r;
}

/* Fills list with the indices of the dependencies; each node may occur once. */
static ds_result ds__graph_find_deps(ds__graph *g, const ds_graph_node *deps, size_t count,
                                     uint32_t *list) {
    ds__body *b = g->body;
    int shared = ds__graph_share(g);
    unsigned char *seen = list ? ds__host_alloc(b->count + 1u) : NULL;
    ds_result r =
        seen ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__node_index(b, deps[i], &list[i]);
        if (r == DS_OK && seen[list[i]]++)
            r = ds__fail(DS_ERR_INVALID_VALUE, "dependency %zu is listed twice", i);
    }
    ds__graph_unshare(shared);
    ds__host_free(seen);
    return r;
}

/* Adds a node to the body and to the driver's graph, to both or to none. */
static ds_result ds__graph_add_node(ds__graph *g, ds__node *n, uint32_t *list, size_t count,
                                    ds_graph_node *out) {
    ds__body *b = g->body;
    int shared = ds__graph_share(g);
    ds_result r = ds__body_append(b, n, list, count);
    if (r == DS_OK) {
        r = b->driver->graph_add(b, b->count - 1);
        if (r < 0)
            b->count--;
    }
    if (r == DS_OK)
        *out = ds__node_handle(b, b->count - 1);
    ds__graph_unshare(shared);
    return r;
}

/* Makes a node of the description and appends it to a locked graph. child: see
   ds__node_of_desc. */
static ds_result ds__graph_append(ds__graph *g, const ds_node_desc *desc, ds__body **child,
                                  const ds_graph_node *deps, size_t count, ds_graph_node *out) {
    ds__node *n = NULL;
    uint32_t *list = ds__host_alloc((count + 1) * sizeof *list);
    ds_result r = ds__graph_find_deps(g, deps, count, list);
    if (r == DS_OK)
        r = ds__node_of_desc(g->body, desc, child, &n);
    if (r == DS_OK) {
        r = ds__graph_add_node(g, n, list, count, out);
        if (r < 0)
            ds__node_refuse(n, child);
    }
    ds__host_free(list);
    return r;
}

/* The end of a call with a description: runs the destructor of a host node's payload if the call
   was refused. Returns r. */
static ds_result ds__desc_refuse_payload(ds_result r, const ds_node_desc *d) {
    if (!d || d->kind != DS_NODE_HOST)
        return r;
    return ds__refuse_payload(r, d->u.host.user, d->u.host.dtor_fn);
}

DSDEF ds_result(ds_graph_add)(ds_graph graph, const ds_node_desc *desc,
                              const ds_graph_node *dependencies, size_t count, ds_graph_node *out) {
    ds_graph_node node = { 0 };
    ds__body *child = NULL;
    ds_result r = ds__api_enter("ds_graph_add");
    if (r == DS_OK && count && !dependencies)
        r = ds__fail(DS_ERR_INVALID_VALUE, "dependencies is NULL");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    if (r == DS_OK) {
        ds__graph *g = ds__graph_lock(graph);
        r = DS_ERR_INVALID_HANDLE;
        if (g)
            r = ds__graph_unlock(g, ds__graph_append(g, desc, &child, dependencies, count, &node));
    }
    if (child)
        ds__body_destroy(child);
    if (out) /* last: it may be one of the dependencies */
        out->id = r == DS_OK ? node.id : 0;
    return ds__desc_refuse_payload(r, desc);
}

/* Checks an edge. The graph's lock is held. */
static ds_result ds__edge_check(const ds__body *b, uint32_t from, uint32_t to) {
    char a[160];
    char c[160];
    DS__REQUIRE(from != to, "%s cannot depend on itself", ds__node_print(b, from, a, sizeof a));
    DS__REQUIRE(!ds__node_depends(b->node[to], from), "%s already depends on %s",
                ds__node_print(b, to, a, sizeof a), ds__node_print(b, from, c, sizeof c));
    unsigned char *mark = ds__host_alloc(b->count);
    if (!mark || !ds__body_ancestors(b, &from, 1, mark)) {
        ds__host_free(mark);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory during the cycle check");
    }
    int cycle = mark[to];
    ds__host_free(mark);
    DS__REQUIRE(!cycle, "%s cannot depend on %s, which depends on it",
                ds__node_print(b, to, a, sizeof a), ds__node_print(b, from, c, sizeof c));
    return DS_OK;
}

/* Adds all edges or none. The graph's lock is held. */
static ds_result ds__edges_add(ds__body *b, const ds_graph_node *from, const ds_graph_node *to,
                               size_t count) {
    ds_result r = DS_OK;
    size_t done = 0;
    for (; done < count && r == DS_OK; done++) {
        uint32_t f = 0;
        uint32_t t = 0;
        r = ds__node_index(b, from[done], &f);
        if (r == DS_OK)
            r = ds__node_index(b, to[done], &t);
        if (r == DS_OK)
            r = ds__edge_check(b, f, t);
        if (r == DS_OK && !ds__node_depend(b->node[t], f))
            r = DS_ERR_OUT_OF_MEMORY;
        if (r < 0) {
            r = ds__fail_append(r, " (pair %zu)", done);
            break;
        }
    }
    /* all of them are right */
    if (r == DS_OK && count)
        r = b->driver->graph_edges(b, from, to, count);
    /* each edge was the last dependency of its node */
    while (r < 0 && done)
        b->node[(uint32_t)to[--done].id - 1]->dep_count--;
    return r;
}

DSDEF ds_result(ds_graph_add_edges)(ds_graph graph, const ds_graph_node *from,
                                    const ds_graph_node *to, size_t count) {
    DS__ENTER("ds_graph_add_edges");
    DS__REQUIRE((from && to) || !count, "%s is NULL", from ? "to" : "from");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    int shared = ds__graph_share(g);
    ds_result r = ds__edges_add(g->body, from, to, count);
    ds__graph_unshare(shared);
    return ds__graph_unlock(g, r);
}

DSDEF ds_result(ds_graph_get_nodes)(ds_graph graph, ds_graph_node *out, size_t room,
                                    size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_graph_get_nodes");
    DS__REQUIRE(out_count && (out || !room), "%s is NULL", out_count ? "out" : "out_count");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&ds__g.capture_lock);
    *out_count = g->body->count;
    for (uint32_t i = 0; i < g->body->count && i < room; i++)
        out[i] = ds__node_handle(g->body, i);
    ds__mutex_unlock(&ds__g.capture_lock);
    return ds__graph_unlock(g, DS_OK);
}

#endif
