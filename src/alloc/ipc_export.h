/* alloc/ipc_export.h - exporting blocks to other processes.

   Implements ds_mem_export, which writes an IPC handle (ds__parcel) for a block of a shareable
   pool. ds__share_segment_alloc and ds__share_segment_free are the memory source of such pools;
   each segment has a record (ds__hoard). ds__share_hold keeps a freed block back while other
   processes have leases of it.

   Invariants: A live exported block has one record (ds__sent), in the bucket of its address. A
   free moves the record to `limbo` if the block has leases, else to `over`. A segment given back
   stays while other processes have it open. At most 1,000 records have an event; for further
   blocks ds_mem_export waits for the stream.
   Locks: ds_mem_export and the functions of segments take ds__share.mutex; the order is in
   ipc_types.h. Callers of the functions of segments usually hold `grow` of an arena. Driver
   calls that do not wait for work run under ds__share.mutex; waits for a stream do not.
   ds__share_hold expects the arena's lock and takes ds__share.lock.
   Threads: any caller's thread. */
#ifndef DS__ALLOC_IPC_EXPORT_H
#define DS__ALLOC_IPC_EXPORT_H

#include "../core/init.h"
#include "../core/thread.h"
#include "../core/stream.h"
#include "../core/stream_sync.h"
#include "../core/event.h"
#include "../core/event_sync.h"
#include "../core/memory_table.h"
#include "../core/segment.h"
#include "../api/share.h"
#include "types.h"
#include "util.h"
#include "block.h"
#include "stream_use.h"
#include "ipc_types.h"
#include "ipc_lease.h"

static ds__sent **ds__sent_bucket(const char *ptr) {
    return &ds__share.bucket[(uintptr_t)ptr / DS__UNIT % DS__SENT_BUCKETS];
}

/* The record of a live exported block; NULL: none. take: it leaves its bucket. The lock is held. */
static ds__sent *ds__sent_find(const char *ptr, int take) {
    ds__sent **p = ds__sent_bucket(ptr);
    while (*p && (*p)->ptr != ptr)
        p = &(*p)->next;
    ds__sent *s = *p;
    if (s && take)
        *p = s->next;
    return s;
}

/* The user has freed the block; its arena is locked. 1: other processes still have it. */
static int ds__share_hold(ds__mblock *b) {
    ds__lock_take(&ds__share.lock);
    ds__sent *s = ds__sent_find(b->ptr, 1);
    int leased = 0;
    if (s) {
        ds__stake_close(s->stake);
        leased = ds__stake_leased(s->stake, 0);
        ds__sent **list = leased ? &ds__share.limbo : &ds__share.over;
        s->next = *list;
        *list = s;
        if (leased)
            atomic_fetch_add(&ds__share.in_limbo, 1);
        else
            b->exported = 0;
    }
    ds__lock_give(&ds__share.lock);
    return leased;
}

/* Ends what the record of a block that nobody else has stands for. The mutex is held. */
static void ds__sent_clear(ds__sent *s) {
    if (s->event.id) {
        ds__event_drop(s->event);
        ds__share.events--;
    }
    ds__boards_lock();
    ds__stake_end(ds__boards.own, s->stake);
    ds__boards_unlock();
}

static void ds__sent_end(ds__sent *s) {
    ds__sent_clear(s);
    ds__release(s);
}

/* The segment's memory, which the allocator has given back and nobody has open, or which stays
   where it is. The mutex is held. */
static void ds__hoard_end(ds__hoard *h, int stays) {
    ds__found f;
    if (stays)
        (void)ds__range_remove(h->base, DS_MEMORY_DEVICE | DS__HELD_SHARED, &f);
    else
        DS_IGNORE(ds__shared_segment_free(h->device, h->base, h->size,
                                          1)); /* the allocator has waited for the device */
    if (h->generation && !stays) {
        ds__boards_lock();
        ds__stake_end(ds__boards.own, h->stake);
        ds__boards_unlock();
    }
    ds__release(h);
}

/* The mutex is held. */
static void ds__hoards_collect(void) {
    for (ds__hoard **p = &ds__share.hoards; *p;) {
        ds__hoard *h = *p;
        int leased = h->over && h->generation && ds__stake_leased(h->stake, 1);
        /* on a CPU device only the name goes */
        int stays = leased && ds__share.ending && h->device.type == DS_DEVICE_CUDA;
        if (stays)
            ds__warn("%zu bytes at %p stay until the process ends: other processes have them open",
                     h->size, (void *)h->base);
        if (!h->over || (leased && !ds__share.ending)) {
            p = &h->next;
            continue;
        }
        *p = h->next;
        ds__hoard_end(h, stays);
    }
}

