/* The arithmetic of kernels: as a kernel on either driver, each function has the bits that it has
   on the host. On the stand-in the PTX interpreter runs the device form. */
#include "harness.h"
#include "kernels/math.kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- help ---- */

enum { BATCH = 1024, BATCHES = HARNESS_SLOW ? 2 : 4 };

/* Three arrays of arguments and one of results, of BATCH items of 8 bytes, in pinned memory. */
typedef struct arrays {
    ds_stream stream;
    void *in[3];
    void *out;
} arrays;

static arrays arrays_new(void) {
    arrays a;
    ok(ds_stream_create(NULL, &a.stream));
    for (int k = 0; k < 3; k++)
        ok(ds_pinned_alloc(BATCH * sizeof(uint64_t), &a.in[k]));
    ok(ds_pinned_alloc(BATCH * sizeof(uint64_t), &a.out));
    return a;
}

static void arrays_free(arrays *a) {
    for (int k = 0; k < 3; k++)
        ok(ds_pinned_free(a->in[k]));
    ok(ds_pinned_free(a->out));
    ok(ds_stream_destroy(a->stream));
}

static void compare(const char *name, const arrays *a, size_t size, size_t i, uint64_t got,
                    uint64_t expected) {
    uint64_t arguments[3] = { 0, 0, 0 };
    if (got == expected)
        return;
    for (int k = 0; k < 3; k++)
        memcpy(&arguments[k], (const char *)a->in[k] + i * size, size);
    fail_msg("%s, item %zu: %llx, not %llx, of %llx, %llx and %llx", name, i,
             (unsigned long long)got, (unsigned long long)expected,
             (unsigned long long)arguments[0], (unsigned long long)arguments[1],
             (unsigned long long)arguments[2]);
}

/* The functions on the host, as loops. */
#define MATH_FN(name) host_##name
#define MATH_TARGET
#include "../unit/kernel_math_loops.h"

/* ---- the same bits ---- */

typedef ds_result float_launch(ds_stream, size_t, const float *, const float *, const float *,
                               float *);
typedef ds_result double_launch(ds_stream, size_t, const double *, const double *, const double *,
                                double *);
typedef ds_result word_launch(ds_stream, size_t, const uint64_t *, const uint64_t *,
                              const uint64_t *, uint64_t *);

#define X(name, expression) math_##name##_launch,
static float_launch *const float_launches[] = { MATH_FLOATS(X) };
static float_launch *const fast_launches[] = { MATH_FAST(X) };
static double_launch *const double_launches[] = { MATH_DOUBLES(X) };
static word_launch *const word_launches[] = { MATH_INTEGERS(X) };
#undef X

static void test_float_functions_have_the_bits_of_the_host(void **state) {
    static float expected[BATCH];
    (void)state;
    arrays a = arrays_new();
    float *const in[] = { a.in[0], a.in[1], a.in[2] };
    const float *out = a.out;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_float_arguments(500 + batch, BATCH, in);
        for (int which = 0; which < MATH_FLOAT_COUNT; which++) {
            host_floats(which, BATCH, in, expected);

            ok(float_launches[which](a.stream, BATCH, in[0], in[1], in[2], a.out));
            ok(ds_stream_synchronize(a.stream));

            for (size_t i = 0; i < BATCH; i++)
                compare(math_float_names[which], &a, sizeof *out, i,
                        math_float_result(which, out[i]), math_float_result(which, expected[i]));
        }
    }
    arrays_free(&a);
}

static void test_double_functions_have_the_bits_of_the_host(void **state) {
    static double expected[BATCH];
    (void)state;
    arrays a = arrays_new();
    double *const in[] = { a.in[0], a.in[1], a.in[2] };
    const double *out = a.out;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_double_arguments(500 + batch, BATCH, in);
        for (int which = 0; which < MATH_DOUBLE_COUNT; which++) {
            host_doubles(which, BATCH, in, expected);

            ok(double_launches[which](a.stream, BATCH, in[0], in[1], in[2], a.out));
            ok(ds_stream_synchronize(a.stream));

            for (size_t i = 0; i < BATCH; i++)
                compare(math_double_names[which], &a, sizeof *out, i, math_double_result(out[i]),
                        math_double_result(expected[i]));
        }
    }
    arrays_free(&a);
}

static void test_integer_arithmetic_has_the_bits_of_the_host(void **state) {
    static uint64_t expected[BATCH];
    (void)state;
    arrays a = arrays_new();
    uint64_t *const in[] = { a.in[0], a.in[1], a.in[2] };
    const uint64_t *out = a.out;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_integer_arguments(500 + batch, BATCH, in);
        for (int which = 0; which < MATH_INTEGER_COUNT; which++) {
            host_integers(which, BATCH, in, expected);

            ok(word_launches[which](a.stream, BATCH, in[0], in[1], in[2], a.out));
            ok(ds_stream_synchronize(a.stream));

            for (size_t i = 0; i < BATCH; i++)
                compare(math_integer_names[which], &a, sizeof *out, i, out[i], expected[i]);
        }
    }
    arrays_free(&a);
}

/* ---- approximations ---- */

static double fast_exact(int which, double x) {
    switch (which) {
    case MATH_expf_fast:
        return exp(x);
    case MATH_logf_fast:
        return log(x + 1);
    case MATH_tanhf_fast:
        return tanh(x);
    case MATH_sinf_fast:
        return sin(x);
    case MATH_cosf_fast:
        return cos(x);
    case MATH_powf_fast:
        return pow(x, 1.5);
    case MATH_rsqrtf_fast:
        return 1 / sqrt(x);
    default:
        return 1 / x;
    }
}

static void test_fast_functions_are_near_those_of_libm(void **state) {
    (void)state;
    arrays a = arrays_new();
    float *x = a.in[0];
    const float *out = a.out;
    for (int i = 0; i < BATCH; i++)
        x[i] = 1 + 7 * (float)i / (float)BATCH;
    for (int which = 0; which < MATH_FAST_COUNT; which++) {
        ok(fast_launches[which](a.stream, BATCH, x, x, x, a.out));
        ok(ds_stream_synchronize(a.stream));

        for (int i = 0; i < BATCH; i++) {
            double exact = fast_exact(which, (double)x[i]);
            double scale = fabs(exact) > 1 ? fabs(exact) : 1;
            if (!(fabs((double)out[i] - exact) <= 1e-5 * scale))
                fail_msg("%s of %g: %g, not %g", math_fast_names[which], (double)x[i],
                         (double)out[i], exact);
        }
    }
    arrays_free(&a);
}

const struct CMUnitTest tests_kernel_math[] = {
    DS_TEST(test_float_functions_have_the_bits_of_the_host, "kernel: arithmetic"),
    DS_TEST(test_double_functions_have_the_bits_of_the_host, "kernel: arithmetic"),
    DS_TEST(test_integer_arithmetic_has_the_bits_of_the_host, "kernel: arithmetic"),
    DS_TEST(test_fast_functions_are_near_those_of_libm, "kernel: arithmetic"),
};
const size_t tests_kernel_math_count = sizeof tests_kernel_math / sizeof tests_kernel_math[0];
