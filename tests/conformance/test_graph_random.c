/* Random graphs against a sequential oracle.

   A graph's nodes work on a few buffers with operations that do not commute (each folds its
   number into every word), so one that is lost, doubled or out of order shows. The graph is
   built by hand, its nodes added in any order, or captured from several streams of all devices;
   the same is put on the streams without a capture. The executable is launched several times on
   any of the streams, and changed in between: other numbers, nodes off and on, buffers
   exchanged, a changed graph taken over. A difference prints the seed; DS_RANDOM_FIRST and
   DS_RANDOM_SEEDS choose others. */
#include "harness.h"
#include "locks.h"

#include <stdlib.h>
#include <string.h>

static uint64_t draw(uint64_t *rng) { /* splitmix64 */
    uint64_t z = *rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *rng, size_t n) {
    return (size_t)(draw(rng) % n);
}

enum { MAX_OPS = 40, MAX_BUFFERS = 6, WORDS = 10, MAX_LANES = 4 };

typedef enum op_kind { OP_MIX, OP_COPY, OP_FILL, OP_HOST, OP_CHILD, OP_EMPTY } op_kind;

typedef struct mix_args {
    uint64_t *h, n;
} mix_args;

typedef struct op {
    op_kind kind;
    int to, from; /* buffers */
    int device, priority, enabled;
    uint64_t n, deps, ancestors; /* masks of operations before it */
    mix_args host;
    ds_graph_node node;
    ds_graph child;
    ds_graph_exec child_exec;
} op;

typedef struct buffer {
    int device; /* -1: pinned */
    uint64_t *p, oracle[WORDS];
} buffer;

typedef struct program {
    uint64_t seed, rng;
    int op_count, buffer_count, lane_count, device_count;
    op ops[MAX_OPS];
    buffer buffers[MAX_BUFFERS];

    struct {
        ds_stream s;
        int device, forked;
    } lanes[MAX_LANES];

    ds_kernel mix;
    ds_graph graph;
    ds_graph_exec exec;
} program;

#define MUST(call)                                                                  \
    do {                                                                            \
        ds_result must_result_ = (call);                                            \
        if (must_result_ != DS_OK)                                                  \
            fail_msg("seed %llu: %s is %s: %s", (unsigned long long)p->seed, #call, \
                     ds_result_get_name(must_result_), ds_error_get_last());        \
    } while (0)

static void mix(uint64_t *h, uint64_t n, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++)
        h[i] = fold_host(h[i], n) + i;
}

static int mix_items(size_t first, size_t count, const void *args) {
    const mix_args *a = args;
    mix(a->h, a->n, first, count);
    return 0;
}

static void mix_host(void *user) {
    expect_no_lock();
    const mix_args *a = user;
    mix(a->h, a->n, 0, WORDS);
}

static ds_kernel make_mix(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, mix_args, h), PARAM(VALUE, mix_args, n),
                                       PARAM_FIRST, PARAM_COUNT };
    return harness_kernel("mix", mix_items, sizeof(mix_args), params, 4, 0);
}

/* ---- the program ---- */

static int uses(const op *o, int b) {
    return o->kind != OP_EMPTY && (o->to == b || (o->kind == OP_COPY && o->from == b));
}

static int writes(const op *o, int b) {
    return o->kind != OP_EMPTY && o->to == b;
}

static int conflict(const op *a, const op *b) {
    for (int i = 0; i < MAX_BUFFERS; i++)
        if (uses(a, i) && uses(b, i) && (writes(a, i) || writes(b, i)))
            return 1;
    return 0;
}

/* What it must come after, less most of what follows from the rest, and now and then more than
   that. */
static void draw_dependencies(program *p, int i) {
    op *o = &p->ops[i];
    for (int k = i - 1; k >= 0; k--) {
        int needed = conflict(o, &p->ops[k]) && !(o->ancestors >> k & 1);
        if (!needed && below(&p->rng, 12))
            continue;
        o->deps |= (uint64_t)1 << k;
        o->ancestors |= (uint64_t)1 << k | p->ops[k].ancestors;
    }
}

