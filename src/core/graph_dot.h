/* core/graph_dot.h - graphs as DOT text.

   Writes a graph in the DOT language of Graphviz, to a function of the user (ds_graph_write_dot) or
   to a file (ds_graph_write_dot_file).

   Invariants: once the user's function has returned a value other than 0, it is not invoked
   again, and the call reports DS_ERR_SYSTEM.
   Locks: the graph's lock, and ds__g.capture_lock while a capture adds to the graph. The user's
   function runs under both; ds__tls.in_callback is set meanwhile, so calls to devstream are
   refused.
   Threads: any. The user's function runs on the calling thread. */
#ifndef DS__CORE_GRAPH_DOT_H
#define DS__CORE_GRAPH_DOT_H

#include "init.h"
#include "device.h"
#include "graph.h"
#include "../base/text_writer.h"

static void ds__dot_kernel(ds__text_writer *p, const ds__op *op) {
    const ds__kernel *k = op->u.kernel.kernel;
    ds__text_writer_print(p, "\\n%zu item%s", op->u.kernel.items,
                          op->u.kernel.items == 1 ? "" : "s");
    if (op->u.kernel.grid)
        ds__text_writer_print(p, "\\ngrid %ux%ux%u block %ux%ux%u", op->u.kernel.grid->grid[0],
                              op->u.kernel.grid->grid[1], op->u.kernel.grid->grid[2],
                              op->u.kernel.grid->block[0], op->u.kernel.grid->block[1],
                              op->u.kernel.grid->block[2]);
    if (op->u.kernel.grid && op->u.kernel.grid->cluster[0]) {
        ds_grid whole = ds__grid_whole(op->u.kernel.grid);
        ds__text_writer_print(p, "\\ncluster %ux%ux%u", whole.cluster[0], whole.cluster[1],
                              whole.cluster[2]);
    }
    if (op->flags & DS__OP_TOGETHER)
        ds__text_writer_print(p, "\\ncooperative");
    for (size_t i = 0; i < k->param_count; i++) {
        const ds_param *a = &k->params[i];
        static const char *const kinds[] = { "value", "read", "written", "read and written",
                                             "first", "count" };
        uint64_t value = 0;
        if (a->kind >= DS_PARAM_FIRST)
            continue;
        memcpy(&value, (const char *)op->u.kernel.args + a->offset, a->size < 8 ? a->size : 8);
        ds__text_writer_print(p, "\\n[%zu] %s %#llx", i, kinds[a->kind], (unsigned long long)value);
    }
}

static const char *ds__dot_shape(ds_node_kind kind) {
    if (kind == DS_NODE_KERNEL)
        return "box";
    return kind == DS_NODE_HOST ? "hexagon" : "ellipse";
}

static void ds__dot_copy(ds__text_writer *p, const ds__op *op) {
    ds__text_writer_print(p, "\\n%p <- %p\\n%zu x %zu bytes", op->u.copy.dst, op->u.copy.src,
                          op->u.copy.height, op->u.copy.width);
}

static void ds__dot_fill(ds__text_writer *p, const ds__op *op) {
    ds__text_writer_print(p, "\\n%p <- %#x\\n%zu x %zu x %zu bytes", op->u.fill.dst,
                          (unsigned)op->u.fill.value, op->u.fill.height, op->u.fill.width,
                          op->u.fill.value_size);
}

static void ds__dot_host(ds__text_writer *p, const ds__op *op) {
    void *fn = NULL;
    memcpy(&fn, &op->u.host.fn, sizeof fn);
    ds__text_writer_print(p, "\\n%p(%p)", fn, op->u.host.user);
}

static void ds__dot_event(ds__text_writer *p, const ds__op *op) {
    ds__text_writer_print(p, "\\n%#llx ",
                          (unsigned long long)ds__handle_of(&op->u.event.object->slot));
    ds__text_writer_quote(p, op->u.event.object->label ? op->u.event.object->label : "");
}

static void ds__dot_values(ds__text_writer *p, const ds__op *op) {
    static const char *const kinds[] = { "<-", "waits >=", "waits ==", "waits &", "waits nor" };
    for (size_t i = 0; i < op->u.values.count; i++)
        ds__text_writer_print(p, "\\n%p %s %#llx", op->u.values.list[i].address,
                              kinds[op->u.values.list[i].kind],
                              (unsigned long long)op->u.values.list[i].value);
}

static void ds__dot_condition(ds__text_writer *p, const ds__op *op) {
    static const char *const kinds[] = { "if", "while", "switch" };
    ds__text_writer_print(p, "\\n%s %p", kinds[op->u.condition.kind],
                          (const void *)op->u.condition.word);
}

