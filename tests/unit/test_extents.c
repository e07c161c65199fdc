/* The memory that a launch accesses through its pointers (base/extent.h): extents of a description,
   extents_fn, and those of the macros of devstream_kernel.h. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_kernel.h"

#include "unit.h"

enum { MOST = 8 };

static ds_extent bytes_of(size_t bytes) {
    return (ds_extent){ .kind = DS_EXTENT_BYTES, .bytes = bytes };
}

/* ---- extents of a description ---- */

typedef struct table_args {
    char *a;
    const char *b;
    uint64_t wide;
    uint32_t narrow;
    int32_t factor;
    char *c;
    uint16_t half;
} table_args;

enum { A, B, WIDE, NARROW, C, HALF, FIRST, COUNT, PARAMS };

static const ds_param table_params[PARAMS] = {
    { DS_PARAM_WRITE, offsetof(table_args, a), sizeof(char *) },
    { DS_PARAM_READ, offsetof(table_args, b), sizeof(char *) },
    { DS_PARAM_VALUE, offsetof(table_args, wide), 8 },
    { DS_PARAM_VALUE, offsetof(table_args, narrow), 4 },
    { DS_PARAM_READ_WRITE, offsetof(table_args, c), sizeof(char *) },
    { DS_PARAM_VALUE, offsetof(table_args, half), 2 },
    { DS_PARAM_FIRST, 0, 8 },
    { DS_PARAM_COUNT, 0, 8 }
};

static char memory_a[1], memory_b[1], memory_c[1];

static table_args arguments(void) {
    return (table_args){ .a = memory_a, .b = memory_b, .c = memory_c };
}

static int do_nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

static ds_kernel_desc table_desc(void) {
    return (ds_kernel_desc){ .name = "table",
                             .cpu_fn = do_nothing,
                             .args_size = sizeof(table_args),
                             .params = table_params,
                             .param_count = PARAMS };
}

/* Returns the ranges of a launch of a kernel that is created for the call. */
static size_t ranges_of(const ds_kernel_desc *desc, size_t items, const table_args *args,
                        ds__extent_range *out) {
    ds_kernel handle;
    ok(ds_kernel_create(desc, &handle));
    ds__kernel *k = ds__pin(&ds__g.kernels, handle.id);
    assert_non_null(k);
    size_t n = ds__kernel_ranges(k, NULL, 0, items, args, out);
    ds__unpin(&ds__g.kernels, k);
    ok(ds_kernel_destroy(handle));
    return n;
}

/* The range of parameter `a`, whose extent is given. */
static ds__extent_range range_of(ds_extent extent, size_t items, const table_args *args) {
    ds_extent extents[PARAMS] = { [A] = extent };
    ds_kernel_desc desc = table_desc();
    ds__extent_range out[PARAMS];
    desc.extents = extents;
    size_t n = ranges_of(&desc, items, args, out);
    return n == 3 ? out[0] : (ds__extent_range){ .rows = 0, .param = PARAMS };
}

static void expect_row(const ds__extent_range *r, const void *ptr, size_t offset, size_t bytes) {
    assert_int_equal(r->exact, 1);
    assert_ptr_equal(r->ptr, ptr);
    assert_int_equal(r->offset, offset);
    assert_int_equal(r->rows, 1);
    assert_int_equal(r->width, bytes);
    assert_int_equal(r->pitch, bytes);
}

static void expect_unknown(const ds__extent_range *r, const void *ptr) {
    assert_int_equal(r->exact, 0);
    assert_ptr_equal(r->ptr, ptr);
    assert_int_equal(r->offset + r->width + r->pitch + r->rows, 0);
}

static void expect_none(const ds__extent_range *r) {
    assert_int_equal(r->param, PARAMS);
}

static void test_a_kernel_without_extents_has_unknown_ranges(void **state) {
    (void)state;
    table_args args = arguments();
    ds_kernel_desc desc = table_desc();
    ds__extent_range out[PARAMS];

    size_t n = ranges_of(&desc, 10, &args, out);

    assert_int_equal(n, 3);
    expect_unknown(&out[0], memory_a);
    expect_unknown(&out[1], memory_b);
    expect_unknown(&out[2], memory_c);
    assert_int_equal(out[0].param, A);
    assert_int_equal(out[1].param, B);
    assert_int_equal(out[2].param, C);
    assert_int_equal(out[0].kind, DS_PARAM_WRITE);
    assert_int_equal(out[1].kind, DS_PARAM_READ);
    assert_int_equal(out[2].kind, DS_PARAM_READ_WRITE);
}

