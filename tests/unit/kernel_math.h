/* The arithmetic of kernels as lists of functions, for the unit test, for GPUs
   and for kernels that are written once (tests/support/kernels/math.kernels.h). */
#ifndef KERNEL_MATH_H
#define KERNEL_MATH_H

#ifndef DEVSTREAM_KERNEL_H_INCLUDED /* kernel files and device code include them themselves */
#include "api/kernel_params.h"
#include "api/kernel_math.h"
#include "api/kernel_math_exp.h"
#include "api/kernel_math_trig.h"
#include "api/kernel_math_pow.h"
#include "api/kernel_math_fast.h"
#include "api/kernel_math_wide.h"
#include "api/kernel_atomic.h"
#endif

/* X(name, expression): functions that promise their bits; first those that promise a NaN's. */
#define MATH_FLOATS(X)        \
    X(expf, ds_expf(x))       \
    X(logf, ds_logf(x))       \
    X(tanhf, ds_tanhf(x))     \
    X(sinf, ds_sinf(x))       \
    X(cosf, ds_cosf(x))       \
    X(powf, ds_powf(x, y))    \
    X(sqrtf, ds_sqrtf(x))     \
    X(fmaf, ds_fmaf(x, y, z)) \
    X(fminf, ds_fminf(x, y))  \
    X(fmaxf, ds_fmaxf(x, y))  \
    X(absf, ds_absf(x))       \
    X(plainf, (x * y + z) / (x - y) - x * z)
#define MATH_DOUBLES(X)     \
    X(sqrt, ds_sqrt(x))     \
    X(fma, ds_fma(x, y, z)) \
    X(fmin, ds_fmin(x, y))  \
    X(fmax, ds_fmax(x, y))  \
    X(abs, ds_abs(x))       \
    X(plain, (x * y + z) / (x - y) - x * z)
/* Functions that promise neither bits nor an accuracy, for arguments of 1 to 8. */
#define MATH_FAST(X)                    \
    X(expf_fast, ds_expf_fast(x))       \
    X(logf_fast, ds_logf_fast(x + 1))   \
    X(tanhf_fast, ds_tanhf_fast(x))     \
    X(sinf_fast, ds_sinf_fast(x))       \
    X(cosf_fast, ds_cosf_fast(x))       \
    X(powf_fast, ds_powf_fast(x, 1.5f)) \
    X(rsqrtf_fast, ds_rsqrtf_fast(x))   \
    X(rcpf_fast, ds_rcpf_fast(x))
/* y and z are odd. Conversions to integers are of numbers that fit. */
#define MATH_INTEGERS(X)                                                                    \
    X(words, (x * y + z) / z ^ (x - y) % z)                                                 \
    X(halves, (uint32_t)(x >> 7) * (uint32_t)y / (uint32_t)z + ((uint32_t)x << y % 32))     \
    X(signs, (uint64_t)((int64_t)(x >> 1) / (int64_t)(z >> 33 | 1) - ((int64_t)y >> 5)))    \
    X(orders,                                                                               \
      (uint64_t)(x < y) + 2 * (uint64_t)((int64_t)x < (int64_t)z) + 4 * (uint64_t)(x == z)) \
    X(conversions, (uint64_t)((double)(x >> 8) * 0.125) + (uint64_t)((float)(uint32_t)y * 0.25f))

#define X(name, expression) MATH_##name,

enum { MATH_FLOATS(X) MATH_FLOAT_COUNT };

enum { MATH_DOUBLES(X) MATH_DOUBLE_COUNT };

enum { MATH_INTEGERS(X) MATH_INTEGER_COUNT };

enum { MATH_FAST(X) MATH_FAST_COUNT };

#undef X

/* ---- atomic operations ---- */

typedef struct math_numbers {
    uint32_t u32[8];
    int32_t i32[5];
    float f32;
    uint64_t u64[5];
    double f64;
    uint64_t last;
    uint32_t sum;
    uint32_t block;
} math_numbers;

