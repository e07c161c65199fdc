/* The kernels of the generators, in all the forms that they have: vectors of 16, 32 and 64 bytes
   on the CPU, as the program is built and with -O3 -march=native, the device's source compiled for
   the host, and its PTX run by the interpreter. And what the numbers are worth: tests over 2^30
   bytes. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_rng.h"
#include "rng/kernel_cpu.h"
#include "unit.h"

#include <math.h>

/* ---- the device's source on the host ---- */

#define DEVICE_H_INCLUDED
#define DEVICE static inline
#define KERNEL(name) static void host_##name
#define THREAD_INDEX host_thread
#define BLOCK_SIZE 32u
#define BLOCK_INDEX host_block
#define BLOCK_COUNT host_blocks
static uint32_t host_thread, host_block, host_blocks;
typedef uint32_t vector4 __attribute__((vector_size(16), may_alias));
typedef uint64_t pair8 __attribute__((vector_size(16), may_alias));
#pragma GCC diagnostic push
#ifndef __clang__
/* gcc 12, of a vector that is filled element by element */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "../../kernels/rng.cu"
#pragma GCC diagnostic pop

#include "ptx_ranges.h" /* its type `range` would shadow parameters of the kernels */
#include "standin/ptx.h"

void native_rng_part(const ds__rng_args *args, uint64_t at, uint64_t end, int vector);
int native_rng_items(size_t first, size_t count, const void *args);
int native_rng_permutation(size_t first, size_t count, const void *args);
void native_rng_cache(size_t bytes);

static void run_host(const ds__rng_args *a, unsigned blocks) {
    host_blocks = blocks;
    for (host_block = 0; host_block < blocks; host_block++)
        for (host_thread = 0; host_thread < BLOCK_SIZE; host_thread++) {
#define OF(name, ...)                                                                      \
    host_ds__rng_##name(a->out, a->state, a->seed, a->start, a->before, a->count, a->rows, \
                        a->stride, __VA_ARGS__)
            int wide = a->kind == DS__RNG_F64;
            switch (a->what) {
            case DS__RNG_UNIFORM:
                if (wide)
                    OF(uniform64, a->from, a->to);
                else if (a->kind == DS__RNG_F32 && a->stride == 1)
                    OF(uniform32, a->from32, a->to32);
                else
                    OF(uniform, a->from32, a->scale32, a->from_bits, a->to_bits, a->kind);
                break;
            case DS__RNG_NORMAL:
                if (wide)
                    OF(normal64, a->from, a->to);
                else
                    OF(normal, a->from32, a->to32, a->kind);
                break;
            case DS__RNG_EXPONENTIAL:
                if (wide)
                    OF(exponential64, a->from);
                else
                    OF(exponential, a->from32, a->kind);
                break;
            case DS__RNG_INTEGERS:
                OF(integers, a->low, a->range, a->kind);
                break;
            case DS__RNG_WIDE_INTEGERS:
                OF(wide_integers, a->low, a->range, a->kind);
                break;
            case DS__RNG_BERNOULLI:
                OF(bernoulli, a->low, a->range, a->kind);
                break;
            default:
                OF(permutation, a->low, a->range, a->kind);
                break;
            }
        }
}

static int form_of(const ds__rng_args *a) {
    int wide = a->kind == DS__RNG_F64;
    switch (a->what) {
    case DS__RNG_UNIFORM:
        if (a->kind == DS__RNG_F32 && a->stride == 1)
            return DS__RNG_UNIFORM32;
        return wide ? DS__RNG_UNIFORM64 : DS__RNG_UNIFORMS;
    case DS__RNG_NORMAL:
        return wide ? DS__RNG_NORMAL64 : DS__RNG_NORMALS;
    case DS__RNG_EXPONENTIAL:
        return wide ? DS__RNG_EXPONENTIAL64 : DS__RNG_EXPONENTIALS;
    case DS__RNG_INTEGERS:
        return DS__RNG_ONE_WORD;
    case DS__RNG_WIDE_INTEGERS:
        return DS__RNG_TWO_WORDS;
    case DS__RNG_BERNOULLI:
        return DS__RNG_ONE_OR_ZERO;
    default:
        return DS__RNG_ORDER;
    }
}

