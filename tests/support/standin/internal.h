/* Between standin.c, capture.c, graphs.c and names.c: the functions whose names the CUDA header
   changes under CUDA_API_PER_THREAD_DEFAULT_STREAM. Here a stream is never NULL: names.c,
   compiled once for each meaning of NULL, says which it is. */
#ifndef STANDIN_INTERNAL_H
#define STANDIN_INTERNAL_H

#include <cuda_runtime_api.h>

#if CUDART_VERSION < 12000
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound,
    cudaDriverEntryPointVersionNotSufficent
};
#endif
#if CUDART_VERSION < 12030
typedef struct cudaGraphEdgeData {
    unsigned char bytes[8];
} cudaGraphEdgeData;
#endif

__typeof__(cudaMemcpyAsync) si_memcpy_async;
__typeof__(cudaMemcpy2DAsync) si_memcpy_2d_async;
__typeof__(cudaMemcpy3DPeerAsync) si_memcpy_3d_peer_async;
#if CUDART_VERSION >= 12080
/* The arguments of cudaMemcpyBatchAsync. */
typedef struct batch {
    void *const *dst;
    const void *const *src;
    const size_t *sizes;
    size_t count;
    struct cudaMemcpyAttributes *attributes;
    size_t *first, attribute_count;
} batch;

cudaError_t si_memcpy_batch_async(const batch *b, cudaStream_t stream);
#endif
__typeof__(cudaMemsetAsync) si_memset_async;
__typeof__(cudaMemset2DAsync) si_memset_2d_async;
__typeof__(cudaMallocAsync) si_malloc_async;
__typeof__(cudaFreeAsync) si_free_async;
__typeof__(cudaStreamQuery) si_stream_query;
__typeof__(cudaStreamGetFlags) si_stream_get_flags;
__typeof__(cudaStreamGetPriority) si_stream_get_priority;
__typeof__(cudaEventRecord) si_event_record;
__typeof__(cudaEventRecordWithFlags) si_event_record_with_flags;
__typeof__(cudaStreamWaitEvent) si_stream_wait_event;
__typeof__(cudaStreamAddCallback) si_stream_add_callback;
__typeof__(cudaStreamSynchronize) si_stream_synchronize;
__typeof__(cudaLaunchKernel) si_launch_kernel;
cudaError_t si_launch_kernel_ex(const cudaLaunchConfig_t *config, const void *func, void **args,
                                cudaStream_t stream);
__typeof__(cudaLaunchHostFunc) si_launch_host_func;
__typeof__(cudaStreamBeginCapture) si_stream_begin_capture;
__typeof__(cudaStreamEndCapture) si_stream_end_capture;
__typeof__(cudaStreamIsCapturing) si_stream_is_capturing;
__typeof__(cudaGraphUpload) si_graph_upload;
__typeof__(cudaGraphLaunch) si_graph_launch;

cudaError_t si_stream_get_id(cudaStream_t stream, unsigned long long *id);
cudaError_t si_stream_get_device(cudaStream_t stream, int *device);
cudaError_t si_memcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                      cudaStream_t stream);
cudaError_t si_memset(void *dst, int value, size_t count, cudaStream_t stream);
/* version 0: as cudaGetDriverEntryPoint, which goes by the runtime's own version */
cudaError_t si_entry_point(const char *symbol, void **function, unsigned version,
                           unsigned long long flags, enum cudaDriverEntryPointQueryResult *status,
                           int per_thread);

/* In the form that has all that the versions of CUDA have. */
cudaError_t si_stream_begin_capture_to_graph(cudaStream_t stream, cudaGraph_t graph,
                                             const cudaGraphNode_t *dependencies,
                                             const void *edge_data, size_t count,
                                             enum cudaStreamCaptureMode mode);
cudaError_t si_stream_get_capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                       unsigned long long *id, cudaGraph_t *graph,
                                       const cudaGraphNode_t **dependencies,
                                       const cudaGraphEdgeData **edges, size_t *count);
cudaError_t si_stream_update_capture_dependencies(cudaStream_t stream,
                                                  cudaGraphNode_t *dependencies,
                                                  const void *edge_data, size_t count,
                                                  unsigned flags);

#endif
