/* comm/follow_plan.h - collectives that follow a plan.

   ds__follow_open decides whether a collective can follow a plan for options->topology.
   ds__side_open locates the input or output of one rank, packed into temporary memory if needed.
   ds__follow_run finds the plan, appends its steps to the list, and unpacks the outputs.

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

/* Division of a tensor into equal parts along a dimension. The plan expects the parts one after the
   other, each without gaps and with these strides. */
typedef struct ds__division {
    int dim;
    size_t parts;
    const int64_t *strides;
} ds__division;

/* The input or output of a rank. */
typedef struct ds__side {
    const ds__participant *p; /* NULL: the rank has none */
    ds__division division;
    ds__source data; /* the location for the plan, and the step that packs an input */
    int apart;       /* 1: the location is temporary memory */
} ds__side;

/* A collective that follows a plan. The caller of ds__follow_open sets want.what, want.bytes and
   reduction.op. */
typedef struct ds__follow {
    ds_plan_desc want;
    ds__reduction reduction;
    size_t ranks;
    uint32_t *lane; /* of each rank: the lane of its participant */
    ds__side *in;
    ds__side *out;
} ds__follow;

/* A plan, as lanes, regions and steps of a list. Lane l of rank r has the index r * lanes + l. */
typedef struct ds__schedule {
    const ds_plan *plan;
    size_t lanes;
    uint32_t *lane;    /* of each lane of the plan: the lane of the list */
    uint32_t *last;    /* of each lane of the plan: its last step */
    uint32_t *step;    /* of each step of the plan: the step of the list after which it is done */
    uint32_t *scratch; /* of each rank and of the host: its region */
} ds__schedule;

/* Returns 0: the collective does not follow a plan. If the plan is the caller's, stores an
   error. */
