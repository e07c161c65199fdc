/* Freed blocks that stay unmerged for the next requests of their sizes (parked): which blocks the
   lists take and give, when they are merged, and that no other part of the allocator sees them. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "alloc/block.h"
#include "unit.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const ds_device device = { DS_DEVICE_CPU, 0 };
static ds_stream stream, other;

static void begin(void) {
    const ds_cpu_desc cpu = { .devices = 1 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &stream));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
}

static void end(void) {
    ok(ds_mem_validate(device));
    assert_int_equal(ds_mem_get_allocated(device), 0);
    ok(ds_mem_empty_cache(device, NULL));
    assert_int_equal(ds_mem_get_reserved(device), 0);
    ok(ds_shutdown());
}

static void *block(size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc(size, s, &p));
    return p;
}

/* The quick list for a size, in the arena of the first stream. */
static ds__parked *list_for(size_t size) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    ds__arena *a = atomic_load(&s->module[DS__MODULE_ALLOC]);
    ds__stream_unpin(s);
    return ds__parked_at(a, DS__SMALL, size);
}

/* After this, freed blocks of the size enter a list. */
static void expect_size(size_t size) {
    ok(ds_mem_free(block(size, stream)));
    assert_int_equal(list_for(size)->size, size);
}

/* Allocates blocks in a row and frees them. */
static void park(size_t size, int count, void **blocks) {
    for (int i = 0; i < count; i++)
        blocks[i] = block(size, stream);
    expect_size(size);
    for (int i = 0; i < count; i++)
        ok(ds_mem_free(blocks[i]));
}

static void test_parked_blocks_return_in_reverse_order(void **state) {
    (void)state;
    void *p[3];
    begin();

    park(4 * KIB, 3, p);

    assert_int_equal(list_for(4 * KIB)->count, 3);
    for (int i = 2; i >= 0; i--)
        assert_ptr_equal(block(4 * KIB, stream), p[i]);
    assert_int_equal(list_for(4 * KIB)->count, 0);
    assert_null(list_for(4 * KIB)->first);
    for (int i = 0; i < 3; i++)
        ok(ds_mem_free(p[i]));
    end();
}

static void test_the_first_free_of_a_size_is_merged(void **state) {
    (void)state;
    begin();
    void *p = block(4 * KIB, stream);

    ok(ds_mem_free(p));

    assert_null(list_for(4 * KIB)->first);
    p = block(4 * KIB, stream);
    ok(ds_mem_free(p));
    assert_ptr_equal(list_for(4 * KIB)->first->ptr, p);
    end();
}

static void test_another_size_empties_the_list(void **state) {
    (void)state;
    void *p[3];
    size_t size = 4 * KIB;
    begin();
    expect_size(4 * KIB); /* the arena of the stream exists now */
    do
        size += DS__UNIT;
    while (list_for(size) != list_for(4 * KIB));
    void *q = block(size, stream);
    park(4 * KIB, 3, p);

    ok(ds_mem_free(q));

    assert_int_equal(list_for(size)->size, size);
    assert_null(list_for(size)->first);
    assert_int_equal(list_for(size)->count, 0);
    end();
}

static void test_a_list_has_sixteen_blocks_at_most(void **state) {
    (void)state;
    void *p[20];
    begin();

    park(8 * KIB, 20, p);

    assert_int_equal(list_for(8 * KIB)->count, 16);
    assert_ptr_equal(block(8 * KIB, stream), p[15]);
    ok(ds_mem_free(p[15]));
    end();
}

static void test_only_small_blocks_up_to_the_limit_enter_lists(void **state) {
    (void)state;
    begin();
    void *p = block(DS__QUICK_LIMIT + DS__UNIT, stream);
    void *q = block(DS__QUICK_LIMIT + DS__UNIT, stream);
    ds__parked *last = list_for(DS__QUICK_LIMIT + DS__UNIT);

    ok(ds_mem_free(p));
    ok(ds_mem_free(q));

    assert_int_equal(list_for(DS__QUICK_LIMIT) < last, 1);
    assert_ptr_equal(last->first->ptr, q); /* only the last one is parked */
    assert_null(last->first->list_prev);
    end();
}

static void test_a_parked_block_stays_on_its_stream(void **state) {
    (void)state;
    void *p[3];
    begin();
    park(4 * KIB, 3, p);

    void *q = block(4 * KIB, other);

    for (int i = 0; i < 3; i++)
        assert_ptr_not_equal(q, p[i]);
    assert_int_equal(list_for(4 * KIB)->count, 3);
    ok(ds_mem_free(q));
    end();
}

static void test_a_block_that_another_stream_uses_is_not_parked(void **state) {
    (void)state;
    begin();
    expect_size(4 * KIB);
    void *p = block(4 * KIB, stream);
    ok(ds_mem_record_use(p, other));

    ok(ds_mem_free(p));

    assert_null(list_for(4 * KIB)->first);
    ok(ds_stream_synchronize(other));
    end();
}

