/* rng.cu - the kernels of the generators. Written so that it also compiles as C, which is how the
   tests run it on the host.

   Any number of blocks of threads walk side by side over the blocks of words that the elements
   need. An element's number does not depend on who computes it. */
#include "device.h"

#ifdef __CUDA__
/* in front of a loop, since the text of a kernel has to be short */
#define DS__RNG_ROLLED _Pragma("nounroll")
#define ds__rng_fma32 __nvvm_fma_rn_f
#define ds__rng_to_f16 __nvvm_f2h_rn
#endif
#include "../src/rng/kernel_arith.h"

#define OPERANDS                                                                      \
    void *out, const uint64_t *state, uint64_t seed, uint64_t start, uint64_t before, \
        uint64_t count, uint64_t rows, uint32_t stride

/* Block (k, t) with the element e, and how far it is to the thread's next one. */
typedef struct walk {
    uint64_t k, e, de;
    uint32_t t, dk, dt, back;
} walk;

/* shift: there are 1 << shift elements in a block. Element (at << shift) - ((1 << shift) - 1) t
   begins block `at`, which is k stride + t. */
DEVICE walk walk_of(uint32_t stride, uint32_t shift, uint64_t before) {
    uint32_t at = BLOCK_INDEX * BLOCK_SIZE + THREAD_INDEX, step = BLOCK_COUNT * BLOCK_SIZE;
    walk w;
    w.back = (1u << shift) - 1;
    w.k = at / stride, w.t = at % stride;
    w.dk = step / stride, w.dt = step % stride;
    w.e = ((uint64_t)at << shift) - (uint64_t)w.back * w.t - before;
    w.de = ((uint64_t)step << shift) - (uint64_t)w.back * w.dt;
    return w;
}

DEVICE void go_on(walk *w, uint32_t stride) {
    w->k += w->dk, w->t += w->dt, w->e += w->de;
    if (w->t >= stride)
        w->t -= stride, w->k++, w->e += (uint64_t)w->back * stride;
}

/* For each of the thread's blocks: x is its words, e the first of its elements, of which there
   are 1 << shift. */
#define EACH_BLOCK(shift)                                                        \
    ds__rng_words x;                                                             \
    uint64_t e;                                                                  \
    if (state)                                                                   \
        seed = state[0], start += state[1] >> 2;                                 \
    for (walk w = walk_of(stride, shift, before);                                \
         w.k < rows && (x = ds__rng_philox(seed, start + w.k, w.t), e = w.e, 1); \
         go_on(&w, stride))
#define EACH_WORD                             \
    DS__RNG_ROLLED for (int32_t i = 0; i < 4; \
                        i++, e += stride, x.w[0] = x.w[1], x.w[1] = x.w[2], x.w[2] = x.w[3])
#define EACH_PAIR \
    DS__RNG_ROLLED for (int32_t i = 0; i < 2; i++, e += stride, x.w[0] = x.w[2], x.w[1] = x.w[3])

/* Blocks that begin before this element are stored as a whole: their elements lie side by side, all
   exist, and begin on a multiple of their bytes or of 16. size: bytes of an element. */
DEVICE uint64_t wholes_of(const void *out, uint64_t before, uint64_t count, uint32_t stride,
                          uint32_t shift, uint32_t size) {
    uint32_t bytes = size << shift;
    uint64_t mask = bytes < 16 ? bytes - 1 : 15;
    uint64_t others = (1u << shift) - 1;
    if (stride > 1 || count <= others || (((uint64_t)out - before * size) & mask))
        return 0;
    return count - others;
}

DEVICE void put(void *out, uint64_t e, uint64_t count, uint64_t bits, uint32_t kind) {
    if (e >= count)
        return;
    if (kind == DS__RNG_8)
        ((uint8_t *)out)[e] = (uint8_t)bits;
    else if (kind == DS__RNG_16)
        ((uint16_t *)out)[e] = (uint16_t)bits;
    else if (kind == DS__RNG_32)
        ((uint32_t *)out)[e] = (uint32_t)bits;
    else
        ((uint64_t *)out)[e] = bits;
}

/* Four floats. */
DEVICE void put_f32(void *out, uint64_t e, uint64_t wholes, uint64_t count, uint32_t stride,
                    vector4 v) {
    if (e < wholes) {
        *(vector4 *)((uint32_t *)out + e) = v;
        return;
    }
    DS__RNG_ROLLED for (int32_t i = 0; i < 4;
                        i++, e += stride, v[0] = v[1], v[1] = v[2], v[2] = v[3]) {
        if (e < count)
            ((uint32_t *)out)[e] = v[0];
    }
}

/* Four numbers of 16 bits, the first one in the lowest bits. */
DEVICE void put_halves(void *out, uint64_t e, uint64_t wholes, uint64_t count, uint32_t stride,
                       uint64_t v) {
    if (e < wholes) {
        *(uint64_t *)((uint16_t *)out + e) = v;
        return;
    }
    DS__RNG_ROLLED for (int32_t i = 0; i < 4; i++, e += stride, v >>= 16) {
        if (e < count)
            ((uint16_t *)out)[e] = (uint16_t)v;
    }
}

