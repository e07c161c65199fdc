/* Graphs: nodes and edges, executables and their launches, user objects.

   A node has a content: what an operation does, with everything copied that it needs. An executable
   is a copy of a graph whose nodes have no handles; the handle of a node of the original finds its
   copy by the original's number. A launch makes the operations of all nodes at once, between two
   marks in the stream.

   A conditional node has bodies: graphs of its own. Its operation asks the value of its handle and
   puts the body of this value behind itself. The values are the executable's; a launch has a copy
   of the executable's graph, because its bodies are put later than the launch.

   Contents: types; contents; nodes; graphs; user objects; making, reading and changing graphs;
   executables; launches; updates; the driver's functions. */
#include "core.h"
#include "external.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ---- */

/* What the runtime has no name for (H200, driver 580: docs/gpu). */
#define NODE_VALUES ((enum cudaGraphNodeType)CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
/* An external operation. Its type is told as that of a kernel. */
#define NODE_EXTERNAL ((enum cudaGraphNodeType)1000)
/* cudaGraphNodeTypeConditional of 12.3, and the types of such nodes. */
#define NODE_CONDITIONAL ((enum cudaGraphNodeType)13)

enum { CONDITION_IF, CONDITION_WHILE, CONDITION_SWITCH };

/* A conditional handle, of a graph of the user. */
typedef struct condition {
    uint64_t handle;
    unsigned first; /* the default value */
    int device, has_default;
    graph *graph;
    node *node; /* that asks for its value; NULL: none */
    struct condition *next;
} condition;

/* What a handle is in an executable. */
typedef struct condition_value {
    uint64_t handle;
    unsigned value, first;
    int device, has_default;
} condition_value;

typedef struct content {
    enum cudaGraphNodeType type;
    int device; /* where it runs */
    int priority;

    union {
        struct {
            transfer t;
            place to, from;
        } copy; /* the places as they were when it was made */

        struct {
            fill f;
            int at;
        } fill; /* at: the device that has the memory */

        struct {
            kernel k;
            const void *func;
            int is_host_func;
        } kernel;

        struct {
            CUstreamBatchMemOpParams *list;
            unsigned count;
        } values;
        struct cudaHostNodeParams host;
        cudaEvent_t event;
        graph *child;
        standin_external *external;

        struct {
            condition *of; /* NULL: in an executable */
            uint64_t handle;
            unsigned type, size;
            graph **bodies;
            cudaGraph_t *shown; /* to the user; NULL: in an executable */
        } branch;
    } u;
} content;

struct node {
    cudaGraphNode_t handle; /* NULL: of an executable */
    graph *graph;
    unsigned long long number, from; /* from: the number of the node that it was copied from */
    unsigned long long sunk;         /* when it last became a sink, in numbers */
    size_t index;                    /* in the graph */
    nodes deps;
    content is;
    unsigned long long mark; /* of the last walk that has been here */
    int disabled;
    size_t most_width; /* of a fill in an executable: what it had room for */
};

typedef struct object {
    cudaUserObject_t handle;
    cudaHostFn_t destroy;
    void *data;
    size_t refs, callers; /* all, and those of them that the caller owns */
    struct object *next;
} object;

typedef struct holding {
    object *object;
    size_t refs;
} holding;

struct graph {
    cudaGraph_t handle;              /* NULL: of an executable */
    unsigned long long number, from; /* from: the graph that it is a clone of */
    nodes all;                       /* in the order in which they were added */
    node **order;                    /* of an executable: what a node depends on comes before it */
    node *parent;                    /* that it is embedded in */
    holding *objects;
    size_t object_count, object_capacity;
    condition *conditions;
    unsigned capturing; /* captures that are going on */
    int spoilt;         /* a capture into it has failed */
};

struct exec {
    cudaGraphExec_t handle;
    graph *graph;
    unsigned long long flags;
    unsigned refs; /* the user's, and launches that have not ended */
    op *tail;      /* the end of the last launch */
    /* Of handles.  In a copy for a launch: the default values as they were then. */
    condition_value *values;
    size_t value_count, value_capacity;
    exec *of; /* it is a copy for a launch of this one; NULL: the user's */
};

static unsigned long long next_number = 1, walks;
static size_t live_graphs, live_execs, live_objects;

/* ---- nodes ---- */

int si_nodes_add(nodes *to, node *n) {
    for (size_t i = 0; i < to->count; i++)
        if (to->at[i] == n)
            return 0;
    to->at = si_grown(to->at, to->count, &to->capacity, sizeof *to->at);
    to->at[to->count++] = n;
    return 1;
}

void si_nodes_set(nodes *to, const nodes *from) {
    to->count = 0;
    for (size_t i = 0; i < from->count; i++)
        si_nodes_add(to, from->at[i]);
}

void si_nodes_free(nodes *n) {
    free(n->at);
    *n = (nodes){ NULL, 0, 0 };
}

static int nodes_have(const nodes *in, const node *n) {
    for (size_t i = 0; i < in->count; i++)
        if (in->at[i] == n)
            return 1;
    return 0;
}

static void nodes_remove(nodes *from, const node *n) {
    for (size_t i = 0; i < from->count; i++)
        if (from->at[i] == n) {
            memmove(from->at + i, from->at + i + 1, (--from->count - i) * sizeof *from->at);
            return;
        }
}

static void visit(nodes *list, node *n) {
    if (n->mark == walks)
        return;
    n->mark = walks;
    list->at = si_grown(list->at, list->count, &list->capacity, sizeof *list->at);
    list->at[list->count++] = n;
}

int si_nodes_reach(const nodes *from, const nodes *also, const nodes *wanted) {
    nodes seen = { NULL, 0, 0 };
    int all = 1;
    walks++;
    for (size_t i = 0; i < from->count; i++)
        visit(&seen, from->at[i]);
    for (size_t i = 0; i < also->count; i++)
        visit(&seen, also->at[i]);
    for (size_t i = 0; i < seen.count; i++)
        for (size_t j = 0; j < seen.at[i]->deps.count; j++)
            visit(&seen, seen.at[i]->deps.at[j]);
    for (size_t i = 0; i < wanted->count; i++)
        all &= wanted->at[i]->mark == walks;
    si_nodes_free(&seen);
    return all;
}

int si_plain_edges(const void *edge_data, size_t count) {
    const unsigned char *bytes = edge_data;
    for (size_t i = 0; bytes && i < count * sizeof(cudaGraphEdgeData); i++)
        if (bytes[i])
            return 0;
    return 1;
}

cudaGraphNode_t si_node_handle(const node *n) {
    return n->handle;
}

void si_nodes_sink(const nodes *all) {
    for (size_t i = 0; i < all->count; i++)
        all->at[i]->sunk = next_number++;
}

static node *node_of(const char *call, cudaGraphNode_t handle) {
    return si_object_of(call, H_NODE, handle);
}

int si_nodes_of(const char *call, const graph *g, const cudaGraphNode_t *handles, size_t count,
                nodes *out) {
    if (count && !handles)
        return cudaErrorInvalidValue;
    for (size_t i = 0; i < count; i++) {
        node *n = node_of(call, handles[i]);
        if (n->graph != g || !si_nodes_add(out, n))
            return cudaErrorInvalidValue;
    }
    return 0;
}

/* ---- contents ---- */

static graph *make_graph(int hidden);
static graph *clone_graph(const graph *g, int hidden, int clone);

/* The bodies of a node that the user makes are empty graphs. */
static void own_bodies(content *c, node *n, int hidden) {
    graph **from = c->u.branch.bodies;
    unsigned size = c->u.branch.size;
    c->u.branch.bodies = si_allocate(size * sizeof *from);
    c->u.branch.shown = hidden ? NULL : si_allocate(size * sizeof *c->u.branch.shown);
    for (unsigned i = 0; i < size; i++) {
        graph *body = from ? clone_graph(from[i], hidden, 0) : make_graph(hidden);
        c->u.branch.bodies[i] = body;
        body->parent = n;
        if (!hidden)
            c->u.branch.shown[i] = body->handle;
    }
    if (hidden)
        c->u.branch.of = NULL;
    else
        c->u.branch.of->node = n;
}

static void disown_bodies(content *c) {
    for (unsigned i = 0; i < c->u.branch.size; i++)
        si_free_graph(c->u.branch.bodies[i]);
    if (c->u.branch.of)
        c->u.branch.of->node = NULL;
    free(c->u.branch.bodies);
    free(c->u.branch.shown);
}

/* The content gets its own copy of what it points to. */
static void own(content *c, node *n, int hidden, int clone) {
    if (c->type == cudaGraphNodeTypeKernel) {
        c->u.kernel.k.params = si_copy_params(c->u.kernel.k.code, c->u.kernel.k.params);
        c->u.kernel.k.module->nodes++;
    } else if (c->type == NODE_VALUES) {
        size_t size = c->u.values.count * sizeof *c->u.values.list;
        c->u.values.list = memcpy(si_allocate(size + 1), c->u.values.list, size);
    } else if (c->type == cudaGraphNodeTypeGraph) {
        c->u.child = clone_graph(c->u.child, hidden, clone);
        c->u.child->parent = n;
    } else if (c->type == NODE_CONDITIONAL) {
        own_bodies(c, n, hidden);
    } else if (c->type == NODE_EXTERNAL) {
        si_external_hold(c->u.external);
        c->u.external->node(c->u.external, 1);
    }
}

static void disown(content *c) {
    if (c->type == cudaGraphNodeTypeKernel) {
        free(c->u.kernel.k.params);
        c->u.kernel.k.module->nodes--;
        si_free_module_if_over(c->u.kernel.k.module);
    } else if (c->type == NODE_VALUES) {
        free(c->u.values.list);
    } else if (c->type == cudaGraphNodeTypeGraph) {
        si_free_graph(c->u.child);
    } else if (c->type == NODE_CONDITIONAL) {
        disown_bodies(c);
    } else if (c->type == NODE_EXTERNAL) {
        c->u.external->node(c->u.external, -1);
        si_external_drop(c->u.external);
    }
}

static void replace(node *n, const content *with) {
    content before = n->is;
    n->is = *with;
    own(&n->is, n, !n->handle, 0);
    disown(&before);
}

static node *new_node(graph *g, const content *is, const nodes *deps, int clone) {
    node *n = si_allocate(sizeof *n);
    n->graph = g, n->number = n->sunk = next_number++, n->is = *is;
    own(&n->is, n, !g->handle, clone);
    if (g->handle)
        n->handle = si_new_handle(H_NODE, n);
    if (deps)
        si_nodes_set(&n->deps, deps);
    n->index = g->all.count;
    g->all.at = si_grown(g->all.at, g->all.count, &g->all.capacity, sizeof *g->all.at);
    g->all.at[g->all.count++] = n;
    return n;
}

static void free_node(node *n) {
    if (n->handle)
        si_drop_handle("a node that goes with its graph", H_NODE, n->handle);
    disown(&n->is);
    si_nodes_free(&n->deps);
    free(n);
}

static content copy_content(const transfer *t, const place *to, const place *from, int index) {
    content c = { .type = cudaGraphNodeTypeMemcpy, .device = index };
    c.u.copy.t = *t, c.u.copy.to = *to, c.u.copy.from = *from;
    return c;
}

node *si_node_copy(graph *g, const nodes *deps, const transfer *t, const place *to,
                   const place *from, int index) {
    content c = copy_content(t, to, from, index);
    return new_node(g, &c, deps, 0);
}

node *si_node_fill(graph *g, const nodes *deps, const fill *f, const place *at, int index) {
    content c = { .type = cudaGraphNodeTypeMemset, .device = index };
    c.u.fill.f = *f, c.u.fill.at = at->device;
    return new_node(g, &c, deps, 0);
}

node *si_node_values(graph *g, const nodes *deps, const CUstreamBatchMemOpParams *list,
                     unsigned count, int index) {
    content c = { .type = NODE_VALUES, .device = index };
    c.u.values.list = (CUstreamBatchMemOpParams *)(uintptr_t)list, c.u.values.count = count;
    return new_node(g, &c, deps, 0);
}

