/* core/activity.h - recordings of activity: start, end, and the thread that hands records over.

   Starts and ends recordings (ds__activity_client_start, ds__activity_client_stop): one of the
   program (ds_activity_start), and one of the trace layer, which may run at the same time. A thread
   of the library lets the drivers write the records of complete operations, and invokes the
   callbacks with batches (ds__activity_main). ds_activity_flush makes it do both at once. Keeps the
   pushed ids of threads.

   Invariants: only the thread invokes callbacks, so a callback is never invoked twice at once, and
   no lock of the library is held meanwhile. The thread sets a state from ending to off, after the
   last note of the recording and its batch. It runs while there is a recording, and ends after the
   last flush. One recording at a time starts or ends (`busy`).
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
    DS__ACTIVITY_END_NS = 50000         /* the same, while a recording ends */
};

enum { DS__ACTIVITY_OFF, DS__ACTIVITY_ON, DS__ACTIVITY_ENDING };

/* One of the recordings that share notes and buffers. */
typedef struct ds__activity_client {
    _Atomic int state; /* DS__ACTIVITY_OFF ... */
    ds_activity_desc desc;
    uint64_t from; /* its records have the ids behind this one, up to `upto` */
    _Atomic uint64_t upto;
} ds__activity_client;

static struct {
    _Atomic int busy;          /* 1: a recording starts or ends */
    _Atomic uint32_t ending;   /* the client that ends, and 1; 0: none */
    _Atomic int ends;          /* 1: the thread ends */
    _Atomic int users;         /* calls of ds_activity_flush */
    _Atomic int urged;         /* 1: records should be handed over now */
    _Atomic uint32_t asked;    /* numbers of flushes */
    _Atomic uint32_t answered; /* callers of flushes sleep on it */
    _Atomic size_t wanted;     /* capacity */
    ds__os_thread thread;
    ds__activity_client client[DS__ACTIVITY_CLIENTS];
} ds__activity_run;

/* Hands a batch over to a client. That of the trace layer gets it as it is, and also an empty one.
   That of the program gets its part, which replaces the records of the batch. */
static void ds__activity_pass(int client, ds_activity *list, size_t count, uint64_t dropped) {
    const ds__activity_client *c = &ds__activity_run.client[client];
    ds_activity_batch batch = { .records = list, .count = count, .dropped = dropped };
    unsigned kinds = c->desc.kinds ? c->desc.kinds : (2u << DS_ACTIVITY_GRAPH) - 2;
    uint64_t upto = atomic_load(&c->upto);
    if (client == DS__ACTIVITY_PROGRAM) {
        batch.count = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t id = list[i].correlation_id;
            if (!(kinds >> list[i].kind & 1) || id <= c->from || id > upto)
                continue;
            if (batch.count != i)
                list[batch.count] = list[i];
            batch.count++;
        }
        if (!batch.count && !dropped)
            return;
    }
    c->desc.fn(&batch, c->desc.user);
}

/* Makes nanoseconds of the times of a record. */
static void ds__activity_convert(ds__clock_line *line, ds_activity *a) {
    if (a->reserved[0] != DS__ACTIVITY_IN_NS) {
        a->begin_ns = ds__activity_ns(line, a->begin_ns);
        a->end_ns = ds__activity_ns(line, a->end_ns);
        a->enqueue_ns = ds__activity_ns(line, a->enqueue_ns);
    }
    a->reserved[0] = 0;
}

/* Hands over the records that are there. */
static void ds__activity_hand_over(void) {
    ds__spinlock_lock(&ds__activity.lock);
    ds_activity_batch batch = { .records = ds__activity.buffer[ds__activity.filling],
                                .count = ds__activity.count };
    ds_activity *list = ds__activity.buffer[ds__activity.filling];
    if (batch.count)
        ds__activity.filling = !ds__activity.filling;
    ds__activity.count = 0;
    ds__spinlock_unlock(&ds__activity.lock);
    batch.dropped = atomic_exchange(&ds__activity.dropped, 0);
    ds__activity_clock_pair();
    ds__clock_line line = { .rate = 0 };
    for (size_t i = 0; i < batch.count; i++)
        ds__activity_convert(&line, &list[i]);
    if ((batch.count || batch.dropped) && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_ACTIVITY, .activity = &batch });
    for (int i = DS__ACTIVITY_CLIENTS; i-- > 0;)
        if (atomic_load(&ds__activity_run.client[i].state) != DS__ACTIVITY_OFF)
            ds__activity_pass(i, list, batch.count, batch.dropped);
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

