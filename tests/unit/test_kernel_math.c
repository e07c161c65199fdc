/* The arithmetic of kernels: special values, errors in units in the last place against libm's
   functions of double, and the same bits from this compiler, without and with FMA instructions, and
   from PTX. (tests/compile/kernel_math.c compares other compilers and processors.)
   DS_TEST_ALL_FLOATS=1 takes all floats instead of a sample, and for ds_powf DS_TEST_PAIRS pairs
   (1e9); this takes a quarter of an hour with -O2. DS_TEST_SEED (1) chooses the pairs. */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_math.h"
#include "kernel_math_ptx.gen.h"
#include "ptx_ranges.h"
#include "standin/ptx.h"

/* ---- the functions, as loops ---- */

#define MATH_FN(name) plain_##name
#define MATH_TARGET
#include "kernel_math_loops.h"

#if defined(__x86_64__)
#define MATH_FN(name) fused_##name
#define MATH_TARGET __attribute__((target("avx2,fma")))
#include "kernel_math_loops.h"
#define HAS_FUSED __builtin_cpu_supports("fma")
#else
#define HAS_FUSED 0
#define fused_floats plain_floats
#define fused_doubles plain_doubles
#endif

/* ---- PTX ---- */

typedef struct memory {
    range range[4];
} memory;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    const memory *m = user;
    return ranges_reach(m->range, 4, address, size, write);
}

static ptx_module *load_text(const char *text) {
    char error[256] = "";
    ptx_module *module = ptx_load(text, error, sizeof error);
    if (!module)
        fail_msg("%s", error);
    return module;
}

static ptx_module *load_pieces(const char *const *pieces) {
    static char text[1 << 17];
    size_t used = 0;
    for (; *pieces; pieces++) {
        size_t length = strlen(*pieces);
        assert_true(used + length < sizeof text);
        memcpy(text + used, *pieces, length + 1);
        used += length;
    }
    return load_text(text);
}

/* Long texts are arrays of pieces. */
#define LOAD(ptx) _Generic((ptx), const char * : load_text, default : load_pieces)(ptx)

