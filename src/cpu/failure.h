/* cpu/failure.h - failures of streams and devices.

   Records failures (ds__cpu_fail_device, ds__cpu_fail_stream), and finds the failure of a number
   of a stream (ds__cpu_failed) or of the stream and its device (ds__cpu_stream_failure).

   Invariants: a device keeps its first failure until it is reset. If `failure` of a stream is
   set, all numbers from `failed_from` on have failed. Ranges that failed before a reset are in
   `past`. A failure object lives until the driver stops; without memory, ds__cpu_no_memory takes
   its place.
   Locks: ds__cpu_failure_create takes `object_lock`. The other functions take and expect none.
   Threads: any thread may ask. Only the owner of a stream calls ds__cpu_fail_stream; for a lane
   that has not started this is the owner of the launching stream, for a proxy the holder of the
   registries' mutex. */
#ifndef DS__CPU_FAILURE_H
#define DS__CPU_FAILURE_H

#include "types.h"

static ds__cpu_failure ds__cpu_no_memory = { NULL, DS_ERR_FAILED,
                                             "out of memory while recording a failure" };

/* Returns a new failure; without memory, ds__cpu_no_memory. */
__attribute__((format(DS__PRINTF, 2, 3))) static ds__cpu_failure *ds__cpu_failure_create(
    ds_result code, const char *format, ...) {
    ds__cpu_failure *f = ds__host_alloc(sizeof *f);
    if (!f)
        return &ds__cpu_no_memory;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->code = code;
    ds__spinlock_lock(&ds__cpu.object_lock);
    f->next = ds__cpu.failures;
    ds__cpu.failures = f;
    ds__spinlock_unlock(&ds__cpu.object_lock);
    return f;
}

/* Makes a failure of the device. Returns it, or the failure that the device already has. */
static ds__cpu_failure *ds__cpu_fail_device(int device, const char *text) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_failure *f = ds__cpu_failure_create(DS_ERR_FAILED, "%s", text);
    ds__cpu_failure *none = NULL;
    return atomic_compare_exchange_strong(&d->failure, &none, f) ? f : none;
}

/* Returns the failure of number `upto` of the stream, or NULL if the number has not failed. */
static ds__cpu_failure *ds__cpu_failed(const ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    if (f && upto >= atomic_load_explicit(&s->failed_from, memory_order_relaxed))
        return f;
    for (const ds__cpu_past *p = atomic_load_explicit(&s->past, memory_order_acquire); p;
         p = p->next)
        if (upto >= p->from && upto <= atomic_load_explicit(&p->upto, memory_order_relaxed))
            return p->failure;
    return NULL;
}

/* Returns the failure that a stream reports: its own, else that of its device. NULL: none. */
static ds__cpu_failure *ds__cpu_stream_failure(const ds__cpu_stream *s) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    return f ? f : atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
}

/* Makes the numbers from `from` on fail, unless the stream has failed already. */
static void ds__cpu_fail_stream(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from) {
    if (atomic_load_explicit(&s->failure, memory_order_relaxed))
        return;
    s->had_failure = 1;
    atomic_store_explicit(&s->failed_from, from, memory_order_relaxed);
    atomic_store_explicit(&s->failure, f, memory_order_release);
}

#endif