/* Returns 1 if half of the buffer is used. */
static int ds__activity_is_half(void) {
    ds__spinlock_lock(&ds__activity.lock);
    int is_half = ds__activity.count >= atomic_load(&ds__activity.capacity) / 2;
    ds__spinlock_unlock(&ds__activity.lock);
    return is_half;
}

/* Returns 1 if all notes that the end of a recording waits for were given back. */
static int ds__activity_is_over(void) {
    ds__spinlock_lock(&ds__activity.lock);
    int over = ds__activity.left == 0;
    ds__spinlock_unlock(&ds__activity.lock);
    return over;
}

/* Replaces the buffers by greater ones; without memory they stay. Only the thread that hands over
   may do so: it does not read the other buffer now. */
static void ds__activity_grow(void) {
    size_t wanted = atomic_load(&ds__activity_run.wanted);
    if (wanted <= atomic_load(&ds__activity.capacity))
        return;
    ds_activity *fresh[2] = { ds__host_alloc(wanted * sizeof(ds_activity)),
                              ds__host_alloc(wanted * sizeof(ds_activity)) };
    if (fresh[0] && fresh[1]) {
        ds__spinlock_lock(&ds__activity.lock);
        memcpy(fresh[ds__activity.filling], ds__activity.buffer[ds__activity.filling],
               ds__activity.count * sizeof(ds_activity));
        for (int i = 0; i < 2; i++) {
            ds_activity *old = ds__activity.buffer[i];
            ds__activity.buffer[i] = fresh[i];
            fresh[i] = old;
        }
        atomic_store(&ds__activity.capacity, wanted);
        ds__spinlock_unlock(&ds__activity.lock);
    }
    ds__host_free(fresh[0]);
    ds__host_free(fresh[1]);
}

/* Ends a client after its last batch. */
static void ds__activity_client_end(int client) {
    atomic_store(&ds__activity_run.client[client].state, DS__ACTIVITY_OFF);
    atomic_store(&ds__activity_run.ending, 0);
    ds__futex_wake(&ds__activity_run.ending, INT_MAX);
}

/* Tells the drivers whether a call waits for records. */
static void ds__activity_hurry_set(uint32_t ending, uint32_t asked) {
    int waits = ending || asked != atomic_load(&ds__activity_run.answered);
    int hurry = waits ? DS__ACTIVITY_FLUSH : DS__ACTIVITY_CALM;
    atomic_store(&ds__activity.hurry, ending == DS__ACTIVITY_TRACE + 1 ? DS__ACTIVITY_LAST : hurry);
}

static void *ds__activity_main(void *unused) {
    uint64_t last = ds__now_ns();
    (void)unused;
    ds__os_library_thread();
    ds__tls.in_callback = 1;
    for (;;) {
        uint32_t word = atomic_load(&ds__activity.word);
        uint32_t asked = atomic_load(&ds__activity_run.asked);
        uint32_t ending = atomic_load(&ds__activity_run.ending);
        int ends = atomic_load(&ds__activity_run.ends) && !atomic_load(&ds__activity_run.users);
        /* read before the records: a note that is gone has written its record */
        int over = ending && ds__activity_is_over();
        ds__activity_hurry_set(ending, asked);
        int urged = atomic_exchange(&ds__activity_run.urged, 0);
        int pending = ds__activity_collect();
        int due = ds__now_ns() - last >= DS__ACTIVITY_PERIOD_NS;
        if (over || due || urged || asked != atomic_load(&ds__activity_run.answered) ||
            ds__activity_is_half()) {
            ds__activity_hand_over();
            last = ds__now_ns();
        }
        ds__activity_grow();
        ds__activity_answer(asked);
        if (over)
            ds__activity_client_end((int)ending - 1);
        if (ends)
            return NULL;
        uint64_t nap = pending ? DS__ACTIVITY_POLL_NS : DS__ACTIVITY_PERIOD_NS;
        ds__futex_wait(&ds__activity.word, word, ending ? DS__ACTIVITY_END_NS : nap);
    }
}

