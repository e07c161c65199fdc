/* os/affinity_mask.h - sets of processors.

   Defines ds__os_affinity, a set of processors. The room of the system reads and sets the affinity
   mask of the calling thread (ds__os_affinity_get, ds__os_affinity_set), and counts the processors
   that the process may use (ds__os_processors).

   Invariants: processors are numbered as by the system, from 0 to DS__OS_PROCESSORS - 1. A mask
   that was read has at least one processor.
   Locks: none.
   Threads: any. A new thread has the mask of the thread that starts it. */
#ifndef DS__OS_AFFINITY_MASK_H
#define DS__OS_AFFINITY_MASK_H

#include "compiler.h"

/* more than any kernel is configured for; the system call wants whole words */
enum { DS__OS_PROCESSORS = 8192 };

/* A set of processors. */
typedef struct ds__os_affinity {
    uint64_t word[DS__OS_PROCESSORS / (8 * sizeof(uint64_t))];
} ds__os_affinity;

static inline int ds__os_affinity_has(const ds__os_affinity *mask, unsigned processor) {
    const unsigned bits = 8 * sizeof mask->word[0];
    return processor < DS__OS_PROCESSORS && mask->word[processor / bits] >> processor % bits & 1;
}

static inline void ds__os_affinity_add(ds__os_affinity *mask, unsigned processor) {
    const unsigned bits = 8 * sizeof mask->word[0];
    mask->word[processor / bits] |= (uint64_t)1 << processor % bits;
}

static inline int ds__os_affinity_count(const ds__os_affinity *mask) {
    int n = 0;
    for (size_t i = 0; i < sizeof mask->word / sizeof mask->word[0]; i++)
        n += __builtin_popcountll(mask->word[i]);
    return n;
}

#endif
