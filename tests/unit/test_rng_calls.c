/* The calls of generators with wrong arguments, from inside of user code, and when host memory or
   the driver fails: what each one returns and says, what it leaves, and that it works afterwards.
   On the CPU driver and, upon the stand-in, on the CUDA driver, with two devices each. */
#include <pthread.h>

static int lock_after_guest(pthread_mutex_t *m);
#define pthread_mutex_lock(m) lock_after_guest(m)
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_rng.h"
#include "rng/fill.h"
#include "rng/state.h"
#include "scarce.h"
#include "unit.h"
#include "both.h"

#undef pthread_mutex_lock
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What another thread does before this thread takes the lock, or gets its next block of host
   memory. */
static _Thread_local const pthread_mutex_t *door;
static _Thread_local int at_block;
static void *(*guest)(void *user);

static void let_guest_in(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, guest, NULL) == 0)
        pthread_join(thread, NULL);
}

static int lock_after_guest(pthread_mutex_t *m) {
    if (door && door == m) {
        door = NULL;
        let_guest_in();
    }
    return pthread_mutex_lock(m);
}

static void *alloc_after_guest(size_t size, void *user) {
    if (at_block) {
        at_block = 0;
        let_guest_in();
    }
    return scarce_alloc(size, user);
}

static ds_device device, second; /* of the driver under test */
static ds_stream stream;
static char *memory; /* of the device, 4096 bytes */
static char warnings[1000];

static void note_warning(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level == DS_LOG_WARNING)
        snprintf(warnings, sizeof warnings, "%s", item->text);
}

static void start(const char *fault) {
    static ds_cpu_desc cpu;
    cpu = (ds_cpu_desc){ .devices = 2 };
    warnings[0] = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .fault = fault,
                                .layers = fault ? "fault" : NULL,
                                .log_fn = note_warning,
                                .allocator = { alloc_after_guest, scarce_free, NULL } }));
}

static void stop(void) {
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
#ifdef DEVSTREAM_CUDA
    char report[200];
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
#endif
}

static void open_scene(void) {
    void *p;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &stream));
    ok(ds_device_alloc(device, 4096, &p));
    memory = p;
}

static void close_scene(void) {
    ok(ds_stream_synchronize(stream));
    ok(ds_device_free(memory));
    ok(ds_stream_destroy(stream));
}

static int begin_on(ds_device d) {
    device = d;
    second = d;
    second.index = 1;
    start(NULL);
    open_scene();
    return 0;
}

static int begin_cpu(void **state) {
    (void)state;
    return begin_on(ds_cpu(0));
}
#ifdef DEVSTREAM_CUDA
static int begin_cuda(void **state) {
    (void)state;
    return begin_on(ds_cuda(0));
}
#endif

static int end(void **state) {
    (void)state;
    close_scene();
    stop();
    return 0;
}

static ds_rng rng_of(ds_device d) {
    ds_rng r;
    ok(ds_rng_create(&(ds_rng_desc){ .device = d, .label = "of a test" }, &r));
    return r;
}

static ds_rng_info info_of(ds_rng r) {
    ds_rng_info info;
    ok(ds_rng_get_info(r, &info));
    return info;
}

static void expect_same(ds_rng_info a, ds_rng_info b) {
    assert_int_equal(a.device.type, b.device.type);
    assert_int_equal(a.device.index, b.device.index);
    assert_int_equal(a.seed, b.seed);
    assert_int_equal(a.offset, b.offset);
    assert_int_equal(a.mapping, b.mapping);
    assert_int_equal(a.multiprocessors, b.multiprocessors);
    assert_int_equal(a.threads_per_multiprocessor, b.threads_per_multiprocessor);
}

/* ---- wrong arguments ---- */

static void test_missing_outputs_are_refused(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    refused(ds_rng_create(NULL, NULL), DS_ERR_INVALID_VALUE, "ds_rng_create: out is NULL");
    refused(ds_rng_clone(r, NULL), DS_ERR_INVALID_VALUE, "ds_rng_clone: out is NULL");
    refused(ds_rng_get_default(device, NULL), DS_ERR_INVALID_VALUE, "ds_rng_get_default: out is");
    refused(ds_rng_get_info(r, NULL), DS_ERR_INVALID_VALUE, "ds_rng_get_info: out is NULL");
    refused(ds_rng_get_seed(r, NULL), DS_ERR_INVALID_VALUE, "ds_rng_get_seed: out_seed is NULL");
    refused(ds_rng_get_offset(r, NULL), DS_ERR_INVALID_VALUE, "out_offset is NULL");
    refused(ds_rng_get_state(r, NULL, 16), DS_ERR_INVALID_VALUE, "16 bytes; size is 0");
    refused(ds_rng_set_state(r, NULL, 16), DS_ERR_INVALID_VALUE, "state is NULL");
    refused(ds_rng_get_device_seed(device, NULL), DS_ERR_INVALID_VALUE, "out_seed is NULL");
    refused(ds_rng_get_state_all((ds_device_type)device.type, NULL, 0, NULL), DS_ERR_INVALID_VALUE,
            "out_count is NULL");
    refused(ds_rng_set_state_all((ds_device_type)device.type, NULL, 1), DS_ERR_INVALID_VALUE,
            "states is NULL");
    ok(ds_rng_set_state_all((ds_device_type)device.type, NULL, 0));
    ok(ds_rng_destroy(r));
}

/* An output that a call may leave out. */
static void test_a_new_seed_need_not_be_returned(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    uint64_t before = info_of(r).seed, own, later;
    ok(ds_rng_get_device_seed(device, &own));
    ok(ds_rng_reseed(r, NULL));
    assert_true(info_of(r).seed != before);
    ok(ds_rng_reseed_device(device, NULL));
    ok(ds_rng_get_device_seed(device, &later));
    assert_true(later != own);
    ok(ds_rng_reseed_all(NULL));
    ok(ds_rng_get_device_seed(device, &own));
    assert_true(later != own);
    ok(ds_rng_destroy(r));
}

/* Every call with the handle; the sentence must be about the handle. */
static void expect_invalid(ds_rng r, const char *words) {
    uint64_t n = 7;
    ds_rng copy = { 7 };
    ds_rng_info info = { .seed = 7 };
    char bytes[DS_RNG_STATE_SIZE] = { 0 };
    refused(ds_rng_clone(r, &copy), DS_ERR_INVALID_HANDLE, words);
    assert_int_equal(copy.id, 0);
    refused(ds_rng_destroy(r), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_get_info(r, &info), DS_ERR_INVALID_HANDLE, words);
    assert_int_equal(info.seed, 0);
    refused(ds_rng_set_mapping(r, DS_RNG_TORCH, 0, 0), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_set_seed(r, 1), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_reseed(r, &n), DS_ERR_INVALID_HANDLE, words);
    assert_int_equal(n, 0);
    refused(ds_rng_get_seed(r, &n), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_get_offset(r, &n), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_set_offset(r, 4), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_get_state(r, bytes, sizeof bytes), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_set_state(r, bytes, sizeof bytes), DS_ERR_INVALID_HANDLE, words);
    refused(ds_rng_bits(r, ds_uint32(), memory, 4, stream), DS_ERR_INVALID_HANDLE, words);
}

