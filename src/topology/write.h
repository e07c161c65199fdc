/* topology/write.h - output of topologies, and the CPU fabric.

   Implements ds_topology_write: a matrix, a DOT graph or the text form, printed by the text
   writer (ds__text_writer). Also implements ds_topology_get_fabric, the topology as the virtual
   clock of the CPU driver takes it.

   Invariants: the tables of functions, words and shapes follow the order of ds_topology_format
   and of the node kinds. The text form has rates in whole bytes per second. A peer line that
   holds for both directions is written once. A fabric points into the topology.
   Locks: none; write_fn, which is user code, runs without a lock.
   Threads: caller's threads, several at the same time, also for one topology; refused in
   callbacks (DS__ENTER). */
#ifndef DS__TOPOLOGY_WRITE_H
#define DS__TOPOLOGY_WRITE_H

#include "../base/text_writer.h"
#include "../core/internal.h"
#include "types.h"

/* Returns the name of a rank, or of the host. */
static const char *ds__topology_rank_name(const ds_topology *t, int rank) {
    return rank < t->devices ? t->node[t->rank[rank]].name : "host";
}

/* Writes rate and latency of each pair; * for pairs that do not access each other. */
static void ds__topology_matrix(const ds_topology *t, ds__text_writer *writer) {
    ds__text_writer_print(writer, "%-10s", "GB/s us");
    for (int k = 0; k <= t->devices; k++)
        ds__text_writer_print(writer, " %11.11s", ds__topology_rank_name(t, k));
    ds__text_writer_print(writer, "\n");
    for (int i = 0; i <= t->devices; i++) {
        ds__text_writer_print(writer, "%-10.10s", ds__topology_rank_name(t, i));
        for (int k = 0; k <= t->devices; k++) {
            const ds__troute *r = ds__route_of(t, i, k);
            if (i == k)
                ds__text_writer_print(writer, " %11s", "-");
            else if (!r->direct && i < t->devices && k < t->devices)
                ds__text_writer_print(writer, " %11s", "*");
            else
                ds__text_writer_print(writer, " %6.1f %4.1f", r->rate / 1e9,
                                      (double)r->latency_ns / 1e3);
        }
        ds__text_writer_print(writer, "\n");
    }
}

/* Writes a graph for dot. The host is left out if it has no link. */
static void ds__topology_dot(const ds_topology *t, ds__text_writer *writer) {
    static const char *const shapes[] = { "box", "ellipse", "hexagon", "cylinder" };
    ds__text_writer_print(writer, "graph \"topology\" {\n");
    for (int i = 0; i < t->nodes; i++) {
        int linked = 0;
        for (int l = 0; l < t->links; l++)
            linked |= t->link[l].a == i || t->link[l].b == i;
        if (!linked && t->node[i].kind == DS__NODE_HOST)
            continue;
        ds__text_writer_print(writer, "\"");
        ds__text_writer_quote(writer, t->node[i].name);
        ds__text_writer_print(writer, "\" [shape=%s];\n", shapes[t->node[i].kind]);
    }
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__text_writer_print(writer, "\"");
        ds__text_writer_quote(writer, t->node[k->a].name);
        ds__text_writer_print(writer, "\" -- \"");
        ds__text_writer_quote(writer, t->node[k->b].name);
        ds__text_writer_print(writer, "\" [label=\"%s %g\"];\n", ds__link_kinds[k->kind].word,
                              k->rate[0] / 1e9);
    }
    ds__text_writer_print(writer, "}\n");
}

/* Writes a peer line. A line that holds for both directions is written once. */
static void ds__topology_peer(const ds_topology *t, ds__text_writer *writer,
                              const struct ds__tpeer *e) {
    const char *from = ds__topology_rank_name(t, e->from);
    const char *to = ds__topology_rank_name(t, e->to);
    const char *word = e->what == '1' ? "on" : "off";
    switch (e->what) {
    case 'u':
        ds__text_writer_print(writer, "peer %s %s push %.0fB/s\n", from, to, e->rate);
        return;
    case 'd':
        ds__text_writer_print(writer, "peer %s %s pull %.0fB/s\n", from, to, e->rate);
        return;
    case 'l':
        ds__text_writer_print(writer, "peer %s %s latency %.0fns\n", from, to, e->rate);
        return;
    case 'b':
        if (e->from < e->to)
            ds__text_writer_print(writer, "peer %s %s both %.0fB/s\n", from, to, e->rate);
        return;
    case 'k':
        word = ds__link_kinds[e->kind].word;
        break;
    default:
        break;
    }
    if (e->from < e->to)
        ds__text_writer_print(writer, "peer %s %s %s\n", from, to, word);
}

/* Writes the form that ds_topology_create_of_text reads. */
static void ds__topology_text(const ds_topology *t, ds__text_writer *writer) {
    static const char *const kinds[] = { "device", "switch", "socket" };
    ds__text_writer_print(writer, "engines %d\nstart %lldns\nlatency %lldns\nmemory %.0fB/s\n",
                          t->engines, (long long)t->start_ns, (long long)t->latency_ns, t->memory);
    for (int i = 1; i < t->nodes; i++)
        ds__text_writer_print(writer, "%s %s\n", kinds[t->node[i].kind], t->node[i].name);
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__text_writer_print(writer, "link %s %s %s %.0fB/s %.0fB/s %lldns%s\n",
                              t->node[k->a].name, t->node[k->b].name, ds__link_kinds[k->kind].word,
                              k->rate[0], k->rate[1], (long long)k->latency,
                              k->half ? " half" : "");
    }
    for (int i = 0; i < t->peers; i++)
        ds__topology_peer(t, writer, &t->peer[i]);
}

DSDEF ds_result(ds_topology_write)(const ds_topology *topology, ds_topology_format format,
                                   ds_write_fn write_fn, void *user) {
    static void (*const forms[])(const ds_topology *, ds__text_writer *) = { ds__topology_matrix,
                                                                             ds__topology_dot,
                                                                             ds__topology_text };
    DS__ENTER("ds_topology_write");
    DS__REQUIRE(topology && write_fn, "%s is NULL", topology ? "write_fn" : "topology");
    DS__REQUIRE((unsigned)format < sizeof forms / sizeof forms[0],
                "format is %d; use a DS_TOPOLOGY_* format", (int)format);
    ds__text_writer writer = { write_fn, user, 0, 0 };
    forms[format](topology, &writer);
    return writer.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", writer.stopped)
                          : DS_OK;
}

DSDEF ds_result(ds_topology_get_fabric)(const ds_topology *topology, ds_cpu_fabric *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_topology_get_fabric");
    DS__REQUIRE(topology && out, "%s is NULL", topology ? "out" : "topology");
    *out = (ds_cpu_fabric){ topology->devices,
                            (size_t)topology->wires,
                            topology->wire,
                            topology->way,
                            topology->engines,
                            topology->start_ns,
                            topology->memory,
                            0,
                            { 0 } };
    return DS_OK;
}

#endif
