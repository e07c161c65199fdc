/* Groups: properties, split, shrink, end, captures. */
#ifndef RANKS_GROUPS_H
#define RANKS_GROUPS_H

#include "small.h"

static void test_properties_of_a_group(place *p) {
    ds_ranks_info info;
    ds_ranks_launch launch;
    OK(ds_ranks_get_info(p->ranks, &info));
    CHECK(info.rank == p->rank && info.size == p->size, "rank %d of %d", info.rank, info.size);
    CHECK(info.device_count == p->devices, "%zu devices", info.device_count);
    CHECK(info.first_device == p->first && info.own_devices == p->own, "%zu devices from %zu on",
          info.own_devices, info.first_device);
    CHECK(strcmp(info.engine, p->engine) == 0, "%s", info.engine);
    CHECK(is_local(p) == !*info.library, "%s", info.library);
    CHECK(info.operations == 0 && info.pending == 0, "%d operations", (int)info.operations);
    ds_ranks_launch_get(&launch);
    if (is_mpi(p))
        CHECK(launch.rank == p->rank && launch.size == p->size, "%s: rank %d of %d",
              launch.launcher, launch.rank, launch.size);

    ds_comm_options o = options_of(p, 0);
    gate g = { NULL };
    gate_close(p, &g, p->stream[0], 0);
    OK(ds_ranks_barrier(&o));
    OK(ds_ranks_get_info(p->ranks, &info));
    CHECK(info.operations == 1 && info.pending == 1, "%d pending", (int)info.pending);
    gate_open(&g);
    synchronize(p);
    OK(ds_ranks_get_info(p->ranks, &info));
    CHECK(info.operations == 1 && info.pending == 0, "%d pending", (int)info.pending);
    gate_free(p, &g);
}

/* Ranks of the parity of this one, in reverse order. */
static void test_split_orders_by_key(place *p) {
    ds_ranks_info info;
    int members[RANKS];
    int count = 0;
    for (int r = p->size - 1; r >= 0; r--)
        if (r % 2 == p->rank % 2)
            members[count++] = r;
    place q = place_among(p, members, count);
    OK(ds_ranks_split(p->ranks, p->rank % 2, -p->rank, &q.ranks));
    OK(ds_ranks_get_info(q.ranks, &info));
    CHECK(info.rank == q.rank && info.size == q.size, "rank %d of %d", info.rank, info.size);
    CHECK(info.first_device == q.first, "first device %zu", info.first_device);
    small_all(&q, 4);
    OK(ds_ranks_finalize(q.ranks));
}

static void test_split_without_a_color(place *p) {
    ds_ranks other = { 1 };
    int members[RANKS];
    for (int r = 1; r < p->size; r++)
        members[r - 1] = r;
    OK(ds_ranks_split(p->ranks, p->rank ? 3 : -1, 0, &other));
    CHECK(!other.id == !p->rank, "handle %d", other.id != 0);
    if (p->rank) {
        place q = place_among(p, members, p->size - 1);
        q.ranks = other;
        small_all(&q, 1);
        OK(ds_ranks_finalize(other));
    }
    small_all(p, 2);
}

static void test_shrink(place *p) {
    ds_ranks more;
    if (is_mpi(p))
        REFUSED(ds_ranks_grow(p->ranks, p->size + 1, &more), DS_ERR_UNSUPPORTED, "cannot grow");
    int excluded = p->size - 1;
    place q = *p;
    if (p->rank == excluded)
        return;
    OK(ds_ranks_shrink(p->ranks, &excluded, 1, &q.ranks));
    q.size--;
    q.devices = q.begin[q.size];
    small_all(&q, 6);
    OK(ds_ranks_finalize(q.ranks));
}

