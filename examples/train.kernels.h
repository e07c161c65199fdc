/* train.kernels.h - the kernels of train.c, for the CPU and for GPUs. A number is the work of one
   thread, and sums are taken in the order of their index, so both forms give the same bits.

   After a change, `tools/devstream-kernels examples/train.kernels.h` writes the CUDA form. */
#ifndef TRAIN_KERNELS_H
#define TRAIN_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("train.ptx.h")
#include "train.ptx.h"
#endif

enum { PIXELS = 64, HIDDEN = 64, CLASSES = 10 };

enum { ROW = PIXELS + 1, BLACK = 16 }; /* a row of data: the pixels, 0 to BLACK, and the digit */

/* The network: h = max(0, W1 x), p = softmax(W2 h). Of each matrix the last row belongs to an
   input that is always 1. */
enum { W1_SIZE = (PIXELS + 1) * HIDDEN, W2_SIZE = (HIDDEN + 1) * CLASSES };

/* Pixels of one thread loop of `hidden`: so many products are unrolled. */
enum { STRIP = 16 };

DS_KERNEL_FN float pixel(const uint8_t *row, uint32_t k) {
    return k < PIXELS ? (float)row[k] / (float)BLACK : 1.0f;
}

/* Computes the hidden units of a picture per block, a unit per thread. */
DS_BLOCK_KERNEL_1D(hidden, HIDDEN, DS_READ(uint8_t, rows, ROW *DS_GRID_X),
                   DS_READ(float, w1, W1_SIZE), DS_WRITE(float, h, HIDDEN *DS_GRID_X)) {
    DS_PRIVATE(float, sum);
    const uint8_t *row = rows + (size_t)DS_BLOCK_X * ROW;
    DS_THREADS DS_OWN(sum) = 0;
    for (uint32_t first = 0; first < PIXELS; first += STRIP) {
        DS_THREADS {
            DS_UNROLL
            for (uint32_t k = first; k < first + STRIP; k++)
                DS_OWN(sum) += pixel(row, k) * w1[k * HIDDEN + DS_THREAD_X];
        }
    }
    DS_THREADS {
        float all = DS_OWN(sum) + w1[PIXELS * HIDDEN + DS_THREAD_X];
        h[(size_t)DS_BLOCK_X * HIDDEN + DS_THREAD_X] = all > 0 ? all : 0;
    }
}

/* Returns e to the power of x for x <= 0; below -87 it is 0. x = n ln 2 + r, and for r a
   polynomial, that of Cephes' expf. Every 31st number was tried: it is off by 0.98 ulp at most. */
DS_KERNEL_FN float exponential(float x) {
    union {
        uint32_t bits;
        float value;
    } power;

    if (!(x >= -87.0f))
        return 0;
    int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    float r = x - (float)n * 0.693359375f + (float)n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    power.bits = (uint32_t)(n + 127) << 23;
    return (p * (r * r) + r + 1.0f) * power.value;
}

DS_KERNEL_FN float largest(const float *scores) {
    float most = scores[0];
    for (uint32_t c = 1; c < CLASSES; c++)
        most = scores[c] > most ? scores[c] : most;
    return most;
}

DS_KERNEL_FN float sum_of(const float *powers) {
    float sum = 0;
    for (uint32_t c = 0; c < CLASSES; c++)
        sum += powers[c];
    return sum;
}

/* Computes the probabilities of a picture's classes per block, a class per thread: e to the power
   of the score less the largest score, divided by the sum over all classes. */
DS_BLOCK_KERNEL_1D(predict, CLASSES, DS_READ(float, h, HIDDEN *DS_GRID_X),
                   DS_READ(float, w2, W2_SIZE), DS_WRITE(float, p, CLASSES *DS_GRID_X)) {
    DS_SHARED(float, score, CLASSES);
    DS_SHARED(float, power, CLASSES);
    const float *units = h + (size_t)DS_BLOCK_X * HIDDEN;
    DS_THREADS {
        float sum = w2[HIDDEN * CLASSES + DS_THREAD_X];
        for (uint32_t j = 0; j < HIDDEN; j++)
            sum += units[j] * w2[j * CLASSES + DS_THREAD_X];
        score[DS_THREAD_X] = sum;
    }
    DS_THREADS power[DS_THREAD_X] = exponential(score[DS_THREAD_X] - largest(score));
    DS_THREADS p[(size_t)DS_BLOCK_X * CLASSES + DS_THREAD_X] = power[DS_THREAD_X] / sum_of(power);
}

/* The slope of the loss, -ln p[digit], along the score of a class. */
DS_KERNEL_FN float score_slope(const uint8_t *row, const float *p, uint32_t c) {
    return c == row[PIXELS] ? p[c] - 1.0f : p[c];
}

/* Computes the slope of the loss along the sum of unit j of picture i. */
DS_KERNEL_2D(unit_slopes, j, i, units, images, DS_READ(uint8_t, rows, ROW *images),
             DS_READ(float, p, CLASSES *images), DS_READ(float, w2, W2_SIZE),
             DS_READ(float, h, units *images), DS_WRITE(float, dh, units *images)) {
    float sum = 0;
    for (uint32_t c = 0; c < CLASSES; c++)
        sum += score_slope(rows + i * ROW, p + i * CLASSES, c) * w2[j * CLASSES + c];
    dh[i * units + j] = h[i * units + j] > 0 ? sum : 0;
}

/* Computes the slopes of the loss of all pictures along a row of W1 per block, a weight per
   thread. */
DS_BLOCK_KERNEL_1D(slopes_1, HIDDEN, DS_READ(uint8_t, rows, ROW *images),
                   DS_READ(float, dh, HIDDEN *images), DS_WRITE(float, g1, W1_SIZE),
                   DS_VALUE(uint64_t, images)) {
    DS_PRIVATE(float, sum);
    DS_THREADS DS_OWN(sum) = 0;
    for (uint64_t i = 0; i < images; i++) {
        const float x = pixel(rows + i * ROW, DS_BLOCK_X);
        DS_THREADS DS_OWN(sum) += x * dh[i * HIDDEN + DS_THREAD_X];
    }
    DS_THREADS g1[(size_t)DS_BLOCK_X * HIDDEN + DS_THREAD_X] = DS_OWN(sum);
}

/* Computes the slope of the loss of all pictures along weight c of row j of W2. */
DS_KERNEL_2D(slopes_2, c, j, classes, inputs, DS_READ(uint8_t, rows, ROW *images),
             DS_READ(float, h, HIDDEN *images), DS_READ(float, p, classes *images),
             DS_WRITE(float, g2, classes *inputs), DS_VALUE(uint64_t, images)) {
    float sum = 0;
    for (uint64_t i = 0; i < images; i++) {
        float slope = score_slope(rows + i * ROW, p + i * classes, (uint32_t)c);
        sum += j < HIDDEN ? h[i * HIDDEN + j] * slope : slope;
    }
    g2[j * classes + c] = sum;
}

/* A weight goes downhill, with momentum. */
DS_KERNEL_1D(step, i, n, DS_READ_WRITE(float, w, n), DS_READ_WRITE(float, v, n),
             DS_READ(float, g, n), DS_VALUE(float, rate)) {
    v[i] = v[i] * 0.9f + g[i] * rate;
    w[i] = w[i] - v[i];
}
#endif
