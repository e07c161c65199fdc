/* demo.h - what the demo's kernels compute: the arithmetic, once for the device (demo.cu) and
   for the CPU, and the CPU forms. tools/kernels.sh copies the marked parts into examples/demo.c
   and examples/graph.c. */
#ifndef DEMO_H_INCLUDED
#define DEMO_H_INCLUDED
#include "device.h"

/* >>shared */
enum {
    BLOCK = 16 * 1024, /* bytes of one item of a kernel */
    ADLER = 65521      /* the largest prime below 65536 */
};

/* what a row of results holds: 256 counts, S and W */
enum { COUNTS = 0, SUM = 256, WEIGHTED = 257, WORDS = 258 };

/* Where the items end. */
DEVICE uint64_t end_of(uint64_t size, uint64_t first, uint64_t count) {
    return (first + count) * BLOCK < size ? (first + count) * BLOCK : size;
}

DEVICE uint32_t byte_of(uint32_t word, uint32_t k) {
    return word >> 8 * k & 255;
}

/* Of n words, n at most 16: the sum of the bytes, and of i times byte i. The sums are taken in
   16 bits, two side by side: (0 + 1 + ... + 15) * (255 + 255) fits. */
DEVICE void sum_words(const uint32_t *word, uint32_t n, uint32_t *sum, uint32_t *weighted) {
    uint32_t even = 0, odd = 0, words = 0, both;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = word[i] & 0xff00ff, o = word[i] >> 8 & 0xff00ff;
        even += e;
        odd += o;
        words += i * (e + o);
    }
    both = even + odd;
    *sum = (both & 0xffff) + (both >> 16);
    *weighted =
        4 * ((words & 0xffff) + (words >> 16)) + (odd & 0xffff) + (odd >> 16) + 2 * (both >> 16);
}

/* What bytes with these sums add to W; remainder: of the position of the first of them modulo
   ADLER. */
DEVICE uint64_t weigh(uint32_t remainder, uint32_t sum, uint32_t weighted) {
    return (uint64_t)remainder * sum + weighted;
}

DEVICE uint64_t add_column(uint64_t sum, const uint64_t *rows, uint64_t count, uint64_t column) {
    for (uint64_t r = 0; r < count; r++)
        sum += rows[r * WORDS + column];
    return sum;
}

/* <<shared */

#ifndef __CUDA__
#include <string.h>

/* >>shared */

/* The CPU forms. */
typedef struct piece_args {
    const unsigned char *data; /* the piece; on a multiple of 16 */
    uint64_t *results;         /* WORDS words that are added to */
    uint64_t size;             /* bytes of the piece */
    uint64_t offset;           /* position of its first byte in the input */
} piece_args;

typedef struct add_args {
    uint64_t *sum;        /* WORDS words that are added to */
    const uint64_t *rows; /* count rows of WORDS words */
    uint64_t count;
} add_args;

/* Several threads add to the same results; whole numbers give the same sum in any order. */
static void add_shared(uint64_t *to, uint64_t value) {
    if (value)
        (void)__atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

/* Four tables in turn: equal bytes in a row, as text has them, would otherwise wait for each
   other's increment. */
static int histogram(size_t first, size_t count, const void *args) {
    const piece_args *a = args;
    const unsigned char *p = a->data + first * BLOCK,
                        *end = a->data + end_of(a->size, first, count);
    uint32_t table[4][256], w[2];
    memset(table, 0, sizeof table);
    for (; end - p >= 8; p += 8) {
        memcpy(w, p, 8);
        table[0][byte_of(w[0], 0)]++;
        table[1][byte_of(w[0], 1)]++;
        table[2][byte_of(w[0], 2)]++;
        table[3][byte_of(w[0], 3)]++;
        table[0][byte_of(w[1], 0)]++;
        table[1][byte_of(w[1], 1)]++;
        table[2][byte_of(w[1], 2)]++;
        table[3][byte_of(w[1], 3)]++;
    }
    for (; p < end; p++)
        table[0][*p]++;
    for (int i = 0; i < 256; i++)
        add_shared(&a->results[COUNTS + i],
                   (uint64_t)table[0][i] + table[1][i] + table[2][i] + table[3][i]);
    return 0;
}

static int checksum(size_t first, size_t count, const void *args) {
    const piece_args *a = args;
    uint64_t at = (uint64_t)first * BLOCK, end = end_of(a->size, first, count), sum = 0,
             weighted = 0;
    uint32_t remainder = (uint32_t)((a->offset + at) % ADLER), word[16], s, w;
    for (; end - at >= sizeof word; at += sizeof word) {
        memcpy(word, a->data + at, sizeof word);
        sum_words(word, 16, &s, &w);
        sum += s;
        weighted += weigh(remainder, s, w);
        remainder += (uint32_t)sizeof word;
        if (remainder >= ADLER)
            remainder -= ADLER;
    }
    for (; at < end; at++) {
        sum += a->data[at];
        weighted += weigh(remainder++, a->data[at], 0);
    }
    add_shared(&a->results[SUM], sum);
    add_shared(&a->results[WEIGHTED], weighted % ADLER);
    return 0;
}

/* Items are words. */
static int add_rows(size_t first, size_t count, const void *args) {
    const add_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->sum[i] = add_column(a->sum[i], a->rows, a->count, i);
    return 0;
}

/* <<shared */
#endif
#endif
