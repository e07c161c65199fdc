/* comm/follow_plan.h - collectives that follow a plan.

   ds__follow_open decides whether a collective can follow a plan for options->topology.
   ds__side_open locates the input or output of one rank, packed into temporary memory if needed.
   ds__follow_run finds the plan and appends its steps to the list.

   Invariants: if a plan from the caller does not fit, the call fails; without such a plan, the
   collective takes the direct path (ds__follow_not). The participant at index i must be on the
   device of rank i. If the input and the output of a rank share memory in a reduction, the input
   may be copied first (ds__follow_in_place).
   Locks: takes none itself. ds_plan_get takes ds__c.lock to look up and store a plan, but
   searches for a plan without that lock.
   Threads: caller's threads, each with its own ds__work. The topology owns its plans and must
   not be freed during the call. */
#ifndef DS__COMM_FOLLOW_PLAN_H
#define DS__COMM_FOLLOW_PLAN_H

#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/types.h"
#include "../topology/types.h"
#include "../plan/types.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "submit.h"
#include "result.h"
#include "side_stream.h"

/* The plan cannot be followed: an error if it is the caller's. */
__attribute__((format(printf, 3, 4))) static int ds__follow_not(ds__work *w,
                                                                const ds_comm_options *o,
                                                                const char *format, ...) {
    char why[200];
    va_list args;
    if (!o->plan || w->r < 0)
        return 0;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    w->r = ds__fail(DS_ERR_INVALID_VALUE, "the plan does not fit: %s", why);
    return 0;
}

static int ds__on_rank(const ds_topology *t, size_t rank, ds_device device) {
    return t->device ? ds__same_device(t->device[rank], device)
                     : device.type != DS_DEVICE_HOST && device.index == (int32_t)rank;
}

/* The rank of the single tensor: the plan's root if that is there, else the first on the device;
   as many as there are: none. */
static size_t ds__root_of(const ds_comm_options *o, ds_device device) {
    size_t root = 0;
    size_t p = (size_t)o->topology->devices;
    if (o->plan && ds__on_rank(o->topology, (size_t)o->plan->desc.root, device))
        return (size_t)o->plan->desc.root;
    while (root < p && !ds__on_rank(o->topology, root, device))
        root++;
    return root;
}

static ds_plan_order ds__order_of(ds_dtype t, ds_reduce_op op, unsigned flags) {
    /* divided once */
    if (op == DS_REDUCE_AVERAGE)
        return DS_ORDER_AT_ONCE;
    if (op == DS_REDUCE_MAX || op == DS_REDUCE_MIN || flags & DS_COMM_ANY_ORDER ||
        t.code == DS_CODE_INT || t.code == DS_CODE_UINT || t.code == DS_CODE_BOOL)
        return DS_ORDER_ANY;
    /* halves are summed in a wider type, others in their own, one after the other */
    return t.bits == 16 ? DS_ORDER_AT_ONCE : DS_ORDER_LIST;
}

/* 1: there is a plan to be followed. each: a party on each rank; one: the single tensor, or
   NULL. bytes: S. */
static int ds__follow_open(ds__work *w, ds__follow *f, const ds_comm_options *o, ds_collective what,
                           const ds__participant *each, size_t count, const ds__participant *one,
                           size_t bytes) {
    const ds_topology *t = o->topology;
    if (!t || w->r < 0 || !bytes)
        return 0;
    memset(f, 0, sizeof *f);
    f->o = o;
    f->p = (size_t)t->devices;
    if (count != f->p || count < 2)
        return ds__follow_not(w, o, "%zu tensors on %zu ranks", count, f->p);
    for (size_t i = 0; i < count; i++)
        if (!ds__on_rank(t, i, each[i].d.device))
            return ds__follow_not(w, o,
                                  "the tensor at index %zu is on %s:%d, which is not rank %zu", i,
                                  ds__type_name(each[i].d.device.type), each[i].d.device.index, i);
    size_t root = one ? ds__root_of(o, one->d.device) : 0;
    if (root == count)
        return ds__follow_not(w, o, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(one->d.device.type), one->d.device.index);
    f->lane = ds__work_take(w, count, sizeof *f->lane);
    f->in = f->lane ? ds__work_take(w, 2 * count, sizeof *f->in) : NULL;
    if (!f->in)
        return 0;
    f->out = f->in + count;
    for (size_t i = 0; i < 2 * count; i++)
        f->in[i] = (ds__side){ { 0, 0 }, NULL, DS__NO_INDEX, 0 };
    for (size_t i = 0; i < count; i++)
        f->lane[i] = ds__lane_of(w, one && i == root ? one : &each[i]);
    f->dtype = each[0].d.dtype;
    f->want.what = what;
    f->want.bytes = bytes;
    f->want.root = one ? (int)root : 0;
    f->want.item = each[0].d.item;
    return 1;
}

