/* api/result.h - results and errors.

   Declares the results of all calls (DS_RESULTS), their names and texts, the error sentence of a
   thread, and the call site (ds_site).

   Threads: any. ds_error_get_last returns the calling thread's own sentence. */
#ifndef DS__API_RESULT_H
#define DS__API_RESULT_H

#include "base.h"

/* ---- results --------------------------------------------------------------------------------- */

/** X(name, value, what it means and what to do next) */
/* clang-format off */
#define DS_RESULTS(X) \
    X(DS_OK, 0, "success") \
    X(DS_NOT_READY, 1, "the work is still pending; ask again later or synchronize") \
    X(DS_ERR_INVALID_VALUE, -1, "an argument is wrong; the call has done nothing") \
    X(DS_ERR_INVALID_HANDLE, -2, "the handle was never valid or its object was destroyed") \
    X(DS_ERR_INVALID_DEVICE, -3, "the text or struct does not name a device") \
    X(DS_ERR_NO_DEVICE, -4, "no such device is available here; see ds_backend_format") \
    X(DS_ERR_DEVICE_RANGE, -5, "the device index is outside of the available range") \
    X(DS_ERR_DEVICE_MISMATCH, -6, "the objects belong to different devices") \
    X(DS_ERR_OUT_OF_MEMORY, -7, "memory is exhausted; free some and try again") \
    X(DS_ERR_LIMIT_EXCEEDED, -8, \
      "the device's memory limit would be exceeded; raise the limit or free memory") \
    X(DS_ERR_UNSUPPORTED, -9, "this driver or version does not offer that") \
    X(DS_ERR_NOT_PERMITTED, -10, \
      "not allowed inside a host function, callback, destructor or kernel") \
    X(DS_ERR_ILLEGAL_STATE, -11, "the call does not fit the present state") \
    X(DS_ERR_NOT_RECORDED, -12, "the event was never recorded") \
    X(DS_ERR_NO_TIMING, -13, "the event was created without DS_EVENT_TIMING") \
    X(DS_ERR_FAILED, -14, \
      "an earlier operation on the device or stream failed; the text names the first cause") \
    X(DS_ERR_FORKED, -15, "devstream was in use before fork; the child must not use it") \
    X(DS_ERR_CROSS_DRIVER, -16, "objects of different drivers cannot be used together") \
    X(DS_ERR_DRIVER, -17, "a call of the vendor's library failed; the text has its code") \
    X(DS_ERR_SYSTEM, -18, "the operating system refused something; the text has the reason") \
    X(DS_ERR_CAPTURE_UNSUPPORTED, -19, \
      "not allowed while a stream captures; the text names the capture and the rule") \
    X(DS_ERR_CAPTURE_INVALIDATED, -20, \
      "the capture was invalidated by an earlier call, which the text names; end it and begin " \
      "again") \
    X(DS_ERR_CAPTURE_MERGE, -21, "the call would have merged two captures") \
    X(DS_ERR_CAPTURE_UNMATCHED, -22, \
      "the capture was not begun on this stream; end it where it was begun") \
    X(DS_ERR_CAPTURE_UNJOINED, -23, \
      "a stream that was forked into the capture was not joined before its end") \
    X(DS_ERR_CAPTURE_ISOLATION, -24, "captured work would depend on work outside of the capture") \
    X(DS_ERR_CAPTURE_IMPLICIT, -25, \
      "the legacy stream cannot be used while a blocking stream of its device captures") \
    X(DS_ERR_CAPTURED_EVENT, -26, "the event was recorded in a capture, where nothing runs") \
    X(DS_ERR_CAPTURE_WRONG_THREAD, -27, "only the thread that began the capture may end it") \
    X(DS_ERR_GRAPH_UPDATE, -28, \
      "the executable cannot take over the changed graph; it is as before") \
    X(DS_ERR_PEER_DIED, -29, "the process that was to complete this has died") \
    X(DS_ERR_WOULD_SYNCHRONIZE, -30, \
      "the call would make the host wait for a device, which the sync debug mode refuses")

/* clang-format on */

/** What every fallible call returns: 0 is success, positive is not an error, negative is one. */
typedef enum ds_result {

#define DS_RESULT_ENUM_(name, value, text) name = value,
    DS_RESULTS(DS_RESULT_ENUM_)
#undef DS_RESULT_ENUM_
        DS_RESULT_FORCE_INT_ = 0x7fffffff
} ds_result;

/** Where a verb was called; each verb takes and clears it. */
typedef struct ds_site {
    const char *file; /**< NULL: not known */
    int line;         /**< from 1 */
} ds_site;

/** Name of a result ("DS_ERR_INVALID_VALUE"); never NULL. Callable anywhere. */
DSDEF const char *ds_result_get_name(ds_result result);
/** One sentence on what a result means; never NULL. Callable anywhere. */
DSDEF const char *ds_result_get_text(ds_result result);
/** The sentence of the last negative result of the calling thread: where it was called from,
    which function, which object, what was wrong. "" when there was none. Valid until the
    thread's next failing call. Callable anywhere. */
DSDEF const char *ds_error_get_last(void);

#endif