static void test_bytes_are_one_row(void **state) {
    (void)state;
    table_args args = arguments();

    ds__extent_range r = range_of((ds_extent){ DS_EXTENT_BYTES, 1, 100, 24, 0, 0 }, 10, &args);

    expect_row(&r, memory_a, 24, 100);
    assert_int_equal(r.atomic, 1);
}

static void test_a_count_is_read_from_the_arguments(void **state) {
    (void)state;
    table_args args = arguments();
    args.wide = 5;
    args.narrow = UINT32_MAX; /* the neighbour must not be read with it */
    args.factor = -1;
    ds_extent wide = { DS_EXTENT_COUNT, 0, 8, 16, 0, WIDE };
    ds_extent narrow = { DS_EXTENT_COUNT, 0, 8, 16, 0, NARROW };

    ds__extent_range r = range_of(wide, 10, &args);
    ds__extent_range s = range_of(narrow, 10, &args);

    expect_row(&r, memory_a, 16, 40);
    assert_int_equal(r.atomic, 0);
    expect_row(&s, memory_a, 16, (size_t)8 * UINT32_MAX);
}

static void test_a_count_of_zero_is_no_access(void **state) {
    (void)state;
    table_args args = arguments();

    ds__extent_range r = range_of((ds_extent){ DS_EXTENT_COUNT, 0, 8, 0, 0, WIDE }, 10, &args);

    expect_none(&r);
}

static void test_items_without_gaps_are_one_row(void **state) {
    (void)state;
    table_args args = arguments();

    ds__extent_range r = range_of((ds_extent){ DS_EXTENT_ITEMS, 0, 12, 4, 0, 0 }, 10, &args);
    ds__extent_range s = range_of((ds_extent){ DS_EXTENT_ITEMS, 0, 12, 4, 12, 0 }, 10, &args);

    expect_row(&r, memory_a, 4, 120);
    expect_row(&s, memory_a, 4, 120);
}

static void test_items_with_gaps_are_rows(void **state) {
    (void)state;
    table_args args = arguments();
    ds_extent e = { DS_EXTENT_ITEMS, 0, 12, 4, 64, 0 };

    ds__extent_range r = range_of(e, 10, &args);
    ds__extent_range one = range_of(e, 1, &args);

    assert_int_equal(r.exact, 1);
    assert_int_equal(r.offset, 4);
    assert_int_equal(r.rows, 10);
    assert_int_equal(r.width, 12);
    assert_int_equal(r.pitch, 64);
    expect_row(&one, memory_a, 4, 12);
}

static void test_ranges_beyond_the_address_space_are_unknown(void **state) {
    (void)state;
    table_args args = arguments();
    args.wide = (uint64_t)1 << 61;

    ds__extent_range product =
        range_of((ds_extent){ DS_EXTENT_COUNT, 0, 8, 0, 0, WIDE }, 10, &args);
    ds__extent_range end = range_of(bytes_of(SIZE_MAX - 100), 10, &args);
    ds__extent_range offset =
        range_of((ds_extent){ DS_EXTENT_BYTES, 0, 8, SIZE_MAX - 7, 0, 0 }, 10, &args);
    ds__extent_range rows =
        range_of((ds_extent){ DS_EXTENT_ITEMS, 1, 8, 0, SIZE_MAX / 2, 0 }, 4, &args);

    expect_unknown(&product, memory_a);
    expect_unknown(&end, memory_a);
    expect_unknown(&offset, memory_a);
    expect_unknown(&rows, memory_a);
    assert_int_equal(rows.atomic, 1);
}

static void test_a_null_pointer_has_no_range(void **state) {
    (void)state;
    table_args args = arguments();
    args.a = NULL;

    ds__extent_range known = range_of(bytes_of(8), 10, &args);
    ds__extent_range unknown = range_of((ds_extent){ .kind = DS_EXTENT_NONE }, 10, &args);

    expect_none(&known);
    expect_none(&unknown);
}

