/* cuda/types.h - types and state of the CUDA driver.

   Declares the driver's objects for streams, events, host functions, modules and staging buffers,
   and its global state (ds__cuda). Lists the entry points of the driver library
   (DS__CUDA_ENTRY_POINTS); cudart.h and version.h have the functions of cudart. Needs neither
   libcuda nor cuda.h.

   Policy:
   1. cudart does streams, events, copies and memory. The driver library does contexts, kernel
      images, launches, kernel nodes of images, fills of 2 and 4 bytes, and mapped memory. Its entry
      points come from cudart, so nothing links to libcuda.
   2. Queries go to the driver library as well. In cudart a query would leave "not ready" as the
      thread's last error.
   3. Every call of an entry runs in a scope (ds__cuda_scope). The primary context of the scope's
      device is current, or becomes current by its first call. A scope clears the thread's last
      error only if a call of the scope has caused that error.
   4. If another context is current, a scope pushes the primary context of the device and pops it
      again. That context may be another device's, or one of the program that is not primary
      (cuCtxCreate, green contexts). With CUDA 12, cudaSetDevice back to the former device could
      create a context there, which takes hundreds of MB.
   5. CUDA does not require the device to be current for every call (Programming Guide, "Stream and
      Event Behavior"). In a thread without a context, however, every call of cudart except queries
      of devices creates the context of the current device. Calls that need no particular device run
      on one that has a context (ds__cuda_enter_any).
   6. Host functions use cudaLaunchHostFunc, and only callbacks with a status use
      cudaStreamAddCallback: CUDA holds a lock while it runs the latter.

   Invariants: `streams` holds every stream object except those of the legacy streams. A host
   function is in `hosts` until it begins to run or CUDA refuses it. The state of a host function or
   keep changes from pending to taken once; the thread that changes it runs or releases the object.
   Primary contexts are retained and peer access is enabled for the life of the process.
   Locks: `mutex` guards the modules, the set-up of pools and the limits of shared memory; it is not
   held while the driver loads a module. `lock` guards `streams`. `host_lock` guards `hosts`,
   `stages`, `marks`, `aside` and `keeps`. No call into CUDA is made under `lock` or `host_lock`.
   `joining` of a stream comes before the core's capture lock, which comes before all others. An
   error about a capture takes the capture lock, so errors must be reported after `lock` or
   `staging` is released.
   Threads: any. `devices`, `multiprocessors` and the entry points are written during initialisation
   only. CUDA's own threads use the host functions, the keeps and the staging buffers. */
#ifndef DS__CUDA_TYPES_H
#define DS__CUDA_TYPES_H

#include "../api/memory.h"
#include "../base/operation.h"
#include "version.h"

/* CUDA_KERNEL_NODE_PARAMS of CUDA 12; older drivers do not read the last two fields. */
typedef struct ds__cuda_kernel_params {
    void *function;
    unsigned grid_x;
    unsigned grid_y;
    unsigned grid_z;
    unsigned block_x;
    unsigned block_y;
    unsigned block_z;
    unsigned shared_bytes;
    void **params;
    void **extra;
    void *kernel;
    void *context;
} ds__cuda_kernel_params;

typedef struct ds__cuda_value { /* CUstreamBatchMemOpParams */
    int operation;              /* DS__CUDA_WAIT_*, DS__CUDA_WRITE_* */
    unsigned long long address;
    uint64_t value;
    unsigned flags; /* of a wait: the condition */
    uint64_t unused[2];
} ds__cuda_value;

_Static_assert(sizeof(ds__cuda_value) == 48, "the size of CUstreamBatchMemOpParams");

typedef struct ds__cuda_values_params { /* CUDA_BATCH_MEM_OP_NODE_PARAMS */
    void *context;
    unsigned count;
    ds__cuda_value *list;
    unsigned flags;
} ds__cuda_values_params;

typedef struct ds__cuda_node_params { /* CUgraphNodeParams, of a conditional node */
    int type;
    int reserved0[3];
    unsigned long long handle; /* CUDA_CONDITIONAL_NODE_PARAMS from here on */
    int kind;
    unsigned size;
    cudaGraph_t *bodies; /* CUDA's array */
    void *context;
    uint64_t unused[26];
} ds__cuda_node_params;

_Static_assert(sizeof(ds__cuda_node_params) == 256, "the size of CUgraphNodeParams");

