/* What the files of the stand-in share: standin.c (devices, memory, streams, events, kernels),
   vmm.c (virtual memory, pools), capture.c, graphs.c, external.c and link.c (the linker of the
   driver).

   Everything here is guarded by one lock, unless it is said to be a thread's own or atomic. */
#ifndef STANDIN_CORE_H
#define STANDIN_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* names.c alone has functions whose names depend on this. */
#undef CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "../cuda_headers.h"
#include "internal.h"
#include "ptx.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
    MAX_DEVICES = 16,
    MAX_WORKERS = 128, /* of one device; a GPU runs as many kernels at a time */
    /* a copy from pageable memory of up to this size returns before it is done */
    STAGING = 64 * 1024,
    PAGE = 4096,
    GARBAGE = 64 * 1024, /* so much of fresh memory is filled with what is not zero */
    LEAST_PRIORITY = 0,
    GREATEST_PRIORITY = -5,
    MAX_SHARED = 49152,
    MAX_SHARED_OPTIN = 232448, /* 227 KiB, of capability 9.0 */
    MAX_BLOCK = 1024,
    MAX_BLOCK_Z = 64,
    MAX_GRID_YZ = 65535,
    MAX_CONTEXTS = 16, /* pushed by one thread */
    MAX_CLUSTER = 8,   /* that is portable */
    IDLE_SECONDS = 1   /* a thread without work ends after this time */
};

/* ---- types ---- */

typedef struct op op;
typedef struct node node;
typedef struct graph graph;
typedef struct exec exec;
typedef struct capture capture;
typedef struct space space;
typedef struct pool pool;

/* A stretch of memory that CUDA knows. Its fields stay as they are from its making on, but for
   `access` and the last two. */
typedef struct range {
    uintptr_t start; /* as the user sees it */
    size_t size;
    char *memory; /* where it lies: for host memory at start */

    enum { DEVICE_MEMORY, HOST_MEMORY, REGISTERED_MEMORY } kind;

    int device; /* the owner, or the current device when it was pinned */
    int portable;
    space *space;              /* a mapping: its reservation */
    pool *pool;                /* it came from cudaMallocAsync */
    unsigned access;           /* a mapping: bit i: device i may touch it */
    struct physical *physical; /* what is mapped */
    struct ipc_memory *ipc;    /* it is exported, or another process's */
    unsigned uses;             /* by operations that have not ended */
    int freeing;
} range;

typedef struct nodes {
    node **at;
    size_t count, capacity;
} nodes;

typedef struct stream {
    cudaStream_t handle;
    int device, priority, blocking, destroyed, is_static;
    unsigned flags;
    unsigned long long id;
    op *tail;                   /* the last operation put, while it has not ended */
    struct stream *next, *prev; /* among the device's blocking streams with work */
    capture *capture;           /* that it belongs to; NULL: it does not capture */
    nodes deps;                 /* what the next node captured depends on */
    cudaGraphNode_t *shown;     /* deps as last told to the user */
    struct stream *next_member;
    struct green *green; /* NULL: of no green context */
} stream;

/* A green context. */
typedef struct green {
    int device, count, streams;
} green;

typedef struct event {
    int device;
    unsigned flags;
    op *record;            /* the last; NULL: never recorded, or last in a capture */
    capture *capture;      /* in which it was last recorded, also when that is over */
    nodes deps;            /* of the stream then */
    struct ipc_event *ipc; /* processes may share it */
} event;

typedef struct function {
    struct module *module;
    const ptx_function *code;
    CUfunction handle;
    char *name;
    /* dynamic shared memory that a launch may ask for; 0: as much as any kernel */
    size_t most_shared;
} function;

typedef struct module {
    int device;
    ptx_module *code;
    function **functions;
    size_t count, capacity;
    unsigned uses;  /* kernels that have not ended */
    unsigned nodes; /* of graphs */
    int unloaded;
} module;

/* What a test registers for a host address. */
typedef struct registered_function {
    const void *host;
    module *module;
    const ptx_function *code;
    size_t most_shared;
} registered_function;

typedef struct side {
    char *pointer;
    size_t pitch, slice;
} side;

typedef struct shape {
    size_t width, height, depth;
} shape;

typedef struct place {
    enum { PAGEABLE, PINNED, ON_DEVICE } where;

    range *range; /* the first; mappings side by side are one memory */
    size_t span;
    int device;
    char *memory;
} place;

/* A copy as it was asked for; named: the caller has named the devices. */
typedef struct transfer {
    side dst, src;
    shape of;
    enum cudaMemcpyKind kind;
    int named;
} transfer;