__attribute__((format(DS__PRINTF, 2, 3))) static int ds__follow_not(ds__work *w, const char *format,
                                                                    ...) {
    char why[200];
    va_list args;
    if (!w->options->plan || w->r < 0)
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

/* Returns the rank of the single tensor: the root of the caller's plan if it is on the device, else
   the first rank on the device. Returns the number of ranks if none is on the device. */
static size_t ds__root_of(const ds_comm_options *o, ds_device device) {
    size_t root = 0;
    size_t p = (size_t)o->topology->devices;
    if (o->plan && ds__on_rank(o->topology, (size_t)o->plan->desc.root, device))
        return (size_t)o->plan->desc.root;
    while (root < p && !ds__on_rank(o->topology, root, device))
        root++;
    return root;
}

/* Returns the orders of a sum that give the bits of the direct path. */
static ds_plan_order ds__order_of(ds__reduction reduction, unsigned flags) {
    ds_dtype t = reduction.dtype;
    /* the sum is divided once */
    if (reduction.op == DS_REDUCE_AVERAGE)
        return DS_ORDER_AT_ONCE;
    if (reduction.op == DS_REDUCE_MAX || reduction.op == DS_REDUCE_MIN ||
        flags & DS_COMM_ANY_ORDER || t.code == DS_CODE_INT || t.code == DS_CODE_UINT ||
        t.code == DS_CODE_BOOL)
        return DS_ORDER_ANY;
    /* f16 and bf16 are summed in f32, other types in their own type, in list order */
    return t.bits == 16 ? DS_ORDER_AT_ONCE : DS_ORDER_LIST;
}

/* Returns 1 if there is one tensor on each rank, and the single tensor is on a rank. *root: that
   rank. */
static int ds__follow_matches(ds__work *w, const ds__participant *each, size_t count,
                              const ds__participant *one, size_t *root) {
    const ds_topology *t = w->options->topology;
    size_t ranks = (size_t)t->devices;
    if (count != ranks || count < 2)
        return ds__follow_not(w, "%zu tensors on %zu ranks", count, ranks);
    for (size_t i = 0; i < count; i++)
        if (!ds__on_rank(t, i, each[i].d.device))
            return ds__follow_not(w, "the tensor at index %zu is on %s:%d, which is not rank %zu",
                                  i, ds__type_name(each[i].d.device.type), each[i].d.device.index,
                                  i);
    *root = one ? ds__root_of(w->options, one->d.device) : 0;
    if (*root == ranks)
        return ds__follow_not(w, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(one->d.device.type), one->d.device.index);
    return 1;
}

/* Returns 1 if the collective follows a plan, and completes the request. each: a participant on
   each rank; one: the single tensor, or NULL. The options must have a topology. */
static int ds__follow_open(ds__work *w, ds__follow *f, const ds__participant *each, size_t count,
                           const ds__participant *one) {
    size_t root = 0;
    if (w->r < 0 || !f->want.bytes || !ds__follow_matches(w, each, count, one, &root))
        return 0;
    f->ranks = count;
    f->lane = ds__work_alloc(w, count, sizeof *f->lane);
    f->in = f->lane ? ds__work_alloc(w, 2 * count, sizeof *f->in) : NULL;
    if (!f->in)
        return 0;
    f->out = f->in + count;
    memset(f->in, 0, 2 * count * sizeof *f->in);
    for (size_t i = 0; i < 2 * count; i++)
        f->in[i].data.ready = DS__NO_INDEX;
    for (size_t i = 0; i < count; i++)
        f->lane[i] = ds__lane_of(w, &each[i]);
    if (one)
        f->lane[root] = ds__lane_of(w, one);
    f->reduction.dtype = each[0].d.dtype;
    f->want.root = (int)root;
    f->want.item = each[0].d.item;
    if (ds__collective_is_sum(f->want.what))
        f->want.order = ds__order_of(f->reduction, w->options->flags);
    return 1;
}

/* Returns 1 if the parts of a tensor lie as its division says. */
static int ds__division_fits(const ds__participant *p, const ds__division *n) {
    int64_t size = n->parts > 1 ? p->d.shape[n->dim] / (int64_t)n->parts : 0;
    for (int i = 0; i < p->d.ndim; i++) {
        int64_t indices = n->parts > 1 && i == n->dim ? size : p->d.shape[i];
        if (indices != 1 && p->d.strides[i] != n->strides[i])
            return 0;
    }
    return n->parts < 2 || size * p->d.strides[n->dim] == p->d.count / (int64_t)n->parts;
}

enum { DS__TO_TENSOR, DS__FROM_TENSOR };

/* Copies all parts between the tensor and the temporary memory. Returns the last step. */
static uint32_t ds__side_move(ds__work *w, const ds__side *a, int direction) {
    const ds__participant *p = a->p;
    const ds__division *n = &a->division;
    uint32_t lane = ds__lane_of(w, p);
    uint32_t last = DS__NO_INDEX;
    ds__slice slice = { 0, n->parts > 1 ? p->d.shape[n->dim] / (int64_t)n->parts : 0 };
    ds__operand packed = { a->data.at, n->strides };
    for (size_t k = 0; k < n->parts && w->r == DS_OK; k++) {
        ds__participant part = n->parts > 1 ? ds__participant_slice(p, n->dim, slice) : *p;
        ds__operand own = ds__operand_of(&part);
        last = direction == DS__TO_TENSOR ? ds__copy_add(w, lane, own, packed, &part.d)
                                          : ds__copy_add(w, lane, packed, own, &part.d);
        packed.at.offset += (ptrdiff_t)part.d.bytes;
        slice.begin += slice.size;
    }
    return last;
}

/* Locates an input (read: 1) or output of a rank. An input that does not lie as the plan expects is
   packed. */
static void ds__side_open(ds__work *w, ds__side *a, const ds__participant *p,
                          const ds__division *division, int read) {
    a->p = p;
    a->division = *division;
    a->apart = !ds__division_fits(p, division);
    a->data.at = a->apart ? ds__temporary_add(w, ds__lane_of(w, p), p->d.bytes) : p->at;
    if (a->apart && read)
        a->data.ready = ds__side_move(w, a, DS__FROM_TENSOR);
}

/* Copies the input of a rank to temporary memory if its output lies in the same memory, and the
   plan reads a byte of the input or writes a byte of the output more than once. The second access
   could be too late. */
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
            if (plan->location[s->from + k].rank == (int)rank &&
                plan->location[s->from + k].buffer == DS_PLAN_INPUT)
                read += s->bytes;
    }
    if (read == in->p->d.bytes && written == out->p->d.bytes)
        return;
    ds__location apart = ds__temporary_add(w, f->lane[rank], in->p->d.bytes);
    in->data.ready = ds__step_copy_add(w, f->lane[rank], apart, in->data.at, in->p->d.bytes);
    in->data.at = apart;
}