/* CUlaunchConfig. CUlaunchAttribute has the layout of cudaLaunchAttribute. */
typedef struct ds__cuda_launch_config {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    cudaStream_t stream;
    const cudaLaunchAttribute *attributes;
    unsigned count;
} ds__cuda_launch_config;

typedef struct ds__cuda_memory { /* CUmemAllocationProp */
    int type;
    int handle_types;
    int location;
    int device;
    void *handle_data;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
} ds__cuda_memory;

/* X(function, parameters): the functions of the driver library. The types stand for those of
   cuda.h, which is not needed: results and options are ints, handles are pointers, and the address
   of device memory has 64 bits. */
/* clang-format off */
#define DS__CUDA_ENTRY_POINTS(X) \
    X(cuModuleLoadDataEx, \
      (void **module, const void *image, unsigned count, int *options, void **values)) \
    X(cuModuleUnload, (void *module)) \
    X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    X(cuFuncGetAttribute, (int *value, int attribute, void *function)) \
    X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
    X(cuDeviceGet, (int *out, int ordinal)) \
    X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active)) \
    X(cuCtxGetCurrent, (void **context)) \
    X(cuCtxPushCurrent, (void *context)) \
    X(cuCtxPopCurrent, (void **context)) \
    X(cuLaunchKernel, \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
        unsigned block_y, unsigned block_z, unsigned shared_bytes, cudaStream_t stream, \
        void **params, void **extra)) \
    X(cuStreamQuery, (cudaStream_t stream)) \
    X(cuEventQuery, (cudaEvent_t event)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    X(cuDeviceGetName, (char *out, int size, int device)) \
    X(cuDeviceGetUuid, (unsigned char *out, int device)) \
    X(cuDeviceTotalMem, (size_t *out, int device)) \
    X(cuMemGetAllocationGranularity, (size_t *out, const ds__cuda_memory *memory, int option)) \
    X(cuMemAddressReserve, \
      (unsigned long long *out, size_t size, size_t alignment, unsigned long long hint, \
        unsigned long long flags)) \
    X(cuMemAddressFree, (unsigned long long address, size_t size)) \
    X(cuMemCreate, \
      (unsigned long long *handle, size_t size, const ds__cuda_memory *memory, \
        unsigned long long flags)) \
    X(cuMemRelease, (unsigned long long handle)) \
    X(cuMemMap, \
      (unsigned long long address, size_t size, size_t offset, unsigned long long handle, \
        unsigned long long flags)) \
    X(cuMemUnmap, (unsigned long long address, size_t size)) \
    X(cuMemSetAccess, \
      (unsigned long long address, size_t size, const struct cudaMemAccessDesc *access, \
        size_t count)) \
    X(cuMemGetAddressRange, (unsigned long long *base, size_t *size, unsigned long long address)) \
    X(cuPointerGetAttributes, \
      (unsigned count, int *attributes, void **values, unsigned long long address)) \
    X(cuMemsetD16Async, \
      (unsigned long long address, unsigned short value, size_t count, cudaStream_t stream)) \
    X(cuMemsetD32Async, \
      (unsigned long long address, unsigned value, size_t count, cudaStream_t stream)) \
    X(cuMemsetD2D16Async, \
      (unsigned long long address, size_t pitch, unsigned short value, size_t width, \
        size_t height, cudaStream_t stream)) \
    X(cuMemsetD2D32Async, \
      (unsigned long long address, size_t pitch, unsigned value, size_t width, size_t height, \
        cudaStream_t stream)) \
    X(cuGraphAddKernelNode, \
      (cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const ds__cuda_kernel_params *params)) \
    X(cuGraphKernelNodeSetParams, (cudaGraphNode_t node, const ds__cuda_kernel_params *params)) \
    X(cuGraphExecKernelNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const ds__cuda_kernel_params *params)) \
    X(cuGraphNodeGetType, (cudaGraphNode_t node, int *out)) \
    X(cuStreamBatchMemOp, \
      (cudaStream_t stream, unsigned count, ds__cuda_value *list, unsigned flags)) \
    X(cuGraphAddBatchMemOpNode, \
      (cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const ds__cuda_values_params *params)) \
    X(cuGraphBatchMemOpNodeSetParams, \
      (cudaGraphNode_t node, const ds__cuda_values_params *params)) \
    X(cuGraphExecBatchMemOpNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const ds__cuda_values_params *params))

/* clang-format on */