static void ds__activity_free(void) {
    for (int i = 0; i < 2; i++) {
        ds__host_free(ds__activity.buffer[i]);
        ds__activity.buffer[i] = NULL;
    }
    atomic_store(&ds__activity.capacity, 0);
    ds__activity.count = 0;
}

/* Returns 1 if a recording runs or ends. */
static int ds__activity_any(void) {
    for (int i = 0; i < DS__ACTIVITY_CLIENTS; i++)
        if (atomic_load(&ds__activity_run.client[i].state) != DS__ACTIVITY_OFF)
            return 1;
    return 0;
}

/* Sets the kinds that have records: those of all recordings that run. */
static void ds__activity_kinds_set(void) {
    unsigned kinds = 0;
    for (int i = 0; i < DS__ACTIVITY_CLIENTS; i++) {
        const ds__activity_client *c = &ds__activity_run.client[i];
        if (atomic_load(&c->state) == DS__ACTIVITY_ON)
            kinds |= c->desc.kinds ? c->desc.kinds : ~0u;
    }
    atomic_store(&ds__activity.kinds, kinds);
    atomic_store(&ds__activity.nodes,
                 atomic_load(&ds__activity_run.client[DS__ACTIVITY_TRACE].state) ==
                     DS__ACTIVITY_ON);
}

/* Allocates the buffers and starts the thread. */
static ds_result ds__activity_begin(size_t capacity) {
    ds__activity.buffer[0] = ds__host_alloc(capacity * sizeof(ds_activity));
    ds__activity.buffer[1] = ds__host_alloc(capacity * sizeof(ds_activity));
    atomic_store(&ds__activity.capacity, capacity);
    ds__activity.count = 0;
    ds__activity.filling = 0;
    atomic_store(&ds__activity_run.wanted, capacity);
    atomic_store(&ds__activity_run.ends, 0);
    atomic_store(&ds__activity_run.answered, atomic_load(&ds__activity_run.asked));
    atomic_store(&ds__activity.dropped, 0);
    if (!ds__activity.buffer[0] || !ds__activity.buffer[1]) {
        ds__activity_free();
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu records", capacity);
    }
    ds__activity_clock_begin();
    int error = ds__os_thread_start(&ds__activity_run.thread, ds__activity_main, NULL);
    if (error) {
        ds__activity_free();
        return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            ds__g.driver[b]->activity_set(1);
    return DS_OK;
}

/* Wakes the thread and waits until it has handed records over. */
static void ds__activity_ask(void) {
    uint32_t mine = atomic_fetch_add(&ds__activity_run.asked, 1) + 1;
    ds__activity_wake();
    uint32_t answered;
    while ((int32_t)((answered = atomic_load(&ds__activity_run.answered)) - mine) < 0)
        ds__futex_wait(&ds__activity_run.answered, answered, DS__FOREVER);
}

/* Lets the times of GPUs come from CUPTI (records 1), or from events again. */
static ds_result ds__activity_source_set(int records) {
    const ds__driver *driver = ds__driver_of(ds_cuda(0));
    if (driver)
        return driver->activity_source(records);
    return records ? ds__fail(DS_ERR_UNSUPPORTED,
                              "trace: \"cupti\" needs a CUDA device, and there is none; leave it "
                              "out")
                   : DS_OK;
}

/* Starts the recording of a client. records: 1: times of GPUs come from CUPTI. */
static ds_result ds__activity_client_start(int client, const ds_activity_desc *desc, int records) {
    ds__activity_client *c = &ds__activity_run.client[client];
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b] && ds__g.driver[b]->fabric())
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "activity is not recorded with a fabric, whose operations take "
                            "virtual time");
    int idle = 0;
    if (!atomic_compare_exchange_strong(&ds__activity_run.busy, &idle, 1))
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "a recording starts or ends on another thread; try again afterwards");
    if (atomic_load(&c->state) != DS__ACTIVITY_OFF) {
        atomic_store(&ds__activity_run.busy, 0);
        return ds__fail(DS_ERR_ILLEGAL_STATE, "a recording runs already; end it first");
    }
    size_t capacity = desc->capacity ? desc->capacity : DS__ACTIVITY_USUAL;
    ds_result r = DS_OK;
    if (records)
        r = ds__activity_source_set(1);
    if (r == DS_OK && !ds__activity_any()) {
        r = ds__activity_begin(capacity);
        if (r < 0 && records)
            DS_IGNORE(ds__activity_source_set(0));
    } else if (r == DS_OK && capacity > atomic_load(&ds__activity.capacity)) {
        atomic_store(&ds__activity_run.wanted, capacity);
        ds__activity_ask();
    }
    if (r == DS_OK) {
        c->desc = *desc;
        c->from = atomic_load(&ds__activity.begun);
        atomic_store(&c->upto, UINT64_MAX);
        atomic_store(&c->state, DS__ACTIVITY_ON);
        ds__activity_kinds_set();
        atomic_store(&ds__activity.on, 1);
    }
    atomic_store(&ds__activity_run.busy, 0);
    return r;
}

