/* The kernels of the collectives, in all the forms that they have: vectors of 16 and of 32 bytes
   on the CPU, as the program is built and with -O3 -march=native, the device's source compiled
   for the host, and its PTX run by the interpreter. All give the same bits as loops over single
   numbers that are written here once more. Memory is as tight as it can be: a byte read or
   written outside of what a kernel was given fails. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "comm/kernel_cpu.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ptx_ranges.h"
#include "standin/ptx.h"

/* ---- the device's source on the host ---- */

#define DEVICE_H_INCLUDED
#define DEVICE static inline
#define KERNEL(name) static void host_##name
#define THREAD_INDEX host_thread
#define BLOCK_INDEX host_block
#define BLOCK_COUNT host_blocks
static uint32_t host_thread, host_block, host_blocks;
typedef uint32_t vector4 __attribute__((vector_size(16), may_alias));
typedef uint64_t pair8 __attribute__((vector_size(16), may_alias));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#ifndef __clang__
/* gcc 12, of a vector whose elements move up */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "../../kernels/comm.cu"
#pragma GCC diagnostic pop

/* ---- the CPU's forms with all that the processor has: native/comm_kernels.c ---- */

void native_reduce_part(const ds__comm_reduce_args *args, uint64_t first, uint64_t end, int vector);
int native_reduce_items(size_t first, size_t count, const void *args);
int native_divide_items(size_t first, size_t count, const void *args);
int native_pack_items(size_t first, size_t count, const void *args);

/* ---- launches ---- */

enum { CPU_16, CPU_32, NATIVE_16, NATIVE_32, HOST, PTX, FORMS };

static const char *const form_names[] = {
    "vectors of 16 bytes",         "vectors of 32 bytes", "vectors of 16 bytes, native",
    "vectors of 32 bytes, native", "the device's source", "PTX"
};

typedef struct memory {
    range range[DS__COMM_INPUTS + 1];
    int count;
} memory;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    const memory *m = user;
    return ranges_reach(m->range, m->count, address, size, write);
}

static ptx_module *modules[DS__COMM_KERNELS];

/* Runs a kernel with the parameters that its desc lists; the CUDA driver looks only at as many
   as it takes. */
static void run_ptx(int which, memory *m, unsigned blocks, const void *args) {
    char error[256] = "";
    const void *pointers[DS_KERNEL_MAX_PARAMS];
    ds_kernel_desc desc = ds__comm_desc(which);
    if (!modules[which]) {
        char *joined = desc.cuda.image_pieces ? ds__ptx_join(desc.cuda.image_pieces) : NULL;
        modules[which] = ptx_load(joined ? joined : desc.cuda.image, error, sizeof error);
        ds__host_free(joined);
    }
    if (!modules[which])
        fail_msg("%s", error);
    const ptx_function *f = ptx_find(modules[which], desc.cuda.entry);
    ptx_launch launch = { .grid = { blocks, 1, 1 },
                          .block = { desc.cuda.block, 1, 1 },
                          .params = pointers,
                          .memory = { reach, m } };
    assert_non_null(f);
    assert_int_equal(desc.cuda.block, THREADS);
    assert_true(ptx_param_count(f) <= desc.param_count);
    for (size_t i = 0; i < ptx_param_count(f); i++) {
        assert_int_equal(ptx_param_size(f, i), desc.params[i].size);
        pointers[i] = (const char *)args + desc.params[i].offset;
    }
    if (ptx_run(f, &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", desc.cuda.entry, error);
}

static void run_host_reduce(int which, unsigned blocks, const ds__comm_reduce_args *a) {
    char *out = a->out;
    host_blocks = blocks;
    for (host_block = 0; host_block < blocks; host_block++)
        for (host_thread = 0; host_thread < THREADS; host_thread++)
            switch (which) {
            case DS__COMM_SELECT:
                host_ds__comm_select(out, a->in, a->bytes, a->inputs, a->masks);
                break;
            case DS__COMM_INTEGERS:
                host_ds__comm_integers(out, a->in, a->bytes, a->inputs, a->masks, a->op);
                break;
            case DS__COMM_REAL32:
                host_ds__comm_f32(out, a->in, a->bytes, a->inputs, a->op, a->divisor);
                break;
            case DS__COMM_REAL64:
                host_ds__comm_f64(out, a->in, a->bytes, a->inputs, a->op, a->divisor);
                break;
            case DS__COMM_HALVES:
                host_ds__comm_halves(out, a->in, a->bytes, a->inputs, a->op, a->divisor, a->kind);
                break;
            case DS__COMM_HALVES_CUT:
                host_ds__comm_halves_cut(out, a->in, a->bytes, a->inputs, a->op, a->divisor,
                                         a->kind, a->wide);
                break;
            default:
                host_ds__comm_complex(out, a->in, a->bytes, a->inputs, a->kind);
                break;
            }
}

/* One launch in one of the forms; an average of integers is two. */
static void run_reduce(int form, const ds__comm_reduce_args *given, unsigned blocks) {
    ds__comm_reduce_args a = *given;
    int which = ds__comm_which(a.kind, a.op, a.wide),
        divides = a.kind <= DS__COMM_I64 && a.divisor > 1;
    ds__comm_divide_args d = { a.out, a.bytes, a.kind, a.divisor };
    memory m = { .count = 1 };
    a.masks = ds__comm_masks_of(a.kind, a.op);
    if (divides)
        a.divisor = 0;
    m.range[0] = (range){ a.out, (size_t)a.bytes * (a.wide & DS__COMM_WIDE_OUT ? 2 : 1), 1 };
    for (uint32_t k = 0; k < a.inputs; k++)
        m.range[m.count++] =
            (range){ a.in.at[k], (size_t)a.bytes * (k == 0 && (a.wide & DS__COMM_WIDE_IN) ? 2 : 1),
                     0 };
    if ((form == CPU_32 || form == NATIVE_32) && ds__os_vector() < 32)
        form--;
    if (form <= CPU_32)
        ds__comm_reduce_part(&a, 0, a.bytes, form == CPU_16 ? 16 : 32);
    else if (form <= NATIVE_32)
        native_reduce_part(&a, 0, a.bytes, form == NATIVE_16 ? 16 : 32);
    else if (form == HOST)
        run_host_reduce(which, blocks, &a);
    else
        run_ptx(which, &m, blocks, &a);
    if (!divides)
        return;
    if (form <= NATIVE_32) {
        assert_int_equal((form <= CPU_32 ? ds__comm_divide_items : native_divide_items)(
                             0, (size_t)(a.bytes / DS__COMM_ITEM + 1), &d),
                         0);
    } else if (form == HOST) {
        host_blocks = blocks;
        for (host_block = 0; host_block < blocks; host_block++)
            for (host_thread = 0; host_thread < THREADS; host_thread++)
                host_ds__comm_divide(d.out, d.bytes, d.kind, d.divisor);
    } else {
        run_ptx(DS__COMM_DIVIDE, &m, blocks, &d);
    }
}

/* ---- numbers ---- */

static uint64_t state = 1;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double power_of_two(int e) {
    double p = 1;
    for (; e > 0; e--)
        p *= 2;
    for (; e < 0; e++)
        p /= 2;
    return p;
}

/* A float of 16 bits by the definition of its format. */
static double half_value(uint32_t h, int mantissa) {
    int bits = 15 - mantissa, bias = (1 << (bits - 1)) - 1,
        e = (int)(h >> mantissa & ((1u << bits) - 1));
    double m = (double)(h & ((1u << mantissa) - 1)) / power_of_two(mantissa),
           sign = h & 0x8000 ? -1 : 1;
    if (e == (1 << bits) - 1)
        return m != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? (1 + m) * power_of_two(e - bias) : m * power_of_two(1 - bias));
}

/* The nearest of them, found by trying: of two as near the one whose last bit is 0. What lies
   half a step above the largest is infinite. */
static uint32_t nearest_half(float value, int mantissa) {
    uint32_t infinity = (0x7fffu >> mantissa) << mantissa,
             sign = ds__f32_bits(value) >> 16 & 0x8000, low = 0, high = infinity;
    double v = value < 0 ? -(double)value : (double)value, below, above;
    if (value != value)
        return infinity | 1u << (mantissa - 1);
    if (v == (double)INFINITY)
        return sign | infinity;
    while (low + 1 < high) {
        uint32_t middle = (low + high) / 2;
        if (half_value(middle, mantissa) <= v)
            low = middle;
        else
            high = middle;
    }
    below = half_value(low, mantissa);
    above =
        high == infinity ? 2 * below - half_value(low - 1, mantissa) : half_value(high, mantissa);
    if (v - below > above - v || (v - below == above - v && (low & 1)))
        low = high;
    return sign | low;
}

static const int size_of[] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16 };
static const char *const kind_names[] = { "u8",  "u16", "u32",  "u64", "i8",  "i16", "i32",
                                          "i64", "f16", "bf16", "f32", "f64", "c64", "c128" };

