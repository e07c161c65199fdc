/* alloc/counters.h - counters and peaks.

   Counts allocated, requested and pending blocks and bytes of arenas, pools and devices, with
   their peaks. ds__count_alloc, ds__count_free, ds__count_pending and ds__count_done count one
   block each. ds__counter_room_ready and ds__has_room tell whether an arena may count now; locks.h
   makes an arena ready. ds__counter_fold moves the counts of arenas to the domains. ds__meter_add
   counts segments and reserved bytes.

   Policy:
   1. While one thread allocates on a device, every call counts in the device's tally and peaks
      are exact.
   2. As soon as a second thread comes, each arena counts for itself and has room for a number of
      further bytes and blocks (ds__headroom).
   3. Peaks are raised in advance to the value that all rooms together allow. So a peak is never
      too low, and at most too high by the room.
   4. When an arena has used its room, room is given out anew with all arenas stopped
      (ds__share_room). The block that needs more room is counted meanwhile, so new peaks include
      the block whatever other threads do.

   Invariants: An exact arena counts in the device's tally, and only the thread in dev->owner may
   do so. All other arenas count in their own tally. A block is counted only after
   ds__counter_room_ready or ds__has_room was true under the same lock, or with all locks held.
   Totals are counted only if statistics are full. After ds__counter_fold every arena counts
   exactly, and the search for a thread that allocates alone begins anew.
   Locks: The functions that count expect the arena's lock. ds__share_room, ds__counter_fold and the
   functions of domains expect all locks. Meters need no lock; neither the driver nor user code
   is called.
   Threads: any thread that holds the expected lock. */
#ifndef DS__ALLOC_COUNTERS_H
#define DS__ALLOC_COUNTERS_H

#include "types.h"
#include "state.h"

#define DS__ROOM_BYTES ((int64_t)2 << 20)
#define DS__ROOM_COUNT 64

static inline void ds__counter_peak_raise(int64_t *peak, int64_t now) {
    if (now > *peak)
        *peak = now;
}

/* Raises the peaks of a domain that one thread counts in, and sets `room`, if not NULL, to the
   difference between counts and peaks. */
__attribute__((noinline)) static void ds__at_peak(ds__tally *t, ds__headroom *room) {
    for (int m = 0; m < DS__METRICS; m++) {
        int from = m < DS__ACTIVE ? m : m - DS__ACTIVE;
        int both = 0;
        int64_t now[3];
        for (int k = 0; k < 2; k++)
            now[1 + k] = t->kind[k].now[from] + (m < DS__ACTIVE ? 0 : t->kind[k].pending[from]);
        now[both] = now[1] + now[2];
        for (int k = 0; k < 3; k++) {
            ds__counter_peak_raise(&t->peak[k][m], now[k]);
            if (!room)
                continue;
            int64_t left = t->peak[k][m] - now[k];
            int64_t *at = &room[k == both ? 2 : k - 1].of[from];
            if (m < DS__ACTIVE || left < *at)
                *at = left;
        }
    }
    for (int k = 0; room && k < 3; k++)
        memset(room[k].owed, 0, sizeof room[k].owed);
}

/* Adds with one instruction. The fence prevents vector loads, which would wait for the single
   stores before them. */
static inline void ds__counter_add(int64_t *at, int64_t by) {
    *at += by;
    DS__COMPILER_FENCE();
}

/* Counts a new block in a tally, with totals if statistics are full. */
__attribute__((always_inline)) static inline void ds__tally_up(ds__tally *t, int kind, int64_t size,
                                                               int64_t asked, int full) {
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATION], 1);
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATED_BYTES], size);
    ds__counter_add(&t->kind[kind].now[DS__REQUESTED_BYTES], asked);
    if (!full)
        return;
    ds__counter_add(&t->kind[kind].total[DS__ALLOCATION], 1);
    ds__counter_add(&t->kind[kind].total[DS__ALLOCATED_BYTES], size);
    ds__counter_add(&t->kind[kind].total[DS__REQUESTED_BYTES], asked);
}

/* A change of the counts of one kind: allocated blocks and bytes, requested bytes, and pending
   blocks and bytes. */
typedef struct ds__count_change {
    int64_t count;
    int64_t size;
    int64_t asked;
    int64_t pending;
    int64_t pending_bytes;
} ds__count_change;

/* Changes the allocated and the pending counts of a tally, but neither totals nor peaks. */
__attribute__((always_inline)) static inline void ds__tally_move(ds__tally *t, int kind,
                                                                 ds__count_change by) {
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATION], by.count);
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATED_BYTES], by.size);
    ds__counter_add(&t->kind[kind].now[DS__REQUESTED_BYTES], by.asked);
    if (!by.pending && !by.pending_bytes)
        return;
    ds__counter_add(&t->kind[kind].pending[0], by.pending);
    ds__counter_add(&t->kind[kind].pending[1], by.pending_bytes);
}

