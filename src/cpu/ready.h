/* cpu/ready.h - lists of ready streams.

   Lists the streams that a worker may take (ds__cpu_ready_add), and takes them: any stream
   (ds__cpu_pop_ready) or a given one (ds__cpu_take_ready).

   Policy: the workers are divided into groups, and each group has lists of its own, one for each
   priority, behind a lock of its own. A stream belongs to one group, so launches on all streams
   share no lock. A worker takes a stream of its own group, unless another group has a more urgent
   one, or its own has none. It begins with another group after a stream has given way, and each
   DS__CPU_ROAM-th time, so that a group whose workers are all in long operations does not starve.
   A stream gives way to the ready streams of all groups after a batch, to more urgent ones of other
   groups after DS__CPU_NOTICE operations. With one group, streams of a priority run in the order in
   which they became ready. cpu/place.h makes the groups.

   Invariants: a stream is in the list of group `queued` - 1, and its state is then READY. `mask`
   has a bit for each level whose list is not empty. With a seed or a fabric there is one group.
   Locks: the lock of a group guards its lists. A stream's put lock and the pool's lock may be held
   before; no lock is taken under it.
   Threads: any. */
#ifndef DS__CPU_READY_H
#define DS__CPU_READY_H

#include "types.h"
#include "clock_order.h"

/* Returns 1 if a worker of any group will look at ready streams within microseconds. */
static int ds__cpu_has_lookers(void) {
    int lookers = 0;
    for (int g = 0; g < ds__cpu.groups; g++)
        lookers += atomic_load(&ds__cpu.ready[g].lookers);
    return lookers > 0;
}

/* Returns the levels that have ready streams in any group; the lowest bit is the most urgent. */
static inline uint32_t ds__cpu_ready(void) {
    uint32_t mask = atomic_load(&ds__cpu.ready[0].mask);
    for (int g = 1; g < ds__cpu.groups; g++)
        mask |= atomic_load(&ds__cpu.ready[g].mask);
    return mask;
}

/* Returns the levels that have ready streams in the stream's group. */
static inline uint32_t ds__cpu_ready_beside(const ds__cpu_stream *s) {
    int group = atomic_load_explicit(&s->group, memory_order_relaxed);
    return atomic_load_explicit(&ds__cpu.ready[group].mask, memory_order_relaxed);
}

/* Appends the stream, whose state is READY, to the list of its level. The group's lock is held. */
static void ds__cpu_link_ready(ds__cpu_group *g, ds__cpu_stream *s) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_heap_add(s);
        return;
    }
    int level = atomic_load_explicit(&s->level, memory_order_relaxed);
    atomic_store_explicit(&s->queued, (int)(g - ds__cpu.ready) + 1, memory_order_relaxed);
    s->queued_level = level;
    s->next = NULL;
    s->prev = g->tail[level];
    if (s->prev)
        s->prev->next = s;
    else
        g->head[level] = s;
    g->tail[level] = s;
    if (!s->prev)
        atomic_store(&g->mask, atomic_load_explicit(&g->mask, memory_order_relaxed) | 1u << level);
}

/* Takes the stream out of its list, and makes the caller its owner. The group's lock is held. */
static void ds__cpu_unlink_ready(ds__cpu_group *g, ds__cpu_stream *s) {
    /* not `level`: a lane may be listed at the level of the launch before */
    int level = s->queued_level;
    atomic_store_explicit(&s->queued, 0, memory_order_relaxed);
    if (s->prev)
        s->prev->next = s->next;
    else
        g->head[level] = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        g->tail[level] = s->prev;
    if (!g->head[level])
        atomic_store(&g->mask,
                     atomic_load_explicit(&g->mask, memory_order_relaxed) & ~(1u << level));
}

/* Lists the stream, whose state the caller has set to READY. Returns its group. */
static ds__cpu_group *ds__cpu_ready_add(ds__cpu_stream *s) {
    ds__cpu_group *g = &ds__cpu.ready[atomic_load_explicit(&s->group, memory_order_relaxed)];
    ds__spinlock_lock(&g->lock);
    ds__cpu_link_ready(g, s);
    ds__spinlock_unlock(&g->lock);
    return g;
}

