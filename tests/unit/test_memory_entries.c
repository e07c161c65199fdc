/* The drivers' entries for the allocator, and what the core makes of them: virtual memory,
   segments, the driver's own allocator in the order of streams. On the CPU driver and, upon the
   stand-in, on the CUDA driver: three devices of 64 MiB, of which the first two reach each
   other. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "core/segment.h"

#include <setjmp.h>
#include <sys/wait.h>
#include <cmocka.h>
#include "both.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
#define MEMORY (64 * MIB)

#define ok(call)                                                           \
    do {                                                                   \
        ds_result ok_result_ = (call);                                     \
        if (ok_result_ != DS_OK)                                           \
            fail_msg("%s:%d: %s is %s: %s", __func__, __LINE__, #call,     \
                     ds_result_get_name(ok_result_), ds_error_get_last()); \
    } while (0)
#define refused(call, code, words)                                                          \
    do {                                                                                    \
        ds_result refused_result_ = (call);                                                 \
        if (refused_result_ != (code))                                                      \
            fail_msg("%s:%d: %s is %s: %s", __func__, __LINE__, #call,                      \
                     ds_result_get_name(refused_result_), ds_error_get_last());             \
        if (!strstr(ds_error_get_last(), words))                                            \
            fail_msg("%s:%d: %s says: %s", __func__, __LINE__, #call, ds_error_get_last()); \
    } while (0)

static ds_device device, peer; /* of the driver under test */
static const ds__driver *driver;
static ds_stream stream;
static const char *fault; /* injected by the layer, or NULL */

/* Memory for bookkeeping that ends after so many blocks, and the balance. */
static _Atomic long taken, returned, bank_left;

static void *bank_alloc(size_t size, void *user) {
    (void)user;
    if (bank_left > 0 && --bank_left == 0)
        return NULL;
    taken++;
    return malloc(size);
}

static void bank_free(void *ptr, void *user) {
    (void)user;
    returned++;
    free(ptr);
}

static const unsigned char reach[9] = { 1, 1, 0, 1, 1, 0, 0, 0, 1 };

static void configure(void) {
    static ds_cpu_desc cpu;
    cpu = (ds_cpu_desc){ .devices = 3, .memory_limit = MEMORY, .peer_access = reach };
    taken = returned = bank_left = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .fault = fault,
                                .layers = fault ? "fault" : NULL,
                                .allocator = { bank_alloc, bank_free, NULL } }));
}

static int open_on(ds_device d) {
    const char *timeout = getenv("DS_TEST_TIMEOUT"); /* seconds, as of the suites */
    alarm(timeout ? (unsigned)atoi(timeout) : 120);
    configure();
    device = d;
    peer = d;
    peer.index = 1;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &stream));
    driver = ds__driver_of(device);
    return 0;
}

static int begin_cpu(void **state) {
    (void)state;
    return open_on(ds_cpu(0));
}
#ifdef DEVSTREAM_CUDA
static int begin_cuda(void **state) {
    (void)state;
    return open_on(ds_cuda(0));
}
#endif

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
#ifdef DEVSTREAM_CUDA
    char report[200];
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
    while (cudaGetLastError() != cudaSuccess) {
    }
#endif
    assert_int_equal(taken, returned);
    return 0;
}

static int on_cuda(void) {
    return device.type == DS_DEVICE_CUDA;
}

/* ---- what the tests use ---- */

static size_t in_use(void) {
    size_t avail = 0, total = 0;
    ok(ds_device_get_memory_info(device, &avail, &total));
    return total - avail;
}

static char *reserve(size_t size) {
    size_t page = 0;
    void *at = NULL;
    ok(ds__space_reserve(device, size, &page, &at));
    assert_int_equal(page, PAGE);
    return at;
}

static ds_result map(char *at, size_t size) {
    return driver->space_map(device.index, at, size, size);
}

static ds_result unmap(char *at, size_t size) {
    return driver->space_unmap(device.index, at, size);
}

static void fill(char *at, int value, size_t size) {
    ok(ds_fill(at, (uint32_t)value, 1, size, stream));
    ok(ds_stream_synchronize(stream));
}

static int all(char *at, int value, size_t size) {
    unsigned char *bytes = malloc(size);
    int same = 1;
    ok(ds_copy(bytes, at, size, stream));
    ok(ds_stream_synchronize(stream));
    for (size_t i = 0; i < size; i++)
        same &= bytes[i] == value;
    free(bytes);
    return same;
}

/* ---- address space ---- */

