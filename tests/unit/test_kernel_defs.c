/* Kernels that a program defines with macros: wrong arguments, calls from inside of user code, host
   memory that runs out, kernels that the program destroys, and threads that launch for the first
   time at once. On the CPU driver and, upon the stand-in, on the CUDA driver. */
#include <pthread.h>

static int lock_after_guest(pthread_mutex_t *m);
#define pthread_mutex_lock(m) lock_after_guest(m)
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_kernel.h"
#include "kernels/once.kernels.h"
#include "scarce.h"
#include "unit.h"
#include "both.h"
#undef pthread_mutex_lock
#include <stdio.h>
#include <string.h>

enum { ITEMS = 10 };

static ds_device device;
static ds_stream stream;
static uint64_t *seen; /* pinned memory of ITEMS words, which both drivers' kernels access */

/* What another thread does before this thread takes the lock. */
static _Thread_local const pthread_mutex_t *door;
static void *(*guest)(void *user);

static int lock_after_guest(pthread_mutex_t *m) {
    if (door && door == m) {
        pthread_t thread;
        door = NULL;
        if (pthread_create(&thread, NULL, guest, NULL) == 0)
            pthread_join(thread, NULL);
    }
    return pthread_mutex_lock(m);
}

static void start(void) {
    void *p;
    ok(ds_init(&(ds_init_desc){ .allocator = SCARCE }));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &stream));
    ok(ds_pinned_alloc(ITEMS * sizeof *seen, &p));
    memset(p, 0, ITEMS * sizeof *seen);
    seen = p;
}

static void stop(void) {
    ok(ds_pinned_free(seen));
    DS_IGNORE(ds_stream_destroy(stream));
    DS_IGNORE(ds_shutdown());
    assert_int_equal(scarce_held, 0);
#ifdef DEVSTREAM_CUDA
    char report[200];
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
#endif
}

static int begin_cpu(void **state) {
    (void)state;
    device = ds_cpu(0);
    start();
    return 0;
}
#ifdef DEVSTREAM_CUDA
static int begin_cuda(void **state) {
    (void)state;
    device = ds_cuda(0);
    start();
    return 0;
}
#endif

static int end(void **state) {
    (void)state;
    stop();
    return 0;
}

static ds_result touch(void) {
    return DS_LAUNCH(once_touch, stream, ITEMS, seen);
}

/* Each of so many launches has added 1 + ITEMS to each word. */
static void expect_launches(uint64_t count) {
    ok(ds_stream_synchronize(stream));
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(seen[i], count * (1 + ITEMS));
}

