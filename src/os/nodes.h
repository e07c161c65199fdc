/* os/nodes.h - nodes of memory (NUMA).

   Reads which processors are near to which memory (ds__os_nodes). A machine whose memory is equally
   near to all processors has one node.

   Policy: Linux has a file for each node, /sys/devices/system/node/nodeN/cpulist, with the
   processors as numbers and ranges ("Documentation/ABI/stable/sysfs-devices-node" of the kernel).
   Nodes without a processor of the given mask do not count; their memory is far from all threads.

   Invariants: there is at least one node. If the files are missing, unreadable or have none of the
   processors, all processors are on one node.
   Locks: none.
   Threads: any; the function keeps no state. */
#ifndef DS__OS_NODES_H
#define DS__OS_NODES_H

#include "affinity.h"

enum { DS__OS_NODES = 16 }; /* the most nodes that are told apart; the last one has the rest */

/* Reads a list of processors such as "0-3,8", as far as it is one. */
static void ds__os_cpulist_read(const char *text, ds__os_affinity *out) {
    memset(out, 0, sizeof *out);
    while (*text >= '0' && *text <= '9') {
        char *end;
        unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < DS__OS_PROCESSORS; i++)
            ds__os_affinity_add(out, (unsigned)i);
        text = *end == ',' ? end + 1 : end;
    }
}

/* Writes the processors of each node that the mask allows, at most DS__OS_NODES nodes in the order
   of their numbers, and returns the number of nodes. root: "" for the machine; tests pass the root
   of a tree of files. */
DS__SEAM static int ds__os_nodes(const char *root, const ds__os_affinity *allowed,
                                 ds__os_affinity *out) {
    int count = 0;
    for (int node = 0, missing = 0; missing < 64; node++) {
        ds__os_affinity here;
        char path[256];
        char text[4096] = "";
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
        FILE *f = fopen(path, "re");
        missing = f ? 0 : missing + 1; /* numbers may have gaps */
        if (f && !fgets(text, sizeof text, f))
            *text = 0;
        if (f)
            fclose(f);
        ds__os_cpulist_read(text, &here);
        for (size_t i = 0; i < sizeof allowed->word / sizeof allowed->word[0]; i++)
            here.word[i] &= allowed->word[i];
        if (ds__os_affinity_count(&here) == 0)
            continue;
        if (count < DS__OS_NODES)
            memset(&out[count++], 0, sizeof *out);
        for (size_t i = 0; i < sizeof here.word / sizeof here.word[0]; i++)
            out[count - 1].word[i] |= here.word[i];
    }
    if (count == 0)
        out[count++] = *allowed;
    return count;
}

#endif
