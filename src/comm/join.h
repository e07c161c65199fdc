/* comm/join.h - running a list of steps, and its waits.

   ds__work_run runs the list that a collective has written, and notifies observers of its
   operands. ds__work_steps allocates temporary memory, enqueues waits and steps, joins the lanes,
   records uses of memory with the allocator, and frees the temporary memory. ds__join_streams
   makes all lanes wait for each other.
   ds__fork_capture extends a stream capture to all lanes. ds__work_end closes a ds__work.
   ds__join_event_create and ds__join_event_destroy keep a stock of events for each device.

   Invariants: after a successful join, later work on any lane starts after all steps. If a step
   fails, the remaining steps are left out, but the join, the uses and the frees still happen. If
   a wait of that join fails, the host waits for the lane instead, unless a capture is open. The
   first failure is reported. An event returns to the stock as soon as its waits are enqueued,
   because a wait keeps the record of that moment.
   Locks: ds__join_event_create and ds__join_event_destroy take ds__c.lock for the stock alone. No
   driver call runs under it.
   Threads: caller's threads, each with its own ds__work. ds__join_events_deinit runs in ds_shutdown
   only and takes no lock. */
#ifndef DS__COMM_JOIN_H
#define DS__COMM_JOIN_H

#include "../base/observe.h"
#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/types.h"
#include "kernel_arith.h"
#include "runs.h"
#include "types.h"
#include "step.h"
#include "submit.h"

/* The lane of the last step waits for all other lanes with steps, then all lanes wait for that
   lane: often no other lane has steps. all: as if each lane had steps. */
