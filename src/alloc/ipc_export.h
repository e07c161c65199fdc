/* alloc/ipc_export.h - exporting blocks to other processes.

   Implements ds_mem_export, which writes an IPC handle (ds__ipc_memory) for a block of a shareable
   pool. The records are in ipc_records.h.

   Invariants: A block is marked as exported only if it is still the block that the record was
   made for. At most 1,000 records have an event; for further blocks ds_mem_export waits for the
   stream.
   Locks: ds_mem_export takes ds__share.mutex; the order is in ipc_types.h. Driver calls that do
   not wait for work run under ds__share.mutex; records of events and waits for a stream do not.
   Threads: any caller's thread. */
#ifndef DS__ALLOC_IPC_EXPORT_H
#define DS__ALLOC_IPC_EXPORT_H

#include "../core/internal.h"
#include "../api/share.h"
#include "types.h"
#include "util.h"
#include "block.h"
#include "stream_use.h"
#include "ipc_types.h"
#include "ipc_lease.h"
#include "ipc_records.h"
#include "ipc_collect.h"

/* Exports a segment and takes its export slot, at the first export of one of its blocks.
   ds__share.mutex is held. */
static ds_result ds__export_hold_export(ds__export_hold *h) {
    ds__registry *b;
    ds__export_slot_facts facts = { .size = h->size, .device_type = (uint32_t)h->device.type };
    if (h->generation)
        return DS_OK;
    ds_result r =
        ds__driver_of(h->device)->share_export(h->device.index, h->base, h->size, facts.handle);
    if (r < 0)
        return r;
    ds__registries_lock();
    r = ds__registry_own(&b);
    if (r == DS_OK)
        r = ds__export_slot_create(b, &facts, &h->slot, &h->generation);
    ds__registries_unlock();
    return r;
}

/* Records the record's event behind the work enqueued so far on the block's stream, for importers
   to wait for. *out_wait: 1 if there is no event, so the host must wait for this work. */
static ds_result ds__ipc_export_order(const ds__ipc_export *s, ds_stream stream, int *out_wait) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    ds_result r = DS_OK;
    *out_wait = !of || !s->event.id;
    if (!of)
        return DS_OK;
    ds__hold_captures();
    if (ds__is_capturing(of))
        r = ds__fail(
            DS_ERR_CAPTURE_UNSUPPORTED,
            "the block's stream captures, and captured work does not run; end the capture first");
    else if (s->event.id)
        r = ds__event_record(s->event, stream, DS__OP_RECORD);
    ds__let_captures();
    ds__stream_unpin(of);
    return r;
}

/* Waits for the work on the block's stream so far; `end`: the event of a stream that has ended. No
   lock is held, because the stream may wait for work of a thread that must share memory first. */
static ds_result ds__ipc_export_wait(ds_stream stream, ds_event end) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    if (!of)
        return end.id ? ds__event_sync(end, DS__FOREVER) : DS_OK;
    ds_result r = ds__stream_sync(stream, DS__FOREVER);
    ds__stream_unpin(of);
    return r;
}

/* The members of a block that an export needs, read under the arena's lock. */
typedef struct ds__exported {
    ds__mem_block *block;
    char *start;
    char *base;
    size_t size;
    ds_stream stream;
    ds_event end;
    int shareable;
} ds__exported;

/* Makes a record for a block of an exported segment, with an export slot and an event.
   ds__share.mutex is held. */
static ds_result ds__ipc_export_create(const ds__exported *x, const ds__export_hold *h,
                                       ds__ipc_export **out) {
    ds__ipc_export *s = ds__host_alloc(sizeof *s);
    if (!s)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to export a block");
    s->block = x->block;
    s->ptr = x->start;
    ds__export_slot_facts facts = { .size = x->size,
                                    .offset = (uint64_t)(x->start - x->base),
                                    .segment = h->slot,
                                    .segment_generation = h->generation };
    ds__registries_lock();
    ds_result r = ds__export_slot_create(ds__registries.own, &facts, &s->slot, &s->generation);
    ds__registries_unlock();
    if (r < 0) {
        ds__host_free(s);
        return r;
    }
    if (ds__share.events < DS__SENT_EVENTS) {
        r = ds__event_create(DS_EVENT_INTERPROCESS | DS_EVENT_BLOCKING_WAIT, NULL, &s->event);
        if (r < 0) {
            ds__ipc_export_end(s);
            return r;
        }
        ds__share.events++;
    }
    *out = s;
    return DS_OK;
}

/* Enters the record's event in the export slot for importers, after the event was recorded for the
   first time. ds__share.mutex is held. */
