/* Generators and fills. What a fill gives is compared with words of Philox that are computed
   here once more, with torch's published numbers, and with the CPU driver's bits. */
#include "harness.h"
#include "devstream_rng.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_device dev(void) {
    return harness_device(0);
}

static const ds_rng own;

static ds_rng rng_at(uint64_t seed, ds_rng_mapping mapping) {
    ds_rng r;
    ok(ds_rng_create(&(ds_rng_desc){ .device = dev(),
                                     .mapping = mapping,
                                     .multiprocessors = 132,
                                     .threads_per_multiprocessor = 2048 },
                     &r));
    ok(ds_rng_set_seed(r, seed));
    return r;
}

static uint64_t offset_of(ds_rng r) {
    uint64_t n;
    ok(ds_rng_get_offset(r, &n));
    return n;
}

static void *room(ds_device d, size_t size, ds_stream s) {
    void *p;
    ok(ds_device_alloc(d, size ? size : 1, &p));
    ok(ds_fill(p, 0xEE, 1, size ? size : 1, s));
    return p;
}

static void *back(const void *p, size_t size, ds_stream s) {
    void *host = malloc(size + 1);
    ok(ds_copy(host, p, size, s));
    ok(ds_stream_synchronize(s));
    return host;
}

static void says(const char *what) {
    if (!strstr(ds_error_get_last(), what))
        fail_msg("\"%s\" is not in: %s", what, ds_error_get_last());
}

/* What a fill writes, from a generator of the given device; and it writes nothing else. */
static unsigned char *filled_on(ds_device d, ds_rng r, ds_rng_fill_desc f, size_t shift) {
    ds_stream s;
    size_t size = ds_dtype_get_size(f.dtype), bytes = f.count * size;
    ok(ds_stream_create(&(ds_stream_desc){ .device = d }, &s));
    char *p = room(d, bytes + 256, s);
    f.out = p + 64 + shift * size;
    ok(ds_rng_fill(r, &f, s));
    unsigned char *all = back(p, bytes + 256, s), *got = malloc(bytes + 1);
    memcpy(got, all + 64 + shift * size, bytes);
    for (size_t i = 0; i < bytes + 256; i++)
        if ((i < 64 + shift * size || i >= 64 + shift * size + bytes) && all[i] != 0xEE)
            fail_msg("byte %zu of %zu at %zu was written", i, bytes, 64 + shift * size);
    free(all);
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    return got;
}

static unsigned char *filled(ds_rng r, ds_rng_fill_desc f) {
    return filled_on(dev(), r, f, 0);
}

/* ---- Philox, once more ---- */

static void words_of(uint64_t seed, uint64_t counter, uint64_t thread, uint32_t w[4]) {
    uint32_t k[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    w[0] = (uint32_t)counter;
    w[1] = (uint32_t)(counter >> 32);
    w[2] = (uint32_t)thread;
    w[3] = (uint32_t)(thread >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)w[0] * 0xD2511F53u, b = (uint64_t)w[2] * 0xCD9E8D57u;
        uint32_t x[4] = { (uint32_t)(b >> 32) ^ w[1] ^ k[0], (uint32_t)b,
                          (uint32_t)(a >> 32) ^ w[3] ^ k[1], (uint32_t)a };
        memcpy(w, x, sizeof x);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

static uint32_t word_at(uint64_t seed, uint64_t i) {
    uint32_t w[4];
    words_of(seed, i / 4, 0, w);
    return w[i % 4];
}

/* Random123's known answers (kat_vectors), and those of spec 5.4. */
static void test_the_words_are_philox_words(void **state) {
    (void)state;

    static const struct {
        uint64_t seed, counter, thread;
        uint32_t w[4];
    } known[] = {
        { 0, 0, 0, { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u } },
        { UINT64_MAX,
          UINT64_MAX,
          UINT64_MAX,
          { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu } },
        { 0x299f31d0a4093822u,
          0x85a308d3243f6a88u,
          0x0370734413198a2eu,
          { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u } },
        { 0, 0, 1, { 0x844515e1u, 0xf08d6eaau, 0x0f19c053u, 0x83f875f0u } },
        { 0, 0, 3, { 0xf0a90abcu, 0x115896b8u, 0xbedefe84u, 0xb86f45c6u } },
    };

    uint32_t w[4];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        words_of(known[i].seed, known[i].counter, known[i].thread, w);
        assert_memory_equal(w, known[i].w, sizeof w);
    }
    /* by element: the words in their order */
    ds_rng r = rng_at(0x299f31d0a4093822u, DS_RNG_ELEMENT);
    for (int round = 0; round < 2; round++) {
        uint64_t start = round ? UINT64_C(0x7ffffffffffffff0) - 4096 : 0;
        ok(ds_rng_set_offset(r, start));
        uint32_t *got = (uint32_t *)(void *)filled(
            r, (ds_rng_fill_desc){ .kind = DS_RNG_BITS, .dtype = ds_uint32(), .count = 1003 });
        for (uint64_t i = 0; i < 1003; i++)
            if (got[i] != word_at(0x299f31d0a4093822u, start + i))
                fail_msg("word %zu is %08x", (size_t)i, got[i]);
        free(got);
        assert_int_equal(offset_of(r), start + 1004);
    }
    ok(ds_rng_destroy(r));
}

/* torch's: word i of a thread's block k is element t + (4 k + i) threads. */
static void test_torchs_mapping_deals_words_out_to_threads(void **state) {
    (void)state;

    static const struct {
        int multiprocessors, threads;
        size_t count;
    } shape[] = { { 1, 256, 5000 }, { 2, 1024, 20000 }, { 3, 1536, 4608 }, { 132, 2048, 777 } };

    for (size_t c = 0; c < sizeof shape / sizeof *shape; c++) {
        ds_rng r = rng_at(77, DS_RNG_ELEMENT);
        ok(ds_rng_set_mapping(r, DS_RNG_TORCH, shape[c].multiprocessors, shape[c].threads));
        ok(ds_rng_set_offset(r, 40));
        uint64_t blocks = (shape[c].count + 255) / 256,
                 most = (uint64_t)shape[c].multiprocessors * (uint64_t)shape[c].threads / 256,
                 threads = 256 * (blocks < most ? blocks : most);
        uint32_t w[4],
            *got = (uint32_t *)(void *)filled(r, (ds_rng_fill_desc){ .kind = DS_RNG_BITS,
                                                                     .dtype = ds_int32(),
                                                                     .count = shape[c].count });
        for (uint64_t e = 0; e < shape[c].count; e++) {
            words_of(77, 10 + e / threads / 4, e % threads, w);
            if (got[e] != w[e / threads % 4])
                fail_msg("shape %zu: element %zu", c, (size_t)e);
        }
        free(got);
        assert_int_equal(offset_of(r), 40 + ((shape[c].count - 1) / (threads * 4) + 1) * 4);
        uint64_t at = offset_of(r),
                 *wide = (uint64_t *)(void *)filled(
                     r, (ds_rng_fill_desc){
                            .kind = DS_RNG_BITS, .dtype = ds_int64(), .count = shape[c].count });
        for (uint64_t e = 0; e < shape[c].count; e++) {
            words_of(77, at / 4 + e / threads / 2, e % threads, w);
            if (wide[e] != ((uint64_t)w[e / threads % 2 * 2] << 32 | w[e / threads % 2 * 2 + 1]))
                fail_msg("shape %zu: wide element %zu", c, (size_t)e);
        }
        free(wide);
        assert_int_equal(offset_of(r), at + ((shape[c].count - 1) / (threads * 2) + 1) * 4);
        ok(ds_rng_destroy(r));
    }
}

/* Printed by torch.cuda on GPUs, to four digits. */
static void expect_digits(const float *got, const char *digits, const char *what) {
    char text[300] = "", one[16];
    for (size_t n = 0, i = 0; n < strlen(digits); i++) {
        snprintf(one, sizeof one, "%s%.4f", i ? " " : "", (double)got[i]);
        strcat(text, one);
        n += strlen(one);
    }
    if (strcmp(text, digits))
        fail_msg("%s: %s, not %s", what, text, digits);
}

static void test_the_numbers_are_those_of_torch(void **state) {
    (void)state;
    ds_rng r = rng_at(0, DS_RNG_TORCH);
    ds_rng_fill_desc uniform = {
        .kind = DS_RNG_UNIFORM, .dtype = ds_float32(), .count = 10, .b = 1
    };
    float *x = (float *)(void *)filled(r, uniform);
    expect_digits(x, "0.3990 0.5167 0.0249 0.9401 0.9459 0.7967 0.4150 0.8203 0.2290 0.9096",
                  "rand(10), seed 0");
    free(x);
    assert_int_equal(offset_of(r), 4);
    uniform.count = 5;
    x = (float *)(void *)filled(r, uniform);
    expect_digits(x, "0.9722 0.7910 0.4690 0.3300 0.3345", "the second call");
    free(x);
    ok(ds_rng_set_seed(r, 42));
    uniform.count = 12;
    x = (float *)(void *)filled(r, uniform);
    expect_digits(
        x, "0.6130 0.0101 0.3984 0.0403 0.1563 0.4825 0.7362 0.4060 0.5189 0.2867 0.2416 0.9228",
        "rand(12), seed 42");
    free(x);
    ds_rng_fill_desc normal = { .kind = DS_RNG_NORMAL, .dtype = ds_float32(), .count = 10, .b = 1 };
    ok(ds_rng_set_seed(r, 0));
    x = (float *)(void *)filled(r, normal);
    expect_digits(x,
                  "-0.9247 -0.4253 -2.6438 0.1452 -0.1209 -0.5797 -0.6229 -0.3284 -1.0745 -0.3631",
                  "randn(10), seed 0");
    free(x);
    ok(ds_rng_set_seed(r, 10));
    normal.count = 3;
    x = (float *)(void *)filled(r, normal);
    expect_digits(x, "-0.1029 1.6810 -0.2708", "randn(3), seed 10");
    free(x);
    ok(ds_rng_set_seed(r, 0));
    normal.count = 8;
    normal.dtype = ds_float64();
    double *d = (double *)(void *)filled(r, normal);
    float f[8];
    for (int i = 0; i < 8; i++)
        f[i] = (float)d[i];
    expect_digits(f, "-0.3104 -0.0343 0.1756 -2.2804 0.5039 0.5596 -0.0750 0.9691",
                  "randn of float64, seed 0");
    free(d);
    ok(ds_rng_set_seed(r, 0));
    int64_t *n = (int64_t *)(void *)filled(
        r, (ds_rng_fill_desc){
               .kind = DS_RNG_INTEGERS, .dtype = ds_int64(), .count = 8, .high = 100 });
    static const int64_t integers[] = { 41, 97, 91, 72, 53, 4, 3, 33 };
    assert_memory_equal(n, integers, sizeof integers);
    free(n);
    ok(ds_rng_destroy(r));
}

/* ---- every kind of every type ---- */

typedef struct sample {
    const char *name;
    ds_rng_fill_desc f;
} sample;

static size_t samples(sample *out) {
    size_t n = 0;

    const struct {
        const char *name;
        ds_dtype t;
    } reals[] = { { "float16", ds_float16() },
                  { "bfloat16", ds_bfloat16() },
                  { "float32", ds_float32() },
                  { "float64", ds_float64() } };

    const struct {
        const char *name;
        ds_dtype t;
    } whole[] = { { "bool", ds_bool() },   { "int8", ds_int8() },   { "uint8", ds_uint8() },
                  { "int16", ds_int16() }, { "int32", ds_int32() }, { "int64", ds_int64() } };

    for (size_t i = 0; i < 4; i++) {
        out[n++] =
            (sample){ reals[i].name, { .kind = DS_RNG_UNIFORM, .dtype = reals[i].t, .b = 1 } };
        out[n++] =
            (sample){ reals[i].name,
                      { .kind = DS_RNG_UNIFORM, .dtype = reals[i].t, .a = -3.7, .b = 11.3 } };
        out[n++] =
            (sample){ reals[i].name, { .kind = DS_RNG_NORMAL, .dtype = reals[i].t, .b = 1 } };
        out[n++] = (sample){ reals[i].name,
                             { .kind = DS_RNG_NORMAL, .dtype = reals[i].t, .a = 100, .b = 2.5 } };
        out[n++] = (sample){ reals[i].name,
                             { .kind = DS_RNG_EXPONENTIAL, .dtype = reals[i].t, .a = 0.3 } };
        if (i < 3)
            out[n++] = (sample){ reals[i].name,
                                 { .kind = DS_RNG_BERNOULLI, .dtype = reals[i].t, .a = 0.3 } };
    }
    for (size_t i = 0; i < 6; i++) {
        out[n++] = (sample){
            whole[i].name,
            { .kind = DS_RNG_INTEGERS, .dtype = whole[i].t, .low = i ? 3 : 0, .high = i ? 101 : 2 }
        };
        out[n++] =
            (sample){ whole[i].name, { .kind = DS_RNG_BERNOULLI, .dtype = whole[i].t, .a = 0.71 } };
        out[n++] = (sample){ whole[i].name, { .kind = DS_RNG_BITS, .dtype = whole[i].t } };
    }
    out[n++] = (sample){
        "int32",
        { .kind = DS_RNG_INTEGERS, .dtype = ds_int32(), .low = -1000000000, .high = 1000000007 }
    };
    out[n++] = (sample){
        "int64",
        { .kind = DS_RNG_INTEGERS, .dtype = ds_int64(), .low = INT64_MIN, .high = INT64_MAX }
    };
    out[n++] = (sample){
        "int64",
        { .kind = DS_RNG_INTEGERS, .dtype = ds_int64(), .low = -5, .high = (int64_t)1 << 32 }
    };
    /* a bound that is nothing in f32 has no sign */
    out[n++] =
        (sample){ "float32",
                  { .kind = DS_RNG_UNIFORM, .dtype = ds_float32(), .a = -1e-50, .b = 1e-45 } };
    return n;
}

static void test_the_bits_are_the_same_on_every_device(void **state) {
    (void)state;
    static const size_t counts[] = { 0, 1, 2, 3, 4, 5, 31, 256, 1023, 2049 };
    sample all[80];
    size_t n = samples(all);
    for (int torch = 0; torch < 2; torch++)
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                ds_rng_desc desc = { .device = dev(),
                                     .seed = 1234567,
                                     .mapping = torch ? DS_RNG_TORCH : DS_RNG_ELEMENT,
                                     .multiprocessors = 1,
                                     .threads_per_multiprocessor = 256 };
                ds_rng here, there;
                ok(ds_rng_create(&desc, &here));
                desc.device = ds_cpu(1);
                ok(ds_rng_create(&desc, &there));
                ds_rng_fill_desc f = all[i].f;
                f.count = counts[c];
                size_t bytes = f.count * ds_dtype_get_size(f.dtype);
                for (int round = 0; round < 2; round++) { /* at the start, and further on */
                    unsigned char *a = filled_on(dev(), here, f, c % 5),
                                  *b = filled_on(ds_cpu(1), there, f, c % 3);
                    if (memcmp(a, b, bytes))
                        fail_msg("%s, kind %d, %s, %zu elements", all[i].name, (int)f.kind,
                                 torch ? "torch" : "element", f.count);
                    free(a);
                    free(b);
                    assert_int_equal(offset_of(here), offset_of(there));
                }
                ok(ds_rng_destroy(here));
                ok(ds_rng_destroy(there));
            }
}