static void test_a_reservation_takes_addresses_and_no_memory(void **state) {
    ds_pointer_info info;
    (void)state;
    char *at = reserve((size_t)1 << 38), *odd = reserve(PAGE + 1);
    assert_true((uintptr_t)at % PAGE == 0 && (uintptr_t)odd % PAGE == 0);
    assert_int_equal(in_use(), 0);
    ok(ds_pointer_get_info(at + 5 * PAGE + 7, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_true(info.device.type == device.type && info.device.index == 0);
    assert_ptr_equal(info.base, at);
    assert_true(info.size == (size_t)1 << 38);
    ok(ds_pointer_get_info(odd + 2 * PAGE - 1, &info)); /* rounded up */
    assert_ptr_equal(info.base, odd);
    assert_int_equal(info.size, 2 * PAGE);
    ds__space_release(device, at, (size_t)1 << 38);
    ds__space_release(device, odd, PAGE + 1);
    ok(ds_pointer_get_info(at, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
}

static void test_a_reservation_that_cannot_be_had_is_out_of_memory(void **state) {
    size_t page = 0;
    void *at = &page;
    (void)state;
    refused(ds__space_reserve(device, SIZE_MAX - 5, &page, &at), DS_ERR_OUT_OF_MEMORY,
            "of address space");
    assert_null(at);
    refused(ds__space_reserve(device, (size_t)1 << 60, &page, &at), DS_ERR_OUT_OF_MEMORY,
            "of address space");
    refused(ds__space_reserve(device, 0, &page, &at), DS_ERR_OUT_OF_MEMORY, "of address space");
}

static void test_mapped_memory_is_used_like_any_other(void **state) {
    (void)state;
    char *at = reserve(8 * PAGE), back[64];
    ok(map(at + PAGE, PAGE));
    ok(map(at + 2 * PAGE, 2 * PAGE));
    assert_int_equal(in_use(), 3 * PAGE);
    fill(at + PAGE, 7, 3 * PAGE);
    assert_true(all(at + PAGE, 7, 3 * PAGE)); /* over the border between the two */
    memset(back, 3, sizeof back);
    ok(ds_copy(at + 2 * PAGE - 32, back, 64, stream));
    ok(ds_stream_synchronize(stream));
    assert_true(all(at + 2 * PAGE - 32, 3, 64));
    ok(unmap(at + PAGE, 3 * PAGE)); /* both at once */
    assert_int_equal(in_use(), 0);
    ds__space_release(device, at, 8 * PAGE);
}

static void test_unmapping_and_mapping_again_leaves_the_neighbours_alone(void **state) {
    (void)state;
    char *at = reserve(4 * PAGE);
    for (size_t i = 0; i < 4; i++)
        ok(map(at + i * PAGE, PAGE));
    for (int i = 0; i < 4; i++)
        fill(at + (size_t)i * PAGE, i + 1, PAGE);
    ok(unmap(at + PAGE, PAGE));
    ok(unmap(at + 2 * PAGE, PAGE));
    assert_true(all(at, 1, PAGE) && all(at + 3 * PAGE, 4, PAGE));
    ok(map(at + PAGE, 2 * PAGE));
    assert_false(all(at + PAGE, 2, PAGE) || all(at + 2 * PAGE, 3, PAGE)); /* another memory */
    fill(at + PAGE, 9, 2 * PAGE);
    assert_true(all(at, 1, PAGE) && all(at + PAGE, 9, 2 * PAGE) && all(at + 3 * PAGE, 4, PAGE));
    ok(unmap(at, 4 * PAGE));
    ds__space_release(device, at, 4 * PAGE);
}

static void test_what_does_not_fit_to_the_mappings_is_refused(void **state) {
    (void)state;
    char *at = reserve(8 * PAGE);
    ok(map(at + PAGE, 2 * PAGE));
    ok(map(at + 4 * PAGE, PAGE));
    refused(map(at, 2 * PAGE), DS_ERR_INVALID_VALUE, "overlap mapped memory");
    refused(map(at + 2 * PAGE, PAGE), DS_ERR_INVALID_VALUE, "overlap mapped memory");
    refused(map(at + PAGE, 2 * PAGE), DS_ERR_INVALID_VALUE, "overlap mapped memory");
    refused(map(at + 6 * PAGE, PAGE / 2), DS_ERR_INVALID_VALUE, "");
    refused(map(at + 6 * PAGE + 4096, PAGE), DS_ERR_INVALID_VALUE, "");
    ok(map(at + 6 * PAGE, PAGE));
    refused(unmap(at, PAGE), DS_ERR_INVALID_VALUE, "not a mapped range");
    refused(unmap(at + PAGE, PAGE), DS_ERR_INVALID_VALUE, "not a mapped range");
    refused(unmap(at + 2 * PAGE, PAGE), DS_ERR_INVALID_VALUE, "not a mapped range");
    refused(unmap(at + PAGE, 3 * PAGE), DS_ERR_INVALID_VALUE, "not a mapped range");
    refused(unmap(at + PAGE, 4 * PAGE), DS_ERR_INVALID_VALUE, "not a mapped range"); /* a hole */
    refused(unmap(at + PAGE, 0), DS_ERR_INVALID_VALUE, "not a mapped range");
    assert_int_equal(in_use(), 4 * PAGE);
    ok(unmap(at + PAGE, 2 * PAGE));
    ok(unmap(at + 4 * PAGE, PAGE));
    ok(unmap(at + 6 * PAGE, PAGE));
    refused(unmap(at + 6 * PAGE, PAGE), DS_ERR_INVALID_VALUE, "not a mapped range");
    ds__space_release(device, at, 8 * PAGE);
}

static void test_a_device_that_is_full_says_so_and_nothing_is_mapped(void **state) {
    void *plain = NULL, *segment = NULL;
    (void)state;
    char *at = reserve(MEMORY * 2);
    ok(ds_device_alloc(device, 10 * PAGE, &plain));
    ok(map(at, 20 * PAGE));
    refused(map(at + 20 * PAGE, 3 * PAGE), DS_ERR_OUT_OF_MEMORY, "6291456 bytes");
    if (on_cuda())
        assert_non_null(strstr(ds_error_get_last(), "4194304 of 67108864 are free"));
    refused(ds__segment_alloc(device, 3 * PAGE, &segment), DS_ERR_OUT_OF_MEMORY, "6291456 bytes");
    assert_null(segment);
    assert_int_equal(in_use(), 30 * PAGE);
    ok(map(at + 20 * PAGE, 2 * PAGE)); /* the place is free */
    fill(at, 1, 22 * PAGE);
    ok(unmap(at + 20 * PAGE, 2 * PAGE));
    ok(ds__segment_alloc(device, 2 * PAGE, &segment));
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 1));
    ok(unmap(at, 20 * PAGE));
    ok(ds_device_free(plain));
    assert_int_equal(in_use(), 0);
    ds__space_release(device, at, MEMORY * 2);
}

static void test_the_user_cannot_free_what_is_the_allocators(void **state) {
    void *segment, *pinned, *async;
    (void)state;
    char *at = reserve(PAGE);
    ok(map(at, PAGE));
    ok(ds__segment_alloc(device, 4096, &segment));
    ok(ds__pinned_segment_alloc(4096, &pinned));
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &async));
    void *const all_of_them[] = { at, at + 4096, segment, (char *)segment + 64, async };
    for (size_t i = 0; i < sizeof all_of_them / sizeof all_of_them[0]; i++) {
        refused(ds_device_free(all_of_them[i]), DS_ERR_INVALID_VALUE,
                "belongs to the allocator; use ds_mem_free");
        refused(ds_pinned_unregister(all_of_them[i]), DS_ERR_INVALID_VALUE,
                "belongs to the allocator");
        refused(ds_pinned_register(all_of_them[i], 64), DS_ERR_INVALID_VALUE,
                "overlaps registered or allocated memory");
    }
    refused(ds_pinned_free(pinned), DS_ERR_INVALID_VALUE,
            "belongs to the allocator; use ds_mem_pinned_free");
    refused(ds_device_free(pinned), DS_ERR_INVALID_VALUE,
            "belongs to the allocator; use ds_mem_pinned_free");
    refused(ds__segment_end(at, DS_MEMORY_DEVICE, 1), DS_ERR_INVALID_VALUE, "not the start of a");
    refused(ds__segment_end(pinned, DS_MEMORY_DEVICE, 1), DS_ERR_INVALID_VALUE,
            "not the start of a");
    refused(ds__segment_end(segment, DS_MEMORY_PINNED, 1), DS_ERR_INVALID_VALUE,
            "not the start of a");
    refused(ds__async_free(s, segment), DS_ERR_INVALID_VALUE, "of the driver's allocator");
    ok(ds__async_free(s, async));
    refused(ds__async_free(s, async), DS_ERR_INVALID_VALUE, "of the driver's allocator");
    ds__stream_unpin(s);
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
    ok(ds__segment_end(pinned, DS_MEMORY_PINNED, 0));
    refused(ds_device_free(segment), DS_ERR_INVALID_VALUE, "is not the start of an allocation");
    ok(unmap(at, PAGE));
    ds__space_release(device, at, PAGE);
}

