/* check/graph.h - executables: accesses of nodes, order within a graph, memory that is gone.

   ds__race_graph_launch checks the accesses of a launch. The first launch after a change, and
   the instantiation, collect the accesses of all nodes (ds__race_graph_build), check nodes that no
   dependency orders, and remember the memory that the nodes use. Each launch compares the memory
   with what is known now.

   Policy:
   1. A launch is one operation of its stream with the accesses of all nodes. It comes after the
      earlier launches of the executable (CUDA Runtime API, cudaGraphLaunch).
   2. Nodes of a conditional body may not run, so their accesses are possible ones.
   3. Memory that was allocated in a capture belongs to graphs: its free in the capture is not an
      error of a launch.
   4. A node that waits for a word comes after the nodes of the graph that write a value for which
      it waits. If there is none, the launch waits for the word. Other work that waits for a word of
      the graph comes after the launch. The graph writes the words of check/captured.h itself.

   Invariants: a ds__race_graph watches each of its ranges of memory until it is destroyed.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_GRAPH_H
#define DS__CHECK_GRAPH_H

#include "../base/extent.h"
#include "access.h"
#include "captured.h"
#include "moment.h"
#include "report.h"
#include "word.h"

enum {
    DS__RACE_NODES = 8192,   /* of a graph whose order is checked */
    DS__RACE_PAIRS = 1 << 22 /* of accesses that are compared */
};

/* An access of a node. */
typedef struct ds__race_item {
    ds__race_range range;
    ds__race_memory *memory;
    const char *operation; /* the layer's own copy: "kernel add of a graph" */
    const char *file;      /* of the node's call */
    int line;
    uint32_t node;
    uint32_t phase;
    uint32_t place;
    unsigned how;
    const char *launch_file; /* of the launch to which `place` belongs */
    int launch_line;
} ds__race_item;

/* A node that records an event or waits for one. */
typedef struct ds__race_mark {
    const void *event;
    uint32_t node;
    int waits;
} ds__race_mark;

/* A write of a word by a node, or a wait for one. */
typedef struct ds__race_value {
    ds_value_op op;
    uint32_t node;
    int inner; /* a wait that a write of the graph ends */
} ds__race_value;

typedef struct ds__race_graph {
    ds__race_item *item;
    size_t count;
    size_t room;
    const void **user; /* arguments of host functions, one for each node */
    size_t users;
    size_t user_room;
    ds__race_memory **memory; /* each once */
    size_t memories;
    size_t memory_room;
    ds__race_mark *mark; /* in the order of the nodes */
    size_t marks;
    size_t mark_room;
    ds__race_value *value;
    size_t values;
    size_t value_room;
    uint64_t *before; /* for each node, a bit for each node that is ordered before it */
    uint32_t nodes;
    uint32_t nodes_room;
    uint32_t undeclared; /* kernels without a list of parameters */
    int stale;           /* the executable has changed */
    ds__race_event last; /* the last launch */
} ds__race_graph;

/* Adds a host function that has not run. */
static void ds__race_task_add(const ds__race_line *l, const void *user, uint32_t place,
                              const void *exec) {
    ds__race_task *t = ds__race_alloc(sizeof *t);
    if (!t)
        return;
    t->user = user;
    t->line = l->index;
    t->n = l->n;
    t->clock = ds__race_clock_ref(l->clock);
    t->place = place;
    t->exec = exec;
    if (!ds__race.task)
        ds__race.task_end = &ds__race.task;
    *ds__race.task_end = t;
    ds__race.task_end = &t->next;
}

/* Returns 1 if a kernel has arguments, but no list of parameters: no access is known. */
static unsigned ds__race_kernel_is_undeclared(const ds__kernel *k) {
    return !k->param_count && k->args_size;
}

static unsigned ds__race_kernel_how(const ds__extent_range *a) {
    unsigned how = a->exact ? 0 : DS__RACE_INEXACT;
    if (a->kind != DS_PARAM_WRITE)
        how |= DS__RACE_READ;
    if (a->kind != DS_PARAM_READ)
        how |= DS__RACE_WRITE;
    return a->atomic ? how | DS__RACE_ATOMIC : how;
}

