/* train.digits.h - what train.c and train_ranks.c share: the pictures, the first weights, the
   kernels in their order, and the judgement. Each program defines PROGRAM, the name in its
   messages. */
#ifndef TRAIN_DIGITS_H
#define TRAIN_DIGITS_H
#include "train.kernels.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
/* mingw's headers say by which rules the compiler checks formats */
#ifdef __MINGW_PRINTF_FORMAT
#define PRINTF __MINGW_PRINTF_FORMAT
#else
#define PRINTF printf
#endif

static void complain(const char *format, ...) __attribute__((format(PRINTF, 1, 2)));

static void complain(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fputs(bar_drawn ? "\r\033[K" PROGRAM ": " : PROGRAM ": ", stderr);
    bar_drawn = 0;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Compiles the kernels before the first launch, so that this is not timed. */
static int load_kernels(ds_device device) {
    ds_kernel_def *const def[] = { &hidden_def,   &predict_def,  &unit_slopes_def,
                                   &slopes_1_def, &slopes_2_def, &step_def };
    for (size_t i = 0; i < sizeof def / sizeof *def; i++) {
        ds_kernel kernel;
        CHECK(ds_kernel_def_get_kernel(def[i], &kernel));
        CHECK(ds_kernel_load(kernel, device));
    }
    return FINE;
}

/* Memory of one part, for its pictures of a batch. */
typedef struct share {
    size_t images;
    const uint8_t *rows; /* the images */
    const float *w1, *w2;
    float *h, *p;   /* hidden units and probabilities of each image */
    float *dh;      /* slopes along the units */
    float *g1, *g2; /* slopes along the weights */
} share;

/* Computes the probabilities of the pictures of a part. */
static int share_predict(const share *a, ds_stream s) {
    CHECK(DS_LAUNCH(hidden, s, a->images, a->rows, a->w1, a->h));
    CHECK(DS_LAUNCH(predict, s, a->images, a->h, a->w2, a->p));
    return FINE;
}

/* Computes the slopes of the loss of these pictures, after share_predict. */
static int share_slopes(const share *a, ds_stream s) {
    CHECK(DS_LAUNCH(unit_slopes, s, HIDDEN, a->images, a->rows, a->p, a->w2, a->h, a->dh));
    CHECK(DS_LAUNCH(slopes_1, s, PIXELS + 1, a->rows, a->dh, a->g1, a->images));
    CHECK(DS_LAUNCH(slopes_2, s, CLASSES, HIDDEN + 1, a->rows, a->h, a->p, a->g2, a->images));
    return FINE;
}

/* ---- data ------------------------------------------------------------------------------------ */

enum { BATCH = 64, MOST_ROWS = 4096 };

#define RATE 0.25f /* how far a step goes along the mean of a batch's slopes */

/* Every fifth picture is held out. */
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

/* Reads the pictures of a file. name NULL: those of the project. */
static int read_data(const char *name) {
    const char *path = name ? name : "examples/data/digits.csv";
    char line[512];
    int number = 0;
    FILE *f = fopen(path, "r");
    if (!f && !name)
        f = fopen("data/digits.csv", "r");
    if (!f) {
        complain("cannot read %s%s", path,
                 name ? "" : " (run this from the project's folder, or name a file)");
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

/* Fills the weights of a layer with numbers between -0.2 and 0.2. */
static void weights_fill(float *weights, size_t count) {
    for (size_t i = 0; i < count; i++)
        weights[i] = ((float)(next_random() >> 40) / 8388608.0f - 1.0f) * 0.2f;
}

/* Changes the order of the pictures, once for each pass. */
static void shuffle(void) {
    for (int i = learnt_count - 1; i > 0; i--) {
        uint8_t row[ROW], *a = learnt[i], *b = learnt[next_random() % (uint64_t)(i + 1)];
        memcpy(row, a, ROW);
        memcpy(a, b, ROW);
        memcpy(b, row, ROW);
    }
}

/* ---- judgement ------------------------------------------------------------------------------- */

/* -ln p by Newton's method upon the kernels' exponential, so that the compile line stays short. */
static double minus_logarithm(double p) {
    double y = 0, more = 1;
    for (int i = 0; i < 40 && more > 1e-9; i++)
        y += more = 1 - p / (double)exponential((float)-y);
    return y;
}

/* Of probabilities that came back: the mean loss, and the part of the pictures that were
   recognised. */
static void judge(const uint8_t *row, const float *p, int64_t n, double *loss, double *accuracy) {
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

/* Returns a checksum of all weights, FNV-1a. */
static unsigned fingerprint(const float *weights) {
    uint32_t hash = 0x811c9dc5u;
    const unsigned char *bytes = (const unsigned char *)weights;
    for (size_t i = 0; i < (W1_SIZE + W2_SIZE) * sizeof *weights; i++)
        hash = (hash ^ bytes[i]) * 0x01000193u;
    return hash;
}

/* Compares all weights, and names the first difference. */
static int weights_compare(const float *a, const float *b, const char *name_a, const char *name_b) {
    for (size_t i = 0; i < W1_SIZE + W2_SIZE; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) == 0)
            continue;
        complain("WRONG: weight %zu is %a with %s and %a with %s", i, (double)a[i], name_a,
                 (double)b[i], name_b);
        return FAILED;
    }
    printf("check         the weights are the same, bit for bit\n");
    return FINE;
}
#endif