static void test_a_fill_in_parts_gives_the_bits_of_the_whole(void **state) {
    (void)state;
    sample all[80];
    size_t n = samples(all), total = 1500;
    for (size_t i = 0; i < n + 2; i++) {
        ds_rng_fill_desc f = i < n
                                 ? all[i].f
                                 : (ds_rng_fill_desc){ .kind = DS_RNG_PERMUTATION,
                                                       .dtype = i == n ? ds_int32() : ds_int64() };
        size_t size = ds_dtype_get_size(f.dtype), whole_size = i == n + 1 ? 200 : total;
        ds_rng r = rng_at(99, DS_RNG_ELEMENT);
        f.count = whole_size;
        unsigned char *whole = filled(r, f);
        uint64_t after = offset_of(r);
        for (size_t first = 0, count; first < whole_size; first += count) {
            count = first * 7 % 300 + 1;
            if (count > whole_size - first)
                count = whole_size - first;
            ok(ds_rng_set_offset(r, 0));
            f.first = first;
            f.count = count;
            f.total = whole_size;
            unsigned char *part = filled_on(dev(), r, f, first % 4);
            if (memcmp(part, whole + first * size, count * size))
                fail_msg("sample %zu: elements %zu to %zu", i, first, first + count);
            free(part);
            assert_int_equal(offset_of(r), after); /* whatever the part */
        }
        f.first = whole_size;
        f.count = 0;
        ok(ds_rng_set_offset(r, 0));
        free(filled(r, f));
        assert_int_equal(offset_of(r), after);
        free(whole);
        ok(ds_rng_destroy(r));
    }
}

static void test_fills_one_behind_the_other_are_one(void **state) {
    (void)state;
    ds_rng r = rng_at(5, DS_RNG_ELEMENT);
    ds_rng_fill_desc f = { .kind = DS_RNG_UNIFORM, .dtype = ds_float32(), .count = 1000, .b = 1 };
    unsigned char *whole = filled(r, f);
    ok(ds_rng_set_seed(r, 5));
    f.count = 400;
    unsigned char *one = filled(r, f);
    f.count = 600;
    unsigned char *two = filled(r, f);
    assert_memory_equal(whole, one, 1600);
    assert_memory_equal(whole + 1600, two, 2400);
    free(whole);
    free(one);
    free(two);
    ok(ds_rng_destroy(r));
}

