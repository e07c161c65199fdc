/* os/affinity.h - the processors on which threads may run.

   Reads and sets the affinity mask of the calling thread (ds__os_affinity), and counts the
   processors that the process may use (ds__os_processors).

   Invariants: processors are numbered as by Linux, from 0 to DS__OS_PROCESSORS - 1. A mask that was
   read has at least one processor.
   Locks: none.
   Threads: any; the functions concern the calling thread only. A new thread has the mask of the
   thread that starts it. */
#ifndef DS__OS_AFFINITY_H
#define DS__OS_AFFINITY_H

#include "linux.h"
#include "cgroup.h"

/* more than any kernel is configured for; the system call wants whole words */
enum { DS__OS_PROCESSORS = 8192 };

/* A set of processors. */
typedef struct ds__os_affinity {
    unsigned long word[DS__OS_PROCESSORS / (8 * sizeof(unsigned long))];
} ds__os_affinity;

static inline int ds__os_affinity_has(const ds__os_affinity *mask, unsigned processor) {
    const unsigned bits = 8 * sizeof mask->word[0];
    return processor < DS__OS_PROCESSORS && mask->word[processor / bits] >> processor % bits & 1;
}

static inline void ds__os_affinity_add(ds__os_affinity *mask, unsigned processor) {
    const unsigned bits = 8 * sizeof mask->word[0];
    mask->word[processor / bits] |= 1ul << processor % bits;
}

static inline int ds__os_affinity_count(const ds__os_affinity *mask) {
    int n = 0;
    for (size_t i = 0; i < sizeof mask->word / sizeof mask->word[0]; i++)
        n += __builtin_popcountl(mask->word[i]);
    return n;
}

/* Reads the mask of the calling thread. If the system refuses, the mask has processor 0 only. */
DS__SEAM static void ds__os_affinity_get(ds__os_affinity *out) {
    memset(out, 0, sizeof *out);
    if (syscall(SYS_sched_getaffinity, 0, sizeof out->word, out->word) <= 0)
        ds__os_affinity_add(out, 0);
}

/* Binds the calling thread to the processors. Returns 0, or the system's error number if it may use
   none of them. */
DS__SEAM static int ds__os_affinity_set(const ds__os_affinity *mask) {
    return syscall(SYS_sched_setaffinity, 0, sizeof mask->word, mask->word) ? errno : 0;
}

/* Returns the number of processors that this process may use, by the calling thread's affinity mask
   and by the quota of its control groups. */
DS__SEAM static int ds__os_processors(void) {
    ds__os_affinity mask;
    ds__os_affinity_get(&mask);
    int n = ds__os_affinity_count(&mask);
    uint64_t quota = ds__cgroup_limits("").processors;
    if ((uint64_t)n > quota)
        n = (int)quota;
    return n > 0 ? n : 1;
}

#endif
