/* cuda/call.h - scopes, errors and capture modes of CUDA calls.

   Wraps the calls into CUDA. ds__cuda_scope_begin opens a scope with a current device,
   ds__cuda_scope_end closes it, ds__cuda_on opens one for a stream, and ds__cuda_enter_any one on a
   device that has a context. DS__RT calls a function of cudart, DS__DR an entry point of the driver
   library; both report the error of a failed call.
   DS__RT_CODE and DS__DR_CODE give the code instead. ds__cuda_relax changes the
   thread's capture mode around calls that an open capture could forbid.

   Invariants: A successful ds__cuda_scope_begin needs one ds__cuda_scope_end; a failed one needs
   none. ds__cuda_scope_end makes the former context current again. An error that was pending in the
   thread before the scope stays its last error. ds__cuda_scope_begin marks the device as used.
   Locks: The successful path takes none. Codes 900 to 908 take the capture lock
   (ds__cuda_capture_failed) unless the thread holds it (ds__tls.capture_locked). ds__cuda_fail may
   invoke the user's log function under the locks of the caller.
   Threads: any. A scope belongs to the thread that opened it. The per-thread stream of another
   thread is refused (ds__cuda_mine), because CUDA's handle for it means the calling thread's
   stream. */
#ifndef DS__CUDA_CALL_H
#define DS__CUDA_CALL_H

#include "../base/capture_list.h"
#include "../base/pin.h"
#include "types.h"
#include "log.h"

/* Takes the capture lock, and counts that the thread holds it: ds__cuda_capture_failed takes it
   otherwise. */
static void ds__cuda_lock(void) {
    ds__mutex_lock(&ds__g.capture_lock);
    ds__tls.capture_locked++;
}

static void ds__cuda_unlock(void) {
    ds__tls.capture_locked--;
    ds__mutex_unlock(&ds__g.capture_lock);
}

/* CUDA's codes with devstream's results. After a code of DS_ERR_FAILED, this process cannot use the
   device any more (driver_types.h, at each of these codes). */
static const struct {
    int code;
    ds_result result;
} ds__cuda_codes[] = { { cudaErrorECCUncorrectable, DS_ERR_FAILED },
                       { cudaErrorNvlinkUncorrectable, DS_ERR_FAILED },
                       { 226 /* cudaErrorContained */, DS_ERR_FAILED },
                       { cudaErrorIllegalAddress, DS_ERR_FAILED },
                       { cudaErrorLaunchTimeout, DS_ERR_FAILED },
                       { 709 /* cudaErrorContextIsDestroyed */, DS_ERR_FAILED },
                       { cudaErrorAssert, DS_ERR_FAILED },
                       { cudaErrorHardwareStackError, DS_ERR_FAILED },
                       { cudaErrorIllegalInstruction, DS_ERR_FAILED },
                       { cudaErrorMisalignedAddress, DS_ERR_FAILED },
                       { cudaErrorInvalidAddressSpace, DS_ERR_FAILED },
                       { cudaErrorInvalidPc, DS_ERR_FAILED },
                       { cudaErrorLaunchFailure, DS_ERR_FAILED },
                       { 721 /* cudaErrorTensorMemoryLeak */, DS_ERR_FAILED },
                       { 810 /* cudaErrorMpsClientTerminated */, DS_ERR_FAILED },
                       { 911 /* cudaErrorExternalDevice */, DS_ERR_FAILED },
                       { cudaErrorInvalidValue, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidConfiguration, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidPitchValue, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidKernelImage, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidSource, DS_ERR_INVALID_VALUE },
                       { cudaErrorLaunchOutOfResources, DS_ERR_INVALID_VALUE },
                       { cudaErrorCooperativeLaunchTooLarge, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidClusterSize, DS_ERR_INVALID_VALUE },
                       { 218 /* invalid PTX */, DS_ERR_INVALID_VALUE },
                       { 222 /* PTX too new */, DS_ERR_INVALID_VALUE },
                       { cudaErrorSymbolNotFound, DS_ERR_INVALID_VALUE },
                       { cudaErrorInvalidDeviceFunction, DS_ERR_INVALID_VALUE },
                       { cudaErrorHostMemoryAlreadyRegistered, DS_ERR_INVALID_VALUE },
                       { cudaErrorHostMemoryNotRegistered, DS_ERR_INVALID_VALUE },
                       { cudaErrorMemoryAllocation, DS_ERR_OUT_OF_MEMORY },
                       { cudaErrorNotPermitted, DS_ERR_NOT_PERMITTED },
                       { cudaErrorNotSupported, DS_ERR_UNSUPPORTED },
                       { cudaErrorNoKernelImageForDevice, DS_ERR_UNSUPPORTED },
                       { cudaErrorStreamCaptureUnsupported, DS_ERR_CAPTURE_UNSUPPORTED },
                       { cudaErrorStreamCaptureInvalidated, DS_ERR_CAPTURE_INVALIDATED },
                       { cudaErrorStreamCaptureMerge, DS_ERR_CAPTURE_MERGE },
                       { cudaErrorStreamCaptureUnmatched, DS_ERR_CAPTURE_UNMATCHED },
                       { cudaErrorStreamCaptureUnjoined, DS_ERR_CAPTURE_UNJOINED },
                       { cudaErrorStreamCaptureIsolation, DS_ERR_CAPTURE_ISOLATION },
                       { cudaErrorStreamCaptureImplicit, DS_ERR_CAPTURE_IMPLICIT },
                       { cudaErrorCapturedEvent, DS_ERR_CAPTURED_EVENT },
                       { cudaErrorStreamCaptureWrongThread, DS_ERR_CAPTURE_WRONG_THREAD },
                       { cudaErrorGraphExecUpdateFailure, DS_ERR_GRAPH_UPDATE } };

