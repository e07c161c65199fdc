/* Order and progress: an operation begins when its streams get there, its event is complete when
   the data is in place, and a stream that waits for another rank holds no thread. */
#ifndef RANKS_ORDER_H
#define RANKS_ORDER_H

#include "small.h"

static void expect_pending(place *p, ds_event event, const char *words) {
    ds_result r = ds_event_query(event);
    CHECK(r == DS_NOT_READY, "%s: %s", words, ds_result_get_name(r));
}

/* Waits for an event by queries; the data is read at once after it. */
static void poll_event(place *p, ds_event event) {
    uint64_t begin = now_ms();
    ds_result r;
    while ((r = ds_event_query(event)) == DS_NOT_READY && now_ms() - begin < 2 * LIMIT_NS / 1000000)
        sleep_ms(0);
    CHECK(r == DS_OK, "event: %s: %s", ds_result_get_name(r), r < 0 ? ds_error_get_last() : "");
}

/* The rank `late` is kept by a gate before the operation; all others have enqueued it (mpich#7612).
   by_host: the gate is a host function. */
static void late_rank(place *p, int kind, int late, int by_host) {
    gate g = { NULL };
    ds_event done[OWN];
    ds_event copied[OWN];
    size_t root = kind == SMALL_BROADCAST || kind == SMALL_SCATTER ? p->begin[late]
                                                                   : p->begin[(late + 1) % p->size];
    small s = small_make(p, kind, root);
    small_set(p, &s, kind);
    if (p->rank == late)
        gate_close(p, &g, p->stream[p->own - 1], by_host);
    small_write(p, &s);
    OK(small_run(p, &s));
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_record_event(p->stream[i], 0, &done[i]));
    small_read(p, &s);
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_record_event(p->stream[i], 0, &copied[i]));
    meet(p);
    sleep_ms(2);
    for (size_t i = 0; i < p->own; i++)
        if (small_needs(p, &s, late, i))
            expect_pending(p, done[i], "before the late rank has arrived");
    meet(p);

    if (p->rank == late)
        gate_open(&g);

    for (size_t i = 0; i < p->own; i++) {
        poll_event(p, done[i]);
        for (int64_t e = 0; is_cpu(p) && e < small_results(&s, p->first + i); e++)
            CHECK(((int32_t *)s.out[i]->data)[e] == small_result(p, &s, p->first + i, e, kind),
                  "kind %d: element %d is wrong when the event is complete", kind, (int)e);
    }
    for (size_t i = 0; i < p->own; i++)
        poll_event(p, copied[i]);
    small_check(p, &s, kind, "work after the operation");
    for (size_t i = 0; i < p->own; i++) {
        OK(ds_event_destroy(done[i]));
        OK(ds_event_destroy(copied[i]));
    }
    small_free(p, &s);
    if (p->rank == late)
        gate_free(p, &g);
}

static void test_event_is_complete_with_the_data(place *p) {
    for (int kind = 0; kind < SMALL_KINDS; kind++)
        late_rank(p, kind, kind % p->size, 0);
}

static void test_operation_begins_behind_a_host_function(place *p) {
    for (int kind = 0; kind < SMALL_KINDS; kind += 3)
        late_rank(p, kind, (kind + 1) % p->size, 1);
}

/* The streams of a second list of the place. */
static ds_comm_options second_options(place *p, ds_stream *streams) {
    ds_comm_options o = options_of(p, 0);
    ds_stream_desc d;
    memset(&d, 0, sizeof d);
    for (size_t i = 0; i < p->own; i++) {
        d.device = p->device[i];
        OK(ds_stream_create(&d, &streams[i]));
    }
    o.streams = streams;
    return o;
}