node *si_node_kernel(graph *g, const nodes *deps, const kernel *k, const void *func,
                     int is_host_func, int index, int priority) {
    content c = { .type = cudaGraphNodeTypeKernel, .device = index, .priority = priority };
    c.u.kernel.k = *k, c.u.kernel.func = func, c.u.kernel.is_host_func = is_host_func;
    return new_node(g, &c, deps, 0);
}

node *si_node_host(graph *g, const nodes *deps, cudaHostFn_t fn, void *data, int index) {
    content c = { .type = cudaGraphNodeTypeHost, .device = index, .u.host = { fn, data } };
    return new_node(g, &c, deps, 0);
}

node *si_node_external(graph *g, const nodes *deps, standin_external *e, int index) {
    content c = { .type = NODE_EXTERNAL, .device = index, .u.external = e };
    return new_node(g, &c, deps, 0);
}

node *si_node_event(graph *g, const nodes *deps, cudaEvent_t handle, int wait, int index) {
    content c = { .type = wait ? cudaGraphNodeTypeWaitEvent : cudaGraphNodeTypeEventRecord,
                  .device = index,
                  .u.event = handle };
    return new_node(g, &c, deps, 0);
}

/* ---- user objects ---- */

static object *over, **last_over = &over; /* to be destroyed */
static int destroying;                    /* the thread that does it is there */

/* Destructors run in a thread of CUDA ("executed by a shared internal thread"), or in the thread
   whose call has ended the last reference (cuda-python#2042): here in turn. */
static _Thread_local int in_destroying_call;
static _Thread_local object *own_over; /* to be destroyed when the call returns */
static unsigned long long objects_over;

static void *destroy_objects(void *unused) {
    lock();
    while (over) {
        object *o = over;
        over = o->next;
        if (!over)
            last_over = &over;
        unlock();
        si_me.in_host_function = 1;
        o->destroy(o->data);
        free(o);
        lock();
    }
    destroying = 0;
    unlock();
    return unused;
}

static void release_object(object *o, size_t refs) {
    o->refs -= refs;
    if (o->refs)
        return;
    si_drop_handle("a user object that is over", H_OBJECT, o->handle);
    live_objects--;
    if (in_destroying_call && objects_over++ % 2) {
        o->next = own_over;
        own_over = o;
        return;
    }
    o->next = NULL;
    *last_over = o;
    last_over = &o->next;
    if (destroying)
        return;
    destroying = 1;
    si_start_thread(destroy_objects, NULL);
}

static holding *holding_of(graph *g, const object *o) {
    for (size_t i = 0; i < g->object_count; i++)
        if (g->objects[i].object == o)
            return &g->objects[i];
    return NULL;
}

static void hold_object(graph *g, object *o, size_t refs) {
    holding *h = holding_of(g, o);
    if (!h) {
        g->objects = si_grown(g->objects, g->object_count, &g->object_capacity, sizeof *g->objects);
        h = &g->objects[g->object_count++];
        *h = (holding){ o, 0 };
    }
    h->refs += refs;
}

static void copy_objects(graph *to, const graph *from) {
    for (size_t i = 0; i < from->object_count; i++) {
        hold_object(to, from->objects[i].object, from->objects[i].refs);
        from->objects[i].object->refs += from->objects[i].refs;
    }
}

/* ---- graphs ---- */

static graph *make_graph(int hidden) {
    graph *g = si_allocate(sizeof *g);
    g->number = next_number++;
    if (!hidden)
        g->handle = si_new_handle(H_GRAPH, g);
    return g;
}

graph *si_new_graph(void) {
    return make_graph(0);
}

void si_free_graph(graph *g) {
    for (size_t i = 0; i < g->all.count; i++)
        free_node(g->all.at[i]);
    for (size_t i = 0; i < g->object_count; i++)
        release_object(g->objects[i].object, g->objects[i].refs);
    if (g->handle)
        si_drop_handle("a graph that goes with its node", H_GRAPH, g->handle);
    for (condition *c = g->conditions, *next; c; c = next) {
        next = c->next;
        si_drop_handle("a handle that goes with its graph", H_CONDITION,
                       (void *)(uintptr_t)c->handle);
        free(c);
    }
    si_nodes_free(&g->all);
    free(g->objects);
    free(g->order);
    free(g);
}

/* hidden: for an executable.  clone: nodes can be found in it. */
static graph *clone_graph(const graph *g, int hidden, int clone) {
    graph *to = make_graph(hidden);
    if (clone)
        to->from = g->number;
    for (size_t i = 0; i < g->all.count; i++) {
        const node *n = g->all.at[i];
        node *made = new_node(to, &n->is, NULL, clone);
        made->from = n->number, made->disabled = n->disabled, made->sunk = n->sunk;
    }
    for (size_t i = 0; i < g->all.count; i++)
        for (size_t j = 0; j < g->all.at[i]->deps.count; j++)
            si_nodes_add(&to->all.at[i]->deps, to->all.at[g->all.at[i]->deps.at[j]->index]);
    copy_objects(to, g);
    return to;
}

void si_give_graph(const graph *g, cudaGraph_t *out) {
    *out = g->handle;
    live_graphs++;
}

cudaGraph_t si_graph_handle(const graph *g) {
    return g->handle;
}

void si_graph_spoil(graph *g) {
    g->spoilt = 1;
}

void si_graph_capturing(graph *g, int on) {
    g->capturing += on ? 1u : -1u;
}

graph *si_graph_of(const char *call, cudaGraph_t handle) {
    return si_object_of(call, H_GRAPH, handle);
}

size_t si_graph_threads(void) {
    return (size_t)destroying;
}

void si_graph_counts(size_t *graphs, size_t *execs, size_t *objects) {
    *graphs = live_graphs, *execs = live_execs, *objects = live_objects;
}

/* Everything below begins with these: the first for what needs a device, whose failure it
   answers. */
#define BEGIN(f, code)       \
    int code = enter(F_##f); \
    if (!code)               \
        code = si_context(); \
    if (code)                \
        return result(code); \
    lock()
#define LOOK(f)               \
    int code_ = enter(F_##f); \
    if (code_)                \
        return result(code_); \
    lock()

static cudaError_t finish(int code) {
    unlock();
    return result(code);
}

static void lock_to_destroy(void) {
    in_destroying_call = 1;
    lock();
}

static cudaError_t finish_destroying(int code) {
    unlock();
    in_destroying_call = 0;
    si_me.in_host_function++;
    while (own_over) {
        object *o = own_over;
        own_over = o->next;
        o->destroy(o->data);
        free(o);
    }
    si_me.in_host_function--;
    return result(code);
}

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags) {
    BEGIN(cudaGraphCreate, code);
    if (!out || flags)
        return finish(cudaErrorInvalidValue);
    si_give_graph(si_new_graph(), out);
    return finish(0);
}

/* The graph, or a body in it. */
static int is_captured_into(const graph *g) {
    int any = g->capturing != 0;
    for (size_t i = 0; i < g->all.count; i++) {
        const content *c = &g->all.at[i]->is;
        for (unsigned j = 0; c->type == NODE_CONDITIONAL && j < c->u.branch.size; j++)
            any |= is_captured_into(c->u.branch.bodies[j]);
    }
    return any;
}

static int is_body(const graph *g) {
    return g->parent && g->parent->is.type == NODE_CONDITIONAL;
}

/* Such a graph cannot be cloned, nor be a child graph (H200, driver 580: docs/gpu, P31). */
static int has_conditional(const graph *g) {
    for (size_t i = 0; i < g->all.count; i++)
        if (g->all.at[i]->is.type == NODE_CONDITIONAL)
            return 1;
    return 0;
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
    int code = enter(F_cudaGraphDestroy);
    if (refused(code))
        return result(code);
    lock_to_destroy();
    graph *g = si_graph_of("cudaGraphDestroy", handle);
    if (g->parent)
        si_fail_test("cudaGraphDestroy: the graph belongs to a node");
    if (is_captured_into(g))
        si_fail_test("cudaGraphDestroy: the graph is being captured into");
    si_free_graph(g);
    live_graphs--;
    return finish_destroying(code);
}

cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t handle) {
    BEGIN(cudaGraphClone, code);
    if (!out)
        return finish(cudaErrorInvalidValue);
    const graph *g = si_graph_of("cudaGraphClone", handle);
    if (g->spoilt) /* H200, driver 580 */
        return finish(cudaErrorInvalidValue);
    if (has_conditional(g))
        return finish(cudaErrorNotSupported);
    si_give_graph(clone_graph(g, 0, 1), out);
    return finish(0);
}

/* The copy of a node that was copied with its graph; NULL: there is none. */
static node *copy_of(const graph *in, const node *n) {
    if (n->index < in->all.count && in->all.at[n->index]->from == n->number)
        return in->all.at[n->index];
    for (size_t i = 0; i < in->all.count; i++)
        if (in->all.at[i]->from == n->number)
            return in->all.at[i];
    return NULL;
}

cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t *out, cudaGraphNode_t handle,
                                     cudaGraph_t clone) {
    LOOK(cudaGraphNodeFindInClone);
    if (!out)
        return finish(cudaErrorInvalidValue);
    node *n = node_of("cudaGraphNodeFindInClone", handle);
    graph *g = si_graph_of("cudaGraphNodeFindInClone", clone);
    node *found = g->from == n->graph->number ? copy_of(g, n) : NULL;
    if (found)
        *out = found->handle;
    return finish(found ? 0 : cudaErrorInvalidValue);
}

/* ---- reading graphs ---- */

/* As all functions do that answer a list: out NULL: only the number; else as many as there is
   room for, and NULL behind. */
static int list_nodes(const nodes *from, cudaGraphNode_t *out, size_t *count) {
    if (!count)
        return cudaErrorInvalidValue;
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < from->count ? from->at[i]->handle : NULL;
    if (!out || *count > from->count)
        *count = from->count;
    return 0;
}

static atomic_int edges_have_data = CUDART_VERSION >= 12030;

void standin_edge_data(int on) {
    atomic_store(&edges_have_data, on);
}

static void list_edges(cudaGraphEdgeData *edges, size_t count) {
    if (edges)
        memset(edges, 0, count * sizeof *edges);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *out, size_t *count) {
    LOOK(cudaGraphGetNodes);
    return finish(list_nodes(&si_graph_of("cudaGraphGetNodes", handle)->all, out, count));
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t *out, size_t *count) {
    LOOK(cudaGraphGetRootNodes);
    graph *g = si_graph_of("cudaGraphGetRootNodes", handle);
    nodes roots = { NULL, 0, 0 };
    for (size_t i = 0; i < g->all.count; i++)
        if (!g->all.at[i]->deps.count)
            si_nodes_add(&roots, g->all.at[i]);
    int code = list_nodes(&roots, out, count);
    si_nodes_free(&roots);
    return finish(code);
}

static cudaError_t get_edges(cudaGraph_t handle, cudaGraphNode_t *from, cudaGraphNode_t *to,
                             cudaGraphEdgeData *edges, size_t *count) {
    LOOK(cudaGraphGetEdges);
    graph *g = si_graph_of("cudaGraphGetEdges", handle);
    size_t n = 0;
    if (!count || !from != !to || (edges && !from))
        return finish(cudaErrorInvalidValue);
    for (size_t i = 0; from && i < *count; i++)
        from[i] = to[i] = NULL;
    for (size_t i = 0; i < g->all.count; i++)
        for (size_t j = 0; j < g->all.at[i]->deps.count; j++, n++)
            if (from && n < *count)
                from[n] = g->all.at[i]->deps.at[j]->handle, to[n] = g->all.at[i]->handle;
    list_edges(edges, *count < n ? *count : n);
    if (!from || *count > n)
        *count = n;
    return finish(0);
}

static cudaError_t get_dependencies(cudaGraphNode_t handle, cudaGraphNode_t *out,
                                    cudaGraphEdgeData *edges, size_t *count) {
    LOOK(cudaGraphNodeGetDependencies);
    if (edges && !out)
        return finish(cudaErrorInvalidValue);
    node *n = node_of("cudaGraphNodeGetDependencies", handle);
    if (atomic_load(&edges_have_data) && n->deps.count && !edges)
        return finish(402 /* cudaErrorLossyQuery, from 12.3 on */);
    int code = list_nodes(&n->deps, out, count);
    if (!code)
        list_edges(edges, *count);
    return finish(code);
}

