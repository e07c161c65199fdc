/* comm/submit.h - execution of single steps.

   Runs the steps of a list in one of three ways for ds__work_run. ds__step_run enqueues one step
   on the stream of its lane, ds__steps_run_together several copies as a batch. ds__steps_at_once
   lets the calling thread run all steps. ds__spread_run replaces copies of one source by one
   kernel.

   Invariants: temporary regions have their addresses before a step runs. ds__steps_spread
   changes the lanes of steps, so ds__work_run calls it before any wait is enqueued. Steps run at
   once only if no capture is open and no copy needs staging through the host. Each step then has
   at most DS__STEPS_INLINE times the driver's inline_bytes, and all steps together have at most
   four times as many bytes.
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

/* Runs a strided copy or a reduction by kernels; zero stream: on the calling thread. */
static ds_result ds__step_kernel(const ds__work *w, const ds__cstep *s, ds_stream stream) {
    char *dst = ds__location_at(w, s->dst);
    if (s->kind == DS__STEP_PACK) {
        const ds__strided *k = &w->strided[s->strided];
        return ds__comm_pack(stream, dst, ds__location_at(w, s->src),
                             &(ds__comm_copy){ k->item, k->ndim, k->shape, k->dst, k->src });
    }
    for (uint32_t i = 0; i < s->count; i++)
        w->in[i] = ds__location_at(w, w->location[s->first + i]);
    return ds__comm_reduce(stream, s->reduction, dst, w->in, s->count, s->width);
}

/* Runs a reduction to several outputs; stream NULL: on the calling thread. */
static ds_result ds__step_reduce_all(const ds__work *w, const ds__cstep *s, ds__stream *stream) {
    uint32_t half = s->count / 2;
    for (uint32_t i = 0; i < s->count; i++)
        w->in[i] = ds__location_at(w, w->location[s->first + i]);
    return ds__comm_reduce_all(stream, s->reduction, w->in, w->in + half, half, s->width);
}

/* Enqueues a step on the stream of its lane. */
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
    case DS__STEP_REDUCE_ALL:
        return ds__step_reduce_all(w, s, l->s);
    default:
        DS__KEEPING(r, ds__step_kernel(w, s, l->stream));
        return r;
    }
}

enum { DS__STEPS_TOGETHER = 32 }; /* the most copies of a batch */

static int ds__bytes_overlap(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a < b + b_size && b < a + a_size;
}

/* Returns 1 if two copies may run in any order. */
static int ds__copies_independent(const ds__work *w, const ds__cstep *a, const ds__cstep *b) {
    const char *a_dst = ds__location_at(w, a->dst);
    const char *b_dst = ds__location_at(w, b->dst);
    return !ds__bytes_overlap(a_dst, a->width, b_dst, b->width) &&
           !ds__bytes_overlap(a_dst, a->width, ds__location_at(w, b->src), b->width) &&
           !ds__bytes_overlap(b_dst, b->width, ds__location_at(w, a->src), a->width);
}

/* Returns 1 if step i may be enqueued together with the steps from `first` to the one before it:
   all are copies of one lane, it waits for no other lane, none of the others is waited for, and
   they may run in any order. */
static int ds__step_joins(const ds__work *w, size_t first, size_t i) {
    const ds__cstep *s = &w->step[i];
    if (s->kind != DS__STEP_COPY || s->lane != w->step[first].lane || s->after != DS__NO_INDEX ||
        w->step[i - 1].watched)
        return 0;
    for (size_t k = first; k < i; k++)
        if (!ds__copies_independent(w, &w->step[k], s))
            return 0;
    return 1;
}

/* Returns the number of steps from `first` on that are enqueued together. On a GPU a batch of
   copies is one call of cudart; elsewhere it gains nothing. */
static size_t ds__steps_together(const ds__work *w, size_t first) {
    const ds__cstep *s = &w->step[first];
    size_t n = 1;
    if (s->kind != DS__STEP_COPY || w->lane[s->lane].device.type != DS_DEVICE_CUDA)
        return 1;
    while (n < DS__STEPS_TOGETHER && first + n < w->steps && ds__step_joins(w, first, first + n))
        n++;
    return n;
}

/* Enqueues copies of one lane, of which there are at most DS__STEPS_TOGETHER, as a batch. */
static ds_result ds__steps_run_together(const ds__work *w, const ds__cstep *s, size_t count) {
    void *dst[DS__STEPS_TOGETHER];
    const void *src[DS__STEPS_TOGETHER];
    size_t sizes[DS__STEPS_TOGETHER];
    for (size_t i = 0; i < count; i++) {
        dst[i] = ds__location_at(w, s[i].dst);
        src[i] = ds__location_at(w, s[i].src);
        sizes[i] = s[i].width;
    }
    return ds__copy_batch(w->lane[s->lane].s, &(ds__copy_list){ dst, src, sizes, count });
}

/* Runs all steps on the calling thread, in list order. */
static void ds__steps_now(void *user) {
    const ds__work *w = user;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind == DS__STEP_REDUCE_ALL) {
            DS_IGNORE(ds__step_reduce_all(w, s, NULL));
            continue;
        }
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

