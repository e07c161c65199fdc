/* Tells a watcher, the stand-in for CUPTI, of calls and of device work that has ended. */
#include "core.h"
#include "standin.h"

static _Atomic(const standin_watcher *) watcher;
static atomic_uint correlations;

void standin_watch(const standin_watcher *w) {
    atomic_store(&watcher, w);
}

/* A call of the thread begins. Its number is also that of the work that it submits. */
void si_watch_call(function_id f) {
    const standin_watcher *w = atomic_load(&watcher);
    if (!w)
        return;
    si_me.correlation = atomic_fetch_add(&correlations, 1) + 1;
    w->call(si_me.correlation, f > LAST_OF_RUNTIME);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The time of work that begins now; 0: no watcher is set. */
uint64_t si_watch_begin(void) {
    return atomic_load(&watcher) ? now_ns() : 0;
}

/* Work has ended that began then. */
void si_watch_end(const op *o, uint64_t begin) {
    const standin_watcher *w = atomic_load(&watcher);
    if (!w || !begin || !o->correlation)
        return;
    standin_work work = { .correlation = o->correlation,
                          .device = o->device,
                          .stream = o->stream ? (unsigned)o->stream->id : 0,
                          .begin_ns = begin,
                          .end_ns = now_ns(),
                          .node = o->node };
    if (o->kind == OP_COPY) {
        const copy *c = &o->u.copy;
        work.kind = o->peer ? STANDIN_PEER_COPY : STANDIN_COPY;
        work.bytes = c->width * c->height * c->depth;
    } else if (o->kind == OP_FILL) {
        work.kind = STANDIN_FILL;
        work.bytes = o->u.fill.width * o->u.fill.height * o->u.fill.element;
    } else if (o->kind == OP_KERNEL) {
        work.kind = STANDIN_KERNEL;
        work.name = ptx_name(o->u.kernel.code);
    } else {
        return;
    }
    w->work(&work);
}