static void test_a_handle_that_is_not_valid_is_refused(void **state) {
    (void)state;
    static const char words[] = "the generator was destroyed or never existed";
    ds_rng old = rng_of(device), kept = rng_of(device);
    ok(ds_rng_destroy(old));
    expect_invalid(old, words); /* an empty place */
    ds_rng fresh = rng_of(device);
    assert_int_equal((uint32_t)fresh.id, (uint32_t)old.id);
    expect_invalid(old, words);                                  /* another one is there */
    expect_invalid((ds_rng){ (uint64_t)9 << 32 | 1000 }, words); /* behind the last place */
    expect_invalid((ds_rng){ 5 }, words);                        /* no generation */
    refused(ds_rng_destroy((ds_rng){ 0 }), DS_ERR_INVALID_VALUE, "the handle is zero");
    ok(ds_rng_destroy(kept));
    ok(ds_rng_destroy(fresh));
}

static void test_the_generation_of_a_handle_is_never_zero(void **state) {
    (void)state;
    ds_rng before = rng_of(device);
    ds__rng.generation = UINT32_MAX;
    ds_rng after = rng_of(device);
    assert_true(after.id >> 32 != 0 && after.id != before.id);
    ok(ds_rng_set_seed(after, 5));
    assert_int_equal(info_of(after).seed, 5);
    ok(ds_rng_destroy(before));
    ok(ds_rng_destroy(after));
}

/* The handle of a device's own generator stays valid; it names the device from everywhere. */
static void test_a_devices_generator_has_a_handle_that_stays(void **state) {
    (void)state;
    ds_rng own, again;
    ok(ds_rng_get_default(second, &own));
    ok(ds_rng_set_seed(own, 77));
    refused(ds_rng_destroy(own), DS_ERR_INVALID_HANDLE, "of a device cannot be destroyed");
    ok(ds_rng_get_default(second, &again));
    assert_int_equal(own.id, again.id);
    assert_int_equal(info_of(own).device.type, second.type);
    assert_int_equal(info_of(own).device.index, 1);
    assert_int_equal(info_of(own).seed, 77);
    refused(ds_rng_bits(own, ds_uint32(), memory, 4, stream), DS_ERR_DEVICE_MISMATCH,
            "the generator belongs to");
    refused(ds_rng_get_default((ds_device){ DS_DEVICE_CPU, 99 }, &own), DS_ERR_DEVICE_RANGE,
            "cpu:99 does not exist");
    assert_int_equal(own.id, 0);
    /* a handle of a device that is not there */
    refused(ds_rng_set_seed((ds_rng){ 1 << 30 | 1 << 16 | 99 }, 1), DS_ERR_DEVICE_RANGE,
            "cpu:99 does not exist");
}

static void test_a_shape_that_no_gpu_has_is_refused(void **state) {
    (void)state;

    static const struct {
        int multiprocessors, threads;
        const char *words;
    } shapes[] = { { -1, 0, "-1 multiprocessors of 0 threads" },
                   { 0, -256, "threads must be a multiple of 256" },
                   { 1, 100, "1 multiprocessors of 100 threads" },
                   { (1 << 20) + 1, 256, "1048577 multiprocessors" },
                   { 1, (1 << 20) + 256, "1048832 threads" },
                   { 1 << 20, 1 << 20, "the total must be below 2^32" } };

    ds_rng r = rng_of(device), made = { 7 };
    ds_rng_info before = info_of(r);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        refused(ds_rng_create(&(ds_rng_desc){ .device = device,
                                              .multiprocessors = shapes[i].multiprocessors,
                                              .threads_per_multiprocessor = shapes[i].threads },
                              &made),
                DS_ERR_INVALID_VALUE, shapes[i].words);
        assert_int_equal(made.id, 0);
        refused(ds_rng_set_mapping(r, DS_RNG_TORCH, shapes[i].multiprocessors, shapes[i].threads),
                DS_ERR_INVALID_VALUE, shapes[i].words);
    }
    refused(ds_rng_create(&(ds_rng_desc){ .mapping = (ds_rng_mapping)5 }, &made),
            DS_ERR_INVALID_VALUE, "mapping is 5");
    refused(ds_rng_set_mapping(r, (ds_rng_mapping)5, 0, 0), DS_ERR_INVALID_VALUE, "mapping is 5");
    refused(ds_rng_create(&(ds_rng_desc){ .device = { DS_DEVICE_CPU, 99 } }, &made),
            DS_ERR_DEVICE_RANGE, "cpu:99 does not exist");
    refused(ds_rng_create(&(ds_rng_desc){ .reserved = { 1 } }, &made), DS_ERR_INVALID_VALUE,
            "ds_rng_desc.reserved is not 0");
    expect_same(info_of(r), before);
    ok(ds_rng_destroy(r));
}

/* A number of the shape that is given stays; one that is 0 is the device's. */
static void test_a_shape_that_is_given_in_part_is_completed(void **state) {
    (void)state;
    ds_device_properties p;
    ds_rng r = rng_of(device);
    ok(ds_device_get_properties(device, &p));
    int own = device.type == DS_DEVICE_CUDA ? p.multiprocessors : 132;
    ok(ds_rng_set_mapping(r, DS_RNG_TORCH, 7, 0));
    assert_int_equal(info_of(r).multiprocessors, 7);
    assert_int_equal(info_of(r).threads_per_multiprocessor, 2048);
    ok(ds_rng_set_mapping(r, DS_RNG_TORCH, 0, 512));
    assert_int_equal(info_of(r).multiprocessors, own);
    assert_int_equal(info_of(r).threads_per_multiprocessor, 512);
    ok(ds_rng_set_mapping(r, DS_RNG_TORCH, 9, 768));
    assert_int_equal(info_of(r).multiprocessors, 9);
    assert_int_equal(info_of(r).threads_per_multiprocessor, 768);
    ok(ds_rng_destroy(r));
}

/* NVIDIA's programming guide, "Technical Specifications per Compute Capability". */
static void test_threads_of_a_multiprocessor_by_capability(void **state) {
    (void)state;
    static const int threads[][2] = { { 70, 2048 },  { 75, 1024 },  { 80, 2048 },  { 86, 1536 },
                                      { 87, 1536 },  { 89, 1536 },  { 90, 2048 },  { 100, 2048 },
                                      { 103, 2048 }, { 110, 1536 }, { 120, 1536 }, { 121, 1536 } };
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++)
        assert_int_equal(ds__rng_threads_of(threads[i][0]), threads[i][1]);
}

static void test_a_state_that_is_none_is_refused(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    uint64_t good[2] = { 5, 8 }, bad[][2] = { { 5, 3 }, { 5, (uint64_t)1 << 63 } }, got[2];
    size_t count;
    ds_device_type type = (ds_device_type)device.type;
    ok(ds_rng_set_state(r, good, sizeof good));
    for (int i = 0; i < 2; i++) {
        refused(ds_rng_set_state(r, bad[i], 16), DS_ERR_INVALID_VALUE, "multiple of 4 below 2^63");
        refused(ds_rng_set_offset(r, bad[i][1]), DS_ERR_INVALID_VALUE, "multiple of 4 below 2^63");
        refused(ds_rng_set_state_all(type, bad[i], 1), DS_ERR_INVALID_VALUE, "multiple of 4");
    }
    refused(ds_rng_set_state(r, good, 15), DS_ERR_INVALID_VALUE, "has 15 bytes; 8 or 16");
    refused(ds_rng_get_state(r, got, 15), DS_ERR_INVALID_VALUE, "16 bytes; size is 15");
    ok(ds_rng_get_state(r, got, sizeof got));
    assert_memory_equal(got, good, sizeof good);
    refused(ds_rng_get_state_all(type, got, 0, &count), DS_ERR_INVALID_VALUE, "capacity is 0");
    refused(ds_rng_get_state_all(DS_DEVICE_HOST, NULL, 0, &count), DS_ERR_INVALID_VALUE,
            "have no generators");
    refused(ds_rng_set_state_all(DS_DEVICE_HOST, good, 1), DS_ERR_INVALID_VALUE,
            "have no generators");
    refused(ds_rng_set_state_all(type, good, 100), DS_ERR_INVALID_VALUE, "100 states for");
    refused(ds_rng_set_device_seed((ds_device){ DS_DEVICE_HOST, 0 }, 1), DS_ERR_INVALID_DEVICE, "");
    refused(ds_rng_reseed_device((ds_device){ DS_DEVICE_HOST, 0 }, &got[0]), DS_ERR_INVALID_DEVICE,
            "");
    assert_int_equal(got[0], 0);
    refused(ds_rng_get_device_seed((ds_device){ DS_DEVICE_HOST, 0 }, &got[0]),
            DS_ERR_INVALID_DEVICE, "");
    ok(ds_rng_destroy(r));
}

