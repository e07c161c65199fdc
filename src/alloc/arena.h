/* alloc/arena.h - arenas: one per stream and pool.

   Finds or makes the arena of a stream in a pool (ds__arena_main, ds__arena_in) and prepares
   arenas for the end of their stream (ds__mem_stream_gone). ds__arena_drain waits for the work
   of an arena's stream.

   Invariants: Wrappers of one native stream share an arena in each pool; the arena stores up to
   three further handles as aliases (twin). An arena stays until shutdown. When its stream ends,
   an arena becomes an orphan; `end` is an event behind the stream's work, or 0 if there is none.
   An orphan without memory may serve a new stream.
   Locks: ds__arena_main and ds__arena_in take the device lock; ds__arena_of and ds__arena_join
   expect that lock. Arena locks are taken one at a time inside the device lock. Driver calls run
   under the device lock. ds__record_late even records events under an arena's lock, because the
   block may be freed at any time. ds__arena_drain expects no lock, or `grow` of the arena.
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

/* A stream has several handles when it was wrapped: its arena knows some of them, so that it
   stays in use when one ends. The device is locked. */
static void ds__arena_join(ds__arena *a, ds__stream *s, ds_stream handle) {
    if (a->stream_id == s->id)
        return;
    ds__stream *first = ds__pin(&ds__g.streams, a->stream.id);
    if (first)
        ds__stream_unpin(first);
    else { /* it was given away */
        ds__arena_lock(a);
        a->stream = handle;
        a->stream_id = s->id;
        ds__arena_unlock(a);
        return;
    }
    for (int i = 0; i < 3; i++)
        if (a->twin[i].id == s->id)
            return;
    for (int i = 0; i < 3; i++)
        if (!a->twin[i].id) {
            a->twin[i].stream = handle;
            a->twin[i].id = s->id;
            return;
        }
    a->crowded = 1;
}

/* A handle ends. 1: the stream goes on. */
static int ds__arena_part(ds__arena *a, const ds__stream *s) {
    int i = 0;
    if (!s->borrowed)
        return 0;
    for (; i < 3; i++)
        if (a->twin[i].id == s->id) {
            a->twin[i].id = 0;
            return 1;
        }
    if (a->stream_id != s->id)
        return 1;
    for (i = 0; i < 3 && !a->twin[i].id;)
        i++;
    if (i == 3 && !a->crowded)
        return 0;
    ds__arena_lock(a);
    if (i == 3) {
        a->stream.id = 0;
    } else {
        a->stream = a->twin[i].stream;
        a->stream_id = a->twin[i].id;
        a->twin[i].id = 0;
    }
    ds__arena_unlock(a);
    return 1;
}

/* Whose an arena is. Streams come and go: it stays so only while the arena is locked, and while
   a block of it is taken the arena does not become another stream's. */
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

/* CUDA lets only its own thread put work on a per-thread stream. When that thread has ended, the
   legacy stream comes behind all it did: it is made when such a stream comes to the allocator. */
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

/* The arena of a stream in a pool, made or taken over from an ended stream at its first use.
   NULL and the sentence: no memory. The device is locked. */
static ds__arena *ds__arena_of(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    const void *identity = s->driver->stream_identity(s->native);
    ds__expect_end(s);
    for (ds__arena *a = p->arenas; a; a = a->next)
        if (!a->orphan && (a->stream_id == s->id || a->identity == identity)) {
            ds__arena_join(a, s, handle);
            return a;
        }
    ds__arena *a = p->arenas;
    /* that of an ended stream without memory: streams that come and go need no more arenas */
    for (; a; a = a->next) {
        ds__arena_lock(a);
        int empty = a->orphan && !ds__arena_has_memory(a);
        if (empty) {
            a->orphan = a->crowded = a->slow_free = 0;
            a->stream = handle;
            a->stream_id = s->id;
            a->identity = identity;
            memset(a->twin, 0, sizeof a->twin);
            ds__arena_apply(a);
        }
        ds_event end = a->end;
        if (empty)
            a->end.id = 0;
        ds__arena_unlock(a);
        if (!empty)
            continue;
        ds__event_drop(end);
        return a;
    }
    if (!(a = ds__kept_alloc(sizeof *a))) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of a stream");
        return NULL;
    }
    ds__mutex_init(&a->grow);
    ds__mutex_init(&a->giving);
    a->pool = p;
    a->dev = p->dev;
    a->stream = handle;
    a->stream_id = s->id;
    a->identity = identity;
    ds__arena_apply(a);
    ds__count_in(a, atomic_load(&p->dev->owner) != (void *)(uintptr_t)&ds__no_owner);
    a->next = p->arenas;
    p->arenas = a;
    return a;
}

