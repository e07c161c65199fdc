/* Reductions of a group: the bits are those of devstream_comm.h in one process over the tensors of
   all devices, in their order, and those of a loop in the test. */
#ifndef RANKS_REDUCES_H
#define RANKS_REDUCES_H

#include "moves.h"
#include "small.h"
#include "slow.h"

enum {
    ROUGH,             /* numbers whose order shows in the result */
    EXACT,             /* small numbers: all orders give the same bits */
    SUM_PERIOD = 65537 /* large tensors repeat so many numbers */
};

/* A reduction of tensors with `count` elements. */
typedef struct sum {
    uint64_t state;
    ds_dtype t;
    ds_reduce_op op;
    int style;
    int64_t count;
    unsigned flags;
} sum;

static const char *sum_text(const sum *s) {
    static _Thread_local char text[96];
    char name[DS_DTYPE_NAME_SIZE] = "?";
    DS_IGNORE(ds_dtype_format(s->t, name, sizeof name));
    snprintf(text, sizeof text, "%s, operator %d, %lld elements, style %d, flags %u", name, s->op,
             (long long)s->count, s->style, s->flags);
    return text;
}

static ds_dtype sum_type(size_t i) {
    const ds_dtype types[] = { ds_int8(),    ds_int16(),   ds_int32(),     ds_int64(),
                               ds_uint8(),   ds_uint16(),  ds_uint32(),    ds_uint64(),
                               ds_float16(), ds_float32(), ds_float64(),   ds_bfloat16(),
                               ds_bool(),    ds_float32(), ds_complex64(), ds_complex128() };
    return types[i % 16];
}

static int is_integer(ds_dtype t) {
    return t.code == DS_CODE_INT || t.code == DS_CODE_UINT || t.code == DS_CODE_BOOL;
}

static int is_reducible(ds_dtype t, ds_reduce_op op) {
    if (t.code == DS_CODE_BOOL)
        return op != DS_REDUCE_AVERAGE;
    return t.code != DS_CODE_COMPLEX || (op != DS_REDUCE_MAX && op != DS_REDUCE_MIN);
}

/* Bits of a float of `size` bytes from its sign, exponent relative to 1, and mantissa. */
static uint64_t float_bits(ds_dtype t, size_t size, uint64_t sign, int exponent,
                           uint64_t mantissa) {
    int bits = size == 8 ? 52 : size == 4 ? 23 : t.code == DS_CODE_BFLOAT ? 7 : 10;
    int bias = size == 8 ? 1023 : bits == 10 ? 15 : 127;
    return sign << (size * 8 - 1) | (uint64_t)(bias + exponent) << bits |
           (mantissa & ((1ull << bits) - 1));
}

/* The bits of one number of a float type, or of a part of a complex one. */
static uint64_t float_element(const sum *s, size_t size, uint64_t h) {
    static const int powers[] = { 0, 0, 0, 0, 0, 1, -1, 0 };
    uint64_t sign = h & 1;
    int nan_exponent = size == 8 ? 1024 : size == 2 && s->t.code == DS_CODE_FLOAT ? 16 : 128;
    if (s->style == EXACT && s->op == DS_REDUCE_PRODUCT)
        return float_bits(s->t, size, sign, powers[h >> 1 & 7], 0);
    if (s->style == EXACT)
        return h >> 1 & 3 ? float_bits(s->t, size, sign, (int)(h >> 1 & 3) - 1, 0) : 0;
    if (s->op >= DS_REDUCE_MAX && s->op <= DS_REDUCE_MIN && h >> 8 & 1 && (h >> 9) % 9 == 0)
        return float_bits(s->t, size, sign, nan_exponent, h >> 12 & 1 ? ~(h >> 13) | 1 : 0);
    int range = s->op == DS_REDUCE_PRODUCT ? 1 : 9;
    return float_bits(s->t, size, sign, (int)(h >> 1 & 127) % (2 * range + 1) - range, h >> 9);
}