/* The states of the current device's type, without naming it. */
static void test_states_of_the_current_type(void **state) {
    (void)state;
    uint64_t states[16][2];
    size_t count = 0;
    ok(ds_device_set_current(device));
    ok(ds_rng_set_seed((ds_rng){ 0 }, 33));
    ok(ds_rng_get_state_all(DS_DEVICE_CURRENT, NULL, 0, &count));
    assert_in_range(count, 2, 16);
    ok(ds_rng_get_state_all(DS_DEVICE_CURRENT, states, 16, &count));
    assert_int_equal(states[0][0], 33);
    states[0][0] = 34;
    states[0][1] = 12;
    ok(ds_rng_set_state_all(DS_DEVICE_CURRENT, states, count));
    assert_int_equal(info_of((ds_rng){ 0 }).seed, 34);
    assert_int_equal(info_of((ds_rng){ 0 }).offset, 12);
}

static ds_result fill_of(ds_rng r, ds_rng_fill_desc d) {
    d.out = d.out ? d.out : memory;
    return ds_rng_fill(r, &d, stream);
}

static void test_fills_of_too_many_elements_are_refused(void **state) {
    (void)state;
    const size_t most = (size_t)1 << 60;
    ds_rng r = rng_of(device);
    ds_rng_fill_desc d = { .kind = DS_RNG_BITS, .dtype = ds_uint64(), .count = 10 };
    d.first = SIZE_MAX;
    refused(fill_of(r, d), DS_ERR_INVALID_VALUE, "exceed the total of 0");
    d.first = most;
    refused(fill_of(r, d), DS_ERR_INVALID_VALUE, "at most 2^60 are allowed");
    d.first = 0;
    d.total = most + 1;
    refused(fill_of(r, d), DS_ERR_INVALID_VALUE, "has 1152921504606846977 elements");
    d.total = 0;
    d.count = most;
    refused(fill_of(r, d), DS_ERR_INVALID_VALUE, "");
    refused(ds_rng_permutation(r, ds_int32(), memory, ((size_t)1 << 31) + 1, stream),
            DS_ERR_INVALID_VALUE, "permutation of 2147483649 elements exceeds the type");
    d.count = 10;
    d.reserved[0] = 1;
    refused(fill_of(r, d), DS_ERR_INVALID_VALUE, "ds_rng_fill_desc.reserved is not 0");
    assert_int_equal(info_of(r).offset, 0);
    ok(ds_rng_destroy(r));
}