enum { KINDS = 14 };

static int is_half(uint32_t kind) {
    return kind == DS__COMM_F16 || kind == DS__COMM_BF16;
}

static int mantissa_of(uint32_t kind) {
    return kind == DS__COMM_F16 ? 10 : 7;
}

/* Of a float's bits: anything, or one of those where something changes. */
static uint64_t some_bits(uint32_t kind) {
    int m = kind == DS__COMM_F64 || kind == DS__COMM_C128 ? 52
            : kind == DS__COMM_F16                        ? 10
            : kind == DS__COMM_BF16                       ? 7
                                                          : 23;
    int bits = kind == DS__COMM_F64 || kind == DS__COMM_C128 ? 64 : is_half(kind) ? 16 : 32;
    uint64_t sign = next_random() << (bits - 1), one = ((((uint64_t)1 << (bits - 2 - m)) - 1)) << m,
             infinity = (one << 1) + ((uint64_t)1 << m);
    uint64_t all = bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1, r = next_random();
    switch (next_random() % 16) {
    case 0:
        return sign & all;
    case 1:
        return (sign | infinity) & all;
    /* NaN, most of the time */
    case 2:
        return (sign | infinity | (r & (((uint64_t)1 << m) - 1))) & all;
    case 3:
        return (sign | (r & (((uint64_t)1 << m) - 1))) & all; /* subnormal */
    case 4:
        return (sign | (infinity - 1)) & all;
    case 5:
        return (sign | one) & all;
    case 6:
    case 7:
        return r & all;
    default:
        return ((sign | one) ^ (r & (((uint64_t)1 << (m + 2)) - 1))) & all; /* about 1 */
    }
}

static void fill(unsigned char *to, size_t bytes, uint32_t kind) {
    size_t part = kind == DS__COMM_C64 ? 4 : kind == DS__COMM_C128 ? 8 : (size_t)size_of[kind];
    for (size_t at = 0; at + part <= bytes; at += part) {
        uint64_t v = next_random();
        if (kind >= DS__COMM_F16)
            v = some_bits(kind);
        else if (v >> 60 < 3)
            v = v >> 60 == 0 ? 0 : v >> 60 == 1 ? ~(uint64_t)0 : (uint64_t)1 << (8 * part - 1);
        memcpy(to + at, &v, part);
    }
}

/* ---- the plain loops ---- */

#define PLAIN_INTEGER(T, U)                                 \
    {                                                       \
        T a, x;                                             \
        memcpy(&a, p[0], sizeof a);                         \
        for (uint32_t k = 1; k < r->inputs; k++) {          \
            memcpy(&x, p[k], sizeof x);                     \
            if (r->op == DS__COMM_SUM)                      \
                a = (T)(U)((uint64_t)a + (uint64_t)x);      \
            else if (r->op == DS__COMM_PRODUCT)             \
                a = (T)(U)((uint64_t)a * (uint64_t)x);      \
            else if (r->op == DS__COMM_MAX ? x > a : x < a) \
                a = x;                                      \
        }                                                   \
        if (r->divisor > 1 && (T)-1 > 0)                    \
            a = (T)((uint64_t)a / r->divisor);              \
        else if (r->divisor > 1)                            \
            a = (T)((int64_t)a / (int64_t)r->divisor);      \
        memcpy(to, &a, sizeof a);                           \
    }

/* volatile: rounded to the type and not fused. */
#define PLAIN_STEP(T, SIGN)                                        \
    static T plain_##T(uint32_t op, T a, T x) {                    \
        volatile T sum = a + x, product = a * x;                   \
        if (op == DS__COMM_SUM)                                    \
            return sum;                                            \
        if (op == DS__COMM_PRODUCT)                                \
            return product;                                        \
        if (a != a || x != x)                                      \
            return (T)NAN;                                         \
        if (a == x)                                                \
            return (SIGN(a) != 0) == (op == DS__COMM_MIN) ? a : x; \
        return (x > a) == (op == DS__COMM_MAX) ? x : a;            \
    }
#define SIGN_32(x) (ds__f32_bits(x) >> 31)
#define SIGN_64(x) (ds__f64_bits(x) >> 63)
PLAIN_STEP(float, SIGN_32)
PLAIN_STEP(double, SIGN_64)

static void give_float(void *to, float f) {
    uint32_t bits = f != f ? 0x7fc00000u : ds__f32_bits(f);
    memcpy(to, &bits, 4);
}

static void give_double(void *to, double f) {
    uint64_t bits = f != f ? 0x7ff8000000000000u : ds__f64_bits(f);
    memcpy(to, &bits, 8);
}

/* One float of part bytes: in the inputs at p, of which the first may be wide. */
static void plain_real(const ds__comm_reduce_args *r, const unsigned char *const *p,
                       unsigned char *to) {
    volatile float a = 0;
    for (uint32_t k = 0; k < r->inputs; k++) {
        float x;
        uint16_t h;
        if (is_half(r->kind) && !(k == 0 && (r->wide & DS__COMM_WIDE_IN))) {
            memcpy(&h, p[k], 2);
            x = (float)half_value(h, mantissa_of(r->kind));
        } else {
            memcpy(&x, p[k], 4);
        }
        a = k ? plain_float(r->op, a, x) : x;
    }
    if (r->divisor > 1)
        a = a / (float)r->divisor;
    if (is_half(r->kind) && !(r->wide & DS__COMM_WIDE_OUT)) {
        uint16_t h = (uint16_t)nearest_half(a, mantissa_of(r->kind));
        memcpy(to, &h, 2);
    } else {
        give_float(to, a);
    }
}

static void plain_real64(const ds__comm_reduce_args *r, const unsigned char *const *p,
                         unsigned char *to) {
    volatile double a = 0;
    for (uint32_t k = 0; k < r->inputs; k++) {
        double x;
        memcpy(&x, p[k], 8);
        a = k ? plain_double(r->op, a, x) : x;
    }
    if (r->divisor > 1)
        a = a / r->divisor;
    give_double(to, a);
}

