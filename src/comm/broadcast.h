/* comm/broadcast.h - broadcast.

   Implements ds_comm_broadcast, which creates the results, and ds_comm_broadcast_into for
   tensors of the caller. ds__broadcast_steps writes the steps of the direct path.
   ds__broadcast_follow writes those of a plan, also for coalesced.h.

   Invariants: created results have no gaps. If the source is on a device, has gaps and goes to
   several results, the source is packed once. A result at the place of the source is left alone.
   On failure, all results of ds_comm_broadcast are freed and set to NULL.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_BROADCAST_H
#define DS__COMM_BROADCAST_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "../topology/types.h"
#include "internal.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"

/* The results of a broadcast on the ranks of a topology. */
typedef struct ds__broadcast_ranks {
    size_t root;
    ds__participant *each;        /* the tensor of each rank, the root's included */
    const ds__participant **to;   /* the result of each rank; NULL: the root */
    const ds__participant **rest; /* further results on the root's device */
    size_t rests;
} ds__broadcast_ranks;

/* Returns 1 if each rank but the root has a result. Results at the place of the source are left
   out. */
static int ds__broadcast_assign(ds__work *w, ds__broadcast_ranks *b, const ds__participant *from,
                                const ds__participant *to, size_t count) {
    const ds_topology *t = w->options->topology;
    size_t p = (size_t)t->devices;
    size_t left = p - 1;
    b->each[b->root] = *from;
    for (size_t i = 0; i < count; i++) {
        size_t r = 0;
        if (ds__same_place(from, &to[i]))
            continue;
        while (r < p && (r == b->root || b->to[r] || !ds__on_rank(t, r, to[i].d.device)))
            r++;
        if (r < p) {
            b->each[r] = to[i];
            b->to[r] = &to[i];
            left--;
            continue;
        }
        if (!ds__on_rank(t, b->root, to[i].d.device))
            return ds__follow_not(w,
                                  "the result at index %zu is on %s:%d, which is not a free rank",
                                  i, ds__type_name(to[i].d.device.type), to[i].d.device.index);
        b->rest[b->rests++] = &to[i];
    }
    return left ? ds__follow_not(w, "%zu of %zu ranks have no result", left, p) : 1;
}

/* Returns 1 if the steps of a plan were appended. ready: the step after which the source is
   complete. Further results on the root's device are copied directly. */
static int ds__broadcast_follow(ds__work *w, const ds__participant *from, uint32_t ready,
                                const ds__participant *to, size_t count) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division whole = { 0, 1, strides };
    if (!w->options->topology || w->r < 0 || !from->d.count)
        return 0;
    size_t p = (size_t)w->options->topology->devices;
    ds__broadcast_ranks b = { .root = ds__root_of(w->options, from->d.device) };
    if (b.root == p)
        return ds__follow_not(w, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(from->d.device.type), from->d.device.index);
    b.each = ds__participants_alloc(w, p);
    b.to = b.each ? ds__work_alloc(w, p + count, sizeof *b.to) : NULL;
    if (!b.to)
        return 0;
    memset(b.to, 0, (p + count) * sizeof *b.to);
    b.rest = b.to + p;
    ds__follow f = { .want = { .what = DS_BROADCAST, .bytes = from->d.bytes } };
    if (!ds__broadcast_assign(w, &b, from, to, count) || !ds__follow_open(w, &f, b.each, p, from))
        return 0;
    ds__dense_like(&from->d, strides);
    ds__side_open(w, &f.in[b.root], from, &whole, 1);
    if (ready != DS__NO_INDEX)
        f.in[b.root].data.ready = ready;
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (b.to[r])
            ds__side_open(w, &f.out[r], b.to[r], &whole, 0);
    ds__follow_run(w, &f);
    for (size_t i = 0; i < b.rests && w->r == DS_OK; i++) {
        uint32_t lane = ds__lane_of(w, b.rest[i]);
        ds__come_after(w, lane, ready);
        ds__copy_participant(w, lane, b.rest[i], from);
    }
    return 1;
}

/* Appends the steps of a broadcast. A source with gaps is packed once if it has several results;
   the results have no gaps. */
