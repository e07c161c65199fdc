/* ranks/progress.h - progress of operations.

   Starts the operations of a group that have arrived, tests them and passes them on
   (ds__group_drive), begins an operation when its stream gets there (ds__rop_begin), and runs the
   progress thread (ds__ranks_main).

   Policy:
   1. Only the first operation that is not complete is tested: operations pass in order, and any
      test lets the engine work on all of them.
   2. The thread on which a small operation arrives starts it, and tests it for up to
      DS__RANKS_SPIN_NS. On an idle stream that is the calling thread, so the operation is often
      complete when the call returns. A large operation is left to the progress thread and to hosts
      that wait: the start alone may take milliseconds, for which the caller can enqueue other work.
   3. A host thread that waits tests until its work is complete, or no test has made progress for
      100 us. The progress thread tests without a pause for 20 us after progress, then at intervals
      that grow to a millisecond. It leaves the work to host threads that drive groups. It sleeps
      20 ms after the last operation; until then the caller of an operation need not wake it.
   4. Once in a millisecond a group looks for operations beyond their time limit, and asks whether
      another rank has told of a failure.

   Invariants: `open` of base/drive.h counts operations that have arrived and are listed. `arrived`
   is the last thing that ds__rop_begin writes to an operation; the group then stays because of
   `users`.
   Locks: see ranks/types.h. ds__rop_begin may run under the put lock of a stream and only tries the
   lock of its group.
   Threads: any; one progress thread, from the first group to ds_shutdown. */
#ifndef DS__RANKS_PROGRESS_H
#define DS__RANKS_PROGRESS_H

#include "types.h"
#include "failure.h"
#include "compare.h"
#include "record.h"

/* Fails the group if another rank has told of a failure. `lock` is held. */
static void ds__group_hear(ds__group *g) {
    char reason[DS__RANKS_REASON];
    char text[DS__RANKS_REASON + 64];
    int rank = 0;
    ds_result r = g->engine->hear(g->comm, reason, &rank);
    if (r == DS_OK)
        return;
    snprintf(text, sizeof text, "rank %d: %s", rank, reason);
    text[DS__RANKS_REASON - 1] = '\0';
    ds__group_fail(g, r, text, 0);
}

/* Fails the group with the error text that the engine has stored for this thread, or with the
   failure of another rank, because of which the engine has failed here. */
static void ds__group_fail_engine(ds__group *g, const ds__rop *op, ds_result code) {
    ds__group_hear(g);
    ds__group_fail_op(g, op, code, "%s", ds__quiet_reason());
}

/* Starts the engine's next step of an operation: the comparison, or the operation itself. */
static ds_result ds__rop_start(ds__group *g, ds__rop *op, uint64_t now) {
    if (g->engine->enqueue) {
        op->state = DS__ROP_STARTED;
        return DS_OK;
    }
    if (op->state == DS__ROP_LISTED && g->flags & DS_RANKS_COMPARE &&
        op->call.kind != DS__NET_EXCHANGE) {
        op->state = DS__ROP_COMPARING;
        return ds__compare_start(g, op);
    }
    op->state = DS__ROP_STARTED;
    ds__rop_status(g, op, DS__RECORDER_STARTED, now);
    return g->engine->start(g->comm, &op->net, &op->request);
}

/* Starts operations that have arrived, in the order of the list. `lock` is held. */
static void ds__group_start_ops(ds__group *g, uint64_t now) {
    while (g->start && !atomic_load(&g->failed)) {
        ds__rop *op = g->start;
        int arrived = atomic_load(&op->arrived);
        if (!arrived)
            return;
        if (arrived == 2) {
            ds__group_fail_op(g, op, DS_ERR_FAILED,
                              "its stream failed before the operation, so this rank cannot take "
                              "part");
            return;
        }
        ds_result r = ds__rop_start(g, op, now);
        if (r < 0) {
            op->state = DS__ROP_LISTED; /* nothing was started */
            ds__group_fail_engine(g, op, r);
            return;
        }
        g->start = op->next;
    }
}