static void plain_complex64(const ds__comm_reduce_args *r, const unsigned char *const *p,
                            unsigned char *to) {
    float a[2], x[2];
    memcpy(a, p[0], 8);
    for (uint32_t k = 1; k < r->inputs; k++) {
        volatile float q, s, t, u;
        memcpy(x, p[k], 8);
        q = a[0] * x[0], s = a[1] * x[1], t = a[0] * x[1], u = a[1] * x[0];
        a[0] = q - s;
        a[1] = t + u;
    }
    give_float(to, a[0]);
    give_float(to + 4, a[1]);
}

static void plain_complex128(const ds__comm_reduce_args *r, const unsigned char *const *p,
                             unsigned char *to) {
    double a[2], x[2];
    memcpy(a, p[0], 16);
    for (uint32_t k = 1; k < r->inputs; k++) {
        volatile double q, s, t, u;
        memcpy(x, p[k], 16);
        q = a[0] * x[0], s = a[1] * x[1], t = a[0] * x[1], u = a[1] * x[0];
        a[0] = q - s;
        a[1] = t + u;
    }
    give_double(to, a[0]);
    give_double(to + 8, a[1]);
}

/* r->inputs may be any number here; the inputs stand in `in`. */
static void reduce_plainly(const ds__comm_reduce_args *r, const unsigned char *const *in,
                           unsigned char *out) {
    size_t size = (size_t)size_of[r->kind];
    for (size_t i = 0; i < r->bytes / size; i++) {
        const unsigned char *p[64] = { NULL };
        unsigned char *to = out + i * size * (r->wide & DS__COMM_WIDE_OUT ? 2 : 1);
        for (uint32_t k = 0; k < r->inputs; k++)
            p[k] = in[k] + i * size * (k == 0 && (r->wide & DS__COMM_WIDE_IN) ? 2 : 1);
        switch (r->kind) {
        case DS__COMM_U8:
            PLAIN_INTEGER(uint8_t, uint8_t) break;
        case DS__COMM_U16:
            PLAIN_INTEGER(uint16_t, uint16_t) break;
        case DS__COMM_U32:
            PLAIN_INTEGER(uint32_t, uint32_t) break;
        case DS__COMM_U64:
            PLAIN_INTEGER(uint64_t, uint64_t) break;
        case DS__COMM_I8:
            PLAIN_INTEGER(int8_t, uint8_t) break;
        case DS__COMM_I16:
            PLAIN_INTEGER(int16_t, uint16_t) break;
        case DS__COMM_I32:
            PLAIN_INTEGER(int32_t, uint32_t) break;
        case DS__COMM_I64:
            PLAIN_INTEGER(int64_t, uint64_t) break;
        case DS__COMM_F64:
            plain_real64(r, p, to);
            break;
        case DS__COMM_C64:
            plain_complex64(r, p, to);
            break;
        case DS__COMM_C128:
            plain_complex128(r, p, to);
            break;
        default:
            plain_real(r, p, to);
            break;
        }
    }
}

/* ---- comparisons ---- */

/* An operand in a block of its own that ends with it, `offset` bytes behind a multiple of 16. */
typedef struct operand {
    unsigned char *block, *data;
    size_t bytes;
} operand;

static operand make_operand(size_t bytes, size_t offset) {
    operand o;
    void *block = NULL;
    assert_int_equal(posix_memalign(&block, 64, bytes + offset ? bytes + offset : 1), 0);
    o.block = block;
    o.data = o.block + offset;
    o.bytes = bytes;
    memset(o.data, 0xa5, bytes);
    return o;
}

static void expect_same(const void *got, const void *want, size_t bytes,
                        const ds__comm_reduce_args *r, int form, const char *what) {
    const unsigned char *g = got, *w = want;
    size_t size = (size_t)size_of[r->kind] * (r->wide & DS__COMM_WIDE_OUT ? 2 : 1);
    if (!memcmp(got, want, bytes))
        return;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t a = 0, b = 0;
        if (g[i] == w[i])
            continue;
        memcpy(&a, g + i / size * size, size < 8 ? size : 8);
        memcpy(&b, w + i / size * size, size < 8 ? size : 8);
        fail_msg("%s, %s: number %zu of %zu of %s, operation %u, %u inputs, divisor %u, wide %u: "
                 "%#llx instead of %#llx",
                 form_names[form], what, i / size, bytes / size, kind_names[r->kind], r->op,
                 r->inputs, r->divisor, r->wide, (unsigned long long)a, (unsigned long long)b);
    }
}

static int exists(uint32_t kind, uint32_t op) {
    return kind < DS__COMM_C64 || op == DS__COMM_PRODUCT;
}

static int offsets_are_bytes;

/* Every form against the plain loops. offsets: of the operands, in numbers or bytes; in_place:
   the input that is the result, or -1. */
static void compare_forms(uint32_t kind, uint32_t op, size_t count, uint32_t inputs,
                          uint32_t divisor, uint32_t wide, const size_t *offsets, int in_place,
                          unsigned blocks, const char *what) {
    size_t size = (size_t)size_of[kind],
           part = kind == DS__COMM_C64    ? 4
                  : kind == DS__COMM_C128 ? 8
                                          : size,
           bytes = count * size;
    operand in[DS__COMM_INPUTS], want = make_operand(2 * bytes, 0);
    ds__comm_reduce_args r;
    const unsigned char *p[DS__COMM_INPUTS];
    if (offsets_are_bytes)
        part = 1;
    memset(&r, 0, sizeof r);
    r.bytes = bytes, r.inputs = inputs, r.op = op, r.divisor = divisor, r.kind = kind,
    r.wide = wide;
    for (uint32_t k = 0; k < inputs; k++) {
        int is_wide = k == 0 && (wide & DS__COMM_WIDE_IN);
        in[k] = make_operand(is_wide ? 2 * bytes : bytes, offsets[k] * (is_wide ? 4 : part) % 16);
        fill(in[k].data, in[k].bytes, is_wide ? DS__COMM_F32 : kind);
        p[k] = in[k].data;
    }
    reduce_plainly(&r, p, want.data);
    for (int form = 0; form < FORMS; form++) {
        size_t out_bytes = wide & DS__COMM_WIDE_OUT ? 2 * bytes : bytes;
        operand copy = make_operand(out_bytes, in_place >= 0 ? offsets[in_place] * part % 16
                                                             : offsets[DS__COMM_INPUTS] *
                                                                   (wide ? 4 : part) % 16);
        for (uint32_t k = 0; k < inputs; k++)
            r.in.at[k] = in[k].data;
        if (in_place >= 0) {
            memcpy(copy.data, in[in_place].data, bytes);
            r.in.at[in_place] = copy.data;
        }
        r.out = copy.data;
        run_reduce(form, &r, blocks);
        expect_same(copy.data, want.data, out_bytes, &r, form, what);
        free(copy.block);
    }
    for (uint32_t k = 0; k < inputs; k++)
        free(in[k].block);
    free(want.block);
}

/* ---- tests ---- */

static const size_t aligned_offsets[DS__COMM_INPUTS + 1];

static void test_a_string_is_no_longer_than_c11_promises(void **unused) {
    (void)unused;
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        ds_kernel_desc desc = ds__comm_desc(i);
        const char *const whole[] = { desc.cuda.image, NULL };
        const char *const *piece = desc.cuda.image_pieces ? desc.cuda.image_pieces : whole;
        for (assert_non_null(*piece); *piece; piece++)
            assert_true(strlen(*piece) <= 4095);
    }
}

