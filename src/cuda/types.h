/* cuda/types.h - types and state of the CUDA driver.

   Declares the driver's objects for streams, events, host functions, modules and staging buffers,
   and its global state (ds__cuda). Includes the header of cudart and lists the entry points of the
   driver library (DS__CUDA_ENTRY_POINTS). Needs neither libcuda nor cuda.h.

   Policy:
   1. cudart does streams, events, copies and memory. The driver library does contexts, kernel
      images, launches, kernel nodes of images, fills of 2 and 4 bytes, and mapped memory. Its entry
      points come from cudart, so nothing links to libcuda.
   2. Queries go to the driver library as well. In cudart a query would leave "not ready" as the
      thread's last error.
   3. Every call of an entry runs in a scope (ds__cuda_scope). A scope makes its device current if
      another device is current. It clears the thread's last error only if a call of the scope has
      caused that error.
   4. For another device, a scope pushes the primary context of the device and pops it again. With
      CUDA 12, cudaSetDevice back to the former device could create a context there, which takes
      hundreds of MB.
   5. CUDA does not require the device to be current for every call (Programming Guide, "Stream and
      Event Behavior"). In a thread without a context, however, cudart would create one for its
      current device.
   6. Host functions and callbacks both use cudaStreamAddCallback: CUDA runs these in every case and
      reports a failure to them.

   Invariants: `streams` holds every stream object except those of the legacy streams. A host
   function is in `hosts` until it begins to run or CUDA refuses it. The state of a host function or
   keep changes from pending to taken once; the thread that changes it runs or releases the object.
   Primary contexts are retained and peer access is enabled for the life of the process.
   Locks: `mutex` guards the modules, the side streams and the set-up of pools; it is held across
   driver calls that compile or create. `lock` guards `streams` and is held across queries and event
   records. `host_lock` guards `hosts`, `stages` and `keeps`; no call into CUDA is made under it.
   The core's capture lock comes before all of them. An error about a capture takes the capture
   lock, so errors must be reported after `lock` or a stream's lock is released.
   Threads: any. `devices`, `multiprocessors` and the entry points are written during initialisation
   only. CUDA's own threads use the host functions, the keeps and the staging buffers. */
#ifndef DS__CUDA_TYPES_H
#define DS__CUDA_TYPES_H

#include "../api/memory.h"
#include "../base/operation.h"

#if defined(__has_include)
#if !__has_include(<cuda_runtime_api.h>)
#error "DEVSTREAM_CUDA needs cudart's headers: add -I with the folder of cuda_runtime_api.h"
#endif
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#include <cuda_runtime_api.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if CUDART_VERSION < 11080
#error "devstream needs cudart 11.8 or newer"
#endif

/* CUDA_KERNEL_NODE_PARAMS of CUDA 12; a driver's entry of before does not look at the last two */
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

/* X(function, parameters): the functions taken from the driver library. The types are those
   of cuda.h, which need not be there: results, options and JIT options are ints, handles are
   pointers, a device's address is 64 bits wide. */
/* clang-format off */
#define DS__CUDA_ENTRY_POINTS(X) \
    X(cuModuleLoadDataEx, \
      (void **module, const void *image, unsigned count, int *options, void **values)) \
    X(cuModuleUnload, (void *module)) \
    X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    X(cuFuncGetAttribute, (int *value, int attribute, void *function)) \
    X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
    X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuCtxPushCurrent, (void *context)) \
    X(cuCtxPopCurrent, (void **context)) \
    X(cuLaunchKernel, \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
        unsigned block_y, unsigned block_z, unsigned shared_bytes, cudaStream_t stream, \
        void **params, void **extra)) \
    X(cuStreamQuery, (cudaStream_t stream)) \
    X(cuEventQuery, (cudaEvent_t event)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
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
      (cudaGraphExec_t exec, cudaGraphNode_t node, const ds__cuda_kernel_params *params))

/* clang-format on */

enum {
    DS__CUDA_NO_CONTEXT = 201,
    DS__CUDA_NOT_READY = 600,
    DS__CUDA_MAX_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    DS__CUDA_HAS_SPACE = 102 /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
};

#define DS__CUDA_STAGE (4u << 20) /* bytes of a staging buffer */

/* A pinned buffer for copies between a GPU and a CPU device; those of one stream share it, since
   they run one by one. */
typedef struct ds__cuda_stage {
    struct ds__cuda_stage *next;
    void *memory;
    _Atomic size_t users; /* the stream, and the copies on their way */
} ds__cuda_stage;

typedef struct ds__cuda_stream {
    cudaStream_t handle;
    int device;
    int kind; /* DS__STREAM_* */
    int priority;
    _Atomic uint64_t capture; /* the number of the capture that it was last seen in */
    int owned;                /* the handle ends with this object */
    int given;    /* unwrapped; a call that had found the object earlier may still use the handle */
    int blocking; /* the stream is ordered with the legacy stream */
    /* the handle is the caller's, or may go at any time: CUDA is not asked for it any more */
    int hidden;
    uint64_t thread;       /* a per-thread stream's */
    ds__lock lock;         /* of `mark`, between its record and the wait for it */
    cudaEvent_t mark;      /* what other streams wait for; made when first needed */
    ds__mutex staging;     /* held while the pieces of a copy are put on the stream */
    ds__cuda_stage *stage; /* made when first needed */
    struct ds__cuda_stream *next;
    struct ds__cuda_stream *previous;
    struct ds__cuda_stream *sibling; /* the next one of those made for a capture */
} ds__cuda_stream;

