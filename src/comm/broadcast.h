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
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"

/* By plan: one result on each rank but the tensor's, and the others there. ready: the step that
   makes the tensor. */
static int ds__broadcast_follow(ds__work *w, const ds_comm_options *o, const ds__participant *from,
                                uint32_t ready, const ds__participant *to, size_t count) {
    const ds_topology *t = o->topology;
    int64_t dense[DS_TENSOR_MAX_DIMS];
    ds__follow f;
    if (!t || w->r < 0 || !from->d.count)
        return 0;
    size_t p = (size_t)t->devices;
    size_t root = ds__root_of(o, from->d.device);
    size_t left = p - 1;
    ds__participant *each = ds__parties_alloc(w, p);
    /* whose tensor a rank has, and which rank a tensor is, plus 1 */
    size_t *index = each ? ds__work_take(w, p + count, sizeof *index) : NULL;
    if (!index)
        return 0;
    memset(index, 0, (p + count) * sizeof *index);
    if (root == p)
        return ds__follow_not(w, o, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(from->d.device.type), from->d.device.index);
    each[root] = *from;
    for (size_t i = 0; i < count; i++) {
        size_t r = 0;
        while (r < p && (r == root || index[r] || !ds__on_rank(t, r, to[i].d.device)))
            r++;
        if (ds__same_place(from, &to[i]))
            continue;
        if (r == p && !ds__on_rank(t, root, to[i].d.device))
            return ds__follow_not(w, o,
                                  "the result at index %zu is on %s:%d, which is not a free rank",
                                  i, ds__type_name(to[i].d.device.type), to[i].d.device.index);
        if (r == p)
            continue;
        each[r] = to[i];
        index[r] = i + 1;
        index[p + i] = r + 1;
        left--;
    }
    if (left)
        return ds__follow_not(w, o, "%zu of %zu ranks have no result", left, p);
    if (!ds__follow_open(w, &f, o, DS_BROADCAST, each, p, from, from->d.bytes))
        return 0;
    ds__dense_like(&from->d, dense);
    ds__side_open(w, &f.in[root], from, 0, 1, dense, 1);
    if (ready != DS__NO_INDEX)
        f.in[root].ready = ready;
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (r != root)
            ds__side_open(w, &f.out[r], &to[index[r] - 1], 0, 1, dense, 0);
    ds__follow_run(w, &f);
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (f.out[r].apart)
            ds__side_move(w, &f.out[r], 0, 1, dense, 1);
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        if (!index[p + i] && !ds__same_place(from, &to[i])) {
            ds__come_after(w, ds__lane_of(w, &to[i]), ready);
            ds__copy_participant(w, ds__lane_of(w, &to[i]), &to[i], from);
        }
    return 1;
}

/* The source as every result wants it: without gaps. From then on it is copied as it lies; more
   than one result, and it is packed once. */
static void ds__broadcast_steps(ds__work *w, const ds_comm_options *o, const ds__participant *from,
                                const ds__participant *to, size_t count) {
    int64_t dense[DS_TENSOR_MAX_DIMS];
    if (ds__broadcast_follow(w, o, from, DS__NO_INDEX, to, count))
        return;
    ds__location src = ds__location_of(from);
    const int64_t *strides = from->d.strides;
    uint32_t lane = ds__lane_of(w, from);
    uint32_t packed = DS__NO_INDEX;
    if (count > 1 && !ds__is_dense(&from->d) &&
        w->region[from->region].device.type != DS_DEVICE_HOST) {
        ds__dense_like(&from->d, dense);
        src = (ds__location){ ds__step_temporary_add(w, lane, from->d.bytes), 0 };
        packed = ds__copy_add(w, lane, src, dense, ds__location_of(from), strides, from->d.ndim,
                              from->d.shape, from->d.item);
        strides = dense;
    }
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        uint32_t mine = ds__lane_of(w, &to[i]);
        if (ds__same_place(from, &to[i]))
            continue;
        ds__come_after(w, mine, packed);
        ds__copy_add(w, mine, ds__location_of(&to[i]), to[i].d.strides, src, strides, to[i].d.ndim,
                     to[i].d.shape, to[i].d.item);
    }
}

DSDEF ds_result(ds_comm_broadcast)(const ds_tensor *tensor, const ds_device *devices, size_t count,
                                   const ds_comm_options *options, ds_tensor **out) {
    ds__work w;
    ds__participant from;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN("ds_comm_broadcast");
    ds__work_begin(&w);
    DS__REQUIRE(!count || (devices && out), "%s is NULL", devices ? "out" : "devices");
    ds__participant *to = ds__parties_alloc(&w, count);
    ds_result r = to ? ds__participant_open(&w, options, tensor, "the tensor", -1, -1, 0, &from)
                     : DS_ERR_OUT_OF_MEMORY;
    size_t made = 0;
    if (r == DS_OK)
        r = ds__results_lanes(&w, options, devices, count, &from);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_device device = { 0, 0 };
        r = ds__comm_device(devices[i], "the device", (int64_t)i, &device);
        if (r == DS_OK && options->flags & DS_COMM_ALIAS && ds__same_device(device, from.d.device))
            r = ds__tensor_show(tensor, &from.d, &out[i]);
        else if (r == DS_OK)
            r = ds__result_make(&w, options, &from.d, device, (int64_t)i, (int64_t)i, &to[made++],
                                &out[i]);
    }
    if (r == DS_OK && made)
        r = ds__work_settle(&w);
    if (r == DS_OK && made) {
        ds__broadcast_steps(&w, options, &from, to, made);
        r = ds__work_run(&w);
    }
    if (r < 0)
        ds__results_drop(out, count);
    ds__work_end(&w);
    return r;
}

DSDEF ds_result(ds_comm_broadcast_into)(const ds_tensor *tensor, const ds_tensor *const *outs,
                                        size_t count, const ds_comm_options *options) {
    ds__work w;
    ds__participant from;
    DS__COMM_BEGIN("ds_comm_broadcast_into");
    ds__work_begin(&w);
    DS__REQUIRE(!count || outs, "outs is NULL");
    ds__participant *to = ds__parties_alloc(&w, count);
    ds_result r = to ? ds__participant_open(&w, options, tensor, "the tensor", -1, -1, 0, &from)
                     : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__participant_open(&w, options, outs[i], "output tensor", (int64_t)i, (int64_t)i, 1,
                                 &to[i]);
        if (r == DS_OK)
            r = ds__same_dtype(&to[i], "output tensor", (int64_t)i, &from);
        if (r == DS_OK)
            r = ds__same_shape(&to[i], "output tensor", (int64_t)i, &from, -1);
        if (r == DS_OK && !ds__same_place(&from, &to[i]))
            r = ds__memory_check_disjoint(&to[i], "output tensor", (int64_t)i, &from,
                                          "tensor to send", -1);
    }
    if (r == DS_OK)
        r = ds__all_apart(to, "output tensor", count);
    if (r == DS_OK && count)
        r = ds__work_settle(&w);
    if (r == DS_OK && count) {
        ds__broadcast_steps(&w, options, &from, to, count);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    return r;
}

#endif
