/* cuda/version.h - the functions of cudart that differ by version.

   Wraps each function of cudart whose name, parameters or presence depends on the version of CUDA
   in a function that is the same for all. The wrappers return cudart's code and leave the thread's
   last error to the caller.

   Policy: a program that is linked with cudart has the form of its headers. A program that loads
   cudart finds the version at run time; ds__cudart_names tells which function of this version has
   which form. From 12.3 on, edges have data; a function without room for it fails if an edge has
   data that is not zero (cudaErrorLossyQuery).

   Invariants: after ds__cudart_load has returned 1, of the members of ds__cudart_forms those are
   set that ds__cudart_names lists for the version.
   Locks: none.
   Threads: any. The members are written during initialisation only. */
#ifndef DS__CUDA_VERSION_H
#define DS__CUDA_VERSION_H

#include "cudart.h"
#include <stddef.h>

#if DS__CUDART_LOADED
static struct ds__cudart_forms {
    int version;
    cudaError_t (*capture_info)(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                unsigned long long *id, cudaGraph_t *graph,
                                const cudaGraphNode_t **after, size_t *count);
    cudaError_t (*capture_info_edges)(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                      unsigned long long *id, cudaGraph_t *graph,
                                      const cudaGraphNode_t **after,
                                      const cudaGraphEdgeData **edges, size_t *count);
    cudaError_t (*capture_after)(cudaStream_t stream, cudaGraphNode_t *after, size_t count,
                                 unsigned flags);
    cudaError_t (*capture_after_edges)(cudaStream_t stream, cudaGraphNode_t *after,
                                       const cudaGraphEdgeData *edges, size_t count,
                                       unsigned flags);
    cudaError_t (*capture_into)(cudaStream_t stream, cudaGraph_t graph,
                                const cudaGraphNode_t *after, const cudaGraphEdgeData *edges,
                                size_t count, enum cudaStreamCaptureMode mode);
    cudaError_t (*connect)(cudaGraph_t graph, const cudaGraphNode_t *from,
                           const cudaGraphNode_t *to, size_t count);
    cudaError_t (*connect_edges)(cudaGraph_t graph, const cudaGraphNode_t *from,
                                 const cudaGraphNode_t *to, const cudaGraphEdgeData *edges,
                                 size_t count);
    cudaError_t (*dependencies)(cudaGraphNode_t node, cudaGraphNode_t *out, size_t *count);
    cudaError_t (*dependencies_edges)(cudaGraphNode_t node, cudaGraphNode_t *out,
                                      cudaGraphEdgeData *edges, size_t *count);
    cudaError_t (*update)(cudaGraphExec_t exec, cudaGraph_t graph,
                          cudaGraphExecUpdateResultInfo *out);
    cudaError_t (*update_node)(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t *out_node,
                               enum cudaGraphExecUpdateResult *out);
    cudaError_t (*entry_point)(const char *name, void **out, unsigned long long flags);
    cudaError_t (*entry_point_status)(const char *name, void **out, unsigned long long flags,
                                      enum cudaDriverEntryPointQueryResult *status);
    cudaError_t (*entry_point_version)(const char *name, void **out, unsigned version,
                                       unsigned long long flags,
                                       enum cudaDriverEntryPointQueryResult *status);
    cudaError_t (*stream_device)(cudaStream_t stream, int *out);
    cudaError_t (*copy_batch)(void *const *dst, const void *const *src, const size_t *sizes,
                              size_t count, struct cudaMemcpyAttributes *attributes, size_t *first,
                              size_t attribute_count, cudaStream_t stream);
    cudaError_t (*copy_batch_failed)(void **dst, void **src, size_t *sizes, size_t count,
                                     struct cudaMemcpyAttributes *attributes, size_t *first,
                                     size_t attribute_count, size_t *failed, cudaStream_t stream);
} ds__cudart_forms;

