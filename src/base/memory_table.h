/* base/memory_table.h - table of all known memory ranges.

   One sorted table holds all memory that was allocated or registered here, of both drivers. With
   it, copies are checked and classified without a driver call. ds__range_hit finds the range of
   a pointer, ds__range_add and ds__range_remove change the table, and DS__HELD_* marks memory of
   the allocator.

   Invariants: ranges are sorted by address and do not overlap. A range is removed before its
   memory is released: of two threads that free the same pointer, one finds it.
   ds__g.range_version is odd during a change; a reader that met a change looks again. An array
   that became too small is kept until ds_shutdown, because readers may still use it.
   Locks: changes hold ds__g.range_lock, and only the bookkeeping allocator runs under it.
   Readers take no lock.
   Threads: any. The last hits are cached in ds__tls, for one version of the table. A result of
   ds__range_hit is valid until the same thread looks up DS__HITS more ranges. */
#ifndef DS__BASE_MEMORY_TABLE_H
#define DS__BASE_MEMORY_TABLE_H

#include "error.h"
#include "state.h"

typedef struct ds__range {
    _Atomic uintptr_t base;
    _Atomic uintptr_t end;
    _Atomic int kind_device;
} ds__range;

struct ds__ranges {
    ds__ranges *older;
    size_t room;
    ds__range at[];
};

/* Part of a range's kind, for memory that only the allocator frees: how the memory is released. */
enum {
    DS__HELD_SPACE = 16,     /* a reservation: what is mapped there, then the addresses */
    DS__HELD_SEGMENT = 32,   /* like the user's */
    DS__HELD_SHARED = 64,    /* other processes may have it */
    DS__HELD_IMPORTED = 128, /* another process's */
    DS__HELD_UPSTREAM = 48,  /* allocated and freed by a pool's upstream */
    DS__HELD_ASYNC = 80,     /* freed in the order of a stream */
    DS__HELD = 240
};

