/* cpu/shared_event.h - events shared between processes: progress counters and proxies.

   Publishes how far the streams of this process have come (ds__cpu_progress_for,
   ds__cpu_progress_pass). Mirrors the progress of streams of other processes (ds__cpu_proxy_of,
   ds__cpu_mirror). cpu/event.h and cpu/watcher.h use both.

   Policy:
   1. The latest record of such an event is in the shared-memory registry (ds__registry) of the
      event's owner. It consists of a progress counter and a number. They mean all work up to that
      number of a stream in some process.
   2. A record is an operation of its own. It writes to the progress counter how far its stream has
      come.
   3. A foreign progress counter has a stream object in this process, its proxy, which only counts.
      A stream that waits for a foreign record is therefore parked as usual. A token of a proxy
      stays valid.
   4. The watcher is a thread that the first such wait starts. It looks at the progress counters
      that are waited for and sleeps on the bells of their registries.
   5. If the process of a progress counter has ended, the operations after the last one passed count
      as failed.

   Invariants: numbers of a proxy never decrease, also when the proxy is reused for another progress
   counter. A registry stays open while operations that write to it are pending (`pending`).
   Locks: the mutex of the shared-memory registries guards progress counters, proxies and the `done`
   of proxies. ds__cpu_progress_for takes it, ds__cpu_progress_pass and ds__cpu_progress_unused do
   without it, and the other functions expect it. ds__cpu_mirror takes `wait_lock` and the pool's
   lock under it.
   Threads: caller's threads and the watcher. ds__cpu_progress_pass runs on the owner of the
   stream. */
#ifndef DS__CPU_SHARED_EVENT_H
#define DS__CPU_SHARED_EVENT_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"

/* The progress counter of a stream in a registry. */
struct ds__cpu_progress {
    struct ds__cpu_progress *next; /* in the list of the stream */
    struct ds__cpu_progress *all;  /* in the list of all progress counters */
    ds__registry *registry;        /* valid while a registry with this serial is open */
    uint64_t serial;
    ds__cpu_stream *stream;
    ds__progress *at;
    uint32_t index;
    int failing; /* 1: the last number written to the progress counter has failed */
};

struct ds__cpu_proxy {
    ds__cpu_stream stream;
    struct ds__cpu_proxy *all;
    struct ds__cpu_proxy *next_watched;
    ds__registry *registry;
    uint64_t serial;
    uint64_t base;   /* added to the progress counter's numbers */
    uint64_t wanted; /* the highest number for which this process waits */
    uint32_t counter;
    int is_watched;
};

#define DS__CPU_PROXY 4 /* kind of its stream */

/* Returns the number with these lowest 40 bits that is nearest to `near`. */
static uint64_t ds__cpu_whole(uint64_t low, uint64_t known) {
    return known + (uint64_t)((int64_t)((low - known) << 24) >> 24);
}

/* Returns the progress counter of a stream in a registry, or NULL. The mutex is held. */
static ds__cpu_progress *ds__cpu_progress_of(const ds__cpu_stream *s, const ds__registry *b) {
    ds__cpu_progress *l = s->shared;
    while (l && l->serial != b->serial)
        l = l->next;
    return l;
}

/* Gives the stream a progress counter in the registry. The mutex is held. */
static ds_result ds__cpu_progress_create(ds__cpu_stream *s, ds__registry *b,
                                         ds__cpu_progress **out) {
    uint32_t index = 0;
    ds_result r = ds__registry_progress_add(b, &index);
    if (r < 0)
        return r;
    ds__cpu_progress *l = s->shared;
    /* the object of a progress counter in a closed registry can be used again */
    while (l && ds__registry_of(l->serial))
        l = l->next;
    if (!l) {
        l = ds__cpu_raw(sizeof *l);
        if (!l)
            return ds__registry_short();
        l->stream = s;
        l->next = s->shared;
        l->all = ds__cpu.progress;
        s->shared = ds__cpu.progress = l;
    }
    l->registry = b;
    l->serial = b->serial;
    l->index = index;
    l->at = &b->page->progress[index];
    l->failing = 0;
    atomic_store(&l->at->done, atomic_load(&s->done));
    *out = l;
    return DS_OK;
}

/* Gives the progress counter for a record of the event on the stream, and counts the record as
   pending. ds__cpu_progress_pass or ds__cpu_progress_unused must follow. */
static ds_result ds__cpu_progress_for(ds__cpu_stream *s, const ds__cpu_event *e,
                                      ds__cpu_progress **out) {
    ds_result r = DS_OK;
    ds__registries_lock();
    *out = ds__cpu_progress_of(s, e->registry);
    if (!*out)
        r = ds__cpu_progress_create(s, e->registry, out);
    if (r == DS_OK)
        atomic_fetch_add(&e->registry->pending, 1);
    ds__registries_unlock();
    return r;
}

