/* check/line.h - timelines of streams and threads, and the order between them.

   Creates timelines (ds__race_line_create), finds that of a stream or of the calling thread
   (ds__race_line_of, ds__race_host), begins an operation on a stream (ds__race_line_enqueue), and
   records waits (ds__race_line_wait, ds__race_host_wait). ds__race_floors finds for each timeline
   the number that all others know.

   Policy:
   1. An operation on a stream comes after everything that the calling thread knows.
   2. An operation of the legacy stream comes after all operations of the blocking streams of its
      device, and an operation of a blocking stream after those of the legacy stream.
   3. The number of an ended timeline is used again when all others know its last operation.

   Invariants: the number of operations of a timeline never falls, also when its index is reused.
   The entry of a clock for its own timeline is not used.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_LINE_H
#define DS__CHECK_LINE_H

#include "clock.h"
#include "edge.h"
#include "place.h"

static ds__race_line *ds__race_line_at(uint32_t index) {
    return ds__race.line[index];
}

/* Returns the last operation of another timeline that is known to the next one of this timeline. */
static uint64_t ds__race_line_known(const ds__race_line *l, uint32_t other) {
    return other == l->index ? l->n : ds__race_clock_at(l->clock, other);
}

/* Returns 1 if operation n of a timeline is ordered before the current operation. */
static int ds__race_knows(const ds__race_now *now, uint32_t line, uint64_t n) {
    return n <= (line == now->line ? now->n : ds__race_clock_at(now->clock, line));
}

/* Lowers the numbers of an array to those that a timeline knows. also: a clock that it takes over
   before its next operation; NULL: none. */
static void ds__race_floor_lower(uint64_t *floor, const ds__race_clock *clock, uint32_t own,
                                 uint64_t n, const ds__race_line *also) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        uint64_t known = i == own ? n : ds__race_clock_at(clock, i);
        uint64_t more = also ? ds__race_line_known(also, i) : 0;
        known = known > more ? known : more;
        floor[i] = floor[i] < known ? floor[i] : known;
    }
}

/* Returns for each timeline the number that all timelines know of it: records up to it cannot
   conflict with later operations. With the option "threads", a thread that begins later knows
   nothing, so all numbers are 0. NULL: there is no memory. The caller releases the array. */
static uint64_t *ds__race_floors(void) {
    uint64_t *floor = ds__race_alloc(ds__race.lines * sizeof *floor);
    if (!floor || ds__race.threads)
        return floor;
    const ds__race_line *host = ds__race.host ? ds__race_line_at(ds__race.host) : NULL;
    memset(floor, 0xff, ds__race.lines * sizeof *floor);
    for (const ds__race_task *t = ds__race.task; t; t = t->next)
        ds__race_floor_lower(floor, t->clock, t->line, t->n, NULL);
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *l = ds__race.line[i];
        if (l->kind == DS__RACE_STREAM || l->kind == DS__RACE_HOST)
            ds__race_floor_lower(floor, l->clock, i, l->n,
                                 l->kind == DS__RACE_STREAM ? host : NULL);
    }
    return floor;
}

/* Returns a new timeline, or NULL. The numbers of operations go on where those of an earlier
   timeline of this index ended, so old clocks stay right. */
static ds__race_line *ds__race_line_create(int kind) {
    uint32_t i = 1;
    while (i < ds__race.lines && ds__race.line[i]->kind != DS__RACE_FREE)
        i++;
    if (i >= ds__race.lines) {
        if (i >= DS__RACE_LINES || !ds__race_array_reserve(&ds__race.line, sizeof(void *),
                                                           ds__race.lines, &ds__race.line_room))
            return NULL;
        ds__race.line[i] = ds__race_alloc(sizeof(ds__race_line));
        if (!ds__race.line[i])
            return NULL;
        ds__race.lines = i + 1;
    }
    ds__race_line *l = ds__race.line[i];
    uint64_t n = l->n;
    *l = (ds__race_line){
        .kind = (uint8_t)kind, .is_host = kind == DS__RACE_HOST, .index = i, .n = n
    };
    ds__race.stats.timelines++;
    return l;
}

/* Returns the number of the calling thread. */
static uint32_t ds__race_thread(void) {
    if (!ds__race_tls.number)
        ds__race_tls.number = atomic_fetch_add(&ds__race_threads, 1) + 1;
    return ds__race_tls.number;
}

/* Returns the timeline of the calling thread, or NULL. */
static ds__race_line *ds__race_host(void) {
    uint32_t *index = ds__race.threads ? &ds__race_tls.line : &ds__race.host;
    if (ds__race.threads && ds__race_tls.epoch != ds__race.epoch) {
        ds__race_tls.epoch = ds__race.epoch;
        ds__race_tls.line = 0;
    }
    if (*index)
        return ds__race_line_at(*index);
    ds__race_line *l = ds__race_line_create(DS__RACE_HOST);
    if (l) {
        l->number = ds__race_thread();
        *index = l->index;
    }
    return l;
}

/* Returns the timeline of a driver's stream, or NULL. */
static ds__race_line *ds__race_line_of(const void *native) {
    return ds__race_table_find(&ds__race.natives, ds__race_key(native));
}

/* Returns the timeline of a handle that a driver has, or NULL. */
static ds__race_line *ds__race_line_named(ds_stream stream) {
    return stream.id ? ds__race_table_find(&ds__race.handles, stream.id) : NULL;
}

/* Returns the timeline of a handle of the program, or NULL. Drivers do not get the handle of a
   wrapper of a default stream, but it has the driver's stream. Threads of drivers have no pins. */