static void test_every_half_becomes_the_float_that_it_is_and_back(void **unused) {
    (void)unused;
    for (uint32_t h = 0; h < 65536; h++)
        for (uint32_t kind = DS__COMM_F16; kind <= DS__COMM_BF16; kind++) {
            int m = mantissa_of(kind);
            double value = half_value(h, m);
            uint32_t x = h;
            if (kind == DS__COMM_F16)
                ds__comm_widen_f16_f32(&x);
            else
                ds__comm_widen_bf16_f32(&x);
            double got = (double)ds__f32_of(x);
            assert_true(value != value ? got != got : got == value && (x >> 31) == h >> 15);
            if (kind == DS__COMM_F16)
                ds__comm_narrow_f16_f32(&x);
            else
                ds__comm_narrow_bf16_f32(&x);
            assert_int_equal(x, value != value ? nearest_half((float)NAN, m) : h);
        }
}

/* All halves in one launch of every form: the sum of one, and the smallest. */
static void test_all_halves_pass_through_every_form(void **unused) {
    (void)unused;
    for (uint32_t kind = DS__COMM_F16; kind <= DS__COMM_BF16; kind++) {
        operand in = make_operand(131072, 0), out = make_operand(131072, 0),
                want = make_operand(131072, 0);
        const unsigned char *p[] = { in.data };
        ds__comm_reduce_args r = {
            .out = out.data, .in = { { in.data } }, .bytes = 131072, .inputs = 1, .kind = kind
        };
        for (uint32_t h = 0; h < 65536; h++)
            memcpy(in.data + 2 * h, &(uint16_t){ (uint16_t)h }, 2);
        for (r.op = DS__COMM_SUM; r.op <= DS__COMM_MIN; r.op += DS__COMM_MIN) {
            reduce_plainly(&r, p, want.data);
            for (int form = 0; form < FORMS; form++) {
                run_reduce(form, &r, 8);
                expect_same(out.data, want.data, 131072, &r, form, "all halves");
            }
        }
        free(in.block), free(out.block), free(want.block);
    }
}

/* The floats on both sides of every border between two halves, and many others. */
static void test_floats_are_rounded_to_the_nearest_half(void **unused) {
    (void)unused;
    for (uint32_t kind = DS__COMM_F16; kind <= DS__COMM_BF16; kind++) {
        enum { COUNT = 16384 };

        operand in = make_operand(4 * COUNT, 0), out = make_operand(2 * COUNT, 0),
                want = make_operand(2 * COUNT, 0);
        const unsigned char *p[] = { in.data };
        ds__comm_reduce_args r = { .out = out.data,
                                   .in = { { in.data } },
                                   .bytes = 2 * COUNT,
                                   .inputs = 1,
                                   .kind = kind,
                                   .wide = DS__COMM_WIDE_IN };
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = (uint32_t)next_random(), h = bits >> 16 & 0x7fff;
            double middle =
                half_value(h, mantissa_of(kind)) / 2 + half_value(h + 1, mantissa_of(kind)) / 2;
            float f = (float)middle;
            if (i % 2)
                bits = ds__f32_bits(f) + (i / 2 % 3) - 1;
            memcpy(in.data + 4 * i, &bits, 4);
        }
        reduce_plainly(&r, p, want.data);
        for (int form = 0; form < FORMS; form++) {
            run_reduce(form, &r, 3);
            expect_same(out.data, want.data, 2 * COUNT, &r, form, "rounded");
        }
        free(in.block), free(out.block), free(want.block);
    }
}

static void test_every_kind_and_operation(void **unused) {
    static const size_t counts[] = { 0, 1, 3, 17, 130 };
    (void)unused;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        for (uint32_t op = DS__COMM_SUM; op <= DS__COMM_MIN; op++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts && exists(kind, op); c++)
                compare_forms(kind, op, counts[c], 2 + (uint32_t)c % 3, 0, 0, aligned_offsets, -1,
                              1, "plain");
}

static void test_any_number_of_inputs(void **unused) {
    (void)unused;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        for (uint32_t inputs = 1; inputs <= DS__COMM_INPUTS; inputs++) {
            uint32_t op = (kind + inputs) % 4;
            compare_forms(kind, exists(kind, op) ? op : DS__COMM_PRODUCT, 37, inputs, 0, 0,
                          aligned_offsets, -1, 1, "inputs");
        }
}

static void test_operands_begin_anywhere(void **unused) {
    (void)unused;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 6; i++) {
            uint32_t op = (kind + (uint32_t)i) % 4;
            size_t offsets[DS__COMM_INPUTS + 1], same = (size_t)next_random() % 16;
            for (int k = 0; k <= DS__COMM_INPUTS; k++)
                offsets[k] = i < 2 ? same : (size_t)next_random() % 16;
            compare_forms(kind, exists(kind, op) ? op : DS__COMM_PRODUCT,
                          (size_t)(next_random() % 70), 3, 0, 0, offsets, -1, 1, "anywhere");
        }
}

/* Integers, and what is only compared, need not even lie on multiples of their size. */
static void test_integers_begin_at_any_byte(void **unused) {
    (void)unused;
    offsets_are_bytes = 1;
    for (uint32_t kind = 0; kind <= DS__COMM_F64; kind++)
        for (uint32_t op = kind <= DS__COMM_I64 ? DS__COMM_SUM : DS__COMM_MAX; op <= DS__COMM_MIN;
             op++) {
            size_t offsets[DS__COMM_INPUTS + 1];
            for (int k = 0; k <= DS__COMM_INPUTS; k++)
                offsets[k] = (size_t)next_random() % 16;
            compare_forms(kind, op, 23, 3, 0, 0, offsets, -1, 1, "any byte");
        }
    offsets_are_bytes = 0;
}

static void test_the_result_may_be_any_of_the_inputs(void **unused) {
    (void)unused;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place < 4; in_place++) {
            uint32_t op = (kind + (uint32_t)in_place) % 4;
            size_t offsets[DS__COMM_INPUTS + 1] = { 0 };
            offsets[in_place] = kind % 3;
            compare_forms(kind, exists(kind, op) ? op : DS__COMM_PRODUCT, 51, 4, 0, 0, offsets,
                          in_place, 1, "in place");
        }
}

static void test_an_average_is_the_sum_divided(void **unused) {
    (void)unused;
    for (uint32_t kind = 0; kind < DS__COMM_C64; kind++)
        for (uint32_t inputs = 2; inputs <= 5; inputs++)
            compare_forms(kind, DS__COMM_SUM, 45, inputs, inputs, 0, aligned_offsets,
                          inputs == 3 ? 1 : -1, 1, "average");
}

/* The sum of one, divided by what it is not the average of. */
static void test_any_divisor_divides_exactly(void **unused) {
    static const uint32_t divisors[] = { 2,          3,          7,         10,         127,
                                         128,        255,        256,       257,        641,
                                         65535,      65536,      65537,     0x7fffffff, 0x80000000,
                                         0x80000001, 0xfffffffe, 0xffffffff };
    (void)unused;
    for (uint32_t kind = 0; kind <= DS__COMM_I64; kind++)
        for (size_t i = 0; i < sizeof divisors / sizeof *divisors + 6; i++) {
            uint32_t divisor =
                i < sizeof divisors / sizeof *divisors ? divisors[i] : (uint32_t)next_random() | 2;
            compare_forms(kind, DS__COMM_SUM, 61, 1, divisor, 0, aligned_offsets, -1, 1, "divided");
        }
}

