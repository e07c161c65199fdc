/* random_graphs.h - random graphs, captured from three streams or built node by node.

   The nodes of a graph race if no path leads from one to the other. The layer reports these races
   when the graph is instantiated, and not again when it is launched.

   Threads: the first one. */
#ifndef RANDOM_GRAPHS_H
#define RANDOM_GRAPHS_H

#include "random_judge.h"

enum { LANES = 3, GRAPH_STEPS = 24, MOST_EDGES = 3 };

typedef struct graph_program {
    program p;                         /* steps of a graph that is built have no stream */
    int built;                         /* 1: node by node, 0: captured */
    int edge[GRAPH_STEPS][MOST_EDGES]; /* of a graph that is built: steps before; NO_NODE: none */
} graph_program;

/* ---- drawing --------------------------------------------------------------------------------- */

static int can_be_node(const step *s) {
    return s->kind <= STEP_GRID && s->kind != STEP_COPY_SYNC && s->kind != STEP_FILL_SYNC;
}

/* Draws an access. A batch is several nodes, so no graph is built of it. */
static void node_draw(graph_program *g, step *s) {
    do {
        memset(s, 0, sizeof *s);
        access_draw(&g->p, s);
    } while (!can_be_node(s) || (g->built && s->kind == STEP_COPY_BATCH));
}

static void graph_draw(graph_program *g, uint64_t seed, setting set, const form *forms) {
    memset(g, 0, sizeof *g);
    program *p = &g->p;
    p->seed = seed;
    p->rng = seed * 0x9e6c63d0876a9a47u + 7;
    p->set = set;
    p->unit = 1;
    p->forms = forms;
    p->plain = 1;
    g->built = below(&p->rng, 2) == 0;
    for (int i = 0; i < LANES; i++)
        p->stream[p->streams++] = ROLE_FREE + i;
    blocks_draw(p);
    p->steps = 3 + below(&p->rng, GRAPH_STEPS - 3 + 1);
    p->waits = 20 + below(&p->rng, 50);
    for (size_t i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        for (int k = 0; k < MOST_EDGES; k++)
            g->edge[i][k] = i && below(&p->rng, 2) ? (int)below(&p->rng, i) : NO_NODE;
        if (g->built || below(&p->rng, 100) >= p->waits) {
            node_draw(g, s);
            continue;
        }
        size_t what = below(&p->rng, 3);
        s->kind = what ? what == 1 ? STEP_RECORD : STEP_WAIT : STEP_WAIT_STREAM;
        s->variant = 2; /* not the external forms, which are nodes */
        s->stream = stream_draw(p);
        s->other = stream_draw(p);
        s->event = event_draw(p, 0);
    }
}

/* ---- capture --------------------------------------------------------------------------------- */

/* Returns 0 for a step that does not belong to the capture, or would not be allowed in it. */
static int is_captured(const machine *m, const step *s, const int *joined) {
    if (s->kind == STEP_WAIT)
        return m->recorded[s->event] != NO_NODE;
    if (s->kind == STEP_WAIT_STREAM)
        return joined[s->other] && s->stream != s->other;
    return joined[s->stream];
}

static ds_result graph_capture(machine *m, const graph_program *g, const char *keep, int line,
                               ds_graph *out) {
    int joined[STREAMS] = { 0 };
    ds_result r = ds_capture_begin(m->stream[ROLE_FREE], DS_CAPTURE_GLOBAL);
    joined[ROLE_FREE] = 1;
    /* a stream joins by a wait for a node, and this one is before all others */
    if (r == DS_OK)
        r = ds_fill(m->block[0], 0, 1, 1, m->stream[ROLE_FREE]);
    for (int i = 0; i < (int)g->p.steps && r == DS_OK; i++) {
        const step *s = &g->p.step[i];
        if (!keep[i] || !is_captured(m, s, joined))
            continue;
        r = s->kind <= STEP_HOST_WRITE ? perform_access(m, s, line + i)
                                       : perform_order(m, s, line + i);
        (void)model_step(m, s, i);
        joined[s->stream] = 1;
    }
    for (int i = ROLE_FREE + 1; i < ROLE_FREE + LANES && r == DS_OK; i++)
        if (joined[i])
            r = ds_stream_wait_stream(m->stream[ROLE_FREE], m->stream[i]);
    return r == DS_OK ? ds_capture_end(m->stream[ROLE_FREE], out) : r;
}

/* ---- graphs that are built ------------------------------------------------------------------- */

