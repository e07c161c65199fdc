/* ranks/failure.h - failures of groups.

   Makes a group fail with a code and a reason (ds__group_fail), reports the failure to callers
   (ds__group_report), and keeps failures that a driver does not report at waits
   (ds__rfailure_of).

   Invariants: a group keeps its first failure. Its timeline has then passed all numbers.
   Locks: ds__group_fail and ds__group_fail_op expect the group's lock. `failure_lock` guards the
   list of failures and, in ranks/capture.h, that of words.
   Threads: any. */
#ifndef DS__RANKS_FAILURE_H
#define DS__RANKS_FAILURE_H

#include "types.h"
#include "record.h"

/* ---- failures that drivers do not report ----------------------------------------------------- */

/* Notes that the work of a stream has failed; stream 0: of all streams of the device. */
static void ds__rfailure_add(ds_device device, uint64_t stream, const ds__group *g) {
    ds__rfailure *f = ds__host_alloc(sizeof *f);
    if (!f)
        return;
    f->device = device;
    f->stream = stream;
    f->code = g->code;
    memcpy(f->reason, g->reason, sizeof f->reason);
    ds__spinlock_lock(&ds__ranks.failure_lock);
    f->next = ds__ranks.failures;
    ds__ranks.failures = f;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    atomic_fetch_add(&ds__drive.failed, 1);
}

/* Returns the failure of a stream, or of any stream of the device (stream 0). */
static ds_result ds__rfailure_of(ds_device device, uint64_t stream) {
    ds_result code = DS_OK;
    char reason[DS__RANKS_REASON];
    ds__spinlock_lock(&ds__ranks.failure_lock);
    const ds__rfailure *f = ds__ranks.failures;
    while (f && (ds__device_key(f->device) != ds__device_key(device) ||
                 (stream && f->stream && stream != f->stream)))
        f = f->next;
    if (f) {
        code = f->code;
        memcpy(reason, f->reason, sizeof reason);
    }
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    return code < 0 ? ds__fail(code, "%s", reason) : DS_OK;
}

/* Forgets the failures of a device, which was reset. */
static void ds__rfailure_forget(ds_device device) {
    ds__spinlock_lock(&ds__ranks.failure_lock);
    for (ds__rfailure **at = &ds__ranks.failures; *at;) {
        ds__rfailure *f = *at;
        if (ds__device_key(f->device) != ds__device_key(device)) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        ds__host_free(f);
        atomic_fetch_sub(&ds__drive.failed, 1);
    }
    ds__spinlock_unlock(&ds__ranks.failure_lock);
}

/* ---- sentences of the engine ----------------------------------------------------------------- */

/* Calls whose errors are no errors of the program's call: their sentences name no call, and are
   kept aside. */
typedef struct ds__quiet {
    const char *fn;
    ds_site site;
} ds__quiet;

static ds__quiet ds__quiet_begin(void) {
    ds__quiet outer = { ds__tls.fn, ds__tls.site };
    ds__tls.fn = NULL;
    ds__tls.site.file = NULL;
    ds__tls.mute++;
    return outer;
}

static void ds__quiet_end(const ds__quiet *outer) {
    ds__tls.mute--;
    ds__tls.fn = outer->fn;
    ds__tls.site = outer->site;
}

/* Returns the last sentence of such calls. */
static const char *ds__quiet_reason(void) {
    const char *text = strstr(ds__tls.aside, ": ");
    return text ? text + 2 : ds__tls.aside;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Returns the name of a group for messages. */
static const char *ds__group_name(const ds__group *g) {
    return g->label ? g->label : "world";
}

/* Ends an operation of a group that fails or has failed, once. `lock` is held. */
static void ds__group_drop_op(ds__group *g, ds__rop *op, uint64_t now) {
    int begun = op->state != DS__ROP_LISTED;
    if (op->dropped)
        return;
    op->dropped = 1;
    if (begun && !g->engine->enqueue)
        g->engine->abandon(g->comm, &op->request);
    ds__rop_status(g, op, begun ? DS__RECORDER_ABANDONED : DS__RECORDER_FAILED, now);
    if (op->word)
        __atomic_store_n(op->word, 1, __ATOMIC_SEQ_CST);
    if (g->driver->type == DS_DEVICE_CUDA)
        ds__rfailure_add(g->own[0], op->call.stream, g);
}

/* Ends the operations of the group. Those that have not arrived stay listed. `lock` is held. */
static void ds__group_drop_ops(ds__group *g) {
    uint64_t now = ds__now_ns();
    for (ds__rop *op = g->head; op; op = op->next)
        ds__group_drop_op(g, op, now);
    for (size_t i = 1; i < g->owns && g->head && g->driver->type == DS_DEVICE_CUDA; i++)
        ds__rfailure_add(g->own[i], 0, g);
}

/* Makes the group fail, unless it has failed. tell: other ranks are told. `lock` is held. */
static void ds__group_fail(ds__group *g, ds_result code, const char *reason, int tell) {
    if (atomic_load(&g->failed))
        return;
    g->code = code;
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    ds__recorder_failure_add(g->recorder, g->id, code, g->reason);
    if (tell)
        g->engine->tell(g->comm, code, g->reason);
    ds__group_drop_ops(g);
    atomic_store(&g->failed, 1);
    if (g->engine->stop)
        g->engine->stop(g->comm);
    if (g->timeline)
        g->driver->timeline_fail(g->timeline, atomic_load(&g->passed) + 1, code, g->reason);
}

/* Makes the group fail because of an operation: the reason begins with its call. An operation of a
   capture has the number 0. */
__attribute__((format(DS__PRINTF, 4, 5))) static void ds__group_fail_op(ds__group *g,
                                                                        const ds__rop *op,
                                                                        ds_result code,
                                                                        const char *format, ...) {
    char text[DS__RANKS_REASON];
    const ds__rcall *c = &op->call;
    char which[40] = "in a capture,";
    if (op->number)
        snprintf(which, sizeof which, "operation %llu", (unsigned long long)(op->number - g->base));
    int n = snprintf(text, sizeof text, "%s at %s:%d, %s of group \"%s\" on rank %d of %d: ", c->fn,
                     c->site.file ? c->site.file : "?", c->site.file ? c->site.line : 0, which,
                     ds__group_name(g), g->rank, g->size);
    size_t used = ds__text_length(n, sizeof text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    ds__group_fail(g, code, text, 1);
}

/* Returns the failure of the group as the result of a call. */
static ds_result ds__group_report(ds__group *g) {
    return DS__LIKELY(!atomic_load(&g->failed)) ? DS_OK : ds__fail(g->code, "%s", g->reason);
}

#endif
