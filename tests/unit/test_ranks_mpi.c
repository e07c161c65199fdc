/* The engine "mpi" on a stand-in for MPI: each call of MPI fails once; the thread levels, libraries
   and answers that MPICH does not give. tests/ranks/collectives.c runs with MPICH. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "../ranks/solo.h"
#include "mpi.h"

#include <dlfcn.h>

#ifdef DEVSTREAM_CUDA
#include <cuda_runtime_api.h>
#endif

static mpi_standin *mpi;

/* Writes the path of a library beside the folder of this program. */
static void library_path(const char *name, char out[1024]) {
    const char *folder = getenv("DS_TEST_MPI"); /* for tests/defects/run.sh */
    ssize_t size =
        folder ? snprintf(out, 900, "%s/", folder) : readlink("/proc/self/exe", out, 900);
    assert_true(size > 0 && size < 900);
    out[size] = '\0';
    strcpy(strrchr(out, '/'), folder ? "/" : "/../");
    strcat(out, name);
}

static mpi_standin usual = { .abi = 1, .level = DS__MPI_THREAD_MULTIPLE, .size = 1 };

/* Makes the process one that has not used MPI. */
static void mpi_reset(void) {
    *mpi = usual;
    ds__mpi_state.owned = 0;
    ds__mpi_state.reaches_gpus = 0;
    atomic_store(&ds__mpi_state.unfinished, 0);
    atomic_store(&ds__mpi_state.serialized, 0);
}

/* ---- each call fails ------------------------------------------------------------------------- */

static void mpi_arm(long nth) {
    mpi->failed = 0;
    mpi->fail_at = (int)nth;
}

static int mpi_disarm(void) {
    int hit = mpi->failed;
    mpi->fail_at = 0;
    mpi->failed = 0;
    return hit;
}

static const fault mpi_fails = { mpi_arm, mpi_disarm, DS_ERR_FAILED, "the test wants error 77", 1 };

/* Memory that MPI may still use is not freed. */
static fault no_memory_for_mpi(void) {
    fault f = no_memory;
    f.leaks = 1;
    return f;
}

#ifdef DEVSTREAM_CUDA
static void copy(void *to, const void *from, size_t bytes) {
    static _Thread_local cudaStream_t stream;
    if (!stream && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        abort();
    if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
        abort();
}
#else
static void (*const copy)(void *, const void *, size_t); /* none */
#endif

static void each_call(int type, size_t own) {
    setup how = { .engine = "mpi", .type = type, .own = own };
    fault f = no_memory_for_mpi();
    for (int gpus = 0; gpus < (type == DS_DEVICE_CUDA ? 2 : 1); gpus++) {
        usual.gpus = gpus;
        usual.copy_fn = gpus ? copy : NULL;
        solo_each(&how, verbs, VERBS, &f);
        solo_each(&how, verbs, VERBS, &mpi_fails);
    }
    usual.gpus = 0;
    usual.copy_fn = NULL;
}

static void test_each_step_of_a_collective_may_fail(void **state) {
    (void)state;
    each_call(DS_DEVICE_CPU, 1);
    each_call(DS_DEVICE_CPU, FEW);
}

static void test_each_step_on_gpus_may_fail(void **state) {
    (void)state;
    if (!has_gpus())
        skip();
    each_call(DS_DEVICE_CUDA, FEW);
}

static void test_each_step_of_a_creation_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "mpi", .type = DS_DEVICE_CPU, .own = FEW };
    fault f = no_memory_for_mpi();
    solo_each_creation(&how, &f);
    for (int has = 0; has < 2; has++) { /* the program has initialized MPI, or not */
        usual.initialized = has;
        solo_each_creation(&how, &mpi_fails);
    }
    usual.initialized = 0;
}

/* ---- MPI as the program has it --------------------------------------------------------------- */

static solo alone;
static solo *const me = &alone;
static const setup one = { .engine = "mpi", .type = DS_DEVICE_CPU, .own = 1 };