static ds_result ds__join_streams(const ds__work *w, int all) {
    ds_result r = DS_OK;
    uint32_t last = w->steps ? w->step[w->steps - 1].lane : 0;
    for (uint32_t i = 0; i < w->lanes; i++) {
        if (i == last || !(all || w->lane[i].busy))
            continue;
        ds_result one = ds__wait_stream(w->lane[last].stream, w->lane[i].stream);
        if (one < 0 && !all)
            ds__join_here(&w->lane[i]);
        if (r == DS_OK)
            r = one;
    }
    for (uint32_t i = 0; i < w->lanes; i++) {
        ds_result one =
            i == last ? DS_OK : ds__wait_stream(w->lane[i].stream, w->lane[last].stream);
        if (one < 0 && !all)
            ds__join_here(&w->lane[last]);
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* If a lane captures, extends its capture to the other lanes. Called before memory is allocated on
   them, so that the graph owns the memory. */
static ds_result ds__fork_capture(ds__work *w) {
    size_t n = w->lanes;
    ds_result r = DS_OK;
    ds_capture_info info[2];
    for (size_t i = 0; i < w->lanes && n == w->lanes && r == DS_OK; i++) {
        memset(&info[0], 0, sizeof info[0]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[0]);
        if (info[0].status == DS_CAPTURE_ACTIVE)
            n = i;
    }
    for (size_t i = 0; n < w->lanes && i < w->lanes && r == DS_OK; i++) {
        memset(&info[1], 0, sizeof info[1]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[1]);
        if (r < 0 || info[1].status != DS_CAPTURE_NONE)
            continue;
        r = ds__wait_stream(w->lane[i].stream, w->lane[n].stream);
        w->forked |= r == DS_OK;
    }
    return r;
}

/* Joins the lanes that a failed call has forked into a capture; an unjoined lane would invalidate
   the capture. */
__attribute__((cold, noinline)) static void ds__fork_undo(ds__work *w) {
    w->forked = 0;
    ds__tls.mute++;
    DS_IGNORE(ds__join_streams(w, 1));
    ds__tls.mute--;
}

/* Closes a ds__work: joins lanes that a failed call has forked into a capture, and releases all
   lanes and the memory of ds__work_alloc. */
static void ds__work_end(ds__work *w) {
    if (DS__UNLIKELY(w->forked))
        ds__fork_undo(w);
    for (size_t i = w->lanes; i-- > 0;) {
        if (w->lane[i].pinned)
            ds__stream_unpin(w->lane[i].s);
        else
            ds__unref(&ds__g.streams, w->lane[i].s);
        if (w->lane[i].side)
            ds__side_unref(w->lane[i].device, w->lane[i].side - 1);
    }
    while (w->chunks) {
        void **chunk = w->chunks;
        w->chunks = *chunk;
        ds__host_free(chunk);
    }
}

/* Makes each lane wait for the lanes whose regions its steps touch. */
static ds_result ds__begin_lanes(ds__work *w) {
    ds_result r = DS_OK;
    size_t n = w->lanes;
    unsigned char *touches = ds__work_alloc(w, n, n);
    if (!touches)
        return w->r;
    memset(touches, 0, n * n);
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        touches[s->lane * n + w->region[s->dst.region].lane] = 1;
        if (s->kind != DS__STEP_REDUCE)
            touches[s->lane * n + w->region[s->src.region].lane] = 1;
        for (uint32_t k = 0; k < s->count; k++)
            touches[s->lane * n + w->region[w->location[s->first + k].region].lane] = 1;
    }
    for (size_t i = 0; i < n * n && r == DS_OK; i++)
        if (touches[i] && i / n != i % n)
            r = ds__wait_stream(w->lane[i / n].stream, w->lane[i % n].stream);
    return r;
}

/* Records the operands' uses with the allocator, which does not reuse their memory before the
   collective is complete. */
static ds_result ds__note_uses(const ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        const ds__clane *l = &w->lane[g->lane];
        ds_result one = DS_OK;
        if (g->device.type == DS_DEVICE_HOST && g->direct && g->bytes)
            one = ds__pinned_operand(g->at, l->stream);
        else if (g->device.type != DS_DEVICE_HOST && !g->temporary && g->bytes)
            one = ds__mem_operand(g->at, l->s, l->stream);
        /* Without a recorded event the memory could be reused at once. */
        if (one < 0 && !ds__captures_open())
            one = l->s->driver->stream_synchronize(l->s->native, DS__FOREVER);
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* Takes an event of a device from the stock, or creates one. */
static ds_result ds__join_event_create(ds_device device, ds_event *out) {
    ds__spare *e = &ds__spares[ds__backend_of(device)][device.index];
    ds__spinlock_lock(&ds__c.lock);
    *out = e->count ? e->at[--e->count] : (ds_event){ 0 };
    ds__spinlock_unlock(&ds__c.lock);
    return out->id ? DS_OK : ds__event_create(0, NULL, out);
}

/* Returns an event to the stock, or destroys it if the stock is full. A zero handle is allowed. */
static void ds__join_event_destroy(ds_device device, ds_event event) {
    ds__spare *e = &ds__spares[ds__backend_of(device)][device.index];
    if (!event.id)
        return;
    ds__spinlock_lock(&ds__c.lock);
    int kept = e->count < DS__SPARE_EVENTS;
    if (kept)
        e->at[e->count++] = event;
    ds__spinlock_unlock(&ds__c.lock);
    if (!kept)
        ds__use_event_destroy(event);
}

/* Destroys the stocks. Called by ds_shutdown. */
static void ds__join_events_deinit(void) {
    for (size_t b = 0; b < DS_BACKEND_COUNT; b++)
        for (size_t i = 0; i < DS__MAX_DEVICES; i++)
            while (ds__spares[b][i].count)
                ds__use_event_destroy(ds__spares[b][i].at[--ds__spares[b][i].count]);
}

/* In sync debug mode, warns or fails if the collective makes the host wait. */
__attribute__((cold, noinline)) static ds_result ds__work_watch(const ds__work *w) {
    if (ds__captures_open())
        return DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        if (g->device.type == DS_DEVICE_HOST && !g->direct && !g->temporary && g->bytes)
            return ds__sync_tell("waits for a tensor in pageable memory");
    }
    return DS_OK;
}

/* Describes the memory of a region's tensor. Without memory for the description, the operand has no
   bytes. */
__attribute__((cold, noinline)) static void ds__work_observe_runs(ds__work *w, const ds__region *g,
                                                                  ds__seen_operand *o) {
    const ds__layout *l = g->layout;
    ds__runs *m = l ? ds__work_alloc(w, 1, sizeof *m) : NULL;
    if (!m) {
        o->bytes = 0;
        return;
    }
    ds__comm_copy tensor = { l->item, l->ndim, l->dims, NULL, l->dims + l->ndim };
    ds__runs_observe(&tensor, g->at, m, o);
}

/* Notifies observers of a collective; kind: DS__SEEN_BEGIN or DS__SEEN_END. */
__attribute__((cold, noinline)) static void ds__work_observe(ds__work *w, int kind, ds_result r) {
    ds__seen_operand *list = ds__work_alloc(w, w->regions, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; list && i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        if (g->temporary || !g->bytes)
            continue;
        ds__seen_operand o = { .bytes = g->bytes,
                               .device = g->device,
                               .stream = w->lane[g->lane].stream };
        ds__work_observe_runs(w, g, &o);
        for (size_t k = 0; k < w->steps; k++) {
            const ds__cstep *s = &w->step[k];
            o.writes |= s->dst.region == i;
            o.reads |= s->kind != DS__STEP_REDUCE && s->src.region == i;
            for (uint32_t j = 0; j < s->count; j++)
                o.reads |= w->location[s->first + j].region == i;
        }
        list[n++] = o;
    }
    ds__observer_notify(&(ds__seen){ .kind = kind, .operand = list, .operands = n, .result = r });
}

/* Reports a failure of writing the list; checks and allocates what running it needs. */
static ds_result ds__work_prepare(ds__work *w) {
    if (w->r < 0)
        return w->r;
    if (DS__UNLIKELY(ds__sync_watched())) {
        ds_result r = ds__work_watch(w);
        if (r < 0)
            return r;
    }
    if (w->most > sizeof w->in_first / sizeof *w->in_first) {
        w->in = ds__work_alloc(w, w->most, sizeof *w->in);
        if (!w->in)
            return w->r;
    }
    return DS_OK;
}

/* Allocates the temporary regions, on the streams of their lanes. */
static ds_result ds__temporaries_alloc(ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions && r == DS_OK; i++) {
        ds__region *g = &w->region[i];
        void *ptr = NULL;
        if (!g->temporary)
            continue;
        if (g->device.type == DS_DEVICE_HOST)
            DS__KEEPING(r, (ds_mem_pinned_alloc)(g->bytes, &ptr));
        else
            DS__KEEPING(r, (ds_mem_alloc)(g->bytes, w->lane[g->lane].stream, &ptr));
        g->at = ptr;
    }
    return r;
}

