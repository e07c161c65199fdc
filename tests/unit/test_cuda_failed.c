/* Calls of cudart and of the driver library that fail with a code of their own: what devstream's
   call then says, and what it leaves behind. On the stand-in, which makes the call fail. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <pthread.h>
#include "scarce.h"
#include "unit.h"
#include "kernels_ptx.h"

#include "standin/standin.h"

#define cuda(call) assert_int_equal(call, cudaSuccess)

enum { MIB = 1 << 20 };

static ds_stream stream; /* of the first device */

static ds_stream new_stream(ds_device device) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    return s;
}

static int begin(void **state) {
    (void)state;
    alarm(120);
    scarce_begin(-1);
    ok(ds_init(&(ds_init_desc){ .allocator = SCARCE, .log_level = DS_LOG_ERROR }));
    ok(ds_device_set_current(ds_cuda(0)));
    stream = new_stream(ds_cuda(0));
    return 0;
}

/* The nth question for the thread's context fails. */
static void lose_context(unsigned long nth, unsigned long times) {
    standin_fail_calls("cuCtxGetCurrent", nth, times, cudaErrorUnknown);
}

/* For the first tests: the driver keeps the contexts until the process ends. */
static int begin_without_context(void **state) {
    (void)state;
    alarm(120);
    ok(ds_init(&(ds_init_desc){ .allocator = SCARCE, .log_level = DS_LOG_ERROR }));
    return 0;
}

/* Shuts down, and checks that nothing is left. */
static int end(void **state) {
    char report[200];
    (void)state;
    scarce_begin(-1);
    scarce_large = 0;
    lose_context(1, 0); /* or another call */
    ok(ds_shutdown());
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
    assert_int_equal(scarce_held, 0);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    return 0;
}

static void await_word(void *word) {
    while (!atomic_load((_Atomic int *)word))
        usleep(100);
}

/* ---- a device that cannot be made current ---- */

#define lost(call)                                                              \
    do {                                                                        \
        lose_context(1, 1);                                                     \
        refused(call, DS_ERR_DRIVER, "cuCtxGetCurrent on cuda:0 returned 999"); \
        assert_true(standin_failed());                                          \
    } while (0)

static void test_questions_about_a_device_report_its_context(void **state) {
    int number, other;
    size_t free_bytes, total;
    ds_stream legacy;
    (void)state;
    ok(ds_stream_get_legacy(ds_cuda(0), &legacy));
    lost(ds_device_get_memory_info(ds_cuda(0), &free_bytes, &total));
    lost(ds_device_get_priority_range(ds_cuda(0), &number, &other));
    lost(ds_device_can_access_peer(ds_cuda(0), ds_cuda(1), &number));
    lost(ds_stream_query(legacy));
    ok(ds_device_can_access_peer(ds_cuda(0), ds_cuda(1), &number));
    assert_int_equal(number, 1);
    ok(ds_stream_query(legacy));
}

static void test_exports_report_the_context(void **state) {
    ds_event e;
    ds_ipc_event_handle event_handle;
    ds_ipc_mem_handle handle;
    ds_pool pool;
    void *p;
    (void)state;
    ok(ds_event_create_on(ds_cuda(0), DS_EVENT_INTERPROCESS, NULL, &e));
    lost(ds_event_export(e, &event_handle));
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cuda(0), .shareable = 1 }, &pool));
    ok(ds_pool_push(pool));
    ok(ds_mem_alloc(MIB, stream, &p));
    lost(ds_mem_export(p, &handle));
    ok(ds_mem_free(p));
    ok(ds_pool_pop());
    ok(ds_pool_destroy(pool));
    ok(ds_event_destroy(e));
}

static void test_a_peer_that_cannot_be_asked_about_is_asked_again(void **state) {
    int reaches = 1;
    (void)state;
    standin_fail_calls("cudaDeviceCanAccessPeer", 1, 1, cudaErrorUnknown);
    refused(ds_device_can_access_peer(ds_cuda(2), ds_cuda(3), &reaches), DS_ERR_DRIVER,
            "cudaDeviceCanAccessPeer on cuda:2 returned 999");
    assert_int_equal(reaches, 0);
    ok(ds_device_can_access_peer(ds_cuda(2), ds_cuda(3), &reaches));
    assert_int_equal(reaches, 1);
}