static int ds__location_same(const ds__work *w, ds__location a, ds__location b) {
    return w->region[a.region].at && w->region[b.region].at &&
           ds__location_at(w, a) == ds__location_at(w, b);
}

static ds__location ds__schedule_location(const ds__schedule *c, const ds__follow *f,
                                          ds_plan_location at) {
    if (at.buffer == DS_PLAN_SCRATCH)
        return (ds__location){ c->scratch[at.rank], (ptrdiff_t)at.offset };
    ds__location side =
        at.buffer == DS_PLAN_INPUT ? f->in[at.rank].data.at : f->out[at.rank].data.at;
    return (ds__location){ side.region, side.offset + (ptrdiff_t)at.offset };
}

/* Finds the lanes of all steps. The first lane of a rank is that of its participant. */
static void ds__schedule_open_lanes(ds__work *w, const ds__follow *f, ds__schedule *c) {
    const ds_plan *plan = c->plan;

    enum { IN_USE = 0 };

    for (size_t i = 0; i < f->ranks * c->lanes; i++)
        c->lane[i] = c->last[i] = DS__NO_INDEX;
    for (size_t i = 0; i < plan->steps; i++)
        c->lane[(size_t)plan->step[i].rank * c->lanes + (size_t)plan->step[i].lane] = IN_USE;
    /* all first lanes, then all second ones: the order that the prediction assumes */
    for (size_t l = 0; l < c->lanes; l++)
        for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
            if (c->lane[r * c->lanes + l] == IN_USE)
                c->lane[r * c->lanes + l] = l ? ds__side_lane(w, f->lane[r]) : f->lane[r];
}

/* Appends the scratch memory of the ranks and of the host. */
static void ds__schedule_add_scratch(ds__work *w, const ds__follow *f, ds__schedule *c) {
    const size_t *bytes = c->plan->scratch;
    size_t host = f->ranks;
    for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
        c->scratch[r] = bytes[r] ? ds__temporary_add(w, f->lane[r], bytes[r]).region : 0;
    if (w->r < 0 || !bytes[host])
        return;
    c->scratch[host] = ds__temporary_add(w, f->lane[f->want.root], bytes[host]).region;
    w->region[c->scratch[host]].device = (ds_device){ DS_DEVICE_HOST, 0 };
}

/* Appends a sum of the plan. */
static uint32_t ds__schedule_add_sum(ds__work *w, const ds__follow *f, const ds__schedule *c,
                                     const ds_plan_step *s, uint32_t lane) {
    uint32_t first = (uint32_t)w->locations;
    for (uint32_t k = 0; k < s->from_count; k++) {
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return DS__NO_INDEX;
        *location = ds__schedule_location(c, f, c->plan->location[s->from + k]);
    }
    return ds__step_reduce_add(w, lane, ds__schedule_location(c, f, s->to), first, f->reduction,
                               s->bytes / f->want.item);
}

