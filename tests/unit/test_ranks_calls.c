/* Calls of process groups that are refused, and groups that end early. Engine "local"; most groups
   have one rank. tests/ranks/refusals.h has calls of several ranks. */
#include <errno.h>
#include <pthread.h>

static int threads_refused;      /* 1: the system has no threads for devstream */
static _Atomic int threads_open; /* that devstream has started and not joined */

static int thread_or_none(pthread_t *out, const pthread_attr_t *how, void *(*fn)(void *),
                          void *user) {
    int error = threads_refused ? EAGAIN : pthread_create(out, how, fn, user);
    threads_open += !error;
    return error;
}

static int thread_joined(pthread_t thread, void **out) {
    threads_open--;
    return pthread_join(thread, out);
}

#define pthread_create thread_or_none
#define pthread_join thread_joined
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_ranks.h"
#undef pthread_create
#undef pthread_join
#include "../ranks/solo.h"

#include <sys/wait.h>

static solo alone;
static solo *const me = &alone;
static const setup two = { .engine = "local", .type = DS_DEVICE_CPU, .own = FEW };

static void begin(const setup *how) {
    atomic_store(&failures, 0);
    alarm(60);
    solo_begin(me, how);
}

static void end(const setup *how) {
    solo_end(me, how, &no_memory);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static float room[64];
static int64_t shapes[6][2] = { { 4, 1 }, { 8, 1 }, { 2, 4 }, { 3, 1 }, { 1, 1 }, { 8, 8 } };

/* Returns a tensor at an element of `room`, on device k. */
static ds_tensor at(size_t element, size_t k, int ndim, size_t shape) {
    return ds_tensor_of(room + element, me->device[k], ds_float32(), ndim, shapes[shape]);
}

static ds_comm_options options(void) {
    return (ds_comm_options){ .streams = me->stream, .stream_count = FEW, .ranks = me->group };
}

/* Calls a collective of lists; kind: BROADCAST ... with in[0] or out[0] as the single tensor. */
static ds_result call(int kind, const ds_tensor *in, size_t ins, const ds_tensor *out, size_t outs,
                      int dim, const ds_comm_options *o) {
    const ds_tensor *from[FEW + 1];
    const ds_tensor *to[FEW + 1];
    for (size_t i = 0; i < FEW + 1; i++) {
        from[i] = in ? &in[i] : NULL;
        to[i] = out ? &out[i] : NULL;
    }
    switch (kind) {
    case BROADCAST:
        return ds_comm_broadcast_into(from[0], to, outs, o);
    case SCATTER:
        return ds_comm_scatter_into(from[0], to, outs, dim, o);
    case GATHER:
        return ds_comm_gather_into(from, ins, dim, to[0], o);
    case REDUCE:
        return ds_comm_reduce_into(from, ins, DS_REDUCE_SUM, to[0], o);
    case ALL_REDUCE:
        return ds_comm_all_reduce(from, to, ins, DS_REDUCE_SUM, o);
    case ALL_GATHER:
        return ds_comm_all_gather(from, to, ins, o);
    case REDUCE_SCATTER:
        return ds_comm_reduce_scatter(from, to, ins, DS_REDUCE_SUM, o);
    default:
        return ds_comm_all_to_all(from, to, ins, o);
    }
}

/* A tensor of a refused call: at an element of `room`, with a shape, on its device. */
typedef struct spot {
    size_t element;
    int ndim;
    size_t shape;
    int strided;
} spot;

typedef struct refusal {
    int kind;
    size_t count; /* of the list or lists */
    spot in[FEW];
    spot out[FEW];
    int dim;
    const char *words;
} refusal;

#define WHOLE_A \
    { 0, 1, 1, 0 }
#define WHOLE_B \
    { 8, 1, 1, 0 }
#define WHOLE_C \
    { 16, 1, 1, 0 }
#define WHOLE_D \
    { 24, 1, 1, 0 }
#define PART_A \
    { 32, 1, 0, 0 }
#define PART_B \
    { 40, 1, 0, 0 }

static const refusal refusals[] = {
    { BROADCAST, 1, { WHOLE_A }, { WHOLE_B }, 0, "outs has 1 tensors, but this rank has 2" },
    { BROADCAST, 2, { WHOLE_A }, { WHOLE_B, PART_A }, 0, "output tensor at index 1 has shape" },
    { BROADCAST, 2, { WHOLE_A }, { WHOLE_B, { 9, 1, 1, 0 } }, 0, "index 0 and 1 share memory" },
    { SCATTER, 1, { WHOLE_A }, { PART_A }, 0, "outs has 1 tensors" },
    { SCATTER, 2, { WHOLE_A }, { PART_A, PART_B }, 3, "dim" },
    { SCATTER, 2, { WHOLE_A }, { PART_A, { 40, 1, 3, 0 } }, 0, "part 1 has shape" },
    { SCATTER, 2, { WHOLE_A }, { PART_A, { 40, 2, 2, 0 } }, 0, "part 1 has 2 dimensions" },
    { SCATTER,
      2,
      { WHOLE_A },
      { { 32, 2, 2, 0 }, { 40, 2, 2, 0 } },
      1,
      "dim is 1, but the tensor" },
    { SCATTER, 2, { WHOLE_A }, { { 1, 1, 0, 0 }, PART_B }, 0, "shares memory with input" },
    { GATHER, 1, { PART_A }, { WHOLE_A }, 0, "tensors has 1 tensors" },
    { GATHER, 2, { PART_A, PART_B }, { WHOLE_A }, 5, "dim" },
    { GATHER, 2, { PART_A, { 40, 1, 3, 0 } }, { WHOLE_A }, 0, "part 1 has shape" },
    { GATHER, 2, { { 1, 1, 0, 0 }, PART_B }, { WHOLE_A }, 0, "shares memory with input" },
    { REDUCE, 1, { WHOLE_A }, { WHOLE_C }, 0, "tensors has 1 tensors" },
    { REDUCE, 2, { WHOLE_A, PART_A }, { WHOLE_C }, 0, "input tensor at index 1 has" },
    { REDUCE, 2, { WHOLE_A, WHOLE_B }, { { 9, 1, 1, 0 } }, 0, "shares memory with input" },
    { ALL_REDUCE, 1, { WHOLE_A }, { WHOLE_C }, 0, "tensors has 1 tensors" },
    { ALL_REDUCE, 2, { WHOLE_A, WHOLE_B }, { WHOLE_C, { 24, 2, 2, 0 } }, 0, "index 1 has shape" },
    { ALL_REDUCE, 2, { WHOLE_A, WHOLE_B }, { WHOLE_B, WHOLE_D }, 0, "shares memory with input" },
    { ALL_REDUCE, 2, { WHOLE_A, WHOLE_B }, { WHOLE_C, WHOLE_C }, 0, "index 0 and 1 share memory" },
    { ALL_REDUCE, 2, { { 0, 1, 0, 1 }, WHOLE_B }, { { 0, 1, 0, 1 }, WHOLE_D }, 0, "" },
    { ALL_REDUCE, 2, { { 0, 1, 0, 1 }, PART_B }, { { 0, 1, 0, 1 }, PART_A }, 0, "shares memory" },
    { ALL_REDUCE, 2, { { 0, 1, 0, 0 }, PART_B }, { { 0, 1, 0, 1 }, PART_A }, 0, "shares memory" },
    { ALL_GATHER, 1, { PART_A }, { WHOLE_A }, 0, "tensors has 1 tensors" },
    { ALL_GATHER, 2, { PART_A, PART_B }, { WHOLE_A, { 16, 1, 3, 0 } }, 0, "has 3 rows" },
    { ALL_GATHER,
      2,
      { { 0, 1, 0, 0 }, { 16, 1, 0, 0 } },
      { WHOLE_B, WHOLE_A },
      0,
      "shares memory with input" },
    { ALL_GATHER, 2, { { 0, 1, 0, 0 }, PART_B }, { { 0, 1, 1, 1 }, WHOLE_D }, 0, "shares memory" },
    { REDUCE_SCATTER, 1, { WHOLE_A }, { PART_A }, 0, "tensors has 1 tensors" },
    { REDUCE_SCATTER,
      2,
      { WHOLE_A, PART_A },
      { PART_B, { 48, 1, 0, 0 } },
      0,
      "input tensor at index 1" },
    { REDUCE_SCATTER, 2, { WHOLE_A, WHOLE_B }, { { 8, 1, 0, 0 }, PART_B }, 0, "shares memory" },
    { REDUCE_SCATTER, 2, { WHOLE_A, WHOLE_B }, { PART_A, { 40, 1, 3, 0 } }, 0, "part 1 has shape" },
    { ALL_TO_ALL, 1, { WHOLE_A }, { WHOLE_B }, 0, "tensors has 1 tensors" },
    { ALL_TO_ALL, 2, { WHOLE_A, WHOLE_B }, { WHOLE_A, WHOLE_D }, 0, "shares memory" },
    { ALL_TO_ALL,
      2,
      { WHOLE_A, { 0, 0, 0, 0 } },
      { WHOLE_C, WHOLE_D },
      0,
      "no dimension to divide" },
    { ALL_TO_ALL, 2, { WHOLE_A, { 8, 2, 2, 0 } }, { WHOLE_C, WHOLE_D }, 0, "" },
};

static void test_wrong_tensors_are_refused(void **state) {
    (void)state;
    static int64_t two_apart[1] = { 2 };
    begin(&two);
    ds_comm_options o = options();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *f = &refusals[i];
        ds_tensor in[FEW + 1];
        ds_tensor out[FEW + 1];
        for (size_t k = 0; k < FEW; k++) {
            int alone_in = f->kind == BROADCAST || f->kind == SCATTER;
            int alone_out = f->kind == GATHER || f->kind == REDUCE;
            in[k] = at(f->in[k].element, alone_in ? 0 : k, f->in[k].ndim, f->in[k].shape);
            out[k] = at(f->out[k].element, alone_out ? 0 : k, f->out[k].ndim, f->out[k].shape);
            if (f->in[k].strided)
                in[k].strides = two_apart;
            if (f->out[k].strided)
                out[k].strides = two_apart;
        }
        ds_result r = call(f->kind, in, f->count, out, f->count, f->dim, &o);
        int told = r == DS_ERR_INVALID_VALUE && strstr(ds_error_get_last(), f->words);
        if (!told)
            fprintf(stderr, "call %zu is %s: %s\n", i, ds_result_get_name(r), ds_error_get_last());
        atomic_fetch_add(&failures, !told);
    }
    ds_tensor in[FEW + 1], out[FEW + 1];
    for (size_t k = 0; k < FEW; k++) {
        in[k] = at(8 * k, k, 1, 1);
        out[k] = at(8 * (FEW + k), k, 1, 1);
    }
    in[1].dtype.bits = 0;
    EXPECT(call(ALL_REDUCE, in, FEW, out, FEW, 0, &o), DS_ERR_INVALID_VALUE,
           "index 1 has a data type of 0 bits");
    OK(ds_ranks_get_status(me->group));
    end(&two);
}

