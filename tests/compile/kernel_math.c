/* Prints a check sum of the results of each function in tests/unit/kernel_math.h, for some 10^5
   arguments. All compilers, options and processors must print the same. C and C++. */
#include "../unit/kernel_math.h"

#include <stdio.h>

#define MATH_FN(name) loop_##name
#define MATH_TARGET
#include "../unit/kernel_math_loops.h"

enum { BATCH = 1024, BATCHES = 128 };

static uint64_t add(uint64_t sum, uint64_t bits) {
    return (sum ^ bits) * 0x100000001b3u + (sum >> 29);
}

static uint64_t sum_floats(int which) {
    static float x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    float *const in[] = { x, y, z };
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_float_arguments(batch, BATCH, in);
        loop_floats(which, BATCH, in, out);
        for (int i = 0; i < BATCH; i++)
            sum = add(sum, math_float_result(which, out[i]));
    }
    return sum;
}

static uint64_t sum_doubles(int which) {
    static double x[BATCH], y[BATCH], z[BATCH], out[BATCH];
    double *const in[] = { x, y, z };
    uint64_t sum = 0;
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        math_double_arguments(batch, BATCH, in);
        loop_doubles(which, BATCH, in, out);
        for (int i = 0; i < BATCH; i++)
            sum = add(sum, math_double_result(out[i]));
    }
    return sum;
}

int main(void) {
    for (int which = 0; which < MATH_FLOAT_COUNT; which++)
        printf("%s %016llx\n", math_float_names[which], (unsigned long long)sum_floats(which));
    for (int which = 0; which < MATH_DOUBLE_COUNT; which++)
        printf("%s %016llx\n", math_double_names[which], (unsigned long long)sum_doubles(which));
    return 0;
}
