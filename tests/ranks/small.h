/* One small operation of each kind, in pieces that enqueue and do not wait: its inputs are copied
   from pinned memory, and its results to pinned memory, in the order of the streams. */
#ifndef RANKS_SMALL_H
#define RANKS_SMALL_H

#include "tile.h"

enum {
    SMALL_BROADCAST,
    SMALL_SCATTER,
    SMALL_GATHER,
    SMALL_REDUCE,
    SMALL_ALL_REDUCE,
    SMALL_ALL_GATHER,
    SMALL_REDUCE_SCATTER,
    SMALL_ALL_TO_ALL,
    SMALL_EXCHANGE, /* each device sends to the next one */
    SMALL_BARRIER,
    SMALL_KINDS,
    SMALL_PART = 2 /* elements of a part */
};

/* An operation on tensors of int32; device k has `all` elements, or a part of them. */
typedef struct small {
    int kind;
    size_t root;
    int64_t all;
    int64_t part;
    ds_tensor *in[OWN];
    ds_tensor *out[OWN];
    int32_t *from[OWN]; /* pinned */
    int32_t *to[OWN];   /* pinned */
} small;

/* Element e of device k in a round. */
static int32_t small_value(size_t k, int64_t e, int round) {
    return (int32_t)(mix(k << 20 ^ (uint64_t)e << 8 ^ (uint64_t)round) & 0xffff);
}

static small small_make_of(place *p, int kind, size_t root, int64_t part) {
    small s;
    void *at = NULL;
    memset(&s, 0, sizeof s);
    s.kind = kind;
    s.root = root;
    s.part = part;
    s.all = (int64_t)p->devices * part;
    for (size_t i = 0; i < p->own; i++) {
        OK(ds_tensor_alloc(ds_int32(), 1, &s.all, p->stream[i], &s.in[i]));
        OK(ds_tensor_alloc(ds_int32(), 1, &s.all, p->stream[i], &s.out[i]));
        OK(ds_mem_pinned_alloc((size_t)s.all * 4, &at));
        s.from[i] = at;
        OK(ds_mem_pinned_alloc((size_t)s.all * 4, &at));
        s.to[i] = at;
    }
    return s;
}

static small small_make(place *p, int kind, size_t root) {
    return small_make_of(p, kind, root, SMALL_PART);
}

static void small_free(place *p, small *s) {
    for (size_t i = 0; i < p->own; i++) {
        OK(ds_tensor_free(s->in[i]));
        OK(ds_tensor_free(s->out[i]));
        OK(ds_mem_pinned_free(s->from[i]));
        OK(ds_mem_pinned_free(s->to[i]));
    }
}

/* Writes the inputs of a round to pinned memory, and clears the results. */
static void small_set(place *p, small *s, int round) {
    for (size_t i = 0; i < p->own; i++)
        for (int64_t e = 0; e < s->all; e++) {
            s->from[i][e] = small_value(p->first + i, e, round);
            s->to[i][e] = -1;
        }
}

/* Enqueues the copies of the inputs. */
static void small_write(place *p, small *s) {
    for (size_t i = 0; i < p->own; i++)
        OK(ds_copy(s->in[i]->data, s->from[i], (size_t)s->all * 4, p->stream[i]));
}

/* Enqueues the copies of the results. */
static void small_read(place *p, small *s) {
    for (size_t i = 0; i < p->own; i++)
        OK(ds_copy(s->to[i], s->out[i]->data, (size_t)s->all * 4, p->stream[i]));
}

static ds_result small_exchange(const place *p, const small *s, const ds_comm_options *options) {
    ds_ranks_transfer list[2 * OWN];
    ds_stream streams[2 * OWN];
    ds_comm_options o = *options;
    for (size_t i = 0; i < p->own; i++) {
        size_t k = p->first + i;
        list[2 * i] = (ds_ranks_transfer){ s->in[i], DS_RANKS_SEND, i, (k + 1) % p->devices };
        list[2 * i + 1] = (ds_ranks_transfer){ s->out[i], DS_RANKS_RECEIVE, i,
                                               (k + p->devices - 1) % p->devices };
        streams[2 * i] = streams[2 * i + 1] = options->streams[i];
    }
    o.streams = streams;
    o.stream_count = 2 * p->own;
    return ds_ranks_exchange(list, 2 * p->own, &o);
}