/* The arena in the device's default pool, which the stream remembers. */
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

static ds__arena *ds__arena_in(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    if (p == &p->dev->main)
        return ds__arena_main(s, handle);
    ds__mem_dev_lock(p->dev);
    ds__arena *a = ds__arena_of(p, s, handle);
    ds__mem_dev_unlock(p->dev);
    return a;
}

/* Records the end of a stream. */
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

/* Uses that a stream was to get an event for at the free get it now, before it ends. Its event
   is recorded under the arena's lock, since the block may be freed at any time: this is rare. */
static void ds__record_late(const ds__stream *s, ds_stream stream) {
    for (int k = 0; k < DS_BACKEND_COUNT * DS__MAX_DEVICES; k++) {
        ds__mem_dev *dev = ds__mem_device_at(k / DS__MAX_DEVICES, k % DS__MAX_DEVICES);
        if (!dev || !atomic_load(&dev->late_uses))
            continue;
        ds__mem_dev_lock(dev);
        for (ds__mem_pool *p = &dev->main; p; p = p->next)
            for (ds__arena *a = p->arenas; a; a = a->next) {
                ds__arena_lock(a);
                for (ds__segment *g = a->segments; g; g = g->next)
                    for (ds__mem_block *b = g->first; b; b = b->next)
                        for (ds__stream_use *u =
                                 b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING ? b->uses
                                                                                           : NULL;
                             u; u = u->next)
                            if (u->stream.id == stream.id && ds__use_claim(u)) {
                                u->lost = ds__record_end(u->event, s, stream) < 0;
                                u->recorded = !u->lost;
                            }
                ds__arena_unlock(a);
            }
        ds__mem_dev_unlock(dev);
    }
}

/* A stream is about to end: its free memory is anyone's once the stream has passed what is on it
   now. Called by ds_stream_destroy. */
static void ds__mem_stream_gone(ds__stream *s) {
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(s->device), s->device.index);
    ds_stream handle = { ds__handle_of(&s->slot) };
    ds__record_late(s, handle); /* blocks of other devices too */
    if (!dev)
        return;
    const void *identity = s->driver->stream_identity(s->native);
    ds__mem_dev_lock(dev);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            if (a->orphan || (a->stream_id != s->id && a->identity != identity) ||
                ds__arena_part(a, s))
                continue;
            ds_event end = { 0 };
            if (!ds__capture_of(s) && ds__event_new(0, NULL, &end) == DS_OK &&
                ds__record_end(end, s, handle) < 0) {
                ds__event_drop(end);
                end.id = 0;
            }
            ds__arena_lock(a);
            a->end = end; /* whoever has taken a block of an orphan reads it */
            a->identity = NULL;
            a->orphan = 1;
            ds__arena_unlock(a);
        }
    ds__mem_dev_unlock(dev);
}

/* Waits until the work is done that may use the arena's free memory. The host blocks. 0: it is
   not known to be done. */
static int ds__arena_drain(ds__arena *a) {
    ds_result r;
    ds__owner o = ds__owner_of(a);
    ds__tls.quiet++;
    /* `grow` may be held: ds__retired_reclaim runs destructors of the user's, and never under a
       lock */
    ds__tls.upper_locked++;
    if (o.orphan && o.end.id) {
        r = ds__event_sync(o.end, DS__FOREVER);
    } else { /* to wait for a stream would spoil a capture that begins on it meanwhile */
        ds__stream_use *u = ds__stream_use_new(a, a->dev->device);
        r = u ? ds__event_record_outside(u->event, o.stream) : DS_NOT_READY;
        if (r == DS_OK)
            r = ds__event_sync(u->event, DS__FOREVER);
        ds__arena_lock(a);
        ds__stream_uses_drop(a, u);
        ds__arena_unlock(a);
    }
    /* the stream has ended, and nobody knows when it is done; or is another thread's own */
    if (r < 0 && r != DS_ERR_FAILED && !ds__captures_open())
        r = ds__driver_of(a->dev->device)->device_synchronize(a->dev->device.index);
    ds__tls.upper_locked--;
    ds__tls.quiet--;
    return r == DS_OK || r == DS_ERR_FAILED;
}

#endif