typedef struct copy {
    char *dst, *src;
    size_t dpitch, dslice, spitch, sslice, width, height, depth;
    char *staging; /* freed at the end; NULL: none */
} copy;

/* width in elements. */
typedef struct fill {
    char *dst;
    size_t pitch, element, width, height;
    uint32_t value;
} fill;

typedef struct kernel {
    module *module;
    const ptx_function *code;
    unsigned grid[3], block[3], shared;
    void **params;       /* one block of memory with the values behind the pointers */
    unsigned cluster[3]; /* blocks; 0 in x: no clusters */
    int cooperative, overlap;
} kernel;

/* Writes of words, and waits for words; memory: where each word lies. */
typedef struct values {
    CUstreamBatchMemOpParams *at;
    char **memory;
    unsigned count;
} value_list;

typedef struct host {
    cudaHostFn_t function;
    cudaStreamCallback_t callback;
    cudaStream_t handle;
    void *data;
} host;

typedef enum {
    OP_COPY,
    OP_FILL,
    OP_KERNEL,
    OP_RECORD,
    OP_WAIT,
    OP_MARK,
    OP_FREE,
    OP_HOST,
    OP_CALLBACK,
    OP_VALUES,
    OP_CONDITION,
    OP_EXTERNAL
} op_kind;

struct op {
    op_kind kind;
    int device;
    stream *stream; /* NULL: a node of a graph */
    unsigned refs, pending;
    int running, done;
    uint64_t number; /* in the order of submission, of all devices */
    op *next, *prev; /* the device's operations that have not ended */
    op *next_ready;
    op **successors;
    size_t successor_count, successor_capacity;
    range **uses;
    size_t use_count, use_capacity;
    exec *exec;              /* whose launch ends with this; NULL: none */
    exec *launch;            /* the launch that it is part of; NULL: of none */
    struct timespec time;    /* of a record */
    unsigned correlation;    /* of the call that submitted it, if that is watched */
    int peer;                /* a copy between two devices */
    unsigned long long node; /* of a graph; 0: none */

    union {
        copy copy;
        fill fill;
        kernel kernel;
        host host;
        value_list values;
        struct block *block;

        /* A conditional node: `end` is behind its bodies. node NULL: the begin of a launch. */
        struct {
            node *node;
            op *end;
        } condition;

        struct {
            struct shared_event *at;
            unsigned long long number;
        } record;

        struct {
            struct standin_external *of;
            void *put;
        } external;
    } u;
};

typedef struct context {
    int index, primary;
} context;

typedef struct queue {
    op *first, **last;
    size_t count;
} queue;

typedef struct device {
    int index, primary;
    CUcontext context;
    atomic_int sticky; /* the error that poisoned it, or 0 */
    stream legacy;
    stream *busy;     /* blocking streams with work */
    op *first, *last; /* operations that have not ended */
    uint64_t submitted;
    /* what is ready: for the workers, for the thread of host functions */
    queue work, calls, externals; /* externals: while the devices are held */
    pthread_cond_t more_work, more_calls;
    size_t workers, idle, starting;
    int caller;            /* the thread of host functions is there */
    char *arena, *backing; /* all device memory, as the user sees it and where it lies */
    int arena_fd;          /* the file behind it */
    size_t arena_size, arena_next, used;
    /* peer access: possible, enabled */
    unsigned char can_reach[MAX_DEVICES], reaches[MAX_DEVICES];
    unsigned char nvlink[MAX_DEVICES];
    int engines, memory_khz;
} device;

/* ---- functions and their calls ---- */