/* Enqueues the collective with the options. */
static ds_result small_call(const place *p, small *s, const ds_comm_options *o) {
    ds_tensor part[2][OWN];
    const ds_tensor *list[4][OWN];
    int here = is_mine(p, s->root);
    size_t own_root = here ? s->root - p->first : 0;
    for (size_t i = 0; i < p->own; i++) {
        part[0][i] = *s->in[i];
        part[1][i] = *s->out[i];
        part[0][i].shape = part[1][i].shape = &s->part;
        list[0][i] = s->in[i];
        list[1][i] = s->out[i];
        list[2][i] = &part[0][i];
        list[3][i] = &part[1][i];
    }
    const ds_tensor *in = here ? s->in[own_root] : NULL;
    const ds_tensor *out = here ? s->out[own_root] : NULL;
    switch (s->kind) {
    case SMALL_BROADCAST:
        return ds_comm_broadcast_into(in, list[1], p->own, o);
    case SMALL_SCATTER:
        return ds_comm_scatter_into(in, list[3], p->own, 0, o);
    case SMALL_GATHER:
        return ds_comm_gather_into(list[2], p->own, 0, out, o);
    case SMALL_REDUCE:
        return ds_comm_reduce_into(list[0], p->own, DS_REDUCE_SUM, out, o);
    case SMALL_ALL_REDUCE:
        return ds_comm_all_reduce(list[0], list[1], p->own, DS_REDUCE_SUM, o);
    case SMALL_ALL_GATHER:
        return ds_comm_all_gather(list[2], list[1], p->own, o);
    case SMALL_REDUCE_SCATTER:
        return ds_comm_reduce_scatter(list[0], list[3], p->own, DS_REDUCE_SUM, o);
    case SMALL_ALL_TO_ALL:
        return ds_comm_all_to_all(list[0], list[1], p->own, o);
    case SMALL_EXCHANGE:
        return small_exchange(p, s, o);
    default:
        return ds_ranks_barrier(o);
    }
}

static ds_result small_run(const place *p, small *s) {
    ds_comm_options o = options_of(p, s->root);
    return small_call(p, s, &o);
}

/* Returns the number of elements of the result of device k; 0: it has none. */
static int64_t small_results(const small *s, size_t k) {
    if (s->kind == SMALL_BARRIER)
        return 0;
    if (s->kind == SMALL_GATHER || s->kind == SMALL_REDUCE)
        return k == s->root ? s->all : 0;
    return s->kind == SMALL_SCATTER || s->kind == SMALL_REDUCE_SCATTER ? s->part : s->all;
}

/* Returns element e of the result of device k. */
static int32_t small_result(const place *p, const small *s, size_t k, int64_t e, int round) {
    int32_t total = 0;
    size_t part = (size_t)(e / s->part);
    int64_t first = (int64_t)k * s->part;
    switch (s->kind) {
    case SMALL_BROADCAST:
        return small_value(s->root, e, round);
    case SMALL_SCATTER:
        return small_value(s->root, first + e, round);
    case SMALL_GATHER:
    case SMALL_ALL_GATHER:
        return small_value(part, e % s->part, round);
    case SMALL_ALL_TO_ALL:
        return small_value(part, first + e % s->part, round);
    case SMALL_EXCHANGE:
        return small_value((k + p->devices - 1) % p->devices, e, round);
    default:
        for (size_t d = 0; d < p->devices; d++)
            total += small_value(d, s->kind == SMALL_REDUCE_SCATTER ? first + e : e, round);
        return total;
    }
}

/* Checks the results of a round in `to`; returns the number of wrong elements. */
static size_t small_check(place *p, const small *s, int round, const char *words) {
    size_t wrong = 0;
    for (size_t i = 0; i < p->own; i++)
        for (int64_t e = 0; e < small_results(s, p->first + i); e++)
            wrong += s->to[i][e] != small_result(p, s, p->first + i, e, round);
    CHECK(!wrong, "%s: kind %d, root %zu, round %d: %zu elements are wrong", words, s->kind,
          s->root, round, wrong);
    return wrong;
}

/* Returns 1 if the devices of the ranks take part for themselves, as NCCL's do. */
static int is_by_device(const place *p) {
    return strcmp(p->engine, "nccl") == 0 && p->devices > (size_t)p->size;
}

/* Returns 1 if the result of device i of this rank needs the last device of rank `late`, so it
   cannot be complete before that one has arrived. */
static int small_needs(const place *p, const small *s, int late, size_t i) {
    size_t last = p->begin[late + 1] - 1;
    size_t own = p->first + i;
    int by_device = is_by_device(p);
    if (by_device ? own == last : p->rank == late)
        return 1;
    switch (s->kind) {
    case SMALL_BROADCAST:
    case SMALL_SCATTER:
        return by_device ? s->root == last : rank_of(p, s->root) == late;
    case SMALL_GATHER:
    case SMALL_REDUCE:
        return by_device ? s->root == own : is_mine(p, s->root);
    case SMALL_EXCHANGE:
        last = (last + 1) % p->devices;
        return by_device ? last == own : is_mine(p, last);
    default:
        return 1;
    }
}

/* Runs each kind once with parts of so many elements, and checks the results. */
static void small_all_of(place *p, int round, int64_t part) {
    for (int kind = 0; kind < SMALL_KINDS; kind++) {
        small s = small_make_of(p, kind, (size_t)(kind + round) % p->devices, part);
        small_set(p, &s, round);
        small_write(p, &s);
        OK(small_run(p, &s));
        small_read(p, &s);
        synchronize(p);
        small_check(p, &s, round, "the group works");
        small_free(p, &s);
    }
}

static void small_all(place *p, int round) {
    small_all_of(p, round, SMALL_PART);
}

#endif
