/* os/cache.h - size of the processor's largest cache.

   Reads the size from /sys at the first use (ds__os_cache_bytes).

   Invariants: the size is read once; several threads may read it at the same time and store the
   same value. In a virtual machine it is the size that the machine shows, which other machines may
   share.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_CACHE_H
#define DS__OS_CACHE_H

#include "linux.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* where /sys shows no caches */
#define DS__OS_CACHE_USUAL ((size_t)32 << 20)

/* In bytes; 0: not read yet. */
static _Atomic size_t ds__os_cache_state;

/* Returns the bytes of a size in the form of /sys, as "1024K"; 0: not such a text. */
DS__SEAM static size_t ds__os_cache_parse(const char *text) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end == 'K')
        return (size_t)n << 10;
    return *end == 'M' ? (size_t)n << 20 : 0;
}

/* Returns the size of the largest cache of the first processor; 0: /sys does not show any. */
static size_t ds__os_cache_read(void) {
    size_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[64];
        char line[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "re");
        if (!f)
            break;
        size_t n = fgets(line, sizeof line, f) ? ds__os_cache_parse(line) : 0;
        most = n > most ? n : most;
        fclose(f);
    }
    return most;
}

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