/* Lists the operations that were enqueued since the last time. `lock` is held. */
static void ds__group_list_ops(ds__group *g) {
    ds__spinlock_lock(&g->list_lock);
    ds__rop *first = g->fresh;
    ds__rop *last = g->last_fresh;
    g->fresh = g->last_fresh = NULL;
    ds__spinlock_unlock(&g->list_lock);
    if (!first)
        return;
    if (g->tail)
        g->tail->next = first;
    else
        g->head = first;
    g->tail = last;
    if (!g->start)
        g->start = first;
}

/* DS_OK: complete. DS_NOT_READY: pending. Negative: the engine has failed. */
static ds_result ds__rop_test(ds__group *g, ds__rop *op) {
    if (!g->engine->enqueue)
        return g->engine->test(g->comm, &op->request);
    return g->driver->timeline_get(g->timeline) >= op->number ? DS_OK : DS_NOT_READY;
}

/* Tests the first operation. Returns 1 if it is complete. `lock` is held. */
static int ds__group_test_op(ds__group *g, uint64_t now) {
    ds__rop *op = g->head;
    if (!op || op == g->start || atomic_load(&g->failed))
        return 0;
    ds_result r = ds__rop_test(g, op);
    if (r == DS_NOT_READY)
        return 0;
    if (g->engine->enqueue) {
        ds__group_hear(g); /* the operation may have ended because of an error */
        if (atomic_load(&g->failed))
            return 0;
    }
    if (r == DS_OK && op->state == DS__ROP_COMPARING) {
        r = ds__compare_end(g, op);
        if (r == DS_OK)
            r = ds__rop_start(g, op, now);
        if (r == DS_OK)
            return 0;
    }
    if (r < 0) {
        op->state = DS__ROP_LISTED; /* the engine has abandoned it */
        ds__group_fail_engine(g, op, r);
        return 0;
    }
    ds__rop_status(g, op, DS__RECORDER_COMPLETE, now);
    return 1;
}

/* Returns an operation to the free list. */
static void ds__rop_give_back(ds__rop *op) {
    ds__group *g = op->group;
    ds__spinlock_lock(&g->list_lock);
    op->next = g->free_ops;
    g->free_ops = op;
    ds__spinlock_unlock(&g->list_lock);
}

/* Takes the first operation, which has arrived, from the list. `lock` is held. */
static void ds__group_take_op(ds__group *g, int reusable) {
    ds__rop *op = g->head;
    g->head = op->next;
    if (!g->head)
        g->tail = NULL;
    atomic_fetch_sub(&ds__drive.open, 1);
    if (reusable)
        ds__rop_give_back(op);
}

/* Passes the operations that are complete. `lock` is held. */
static void ds__group_pass_ops(ds__group *g, uint64_t now) {
    uint64_t passed = 0;
    while (ds__group_test_op(g, now)) {
        ds__rop *op = g->head;
        passed = op->number;
        /* If the next test fails, this operation has not failed. */
        atomic_store(&g->passed, passed);
        if (op->word)
            __atomic_store_n(op->word, 1, __ATOMIC_SEQ_CST);
        ds__group_take_op(g, 1);
    }
    if (passed)
        g->driver->timeline_pass(g->timeline, passed);
}

/* After a failure, takes the operations that have arrived from the list. Those on which the engine
   may still work are never used again. `lock` is held. */
static void ds__group_clear_ops(ds__group *g) {
    uint64_t now = ds__now_ns();
    ds__rop *kept = NULL;
    ds__rop *last = NULL;
    while (g->head) {
        ds__rop *op = g->head;
        if (atomic_load(&op->arrived)) {
            ds__group_drop_op(g, op, now);
            ds__group_take_op(g, op->state == DS__ROP_LISTED || g->engine->cancels);
            continue;
        }
        g->head = op->next;
        op->next = NULL;
        if (last)
            last->next = op;
        else
            kept = op;
        last = op;
    }
    g->head = g->start = kept;
    g->tail = last;
}