static void test_any_number_of_blocks_does_everything(void **unused) {
    static const unsigned blocks[] = { 1, 2, 3, 5, 9 };
    (void)unused;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (uint32_t kind = 0; kind < KINDS; kind += 3)
            compare_forms(kind,
                          kind < DS__COMM_C64 ? DS__COMM_MAX * (uint32_t)(i & 1) : DS__COMM_PRODUCT,
                          16411 / (size_t)size_of[kind] - i, 2, 0, 0, aligned_offsets, -1,
                          blocks[i], "blocks");
}

/* As ds__comm_reduce cuts: the partial result stays in f32. */
static void test_how_a_reduction_is_cut_does_not_matter(void **unused) {
    enum { INPUTS = 21, COUNT = 77 };

    (void)unused;
    for (uint32_t kind = DS__COMM_F16; kind <= DS__COMM_F64; kind++)
        for (uint32_t op = DS__COMM_SUM; op <= DS__COMM_PRODUCT; op++) {
            size_t bytes = COUNT * (size_t)size_of[kind];
            uint32_t divisor = op == DS__COMM_SUM ? INPUTS : 0;
            int cut = is_half(kind);
            operand in[INPUTS], out = make_operand(bytes, 0), partial = make_operand(2 * bytes, 0),
                                want = make_operand(bytes, 0);
            const unsigned char *p[INPUTS];
            ds__comm_reduce_args whole = {
                .bytes = bytes, .inputs = INPUTS, .op = op, .divisor = divisor, .kind = kind
            };
            for (int k = 0; k < INPUTS; k++) {
                in[k] = make_operand(bytes, 0);
                fill(in[k].data, bytes, kind);
                p[k] = in[k].data;
            }
            reduce_plainly(&whole, p, want.data);
            for (int form = 0; form < FORMS; form++) {
                uint32_t done = 0;
                for (uint32_t first = 2 + (uint32_t)form; done < INPUTS; first = DS__COMM_INPUTS) {
                    ds__comm_reduce_args r = {
                        .out = partial.data, .bytes = bytes, .op = op, .kind = kind
                    };
                    if (done)
                        r.in.at[r.inputs++] = partial.data;
                    if (done && cut)
                        r.wide = DS__COMM_WIDE_IN;
                    while (done < INPUTS && r.inputs < first)
                        r.in.at[r.inputs++] = in[done++].data;
                    if (done < INPUTS && cut)
                        r.wide |= DS__COMM_WIDE_OUT;
                    if (done == INPUTS)
                        r.out = out.data, r.divisor = divisor;
                    run_reduce(form, &r, 1);
                }
                expect_same(out.data, want.data, bytes, &whole, form, "cut");
            }
            for (int k = 0; k < INPUTS; k++)
                free(in[k].block);
            free(out.block), free(partial.block), free(want.block);
        }
}

static void test_a_wide_input_or_result_of_halves(void **unused) {
    (void)unused;
    for (uint32_t kind = DS__COMM_F16; kind <= DS__COMM_BF16; kind++)
        for (uint32_t wide = 1; wide <= 3; wide++) {
            compare_forms(kind, DS__COMM_SUM, 300, 3, 0, wide, aligned_offsets, -1, 1, "wide");
            compare_forms(kind, DS__COMM_PRODUCT, 41, 8, 3, wide, aligned_offsets, -1, 1, "wide");
        }
}

/* Items are dealt to threads; large results go around the caches, which here only the number of
   bytes pretends. */
static void test_items_and_stores_around_the_caches(void **unused) {
    (void)unused;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        size_t size = (size_t)size_of[kind], bytes = (2 * DS__COMM_ITEM + 5000) / size * size;
        operand in[2] = { make_operand(bytes, 0), make_operand(bytes, 0) },
                out = make_operand(bytes, 0), want = make_operand(bytes, 0);
        const unsigned char *p[] = { in[0].data, in[1].data };
        uint32_t op = kind < DS__COMM_C64 ? DS__COMM_SUM : DS__COMM_PRODUCT;
        ds__comm_reduce_args r = { .out = out.data,
                                   .in = { { in[0].data, in[1].data } },
                                   .bytes = bytes,
                                   .inputs = 2,
                                   .op = op,
                                   .kind = kind };
        fill(in[0].data, bytes, kind);
        fill(in[1].data, bytes, kind);
        reduce_plainly(&r, p, want.data);
        assert_int_equal(ds__comm_reduce_items(2, 1, &r), 0);
        assert_int_equal(ds__comm_reduce_items(0, 2, &r), 0);
        expect_same(out.data, want.data, bytes, &r, CPU_32, "items");
        memset(out.data, 0x5a, bytes);
        assert_int_equal(native_reduce_items(0, 3, &r), 0);
        expect_same(out.data, want.data, bytes, &r, NATIVE_32, "items");
        for (int form = CPU_16; form <= NATIVE_32; form++) {
            int vector = form % 2 && ds__os_vector() >= 32 ? 32 : 16;
            memset(out.data, 0x5a, bytes);
            r.bytes = DS__STREAM_MOST;
            (form <= CPU_32 ? ds__comm_reduce_part : native_reduce_part)(&r, 0, bytes, vector);
            r.bytes = bytes;
            expect_same(out.data, want.data, bytes, &r, form, "around the caches");
        }
        for (int k = 0; k < 2; k++)
            free(in[k].block);
        free(out.block), free(want.block);
    }
}

/* Through and around the caches, and with an output that is an input. */
static void test_a_reduction_to_all_outputs_reads_before_it_writes(void **unused) {
    (void)unused;

    enum { N = 3, MOST = (1 << 18) + 70 };

    static const size_t counts[] = { 1, 31, 1024, 1025, 3 * DS__COMM_ITEM / 4 + 5, 1 << 18 };
    float *in[N];
    float *out[N];
    float *want = malloc(MOST * sizeof *want);
    for (int i = 0; i < N; i++) {
        in[i] = malloc(MOST * sizeof *in[i]);
        out[i] = i == 1 ? in[i] : malloc(MOST * sizeof *out[i]);
    }
    ds__os_cache_state = 1;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (size_t shift = 0; shift < 5; shift += 4) {
            size_t n = counts[k];
            ds__reduce_all_args a = { .outs = N };
            for (int i = 0; i < N; i++) {
                for (size_t j = 0; j < MOST; j++) {
                    in[i][j] = (float)(j % 1000) / (float)(i + 3);
                    out[i][j] = i == 1 ? in[i][j] : -1;
                }
                a.reduce.in.at[i] = in[i] + shift;
                a.out[i] = (char *)(out[i] + shift);
            }
            for (size_t j = 0; j < MOST; j++)
                want[j] = in[0][j] + in[1][j] + in[2][j];
            a.reduce.inputs = N;
            a.reduce.kind = DS__COMM_F32;
            a.reduce.op = DS__COMM_SUM;
            a.reduce.bytes = 4 * n;
            size_t items = (4 * n + DS__COMM_ITEM - 1) / DS__COMM_ITEM;

            assert_int_equal(ds__reduce_all_items(items / 2, items - items / 2, &a), 0);
            assert_int_equal(ds__reduce_all_items(0, items / 2, &a), 0);

            for (int i = 0; i < N; i++) {
                assert_memory_equal(out[i] + shift, want + shift, 4 * n);
                assert_true(out[i][shift + n] == (i == 1 ? (float)((shift + n) % 1000) / 4 : -1));
            }
        }
    ds__os_cache_state = 0;
    for (int i = 0; i < N; i++) {
        free(in[i]);
        if (i != 1)
            free(out[i]);
    }
    free(want);
}

