/* Ranks of the engine "nccl" on the stand-ins for NCCL and cudart: each is a thread with one or
   several devices of its own. */
#ifndef RANKS_NCCL_THREADS_H
#define RANKS_NCCL_THREADS_H

#include "devstream_ranks.h"
#include "nccl/nccl_standin.h"
#include "unit.h"
#include "expect.h"

#include <pthread.h>
#include <unistd.h>

#define MS 1000000ull

enum { RANKS = 3, OWN = 2, COUNT = 4 };

typedef struct rank {
    int rank;
    void (*test_fn)(struct rank *me);
    ds_ranks world;
    ds_device device[OWN];
    ds_stream stream[OWN];
    ds_tensor *tensor[OWN];
} rank;

static unsigned flags;
static uint64_t limit_ns;
static size_t own = 1;    /* devices of a rank */
static unsigned slowness; /* milliseconds that NCCL needs in addition during a test */
static char id[DS_RANKS_ID_SIZE];
static pthread_barrier_t all;

static ds_result join(rank *me, ds_ranks *out) {
    ds_ranks_desc desc = { .engine = "nccl",
                           .rank = me->rank,
                           .size = RANKS,
                           .id = id,
                           .devices = me->device,
                           .device_count = own,
                           .flags = flags,
                           .timeout_ns = limit_ns,
                           .record = "" };
    return ds_ranks_init(&desc, out);
}

static ds_result all_reduce_with(rank *me, ds_ranks group, int64_t count, unsigned any_order,
                                 const ds_ranks_options *more) {
    ds_dtype element = any_order ? ds_int32() : ds_float32(); /* integers have no order */
    ds_comm_options o = { .streams = me->stream,
                          .stream_count = own,
                          .ranks = group,
                          .flags = any_order,
                          .ranks_options = more };
    ds_tensor t[OWN];
    const ds_tensor *list[OWN];
    for (size_t i = 0; i < own; i++) {
        t[i] = *me->tensor[i];
        t[i].shape = &count;
        t[i].dtype = element;
        list[i] = &t[i];
    }
    return ds_comm_all_reduce(list, list, own, DS_REDUCE_SUM, &o);
}

static ds_result all_reduce(rank *me, ds_ranks group, int64_t count) {
    return all_reduce_with(me, group, count, DS_COMM_ANY_ORDER, NULL);
}

static ds_result reduce(rank *me) {
    return all_reduce(me, me->world, COUNT);
}

/* Sets all elements of the tensors to a number. */
static void set(rank *me, int32_t number) {
    for (size_t i = 0; i < own; i++)
        OK(ds_fill(me->tensor[i]->data, (uint32_t)number, 4, COUNT, me->stream[i]));
}

static void synchronize(rank *me) {
    for (size_t i = 0; i < own; i++)
        OK(ds_stream_synchronize(me->stream[i]));
}

/* Waits for the work of the rank, and checks all elements. */
static void expect_all(rank *me, int32_t wanted) {
    for (size_t i = 0; i < own; i++) {
        int32_t got[COUNT] = { 0 };
        OK(ds_copy(got, me->tensor[i]->data, sizeof got, me->stream[i]));
        OK(ds_stream_synchronize(me->stream[i]));
        for (int k = 0; k < COUNT; k++)
            if (got[k] != wanted) {
                fprintf(stderr, "rank %d, device %zu: element %d is %d in place of %d\n", me->rank,
                        i, k, got[k], wanted);
                atomic_fetch_add(&failures, 1);
            }
    }
}

static void rank_begin(rank *me) {
    int64_t count = COUNT;
    for (size_t i = 0; i < own; i++) {
        ds_stream_desc desc = { .device = me->device[i] };
        OK(ds_stream_create(&desc, &me->stream[i]));
        OK(ds_tensor_alloc(ds_int32(), 1, &count, me->stream[i], &me->tensor[i]));
    }
    set(me, 1);
}

/* After a failure the stream reports it, and ds_device_reset would end the test's other ranks. */
static void rank_end(rank *me) {
    for (size_t i = 0; i < own; i++) {
        DS_IGNORE(ds_tensor_free(me->tensor[i]));
        DS_IGNORE(ds_stream_destroy(me->stream[i]));
    }
}

static void *rank_main(void *user) {
    rank *me = user;
    rank_begin(me);
    OK(join(me, &me->world));
    OK(reduce(me));
    synchronize(me);
    pthread_barrier_wait(&all);

    standin_nccl_delay(slowness);
    pthread_barrier_wait(&all);

    me->test_fn(me);

    pthread_barrier_wait(&all);
    OK(ds_ranks_finalize(me->world));
    rank_end(me);
    return NULL;
}

static void threads(void *(*main_fn)(void *), void (*test_fn)(rank *me)) {
    static rank ranks[RANKS];
    pthread_t list[RANKS];
    memset(ranks, 0, sizeof ranks);
    atomic_store(&failures, 0);
    alarm(30);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].rank = i;
        for (int k = 0; k < OWN; k++)
            ranks[i].device[k] = (ds_device){ DS_DEVICE_CUDA, i * (int)own + k };
        ranks[i].test_fn = test_fn;
        assert_int_equal(pthread_create(&list[i], NULL, main_fn, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(list[i], NULL);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
    char kinds[200]; /* ids of which no rank made use cannot be freed */
    if (standin_nccl_live(kinds, sizeof kinds) &&
        (strchr(kinds, ',') || !strstr(kinds, " unique id")))
        fail_msg("%s are left", kinds);
}

/* Runs a test on all ranks. A rank that waits for ever ends the program. */
static void run(void (*test_fn)(rank *me), uint64_t timeout_ns, unsigned test_flags) {
    flags = test_flags;
    limit_ns = timeout_ns;
    ok(ds_ranks_id_create("nccl", id, sizeof id));
    threads(rank_main, test_fn);
}

#endif
