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

/* Block (k, t), and how far it is to the thread's next one. */
typedef struct walk {
    uint64_t k;
    uint32_t t, dk, dt;
} walk;

DEVICE walk walk_of(uint32_t stride) {
    uint32_t at = BLOCK_INDEX * BLOCK_SIZE + THREAD_INDEX, step = BLOCK_COUNT * BLOCK_SIZE;
    walk w;
    w.k = at / stride, w.t = at % stride;
    w.dk = step / stride, w.dt = step % stride;
    return w;
}

DEVICE void go_on(walk *w, uint32_t stride) {
    w->k += w->dk, w->t += w->dt;
    if (w->t >= stride)
        w->t -= stride, w->k++;
}

/* For each of the thread's blocks: x is its words, e the first of its elements, of which there
   are 1 << shift. */
#define EACH_BLOCK(shift)                                                                          \
    ds__rng_words x;                                                                               \
    uint64_t e;                                                                                    \
    if (state)                                                                                     \
        seed = state[0], start += state[1] >> 2;                                                   \
    for (walk w = walk_of(stride); w.k < rows && (x = ds__rng_philox(seed, start + w.k, w.t),      \
                                                 e = w.t + (w.k << (shift)) * stride - before, 1); \
         go_on(&w, stride))
#define EACH_WORD                             \
    DS__RNG_ROLLED for (int32_t i = 0; i < 4; \
                        i++, e += stride, x.w[0] = x.w[1], x.w[1] = x.w[2], x.w[2] = x.w[3])
#define EACH_PAIR \
    DS__RNG_ROLLED for (int32_t i = 0; i < 2; i++, e += stride, x.w[0] = x.w[2], x.w[1] = x.w[3])

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

/* The bits of f32, f16 or bf16. */
DEVICE void put_narrow(void *out, uint64_t e, uint64_t count, uint32_t bits, uint32_t kind) {
    if (e >= count)
        return;
    if (kind == DS__RNG_F32)
        ((uint32_t *)out)[e] = bits;
    else
        ((uint16_t *)out)[e] = (uint16_t)bits;
}

DEVICE void put_f64(void *out, uint64_t e, uint64_t count, double value) {
    if (e < count)
        ((double *)out)[e] = value;
}

/* f32 by element: 16 bytes in one store. */
KERNEL(ds__rng_uniform32)(OPERANDS, float from, float to) {
    EACH_BLOCK(2) {
        uint64_t p = (uint64_t)out + 4 * e; /* e may lie before the first element */
        vector4 v;
        uint32_t from_bits = ds__rng_bits(from), to_bits = ds__rng_bits(to);
        const ds__rng_interval interval = { from, to - from, from_bits, to_bits, DS__RNG_F32 };
        v[0] = ds__rng_uniform_of(x.w[0], interval, 0);
        v[1] = ds__rng_uniform_of(x.w[1], interval, 0);
        v[2] = ds__rng_uniform_of(x.w[2], interval, 0);
        v[3] = ds__rng_uniform_of(x.w[3], interval, 0);
        if (e < count && count - e >= 4 && (p & 15) == 0) {
            *(vector4 *)p = v;
            continue;
        }
        DS__RNG_ROLLED for (int32_t i = 0; i < 4; i++, e++, v[0] = v[1], v[1] = v[2],
                                                  v[2] = v[3]) if (e < count)((uint32_t *)out)[e] =
            v[0];
    }
}

KERNEL(ds__rng_uniform)

(OPERANDS, float from, float scale, uint32_t from_bits, uint32_t to_bits, uint32_t kind) {
    EACH_BLOCK(2) {
        const ds__rng_interval interval = { from, scale, from_bits, to_bits, kind };
        EACH_WORD put_narrow(out, e, count, ds__rng_uniform_of(x.w[0], interval, stride > 1), kind);
    }
}

KERNEL(ds__rng_uniform64)(OPERANDS, double from, double to) {
    EACH_BLOCK(1) {
        EACH_PAIR put_f64(out, e, count,
                          ds__rng_uniform64_of(x.w[0], x.w[1], from, to, stride > 1));
    }
}

KERNEL(ds__rng_normal)(OPERANDS, float mean, float deviation, uint32_t kind) {
    EACH_BLOCK(2) {
        float v[2];
        v[0] = v[1] = 0;
        EACH_WORD {
            if (i & 1)
                v[0] = v[1];
            else
                ds__rng_normals(x.w[0], x.w[1], mean, deviation, v);
            put_narrow(out, e, count, ds__rng_narrow(v[0], kind), kind);
        }
    }
}

KERNEL(ds__rng_normal64)(OPERANDS, double mean, double deviation) {
    EACH_BLOCK(1) {
        ds__rng_doubles d = ds__rng_normals64(x, mean, deviation);
        put_f64(out, e, count, d.v[0]);
        put_f64(out, e + stride, count, d.v[1]);
    }
}

KERNEL(ds__rng_exponential)(OPERANDS, float rate, uint32_t kind) {
    EACH_BLOCK(2) {
        EACH_WORD put_narrow(out, e, count,
                             ds__rng_narrow(ds__rng_exponential_of(x.w[0], rate), kind), kind);
    }
}

KERNEL(ds__rng_exponential64)(OPERANDS, double rate) {
    EACH_BLOCK(1) {
        EACH_PAIR put_f64(out, e, count, ds__rng_exponential64_of(x.w[0], x.w[1], rate));
    }
}

KERNEL(ds__rng_integers)(OPERANDS, uint64_t low, uint64_t range, uint32_t kind) {
    EACH_BLOCK(2) {
        EACH_WORD put(out, e, count, low + ds__rng_below(x.w[0], range, stride > 1), kind);
    }
}

KERNEL(ds__rng_wide_integers)(OPERANDS, uint64_t low, uint64_t range, uint32_t kind) {
    EACH_BLOCK(1) {
        EACH_PAIR put(out, e, count, low + ds__rng_below64(x.w[0], x.w[1], range, stride > 1),
                      kind);
    }
}

KERNEL(ds__rng_bernoulli)(OPERANDS, uint64_t one, uint64_t below, uint32_t kind) {
    EACH_BLOCK(2) {
        EACH_WORD put(out, e, count, x.w[0] < below ? one : 0, kind);
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
    for (walk w = walk_of(stride); w.k < rows; go_on(&w, stride)) {
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
