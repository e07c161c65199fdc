/* base/mapping.h - list of mappings in reserved address space.

   Records for both drivers which parts of reserved address space have memory behind them. A
   driver adds a mapping (ds__mapping_add) before it maps memory and takes the mapping out
   (ds__mapping_remove) before it unmaps it. So mappings that overlap are refused.
   ds__mapping_check finds ranges that do not end at the bounds of mappings, since cuMemUnmap
   takes whole mappings only.

   Invariants: ds__g.mappings is sorted by address, and no two mappings overlap.
   Locks: all functions but ds__mapping_after take ds__g.mapping_lock; that one expects it. The
   user's allocator may run under the lock, a driver call may not.
   Threads: any thread. Check and take are separate steps, so two threads must not unmap the same
   range. */
#ifndef DS__BASE_MAPPING_H
#define DS__BASE_MAPPING_H

#include "error.h"
#include "state.h"

/* Returns the index of the first mapping that ends after the address. The lock is held. */
static size_t ds__mapping_after(uintptr_t address) {
    size_t low = 0;
    size_t high = ds__g.mapping_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ds__g.mappings[middle].at + ds__g.mappings[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds mappings of `page` bytes each, all or none. Refuses those that overlap a known mapping. */
DS__SEAM static ds_result ds__mapping_add(void *ptr, size_t size, size_t page) {
    uintptr_t at = (uintptr_t)ptr;
    size_t count = size / page;
    ds_result r = DS_OK;
    ds__spinlock_lock(&ds__g.mapping_lock);
    size_t i = ds__mapping_after(at);
    if (i < ds__g.mapping_count && ds__g.mappings[i].at < at + size)
        r = DS_ERR_INVALID_VALUE;
    else if (!ds__array_reserve(&ds__g.mappings, sizeof *ds__g.mappings, ds__g.mapping_count, count,
                                &ds__g.mapping_room))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) {
        ds__mapping *first = ds__g.mappings + i;
        memmove(first + count, first, (ds__g.mapping_count - i) * sizeof *first);
        ds__g.mapping_count += count;
        for (size_t k = 0; k < count; k++) {
            first[k].at = at + k * page;
            first[k].size = page;
        }
    }
    ds__spinlock_unlock(&ds__g.mapping_lock);
    if (r == DS_ERR_INVALID_VALUE)
        return ds__fail(r, "%zu bytes at %p overlap mapped memory", size, ptr);
    return r == DS_OK ? r : ds__fail(r, "no memory to keep track of %zu mapped bytes", size);
}

/* Removes the first mapping that begins in [at, end). Returns 0 if there is none. */
DS__SEAM static int ds__mapping_remove(uintptr_t at, uintptr_t end, ds__mapping *out) {
    ds__spinlock_lock(&ds__g.mapping_lock);
    size_t i = ds__mapping_after(at);
    int found = i < ds__g.mapping_count && ds__g.mappings[i].at >= at && ds__g.mappings[i].at < end;
    if (found) {
        *out = ds__g.mappings[i];
        memmove(ds__g.mappings + i, ds__g.mappings + i + 1,
                (--ds__g.mapping_count - i) * sizeof *ds__g.mappings);
        atomic_store_explicit(&ds__g.mapping_taken, 1, memory_order_relaxed);
    }
    ds__spinlock_unlock(&ds__g.mapping_lock);
    return found;
}

/* Removes all mappings that begin in the range. */
DS__SEAM static void ds__mapping_remove_all(void *ptr, size_t size) {
    uintptr_t at = (uintptr_t)ptr;
    ds__spinlock_lock(&ds__g.mapping_lock);
    size_t first = ds__mapping_after(at);
    size_t end = first;
    while (end < ds__g.mapping_count && ds__g.mappings[end].at < at + size)
        end++;
    memmove(ds__g.mappings + first, ds__g.mappings + end,
            (ds__g.mapping_count - end) * sizeof *ds__g.mappings);
    ds__g.mapping_count -= end - first;
    if (end > first)
        atomic_store_explicit(&ds__g.mapping_taken, 1, memory_order_relaxed);
    ds__spinlock_unlock(&ds__g.mapping_lock);
}

/* Returns 1 if all of the range is mapped. */
DS__SEAM static int ds__mapping_covers(uintptr_t at, size_t size) {
    uintptr_t end = at + size;
    ds__spinlock_lock(&ds__g.mapping_lock);
    for (size_t i = ds__mapping_after(at);
         at < end && i < ds__g.mapping_count && ds__g.mappings[i].at <= at; i++)
        at = ds__g.mappings[i].at + ds__g.mappings[i].size;
    ds__spinlock_unlock(&ds__g.mapping_lock);
    return at >= end;
}

/* Checks that the range consists of whole mappings. */
DS__SEAM static ds_result ds__mapping_check(void *ptr, size_t size) {
    uintptr_t at = (uintptr_t)ptr;
    uintptr_t end = at + size;
    ds__spinlock_lock(&ds__g.mapping_lock);
    for (size_t i = ds__mapping_after(at);
         at < end && i < ds__g.mapping_count && ds__g.mappings[i].at == at; i++)
        at += ds__g.mappings[i].size;
    ds__spinlock_unlock(&ds__g.mapping_lock);
    return at == end && size ? DS_OK
                             : ds__fail(DS_ERR_INVALID_VALUE,
                                        "%zu bytes at %p are not a mapped range", size, ptr);
}

#endif
