/* comm.cu - the kernels of the collectives. Written so that it also compiles as C, which is how the
   tests run it on the host.

   A reduction is launched with any number of blocks of THREADS threads. All threads walk over
   the result side by side, 16 bytes each at a time, beginning where 16 of them begin on a
   multiple of 16. An input whose bytes for them begin on one too is read as one vector, any
   other number by number, and so are both ends. A number must lie on a multiple of its size, a
   complex one of its parts'; integers, and what is compared, anywhere. */
#include "device.h"

#ifdef __CUDA__
#define DS__COMM_FN DEVICE
#endif
#include "../src/comm/kernel_arith.h"

#ifdef __CUDA__
/* The same as the CPU's, by the instructions; only NaN must be made the one. */
DEVICE void ds__comm_widen_f16_f32(uint32_t *x) {
    union {
        uint16_t u;
        __fp16 f;
    } half;

    half.u = (uint16_t)*x;
    *x = ds__f32_bits(half.f);
}

DEVICE void ds__comm_narrow_f16_f32(uint32_t *x) {
    union {
        uint16_t u;
        __fp16 f;
    } half;

    float f = ds__f32_of(*x);
    half.f = f;
    *x = f != f ? 0x7e00 : half.u;
}
#endif

enum { THREADS = 256 };

/* A thread's next 16 bytes of an operand, from its start; before it and behind its end nothing
   is touched. */
typedef struct walk {
    int64_t at, step, bytes;
    uint64_t wholes; /* 16 bytes from any place before this one are in the operand */
} walk;

/* mask: 16 - bytes of a number, so that no number is in two. */
DEVICE walk walk_of(const void *out, uint64_t bytes, uint32_t mask) {
    walk w;
    uint64_t skew = (uint64_t)out & mask;
    w.at = 16 * ((int64_t)BLOCK_INDEX * THREADS + THREAD_INDEX) - (int64_t)skew;
    w.step = 16 * (int64_t)BLOCK_COUNT * THREADS;
    w.bytes = (int64_t)bytes;
    w.wholes = bytes < 16 ? 0 : bytes - 15;
    return w;
}

/* 1: the 16 bytes may be read or written as one vector. */
DEVICE uint32_t fits(const walk *w, const void *operand) {
    return ((uint64_t)w->at < w->wholes) & ((((uint64_t)operand + (uint64_t)w->at) & 15) == 0);
}

DEVICE uint32_t is_inside(const walk *w, int32_t i) {
    return (uint64_t)(w->at + i) < (uint64_t)w->bytes;
}

/* As two words; numbers of T. What is outside reads as zero. */
#define WORDS(T, NAME, UP, DOWN)                                                   \
    DEVICE pair8 NAME##_get(const void *operand, const walk *w) {                  \
        const char *p = (const char *)operand + w->at;                             \
        pair8 v = { 0, 0 };                                                        \
        if (fits(w, operand))                                                      \
            return *(const pair8 *)p;                                              \
        _Pragma("nounroll") for (int32_t i = 16 - (int32_t)sizeof(T); i >= 0;      \
                                 i -= (int32_t)sizeof(T)) {                        \
            UP;                                                                    \
            if (is_inside(w, i))                                                   \
                v[0] |= *(const T *)(p + i);                                       \
        }                                                                          \
        return v;                                                                  \
    }                                                                              \
    DEVICE void NAME##_put(void *operand, const walk *w, pair8 v) {                \
        char *p = (char *)operand + w->at;                                         \
        if (fits(w, operand)) {                                                    \
            *(pair8 *)p = v;                                                       \
            return;                                                                \
        }                                                                          \
        _Pragma("nounroll") for (int32_t i = 0; i < 16; i += (int32_t)sizeof(T)) { \
            if (is_inside(w, i))                                                   \
                *(T *)(p + i) = (T)v[0];                                           \
            DOWN;                                                                  \
        }                                                                          \
    }
