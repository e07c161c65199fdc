/* demo.kernels.h - the kernels of demo.c and graph.c, for the CPU and for GPUs: how often each byte
   occurs in a piece of data, and the sums of its checksum.

   After a change, `tools/devstream-kernels examples/demo.kernels.h` writes the CUDA form. */
#ifndef DEMO_KERNELS_H
#define DEMO_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("demo.ptx.h")
#include "demo.ptx.h"
#endif

/* A launch has a block for each BLOCK bytes. A block goes through its bytes in tiles: a thread
   takes WORDS_EACH words of a tile, and neighbours take neighbouring words. */
enum { THREADS = 256, WORDS_EACH = 4, TILE = 4 * WORDS_EACH * THREADS, BLOCK = 16 * TILE };

/* The modulus of Adler-32, the largest prime below 65536. */
enum { ADLER = 65521 };

/* A row of results: 256 counts, the sum S of the bytes, and the sum W of the bytes times their
   positions, from which multiples of ADLER may be missing. */
enum { COUNTS = 0, SUM = 256, WEIGHTED = 257, WORDS = 258 };

DS_KERNEL_FN uint64_t block_end(uint64_t size, uint64_t block) {
    return size - block * BLOCK < BLOCK ? size : (block + 1) * BLOCK;
}

/* A byte has a counter in each of TABLES tables. On a GPU each lane of a warp has a table, and the
   tables are interleaved: all counters of a lane are in one bank of the shared memory, so no two
   lanes wait for each other. On the CPU a thread uses the tables in turn, because an increment
   waits for the one before if both have the same address. */
#ifdef DEVSTREAM_KERNEL_DEVICE
enum { TABLES = 32 };

DS_KERNEL_FN uint32_t counter_of(uint32_t byte, uint32_t thread, uint32_t turn) {
    (void)turn;
    return byte * TABLES + thread % TABLES;
}
#else
enum { TABLES = 4 };

DS_KERNEL_FN uint32_t counter_of(uint32_t byte, uint32_t thread, uint32_t turn) {
    (void)thread;
    return turn % TABLES * 256 + byte;
}
#endif

DS_KERNEL_FN void count_byte(uint32_t *table, uint32_t byte, uint32_t thread, uint32_t turn) {
    (void)ds_atomic_add_block_u32(&table[counter_of(byte, thread, turn)], 1);
}

#ifdef DEVSTREAM_KERNEL_DEVICE
/* The same counter as counter_of, but its distance in bytes is computed by a shift of the word and
   one logical instruction. shifted: has the byte at bit 7, which multiplies it by 4 * TABLES.
   lane_bytes: 4 * lane. */
DS_KERNEL_FN void count_at(uint32_t *table, uint32_t shifted, uint32_t lane_bytes) {
    uint32_t distance = (shifted & 255 * 4 * TABLES) | lane_bytes;
    (void)ds_atomic_add_block_u32((uint32_t *)((char *)table + distance), 1);
}

DS_KERNEL_FN void count_word(uint32_t *table, uint32_t word, uint32_t thread) {
    uint32_t lane_bytes = thread % TABLES * 4;
    count_at(table, word << 7, lane_bytes);
    count_at(table, word >> 1, lane_bytes);
    count_at(table, word >> 9, lane_bytes);
    count_at(table, word >> 17, lane_bytes);
}
#else
DS_KERNEL_FN void count_word(uint32_t *table, uint32_t word, uint32_t thread) {
    count_byte(table, word & 255, thread, 0);
    count_byte(table, word >> 8 & 255, thread, 1);
    count_byte(table, word >> 16 & 255, thread, 2);
    count_byte(table, word >> 24, thread, 3);
}
#endif

/* Adds the counts to the results. */
DS_BLOCK_KERNEL_1D(histogram, THREADS, DS_READ(uint32_t, data, size / 4),
                   DS_READ_WRITE(uint64_t, results, WORDS), DS_VALUE(uint64_t, size)) {
    DS_SHARED(uint32_t, table, 256 * TABLES);
    const uint64_t end = block_end(size, DS_BLOCK_X);
    uint64_t tile = (uint64_t)DS_BLOCK_X * BLOCK;
    DS_THREADS {
        for (uint32_t k = 0; k < TABLES; k++)
            table[k * THREADS + DS_THREAD_X] = 0;
    }
    for (; end - tile >= TILE; tile += TILE) {
        DS_THREADS {
            DS_UNROLL
            for (uint32_t k = 0; k < WORDS_EACH; k++) {
                count_word(table, data[tile / 4 + k * THREADS + DS_THREAD_X], DS_THREAD_X);
            }
        }
    }
    DS_THREADS {
        for (uint64_t at = tile + DS_THREAD_X; at < end; at += THREADS)
            count_byte(table, ((const uint8_t *)data)[at], DS_THREAD_X, 0);
    }
    DS_THREADS {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < TABLES; k++)
            sum += table[counter_of(DS_THREAD_X, DS_THREAD_X + k, k)];
        if (sum)
            (void)ds_atomic_add_u64(&results[COUNTS + DS_THREAD_X], sum);
    }
}