static ds__race_range ds__race_kernel_range(const ds__extent_range *a) {
    if (!a->exact)
        return ds__race_range_row(a->ptr, 1);
    return ds__race_range_rows(a->ptr + a->offset, a->width, a->pitch, a->rows);
}

/* Returns a key of a captured launch: kernel, call site and arguments. */
static uint64_t ds__race_launch_key(const ds__op *op) {
    uint64_t key = ds__race_key(op->u.kernel.kernel) ^ ds__race_key(op->file) * 31 ^ op->line;
    const unsigned char *args = op->u.kernel.args;
    for (size_t i = 0; i < op->u.kernel.args_size; i++)
        key = (key ^ args[i]) * 1099511628211u;
    return key | 1;
}

/* Keeps the extents that the program has set for a launch that is captured. */
static void ds__race_extents_keep(const ds__op *op) {
    size_t count = ds__race_tls.extents;
    uint64_t key = ds__race_launch_key(op);
    if (!count || ds__race_table_find(&ds__race.extents, key))
        return;
    ds__race_extents *e = ds__race_alloc(sizeof *e + count * sizeof e->extent[0]);
    if (!e)
        return;
    e->count = count;
    memcpy(e->extent, ds__race_tls.extent, count * sizeof e->extent[0]);
    if (!ds__race_table_set(&ds__race.extents, key, e))
        ds__race_release(e, sizeof *e + count * sizeof e->extent[0]);
}

static void ds__race_extents_deinit(void) {
    for (size_t i = 0; i < ds__race.extents.size; i++) {
        ds__race_extents *e = ds__race.extents.entry[i].value;
        if (e)
            ds__race_release(e, sizeof *e + e->count * sizeof e->extent[0]);
    }
    ds__race_table_deinit(&ds__race.extents);
}

/* Bytes of the matrix of a graph's order. */
static size_t ds__race_graph_matrix(uint32_t nodes) {
    return (size_t)nodes * ((nodes + 63) / 64) * sizeof(uint64_t);
}

/* Frees the contents of a graph. */
static void ds__race_graph_clear(ds__race_graph *g) {
    for (size_t i = 0; i < g->memories; i++)
        ds__race_memory_unwatch(g->memory[i]);
    ds__race_release(g->item, g->room * sizeof *g->item);
    ds__race_release(g->user, g->user_room * sizeof *g->user);
    ds__race_release(g->memory, g->memory_room * sizeof *g->memory);
    ds__race_release(g->mark, g->mark_room * sizeof *g->mark);
    ds__race_release(g->value, g->value_room * sizeof *g->value);
    ds__race_release(g->before, ds__race_graph_matrix(g->nodes_room));
    ds__race_clock_unref(g->last.clock);
    memset(g, 0, sizeof *g);
}

/* The graph that is collected. */
typedef struct ds__race_builder {
    ds__race_graph *graph;
    uint32_t *deps; /* pairs: node, the node before it */
    size_t count;
    size_t room;
    int conditional; /* within a body that may not run */
} ds__race_builder;

/* Adds a pointer to a list of the graph, unless it is there. */
static void ds__race_list_add(const void *list_ptr, size_t *count, size_t *room, const void *ptr) {
    const void **list;
    memcpy(&list, list_ptr, sizeof list);
    for (size_t i = 0; i < *count; i++)
        if (list[i] == ptr)
            return;
    if (!ds__race_array_reserve((void *)(uintptr_t)list_ptr, sizeof ptr, *count, room))
        return;
    memcpy(&list, list_ptr, sizeof list);
    list[(*count)++] = ptr;
}

/* Watches the memory of a node's access. */
static void ds__race_graph_watch(ds__race_graph *g, ds__race_memory *m) {
    size_t before = g->memories;
    ds__race_list_add(&g->memory, &g->memories, &g->memory_room, m);
    m->watchers += (uint32_t)(g->memories - before);
}