static void draw_op(program *p, int i) {
    op *o = &p->ops[i];
    static const op_kind kinds[] = { OP_MIX,  OP_MIX,  OP_MIX,   OP_MIX,   OP_MIX,
                                     OP_MIX,  OP_MIX,  OP_MIX,   OP_MIX,   OP_MIX,
                                     OP_COPY, OP_COPY, OP_COPY,  OP_FILL,  OP_FILL,
                                     OP_HOST, OP_HOST, OP_CHILD, OP_CHILD, OP_EMPTY };
    *o = (op){ .kind = kinds[below(&p->rng, sizeof kinds / sizeof *kinds)],
               .to = (int)below(&p->rng, (size_t)p->buffer_count),
               .enabled = 1,
               .n = draw(&p->rng) >> 32 };
    /* buffer 0 is pinned, and is never exchanged */
    if (o->kind == OP_HOST)
        o->to = 0;
    o->from = (int)below(&p->rng, (size_t)p->buffer_count);
    if (o->kind == OP_COPY && o->from == o->to)
        o->kind = OP_MIX;
    int device = p->buffers[o->to].device;
    o->device = device >= 0 ? device : (int)below(&p->rng, (size_t)p->device_count);
    o->priority = -(int)below(&p->rng, 5);
    o->host = (mix_args){ p->buffers[o->to].p, o->n };
    draw_dependencies(p, i);
}

static void make_buffer(program *p, buffer *b, int device) {
    uint64_t start[WORDS];
    void *mem;
    b->device = device;
    if (device >= 0)
        MUST(ds_device_alloc(harness_device(device), sizeof start, &mem));
    else
        MUST(ds_pinned_alloc(sizeof start, &mem));
    b->p = mem;
    for (int i = 0; i < WORDS; i++)
        b->oracle[i] = start[i] = draw(&p->rng);
    MUST(ds_copy(mem, start, sizeof start, p->lanes[0].s));
    MUST(ds_stream_synchronize(p->lanes[0].s));
}

static ds_node_desc mix_node(program *p, const op *o, mix_args *a, uint64_t n) {
    *a = (mix_args){ p->buffers[o->to].p, n };
    return (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .device = harness_device(o->device),
                           .priority = o->priority,
                           .u.kernel = { .kernel = p->mix,
                                         .items = WORDS,
                                         .grid = NULL,
                                         .args = a,
                                         .args_size = sizeof *a } };
}

/* Two mixes, one after the other. */
static void make_child(program *p, op *o) {
    mix_args a;
    ds_graph_node first;
    MUST(ds_graph_create(&(ds_graph_desc){ .device = harness_device(o->device) }, &o->child));
    ds_node_desc desc = mix_node(p, o, &a, o->n);
    MUST(ds_graph_add(o->child, &desc, NULL, 0, &first));
    desc = mix_node(p, o, &a, o->n + 1);
    MUST(ds_graph_add(o->child, &desc, &first, 1, NULL));
    MUST(ds_graph_instantiate(o->child, NULL, &o->child_exec));
}

static void begin(program *p, uint64_t seed) {
    int devices = harness_device_count() < 2 ? 1 : 2;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->rng = seed * 0x2545f4914f6cdd1du;
    p->device_count = devices;
    p->mix = make_mix();
    p->lane_count = devices + (int)below(&p->rng, (size_t)(MAX_LANES - devices + 1));
    for (int i = 0; i < p->lane_count; i++) { /* one on each device at least */
        p->lanes[i].device = i < devices ? i : (int)below(&p->rng, (size_t)devices);
        ds_stream_desc desc = { .device = harness_device(p->lanes[i].device),
                                .flags = (unsigned)below(&p->rng, 2),
                                .priority = -(int)below(&p->rng, 4) };
        MUST(ds_stream_create(&desc, &p->lanes[i].s));
    }
    p->buffer_count = 2 + (int)below(&p->rng, MAX_BUFFERS - 1);
    for (int i = 0; i < p->buffer_count; i++)
        make_buffer(p, &p->buffers[i], i ? (int)below(&p->rng, (size_t)devices + 1) - 1 : -1);
    p->op_count = 1 + (int)below(&p->rng, MAX_OPS);
    for (int i = 0; i < p->op_count; i++) {
        draw_op(p, i);
        if (p->ops[i].kind == OP_CHILD)
            make_child(p, &p->ops[i]);
    }
}