/* Makes all streams of the list ready. Those of a group become ready at once, so that the most
   urgent one is taken first. Returns the number of streams whose group has no worker that will
   look. */
static int ds__cpu_ready_add_woken(ds__cpu_waiter *woken) {
    int count = 0;
    ds__cpu_group *locked = NULL;
    while (woken) {
        ds__cpu_stream *s = woken->parked;
        ds__cpu_group *g = &ds__cpu.ready[atomic_load_explicit(&s->group, memory_order_relaxed)];
        woken = woken->next; /* before the stream is ready: the waiter is part of it */
        if (g != locked && locked)
            ds__spinlock_unlock(&locked->lock);
        if (g != locked)
            ds__spinlock_lock(&g->lock);
        locked = g;
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_link_ready(g, s);
        count += atomic_load(&g->lookers) == 0;
    }
    if (locked)
        ds__spinlock_unlock(&locked->lock);
    return count;
}

/* Returns the stream of a group that is to run next: the oldest of the most urgent level, with a
   seed a random one. NULL: none is ready. The group's lock is held. */
static ds__cpu_stream *ds__cpu_ready_first(ds__cpu_group *g) {
    uint32_t mask = atomic_load_explicit(&g->mask, memory_order_relaxed);
    ds__cpu_stream *s = mask ? g->head[__builtin_ctz(mask)] : NULL;
    if (DS__UNLIKELY(ds__cpu.seed) && s) {
        ds__cpu.random = ds__cpu.random * 6364136223846793005u + 1442695040888963407u;
        for (uint64_t n = ds__cpu.random >> 61; n && s->next; n--)
            s = s->next;
    }
    return s;
}

/* Returns the group with the most urgent ready stream; of groups with equally urgent streams, the
   first one from `home` on. NULL: no stream is ready. */
static inline ds__cpu_group *ds__cpu_ready_group(int home) {
    ds__cpu_group *best = &ds__cpu.ready[home];
    uint32_t mask = atomic_load(&best->mask);
    for (int i = 1; i < ds__cpu.groups; i++) {
        ds__cpu_group *g = &ds__cpu.ready[(home + i) % ds__cpu.groups];
        uint32_t other = atomic_load(&g->mask);
        /* the lowest bit decides: lower is more urgent */
        if (other && (!mask || (other & -other) < (mask & -mask))) {
            best = g;
            mask = other;
        }
    }
    return mask ? best : NULL;
}

/* Takes the most urgent ready stream, that of the worker's group `home` first. The caller becomes
   its owner. NULL: none is ready, or other threads have just taken them. */
static ds__cpu_stream *ds__cpu_pop_ready(int home) {
    ds__cpu_group *g = ds__cpu_ready_group(home);
    if (!g)
        return NULL;
    ds__cpu_stream *s;
    ds__spinlock_lock(&g->lock);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        s = g->head[0] ? ds__cpu_heap_pop() : NULL;
    } else {
        s = ds__cpu_ready_first(g);
        if (s)
            ds__cpu_unlink_ready(g, s);
    }
    if (s)
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    ds__spinlock_unlock(&g->lock);
    return s;
}

/* Takes this stream, if it is ready; the caller becomes its owner. Returns 0 if it is not ready. */
static int ds__cpu_take_ready(ds__cpu_stream *s) {
    int group = atomic_load_explicit(&s->group, memory_order_relaxed);
    ds__cpu_group *g = &ds__cpu.ready[group];
    ds__spinlock_lock(&g->lock);
    /* not in another group's list: the object may be another stream by now */
    int mine = atomic_load_explicit(&s->queued, memory_order_relaxed) == group + 1 &&
               atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY;
    if (mine) {
        ds__cpu_unlink_ready(g, s);
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    }
    ds__spinlock_unlock(&g->lock);
    return mine;
}

#endif