/* Adds an access of a node. */
static void ds__race_graph_access(ds__race_builder *b, uint32_t node, const ds__node *n,
                                  ds__race_range r, unsigned how) {
    ds__race_graph *g = b->graph;
    const ds__race_captured *captured =
        n->kind == DS_NODE_HOST ? ds__race_captured_find(n->op.u.host.user) : NULL;
    char name[81];
    char text[160];
    ds__race_memory *m = ds__race_memory_find(r.at);
    if (!m) {
        ds__race.stats.unchecked++;
        return;
    }
    if (b->conditional)
        how |= DS__RACE_MAYBE;
    if (how & DS__RACE_INEXACT)
        r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    if (!ds__race_array_reserve(&g->item, sizeof *g->item, g->count, &g->room))
        return;
    if (n->kind == DS_NODE_KERNEL)
        snprintf(text, sizeof text, "kernel %s of a graph",
                 ds__race_cut(name, sizeof name, n->op.u.kernel.kernel->name));
    else
        snprintf(text, sizeof text, "%s of a graph",
                 captured ? captured->fn : ds__node_names[n->kind]);
    uint32_t place = ds__race_place_named(text, n->op.file, (int)n->op.line);
    const ds__race_place *p = ds__race_place_get(place);
    g->item[g->count++] = (ds__race_item){ .range = r,
                                           .memory = m,
                                           .operation = p->operation,
                                           .file = p->file,
                                           .line = p->line,
                                           .node = node,
                                           .place = place,
                                           .how = how };
    ds__race_graph_watch(g, m);
}

/* Adds a write of a word, or a wait for one. */
static void ds__race_graph_value(ds__race_builder *b, uint32_t node, const ds__node *n,
                                 const ds_value_op *op) {
    ds__race_graph *g = b->graph;
    if (op->kind == DS_VALUE_WRITE)
        ds__race_graph_access(b, node, n, ds__race_range_row(op->address, op->size),
                              DS__RACE_WRITE | DS__RACE_ATOMIC);
    if (ds__race_array_reserve(&g->value, sizeof *g->value, g->values, &g->value_room))
        g->value[g->values++] = (ds__race_value){ .op = *op, .node = node };
}

/* Adds a host function, and the accesses of the operation that it begins. */
static void ds__race_graph_host(ds__race_builder *b, uint32_t node, const ds__node *n) {
    ds__race_graph *g = b->graph;
    const void *user = n->op.u.host.user;
    const ds__race_captured *c = ds__race_captured_find(user);
    for (size_t i = 0; c && i < c->count; i++)
        ds__race_graph_access(b, node, n, c->access[i].range, c->access[i].how);
    if (ds__race_array_reserve(&g->user, sizeof *g->user, g->users, &g->user_room))
        g->user[g->users++] = user;
}

/* Adds the accesses and waits of a node. */
static void ds__race_graph_node(ds__race_builder *b, uint32_t index, const ds__node *n) {
    ds__race_graph *g = b->graph;
    const ds__op *op = &n->op;
    ds__extent_range list[DS_KERNEL_MAX_PARAMS];
    size_t count = 0;
    if (n->kind == DS_NODE_KERNEL) {
        const ds__race_extents *e = ds__race_table_find(&ds__race.extents, ds__race_launch_key(op));
        g->undeclared += ds__race_kernel_is_undeclared(op->u.kernel.kernel);
        count = ds__kernel_ranges(op->u.kernel.kernel, e ? e->extent : NULL, e ? e->count : 0,
                                  op->u.kernel.items, op->u.kernel.args, list);
    }
    for (size_t i = 0; i < count; i++)
        ds__race_graph_access(b, index, n, ds__race_kernel_range(&list[i]),
                              ds__race_kernel_how(&list[i]));
    if (n->kind == DS_NODE_COPY)
        ds__race_graph_access(b, index, n, ds__race_range_of(op, DS__OP_SRC), DS__RACE_READ);
    if (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL)
        ds__race_graph_access(b, index, n, ds__race_range_of(op, DS__OP_DST), DS__RACE_WRITE);
    for (size_t i = 0; n->kind == DS_NODE_VALUES && i < op->u.values.count; i++)
        ds__race_graph_value(b, index, n, &op->u.values.list[i]);
    if (n->kind == DS_NODE_HOST)
        ds__race_graph_host(b, index, n);
    int marks = n->kind == DS_NODE_EVENT_RECORD || n->kind == DS_NODE_EVENT_WAIT;
    if (marks && ds__race_array_reserve(&g->mark, sizeof *g->mark, g->marks, &g->mark_room))
        g->mark[g->marks++] =
            (ds__race_mark){ op->u.event.event, index, n->kind == DS_NODE_EVENT_WAIT };
}