/* All of it once, in the order in which it was drawn. */
static void run_oracle(program *p) {
    for (int i = 0; i < p->op_count; i++) {
        const op *o = &p->ops[i];
        uint64_t *h = p->buffers[o->to].oracle;
        uint32_t v = (uint32_t)o->n;
        if (!o->enabled)
            continue;
        if (o->kind == OP_MIX || o->kind == OP_HOST || o->kind == OP_CHILD)
            mix(h, o->n, 0, WORDS);
        if (o->kind == OP_CHILD)
            mix(h, o->n + 1, 0, WORDS);
        if (o->kind == OP_COPY)
            memcpy(h, p->buffers[o->from].oracle, WORDS * 8);
        for (int w = 1; w < WORDS && o->kind == OP_FILL; w += 2)
            h[w] = (uint64_t)v << 32 | v;
    }
}

static void compare(program *p, const char *what) {
    uint64_t got[WORDS];
    for (int i = 0; i < p->buffer_count; i++) {
        MUST(ds_copy(got, p->buffers[i].p, sizeof got, p->lanes[0].s));
        MUST(ds_stream_synchronize(p->lanes[0].s));
        for (int w = 0; w < WORDS; w++)
            if (got[w] != p->buffers[i].oracle[w])
                fail_msg("seed %llu: %s: buffer %d, word %d differs from the oracle",
                         (unsigned long long)p->seed, what, i, w);
    }
}

/* ---- by hand ---- */

/* Odd words are filled, as rows of two words. */
static ds_node_desc node_of(program *p, const op *o, mix_args *a) {
    ds_node_desc d = { .kind = DS_NODE_EMPTY, .priority = o->priority };
    const buffer *to = &p->buffers[o->to];
    switch (o->kind) {
    case OP_MIX:
        return mix_node(p, o, a, o->n);
    case OP_COPY:
        d.kind = DS_NODE_COPY;
        d.u.copy = (ds_copy_node){ .dst = to->p, .src = p->buffers[o->from].p, .width = WORDS * 8 };
        break;
    case OP_FILL:
        d.kind = DS_NODE_FILL;
        d.u.fill = (ds_fill_node){ .ptr = to->p + 1,
                                   .value = (uint32_t)o->n,
                                   .value_size = 4,
                                   .width = 2,
                                   .height = WORDS / 2,
                                   .pitch = 16 };
        break;
    case OP_HOST:
        d.kind = DS_NODE_HOST;
        d.u.host = (ds_host_node){ .fn = mix_host, .user = (void *)(uintptr_t)&o->host };
        break;
    case OP_CHILD:
        d.kind = DS_NODE_CHILD;
        d.u.child = o->child;
        break;
    case OP_EMPTY:
        break;
    }
    return d;
}

static void add_node(program *p, ds_graph g, op *o, const ds_graph_node *deps, size_t count) {
    mix_args a;
    ds_node_desc desc = node_of(p, o, &a);
    MUST(ds_graph_add(g, &desc, deps, count, &o->node));
}