/* Rounded upwards, subnormal numbers as zero, and traps: a reduction neither sees nor changes
   that. */
static void test_how_a_thread_computes_is_not_seen(void **unused) {
#if defined(__x86_64__)
    enum { COUNT = 999, STATE = 0xdd40 }; /* both zeros, upwards, no mask for a division by zero */

    (void)unused;
    for (uint32_t kind = DS__COMM_F16; kind < KINDS; kind++)
        for (int native = 0; native < 2; native++) {
            size_t bytes = COUNT * (size_t)size_of[kind];
            operand in[2] = { make_operand(bytes, 0), make_operand(bytes, 0) },
                    out = make_operand(bytes, 0), want = make_operand(bytes, 0);
            const unsigned char *p[] = { in[0].data, in[1].data };
            ds__comm_reduce_args r = { .out = out.data,
                                       .in = { { in[0].data, in[1].data } },
                                       .bytes = bytes,
                                       .inputs = 2,
                                       .kind = kind,
                                       .op =
                                           kind < DS__COMM_C64 ? DS__COMM_SUM : DS__COMM_PRODUCT };
            unsigned usual = __builtin_ia32_stmxcsr(), left;
            fill(in[0].data, bytes, kind);
            fill(in[1].data, bytes, kind);
            reduce_plainly(&r, p, want.data);
            __builtin_ia32_ldmxcsr(STATE);
            assert_int_equal((native ? native_reduce_items : ds__comm_reduce_items)(0, 1, &r), 0);
            left = __builtin_ia32_stmxcsr();
            __builtin_ia32_ldmxcsr(usual);
            assert_int_equal(left & 0xffc0, STATE);
            expect_same(out.data, want.data, bytes, &r, native ? NATIVE_32 : CPU_32,
                        "another rounding");
            free(in[0].block), free(in[1].block), free(out.block), free(want.block);
        }
#else
    (void)unused;
    skip();
#endif
}

/* ---- copies ---- */

/* One element, found by its index in every dimension. */
static void pack_plainly(const ds__comm_pack_args *p) {
    for (uint64_t i = 0; i < p->elements; i++) {
        uint64_t rest = i;
        int64_t to = 0, from = 0;
        for (uint32_t k = p->ndim; k-- > 0; rest /= p->dims.size[k]) {
            to += (int64_t)(rest % p->dims.size[k]) * p->dims.dst[k];
            from += (int64_t)(rest % p->dims.size[k]) * p->dims.src[k];
        }
        memcpy(p->dst + to, p->src + from, p->size);
    }
}

/* Distances of an array with the dimensions in another order and with gaps; returns its bytes. */
static size_t lay_out(const uint64_t *size, uint32_t ndim, uint32_t element, int64_t *stride) {
    uint32_t order[DS__COMM_DIMS];
    uint64_t at = element;
    for (uint32_t k = 0; k < ndim; k++)
        order[k] = k;
    for (uint32_t k = ndim; k > 1; k--) {
        uint32_t other = (uint32_t)(next_random() % k), saved = order[k - 1];
        order[k - 1] = order[other], order[other] = saved;
    }
    for (uint32_t k = 0; k < ndim; k++) {
        stride[order[k]] = (int64_t)at;
        at *= size[order[k]];
        if (next_random() % 4 == 0)
            at += element;
    }
    return (size_t)at;
}

static void test_copies_of_any_strides(void **unused) {
    (void)unused;
    for (int round = 0; round < 120; round++) {
        ds__comm_pack_args p;
        size_t dst_bytes, src_bytes, items;
        memset(&p, 0, sizeof p);
        p.size = 1u << round % 5;
        p.ndim = 1 + (uint32_t)(next_random() % DS__COMM_DIMS);
        p.elements = 1;
        for (uint32_t k = 0; k < p.ndim; k++)
            p.elements *= p.dims.size[k] = 1 + next_random() % (p.ndim < 3   ? 40
                                                                : p.ndim < 6 ? 5
                                                                             : 3);
        dst_bytes = lay_out(p.dims.size, p.ndim, p.size, p.dims.dst);
        src_bytes = lay_out(p.dims.size, p.ndim, p.size, p.dims.src);
        operand src = make_operand(src_bytes, 0), dst = make_operand(dst_bytes, 0),
                want = make_operand(dst_bytes, 0);
        fill(src.data, src_bytes, DS__COMM_U8);
        p.src = (const char *)src.data;
        if (round % 7 == 0) { /* backwards */
            p.src += (int64_t)(p.dims.size[0] - 1) * p.dims.src[0];
            p.dims.src[0] = -p.dims.src[0];
        }
        /* one for all */
        if (round % 11 == 0)
            p.dims.src[p.ndim - 1] = 0;
        p.dst = (char *)want.data;
        pack_plainly(&p);
        p.dst = (char *)dst.data;
        ds__comm_pack_narrow(&p);
        assert_true(p.narrow);
        if (round % 4 == 0)
            p.narrow = 0;
        items = (size_t)(p.elements * p.size / DS__COMM_ITEM + 1);
        assert_int_equal(ds__comm_pack_items(0, items, &p), 0);
        assert_memory_equal(dst.data, want.data, dst_bytes);
        memset(dst.data, 0xa5, dst_bytes);
        assert_int_equal(native_pack_items(0, items, &p), 0);
        assert_memory_equal(dst.data, want.data, dst_bytes);
        memset(dst.data, 0xa5, dst_bytes);
        host_blocks = 2;
        for (host_block = 0; host_block < 2; host_block++)
            for (host_thread = 0; host_thread < THREADS; host_thread++)
                host_ds__comm_pack(p.dst, p.src, p.dims, p.elements, p.ndim, p.size, p.narrow);
        assert_memory_equal(dst.data, want.data, dst_bytes);
        memset(dst.data, 0xa5, dst_bytes);
        memory m = { { { dst.data, dst_bytes, 1 }, { src.data, src_bytes, 0 } }, 2 };
        run_ptx(DS__COMM_PACK, &m, 1 + (unsigned)round % 3, &p);
        assert_memory_equal(dst.data, want.data, dst_bytes);
        free(src.block), free(dst.block), free(want.block);
    }
}

/* The factor and the shift divide every number below 2^31 exactly. Numbers next to a multiple show
   an error first. */
static void test_a_product_divides_indices_exactly(void **unused) {
    (void)unused;
    for (int round = 0; round < 20000; round++) {
        ds__comm_pack_args p = { .elements = 0x7fffffff, .ndim = 2, .size = 1 };
        uint32_t d =
            round < 300 ? (uint32_t)round + 1 : (uint32_t)next_random() >> (1 + round % 31);
        if (round % 5 == 0 && round >= 300)
            d = (1u << (1 + round % 30)) + (uint32_t)(round / 5 % 3) - 1;
        d += d == 0;
        p.dims.size[0] = p.elements / d;
        p.dims.size[1] = d;
        ds__comm_pack_narrow(&p);
        assert_true(p.narrow);
        const ds__comm_narrow_dim *n = &p.dims.narrow[1];
        for (int i = 0; i < 20; i++) {
            uint32_t x = i ? (uint32_t)next_random() >> 1 : 0x7fffffffu;
            if (i % 4)
                x = x / d * d + (i % 4 == 1 ? 0 : i % 4 == 2 ? d - 1 : d / 2);
            x &= 0x7fffffffu;
            uint32_t q = ((uint32_t)((uint64_t)x * n->magic >> 32) + x) >> n->shift;
            if (q != x / d)
                fail_msg("%u / %u: %u instead of %u", x, d, q, x / d);
        }
    }
}