/* Writes the details of a node if the flags ask for those of its kind. */
static void ds__dot_details(ds__text_writer *p, const ds__node *n) {
    static const struct {
        unsigned flag;
        void (*write_fn)(ds__text_writer *p, const ds__op *op);
    } details[] = { [DS_NODE_KERNEL] = { DS_DOT_KERNEL, ds__dot_kernel },
                    [DS_NODE_COPY] = { DS_DOT_COPY, ds__dot_copy },
                    [DS_NODE_FILL] = { DS_DOT_FILL, ds__dot_fill },
                    [DS_NODE_HOST] = { DS_DOT_HOST, ds__dot_host },
                    [DS_NODE_EVENT_RECORD] = { DS_DOT_EVENT, ds__dot_event },
                    [DS_NODE_EVENT_WAIT] = { DS_DOT_EVENT, ds__dot_event },
                    [DS_NODE_VALUES] = { DS_DOT_VALUES, ds__dot_values },
                    [DS_NODE_CONDITION] = { DS_DOT_CONDITION, ds__dot_condition } };

    if ((size_t)n->kind >= sizeof details / sizeof details[0])
        return;
    if (p->flags & (DS_DOT_VERBOSE | details[n->kind].flag) && details[n->kind].write_fn)
        details[n->kind].write_fn(p, &n->op);
}

/* Writes the handle of a node, its device, priority and call site. */
static void ds__dot_handle(ds__text_writer *p, const ds__body *b, uint32_t index) {
    const ds__node *n = b->node[index];
    const ds__op *op = &n->op;
    ds__text_writer_print(p, "\\n%#llx, %s:%d", (unsigned long long)ds__node_handle(b, index).id,
                          ds__type_name(n->device.type), n->device.index);
    if (n->priority)
        ds__text_writer_print(p, ", priority %d", n->priority);
    if (op->file) {
        ds__text_writer_print(p, "\\n");
        ds__text_writer_quote(p, ds__short_path(op->file));
        ds__text_writer_print(p, ":%u", (unsigned)op->line);
    }
}

static void ds__dot_node(ds__text_writer *p, const ds__body *b, uint32_t index,
                         const char *prefix) {
    const ds__node *n = b->node[index];
    ds__text_writer_print(p, "\"%s%u\" [shape=%s, label=\"%s", prefix, (unsigned)index,
                          ds__dot_shape(n->kind), ds__node_names[n->kind]);
    if (n->kind == DS_NODE_KERNEL) {
        ds__text_writer_print(p, " ");
        ds__text_writer_quote(p, n->op.u.kernel.kernel->name);
    }
    if (n->label) {
        ds__text_writer_print(p, "\\n");
        ds__text_writer_quote(p, n->label);
    }
    ds__dot_details(p, n);
    if (p->flags & (DS_DOT_VERBOSE | DS_DOT_HANDLES))
        ds__dot_handle(p, b, index);
    ds__text_writer_print(p, "\"];\n");
}

static void ds__dot_body(ds__text_writer *p, const ds__body *b, const char *prefix) {
    for (uint32_t i = 0; i < b->count && !p->stopped; i++) {
        char inner[64];
        ds__dot_node(p, b, i, prefix);
        if (!b->node[i]->child || strlen(prefix) > sizeof inner - 16)
            continue;
        snprintf(inner, sizeof inner, "%.40s%u.", prefix, (unsigned)i);
        ds__text_writer_print(p, "subgraph \"cluster_%s\" {\nlabel=\"child of %s%u\";\n", inner,
                              prefix, (unsigned)i);
        ds__dot_body(p, b->node[i]->child, inner);
        ds__text_writer_print(p, "}\n");
    }
    for (uint32_t i = 0; i < b->count && !p->stopped; i++)
        for (uint32_t k = 0; k < b->node[i]->dep_count; k++)
            ds__text_writer_print(p, "\"%s%u\" -> \"%s%u\";\n", prefix,
                                  (unsigned)b->node[i]->deps[k], prefix, (unsigned)i);
}

static ds_result ds__graph_dot_write(ds_graph graph, unsigned flags, ds_write_fn write_fn,
                                     void *user) {
    /* all of cudaGraphDebugDotFlags are taken; those without meaning here change nothing */
    DS__REQUIRE((flags & ~0xa7ffu) == 0, "unknown flags %#x; use DS_DOT_* flags", flags);
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__text_writer writer = { write_fn, user, 0, flags };
    ds__text_writer_print(&writer, "digraph \"");
    ds__text_writer_quote(&writer, g->label ? g->label : "graph");
    ds__text_writer_print(&writer, "\" {\n");
    int shared = ds__graph_share(g);
    ds__dot_body(&writer, g->body, "");
    ds__graph_unshare(shared);
    ds__text_writer_print(&writer, "}\n");
    return ds__graph_unlock(
        g, writer.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", writer.stopped)
                          : DS_OK);
}

DSDEF ds_result(ds_graph_write_dot)(ds_graph graph, unsigned flags, ds_write_fn write_fn,
                                    void *user) {
    DS__ENTER("ds_graph_write_dot");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    return ds__graph_dot_write(graph, flags, write_fn, user);
}

DSDEF ds_result(ds_graph_write_dot_file)(ds_graph graph, unsigned flags, const char *path) {
    DS__ENTER("ds_graph_write_dot_file");
    DS__REQUIRE(path, "path is NULL");
    FILE *f = fopen(path, "w");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    ds_result r = ds__graph_dot_write(graph, flags, ds__text_writer_to_file, f);
    if (fclose(f) != 0 && r == DS_OK)
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    return r;
}

#endif
