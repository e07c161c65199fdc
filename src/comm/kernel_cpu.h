/* comm/kernel_cpu.h - CPU form of reductions and averages.

   Implements the CPU functions of the reduction kernels: ds__comm_reduce_items for sums,
   products, maximum and minimum, and ds__comm_divide_items for averages of integers.

   Invariants: an item writes only its own bytes of the result, so items may run in parallel. A
   part of a block is computed in a padded copy. On x86-64 and AArch64, ds__comm_reduce_items
   sets the floating-point state of the thread to its defaults and restores the state. The result
   therefore does not depend on the program's rounding mode, flushing and traps. The functions
   return 0 and call no driver entry.
   Locks: takes none, but may run under the locks of the driver's run_together.
   Threads: workers of the CPU driver, and threads that run steps or help the driver. */
#ifndef DS__COMM_KERNEL_CPU_H
#define DS__COMM_KERNEL_CPU_H

#include "kernel_vector.gen.h"

/* Reduces whole blocks. around: 1 to write around the caches. vector: bytes of the vectors to use,
   16 or 32. */
static void ds__comm_reduce_blocks(const ds__comm_reduce_args *r, char *out, const char *const *in,
                                   size_t bytes, int around, int vector) {
#if DS__VECTOR_HAS_32
    if (vector == 32)
        ds__comm_runs_32[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    else
#endif
        ds__comm_runs_16[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    (void)vector;
    if (around)
        DS__VECTOR_FENCE();
}

/* Reduces numbers first to end - 1 of f16 or bf16 if the first input or the result is f32, as in
   reductions of several launches. Widens the numbers, computes in f32 and narrows, block by
   block. */
static void ds__comm_reduce_wide(const ds__comm_reduce_args *r, uint64_t first, uint64_t end,
                                 int vector) {
    enum { NUMBERS = 256 };

    uint32_t block[DS__COMM_INPUTS][NUMBERS];
    uint16_t halves[NUMBERS];
    const char *in[DS__COMM_INPUTS];
    ds__comm_reduce_args whole = *r;
    whole.kind = DS__COMM_F32;
    memset(block, 0, sizeof block);
    memset(halves, 0, sizeof halves);
    for (; first < end; first += NUMBERS) {
        size_t n = end - first < NUMBERS ? (size_t)(end - first) : NUMBERS;
        for (uint32_t k = 0; k < r->inputs; k++) {
            uint32_t *b = block[k];
            in[k] = (const char *)b;
            if (k == 0 && (r->wide & DS__COMM_WIDE_IN)) {
                memcpy(b, (const char *)r->in.at[0] + 4 * first, 4 * n);
                continue;
            }
            memcpy(halves, (const char *)r->in.at[k] + 2 * first, 2 * n);
            for (int i = 0; i < NUMBERS; i++)
                b[i] = halves[i];
            if (r->kind == DS__COMM_F16)
                for (int i = 0; i < NUMBERS; i++)
                    ds__comm_widen_f16_f32(&b[i]);
            else
                for (int i = 0; i < NUMBERS; i++)
                    ds__comm_widen_bf16_f32(&b[i]);
        }
        ds__comm_reduce_blocks(&whole, (char *)block[0], in, sizeof block[0], 0, vector);
        if (r->wide & DS__COMM_WIDE_OUT) {
            memcpy((char *)r->out + 4 * first, block[0], 4 * n);
            continue;
        }
        if (r->kind == DS__COMM_F16)
            for (int i = 0; i < NUMBERS; i++)
                ds__comm_narrow_f16_f32(&block[0][i]);
        else
            for (int i = 0; i < NUMBERS; i++)
                ds__comm_narrow_bf16_f32(&block[0][i]);
        for (int i = 0; i < NUMBERS; i++)
            halves[i] = (uint16_t)block[0][i];
        memcpy((char *)r->out + 2 * first, halves, 2 * n);
    }
}

/* Computes products of complex numbers first to end - 1. */
#define DS__COMM_PRODUCTS(NAME, T, U, MULTIPLY, END)                                \
    static void NAME(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) { \
        for (uint64_t i = first; i < end; i++) {                                    \
            T a[2], x[2];                                                           \
            U bits[2];                                                              \
            memcpy(a, (const char *)r->in.at[0] + sizeof a * i, sizeof a);          \
            for (uint32_t k = 1; k < r->inputs; k++) {                              \
                memcpy(x, (const char *)r->in.at[k] + sizeof x * i, sizeof x);      \
                MULTIPLY(a, x);                                                     \
            }                                                                       \
            memcpy(bits, a, sizeof a);                                              \
            END(0, &bits[0]);                                                       \
            END(0, &bits[1]);                                                       \
            memcpy((char *)r->out + sizeof bits * i, bits, sizeof bits);            \
        }                                                                           \
    }
DS__COMM_PRODUCTS(ds__comm_products_c64, float, uint32_t, ds__comm_multiply_c64, ds__comm_end_f32)
DS__COMM_PRODUCTS(ds__comm_products_c128, double, uint64_t, ds__comm_multiply_c128,
                  ds__comm_end_f64)

/* Computes bytes first to end - 1 of the result; vector: as in ds__comm_reduce_blocks. */
static __attribute__((noinline)) void ds__comm_reduce_part(const ds__comm_reduce_args *r,
                                                           uint64_t first, uint64_t end,
                                                           int vector) {
    const char *in[DS__COMM_INPUTS];
    char *out = (char *)r->out + first;
    int around = DS__VECTOR_CAN_STREAM &&
                 ds__stream_pays(r->inputs * (size_t)r->bytes, (size_t)r->bytes) &&
                 ((uintptr_t)out & 31) == 0;
    if (first >= end)
        return;
    if (r->wide) {
        ds__comm_reduce_wide(r, first / 2, end / 2, vector);
        return;
    }
    if (r->kind == DS__COMM_C64) {
        ds__comm_products_c64(r, first / 8, end / 8);
        return;
    }
    if (r->kind == DS__COMM_C128) {
        ds__comm_products_c128(r, first / 16, end / 16);
        return;
    }
    for (uint32_t k = 0; k < r->inputs; k++) {
        in[k] = (const char *)r->in.at[k] + first;
        /* the cache lines of an input are in the cache anyway */
        if (in[k] == out)
            around = 0;
    }
    size_t rest = (size_t)(end - first) % DS__COMM_BLOCK, whole = (size_t)(end - first) - rest;
    ds__comm_reduce_blocks(r, out, in, whole, around, vector);
    if (rest) {
        char block[DS__COMM_INPUTS][DS__COMM_BLOCK];
        for (uint32_t k = 0; k < r->inputs; k++) {
            memset(block[k], 0, sizeof block[k]);
            memcpy(block[k], in[k] + whole, rest);
            in[k] = block[k];
        }
        ds__comm_reduce_blocks(r, block[0], in, DS__COMM_BLOCK, 0, vector);
        memcpy(out + whole, block[0], rest);
    }
}

/* The CPU form of a reduction. */
static int ds__comm_reduce_items(size_t first, size_t count, const void *args) {
    const ds__comm_reduce_args *r = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM, state = ds__os_float_state();
    int plain = (state & DS__FLOAT_STATE) == DS__FLOAT_USUAL;
    if (!plain)
        ds__os_set_float_state(DS__FLOAT_USUAL);
    ds__comm_reduce_part(r, (uint64_t)first * DS__COMM_ITEM, end < r->bytes ? end : r->bytes,
                         ds__os_vector() >= 32 ? 32 : 16);
    if (!plain)
        ds__os_set_float_state(state);
    return 0;
}

/* Divides integers by a multiplication with 1 / divisor, whose result may be 1 too small. */
__extension__ typedef unsigned __int128 ds__comm_u128;
#define DS__COMM_DIVIDE(T)                                            \
    for (; at < end; at += sizeof(T)) {                               \
        T v, sign;                                                    \
        memcpy(&v, p + at, sizeof v);                                 \
        sign = (T)(0 - (v >> (8 * sizeof v - 1) & is_signed));        \
        v = (T)((v ^ sign) - sign);                                   \
        uint64_t q = (uint64_t)((ds__comm_u128)v * reciprocal >> 64); \
        q += v - q * divisor >= divisor;                              \
        v = (T)(((T)q ^ sign) - sign);                                \
        memcpy(p + at, &v, sizeof v);                                 \
    }

/* The CPU form of the division after a sum of integers. */
static int ds__comm_divide_items(size_t first, size_t count, const void *args) {
    const ds__comm_divide_args *d = args;
    uint64_t at = (uint64_t)first * DS__COMM_ITEM, end = (uint64_t)(first + count) * DS__COMM_ITEM;
    uint64_t divisor = d->divisor, reciprocal = UINT64_MAX / divisor;
    unsigned is_signed = d->kind >= DS__COMM_I8;
    char *p = d->out;
    if (end > d->bytes)
        end = d->bytes;
    switch (d->kind & 3) {
    case DS__COMM_U8:
        DS__COMM_DIVIDE(uint8_t) break;
    case DS__COMM_U16:
        DS__COMM_DIVIDE(uint16_t) break;
    case DS__COMM_U32:
        DS__COMM_DIVIDE(uint32_t) break;
    default:
        DS__COMM_DIVIDE(uint64_t) break;
    }
    return 0;
}

#endif
