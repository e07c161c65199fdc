/* Prints a check sum of the results of each kernel in math.kernels.h, for some 10^5 arguments. All
   compilers, options and processors must print the same. C and C++. The kernels that promise no
   bits are called without a check. */
#include "../support/kernels/math.kernels.h"

#include <stdio.h>

enum { BATCH = 1024, BATCHES = 128 };

/* The CPU form of a kernel, called by its address as the driver does. */
#define MATH_RUN(name, type)                                                                  \
    static void name##_all(type *const *in, type *out) {                                      \
        int (*volatile run)(size_t, size_t, const void *) = math_##name##__cpu;               \
        struct math_##name##_args args = math_##name##_pack(BATCH, in[0], in[1], in[2], out); \
        run(0, BATCH, &args);                                                                 \
    }
#define X(name, expression) MATH_RUN(name, float)
MATH_FLOATS(X)
MATH_FAST(X)
#undef X
#define X(name, expression) MATH_RUN(name, double)
MATH_DOUBLES(X)
#undef X
#define X(name, expression) MATH_RUN(name, uint64_t)
MATH_INTEGERS(X)
#undef X

static uint64_t add(uint64_t sum, uint64_t bits) {
    return (sum ^ bits) * 0x100000001b3u + (sum >> 29);
}

static void sum_floats(int which, void (*all)(float *const *, float *)) {
    static float x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    float *const in[] = { x, y, z };
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_float_arguments(batch, BATCH, in);
        all(in, out);
        for (int i = 0; i < BATCH; i++)
            sum = add(sum, math_float_result(which, out[i]));
    }
    printf("%s %016llx\n", math_float_names[which], (unsigned long long)sum);
}

static void sum_doubles(int which, void (*all)(double *const *, double *)) {
    static double x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    double *const in[] = { x, y, z };
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_double_arguments(batch, BATCH, in);
        all(in, out);
        for (int i = 0; i < BATCH; i++)
            sum = add(sum, math_double_result(out[i]));
    }
    printf("%s %016llx\n", math_double_names[which], (unsigned long long)sum);
}

static void sum_integers(int which, void (*all)(uint64_t *const *, uint64_t *)) {
    static uint64_t x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    uint64_t *const in[] = { x, y, z };
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_integer_arguments(batch, BATCH, in);
        all(in, out);
        for (int i = 0; i < BATCH; i++)
            sum = add(sum, out[i]);
    }
    printf("%s %016llx\n", math_integer_names[which], (unsigned long long)sum);
}

static void run_fast(void (*all)(float *const *, float *)) {
    static float x[BATCH], out[BATCH];
    float *const in[] = { x, x, x };
    all(in, out);
}

int main(void) {
#define X(name, expression) sum_floats(MATH_##name, name##_all);
    MATH_FLOATS(X)
#undef X
#define X(name, expression) sum_doubles(MATH_##name, name##_all);
    MATH_DOUBLES(X)
#undef X
#define X(name, expression) sum_integers(MATH_##name, name##_all);
    MATH_INTEGERS(X)
#undef X
#define X(name, expression) run_fast(name##_all);
    MATH_FAST(X)
#undef X
    return 0;
}
