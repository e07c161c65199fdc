/* train.c - trains a small neural network on pictures of digits, on one device and on four, and
   shows that both give the same bits.

   Compile:  cc -O2 -I. examples/train.c -o train -pthread
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA -I. -I$CUDA_HOME/include examples/train.c -o train \
                -L$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread
   Run:      ./train                      from the project's folder; ./train --help has the options

   The data are 1,797 pictures of 8x8 pixels. Every fifth one is held out: the network never learns
   from it, and is judged by it.

   The network has one hidden layer. It learns from a batch of 64 pictures at a time, and each batch
   goes the same way:

       scatter               the batch, from pinned memory: 16 pictures to each of four parts
       broadcast_coalesced   the weights, from the first device to all
       hidden, predict       forwards, on each part's stream: probabilities of the ten digits
       blame, slopes         and backwards: what each weight should change by, as far as these 16
                             pictures are concerned
       reduce_add_coalesced  the slopes of the four parts, to the first device
       gather                the probabilities, into pinned memory, for the loss that is shown
       step                  the weights change, on the first device

   Nothing here waits: the host puts a whole pass over the pictures on the streams and then waits
   once. Memory is allocated for every batch and freed as soon as the last use of it was put on its
   stream, which costs the caching allocator next to nothing.

   This is done twice, with all four parts on one stream of the first device, then with one device
   for each part (where there are fewer devices, some have more than one part). A batch is always
   cut into the same parts, every sum is taken in the same order and no number is left to a
   library's mathematics, so that the weights are the same in the end, bit for bit, whatever the
   number and kind of devices.

   What it checks: the weights of both runs are equal; at least 95 % of the pictures that were held
   out are recognised.

   Exit status: 0 fine, 1 something failed or is wrong (standard error says what). */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FINE = 0, FAILED = 1 };

#define CHECK(call)                              \
    do {                                         \
        if ((call) < 0) {                        \
            complain("%s", ds_error_get_last()); \
            return FAILED;                       \
        }                                        \
    } while (0)