static void test_a_release_unmaps_what_is_mapped_and_knows_its_own(void **state) {
    void *segment;
    (void)state;
    char *at = reserve(4 * PAGE);
    ok(map(at, PAGE));
    ok(map(at + 2 * PAGE, 2 * PAGE));
    ok(ds__segment_alloc(device, 4096, &segment));
    ds__space_release(device, segment, 4096); /* it is none */
    ds__space_release(device, at + PAGE, PAGE);
    assert_true(in_use() >= 3 * PAGE + 4096);
    ds__space_release(device, at, 4 * PAGE);
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
    assert_int_equal(in_use(), 0);
}

static void test_shutdown_takes_back_what_is_left(void **state) {
    void *ptr;
    (void)state;
    char *at = reserve(4 * PAGE);
    (void)reserve(PAGE);
    ok(map(at, PAGE));
    ok(map(at + PAGE, PAGE));
    ok(map(at + 3 * PAGE, PAGE));
    ok(ds__segment_alloc(device, 4096, &ptr));
    ok(ds__pinned_segment_alloc(4096, &ptr));
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &ptr));
    ds__stream_unpin(s);
    ok(ds_device_alloc(device, 4096, &ptr));
    assert_true(in_use() >= 3 * PAGE);
}

/* ---- captures ---- */

static void test_a_capture_does_not_hinder_the_allocator(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    ds_capture_info info;
    ds_graph graph;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        void *segment, *pinned, *plain;
        ds_capture_mode mode = DS_CAPTURE_GLOBAL;
        ok(ds_capture_begin(stream, modes[i]));
        char *at = reserve(4 * PAGE);
        ok(map(at, PAGE));
        ok(map(at + PAGE, PAGE));
        ok(ds__segment_alloc(device, 4096, &segment));
        ok(ds__pinned_segment_alloc(4096, &pinned));
        ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
        ok(ds__segment_alloc(device, 4096, &segment));
        ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 1));
        ok(ds__segment_end(pinned, DS_MEMORY_PINNED, 0));
        ok(unmap(at, 2 * PAGE));
        ds__space_release(device, at, 4 * PAGE);
        ok(driver->async_trim(device.index, 0));
        ok(ds_capture_get_info(stream, &info));
        assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
        ok(ds_capture_end(stream, &graph));
        ok(ds_graph_destroy(graph));
        ok(ds_capture_exchange_mode(&mode)); /* it is as it was */
        assert_int_equal(mode, DS_CAPTURE_GLOBAL);
        if (modes[i] == DS_CAPTURE_RELAXED)
            continue;
        ok(ds_capture_begin(stream, modes[i])); /* the user's calls are forbidden as ever */
        refused(ds_device_alloc(device, 4096, &plain), DS_ERR_CAPTURE_UNSUPPORTED, "capture");
        assert_true(ds_capture_end(stream, &graph) == DS_ERR_CAPTURE_INVALIDATED);
    }
}

static void test_the_drivers_allocator_refuses_a_stream_that_captures(void **state) {
    ds_stream legacy, blocking;
    ds_capture_info info;
    ds_graph graph;
    size_t reserved, used;
    void *before, *ptr = &before;
    (void)state;
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &before));
    ok(ds_capture_begin(stream, DS_CAPTURE_GLOBAL));
    refused(ds__async_alloc(s, 4096, &ptr), DS_ERR_CAPTURE_UNSUPPORTED, "goes on");
    assert_null(ptr);
    refused(ds__async_free(s, before), DS_ERR_CAPTURE_UNSUPPORTED, "goes on");
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(used, 4096);
    ok(ds_capture_get_info(stream, &info));
    assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
    ok(ds_capture_end(stream, &graph));
    ok(ds_graph_destroy(graph));
    ok(ds__async_free(s, before));
    ds__stream_unpin(s);
    /* the legacy stream beside one that it would wait for */
    ok(ds_stream_create(&(ds_stream_desc){ .device = device, .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_get_legacy(device, &legacy));
    s = ds__stream_pin(legacy);
    ok(ds__async_alloc(s, 4096, &before));
    ok(ds_capture_begin(blocking, DS_CAPTURE_GLOBAL));
    refused(ds__async_alloc(s, 4096, &ptr), DS_ERR_CAPTURE_IMPLICIT, "legacy");
    assert_true(ds_capture_end(blocking, &graph) == DS_ERR_CAPTURE_INVALIDATED);
    ok(ds__async_free(s, before));
    ds__stream_unpin(s);
}

/* ---- segments ---- */

static void wait_for(void *user) {
    while (!*(_Atomic int *)user) {
        struct timespec t = { 0, 100000 };
        syscall(SYS_nanosleep, &t, NULL);
    }
}

static void *open_later(void *user) {
    struct timespec t = { 0, 30000000 };
    syscall(SYS_nanosleep, &t, NULL);
    *(_Atomic int *)user = 1;
    return NULL;
}

static void test_a_segment_that_may_be_in_use_is_waited_for(void **state) {
    _Atomic int gate = 0;
    pthread_t opener;
    void *segment, *pinned;
    (void)state;
    ok(ds__segment_alloc(device, 4096, &segment));
    ok(ds__pinned_segment_alloc(4096, &pinned));
    for (int host = 0; host < 2; host++) {
        atomic_store(&gate, 0);
        ok(ds_stream_launch_host_func(stream, wait_for, &gate, NULL));
        ok(ds_fill(segment, 1, 1, 64, stream));
        assert_int_equal(pthread_create(&opener, NULL, open_later, &gate), 0);
        ok(host ? ds__segment_end(pinned, DS_MEMORY_PINNED, 0)
                : ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
        assert_int_equal(atomic_load(&gate), 1);
        pthread_join(opener, NULL);
        ok(ds_stream_synchronize(stream));
        if (!host)
            ok(ds__segment_alloc(device, 4096, &segment));
    }
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
}

/* cudaFree and cudaFreeHost wait by themselves (docs/gpu, R2). */
static void test_a_segment_that_is_idle_is_not_waited_for(void **state) {
    _Atomic int gate = 0;
    void *segment, *pinned;
    (void)state;
    ok(ds__segment_alloc(device, 4096, &segment));
    ok(ds__pinned_segment_alloc(4096, &pinned));
    ok(ds_stream_launch_host_func(stream, wait_for, &gate, NULL));
    ok(ds__segment_end(pinned, DS_MEMORY_PINNED, 1));
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 1));
    atomic_store(&gate, 1);
    ok(ds_stream_synchronize(stream));
}