static void test_a_context_that_is_not_given_is_asked_for_again(void **state) {
    ds_stream s;
    (void)state;
    ok(ds_device_set_current(ds_cuda(0)));
    standin_fail_calls("cuDevicePrimaryCtxRetain", 1, 1, cudaErrorMemoryAllocation);
    refused(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(3) }, &s), DS_ERR_OUT_OF_MEMORY,
            "cuDevicePrimaryCtxRetain on cuda:3 returned 2");
    s = new_stream(ds_cuda(3));
    ok(ds_stream_destroy(s));
}

/* Creates a stream of the driver without a handle, whose end is not put off. */
static void *bare_stream(void) {
    int priority = 0, share = 0;
    void *s;
    ok(ds__g.driver[0]->stream_create(0, DS__STREAM_NEW, 0, &priority, &share, &s));
    return s;
}

static void test_a_stream_ends_without_a_context(void **state) {
    void *s = bare_stream();
    (void)state;
    unsigned long streams = standin_calls("cudaStreamDestroy");
    lose_context(1, 2);
    ds__g.driver[0]->stream_destroy(s);
    assert_true(standin_failed());
    assert_int_equal(standin_calls("cudaStreamDestroy"), streams + 1);
}

static void test_pinned_memory_is_freed_without_a_context(void **state) {
    void *first, *second;
    (void)state;
    ok(ds_pinned_alloc(4096, &first));
    ok(ds_pinned_alloc(4096, &second));
    unsigned long asks = standin_calls("cuCtxGetCurrent");
    ok(ds_pinned_free(first));
    asks = standin_calls("cuCtxGetCurrent") - asks;
    lose_context(asks, 2); /* the waits before the release need one */
    ok(ds_pinned_free(second));
    assert_true(standin_failed());
}

static void test_a_mode_that_cuda_was_not_told_is_told_later(void **state) {
    ds_capture_mode mode = DS_CAPTURE_RELAXED;
    enum cudaStreamCaptureMode native = cudaStreamCaptureModeGlobal;
    ds_stream s;
    int device;
    (void)state;
    ok(ds_capture_exchange_mode(&mode)); /* no device has a context */
    standin_fail_calls("cudaThreadExchangeStreamCaptureMode", 1, 1, cudaErrorUnknown);
    refused(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s), DS_ERR_DRIVER,
            "cudaThreadExchangeStreamCaptureMode on cuda:1 returned 999");
    cuda(cudaGetDevice(&device));
    assert_int_equal(device, 0); /* the scope was closed */
    s = new_stream(ds_cuda(1));
    cuda(cudaThreadExchangeStreamCaptureMode(&native));
    assert_int_equal(native, cudaStreamCaptureModeRelaxed);
    ok(ds_stream_destroy(s));
    mode = DS_CAPTURE_GLOBAL;
    ok(ds_capture_exchange_mode(&mode));
}

/* ---- memory ---- */

