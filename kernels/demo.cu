/* demo.cu - the kernels of examples/demo.c and examples/graph.c. Data begins at a multiple of 16
   bytes; its size is any.

   Items of histogram and checksum are blocks of BLOCK bytes. The threads of all blocks walk over
   them side by side, a vector of 16 bytes each at a time, so that any number of blocks does the
   work; what is left after the last whole vector goes to the thread whose turn it would be. Both
   are launched with THREADS threads a block. */
#include "demo.h"

enum { THREADS = 256, TABLES = 32 };

/* Positions in the data. */
typedef struct walk {
    uint64_t at, step; /* a thread's next vector, and from there to the one after it */
    uint64_t whole;    /* where whole vectors end */
    uint64_t end;
} walk;

DEVICE walk walk_of(uint64_t size, uint64_t first, uint64_t count) {
    walk w;
    w.at = 16 * ((uint64_t)BLOCK_INDEX * THREADS + THREAD_INDEX) + first * BLOCK;
    w.step = 16 * (uint64_t)BLOCK_COUNT * THREADS;
    w.end = end_of(size, first, count);
    w.whole = w.end & ~(uint64_t)15;
    return w;
}

/* A table for each lane of a warp: its counters all lie in one bank of the shared memory, so
   that no two lanes ever wait for each other, whatever the bytes are. The tables leave room for
   fewer threads than the loads need to follow each other closely, so the next vector is on its
   way while this one is counted. A counter would overflow at 128 GiB per block. */
KERNEL(histogram)

(const uint8_t *data, uint64_t *results, uint64_t size, uint64_t first, uint64_t count) {
    SHARED uint32_t table[256 * TABLES];
    uint32_t *mine = table + THREAD_INDEX % TABLES;
    walk w = walk_of(size, first, count);
#pragma nounroll
    for (uint32_t k = THREAD_INDEX; k < 256 * TABLES; k += THREADS)
        table[k] = 0;
    BARRIER();
    if (w.at < w.whole) {
        vector4 next = *(const vector4 *)(data + w.at);
#pragma nounroll
        do {
            vector4 v = next;
            w.at += w.step;
            /* in the end a spare one */
            next = *(const vector4 *)(data + (w.at < w.whole ? w.at : w.whole - 16));
#pragma nounroll /* by clang, which keeps the text short; ptxas does it */
            for (uint32_t half = 0; half < 2; half++, v.xy = v.zw) {
                for (uint32_t k = 0; k < 4; k++)
                    (void)ATOMIC_ADD(&mine[byte_of(v.x, k) * TABLES], 1u);
                for (uint32_t k = 0; k < 4; k++)
                    (void)ATOMIC_ADD(&mine[byte_of(v.y, k) * TABLES], 1u);
            }
        } while (w.at < w.whole);
    }
    if (w.at == w.whole) {
#pragma nounroll
        for (; w.at < w.end; w.at++)
            (void)ATOMIC_ADD(&mine[data[w.at] * TABLES], 1u);
    }
    BARRIER();
    uint32_t sum = 0, byte = THREAD_INDEX;
#pragma nounroll
    /* each lane another bank */
    for (uint32_t k = 0; k < TABLES; k++)
        sum += table[byte * TABLES + (k + byte) % TABLES];
    if (sum)
        (void)ATOMIC_ADD(&results[COUNTS + byte], (uint64_t)sum);
}

KERNEL(checksum)

(const uint8_t *data, uint64_t *results, uint64_t size, uint64_t offset, uint64_t first,
 uint64_t count) {
    SHARED pair8 part[THREADS];
    uint32_t me = THREAD_INDEX;
    walk w = walk_of(size, first, count);
    pair8 sum = 0; /* x: S, y: W */
    uint32_t remainder = (uint32_t)((offset + w.at) % ADLER), step = (uint32_t)(w.step % ADLER);
#pragma nounroll
    while (w.at < w.whole) {
        vector4 v = *(const vector4 *)(data + w.at);
        uint32_t word[4] = { v.x, v.y, v.z, v.w }, s, weighted;
        sum_words(word, 4, &s, &weighted);
        sum.x += s;
        sum.y += weigh(remainder, s, weighted);
        remainder += step;
        if (remainder >= ADLER)
            remainder -= ADLER;
        w.at += w.step;
    }
    if (w.at == w.whole) {
#pragma nounroll
        for (; w.at < w.end; w.at++) {
            uint64_t byte = data[w.at];
            sum.x += byte;
            sum.y += remainder++ * byte;
        }
    }
    part[me] = sum;
#pragma nounroll
    for (uint32_t n = THREADS / 2; n > 0; n /= 2) {
        BARRIER();
        if (me < n)
            part[me] += part[me + n];
    }
    if (me > 0)
        return;
    (void)ATOMIC_ADD(&results[SUM], part[0].x);
    (void)ATOMIC_ADD(&results[WEIGHTED], part[0].y % ADLER);
}

/* Items are words of a row. */
KERNEL(add_rows)

(uint64_t *sum, const uint64_t *rows, uint64_t count, uint64_t first, uint64_t items) {
    uint64_t i = GLOBAL_INDEX();
    if (i < items)
        sum[first + i] = add_column(sum[first + i], rows, count, first + i);
}