static void test_segments_are_memory_like_the_users(void **state) {
    ds_pointer_info info;
    void *segment, *pinned;
    (void)state;
    ok(ds__segment_alloc(device, 3 * MIB, &segment));
    ok(ds__pinned_segment_alloc(4096, &pinned));
    assert_true((uintptr_t)segment % 512 == 0);
    fill(segment, 5, 3 * MIB);
    assert_true(all(segment, 5, 3 * MIB));
    ok(ds_pointer_get_info((char *)segment + 100, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_true(info.base == segment && info.size == 3 * MIB && info.device.type == device.type);
    ok(ds_pointer_get_info((char *)pinned + 100, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    assert_true(info.base == pinned && info.size == 4096);
    ok(ds_copy(pinned, segment, 4096, stream)); /* pinned: it does not block */
    ok(ds_stream_synchronize(stream));
    assert_int_equal(((char *)pinned)[4095], 5);
    ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
    ok(ds__segment_end(pinned, DS_MEMORY_PINNED, 0));
    assert_int_equal(in_use(), 0);
}

/* ---- the driver's own allocator ---- */

static void test_memory_comes_and_goes_in_the_order_of_the_stream(void **state) {
    _Atomic int gate = 0;
    size_t reserved, used;
    void *ptr;
    (void)state;
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &ptr));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_true(used == 4096 && reserved >= used && in_use() >= 4096);
    ok(ds_stream_launch_host_func(stream, wait_for, &gate, NULL));
    ok(ds_fill(ptr, 7, 1, 4096, stream));
    ok(ds__async_free(s, ptr));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(used, 4096); /* the stream has not come there */
    atomic_store(&gate, 1);
    ok(ds_stream_synchronize(stream));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(used, 0);
    ok(driver->async_trim(device.index, 0));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(reserved, 0);
    assert_int_equal(in_use(), 0);
    ds__stream_unpin(s);
}

static void test_memory_may_be_freed_on_another_stream(void **state) {
    ds_stream other, far;
    size_t reserved, used;
    void *ptr, *more;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
    ok(ds_stream_create(&(ds_stream_desc){ .device = peer }, &far));
    ds__stream *s = ds__stream_pin(stream), *t = ds__stream_pin(other), *u = ds__stream_pin(far);
    ok(ds__async_alloc(s, 4096, &ptr));
    ok(ds__async_alloc(s, 4096, &more));
    ok(ds_fill(ptr, 7, 1, 4096, stream));
    ok(ds_stream_wait_stream(other, stream));
    ok(ds__async_free(t, ptr));
    ok(ds_stream_wait_stream(far, stream));
    ok(ds__async_free(u, more)); /* of another device */
    ok(ds_stream_synchronize(far));
    ok(ds_stream_synchronize(other));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(used, 0);
    ds__stream_unpin(s);
    ds__stream_unpin(t);
    ds__stream_unpin(u);
}

static void test_the_drivers_allocator_has_the_devices_limit(void **state) {
    void *ptr = NULL, *more = &ptr;
    (void)state;
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 60 * MIB, &ptr));
    refused(ds__async_alloc(s, 5 * MIB, &more), DS_ERR_OUT_OF_MEMORY, "5242880 bytes");
    assert_null(more);
    ok(ds__async_free(s, ptr));
    ok(ds_stream_synchronize(stream));
    ok(ds__async_alloc(s, 5 * MIB, &more));
    ok(ds__async_free(s, more));
    ds__stream_unpin(s);
}

static void test_streams_of_every_kind_take_part(void **state) {
    ds_stream streams[2];
    void *ptr;
    (void)state;
    ok(ds_stream_get_legacy(device, &streams[0]));
    ok(ds_stream_get_per_thread(device, &streams[1]));
    for (int i = 0; i < 2; i++) {
        ds__stream *s = ds__stream_pin(streams[i]);
        ok(ds__async_alloc(s, 4096, &ptr));
        ok(ds_fill(ptr, 7, 1, 4096, streams[i]));
        ok(ds__async_free(s, ptr));
        ok(ds_stream_synchronize(streams[i]));
        ds__stream_unpin(s);
    }
}

/* ---- failures ---- */

static int fails(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 1;
}

static void test_a_stream_that_failed_gives_memory_back_all_the_same(void **state) {
    size_t reserved, used;
    ds_kernel k;
    void *ptr, *more;
    (void)state;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fails", .cpu_fn = fails }, &k));
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &ptr));
    ok(ds__async_alloc(s, 4096, &more));
    ok(ds_kernel_launch(k, 1, NULL, 0, stream));
    DS_IGNORE(ds__async_free(s, ptr)); /* before or after it has failed */
    assert_int_equal(ds_stream_synchronize(stream), DS_ERR_FAILED);
    ok(ds__async_free(s, more));
    refused(ds__async_alloc(s, 4096, &ptr), DS_ERR_FAILED, "fails");
    DS_IGNORE(ds_device_synchronize(device));
    ok(driver->async_info(device.index, &reserved, &used));
    assert_int_equal(used, 0);
    ds__stream_unpin(s);
    ok(ds_device_reset(device));
    ok(ds_kernel_destroy(k));
}

static void test_pages_without_memory_cannot_be_touched(void **state) {
    (void)state;
    char *at = reserve(4 * PAGE);
    ok(map(at, 4 * PAGE));
    memset(at, 1, 4 * PAGE);
    ok(unmap(at, 4 * PAGE));
    ok(map(at + PAGE, PAGE));
    for (size_t i = 0; i < 4; i++) {
        int status = 0;
        pid_t child = fork();
        if (!child) {
            static const int faults[] = { 11 /* SEGV */, 7 /* BUS */ };
            for (int k = 0; k < 2; k++) { /* a sanitizer would report it */

                struct {
                    void *handler;
                    unsigned long flags;
                    void *restorer;
                    uint64_t mask;
                } standard = { NULL, 0, NULL, 0 };

                syscall(SYS_rt_sigaction, faults[k], &standard, NULL, 8);
            }
            volatile char *byte = at + i * PAGE;
            int value = *byte;
            _exit(value ? 99 : 0);
        }
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        /* fresh memory is zero */
        if (i == 1)
            assert_int_equal(status, 0);
        else
            assert_true(WIFSIGNALED(status));
    }
    ok(unmap(at + PAGE, PAGE));
    ds__space_release(device, at, 4 * PAGE);
}

