/* cuda/call.h - scopes, errors and capture modes of CUDA calls.

   Wraps the calls into CUDA. ds__cuda_enter opens a scope with a current device, ds__cuda_leave
   closes it, and ds__cuda_on opens one for a stream. DS__RT checks a call of cudart, DS__DR_CODE
   calls an entry point of the driver library, and ds__cuda_fail reports the error. ds__cuda_relax
   and ds__cuda_query_begin change the thread's capture mode around calls that an open capture could
   forbid.

   Invariants: A successful ds__cuda_enter needs one ds__cuda_leave; a failed one needs none.
   ds__cuda_leave makes the former device current again. An error that was pending in the thread
   before the scope stays its last error. ds__cuda_enter marks the device as used.
   Locks: The successful path takes none. Codes 900 to 908 take the capture lock
   (ds__cuda_capture_failed) unless the thread holds it (ds__tls.capture_locked). ds__cuda_fail may
   invoke the user's log function under the locks of the caller.
   Threads: any. A scope belongs to the thread that opened it. The per-thread stream of another
   thread is refused (ds__cuda_mine), because CUDA's handle for it means the calling thread's
   stream. */
#ifndef DS__CUDA_CALL_H
#define DS__CUDA_CALL_H

#include "../base/capture_list.h"
#include "types.h"

/* The capture lock; ds__cuda_fail asks whether the thread holds it. */
static void ds__cuda_lock(void) {
    ds__lock_take(&ds__g.capture_lock);
    ds__tls.capture_locked++;
}

static void ds__cuda_unlock(void) {
    ds__tls.capture_locked--;
    ds__lock_give(&ds__g.capture_lock);
}

/* After these the device cannot be used by this process any more (driver_types.h says so at
   each). */
static int ds__cuda_is_sticky(int code) {
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226 /* cudaErrorContained */:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case 709 /* cudaErrorContextIsDestroyed */:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721 /* cudaErrorTensorMemoryLeak */:
    case 810 /* cudaErrorMpsClientTerminated */:
    case 911 /* cudaErrorExternalDevice */:
        return 1;
    default:
        return 0;
    }
}

static ds_result ds__cuda_map(int code) {
    if (ds__cuda_is_sticky(code))
        return DS_ERR_FAILED;
    switch (code) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidSource:
    case cudaErrorLaunchOutOfResources:
    case 218 /* invalid PTX */:
    case 222 /* PTX too new */:
    case cudaErrorSymbolNotFound:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
        return DS_ERR_INVALID_VALUE;
    case cudaErrorMemoryAllocation:
        return DS_ERR_OUT_OF_MEMORY;
    case cudaErrorNotPermitted:
        return DS_ERR_NOT_PERMITTED;
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
        return DS_ERR_UNSUPPORTED;
    case cudaErrorStreamCaptureUnsupported:
        return DS_ERR_CAPTURE_UNSUPPORTED;
    case cudaErrorStreamCaptureInvalidated:
        return DS_ERR_CAPTURE_INVALIDATED;
    case cudaErrorStreamCaptureMerge:
        return DS_ERR_CAPTURE_MERGE;
    case cudaErrorStreamCaptureUnmatched:
        return DS_ERR_CAPTURE_UNMATCHED;
    case cudaErrorStreamCaptureUnjoined:
        return DS_ERR_CAPTURE_UNJOINED;
    case cudaErrorStreamCaptureIsolation:
        return DS_ERR_CAPTURE_ISOLATION;
    case cudaErrorStreamCaptureImplicit:
        return DS_ERR_CAPTURE_IMPLICIT;
    case cudaErrorCapturedEvent:
        return DS_ERR_CAPTURED_EVENT;
    case cudaErrorStreamCaptureWrongThread:
        return DS_ERR_CAPTURE_WRONG_THREAD;
    case cudaErrorGraphExecUpdateFailure:
        return DS_ERR_GRAPH_UPDATE;
    default:
        return DS_ERR_DRIVER;
    }
}

/* The sentence of a failed call; since CUDA 10.1 the driver's codes are cudart's. */
__attribute__((cold, noinline)) static ds_result ds__cuda_fail(const ds__cuda_scope *scope,
                                                               const char *call, int code) {
    char where[24] = "";
    int device = scope->device;
    if (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread)
        return ds__cuda_capture_failed(scope, call, code);
    if (device >= 0)
        snprintf(where, sizeof where, " on cuda:%d", device);
    return ds__fail(
        ds__cuda_map(code), "%s%s returned %d (%s: %s)%s", call, where, code,
        cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code),
        ds__cuda_is_sticky(code)
            ? ": earlier work on the device failed, and only a new process can use it again"
            : "");
}

/* A call that needs no device. */
static inline void ds__cuda_anywhere(ds__cuda_scope *scope, int device) {
    scope->device = device;
    scope->pushed = 0;
    scope->capture = 0;
    scope->pending = cudaPeekAtLastError();
}

/* An error that is of no interest; it is taken from the thread unless one of the user's was
   there before. */
static inline void ds__cuda_ignore(const ds__cuda_scope *scope, cudaError_t code) {
    if (DS__UNLIKELY(code != cudaSuccess) && scope->pending == cudaSuccess)
        (void)cudaGetLastError();
}

/* The result of a cudart call. */
__attribute__((cold, noinline)) static ds_result ds__cuda_failed(const ds__cuda_scope *scope,
                                                                 cudaError_t code,
                                                                 const char *call) {
    if (scope->pending == cudaSuccess)
        (void)cudaGetLastError();
    return ds__cuda_fail(scope, call, (int)code);
}