/* clang-format off */
#define RUNTIME(X) \
    X(cudaGetDeviceCount) \
    X(cudaGetDevice) \
    X(cudaSetDevice) \
    X(cudaPeekAtLastError) \
    X(cudaGetLastError) \
    X(cudaGetErrorName) \
    X(cudaGetErrorString) \
    X(cudaRuntimeGetVersion) \
    X(cudaDriverGetVersion) \
    X(cudaDeviceGetAttribute) \
    X(cudaGetDeviceProperties) \
    X(cudaDeviceGetPCIBusId) \
    X(cudaDeviceSynchronize) \
    X(cudaDeviceCanAccessPeer) \
    X(cudaDeviceGetP2PAttribute) \
    X(cudaDeviceEnablePeerAccess) \
    X(cudaDeviceDisablePeerAccess) \
    X(cudaDeviceGetStreamPriorityRange) \
    X(cudaMemGetInfo) \
    X(cudaMalloc) \
    X(cudaFree) \
    X(cudaHostAlloc) \
    X(cudaMallocHost) \
    X(cudaFreeHost) \
    X(cudaHostRegister) \
    X(cudaHostUnregister) \
    X(cudaPointerGetAttributes) \
    X(cudaStreamCreate) \
    X(cudaStreamCreateWithFlags) \
    X(cudaStreamCreateWithPriority) \
    X(cudaStreamDestroy) \
    X(cudaStreamQuery) \
    X(cudaStreamSynchronize) \
    X(cudaStreamWaitEvent) \
    X(cudaStreamGetFlags) \
    X(cudaStreamGetPriority) \
    X(cudaStreamGetDevice) \
    X(cudaStreamGetId) \
    X(cudaStreamAddCallback) \
    X(cudaLaunchHostFunc) \
    X(cudaEventCreate) \
    X(cudaEventCreateWithFlags) \
    X(cudaEventDestroy) \
    X(cudaEventRecord) \
    X(cudaEventRecordWithFlags) \
    X(cudaEventQuery) \
    X(cudaEventSynchronize) \
    X(cudaEventElapsedTime) \
    X(cudaMemcpy) \
    X(cudaMemcpyAsync) \
    X(cudaMemcpy2DAsync) \
    X(cudaMemcpyPeerAsync) \
    X(cudaMemcpy3DPeerAsync) \
    X(cudaMemcpyBatchAsync) \
    X(cudaMemset) \
    X(cudaMemsetAsync) \
    X(cudaMemset2DAsync) \
    X(cudaLaunchKernel) \
    X(cudaLaunchKernelExC) \
    X(cudaFuncSetAttribute) \
    X(cudaFuncGetAttributes) \
    X(cudaGetDriverEntryPoint) \
    X(cudaGetDriverEntryPointByVersion) \
    X(cudaStreamBeginCapture) \
    X(cudaStreamBeginCaptureToGraph) \
    X(cudaStreamEndCapture) \
    X(cudaStreamIsCapturing) \
    X(cudaStreamGetCaptureInfo) \
    X(cudaStreamUpdateCaptureDependencies) \
    X(cudaThreadExchangeStreamCaptureMode) \
    X(cudaGraphCreate) \
    X(cudaGraphDestroy) \
    X(cudaGraphClone) \
    X(cudaGraphNodeFindInClone) \
    X(cudaGraphGetNodes) \
    X(cudaGraphGetRootNodes) \
    X(cudaGraphGetEdges) \
    X(cudaGraphNodeGetType) \
    X(cudaGraphNodeGetDependencies) \
    X(cudaGraphNodeGetDependentNodes) \
    X(cudaGraphDestroyNode) \
    X(cudaGraphAddDependencies) \
    X(cudaGraphRemoveDependencies) \
    X(cudaGraphAddEmptyNode) \
    X(cudaGraphAddKernelNode) \
    X(cudaGraphAddMemcpyNode) \
    X(cudaGraphAddMemcpyNode1D) \
    X(cudaGraphAddMemsetNode) \
    X(cudaGraphAddHostNode) \
    X(cudaGraphAddEventRecordNode) \
    X(cudaGraphAddEventWaitNode) \
    X(cudaGraphAddChildGraphNode) \
    X(cudaGraphChildGraphNodeGetGraph) \
    X(cudaGraphKernelNodeGetParams) \
    X(cudaGraphKernelNodeSetParams) \
    X(cudaGraphKernelNodeGetAttribute) \
    X(cudaGraphKernelNodeSetAttribute) \
    X(cudaGraphMemcpyNodeGetParams) \
    X(cudaGraphMemcpyNodeSetParams) \
    X(cudaGraphMemcpyNodeSetParams1D) \
    X(cudaGraphMemsetNodeGetParams) \
    X(cudaGraphMemsetNodeSetParams) \
    X(cudaGraphHostNodeGetParams) \
    X(cudaGraphHostNodeSetParams) \
    X(cudaGraphEventRecordNodeGetEvent) \
    X(cudaGraphEventRecordNodeSetEvent) \
    X(cudaGraphEventWaitNodeGetEvent) \
    X(cudaGraphEventWaitNodeSetEvent) \
    X(cudaGraphInstantiate) \
    X(cudaGraphInstantiateWithFlags) \
    X(cudaGraphUpload) \
    X(cudaGraphLaunch) \
    X(cudaGraphExecDestroy) \
    X(cudaGraphExecUpdate) \
    X(cudaGraphExecKernelNodeSetParams) \
    X(cudaGraphExecMemcpyNodeSetParams) \
    X(cudaGraphExecMemcpyNodeSetParams1D) \
    X(cudaGraphExecMemsetNodeSetParams) \
    X(cudaGraphExecHostNodeSetParams) \
    X(cudaGraphExecChildGraphNodeSetParams) \
    X(cudaGraphExecEventRecordNodeSetEvent) \
    X(cudaGraphExecEventWaitNodeSetEvent) \
    X(cudaGraphNodeSetEnabled) \
    X(cudaGraphNodeGetEnabled) \
    X(cudaGraphDebugDotPrint) \
    X(cudaUserObjectCreate) \
    X(cudaUserObjectRetain) \
    X(cudaUserObjectRelease) \
    X(cudaGraphRetainUserObject) \
    X(cudaGraphReleaseUserObject) \
    X(cudaMallocAsync) \
    X(cudaFreeAsync) \
    X(cudaDeviceGetDefaultMemPool) \
    X(cudaMemPoolSetAttribute) \
    X(cudaMemPoolGetAttribute) \
    X(cudaMemPoolTrimTo) \
    X(cudaMemPoolSetAccess) \
    X(cudaMemPoolGetAccess) \
    X(cudaIpcGetEventHandle) \
    X(cudaIpcOpenEventHandle) \
    X(cudaIpcGetMemHandle) \
    X(cudaIpcOpenMemHandle) \
    X(cudaIpcCloseMemHandle)