/* Copies of 2^31 elements or with strides of 2^31 bytes are divided with 64 bits. */
static void test_large_copies_are_not_narrow(void **unused) {
    (void)unused;
    ds__comm_pack_args p = { .elements = (uint64_t)1 << 31, .ndim = 2, .size = 1 };
    p.dims.size[0] = (uint64_t)1 << 30;
    p.dims.size[1] = 2;
    ds__comm_pack_narrow(&p);
    assert_false(p.narrow);
    p.elements = 4, p.dims.size[0] = 2;
    p.dims.dst[0] = -(int64_t)0x80000000;
    p.dims.src[1] = 0x7fffffff;
    ds__comm_pack_narrow(&p);
    assert_true(p.narrow);
    p.dims.src[1]++;
    ds__comm_pack_narrow(&p);
    assert_false(p.narrow);
    p.dims.src[1] = 0;
    p.dims.dst[0]--;
    ds__comm_pack_narrow(&p);
    assert_false(p.narrow);
}

/* Very short rows, and columns that are so far apart that the rows are copied by tiles; with a
   gap behind every other kind of row. */
static void test_copies_by_columns_and_by_tiles(void **unused) {
    enum { APART = 16384 };

    static const uint64_t columns[] = { 2, 7, 8, 33, 104 };
    int by_tiles = 0;
    (void)unused;
    for (uint32_t size = 1; size <= 16; size *= 2)
        for (int c = 0; c < 5; c++)
            for (uint64_t rows = 64 / size - 1; rows < 1024 / size; rows = 9 * rows + 20) {
                ds__comm_pack_args p = { .elements = 2 * rows * columns[c],
                                         .ndim = 3,
                                         .size = size };
                const int64_t pitch = (int64_t)(columns[c] + (c & 1)) * size;
                const int64_t dst[] = { pitch * (int64_t)rows, pitch, size },
                              src[] = { APART * (int64_t)columns[c], size, APART };
                const uint64_t dims[] = { 2, rows, columns[c] };
                size_t bytes = 2 * (size_t)dst[0],
                       items = (size_t)(p.elements * size + DS__COMM_ITEM - 1) / DS__COMM_ITEM;
                operand from = make_operand(2 * (size_t)src[0] - APART + (size_t)rows * size, 0),
                        to = make_operand(bytes, 0), want = make_operand(bytes, 0);
                memcpy(p.dims.size, dims, sizeof dims);
                memcpy(p.dims.dst, dst, sizeof dst);
                memcpy(p.dims.src, src, sizeof src);
                by_tiles += ds__comm_tile(&p) != 0;
                fill(from.data, from.bytes, DS__COMM_U64);
                p.src = (const char *)from.data;
                p.dst = (char *)want.data;
                pack_plainly(&p);
                p.dst = (char *)to.data;
                for (int form = 0; form < 3; form++) {
                    memset(to.data, 0xa5, bytes);
                    if (form == 0)
                        assert_int_equal(ds__comm_pack_items(0, items, &p), 0);
                    if (form == 1)
                        assert_int_equal(native_pack_items(0, items, &p), 0);
                    for (size_t i = items; form == 2 && i-- > 0;)
                        assert_int_equal(ds__comm_pack_items(i, 1, &p), 0);
                    assert_memory_equal(to.data, want.data, bytes);
                }
                free(from.block), free(to.block), free(want.block);
            }
    assert_true(by_tiles > 0);
}

