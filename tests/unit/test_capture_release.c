/* A thread releases memory and has found no capture; another begins one before the first has called
   cudart to wait for the device, or for the stream. */
#define DEVSTREAM_IMPLEMENTATION
#include <cuda_runtime_api.h>
static cudaError_t synchronize_late(void);
static cudaError_t record_late(cudaEvent_t event, cudaStream_t stream);
#define cudaDeviceSynchronize synchronize_late
#define cudaEventRecord record_late
#include "devstream.h"
#undef cudaDeviceSynchronize
#undef cudaEventRecord
#include "unit.h"
#include <semaphore.h>

static _Atomic int armed;
static _Atomic int begun;
static sem_t arrived;

/* Waits until the other thread has begun to capture, if it does so within 10 ms. */
static void be_late(void) {
    if (atomic_exchange(&armed, 0)) {
        struct timespec t = { 0, 100000 };
        sem_post(&arrived);
        for (int i = 0; i < 100 && !atomic_load(&begun); i++)
            nanosleep(&t, NULL);
    }
}

static cudaError_t synchronize_late(void) {
    be_late();
    return cudaDeviceSynchronize();
}

static cudaError_t record_late(cudaEvent_t event, cudaStream_t stream) {
    if (stream != cudaStreamLegacy) /* which cannot capture */
        be_late();
    return cudaEventRecord(event, stream);
}

static void *release(void *ptr) {
    ok(ds_pinned_free(ptr));
    return NULL;
}

/* Keeps the stream busy until the other thread has begun. */
static void await_begun(void *user) {
    (void)user;
    struct timespec t = { 0, 100000 };
    while (!atomic_load(&begun))
        nanosleep(&t, NULL);
}

/* Calls a function while another thread releases memory, which waits for the stream. */
static void beside_a_release(ds_stream s, void (*join)(ds_stream)) {
    void *pinned;
    pthread_t thread;
    ok(ds_pinned_alloc(1 << 20, &pinned));
    assert_int_equal(sem_init(&arrived, 0, 0), 0);
    atomic_store(&begun, 0);
    ok(ds_stream_launch_host_func(s, await_begun, NULL, NULL));

    atomic_store(&armed, 1);
    assert_int_equal(pthread_create(&thread, NULL, release, pinned), 0);
    sem_wait(&arrived);
    join(s);
    atomic_store(&begun, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void begin(ds_stream s) {
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
}

static void end(ds_stream s) {
    ds_graph g;
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
}

static ds_stream first; /* it captures */
static ds_event captured;

static void fork_stream(ds_stream s) {
    ok(ds_stream_wait_event(s, captured));
}

static void fork_by_stream(ds_stream s) {
    ok(ds_stream_wait_stream(s, first));
}

static void test_a_capture_that_begins_beside_a_release_stays_valid(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    beside_a_release(s, begin);
    end(s);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* Then the release waits for the streams that do not capture. */
static void test_a_second_capture_begun_beside_a_release_stays_valid(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &first));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_capture_begin(first, DS_CAPTURE_RELAXED));
    beside_a_release(s, begin);
    end(s);
    end(first);
    ok(ds_stream_destroy(first));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* A stream that joins a capture meanwhile does so after its event is recorded. */
static void test_a_stream_forked_beside_a_release_is_waited_for(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &first));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_event_create(0, NULL, &captured));
    for (int way = 0; way < 2; way++) {
        ok(ds_capture_begin(first, DS_CAPTURE_RELAXED));
        ok(ds_event_record(captured, first));
        beside_a_release(s, way ? fork_by_stream : fork_stream);
        ok(ds_stream_wait_stream(first, s));
        end(first);
    }
    ok(ds_event_destroy(captured));
    ok(ds_stream_destroy(first));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_capture_that_begins_beside_a_release_stays_valid),
        cmocka_unit_test(test_a_second_capture_begun_beside_a_release_stays_valid),
        cmocka_unit_test(test_a_stream_forked_beside_a_release_is_waited_for),
    };
    return cmocka_run_group_tests_name("capture_release", tests, NULL, NULL);
}