/* clang-format on */

/* The driver's, with the version of CUDA that brought them; those of the second list take a
   stream. */
/* clang-format off */
#if CUDART_VERSION >= 12090
#define DRIVER_LOG(X) X(cuLogsCurrent, 12090) X(cuLogsDumpToMemory, 12090)
#else
#define DRIVER_LOG(X)
#endif
#if CUDART_VERSION >= 12050
#define DRIVER_GREEN(X) \
    X(cuDeviceGetDevResource, 12040) \
    X(cuDevSmResourceSplitByCount, 12040) \
    X(cuDevResourceGenerateDesc, 12040) \
    X(cuGreenCtxCreate, 12040) \
    X(cuGreenCtxDestroy, 12040) \
    X(cuGreenCtxStreamCreate, 12050)
#else
#define DRIVER_GREEN(X)
#endif
/* The linker, of link.c. */
#define DRIVER_LINK(X) \
    X(cuLinkCreate, 6050) \
    X(cuLinkAddData, 6050) \
    X(cuLinkAddFile, 6050) \
    X(cuLinkComplete, 5050) \
    X(cuLinkDestroy, 5050)
/* Conditional nodes are of 12.3, those with two bodies and more of 12.8. In the driver, the name
   cuGraphAddNode has edge data from 12.3 on (PFN_cuGraphAddNode_v12030 of cudaTypedefs.h): who
   wants the first form asks for 12.2. */
#if CUDA_VERSION >= 12080
#define DRIVER_CONDITIONAL(X) X(cuGraphConditionalHandleCreate) X(cuGraphAddNode)
#define DRIVER_CONDITIONAL_FORMS(X) \
    X(condition_create, cuGraphConditionalHandleCreate, 12030) \
    X(add_node, cuGraphAddNode, 12020) \
    X(add_node_with_edges, cuGraphAddNode, 12030)
#else
#define DRIVER_CONDITIONAL(X)
#define DRIVER_CONDITIONAL_FORMS(X)
#endif
#define DRIVER(X) \
    X(cuModuleLoadData, 2000) \
    X(cuModuleLoadDataEx, 2010) \
    X(cuModuleUnload, 2000) \
    X(cuModuleGetFunction, 2000) \
    X(cuEventQuery, 2000) \
    X(cuMemGetAddressRange, 3020) \
    X(cuGetErrorName, 6000) \
    X(cuGetErrorString, 6000) \
    X(cuPointerGetAttributes, 7000) \
    X(cuDeviceGet, 2000) \
    X(cuCtxGetCurrent, 4000) \
    X(cuCtxSetCurrent, 4000) \
    X(cuCtxPushCurrent, 4000) \
    X(cuCtxPopCurrent, 4000) \
    X(cuDevicePrimaryCtxRetain, 7000) \
    X(cuDevicePrimaryCtxGetState, 7000) \
    X(cuFuncGetAttribute, 2020) \
    X(cuFuncSetAttribute, 9000) \
    DRIVER_GREEN(X) \
    DRIVER_LOG(X)
/* clang-format on */
/* clang-format off */
#define DRIVER_STREAM(X) \
    X(cuLaunchKernel, 4000) \
    X(cuLaunchKernelEx, 11060) \
    X(cuStreamQuery, 2000) \
    X(cuStreamBatchMemOp, 8000) \
    X(cuMemsetD8Async, 3020) \
    X(cuMemsetD16Async, 3020) \
    X(cuMemsetD32Async, 3020) \
    X(cuMemsetD2D8Async, 3020) \
    X(cuMemsetD2D16Async, 3020) \
    X(cuMemsetD2D32Async, 3020) \
    X(cuStreamIsCapturing, 10000)