/* A function has the form of the member in the versions from `since` to below `before`. */
static const struct {
    const char *function;
    int since;
    int before;
    size_t member;
} ds__cudart_names[] = {

#define DS__FORM(member) offsetof(struct ds__cudart_forms, member)
    { "cudaStreamGetCaptureInfo_v2", 11080, 12030, DS__FORM(capture_info) },
    { "cudaStreamGetCaptureInfo_v3", 12030, 13000, DS__FORM(capture_info_edges) },
    { "cudaStreamGetCaptureInfo", 13000, INT_MAX, DS__FORM(capture_info_edges) },
    { "cudaStreamUpdateCaptureDependencies", 11080, 13000, DS__FORM(capture_after) },
    { "cudaStreamUpdateCaptureDependencies", 13000, INT_MAX, DS__FORM(capture_after_edges) },
    { "cudaStreamBeginCaptureToGraph", 12030, INT_MAX, DS__FORM(capture_into) },
    { "cudaGraphAddDependencies", 11080, 13000, DS__FORM(connect) },
    { "cudaGraphAddDependencies", 13000, INT_MAX, DS__FORM(connect_edges) },
    { "cudaGraphNodeGetDependencies", 11080, 12030, DS__FORM(dependencies) },
    { "cudaGraphNodeGetDependencies_v2", 12030, 13000, DS__FORM(dependencies_edges) },
    { "cudaGraphNodeGetDependencies", 13000, INT_MAX, DS__FORM(dependencies_edges) },
    { "cudaGraphExecUpdate", 11080, 12000, DS__FORM(update_node) },
    { "cudaGraphExecUpdate", 12000, INT_MAX, DS__FORM(update) },
    { "cudaGetDriverEntryPoint", 11080, 12000, DS__FORM(entry_point) },
    { "cudaGetDriverEntryPoint", 12000, 12050, DS__FORM(entry_point_status) },
    { "cudaGetDriverEntryPointByVersion", 12050, INT_MAX, DS__FORM(entry_point_version) },
    { "cudaStreamGetDevice", 12080, INT_MAX, DS__FORM(stream_device) },
    { "cudaMemcpyBatchAsync", 12080, 13000, DS__FORM(copy_batch_failed) },
    { "cudaMemcpyBatchAsync", 13000, INT_MAX, DS__FORM(copy_batch) }
#undef DS__FORM
};
#endif

/* Returns the version of cudart: 12030 is 12.3. */
static inline int ds__cudart_version(void) {
#if DS__CUDART_LOADED
    return ds__cudart_forms.version;
#else
    return CUDART_VERSION;
#endif
}

/* Gives the capture of a stream, its graph, and the nodes on which the next operation will depend;
   their array belongs to CUDA. */
static cudaError_t ds__cudart_capture_info(cudaStream_t stream,
                                           enum cudaStreamCaptureStatus *status,
                                           unsigned long long *id, cudaGraph_t *graph,
                                           const cudaGraphNode_t **after, size_t *count) {
#if DS__CUDART_LOADED
    const cudaGraphEdgeData *edges;
    if (!ds__cudart_forms.capture_info_edges)
        return ds__cudart_forms.capture_info(stream, status, id, graph, after, count);
    return ds__cudart_forms.capture_info_edges(stream, status, id, graph, after, &edges, count);
#elif CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo(stream, status, id, graph, after, &edges, count);
#elif CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, after, &edges, count);
#elif CUDART_VERSION >= 12000
    return cudaStreamGetCaptureInfo(stream, status, id, graph, after, count);
#else
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, after, count);
#endif
}

/* Sets or adds to the nodes on which the next operation of a stream that captures will depend. */
static cudaError_t ds__cudart_capture_after(cudaStream_t stream, cudaGraphNode_t *after,
                                            size_t count, unsigned flags) {
#if DS__CUDART_LOADED
    if (!ds__cudart_forms.capture_after_edges)
        return ds__cudart_forms.capture_after(stream, after, count, flags);
    return ds__cudart_forms.capture_after_edges(stream, after, NULL, count, flags);
#elif CUDART_VERSION >= 13000
    return cudaStreamUpdateCaptureDependencies(stream, after, NULL, count, flags);
#else
    return cudaStreamUpdateCaptureDependencies(stream, after, count, flags);
#endif
}

