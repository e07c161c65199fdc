/* cpu/watcher.h - watcher thread, and interprocess event entries.

   The watcher (ds__cpu_watcher_main) follows streams of other processes while a wait in this
   process needs them. ds__cpu_event_foreign brings an event up to date, ds__cpu_event_publish
   makes a record visible, ds__cpu_event_export and ds__cpu_event_import pass an event between
   processes.

   Invariants: a watched proxy holds one user of its registry and one waiter of its page
   (ds__registry_page) until it has passed `wanted`. Proxies of one registry are adjacent in the
   list `watched`. The watcher reads a bell before the progress counters, so that no change is
   missed. Since a death rings no bell, it also looks at growing intervals of 1 ms to about 20 ms.
   Locks: the mutex of the shared-memory registries guards the list, and comes before an event's
   lock. The watcher sleeps without it. ds__os_thread_start runs under it in ds__cpu_watch_for. The
   check for open captures is made before it is taken.
   Threads: one watcher, which the first wait starts and ds__cpu_watcher_end joins after all work
   is done. Caller's threads, any number at once. */
#ifndef DS__CPU_WATCHER_H
#define DS__CPU_WATCHER_H

#include "types.h"
#include "stream_wait.h"
#include "event.h"
#include "shared_event.h"

/* Looks at the progress counters of all watched proxies, and lists the bells of their registries
   for the sleep. Proxies that have passed their number are watched no more. Returns the number of
   bells. The mutex is held. */
static unsigned ds__cpu_watch_progress(ds__sleep *list, unsigned room) {
    unsigned count = 0;
    uint32_t bell = 0;
    const ds__registry *last = NULL;
    for (ds__cpu_proxy **next = &ds__cpu.watched; *next;) {
        ds__cpu_proxy *p = *next;
        /* read before the progress counter, so that no change after it is missed */
        if (p->registry != last)
            bell = atomic_load(&p->registry->page->bell);
        ds__cpu_mirror(p, p->wanted);
        if (atomic_load(&p->stream.done) >= p->wanted) {
            *next = p->next_watched;
            p->is_watched = 0;
            atomic_fetch_sub(&p->registry->page->waiters, 1);
            ds__registry_close(p->registry);
            continue;
        }
        if (p->registry != last && count < room)
            list[count++] = ds__sleep_on(&p->registry->page->bell, bell, 1);
        last = p->registry;
        next = &p->next_watched;
    }
    return count;
}

static void *ds__cpu_watcher_main(void *unused) {
    ds__sleep list[33];
    uint64_t nap = 0;
    uint32_t seen = 0;
    (void)unused;
    ds__os_library_thread();
    ds__cpu_affinity_bind();
    ds__registries_lock();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.watch_word);
        if (atomic_load(&ds__cpu.watch_quit))
            break;
        unsigned count = ds__cpu_watch_progress(list + 1, 32);
        ds__registries_unlock();
        /* the death of a process rings no bell */
        if (word != seen || !nap)
            nap = 1000000;
        else if (nap < 16000000)
            nap += nap / 4;
        seen = word;
        list[0] = ds__sleep_on(&ds__cpu.watch_word, word, 0);
        if (count)
            ds__futex_wait_any(list, count + 1, nap);
        else
            ds__futex_wait(&ds__cpu.watch_word, word, DS__FOREVER);
        ds__registries_lock();
    }
    ds__registries_unlock();
    return NULL;
}

static void ds__cpu_wake_watcher(void) {
    atomic_fetch_add(&ds__cpu.watch_word, 1);
    ds__futex_wake(&ds__cpu.watch_word, 1);
}