static void ds__broadcast_steps(ds__work *w, const ds__participant *from, const ds__participant *to,
                                size_t count) {
    int64_t dense[DS_TENSOR_MAX_DIMS];
    if (ds__broadcast_follow(w, from, DS__NO_INDEX, to, count))
        return;
    ds__operand src = ds__operand_of(from);
    uint32_t packed = DS__NO_INDEX;
    if (count > 1 && !ds__is_dense(&from->d) &&
        w->region[from->at.region].device.type != DS_DEVICE_HOST) {
        ds__dense_like(&from->d, dense);
        ds__source source = ds__participant_pack(w, from, dense);
        src = (ds__operand){ source.at, dense };
        packed = source.ready;
    }
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        uint32_t lane = ds__lane_of(w, &to[i]);
        if (ds__same_place(from, &to[i]))
            continue;
        ds__come_after(w, lane, packed);
        ds__copy_add(w, lane, ds__operand_of(&to[i]), src, &to[i].d);
    }
}

/* Runs a broadcast whose participants are open. */
static ds_result ds__broadcast_run(ds__work *w, const ds__participant *from,
                                   const ds__participant *to, size_t count) {
    ds_result r = count ? ds__work_settle(w) : DS_OK;
    if (r < 0 || !count)
        return r;
    ds__broadcast_steps(w, from, to, count);
    return ds__work_run(w);
}

DSDEF ds_result(ds_comm_broadcast)(const ds_tensor *tensor, const ds_device *devices, size_t count,
                                   const ds_comm_options *options, ds_tensor **out) {
    ds__work w;
    ds__participant from;
    size_t made = 0;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN_CREATING("ds_comm_broadcast", "ds_comm_broadcast_into");
    ds__work_begin(&w, options);
    DS__REQUIRE(!count || (devices && out), "%s is NULL", devices ? "out" : "devices");
    ds__participant *to = ds__participants_alloc(&w, count);
    ds_result r = to ? ds__input_open(&w, tensor, "the tensor", DS__NO_LIST, &from) : w.r;
    if (r == DS_OK)
        r = ds__results_lanes(&w, devices, count, &from);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__destination d;
        r = ds__destination_at(devices, i, &d);
        if (r == DS_OK && ds__result_is_alias(&w, d.device, &from))
            r = ds__tensor_show(tensor, &from.d, &out[i]);
        else if (r == DS_OK)
            r = ds__result_create(&w, &from.d, &d, &to[made++], &out[i]);
    }
    if (r == DS_OK)
        r = ds__broadcast_run(&w, &from, to, made);
    if (r < 0)
        ds__results_destroy(out, count);
    ds__work_end(&w);
    return r;
}

/* Opens the outputs, and checks them against the source and each other. */
static ds_result ds__broadcast_open_outputs(ds__work *w, const ds_tensor *const *outs, size_t count,
                                            const ds__participant *from, ds__participant *to) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__name name = ds__name_of("output tensor", i);
        r = ds__output_open(w, outs[i], name.words, i, &to[i]);
        if (r == DS_OK)
            r = ds__same_form(&to[i], name, from, -1);
        if (r == DS_OK && !ds__same_place(from, &to[i]))
            r = ds__memory_check_disjoint(&to[i], name, from,
                                          ds__name_of("tensor to send", DS__NO_LIST));
    }
    return r == DS_OK ? ds__outputs_check_disjoint(to, count) : r;
}

DSDEF ds_result(ds_comm_broadcast_into)(const ds_tensor *tensor, const ds_tensor *const *outs,
                                        size_t count, const ds_comm_options *options) {
    ds__work w;
    ds__participant from;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_broadcast_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_BROADCAST,
                                         .in = &tensor,
                                         .out = outs,
                                         .in_count = 1,
                                         .out_count = count,
                                         .options = options },
                       &r))
        return r;
    ds__work_begin(&w, options);
    DS__REQUIRE(!count || outs, "outs is NULL");
    ds__participant *to = ds__participants_alloc(&w, count);
    r = to ? ds__input_open(&w, tensor, "the tensor", DS__NO_LIST, &from) : w.r;
    if (r == DS_OK)
        r = ds__broadcast_open_outputs(&w, outs, count, &from, to);
    if (r == DS_OK)
        r = ds__broadcast_run(&w, &from, to, count);
    ds__work_end(&w);
    return r;
}

#endif