#define UP(n) v[1] = v[1] << (n) | v[0] >> (64 - (n)), v[0] <<= (n)
#define DOWN(n) v[0] = v[0] >> (n) | v[1] << (64 - (n)), v[1] >>= (n)
WORDS(uint8_t, bytes, UP(8), DOWN(8))
WORDS(uint16_t, halves, UP(16), DOWN(16))
WORDS(uint64_t, longs, (v[1] = v[0], v[0] = 0), v[0] = v[1])

/* ---- the largest or smallest of any kind: several numbers in a word, by ds__comm_masks_of ---- */

/* Ones in every number whose highest bit is set in x, which has no other. */
DEVICE uint64_t spread(uint64_t x, uint32_t shift) {
    return (x << 1) - (x >> shift);
}

/* A word of numbers with their keys, which compare without a sign: of a float whose sign is set
   all bits are turned over, of one without it the sign; NaN is the largest. */
typedef struct keyed {
    uint64_t value, key;
} keyed;

/* Takes the numbers of x that are larger. */
DEVICE void take_larger(keyed *a, uint64_t x, ds__comm_masks m) {
    uint64_t nan = spread(((x & ~m.top) + m.room) & m.top, m.shift), key, less;
    x = (x & ~nan) | (m.quiet & nan);
    key = (x ^ (spread(x & m.sign, m.shift) | m.sign) ^ m.flip) | nan;
    less = (~a->key & key) | (~(a->key ^ key) & ~((a->key | m.top) - (key & ~m.top)));
    less = spread(less & m.top, m.shift);
    a->key = (key & less) | (a->key & ~less);
    a->value = (x & less) | (a->value & ~less);
}

KERNEL(ds__comm_select)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, ds__comm_masks m) {
    walk w = walk_of(out, bytes, m.skew);
#pragma nounroll
    for (; w.at < w.bytes; w.at += w.step) {
        keyed low = { m.flip, 0 }, high = { m.flip, 0 }; /* less than anything, or equal */
        uint32_t k = 0;
#pragma nounroll
        do {
            pair8 x = bytes_get(in.at[k], &w);
#pragma nounroll
            for (uint32_t j = 0; j < 2; j++) { /* the words change places */
                keyed r = low;
                take_larger(&r, x[0], m);
                low = high, high = r;
                x[0] = x[1];
            }
        } while (++k < inputs);
        pair8 a = { low.value, high.value };
        bytes_put(out, &w, a);
    }
}

/* ---- sums and products of integers, begun with 0 and 1 ---- */

DEVICE uint64_t integers_step(uint32_t op, uint64_t a, uint64_t x, ds__comm_masks m) {
    uint64_t r = 0, lane = ~(uint64_t)0 >> (63 - m.shift);
    if (op == DS__COMM_SUM)
        return ((a & ~m.top) + (x & ~m.top)) ^ ((a ^ x) & m.top);
#pragma nounroll
    for (uint32_t s = 0; s < 64; s += m.shift + 1)
        r |= ((a >> s) * (x >> s) & lane) << s;
    return r;
}

KERNEL(ds__comm_integers)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, ds__comm_masks m, uint32_t op) {
    walk w = walk_of(out, bytes, m.skew);
    uint64_t start = op == DS__COMM_SUM ? 0 : m.top >> m.shift;
#pragma nounroll
    for (; w.at < w.bytes; w.at += w.step) {
        pair8 a = { start, start };
        uint32_t k = 0;
#pragma nounroll
        do {
            pair8 x = bytes_get(in.at[k], &w);
#pragma nounroll
            for (uint32_t j = 0; j < 2; j++) {
                uint64_t r = integers_step(op, a[0], x[0], m);
                a[0] = a[1], a[1] = r;
                x[0] = x[1];
            }
        } while (++k < inputs);
        bytes_put(out, &w, a);
    }
}