/* Types that a distribution does not have. */
static void test_types_that_a_fill_does_not_have(void **state) {
    (void)state;
    static const ds_dtype wide = { DS_CODE_FLOAT, 32, 4 }, half_bfloat = { DS_CODE_BFLOAT, 32, 1 },
                          eight = { DS_CODE_FLOAT, 8, 1 }, odd = { DS_CODE_INT, 24, 1 },
                          pair = { DS_CODE_INT, 32, 2 }, wide_bool = { DS_CODE_BOOL, 16, 1 };
    ds_rng r = rng_of(device);

    const struct {
        ds_rng_kind kind;
        ds_dtype dtype;
        const char *words;
    } wrong[] = {
        { DS_RNG_UNIFORM, wide, "uniform numbers of type 2:32:4" },
        { DS_RNG_NORMAL, half_bfloat, "normal numbers of type" },
        { DS_RNG_EXPONENTIAL, eight, "exponential numbers of type" },
        { DS_RNG_UNIFORM, ds_bool(), "uniform numbers of type bool" },
        { DS_RNG_INTEGERS, odd, "random integers of type" },
        { DS_RNG_INTEGERS, pair, "random integers of type 0:32:2" },
        { DS_RNG_INTEGERS, wide_bool, "random integers of type" },
        { DS_RNG_BITS, odd, "random bits of type" },
        { DS_RNG_BITS, ds_complex128(), "random bits of type complex128" },
        { DS_RNG_BERNOULLI, ds_complex64(), "zeros and ones of type complex64" },
        { DS_RNG_PERMUTATION, ds_int16(), "permutations of type int16" },
        { DS_RNG_PERMUTATION, ds_uint64(), "permutations of type uint64" },
        { DS_RNG_PERMUTATION, ds_float32(), "permutations of type float32" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refused(fill_of(r, (ds_rng_fill_desc){ .kind = wrong[i].kind,
                                               .dtype = wrong[i].dtype,
                                               .count = 4,
                                               .a = 0.5,
                                               .b = 1,
                                               .high = 5 }),
                DS_ERR_UNSUPPORTED, wrong[i].words);
    assert_int_equal(info_of(r).offset, 0);
    ok(ds_rng_destroy(r));
}

/* Parameters that are not finite, in the type of the elements or at all. */
static void test_parameters_that_a_type_cannot_hold(void **state) {
    (void)state;
    ds_rng r = rng_of(device);

    const struct {
        ds_rng_kind kind;
        ds_dtype dtype;
        double a, b;
        const char *words;
    } wrong[] = {
        { DS_RNG_UNIFORM, ds_float32(), NAN, 1, "from nan to 1" },
        { DS_RNG_UNIFORM, ds_float64(), 0, INFINITY, "from 0 to inf" },
        { DS_RNG_UNIFORM, ds_float64(), -1e308, 1e308, "not a valid interval" },
        { DS_RNG_UNIFORM, ds_float32(), 1e300, 1e301, "not a valid interval" },
        { DS_RNG_UNIFORM, ds_float16(), -70000, 0, "not a valid interval" },
        { DS_RNG_UNIFORM, ds_float16(), 0, 70000, "not a valid interval" },
        { DS_RNG_UNIFORM, ds_float64(), 2, 1, "from 2 to 1" },
        { DS_RNG_NORMAL, ds_float64(), INFINITY, 1, "mean is inf" },
        { DS_RNG_NORMAL, ds_float64(), 0, NAN, "deviation is nan" },
        { DS_RNG_NORMAL, ds_float64(), 0, -1, "deviation is -1" },
        { DS_RNG_NORMAL, ds_float32(), 1e300, 1, "mean is 1e+300" },
        { DS_RNG_NORMAL, ds_float32(), 0, 1e300, "deviation is 1e+300" },
        { DS_RNG_EXPONENTIAL, ds_float64(), NAN, 0, "rate is nan" },
        { DS_RNG_EXPONENTIAL, ds_float64(), 0, 0, "rate is 0" },
        { DS_RNG_EXPONENTIAL, ds_float32(), 1e-300, 0, "rate is 1e-300" },
        { DS_RNG_EXPONENTIAL, ds_float32(), 1e300, 0, "rate is 1e+300" },
        { DS_RNG_BERNOULLI, ds_bool(), NAN, 0, "the probability is nan" },
        { DS_RNG_BERNOULLI, ds_float32(), -0.1, 0, "the probability is -0.1" },
        { DS_RNG_BERNOULLI, ds_float32(), 1.1, 0, "the probability is 1.1" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refused(fill_of(r, (ds_rng_fill_desc){ .kind = wrong[i].kind,
                                               .dtype = wrong[i].dtype,
                                               .count = 4,
                                               .a = wrong[i].a,
                                               .b = wrong[i].b }),
                DS_ERR_INVALID_VALUE, wrong[i].words);
    assert_int_equal(info_of(r).offset, 0);
    ok(ds_rng_destroy(r));
}

/* Memory of the other driver, of the other device, of the host, and past its end. */
static void test_memory_that_a_fill_cannot_write(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    void *there, *foreign, *pinned;
    ok(ds_device_alloc(second, 64, &there));
    ok(ds_pinned_alloc(64, &pinned));
    refused(ds_rng_bits(r, ds_uint32(), there, 4, stream), DS_ERR_DEVICE_MISMATCH, "out is on");
    refused(ds_rng_bits(r, ds_uint32(), memory, 1025, stream), DS_ERR_INVALID_VALUE,
            "exceed the allocation");
    refused(ds_rng_bits(r, ds_uint32(), memory + 1, 4, stream), DS_ERR_INVALID_VALUE,
            "must be a multiple of 4");
#ifdef DEVSTREAM_CUDA
    ok(ds_device_alloc(device.type == DS_DEVICE_CUDA ? ds_cpu(0) : ds_cuda(0), 64, &foreign));
    refused(ds_rng_bits(r, ds_uint32(), foreign, 4, stream), DS_ERR_DEVICE_MISMATCH, "out is on");
    ok(ds_device_free(foreign));
#else
    (void)foreign;
#endif
    assert_int_equal(info_of(r).offset, 0);
    uint32_t words[4], got[4];
    ok(ds_rng_bits(r, ds_uint32(), memory, 4, stream));
    ok(ds_copy(words, memory, sizeof words, stream));
    ok(ds_stream_synchronize(stream));
    ok(ds_rng_set_offset(r, 0));
    ok(ds_rng_bits(r, ds_uint32(), pinned, 4, stream));
    ok(ds_stream_synchronize(stream));
    memcpy(got, pinned, sizeof got);
    assert_memory_equal(got, words, sizeof words);
    ok(ds_pinned_free(pinned));
    ok(ds_device_free(there));
    ok(ds_rng_destroy(r));
}
#ifdef DEVSTREAM_CUDA
static void test_a_generator_of_the_other_driver(void **state) {
    (void)state;
    ds_rng r = rng_of(device.type == DS_DEVICE_CUDA ? ds_cpu(0) : ds_cuda(0));
    refused(ds_rng_bits(r, ds_uint32(), memory, 4, stream), DS_ERR_DEVICE_MISMATCH,
            "the generator belongs to");
    ok(ds_rng_destroy(r));
}
#endif

/* A permutation takes 4 words in either mapping, and its parts are those of the whole. */
static void test_a_permutation_in_parts_in_torchs_mapping(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    int32_t whole[100], parts[100];
    ok(ds_rng_set_mapping(r, DS_RNG_TORCH, 0, 0));
    ok(ds_rng_permutation(r, ds_int32(), memory, 100, stream));
    ok(ds_copy(whole, memory, sizeof whole, stream));
    ok(ds_stream_synchronize(stream));
    for (size_t first = 0; first < 100; first += 50) {
        ok(ds_rng_set_offset(r, 0));
        ok(fill_of(r, (ds_rng_fill_desc){ .kind = DS_RNG_PERMUTATION,
                                          .dtype = ds_int32(),
                                          .out = memory + 4 * first,
                                          .count = 50,
                                          .first = first,
                                          .total = 100 }));
    }
    ok(ds_copy(parts, memory, sizeof parts, stream));
    ok(ds_stream_synchronize(stream));
    assert_memory_equal(parts, whole, sizeof whole);
    ok(ds_rng_destroy(r));
}

/* Zeros and ones of every type that has them, from the words of the fill: a number is 1 where its
   word is below p 2^32. */
static void test_zeros_and_ones_of_all_types(void **state) {
    (void)state;

    const struct {
        ds_dtype dtype;
        uint64_t one;
    } types[] = { { ds_bool(), 1 },
                  { ds_uint8(), 1 },
                  { ds_int16(), 1 },
                  { ds_int32(), 1 },
                  { ds_int64(), 1 },
                  { ds_float16(), 0x3c00 },
                  { ds_bfloat16(), 0x3f80 },
                  { ds_float32(), 0x3f800000 },
                  { ds_float64(), 0x3ff0000000000000 } };

    ds_rng r = rng_of(device);
    uint32_t words[16];
    ok(ds_rng_bits(r, ds_uint32(), memory, 16, stream));
    ok(ds_copy(words, memory, sizeof words, stream));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        unsigned char got[16 * 8];
        size_t size = ds_dtype_get_size(types[i].dtype);
        ok(ds_rng_set_offset(r, 0));
        ok(ds_rng_bernoulli(r, types[i].dtype, memory, 16, 0.5, stream));
        ok(ds_copy(got, memory, 16 * size, stream));
        ok(ds_stream_synchronize(stream));
        assert_int_equal(info_of(r).offset, 16);
        for (size_t k = 0; k < 16; k++) {
            uint64_t value = 0; /* little endian, as all targets are */
            memcpy(&value, got + k * size, size);
            assert_int_equal(value, words[k] < 0x80000000u ? types[i].one : 0);
        }
    }
    ok(ds_rng_destroy(r));
}

/* A range of at most 2^16, or a power of two of at most 2^32, takes a word for each number, others
   take two. In torch's mapping a number below 2^28 is its word modulo the range, and others take
   two words. Each of 8 threads has four. */
static void test_the_words_of_an_integer_depend_on_the_range(void **state) {
    (void)state;

    static const struct {
        int64_t range;
        uint64_t element;
    } ranges[] = { { 7, 8 },
                   { 1 << 16, 8 },
                   { (1 << 16) + 1, 16 },
                   { 1 << 20, 8 },
                   { (1 << 28) - 1, 16 },
                   { 1 << 28, 8 },
                   { (int64_t)1 << 32, 8 },
                   { ((int64_t)1 << 32) + 1, 16 },
                   { (int64_t)1 << 33, 16 } };

    ds_rng r = rng_of(device);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        for (int torch = 0; torch < 2; torch++) {
            int64_t got[8];
            uint32_t words[8];
            int narrow = 1;
            ok(ds_rng_set_mapping(r, torch ? DS_RNG_TORCH : DS_RNG_ELEMENT, 0, 0));
            ok(ds_rng_set_offset(r, 0));
            ok(ds_rng_bits(r, ds_uint32(), memory, 8, stream));
            ok(ds_copy(words, memory, sizeof words, stream));
            ok(ds_rng_set_offset(r, 0));
            ok(ds_rng_integers(r, ds_int64(), memory, 8, -5, ranges[i].range - 5, stream));
            ok(ds_copy(got, memory, sizeof got, stream));
            ok(ds_stream_synchronize(stream));
            assert_int_equal(info_of(r).offset, torch ? 4 : ranges[i].element);
            for (int k = 0; k < 8; k++) {
                assert_true(got[k] >= -5 && got[k] < ranges[i].range - 5);
                narrow &= got[k] == (int64_t)(words[k] % (uint64_t)ranges[i].range) - 5;
            }
            if (torch)
                assert_int_equal(narrow, ranges[i].range < 1 << 28);
        }
    ok(ds_rng_destroy(r));
}

/* A kernel of the generators is not the program's; a forged handle that destroys it makes later
   fills fail, until the library starts again. */
static void test_a_kernel_that_was_destroyed_is_reported(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    ok(ds_rng_bits(r, ds_uint32(), memory, 4, stream));
    uint64_t id = ds__rng.kernel[DS__RNG_ONE_WORD];
    assert_true(id != 0);
    ok(ds_kernel_destroy((ds_kernel){ id }));
    refused(ds_rng_bits(r, ds_uint32(), memory, 4, stream), DS_ERR_INVALID_HANDLE,
            "the kernel of a fill was destroyed");
    assert_int_equal(info_of(r).offset, 4);
    ok(ds_rng_destroy(r));
    close_scene();
    stop();
    start(NULL);
    open_scene();
    r = rng_of(device);
    ok(ds_rng_bits(r, ds_uint32(), memory, 4, stream));
    ok(ds_rng_destroy(r));
}

/* ---- calls from inside of user code ---- */

static char permitted[200]; /* the first call that was not refused */
static int inside_count;

static void inside(ds_result r, const char *call) {
    inside_count++;
    if (!permitted[0] && (r != DS_ERR_NOT_PERMITTED || !strstr(ds_error_get_last(), "inside")))
        snprintf(permitted, sizeof permitted, "%.80s is %s: %.80s", call, ds_result_get_name(r),
                 ds_error_get_last());
}

#define INSIDE(call) inside((call), #call)

static void zero_inside(uint64_t n, const char *what) {
    if (!permitted[0] && n)
        snprintf(permitted, sizeof permitted, "%s is not 0", what);
}

#define ZERO_INSIDE(n) zero_inside((n), #n)

static void call_all(void *user) {
    ds_rng r = *(ds_rng *)user, made = { 7 };
    ds_rng_info info = { .seed = 7 };
    uint64_t n = 7;
    size_t count = 7;
    char bytes[DS_RNG_STATE_SIZE] = { 0 };
    ds_device_type type = (ds_device_type)device.type;
    INSIDE(ds_rng_create(NULL, &made));
    ZERO_INSIDE(made.id);
    made.id = 7;
    INSIDE(ds_rng_clone(r, &made));
    ZERO_INSIDE(made.id);
    INSIDE(ds_rng_destroy(r));
    made.id = 7;
    INSIDE(ds_rng_get_default(device, &made));
    ZERO_INSIDE(made.id);
    INSIDE(ds_rng_get_info(r, &info));
    ZERO_INSIDE(info.seed);
    INSIDE(ds_rng_set_mapping(r, DS_RNG_TORCH, 0, 0));
    INSIDE(ds_rng_set_seed(r, 1));
    INSIDE(ds_rng_reseed(r, &n));
    ZERO_INSIDE(n);
    n = 7;
    INSIDE(ds_rng_get_seed(r, &n));
    ZERO_INSIDE(n);
    n = 7;
    INSIDE(ds_rng_get_offset(r, &n));
    ZERO_INSIDE(n);
    INSIDE(ds_rng_set_offset(r, 4));
    INSIDE(ds_rng_get_state(r, bytes, sizeof bytes));
    INSIDE(ds_rng_set_state(r, bytes, sizeof bytes));
    INSIDE(ds_rng_set_device_seed(device, 1));
    INSIDE(ds_rng_set_seed_all(1));
    n = 7;
    INSIDE(ds_rng_reseed_device(device, &n));
    ZERO_INSIDE(n);
    n = 7;
    INSIDE(ds_rng_reseed_all(&n));
    ZERO_INSIDE(n);
    n = 7;
    INSIDE(ds_rng_get_device_seed(device, &n));
    ZERO_INSIDE(n);
    INSIDE(ds_rng_get_state_all(type, NULL, 0, &count));
    ZERO_INSIDE(count);
    INSIDE(ds_rng_set_state_all(type, bytes, 1));
    INSIDE(ds_rng_fill(r, &(ds_rng_fill_desc){ .kind = DS_RNG_BITS }, stream));
    INSIDE(ds_rng_uniform(r, ds_float32(), memory, 4, 0, 1, stream));
    INSIDE(ds_rng_normal(r, ds_float32(), memory, 4, 0, 1, stream));
    INSIDE(ds_rng_exponential(r, ds_float32(), memory, 4, 1, stream));
    INSIDE(ds_rng_integers(r, ds_int32(), memory, 4, 0, 9, stream));
    INSIDE(ds_rng_bernoulli(r, ds_bool(), memory, 4, 0.5, stream));
    INSIDE(ds_rng_bits(r, ds_uint32(), memory, 4, stream));
    INSIDE(ds_rng_permutation(r, ds_int32(), memory, 4, stream));
}

static void test_no_call_is_permitted_inside_of_a_host_function(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    ds_rng_info before = info_of(r);
    permitted[0] = 0;
    inside_count = 0;
    ok(ds_stream_launch_host_func(stream, call_all, &r, NULL));
    ok(ds_stream_synchronize(stream));
    if (permitted[0])
        fail_msg("%s", permitted);
    assert_int_equal(inside_count, 28);
    expect_same(info_of(r), before);
    ok(ds_rng_destroy(r));
}

/* ---- shutdown ---- */

static void test_a_generator_that_is_left_is_reported(void **state) {
    (void)state;
    ds_rng r;
    rng_of(device);
    close_scene();
    stop();
    if (!strstr(warnings, "generator \"of a test\", created at ") ||
        !strstr(warnings, "test_rng_calls.c:"))
        fail_msg("%s", warnings);
    start(NULL);
    ok((ds_rng_create)(NULL, &r)); /* without a label and a site */
    stop();
    if (!strstr(warnings, "generator \"\", created at ?:"))
        fail_msg("%s", warnings);
    start(NULL);
    open_scene();
}

/* ---- host memory that runs out ---- */

static ds_rng given, made;
static ds_graph graph;
static ds_graph_exec exec;

static ds_result create_one(void) {
    return ds_rng_create(&(ds_rng_desc){ .device = device, .label = "label" }, &made);
}

static ds_result clone_one(void) {
    return ds_rng_clone(given, &made);
}

static ds_result seed_all(void) {
    return ds_rng_set_seed_all(8);
}

static ds_result seed_one(void) {
    return ds_rng_set_device_seed(device, 8);
}

static ds_result reseed_one(void) {
    uint64_t seed;
    return ds_rng_reseed_device(device, &seed);
}

static ds_result reseed_all(void) {
    uint64_t seed;
    return ds_rng_reseed_all(&seed);
}

static ds_result seed_of(void) {
    uint64_t seed;
    return ds_rng_get_device_seed(device, &seed);
}

static ds_result default_one(void) {
    return ds_rng_get_default(device, &made);
}

static ds_result get_all(void) {
    uint64_t states[64][2];
    size_t count;
    return ds_rng_get_state_all((ds_device_type)device.type, states, 64, &count);
}

static ds_result set_all(void) {
    static const uint64_t states[2][2] = { { 1, 4 }, { 2, 8 } };
    return ds_rng_set_state_all((ds_device_type)device.type, states, 2);
}

static ds_result reseed_given(void) {
    return ds_rng_reseed((ds_rng){ 0 }, NULL);
}

static ds_result offset_given(void) {
    return ds_rng_set_offset((ds_rng){ 0 }, 8);
}

static ds_result uniform32(void) {
    return ds_rng_uniform(given, ds_float32(), memory, 8, 0, 1, stream);
}

static ds_result uniform16(void) {
    return ds_rng_uniform(given, ds_float16(), memory, 8, 0, 1, stream);
}

static ds_result permute(void) {
    return ds_rng_permutation(given, ds_int64(), memory, 8, stream);
}

static ds_result capture_one(void) {
    ds_result r = ds_capture_begin(stream, DS_CAPTURE_THREAD_LOCAL);
    if (r < 0)
        return r;
    r = ds_rng_bits(given, ds_uint32(), memory, 8, stream);
    ds_result ended = ds_capture_end(stream, &graph);
    if (ended < 0 && graph.id == 0) /* the driver refused, and the capture is still open */
        DS_IGNORE(ds_capture_end(stream, &graph));
    return r < 0 ? r : ended;
}

static ds_result launch_one(void) {
    return ds_graph_launch(exec, stream);
}

static void prepare_launch(void) {
    ok(capture_one());
    ok(ds_graph_instantiate(graph, NULL, &exec));
}

static void drop_graph(void) {
    ok(ds_stream_synchronize(stream));
    if (exec.id)
        ok(ds_graph_exec_destroy(exec));
    if (graph.id)
        ok(ds_graph_destroy(graph));
    exec.id = graph.id = 0;
}

static const struct {
    const char *name;
    ds_result (*call)(void);
    void (*prepare)(void);
} calls[] = {
    { "create", create_one, NULL },
    { "clone", clone_one, NULL },
    { "set_seed_all", seed_all, NULL },
    { "set_device_seed", seed_one, NULL },
    { "reseed_device", reseed_one, NULL },
    { "reseed_all", reseed_all, NULL },
    { "get_device_seed", seed_of, NULL },
    { "get_default", default_one, NULL },
    { "get_state_all", get_all, NULL },
    { "set_state_all", set_all, NULL },
    { "reseed of a device's", reseed_given, NULL },
    { "set_offset of a device's", offset_given, NULL },
    { "uniform, float32", uniform32, NULL },
    { "uniform, float16", uniform16, NULL },
    { "permutation", permute, NULL },
    { "capture", capture_one, NULL },
    { "launch", launch_one, prepare_launch },
};

static size_t used_before; /* of the device's memory, before the call */

static size_t in_use(void) {
    size_t avail = 0, total = 0;
    ok(ds_device_get_memory_info(device, &avail, &total));
    return total - avail;
}

/* A fresh library, in which every call has to allocate what it keeps. */
static void begin_call(size_t i, const char *fault) {
    start(fault);
    open_scene();
    given = rng_of(device);
    made.id = graph.id = exec.id = 0;
    if (calls[i].prepare)
        calls[i].prepare();
    used_before = in_use();
    DS_IGNORE(ds_rng_get_seed(given, NULL)); /* a sentence that is not the call's */
}

/* After a failed call: what has to hold, and the call works. */
static void expect_failed(size_t i, long n, ds_result r, ds_result code, const char *words) {
    if (r != code || !strstr(ds_error_get_last(), words))
        fail_msg("%s, %ld: %s: %s", calls[i].name, n, ds_result_get_name(r), ds_error_get_last());
    if (strstr(ds_error_get_last(), "out_seed is NULL"))
        fail_msg("%s, %ld: no sentence", calls[i].name, n);
    assert_int_equal(made.id, 0);
    assert_int_equal(info_of(given).offset, 0);
    drop_graph();
    if (calls[i].prepare)
        calls[i].prepare();
    r = calls[i].call();
    if (r != DS_OK)
        fail_msg("%s, %ld, again: %s", calls[i].name, n, ds_error_get_last());
    /* a capture keeps a piece of the device's memory, and a failed one hands it on */
    if (in_use() > used_before + (device.type == DS_DEVICE_CUDA ? 512 : 16))
        fail_msg("%s, %ld: the device has %zu bytes in use, %zu before", calls[i].name, n, in_use(),
                 used_before);
}

static void end_call(void) {
    drop_graph();
    ds_rng own;
    if (made.id && ds_rng_get_default(device, &own) == DS_OK && own.id != made.id)
        ok(ds_rng_destroy(made));
    ok(ds_rng_destroy(given));
    close_scene();
    stop();
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    close_scene();
    stop();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int failures = 0;
        for (long n = 0;; n++) {
            begin_call(i, NULL);
            scarce_begin(n);
            ds_result r = calls[i].call();
            int hit = scarce_end();
            if (r < 0) {
                expect_failed(i, n, r, DS_ERR_OUT_OF_MEMORY, "");
                failures++;
            } else if (hit && !calls[i].prepare) { /* a launch may repeat its record later */
                fail_msg("%s, %ld: the refused block is not reported", calls[i].name, n);
            }
            end_call();
            if (!hit)
                break;
        }
        if (!calls[i].prepare && failures == 0)
            fail_msg("%s never failed", calls[i].name);
    }
    start(NULL);
    open_scene();
}

/* The list of generators grows with the first one; a device's own generator is in no list. */
static void test_the_list_of_generators_may_fail_to_grow(void **state) {
    (void)state;
    ds_rng r[2] = { { 0 }, { 0 } };
    for (int clone = 0; clone < 2; clone++) {
        int failures = 0, hit = 1;
        for (long n = 0; hit; n++) {
            close_scene();
            stop();
            start(NULL);
            open_scene();
            ok(ds_rng_set_device_seed(device, 4));
            ok(ds_device_set_current(device));
            scarce_begin(n);
            ds_result result =
                clone ? ds_rng_clone((ds_rng){ 0 }, &r[0]) : ds_rng_create(NULL, &r[0]);
            hit = scarce_end();
            if (hit) {
                assert_int_equal(result, DS_ERR_OUT_OF_MEMORY);
                assert_non_null(strstr(ds_error_get_last(), "no memory for a generator"));
                assert_int_equal(r[0].id, 0);
                ok(ds_rng_create(NULL, &r[0]));
                failures++;
            }
            ok(ds_rng_create(NULL, &r[1]));
            ok(ds_rng_destroy(r[0]));
            ok(ds_rng_destroy(r[1]));
        }
        assert_true(failures >= 2);
    }
}

/* ---- a driver that fails ---- */

static void test_every_call_of_the_driver_may_fail(void **state) {
    (void)state;
    close_scene();
    stop();
    static const char *const entries[] = { "submit",        "kernel_load",   "memory_alloc",
                                           "event_create",  "capture_query", "device_properties",
                                           "capture_begin", "capture_end",   "pointer_query" };
    int failures = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (size_t e = 0; e < sizeof entries / sizeof entries[0]; e++)
            for (int n = 1; n < 8; n++) {
                char fault[40];
                snprintf(fault, sizeof fault, "%s:%d", entries[e], n);
                start(fault);
                void *p;
                if (ds_stream_create(&(ds_stream_desc){ .device = device }, &stream) < 0 ||
                    ds_device_alloc(device, 4096, &p) < 0) {
                    stop(); /* the fault has come before the call */
                    continue;
                }
                memory = p;
                made.id = graph.id = exec.id = 0;
                ds_result r =
                    ds_rng_create(&(ds_rng_desc){ .device = device, .label = "given" }, &given);
                if (r == DS_OK && calls[i].prepare) {
                    r = capture_one();
                    if (r == DS_OK)
                        r = ds_graph_instantiate(graph, NULL, &exec);
                }
                if (r == DS_OK)
                    r = calls[i].call();
                if (r < 0) {
                    failures++;
                    if (!strstr(ds_error_get_last(), "fault"))
                        fail_msg("%s, %s: %s: %s", calls[i].name, fault, ds_result_get_name(r),
                                 ds_error_get_last());
                    if (!given.id)
                        given = rng_of(device);
                    drop_graph();
                    if (calls[i].prepare)
                        calls[i].prepare();
                    ok(calls[i].call());
                }
                end_call();
            }
    assert_true(failures > 20);
    start(NULL);
    open_scene();
}

/* A table in front of the driver's: what its entries do next. */
static const ds__driver *below;
static ds__driver layer;
static int kernels_changed; /* so many launches find another capture */
static int records_refused; /* so many records fail */
static int queries_refused; /* so many queries of captures fail */
static int waits_refused;   /* so many waits for the device fail */
static int graphs_refused;  /* so many launches of graphs fail, after the guest */

static ds_result layer_submit(void *native, const ds__op *op) {
    if (op->kind == DS__OP_KERNEL && kernels_changed && kernels_changed--)
        return DS__CHANGED;
    if (op->kind == DS__OP_RECORD && records_refused && records_refused--)
        return ds__fail(DS_ERR_DRIVER, "the record was refused");
    if (op->kind == DS__OP_GRAPH && graphs_refused && graphs_refused--) {
        let_guest_in();
        return ds__fail(DS_ERR_DRIVER, "the graph was refused");
    }
    return below->submit(native, op);
}

static ds_result layer_query(void *native, ds_capture_info *out) {
    if (queries_refused && queries_refused--)
        return ds__fail(DS_ERR_DRIVER, "the query was refused");
    return below->capture_query(native, out);
}

static ds_result layer_wait(int index) {
    if (waits_refused && waits_refused--)
        return ds__fail(DS_ERR_DRIVER, "the wait was refused");
    return below->device_synchronize(index);
}

static void lay_over(ds_stream handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle.id);
    if (s->driver != &layer) {
        below = s->driver;
        layer = *below;
        layer.submit = layer_submit;
        layer.capture_query = layer_query;
        layer.device_synchronize = layer_wait;
    }
    s->driver = ds__g.driver[ds__backend_of(s->device)] = &layer;
    ds__stream_unpin(s);
}

static void take_away(ds_stream handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle.id);
    s->driver = ds__g.driver[ds__backend_of(s->device)] = below;
    ds__stream_unpin(s);
}