/* Adds that a node comes after another one. */
static void ds__race_graph_dep(ds__race_builder *b, uint32_t node, uint32_t before) {
    if (!ds__race_array_reserve(&b->deps, 2 * sizeof *b->deps, b->count, &b->room))
        return;
    b->deps[2 * b->count] = node;
    b->deps[2 * b->count + 1] = before;
    b->count++;
}

/* Orders nodes that wait for words after the nodes that write them. */
static void ds__race_graph_words(ds__race_builder *b) {
    ds__race_graph *g = b->graph;
    for (size_t i = 0; i < g->values; i++) {
        ds__race_value *wait = &g->value[i];
        if (ds__race_captured_find(wait->op.address))
            wait->inner = 1;
        for (size_t k = 0; wait->op.kind != DS_VALUE_WRITE && k < g->values; k++) {
            const ds__race_value *write = &g->value[k];
            if (write->op.kind != DS_VALUE_WRITE || write->op.address != wait->op.address ||
                !ds__race_value_meets(&wait->op, write->op.value))
                continue;
            ds__race_graph_dep(b, wait->node, write->node);
            wait->inner = 1;
        }
    }
}

/* Adds the nodes of a body and of its child graphs. parent: the node that has the body as its child
   graph; UINT32_MAX: none. */
static void ds__race_graph_body(ds__race_builder *b, const ds__body *body, uint32_t parent) {
    uint32_t first = b->graph->nodes;
    b->graph->nodes += body->count;
    for (uint32_t i = 0; i < body->count; i++) {
        const ds__node *n = body->node[i];
        if (!n)
            continue;
        if (parent != UINT32_MAX)
            ds__race_graph_dep(b, first + i, parent);
        for (uint32_t k = 0; k < n->dep_count; k++)
            ds__race_graph_dep(b, first + i, first + n->deps[k]);
        if (n->enabled)
            ds__race_graph_node(b, first + i, n);
        if (!n->child)
            continue;
        /* nodes that depend on node i depend on the child's nodes, too */
        uint32_t inner = b->graph->nodes;
        int outer = b->conditional;
        b->conditional |= n->kind == DS_NODE_CONDITION;
        ds__race_graph_body(b, n->child, first + i);
        b->conditional = outer;
        for (uint32_t d = 0; d < body->count; d++)
            if (body->node[d] && ds__node_depends(body->node[d], i))
                for (uint32_t c = inner; c < b->graph->nodes; c++)
                    ds__race_graph_dep(b, first + d, c);
    }
}

static int ds__race_graph_is_before(const ds__race_graph *g, uint32_t a, uint32_t b) {
    size_t words = (g->nodes + 63) / 64;
    return g->before[b * words + a / 64] >> a % 64 & 1;
}

/* Computes which nodes are ordered before which ones. The dependencies need not be in order. */
static void ds__race_graph_close(ds__race_builder *b) {
    ds__race_graph *g = b->graph;
    size_t words = (g->nodes + 63) / 64;
    if (g->nodes > DS__RACE_NODES)
        ds__log_warn("check: a graph has %u nodes; the order within graphs of more than %d is not "
                     "checked",
                     (unsigned)g->nodes, DS__RACE_NODES);
    if (g->nodes > DS__RACE_NODES || !g->nodes)
        return;
    g->before = ds__race_alloc(ds__race_graph_matrix(g->nodes));
    if (!g->before)
        return;
    g->nodes_room = g->nodes;
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t i = 0; i < b->count; i++) {
            uint64_t *to = g->before + b->deps[2 * i] * words;
            uint32_t from = b->deps[2 * i + 1];
            for (size_t w = 0; w < words; w++) {
                uint64_t more = g->before[from * words + w];
                if (w == from / 64)
                    more |= (uint64_t)1 << from % 64;
                changed |= (more & ~to[w]) != 0;
                to[w] |= more;
            }
        }
    }
}

/* Divides the accesses of a launch by the nodes that record events or wait for them: phase p lies
   before mark p. An access before a record comes into its phase or an earlier one, another access
   into a later phase, but for what a wait delays. So an event stands for the work before its
   record only. If records are not ordered, an event may stand for more. */