/* Against the C library in double precision. */
static void test_values_are_what_their_words_say(void **state) {
    (void)state;

    enum { N = 20000 };

    ds_rng r = rng_at(31, DS_RNG_ELEMENT);
    double worst[6] = { 0 };
    float *u = (float *)(void *)filled(
        r, (ds_rng_fill_desc){
               .kind = DS_RNG_UNIFORM, .dtype = ds_float32(), .count = N, .a = -2, .b = 6 });
    for (uint32_t i = 0; i < N; i++) {
        float want = -2 + (float)(word_at(31, i) >> 8) * 0x1p-24f * 8;
        if (u[i] != want)
            fail_msg("element %u is %.9g, not %.9g", i, (double)u[i], (double)want);
    }
    free(u);
    ok(ds_rng_set_offset(r, 0));
    float *g = (float *)(void *)filled(
        r, (ds_rng_fill_desc){ .kind = DS_RNG_NORMAL, .dtype = ds_float32(), .count = N, .b = 1 });
    for (uint32_t i = 0; i < N; i += 2) {
        double s = sqrt(-2 * log((double)((float)word_at(31, i) * 0x1p-32f + 0x1p-33f))),
               v = (word_at(31, i + 1) + 0.5) * 0x1p-32 * 6.283185307179586;
        worst[0] = fmax(worst[0], fabs(g[i] - s * sin(v)));
        worst[0] = fmax(worst[0], fabs(g[i + 1] - s * cos(v)));
    }
    free(g);
    ok(ds_rng_set_offset(r, 0));
    float *e = (float *)(void *)filled(
        r, (ds_rng_fill_desc){
               .kind = DS_RNG_EXPONENTIAL, .dtype = ds_float32(), .count = N, .a = 2 });
    for (uint32_t i = 0; i < N; i++) {
        double x = (double)((float)word_at(31, i) * 0x1p-32f + 0x1p-33f),
               want = x >= 1 - 0x1p-24 ? 0x1p-25 : -log(x) / 2;
        worst[1] = fmax(worst[1], fabs(e[i] - want) / want);
        assert_true(e[i] > 0);
    }
    free(e);
    ok(ds_rng_set_offset(r, 0));
    double *h = (double *)(void *)filled(
        r, (ds_rng_fill_desc){ .kind = DS_RNG_NORMAL, .dtype = ds_float64(), .count = N, .b = 1 });
    for (uint32_t i = 0; i < N; i += 2) {
        uint64_t x = word_at(31, 2 * i) ^ (uint64_t)word_at(31, 2 * i + 1) << 21,
                 y = word_at(31, 2 * i + 2) ^ (uint64_t)word_at(31, 2 * i + 3) << 21;
        long double s = sqrtl(-2 * logl((long double)((double)x * 0x1p-53 + 0x1p-54))),
                    v = ((long double)y + 0.5L) * 0x1p-53L * 6.283185307179586476925L;
        worst[2] = fmax(worst[2], (double)fabsl(h[i] - s * sinl(v)));
        worst[2] = fmax(worst[2], (double)fabsl(h[i + 1] - s * cosl(v)));
    }
    free(h);
    ok(ds_rng_set_offset(r, 0));
    double *q = (double *)(void *)filled(
        r, (ds_rng_fill_desc){
               .kind = DS_RNG_EXPONENTIAL, .dtype = ds_float64(), .count = N, .a = 2 });
    for (uint32_t i = 0; i < N; i++) {
        double x = (double)(word_at(31, 2 * i) ^ (uint64_t)word_at(31, 2 * i + 1) << 21) * 0x1p-53 +
                   0x1p-54;
        worst[3] = fmax(worst[3], (double)fabsl((q[i] + logl((long double)x) / 2) /
                                                (-logl((long double)x) / 2)));
    }
    free(q);
    ok(ds_rng_set_offset(r, 0));
    double *z = (double *)(void *)filled(
        r, (ds_rng_fill_desc){ .kind = DS_RNG_UNIFORM, .dtype = ds_float64(), .count = N, .b = 1 });
    for (uint32_t i = 0; i < N; i++)
        assert_true(z[i] ==
                    (double)(((uint64_t)word_at(31, 2 * i + 1) << 32 | word_at(31, 2 * i)) >> 11) *
                        0x1p-53);
    free(z);
    if (worst[0] > 1e-6 || worst[1] > 2e-7 || worst[2] > 4e-15 || worst[3] > 4e-16)
        fail_msg("off by %g, %g, %g, %g", worst[0], worst[1], worst[2], worst[3]);
    ok(ds_rng_destroy(r));
}

static void test_integers_and_coins_stay_in_their_range(void **state) {
    (void)state;

    enum { N = 6000 };

    ds_rng r = rng_at(8, DS_RNG_ELEMENT);
    for (int torch = 0; torch < 2; torch++) {
        ok(ds_rng_set_mapping(r, torch ? DS_RNG_TORCH : DS_RNG_ELEMENT, 0, 0));
        int8_t *b = (int8_t *)filled(r, (ds_rng_fill_desc){ .kind = DS_RNG_INTEGERS,
                                                            .dtype = ds_int8(),
                                                            .count = N,
                                                            .low = -128,
                                                            .high = 128 });
        int seen[256] = { 0 }, all = 0;
        for (int i = 0; i < N; i++)
            seen[b[i] + 128]++;
        for (int i = 0; i < 256; i++)
            all += seen[i] != 0;
        assert_int_equal(all, 256);
        free(b);
        uint16_t *one = (uint16_t *)(void *)filled(
            r,
            (ds_rng_fill_desc){
                .kind = DS_RNG_INTEGERS, .dtype = ds_uint16(), .count = N, .low = 7, .high = 8 });
        for (int i = 0; i < N; i++)
            assert_int_equal(one[i], 7);
        free(one);
        int64_t *big = (int64_t *)(void *)filled(r, (ds_rng_fill_desc){ .kind = DS_RNG_INTEGERS,
                                                                        .dtype = ds_int64(),
                                                                        .count = N,
                                                                        .low = -3,
                                                                        .high = (int64_t)3 << 40 });
        int64_t top = 0;
        for (int i = 0; i < N; i++) {
            assert_true(big[i] >= -3 && big[i] < (int64_t)3 << 40);
            if (big[i] > top)
                top = big[i];
        }
        assert_true(top > (int64_t)2 << 40);
        free(big);
        for (int p = 0; p <= 4; p++) {
            float *coins = (float *)(void *)filled(
                r, (ds_rng_fill_desc){
                       .kind = DS_RNG_BERNOULLI, .dtype = ds_float32(), .count = N, .a = p / 4.0 });
            int heads = 0;
            for (int i = 0; i < N; i++) {
                assert_true(coins[i] == 0 || coins[i] == 1);
                heads += coins[i] == 1;
            }
            /* 5 deviations are 194 */
            assert_true(p == 0 ? heads == 0 : p == 4 ? heads == N : abs(heads - N * p / 4) < 200);
            free(coins);
        }
    }
    ok(ds_rng_destroy(r));
}

/* `to` is never given, however the type rounds. */
static void test_uniform_numbers_do_not_reach_their_end(void **state) {
    (void)state;

    enum { N = 70000 };

    ds_rng r = rng_at(3, DS_RNG_ELEMENT);
    for (int torch = 0; torch < 2; torch++) {
        ok(ds_rng_set_mapping(r, torch ? DS_RNG_TORCH : DS_RNG_ELEMENT, 0, 0));
        uint16_t *h = (uint16_t *)(void *)filled(
            r, (ds_rng_fill_desc){
                   .kind = DS_RNG_UNIFORM, .dtype = ds_float16(), .count = N, .a = 1, .b = 2 });
        for (int i = 0; i < N; i++)
            if (h[i] < 0x3c00 || h[i] >= 0x4000)
                fail_msg("%04x", h[i]);
        free(h);
        h = (uint16_t *)(void *)filled(
            r, (ds_rng_fill_desc){
                   .kind = DS_RNG_UNIFORM, .dtype = ds_bfloat16(), .count = N, .b = 1 });
        for (int i = 0; i < N; i++)
            if (h[i] >= 0x3f80)
                fail_msg("%04x", h[i]);
        free(h);
        for (int brain = 0; brain < 2; brain++) { /* what rounds to -0 is 0 */
            ds_rng_fill_desc f = { .kind = DS_RNG_UNIFORM,
                                   .dtype = brain ? ds_bfloat16() : ds_float16(),
                                   .count = N,
                                   .a = brain ? -0x1p-126 : -0x1p-14 };
            for (int end = 0; end < 2; end++) {
                f.b = end ? f.a * 0x1p-12 : 0; /* which is no number of the type */
                h = (uint16_t *)(void *)filled(r, f);
                for (int i = 0; i < N; i++)
                    if (h[i] <= 0x8000)
                        fail_msg("%04x", h[i]);
                free(h);
            }
        }
        float *f = (float *)(void *)filled(r, (ds_rng_fill_desc){ .kind = DS_RNG_UNIFORM,
                                                                  .dtype = ds_float32(),
                                                                  .count = N,
                                                                  .a = 16777216,
                                                                  .b = 16777218 });
        for (int i = 0; i < N; i++)
            assert_true(f[i] == 16777216);
        free(f);
        double *d = (double *)(void *)filled(
            r, (ds_rng_fill_desc){
                   .kind = DS_RNG_UNIFORM, .dtype = ds_float64(), .count = 100, .a = 5, .b = 5 });
        for (int i = 0; i < 100; i++)
            assert_true(d[i] == 5);
        free(d);
    }
    ok(ds_rng_destroy(r));
}

static void test_a_permutation_has_each_number_once(void **state) {
    (void)state;
    static const size_t counts[] = { 0, 1, 2, 3, 64, 255, 256, 257, 258, 1000, 4096, 4097, 10000 };
    ds_rng r = rng_at(12, DS_RNG_ELEMENT);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t n = counts[c], fixed = 0;
        uint64_t before = offset_of(r);
        unsigned char *seen = calloc(n + 1, 1);
        int64_t *x = (int64_t *)(void *)filled(
            r, (ds_rng_fill_desc){ .kind = DS_RNG_PERMUTATION, .dtype = ds_int64(), .count = n });
        for (size_t i = 0; i < n; i++) {
            assert_true(x[i] >= 0 && (uint64_t)x[i] < n && !seen[x[i]]);
            seen[x[i]] = 1;
            fixed += (uint64_t)x[i] == i;
        }
        assert_true(n < 64 || fixed < 12); /* 1 is expected */
        assert_true(offset_of(r) > before || n == 0);
        ok(ds_rng_set_offset(r, before));
        int32_t *y = (int32_t *)(void *)filled(
            r, (ds_rng_fill_desc){ .kind = DS_RNG_PERMUTATION, .dtype = ds_int32(), .count = n });
        for (size_t i = 0; i < n; i++)
            assert_int_equal(x[i], y[i]);
        free(x);
        free(y);
        free(seen);
    }
    /* every order of four is as likely as another: 24 orders, 23 degrees of freedom; above 58
       once in 10,000 */
    int orders[256] = { 0 };
    ok(ds_rng_set_seed(r, 20));
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    int32_t *p = room(dev(), 4 * 4 * 2400, s);
    for (int i = 0; i < 2400; i++)
        ok(ds_rng_permutation(r, ds_int32(), p + 4 * i, 4, s));
    int32_t *all = back(p, 4 * 4 * 2400, s);
    for (int i = 0; i < 2400; i++)
        orders[all[4 * i] | all[4 * i + 1] << 2 | all[4 * i + 2] << 4 | all[4 * i + 3] << 6]++;
    double chi = 0;
    for (int i = 0; i < 256; i++)
        chi += orders[i] ? (orders[i] - 100.0) * (orders[i] - 100.0) / 100 : 0;
    int found = 0;
    for (int i = 0; i < 256; i++)
        found += orders[i] != 0;
    assert_int_equal(found, 24);
    if (chi > 58)
        fail_msg("chi-square %g", chi);
    free(all);
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    ok(ds_rng_destroy(r));
}

