/* cpu/clock_order.h - order of the ready streams under the virtual clock.

   Keeps the ready streams in a pairing heap, and decides whether the worker may run one
   (ds__cpu_held). The worker runs only while a host thread waits for work (`wanted`) or while
   `run_all` is set. Otherwise ds__cpu_virtual_ready wakes the monitor, which sets `run_all` if
   no submission comes for DS__CPU_STALL_TICKS ticks.

   Invariants: the heap is ordered by virtual time, then by creation of the streams. Its root is
   ready[0].head[0], and its `mask` is 1 exactly if the heap holds a stream. A stream in the heap
   has a `virt` and is `queued`.
   Locks: ds__cpu_heap_join, ds__cpu_heap_add and ds__cpu_heap_pop expect the group's lock. The
   other functions take none.
   Threads: any thread may make a stream ready. Only the one worker takes a stream from the heap. */
#ifndef DS__CPU_CLOCK_ORDER_H
#define DS__CPU_CLOCK_ORDER_H

#include "types.h"

/* Returns 1 if no work may run, because no host thread waits for work. */
static int ds__cpu_held(void) {
    return atomic_load(&ds__cpu.wanted) <= 0 && !atomic_load(&ds__cpu.run_all);
}

/* Wakes the worker after a stream became ready, or the monitor if the stream is held back. */
static void ds__cpu_virtual_ready(void) {
    if (ds__cpu_held())
        ds__cpu_wake_monitor();
    else
        ds__cpu_wake_worker();
}

/* Joins two heaps of ready streams, each of which may be empty (NULL), and returns the root. A
   stream's `prev` is its first child, and `next` its next sibling. The group's lock is held. */
static ds__cpu_stream *ds__cpu_heap_join(ds__cpu_stream *a, ds__cpu_stream *b) {
    if (!a || !b)
        return a ? a : b;
    if (b->virt->time < a->virt->time ||
        (b->virt->time == a->virt->time && b->virt->born < a->virt->born)) {
        ds__cpu_stream *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->prev;
    a->prev = b;
    return a;
}

static void ds__cpu_heap_add(ds__cpu_stream *s) {
    atomic_store_explicit(&s->queued, 1, memory_order_relaxed);
    s->prev = s->next = NULL;
    ds__cpu.ready[0].head[0] = ds__cpu_heap_join(ds__cpu.ready[0].head[0], s);
    atomic_store(&ds__cpu.ready[0].mask, 1);
}

static ds__cpu_stream *ds__cpu_heap_pop(void) {
    ds__cpu_stream *first = ds__cpu.ready[0].head[0];
    ds__cpu_stream *pairs = NULL;
    ds__cpu_stream *rest = NULL;
    /* joins the children in pairs, then all pairs */
    for (ds__cpu_stream *a = first->prev, *b, *next; a; a = next) {
        b = a->next;
        next = b ? b->next : NULL;
        a->next = NULL;
        if (b)
            b->next = NULL;
        a = ds__cpu_heap_join(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        ds__cpu_stream *next = pairs->next;
        pairs->next = NULL;
        rest = ds__cpu_heap_join(rest, pairs);
        pairs = next;
    }
    atomic_store_explicit(&first->queued, 0, memory_order_relaxed);
    ds__cpu.ready[0].head[0] = rest;
    if (!rest)
        atomic_store(&ds__cpu.ready[0].mask, 0);
    return first;
}

#endif