/* Makes the watcher follow the proxy until this number is passed. The mutex is held. */
static ds_result ds__cpu_watch_for(ds__cpu_proxy *p, uint64_t upto) {
    if (atomic_load(&p->stream.done) >= upto)
        return DS_OK;
    if (!ds__cpu.watcher_started) {
        int error = ds__os_thread_start(&ds__cpu.watcher, ds__cpu_watcher_main, NULL);
        if (error)
            return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
        ds__cpu.watcher_started = 1;
    }
    if (p->wanted < upto)
        p->wanted = upto;
    if (!p->is_watched) {
        p->is_watched = 1;
        p->registry->users++;
        atomic_fetch_add(&p->registry->page->waiters, 1);
        ds__cpu_proxy **at = &ds__cpu.watched; /* before other proxies of the registry */
        while (*at && (*at)->registry != p->registry)
            at = &(*at)->next_watched;
        p->next_watched = *at;
        *at = p;
    }
    ds__cpu_wake_watcher();
    return DS_OK;
}

/* Makes the watcher follow the token of an event, if it is that of another process. */
static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!e->registry) || on->kind != DS__CPU_PROXY)
        return DS_OK;
    ds__registries_lock();
    ds_result r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)on, upto);
    ds__registries_unlock();
    return r;
}

static void ds__cpu_watcher_end(void) {
    if (!ds__cpu.watcher_started)
        return;
    ds__registries_lock();
    atomic_store(&ds__cpu.watch_quit, 1);
    ds__registries_unlock();
    ds__cpu_wake_watcher();
    ds__os_thread_join(ds__cpu.watcher);
    ds__cpu.watcher_started = 0;
}

/* Translates the word of an event in a registry into a token of this process. The mutex is held. */
static ds_result ds__cpu_word_token(ds__registry *b, uint64_t word, ds__cpu_token *out) {
    uint32_t counter = (uint32_t)(word >> 40) - 1;
    out->stream = NULL;
    out->upto = 0;
    if (word == 0)
        return DS_OK;
    if (counter >= atomic_load(&b->page->progress_count))
        return ds__fail(DS_ERR_INVALID_HANDLE, "the shared memory of process %d is damaged",
                        b->pid);
    /* this process has recorded the event, through another handle */
    if (atomic_load(&b->page->progress[counter].who) >> 24 == b->me) {
        ds__cpu_progress *l = ds__cpu.progress;
        while (l && (l->serial != b->serial || l->index != counter))
            l = l->all;
        if (!l)
            return DS_OK;
        out->stream = l->stream;
        out->upto = ds__cpu_whole(word, atomic_load(&l->stream->submitted));
        return DS_OK;
    }
    ds__cpu_proxy *p;
    ds_result r = ds__cpu_proxy_of(b, counter, &p);
    if (r < 0)
        return r;
    out->stream = &p->stream;
    out->upto = p->base + ds__cpu_whole(word, atomic_load(&b->page->progress[counter].done));
    return DS_OK;
}

/* Brings the event up to date with this word of the registry, unless another thread records it
   meanwhile; *out is the event's token. The mutex is held. */
static ds_result ds__cpu_event_refresh(ds__cpu_event *e, uint64_t word, ds__cpu_token *out) {
    ds__spinlock_lock(&e->lock);
    uint64_t before = e->word;
    out->stream = e->stream;
    out->upto = e->upto;
    ds__spinlock_unlock(&e->lock);
    if (before == word)
        return DS_OK;
    ds_result r = ds__cpu_word_token(e->registry, word, out);
    if (r < 0)
        return r;
    ds__spinlock_lock(&e->lock);
    if (e->word == before && !e->capture) {
        e->word = word;
        e->stream = out->stream;
        e->upto = out->upto;
    }
    out->stream = e->stream;
    out->upto = e->upto;
    ds__spinlock_unlock(&e->lock);
    return DS_OK;
}

/* Brings an event that processes share up to date with its registry. wait: the watcher follows its
   token. */