static cudaError_t get_dependents(cudaGraphNode_t handle, cudaGraphNode_t *out,
                                  cudaGraphEdgeData *edges, size_t *count) {
    LOOK(cudaGraphNodeGetDependentNodes);
    node *n = node_of("cudaGraphNodeGetDependentNodes", handle);
    nodes found = { NULL, 0, 0 };
    if (edges && !out)
        return finish(cudaErrorInvalidValue);
    for (size_t i = 0; i < n->graph->all.count; i++)
        if (nodes_have(&n->graph->all.at[i]->deps, n))
            si_nodes_add(&found, n->graph->all.at[i]);
    int code = list_nodes(&found, out, count);
    if (!code)
        list_edges(edges, *count);
    si_nodes_free(&found);
    return finish(code);
}

static enum cudaGraphNodeType type_of(const node *n) {
    return n->is.type == NODE_EXTERNAL ? cudaGraphNodeTypeKernel : n->is.type;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, enum cudaGraphNodeType *out) {
    LOOK(cudaGraphNodeGetType);
    if (!out)
        return finish(cudaErrorInvalidValue);
    *out = type_of(node_of("cudaGraphNodeGetType", handle));
    return finish(*out == NODE_VALUES ? cudaErrorUnknown : 0);
}

cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t handle, cudaGraph_t *out) {
    LOOK(cudaGraphChildGraphNodeGetGraph);
    node *n = node_of("cudaGraphChildGraphNodeGetGraph", handle);
    if (!out || n->is.type != cudaGraphNodeTypeGraph)
        return finish(cudaErrorInvalidValue);
    *out = n->is.u.child->handle;
    return finish(0);
}

static const char *const type_names[] = { "kernel", "memcpy", "memset",     "host",
                                          "graph",  "empty",  "wait event", "record event" };

static void print_node(FILE *f, const node *n, unsigned flags) {
    const content *c = &n->is;
    const char *name = c->type == NODE_VALUES        ? "batch of memory operations"
                       : c->type == NODE_CONDITIONAL ? "conditional"
                       : c->type == NODE_EXTERNAL    ? c->u.external->name
                                                     : type_names[c->type];
    fprintf(f, "n%zu [label=\"%zu %s", n->index, n->index, name);
    if (flags & cudaGraphDebugDotFlagsVerbose)
        fprintf(f, " device %d", c->device);
    if (c->type == cudaGraphNodeTypeKernel &&
        flags & (cudaGraphDebugDotFlagsVerbose | cudaGraphDebugDotFlagsKernelNodeParams))
        fprintf(f, " grid %u %u %u block %u %u %u", c->u.kernel.k.grid[0], c->u.kernel.k.grid[1],
                c->u.kernel.k.grid[2], c->u.kernel.k.block[0], c->u.kernel.k.block[1],
                c->u.kernel.k.block[2]);
    if (c->type == cudaGraphNodeTypeMemcpy &&
        flags & (cudaGraphDebugDotFlagsVerbose | cudaGraphDebugDotFlagsMemcpyNodeParams))
        fprintf(f, " to %p from %p", (void *)c->u.copy.t.dst.pointer,
                (void *)c->u.copy.t.src.pointer);
    if (c->type == cudaGraphNodeTypeMemset &&
        flags & (cudaGraphDebugDotFlagsVerbose | cudaGraphDebugDotFlagsMemsetNodeParams))
        fprintf(f, " at %p value %u", (void *)c->u.fill.f.dst, c->u.fill.f.value);
    if (flags & (cudaGraphDebugDotFlagsVerbose | cudaGraphDebugDotFlagsHandles))
        fprintf(f, " %p", (void *)n->handle);
    fprintf(f, "\"]\n");
    for (size_t i = 0; i < n->deps.count; i++)
        fprintf(f, "n%zu -> n%zu\n", n->deps.at[i]->index, n->index);
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char *path, unsigned flags) {
    LOOK(cudaGraphDebugDotPrint);
    graph *g = si_graph_of("cudaGraphDebugDotPrint", handle);
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f)
        return finish(path ? cudaErrorOperatingSystem : cudaErrorInvalidValue);
    fprintf(f, "digraph dot {\n");
    for (size_t i = 0; i < g->all.count; i++)
        print_node(f, g->all.at[i], flags);
    fprintf(f, "}\n");
    return finish(fclose(f) ? cudaErrorOperatingSystem : 0);
}

/* ---- changing graphs: edges ---- */

static int check_edges(const char *call, const graph *g, const cudaGraphNode_t *from,
                       const cudaGraphNode_t *to, size_t count, int there) {
    if (count && (!from || !to))
        return cudaErrorInvalidValue;
    for (size_t i = 0; i < count; i++) {
        node *a = node_of(call, from[i]), *b = node_of(call, to[i]);
        if (a->graph != g || b->graph != g || a == b || nodes_have(&b->deps, a) != there)
            return cudaErrorInvalidValue;
        for (size_t j = 0; j < i; j++)
            if (from[j] == from[i] && to[j] == to[i])
                return cudaErrorInvalidValue;
    }
    return 0;
}

static cudaError_t add_dependencies(cudaGraph_t handle, const cudaGraphNode_t *from,
                                    const cudaGraphNode_t *to, const void *edges, size_t count) {
    static const char call[] = "cudaGraphAddDependencies";
    LOOK(cudaGraphAddDependencies);
    int code = check_edges(call, si_graph_of(call, handle), from, to, count, 0);
    if (!code && !si_plain_edges(edges, count))
        code = cudaErrorInvalidValue;
    for (size_t i = 0; !code && i < count; i++)
        si_nodes_add(&node_of(call, to[i])->deps, node_of(call, from[i]));
    return finish(code);
}

static cudaError_t remove_dependencies(cudaGraph_t handle, const cudaGraphNode_t *from,
                                       const cudaGraphNode_t *to, const void *edges, size_t count) {
    static const char call[] = "cudaGraphRemoveDependencies";
    LOOK(cudaGraphRemoveDependencies);
    int code = check_edges(call, si_graph_of(call, handle), from, to, count, 1);
    if (!code && !si_plain_edges(edges, count))
        code = cudaErrorInvalidValue;
    for (size_t i = 0; !code && i < count; i++) {
        nodes_remove(&node_of(call, to[i])->deps, node_of(call, from[i]));
        node_of(call, from[i])->sunk = next_number++;
    }
    return finish(code);
}

/* The forms with edge data: the only ones from CUDA 13 on, and beside those without from 12.3
   on. */
#if CUDART_VERSION >= 13000
#define EDGE_FORM(name) name
#else
#define EDGE_FORM(name) name##_v2

cudaError_t cudaGraphGetEdges(cudaGraph_t g, cudaGraphNode_t *from, cudaGraphNode_t *to,
                              size_t *n) {
    return get_edges(g, from, to, NULL, n);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t n, cudaGraphNode_t *out, size_t *count) {
    return get_dependencies(n, out, NULL, count);
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t n, cudaGraphNode_t *out, size_t *count) {
    return get_dependents(n, out, NULL, count);
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to, size_t n) {
    return add_dependencies(g, from, to, NULL, n);
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                        const cudaGraphNode_t *to, size_t n) {
    return remove_dependencies(g, from, to, NULL, n);
}
#endif
#if CUDART_VERSION >= 12030
cudaError_t EDGE_FORM(cudaGraphGetEdges)(cudaGraph_t g, cudaGraphNode_t *from, cudaGraphNode_t *to,
                                         cudaGraphEdgeData *edges, size_t *n) {
    return get_edges(g, from, to, edges, n);
}

cudaError_t EDGE_FORM(cudaGraphNodeGetDependencies)(cudaGraphNode_t n, cudaGraphNode_t *out,
                                                    cudaGraphEdgeData *edges, size_t *count) {
    return get_dependencies(n, out, edges, count);
}

cudaError_t EDGE_FORM(cudaGraphNodeGetDependentNodes)(cudaGraphNode_t n, cudaGraphNode_t *out,
                                                      cudaGraphEdgeData *edges, size_t *count) {
    return get_dependents(n, out, edges, count);
}

cudaError_t EDGE_FORM(cudaGraphAddDependencies)(cudaGraph_t g, const cudaGraphNode_t *from,
                                                const cudaGraphNode_t *to,
                                                const cudaGraphEdgeData *edges, size_t n) {
    return add_dependencies(g, from, to, edges, n);
}

cudaError_t EDGE_FORM(cudaGraphRemoveDependencies)(cudaGraph_t g, const cudaGraphNode_t *from,
                                                   const cudaGraphNode_t *to,
                                                   const cudaGraphEdgeData *edges, size_t n) {
    return remove_dependencies(g, from, to, edges, n);
}
#endif

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle) {
    int code = enter(F_cudaGraphDestroyNode);
    if (refused(code))
        return result(code);
    lock();
    node *n = node_of("cudaGraphDestroyNode", handle);
    graph *g = n->graph;
    if (is_captured_into(g))
        si_fail_test("cudaGraphDestroyNode: the graph is being captured into");
    nodes_remove(&g->all, n);
    si_nodes_sink(&n->deps);
    for (size_t i = 0; i < g->all.count; i++) {
        g->all.at[i]->index = i;
        nodes_remove(&g->all.at[i]->deps, n);
    }
    free_node(n);
    return finish(code);
}

/* ---- changing graphs: contents, as the user gives them ---- */

static int copy_from(const char *call, const transfer *t, content *c) {
    place to, from;
    int code = si_check_transfer(call, t, si_me.current, &to, &from);
    if (!code)
        *c = copy_content(t, &to, &from, si_me.current);
    return code;
}

static int copy_from_params(const char *call, const struct cudaMemcpy3DParms *p, content *c) {
    transfer t;
    int code = si_check_copy_params(p, &t);
    return code ? code : copy_from(call, &t, c);
}

static int copy_from_1d(const char *call, void *dst, const void *src, size_t count,
                        enum cudaMemcpyKind kind, content *c) {
    transfer t = {
        { dst, count, 0 }, { (char *)(uintptr_t)src, count, 0 }, { count, 1, 1 }, kind, 0
    };
    if ((unsigned)kind > (unsigned)cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    return count ? copy_from(call, &t, c) : (int)cudaErrorInvalidValue;
}

static int fill_from(const char *call, const struct cudaMemsetParams *p, content *c) {
    place at;
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width ||
        !p->height)
        return cudaErrorInvalidValue;
    *c = (content){ .type = cudaGraphNodeTypeMemset, .device = si_me.current };
    c->u.fill.f = (fill){ p->dst, p->pitch, p->elementSize, p->width, p->height, p->value };
    int code = si_check_fill(call, &c->u.fill.f, si_me.current, &at);
    if (!code)
        c->u.fill.at = at.device;
    return code;
}

static int kernel_from(const kernel *k, size_t most_shared, void **extra, const void *func,
                       int is_host_func, int index, content *c) {
    if (k->params && extra)
        return cudaErrorInvalidValue;
    if (extra)
        return cudaErrorNotSupported;
    if (ptx_param_count(k->code) && !k->params)
        return cudaErrorInvalidValue;
    if (si_check_launch(k->code, k->grid, k->block, k->shared, most_shared))
        return cudaErrorInvalidValue;
    *c = (content){ .type = cudaGraphNodeTypeKernel, .device = index };
    c->u.kernel.k = *k, c->u.kernel.func = func, c->u.kernel.is_host_func = is_host_func;
    return 0;
}

/* A host address means the function on the current device. */
static int kernel_from_params(const struct cudaKernelNodeParams *p, content *c) {
    registered_function *f = p ? si_registered_as(p->func) : NULL;
    if (!f)
        return p ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue;
    kernel k = { .module = f->module,
                 .code = f->code,
                 .grid = { p->gridDim.x, p->gridDim.y, p->gridDim.z },
                 .block = { p->blockDim.x, p->blockDim.y, p->blockDim.z },
                 .shared = p->sharedMemBytes,
                 .params = p->kernelParams };
    return kernel_from(&k, f->most_shared, p->extra, p->func, 1, si_me.current, c);
}