/* Uses up headroom. The result is below 0 if a peak is passed. */
__attribute__((always_inline)) static inline int64_t ds__room_less(ds__headroom *r, int64_t count,
                                                                   int64_t size, int64_t asked) {
    ds__counter_add(&r->of[DS__ALLOCATION], -count);
    ds__counter_add(&r->of[DS__ALLOCATED_BYTES], -size);
    ds__counter_add(&r->of[DS__REQUESTED_BYTES], -asked);
    return r->of[DS__ALLOCATION] | r->of[DS__ALLOCATED_BYTES] | r->of[DS__REQUESTED_BYTES];
}

/* Counts an allocated block. The arena is locked and ready. */
__attribute__((always_inline)) static inline void ds__count_alloc(ds__arena *a, int kind,
                                                                  int64_t size, int64_t asked) {
    int full = a->full;
    ds__tally_up(a->tally, kind, size, asked, full);
    if (DS__LIKELY(a->measured) &&
        DS__UNLIKELY((ds__room_less(&a->room[kind], 1, size, asked) |
                      ds__room_less(&a->room[2], 1, size, asked)) < 0) &&
        a->exact && full)
        ds__at_peak(a->tally, a->room);
    if (DS__UNLIKELY(a->own_pool) && a->exact) {
        ds__tally_up(&a->pool->stats.tally, kind, size, asked, full);
        if (full)
            ds__at_peak(&a->pool->stats.tally, NULL);
    }
}

/* Changes the allocated and the pending counts. The arena is locked and ready. */
__attribute__((always_inline)) static inline void ds__count_move(ds__arena *a, int kind,
                                                                 ds__count_change by) {
    ds__tally_move(a->tally, kind, by);
    if (DS__UNLIKELY(a->own_pool) && a->exact)
        ds__tally_move(&a->pool->stats.tally, kind, by);
}

/* Counts that live blocks end or are cut: by `count` blocks, `size` bytes and `asked` requested
   bytes. */
__attribute__((always_inline)) static inline void ds__count_less(ds__arena *a, int kind,
                                                                 int64_t count, int64_t size,
                                                                 int64_t asked) {
    ds__count_move(a, kind, (ds__count_change){ -count, -size, -asked, 0, 0 });
    if (DS__UNLIKELY(!a->measured))
        return;
    ds__room_less(&a->room[kind], -count, -size, -asked);
    ds__room_less(&a->room[2], -count, -size, -asked);
}

/* Lets an arena count in the domains (exact) or for itself. All is locked, or no other thread
   knows the arena. */
static void ds__count_in(ds__arena *a, int exact) {
    a->exact = (uint8_t)exact;
    a->tally = exact ? &a->dev->stats.tally : &a->own;
    a->room = exact ? a->dev->room : a->own_room;
}

/* Counts a block that was freed and that no stream uses. */
static inline void ds__count_free(ds__arena *a, int kind, int64_t size, int64_t asked) {
    ds__count_less(a, kind, 1, size, asked);
}

/* Counts a block that was freed and that streams still use. */
static void ds__count_pending(ds__arena *a, int kind, int64_t size) {
    ds__count_move(a, kind, (ds__count_change){ -1, -size, 0, 1, size });
    for (int k = kind; k < 3; k += 2 - kind) {
        a->room[k].owed[0]++;
        a->room[k].owed[1] += size;
    }
}

/* Counts a pending block that no stream uses any more. */
static void ds__count_done(ds__arena *a, int kind, int64_t size, int64_t asked) {
    ds__count_move(a, kind, (ds__count_change){ 0, 0, -asked, -1, -size });
    for (int k = kind; k < 3; k += 2 - kind) {
        ds__headroom *r = &a->room[k];
        int64_t count = r->owed[0] > 0;
        int64_t bytes = size < r->owed[1] ? size : r->owed[1];
        r->owed[0] -= count;
        r->owed[1] -= bytes;
        ds__room_less(r, -count, -bytes, -asked);
    }
}