static ds_result ds__share_segment_alloc(ds_device device, size_t size, void **out) {
    ds__hoard *h = ds__alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a segment");
    ds_result r = ds__shared_segment_alloc(device, size, out);
    if (r < 0) {
        ds__release(h);
        return r;
    }
    h->device = device;
    h->base = *out;
    h->size = size;
    pthread_mutex_lock(&ds__share.mutex);
    ds__share.ending = 0;
    h->next = ds__share.hoards;
    ds__share.hoards = h;
    pthread_mutex_unlock(&ds__share.mutex);
    return DS_OK;
}

static ds_result ds__share_segment_free(ds_device device, void *ptr, size_t size) {
    (void)size;
    ds__tls.quiet++;
    ds_result r = ds__driver_of(device)->memory_wait(device.index);
    ds__tls.quiet--;
    if (r < 0)
        return r;
    pthread_mutex_lock(&ds__share.mutex);
    for (ds__hoard *h = ds__share.hoards; h; h = h->next)
        if (h->base == ptr) {
            h->over = 1;
            if (h->generation)
                ds__stake_close(h->stake);
        }
    ds__hoards_collect();
    pthread_mutex_unlock(&ds__share.mutex);
    return DS_OK;
}

/* The name and the stake of the segment, made at its first export. The mutex is held. */
static ds_result ds__hoard_export(ds__hoard *h) {
    ds__board *b;
    unsigned char handle[64];
    if (h->generation)
        return DS_OK;
    ds_result r = ds__driver_of(h->device)->share_export(h->device.index, h->base, h->size, handle);
    if (r < 0)
        return r;
    ds__stake_facts facts = { .size = h->size, .device_type = (uint32_t)h->device.type };
    memcpy(facts.handle, handle, sizeof facts.handle);
    ds__boards_lock();
    r = ds__board_own(&b);
    if (r == DS_OK)
        r = ds__stake_new(b, &facts, &h->stake, &h->generation);
    ds__boards_unlock();
    return r;
}

/* Orders what importers do behind the work on the block's stream so far by the record's event. If
   there is none, *out_wait is set. */
static ds_result ds__sent_order(const ds__sent *s, ds_stream stream, int *out_wait) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    ds_result r = DS_OK;
    *out_wait = !of || !s->event.id;
    if (!of)
        return DS_OK;
    ds__hold_captures();
    if (ds__is_capturing(of))
        r = ds__fail(
            DS_ERR_CAPTURE_UNSUPPORTED,
            "the block's stream captures, and nothing that is captured runs before a launch");
    else if (s->event.id)
        r = ds__event_record(s->event, stream, DS__OP_RECORD);
    ds__let_captures();
    ds__stream_unpin(of);
    return r;
}

/* Waits for the work on the block's stream so far; `end` is the last work of a stream that has
   ended. No lock is held: another thread may have to share memory before the stream goes on. */
static ds_result ds__sent_wait(ds_stream stream, ds_event end) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    if (!of)
        return end.id ? ds__event_sync(end, DS__FOREVER) : DS_OK;
    ds_result r = ds__stream_sync(stream, DS__FOREVER);
    ds__stream_unpin(of);
    return r;
}

/* What an export needs to know of a block, as it is found under its arena's lock. */
typedef struct ds__exported {
    ds__mblock *block;
    char *start;
    char *base;
    size_t size;
    ds_stream stream;
    ds_event end;
    int shareable;
} ds__exported;

/* A record for a block of the segment. The mutex is held. */
static ds_result ds__sent_new(const ds__exported *x, const ds__hoard *h, ds__sent **out) {
    ds__sent *s = ds__alloc(sizeof *s);
    if (!s)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to export a block");
    s->block = x->block;
    s->ptr = x->start;
    ds__stake_facts facts = { .size = x->size,
                              .offset = (uint64_t)(x->start - x->base),
                              .segment = h->stake,
                              .segment_generation = h->generation };
    ds__boards_lock();
    ds_result r = ds__stake_new(ds__boards.own, &facts, &s->stake, &s->generation);
    ds__boards_unlock();
    if (r < 0) {
        ds__release(s);
        return r;
    }
    if (ds__share.events < DS__SENT_EVENTS &&
        (r = ds__event_new(DS_EVENT_INTERPROCESS | DS_EVENT_BLOCKING_WAIT, NULL, &s->event)) ==
            DS_OK)
        ds__share.events++;
    if (r < 0) {
        ds__sent_end(s);
        return r;
    }
    *out = s;
    return DS_OK;
}

/* Importers find the record's event on its export slot, from its first record on. The mutex is
   held. */
