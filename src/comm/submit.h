/* comm/submit.h - execution of single steps.

   Runs the steps of a list in one of three ways for ds__work_run. ds__step_run enqueues one step
   on the stream of its lane. ds__steps_at_once lets the calling thread run all steps.
   ds__spread_run replaces copies of one source by one kernel.

   Invariants: temporary regions have their addresses before a step runs. ds__steps_spread
   changes the lanes of steps, so ds__work_run calls it before any wait is enqueued. Steps run at
   once only if no capture is open and no copy needs staging through the host. Each step then has
   at most the driver's inline_bytes, and all steps together have at most eight times as many bytes.
   Locks: takes none itself. ds__steps_now runs under the locks of the driver's run_together and
   must not call a driver entry. Functions that call the driver expect no lock; ds__join_here
   blocks until a stream is idle.
   Threads: caller's threads, each with its own ds__work. The kernel of ds__spread_run runs on
   workers of the CPU driver. */
#ifndef DS__COMM_SUBMIT_H
#define DS__COMM_SUBMIT_H

#include "../base/driver.h"
#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/internal.h"
#include "kernel_arith.h"
#include "kernel_spread.h"
#include "reduce.h"
#include "pack.h"
#include "types.h"

static char *ds__location_at(const ds__work *w, ds__location s) {
    return w->region[s.region].at + s.offset;
}

/* The part of a step that kernels do. */
static ds_result ds__step_kernel(const ds__work *w, const ds__cstep *s, ds_stream stream) {
    char *dst = ds__location_at(w, s->dst);
    if (s->kind == DS__STEP_PACK) {
        const ds__strided *k = &w->strided[s->strided];
        return ds__comm_pack(stream, k->item, dst, k->dst, ds__location_at(w, s->src), k->src,
                             k->shape, k->ndim);
    }
    for (uint32_t i = 0; i < s->count; i++)
        w->in[i] = ds__location_at(w, w->spot[s->first + i]);
    return ds__comm_reduce(stream, (ds_reduce_op)s->op, s->dtype, dst, w->in, s->count, s->width);
}

static ds_result ds__step_run(const ds__work *w, const ds__cstep *s) {
    const ds__clane *l = &w->lane[s->lane];
    char *dst = ds__location_at(w, s->dst);
    ds_result r = DS_OK;
    switch (s->kind) {
    case DS__STEP_COPY:
        if (ds__copy_plain(l->s, dst, ds__location_at(w, s->src), s->width, &r))
            return r;
        return ds__copy_between(l->s, &DS__COPY_ROW(dst, ds__location_at(w, s->src), s->width));
    case DS__STEP_ROWS:
        return ds__copy_between(l->s, &(ds__copy_request){ .dst = dst,
                                                           .src = ds__location_at(w, s->src),
                                                           .dst_pitch = s->dst_pitch,
                                                           .src_pitch = s->src_pitch,
                                                           .width = s->width,
                                                           .height = s->height });
    default:
        DS__KEEPING(r, ds__step_kernel(w, s, l->stream));
        return r;
    }
}

/* All steps by the caller, in the order of the list. */
static void ds__steps_now(void *user) {
    const ds__work *w = user;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind != DS__STEP_COPY && s->kind != DS__STEP_ROWS) {
            DS_IGNORE(ds__step_kernel(w, s, (ds_stream){ 0 }));
            continue;
        }
        char *dst = ds__location_at(w, s->dst);
        char *src = ds__location_at(w, s->src);
        for (size_t row = 0; row < s->height; row++)
            memcpy(dst + row * s->dst_pitch, src + row * s->src_pitch, s->width);
    }
}

/* 1: neither of the devices reaches the other, so that a copy between the two goes through the
   host. */
static int ds__steps_stage(const ds__work *w, const ds__cstep *s) {
    ds_device to = w->region[s->dst.region].device;
    ds_device from = w->region[s->src.region].device;
    const ds__driver *driver = w->lane[0].s->driver;
    int reach = 1;
    return to.type == from.type && to.index != from.index &&
           (driver->device_peer(to.index, from.index, &reach) < 0 ||
            (!reach && driver->device_peer(from.index, to.index, &reach) < 0) || !reach);
}

/* Where kernels run on the processor, one tensor that goes to several places is read once: the
   steps become one of the first one's lane. */
static int ds__steps_spread(ds__work *w) {
    const ds__cstep *first = w->step;
    if (w->steps < 2 || w->steps > DS__SPREAD || !w->lane[0].s->driver->spreads() ||
        ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind != DS__STEP_COPY || s->src.region != first->src.region ||
            s->src.offset != first->src.offset || s->width != first->width ||
            s->after != DS__NO_INDEX || s->watched || !w->region[s->dst.region].direct ||
            !w->region[s->src.region].direct || ds__steps_stage(w, s))
            return 0;
    }
    for (size_t i = 1; i < w->steps; i++) {
        w->lane[w->step[i].lane].busy = 0;
        w->step[i].lane = first->lane;
    }
    w->lane[first->lane].busy = 1;
    return 1;
}

static ds_result ds__spread_run(const ds__work *w) {
    ds__stream *s = w->lane[w->step[0].lane].s;
    ds__spread_args a = { .src = ds__location_at(w, w->step[0].src),
                          .count = w->steps,
                          .bytes = w->step[0].width };
    for (size_t i = 0; i < w->steps; i++)
        a.dst[i] = ds__location_at(w, w->step[i].dst);
    ds__op op = ds__op_make(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__spread_kernel;
    op.u.kernel.items = (a.bytes + DS__SPREAD_ITEM - 1) / DS__SPREAD_ITEM;
    op.u.kernel.args_size = sizeof a;
    op.u.kernel.args = &a;
    op.u.kernel.grid = NULL;
    return ds__stream_submit(s, &op);
}

/* 1: the inline rule allows them: small ones, and no copy that would have to go through the
   host. */
static int ds__steps_small(const ds__work *w) {
    const size_t most = w->lane[0].s->driver->inline_bytes;
    size_t all = 0;
    size_t bytes;
    if (!most || w->lanes > DS__INLINE_LANES || ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind == DS__STEP_REDUCE) {
            /* in several launches, maybe with memory between them */
            if (s->count > DS__COMM_INPUTS)
                return 0;
            bytes = s->width * (ds_dtype_get_size)(s->dtype);
        } else if (s->kind == DS__STEP_PACK) {
            const ds__strided *k = &w->strided[s->strided];
            bytes = (size_t)ds__count_of(k->ndim, k->shape) * k->item;
        } else {
            bytes = s->width * s->height;
            if (bytes <= most && ds__steps_stage(w, s))
                return 0;
        }
        all += bytes;
        if (bytes > most || all > 8 * most)
            return 0;
    }
    return 1;
}

/* *out_ran: they are done. */
static ds_result ds__steps_at_once(ds__work *w, int *out_ran) {
    void *native[DS__INLINE_LANES];
    *out_ran = 0;
    if (!ds__steps_small(w))
        return DS_OK;
    for (size_t i = 0; i < w->lanes; i++)
        native[i] = w->lane[i].s->native;
    return w->lane[0].s->driver->run_together(native, w->lanes, ds__steps_now, w, out_ran);
}

/* What no stream can wait for the host does: memory is freed afterwards that the lane may write
   to. */
__attribute__((cold, noinline)) static void ds__join_here(const ds__clane *l) {
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    DS_IGNORE(l->s->driver->stream_synchronize(l->s->native, DS__FOREVER));
    ds__tls.mute--;
}

#endif