/* In any order: the nodes first, all edges then, some of them at a time. */
static void add_shuffled(program *p, ds_graph g) {
    ds_graph_node from[MAX_OPS * MAX_OPS], to[MAX_OPS * MAX_OPS];
    int order[MAX_OPS];
    size_t edges = 0, done = 0;
    for (int i = 0; i < p->op_count; i++) { /* Fisher and Yates, from the inside out */
        size_t k = below(&p->rng, (size_t)i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (int i = 0; i < p->op_count; i++)
        add_node(p, g, &p->ops[order[i]], NULL, 0);
    for (int i = 0; i < p->op_count; i++)
        for (int k = 0; k < i; k++) {
            if (!(p->ops[i].deps >> k & 1))
                continue;
            size_t at = below(&p->rng, edges + 1);
            from[edges] = from[at];
            to[edges++] = to[at];
            from[at] = p->ops[k].node;
            to[at] = p->ops[i].node;
        }
    while (done < edges) {
        size_t count = 1 + below(&p->rng, edges - done);
        MUST(ds_graph_add_edges(g, from + done, to + done, count));
        done += count;
    }
}

static void add_in_order(program *p, ds_graph g) {
    for (int i = 0; i < p->op_count; i++) {
        ds_graph_node deps[MAX_OPS];
        size_t count = 0;
        for (int k = 0; k < i; k++)
            if (p->ops[i].deps >> k & 1)
                deps[count++] = p->ops[k].node;
        add_node(p, g, &p->ops[i], deps, count);
    }
}

static void build_by_hand(program *p) {
    MUST(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &p->graph));
    if (below(&p->rng, 2))
        add_shuffled(p, p->graph);
    else
        add_in_order(p, p->graph);
}

/* ---- on streams ---- */

static void put(program *p, const op *o, ds_stream s) {
    mix_args a = { p->buffers[o->to].p, o->n };
    switch (o->kind) {
    case OP_MIX:
        MUST(ds_kernel_launch(p->mix, WORDS, &a, sizeof a, s));
        break;
    case OP_COPY:
        MUST(ds_copy(a.h, p->buffers[o->from].p, WORDS * 8, s));
        break;
    case OP_FILL:
        MUST(ds_fill_2d(a.h + 1, 16, (uint32_t)o->n, 4, 2, WORDS / 2, s));
        break;
    case OP_HOST:
        MUST(ds_stream_launch_host_func(s, mix_host, (void *)(uintptr_t)&o->host, NULL));
        break;
    case OP_CHILD:
        MUST(ds_graph_launch(o->child_exec, s));
        break;
    case OP_EMPTY:
        break;
    }
}

/* to continues after what is on from, by the stream or by an event. */
static void follow(program *p, int to, int from) {
    ds_event e;
    if (below(&p->rng, 2)) {
        MUST(ds_stream_wait_stream(p->lanes[to].s, p->lanes[from].s));
        return;
    }
    MUST(ds_stream_record_event(p->lanes[from].s, 0, &e));
    MUST(ds_stream_wait_event(p->lanes[to].s, e));
    MUST(ds_event_destroy(e));
}

static int draw_forked(program *p) {
    int at;
    do
        at = (int)below(&p->rng, (size_t)p->lane_count);
    while (!p->lanes[at].forked);
    return at;
}

/* A stream of the device that the operation wants; it may have to join the others first. */
static int draw_lane(program *p, int device) {
    int at;
    do
        at = (int)below(&p->rng, (size_t)p->lane_count);
    while (p->lanes[at].device != device);
    if (!p->lanes[at].forked)
        follow(p, at, draw_forked(p));
    p->lanes[at].forked = 1;
    return at;
}

static ds_graph_node newest_node(program *p, ds_stream s) {
    ds_graph_node nodes[MAX_OPS];
    ds_capture_info info;
    size_t count;
    MUST(ds_capture_get_info(s, &info));
    MUST(ds_graph_get_nodes(info.graph, nodes, MAX_OPS, &count));
    assert_true(count > 0 && count <= MAX_OPS);
    return nodes[count - 1];
}

/* From lane 0 back to lane 0, by way of all. A mark is an event recorded right behind an
   operation. */
static void put_all(program *p, int captured) {
    int where[MAX_OPS];
    ds_event mark[MAX_OPS] = { { 0 } };
    for (int i = 0; i < p->lane_count; i++)
        p->lanes[i].forked = i == 0;
    for (int i = 0; i < p->op_count; i++) {
        int at = where[i] = draw_lane(p, p->ops[i].device);
        for (int k = 0; k < i; k++) {
            if (!(p->ops[i].deps >> k & 1) || where[k] == at)
                continue;
            if (mark[k].id)
                MUST(ds_stream_wait_event(p->lanes[at].s, mark[k]));
            else
                follow(p, at, where[k]);
        }
        put(p, &p->ops[i], p->lanes[at].s);
        p->ops[i].node.id = 0;
        /* its node has its stream's priority, and keeps it */
        if (captured && p->ops[i].kind != OP_EMPTY) {
            p->ops[i].node = newest_node(p, p->lanes[at].s);
            MUST(ds_stream_get_priority(p->lanes[at].s, &p->ops[i].priority, NULL));
        }
        if (below(&p->rng, 3) == 0)
            MUST(ds_stream_record_event(p->lanes[at].s, 0, &mark[i]));
    }
    for (int i = 1; i < p->lane_count; i++)
        if (p->lanes[i].forked)
            follow(p, 0, i);
    for (int i = 0; i < p->op_count; i++)
        if (mark[i].id)
            MUST(ds_event_destroy(mark[i]));
}

static void build_by_capture(program *p) {
    harness_watch(p->lanes[0].s);
    MUST(ds_capture_begin(p->lanes[0].s, (ds_capture_mode)below(&p->rng, 3)));
    put_all(p, 1);
    MUST(ds_capture_end(p->lanes[0].s, &p->graph));
}

/* ---- launches and changes ---- */

/* An operation whose node is one of the kinds that can be set and switched. */
static op *draw_changeable(program *p) {
    op *o = &p->ops[below(&p->rng, (size_t)p->op_count)];
    return o->kind <= OP_FILL ? o : NULL;
}

static void set_one(program *p) {
    op *o = draw_changeable(p);
    mix_args a;
    if (!o)
        return;
    o->n = draw(&p->rng) >> 32;
    ds_node_desc desc = node_of(p, o, &a);
    MUST(ds_graph_exec_set_node(p->exec, o->node, &desc));
}

static void switch_one(program *p) {
    op *o = draw_changeable(p);
    if (!o)
        return;
    o->enabled = !o->enabled;
    MUST(ds_graph_exec_set_node_enabled(p->exec, o->node, o->enabled));
}

/* Two buffers of one kind change places in every node. */
static void exchange_buffers(program *p) {
    int a = 1 + (int)below(&p->rng, (size_t)p->buffer_count - 1),
        b = 1 + (int)below(&p->rng, (size_t)p->buffer_count - 1);
    void *from[] = { p->buffers[a].p, p->buffers[b].p, p->buffers[a].p + 1, p->buffers[b].p + 1 };
    void *to[] = { from[1], from[0], from[3], from[2] };
    size_t replaced, places = 0;
    if (a == b || p->buffers[a].device != p->buffers[b].device)
        return;
    for (int i = 0; i < p->op_count; i++) {
        op *o = &p->ops[i];
        if (o->kind == OP_EMPTY)
            continue;
        int copies = o->kind == OP_COPY, twice = o->kind == OP_CHILD ? 2 : 1;
        places += (size_t)((o->to == a || o->to == b) * twice +
                           (copies && (o->from == a || o->from == b)));
        o->to = o->to == a ? b : o->to == b ? a : o->to;
        if (copies)
            o->from = o->from == a ? b : o->from == b ? a : o->from;
    }
    MUST(ds_graph_exec_replace_pointers(p->exec, from, to, 4, &replaced));
    if (replaced != places)
        fail_msg("seed %llu: %zu places replaced, not %zu", (unsigned long long)p->seed, replaced,
                 places);
}

/* The same nodes with other numbers, set in a clone of the graph. */
static void update_all(program *p) {
    ds_graph clone;
    MUST(ds_graph_clone(p->graph, &clone));
    for (int i = 0; i < p->op_count; i++) {
        op *o = &p->ops[i];
        ds_graph_node node;
        mix_args a;
        if (!o->enabled)
            MUST(ds_graph_exec_set_node_enabled(p->exec, o->node, o->enabled = 1));
        if (o->kind == OP_EMPTY || o->kind == OP_HOST || o->kind == OP_CHILD)
            continue;
        o->n = draw(&p->rng) >> 32;
        ds_node_desc desc = node_of(p, o, &a);
        MUST(ds_graph_find_in_clone(clone, o->node, &node));
        MUST(ds_graph_set_node(clone, node, &desc));
    }
    MUST(ds_graph_exec_update(p->exec, clone, NULL));
    MUST(ds_graph_destroy(clone));
}

/* Nobody is waited for; launches of one executable keep their order on all streams, other work
   is ordered by hand. */
static void launch_some(program *p) {
    int count = 1 + (int)below(&p->rng, 5), last = 0, exchanged = 0;
    unsigned flags =
        DS_GRAPH_REPLACE_POINTERS | (below(&p->rng, 2) ? DS_GRAPH_USE_NODE_PRIORITY : 0u);
    MUST(ds_graph_instantiate(p->graph, &(ds_graph_exec_desc){ .flags = flags }, &p->exec));
    for (int i = 0; i < count; i++) {
        int at = (int)below(&p->rng, (size_t)p->lane_count);
        switch (i ? below(&p->rng, 8) : 7) {
        case 0:
            set_one(p);
            break;
        case 1:
            switch_one(p);
            break;
        case 2:
            exchange_buffers(p);
            exchanged = 1;
            break;
        /* the children of the graph have the buffers as they were */
        case 3:
            if (!exchanged)
                update_all(p);
            break;
        case 4:
            mix(p->buffers[0].oracle, (uint64_t)i, 0, WORDS);
            MUST(ds_kernel_launch(p->mix, WORDS, &(mix_args){ p->buffers[0].p, (uint64_t)i },
                                  sizeof(mix_args), p->lanes[last].s));
            MUST(ds_stream_wait_stream(p->lanes[at].s, p->lanes[last].s));
            break;
        default:
            break;
        }
        MUST(ds_graph_launch(p->exec, p->lanes[at].s));
        run_oracle(p);
        last = at;
    }
    if (below(&p->rng, 2)) { /* with launches on their way */
        MUST(ds_graph_exec_destroy(p->exec));
        p->exec.id = 0;
    }
    MUST(ds_stream_synchronize(p->lanes[last].s));
}

static void finish(program *p) {
    if (p->exec.id)
        MUST(ds_graph_exec_destroy(p->exec));
    MUST(ds_graph_destroy(p->graph));
    for (int i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind != OP_CHILD)
            continue;
        MUST(ds_graph_exec_destroy(p->ops[i].child_exec));
        MUST(ds_graph_destroy(p->ops[i].child));
    }
    for (int i = 0; i < p->lane_count; i++) {
        MUST(ds_stream_synchronize(p->lanes[i].s));
        MUST(ds_stream_destroy(p->lanes[i].s));
    }
    for (int i = 0; i < p->buffer_count; i++)
        MUST(p->buffers[i].device >= 0 ? ds_device_free(p->buffers[i].p)
                                       : ds_pinned_free(p->buffers[i].p));
    MUST(ds_kernel_destroy(p->mix));
}

