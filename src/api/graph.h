/* api/graph.h - graphs, nodes and executables.

   Declares graphs, the description of a node, and the functions that build, print, instantiate,
   launch and update graphs.

   Threads: any. Calls on the same graph or executable are serialised. */
#ifndef DS__API_GRAPH_H
#define DS__API_GRAPH_H

#include "event.h"
#include "host_func.h"
#include "kernel.h"
#include "value.h"

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A graph is work with dependencies. An executable is a copy of a graph that can be launched
   repeatedly. A launch is one operation of its stream. It starts after all earlier work of the
   stream and all earlier launches of the same executable. Later work on the stream starts after all
   nodes are complete.

   Each node runs once per launch, after its dependencies. Independent nodes run concurrently. Calls
   on one graph or executable are serialised; different ones may be used by different threads
   concurrently. */

/** A graph. A zeroed handle names no graph. */
typedef struct ds_graph {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph;

/** A node of one graph. A zeroed handle names no node. */
typedef struct ds_graph_node {
    uint64_t id; /**< number of the graph and index of the node; 0: none */
} ds_graph_node;

/** An executable graph. A zeroed handle names no executable. */
typedef struct ds_graph_exec {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph_exec;

/** Kinds of nodes. */
typedef enum ds_node_kind {
    DS_NODE_EMPTY = 0,        /**< no work; joins many dependencies */
    DS_NODE_KERNEL = 1,       /**< a kernel launch */
    DS_NODE_COPY = 2,         /**< a copy */
    DS_NODE_FILL = 3,         /**< a fill */
    DS_NODE_HOST = 4,         /**< a host function */
    DS_NODE_EVENT_RECORD = 5, /**< records an event at each launch */
    DS_NODE_EVENT_WAIT = 6,   /**< waits for an event's record as of the launch */
    DS_NODE_CHILD = 7,        /**< a graph within the graph */
    /** captured on CUDA from calls of other libraries (cuBLAS, kernels of nvcc, ...); contents
        unknown to devstream */
    DS_NODE_NATIVE = 8,
    DS_NODE_VALUES = 9,    /**< writes of words of memory, and waits for words */
    DS_NODE_CONDITION = 10 /**< graphs of which a word of memory selects one, or repeats one */
} ds_node_kind;

/** A kernel launch as a node; see ds_kernel_launch and ds_kernel_launch_grid. */
typedef struct ds_kernel_node {
    ds_kernel kernel;     /**< the graph keeps it alive */
    size_t items;         /**< number of items, at least 1; ignored with a grid */
    const ds_grid *grid;  /**< explicit grid, copied; NULL: launch over items */
    const void *args;     /**< argument struct, copied */
    size_t args_size;     /**< size of the argument struct in bytes */
    uint64_t reserved[3]; /**< 0 */
} ds_kernel_node;

/** A copy as a node; see ds_copy_2d. Pageable memory must stay valid at its address as long as the
    graph. */
typedef struct ds_copy_node {
    void *dst;            /**< destination */
    const void *src;      /**< source */
    size_t width;         /**< bytes per row */
    size_t height;        /**< rows; 0 means 1 */
    size_t dst_pitch;     /**< distance between rows in bytes; unused for one row */
    size_t src_pitch;     /**< distance between rows of the source */
    uint64_t reserved[2]; /**< 0 */
} ds_copy_node;

/** A fill as a node; see ds_fill_2d. */
typedef struct ds_fill_node {
    void *ptr;            /**< destination */
    uint32_t value;       /**< value; its low bytes are written */
    size_t value_size;    /**< 1, 2 or 4 bytes */
    size_t width;         /**< elements per row */
    size_t height;        /**< rows; 0 means 1 */
    size_t pitch;         /**< distance between rows in bytes; unused for one row */
    uint64_t reserved[2]; /**< 0 */
} ds_fill_node;

/** A host function as a node; see ds_stream_launch_host_func. */
typedef struct ds_host_node {
    ds_host_fn fn; /**< runs at every launch */
    void *user;    /**< argument of fn and dtor_fn */
    /** runs once with user after the last graph, executable and launch with the node has ended; may
        be NULL. After ds_graph_exec_update, CUDA may keep the replaced user until earlier launches
        are complete */
    ds_host_fn dtor_fn;
    uint64_t reserved[5]; /**< 0 */
} ds_host_node;

/** Operations on words of memory as a node; see ds_stream_batch_values. */
typedef struct ds_values_node {
    const ds_value_op *ops; /**< copied */
    size_t count;           /**< 1 to DS_VALUE_BATCH_MAX */
    uint64_t reserved[6];   /**< 0 */
} ds_values_node;

/** Kinds of conditional nodes; the numbers are those of cudaGraphConditionalNodeType. */
typedef enum ds_condition_kind {
    /** runs bodies[0] if the word is not 0, else bodies[1] if there is one */
    DS_CONDITION_IF = 0,
    DS_CONDITION_WHILE = 1, /**< runs bodies[0] as long as the word is not 0 before a run */
    DS_CONDITION_SWITCH = 2 /**< runs bodies[word]; none if the word is not below count */
} ds_condition_kind;

/** Graphs that run under a condition, as a node. The word is read when the node starts, and by
    DS_CONDITION_WHILE also after each run. Kernels, copies, fills and host functions can write it,
    but a body has no host functions. The address is a multiple of 4, in memory of the node's device
    or in pinned memory.

    A body has kernels, copies and fills of device memory, empty nodes, child graphs and conditional
    nodes, all on the device of the node. It must not have fills of random numbers by a generator.
    A graph with conditional nodes cannot be a child graph, its executables cannot be launched on a
    capturing stream or updated from a graph, and their conditional nodes cannot be set: these are
    limits of CUDA. To capture a conditional node, add it to ds_capture_info.graph, and continue the
    stream behind it by ds_capture_update_dependencies. */
typedef struct ds_condition_node {
    ds_condition_kind kind; /**< selects the meaning of the word */
    const uint32_t *word;   /**< the condition */
    const ds_graph *bodies; /**< copied by the call */
    size_t count;           /**< IF: 1 or 2 bodies; WHILE: 1; SWITCH: at least 1 */
    uint64_t reserved[4];   /**< 0 */
} ds_condition_node;

/** Work of a node, by its kind. */
typedef union ds_node_work {
    ds_kernel_node kernel; /**< DS_NODE_KERNEL */
    ds_copy_node copy;     /**< DS_NODE_COPY */
    ds_fill_node fill;     /**< DS_NODE_FILL */
    ds_host_node host;     /**< DS_NODE_HOST */
    ds_values_node values; /**< DS_NODE_VALUES */
    /** DS_NODE_CONDITION; ds_graph_get_node does not return the bodies */
    ds_condition_node condition;
    /** DS_NODE_EVENT_RECORD, DS_NODE_EVENT_WAIT. The graph keeps the event alive; if it was never
        recorded, the graph binds it to the device */
    ds_event event;
    ds_graph child; /**< DS_NODE_CHILD; copied by the call */
} ds_node_work;

/** Description of a node. */
typedef struct ds_node_desc {
    ds_node_kind kind; /**< selects the member of u */
    const char *label; /**< for messages and drawings; copied; may be NULL */
    /** device of a kernel or an event record; zeroed: the graph's. Other nodes take the device of
        their memory */
    ds_device device;
    /** used with DS_GRAPH_USE_NODE_PRIORITY; captured nodes have their stream's priority */
    int priority;
    ds_node_work u; /**< work of the node */

    uint64_t reserved[4]; /**< 0 */
} ds_node_desc;

/** Parameters of ds_graph_create; zero means default. */
typedef struct ds_graph_desc {
    /** driver of the graph and default device of its kernels; zeroed: the current device */
    ds_device device;
    const char *label;    /**< for messages; copied; may be NULL */
    uint64_t reserved[4]; /**< 0 */
} ds_graph_desc;

/** Creates an empty graph. desc NULL: on the current device. The caller must destroy it. */
DSDEF DS_MUST_USE ds_result ds_graph_create(const ds_graph_desc *desc, ds_graph *out);
/** Destroys a graph; the handle becomes invalid at once. Its executables and launches continue.
    Deferred in user code. DS_ERR_ILLEGAL_STATE: a capture is adding nodes to the graph. */
DSDEF DS_MUST_USE ds_result ds_graph_destroy(ds_graph graph);
/** Copies a graph with the same nodes in the same order. The copy shares the objects kept by the
    graph (user objects, payloads). */
DSDEF DS_MUST_USE ds_result ds_graph_clone(ds_graph graph, ds_graph *out);
/** Returns the node of a clone that corresponds to a node of the original. DS_ERR_INVALID_VALUE:
    not a clone of the node's graph. */
DSDEF DS_MUST_USE ds_result ds_graph_find_in_clone(ds_graph clone, ds_graph_node node,
                                                   ds_graph_node *out);
/** Adds a node that depends on the `count` nodes of `dependencies`. On failure, the graph is
    unchanged and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_add(ds_graph graph, const ds_node_desc *desc,
                                         const ds_graph_node *dependencies, size_t count,
                                         ds_graph_node *out);
/** Adds dependencies: to[i] starts after from[i]. On failure, adds none. DS_ERR_INVALID_VALUE: a
    dependency already exists or would close a cycle. */
DSDEF DS_MUST_USE ds_result ds_graph_add_edges(ds_graph graph, const ds_graph_node *from,
                                               const ds_graph_node *to, size_t count);
/** Writes the nodes in the order of their addition, at most `room` nodes. *out_count is their total
    number. */
DSDEF DS_MUST_USE ds_result ds_graph_get_nodes(ds_graph graph, ds_graph_node *out, size_t room,
                                               size_t *out_count);
/** Writes the dependencies as pairs, at most `room` pairs. *out_count is their total number. */
DSDEF DS_MUST_USE ds_result ds_graph_get_edges(ds_graph graph, ds_graph_node *out_from,
                                               ds_graph_node *out_to, size_t room,
                                               size_t *out_count);
/** Returns the description of a node and its call site (out_site may be NULL). Pointers in *out
    belong to the graph and are valid until it changes. dtor_fn and the handle of a child are set to
    0. */
DSDEF DS_MUST_USE ds_result ds_graph_get_node(ds_graph graph, ds_graph_node node, ds_node_desc *out,
                                              ds_site *out_site);
/** Changes the work of a node, but not its kind. Affects executables created later, and
    ds_graph_exec_update. On failure, the graph is unchanged and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_set_node(ds_graph graph, ds_graph_node node,
                                              const ds_node_desc *desc);
/** Attaches a user object to the graph. dtor_fn(user) runs once, after the end of the graph and of
    all later clones, executables and launches of it. dtor_fn runs on any thread, must not block and
    must not call devstream. If the call fails, dtor_fn runs too. */
DSDEF DS_MUST_USE ds_result ds_graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn);

/** Contents of ds_graph_write_dot; the values are those of cudaGraphDebugDotFlags. */
enum {
    DS_DOT_PLAIN = 0,          /**< kinds and names */
    DS_DOT_VERBOSE = 1,        /**< all of the contents below */
    DS_DOT_KERNEL = 1 << 2,    /**< items, grid and arguments of kernels */
    DS_DOT_COPY = 1 << 3,      /**< operands of copies */
    DS_DOT_FILL = 1 << 4,      /**< operands of fills */
    DS_DOT_HOST = 1 << 5,      /**< functions and their arguments */
    DS_DOT_EVENT = 1 << 6,     /**< events */
    DS_DOT_HANDLES = 1 << 10,  /**< numbers of the nodes and their call sites */
    DS_DOT_VALUES = 1 << 13,   /**< operations on words of memory */
    DS_DOT_CONDITION = 1 << 15 /**< kinds and words of conditional nodes */
};

/** Receives a piece of text. Returns 0 to continue; another value stops, and the calling function
    returns DS_ERR_SYSTEM. Must not call devstream. */
typedef int (*ds_write_fn)(const char *text, size_t size, void *user);
/** Writes the graph in Graphviz' DOT language. Invokes write_fn on the calling thread. */
DSDEF DS_MUST_USE ds_result ds_graph_write_dot(ds_graph graph, unsigned flags, ds_write_fn write_fn,
                                               void *user);
/** Writes the graph in DOT to a file and replaces an existing file. DS_ERR_SYSTEM: the file cannot
    be written. */
DSDEF DS_MUST_USE ds_result ds_graph_write_dot_file(ds_graph graph, unsigned flags,
                                                    const char *path);

/** Flags of executables; the first four have CUDA's numbers. */
enum {
    /** CUDA: memory allocated and not freed by native nodes is freed at the next launch */
    DS_GRAPH_AUTO_FREE_ON_LAUNCH = 1,
    DS_GRAPH_UPLOAD = 2,        /**< upload at instantiation, on upload_stream */
    DS_GRAPH_DEVICE_LAUNCH = 4, /**< not supported: DS_ERR_UNSUPPORTED */
    /** each node has its own priority instead of the launch stream's */
    DS_GRAPH_USE_NODE_PRIORITY = 8,
    DS_GRAPH_REPLACE_POINTERS = 256 /**< allows ds_graph_exec_replace_pointers */
};

/** Parameters of ds_graph_instantiate; zero means default. */
typedef struct ds_graph_exec_desc {
    unsigned flags;          /**< DS_GRAPH_* */
    ds_stream upload_stream; /**< with DS_GRAPH_UPLOAD */
    const char *label;       /**< for messages; copied; NULL: the graph's */
    uint64_t reserved[4];    /**< 0 */
} ds_graph_exec_desc;

/** Creates an executable copy of the graph. desc may be NULL. If the call fails,
    ds_error_get_last() names the node. The caller must destroy the executable. */
DSDEF DS_MUST_USE ds_result ds_graph_instantiate(ds_graph graph, const ds_graph_exec_desc *desc,
                                                 ds_graph_exec *out);
/** Prepares the executable on the device in stream order without running it. Optional: the first
    launch does the same. DS_ERR_CROSS_DRIVER: a stream of another driver. */
DSDEF DS_MUST_USE ds_result ds_graph_upload(ds_graph_exec exec, ds_stream stream);
/** Enqueues a launch on a stream of the same driver. Does not block. Launches of one executable run
    one after another, also on different streams. On a capturing stream, adds a child node.
    DS_ERR_CROSS_DRIVER: a stream of another driver. */
DSDEF DS_MUST_USE ds_result ds_graph_launch(ds_graph_exec exec, ds_stream stream);
/** Destroys an executable; the handle becomes invalid at once. Pending launches still run. Deferred
    in user code. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_destroy(ds_graph_exec exec);

/** Reason for a failed update; the values are those of cudaGraphExecUpdateResult. */
typedef enum ds_graph_update_reason {
    DS_GRAPH_UPDATE_SUCCESS = 0,           /**< the update succeeded */
    DS_GRAPH_UPDATE_ERROR = 1,             /**< another reason, named by ds_error_get_last() */
    DS_GRAPH_UPDATE_TOPOLOGY_CHANGED = 2,  /**< nodes or dependencies differ */
    DS_GRAPH_UPDATE_NODE_TYPE_CHANGED = 3, /**< a node has another kind */
    DS_GRAPH_UPDATE_FUNCTION_CHANGED = 4,  /**< another kernel, not supported by the driver */
    /** a copy or fill has another kind of memory or device */
    DS_GRAPH_UPDATE_PARAMETERS_CHANGED = 5,
    /** the change of the node is not supported */
    DS_GRAPH_UPDATE_NOT_SUPPORTED = 6,
    DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE = 7, /**< a kernel has another device */
    /** an attribute differs: with DS_GRAPH_USE_NODE_PRIORITY, a kernel's priority */
    DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED = 8
} ds_graph_update_reason;

/** Result of ds_graph_exec_update. */
typedef struct ds_graph_update_info {
    ds_graph_update_reason reason; /**< result of the comparison */
    /** first node of the given graph with that reason; zeroed: no single node */
    ds_graph_node node;
    uint64_t reserved[4]; /**< 0 */
} ds_graph_update_info;

/** Replaces the work of later launches by the work of `graph`. `graph` must have the same nodes in
    the same order with the same dependencies. Pending launches are not changed. Nodes are still
    named by the graph of the instantiation. DS_ERR_GRAPH_UPDATE: the executable is unchanged; *out
    (may be NULL) has the reason. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_update(ds_graph_exec exec, ds_graph graph,
                                                 ds_graph_update_info *out);
/** Changes the work of one node in later launches; `node` belongs to the graph of the
    instantiation. The node's kind and priority, and the memory kind and device of a copy or fill,
    cannot change. A child's graph must have the same nodes and dependencies. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_set_node(ds_graph_exec exec, ds_graph_node node,
                                                   const ds_node_desc *desc);
/** Enables (1) or disables (0) a kernel, copy or fill node for later launches. A disabled node acts
    as an empty node. DS_ERR_INVALID_VALUE: a node of another kind. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_set_node_enabled(ds_graph_exec exec, ds_graph_node node,
                                                           int enabled);
/** Sets *out to 1 if the node is enabled, else to 0. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_get_node_enabled(ds_graph_exec exec, ds_graph_node node,
                                                           int *out);
/** Replaces old_pointers[i] by new_pointers[i] in later launches. Replaces pointer parameters of
    kernels and operands of copies and fills, all at once and also in children. Does not change
    pointers inside DS_PARAM_VALUE arguments, or native nodes. *out_replaced (may be NULL): number
    of replacements. DS_ERR_ILLEGAL_STATE without DS_GRAPH_REPLACE_POINTERS. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_replace_pointers(ds_graph_exec exec,
                                                           void *const *old_pointers,
                                                           void *const *new_pointers, size_t count,
                                                           size_t *out_replaced);

#endif
