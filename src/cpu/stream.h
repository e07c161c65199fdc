/* cpu/stream.h - stream objects: creation, destruction, wrapping.

   Creates streams from a pool (ds__cpu_stream_add), destroys them (ds__cpu_stream_destroy), and
   recycles them when they are drained (ds__cpu_recycle). Wraps and unwraps native streams, which
   are the stream objects themselves.

   Invariants: a stream is in the list of its device from its creation until it is recycled. It
   is recycled once, after `closing` was set and all its work was passed. A stream that ever
   failed is not used again, because events may still ask about its numbers. ds__cpu_stream_add
   returns a legacy stream only after the submissions that began without it have ended.
   Locks: ds__cpu_stream_add takes `object_lock`, the capture lock and the device's lock one
   after another; for a legacy stream it takes put locks under the device's lock.
   ds__cpu_stream_destroy takes the put lock. ds__cpu_recycle takes the put lock, the device's
   lock and `object_lock`, one after another.
   Threads: caller's threads. The thread that drops the last reference to an executable destroys
   its lanes, and may be a worker. ds__cpu_recycle runs on the owner of the stream. */
#ifndef DS__CPU_STREAM_H
#define DS__CPU_STREAM_H

#include "../base/capture_list.h"
#include "types.h"
#include "place.h"
#include "queue.h"
#include "scheduler.h"
#include "submit.h"

/* Returns the nearest priority that the driver has. */
static int ds__cpu_clamp(int priority) {
    const int greatest = 1 - DS__CPU_LEVELS;
    if (priority > 0)
        return 0;
    return priority < greatest ? greatest : priority;
}

/* Takes a stream object from the pool; with a fabric, the object has a virtual time. NULL: no
   memory. */
static ds__cpu_stream *ds__cpu_stream_alloc(void) {
    ds__spinlock_lock(&ds__cpu.object_lock);
    if (!ds__cpu.free_streams) {
        ds__cpu_stream *slab = ds__cpu_raw(16 * sizeof *slab);
        for (int i = 0; slab && i < 16; i++) {
            slab[i].next = ds__cpu.free_streams;
            ds__cpu.free_streams = &slab[i];
        }
    }
    ds__cpu_stream *s = ds__cpu.free_streams;
    if (s && ds__cpu.fabric && !s->virt)
        s->virt = ds__cpu_raw(sizeof *s->virt);
    if (s && ds__cpu.fabric && !s->virt)
        s = NULL;
    if (s)
        ds__cpu.free_streams = s->next;
    ds__spinlock_unlock(&ds__cpu.object_lock);
    return s;
}

/* Sets the fields of an object from the pool, which another stream may have used before. No other
   thread knows the stream yet. */
static void ds__cpu_stream_init(ds__cpu_stream *s, int device, int kind, unsigned flags,
                                int priority) {
    s->device = device;
    s->kind = kind;
    s->flags =
        kind == DS__STREAM_LEGACY || kind == DS__STREAM_PER_THREAD ? DS_STREAM_BLOCKING : flags;
    s->level = priority + DS__CPU_LEVELS - 1;
    s->share = 0;
    atomic_store_explicit(&s->group, ds__cpu_place_stream(device), memory_order_relaxed);
    atomic_store_explicit(&s->handle, 0, memory_order_relaxed);
    s->floating = 0;
    s->thread = kind == DS__STREAM_PER_THREAD ? ds__thread_number() : 0;
    s->legacy_seen = s->seen_by_legacy = 0;
    if (ds__cpu.fabric) {
        s->virt->time = s->virt->put = 0;
        s->virt->leg = 0;
        s->virt->born = atomic_fetch_add(&ds__cpu.born, 1);
    }
    atomic_store(&s->closing, 0);
    atomic_store(&s->watch, 0);
    atomic_store(&s->state, DS__CPU_IDLE);
}

/* Makes the stream the legacy stream of its device. Blocking streams may capture already. */
static void ds__cpu_legacy_set(ds__cpu_device *d, ds__cpu_stream *s) {
    ds__mutex_lock(&ds__g.capture_lock);
    d->legacy = s;
    atomic_store(&s->watch, d->capturing);
    ds__mutex_unlock(&ds__g.capture_lock);
}

/* Makes blocking streams observe the legacy stream. Submissions that have not seen the flag end
   before the function returns; later submissions see the flag. The device's lock is held. */
static void ds__cpu_legacy_announce(ds__cpu_device *d) {
    atomic_store(&d->legacy_used, 1);
    for (ds__cpu_stream *b = d->streams; b; b = b->all_next) {
        ds__spinlock_lock(&b->put_lock);
        ds__spinlock_unlock(&b->put_lock);
    }
}

/* Lists the stream with its device: a blocking stream first, any other last, so that the legacy
   stream finds the blocking streams at the head of the list. The device's lock is held. */
static void ds__cpu_stream_link(ds__cpu_device *d, ds__cpu_stream *s) {
    int first = (s->flags & DS_STREAM_BLOCKING) != 0;
    s->all_prev = first ? NULL : d->last_stream;
    s->all_next = first ? d->streams : NULL;
    if (s->all_prev)
        s->all_prev->all_next = s;
    else
        d->streams = s;
    if (s->all_next)
        s->all_next->all_prev = s;
    else
        d->last_stream = s;
}

/* Takes the stream out of the list of its device, whose lock is held. */
static void ds__cpu_stream_unlink(ds__cpu_device *d, ds__cpu_stream *s) {
    if (s->all_prev)
        s->all_prev->all_next = s->all_next;
    else
        d->streams = s->all_next;
    if (s->all_next)
        s->all_next->all_prev = s->all_prev;
    else
        d->last_stream = s->all_prev;
}