/* clang-format on */
/* Virtual memory, of vmm.c. */
/* clang-format off */
#define DRIVER_MEMORY(X) \
    X(cuDeviceGetAttribute, 2000) \
    X(cuDeviceGetName, 2000) \
    X(cuDeviceGetUuid, 9020) \
    X(cuDeviceTotalMem, 3020) \
    X(cuMemAddressReserve, 10020) \
    X(cuMemAddressFree, 10020) \
    X(cuMemCreate, 10020) \
    X(cuMemRelease, 10020) \
    X(cuMemMap, 10020) \
    X(cuMemUnmap, 10020) \
    X(cuMemSetAccess, 10020) \
    X(cuMemGetAccess, 10020) \
    X(cuMemGetAllocationGranularity, 10020)
/* clang-format on */
/* Those that have had several forms: graphs.c has each of them. */
/* clang-format off */
#define DRIVER_GRAPH(X) \
    X(cuGraphAddKernelNode) \
    X(cuGraphKernelNodeGetParams) \
    X(cuGraphKernelNodeSetParams) \
    X(cuGraphExecKernelNodeSetParams) \
    X(cuGraphAddBatchMemOpNode) \
    X(cuGraphBatchMemOpNodeSetParams) \
    X(cuGraphExecBatchMemOpNodeSetParams) \
    X(cuGraphNodeGetType) \
    DRIVER_CONDITIONAL(X)
/* clang-format on */
/* clang-format off */
#define DRIVER_FORM_1(X) \
    X(add_kernel_node_v1, cuGraphAddKernelNode, 10000) \
    X(kernel_node_get_v1, cuGraphKernelNodeGetParams, 10000) \
    X(kernel_node_set_v1, cuGraphKernelNodeSetParams, 10000) \
    X(exec_kernel_node_set_v1, cuGraphExecKernelNodeSetParams, 10010) \
    X(add_values_node, cuGraphAddBatchMemOpNode, 11070) \
    X(values_node_set, cuGraphBatchMemOpNodeSetParams, 11070) \
    X(exec_values_node_set, cuGraphExecBatchMemOpNodeSetParams, 11070) \
    X(node_get_type, cuGraphNodeGetType, 10000)
/* clang-format on */
#if CUDA_VERSION >= 12000
/* clang-format off */
#define DRIVER_FORMS(X) \
    DRIVER_FORM_1(X) \
    DRIVER_CONDITIONAL_FORMS(X) \
    X(add_kernel_node_v2, cuGraphAddKernelNode, 12000) \
    X(kernel_node_get_v2, cuGraphKernelNodeGetParams, 12000) \
    X(kernel_node_set_v2, cuGraphKernelNodeSetParams, 12000) \
    X(exec_kernel_node_set_v2, cuGraphExecKernelNodeSetParams, 12000)
/* clang-format on */
#else
#define DRIVER_FORMS(X) DRIVER_FORM_1(X)
#endif

typedef enum {

#define X(name) F_##name,
    RUNTIME(X)
#undef X
#define LAST_OF_RUNTIME F_cudaIpcCloseMemHandle
#define X(name) F_##name,
        DRIVER_GRAPH(X)
#undef X
#define X(name, since) F_##name,
            DRIVER(X) DRIVER_STREAM(X) DRIVER_MEMORY(X) DRIVER_LINK(X)
#undef X
                FUNCTIONS
} function_id;

/* What a thread has. */
extern _Thread_local struct thread {
    int current; /* device */
    int bound;   /* the current device's context is bound */
    /* a context of the current device that is not the primary one and is current; NULL: none is */
    CUcontext other;

    /* the stack of contexts, without the one on top */
    struct {
        int current, bound;
        CUcontext other;
    } under[MAX_CONTEXTS];

    int depth;
    int last;     /* error */
    int function; /* the last one that was called, for the log */
    int in_host_function, injected, has_key;
    unsigned correlation; /* of the last call */
    int log_on;
    char *log;
    size_t log_length, log_capacity;
    stream *own[MAX_DEVICES];        /* per-thread default streams */
    unsigned long long number;       /* 0: it has not captured yet */
    enum cudaStreamCaptureMode mode; /* its interaction with captures */
} si_me;

extern device si_devices[MAX_DEVICES];
extern pthread_mutex_t si_big_lock;
extern pthread_cond_t si_some_end; /* an operation ended, or a device failed */