enum {
    DS__CUDA_INVALID_IMAGE = 200,
    DS__CUDA_NO_CONTEXT = 201,
    DS__CUDA_INVALID_PTX = 218,
    DS__CUDA_NOT_READY = 600,
    DS__CUDA_MAX_SHARED = 8,  /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    DS__CUDA_HAS_SPACE = 102, /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    /* CU_STREAM_MEM_OP_*_VALUE_32; those of 64 bits are DS__CUDA_WIDE more */
    DS__CUDA_WAIT_VALUE = 1,
    DS__CUDA_WRITE_VALUE = 2,
    DS__CUDA_WIDE = 3,
    DS__CUDA_NODE_CONDITION = 13, /* CU_GRAPH_NODE_TYPE_CONDITIONAL */
    DS__CUDA_NODE_VALUES = 12,    /* CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: cudart has no name for it */
    DS__CUDA_HAS_RDMA = 110       /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
};

#define DS__CUDA_STAGE (4u << 20) /* bytes of a staging buffer */

/* A pinned buffer for copies between a GPU and a CPU device. The copies of a stream share it,
   because they run one after the other. */
typedef struct ds__cuda_stage {
    struct ds__cuda_stage *next;
    void *memory;
    _Atomic size_t users; /* the stream, and pending copies */
} ds__cuda_stage;

typedef struct ds__cuda_stream {
    cudaStream_t handle;
    int device;
    int kind; /* DS__STREAM_* */
    int priority;
    uint64_t handle_id;       /* of its creation or wrapping; for records of activity */
    _Atomic uint64_t last_id; /* the last operation with a record, except records of events */
    _Atomic uint64_t capture; /* number of the capture in which the stream was last seen */
    int owned;                /* the handle ends with this object */
    int given;    /* unwrapped; a call that had found the object earlier may still use the handle */
    int blocking; /* the stream is ordered with the legacy stream */
    /* the handle may end at any time, and is not passed to CUDA any more */
    int hidden;
    int users;         /* threads that query or mark the stream in a walk over all streams */
    uint64_t thread;   /* of a per-thread stream: the number of its thread */
    ds__mutex staging; /* held while the pieces of a copy are enqueued */
    /* held by calls that may bring the stream into a capture, and while an event is recorded on it
       that must not be captured */
    ds__mutex joining;
    ds__cuda_stage *stage; /* created for the first staged copy */
    struct ds__cuda_stream *next;
    struct ds__cuda_stream *previous;
    struct ds__cuda_stream *sibling; /* the next stream that was made for the same capture */
} ds__cuda_stream;

typedef struct ds__cuda_event {
    _Atomic(cudaEvent_t) event;
    int device;
    _Atomic uint64_t capture; /* number of the capture of the last record; 0: outside of captures */
    _Atomic uint64_t cause;   /* last_id of the stream at the record */
    /* an event of another device, where the first record failed; a reader may still use it */
    struct ds__cuda_event *older;
} ds__cuda_event;

/* A green context of a device, for streams with a share of it. It stays until shutdown, because
   work of destroyed streams may still use it. */
typedef struct ds__cuda_green {
    struct ds__cuda_green *next;
    void *handle;
    int device;
    int wanted;  /* multiprocessors that were asked for */
    int granted; /* multiprocessors that it has */
} ds__cuda_green;

#define DS__CUDA_ASIDE 8 /* streams that are kept for each device */

/* Streams for operations on memory of another device, oldest first. A kept one may still have the
   work of its last operation. */
typedef struct ds__cuda_aside {
    ds__cuda_stream *stream[DS__CUDA_ASIDE];
    int first;
    int count;
} ds__cuda_aside;

/* An event of the driver's own: recorded on one stream, and waited for by another one directly
   after that. Nothing but the wait depends on the record, so the event can be used again then. */
typedef struct ds__cuda_mark {
    struct ds__cuda_mark *next;
    cudaEvent_t event;
    int device;
} ds__cuda_mark;

/* States of a host function or keep. */
enum { DS__CUDA_PENDING, DS__CUDA_TAKEN };

/* A host function or callback that was enqueued. */
typedef struct ds__cuda_host {
    struct ds__cuda_host *next;
    struct ds__cuda_host *previous;
    _Atomic int state;
    _Atomic int users; /* of a record that is not embedded: the caller that enqueues it, and CUDA */
    int device;
    int embedded; /* 1: a part of another object, which the destructor frees */
    int captured; /* 1: in the list `captured` for good, because a graph refers to it */
    ds_host_fn fn;
    ds_host_fn dtor_fn;
    ds_callback_fn callback;
    void *user;
    uint64_t stream;
} ds__cuda_host;