/* Returns the result for a code; DS_ERR_DRIVER for codes that are not in the table. */
static ds_result ds__cuda_map(int code) {
    for (size_t i = 0; i < sizeof ds__cuda_codes / sizeof ds__cuda_codes[0]; i++)
        if (ds__cuda_codes[i].code == code)
            return ds__cuda_codes[i].result;
    return DS_ERR_DRIVER;
}

/* Returns 1 if this process cannot use the device any more after the code. */
static int ds__cuda_is_sticky(int code) {
    return ds__cuda_map(code) == DS_ERR_FAILED;
}

/* Reports the error of a failed call. Since CUDA 10.1, the codes of the driver library are those of
   cudart. Codes of captures take the capture lock, unless the thread holds it. */
__attribute__((cold, noinline)) static ds_result ds__cuda_fail(const ds__cuda_scope *scope,
                                                               const char *call, int code) {
    char where[24] = "";
    int device = scope->device;
    if (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread)
        return ds__cuda_capture_failed(scope, call, code);
    if (device >= 0)
        snprintf(where, sizeof where, " on cuda:%d", device);
    return ds__cuda_append_log(ds__fail(
        ds__cuda_map(code), "%s%s returned %d (%s: %s)%s", call, where, code,
        DS__CUDART(cudaGetErrorName)((cudaError_t)code),
        DS__CUDART(cudaGetErrorString)((cudaError_t)code),
        ds__cuda_is_sticky(code)
            ? ": earlier work on the device failed, and only a new process can use it again"
            : ""));
}

/* Opens a scope for calls that need no current device. */
static inline void ds__cuda_anywhere(ds__cuda_scope *scope, int device) {
    scope->device = device;
    scope->pushed = 0;
    scope->capture = 0;
    scope->pending = DS__CUDART(cudaPeekAtLastError)();
}

/* Takes the error of a call from the thread, unless an error was pending before the scope. Returns
   the code. */
static inline cudaError_t ds__cuda_clear(const ds__cuda_scope *scope, cudaError_t code) {
    if (DS__UNLIKELY(code != cudaSuccess) && scope->pending == cudaSuccess)
        (void)DS__CUDART(cudaGetLastError)();
    return code;
}

