/* The runtime functions that take a stream or use the default one.  Their names, and what the stream NULL means, depend on
   CUDA_API_PER_THREAD_DEFAULT_STREAM: compiled without it this file has cudaMemcpyAsync, with it cudaMemcpyAsync_ptsz.  The
   shared library holds both. */
#include "internal.h"

#ifdef __CUDART_API_PER_THREAD_DEFAULT_STREAM
#define PER_THREAD 1
#define DEFAULT    cudaStreamPerThread
#else
#define PER_THREAD 0
#define DEFAULT    cudaStreamLegacy
#endif

static cudaStream_t named(cudaStream_t stream) { return stream ? stream : DEFAULT; }

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    return si_memcpy(dst, src, count, kind, DEFAULT);
}
cudaError_t cudaMemset(void *devPtr, int value, size_t count) { return si_memset(devPtr, value, count, DEFAULT); }
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return si_memcpy_async(dst, src, count, kind, named(stream));
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    return si_memcpy_2d_async(dst, dpitch, src, spitch, width, height, kind, named(stream));
}
cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
    return si_memcpy_3d_peer_async(p, named(stream));
}
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    return si_memset_async(devPtr, value, count, named(stream));
}
cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    return si_memset_2d_async(devPtr, pitch, value, width, height, named(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return si_stream_query(named(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return si_stream_synchronize(named(stream)); }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { return si_stream_get_flags(named(stream), flags); }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) { return si_stream_get_id(named(stream), id); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    return si_stream_get_priority(named(stream), priority);
}
#if CUDART_VERSION >= 12080
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) { return si_stream_get_device(named(stream), device); }
#endif
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return si_stream_wait_event(named(stream), event, flags);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return si_event_record(event, named(stream)); }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    return si_stream_add_callback(named(stream), callback, data, flags);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
    return si_launch_host_func(named(stream), fn, data);
}
cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    return si_launch_kernel(func, grid, block, args, shared, named(stream));
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    return si_entry_point(symbol, function, 0, flags, status, PER_THREAD);
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    return si_entry_point(symbol, function, version ? version : 1, flags, status, PER_THREAD);
}
#endif
