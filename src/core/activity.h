/* core/activity.h - recordings of activity: start, end, and the thread that hands records over.

   Starts and ends a recording (ds_activity_start, ds_activity_stop). A thread of the library lets
   the drivers write the records of complete operations, and invokes the callback with batches
   (ds__activity_main). ds_activity_flush makes it do both at once. Keeps the pushed ids of threads.

   Invariants: only the thread invokes the callback, so the callback is never invoked twice at once,
   and no lock of the library is held meanwhile. The thread ends after the last note of an operation
   and the last flush. The state goes from off to starting, on, ending, and off.
   Locks: none is held over a callback or a wait.
   Threads: any may call. ds__activity_shutdown runs in ds_shutdown. */
#ifndef DS__CORE_ACTIVITY_H
#define DS__CORE_ACTIVITY_H

#include "../api/activity.h"
#include "../base/activity.h"
#include "../base/observe.h"
#include "init.h"
#include "range.h"
#include "thread.h"

enum {
    DS__ACTIVITY_LEAST = 16,
    DS__ACTIVITY_MOST = 1 << 24,
    DS__ACTIVITY_USUAL = 16384,
    DS__ACTIVITY_PERIOD_NS = 100000000, /* between two batches, if there are few records */
    DS__ACTIVITY_POLL_NS = 1000000,     /* between two looks at pending operations of CUDA */
    DS__ACTIVITY_END_NS = 50000         /* the same, while the recording ends */
};

enum { DS__ACTIVITY_OFF, DS__ACTIVITY_STARTING, DS__ACTIVITY_ON, DS__ACTIVITY_ENDING };

static struct {
    _Atomic int state;         /* DS__ACTIVITY_OFF ... */
    _Atomic int ends;          /* 1: the thread ends after the last record */
    _Atomic int users;         /* calls of ds_activity_flush */
    _Atomic uint32_t asked;    /* numbers of flushes */
    _Atomic uint32_t answered; /* callers of flushes sleep on it */
    ds__os_thread thread;
    ds_activity_fn fn;
    void *user;
} ds__activity_run;

/* Hands over the records that are there. Returns 0 if there are none. */
static int ds__activity_hand_over(void) {
    ds__spinlock_lock(&ds__activity.lock);
    ds_activity_batch batch = { .records = ds__activity.buffer[ds__activity.filling],
                                .count = ds__activity.count };
    if (batch.count)
        ds__activity.filling = !ds__activity.filling;
    ds__activity.count = 0;
    ds__spinlock_unlock(&ds__activity.lock);
    batch.dropped = atomic_exchange(&ds__activity.dropped, 0);
    if (!batch.count && !batch.dropped)
        return 0;
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_ACTIVITY, .activity = &batch });
    ds__activity_run.fn(&batch, ds__activity_run.user);
    return 1;
}

/* Lets the drivers write the records of complete operations. Returns 1 if operations are pending
   that a driver must look at again. */
static int ds__activity_collect(void) {
    int pending = 0;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            pending |= ds__g.driver[b]->activity_collect();
    return pending;
}

/* Tells the callers of flushes that those up to this number are done. */
static void ds__activity_answer(uint32_t asked) {
    atomic_store(&ds__activity_run.answered, asked);
    ds__futex_wake(&ds__activity_run.answered, INT_MAX);
}

/* Returns 1 if records should be handed over, as half of the buffer is used. */
static int ds__activity_is_half(void) {
    ds__spinlock_lock(&ds__activity.lock);
    int is_half = ds__activity.count >= ds__activity.capacity / 2;
    ds__spinlock_unlock(&ds__activity.lock);
    return is_half;
}

static void *ds__activity_main(void *unused) {
    uint64_t last = ds__now_ns();
    (void)unused;
    ds__os_library_thread();
    ds__tls.in_callback = 1;
    for (;;) {
        uint32_t word = atomic_load(&ds__activity.word);
        uint32_t asked = atomic_load(&ds__activity_run.asked);
        int ends = atomic_load(&ds__activity_run.ends);
        /* read before the records: a note that is gone has written its record */
        int over = ends && !ds__activity_is_pending() && !atomic_load(&ds__activity_run.users);
        int pending = ds__activity_collect();
        int due = ds__now_ns() - last >= DS__ACTIVITY_PERIOD_NS;
        if (ends || due || asked != atomic_load(&ds__activity_run.answered) ||
            ds__activity_is_half()) {
            (void)ds__activity_hand_over();
            last = ds__now_ns();
        }
        ds__activity_answer(asked);
        if (over)
            return NULL;
        uint64_t nap = pending ? DS__ACTIVITY_POLL_NS : DS__ACTIVITY_PERIOD_NS;
        ds__futex_wait(&ds__activity.word, word, ends ? DS__ACTIVITY_END_NS : nap);
    }
}

static void ds__activity_free(void) {
    for (int i = 0; i < 2; i++) {
        ds__host_free(ds__activity.buffer[i]);
        ds__activity.buffer[i] = NULL;
    }
    ds__activity.capacity = ds__activity.count = 0;
}