/* Undoes the count of ds__cpu_progress_for; the progress counter may be NULL. */
static void ds__cpu_progress_unused(const ds__cpu_progress *l) {
    if (l)
        atomic_fetch_sub(&l->registry->pending, 1);
}

/* Writes to the progress counter that the stream has come to a record, and rings the bell if
   another process waits. */
static void ds__cpu_progress_pass(ds__cpu_progress *l, uint64_t number, int failed) {
    ds__registry_page *page = l->registry->page;
    if (failed) {
        if (!l->failing)
            atomic_store(&l->at->failed_from, number);
        atomic_store(&l->at->failed_upto, number);
    }
    l->failing = failed;
    atomic_store(&l->at->done, number);
    if (atomic_load(&page->waiters)) {
        atomic_fetch_add(&page->bell, 1);
        ds__futex_wake_shared(&page->bell);
    }
    atomic_fetch_sub(&l->registry->pending, 1); /* the registry may be closed after this */
}

/* Takes over the numbers of the progress counter that have failed, if there are any. The mutex is
   held. */
static void ds__cpu_mirror_failed(ds__cpu_proxy *p) {
    ds__progress *at = &p->registry->page->progress[p->counter];
    uint64_t failed_upto = p->base + atomic_load(&at->failed_upto);
    if (failed_upto == p->base)
        return;
    uint64_t failed_from = p->base + atomic_load(&at->failed_from);
    ds__cpu_past *past = atomic_load(&p->stream.past);
    p->stream.had_failure = 1;
    /* the known range has grown */
    if (past && past->from == failed_from) {
        atomic_store(&past->upto, failed_upto);
        return;
    }
    ds__cpu_failure *f =
        past ? past->failure
             : ds__cpu_failure_create(DS_ERR_FAILED,
                                      "an operation before the event's record failed in process %d",
                                      (int)(atomic_load(&at->who) & 0xffffff));
    ds__cpu_stays_failed(&p->stream, f, failed_from, failed_upto);
}

/* Takes over the progress of the progress counter. If its process has ended before it passed
   `upto`, the numbers after the last one passed fail. The mutex is held. */
static void ds__cpu_mirror(ds__cpu_proxy *p, uint64_t upto) {
    ds__progress *at = &p->registry->page->progress[p->counter];
    if (atomic_load(&p->stream.failure))
        return;
    uint64_t who = atomic_load(&at->who);
    uint64_t done = p->base + atomic_load(&at->done);
    /* read again: the process may have passed numbers before it ended */
    if (done < upto && !ds__registry_alive(p->registry, who >> 24))
        done = p->base + atomic_load(&at->done);
    else
        who = 0;
    ds__cpu_mirror_failed(p);
    if (who && done < upto) {
        ds__cpu_fail_stream(
            &p->stream,
            ds__cpu_failure_create(
                DS_ERR_PEER_DIED,
                "process %d, which recorded the event, ended before it reached the record",
                (int)(who & 0xffffff)),
            done + 1);
        done = UINT64_MAX;
    }
    if (done > atomic_load(&p->stream.done))
        ds__cpu_pass(&p->stream, done);
}

/* Returns a new proxy, which has no progress counter yet, or NULL. The mutex is held. */
static ds__cpu_proxy *ds__cpu_proxy_create(void) {
    ds__cpu_proxy *p = ds__cpu_raw(sizeof *p);
    if (!p)
        return NULL;
    p->all = ds__cpu.proxies;
    ds__cpu.proxies = p;
    p->stream.kind = DS__CPU_PROXY;
    atomic_store(&p->stream.state, DS__CPU_COUNTS);
    return p;
}

/* Gives the proxy of a progress counter. A proxy of a closed registry is used again, unless it is
   watched or has ever failed. The mutex is held. */
static ds_result ds__cpu_proxy_of(ds__registry *b, uint32_t counter, ds__cpu_proxy **out) {
    ds__cpu_proxy *p = ds__cpu.proxies;
    ds__cpu_proxy *spare = NULL;
    for (; p && (p->serial != b->serial || p->counter != counter); p = p->all)
        if (!p->is_watched && !p->stream.had_failure && !ds__registry_of(p->serial))
            spare = p;
    *out = p;
    if (p)
        return DS_OK;
    p = spare ? spare : ds__cpu_proxy_create();
    if (!p)
        return ds__registry_short();
    p->registry = b;
    p->serial = b->serial;
    p->counter = counter;
    p->base = atomic_load(&p->stream.done); /* numbers continue, so that old tokens stay valid */
    p->wanted = 0;
    *out = p;
    return DS_OK;
}

#endif