static ds_result ds__sent_event(const ds__sent *s) {
    ds__stake_facts *facts = &ds__boards.own->sheet->stake[s->stake].facts;
    unsigned char handle[64];
    ds__event *e = s->event.id ? ds__event_pin(s->event) : NULL;
    void *native = e ? atomic_load(&e->native) : NULL;
    ds_result r = DS_OK;
    if (native && !atomic_load(&facts->has_event) &&
        (r = e->driver->event_export(native, handle)) == DS_OK) {
        memcpy(facts->handle, handle, sizeof facts->handle);
        atomic_store(&facts->has_event, 1);
    }
    if (e)
        ds__event_unpin(e);
    return r;
}

static int ds__export_look(const void *ptr, ds__exported *x) {
    ds__arena *a = NULL;
    ds__mblock *b = ds__find_live(ptr, 0, &a);
    memset(x, 0, sizeof *x);
    if (!b)
        return 0;
    x->block = b;
    x->start = b->ptr;
    x->base = b->seg->base;
    x->size = b->size;
    x->stream = b->lent && b->uses ? b->uses->stream : a->stream;
    x->end = a->end;
    x->shareable = b->seg->source == DS__FROM_SHARE;
    ds__arena_unlock(a);
    return 1;
}

/* Marks the block as exported, if it is still the same one, and enters a record that is new. */
static int ds__export_mark(const ds__exported *x, ds__sent *fresh) {
    ds__arena *a = NULL;
    ds__mblock *b = ds__find_live(x->start, 1, &a);
    int same = b == x->block;
    if (same && fresh) {
        b->exported = 1;
        ds__lock_take(&ds__share.lock);
        ds__sent **bucket = ds__sent_bucket(x->start);
        fresh->next = *bucket;
        *bucket = fresh;
        ds__lock_give(&ds__share.lock);
    }
    if (b)
        ds__arena_unlock(a);
    return same;
}

/* The mutex is held. *out_wait: ds__sent_wait is still to come. */
static ds_result ds__block_export(const ds__exported *x, ds__parcel *p, int *out_wait) {
    ds__sent *s;
    ds__sent *fresh = NULL;
    ds__hoard *h = ds__share.hoards;
    while (h && h->base != x->base)
        h = h->next;
    if (!h)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                        (void *)x->start);
    ds_result r = ds__hoard_export(h);
    if (r < 0)
        return r;
    ds__lock_take(&ds__share.lock);
    s = ds__sent_find(x->start, 0);
    ds__lock_give(&ds__share.lock);
    if (!s && (r = ds__sent_new(x, h, &fresh)) == DS_OK)
        s = fresh;
    if (r == DS_OK)
        r = ds__sent_order(s, x->stream, out_wait);
    if (r == DS_OK)
        r = ds__sent_event(s);
    if (r == DS_OK && !ds__export_mark(x, fresh))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                     (void *)x->start);
    if (r < 0) {
        if (fresh)
            ds__sent_end(fresh);
        return r;
    }
    p->version = DS__PARCEL_VERSION;
    p->type = (uint8_t)h->device.type;
    p->pid = ds__boards.own->pid;
    p->fd = ds__boards.own->fd;
    p->cookie = ds__boards.own->cookie;
    p->stake = s->stake;
    p->generation = s->generation;
    return DS_OK;
}

static void ds__share_collect_by_the_way(void);
static ds__got *ds__got_of(const void *ptr);

DSDEF ds_result(ds_mem_export)(const void *ptr, ds_ipc_mem_handle *out) {
    ds__exported x;
    ds__parcel p;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_mem_export");
    DS__REQUIRE(out, "out is NULL");
    memset(&p, 0, sizeof p);
    if (!ds__export_look(ptr, &x)) {
        pthread_mutex_lock(&ds__share.mutex);
        int foreign = ds__got_of(ptr) != NULL;
        pthread_mutex_unlock(&ds__share.mutex);
        DS__REQUIRE(!foreign, "%p was imported; the process that allocated it exports it", ptr);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is in no block that is allocated", ptr);
    }
    DS__REQUIRE(x.shareable,
                "the block at %p is not of a shareable pool (ds_pool_desc), and only such memory "
                "can be opened by other processes",
                (void *)x.start);
    int wait = 0;
    pthread_mutex_lock(&ds__share.mutex);
    ds_result r = ds__block_export(&x, &p, &wait);
    pthread_mutex_unlock(&ds__share.mutex);
    if (r == DS_OK && wait)
        r = ds__sent_wait(x.stream, x.end);
    ds__share_collect_by_the_way();
    if (r < 0)
        return r;
    p.inner = (uint64_t)((const char *)ptr - x.start);
    memcpy(out, &p, sizeof p);
    return DS_OK;
}

#endif
