/* core/sync_debug.h - sync debug mode.

   Finds calls that make the host wait for a device. A public function asks ds__sync_watched
   before it waits and reports the wait with ds__sync_tell. That call writes a warning or refuses
   the wait, depending on the mode.

   Invariants: the mode belongs to the process, and each start reads it anew from
   DEVSTREAM_SYNC_DEBUG. A call that is refused has done nothing. Waits of the library itself are
   not reported (ds__tls.unwatched).
   Locks: none. ds__sync_tell may invoke the user's log function.
   Threads: any; the mode is atomic. */
#ifndef DS__CORE_SYNC_DEBUG_H
#define DS__CORE_SYNC_DEBUG_H

#include "init.h"

/* Returns 1 if waits of the host must be reported. Only public functions call it, before they do
   anything; later waits are the library's own. */
static inline int ds__sync_watched(void) {
    return atomic_load_explicit(&ds__g.sync_debug, memory_order_relaxed) != DS_SYNC_DEBUG_DEFAULT &&
           !ds__tls.unwatched;
}

/* Reports that the running function is about to wait. A negative result forbids the wait. */
__attribute__((format(DS__PRINTF, 1, 2), cold, noinline)) static ds_result ds__sync_tell(
    const char *format, ...) {
    char what[400];
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (atomic_load(&ds__g.sync_debug) == DS_SYNC_DEBUG_ERROR)
        return ds__fail(DS_ERR_WOULD_SYNCHRONIZE,
                        "called a synchronizing operation, not allowed by the sync debug mode: %s",
                        what);
    snprintf(text, sizeof text, "called a synchronizing operation: %s %s", ds__tls.fn, what);
    if (ds__g.desc.log_fn)
        ds__log_write(DS_LOG_WARNING, DS_ERR_WOULD_SYNCHRONIZE, text);
    else if (ds__tls.site.file)
        fprintf(stderr, "devstream: %s:%d: %s\n", ds__tls.site.file, ds__tls.site.line, text);
    else
        fprintf(stderr, "devstream: %s\n", text);
    return DS_OK;
}

static ds_result ds__sync_debug_read(const char *text) {
    static const char *const words[] = { "default", "warn", "error" };
    int mode = text && *text ? -1 : DS_SYNC_DEBUG_DEFAULT;
    for (int i = 0; i < 3 && mode < 0; i++)
        if (strcmp(text, words[i]) == 0 || (text[0] == '0' + i && !text[1]))
            mode = i;
    DS__REQUIRE(mode >= 0,
                "\"%.40s\" is not a sync debug mode: default, warn or error (DEVSTREAM_SYNC_DEBUG)",
                text);
    atomic_store(&ds__g.sync_debug, mode);
    return DS_OK;
}

DSDEF ds_result(ds_sync_debug_set_mode)(ds_sync_debug_mode mode) {
    DS__ENTER("ds_sync_debug_set_mode");
    DS__REQUIRE((unsigned)mode <= DS_SYNC_DEBUG_ERROR,
                "mode is %d; use DS_SYNC_DEBUG_DEFAULT, _WARN or _ERROR", (int)mode);
    atomic_store(&ds__g.sync_debug, (int)mode);
    return DS_OK;
}

DSDEF ds_result(ds_sync_debug_set_mode_text)(const char *text) {
    DS__ENTER("ds_sync_debug_set_mode_text");
    DS__REQUIRE(text && *text, "text is NULL");
    return ds__sync_debug_read(text);
}

DSDEF ds_result(ds_sync_debug_get_mode)(ds_sync_debug_mode *out) {
    if (out)
        *out = DS_SYNC_DEBUG_DEFAULT;
    DS__ENTER("ds_sync_debug_get_mode");
    DS__REQUIRE(out, "out is NULL");
    *out = (ds_sync_debug_mode)atomic_load(&ds__g.sync_debug);
    return DS_OK;
}

#endif