/* Checks that the stream has written 8 words of the seed 1 from this offset on. */
static void expect_words(uint64_t offset) {
    uint32_t got[8], want[8];
    ds_rng like = rng_of(device);
    ok(ds_copy(got, memory, sizeof got, stream));
    ok(ds_rng_set_state(like, ((uint64_t[]){ 1, offset }), 16));
    ok(ds_rng_bits(like, ds_uint32(), memory, 8, stream));
    ok(ds_copy(want, memory, sizeof want, stream));
    ok(ds_stream_synchronize(stream));
    assert_memory_equal(got, want, sizeof got);
    ok(ds_rng_destroy(like));
}

static void record_graph(void) {
    given = rng_of(device);
    ok(ds_rng_set_seed(given, 1));
    prepare_launch();
}

static void end_graph(void) {
    drop_graph();
    ok(ds_rng_destroy(given));
}

/* Captures that begin and end on the stream all the time. */
static void test_a_fill_gives_up_when_captures_change_too_often(void **state) {
    (void)state;
    ds_rng r = rng_of(device);
    ok(ds_rng_set_seed(r, 1));
    ok(ds_rng_bits(r, ds_uint32(), memory, 8, stream)); /* has the kernel loaded */
    lay_over(stream);
    kernels_changed = 1000;
    refused(ds_rng_bits(r, ds_uint32(), memory, 8, stream), DS_ERR_ILLEGAL_STATE,
            "captures began and ended on the stream during the call");
    assert_int_equal(info_of(r).offset, 8);
    kernels_changed = 3;
    ok(ds_rng_bits(r, ds_uint32(), memory, 8, stream));
    kernels_changed = 0;
    take_away(stream);
    assert_int_equal(info_of(r).offset, 16);
    expect_words(8);
    ok(ds_rng_destroy(r));
}

