/* The CUDA forms of the suite's kernels. kernels_ptx.h holds their PTX. */
#include "../../kernels/device.h"

/* The index of this thread in a launch of any shape: block by block, x fastest. */
#define SREG(name) ((uint64_t)(uint32_t)__nvvm_read_ptx_sreg_##name())
#define BLOCKS_BEFORE \
    ((SREG(ctaid_z) * SREG(nctaid_y) + SREG(ctaid_y)) * SREG(nctaid_x) + SREG(ctaid_x))
#define THREADS_BEFORE ((SREG(tid_z) * SREG(ntid_y) + SREG(tid_y)) * SREG(ntid_x) + SREG(tid_x))
#define LINEAR_INDEX() \
    (BLOCKS_BEFORE * (SREG(ntid_x) * SREG(ntid_y) * SREG(ntid_z)) + THREADS_BEFORE)

/* ---- of one item ---- */

KERNEL(fold)(uint64_t *h, uint64_t n) {
    if (GLOBAL_INDEX() == 0)
        *h = *h * 1099511628211u + n;
}

KERNEL(gate)(uint32_t *entered, uint32_t *open) {
    if (GLOBAL_INDEX() != 0)
        return;
    VOLATILE_STORE(entered, 1);
    FENCE_SYSTEM();
    while (!VOLATILE_LOAD(open)) {
    }
}

KERNEL(spin)(uint32_t *started, uint32_t *release) {
    if (GLOBAL_INDEX() != 0)
        return;
    VOLATILE_STORE(started, 1);
    FENCE_SYSTEM();
    while (!VOLATILE_LOAD(release)) {
    }
}

KERNEL(store)(uint64_t *out, uint64_t value) {
    if (GLOBAL_INDEX() == 0)
        *out = value;
}

KERNEL(add)(uint64_t *h, uint64_t n) {
    if (GLOBAL_INDEX() == 0)
        *h += n;
}

KERNEL(thrice)(uint64_t *h, uint64_t n) {
    if (GLOBAL_INDEX() == 0)
        *h = *h * 3 + n;
}

KERNEL(count)(uint64_t *counter, uint64_t n) {
    if (GLOBAL_INDEX() == 0)
        ATOMIC_ADD(counter, n);
}

KERNEL(explode)() {
    TRAP();
}

KERNEL(none)() {
}

struct big_bytes {
    unsigned char byte[4096 - 8];
};

KERNEL(big)(unsigned char *out, big_bytes in) {
    if (GLOBAL_INDEX() != 0)
        return;
#pragma clang loop unroll(disable) vectorize(disable)
    for (uint32_t i = 0; i < sizeof in.byte; i++)
        out[i] = in.byte[i];
}

struct odd_bytes {
    unsigned char byte[9];
};

KERNEL(odd)(uint32_t *bad, odd_bytes in) {
    if (GLOBAL_INDEX() != 0)
        return;
    for (uint32_t i = 0; i < sizeof in.byte; i++)
        if (in.byte[i] != i)
            ATOMIC_ADD(bad, 1u);
}

/* ---- of many items ---- */

/* sums: items handled, and those that were not in the range. */
KERNEL(tally)(uint32_t *seen, uint64_t *sums, uint64_t items, uint64_t first, uint64_t count) {
    uint64_t i = LINEAR_INDEX();
    if (i >= count)
        return;
    ATOMIC_ADD(&sums[0], (uint64_t)1);
    if (first + i < items)
        ATOMIC_ADD(&seen[first + i], 1u);
    else
        ATOMIC_ADD(&sums[1], (uint64_t)1);
}

KERNEL(step)(uint32_t *v, uint32_t number, uint64_t first, uint64_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i < count)
        v[first + i] = v[first + i] * 31 + number;
}

KERNEL(mix)(uint64_t *h, uint64_t n, uint64_t first, uint64_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i < count)
        h[first + i] = h[first + i] * 1099511628211u + n + (first + i);
}

/* First and count in four bytes. */
KERNEL(step4)(uint32_t *v, uint32_t number, uint32_t first, uint32_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i < count)
        v[first + i] = v[first + i] * 31 + number;
}

/* ---- of floats ---- */

/* The matrix c of `columns` columns is a b; item i is element i of it, row by row. */
KERNEL(matmul)

(float *c, const float *a, const float *b, uint32_t inner, uint32_t columns, uint64_t first,
 uint64_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i >= count)
        return;
    uint64_t row = (first + i) / columns, column = (first + i) % columns;
    float sum = 0;
#pragma clang loop unroll(disable)
    for (uint32_t k = 0; k < inner; k++)
        sum += a[row * inner + k] * b[(uint64_t)k * columns + column];
    c[first + i] = sum;
}

KERNEL(add_floats)(float *c, const float *a, const float *b, uint64_t first, uint64_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i < count)
        c[first + i] = a[first + i] + b[first + i];
}

KERNEL(multiply_floats)(float *c, const float *a, const float *b, uint64_t first, uint64_t count) {
    uint64_t i = GLOBAL_INDEX();
    if (i < count)
        c[first + i] = a[first + i] * b[first + i];
}

/* ---- of a grid ---- */

/* Each thread leaves its six indices in one word: blocks above threads. */
KERNEL(whereabouts)(uint64_t *out) {
    out[LINEAR_INDEX()] = SREG(ctaid_x) << 52 | SREG(ctaid_y) << 44 | SREG(ctaid_z) << 36 |
                          SREG(tid_x) << 20 | SREG(tid_y) << 10 | SREG(tid_z);
}

extern __attribute__((shared)) uint32_t dynamic_shared[];

/* Every block turns its part of v around, through as many words of dynamic shared memory as it
   has threads. */
KERNEL(turn_around)(uint32_t *v) {
    dynamic_shared[THREAD_INDEX] = v[GLOBAL_INDEX()];
    BARRIER();
    v[GLOBAL_INDEX()] = dynamic_shared[BLOCK_SIZE - 1 - THREAD_INDEX];
}

/* Items of `width` words: a block does as many at a time as it has threads for. Tells the number
   of blocks. */
KERNEL(rows)(uint32_t *v, uint32_t width, uint32_t *blocks, uint64_t first, uint64_t count) {
    uint64_t at_a_time = BLOCK_SIZE / width;
    if (GLOBAL_INDEX() == 0)
        *blocks = BLOCK_COUNT;
    for (uint64_t i = BLOCK_INDEX * at_a_time + THREAD_INDEX / width; i < count;
         i += BLOCK_COUNT * at_a_time) {
        uint32_t *row = v + (first + i) * width;
        row[THREAD_INDEX % width] = row[THREAD_INDEX % width] * 31 + 1;
    }
}

/* The first thread of each block waits until those of all blocks are there. */
KERNEL(meet)(uint32_t *arrived, uint32_t *passed, uint32_t blocks) {
    if (THREAD_INDEX != 0)
        return;
    ATOMIC_ADD(arrived, 1u);
    while (VOLATILE_LOAD(arrived) < blocks) {
    }
    ATOMIC_ADD(passed, 1u);
}