static void node_describe(const machine *m, const step *s, args *a, ds_grid *grid,
                          ds_node_desc *out) {
    const operand *to = &s->to[0];
    memset(out, 0, sizeof *out);
    if (s->kind >= STEP_KERNEL) {
        unsigned items = (unsigned)s->items;
        *a = (args){ .ptr = { address(m, to), address(m, &s->to[1]) }, .count = s->count };
        *grid = (ds_grid){ .grid = { items }, .block = { 1 } };
        out->kind = DS_NODE_KERNEL;
        out->u.kernel = (ds_kernel_node){ .kernel = m->kernel[s->form],
                                          .items = s->items,
                                          .grid = s->kind == STEP_GRID ? grid : NULL,
                                          .args = a,
                                          .args_size = sizeof *a };
    } else if (s->kind >= STEP_FILL) {
        out->kind = DS_NODE_FILL;
        out->u.fill = (ds_fill_node){ .ptr = address(m, to),
                                      .value_size = s->value_size,
                                      .width = to->width / s->value_size,
                                      .height = to->rows,
                                      .pitch = to->pitch };
    } else {
        out->kind = DS_NODE_COPY;
        out->u.copy = (ds_copy_node){ .dst = address(m, to),
                                      .src = address(m, &s->from[0]),
                                      .width = to->width,
                                      .height = to->rows,
                                      .dst_pitch = to->pitch,
                                      .src_pitch = s->from[0].pitch };
    }
}

static ds_result graph_build(machine *m, const graph_program *g, const char *keep, int line,
                             ds_graph *out) {
    ds_graph_node node[GRAPH_STEPS];
    ds_result r = ds_graph_create(&(ds_graph_desc){ .device = m->device[0] }, out);
    for (int i = 0; i < (int)g->p.steps && r == DS_OK; i++) {
        ds_graph_node before[MOST_EDGES];
        size_t count = 0;
        ds_node_desc desc;
        args a;
        ds_grid grid;
        if (!keep[i])
            continue;
        int n = m->ran[i] = oracle_add_alone(&m->oracle, i, NO_NODE);
        model_accesses(m, n, &g->p.step[i]);
        for (int k = 0; k < MOST_EDGES; k++) {
            int from = g->edge[i][k];
            int twice = 0;
            for (int j = 0; j < k; j++)
                twice |= g->edge[i][j] == from;
            if (from == NO_NODE || twice || !keep[from])
                continue;
            before[count++] = node[from];
            oracle_edge(&m->oracle, n, m->ran[from]);
        }
        node_describe(m, &g->p.step[i], &a, &grid, &desc);
        ds_site_set(SITE_FILE, line + i);
        r = (ds_graph_add)(*out, &desc, before, count, &node[i]);
    }
    return r;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Makes a graph, instantiates it and launches it twice. */
static void graph_run(machine *m, const graph_program *g, const char *keep, verdict *v) {
    ds_graph made = { 0 };
    ds_graph_exec exec;
    v->nodes = 1;
    model_begin(m);
    collected.reports = 0;
    ds_result r = g->built ? graph_build(m, g, keep, v->line, &made)
                           : graph_capture(m, g, keep, v->line, &made);
    if (r != DS_OK) {
        complain(v, "the graph is not made: %s", ds_error_get_last());
        DS_IGNORE(g->built ? DS_OK : ds_capture_end(m->stream[ROLE_FREE], &made));
        return;
    }
    ok(ds_graph_instantiate(made, NULL, &exec));
    judge(m, &g->p, v);
    size_t reports = collected.reports;
    for (int i = 0; i < 2; i++)
        ok(ds_graph_launch(exec, m->stream[ROLE_FREE]));
    ok(ds_stream_synchronize(m->stream[ROLE_FREE]));
    if (collected.reports != reports)
        complain(v, "a launch is reported: %s",
                 ds_hazard_get_name(collected.report[reports].hazard));
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(made));
}

static void graph_print(const graph_program *g, const char *keep, const verdict *v) {
    fprintf(stderr, "graph %llu, %s, %s:\n", (unsigned long long)g->p.seed,
            g->built ? "built" : "captured", g->p.set.gpu ? "cuda" : "cpu");
    for (size_t i = 0; i < g->p.steps; i++) {
        if (!keep[i])
            continue;
        step_print(stderr, g->p.forms, i, &g->p.step[i]);
        for (int k = 0; k < MOST_EDGES && g->built; k++)
            if (g->edge[i][k] != NO_NODE && keep[g->edge[i][k]])
                fprintf(stderr, "      after %d\n", g->edge[i][k]);
    }
    fputs(v->text, stderr);
}

#endif