/* Begins a capture into an existing graph. Before 12.3 that is not supported. */
static cudaError_t ds__cudart_capture_into(cudaStream_t stream, cudaGraph_t graph,
                                           const cudaGraphNode_t *after, size_t count,
                                           enum cudaStreamCaptureMode mode) {
#if DS__CUDART_LOADED
    if (ds__cudart_forms.capture_into)
        return ds__cudart_forms.capture_into(stream, graph, after, NULL, count, mode);
    return cudaErrorNotSupported;
#elif CUDART_VERSION >= 12030
    return cudaStreamBeginCaptureToGraph(stream, graph, after, NULL, count, mode);
#else
    (void)stream;
    (void)graph;
    (void)after;
    (void)count;
    (void)mode;
    return cudaErrorNotSupported;
#endif
}

/* Adds dependencies to a graph. */
static cudaError_t ds__cudart_connect(cudaGraph_t graph, const cudaGraphNode_t *from,
                                      const cudaGraphNode_t *to, size_t count) {
#if DS__CUDART_LOADED
    if (!ds__cudart_forms.connect_edges)
        return ds__cudart_forms.connect(graph, from, to, count);
    return ds__cudart_forms.connect_edges(graph, from, to, NULL, count);
#elif CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, from, to, NULL, count);
#else
    return cudaGraphAddDependencies(graph, from, to, count);
#endif
}

enum { DS__CUDART_EDGE = 8 }; /* bytes of the data of an edge */

/* Gives the nodes on which a node depends, at most *count, and their number. `edges` has room for
   DS__CUDART_EDGE bytes for each of them. */
static cudaError_t ds__cudart_dependencies(cudaGraphNode_t node, cudaGraphNode_t *out, void *edges,
                                           size_t *count) {
#if DS__CUDART_LOADED
    if (!ds__cudart_forms.dependencies_edges)
        return ds__cudart_forms.dependencies(node, out, count);
    return ds__cudart_forms.dependencies_edges(node, out, edges, count);
#elif CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, out, edges, count);
#elif CUDART_VERSION >= 12030
    return cudaGraphNodeGetDependencies_v2(node, out, edges, count);
#else
    (void)edges;
    return cudaGraphNodeGetDependencies(node, out, count);
#endif
}

#if DS__CUDART_LOADED || CUDART_VERSION < 12000
/* Calls an update of CUDA 11.8, which gives the node and the reason one by one. */
static cudaError_t ds__cudart_update_node(
    cudaError_t (*update)(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t *out,
                          enum cudaGraphExecUpdateResult *result),
    cudaGraphExec_t exec, cudaGraph_t graph, int *out_reason, cudaGraphNode_t *out_node) {
    enum cudaGraphExecUpdateResult result = cudaGraphExecUpdateSuccess;
    *out_node = NULL;
    cudaError_t code = update(exec, graph, out_node, &result);
    *out_reason = (int)result;
    return code;
}
#endif

#if DS__CUDART_LOADED || CUDART_VERSION >= 12000
/* Calls an update of CUDA 12 and later, which gives both in a struct. */
static cudaError_t ds__cudart_update_info(cudaError_t (*update)(cudaGraphExec_t exec,
                                                                cudaGraph_t graph,
                                                                cudaGraphExecUpdateResultInfo *out),
                                          cudaGraphExec_t exec, cudaGraph_t graph, int *out_reason,
                                          cudaGraphNode_t *out_node) {
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    cudaError_t code = update(exec, graph, &info);
    *out_reason = (int)info.result;
    *out_node = info.errorNode;
    return code;
}
#endif

/* Updates an executable with a graph. If CUDA refuses the graph, gives the number of the reason,
   and the node or NULL. */