/* One line on standard error, in place of the progress bar if there is one. */
static int bar_drawn;
static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void complain(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fputs(bar_drawn ? "\r\033[Ktrain: " : "train: ", stderr);
    bar_drawn = 0;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* What the kernels compute is written once, in kernels/, for the CPU and for CUDA; the PTX below
   is the CUDA form. No compiler may fuse a product with the sum that it goes into, nor change
   the order of sums: that would be other bits. */
#ifdef __FAST_MATH__
#error "examples/train.c promises the same bits everywhere: compile it without -ffast-math"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

/* clang-format off */
/* >>device-code kernels/train.cu: written by make kernels */
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
static inline float exponential(float x) {
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

static inline float pixel(const uint8_t *row, uint32_t k) {
    return k < PIXELS ? (float)row[k] / BLACK : 1.0f;
}

/* sum[u] += x * w[u] for u < n: on the CPU for a whole row at once, on the device for the one
   number of a thread. */
static inline void add_products(float *sum, float x, const float *w, uint32_t n) {
    for (uint32_t u = 0; u < n; u++)
        sum[u] += x * w[u];
}

/* Hidden units j to j + n - 1 of an image. */
static inline void units_of(const uint8_t *row, const float *w1, uint32_t j, uint32_t n, float *h) {
    float sum[HIDDEN] = { 0 };
    ROLLED for (uint32_t k = 0; k <= PIXELS; k++)
        add_products(sum, pixel(row, k), w1 + k * HIDDEN + j, n);
    for (uint32_t u = 0; u < n; u++)
        h[u] = sum[u] > 0 ? sum[u] : 0;
}

/* Probabilities: the score of a class, e to the power of it less the largest score, and that
   divided by the sum over all classes. */
static inline float score_of(const float *h, const float *w2, uint32_t c) {
    float score = w2[HIDDEN * CLASSES + c];
    ROLLED for (uint32_t j = 0; j < HIDDEN; j++) score += h[j] * w2[j * CLASSES + c];
    return score;
}

static inline float largest(const float *scores) {
    float most = scores[0];
    ROLLED for (uint32_t c = 1; c < CLASSES; c++) most = scores[c] > most ? scores[c] : most;
    return most;
}

static inline float sum_of(const float *powers) {
    float sum = 0;
    ROLLED for (uint32_t c = 0; c < CLASSES; c++) sum += powers[c];
    return sum;
}

/* What the loss, -ln p[digit], changes by with the score of a class, and with the sum of a
   hidden unit. */
static inline float blame_of_class(const uint8_t *row, const float *p, uint32_t c) {
    return c == row[PIXELS] ? p[c] - 1.0f : p[c];
}

static inline float blame_of_unit(const uint8_t *row, const float *p, const float *w2, const float *h,
                           uint32_t j) {
    float sum = 0;
    ROLLED for (uint32_t c = 0; c < CLASSES; c++) sum +=
        blame_of_class(row, p, c) * w2[j * CLASSES + c];
    return h[j] > 0 ? sum : 0;
}

/* What the loss of all images changes by with weights j to j + n - 1 of row k of W1, and with
   weight c of row j of W2. */
static inline void slopes1(const uint8_t *rows, const float *dh, uint64_t images, uint32_t k, uint32_t j,
                    uint32_t n, float *g) {
    float sum[HIDDEN] = { 0 };
    ROLLED for (uint64_t i = 0; i < images; i++)
        add_products(sum, pixel(rows + i * ROW, k), dh + i * HIDDEN + j, n);
    for (uint32_t u = 0; u < n; u++)
        g[u] = sum[u];
}

static inline float slope2(const uint8_t *rows, const float *h, const float *p, uint64_t images,
                    uint32_t j, uint32_t c) {
    float sum = 0;
    ROLLED for (uint64_t i = 0; i < images; i++) {
        float blame = blame_of_class(rows + i * ROW, p + i * CLASSES, c);
        sum += j < HIDDEN ? h[i * HIDDEN + j] * blame : blame;
    }
    return sum;
}

/* A weight goes downhill, with momentum. */
static inline void descend(float *w, float *v, float slope, float rate) {
    *v = *v * 0.9f + slope * rate;
    *w = *w - *v;
}


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


static const char ptx_hidden[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry hidden( .param .u64 p0, .param .u64 p1, .param .u64 p2 ) { .reg .pred %p<3>; .reg .b16 %rs<2>;\n"
    ".reg .b32 %r<5>; .reg .f32 %f<13>; .reg .b64 %d<25>; ld.param.u64 %d12,[p0]; ld.param.u64 %d13,[p2];\n"
    "cvta.to.global.u64 %d1,%d13; ld.param.u64 %d14,[p1]; cvta.to.global.u64 %d15,%d14; cvta.to.global.u64 %d16,%d12;\n"
    "mov.u32 %r1,%ctaid.x; cvt.u64.u32 %d2,%r1; mov.u32 %r2,%tid.x; mul.wide.u32 %d17,%r1,65; add.s64 %d3,%d16,%d17;\n"
    "cvt.u64.u32 %d4,%r2; mul.wide.u32 %d18,%r2,4; add.s64 %d23,%d15,%d18; mov.f32 %f11,0f00000000; mov.u64 %d24,0;\n"
    "mov.f32 %f6,0f3F800000; bra.uni L1;\n"
    "L3: ld.global.f32 %f8,[%d23]; mul.rn.f32 %f9,%f12,%f8; add.rn.f32 %f11,%f11,%f9; add.s64 %d24,%d24,1;\n"
    "cvt.u32.u64 %r4,%d24; add.s64 %d23,%d23,256; setp.ne.s32 %p2,%r4,65; @%p2 bra L1; bra.uni L4;\n"
    "L1: cvt.u32.u64 %r3,%d24; setp.eq.s32 %p1,%r3,64; mov.f32 %f12,%f6; @%p1 bra L3; add.s64 %d8,%d3,%d24;\n"
    "ld.global.u8 %rs1,[%d8]; cvt.rn.f32.u16 %f7,%rs1; mul.rn.f32 %f12,%f7,0f3D800000; bra.uni L3;\n"
    "L4: shl.b64 %d19,%d2,8; add.s64 %d20,%d1,%d19; shl.b64 %d21,%d4,2; add.s64 %d22,%d20,%d21;\n"
    "max.f32 %f10,%f11,0f00000000; st.global.f32 [%d22],%f10; ret; }\n"; /* 1176 characters */
static const char ptx_predict[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry predict( .param .u64 p0, .param .u64 p1, .param .u64 p2 ) { .reg .pred %p<9>; .reg .b32 %r<12>;\n"
    ".reg .f32 %f<49>; .reg .b64 %d<57>; .shared .align 4 .b8 s_score[40]; .shared .align 4 .b8 s_power[40];\n"
    "mov.u32 %r4,%ctaid.x; cvt.u64.u32 %d4,%r4; mov.u32 %r11,%tid.x; setp.gt.u32 %p1,%r11,9; cvt.u64.u32 %d50,%r11;\n"
    "mul.wide.u32 %d51,%r11,4; mov.u64 %d53,s_score; @%p1 bra L4; ld.param.u64 %d15,[p0]; ld.param.u64 %d17,[p1];\n"
    "cvta.to.global.u64 %d2,%d17; cvta.to.global.u64 %d3,%d15; shl.b64 %d19,%d4,8; add.s64 %d5,%d3,%d19;\n"
    "add.s64 %d21,%d2,%d51; ld.global.f32 %f45,[%d21+2560]; mov.u64 %d54,0;\n"
    "L2: add.s64 %d22,%d5,%d54; ld.global.f32 %f14,[%d22]; mul.wide.u32 %d23,%r11,4; add.s64 %d24,%d2,%d23;\n"
    "ld.global.f32 %f15,[%d24]; mul.rn.f32 %f16,%f14,%f15; add.rn.f32 %f45,%f45,%f16; add.s64 %d54,%d54,4;\n"
    "cvt.u32.u64 %r5,%d54; add.s32 %r11,%r11,10; setp.ne.s32 %p2,%r5,256; @%p2 bra L2; shl.b64 %d25,%d50,2;\n"
    "add.s64 %d27,%d53,%d25; st.shared.f32 [%d27],%f45;\n"
    "L4: bar.sync 0; mov.u64 %d49,s_power; @%p1 bra L10; add.s64 %d31,%d53,%d51; ld.shared.f32 %f4,[%d31]; mov.u64 %d55,4;\n"
    "ld.shared.f32 %f46,[s_score];\n"
    "L6: add.s64 %d33,%d53,%d55; ld.shared.f32 %f17,[%d33]; setp.gt.f32 %p4,%f17,%f46; selp.f32 %f46,%f17,%f46,%p4;\n"
    "add.s64 %d55,%d55,4; cvt.u32.u64 %r6,%d55; setp.ne.s32 %p5,%r6,40; @%p5 bra L6; sub.rn.f32 %f8,%f4,%f46;\n"
    "setp.ltu.f32 %p6,%f8,0fC2AE0000; mov.f32 %f47,0f00000000; @%p6 bra L9; mul.rn.f32 %f19,%f8,0f3FB8AA3B;\n"
    "add.rn.f32 %f20,%f19,0fBF000000; cvt.rzi.s32.f32 %r7,%f20; cvt.rn.f32.s32 %f21,%r7; mul.rn.f32 %f22,%f21,0fBF318000;\n"
    "add.rn.f32 %f23,%f8,%f22; mul.rn.f32 %f24,%f21,0f395E8083; add.rn.f32 %f25,%f24,%f23; mul.rn.f32 %f26,%f25,0f39506967;\n"
    "add.rn.f32 %f27,%f26,0f3AB743CE; mul.rn.f32 %f28,%f25,%f27; add.rn.f32 %f29,%f28,0f3C088908;\n"
    "mul.rn.f32 %f30,%f25,%f29; add.rn.f32 %f31,%f30,0f3D2AA9C1; mul.rn.f32 %f32,%f25,%f31;\n"
    "add.rn.f32 %f33,%f32,0f3E2AAAAA; mul.rn.f32 %f34,%f25,%f33; add.rn.f32 %f35,%f34,0f3F000000; shl.b32 %r8,%r7,23;\n"
    "add.s32 %r9,%r8,1065353216; mul.rn.f32 %f36,%f25,%f25; mul.rn.f32 %f37,%f36,%f35; add.rn.f32 %f38,%f25,%f37;\n"
    "add.rn.f32 %f39,%f38,0f3F800000; mov.b32 %f40,%r9; mul.rn.f32 %f47,%f39,%f40;\n"
    "L9: shl.b64 %d34,%d50,2; add.s64 %d36,%d49,%d34; st.shared.f32 [%d36],%f47;\n"
    "L10: bar.sync 0; @%p1 bra L14; ld.param.u64 %d16,[p2]; cvta.to.global.u64 %d1,%d16; mov.u64 %d56,0;\n"
    "mov.f32 %f48,0f00000000; add.s64 %d40,%d49,%d51; ld.shared.f32 %f11,[%d40];\n"
    "L12: add.s64 %d42,%d49,%d56; ld.shared.f32 %f42,[%d42]; add.rn.f32 %f48,%f48,%f42; add.s64 %d56,%d56,4;\n"
    "cvt.u32.u64 %r10,%d56; setp.ne.s32 %p8,%r10,40; @%p8 bra L12; div.rn.f32 %f43,%f11,%f48; mul.lo.s64 %d43,%d4,10;\n"
    "add.s64 %d44,%d43,%d50; shl.b64 %d45,%d44,2; add.s64 %d46,%d1,%d45; st.global.f32 [%d46],%f43;\n"
    "L14: ret; }\n"; /* 2769 characters */
static const char ptx_blame[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry blame( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<4>; .reg .b32 %r<10>; .reg .f32 %f<12>; .reg .b64 %d<30>; ld.param.u64 %d8,[p0]; ld.param.u64 %d9,[p4];\n"
    "cvta.to.global.u64 %d1,%d9; ld.param.u64 %d10,[p1]; ld.param.u64 %d11,[p3]; cvta.to.global.u64 %d2,%d11;\n"
    "ld.param.u64 %d12,[p2]; cvta.to.global.u64 %d3,%d12; cvta.to.global.u64 %d13,%d10; cvta.to.global.u64 %d14,%d8;\n"
    "mov.u32 %r7,%ctaid.x; cvt.u64.u32 %d4,%r7; mov.u32 %r1,%tid.x; mul.wide.u32 %d15,%r7,65; add.s64 %d16,%d14,%d15;\n"
    "mul.wide.u32 %d17,%r7,40; add.s64 %d29,%d13,%d17; ld.global.u8 %r2,[%d16+64]; mul.lo.s32 %r3,%r1,10;\n"
    "mov.f32 %f11,0f00000000; mov.u32 %r9,0;\n"
    "L1: setp.eq.s32 %p1,%r2,%r9; ld.global.f32 %f4,[%d29]; add.rn.f32 %f5,%f4,0fBF800000; selp.f32 %f6,%f5,%f4,%p1;\n"
    "add.s32 %r8,%r3,%r9; mul.wide.u32 %d18,%r8,4; add.s64 %d19,%d3,%d18; ld.global.f32 %f7,[%d19]; mul.rn.f32 %f8,%f7,%f6;\n"
    "add.rn.f32 %f11,%f11,%f8; add.s32 %r9,%r9,1; add.s64 %d29,%d29,4; setp.ne.s32 %p2,%r9,10; @%p2 bra L1;\n"
    "shl.b64 %d20,%d4,6; shl.b64 %d21,%d4,8; add.s64 %d22,%d2,%d21; cvt.u64.u32 %d23,%r1; mul.wide.u32 %d24,%r1,4;\n"
    "add.s64 %d25,%d22,%d24; ld.global.f32 %f9,[%d25]; setp.gt.f32 %p3,%f9,0f00000000; selp.f32 %f10,%f11,0f00000000,%p3;\n"
    "add.s64 %d26,%d20,%d23; shl.b64 %d27,%d26,2; add.s64 %d28,%d1,%d27; st.global.f32 [%d28],%f10; ret; }\n"; /* 1402 characters */
static const char ptx_slopes[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry slopes( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6 ) { .reg .pred %p<10>; .reg .b16 %rs<2>; .reg .b32 %r<7>; .reg .f32 %f<29>;\n"
    ".reg .b64 %d<51>; ld.param.u64 %d45,[p6]; ld.param.u64 %d29,[p0]; cvta.to.global.u64 %d6,%d29; mov.u32 %r1,%ctaid.x;\n"
    "mov.u32 %r2,%tid.x; setp.gt.u32 %p1,%r1,64; @%p1 bra L7; ld.param.u64 %d32,[p4]; cvta.to.global.u64 %d2,%d32;\n"
    "shl.b32 %r6,%r1,6; mul.wide.u32 %d39,%r6,4; add.s64 %d40,%d2,%d39; mul.wide.u32 %d41,%r2,4; add.s64 %d8,%d40,%d41;\n"
    "setp.eq.s64 %p7,%d45,0; mov.f32 %f25,0f00000000; @%p7 bra L6; ld.param.u64 %d34,[p3]; cvta.to.global.u64 %d3,%d34;\n"
    "cvt.u64.u32 %d7,%r2; cvt.u64.u32 %d42,%r1; add.s64 %d46,%d6,%d42; shl.b64 %d43,%d7,2; add.s64 %d44,%d3,%d43;\n"
    "mov.f32 %f25,0f00000000; setp.gt.u32 %p8,%r1,63; mov.f32 %f19,0f3F800000; bra.uni L3;\n"
    "L5: ld.global.f32 %f21,[%d44]; mul.rn.f32 %f22,%f24,%f21; add.rn.f32 %f25,%f25,%f22; add.s64 %d46,%d46,65;\n"
    "add.s64 %d45,%d45,-1; add.s64 %d44,%d44,256; setp.ne.s64 %p9,%d45,0; @%p9 bra L3; bra.uni L6;\n"
    "L3: mov.f32 %f24,%f19; @%p8 bra L5; ld.global.u8 %rs1,[%d46]; cvt.rn.f32.u16 %f20,%rs1;\n"
    "mul.rn.f32 %f24,%f20,0f3D800000; bra.uni L5;\n"
    "L7: setp.gt.u32 %p2,%r2,9; @%p2 bra L14; ld.param.u64 %d30,[p5]; cvta.to.global.u64 %d1,%d30; add.s32 %r3,%r1,-65;\n"
    "setp.eq.s64 %p3,%d45,0; mov.f32 %f28,0f00000000; @%p3 bra L13; ld.param.u64 %d31,[p1]; ld.param.u64 %d33,[p2];\n"
    "cvta.to.global.u64 %d4,%d33; cvta.to.global.u64 %d5,%d31; add.s64 %d47,%d6,64; mul.wide.u32 %d35,%r2,4;\n"
    "add.s64 %d48,%d4,%d35; mul.wide.u32 %d36,%r3,4; add.s64 %d50,%d5,%d36; mov.f32 %f28,0f00000000;\n"
    "setp.gt.u32 %p4,%r3,63; bra.uni L10;\n"
    "L12: add.rn.f32 %f28,%f28,%f27; add.s64 %d50,%d50,256; add.s64 %d45,%d45,-1; add.s64 %d48,%d48,40;\n"
    "add.s64 %d47,%d47,65; setp.ne.s64 %p6,%d45,0; @%p6 bra L10; bra.uni L13;\n"
    "L10: ld.global.u8 %r4,[%d47]; setp.eq.s32 %p5,%r2,%r4; ld.global.f32 %f14,[%d48]; add.rn.f32 %f15,%f14,0fBF800000;\n"
    "selp.f32 %f27,%f15,%f14,%p5; @%p4 bra L12; ld.global.f32 %f16,[%d50]; mul.rn.f32 %f27,%f27,%f16; bra.uni L12;\n"
    "L6: st.global.f32 [%d8],%f25; bra.uni L14;\n"
    "L13: mad.lo.s32 %r5,%r3,10,%r2; mul.wide.u32 %d37,%r5,4; add.s64 %d38,%d1,%d37; st.global.f32 [%d38],%f28;\n"
    "L14: ret; }\n"; /* 2263 characters */
static const char ptx_step[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry step( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .f32 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<9>; .reg .b64 %d<15>; ld.param.u64 %d8,[p4]; mov.u32 %r1,%ctaid.x;\n"
    "mov.u32 %r2,%ntid.x; mul.wide.u32 %d9,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d10,%r3; add.s64 %d4,%d9,%d10;\n"
    "setp.ge.u64 %p1,%d4,%d8; @%p1 bra L2; ld.param.f32 %f1,[p3]; ld.param.u64 %d5,[p0]; ld.param.u64 %d6,[p2];\n"
    "cvta.to.global.u64 %d1,%d6; ld.param.u64 %d7,[p1]; cvta.to.global.u64 %d2,%d7; cvta.to.global.u64 %d3,%d5;\n"
    "shl.b64 %d11,%d4,2; add.s64 %d12,%d3,%d11; add.s64 %d13,%d2,%d11; add.s64 %d14,%d1,%d11; ld.global.f32 %f2,[%d14];\n"
    "ld.global.f32 %f3,[%d13]; mul.rn.f32 %f4,%f3,0f3F666666; mul.rn.f32 %f5,%f2,%f1; add.rn.f32 %f6,%f5,%f4;\n"
    "st.global.f32 [%d13],%f6; ld.global.f32 %f7,[%d12]; sub.rn.f32 %f8,%f7,%f6; st.global.f32 [%d12],%f8;\n"
    "L2: ret; }\n"; /* 922 characters */
/* <<device-code kernels/train.cu */
/* clang-format on */

#ifndef __clang__
#pragma GCC pop_options
#endif

enum { K_HIDDEN, K_PREDICT, K_BLAME, K_SLOPES, K_STEP, KERNELS };

static ds_kernel kernel[KERNELS];

#define P(kind, type, member) \
    { DS_PARAM_##kind, offsetof(type, member), sizeof((type *)0)->member }
#define ITEMS \
    { DS_PARAM_COUNT, 0, sizeof(uint64_t) }
#define KERNEL_OF(function, type, ...)                       \
    {                                                        \
#function, function, ptx_##function, sizeof(type), { \
            __VA_ARGS__                                      \
        }                                                    \
    }
#define PASS(kind, member) P(kind, pass_args, member)
#define STEP(kind, member) P(kind, step_args, member)

static int create_kernels(void) {
    static const struct {
        const char *name;
        ds_kernel_fn cpu_fn;
        const char *ptx;
        size_t args_size;
        ds_param params[8];
    } list[KERNELS] = {
        KERNEL_OF(hidden, pass_args, PASS(READ, rows), PASS(READ, w1), PASS(WRITE, h)),
        KERNEL_OF(predict, pass_args, PASS(READ, h), PASS(READ, w2), PASS(WRITE, p)),
        KERNEL_OF(blame, pass_args, PASS(READ, rows), PASS(READ, p), PASS(READ, w2), PASS(READ, h),
                  PASS(WRITE, dh)),
        KERNEL_OF(slopes, pass_args, PASS(READ, rows), PASS(READ, h), PASS(READ, p), PASS(READ, dh),
                  PASS(WRITE, g1), PASS(WRITE, g2), PASS(VALUE, images)),
        KERNEL_OF(step, step_args, STEP(READ_WRITE, w), STEP(READ_WRITE, v), STEP(READ, g),
                  STEP(VALUE, rate), ITEMS)
    };

    for (int k = 0; k < KERNELS; k++) {
        ds_kernel_desc desc = { .name = list[k].name,
                                .cpu_fn = list[k].cpu_fn,
                                .args_size = list[k].args_size,
                                .params = list[k].params,
                                .grain = k == K_STEP ? W1_SIZE : 8,
                                .cuda = { .image = list[k].ptx, .entry = list[k].name } };
        if (k != K_STEP) {
            desc.cuda.block = HIDDEN;
            desc.cuda.items_per_block = 1;
        }
        while (desc.param_count < 8 && list[k].params[desc.param_count].size)
            desc.param_count++;
        CHECK(ds_kernel_create(&desc, &kernel[k]));
    }
    return FINE;
}

/* ---- data ------------------------------------------------------------------------------------ */

enum { PARTS = 4, BATCH = 64, MOST_ROWS = 4096, MOST_MARKS = 5 * (MOST_ROWS / BATCH + 1) };

#define RATE 0.25f /* how far a step goes along the mean of a batch's slopes */

typedef struct options {
    const char *path;
    int epochs;   /* passes over the data; 0: as many as are needed, and the accuracy is checked */
    int cpu;      /* use CPU devices although there are GPUs */
    int progress; /* show it although standard error is no terminal */
    int damage;   /* change a weight of the second run */
} options;

static options opt;
static uint8_t learnt[MOST_ROWS][ROW], held_out[MOST_ROWS][ROW]; /* rows of the data */
static int learnt_count, held_out_count;

/* One line of 65 numbers. */
static int parse_row(const char *line, uint8_t *row) {
    for (int k = 0; k < ROW; k++) {
        char *end = NULL;
        long n = strtol(line, &end, 10);
        if (end == line || n < 0 || n > (k < PIXELS ? (int)BLACK : CLASSES - 1) ||
            *end != (k < PIXELS ? ',' : '\n'))
            return FAILED;
        row[k] = (uint8_t)n;
        line = end + 1;
    }
    return FINE;
}

static int read_data(void) {
    const char *path = opt.path ? opt.path : "examples/data/digits.csv";
    char line[512];
    int number = 0;
    FILE *f = fopen(path, "r");
    if (!f && !opt.path)
        f = fopen("data/digits.csv", "r");
    if (!f) {
        complain("cannot read %s%s", path,
                 opt.path ? "" : " (run this from the project's folder, or name a file)");
        return FAILED;
    }
    for (; fgets(line, sizeof line, f); number++) {
        int held = number % 5 == 4;
        if (number == MOST_ROWS ||
            parse_row(line, held ? held_out[held_out_count] : learnt[learnt_count]) != FINE) {
            complain("%s: line %d %s", path, number + 1,
                     number == MOST_ROWS ? "is one too many"
                                         : "is not 64 pixels of 0 to 16 and a digit");
            fclose(f);
            return FAILED;
        }
        *(held ? &held_out_count : &learnt_count) += 1;
    }
    fclose(f);
    /* so that there is something to hold out for each part too */
    if (learnt_count >= BATCH)
        return FINE;
    complain("%s has only %d pictures", path, number);
    return FAILED;
}

static uint64_t random_state;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- a team of devices ----------------------------------------------------------------------- */

/* What the time between two marks on the first stream was spent on. Communication is what the
   collectives do. */
typedef enum work { COMPUTE, COMMUNICATION, NOTHING, WORKS } work;

typedef struct team {
    int devices;             /* different ones */
    ds_device device[PARTS]; /* of each part */
    ds_stream stream[PARTS];
    ds_comm_options comm;             /* these streams; the first one is for what is there once */
    ds_tensor *weights[2], *speed[2]; /* W1 and W2, and their momentum, on the first device */
    /* pinned: what is learnt in this pass, shuffled, and the probabilities that came back */
    ds_tensor *rows, *seen;
    ds_tensor *exam, *answers; /* pinned: what is held out, and its probabilities */
    ds_event mark[MOST_MARKS];
    work after[MOST_MARKS];
    int marks;
    double ms[WORKS], seconds; /* in the end */
    double loss, accuracy;     /* of the last pass, and of what is held out */
    float result[W1_SIZE + W2_SIZE];
} team;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int pinned(ds_dtype type, int64_t rows, int64_t columns, ds_tensor **out) {
    int64_t shape[2] = { rows, columns };
    CHECK(ds_tensor_alloc_pinned(type, 2, shape, out));
    return FINE;
}

/* Weights begin somewhere between -0.2 and 0.2, the same for every team. */
static int first_weights(team *t, int which) {
    static float initial[W1_SIZE];
    int64_t shape[2] = { which ? HIDDEN + 1 : PIXELS + 1, which ? CLASSES : HIDDEN };
    size_t count = which ? W2_SIZE : W1_SIZE;
    for (size_t i = 0; i < count; i++)
        initial[i] = ((float)(next_random() >> 40) / 8388608.0f - 1.0f) * 0.2f;
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, t->stream[0], &t->weights[which]));
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, t->stream[0], &t->speed[which]));
    CHECK(ds_copy(t->weights[which]->data, initial, count * sizeof *initial, t->stream[0]));
    CHECK(ds_fill(t->speed[which]->data, 0, 4, count, t->stream[0]));
    return FINE;
}

/* A team of one has one stream for all parts. */
static int team_open(team *t, int devices) {
    ds_device first;
    int available = 0;
    CHECK(ds_device_get_current(&first));
    CHECK(ds_device_get_count((ds_device_type)first.type, &available));
    t->devices = devices < available ? devices : available;
    random_state = 1;
    for (int i = 0; i < PARTS; i++) {
        t->device[i] = (ds_device){ first.type, i % t->devices };
        if (devices == 1 && i)
            t->stream[i] = t->stream[0];
        else
            CHECK(ds_stream_create(&(ds_stream_desc){ .device = t->device[i], .label = "training" },
                                   &t->stream[i]));
        /* now, so that it is not timed */
        for (int k = 0; k < KERNELS; k++)
            CHECK(ds_kernel_load(kernel[k], t->device[i]));
    }
    t->comm =
        (ds_comm_options){ .streams = t->stream, .stream_count = PARTS, .stream = t->stream[0] };
    for (int i = 0; i < MOST_MARKS; i++)
        CHECK(ds_event_create(DS_EVENT_TIMING, "training", &t->mark[i]));
    if (pinned(ds_uint8(), learnt_count / BATCH * BATCH, ROW, &t->rows) != FINE ||
        pinned(ds_float32(), learnt_count / BATCH * BATCH, CLASSES, &t->seen) != FINE ||
        pinned(ds_uint8(), held_out_count, ROW, &t->exam) != FINE ||
        pinned(ds_float32(), held_out_count, CLASSES, &t->answers) != FINE)
        return FAILED;
    memcpy(t->exam->data, held_out, ds_tensor_get_size(t->exam));
    return first_weights(t, 0) == FINE && first_weights(t, 1) == FINE ? FINE : FAILED;
}

static int team_close(team *t) {
    ds_tensor *all[] = { t->weights[0], t->weights[1], t->speed[0], t->speed[1],
                         t->rows,       t->seen,       t->exam,     t->answers };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(ds_tensor_free(all[i]));
    for (int i = 0; i < MOST_MARKS; i++)
        CHECK(ds_event_destroy(t->mark[i]));
    for (int i = 0; i < PARTS && (i == 0 || t->stream[i].id != t->stream[0].id); i++)
        CHECK(ds_stream_destroy(t->stream[i]));
    return FINE;
}

/* From here on the first stream does work of this kind. All parts get there first: what they
   still compute is not communication. */
static int mark(team *t, work kind) {
    CHECK(ds_comm_barrier(t->stream, PARTS));
    CHECK(ds_event_record(t->mark[t->marks], t->stream[0]));
    t->after[t->marks++] = kind;
    return FINE;
}

static int wait_for_all(team *t) {
    if (mark(t, NOTHING) != FINE)
        return FAILED;
    for (int i = 0; i < PARTS; i++)
        CHECK(ds_stream_synchronize(t->stream[i]));
    for (int m = 0; m + 1 < t->marks; m++) {
        double ms = 0;
        CHECK(ds_event_get_elapsed_ms(t->mark[m], t->mark[m + 1], &ms));
        t->ms[t->after[m]] += ms;
    }
    t->marks = 0;
    return FINE;
}

/* ---- a batch --------------------------------------------------------------------------------- */

typedef struct batch {
    ds_tensor *rows[PARTS], *weights[PARTS][2]; /* what each part is given */
    ds_tensor *p[PARTS], *slopes[PARTS][2];     /* and what it makes of it */
    pass_args args[PARTS];
} batch;

static int launch(int k, size_t items, const pass_args *args, ds_stream stream) {
    CHECK(ds_kernel_launch(kernel[k], items, args, sizeof *args, stream));
    return FINE;
}

/* Every part gets its pictures and the weights, and predicts. */
static int forwards(team *t, const ds_tensor *rows, batch *b) {
    if (mark(t, COMMUNICATION) != FINE)
        return FAILED;
    CHECK(ds_comm_scatter(rows, t->device, PARTS, NULL, 0, &t->comm, b->rows, NULL));
    CHECK(ds_comm_broadcast_coalesced((const ds_tensor *const *)t->weights, 2, t->device, PARTS, 0,
                                      &t->comm, b->weights[0]));
    if (mark(t, COMPUTE) != FINE)
        return FAILED;
    for (int i = 0; i < PARTS; i++) {
        ds_stream s = t->stream[i];
        int64_t n = b->rows[i]->shape[0];
        pass_args *a = &b->args[i];
        void *h = NULL;
        CHECK(ds_tensor_alloc(ds_float32(), 2, (int64_t[]){ n, CLASSES }, s, &b->p[i]));
        CHECK(ds_mem_alloc((size_t)n * HIDDEN * sizeof(float), s, &h));
        *a = (pass_args){ .rows = ds_tensor_address(b->rows[i]),
                          .w1 = ds_tensor_address(b->weights[i][0]),
                          .w2 = ds_tensor_address(b->weights[i][1]),
                          .p = b->p[i]->data,
                          .h = h,
                          .images = (uint64_t)n };
        if (launch(K_HIDDEN, a->images, a, s) != FINE || launch(K_PREDICT, a->images, a, s) != FINE)
            return FAILED;
    }
    return FINE;
}

/* Every part finds the slopes of its pictures. */
static int backwards(team *t, batch *b) {
    for (int i = 0; i < PARTS; i++) {
        ds_stream s = t->stream[i];
        pass_args *a = &b->args[i];
        void *dh = NULL;
        for (int k = 0; k < 2; k++)
            CHECK(ds_tensor_alloc_like(b->weights[i][k], s, &b->slopes[i][k]));
        CHECK(ds_mem_alloc(a->images * HIDDEN * sizeof(float), s, &dh));
        a->dh = dh;
        a->g1 = b->slopes[i][0]->data;
        a->g2 = b->slopes[i][1]->data;
        if (launch(K_BLAME, a->images, a, s) != FINE ||
            launch(K_SLOPES, PIXELS + 1 + HIDDEN + 1, a, s) != FINE)
            return FAILED;
    }
    return FINE;
}

/* The weights change by the sum of all slopes. */
static int change_weights(team *t, batch *b) {
    ds_tensor *sum[2];
    CHECK(ds_comm_reduce_add_coalesced((const ds_tensor *const *)b->slopes[0], PARTS, 2,
                                       t->device[0], 0, &t->comm, sum));
    if (mark(t, COMPUTE) != FINE)
        return FAILED;
    for (int k = 0; k < 2; k++) {
        step_args a = { t->weights[k]->data, t->speed[k]->data, sum[k]->data, RATE / BATCH };
        CHECK(ds_kernel_launch(kernel[K_STEP], (size_t)ds_tensor_get_count(sum[k]), &a, sizeof a,
                               t->stream[0]));
        CHECK(ds_tensor_free(sum[k]));
    }
    return FINE;
}

/* All of it was used for the last time, as far as the host is concerned. What is still on the
   streams comes before the next use. */
static int batch_end(batch *b) {
    for (int i = 0; i < PARTS; i++) {
        CHECK(ds_tensor_free(b->rows[i]));
        CHECK(ds_tensor_free(b->p[i]));
        CHECK(ds_mem_free(b->args[i].h));
        CHECK(ds_mem_free(b->args[i].dh));
        for (int k = 0; k < 2; k++) {
            CHECK(ds_tensor_free(b->weights[i][k]));
            CHECK(ds_tensor_free(b->slopes[i][k]));
        }
    }
    return FINE;
}

/* Puts pictures through the network; learns from them, unless they are the exam. */
static int run_batch(team *t, const ds_tensor *rows, const ds_tensor *answers, int learn) {
    batch b;
    memset(&b, 0, sizeof b);
    if (forwards(t, rows, &b) != FINE || (learn && backwards(t, &b) != FINE) ||
        mark(t, COMMUNICATION) != FINE)
        return FAILED;
    CHECK(ds_comm_gather_into((const ds_tensor *const *)b.p, PARTS, 0, answers, &t->comm));
    if (learn && change_weights(t, &b) != FINE)
        return FAILED;
    return batch_end(&b);
}

/* ---- training -------------------------------------------------------------------------------- */

/* -ln p by Newton's method upon the kernels' exponential, so that the compile line stays short. */
static double minus_logarithm(double p) {
    double y = 0, more = 1;
    for (int i = 0; i < 40 && more > 1e-9; i++)
        y += more = 1 - p / (double)exponential((float)-y);
    return y;
}

/* Of probabilities that came back: the mean loss, and the part of the pictures that were
   recognised. */
static void judge(const ds_tensor *rows, const ds_tensor *answers, double *loss, double *accuracy) {
    const uint8_t *row = rows->data;
    const float *p = answers->data;
    int64_t n = rows->shape[0];
    double sum = 0, right = 0;
    for (int64_t i = 0; i < n; i++, row += ROW, p += CLASSES) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (p[c] > p[best])
                best = c;
        right += best == row[PIXELS];
        sum += minus_logarithm(p[row[PIXELS]] > 1e-9f ? (double)p[row[PIXELS]] : 1e-9);
    }
    if (loss)
        *loss = sum / (double)n;
    *accuracy = right / (double)n;
}

static void draw(const team *t, int epoch, int epochs) {
    char bar[31];
    if (!opt.progress && !isatty(STDERR_FILENO))
        return;
    memset(bar, '.', 30);
    memset(bar, '#', (size_t)(30 * epoch / epochs));
    bar[30] = 0;
    fprintf(stderr, "\r\033[K%d device%s [%s] pass %2d of %d  loss %.4f  accuracy %.1f %%",
            t->devices, t->devices == 1 ? "" : "s", bar, epoch, epochs, t->loss, 100 * t->accuracy);
    fflush(stderr);
    bar_drawn = 1;
}

/* Another order of the pictures for each pass. */
static void shuffle(team *t) {
    uint8_t *rows = t->rows->data;
    for (int i = learnt_count - 1; i > 0; i--) {
        uint8_t row[ROW], *a = learnt[i], *b = learnt[next_random() % (uint64_t)(i + 1)];
        memcpy(row, a, ROW);
        memcpy(a, b, ROW);
        memcpy(b, row, ROW);
    }
    memcpy(rows, learnt, ds_tensor_get_size(t->rows));
}

static int pass(team *t) {
    double accuracy;
    shuffle(t);
    for (int64_t first = 0; first < t->rows->shape[0]; first += BATCH) {
        ds_tensor *rows, *seen;
        CHECK(ds_tensor_narrow(t->rows, 0, first, BATCH, &rows));
        CHECK(ds_tensor_narrow(t->seen, 0, first, BATCH, &seen));
        if (run_batch(t, rows, seen, 1) != FINE)
            return FAILED;
        CHECK(ds_tensor_free(rows)); /* views: what they show stays */
        CHECK(ds_tensor_free(seen));
    }
    if (run_batch(t, t->exam, t->answers, 0) != FINE || wait_for_all(t) != FINE)
        return FAILED;
    judge(t->rows, t->seen, &t->loss, &accuracy);
    judge(t->exam, t->answers, NULL, &t->accuracy);
    return FINE;
}

static int train(team *t, int devices, int epochs) {
    static uint8_t order[MOST_ROWS][ROW];
    double begin;
    float *to = t->result;
    memcpy(order, learnt, sizeof order);
    if (team_open(t, devices) != FINE)
        return FAILED;
    begin = now();
    for (int epoch = 1; epoch <= epochs; epoch++) {
        /* for timelines */
        DS_RANGE_SCOPE("pass over the pictures")
            if (pass(t) != FINE)
                return FAILED;
        draw(t, epoch, epochs);
    }
    t->seconds = now() - begin;
    memcpy(learnt, order, sizeof order);
    if (opt.damage && devices > 1)
        CHECK(ds_fill(t->weights[0]->data, 0, 4, 1, t->stream[0]));
    for (int k = 0; k < 2; to += ds_tensor_get_count(t->weights[k++]))
        CHECK(ds_copy(to, t->weights[k]->data, ds_tensor_get_size(t->weights[k]), t->stream[0]));
    CHECK(ds_stream_synchronize(t->stream[0]));
    return team_close(t);
}

/* ---- what a person sees ---------------------------------------------------------------------- */

static unsigned fingerprint(const team *t) { /* FNV-1a */
    uint32_t hash = 0x811c9dc5u;
    const unsigned char *bytes = (const unsigned char *)t->result;
    for (size_t i = 0; i < sizeof t->result; i++)
        hash = (hash ^ bytes[i]) * 0x01000193u;
    return hash;
}

static int print_table(const team *one, const team *four, int epochs) {
    char name[DS_DEVICE_NAME_SIZE];
    CHECK(ds_device_format(one->device[0], name, sizeof name));
    printf("network       %d - %d - %d, %d weights\n", PIXELS, HIDDEN, CLASSES, W1_SIZE + W2_SIZE);
    printf("pictures      %d to learn from, in batches of %d, %d times; %d held out\n",
           learnt_count, BATCH, epochs, held_out_count);
    printf("devices       %10d      %10d      from %s\n", one->devices, four->devices, name);
    printf("loss          %10.6f      %10.6f\n", one->loss, four->loss);
    printf("accuracy      %10.2f %%    %10.2f %%    of those held out\n", 100 * one->accuracy,
           100 * four->accuracy);
    printf("time          %10.3f ms   %10.3f ms\n", 1e3 * one->seconds, 1e3 * four->seconds);
    printf("  compute     %10.3f ms   %10.3f ms\n", one->ms[COMPUTE], four->ms[COMPUTE]);
    printf("  communicate %10.3f ms   %10.3f ms\n", one->ms[COMMUNICATION],
           four->ms[COMMUNICATION]);
    printf("weights         %08x        %08x\n", fingerprint(one), fingerprint(four));
    return FINE;
}

static int compare(const team *one, const team *four, int enough) {
    int result = FINE;
    for (size_t i = 0; i < W1_SIZE + W2_SIZE && result == FINE; i++) {
        if (memcmp(&one->result[i], &four->result[i], sizeof(float)) == 0)
            continue;
        complain("WRONG: weight %zu is %a with one device and %a with %d", i,
                 (double)one->result[i], (double)four->result[i], four->devices);
        result = FAILED;
    }
    if (result == FINE)
        printf("check         the weights are the same, bit for bit\n");
    if (!enough || four->accuracy >= 0.95)
        return result;
    complain("WRONG: the accuracy is below 95 %%");
    return FAILED;
}

/* ---- options and main ------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: train [options] [FILE]\n"
    "Trains a network on the pictures of FILE (examples/data/digits.csv) with one device and with "
    "four, and compares the results.\n"
    "  --epochs N   passes over the pictures (24); the accuracy is then shown and not checked\n"
    "  --cpu        use virtual CPU devices although there are GPUs\n"
    "  --progress   show the progress bar although standard error is no terminal\n"
    "  --damage     change a weight of the second run, to see the check find it\n"
    "  --help       this text\n"
    "Virtual CPU devices: as many as DEVSTREAM_CPU_DEVICES says, or 4.\n";

static int parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--progress") == 0)
            opt.progress = 1;
        else if (strcmp(a, "--damage") == 0)
            opt.damage = 1;
        else if (strcmp(a, "--cpu") == 0)
            opt.cpu = 1;
        else if (strcmp(a, "--epochs") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            opt.epochs = atoi(argv[++i]);
        else if (a[0] != '-' && !opt.path)
            opt.path = a;
        else {
            complain("cannot understand \"%s\"", a);
            fputs(USAGE, stderr);
            return FAILED;
        }
    }
    return FINE;
}

static int work_all(void) {
    static team one, four;
    ds_cpu_desc cpu = { .devices = getenv("DEVSTREAM_CPU_DEVICES") ? 0 : PARTS };
    int epochs = opt.epochs ? opt.epochs : 24;
    memset(&one, 0, sizeof one);
    memset(&four, 0, sizeof four);
    if (read_data() != FINE)
        return FAILED;
    CHECK(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    if (opt.cpu)
        CHECK(ds_device_set_current(ds_cpu(0)));
    if (create_kernels() != FINE || train(&one, 1, epochs) != FINE ||
        train(&four, PARTS, epochs) != FINE)
        return FAILED;
    if (bar_drawn)
        fputs("\r\033[K", stderr);
    bar_drawn = 0;
    for (int k = 0; k < KERNELS; k++)
        CHECK(ds_kernel_destroy(kernel[k]));
    if (print_table(&one, &four, epochs) != FINE)
        return FAILED;
    return compare(&one, &four, !opt.epochs);
}

int main(int argc, char **argv) {
    int result;
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argc, argv) != FINE)
        return FAILED;
    result = work_all();
    if (ds_shutdown() < 0 && result == FINE) {
        complain("%s", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        complain("standard output cannot be written");
        result = FAILED;
    }
    return result;
}