/* Writes the tensor of device k. */
static void sum_fill(const sum *s, size_t k, void *out) {
    size_t item = item_of(s->t);
    size_t size = s->t.code == DS_CODE_COMPLEX ? item / 2 : item;
    size_t all = (size_t)s->count * (item / size);
    size_t numbers = all < SUM_PERIOD ? all : SUM_PERIOD;
    for (size_t i = 0; i < numbers; i++) {
        uint64_t h = mix(s->state + k * 1315423911u + i * 2654435761u);
        uint64_t bits = is_integer(s->t) ? h : float_element(s, size, h);
        int is_exact_product = s->style == EXACT && s->op == DS_REDUCE_PRODUCT;
        if (s->t.code == DS_CODE_COMPLEX && is_exact_product) /* no zero with a sign */
            bits = i % 2 ? 0 : bits << (65 - size * 8) >> (65 - size * 8);
        else if (s->t.code == DS_CODE_BOOL)
            bits = h % 3 == 0;
        else if (is_integer(s->t) && s->op == DS_REDUCE_AVERAGE)
            bits = h % 5;
        memcpy((char *)out + i * size, &bits, size);
    }
    for (size_t i = numbers; i < all; i += numbers)
        memcpy((char *)out + i * size, out, (all - i < numbers ? all - i : numbers) * size);
}

/* ---- reference: one process ------------------------------------------------------------------ */

/* Reduces the tensors of all devices on the first device of this rank. */
static void sum_here(place *p, const sum *s, void *out) {
    tile in[DEVICES];
    const ds_tensor *ins[DEVICES];
    ds_stream streams[DEVICES];
    void *bytes = take((size_t)s->count * item_of(s->t));
    for (size_t k = 0; k < p->devices; k++) {
        in[k] = tile_make(p, 0, FORM_DENSE, s->t, 1, &s->count);
        sum_fill(s, k, bytes);
        tile_write(p, &in[k], bytes);
        streams[k] = p->stream[0];
    }
    tile to = tile_make(p, 0, FORM_DENSE, s->t, 1, &s->count);
    pointers(in, p->devices, ins);
    ds_comm_options o = copy_options(p, 0);
    o.streams = streams;
    o.stream_count = p->devices;
    OK(ds_comm_reduce_into(ins, p->devices, s->op, to.t, &o));
    tile_read(p, &to, out);
    free_tiles(p, in, p->devices);
    tile_free(p, &to);
    free(bytes);
}

/* ---- reference: a loop ----------------------------------------------------------------------- */

static uint64_t integer_chain(const sum *s, uint64_t a, uint64_t b) {
    unsigned shift = 64 - s->t.bits;
    int less = s->t.code == DS_CODE_INT ? (int64_t)(a << shift) < (int64_t)(b << shift)
                                        : a << shift < b << shift;
    if (s->t.code == DS_CODE_BOOL && s->op == DS_REDUCE_SUM)
        return a | b;
    if (s->op == DS_REDUCE_PRODUCT)
        return a * b;
    if (s->op == DS_REDUCE_SUM || s->op == DS_REDUCE_AVERAGE)
        return a + b;
    return less == (s->op == DS_REDUCE_MAX) ? b : a;
}

static double double_chain(const sum *s, double a, double b) {
    if (s->op == DS_REDUCE_PRODUCT)
        return a * b;
    if (s->op == DS_REDUCE_SUM)
        return a + b;
    if (a != a || b != b)
        return a + b;
    return s->op == DS_REDUCE_MAX ? (a < b ? b : a) : (b < a ? b : a);
}