/* ---- seeds and states ---- */

static void test_a_set_seed_is_returned_and_repeats_the_numbers(void **state) {
    (void)state;
    uint64_t seed = 0;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    float *p = room(dev(), 400, s);
    ok(ds_rng_set_device_seed(dev(), 42));
    ok(ds_rng_get_device_seed(dev(), &seed));
    assert_int_equal(seed, 42);
    ok(ds_rng_uniform(own, ds_float32(), p, 100, 0, 1, s));
    ok(ds_rng_get_device_seed(dev(), &seed));
    assert_int_equal(seed, 42);
    float *a = back(p, 400, s);
    ok(ds_rng_uniform(own, ds_float32(), p, 100, 0, 1, s));
    float *b = back(p, 400, s);
    assert_memory_not_equal(a, b, 400);
    free(b);
    ok(ds_rng_set_device_seed(dev(), 42));
    ok(ds_rng_uniform(own, ds_float32(), p, 100, 0, 1, s));
    b = back(p, 400, s);
    assert_memory_equal(a, b, 400);
    free(a);
    free(b);
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
}

static void test_seeding_all_devices_seeds_each(void **state) {
    (void)state;
    uint64_t seed, other;
    ok(ds_rng_set_seed_all(UINT64_MAX));
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_rng_get_device_seed(harness_device(i), &seed));
        assert_true(seed == UINT64_MAX);
    }
    ok(ds_rng_get_device_seed(ds_cpu(0), &seed));
    assert_true(seed == UINT64_MAX);
    ok(ds_rng_reseed_all(&other));
    assert_true(other != UINT64_MAX);
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_rng_get_device_seed(harness_device(i), &seed));
        assert_true(seed == other);
    }
    ok(ds_rng_reseed_device(dev(), &seed));
    assert_true(seed != other);
    ok(ds_rng_get_device_seed(dev(), &other));
    assert_true(seed == other);
    /* of a driver without devices: ignored */
    ok(ds_rng_set_device_seed(harness_is_cpu() ? ds_cuda(0) : dev(), 3));
    if (!ds_backend_is_available(DS_DEVICE_CUDA)) {
        ok(ds_rng_reseed_device(ds_cuda(0), &seed)); /* the same */
        assert_true(seed == 0);
    }
    assert_int_equal(ds_rng_set_device_seed((ds_device){ dev().type, 99 }, 3), DS_ERR_DEVICE_RANGE);
    assert_int_equal(ds_rng_get_device_seed(dev(), NULL), DS_ERR_INVALID_VALUE);
}

static void test_states_are_sixteen_bytes_and_repeat_the_numbers(void **state) {
    (void)state;
    unsigned char all[16 * 64], again[16];
    size_t count = 0;
    uint64_t parts[2];
    ds_rng_fill_desc f = { .kind = DS_RNG_NORMAL, .dtype = ds_float32(), .count = 33, .b = 1 };
    ok(ds_rng_set_seed_all(11));
    for (int i = 0; i < harness_device_count(); i++)
        free(filled_on(harness_device(i), own, f, 0));
    ok(ds_rng_get_state_all((ds_device_type)dev().type, NULL, 0, &count));
    assert_int_equal(count, harness_all_devices());
    ok(ds_rng_get_state_all((ds_device_type)dev().type, all, 64, &count));
    memcpy(parts, all, 16);
    assert_true(parts[0] == 11 && parts[1] == 36);
    unsigned char *before = filled(own, f);
    ok(ds_rng_set_state_all((ds_device_type)dev().type, all, count));
    unsigned char *after = filled(own, f);
    assert_memory_equal(before, after, 132);
    free(after);
    ds_rng r;
    ok(ds_rng_get_default(dev(), &r));
    ok(ds_rng_set_state(r, all, 16));
    ok(ds_rng_get_state(r, again, 16));
    assert_memory_equal(all, again, 16);
    after = filled(r, f);
    assert_memory_equal(before, after, 132);
    free(after);
    free(before);
    if (count > 1) { /* the second is wrong: nor is the first set */
        unsigned char wrong[32];
        uint64_t now = offset_of(r);
        memcpy(wrong, all, 32);
        wrong[24] = 2;
        assert_int_equal(ds_rng_set_state_all((ds_device_type)dev().type, wrong, 2),
                         DS_ERR_INVALID_VALUE);
        assert_int_equal(offset_of(r), now);
    }
    ok(ds_rng_set_state(r, all, 8)); /* a seed alone */
    assert_int_equal(offset_of(r), 0);
    assert_int_equal(ds_rng_set_state(r, all, 12), DS_ERR_INVALID_VALUE);
    says("the state has");
    parts[1] = 6;
    assert_int_equal(ds_rng_set_state(r, parts, 16), DS_ERR_INVALID_VALUE);
    says("multiple of 4");
    assert_int_equal(ds_rng_get_state(r, all, 15), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_rng_get_state_all((ds_device_type)dev().type, all, 0, &count),
                     DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_rng_set_state_all((ds_device_type)dev().type, all, 65),
                     DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_rng_destroy(r), DS_ERR_INVALID_HANDLE);
    says("cannot be destroyed");
}

static void test_an_offset_is_set_and_read(void **state) {
    (void)state;
    ds_rng r = rng_at(1, DS_RNG_ELEMENT);
    ok(ds_rng_set_offset(r, 100));
    assert_int_equal(offset_of(r), 100);
    assert_int_equal(ds_rng_set_offset(r, 101), DS_ERR_INVALID_VALUE);
    says("not a multiple of 4");
    assert_int_equal(ds_rng_set_offset(r, (uint64_t)1 << 63), DS_ERR_INVALID_VALUE);
    assert_int_equal(offset_of(r), 100);
    free(filled(r, (ds_rng_fill_desc){
                       .kind = DS_RNG_UNIFORM, .dtype = ds_float32(), .count = 5, .b = 1 }));
    assert_int_equal(offset_of(r), 108);
    ok(ds_rng_set_seed(r, 9));
    assert_int_equal(offset_of(r), 0);
    ok(ds_rng_destroy(r));
}

static void test_a_generator_is_made_copied_and_destroyed(void **state) {
    (void)state;
    ds_rng a, b, c, d;
    ds_rng_info info;
    uint64_t seed;
    ok(ds_rng_create(&(ds_rng_desc){ .device = harness_device(1), .label = "mine" }, &a));
    ok(ds_rng_get_info(a, &info));
    assert_true(info.seed == DS_RNG_DEFAULT_SEED && info.offset == 0 &&
                info.mapping == DS_RNG_ELEMENT);
    assert_true(info.device.type == dev().type && info.device.index == harness_device(1).index);
    if (harness_is_cpu())
        assert_true(info.multiprocessors == 132 && info.threads_per_multiprocessor == 2048);
    ok(ds_rng_set_mapping(a, DS_RNG_TORCH, 28, 1536));
    ok(ds_rng_set_offset(a, 44));
    ok(ds_rng_clone(a, &b));
    ok(ds_rng_get_info(b, &info));
    assert_true(info.seed == DS_RNG_DEFAULT_SEED && info.offset == 44 &&
                info.mapping == DS_RNG_TORCH && info.multiprocessors == 28 &&
                info.threads_per_multiprocessor == 1536);
    ok(ds_rng_reseed(b, &seed));
    ok(ds_rng_get_seed(a, &seed));
    assert_true(seed == DS_RNG_DEFAULT_SEED); /* the one it was copied from stays */
    ok(ds_rng_destroy(a));
    assert_int_equal(ds_rng_destroy(a), DS_ERR_INVALID_HANDLE);
    assert_int_equal(ds_rng_get_info(a, &info), DS_ERR_INVALID_HANDLE);
    ok(ds_rng_create(NULL, &c)); /* in the place of the first */
    assert_int_equal(ds_rng_set_seed(a, 1), DS_ERR_INVALID_HANDLE);
    ok(ds_rng_get_default(dev(), &d));
    assert_int_equal(ds_rng_destroy(d), DS_ERR_INVALID_HANDLE);
    ok(ds_rng_set_device_seed(dev(), 123));
    ok(ds_rng_get_seed(d, &seed));
    assert_int_equal(seed, 123); /* the handle is the device's own */
    assert_int_equal(ds_rng_create(&(ds_rng_desc){ .mapping = (ds_rng_mapping)7 }, &a),
                     DS_ERR_INVALID_VALUE);
    assert_int_equal(
        ds_rng_create(&(ds_rng_desc){ .multiprocessors = 3, .threads_per_multiprocessor = 100 },
                      &a),
        DS_ERR_INVALID_VALUE);
    says("multiple of 256");
    assert_int_equal(ds_rng_create(&(ds_rng_desc){ .multiprocessors = 1 << 16,
                                                   .threads_per_multiprocessor = 1 << 16 },
                                   &a),
                     DS_ERR_INVALID_VALUE);
    says("below 2^32");
    ok(ds_rng_set_mapping(own, DS_RNG_TORCH, 1 << 20, 0));
    assert_int_equal(ds_rng_set_mapping(own, DS_RNG_TORCH, 1 << 20, 1 << 12), DS_ERR_INVALID_VALUE);
    ok(ds_rng_set_mapping(own, DS_RNG_ELEMENT, 0, 0));
    assert_int_equal(a.id, 0);
    assert_int_equal(ds_rng_destroy(own), DS_ERR_INVALID_VALUE);
    ok(ds_rng_destroy(b));
    ok(ds_rng_destroy(c));
}