/* ds_ranks_finalize waits for the work of this rank. */
static void test_finalize_with_pending_work(place *p) {
    place q = *p;
    gate g = { NULL };
    small s = small_make(p, SMALL_ALL_REDUCE, 0);
    OK(ds_ranks_split(p->ranks, 0, p->rank, &q.ranks));
    small_set(p, &s, 9);
    if (p->rank == p->size - 1)
        gate_close(p, &g, p->stream[0], 0);
    small_write(p, &s);
    OK(small_run(&q, &s));
    small_read(p, &s);
    if (p->rank == p->size - 1) {
        sleep_ms(3);
        gate_open(&g);
    }

    OK(ds_ranks_finalize(q.ranks));

    synchronize(p);
    small_check(p, &s, 9, "finalize");
    small_free(p, &s);
    if (p->rank == p->size - 1)
        gate_free(p, &g);
}

static void test_abort_with_a_reason(place *p) {
    place q = *p;
    ds_ranks_info info;
    ds_comm_options o = options_of(p, 0);
    OK(ds_ranks_split(p->ranks, 0, p->rank, &q.ranks));
    o.ranks = q.ranks;
    if (p->rank == 0)
        OK(ds_ranks_abort(q.ranks, "the test wants it"));
    uint64_t begin = now_ms();
    while (ds_ranks_get_status(q.ranks) == DS_OK && now_ms() - begin < 2000)
        sleep_ms(1);
    REFUSED(ds_ranks_get_status(q.ranks), DS_ERR_ABORTED, "the test wants it");
    REFUSED(ds_ranks_barrier(&o), DS_ERR_ABORTED, "the test wants it");
    OK(ds_ranks_get_info(q.ranks, &info));
    OK(ds_ranks_finalize(q.ranks));
    small_all(p, 1);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* Captures inputs, operation and reading on the streams of the rank. */
static ds_result capture_small(place *p, small *s, ds_graph *out) {
    ds_result r = DS_OK;
    OK(ds_capture_begin(p->stream[0], DS_CAPTURE_THREAD_LOCAL));
    for (size_t i = 1; i < p->own; i++)
        OK(ds_stream_wait_stream(p->stream[i], p->stream[0]));
    small_write(p, s);
    r = small_run(p, s);
    if (r == DS_OK)
        small_read(p, s);
    for (size_t i = 1; i < p->own; i++)
        OK(ds_stream_wait_stream(p->stream[0], p->stream[i]));
    OK(ds_capture_end(p->stream[0], out));
    return r;
}

/* Launches each operation three times with other inputs. */
static void test_captured_operations(place *p) {
    for (int kind = 0; kind < SMALL_KINDS; kind++) {
        ds_graph graph = { 0 };
        ds_graph_exec exec = { 0 };
        small s = small_make(p, kind, (size_t)kind % p->devices);
        synchronize(p);
        OK(capture_small(p, &s, &graph));
        OK(ds_graph_instantiate(graph, NULL, &exec));
        for (int round = 0; round < 3; round++) {
            small_set(p, &s, round);
            OK(ds_graph_launch(exec, p->stream[0]));
            synchronize(p);
            small_check(p, &s, round, "launch");
        }
        OK(ds_graph_exec_destroy(exec));
        OK(ds_graph_destroy(graph));
        small_free(p, &s);
    }
    OK(ds_ranks_get_status(p->ranks));
    small_all(p, 2);
}

/* MPI refuses captures; the stream works afterwards. */
static void test_captures_are_refused(place *p) {
    for (int kind = 0; kind < SMALL_KINDS; kind++) {
        ds_graph graph = { 0 };
        small s = small_make(p, kind, 0);
        uint64_t before;
        ds_ranks_info info;
        OK(ds_ranks_get_info(p->ranks, &info));
        before = info.operations;
        synchronize(p);
        REFUSED(capture_small(p, &s, &graph), DS_ERR_CAPTURE_UNSUPPORTED, "End the capture");
        OK(ds_graph_destroy(graph));
        OK(ds_ranks_get_info(p->ranks, &info));
        CHECK(info.operations == before, "a refused operation was enqueued");
        small_free(p, &s);
    }
    small_all(p, 2);
}

#endif