/* Returns the result of element i; is_nan: it is a NaN, whose bits are not compared. */
static uint64_t sum_element(place *p, const sum *s, unsigned char **in, size_t i, int *is_nan) {
    size_t item = item_of(s->t);
    uint64_t bits = 0;
    double number = 0;
    float lesser = 0;
    for (size_t k = 0; k < p->devices; k++) {
        uint64_t one = 0;
        memcpy(&one, in[k] + i * item, item);
        if (is_integer(s->t)) {
            bits = k ? integer_chain(s, bits, one) : one;
            continue;
        }
        double next;
        memcpy(&next, &one, sizeof next);
        memcpy(&lesser, &one, sizeof lesser);
        next = item == 4 ? (double)lesser : next;
        number = k ? double_chain(s, number, next) : next;
        if (item == 4) /* a double has the sum and the product of two floats without error */
            number = (double)(float)number;
    }
    *is_nan = number != number;
    if (is_integer(s->t))
        return s->op == DS_REDUCE_AVERAGE ? bits / p->devices : bits;
    lesser = (float)number;
    memcpy(&bits, item == 4 ? (void *)&lesser : (void *)&number, item);
    return bits;
}

/* Compares with a loop over the inputs, for the types that C has. */
static void sum_check_loop(place *p, const sum *s, const unsigned char *is) {
    unsigned char *in[DEVICES];
    size_t item = item_of(s->t);
    size_t wrong = 0;
    int is_nan = 0;
    int is_c = is_integer(s->t) || (s->t.code == DS_CODE_FLOAT && s->t.bits >= 32);
    if (!is_c || (!is_integer(s->t) && s->op == DS_REDUCE_AVERAGE))
        return;
    for (size_t k = 0; k < p->devices; k++) {
        in[k] = take((size_t)s->count * item);
        sum_fill(s, k, in[k]);
    }
    for (size_t i = 0; i < (size_t)s->count && i < 2 * SUM_PERIOD; i++) {
        uint64_t bits = sum_element(p, s, in, i, &is_nan);
        wrong += !is_nan && memcmp(&bits, is + i * item, item) != 0;
    }
    CHECK(!wrong, "%zu elements differ from the loop: %s", wrong, sum_text(s));
    for (size_t k = 0; k < p->devices; k++)
        free(in[k]);
}