extern struct config {
    int devices, error, driver_version, max_peers, free_waits;
    size_t memory;
} si_config;

static inline void lock(void) {
    pthread_mutex_lock(&si_big_lock);
}

static inline void unlock(void) {
    pthread_mutex_unlock(&si_big_lock);
}

static inline int sticky(int index) {
    return atomic_load(&si_devices[index].sticky);
}

static inline int is_device(int index) {
    return index >= 0 && index < si_config.devices;
}

/* What CUDA leaves undefined: the test that does it fails here. */
__attribute__((format(printf, 1, 2))) _Noreturn void si_fail_test(const char *format, ...);
void *si_allocate(size_t size); /* zeroed */
void *si_grown(void *array, size_t count, size_t *capacity, size_t size);

/* Every function that can fail begins with this: 0, or the code with which it fails. */
int si_enter_with(function_id f, const char *argument);

static inline int enter(function_id f) {
    return si_enter_with(f, "");
}

/* What frees does its work although a failure is injected. */
static inline int refused(int code) {
    return code && !si_me.injected;
}

/* A result of the runtime is also the thread's last error. */
void si_write_log(int code); /* a line about the thread's last call */

static inline cudaError_t result(int code) {
    if (code && code != cudaErrorNotReady)
        si_write_log(code);
    if (code)
        si_me.last = code;
    return (cudaError_t)code;
}

#define ENTER(f)                  \
    do {                          \
        int code_ = enter(F_##f); \
        if (code_)                \
            return result(code_); \
    } while (0)
#define ENTER_WITH(f, text)                     \
    do {                                        \
        int code_ = si_enter_with(F_##f, text); \
        if (code_)                              \
            return result(code_);               \
    } while (0)
#define ENTER_DRIVER(f)             \
    do {                            \
        int code_ = enter(F_##f);   \
        if (code_)                  \
            return (CUresult)code_; \
    } while (0)

void si_bind(void);   /* what the runtime does in the first call that needs a context */
int si_context(void); /* binds, and says what is wrong with the current device */
int si_null(void);    /* submissions do nothing */

/* A handle is a number, not an address: kind, index of the slot and its generation. So none is
   ever given out twice. */
enum {
    H_STREAM = 1,
    H_EVENT,
    H_MODULE,
    H_FUNCTION,
    H_CONTEXT,
    H_GRAPH,
    H_NODE,
    H_EXEC,
    H_OBJECT,
    H_MEMORY,
    H_POOL,
    H_GREEN,
    H_CONDITION,
    H_LINK
};

void *si_new_handle(unsigned kind, void *object);
void *si_object_of(const char *call, unsigned kind, const void *handle);
int si_is_handle(unsigned kind, const void *handle); /* one that is alive */
void si_drop_handle(const char *call, unsigned kind, const void *handle);

/* The stream of a handle, which for the two special ones depends on the thread and its current
   device. */
stream *si_stream_of(const char *call, cudaStream_t handle);

/* Operations. A new one belongs to its device from si_prepare on and cannot start before
   si_release; one of a stream goes through si_submit. Whoever keeps one takes a reference. */
op *si_new_op(op_kind kind, stream *s, int device);
void si_depend(op *o, op *on);
void si_prepare(op *o);
void si_release(op *o);
void si_submit(op *o, op *also); /* after `also` too (NULL: nothing) */
void si_unref(op *o);
void si_record_in(event *e, op *o); /* the event's record is now this one */
void si_event_is_made(event *e, cudaEvent_t *out);
void si_start_thread(void *(*body)(void *), void *of);

/* Copies, fills and kernels: what is wrong with them, and the operations that they are. */
int si_check_transfer(const char *call, const transfer *t, int index, place *to, place *from);
op *si_copy_op(const transfer *t, const place *to, const place *from, stream *s, int index);
/* dst: as the user sees it */
int si_check_fill(const char *call, const fill *f, int index, place *at);
op *si_fill_op(const fill *f, const place *at, stream *s, int index);
/* Its clusters and whether its blocks fit, if they are to run at once. */
int si_check_attributes(const kernel *k, int index);
int si_check_launch(const ptx_function *f, const unsigned grid[3], const unsigned block[3],
                    size_t shared, size_t most_shared);
op *si_kernel_op(const kernel *k, stream *s, int index); /* copies the parameters */
int si_check_values(const CUstreamBatchMemOpParams *list, unsigned count, int index);
op *si_values_op(const CUstreamBatchMemOpParams *list, unsigned count, stream *s, int index);
int si_check_copy_params(const struct cudaMemcpy3DParms *p, transfer *t);
void si_take_uses(op *o, op *from); /* of memory; `from` has not been prepared and goes away */
/* one block of memory with the values */
void **si_copy_params(const ptx_function *f, void *const *params);
void si_free_module_if_over(module *m);
registered_function *si_registered_as(const void *host_function);

/* Memory: the stretches that CUDA knows, by address. */
static inline size_t si_round_up(size_t size, size_t to) {
    return (size + to - 1) / to * to;
}

range *si_add_range(void *start, size_t size, char *memory, int device); /* of device memory */
void si_remove_range(range *r);
range *si_range_touching(uintptr_t start, size_t size);
range *si_range_starting(const void *address);
range *si_allocate_on(device *d, size_t size); /* NULL: out of memory */
void si_free_device_range(range *r);
int si_unsafe(void); /* si_capture_unsafe, with the lock */
void si_check_unused(const char *call, range *r);
int si_attribute(int device, int which);
int si_index_of(CUdevice device); /* its number; negative: none */

/* ---- vmm.c ---- */

int si_pool_reaches(const pool *p, int device); /* its memory can be touched by that one */
int si_pool_is_shared(const pool *p);           /* other devices have access */

enum { RDMA_NONE, RDMA_WORKS, RDMA_FAILS_AT_CREATE, RDMA_FAILS_AT_ACCESS };

int si_rdma(void);                      /* what standin_rdma has set */
void si_pool_freed(op *o);              /* a stream has come to a cudaFreeAsync */
void si_pool_take_back(range *r);       /* cudaFree of its memory */
void si_pool_settle(int device);        /* something was waited for */
int si_supports(int device, int which); /* of the attributes: virtual memory, pools */
void si_memory_counts(size_t *reservations, size_t *handles, size_t *freed);

CUresult si_cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice device);
CUresult si_cuDeviceGetName(char *out, int size, CUdevice device);
CUresult si_cuDeviceGetUuid(CUuuid *out, CUdevice device);
CUresult si_cuDeviceTotalMem(size_t *out, CUdevice device);
CUresult si_cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                unsigned long long flags);
CUresult si_cuMemAddressFree(CUdeviceptr at, size_t size);
CUresult si_cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                        const CUmemAllocationProp *prop, unsigned long long flags);
CUresult si_cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult si_cuMemMap(CUdeviceptr at, size_t size, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult si_cuMemUnmap(CUdeviceptr at, size_t size);
CUresult si_cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count);
CUresult si_cuMemGetAccess(unsigned long long *out, const CUmemLocation *location, CUdeviceptr at);
CUresult si_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                          CUmemAllocationGranularity_flags option);