/* The objects that an executable graph of CUDA and its pending launches keep alive. */
typedef struct ds__cuda_keep {
    struct ds__cuda_keep *next;
    struct ds__cuda_keep *previous;
    _Atomic int state;
    uint32_t count;
    ds__object *object[];
} ds__cuda_keep;

/* An image that was loaded on a device; the kernels of the image share it. */
typedef struct ds__cuda_module {
    struct ds__cuda_module *next;
    const void *image;
    void *module;
    int device;
    int users;   /* kernels, and calls that load one */
    int loading; /* 1: a thread loads it, without the mutex; `module` is not valid yet */
} ds__cuda_module;

/* A kernel on one device. */
typedef struct ds__cuda_function {
    /* the function for cuLaunchKernel or cudaLaunchKernel; NULL: not loaded */
    _Atomic(void *) function;
    /* present limit of the dynamic shared memory of a launch */
    _Atomic unsigned shared;
    ds__cuda_module *module;
} ds__cuda_function;

static struct {
    int devices;
    /* CUdevice: a handle of the driver library, which CUDA does not promise to be the ordinal */
    int handle[DS__MAX_DEVICES];
    ds_device_properties properties[DS__MAX_DEVICES]; /* read at the start */
    _Atomic unsigned char used[DS__MAX_DEVICES];
    /* access of the first to the second: 0: not known, 1: not supported, 2: enabled for good */
    _Atomic unsigned char peer[DS__MAX_DEVICES][DS__MAX_DEVICES];
    /* can the first reach the second: 0: not known, 1: no, 2: yes */
    _Atomic unsigned char adjacent[DS__MAX_DEVICES][DS__MAX_DEVICES];
    /* CUDA has refused other devices access to the mapped memory or the pool of the device */
    _Atomic unsigned char alone[DS__MAX_DEVICES];
    /* gpuDirectRDMACapable memory: 0: not known, 1: not used, 2: used */
    _Atomic unsigned char rdma[DS__MAX_DEVICES];
    _Atomic size_t page[DS__MAX_DEVICES];         /* of reserved address space; 0: not known */
    _Atomic(cudaMemPool_t) pool[DS__MAX_DEVICES]; /* the default pool, after its set-up */
    /* its former release threshold and reuse attributes */
    unsigned long long threshold[DS__MAX_DEVICES];
    int reuse[DS__MAX_DEVICES][3];
    /* primary contexts, retained for good, as cudart does */
    int (*log_current)(unsigned *out, unsigned flags);
    int (*log_dump)(unsigned *at, char *text, size_t *size, unsigned flags); /* NULL: no log */
    _Atomic unsigned log_at; /* behind the last line that was looked at */
    /* green contexts; NULL: the driver library has none. The resources are CUdevResource */
    int (*green_resource)(int device, void *out, int type);
    int (*green_split)(void *out, unsigned *count, const void *resource, void *rest, unsigned flags,
                       unsigned least);
    int (*green_desc)(void **out, void *resource, unsigned count);
    int (*green_create)(void **out, void *desc, int device, unsigned flags);
    int (*green_destroy)(void *green);
    int (*green_stream)(cudaStream_t *out, void *green, unsigned flags, int priority);
    /* conditional nodes; condition_node NULL: the driver library has none (12.8) */
    int (*condition_handle)(unsigned long long *out, cudaGraph_t graph, void *context,
                            unsigned value, unsigned flags);
    int (*condition_node)(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after,
                          size_t count, ds__cuda_node_params *params);
    int (*link_create)(unsigned count, int *options, void **values, void **out);
    int (*link_data)(void *link, int type, void *data, size_t size, const char *name,
                     unsigned count, int *options, void **values);
    int (*link_file)(void *link, int type, const char *path, unsigned count, int *options,
                     void **values);
    int (*link_complete)(void *link, void **out, size_t *size);
    int (*link_destroy)(void *link);
    /* by device: the kernel that sets conditions, and its module, under `mutex` */
    _Atomic(void *) setter[DS__MAX_DEVICES];
    void *setter_module[DS__MAX_DEVICES];
    ds__cuda_green *greens; /* until shutdown; changed under host_lock */
    /* NULL: the driver library does not have it */
    int (*cuLaunchKernelEx)(const ds__cuda_launch_config *config, void *function, void **params,
                            void **extra);
    int overlaps;           /* 1: DS_GRID_OVERLAP is passed on: edges of graphs have data */
    _Atomic int no_batches; /* 1: cudart or the driver library has no cudaMemcpyBatchAsync */
    int cudart_copies;      /* 1: cudart copies between pinned ranges; 0: host functions do */
    _Atomic(void *) context[DS__MAX_DEVICES];
    /* for copies of streams of the CPU driver; created for the first one */
    _Atomic(cudaStream_t) side[DS__MAX_DEVICES];
    /* waits for the pending work of destroyed streams; created for the first one */
    _Atomic(cudaStream_t) ended[DS__MAX_DEVICES];
    /* of modules, pools and limits of shared memory */
    ds__mutex mutex;
    /* modules in use, and modules without users until the device has been waited for */
    ds__cuda_module *modules;
    ds__condition module_loaded; /* or a load has failed */
    ds__mutex lock;              /* of the list of streams */
    ds__condition unused;        /* no walk over the streams uses a stream any more */
    ds__cuda_stream *streams;    /* all except for the legacy streams */
    /* of the next six lists; no call of cudart is made under it */
    ds__spinlock host_lock;
    ds__cuda_host *hosts;
    ds__cuda_host *captured; /* host functions that became nodes by mistake */
    ds__cuda_host *drained;  /* of failed devices; they stay for good */
    ds__cuda_stage *stages;  /* buffers without users */
    struct ds__cuda_timeline *free_timelines;
    struct ds__cuda_timeline *failed_timelines; /* never used again */
    ds__cuda_mark *marks[DS__MAX_DEVICES];      /* events that no thread uses */
    ds__cuda_aside aside[DS__MAX_DEVICES];
    ds__cuda_keep *keeps; /* keeps that CUDA has not ended yet */
    /* keeps that CUDA had not ended at a shutdown; they stay for good, because CUDA may end them */
    ds__cuda_keep *left;
    _Atomic int host_count; /* host functions that were enqueued and have not returned */
    _Atomic int inside;     /* host functions that run */
    _Atomic int releases;   /* threads that wait for devices before a release of memory */
    _Atomic uint64_t threads;
#define DS__CUDA_MEMBER(function, parameters) int(*function) parameters;
    DS__CUDA_ENTRY_POINTS(DS__CUDA_MEMBER)
#undef DS__CUDA_MEMBER
} ds__cuda = { .mutex = DS__MUTEX_INIT,
               .module_loaded = DS__CONDITION_INIT,
               .lock = DS__MUTEX_INIT,
               .unused = DS__CONDITION_INIT };

