/* random_model.h - tells the oracle what each step of a program means.

   Threads: the first one. */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H

#include "random_machine.h"

static int model_queue_add(machine *m, int stream) {
    stream_role role = role_of_stream(stream);
    int queue = oracle_queue_add(&m->oracle, device_of_stream(stream), role == ROLE_LEGACY,
                                 role != ROLE_FREE);
    m->queue[stream] = queue;
    memcpy(m->label[queue], m->name[stream], LABEL);
    return queue;
}

static void model_begin(machine *m) {
    oracle_init(&m->oracle, m->unit);
    m->lives = 0;
    memset(m->point, 0, sizeof m->point);
    memset(m->unrecorded, 0, sizeof m->unrecorded);
    for (int i = 0; i < STREAMS; i++)
        model_queue_add(m, i);
    for (int i = 0; i < EVENTS; i++)
        m->recorded[i] = m->released[i] = NO_NODE;
    for (int i = 0; i < GRAPHS; i++)
        m->graph[i].last = NO_NODE;
    for (int i = 0; i < MAX_STEPS; i++)
        m->ran[i] = NO_NODE;
    for (int i = 0; i < BLOCKS && m->set.lifetimes; i++) {
        m->live[i] = NO_NODE;
        m->block[i] = NULL;
    }
}

/* ---- accesses -------------------------------------------------------------------------------- */

static void model_rows(machine *m, int node, mode how, const operand *at) {
    oracle_rows rows = { address(m, at), at->width, at->pitch, at->rows };
    oracle_touch(&m->oracle, node, how, &rows);
}

/* An access without an extent: it may touch the whole block. */
static void model_maybe(machine *m, int node, ds_param_kind kind, int block) {
    operand at = { .block = block, .width = 128, .rows = 1 };
    if (kind & DS_PARAM_READ)
        model_rows(m, node, MODE_MAYBE_READ, &at);
    if (kind & DS_PARAM_WRITE)
        model_rows(m, node, MODE_MAYBE_WRITE, &at);
}

static void model_kernel(machine *m, int node, const step *s) {
    for (size_t i = 0; i < 2; i++) {
        const ds_extent *e = extent_of(m->forms, s, i);
        ds_param_kind kind = m->forms[s->form].kind[i];
        operand at = extent_rows(e, s->items, s->count);
        at.block = s->to[i].block;
        if (e->kind == DS_EXTENT_NONE) {
            model_maybe(m, node, kind, at.block);
            continue;
        }
        at.offset += s->to[i].offset;
        if (kind & DS_PARAM_READ)
            model_rows(m, node, e->atomic ? MODE_ATOMIC_READ : MODE_READ, &at);
        if (kind & DS_PARAM_WRITE)
            model_rows(m, node, e->atomic ? MODE_ATOMIC_WRITE : MODE_WRITE, &at);
    }
}

static void model_accesses(machine *m, int node, const step *s) {
    if (s->kind == STEP_KERNEL || s->kind == STEP_GRID) {
        model_kernel(m, node, s);
        return;
    }
    if (s->kind == STEP_GRAPH) {
        const graph *g = &m->graph[s->graph];
        for (size_t i = 0; i < g->nodes; i++)
            model_accesses(m, node, &g->node[i]);
        return;
    }
    int reads = s->kind == STEP_HOST_READ || (s->kind == STEP_HOST_FUNC && s->variant % 2 == 0);
    for (size_t i = 0; i < s->parts; i++) {
        model_rows(m, node, reads ? MODE_READ : MODE_WRITE, &s->to[i]);
        if (s->from[i].rows)
            model_rows(m, node, MODE_READ, &s->from[i]);
    }
}

/* Cells that are touched though no block has them. */
static void model_stale(machine *m, int node) {
    oracle_node *n = &m->oracle.node[node];
    if (!m->set.lifetimes)
        return;
    oracle_sure(n, 1, 1, &n->stale);
    for (size_t i = 0; i < m->lives; i++)
        if (m->life[i].free == NO_NODE)
            cells_remove(&n->stale, &m->life[i].cells);
}