/* A tensor that is cut into equal parts along a dimension, of which each lies in these strides
   and follows the one before: where it is, if it is so. */
static int ds__part_is_contiguous(const ds__participant *p, int dim, size_t parts,
                                  const int64_t *strides) {
    int64_t n = parts > 1 ? p->d.shape[dim] / (int64_t)parts : 0;
    for (int i = 0; i < p->d.ndim; i++)
        if ((parts > 1 && i == dim ? n : p->d.shape[i]) != 1 && p->d.strides[i] != strides[i])
            return 0;
    return parts < 2 || n * p->d.strides[dim] == p->d.count / (int64_t)parts;
}

/* Moves all parts to the temporary memory, or from there. The last step. */
static uint32_t ds__side_move(ds__work *w, const ds__side *a, int dim, size_t parts,
                              const int64_t *strides, int back) {
    const ds__participant *p = a->p;
    uint32_t lane = ds__lane_of(w, p);
    uint32_t last = DS__NO_INDEX;
    int64_t n = parts > 1 ? p->d.shape[dim] / (int64_t)parts : 0;
    int64_t at = 0;
    for (size_t k = 0; k < parts && w->r == DS_OK; k++) {
        ds__participant part = parts > 1 ? ds__party_part(p, dim, &at, n) : *p;
        ds__location there = ds__location_in(w, &part);
        ds__location here = { a->spot.region, a->spot.offset + (ptrdiff_t)(k * part.d.bytes) };
        last = back ? ds__copy_add(w, lane, there, part.d.strides, here, strides, part.d.ndim,
                                   part.d.shape, part.d.item)
                    : ds__copy_add(w, lane, here, strides, there, part.d.strides, part.d.ndim,
                                   part.d.shape, part.d.item);
    }
    return last;
}

static void ds__side_open(ds__work *w, ds__side *a, const ds__participant *p, int dim, size_t parts,
                          const int64_t *strides, int read) {
    a->p = p;
    a->apart = !ds__part_is_contiguous(p, dim, parts, strides);
    a->spot = a->apart
                  ? (ds__location){ ds__step_temporary_add(w, ds__lane_of(w, p), p->d.bytes), 0 }
                  : ds__location_of(p);
    if (a->apart && read)
        a->ready = ds__side_move(w, a, dim, parts, strides, 0);
}

static int ds__collective_is_sum(ds_collective what) {
    return what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
}

/* The input of a rank whose output lies in the same memory: if anything of it is read twice, or
   its output is written more than once, the second time may be too late. */
static void ds__follow_in_place(ds__work *w, ds__follow *f, const ds_plan *plan, size_t rank) {
    ds__side *in = &f->in[rank];
    const ds__side *out = &f->out[rank];
    size_t read = 0;
    size_t written = 0;
    if (!ds__collective_is_sum(f->want.what) || !in->p || !out->p || in->apart || out->apart ||
        !ds__dims_collide(&in->p->d, &out->p->d))
        return;
    for (size_t i = 0; i < plan->steps; i++) {
        const ds_plan_step *s = &plan->step[i];
        if (s->to.rank == (int)rank && s->to.buffer == DS_PLAN_OUTPUT)
            written += s->bytes;
        for (uint32_t k = 0; k < s->from_count; k++)
            if (plan->spot[s->from + k].rank == (int)rank &&
                plan->spot[s->from + k].buffer == DS_PLAN_INPUT)
                read += s->bytes;
    }
    if (read == in->p->d.bytes && written == out->p->d.bytes)
        return;
    uint32_t lane = f->lane[rank];
    int64_t n = in->p->d.count;
    int64_t one[1] = { 1 };
    ds__location apart = { ds__step_temporary_add(w, lane, in->p->d.bytes), 0 };
    in->ready = ds__copy_add(w, lane, apart, one, in->spot, one, 1, &n, in->p->d.item);
    in->spot = apart;
}

static int ds__location_same(const ds__work *w, ds__location a, ds__location b) {
    return w->region[a.region].at && w->region[b.region].at &&
           ds__location_at(w, a) == ds__location_at(w, b);
}

static ds__location ds__plan_location(const ds__follow *f, const uint32_t *scratch,
                                      ds_plan_location at) {
    if (at.buffer == DS_PLAN_SCRATCH)
        return (ds__location){ scratch[at.rank], (ptrdiff_t)at.offset };
    const ds__side *a = at.buffer == DS_PLAN_INPUT ? &f->in[at.rank] : &f->out[at.rank];
    return (ds__location){ a->spot.region, a->spot.offset + (ptrdiff_t)at.offset };
}