static cudaError_t ds__cudart_update(cudaGraphExec_t exec, cudaGraph_t graph, int *out_reason,
                                     cudaGraphNode_t *out_node) {
#if DS__CUDART_LOADED
    if (!ds__cudart_forms.update)
        return ds__cudart_update_node(ds__cudart_forms.update_node, exec, graph, out_reason,
                                      out_node);
    return ds__cudart_update_info(ds__cudart_forms.update, exec, graph, out_reason, out_node);
#elif CUDART_VERSION >= 12000
    return ds__cudart_update_info(cudaGraphExecUpdate, exec, graph, out_reason, out_node);
#else
    return ds__cudart_update_node(cudaGraphExecUpdate, exec, graph, out_reason, out_node);
#endif
}

/* Finds an entry point of the driver library in the form of a version of CUDA. *out is NULL if the
   library does not have it. Before 12.5 the version is that of cudart; the entries that the driver
   uses have one form in these versions, or fit both (ds__cuda_kernel_params). */
static cudaError_t ds__cudart_entry_point(const char *name, unsigned version, void **out) {
    (void)version;
#if !DS__CUDART_LOADED && CUDART_VERSION < 12000
    return cudaGetDriverEntryPoint(name, out, cudaEnableLegacyStream);
#else
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t code;
#if DS__CUDART_LOADED
    if (ds__cudart_forms.entry_point)
        return ds__cudart_forms.entry_point(name, out, cudaEnableLegacyStream);
    if (ds__cudart_forms.entry_point_version)
        code = ds__cudart_forms.entry_point_version(name, out, version, cudaEnableLegacyStream,
                                                    &found);
    else
        code = ds__cudart_forms.entry_point_status(name, out, cudaEnableLegacyStream, &found);
#elif CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion(name, out, version, cudaEnableLegacyStream, &found);
#else
    code = cudaGetDriverEntryPoint(name, out, cudaEnableLegacyStream, &found);
#endif
    if (code == cudaSuccess && found != cudaDriverEntryPointSuccess)
        *out = NULL;
    return code;
#endif
}

/* Gives the device of a stream. Before 12.8 that is not known, as with an older driver. */
static cudaError_t ds__cudart_stream_device(cudaStream_t stream, int *out) {
#if DS__CUDART_LOADED
    if (ds__cudart_forms.stream_device)
        return ds__cudart_forms.stream_device(stream, out);
    return cudaErrorCallRequiresNewerDriver;
#elif CUDART_VERSION >= 12080
    return cudaStreamGetDevice(stream, out);
#else
    (void)stream;
    (void)out;
    return cudaErrorCallRequiresNewerDriver;
#endif
}

/* Enqueues `count` copies, whose sources are read in stream order. Before 12.8 that is not
   supported. The form before 13.0 does not change the arrays, although they are not const there. */
static cudaError_t ds__cudart_copy_batch(void *const *dst, const void *const *src,
                                         const size_t *sizes, size_t count, cudaStream_t stream) {
#if DS__CUDART_LOADED || CUDART_VERSION >= 12080
    struct cudaMemcpyAttributes in_order;
    size_t first = 0;
    memset(&in_order, 0, sizeof in_order);
    in_order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#endif
#if DS__CUDART_LOADED
    size_t failed = 0;
    if (ds__cudart_forms.copy_batch)
        return ds__cudart_forms.copy_batch(dst, src, sizes, count, &in_order, &first, 1, stream);
    if (ds__cudart_forms.copy_batch_failed)
        return ds__cudart_forms.copy_batch_failed((void **)(uintptr_t)dst, (void **)(uintptr_t)src,
                                                  (size_t *)(uintptr_t)sizes, count, &in_order,
                                                  &first, 1, &failed, stream);
    return cudaErrorNotSupported;
#elif CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(dst, src, sizes, count, &in_order, &first, 1, stream);
#elif CUDART_VERSION >= 12080
    size_t failed = 0;
    return cudaMemcpyBatchAsync((void **)(uintptr_t)dst, (void **)(uintptr_t)src,
                                (size_t *)(uintptr_t)sizes, count, &in_order, &first, 1, &failed,
                                stream);
#else
    (void)dst;
    (void)src;
    (void)sizes;
    (void)count;
    (void)stream;
    return cudaErrorNotSupported;
#endif
}

#endif
