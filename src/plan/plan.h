/* plan/plan.h - making and keeping plans.

   Implements ds_plan_get and ds_plan_write. ds__plan_build searches for the best draft and
   ds__plan_fill copies it into the arrays of the public plan. Plans are kept in a list, and an
   equal request returns the same plan.

   Invariants: a plan never changes and lives until ds_topology_destroy frees its topology
   (ds__plans_forget), also after ds_shutdown. Its memory returns to the allocator that it was made
   with, which may not be the topology's. A plan is identified by the topology's id and all members
   of the description. Of the steps that a step waits for, the plan names only the last one of each
   lane.
   Locks: takes ds__c.lock to read and change the list; ds__planned_find expects it. The search
   runs without a lock.
   Threads: threads of the caller. Two threads may build the same plan at once; the later one is
   freed and both get the first. */
#ifndef DS__PLAN_PLAN_H
#define DS__PLAN_PLAN_H

#include "../base/text_writer.h"
#include "../core/internal.h"
#include "../tensor/types.h"
#include "../topology/types.h"
#include "types.h"
#include "bound.h"
#include "search.h"
#include "search_large.h"

/* Copies a draft into the arrays of a plan. Of the steps that a step waits for, only the last one
   of each lane is kept. On failure the error is set. */
static ds_result ds__plan_fill(ds__draft *d, ds__planned *o) {
    ds_plan *n = &o->plan;
    size_t ranks = (size_t)d->p + 1;
    size_t lanes = ranks * DS__PLAN_LANES;
    ds_plan_step *step = ds__host_alloc((d->steps + 1) * sizeof *step);
    ds_plan_location *location = ds__host_alloc((d->locations + 1) * sizeof *location);
    /* last: plus 1 */
    uint32_t *before = ds__host_alloc((d->links + 1) * sizeof *before);
    uint32_t *last = ds__host_alloc(lanes * sizeof *last);
    uint32_t count = 0;
    size_t *scratch = ds__host_alloc(ranks * sizeof *scratch);
    n->step = step;
    n->location = location;
    n->before = before;
    n->scratch = scratch;
    if (!step || !location || !before || !last || !scratch) {
        ds__host_free(last);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a plan of %zu steps", d->steps);
    }
    if (d->locations)
        memcpy(location, d->location, d->locations * sizeof *location);
    memcpy(scratch, d->scratch, ranks * sizeof *scratch);
    for (uint32_t i = 0; i < d->steps; i++) {
        const ds__dstep *s = &d->step[i];
        step[i] = (ds_plan_step){ s->rank,       s->lane, s->to, s->bytes, s->from,
                                  s->from_count, count,   0,     s->start, s->done };
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next) {
            uint32_t b = d->link[k].step;
            uint32_t *l = &last[d->step[b].rank * DS__PLAN_LANES + d->step[b].lane];
            if (b + 1 > *l)
                *l = b + 1;
        }
        last[s->rank * DS__PLAN_LANES + s->lane] = 0;
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next) {
            uint32_t b = d->link[k].step;
            uint32_t *l = &last[d->step[b].rank * DS__PLAN_LANES + d->step[b].lane];
            if (*l == b + 1)
                before[count++] = b;
            if (*l == b + 1)
                *l = 0;
        }
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
            last[d->step[d->link[k].step].rank * DS__PLAN_LANES + d->step[d->link[k].step].lane] =
                0;
        step[i].after_count = count - step[i].after;
    }
    ds__host_free(last);
    n->ranks = d->p;
    n->ways = d->ways;
    n->lanes = d->lanes;
    n->pieces = d->pieces;
    n->piece_bytes = d->piece_bytes;
    n->predicted_ns = d->end;
    n->steps = d->steps;
    return DS_OK;
}