/* Appends step i of the plan. A copy to its own place is left out. */
static void ds__schedule_add_step(ds__work *w, const ds__follow *f, ds__schedule *c, size_t i) {
    const ds_plan_step *s = &c->plan->step[i];
    const ds_plan_location *from = &c->plan->location[s->from];
    size_t at = (size_t)s->rank * c->lanes + (size_t)s->lane;
    uint32_t lane = c->lane[at];
    ds__location dst = ds__schedule_location(c, f, s->to);
    ds__location src = ds__schedule_location(c, f, *from);
    c->step[i] = c->last[at];
    if (s->from_count == 1 && ds__location_same(w, dst, src))
        return;
    for (uint32_t k = 0; k < s->after_count; k++)
        ds__come_after(w, lane, c->step[c->plan->before[s->after + k]]);
    for (uint32_t k = 0; k < s->from_count; k++)
        if (from[k].buffer == DS_PLAN_INPUT)
            ds__come_after(w, lane, f->in[from[k].rank].data.ready);
    if (w->r < 0)
        return;
    uint32_t step = s->from_count == 1 ? ds__step_copy_add(w, lane, dst, src, s->bytes)
                                       : ds__schedule_add_sum(w, f, c, s, lane);
    if (step != DS__NO_INDEX)
        c->step[i] = c->last[at] = step;
}

/* Makes later steps of a lane wait for all steps that write to the output of its rank. */
static void ds__schedule_complete_output(ds__work *w, const ds__schedule *c, size_t rank,
                                         uint32_t lane) {
    const ds_plan *plan = c->plan;
    for (size_t i = 0; i < plan->steps; i++)
        if (plan->step[i].to.rank == (int)rank && plan->step[i].to.buffer == DS_PLAN_OUTPUT)
            ds__come_after(w, lane, c->step[i]);
}

/* Appends the steps of a plan. */
static void ds__follow_steps(ds__work *w, ds__follow *f, const ds_plan *plan) {
    size_t p = f->ranks;
    ds__schedule c = { .plan = plan, .lanes = (size_t)plan->lanes };
    c.lane = ds__work_alloc(w, p * c.lanes, sizeof *c.lane);
    c.last = ds__work_alloc(w, p * c.lanes, sizeof *c.last);
    c.step = ds__work_alloc(w, plan->steps, sizeof *c.step);
    c.scratch = ds__work_alloc(w, p + 1, sizeof *c.scratch);
    if (w->r < 0)
        return;
    ds__schedule_open_lanes(w, f, &c);
    ds__schedule_add_scratch(w, f, &c);
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        ds__follow_in_place(w, f, plan, r);
    for (size_t i = 0; i < plan->steps && w->r == DS_OK; i++)
        ds__schedule_add_step(w, f, &c, i);
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (f->out[r].apart)
            ds__schedule_complete_output(w, &c, r, ds__lane_of(w, f->out[r].p));
}

/* Returns 1 if a plan of the caller is one for the request. */
static int ds__follow_accepts(ds__work *w, const ds__follow *f, const ds_plan_desc *d) {
    const ds_plan_desc *want = &f->want;
    if (d->what != want->what)
        return ds__follow_not(w, "it is for %s", ds__collective_names[d->what]);
    if (d->bytes != want->bytes)
        return ds__follow_not(w, "it is for %zu bytes, not %zu", d->bytes, want->bytes);
    if (d->what <= DS_REDUCE && d->root != want->root)
        return ds__follow_not(w, "its root is rank %d, not %d", d->root, want->root);
    if ((d->item ? d->item : 1) % want->item)
        return ds__follow_not(w, "it splits elements of %zu bytes: its item is %zu", want->item,
                              d->item);
    if (d->order > want->order && ds__collective_is_sum(d->what))
        return ds__follow_not(w, "its sums are not in the order of the list");
    return 1;
}

/* Appends the steps of the plan, and copies the outputs from temporary memory. */
static void ds__follow_run(ds__work *w, ds__follow *f) {
    const ds_plan *plan = w->options->plan;
    if (w->r < 0 || (plan && !ds__follow_accepts(w, f, &plan->desc)))
        return;
    if (!plan)
        DS__KEEPING(w->r, (ds_plan_get)(w->options->topology, &f->want, &plan));
    if (w->r == DS_OK)
        ds__follow_steps(w, f, plan);
    for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
        if (f->out[r].apart)
            ds__side_move(w, &f->out[r], DS__TO_TENSOR);
}

#endif