static void ds__race_graph_phases(ds__race_graph *g) {
    for (size_t i = 0; i < g->count && g->before; i++) {
        ds__race_item *item = &g->item[i];
        uint32_t last = (uint32_t)g->marks;
        for (uint32_t k = (uint32_t)g->marks; k-- > 0;)
            if (!g->mark[k].waits && ds__race_graph_is_before(g, item->node, g->mark[k].node))
                last = k;
        for (uint32_t k = 0; k < last; k++)
            if (g->mark[k].waits ? ds__race_graph_is_before(g, g->mark[k].node, item->node)
                                 : !ds__race_graph_is_before(g, item->node, g->mark[k].node))
                item->phase = k + 1;
    }
}

static int ds__race_item_compare(const void *a, const void *b) {
    const ds__race_item *x = a;
    const ds__race_item *y = b;
    if (x->range.at != y->range.at)
        return x->range.at < y->range.at ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* Reports two nodes that conflict and that no dependency orders. */
static void ds__race_graph_conflict(const ds__race_item *a, const ds__race_item *b) {
    if (a->node > b->node) {
        const ds__race_item *later = a;
        a = b;
        b = later;
    }
    ds__race_now now = { .n = b->node, .place = b->place, .thread = ds__race_thread() };
    ds__race_record before = { .range = a->range,
                               .n = a->node,
                               .place = a->place,
                               .thread = now.thread,
                               .how = (uint8_t)a->how };
    ds__race_report(ds__race_hazard(b->how, a->how), &now, &b->range, b->how, b->memory, &before);
}

/* Checks the nodes of a graph against each other. */
static void ds__race_graph_check(const ds__race_graph *g) {
    size_t pairs = 0;
    if (!g->before || !g->count)
        return;
    for (size_t i = 0; i < g->count; i++) {
        const ds__race_item *a = &g->item[i];
        uintptr_t end = ds__race_range_end(&a->range);
        for (size_t k = i + 1; k < g->count && g->item[k].range.at < end; k++) {
            const ds__race_item *b = &g->item[k];
            if (++pairs > DS__RACE_PAIRS)
                return;
            if (a->node != b->node && ds__race_how_conflicts(a->how, b->how) &&
                !ds__race_graph_is_before(g, a->node, b->node) &&
                !ds__race_graph_is_before(g, b->node, a->node) &&
                ds__race_range_overlaps(&a->range, &b->range))
                ds__race_graph_conflict(a, b);
        }
    }
}

/* Collects the accesses of an executable, and checks them. */
static void ds__race_graph_build(ds__race_graph *g, const ds__body *body) {
    ds__race_event last = g->last;
    g->last.clock = NULL;
    ds__race_graph_clear(g);
    g->last = last;
    ds__race_builder b = { .graph = g };
    ds__race_graph_body(&b, body, UINT32_MAX);
    ds__race_graph_words(&b);
    ds__race_graph_close(&b);
    ds__race_graph_phases(g);
    ds__race_release(b.deps, b.room * 2 * sizeof *b.deps);
    if (g->count)
        qsort(g->item, g->count, sizeof *g->item, ds__race_item_compare);
    ds__race_graph_check(g);
}

/* Returns the graph of an executable, as it is now; NULL: there is no memory. */
static ds__race_graph *ds__race_graph_of(const void *exec, const ds__body *body) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (g && !g->stale)
        return g;
    if (!g) {
        g = ds__race_alloc(sizeof *g);
        if (!g || !ds__race_table_set(&ds__race.execs, ds__race_key(exec), g)) {
            ds__race_release(g, sizeof *g);
            return NULL;
        }
    }
    ds__race_graph_build(g, body);
    return g;
}

/* Reports memory of the graph that was freed since. now: the launch, or the instantiation, which
   has no timeline. */
static void ds__race_graph_liveness(const ds__race_graph *g, const ds__race_now *now) {
    for (size_t i = 0; i < g->memories; i++) {
        const ds__race_memory *m = g->memory[i];
        if (DS__LIKELY(!m->dead || m->of_graph))
            continue;
        for (size_t k = 0; k < g->count; k++)
            if (g->item[k].memory == m) {
                const ds__race_item *item = &g->item[k];
                ds__race_record node = { .range = item->range,
                                         .n = item->node,
                                         .place = item->place,
                                         .thread = now->thread,
                                         .how = (uint8_t)item->how };
                ds__race_report(DS_HAZARD_GRAPH_MEMORY, now, &item->range, item->how, m, &node);
                break;
            }
    }
}