static int model_operation(machine *m, const step *s, int number) {
    int sync = s->kind == STEP_COPY_SYNC || s->kind == STEP_FILL_SYNC;
    int host = s->kind == STEP_HOST_READ || s->kind == STEP_HOST_WRITE;
    oracle *o = &m->oracle;
    int queue = m->queue[s->stream];
    if (sync) {
        const operand *there = s->kind == STEP_COPY_SYNC ? &s->from[0] : &s->to[0];
        ds_device home = m->home[there->block];
        int second = home.type != DS_DEVICE_HOST && home.index == m->device[1].index;
        queue = m->queue[second * STREAMS_PER_DEVICE + ROLE_LEGACY];
    }
    int node = host ? oracle_host_step(o, number) : oracle_operation(o, number, queue);
    model_accesses(m, node, s);
    model_stale(m, node);
    if (s->kind == STEP_GRAPH) { /* launches of an executable run one after another */
        oracle_edge(o, node, m->graph[s->graph].last);
        m->graph[s->graph].last = node;
    }
    if (sync)
        oracle_edge(o, oracle_host_step(o, number), node);
    m->ran[number] = node;
    return sync ? NO_NODE : node;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* A wait of the host for a legacy stream is one for the blocking streams, too; those of other
   threads are left out. */
static int model_sync(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int node = oracle_host_step(o, number);
    oracle_queue *q = &o->queue[m->queue[s->stream]];
    oracle_edge(o, node, q->last);
    for (int i = 0; i < STREAMS && q->legacy; i++) {
        stream_role role = role_of_stream(i);
        if (device_of_stream(i) == q->device &&
            (role == ROLE_BLOCKING || (role == ROLE_PER_THREAD && !s->thread)))
            oracle_edge(o, node, o->queue[m->queue[i]].last);
    }
    return node;
}

static int model_sync_device(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int node = oracle_host_step(o, number);
    for (size_t i = 0; i < o->queues; i++)
        if (o->queue[i].device == s->stream)
            oracle_edge(o, node, o->queue[i].last);
    return node;
}

/* The wait comes after what a record on the other stream would come after. It is no operation on
   that stream: later work there does not follow from it. */
static int model_wait_stream(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int record = oracle_add(o, number, NO_NODE);
    oracle_edges_of_next(o, record, m->queue[s->other]);
    int node = oracle_operation(o, number, m->queue[s->stream]);
    oracle_edge(o, node, record);
    return node;
}

static int model_declare(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int last = o->queue[m->queue[s->other]].last;
    int node;
    if (s->stream == HOST) {
        node = oracle_host_step(o, number);
    } else {
        node = oracle_add_alone(o, number, NO_NODE);
        oracle_edge(o, node, o->queue[m->queue[s->stream]].last);
        o->queue[m->queue[s->stream]].last = node;
    }
    oracle_edge(o, node, last);
    return NO_NODE;
}

/* A token has all its releases before it. */
static int model_handover(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int node = oracle_host_step(o, number);
    int *token = &m->released[s->event];
    if (s->kind == STEP_ACQUIRE) {
        oracle_edge(o, node, *token);
        return node;
    }
    int released = oracle_add(o, number, NO_NODE);
    oracle_edge(o, released, *token);
    *token = released;
    return NO_NODE; /* the moment behind the call is not released */
}

static int model_order(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    int node = NO_NODE;
    switch (s->kind) {
    case STEP_RECORD:
        m->recorded[s->event] = node = oracle_operation(o, number, m->queue[s->stream]);
        return node;
    case STEP_WAIT:
        m->unrecorded[number] = m->recorded[s->event] == NO_NODE;
        if (m->unrecorded[number])
            return NO_NODE;
        node = oracle_operation(o, number, m->queue[s->stream]);
        oracle_edge(o, node, m->recorded[s->event]);
        return node;
    case STEP_WAIT_STREAM:
        return model_wait_stream(m, s, number);
    case STEP_SYNC:
        return model_sync(m, s, number);
    case STEP_SYNC_EVENT:
        node = oracle_host_step(o, number);
        oracle_edge(o, node, m->recorded[s->event]);
        return node;
    case STEP_SYNC_DEVICE:
        return model_sync_device(m, s, number);
    case STEP_NEW_EVENT:
        m->recorded[s->event] = NO_NODE;
        return NO_NODE;
    case STEP_NEW_STREAM:
        model_queue_add(m, s->stream);
        return NO_NODE;
    case STEP_DECLARE:
        return model_declare(m, s, number);
    default:
        return model_handover(m, s, number);
    }
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* Pinned memory has no owner: the order of the host counts. */
static void model_alloc(machine *m, const step *s, int number) {
    int block = s->to[0].block;
    oracle *o = &m->oracle;
    if (m->lives == MAX_LIVES) {
        o->overflow = 1;
        return;
    }
    m->live[block] = (int)m->lives;
    life *l = &m->life[m->lives++];
    memset(l, 0, sizeof *l);
    l->queue = block < FIRST_PINNED ? m->queue[s->stream] : NO_NODE;
    l->last_of_owner = l->queue == NO_NODE ? NO_NODE : o->queue[l->queue].last;
    l->alloc_step = number;
    l->free_step = l->free = NO_NODE;
    oracle_cells_of(o, &l->cells, m->block[block], block_size(block));
    l->alloc = oracle_add(o, number, NO_NODE);
    if (l->queue != NO_NODE)
        oracle_edges_of_next(o, l->alloc, l->queue);
}

static void model_free(machine *m, const step *s, int number) {
    oracle *o = &m->oracle;
    life *l = &m->life[m->live[s->to[0].block]];
    for (size_t i = 0; i < l->laters; i++)
        l->use[l->uses++] = oracle_operation(o, number, m->queue[l->later[i]]);
    l->free = oracle_add(o, number, NO_NODE);
    l->free_step = number;
    if (l->queue != NO_NODE)
        oracle_edges_of_next(o, l->free, l->queue);
    for (size_t i = 0; i < l->uses; i++)
        oracle_edge(o, l->free, l->use[i]);
    m->live[s->to[0].block] = NO_NODE;
}

static void model_use(machine *m, const step *s, int number) {
    life *l = &m->life[m->live[s->to[0].block]];
    if (m->queue[s->stream] == l->queue)
        return;
    for (size_t i = 0; i < l->laters; i++)
        if (l->later[i] == s->stream)
            return; /* the free records this stream's work, which includes all earlier work */
    if (s->kind == STEP_USE || l->queue == NO_NODE)
        l->use[l->uses++] = oracle_operation(&m->oracle, number, m->queue[s->stream]);
    else
        l->later[l->laters++] = s->stream;
}

/* Returns the node at which the stream or the host stands after the step; NO_NODE: unknown. */
static int model_step(machine *m, const step *s, int number) {
    m->oracle.thread = m->set.handover ? s->thread : 0;
    if (s->kind <= STEP_HOST_WRITE)
        return model_operation(m, s, number);
    if (s->kind <= STEP_ACQUIRE)
        return model_order(m, s, number);
    if (s->kind == STEP_ALLOC)
        model_alloc(m, s, number);
    else if (s->kind == STEP_FREE)
        model_free(m, s, number);
    else
        model_use(m, s, number);
    return NO_NODE;
}

/* ---- steps that do not run ------------------------------------------------------------------- */

static int blocks_meet(const machine *m, int a, int b) {
    const char *x = m->block[a];
    const char *y = m->block[b];
    return a != b && x < y + block_size(b) && y < x + block_size(a);
}

static int operand_is_usable(const machine *m, const step *s, const operand *at) {
    return m->block[at->block] && (s->stale || m->live[at->block] != NO_NODE);
}

/* Memory that was freed is used by few steps. A copy must not overlap itself. */
static int access_is_possible(const machine *m, const step *s) {
    if (s->kind == STEP_GRAPH || !m->set.lifetimes)
        return 1;
    for (size_t i = 0; i < s->parts; i++) {
        if (!operand_is_usable(m, s, &s->to[i]))
            return 0;
        if (s->from[i].rows && !operand_is_usable(m, s, &s->from[i]))
            return 0;
    }
    if (s->kind > STEP_COPY_SYNC)
        return 1;
    for (size_t i = 0; i < s->parts; i++)
        for (size_t k = 0; k < s->parts; k++)
            if (blocks_meet(m, s->to[i].block, s->from[k].block) ||
                blocks_meet(m, s->to[i].block, s->to[k].block))
                return 0;
    return 1;
}

/* A free records the streams of ds_mem_record_stream in no documented order, so none of them must
   be ordered with another one. */
static int use_is_possible(const machine *m, const step *s) {
    const life *l = &m->life[m->live[s->to[0].block]];
    for (size_t i = 0; i < l->laters && s->kind == STEP_USE_LATER; i++)
        if (role_of_stream(s->stream) == ROLE_LEGACY || role_of_stream(l->later[i]) == ROLE_LEGACY)
            return l->later[i] == s->stream;
    return 1;
}

/* Returns 0 for a step that has no sense at this point of the program. A wait for an event that was
   never recorded has no effect; whether it is an operation for the legacy stream is left open. */
static int step_is_possible(const machine *m, const step *s) {
    if (s->kind <= STEP_HOST_WRITE)
        return access_is_possible(m, s);
    if (s->kind == STEP_WAIT)
        return m->recorded[s->event] != NO_NODE || role_of_stream(s->stream) == ROLE_FREE;
    if (s->kind == STEP_ALLOC)
        return m->live[s->to[0].block] == NO_NODE;
    if (s->kind > STEP_ALLOC)
        return m->live[s->to[0].block] != NO_NODE && use_is_possible(m, s);
    return 1;
}

#endif