static ds_result ds__ipc_export_event(const ds__ipc_export *s) {
    ds__export_slot_facts *facts = &ds__registries.own->page->slot[s->slot].facts;
    ds__event *e = s->event.id ? ds__event_pin(s->event) : NULL;
    void *native = e ? atomic_load(&e->native) : NULL;
    ds_result r = DS_OK;
    if (native && !atomic_load(&facts->has_event)) {
        r = e->driver->event_export(native, facts->handle); /* importers do not read it yet */
        if (r == DS_OK)
            atomic_store(&facts->has_event, 1);
    }
    if (e)
        ds__event_unpin(e);
    return r;
}

/* Reads the members of the live block of an address. Returns 0 if there is none. */
static int ds__export_look(const void *ptr, ds__exported *x) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
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

/* Marks the block as exported and enters a new record. Returns 0 if the block was freed
   meanwhile. */
static int ds__export_mark(const ds__exported *x, ds__ipc_export *fresh) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(x->start, 1, &a);
    int same = b == x->block;
    if (same && fresh) {
        b->exported = 1;
        ds__spinlock_lock(&ds__share.lock);
        ds__ipc_export **bucket = ds__ipc_export_bucket(x->start);
        fresh->next = *bucket;
        *bucket = fresh;
        ds__spinlock_unlock(&ds__share.lock);
    }
    if (b)
        ds__arena_unlock(a);
    return same;
}

/* Finds or makes the record of a block, for a call of ds_mem_export, and writes the handle.
   ds__share.mutex is held. */
static ds_result ds__block_export(const ds__exported *x, ds__ipc_memory *p, ds__ipc_export **out) {
    ds__ipc_export *s;
    ds__ipc_export *fresh = NULL;
    ds__export_hold *h = ds__share.hoards;
    while (h && h->base != x->base)
        h = h->next;
    if (!h)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                        (void *)x->start);
    ds_result r = ds__export_hold_export(h);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__share.lock);
    s = ds__ipc_export_find(x->start, 0);
    ds__spinlock_unlock(&ds__share.lock);
    if (!s) {
        r = ds__ipc_export_create(x, h, &fresh);
        s = fresh;
    }
    if (r == DS_OK && !ds__export_mark(x, fresh))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                     (void *)x->start);
    if (r < 0) {
        if (fresh)
            ds__ipc_export_end(fresh);
        return r;
    }
    p->version = DS__PARCEL_VERSION;
    p->type = (uint8_t)h->device.type;
    p->pid = ds__registries.own->pid;
    p->fd = ds__registries.own->fd;
    p->cookie = ds__registries.own->cookie;
    p->slot = s->slot;
    p->generation = s->generation;
    s->exports++;
    *out = s;
    return DS_OK;
}

/* Orders importers behind the work enqueued so far on the block's stream. No lock is held. */
static ds_result ds__block_export_order(const ds__exported *x, ds__ipc_export *s) {
    int wait = 0;
    ds_result r = ds__ipc_export_order(s, x->stream, &wait);
    ds__mutex_lock(&ds__share.mutex);
    if (r == DS_OK)
        r = ds__ipc_export_event(s);
    s->exports--;
    ds__mutex_unlock(&ds__share.mutex);
    return r == DS_OK && wait ? ds__ipc_export_wait(x->stream, x->end) : r;
}

DSDEF ds_result(ds_mem_export)(const void *ptr, ds_ipc_mem_handle *out) {
    ds__exported x;
    ds__ipc_memory p;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_mem_export");
    DS__REQUIRE(out, "out is NULL");
    memset(&p, 0, sizeof p);
    if (!ds__export_look(ptr, &x)) {
        ds__mutex_lock(&ds__share.mutex);
        int foreign = ds__got_of(ptr) != NULL;
        ds__mutex_unlock(&ds__share.mutex);
        DS__REQUIRE(!foreign, "%p was imported; only the process that allocated it can export it",
                    ptr);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live allocation", ptr);
    }
    DS__REQUIRE(x.shareable,
                "the block at %p does not belong to a shareable pool; set ds_pool_desc.shareable",
                (void *)x.start);
    ds__ipc_export *s = NULL;
    ds__mutex_lock(&ds__share.mutex);
    ds_result r = ds__block_export(&x, &p, &s);
    ds__mutex_unlock(&ds__share.mutex);
    if (r == DS_OK)
        r = ds__block_export_order(&x, s);
    ds__share_collect_by_the_way();
    if (r < 0)
        return r;
    p.inner = (uint64_t)((const char *)ptr - x.start);
    memcpy(out, &p, sizeof p);
    return DS_OK;
}

#endif