static void test_extents_are_copied_at_creation(void **state) {
    (void)state;
    table_args args = arguments();
    ds_extent extents[PARAMS] = { [A] = bytes_of(1), [B] = bytes_of(2), [C] = bytes_of(3) };
    ds_kernel_desc desc = table_desc();
    ds__extent_range out[PARAMS];
    ds_kernel handle;
    desc.extents = extents;
    ok(ds_kernel_create(&desc, &handle));
    memset(extents, 0xff, sizeof extents);

    ds__kernel *k = ds__pin(&ds__g.kernels, handle.id);
    size_t n = ds__kernel_ranges(k, NULL, 0, 10, &args, out);
    ds__unpin(&ds__g.kernels, k);

    assert_int_equal(n, 3);
    expect_row(&out[0], memory_a, 0, 1);
    expect_row(&out[1], memory_b, 0, 2);
    expect_row(&out[2], memory_c, 0, 3);
    ok(ds_kernel_destroy(handle));
}

/* ---- extents of a function ---- */

static int calls;

static void table_extents(const void *args, size_t *out_bytes) {
    const table_args *a = args;
    calls++;
    out_bytes[A] = (size_t)a->wide * 8;
    out_bytes[B] = 0;
    out_bytes[WIDE] = 100; /* not read */
}

static void test_a_function_states_the_bytes_of_a_launch(void **state) {
    (void)state;
    table_args args = arguments();
    ds_kernel_desc desc = table_desc();
    ds__extent_range out[PARAMS];
    args.wide = 3;
    desc.extents_fn = table_extents;
    calls = 0;

    size_t n = ranges_of(&desc, 10, &args, out);

    assert_int_equal(calls, 1);
    assert_int_equal(n, 2);
    expect_row(&out[0], memory_a, 0, 24);
    assert_int_equal(out[0].atomic, 0);
    expect_unknown(&out[1], memory_c); /* the function did not write its bytes */
    assert_int_equal(out[1].param, C);
}

/* ---- extents in place of the kernel's ---- */

static size_t replaced_ranges(const ds_extent *extents, size_t count, const table_args *args,
                              ds__extent_range *out) {
    ds_kernel_desc desc = table_desc();
    ds_kernel handle;
    desc.extents_fn = table_extents;
    ok(ds_kernel_create(&desc, &handle));
    ds__kernel *k = ds__pin(&ds__g.kernels, handle.id);
    size_t n = ds__kernel_ranges(k, extents, count, 10, args, out);
    ds__unpin(&ds__g.kernels, k);
    ok(ds_kernel_destroy(handle));
    return n;
}

static void test_the_first_extents_are_replaced(void **state) {
    (void)state;
    table_args args = arguments();
    ds_extent extents[PARAMS] = { bytes_of(0), { DS_EXTENT_ITEMS, 1, 4, 8, 0, 0 } };
    ds__extent_range out[PARAMS];
    extents[C] = bytes_of(5); /* not one of the two */
    args.wide = 3;

    size_t n = replaced_ranges(extents, 2, &args, out);

    assert_int_equal(n, 2); /* no access through `a` */
    expect_row(&out[0], memory_b, 8, 40);
    assert_int_equal(out[0].atomic, 1);
    expect_unknown(&out[1], memory_c);
}

static void test_more_extents_than_parameters_are_ignored(void **state) {
    (void)state;
    table_args args = arguments();
    ds_extent extents[PARAMS + 2];
    ds__extent_range out[PARAMS];
    for (size_t i = 0; i < PARAMS + 2; i++)
        extents[i] = bytes_of(i + 1);

    size_t n = replaced_ranges(extents, PARAMS + 2, &args, out);

    assert_int_equal(n, 3);
    expect_row(&out[0], memory_a, 0, A + 1);
    expect_row(&out[1], memory_b, 0, B + 1);
    expect_row(&out[2], memory_c, 0, C + 1);
}

static void test_wrong_extents_are_unknown(void **state) {
    (void)state;
    static const ds_extent wrong[] = {
        { (ds_extent_kind)4, 0, 8, 8, 0, 0 },    { (ds_extent_kind)-1, 0, 8, 8, 0, 0 },
        { DS_EXTENT_COUNT, 0, 8, 8, 0, PARAMS }, { DS_EXTENT_COUNT, 0, 8, 8, 0, SIZE_MAX },
        { DS_EXTENT_COUNT, 0, 8, 8, 0, B },      { DS_EXTENT_COUNT, 0, 8, 8, 0, HALF },
        { DS_EXTENT_COUNT, 0, 8, 8, 0, COUNT },
    };
    table_args args = arguments();
    args.half = 3;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds__extent_range out[PARAMS];

        size_t n = replaced_ranges(&wrong[i], 1, &args, out);

        assert_true(n >= 1);
        expect_unknown(&out[0], memory_a);
    }
}