/* Looks for operations beyond their time limit, and for failures of other ranks. `lock` is held. */
static void ds__group_watch(ds__group *g, uint64_t now) {
    g->heard = now;
    ds__group_hear(g);
    const ds__rop *first = g->head;
    for (ds__rop *op = g->head; op && !atomic_load(&g->failed); op = op->next) {
        if (!op->arrival && atomic_load(&op->arrived))
            op->arrival = now;
        if (!op->arrival || op->call.timeout_ns == DS_RANKS_FOREVER ||
            now - op->arrival < op->call.timeout_ns)
            continue;
        if (op == first || atomic_load(&first->arrived))
            ds__group_fail_op(g, op, DS_ERR_TIMEOUT,
                              "not complete within %llu ms; at least one other rank has not "
                              "arrived, or does not answer",
                              (unsigned long long)(op->call.timeout_ns / 1000000));
        else
            ds__group_fail_op(g, op, DS_ERR_TIMEOUT,
                              "not started within %llu ms, because operation %llu, %s at %s:%d, "
                              "comes first and its stream has not reached it",
                              (unsigned long long)(op->call.timeout_ns / 1000000),
                              (unsigned long long)(first->number - g->base), first->call.fn,
                              first->call.site.file ? first->call.site.file : "?",
                              first->call.site.file ? first->call.site.line : 0);
    }
}

/* Drives the group once. `lock` is held. */
static void ds__group_step(ds__group *g) {
    uint64_t now = ds__now_ns();
    ds__library_scope scope;
    ds__quiet outer = ds__quiet_begin();
    if (g->gpu)
        g->driver->library_begin(g->own[0].index, &scope);
    ds__group_list_ops(g);
    ds__group_start_ops(g, now);
    ds__group_pass_ops(g, now);
    if (!atomic_load(&g->failed) && g->head && now - g->heard > DS__RANKS_ABORT_MS * 1000000u)
        ds__group_watch(g, now);
    if (atomic_load(&g->failed))
        ds__group_clear_ops(g);
    if (g->gpu)
        g->driver->library_end(&scope);
    ds__quiet_end(&outer);
}

/* Drives the group, unless another thread does. The caller has a pin, or has raised `users`. */
static void ds__group_drive(ds__group *g) {
    uint32_t seen;
    do {
        if (!ds__mutex_trylock(&g->lock))
            return;
        seen = atomic_load(&g->news);
        ds__group_step(g);
        ds__mutex_unlock(&g->lock);
    } while (atomic_load(&g->news) != seen);
}

/* Wakes the progress thread. lazily: only if it sleeps without a time limit, since the caller will
   probably wait and drive the groups itself. */
static void ds__ranks_wake(int lazily) {
    uint32_t asleep = atomic_load(&ds__ranks.asleep);
    if (asleep == DS__RANKS_AWAKE || (lazily && asleep == DS__RANKS_NAPS) ||
        atomic_load(&ds__ranks.hosts))
        return;
    atomic_fetch_add(&ds__ranks.word, 1);
    ds__futex_wake(&ds__ranks.word, 1);
}

/* The stream of an operation has reached it (base/operation.h). */
static int ds__rop_begin(ds__remote *remote, int how) {
    ds__rop *op = (ds__rop *)(void *)remote;
    ds__group *g = op->group;
    uint64_t number = op->number;
    uint64_t enqueued = op->enqueued;
    int failed = how == DS__REMOTE_FAILED;
    int in_host_func = g->gpu && how != DS__REMOTE_AT_ONCE; /* CUDA forbids calls there */
    int drives = failed || (op->spin && !in_host_func);
    int spin = drives && !failed;
    atomic_fetch_add(&g->users, 1);
    atomic_fetch_add(&ds__drive.open, 1);
    atomic_store(&op->arrived, failed ? 2 : 1);
    atomic_fetch_add(&g->news, 1);
    if (drives)
        ds__group_drive(g);
    uint64_t since = spin && how != DS__REMOTE_AT_ONCE ? ds__now_ns() : enqueued;
    while (atomic_load(&g->passed) < number && spin && !atomic_load(&g->failed) &&
           ds__now_ns() - since < DS__RANKS_SPIN_NS)
        ds__group_drive(g);
    int over = atomic_load(&g->passed) >= number;
    if (!over)
        ds__ranks_wake(how == DS__REMOTE_AT_ONCE);
    atomic_fetch_sub(&g->users, 1);
    return over;
}