/* Begins a test with one device, whose settings of MPI the caller has written to `usual`. */
static void begin(void) {
    atomic_store(&failures, 0);
    alarm(60);
    library_begin();
    solo_streams(me, &one);
}

static void end(void) {
    fault f = { .leaks = 1 };
    solo_end(me, &one, &f);
    alarm(0);
    usual = (mpi_standin){ .abi = 1, .level = DS__MPI_THREAD_MULTIPLE, .size = 1 };
    assert_int_equal(atomic_load(&failures), 0);
}

static ds_ranks_desc desc_of(unsigned flags) {
    return (ds_ranks_desc){ .engine = "mpi",
                            .devices = me->device,
                            .device_count = 1,
                            .flags = flags,
                            .timeout_ns = 50000000 };
}

static void test_thread_level_is_refused(void **state) {
    (void)state;

    static const struct {
        int level;
        const char *words;
    } levels[] = { { DS__MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE, and" },
                   { DS__MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED, and" },
                   { DS__MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED, and" },
                   { 99, "an unknown thread level, and" } };

    assert_string_equal(ds__mpi_level_name(DS__MPI_THREAD_MULTIPLE), "MPI_THREAD_MULTIPLE");
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        usual.level = levels[i].level;
        usual.initialized = (int)i % 2;
        begin();
        ds_ranks_desc desc = desc_of(0);
        EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_UNSUPPORTED, levels[i].words);
        end();
    }
}

/* devstream's own calls do not meet. */
static void test_serialized_calls(void **state) {
    (void)state;
    setup how = {
        .engine = "mpi", .type = DS_DEVICE_CPU, .own = FEW, .flags = DS_RANKS_NO_OTHER_MPI
    };
    usual.level = DS__MPI_THREAD_SERIALIZED;
    solo_each(&how, verbs, VERBS, &mpi_fails);
    usual.level = DS__MPI_THREAD_MULTIPLE;
}

static void test_numbers_of_the_program_are_compared(void **state) {
    (void)state;
    begin();
    ds_ranks_desc desc = desc_of(0);
    desc.rank = 1;
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_INVALID_VALUE, "but MPI has rank 0 of 1");
    desc.rank = 0;
    desc.size = 2;
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_INVALID_VALUE, "desc.size is 2");
    desc.size = 1;
    OK(ds_ranks_init(&desc, &me->group));
    end();
}

static void test_communicator_of_the_program(void **state) {
    (void)state;
    ds__mpi_comm self = DS__MPI_COMM_SELF;
    ds_ranks_info info;
    usual.size = 3;
    begin();
    ds_ranks_desc desc = desc_of(0);
    memcpy(&desc.mpi_comm, &self, sizeof self);
    OK(ds_ranks_init(&desc, &me->group));
    OK(ds_ranks_get_info(me->group, &info));
    assert_int_equal(info.size, 1);
    assert_string_equal(info.library, "MPI that stands in (ABI 1)");
    mpi->fail_name = "Get_library_version";
    mpi->fail_at = 1;
    OK(ds_ranks_get_info(me->group, &info));
    assert_string_equal(info.library, " (ABI 1)");
    char text[DS_RANKS_ID_SIZE];
    EXPECT(ds_ranks_grow_id(me->group, text, sizeof text), DS_ERR_UNSUPPORTED, "cannot grow");
    EXPECT(ds_ranks_grow(me->group, 2, &me->group), DS_ERR_UNSUPPORTED, "cannot grow");
    me->group = (ds_ranks){ 0 };
    end();
}

static void test_launcher_without_this_mpi(void **state) {
    (void)state;
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "5", 1);
    begin();
    ds_ranks_desc desc = desc_of(0);
    desc.engine = NULL; /* that of a launcher */
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_INVALID_VALUE, "mpiexec started 5 processes");
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
    end();
}

static void test_mpi_was_finalized(void **state) {
    (void)state;
    usual.initialized = 1;
    usual.finalized = 1;
    begin();
    ds_ranks_desc desc = desc_of(0);
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_ILLEGAL_STATE,
           "MPI was finalized, and cannot be initialized twice");
    ds__mpi_state.owned = 1;
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_ILLEGAL_STATE, "by ds_shutdown");
    end();
}

