/* alloc/arena.h - arenas: one per stream and pool.

   Finds or makes the arena of a stream in a pool (ds__arena_main, ds__arena_in) and prepares
   arenas for the end of their stream (ds__mem_stream_gone). ds__arena_drain waits for the work
   of an arena's stream.

   Invariants: Wrappers of one native stream share an arena in each pool; the arena stores up to
   three further handles as aliases. An arena stays until shutdown. When its stream ends,
   an arena becomes an orphan; `end` is an event behind the stream's work, or 0 if there is none.
   An orphan without memory may serve a new stream.
   Locks: ds__arena_main and ds__arena_in take the device lock; ds__arena_of and ds__arena_join
   expect that lock. Arena locks are taken one at a time inside the device lock. Driver calls run
   under the device lock. ds__arena_drain expects no lock, or `grow` of the arena.
   Threads: any caller's thread. ds__arena_drain blocks the host. ds__mem_stream_gone is called
   by ds_stream_destroy, and by ds__retired_reclaim for the streams of ended threads. */
#ifndef DS__ALLOC_ARENA_H
#define DS__ALLOC_ARENA_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "counters.h"
#include "pool.h"
#include "stream_use.h"

/* Returns the index of the alias with this stream number (0: a free entry), or DS__ALIASES. */
static int ds__arena_alias_find(const ds__arena *a, uint64_t id) {
    int i = 0;
    while (i < DS__ALIASES && a->alias[i].id != id)
        i++;
    return i;
}

/* Returns the index of the first stored alias, or DS__ALIASES. */
static int ds__arena_alias_first(const ds__arena *a) {
    int i = 0;
    while (i < DS__ALIASES && !a->alias[i].id)
        i++;
    return i;
}

/* Stores a further handle of the arena's stream, which was wrapped several times. So the arena
   stays in use when one handle ends. The device is locked. */
static void ds__arena_join(ds__arena *a, ds__stream *s, ds_stream handle) {
    if (a->stream_id == s->id)
        return;
    ds__stream *first = ds__pin(&ds__g.streams, a->stream.id);
    if (!first) { /* the first handle has ended */
        ds__arena_lock(a);
        a->stream = handle;
        a->stream_id = s->id;
        ds__arena_unlock(a);
        return;
    }

    ds__stream_unpin(first);
    if (ds__arena_alias_find(a, s->id) < DS__ALIASES)
        return;
    int i = ds__arena_alias_find(a, 0);
    if (i == DS__ALIASES) {
        a->crowded = 1;
        return;
    }
    a->alias[i].stream = handle;
    a->alias[i].id = s->id;
}

/* Removes a handle that ends. Returns 1 if the stream goes on under another handle. The device is
   locked. */
static int ds__arena_part(ds__arena *a, const ds__stream *s) {
    if (!s->borrowed)
        return 0;
    int i = ds__arena_alias_find(a, s->id);
    if (i < DS__ALIASES) {
        a->alias[i].id = 0;
        return 1;
    }
    if (a->stream_id != s->id)
        return 1;
    i = ds__arena_alias_first(a);
    if (i == DS__ALIASES && !a->crowded)
        return 0;

    ds__arena_lock(a);
    if (i == DS__ALIASES) {
        a->stream.id = 0;
    } else {
        a->stream = a->alias[i].stream;
        a->stream_id = a->alias[i].id;
        a->alias[i].id = 0;
    }
    ds__arena_unlock(a);
    return 1;
}

/* The stream of an arena, or the end of an ended one. It may change once the arena is unlocked; but
   while a block of the arena is taken, no other stream takes the arena over. */
typedef struct ds__owner {
    ds_stream stream;
    ds_event end;
    int orphan;
} ds__owner;

static ds__owner ds__owner_of(ds__arena *a) {
    ds__arena_lock(a);
    ds__owner o = { a->stream, a->end, a->orphan };
    ds__arena_unlock(a);
    return o;
}

/* Prepares for the end of a per-thread stream of CUDA. Only its own thread can enqueue work there;
   after the end of that thread, the legacy stream waits for all of this work. So the handle of the
   legacy stream is made when the allocator first sees a per-thread stream. */
static void ds__expect_end(const ds__stream *s) {
    if (DS__LIKELY(s->kind != DS__STREAM_PER_THREAD) || s->device.type != DS_DEVICE_CUDA ||
        atomic_load(&ds__memory_state.legacy[s->device.index]))
        return;
    ds_stream legacy;
    ds__tls.mute++;
    if (ds__stream_legacy_get(s->device, &legacy) == DS_OK)
        atomic_store(&ds__memory_state.legacy[s->device.index], legacy.id);
    ds__tls.mute--;
}

