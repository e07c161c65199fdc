/* The device code of the demo, exactly as it stands there, run by the interpreter and compared
   with the CPU forms and with plain loops. Memory is as tight as it can be: a byte read or
   written outside of what a kernel was given fails. */
#define main demo_main
#include "../../examples/demo.c"
#undef main

#include <setjmp.h>
#include <cmocka.h>

#include "ptx_ranges.h"
#include "standin/ptx.h"

enum { LARGEST = 4 * BLOCK };

typedef struct memory {
    range range[2];
} memory;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    const memory *m = user;
    return ranges_reach(m->range, 2, address, size, write);
}

/* ---- launches ---- */

/* The PTX of all kernels of the demo as one text. */
static const char *ptx_text(void) {
    static char text[64 << 10];
    if (!*text)
        for (const char *const *piece = demo__ptx; *piece; piece++) {
            assert_true(strlen(text) + strlen(*piece) < sizeof text);
            strcat(text, *piece);
        }
    return text;
}

/* Runs blocks of a kernel with the arguments that its launch has; the last two are the first item
   and the number of items. */
static void run_ptx(const char *entry, memory *m, unsigned blocks, const void *const *arguments,
                    size_t count) {
    char error[256] = "";
    ptx_module *module = ptx_load(ptx_text(), error, sizeof error);
    if (module && ptx_inexact(module))
        fail_msg("%s", ptx_inexact(module));
    const ptx_function *f = module ? ptx_find(module, entry) : NULL;
    ptx_launch launch = { .grid = { blocks, 1, 1 },
                          .block = { THREADS, 1, 1 },
                          .params = arguments,
                          .memory = { reach, m } };
    if (!module)
        fail_msg("%s", error);
    assert_non_null(f);
    assert_int_equal(ptx_param_count(f), count);
    if (ptx_run(f, &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", entry, error);
    ptx_unload(module);
}

/* A part of the input, and results to add to. */
typedef struct part {
    unsigned char *data;
    uint64_t *results;
    uint64_t size;
    uint64_t offset;
} part;

static size_t blocks_of(size_t size) {
    return (size + BLOCK - 1) / BLOCK;
}

static void run_histogram(const part *p, uint64_t first, uint64_t count) {
    memory m = { { { p->data, (size_t)p->size, 0 }, { p->results, RESULT_BYTES, 1 } } };
    struct histogram_args a =
        histogram_pack(blocks_of((size_t)p->size), (void *)p->data, p->results, p->size);
    const void *params[] = { &a.data, &a.results, &a.size, &a.dsk__dims, &first, &count };
    run_ptx("histogram", &m, (unsigned)count, params, 6);
}

static void run_checksum(const part *p, uint64_t first, uint64_t count) {
    memory m = { { { p->data, (size_t)p->size, 0 }, { p->results, RESULT_BYTES, 1 } } };
    struct checksum_args a =
        checksum_pack(blocks_of((size_t)p->size), (void *)p->data, p->results, p->size, p->offset);
    const void *params[] = {
        &a.data, &a.results, &a.size, &a.offset, &a.dsk__dims, &first, &count
    };
    run_ptx("checksum", &m, (unsigned)count, params, 7);
}

/* The CPU forms. */
static void run_on_the_cpu(const part *p, size_t first, size_t count) {
    size_t blocks = blocks_of((size_t)p->size);
    struct histogram_args h = histogram_pack(blocks, (void *)p->data, p->results, p->size);
    struct checksum_args c = checksum_pack(blocks, (void *)p->data, p->results, p->size, p->offset);
    assert_int_equal(histogram_def.cpu_fn(first, count, &h), 0);
    assert_int_equal(checksum_def.cpu_fn(first, count, &c), 0);
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
static void count_plainly(const part *a, size_t first, size_t count) {
    for (uint64_t i = (uint64_t)first * BLOCK; i < (first + count) * BLOCK && i < a->size; i++)
        a->results[a->data[i]]++;
}

static void sum_plainly(const part *a, size_t first, size_t count) {
    for (uint64_t i = (uint64_t)first * BLOCK; i < (first + count) * BLOCK && i < a->size; i++) {
        a->results[SUM] += a->data[i];
        a->results[WEIGHTED] =
            (a->results[WEIGHTED] + (a->offset + i) % ADLER * a->data[i]) % ADLER;
    }
}

/* All three ways begin with the same results, since kernels add to what is there. W counts
   modulo ADLER: how often the remainder was taken is each way's own affair. */
static void compare_ways(size_t size, uint64_t offset, int pattern, size_t first, size_t count) {
    uint64_t results[3][WORDS];
    unsigned char *data = NULL;
    part a[3];
    assert_int_equal(posix_memalign((void **)&data, 16, size ? size : 1), 0);
    fill(data, size, pattern);
    for (int i = 0; i < WORDS; i++)
        results[0][i] = results[1][i] = results[2][i] = next_random() >> 20;
    uint64_t before = results[0][WEIGHTED];
    for (int i = 0; i < 3; i++)
        a[i] = (part){ data, results[i], size, offset };

    if (count) {
        run_histogram(&a[0], first, count);
        run_checksum(&a[0], first, count);
        run_on_the_cpu(&a[1], first, count);
    }
    count_plainly(&a[2], first, count);
    sum_plainly(&a[2], first, count);

    /* so that W never overflows */
    assert_true(results[0][WEIGHTED] - before <= (uint64_t)count * ADLER);
    for (int i = 0; i < 3; i++)
        results[i][WEIGHTED] %= ADLER;
    for (int i = 0; i < WORDS; i++)
        if (results[0][i] != results[2][i] || results[1][i] != results[2][i])
            fail_msg("%zu bytes at %llu, pattern %d, blocks %zu+%zu: word %d is %llu on the "
                     "device, %llu on the CPU, %llu plainly",
                     size, (unsigned long long)offset, pattern, first, count, i,
                     (unsigned long long)results[0][i], (unsigned long long)results[1][i],
                     (unsigned long long)results[2][i]);
    free(data);
}

/* ---- tests ---- */

static void test_a_string_is_no_longer_than_c11_promises(void **unused) {
    (void)unused;
    for (const char *const *piece = demo__ptx; *piece; piece++)
        assert_true(strlen(*piece) <= 4095);
}

static void test_sizes_that_do_not_fill_tiles_or_blocks(void **unused) {
    static const size_t sizes[] = { 0,     1,         2,         3,           4,
                                    5,     255,       256,       257,         TILE - 1,
                                    TILE,  TILE + 1,  TILE + 7,  2 * TILE,    BLOCK - 1,
                                    BLOCK, BLOCK + 1, BLOCK + 4, BLOCK + TILE };
    (void)unused;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        compare_ways(sizes[i], 0, (int)(i % PATTERNS), 0, blocks_of(sizes[i]));
}

static void test_blocks_begin_and_end_anywhere(void **unused) {
    (void)unused;
    for (size_t first = 0; first < 3; first++)
        for (size_t count = 1; first + count <= 3; count++)
            compare_ways(2 * BLOCK + 1001, 77, RANDOM, first, count);
}

static void test_every_pattern_of_bytes(void **unused) {
    (void)unused;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        compare_ways(BLOCK + 4321, 0, pattern, 0, 2);
}

static void test_positions_in_the_input_count_modulo_adler(void **unused) {
    static const uint64_t offsets[] = { 1,         ADLER - 1,         ADLER,
                                        ADLER + 1, (uint64_t)1 << 32, ((uint64_t)1 << 48) - 1 };
    (void)unused;
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        compare_ways(5000, offsets[i], TOP, 0, 1);
    for (int i = 0; i < 8; i++)
        compare_ways(1 + (size_t)(next_random() % BLOCK), next_random() >> 16, RANDOM, 0, 1);
}

static void test_rows_are_added_word_by_word(void **unused) {
    static const uint64_t counts[] = { 0, 1, 2, 3, 7 };
    (void)unused;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint64_t first = 0; first < WORDS; first += 100) {
            uint64_t rows[7 * WORDS];
            uint64_t sum[2][WORDS];
            uint64_t items = WORDS - first;
            memory m = { { { rows, (size_t)counts[c] * RESULT_BYTES, 0 },
                           { sum[0], RESULT_BYTES, 1 } } };
            struct add_rows_args a = add_rows_pack(WORDS, sum[0], rows, counts[c]);
            const void *params[] = { &a.sum, &a.words, &a.rows, &a.dsk__dims, &first, &items };
            for (size_t i = 0; i < 7 * WORDS; i++)
                rows[i] = next_random();
            for (size_t i = 0; i < WORDS; i++)
                sum[0][i] = sum[1][i] = next_random();

            run_ptx("add_rows", &m, (unsigned)(items + THREADS - 1) / THREADS, params, 6);
            a = add_rows_pack(WORDS, sum[1], rows, counts[c]);
            assert_int_equal(add_rows_def.cpu_fn((size_t)first, (size_t)items, &a), 0);

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
        cmocka_unit_test(test_sizes_that_do_not_fill_tiles_or_blocks),
        cmocka_unit_test(test_blocks_begin_and_end_anywhere),
        cmocka_unit_test(test_every_pattern_of_bytes),
        cmocka_unit_test(test_positions_in_the_input_count_modulo_adler),
        cmocka_unit_test(test_rows_are_added_word_by_word),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_the_demo_runs_on_cuda_devices),
#endif
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