/* Each operation once; some change their number, some do not. */
DS_KERNEL_FN void math_use_atomics(math_numbers *m, math_numbers *old) {
    old->u32[0] = ds_atomic_add_u32(&m->u32[0], 0xfffffff0u);
    old->u32[1] = ds_atomic_min_u32(&m->u32[1], 0x80000000u);
    old->u32[2] = ds_atomic_max_u32(&m->u32[2], 0x80000000u);
    old->u32[3] = ds_atomic_and_u32(&m->u32[3], 0x0ff0u);
    old->u32[4] = ds_atomic_or_u32(&m->u32[4], 0x0ff0u);
    old->u32[5] = ds_atomic_xor_u32(&m->u32[5], 0x0ff0u);
    old->u32[6] = ds_atomic_exchange_u32(&m->u32[6], 77u);
    old->u32[7] = ds_atomic_cas_u32(&m->u32[7], 7u, 78u);
    old->i32[0] = ds_atomic_add_i32(&m->i32[0], -100);
    old->i32[1] = ds_atomic_min_i32(&m->i32[1], -1);
    old->i32[2] = ds_atomic_max_i32(&m->i32[2], -1);
    old->i32[3] = ds_atomic_min_i32(&m->i32[3], 3);
    old->i32[4] = ds_atomic_max_i32(&m->i32[4], 3);
    old->f32 = ds_atomic_add_f32(&m->f32, 0.25f);
    old->u64[0] = ds_atomic_add_u64(&m->u64[0], (uint64_t)1 << 40);
    old->u64[1] = ds_atomic_min_u64(&m->u64[1], (uint64_t)1 << 40);
    old->u64[2] = ds_atomic_max_u64(&m->u64[2], (uint64_t)1 << 40);
    old->u64[3] = ds_atomic_cas_u64(&m->u64[3], 7u, (uint64_t)1 << 40);
    old->u64[4] = ds_atomic_cas_u64(&m->u64[4], 7u, (uint64_t)1 << 40);
    old->f64 = ds_atomic_add_f64(&m->f64, 0.25);
    old->block = ds_atomic_add_block_u32(&m->block, 0xfffffff0u);
}

/* ---- arguments and results ---- */

#ifndef DEVSTREAM_KERNEL_DEVICE
#define X(name, expression) #name,
DS__UNUSED static const char *const math_float_names[] = { MATH_FLOATS(X) };
DS__UNUSED static const char *const math_double_names[] = { MATH_DOUBLES(X) };
DS__UNUSED static const char *const math_integer_names[] = { MATH_INTEGERS(X) };
DS__UNUSED static const char *const math_fast_names[] = { MATH_FAST(X) };
#undef X

DS__UNUSED static uint64_t math_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Fills three arrays with arguments: random bits, numbers of everyday size, and edges. */
DS__UNUSED static void math_float_arguments(uint64_t seed, size_t n, float *const *to) {
    static const uint32_t edges[] = {
        0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x33800000u, 0x3f000000u, 0x3f3504f3u,
        0x3f7fffffu, 0x3f800000u, 0x3f800001u, 0x3fc90fdbu, 0x40000000u, 0x40400000u, 0x4048f5c3u,
        0x41200000u, 0x42b17218u, 0x42cff1b5u, 0x43160000u, 0x45490000u, 0x4b7fffffu, 0x4b800000u,
        0x7f000000u, 0x7f7fffffu, 0x7f800000u, 0x7fc00000u
    };
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++) {
            uint64_t r = math_random(&seed);
            uint32_t bits = (uint32_t)r;
            uint32_t how = (uint32_t)(r >> 32) % 8u;
            if (how < 4u) /* 2^-10 to 2^10 */
                bits = (bits & 0x807fffffu) | (117u + (uint32_t)(r >> 40) % 21u) << 23;
            if (how == 4u)
                bits = edges[(r >> 40) % (sizeof edges / sizeof *edges)] | (bits & 0x80000000u);
            to[k][i] = dsk__math_float_from_bits(bits);
        }
    }
}

DS__UNUSED static void math_double_arguments(uint64_t seed, size_t n, double *const *to) {
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++) {
            uint64_t r = math_random(&seed);
            uint64_t bits = math_random(&seed);
            if (r % 8u < 5u) /* 2^-10 to 2^10 */
                bits = (bits & 0x800fffffffffffffu) | (1013u + (r >> 32) % 21u) << 52;
            if (r % 8u == 5u) /* 0, an infinity, NaN, or 2 */
                bits = (bits & 0x8000000000000000u) | (r >> 32) % 4u * 0x3ffc000000000000u;
            to[k][i] = dsk__math_double_from_bits(bits);
        }
    }
}

/* Small and large numbers; the second and third array are odd. */
DS__UNUSED static void math_integer_arguments(uint64_t seed, size_t n, uint64_t *const *to) {
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++) {
            uint64_t r = math_random(&seed);
            to[k][i] = math_random(&seed) >> (r % 3u * 24u) | (uint64_t)(k > 0);
        }
    }
}

/* The bits of results. A NaN counts as one NaN where its bits are not promised. */
DS__UNUSED static uint64_t math_float_result(int which, float y) {
    return y != y && which > MATH_powf ? 0x7fc00000u : dsk__math_float_to_bits(y);
}

DS__UNUSED static uint64_t math_double_result(double y) {
    return y != y ? 0x7ff8000000000000u : dsk__math_double_to_bits(y);
}
#endif

#endif