/* Gives an arena to a stream. The device is locked; the arena too, if it had a stream before. */
static void ds__arena_assign(ds__arena *a, const ds__stream *s, ds_stream handle,
                             const void *identity) {
    a->stream = handle;
    a->stream_id = s->id;
    a->identity = identity;
    ds__arena_apply(a);
}

/* Gives the arena of an ended stream to a new one, if the arena has no memory. So programs that
   create and destroy streams need no further arenas. Returns 0 if the arena has memory or a stream.
   The device is locked. */
static int ds__arena_take_over(ds__arena *a, const ds__stream *s, ds_stream handle,
                               const void *identity) {
    ds_event end = { 0 };
    ds__arena_lock(a);
    int empty = a->orphan && !ds__arena_has_memory(a);
    if (empty) {
        end = a->end;
        a->end.id = 0;
        a->orphan = a->crowded = a->slow_free = 0;
        memset(a->alias, 0, sizeof a->alias);
        ds__arena_assign(a, s, handle, identity);
    }
    ds__arena_unlock(a);
    ds__use_event_destroy(end);
    return empty;
}

/* Returns the arena of a stream in a pool. At the first use, takes the arena of an ended stream or
   makes one. Without host memory returns NULL and sets the error. The device is locked. */
static ds__arena *ds__arena_of(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    const void *identity = s->driver->stream_identity(s->native);
    ds__expect_end(s);
    for (ds__arena *a = p->arenas; a; a = a->next)
        if (!a->orphan && (a->stream_id == s->id || a->identity == identity)) {
            ds__arena_join(a, s, handle);
            return a;
        }
    for (ds__arena *a = p->arenas; a; a = a->next)
        if (ds__arena_take_over(a, s, handle, identity))
            return a;

    ds__arena *a = ds__arena_create(p);
    if (a)
        ds__arena_assign(a, s, handle, identity);
    else
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of a stream");
    return a;
}

/* Returns the arena of a stream in the device's default pool. The stream stores the arena. On
   failure returns NULL and sets the error. */
static ds__arena *ds__arena_main(ds__stream *s, ds_stream handle) {
    ds__arena *a = atomic_load_explicit(&s->module[DS__MODULE_ALLOC], memory_order_acquire);
    if (a)
        return a;
    ds__mem_dev *dev = ds__mem_device(s->device);
    if (!dev)
        return NULL;
    ds__mem_dev_lock(dev);
    a = ds__arena_of(&dev->main, s, handle);
    ds__mem_dev_unlock(dev);
    if (a)
        atomic_store_explicit(&s->module[DS__MODULE_ALLOC], a, memory_order_release);
    return a;
}

/* Returns the arena of a stream in a pool other than the device's default one. On failure returns
   NULL and sets the error. */
static ds__arena *ds__arena_in(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    ds__mem_dev_lock(p->dev);
    ds__arena *a = ds__arena_of(p, s, handle);
    ds__mem_dev_unlock(p->dev);
    return a;
}

/* Records the end of a stream: on the stream, or for a per-thread stream whose thread has ended on
   the legacy stream. */
static ds_result ds__record_end(ds_event event, const ds__stream *s, ds_stream handle) {
    ds__tls.mute++;
    ds_result r = ds__event_record(event, handle, DS__OP_RECORD);
    ds_stream legacy = { s->device.type == DS_DEVICE_CUDA
                             ? atomic_load(&ds__memory_state.legacy[s->device.index])
                             : 0 };
    if (r < 0 && s->kind == DS__STREAM_PER_THREAD && legacy.id && !ds__captures_open())
        r = ds__event_record(event, legacy, DS__OP_RECORD);
    ds__tls.mute--;
    return r;
}

#define DS__LATE_USES 32 /* that are claimed at once */

/* Claims uses of a block by an ending stream that have no event, as far as `out` has room for them.
   Returns how many `out` has now. The arena is locked. */
static size_t ds__block_claim_late(ds__mem_block *b, ds_stream stream, ds__stream_use **out,
                                   size_t count) {
    if (b->state != DS_BLOCK_LIVE && b->state != DS_BLOCK_PENDING)
        return count;
    for (ds__stream_use *u = b->uses; u && count < DS__LATE_USES; u = u->next)
        if (u->stream.id == stream.id && !u->lost && ds__use_claim(u))
            out[count++] = u;
    return count;
}