/* Adds to a meter and raises its peak. No lock is needed. */
static void ds__meter_add(ds__meter *m, int64_t by) {
    int64_t now = atomic_fetch_add_explicit(&m->now, by, memory_order_relaxed) + by;
    int64_t peak = atomic_load_explicit(&m->peak, memory_order_relaxed);
    atomic_fetch_add_explicit(by > 0 ? &m->total : &m->freed, by > 0 ? by : -by,
                              memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &m->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Adds to a meter of the device and, for other pools than the default one, of the pool. */
static void ds__counter_meters_add(ds__arena *a, int kind, int meter, int64_t by) {
    if (!by)
        return;
    ds__meter_add(&a->dev->stats.meter[kind][meter], by);
    ds__meter_add(&a->dev->stats.all[meter], by);
    if (a->pool == &a->dev->main)
        return;
    ds__meter_add(&a->pool->stats.meter[kind][meter], by);
    ds__meter_add(&a->pool->stats.all[meter], by);
}

#define DS__COUNT_CALL(a, what, by)                                                      \
    do {                                                                                 \
        atomic_fetch_add_explicit(&(a)->dev->stats.what, by, memory_order_relaxed);      \
        if ((a)->pool != &(a)->dev->main)                                                \
            atomic_fetch_add_explicit(&(a)->pool->stats.what, by, memory_order_relaxed); \
    } while (0)

/* Adds a tally's counts to `now` and, if not NULL, to `total`. Active blocks were allocated, so
   both have the same totals. */
static void ds__tally_read(const ds__tally *t, int64_t now[2][DS__METRICS],
                           int64_t total[2][DS__METRICS]) {
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__METRICS; m++) {
            int from = m < DS__ACTIVE ? m : m - DS__ACTIVE;
            now[k][m] += t->kind[k].now[from] + (m < DS__ACTIVE ? 0 : t->kind[k].pending[from]);
            if (total)
                total[k][m] += t->kind[k].total[from];
        }
}

/* Returns a peak. An active one is at least as high as the peak of allocated blocks. */
static int64_t ds__tally_peak(const ds__tally *t, int k, int m) {
    int64_t peak = t->peak[k][m];
    int64_t allocated = m < DS__ACTIVE ? 0 : t->peak[k][m - DS__ACTIVE];
    return allocated > peak ? allocated : peak;
}

/* Sums up the counts of a domain: the device's, or a pool's (`only`). All is locked. */
static void ds__domain_now(ds__mem_dev *dev, ds__mem_pool *only, int64_t now[2][DS__METRICS],
                           int64_t total[2][DS__METRICS]) {
    memset(now, 0, 2 * sizeof now[0]);
    if (total)
        memset(total, 0, 2 * sizeof total[0]);
    ds__tally_read(only ? &only->stats.tally : &dev->stats.tally, now, total);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = only && p != only ? NULL : p->arenas; a; a = a->next)
            ds__tally_read(&a->own, now, total);
}

static int ds__is_bytes(int metric) {
    return metric != DS__ALLOCATION && metric != DS__ACTIVE;
}

/* Raises the peaks of a domain to the counts that its arenas may reach with their rooms. `room`: by
   kind, counts (0) and bytes (1). All is locked. */
static void ds__domain_peaks(ds__domain *d, int64_t now[2][DS__METRICS], int64_t room[2][2]) {
    for (int m = 0; m < DS__METRICS; m++) {
        int b = ds__is_bytes(m);
        for (int k = 0; k < 2; k++)
            ds__counter_peak_raise(&d->tally.peak[1 + k][m], now[k][m] + room[k][b]);
        ds__counter_peak_raise(&d->tally.peak[0][m],
                               now[0][m] + now[1][m] + room[0][b] + room[1][b]);
    }
}

/* Returns how much may be added in a kind, or in all (2), before a peak rises: bytes (1) or counts
   (0). */
static int64_t ds__below_peak(const ds__domain *d, int64_t now[2][DS__METRICS], int kind,
                              int bytes) {
    int64_t least = INT64_MAX;
    for (int m = 0; m < DS__METRICS; m++) {
        if (ds__is_bytes(m) != bytes)
            continue;
        int64_t left = kind < 2 ? ds__tally_peak(&d->tally, 1 + kind, m) - now[kind][m]
                                : ds__tally_peak(&d->tally, 0, m) - now[0][m] - now[1][m];
        if (left < least)
            least = left;
    }
    return least;
}

/* Computes the room of each arena of the default pool, by kind, in counts (0) and bytes (1): the
   usual room, and an equal part of the difference between the device's counts and peaks. All is
   locked. */
static void ds__room_divide(const ds__mem_dev *dev, int64_t now[2][DS__METRICS], int arenas,
                            int64_t share[2][2]) {
    for (int b = 0; b < 2; b++) {
        int64_t usual = b ? DS__ROOM_BYTES : DS__ROOM_COUNT;
        int64_t left = ds__below_peak(&dev->stats, now, 2, b) - 2 * arenas * usual;
        for (int k = 0; k < 2; k++) {
            int64_t more = ds__below_peak(&dev->stats, now, k, b) - arenas * usual;
            int64_t most = k ? left : left / 2;
            if (more > most)
                more = most;
            if (more < 0)
                more = 0;
            share[k][b] = usual + more / arenas;
            left -= more;
        }
    }
}