/* v is zero above the number's bits, and what is returned means nothing there. */
DEVICE uint64_t quotient(uint64_t v, uint32_t kind, uint32_t divisor) {
    uint32_t bits = 8u << (kind & 3);
    uint64_t sign = kind >= DS__COMM_I8 ? 0 - (v >> (bits - 1)) : 0;
    v = ((v ^ sign) - sign) << (64 - bits) >> (64 - bits);
    return ((v / divisor) ^ sign) - sign;
}

/* The second half of an average: numbers of 8 << kind % 4 bits, one a thread. */
KERNEL(ds__comm_divide)(char *out, uint64_t bytes, uint32_t kind, uint32_t divisor) {
    uint64_t step = (uint64_t)BLOCK_COUNT * THREADS, shift = kind & 3, v;
#pragma nounroll
    for (uint64_t i = (uint64_t)BLOCK_INDEX * THREADS + THREAD_INDEX; i < bytes >> shift;
         i += step) {
        if (shift == 0)
            v = ((const uint8_t *)out)[i];
        else if (shift == 1)
            v = ((const uint16_t *)out)[i];
        else if (shift == 2)
            v = ((const uint32_t *)out)[i];
        else
            v = ((const uint64_t *)out)[i];
        v = quotient(v, kind, divisor);
        if (shift == 0)
            ((uint8_t *)out)[i] = (uint8_t)v;
        else if (shift == 1)
            ((uint16_t *)out)[i] = (uint16_t)v;
        else if (shift == 2)
            ((uint32_t *)out)[i] = (uint32_t)v;
        else
            ((uint64_t *)out)[i] = v;
    }
}

/* ---- sums and products of floats, begun with -0 and 1, which change nothing but a NaN ---- */

DEVICE void reals_step_f32(uint32_t op, uint32_t *a, const uint32_t *x) {
    float f = ds__f32_of(*a), g = ds__f32_of(*x);
    if (op == DS__COMM_SUM)
        *a = ds__f32_bits(f + g);
    else
        *a = ds__f32_bits(f * g);
}

DEVICE void reals_step_f64(uint32_t op, uint64_t *a, const uint64_t *x) {
    double f = ds__f64_of(*a), g = ds__f64_of(*x);
    if (op == DS__COMM_SUM)
        *a = ds__f64_bits(f + g);
    else
        *a = ds__f64_bits(f * g);
}

KERNEL(ds__comm_f32)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, uint32_t op, uint32_t divisor) {
    walk w = walk_of(out, bytes, 12);
    uint32_t start = op == DS__COMM_SUM ? 0x80000000u : 0x3f800000u;
#pragma nounroll
    for (; w.at < w.bytes; w.at += w.step) {
        uint32_t a[4] = { start, start, start, start };
        char *to = out + w.at;
        uint32_t k = 0;
#pragma nounroll
        do {
            const char *p = (const char *)in.at[k] + w.at;
            vector4 v = { 0, 0, 0, 0 };
            if (fits(&w, in.at[k])) {
                v = *(const vector4 *)p;
            } else {
#pragma nounroll
                for (int32_t i = 0; i < 16; i += 4) {
                    v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = 0;
                    if (is_inside(&w, i))
                        v[3] = *(const uint32_t *)(p + i);
                }
            }
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t x = v[j];
                reals_step_f32(op, &a[j], &x);
            }
        } while (++k < inputs);
        if (divisor > 1) {
#pragma nounroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t r = a[0];
                ds__comm_end_f32(divisor, &r);
                a[0] = a[1], a[1] = a[2], a[2] = a[3], a[3] = r;
            }
        }
        for (uint32_t j = 0; j < 4; j++)
            ds__comm_end_f32(0, &a[j]);
        if (fits(&w, out)) {
            vector4 v = { a[0], a[1], a[2], a[3] };
            *(vector4 *)to = v;
        } else {
#pragma nounroll
            for (int32_t i = 0; i < 16; i += 4) {
                if (is_inside(&w, i))
                    *(uint32_t *)(to + i) = a[0];
                a[0] = a[1], a[1] = a[2], a[2] = a[3];
            }
        }
    }
}