/* Two operations on two streams, which are ready in the opposite order on the odd ranks. */
static void test_streams_ready_in_opposite_order(place *p) {
    ds_stream streams[OWN];
    gate g[2] = { { NULL }, { NULL } };
    ds_event done;
    small a = small_make(p, SMALL_ALL_REDUCE, 0);
    small b = small_make(p, SMALL_ALL_GATHER, 0);
    ds_comm_options o = second_options(p, streams);
    int first = p->rank % 2;
    small_set(p, &a, 1);
    small_set(p, &b, 2);
    small_write(p, &a);
    small_write(p, &b);
    synchronize(p);
    gate_close(p, &g[0], p->stream[0], 0);
    gate_close(p, &g[1], streams[0], 0);
    OK(small_run(p, &a));
    OK(small_call(p, &b, &o));
    OK(ds_stream_record_event(streams[0], 0, &done));
    meet(p);

    gate_open(&g[first]);
    sleep_ms(5);
    expect_pending(p, done, "the second operation, before the first one");
    meet(p);
    gate_open(&g[!first]);

    poll_event(p, done);
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_wait_stream(p->stream[i], streams[0]));
    small_read(p, &a);
    small_read(p, &b);
    synchronize(p);
    small_check(p, &a, 1, "first operation");
    small_check(p, &b, 2, "second operation");
    OK(ds_event_destroy(done));
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_destroy(streams[i]));
    small_free(p, &a);
    small_free(p, &b);
    gate_free(p, &g[0]);
    gate_free(p, &g[1]);
}

/* Streams of two groups do not wait for each other. */
static void test_groups_overlap(place *p) {
    ds_stream streams[OWN];
    gate g = { NULL };
    small a = small_make(p, SMALL_ALL_REDUCE, 0);
    small b = small_make(p, SMALL_ALL_REDUCE, 0);
    ds_comm_options o = second_options(p, streams);
    ds_ranks other;
    OK(ds_ranks_split(p->ranks, 0, p->rank, &other));
    o.ranks = other;
    small_set(p, &a, 1);
    small_set(p, &b, 2);
    small_write(p, &a);
    small_write(p, &b);
    synchronize(p);
    gate_close(p, &g, p->stream[0], 0);
    OK(small_run(p, &a));

    OK(small_call(p, &b, &o));
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_synchronize_for(streams[i], LIMIT_NS));
    meet(p);
    gate_open(&g);

    small_read(p, &a);
    small_read(p, &b);
    synchronize(p);
    small_check(p, &a, 1, "group behind the gate");
    small_check(p, &b, 2, "other group");
    for (size_t i = 0; i < p->own; i++)
        OK(ds_stream_destroy(streams[i]));
    OK(ds_ranks_finalize(other));
    small_free(p, &a);
    small_free(p, &b);
    gate_free(p, &g);
}

static int count_closure(void *payload) {
    atomic_fetch_add((_Atomic int *)payload, 1);
    return 0;
}

static void count_host(void *user) {
    atomic_fetch_add((_Atomic int *)user, 1);
}

/* Three streams wait for a rank that is late; the kernels and host functions of other streams run,
   though there are two workers. */
static void test_waiting_streams_hold_no_thread(place *p) {
    enum { WAITING = 3, WORK = 20 };

    static _Atomic int counts[RANKS];
    ds_stream streams[WAITING][OWN];
    small s[WAITING];
    int late = p->size - 1;
    atomic_store(&counts[p->rank], 0);
    for (int k = 0; k < WAITING; k++) {
        ds_comm_options o = second_options(p, streams[k]);
        s[k] = small_make(p, SMALL_ALL_REDUCE, 0);
        small_set(p, &s[k], k);
        small_write(p, &s[k]);
        synchronize(p);
        if (p->rank != late)
            OK(small_call(p, &s[k], &o));
    }
    for (int k = 0; k < WORK; k++) {
        OK(ds_stream_launch_closure(p->stream[0], count_closure, &counts[p->rank], 0, NULL));
        OK(ds_stream_launch_host_func(p->stream[0], count_host, &counts[p->rank], NULL));
    }
    OK(ds_stream_synchronize_for(p->stream[0], LIMIT_NS));
    CHECK(atomic_load(&counts[p->rank]) == 2 * WORK, "%d functions have run",
          atomic_load(&counts[p->rank]));
    meet(p);
    for (int k = 0; k < WAITING; k++) {
        ds_comm_options o = options_of(p, 0);
        o.streams = streams[k];
        if (p->rank == late)
            OK(small_call(p, &s[k], &o));
        for (size_t i = 0; i < p->own; i++)
            OK(ds_stream_wait_stream(p->stream[i], streams[k][i]));
        small_read(p, &s[k]);
        synchronize(p);
        small_check(p, &s[k], k, "late rank");
        small_free(p, &s[k]);
        for (size_t i = 0; i < p->own; i++)
            OK(ds_stream_destroy(streams[k][i]));
    }
}

