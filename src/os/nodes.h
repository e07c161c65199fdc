/* os/nodes.h - nodes of memory (NUMA).

   Reads which processors are near to which memory (ds__os_nodes). A machine whose memory is equally
   near to all processors has one node.

   Policy: nodes without a processor of the given mask do not count; their memory is far from all
   threads.

   Invariants: there is at least one node. If the system tells no nodes, or none that has one of the
   processors, all processors are on one node.
   Locks: none.
   Threads: any; the function keeps no state. */
#ifndef DS__OS_NODES_H
#define DS__OS_NODES_H

#include "affinity_mask.h"
#include "system.h"

enum { DS__OS_NODES = 16 }; /* the most nodes that are told apart; the last one has the rest */

/* Writes the processors of each node that the mask allows, at most DS__OS_NODES nodes in the order
   of their numbers, and returns the number of nodes. root: "" for the machine; tests pass the root
   of a tree of files. */
DS__SEAM static int ds__os_nodes(const char *root, const ds__os_affinity *allowed,
                                 ds__os_affinity *out) {
    int count = 0;
    for (int node = 0, missing = 0; missing < 64; node++) {
        ds__os_affinity here;
        missing = ds__os_node_read(root, node, &here) ? 0 : missing + 1; /* numbers may have gaps */
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