static void launch(const ptx_module *module, const char *entry, unsigned blocks, unsigned threads,
                   memory *m, const void *const *params) {
    char error[256] = "";
    const ptx_function *f = ptx_find(module, entry);
    ptx_launch l = { .grid = { blocks, 1, 1 },
                     .block = { threads, 1, 1 },
                     .params = params,
                     .memory = { reach, m } };
    assert_non_null(f);
    if (ptx_run(f, &l, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", entry, error);
}

/* Runs function `which` of a list on n items of `size` bytes. */
static void run_ptx(const ptx_module *module, const char *entry, int which, size_t n, size_t size,
                    void *const *in, void *out) {
    uint32_t number = (uint32_t)which, count = (uint32_t)n;
    memory m = { { { in[0], n * size, 0 },
                   { in[1], n * size, 0 },
                   { in[2], n * size, 0 },
                   { out, n * size, 1 } } };
    const void *params[] = { &number, &count, &in[0], &in[1], &in[2], &out };
    launch(module, entry, (unsigned)((n + 63) / 64), 64, &m, params);
}

/* ---- the same bits ---- */

enum { BATCH = 1024 };

static void compare(const char *name, const char *form, size_t i, uint64_t got, uint64_t expected,
                    uint64_t x, uint64_t y) {
    if (got != expected)
        fail_msg("%s, item %zu: %s gives %llx, not %llx, of %llx and %llx", name, i, form,
                 (unsigned long long)got, (unsigned long long)expected, (unsigned long long)x,
                 (unsigned long long)y);
}

static void compare_floats(ptx_module *module, int which, float *const *in) {
    static float plain[BATCH], fused[BATCH], device[BATCH];
    plain_floats(which, BATCH, in, plain);
    if (HAS_FUSED)
        fused_floats(which, BATCH, in, fused);
    if (module)
        run_ptx(module, "math_floats", which, BATCH, 4, (void *const *)in, device);

    for (size_t i = 0; i < BATCH; i++) {
        const char *name = math_float_names[which];
        uint64_t expected = math_float_result(which, plain[i]);
        uint32_t x = dsk__math_float_to_bits(in[0][i]), y = dsk__math_float_to_bits(in[1][i]);
        if (HAS_FUSED)
            compare(name, "FMA", i, math_float_result(which, fused[i]), expected, x, y);
        if (module)
            compare(name, "PTX", i, math_float_result(which, device[i]), expected, x, y);
    }
}

static void compare_doubles(ptx_module *module, int which, double *const *in) {
    static double plain[BATCH], fused[BATCH], device[BATCH];
    plain_doubles(which, BATCH, in, plain);
    if (HAS_FUSED)
        fused_doubles(which, BATCH, in, fused);
    if (module)
        run_ptx(module, "math_doubles", which, BATCH, 8, (void *const *)in, device);

    for (size_t i = 0; i < BATCH; i++) {
        const char *name = math_double_names[which];
        uint64_t expected = math_double_result(plain[i]);
        uint64_t x = dsk__math_double_to_bits(in[0][i]), y = dsk__math_double_to_bits(in[1][i]);
        if (HAS_FUSED)
            compare(name, "FMA", i, math_double_result(fused[i]), expected, x, y);
        if (module)
            compare(name, "PTX", i, math_double_result(device[i]), expected, x, y);
    }
}

/* Only some of the batches are run as PTX, since the interpreter is slow. */
static void test_all_forms_give_the_same_bits(void **state) {
    static float x[BATCH], y[BATCH], z[BATCH];
    static float *const in[] = { x, y, z };
    ptx_module *module = LOAD(ptx_math_floats);
    (void)state;
    for (uint64_t batch = 0; batch < (HARNESS_SLOW ? 10 : 100); batch++) {
        math_float_arguments(batch, BATCH, in);
        for (int which = 0; which < MATH_FLOAT_COUNT; which++)
            compare_floats(batch < 3 ? module : NULL, which, in);
    }
    ptx_unload(module);
}

static void test_doubles_have_the_same_bits_too(void **state) {
    static double x[BATCH], y[BATCH], z[BATCH];
    static double *const in[] = { x, y, z };
    ptx_module *module = LOAD(ptx_math_doubles);
    (void)state;
    for (uint64_t batch = 0; batch < (HARNESS_SLOW ? 10 : 100); batch++) {
        math_double_arguments(batch, BATCH, in);
        for (int which = 0; which < MATH_DOUBLE_COUNT; which++)
            compare_doubles(batch < 3 ? module : NULL, which, in);
    }
    ptx_unload(module);
}

/* ---- special values ---- */

#define NAN_BITS 0x7fc00000u
#define INF 0x7f800000u
#define ONE 0x3f800000u
#define MINUS 0x80000000u

typedef struct special {
    uint32_t x, y, expected;
} special;

static void expect_specials(int which, const special *s, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float x = dsk__math_float_from_bits(s[i].x), y = dsk__math_float_from_bits(s[i].y), r;
        float *const in[] = { &x, &y, &y };
        plain_floats(which, 1, in, &r);
        compare(math_float_names[which], "C", i, dsk__math_float_to_bits(r), s[i].expected, s[i].x,
                s[i].y);
    }
}

#define EXPECT(which, ...)                                               \
    do {                                                                 \
        static const special list[] = { __VA_ARGS__ };                   \
        expect_specials(MATH_##which, list, sizeof list / sizeof *list); \
    } while (0)

static void test_special_values_are_those_of_annex_f(void **state) {
    (void)state;
    EXPECT(expf, { 0, 0, ONE }, { MINUS, 0, ONE }, { INF, 0, INF }, { MINUS | INF, 0, 0 },
           { 0x7fa00000u, 0, NAN_BITS }, { 0xffffffffu, 0, NAN_BITS },
           { 0x42b17217u, 0, 0x7f7fff84u }, /* the largest finite result */
           { 0x42b17218u, 0, INF }, { 0xc2cff1b4u, 0, 1 }, { 0xc2cff1b5u, 0, 0 });
    EXPECT(logf, { 0, 0, MINUS | INF }, { MINUS, 0, MINUS | INF }, { ONE, 0, 0 }, { INF, 0, INF },
           { MINUS | 1, 0, NAN_BITS }, { MINUS | INF, 0, NAN_BITS }, { 0xffc00000u, 0, NAN_BITS },
           { 1, 0, 0xc2ce8ed0u });
    EXPECT(tanhf, { 0, 0, 0 }, { MINUS, 0, MINUS }, { INF, 0, ONE },
           { MINUS | INF, 0, MINUS | ONE }, { 0xffc00001u, 0, NAN_BITS }, { 1, 0, 1 },
           { MINUS | 1, 0, MINUS | 1 });
    EXPECT(sinf, { 0, 0, 0 }, { MINUS, 0, MINUS }, { INF, 0, NAN_BITS },
           { MINUS | INF, 0, NAN_BITS }, { 0xffc00001u, 0, NAN_BITS }, { 1, 0, 1 },
           { MINUS | 1, 0, MINUS | 1 });
    EXPECT(cosf, { 0, 0, ONE }, { MINUS, 0, ONE }, { INF, 0, NAN_BITS },
           { MINUS | INF, 0, NAN_BITS }, { 0xffc00001u, 0, NAN_BITS }, { 1, 0, ONE });
}

/* The cases of pow in C11, F.10.4.4; other numbers for x and y stand for all of their kind. */
static void test_special_powers_are_those_of_annex_f(void **state) {
    enum { HALF = 0x3f000000, TWO = 0x40000000, THREE = 0x40400000, LARGE = 0x4b800000 };

    (void)state;
    EXPECT(powf, { 0, MINUS | THREE, INF }, { MINUS, MINUS | THREE, MINUS | INF },
           { 0, MINUS | TWO, INF }, { MINUS, MINUS | TWO, INF }, { MINUS, MINUS | HALF, INF },
           { 0, MINUS | INF, INF }, { MINUS, MINUS | INF, INF }, { 0, THREE, 0 },
           { MINUS, THREE, MINUS }, { 0, TWO, 0 }, { MINUS, TWO, 0 }, { MINUS, HALF, 0 },
           { MINUS | ONE, INF, ONE }, { MINUS | ONE, MINUS | INF, ONE }, { ONE, NAN_BITS, ONE },
           { ONE, INF, ONE }, { NAN_BITS, 0, ONE }, { NAN_BITS, MINUS, ONE }, { INF, 0, ONE },
           { 0, 0, ONE }, { MINUS | TWO, HALF, NAN_BITS }, { MINUS | TWO, MINUS | HALF, NAN_BITS });
    EXPECT(powf, { HALF, MINUS | INF, INF }, { MINUS | HALF, MINUS | INF, INF },
           { TWO, MINUS | INF, 0 }, { MINUS | TWO, MINUS | INF, 0 }, { HALF, INF, 0 },
           { MINUS | HALF, INF, 0 }, { TWO, INF, INF }, { MINUS | TWO, INF, INF },
           { MINUS | INF, MINUS | THREE, MINUS }, { MINUS | INF, MINUS | TWO, 0 },
           { MINUS | INF, MINUS | HALF, 0 }, { MINUS | INF, THREE, MINUS | INF },
           { MINUS | INF, TWO, INF }, { MINUS | INF, HALF, INF }, { INF, MINUS | HALF, 0 },
           { INF, HALF, INF }, { NAN_BITS, ONE, NAN_BITS }, { TWO, NAN_BITS, NAN_BITS },
           { MINUS | ONE, LARGE, ONE }, { MINUS | ONE, LARGE - 1, MINUS | ONE },
           { MINUS | TWO, THREE, 0xc1000000u }, { MINUS | 1, MINUS | LARGE, INF });
}

static void test_minimum_and_maximum_skip_nan_and_order_zeros(void **state) {
    (void)state;
    EXPECT(fminf, { ONE, NAN_BITS, ONE }, { 0xffa00000u, ONE, ONE }, { 0, MINUS, MINUS },
           { MINUS, 0, MINUS }, { ONE, ONE, ONE }, { MINUS | INF, INF, MINUS | INF }, { 1, 2, 1 });
    EXPECT(fmaxf, { ONE, NAN_BITS, ONE }, { 0xffa00000u, ONE, ONE }, { 0, MINUS, 0 },
           { MINUS, 0, 0 }, { ONE, ONE, ONE }, { MINUS | INF, INF, INF }, { 1, 2, 2 });
    assert_true(ds_fminf(NAN, NAN) != ds_fminf(NAN, NAN));
    assert_true(ds_fmin(NAN, 1.0) == 1.0 && ds_fmin(1.0, NAN) == 1.0);
    assert_true(ds_fmax(NAN, 1.0) == 1.0 && ds_fmax(1.0, NAN) == 1.0);
    assert_true(signbit(ds_fmin(0.0, -0.0)) && signbit(ds_fmin(-0.0, 0.0)));
    assert_true(!signbit(ds_fmax(0.0, -0.0)) && !signbit(ds_fmax(-0.0, 0.0)));
    assert_true(ds_fmin(1.0, 2.0) == 1.0 && ds_fmax(1.0, 2.0) == 2.0);
}

/* ---- errors ---- */

/* The distance of a result from the exact one, in units in the last place of the exact one. */
static double ulps(float got, double exact) {
    if (exact != exact || got != got)
        return (exact != exact) == (got != got) ? 0 : INFINITY;
    if (!signbit(got) != !signbit(exact))
        return INFINITY;
    /* Of an infinity: where the next float would be. */
    double a = fabs((double)got) < 0x1p128 ? fabs((double)got) : 0x1p128;
    double b = fabs(exact) < 0x1p128 ? fabs(exact) : 0x1p128;
    uint64_t exponent = dsk__math_double_to_bits(b) >> 52;
    if (exponent < 1023 - 126)
        exponent = 1023 - 126;
    if (exponent > 1023 + 127)
        exponent = 1023 + 127;
    return fabs(a - b) * dsk__math_double_from_bits((2 * 1023 + 23 - exponent) << 52);
}

static double exact_of(int which, float x, float y) {
    switch (which) {
    case MATH_expf:
        return exp((double)x);
    case MATH_logf:
        return log((double)x);
    case MATH_tanhf:
        return tanh((double)x);
    case MATH_sinf:
        return sin((double)x);
    case MATH_cosf:
        return cos((double)x);
    default:
        return pow((double)x, (double)y);
    }
}

static double largest_error(int which, float *const *in, float *at) {
    static float out[BATCH];
    double most = 0;
    plain_floats(which, BATCH, in, out);
    for (size_t i = 0; i < BATCH; i++) {
        double error = ulps(out[i], exact_of(which, in[0][i], in[1][i]));
        if (error > most)
            most = error, at[0] = in[0][i], at[1] = in[1][i];
    }
    return most;
}

static uint64_t wanted(const char *name, uint64_t otherwise) {
    const char *value = getenv(name);
    return value ? (uint64_t)strtod(value, NULL) : otherwise;
}

static void report(int which, double most, const float *at, uint64_t arguments) {
    if (wanted("DS_TEST_ALL_FLOATS", 0))
        printf("%s: at most %.3f ulp, at %a, %a, of %llu arguments\n", math_float_names[which],
               most, (double)at[0], (double)at[1], (unsigned long long)arguments);
    if (!(most <= 4))
        fail_msg("%s: %g ulp at %a, %a", math_float_names[which], most, (double)at[0],
                 (double)at[1]);
}

static void test_no_error_is_above_4_ulp(void **state) {
    static float x[BATCH], y[BATCH];
    static float *const in[] = { x, y, y };
    uint64_t stride = wanted("DS_TEST_ALL_FLOATS", 0) ? 1 : HARNESS_SLOW ? 200003 : 2999;
    (void)state;
    for (int which = 0; which < MATH_powf; which++) {
        double most = 0;
        float at[2] = { 0, 0 }, now[2] = { 0, 0 };
        uint64_t bits = 0, arguments = 0;
        while (bits >> 32 == 0) {
            for (size_t i = 0; i < BATCH; i++, bits += stride, arguments++)
                x[i] = dsk__math_float_from_bits((uint32_t)bits);
            double error = largest_error(which, in, now);
            if (error > most)
                most = error, at[0] = now[0], at[1] = now[1];
        }
        report(which, most, at, arguments);
    }
}

/* A pair of random bits, a pair with a finite result, x near 1 with a large y, or x of everyday
   size with an integer y. */
static void make_pair(uint64_t *random, float *x, float *y) {
    uint64_t r = math_random(random);
    uint32_t a = (uint32_t)r, b = (uint32_t)(r >> 32);
    *x = dsk__math_float_from_bits(a);
    *y = dsk__math_float_from_bits(b);
    switch (b & 3u) {
    case 1: {
        double w = ((double)(b >> 2) * 0x1p-30 - 0.5) * 302, l = log2(fabs((double)*x));
        *y = l != 0 && l - l == 0 ? (float)(w / l) : *y;
        break;
    }
    case 2:
        *x = dsk__math_float_from_bits(0x3f800000u + (a & 0xffffu) - 0x8000u);
        *y = dsk__math_float_from_bits((b & 0x80ffffffu) + 0x47000000u);
        break;
    case 3:
        *x = dsk__math_float_from_bits((a & 0x87ffffffu) + 0x3c000000u);
        *y = (float)((int)(b >> 2 & 511u) - 256);
        break;
    default:
        break;
    }
}

static void test_no_error_of_powers_is_above_4_ulp(void **state) {
    static float x[BATCH], y[BATCH];
    static float *const in[] = { x, y, y };
    uint64_t pairs = wanted("DS_TEST_ALL_FLOATS", 0) ? wanted("DS_TEST_PAIRS", 1000000000)
                     : HARNESS_SLOW                  ? 100000
                                                     : 1000000;
    uint64_t random = wanted("DS_TEST_SEED", 1), done = 0;
    double most = 0;
    float at[2] = { 0, 0 }, now[2] = { 0, 0 };
    (void)state;
    while (done < pairs) {
        for (size_t i = 0; i < BATCH; i++, done++)
            make_pair(&random, &x[i], &y[i]);
        double error = largest_error(MATH_powf, in, now);
        if (error > most)
            most = error, at[0] = now[0], at[1] = now[1];
    }
    report(MATH_powf, most, at, done);
}

/* Floats whose distance from a multiple of pi/2 is less than 2e-8, where a reduction loses most
   digits; they follow from the continued fractions of 2/pi times powers of 2. And the seam of both
   reductions. */
static void test_arguments_near_multiples_of_pi_are_reduced(void **state) {
    static const float hard[] = { 0x1.2d97c8p2f,  0x1.f9cbe2p7f,   0x1.f9cbe2p8f,   0x1.4665d2p25f,
                                  0x1.47d0fep34f, 0x1.47d0fep35f,  0x1.628d4cp40f,  0x1.0f79a0p57f,
                                  0x1.130930p76f, 0x1.32ede2p85f,  0x1.abb4b0p89f,  0x1.f37c8ap95f,
                                  0x1.f37c8ap97f, 0x1.b08c4ap111f, 0x1.fffffep127f, 0x1.921fb6p0f,
                                  0x1.91fffep11f, 0x1.92p11f,      0x1.920002p11f,  0x1p9f };
    (void)state;
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        assert_true(ulps(ds_sinf(hard[i]), sin((double)hard[i])) <= 4);
        assert_true(ulps(ds_sinf(-hard[i]), sin(-(double)hard[i])) <= 4);
        assert_true(ulps(ds_cosf(hard[i]), cos((double)hard[i])) <= 4);
    }
}

static void test_a_fused_product_is_rounded_once(void **state) {
    static float x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    static float *const in[] = { x, y, z };
    (void)state;
    for (uint64_t batch = 0; batch < (HARNESS_SLOW ? 20 : 200); batch++) {
        math_float_arguments(1000 + batch, BATCH, in);
        for (size_t i = 0; i < BATCH; i += 2) /* cancels most digits */
            z[i] = -(x[i] * y[i]);
        plain_floats(MATH_fmaf, BATCH, in, out);
        for (size_t i = 0; i < BATCH; i++)
            compare("fmaf", "C", i, math_float_result(MATH_fmaf, out[i]),
                    math_float_result(MATH_fmaf, fmaf(x[i], y[i], z[i])),
                    dsk__math_float_to_bits(x[i]), dsk__math_float_to_bits(y[i]));
    }
    assert_true(ds_fma(0x1.0000001p0, 0x1.0000001p0, -1.0) == 0x1.00000008p-27);
}

static void test_roots_are_rounded_correctly(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits >> 32 == 0; bits += 100003) {
        float x = dsk__math_float_from_bits((uint32_t)bits);
        compare("sqrtf", "C", 0, math_float_result(MATH_sqrtf, ds_sqrtf(x)),
                math_float_result(MATH_sqrtf, sqrtf(x)), bits, 0);
    }
    assert_true(ds_sqrt(2.0) == sqrt(2.0) && ds_abs(-2.0) == 2.0 && ds_absf(-2.0f) == 2.0f);
}