static unsigned char *sum_expected(place *p, const sum *s) {
    unsigned char *bytes = take((size_t)s->count * item_of(s->t));
    sum_here(p, s, bytes);
    if (p->rank == 0)
        sum_check_loop(p, s, bytes);
    return bytes;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static sum sum_draw(place *p, uint64_t salt, size_t number, uint64_t *draws) {
    static const int64_t counts[] = { 0, 1, 3, 7, 33, 257, 1001, 9001 };
    sum s;
    memset(&s, 0, sizeof s);
    *draws = draw_begin(p, salt * 4096 + number);
    size_t types = draw(draws, 16);
    do {
        s.t = sum_type(types + number);
        s.op = (ds_reduce_op)draw(draws, 5);
    } while (!is_reducible(s.t, s.op));
    s.count = counts[draw(draws, is_cpu(p) ? 8 : 6)];
    s.flags = number % 3 == 2 ? DS_COMM_ANY_ORDER : 0;
    s.style = s.flags ? EXACT : ROUGH;
    s.state = mix(*draws);
    return s;
}

static size_t sums_of(const place *p) {
    return is_cpu(p) ? 24 : 6;
}

static tile sum_input(place *p, const sum *s, size_t i, int form) {
    tile x = tile_make(p, i, form, s->t, 1, &s->count);
    void *bytes = take((size_t)s->count * item_of(s->t));
    sum_fill(s, p->first + i, bytes);
    tile_write(p, &x, bytes);
    free(bytes);
    return x;
}

static void sum_check_inputs(place *p, const sum *s, const tile *in) {
    void *bytes = take((size_t)s->count * item_of(s->t));
    for (size_t i = 0; i < p->own; i++) {
        sum_fill(s, p->first + i, bytes);
        tile_expect(p, &in[i], bytes, "input of a reduction");
    }
    free(bytes);
}

static void all_reduce_case(place *p, const sum *s, uint64_t draws) {
    tile in[OWN];
    tile out[OWN];
    const ds_tensor *ins[OWN];
    const ds_tensor *outs[OWN];
    int forms[2 * DEVICES];
    int in_place = draw(&draws, 3) == 0;
    unsigned char *expected = sum_expected(p, s);
    for (size_t k = 0; k < 2 * DEVICES; k++)
        forms[k] = (int)draw(&draws, FORMS);
    for (size_t i = 0; i < p->own; i++) {
        int form = forms[p->first + i];
        in[i] = sum_input(p, s, i, in_place ? contiguous_form(form) : form);
        out[i] =
            in_place ? in[i] : tile_make(p, i, forms[DEVICES + p->first + i], s->t, 1, &s->count);
    }
    pointers(in, p->own, ins);
    pointers(out, p->own, outs);
    ds_comm_options o = options_of(p, 0);
    o.flags = s->flags;

    OK(ds_comm_all_reduce(ins, outs, p->own, s->op, &o));

    for (size_t i = 0; i < p->own; i++)
        tile_expect(p, &out[i], expected, sum_text(s));
    if (!in_place) {
        sum_check_inputs(p, s, in);
        free_tiles(p, out, p->own);
    }
    free_tiles(p, in, p->own);
    free(expected);
}

static void test_all_reduce(place *p) {
    uint64_t draws;
    for (size_t c = 0; c < sums_of(p); c++) {
        sum s = sum_draw(p, 11, c, &draws);
        all_reduce_case(p, &s, draws);
    }
}

static void reduce_case(place *p, const sum *s, size_t root, uint64_t draws) {
    tile in[OWN];
    tile own = { NULL, NULL, NULL, 0, 0 };
    const ds_tensor *ins[OWN];
    int forms[2 * DEVICES];
    int here = is_mine(p, root);
    int in_place = draw(&draws, 3) == 0;
    unsigned char *expected = sum_expected(p, s);
    for (size_t k = 0; k < 2 * DEVICES; k++)
        forms[k] = (int)draw(&draws, FORMS);
    for (size_t i = 0; i < p->own; i++) {
        int form = forms[p->first + i];
        in[i] = sum_input(p, s, i, in_place ? contiguous_form(form) : form);
    }
    size_t own_root = here ? root - p->first : 0;
    if (here && !in_place)
        own = tile_make(p, own_root, forms[DEVICES], s->t, 1, &s->count);
    const tile *out = in_place ? &in[own_root] : &own;
    pointers(in, p->own, ins);
    ds_comm_options o = options_of(p, root);
    o.flags = s->flags;

    OK(ds_comm_reduce_into(ins, p->own, s->op, here ? out->t : NULL, &o));

    if (here)
        tile_expect(p, out, expected, sum_text(s));
    if (!in_place)
        sum_check_inputs(p, s, in);
    tile_free(p, &own);
    free_tiles(p, in, p->own);
    free(expected);
}

static void test_reduce(place *p) {
    uint64_t draws;
    size_t cases = sums_of(p) > p->devices ? sums_of(p) : p->devices;
    for (size_t c = 0; c < cases; c++) {
        sum s = sum_draw(p, 12, c, &draws);
        reduce_case(p, &s, c % p->devices, draws);
    }
}

/* Draws the parts of a reduce_scatter: their sizes become s->count. */
static job parts_draw(place *p, sum *s, uint64_t *draws) {
    static const size_t limits[] = { 1, 3, 9, 70, 900 };
    job j;
    memset(&j, 0, sizeof j);
    size_t limit = limits[draw(draws, is_cpu(p) ? 5 : 4)];
    j.t = s->t;
    j.ndim = 1;
    j.by_sizes = (int)draw(draws, 2);
    s->count = 0;
    for (size_t k = 0; k < p->devices; k++) {
        j.sizes[k] = j.by_sizes ? (int64_t)draw(draws, limit + 1) : (int64_t)limit;
        s->count += j.sizes[k];
    }
    j.shape[0] = s->count;
    return j;
}

static void reduce_scatter_case(place *p, sum *s, uint64_t draws) {
    tile in[OWN];
    tile out[OWN];
    const ds_tensor *ins[OWN];
    const ds_tensor *outs[OWN];
    int64_t shape[FORM_DIMS];
    job j = parts_draw(p, s, &draws);
    int in_place = draw(&draws, 3) == 0;
    unsigned char *expected = sum_expected(p, s);
    for (size_t i = 0; i < p->own; i++) {
        size_t k = p->first + i;
        int form = (int)(mix(s->state + k) % FORMS);
        in[i] = sum_input(p, s, i, in_place ? contiguous_form(form) : form);
        out[i] = in_place ? tile_of_part(p, &j, &in[i], k)
                          : tile_make(p, i, (int)(mix(s->state - k) % FORMS), s->t, 1,
                                      part_shape(&j, k, shape));
    }
    pointers(in, p->own, ins);
    pointers(out, p->own, outs);
    ds_comm_options o = options_of(p, 0);
    o.flags = s->flags;
    ds_ranks_options sizes = { .sizes = j.by_sizes ? j.sizes : NULL };
    o.ranks_options = &sizes;

    OK(ds_comm_reduce_scatter(ins, outs, p->own, s->op, &o));

    for (size_t i = 0; i < p->own; i++)
        tile_expect(p, &out[i], expected + (size_t)part_start(&j, p->first + i) * item_of(s->t),
                    sum_text(s));
    if (!in_place)
        sum_check_inputs(p, s, in);
    free_tiles(p, out, p->own);
    free_tiles(p, in, p->own);
    free(expected);
}

static void test_reduce_scatter(place *p) {
    uint64_t draws;
    for (size_t c = 0; c < sums_of(p); c++) {
        sum s = sum_draw(p, 13, c, &draws);
        reduce_scatter_case(p, &s, draws);
    }
}

/* Every type with every operator. */
static void test_all_types_and_operators(place *p) {
    for (size_t t = 0; t < 16; t++)
        for (int op = DS_REDUCE_SUM; op <= DS_REDUCE_AVERAGE; op++)
            for (int any = 0; any < 2; any++) {
                sum s = {
                    mix(t * 5 + (size_t)op), sum_type(t),        (ds_reduce_op)op,
                    any ? EXACT : ROUGH,     any ? 64 : 65 + op, any ? DS_COMM_ANY_ORDER : 0
                };
                if (is_reducible(s.t, s.op))
                    all_reduce_case(p, &s, s.state);
            }
}

/* 1e8, 1, -1e8: the sum is 0 or 1, by the order. */
static void test_order_of_a_sum(place *p) {
    static const float values[] = { 1e8f, 1, -1e8f, 1 };
    float expected = values[0];
    int64_t one = 1;
    tile x[OWN];
    const ds_tensor *list[OWN];
    for (size_t k = 1; k < p->devices; k++)
        expected += values[k % 4];
    for (size_t i = 0; i < p->own; i++) {
        x[i] = tile_make(p, i, FORM_DENSE, ds_float32(), 1, &one);
        tile_write(p, &x[i], &values[(p->first + i) % 4]);
    }
    pointers(x, p->own, list);
    ds_comm_options o = options_of(p, 0);

    OK(ds_comm_all_reduce(list, list, p->own, DS_REDUCE_SUM, &o));

    for (size_t i = 0; i < p->own; i++)
        tile_expect(p, &x[i], &expected, "sum of 1e8, 1, -1e8, 1");
    free_tiles(p, x, p->own);
}

/* Tensors of 64 MiB, in each collective. */
static void test_large_tensors(place *p) {
    for (int any = 0; any < 2; any++) {
        sum s = { 77, ds_float32(), DS_REDUCE_SUM, any ? EXACT : ROUGH, 0, 0 };
        s.count = (int64_t)1 << (!is_cpu(p) ? 14 : HARNESS_SLOW ? 19 : any ? 21 : 24);
        s.flags = any ? DS_COMM_ANY_ORDER : 0;
        all_reduce_case(p, &s, 5);
    }
    int bits = HARNESS_SLOW || (is_local(p) && p->size > 2) ? 19 : 24;
    int64_t all = (int64_t)1 << (is_cpu(p) ? bits : 18);
    small_all_of(p, 7, all / (int64_t)p->devices);
}

#endif