static void test_error_without_a_text(void **state) {
    (void)state;
    usual.nameless = 1;
    begin();
    mpi->fail_name = "Comm_idup";
    mpi->fail_at = 1;
    ds_ranks_desc desc = desc_of(0);
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_FAILED, "MPI_Comm_idup failed: error 77");
    end();
}

/* ---- other ranks ----------------------------------------------------------------------------- */

static void test_copy_takes_longer_than_the_limit(void **state) {
    (void)state;
    usual.pending = -1;
    begin();
    ds_ranks_desc desc = desc_of(0);
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_TIMEOUT, "copy of the communicator: not all");
    mpi->pending = 1200;
    desc.timeout_ns = 20000000000u;
    OK(ds_ranks_init(&desc, &me->group));
    end();
    assert_int_equal(mpi->finalized, 0); /* the first copy may be pending for ever */
}

static void test_received_message_is_too_short(void **state) {
    (void)state;
    static const verb ring = { .kind = EXCHANGE, .part = 3 };
    begin();
    OK(solo_join(me, &one, NULL));
    solo_tensors(me, &one, &ring);
    mpi->lost = 4;
    ds_result r = solo_call(me, &one, &ring); /* it may be over when the call returns */
    if (r < 0)
        EXPECT(r, DS_ERR_MISMATCH, "rank 0 has sent 8 bytes where 12 are received");
    EXPECT(solo_wait(me, &one), DS_ERR_MISMATCH, "rank 0 has sent 8 bytes where 12 are received");
    solo_free(me, &one, &ring);
    end();
}

static void test_pending_operation_is_given_up(void **state) {
    (void)state;
    static const verb sum = { .kind = ALL_REDUCE, .part = 3, .flags = DS_COMM_ANY_ORDER };
    begin();
    OK(solo_join(me, &one, NULL));
    solo_tensors(me, &one, &sum);
    mpi->pending = -1;
    OK(solo_call(me, &one, &sum));
    OK(ds_ranks_abort(me->group, "the test wants it"));
    EXPECT(solo_wait(me, &one), DS_ERR_ABORTED, "the test wants it");
    assert_int_equal(atomic_load(&ds__mpi_state.unfinished), 1);
    solo_free(me, &one, &sum);
    end();
    assert_int_equal(mpi->finalized, 0);
}

static void test_failure_of_a_receive_is_heard(void **state) {
    (void)state;
    begin();
    OK(solo_join(me, &one, NULL));
    mpi->fail_name = "Test";
    mpi->fail_at = 1;
    EXPECT(ds_ranks_get_status(me->group), DS_ERR_FAILED, "MPI_Test failed: the test wants error");
    EXPECT(ds_ranks_get_status(me->group), DS_ERR_FAILED, "rank -1");
    end();
}

/* Two ranks, of which the other one does the same: its failure comes back. */
static void test_failure_is_told(void **state) {
    (void)state;
    static const char *const names[] = { "", "Isend", "Test", "" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        usual.size = 2;
        begin();
        ds_ranks first;
        OK(solo_join(me, &one, NULL));
        OK(ds_ranks_split(me->group, 0, 7, &first));
        mpi->fail_name = names[i];
        mpi->fail_at = 1;
        mpi->pending = i < 3 ? 0 : -1; /* the message stays with MPI */
        OK(ds_ranks_abort(first, "the test wants it"));
        ds_ranks other;
        EXPECT(ds_ranks_split(first, 0, 0, &other), DS_ERR_ABORTED, "the test wants it");
        mpi->fail_name = NULL;
        OK(ds_ranks_finalize(first));
        end();
        assert_int_equal(mpi->finalized, 0);
    }
}

/* A rank that has given up a split after its color was sent. */
static void test_split_hears_of_a_failure(void **state) {
    (void)state;
    ds_ranks other;
    usual.size = 2;
    begin();
    OK(solo_join(me, &one, NULL));
    ds__group *g = ds__group_pin(me->group);
    ds__mpi_tell(g->comm, DS_ERR_ABORTED, "the other one");
    EXPECT(ds_ranks_split(me->group, 0, 0, &other), DS_ERR_ABORTED, "rank 0: the other one");
    ds__group_unpin(g);
    end();
}