static void test_items_of_a_copy(void **unused) {
    ds__comm_pack_args p = { .elements = 90 * 70 * 11, .ndim = 3, .size = 4 };
    const int64_t dst[] = { 4, 4 * 90, 4 * 90 * 70 }, src[] = { 4 * 70 * 11, 4 * 11, 4 };
    const uint64_t size[] = { 90, 70, 11 };
    size_t bytes = (size_t)p.elements * 4, items = (bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM;
    operand from = make_operand(bytes, 0), to = make_operand(bytes, 0),
            want = make_operand(bytes, 0);
    (void)unused;
    memcpy(p.dims.size, size, sizeof size);
    memcpy(p.dims.dst, dst, sizeof dst);
    memcpy(p.dims.src, src, sizeof src);
    fill(from.data, bytes, DS__COMM_U8);
    p.src = (const char *)from.data;
    p.dst = (char *)want.data;
    pack_plainly(&p);
    p.dst = (char *)to.data;
    for (size_t i = items; i-- > 0;)
        assert_int_equal(ds__comm_pack_items(i, 1, &p), 0);
    assert_memory_equal(to.data, want.data, bytes);
    free(from.block), free(to.block), free(want.block);
}

/* ---- through devstream: both drivers where there are two ---- */

static void ok(ds_result r) {
    if (r < 0)
        fail_msg("%s", ds_error_get_last());
}

static ds_stream stream_of(ds_device_type type) {
    ds_stream s;
    ds_device d;
    memset(&d, 0, sizeof d);
    d.type = (int32_t)type;
    ok(ds_device_set_current(d));
    ok(ds_stream_create(NULL, &s));
    return s;
}

static void reduce_on(ds_device_type type) {
    enum { INPUTS = 11, COUNT = 5003 };

    static const struct {
        uint32_t kind;
        ds_dtype dtype;
    } types[] = {
        { DS__COMM_U8, { DS_CODE_UINT, 8, 1 } },       { DS__COMM_I32, { DS_CODE_INT, 32, 1 } },
        { DS__COMM_I64, { DS_CODE_INT, 64, 1 } },      { DS__COMM_F16, { DS_CODE_FLOAT, 16, 1 } },
        { DS__COMM_BF16, { DS_CODE_BFLOAT, 16, 1 } },  { DS__COMM_F32, { DS_CODE_FLOAT, 32, 1 } },
        { DS__COMM_F64, { DS_CODE_FLOAT, 64, 1 } },    { DS__COMM_C64, { DS_CODE_COMPLEX, 64, 1 } },
        { DS__COMM_C128, { DS_CODE_COMPLEX, 128, 1 } }
    };

    ds_stream s = stream_of(type);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (uint32_t inputs = 1; inputs <= INPUTS; inputs += 5) {
            uint32_t op =
                (uint32_t)t % 2 || types[t].kind >= DS__COMM_C64 ? DS__COMM_PRODUCT : DS__COMM_SUM;
            size_t bytes = COUNT * (size_t)size_of[types[t].kind];
            ds_reduce_op given =
                op == DS__COMM_SUM && inputs > 1 ? DS_REDUCE_AVERAGE : (ds_reduce_op)op;
            ds__comm_reduce_args r = { .bytes = bytes,
                                       .inputs = inputs,
                                       .op = op,
                                       .divisor = given == DS_REDUCE_AVERAGE ? inputs : 0,
                                       .kind = types[t].kind };
            void *host[INPUTS] = { NULL }, *device[INPUTS] = { NULL };
            unsigned char *want = malloc(bytes), *got = malloc(bytes);
            const unsigned char *p[INPUTS];
            for (uint32_t k = 0; k < inputs; k++) {
                host[k] = malloc(bytes);
                fill(host[k], bytes, types[t].kind);
                p[k] = host[k];
                ok(ds_mem_alloc(bytes, s, &device[k]));
                ok(ds_copy(device[k], host[k], bytes, s));
            }
            reduce_plainly(&r, p, want);
            /* in place of the last */
            ok(ds__comm_reduce(s, (ds__reduction){ given, types[t].dtype }, device[inputs - 1],
                               (const void *const *)device, inputs, COUNT));
            ok(ds_copy(got, device[inputs - 1], bytes, s));
            ok(ds_stream_synchronize(s));
            expect_same(got, want, bytes, &r, type == DS_DEVICE_CUDA ? PTX : CPU_32, "launched");
            for (uint32_t k = 0; k < inputs; k++) {
                ok(ds_mem_free(device[k]));
                free(host[k]);
            }
            free(want), free(got);
        }
    ok(ds_stream_destroy(s));
}

static void test_reductions_are_launched_on_cpu_devices(void **unused) {
    (void)unused;
    reduce_on(DS_DEVICE_CPU);
}

/* Elements of any size, more dimensions than a launch takes, runs that are wider than an
   element. */
static void pack_on(ds_device_type type) {
    static const size_t sizes[] = { 1, 2, 3, 4, 8, 12, 16 };
    ds_stream s = stream_of(type);
    for (int round = 0; round < 40; round++) {
        size_t size = sizes[(size_t)round % (sizeof sizes / sizeof *sizes)], count = 1, bytes;
        int ndim = round % 12, order[12];
        int64_t shape[12], dst[12], src[12], at = 1;
        for (int k = 0; k < ndim; k++) {
            shape[k] = 1 + (int64_t)(next_random() % (ndim < 4 ? 9 : ndim < 8 ? 3 : 2));
            count *= (size_t)shape[k];
            order[k] = k;
        }
        for (int k = ndim; k > 1 && round % 3; k--) {
            int other = (int)(next_random() % (unsigned)k), saved = order[k - 1];
            order[k - 1] = order[other], order[other] = saved;
        }
        for (int k = ndim; k-- > 0; at *= shape[k])
            dst[k] = at;
        at = 1;
        for (int k = ndim; k-- > 0; at *= shape[order[k]])
            src[order[k]] = at;
        bytes = count * size;
        unsigned char *from = malloc(bytes), *got = malloc(bytes), *want = malloc(bytes);
        void *a, *b;
        fill(from, bytes, DS__COMM_U8);
        for (size_t i = 0; i < count; i++) {
            size_t rest = i, index = 0;
            for (int k = ndim; k-- > 0; rest /= (size_t)shape[k])
                index += rest % (size_t)shape[k] * (size_t)src[k];
            memcpy(want + i * size, from + index * size, size);
        }
        ok(ds_mem_alloc(bytes, s, &a));
        ok(ds_mem_alloc(bytes, s, &b));
        ok(ds_copy(a, from, bytes, s));
        ok(ds__comm_pack(s, b, a, &(ds__comm_copy){ size, ndim, shape, dst, src }));
        ok(ds_copy(got, b, bytes, s));
        ok(ds_stream_synchronize(s));
        assert_memory_equal(got, want, bytes);
        ok(ds_mem_free(a));
        ok(ds_mem_free(b));
        free(from), free(got), free(want);
    }
    ok(ds_stream_destroy(s));
}

static void test_copies_are_launched_on_cpu_devices(void **unused) {
    (void)unused;
    pack_on(DS_DEVICE_CPU);
}

#ifdef DEVSTREAM_CUDA
static void test_reductions_are_launched_on_cuda_devices(void **unused) {
    (void)unused;
    reduce_on(DS_DEVICE_CUDA);
}

static void test_copies_are_launched_on_cuda_devices(void **unused) {
    (void)unused;
    pack_on(DS_DEVICE_CUDA);
}
#endif

static void test_what_cannot_be_reduced_is_refused(void **unused) {
    static const ds_dtype boolean = { DS_CODE_BOOL, 8, 1 }, c64 = { DS_CODE_COMPLEX, 64, 1 },
                          c32 = { DS_CODE_COMPLEX, 32, 1 }, f8 = { DS_CODE_FLOAT8_E5M2, 8, 1 },
                          vector = { DS_CODE_FLOAT, 32, 4 };
    (void)unused;
    assert_true(ds__comm_can_reduce(DS_REDUCE_SUM, boolean) &&
                ds__comm_can_reduce(DS_REDUCE_MIN, boolean));
    assert_false(ds__comm_can_reduce(DS_REDUCE_AVERAGE, boolean));
    assert_true(ds__comm_can_reduce(DS_REDUCE_AVERAGE, c64) &&
                ds__comm_can_reduce(DS_REDUCE_PRODUCT, c64) &&
                ds__comm_can_reduce(DS_REDUCE_SUM, c32));
    assert_false(ds__comm_can_reduce(DS_REDUCE_MAX, c64) ||
                 ds__comm_can_reduce(DS_REDUCE_PRODUCT, c32));
    assert_false(ds__comm_can_reduce(DS_REDUCE_SUM, f8) ||
                 ds__comm_can_reduce(DS_REDUCE_SUM, vector));
}

static int unload(void **unused) {
    (void)unused;
    for (int i = 0; i < DS__COMM_KERNELS; i++)
        ptx_unload(modules[i]);
    ds__comm_kernels_deinit();
    return ds_shutdown() < 0;
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_string_is_no_longer_than_c11_promises),
        cmocka_unit_test(test_every_half_becomes_the_float_that_it_is_and_back),
        cmocka_unit_test(test_all_halves_pass_through_every_form),
        cmocka_unit_test(test_floats_are_rounded_to_the_nearest_half),
        cmocka_unit_test(test_every_kind_and_operation),
        cmocka_unit_test(test_any_number_of_inputs),
        cmocka_unit_test(test_operands_begin_anywhere),
        cmocka_unit_test(test_integers_begin_at_any_byte),
        cmocka_unit_test(test_the_result_may_be_any_of_the_inputs),
        cmocka_unit_test(test_an_average_is_the_sum_divided),
        cmocka_unit_test(test_any_divisor_divides_exactly),
        cmocka_unit_test(test_any_number_of_blocks_does_everything),
        cmocka_unit_test(test_how_a_reduction_is_cut_does_not_matter),
        cmocka_unit_test(test_a_wide_input_or_result_of_halves),
        cmocka_unit_test(test_items_and_stores_around_the_caches),
        cmocka_unit_test(test_a_reduction_to_all_outputs_reads_before_it_writes),
        cmocka_unit_test(test_how_a_thread_computes_is_not_seen),
        cmocka_unit_test(test_copies_of_any_strides),
        cmocka_unit_test(test_a_product_divides_indices_exactly),
        cmocka_unit_test(test_large_copies_are_not_narrow),
        cmocka_unit_test(test_copies_by_columns_and_by_tiles),
        cmocka_unit_test(test_items_of_a_copy),
        cmocka_unit_test(test_what_cannot_be_reduced_is_refused),
        cmocka_unit_test(test_reductions_are_launched_on_cpu_devices),
        cmocka_unit_test(test_copies_are_launched_on_cpu_devices),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_reductions_are_launched_on_cuda_devices),
        cmocka_unit_test(test_copies_are_launched_on_cuda_devices),
#endif
    };
    return cmocka_run_group_tests_name("comm kernels", tests, NULL, unload);
}
