/* base/bookkeeping.h - memory for the library's own records.

   Allocates and frees memory with the allocator of ds_init, or with calloc and free.
   ds__array_reserve lets an array grow; ds__hash is for their tables.

   Invariants: memory is zeroed. Objects that outlive ds_shutdown keep a copy of ds__allocator and
   return their memory with ds__release_to.
   Locks: none. The program's functions run under all locks of the caller.
   Threads: any. ds_init and ds_shutdown write ds__allocator, while no other call runs. */
#ifndef DS__BASE_BOOKKEEPING_H
#define DS__BASE_BOOKKEEPING_H

#include "../api/init.h"
#include "../os/os.h"

static ds_allocator ds__allocator; /* If it has no functions, calloc and free are used. */

/* Returns zeroed memory, or NULL. */
static void *ds__host_alloc(size_t size) {
    if (!ds__allocator.alloc_fn)
        return calloc(1, size);
    void *ptr = ds__allocator.alloc_fn(size, ds__allocator.user);
    if (ptr)
        memset(ptr, 0, size);
    return ptr;
}

/* Returns memory to the allocator that it was taken from. Objects that outlive ds_shutdown keep a
   copy of ds__allocator for it. */
static void ds__release_to(const ds_allocator *allocator, void *ptr) {
    if (!ptr)
        return;
    if (allocator->free_fn)
        allocator->free_fn(ptr, allocator->user);
    else
        free(ptr);
}

static void ds__host_free(void *ptr) {
    ds__release_to(&ds__allocator, ptr);
}

/* Makes room for `more` further elements in an array that has `count` elements, and room for *room.
   `array` is the address of the pointer to the array. Returns 0 without memory, and the array is as
   before. An empty array gets 4 elements: the dependencies of a node then fit into the smallest
   chunk of malloc, which saves 25 ns per captured launch. */
DS__SEAM static int ds__array_reserve(void *array, size_t element, size_t count, size_t more,
                                      size_t *room) {
    if (more <= *room - count)
        return 1;
    size_t wanted = 2 * *room > count + more ? 2 * *room : count + more + 3;
    void *bigger = wanted <= SIZE_MAX / 4 / element ? ds__host_alloc(wanted * element) : NULL;
    if (!bigger)
        return 0;

    void *old;
    memcpy(&old, array, sizeof old);
    if (count)
        memcpy(bigger, old, count * element);
    ds__host_free(old);
    memcpy(array, &bigger, sizeof bigger);
    *room = wanted;
    return 1;
}

static uint64_t ds__hash(const void *bytes, size_t size) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

#endif
