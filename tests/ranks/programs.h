/* Random programs: collectives of several groups on several streams, without a wait of a host. All
   ranks run the same program, and each computes what all devices must have at its end. */
#ifndef RANKS_PROGRAMS_H
#define RANKS_PROGRAMS_H

#include "small.h"

enum { PROGRAM_BUFFERS = 3, PROGRAM_STREAMS = 2, PROGRAM_GROUPS = 3, PROGRAM_STEPS = 24 };

/* Buffer b of device k has `all` numbers: a small's `in` and `out` are two of them. */
typedef struct program {
    uint64_t state;
    int64_t part;
    int64_t all;
    uint32_t *model[DEVICES][PROGRAM_BUFFERS];
    ds_tensor *buffer[OWN][PROGRAM_BUFFERS];
    ds_stream stream[PROGRAM_STREAMS][OWN];
    int last[PROGRAM_BUFFERS]; /* the stream that has used the buffers last */
    place group[PROGRAM_GROUPS];
    size_t member[PROGRAM_GROUPS][RANKS]; /* color of each rank */
} program;

/* One step. All ranks draw the same. */
typedef struct program_step {
    int kind;
    int group;
    int stream;
    int from;
    int to;
    size_t root; /* modulo the devices of the group */
    unsigned flags;
} program_step;

static void program_begin(place *p, program *g, uint64_t seed) {
    ds_stream_desc d;
    memset(g, 0, sizeof *g);
    memset(&d, 0, sizeof d);
    g->state = mix(seed) + (uint64_t)p->size * 16 + (uint64_t)p->layout;
    g->part = 1 + (int64_t)draw(&g->state, 3) * (int64_t)draw(&g->state, 40);
    g->all = g->part * (int64_t)p->devices;
    for (size_t k = 0; k < p->devices; k++)
        for (int b = 0; b < PROGRAM_BUFFERS; b++) {
            g->model[k][b] = take((size_t)g->all * 4);
            for (int64_t e = 0; e < g->all; e++)
                g->model[k][b][e] = (uint32_t)mix(seed ^ k << 40 ^ (uint64_t)b << 32 ^ (uint64_t)e);
        }
    for (size_t i = 0; i < p->own; i++) {
        d.device = p->device[i];
        for (int s = 0; s < PROGRAM_STREAMS; s++)
            OK(ds_stream_create(&d, &g->stream[s][i]));
        for (int b = 0; b < PROGRAM_BUFFERS; b++) {
            OK(ds_tensor_alloc(ds_uint32(), 1, &g->all, p->stream[i], &g->buffer[i][b]));
            copy_bytes(p, g->buffer[i][b], i, g->model[p->first + i][b], 1);
        }
    }
}

/* Makes the groups of a program: all ranks, and two divisions into colors. */
static void program_split(place *p, program *g) {
    for (int n = 0; n < PROGRAM_GROUPS; n++) {
        int members[RANKS];
        int count = 0;
        for (int r = 0; r < p->size; r++)
            g->member[n][r] = n ? draw(&g->state, (size_t)n + 1) : 0;
        for (int r = 0; r < p->size; r++)
            if (g->member[n][r] == g->member[n][p->rank])
                members[count++] = r;
        place *q = &g->group[n];
        *q = place_among(p, members, count);
        OK(ds_ranks_split(p->ranks, (int)g->member[n][p->rank], p->rank, &q->ranks));
    }
}

static program_step program_draw(program *g) {
    program_step s;
    s.kind = (int)draw(&g->state, SMALL_KINDS);
    s.group = (int)draw(&g->state, PROGRAM_GROUPS);
    s.stream = (int)draw(&g->state, PROGRAM_STREAMS);
    s.from = (int)draw(&g->state, PROGRAM_BUFFERS);
    s.to = (s.from + 1 + (int)draw(&g->state, PROGRAM_BUFFERS - 1)) % PROGRAM_BUFFERS;
    s.root = draw(&g->state, DEVICES);
    s.flags = draw(&g->state, 2) ? DS_COMM_ANY_ORDER : 0;
    return s;
}

/* Enqueues a step on this rank. */
static void program_enqueue(program *g, const program_step *s) {
    place *p = &g->group[s->group];
    small x;
    memset(&x, 0, sizeof x);
    x.kind = s->kind;
    x.root = s->root % p->devices;
    x.part = g->part;
    x.all = g->part * (int64_t)p->devices;
    ds_tensor view[2][OWN];
    for (size_t i = 0; i < p->own; i++) {
        view[0][i] = *g->buffer[i][s->from];
        view[1][i] = *g->buffer[i][s->to];
        view[0][i].shape = view[1][i].shape = &x.all;
        x.in[i] = &view[0][i];
        x.out[i] = &view[1][i];
        for (int b = 0; b < 2; b++) {
            int last = g->last[b ? s->to : s->from];
            if (last != s->stream)
                OK(ds_stream_wait_stream(g->stream[s->stream][i], g->stream[last][i]));
        }
    }
    ds_comm_options o = options_of(p, x.root);
    o.streams = g->stream[s->stream];
    o.flags = s->flags;
    OK(small_call(p, &x, &o));
    g->last[s->from] = g->last[s->to] = s->stream;
}