static void test_no_memory_to_tell(void **state) {
    (void)state;
    for (int nth = 1; nth <= 2; nth++) {
        usual.size = 2;
        begin();
        OK(solo_join(me, &one, NULL));
        scarce_arm(nth);
        OK(ds_ranks_abort(me->group, "the test wants it"));
        assert_int_equal(scarce_disarm(), 1);
        EXPECT(ds_ranks_get_status(me->group), DS_ERR_ABORTED, "the test wants it");
        end();
    }
}

static void test_exclusion_of_the_other_rank(void **state) {
    (void)state;
    int gone = 1;
    ds_ranks rest;
    ds_ranks_info info;
    usual.size = 2;
    begin();
    OK(solo_join(me, &one, NULL));
    OK(ds_ranks_shrink(me->group, &gone, 1, &rest));
    OK(ds_ranks_get_info(rest, &info));
    assert_int_equal(info.size, 1);
    OK(ds_ranks_finalize(rest));
    end();
}

/* The whole tensor is on the other rank. */
static void test_parts_without_the_whole_are_checked(void **state) {
    (void)state;
    static float data[16];
    int64_t flat = 4;
    int64_t shape[2] = { 2, 2 };
    int64_t sizes[] = { 4, 3, 4, 4 };
    setup how = one;
    how.own = FEW;
    usual.size = 2;
    atomic_store(&failures, 0);
    alarm(60);
    solo_begin(me, &how);
    ds_tensor t[] = { ds_tensor_of(data, me->device[0], ds_float32(), 2, shape),
                      ds_tensor_of(data + 4, me->device[1], ds_float32(), 1, &flat) };
    const ds_tensor *list[] = { &t[0], &t[1] };
    ds_ranks_options more = { .sizes = NULL };
    ds_comm_options o = { .streams = me->stream,
                          .stream_count = FEW,
                          .ranks = me->group,
                          .root = FEW,
                          .ranks_options = &more };
    EXPECT(ds_comm_gather_into(list, FEW, 1, NULL, &o), DS_ERR_INVALID_VALUE,
           "dim is 1, but part 1 has 1 dimensions");
    t[0] = t[1];
    t[0].device = me->device[0];
    t[0].data = data;
    more.sizes = sizes;
    EXPECT(ds_comm_gather_into(list, FEW, 0, NULL, &o), DS_ERR_INVALID_VALUE,
           "part 1 has size 4 in dimension 0, but ranks_options->sizes[1] is 3");
    EXPECT(ds_quiesce(), DS_ERR_ILLEGAL_STATE, "ties this process to others; finalize it");
    fault f = { .leaks = 1 };
    solo_end(me, &how, &f);
    alarm(0);
    usual.size = 1;
    assert_int_equal(atomic_load(&failures), 0);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Each call of the end fails: ds_shutdown returns, and MPI is not finalized. gives_up: a request is
   pending. */
static void each_end(int gives_up) {
    int finalized = 0;
    int hit = 1;
    for (int nth = 1; hit; nth++) {
        usual.size = 2;
        begin();
        OK(solo_join(me, &one, NULL));
        OK(ds_ranks_finalize(me->group));
        me->group = (ds_ranks){ 0 };
        if (gives_up)
            ds__mpi_give_up();
        mpi_arm(nth);
        end();
        hit = mpi_disarm();
        finalized = mpi->finalized;
    }
    assert_int_equal(finalized, !gives_up);
}

static void test_each_call_of_the_end_may_fail(void **state) {
    (void)state;
    each_end(0);
    each_end(1);
}

/* The byte for the other process stays with MPI. */
static void test_end_does_not_wait_for_its_messages(void **state) {
    (void)state;
    int done = 0;
    usual.size = 2;
    begin();
    OK(solo_join(me, &one, NULL));
    OK(ds_ranks_finalize(me->group));
    me->group = (ds_ranks){ 0 };
    assert_int_equal(ds__mpi.Test(&ds__mpi_state.copying, &done, NULL), 0);
    ds__mpi_give_up();
    mpi->pending = -1;
    end();
    assert_int_equal(mpi->finalized, 0);
}

/* Another process does not finalize MPI. */
static void test_end_that_another_process_leaves_out(void **state) {
    (void)state;
    static char gone;
    ds__mpi_request sending;
    usual.size = 2;
    begin();
    OK(solo_join(me, &one, NULL));
    OK(ds_ranks_finalize(me->group));
    me->group = (ds_ranks){ 0 };
    int done = 0;
    assert_int_equal(ds__mpi.Test(&ds__mpi_state.copying, &done, NULL), 0);
    assert_int_equal(
        ds__mpi.Isend(&gone, 1, DS__MPI_BYTE, 1, DS__MPI_TAG_END, ds__mpi_state.last, &sending), 0);
    mpi->pending = -1;
    end();
    assert_int_equal(mpi->finalized, 0);
}

/* ---- reductions and counts ------------------------------------------------------------------- */

/* A type of several numbers has none of MPI's. */
static void test_reductions_that_mpi_computes(void **state) {
    (void)state;
    ds_dtype pair = ds_int32();
    assert_true(ds__mpi_engine.reduces(pair, DS_REDUCE_MAX));
    pair.lanes = 2;
    assert_false(ds__mpi_engine.reduces(pair, DS_REDUCE_MAX));
    assert_false(ds__mpi_engine.reduces(ds_float16(), DS_REDUCE_SUM));
    assert_false(ds__mpi_engine.reduces(ds_float32(), DS_REDUCE_AVERAGE));
    assert_false(ds__mpi_engine.reduces(ds_float32(), DS_REDUCE_MIN));
}

/* More bytes than a call of MPI can pass, or than there is memory for. */
static void test_counts_are_refused(void **state) {
    (void)state;
    static const ds__net_kind kinds[] = { DS__NET_ALL_REDUCE,    DS__NET_REDUCE,  DS__NET_BROADCAST,
                                          DS__NET_ALL_GATHER,    DS__NET_SCATTER, DS__NET_GATHER,
                                          DS__NET_REDUCE_SCATTER };
    size_t many[] = { SIZE_MAX, 0 };
    size_t few[] = { 1, SIZE_MAX };
    size_t at[] = { 0, 0 };
    ds__net_request request;
    ds__net_transfer t = { .bytes = SIZE_MAX };
    usual.size = 2;
    begin();
    OK(solo_join(me, &one, NULL));
    ds__group *g = ds__group_pin(me->group);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        ds__net_op op = { .kind = kinds[i],
                          .count = SIZE_MAX,
                          .dtype = ds_int8(),
                          .parts = { many, at },
                          .out_parts = { many, at } };
        EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_UNSUPPORTED, "elements or bytes");
    }
    ds__net_op op = { .kind = DS__NET_REDUCE_SCATTER, .dtype = ds_int8(), .parts = { few, at } };
    EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_UNSUPPORTED, "elements or bytes");
    few[1] = 1;
    few[0] = many[1] = SIZE_MAX;
    op.parts.bytes = many; /* all are equal, and too large */
    EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_UNSUPPORTED, "elements or bytes");

    op = (ds__net_op){ .kind = DS__NET_EXCHANGE, .transfers = &t, .transfer_count = 1 };
    EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_UNSUPPORTED, "elements or bytes");
    op.transfer_count = (size_t)INT_MAX + 1;
    EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_INVALID_VALUE, "2147483648 transfers");

    for (int nth = 1; nth <= 2; nth++) { /* memory for counts, and for messages */
        few[0] = 1;
        few[1] = 2;
        op = (ds__net_op){ .kind = nth == 1 ? DS__NET_REDUCE_SCATTER : DS__NET_GATHER,
                           .on_gpu = nth == 2,
                           .dtype = ds_int8(),
                           .parts = { few, at } };
        scarce_arm(1);
        EXPECT(g->engine->start(g->comm, &op, &request), DS_ERR_OUT_OF_MEMORY,
               "out of host memory");
        assert_int_equal(scarce_disarm(), 1);
    }
    ds__group_unpin(g);
    end();
}

