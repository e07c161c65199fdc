/* base/log.h - messages to the program or to standard error.

   Passes a message to the log function of ds_init, or prints it (ds__log_write, ds__log_warn).

   Invariants: a message above the level is dropped.
   Locks: none. The log function runs under all locks of the caller and must not call devstream.
   Threads: any. ds_init and the start write ds__logger, while no other call runs. */
#ifndef DS__BASE_LOG_H
#define DS__BASE_LOG_H

#include "../api/init.h"
#include "../os/os.h"
#include "thread_block.h"

static struct {
    int level;
    ds_log_fn log_fn; /* NULL: standard error */
    void *user;
} ds__logger;

static void ds__log_write(ds_log_level level, int id, const char *text) {
    if ((int)level > ds__logger.level)
        return;
    if (!ds__logger.log_fn) {
        fprintf(stderr, "devstream: %s\n", text);
        return;
    }
    ds_log_item item = { level, id, text, ds__tls.site.file, ds__tls.site.line };
    ds__logger.log_fn(&item, ds__logger.user);
}

/* Reports to the log at level warning, without a code and without the thread's call site. */
__attribute__((format(DS__PRINTF, 1, 2))) static void ds__log_warn(const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ds__log_write(DS_LOG_WARNING, 0, text);
}

#endif
