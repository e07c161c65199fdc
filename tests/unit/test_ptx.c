/* The PTX interpreter of the stand-in. Most programs are CUDA C in ptx/,
    compiled once by clang (ptx/make.sh); the compiler of this
   file computes what they must give, from the same source where no other thread is needed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin/ptx.h"

/* ---- the programs, as C of the host ---- */

#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wfloat-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdouble-promotion"

static const int modes[] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };

enum { RN, RZ, RM, RP };

#define WITH_MODE(name, mode, R, params, inputs, expression) \
    static R name params {                                   \
        inputs;                                              \
        fesetround(modes[mode]);                             \
        volatile R r = (R)(expression);                      \
        fesetround(FE_TONEAREST);                            \
        return r;                                            \
    }
#define PAIR(T) volatile T a_ = a, b_ = b
#define BINARY(name, op)                                                                      \
    WITH_MODE(__nvvm_##name##_rn_f, RN, float, (float a, float b), PAIR(float), a_ op b_)     \
    WITH_MODE(__nvvm_##name##_rz_f, RZ, float, (float a, float b), PAIR(float), a_ op b_)     \
    WITH_MODE(__nvvm_##name##_rm_f, RM, float, (float a, float b), PAIR(float), a_ op b_)     \
    WITH_MODE(__nvvm_##name##_rp_f, RP, float, (float a, float b), PAIR(float), a_ op b_)     \
    WITH_MODE(__nvvm_##name##_rz_d, RZ, double, (double a, double b), PAIR(double), a_ op b_) \
    WITH_MODE(__nvvm_##name##_rm_d, RM, double, (double a, double b), PAIR(double), a_ op b_) \
    WITH_MODE(__nvvm_##name##_rp_d, RP, double, (double a, double b), PAIR(double), a_ op b_)
BINARY(add, +)
BINARY(mul, *)
BINARY(div, /)
#define FUSED(mode, MODE)                                                                        \
    WITH_MODE(__nvvm_fma_##mode##_f, MODE, float, (float a, float b, float c), PAIR(float),      \
              fmaf(a_, b_, c))                                                                   \
    WITH_MODE(__nvvm_fma_##mode##_d, MODE, double, (double a, double b, double c), PAIR(double), \
              fma(a_, b_, c))
FUSED(rz, RZ)
FUSED(rm, RM)
FUSED(rp, RP)
#define UNARY(mode, MODE)                                                                         \
    WITH_MODE(__nvvm_sqrt_##mode##_f, MODE, float, (float a), volatile float a_ = a, sqrtf(a_))   \
    WITH_MODE(__nvvm_sqrt_##mode##_d, MODE, double, (double a), volatile double a_ = a, sqrt(a_)) \
    WITH_MODE(__nvvm_rcp_##mode##_f, MODE, float, (float a), volatile float a_ = a, 1.0f / a_)    \
    WITH_MODE(__nvvm_rcp_##mode##_d, MODE, double, (double a), volatile double a_ = a, 1.0 / a_)  \
    WITH_MODE(__nvvm_d2f_##mode, MODE, float, (double a), volatile double a_ = a, a_)             \
    WITH_MODE(__nvvm_ll2f_##mode, MODE, float, (long long a), volatile long long a_ = a, a_)      \
    WITH_MODE(__nvvm_ull2f_##mode, MODE, float, (unsigned long long a),                           \
              volatile unsigned long long a_ = a, a_)                                             \
    WITH_MODE(__nvvm_i2f_##mode, MODE, float, (int a), volatile int a_ = a, a_)                   \
    WITH_MODE(__nvvm_ui2f_##mode, MODE, float, (unsigned a), volatile unsigned a_ = a, a_)        \
    WITH_MODE(__nvvm_ll2d_##mode, MODE, double, (long long a), volatile long long a_ = a, a_)     \
    WITH_MODE(__nvvm_ull2d_##mode, MODE, double, (unsigned long long a),                          \
              volatile unsigned long long a_ = a, a_)
UNARY(rn, RN)
UNARY(rz, RZ)
UNARY(rm, RM)
UNARY(rp, RP)

static float __nvvm_saturate_f(float a) {
    return a > 0 ? (a < 1 ? a : 1) : 0;
}

static double __nvvm_saturate_d(double a) {
    return a > 0 ? (a < 1 ? a : 1) : 0;
}

/* To an integer of a range as hardware does: out of range the nearest, a NaN as the ISA says for
   the type. */
static double integral(double v, int mode) {
    return mode == RN ? rint(v) : mode == RZ ? trunc(v) : mode == RM ? floor(v) : ceil(v);
}

#define TO_INTEGER(name, T, F, nan, lowest, highest, above) \
    static T name##_mode(F v, int mode) {                   \
        double d = integral((double)v, mode);               \
        return v != v                  ? (T)(nan)           \
               : d >= (above)          ? (highest)          \
               : d <= (double)(lowest) ? (lowest)           \
                                       : (T)d;              \
    }                                                       \
    static T __nvvm_##name##_rn(F v) {                      \
        return name##_mode(v, RN);                          \
    }                                                       \
    static T __nvvm_##name##_rz(F v) {                      \
        return name##_mode(v, RZ);                          \
    }                                                       \
    static T __nvvm_##name##_rm(F v) {                      \
        return name##_mode(v, RM);                          \
    }                                                       \
    static T __nvvm_##name##_rp(F v) {                      \
        return name##_mode(v, RP);                          \
    }
TO_INTEGER(f2i, int, float, 0, INT32_MIN, INT32_MAX, 0x1p31)
TO_INTEGER(f2ui, unsigned, float, 0, 0u, UINT32_MAX, 0x1p32)
TO_INTEGER(f2ll, long long, float, INT64_MIN, INT64_MIN, INT64_MAX, 0x1p63)
TO_INTEGER(f2ull, unsigned long long, float, 1ull << 63, 0ull, UINT64_MAX, 0x1p64)
TO_INTEGER(d2i, int, double, INT32_MIN, INT32_MIN, INT32_MAX, 0x1p31)
TO_INTEGER(d2ui, unsigned, double, 1u << 31, 0u, UINT32_MAX, 0x1p32)
TO_INTEGER(d2ll, long long, double, INT64_MIN, INT64_MIN, INT64_MAX, 0x1p63)
TO_INTEGER(d2ull, unsigned long long, double, 1ull << 63, 0ull, UINT64_MAX, 0x1p64)

static int __nvvm_d2i_lo(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return (int)(uint32_t)u;
}

static int __nvvm_d2i_hi(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return (int)(uint32_t)(u >> 32);
}

static double __nvvm_lohi_i2d(int lo, int hi) {
    uint64_t u = (uint64_t)(uint32_t)hi << 32 | (uint32_t)lo;
    double d;
    memcpy(&d, &u, 8);
    return d;
}

static double half_value(unsigned h) { /* of the finite ones; infinity continues them */
    double v =
        h & 0x7c00 ? ldexp(1024 + (h & 0x3ff), (int)(h >> 10 & 31) - 25) : ldexp(h & 0x3ff, -24);
    return h & 0x8000 ? -v : v;
}

static float half_at(const uint16_t *p) {
    unsigned h = *p, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00)
        return magnitude > 0x7c00 ? NAN : h & 0x8000 ? -INFINITY : INFINITY;
    return (float)half_value(h);
}

/* The nearest, found by search; of two that are as near the even one. */
static void store_half_of_double(uint16_t *p, double x) {
    unsigned low = 0, high = 0x7c00;
    double a = fabs(x);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (half_value(middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double below = a - half_value(low), above = half_value(high) - a;
    *p = (uint16_t)((below < above || (below == above && !(low & 1)) ? low : high) |
                    (signbit(x) ? 0x8000 : 0));
    if (x != x)
        *p = 0x7fff;
}

static void store_half(uint16_t *p, float x) {
    store_half_of_double(p, (double)x);
}

#ifndef __clang__
static uint64_t __builtin_bitreverse64(uint64_t v) {
    uint64_t r = 0;
    for (int i = 0; i < 64; i++)
        r |= (v >> i & 1) << (63 - i);
    return r;
}

static uint32_t __builtin_bitreverse32(uint32_t v) {
    return (uint32_t)(__builtin_bitreverse64(v) >> 32);
}

static uint32_t __builtin_rotateleft32(uint32_t v, int n) {
    return v << n | v >> (32 - n);
}

static uint64_t __builtin_rotateleft64(uint64_t v, int n) {
    return v << n | v >> (64 - n);
}
#endif
#include "ptx/integer.cu"
#include "ptx/floating.cu"
#include "ptx/control.cu"
#pragma GCC diagnostic pop

/* ---- launches ---- */

typedef struct range {
    const void *start;
    size_t size;
    int read_only;
} range;

typedef struct arena {
    range ranges[16];
    int count, stop, polls; /* polls: when it is not 0, stop after so many */
} arena;

static arena all; /* what kernels may reach */

static void *reach(void *user, uint64_t address, size_t size, int write) {
    const arena *a = user;
    for (int i = 0; i < a->count; i++) {
        const range *r = &a->ranges[i];
        uint64_t start = (uintptr_t)r->start;
        if (address >= start && size <= r->size && address - start <= r->size - size) {
            return write && r->read_only ? NULL : (char *)(uintptr_t)r->start + (address - start);
        }
    }
    return NULL;
}

static int stopped(void *user) {
    arena *a = user;
    if (a->polls && !--a->polls)
        return 1;
    return __atomic_load_n(&a->stop, __ATOMIC_ACQUIRE);
}

static void *memory_of(size_t size, int read_only) {
    void *p = calloc(1, size + 16);
    assert_non_null(p);
    assert_true(all.count < 16);
    all.ranges[all.count++] = (range){ p, size, read_only };
    return p;
}

#define NEW(T, n) ((T *)memory_of((n) * sizeof(T), 0))

static void forget_memory(void) {
    while (all.count)
        free((void *)(uintptr_t)all.ranges[--all.count].start);
    all.stop = all.polls = 0;
}

static char *read_text(const char *name) {
    char path[500];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*sptx/%s.ptx", slash ? (int)(slash - __FILE__ + 1) : 0, __FILE__,
             name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    assert_true(n > 0);
    fclose(f);
    return text;
}

static ptx_module *module_of(const char *text) {
    char error[500];
    ptx_module *m = ptx_load(text, error, sizeof error);
    if (!m)
        fail_msg("%s", error);
    return m;
}

static ptx_module *load_file(const char *name) {
    char *text = read_text(name);
    ptx_module *m = module_of(text);
    free(text);
    return m;
}

static char said[600]; /* by the last launch */

static ptx_status launch(const ptx_module *m, const char *name, unsigned blocks, unsigned threads,
                         unsigned shared, const void *const *params) {
    const ptx_function *f = ptx_find(m, name);
    if (!f)
        fail_msg("no kernel %s", name);
    ptx_launch l = { .grid = { blocks, 1, 1 },
                     .block = { threads, 1, 1 },
                     .shared_bytes = shared,
                     .params = params,
                     .memory = { reach, &all },
                     .cancelled = stopped,
                     .cancel_user = &all };
    return ptx_run(f, &l, said, sizeof said);
}

#define PARAMS(...) ((const void *const[]){ __VA_ARGS__ })

static void works(ptx_status s) {
    if (s != PTX_OK)
        fail_msg("%s", said);
}

/* The kernel's items, here. */
#define ON_HOST(blocks, threads, call)                              \
    do {                                                            \
        host_ntid = (threads), host_nctaid = (blocks);              \
        for (host_ctaid = 0; host_ctaid < (blocks); host_ctaid++) { \
            for (host_tid = 0; host_tid < (threads); host_tid++)    \
                call;                                               \
        }                                                           \
    } while (0)

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Random bits, and all pairs of values at the edges. */
static uint64_t interesting(size_t i, uint64_t *state) {
    static const uint64_t edges[] = { 0,
                                      1,
                                      2,
                                      3,
                                      7,
                                      31,
                                      32,
                                      63,
                                      64,
                                      100,
                                      127,
                                      128,
                                      255,
                                      256,
                                      32767,
                                      32768,
                                      65535,
                                      65536,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x100000000,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      0x8000000000000001,
                                      0xffffffffffff8000,
                                      0xffffffffffffff80,
                                      0xffffffff80000000,
                                      0xfffffffffffffffe,
                                      0xffffffffffffffff };
    uint64_t r = next_random(state);
    if (r % 3 == 0)
        return edges[(r >> 8) % (sizeof edges / sizeof edges[0])];
    return r % 3 == 1 ? next_random(state) : next_random(state) >> (i % 60);
}

enum { N = 2000, BLOCKS = 16, THREADS = 128 };

static void fill_integers(void *p, size_t n, size_t element, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        uint64_t v = interesting(i, &seed);
        memcpy((char *)p + i * element, &v, element);
    }
}

static float special_f32(size_t i, uint64_t *state) {
    static const float edges[] = { 0,
                                   -0.0f,
                                   1,
                                   -1,
                                   0.5f,
                                   -0.5f,
                                   1.5f,
                                   2.5f,
                                   -2.5f,
                                   3,
                                   0x1p-126f,
                                   0x1p-149f,
                                   -0x1.8p-140f,
                                   0x1.fffffep127f,
                                   -0x1.fffffep127f,
                                   0x1p31f,
                                   -0x1p31f,
                                   0x1p32f,
                                   0x1p63f,
                                   -0x1p63f,
                                   0x1p64f,
                                   0.49999997f,
                                   8388609,
                                   INFINITY,
                                   -INFINITY,
                                   NAN,
                                   65504,
                                   65520,
                                   1e-8f };
    uint64_t r = next_random(state);
    float f;
    uint32_t u = (uint32_t)(r >> 20);
    if (r % 3 == 0)
        return edges[(r >> 8) % (sizeof edges / sizeof edges[0])];
    if (r % 3 == 1)
        return (float)(int32_t)u / (float)(1u << (i % 30));
    memcpy(&f, &u, 4);
    return f != f ? NAN : f;
}

static double special_f64(size_t i, uint64_t *state) {
    uint64_t r = next_random(state), u = next_random(state);
    double d;
    if (r % 4 == 0)
        return (double)special_f32(i, state);
    if (r % 4 == 1)
        return (double)(int64_t)u / (double)(1ull << (i % 63));
    if (r % 4 == 2)
        return ldexp((double)(int64_t)u, -62 + (int)(r >> 8 & 31) - 16);
    memcpy(&d, &u, 8);
    return d != d ? (double)NAN : d;
}

/* Bit for bit, but any NaN is like another. */
static void same_f32(const float *a, const float *b, size_t n, size_t columns) {
    for (size_t i = 0; i < n; i++) {
        if (a[i] != a[i] && b[i] != b[i])
            continue;
        if (memcmp(&a[i], &b[i], 4))
            fail_msg("item %zu, result %zu: %a, not %a", i / columns, i % columns, (double)a[i],
                     (double)b[i]);
    }
}

static void same_f64(const double *a, const double *b, size_t n, size_t columns) {
    for (size_t i = 0; i < n; i++) {
        if (a[i] != a[i] && b[i] != b[i])
            continue;
        if (memcmp(&a[i], &b[i], 8))
            fail_msg("item %zu, result %zu: %a, not %a", i / columns, i % columns, a[i], b[i]);
    }
}

static void same_bytes(const void *a, const void *b, size_t n, size_t element, size_t columns) {
    for (size_t i = 0; i < n; i++) {
        uint64_t x = 0, y = 0;
        memcpy(&x, (const char *)a + i * element, element);
        memcpy(&y, (const char *)b + i * element, element);
        if (x != y)
            fail_msg("item %zu, result %zu: %llx, not %llx", i / columns, i % columns,
                     (unsigned long long)x, (unsigned long long)y);
    }
}

/* ---- tests: the programs ---- */

#define ARITHMETIC_TEST(T)                                                                \
    static void test_integer_arithmetic_##T(void **state) {                               \
        (void)state;                                                                      \
        ptx_module *m = load_file("integer");                                             \
        T *out = NEW(T, N * 16), *a = NEW(T, N), *b = NEW(T, N),                          \
          *want = calloc(N * 16, sizeof(T));                                              \
        u32 n = N - 3;                                                                    \
        fill_integers(a, N, sizeof(T), 1);                                                \
        fill_integers(b, N, sizeof(T), 2);                                                \
        works(launch(m, "arithmetic_" #T, BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &n))); \
        ON_HOST(BLOCKS, THREADS, arithmetic_##T(want, a, b, n));                          \
        same_bytes(out, want, N * 16, sizeof(T), 16);                                     \
        free(want);                                                                       \
        ptx_unload(m);                                                                    \
    }
ARITHMETIC_TEST(s8)
ARITHMETIC_TEST(u8)
ARITHMETIC_TEST(s16)
ARITHMETIC_TEST(u16)
ARITHMETIC_TEST(s32)
ARITHMETIC_TEST(u32)
ARITHMETIC_TEST(s64)
ARITHMETIC_TEST(u64)

static void test_wide_multiplication_constants_bits_and_comparisons(void **state) {
    (void)state;
    ptx_module *m = load_file("integer");
    u64 *out = NEW(u64, N * 20), *a = NEW(u64, N), *b = NEW(u64, N),
        *want = calloc(N * 20, sizeof *want);
    u32 n = N, *out32 = NEW(u32, N), *want32 = calloc(N, sizeof *want32);
    fill_integers(a, N, 8, 3);
    fill_integers(b, N, 8, 4);
    works(launch(m, "multiply", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &n)));
    ON_HOST(BLOCKS, THREADS, multiply(want, a, b, n));
    same_bytes(out, want, N * 10, 8, 10);
    works(launch(m, "constants", BLOCKS, THREADS, 0, PARAMS(&out, &a, &n)));
    ON_HOST(BLOCKS, THREADS, constants(want, a, n));
    same_bytes(out, want, N * 10, 8, 10);
    works(launch(m, "bits", BLOCKS, THREADS, 0, PARAMS(&out, &a, &n)));
    ON_HOST(BLOCKS, THREADS, bits(want, a, n));
    same_bytes(out, want, N * 20, 8, 20);
    works(launch(m, "compare", BLOCKS, THREADS, 0, PARAMS(&out32, &a, &b, &n)));
    ON_HOST(BLOCKS, THREADS, compare(want32, (const s64 *)a, (const s64 *)b, n));
    same_bytes(out32, want32, N, 4, 1);
    free(want);
    free(want32);
    ptx_unload(m);
}

static void test_floating_point_of_32_bits(void **state) {
    (void)state;
    ptx_module *m = load_file("floating");
    float *out = NEW(float, N * 20), *a = NEW(float, N), *b = NEW(float, N), *c = NEW(float, N),
          *want = calloc(N * 20, sizeof *want);
    u32 n = N;
    uint64_t seed = 5;
    for (size_t i = 0; i < N; i++)
        a[i] = special_f32(i, &seed), b[i] = i % 5 ? special_f32(i, &seed) : a[i],
        c[i] = special_f32(i, &seed);
    works(launch(m, "floating_f32", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &c, &n)));
    ON_HOST(BLOCKS, THREADS, floating_f32(want, a, b, c, n));
    for (size_t i = 0; i < N; i++) { /* which zero the C functions give is not said */
        want[20 * i + 10] =
            a[i] == 0 && b[i] == 0 ? (signbit(a[i]) ? a[i] : b[i]) : want[20 * i + 10];
        want[20 * i + 11] =
            a[i] == 0 && b[i] == 0 ? (signbit(a[i]) ? b[i] : a[i]) : want[20 * i + 11];
    }
    same_f32(out, want, N * 20, 20);
    works(launch(m, "directed_f32", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &n)));
    ON_HOST(BLOCKS, THREADS, directed_f32(want, a, b, n));
    same_f32(out, want, N * 18, 18);
    free(want);
    ptx_unload(m);
}

static void test_floating_point_of_64_bits(void **state) {
    (void)state;
    ptx_module *m = load_file("floating");
    double *out = NEW(double, N * 20), *a = NEW(double, N), *b = NEW(double, N),
           *c = NEW(double, N), *want = calloc(N * 20, sizeof *want);
    u32 n = N;
    uint64_t seed = 6;
    for (size_t i = 0; i < N; i++)
        a[i] = special_f64(i, &seed), b[i] = i % 5 ? special_f64(i, &seed) : a[i],
        c[i] = special_f64(i, &seed);
    works(launch(m, "floating_f64", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &c, &n)));
    ON_HOST(BLOCKS, THREADS, floating_f64(want, a, b, c, n));
    for (size_t i = 0; i < N; i++) {
        want[20 * i + 10] =
            a[i] == 0 && b[i] == 0 ? (signbit(a[i]) ? a[i] : b[i]) : want[20 * i + 10];
        want[20 * i + 11] =
            a[i] == 0 && b[i] == 0 ? (signbit(a[i]) ? b[i] : a[i]) : want[20 * i + 11];
    }
    same_f64(out, want, N * 20, 20);
    works(launch(m, "directed_f64", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &n)));
    ON_HOST(BLOCKS, THREADS, directed_f64(want, a, b, n));
    same_f64(out, want, N * 10, 10);
    free(want);
    ptx_unload(m);
}

static void test_conversions_round_and_saturate(void **state) {
    (void)state;
    ptx_module *m = load_file("floating");
    float *a = NEW(float, N), *narrowed = NEW(float, N * 8),
          *want_narrowed = calloc(N * 8, sizeof *want_narrowed);
    double *b = NEW(double, N), *doubles = NEW(double, N * 20),
           *want_doubles = calloc(N * 20, sizeof *want_doubles);
    s64 *out = NEW(s64, N * 18), *c = NEW(s64, N), *want = calloc(N * 18, sizeof *want);
    u32 n = N;
    uint64_t seed = 7;
    for (size_t i = 0; i < N; i++)
        a[i] = special_f32(i, &seed), b[i] = special_f64(i, &seed);
    fill_integers(c, N, 8, 8);
    works(launch(m, "to_integer", BLOCKS, THREADS, 0, PARAMS(&out, &a, &b, &n)));
    ON_HOST(BLOCKS, THREADS, to_integer(want, a, b, n));
    same_bytes(out, want, N * 18, 8, 18);
    works(launch(m, "from_integer", BLOCKS, THREADS, 0, PARAMS(&doubles, &c, &n)));
    ON_HOST(BLOCKS, THREADS, from_integer(want_doubles, c, n));
    same_f64(doubles, want_doubles, N * 20, 20);
    works(launch(m, "narrow", BLOCKS, THREADS, 0, PARAMS(&narrowed, &b, &n)));
    ON_HOST(BLOCKS, THREADS, narrow(want_narrowed, b, n));
    same_f32(narrowed, want_narrowed, N * 8, 8);
    free(want);
    free(want_doubles);
    free(want_narrowed);
    ptx_unload(m);
}

static void test_halves_of_every_value(void **state) {
    (void)state;

    enum { ALL = 65536 };

    ptx_module *m = load_file("floating");
    u16 *out = NEW(u16, ALL * 6), *a = NEW(u16, ALL), *b = NEW(u16, ALL),
        *want = calloc(ALL * 6, sizeof *want);
    u32 n = ALL;
    uint64_t seed = 9;
    for (size_t i = 0; i < ALL; i++)
        a[i] = (u16)i, b[i] = (u16)next_random(&seed);
    works(launch(m, "halves", ALL / THREADS, THREADS, 0, PARAMS(&out, &a, &b, &n)));
    ON_HOST(ALL / THREADS, THREADS, halves(want, a, b, n));
    for (size_t i = 0; i < ALL * 6; i++) {
        unsigned infinity = i % 6 < 5 ? 0x7c00 : 0x7f80;
        int nan = (out[i] & 0x7fffu) > infinity && (want[i] & 0x7fffu) > infinity;
        if (out[i] != want[i] && !nan)
            fail_msg("item %zu, result %zu: %x, not %x", i / 6, i % 6, out[i], want[i]);
    }
    free(want);
    ptx_unload(m);
}

static void test_control_flow(void **state) {
    (void)state;
    ptx_module *m = load_file("control");
    u32 *out = NEW(u32, N * 4), *in = NEW(u32, N), *want = calloc(N * 4, sizeof *want), n = N,
        seed = 42, count = 3000;
    fill_integers(in, N, 4, 10);
    works(launch(m, "switches", BLOCKS, THREADS, 0, PARAMS(&out, &in, &n)));
    ON_HOST(BLOCKS, THREADS, switches(want, in, n));
    same_bytes(out, want, N, 4, 1);
    works(launch(m, "collatz", BLOCKS, THREADS, 0, PARAMS(&out, &n)));
    ON_HOST(BLOCKS, THREADS, collatz(want, n));
    same_bytes(out, want, N, 4, 1);
    works(launch(m, "random_numbers", BLOCKS, THREADS, 0, PARAMS(&out, &n, &seed)));
    ON_HOST(BLOCKS, THREADS, random_numbers(want, n, seed));
    same_bytes(out, want, N * 4, 4, 4);
    out[0] = want[0] = 0;
    works(launch(m, "primes", 2, 32, 0, PARAMS(&out, &count)));
    ON_HOST(2, 32, primes(want, count));
    assert_int_equal(out[0], want[0]);
    assert_int_equal(out[0], 430);
    free(want);
    ptx_unload(m);
}

static void test_calls_with_structures_recursion_and_function_pointers(void **state) {
    (void)state;
    ptx_module *m = load_file("control");
    double *out = NEW(double, 200), *want = calloc(200, sizeof *want);
    u32 *out32 = NEW(u32, 400), *want32 = calloc(400, sizeof *want32), n = 190;
    struct big b = { { 1, 20, 300, 4000, 50000, 6, 7, 8 } };
    works(launch(m, "calls", 4, 64, 0, PARAMS(&out, &n)));
    ON_HOST(4, 64, calls(want, n));
    same_f64(out, want, 200, 1);
    works(launch(m, "indirect", 4, 64, 0, PARAMS(&out32, &n)));
    ON_HOST(4, 64, indirect(want32, n));
    same_bytes(out32, want32, 200, 4, 1);
    works(launch(m, "structures", 4, 64, 0, PARAMS(&out32, &b, &n)));
    ON_HOST(4, 64, structures(want32, b, n));
    same_bytes(out32, want32, 400, 4, 2);
    assert_int_equal(ptx_param_count(ptx_find(m, "structures")), 3);
    assert_int_equal(ptx_param_size(ptx_find(m, "structures"), 1), 32);
    assert_int_equal(ptx_param_size(ptx_find(m, "structures"), 2), 4);
    assert_null(ptx_find(m, "gcd"));
    free(want);
    free(want32);
    ptx_unload(m);
}

static void test_vector_loads_and_stores(void **state) {
    (void)state;

    enum { COUNT = 100 };

    ptx_module *m = load_file("memory");
    u32 *a = NEW(u32, COUNT * 4), *out = NEW(u32, COUNT * 4), n = COUNT;
    double *d = NEW(double, COUNT * 2), *dout = NEW(double, COUNT * 2);
    u16 *h = NEW(u16, COUNT * 4), *hout = NEW(u16, COUNT * 4);
    u8 *c = NEW(u8, COUNT * 4), *cout = NEW(u8, COUNT * 4);
    float *fout = NEW(float, COUNT * 2);
    fill_integers(a, COUNT * 4, 4, 11);
    fill_integers(h, COUNT * 4, 2, 12);
    fill_integers(c, COUNT * 4, 1, 13);
    for (int i = 0; i < COUNT * 2; i++)
        d[i] = i * 0.37;
    works(launch(m, "vectors", 4, 32, 0,
                 PARAMS(&out, &a, &d, &dout, &h, &hout, &c, &cout, &fout, &n)));
    static const u16 mask16[] = { 0xff, 0xff00, 0xf0f, 1 };
    static const u8 add8[] = { 1, 2, 3, 255 };
    for (unsigned i = 0; i < COUNT * 4; i++) {
        assert_int_equal(out[i], (u32)(a[i] + i % 4 + 1));
        assert_int_equal(hout[i], h[i] ^ mask16[i % 4]);
        assert_int_equal(cout[i], (u8)(c[i] + add8[i % 4]));
    }
    for (int i = 0; i < COUNT; i++) {
        assert_true(dout[2 * i] == d[2 * i] * 2.0 && dout[2 * i + 1] == d[2 * i + 1] * 0.5);
        assert_true(fout[2 * i] == (float)i && fout[2 * i + 1] == -(float)i);
    }
    ptx_unload(m);
}

static void test_tables_keep_their_values_between_launches(void **state) {
    (void)state;
    static const u32 table[] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    static const int global_table[] = { -1, 2, -3, 4, -5, 6 };
    ptx_module *m = load_file("memory");
    double *out = NEW(double, 64);
    u32 *counter = NEW(u32, 1), n = 64;
    for (u32 turn = 0; turn < 3; turn++) {
        works(launch(m, "tables", 1, 64, 0, PARAMS(&out, &counter, &n)));
        for (u32 i = 0; i < n; i++)
            assert_true(out[i] == 2.5 * table[i & 7] + global_table[i % 6]);
        assert_int_equal(*counter, 40 + (turn + 1) * n + 63);
    }
    ptx_unload(m);
}

static void test_generic_pointers_and_initial_values_that_are_addresses(void **state) {
    (void)state;
    ptx_module *m = load_file("memory");
    u32 *out = NEW(u32, 12);
    for (u32 turn = 0; turn < 2; turn++) {
        works(launch(m, "pointers", 1, 4, 0, PARAMS(&out)));
        static const u32 want[] = { 6, 3, 10, 5 };
        for (u32 i = 0; i < 4; i++)
            assert_int_equal(out[i], want[i]);
        assert_int_equal(out[4], 5 + turn);
        assert_true(out[5] == 0xa5a5a5a5 + 0xa5a5a5a5 + 4 || out[5] == 1 + 5);
    }
    ptx_unload(m);
}

static void test_local_arrays_parameters_and_read_only_loads(void **state) {
    (void)state;
    ptx_module *m = load_file("memory");
    u32 *in = NEW(u32, 128), *out = NEW(u32, 128), n = 128;
    fill_integers(in, 128, 4, 14);
    works(launch(m, "local_array", 2, 64, 0, PARAMS(&out, &in, &n)));
    for (u32 i = 0; i < n; i++) {
        u32 keep[16], sum = 0;
        for (u32 k = 0; k < 16; k++)
            keep[k] = in[i] * k;
        for (u32 k = 0; k < in[i] % 40; k++)
            keep[(k * 7 + i) & 15] += keep[(k + in[i]) & 15];
        for (u32 k = 0; k < 16; k++)
            sum = sum * 31 + keep[(k + i) & 15];
        assert_int_equal(out[i], sum);
    }

    struct {
        u32 index;
        double scale;
        u64 counts[3];
    } pair = { 7, 0.5, { 10, 20, 30 } };

    u8 small = 200;
    u16 medium = 60000;
    float f = -0.25f;
    double *d = NEW(double, 128);
    works(launch(m, "structure", 2, 64, 0, PARAMS(&d, &pair, &small, &medium, &f)));
    for (u32 i = 0; i < 128; i++)
        assert_true(d[i] == 7 + 0.5 * (double)pair.counts[i % 3] + 200 + 60000 - 0.25);
    float *x = NEW(float, 128), *y = NEW(float, 128);
    for (u32 i = 0; i < 128; i++)
        x[i] = (float)i * 3, in[i] = (i * 37) % 128;
    works(launch(m, "read_only", 2, 64, 0, PARAMS(&y, &x, &in, &n)));
    for (u32 i = 0; i < 128; i++)
        assert_true(y[i] == x[in[i]] + (float)in[i]);
    ptx_unload(m);
}

#define ATOMICS_TEST(name, T, U)                                                              \
    static void test_atomics_##name(void **state) {                                           \
        (void)state;                                                                          \
        ptx_module *m = load_file("memory");                                                  \
        T *c = NEW(T, 80), w[10] = { 3, 1000, (T)-1, 0, 12345, 5, 5, 1, 0, 100 };             \
        memcpy(c, w, sizeof w);                                                               \
        works(launch(m, "atomics_" #name, 1, 64, 0, PARAMS(&c)));                             \
        for (U t = 0; t < 64; t++) {                                                          \
            w[0] = (T)((U)w[0] + t), w[1] = (T)((U)w[1] - 1), w[2] &= (T) ~((U)1 << (t & 7)), \
            w[3] |= (T)((U)1 << (t & 15));                                                    \
            w[4] ^= (T)(t * 77), w[5] = w[5] > (T)(t - 9) ? w[5] : (T)(t - 9),                \
                                 w[6] = w[6] < (T)(t - 9) ? w[6] : (T)(t - 9);                \
            w[7] = (T)((U)w[7] * 3 + 1), w[8] = 5, w[9] = (T)(w[9] + 2);                      \
            assert_true(c[16 + t] == 0);                                                      \
        }                                                                                     \
        for (int i = 0; i < 10; i++)                                                          \
            assert_true(c[i] == w[i]);                                                        \
        ptx_unload(m);                                                                        \
    }
ATOMICS_TEST(s32, s32, u32)
ATOMICS_TEST(u64, u64, u64)

static void test_atomics_that_wrap_and_of_floating_point(void **state) {
    (void)state;
    ptx_module *m = load_file("memory");
    u32 *c = NEW(u32, 4);
    float *f = NEW(float, 1);
    double *d = NEW(double, 1);
    c[1] = ~0u, c[3] = 3;
    works(launch(m, "atomics_u32", 1, 64, 0, PARAMS(&c)));
    assert_int_equal(c[0], (u32)-1);
    assert_int_equal(c[1], 9);
    assert_int_equal(c[2], 64 % 11);
    u32 dec = 3;
    for (int i = 0; i < 64; i++)
        dec = dec == 0 || dec > 10 ? 10 : dec - 1;
    assert_int_equal(c[3], dec);
    *f = 1;
    works(launch(m, "atomics_floating", 1, 64, 0, PARAMS(&f, &d)));
    assert_true(*f == 17 && *d == 63 * 32);
    ptx_unload(m);
}

static void test_histogram_and_checksum(void **state) {
    (void)state;

    enum { BYTES = 100000 };

    ptx_module *blocks = load_file("block"), *m = load_file("memory");
    u8 *data = NEW(u8, BYTES);
    u32 *bins = NEW(u32, 256), want[256] = { 0 };
    u64 n = BYTES, *sum = NEW(u64, 1), count = BYTES / 16, want_sum = 0;
    uint64_t seed = 15;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (u8)(next_random(&seed) >> (i % 11)), want[data[i]]++;
    assert_int_equal(ptx_static_shared(ptx_find(blocks, "histogram")), 1024);
    works(launch(blocks, "histogram", 4, 256, 0, PARAMS(&bins, &data, &n)));
    same_bytes(bins, want, 256, 4, 1);
    for (size_t i = 0; i < count; i++) {
        u32 v[4];
        memcpy(v, data + 16 * i, 16);
        want_sum += v[0] + (u64)v[1] * 3 + (u64)v[2] * 5 + (u64)v[3] * 7;
    }
    works(launch(m, "checksum", 3, 100, 0, PARAMS(&sum, &data, &count)));
    assert_true(*sum == want_sum);
    ptx_unload(m);
    ptx_unload(blocks);
    forget_memory();
}

static void test_reduction_in_dynamic_shared_memory(void **state) {
    (void)state;
    ptx_module *m = load_file("block");
    float *out = NEW(float, 4), *in = NEW(float, 1000);
    u32 n = 1000;
    for (int i = 0; i < 1000; i++)
        in[i] = (float)i;
    works(launch(m, "reduce", 4, 256, 256 * 4, PARAMS(&out, &in, &n)));
    for (unsigned b = 0; b < 4; b++) {
        float want = (float)b;
        for (unsigned i = b * 256; i < b * 256 + 256 && i < n; i++)
            want += in[i];
        assert_true(out[b] == want);
    }
    assert_int_equal(launch(m, "reduce", 4, 256, 255 * 4, PARAMS(&out, &in, &n)), PTX_BAD_ADDRESS);
    assert_non_null(strstr(said, "thread (255, 0, 0)"));
    assert_non_null(strstr(said, "(shared)"));
    ptx_unload(m);
}

static void test_threads_know_who_they_are(void **state) {
    (void)state;
    ptx_module *m = load_file("block");

    enum { GRID = 2 * 3 * 2, BLOCK = 5 * 4 * 3 };

    u32 *out = NEW(u32, GRID * BLOCK * 3);
    ptx_launch l = {
        .grid = { 2, 3, 2 }, .block = { 5, 4, 3 }, .params = PARAMS(&out), .memory = { reach, &all }
    };
    works(ptx_run(ptx_find(m, "identity"), &l, said, sizeof said));
    for (u32 b = 0; b < GRID; b++) {
        for (u32 t = 0; t < BLOCK; t++) {
            u32 *p = out + (b * BLOCK + t) * 3;
            assert_int_equal(p[0], t % 5 | (t / 5 % 4) << 8 | (t / 20) << 16);
            assert_int_equal(p[1], b % 2 | (b / 2 % 3) << 8 | (b / 6) << 16);
            assert_int_equal(p[2], t + 2);
        }
    }
    ptx_unload(m);
}

static void test_barriers(void **state) {
    (void)state;
    ptx_module *m = load_file("block");
    u32 *out = NEW(u32, 64), n = 61;
    works(launch(m, "barriers", 1, 64, 0, PARAMS(&out)));
    for (u32 t = 0; t < 64; t++)
        assert_int_equal(out[t], 32 + (1 << 8) + (1 << 9) + (t < 16 ? 1 << 16 : 0));
    works(launch(m, "rounds", 1, 64, 0, PARAMS(&out, &n)));
    for (u32 t = 0; t < n; t++)
        assert_int_equal(out[t], (t + 40) % n + 40);
    ptx_unload(m);
}

static void test_a_block_larger_than_declared_is_refused(void **state) {
    (void)state;
    ptx_module *m = load_file("block");
    u32 *out = NEW(u32, 64);
    works(launch(m, "bounded", 1, 64, 0, PARAMS(&out)));
    assert_int_equal(launch(m, "bounded", 1, 65, 0, PARAMS(&out)), PTX_BAD_PROGRAM);
    assert_non_null(strstr(said, ".maxntid"));
    ptx_unload(m);
}

static void test_a_trap_ends_the_launch(void **state) {
    (void)state;
    ptx_module *m = load_file("memory");
    u32 *out = NEW(u32, 64), at = 40;
    memset(out, 0xff, 64 * 4);
    assert_int_equal(launch(m, "trap", 2, 32, 0, PARAMS(&out, &at)), PTX_TRAP);
    assert_non_null(strstr(said, "block (1, 0, 0), thread (8, 0, 0)"));
    assert_int_equal(out[39], 39);
    assert_int_equal(out[41], ~0u);
    ptx_unload(m);
}

/* ---- tests: with other threads ---- */

#define HEAD                                                                                   \
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"     \
    ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .f32 %f<9>; .reg .b64 %d<20>; " \
    ".reg .f64 %g<9>; "                                                                        \
    "ld.param.u64 %d0, [p];\n"
#define BODY_LINE 7 /* the first line of what follows */
#define TAIL "\nret;\n}\n"

typedef struct waiter {
    ptx_module *m;
    const void *params[2];
    ptx_status status;
    const char *kernel;
} waiter;

static void *run_waiter(void *argument) {
    waiter *w = argument;
    char error[300];
    ptx_launch l = { .grid = { 2, 1, 1 },
                     .block = { 8, 1, 1 },
                     .params = w->params,
                     .memory = { reach, &all },
                     .cancelled = stopped,
                     .cancel_user = &all };
    w->status = ptx_run(ptx_find(w->m, w->kernel), &l, error, sizeof error);
    return NULL;
}

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ 0, ms * 1000000 }, NULL);
}

static void test_a_spinning_kernel_sees_what_the_host_writes(void **state) {
    (void)state;
    u32 *flag = NEW(u32, 1), *out = NEW(u32, 1);
    waiter w = { load_file("memory"), { &flag, &out }, PTX_BAD_PROGRAM, "spin" };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_waiter, &w), 0);
    pause_ms(20);
    assert_int_equal(__atomic_load_n(out, __ATOMIC_RELAXED), 0);
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_int_equal(w.status, PTX_OK);
    assert_int_equal(*out, 7);
    ptx_unload(w.m);
}

static ptx_status launch_together(const ptx_module *m, unsigned blocks, unsigned threads,
                                  const void *const *params) {
    ptx_launch l = { .grid = { blocks, 1, 1 },
                     .block = { threads, 1, 1 },
                     .together = 1,
                     .params = params,
                     .memory = { reach, &all },
                     .cancelled = stopped,
                     .cancel_user = &all };
    return ptx_run(ptx_find(m, "k"), &l, said, sizeof said);
}

#define MEET_HEAD                                                        \
    ".version 5.0\n.target sm_60\n.address_size 64\n"                    \
    ".visible .entry k(.param .u64 p0, .param .u32 p1) { .reg .pred %p;" \
    ".reg .b32 %r<6>; .reg .b64 %d; .shared .b32 own;"                   \
    "ld.param.u64 %d,[p0]; ld.param.u32 %r1,[p1]; mov.u32 %r4,%ctaid.x;"

/* Each block counts in its own shared memory, and waits until all blocks have come. */
static void test_blocks_of_a_launch_together_wait_for_one_another(void **state) {
    (void)state;
    ptx_module *m =
        module_of(MEET_HEAD "mov.u32 %r5,0; st.shared.u32 [own],%r5; bar.sync 0;"
                            "atom.shared.add.u32 %r2,[own],1; bar.sync 0;"
                            "atom.global.add.u32 %r2,[%d],1;\n"
                            "L: ld.volatile.global.u32 %r2,[%d]; setp.lt.u32 %p,%r2,%r1; @%p "
                            "bra L; ld.shared.u32 %r3,[own]; atom.global.add.u32 %r2,[%d+4],%r3; "
                            "ret; }");
    for (u32 blocks = 1; blocks <= 5; blocks += 2) {
        u32 *out = NEW(u32, 2);
        u32 n = blocks * 3;
        works(launch_together(m, blocks, 3, PARAMS(&out, &n)));
        assert_true(out[0] == n && out[1] == n * 3);
    }
    ptx_unload(m);
}

static void test_a_failure_of_one_block_ends_those_that_wait_for_it(void **state) {
    (void)state;
    ptx_module *m =
        module_of(MEET_HEAD "setp.eq.u32 %p,%r4,2; @%p trap; atom.global.add.u32 %r2,[%d],1;\n"
                            "L: ld.volatile.global.u32 %r2,[%d]; setp.lt.u32 %p,%r2,%r1; @%p "
                            "bra L; ret; }");
    u32 *out = NEW(u32, 2);
    u32 n = 4;
    assert_int_equal(launch_together(m, 4, 1, PARAMS(&out, &n)), PTX_TRAP);
    assert_non_null(strstr(said, "block (2, 0, 0)"));
    ptx_unload(m);
}

static void test_a_spinning_kernel_can_be_cancelled(void **state) {
    (void)state;
    u32 *flag = NEW(u32, 1), *out = NEW(u32, 1);
    waiter w = { load_file("memory"), { &flag, &out }, PTX_BAD_PROGRAM, "spin" };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_waiter, &w), 0);
    pause_ms(5);
    __atomic_store_n(&all.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_int_equal(w.status, PTX_TRAP);
    all.stop = 1;
    assert_int_equal(launch(w.m, "spin", 1, 1, 0, w.params), PTX_TRAP);
    assert_string_equal(said, "cancelled");
    ptx_module *endless = module_of(HEAD "L: bar.sync 0; bra L;" TAIL);
    all.stop = 0, all.polls = 100;
    assert_int_equal(launch(endless, "k", 1, 2, 0, w.params), PTX_TRAP);
    ptx_unload(endless);
    all.stop = 1;
    u32 *untouched = NEW(u32, 64);
    ptx_module *m = load_file("block");
    assert_int_equal(launch(m, "bounded", 1, 64, 0, PARAMS(&untouched)), PTX_TRAP);
    assert_int_equal(untouched[0], 0);
    ptx_unload(m);
    ptx_unload(w.m);
}

static void test_launches_on_several_threads_share_atomics(void **state) {
    (void)state;
    u32 *flag = NEW(u32, 1), *out = NEW(u32, 1);
    waiter w[4];
    pthread_t threads[4];
    ptx_module *m = load_file("memory");
    for (int i = 0; i < 4; i++) {
        w[i] = (waiter){ m, { &flag, &out }, PTX_BAD_PROGRAM, "wait_for_other_block" };
        assert_int_equal(pthread_create(&threads[i], NULL, run_waiter, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(w[i].status, PTX_OK);
    }
    assert_int_equal(*out, 64);
    ptx_unload(m);
}

/* ---- tests: single instructions ---- */

/* Runs the statements with %d0 pointing to words of 64 bits: the inputs, then the results. */
static u64 *words_of(const char *body, const u64 *in, size_t inputs, size_t results,
                     unsigned threads) {
    static char text[8000];
    u64 *words = NEW(u64, inputs + results);
    snprintf(text, sizeof text, "%s%s%s", HEAD, body, TAIL);
    ptx_module *m = module_of(text);
    if (inputs)
        memcpy(words, in, inputs * sizeof *in);
    works(launch(m, "k", 1, threads, 0, PARAMS(&words)));
    ptx_unload(m);
    return words + inputs;
}

static void check(const char *body, const u64 *in, size_t inputs, const u64 *want, size_t results) {
    const u64 *got = words_of(body, in, inputs, results, 1);
    for (size_t i = 0; i < results; i++) {
        if (got[i] != want[i])
            fail_msg("result %zu: %llx, not %llx", i, got[i], want[i]);
    }
    forget_memory();
}

#define CHECK(body, inputs, ...)                                          \
    check(body, inputs, sizeof(inputs) / 8, (const u64[]){ __VA_ARGS__ }, \
          sizeof((const u64[]){ __VA_ARGS__ }) / 8)
#define WORDS(...) ((const u64[]){ __VA_ARGS__ })

/* Two inputs as %r1 %r2 and %d1 %d2. */
#define TWO_INPUTS                                                                     \
    "ld.global.u32 %r1, [%d0]; ld.global.u32 %r2, [%d0+8]; ld.global.u64 %d1, [%d0]; " \
    "ld.global.u64 %d2, [%d0+8];\n"

static void test_integer_instructions_that_clang_seldom_emits(void **state) {
    (void)state;
    CHECK(TWO_INPUTS
          "sad.u32 %r3, %r1, %r2, 5; st.global.u32 [%d0+16], %r3; sad.s32 %r3, %r1, %r2, 5; "
          "st.global.u32 [%d0+24], %r3;\n"
          "mul24.lo.u32 %r3, %r1, %r2; st.global.u32 [%d0+32], %r3; mul24.hi.s32 %r3, %r1, %r2; "
          "st.global.u32 [%d0+40], %r3;\n"
          "mad24.lo.u32 %r3, %r1, %r2, %r1; st.global.u32 [%d0+48], %r3; prmt.b32 %r3, %r1, %r2, "
          "0x9f21; "
          "st.global.u32 [%d0+56], %r3;\n"
          "prmt.b32.rc8 %r3, %r1, %r2, 1; st.global.u32 [%d0+64], %r3; cnot.b32 %r3, %r1; "
          "st.global.u32 [%d0+72], %r3;\n"
          "lop3.b32 %r3, %r1, %r2, 0x0f0f0f0f, 0xe8; st.global.u32 [%d0+80], %r3; dp4a.u32.u32 "
          "%r3, %r1, %r2, 9; "
          "st.global.u32 [%d0+88], %r3;\n"
          "dp4a.s32.s32 %r3, %r1, %r2, 9; st.global.u32 [%d0+96], %r3;",
          WORDS(0x80123456, 0x00fe0003), 0x80123456 - 0xfe0003 + 5, 0x00fe0003u - 0x80123456u + 5,
          0x123456ull * 0xfe0003ull & 0xffffffff, (u64)(u32)((s64)0x123456 * (s32)0xfffe0003 >> 16),
          (u32)(0x123456ull * 0xfe0003ull + 0x80123456u), 0x1234, 0x34343434, 0,
          (u32)((0x80123456u & 0x00fe0003u) | (0x80123456u & 0x0f0f0f0f) |
                (0x00fe0003u & 0x0f0f0f0f)),
          9 + 0x56 * 3 + 0 + 0x12 * 0xfe, (u32)(9 + 0x56 * 3 + 0x12 * -2));
    CHECK(TWO_INPUTS "shf.l.clamp.b32 %r3, %r1, %r2, 40; st.global.u32 [%d0+16], %r3; "
                     "shf.r.clamp.b32 %r3, %r1, %r2, 40; "
                     "st.global.u32 [%d0+24], %r3;\n"
                     "shf.l.wrap.b32 %r3, %r1, %r2, 40; st.global.u32 [%d0+32], %r3; "
                     "shf.r.wrap.b32 %r3, %r1, %r2, 4; "
                     "st.global.u32 [%d0+40], %r3;\n"
                     "shl.b32 %r3, %r1, 32; st.global.u32 [%d0+48], %r3; shr.s32 %r3, %r1, 99; "
                     "st.global.u32 [%d0+56], %r3;\n"
                     "shr.u64 %d3, %d1, 64; st.global.u64 [%d0+64], %d3; shl.b64 %d3, %d1, 65600; "
                     "st.global.u64 [%d0+72], %d3;\n"
                     "cvt.u16.u32 %h1, %r1; mov.u32 %r4, 65537; shl.b16 %h2, %h1, %r4; "
                     "st.global.u16 [%d0+80], %h2; "
                     "shr.s16 %h2, %h1, 17; st.global.u16 [%d0+88], %h2;",
          WORDS(0x89abcdef, 0x01234567), 0x89abcdef, 0x01234567, 0x23456789, 0x789abcde, 0,
          0xffffffff, 0, 0, 0, 0xffff);
    CHECK(TWO_INPUTS
          "bfe.u32 %r3, %r1, 4, 8; st.global.u32 [%d0+16], %r3; bfe.s32 %r3, %r1, 28, 8; "
          "st.global.u32 [%d0+24], %r3;\n"
          "bfe.s32 %r3, %r1, 0, 0; st.global.u32 [%d0+32], %r3; bfe.s32 %r3, %r1, 40, 4; "
          "st.global.u32 [%d0+40], %r3;\n"
          "bfi.b32 %r3, %r1, %r2, 8, 12; st.global.u32 [%d0+48], %r3; bfi.b64 %d3, %d1, %d2, 60, "
          "200; "
          "st.global.u64 [%d0+56], %d3;\n"
          "bfind.u32 %r3, %r2; st.global.u32 [%d0+64], %r3; bfind.s32 %r3, %r1; st.global.u32 "
          "[%d0+72], %r3; "
          "bfind.shiftamt.u32 %r3, %r2; st.global.u32 [%d0+80], %r3;",
          WORDS(0x89abcdef, 0x01234567), 0xde, 0xfffffff8, 0, 0xffffffff, 0x012def67,
          0xf000000001234567, 24, 30, 7);
    CHECK(TWO_INPUTS "div.u32 %r3, %r1, 0; st.global.u32 [%d0+16], %r3; div.s32 %r3, %r1, -1; "
                     "st.global.u32 [%d0+24], %r3;\n"
                     "rem.s32 %r3, %r1, -1; st.global.u32 [%d0+32], %r3; add.sat.s32 %r3, %r1, "
                     "%r1; st.global.u32 [%d0+40], %r3; "
                     "neg.s32 %r3, %r1; st.global.u32 [%d0+48], %r3;\n"
                     "div.u64 %d3, %d1, 0; st.global.u64 [%d0+56], %d3;",
          WORDS(0x80000000, 1), 0xffffffff, 0x80000000, 0, 0x80000000, 0x80000000, ~0ull);
    CHECK(TWO_INPUTS
          "add.cc.u64 %d3, %d1, %d2; addc.cc.u64 %d4, %d1, 0; addc.u64 %d5, 0, 0; sub.cc.u32 %r3, "
          "%r2, %r1; "
          "subc.u32 %r4, 0, 0;\n"
          "st.global.u64 [%d0+16], %d3; st.global.u64 [%d0+24], %d4; st.global.u64 [%d0+32], %d5; "
          "st.global.u32 [%d0+40], %r3; st.global.u32 [%d0+48], %r4;\n"
          "mad.lo.cc.u32 %r5, %r1, %r1, %r1; madc.hi.u32 %r6, %r1, %r1, 7; st.global.u32 [%d0+56], "
          "%r5; "
          "st.global.u32 [%d0+64], %r6;\n"
          "mad.wide.s32 %d6, %r1, %r1, %d2; mad.wide.u32 %d7, %r1, %r1, %d2; st.global.u64 "
          "[%d0+72], %d6; "
          "st.global.u64 [%d0+80], %d7;",
          WORDS(~0ull, 3), 2, 0, 1, 4, 0xffffffff, 0, 6, 4, (0xffffffffull * 0xffffffffull) + 3);
}

static u64 bits_of(double d) {
    u64 u;
    memcpy(&u, &d, 8);
    return u;
}

static u64 bits_of_f(float f) {
    u32 u;
    memcpy(&u, &f, 4);
    return u;
}

static void test_floating_point_instructions_that_clang_seldom_emits(void **state) {
    (void)state;
    CHECK(
        "ld.global.f32 %f1, [%d0]; ld.global.f32 %f2, [%d0+8]; ld.global.f64 %g1, [%d0+16];\n"
        "copysign.f32 %f3, %f2, %f1; st.global.f32 [%d0+24], %f3; add.rn.sat.f32 %f3, %f1, "
        "0f40000000; "
        "st.global.f32 [%d0+32], %f3;\n"
        "mul.rn.sat.f32 %f3, %f1, %f1; st.global.f32 [%d0+40], %f3; fma.rn.f32 %f3, %f1, %f1, %f2; "
        "st.global.f32 [%d0+48], %f3;\n"
        "mad.rn.f32 %f3, %f1, 2.0, 1.0; st.global.f32 [%d0+56], %f3; rcp.approx.f32 %f3, %f1; "
        "st.global.f32 [%d0+64], %f3;\n"
        "sqrt.approx.f32 %f3, 16.0; st.global.f32 [%d0+72], %f3; div.full.f32 %f3, %f1, %f2; "
        "st.global.f32 [%d0+80], %f3;\n"
        "max.NaN.f32 %f3, %f1, 0f7fc00000; st.global.f32 [%d0+88], %f3; min.f32 %f3, %f1, "
        "0f7fc00000; "
        "st.global.f32 [%d0+96], %f3;\n"
        "mov.b32 %r1, %f1; st.global.u32 [%d0+104], %r1; neg.f64 %g2, %g1; st.global.f64 "
        "[%d0+112], %g2; "
        "cvt.rmi.f64.f64 %g2, %g1; st.global.f64 [%d0+120], %g2;\n"
        "mov.f64 %g3, 0d3ff8000000000000; div.rp.f64 %g2, %g1, %g3; st.global.f64 [%d0+128], %g2; "
        "max.f32 %f3, 0f80000000, 0f00000000; st.global.f32 [%d0+136], %f3;\n"
        "min.f32 %f3, 0f80000000, 0f00000000; st.global.f32 [%d0+144], %f3; "
        "min.f64 %g2, 0d0000000000000000, 0d8000000000000000; st.global.f64 [%d0+152], %g2;\n"
        "max.f64 %g2, 0d0000000000000000, 0d8000000000000000; st.global.f64 [%d0+160], %g2;",
        WORDS(bits_of_f(1.5f), bits_of_f(-0.25f), bits_of(2.5)), bits_of_f(-1.5f), bits_of_f(1),
        bits_of_f(1), bits_of_f(2), bits_of_f(4), bits_of_f(1 / 1.5f), bits_of_f(4), bits_of_f(-6),
        0x7fffffff, bits_of_f(1.5f), bits_of_f(1.5f), bits_of(-2.5), bits_of(2), bits_of(2.5 / 1.5),
        0, 0x80000000, bits_of(-0.0), 0);
    CHECK("ld.global.f32 %f1, [%d0];\n"
          "testp.finite.f32 %p1, %f1; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%d0+8], %r1; "
          "testp.subnormal.f32 %p1, 0f00000001; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%d0+16], "
          "%r1;\n"
          "testp.normal.f64 %p1, 0d0010000000000000; selp.u32 %r1, 1, 0, %p1; st.global.u32 "
          "[%d0+24], %r1; "
          "testp.infinite.f32 %p1, 0fff800000; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%d0+32], "
          "%r1;\n"
          "slct.u32.f32 %r1, 5, 6, %f1; st.global.u32 [%d0+40], %r1; slct.u64.s32 %d1, 7, 8, -1; "
          "st.global.u64 [%d0+48], %d1;\n"
          "set.gt.u32.f32 %r1, %f1, 0f00000000; st.global.u32 [%d0+56], %r1; set.lt.f32.s32 %f2, "
          "-4, 3; "
          "st.global.f32 [%d0+64], %f2;",
          WORDS(bits_of_f(-3)), 1, 1, 1, 1, 6, 8, 0, bits_of_f(1));
}

/* The product of both halves is 1 + 2^-9 + 2^-20, a tie broken by what comes after. */
static void test_arithmetic_of_halves_rounds_once(void **state) {
    (void)state;
    CHECK("mov.b16 %h1, 0x3c01; mov.b16 %h2, 0x3c01;\n"
          "mul.f16 %h3, %h1, %h2; st.global.b16 [%d0+8], %h3; add.f16 %h3, %h1, %h2; st.global.b16 "
          "[%d0+16], %h3; "
          "mov.b16 %h5, 1; sub.rn.f16 %h3, %h1, %h5; st.global.b16 [%d0+24], %h3;\n"
          "mov.b16 %h4, 0x1000; fma.rn.f16 %h3, %h1, %h2, %h4; st.global.b16 [%d0+32], %h3; "
          "mov.b16 %h4, 0x8001; "
          "mov.b16 %h5, 0x1000; fma.rn.f16 %h3, %h1, %h5, %h4; st.global.b16 [%d0+40], %h3;\n"
          "setp.gt.f16 %p1, %h1, %h4; selp.b16 %h3, 1, 2, %p1; st.global.b16 [%d0+48], %h3; "
          "neg.f16 %h3, %h1; "
          "st.global.b16 [%d0+56], %h3; abs.f16 %h3, %h4; st.global.b16 [%d0+64], %h3;\n"
          "cvt.rz.f16.f32 %h3, 0f477fffff; st.global.b16 [%d0+72], %h3; cvt.rp.f16.f32 %h3, "
          "0f33000000; "
          "st.global.b16 [%d0+80], %h3; cvt.rni.s32.f16 %r1, %h1; st.global.u32 [%d0+88], %r1;\n"
          "cvt.rn.f16.u32 %h3, 65519; st.global.b16 [%d0+96], %h3; cvt.rn.f16.s32 %h3, -65520; "
          "st.global.b16 [%d0+104], %h3; "
          "max.f16 %h3, %h1, %h4; st.global.b16 [%d0+112], %h3;",
          WORDS(0), 0x3c02, 0x4001, 0x3c01, 0x3c03, 0x1001, 1, 0xbc01, 1, 0x7bff, 1, 1, 0x7bff,
          0xfc00, 0x3c01);
}

static void test_predicates_combine_and_guard(void **state) {
    (void)state;
    CHECK(TWO_INPUTS
          "setp.lt.and.u32 %p1|%p2, %r1, %r2, 1; setp.ge.or.s32 %p3, %r1, %r2, !%p1; "
          "setp.ne.xor.u32 %p4, %r1, %r2, %p1;\n"
          "selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 1, 0, %p2; selp.u32 %r5, 1, 0, %p3; selp.u32 "
          "%r6, 1, 0, %p4;\n"
          "st.global.v2.u32 [%d0+16], {%r3, %r4}; st.global.v2.u32 [%d0+24], {%r5, %r6};\n"
          "mov.u32 %r7, 10; @%p1 mov.u32 %r7, 20; @!%p1 mov.u32 %r7, 30; @%p2 add.u32 %r7, %r7, 1; "
          "@!%p2 add.u32 %r7, %r7, 2; "
          "st.global.u32 [%d0+32], %r7;\n"
          "not.pred %p5, %p1; and.pred %p6, %p1, %p5; or.pred %p6, %p6, %p1; mov.pred %p7, %p6; "
          "@%p7 st.global.u32 [%d0+40], 77;\n"
          "@%p7 bra NEXT; st.global.u32 [%d0+40], 78;\nNEXT:\n@%p5 bra.uni OVER; st.global.u32 "
          "[%d0+48], 5; OVER:\n"
          "setp.gtu.f32 %p8, 0f7fc00000, 1.0; @%p8 st.global.u32 [%d0+56], 1; setp.hi.u64 %p8, "
          "%d2, %d1; "
          "@%p8 st.global.u32 [%d0+64], 1;",
          WORDS(3, 9), 1, 0, 22, 77, 5, 1, 1);
}

static void test_moves_pack_and_unpack(void **state) {
    (void)state;
    CHECK("ld.global.u64 %d1, [%d0]; mov.b64 {%r1, %r2}, %d1; mov.b64 %d2, {%r2, %r1}; "
          "st.global.u64 [%d0+8], %d2;\n"
          "mov.b32 {%h1, %h2}, %r1; mov.b32 %r3, {%h2, %h1}; st.global.u32 [%d0+16], %r3; mov.b64 "
          "{%h1, %h2, %h3, %h4}, %d1; "
          "mov.b64 %d3, {%h4, %h3, %h2, %h1};\n"
          "st.global.u64 [%d0+24], %d3; mov.b64 {_, %r4}, %d1; st.global.u32 [%d0+32], %r4; "
          "st.global.v4.u16 [%d0+40], {%h4, 7, %h1, %h1};",
          WORDS(0x1122334455667788), 0x5566778811223344, 0x77885566, 0x7788556633441122, 0x11223344,
          0x7788778800071122);
}

static void test_conversions_between_integers(void **state) {
    (void)state;
    CHECK("ld.global.u32 %r1, [%d0]; ld.global.u64 %d1, [%d0]; cvt.u16.u32 %h1, %r1;\n"
          "cvt.s32.s8 %r2, %h1; st.global.u32 [%d0+8], %r2; cvt.u32.u8 %r2, %h1; st.global.u32 "
          "[%d0+16], %r2; "
          "cvt.s64.s16 %d2, %h1; st.global.u64 [%d0+24], %d2;\n"
          "cvt.s8.u32 %r2, %r1; st.global.u32 [%d0+32], %r2; cvt.u8.u32 %h2, %r1; st.global.u16 "
          "[%d0+40], %h2; "
          "cvt.u16.s8 %r2, %r1; st.global.u32 [%d0+48], %r2;\n"
          "cvt.sat.u8.s32 %r2, %r1; st.global.u32 [%d0+56], %r2; cvt.sat.s8.s32 %r2, %r1; "
          "st.global.u32 [%d0+64], %r2; "
          "cvt.sat.u16.u64 %h2, %d1; st.global.u16 [%d0+72], %h2;\n"
          "cvt.sat.s32.u64 %r2, %d1; st.global.u32 [%d0+80], %r2; cvt.s32.s64 %r2, %d1; "
          "st.global.u32 [%d0+88], %r2;\n"
          "cvt.rzi.u8.f32 %r2, 300.7; st.global.u32 [%d0+96], %r2; cvt.rni.s16.f64 %h2, "
          "0dc0e0001000000000; "
          "st.global.u16 [%d0+104], %h2; cvt.rzi.s8.f32 %r2, 0fc0200000; st.global.u32 [%d0+112], "
          "%r2;",
          WORDS(0xffff80f6), 0xfffffff6, 0xf6, 0xffffffffffff80f6, 0xfffffff6, 0xf6, 0xfff6, 0,
          0xffffff80, 0xffff, 0x7fffffff, 0xffff80f6, 255, 0x8000, 0xfffffffe);
}

static void test_addresses_of_all_spaces(void **state) {
    (void)state;
    CHECK(".shared .align 8 .u32 s[2]; .local .align 8 .u32 l[2]; mov.u64 %d1, s; cvta.shared.u64 "
          "%d2, %d1; mov.u64 %d3, l; "
          "cvta.local.u64 %d4, %d3;\n"
          "st.u32 [%d2], 5; st.shared.u32 [s+4], 6; ld.shared.v2.u32 {%r1, %r2}, [%d1]; "
          "st.global.v2.u32 [%d0+8], {%r1, %r2};\n"
          "st.local.u32 [l+4], 9; st.u32 [%d4], 8; ld.v2.u32 {%r1, %r2}, [%d4]; st.global.v2.u32 "
          "[%d0+16], {%r1, %r2};\n"
          "isspacep.shared %p1, %d2; isspacep.global %p2, %d0; isspacep.local %p3, %d2; selp.u32 "
          "%r1, 1, 0, %p1; "
          "selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3;\n"
          "st.global.v4.u32 [%d0+32], {%r1, %r2, %r3, %r3}; cvta.to.shared.u64 %d5, %d2; sub.u64 "
          "%d5, %d5, %d1; "
          "st.global.u64 [%d0+24], %d5;\n"
          "mov.u32 %r4, s; ld.shared.u32 %r5, [%r4+4]; red.shared.add.u32 [%d1], 4; "
          "atom.shared.cas.b32 %r6, [%d1], 9, 12; "
          "atom.exch.b32 %r7, [%d2], 13; add.u32 %r5, %r5, %r7;\n"
          "st.global.v2.u32 [%d0+48], {%r5, %r6}; mov.b64 %d6, p; ld.param.u64 %d7, [%d6]; sub.u64 "
          "%d7, %d7, %d0; "
          "st.global.u64 [%d0+56], %d7;",
          WORDS(0), 5 | 6ull << 32, 8 | 9ull << 32, 0, 1 | 1ull << 32, 0, 18 | 9ull << 32, 0);
}

static void test_branch_tables_and_waiting_instructions(void **state) {
    (void)state;
    const u64 *got = words_of(
        "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; ts: .branchtargets A, B, C, A; brx.idx %r2, "
        "ts;\n"
        "A: mov.u32 %r3, 100; bra END;\nB: mov.u32 %r3, 200; bra END;\nC: mov.u32 %r3, 300;\n"
        "END: nanosleep.u32 20; membar.gl; mul.wide.u32 %d1, %r1, 8; add.u64 %d2, %d0, %d1; "
        "st.global.u32 [%d2], %r3;",
        NULL, 0, 8, 8);
    static const u64 want[] = { 100, 200, 300, 100, 100, 200, 300, 100 };
    assert_memory_equal(got, want, sizeof want);
}

static void test_the_threads_of_a_warp_exchange_values(void **state) {
    (void)state;
    const u64 *got = words_of(
        "mov.u32 %r1, %tid.x; mad.lo.u32 %r2, %r1, 3, 1; setp.lt.u32 %p1, %r1, 40; "
        "setp.gt.u32 %p2, %r1, 3;\n"
        "shfl.sync.down.b32 %r3, %r2, 4, 31, -1; shfl.sync.bfly.b32 %r4|%p3, %r2, 1, 0x1f, "
        "0xffffffff; "
        "shfl.idx.b32 %r5, %r2, 2, 0x181f; shfl.sync.up.b32 %r6|%p4, %r2, 2, 0, -1;\n"
        "vote.sync.ballot.b32 %r7, %p2, -1; vote.sync.all.pred %p5, %p1, -1; vote.sync.any.pred "
        "%p6, %p2, -1; "
        "selp.u32 %r8, 1, 0, %p5; selp.u32 %r9, 2, 0, %p4; selp.u32 %r10, 4, 0, %p6;\n"
        "or.b32 %r8, %r8, %r9; or.b32 %r8, %r8, %r10; bar.warp.sync -1; mul.wide.u32 %d1, %r1, 32; "
        "add.u64 %d2, %d0, %d1;\n"
        "st.global.v4.u32 [%d2], {%r3, %r4, %r5, %r6}; st.global.v2.u32 [%d2+16], {%r7, %r8};",
        NULL, 0, 64 * 4, 64);
    for (u32 t = 0; t < 64; t++) {
        const u32 *p = (const u32 *)(const void *)(got + t * 4);
        u32 base = t & ~31u, lane = t & 31;
        assert_int_equal(p[0], (lane + 4 > 31 ? t : t + 4) * 3 + 1);
        assert_int_equal(p[1], (t ^ 1) * 3 + 1);
        assert_int_equal(p[2], (base + (lane & 24) + 2) * 3 + 1);
        assert_int_equal(p[3], (lane < 2 ? t : t - 2) * 3 + 1);
        assert_int_equal(p[4], t < 32 ? 0xfffffff0 : 0xffffffff);
        assert_int_equal(p[5], (t < 32 ? 1 : 0) | (lane < 2 ? 0 : 2) | 4);
    }
}

/* ---- tests: what is refused ---- */

#define TOP ".version 7.0\n.target sm_80\n.address_size 64\n" /* three lines */

static void refused(const char *body, unsigned line, const char *why) {
    char text[3000], error[500], begin[40];
    snprintf(text, sizeof text, "%s%s%s", HEAD, body, TAIL);
    snprintf(begin, sizeof begin, "line %u: ", line);
    ptx_module *m = ptx_load(text, error, sizeof error);
    if (m)
        fail_msg("not refused: %s", body);
    if (strncmp(error, begin, strlen(begin)) || !strstr(error, why))
        fail_msg("%s\nsaid of: %s", error, body);
}

static void test_bad_programs_are_refused_with_the_line(void **state) {
    (void)state;
    const unsigned L = BODY_LINE;
    refused("\nfoo.b32 %r1, %r2;", L + 1, "unknown instruction foo");
    refused("add.u32 %r1, %r1, 1;\nadd.bar.u32 %r1, %r1, 1;", L + 1,
            "unknown instruction or modifier .bar: add.bar.u32 %r1, %r1, 1;");
    refused("and.u32 %r1, %r1, 1;", L, "unknown instruction");
    refused("setp.lt.b32 %p1, %r1, 1;", L, "unknown instruction");
    refused("add.u64 %d1, %r1, 1;", L, "%r1 is a .b32 register, which .u64 cannot take");
    refused("add.u32 %d1, %r1, 1;", L, "%d1 is a .b64 register");
    refused("add.rn.f32 %f1, %f2, %g1;", L, "%g1 is a .f64 register");
    refused("add.u32 %r1, %f1, 1;", L, "%f1 is a .f32 register");
    refused("mov.u32 %r1, %p1;", L, "%p1 is a .pred register");
    refused("st.global.u32 [%d0], %h1;", L, "%h1 is a .b16 register");
    refused("cvt.u64.u32 %r1, %r2;", L, "%r1 is a .b32 register");
    refused("mul.wide.u32 %r1, %r2, 3;", L, "%r1 is a .b32 register");
    refused("shl.b64 %d1, %d0, %d0;", L, "%d0 is a .b64 register");
    refused("mov.u32 %r1, %r20;", L, "%r20 is not a declared register");
    refused("mov.u32 %r1, %rx;", L, "%rx is not a declared register");
    refused("{ .reg .b32 %x; mov.u32 %x, 1; }\nmov.u32 %r1, %x;", L + 1,
            "%x is not a declared register");
    refused("mov.u32 %r1, 0x100000000;", L, "does not fit");
    refused("add.rn.f32 %f1, %f2, 1;", L, "an integer where a floating-point constant");
    refused("add.u32 %r1, %r2, 0f3f800000;", L, "a floating-point constant where an integer");
    refused("mov.f64 %g1, 0f3f80000;", L, "bad floating-point constant");
    refused("mov.u64 %d1, nothing;", L, "unknown symbol nothing");
    refused("ld.global.u32 %r1, [nothing];", L, "unknown symbol nothing");
    refused("bra NOWHERE;", L, "NOWHERE is not a label");
    refused("L1:\nL1: mov.u32 %r1, 1;", L + 1, "stands twice");
    refused("call other, ();", L, "unknown symbol other");
    refused("ld.global.u32 %r1, [%r2];", L, "cannot be an address");
    refused("st.param.u64 [p], %d0;", L, "a kernel cannot write its parameters");
    refused("st.const.u32 [%d0], %r1;", L, "constant memory cannot be written");
    refused("ld.param.u32 %r1, [p+8];", L, "4 bytes at 8 are not in p, which has 8");
    refused("ld.param.u32 %r1, [p+2];", L, "misaligned");
    refused("ld.global.u64 %d1, [p];", L, "p is in .param");
    refused("add.rn.ftz.f64 %g1, %g1, %g1;", L, "unknown instruction or modifier .ftz");
    refused("ex2.f32 %f1, %f1;", L, "unknown instruction");
    refused("sin.approx.f64 %g1, %g1;", L, "unknown instruction");
    refused("div.approx.f64 %g1, %g1, %g1;", L, "rounding mode");
    refused("div.f32 %f1, %f1, %f1;", L, "div needs a rounding mode");
    refused("rcp.approx.f64 %g1, %g1;", L, "unknown instruction");
    refused("cvt.ftz.u32.u64 %r1, %d1;", L, "unknown instruction");
    refused("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f5, %f6}];", L,
            "unknown instruction tex");
    refused("cvt.f32.u32 %f1, %r1;", L, "needs a rounding mode");
    refused("cvt.rn.f64.f32 %g1, %f1;", L, "takes no rounding mode");
    refused("cvt.u32.f32 %r1, %f1;", L, "unknown instruction");
    refused("add.u32 %r1, %r2;", L, "expected ','");
    refused("add.u32 %r1, %r2, 1, 2;", L, "unexpected ','");
    refused("add.u32 %r1, %r2, 1", L, "unexpected 'ret'");
    refused("@%r1 bra OUT; OUT:", L, "%r1 is a .b32 register");
    refused(".reg .b32 %q<9>; .local .b32 %a[3];\n.nothing 5;", L + 1,
            "unknown directive .nothing");
    refused("ret; } }", L, "unknown directive '}'");
    refused("{ ret;", L + 3, "the function's end is missing");
    refused("/* no end", L, "a comment without an end");
    refused("`", L, "unexpected character");
}

static void module_refused(const char *rest, unsigned line, const char *why) {
    char text[1000], error[500], begin[40];
    snprintf(text, sizeof text, "%s%s", TOP, rest);
    ptx_module *m = ptx_load(text, error, sizeof error);
    snprintf(begin, sizeof begin, "line %u: ", line + 3);
    if (m)
        fail_msg("not refused: %s", rest);
    if (strncmp(error, begin, strlen(begin)) || !strstr(error, why))
        fail_msg("%s\nsaid of: %s", error, rest);
}

static void test_bad_modules_are_refused(void **state) {
    (void)state;
    char error[300];
    assert_null(ptx_load(".entry k() { ret; }", error, sizeof error));
    assert_string_equal(error, "line 1: a module begins with .version: .entry k() { ret; }");
    module_refused(".address_size 32\n", 1, "64-bit");
    module_refused("\nhello", 2, "unknown directive");
    module_refused(".global .u32 x = 5;\n.global .u32 x;", 2, "declared twice");
    module_refused(".global .b8 x[2] = {1, 2, 3};", 1, "more values");
    module_refused(".global .u8 x = 256;", 1, "does not fit");
    module_refused(".global .u64 x = y;", 1, "unknown symbol y");
    module_refused(".extern .global .u32 x;", 1, "other modules");
    module_refused(".entry k() { ret; }\n.entry k() { ret; }", 2, "defined twice");
    module_refused(".func f(.param .b32 a);\n.entry k() {\n.param .b64 b;\ncall f, (b); ret; "
                   "}\n.func f(.param .b32 a) { ret; "
                   "}",
                   4, "does not match f");
    module_refused(".func (.param .b32 r) f() { ret; }\n.entry k() {\ncall f, (); ret; }", 3,
                   "does not match f");
    module_refused(".func f();\n.entry k() { call f, (); ret; }", 1, "unknown symbol f");
    module_refused(".shared .b32 s[];\n", 1, "the size is missing");
    module_refused(".shared .b32 s = 4;\n", 1, "initial values");
}

static ptx_status status_of(const char *body, unsigned threads) {
    static char text[3000];
    u64 *words = NEW(u64, 4);
    snprintf(text, sizeof text, "%s%s%s", HEAD, body, TAIL);
    ptx_module *m = module_of(text);
    ptx_status s = launch(m, "k", 1, threads, 0, PARAMS(&words));
    ptx_unload(m);
    forget_memory();
    return s;
}

static void fails(const char *body, unsigned threads, ptx_status want, unsigned line,
                  const char *why) {
    char begin[50];
    ptx_status s = status_of(body, threads);
    snprintf(begin, sizeof begin, "kernel k, line %u of its PTX, ", line);
    if (s != want || strncmp(said, begin, strlen(begin)) || !strstr(said, why))
        fail_msg("%d: %s\nsaid of: %s", (int)s, said, body);
}

static void test_bad_accesses_are_reported(void **state) {
    (void)state;
    const unsigned L = BODY_LINE;
    fails("\nst.global.u32 [%d0+32], 1;", 1, PTX_BAD_ADDRESS, L + 1, "a write of 4 bytes");
    fails("ld.global.u8 %r1, [%d0+-1];", 1, PTX_BAD_ADDRESS, L, "a read of 1 bytes");
    fails("mov.u64 %d1, 0; ld.global.u32 %r1, [%d1];", 1, PTX_BAD_ADDRESS, L, "at 0x0");
    fails("ld.u64 %d1, [%d0+28];", 1, PTX_MISALIGNED, L,
          "is not a multiple of 8: ld.u64 %d1, [%d0+28];");
    fails("st.global.u16 [%d0+3], 1;", 1, PTX_MISALIGNED, L, "is not a multiple of 2");
    fails("and.b64 %d1, %d0, -16; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1+8];", 1,
          PTX_MISALIGNED, L, "is not a multiple of 16");
    fails("atom.global.add.u32 %r1, [%d0+2], 1;", 1, PTX_MISALIGNED, L, "is not a multiple of 4");
    fails("red.global.add.u32 [%d0+32], 1;", 1, PTX_BAD_ADDRESS, L, "a write");
    fails(".shared .u32 s[4]; mov.u64 %d1, s; st.shared.u32 [%d1+16], 1;", 1, PTX_BAD_ADDRESS, L,
          "(shared)");
    fails(".shared .u32 s[4]; mov.u64 %d1, s; st.global.u32 [%d1], 1;", 1, PTX_BAD_ADDRESS, L,
          "(global)");
    fails(".shared .u32 s[4]; mov.u64 %d1, s; cvta.shared.u64 %d1, %d1; "
          "ld.global.u32 %r1, [%d1];",
          1, PTX_BAD_ADDRESS, L, "(global)");
    fails(".local .u32 l[4]; mov.u64 %d1, l; ld.local.u32 %r1, [%d1+16];", 1, PTX_BAD_ADDRESS, L,
          "(local)");
    fails("mov.b64 %d1, p; ld.param.u64 %d2, [%d1+8];", 1, PTX_BAD_ADDRESS, L, "(param)");
    fails("mov.u64 %d1, 0xc000000000000400; st.u32 [%d1], 1;", 1, PTX_BAD_ADDRESS, L, "(const)");
}

static void test_memory_that_was_never_written_holds_a_pattern(void **state) {
    (void)state;
    const u64 *got = words_of(
        ".shared .u32 s[4]; .local .u32 l[4]; ld.shared.u32 %r1, [s+8]; ld.local.u32 %r2, [l+4]; "
        "st.global.v2.u32 [%d0], {%r1, %r2};\n"
        "st.shared.u32 [s+8], 0; st.local.u32 [l+4], 0;",
        NULL, 0, 1, 1);
    assert_true(*got == 0xa5a5a5a5a5a5a5a5);
}

static void test_a_function_gives_its_local_memory_back(void **state) {
    (void)state;
    u64 *words = NEW(u64, 1);
    ptx_module *m = module_of(
        TOP ".func f(.param .u64 a) { .local .b8 l[8192]; .reg .b64 %d; ld.param.u64 %d, [a]; "
            "st.local.u64 [l+8184], %d; ret; }\n"
            ".entry k(.param .u64 p) { .param .u64 b; .reg .b64 %d; .reg .b32 %r; .reg .pred %p; "
            "ld.param.u64 %d, [p]; st.param.u64 [b], %d;\n"
            "mov.u32 %r, 0; L: call f, (b); add.u32 %r, %r, 1; setp.lt.u32 %p, %r, 10000; @%p bra "
            "L; ret; }");
    works(launch(m, "k", 1, 1, 0, PARAMS(&words)));
    ptx_unload(m);
}

static void test_memory_that_is_read_only_cannot_be_written(void **state) {
    (void)state;
    u64 *words = memory_of(8, 1);
    ptx_module *m = module_of(HEAD "ld.global.u32 %r1, [%d0]; st.global.u32 [%d0+4], %r1;" TAIL);
    assert_int_equal(launch(m, "k", 1, 1, 0, PARAMS(&words)), PTX_BAD_ADDRESS);
    assert_non_null(strstr(said, "a write of 4 bytes"));
    ptx_unload(m);
}

static void test_variables_have_bounds(void **state) {
    (void)state;
    char error[300];
    u64 *words = NEW(u64, 1);
    ptx_module *m = module_of(
        TOP ".global .u32 a[2]; .global .u32 b[2]; .const .u32 c[2] = {7, 8};\n"
            ".entry in(.param .u64 p) { .reg .b32 %r<4>; .reg .b64 %d<4>; mov.u64 %d1, a; "
            "ld.global.u32 %r1, [%d1+4]; ret; }\n"
            ".entry over(.param .u64 p) { .reg .b32 %r<4>; .reg .b64 %d<4>; mov.u64 %d1, a; "
            "ld.global.u32 %r1, [%d1+8]; ret; }\n"
            ".entry constant(.param .u64 p) { .reg .b32 %r<4>; .reg .b64 %d<4>; mov.u64 %d1, c; "
            "ld.const.u32 %r1, [%d1+8]; ret; }\n");
    assert_int_equal(launch(m, "in", 1, 1, 0, PARAMS(&words)), PTX_OK);
    assert_int_equal(launch(m, "over", 1, 1, 0, PARAMS(&words)), PTX_BAD_ADDRESS);
    assert_int_equal(launch(m, "constant", 1, 1, 0, PARAMS(&words)), PTX_BAD_ADDRESS);
    ptx_unload(m);
    assert_null(
        ptx_load(TOP ".const .u32 c[2];\n.entry k() { .reg .b32 %r;\nld.const.u32 %r, [c+8]; ret; "
                     "}",
                 error, sizeof error));
    assert_non_null(strstr(error, "line 6: 4 bytes at 8 are not in c"));
}

static void test_registers_that_were_never_written_are_reported(void **state) {
    (void)state;
    const unsigned L = BODY_LINE;
    fails("\nadd.u32 %r1, %r2, 1;", 1, PTX_BAD_PROGRAM, L + 1,
          "register %r2 is read before it is written");
    fails("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @!%p1 mov.u32 %r2, 5;\nst.global.u32 "
          "[%d0], %r2;",
          8, PTX_BAD_PROGRAM, L + 1, "thread (3, 0, 0): register %r2");
    fails("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 bra X; mov.u64 %d1, 5; X: mov.u64 "
          "%d2, %d1; "
          "mov.u64 %d3, %d2;\nst.global.u64 [%d0], %d3;",
          8, PTX_BAD_PROGRAM, L + 1, "thread (3, 0, 0): register %d3");
    fails("ld.global.u32 %r1, [%d5];", 1, PTX_BAD_PROGRAM, L, "register %d5");
    fails("st.global.v2.u32 [%d0], {%r0, %r1};", 1, PTX_BAD_PROGRAM, L, "before it is written");
    fails("@%p1 st.global.u32 [%d0], 1;", 1, PTX_BAD_PROGRAM, L, "register %p1");
    /* Written in the first round of a loop, read in the second; written on both ways; only
       copied. */
    assert_int_equal(status_of("mov.u32 %r1, 0; setp.ne.u32 %p2, %r1, 0; AGAIN: @!%p2 bra SKIP; "
                               "st.global.u32 [%d0], %r2; "
                               "SKIP: mov.u32 %r2, 7; add.u32 %r1, %r1, 1;\n"
                               "setp.lt.u32 %p2, %r1, 3; @%p2 bra AGAIN;",
                               1),
                     PTX_OK);
    assert_int_equal(status_of("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 mov.u32 %r2, 5; "
                               "@!%p1 mov.u32 %r2, 6; "
                               "st.global.u32 [%d0], %r2;",
                               8),
                     PTX_OK);
    assert_int_equal(status_of("mov.u32 %r1, %r2;", 1), PTX_OK);
}

static void test_barrier_divergence_is_reported(void **state) {
    (void)state;
    const unsigned L = BODY_LINE;
    const char *first = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; ";
    char body[500];
    snprintf(body, sizeof body, "%s@%%p1 bra X;\nbar.sync 0; bra Y;\nX: bar.sync 1; Y:", first);
    fails(body, 8, PTX_BAD_PROGRAM, L + 1, "8 of 8 threads wait for ever");
    snprintf(body, sizeof body, "%s@%%p1 bra X;\nbar.sync 0; bra Y;\nX: bar.sync 0; Y:", first);
    fails(body, 8, PTX_BAD_PROGRAM, L + 2, "barrier divergence");
    snprintf(body, sizeof body, "%s@%%p1 bra X;\nbarrier.sync 0; bra Y;\nX: bar.sync 0; Y:", first);
    fails(body, 8, PTX_BAD_PROGRAM, L + 2, "barrier divergence");
    snprintf(body, sizeof body,
             "%s@%%p1 bra X;\nbarrier.sync 0; bra Y;\nX: barrier.sync 0; Y:", first);
    assert_int_equal(status_of(body, 8), PTX_OK);
    snprintf(
        body, sizeof body,
        "%s@%%p1 bra X;\nbarrier.sync.aligned 0; bra Y;\nX: barrier.sync.aligned 0; Y:", first);
    fails(body, 8, PTX_BAD_PROGRAM, L + 2, "barrier divergence");
    snprintf(body, sizeof body, "%s@%%p1 ret;\nbar.sync 0, 32;", first);
    fails(body, 32, PTX_BAD_PROGRAM, L + 1, "31 of 32 threads wait for ever");
    snprintf(body, sizeof body, "%s@%%p1 ret;\nbar.sync 0;", first);
    assert_int_equal(status_of(body, 8), PTX_OK);
    snprintf(body, sizeof body, "%s@%%p1 bra X;\nbar.sync 2, 32; ret;\nX: bar.arrive 2, 32;",
             first);
    assert_int_equal(status_of(body, 32), PTX_OK);
    fails("mov.u32 %r1, 40; bar.sync 0, %r1;", 64, PTX_BAD_PROGRAM, L,
          "40 threads are not a multiple of 32");
    fails("mov.u32 %r1, 16; bar.sync %r1;", 1, PTX_BAD_PROGRAM, L, "no barrier 16");
    snprintf(
        body, sizeof body,
        "%s@%%p1 bra X; \nvote.sync.any.pred %%p2, %%p1, -1; bra Y;\nX: bar.sync 0; Y:", first);
    fails(body, 8, PTX_BAD_PROGRAM, L + 1, "wait for ever");
}

static void test_bad_launches_are_reported(void **state) {
    (void)state;
    u64 *words = NEW(u64, 1);
    ptx_module *m = module_of(HEAD "mov.u32 %r1, 1;" TAIL);
    assert_int_equal(launch(m, "k", 0, 1, 0, PARAMS(&words)), PTX_BAD_PROGRAM);
    assert_int_equal(launch(m, "k", 1, 0, 0, PARAMS(&words)), PTX_BAD_PROGRAM);
    assert_int_equal(launch(m, "k", 1, 1025, 0, PARAMS(&words)), PTX_BAD_PROGRAM);
    works(launch(m, "k", 1, 1024, 0, PARAMS(&words)));
    assert_null(ptx_find(m, "other"));
    ptx_unload(m);
    m = module_of(TOP
                  ".func f(.param .u64 a) {\n.param .u64 b; .reg .b64 %d; ld.param.u64 %d, [a]; "
                  "st.param.u64 [b], %d;\ncall f, (b); ret; }\n"
                  ".entry k(.param .u64 p) { .param .u64 b; .reg .b64 %d; ld.param.u64 %d, [p]; "
                  "st.param.u64 [b], %d; "
                  "call f, (b); ret; }");
    assert_int_equal(launch(m, "k", 1, 1, 0, PARAMS(&words)), PTX_BAD_PROGRAM);
    assert_non_null(strstr(said, "line 6"));
    assert_non_null(strstr(said, "nested too deep"));
    ptx_unload(m);
}

static int after_test(void **state) { /* a test that failed has left its memory */
    (void)state;
    forget_memory();
    return 0;
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, after_test)
    const struct CMUnitTest tests[] = {
        TEST(test_integer_arithmetic_s8),
        TEST(test_integer_arithmetic_u8),
        TEST(test_integer_arithmetic_s16),
        TEST(test_integer_arithmetic_u16),
        TEST(test_integer_arithmetic_s32),
        TEST(test_integer_arithmetic_u32),
        TEST(test_integer_arithmetic_s64),
        TEST(test_integer_arithmetic_u64),
        TEST(test_wide_multiplication_constants_bits_and_comparisons),
        TEST(test_floating_point_of_32_bits),
        TEST(test_floating_point_of_64_bits),
        TEST(test_conversions_round_and_saturate),
        TEST(test_halves_of_every_value),
        TEST(test_control_flow),
        TEST(test_calls_with_structures_recursion_and_function_pointers),
        TEST(test_vector_loads_and_stores),
        TEST(test_tables_keep_their_values_between_launches),
        TEST(test_generic_pointers_and_initial_values_that_are_addresses),
        TEST(test_local_arrays_parameters_and_read_only_loads),
        TEST(test_atomics_s32),
        TEST(test_atomics_u64),
        TEST(test_atomics_that_wrap_and_of_floating_point),
        TEST(test_histogram_and_checksum),
        TEST(test_reduction_in_dynamic_shared_memory),
        TEST(test_threads_know_who_they_are),
        TEST(test_barriers),
        TEST(test_a_block_larger_than_declared_is_refused),
        TEST(test_a_trap_ends_the_launch),
        TEST(test_a_spinning_kernel_sees_what_the_host_writes),
        TEST(test_blocks_of_a_launch_together_wait_for_one_another),
        TEST(test_a_failure_of_one_block_ends_those_that_wait_for_it),
        TEST(test_a_spinning_kernel_can_be_cancelled),
        TEST(test_launches_on_several_threads_share_atomics),
        TEST(test_integer_instructions_that_clang_seldom_emits),
        TEST(test_floating_point_instructions_that_clang_seldom_emits),
        TEST(test_arithmetic_of_halves_rounds_once),
        TEST(test_predicates_combine_and_guard),
        TEST(test_moves_pack_and_unpack),
        TEST(test_conversions_between_integers),
        TEST(test_addresses_of_all_spaces),
        TEST(test_branch_tables_and_waiting_instructions),
        TEST(test_the_threads_of_a_warp_exchange_values),
        TEST(test_bad_programs_are_refused_with_the_line),
        TEST(test_bad_modules_are_refused),
        TEST(test_bad_accesses_are_reported),
        TEST(test_memory_that_was_never_written_holds_a_pattern),
        TEST(test_a_function_gives_its_local_memory_back),
        TEST(test_memory_that_is_read_only_cannot_be_written),
        TEST(test_variables_have_bounds),
        TEST(test_registers_that_were_never_written_are_reported),
        TEST(test_barrier_divergence_is_reported),
        TEST(test_bad_launches_are_reported),
    };
    return cmocka_run_group_tests_name("ptx", tests, NULL, NULL);
}