static void near(double got, double exact) {
    if (!(fabs(got - exact) <= 1e-5 * fabs(exact)))
        fail_msg("%g, not %g", got, exact);
}

static void test_fast_and_wide_forms_are_near(void **state) {
    (void)state;
    for (int i = 1; i < 1000; i++) {
        float x = (float)i * 0.01f;
        double d = (double)x;
        near((double)ds_expf_fast(x), exp(d));
        near((double)ds_logf_fast(x + 2), log(d + 2));
        near((double)ds_tanhf_fast(x), tanh(d));
        near((double)ds_powf_fast(x, 1.5f), pow(d, 1.5));
        near((double)ds_rsqrtf_fast(x), 1 / sqrt(d));
        near((double)ds_rcpf_fast(x), 1 / d);
        assert_true(ds_sinf_fast(x) == ds_sinf(x) && ds_cosf_fast(x) == ds_cosf(x));
        assert_true(ds_sinf_fast(-x) == ds_sinf(-x) && ds_cosf_fast(-x) == ds_cosf(-x));
        assert_true(ds_exp(d) == exp(d) && ds_log(d) == log(d) && ds_tanh(d) == tanh(d));
        assert_true(ds_sin(d) == sin(d) && ds_cos(d) == cos(d) && ds_pow(d, d) == pow(d, d));
    }
}

