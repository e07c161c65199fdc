/* api/result.h - results and errors.

   Declares the results of all calls (DS_RESULTS), their names and texts, the error sentence of a
   thread, and the call site (ds_site).

   Threads: any. ds_error_get_last returns the calling thread's own sentence. */
#ifndef DS__API_RESULT_H
#define DS__API_RESULT_H

#include "base.h"

/* ---- results --------------------------------------------------------------------------------- */

/** X(name, value, meaning and remedy) */
/* clang-format off */
#define DS_RESULTS(X) \
    X(DS_OK, 0, "success") \
    X(DS_NOT_READY, 1, "work is pending; query again later or synchronize") \
    X(DS_ERR_INVALID_VALUE, -1, \
      "an argument is invalid; the call had no effect; ds_error_get_last() names the argument") \
    X(DS_ERR_INVALID_HANDLE, -2, "the handle was never created, or its object was destroyed") \
    X(DS_ERR_INVALID_DEVICE, -3, "the text or struct does not name a device") \
    X(DS_ERR_NO_DEVICE, -4, "no device of this type is available; see ds_backend_format") \
    X(DS_ERR_DEVICE_RANGE, -5, "the device index is out of range; see ds_device_get_count") \
    X(DS_ERR_DEVICE_MISMATCH, -6, "the objects belong to different devices") \
    X(DS_ERR_OUT_OF_MEMORY, -7, "memory is exhausted; free memory and try again") \
    X(DS_ERR_LIMIT_EXCEEDED, -8, \
      "the device's memory limit would be exceeded; raise the limit or free memory") \
    X(DS_ERR_UNSUPPORTED, -9, "this driver or version does not support the call") \
    X(DS_ERR_NOT_PERMITTED, -10, \
      "not allowed inside a host function, callback, destructor or kernel") \
    X(DS_ERR_ILLEGAL_STATE, -11, "the call is not allowed in the present state of the object") \
    X(DS_ERR_NOT_RECORDED, -12, "the event was never recorded") \
    X(DS_ERR_NO_TIMING, -13, "the event was created without DS_EVENT_TIMING") \
    X(DS_ERR_FAILED, -14, \
      "an earlier operation on the device or stream failed; ds_error_get_last() names the first " \
      "cause") \
    X(DS_ERR_FORKED, -15, \
      "devstream was used before fork; the child process must not call devstream") \
    X(DS_ERR_CROSS_DRIVER, -16, "objects of different drivers cannot be used together") \
    X(DS_ERR_DRIVER, -17, \
      "a call of the vendor's library failed; ds_error_get_last() has its code") \
    X(DS_ERR_SYSTEM, -18, "a system call failed; ds_error_get_last() has the reason") \
    X(DS_ERR_CAPTURE_UNSUPPORTED, -19, \
      "not allowed while a stream captures; ds_error_get_last() names the capture and the rule") \
    X(DS_ERR_CAPTURE_INVALIDATED, -20, \
      "an earlier call, named by ds_error_get_last(), invalidated the capture; end the capture " \
      "and begin again") \
    X(DS_ERR_CAPTURE_MERGE, -21, "the call would merge two captures") \
    X(DS_ERR_CAPTURE_UNMATCHED, -22, \
      "the capture was begun on another stream; end the capture on that stream") \
    X(DS_ERR_CAPTURE_UNJOINED, -23, \
      "a stream forked into the capture was not joined before the end of the capture") \
    X(DS_ERR_CAPTURE_ISOLATION, -24, "captured work would depend on work outside the capture") \
    X(DS_ERR_CAPTURE_IMPLICIT, -25, \
      "the legacy stream cannot be used while a blocking stream of its device captures") \
    X(DS_ERR_CAPTURED_EVENT, -26, \
      "the event was recorded in a capture, which enqueues no work; record it again") \
    X(DS_ERR_CAPTURE_WRONG_THREAD, -27, "only the thread that began the capture may end it") \
    X(DS_ERR_GRAPH_UPDATE, -28, \
      "the executable graph does not support the changes and was not updated") \
    X(DS_ERR_PEER_DIED, -29, "another process, on which the operation depends, has ended") \
    X(DS_ERR_WOULD_SYNCHRONIZE, -30, \
      "the call would make the host wait for a device; the sync debug mode does not allow it") \
    X(DS_ERR_TIMEOUT, -31, \
      "an operation of a process group was not complete in time; compare the flight recorders of " \
      "the ranks") \
    X(DS_ERR_ABORTED, -32, "the process group was aborted; ds_error_get_last() has the reason") \
    X(DS_ERR_MISMATCH, -33, \
      "the ranks of a process group called different operations; ds_error_get_last() names them")

/* clang-format on */

/** Result of every fallible call: 0 is success, a positive value is a status without an error, a
    negative value is an error. */
typedef enum ds_result {

#define DS_RESULT_ENUM_(name, value, text) name = value,
    DS_RESULTS(DS_RESULT_ENUM_)
#undef DS_RESULT_ENUM_
        DS_RESULT_FORCE_INT_ = 0x7fffffff
} ds_result;

/** Call site of a verb. Each verb reads and clears the thread's call site. */
typedef struct ds_site {
    const char *file; /**< NULL: unknown */
    int line;         /**< from 1 */
} ds_site;

/** Returns the name of a result ("DS_ERR_INVALID_VALUE"); never NULL. Callable anywhere. */
DSDEF const char *ds_result_get_name(ds_result result);
/** Returns one sentence with the meaning of a result and its remedy; never NULL. Callable
    anywhere. */
DSDEF const char *ds_result_get_text(ds_result result);
/** Returns the sentence of the calling thread's last negative result: call site, function, object,
    and cause. Returns "" if no call has failed. Valid until the thread's next failing call.
    Callable anywhere. */
DSDEF const char *ds_error_get_last(void);

#endif