/* Two numbers of 64 bits. */
DEVICE void put_pair(void *out, uint64_t e, uint64_t wholes, uint64_t count, uint32_t stride,
                     pair8 v) {
    if (e < wholes) {
        *(pair8 *)((uint64_t *)out + e) = v;
        return;
    }
    if (e < count)
        ((uint64_t *)out)[e] = v[0];
    e += stride;
    if (e < count)
        ((uint64_t *)out)[e] = v[1];
}

DEVICE uint64_t join(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return (a | b << 16) | (uint64_t)(c | d << 16) << 32;
}

/* Rounds four floats to the type. */
DEVICE void put_rounded(void *out, uint64_t e, uint64_t wholes, uint64_t count, uint32_t stride,
                        const float *v, uint32_t kind) {
    if (kind == DS__RNG_F32) {
        vector4 bits;
        for (int32_t i = 0; i < 4; i++)
            bits[i] = ds__rng_bits(v[i]);
        put_f32(out, e, wholes, count, stride, bits);
        return;
    }
    uint32_t h[4];
    if (kind == DS__RNG_F16)
        for (int32_t i = 0; i < 4; i++)
            h[i] = ds__rng_narrow(v[i], DS__RNG_F16);
    else
        for (int32_t i = 0; i < 4; i++)
            h[i] = ds__rng_narrow(v[i], DS__RNG_BF16);
    put_halves(out, e, wholes, count, stride, join(h[0], h[1], h[2], h[3]));
}

DEVICE uint32_t float_size(uint32_t kind) {
    return kind == DS__RNG_F32 ? 4 : 2;
}

/* Stores a whole block of integers of at most 32 bits. kind: DS__RNG_8 and so on, the logarithm of
   their bytes. */
DEVICE void put_whole(void *out, uint64_t e, vector4 v, uint32_t kind) {
    char *p = (char *)out + (e << kind);
    if (kind == DS__RNG_32)
        *(vector4 *)p = v;
    else if (kind == DS__RNG_8)
        *(uint32_t *)p = (v[0] & 0xff) | (v[1] & 0xff) << 8 | (v[2] & 0xff) << 16 | v[3] << 24;
    else
        *(uint64_t *)p = join(v[0] & 0xffff, v[1], v[2] & 0xffff, v[3]);
}

/* f32 by element. */
KERNEL(ds__rng_uniform32)(OPERANDS, float from, float to) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, 4);
    EACH_BLOCK(2) {
        vector4 v;
        uint32_t from_bits = ds__rng_bits(from), to_bits = ds__rng_bits(to);
        const ds__rng_interval interval = { from, to - from, from_bits, to_bits, DS__RNG_F32 };
        for (int32_t i = 0; i < 4; i++)
            v[i] = ds__rng_uniform_of(x.w[i], interval, 0);
        put_f32(out, e, wholes, count, 1, v);
    }
}

KERNEL(ds__rng_uniform)

(OPERANDS, float from, float scale, uint32_t from_bits, uint32_t to_bits, uint32_t kind) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, float_size(kind));
    EACH_BLOCK(2) {
        const ds__rng_interval interval = { from, scale, from_bits, to_bits, kind };
        if (kind == DS__RNG_F32) {
            EACH_WORD if (e < count)((uint32_t *)out)[e] =
                ds__rng_uniform_of(x.w[0], interval, stride > 1);
            continue;
        }
        uint64_t v = 0;
        DS__RNG_ROLLED for (int32_t i = 0; i < 4; i++) {
            v = v >> 16 | (uint64_t)ds__rng_uniform_of(x.w[0], interval, stride > 1) << 48;
            x.w[0] = x.w[1], x.w[1] = x.w[2], x.w[2] = x.w[3];
        }
        put_halves(out, e, wholes, count, stride, v);
    }
}

KERNEL(ds__rng_uniform64)(OPERANDS, double from, double to) {
    uint64_t wholes = wholes_of(out, before, count, stride, 1, 8);
    EACH_BLOCK(1) {
        pair8 v;
        for (int32_t i = 0; i < 2; i++)
            v[i] = ds__rng_bits64(
                ds__rng_uniform64_of(x.w[2 * i], x.w[2 * i + 1], from, to, stride > 1));
        put_pair(out, e, wholes, count, stride, v);
    }
}

KERNEL(ds__rng_normal)(OPERANDS, float mean, float deviation, uint32_t kind) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, float_size(kind));
    EACH_BLOCK(2) {
        float v[4];
        ds__rng_normals(x.w[0], x.w[1], mean, deviation, v);
        ds__rng_normals(x.w[2], x.w[3], mean, deviation, v + 2);
        put_rounded(out, e, wholes, count, stride, v, kind);
    }
}