/* Gives each arena of a pool the room `share` and lets the arena count for itself. Adds the rooms
   to `sum`, by kind, in counts and bytes. Returns the number of arenas. All is locked. */
static int64_t ds__pool_room_set(ds__mem_pool *p, int64_t share[2][2], int64_t sum[2][2]) {
    int64_t members = 0;
    for (ds__arena *a = p->arenas; a; a = a->next, members++) {
        ds__count_in(a, 0);
        /* shares are by kind */
        a->own_room[2] =
            (ds__headroom){ { INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2 }, { 0, 0 } };
        for (int k = 0; k < 2; k++) {
            int64_t bytes = share[k][1];
            a->own_room[k] = (ds__headroom){ { share[k][0], bytes, bytes }, { 0, 0 } };
            sum[k][0] += share[k][0];
            sum[k][1] += bytes;
        }
    }
    return members;
}

/* Gives room to all arenas of a device, and lets them count for themselves. All is locked. */
static void ds__share_room(ds__mem_dev *dev) {
    int64_t now[2][DS__METRICS];
    int64_t usual[2][2] = { { DS__ROOM_COUNT, DS__ROOM_BYTES },
                            { DS__ROOM_COUNT, DS__ROOM_BYTES } };
    int64_t share[2][2];
    int64_t all[2][2] = { { 0, 0 }, { 0, 0 } };
    int arenas = 0;
    atomic_store(&dev->owner, (void *)(uintptr_t)&ds__no_owner);
    ds__domain_now(dev, NULL, now, NULL);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            arenas++;
    ds__room_divide(dev, now, arenas, share);

    (void)ds__pool_room_set(&dev->main, share, all);
    for (ds__mem_pool *p = dev->main.next; p; p = p->next) {
        int64_t in_pool[2][DS__METRICS];
        int64_t sum[2][2] = { { 0, 0 }, { 0, 0 } };
        int64_t members = ds__pool_room_set(p, usual, sum);
        for (int k = 0; k < 2; k++)
            for (int b = 0; b < 2; b++)
                all[k][b] += sum[k][b];
        if (!p->full)
            continue;
        ds__domain_now(dev, p, in_pool, NULL);
        ds__domain_peaks(&p->stats, in_pool, sum);
        ds__counter_peak_raise(&p->stats.sharers, members);
    }

    /* without full statistics, peaks do not change */
    if (!dev->main.full)
        return;
    ds__domain_peaks(&dev->stats, now, all);
    ds__counter_peak_raise(&dev->stats.sharers, arenas);
}

/* Adds an arena's own counts to the tally of a domain. */
static void ds__tally_fold(ds__tally *to, const ds__tally *from) {
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__COUNTED; m++) {
            to->kind[k].now[m] += from->kind[k].now[m];
            to->kind[k].total[m] += from->kind[k].total[m];
        }
        for (int m = 0; m < 2; m++)
            to->kind[k].pending[m] += from->kind[k].pending[m];
    }
}

/* Moves the counts of all arenas to the domains, and lets the arenas count there. All is locked. */
static void ds__counter_fold(ds__mem_dev *dev) {
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            ds__tally_fold(&dev->stats.tally, &a->own);
            if (p != &dev->main)
                ds__tally_fold(&p->stats.tally, &a->own);
            memset(&a->own, 0, sizeof a->own);
            ds__count_in(a, 1);
        }
    memset(dev->room, 0, sizeof dev->room);
    if (dev->main.full)
        ds__at_peak(&dev->stats.tally, dev->room);
    atomic_store(&dev->owner, NULL);
}

/* Returns whether the calling thread is the only one that allocates on the device, as the first
   one or as before. Then the arenas count in the domains. */
static int ds__counter_room_claim(ds__mem_dev *dev) {
    void *none = NULL;
    if (!atomic_compare_exchange_strong(&dev->owner, &none, (void *)&ds__tls))
        return none == (void *)&ds__tls;
    return 1;
}

/* Returns whether the arena, which is locked, may count a change of `size` bytes. */
static inline int ds__counter_room_ready(ds__arena *a, int kind, int64_t size) {
    if (DS__LIKELY(a->exact))
        return atomic_load_explicit(&a->dev->owner, memory_order_relaxed) == (void *)&ds__tls;
    return a->room[kind].of[DS__ALLOCATED_BYTES] >= size && a->room[kind].of[DS__ALLOCATION] > 0;
}

/* Returns whether the arena, which is locked, may count a new block. The requested bytes are
   checked too: a free gives back the bytes of its own request, which may be fewer. */
static inline int ds__has_room(ds__arena *a, int kind, int64_t size, int64_t asked) {
    return ds__counter_room_ready(a, kind, size) &&
           (DS__LIKELY(a->exact) || a->room[kind].of[DS__REQUESTED_BYTES] >= asked);
}

#endif