static ds__race_line *ds__race_line_of_handle(ds_stream stream) {
    ds__race_line *l = ds__race_line_named(stream);
    if (l || !stream.id || !ds__tls.thread)
        return l;
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    if (!s)
        return NULL;
    l = ds__race_line_of(s->native);
    ds__stream_unpin(s);
    return l;
}

/* Orders operation n of a timeline, with everything that it knew, before operation to_n of another
   one, which is the current or the next one. clock: of that moment. Places: see ds__race_edge. */
static void ds__race_line_join(ds__race_line *to, uint64_t to_n, ds__race_clock *clock,
                               const ds__race_edge *from) {
    if (from->from == to->index ||
        (from->from_n && ds__race_line_known(to, from->from) >= from->from_n))
        return;
    ds__race_clock_join(&to->clock, clock);
    ds__race_clock_raise(&to->clock, from->from, from->from_n);
    ds__race_edge e = *from; /* also of a wait for nothing, to explain it */
    e.to = to->index;
    e.to_n = to_n;
    ds__race_edge_add(&e);
}

/* The same for everything that the other timeline has done so far. */
static void ds__race_line_wait(ds__race_line *to, uint64_t to_n, const ds__race_line *from,
                               uint32_t place) {
    ds__race_line_join(
        to, to_n, from->clock,
        &(ds__race_edge){ .from = from->index, .from_n = from->n, .to_place = place });
}

/* Orders operation to_n of a timeline after all blocking streams of the legacy stream's device. */
static void ds__race_line_wait_blocking(ds__race_line *to, uint64_t to_n,
                                        const ds__race_line *legacy, uint32_t place) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *b = ds__race.line[i];
        if (b->blocking && b->backend == legacy->backend && b->device == legacy->device)
            ds__race_line_wait(to, to_n, b, place);
    }
}

/* Orders the current operation of a timeline after everything that comes before the next operation
   of a stream, as an event that is recorded there would. */
static void ds__race_line_wait_next(ds__race_line *to, const ds__race_line *other, uint32_t place) {
    uint32_t legacy = other->blocking ? ds__race.legacy[other->backend][other->device] : 0;
    if (other->legacy)
        ds__race_line_wait_blocking(to, to->n, other, place);
    if (legacy)
        ds__race_line_wait(to, to->n, ds__race_line_at(legacy), place);
    ds__race_line_wait(to, to->n, other, place);
}

/* Returns the last operation of a timeline that comes before the next operation of a stream. */
static uint64_t ds__race_line_next_known(const ds__race_line *l, uint32_t line) {
    uint32_t legacy = l->blocking ? ds__race.legacy[l->backend][l->device] : 0;
    uint64_t known = ds__race_line_known(l, line);
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *b = ds__race.line[i];
        int counts =
            i == legacy || i == ds__race.host ||
            (l->legacy && b->blocking && b->backend == l->backend && b->device == l->device);
        uint64_t n = counts ? ds__race_line_known(b, line) : 0;
        known = n > known ? n : known;
    }
    return known;
}

/* Orders the next operation with the legacy stream of the device. */
static void ds__race_line_take_legacy(ds__race_line *l, uint32_t place) {
    uint32_t legacy = ds__race.legacy[l->backend][l->device];
    if (l->legacy)
        ds__race_line_wait_blocking(l, l->n + 1, l, place);
    else if (legacy)
        ds__race_line_wait(l, l->n + 1, ds__race_line_at(legacy), place);
}

/* Begins an operation on a stream, after everything that the calling thread knows. */
static void ds__race_line_enqueue(ds__race_line *l, uint32_t place) {
    ds__race_line *host = ds__race_host();
    if (host && (l->host != host->index || l->host_n != host->n)) {
        ds__race_line_wait(l, l->n + 1, host, place);
        l->host = host->index;
        l->host_n = host->n;
    }
    if (l->legacy || l->blocking)
        ds__race_line_take_legacy(l, place);
    l->n++;
    ds__race.stats.operations++;
}

/* The calling thread has waited for operation n of a timeline. clock: of that moment. */
static void ds__race_host_join(ds__race_clock *clock, const ds__race_edge *from) {
    ds__race_line *host = ds__race_host();
    if (!host || ds__race_line_known(host, from->from) >= from->from_n)
        return;
    host->n++;
    ds__race_line_join(host, host->n, clock, from);
}

/* The calling thread has waited for everything that a timeline has done so far. */
static void ds__race_host_wait(const ds__race_line *from) {
    ds__race_line *host = ds__race_host();
    if (host && from->legacy) {
        host->n++;
        ds__race_line_wait_blocking(host, host->n, from, ds__race_place_of_call());
    }
    ds__race_host_join(from->clock, &(ds__race_edge){ .from = from->index,
                                                      .from_n = from->n,
                                                      .to_place = ds__race_place_of_call() });
}

/* Returns the current operation of a stream, for its accesses. */
static ds__race_now ds__race_line_now(const ds__race_line *l, uint32_t place) {
    return (ds__race_now){ .clock = l->clock,
                           .n = l->n,
                           .line = l->index,
                           .place = place,
                           .thread = ds__race_thread(),
                           .vague = l->vague && l->n >= l->vague };
}

static void ds__race_lines_deinit(void) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        ds__race_clock_unref(ds__race.line[i]->clock);
        ds__race_release(ds__race.line[i], sizeof(ds__race_line));
    }
    ds__race_release(ds__race.line, ds__race.line_room * sizeof(void *));
    ds__race.line = NULL;
    ds__race.lines = 0;
    ds__race.ended = 0;
    ds__race.reuse_at = 0;
    ds__race.line_room = 0;
    ds__race.host = 0;
    memset(ds__race.legacy, 0, sizeof ds__race.legacy);
}

#endif