/* Returns 1 if neither of the step's devices can access the other one, so that the copy goes
   through the host. */
static int ds__step_stages(const ds__work *w, const ds__cstep *s) {
    ds_device to = w->region[s->dst.region].device;
    ds_device from = w->region[s->src.region].device;
    const ds__driver *driver = w->lane[0].s->driver;
    int reach = 1;
    return to.type == from.type && to.index != from.index &&
           (driver->device_peer(to.index, from.index, &reach) < 0 ||
            (!reach && driver->device_peer(from.index, to.index, &reach) < 0) || !reach);
}

/* Returns 1 if a step copies the same bytes as the first step, and a kernel may do both. */
static int ds__step_spreads(const ds__work *w, const ds__cstep *s) {
    const ds__cstep *first = w->step;
    return s->kind == DS__STEP_COPY && s->src.region == first->src.region &&
           s->src.offset == first->src.offset && s->width == first->width &&
           s->after == DS__NO_INDEX && !s->watched && w->region[s->dst.region].direct &&
           w->region[s->src.region].direct && !ds__step_stages(w, s);
}

/* If all steps copy the same bytes, and kernels run on the processor, one kernel can read the bytes
   once. Returns 1 in this case, and moves all steps to the lane of the first step. */
static int ds__steps_spread(ds__work *w) {
    const ds__cstep *first = w->step;
    if (w->steps < 2 || w->steps > DS__SPREAD || !w->lane[0].s->driver->spreads() ||
        ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++)
        if (!ds__step_spreads(w, &w->step[i]))
            return 0;
    for (size_t i = 1; i < w->steps; i++) {
        w->lane[w->step[i].lane].busy = 0;
        w->step[i].lane = first->lane;
    }
    w->lane[first->lane].busy = 1;
    return 1;
}

/* Enqueues the kernel of ds__steps_spread. */
static ds_result ds__spread_run(const ds__work *w) {
    ds__stream *s = w->lane[w->step[0].lane].s;
    ds__spread_args a = { .src = ds__location_at(w, w->step[0].src),
                          .count = w->steps,
                          .bytes = w->step[0].width };
    for (size_t i = 0; i < w->steps; i++)
        a.dst[i] = ds__location_at(w, w->step[i].dst);
    ds__op op = ds__op_init(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__spread_kernel;
    op.u.kernel.items = (a.bytes + DS__SPREAD_ITEM - 1) / DS__SPREAD_ITEM;
    op.u.kernel.args_size = sizeof a;
    op.u.kernel.args = &a;
    op.u.kernel.grid = NULL;
    return ds__stream_submit(s, &op);
}

/* A collective hands over more work at once than a copy and waits for more streams, so the caller
   runs steps of up to so many times the driver's inline_bytes. With 64 KiB, that takes less time
   than to enqueue the steps and to wait for them. */
enum { DS__STEPS_INLINE = 4 };

/* Returns 1 if the calling thread may run the steps: they are small, no capture is open, and no
   copy goes through the host. */
static int ds__steps_small(const ds__work *w) {
    const size_t most = DS__STEPS_INLINE * w->lane[0].s->driver->inline_bytes;
    size_t all = 0;
    size_t bytes;
    if (!most || w->lanes > DS__INLINE_LANES || ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind == DS__STEP_REDUCE) {
            /* several launches may need memory for partial results */
            if (s->count > DS__COMM_INPUTS)
                return 0;
            bytes = s->width * (ds_dtype_get_size)(s->reduction.dtype);
        } else if (s->kind == DS__STEP_REDUCE_ALL) {
            bytes = s->width * (ds_dtype_get_size)(s->reduction.dtype);
            all += (s->count / 2 - 1) * bytes;
        } else if (s->kind == DS__STEP_PACK) {
            const ds__strided *k = &w->strided[s->strided];
            bytes = (size_t)ds__count_of(k->ndim, k->shape) * k->item;
        } else {
            bytes = s->width * s->height;
            if (bytes <= most && ds__step_stages(w, s))
                return 0;
        }
        all += bytes;
        if (bytes > most || all > 4 * most)
            return 0;
    }
    return 1;
}

/* Lets the calling thread run the steps if they are small and no lane has pending work; w->progress
   is DS__WORK_RAN then. */
static ds_result ds__steps_at_once(ds__work *w) {
    void *native[DS__INLINE_LANES];
    int ran = 0;
    if (!ds__steps_small(w))
        return DS_OK;
    for (size_t i = 0; i < w->lanes; i++)
        native[i] = w->lane[i].s->native;
    ds_result r = w->lane[0].s->driver->run_together(native, w->lanes, ds__steps_now, w, &ran);
    if (ran)
        w->progress = DS__WORK_RAN;
    return r;
}

/* Waits on the host for a lane, unless a capture is open. Called if the wait of a stream failed,
   because the caller frees memory afterwards that the lane may still write. */
__attribute__((cold, noinline)) static void ds__join_here(const ds__clane *l) {
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    DS_IGNORE(l->s->driver->stream_synchronize(l->s->native, DS__FOREVER));
    ds__tls.mute--;
}

#endif