/* Frees a plan, or NULL. */
static void ds__planned_free(ds__planned *o) {
    if (!o)
        return;
    ds_allocator allocator = o->allocator; /* `o` is freed too */
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.step);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.location);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.before);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.scratch);
    ds__release_to(&allocator, o);
}

/* Frees all plans of a topology. */
static void ds__plans_forget(const ds_topology *t) {
    ds__planned *gone = NULL;
    ds__spinlock_lock(&ds__c.lock);
    for (ds__planned **at = &ds__planned_list; *at;) {
        ds__planned *o = *at;
        if (o->topology != t->id) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        o->next = gone;
        gone = o;
    }
    ds__spinlock_unlock(&ds__c.lock);
    while (gone) {
        ds__planned *next = gone->next;
        ds__planned_free(gone);
        gone = next;
    }
}

/* Returns the kept plan of an equal request, or NULL. ds__c.lock is held. */
static ds__planned *ds__planned_find(const ds_topology *t, const ds_plan_desc *w) {
    for (ds__planned *o = ds__planned_list; o; o = o->next)
        if (o->topology == t->id && o->asked.what == w->what && o->asked.bytes == w->bytes &&
            o->asked.root == w->root && o->asked.item == w->item && o->asked.order == w->order &&
            o->asked.pieces == w->pieces && !o->asked.engine == !w->engine &&
            strcmp(o->algorithm, w->algorithm ? w->algorithm : "") == 0)
            return o;
    return NULL;
}

/* Prepares a search. Returns 0 if memory is exhausted. */
static int ds__search_init(ds__search *s, const ds_topology *t, const ds_plan_desc *w) {
    size_t n = (size_t)t->devices + 1;
    memset(s, 0, sizeof *s);
    s->now.t = t;
    s->now.want = w;
    s->now.p = t->devices;
    for (int i = 0; i < t->devices; i++)
        if (t->seat[i] >= s->now.largest)
            s->now.largest = t->seat[i] + 1;
    s->now.slots = DS__PLAN_SLOTS;
    s->load = ds__host_alloc(((size_t)t->wires + 1) * sizeof *s->load);
    s->now.scratch = ds__host_alloc(n * sizeof *s->now.scratch);
    s->best.scratch = ds__host_alloc(n * sizeof *s->best.scratch);
    s->now.place = ds__host_alloc(DS__PLACES * n * sizeof *s->now.place);
    s->out = ds__host_alloc(sizeof *s->out);
    if (s->out)
        s->out->allocator = ds__allocator;
    return s->load && s->now.scratch && s->best.scratch && s->now.place && s->out;
}

static void ds__search_deinit(ds__search *s) {
    ds__host_free(s->load);
    ds__draft_end(&s->now);
    ds__draft_end(&s->best);
}

/* Computes the bound of the search. Returns 0 if memory is exhausted. */
static int ds__search_bound_set(ds__search *s) {
    size_t n = (size_t)s->now.p + 1;
    const ds_plan_desc *w = s->now.want;
    double *need = ds__host_alloc(n * sizeof *need);
    char *from = ds__host_alloc(n);
    int ok = need && from;
    if (ok)
        s->now.bound = ds__bound_compute(s->now.t, w, need, from);
    s->enough = w->pieces || w->algorithm ? 0 : s->now.bound;
    ds__host_free(need);
    ds__host_free(from);
    return ok;
}

/* Makes the public plan of the best draft. */
static ds_result ds__search_finish(ds__search *s) {
    const ds_plan_desc *w = s->now.want;
    ds__planned *o = s->out;
    if (!s->best.name && w->bytes)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s does not support %s on this topology%s",
                        w->algorithm ? w->algorithm : "no algorithm", ds__collective_names[w->what],
                        w->order == DS_ORDER_ANY ? "" : ", or not in the given order");
    o->plan.desc = o->asked = *w;
    o->plan.desc.algorithm = s->best.name ? s->best.name : "direct";
    snprintf(o->algorithm, sizeof o->algorithm, "%s", w->algorithm ? w->algorithm : "");
    o->asked.algorithm = NULL;
    o->plan.desc.engine = o->asked.engine = w->engine ? "nccl" : NULL;
    o->topology = s->now.t->id;
    o->plan.bound_ns = s->now.bound;
    s->best.p = s->now.p;
    return ds__plan_fill(&s->best, o);
}