/* Allocates the buffers and starts the thread. */
static ds_result ds__activity_begin(const ds_activity_desc *desc) {
    size_t capacity = desc->capacity ? desc->capacity : DS__ACTIVITY_USUAL;
    ds__activity.buffer[0] = ds__host_alloc(capacity * sizeof(ds_activity));
    ds__activity.buffer[1] = ds__host_alloc(capacity * sizeof(ds_activity));
    ds__activity.capacity = capacity;
    ds__activity.count = 0;
    ds__activity.filling = 0;
    ds__activity_run.fn = desc->fn;
    ds__activity_run.user = desc->user;
    atomic_store(&ds__activity_run.ends, 0);
    atomic_store(&ds__activity_run.answered, atomic_load(&ds__activity_run.asked));
    atomic_store(&ds__activity.dropped, 0);
    atomic_store(&ds__activity.kinds, desc->kinds ? desc->kinds : ~0u);
    if (!ds__activity.buffer[0] || !ds__activity.buffer[1]) {
        ds__activity_free();
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu records", capacity);
    }
    int error = ds__os_thread_start(&ds__activity_run.thread, ds__activity_main, NULL);
    if (error) {
        ds__activity_free();
        return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            ds__g.driver[b]->activity_set(1);
    atomic_store(&ds__activity.on, 1);
    return DS_OK;
}

/* Ends a recording whose state is ending: waits for the recorded operations. */
static void ds__activity_end(void) {
    atomic_store(&ds__activity.on, 0);
    atomic_store(&ds__activity_run.ends, 1);
    ds__activity_wake();
    ds__os_thread_join(ds__activity_run.thread);
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            ds__g.driver[b]->activity_set(0);
    ds__activity_free();
    atomic_store(&ds__activity_run.state, DS__ACTIVITY_OFF);
}

/* Ends the recording and frees the names of kernels, at shutdown after all work. */
static void ds__activity_shutdown(void) {
    int on = DS__ACTIVITY_ON;
    if (atomic_compare_exchange_strong(&ds__activity_run.state, &on, DS__ACTIVITY_ENDING))
        ds__activity_end();
}

static void ds__activity_names_free(void) {
    while (ds__activity.names) {
        ds__activity_text *text = ds__activity.names;
        ds__activity.names = text->next;
        ds__host_free(text);
    }
    ds__activity.name_bytes = 0;
}

DSDEF ds_result(ds_activity_start)(const ds_activity_desc *desc) {
    const unsigned known = (2u << DS_ACTIVITY_GRAPH) - 2;
    DS__ENTER("ds_activity_start");
    DS__REQUIRE(desc && desc->fn, "%s is NULL", desc ? "fn" : "desc");
    DS__REQUIRE_RESERVED("ds_activity_desc", desc);
    DS__REQUIRE(!desc->capacity ||
                    (desc->capacity >= DS__ACTIVITY_LEAST && desc->capacity <= DS__ACTIVITY_MOST),
                "capacity is %zu; %d to %d records are allowed", desc->capacity, DS__ACTIVITY_LEAST,
                DS__ACTIVITY_MOST);
    DS__REQUIRE(!(desc->kinds & ~known), "kinds is %#x; bits of %#x are allowed", desc->kinds,
                known);
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b] && ds__g.driver[b]->fabric())
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "activity is not recorded with a fabric, whose operations take "
                            "virtual time");
    int off = DS__ACTIVITY_OFF;
    if (!atomic_compare_exchange_strong(&ds__activity_run.state, &off, DS__ACTIVITY_STARTING))
        return ds__fail(DS_ERR_ILLEGAL_STATE, "a recording runs already; end it first");
    ds_result r = ds__activity_begin(desc);
    atomic_store(&ds__activity_run.state, r == DS_OK ? DS__ACTIVITY_ON : DS__ACTIVITY_OFF);
    return r;
}

DSDEF ds_result(ds_activity_flush)(void) {
    DS__ENTER("ds_activity_flush");
    atomic_fetch_add(&ds__activity_run.users, 1);
    int on = atomic_load(&ds__activity_run.state) == DS__ACTIVITY_ON;
    if (on) {
        uint32_t mine = atomic_fetch_add(&ds__activity_run.asked, 1) + 1;
        ds__activity_wake();
        uint32_t answered;
        while ((int32_t)((answered = atomic_load(&ds__activity_run.answered)) - mine) < 0)
            ds__futex_wait(&ds__activity_run.answered, answered, DS__FOREVER);
    }
    atomic_fetch_sub(&ds__activity_run.users, 1);
    return on ? DS_OK : ds__fail(DS_ERR_ILLEGAL_STATE, "no recording runs");
}

DSDEF ds_result(ds_activity_stop)(void) {
    DS__ENTER("ds_activity_stop");
    int on = DS__ACTIVITY_ON;
    if (!atomic_compare_exchange_strong(&ds__activity_run.state, &on, DS__ACTIVITY_ENDING))
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no recording runs");
    ds__activity_end();
    return DS_OK;
}

DSDEF ds_result(ds_activity_push_id)(uint64_t id) {
    ds_site site = ds__site_take(&ds__tls);
    unsigned depth = ds__activity_tls.depth;
    if (depth == DS__ACTIVITY_IDS)
        return ds__range_fail("ds_activity_push_id", site, DS_ERR_ILLEGAL_STATE,
                              "%u ids are pushed; at most %u are allowed", depth, depth);
    ds__activity_tls.id[depth] = id;
    ds__activity_tls.depth = depth + 1;
    return DS_OK;
}

DSDEF ds_result(ds_activity_pop_id)(uint64_t *out) {
    ds_site site = ds__site_take(&ds__tls);
    if (out)
        *out = 0;
    if (!ds__activity_tls.depth)
        return ds__range_fail("ds_activity_pop_id", site, DS_ERR_ILLEGAL_STATE,
                              "no id is pushed on this thread");
    uint64_t id = ds__activity_tls.id[--ds__activity_tls.depth];
    if (out)
        *out = id;
    return DS_OK;
}

DSDEF const char *(ds_activity_kind_get_name)(ds_activity_kind kind) {
    static const char *const names[] = { "none",   "kernel", "copy",   "fill", "host function",
                                         "record", "wait",   "values", "graph" };
    return (unsigned)kind <= DS_ACTIVITY_GRAPH ? names[kind] : "unknown";
}

#endif