/* Writes the result of device k of a group with the devices `list`. */
static void program_result(program *g, const program_step *s, const size_t *list, size_t n,
                           size_t k, uint32_t *out) {
    size_t part = (size_t)g->part;
    size_t root = s->root % n;
    for (size_t e = 0; e < n * part; e++) {
        uint32_t total = 0;
        size_t at = s->kind == SMALL_REDUCE_SCATTER ? k * part + e : e;
        if (at < n * part)
            for (size_t d = 0; d < n; d++)
                total += g->model[list[d]][s->from][at];
        const uint32_t *of_root = g->model[list[root]][s->from];
        const uint32_t *of_part = g->model[list[e / part]][s->from];
        switch (s->kind) {
        case SMALL_BROADCAST:
            out[e] = of_root[e];
            break;
        case SMALL_SCATTER:
            out[e] = of_root[k * part + e % part];
            break;
        case SMALL_GATHER:
        case SMALL_ALL_GATHER:
            out[e] = of_part[e % part];
            break;
        case SMALL_ALL_TO_ALL:
            out[e] = of_part[k * part + e % part];
            break;
        case SMALL_EXCHANGE:
            out[e] = g->model[list[(k + n - 1) % n]][s->from][e];
            break;
        default:
            out[e] = total;
        }
    }
}

/* Does a step for one group in the model. */
static void program_model_group(program *g, const program_step *s, const size_t *list, size_t n) {
    small x = { .kind = s->kind, .root = s->root % n, .part = g->part };
    uint32_t *out[DEVICES];
    x.all = g->part * (int64_t)n;
    for (size_t k = 0; k < n; k++) {
        out[k] = take((size_t)x.all * 4);
        program_result(g, s, list, n, k, out[k]);
    }
    for (size_t k = 0; k < n; k++) {
        memcpy(g->model[list[k]][s->to], out[k], (size_t)small_results(&x, k) * 4);
        free(out[k]);
    }
}

static void program_model(const place *p, program *g, const program_step *s) {
    for (size_t color = 0; color <= (size_t)s->group; color++) {
        size_t list[DEVICES];
        size_t n = 0;
        for (int r = 0; r < p->size; r++)
            for (size_t k = p->begin[r]; k < p->begin[r + 1]; k++)
                if (g->member[s->group][r] == color)
                    list[n++] = k;
        if (n)
            program_model_group(g, s, list, n);
    }
}

static size_t program_end(place *p, program *g) {
    size_t wrong = 0;
    for (size_t i = 0; i < p->own; i++)
        for (int s = 0; s < PROGRAM_STREAMS; s++)
            OK(ds_stream_synchronize(g->stream[s][i]));
    for (size_t i = 0; i < p->own; i++)
        for (int b = 0; b < PROGRAM_BUFFERS; b++) {
            uint32_t *is = take((size_t)g->all * 4);
            copy_bytes(p, g->buffer[i][b], i, is, 0);
            wrong += memcmp(is, g->model[p->first + i][b], (size_t)g->all * 4) != 0;
            free(is);
            OK(ds_tensor_free(g->buffer[i][b]));
        }
    for (int n = 0; n < PROGRAM_GROUPS; n++)
        OK(ds_ranks_finalize(g->group[n].ranks));
    for (size_t i = 0; i < p->own; i++)
        for (int s = 0; s < PROGRAM_STREAMS; s++)
            OK(ds_stream_destroy(g->stream[s][i]));
    for (size_t k = 0; k < p->devices; k++)
        for (int b = 0; b < PROGRAM_BUFFERS; b++)
            free(g->model[k][b]);
    return wrong;
}

/* DS_RANKS_PROGRAMS programs from DS_RANKS_SEED on. */
static void test_random_programs(place *p) {
    const char *text = getenv("DS_RANKS_PROGRAMS");
    int count = text ? atoi(text) : 4;
    for (int n = 0; n < count && !atomic_load(&failures); n++) {
        program g;
        program_begin(p, &g, test_seed + (uint64_t)n);
        program_split(p, &g);
        for (int i = 0; i < PROGRAM_STEPS; i++) {
            program_step s = program_draw(&g);
            program_enqueue(&g, &s);
            program_model(p, &g, &s);
        }
        size_t wrong = program_end(p, &g);
        CHECK(!wrong, "DS_RANKS_SEED=%llu: %zu buffers are wrong",
              (unsigned long long)(test_seed + (uint64_t)n), wrong);
    }
}

#endif