/* Makes a new plan. On failure the error is set. */
static ds_result ds__plan_build(const ds_topology *t, const ds_plan_desc *w, ds__planned **out) {
    ds__search s;
    int ok = ds__search_init(&s, t, w) && ds__search_bound_set(&s) && ds__search_twice(&s);
    ds_result r =
        ok ? ds__search_finish(&s) : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a plan");
    if (r == DS_OK)
        *out = s.out;
    else
        ds__planned_free(s.out);
    ds__search_deinit(&s);
    return r;
}

/* Returns 1 if times in nanoseconds are far from the end of an int64_t, and of the estimates of
   guess.h, 10^17: all ranks may send their bytes over the slowest link, and several times. */
static int ds__plan_times_fit(const ds_topology *t, size_t bytes) {
    double slowest = t->memory;
    for (int i = 0; i < t->wires; i++)
        if (t->wire[i] < slowest)
            slowest = t->wire[i];
    return (double)bytes * t->devices / slowest < 100 * 86400.0;
}

DSDEF ds_result(ds_plan_get)(const ds_topology *t, const ds_plan_desc *desc, const ds_plan **out) {
    static const ds_plan_desc usual;
    if (out)
        *out = NULL;
    DS__ENTER("ds_plan_get");
    DS__REQUIRE(t && out, "%s is NULL", t ? "out" : "topology");
    if (!desc)
        desc = &usual;
    DS__REQUIRE_RESERVED("ds_plan_desc", desc);
    DS__REQUIRE((unsigned)desc->what < DS_COLLECTIVE_COUNT,
                "collective is %d; use a ds_collective value", (int)desc->what);
    DS__REQUIRE((unsigned)desc->order <= DS_ORDER_ANY, "order is %d; use a ds_plan_order value",
                (int)desc->order);
    DS__REQUIRE(desc->root >= 0 && desc->root < t->devices,
                "root is rank %d; it must be from 0 to below %d", desc->root, t->devices);
    DS__REQUIRE(!desc->item || desc->bytes % desc->item == 0,
                "%zu bytes are not a multiple of the element size of %zu bytes", desc->bytes,
                desc->item);
    DS__REQUIRE(desc->bytes <= (size_t)1 << 50, "%zu bytes exceed the address space", desc->bytes);
    DS__REQUIRE(
        ds__plan_times_fit(t, desc->bytes),
        "%zu bytes of each of %d ranks take more than 100 days over the slowest link of the "
        "topology",
        desc->bytes, t->devices);
    DS__REQUIRE(desc->pieces <= 1024, "pieces is %zu; at most 1024 are allowed", desc->pieces);
    DS__REQUIRE(!desc->engine || strcmp(desc->engine, "nccl") == 0,
                "engine is \"%.40s\"; use NULL or \"nccl\"", desc->engine);
    DS__REQUIRE(!desc->algorithm || ds__algo_at(desc->algorithm) >= 0,
                "there is no algorithm \"%.40s\"", desc->algorithm);
    DS__REQUIRE(desc->what != DS_ALL_TO_ALL ||
                    desc->bytes / (desc->item ? desc->item : 1) % (size_t)t->devices == 0,
                "%zu bytes cannot be split into %d equal blocks", desc->bytes, t->devices);
    ds__spinlock_lock(&ds__c.lock);
    ds__planned *o = ds__planned_find(t, desc);
    ds__planned *fresh = NULL;
    ds__spinlock_unlock(&ds__c.lock);
    ds_result r = o ? DS_OK : ds__plan_build(t, desc, &fresh);
    if (r < 0)
        return r;
    if (fresh) {
        ds__spinlock_lock(&ds__c.lock);
        o = ds__planned_find(t, desc);
        if (!o) { /* no other thread made the plan meanwhile */
            fresh->next = ds__planned_list;
            ds__planned_list = o = fresh;
            atomic_store(&ds__topology_gone_fn, ds__plans_forget);
            fresh = NULL;
        }
        ds__spinlock_unlock(&ds__c.lock);
        ds__planned_free(fresh);
    }
    *out = &o->plan;
    return DS_OK;
}

