/* Texts and bytes from outside that the fuzzer has found (tests/fuzz/readers). */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "devstream_ranks.h"
#include "unit.h"

/* A signature of another rank whose call site has no zero. */
static void test_signature_without_end(void **state) {
    char bytes[DS__RANKS_SIGNATURE + 8];
    char text[160];
    (void)state;
    memset(bytes, 'a', DS__RANKS_SIGNATURE);
    strcpy(bytes + DS__RANKS_SIGNATURE, "behind");

    ds__compare_text(bytes, text, sizeof text);

    assert_null(strstr(text, "behind"));
    assert_non_null(strstr(text, " at aaa"));
}

/* Strides of an empty tensor lead to no element, so they may have any value. */
static void test_strides_of_an_empty_tensor(void **state) {
    int64_t shape[3] = { 0, 64, 8 };
    int64_t strides[3] = { 1, INT64_MIN, INT64_MAX };
    ds_tensor t = ds_tensor_of(NULL, ds_cpu(0), ds_float32(), 3, shape);
    ds_tensor *view;
    (void)state;
    t.strides = strides;

    ok(ds_tensor_check(&t));
    assert_int_equal(ds_tensor_is_dense(&t), 1);
    ok(ds_tensor_slice(&t, 2, 0, 8, 3, &view));

    assert_int_equal(view->shape[2], 3);
    assert_int_equal(view->strides[2], 0);
    ok(ds_tensor_free(view));
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signature_without_end),
        cmocka_unit_test(test_strides_of_an_empty_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
