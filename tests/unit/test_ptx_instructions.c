/* Single instructions of the PTX interpreter, above all those that the PTX ISA does not define to
   the last bit: each row of a table is an instruction, run on many operands, and a C function that
   says what it computes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin/ptx.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { ITEMS = 512, OPERANDS = 3 };

/* ---- numbers ---- */

static float float_of(uint64_t v) {
    uint32_t bits = (uint32_t)v;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint64_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return f != f ? 0x7fffffff : bits;
}

static double double_of(uint64_t v) {
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
}

static uint64_t bits_of_double(double d) {
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

/* Subnormal numbers as zero. */
static float flush(float f) {
    return f == f && fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Operands: the edges of a type first, then random bits, of floats also random values around 1. */
static uint64_t operand(char type, size_t i, uint64_t *state) {
    static const float floats[] = { 0,       -0.0f,     1,          -1,        2,
                                    0.5f,    3.5f,      -2.5f,      INFINITY,  -INFINITY,
                                    NAN,     0x1p-149f, -0x1p-130f, 0x1p-126f, 0x1.fffffep127f,
                                    -100.25f };
    static const uint64_t words[] = { 0,
                                      1,
                                      2,
                                      31,
                                      32,
                                      63,
                                      64,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      ~0ull };
    size_t floats_count = sizeof floats / sizeof *floats;
    size_t words_count = sizeof words / sizeof *words;
    uint64_t random = next_random(state);
    if (type == 'f' && i < floats_count)
        return bits_of_float(floats[i]);
    if (type == 'g' && i < floats_count)
        return bits_of_double((double)floats[i]);
    if (type == 'f' && i % 2)
        return bits_of_float((float)((double)(int64_t)random * 0x1p-61));
    if (type == 'g' && i % 2)
        return bits_of_double((double)(int64_t)random * 0x1p-61);
    if (type == 'h' || type == 'H') /* finite halves, one or two */
        return random & 0x3fff3fff & (type == 'h' ? 0xffff : 0xffffffff);
    return i < words_count ? words[i] : random;
}

/* ---- launches ---- */

typedef struct memory {
    uint64_t in[ITEMS][OPERANDS];
    uint64_t out[ITEMS];
} memory;

static memory data;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    uint64_t start = (uint64_t)(uintptr_t)user;
    (void)write;
    if (address < start || address - start > sizeof data - size)
        return NULL;
    return (void *)(uintptr_t)address;
}

static void run_text(const char *text, unsigned threads) {
    char error[500];
    uint64_t in = (uint64_t)(uintptr_t)data.in;
    uint64_t out = (uint64_t)(uintptr_t)data.out;
    const void *params[] = { &in, &out };
    ptx_module *m = ptx_load(text, error, sizeof error);
    if (!m)
        fail_msg("%s", error);
    ptx_launch launch = { .grid = { 1, 1, 1 },
                          .block = { threads, 1, 1 },
                          .params = params,
                          .memory = { reach, &data } };
    if (ptx_run(ptx_find(m, "k"), &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s", error);
    ptx_unload(m);
}

#define HEAD                                                                                    \
    ".version 7.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 in, .param .u64 out) " \
    "{\n.reg .b64 %in, %out, %at; .reg .b32 %t, %u, %v; .reg .pred %p, %q;\n"                   \
    "ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x;\n"

static const char *type_of(char letter) {
    return letter == 'f'                    ? "f32"
           : letter == 'g'                  ? "f64"
           : letter == 'r' || letter == 'H' ? "b32"
           : letter == 'h'                  ? "b16"
                                            : "b64";
}

/* Runs an instruction with the result %z and the operands %a, %b, %c for all items. Types: f f32,
   g f64, r b32, d b64, h f16 in b16, H two f16 in b32; the result's is the first. */
static void run_instruction(const char *instruction, const char *types) {
    char text[2000];
    uint64_t state = 7;
    size_t n = (size_t)snprintf(text, sizeof text, "%s%s.reg .%s %%z;\n", HEAD,
                                "mul.wide.u32 %at, %t, 24; add.s64 %in, %in, %at;\n"
                                "mul.wide.u32 %at, %t, 8; add.s64 %out, %out, %at;\n",
                                type_of(types[0]));
    for (size_t i = 0; types[i + 1]; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              ".reg .%s %%%c; ld.global.%s %%%c, [%%in+%zu];\n",
                              type_of(types[i + 1]), (char)('a' + (char)i), type_of(types[i + 1]),
                              (char)('a' + (char)i), 8 * i);
    snprintf(text + n, sizeof text - n, "%s\nst.global.%s [%%out], %%z;\nret;\n}\n", instruction,
             type_of(types[0]));
    memset(&data, 0, sizeof data);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t k = 0; types[k + 1]; k++)
            data.in[i][k] = operand(types[k + 1], k == 0 ? i : (i * 7 + k) % ITEMS, &state);
    run_text(text, ITEMS);
}

/* ---- approximations ---- */

typedef double (*real_fn)(double a, double b);

static double ex2_of(double a, double b) {
    (void)b;
    return exp2(a);
}

static double lg2_of(double a, double b) {
    (void)b;
    return log2(a);
}

static double sin_of(double a, double b) {
    (void)b;
    return sin(a);
}

static double cos_of(double a, double b) {
    (void)b;
    return cos(a);
}

static double rsqrt_of(double a, double b) {
    (void)b;
    return a == 0 ? copysign((double)INFINITY, a) : 1 / sqrt(a);
}

static double rcp_of(double a, double b) {
    (void)b;
    return 1 / a;
}

static double sqrt_of(double a, double b) {
    (void)b;
    return sqrt(a);
}

static double tanh_of(double a, double b) {
    (void)b;
    return tanh(a);
}

static double quotient_of(double a, double b) {
    return a / b;
}

/* Within one unit of the last place of f32, which is less than the ISA allows of each. */
static void expect_close(const char *instruction, size_t item, double want, int ftz) {
    float got = float_of(data.out[item]);
    float near = (float)want;
    if (ftz)
        near = flush(near);
    int same = got != got ? near != near : got == near && signbit(got) == signbit(near);
    double error = fabs((double)got - want);
    if (!same && !(error <= fabs(want) * 0x1p-23))
        fail_msg("%s of %a, %a: %a, not %a", instruction, (double)float_of(data.in[item][0]),
                 (double)float_of(data.in[item][1]), (double)got, want);
}

static void test_approximations_are_within_a_unit_of_the_last_place(void **state) {
    static const struct {
        const char *name;
        real_fn value;
        int operands;
    } rows[] = {
        { "ex2.approx", ex2_of, 1 },      { "lg2.approx", lg2_of, 1 },
        { "sin.approx", sin_of, 1 },      { "cos.approx", cos_of, 1 },
        { "rsqrt.approx", rsqrt_of, 1 },  { "rcp.approx", rcp_of, 1 },
        { "sqrt.approx", sqrt_of, 1 },    { "tanh.approx", tanh_of, 1 },
        { "div.approx", quotient_of, 2 }, { "div.full", quotient_of, 2 },
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int ftz = 0; ftz < 2; ftz++) {
            char instruction[80];
            if (ftz && !strcmp(rows[r].name, "tanh.approx")) /* has none */
                continue;
            snprintf(instruction, sizeof instruction, "%s%s.f32 %%z, %%a%s;", rows[r].name,
                     ftz ? ".ftz" : "", rows[r].operands == 2 ? ", %b" : "");
            run_instruction(instruction, rows[r].operands == 2 ? "fff" : "ff");
            for (size_t i = 0; i < ITEMS; i++) {
                float a = float_of(data.in[i][0]);
                float b = float_of(data.in[i][1]);
                if (ftz)
                    a = flush(a), b = flush(b);
                expect_close(instruction, i, rows[r].value((double)a, (double)b), ftz);
            }
        }
}

/* Of f64 only the upper half counts. */
static void test_approximations_of_64_bits_use_the_upper_half(void **state) {
    (void)state;
    for (int root = 0; root < 2; root++) {
        run_instruction(root ? "rsqrt.approx.ftz.f64 %z, %a;" : "rcp.approx.ftz.f64 %z, %a;", "gg");
        for (size_t i = 0; i < ITEMS; i++) {
            double a = double_of(data.in[i][0] >> 32 << 32);
            double got = double_of(data.out[i]);
            double want = root ? rsqrt_of(a, 0) : 1 / a;
            assert_int_equal(data.out[i] & 0xffffffff, 0);
            if (fabs(a) < 0x1p-1022 && a == a)
                want = copysign((double)INFINITY, a);
            if (want == want && fabs(want) < 0x1p-1022)
                want = copysign(0.0, want);
            if (!(got != got && want != want) && got != want &&
                !(fabs(got - want) <= fabs(want) * 0x1p-20))
                fail_msg("%a: %a, not %a", a, got, want);
        }
    }
}

/* ---- exact results ---- */

typedef uint64_t (*bits_fn)(const uint64_t *v);

#define F(i) float_of(v[i])
#define Z(i) flush(float_of(v[i]))
#define ROW(name, expression)                        \
    static uint64_t name##_bits(const uint64_t *v) { \
        return (expression);                         \
    }

static float least(float a, float b) {
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}

ROW(add, bits_of_float(F(0) + F(1)))
ROW(sub, bits_of_float(F(0) - F(1)))
ROW(mul, bits_of_float(F(0) * F(1)))
ROW(add64, bits_of_double(double_of(v[0]) + double_of(v[1])))
ROW(mul64, bits_of_double(double_of(v[0]) * double_of(v[1])))
ROW(add_ftz, bits_of_float(flush(Z(0) + Z(1))))
ROW(mul_ftz, bits_of_float(flush(Z(0) * Z(1))))
ROW(fma_ftz, bits_of_float(flush(fmaf(Z(0), Z(1), Z(2)))))
ROW(div_ftz, bits_of_float(flush(Z(0) / Z(1))))
ROW(sqrt_ftz, bits_of_float(flush(sqrtf(Z(0)))))
ROW(min_ftz, bits_of_float(least(Z(0), Z(1))))
ROW(min_nan, F(0) != F(0) || F(1) != F(1) ? 0x7fffffff : bits_of_float(least(F(0), F(1))))
ROW(abs_ftz, v[0] & 0x7f800000 ? v[0] & 0x7fffffff : 0)
ROW(less_ftz, Z(0) < Z(1))
ROW(set_ftz, Z(0) < Z(1) ? 0xffffffff : 0)
ROW(slct_ftz, Z(2) >= 0 ? v[0] & 0xffffffff : v[1] & 0xffffffff)
ROW(widen_ftz, bits_of_double((double)Z(0)))
ROW(rint_ftz, bits_of_float(rintf(Z(0))))
ROW(set_half, (v[0] & 0xffff) == (v[1] & 0xffff) ? 0x3c00 : 0)

static double half_of(uint64_t h) {
    return h & 0x7c00 ? ldexp(1024 + (double)(h & 0x3ff), (int)(h >> 10 & 31) - 25)
                      : ldexp((double)(h & 0x3ff), -24);
}

/* The half that is nearest, found by search; all operands here are positive and small. */
static uint64_t nearest_half(double v) {
    uint64_t low = 0;
    uint64_t high = 0x7bff;
    uint64_t sign = signbit(v) ? 0x8000 : 0;
    v = fabs(v);
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (half_of(middle) <= v)
            low = middle;
        else
            high = middle;
    }
    double below = v - half_of(low);
    double above = half_of(high) - v;
    return sign | (below < above || (below == above && !(low & 1)) ? low : high);
}