/* ---- watch.c ---- */

void si_watch_call(function_id f);
uint64_t si_watch_begin(void);
void si_watch_end(const op *o, uint64_t begin);

/* ---- ipc.c ---- */

void si_ipc_new_event(event *e);
void si_ipc_drop_event(event *e);
void si_ipc_record(event *e, op *o);
void si_ipc_recorded(op *o);            /* it has ended */
int si_ipc_is_recorded(const event *e); /* somewhere */
int si_ipc_ready(const event *e);
op *si_record_of(event *e); /* what a wait for the event waits for; NULL: nothing */
void si_ipc_freed(range *r);
int si_ipc_imported(const range *r);

/* ---- capture.c ---- */

extern atomic_int si_captures; /* open ones */

/* Each answers 0 or why CUDA refuses; a refusal invalidates what the call would have harmed. */

/* work for the stream; when it captures, a node must be made of it */
int si_capture_enqueue(stream *s);
/* what no capture takes: waiting for the stream, asking it, callbacks */
int si_capture_refuse(stream *s);
int si_capture_ask(stream *s); /* a query or wait of the stream */
/* a call that is not safe while something is captured; queries are of those */
int si_capture_unsafe(void);
int si_capture_synchronize(int index); /* waiting for a device */

graph *si_capture_graph(const stream *s);
void si_capture_node(stream *s, node *n); /* the stream goes on behind the node */
void si_capture_record(event *e, stream *s);
void si_capture_forget(event *e); /* it is recorded outside, or goes away */
/* a query of the event or a wait on the host: 0 if it is none of a capture */
int si_capture_look(event *e);
int si_capture_elapsed(const event *e);
int si_capture_wait(stream *s, event *e, int *done); /* done: the wait needs no operation */
int si_capture_status(stream *s, enum cudaStreamCaptureStatus *status);
void si_capture_lose(stream *s); /* the stream goes away */
size_t si_capture_count(void);

/* ---- graphs.c ---- */

