/* The device code of the demo, exactly as it stands there, run by the interpreter and compared
   with the CPU forms and with plain loops. Memory is as tight as it can be: a byte read or
   written outside of what a kernel was given fails. */
#define main demo_main
#include "../../examples/demo.c"
#undef main

#include <setjmp.h>
#include <cmocka.h>

#include "standin/ptx.h"

enum { THREADS = 256, LARGEST = 6 * BLOCK };

typedef struct range {
    const void *start;
    size_t size;
    int writable;
} range;

typedef struct memory {
    range range[2];
} memory;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    const memory *m = user;
    for (int i = 0; i < 2; i++) {
        uint64_t start = (uint64_t)(uintptr_t)m->range[i].start;
        if (write && !m->range[i].writable)
            continue;
        if (address >= start && address - start <= m->range[i].size &&
            size <= m->range[i].size - (size_t)(address - start))
            return (void *)(uintptr_t)address;
    }
    return NULL;
}

/* ---- launches ---- */

static void run_ptx(const char *text, const char *entry, memory *m, unsigned blocks,
                    const uint64_t *params, size_t count) {
    char error[256] = "";
    const void *pointers[8];
    ptx_module *module = ptx_load(text, error, sizeof error);
    if (module && ptx_inexact(module))
        fail_msg("%s", ptx_inexact(module));
    const ptx_function *f = module ? ptx_find(module, entry) : NULL;
    ptx_launch launch = { .grid = { blocks, 1, 1 },
                          .block = { THREADS, 1, 1 },
                          .params = pointers,
                          .memory = { reach, m } };
    if (!module)
        fail_msg("%s", error);
    assert_non_null(f);
    assert_int_equal(ptx_param_count(f), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ptx_param_size(f, i), sizeof *params);
        pointers[i] = &params[i];
    }
    if (ptx_run(f, &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", entry, error);
    ptx_unload(module);
}

static uint64_t address(const void *p) {
    return (uint64_t)(uintptr_t)p;
}

static void run_histogram(const piece_args *a, size_t first, size_t count, unsigned blocks) {
    memory m = { { { a->data, (size_t)a->size, 0 }, { a->results, RESULT_BYTES, 1 } } };
    uint64_t params[] = { address(a->data), address(a->results), a->size, first, count };
    run_ptx(ptx_histogram, "histogram", &m, blocks, params, 5);
}

static void run_checksum(const piece_args *a, size_t first, size_t count, unsigned blocks) {
    memory m = { { { a->data, (size_t)a->size, 0 }, { a->results, RESULT_BYTES, 1 } } };
    uint64_t params[] = { address(a->data), address(a->results), a->size, a->offset, first, count };
    run_ptx(ptx_checksum, "checksum", &m, blocks, params, 6);
}

/* ---- inputs and comparisons ---- */

static uint64_t state = 1;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

enum { RANDOM, TOP, ZEROS, TEXT, RAMP, PATTERNS };

static void fill(unsigned char *to, size_t size, int pattern) {
    static const unsigned char text[] = "0,0,0,13,0,5,\n";
    for (size_t i = 0; i < size; i++) {
        if (pattern == RANDOM)
            to[i] = (unsigned char)next_random();
        else if (pattern == TEXT)
            to[i] = text[i % (sizeof text - 1)];
        else
            to[i] = (unsigned char)(pattern == TOP ? 255 : pattern == ZEROS ? 0 : i);
    }
}

/* The result of loops over single bytes. */
static void count_plainly(const piece_args *a, size_t first, size_t count) {
    for (uint64_t i = (uint64_t)first * BLOCK; i < (first + count) * BLOCK && i < a->size; i++)
        a->results[a->data[i]]++;
}

static void sum_plainly(const piece_args *a, size_t first, size_t count) {
    for (uint64_t i = (uint64_t)first * BLOCK; i < (first + count) * BLOCK && i < a->size; i++) {
        a->results[SUM] += a->data[i];
        a->results[WEIGHTED] =
            (a->results[WEIGHTED] + (a->offset + i) % ADLER * a->data[i]) % ADLER;
    }
}

/* All three ways begin with the same results, since kernels add to what is there. W counts
   modulo ADLER: how often the remainder was taken is each way's own affair. */
static void compare_ways(size_t size, uint64_t offset, int pattern, size_t first, size_t count,
                         unsigned blocks) {
    uint64_t results[3][WORDS], before;
    unsigned char *data = NULL;
    piece_args a[3];
    assert_int_equal(posix_memalign((void **)&data, 16, size ? size : 1), 0);
    fill(data, size, pattern);
    for (int i = 0; i < WORDS; i++)
        results[0][i] = results[1][i] = results[2][i] = next_random() >> 20;
    before = results[0][WEIGHTED];
    for (int i = 0; i < 3; i++)
        a[i] = (piece_args){ data, results[i], size, offset };
    run_histogram(&a[0], first, count, blocks);
    run_checksum(&a[0], first, count, blocks);
    assert_int_equal(histogram(first, count, &a[1]), 0);
    assert_int_equal(checksum(first, count, &a[1]), 0);
    count_plainly(&a[2], first, count);
    sum_plainly(&a[2], first, count);
    /* so that W never overflows */
    assert_true(results[0][WEIGHTED] - before < (uint64_t)blocks * ADLER);
    for (int i = 0; i < 3; i++)
        results[i][WEIGHTED] %= ADLER;
    for (int i = 0; i < WORDS; i++)
        if (results[0][i] != results[2][i] || results[1][i] != results[2][i])
            fail_msg("%zu bytes at %llu, pattern %d, items %zu+%zu, %u blocks: word %d is %llu on "
                     "the device, %llu on the CPU, "
                     "%llu plainly",
                     size, (unsigned long long)offset, pattern, first, count, blocks, i,
                     (unsigned long long)results[0][i], (unsigned long long)results[1][i],
                     (unsigned long long)results[2][i]);
    free(data);
}

static size_t items_of(size_t size) {
    return (size + BLOCK - 1) / BLOCK;
}

/* ---- tests ---- */

static void test_a_string_is_no_longer_than_c11_promises(void **unused) {
    (void)unused;
    assert_true(sizeof ptx_histogram <= 4096 && sizeof ptx_checksum <= 4096 &&
                sizeof ptx_add_rows <= 4096);
}

static void test_sizes_that_do_not_fill_vectors_or_items(void **unused) {
    static const size_t sizes[] = { 0,
                                    1,
                                    2,
                                    15,
                                    16,
                                    17,
                                    31,
                                    32,
                                    33,
                                    4080,
                                    4095,
                                    4096,
                                    4097,
                                    4111,
                                    4112,
                                    BLOCK - 17,
                                    BLOCK - 16,
                                    BLOCK - 1,
                                    BLOCK,
                                    BLOCK + 1,
                                    BLOCK + 15,
                                    BLOCK + 16,
                                    2 * BLOCK - 1,
                                    2 * BLOCK + 4096 + 7 };
    (void)unused;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        compare_ways(sizes[i], 0, (int)(i % PATTERNS), 0, items_of(sizes[i]),
                     (unsigned)(items_of(sizes[i]) + !sizes[i]));
}

static void test_any_number_of_blocks_does_all_items(void **unused) {
    static const unsigned blocks[] = { 1, 2, 3, 4, 5, 6, 9, 17, 23, 24, 25 };
    (void)unused;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        compare_ways(LARGEST - i, 123, RANDOM, 0, 6, blocks[i]);
}

static void test_items_begin_and_end_anywhere(void **unused) {
    (void)unused;
    for (size_t first = 0; first < 4; first++)
        for (size_t count = 0; first + count <= 4; count++)
            compare_ways(3 * BLOCK + 1001, 77, RANDOM, first, count, 1 + (unsigned)count / 2);
}

static void test_every_pattern_of_bytes(void **unused) {
    (void)unused;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        compare_ways(BLOCK + 4321, 0, pattern, 0, 2, 2);
}

static void test_positions_in_the_input_count_modulo_adler(void **unused) {
    static const uint64_t offsets[] = { 1,         ADLER - 1,         ADLER,
                                        ADLER + 1, (uint64_t)1 << 32, ((uint64_t)1 << 48) - 1 };
    (void)unused;
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        compare_ways(5000, offsets[i], TOP, 0, 1, 1);
    for (int i = 0; i < 8; i++)
        compare_ways((size_t)(next_random() % BLOCK), next_random() >> 16, RANDOM, 0, 1, 1);
}

static void test_rows_are_added_word_by_word(void **unused) {
    static const uint64_t counts[] = { 0, 1, 2, 3, 7 };
    (void)unused;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t first = 0; first < WORDS; first += 100) {
            uint64_t rows[7 * WORDS], sum[2][WORDS], items = WORDS - first;
            memory m = { { { rows, (size_t)counts[c] * RESULT_BYTES, 0 },
                           { sum[0], RESULT_BYTES, 1 } } };
            uint64_t params[] = { address(sum[0]), address(rows), counts[c], first, items };
            add_args args = { sum[1], rows, counts[c] };
            for (size_t i = 0; i < 7 * WORDS; i++)
                rows[i] = next_random();
            for (size_t i = 0; i < WORDS; i++)
                sum[0][i] = sum[1][i] = next_random();
            run_ptx(ptx_add_rows, "add_rows", &m, (unsigned)(items + THREADS - 1) / THREADS, params,
                    5);
            assert_int_equal(add_rows(first, (size_t)items, &args), 0);
            assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
        }
}