typedef struct drawer {
    ds_rng r;
    ds_stream s;
    uint32_t *out;
} drawer;

static void *draw(void *user) {
    drawer *d = user;
    for (int i = 0; i < 50; i++)
        ok_thread(ds_rng_bits(d->r, ds_uint32(), d->out + 64 * i, 64, d->s));
    return NULL;
}

/* Threads that draw at once get numbers of their own: together each block once. */
static void test_threads_that_draw_at_once_get_numbers_of_their_own(void **state) {
    (void)state;

    enum { THREADS = 3, BLOCKS = THREADS * 50 };

    drawer d[THREADS];
    pthread_t t[THREADS];
    ds_rng r = rng_at(6, DS_RNG_ELEMENT);
    int seen[BLOCKS] = { 0 };
    for (int i = 0; i < THREADS; i++) {
        d[i].r = r;
        ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &d[i].s));
        d[i].out = room(dev(), 50 * 256, d[i].s);
    }
    for (int i = 0; i < THREADS; i++)
        t[i] = spawn(draw, &d[i]);
    for (int i = 0; i < THREADS; i++)
        join(t[i]);
    assert_int_equal(offset_of(r), 64 * BLOCKS);
    for (int i = 0; i < THREADS; i++) {
        uint32_t *x = back(d[i].out, 50 * 256, d[i].s);
        for (int k = 0; k < 50; k++) {
            int block = 0;
            while (block < BLOCKS && x[64 * k] != word_at(6, (uint64_t)block * 64))
                block++;
            assert_true(block < BLOCKS && !seen[block]++);
            for (uint64_t e = 0; e < 64; e++)
                assert_int_equal(x[64 * k + (int)e], word_at(6, (uint64_t)block * 64 + e));
        }
        free(x);
        ok(ds_device_free(d[i].out));
        ok(ds_stream_destroy(d[i].s));
    }
    ok(ds_rng_destroy(r));
}

/* ---- in graphs ---- */

typedef struct scene {
    ds_rng r;
    ds_stream s;
    uint32_t *a, *b;
    ds_graph_exec x;
} scene;

/* A graph of two fills, of 100 and of 7 words: 108 words a launch. */
static void record_scene(scene *c, uint64_t seed) {
    ds_graph g;
    c->r = rng_at(seed, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &c->s));
    c->a = room(dev(), 400, c->s);
    c->b = room(dev(), 28, c->s);
    ok(ds_stream_synchronize(c->s));
    harness_warm_up();
    ok(ds_capture_begin(c->s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(c->r, ds_uint32(), c->a, 100, c->s));
    ok(ds_rng_bits(c->r, ds_uint32(), c->b, 7, c->s));
    ok(ds_capture_end(c->s, &g));
    ok(ds_graph_instantiate(g, 0, &c->x));
    ok(ds_graph_destroy(g));
}

static void expect_words(const scene *c, uint64_t seed, uint64_t offset) {
    uint32_t *a = back(c->a, 400, c->s), *b = back(c->b, 28, c->s);
    for (uint64_t i = 0; i < 100; i++)
        if (a[i] != word_at(seed, offset + i))
            fail_msg("word %zu of seed %zu, offset %zu", (size_t)i, (size_t)seed, (size_t)offset);
    for (uint64_t i = 0; i < 7; i++)
        assert_int_equal(b[i], word_at(seed, offset + 100 + i));
    free(a);
    free(b);
}

static void end_scene(scene *c) {
    ok(ds_device_free(c->a));
    ok(ds_device_free(c->b));
    ok(ds_stream_destroy(c->s));
}

static void test_each_launch_of_a_graph_takes_numbers_anew(void **state) {
    (void)state;
    scene c;
    record_scene(&c, 50);
    assert_int_equal(offset_of(c.r), 0); /* nothing has run */
    for (uint64_t i = 0; i < 3; i++) {
        ok(ds_graph_launch(c.x, c.s));
        assert_int_equal(offset_of(c.r), 108 * (i + 1));
        expect_words(&c, 50, 108 * i);
    }
    /* in between */
    free(filled(c.r, (ds_rng_fill_desc){ .kind = DS_RNG_BITS, .dtype = ds_uint32(), .count = 4 }));
    ok(ds_graph_launch(c.x, c.s));
    expect_words(&c, 50, 328);
    ok(ds_rng_set_seed(c.r, 51)); /* seeds between launches count */
    ok(ds_graph_launch(c.x, c.s));
    expect_words(&c, 51, 0);
    /* without waiting for one another */
    for (int i = 0; i < 5; i++)
        ok(ds_graph_launch(c.x, c.s));
    expect_words(&c, 51, 540);
    if (harness_device_count() > 1) { /* there its state cannot be written */
        ds_stream there;
        ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(1) }, &there));
        assert_int_equal(ds_graph_launch(c.x, there), DS_ERR_DEVICE_MISMATCH);
        says("cannot be launched on a stream");
        assert_int_equal(offset_of(c.r), 648);
        ok(ds_stream_destroy(there));
    }
    /* the graph goes on with it, not with one that might lie where it was */
    ok(ds_rng_destroy(c.r));
    ds_rng others[4];
    for (uint64_t i = 0; i < 4; i++)
        others[i] = rng_at(52 + i, DS_RNG_ELEMENT);
    ok(ds_graph_launch(c.x, c.s));
    expect_words(&c, 51, 648);
    ok(ds_graph_exec_destroy(c.x));
    for (int i = 0; i < 4; i++)
        ok(ds_rng_destroy(others[i]));
    end_scene(&c);
}

/* An allocator that overwrites what is freed and keeps it until the end. */
typedef struct stale_block {
    struct stale_block *next;
    size_t size;
} stale_block;

static stale_block *stale;
static pthread_mutex_t stale_lock = PTHREAD_MUTEX_INITIALIZER;

static void *stale_alloc(size_t size, void *user) {
    stale_block *b = malloc(sizeof *b + size);
    (void)user;
    if (!b)
        return NULL;
    b->size = size;
    return b + 1;
}

static void stale_free(void *ptr, void *user) {
    (void)user;
    if (!ptr)
        return;
    stale_block *b = (stale_block *)ptr - 1;
    memset(ptr, 0xDB, b->size);
    pthread_mutex_lock(&stale_lock);
    b->next = stale;
    stale = b;
    pthread_mutex_unlock(&stale_lock);
}

static void test_a_graph_keeps_a_generator_that_is_destroyed(void **state) {
    (void)state;
    harness_restart(&(ds_init_desc){ .allocator = { stale_alloc, stale_free, NULL } });
    scene c;
    record_scene(&c, 50);
    ok(ds_rng_destroy(c.r));
    for (uint64_t i = 0; i < 3; i++) {
        ok(ds_graph_launch(c.x, c.s));
        expect_words(&c, 50, 108 * i);
    }
    ok(ds_graph_exec_destroy(c.x));
    end_scene(&c);
    harness_restart(NULL);
    while (stale) {
        stale_block *b = stale;
        stale = b->next;
        free(b);
    }
}

static void test_the_numbers_of_a_graph_and_of_its_copies_are_in_order(void **state) {
    (void)state;
    ds_graph g, twice;
    ds_graph_exec x, y;
    ds_stream s, t;
    ds_rng r = rng_at(60, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &t));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_clone(g, &twice));
    ok(ds_graph_instantiate(g, 0, &x));
    ok(ds_graph_instantiate(twice, 0, &y));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(twice));
    /* on two streams, one after the other, by what the generator itself orders */
    for (uint64_t i = 0; i < 20; i++) {
        ok(ds_graph_launch(i % 2 ? x : y, i % 3 ? s : t));
        if (i % 5 != 4)
            continue;
        ok(ds_stream_synchronize(t));
        uint32_t *got = back(p, 64, s);
        for (uint64_t k = 0; k < 16; k++)
            assert_int_equal(got[k], word_at(60, 16 * i + k));
        free(got);
    }
    assert_int_equal(offset_of(r), 320);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_rng_destroy(r));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* What a launch is to read is not overwritten for the next one, also when that is on another
   stream and could start. */
static void test_a_launch_waits_for_those_who_read_the_state(void **state) {
    (void)state;
    ds_graph g, parent;
    ds_graph_exec x, y;
    ds_graph_node waits, fills;
    ds_stream s, t;
    gate held = { 0 };
    ds_rng r = rng_at(65, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &t));
    uint32_t *p = room(dev(), 64, s), *q = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &parent));
    ds_node_desc first = gate_node(&held);
    ok(ds_graph_add(parent, &first, NULL, 0, &waits));
    ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g }, &waits, 1,
                    &fills));
    ok(ds_graph_add(
        parent,
        &(ds_node_desc){ .kind = DS_NODE_COPY, .u.copy = { .dst = q, .src = p, .width = 64 } },
        &fills, 1, &waits));
    ok(ds_graph_instantiate(parent, 0, &x));
    ok(ds_graph_instantiate(g, 0, &y));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(parent));
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&held);
    ok(ds_graph_launch(y, t));
    for (int i = 0; i < 5; i++)
        harness_nap();
    gate_open(&held);
    ok(ds_stream_synchronize(t));
    uint32_t *one = back(q, 64, s), *two = back(p, 64, s);
    for (uint64_t k = 0; k < 16; k++)
        assert_true(one[k] == word_at(65, k) && two[k] == word_at(65, 16 + k));
    free(one);
    free(two);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_rng_destroy(r));
    ok(ds_device_free(p));
    ok(ds_device_free(q));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_body_of_a_condition_has_no_fills_by_a_generator(void **state) {
    (void)state;
    ds_graph body, g;
    ds_stream s;
    void *word;
    ds_rng r = rng_at(70, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_pinned_alloc(64, &word));
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_capture_end(s, &body));
    ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &g));
    ds_node_desc d = { .kind = DS_NODE_CONDITION,
                       .u.condition = { .word = word, .bodies = &body, .count = 1 } };
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_pinned_free(word));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    ok(ds_rng_destroy(r));
}