static void random_graph(uint64_t seed, int captured) {
    static program program_;
    program *p = &program_;
    begin(p, seed);
    if (captured) {
        put_all(p, 0); /* as plain work */
        run_oracle(p);
        MUST(ds_stream_synchronize(p->lanes[0].s));
        compare(p, "plain");
        build_by_capture(p);
    } else
        build_by_hand(p);
    compare(p, "built, not launched");
    launch_some(p);
    compare(p, "launched");
    finish(p);
}

static uint64_t from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void random_graphs(int captured, uint64_t count) {
    uint64_t first = from_environment("DS_RANDOM_FIRST", 1);
    for (uint64_t seed = first; seed < first + from_environment("DS_RANDOM_SEEDS", count); seed++)
        random_graph(seed, captured);
}

/* The stand-in's kernels are slow. */
static uint64_t usual(void) {
    return (harness_is_cpu() ? 500 : 80) / HARNESS_THIRD;
}

static void test_random_graphs_built_by_hand_agree_with_the_oracle(void **state) {
    (void)state;
    random_graphs(0, usual());
}

static void test_random_captured_graphs_agree_with_plain_streams(void **state) {
    (void)state;
    random_graphs(1, usual());
}

static void test_random_graphs_agree_with_the_oracle_in_any_schedule(void **state) {
    ds_cpu_desc ways[] = { { .devices = 2, .workers = 1 }, { .devices = 2, .flags = DS_CPU_INLINE },
                           { .devices = 2, .workers = 8 }, { .devices = 2, .seed = 7 },
                           { .devices = 2, .seed = 8 },    { .devices = 1 } };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        harness_restart(&(ds_init_desc){ .cpu = &ways[i] });
        random_graphs(0, 40 / HARNESS_THIRD);
        random_graphs(1, 40 / HARNESS_THIRD);
    }
    harness_restart(NULL);
}