KERNEL(ds__rng_normal64)(OPERANDS, double mean, double deviation) {
    uint64_t wholes = wholes_of(out, before, count, stride, 1, 8);
    EACH_BLOCK(1) {
        ds__rng_doubles d = ds__rng_normals64(x, mean, deviation);
        pair8 v;
        v[0] = ds__rng_bits64(d.v[0]), v[1] = ds__rng_bits64(d.v[1]);
        put_pair(out, e, wholes, count, stride, v);
    }
}

KERNEL(ds__rng_exponential)(OPERANDS, float rate, uint32_t kind) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, float_size(kind));
    EACH_BLOCK(2) {
        float v[4]; /* in registers only if the compiler sees each index */
        v[0] = ds__rng_exponential_of(x.w[0], rate);
        v[1] = ds__rng_exponential_of(x.w[1], rate);
        v[2] = ds__rng_exponential_of(x.w[2], rate);
        v[3] = ds__rng_exponential_of(x.w[3], rate);
        put_rounded(out, e, wholes, count, stride, v, kind);
    }
}

KERNEL(ds__rng_exponential64)(OPERANDS, double rate) {
    uint64_t wholes = wholes_of(out, before, count, stride, 1, 8);
    EACH_BLOCK(1) {
        pair8 v;
        v[0] = v[1] = 0;
        DS__RNG_ROLLED for (int32_t i = 0; i < 2; i++, x.w[0] = x.w[2], x.w[1] = x.w[3]) {
            v[0] = v[1];
            v[1] = ds__rng_bits64(ds__rng_exponential64_of(x.w[0], x.w[1], rate));
        }
        put_pair(out, e, wholes, count, stride, v);
    }
}

KERNEL(ds__rng_integers)(OPERANDS, uint64_t low, uint64_t range, uint32_t kind) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, 1u << kind);
    EACH_BLOCK(2) {
        if (e < wholes && kind != DS__RNG_64) {
            vector4 v;
            for (int32_t i = 0; i < 4; i++)
                v[i] = (uint32_t)(low + ds__rng_below(x.w[i], range, 0));
            put_whole(out, e, v, kind);
        } else if (e < wholes) {
            DS__RNG_ROLLED for (int32_t i = 0; i < 2;
                                i++, e += 2, x.w[0] = x.w[2], x.w[1] = x.w[3]) {
                pair8 v;
                v[0] = low + ds__rng_below(x.w[0], range, 0);
                v[1] = low + ds__rng_below(x.w[1], range, 0);
                *(pair8 *)((uint64_t *)out + e) = v;
            }
        } else {
            EACH_WORD put(out, e, count, low + ds__rng_below(x.w[0], range, stride > 1), kind);
        }
    }
}

KERNEL(ds__rng_wide_integers)(OPERANDS, uint64_t low, uint64_t range, uint32_t kind) {
    uint64_t wholes = kind == DS__RNG_64 ? wholes_of(out, before, count, stride, 1, 8) : 0;
    EACH_BLOCK(1) {
        if (e < wholes) {
            pair8 v;
            for (int32_t i = 0; i < 2; i++)
                v[i] = low + ds__rng_below64(x.w[2 * i], x.w[2 * i + 1], range, 0);
            *(pair8 *)((uint64_t *)out + e) = v;
            continue;
        }
        EACH_PAIR put(out, e, count, low + ds__rng_below64(x.w[0], x.w[1], range, stride > 1),
                      kind);
    }
}

KERNEL(ds__rng_bernoulli)(OPERANDS, uint64_t one, uint64_t below, uint32_t kind) {
    uint64_t wholes = wholes_of(out, before, count, stride, 2, 1u << kind);
    EACH_BLOCK(2) {
        if (e < wholes && kind != DS__RNG_64) {
            vector4 v;
            for (int32_t i = 0; i < 4; i++)
                v[i] = x.w[i] < below ? (uint32_t)one : 0;
            put_whole(out, e, v, kind);
        } else {
            EACH_WORD put(out, e, count, x.w[0] < below ? one : 0, kind);
        }
    }
}

/* What the fills of a graph read. */
KERNEL(ds__rng_state)(uint64_t *out, uint64_t seed, uint64_t offset) {
    if (BLOCK_INDEX * BLOCK_SIZE + THREAD_INDEX)
        return;
    out[0] = seed;
    out[1] = offset;
}

/* Each thread a place of its own; rows is count, stride 1. */
KERNEL(ds__rng_permutation)(OPERANDS, uint64_t bits, uint64_t n, uint32_t kind) {
    if (state)
        seed = state[0], start += state[1] >> 2;
    for (walk w = walk_of(stride, 0, 0); w.k < rows; go_on(&w, stride)) {
        uint64_t i = before + w.k, rank = 0;
        if (bits) {
            rank = ds__rng_shuffled(ds__rng_philox(seed, start, 0), i, n, (uint32_t)bits);
        } else {
            uint64_t mine = ds__rng_key(seed, start, i);
            DS__RNG_ROLLED for (uint32_t j = 0; j < n; j++) {
                uint64_t other = ds__rng_key(seed, start, j);
                rank += (other < mine) | ((other == mine) & (j < i));
            }
        }
        put(out, w.k, count, rank, kind);
    }
}