typedef struct ds__cuda_event {
    _Atomic(cudaEvent_t) event;
    int device;
    _Atomic uint64_t capture; /* of the capture in which it was recorded last; 0: outside */
    /* made for another device, where the first record failed; a reader may still have it */
    struct ds__cuda_event *older;
} ds__cuda_event;

/* A host function on its way. */
enum { DS__CUDA_PENDING, DS__CUDA_TAKEN };

typedef struct ds__cuda_host {
    struct ds__cuda_host *next;
    struct ds__cuda_host *previous;
    _Atomic int state;
    int device;
    int embedded; /* 1: part of another block; its destructor ends that */
    ds_host_fn fn;
    ds_host_fn dtor_fn;
    ds_callback_fn callback;
    void *user;
    uint64_t stream;
} ds__cuda_host;

/* What an executable graph of CUDA's keeps alive, launches on their way included. */
typedef struct ds__cuda_keep {
    struct ds__cuda_keep *next;
    struct ds__cuda_keep *previous;
    _Atomic int state; /* as of a host function */
    uint32_t count;
    ds__object *object[];
} ds__cuda_keep;

/* An image that was loaded on a device, shared by the kernels in it. */
typedef struct ds__cuda_module {
    struct ds__cuda_module *next;
    const void *image;
    void *module;
    int device;
    int users;
} ds__cuda_module;

/* A kernel on one device. */
typedef struct ds__cuda_function {
    /* what cuLaunchKernel or cudaLaunchKernel takes; NULL: not ready */
    _Atomic(void *) function;
    /* most dynamic shared memory that a launch may ask for, as things are */
    _Atomic unsigned shared;
    ds__cuda_module *module;
} ds__cuda_function;

static struct {
    int devices;
    int multiprocessors[DS__MAX_DEVICES];
    _Atomic unsigned char used[DS__MAX_DEVICES];
    /* 0: not asked yet, 1: no, 2: yes, and switched on, for good */
    _Atomic unsigned char peer[DS__MAX_DEVICES][DS__MAX_DEVICES];
    /* whether the first could reach the second: 0: not asked yet, 1: no, 2: yes */
    _Atomic unsigned char near[DS__MAX_DEVICES][DS__MAX_DEVICES];
    _Atomic size_t page[DS__MAX_DEVICES];          /* of reserved address space; 0: not asked yet */
    _Atomic(cudaMemPool_t) pool[DS__MAX_DEVICES];  /* the default one, once it is as it should be */
    unsigned long long threshold[DS__MAX_DEVICES]; /* that it had before */
    /* the primary ones, retained for good, as cudart does */
    _Atomic(void *) context[DS__MAX_DEVICES];
    /* for copies of streams of the CPU driver; made when first needed */
    cudaStream_t side[DS__MAX_DEVICES];
    /* waits for what was pending on destroyed streams; made when first needed */
    _Atomic(cudaStream_t) ended[DS__MAX_DEVICES];
    /* modules, side and ended streams: held across calls that compile or create */
    ds__mutex mutex;
    /* in use, and without users until the device has been waited for */
    ds__cuda_module *modules;
    ds__lock lock;            /* of the list of streams */
    ds__cuda_stream *streams; /* all but the legacy ones */
    /* of the three lists below: a lock that no call of cudart is made under */
    ds__lock host_lock;
    ds__cuda_host *hosts;
    ds__cuda_stage *stages; /* without users */
    ds__cuda_keep *keeps;   /* what CUDA has not let go yet */
    /* what it had not at a shutdown: it may still run and end that, which stays for good */
    ds__cuda_keep *left;
    _Atomic int host_count; /* host functions that were put on a stream and have not returned */
    _Atomic int inside;     /* host functions that run */
    _Atomic int releases;   /* threads that wait for devices in order to release memory */
    _Atomic uint64_t threads;
#define DS__CUDA_MEMBER(function, parameters) int(*function) parameters;
    DS__CUDA_ENTRY_POINTS(DS__CUDA_MEMBER)
#undef DS__CUDA_MEMBER
} ds__cuda = { .mutex = DS__MUTEX_INIT };

static _Thread_local uint64_t ds__cuda_thread; /* a number of the thread, for its own stream */

/* Around the calls of one entry. */
typedef struct ds__cuda_scope {
    int device;
    int pushed;
    cudaError_t pending;
    /* number of the capture that an error will be about; 0: not known */
    uint64_t capture;
} ds__cuda_scope;

/* Functions that rooms call although a later room defines them. */

/* cuda/capture_info.h */
static ds_result ds__cuda_capture_failed(const ds__cuda_scope *scope, const char *call, int code);
static void ds__cuda_find_spoilt(const ds__cuda_scope *scope, const char *rule);

/* cuda/capture_op.h */
static ds_result ds__cuda_refuse_pageable(const ds__cuda_scope *scope);
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          ds_host_fn fn, void *user, ds_host_fn dtor_fn);

/* cuda/capture_query.h */
static void ds__cuda_stop_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                  int destroyed);

/* cuda/graph.h */
static ds_result ds__cuda_child_native(ds__body *child);

/* cuda/host_memory.h */
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out);

/* cuda/module.h */
static ds__cuda_module *ds__cuda_take_modules(int device, int all);
static void ds__cuda_unload(const ds__cuda_scope *scope, ds__cuda_module *list);

/* cuda/staging.h */
static void ds__cuda_stage_drop(ds__cuda_stage *stage);

#endif
