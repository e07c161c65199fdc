/* api/check.h - one handler for failed calls.

   Declares DS_CHECK, which passes a negative result to a handler, the handler of the process, and
   the macro that a program defines to act in place of it.

   Threads: any. The handler runs on the thread of the check. */
#ifndef DS__API_CHECK_H
#define DS__API_CHECK_H

#include "result.h"

/* ---- checks ---------------------------------------------------------------------------------- */

/** Argument of a check handler. The strings are valid until the thread's next failing call. */
typedef struct ds_check_item {
    ds_result result;  /**< the negative result */
    const char *text;  /**< the expression */
    const char *file;  /**< file of the check */
    int line;          /**< line of the check */
    const char *error; /**< ds_error_get_last() of the thread */
} ds_check_item;

/** Receives the failed checks of DS_CHECK. May call devstream if the thread of the check may. */
typedef void (*ds_check_fn)(const ds_check_item *item, void *user);

/** Sets the handler of the process for failed checks. NULL restores the default handler, which
    writes one line to standard error and calls exit(1). A handler may end the thread or the
    process; if it returns, DS_CHECK has the negative result as its value. ds_shutdown does not
    change the handler. A check that has begun on another thread may still use the former handler.
    Callable anywhere; does not initialise devstream. */
DSDEF void ds_check_set_handler(ds_check_fn fn, void *user);
/** Invokes the handler of the process. Used by DS_CHECK. Callable anywhere. */
DSDEF void ds_check_report(ds_result result, const char *text, const char *file, int line);

/** Acts on a failed check of DS_CHECK. A program may define its own before the include, or undefine
    and define it anew, with a statement such as `goto fail`, `return result` or `throw`.
    Parameters: the result, and the expression, file and line of the check. */
#ifndef DS_CHECK_HANDLER
#define DS_CHECK_HANDLER(result, text, file, line) ds_check_report(result, text, file, line)
#endif

/** Evaluates a ds_result expression once and has its value. A negative result is first passed to
    DS_CHECK_HANDLER, by default to the handler of ds_check_set_handler. For use inside of
    functions. */
#if DS__MICROSOFT
#define DS_CHECK(...) ds_check_result_((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

/* Without expressions that contain statements, a check always uses the handler of the process. */
static inline ds_result ds_check_result_(ds_result result, const char *text, const char *file,
                                         int line) {
    if (result < 0)
        ds_check_report(result, text, file, line);
    return result;
}
#else
#define DS_CHECK(...)                                                      \
    __extension__({                                                        \
        ds_result ds_check_ = (__VA_ARGS__);                               \
        if (ds_check_ < 0) {                                               \
            DS_CHECK_HANDLER(ds_check_, #__VA_ARGS__, __FILE__, __LINE__); \
        }                                                                  \
        ds_check_;                                                         \
    })
#endif

#endif