/* A function of the driver library that older drivers lack. */
typedef struct ds__cuda_optional {
    const char *name;
    unsigned version; /* its form is the one of this version of CUDA */
    void *out;        /* the pointer to the function */
} ds__cuda_optional;

/* Finds functions in their order, up to the first one that is not there. Returns 1 if all are. */
static int ds__cuda_find_optional(const ds__cuda_scope *scope, const ds__cuda_optional *list,
                                  size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *found = NULL;
        (void)ds__cuda_clear(scope, ds__cudart_entry_point(list[i].name, list[i].version, &found));
        if (!found)
            return 0;
        memcpy(list[i].out, &found, sizeof found);
    }
    return 1;
}

/* Clears and reports the error of a cudart call. */
__attribute__((cold, noinline)) static ds_result ds__cuda_failed(const ds__cuda_scope *scope,
                                                                 cudaError_t code,
                                                                 const char *call) {
    if (scope->pending == cudaSuccess)
        (void)DS__CUDART(cudaGetLastError)();
    return ds__cuda_fail(scope, call, (int)code);
}

static inline ds_result ds__cuda_check(const ds__cuda_scope *scope, cudaError_t code,
                                       const char *call) {
    return DS__LIKELY(code == cudaSuccess) ? DS_OK : ds__cuda_failed(scope, code, call);
}

/* Reports the code of a call on an event, which was cleared. An event of a capture that is invalid
   or has ended is an invalid value for CUDA, until it is recorded again (docs/gpu, P7 and P25).
   capture: number of the capture in which the event was recorded last, or 0. */
static ds_result ds__cuda_event_check(ds__cuda_scope *scope, cudaError_t code, const char *call,
                                      uint64_t capture) {
    if (DS__LIKELY(code == cudaSuccess))
        return DS_OK;
    if (!scope->capture)
        scope->capture = capture;
    return code == cudaErrorInvalidValue && capture
               ? ds__cuda_capture_failed(scope, call, (int)code)
               : ds__cuda_failed(scope, code, call);
}

/* Every call of cudart in a scope is one of these two. DS__RT returns a result; a failure is
   cleared, mapped and reported with the function and the device of the scope. DS__RT_CODE clears
   the error and returns the code: for clean-up, and for calls whose failure has a meaning. */
#define DS__RT(scope, function, arguments) \
    ds__cuda_check(&(scope), DS__CUDART(function) arguments, #function)
#define DS__RT_CODE(scope, function, arguments) \
    ds__cuda_clear(&(scope), DS__CUDART(function) arguments)

/* Relaxes the thread's capture mode around calls that an open capture of any thread could forbid or
   be invalidated by: queries, module loading, pinned buffers, peer access. Captures that other
   libraries have begun are not known, so this is done without one, too: PyTorch captures in global
   mode, and does the same around its queries (pytorch#104487, #104555). A query of a stream that
   captures is refused in every mode. Returns 1 if the mode was changed; *mode is the former one.
   Inside of a scope. */
static int ds__cuda_relax(const ds__cuda_scope *scope, enum cudaStreamCaptureMode *mode) {
    *mode = cudaStreamCaptureModeRelaxed;
    return DS__RT_CODE(*scope, cudaThreadExchangeStreamCaptureMode, (mode)) == cudaSuccess;
}

/* Restores the mode of ds__cuda_relax, which has returned `relaxed`. */
static void ds__cuda_unrelax(const ds__cuda_scope *scope, int relaxed,
                             enum cudaStreamCaptureMode mode) {
    cudaError_t code = relaxed ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        code = DS__RT_CODE(*scope, cudaThreadExchangeStreamCaptureMode, (&mode));
}

/* Gives the thread the context of its current device, which is that of the scope. The functions of
   the driver library, unlike those of cudart, do not do this. Returns 0 if it fails. */
__attribute__((cold, noinline)) static int ds__cuda_bind(const ds__cuda_scope *scope) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaFree, (NULL));
    ds__cuda_unrelax(scope, relaxed, mode);
    return code == cudaSuccess;
}