static int host_from(const struct cudaHostNodeParams *p, content *c) {
    if (!p || !p->fn)
        return cudaErrorInvalidValue;
    *c = (content){ .type = cudaGraphNodeTypeHost, .device = si_me.current, .u.host = *p };
    return 0;
}

static void event_from(const char *call, enum cudaGraphNodeType type, cudaEvent_t handle,
                       content *c) {
    event *e = si_object_of(call, H_EVENT, handle);
    int index = type == cudaGraphNodeTypeEventRecord ? e->device : si_me.current;
    *c = (content){ .type = type, .device = index, .u.event = handle };
}

static int add(const char *call, cudaGraphNode_t *out, cudaGraph_t handle,
               const cudaGraphNode_t *dependencies, size_t count, const content *c) {
    nodes deps = { NULL, 0, 0 };
    graph *g = si_graph_of(call, handle);
    int code = out ? si_nodes_of(call, g, dependencies, count, &deps) : cudaErrorInvalidValue;
    if (!code)
        *out = new_node(g, c, &deps, 0)->handle;
    si_nodes_free(&deps);
    return code;
}

/* A node of this type, or NULL. */
static node *typed(const char *call, cudaGraphNode_t handle, enum cudaGraphNodeType type) {
    node *n = node_of(call, handle);
    return n->is.type == type ? n : NULL;
}

/* New parameters leave the attributes of a node as they are. */
static void keep_attributes(const node *n, content *c) {
    c->priority = n->is.priority;
    if (c->type != cudaGraphNodeTypeKernel)
        return;
    const kernel *from = &n->is.u.kernel.k;
    kernel *k = &c->u.kernel.k;
    memcpy(k->cluster, from->cluster, sizeof k->cluster);
    k->cooperative = from->cooperative;
}

static int set(const char *call, cudaGraphNode_t handle, content *c) {
    node *n = typed(call, handle, c->type);
    if (!n)
        return cudaErrorInvalidValue;
    keep_attributes(n, c);
    replace(n, c);
    return 0;
}

#define ADD_NODE(name, make, ...)                                                                \
    cudaError_t name(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *deps, size_t n, \
                     __VA_ARGS__) {                                                              \
        static const char call[] = #name;                                                        \
        content c;                                                                               \
        BEGIN(name, code);                                                                       \
        code = make;                                                                             \
        if (!code)                                                                               \
            code = add(call, out, g, deps, n, &c);                                               \
        return finish(code);                                                                     \
    }
#define SET_NODE(name, make, ...)                      \
    cudaError_t name(cudaGraphNode_t n, __VA_ARGS__) { \
        static const char call[] = #name;              \
        content c;                                     \
        BEGIN(name, code);                             \
        code = make;                                   \
        if (!code)                                     \
            code = set(call, n, &c);                   \
        return finish(code);                           \
    }

ADD_NODE(cudaGraphAddKernelNode, kernel_from_params(p, &c), const struct cudaKernelNodeParams *p)
ADD_NODE(cudaGraphAddMemcpyNode, copy_from_params(call, p, &c), const struct cudaMemcpy3DParms *p)
ADD_NODE(cudaGraphAddMemcpyNode1D, copy_from_1d(call, dst, src, count, kind, &c), void *dst,
         const void *src, size_t count, enum cudaMemcpyKind kind)
ADD_NODE(cudaGraphAddMemsetNode, fill_from(call, p, &c), const struct cudaMemsetParams *p)
ADD_NODE(cudaGraphAddHostNode, host_from(p, &c), const struct cudaHostNodeParams *p)
ADD_NODE(cudaGraphAddEventRecordNode, (event_from(call, cudaGraphNodeTypeEventRecord, e, &c), 0),
         cudaEvent_t e)
ADD_NODE(cudaGraphAddEventWaitNode, (event_from(call, cudaGraphNodeTypeWaitEvent, e, &c), 0),
         cudaEvent_t e)

SET_NODE(cudaGraphKernelNodeSetParams, kernel_from_params(p, &c),
         const struct cudaKernelNodeParams *p)
SET_NODE(cudaGraphMemcpyNodeSetParams, copy_from_params(call, p, &c),
         const struct cudaMemcpy3DParms *p)
SET_NODE(cudaGraphMemcpyNodeSetParams1D, copy_from_1d(call, dst, src, count, kind, &c), void *dst,
         const void *src, size_t count, enum cudaMemcpyKind kind)
SET_NODE(cudaGraphMemsetNodeSetParams, fill_from(call, p, &c), const struct cudaMemsetParams *p)
SET_NODE(cudaGraphHostNodeSetParams, host_from(p, &c), const struct cudaHostNodeParams *p)
SET_NODE(cudaGraphEventRecordNodeSetEvent,
         (event_from(call, cudaGraphNodeTypeEventRecord, e, &c), 0), cudaEvent_t e)
SET_NODE(cudaGraphEventWaitNodeSetEvent, (event_from(call, cudaGraphNodeTypeWaitEvent, e, &c), 0),
         cudaEvent_t e)

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *deps,
                                  size_t n) {
    BEGIN(cudaGraphAddEmptyNode, code);
    content c = { .type = cudaGraphNodeTypeEmpty, .device = si_me.current };
    return finish(add("cudaGraphAddEmptyNode", out, g, deps, n, &c));
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t g,
                                       const cudaGraphNode_t *deps, size_t n, cudaGraph_t child) {
    static const char call[] = "cudaGraphAddChildGraphNode";
    BEGIN(cudaGraphAddChildGraphNode, code);
    content c = { .type = cudaGraphNodeTypeGraph, .device = si_me.current };
    c.u.child = si_graph_of(call, child);
    if (has_conditional(c.u.child))
        return finish(cudaErrorNotSupported);
    return finish(add(call, out, g, deps, n, &c));
}

/* ---- reading contents ---- */

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, struct cudaKernelNodeParams *out) {
    LOOK(cudaGraphKernelNodeGetParams);
    node *n = typed("cudaGraphKernelNodeGetParams", handle, cudaGraphNodeTypeKernel);
    if (!n || !out)
        return finish(cudaErrorInvalidValue);
    const kernel *k = &n->is.u.kernel.k;
    if (!n->is.u.kernel.is_host_func)
        return finish(cudaErrorInvalidDeviceFunction);
    memset(out, 0, sizeof *out);
    out->func = (void *)(uintptr_t)n->is.u.kernel.func;
    out->gridDim.x = k->grid[0], out->gridDim.y = k->grid[1], out->gridDim.z = k->grid[2];
    out->blockDim.x = k->block[0], out->blockDim.y = k->block[1], out->blockDim.z = k->block[2];
    out->sharedMemBytes = k->shared;
    out->kernelParams = k->params;
    return finish(0);
}

static struct cudaPitchedPtr pitched_of(const side *s, const shape *of) {
    size_t rows = s->pitch && s->slice ? s->slice / s->pitch : of->height;
    return (struct cudaPitchedPtr){ s->pointer, s->pitch, of->width, rows };
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t handle, struct cudaMemcpy3DParms *out) {
    LOOK(cudaGraphMemcpyNodeGetParams);
    node *n = typed("cudaGraphMemcpyNodeGetParams", handle, cudaGraphNodeTypeMemcpy);
    if (!n || !out)
        return finish(cudaErrorInvalidValue);
    const transfer *t = &n->is.u.copy.t;
    memset(out, 0, sizeof *out);
    out->dstPtr = pitched_of(&t->dst, &t->of), out->srcPtr = pitched_of(&t->src, &t->of);
    out->extent = (struct cudaExtent){ t->of.width, t->of.height, t->of.depth };
    out->kind = t->kind;
    return finish(0);
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t handle, struct cudaMemsetParams *out) {
    LOOK(cudaGraphMemsetNodeGetParams);
    node *n = typed("cudaGraphMemsetNodeGetParams", handle, cudaGraphNodeTypeMemset);
    if (!n || !out)
        return finish(cudaErrorInvalidValue);
    const fill *f = &n->is.u.fill.f;
    *out = (struct cudaMemsetParams){ f->dst,   f->pitch, f->value, (unsigned)f->element,
                                      f->width, f->height };
    return finish(0);
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t handle, struct cudaHostNodeParams *out) {
    LOOK(cudaGraphHostNodeGetParams);
    node *n = typed("cudaGraphHostNodeGetParams", handle, cudaGraphNodeTypeHost);
    if (n && out)
        *out = n->is.u.host;
    return finish(n && out ? 0 : cudaErrorInvalidValue);
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t handle, cudaEvent_t *out) {
    LOOK(cudaGraphEventRecordNodeGetEvent);
    node *n = typed("cudaGraphEventRecordNodeGetEvent", handle, cudaGraphNodeTypeEventRecord);
    if (n && out)
        *out = n->is.u.event;
    return finish(n && out ? 0 : cudaErrorInvalidValue);
}

cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t handle, cudaEvent_t *out) {
    LOOK(cudaGraphEventWaitNodeGetEvent);
    node *n = typed("cudaGraphEventWaitNodeGetEvent", handle, cudaGraphNodeTypeWaitEvent);
    if (n && out)
        *out = n->is.u.event;
    return finish(n && out ? 0 : cudaErrorInvalidValue);
}