/* ---- atomic operations ---- */

static const math_numbers before = {
    .u32 = { 100, 0xf0000000u, 0xf0000000u, 0x1234u, 0x1234u, 0x1234u, 5, 7 },
    .i32 = { 50, 3, 3, 3, -5 },
    .f32 = 1.5f,
    .u64 = { (uint64_t)-1, 5, 5, 7, 8 },
    .f64 = 2.5,
    .block = 20,
};
static const math_numbers after = {
    .u32 = { 84, 0x80000000u, 0xf0000000u, 0x0230u, 0x1ff4u, 0x1dc4u, 77, 78 },
    .i32 = { -50, -1, 3, 3, 3 },
    .f32 = 1.75f,
    .u64 = { ((uint64_t)1 << 40) - 1, 5, (uint64_t)1 << 40, (uint64_t)1 << 40, 8 },
    .f64 = 2.75,
    .block = 4,
};

static void expect_numbers(const math_numbers *got, const math_numbers *expected) {
    assert_memory_equal(got->u32, expected->u32, sizeof got->u32);
    assert_memory_equal(got->i32, expected->i32, sizeof got->i32);
    assert_memory_equal(got->u64, expected->u64, sizeof got->u64);
    assert_true(got->f32 == expected->f32 && got->f64 == expected->f64);
    assert_int_equal(got->block, expected->block);
}

