/* core/check.h - the handler for failed checks.

   Keeps the handler of DS_CHECK and invokes it (ds_check_report). The default handler writes one
   line and ends the process.

   Invariants: function and argument of the handler are always a pair. The handler belongs to the
   process: neither start nor shutdown changes it.
   Locks: ds__check.lock is held while the pair is read or written, never while the handler runs.
   Threads: any, also before the first call and inside of user code that devstream runs. */
#ifndef DS__CORE_CHECK_H
#define DS__CORE_CHECK_H

#include "../api/check.h"
#include "../os/lock.h"
#include "../base/error.h"

static struct {
    ds__spinlock lock;
    ds_check_fn fn; /* NULL: ds__check_exit */
    void *user;
} ds__check;

/* Writes "file:line: text returned NAME: sentence" and ends the process. The sentence begins with
   file and line, too; these are left out if they are the check's. */
static void ds__check_exit(const ds_check_item *item, void *user) {
    char site[300];
    const char *error = item->error[0] ? item->error : ds_result_get_text(item->result);
    (void)user;
    int n = snprintf(site, sizeof site, "%s:%d: ", item->file, item->line);
    size_t length = ds__text_length(n, sizeof site);
    if (strncmp(error, site, length) == 0)
        error += length;
    fprintf(stderr, "%s:%d: %s returned %s: %s\n", item->file, item->line, item->text,
            ds_result_get_name(item->result), error);
    exit(1);
}

DSDEF void(ds_check_set_handler)(ds_check_fn fn, void *user) {
    ds__spinlock_lock(&ds__check.lock);
    ds__check.fn = fn;
    ds__check.user = user;
    ds__spinlock_unlock(&ds__check.lock);
}

DSDEF void(ds_check_report)(ds_result result, const char *text, const char *file, int line) {
    ds_check_item item = { .result = result,
                           .text = text ? text : "",
                           .file = file ? file : "",
                           .line = line,
                           .error = ds__tls.error };
    ds__spinlock_lock(&ds__check.lock);
    ds_check_fn fn = ds__check.fn;
    void *user = ds__check.user;
    ds__spinlock_unlock(&ds__check.lock);
    if (!fn)
        fn = ds__check_exit;
    fn(&item, user);
}

#endif