/* The attributes that are valid for graph nodes, as devstream uses them. */
cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t handle, cudaKernelNodeAttrID which,
                                            cudaKernelNodeAttrValue *out) {
    LOOK(cudaGraphKernelNodeGetAttribute);
    node *n = typed("cudaGraphKernelNodeGetAttribute", handle, cudaGraphNodeTypeKernel);
    if (!n || !out)
        return finish(cudaErrorInvalidValue);
    const kernel *k = &n->is.u.kernel.k;
    memset(out, 0, sizeof *out);
    switch ((int)which) {
    case cudaLaunchAttributePriority:
        out->priority = n->is.priority;
        return finish(0);
    case cudaLaunchAttributeCooperative:
        out->cooperative = k->cooperative;
        return finish(0);
    case cudaLaunchAttributeClusterDimension:
        out->clusterDim.x = k->cluster[0];
        out->clusterDim.y = k->cluster[1];
        out->clusterDim.z = k->cluster[2];
        return finish(0);
    default:
        return finish(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGraphKernelNodeSetAttribute(cudaGraphNode_t handle, cudaKernelNodeAttrID which,
                                            const cudaKernelNodeAttrValue *value) {
    LOOK(cudaGraphKernelNodeSetAttribute);
    node *n = typed("cudaGraphKernelNodeSetAttribute", handle, cudaGraphNodeTypeKernel);
    if (!n || !value)
        return finish(cudaErrorInvalidValue);
    kernel *k = &n->is.u.kernel.k;
    switch ((int)which) {
    case cudaLaunchAttributePriority:
        n->is.priority = value->priority;
        return finish(0);
    case cudaLaunchAttributeCooperative:
        k->cooperative = value->cooperative != 0;
        return finish(0);
    case cudaLaunchAttributeClusterDimension:
        k->cluster[0] = value->clusterDim.x;
        k->cluster[1] = value->clusterDim.y;
        k->cluster[2] = value->clusterDim.z;
        return finish(0);
    default:
        return finish(cudaErrorInvalidValue);
    }
}

/* ---- user objects, as the user has them ---- */

static int is_count(unsigned count) {
    return count && count <= INT_MAX;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *data, cudaHostFn_t destroy,
                                 unsigned refs, unsigned flags) {
    LOOK(cudaUserObjectCreate);
    if (!out || !destroy || !is_count(refs) || flags != cudaUserObjectNoDestructorSync)
        return finish(cudaErrorInvalidValue);
    object *o = si_allocate(sizeof *o);
    o->destroy = destroy, o->data = data, o->refs = o->callers = refs;
    *out = o->handle = si_new_handle(H_OBJECT, o);
    live_objects++;
    return finish(0);
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
    LOOK(cudaUserObjectRetain);
    object *o = si_object_of("cudaUserObjectRetain", H_OBJECT, handle);
    if (!is_count(count))
        return finish(cudaErrorInvalidValue);
    o->refs += count, o->callers += count;
    return finish(0);
}

static void give_up(const char *call, object *o, unsigned count) {
    if (count > o->callers)
        si_fail_test("%s: %u references of a user object, but the caller owns %zu", call, count,
                     o->callers);
    o->callers -= count;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
    int code = enter(F_cudaUserObjectRelease);
    if (refused(code))
        return result(code);
    lock_to_destroy();
    object *o = si_object_of("cudaUserObjectRelease", H_OBJECT, handle);
    if (!is_count(count))
        return finish_destroying(cudaErrorInvalidValue);
    give_up("cudaUserObjectRelease", o, count);
    release_object(o, count);
    return finish_destroying(code);
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                      unsigned count, unsigned flags) {
    static const char call[] = "cudaGraphRetainUserObject";
    LOOK(cudaGraphRetainUserObject);
    graph *g = si_graph_of(call, graph_handle);
    object *o = si_object_of(call, H_OBJECT, handle);
    if (!is_count(count) || flags & ~(unsigned)cudaGraphUserObjectMove)
        return finish(cudaErrorInvalidValue);
    if (flags & cudaGraphUserObjectMove)
        give_up(call, o, count);
    else
        o->refs += count;
    hold_object(g, o, count);
    return finish(0);
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                       unsigned count) {
    static const char call[] = "cudaGraphReleaseUserObject";
    int code = enter(F_cudaGraphReleaseUserObject);
    if (refused(code))
        return result(code);
    lock_to_destroy();
    graph *g = si_graph_of(call, graph_handle);
    object *o = si_object_of(call, H_OBJECT, handle);
    holding *h = holding_of(g, o);
    if (!is_count(count) || !h || h->refs < count)
        return finish_destroying(cudaErrorInvalidValue);
    h->refs -= count;
    if (!h->refs)
        *h = g->objects[--g->object_count];
    release_object(o, count);
    return finish_destroying(code);
}

/* ---- executables ---- */

/* What a node depends on comes before it; 0: there is a circle. */
static int sort(graph *g) {
    size_t n = g->all.count, sorted = 0, before;
    g->order = si_allocate(n * sizeof *g->order);
    walks++;
    do {
        before = sorted;
        for (size_t i = 0; i < n; i++) {
            node *at = g->all.at[i];
            size_t ready = 0;
            if (at->mark == walks)
                continue;
            while (ready < at->deps.count && at->deps.at[ready]->mark == walks)
                ready++;
            if (ready < at->deps.count)
                continue;
            at->mark = walks;
            g->order[sorted++] = at;
        }
    } while (sorted > before);
    for (size_t i = 0; i < n; i++) {
        const content *c = &g->all.at[i]->is;
        if (c->type == cudaGraphNodeTypeGraph && !sort(c->u.child))
            return 0;
        for (unsigned j = 0; c->type == NODE_CONDITIONAL && j < c->u.branch.size; j++)
            if (!sort(c->u.branch.bodies[j]))
                return 0;
    }
    return sorted == n;
}

/* What a graph that is launched from a device may have: nodes of one device, and no memory of
   the host that is not pinned. */
static int fits_device_launch(const graph *g, int *index, size_t *work) {
    for (size_t i = 0; i < g->all.count; i++) {
        const content *c = &g->all.at[i]->is;
        if (c->type == cudaGraphNodeTypeGraph) {
            if (!fits_device_launch(c->u.child, index, work))
                return 0;
            continue;
        }
        if (c->type != cudaGraphNodeTypeKernel && c->type != cudaGraphNodeTypeMemcpy &&
            c->type != cudaGraphNodeTypeMemset)
            return 0;
        if (c->type == cudaGraphNodeTypeMemcpy &&
            (c->u.copy.to.where == PAGEABLE || c->u.copy.from.where == PAGEABLE))
            return 0;
        if ((*work)++ && c->device != *index)
            return 0;
        *index = c->device;
    }
    return 1;
}

static void note_widths(graph *g) {
    for (size_t i = 0; i < g->all.count; i++) {
        node *n = g->all.at[i];
        if (n->is.type == cudaGraphNodeTypeMemset)
            n->most_width = n->is.u.fill.f.width;
        if (n->is.type == cudaGraphNodeTypeGraph)
            note_widths(n->is.u.child);
        for (unsigned j = 0; n->is.type == NODE_CONDITIONAL && j < n->is.u.branch.size; j++)
            note_widths(n->is.u.branch.bodies[j]);
    }
}

/* "Allowed node types are kernel nodes, empty nodes, child graphs, memsets, memcopies, and
   conditionals. This applies recursively", all in one context. */
static int fits_body(const content *c, int index) {
    switch ((int)c->type) {
    case cudaGraphNodeTypeEmpty:
    case cudaGraphNodeTypeGraph:
        return 1;
    case cudaGraphNodeTypeMemcpy:
        return c->device == index && c->u.copy.to.where != PAGEABLE &&
               c->u.copy.from.where != PAGEABLE;
    case cudaGraphNodeTypeKernel:
    case cudaGraphNodeTypeMemset:
    case NODE_CONDITIONAL:
        return c->device == index;
    default:
        return 0;
    }
}

/* Whether every handle has a node, and every body has what it may have. index: the device of the
   node that the graph is a body of; negative: it is none. */
static int conditions_fit(const graph *g, int index) {
    int all = 1;
    for (const condition *c = g->conditions; c; c = c->next)
        all &= c->node != NULL;
    for (size_t i = 0; all && i < g->all.count; i++) {
        const content *c = &g->all.at[i]->is;
        all = index < 0 || fits_body(c, index);
        if (c->type == cudaGraphNodeTypeGraph)
            all = all && conditions_fit(c->u.child, index);
        for (unsigned j = 0; all && c->type == NODE_CONDITIONAL && j < c->u.branch.size; j++)
            all = conditions_fit(c->u.branch.bodies[j], c->device);
    }
    return all;
}

/* Without a default value the value is undefined until a kernel sets it. */
static void add_values(exec *x, const graph *g) {
    for (const condition *c = g->conditions; c; c = c->next) {
        x->values = si_grown(x->values, x->value_count, &x->value_capacity, sizeof *x->values);
        x->values[x->value_count++] =
            (condition_value){ c->handle, 0xa5a5a5a5, c->first, c->device, c->has_default };
    }
    for (size_t i = 0; i < g->all.count; i++) {
        const content *c = &g->all.at[i]->is;
        for (unsigned j = 0; c->type == NODE_CONDITIONAL && j < c->u.branch.size; j++)
            add_values(x, c->u.branch.bodies[j]);
    }
}

static condition_value *value_of(const exec *x, uint64_t handle) {
    for (size_t i = 0; i < x->value_count; i++)
        if (x->values[i].handle == handle)
            return &x->values[i];
    return NULL;
}

/* The blocks of a cooperative node are counted when its graph becomes an executable. */
static int check_blocks(const graph *g) {
    int code = 0;
    for (size_t i = 0; !code && i < g->all.count; i++) {
        const content *c = &g->all.at[i]->is;
        if (c->type == cudaGraphNodeTypeKernel)
            code = si_check_attributes(&c->u.kernel.k, c->device);
        if (c->type == cudaGraphNodeTypeGraph)
            code = check_blocks(c->u.child);
    }
    return code;
}

static int instantiate(const char *call, cudaGraphExec_t *out, cudaGraph_t handle,
                       unsigned long long flags) {
    const unsigned long long device_launch = 4,
                             auto_free = cudaGraphInstantiateFlagAutoFreeOnLaunch;
    graph *g = si_graph_of(call, handle);
    size_t work = 0;
    int index = 0;
    if (!out || flags & ~(device_launch | auto_free | cudaGraphInstantiateFlagUseNodePriority))
        return cudaErrorInvalidValue;
    int code = si_capture_unsafe(); /* H200, driver 580 (docs/gpu) */
    if (code)
        return code;
    code = check_blocks(g);
    if (code)
        return code;
    if (flags & device_launch &&
        (flags & auto_free || !fits_device_launch(g, &index, &work) || !work))
        return cudaErrorInvalidValue;
    if (is_body(g) || !conditions_fit(g, -1))
        return cudaErrorInvalidValue;
    graph *own_copy = clone_graph(g, 1, 0);
    if (!sort(own_copy)) {
        si_free_graph(own_copy);
        return cudaErrorInvalidValue;
    }
    note_widths(own_copy);
    exec *x = si_allocate(sizeof *x);
    x->graph = own_copy, x->flags = flags, x->refs = 1;
    add_values(x, g);
    *out = x->handle = si_new_handle(H_EXEC, x);
    live_execs++;
    return 0;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t g,
                                          unsigned long long flags) {
    BEGIN(cudaGraphInstantiateWithFlags, code);
    return finish(instantiate("cudaGraphInstantiateWithFlags", out, g, flags));
}

#if CUDART_VERSION >= 12000
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    BEGIN(cudaGraphInstantiate, code);
    return finish(instantiate("cudaGraphInstantiate", out, g, flags));
}
#else
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, cudaGraphNode_t *bad,
                                 char *text, size_t size) {
    BEGIN(cudaGraphInstantiate, code);
    if (bad)
        *bad = NULL;
    if (text && size)
        *text = 0;
    return finish(instantiate("cudaGraphInstantiate", out, g, 0));
}
#endif

void si_exec_over(exec *x) {
    if (--x->refs)
        return;
    op *tail = x->tail;
    exec *of = x->of;
    si_free_graph(x->graph);
    free(x->values);
    free(x);
    if (tail)
        si_unref(tail);
    if (of)
        si_exec_over(of);
}

/* What has been launched still runs. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    int code = enter(F_cudaGraphExecDestroy);
    if (refused(code))
        return result(code);
    lock_to_destroy();
    exec *x = si_object_of("cudaGraphExecDestroy", H_EXEC, handle);
    if (!code)
        code = si_capture_unsafe(); /* H200, driver 580: docs/gpu; it is destroyed all the same */
    si_drop_handle("cudaGraphExecDestroy", H_EXEC, handle);
    live_execs--;
    si_exec_over(x);
    return finish_destroying(code);
}

/* ---- launches ---- */

static int check_node(const char *call, node *n);

static int check_nodes(const char *call, const graph *g) {
    int code = 0;
    for (size_t i = 0; !code && i < g->all.count; i++)
        code = check_node(call, g->all.at[i]);
    return code;
}

/* What is wrong with a node now: 0 or a device's failure.  What it uses must be there. */
static int check_node(const char *call, node *n) {
    content *c = &n->is;
    int code = sticky(c->device);
    place to, from;
    event *e;
    if (code || n->disabled)
        return code;
    for (unsigned i = 0; c->type == NODE_CONDITIONAL && !code && i < c->u.branch.size; i++)
        code = check_nodes(call, c->u.branch.bodies[i]);
    if (c->type == NODE_EXTERNAL)
        si_external_check(call, c->u.external);
    switch (c->type) {
    case cudaGraphNodeTypeMemcpy:
        code = si_check_transfer(call, &c->u.copy.t, c->device, &to, &from);
        if (code && code != cudaErrorInvalidValue)
            return code;
        if (code || (to.where == ON_DEVICE) != (c->u.copy.to.where == ON_DEVICE) ||
            (from.where == ON_DEVICE) != (c->u.copy.from.where == ON_DEVICE))
            si_fail_test("%s: memory of a copy (%p, %p) is not what it was, or freed", call,
                         (void *)c->u.copy.t.dst.pointer, (void *)c->u.copy.t.src.pointer);
        break;
    case cudaGraphNodeTypeMemset:
        code = si_check_fill(call, &c->u.fill.f, c->device, &to);
        if (code == cudaErrorInvalidValue)
            si_fail_test("%s: memory of a fill (%p) is freed", call, (void *)c->u.fill.f.dst);
        break;
    case cudaGraphNodeTypeKernel:
        if (c->u.kernel.k.module->unloaded)
            si_fail_test("%s: the module of a kernel is unloaded", call);
        break;
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
        e = si_object_of(call, H_EVENT, c->u.event);
        code = sticky(e->device);
        if (!code && c->type == cudaGraphNodeTypeWaitEvent && e->capture)
            code = cudaErrorCapturedEvent;
        break;
    case cudaGraphNodeTypeGraph:
        code = check_nodes(call, c->u.child);
        break;
    default:
        break;
    }
    return code;
}

