/* A stream is unwrapped, wrapped again and destroyed while a call of another thread, which found
   the first object before, still uses the native stream. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"
#include "standin/standin.h"
#include <cuda_runtime_api.h>

/* The objects of the driver that the other thread and the new owner have. */
static void unwrapped_and_owned(void **first, void **second, cudaStream_t *native) {
    const ds__driver *driver;
    int priority = 0;
    unsigned flags;
    void *handle;
    ok(ds_device_synchronize(ds_cuda(0)));
    driver = ds__g.driver[0];
    int share = 0;
    ok(driver->stream_create(0, DS__STREAM_NEW, 0, &priority, &share, first));
    ok(driver->stream_native(*first, &handle));
    driver->stream_unwrap(*first);
    ok(driver->stream_wrap(0, handle, 1, &flags, &priority, second));
    *native = handle;
}

static void nothing_is_left(void) {
    char left[256];
    assert_int_equal(standin_live(left, sizeof left), 0);
}

static void test_native_stream_lives_while_a_call_uses_it(void **state) {
    void *first, *second;
    cudaStream_t native;
    (void)state;
    unwrapped_and_owned(&first, &second, &native);
    ds__g.driver[0]->stream_destroy(second);
    /* the stand-in ends the test if the stream is destroyed */
    assert_int_equal(cudaStreamQuery(native), cudaSuccess);
    ok(ds__g.driver[0]->stream_query(first));
    ds__g.driver[0]->stream_forget(first);
    ok(ds_shutdown());
    nothing_is_left();
}

static void test_native_stream_ends_with_its_owner(void **state) {
    void *first, *second;
    cudaStream_t native;
    unsigned flags;
    (void)state;
    unwrapped_and_owned(&first, &second, &native);
    ds__g.driver[0]->stream_forget(first);
    ok(ds__g.driver[0]->stream_query(second));
    assert_int_equal(cudaStreamGetFlags(native, &flags), cudaSuccess);
    ds__g.driver[0]->stream_destroy(second);
    ok(ds_shutdown());
    nothing_is_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_stream_lives_while_a_call_uses_it),
        cmocka_unit_test(test_native_stream_ends_with_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