/* ---- every node once, and in order ---- */

/* Each node takes the next number when it runs. */
typedef struct stamp {
    _Atomic int runs, at;
    _Atomic int *clock;
} stamp;

typedef struct stamp_args {
    stamp *s;
} stamp_args;

static void stamp_host(void *user) {
    expect_no_lock();
    stamp *s = user;
    s->runs++;
    s->at = ++*s->clock;
}

static int stamp_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    stamp_host(((const stamp_args *)args)->s);
    return 0;
}

static void stamped_graph(uint64_t seed, ds_kernel k) {
    enum { NODES = 60, LAUNCHES = 3 };

    static stamp stamps[NODES];
    static _Atomic int clock;
    uint64_t rng = seed * 0x2545f4914f6cdd1du, deps[NODES] = { 0 };
    ds_graph_node nodes[NODES];
    ds_graph_exec x;
    ds_graph g;
    int count = 1 + (int)below(&rng, NODES);
    size_t sparse = 1 + below(&rng, 30);
    ds_stream s = harness_stream(0, 0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    clock = 0;
    for (int i = 0; i < count; i++) {
        ds_graph_node list[NODES];
        size_t n = 0;
        stamp_args a = { &stamps[i] };
        ds_node_desc desc = { .kind = DS_NODE_HOST,
                              .u.host = { .fn = stamp_host, .user = &stamps[i], .dtor_fn = NULL } };
        if (k.id && below(&rng, 8))
            desc = (ds_node_desc){ .kind = DS_NODE_KERNEL,
                                   .u.kernel = { .kernel = k,
                                                 .items = 1,
                                                 .grid = NULL,
                                                 .args = &a,
                                                 .args_size = sizeof a } };
        stamps[i].runs = stamps[i].at = 0;
        stamps[i].clock = &clock;
        for (int d = 0; d < i; d++)
            if (below(&rng, sparse) == 0) {
                deps[i] |= (uint64_t)1 << d;
                list[n++] = nodes[d];
            }
        ok(ds_graph_add(g, &desc, list, n, &nodes[i]));
    }
    ok(ds_graph_instantiate(g, NULL, &x));
    for (int round = 1; round <= LAUNCHES; round++) {
        ok(ds_graph_launch(x, s));
        ok(ds_stream_synchronize(s));
        for (int i = 0; i < count; i++) {
            if (stamps[i].runs != round)
                fail_msg("seed %llu: node %d ran %d times in %d launches", (unsigned long long)seed,
                         i, stamps[i].runs, round);
            for (int d = 0; d < i; d++)
                if (deps[i] >> d & 1 && stamps[d].at >= stamps[i].at)
                    fail_msg("seed %llu: node %d ran before node %d, on which it depends",
                             (unsigned long long)seed, i, d);
        }
    }
    assert_int_equal(clock, LAUNCHES * count);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_every_node_runs_once_per_launch_after_its_dependencies(void **state) {
    (void)state;
    ds_kernel k = { 0 };
    if (harness_is_cpu())
        k = harness_kernel("stamp", stamp_item, sizeof(stamp_args), NULL, 0, 0);
    for (uint64_t seed = 1; seed <= 100; seed++)
        stamped_graph(seed, k);
    if (k.id)
        ok(ds_kernel_destroy(k));
}

const struct CMUnitTest tests_graph_random[] = {
    DS_TEST(test_random_graphs_built_by_hand_agree_with_the_oracle, "peers b.6 b.7"),
    DS_TEST(test_random_captured_graphs_agree_with_plain_streams, "peers 60 80 b.4 b.7"),
    DS_TEST_CPU(test_random_graphs_agree_with_the_oracle_in_any_schedule, "peers b.7"),
    DS_TEST(test_every_node_runs_once_per_launch_after_its_dependencies, "peers b.7"),
};
const size_t tests_graph_random_count = sizeof tests_graph_random / sizeof *tests_graph_random;
