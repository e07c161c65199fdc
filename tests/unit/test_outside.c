/* Texts and bytes from outside that the fuzzer has found (tests/fuzz/readers). */
#define DEVSTREAM_IMPLEMENTATION
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signature_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