static void test_atomic_operations_return_the_old_value(void **state) {
    math_numbers m = before, old = { 0 };
    (void)state;

    math_use_atomics(&m, &old);

    expect_numbers(&m, &after);
    expect_numbers(&old, &before);
}

static void test_atomic_operations_as_ptx_do_the_same(void **state) {
    math_numbers m = before, old = { 0 }, *pm = &m, *pold = &old;
    memory reachable = { { { &m, sizeof m, 1 }, { &old, sizeof old, 1 } } };
    ptx_module *module = LOAD(ptx_math_atomics);
    (void)state;

    launch(module, "math_atomics", 1, 100, &reachable, (const void *const[]){ &pm, &pold });

    expect_numbers(&m, &after);
    expect_numbers(&old, &before);
    assert_int_equal(m.sum, 99 * 50);
    assert_int_equal(m.last, 99);
    ptx_unload(module);
}

enum { ROUNDS = 20000, THREADS = 4 };

static math_numbers shared;

/* A maximum never falls below a value that a thread has given, nor a minimum rises above it. */
static void *add_many(void *user) {
    int32_t thread = (int32_t)(intptr_t)user, number = 0;
    for (int32_t i = 0; i < ROUNDS; i++) {
        if (ds_atomic_max_u32(&shared.u32[1], (uint32_t)(i * THREADS + thread)) < (uint32_t)number)
            ds_atomic_add_u32(&shared.u32[3], 1);
        if (ds_atomic_min_i32(&shared.i32[0], -i * THREADS - thread) > -number)
            ds_atomic_add_u32(&shared.u32[3], 1);
        number = i * THREADS + thread;
        ds_atomic_add_u32(&shared.u32[0], 1);
        ds_atomic_xor_u32(&shared.u32[2], (uint32_t)i);
        ds_atomic_max_u64(&shared.u64[0], (uint64_t)(i * THREADS + thread) << 32);
        ds_atomic_add_f32(&shared.f32, 1.0f);
        ds_atomic_add_f64(&shared.f64, 0.5);
    }
    return NULL;
}

