/* alloc/ipc_import.h - importing blocks of other processes.

   Implements ds_mem_import and ds_mem_import_close. ds__guest_of opens a segment of another
   process, ds__got_create takes the lease of a block, and ds__ipc_memory_wait makes the stream wait
   for the exporter's work.

   Invariants: A block that is imported several times on a device has one record (ds__got) and
   one address. `open` counts imports to be closed; `left` also counts closed imports before
   their callback. An IPC handle names an export slot only: sizes and places are read there,
   under the slot's lease.
   Locks: ds__share.mutex is held while segments are opened and closed, including the driver calls,
   but not while work is enqueued on a stream. The registries' mutex is taken inside.
   ds__got_passed takes no lock.
   Threads: any caller's thread. ds__got_passed runs on a driver thread, as the callback on the
   stream, or on the caller's thread after a failure. */
#ifndef DS__ALLOC_IPC_IMPORT_H
#define DS__ALLOC_IPC_IMPORT_H

#include "../api/share.h"
#include "../core/internal.h"
#include "pool.h"
#include "stream_use.h"
#include "ipc_types.h"
#include "ipc_lease.h"
#include "ipc_records.h"
#include "ipc_collect.h"

/* Ends a closed import after its stream has reached the close. Runs on a thread of the driver, and
   takes no lock. */
static void ds__got_passed(ds_stream stream, ds_result status, void *user) {
    ds__got *g = user;
    (void)stream;
    (void)status;
    if (atomic_fetch_sub(&g->left, 1) != 1)
        return;
    ds__lease_unref(g->guest->registry, g->slot, g->lease);
    atomic_store(&g->gone, 1); /* now other threads may free the record */
}

/* Copies the description of an export slot. Another process can write the original at any time, so
   only a copy can be checked. */
static void ds__facts_read(const ds__registry *b, uint32_t slot, ds__export_slot_facts *out) {
    const volatile unsigned char *from = (const volatile void *)&b->page->slot[slot].facts;
    for (size_t i = 0; i < sizeof *out; i++)
        ((unsigned char *)out)[i] = from[i];
}

/* Opens the memory of a segment, whose lease is taken. The driver checks the size, which the other
   process has written. ds__share.mutex is held. */
static ds_result ds__guest_open(ds__guest *q) {
    ds__export_slot_facts facts;
    void *base = NULL;
    ds__facts_read(q->registry, q->slot, &facts);
    if (facts.device_type != (uint32_t)q->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory is not of a %s device and cannot be imported on one",
                        ds__type_name(q->device.type));
    DS__REQUIRE(facts.size && facts.size <= SIZE_MAX / 2,
                "the exporter's registry names a segment of %llu bytes",
                (unsigned long long)facts.size);
    q->size = (size_t)facts.size;
    ds_result r = ds__shared_segment_create(q->device, facts.handle, q->size, &base);
    q->base = base;
    return r;
}

/* Returns the open segment of a block, or NULL. ds__share.mutex is held. */
static ds__guest *ds__guest_find(ds_device device, const ds__export_slot_facts *block,
                                 const ds__registry *b) {
    ds__guest *q = ds__share.guests;
    while (q && (q->registry != b || q->slot != block->segment ||
                 q->generation != block->segment_generation || q->device.index != device.index ||
                 q->device.type != device.type))
        q = q->next;
    return q;
}

/* Returns the segment of a block of another process, which is opened at the first import of its
   blocks. An opened segment refers to the registry `b`. ds__share.mutex is held. */
static ds_result ds__guest_of(ds_device device, const ds__export_slot_facts *block, ds__registry *b,
                              ds__guest **out) {
    ds__guest *q = ds__guest_find(device, block, b);
    *out = q;
    if (q)
        return DS_OK;
    q = ds__host_alloc(sizeof *q);
    if (!q)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to import a block");
    q->device = device;
    q->registry = b;
    q->slot = block->segment;
    q->generation = block->segment_generation;
    ds_result r = ds__lease_ref(b, q->slot, q->generation, &q->lease);
    if (r == DS_OK) {
        r = ds__guest_open(q);
        if (r < 0)
            ds__lease_unref(b, q->slot, q->lease);
    }
    if (r < 0) {
        ds__host_free(q);
        return r;
    }
    ds__registries_lock();
    b->users++;
    ds__registries_unlock();
    q->next = ds__share.guests;
    ds__share.guests = q;
    *out = q;
    return DS_OK;
}

/* Adds an import of a block that is imported already, and returns its record. Returns NULL if the
   block is not imported, or if all imports are closed and their callbacks have run. ds__share.mutex
   is held. */
