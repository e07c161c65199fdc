/* plan/cycle.h - rounds on a circle.

   Makes a modulo schedule of the pieces (ds__cycle_build), for few ranks. A round has one piece
   of each flow, and all rounds are alike. The steps of one round are put on a circle. Its
   length is the time of the busiest wire, engine or memory, or somewhat more. Rounds follow
   each other at this distance, and no step waits for a wire, engine or memory. Several orders
   of the steps and numbers of pieces are tried, and the best is kept.

   Invariants: the arcs of a wire, engine or memory (ds__orbit) do not overlap on the circle.
   Times of the schedule are targets: ds__settle_plan and ds__cost_predict give the final ones. The
   random numbers have a fixed seed, so the same request gives the same plan. `work` limits the time
   of the search.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_CYCLE_H
#define DS__PLAN_CYCLE_H

#include "../topology/types.h"
#include "types.h"
#include "cost_model.h"
#include "schedule.h"
#include "settle.h"
#include "pieces.h"

typedef struct ds__arc {
    int64_t from;
    int64_t ns;
} ds__arc;

/* what one of them does in a round */
typedef struct ds__orbit {
    ds__arc *arc;
    size_t arcs;
} ds__orbit;

typedef struct ds__cycle {
    ds__draft *d;
    size_t steps;
    size_t lines;
    size_t wires;
    ds__orbit *orbit; /* of wires, then of engines, then of memories */
    ds__arc *arc;
    int64_t *start; /* of each step */
    int64_t *best;  /* of each step: its start in the best order */
    int64_t *held;  /* of each step: how long it holds its engine or memory */
    int64_t *tail;  /* of each step: from its begin until all that comes of it is done */
    uint32_t *need;
    uint32_t *ready;
    size_t work;  /* steps that were put down */
    double *rank; /* the order of the steps */
    double *rank_best;
    uint64_t seed;
    int64_t turn; /* of the best order: time from round to round */
    int64_t end;  /* of the best order: time of one round */
    int64_t grid[3];
    size_t pieces;
} ds__cycle;

static uint32_t ds__cycle_any(ds__cycle *r) {
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33);
}

static size_t ds__cycle_bytes(const ds__cycle *r, size_t i, size_t k) {
    size_t item = r->d->want->item ? r->d->want->item : 1;
    size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
    size_t bytes = r->d->step[i].bytes;
    size_t units = bytes / unit;
    return k < 2 || !units ? bytes : (units + k - 1) / k * unit + bytes % unit;
}

/* The first time from t on at which so many nanoseconds of the circle are free; -1: there is
   none. */
static int64_t ds__orbit_find(const ds__orbit *o, int64_t t, int64_t ns, int64_t turn) {
    int64_t first = t;
    for (size_t i = 0, free = 0; free < o->arcs; i = i + 1 < o->arcs ? i + 1 : 0) {
        int64_t since = (t - o->arc[i].from) % turn;
        if (since < 0)
            since += turn;
        free++;
        if (since >= o->arc[i].ns && turn - since >= ns)
            continue;
        t += since < o->arc[i].ns ? o->arc[i].ns - since : turn - since + o->arc[i].ns;
        free = 0;
        if (t - first > turn)
            return -1;
    }
    return t;
}