static inline ds_result ds__cuda_check(const ds__cuda_scope *scope, cudaError_t code,
                                       const char *call) {
    return DS__LIKELY(code == cudaSuccess) ? DS_OK : ds__cuda_failed(scope, code, call);
}

#define DS__RT(scope, function, arguments) ds__cuda_check(&(scope), function arguments, #function)

/* Around calls that the user did not ask for and that an open capture, anyone's, may forbid the
   thread or be spoiled by: module loading, pinned buffers, peer access. Inside of a scope. */
static int ds__cuda_relax(const ds__cuda_scope *scope, enum cudaStreamCaptureMode *mode) {
    *mode = cudaStreamCaptureModeRelaxed;
    cudaError_t code = cudaThreadExchangeStreamCaptureMode(mode);
    ds__cuda_ignore(scope, code);
    return code == cudaSuccess;
}

static void ds__cuda_unrelax(const ds__cuda_scope *scope, int relaxed,
                             enum cudaStreamCaptureMode mode) {
    cudaError_t code = relaxed ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        ds__cuda_ignore(scope, code = cudaThreadExchangeStreamCaptureMode(&mode));
}

/* Around queries, which CUDA counts among the calls that are not safe in an open capture,
   although they touch nothing of it: observed by PyTorch's maintainers (pull requests 104487 and
   104555 there). What belongs to a capture is refused in every mode. Captures that were not
   begun here are not known. */
static inline int ds__cuda_query_begin(const ds__cuda_scope *scope,
                                       enum cudaStreamCaptureMode *mode) {
    return DS__UNLIKELY(ds__captures_open()) ? ds__cuda_relax(scope, mode) : 0;
}

static inline void ds__cuda_query_end(const ds__cuda_scope *scope, int relaxed,
                                      enum cudaStreamCaptureMode mode) {
    if (DS__UNLIKELY(relaxed))
        ds__cuda_unrelax(scope, relaxed, mode);
}

/* Gives the thread the context of its current device, which is the scope's: the driver's
   functions, unlike cudart's, do not do that themselves. */
__attribute__((cold, noinline)) static int ds__cuda_bind(const ds__cuda_scope *scope) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = cudaFree(NULL);
    ds__cuda_ignore(scope, code);
    ds__cuda_unrelax(scope, relaxed, mode);
    return code == cudaSuccess;
}

/* The code of a driver function; it leaves cudart's last error alone. */
#define DS__DR_CODE(scope, code, function, arguments)                             \
    do {                                                                          \
        code = ds__cuda.function arguments;                                       \
        if (DS__UNLIKELY(code == DS__CUDA_NO_CONTEXT) && ds__cuda_bind(&(scope))) \
            code = ds__cuda.function arguments;                                   \
    } while (0)

__attribute__((noinline)) static ds_result ds__cuda_switch(ds__cuda_scope *scope) {
    void *context = atomic_load_explicit(&ds__cuda.context[scope->device], memory_order_acquire);
    /* two threads that come here at once retain the same one twice, which does no harm */
    if (DS__UNLIKELY(!context)) {
        /* ordinals are those of cudart */
        int code = ds__cuda.cuDevicePrimaryCtxRetain(&context, scope->device);
        if (code)
            return ds__cuda_fail(scope, "cuDevicePrimaryCtxRetain", code);
        atomic_store_explicit(&ds__cuda.context[scope->device], context, memory_order_release);
    }
    int code = ds__cuda.cuCtxPushCurrent(context);
    if (DS__UNLIKELY(code))
        return ds__cuda_fail(scope, "cuCtxPushCurrent", code);
    scope->pushed = 1;
    return DS_OK;
}

/* Makes the device current until ds__cuda_leave; nothing to leave when it fails. */
static inline ds_result ds__cuda_enter(ds__cuda_scope *scope, int device) {
    int now = -1;
    ds__cuda_anywhere(scope, device);
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__cuda.used[device], memory_order_relaxed)))
        atomic_store(&ds__cuda.used[device], 1);
    /* no other can be current */
    if (ds__cuda.devices == 1)
        return DS_OK;
    cudaError_t code = cudaGetDevice(&now);
    if (DS__UNLIKELY(code != cudaSuccess))
        return ds__cuda_failed(scope, code, "cudaGetDevice");
    return DS__LIKELY(now == device) ? DS_OK : ds__cuda_switch(scope);
}

static inline void ds__cuda_leave(const ds__cuda_scope *scope) {
    void *context;
    if (DS__UNLIKELY(scope->pushed))
        (void)ds__cuda.cuCtxPopCurrent(&context);
}

/* For what must be done in any case: where the device cannot be made current it is tried
   without. */
static void ds__cuda_enter_or_not(ds__cuda_scope *scope, int device) {
    if (ds__cuda_enter(scope, device) < 0 && ds__cuda_enter(scope, device) < 0)
        ds__cuda_anywhere(scope, device);
}

static uint64_t ds__cuda_this_thread(void) {
    if (!ds__cuda_thread)
        ds__cuda_thread = atomic_fetch_add(&ds__cuda.threads, 1) + 1;
    return ds__cuda_thread;
}

/* CUDA's handle 2 means the stream of whoever calls, so it cannot stand for another thread's. */
static inline ds_result ds__cuda_mine(const ds__cuda_stream *s) {
    if (DS__LIKELY(s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread()))
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot use the per-thread stream of another thread");
}

/* For calls on a stream. */
static inline ds_result ds__cuda_on(ds__cuda_scope *scope, const ds__cuda_stream *s) {
    ds_result r = ds__cuda_mine(s);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cuda_enter(scope, s->device);
    if (DS__LIKELY(r == DS_OK))
        scope->capture = atomic_load_explicit(&s->capture, memory_order_relaxed);
    return r;
}

#endif