static void test_a_child_graph_takes_numbers_too(void **state) {
    (void)state;
    ds_graph g, parent;
    ds_graph_exec x;
    ds_graph_node first, second;
    ds_stream s;
    ds_rng r = rng_at(70, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &parent));
    ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g }, NULL, 0,
                    &first));
    /* the same numbers: it is the same graph */
    ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g }, &first, 1,
                    &second));
    ok(ds_graph_instantiate(parent, 0, &x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(parent));
    for (uint64_t i = 0; i < 3; i++) {
        ok(ds_graph_launch(x, s));
        uint32_t *got = back(p, 64, s);
        for (uint64_t k = 0; k < 16; k++)
            assert_int_equal(got[k], word_at(70, 16 * i + k));
        free(got);
    }
    assert_int_equal(offset_of(r), 48);
    /* a stream that captures cannot launch it */
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    assert_int_equal(ds_graph_launch(x, s), DS_ERR_CAPTURE_UNSUPPORTED);
    says("child graph");
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    assert_int_equal(offset_of(r), 48);
    ok(ds_graph_exec_destroy(x));
    ok(ds_rng_destroy(r));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
}

enum { DRAWN_LAUNCHES = 40, DRAWN_WORDS = 4 * DRAWN_LAUNCHES };

/* The first words that the launches have drawn. */
static struct {
    uint32_t word[DRAWN_WORDS];
    _Atomic int count;
} drawn;

static void note_word(void *user) {
    int at = atomic_fetch_add(&drawn.count, 1);
    if (at < DRAWN_WORDS)
        drawn.word[at] = *(const uint32_t *)user;
}

typedef struct launcher {
    ds_graph_exec x;
    ds_stream s;
} launcher;

static void *launch_often(void *user) {
    launcher *l = user;
    for (int i = 0; i < DRAWN_LAUNCHES; i++)
        ok_thread(ds_graph_launch(l->x, l->s));
    return NULL;
}

/* A graph that draws four words and notes the first one. */
static ds_graph capture_drawing(ds_rng r, ds_stream s, uint32_t *p, uint32_t *pinned) {
    ds_graph g;
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 4, s));
    ok(ds_copy(pinned, p, 16, s));
    ok(ds_stream_launch_host_func(s, note_word, pinned, NULL));
    ok(ds_capture_end(s, &g));
    return g;
}

/* Two executables have the fills of two captures, in opposite orders, and two threads launch
   them. */
static void test_threads_launch_executables_of_one_capture(void **state) {
    (void)state;
    ds_graph g[2];
    launcher l[2];
    pthread_t t[2];
    uint32_t *p[2];
    void *pinned[2];
    ds_rng r = rng_at(71, DS_RNG_ELEMENT);
    atomic_store(&drawn.count, 0);
    for (int i = 0; i < 2; i++) {
        ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &l[i].s));
        p[i] = room(dev(), 16, l[i].s);
        ok(ds_stream_synchronize(l[i].s));
        ok(ds_pinned_alloc(16, &pinned[i]));
    }
    harness_warm_up();
    for (int i = 0; i < 2; i++)
        g[i] = capture_drawing(r, l[i].s, p[i], pinned[i]);
    for (int i = 0; i < 2; i++) {
        ds_graph parent;
        ds_graph_node first, second;
        ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &parent));
        ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g[i] }, NULL, 0,
                        &first));
        ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g[1 - i] },
                        &first, 1, &second));
        ok(ds_graph_instantiate(parent, 0, &l[i].x));
        ok(ds_graph_destroy(parent));
    }
    for (int i = 0; i < 2; i++)
        t[i] = spawn(launch_often, &l[i]);
    for (int i = 0; i < 2; i++)
        join(t[i]);
    for (int i = 0; i < 2; i++)
        ok(ds_stream_synchronize(l[i].s));
    assert_int_equal(offset_of(r), 4 * DRAWN_WORDS);
    assert_int_equal(atomic_load(&drawn.count), DRAWN_WORDS);
    for (uint64_t k = 0; k < DRAWN_WORDS; k++) {
        int times = 0;
        for (int i = 0; i < DRAWN_WORDS; i++)
            times += drawn.word[i] == word_at(71, 4 * k);
        assert_int_equal(times, 1);
    }
    for (int i = 0; i < 2; i++) {
        ok(ds_graph_exec_destroy(l[i].x));
        ok(ds_graph_destroy(g[i]));
        ok(ds_device_free(p[i]));
        ok(ds_pinned_free(pinned[i]));
        ok(ds_stream_destroy(l[i].s));
    }
    ok(ds_rng_destroy(r));
}

/* What torch refuses while a generator is captured; the capture goes on. */
static void test_a_generator_that_is_captured_keeps_its_state(void **state) {
    (void)state;
    ds_graph g;
    ds_stream s;
    uint64_t n;
    unsigned char bytes[16] = { 0 };
    ds_rng copy, other = rng_at(2, DS_RNG_ELEMENT), r = rng_at(1, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    assert_int_equal(ds_rng_set_seed(r, 5), DS_ERR_CAPTURE_UNSUPPORTED);
    says("while its fills are captured");
    ok(ds_rng_set_seed(r, 1)); /* the one it has */
    assert_int_equal(ds_rng_reseed(r, &n), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_get_offset(r, &n), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_set_offset(r, 4), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_get_state(r, bytes, 16), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_set_state(r, bytes, 16), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_clone(r, &copy), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_rng_get_seed(r, &n));
    assert_int_equal(n, 1);
    ok(ds_rng_set_seed(other, 77)); /* others are free */
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_capture_end(s, &g));
    ok(ds_rng_set_seed(r, 5));
    assert_int_equal(offset_of(r), 0);
    ok(ds_graph_destroy(g));
    ok(ds_rng_destroy(r));
    ok(ds_rng_destroy(other));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
}

/* Graphs come and go: what they had of a generator is used again. */
static void test_graphs_that_come_and_go_leave_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 30; i++) {
        scene c;
        record_scene(&c, 80 + (uint64_t)i);
        ok(ds_graph_launch(c.x, c.s));
        if (i % 2)
            expect_words(&c, 80 + (uint64_t)i, 0);
        ok(ds_graph_exec_destroy(c.x));
        ok(ds_rng_destroy(c.r));
        end_scene(&c);
        if (i == 20)
            harness_shutdown();
    }
}

static void test_a_graph_may_be_left_to_the_shutdown(void **state) {
    (void)state;
    scene c;
    record_scene(&c, 7);
    ok(ds_graph_launch(c.x, c.s));
    expect_words(&c, 7, 0);
    ok(ds_device_free(c.a));
    ok(ds_device_free(c.b));
    harness_shutdown(); /* the executable, the stream and the generator were not destroyed */
}

/* ---- what several captures and generators have of one another ---- */

static void test_a_graph_may_draw_from_two_generators(void **state) {
    (void)state;
    ds_graph g;
    ds_graph_exec x;
    ds_stream s;
    ds_rng a = rng_at(21, DS_RNG_ELEMENT), b = rng_at(22, DS_RNG_TORCH),
           like_b = rng_at(22, DS_RNG_TORCH);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    uint32_t *p = room(dev(), 4000, s), *q = room(dev(), 4000, s), *t = room(dev(), 4000, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_rng_bits(a, ds_uint32(), p, 10, s));
    ok(ds_rng_normal(b, ds_float32(), q, 1000, 0, 1, s));
    ok(ds_rng_permutation(b, ds_int32(), t, 1000, s));
    /* a part that has nothing takes the words of the whole */
    ok(ds_rng_fill(a, &(ds_rng_fill_desc){ .kind = DS_RNG_BITS, .dtype = ds_uint32(), .total = 30 },
                   s));
    ok(ds_capture_end(s, &g));
    assert_int_equal(offset_of(a), 0);
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    for (uint64_t i = 0; i < 3; i++) {
        ok(ds_graph_launch(x, s));
        uint32_t *words = back(p, 40, s);
        for (uint64_t k = 0; k < 10; k++)
            assert_int_equal(words[k], word_at(21, 44 * i + k));
        void *normal = back(q, 4000, s), *order = back(t, 4000, s);
        void *like_normal = filled(
            like_b, (ds_rng_fill_desc){
                        .kind = DS_RNG_NORMAL, .dtype = ds_float32(), .count = 1000, .b = 1 });
        void *like_order = filled(
            like_b,
            (ds_rng_fill_desc){ .kind = DS_RNG_PERMUTATION, .dtype = ds_int32(), .count = 1000 });
        assert_memory_equal(normal, like_normal, 4000);
        assert_memory_equal(order, like_order, 4000);
        assert_int_equal(offset_of(a), 44 * (i + 1));
        assert_int_equal(offset_of(b), offset_of(like_b));
        free(words);
        free(normal);
        free(order);
        free(like_normal);
        free(like_order);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_rng_destroy(a));
    ok(ds_rng_destroy(b));
    ok(ds_rng_destroy(like_b));
    ok(ds_device_free(p));
    ok(ds_device_free(q));
    ok(ds_device_free(t));
    ok(ds_stream_destroy(s));
}

/* The generator is bound until the last capture that has fills of it is over, also one that
   gives no graph. */