/* A rank that is late by its host: the others have enqueued everything, also the reading. */
static void test_late_host(place *p) {
    for (int kind = 0; kind < SMALL_KINDS; kind++) {
        small s = small_make(p, kind, (size_t)kind % p->devices);
        small_set(p, &s, kind);
        small_write(p, &s);
        if (p->rank == kind % p->size)
            sleep_ms(3);
        OK(small_run(p, &s));
        small_read(p, &s);
        synchronize(p);
        small_check(p, &s, kind, "late host");
        small_free(p, &s);
    }
}

/* Many operations without a wait of the host, on streams that are busy. */
static void test_many_operations(place *p) {
    enum { MANY = 40 };

    small s[MANY];
    gate g = { NULL };
    for (int k = 0; k < MANY; k++) {
        s[k] = small_make(p, k % SMALL_KINDS, (size_t)k % p->devices);
        small_set(p, &s[k], k);
    }
    gate_close(p, &g, p->stream[0], 0);
    for (int k = 0; k < MANY; k++) {
        small_write(p, &s[k]);
        OK(small_run(p, &s[k]));
        small_read(p, &s[k]);
    }
    gate_open(&g);
    synchronize(p);
    for (int k = 0; k < MANY; k++) {
        small_check(p, &s[k], k, "many operations");
        small_free(p, &s[k]);
    }
    gate_free(p, &g);
}

/* Frees the tensors of an operation that has not begun, and allocates others. */
static void test_memory_is_freed_after_the_call(place *p) {
    gate g = { NULL };
    int64_t shape[1] = { 600 };
    int32_t data[600];
    tile in[OWN];
    tile out[OWN];
    tile next[2 * OWN];
    const ds_tensor *ins[OWN];
    const ds_tensor *outs[OWN];
    for (int form = FORM_DENSE; form <= FORM_PINNED; form += FORM_PINNED - FORM_DENSE) {
        for (size_t i = 0; i < p->own; i++) {
            in[i] = tile_make(p, i, form, ds_int32(), 1, shape);
            out[i] = tile_make(p, i, form, ds_int32(), 1, shape);
            for (int e = 0; e < 600; e++)
                data[e] = e;
            tile_write(p, &in[i], data);
            ins[i] = in[i].t;
            outs[i] = out[i].t;
        }
        ds_comm_options o = options_of(p, 0);
        gate_close(p, &g, p->stream[0], 0);
        OK(ds_comm_all_reduce(ins, outs, p->own, DS_REDUCE_SUM, &o));
        for (size_t i = 0; i < p->own; i++) {
            tile_free(p, &in[i]);
            for (size_t k = 0; k < 2; k++) {
                next[2 * i + k] = tile_make(p, i, form, ds_int32(), 1, shape);
                if (form == FORM_PINNED)
                    memset(next[2 * i + k].t->data, 0x11, sizeof data);
            }
        }
        gate_open(&g);
        for (int e = 0; e < 600; e++)
            data[e] = e * (int)p->devices;
        for (size_t i = 0; i < p->own; i++)
            tile_expect(p, &out[i], data, "inputs were freed after the call");
        free_tiles(p, out, p->own);
        free_tiles(p, next, 2 * p->own);
        gate_free(p, &g);
    }
}

/* Without streams in the options, the current streams of the thread are used. */
static void test_current_streams(place *p) {
    small s = small_make(p, SMALL_ALL_REDUCE, 0);
    ds_comm_options o = options_of(p, 0);
    o.streams = NULL;
    o.stream_count = 0;
    small_set(p, &s, 5);
    small_write(p, &s);
    synchronize(p);

    OK(small_call(p, &s, &o));

    for (size_t i = 0; i < p->own; i++) {
        ds_stream current;
        OK(ds_stream_get_current(p->device[i], &current));
        OK(ds_stream_synchronize(current));
    }
    small_read(p, &s);
    synchronize(p);
    small_check(p, &s, 5, "current streams");
    small_free(p, &s);
}

#endif
