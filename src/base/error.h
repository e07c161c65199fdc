/* base/error.h - error codes, error sentences and checks of arguments.

   Reports errors: ds__fail stores one sentence for the calling thread, with the call site in
   front, and returns the code; ds__fail_append appends to that sentence. DS__REQUIRE checks an
   argument. The public functions ds_result_get_name,
   ds_result_get_text and ds_error_get_last are here, too.

   Invariants: the sentence belongs to its thread and is always terminated. While `mute` is set,
   errors go to a second buffer (`aside`) and not to the log. ds__fail passes the sentence to the
   log at once, so text of ds__fail_append does not appear there.
   Locks: none. ds__fail invokes the user's log function under all locks that the caller holds;
   the function must not call devstream.
   Threads: any, the library's own included. */
#ifndef DS__BASE_ERROR_H
#define DS__BASE_ERROR_H

#include "../api/init.h"
#include "../os/os.h"
#include "log.h"
#include "thread_block.h"

DSDEF const char *(ds_result_get_name)(ds_result result) {
    switch (result) {
#define DS__CASE(name, value, text) \
    case name:                      \
        return #name;
        DS_RESULTS(DS__CASE)
#undef DS__CASE
    case DS_RESULT_FORCE_INT_:
        break;
    }
    return "DS_UNKNOWN_RESULT";
}

DSDEF const char *(ds_result_get_text)(ds_result result) {
    switch (result) {
#define DS__CASE(name, value, text) \
    case name:                      \
        return text;
        DS_RESULTS(DS__CASE)
#undef DS__CASE
    case DS_RESULT_FORCE_INT_:
        break;
    }
    return "unknown result";
}

DSDEF const char *(ds_error_get_last)(void) {
    return ds__tls.error;
}

/* The last error of a thread, saved while other calls may report errors. */
typedef struct ds__kept_error {
    ds_result code;
    char text[sizeof ds__tls.error];
} ds__kept_error;

DS__SEAM static void ds__error_save(ds__kept_error *to) {
    to->code = ds__tls.code;
    memcpy(to->text, ds__tls.error, sizeof to->text);
}

DS__SEAM static void ds__error_restore(const ds__kept_error *from) {
    ds__tls.code = from->code;
    memcpy(ds__tls.error, from->text, sizeof from->text);
}

/* Returns the length of the text in a buffer of `size` bytes; printed: the result of snprintf. */
DS__SEAM static size_t ds__text_length(int printed, size_t size) {
    if (printed < 0)
        return 0;
    return (size_t)printed < size ? (size_t)printed : size - 1;
}

/* Stores the thread's error sentence, "file:line: ds_copy: ...", passes it to the log, and returns
   the code. */
__attribute__((format(DS__PRINTF, 2, 3), cold, noinline)) static ds_result ds__fail(
    ds_result code, const char *format, ...) {
    ds__tls_block *t = &ds__tls;
    char *to = t->mute ? t->aside : t->error;
    size_t size = sizeof t->error;
    int w;
    if (t->site.file)
        w = snprintf(to, size, "%s:%d: %s: ", t->site.file, t->site.line, t->fn);
    else
        w = snprintf(to, size, "%s: ", t->fn ? t->fn : "devstream");
    size_t n = ds__text_length(w, size);
    va_list args;
    va_start(args, format);
    vsnprintf(to + n, size - n, format, args);
    va_end(args);
    t->code = code;
    if (!t->mute)
        ds__log_write(DS_LOG_ERROR, code, t->error);
    return code;
}

#define DS__REQUIRE(condition, ...)                             \
    do {                                                        \
        if (DS__UNLIKELY(!(condition)))                         \
            return ds__fail(DS_ERR_INVALID_VALUE, __VA_ARGS__); \
    } while (0)

/* Returns 1 if the reserved words of a caller's struct are 0. */
static inline int ds__reserved_clear(const void *words, size_t size) {
    unsigned char any = 0;
    for (size_t i = 0; i < size; i++)
        any |= ((const unsigned char *)words)[i];
    return !any;
}

/* Refuses a struct with a member that this version does not have, instead of ignoring the
   member. */
#define DS__REQUIRE_RESERVED(name, from)                                                  \
    DS__REQUIRE(ds__reserved_clear((from)->reserved, sizeof(from)->reserved),             \
                name ".reserved is not 0: the struct was not zeroed, or has a member of " \
                     "a later version than %d.%d.%d",                                     \
                DEVSTREAM_VERSION_MAJOR, DEVSTREAM_VERSION_MINOR, DEVSTREAM_VERSION_PATCH)

/* Appends to the sentence of the thread's last error; returns r. */
__attribute__((format(DS__PRINTF, 2, 3), cold, noinline)) DS__SEAM static ds_result ds__fail_append(
    ds_result r, const char *format, ...) {
    ds__tls_block *t = &ds__tls;
    char *to = t->mute ? t->aside : t->error;
    size_t n = strlen(to);
    va_list args;
    va_start(args, format);
    vsnprintf(to + n, sizeof t->error - n, format, args);
    va_end(args);
    return r;
}

/* If r is an error and the object has a label, appends the label to the sentence. Returns r. */
DS__SEAM static ds_result ds__name_object(ds_result r, const char *what, const char *label) {
    return r >= 0 || !label ? r : ds__fail_append(r, " (%s \"%s\")", what, label);
}

#endif