static void test_missing_arguments_are_refused(void **state) {
    (void)state;
    struct once_touch_args args = once_touch_pack(ITEMS, seen);
    ds_kernel_dims dims = { .n = { ITEMS, 1, 1 } };
    ds_kernel k = { 7 };
    refused(ds_kernel_def_get_kernel(NULL, &k), DS_ERR_INVALID_VALUE, "def is NULL");
    assert_int_equal(k.id, 0);
    refused(ds_kernel_def_get_kernel(&once_touch_def, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    refused(ds_kernel_def_launch(NULL, stream, &dims, &args), DS_ERR_INVALID_VALUE, "def is NULL");
    refused(ds_kernel_def_launch(&once_touch_def, stream, NULL, &args), DS_ERR_INVALID_VALUE,
            "dims is NULL");
    refused(ds_kernel_def_launch(&once_touch_def, stream, &dims, NULL), DS_ERR_INVALID_VALUE,
            "args is NULL");
    expect_launches(0);
    ok(ds_kernel_def_launch(&once_touch_def, stream, &dims, &args));
    expect_launches(1);
}

static ds_result inside[2];
static uint64_t id_inside;

static void launch_inside(void *user) {
    ds_kernel k = { 7 };
    (void)user;
    inside[0] = touch();
    inside[1] = ds_kernel_def_get_kernel(&once_touch_def, &k);
    id_inside = k.id;
}

static void test_a_host_function_cannot_launch(void **state) {
    (void)state;
    ok(ds_stream_launch_host_func(stream, launch_inside, NULL, NULL));
    expect_launches(0);
    assert_int_equal(inside[0], DS_ERR_NOT_PERMITTED);
    assert_int_equal(inside[1], DS_ERR_NOT_PERMITTED);
    assert_int_equal(id_inside, 0);
    ok(touch());
    expect_launches(1);
}

/* The first launch creates and loads the kernel. */
static void test_every_allocation_of_a_first_launch_may_fail(void **state) {
    (void)state;
    int failures = 0, hit = 1;
    for (long n = 0; hit; n++) {
        stop();
        start();
        scarce_begin(n);
        ds_result r = touch();
        hit = scarce_end();
        if (r == DS_OK) {
            expect_launches(1);
            continue;
        }
        failures++;
        if (r != DS_ERR_OUT_OF_MEMORY || !strstr(ds_error_get_last(), "ds_kernel_def_launch"))
            fail_msg("%ld: %s: %s", n, ds_result_get_name(r), ds_error_get_last());
        expect_launches(0);
        ok(touch());
        expect_launches(1);
    }
    assert_true(failures >= 2);
}

/* The program may destroy the kernel of a definition, which is reported until the next start. */
static void test_a_kernel_that_was_destroyed_is_reported(void **state) {
    (void)state;
    ds_kernel k;
    ok(touch());
    ok(ds_kernel_def_get_kernel(&once_touch_def, &k));
    ok(ds_kernel_destroy(k));
    refused(touch(), DS_ERR_INVALID_HANDLE, "the kernel was destroyed or never existed");
    expect_launches(1);
    stop();
    start();
    ok(touch());
    expect_launches(1);
}

/* The command that adds PTX to a definition is named only if the PTX is missing. */
static void test_a_form_that_is_missing_is_named(void **state) {
    (void)state;
    struct once_touch_args args = once_touch_pack(ITEMS, seen);
    ds_kernel_dims dims = { .n = { ITEMS, 1, 1 } };
    ds_kernel_def half = once_touch_def;
    half.epoch = 0;
    half.next = NULL;
    if (device.type == DS_DEVICE_CPU)
        half.cpu_fn = NULL;
    else
        half.ptx = NULL;
    refused(ds_kernel_def_launch(&half, stream, &dims, &args), DS_ERR_UNSUPPORTED, "once_touch");
    int named = strstr(ds_error_get_last(), "run `devstream-kernels ") != NULL;
    assert_int_equal(named, device.type == DS_DEVICE_CUDA);
    stop(); /* the list of definitions has `half` until then */
    start();
}

static ds_result launched;

static void *launch_meanwhile(void *user) {
    launched = touch();
    return user;
}

/* Another thread creates the kernel while this thread is about to. */
static void test_a_kernel_is_created_once(void **state) {
    (void)state;
    launched = DS_ERR_SYSTEM;
    guest = launch_meanwhile;
    door = &ds__kernel_defs.making;
    ok(touch());
    assert_null(door);
    assert_int_equal(launched, DS_OK);
    assert_ptr_equal(ds__kernel_defs.list, &once_touch_def);
    assert_null(once_touch_def.next);
    expect_launches(2);
}

/* The blocks of a kernel need memory for their shared variables, which may be used up. */
static void test_blocks_without_scratch_memory_fail_the_device(void **state) {
    (void)state;
    void *p;
    ok(ds_pinned_alloc(2 * 64 * sizeof(uint32_t), &p));
    uint32_t *out = p;
    scarce_large = DS_KERNEL_SCRATCH_BYTES;
    ok(DS_LAUNCH(once_broadcast, stream, 2, out));
    refused(ds_stream_synchronize(stream), DS_ERR_FAILED,
            "out of host memory for the scratch of a block");
    scarce_large = 0;
    ok(ds_device_reset(device));
    ok(DS_LAUNCH(once_broadcast, stream, 2, out));
    ok(ds_stream_synchronize(stream));
    ok(ds_pinned_free(p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* clang-format off */
        ON_BOTH(test_missing_arguments_are_refused)
        ON_BOTH(test_a_host_function_cannot_launch)
        ON_BOTH(test_every_allocation_of_a_first_launch_may_fail)
        ON_BOTH(test_a_kernel_that_was_destroyed_is_reported)
        ON_BOTH(test_a_form_that_is_missing_is_named)
        ON_BOTH(test_a_kernel_is_created_once)
        ON_CPU(test_blocks_without_scratch_memory_fail_the_device)
        /* clang-format on */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