/* Waits for the recorded operations of a client whose state is ON, and ends it. */
static ds_result ds__activity_client_stop(int client) {
    ds__activity_client *c = &ds__activity_run.client[client];
    int idle = 0;
    while (!atomic_compare_exchange_strong(&ds__activity_run.busy, &idle, 1)) {
        ds__os_sleep(DS__ACTIVITY_END_NS);
        idle = 0;
    }
    int on = DS__ACTIVITY_ON;
    if (!atomic_compare_exchange_strong(&c->state, &on, DS__ACTIVITY_ENDING)) {
        atomic_store(&ds__activity_run.busy, 0);
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no recording runs");
    }
    ds__activity_kinds_set();
    int last = 1;
    for (int i = 0; i < DS__ACTIVITY_CLIENTS; i++)
        last &= atomic_load(&ds__activity_run.client[i].state) != DS__ACTIVITY_ON;
    if (last)
        atomic_store(&ds__activity.on, 0);
    ds__spinlock_lock(&ds__activity.lock);
    ds__activity.mark = atomic_load(&ds__activity.begun);
    ds__activity.left = ds__activity.mark - ds__activity.ended;
    atomic_store(&c->upto, ds__activity.mark);
    ds__spinlock_unlock(&ds__activity.lock);
    atomic_store(&ds__activity_run.ending, (uint32_t)client + 1);
    ds__activity_wake();
    while (atomic_load(&ds__activity_run.ending))
        ds__futex_wait(&ds__activity_run.ending, (uint32_t)client + 1, DS__FOREVER);
    if (client == DS__ACTIVITY_TRACE)
        DS_IGNORE(ds__activity_source_set(0));
    if (last) {
        atomic_store(&ds__activity_run.ends, 1);
        ds__activity_wake();
        ds__os_thread_join(ds__activity_run.thread);
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            if (ds__g.driver[b])
                ds__g.driver[b]->activity_set(0);
        ds__activity_free();
    }
    atomic_store(&ds__activity_run.busy, 0);
    return DS_OK;
}

/* Asks the thread to hand records over soon. */
DS__SEAM static void ds__activity_urge(void) {
    if (atomic_exchange(&ds__activity_run.urged, 1) == 0)
        ds__activity_wake();
}

static ds_result ds__activity_client_flush(int client) {
    atomic_fetch_add(&ds__activity_run.users, 1);
    int on = atomic_load(&ds__activity_run.client[client].state) == DS__ACTIVITY_ON;
    if (on)
        ds__activity_ask();
    atomic_fetch_sub(&ds__activity_run.users, 1);
    return on ? DS_OK : ds__fail(DS_ERR_ILLEGAL_STATE, "no recording runs");
}

/* Ends the recordings, at shutdown after all work. */
static void ds__activity_shutdown(void) {
    for (int i = 0; i < DS__ACTIVITY_CLIENTS; i++)
        if (atomic_load(&ds__activity_run.client[i].state) == DS__ACTIVITY_ON)
            DS_IGNORE(ds__activity_client_stop(i));
}

/* Frees the names of kernels, which stay until shutdown. */
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
    return ds__activity_client_start(DS__ACTIVITY_PROGRAM, desc, 0);
}

DSDEF ds_result(ds_activity_flush)(void) {
    DS__ENTER("ds_activity_flush");
    return ds__activity_client_flush(DS__ACTIVITY_PROGRAM);
}

DSDEF ds_result(ds_activity_stop)(void) {
    DS__ENTER("ds_activity_stop");
    return ds__activity_client_stop(DS__ACTIVITY_PROGRAM);
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
    return ds__activity_kind_name(kind);
}

#endif