static void test_memory_of_another_library_may_have_no_range(void **state) {
    ds_pointer_info info;
    void *p;
    (void)state;
    cuda(cudaMalloc(&p, 4096));
    standin_fail_calls("cuMemGetAddressRange", 1, 1, cudaErrorUnknown);
    ok(ds_pointer_get_info(p, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_null(info.base);
    assert_int_equal(info.size, 0);
    ok(ds_pointer_get_info(p, &info));
    assert_ptr_equal(info.base, p);
    assert_int_equal(info.size, 4096);
    cuda(cudaFree(p));
}

static void test_mapped_memory_needs_the_list_of_its_readers(void **state) {
    ds_stream s = new_stream(ds_cuda(2));
    void *p;
    (void)state;
    standin_fail_calls("cudaDeviceCanAccessPeer", 1, 1, cudaErrorUnknown);
    refused(ds_mem_alloc(MIB, s, &p), DS_ERR_DRIVER,
            "cudaDeviceCanAccessPeer on cuda:2 returned 999");
    ok(ds_mem_alloc(MIB, s, &p));
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
}

/* Memory that was mapped before CUDA refused access to later memory of the device. */
static void test_memory_of_a_device_that_stays_alone_is_copied_by_name(void **state) {
    ds_stream far = new_stream(ds_cuda(1));
    void *first, *second, *there;
    (void)state;
    ok(ds_mem_alloc(3 * MIB, stream, &first));
    ok(ds_device_alloc(ds_cuda(1), 4096, &there));
    ok(ds_stream_synchronize(stream));
    unsigned long named = standin_calls("cudaMemcpyPeerAsync");
    ok(ds_copy(there, first, 4096, far));
    assert_int_equal(standin_calls("cudaMemcpyPeerAsync"), named);
    standin_fail_calls("cuMemSetAccess", 1, 1, 711);
    ok(ds_mem_alloc(64 * MIB, stream, &second));
    assert_true(standin_failed());
    ok(ds_stream_synchronize(stream));
    ok(ds_copy(there, first, 4096, far));
    assert_int_equal(standin_calls("cudaMemcpyPeerAsync"), named + 1);
    ok(ds_stream_synchronize(far));
    ok(ds_mem_free(first));
    ok(ds_mem_free(second));
    ok(ds_device_free(there));
    ok(ds_stream_destroy(far));
}

static void test_only_whole_pages_are_mapped(void **state) {
    void *at;
    size_t page;
    (void)state;
    const ds__driver *driver = ds__g.driver[0];
    ok(driver->space_reserve(0, 64 * MIB, &page, &at));
    refused(driver->space_map(0, at, page + 1, page), DS_ERR_INVALID_VALUE, "are not whole pages");
    refused(driver->space_map(0, at, 0, page), DS_ERR_INVALID_VALUE, "0 bytes are not whole pages");
    refused(driver->space_map(0, at, page, 0), DS_ERR_INVALID_VALUE, "of 0 bytes");
    ok(driver->space_map(0, at, page, page));
    ok(driver->space_unmap(0, at, page));
    driver->space_release(0, at, 64 * MIB);
}

static void test_a_pool_without_memory_for_its_access_is_refused(void **state) {
    void *p;
    (void)state;
    ok(ds_mem_configure_text("backend:cudaMallocAsync"));
    standin_fail_calls("cudaMemPoolSetAccess", 1, 100, cudaErrorMemoryAllocation);
    refused(ds_mem_alloc(MIB, stream, &p), DS_ERR_OUT_OF_MEMORY, "were requested on cuda:0");
    standin_fail_calls("cudaMemPoolSetAccess", 1, 0, 0);
    ok(ds_mem_alloc(MIB, stream, &p));
    ok(ds_mem_free(p));
}

/* The stream ends although the work that is left cannot be noted. */
static void test_a_stream_with_work_ends_without_a_stream_for_that(void **state) {
    static _Atomic int word;
    void *s = bare_stream(), *native;
    (void)state;
    atomic_store(&word, 0);
    ok(ds__g.driver[0]->stream_native(s, &native));
    cuda(cudaLaunchHostFunc(native, await_word, (void *)&word));
    unsigned long waits = standin_calls("cudaStreamWaitEvent");
    standin_fail_calls("cudaStreamCreateWithPriority", 1, 1, cudaErrorMemoryAllocation);
    ds__g.driver[0]->stream_destroy(s);
    atomic_store(&word, 1);
    assert_true(standin_failed());
    assert_int_equal(standin_calls("cudaStreamWaitEvent"), waits);
}

static void test_a_library_gets_no_device_that_is_lost(void **state) {
    ds__library_scope scope;
    const ds__driver *driver = ds__g.driver[0];
    (void)state;
    unsigned long modes = standin_calls("cudaThreadExchangeStreamCaptureMode");
    lose_context(1, 1);
    driver->library_begin(0, &scope);
    driver->library_end(&scope);
    assert_int_equal(standin_calls("cudaThreadExchangeStreamCaptureMode"), modes);
    driver->library_begin(0, &scope);
    driver->library_end(&scope);
    assert_int_equal(standin_calls("cudaThreadExchangeStreamCaptureMode"), modes + 2);
}

/* ---- copies between the drivers ---- */

/* A copy by a stream of the CPU driver, of memory that CUDA does not describe when it runs. */
static void test_a_copy_for_the_cpu_driver_needs_no_description(void **state) {
    static _Atomic int word;
    ds_stream s = new_stream(ds_cpu(0));
    void *p, *here;
    (void)state;
    cuda(cudaMalloc(&p, 4096));
    cuda(cudaMemset(p, 7, 4096));
    ok(ds_device_alloc(ds_cpu(0), 4096, &here));
    atomic_store(&word, 0);
    ok(ds_stream_launch_host_func(s, await_word, (void *)&word, NULL));
    ok(ds_copy(here, p, 4096, s));
    standin_fail_calls("cuPointerGetAttributes", 1, 2, cudaErrorUnknown);
    atomic_store(&word, 1);
    ok(ds_stream_synchronize(s));
    assert_true(standin_failed());
    for (int i = 0; i < 4096; i++)
        assert_int_equal(((char *)here)[i], 7);
    ok(ds_stream_destroy(s));
    ok(ds_device_free(here));
    cuda(cudaFree(p));
}

/* A copy between a GPU and a device of the CPU driver goes through a buffer, in pieces. */
enum { STAGED = 3 * DS__CUDA_PIECE };

static void *gpu_memory, *cpu_memory;

static void begin_staged(void) {
    ok(ds_device_alloc(ds_cuda(0), STAGED, &gpu_memory));
    ok(ds_device_alloc(ds_cpu(0), STAGED, &cpu_memory));
    memset(cpu_memory, 5, STAGED);
}

static void end_staged(void) {
    ok(ds_device_free(gpu_memory));
    ok(ds_device_free(cpu_memory));
}

static void expect_staged_copy(ds_stream s) {
    ok(ds_copy(gpu_memory, cpu_memory, STAGED, s));
    ok(ds_stream_synchronize(s));
    memset(cpu_memory, 0, STAGED);
    ok(ds_copy(cpu_memory, gpu_memory, STAGED, s));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < STAGED; i += 1000)
        assert_int_equal(((char *)cpu_memory)[i], 5);
}

static void test_a_staged_copy_without_host_memory_is_refused(void **state) {
    int refusals = 0;
    (void)state;
    begin_staged();
    for (long n = 0;; n++) {
        ds_stream s = new_stream(ds_cuda(0));
        scarce_begin(n);
        ds_result r = ds_copy(gpu_memory, cpu_memory, STAGED, s);
        int hit = scarce_end();
        if (r == DS_OK) {
            ok(ds_stream_synchronize(s));
            ok(ds_stream_destroy(s));
            assert_false(hit);
            break;
        }
        assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
        refusals += strstr(ds_error_get_last(), "no memory for a copy in 3 pieces") != NULL;
        refusals += strstr(ds_error_get_last(), "no memory for a staging buffer") != NULL;
        ok(ds_stream_destroy(s));
    }
    assert_int_equal(refusals, 2);
    expect_staged_copy(stream);
    end_staged();
}

static void test_the_buffer_of_a_stream_serves_the_next_one(void **state) {
    (void)state;
    begin_staged();
    ds_stream first = new_stream(ds_cuda(0));
    expect_staged_copy(first);
    ok(ds_stream_destroy(first));
    for (int i = 0; i < DS__RECLAIM_BATCH; i++) /* streams end in batches */
        ok(ds_stream_destroy(new_stream(ds_cuda(0))));
    unsigned long buffers = standin_calls("cudaHostAlloc");
    expect_staged_copy(stream);
    assert_int_equal(standin_calls("cudaHostAlloc"), buffers);
    end_staged();
}

/* A piece that fails ends the copy: the work of the pieces before it does not use the buffer any
   more when the call returns. */
static void test_a_staged_copy_that_fails_waits_for_its_pieces(void **state) {
    (void)state;
    begin_staged();
    expect_staged_copy(stream);
    unsigned long waits = standin_calls("cudaStreamSynchronize");
    standin_fail_calls("cudaMemcpyAsync", 2, 1, cudaErrorUnknown);
    refused(ds_copy(gpu_memory, cpu_memory, STAGED, stream), DS_ERR_DRIVER, "cudaMemcpyAsync");
    assert_int_equal(standin_calls("cudaStreamSynchronize"), waits + 2); /* of both streams */
    expect_staged_copy(stream);
    end_staged();
}

static void test_a_share_of_a_device_needs_host_memory(void **state) {
    const ds_stream_desc share = { .device = ds_cuda(0), .multiprocessors = 2 };
    ds_stream s;
    int refusals = 0;
    (void)state;
    for (long n = 0;; n++) {
        scarce_begin(n);
        ds_result r = ds_stream_create(&share, &s);
        (void)scarce_end();
        if (r == DS_OK)
            break;
        assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
        refusals += strstr(ds_error_get_last(), "no memory for a share of a device") != NULL;
    }
    assert_int_equal(refusals, 1);
    ok(ds_stream_destroy(s));
}

/* ---- kernels ---- */

static void registered_function(void) {
}

static void test_the_attributes_of_a_linked_kernel_are_reported(void **state) {
    void (*fn)(void) = registered_function;
    const void *native;
    ds_kernel k;
    (void)state;
    memcpy(&native, &fn, sizeof native);
    standin_register_function(native, ptx_fold, "fold");
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "linked", .cuda = { .native_fn = native } },
                        &k));
    standin_fail_calls("cudaFuncGetAttributes", 1, 1, cudaErrorNotSupported);
    refused(ds_kernel_load(k, ds_cuda(0)), DS_ERR_UNSUPPORTED, "cudaFuncGetAttributes on cuda:0");
    assert_non_null(strstr(ds_error_get_last(), "(kernel \"linked\")"));
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_kernel_destroy(k));
}