/* Frees the temporary regions that were allocated, in the order of their lanes. */
static ds_result ds__temporaries_free(ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        ds_result one;
        if (!g->temporary || !g->at)
            continue;
        if (g->device.type == DS_DEVICE_HOST)
            DS__KEEPING(one, (ds_mem_pinned_free)(g->at));
        else
            DS__KEEPING(one, (ds_mem_free)(g->at));
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* Enqueues the waits of the first one of `count` steps, the steps, and the event of the last one,
   for which later steps wait. More than one step are copies that run together. */
static ds_result ds__step_enqueue(ds__work *w, ds__cstep *s, size_t count) {
    ds__cstep *last = s + count - 1;
    const ds__clane *l = &w->lane[s->lane];
    ds_result r = DS_OK;
    for (uint32_t k = s->after; k != DS__NO_INDEX && r == DS_OK; k = w->link[k].next)
        r = ds__wait_event(l->stream, w->step[w->link[k].step].done, DS__OP_WAIT);
    if (r < 0)
        return r;
    /* If a reduction has several launches, a part of them may have been enqueued on failure. */
    if (s->kind == DS__STEP_REDUCE &&
        (s->count > DS__COMM_INPUTS || s->reduction.op == DS_REDUCE_AVERAGE))
        w->progress = DS__WORK_STARTED;
    /* so may a part of a batch */
    if (count > 1)
        w->progress = DS__WORK_STARTED;
    r = count > 1 ? ds__steps_run_together(w, s, count) : ds__step_run(w, s);
    if (r < 0)
        return r;
    w->progress = DS__WORK_STARTED;
    if (!last->watched)
        return DS_OK;
    r = ds__join_event_create(l->device, &last->done);
    return r < 0 ? r : ds__event_record(last->done, l->stream, DS__OP_RECORD);
}

/* Enqueues the waits between the lanes, then the steps in list order. */
static ds_result ds__steps_enqueue(ds__work *w) {
    int spread = ds__steps_spread(w); /* changes the lanes of steps, so before the waits */
    w->progress = DS__WORK_WAITING;
    ds_result r = w->lanes > 1 ? ds__begin_lanes(w) : DS_OK;
    if (r == DS_OK && spread) {
        r = ds__spread_run(w);
        if (r == DS_OK)
            w->progress = DS__WORK_STARTED;
        return r;
    }
    for (size_t i = 0; i < w->steps && r == DS_OK;) {
        size_t count = ds__steps_together(w, i);
        r = ds__step_enqueue(w, &w->step[i], count);
        i += count;
    }
    return r;
}

/* Joins the lanes, records the uses of memory, and frees temporary memory, also if steps have
   failed. Returns the first failure. */
static ds_result ds__work_finish(ds__work *w) {
    ds_result joined = DS_OK;
    ds_result noted = DS_OK;
    ds_result freed = DS_OK;
    if (w->progress == DS__WORK_WAITING || w->progress == DS__WORK_STARTED) {
        w->forked = 0;
        joined = ds__join_streams(w, 0);
    }
    if (w->progress != DS__WORK_RAN)
        noted = ds__note_uses(w);
    if (w->temporaries)
        freed = ds__temporaries_free(w);
    if (joined < 0)
        return joined;
    return noted < 0 ? noted : freed;
}

/* Runs the list: on the calling thread if the steps are small, else on the streams. */
static ds_result ds__work_steps(ds__work *w) {
    ds_result r = ds__work_prepare(w);
    if (r < 0)
        return r;
    ds__tls.unwatched++;
    if (DS__UNLIKELY(ds__captures_open()))
        r = ds__fork_capture(w);
    if (r == DS_OK && w->temporaries)
        r = ds__temporaries_alloc(w);
    if (r == DS_OK)
        r = ds__steps_at_once(w);
    if (r == DS_OK && w->progress != DS__WORK_RAN)
        r = ds__steps_enqueue(w);
    /* The first failure is the reported one. */
    ds__tls.mute += r < 0;
    ds_result end = ds__work_finish(w);
    ds__tls.mute -= r < 0;
    for (size_t i = 0; i < w->steps && w->progress != DS__WORK_RAN; i++)
        ds__join_event_destroy(w->lane[w->step[i].lane].device, w->step[i].done);
    ds__tls.unwatched--;
    if (r == DS_OK)
        r = end;
    return r < 0 && w->progress == DS__WORK_STARTED
               ? ds__fail_append(r, " (part of the collective was enqueued)")
               : r;
}

/* Runs the list, if it has steps, between the notifications of observers. */
static ds_result ds__work_run(ds__work *w) {
    if (w->r < 0 || !w->steps)
        return w->r;
    if (ds__observer_is_set())
        ds__work_observe(w, DS__SEEN_BEGIN, DS_OK);
    ds_result r = ds__work_steps(w);
    if (ds__observer_is_set())
        ds__work_observe(w, DS__SEEN_END, r);
    return r;
}

#endif