static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait) {
    ds_result r;
    ds__cpu_token t = { NULL, 0 };
    ds__mark *m = &e->registry->page->mark[e->mark];
    ds__registries_lock();
    uint64_t word = atomic_load(&m->word);
    if (atomic_load(&m->generation) == e->generation)
        r = ds__cpu_event_refresh(e, word, &t);
    else
        r = ds__fail(DS_ERR_INVALID_HANDLE, "process %d has destroyed the event", e->registry->pid);
    if (r == DS_OK && t.stream && t.stream->kind == DS__CPU_PROXY &&
        atomic_load(&t.stream->done) < t.upto) {
        ds__cpu_mirror((ds__cpu_proxy *)(void *)t.stream, t.upto);
        if (wait)
            r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)t.stream, t.upto);
    }
    ds__registries_unlock();
    return r;
}

/* Makes operation `upto` of the stream the record of the event, also for other processes. */
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto) {
    ds__registries_lock();
    uint64_t word =
        (uint64_t)(ds__cpu_progress_of(s, e->registry)->index + 1) << 40 | (upto & 0xffffffffff);
    ds__spinlock_lock(&e->lock);
    e->word = word;
    e->stream = s;
    e->upto = upto;
    ds__spinlock_unlock(&e->lock);
    ds__mark *m = &e->registry->page->mark[e->mark];
    if (atomic_load(&m->generation) == e->generation)
        atomic_store(&m->word, word);
    ds__registries_unlock();
}

static ds_result ds__cpu_event_export(void *event, unsigned char *out) {
    const ds__cpu_event *e = event;
    ds__address a = { DS__ADDRESS_EVENT,   e->registry->pid,
                      e->registry->fd,     e->mark,
                      e->generation,       0,
                      e->registry->cookie, 0 };
    memset(out, 0, 64);
    memcpy(out, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_event_import(int device, const unsigned char *handle, void **out) {
    ds__address a;
    ds__registry *b = NULL;
    unsigned char same[64] = { 0 };
    memcpy(&a, handle, sizeof a);
    memcpy(same, &a, sizeof a);
    if (a.kind != DS__ADDRESS_EVENT || a.index >= DS__MARKS || a.zero || a.size ||
        memcmp(same, handle, sizeof same))
        return ds__fail(DS_ERR_INVALID_VALUE, "the handle does not name an event of a CPU device");
    ds_result r = ds__cpu_event_create(device, 0, out);
    if (r < 0)
        return r;
    ds__registries_lock();
    r = ds__registry_open(a.pid, a.fd, a.cookie, &b);
    if (r == DS_OK && !ds__registry_has_event(b, a.index, a.generation)) {
        ds__registry_close(b);
        b = NULL;
        r = ds__fail(DS_ERR_INVALID_HANDLE,
                     "process %d has no event %u of generation %u; it may have destroyed the event",
                     a.pid, a.index, a.generation);
    }
    ds__registries_unlock();
    ds__cpu_event *e = *out;
    if (r < 0) {
        ds__cpu_event_destroy(e);
        *out = NULL;
        return r;
    }
    e->flags = DS_EVENT_INTERPROCESS;
    e->registry = b;
    e->mark = a.index;
    e->generation = a.generation;
    e->imported = 1;
    return DS_OK;
}

/* Gives an event of this process a slot in the registry of this process. */
static ds_result ds__cpu_event_share(ds__cpu_event *e) {
    ds__registry *b;
    ds__registries_lock();
    ds_result r = ds__registry_own(&b);
    if (r == DS_OK)
        r = ds__registry_event_add(b, &e->mark);
    if (r == DS_OK) {
        e->registry = b;
        e->generation = atomic_load(&b->page->mark[e->mark].generation);
    }
    ds__registries_unlock();
    return r;
}

/* Frees the event's slot, or drops an imported event's use of the registry. */
static void ds__cpu_event_unshare(ds__cpu_event *e) {
    if (!e->registry)
        return;
    ds__registries_lock();
    if (e->imported)
        ds__registry_close(e->registry);
    else
        ds__registry_event_remove(e->registry, e->mark);
    ds__registries_unlock();
    e->registry = NULL;
    e->imported = 0;
    e->word = 0;
}

#endif
