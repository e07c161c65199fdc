/* cuda/graph_types.h - captures and graphs: types, kept objects, host tasks.

   Declares the native part of a graph (ds__cuda_graph), of an executable (ds__cuda_exec) and of a
   capture's origin. A list of kept objects (ds__cuda_owns) holds the data that native nodes use.
   ds__cuda_task is the data of a host node, and ds__cuda_host_node runs it.

   Policy:
   1. CUDA captures, keeps the rules of capture and runs graphs. Beside each native graph stands the
      shadow graph of the core (ds__body). Node i of the shadow graph is the i-th node of the native
      graph.
   2. After each operation of devstream on a stream that captures, CUDA is asked for the node of the
      operation. Nodes of other libraries are entered as nodes of unknown kind.
   3. An executable is made from a clone of the graph, because the graph may be destroyed first. The
      clone stays, since CUDA names the nodes of the executable by its handles.
   4. The data of host nodes has a count of owners. Shadow graphs own the data; CUDA owns the data
      of an executable through one user object. An update replaces that object; the former one ends
      after its last launch (Programming Guide, "CUDA User Objects").
   5. Codes 900 to 908 tell neither the capture nor whether it is still valid. Both are looked up.

   Invariants: An entry of ds__cuda_owns has one reference to its object and the index of its node,
   or one of the tags DS__CUDA_ATTACHED, DS__CUDA_NOWHERE and DS__CUDA_NEW. A task whose `fn` is
   NULL runs nothing.
   Locks: takes none. The graph's lock in the core guards a graph's list, and the capture lock does
   while a capture makes the graph. `capture` is guarded by the capture lock. An executable's list
   is guarded by the executable's lock. Dropping the last reference to an object runs the user's
   destructor, so a caller with a lock must not have the last one.
   Threads: any. ds__cuda_host_node runs on a thread of CUDA, with ds__tls.in_callback set. `fn` is
   atomic, because the stop of the driver may clear it while graphs of other libraries still have
   the node. */
#ifndef DS__CUDA_GRAPH_TYPES_H
#define DS__CUDA_GRAPH_TYPES_H

#include "../base/observe.h"
#include "../base/graph_body.h"
#include "types.h"
#include "call.h"
#include "copy_plain.h"

/* Tags of objects that are kept for no node: attached by the program, without a node, or of a node
   that has no index yet. */
#define DS__CUDA_ATTACHED UINT32_MAX
#define DS__CUDA_NOWHERE (UINT32_MAX - 1)
#define DS__CUDA_NEW (UINT32_MAX - 2)

typedef struct ds__cuda_own {
    uint32_t node;
    ds__object *object;
} ds__cuda_own;

/* The objects that the nodes of a native graph need, and in executables the attached ones. */
typedef struct ds__cuda_owns {
    ds__cuda_own *at;
    uint32_t count;
    size_t room;
} ds__cuda_owns;

/* The kernel node before a conditional node (graph_condition.h), which no node of the shadow graph
   has. condition NULL: the conditional node could not be made. */
typedef struct ds__cuda_setter {
    cudaGraphNode_t condition;
    cudaGraphNode_t setter;
} ds__cuda_setter;

typedef struct ds__cuda_graph {
    cudaGraph_t graph;
    ds__cuda_owns owns;
    ds__cuda_setter *setters;
    uint32_t setter_count;
    size_t setter_room;
    ds__capture *capture; /* the open capture into the graph; under the core's capture lock */
} ds__cuda_graph;

/* The native stream where a capture began; its stream object may end before the capture. */
typedef struct ds__cuda_origin {
    cudaStream_t handle;
    int device;
    int per_thread;
    uint64_t thread;
    ds__cuda_stream *streams; /* made for the capture */
} ds__cuda_origin;

/* The place of a native node: a new node of `graph` that depends on `after`; else, with `exec`, a
   node of an executable that is set; else a node of a graph that is set. */
typedef struct ds__cuda_target {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    const cudaGraphNode_t *after;
    size_t count; /* of `after` */
} ds__cuda_target;

/* States of a node of an executable: on, switched off by CUDA, or a host node with an empty task,
   since CUDA cannot switch off host nodes. */
enum { DS__CUDA_ON, DS__CUDA_OFF_BY_CUDA, DS__CUDA_OFF_BY_TASK };

typedef struct ds__cuda_exec {
    cudaGraphExec_t exec;
    int device;
    int stale; /* 1: `now` lacks a change */
    /* clone of the instantiated graph; its nodes name those of the executable */
    cudaGraph_t kept;
    cudaGraph_t now; /* a graph of the present work; both NULL: CUDA cannot clone the graph */
    cudaGraphNode_t *kept_node;
    cudaGraphNode_t *now_node;
    uint32_t count;
    unsigned char *off; /* by node: DS__CUDA_ON, or how it was switched off */
    unsigned char *on;  /* by node: its device */
    /* kernels and events of `kept`: CUDA may use its nodes after a change of the executable too */
    ds__body *held;
    ds__cuda_owns owns;
} ds__cuda_exec;

/* The data of a host node of devstream. */
typedef struct ds__cuda_task {
    _Atomic(ds_host_fn) fn; /* NULL: the node runs nothing any more */
    void *user;
    ds__object *payload;
    ds__op op; /* of a copy or fill of host memory */
} ds__cuda_task;