/* Every call of the driver library is one of these two, except for the contexts of a scope and a
   module's image. DS__DR sets `result` and reports a failure, like DS__RT; DS__DR_CODE sets `code`.
   The library leaves the last error of cudart as it is. */
#define DS__DR_CODE(scope, code, function, arguments)                             \
    do {                                                                          \
        code = ds__cuda.function arguments;                                       \
        if (DS__UNLIKELY(code == DS__CUDA_NO_CONTEXT) && ds__cuda_bind(&(scope))) \
            code = ds__cuda.function arguments;                                   \
    } while (0)
#define DS__DR(scope, result, function, arguments)                                           \
    do {                                                                                     \
        int code_;                                                                           \
        DS__DR_CODE(scope, code_, function, arguments);                                      \
        result = DS__LIKELY(code_ == 0) ? DS_OK : ds__cuda_fail(&(scope), #function, code_); \
    } while (0)

/* Returns the result of a query by cuStreamQuery or cuEventQuery with that code. */
static inline ds_result ds__cuda_query_result(const ds__cuda_scope *scope, int code,
                                              const char *call) {
    if (DS__LIKELY(code == 0))
        return DS_OK;
    return code == DS__CUDA_NOT_READY ? DS_NOT_READY : ds__cuda_fail(scope, call, code);
}

/* Gives the primary context of the scope's device, which is retained for good. */
static ds_result ds__cuda_context(const ds__cuda_scope *scope, void **out) {
    *out = atomic_load_explicit(&ds__cuda.context[scope->device], memory_order_acquire);
    if (DS__LIKELY(*out))
        return DS_OK;
    /* two threads at once may retain the same context twice, which is harmless */
    int code = ds__cuda.cuDevicePrimaryCtxRetain(out, ds__cuda.handle[scope->device]);
    if (code)
        return ds__cuda_fail(scope, "cuDevicePrimaryCtxRetain", code);
    atomic_store_explicit(&ds__cuda.context[scope->device], *out, memory_order_release);
    return DS_OK;
}

/* Tells CUDA the capture mode that the thread owes. Inside of a scope. */
__attribute__((cold, noinline)) static ds_result ds__cuda_mode_tell(const ds__cuda_scope *scope) {
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)(ds__cuda_mode_owed - 1);
    ds_result r = DS__RT(*scope, cudaThreadExchangeStreamCaptureMode, (&mode));
    if (r == DS_OK)
        ds__cuda_mode_owed = 0;
    return r;
}

/* Makes the scope's device current. now: the thread's current context. Without a context, the
   thread gets that of its current device by the next call of cudart. */
static ds_result ds__cuda_make_current(ds__cuda_scope *scope, const void *now) {
    void *context;
    int device = -1;
    if (!now) {
        ds_result r = DS__RT(*scope, cudaGetDevice, (&device));
        if (r < 0 || device == scope->device)
            return r;
    }
    ds_result r = ds__cuda_context(scope, &context);
    if (r < 0 || context == now)
        return r;
    int code = ds__cuda.cuCtxPushCurrent(context);
    if (DS__UNLIKELY(code))
        return ds__cuda_fail(scope, "cuCtxPushCurrent", code);
    scope->pushed = 1;
    return DS_OK;
}

static inline void ds__cuda_scope_end(const ds__cuda_scope *scope);

/* Opens a scope whose device may not be current. */
__attribute__((noinline)) static ds_result ds__cuda_switch(ds__cuda_scope *scope, const void *now,
                                                           int code) {
    if (code)
        return ds__cuda_fail(scope, "cuCtxGetCurrent", code);
    ds_result r = ds__cuda_make_current(scope, now);
    if (r < 0 || DS__LIKELY(!ds__cuda_mode_owed))
        return r;
    r = ds__cuda_mode_tell(scope);
    if (r < 0)
        ds__cuda_scope_end(scope);
    return r;
}