KERNEL(ds__comm_f64)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, uint32_t op, uint32_t divisor) {
    walk w = walk_of(out, bytes, 8);
    uint64_t start = op == DS__COMM_SUM ? (uint64_t)1 << 63 : 0x3ff0000000000000u;
#pragma nounroll
    for (; w.at < w.bytes; w.at += w.step) {
        uint64_t low = start, high = start;
        pair8 a;
        uint32_t k = 0;
#pragma nounroll
        do {
            pair8 x = longs_get(in.at[k], &w);
            uint64_t y = x[0], z = x[1];
            reals_step_f64(op, &low, &y);
            reals_step_f64(op, &high, &z);
        } while (++k < inputs);
        if (divisor > 1) {
#pragma nounroll
            for (uint32_t j = 0; j < 2; j++) {
                uint64_t r = low;
                ds__comm_end_f64(divisor, &r);
                low = high, high = r;
            }
        }
        ds__comm_end_f64(0, &low);
        ds__comm_end_f64(0, &high);
        a[0] = low, a[1] = high;
        longs_put(out, &w, a);
    }
}

DEVICE void widen(uint32_t kind, uint32_t *x) {
    if (kind == DS__COMM_F16)
        ds__comm_widen_f16_f32(x);
    else
        ds__comm_widen_bf16_f32(x);
}

DEVICE void narrow(uint32_t kind, uint32_t *x) {
    if (kind == DS__COMM_F16)
        ds__comm_narrow_f16_f32(x);
    else
        ds__comm_narrow_bf16_f32(x);
}

/* Makes two floats of the low and the high half of a word. */
DEVICE void widen_pair(uint32_t kind, uint32_t word, uint32_t *x) {
    if (kind == DS__COMM_F16) {
        x[0] = word & 0xffff, x[1] = word >> 16;
        ds__comm_widen_f16_f32(&x[0]);
        ds__comm_widen_f16_f32(&x[1]);
    } else {
        x[0] = word << 16, x[1] = word & 0xffff0000u;
    }
}

DEVICE uint32_t narrow_pair(uint32_t kind, uint32_t low, uint32_t high) {
    narrow(kind, &low);
    narrow(kind, &high);
    return low | high << 16;
}

/* Adds or multiplies eight numbers, two in each word. */
DEVICE void halves_step(uint32_t kind, uint32_t op, uint32_t *a, const uint32_t *words) {
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t x[2];
        widen_pair(kind, words[j], x);
        reals_step_f32(op, &a[2 * j], &x[0]);
        reals_step_f32(op, &a[2 * j + 1], &x[1]);
    }
}

DEVICE pair8 narrow_eight(uint32_t kind, const uint32_t *a) {
    uint32_t words[4];
    for (uint32_t j = 0; j < 4; j++)
        words[j] = narrow_pair(kind, a[2 * j], a[2 * j + 1]);
    pair8 v = { words[0] | (uint64_t)words[1] << 32, words[2] | (uint64_t)words[3] << 32 };
    return v;
}

/* A thread keeps eight sums in registers. It tests the kind once per input: both calls of
   halves_step have a constant kind. */