static void ds__cuda_task_end(void *user) {
    ds__cuda_task *h = user;
    ds__object_unref(h->payload);
    ds__host_free(h);
}

/* Returns a new task for a host node, or for a copy or fill of host memory. NULL: no memory, which
   is reported. */
static ds__object *ds__cuda_task_create(const ds__node *n) {
    ds__cuda_task *h = ds__host_alloc(sizeof *h);
    ds__object *o = h ? ds__object_create(h, ds__cuda_task_end) : NULL;
    if (!o) {
        ds__host_free(h);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
        return NULL;
    }
    atomic_store(&h->fn, n->kind == DS_NODE_HOST ? n->op.u.host.fn : ds__cuda_host_work);
    h->user = n->kind == DS_NODE_HOST ? n->op.u.host.user : &h->op;
    h->payload = ds__object_ref(n->payload);
    h->op = n->op;
    return o;
}

/* Runs the task of a host node. */
static void CUDART_CB ds__cuda_host_node(void *user) {
    ds__cuda_task *h = user;
    ds_host_fn fn = atomic_load(&h->fn);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    ds__handed_over(DS__SEEN_ACQUIRE, h->user, 0);
    if (fn)
        fn(h->user);
    ds__handed_over(DS__SEEN_RELEASE, h->user, 0);
    ds__tls.in_callback = outer;
}

static ds__cuda_task ds__cuda_nothing; /* of a node that is switched off */

/* Makes room for one more entry. Returns 0 if there is no memory, which is reported. */
static int ds__cuda_own_room(ds__cuda_owns *list) {
    return ds__graph_array_reserve(&list->at, sizeof *list->at, list->count, &list->room);
}

/* Keeps an object for a node, or under a tag. Returns 0 if there is no memory. */
static int ds__cuda_own_add(ds__cuda_owns *list, uint32_t node, ds__object *o) {
    if (!ds__cuda_own_room(list))
        return 0;
    list->at[list->count++] = (ds__cuda_own){ node, ds__object_ref(o) };
    return 1;
}

/* Drops the objects that are kept for a node or under a tag. */
static void ds__cuda_own_remove(ds__cuda_owns *list, uint32_t node) {
    uint32_t kept = 0;
    uint32_t count = list->count;
    for (uint32_t i = 0; i < count; i++) {
        ds__cuda_own own = list->at[i];
        if (own.node != node)
            list->at[kept++] = own;
        else
            ds__object_unref(own.object);
    }
    list->count = kept;
}

/* Drops all objects, and frees the list. */
static void ds__cuda_own_end(ds__cuda_owns *list) {
    for (uint32_t i = 0; i < list->count; i++)
        ds__object_unref(list->at[i].object);
    ds__host_free(list->at);
    memset(list, 0, sizeof *list);
}

/* Adds all objects of another list, for this node, or with DS__CUDA_NOWHERE for the nodes of that
   list. Returns 0 if there is no memory. */
static int ds__cuda_own_copy(ds__cuda_owns *to, const ds__cuda_owns *from, uint32_t node) {
    for (uint32_t i = 0; i < from->count; i++)
        if (!ds__cuda_own_add(to, node == DS__CUDA_NOWHERE ? from->at[i].node : node,
                              from->at[i].object))
            return 0;
    return 1;
}

/* Adds the objects that the program attached to the graph and to its child graphs. Returns 0 if
   there is no memory. */
static int ds__cuda_own_attached(ds__cuda_owns *to, const ds__body *b, uint32_t node) {
    for (size_t i = 0; i < b->object_count; i++)
        if (!ds__cuda_own_add(to, node, b->object[i]))
            return 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->node[i]->child &&
            !ds__cuda_own_attached(to, b->node[i]->child, node == DS__CUDA_ATTACHED ? i : node))
            return 0;
    return 1;
}

/* Adds all objects that an executable of the graph needs. Returns 0 if there is no memory. */
static int ds__cuda_own_all(ds__cuda_owns *to, const ds__body *b) {
    return ds__cuda_own_copy(to, &((const ds__cuda_graph *)b->native)->owns, DS__CUDA_NOWHERE) &&
           ds__cuda_own_attached(to, b, DS__CUDA_ATTACHED);
}

/* Returns the native node that starts the work of `node`: the setter of a conditional node, else
   the node. */
static cudaGraphNode_t ds__cuda_first_of(const ds__cuda_graph *g, cudaGraphNode_t node) {
    for (uint32_t i = 0; i < g->setter_count; i++)
        if (g->setters[i].condition == node)
            return g->setters[i].setter;
    return node;
}

static int ds__cuda_is_setter(const ds__cuda_graph *g, cudaGraphNode_t node) {
    for (uint32_t i = 0; i < g->setter_count; i++)
        if (g->setters[i].setter == node)
            return 1;
    return 0;
}

/* Destroys a native graph, which may be NULL. */
static void ds__cuda_drop_graph(const ds__cuda_scope *scope, cudaGraph_t graph) {
    if (graph)
        (void)DS__RT_CODE(*scope, cudaGraphDestroy, (graph));
}

/* Returns the first object that is kept for the node, or NULL. */
static ds__object *ds__cuda_own_find(const ds__cuda_owns *list, uint32_t node) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->at[i].node == node)
            return list->at[i].object;
    return NULL;
}

#endif