static void test_overlapping_items_are_one_row(void **state) {
    (void)state;
    table_args args = arguments();
    ds_extent window = { DS_EXTENT_ITEMS, 0, 12, 0, 4, 0 };
    ds__extent_range out[PARAMS];

    size_t n = replaced_ranges(&window, 1, &args, out);

    assert_true(n >= 1);
    expect_row(&out[0], memory_a, 0, 9 * 4 + 12);
}

/* ---- extents of the macros ---- */

DS_KERNEL_1D(line, i, n, DS_VALUE(float, factor), DS_READ(float, x, n + 2), DS_WRITE(double, y, n),
             DS_READ_WRITE(uint8_t, flags, 7)) {
    y[i] = (double)(factor * (x[i] + x[i + 1] + x[i + 2]));
    if (i == 0)
        flags[0] |= 1;
}

DS_KERNEL_2D(turn, x, y, nx, ny, DS_READ(uint16_t, in, ny *pitch), DS_VALUE(uint32_t, pitch),
             DS_WRITE(uint16_t, out, nx *ny)) {
    out[x * ny + y] = in[y * pitch + x];
}

DS_KERNEL_3D(fill, x, y, z, nx, ny, nz, DS_WRITE(uint64_t, out, nx *ny *nz),
             DS_WRITE(uint32_t, planes, nz)) {
    out[x + nx * (y + ny * z)] = z;
    if (x == 0 && y == 0)
        planes[z] = 1;
}

DS_BLOCK_KERNEL_2D(tiles, 8, 4, DS_READ(float, in, n), DS_VALUE(int32_t, n),
                   DS_WRITE(float, sums, DS_GRID_X *DS_GRID_Y), DS_WRITE(float, rows, DS_GRID_Y),
                   DS_WRITE(int32_t, depth, DS_GRID_Z)) {
    DS_THREADS if (DS_THREAD_RANK == 0) {
        sums[DS_BLOCK_X + DS_GRID_X * DS_BLOCK_Y] = n > 0 ? in[0] : 0;
        rows[DS_BLOCK_Y] = 0;
        depth[DS_BLOCK_Z] = 0;
    }
}

/* Returns the ranges of a launch of a definition. */
static size_t def_ranges(ds_kernel_def *def, const void *args, ds__extent_range *out) {
    ds_kernel handle;
    ok(ds_kernel_def_get_kernel(def, &handle));
    ds__kernel *k = ds__pin(&ds__g.kernels, handle.id);
    assert_non_null(k);
    size_t n = ds__kernel_ranges(k, NULL, 0, 1, args, out);
    ds__unpin(&ds__g.kernels, k);
    return n;
}

static void test_a_kernel_of_one_dimension_has_its_extents(void **state) {
    (void)state;
    float x[1] = { 0 };
    double y[1] = { 0 };
    uint8_t flags[1] = { 0 };
    ds__extent_range out[MOST];
    struct line_args args = line_pack(100, 2, x, y, flags);

    size_t n = def_ranges(&line_def, &args, out);

    assert_int_equal(n, 3);
    expect_row(&out[0], x, 0, 102 * 4);
    expect_row(&out[1], y, 0, 100 * 8);
    expect_row(&out[2], flags, 0, 7);
    assert_int_equal(out[0].param, 1);
    assert_int_equal(out[2].kind, DS_PARAM_READ_WRITE);
}

static void test_a_kernel_of_two_dimensions_has_its_extents(void **state) {
    (void)state;
    uint16_t in[1] = { 0 };
    uint16_t result[1] = { 0 };
    ds__extent_range out[MOST];
    struct turn_args args = turn_pack(5, 3, in, 16, result);

    size_t n = def_ranges(&turn_def, &args, out);

    assert_int_equal(n, 2);
    expect_row(&out[0], in, 0, 3 * 16 * 2);
    expect_row(&out[1], result, 0, 5 * 3 * 2);
    assert_int_equal(out[1].param, 2);
}