static ds__got *ds__got_again(ds_device device, const ds__ipc_memory *p, const ds__registry *b) {
    for (ds__got *g = ds__share.got; g; g = g->next) {
        int left = atomic_load(&g->left);
        if (g->guest->registry != b || g->slot != p->slot || g->generation != p->generation)
            continue;
        if (g->guest->device.type != device.type || g->guest->device.index != device.index)
            continue;
        while (left > 0)
            if (atomic_compare_exchange_weak(&g->left, &left, left + 1)) {
                g->open++;
                return g;
            }
    }
    return NULL;
}

/* Checks that the handle's pointer is inside of the block. */
static ds_result ds__inner_check(const ds__ipc_memory *p, size_t size) {
    DS__REQUIRE(p->inner < size, "the handle names byte %llu of a block of %zu bytes",
                (unsigned long long)p->inner, size);
    return DS_OK;
}

/* Checks that a block is inside of its opened segment: another process has written its place. */
static ds_result ds__block_check(const ds__export_slot_facts *block, const ds__guest *q) {
    DS__REQUIRE(block->offset <= q->size && block->size <= q->size - block->offset,
                "the exporter's registry names %llu bytes at offset %llu of a segment of %zu bytes",
                (unsigned long long)block->size, (unsigned long long)block->offset, q->size);
    return DS_OK;
}

/* Opens the segment of a block whose lease is taken, and sets the place of the block. The
   description of the block is checked: another process has written it. ds__share.mutex is held. */
static ds_result ds__got_open(ds_device device, const ds__ipc_memory *p, ds__registry *b,
                              ds__got *g) {
    ds__export_slot_facts facts;
    ds__facts_read(b, p->slot, &facts);
    ds_result r = ds__inner_check(p, (size_t)facts.size);
    if (r < 0)
        return r;
    DS__REQUIRE(facts.segment < DS__EXPORT_SLOTS,
                "the exporter's registry names segment %u; at most %d are allowed", facts.segment,
                DS__EXPORT_SLOTS - 1);
    r = ds__guest_of(device, &facts, b, &g->guest);
    if (r < 0)
        return r;
    r = ds__block_check(&facts, g->guest);
    if (r == DS_OK)
        g->guest->blocks++;
    if (!g->guest->blocks)
        ds__guest_end(g->guest);
    if (r < 0)
        return r;
    g->ptr = g->guest->base + facts.offset;
    g->size = (size_t)facts.size;
    return DS_OK;
}

/* Makes a record of an import: takes the lease of the block, and opens its segment. ds__share.mutex
   is held. */
static ds_result ds__got_create(ds_device device, const ds__ipc_memory *p, ds__registry *b,
                                ds__got **out) {
    ds__got *g = ds__host_alloc(sizeof *g);
    if (!g)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to import a block");
    ds_result r = ds__lease_ref(b, p->slot, p->generation, &g->lease);
    if (r == DS_OK) {
        r = ds__got_open(device, p, b, g);
        if (r < 0)
            ds__lease_unref(b, p->slot, g->lease);
    }
    if (r < 0) {
        ds__host_free(g);
        return r;
    }
    g->slot = p->slot;
    g->generation = p->generation;
    g->open = 1;
    atomic_store(&g->left, 1);
    g->next = ds__share.got;
    ds__share.got = g;
    *out = g;
    return DS_OK;
}

/* Makes the stream wait for the work that the exporter had enqueued before the export. */
static ds_result ds__got_wait(const ds__got *g, ds_stream stream) {
    const ds__export_slot_facts *facts = &g->guest->registry->page->slot[g->slot].facts;
    ds_event event = { 0 };
    if (!atomic_load(&facts->has_event))
        return DS_OK;
    ds_result r = ds__event_open(g->guest->device, facts->handle, &event);
    if (r == DS_OK)
        r = ds__wait_event(stream, event, DS__OP_WAIT);
    ds__use_event_destroy(event);
    return r;
}

/* Takes an import back. The mutex is held. */
static void ds__got_refuse(ds__got *g) {
    g->open--;
    ds__got_passed((ds_stream){ 0 }, DS_OK, g);
    ds__got_collect(0);
}