/* Opens a scope with the device current until ds__cuda_scope_end. A failed call needs no
   ds__cuda_scope_end. The current context is compared and not only the current device, because a
   program may have made another context of the device current. */
static inline ds_result ds__cuda_scope_begin(ds__cuda_scope *scope, int device) {
    void *now = NULL;
    ds__cuda_anywhere(scope, device);
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__cuda.used[device], memory_order_relaxed)))
        atomic_store(&ds__cuda.used[device], 1);
    int code = ds__cuda.cuCtxGetCurrent(&now);
    const void *primary = atomic_load_explicit(&ds__cuda.context[device], memory_order_relaxed);
    if (DS__LIKELY(now && now == primary && !code && !ds__cuda_mode_owed))
        return DS_OK;
    return ds__cuda_switch(scope, now, code);
}

/* Closes a scope: the former device is current again. */
static inline void ds__cuda_scope_end(const ds__cuda_scope *scope) {
    void *context;
    if (DS__UNLIKELY(scope->pushed))
        (void)ds__cuda.cuCtxPopCurrent(&context);
}

/* Opens a scope for clean-up, which proceeds even if the device cannot be made current. */
static void ds__cuda_enter_or_not(ds__cuda_scope *scope, int device) {
    if (ds__cuda_scope_begin(scope, device) < 0 && ds__cuda_scope_begin(scope, device) < 0)
        ds__cuda_anywhere(scope, device);
}

/* Returns 1 if the device has its primary context. Makes none. */
static int ds__cuda_has_context(int device) {
    unsigned flags = 0;
    int active = 0;
    return atomic_load_explicit(&ds__cuda.context[device], memory_order_relaxed) ||
           (ds__cuda.cuDevicePrimaryCtxGetState(ds__cuda.handle[device], &flags, &active) == 0 &&
            active);
}

/* Returns a device that has its primary context, the thread's current device first. Negative: no
   device has one, so the process has no memory, stream or capture of CUDA. */
static int ds__cuda_active_device(void) {
    ds_device current = ds__thread_device();
    int first = current.type == DS_DEVICE_CUDA ? current.index : 0;
    if (ds__cuda_has_context(first))
        return first;
    for (int i = 0; i < ds__cuda.devices; i++)
        if (i != first && ds__cuda_has_context(i))
            return i;
    return -1;
}

/* Opens a scope for a call that needs no particular device, on one that has a context: another one
   would take memory. Without any context, the thread's current device gets one, else the first. */
static ds_result ds__cuda_enter_any(ds__cuda_scope *scope) {
    int device = ds__cuda_active_device();
    ds_device current = ds__thread_device();
    if (device < 0)
        device = current.type == DS_DEVICE_CUDA ? current.index : 0;
    return ds__cuda_scope_begin(scope, device);
}

/* Opens such a scope for clean-up, which proceeds even without a context. */
static void ds__cuda_enter_any_or_not(ds__cuda_scope *scope) {
    if (ds__cuda_enter_any(scope) < 0 && ds__cuda_enter_any(scope) < 0)
        ds__cuda_anywhere(scope, -1);
}

/* Returns the number of the calling thread. */
static uint64_t ds__cuda_this_thread(void) {
    if (!ds__cuda_thread)
        ds__cuda_thread = atomic_fetch_add(&ds__cuda.threads, 1) + 1;
    return ds__cuda_thread;
}

/* Refuses the per-thread stream of another thread: CUDA's handle 2 means the stream of the calling
   thread. */
static inline ds_result ds__cuda_mine(const ds__cuda_stream *s) {
    if (DS__LIKELY(s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread()))
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot use the per-thread stream of another thread");
}

/* Opens a scope for calls on a stream; an error will name the capture of the stream. */
static inline ds_result ds__cuda_on(ds__cuda_scope *scope, const ds__cuda_stream *s) {
    ds_result r = ds__cuda_mine(s);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cuda_scope_begin(scope, s->device);
    if (DS__LIKELY(r == DS_OK))
        scope->capture = atomic_load_explicit(&s->capture, memory_order_relaxed);
    return r;
}

#endif