/* Gives groups of the list from `first` on, which stay until `users` is lowered; at most `most`. */
static size_t ds__ranks_collect(size_t first, size_t most, ds__group **out) {
    size_t count = 0;
    ds__mutex_lock(&ds__ranks.lock);
    for (ds__group *g = ds__ranks.groups; g && count < most; g = g->next) {
        if (first) {
            first--;
            continue;
        }
        atomic_fetch_add(&g->users, 1);
        out[count++] = g;
    }
    ds__mutex_unlock(&ds__ranks.lock);
    return count;
}

/* Drives all groups. Returns 0 if another thread does so. No lock of all threads is held, since the
   engine may call CUDA. */
static int ds__ranks_step(void) {
    enum { AT_ONCE = 8 };

    ds__group *list[AT_ONCE];
    size_t first = 0;
    size_t count = AT_ONCE;
    if (atomic_exchange(&ds__ranks.stepping, 1))
        return 0;
    for (; count == AT_ONCE; first += count) {
        count = ds__ranks_collect(first, AT_ONCE, list);
        for (size_t i = 0; i < count; i++) {
            ds__group_drive(list[i]);
            atomic_fetch_sub(&list[i]->users, 1);
        }
    }
    atomic_store(&ds__ranks.stepping, 0);
    return 1;
}

/* Drives all groups once (base/drive.h); waits if another thread does so, which may be noting a
   failure. */
static void ds__ranks_look(void) {
    ds__tls.mute++;
    while (atomic_load(&ds__drive.open) && !ds__ranks_step())
        ds__os_yield();
    ds__tls.mute--;
}

/* Drives all groups, and sets *since to the time if that made progress: an engine that moves data
   needs more time for a test than one that waits. Returns the time. */
static uint64_t ds__ranks_step_timed(uint64_t now, uint64_t *since) {
    enum { BUSY_NS = 3000 };

    int open = atomic_load(&ds__drive.open);
    int stepped = ds__ranks_step();
    uint64_t after = ds__now_ns();
    if ((stepped && after - now > BUSY_NS) || atomic_load(&ds__drive.open) < open)
        *since = after;
    else if (!stepped)
        ds__os_yield();
    return after;
}

/* A host thread waits (base/drive.h). */
static void ds__ranks_wait(ds_result (*query_fn)(void *object), void *object) {
    enum { PATIENCE_NS = 100000 };

    uint64_t now = ds__now_ns();
    uint64_t since = now;
    atomic_fetch_add(&ds__ranks.hosts, 1);
    while (ds__tls.awaited && atomic_load(&ds__drive.open) && now - since < PATIENCE_NS &&
           query_fn(object) == DS_NOT_READY)
        now = ds__ranks_step_timed(now, &since);
    if (atomic_fetch_sub(&ds__ranks.hosts, 1) == 1 && atomic_load(&ds__drive.open))
        ds__ranks_wake(1); /* operations that arrived meanwhile have not woken it */
}

/* Sleeps until it is woken, or for at most this time. open: of base/drive.h, when the caller chose
   the time. */
static void ds__ranks_sleep(int open, uint64_t ns) {
    uint32_t word = atomic_load(&ds__ranks.word);
    atomic_store(&ds__ranks.asleep, ns == DS__FOREVER ? DS__RANKS_SLEEPS : DS__RANKS_NAPS);
    /* an operation that has arrived since then may have found the thread awake */
    if (atomic_load(&ds__drive.open) <= open && !atomic_load(&ds__ranks.quit))
        ds__futex_wait(&ds__ranks.word, word, ns);
    atomic_store(&ds__ranks.asleep, DS__RANKS_AWAKE);
}

