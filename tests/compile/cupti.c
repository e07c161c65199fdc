/* The parts of CUPTI that a program loads at run time, compared with the headers of a version:
   constants, prototypes, and the fields of the structs that this version uses. run.sh finds their
   names in the header, as KERNEL, COPY, PEER_COPY and FILL. */
#include <cuda.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define DEVSTREAM_IMPLEMENTATION
#define DEVSTREAM_CUDA_DLOPEN
#include "devstream.h"

#define SAME(ours, field, theirs, name)                                           \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, name) &&             \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name), \
                   #theirs "." #name);
#define COMMON(ours, theirs)                       \
    SAME(ours, kind, theirs, kind)                 \
    SAME(ours, start, theirs, start)               \
    SAME(ours, end, theirs, end)                   \
    SAME(ours, device, theirs, deviceId)           \
    SAME(ours, context, theirs, contextId)         \
    SAME(ours, stream, theirs, streamId)           \
    SAME(ours, correlation, theirs, correlationId) \
    SAME(ours, node, theirs, graphNodeId)

COMMON(ds__cupti_kernel, KERNEL)
SAME(ds__cupti_kernel, name, KERNEL, name)
COMMON(ds__cupti_copy, COPY)
SAME(ds__cupti_copy, bytes, COPY, bytes)
COMMON(ds__cupti_peer_copy, PEER_COPY)
SAME(ds__cupti_peer_copy, bytes, PEER_COPY, bytes)
COMMON(ds__cupti_fill, FILL)
SAME(ds__cupti_fill, bytes, FILL, bytes)
SAME(ds__cupti_external, kind, CUpti_ActivityExternalCorrelation, kind)
SAME(ds__cupti_external, external_kind, CUpti_ActivityExternalCorrelation, externalKind)
SAME(ds__cupti_external, id, CUpti_ActivityExternalCorrelation, externalId)
SAME(ds__cupti_external, correlation, CUpti_ActivityExternalCorrelation, correlationId)

#define VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs);
VALUE(DS__CUPTI_COPY, CUPTI_ACTIVITY_KIND_MEMCPY)
VALUE(DS__CUPTI_FILL, CUPTI_ACTIVITY_KIND_MEMSET)
VALUE(DS__CUPTI_DRIVER, CUPTI_ACTIVITY_KIND_DRIVER)
VALUE(DS__CUPTI_RUNTIME, CUPTI_ACTIVITY_KIND_RUNTIME)
VALUE(DS__CUPTI_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
VALUE(DS__CUPTI_PEER_COPY, CUPTI_ACTIVITY_KIND_MEMCPY2)
VALUE(DS__CUPTI_EXTERNAL, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)
VALUE(DS__CUPTI_CUSTOM1, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1)
VALUE(DS__CUPTI_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)
VALUE(DS__CUPTI_ONE_SUBSCRIBER, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
_Static_assert(CUPTI_API_VERSION >= DS__CUPTI_VERSION, "a version that devstream takes");

/* Enumerations and handles are ints and pointers. */
#define FUNCTION(name, ...)                                                                       \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUptiResult (*)(__VA_ARGS__)), \
                   #name);
FUNCTION(cuptiGetVersion, uint32_t *)
FUNCTION(cuptiGetTimestamp, uint64_t *)
FUNCTION(cuptiSubscribe, CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *)
FUNCTION(cuptiUnsubscribe, CUpti_SubscriberHandle)
FUNCTION(cuptiActivityEnable, CUpti_ActivityKind)
FUNCTION(cuptiActivityDisable, CUpti_ActivityKind)
FUNCTION(cuptiActivityRegisterCallbacks, CUpti_BuffersCallbackRequestFunc,
         CUpti_BuffersCallbackCompleteFunc)
FUNCTION(cuptiActivityFlushAll, uint32_t)
FUNCTION(cuptiActivityGetNextRecord, uint8_t *, size_t, CUpti_Activity **)
FUNCTION(cuptiActivityGetNumDroppedRecords, CUcontext, uint32_t, size_t *)
FUNCTION(cuptiActivityPushExternalCorrelationId, CUpti_ExternalCorrelationKind, uint64_t)
FUNCTION(cuptiActivityPopExternalCorrelationId, CUpti_ExternalCorrelationKind, uint64_t *)
FUNCTION(cuptiGetResultString, CUptiResult, const char **)
_Static_assert(__builtin_types_compatible_p(CUpti_BuffersCallbackRequestFunc, ds__cupti_request_fn),
               "the callback that gives a buffer");
_Static_assert(sizeof(CUpti_SubscriberHandle) == sizeof(void *) &&
                   sizeof(CUpti_ActivityKind) == sizeof(int) &&
                   sizeof(CUptiResult) == sizeof(int) &&
                   sizeof(CUpti_ExternalCorrelationKind) == sizeof(int),
               "sizes of arguments");