static op *values_op(const content *c) {
    if (si_check_values(c->u.values.list, c->u.values.count, c->device))
        si_fail_test("cudaGraphLaunch: memory of a word is freed");
    return si_values_op(c->u.values.list, c->u.values.count, NULL, c->device);
}

static op *copy_op(const content *c) {
    place to, from;
    if (si_check_transfer("cudaGraphLaunch", &c->u.copy.t, c->device, &to, &from))
        return NULL;
    return si_copy_op(&c->u.copy.t, &to, &from, NULL, c->device);
}

static op *fill_op(const content *c) {
    place at;
    if (si_check_fill("cudaGraphLaunch", &c->u.fill.f, c->device, &at))
        return NULL;
    return si_fill_op(&c->u.fill.f, &at, NULL, c->device);
}

static op *op_of(node *n);

/* What nodes of a body use is in use while it is not known that they do not run. */
static void use_bodies(op *o, const graph *g) {
    for (size_t i = 0; i < g->all.count; i++) {
        node *n = g->all.at[i];
        if (n->is.type == cudaGraphNodeTypeGraph)
            use_bodies(o, n->is.u.child);
        else
            si_take_uses(o, op_of(n));
    }
}

static op *condition_op(node *n) {
    op *o = si_new_op(OP_CONDITION, NULL, n->is.device);
    o->u.condition.node = n;
    for (unsigned i = 0; i < n->is.u.branch.size; i++)
        use_bodies(o, n->is.u.branch.bodies[i]);
    return o;
}

/* The operation of a node that is no graph, without what it waits for. */
static op *op_of(node *n) {
    const content *c = &n->is;
    op *o = NULL;
    if (n->disabled)
        return si_new_op(OP_MARK, NULL, c->device);
    if (c->type == NODE_VALUES)
        return values_op(c);
    if (c->type == NODE_CONDITIONAL)
        return condition_op(n);
    if (c->type == NODE_EXTERNAL)
        return si_external_op(c->u.external, NULL, c->device);
    switch (c->type) {
    case cudaGraphNodeTypeMemcpy:
        o = copy_op(c);
        break;
    case cudaGraphNodeTypeMemset:
        o = fill_op(c);
        break;
    case cudaGraphNodeTypeKernel:
        o = si_kernel_op(&c->u.kernel.k, NULL, c->device);
        break;
    case cudaGraphNodeTypeHost:
        o = si_new_op(OP_HOST, NULL, c->device);
        o->u.host = (host){ c->u.host.fn, NULL, NULL, c->u.host.userData };
        break;
    case cudaGraphNodeTypeEventRecord:
        o = si_new_op(OP_RECORD, NULL, c->device);
        break;
    default:
        o = si_new_op(OP_MARK, NULL, c->device);
        break;
    }
    if (!o)
        si_fail_test("cudaGraphLaunch: a node has changed while it was launched");
    return o;
}

typedef struct ops {
    op **at;
    size_t count, capacity;
} ops;

static void keep(ops *list, op *o) {
    o->refs++;
    list->at = si_grown(list->at, list->count, &list->capacity, sizeof *list->at);
    list->at[list->count++] = o;
}

static void let_go(ops *list) {
    for (size_t i = 0; i < list->count; i++)
        si_unref(list->at[i]);
    free(list->at);
}

/* A mark behind these. */
static op *gather(const ops *all, op *also, int index) {
    op *o = si_new_op(OP_MARK, NULL, index);
    o->refs++;
    si_prepare(o);
    si_depend(o, also);
    for (size_t i = 0; i < all->count; i++)
        si_depend(o, all->at[i]);
    si_release(o);
    return o;
}

/* A mark behind a conditional node and its bodies. */
static op *put_condition_end(op *o) {
    ops none = { NULL, 0, 0 };
    op *end = gather(&none, o, o->device);
    o->u.condition.end = end;
    return end;
}

/* Puts all nodes behind `start`, and returns a mark behind them, of which the caller has a
   reference. */
static op *put_graph(const graph *g, op *start, int index, exec *launch) {
    ops before, leaves = { NULL, 0, 0 };
    op **of = si_allocate(g->all.count * sizeof *of); /* by the node's index: its end */
    char *inner = si_allocate(g->all.count);
    for (size_t i = 0; i < g->all.count; i++) {
        node *n = g->order[i];
        event *e =
            n->is.type == cudaGraphNodeTypeEventRecord || n->is.type == cudaGraphNodeTypeWaitEvent
                ? si_object_of("cudaGraphLaunch", H_EVENT, n->is.u.event)
                : NULL;
        op *o = op_of(n);
        o->launch = launch;
        o->correlation = start->correlation; /* a body is put by a thread of the device */
        o->node = n->number;
        si_prepare(o);
        before = (ops){ NULL, 0, 0 };
        for (size_t j = 0; j < n->deps.count; j++) {
            keep(&before, of[n->deps.at[j]->index]);
            inner[n->deps.at[j]->index] = 1;
        }
        if (!before.count)
            keep(&before, start);
        for (size_t j = 0; j < before.count; j++)
            si_depend(o, before.at[j]);
        if (e && n->is.type == cudaGraphNodeTypeWaitEvent)
            si_depend(o, si_record_of(e));
        if (e && n->is.type == cudaGraphNodeTypeEventRecord)
            si_record_in(e, o);
        o->refs++;
        si_release(o);
        of[n->index] = o;
        if (n->is.type == cudaGraphNodeTypeGraph) {
            of[n->index] = put_graph(n->is.u.child, o, n->is.device, launch);
            si_unref(o);
        }
        if (n->is.type == NODE_CONDITIONAL) {
            of[n->index] = put_condition_end(o);
            si_unref(o);
        }
        let_go(&before);
    }
    for (size_t i = 0; i < g->all.count; i++) {
        if (!inner[i])
            keep(&leaves, of[i]);
        si_unref(of[i]);
    }
    op *end = gather(&leaves, start, index);
    let_go(&leaves);
    free(of);
    free(inner);
    return end;
}

/* The body that the value asks for; NULL: none. */
static graph *body_for(const content *c, unsigned value) {
    unsigned which = value;
    if (c->u.branch.type != CONDITION_SWITCH)
        which = !value;
    return which < c->u.branch.size ? c->u.branch.bodies[which] : NULL;
}

static void assign_defaults(const exec *launch) {
    for (size_t i = 0; i < launch->value_count; i++)
        if (launch->values[i].has_default)
            launch->of->values[i].value = launch->values[i].first;
}

/* Puts what the value of the node's handle asks for in front of its end. */
void si_run_condition(op *o) {
    node *n = o->u.condition.node;
    exec *launch = o->launch;
    if (!n) {
        assign_defaults(launch);
        return;
    }
    const content *c = &n->is;
    graph *body = body_for(c, value_of(launch->of, c->u.branch.handle)->value);
    if (!body || check_nodes("cudaGraphLaunch", body))
        return;
    op *end = put_graph(body, o, c->device, launch);
    si_depend(o->u.condition.end, end);
    if (c->u.branch.type == CONDITION_WHILE) {
        op *again = condition_op(n);
        again->launch = launch, again->u.condition.end = o->u.condition.end;
        si_prepare(again);
        si_depend(again, end);
        si_depend(again->u.condition.end, again);
        si_release(again);
    }
    si_unref(end);
}

int si_set_condition(exec *launch, uint64_t handle, unsigned value, int index) {
    condition_value *v = launch->of ? value_of(launch->of, handle) : NULL;
    if (!v || v->device != index)
        return 0;
    v->value = value;
    return 1;
}

/* What a launch keeps until it has ended: the executable, or a copy if it has conditional nodes,
   for the executable may change before the launch has come to a body. */
static exec *launch_of(exec *x) {
    x->refs++;
    if (!x->value_count)
        return x;
    exec *launch = si_allocate(sizeof *launch);
    launch->graph = clone_graph(x->graph, 1, 0);
    launch->refs = 1, launch->of = x;
    launch->values = si_allocate(x->value_count * sizeof *x->values);
    launch->value_count = x->value_count;
    memcpy(launch->values, x->values, x->value_count * sizeof *x->values);
    sort(launch->graph);
    return launch;
}

/* An operation behind `start` that gives the handles their default values. */
static op *put_defaults(exec *launch, op *start) {
    op *o = si_new_op(OP_CONDITION, NULL, start->device);
    o->launch = launch;
    o->refs++;
    si_prepare(o);
    si_depend(o, start);
    si_release(o);
    return o;
}

static void remember(exec *x, op *end) {
    end->refs++;
    if (x->tail)
        si_unref(x->tail);
    x->tail = end;
}

/* Between two marks in the stream: the first waits for the launch before this one too. */
static void put_launch(exec *x, stream *s) {
    op *start = si_new_op(OP_MARK, s, s->device), *end = si_new_op(OP_MARK, s, s->device), *all;
    start->refs++, end->refs++;
    exec *launch = launch_of(x);
    si_submit(start, x->tail);
    if (launch != x) {
        op *defaults = put_defaults(launch, start);
        si_unref(start);
        start = defaults;
    }
    all = put_graph(launch->graph, start, s->device, launch);
    end->exec = launch;
    remember(x, end);
    si_submit(end, all);
    si_unref(start);
    si_unref(all);
    si_unref(end);
}

static int launch(const char *call, exec *x, stream *s) {
    int code = sticky(s->device);
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && s->capture) /* H200, driver 580: docs/gpu, P27 */
        return si_capture_refuse(s);
    if (!code)
        code = check_nodes(call, x->graph);
    if (!code)
        put_launch(x, s);
    return code;
}

cudaError_t si_graph_launch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    ENTER(cudaGraphLaunch);
    if (si_null())
        return cudaSuccess;
    si_bind();
    lock();
    exec *x = si_object_of("cudaGraphLaunch", H_EXEC, handle);
    return finish(launch("cudaGraphLaunch", x, si_stream_of("cudaGraphLaunch", stream_handle)));
}

cudaError_t si_graph_upload(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    ENTER(cudaGraphUpload);
    if (si_null())
        return cudaSuccess;
    si_bind();
    lock();
    exec *x = si_object_of("cudaGraphUpload", H_EXEC, handle);
    stream *s = si_stream_of("cudaGraphUpload", stream_handle);
    int code = sticky(s->device);
    if (!code)
        code = si_capture_refuse(s);
    if (!code) {
        op *o = si_new_op(OP_MARK, s, s->device);
        op *before = x->tail;
        o->exec = x;
        x->refs++;
        if (before)
            before->refs++;
        remember(x, o);
        si_submit(o, before);
        if (before)
            si_unref(before);
    }
    return finish(code);
}

/* ---- changing executables ---- */

static int is_flat(const transfer *t) {
    return t->of.height == 1 && t->of.depth == 1;
}

static int same_place(const place *a, const place *b) {
    return a->where == b->where && a->device == b->device;
}

static int same_side(const side *a, const side *b) {
    return a->pointer == b->pointer && a->pitch == b->pitch && a->slice == b->slice;
}

static int same_copy(const transfer *a, const transfer *b) {
    return same_side(&a->dst, &b->dst) && same_side(&a->src, &b->src) &&
           a->of.width == b->of.width && a->of.height == b->of.height && a->of.depth == b->of.depth;
}

/* Neither the number of operations nor their types may change
   (cuGraphExecBatchMemOpNodeSetParams). */
static enum cudaGraphExecUpdateResult judge_values(const content *is, const content *to) {
    int same = is->u.values.count == to->u.values.count && is->device == to->device;
    for (unsigned i = 0; same && i < is->u.values.count; i++)
        same = is->u.values.list[i].operation == to->u.values.list[i].operation;
    return same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorParametersChanged;
}

static enum cudaGraphExecUpdateResult judge_conditional(const content *is, const content *to) {
    int same = is->u.branch.type == to->u.branch.type && is->u.branch.size == to->u.branch.size &&
               is->device == to->device;
    return same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorParametersChanged;
}

/* Whether a node of an executable may get this content: an answer of cudaGraphExecUpdate. alone:
   by a function for one node. */