/* The plan's steps, at the end of the list. */
static void ds__follow_steps(ds__work *w, ds__follow *f, const ds_plan *plan) {
    size_t p = f->p;
    size_t lanes = (size_t)plan->lanes;
    uint32_t *lane = ds__work_take(w, p * lanes, sizeof *lane);
    uint32_t *last = ds__work_take(w, p * lanes, sizeof *last);
    uint32_t *made = ds__work_take(w, plan->steps, sizeof *made);
    uint32_t *scratch = ds__work_take(w, p + 1, sizeof *scratch);
    if (w->r < 0)
        return;
    for (size_t i = 0; i < p * lanes; i++)
        lane[i] = last[i] = DS__NO_INDEX;
    for (size_t i = 0; i < plan->steps; i++)
        lane[(size_t)plan->step[i].rank * lanes + (size_t)plan->step[i].lane] = 0;
    for (size_t l = 0; l < lanes; l++) /* in the order in which the prediction counts on them */
        for (size_t r = 0; r < p && w->r == DS_OK; r++)
            if (lane[r * lanes + l] == 0)
                lane[r * lanes + l] = l ? ds__side_lane(w, f->lane[r]) : f->lane[r];
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        scratch[r] = plan->scratch[r] ? ds__step_temporary_add(w, f->lane[r], plan->scratch[r]) : 0;
    if (w->r == DS_OK && plan->scratch[p]) {
        scratch[p] = ds__step_temporary_add(w, f->lane[f->want.root], plan->scratch[p]);
        w->region[scratch[p]].device = (ds_device){ DS_DEVICE_HOST, 0 };
    }
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        ds__follow_in_place(w, f, plan, r);
    for (size_t i = 0; i < plan->steps && w->r == DS_OK; i++) {
        const ds_plan_step *s = &plan->step[i];
        const ds_plan_location *from = &plan->spot[s->from];
        size_t at = (size_t)s->rank * lanes + (size_t)s->lane;
        ds__location dst = ds__plan_location(f, scratch, s->to);
        ds__location src = ds__plan_location(f, scratch, *from);
        made[i] = last[at];
        /* it is there */
        if (s->from_count == 1 && ds__location_same(w, dst, src))
            continue;
        for (uint32_t k = 0; k < s->after_count; k++)
            ds__come_after(w, lane[at], made[plan->before[s->after + k]]);
        uint32_t first = (uint32_t)w->spots;
        for (uint32_t k = 0; k < s->from_count; k++) {
            if (from[k].buffer == DS_PLAN_INPUT)
                ds__come_after(w, lane[at], f->in[from[k].rank].ready);
            ds__location *one = s->from_count > 1 ? DS__MORE(w, spot) : &src;
            if (one && s->from_count > 1)
                *one = ds__plan_location(f, scratch, from[k]);
        }
        if (w->r < 0)
            return;
        uint32_t n = ds__step_add(w, s->from_count == 1 ? DS__STEP_COPY : DS__STEP_REDUCE, lane[at],
                                  dst, src);
        if (n == DS__NO_INDEX)
            return;
        ds__cstep *c = &w->step[n];
        made[i] = last[at] = n;
        if (s->from_count == 1) {
            c->width = c->dst_pitch = c->src_pitch = s->bytes;
            c->height = 1;
            continue;
        }
        c->op = (uint8_t)f->op;
        c->dtype = f->dtype;
        c->first = first;
        c->count = s->from_count;
        c->width = s->bytes / f->want.item;
        if (c->count > w->most)
            w->most = c->count;
    }
    /* what is done with an output comes after all that wrote to it */
    for (size_t r = 0; r < p && w->r == DS_OK; r++) {
        if (!f->out[r].apart)
            continue;
        for (size_t i = 0; i < plan->steps; i++)
            if (plan->step[i].to.rank == (int)r && plan->step[i].to.buffer == DS_PLAN_OUTPUT)
                ds__come_after(w, ds__lane_of(w, f->out[r].p), made[i]);
    }
}

static void ds__follow_run(ds__work *w, ds__follow *f) {
    const ds_plan *plan = f->o->plan;
    const ds_plan_desc *d = plan ? &plan->desc : &f->want;
    if (w->r < 0)
        return;
    if (!plan) {
        DS__KEEPING(w->r, (ds_plan_get)(f->o->topology, &f->want, &plan));
    } else if (d->what != f->want.what)
        (void)ds__follow_not(w, f->o, "it is for %s", ds__collective_names[d->what]);
    else if (d->bytes != f->want.bytes)
        (void)ds__follow_not(w, f->o, "it is for %zu bytes, not %zu", d->bytes, f->want.bytes);
    else if (d->what <= DS_REDUCE && d->root != f->want.root)
        (void)ds__follow_not(w, f->o, "its root is rank %d, not %d", d->root, f->want.root);
    else if ((d->item ? d->item : 1) % f->want.item)
        (void)ds__follow_not(w, f->o, "it splits elements of %zu bytes: its item is %zu",
                             f->want.item, d->item);
    else if (d->order > f->want.order && ds__collective_is_sum(d->what))
        (void)ds__follow_not(w, f->o, "its sums are not in the order of the list");
    if (w->r == DS_OK)
        ds__follow_steps(w, f, plan);
}

#endif