/* Records the events of all uses by an ending stream that have none, in an arena. A thread that
   frees a block waits for the claimed uses, so they stay while no lock is held. */
static void ds__arena_record_late(ds__arena *a, const ds__stream *s, ds_stream stream) {
    ds__stream_use *late[DS__LATE_USES];
    size_t count;
    do {
        count = 0;
        ds__arena_lock(a);
        for (ds__segment *g = a->segments; g; g = g->next)
            for (ds__mem_block *b = g->first; b && count < DS__LATE_USES; b = b->next)
                count = ds__block_claim_late(b, stream, late, count);
        ds__arena_unlock(a);
        for (size_t i = 0; i < count; i++) {
            ds__stream_use *u = late[i];
            u->lost = ds__record_end(u->event, s, stream) < 0;
            u->recorded = !u->lost; /* another thread may free the use after that */
        }
    } while (count == DS__LATE_USES);
}

/* Records the events of all uses by an ending stream that have none, on all devices. */
static void ds__record_late(const ds__stream *s, ds_stream stream) {
    for (int k = 0; k < DS_BACKEND_COUNT * DS__MAX_DEVICES; k++) {
        ds__mem_dev *dev = ds__mem_device_at(k / DS__MAX_DEVICES, k % DS__MAX_DEVICES);
        if (!dev || !atomic_load(&dev->late_uses))
            continue;
        ds__mem_dev_lock(dev);
        for (ds__mem_pool *p = &dev->main; p; p = p->next)
            for (ds__arena *a = p->arenas; a; a = a->next)
                ds__arena_record_late(a, s, stream);
        ds__mem_dev_unlock(dev);
    }
}

/* Makes the arena an orphan, with an event behind the work of its stream if that can be recorded.
   The device is locked. */
static void ds__arena_orphan(ds__arena *a, ds__stream *s, ds_stream handle) {
    ds_event end = { 0 };
    if (!ds__capture_of(s) && ds__event_create(0, NULL, &end) == DS_OK &&
        ds__record_end(end, s, handle) < 0) {
        ds__use_event_destroy(end);
        end.id = 0;
    }
    ds__arena_lock(a);
    a->end = end; /* threads that have taken a block of the arena read it */
    a->identity = NULL;
    a->orphan = 1;
    ds__arena_unlock(a);
}

/* Prepares the arenas of a stream for its end. Any stream may use their free memory behind the
   current work of the stream. Called by ds_stream_destroy. */
static void ds__mem_stream_gone(ds__stream *s) {
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(s->device), s->device.index);
    ds_stream handle = { ds__handle_of(&s->slot) };
    ds__record_late(s, handle); /* blocks of other devices too */
    if (!dev)
        return;
    const void *identity = s->driver->stream_identity(s->native);
    ds__mem_dev_lock(dev);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            if (!a->orphan && (a->stream_id == s->id || a->identity == identity) &&
                !ds__arena_part(a, s))
                ds__arena_orphan(a, s, handle);
    ds__mem_dev_unlock(dev);
}

/* Waits for the work that may use the arena's free memory. The host blocks. Returns 0 if the work
   is not known to be done. */
static int ds__arena_drain(ds__arena *a) {
    ds_result r;
    ds__owner o = ds__owner_of(a);
    ds__tls.relaxed++;
    /* `grow` may be held, so ds__retired_reclaim must not run destructors of the program */
    ds__tls.upper_locked++;
    if (o.orphan && o.end.id) {
        r = ds__event_sync(o.end, DS__FOREVER);
    } else { /* a wait for the stream would invalidate a capture that begins on it meanwhile */
        ds__stream_use *u = ds__stream_use_create(a, a->dev->device);
        r = u ? ds__event_record_outside(u->event, o.stream) : DS_NOT_READY;
        if (r == DS_OK)
            r = ds__event_sync(u->event, DS__FOREVER);
        ds__arena_lock(a);
        ds__stream_uses_destroy(a, u);
        ds__arena_unlock(a);
    }
    /* the stream has ended without an event, or is another thread's per-thread stream */
    if (r < 0 && r != DS_ERR_FAILED && !ds__captures_open())
        r = ds__driver_of(a->dev->device)->device_synchronize(a->dev->device.index);
    ds__tls.upper_locked--;
    ds__tls.relaxed--;
    return r == DS_OK || r == DS_ERR_FAILED;
}

#endif