static enum cudaGraphExecUpdateResult judge(const node *n, const content *to,
                                            unsigned long long flags, int alone) {
    const content *is = &n->is;
    const fill *f = &is->u.fill.f, *g = &to->u.fill.f;
    if (is->type != to->type)
        return cudaGraphExecUpdateErrorNodeTypeChanged;
    if (is->type == NODE_VALUES)
        return judge_values(is, to);
    if (is->type == NODE_CONDITIONAL)
        return judge_conditional(is, to);
    if (is->type == NODE_EXTERNAL)
        return is->device == to->device ? cudaGraphExecUpdateSuccess
                                        : cudaGraphExecUpdateErrorUnsupportedFunctionChange;
    switch (is->type) {
    case cudaGraphNodeTypeKernel:
        if (is->device != to->device)
            return cudaGraphExecUpdateErrorUnsupportedFunctionChange;
        if (!alone && flags & cudaGraphInstantiateFlagUseNodePriority &&
            is->priority != to->priority)
            return cudaGraphExecUpdateErrorAttributesChanged;
        /* other clusters: not documented */
        if (is->u.kernel.k.cooperative != to->u.kernel.k.cooperative ||
            memcmp(is->u.kernel.k.cluster, to->u.kernel.k.cluster, sizeof to->u.kernel.k.cluster))
            return cudaGraphExecUpdateErrorAttributesChanged;
        return cudaGraphExecUpdateSuccess;
    case cudaGraphNodeTypeMemcpy:
        if (is->device != to->device || !same_place(&is->u.copy.to, &to->u.copy.to) ||
            !same_place(&is->u.copy.from, &to->u.copy.from) ||
            is->u.copy.t.kind != to->u.copy.t.kind ||
            (!(is_flat(&is->u.copy.t) && is_flat(&to->u.copy.t)) &&
             (alone || !same_copy(&is->u.copy.t, &to->u.copy.t))))
            return cudaGraphExecUpdateErrorParametersChanged;
        return cudaGraphExecUpdateSuccess;
    /* a row may change as far as it "maps onto the work resources already allocated" */
    case cudaGraphNodeTypeMemset:
        if (is->device != to->device || is->u.fill.at != to->u.fill.at ||
            f->element != g->element || f->height != g->height ||
            (f->height > 1 ? f->width != g->width || f->pitch != g->pitch
                           : g->width > n->most_width))
            return cudaGraphExecUpdateErrorParametersChanged;
        return cudaGraphExecUpdateSuccess;
    default:
        return cudaGraphExecUpdateSuccess;
    }
}

typedef struct verdict {
    enum cudaGraphExecUpdateResult result;
    const node *at, *from;
} verdict;

static int by_sinking(const void *a, const void *b) {
    const node *const *x = a, *const *y = b;
    return (*x)->sunk < (*y)->sunk ? -1 : (*x)->sunk > (*y)->sunk;
}

/* The nodes that no other depends on, in the order in which they came to be such. */
static nodes sinks_of(const graph *g) {
    nodes sinks = { NULL, 0, 0 };
    walks++;
    for (size_t i = 0; i < g->all.count; i++)
        for (size_t j = 0; j < g->all.at[i]->deps.count; j++)
            g->all.at[i]->deps.at[j]->mark = walks;
    for (size_t i = 0; i < g->all.count; i++)
        if (g->all.at[i]->mark != walks)
            visit(&sinks, g->all.at[i]);
    if (sinks.count)
        qsort(sinks.at, sinks.count, sizeof *sinks.at, by_sinking);
    return sinks;
}

/* to: by the index of a node in `have`, the one in `want` that it is paired with. Sinks are
   paired in their order, other nodes in the order of the edges that lead to them; `have` has no
   circles, so these are all. */
static verdict pair(const graph *have, const graph *want, node **to) {
    verdict changed = { cudaGraphExecUpdateErrorTopologyChanged, NULL, NULL };
    nodes paired = sinks_of(have), others = sinks_of(want);
    char *taken = si_allocate(want->all.count);
    int same = have->all.count == want->all.count;
    if (same && others.count > paired.count)
        changed.at = others.at[paired.count];
    same = same && paired.count == others.count;
    for (size_t i = 0; same && i < paired.count; i++) {
        to[paired.at[i]->index] = others.at[i];
        taken[others.at[i]->index] = 1;
    }
    for (size_t i = 0; same && i < paired.count; i++) {
        const nodes *a = &paired.at[i]->deps, *b = &to[paired.at[i]->index]->deps;
        changed.at = to[paired.at[i]->index];
        same = a->count == b->count;
        for (size_t j = 0; same && j < a->count; j++) {
            node **at = &to[a->at[j]->index];
            if (!*at && !taken[b->at[j]->index]) {
                *at = b->at[j];
                taken[b->at[j]->index] = 1;
                paired.at = si_grown(paired.at, paired.count, &paired.capacity, sizeof *paired.at);
                paired.at[paired.count++] = a->at[j];
            }
            same = *at == b->at[j];
            if (!same)
                changed.from = b->at[j];
        }
    }
    si_nodes_free(&paired);
    si_nodes_free(&others);
    free(taken);
    return same ? (verdict){ cudaGraphExecUpdateSuccess, NULL, NULL } : changed;
}

static verdict judge_graph(const graph *have, const graph *want, unsigned long long flags) {
    node **to = si_allocate(have->all.count * sizeof *to);
    verdict v = pair(have, want, to);
    for (size_t i = 0; !v.result && i < have->all.count; i++) {
        const node *n = have->all.at[i];
        v.result = judge(n, &to[i]->is, flags, 0);
        if (v.result)
            v.at = to[i];
        else if (n->is.type == cudaGraphNodeTypeGraph)
            v = judge_graph(n->is.u.child, to[i]->is.u.child, flags);
        else if (n->is.type == NODE_CONDITIONAL)
            for (unsigned j = 0; !v.result && j < n->is.u.branch.size; j++)
                v = judge_graph(n->is.u.branch.bodies[j], to[i]->is.u.branch.bodies[j], flags);
    }
    free(to);
    return v;
}

/* What an executable held until now it holds until its launches are over. */
static void hold_until_over(exec *x, holding *objects, size_t count) {
    exec *held = si_allocate(sizeof *held);
    op *o = si_new_op(OP_MARK, NULL, x->tail ? x->tail->device : si_me.current);
    held->refs = 1;
    held->graph = make_graph(1);
    held->graph->objects = objects, held->graph->object_count = count;
    o->exec = held;
    si_prepare(o);
    si_depend(o, x->tail);
    si_release(o);
}

static void take_over(exec *x, graph *have, const graph *want);

/* "Conditional handle flags and default values are updated as part of the graph update." The handle
   stays that of the graph that the executable was made from. */
static void take_over_bodies(exec *x, content *have, const content *want) {
    condition_value *v = value_of(x, have->u.branch.handle);
    const condition *from = want->u.branch.of;
    v->first = from->first, v->has_default = from->has_default;
    for (unsigned i = 0; i < have->u.branch.size; i++)
        take_over(x, have->u.branch.bodies[i], want->u.branch.bodies[i]);
}

/* "the references in the new source graph are cloned and replace the references in the target
   graph" */
static void take_over(exec *x, graph *have, const graph *want) {
    node **to = si_allocate(have->all.count * sizeof *to);
    holding *before = have->objects;
    size_t count = have->object_count;
    pair(have, want, to);
    for (size_t i = 0; i < have->all.count; i++) {
        node *n = have->all.at[i];
        if (n->is.type == cudaGraphNodeTypeGraph)
            take_over(x, n->is.u.child, to[i]->is.u.child);
        else if (n->is.type == NODE_CONDITIONAL)
            take_over_bodies(x, &n->is, &to[i]->is);
        else
            replace(n, &to[i]->is);
    }
    free(to);
    have->objects = NULL, have->object_count = have->object_capacity = 0;
    copy_objects(have, want);
    if (count)
        hold_until_over(x, before, count);
    else
        free(before);
}

static int update(const char *call, cudaGraphExec_t exec_handle, cudaGraph_t handle, verdict *v) {
    exec *x = si_object_of(call, H_EXEC, exec_handle);
    graph *g = si_graph_of(call, handle);
    *v = judge_graph(x->graph, g, x->flags);
    if (v->result)
        return cudaErrorGraphExecUpdateFailure;
    int code = check_blocks(g);
    if (code) {
        v->result = cudaGraphExecUpdateError;
        return code;
    }
    take_over(x, x->graph, g);
    return 0;
}

#if CUDART_VERSION >= 12000
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t x, cudaGraph_t g,
                                cudaGraphExecUpdateResultInfo *info) {
    verdict v;
    BEGIN(cudaGraphExecUpdate, code);
    if (!info)
        return finish(cudaErrorInvalidValue);
    code = update("cudaGraphExecUpdate", x, g, &v);
    *info = (cudaGraphExecUpdateResultInfo){ v.result, v.at ? v.at->handle : NULL,
                                             v.from ? v.from->handle : NULL };
    return finish(code);
}
#else
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t x, cudaGraph_t g, cudaGraphNode_t *bad,
                                enum cudaGraphExecUpdateResult *why) {
    verdict v;
    BEGIN(cudaGraphExecUpdate, code);
    if (!bad || !why)
        return finish(cudaErrorInvalidValue);
    code = update("cudaGraphExecUpdate", x, g, &v);
    *bad = v.at ? v.at->handle : NULL, *why = v.result;
    return finish(code);
}
#endif

/* The executable's node for one of the graph that it was made from; NULL: it has none of this
   type. */
static node *exec_node(const char *call, cudaGraphExec_t exec_handle, cudaGraphNode_t handle,
                       enum cudaGraphNodeType type) {
    exec *x = si_object_of(call, H_EXEC, exec_handle);
    node *n = node_of(call, handle), *found = copy_of(x->graph, n);
    return found && (found->is.type == type || (int)type < 0) ? found : NULL;
}

static int set_exec(const char *call, cudaGraphExec_t x, cudaGraphNode_t handle, content *c) {
    node *n = exec_node(call, x, handle, c->type);
    if (n && c->type == n->is.type)
        keep_attributes(n, c);
    if (!n || judge(n, c, 0, 1))
        return cudaErrorInvalidValue;
    if (c->type == cudaGraphNodeTypeKernel && si_check_attributes(&c->u.kernel.k, c->device))
        return cudaErrorInvalidValue;
    replace(n, c);
    return 0;
}

#define SET_EXEC(name, make, ...)                                         \
    cudaError_t name(cudaGraphExec_t x, cudaGraphNode_t n, __VA_ARGS__) { \
        static const char call[] = #name;                                 \
        content c;                                                        \
        BEGIN(name, code);                                                \
        code = make;                                                      \
        if (!code)                                                        \
            code = set_exec(call, x, n, &c);                              \
        return finish(code);                                              \
    }
SET_EXEC(cudaGraphExecKernelNodeSetParams, kernel_from_params(p, &c),
         const struct cudaKernelNodeParams *p)
SET_EXEC(cudaGraphExecMemcpyNodeSetParams, copy_from_params(call, p, &c),
         const struct cudaMemcpy3DParms *p)
SET_EXEC(cudaGraphExecMemcpyNodeSetParams1D, copy_from_1d(call, dst, src, count, kind, &c),
         void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
SET_EXEC(cudaGraphExecMemsetNodeSetParams, fill_from(call, p, &c), const struct cudaMemsetParams *p)
SET_EXEC(cudaGraphExecHostNodeSetParams, host_from(p, &c), const struct cudaHostNodeParams *p)
SET_EXEC(cudaGraphExecEventRecordNodeSetEvent,
         (event_from(call, cudaGraphNodeTypeEventRecord, e, &c), 0), cudaEvent_t e)
SET_EXEC(cudaGraphExecEventWaitNodeSetEvent,
         (event_from(call, cudaGraphNodeTypeWaitEvent, e, &c), 0), cudaEvent_t e)

cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t x, cudaGraphNode_t handle,
                                                 cudaGraph_t child) {
    static const char call[] = "cudaGraphExecChildGraphNodeSetParams";
    BEGIN(cudaGraphExecChildGraphNodeSetParams, code);
    graph *g = si_graph_of(call, child);
    node *n = exec_node(call, x, handle, cudaGraphNodeTypeGraph);
    exec *of = si_object_of(call, H_EXEC, x);
    if (!n || judge_graph(n->is.u.child, g, of->flags).result)
        return finish(cudaErrorInvalidValue);
    take_over(of, n->is.u.child, g);
    return finish(0);
}