static void test_the_fault_layer_knows_the_entries(void **state) {
    static const char *const entries[] = { "space_reserve", "space_map",  "space_unmap",
                                           "async_alloc",   "async_free", "async_trim",
                                           "async_info" };
    int cuda = on_cuda();
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        char text[40];
        size_t page, a, b;
        void *at = NULL, *ptr = NULL;
        ok(ds_shutdown());
        snprintf(text, sizeof text, "%s:1", entries[i]);
        fault = text;
        (void)open_on(cuda ? ds_cuda(0) : ds_cpu(0));
        fault = NULL;
        ds__stream *s = ds__stream_pin(stream);
        ds_result r[7] = { ds__space_reserve(device, PAGE, &page, &at) };
        if (r[0] < 0)
            at = reserve(PAGE);
        r[1] = map(at, PAGE);
        if (r[1] < 0)
            ok(map(at, PAGE));
        r[2] = unmap(at, PAGE); /* the driver was not asked */
        r[3] = ds__async_alloc(s, 64, &ptr);
        if (r[3] < 0)
            ok(ds__async_alloc(s, 64, &ptr));
        r[4] = ds__async_free(s, ptr);
        /* it was still there */
        if (r[4] < 0)
            ok(ds__async_free(s, ptr));
        r[5] = driver->async_trim(device.index, 0);
        r[6] = driver->async_info(device.index, &a, &b);
        ds__stream_unpin(s);
        for (size_t k = 0; k < 7; k++)
            assert_int_equal(r[k], k == i ? DS_ERR_DRIVER : DS_OK);
        /* else shutdown does */
        if (i != 2)
            ds__space_release(device, at, PAGE);
    }
}

/* Something of everything; where a call fails the program goes on without it. The first failure. */
static ds_result little_program(void) {
    ds_result r = DS_OK, one;
    size_t page = PAGE, a, b;
    void *at = NULL, *segment = NULL, *pinned = NULL, *async = NULL;
    ds_graph graph;
#define DO(call)                                          \
    do {                                                  \
        one = (call);                                     \
        if (one < 0 && !strchr(ds_error_get_last(), ' ')) \
            fail_msg("%s: no sentence", #call);           \
        if (r == DS_OK)                                   \
            r = one;                                      \
    } while (0)
    ds_stream s_handle;
    DO(ds_stream_create(&(ds_stream_desc){ .device = device }, &s_handle));
    if (one < 0)
        return r;
    ds__stream *s = ds__stream_pin(s_handle);
    DO(ds__space_reserve(device, 4 * PAGE, &page, &at));
    if (one == DS_OK) {
        char *c = at;
        int first, second;
        DO(driver->space_map(device.index, c, PAGE, PAGE));
        first = one == DS_OK;
        DO(driver->space_map(device.index, c + PAGE, 2 * PAGE, PAGE));
        second = one == DS_OK;
        if (first)
            DO(ds_fill(c, 1, 1, PAGE, s_handle));
        DO(ds_stream_synchronize(s_handle));
        if (one < 0) {
            ds_result again = ds_stream_synchronize(s_handle);
            if (again < 0)
                fail_msg("%s", ds_error_get_last());
        }
        if (first && second)
            DO(driver->space_unmap(device.index, c, 3 * PAGE));
        else if (second)
            DO(driver->space_unmap(device.index, c + PAGE, 2 * PAGE));
        ds__space_release(device, at, 4 * PAGE);
    }
    DO(ds_capture_begin(s_handle, DS_CAPTURE_RELAXED));
    int capturing = one == DS_OK;
    DO(ds__segment_alloc(device, 4096, &segment));
    DO(ds__pinned_segment_alloc(4096, &pinned));
    if (capturing) {
        DO(ds_capture_end(s_handle, &graph));
        if (one == DS_OK)
            DO(ds_graph_destroy(graph));
    }
    if (segment)
        DO(ds__segment_end(segment, DS_MEMORY_DEVICE, 1));
    if (pinned)
        DO(ds__segment_end(pinned, DS_MEMORY_PINNED, 0));
    DO(ds__async_alloc(s, 4096, &async));
    if (async) {
        DO(ds_fill(async, 1, 1, 4096, s_handle));
        DO(ds__async_free(s, async));
    }
    DO(driver->async_info(device.index, &a, &b));
    DO(driver->async_trim(device.index, 0));
    ds__stream_unpin(s);
    DO(ds_stream_destroy(s_handle));
    DO(ds_shutdown());
#undef DO
    return r;
}

static void start_again(int cuda) {
    DS_IGNORE(ds_shutdown());
    configure();
    device = cuda ? ds_cuda(0) : ds_cpu(0);
}

static void start_driver(void) {
    int count;
    ok(ds_device_get_count((ds_device_type)device.type, &count));
    driver = ds__driver_of(device);
}

static void test_bookkeeping_that_runs_out_of_memory_leaves_nothing(void **state) {
    int cuda = on_cuda(), failures = 0;
    (void)state;
    for (long n = 1;; n++) {
        start_again(cuda);
        start_driver();
        bank_left = n;
        ds_result r = little_program();
        int hit = bank_left == 0;
        bank_left = 0;
        DS_IGNORE(ds_shutdown());
        if (taken != returned)
            fail_msg("block %ld: %ld blocks taken, %ld returned", n, taken, returned);
#ifdef DEVSTREAM_CUDA
        char report[200];
        if (standin_live(report, sizeof report) != 0)
            fail_msg("block %ld: left behind: %s", n, report);
#endif
        failures += r < 0;
        if (!hit) {
            ok(r);
            break;
        }
    }
    assert_true(failures > 3);
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 40 };

typedef struct work {
    char *at;
    int index;
    char failure[200];
} work;

/* A thread of its own cannot fail the test: it notes what went wrong and ends. */
static ds_result round_of(work *w, ds__stream *s, ds_stream own, int number) {
    unsigned char back[16] = { 0 };
    void *async = NULL, *segment = NULL;
    ds_result r = map(w->at, PAGE);
    if (r == DS_OK)
        r = map(w->at + PAGE, PAGE);
    if (r == DS_OK)
        r = ds__async_alloc(s, 4096, &async);
    if (r == DS_OK)
        r = ds__segment_alloc(device, 4096, &segment);
    if (r == DS_OK)
        r = ds_fill(w->at + PAGE - 8, (uint32_t)w->index, 1, 16, own);
    if (r == DS_OK)
        r = ds_copy(async, w->at + PAGE - 8, 16, own);
    if (r == DS_OK)
        r = ds_copy(segment, async, 16, own);
    if (r == DS_OK)
        r = ds__async_free(s, async);
    if (r == DS_OK)
        r = ds_copy(back, segment, 16, own);
    if (r == DS_OK)
        r = ds_stream_synchronize(own);
    if (r == DS_OK && (back[0] != w->index || back[15] != w->index))
        r = ds__fail(DS_ERR_SYSTEM, "%d came out as %d", w->index, back[0]);
    if (r == DS_OK)
        r = ds__segment_end(segment, DS_MEMORY_DEVICE, number & 1);
    return r == DS_OK ? unmap(w->at, 2 * PAGE) : r;
}

static void *come_and_go(void *user) {
    work *w = user;
    ds_stream own;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = device }, &own);
    if (r == DS_OK) {
        ds__stream *s = ds__stream_pin(own);
        for (int i = 0; i < ROUNDS && r == DS_OK; i++)
            r = round_of(w, s, own, i);
        if (r < 0)
            snprintf(w->failure, sizeof w->failure, "%.199s", ds_error_get_last());
        ds__stream_unpin(s);
    }
    DS_IGNORE(ds_stream_destroy(own));
    return NULL;
}