/* A launch whose end could not be recorded is found again: by a record that is repeated, or by a
   wait for the device when its stream is gone. */
static void test_a_launch_whose_record_failed_is_found(void **state) {
    (void)state;
    ds_stream other, gone;
    ds_graph captured;
    record_graph();
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &gone));
    lay_over(stream);
    lay_over(other);
    lay_over(gone);

    records_refused = 1;
    ok(ds_graph_launch(exec, other));
    ok(ds_graph_launch(exec, stream)); /* repeats the record */
    expect_words(8);

    records_refused = 2;
    ok(ds_graph_launch(exec, other));
    refused(ds_graph_launch(exec, stream), DS_ERR_DRIVER, "the record was refused");
    ok(ds_graph_launch(exec, stream));
    expect_words(24);

    records_refused = 1;
    ok(ds_graph_launch(exec, other));
    ok(ds_capture_begin(other, DS_CAPTURE_THREAD_LOCAL));
    refused(ds_graph_launch(exec, stream), DS_ERR_CAPTURE_UNSUPPORTED,
            "must wait for an earlier launch, whose stream captures");
    ok(ds_capture_end(other, &captured));
    ok(ds_graph_destroy(captured));
    ok(ds_graph_launch(exec, stream));
    expect_words(40);

    records_refused = 1;
    ok(ds_graph_launch(exec, gone));
    ok(ds_stream_synchronize(gone));
    take_away(gone);
    lay_over(stream);
    ok(ds_stream_destroy(gone));
    ok(ds_capture_begin(other, DS_CAPTURE_THREAD_LOCAL));
    refused(ds_graph_launch(exec, stream), DS_ERR_CAPTURE_UNSUPPORTED,
            "the host must wait for an earlier launch");
    ok(ds_capture_end(other, &captured));
    ok(ds_graph_destroy(captured));
    waits_refused = 1;
    refused(ds_graph_launch(exec, stream), DS_ERR_DRIVER, "the wait was refused");
    ok(ds_graph_launch(exec, stream));
    expect_words(56);

    take_away(other);
    take_away(stream);
    ok(ds_stream_destroy(other));
    end_graph();
}