static void test_two_captures_may_draw_from_one_generator(void **state) {
    (void)state;
    ds_graph g = { 0 }, none;
    ds_stream s, t, fork;
    ds_event e;
    uint64_t n;
    ds_rng r = rng_at(23, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &t));
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &fork));
    ok(ds_event_create(0, NULL, &e));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    harness_watch(s);
    harness_watch(t);
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_capture_begin(t, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_rng_bits(r, ds_uint32(), p, 16, s));
    ok(ds_rng_bits(r, ds_uint32(), p, 4, t));
    ok(ds_capture_end(t, &g)); /* the one that drew last */
    assert_int_equal(ds_rng_get_offset(r, &n), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(ds_rng_set_seed(r, 9), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(fork, e));
    ok(ds_rng_bits(r, ds_uint32(), p, 4, fork)); /* not joined: no graph comes of it */
    assert_int_equal(ds_capture_end(s, &none), DS_ERR_CAPTURE_UNJOINED);
    assert_int_equal(offset_of(r), 0);
    ok(ds_rng_set_seed(r, 9));
    ds_graph_exec x;
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    uint32_t *words = back(p, 16, s);
    for (uint64_t k = 0; k < 4; k++)
        assert_int_equal(words[k], word_at(9, k));
    free(words);
    ok(ds_graph_destroy(g));
    ok(ds_graph_exec_destroy(x));
    ok(ds_rng_destroy(r));
    ok(ds_event_destroy(e));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(fork));
}

/* Seeds of all devices are set, or none. */
static void test_seeding_all_is_refused_whole_while_one_is_captured(void **state) {
    (void)state;
    if (harness_device_count() < 2)
        skip();
    ds_stream s;
    ds_graph g;
    uint64_t first, last;
    ds_device second = harness_device(1);
    ok(ds_rng_set_seed_all(31));
    ok(ds_stream_create(&(ds_stream_desc){ .device = second }, &s));
    uint32_t *p = room(second, 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_rng_bits(own, ds_uint32(), p, 16, s));
    assert_int_equal(ds_rng_set_seed_all(32), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_rng_get_device_seed(dev(), &first));
    ok(ds_rng_get_device_seed(second, &last));
    assert_int_equal(first, 31);
    assert_int_equal(last, 31);
    ok(ds_rng_set_seed_all(31)); /* that which they have */
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
}

/* An executable that becomes another graph, or whose child does, takes the words of the new one. */
static void test_an_executable_that_is_updated_takes_the_new_fills_words(void **state) {
    (void)state;
    ds_graph g[2], parent;
    ds_graph_exec x, y;
    ds_graph_node child;
    ds_stream s;
    ds_rng r = rng_at(24, DS_RNG_ELEMENT);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    uint32_t *p = room(dev(), 64, s);
    ok(ds_stream_synchronize(s));
    harness_warm_up();
    for (size_t i = 0; i < 2; i++) {
        ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
        ok(ds_rng_bits(r, ds_uint32(), p, i ? 4 : 16, s));
        ok(ds_capture_end(s, &g[i]));
    }
    ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &parent));
    ok(ds_graph_add(parent, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g[0] }, NULL, 0,
                    &child));
    ok(ds_graph_instantiate(g[0], NULL, &x));
    ok(ds_graph_instantiate(parent, NULL, &y));
    ok(ds_graph_launch(x, s));
    ok(ds_graph_launch(y, s));
    assert_int_equal(offset_of(r), 32);
    ok(ds_graph_exec_update(x, g[1], NULL));
    ok(ds_graph_exec_set_node(y, child, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g[1] }));
    ok(ds_graph_destroy(g[0]));
    ok(ds_graph_destroy(g[1]));
    ok(ds_graph_destroy(parent));
    for (uint64_t i = 0; i < 4; i++) {
        ok(ds_graph_launch(i % 2 ? x : y, s));
        assert_int_equal(offset_of(r), 32 + 4 * (i + 1));
        uint32_t *words = back(p, 64, s);
        for (uint64_t k = 0; k < 4; k++)
            assert_int_equal(words[k], word_at(24, 32 + 4 * i + k));
        /* of the second launch */
        for (uint64_t k = 4; k < 16; k++)
            assert_int_equal(words[k], word_at(24, 16 + k));
        free(words);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_rng_destroy(r));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
}

/* A submission that fails, whichever it is, takes no words, and those after it have them in
   order. */
static void test_a_launch_that_fails_gives_its_words_back(void **state) {
    (void)state;
    int failed = 0, quiet = 0;
    for (int n = 1; quiet < 5; n++) { /* events are recorded in between, of which nobody hears */
        char fault[32];
        scene c;
        /* behind the two fills of memory and the two that are captured */
        snprintf(fault, sizeof fault, "submit:%d", n + 4);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
        record_scene(&c, 90);
        uint64_t offset = 0;
        int met = 0;
        for (int i = 0; i < 4; i++) {
            ds_result r =
                i == 2 ? ds_rng_bits(c.r, ds_uint32(), c.a, 3, c.s) : ds_graph_launch(c.x, c.s);
            if (r == DS_OK) {
                offset += i == 2 ? 4 : 108;
            } else {
                if (r != DS_ERR_DRIVER)
                    fail_msg("launch %d, %s: %s", i, fault, ds_error_get_last());
                says("fault");
                met = 1;
                failed++;
            }
            assert_int_equal(offset_of(c.r), offset);
        }
        quiet = met ? 0 : quiet + 1;
        if (met) { /* else the fault may be still to come */
            ok(ds_graph_launch(c.x, c.s));
            expect_words(&c, 90, offset);
        }
        ok(ds_graph_exec_destroy(c.x));
        ok(ds_rng_destroy(c.r));
        end_scene(&c);
    }
    /* three launches of a state and a graph, and a fill */
    if (failed < 7)
        fail_msg("only %d submissions could fail", failed);
    harness_restart(NULL);
}

/* The same of a graph that has two captures of one generator. */
static void test_a_failed_launch_of_two_captures_returns_all_words(void **state) {
    (void)state;
    int failed = 0;
    for (int n = 3; n < 10; n++) { /* behind the fill of memory */
        char fault[32];
        ds_graph part[2], whole;
        ds_graph_exec x;
        ds_graph_node node;
        ds_stream s;
        snprintf(fault, sizeof fault, "submit:%d", n + 1);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
        ds_rng r = rng_at(91, DS_RNG_ELEMENT);
        ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
        uint32_t *p = room(dev(), 64, s);
        ok(ds_stream_synchronize(s));
        harness_warm_up();
        ok(ds_graph_create(&(ds_graph_desc){ .device = dev() }, &whole));
        for (int i = 0; i < 2; i++) {
            ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
            ok(ds_rng_bits(r, ds_uint32(), p + 8 * i, 8, s));
            ok(ds_capture_end(s, &part[i]));
            ok(ds_graph_add(whole, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = part[i] },
                            NULL, 0, &node));
            ok(ds_graph_destroy(part[i]));
        }
        ok(ds_graph_instantiate(whole, NULL, &x));
        ok(ds_graph_destroy(whole));
        uint64_t offset = 0;
        for (int i = 0; i < 3; i++) {
            ds_result launched = ds_graph_launch(x, s);
            if (launched == DS_OK)
                offset += 16;
            else
                failed++;
            assert_int_equal(offset_of(r), offset);
        }
        uint32_t *got = back(p, 64, s);
        for (uint64_t k = 0; k < 16; k++)
            assert_int_equal(got[k], word_at(91, offset - 16 + k));
        free(got);
        ok(ds_graph_exec_destroy(x));
        ok(ds_rng_destroy(r));
        ok(ds_device_free(p));
        ok(ds_stream_destroy(s));
    }
    /* two states and the graph */
    if (failed < 3)
        fail_msg("only %d submissions could fail", failed);
    harness_restart(NULL);
}

static int explode(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

/* A launch behind work that fails has read its state as little as that has run: the next one has
   nothing to wait for when the device is whole again. */
static void test_a_graph_draws_again_when_its_device_was_reset(void **state) {
    (void)state;
    scene c;
    ds_stream t;
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &t));
    record_scene(&c, 95);
    uint64_t offset = 0;
    for (int round = 0; round < 3; round++) {
        gate held = { 0 };
        gate_close(c.s, &held);
        ok(ds_kernel_launch(k, 1, NULL, 0, c.s));
        ok(ds_graph_launch(c.x, c.s));
        gate_open(&held);
        refused(ds_stream_synchronize(c.s), DS_ERR_FAILED);
        refused(ds_graph_launch(c.x, c.s), DS_ERR_FAILED);
        ok(ds_device_reset(dev()));
        offset += 108; /* of the launch that was accepted */
        for (int i = 0; i < 3; i++, offset += 108) {
            ok(ds_graph_launch(c.x, i ? c.s : t));
            ok(ds_stream_synchronize(t));
            expect_words(&c, 95, offset);
        }
        assert_int_equal(offset_of(c.r), offset);
    }
    ok(ds_graph_exec_destroy(c.x));
    ok(ds_rng_destroy(c.r));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(t));
    end_scene(&c);
}

/* ---- bad input ---- */

