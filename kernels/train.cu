/* train.cu - the kernels of examples/train.c. Of all but the last a block does one item, with
   HIDDEN threads. */
#include "train.h"

/* Items are images. */
KERNEL(hidden)(const uint8_t *rows, const float *w1, float *h) {
    uint64_t i = BLOCK_INDEX;
    uint32_t j = THREAD_INDEX;
    units_of(rows + i * ROW, w1, j, 1, h + i * HIDDEN + j);
}

KERNEL(predict)(const float *h, const float *w2, float *p) {
    SHARED float score[CLASSES], power[CLASSES];
    uint64_t i = BLOCK_INDEX;
    uint32_t c = THREAD_INDEX;
    if (c < CLASSES)
        score[c] = score_of(h + i * HIDDEN, w2, c);
    BARRIER();
    if (c < CLASSES)
        power[c] = exponential(score[c] - largest(score));
    BARRIER();
    if (c < CLASSES)
        p[i * CLASSES + c] = power[c] / sum_of(power);
}

KERNEL(blame)(const uint8_t *rows, const float *p, const float *w2, const float *h, float *dh) {
    uint64_t i = BLOCK_INDEX;
    uint32_t j = THREAD_INDEX;
    dh[i * HIDDEN + j] = blame_of_unit(rows + i * ROW, p + i * CLASSES, w2, h + i * HIDDEN, j);
}

/* Items are the rows of W1, then those of W2. */
KERNEL(slopes)

(const uint8_t *rows, const float *h, const float *p, const float *dh, float *g1, float *g2,
 uint64_t images) {
    uint32_t r = BLOCK_INDEX, t = THREAD_INDEX;
    if (r <= PIXELS)
        slopes1(rows, dh, images, r, t, 1, g1 + r * HIDDEN + t);
    else if (t < CLASSES)
        g2[(r - (PIXELS + 1)) * CLASSES + t] = slope2(rows, h, p, images, r - (PIXELS + 1), t);
}

/* Items are weights, one for each thread. */
KERNEL(step)(float *w, float *v, const float *g, float rate, uint64_t items) {
    uint64_t e = GLOBAL_INDEX();
    if (e < items)
        descend(&w[e], &v[e], g[e], rate);
}