/* ---- libraries ------------------------------------------------------------------------------- */

/* Forgets the library, and expects that another one is refused. */
static void refuse(const char *path, int abi, const char *words) {
    ds__mpi_table kept = ds__mpi;
    memset(&ds__mpi, 0, sizeof ds__mpi);
    usual.abi = abi;
    setenv("DEVSTREAM_MPI_LIBRARY", path, 1);
    begin();
    ds_ranks_desc desc = desc_of(0);
    EXPECT(ds_ranks_init(&desc, &me->group), DS_ERR_UNSUPPORTED, words);
    end();
    ds__mpi = kept;
}

static void test_libraries_that_are_refused(void **state) {
    (void)state;
    char path[1024];
    char lacks[1024];
    library_path("mpi.so", path);
    library_path("mpi-lacks.so", lacks);
    refuse("/nothing/libmpi_abi.so.1", 1, "MPI cannot be loaded (");
    refuse("libm.so.6", 1, "libm.so.6 does not have the standard ABI of MPI");
    refuse(path, 2, "name a library with the ABI in DEVSTREAM_MPI_LIBRARY");
    refuse(lacks, 1, "has no function MPI_Ialltoallv_c");
    refuse(path, 1, "libmpi.so.12 has no function MPI_Ialltoallv_c"); /* the process has it now */
    void *library = dlopen(lacks, RTLD_NOW);
    mpi_standin *of_process = library ? dlsym(library, "mpi_lacks") : NULL;
    assert_non_null(of_process);
    of_process->abi = -1;
    refuse(path, 1, "the process has this MPI, so no other one can be loaded");
    dlclose(library);
    setenv("DEVSTREAM_MPI_LIBRARY", path, 1);
}