static int ds__cycle_put(ds__cycle *r, uint32_t i, size_t k, int64_t turn, int64_t grid) {
    const ds__draft *d = r->d;
    const ds_topology *t = d->t;
    const ds__dstep *s = &d->step[i];
    const ds__troute *route = ds__step_route(d, s);
    double bytes = (double)ds__cycle_bytes(r, i, k);
    int64_t begin = r->start[i];
    int64_t before;
    int64_t limit = begin + 2 * turn;
    int64_t rest = r->held[i] % turn;
    size_t engines = route ? (size_t)t->engines : 1;
    size_t own = r->wires + (route ? (size_t)s->rank * engines
                                   : ((size_t)d->p + 1) * (size_t)t->engines + (size_t)s->rank);
    size_t e = 0;
    size_t whole = (size_t)(r->held[i] / turn); /* engines that do nothing else */
    do {
        before = begin = (begin + grid - 1) / grid * grid;
        for (size_t h = 0; route && h < route->hops; h++)
            if ((begin = ds__orbit_find(&r->orbit[route->wire[h]], begin,
                                        ds__cost_ns(bytes, t->wire[route->wire[h]]), turn)) < 0)
                return 0;
        int64_t first = -1;
        for (size_t n = 0; n < engines; n++) {
            int64_t one = rest ? ds__orbit_find(&r->orbit[own + n], begin, rest, turn) : begin;
            if (one >= 0 && (first < 0 || one < first)) {
                first = one;
                e = n;
            }
        }
        if ((begin = first) < 0 || begin > limit)
            return 0;
    } while (begin != before);
    r->start[i] = begin;
    for (size_t n = 0; n < engines && whole; n++) {
        ds__orbit *o = &r->orbit[own + n];
        if (o->arcs || (n == e && rest))
            continue;
        o->arc[o->arcs++] = (ds__arc){ 0, turn };
        whole--;
    }
    for (size_t h = 0; route && h < route->hops; h++) {
        ds__orbit *o = &r->orbit[route->wire[h]];
        o->arc[o->arcs++] = (ds__arc){ begin % turn, ds__cost_ns(bytes, t->wire[route->wire[h]]) };
    }
    if (rest)
        r->orbit[own + e].arc[r->orbit[own + e].arcs++] = (ds__arc){ begin % turn, rest };
    return !whole;
}

/* One round in the order of the ranks; gives its end, or -1. */
static int64_t ds__cycle_try(ds__cycle *r, size_t k, int64_t turn, int64_t grid) {
    ds__draft *d = r->d;
    size_t n = 0;
    size_t done = 0;
    int64_t end = 0;
    for (size_t i = 0; i < r->lines; i++)
        r->orbit[i].arcs = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        r->start[i] = 0;
        if (!(r->need[i] = d->step[i].need))
            r->ready[n++] = i;
    }
    for (; n; done++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (r->rank[r->ready[i]] < r->rank[r->ready[at]])
                at = i;
        uint32_t i = r->ready[at];
        r->ready[at] = r->ready[--n];
        r->work += 1 + n / 16;
        if (!ds__cycle_put(r, i, k, turn, grid))
            return -1;
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t over = r->start[i] + r->held[i] + (route ? route->latency_ns : 0);
        if (over > end)
            end = over;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next) {
            uint32_t f = d->link[l].step;
            if (over > r->start[f])
                r->start[f] = over;
            if (!--r->need[f])
                r->ready[n++] = f;
        }
    }
    return done == r->steps ? end : -1;
}

static int64_t ds__cycle_least(ds__cycle *r, size_t k) {
    const ds__draft *d = r->d;
    const ds_topology *t = d->t;
    int64_t most = 1;
    for (size_t i = 0; i < r->lines; i++)
        r->orbit[i].arcs = 0;
    /* load of a line */
    for (size_t i = 0; i < r->lines; i++)
        r->start[i] = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__dstep *s = &d->step[i];
        const ds__troute *route = ds__step_route(d, s);
        double bytes = (double)ds__cycle_bytes(r, i, k);
        r->held[i] = route ? t->start_ns + ds__cost_ns(bytes, route->rate)
                           : ds__cost_ns(bytes * (s->from_count + 1), t->memory);
        size_t own = r->wires + (route ? (size_t)s->rank * (size_t)t->engines
                                       : ((size_t)d->p + 1) * (size_t)t->engines + (size_t)s->rank);
        if (!route && r->held[i] > most)
            most = r->held[i];
        r->start[own] += r->held[i];
        int64_t load = r->start[own] / (route ? t->engines : 1);
        if (load > most)
            most = load;
        for (size_t h = 0; route && h < route->hops; h++) {
            int64_t ns = ds__cost_ns(bytes, t->wire[route->wire[h]]);
            load = r->start[route->wire[h]] += ns;
            if (load > most)
                most = load;
        }
    }
    r->grid[0] = 1;
    r->grid[1] = most;
    /* the busiest wires are full only if what is on them stands side by side */
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        for (size_t h = 0; route && h < route->hops; h++) {
            int64_t ns = ds__cost_ns((double)ds__cycle_bytes(r, i, k), t->wire[route->wire[h]]);
            if (r->start[route->wire[h]] < most - most / 16)
                continue;
            if (ns > r->grid[0])
                r->grid[0] = ns;
            if (ns < r->grid[1])
                r->grid[1] = ns;
        }
    }
    r->grid[2] = 1;
    return most;
}

