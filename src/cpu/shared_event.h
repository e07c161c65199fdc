/* cpu/shared_event.h - events shared between processes: lanes and proxies.

   Publishes how far the streams of this process have come (ds__cpu_lane_for, ds__cpu_lane_pass).
   Mirrors the progress of streams of other processes (ds__cpu_proxy_of, ds__cpu_mirror).
   cpu/event.h and cpu/watcher.h use both.

   Policy:
   1. The latest record of such an event is in the shared-memory registry (ds__registry) of the
      event's owner. It consists of a lane and a number. They mean all work up to that number of
      a stream in some process.
   2. A record is an operation of its own. It writes to the lane how far its stream has come.
   3. A foreign lane has a stream object in this process, its proxy, which only counts. A stream
      that waits for a foreign record is therefore parked as usual. A token of a proxy stays
      valid.
   4. The watcher is a thread that the first such wait starts. It looks at the lanes that are
      waited for and sleeps on the bells of their registries.
   5. If the process of a lane has ended, the operations after the last one passed count as
      failed.

   Invariants: numbers of a proxy never decrease, also when the proxy is reused for another lane.
   A registry stays open while operations that write to it are pending (`pending`).
   Locks: the mutex of the shared-memory registries guards lanes, proxies and the `done` of
   proxies. ds__cpu_lane_for takes it, ds__cpu_lane_pass and ds__cpu_lane_unused do without it,
   and the other functions expect it. ds__cpu_mirror takes `wait_lock` and the pool's lock under
   it.
   Threads: caller's threads and the watcher. ds__cpu_lane_pass runs on the owner of the stream. */
#ifndef DS__CPU_SHARED_EVENT_H
#define DS__CPU_SHARED_EVENT_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"

/* A stream's lane on a board. */
struct ds__cpu_lane {
    struct ds__cpu_lane *next; /* in the list of the stream */
    struct ds__cpu_lane *all;  /* in the list of all lanes */
    ds__registry *board;       /* while there is one with this serial */
    uint64_t serial;
    ds__cpu_stream *stream;
    ds__lane *at;
    uint32_t index;
    int failing; /* the last number on it has failed */
};

struct ds__cpu_proxy {
    ds__cpu_stream stream;
    struct ds__cpu_proxy *all;
    struct ds__cpu_proxy *next_watched;
    ds__registry *board;
    uint64_t serial;
    uint64_t base;   /* added to the lane's numbers */
    uint64_t wanted; /* the highest number that somebody waits for */
    uint32_t lane;
    int is_watched;
};

#define DS__CPU_PROXY 4 /* kind of its stream */

/* The number whose lowest 40 bits these are, near another. */
static uint64_t ds__cpu_whole(uint64_t low, uint64_t near) {
    return near + (uint64_t)((int64_t)((low - near) << 24) >> 24);
}

/* The lane of a stream on a board; NULL: there is none yet. The mutex is held. */
static ds__cpu_lane *ds__cpu_lane_of(const ds__cpu_stream *s, const ds__registry *b) {
    ds__cpu_lane *l = s->shared;
    while (l && l->serial != b->serial)
        l = l->next;
    return l;
}

/* The mutex is held. */
static ds_result ds__cpu_lane_make(ds__cpu_stream *s, ds__registry *b, ds__cpu_lane **out) {
    uint32_t index = 0;
    ds_result r = ds__registry_lane(b, &index);
    if (r < 0)
        return r;
    ds__cpu_lane *l = s->shared;
    /* one of a board that is closed can be used again */
    while (l && ds__registry_of(l->serial))
        l = l->next;
    if (!l) {
        if (!(l = ds__cpu_raw(sizeof *l)))
            return ds__registry_short();
        l->stream = s;
        l->next = s->shared;
        l->all = ds__cpu.lanes;
        s->shared = ds__cpu.lanes = l;
    }
    l->board = b;
    l->serial = b->serial;
    l->index = index;
    l->at = &b->sheet->lane[index];
    l->failing = 0;
    atomic_store(&l->at->done, atomic_load(&s->done));
    *out = l;
    return DS_OK;
}