static void *ds__ranks_main(void *unused) {
    enum { SPIN_NS = 20000, LINGER_NS = 20000000, SHORT_NAP_NS = 20000, LONG_NAP_NS = 1000000 };

    uint64_t nap = SHORT_NAP_NS;
    uint64_t now = ds__now_ns();
    uint64_t since = now; /* of the last progress */
    int open = 0;
    (void)unused;
    ds__os_library_thread();
    while (!atomic_load(&ds__ranks.quit)) {
        uint64_t before = since;
        int was = open;
        open = atomic_load(&ds__drive.open);
        if (open && !atomic_load(&ds__ranks.hosts))
            now = ds__ranks_step_timed(ds__now_ns(), &since);
        else
            now = ds__now_ns();
        if (open > was)
            since = now;
        if (since != before)
            nap = SHORT_NAP_NS;
        if (open && now - since < SPIN_NS && !atomic_load(&ds__ranks.hosts)) {
            ds__os_yield();
            continue;
        }
        ds__ranks_sleep(open, !open && now - since > LINGER_NS ? DS__FOREVER : nap);
        nap = nap + nap / 4 < LONG_NAP_NS ? nap + nap / 4 : LONG_NAP_NS;
    }
    return NULL;
}

/* Starts the progress thread, unless it runs. ds__ranks.lock is held. */
static ds_result ds__ranks_thread_start(void) {
    if (ds__ranks.thread_started)
        return DS_OK;
    int error = ds__os_thread_start(&ds__ranks.thread, ds__ranks_main, NULL);
    if (error)
        return ds__fail(DS_ERR_SYSTEM, "the progress thread of process groups was not started: %s",
                        strerror(error));
    ds__ranks.thread_started = 1;
    return DS_OK;
}

static void ds__ranks_thread_end(void) {
    if (!ds__ranks.thread_started)
        return;
    atomic_store(&ds__ranks.quit, 1);
    atomic_fetch_add(&ds__ranks.word, 1);
    ds__futex_wake(&ds__ranks.word, 1);
    ds__os_thread_join(ds__ranks.thread);
    ds__ranks.thread_started = 0;
    atomic_store(&ds__ranks.quit, 0);
}

/* Lock a group for an operation between hosts. An engine that enqueues operations has a lock of its
   own, and `start` may wait. */
static void ds__net_lock(ds__group *g) {
    if (!g->engine->enqueue)
        ds__mutex_lock(&g->lock);
}

static void ds__net_unlock(ds__group *g) {
    if (!g->engine->enqueue)
        ds__mutex_unlock(&g->lock);
}

/* Runs an operation of the engine between hosts on this thread. */
static ds_result ds__net_wait(ds__group *g, const ds__net_op *net, uint64_t deadline,
                              const char *what) {
    ds__net_request request = { { NULL } };
    ds__net_op timed = *net;
    uint64_t nap = 1000;
    timed.deadline = deadline;
    ds__net_lock(g);
    ds_result r = g->engine->start(g->comm, &timed, &request);
    ds__net_unlock(g);
    if (r < 0)
        return r;
    for (;;) {
        ds__net_lock(g);
        r = g->engine->test(g->comm, &request);
        int late = r == DS_NOT_READY && ds__now_ns() > deadline;
        if (late)
            g->engine->abandon(g->comm, &request);
        ds__net_unlock(g);
        if (late)
            return ds__fail(DS_ERR_TIMEOUT,
                            "%s: not all %d ranks of group \"%s\" have called within the time "
                            "limit; this is rank %d",
                            what, g->size, ds__group_name(g), g->rank);
        if (r != DS_NOT_READY)
            return r;
        ds__os_sleep(nap);
        nap = nap < 500000 ? nap * 2 : nap;
    }
}

/* Returns the time at which the limit of an operation ends. */
static uint64_t ds__rop_deadline(const ds__rop *op) {
    uint64_t limit = op->call.timeout_ns;
    return limit > UINT64_MAX - op->enqueued ? UINT64_MAX : op->enqueued + limit;
}

/* Compares an operation of an engine that enqueues its operations with those of the other ranks. */
static ds_result ds__rop_compare(ds__group *g, ds__rop *op) {
    ds__net_op gather;
    ds_result r = ds__compare_prepare(g, op, &gather);
    if (r == DS_OK)
        r = ds__net_wait(g, &gather, ds__rop_deadline(op), "comparison");
    return r == DS_OK ? ds__compare_end(g, op) : r;
}

#endif