static ds_kernel kernel_of(const char *name, const char *image, const char *entry) {
    ds_kernel k;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = name, .cuda = { .image = image, .entry = entry } }, &k));
    return k;
}

static const char nothing_ptx[] = ".version 5.0\n.target sm_60\n.address_size 64\n"
                                  ".visible .entry nothing()\n{ ret; }\n";
static const char broken_ptx[] = ".version 5.0\n.target sm_60\n.address_size 64\n"
                                 ".visible .entry nothing()\n{ no_such_instruction; }\n";

static void *load_broken(void *kernel) {
    ds_result r = ds_kernel_load(*(ds_kernel *)kernel, ds_cuda(0));
    const char *text = ds_error_get_last();
    int is_line = strstr(text, " ptxas fatal: aborted") && !strchr(text, '\n');
    return r == DS_ERR_INVALID_VALUE && strstr(text, "broken") && is_line ? kernel : NULL;
}

/* The image that cannot be loaded is not the newest one when its load ends. */
static void test_a_broken_image_leaves_the_others_loaded(void **state) {
    ds_kernel broken = kernel_of("broken", broken_ptx, "nothing");
    ds_kernel good = kernel_of("good", nothing_ptx, "nothing");
    pthread_t thread;
    void *refusal;
    int begun = 0;
    (void)state;
    standin_load_delay(200);
    assert_int_equal(pthread_create(&thread, NULL, load_broken, &broken), 0);
    while (!begun) {
        ds__mutex_lock(&ds__cuda.mutex);
        begun = ds__cuda.modules != NULL;
        ds__mutex_unlock(&ds__cuda.mutex);
    }
    ok(ds_kernel_load(good, ds_cuda(0)));
    pthread_join(thread, &refusal);
    standin_load_delay(0);
    assert_non_null(refusal);
    assert_non_null(ds__cuda.modules);
    assert_null(ds__cuda.modules->next);
    ok(ds_kernel_launch(good, 1, NULL, 0, stream));
    ok(ds_stream_synchronize(stream));
    ok(ds_kernel_destroy(broken));
    ok(ds_kernel_destroy(good));
}