int main(int argc, char **argv) {
    char path[1024];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_step_of_a_creation_may_fail),
        cmocka_unit_test(test_each_step_of_a_collective_may_fail),
        cmocka_unit_test(test_each_step_on_gpus_may_fail),
        cmocka_unit_test(test_thread_level_is_refused),
        cmocka_unit_test(test_serialized_calls),
        cmocka_unit_test(test_numbers_of_the_program_are_compared),
        cmocka_unit_test(test_communicator_of_the_program),
        cmocka_unit_test(test_launcher_without_this_mpi),
        cmocka_unit_test(test_mpi_was_finalized),
        cmocka_unit_test(test_error_without_a_text),
        cmocka_unit_test(test_copy_takes_longer_than_the_limit),
        cmocka_unit_test(test_received_message_is_too_short),
        cmocka_unit_test(test_pending_operation_is_given_up),
        cmocka_unit_test(test_failure_of_a_receive_is_heard),
        cmocka_unit_test(test_failure_is_told),
        cmocka_unit_test(test_split_hears_of_a_failure),
        cmocka_unit_test(test_no_memory_to_tell),
        cmocka_unit_test(test_exclusion_of_the_other_rank),
        cmocka_unit_test(test_parts_without_the_whole_are_checked),
        cmocka_unit_test(test_each_call_of_the_end_may_fail),
        cmocka_unit_test(test_end_does_not_wait_for_its_messages),
        cmocka_unit_test(test_end_that_another_process_leaves_out),
        cmocka_unit_test(test_reductions_that_mpi_computes),
        cmocka_unit_test(test_counts_are_refused),
        cmocka_unit_test(test_libraries_that_are_refused),
    };
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    setenv("STANDIN_DEVICES", "2", 1);
    library_path("mpi.so", path);
    setenv("DEVSTREAM_MPI_LIBRARY", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    mpi = library ? dlsym(library, "mpi") : NULL;
    if (!mpi) {
        printf("FAIL  %s: %s\n", path, dlerror());
        return 1;
    }
    begin_fn = mpi_reset;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