static void *reach(void *user, uint64_t address, size_t size, int write) {
    return ranges_reach(user, 2, address, size, write);
}

static ptx_module *modules[DS__RNG_KERNELS];

/* Two blocks of 64 threads. Nothing but the elements may be written, and every access must lie on a
   multiple of its size. */
static void run_ptx(const ds__rng_args *a) {
    char error[256] = "";
    int which = form_of(a);
    const void *params[DS_KERNEL_MAX_PARAMS];
    range ranges[] = { { a->out, (size_t)a->count * ds__rng_size(a->kind), 1 },
                       { a->state, a->state ? 16 : 0, 0 } };
    ptx_launch launch = {
        .grid = { 2, 1, 1 }, .block = { 64, 1, 1 }, .params = params, .memory = { reach, ranges }
    };
    if (!modules[which]) {
        char *joined =
            ds__rng_forms[which].pieces ? ds__ptx_join(ds__rng_forms[which].pieces) : NULL;
        modules[which] = ptx_load(joined ? joined : ds__rng_forms[which].text, error, sizeof error);
        ds__host_free(joined);
    }
    if (!modules[which])
        fail_msg("%s", error);
    const ptx_function *f = ptx_find(modules[which], ds__rng_forms[which].entry);
    assert_non_null(f);
    for (size_t i = 0; i < ds__rng_forms[which].count; i++)
        params[i] = (const char *)a + ds__rng_forms[which].params[i].offset;
    if (ptx_run(f, &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", ds__rng_forms[which].entry, error);
}

/* 0 to 2: vectors of 16, 32 and 64 bytes; 3 to 5: the same, native; 6, 7: the device's source,
   with one block and with several; 8: its PTX. */
enum { FORMS = 9 };

static int run_form(int form, const ds__rng_args *a) {
    int vector = 16 << form % 3;
    if (form == 8) {
        if (a->count > 300)
            return 0;
        run_ptx(a);
        return 1;
    }
    if (form < 6 && vector > ds__os_vector())
        return 0;
    if (form >= 6)
        run_host(a, form == 6 ? 1 : 5);
    else if (a->what == DS__RNG_PERMUTATION)
        (form < 3 ? ds__rng_permutation_items
                  : native_rng_permutation)(0, (size_t)(a->count / DS__RNG_ITEM + 1), a);
    else
        (form < 3 ? ds__rng_part : native_rng_part)(a, 0, a->count, vector);
    return 1;
}

static uint32_t chance = 1;

static uint32_t pick(uint32_t n) {
    chance = chance * 1664525u + 1013904223u;
    return (chance >> 8) % n;
}

/* Bounds of a uniform fill, mean and deviation, or a rate. Some sums of them have to be rounded,
   some intervals are so narrow that numbers are rounded to the upper bound, and some normal and
   exponential numbers exceed f16. */
static void choose_bounds(ds__rng_args *a) {
    a->from = pick(2) ? 0 : -1.5 * pick(10);
    a->to = pick(2) ? 1 : 2.25 + pick(9);
    if (pick(4) == 0) {
        a->from += (double)pick(1u << 24) * 0x1p-30;
        a->to += (double)pick(1u << 24) * 0x1p-26;
    }
    if (a->what == DS__RNG_UNIFORM && pick(4) == 0) {
        a->from = pick(3) - 1.0;
        double ulp = a->kind == DS__RNG_F64 ? 0x1p-52 : 0x1p-23;
        if (a->kind == DS__RNG_F16)
            ulp = 0x1p-10;
        a->to = a->from + (a->from == 0 ? 1 : ulp * (1 + pick(3)));
        if (pick(3) == 0) { /* -0 is outside of the interval */
            a->from = -0x1p-24 * (1 + pick(3));
            a->to = 0;
        }
    }
    if (a->what == DS__RNG_NORMAL && pick(4) == 0)
        a->to *= 30000;
    if (a->what == DS__RNG_EXPONENTIAL)
        a->from = pick(4) ? 0.1 + pick(5) : 1e-5;
}

static void test_all_forms_give_the_same_bits(void **state) {
    (void)state;
    uint64_t written[2];
    host_block = host_thread = 0;
    host_ds__rng_state(written, 5, 8);
    assert_true(written[0] == 5 && written[1] == 8);

    enum { MOST = 5000 };

    static const uint32_t reals[] = { DS__RNG_F16, DS__RNG_BF16, DS__RNG_F32, DS__RNG_F64 };
    unsigned char *buffers[FORMS];
    for (int i = 0; i < FORMS; i++)
        buffers[i] = malloc(8 * MOST + 64);
    for (int round = 0; round < (HARNESS_SLOW ? 300 : 2000); round++) {
        uint64_t graph[2] = { 0x123456789abcdefu * (uint64_t)(round + 1),
                              4 * (uint64_t)pick(1000) };
        ds__rng_args a = { .seed = (uint64_t)pick(1u << 24) << 40 | pick(1u << 24),
                           .start = (uint64_t)pick(1000) << pick(40),
                           .count = pick(round % 4 ? 300 : MOST) + 1,
                           .what = pick(DS__RNG_PERMUTATION + 1) };
        if (pick(3) == 0)
            a.state = graph;
        a.kind = a.what <= DS__RNG_EXPONENTIAL ? reals[pick(4)] : pick(4);
        a.stride = pick(2) || a.what == DS__RNG_PERMUTATION ? 1 : 256 * (1 + pick(4));
        choose_bounds(&a);
        a.from32 = (float)a.from;
        a.to32 = (float)a.to;
        a.scale32 = a.to32 - a.from32;
        if (a.kind >= DS__RNG_F16 && a.kind < DS__RNG_F64) {
            a.from_bits = ds__rng_narrow(a.from32, a.kind);
            a.to_bits = ds__rng_narrow(a.to32, a.kind);
        }
        a.low = a.what == DS__RNG_BERNOULLI ? 1 : pick(1000);
        a.range = a.what == DS__RNG_BERNOULLI ? (uint64_t)pick(1u << 24) << 8
                                              : (uint64_t)(1 + pick(1u << 24)) << pick(9);
        if (a.what == DS__RNG_INTEGERS && pick(8) == 0)
            a.range = (uint64_t)1 << 32;
        if (a.what == DS__RNG_WIDE_INTEGERS)
            a.range = pick(3) ? (uint64_t)pick(1u << 24) << pick(40) : 0;
        uint64_t each = (uint64_t)1 << ds__rng_shift(&a);
        a.before = a.stride == 1 ? pick((uint32_t)each) : 0;
        a.rows = (a.before + a.count - 1) / (each * a.stride) + 1;
        if (a.what == DS__RNG_PERMUTATION) {
            a.kind = DS__RNG_32 + pick(2);
            a.before = pick(20);
            a.rows = a.count;
            a.range = a.before + a.count + pick(5);
            for (a.low = 0; a.range > DS__RNG_FEW && (a.range - 1) >> a.low; a.low++) {
            }
        }
        /* half of them begin where blocks can be stored as a whole */
        size_t size = ds__rng_size(a.kind), at = pick(2) ? a.before : pick(6),
               shift = 16 + size * at, bytes = (size_t)a.count * size;
        for (int form = 0; form < FORMS; form++) {
            memset(buffers[form], 0xEE, 8 * MOST + 64);
            a.out = buffers[form] + shift;
            if (!run_form(form, &a))
                memcpy(buffers[form], buffers[0], 8 * MOST + 64);
            for (size_t i = 0; i < 8 * MOST + 64; i++) {
                if (buffers[form][i] != buffers[0][i])
                    fail_msg(
                        "round %d, form %d: fill %u, kind %u, stride %u, %zu elements: byte %td",
                        round, form, a.what, a.kind, a.stride, (size_t)a.count,
                        (ptrdiff_t)i - (ptrdiff_t)shift);
                if ((i < shift || i >= shift + bytes) && buffers[form][i] != 0xEE)
                    fail_msg("round %d, form %d: byte %td of %zu was written", round, form,
                             (ptrdiff_t)i - (ptrdiff_t)shift, bytes);
            }
        }
    }
    for (int i = 0; i < FORMS; i++)
        free(buffers[i]);
    for (int i = 0; i < DS__RNG_KERNELS; i++) {
        ptx_unload(modules[i]);
        modules[i] = NULL;
    }
}

/* Fills so large that they go around the caches. */
static void test_large_fills_have_the_bits_of_small_ones(void **state) {
    (void)state;
    const size_t n = (size_t)9 << 20;
    ds__os_cache_state = (size_t)8 << 20;
    native_rng_cache((size_t)8 << 20);
    float *large = aligned_alloc(64, 4 * n), *small = aligned_alloc(64, 4 * n);
    for (int form = 0; form < 6; form++) {
        int vector = 16 << form % 3;
        if (vector > ds__os_vector())
            continue;
        memset(large, 0, 4 * n);
        ds__rng_args a = { .out = large,
                           .seed = 3,
                           .count = n,
                           .rows = n / 4,
                           .stride = 1,
                           .kind = DS__RNG_F32,
                           .to = 1,
                           .to32 = 1,
                           .scale32 = 1,
                           .what = DS__RNG_UNIFORM };
        (form < 3 ? ds__rng_part : native_rng_part)(&a, 0, n, vector);
        a.out = small;
        a.count = 1000;
        for (size_t at = 0; at < n; at += 1000 * 1024) { /* in parts, each of which is small */
            uint64_t end = at + 1000 * 1024 < n ? at + 1000 * 1024 : n;
            ds__rng_part(&a, at, end, vector);
        }
        assert_memory_equal(large, small, 4 * n);
    }
    ds__os_cache_state = 0;
    native_rng_cache(0);
    free(large);
    free(small);
}

/* The vectors of such numbers take the upper half of the counter from the first block. */
static void test_floats_go_on_where_a_counter_carries(void **state) {
    (void)state;

    enum { COUNT = 4 * 200 };

    static float want[COUNT], got[COUNT];
    for (uint64_t before = 0; before <= 200; before += 5) {
        ds__rng_args a = { .out = want,
                           .seed = 3,
                           .start = ((uint64_t)7 << 32) - before,
                           .count = COUNT,
                           .rows = COUNT / 4,
                           .stride = 1,
                           .kind = DS__RNG_F32,
                           .to = 1,
                           .to32 = 1,
                           .scale32 = 1,
                           .what = DS__RNG_UNIFORM };
        assert_true(run_form(6, &a));
        for (int form = 0; form < 6; form++) {
            memset(got, 0, sizeof got);
            a.out = got;
            if (run_form(form, &a))
                assert_memory_equal(got, want, sizeof got);
        }
    }
}

/* Items are parts of 1,024 elements; the last one ends with the fill. */
static void test_items_are_parts_of_a_fill(void **state) {
    (void)state;

    enum { COUNT = 3 * DS__RNG_ITEM + 7 };

    static int64_t want[COUNT], got[COUNT + 1];
    for (int permutation = 0; permutation < 2; permutation++) {
        ds__rng_args a = { .out = want,
                           .seed = 3,
                           .count = COUNT,
                           .rows = COUNT,
                           .stride = 1,
                           .kind = DS__RNG_64,
                           .what = permutation ? DS__RNG_PERMUTATION : DS__RNG_INTEGERS,
                           .range = COUNT };
        if (permutation)
            a.low = 12;
        assert_true(run_form(6, &a));
        for (int form = 0; form < 2; form++) {
            memset(got, 0xEE, sizeof got);
            a.out = got;
            int (*items)(size_t, size_t, const void *) = form ? native_rng_items : ds__rng_items;
            if (permutation)
                items = form ? native_rng_permutation : ds__rng_permutation_items;
            assert_int_equal(items(1, 1, &a), 0);
            assert_true(got[DS__RNG_ITEM - 1] == got[COUNT] && got[2 * DS__RNG_ITEM] == got[COUNT]);
            assert_int_equal(items(2, 2, &a), 0);
            assert_int_equal(items(0, 1, &a), 0);
            assert_memory_equal(got, want, sizeof want);
            assert_true(got[COUNT] == (int64_t)0xEEEEEEEEEEEEEEEE);
        }
    }
}

/* The largest word gives a number next to 1, whose logarithm is 0; 0 is no exponential number. */
static void test_no_exponential_number_is_zero(void **state) {
    (void)state;
    for (uint32_t below = 0; below < 300; below++) {
        float x = ds__rng_exponential_of(UINT32_MAX - below, 2);
        double x64 = ds__rng_exponential64_of(0x1fffff - below, UINT32_MAX, 2);
        assert_true(x > 0 && x < 1e-6f && x64 > 0 && x64 < 1e-13);
    }
    assert_true(ds__rng_exponential_of(UINT32_MAX, 2) == 0x1p-25f);
    assert_true(ds__rng_exponential64_of(0x1fffff, UINT32_MAX, 2) == 0x1p-54);
}

/* ---- accuracy: every argument that a fill can have, or every 64th of those ---- */

static void test_logarithms_are_right_to_an_ulp(void **state) {
    (void)state;
    double worst = 0, worst64 = 0;
    for (uint64_t w = 0; w < (uint64_t)1 << 32; w += HARNESS_SLOW ? 65521 : 1021) {
        float x = ds__rng_above_0((uint32_t)w), y = ds__rng_log(x);
        double want = log((double)x);
        if (x == 1) {
            assert_true(y == 0);
            continue;
        }
        double ulp = fabs(want) * 0x1p-23; /* at most two of the type's */
        if (fabs(y - want) / ulp > worst)
            worst = fabs(y - want) / ulp;
        double x64 = (double)(w * 0x200000u + 12345) * 0x1p-53 + 0x1p-54;
        long double want64 = logl((long double)x64);
        double off = (double)fabsl((ds__rng_log64(x64) - want64) / (want64 * 0x1p-52L));
        if (off > worst64)
            worst64 = off;
    }
    print_message("logarithm: off by %.2f and %.2f of 2^-23 and 2^-52\n", worst, worst64);
    assert_true(worst < 1.1 && worst64 < 1.1);
}

static void test_sines_and_cosines_are_right(void **state) {
    (void)state;
    double worst = 0, worst64 = 0;
    for (uint64_t w = 0; w < (uint64_t)1 << 32; w += HARNESS_SLOW ? 65521 : 1021) {
        float s, c;
        double s64, c64, angle = ((double)w + 0.5) * 0x1p-32 * 6.283185307179586477;
        ds__rng_turn((uint32_t)w, &s, &c);
        worst = fmax(worst, fmax(fabs(s - sin(angle)), fabs(c - cos(angle))));
        uint64_t z = w * 0x200000u + 4321;
        long double wide = ((long double)z + 0.5L) * 0x1p-53L * 6.283185307179586476925286766559L;
        ds__rng_turn64(z, &s64, &c64);
        worst64 =
            fmax(worst64, fmax((double)fabsl(s64 - sinl(wide)), (double)fabsl(c64 - cosl(wide))));
    }
    print_message("sine and cosine: off by %.3g and %.3g\n", worst, worst64);
    assert_true(worst < 1.2e-7 && worst64 < 2.3e-16);
}

/* The sum of a product, rounded once, also where it is halfway between two numbers. */
static void test_a_fused_product_is_rounded_once(void **state) {
    (void)state;
    for (int i = 0; i < 3000000 / (HARNESS_SLOW ? 10 : 1); i++) {
        float a = ds__rng_float(0x3f800000u | pick(1u << 24) >> 1),
              b = ds__rng_float(0x3f000000u + (pick(1u << 12) << 11)),
              c = ds__rng_float(0x30000000u + (pick(1u << 24) << 5));
        if (pick(2))
            c = -c;
        if (ds__rng_fma32(a, b, c) != fmaf(a, b, c))
            fail_msg("%a * %a + %a", (double)a, (double)b, (double)c);
    }
}

/* ---- statistics ---- */

/* The probability that chi-square with so many degrees of freedom is at least that large, by
   Wilson and Hilferty's normal approximation (1931). */
static double tail(double chi, double degrees) {
    double z = (cbrt(chi / degrees) - (1 - 2 / (9 * degrees))) / sqrt(2 / (9 * degrees));
    return 0.5 * erfc(z / sqrt(2));
}

static void expect_likely(double p, const char *what) {
    print_message("%s: p = %.4f\n", what, p);
    if (p < 1e-6 || p > 1 - 1e-6)
        fail_msg("%s: p = %g", what, p);
}

/* Bytes, pairs of neighbouring bytes' highest bits, runs of equal bits, and what neighbours and
   numbers 4 and 256 places apart have to do with each other. */
static void test_a_gigabyte_of_words_looks_random(void **state) {
    (void)state;

    enum { PART = 1 << 20 }; /* words */

    const int parts = HARNESS_SLOW ? 8 : 256;
    uint32_t *x = malloc(4 * PART);
    uint64_t *bytes = calloc(65536, sizeof *bytes), ones[32] = { 0 }, changes = 0;
    double apart[3] = { 0 };
    for (int part = 0; part < parts; part++) {
        ds__rng_args a = { .out = x,
                           .seed = 20261122,
                           .start = (uint64_t)part * PART / 4,
                           .count = PART,
                           .rows = PART / 4,
                           .stride = 1,
                           .kind = DS__RNG_32,
                           .range = (uint64_t)1 << 32,
                           .what = DS__RNG_INTEGERS };
        ds__rng_part(&a, 0, PART, ds__os_vector());
        for (size_t i = 0; i < PART; i++) {
            bytes[x[i] & 0xffff]++;
            bytes[x[i] >> 16]++;
            changes += (uint64_t)__builtin_popcount(x[i] ^ x[i] >> 1 ^ (i ? x[i - 1] << 31 : 0));
        }
        for (int b = 0; b < 32; b++)
            for (size_t i = (size_t)(part % 8); i < PART; i += 8)
                ones[b] += x[i] >> b & 1;
        static const size_t lag[3] = { 1, 4, 256 };
        for (int k = 0; k < 3; k++)
            for (size_t i = 0; i + lag[k] < PART; i += 2)
                apart[k] += (x[i] * 0x1p-32 - 0.5) * (x[i + lag[k]] * 0x1p-32 - 0.5);
    }
    double n = (double)parts * (double)PART, chi = 0, each = 2 * n / 65536;
    for (int i = 0; i < 65536; i++)
        chi += ((double)bytes[i] - each) * ((double)bytes[i] - each) / each;
    expect_likely(tail(chi, 65535), "pairs of bytes");
    chi = 0;
    each = n / 16;
    /* of every eighth word */
    for (int b = 0; b < 32; b++)
        chi += ((double)ones[b] - each) * ((double)ones[b] - each) / (each / 2);
    expect_likely(tail(chi, 32), "each bit");
    expect_likely(0.5 * erfc(((double)changes - 16 * n) / sqrt(8 * n) / sqrt(2)),
                  "changes from bit to bit");
    static const char *const names[3] = { "neighbours", "numbers 4 places apart",
                                          "numbers 256 places apart" };
    for (int k = 0; k < 3; k++)
        expect_likely(0.5 * erfc(apart[k] / sqrt(n / 2 / 144) / sqrt(2)), names[k]);
    free(bytes);
    free(x);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The largest distance from the distribution, and how probable it is that it is that large
   (Kolmogorov). */
static double kolmogorov(double *x, size_t n, double (*below)(double)) {
    double most = 0, p = 0;
    qsort(x, n, sizeof *x, by_size);
    for (size_t i = 0; i < n; i++) {
        double f = below(x[i]);
        most = fmax(most, fmax((double)(i + 1) / (double)n - f, f - (double)i / (double)n));
    }
    double t = most * (sqrt((double)n) + 0.12 + 0.11 / sqrt((double)n));
    for (int k = 1; k < 100; k++)
        p += (k % 2 ? 2 : -2) * exp(-2.0 * k * k * t * t);
    return p;
}

static double below_uniform(double x) {
    return x;
}

static double below_normal(double x) {
    return 0.5 * erfc(-x / sqrt(2));
}

static double below_exponential(double x) {
    return 1 - exp(-x);
}

static void test_fills_have_their_distribution(void **state) {
    (void)state;

    enum { N = 1 << 20 };

    const size_t n = HARNESS_SLOW ? N / 8 : N;

    static const struct {
        uint32_t what;
        const char *name;
        double (*below)(double);
    } fills[] = { { DS__RNG_UNIFORM, "uniform", below_uniform },
                  { DS__RNG_NORMAL, "normal", below_normal },
                  { DS__RNG_EXPONENTIAL, "exponential", below_exponential } };

    double *x = malloc(N * sizeof *x);
    float *f = malloc(N * sizeof *f);
    char text[100];
    for (int stride = 1; stride <= 65536; stride += 65535)
        for (size_t i = 0; i < 3; i++)
            for (int wide = 0; wide < 2; wide++) {
                ds__rng_args a = { .out = wide ? (void *)x : (void *)f,
                                   .seed = 7 + i,
                                   .count = n,
                                   .stride = (uint32_t)stride,
                                   .kind = wide ? DS__RNG_F64 : DS__RNG_F32,
                                   .to = 1,
                                   .to32 = 1,
                                   .scale32 = 1,
                                   .to_bits = 0x3f800000u,
                                   .what = fills[i].what };
                if (a.what == DS__RNG_EXPONENTIAL)
                    a.from = a.from32 = 1;
                ds__rng_part(&a, 0, n, ds__os_vector());
                for (size_t k = 0; !wide && k < n; k++)
                    x[k] = (double)f[k];
                double mean = 0, cross = 0;
                for (size_t k = 0; k < n; k++)
                    mean += x[k] / (double)n;
                for (size_t k = 0; k + 1 < n; k += 2)
                    cross += (x[k] - mean) * (x[k + 1] - mean);
                double variance = a.what == DS__RNG_UNIFORM ? 1.0 / 12 : 1;
                snprintf(text, sizeof text, "%s f%d, %s: neighbours", fills[i].name, wide ? 64 : 32,
                         stride > 1 ? "torch's mapping" : "by element");
                expect_likely(0.5 * erfc(cross / sqrt((double)n / 2) / variance / sqrt(2)), text);
                snprintf(text, sizeof text, "%s f%d, %s: distribution", fills[i].name,
                         wide ? 64 : 32, stride > 1 ? "torch's mapping" : "by element");
                expect_likely(kolmogorov(x, n, fills[i].below), text);
            }
    free(x);
    free(f);
}

/* Of permutations of 5 every order as often; of many, where one number goes, how far it is from
   its neighbour, and cycles. */
static void test_permutations_are_fair(void **state) {
    (void)state;

    enum { FEW_ROUNDS = 24000, MANY = 1000, ROUNDS = 4000 };

    int32_t x[MANY];
    int orders[3125] = { 0 }, found = 0, rounds = HARNESS_SLOW ? ROUNDS / 8 : ROUNDS;
    for (int i = 0; i < FEW_ROUNDS; i++) {
        ds__rng_args a = { .out = x,
                           .seed = 11,
                           .start = (uint64_t)i * 3,
                           .count = 5,
                           .rows = 5,
                           .stride = 1,
                           .kind = DS__RNG_32,
                           .range = 5,
                           .what = DS__RNG_PERMUTATION };
        ds__rng_permutation_items(0, 1, &a);
        orders[x[0] + 5 * (x[1] + 5 * (x[2] + 5 * (x[3] + 5 * x[4])))]++;
    }
    double chi = 0, places = 0, steps = 0;
    for (int i = 0; i < 3125; i++)
        if (orders[i]) {
            found++;
            chi += (orders[i] - (double)FEW_ROUNDS / 120.0) *
                   (orders[i] - (double)FEW_ROUNDS / 120.0) / ((double)FEW_ROUNDS / 120.0);
        }
    assert_int_equal(found, 120);
    expect_likely(tail(chi, 119), "orders of five");
    int place[20][20] = { { 0 } }, step[20] = { 0 }, fixed = 0, even = 0;
    for (int i = 0; i < rounds; i++) {
        ds__rng_args a = { .out = x,
                           .seed = 13,
                           .start = (uint64_t)i,
                           .count = MANY,
                           .rows = MANY,
                           .stride = 1,
                           .kind = DS__RNG_32,
                           .low = 10,
                           .range = MANY,
                           .what = DS__RNG_PERMUTATION };
        unsigned char seen[MANY] = { 0 };
        int cycles = 0;
        ds__rng_permutation_items(0, 1, &a);
        for (int k = 0; k < MANY; k++) {
            place[k / 50][x[k] / 50]++;
            fixed += x[k] == k;
            if (k)
                step[(x[k] - x[k - 1] + MANY) % MANY / 50]++;
            for (int at = k; !seen[at]; at = x[at]) {
                seen[at] = 1;
                if (at == k)
                    cycles++;
            }
        }
        even += (MANY - cycles) % 2 == 0;
    }
    const double many = MANY;
    double each = rounds * 50.0 * 50 / many;
    for (int i = 0; i < 400; i++)
        places += (place[i / 20][i % 20] - each) * (place[i / 20][i % 20] - each) / each;
    expect_likely(
        tail(places * (many - 1) / (many - 50.0) * (many / 50.0 - 1) / (many / 50.0), 361),
        "places of a thousand");
    for (int i = 0; i < 20; i++) { /* a step of 0 does not occur */
        each = rounds * (many - 1.0) * (i ? 50 : 49) / (many - 1.0);
        steps += (step[i] - each) * (step[i] - each) / each;
    }
    expect_likely(tail(steps, 19), "steps to the neighbour");
    expect_likely(0.5 * erfc((fixed - rounds) / sqrt((double)rounds) / sqrt(2)),
                  "numbers in their place");
    expect_likely(0.5 * erfc((even - rounds / 2.0) / sqrt(rounds / 4.0) / sqrt(2)),
                  "even permutations");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_forms_give_the_same_bits),
        cmocka_unit_test(test_large_fills_have_the_bits_of_small_ones),
        cmocka_unit_test(test_floats_go_on_where_a_counter_carries),
        cmocka_unit_test(test_items_are_parts_of_a_fill),
        cmocka_unit_test(test_no_exponential_number_is_zero),
        cmocka_unit_test(test_logarithms_are_right_to_an_ulp),
        cmocka_unit_test(test_sines_and_cosines_are_right),
        cmocka_unit_test(test_a_fused_product_is_rounded_once),
        cmocka_unit_test(test_a_gigabyte_of_words_looks_random),
        cmocka_unit_test(test_fills_have_their_distribution),
        cmocka_unit_test(test_permutations_are_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