/* "Currently only kernel, memset and memcpy nodes are supported." */
static node *switchable(const char *call, cudaGraphExec_t x, cudaGraphNode_t handle) {
    node *n = exec_node(call, x, handle, (enum cudaGraphNodeType) - 1);
    if (!n)
        return NULL;
    return n->is.type == cudaGraphNodeTypeKernel || n->is.type == cudaGraphNodeTypeMemset ||
                   n->is.type == cudaGraphNodeTypeMemcpy
               ? n
               : NULL;
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t x, cudaGraphNode_t handle, unsigned on) {
    LOOK(cudaGraphNodeSetEnabled);
    node *n = switchable("cudaGraphNodeSetEnabled", x, handle);
    if (n)
        n->disabled = !on;
    return finish(n ? 0 : cudaErrorInvalidValue);
}

cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t x, cudaGraphNode_t handle, unsigned *on) {
    LOOK(cudaGraphNodeGetEnabled);
    node *n = switchable("cudaGraphNodeGetEnabled", x, handle);
    if (n && on)
        *on = !n->disabled;
    return finish(n && on ? 0 : cudaErrorInvalidValue);
}

/* ---- the driver's functions ---- */

static int driver_context(void) {
    return si_me.bound ? sticky(si_me.current) : (int)CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult finish_driver(int code) {
    unlock();
    return (CUresult)code;
}

#define BEGIN_DRIVER(f, code)    \
    int code = enter(F_##f);     \
    if (!code)                   \
        code = driver_context(); \
    if (code)                    \
        return (CUresult)code;   \
    lock()

/* The function's own context counts, not the current one. */
static int kernel_from_driver(const char *call, const CUDA_KERNEL_NODE_PARAMS_v1 *p, content *c) {
    if (!p || !p->func)
        return CUDA_ERROR_INVALID_VALUE;
    function *f = si_object_of(call, H_FUNCTION, p->func);
    int code = sticky(f->module->device);
    kernel k = { .module = f->module,
                 .code = f->code,
                 .grid = { p->gridDimX, p->gridDimY, p->gridDimZ },
                 .block = { p->blockDimX, p->blockDimY, p->blockDimZ },
                 .shared = p->sharedMemBytes,
                 .params = p->kernelParams };
    return code ? code
                : kernel_from(&k, f->most_shared, p->extra, p->func, 0, f->module->device, c);
}

CUresult si_add_kernel_node_v1(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
                               const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    content c;
    BEGIN_DRIVER(cuGraphAddKernelNode, code);
    code = kernel_from_driver("cuGraphAddKernelNode", p, &c);
    if (!code)
        code = add("cuGraphAddKernelNode", out, g, deps, n, &c);
    return finish_driver(code);
}

CUresult si_kernel_node_set_v1(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    content c;
    BEGIN_DRIVER(cuGraphKernelNodeSetParams, code);
    code = kernel_from_driver("cuGraphKernelNodeSetParams", p, &c);
    if (!code)
        code = set("cuGraphKernelNodeSetParams", n, &c);
    return finish_driver(code);
}

CUresult si_exec_kernel_node_set_v1(CUgraphExec x, CUgraphNode n,
                                    const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    content c;
    BEGIN_DRIVER(cuGraphExecKernelNodeSetParams, code);
    code = kernel_from_driver("cuGraphExecKernelNodeSetParams", p, &c);
    if (!code)
        code = set_exec("cuGraphExecKernelNodeSetParams", x, n, &c);
    return finish_driver(code);
}

/* A function that the runtime knows by its host address has no handle of the driver's here. */
CUresult si_kernel_node_get_v1(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1 *out) {
    ENTER_DRIVER(cuGraphKernelNodeGetParams);
    lock();
    node *n = typed("cuGraphKernelNodeGetParams", handle, cudaGraphNodeTypeKernel);
    if (!n || !out)
        return finish_driver(CUDA_ERROR_INVALID_VALUE);
    if (n->is.u.kernel.is_host_func)
        return finish_driver(CUDA_ERROR_NOT_SUPPORTED);
    const kernel *k = &n->is.u.kernel.k;
    *out = (CUDA_KERNEL_NODE_PARAMS_v1){ .func = (CUfunction)(uintptr_t)n->is.u.kernel.func,
                                         .gridDimX = k->grid[0],
                                         .gridDimY = k->grid[1],
                                         .gridDimZ = k->grid[2],
                                         .blockDimX = k->block[0],
                                         .blockDimY = k->block[1],
                                         .blockDimZ = k->block[2],
                                         .sharedMemBytes = k->shared,
                                         .kernelParams = k->params };
    return finish_driver(0);
}

static int values_from(const CUDA_BATCH_MEM_OP_NODE_PARAMS *p, content *c) {
    if (!p || p->flags || !p->count)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->ctx != si_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *c = (content){ .type = NODE_VALUES, .device = si_me.current };
    c->u.values.list = p->paramArray, c->u.values.count = p->count;
    return si_check_values(p->paramArray, p->count, si_me.current);
}

CUresult si_add_values_node(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    content c;
    BEGIN_DRIVER(cuGraphAddBatchMemOpNode, code);
    code = values_from(p, &c);
    if (!code)
        code = add("cuGraphAddBatchMemOpNode", out, g, deps, n, &c);
    return finish_driver(code);
}

CUresult si_values_node_set(CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    content c;
    BEGIN_DRIVER(cuGraphBatchMemOpNodeSetParams, code);
    code = values_from(p, &c);
    if (!code)
        code = set("cuGraphBatchMemOpNodeSetParams", n, &c);
    return finish_driver(code);
}

CUresult si_exec_values_node_set(CUgraphExec x, CUgraphNode n,
                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    content c;
    BEGIN_DRIVER(cuGraphExecBatchMemOpNodeSetParams, code);
    code = values_from(p, &c);
    if (!code)
        code = set_exec("cuGraphExecBatchMemOpNodeSetParams", x, n, &c);
    return finish_driver(code);
}

CUresult si_node_get_type(CUgraphNode handle, CUgraphNodeType *out) {
    ENTER_DRIVER(cuGraphNodeGetType);
    lock();
    if (!out)
        return finish_driver(CUDA_ERROR_INVALID_VALUE);
    *out = (CUgraphNodeType)type_of(node_of("cuGraphNodeGetType", handle));
    return finish_driver(0);
}

#if CUDA_VERSION >= 12080
CUresult si_condition_create(CUgraphConditionalHandle *out, CUgraph handle, CUcontext of,
                             unsigned first, unsigned flags) {
    BEGIN_DRIVER(cuGraphConditionalHandleCreate, code);
    graph *g = si_graph_of("cuGraphConditionalHandleCreate", handle);
    if (!out || flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT)
        return finish_driver(CUDA_ERROR_INVALID_VALUE);
    if (of != si_current_context())
        return finish_driver(CUDA_ERROR_INVALID_CONTEXT);
    condition *c = si_allocate(sizeof *c);
    c->graph = g, c->first = first, c->has_default = flags != 0, c->device = si_me.current;
    c->handle = (uintptr_t)si_new_handle(H_CONDITION, c);
    c->next = g->conditions;
    g->conditions = c;
    *out = c->handle;
    return finish_driver(0);
}

/* "reserved0", "reserved2" and the bytes of the union behind the parameters of this type. */
static int reserved_are_zero(const CUgraphNodeParams *p) {
    const char *bytes = (const char *)p;
    size_t from = offsetof(CUgraphNodeParams, conditional) + sizeof p->conditional;
    int all = !p->reserved0[0] && !p->reserved0[1] && !p->reserved0[2] && !p->reserved2;
    for (size_t i = from; all && i < offsetof(CUgraphNodeParams, reserved2); i++)
        all = !bytes[i];
    return all;
}

/* As many as the type allows (H200, driver 580: docs/gpu, P31). */
static int is_body_count(const CUDA_CONDITIONAL_NODE_PARAMS *p) {
    switch ((int)p->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return p->size == 1 || p->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return p->size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return p->size > 0;
    default:
        return 0;
    }
}

/* "The conditional handle must be associated with a conditional node in this graph or one of its
   children." */
static int is_in(const graph *g, const graph *whole) {
    while (g != whole && g->parent)
        g = g->parent->graph;
    return g == whole;
}

static int is_in_child_graph(const graph *g) {
    while (g->parent && g->parent->is.type == NODE_CONDITIONAL)
        g = g->parent->graph;
    return g->parent != NULL;
}

static int conditional_from(const CUgraphNodeParams *p, const graph *g, content *c) {
    const CUDA_CONDITIONAL_NODE_PARAMS *of = &p->conditional;
    void *handle = (void *)(uintptr_t)of->handle;
    if (!reserved_are_zero(p) || !is_body_count(of) || !si_is_handle(H_CONDITION, handle))
        return CUDA_ERROR_INVALID_VALUE;
    if (of->ctx != si_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    condition *asked = si_object_of("cuGraphAddNode", H_CONDITION, handle);
    if (asked->node || asked->device != si_me.current || !is_in(g, asked->graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_in_child_graph(g))
        return CUDA_ERROR_NOT_SUPPORTED;
    *c = (content){ .type = NODE_CONDITIONAL, .device = si_me.current };
    c->u.branch.of = asked, c->u.branch.handle = of->handle;
    c->u.branch.type = (unsigned)of->type, c->u.branch.size = of->size;
    return 0;
}

/* Nodes of other types have functions of their own here. */
CUresult si_add_node_with_edges(CUgraphNode *out, CUgraph handle, const CUgraphNode *deps,
                                const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p) {
    static const char call[] = "cuGraphAddNode";
    content c;
    BEGIN_DRIVER(cuGraphAddNode, code);
    const graph *g = si_graph_of(call, handle);
    if (!p || !si_plain_edges(edges, n))
        return finish_driver(CUDA_ERROR_INVALID_VALUE);
    if (p->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return finish_driver(CUDA_ERROR_NOT_SUPPORTED);
    code = conditional_from(p, g, &c);
    if (!code)
        code = add(call, out, handle, deps, n, &c);
    if (!code)
        p->conditional.phGraph_out = node_of(call, *out)->is.u.branch.shown;
    return finish_driver(code);
}

CUresult si_add_node(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
                     CUgraphNodeParams *p) {
    return si_add_node_with_edges(out, g, deps, NULL, n, p);
}
#endif

/* The second form begins as the first does, and adds what counts when there is no function. */
#if CUDA_VERSION >= 12000
static CUDA_KERNEL_NODE_PARAMS_v1 first_form(const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    return (CUDA_KERNEL_NODE_PARAMS_v1){ p->func,      p->gridDimX,       p->gridDimY,
                                         p->gridDimZ,  p->blockDimX,      p->blockDimY,
                                         p->blockDimZ, p->sharedMemBytes, p->kernelParams,
                                         p->extra };
}

CUresult si_add_kernel_node_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
                               const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    if (p)
        first = first_form(p);
    return si_add_kernel_node_v1(out, g, deps, n, p ? &first : NULL);
}

CUresult si_kernel_node_set_v2(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    if (p)
        first = first_form(p);
    return si_kernel_node_set_v1(n, p ? &first : NULL);
}

CUresult si_exec_kernel_node_set_v2(CUgraphExec x, CUgraphNode n,
                                    const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    if (p)
        first = first_form(p);
    return si_exec_kernel_node_set_v1(x, n, p ? &first : NULL);
}

CUresult si_kernel_node_get_v2(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS_v2 *out) {
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    CUresult code = si_kernel_node_get_v1(n, out ? &first : NULL);
    if (code)
        return code;
    *out = (CUDA_KERNEL_NODE_PARAMS_v2){ .func = first.func,
                                         .gridDimX = first.gridDimX,
                                         .gridDimY = first.gridDimY,
                                         .gridDimZ = first.gridDimZ,
                                         .blockDimX = first.blockDimX,
                                         .blockDimY = first.blockDimY,
                                         .blockDimZ = first.blockDimZ,
                                         .sharedMemBytes = first.sharedMemBytes,
                                         .kernelParams = first.kernelParams };
    return CUDA_SUCCESS;
}
#endif