KERNEL(ds__comm_halves)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, uint32_t op, uint32_t divisor,
 uint32_t kind) {
    walk w = walk_of(out, bytes, 14);
    uint32_t start = op == DS__COMM_SUM ? 0x80000000u : 0x3f800000u;
#pragma nounroll
    for (; w.at < w.bytes; w.at += w.step) {
        uint32_t a[8] = { start, start, start, start, start, start, start, start };
        uint32_t k = 0;
#pragma nounroll
        do {
            pair8 v = halves_get(in.at[k], &w);
            uint32_t words[4] = { (uint32_t)v[0], (uint32_t)(v[0] >> 32), (uint32_t)v[1],
                                  (uint32_t)(v[1] >> 32) };
            if (kind == DS__COMM_F16)
                halves_step(DS__COMM_F16, op, a, words);
            else
                halves_step(DS__COMM_BF16, op, a, words);
        } while (++k < inputs);
        if (divisor > 1) {
#pragma nounroll
            for (uint32_t j = 0; j < 8; j++) {
                uint32_t first = a[0];
                ds__comm_end_f32(divisor, &first);
                for (uint32_t i = 0; i < 7; i++)
                    a[i] = a[i + 1];
                a[7] = first;
            }
        }
        pair8 v;
        if (kind == DS__COMM_F16)
            v = narrow_eight(DS__COMM_F16, a);
        else
            v = narrow_eight(DS__COMM_BF16, a);
        halves_put(out, &w, v);
    }
}

/* The same where a reduction is cut: the first input, or the result, is in f32. A number a
   thread. */
KERNEL(ds__comm_halves_cut)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, uint32_t op, uint32_t divisor,
 uint32_t kind, uint32_t wide) {
    uint64_t step = (uint64_t)BLOCK_COUNT * THREADS;
#pragma nounroll
    for (uint64_t i = (uint64_t)BLOCK_INDEX * THREADS + THREAD_INDEX; i < bytes / 2; i += step) {
        uint32_t a = op == DS__COMM_SUM ? 0x80000000u : 0x3f800000u, x;
#pragma nounroll
        for (uint32_t k = 0; k < inputs; k++) {
            if (k == 0 && (wide & DS__COMM_WIDE_IN)) {
                x = ((const uint32_t *)in.at[0])[i];
            } else {
                x = ((const uint16_t *)in.at[k])[i];
                widen(kind, &x);
            }
            reals_step_f32(op, &a, &x);
        }
        ds__comm_end_f32(divisor, &a);
        if (wide & DS__COMM_WIDE_OUT) {
            ((uint32_t *)out)[i] = a;
            continue;
        }
        narrow(kind, &a);
        ((uint16_t *)out)[i] = (uint16_t)a;
    }
}

/* ---- products of complex numbers: one a thread ---- */

KERNEL(ds__comm_complex)

(char *out, ds__comm_inputs in, uint64_t bytes, uint32_t inputs, uint32_t kind) {
    uint64_t step = (uint64_t)BLOCK_COUNT * THREADS,
             i = (uint64_t)BLOCK_INDEX * THREADS + THREAD_INDEX;
    if (kind == DS__COMM_C64) {
#pragma nounroll
        for (; i < bytes / 8; i += step) {
            float a[2], x[2];
            a[0] = ((const float *)in.at[0])[2 * i], a[1] = ((const float *)in.at[0])[2 * i + 1];
#pragma nounroll
            for (uint32_t k = 1; k < inputs; k++) {
                x[0] = ((const float *)in.at[k])[2 * i],
                x[1] = ((const float *)in.at[k])[2 * i + 1];
                ds__comm_multiply_c64(a, x);
            }
            uint32_t re = ds__f32_bits(a[0]), im = ds__f32_bits(a[1]);
            ds__comm_end_f32(0, &re);
            ds__comm_end_f32(0, &im);
            ((uint32_t *)out)[2 * i] = re;
            ((uint32_t *)out)[2 * i + 1] = im;
        }
        return;
    }
#pragma nounroll
    for (; i < bytes / 16; i += step) {
        double a[2], x[2];
        a[0] = ((const double *)in.at[0])[2 * i], a[1] = ((const double *)in.at[0])[2 * i + 1];
#pragma nounroll
        for (uint32_t k = 1; k < inputs; k++) {
            x[0] = ((const double *)in.at[k])[2 * i], x[1] = ((const double *)in.at[k])[2 * i + 1];
            ds__comm_multiply_c128(a, x);
        }
        uint64_t re = ds__f64_bits(a[0]), im = ds__f64_bits(a[1]);
        ds__comm_end_f64(0, &re);
        ds__comm_end_f64(0, &im);
        ((uint64_t *)out)[2 * i] = re;
        ((uint64_t *)out)[2 * i + 1] = im;
    }
}

