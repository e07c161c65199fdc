/* cuda/cudart.h - the functions of cudart, linked or loaded.

   Declares the functions as a table of pointers (ds__cudart) if the program loads cudart at run
   time (DS__CUDART_LOADED); otherwise the header of cudart has declared them. Every other room
   names a function of cudart as the argument of DS__CUDART, or of DS__RT and DS__RT_CODE, and is
   the same in both forms.

   Policy: DS__CUDART_FUNCTIONS lists functions that have one form in all versions; version.h has
   those whose form or name differs. A loaded cudart is called by the names without _ptsz, so the
   stream NULL would be the legacy stream; the driver never passes NULL.

   Invariants: after ds__cudart_load has returned 1, all members of ds__cudart are set.
   Locks: none.
   Threads: any. The table is written during initialisation only. */
#ifndef DS__CUDA_CUDART_H
#define DS__CUDA_CUDART_H

#include "cudart_types.h"

#if !DS__CUDART_LOADED
#define DS__CUDART(function) function
#else
#define DS__CUDART(function) ds__cudart.function

/* clang-format off */
/* X(function, parameters): functions that return cudaError_t. */
#define DS__CUDART_FUNCTIONS(X) \
    X(cudaPeekAtLastError, (void)) \
    X(cudaGetLastError, (void)) \
    X(cudaDriverGetVersion, (int *out)) \
    X(cudaGetDeviceCount, (int *out)) \
    X(cudaGetDevice, (int *out)) \
    X(cudaSetDevice, (int device)) \
    X(cudaDeviceGetAttribute, (int *out, enum cudaDeviceAttr attribute, int device)) \
    X(cudaDeviceGetP2PAttribute, \
      (int *out, enum cudaDeviceP2PAttr attribute, int device, int peer)) \
    X(cudaDeviceGetPCIBusId, (char *out, int size, int device)) \
    X(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest)) \
    X(cudaDeviceGetDefaultMemPool, (cudaMemPool_t *out, int device)) \
    X(cudaDeviceCanAccessPeer, (int *out, int device, int peer)) \
    X(cudaDeviceEnablePeerAccess, (int peer, unsigned flags)) \
    X(cudaDeviceSynchronize, (void)) \
    X(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *mode)) \
    X(cudaStreamCreateWithPriority, (cudaStream_t *out, unsigned flags, int priority)) \
    X(cudaStreamDestroy, (cudaStream_t stream)) \
    X(cudaStreamGetFlags, (cudaStream_t stream, unsigned *out)) \
    X(cudaStreamGetPriority, (cudaStream_t stream, int *out)) \
    X(cudaStreamSynchronize, (cudaStream_t stream)) \
    X(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags)) \
    X(cudaStreamAddCallback, \
      (cudaStream_t stream, cudaStreamCallback_t fn, void *user, unsigned flags)) \
    X(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode)) \
    X(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *out)) \
    X(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *out)) \
    X(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t fn, void *user)) \
    X(cudaLaunchKernel, \
      (const void *function, dim3 grid, dim3 block, void **params, size_t shared, \
        cudaStream_t stream)) \
    X(cudaLaunchKernelExC, \
      (const cudaLaunchConfig_t *config, const void *function, void **params)) \
    X(cudaFuncGetAttributes, (struct cudaFuncAttributes *out, const void *function)) \
    X(cudaFuncSetAttribute, \
      (const void *function, enum cudaFuncAttribute attribute, int value)) \
    X(cudaEventCreateWithFlags, (cudaEvent_t *out, unsigned flags)) \
    X(cudaEventDestroy, (cudaEvent_t event)) \
    X(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream)) \
    X(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags)) \
    X(cudaEventSynchronize, (cudaEvent_t event)) \
    X(cudaEventElapsedTime, (float *out, cudaEvent_t start, cudaEvent_t end)) \
    X(cudaMalloc, (void **out, size_t size)) \
    X(cudaFree, (void *ptr)) \
    X(cudaMallocAsync, (void **out, size_t size, cudaStream_t stream)) \
    X(cudaFreeAsync, (void *ptr, cudaStream_t stream)) \
    X(cudaHostAlloc, (void **out, size_t size, unsigned flags)) \
    X(cudaFreeHost, (void *ptr)) \
    X(cudaHostRegister, (void *ptr, size_t size, unsigned flags)) \
    X(cudaHostUnregister, (void *ptr)) \
    X(cudaMemGetInfo, (size_t *out_free, size_t *out_total)) \
    X(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep)) \
    X(cudaMemPoolSetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)) \
    X(cudaMemPoolGetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)) \
    X(cudaMemPoolSetAccess, \
      (cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count)) \
    X(cudaMemcpyAsync, \
      (void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)) \
    X(cudaMemcpy2DAsync, \
      (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, \
        size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)) \
    X(cudaMemcpyPeerAsync, \
      (void *dst, int to, const void *src, int from, size_t size, cudaStream_t stream)) \
    X(cudaMemcpy3DPeerAsync, (const struct cudaMemcpy3DPeerParms *params, cudaStream_t stream)) \
    X(cudaMemsetAsync, (void *dst, int value, size_t size, cudaStream_t stream)) \
    X(cudaMemset2DAsync, \
      (void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)) \
    X(cudaIpcGetEventHandle, (cudaIpcEventHandle_t *out, cudaEvent_t event)) \
    X(cudaIpcOpenEventHandle, (cudaEvent_t *out, cudaIpcEventHandle_t handle)) \
    X(cudaIpcGetMemHandle, (cudaIpcMemHandle_t *out, void *ptr)) \
    X(cudaIpcOpenMemHandle, (void **out, cudaIpcMemHandle_t handle, unsigned flags)) \
    X(cudaIpcCloseMemHandle, (void *ptr)) \
    X(cudaGraphCreate, (cudaGraph_t *out, unsigned flags)) \
    X(cudaGraphDestroy, (cudaGraph_t graph)) \
    X(cudaGraphClone, (cudaGraph_t *out, cudaGraph_t graph)) \
    X(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *out, size_t *count)) \
    X(cudaGraphNodeFindInClone, \
      (cudaGraphNode_t *out, cudaGraphNode_t node, cudaGraph_t clone)) \
    X(cudaGraphDestroyNode, (cudaGraphNode_t node)) \
    X(cudaGraphAddKernelNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const struct cudaKernelNodeParams *params)) \
    X(cudaGraphAddMemcpyNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const struct cudaMemcpy3DParms *params)) \
    X(cudaGraphAddMemsetNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const struct cudaMemsetParams *params)) \
    X(cudaGraphAddHostNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const struct cudaHostNodeParams *params)) \
    X(cudaGraphAddChildGraphNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        cudaGraph_t child)) \
    X(cudaGraphAddEmptyNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count)) \
    X(cudaGraphAddEventRecordNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        cudaEvent_t event)) \
    X(cudaGraphAddEventWaitNode, \
      (cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        cudaEvent_t event)) \
    X(cudaGraphKernelNodeSetParams, \
      (cudaGraphNode_t node, const struct cudaKernelNodeParams *params)) \
    X(cudaGraphMemcpyNodeSetParams, \
      (cudaGraphNode_t node, const struct cudaMemcpy3DParms *params)) \
    X(cudaGraphMemsetNodeSetParams, \
      (cudaGraphNode_t node, const struct cudaMemsetParams *params)) \
    X(cudaGraphHostNodeSetParams, \
      (cudaGraphNode_t node, const struct cudaHostNodeParams *params)) \
    X(cudaGraphEventRecordNodeSetEvent, (cudaGraphNode_t node, cudaEvent_t event)) \
    X(cudaGraphEventWaitNodeSetEvent, (cudaGraphNode_t node, cudaEvent_t event)) \
    X(cudaGraphKernelNodeSetAttribute, \
      (cudaGraphNode_t node, cudaLaunchAttributeID attribute, \
        const cudaLaunchAttributeValue *value)) \
    X(cudaGraphChildGraphNodeGetGraph, (cudaGraphNode_t node, cudaGraph_t *out)) \
    X(cudaGraphInstantiateWithFlags, \
      (cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)) \
    X(cudaGraphExecDestroy, (cudaGraphExec_t exec)) \
    X(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream)) \
    X(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream)) \
    X(cudaGraphNodeSetEnabled, (cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled)) \
    X(cudaGraphExecKernelNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const struct cudaKernelNodeParams *params)) \
    X(cudaGraphExecMemcpyNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const struct cudaMemcpy3DParms *params)) \
    X(cudaGraphExecMemsetNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const struct cudaMemsetParams *params)) \
    X(cudaGraphExecEventRecordNodeSetEvent, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, cudaEvent_t event)) \
    X(cudaGraphExecEventWaitNodeSetEvent, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, cudaEvent_t event)) \
    X(cudaUserObjectCreate, \
      (cudaUserObject_t *out, void *ptr, cudaHostFn_t destroy, unsigned count, unsigned flags)) \
    X(cudaUserObjectRelease, (cudaUserObject_t object, unsigned count)) \
    X(cudaGraphRetainUserObject, \
      (cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)) \
    X(cudaGraphReleaseUserObject, (cudaGraph_t graph, cudaUserObject_t object, unsigned count))

/* clang-format on */
static struct ds__cudart_table {
    const char *(*cudaGetErrorName)(cudaError_t code);
    const char *(*cudaGetErrorString)(cudaError_t code);
    cudaError_t (*cudaRuntimeGetVersion)(int *out);
#define DS__CUDART_MEMBER(function, parameters) cudaError_t(*function) parameters;
    DS__CUDART_FUNCTIONS(DS__CUDART_MEMBER)
#undef DS__CUDART_MEMBER
} ds__cudart;
#endif

#endif
