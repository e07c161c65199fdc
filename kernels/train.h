/* train.h - what the kernels of examples/train.c compute: the arithmetic, once for the device
   (train.cu) and for the CPU, and the CPU forms. tools/kernels.sh copies the marked parts into
   examples/train.c. */
#ifndef TRAIN_H_INCLUDED
#define TRAIN_H_INCLUDED
#include "device.h"

#ifdef __CUDA__
/* in front of a loop, since the text of a kernel has to be short */
#define ROLLED _Pragma("nounroll")
#endif
/* >>shared */
#ifndef ROLLED
#define ROLLED
#endif
enum { PIXELS = 64, HIDDEN = 64, CLASSES = 10 };

enum { ROW = PIXELS + 1, BLACK = 16 }; /* a row of data: the pixels, 0 to BLACK, and the digit */

/* The network: h = max(0, W1 x), p = softmax(W2 h). Of each matrix the last row belongs to an
   input that is always 1. */
enum { W1_SIZE = (PIXELS + 1) * HIDDEN, W2_SIZE = (HIDDEN + 1) * CLASSES };

/* Every number is the work of one thread, and every sum is taken in the order of its index: so
   each form gives the same bits. */

/* e to the power of x for x <= 0; below -87 it is 0. x = n ln 2 + r, and for r a polynomial,
   that of Cephes' expf. Every 31st number was tried: it is off by 0.98 ulp at most. */
DEVICE float exponential(float x) {
    union {
        uint32_t bits;
        float value;
    } power;

    if (!(x >= -87.0f))
        return 0;
    int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    float r = x - (float)n * 0.693359375f + (float)n * 2.12194440e-4f, p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    power.bits = (uint32_t)(n + 127) << 23;
    return (p * (r * r) + r + 1.0f) * power.value;
}

DEVICE float pixel(const uint8_t *row, uint32_t k) {
    return k < PIXELS ? (float)row[k] / BLACK : 1.0f;
}

/* sum[u] += x * w[u] for u < n: on the CPU for a whole row at once, on the device for the one
   number of a thread. */
DEVICE void add_products(float *sum, float x, const float *w, uint32_t n) {
    for (uint32_t u = 0; u < n; u++)
        sum[u] += x * w[u];
}

/* Hidden units j to j + n - 1 of an image. */
DEVICE void units_of(const uint8_t *row, const float *w1, uint32_t j, uint32_t n, float *h) {
    float sum[HIDDEN] = { 0 };
    ROLLED for (uint32_t k = 0; k <= PIXELS; k++)
        add_products(sum, pixel(row, k), w1 + k * HIDDEN + j, n);
    for (uint32_t u = 0; u < n; u++)
        h[u] = sum[u] > 0 ? sum[u] : 0;
}

/* Probabilities: the score of a class, e to the power of it less the largest score, and that
   divided by the sum over all classes. */
DEVICE float score_of(const float *h, const float *w2, uint32_t c) {
    float score = w2[HIDDEN * CLASSES + c];
    ROLLED for (uint32_t j = 0; j < HIDDEN; j++) score += h[j] * w2[j * CLASSES + c];
    return score;
}

DEVICE float largest(const float *scores) {
    float most = scores[0];
    ROLLED for (uint32_t c = 1; c < CLASSES; c++) most = scores[c] > most ? scores[c] : most;
    return most;
}

DEVICE float sum_of(const float *powers) {
    float sum = 0;
    ROLLED for (uint32_t c = 0; c < CLASSES; c++) sum += powers[c];
    return sum;
}

/* What the loss, -ln p[digit], changes by with the score of a class, and with the sum of a
   hidden unit. */
DEVICE float blame_of_class(const uint8_t *row, const float *p, uint32_t c) {
    return c == row[PIXELS] ? p[c] - 1.0f : p[c];
}

DEVICE float blame_of_unit(const uint8_t *row, const float *p, const float *w2, const float *h,
                           uint32_t j) {
    float sum = 0;
    ROLLED for (uint32_t c = 0; c < CLASSES; c++) sum +=
        blame_of_class(row, p, c) * w2[j * CLASSES + c];
    return h[j] > 0 ? sum : 0;
}