typedef double (*half_fn)(double a, double b, double c);

static uint64_t pair_bits(const uint64_t *v, half_fn value) {
    uint64_t result = 0;
    for (int part = 0; part < 32; part += 16) {
        double a = half_of(v[0] >> part & 0xffff);
        double b = half_of(v[1] >> part & 0xffff);
        double c = half_of(v[2] >> part & 0xffff);
        result |= nearest_half(value(a, b, c)) << part;
    }
    return result;
}

/* name_value is the operation on one half, name_pair the one on two. */
#define PAIR(name, expression)                                 \
    static double name##_value(double a, double b, double c) { \
        (void)b, (void)c;                                      \
        return (expression);                                   \
    }                                                          \
    static uint64_t name##_pair(const uint64_t *v) {           \
        return pair_bits(v, name##_value);                     \
    }

PAIR(add, a + b)
PAIR(sub, a - b)
PAIR(mul, (a) * (b))
PAIR(fma, (a * b) + c)
PAIR(max, a > b ? a : b)
PAIR(min, a < b ? a : b)
PAIR(neg, -a)
PAIR(abs, a)

static void test_instructions_give_the_bits_of_c(void **state) {
    static const struct {
        const char *instruction;
        const char *types;
        bits_fn want;
    } rows[] = {
        { "add.f32 %z, %a, %b;", "fff", add_bits },
        { "sub.f32 %z, %a, %b;", "fff", sub_bits },
        { "mul.f32 %z, %a, %b;", "fff", mul_bits },
        { "add.f64 %z, %a, %b;", "ggg", add64_bits },
        { "mul.f64 %z, %a, %b;", "ggg", mul64_bits },
        { "add.ftz.f32 %z, %a, %b;", "fff", add_ftz_bits },
        { "add.rn.ftz.f32 %z, %a, %b;", "fff", add_ftz_bits },
        { "mul.ftz.f32 %z, %a, %b;", "fff", mul_ftz_bits },
        { "fma.rn.ftz.f32 %z, %a, %b, %c;", "ffff", fma_ftz_bits },
        { "div.rn.ftz.f32 %z, %a, %b;", "fff", div_ftz_bits },
        { "sqrt.rn.ftz.f32 %z, %a;", "ff", sqrt_ftz_bits },
        { "min.ftz.f32 %z, %a, %b;", "fff", min_ftz_bits },
        { "min.NaN.f32 %z, %a, %b;", "fff", min_nan_bits },
        { "abs.ftz.f32 %z, %a;", "ff", abs_ftz_bits },
        { "setp.lt.ftz.f32 %p, %a, %b; selp.b32 %z, 1, 0, %p;", "rff", less_ftz_bits },
        { "set.lt.ftz.u32.f32 %z, %a, %b;", "rff", set_ftz_bits },
        { "slct.ftz.b32.f32 %z, %a, %b, %c;", "rrrf", slct_ftz_bits },
        { "cvt.ftz.f64.f32 %z, %a;", "gf", widen_ftz_bits },
        { "cvt.rni.ftz.f32.f32 %z, %a;", "ff", rint_ftz_bits },
        { "set.eq.f16.f16 %z, %a, %b;", "hhh", set_half_bits },
        { "add.f16x2 %z, %a, %b;", "HHH", add_pair },
        { "sub.f16x2 %z, %a, %b;", "HHH", sub_pair },
        { "mul.f16x2 %z, %a, %b;", "HHH", mul_pair },
        { "fma.rn.f16x2 %z, %a, %b, %c;", "HHHH", fma_pair },
        { "max.f16x2 %z, %a, %b;", "HHH", max_pair },
        { "min.f16x2 %z, %a, %b;", "HHH", min_pair },
        { "neg.f16x2 %z, %a;", "HH", neg_pair },
        { "abs.f16x2 %z, %a;", "HH", abs_pair },
        { "{.reg.f32 x; add.rn.f32 x, %a, %b; mov.f32 %z, x; }", "fff", add_bits },
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        run_instruction(rows[r].instruction, rows[r].types);
        for (size_t i = 0; i < ITEMS; i++) {
            uint64_t want = rows[r].want(data.in[i]);
            if (rows[r].types[0] == 'g' && double_of(want) != double_of(want))
                continue; /* NaNs of f64 have the host's bits */
            if (data.out[i] != want)
                fail_msg("%s of %#llx, %#llx, %#llx: %#llx, not %#llx", rows[r].instruction,
                         (unsigned long long)data.in[i][0], (unsigned long long)data.in[i][1],
                         (unsigned long long)data.in[i][2], (unsigned long long)data.out[i],
                         (unsigned long long)want);
        }
    }
}

