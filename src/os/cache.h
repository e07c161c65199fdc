/* os/cache.h - size of the processor's largest cache.

   Asks the system for the size at the first use (ds__os_cache_bytes).

   Invariants: the size is read once; several threads may read it at the same time and store the
   same value. In a virtual machine it is the size that the machine shows, which other machines may
   share.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_CACHE_H
#define DS__OS_CACHE_H

#include "system.h"

/* where the system does not tell the size */
#define DS__OS_CACHE_USUAL ((size_t)32 << 20)

/* In bytes; 0: not read yet. */
static _Atomic size_t ds__os_cache_state;

/* Returns the size of the largest cache, in bytes. The first call reads files. */
DS__SEAM static size_t ds__os_cache_bytes(void) {
    size_t n = atomic_load_explicit(&ds__os_cache_state, memory_order_relaxed);
    if (!n) {
        n = ds__os_cache_read();
        if (!n)
            n = DS__OS_CACHE_USUAL;
        atomic_store_explicit(&ds__os_cache_state, n, memory_order_relaxed);
    }
    return n;
}

#endif