/* A failed group refuses each call. */
static void test_each_call_of_a_failed_group_is_refused(void **state) {
    (void)state;
    for (int kind = BROADCAST; kind <= BARRIER; kind++) {
        verb v = { .kind = kind, .part = 3 };
        begin(&two);
        solo_tensors(me, &two, &v);
        OK((ds_ranks_abort)(me->group, NULL));
        EXPECT(solo_call(me, &two, &v), DS_ERR_ABORTED, "no reason was given");
        assert_non_null(strstr(ds_error_get_last(), " at ?:0: "));
        solo_free(me, &two, &v);
        end(&two);
    }
}

/* A tensor without a dimension is reduced, too. */
static void test_scalars_are_reduced(void **state) {
    (void)state;
    begin(&two);
    ds_comm_options o = options();
    ds_tensor in[] = { at(0, 0, 0, 0), at(1, 1, 0, 0), at(0, 0, 0, 0) };
    ds_tensor out[] = { at(2, 0, 0, 0), at(3, 1, 0, 0), at(0, 0, 0, 0) };
    room[0] = 4;
    room[1] = 5;
    OK(call(ALL_REDUCE, in, 2, out, 2, 0, &o));
    OK(solo_wait(me, &two));
    assert_true(room[2] == 9 && room[3] == 9);
    end(&two);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static void test_group_without_a_description(void **state) {
    (void)state;
    ds_ranks_info info;
    atomic_store(&failures, 0);
    library_begin();
    memset(me, 0, sizeof *me);
    unsetenv("DEVSTREAM_RANKS_ENGINE");
    OK(ds_ranks_init(NULL, &me->group));
    OK(ds_ranks_get_info(me->group, &info));
    assert_string_equal(info.engine, "local");
    assert_int_equal(info.own_devices, 1);
    OK(ds_ranks_finalize(me->group));

    setenv("DEVSTREAM_RANKS_ENGINE", "local", 1);
    OK(ds_ranks_init(NULL, &me->group));
    unsetenv("DEVSTREAM_RANKS_ENGINE");
    end(&(setup){ .own = 0 });
}

static void test_group_without_a_progress_thread(void **state) {
    (void)state;
    atomic_store(&failures, 0);
    library_begin();
    solo_streams(me, &two);
    for (size_t i = 0; i < FEW; i++) /* the workers of the CPU driver run */
        OK(ds_stream_synchronize(me->stream[i]));
    threads_refused = 1;
    EXPECT(solo_join(me, &two, "alone"), DS_ERR_SYSTEM, "progress thread of process groups");
    threads_refused = 0;
    OK(solo_join(me, &two, "alone"));
    end(&two);
    library_begin();
    solo_streams(me, &two);
    for (size_t i = 0; i < FEW; i++)
        OK(ds_stream_synchronize(me->stream[i]));
    threads_refused = 1;
    EXPECT(solo_join(me, &two, "alone"), DS_ERR_SYSTEM, "progress thread of process groups");
    threads_refused = 0;
    me->group = (ds_ranks){ 0 };
    end(&two); /* without a thread */
    assert_int_equal(threads_open, 0);
}

static void test_wrong_descriptions_are_refused(void **state) {
    (void)state;
    ds_device mixed[] = { { DS_DEVICE_CPU, 0 }, { DS_DEVICE_CUDA, 0 } };
    ds_device gone = { DS_DEVICE_CPU, 77 };
    ds_ranks g;
    begin(&two);
    ds_ranks_desc good = { .engine = "local", .size = 2, .id = "wrong", .timeout_ns = 1000000 };
    ds_ranks_desc d = good;
    d.device_count = 1;
    EXPECT(ds_ranks_init(&d, &g), DS_ERR_INVALID_VALUE, "devices is NULL, but device_count is 1");
    d.devices = &gone;
    EXPECT(ds_ranks_init(&d, &g), DS_ERR_DEVICE_RANGE, "cpu:77 does not exist");
    if (has_gpus_now()) {
        d.devices = mixed;
        d.device_count = 2;
        EXPECT(ds_ranks_init(&d, &g), DS_ERR_CROSS_DRIVER, "devices[1] are of two drivers");
    }
    d = good;
    d.rank = -1;
    EXPECT(ds_ranks_init(&d, &g), DS_ERR_INVALID_VALUE, "rank is -1");
    d = good;
    d.id = "";
    EXPECT(ds_ranks_init(&d, &g), DS_ERR_INVALID_VALUE, "id is empty");
    d = good;
    d.mpi_comm = me;
    EXPECT(ds_ranks_init(&d, &g), DS_ERR_INVALID_VALUE, "mpi_comm is set");
    EXPECT(ds_ranks_id_create("local", NULL, 0), DS_ERR_INVALID_VALUE, "engine or out is NULL");
    end(&two);
}

static void test_wrong_handles_are_refused(void **state) {
    (void)state;
    ds_ranks none = { 0 };
    ds_ranks out;
    int gone[] = { -1, 5, 0 };
    char id[DS_RANKS_ID_SIZE];
    void *pinned;
    begin(&two);
    EXPECT(ds_ranks_register(none, id, 8), DS_ERR_INVALID_HANDLE, "the handle is zero");
    EXPECT(ds_ranks_deregister(none, id), DS_ERR_INVALID_HANDLE, "the handle is zero");
    EXPECT(ds_ranks_shrink(none, gone, 1, &out), DS_ERR_INVALID_HANDLE, "the handle is zero");
    EXPECT(ds_ranks_grow_id(none, id, sizeof id), DS_ERR_INVALID_HANDLE, "the handle is zero");
    EXPECT(ds_ranks_grow(none, 2, &out), DS_ERR_INVALID_HANDLE, "the handle is zero");
    ds_comm_options o = { .ranks = none };
    ds_tensor t = at(0, 0, 1, 0);
    EXPECT(ds_ranks_send(&t, 0, &o), DS_ERR_INVALID_HANDLE, "the handle is zero");
    EXPECT(ds_ranks_register(me->group, NULL, 8), DS_ERR_INVALID_VALUE, "ptr is NULL");
    EXPECT(ds_ranks_register(me->group, id, 0), DS_ERR_INVALID_VALUE, "size is 0");
    OK(ds_mem_pinned_alloc(8, &pinned));
    EXPECT(ds_ranks_register(me->group, pinned, 8), DS_ERR_UNSUPPORTED, "registers no memory");
    OK(ds_mem_pinned_free(pinned));
    for (size_t i = 0; i < 3; i++)
        EXPECT(ds_ranks_shrink(me->group, &gone[i], 1, &out), DS_ERR_INVALID_VALUE,
               "excluded[0] is");
    EXPECT(ds_ranks_shrink(me->group, NULL, 0, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    EXPECT(ds_ranks_grow_id(me->group, NULL, 0), DS_ERR_INVALID_VALUE, "out is NULL");
    EXPECT(ds_ranks_grow_id(me->group, id, 3), DS_ERR_INVALID_VALUE, "DS_RANKS_ID_SIZE");
    EXPECT(ds_ranks_grow(me->group, 2, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    OK(ds_ranks_abort(me->group, "the end"));
    EXPECT(ds_ranks_grow_id(me->group, id, sizeof id), DS_ERR_ABORTED, "the end");
    EXPECT(ds_ranks_grow(me->group, 2, &out), DS_ERR_ABORTED, "the end");
    EXPECT(ds_ranks_split(me->group, 0, 0, &out), DS_ERR_ABORTED, "the end");
    end(&two);
}

/* Each function in a child of the process. Returns the number of calls that are not refused. */
static int calls_in_a_child(void) {
    ds_ranks g;
    ds_ranks_info info;
    char id[DS_RANKS_ID_SIZE];
    ds_comm_options o = options();
    ds_tensor t = at(0, 0, 1, 0);
    ds_ranks_transfer transfer = { &t, DS_RANKS_SEND, 0, 0 };
    ds_result all[] = { ds_ranks_init(NULL, &g),
                        ds_ranks_id_create("local", id, sizeof id),
                        ds_ranks_register(me->group, room, 4),
                        ds_ranks_deregister(me->group, room),
                        ds_ranks_finalize(me->group),
                        ds_ranks_get_info(me->group, &info),
                        ds_ranks_split(me->group, 0, 0, &g),
                        ds_ranks_shrink(me->group, NULL, 0, &g),
                        ds_ranks_grow_id(me->group, id, sizeof id),
                        ds_ranks_grow(me->group, 2, &g),
                        ds_ranks_exchange(&transfer, 1, &o),
                        ds_ranks_send(&t, 0, &o),
                        ds_ranks_receive(&t, 0, &o),
                        ds_ranks_barrier(&o) };
    int others = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        others += all[i] != DS_ERR_FORKED;
    return others;
}

static void test_each_call_in_a_child_is_refused(void **state) {
    (void)state;
    int status = -1;
    begin(&two);
    pid_t child = fork();
    if (!child)
        _exit(calls_in_a_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    end(&two);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

typedef struct peer {
    int rank;
    int size;
    ds_device device;
    unsigned flags;
    ds_result code;
    const char *words;
} peer;

static void *peer_main(void *user) {
    const peer *p = user;
    ds_ranks g = { 0 };
    ds_ranks_desc desc = { .engine = "local",
                           .rank = p->rank,
                           .size = p->size,
                           .id = "peers",
                           .devices = &p->device,
                           .device_count = 1,
                           .flags = p->flags,
                           .timeout_ns = 10000000000u };
    ds_result r = ds_ranks_init(&desc, &g);
    if (r != p->code || !strstr(ds_error_get_last(), p->words)) {
        fprintf(stderr, "rank %d: %s\n", p->rank, ds_error_get_last());
        atomic_fetch_add(&failures, 1);
    }
    return NULL;
}

static void peers_meet(peer *first, peer *second) {
    pthread_t thread;
    atomic_store(&failures, 0);
    alarm(60);
    library_begin();
    assert_int_equal(pthread_create(&thread, NULL, peer_main, first), 0);
    (void)peer_main(second);
    pthread_join(thread, NULL);
    DS_IGNORE(ds_shutdown());
    assert_int_equal(blocks_left(), 0);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

static void test_ranks_must_agree(void **state) {
    (void)state;
    ds_device cpu = { DS_DEVICE_CPU, 0 };
    peer a = { 0, 2, cpu, DS_RANKS_COMPARE, DS_ERR_MISMATCH, "rank 1 has 0; they must agree" };
    peer b = { 1, 2, cpu, 0, DS_ERR_MISMATCH, "rank 0 has flags 0x1" };
    peers_meet(&a, &b);
    if (!has_gpus())
        return;
    ds_device gpu = { DS_DEVICE_CUDA, 0 };
    peer c = {
        0, 2, cpu, 0, DS_ERR_CROSS_DRIVER, "rank 0 has devices of type cpu, rank 1 of type"
    };
    peer d = { 1, 2, gpu, 0, DS_ERR_CROSS_DRIVER, "rank 1 of type cuda" };
    peers_meet(&c, &d);
}

/* Operations of ranks that differ, as the engine compares them. */
static void test_operations_that_differ(void **state) {
    (void)state;
    static const ds__net_op usual = { .kind = DS__NET_REDUCE, .root = 1, .count = 4 };
    char reason[DS__RANKS_REASON];
    for (int k = 0; k < 6; k++) {
        ds__net_op net[2] = { usual, usual };
        net[0].dtype = net[1].dtype = ds_int32();
        net[1].kind = k == 0 ? DS__NET_ALL_REDUCE : net[1].kind;
        net[1].root = k == 1 ? 0 : 1;
        net[1].count = k == 2 ? 5 : 4;
        net[1].reduce_op = k == 3 ? DS_REDUCE_MAX : net[0].reduce_op;
        net[1].dtype = k == 4 ? ds_uint32() : k == 5 ? ds_int64() : net[1].dtype;
        assert_int_equal(ds__local_move(net, 2, reason), DS_ERR_MISMATCH);
        assert_non_null(strstr(reason, "rank 0 and rank 1 called operations that differ"));
    }
    assert_false(ds__local_engine.reduces(ds_int32(), DS_REDUCE_AVERAGE));
}

/* More inputs than a step of the reduction has. */
static void test_reduction_of_many_ranks(void **state) {
    (void)state;

    enum { MANY = 19 };

    int32_t in[MANY];
    int32_t out[MANY];
    size_t none[MANY] = { 0 };
    ds__net_op net[MANY];
    char reason[DS__RANKS_REASON];
    library_begin();
    for (int i = 0; i < MANY; i++) {
        in[i] = i;
        net[i] = (ds__net_op){ .kind = DS__NET_ALL_REDUCE,
                               .in = &in[i],
                               .out = &out[i],
                               .count = 1,
                               .dtype = ds_int32(),
                               .reduce_op = DS_REDUCE_SUM };
    }
    assert_int_equal(ds__local_move(net, MANY, reason), DS_OK);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(out[i], MANY * (MANY - 1) / 2);

    for (int i = 0; i < MANY; i++) { /* and nothing at all */
        net[i].count = 0;
        net[i].parts = (ds__net_parts){ none, none };
    }
    assert_int_equal(ds__local_move(net, MANY, reason), DS_OK);
    for (int i = 0; i < MANY; i++)
        net[i].kind = DS__NET_REDUCE_SCATTER;
    assert_int_equal(ds__local_move(net, MANY, reason), DS_OK);
    ok(ds_shutdown());
    assert_int_equal(blocks_left(), 0);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static _Atomic int open_gate;

static void gate(void *unused) {
    (void)unused;
    while (!atomic_load(&open_gate))
        ds__os_sleep(1000000);
}

/* The first device sends to itself, and nothing receives that. */
static ds_result send_alone(void) {
    ds_tensor t = at(0, 0, 1, 0);
    ds_comm_options o = { .streams = me->stream, .stream_count = 1, .ranks = me->group };
    return ds_ranks_send(&t, 0, &o);
}

static ds_result receive_alone(void) {
    ds_tensor t = at(8, 0, 1, 0);
    ds_comm_options o = { .streams = &me->stream[1], .stream_count = 1, .ranks = me->group };
    t.device = me->device[1];
    ds_ranks_transfer transfer = { &t, DS_RANKS_RECEIVE, 1, 1 };
    return ds_ranks_exchange(&transfer, 1, &o);
}

static void test_transfer_without_its_other_side_is_aborted(void **state) {
    (void)state;
    begin(&two);
    OK(send_alone());
    OK(receive_alone());
    OK(ds_ranks_abort(me->group, "nothing comes"));
    EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_ABORTED, "nothing comes");
    EXPECT(ds_stream_synchronize(me->stream[1]), DS_ERR_ABORTED, "nothing comes");
    end(&two);
}

/* Earlier work that is not complete: a split has the limit of the group. */
static void test_split_waits_for_earlier_operations(void **state) {
    (void)state;
    setup how = two;
    ds_ranks out;
    how.limit_ns = 100000000;
    begin(&how);
    atomic_store(&open_gate, 0);
    ds_comm_options o = options();
    OK(ds_stream_launch_host_func(me->stream[0], gate, NULL, NULL));
    OK(ds_ranks_barrier(&o));
    EXPECT(ds_ranks_split(me->group, 0, 0, &out), DS_ERR_TIMEOUT, "earlier operations of group");
    atomic_store(&open_gate, 1);
    OK(solo_wait(me, &how));
    OK(ds_ranks_get_status(me->group));
    end(&how);
}

/* ds_shutdown ends a group with its operations. */
static void test_group_that_is_not_finalized(void **state) {
    (void)state;
    for (int site = 0; site < 2; site++) {
        library_begin();
        solo_streams(me, &two);
        ds_ranks_desc desc = { .devices = me->device, .device_count = FEW };
        ok(site ? ds_ranks_init(&desc, &me->group) : (ds_ranks_init)(&desc, &me->group));
        streams_end(me, &two);
        ok(ds_shutdown());
        assert_int_equal(blocks_left(), 0);
    }
}

static void test_quiesce_with_a_group(void **state) {
    (void)state;
    begin(&two);
    OK(ds_quiesce());
    static const verb sum = { .kind = ALL_REDUCE, .part = 3 };
    solo_tensors(me, &two, &sum);
    OK(solo_call(me, &two, &sum));
    solo_check(me, &two, &sum);
    solo_free(me, &two, &sum);
    end(&two);
}

/* The flight recorder has an entry for each transfer. */
static void test_transfers_are_recorded(void **state) {
    (void)state;
    static const verb ring = { .kind = EXCHANGE, .part = 3 };
    static const verb parts = { .kind = ALL_GATHER, .part = 3, .uneven = 1 };
    char path[] = "/tmp/ds-solo-XXXXXX";
    setup how = two;
    int file = mkstemp(path);
    assert_true(file >= 0);
    how.record = path;
    begin(&how);
    solo_tensors(me, &how, &ring);
    OK(solo_call(me, &how, &ring));
    solo_check(me, &how, &ring);
    solo_free(me, &how, &ring);
    solo_tensors(me, &how, &parts);
    OK(solo_call(me, &how, &parts));
    solo_check(me, &how, &parts);
    solo_free(me, &how, &parts);
    ds__group *g = ds__group_pin(me->group);
    assert_int_equal(g->operations, 2);
    assert_true(atomic_load(&g->recorder->header->last) >= 5); /* four transfers, a gather */
    ds__group_unpin(g);
    end(&how);
    close(file);
    (void)unlink(path);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* Captures a call on all streams, behind the first one. */
static ds_result capture(const setup *how, const verb *v, ds_graph *out) {
    OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
    for (size_t k = 1; k < how->own; k++)
        OK(ds_stream_wait_stream(me->stream[k], me->stream[0]));
    ds_result r = solo_call(me, how, v);
    for (size_t k = 1; k < how->own; k++)
        OK(ds_stream_wait_stream(me->stream[0], me->stream[k]));
    ds_result ended = ds_capture_end(me->stream[0], out);
    return r < 0 ? r : ended;
}

static void launch(const setup *how, const verb *v, ds_graph graph) {
    ds_graph_exec exec;
    OK(ds_graph_instantiate(graph, NULL, &exec));
    for (int i = 0; i < 2; i++) {
        OK(ds_graph_launch(exec, me->stream[0]));
        OK(ds_stream_synchronize(me->stream[0]));
        solo_check(me, how, v);
    }
    OK(ds_graph_exec_destroy(exec));
}

/* The check layer hears of each captured operation, and finds nothing wrong. */
static void test_each_call_is_captured(void **state) {
    (void)state;
    for (int check = 0; check < 2; check++)
        for (size_t i = 0; i < VERBS; i++) {
            ds_graph graph = { 0 };
            if (check)
                setenv("DEVSTREAM_CHECK", "exit=3", 1);
            begin(&two);
            solo_tensors(me, &two, &verbs[i]);
            OK(capture(&two, &verbs[i], &graph));
            launch(&two, &verbs[i], graph);
            OK(ds_graph_destroy(graph));
            solo_free(me, &two, &verbs[i]);
            end(&two);
            unsetenv("DEVSTREAM_CHECK");
        }
}

/* With the check layer, which then misses the operation, the call may succeed. */
static void each_allocation_of_a_capture(int checks) {
    static const verb sum = { .kind = ALL_REDUCE, .part = 3 };
    int hit = 1;
    for (long nth = 1; hit; nth++) {
        ds_graph graph = { 0 };
        if (checks)
            setenv("DEVSTREAM_CHECK", "1", 1);
        begin(&two);
        solo_tensors(me, &two, &sum);
        OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
        OK(ds_stream_wait_stream(me->stream[1], me->stream[0]));
        scarce_arm(nth);
        ds_result r = solo_call(me, &two, &sum);
        hit = scarce_disarm();
        if (r < 0 || !checks)
            EXPECT(r, hit ? DS_ERR_OUT_OF_MEMORY : DS_OK, "");
        OK(ds_stream_wait_stream(me->stream[0], me->stream[1]));
        OK(ds_capture_end(me->stream[0], &graph));
        OK(ds_graph_destroy(graph));
        OK(ds_ranks_get_status(me->group));
        solo_free(me, &two, &sum);
        end(&two);
        unsetenv("DEVSTREAM_CHECK");
    }
}

static void test_each_allocation_of_a_capture_may_fail(void **state) {
    (void)state;
    each_allocation_of_a_capture(0);
    each_allocation_of_a_capture(1);
}

/* A launch after the end of the group skips the operation. */
static void test_launch_after_the_end_of_a_group(void **state) {
    (void)state;
    static const verb sum = { .kind = ALL_REDUCE, .part = 3 };
    for (int aborts = 0; aborts < 2; aborts++) {
        ds_graph graph = { 0 };
        ds_graph_exec exec;
        begin(&two);
        solo_tensors(me, &two, &sum);
        OK(capture(&two, &sum, &graph));
        OK(ds_graph_instantiate(graph, NULL, &exec));
        if (aborts)
            OK(ds_ranks_abort(me->group, "the end"));
        else
            OK(ds_ranks_finalize(me->group));
        OK(ds_graph_launch(exec, me->stream[0]));
        OK(ds_stream_synchronize(me->stream[0]));
        OK(ds_graph_exec_destroy(exec));
        OK(ds_graph_destroy(graph));
        solo_free(me, &two, &sum);
        me->group = aborts ? me->group : (ds_ranks){ 0 };
        end(&two);
    }
}

/* ---- many devices ---------------------------------------------------------------------------- */

static void test_too_many_pairs_of_devices(void **state) {
    (void)state;

    enum { DEVICES = 200 };

    static ds_device same[DEVICES];
    begin(&two);
    ds_ranks many;
    for (size_t i = 0; i < DEVICES; i++)
        same[i] = me->device[0];
    ds_ranks_desc desc = {
        .engine = "local", .size = 1, .id = "many", .devices = same, .device_count = DEVICES
    };
    OK(ds_ranks_init(&desc, &many));
    ds_tensor t = at(0, 0, 1, 0);
    ds_comm_options o = { .streams = me->stream, .stream_count = 1, .ranks = many };
    ds_ranks_transfer transfer = { &t, DS_RANKS_SEND, DEVICES - 1, DEVICES - 1 };
    EXPECT(ds_ranks_exchange(&transfer, 1, &o), DS_ERR_UNSUPPORTED, "more than 32767 pairs");
    OK(ds_ranks_get_status(many));
    OK(ds_ranks_finalize(many));
    end(&two);
}

/* What a driver does not report at waits is kept for the device until its reset. */
static void test_a_reset_of_a_device_forgets_its_failures(void **state) {
    (void)state;
    begin(&two);
    ds__group failed = { .code = DS_ERR_ABORTED, .reason = "a reason" };
    int before = atomic_load(&ds__drive.failed);
    ds__rfailure_add(ds_cpu(0), 0, &failed);
    ds__rfailure_add(ds_cpu(1), 0, &failed);
    EXPECT(ds__rfailure_of(ds_cpu(0), 0), DS_ERR_ABORTED, "a reason");
    OK(ds_device_reset(ds_cpu(0)));
    OK(ds__rfailure_of(ds_cpu(0), 0));
    EXPECT(ds__rfailure_of(ds_cpu(1), 0), DS_ERR_ABORTED, "a reason");
    OK(ds_device_reset(ds_cpu(1)));
    OK(ds__rfailure_of(ds_cpu(1), 0));
    assert_int_equal(atomic_load(&ds__drive.failed), before);
    end(&two);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_tensors_are_refused),
        cmocka_unit_test(test_each_call_of_a_failed_group_is_refused),
        cmocka_unit_test(test_scalars_are_reduced),
        cmocka_unit_test(test_group_without_a_description),
        cmocka_unit_test(test_group_without_a_progress_thread),
        cmocka_unit_test(test_wrong_descriptions_are_refused),
        cmocka_unit_test(test_wrong_handles_are_refused),
        cmocka_unit_test(test_each_call_in_a_child_is_refused),
        cmocka_unit_test(test_ranks_must_agree),
        cmocka_unit_test(test_operations_that_differ),
        cmocka_unit_test(test_reduction_of_many_ranks),
        cmocka_unit_test(test_transfer_without_its_other_side_is_aborted),
        cmocka_unit_test(test_split_waits_for_earlier_operations),
        cmocka_unit_test(test_group_that_is_not_finalized),
        cmocka_unit_test(test_quiesce_with_a_group),
        cmocka_unit_test(test_transfers_are_recorded),
        cmocka_unit_test(test_each_call_is_captured),
        cmocka_unit_test(test_each_allocation_of_a_capture_may_fail),
        cmocka_unit_test(test_launch_after_the_end_of_a_group),
        cmocka_unit_test(test_too_many_pairs_of_devices),
        cmocka_unit_test(test_a_reset_of_a_device_forgets_its_failures),
    };
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    setenv("STANDIN_DEVICES", "2", 1);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