static void test_no_atomic_operation_of_threads_is_lost(void **state) {
    pthread_t threads[THREADS];
    (void)state;

    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);

    assert_int_equal(shared.u32[0], ROUNDS * THREADS);
    assert_int_equal(shared.u32[1], ROUNDS * THREADS - 1);
    assert_int_equal(shared.u32[2], 0);
    assert_int_equal(shared.u32[3], 0);
    assert_int_equal(shared.i32[0], -ROUNDS * THREADS + 1);
    assert_true(shared.u64[0] == (uint64_t)(ROUNDS * THREADS - 1) << 32);
    assert_true(shared.f32 == ROUNDS * THREADS && shared.f64 == ROUNDS * THREADS / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_forms_give_the_same_bits),
        cmocka_unit_test(test_doubles_have_the_same_bits_too),
        cmocka_unit_test(test_special_values_are_those_of_annex_f),
        cmocka_unit_test(test_special_powers_are_those_of_annex_f),
        cmocka_unit_test(test_minimum_and_maximum_skip_nan_and_order_zeros),
        cmocka_unit_test(test_no_error_is_above_4_ulp),
        cmocka_unit_test(test_no_error_of_powers_is_above_4_ulp),
        cmocka_unit_test(test_arguments_near_multiples_of_pi_are_reduced),
        cmocka_unit_test(test_a_fused_product_is_rounded_once),
        cmocka_unit_test(test_roots_are_rounded_correctly),
        cmocka_unit_test(test_fast_and_wide_forms_are_near),
        cmocka_unit_test(test_atomic_operations_return_the_old_value),
        cmocka_unit_test(test_atomic_operations_as_ptx_do_the_same),
        cmocka_unit_test(test_no_atomic_operation_of_threads_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