graph *si_new_graph(void);
void si_free_graph(graph *g);
void si_give_graph(const graph *g, cudaGraph_t *out); /* from now on it is the user's */
cudaGraph_t si_graph_handle(const graph *g);
graph *si_graph_of(const char *call, cudaGraph_t handle);
void si_graph_capturing(graph *g, int on);
void si_graph_spoil(graph *g); /* a capture into it has failed */
int si_nodes_of(const char *call, const graph *g, const cudaGraphNode_t *handles, size_t count,
                nodes *out);
cudaGraphNode_t si_node_handle(const node *n);
void si_nodes_sink(const nodes *all);                    /* they have become sinks, in this order */
int si_plain_edges(const void *edge_data, size_t count); /* no data that is not zero */
int si_nodes_add(nodes *to, node *n);                    /* 0: it is there already */
void si_nodes_set(nodes *to, const nodes *from);
void si_nodes_free(nodes *n);
/* each wanted one is or precedes another */
int si_nodes_reach(const nodes *from, const nodes *also, const nodes *wanted);

/* Nodes for what streams capture: behind the nodes of `deps`. */
node *si_node_copy(graph *g, const nodes *deps, const transfer *t, const place *to,
                   const place *from, int index);
node *si_node_values(graph *g, const nodes *deps, const CUstreamBatchMemOpParams *list,
                     unsigned count, int index);
node *si_node_fill(graph *g, const nodes *deps, const fill *f, const place *at, int index);
node *si_node_kernel(graph *g, const nodes *deps, const kernel *k, const void *func,
                     int is_host_func, int index, int priority);
node *si_node_host(graph *g, const nodes *deps, cudaHostFn_t fn, void *data, int index);
node *si_node_event(graph *g, const nodes *deps, cudaEvent_t handle, int wait, int index);
void si_exec_over(exec *x); /* an operation that had it has ended */
void si_run_condition(op *o);
/* A kernel of the launch sets the value of a handle; 0: it cannot. */
int si_set_condition(exec *launch, uint64_t handle, unsigned value, int index);
void si_graph_counts(size_t *graphs, size_t *execs, size_t *objects);
size_t si_graph_threads(void);

CUcontext si_current_context(void); /* of the thread; NULL: none */
CUresult si_add_values_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
CUresult si_values_node_set(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
CUresult si_exec_values_node_set(CUgraphExec exec, CUgraphNode node,
                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
CUresult si_node_get_type(CUgraphNode node, CUgraphNodeType *out);
CUresult si_add_kernel_node_v1(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *p);
CUresult si_kernel_node_get_v1(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out);
CUresult si_kernel_node_set_v1(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p);
CUresult si_exec_kernel_node_set_v1(CUgraphExec exec, CUgraphNode node,
                                    const CUDA_KERNEL_NODE_PARAMS_v1 *p);
#if CUDA_VERSION >= 12000
CUresult si_add_kernel_node_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *p);
CUresult si_kernel_node_get_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *out);
CUresult si_kernel_node_set_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p);
CUresult si_exec_kernel_node_set_v2(CUgraphExec exec, CUgraphNode node,
                                    const CUDA_KERNEL_NODE_PARAMS_v2 *p);
#endif
#if CUDA_VERSION >= 12080
CUresult si_condition_create(CUgraphConditionalHandle *out, CUgraph graph, CUcontext of,
                             unsigned first, unsigned flags);
CUresult si_add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                     CUgraphNodeParams *p);
CUresult si_add_node_with_edges(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p);
#endif

/* ---- external.c ---- */

struct standin_external;
op *si_external_op(struct standin_external *e, stream *s, int index);
int si_external_begin(op *o);
void si_external_over(op *o);
void si_external_hold(struct standin_external *e);
void si_external_drop(struct standin_external *e);
void si_external_check(const char *call, const struct standin_external *e);

/* Of standin.c. */
void si_use_memory(op *o, const void *address, size_t size);
int si_look_at(uintptr_t address, size_t size, int index); /* an answer of external.h */
void si_submit_external(op *o);
void si_end_external(op *o);

/* Of graphs.c. */
node *si_node_external(graph *g, const nodes *deps, struct standin_external *e, int index);

/* ---- link.c ---- */

extern const char si_link_mark[]; /* how a linked image begins; its PTX is behind */
size_t si_link_count(void);       /* states of the linker */

CUresult si_cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *out);
CUresult si_cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
                          const char *name, unsigned count, CUjit_option *options, void **values);
CUresult si_cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                          CUjit_option *options, void **values);
CUresult si_cuLinkComplete(CUlinkState state, void **image, size_t *size);
CUresult si_cuLinkDestroy(CUlinkState state);

#endif