/* Writes whether NCCL runs the collective in place of the plan, and why. */
static void ds__plan_write_engine(const ds_topology *t, const ds_plan *plan,
                                  ds__text_writer *writer) {
    char text[300] = "not used: the implementation is not that of devstream_ranks.h";
    ds_device *devices = ds__host_alloc((size_t)t->devices * sizeof *devices);
    for (int i = 0; devices && i < t->devices; i++)
        devices[i] = t->device ? t->device[i] : (ds_device){ DS_DEVICE_CUDA, i };
    ds__engine_question q = { ds__collective_is_sum(plan->desc.what),
                              plan->desc.order == DS_ORDER_ANY, devices, (size_t)t->devices };
    if (!devices)
        snprintf(text, sizeof text, "not used: out of memory");
    else if (ds__plan_explain_fn)
        ds__plan_explain_fn(&q, text, sizeof text);
    ds__host_free(devices);
    ds__text_writer_print(writer, "NCCL: %s\n", text);
}

DSDEF ds_result(ds_plan_write)(const ds_topology *t, const ds_plan *plan, ds_write_fn write_fn,
                               void *user) {
    DS__ENTER("ds_plan_write");
    DS__REQUIRE(t, "topology is NULL");
    DS__REQUIRE(plan, "plan is NULL");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    const ds__planned *o = (const ds__planned *)plan;
    ds__text_writer writer = { write_fn, user, 0, 0 };
    size_t copies = 0;
    for (size_t i = 0; i < plan->steps; i++)
        copies += plan->step[i].from_count == 1;
    ds__text_writer_print(&writer, "%s of %zu bytes over %d ranks",
                          ds__collective_names[plan->desc.what], plan->desc.bytes, plan->ranks);
    if (plan->desc.what <= DS_REDUCE)
        ds__text_writer_print(&writer, ", root %s", t->node[t->rank[plan->desc.root]].name);
    ds__text_writer_print(
        &writer,
        ": %s, %d way%s, %zu piece%s of at most %zu bytes, %zu copies and %zu sums on %d lane%s\n",
        plan->desc.algorithm, plan->ways, plan->ways == 1 ? "" : "s", plan->pieces,
        plan->pieces == 1 ? "" : "s", plan->piece_bytes, copies, plan->steps - copies, plan->lanes,
        plan->lanes == 1 ? "" : "s");
    ds__text_writer_print(
        &writer, "predicted %.1f us, bound %.1f us: %.1f %% of it\n",
        (double)plan->predicted_ns / 1e3, (double)plan->bound_ns / 1e3,
        plan->predicted_ns ? 100.0 * (double)plan->bound_ns / (double)plan->predicted_ns : 100.0);
    for (int i = 0; i < DS__ALGO_NAMES; i++)
        if (o->best[i].ns)
            ds__text_writer_print(&writer, "  %-8s %12.1f us  %d way%s, %zu piece%s\n",
                                  ds__algo_names[i], (double)o->best[i].ns / 1e3, o->best[i].ways,
                                  o->best[i].ways == 1 ? "" : "s", o->best[i].pieces,
                                  o->best[i].pieces == 1 ? "" : "s");
    if (plan->desc.engine)
        ds__plan_write_engine(t, plan, &writer);
    return writer.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", writer.stopped)
                          : DS_OK;
}

#endif