/* Creates a stream and lists it with its device. NULL: no memory. */
static ds__cpu_stream *ds__cpu_stream_add(int device, int kind, unsigned flags, int priority) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_stream *s = ds__cpu_stream_alloc();
    if (!s)
        return NULL;
    ds__cpu_stream_init(s, device, kind, flags, priority);
    if (kind != DS__STREAM_LANE)
        atomic_fetch_add(&ds__cpu.stream_count, 1);
    if (kind == DS__STREAM_LEGACY)
        ds__cpu_legacy_set(d, s);

    ds__spinlock_lock(&d->lock);
    ds__cpu_stream_link(d, s);
    if (kind == DS__STREAM_LEGACY)
        ds__cpu_legacy_announce(d);
    ds__spinlock_unlock(&d->lock);
    return s;
}

static ds_result ds__cpu_stream_create(int device, int kind, unsigned flags, int *priority,
                                       int *share, void **out) {
    DS__REQUIRE(*share <= ds__cpu.workers, "multiprocessors is %d; the device has %d", *share,
                ds__cpu.workers);
    *priority = ds__cpu_clamp(*priority);
    ds__cpu_stream *s = ds__cpu_stream_add(device, kind, flags, *priority);
    *out = s;
    if (!s)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
    s->share = *share;
    return DS_OK;
}

/* Returns the object of a destroyed stream to the pool. The caller owns the stream, which is
   drained, and no operation can be enqueued on it. An object that ever failed is not used again,
   because events may still ask whether their number failed. */
static void ds__cpu_recycle(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    /* ds__cpu_stream_destroy, which holds this lock, may have set `closing` but not yet tried the
       state: it must not find the state of the object's next stream */
    ds__spinlock_lock(&s->put_lock);
    ds__cpu_block *b = s->head; /* a lane has none */
    s->head = s->tail = NULL;
    ds__spinlock_unlock(&s->put_lock);
    ds__cpu_block_free(b);
    ds__cpu_block_free(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
    ds__spinlock_lock(&d->lock);
    ds__cpu_stream_unlink(d, s);
    ds__spinlock_unlock(&d->lock);
    atomic_store(&s->state, DS__CPU_FREE);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_sub(&ds__cpu.stream_count, 1);
    if (s->had_failure)
        return;
    ds__spinlock_lock(&ds__cpu.object_lock);
    s->next = ds__cpu.free_streams;
    ds__cpu.free_streams = s;
    ds__spinlock_unlock(&ds__cpu.object_lock);
}

/* Destroys a stream; its pending work still runs, and then the object is recycled. */
static void ds__cpu_stream_destroy(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s) && s->kind != DS__STREAM_LEGACY)
        ds__cpu_destroy_captured(s);
    uint32_t idle = DS__CPU_IDLE;
    ds__spinlock_lock(&s->put_lock); /* no operation is enqueued after this */
    atomic_store(&s->closing, 1);
    int mine = atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING);
    ds__spinlock_unlock(&s->put_lock);
    if (mine)
        ds__cpu_go_idle(s);
}

static void ds__cpu_stream_unwrap(void *stream) {
    ds__cpu_stream *s = stream;
    ds__spinlock_lock(&ds__cpu.device[s->device].lock);
    s->floating = 1;
    ds__spinlock_unlock(&ds__cpu.device[s->device].lock);
}

/* Returns the stream object that `native` is. own: the caller becomes its owner, which requires
   that ds__cpu_stream_unwrap has taken the owner away. */
static ds_result ds__cpu_stream_wrap(int device, void *native, int own, unsigned *out_flags,
                                     int *out_priority, void **out) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = DS_ERR_INVALID_VALUE;
    ds__spinlock_lock(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        if (s != native || s->kind == DS__STREAM_LANE || atomic_load(&s->closing))
            continue;
        if (own && !s->floating) {
            r = DS_ERR_ILLEGAL_STATE;
            break;
        }
        if (own) {
            s->floating = 0;
            /* that of the former owner is stale */
            atomic_store_explicit(&s->handle, 0, memory_order_relaxed);
        }
        *out_flags = s->flags;
        *out_priority = s->level + 1 - DS__CPU_LEVELS;
        *out = s;
        r = DS_OK;
    }
    ds__spinlock_unlock(&d->lock);
    if (r == DS_ERR_ILLEGAL_STATE)
        return ds__fail(DS_ERR_INVALID_VALUE, "the native stream already has an owner");
    return r == DS_OK ? r : ds__fail(r, "%p is not a stream of cpu:%d", native, device);
}

static ds_result ds__cpu_stream_native(void *stream, void **out) {
    *out = stream;
    return DS_OK;
}

static void ds__cpu_stream_named(void *stream, uint64_t handle) {
    ds__cpu_stream *s = stream;
    if (!ds__cpu_handle(s))
        atomic_store_explicit(&s->handle, handle, memory_order_relaxed);
}

static const void *ds__cpu_stream_identity(void *stream) {
    return stream;
}

static void ds__cpu_stream_hide(void *stream) {
    (void)stream;
}

static void ds__cpu_stream_forget(void *stream) {
    (void)stream;
}

static ds_result ds__cpu_copy_now(const ds__op *op) {
    (void)op;
    return ds__fail(DS_ERR_UNSUPPORTED, "only the memory of a GPU supports this");
}

#endif
