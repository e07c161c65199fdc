/* api/graph.h - graphs, nodes and executables.

   Declares graphs, the description of a node, and the functions that build, print, instantiate,
   launch and update graphs.

   Threads: any. Calls for the same graph or executable wait for each other. */
#ifndef DS__API_GRAPH_H
#define DS__API_GRAPH_H

#include "event.h"
#include "host_func.h"
#include "kernel.h"

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A graph is work with its dependencies, an executable is a copy of it that can be launched
   again and again. A launch is one operation of its stream: it starts after all that was put on
   the stream before it and after every earlier launch of the same executable, and later work on
   the stream starts when all its nodes are done. Every node runs once per launch, after those it
   depends on; nodes that do not depend on each other run side by side. Calls about one graph or
   one executable wait for each other; different ones may be used by different threads at once. */

/** A graph. Zeroed: none. */
typedef struct ds_graph {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph;

/** A node of one graph. Zeroed: none. */
typedef struct ds_graph_node {
    uint64_t id; /**< number of the graph and index of the node; 0: none */
} ds_graph_node;

/** An executable graph. Zeroed: none. */
typedef struct ds_graph_exec {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph_exec;

/** Kinds of nodes. */
typedef enum ds_node_kind {
    DS_NODE_EMPTY = 0,        /**< does nothing; for dependencies of many on many */
    DS_NODE_KERNEL = 1,       /**< a launch */
    DS_NODE_COPY = 2,         /**< a copy */
    DS_NODE_FILL = 3,         /**< a fill */
    DS_NODE_HOST = 4,         /**< a host function */
    DS_NODE_EVENT_RECORD = 5, /**< records an event at each launch */
    DS_NODE_EVENT_WAIT = 6,   /**< waits for an event's record as of the launch */
    DS_NODE_CHILD = 7,        /**< a graph within the graph */
    /** captured on CUDA from calls of others (cuBLAS, kernels of nvcc, ...): devstream does not
        know what */
    DS_NODE_NATIVE = 8
} ds_node_kind;

/** A launch as a node; see ds_kernel_launch and ds_kernel_launch_grid. */
typedef struct ds_kernel_node {
    ds_kernel kernel;     /**< the graph keeps it alive */
    size_t items;         /**< items, at least 1; with a grid: ignored */
    const ds_grid *grid;  /**< an explicit grid, copied; NULL: over items */
    const void *args;     /**< argument struct, copied */
    size_t args_size;     /**< its size */
    uint64_t reserved[3]; /**< 0 */
} ds_kernel_node;

/** A copy as a node; see ds_copy_2d. Pageable memory must stay valid and at its place as long as
    the graph. */
typedef struct ds_copy_node {
    void *dst;            /**< destination */
    const void *src;      /**< source */
    size_t width;         /**< bytes of a row */
    size_t height;        /**< rows; 0 counts as 1 */
    size_t dst_pitch;     /**< distance of rows in bytes; unused for one row */
    size_t src_pitch;     /**< the same of the source */
    uint64_t reserved[2]; /**< 0 */
} ds_copy_node;

/** A fill as a node; see ds_fill_2d. */
typedef struct ds_fill_node {
    void *ptr;            /**< destination */
    uint32_t value;       /**< its low bytes are written */
    size_t value_size;    /**< 1, 2 or 4 bytes */
    size_t width;         /**< elements of a row */
    size_t height;        /**< rows; 0 counts as 1 */
    size_t pitch;         /**< distance of rows in bytes; unused for one row */
    uint64_t reserved[2]; /**< 0 */
} ds_fill_node;

/** A host function as a node; see ds_stream_launch_host_func. */
typedef struct ds_host_node {
    ds_host_fn fn; /**< runs at every launch */
    void *user;    /**< its argument */
    /** runs once with user when the last graph, executable or launch that has the node is gone;
        may be NULL. After ds_graph_exec_update CUDA may keep what was replaced until earlier
        launches are over */
    ds_host_fn dtor_fn;
    uint64_t reserved[5]; /**< 0 */
} ds_host_node;

/** What a node does, by its kind. */
typedef union ds_node_work {
    ds_kernel_node kernel; /**< DS_NODE_KERNEL */
    ds_copy_node copy;     /**< DS_NODE_COPY */
    ds_fill_node fill;     /**< DS_NODE_FILL */
    ds_host_node host;     /**< DS_NODE_HOST */
    /** DS_NODE_EVENT_RECORD, DS_NODE_EVENT_WAIT; the graph keeps it alive, and binds it to
        the device if it was never recorded */
    ds_event event;
    ds_graph child; /**< DS_NODE_CHILD; copied as it is now */
} ds_node_work;

/** What a node does. */
typedef struct ds_node_desc {
    ds_node_kind kind; /**< which member of u holds */
    const char *label; /**< for messages and pictures; copied; may be NULL */
    /** of a kernel or an event's record; zeroed: the graph's. Others go by their memory */
    ds_device device;
    /** counts with DS_GRAPH_USE_NODE_PRIORITY; captured nodes have their stream's */
    int priority;
    ds_node_work u; /**< by kind */

    uint64_t reserved[4]; /**< 0 */
} ds_node_desc;

/** What ds_graph_create takes; zero means default. */
typedef struct ds_graph_desc {
    /** where its kernels run unless a node says otherwise, and which driver; zeroed: the current
        device */
    ds_device device;
    const char *label;    /**< for messages; copied; may be NULL */
    uint64_t reserved[4]; /**< 0 */
} ds_graph_desc;

/** Creates an empty graph. desc NULL: of the current device. */
DSDEF DS_MUST_USE ds_result ds_graph_create(const ds_graph_desc *desc, ds_graph *out);
/** The handle becomes invalid at once. Executables and launches made from the graph live on.
    DS_ERR_ILLEGAL_STATE while a capture makes it. */
DSDEF DS_MUST_USE ds_result ds_graph_destroy(ds_graph graph);
/** Makes a copy with the same nodes in the same order, which shares what the graph keeps (user
    objects, payloads). */
DSDEF DS_MUST_USE ds_result ds_graph_clone(ds_graph graph, ds_graph *out);
/** The node of a clone that a node of its original became. DS_ERR_INVALID_VALUE: it is no clone
    of the graph that has the node. */
DSDEF DS_MUST_USE ds_result ds_graph_find_in_clone(ds_graph clone, ds_graph_node node,
                                                   ds_graph_node *out);
/** Adds a node that starts after `dependencies` (count of them). On failure nothing is added,
    and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_add(ds_graph graph, const ds_node_desc *desc,
                                         const ds_graph_node *dependencies, size_t count,
                                         ds_graph_node *out);
/** Adds dependencies: to[i] starts after from[i]. All or none. DS_ERR_INVALID_VALUE for one that
    is there already or would close a circle. */
DSDEF DS_MUST_USE ds_result ds_graph_add_edges(ds_graph graph, const ds_graph_node *from,
                                               const ds_graph_node *to, size_t count);
/** Writes the nodes, in the order in which they were added, at most room of them; *out_count is
    how many there are. */
DSDEF DS_MUST_USE ds_result ds_graph_get_nodes(ds_graph graph, ds_graph_node *out, size_t room,
                                               size_t *out_count);
/** Writes the dependencies as pairs, at most room of them; *out_count is how many there are. */
DSDEF DS_MUST_USE ds_result ds_graph_get_edges(ds_graph graph, ds_graph_node *out_from,
                                               ds_graph_node *out_to, size_t room,
                                               size_t *out_count);
/** What a node does and where it was made (out_site may be NULL). Pointers in *out are the
    graph's, until it is changed; dtor_fn and the handle of a child are 0. */
DSDEF DS_MUST_USE ds_result ds_graph_get_node(ds_graph graph, ds_graph_node node, ds_node_desc *out,
                                              ds_site *out_site);
/** Changes what a node does, not its kind; for executables made later, and ds_graph_exec_update.
    On failure nothing has changed, and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_set_node(ds_graph graph, ds_graph_node node,
                                              const ds_node_desc *desc);
/** Hands the graph something to keep: dtor_fn(user) runs once, when the graph and all clones,
    executables and launches made from it since are gone; on whichever thread that happens, so it
    must not block, and no function of devstream may be called there. Also when the call fails. */
DSDEF DS_MUST_USE ds_result ds_graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn);

/** What ds_graph_write_dot shows; the numbers are cudaGraphDebugDotFlags'. */
enum {
    DS_DOT_PLAIN = 0,        /**< kinds and names */
    DS_DOT_VERBOSE = 1,      /**< everything below */
    DS_DOT_KERNEL = 1 << 2,  /**< items, grid and arguments of kernels */
    DS_DOT_COPY = 1 << 3,    /**< operands of copies */
    DS_DOT_FILL = 1 << 4,    /**< operands of fills */
    DS_DOT_HOST = 1 << 5,    /**< functions and their argument */
    DS_DOT_EVENT = 1 << 6,   /**< events */
    DS_DOT_HANDLES = 1 << 10 /**< numbers of the nodes and where they were made */
};

/** Takes a piece of text; not 0: stop, which makes the call fail with DS_ERR_SYSTEM. May not
    call devstream. */
typedef int (*ds_write_fn)(const char *text, size_t size, void *user);
/** Writes the graph in Graphviz' language, by calls of write_fn on this thread. */
DSDEF DS_MUST_USE ds_result ds_graph_write_dot(ds_graph graph, unsigned flags, ds_write_fn write_fn,
                                               void *user);
/** The same into a file, which it replaces. DS_ERR_SYSTEM: it cannot be written. */
DSDEF DS_MUST_USE ds_result ds_graph_write_dot_file(ds_graph graph, unsigned flags,
                                                    const char *path);

/** Flags of executables; the first four have CUDA's numbers. */
enum {
    /** CUDA: memory that native nodes allocate and do not free is freed at the next launch */
    DS_GRAPH_AUTO_FREE_ON_LAUNCH = 1,
    DS_GRAPH_UPLOAD = 2,        /**< upload at once, on upload_stream */
    DS_GRAPH_DEVICE_LAUNCH = 4, /**< not offered: DS_ERR_UNSUPPORTED */
    /** each node has its own priority instead of the launching stream's */
    DS_GRAPH_USE_NODE_PRIORITY = 8,
    DS_GRAPH_REPLACE_POINTERS = 256 /**< ds_graph_exec_replace_pointers may be used */
};

/** What ds_graph_instantiate takes; zero means default. */
typedef struct ds_graph_exec_desc {
    unsigned flags;          /**< DS_GRAPH_* */
    ds_stream upload_stream; /**< with DS_GRAPH_UPLOAD */
    const char *label;       /**< for messages; copied; NULL: the graph's */
    uint64_t reserved[4];    /**< 0 */
} ds_graph_exec_desc;

/** Makes an executable copy of the graph as it is now. desc may be NULL. The sentence of an
    error names the node. */
DSDEF DS_MUST_USE ds_result ds_graph_instantiate(ds_graph graph, const ds_graph_exec_desc *desc,
                                                 ds_graph_exec *out);
/** Prepares the executable on the device, in stream order; runs none of it. Not needed: the
    first launch does it. DS_ERR_CROSS_DRIVER: a stream of the other driver. */
DSDEF DS_MUST_USE ds_result ds_graph_upload(ds_graph_exec exec, ds_stream stream);
/** Puts a launch on a stream of the same driver; returns at once. Launches of one executable run
    one after another, also on different streams. On a capturing stream it becomes a child node.
    DS_ERR_CROSS_DRIVER: a stream of the other driver. */
DSDEF DS_MUST_USE ds_result ds_graph_launch(ds_graph_exec exec, ds_stream stream);
/** The handle becomes invalid at once; launches that are pending still run. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_destroy(ds_graph_exec exec);

/** Why an executable does not take over a graph; the numbers are cudaGraphExecUpdateResult's. */
typedef enum ds_graph_update_reason {
    DS_GRAPH_UPDATE_SUCCESS = 0,           /**< it has */
    DS_GRAPH_UPDATE_ERROR = 1,             /**< something else, which the sentence says */
    DS_GRAPH_UPDATE_TOPOLOGY_CHANGED = 2,  /**< other nodes or dependencies */
    DS_GRAPH_UPDATE_NODE_TYPE_CHANGED = 3, /**< a node of another kind */
    DS_GRAPH_UPDATE_FUNCTION_CHANGED = 4,  /**< another kernel, where the driver cannot do that */
    /** a copy or fill of another kind of memory or device */
    DS_GRAPH_UPDATE_PARAMETERS_CHANGED = 5,
    DS_GRAPH_UPDATE_NOT_SUPPORTED = 6,               /**< something about the node */
    DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE = 7, /**< a kernel on another device */
    /** an attribute: with DS_GRAPH_USE_NODE_PRIORITY a kernel's priority */
    DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED = 8
} ds_graph_update_reason;

/** What ds_graph_exec_update tells. */
typedef struct ds_graph_update_info {
    ds_graph_update_reason reason; /**< why not */
    /** the first node of the given graph with that reason; zeroed: none in particular */
    ds_graph_node node;
    uint64_t reserved[4]; /**< 0 */
} ds_graph_update_info;

/** Makes later launches do what `graph` does, which must have the same nodes in the same order
    with the same dependencies; launches that are pending do what they did. DS_ERR_GRAPH_UPDATE:
    the executable is unchanged, *out (may be NULL) says why. Nodes are still named by the graph
    from which the executable was made. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_update(ds_graph_exec exec, ds_graph graph,
                                                 ds_graph_update_info *out);
/** Changes what one node does in later launches; `node` is of the graph from which the
    executable was made. Neither the kind of the node nor, of copies and fills, the kind of
    memory and its device may change; the priority stays. A child's graph must have the same
    nodes and dependencies. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_set_node(ds_graph_exec exec, ds_graph_node node,
                                                   const ds_node_desc *desc);
/** Switches a kernel, copy or fill node off (0) or on for later launches; one that is off is
    passed as if it were empty. Other nodes are DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_set_node_enabled(ds_graph_exec exec, ds_graph_node node,
                                                           int enabled);
/** 1 in *out when the node is on. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_get_node_enabled(ds_graph_exec exec, ds_graph_node node,
                                                           int *out);
/** For later launches: wherever a kernel's parameter that is a pointer, or an operand of a copy
    or fill, is old_pointers[i], puts new_pointers[i]; all at once, also in children.
    *out_replaced (may be NULL) counts the places. DS_ERR_ILLEGAL_STATE without
    DS_GRAPH_REPLACE_POINTERS. Pointers inside of arguments that are DS_PARAM_VALUE, and native
    nodes, are not looked at. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_replace_pointers(ds_graph_exec exec,
                                                           void *const *old_pointers,
                                                           void *const *new_pointers, size_t count,
                                                           size_t *out_replaced);

#endif