#if CUDART_VERSION >= 12080
/* As after a call of cudaSetDevice of another library, without a context. */
static void test_the_kernel_for_conditions_is_loaded_with_a_context(void **state) {
    ds_graph g, body;
    void *word;
    (void)state;
    ok(ds_pinned_alloc(64, &word));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &body));
    ds_node_desc d = { .kind = DS_NODE_CONDITION };
    d.u.condition =
        (ds_condition_node){ .kind = DS_CONDITION_IF, .word = word, .bodies = &body, .count = 1 };
    standin_conditions(1);
    standin_fail_calls("cuModuleLoadDataEx", 1, 1, 201);
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    standin_conditions(0);
    assert_true(standin_failed());
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_pinned_free(word));
}
#endif

int main(void) {
#define FIRST(name) cmocka_unit_test_setup_teardown(test_##name, begin_without_context, end)
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        FIRST(a_mode_that_cuda_was_not_told_is_told_later),
        FIRST(a_context_that_is_not_given_is_asked_for_again),
        T(questions_about_a_device_report_its_context),
        T(exports_report_the_context),
        T(a_peer_that_cannot_be_asked_about_is_asked_again),
        T(a_stream_ends_without_a_context),
        T(pinned_memory_is_freed_without_a_context),
        T(memory_of_another_library_may_have_no_range),
        T(mapped_memory_needs_the_list_of_its_readers),
        T(memory_of_a_device_that_stays_alone_is_copied_by_name),
        T(only_whole_pages_are_mapped),
        T(a_pool_without_memory_for_its_access_is_refused),
        T(a_stream_with_work_ends_without_a_stream_for_that),
        T(a_library_gets_no_device_that_is_lost),
        T(a_copy_for_the_cpu_driver_needs_no_description),
        T(a_staged_copy_without_host_memory_is_refused),
        T(the_buffer_of_a_stream_serves_the_next_one),
        T(a_staged_copy_that_fails_waits_for_its_pieces),
        T(a_share_of_a_device_needs_host_memory),
        T(the_attributes_of_a_linked_kernel_are_reported),
        T(a_broken_image_leaves_the_others_loaded),
#if CUDART_VERSION >= 12080
        T(the_kernel_for_conditions_is_loaded_with_a_context),
#endif
    };
    return cmocka_run_group_tests_name("failed calls, cuda", tests, NULL, NULL);
}