static void test_wrong_fills_are_refused_and_take_nothing(void **state) {
    (void)state;
    ds_stream s;
    ds_rng r = rng_at(4, DS_RNG_ELEMENT), there;
    ok(ds_stream_create(&(ds_stream_desc){ .device = dev() }, &s));
    char *p = room(dev(), 1024, s);
    ok(ds_rng_set_offset(r, 40));
#define REFUSED(code, sentence, call)       \
    do {                                    \
        assert_int_equal(call, code);       \
        says(sentence);                     \
        assert_int_equal(offset_of(r), 40); \
    } while (0)
    REFUSED(DS_ERR_INVALID_HANDLE, "no stream",
            ds_rng_uniform(r, ds_float32(), p, 10, 0, 1, (ds_stream){ 0 }));
    REFUSED(DS_ERR_INVALID_VALUE, "out is NULL",
            ds_rng_uniform(r, ds_float32(), NULL, 10, 0, 1, s));
    REFUSED(DS_ERR_INVALID_VALUE, "exceed the allocation",
            ds_rng_uniform(r, ds_float32(), p, 257, 0, 1, s));
    REFUSED(DS_ERR_INVALID_VALUE, "multiple of 4",
            ds_rng_uniform(r, ds_float32(), p + 2, 10, 0, 1, s));
    REFUSED(DS_ERR_INVALID_VALUE, "not a valid interval",
            ds_rng_uniform(r, ds_float32(), p, 10, 1, 0, s));
    REFUSED(DS_ERR_INVALID_VALUE, "not a valid interval",
            ds_rng_uniform(r, ds_float32(), p, 10, 0, NAN, s));
    REFUSED(DS_ERR_INVALID_VALUE, "not a valid interval",
            ds_rng_uniform(r, ds_float32(), p, 10, -3e38, 3e38, s));
    REFUSED(DS_ERR_INVALID_VALUE, "not a valid interval",
            ds_rng_uniform(r, ds_float16(), p, 10, 0, 70000, s));
    REFUSED(DS_ERR_INVALID_VALUE, "not a valid interval",
            ds_rng_uniform(r, ds_float64(), p, 10, -1.7e308, 1.7e308, s));
    REFUSED(DS_ERR_UNSUPPORTED, "uniform numbers of type int32 are not supported",
            ds_rng_uniform(r, ds_int32(), p, 10, 0, 1, s));
    REFUSED(DS_ERR_UNSUPPORTED, "complex64", ds_rng_normal(r, ds_complex64(), p, 10, 0, 1, s));
    REFUSED(DS_ERR_INVALID_VALUE, "deviation is -1",
            ds_rng_normal(r, ds_float32(), p, 10, 0, -1, s));
    REFUSED(DS_ERR_INVALID_VALUE, "deviation is 1e+300",
            ds_rng_normal(r, ds_float32(), p, 10, 0, 1e300, s));
    REFUSED(DS_ERR_INVALID_VALUE, "rate is 0", ds_rng_exponential(r, ds_float32(), p, 10, 0, s));
    REFUSED(DS_ERR_INVALID_VALUE, "the range [5, 5) is empty",
            ds_rng_integers(r, ds_int32(), p, 10, 5, 5, s));
    REFUSED(DS_ERR_INVALID_VALUE, "cannot represent",
            ds_rng_integers(r, ds_int8(), p, 10, 0, 129, s));
    REFUSED(DS_ERR_INVALID_VALUE, "cannot represent",
            ds_rng_integers(r, ds_uint8(), p, 10, -1, 5, s));
    REFUSED(DS_ERR_UNSUPPORTED, "float32", ds_rng_integers(r, ds_float32(), p, 10, 0, 5, s));
    REFUSED(DS_ERR_INVALID_VALUE, "probability", ds_rng_bernoulli(r, ds_bool(), p, 10, 1.5, s));
    REFUSED(DS_ERR_UNSUPPORTED, "permutations", ds_rng_permutation(r, ds_uint32(), p, 10, s));
    REFUSED(DS_ERR_INVALID_VALUE, "elements 5 to 15 exceed the total of 10",
            ds_rng_fill(r,
                        &(ds_rng_fill_desc){ .kind = DS_RNG_BITS,
                                             .dtype = ds_uint8(),
                                             .out = p,
                                             .count = 10,
                                             .first = 5,
                                             .total = 10 },
                        s));
    REFUSED(DS_ERR_INVALID_VALUE, "kind is 9",
            ds_rng_fill(r,
                        &(ds_rng_fill_desc){
                            .kind = (ds_rng_kind)9, .dtype = ds_uint8(), .out = p, .count = 10 },
                        s));
    REFUSED(DS_ERR_INVALID_VALUE, "desc is NULL", ds_rng_fill(r, NULL, s));
    REFUSED(DS_ERR_INVALID_VALUE, "probability", ds_rng_bernoulli(r, ds_bool(), p, 10, NAN, s));
    ok(ds_rng_set_offset(r, INT64_MAX - 3));
    assert_int_equal(ds_rng_bits(r, ds_uint32(), p, 10, s), DS_ERR_INVALID_VALUE);
    says("exceed 2^63");
    assert_int_equal(offset_of(r), INT64_MAX - 3);
    ok(ds_rng_set_offset(r, 40));
    ok(ds_rng_create(&(ds_rng_desc){ .device = harness_device(1) }, &there));
    if (harness_device_count() > 1) {
        assert_int_equal(ds_rng_uniform(there, ds_float32(), p, 10, 0, 1, s),
                         DS_ERR_DEVICE_MISMATCH);
        says("the generator belongs to");
        ds_stream t;
        ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(1) }, &t));
        assert_int_equal(ds_rng_uniform(there, ds_float32(), p, 10, 0, 1, t),
                         DS_ERR_DEVICE_MISMATCH);
        says("out is on");
        ok(ds_stream_destroy(t));
    }
    ok(ds_rng_set_mapping(r, DS_RNG_TORCH, 0, 0));
    REFUSED(DS_ERR_INVALID_VALUE, "parts",
            ds_rng_fill(
                r,
                &(ds_rng_fill_desc){
                    .kind = DS_RNG_BITS, .dtype = ds_uint8(), .out = p, .count = 5, .total = 10 },
                s));
    REFUSED(DS_ERR_UNSUPPORTED, "torch's mapping",
            ds_rng_bernoulli(r, ds_float64(), p, 10, 0.5, s));
    ok(ds_rng_uniform(r, ds_float32(), NULL, 0, 0, 1, s)); /* nothing at all */
    assert_int_equal(offset_of(r), 40);
    unsigned char *untouched = back(p, 1024, s);
    for (int i = 0; i < 1024; i++)
        assert_int_equal(untouched[i], 0xEE);
    free(untouched);
    ok(ds_device_free(p));
    ok(ds_rng_destroy(r));
    ok(ds_rng_destroy(there));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_rng[] = {
    DS_TEST(test_the_words_are_philox_words, "rng: known answers"),
    DS_TEST(test_torchs_mapping_deals_words_out_to_threads, "rng: torch 114"),
    DS_TEST(test_the_numbers_are_those_of_torch, "rng: torch 111"),
    DS_TEST(test_the_bits_are_the_same_on_every_device, "rng: element"),
    DS_TEST(test_a_fill_in_parts_gives_the_bits_of_the_whole, "rng: element"),
    DS_TEST(test_fills_one_behind_the_other_are_one, "rng: element"),
    DS_TEST(test_values_are_what_their_words_say, "rng: values"),
    DS_TEST(test_integers_and_coins_stay_in_their_range, "rng: values"),
    DS_TEST(test_uniform_numbers_do_not_reach_their_end, "rng: values"),
    DS_TEST(test_a_permutation_has_each_number_once, "rng: permutations"),
    DS_TEST(test_a_set_seed_is_returned_and_repeats_the_numbers,
            "torch: test_manual_seed, test_torch_manual_seed_seeds_cuda_devices"),
    DS_TEST(test_seeding_all_devices_seeds_each, "rng: torch 111"),
    DS_TEST(test_states_are_sixteen_bytes_and_repeat_the_numbers,
            "torch: test_get_set_rng_state_all"),
    DS_TEST(test_an_offset_is_set_and_read, "torch: test_rng_state_offset"),
    DS_TEST(test_a_generator_is_made_copied_and_destroyed, "rng: torch 114"),
    DS_TEST(test_threads_that_draw_at_once_get_numbers_of_their_own, "rng: torch 114"),
    DS_TEST(test_each_launch_of_a_graph_takes_numbers_anew, "rng: graphs"),
    DS_TEST(test_a_graph_keeps_a_generator_that_is_destroyed, "rng: graphs"),
    DS_TEST(test_the_numbers_of_a_graph_and_of_its_copies_are_in_order, "rng: graphs"),
    DS_TEST(test_a_launch_waits_for_those_who_read_the_state, "rng: graphs"),
    DS_TEST(test_a_child_graph_takes_numbers_too, "rng: graphs"),
    DS_TEST(test_a_body_of_a_condition_has_no_fills_by_a_generator, "ds_condition_node"),
    DS_TEST(test_threads_launch_executables_of_one_capture, "rng: graphs"),
    DS_TEST(test_a_generator_that_is_captured_keeps_its_state, "rng: graphs"),
    DS_TEST(test_graphs_that_come_and_go_leave_nothing, "rng: graphs"),
    DS_TEST(test_a_graph_may_be_left_to_the_shutdown, "rng: graphs"),
    DS_TEST(test_a_graph_may_draw_from_two_generators, "rng: graphs"),
    DS_TEST(test_two_captures_may_draw_from_one_generator, "rng: graphs"),
    DS_TEST(test_seeding_all_is_refused_whole_while_one_is_captured, "rng: graphs"),
    DS_TEST(test_an_executable_that_is_updated_takes_the_new_fills_words, "rng: graphs"),
    DS_TEST(test_a_launch_that_fails_gives_its_words_back, "rng: graphs"),
    DS_TEST(test_a_failed_launch_of_two_captures_returns_all_words, "rng: graphs"),
    DS_TEST_CPU(test_a_graph_draws_again_when_its_device_was_reset, "rng: graphs"),
    DS_TEST(test_wrong_fills_are_refused_and_take_nothing, "rng: bad input"),
};
const size_t tests_rng_count = sizeof tests_rng / sizeof *tests_rng;