static void test_a_launch_that_cannot_ask_for_captures_takes_nothing(void **state) {
    (void)state;
    ds_stream other;
    ds_graph captured;
    record_graph();
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
    ok(ds_capture_begin(other, DS_CAPTURE_THREAD_LOCAL));
    lay_over(stream);
    queries_refused = 1;
    refused(ds_graph_launch(exec, stream), DS_ERR_DRIVER, "the query was refused");
    ok(ds_graph_launch(exec, stream));
    take_away(stream);
    ok(ds_capture_end(other, &captured));
    ok(ds_graph_destroy(captured));
    assert_int_equal(info_of(given).offset, 8);
    expect_words(0);
    ok(ds_stream_destroy(other));
    end_graph();
}

static ds_result drawn;

static void *draw_meanwhile(void *user) {
    drawn = ds_rng_bits(given, ds_uint32(), memory + 64, 8, stream);
    return user;
}

/* Words are not given back if another fill has taken words since. */
static void test_a_failed_launch_keeps_its_words_if_others_were_taken(void **state) {
    (void)state;
    record_graph();
    ok(ds_rng_bits(given, ds_uint32(), memory, 8, stream));
    lay_over(stream);
    graphs_refused = 1;
    guest = draw_meanwhile;
    drawn = DS_ERR_SYSTEM;
    refused(ds_graph_launch(exec, stream), DS_ERR_DRIVER, "the graph was refused");
    take_away(stream);
    assert_int_equal(drawn, DS_OK);
    assert_int_equal(info_of(given).offset, 24);
    ok(ds_copy(memory, memory + 64, 32, stream));
    expect_words(16);
    end_graph();
}