/* ---- copies between tensors of any strides: an element a thread ---- */

/* Copies an element of 1, 2, 4, 8 or 16 bytes. Sizes of 4, 8 and 16 need the fewest tests. */
DEVICE void copy_element(char *to, const char *from, uint32_t size) {
    if (size & 12) {
        if (size & 4)
            *(uint32_t *)to = *(const uint32_t *)from;
        else
            *(uint64_t *)to = *(const uint64_t *)from;
    } else if (size & 16) {
        *(pair8 *)to = *(const pair8 *)from;
    } else if (size & 2) {
        *(uint16_t *)to = *(const uint16_t *)from;
    } else {
        *(uint8_t *)to = *(const uint8_t *)from;
    }
}

/* Adds the strides times the index in a dimension to both addresses. Returns the element's number
   in the dimensions outside of it. */
DEVICE uint32_t take_index(uint32_t number, const ds__comm_narrow_dim *dim, char **to,
                           const char **from) {
    uint32_t above = (uint32_t)((uint64_t)number * dim->magic >> 32);
    above = (above + number) >> dim->shift;
    int32_t index = (int32_t)(number - above * dim->size);
    *to += (int64_t)index * dim->dst;
    *from += (int64_t)index * dim->src;
    return above;
}

/* Copies fewer than 2^31 elements without a division. A launch has at most a block for each THREADS
   elements, so i + step has 32 bits. Most copies have three dimensions or fewer, so the code for
   these has no loop. */
DEVICE void copy_narrow(char *dst, const char *src, const ds__comm_narrow_dim *dims,
                        uint32_t elements, uint32_t ndim, uint32_t size) {
    uint32_t step = BLOCK_COUNT * THREADS;
#pragma nounroll
    for (uint32_t i = BLOCK_INDEX * THREADS + THREAD_INDEX; i < elements; i += step) {
        uint32_t number = i;
        char *to = dst;
        const char *from = src;
        if (ndim > 1)
            number = take_index(number, &dims[1], &to, &from);
        if (ndim > 2)
            number = take_index(number, &dims[2], &to, &from);
#pragma nounroll
        for (uint32_t k = 3; k < ndim; k++)
            number = take_index(number, &dims[k], &to, &from);
        to += (int64_t)(int32_t)number * dims[0].dst;
        from += (int64_t)(int32_t)number * dims[0].src;
        copy_element(to, from, size);
    }
}

/* narrow: as in ds__comm_pack_args. */
KERNEL(ds__comm_pack)

(char *dst, const char *src, ds__comm_dims dims, uint64_t elements, uint32_t ndim, uint32_t size,
 uint32_t narrow) {
    if (narrow) {
        copy_narrow(dst, src, dims.narrow, (uint32_t)elements, ndim, size);
        return;
    }
    uint64_t step = (uint64_t)BLOCK_COUNT * THREADS;
#pragma nounroll
    for (uint64_t i = (uint64_t)BLOCK_INDEX * THREADS + THREAD_INDEX; i < elements; i += step) {
        uint64_t rest = i;
        char *to = dst;
        const char *from = src;
#pragma nounroll
        for (uint32_t k = ndim - 1; k > 0; k--) {
            uint64_t above = rest / dims.size[k];
            int64_t index = (int64_t)(rest - above * dims.size[k]);
            to += index * dims.dst[k];
            from += index * dims.src[k];
            rest = above;
        }
        to += (int64_t)rest * dims.dst[0];
        from += (int64_t)rest * dims.src[0];
        copy_element(to, from, size);
    }
}
