/* alloc/address.h - look-up of a segment by address.

   Finds the segment of an address for frees and queries (ds__segment_of). A two-level table
   serves most look-ups: a root of leaves of 16 GiB, each with an entry for every 2 MiB
   (granule). If several segments share a granule, ds__segment_shared searches the sorted list of
   all segments. ds__address_granules_set enters and removes the granules of a segment.

   Invariants: A leaf stays until shutdown. A granule that two segments have used keeps the mark
   for shared granules (the lowest bit) until shutdown. A look-up may return a segment that was
   given back, so the caller must compare `arena` again under the arena's lock.
   ds__segment_shared skips segments marked by ds__segment_leaves: the driver may give their
   addresses to new segments.
   Locks: The table is read without a lock. ds__segment_shared and ds__segment_leaves take the
   registry lock (ds__memory_state.registry), the innermost lock. ds__address_granules_set and
   ds__sorted_after expect the registry lock. The program's memory functions may be called under the
   registry lock, the driver is not.
   Threads: any thread may look up an address while other threads add and remove segments. */
#ifndef DS__ALLOC_ADDRESS_H
#define DS__ALLOC_ADDRESS_H

#include "types.h"
#include "state.h"
#include "util.h"

#define DS__GRANULE_BITS 21

/* Returns the entry of an address in the table, or NULL if its leaf was never made. */
static inline ds__segment *_Atomic *ds__granule_at(uintptr_t address) {
    if (address >> 47) /* not an address of user space */
        return NULL;
    ds__segment *_Atomic *leaf =
        atomic_load_explicit(&ds__memory_state.root[address >> 34], memory_order_acquire);
    return leaf ? &leaf[address >> DS__GRANULE_BITS & 8191] : NULL;
}

/* Returns the index of the first segment that starts behind the address. The registry is locked. */
static size_t ds__sorted_after(uintptr_t address) {
    size_t low = 0;
    size_t high = ds__memory_state.sorted_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)ds__memory_state.sorted[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ds__segment *ds__segment_shared(const void *ptr);

/* Returns the segment of an address, or NULL. The segment may have been given back. */
static inline ds__segment *ds__segment_of(const void *ptr) {
    ds__segment *_Atomic *at = ds__granule_at((uintptr_t)ptr);
    ds__segment *s = at ? atomic_load_explicit(at, memory_order_acquire) : NULL;
    return DS__LIKELY(((uintptr_t)s & 1) == 0) ? s : ds__segment_shared(ptr);
}

/* Searches the list of all segments, for addresses in a shared granule. */
__attribute__((noinline)) static ds__segment *ds__segment_shared(const void *ptr) {
    ds__segment *s;
    ds__mutex_lock(&ds__memory_state.registry);
    size_t i = ds__sorted_after((uintptr_t)ptr);
    while (i > 0 && ds__memory_state.sorted[i - 1]->leaving)
        i--;
    s = i > 0 ? ds__memory_state.sorted[i - 1] : NULL;
    ds__mutex_unlock(&ds__memory_state.registry);
    return s;
}

/* Sets whether the memory of a segment is being given back. */
static void ds__segment_leaves(ds__segment *s, int leaves) {
    ds__mutex_lock(&ds__memory_state.registry);
    s->leaving = (uint8_t)leaves;
    ds__mutex_unlock(&ds__memory_state.registry);
}

/* Enters the granules of [at, at + size) for the segment, or removes them. Returns 0 without host
   memory. The registry is locked. */
static int ds__address_granules_set(ds__segment *seg, char *at, size_t size, int in) {
    for (uintptr_t g = (uintptr_t)at >> DS__GRANULE_BITS,
                   end = ((uintptr_t)at + size - 1) >> DS__GRANULE_BITS;
         g <= end; g++) {
        uintptr_t address = g << DS__GRANULE_BITS;
        if (address >> 47)
            return 0;
        if (!atomic_load_explicit(&ds__memory_state.root[address >> 34], memory_order_relaxed)) {
            void *leaf = in ? ds__kept_alloc_unlocked(8192 * sizeof(ds__segment *)) : NULL;
            if (!leaf)
                return 0;
            atomic_store_explicit(&ds__memory_state.root[address >> 34], leaf,
                                  memory_order_release);
        }
        ds__segment *_Atomic *entry = ds__granule_at(address);
        ds__segment *s = atomic_load_explicit(entry, memory_order_relaxed);
        /* an entry of another segment becomes shared, until shutdown */
        if (in)
            s = s && s != seg ? (ds__segment *)(void *)((char *)seg + 1) : seg;
        else if (s == seg)
            s = NULL;
        atomic_store_explicit(entry, s, memory_order_release);
    }
    return 1;
}

#endif