/* A forged handle destroys the event that the library records after a launch. */
static void test_an_event_of_a_graph_that_was_destroyed_is_reported(void **state) {
    (void)state;
    for (int launched = 0; launched < 2; launched++) {
        record_graph();
        if (launched)
            ok(ds_graph_launch(exec, stream));
        ds_event read = ds__rng.all->read;
        ok(ds_event_destroy(read));
        if (!launched)
            ok(ds_graph_launch(exec, stream)); /* needs no event yet, and cannot record it */
        refused(ds_rng_get_info(given, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
        refused(ds_graph_launch(exec, stream), DS_ERR_INVALID_HANDLE, "the event was destroyed");
        assert_int_equal(info_of(given).offset, 8);
        end_graph();
        close_scene();
        stop();
        start(NULL);
        open_scene();
    }
}

static void test_a_launch_at_the_end_of_the_sequence_takes_nothing(void **state) {
    (void)state;
    record_graph();
    ok(ds_rng_set_offset(given, INT64_MAX - 3)); /* 4 words are left */
    refused(ds_graph_launch(exec, stream), DS_ERR_INVALID_VALUE, "exceed 2^63; seed the generator");
    assert_int_equal(info_of(given).offset, INT64_MAX - 3);
    ok(ds_rng_set_offset(given, 0));
    ok(ds_graph_launch(exec, stream));
    expect_words(0);
    end_graph();
}

/* The objects of graphs that are gone are used again, each on its own device. */
static void test_graphs_of_all_devices_by_turns(void **state) {
    (void)state;
    ds_device first = device, all[4] = { device, second };
    int count = 2;
#ifdef DEVSTREAM_CUDA
    all[count++] = device.type == DS_DEVICE_CUDA ? ds_cpu(0) : ds_cuda(0);
    all[count++] = device.type == DS_DEVICE_CUDA ? ds_cpu(1) : ds_cuda(1);
#endif
    close_scene();
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < count; i++) {
            device = all[i];
            open_scene();
            record_graph();
            ok(ds_graph_launch(exec, stream));
            expect_words(0);
            end_graph();
            close_scene();
        }
    device = first;
    open_scene();
    ds_stream there;
    ok(ds_stream_create(&(ds_stream_desc){ .device = second }, &there));
    record_graph();
    refused(ds_graph_launch(exec, there), DS_ERR_DEVICE_MISMATCH, "the graph has random fills of");
    end_graph();
    ok(ds_stream_destroy(there));
}

/* ---- threads ---- */

static void *make_meanwhile(void *user) {
    drawn = ds_rng_get_default(device, &made);
    return user;
}

/* Another thread makes the device's generator while this one does, and then its kernel. */
static void test_a_generator_and_a_kernel_are_made_once(void **state) {
    (void)state;
    ds_rng own;
    drawn = DS_ERR_SYSTEM;
    guest = make_meanwhile;
    at_block = 1;
    ok(ds_rng_get_default(device, &own));
    assert_int_equal(at_block, 0);
    assert_int_equal(drawn, DS_OK);
    assert_int_equal(made.id, own.id);

    given = own;
    drawn = DS_ERR_SYSTEM;
    guest = draw_meanwhile;
    ok(ds_rng_set_seed(own, 1));
    ds_rng mine = rng_of(device);
    door = &ds__rng.making;
    ok(ds_rng_bits(mine, ds_uint32(), memory, 8, stream));
    assert_null(door);
    assert_int_equal(drawn, DS_OK);
    assert_int_equal(info_of(own).offset, 8);
    ok(ds_copy(memory, memory + 64, 32, stream));
    expect_words(0);
    ok(ds_rng_destroy(mine));
}

static pthread_barrier_t together;

static void *draw_first(void *user) {
    ds_result *r = user;
    ds_stream s;
    void *p = NULL;
    *r = ds_stream_create(&(ds_stream_desc){ .device = device }, &s);
    if (*r == DS_OK)
        *r = ds_device_alloc(device, 64, &p);
    pthread_barrier_wait(&together);
    if (*r == DS_OK)
        *r = ds_rng_bits((ds_rng){ 0 }, ds_uint32(), p, 8, s);
    if (*r == DS_OK)
        *r = ds_stream_synchronize(s);
    if (p)
        DS_IGNORE(ds_device_free(p));
    DS_IGNORE(ds_stream_destroy(s));
    return NULL;
}

/* Threads that draw for the first time: one makes the generator and its kernel, all draw. */
static void test_threads_draw_for_the_first_time_at_once(void **state) {
    (void)state;

    enum { THREADS = 4 };

    pthread_t threads[THREADS];
    ds_result results[THREADS];
    assert_int_equal(pthread_barrier_init(&together, NULL, THREADS), 0);
    for (int round = 0; round < 30; round++) {
        close_scene();
        stop();
        start(NULL);
        open_scene();
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, draw_first, &results[i]), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(results[i], DS_OK);
        ok(ds_device_set_current(device));
        assert_int_equal(info_of((ds_rng){ 0 }).offset, THREADS * 8);
    }
    pthread_barrier_destroy(&together);
}

int main(void) {
    setenv("STANDIN_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        /* clang-format off */
        ON_BOTH(test_missing_outputs_are_refused)
        ON_BOTH(test_a_new_seed_need_not_be_returned)
        ON_BOTH(test_a_handle_that_is_not_valid_is_refused)
        ON_CPU(test_the_generation_of_a_handle_is_never_zero)
        ON_BOTH(test_a_devices_generator_has_a_handle_that_stays)
        ON_BOTH(test_a_shape_that_no_gpu_has_is_refused)
        ON_BOTH(test_a_shape_that_is_given_in_part_is_completed)
        ON_CPU(test_threads_of_a_multiprocessor_by_capability)
        ON_BOTH(test_a_state_that_is_none_is_refused)
        ON_BOTH(test_states_of_the_current_type)
        ON_BOTH(test_fills_of_too_many_elements_are_refused)
        ON_BOTH(test_types_that_a_fill_does_not_have)
        ON_BOTH(test_parameters_that_a_type_cannot_hold)
        ON_BOTH(test_memory_that_a_fill_cannot_write)
#ifdef DEVSTREAM_CUDA
        ON_BOTH(test_a_generator_of_the_other_driver)
#endif
        ON_BOTH(test_a_permutation_in_parts_in_torchs_mapping)
        ON_BOTH(test_zeros_and_ones_of_all_types)
        ON_BOTH(test_the_words_of_an_integer_depend_on_the_range)
        ON_BOTH(test_a_kernel_that_was_destroyed_is_reported)
        ON_BOTH(test_no_call_is_permitted_inside_of_a_host_function)
        ON_BOTH(test_a_generator_that_is_left_is_reported)
        ON_BOTH(test_every_allocation_may_fail)
        ON_BOTH(test_the_list_of_generators_may_fail_to_grow)
        ON_BOTH(test_every_call_of_the_driver_may_fail)
        ON_BOTH(test_a_fill_gives_up_when_captures_change_too_often)
        ON_BOTH(test_a_launch_whose_record_failed_is_found)
        ON_BOTH(test_a_launch_that_cannot_ask_for_captures_takes_nothing)
        ON_BOTH(test_a_failed_launch_keeps_its_words_if_others_were_taken)
        ON_BOTH(test_an_event_of_a_graph_that_was_destroyed_is_reported)
        ON_BOTH(test_a_launch_at_the_end_of_the_sequence_takes_nothing)
        ON_BOTH(test_graphs_of_all_devices_by_turns)
        ON_BOTH(test_a_generator_and_a_kernel_are_made_once)
        ON_BOTH(test_threads_draw_for_the_first_time_at_once)
        /* clang-format on */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
