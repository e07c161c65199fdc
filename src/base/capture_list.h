/* base/capture_list.h - list of open captures, for both drivers.

   Keeps one record (ds__capture) for each open capture, so an error can name the capture, its
   call site, and the first call that invalidated it. CUDA enforces the rules of capture on a
   GPU, the CPU driver on its own devices; both enter every capture here (ds__capture_list,
   ds__capture_unlist). ds__capture_guard refuses calls that an open capture forbids, and
   ds__capture_fail builds the error sentence.

   Invariants: the list holds a capture from its begin until its end. A status changes from
   active to invalidated only, and the first offending call that devstream saw (culprit) is
   stored once, with its rule. ds__g.capture_count is at least the length of the list; the CUDA
   driver raises it while a capture begins. Numbers of captures and of threads are never used
   twice.
   Locks: ds__g.capture_lock guards the list and, for captures of the CPU driver, everything in
   them. ds__capture_guard takes the lock; functions with a comment "The lock is held" expect it.
   ds__g.begin and a graph's lock are taken before it. An error reported under the lock invokes
   the user's log function.
   Threads: any thread. ds__captures_open reads the count without a lock, so it may be out of
   date. */
#ifndef DS__BASE_CAPTURE_LIST_H
#define DS__BASE_CAPTURE_LIST_H

#include "thread_block.h"
#include "error.h"
#include "object.h"
#include "pin.h"
#include "driver.h"
#include "state.h"

struct ds__capture {
    ds__capture *next;
    const ds__driver *driver;
    uint64_t id;
    uint64_t thread; /* number of the thread that began it */
    uint64_t native; /* the driver's number of it */
    ds_capture_mode mode;
    ds_capture_status status;
    ds_site begun;
    ds_graph graph;
    ds__body *body;
    int into;      /* 1: it adds to a graph of the user */
    void *origin;  /* the driver's stream on which it began */
    void *members; /* the driver's list of streams */
    /* of the CPU driver: the nodes at the ends of streams that were destroyed; to be joined */
    uint32_t *lost;
    uint32_t lost_count;
    /* the first call that the capture does not permit: "ds_stream_query at a.c:7" */
    char culprit[160];
    char rule[128];
};

static const char *const ds__mode_names[] = { "global", "thread-local", "relaxed" };

/* Returns the number of the calling thread. */
static uint64_t ds__thread_number(void) {
    if (!ds__tls.number)
        ds__tls.number = atomic_fetch_add(&ds__g.next_thread, 1) + 1;
    return ds__tls.number;
}

static const char *ds__short_path(const char *file) {
    if (!file)
        return "?";
    size_t n = strlen(file);
    return n > 70 ? file + n - 70 : file;
}

/* The lock is held. */
static void ds__capture_spoil(ds__capture *c, const char *rule) {
    if (c->status != DS_CAPTURE_ACTIVE)
        return;
    c->status = DS_CAPTURE_INVALIDATED;
    if (ds__tls.site.file)
        snprintf(c->culprit, sizeof c->culprit, "%s at %s:%d", ds__tls.fn,
                 ds__short_path(ds__tls.site.file), ds__tls.site.line);
    else
        snprintf(c->culprit, sizeof c->culprit, "%s", ds__tls.fn);
    snprintf(c->rule, sizeof c->rule, "%s", rule);
}

/* Reports a call that an open capture does not permit, and returns the code. spoils: the call
   invalidates the capture. The lock is held. */
__attribute__((cold, noinline)) static ds_result ds__capture_fail(ds_result code, ds__capture *c,
                                                                  int spoils, const char *rule) {
    const char *file = ds__short_path(c->begun.file);
    if (spoils)
        ds__capture_spoil(c, rule);
    if (c->status == DS_CAPTURE_INVALIDATED && !spoils && code == DS_ERR_CAPTURE_INVALIDATED)
        return ds__fail(code, "capture #%llu (%s), begun at %s:%d, was invalidated by %s: %s",
                        (unsigned long long)c->id, ds__mode_names[c->mode], file, c->begun.line,
                        c->culprit[0] ? c->culprit : "a call outside devstream",
                        c->rule[0] ? c->rule : "CUDA reports no reason");
    const char *state = c->status == DS_CAPTURE_ACTIVE ? "goes on" : "remains invalid";
    if (spoils)
        state = "is now invalidated by this call";
    return ds__fail(code, "%s; capture #%llu (%s), begun at %s:%d, %s", rule,
                    (unsigned long long)c->id, ds__mode_names[c->mode], file, c->begun.line, state);
}

/* Returns the open capture of the driver with this number, or NULL. The lock is held. */
DS__SEAM static ds__capture *ds__capture_find(const ds__driver *driver, uint64_t id) {
    ds__capture *c = ds__g.captures;
    while (c && (c->id != id || c->driver->type != driver->type))
        c = c->next;
    return c;
}

static int ds__captures_open(void) {
    return atomic_load_explicit(&ds__g.capture_count, memory_order_relaxed);
}

/* Returns 1 if the open capture makes unsafe calls of this thread fail
   (cudaThreadExchangeStreamCaptureMode). The lock is held. */
static int ds__capture_forbids(const ds__capture *c) {
    ds_capture_mode mine = ds__tls.mode;
    if (ds__tls.relaxed || mine == DS_CAPTURE_RELAXED || c->mode == DS_CAPTURE_RELAXED)
        return 0;
    return c->thread == ds__thread_number() ||
           (mine == DS_CAPTURE_GLOBAL && c->mode == DS_CAPTURE_GLOBAL);
}

/* Refuses an unsafe call while a capture of the driver forbids it, and invalidates the captures
   that do. */
DS__SEAM static ds_result ds__capture_guard(const ds__driver *driver, const char *rule) {
    ds_result r = DS_OK;
    if (DS__LIKELY(ds__captures_open() == 0))
        return DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != driver->type || !ds__capture_forbids(c))
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, c->status == DS_CAPTURE_ACTIVE,
                                 rule);
        else
            ds__capture_spoil(c, rule);
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Gives a new capture its number and adds it to the list. The lock is held. */
DS__SEAM static void ds__capture_list(ds__capture *c) {
    c->id = ++ds__g.next_capture;
    c->status = DS_CAPTURE_ACTIVE;
    c->next = ds__g.captures;
    ds__g.captures = c;
    atomic_fetch_add(&ds__g.capture_count, 1);
}

/* Removes a capture from the list. The lock is held. */
DS__SEAM static void ds__capture_unlist(ds__capture *c) {
    ds__capture **p = &ds__g.captures;
    while (*p && *p != c)
        p = &(*p)->next;
    if (*p) {
        *p = c->next;
        atomic_fetch_sub(&ds__g.capture_count, 1);
    }
}

/* Ends a capture that is not in the list any more. If it failed, a graph that it created is
   destroyed. */
DS__SEAM static void ds__capture_over(ds__capture *c, int failed) {
    ds__graph *g = (void *)ds__slot_at(&ds__g.graphs, (uint32_t)c->graph.id - 1);
    /* without a reference another thread could free the graph and reuse its slot meanwhile */
    ds__ref(g);
    /* first: while `capturing` is not 0, no other thread can destroy the graph */
    if (failed && !c->into)
        ds__table_invalidate(&ds__g.graphs, g);
    atomic_fetch_sub(&g->capturing, 1);
    ds__unref(&ds__g.graphs, g);
    ds__host_free(c);
}

#endif
