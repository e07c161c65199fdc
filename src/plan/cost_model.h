/* plan/cost_model.h - cost model and predictor.

   Computes the time of single steps (ds__ns, ds__memory_ns) and predicts the end of a draft
   whose steps have lanes (ds__predict). ds__followers lists the steps that wait for each step.

   Invariants: ds__predict follows the rule and the rounding of the CPU driver's virtual clock
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
static int64_t ds__ns(double bytes, double rate) {
    double ns = bytes * 1e9 / rate;
    return ns < 1 ? bytes > 0 : (int64_t)(ns + 0.5);
}

/* What a step takes: its route, or NULL for what takes memory only. */
static const ds__troute *ds__step_route(const ds__draft *d, const ds__dstep *s) {
    return s->source < 0 ? NULL : ds__route_of(d->t, s->source, s->to.rank);
}

/* Streams are made lane by lane: the first one of each rank, then the second ones. */
static uint32_t ds__turn(const ds__draft *d, const ds__dstep *s) {
    return (uint32_t)(s->lane * (d->p + 1) + s->rank);
}

static int64_t ds__memory_ns(const ds__draft *d, const ds__dstep *s) {
    return ds__ns((double)s->bytes * (s->from_count + 1), d->t->memory);
}

/* Who waits for a step, from its `after` lists and, when lanes are given, from the order in the
   lanes: lists that begin with `next`. */
static int ds__followers(ds__draft *d, int lanes) {
    /* of a lane, plus 1 */
    uint32_t *last = ds__alloc(((size_t)d->p + 1) * DS__PLAN_LANES * sizeof *last);
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
    ds__release(last);
    return last && !d->failed;
}

/* The virtual clock's rule, word for word: steps that are ready, in the order of that time, then
   of their lanes; each begins when an engine and all its wires are free. */
static int ds__predict(ds__draft *d) {
    const ds_topology *t = d->t;
    size_t engines = (size_t)t->engines;
    size_t n = (size_t)d->p + 1;
    size_t links = d->links;
    size_t run = 0;
    int64_t *engine = ds__alloc((n * engines + n + (size_t)t->wires) * sizeof *engine);
    int64_t *memory = engine + n * engines;
    int64_t *wire = memory + n;
    ds__dues h = { NULL, 0, 0 };
    int ok = engine && ds__followers(d, 1);
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__due_put(&h, 0, ds__turn(d, &d->step[i]), i);
    d->end = 0;
    while (ok && h.dues) {
        ds__dstep *s = &d->step[ds__due_take(&h).id];
        const ds__troute *r = ds__step_route(d, s);
        int64_t *e = &engine[(size_t)s->rank * engines];
        s->start = s->ready;
        if (r) {
            for (size_t i = 1; i < engines; i++)
                if (engine[(size_t)s->rank * engines + i] < *e)
                    e = &engine[(size_t)s->rank * engines + i];
            if (*e > s->start)
                s->start = *e;
            for (size_t i = 0; i < r->hops; i++)
                if (wire[r->wire[i]] > s->start)
                    s->start = wire[r->wire[i]];
            for (size_t i = 0; i < r->hops; i++)
                wire[r->wire[i]] = s->start + ds__ns((double)s->bytes, t->wire[r->wire[i]]);
            *e = s->start + t->start_ns + ds__ns((double)s->bytes, r->rate);
            s->done = *e + r->latency_ns;
        } else {
            if (memory[s->rank] > s->start)
                s->start = memory[s->rank];
            s->done = memory[s->rank] = s->start + ds__memory_ns(d, s);
        }
        if (s->done > d->end)
            d->end = s->done;
        run++;
        for (uint32_t k = s->next; ok && k != DS__NONE; k = d->link[k].next) {
            ds__dstep *f = &d->step[d->link[k].step];
            if (s->done > f->ready)
                f->ready = s->done;
            if (!--f->need)
                ok = ds__due_put(&h, f->ready, ds__turn(d, f), d->link[k].step);
        }
    }
    d->links = links;
    ds__release(engine);
    ds__release(h.due);
    if (ok && run != d->steps) {
        ds__fail(DS_ERR_INVALID_VALUE, "the steps of a plan wait for each other");
        ok = 0;
    }
    return ok;
}

#endif
