/* The functions of cudart that a program loads at run time, compared with the headers of a version:
   their prototypes here, and the values and layouts of types in layout.c, which layout.awk has
   made. */
#include <cuda_runtime_api.h>
#include <stddef.h>
#define DEVSTREAM_CUDA_DLOPEN
#include "cuda/version.h"

#define SAME(a, b, text) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(a), __typeof__(b)), text)
#define LISTED(function, parameters) SAME(&function, cudaError_t(*) parameters, #function);
#define MEMBER(function) SAME(&function, ds__cudart.function, #function);
#define FORM(member, function) SAME(&function, ds__cudart_forms.member, #function);

DS__CUDART_FUNCTIONS(LISTED)
MEMBER(cudaGetErrorName)
MEMBER(cudaGetErrorString)
MEMBER(cudaRuntimeGetVersion)

/* as ds__cudart_names has it; 12.0 to 12.9 have the name without a number for the second form */
#if CUDART_VERSION >= 13000
FORM(capture_info_edges, cudaStreamGetCaptureInfo)
FORM(capture_after_edges, cudaStreamUpdateCaptureDependencies)
FORM(connect_edges, cudaGraphAddDependencies)
FORM(dependencies_edges, cudaGraphNodeGetDependencies)
#elif CUDART_VERSION >= 12030
FORM(capture_info_edges, cudaStreamGetCaptureInfo_v3)
FORM(capture_after, cudaStreamUpdateCaptureDependencies)
FORM(connect, cudaGraphAddDependencies)
FORM(dependencies_edges, cudaGraphNodeGetDependencies_v2)
#else
#if CUDART_VERSION >= 12000
FORM(capture_info, cudaStreamGetCaptureInfo)
#else
FORM(capture_info, cudaStreamGetCaptureInfo_v2)
#endif
FORM(capture_after, cudaStreamUpdateCaptureDependencies)
FORM(connect, cudaGraphAddDependencies)
FORM(dependencies, cudaGraphNodeGetDependencies)
#endif
#if CUDART_VERSION >= 12030
FORM(capture_into, cudaStreamBeginCaptureToGraph)
_Static_assert(sizeof(cudaGraphEdgeData) == DS__CUDART_EDGE, "data of an edge");
#endif
#if CUDART_VERSION >= 12000
FORM(update, cudaGraphExecUpdate)
#else
FORM(update_node, cudaGraphExecUpdate)
#endif
#if CUDART_VERSION >= 12050
FORM(entry_point_version, cudaGetDriverEntryPointByVersion)
#elif CUDART_VERSION >= 12000
FORM(entry_point_status, cudaGetDriverEntryPoint)
#else
FORM(entry_point, cudaGetDriverEntryPoint)
#endif
#if CUDART_VERSION >= 12080
FORM(stream_device, cudaStreamGetDevice)
#endif
#if CUDART_VERSION >= 13000
FORM(copy_batch, cudaMemcpyBatchAsync)
#elif CUDART_VERSION >= 12080
FORM(copy_batch_failed, cudaMemcpyBatchAsync)
#endif

#include "layout.c"