#ifdef DEVSTREAM_CUDA
/* The whole program on three devices of the stand-in for cudart: its parameter lists and
   launches as well. It checks itself. */
static void test_the_demo_runs_on_cuda_devices(void **unused) {
    static char name[] = "demo", piece[] = "--piece", piece_size[] = "70001", total[] = "--total",
                total_size[] = "500000", devices[] = "--devices", three[] = "3",
                path[] = "/tmp/test_kernels.XXXXXX";
    char *argv[] = { name, piece, piece_size, total, total_size, devices, three, path, NULL };
    unsigned char *data = malloc(2 * LARGEST);
    char said[2048] = "";
    FILE *out = tmpfile();
    int saved = dup(STDOUT_FILENO), fd = mkstemp(path), result;
    (void)unused;
    assert_true(data && out && saved >= 0 && fd >= 0);
    fill(data, 2 * LARGEST, RANDOM);
    assert_int_equal(write(fd, data, 2 * LARGEST), 2 * LARGEST);
    fflush(stdout);
    dup2(fileno(out), STDOUT_FILENO);
    result = demo_main(8, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    rewind(out);
    said[fread(said, 1, sizeof said - 1, out)] = 0;
    close(saved);
    fclose(out);
    close(fd);
    unlink(path);
    free(data);
    assert_int_equal(result, FINE);
    assert_non_null(strstr(said, "3 from cuda:0"));
    assert_non_null(strstr(said, "the same as a plain pass"));
}
#endif

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_string_is_no_longer_than_c11_promises),
        cmocka_unit_test(test_sizes_that_do_not_fill_vectors_or_items),
        cmocka_unit_test(test_any_number_of_blocks_does_all_items),
        cmocka_unit_test(test_items_begin_and_end_anywhere),
        cmocka_unit_test(test_every_pattern_of_bytes),
        cmocka_unit_test(test_positions_in_the_input_count_modulo_adler),
        cmocka_unit_test(test_rows_are_added_word_by_word),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_the_demo_runs_on_cuda_devices),
#endif
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