static void test_a_kernel_of_three_dimensions_has_its_extents(void **state) {
    (void)state;
    uint64_t result[1] = { 0 };
    uint32_t planes[1] = { 0 };
    ds__extent_range out[MOST];
    struct fill_args args = fill_pack(5, 3, 7, result, planes);

    size_t n = def_ranges(&fill_def, &args, out);

    assert_int_equal(n, 2);
    expect_row(&out[0], result, 0, 5 * 3 * 7 * 8);
    expect_row(&out[1], planes, 0, 7 * 4);
}

static void test_a_block_kernel_has_the_extents_of_its_grid(void **state) {
    (void)state;
    float in[1] = { 0 };
    float sums[1] = { 0 };
    float rows[1] = { 0 };
    int32_t depth[1] = { 0 };
    ds__extent_range out[MOST];
    struct tiles_args args = tiles_pack(6, 5, in, 1000, sums, rows, depth);

    size_t n = def_ranges(&tiles_def, &args, out);

    assert_int_equal(n, 4);
    expect_row(&out[0], in, 0, 1000 * 4);
    expect_row(&out[1], sums, 0, 6 * 5 * 4);
    expect_row(&out[2], rows, 0, 5 * 4);
    expect_row(&out[3], depth, 0, 4);
}

static void test_a_negative_or_zero_extent_of_a_macro(void **state) {
    (void)state;
    float in[1] = { 0 };
    float sums[1] = { 0 };
    float rows[1] = { 0 };
    int32_t depth[1] = { 0 };
    ds__extent_range out[MOST];
    struct tiles_args negative = tiles_pack(6, 5, in, -1, sums, rows, depth);
    struct tiles_args zero = tiles_pack(6, 5, in, 0, sums, rows, depth);

    size_t of_negative = def_ranges(&tiles_def, &negative, out);
    int exact = out[0].exact;
    size_t of_zero = def_ranges(&tiles_def, &zero, out);

    assert_int_equal(of_negative, 4);
    assert_int_equal(exact, 0);
    assert_int_equal(of_zero, 3);
    assert_ptr_equal(out[0].ptr, sums);
}

static void test_an_extent_of_a_macro_beyond_size_t_is_unknown(void **state) {
    (void)state;
    float x[1] = { 0 };
    double y[1] = { 0 };
    ds__extent_range out[MOST];
    /* the extent of x is 2^62 + 1 elements of 4 bytes */
    struct line_args args = line_pack(((size_t)1 << 62) - 1, 2, x, y, NULL);

    size_t n = def_ranges(&line_def, &args, out);

    assert_int_equal(n, 2);
    expect_unknown(&out[0], x);
    expect_unknown(&out[1], y);
}

static void test_the_bytes_of_a_launch_are_those_of_its_extents(void **state) {
    (void)state;
    float in[1] = { 0 };
    float sums[1] = { 0 };
    struct tiles_args args = tiles_pack(6, 5, in, 1000, sums, sums, (int32_t *)NULL);
    struct line_args line = line_pack(100, 2, in, NULL, NULL);

    assert_true(tiles_def.bytes_fn(30, &args) == 4 * (1000 + 30 + 5 + 1));
    assert_true(line_def.bytes_fn(100, &line) == 102 * 4 + 100 * 8 + 2 * 7);
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() < 0;
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_kernel_without_extents_has_unknown_ranges),
        TEST(test_bytes_are_one_row),
        TEST(test_a_count_is_read_from_the_arguments),
        TEST(test_a_count_of_zero_is_no_access),
        TEST(test_items_without_gaps_are_one_row),
        TEST(test_items_with_gaps_are_rows),
        TEST(test_ranges_beyond_the_address_space_are_unknown),
        TEST(test_a_null_pointer_has_no_range),
        TEST(test_extents_are_copied_at_creation),
        TEST(test_a_function_states_the_bytes_of_a_launch),
        TEST(test_the_first_extents_are_replaced),
        TEST(test_more_extents_than_parameters_are_ignored),
        TEST(test_wrong_extents_are_unknown),
        TEST(test_overlapping_items_are_one_row),
        TEST(test_a_kernel_of_one_dimension_has_its_extents),
        TEST(test_a_kernel_of_two_dimensions_has_its_extents),
        TEST(test_a_kernel_of_three_dimensions_has_its_extents),
        TEST(test_a_block_kernel_has_the_extents_of_its_grid),
        TEST(test_a_negative_or_zero_extent_of_a_macro),
        TEST(test_an_extent_of_a_macro_beyond_size_t_is_unknown),
        TEST(test_the_bytes_of_a_launch_are_those_of_its_extents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
