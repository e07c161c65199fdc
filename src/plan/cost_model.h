/* plan/cost_model.h - cost model and predictor.

   Computes the time of single steps (ds__cost_ns, ds__memory_ns) and predicts the end of a draft
   whose steps have lanes (ds__cost_predict). ds__cost_followers_count lists the steps that wait for
   each step.

   Invariants: ds__cost_predict follows the rule and the rounding of the CPU driver's virtual clock
   (cpu/clock.h), so both give the same time. A change of one needs the same change in the
   other. The lists that begin with `next` are valid until the caller resets d->links to its
   former value. Steps that wait for each other are an error.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_COST_MODEL_H
#define DS__PLAN_COST_MODEL_H

#include "../topology/types.h"
#include "types.h"
#include "heap.h"

/* Nanoseconds for so many bytes: the nearest, but for any at least one. */
static int64_t ds__cost_ns(double bytes, double rate) {
    double ns = bytes * 1e9 / rate;
    return ns < 1 ? bytes > 0 : (int64_t)(ns + 0.5);
}

/* What a step takes: its route, or NULL for what takes memory only. */
static const ds__troute *ds__step_route(const ds__draft *d, const ds__dstep *s) {
    return s->source < 0 ? NULL : ds__route_of(d->t, s->source, s->to.rank);
}

/* Streams are made lane by lane: the first one of each rank, then the second ones. */
static uint32_t ds__cost_step_turn(const ds__draft *d, const ds__dstep *s) {
    return (uint32_t)(s->lane * (d->p + 1) + s->rank);
}

static int64_t ds__memory_ns(const ds__draft *d, const ds__dstep *s) {
    return ds__cost_ns((double)s->bytes * (s->from_count + 1), d->t->memory);
}

/* Returns the engine that is free first. */
static inline int64_t *ds__engine_first(int64_t *engine, size_t engines) {
    int64_t *first = engine;
    for (size_t i = 1; i < engines; i++)
        if (engine[i] < *first)
            first = &engine[i];
    return first;
}

/* Who waits for a step, from its `after` lists and, when lanes are given, from the order in the
   lanes: lists that begin with `next`. */
static int ds__cost_followers_count(ds__draft *d, int lanes) {
    /* of a lane, plus 1 */
    uint32_t *last = ds__host_alloc(((size_t)d->p + 1) * DS__PLAN_LANES * sizeof *last);
    for (size_t i = 0; i < d->steps; i++) {
        d->step[i].next = DS__NONE;
        d->step[i].need = 0;
        d->step[i].ready = 0;
    }
    for (uint32_t i = 0; last && !d->failed && i < d->steps; i++) {
        ds__dstep *s = &d->step[i];
        uint32_t *l = &last[s->rank * DS__PLAN_LANES + s->lane];
        uint32_t k = s->after;
        int again = lanes && *l;
        while (again || k != DS__NONE) {
            ds__dstep *before = &d->step[again ? *l - 1 : d->link[k].step];
            if (!again)
                k = d->link[k].next;
            again = 0;
            ds__dlink *one = DS__ADD(d, link);
            if (!one)
                break;
            *one = (ds__dlink){ i, before->next };
            before->next = (uint32_t)d->links - 1;
            s->need++;
        }
        if (lanes)
            *l = i + 1;
    }
    ds__host_free(last);
    return last && !d->failed;
}

/* Times at which the wires, engines and memories of the virtual clock are free. */
typedef struct ds__plan_clock {
    int64_t *engine;
    int64_t *memory;
    int64_t *wire;
} ds__plan_clock;

/* Runs a step that is ready: it begins when an engine and all its wires are free. */
static void ds__plan_clock_run(const ds__plan_clock *c, const ds__draft *d, ds__dstep *s) {
    const ds_topology *t = d->t;
    const ds__troute *r = ds__step_route(d, s);
    size_t engines = (size_t)t->engines;
    s->start = s->ready;
    if (!r) {
        if (c->memory[s->rank] > s->start)
            s->start = c->memory[s->rank];
        s->done = c->memory[s->rank] = s->start + ds__memory_ns(d, s);
        return;
    }

    int64_t *e = ds__engine_first(&c->engine[(size_t)s->rank * engines], engines);
    if (*e > s->start)
        s->start = *e;
    for (size_t i = 0; i < r->hops; i++)
        if (c->wire[r->wire[i]] > s->start)
            s->start = c->wire[r->wire[i]];
    for (size_t i = 0; i < r->hops; i++)
        c->wire[r->wire[i]] = s->start + ds__cost_ns((double)s->bytes, t->wire[r->wire[i]]);
    *e = s->start + t->start_ns + ds__cost_ns((double)s->bytes, r->rate);
    s->done = *e + r->latency_ns;
}

/* Puts the steps that a finished step lets become ready into the heap. Returns 0 if memory is
   exhausted. */
static int ds__plan_clock_finish(const ds__draft *d, ds__dues *h, const ds__dstep *s) {
    for (uint32_t k = s->next; k != DS__NONE; k = d->link[k].next) {
        ds__dstep *f = &d->step[d->link[k].step];
        if (s->done > f->ready)
            f->ready = s->done;
        if (!--f->need && !ds__due_put(h, f->ready, ds__cost_step_turn(d, f), d->link[k].step))
            return 0;
    }
    return 1;
}

/* The virtual clock's rule, word for word: steps that are ready, in the order of that time, then
   of their lanes. Returns 0 if memory is exhausted or if steps wait for each other. */
static int ds__cost_predict(ds__draft *d) {
    size_t engines = (size_t)d->t->engines;
    size_t n = (size_t)d->p + 1;
    size_t links = d->links;
    size_t run = 0;
    ds__plan_clock c = { NULL, NULL, NULL };
    ds__dues h = { NULL, 0, 0 };
    c.engine = ds__host_alloc((n * engines + n + (size_t)d->t->wires) * sizeof *c.engine);
    int ok = c.engine && ds__cost_followers_count(d, 1);
    if (ok) {
        c.memory = c.engine + n * engines;
        c.wire = c.memory + n;
    }
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__due_put(&h, 0, ds__cost_step_turn(d, &d->step[i]), i);

    d->end = 0;
    for (; ok && h.dues; run++) {
        ds__dstep *s = &d->step[ds__due_take(&h).id];
        ds__plan_clock_run(&c, d, s);
        if (s->done > d->end)
            d->end = s->done;
        ok = ds__plan_clock_finish(d, &h, s);
    }
    d->links = links;
    ds__host_free(c.engine);
    ds__host_free(h.due);
    if (ok && run != d->steps) {
        ds__fail(DS_ERR_INVALID_VALUE, "the steps of a plan wait for each other");
        ok = 0;
    }
    return ok;
}

#endif