static void test_parked_blocks_are_merged_before_a_segment_grows(void **state) {
    (void)state;
    void *p[32];
    begin();
    for (int i = 0; i < 32; i++) /* a whole page */
        p[i] = block(64 * KIB, stream);
    size_t reserved = ds_mem_get_reserved(device);
    ok(ds_mem_free(p[31]));
    for (int i = 0; i < 31; i++)
        ok(ds_mem_free(p[i]));
    assert_int_equal(list_for(64 * KIB)->count, 16);

    void *q = block(MIB, stream);

    assert_null(list_for(64 * KIB)->first);
    assert_int_equal(ds_mem_get_reserved(device), reserved);
    ok(ds_mem_free(q));
    end();
}

static void test_parked_blocks_serve_other_sizes_under_a_limit(void **state) {
    (void)state;
    void *p[32];
    begin();
    for (int i = 0; i < 32; i++)
        p[i] = block(64 * KIB, stream);
    ok(ds_mem_set_limit(device, ds_mem_get_reserved(device)));
    for (int i = 0; i < 32; i++)
        ok(ds_mem_free(p[i]));

    void *q = block(MIB, other); /* of the other stream's arena */

    ok(ds_mem_free(q));
    q = block(MIB - DS__UNIT, stream);
    ok(ds_mem_free(q));
    end();
}

static void test_a_parked_block_is_no_live_block(void **state) {
    (void)state;
    void *p[3];
    ds_mem_block b;
    begin();

    park(4 * KIB, 3, p);

    for (int i = 0; i < 3; i++) {
        assert_int_equal(ds_mem_free(p[i]), DS_ERR_INVALID_VALUE);
        assert_int_equal(ds_mem_get_block((char *)p[i] + 8, &b), DS_ERR_INVALID_VALUE);
        assert_int_equal(ds_mem_record_use(p[i], other), DS_ERR_INVALID_VALUE);
    }
    end();
}

static void test_statistics_count_parked_blocks_as_free(void **state) {
    (void)state;
    void *p[3];
    ds_mem_stats s = { 0 };
    begin();

    park(4 * KIB, 3, p);

    ok(ds_mem_get_stats(device, &s));
    assert_int_equal(s.allocation[DS_STAT_SMALL].current, 0);
    assert_int_equal(s.allocation[DS_STAT_SMALL].peak, 4);
    assert_int_equal(s.allocation[DS_STAT_SMALL].allocated, 4);
    assert_int_equal(s.allocation[DS_STAT_SMALL].freed, 4);
    assert_int_equal(s.active_bytes[DS_STAT_ALL].current, 0);
    assert_int_equal(s.allocated_bytes[DS_STAT_ALL].peak, 16 * KIB);
    end();
}

static void test_a_check_or_a_trim_merges_parked_blocks(void **state) {
    (void)state;
    void *p[3];
    size_t released = 0;
    begin();

    park(4 * KIB, 3, p);
    ok(ds_mem_validate(device));
    assert_null(list_for(4 * KIB)->first);
    park(4 * KIB, 3, p);
    ok(ds_mem_trim(device, 0, &released));

    assert_null(list_for(4 * KIB)->first);
    assert_int_equal(released, 2 * MIB);
    end();
}

static void test_a_pool_keeps_its_parked_blocks(void **state) {
    (void)state;
    void *p[3];
    ds_pool pool;
    begin();
    ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
    ds_mem_request request = { .size = 4 * KIB, .stream = stream, .pool = pool };
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            ok(ds_mem_alloc_with(&request, &p[i]));
        for (int i = 0; i < 3; i++)
            ok(ds_mem_free(p[i]));
    }

    void *q = block(4 * KIB, stream);

    for (int i = 0; i < 3; i++)
        assert_ptr_not_equal(q, p[i]);
    void *again;
    ok(ds_mem_alloc_with(&request, &again));
    assert_ptr_equal(again, p[2]);
    ok(ds_mem_free(again));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(pool));
    end();
}

static void test_blocks_of_plain_segments_are_merged_at_once(void **state) {
    (void)state;
    void *p[3];
    begin();
    ok(ds_mem_configure_text("preset:torch"));

    for (int i = 0; i < 3; i++)
        p[i] = block(4 * KIB, stream);
    for (int i = 0; i < 3; i++)
        ok(ds_mem_free(p[i]));

    assert_null(list_for(4 * KIB)->first);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parked_blocks_return_in_reverse_order),
        cmocka_unit_test(test_the_first_free_of_a_size_is_merged),
        cmocka_unit_test(test_another_size_empties_the_list),
        cmocka_unit_test(test_a_list_has_sixteen_blocks_at_most),
        cmocka_unit_test(test_only_small_blocks_up_to_the_limit_enter_lists),
        cmocka_unit_test(test_a_parked_block_stays_on_its_stream),
        cmocka_unit_test(test_a_block_that_another_stream_uses_is_not_parked),
        cmocka_unit_test(test_parked_blocks_are_merged_before_a_segment_grows),
        cmocka_unit_test(test_parked_blocks_serve_other_sizes_under_a_limit),
        cmocka_unit_test(test_a_parked_block_is_no_live_block),
        cmocka_unit_test(test_statistics_count_parked_blocks_as_free),
        cmocka_unit_test(test_a_check_or_a_trim_merges_parked_blocks),
        cmocka_unit_test(test_a_pool_keeps_its_parked_blocks),
        cmocka_unit_test(test_blocks_of_plain_segments_are_merged_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