static _Thread_local uint64_t ds__cuda_thread; /* number of the thread, for per-thread streams */

/* The capture mode that the thread has not told CUDA yet, because no device had a context, plus 1.
   The next scope of the thread tells it. 0: CUDA knows the mode. */
static _Thread_local int ds__cuda_mode_owed;

/* The state around the calls of an entry. */
typedef struct ds__cuda_scope {
    int device;          /* the current device; negative: none */
    int pushed;          /* 1: its context was pushed */
    cudaError_t pending; /* the last error of the thread before the scope */
    /* number of the capture of the stream or event, for errors; 0: not known */
    uint64_t capture;
} ds__cuda_scope;

/* Functions that rooms call although a later room defines them. */

/* cuda/capture_info.h */
static ds_result ds__cuda_capture_failed(const ds__cuda_scope *scope, const char *call, int code);

/* cuda/capture_op.h */
static ds_result ds__cuda_refuse_pageable(const ds__cuda_scope *scope);
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          const ds__op *op);

/* cuda/capture_query.h */
static void ds__cuda_stop_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                  int destroyed);

/* cuda/graph.h */
static ds_result ds__cuda_child_native(ds__body *child);

/* cuda/graph_condition.h */
struct ds__cuda_graph;
struct ds__cuda_target;
static ds_result ds__cuda_add_condition(const ds__cuda_scope *scope, struct ds__cuda_graph *g,
                                        const ds__node *n, const struct ds__cuda_target *to,
                                        cudaGraphNode_t *out);

/* cuda/host_memory.h */
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out);

/* cuda/module.h */
static ds__cuda_module *ds__cuda_take_modules(int device, int all);
static void ds__cuda_unload(const ds__cuda_scope *scope, ds__cuda_module *list);

/* cuda/staging.h */
static void ds__cuda_stage_unref(ds__cuda_stage *stage);

#endif