static void test_threads_do_not_disturb_each_other(void **state) {
    pthread_t threads[THREADS];
    work works[THREADS];
    (void)state;
    char *at = reserve(THREADS * 2 * PAGE);
    for (int i = 0; i < THREADS; i++) {
        works[i] = (work){ at + (size_t)i * 2 * PAGE, i + 1, "" };
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &works[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        if (works[i].failure[0])
            fail_msg("%s", works[i].failure);
    ok(driver->async_trim(device.index, 0));
    assert_int_equal(in_use(), 0);
    ds__space_release(device, at, THREADS * 2 * PAGE);
}

/* ---- the CUDA driver, from cudart's side ---- */

#ifdef DEVSTREAM_CUDA

#define DEVICE "cudaPeekAtLastError cuCtxGetCurrent"
#define RELAX " cudaThreadExchangeStreamCaptureMode"

static void test_these_calls_are_made_and_no_others(void **state) {
    size_t page;
    void *at, *async;
    (void)state;
    (void)reserve(PAGE); /* what is asked once is asked */
    char *c = reserve(PAGE);
    ok(map(c, PAGE));
    ok(unmap(c, PAGE));
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &async));
    ok(ds__async_free(s, async));
    standin_log_begin();
    ok(ds__space_reserve(device, 4 * PAGE, &page, &at));
    assert_string_equal(standin_log_take(), DEVICE RELAX " cuMemAddressReserve" RELAX);
    standin_log_begin();
    ok(map(at, PAGE));
    assert_string_equal(standin_log_take(),
                        DEVICE RELAX " cuMemCreate cuMemMap cuMemRelease cuMemSetAccess" RELAX);
    standin_log_begin();
    ok(driver->space_map(0, (char *)at + PAGE, 2 * PAGE,
                         PAGE)); /* the access of a run is set once */
    assert_string_equal(standin_log_take(),
                        DEVICE RELAX " cuMemCreate cuMemMap cuMemRelease cuMemCreate cuMemMap "
                                     "cuMemRelease cuMemSetAccess" RELAX);
    standin_log_begin();
    ok(unmap(at, 3 * PAGE));
    assert_string_equal(standin_log_take(), DEVICE RELAX " cuMemUnmap cuMemUnmap cuMemUnmap" RELAX);
    standin_log_begin();
    ds__space_release(device, at, 4 * PAGE);
    assert_string_equal(standin_log_take(), DEVICE RELAX " cuMemAddressFree" RELAX);
    standin_log_begin();
    ok(ds__async_alloc(s, 4096, &async));
    assert_string_equal(standin_log_take(),
                        DEVICE RELAX " cudaStreamIsCapturing cudaMallocAsync" RELAX);
    standin_log_begin();
    ok(ds__async_free(s, async));
    assert_string_equal(standin_log_take(),
                        DEVICE RELAX " cudaStreamIsCapturing cudaFreeAsync" RELAX);
    ds__stream_unpin(s);
}

static void test_those_who_reach_the_device_reach_its_mappings(void **state) {
    void *async;
    (void)state;
    char *at = reserve(PAGE);
    unsigned before = standin_contexts();
    ok(map(at, PAGE));
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, 4096, &async));
    assert_int_equal(standin_contexts(), before); /* nobody got a context by that */
    ok(ds_stream_synchronize(stream));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaSetDevice(i), cudaSuccess);
        assert_int_equal(cudaMemset(at, i, 64), i < 2 ? cudaSuccess : cudaErrorInvalidValue);
        /* device 2 does not reach the device, so the pool has no access by others at all */
        assert_int_equal(cudaMemset(async, i, 64), i == 0 ? cudaSuccess : cudaErrorInvalidValue);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    }
    (void)cudaGetLastError();
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_true(all(at, 1, 64));
    ok(ds__async_free(s, async));
    ds__stream_unpin(s);
}

/* Mapped by another library: devstream does not know the mapping, and device 0 cannot reach it. */
static void test_memory_that_others_mapped_is_copied_between_gpus(void **state) {
    size_t page = 0;
    void *theirs = NULL, *mine = NULL;
    (void)state;
    ok(ds__space_reserve(ds_cuda(2), PAGE, &page, &theirs));
    ok(driver->space_map(2, theirs, PAGE, PAGE));
    assert_int_equal(cudaSetDevice(2), cudaSuccess);
    assert_int_equal(cudaMemset(theirs, 7, PAGE), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    ds__mapping_remove_all(theirs, PAGE);
    ok(ds_device_alloc(device, PAGE, &mine));
    ok(ds_copy(mine, theirs, PAGE, stream));
    assert_true(all(mine, 7, PAGE));
    ds_graph graph;
    fill(mine, 1, PAGE);
    ok(ds_capture_begin(stream, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_copy(mine, theirs, PAGE, stream));
    ok(ds_capture_end(stream, &graph));
    ds_graph_exec exec;
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_graph_launch(exec, stream));
    assert_true(all(mine, 7, PAGE));
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_device_free(mine));
    ok(ds__mapping_add(theirs, PAGE, PAGE));
    ok(driver->space_unmap(2, theirs, PAGE));
    ds__space_release(ds_cuda(2), theirs, PAGE);
}