/* What the loss of all images changes by with weights j to j + n - 1 of row k of W1, and with
   weight c of row j of W2. */
DEVICE void slopes1(const uint8_t *rows, const float *dh, uint64_t images, uint32_t k, uint32_t j,
                    uint32_t n, float *g) {
    float sum[HIDDEN] = { 0 };
    ROLLED for (uint64_t i = 0; i < images; i++)
        add_products(sum, pixel(rows + i * ROW, k), dh + i * HIDDEN + j, n);
    for (uint32_t u = 0; u < n; u++)
        g[u] = sum[u];
}

DEVICE float slope2(const uint8_t *rows, const float *h, const float *p, uint64_t images,
                    uint32_t j, uint32_t c) {
    float sum = 0;
    ROLLED for (uint64_t i = 0; i < images; i++) {
        float blame = blame_of_class(rows + i * ROW, p + i * CLASSES, c);
        sum += j < HIDDEN ? h[i * HIDDEN + j] * blame : blame;
    }
    return sum;
}

/* A weight goes downhill, with momentum. */
DEVICE void descend(float *w, float *v, float slope, float rate) {
    *v = *v * 0.9f + slope * rate;
    *w = *w - *v;
}

/* <<shared */

#ifndef __CUDA__
/* >>shared */

/* The CPU forms. */
typedef struct pass_args {
    const uint8_t *rows; /* the images */
    const float *w1, *w2;
    float *h, *p;   /* hidden units and probabilities of each image */
    float *dh;      /* the units' blame */
    float *g1, *g2; /* slopes */
    uint64_t images;
} pass_args;

typedef struct step_args {
    float *w, *v;   /* weights and their momentum */
    const float *g; /* slopes */
    float rate;
} step_args;

static int hidden(size_t first, size_t count, const void *args) {
    const pass_args *a = args;
    for (size_t i = first; i < first + count; i++)
        units_of(a->rows + i * ROW, a->w1, 0, HIDDEN, a->h + i * HIDDEN);
    return 0;
}

static int predict(size_t first, size_t count, const void *args) {
    const pass_args *a = args;
    for (size_t i = first; i < first + count; i++) {
        float x[CLASSES], most, sum;
        for (uint32_t c = 0; c < CLASSES; c++)
            x[c] = score_of(a->h + i * HIDDEN, a->w2, c);
        most = largest(x);
        for (uint32_t c = 0; c < CLASSES; c++)
            x[c] = exponential(x[c] - most);
        sum = sum_of(x);
        for (uint32_t c = 0; c < CLASSES; c++)
            a->p[i * CLASSES + c] = x[c] / sum;
    }
    return 0;
}

static int blame(size_t first, size_t count, const void *args) {
    const pass_args *a = args;
    for (size_t i = first; i < first + count; i++)
        for (uint32_t j = 0; j < HIDDEN; j++)
            a->dh[i * HIDDEN + j] =
                blame_of_unit(a->rows + i * ROW, a->p + i * CLASSES, a->w2, a->h + i * HIDDEN, j);
    return 0;
}

/* Items are the rows of W1, then those of W2. */
static int slopes(size_t first, size_t count, const void *args) {
    const pass_args *a = args;
    for (uint32_t r = (uint32_t)first; r < first + count; r++) {
        if (r <= PIXELS)
            slopes1(a->rows, a->dh, a->images, r, 0, HIDDEN, a->g1 + r * HIDDEN);
        else
            for (uint32_t j = r - (PIXELS + 1), c = 0; c < CLASSES; c++)
                a->g2[j * CLASSES + c] = slope2(a->rows, a->h, a->p, a->images, j, c);
    }
    return 0;
}

/* Items are weights. */
static int step(size_t first, size_t count, const void *args) {
    const step_args *a = args;
    for (size_t e = first; e < first + count; e++)
        descend(&a->w[e], &a->v[e], a->g[e], a->rate);
    return 0;
}

/* <<shared */
#endif
#endif
