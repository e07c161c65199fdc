/* cpu/stream_wait.h - waits for streams and devices.

   Implements the entries `stream_query` and `stream_synchronize`, and the wait for a device
   (ds__cpu_wait_device). ds__cpu_tokens lists the unfinished work of a device as tokens.

   Invariants: a wait covers the work that was submitted before the call. A query or wait of a
   legacy stream covers the blocking streams of its device, but neither destroyed streams nor
   per-thread streams of other threads (ds__cpu_is_with_legacy). A token is valid until the driver
   stops.
   Locks: ds__cpu_tokens takes the device's lock. For a stream with `watch` set, the core's
   capture lock is taken before the wait. The waits hold no lock of the driver.
   Threads: caller's threads, any number at once. */
#ifndef DS__CPU_STREAM_WAIT_H
#define DS__CPU_STREAM_WAIT_H

#include "../base/capture_list.h"
#include "types.h"
#include "failure.h"
#include "wait.h"
#include "submit.h"

/* The work that was pending at some time, without the tokens that were found to be done since. */
typedef struct ds__cpu_pending {
    size_t count;
    ds__cpu_token token[];
} ds__cpu_pending;

/* Returns 1 if a query or wait of the legacy stream covers the stream. CUDA documents that work of
   the legacy stream waits for blocking streams, not that a query or wait of the host does. The
   CUDA driver asks the streams one by one, and cannot name a destroyed stream or the per-thread
   stream of another thread. */
static int ds__cpu_is_with_legacy(const ds__cpu_stream *s) {
    return (s->flags & DS_STREAM_BLOCKING) && !atomic_load(&s->closing) &&
           (s->kind != DS__STREAM_PER_THREAD || s->thread == ds__thread_number());
}

/* Lists tokens for the unfinished work of the device's streams: of all streams, or of those that a
   query of the legacy stream covers. NULL: with *out_count 0 there is no such work, with SIZE_MAX
   no memory. The caller frees the list. */
static ds__cpu_token *ds__cpu_tokens(int device, int with_legacy, size_t *out_count) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_token *list = NULL;
    size_t room = 0;
    size_t count = 0;
    for (;;) {
        count = 0;
        ds__spinlock_lock(&d->lock);
        for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
            uint64_t tail = atomic_load(&s->submitted);
            if ((with_legacy && !ds__cpu_is_with_legacy(s)) ||
                (atomic_load(&s->done) >= tail && !ds__cpu.fabric))
                continue;
            if (count < room) {
                list[count].stream = s;
                list[count].upto = tail;
            }
            count++;
        }
        ds__spinlock_unlock(&d->lock);
        if (count <= room)
            break;
        ds__host_free(list);
        room = count + 16;
        list = ds__host_alloc(room * sizeof *list);
        if (!list) {
            count = SIZE_MAX;
            break;
        }
    }
    *out_count = count;
    return list;
}

/* Waits for all tokens. Returns 0 if the time is over first. */
static int ds__cpu_wait_all(const ds__cpu_token *list, size_t count, uint64_t timeout_ns) {
    uint64_t start = ds__now_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t left = timeout_ns;
        if (timeout_ns != DS__FOREVER) {
            uint64_t gone = ds__now_ns() - start;
            left = gone < timeout_ns ? timeout_ns - gone : 0;
        }
        if (!ds__cpu_wait(list[i].stream, list[i].upto, left, 0))
            return 0;
    }
    return 1;
}

/* Waits for the streams of the device, or for those that a query of the legacy stream covers.
   DS_NOT_READY: the time is over first. */
static ds_result ds__cpu_wait_device(int device, int with_legacy, uint64_t timeout_ns) {
    size_t count;
    ds__cpu_token *list = ds__cpu_tokens(device, with_legacy, &count);
    if (count == SIZE_MAX)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to list the device's streams");
    int over = ds__cpu_wait_all(list, count, timeout_ns);
    ds__host_free(list);
    return over ? DS_OK : DS_NOT_READY;
}

/* Returns the result of a query or wait of a stream whose work is done. */
static ds_result ds__cpu_settled(const ds__cpu_stream *s) {
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    return DS__UNLIKELY(f != NULL) ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_stream_query(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s)) {
        ds_result r = ds__cpu_asked(s, "a stream that captures cannot be queried");
        if (r < 0)
            return r;
    }
    if (s->kind == DS__STREAM_LEGACY) {
        ds_result r = ds__cpu_wait_device(s->device, 1, 0);
        return r == DS_OK ? ds__cpu_settled(s) : r;
    }
    uint64_t tail = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        (void)ds__cpu_wait_virtual(s, tail, 0);
    return atomic_load_explicit(&s->done, memory_order_acquire) >= tail ? ds__cpu_settled(s)
                                                                        : DS_NOT_READY;
}

static ds_result ds__cpu_stream_synchronize(void *stream, uint64_t timeout_ns) {
    ds__cpu_stream *s = stream;
    ds_result r = ds__cpu_watched(s)
                      ? ds__cpu_asked(s, "a stream that captures cannot be synchronized")
                      : DS_OK;
    if (r < 0)
        return r;
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_wait_device(s->device, 1, timeout_ns);
    else
        r = ds__cpu_wait(s, atomic_load_explicit(&s->submitted, memory_order_acquire), timeout_ns,
                         0)
                ? DS_OK
                : DS_NOT_READY;
    return r == DS_OK ? ds__cpu_settled(s) : r;
}

#endif
