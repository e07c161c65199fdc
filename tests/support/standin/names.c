/* The runtime functions that take a stream or use the default one. Their names, and what the
   stream NULL means, depend on CUDA_API_PER_THREAD_DEFAULT_STREAM: compiled without it this file
   has cudaMemcpyAsync, with it cudaMemcpyAsync_ptsz. The shared library holds both. */
#include "internal.h"

#include <stdint.h>

#ifdef __CUDART_API_PER_THREAD_DEFAULT_STREAM
#define PER_THREAD 1
#define DEFAULT cudaStreamPerThread
#else
#define PER_THREAD 0
#define DEFAULT cudaStreamLegacy
#endif

static cudaStream_t named(cudaStream_t stream) {
    return stream ? stream : DEFAULT;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    return si_memcpy(dst, src, count, kind, DEFAULT);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    return si_memset(devPtr, value, count, DEFAULT);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return si_memcpy_async(dst, src, count, kind, named(stream));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return si_memcpy_2d_async(dst, dpitch, src, spitch, width, height, kind, named(stream));
}

cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
    return si_memcpy_3d_peer_async(p, named(stream));
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *dst, const void *const *src, const size_t *sizes,
                                 size_t count, struct cudaMemcpyAttributes *attributes,
                                 size_t *first, size_t attribute_count, cudaStream_t stream) {
    batch b = { dst, src, sizes, count, attributes, first, attribute_count };
    return si_memcpy_batch_async(&b, named(stream));
}
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void **dst, void **src, size_t *sizes, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *first,
                                 size_t attribute_count, size_t *failed, cudaStream_t stream) {
    batch b = { dst, (const void *const *)src, sizes, count, attributes, first, attribute_count };
    if (failed)
        *failed = SIZE_MAX;
    return si_memcpy_batch_async(&b, named(stream));
}
#endif

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    return si_memset_async(devPtr, value, count, named(stream));
}

cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
    return si_memset_2d_async(devPtr, pitch, value, width, height, named(stream));
}

cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream) {
    return si_malloc_async(out, size, named(stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    return si_free_async(pointer, named(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return si_stream_query(named(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return si_stream_synchronize(named(stream));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    return si_stream_get_flags(named(stream), flags);
}
#if CUDART_VERSION >= 12000
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    return si_stream_get_id(named(stream), id);
}
#endif
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    return si_stream_get_priority(named(stream), priority);
}
#if CUDART_VERSION >= 12080
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    return si_stream_get_device(named(stream), device);
}
#endif
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return si_stream_wait_event(named(stream), event, flags);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return si_event_record(event, named(stream));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                  unsigned flags) {
    return si_stream_add_callback(named(stream), callback, data, flags);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
    return si_launch_host_func(named(stream), fn, data);
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    return si_launch_kernel(func, grid, block, args, shared, named(stream));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args) {
    return si_launch_kernel_ex(config, func, args, named(config->stream));
}
#if CUDART_VERSION >= 12000
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    return si_entry_point(symbol, function, 0, flags, status, PER_THREAD);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags) {
    return si_entry_point(symbol, function, 0, flags, NULL, PER_THREAD);
}
#endif
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    return si_entry_point(symbol, function, version ? version : 1, flags, status, PER_THREAD);
}
#endif
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return si_event_record_with_flags(event, named(stream), flags);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    return si_stream_begin_capture(named(stream), mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return si_stream_end_capture(named(stream), graph);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return si_stream_is_capturing(named(stream), status);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    return si_graph_upload(exec, named(stream));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return si_graph_launch(exec, named(stream));
}

#if CUDART_VERSION >= 12030
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode) {
    return si_stream_begin_capture_to_graph(named(stream), graph, dependencies, edges, count, mode);
}
#endif

/* With CUDA 13 the forms that know edge data are the only ones. */
#if CUDART_VERSION >= 13000
#define EDGE_FORM(name, v) name
#else
#define EDGE_FORM(name, v) name##_v##v
#endif
#if CUDART_VERSION >= 12030
cudaError_t EDGE_FORM(cudaStreamGetCaptureInfo, 3)(cudaStream_t stream,
                                                   enum cudaStreamCaptureStatus *status,
                                                   unsigned long long *id, cudaGraph_t *graph,
                                                   const cudaGraphNode_t **dependencies,
                                                   const cudaGraphEdgeData **edges, size_t *count) {
    return si_stream_get_capture_info(named(stream), status, id, graph, dependencies, edges, count);
}

cudaError_t EDGE_FORM(cudaStreamUpdateCaptureDependencies,
                      2)(cudaStream_t stream, cudaGraphNode_t *dependencies,
                         const cudaGraphEdgeData *edges, size_t count, unsigned flags) {
    return si_stream_update_capture_dependencies(named(stream), dependencies, edges, count, flags);
}
#endif
#if CUDART_VERSION < 12000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id) {
    return si_stream_get_capture_info(named(stream), status, id, NULL, NULL, NULL, NULL);
}

#define INFO cudaStreamGetCaptureInfo_v2
#else
#define INFO cudaStreamGetCaptureInfo /* which the header makes _v2 */
#endif
#if CUDART_VERSION < 13000
cudaError_t INFO(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                 cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
    return si_stream_get_capture_info(named(stream), status, id, graph, dependencies, NULL, count);
}

/* Has no second name in the headers up to 12.0. */
#if !PER_THREAD || defined(cudaStreamUpdateCaptureDependencies)
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                size_t count, unsigned flags) {
    return si_stream_update_capture_dependencies(named(stream), dependencies, NULL, count, flags);
}
#endif
#endif