/* An executable was made of a graph. */
static void ds__race_graph_instantiate(const void *exec, const ds__body *body) {
    const ds__race_graph *g = ds__race_graph_of(exec, body);
    if (!g)
        return;
    ds__race_now now = { .place = ds__race_place_of_call(), .thread = ds__race_thread() };
    ds__race_graph_liveness(g, &now);
}

/* Returns the place of an access in a launch. */
static uint32_t ds__race_item_place(ds__race_item *item, const ds__op *op) {
    if (!item->launch_file || item->launch_file != op->file || item->launch_line != (int)op->line) {
        char site[DS__RACE_SITE];
        char text[300];
        snprintf(text, sizeof text, "%s (captured at %s)", item->operation,
                 ds__race_site(site, item->file, item->line));
        item->place = ds__race_place_named(text, op->file, (int)op->line);
        item->launch_file = op->file;
        item->launch_line = (int)op->line;
    }
    return item->place;
}

/* Checks the accesses of a launch before a mark. */
static void ds__race_graph_phase(ds__race_graph *g, const ds__race_line *l, const ds__op *op,
                                 uint32_t phase) {
    ds__race_now at = ds__race_line_now(l, 0);
    at.of_graph = 1;
    for (size_t i = 0; i < g->count; i++) {
        ds__race_item *item = &g->item[i];
        if (item->phase != phase || item->memory->unlisted ||
            (item->memory->dead && !item->memory->of_graph))
            continue;
        at.place = ds__race_item_place(item, op);
        ds__race.stats.accesses++;
        ds__race_access_in(item->memory, &at, &item->range, item->how);
    }
}

/* Checks a launch, the current operation of the stream. */
static void ds__race_graph_launch(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    ds__race_graph *g = ds__race_graph_of(op->u.graph.exec, op->u.graph.body);
    if (!g)
        return;
    ds__race.stats.undeclared += g->undeclared;
    if (g->last.line)
        ds__race_moment_join(l, &g->last, now->place);
    ds__race_tls.launch = l->n;
    for (size_t i = 0; i < g->values; i++)
        if (g->value[i].op.kind != DS_VALUE_WRITE && !g->value[i].inner)
            ds__race_word_wait(l, &g->value[i].op, now->place);
    for (size_t i = 0; i < g->users; i++)
        ds__race_task_add(l, g->user[i], now->place, op->u.graph.exec);
    ds__race_now at = ds__race_line_now(l, now->place);
    ds__race_graph_liveness(g, &at);
    for (uint32_t phase = 0; phase <= g->marks; phase++) {
        ds__race_graph_phase(g, l, op, phase);
        if (phase == g->marks)
            break;
        const ds__race_mark *m = &g->mark[phase];
        const ds__race_event *e = ds__race_table_find(&ds__race.events, ds__race_key(m->event));
        if (!m->waits)
            ds__race_moment_keep(&ds__race.events, ds__race_key(m->event), l, now->place);
        l->n++;
        if (m->waits && e && e->line)
            ds__race_moment_join(l, e, now->place);
    }
    for (size_t i = 0; i < g->values; i++)
        if (g->value[i].op.kind == DS_VALUE_WRITE)
            ds__race_word_write(l, &g->value[i].op, now->place);
    ds__race_event *last = &g->last;
    ds__race_clock *before = last->clock;
    *last = (ds__race_event){
        .clock = ds__race_clock_ref(l->clock), .n = l->n, .line = l->index, .place = now->place
    };
    ds__race_clock_unref(before);
}

/* An executable has changed. */
static void ds__race_graph_changed(const void *exec) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (g)
        g->stale = 1;
}

static void ds__race_graph_forget(const void *exec) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (!g)
        return;
    ds__race_table_remove(&ds__race.execs, ds__race_key(exec));
    ds__race_graph_clear(g);
    ds__race_release(g, sizeof *g);
}

#endif