static void ds__cycle_keep(ds__cycle *r, size_t k, int64_t turn, int64_t end) {
    r->pieces = k;
    r->turn = turn;
    r->end = end;
    memcpy(r->best, r->start, r->steps * sizeof *r->best);
    memcpy(r->rank_best, r->rank, r->steps * sizeof *r->rank);
}

static int64_t ds__cycle_time(const ds__cycle *r) {
    return r->pieces ? r->end + (int64_t)(r->pieces - 1) * r->turn : INT64_MAX;
}

/* One order with so many pieces, on circles that are longer and longer. */
static void ds__cycle_order(ds__cycle *r, size_t k, int64_t least, int64_t path) {
    for (int fine = 0; fine < 3; fine++)
        for (int more = 0; more <= 32 && (!fine || r->grid[fine] < r->grid[fine - 1]);
             more = more ? 2 * more : 1) {
            int64_t g = r->grid[fine];
            int64_t turn = (least + least * more / 64 + g - 1) / g * g;
            if (path + (int64_t)(k - 1) * turn >= ds__cycle_time(r))
                break;
            int64_t end = ds__cycle_try(r, k, turn, g);
            if (end < 0)
                continue;
            if (end + (int64_t)(k - 1) * turn < ds__cycle_time(r))
                ds__cycle_keep(r, k, turn, end);
            break;
        }
}

/* How long the longest way through a round takes; tail: from each step on. */
static int64_t ds__cycle_path(ds__cycle *r) {
    const ds__draft *d = r->d;
    int64_t most = 0;
    for (size_t i = r->steps; i-- > 0;) { /* steps come after those that they wait for */
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t rest = 0;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next)
            if (r->tail[d->link[l].step] > rest)
                rest = r->tail[d->link[l].step];
        r->tail[i] = rest + r->held[i] + (route ? route->latency_ns : 0);
        if (r->tail[i] > most)
            most = r->tail[i];
    }
    return most;
}

static int ds__cycle_begin(ds__cycle *r, ds__draft *d) {
    const ds_topology *t = d->t;
    size_t engines = (size_t)t->engines;
    size_t ranks = (size_t)d->p + 1;
    size_t arcs = 0;
    r->d = d;
    r->seed = 1;
    r->steps = d->steps;
    r->wires = (size_t)t->wires;
    r->lines = r->wires + ranks * engines + ranks;
    size_t n = r->steps > r->lines ? r->steps : r->lines;
    r->orbit = ds__host_alloc(r->lines * sizeof *r->orbit);
    r->start = ds__host_alloc(4 * n * sizeof *r->start);
    r->rank = ds__host_alloc(2 * n * sizeof *r->rank);
    r->need = ds__host_alloc(2 * n * sizeof *r->need);
    if (!r->orbit || !r->start || !r->rank || !r->need)
        return 0;
    r->best = r->start + n;
    r->held = r->best + n;
    r->tail = r->held + n;
    r->rank_best = r->rank + n;
    r->ready = r->need + n;
    for (int fill = 0; fill < 2; fill++) { /* count, then place */
        for (uint32_t i = 0; !fill && i < d->steps; i++) {
            const ds__troute *route = ds__step_route(d, &d->step[i]);
            for (size_t h = 0; route && h < route->hops; h++)
                r->orbit[route->wire[h]].arcs++;
            for (size_t e = 0; e < (route ? engines : 1); e++)
                r->orbit[r->wires + (route ? (size_t)d->step[i].rank * engines + e
                                           : ranks * engines + (size_t)d->step[i].rank)]
                    .arcs++;
        }
        for (size_t i = 0; i < r->lines && !fill; i++)
            arcs += r->orbit[i].arcs;
        if (!fill && !(r->arc = ds__host_alloc((arcs + 1) * sizeof *r->arc)))
            return 0;
        arcs = 0;
        for (size_t i = 0; i < r->lines && fill; i++) {
            r->orbit[i].arc = r->arc + arcs;
            arcs += r->orbit[i].arcs;
        }
    }
    return 1;
}