/* Opens a block, or adds an import of an open one. The mutex is held. */
static ds_result ds__block_import(ds_device device, const ds__ipc_memory *p, ds__got **out) {
    ds__registry *b = NULL;
    ds__registries_lock();
    ds_result r = ds__registry_open(p->pid, p->fd, p->cookie, &b);
    ds__registries_unlock();
    if (r < 0)
        return r;
    ds__got *g = ds__got_again(device, p, b);
    if (!g)
        r = ds__got_create(device, p, b, &g);
    if (r == DS_OK)
        r = ds__inner_check(p, g->size);
    if (r < 0 && g)
        ds__got_refuse(g);
    ds__registries_lock();
    ds__registry_close(b);
    ds__registries_unlock();
    *out = g;
    return r;
}

/* Checks the bytes of a handle, as far as possible without the exporter's registry. */
static ds_result ds__ipc_memory_check(const ds__ipc_memory *p, ds_device device) {
    static const ds__ipc_memory none;
    DS__REQUIRE(p->version != 0 && p->version <= 64, "the handle was not written by ds_mem_export");
    if (p->version != DS__PARCEL_VERSION)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the handle has version %d; versions up to %d are supported", p->version,
                        DS__PARCEL_VERSION);
    DS__REQUIRE(p->slot < DS__EXPORT_SLOTS && !memcmp(p->zero, none.zero, sizeof p->zero) &&
                    !p->zero_too && !memcmp(p->rest, none.rest, sizeof p->rest),
                "the handle was not written by ds_mem_export");
    if (p->type != device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory is of a %s device and cannot be imported on a %s device",
                        ds__type_name(p->type), ds__type_name(device.type));
    return DS_OK;
}

DSDEF ds_result(ds_mem_import)(ds_device device, const ds_ipc_mem_handle *handle, ds_stream stream,
                               void **out) {
    ds__ipc_memory p;
    ds__got *g = NULL;
    if (out)
        *out = NULL;
    DS__ENTER("ds_mem_import");
    DS__REQUIRE(out && handle, "%s is NULL", out ? "handle" : "out");
    DS__RESOLVE(device);
    memcpy(&p, handle, sizeof p);
    ds_result r = ds__ipc_memory_check(&p, device);
    if (r < 0)
        return r;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    if (s->device.type != device.type || s->device.index != device.index)
        r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                     "the stream belongs to %s:%d, but the import is for %s:%d",
                     ds__type_name(s->device.type), s->device.index, ds__type_name(device.type),
                     device.index);
    else if (ds__is_capturing(s))
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "memory cannot be imported on a stream that captures");
    ds__stream_unpin(s);
    if (r < 0)
        return r;
    r = ds__mem_setup(); /* then ds_shutdown ends the import */
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__share.mutex);
    ds__got_collect(0);
    r = ds__block_import(device, &p, &g);
    ds__mutex_unlock(&ds__share.mutex);
    if (r < 0)
        return r;
    r = ds__got_wait(g, stream);
    if (r < 0) {
        ds__mutex_lock(&ds__share.mutex);
        ds__got_refuse(g);
        ds__mutex_unlock(&ds__share.mutex);
        return r;
    }
    *out = g->ptr + p.inner;
    return DS_OK;
}

/* Enqueues the callback that ends the import. No lock is held. */
static ds_result ds__got_close(ds__got *g, ds__stream *s, ds_stream stream) {
    ds__op op = ds__op_init(DS__OP_CALLBACK);
    op.u.host.fn = NULL;
    op.u.host.callback = ds__got_passed;
    op.u.host.user = g;
    op.u.host.dtor_fn = NULL;
    op.u.host.stream = stream.id;
    if (ds__is_capturing(s))
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "imported memory cannot be closed on a stream that captures");
    ds_result r = ds__stream_submit(s, &op);
    if (r != DS_ERR_FAILED && r != DS_ERR_PEER_DIED)
        return r;
    /* a failed stream runs no further work */
    DS_IGNORE(s->driver->stream_synchronize(s->native, DS__FOREVER));
    ds__got_passed(stream, DS_OK, g);
    return DS_OK;
}

DSDEF ds_result(ds_mem_import_close)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_import_close");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&ds__share.mutex);
    ds__got *g = ds__got_of(ptr);
    ds_result r = DS_OK;
    if (!g)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside imported memory", ptr);
    else if (g->guest->device.type != s->device.type)
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the memory and the stream belong to different drivers");
    else
        g->open--; /* no other call closes this import */
    ds__mutex_unlock(&ds__share.mutex);
    if (r == DS_OK) {
        r = ds__got_close(g, s, stream);
        ds__mutex_lock(&ds__share.mutex);
        if (r < 0)
            g->open++;
        ds__got_collect(0);
        ds__mutex_unlock(&ds__share.mutex);
    }
    ds__stream_unpin(s);
    ds__share_collect_by_the_way();
    return r;
}

#endif