/* Memory for NICs: where the device has it, and only as long as the driver lets it be used. */
static void test_mapped_memory_is_for_nics_where_that_works(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        unsigned long creations = standin_calls("cuMemCreate");
        standin_rdma(how);
        start_again(1);
        start_driver();
        char *at = reserve(4 * PAGE);
        ok(driver->space_map(0, at, 2 * PAGE, PAGE));
        assert_int_equal(standin_rdma_mappings(), how == 1 ? 2 : 0);
        assert_int_equal(cudaMemset(at, 3, 2 * PAGE), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        /* what was refused once is not tried again */
        creations = standin_calls("cuMemCreate");
        ok(driver->space_map(0, at + 2 * PAGE, 2 * PAGE, PAGE));
        assert_int_equal(standin_calls("cuMemCreate") - creations, 2);
        assert_int_equal(standin_rdma_mappings(), how == 1 ? 4 : 0);
        /* a full device is no reason to give it up */
        assert_true(driver->space_map(0, reserve(MEMORY), MEMORY, PAGE) < 0);
        ok(unmap(at, 4 * PAGE));
        ok(map(at, PAGE));
        assert_int_equal(standin_rdma_mappings(), how == 1);
        ok(unmap(at, PAGE));
        assert_int_equal(standin_rdma_mappings(), 0);
    }
    standin_rdma(1);
}

static void test_a_gpu_without_virtual_memory_says_so(void **state) {
    size_t page;
    void *at = &page;
    (void)state;
    standin_virtual_memory(0, 0);
    refused(ds__space_reserve(device, PAGE, &page, &at), DS_ERR_UNSUPPORTED,
            "cuda:0 has no virtual memory management");
    assert_null(at);
    assert_int_equal(standin_live(NULL, 0), 1); /* the stream */
    standin_virtual_memory(0, 1);
    (void)reserve(PAGE);
}

static void test_a_gpu_without_pools_says_so(void **state) {
    size_t reserved, used;
    void *ptr = &reserved;
    (void)state;
    ds__stream *s = ds__stream_pin(stream);
    standin_memory_pools(0, 0);
    refused(ds__async_alloc(s, 64, &ptr), DS_ERR_UNSUPPORTED, "cuda:0 has no memory pools");
    assert_null(ptr);
    refused(driver->async_info(0, &reserved, &used), DS_ERR_UNSUPPORTED,
            "cuda:0 has no memory pools");
    refused(driver->async_trim(0, 0), DS_ERR_UNSUPPORTED, "cuda:0 has no memory pools");
    standin_memory_pools(0, 1);
    ok(ds__async_alloc(s, 64, &ptr));
    ok(ds__async_free(s, ptr));
    ds__stream_unpin(s);
}

static uint64_t pool_attribute(enum cudaMemPoolAttr which) {
    cudaMemPool_t pool;
    uint64_t value = 0;
    assert_int_equal(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    assert_int_equal(cudaMemPoolGetAttribute(pool, which, &value), cudaSuccess);
    return value;
}

static void set_pool_attribute(enum cudaMemPoolAttr which, uint64_t value) {
    cudaMemPool_t pool;
    assert_int_equal(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    assert_int_equal(cudaMemPoolSetAttribute(pool, which, &value), cudaSuccess);
}

static void test_the_pool_keeps_what_is_freed_until_shutdown(void **state) {
    static const enum cudaMemPoolAttr reuse[] = { cudaMemPoolReuseFollowEventDependencies,
                                                  cudaMemPoolReuseAllowOpportunistic,
                                                  cudaMemPoolReuseAllowInternalDependencies };

    void *ptr;
    (void)state;
    set_pool_attribute(cudaMemPoolAttrReleaseThreshold, 12345);
    for (int i = 0; i < 3; i++)
        set_pool_attribute(reuse[i], 0);
    ds__stream *s = ds__stream_pin(stream);
    ok(ds__async_alloc(s, MIB, &ptr));
    assert_true(pool_attribute(cudaMemPoolAttrReleaseThreshold) == UINT64_MAX);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pool_attribute(reuse[i]), 1);
    ok(ds__async_free(s, ptr));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(pool_attribute(cudaMemPoolAttrReservedMemCurrent), MIB);
    ok(driver->async_trim(0, 0));
    assert_int_equal(pool_attribute(cudaMemPoolAttrReservedMemCurrent), 0);
    ok(ds__async_alloc(s, MIB, &ptr));
    ok(ds__async_free(s, ptr));
    ds__stream_unpin(s);
    ok(ds_shutdown());
    assert_int_equal(pool_attribute(cudaMemPoolAttrReservedMemCurrent), 0);
    assert_int_equal(pool_attribute(cudaMemPoolAttrReleaseThreshold), 12345);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pool_attribute(reuse[i]), 0);
    set_pool_attribute(cudaMemPoolAttrReleaseThreshold, 0);
}