static void ds__cycle_end(ds__cycle *r) {
    ds__host_free(r->orbit);
    ds__host_free(r->start);
    ds__host_free(r->rank);
    ds__host_free(r->need);
    ds__host_free(r->arc);
}

/* The best of some orders and numbers of pieces for the flows of the draft, predicted to the
   end. 0: there is none that takes less than `enough`. */
static int ds__cycle_build(ds__draft *d, int64_t enough, size_t copies, size_t most) {
    static const size_t counts[] = { 2,  3,  4,  5,  6,  8,   10,  12,  14,  16,  20,  24,  28,  32,
                                     40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024 };
    ds__cycle r;
    int ok = 0;
    memset(&r, 0, sizeof r);
    if (!ds__pieces_emit(d, 1, 0))
        return 0;
    size_t links = d->links;
    if (d->steps && ds__cost_followers_count(d, 0) && ds__cycle_begin(&r, d)) {
        int64_t least = 0;
        for (int order = 0; order < 3; order++)
            for (size_t n = 0; n < sizeof counts / sizeof counts[0] && r.work < most; n++) {
                size_t k = counts[n];
                if (copies * k > DS__PLAN_STEPS / 2 ||
                    d->want->bytes / ((size_t)d->ways * k) < 1024)
                    break;
                if (order && (k < r.pieces / 2 || k > r.pieces * 2))
                    continue;
                least = ds__cycle_least(&r, k);
                int64_t path = ds__cycle_path(&r);
                if (path + (int64_t)(k - 1) * least >=
                    (ds__cycle_time(&r) < enough ? ds__cycle_time(&r) : enough))
                    continue;
                for (uint32_t i = 0; i < r.steps; i++)
                    r.rank[i] = order == 0   ? (double)d->step[i].key
                                : order == 1 ? -(double)r.tail[i]
                                             : (double)i;
                ds__cycle_order(&r, k, least, path);
            }
        if (r.pieces && ds__cycle_time(&r) < enough + enough / 8) {
            least = ds__cycle_least(&r, r.pieces);
            int64_t path = ds__cycle_path(&r);
            while (r.work < most && ds__cycle_time(&r) > path + (int64_t)(r.pieces - 1) * least) {
                memcpy(r.rank, r.rank_best, r.steps * sizeof *r.rank);
                for (int i = 0; i < 3; i++) {
                    double x = r.rank[ds__cycle_any(&r) % r.steps];
                    r.rank[ds__cycle_any(&r) % r.steps] = x;
                }
                ds__cycle_order(&r, r.pieces, least, path);
            }
        }
        ok = r.pieces && ds__cycle_time(&r) < enough;
    }
    d->links = links;
    if (ok) { /* how long what is written lives, in rounds */
        int64_t longest = 0;
        for (uint32_t i = 0; i < r.steps; i++)
            for (uint32_t k = d->step[i].after; k != DS__NONE; k = d->link[k].next) {
                const ds__troute *route = ds__step_route(d, &d->step[i]);
                int64_t life = r.best[i] + r.held[i] + (route ? route->latency_ns : 0) -
                               r.best[d->link[k].step];
                if (life > longest)
                    longest = life;
            }
        size_t slots = d->slots;
        d->slots = (size_t)(longest / r.turn) + 3;
        ok = d->slots <= 64 && ds__pieces_emit(d, r.pieces, 0);
        d->slots = slots;
        size_t first = 0;
        for (size_t f = 0; ok && f < d->flows; f++) {
            const ds__flow *w = &d->flow[f];
            size_t end = f + 1 < d->flows ? d->flow[f + 1].first : d->steps;
            for (size_t i = w->first; i < end; i++) {
                ds__dstep *s = &d->step[i];
                const ds__troute *route = ds__step_route(d, s);
                s->start = r.best[first + (i - w->first) % w->each] +
                           (int64_t)((i - w->first) / w->each) * r.turn;
                s->done = s->start +
                          (route ? d->t->start_ns + ds__cost_ns((double)s->bytes, route->rate) +
                                       route->latency_ns
                                 : ds__memory_ns(d, s));
                s->key = (uint64_t)s->start;
            }
            first += w->each;
        }
        ok = ok && ds__schedule_sort(d) && ds__settle_plan(d) && ds__cost_predict(d);
    }
    ds__cycle_end(&r);
    return ok;
}

#endif