DS_KERNEL_FN uint32_t add_halves(uint32_t x) {
    return (x & 0xffff) + (x >> 16);
}

/* Adds S and W of the data to the results. offset: position of the first byte in the input. */
DS_BLOCK_KERNEL_1D(checksum, THREADS, DS_READ(uint32_t, data, size / 4),
                   DS_READ_WRITE(uint64_t, results, WORDS), DS_VALUE(uint64_t, size),
                   DS_VALUE(uint64_t, offset)) {
    DS_SHARED(uint64_t, sums, THREADS);
    DS_SHARED(uint64_t, weights, THREADS);
    DS_PRIVATE(uint32_t, sum);    /* of the thread's bytes in tiles */
    DS_PRIVATE(uint32_t, before); /* total over the tiles: `sum` of those before */
    DS_PRIVATE(uint32_t, inside); /* bytes times their distance from the thread's first in a tile */
    const uint64_t start = (uint64_t)DS_BLOCK_X * BLOCK;
    const uint64_t end = block_end(size, DS_BLOCK_X);
    const uint64_t position = (offset + start) % ADLER;
    uint64_t tile = start;
    DS_THREADS DS_OWN(sum) = DS_OWN(before) = DS_OWN(inside) = 0;
    for (; end - tile >= TILE; tile += TILE) {
        DS_THREADS {
            /* Two sums side by side, in 16 bits each: bytes 0 and 2 of words, bytes 1 and 3, and
               words times their number: the last word goes first, so it is added to `words` with
               each of the others. */
            uint32_t even = 0;
            uint32_t odd = 0;
            uint32_t words = 0;
            DS_UNROLL
            for (uint32_t k = 0; k < WORDS_EACH; k++) {
                uint32_t number = WORDS_EACH - 1 - k;
                uint32_t word = data[tile / 4 + number * THREADS + DS_THREAD_X];
                words += even + odd;
                even += word & 0xff00ff;
                odd += word >> 8 & 0xff00ff;
            }
            DS_OWN(before) += DS_OWN(sum);
            DS_OWN(sum) += add_halves(even + odd);
            DS_OWN(inside) +=
                4 * THREADS * add_halves(words) + add_halves(odd) + 2 * ((even + odd) >> 16);
        }
    }
    DS_THREADS {
        /* The weight that all bytes would have in the last tile, less TILE for each later tile:
           `before` has the bytes of a tile once for each later one. */
        uint64_t all = DS_OWN(sum);
        uint64_t last = position + (tile - start) - TILE + 4 * DS_THREAD_X;
        uint64_t weight = last * all - (uint64_t)TILE * DS_OWN(before) + DS_OWN(inside);
        for (uint64_t at = tile + DS_THREAD_X; at < end; at += THREADS) {
            uint64_t byte = ((const uint8_t *)data)[at];
            all += byte;
            weight += (position + (at - start)) * byte;
        }
        sums[DS_THREAD_X] = all;
        weights[DS_THREAD_X] = weight;
    }
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        DS_THREADS {
            if (DS_THREAD_X < half) {
                sums[DS_THREAD_X] += sums[DS_THREAD_X + half];
                weights[DS_THREAD_X] += weights[DS_THREAD_X + half];
            }
        }
    }
    DS_THREADS {
        if (DS_THREAD_X == 0) {
            (void)ds_atomic_add_u64(&results[SUM], sums[0]);
            (void)ds_atomic_add_u64(&results[WEIGHTED], weights[0] % ADLER);
        }
    }
}

/* Adds `rows` rows of n words to the sum. */
DS_KERNEL_1D(add_rows, i, n, DS_READ_WRITE(uint64_t, sum, n), DS_READ(uint64_t, words, rows *n),
             DS_VALUE(uint64_t, rows)) {
    for (uint64_t r = 0; r < rows; r++)
        sum[i] += words[r * n + i];
}
#endif