/* ---- threads ---- */

/* Writes %u of every thread behind an offset of 8 bytes per thread. */
#define STORE_U "mul.wide.u32 %at, %t, 8; add.s64 %at, %out, %at; st.global.u32 [%at], %u; ret; }\n"

static void test_lanes_with_the_same_value_find_each_other(void **state) {
    (void)state;
    memset(&data, 0, sizeof data);
    run_text(HEAD "and.b32 %v, %t, 3; match.any.sync.b32 %u, %v, -1;\n" STORE_U, 64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(data.out[i], 0x11111111u << (i & 3));
    run_text(
        HEAD
        "shr.u32 %v, %t, 5; match.all.sync.b32 %u|%p, %v, -1; selp.b32 %u, %u, 7, %p;\n" STORE_U,
        64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(data.out[i], 0xffffffff);
    run_text(HEAD "match.all.sync.b32 %u|%p, %t, -1; selp.b32 %u, %u, 7, %p;\n" STORE_U, 64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(data.out[i], 7);
}

static void test_lanes_reduce_integers(void **state) {
    static const struct {
        const char *operation;
        uint32_t want;
    } rows[] = { { "add.u32", 32 * 31 / 2 - 32 * 5 },
                 { "min.s32", (uint32_t)-5 },
                 { "max.s32", 26 },
                 { "min.u32", 0 },
                 { "max.u32", (uint32_t)-1 },
                 { "and.b32", 0 },
                 { "or.b32", 0xffffffff } };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char text[1000];
        snprintf(text, sizeof text, "%ssub.u32 %%v, %%t, 5; redux.sync.%s %%u, %%v, -1;\n%s", HEAD,
                 rows[r].operation, STORE_U);
        memset(&data, 0, sizeof data);
        run_text(text, 32);
        for (unsigned i = 0; i < 32; i++)
            if (data.out[i] != rows[r].want)
                fail_msg("%s: %#llx", rows[r].operation, (unsigned long long)data.out[i]);
    }
}

static void test_one_lane_is_elected_and_each_is_active_alone(void **state) {
    (void)state;
    memset(&data, 0, sizeof data);
    run_text(HEAD "elect.sync %u|%p, 0xffffffff; selp.b32 %u, 100, %u, %p;\n" STORE_U, 32);
    for (unsigned i = 0; i < 32; i++)
        assert_int_equal(data.out[i], i ? 0 : 100);
    run_text(HEAD "activemask.b32 %u;\n" STORE_U, 32);
    for (unsigned i = 0; i < 32; i++)
        assert_true(data.out[i] >> i & 1);
}

static void test_atomics_of_all_operations_in_both_memories(void **state) {
    static const struct {
        const char *operation; /* with the operand %u = 1 + the thread's number, of 64 threads */
        const char *type;
        uint64_t before, after;
    } rows[] = {
        { "add", "u32", 5, 5 + 64 * 65 / 2 },
        { "add", "s32", 5, 5 + 64 * 65 / 2 },
        { "min", "u32", 50, 1 },
        { "max", "u32", 50, 64 },
        { "min", "s32", 0xfffffff0, 0xfffffff0 },
        { "max", "s32", 0xfffffff0, 64 },
        { "and", "b32", 0xff, 0 },
        { "or", "b32", 0x100, 0x17f },
        { "xor", "b32", 0, 64 },
        { "add", "u64", 1ull << 40, (1ull << 40) + 64 * 65 / 2 },
        { "min", "u64", 1ull << 40, 1 },
        { "max", "u64", 1ull << 40, 1ull << 40 },
        { "max", "s64", ~0ull, 64 },
        { "and", "b64", 0xff, 0 },
        { "or", "b64", 1ull << 40, (1ull << 40) + 0x7f },
        { "xor", "b64", 0, 64 },
        { "add", "f32", 0x3f800000, 0x45021000 }, /* 2081 = 1 + 64 * 65 / 2 */
        { "add", "f64", 0x3ff0000000000000, 0x40a0420000000000 },
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int shared = 0; shared < 2; shared++)
            for (int returns = 0; returns < 2; returns++) {
                const char *type = rows[r].type;
                int wide = type[1] == '6';
                int real = type[0] == 'f';
                const char *conversion = !wide && !real ? "mov.b32"
                                         : !real        ? "cvt.u64.u32"
                                         : wide         ? "cvt.rn.f64.u32"
                                                        : "cvt.rn.f32.u32";
                char text[3000];
                snprintf(text, sizeof text,
                         "%s.shared .b64 s; .reg .%s %%x, %%y; .reg .b64 %%w;\n"
                         "setp.ne.u32 %%p, %%t, 0; ld.global.b64 %%w, [%%in];\n"
                         "@!%%p st.shared.b64 [s], %%w; @!%%p st.global.b64 [%%out], %%w;\n"
                         "bar.sync 0; add.u32 %%u, %%t, 1; %s %%x, %%u;\n"
                         "%s.%s.%s.%s %s[%s], %%x;\nbar.sync 0;\n%s\nret; }\n",
                         HEAD, type, conversion, returns ? "atom" : "red",
                         shared ? "shared" : "global", rows[r].operation, type,
                         returns ? "%y, " : "", shared ? "s" : "%out",
                         shared ? "ld.shared.b64 %w, [s]; @!%p st.global.b64 [%out], %w;" : "");
                memset(&data, 0, sizeof data);
                data.in[0][0] = rows[r].before;
                run_text(text, 64);
                if (data.out[0] != rows[r].after)
                    fail_msg("%s.%s: %#llx, not %#llx", rows[r].operation, type,
                             (unsigned long long)data.out[0], (unsigned long long)rows[r].after);
            }
}

static void test_atomics_exchange_and_compare(void **state) {
    (void)state;
    memset(&data, 0, sizeof data);
    data.in[0][0] = 0x1111222233334444;
    run_text(HEAD ".reg .b16 %h; .reg .b64 %w;\n"
                  "mov.b16 %h, 7; atom.global.cas.b16 %h, [%in+2], 0x3333, %h; cvt.u32.u16 %u, %h; "
                  "st.global.u32 [%out], %u;\n"
                  "atom.global.cas.b16 %h, [%in], 9, 8; atom.global.cas.b32 %u, [%in+4], "
                  "0x11112222, 5; st.global.u32 [%out+8], %u;\n"
                  "atom.global.exch.b64 %w, [%in], -1; st.global.b64 [%out+16], %w; ret; }\n",
             1);
    assert_int_equal(data.out[0], 0x3333);
    assert_int_equal(data.out[1], 0x11112222);
    assert_true(data.out[2] == 0x0000000500074444);
    assert_true(data.in[0][0] == ~0ull);
}

/* ---- exactness ---- */

static void test_the_first_instruction_that_is_not_exact_is_named(void **state) {
    static const struct {
        const char *instruction;
        const char *why; /* NULL: it is exact */
    } rows[] = {
        { "add.rn.f32 %a, %a, %a;", NULL },
        { "fma.rn.ftz.f32 %a, %a, %a, %a;", NULL },
        { "add.f32 %a, %a, %a;", "add: without .rn ptxas may fuse" },
        { "sub.f32 %a, %a, %a; ex2.approx.f32 %a, %a;", "sub: without .rn ptxas may fuse" },
        { "ex2.approx.f32 %a, %a;", "ex2: an approximation" },
        { "rcp.approx.ftz.f32 %a, %a;", "rcp: an approximation" },
        { "div.full.f32 %a, %a, %a;", "div: an approximation" },
        { "sqrt.rn.f32 %a, %a;", NULL },
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char text[1000];
        char error[200];
        snprintf(text, sizeof text, "%s.reg .f32 %%a; mov.f32 %%a, 0f3f800000;\n%s ret; }\n", HEAD,
                 rows[r].instruction);
        ptx_module *m = ptx_load(text, error, sizeof error);
        assert_non_null(m);
        const char *why = ptx_inexact(m);
        if (!rows[r].why ? why != NULL
                         : !why || !strstr(why, rows[r].why) || strncmp(why, "line 8: ", 8))
            fail_msg("%s: %s", rows[r].instruction, why ? why : "exact");
        ptx_unload(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_approximations_are_within_a_unit_of_the_last_place),
        cmocka_unit_test(test_approximations_of_64_bits_use_the_upper_half),
        cmocka_unit_test(test_instructions_give_the_bits_of_c),
        cmocka_unit_test(test_lanes_with_the_same_value_find_each_other),
        cmocka_unit_test(test_lanes_reduce_integers),
        cmocka_unit_test(test_one_lane_is_elected_and_each_is_active_alone),
        cmocka_unit_test(test_atomics_of_all_operations_in_both_memories),
        cmocka_unit_test(test_atomics_exchange_and_compare),
        cmocka_unit_test(test_the_first_instruction_that_is_not_exact_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