/* Returns the index of the first range that ends after the address. */
static size_t ds__range_after(const ds__ranges *r, size_t count, uintptr_t address) {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (atomic_load_explicit(&r->at[middle].end, memory_order_acquire) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Reads the range that holds the address; returns 0 if there is none. The result is valid only if
   the version of the table is the same before and after. */
static inline int ds__range_read(const ds__ranges *r, size_t count, uintptr_t address,
                                 ds__found *out) {
    size_t i = ds__range_after(r, count, address);
    if (i >= count)
        return 0;
    int kind_device = atomic_load_explicit(&r->at[i].kind_device, memory_order_acquire);
    out->base = atomic_load_explicit(&r->at[i].base, memory_order_acquire);
    out->end = atomic_load_explicit(&r->at[i].end, memory_order_acquire);
    out->kind = (ds_memory_kind)(kind_device & 15);
    out->held = kind_device & DS__HELD;
    out->backend = kind_device >> 8 & 1;
    out->device = kind_device >> 9;
    return address >= out->base && address < out->end;
}

/* Finds the range that holds the address; returns 0 if there is none. Takes no lock, and repeats
   the search if the table changes meanwhile. */
static int ds__range_find(const void *ptr, ds__found *out) {
    uintptr_t address = (uintptr_t)ptr;
    for (;;) {
        uint32_t version = atomic_load_explicit(&ds__g.range_version, memory_order_acquire);
        if (version & 1) {
            ds__processor_pause();
            continue;
        }
        ds__ranges *r = atomic_load_explicit(&ds__g.ranges, memory_order_acquire);
        size_t count = atomic_load_explicit(&ds__g.range_count, memory_order_acquire);
        int found = r && count <= r->room && ds__range_read(r, count, address, out);
        if (atomic_load_explicit(&ds__g.range_version, memory_order_relaxed) == version)
            return found;
    }
}

/* Finds the range of an address and caches it in the thread; NULL: none. The result is valid until
   the thread looks up DS__HITS more ranges. */
__attribute__((noinline)) static const ds__found *ds__range_look(const void *ptr) {
    ds__tls_block *t = &ds__tls;
    uint32_t version = atomic_load_explicit(&ds__g.range_version, memory_order_acquire);
    ds__found f;
    if (!ds__range_find(ptr, &f))
        return NULL;
    if (t->hit_version != version)
        memset(t->hit, 0, sizeof t->hit);
    t->hit_version = version; /* if the table has changed since, the next look finds nothing here */
    ds__found *hit = &t->hit[t->hit_next++ % DS__HITS];
    *hit = f;
    return hit;
}

/* Returns the range of an address, from the thread's cache if possible; NULL: the memory is not
   known. */
static inline const ds__found *ds__range_hit(const void *ptr) {
    const ds__tls_block *t = &ds__tls;
    if (DS__LIKELY(t->hit_version ==
                   atomic_load_explicit(&ds__g.range_version, memory_order_acquire)))
        for (int i = 0; i < DS__HITS; i++)
            if ((uintptr_t)ptr - t->hit[i].base < t->hit[i].end - t->hit[i].base)
                return &t->hit[i];
    return ds__range_look(ptr);
}

static void ds__range_move(ds__range *to, ds__range *from) {
    atomic_store_explicit(&to->base, atomic_load_explicit(&from->base, memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&to->end, atomic_load_explicit(&from->end, memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&to->kind_device,
                          atomic_load_explicit(&from->kind_device, memory_order_relaxed),
                          memory_order_release);
}

/* Replaces the array of ranges by a larger one. Returns NULL if there is no memory. Readers may
   still use the old array, so it is kept until ds_shutdown. ds__g.range_lock is held. */
static ds__ranges *ds__range_grow(ds__ranges *r, size_t count) {
    size_t room = r ? 2 * r->room : 64;
    ds__ranges *more = ds__host_alloc(sizeof *more + room * sizeof more->at[0]);
    if (!more)
        return NULL;
    more->room = room;
    more->older = r;
    for (size_t k = 0; k < count; k++)
        ds__range_move(&more->at[k], &r->at[k]);
    atomic_store_explicit(&ds__g.ranges, more, memory_order_release);
    return more;
}

/* Adds a range. Returns DS_ERR_INVALID_VALUE if it overlaps a known range. Sets no sentence. */
static ds_result ds__range_add(const void *ptr, size_t size, int kind, int backend, int device) {
    uintptr_t base = (uintptr_t)ptr;
    uintptr_t end = base + size;
    ds_result result = DS_OK;
    ds__spinlock_lock(&ds__g.range_lock);
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    size_t i = r ? ds__range_after(r, count, base) : 0;
    if (r && i < count && atomic_load(&r->at[i].base) < end) {
        result = DS_ERR_INVALID_VALUE;
    } else if (!r || count == r->room) {
        r = ds__range_grow(r, count);
        if (!r)
            result = DS_ERR_OUT_OF_MEMORY;
    }
    if (result == DS_OK) {
        atomic_fetch_add(&ds__g.range_version, 1);
        for (size_t k = count; k > i; k--)
            ds__range_move(&r->at[k], &r->at[k - 1]);
        atomic_store(&r->at[i].base, base);
        atomic_store(&r->at[i].end, end);
        atomic_store(&r->at[i].kind_device, kind | backend << 8 | device << 9);
        atomic_store(&ds__g.range_count, count + 1);
        atomic_fetch_add(&ds__g.range_version, 1);
    }
    ds__spinlock_unlock(&ds__g.range_lock);
    return result;
}

/* Removes the range of this kind that begins at ptr. Returns 0 if there is none; of several callers
   one finds it. */
static int ds__range_remove(const void *ptr, int kind, ds__found *out) {
    uintptr_t base = (uintptr_t)ptr;
    int found = 0;
    ds__spinlock_lock(&ds__g.range_lock);
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    size_t i = r ? ds__range_after(r, count, base) : 0;
    if (r && i < count && atomic_load(&r->at[i].base) == base &&
        (atomic_load(&r->at[i].kind_device) & 255) == kind) {
        found = ds__range_find(ptr, out);
        atomic_fetch_add(&ds__g.range_version, 1);
        for (size_t k = i; k + 1 < count; k++)
            ds__range_move(&r->at[k], &r->at[k + 1]);
        atomic_store(&ds__g.range_count, count - 1);
        atomic_fetch_add(&ds__g.range_version, 1);
    }
    ds__spinlock_unlock(&ds__g.range_lock);
    return found;
}

/* Describes the memory of a pointer. Returns 0 if devstream neither allocated nor registered the
   memory; the description is that of pageable memory then. */
static int ds__memory_table_find(const void *ptr, ds_pointer_info *out) {
    const ds__found *f = ds__range_hit(ptr);
    out->kind = f ? f->kind : DS_MEMORY_PAGEABLE;
    out->base = f ? (void *)f->base : NULL;
    out->size = f ? f->end - f->base : 0;
    out->device.type = DS_DEVICE_HOST;
    out->device.index = 0;
    if (f && f->kind == DS_MEMORY_DEVICE) {
        out->device.type = f->backend ? DS_DEVICE_CPU : DS_DEVICE_CUDA;
        out->device.index = f->device;
    }
    return f != NULL;
}

#endif
