/* cpu/timeline.h - timelines: numbers that other libraries pass.

   Implements the entries `timeline_create` to `timeline_destroy`. A timeline is a stream without
   operations (DS__CPU_COUNTS): streams wait for its numbers as for those of another stream, and
   take over its failure.

   Invariants: `done` only grows. A timeline that has failed has passed all numbers, and is never
   used again. Others are used again, and their numbers continue: a thread that looks for work to
   help with may still read a timeline after its end.
   Locks: `object_lock` guards the list of free timelines. No lock is held during a pass.
   Threads: any. The caller lets one thread at a time pass or fail a timeline. */
#ifndef DS__CPU_TIMELINE_H
#define DS__CPU_TIMELINE_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"

enum { DS__CPU_TIMELINE = 5 }; /* kind of its stream, beside DS__STREAM_* and DS__CPU_PROXY */

static ds_result ds__cpu_timeline_create(void **out, uint64_t *out_base) {
    ds__spinlock_lock(&ds__cpu.object_lock);
    ds__cpu_stream *t = ds__cpu.free_timelines;
    if (t)
        ds__cpu.free_timelines = t->next;
    ds__spinlock_unlock(&ds__cpu.object_lock);
    if (!t)
        t = ds__cpu_raw(sizeof *t);
    if (!t)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a timeline");
    t->kind = DS__CPU_TIMELINE;
    atomic_store(&t->state, DS__CPU_COUNTS);
    *out = t;
    *out_base = atomic_load(&t->done);
    return DS_OK;
}

static void ds__cpu_timeline_pass(void *timeline, uint64_t upto) {
    ds__cpu_stream *t = timeline;
    if (upto > atomic_load_explicit(&t->done, memory_order_relaxed))
        ds__cpu_pass(t, upto);
}

static void ds__cpu_timeline_fail(void *timeline, uint64_t from, ds_result code, const char *text) {
    ds__cpu_stream *t = timeline;
    ds__cpu_fail_stream(t, ds__cpu_failure_create(code, "%s", text), from);
    ds__cpu_pass(t, UINT64_MAX);
}

static uint64_t ds__cpu_timeline_get(const void *timeline) {
    const ds__cpu_stream *t = timeline;
    return atomic_load(&t->done);
}

static void ds__cpu_timeline_destroy(void *timeline) {
    ds__cpu_stream *t = timeline;
    if (t->had_failure)
        return;
    ds__spinlock_lock(&ds__cpu.object_lock);
    t->next = ds__cpu.free_timelines;
    ds__cpu.free_timelines = t;
    ds__spinlock_unlock(&ds__cpu.object_lock);
}

#endif