static void test_the_users_error_and_device_stay(void **state) {
    void *segment, *pinned, *async, *none;
    size_t a, b;
    (void)state;
    for (int theirs = 0; theirs < 2; theirs++) {
        assert_int_equal(cudaSetDevice(2), cudaSuccess);
        if (theirs)
            (void)cudaMalloc(NULL, 4);
        ds__stream *s = ds__stream_pin(stream);
        char *at = reserve(64 * PAGE);
        ok(map(at, PAGE));
        assert_true(map(at + PAGE, 40 * PAGE) < 0);
        assert_true(map(at + PAGE, 100) < 0);
        ok(unmap(at, PAGE));
        ok(ds__segment_alloc(device, 4096, &segment));
        assert_true(ds__segment_alloc(device, MEMORY, &none) < 0);
        ok(ds__pinned_segment_alloc(4096, &pinned));
        ok(ds__async_alloc(s, 4096, &async));
        assert_true(ds__async_alloc(s, MEMORY, &none) < 0);
        ok(ds__async_free(s, async));
        ok(ds__segment_end(segment, DS_MEMORY_DEVICE, 0));
        ok(ds__segment_end(pinned, DS_MEMORY_PINNED, 0));
        ok(driver->async_info(0, &a, &b));
        ok(driver->async_trim(0, 0));
        ds__space_release(device, at, 64 * PAGE);
        ds__stream_unpin(s);
        int now = -1;
        assert_int_equal(cudaGetDevice(&now), cudaSuccess);
        assert_int_equal(now, 2);
        /* of two failures CUDA keeps the later */
        assert_int_equal(cudaGetLastError() != cudaSuccess, theirs);
    }
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

static void test_every_driver_call_that_fails_is_undone(void **state) {
    static const int codes[] = { cudaErrorUnknown, cudaErrorMemoryAllocation };
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        int failures = 0;
        for (unsigned long n = 1;; n++) {
            char report[200];
            size_t unused = 0, total = 0;
            start_again(1);
            start_driver();
            standin_fail(n, codes[k]);
            ds_result r = little_program();
            int hit = standin_failed();
            standin_fail(0, 0);
            DS_IGNORE(ds_shutdown());
            if (standin_live(report, sizeof report) != 0)
                fail_msg("call %lu: left behind: %s", n, report);
            if (taken != returned)
                fail_msg("call %lu: %ld blocks taken, %ld returned", n, taken, returned);
            if (cudaMemGetInfo(&unused, &total) != cudaSuccess || (unused != total && n > 1)) {
                cudaMemPool_t pool; /* its end may be what has failed */
                assert_int_equal(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
                assert_int_equal(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
                assert_int_equal(cudaMemGetInfo(&unused, &total), cudaSuccess);
                if (unused != total)
                    fail_msg("call %lu: %zu bytes are missing", n, total - unused);
            }
            set_pool_attribute(cudaMemPoolAttrReleaseThreshold, 0);
            while (cudaGetLastError() != cudaSuccess) {
            }
            failures += r < 0;
            if (!hit) {
                ok(r);
                print_message("          %lu calls, %d of them fatal\n", n - 1, failures);
                break;
            }
        }
        assert_true(failures > 30);
    }
}

/* What space_map has made when each of its calls fails. */
static void test_a_mapping_that_fails_half_way_is_rolled_back(void **state) {
    static const char *const calls[] = { "cuMemCreate", "cuMemMap", "cuMemRelease",
                                         "cuMemSetAccess" };
    (void)state;
    char *at = reserve(2 * PAGE);
    ok(map(at + PAGE, PAGE));
    fill(at + PAGE, 6, PAGE);
    for (unsigned long i = 0; i < 4; i++) {
        /* cudaGetDevice and the mode of the thread come first; who reaches the device is known */
        standin_fail(3 + i, cudaErrorMemoryAllocation);
        refused(map(at, PAGE), DS_ERR_OUT_OF_MEMORY, calls[i]);
        assert_true(standin_failed());
        assert_int_equal(in_use(), PAGE);
        assert_true(all(at + PAGE, 6, PAGE));
        ok(map(at, PAGE));
        ok(unmap(at, PAGE));
    }
}

static void test_memory_does_not_cross_the_drivers(void **state) {
    ds_stream on_cpu;
    void *ptr;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &on_cpu));
    ds__stream *s = ds__stream_pin(stream), *t = ds__stream_pin(on_cpu);
    ok(ds__async_alloc(s, 4096, &ptr));
    refused(ds__async_free(t, ptr), DS_ERR_CROSS_DRIVER, "different drivers");
    ok(ds__async_free(s, ptr));
    ds__stream_unpin(s);
    ds__stream_unpin(t);
}

static void test_a_capture_of_others_is_seen_too(void **state) {
    cudaStream_t native;
    cudaGraph_t graph;
    void *ptr, *handle = NULL;
    (void)state;
    ds__stream *s = ds__stream_pin(stream);
    ok(driver->stream_native(s->native, &handle));
    native = handle;
    ok(ds__async_alloc(s, 4096, &ptr)); /* so that the pool is known */
    ok(ds__async_free(s, ptr));
    assert_int_equal(cudaStreamBeginCapture(native, cudaStreamCaptureModeGlobal), cudaSuccess);
    refused(ds__async_alloc(s, 4096, &ptr), DS_ERR_CAPTURE_UNSUPPORTED, "begun outside devstream");
    char *at = reserve(PAGE);
    ok(map(at, PAGE));
    ok(unmap(at, PAGE));
    ok(ds__segment_alloc(device, 4096, &ptr));
    assert_int_equal(cudaStreamEndCapture(native, &graph), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    ok(ds__segment_end(ptr, DS_MEMORY_DEVICE, 0));
    ds__stream_unpin(s);
}
#endif

int main(void) {
    setenv("STANDIN_DEVICES", "3", 1);
    setenv("STANDIN_PEERS", "010100000", 1);
    setenv("STANDIN_MEMORY", "67108864", 1);
    const struct CMUnitTest tests[] = {
        /* clang-format off */
        ON_BOTH(test_a_reservation_takes_addresses_and_no_memory)
        ON_BOTH(test_a_reservation_that_cannot_be_had_is_out_of_memory)
        ON_BOTH(test_mapped_memory_is_used_like_any_other)
        ON_BOTH(test_unmapping_and_mapping_again_leaves_the_neighbours_alone)
        ON_BOTH(test_what_does_not_fit_to_the_mappings_is_refused)
        ON_BOTH(test_a_device_that_is_full_says_so_and_nothing_is_mapped)
        ON_BOTH(test_the_user_cannot_free_what_is_the_allocators)
        ON_BOTH(test_a_release_unmaps_what_is_mapped_and_knows_its_own)
        ON_BOTH(test_shutdown_takes_back_what_is_left)
        ON_BOTH(test_a_capture_does_not_hinder_the_allocator)
        ON_BOTH(test_the_drivers_allocator_refuses_a_stream_that_captures)
        ON_BOTH(test_a_segment_that_may_be_in_use_is_waited_for)
        ON_CPU(test_a_segment_that_is_idle_is_not_waited_for)
        ON_BOTH(test_segments_are_memory_like_the_users)
        ON_BOTH(test_memory_comes_and_goes_in_the_order_of_the_stream)
        ON_BOTH(test_memory_may_be_freed_on_another_stream)
        ON_BOTH(test_the_drivers_allocator_has_the_devices_limit)
        ON_BOTH(test_streams_of_every_kind_take_part)
        ON_BOTH(test_the_fault_layer_knows_the_entries)
        ON_BOTH(test_bookkeeping_that_runs_out_of_memory_leaves_nothing)
        ON_BOTH(test_threads_do_not_disturb_each_other)
        ON_CUDA(test_these_calls_are_made_and_no_others)
        ON_CUDA(test_those_who_reach_the_device_reach_its_mappings)
        ON_CUDA(test_memory_that_others_mapped_is_copied_between_gpus)
        ON_CUDA(test_mapped_memory_is_for_nics_where_that_works)
        ON_CUDA(test_a_gpu_without_virtual_memory_says_so)
        ON_CUDA(test_a_gpu_without_pools_says_so)
        ON_CUDA(test_the_pool_keeps_what_is_freed_until_shutdown)
        ON_CUDA(test_the_users_error_and_device_stay)
        ON_CUDA(test_every_driver_call_that_fails_is_undone)
        ON_CUDA(test_a_mapping_that_fails_half_way_is_rolled_back)
        ON_CUDA(test_memory_does_not_cross_the_drivers)
        ON_CUDA(test_a_capture_of_others_is_seen_too)
        ON_CPU(test_a_stream_that_failed_gives_memory_back_all_the_same)
        ON_CPU(test_pages_without_memory_cannot_be_touched)
        /* clang-format on */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