/* The lane for a record of the event on the stream; counts the operation that will be put there. */
static ds_result ds__cpu_lane_for(ds__cpu_stream *s, const ds__cpu_event *e, ds__cpu_lane **out) {
    ds_result r = DS_OK;
    ds__registries_lock();
    if (!(*out = ds__cpu_lane_of(s, e->board)))
        r = ds__cpu_lane_make(s, e->board, out);
    if (r == DS_OK)
        atomic_fetch_add(&e->board->pending, 1);
    ds__registries_unlock();
    return r;
}

static void ds__cpu_lane_unused(const ds__cpu_lane *l) {
    if (l)
        atomic_fetch_sub(&l->board->pending, 1);
}

/* The stream has come to a record. */
static void ds__cpu_lane_pass(ds__cpu_lane *l, uint64_t number, int failed) {
    ds__registry_page *sheet = l->board->sheet;
    if (failed) {
        if (!l->failing)
            atomic_store(&l->at->failed_from, number);
        atomic_store(&l->at->failed_upto, number);
    }
    l->failing = failed;
    atomic_store(&l->at->done, number);
    if (atomic_load(&sheet->waiters)) {
        atomic_fetch_add(&sheet->bell, 1);
        ds__futex_wake_shared(&sheet->bell);
    }
    atomic_fetch_sub(&l->board->pending, 1); /* after this the board may go */
}

/* Takes over what the lane says; upto: the number that somebody is interested in. The mutex is
   held. */
static void ds__cpu_mirror(ds__cpu_proxy *p, uint64_t upto) {
    ds__lane *at = &p->board->sheet->lane[p->lane];
    if (atomic_load(&p->stream.failure))
        return;
    uint64_t who = atomic_load(&at->who);
    uint64_t done = p->base + atomic_load(&at->done);
    /* what it did before it ended counts */
    if (done < upto && !ds__registry_alive(p->board, who >> 24))
        done = p->base + atomic_load(&at->done);
    else
        who = 0;
    uint64_t failed_upto = p->base + atomic_load(&at->failed_upto);
    if (failed_upto != p->base) {
        uint64_t failed_from = p->base + atomic_load(&at->failed_from);
        ds__cpu_past *past = atomic_load(&p->stream.past);
        /* it goes on failing there */
        if (past && past->from == failed_from)
            atomic_store(&past->upto, failed_upto);
        else
            ds__cpu_stays_failed(
                &p->stream,
                past ? past->failure
                     : ds__cpu_failure_new(
                           DS_ERR_FAILED,
                           "an operation before the event's record failed in process %d",
                           (int)(atomic_load(&at->who) & 0xffffff)),
                failed_from, failed_upto);
        p->stream.had_failure = 1;
    }
    if (who && done < upto) {
        ds__cpu_fail_stream(
            &p->stream,
            ds__cpu_failure_new(
                DS_ERR_PEER_DIED,
                "process %d, which recorded the event, ended before it reached the record",
                (int)(who & 0xffffff)),
            done + 1);
        done = UINT64_MAX;
    }
    if (done > atomic_load(&p->stream.done))
        ds__cpu_pass(&p->stream, done);
}

/* The proxy of a lane. The mutex is held. */
static ds_result ds__cpu_proxy_of(ds__registry *b, uint32_t lane, ds__cpu_proxy **out) {
    ds__cpu_proxy *p = ds__cpu.proxies;
    ds__cpu_proxy *spare = NULL;
    for (; p && (p->serial != b->serial || p->lane != lane); p = p->all)
        if (!p->is_watched && !p->stream.had_failure && !ds__registry_of(p->serial))
            spare = p;
    if ((*out = p) != NULL)
        return DS_OK;
    p = spare;
    if (!p && (p = ds__cpu_raw(sizeof *p)) != NULL) {
        p->all = ds__cpu.proxies;
        ds__cpu.proxies = p;
        p->stream.kind = DS__CPU_PROXY;
        atomic_store(&p->stream.state, DS__CPU_COUNTS);
    }
    if (!p)
        return ds__registry_short();
    p->board = b;
    p->serial = b->serial;
    p->lane = lane;
    p->base = atomic_load(&p->stream.done); /* numbers go on, so that old tokens stay true */
    p->wanted = 0;
    *out = p;
    return DS_OK;
}

#endif
