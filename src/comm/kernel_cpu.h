/* Stores that go around the caches, for results that do not fit there. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#define DS__COMM_CAN_STREAM 1
#ifdef __clang__
#define DS__COMM_STREAM(W, to, v) __builtin_nontemporal_store((ds__vf32_whole_##W)(v), (ds__vf32_whole_##W *)(void *)(to))
#else
#define DS__COMM_MOVNT_16 __builtin_ia32_movntps
#define DS__COMM_MOVNT_32 __builtin_ia32_movntps256
#define DS__COMM_STREAM(W, to, v) DS__COMM_MOVNT_##W((float *)(void *)(to), (ds__vf32_whole_##W)(v))
#endif
#else
#define DS__COMM_CAN_STREAM 0
#define DS__COMM_STREAM(W, to, v) (void)(*(ds__vf32_##W *)(void *)(to) = (ds__vf32_##W)(v))
#endif
enum { DS__COMM_STREAM_BYTES = 32 << 20 };

/* 1: a mask is not empty. */
#if defined(__x86_64__)
#define DS__COMM_ANY_16(mask) (__builtin_ia32_movmskps((ds__vf32_whole_16)(mask)) != 0)
#define DS__COMM_ANY_32(mask) (__builtin_ia32_movmskps256((ds__vf32_whole_32)(mask)) != 0)
#else
#define DS__COMM_ANY_16(mask) ((((ds__vu64_16)(mask))[0] | ((ds__vu64_16)(mask))[1]) != 0)
#endif

/* A function for each kind of number, and not one for each operation too: compilers take their time with vectors. All inputs are read
   side by side, so that they stream, and what is computed stays in registers. Every input is read before its place in the result is
   written. bytes is a multiple of DS__COMM_BLOCK; around: `out` lies on a multiple of W. */
enum { DS__COMM_BLOCK = 128 };
#define DS__COMM_RUN(KIND, W) \
    void ds__comm_run_##KIND##_##W(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around)
typedef void (*ds__comm_run_fn)(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around);

#define DS__COMM_PUT(W, V, to, v) \
    do { \
        if (around) DS__COMM_STREAM(W, to, v); \
        else *(V *)(void *)(to) = (v); \
    } while (0)

/* Sums and products of what is computed as it lies in memory. END sees to averages and NaN, which integers do not have. */
#define DS__COMM_WHOLES(STATIC, KIND, W, V, END) \
    STATIC DS__COMM_RUN(KIND, W) { \
        const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM; \
        for (size_t at = 0; at < bytes; at += 4 * (W)) { \
            const V *p = (const V *)(const void *)(in[0] + at); \
            V a = p[0], b = p[1], c = p[2], d = p[3]; \
            for (uint32_t k = 1; k < inputs; k++) { \
                p = (const V *)(const void *)(in[k] + at); \
                if (sum) a += p[0], b += p[1], c += p[2], d += p[3]; \
                else a *= p[0], b *= p[1], c *= p[2], d *= p[3]; \
            } \
            END(W, divisor) \
            DS__COMM_PUT(W, V, out + at, a); \
            DS__COMM_PUT(W, V, out + at + (W), b); \
            DS__COMM_PUT(W, V, out + at + 2 * (W), c); \
            DS__COMM_PUT(W, V, out + at + 3 * (W), d); \
        } \
    }

/* Of floats of type T, whose bits are a U: most of the time there is nothing to do. */
#define DS__COMM_ONE_NAN(V, U, x, value) x = (V)(((U)(x) & ~(U)((x) != (x))) | ((U)((x) != (x)) & (value)));
#define DS__COMM_END(W, V, U, T, value, divisor) \
    if (divisor > 1) { \
        T n = (T)divisor; \
        a /= n, b /= n, c /= n, d /= n; \
    } \
    if (DS__COMM_ANY_##W((a != a) | (b != b) | (c != c) | (d != d))) { \
        DS__COMM_ONE_NAN(V, U, a, value) DS__COMM_ONE_NAN(V, U, b, value) DS__COMM_ONE_NAN(V, U, c, value) DS__COMM_ONE_NAN(V, U, d, value) \
    }

#define DS__COMM_END_F32(W, divisor) DS__COMM_END(W, ds__vf32_##W, ds__vu32_##W, float, 0x7fc00000u, divisor)
#define DS__COMM_END_F64(W, divisor) DS__COMM_END(W, ds__vf64_##W, ds__vu64_##W, double, 0x7ff8000000000000u, divisor)
#define DS__COMM_END_INTEGER(W, divisor) (void)(divisor);

/* Sums and products of halves. TAKE makes two vectors of floats of W bytes, GIVE turns two back. */
#define DS__COMM_HALVES_OF(STATIC, KIND, W, TAKE, GIVE) \
    STATIC DS__COMM_RUN(KIND, W) { \
        const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM; \
        for (size_t at = 0; at < bytes; at += 2 * (W)) { \
            ds__vf32_##W a, b, c, d, x, y; \
            TAKE(W, in[0] + at, a, b) \
            TAKE(W, in[0] + at + (W), c, d) \
            for (uint32_t k = 1; k < inputs; k++) { \
                TAKE(W, in[k] + at, x, y) \
                if (sum) a += x, b += y; else a *= x, b *= y; \
                TAKE(W, in[k] + at + (W), x, y) \
                if (sum) c += x, d += y; else c *= x, d *= y; \
            } \
            DS__COMM_END_F32(W, divisor) \
            GIVE(W, out + at, a, b) \
            GIVE(W, out + at + (W), c, d) \
        } \
    }

/* The two halves of a word are taken apart and put together where they are: no number leaves its lane. What is NaN has no bits that
   rounding could carry into the sign. */
#define DS__COMM_TAKE_BF16(W, from, x, y) { \
        ds__vu32_##W word = *(const ds__vu32_##W *)(const void *)(from); \
        x = (ds__vf32_##W)(word << 16); \
        y = (ds__vf32_##W)(word & 0xffff0000u); \
    }
#define DS__COMM_GIVE_BF16(W, to, x, y) { \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        low += 0x7fffu + (low >> 16 & 1u); \
        high += 0x7fffu + (high >> 16 & 1u); \
        low = low >> 16 | (high & 0xffff0000u); \
        DS__COMM_PUT(W, ds__vu32_##W, to, low); \
    }

#define DS__COMM_TAKE_F16(W, from, x, y) { \
        ds__vu32_##W low = *(const ds__vu32_##W *)(const void *)(from), high = low >> 16; \
        low &= 0xffffu; \
        ds__comm_widen_f16_f32_##W(&low); \
        ds__comm_widen_f16_f32_##W(&high); \
        x = (ds__vf32_##W)low; \
        y = (ds__vf32_##W)high; \
    }
#define DS__COMM_GIVE_F16(W, to, x, y) { \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        ds__comm_narrow_f16_f32_##W(&low); \
        ds__comm_narrow_f16_f32_##W(&high); \
        low |= high << 16; \
        DS__COMM_PUT(W, ds__vu32_##W, to, low); \
    }

/* f16 by instructions, which give what the arithmetic gives. */
#define DS__COMM_TAKE_NATIVE(W, from, x, y) \
    x = (ds__vf32_32)__builtin_ia32_vcvtph2ps256(*(const ds__vi16_16 *)(const void *)(from)); \
    y = (ds__vf32_32)__builtin_ia32_vcvtph2ps256(*(const ds__vi16_16 *)(const void *)((from) + 16));
#define DS__COMM_GIVE_NATIVE(W, to, x, y) { \
        ds__vi16_16 low = __builtin_ia32_vcvtps2ph256(x, 0), high = __builtin_ia32_vcvtps2ph256(y, 0); \
        DS__COMM_PUT(16, ds__vi16_16, to, low); \
        DS__COMM_PUT(16, ds__vi16_16, (to) + 16, high); \
    }

/* The largest and smallest of integers, and of halves too, which are compared as they are: they become keys that compare with a sign,
   of which the largest is taken. The key of NaN is larger than any other. S has a sign, U has none. */
typedef struct ds__comm_order {
    uint64_t fold;     /* what is turned over of a half whose sign is set */
    uint64_t flip;     /* and then of every number */
    uint64_t infinity; /* of halves: what is larger without its sign is NaN */
    uint64_t quiet;    /* the one that is written */
} ds__comm_order;

static ds__comm_order ds__comm_order_of(uint32_t kind, uint32_t op) {
    uint32_t bits = 8u * ds__comm_size[kind];
    uint64_t all = ~(uint64_t)0 >> (64 - bits), top = all - (all >> 1);
    ds__comm_order o = { 0, kind <= DS__COMM_U64 ? top : 0, 0, 0 };
    if (kind == DS__COMM_F16) o.fold = 0x7fff, o.infinity = 0x7c00, o.quiet = 0x7e00;
    if (kind == DS__COMM_BF16) o.fold = 0x7fff, o.infinity = 0x7f80, o.quiet = 0x7fc0;
    if (op == DS__COMM_MIN) o.flip ^= all;
    return o;
}

#define DS__COMM_KEY(U, S, from, key) key = (S)(*(const U *)(const void *)(from) ^ flip);
#define DS__COMM_UNKEY(W, U, S, to, key) { \
        U v = (U)(key) ^ flip; \
        DS__COMM_PUT(W, U, to, v); \
    }
#define DS__COMM_KEY_HALF(U, S, from, key) { \
        U v = *(const U *)(const void *)(from), nan = (U)((S)(v & abs) > infinity); \
        v ^= ((U)((S)v < 0) & fold) ^ flip; \
        key = (S)((v & ~nan) | (nan & abs)); \
    }
#define DS__COMM_UNKEY_HALF(W, U, S, to, key) { \
        U v = (U)(key) ^ flip, nan = (U)((key) > infinity); \
        v ^= (U)((S)v < 0) & fold; \
        v = (v & ~nan) | (nan & quiet); \
        DS__COMM_PUT(W, U, to, v); \
    }
#define DS__COMM_LARGER(U, S, a, x) { \
        U more = (U)((x) > (a)); \
        a = (S)(((U)(x) & more) | ((U)(a) & ~more)); \
    }
#define DS__COMM_LARGEST(STATIC, KIND, W, U, S, T, KEY, UNKEY) \
    STATIC DS__COMM_RUN(KIND, W) { \
        const uint32_t inputs = r->inputs; \
        ds__comm_order o = ds__comm_order_of(r->kind, r->op); \
        U zero = { 0 }, fold = zero + (T)o.fold, flip = zero + (T)o.flip, quiet = zero + (T)o.quiet, abs = ~zero >> 1; \
        S infinity = (S)(zero + (T)o.infinity); \
        (void)fold, (void)quiet, (void)abs, (void)infinity; \
        for (size_t at = 0; at < bytes; at += 2 * (W)) { \
            S a, b, x, y; \
            KEY(U, S, in[0] + at, a) \
            KEY(U, S, in[0] + at + (W), b) \
            for (uint32_t k = 1; k < inputs; k++) { \
                KEY(U, S, in[k] + at, x) \
                KEY(U, S, in[k] + at + (W), y) \
                DS__COMM_LARGER(U, S, a, x) \
                DS__COMM_LARGER(U, S, b, y) \
            } \
            UNKEY(W, U, S, out + at, a) \
            UNKEY(W, U, S, out + at + (W), b) \
        } \
    }

/* Of floats of type V, whose bits are a U; the smallest is the largest with all signs turned. Zeros are equal to a comparison: where the
   largest is one nothing is larger, and it is -0 if all signs are set. `all` is what is set in all numbers, so there nothing but the sign. */
#define DS__COMM_LARGER_REAL(V, U, from, a, all, nan) { \
        U bits = *(const U *)(const void *)(from) ^ flip, more; \
        V x = (V)bits; \
        more = (U)(x > a); \
        all &= bits; \
        nan |= (U)(x != x); \
        a = (V)((bits & more) | ((U)a & ~more)); \
    }
#define DS__COMM_LARGEST_REAL(STATIC, KIND, W, V, U, T, quiet) \
    STATIC DS__COMM_RUN(KIND, W) { \
        const uint32_t inputs = r->inputs; \
        const T top = ~((T)~(T)0 >> 1); \
        U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0); \
        for (size_t at = 0; at < bytes; at += 2 * (W)) { \
            U first = *(const U *)(const void *)(in[0] + at) ^ flip, second = *(const U *)(const void *)(in[0] + at + (W)) ^ flip; \
            V a = (V)first, b = (V)second; \
            U nan = (U)(a != a), not = (U)(b != b); \
            for (uint32_t k = 1; k < inputs; k++) { \
                DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan) \
                DS__COMM_LARGER_REAL(V, U, in[k] + at + (W), b, second, not) \
            } \
            first = ((U)a & (first | (U)(a != 0))) ^ flip; \
            second = ((U)b & (second | (U)(b != 0))) ^ flip; \
            if (DS__COMM_ANY_##W(nan | not)) { \
                first = (first & ~nan) | (nan & (quiet)); \
                second = (second & ~not) | (not & (quiet)); \
            } \
            DS__COMM_PUT(W, U, out + at, first); \
            DS__COMM_PUT(W, U, out + at + (W), second); \
        } \
    }

/* All of it for vectors of W bytes; F16: that of f16. */
#define DS__COMM_SET(STATIC, W, F16) \
    DS__COMM_WHOLES(STATIC, u8, W, ds__vu8_##W, DS__COMM_END_INTEGER) \
    DS__COMM_WHOLES(STATIC, u16, W, ds__vu16_##W, DS__COMM_END_INTEGER) \
    DS__COMM_WHOLES(STATIC, u32, W, ds__vu32_##W, DS__COMM_END_INTEGER) \
    DS__COMM_WHOLES(STATIC, u64, W, ds__vu64_##W, DS__COMM_END_INTEGER) \
    DS__COMM_WHOLES(STATIC, f32, W, ds__vf32_##W, DS__COMM_END_F32) \
    DS__COMM_WHOLES(STATIC, f64, W, ds__vf64_##W, DS__COMM_END_F64) \
    F16 \
    DS__COMM_HALVES_OF(STATIC, bf16, W, DS__COMM_TAKE_BF16, DS__COMM_GIVE_BF16) \
    DS__COMM_LARGEST(STATIC, largest_i8, W, ds__vu8_##W, ds__vi8_##W, uint8_t, DS__COMM_KEY, DS__COMM_UNKEY) \
    DS__COMM_LARGEST(STATIC, largest_i16, W, ds__vu16_##W, ds__vi16_##W, uint16_t, DS__COMM_KEY, DS__COMM_UNKEY) \
    DS__COMM_LARGEST(STATIC, largest_f16, W, ds__vu16_##W, ds__vi16_##W, uint16_t, DS__COMM_KEY_HALF, DS__COMM_UNKEY_HALF) \
    DS__COMM_LARGEST(STATIC, largest_i32, W, ds__vu32_##W, ds__vi32_##W, uint32_t, DS__COMM_KEY, DS__COMM_UNKEY) \
    DS__COMM_LARGEST_REAL(STATIC, largest_f32, W, ds__vf32_##W, ds__vu32_##W, uint32_t, 0x7fc00000u) \
    DS__COMM_LARGEST(STATIC, largest_i64, W, ds__vu64_##W, ds__vi64_##W, uint64_t, DS__COMM_KEY, DS__COMM_UNKEY) \
    DS__COMM_LARGEST_REAL(STATIC, largest_f64, W, ds__vf64_##W, ds__vu64_##W, uint64_t, 0x7ff8000000000000u) \
    static const ds__comm_run_fn ds__comm_runs_##W[][DS__COMM_F64 + 1] = { { /* by kind */ \
        ds__comm_run_u8_##W, ds__comm_run_u16_##W, ds__comm_run_u32_##W, ds__comm_run_u64_##W, \
        ds__comm_run_u8_##W, ds__comm_run_u16_##W, ds__comm_run_u32_##W, ds__comm_run_u64_##W, \
        ds__comm_run_f16_##W, ds__comm_run_bf16_##W, ds__comm_run_f32_##W, ds__comm_run_f64_##W \
    }, { \
        ds__comm_run_largest_i8_##W, ds__comm_run_largest_i16_##W, ds__comm_run_largest_i32_##W, ds__comm_run_largest_i64_##W, \
        ds__comm_run_largest_i8_##W, ds__comm_run_largest_i16_##W, ds__comm_run_largest_i32_##W, ds__comm_run_largest_i64_##W, \
        ds__comm_run_largest_f16_##W, ds__comm_run_largest_f16_##W, ds__comm_run_largest_f32_##W, ds__comm_run_largest_f64_##W \
    } };

DS__COMM_TYPES(16)
DS__COMM_F16_MATH(DS__COMM_FN, f32_16, ds__vu32_16, ds__vi32_16, (ds__vf32_16), (ds__vu32_16))
DS__COMM_SET(static, 16, DS__COMM_HALVES_OF(static, f16, 16, DS__COMM_TAKE_F16, DS__COMM_GIVE_F16))

/* Every processor with AVX2 and FMA has the conversions of f16; gcc and clang have no common name to ask for those. */
#if defined(__x86_64__)
DS__COMM_TYPES(32)
#define DS__COMM_STATIC_32 static __attribute__((target("avx2,f16c")))
DS__COMM_SET(DS__COMM_STATIC_32, 32, DS__COMM_HALVES_OF(DS__COMM_STATIC_32, f16, 32, DS__COMM_TAKE_NATIVE, DS__COMM_GIVE_NATIVE))
static int ds__comm_has_32(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
static int ds__comm_has_32(void) { return 0; }
#endif

/* vector: bytes of the vectors to use, 16 or, where they exist, 32. */
static void ds__comm_reduce_blocks(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around, int vector) {
#if defined(__x86_64__)
    if (vector == 32) ds__comm_runs_32[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    else
#endif
    ds__comm_runs_16[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    (void)vector;
#if DS__COMM_CAN_STREAM
    if (around) __asm__ __volatile__("sfence" ::: "memory");
#endif
}

/* Halves of which the first input or the result is in f32, as cut reductions of many inputs have them: widened, computed as f32 and
   narrowed block by block. Numbers first to end - 1. */
static void ds__comm_reduce_wide(const ds__comm_reduce_args *r, uint64_t first, uint64_t end, int vector) {
    enum { NUMBERS = 256 };
    uint32_t block[DS__COMM_INPUTS][NUMBERS];
    uint16_t halves[NUMBERS];
    const char *in[DS__COMM_INPUTS];
    ds__comm_reduce_args whole = *r;
    whole.kind = DS__COMM_F32;
    memset(block, 0, sizeof block);
    memset(halves, 0, sizeof halves);
    for (; first < end; first += NUMBERS) {
        size_t n = end - first < NUMBERS ? (size_t)(end - first) : NUMBERS;
        for (uint32_t k = 0; k < r->inputs; k++) {
            uint32_t *b = block[k];
            in[k] = (const char *)b;
            if (k == 0 && (r->wide & DS__COMM_WIDE_IN)) {
                memcpy(b, (const char *)r->in.at[0] + 4 * first, 4 * n);
                continue;
            }
            memcpy(halves, (const char *)r->in.at[k] + 2 * first, 2 * n);
            for (int i = 0; i < NUMBERS; i++) b[i] = halves[i];
            if (r->kind == DS__COMM_F16) for (int i = 0; i < NUMBERS; i++) ds__comm_widen_f16_f32(&b[i]);
            else for (int i = 0; i < NUMBERS; i++) ds__comm_widen_bf16_f32(&b[i]);
        }
        ds__comm_reduce_blocks(&whole, (char *)block[0], in, sizeof block[0], 0, vector);
        if (r->wide & DS__COMM_WIDE_OUT) {
            memcpy((char *)r->out + 4 * first, block[0], 4 * n);
            continue;
        }
        if (r->kind == DS__COMM_F16) for (int i = 0; i < NUMBERS; i++) ds__comm_narrow_f16_f32(&block[0][i]);
        else for (int i = 0; i < NUMBERS; i++) ds__comm_narrow_bf16_f32(&block[0][i]);
        for (int i = 0; i < NUMBERS; i++) halves[i] = (uint16_t)block[0][i];
        memcpy((char *)r->out + 2 * first, halves, 2 * n);
    }
}

/* Products of complex numbers. */
#define DS__COMM_PRODUCTS(NAME, T, U, MULTIPLY, END) \
    static void NAME(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) { \
        for (uint64_t i = first; i < end; i++) { \
            T a[2], x[2]; \
            U bits[2]; \
            memcpy(a, (const char *)r->in.at[0] + sizeof a * i, sizeof a); \
            for (uint32_t k = 1; k < r->inputs; k++) { \
                memcpy(x, (const char *)r->in.at[k] + sizeof x * i, sizeof x); \
                MULTIPLY(a, x); \
            } \
            memcpy(bits, a, sizeof a); \
            END(0, &bits[0]); \
            END(0, &bits[1]); \
            memcpy((char *)r->out + sizeof bits * i, bits, sizeof bits); \
        } \
    }
DS__COMM_PRODUCTS(ds__comm_products_c64, float, uint32_t, ds__comm_multiply_c64, ds__comm_end_f32)
DS__COMM_PRODUCTS(ds__comm_products_c128, double, uint64_t, ds__comm_multiply_c128, ds__comm_end_f64)

/* Bytes first to end - 1 of the result; vector as before. */
static __attribute__((noinline)) void ds__comm_reduce_part(const ds__comm_reduce_args *r, uint64_t first, uint64_t end, int vector) {
    const char *in[DS__COMM_INPUTS];
    char *out = (char *)r->out + first;
    int around = DS__COMM_CAN_STREAM && r->bytes >= DS__COMM_STREAM_BYTES && ((uintptr_t)out & 31) == 0;
    if (first >= end) return;
    if (r->wide) { ds__comm_reduce_wide(r, first / 2, end / 2, vector); return; }
    if (r->kind == DS__COMM_C64) { ds__comm_products_c64(r, first / 8, end / 8); return; }
    if (r->kind == DS__COMM_C128) { ds__comm_products_c128(r, first / 16, end / 16); return; }
    for (uint32_t k = 0; k < r->inputs; k++) {
        in[k] = (const char *)r->in.at[k] + first;
        if (in[k] == out) around = 0; /* its lines are in the cache anyway */
    }
    size_t rest = (size_t)(end - first) % DS__COMM_BLOCK, whole = (size_t)(end - first) - rest;
    ds__comm_reduce_blocks(r, out, in, whole, around, vector);
    if (rest) {
        char block[DS__COMM_INPUTS][DS__COMM_BLOCK];
        for (uint32_t k = 0; k < r->inputs; k++) {
            memset(block[k], 0, sizeof block[k]);
            memcpy(block[k], in[k] + whole, rest);
            in[k] = block[k];
        }
        ds__comm_reduce_blocks(r, block[0], in, DS__COMM_BLOCK, 0, vector);
        memcpy(out + whole, block[0], rest);
    }
}

/* A program may have its threads round otherwise, take what is subnormal as zero (linked with -ffast-math, gcc sets that for the whole
   process) or trap. The bits of a reduction do not depend on it. */
#if defined(__x86_64__)
enum { DS__COMM_PLAIN_FLOATS = 0x1f80, DS__COMM_FLOAT_STATE = 0xffc0 };
static uint64_t ds__comm_floats(void) { return __builtin_ia32_stmxcsr(); }
static void ds__comm_set_floats(uint64_t state) { __builtin_ia32_ldmxcsr((unsigned)state); }
#elif defined(__aarch64__)
enum { DS__COMM_PLAIN_FLOATS = 0, DS__COMM_FLOAT_STATE = 0x7ffffff };
static uint64_t ds__comm_floats(void) { uint64_t state; __asm__ __volatile__("mrs %0, fpcr" : "=r"(state)); return state; }
static void ds__comm_set_floats(uint64_t state) { __asm__ __volatile__("msr fpcr, %0" :: "r"(state) : "memory"); }
#else
enum { DS__COMM_PLAIN_FLOATS = 0, DS__COMM_FLOAT_STATE = 0 };
static uint64_t ds__comm_floats(void) { return 0; }
static void ds__comm_set_floats(uint64_t state) { (void)state; }
#endif

static int ds__comm_reduce_items(size_t first, size_t count, const void *args) {
    const ds__comm_reduce_args *r = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM, state = ds__comm_floats();
    int plain = (state & DS__COMM_FLOAT_STATE) == DS__COMM_PLAIN_FLOATS;
    if (!plain) ds__comm_set_floats(DS__COMM_PLAIN_FLOATS);
    ds__comm_reduce_part(r, (uint64_t)first * DS__COMM_ITEM, end < r->bytes ? end : r->bytes, ds__comm_has_32() ? 32 : 16);
    if (!plain) ds__comm_set_floats(state);
    return 0;
}

/* An average of integers is their sum, divided by this one: by a multiplication with 1 / divisor, after which one may be missing. */
__extension__ typedef unsigned __int128 ds__comm_u128;
#define DS__COMM_DIVIDE(T) \
    for (; at < end; at += sizeof(T)) { \
        T v, sign; \
        memcpy(&v, p + at, sizeof v); \
        sign = (T)(0 - (v >> (8 * sizeof v - 1) & is_signed)); \
        v = (T)((v ^ sign) - sign); \
        uint64_t q = (uint64_t)((ds__comm_u128)v * reciprocal >> 64); \
        q += v - q * divisor >= divisor; \
        v = (T)(((T)q ^ sign) - sign); \
        memcpy(p + at, &v, sizeof v); \
    }
static int ds__comm_divide_items(size_t first, size_t count, const void *args) {
    const ds__comm_divide_args *d = args;
    uint64_t at = (uint64_t)first * DS__COMM_ITEM, end = (uint64_t)(first + count) * DS__COMM_ITEM;
    uint64_t divisor = d->divisor, reciprocal = UINT64_MAX / divisor;
    unsigned is_signed = d->kind >= DS__COMM_I8;
    char *p = d->out;
    if (end > d->bytes) end = d->bytes;
    switch (d->kind & 3) {
    case DS__COMM_U8: DS__COMM_DIVIDE(uint8_t) break;
    case DS__COMM_U16: DS__COMM_DIVIDE(uint16_t) break;
    case DS__COMM_U32: DS__COMM_DIVIDE(uint32_t) break;
    default: DS__COMM_DIVIDE(uint64_t) break;
    }
    return 0;
}

#define DS__COMM_COPY_ROW(BYTES) { \
        for (; n >= 4; n -= 4, dst += 4 * dst_step, src += 4 * src_step) { \
            memcpy(dst, src, (BYTES)); \
            memcpy(dst + dst_step, src + src_step, (BYTES)); \
            memcpy(dst + 2 * dst_step, src + 2 * src_step, (BYTES)); \
            memcpy(dst + 3 * dst_step, src + 3 * src_step, (BYTES)); \
        } \
        for (; n > 0; n--, dst += dst_step, src += src_step) memcpy(dst, src, (BYTES)); \
    }
static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step, uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size) memcpy(dst, src, (size_t)(n * size));
    else if (size == 1) DS__COMM_COPY_ROW(1)
    else if (size == 2) DS__COMM_COPY_ROW(2)
    else if (size == 4) DS__COMM_COPY_ROW(4)
    else if (size == 8) DS__COMM_COPY_ROW(8)
    else DS__COMM_COPY_ROW(16)
}

/* Rows of a transposition, a multiple of DS__COMM_LINE / size: where a row of the result lies in a column of the source, both are read and
   written by whole cache lines, in tiles that are turned in between; down the columns first, since each may be in a page of its own. */
enum { DS__COMM_LINE = 64, DS__COMM_TILES = 8 };
#define DS__COMM_TURN(BYTES) \
    for (uint64_t column = 0; column < columns; column += (uint64_t)side) { \
        int n = columns - column < (uint64_t)side ? (int)(columns - column) : side; \
        for (uint64_t row = 0; row < rows; row += (uint64_t)side) { \
            const char *from = src + (int64_t)column * src_column + row * (BYTES); \
            char *to = dst + (int64_t)row * dst_row + column * (BYTES), *turned = n < side ? to : tile; \
            int64_t pitch = n < side ? dst_row : DS__COMM_LINE; \
            for (int c = 0; c < n; c++, from += src_column) { \
                char *at = turned + c * (BYTES); \
                for (int r = 0; r < DS__COMM_LINE / (BYTES); r += 4) { \
                    memcpy(at, from + r * (BYTES), (BYTES)); \
                    memcpy(at + pitch, from + (r + 1) * (BYTES), (BYTES)); \
                    memcpy(at + 2 * pitch, from + (r + 2) * (BYTES), (BYTES)); \
                    memcpy(at + 3 * pitch, from + (r + 3) * (BYTES), (BYTES)); \
                    at += 4 * pitch; \
                } \
            } \
            for (int r = 0; r < side && n == side; r++) memcpy(to + r * dst_row, tile + r * DS__COMM_LINE, DS__COMM_LINE); \
        } \
    }
static void ds__comm_turn_rows(char *dst, int64_t dst_row, const char *src, int64_t src_column, uint32_t size, uint64_t rows, uint64_t columns) {
    char tile[DS__COMM_LINE * DS__COMM_LINE];
    const int side = DS__COMM_LINE / (int)size;
    if (size == 1) DS__COMM_TURN(1)
    else if (size == 2) DS__COMM_TURN(2)
    else if (size == 4) DS__COMM_TURN(4)
    else DS__COMM_TURN(8)
}

/* How many rows a tile has, 0 where the rows are better copied one by one: a column's cache line holds what the next rows want, and most of
   the time it stays in the cache until then. It does not where there are many columns, or where they are so far apart that they compete
   for the same places. */
static uint64_t ds__comm_tile(const ds__comm_pack_args *p) {
    int last = (int)p->ndim - 1;
    if (last == 0 || p->size > 8 || p->dims.dst[last] != (int64_t)p->size || p->dims.src[last - 1] != (int64_t)p->size) return 0;
    uint64_t side = DS__COMM_LINE / p->size, columns = p->dims.size[last], apart = (uint64_t)p->dims.src[last];
    apart &= 0 - apart;
    if (apart < DS__COMM_LINE) apart = DS__COMM_LINE;
    return columns > ((uint64_t)512 << 10) / apart ? side : 0;
}

/* Row by row; rows that are very short by columns, and those of some transpositions by tiles. The position is computed once and then
   counted on. */
enum { DS__COMM_SHORT = 8, DS__COMM_ROWS = 256 };
static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const ds__comm_dims *d = &p->dims;
    uint64_t block = DS__COMM_ITEM / p->size, i = first * block, end = (first + count) * block, rest = i, index[DS__COMM_DIMS];
    int64_t to = 0, from = 0;
    uint32_t last = p->ndim - 1;
    uint64_t row = d->size[last], tile = ds__comm_tile(p), most = tile ? tile * DS__COMM_TILES : row < DS__COMM_SHORT && last > 0 ? DS__COMM_ROWS : 0;
    if (end > p->elements) end = p->elements;
    if (i >= end) return 0;
    for (uint32_t k = p->ndim; k-- > 0; rest /= d->size[k]) {
        index[k] = rest % d->size[k];
        to += (int64_t)index[k] * d->dst[k];
        from += (int64_t)index[k] * d->src[k];
    }
    while (i < end) {
        uint64_t rows = 0;
        if (most && index[last] == 0) { /* whole ones, of one plane */
            rows = d->size[last - 1] - index[last - 1];
            if (rows > (end - i) / row) rows = (end - i) / row;
            if (rows > most) rows = most;
            if (tile) rows -= rows % tile;
        }
        if (rows == 0) {
            uint64_t n = row - index[last] < end - i ? row - index[last] : end - i;
            ds__comm_copy_row(p->dst + to, d->dst[last], p->src + from, d->src[last], p->size, n);
            i += n;
            to -= (int64_t)index[last] * d->dst[last];
            from -= (int64_t)index[last] * d->src[last];
            index[last] = 0;
            rows = 1;
        } else {
            i += rows * row;
            if (tile) ds__comm_turn_rows(p->dst + to, d->dst[last - 1], p->src + from, d->src[last], p->size, rows, row);
            else for (int64_t c = 0; c < (int64_t)row; c++)
                ds__comm_copy_row(p->dst + to + c * d->dst[last], d->dst[last - 1], p->src + from + c * d->src[last], d->src[last - 1], p->size, rows);
        }
        for (uint32_t k = last; k-- > 0; index[k] = 0, rows = 1) {
            to += (int64_t)rows * d->dst[k];
            from += (int64_t)rows * d->src[k];
            index[k] += rows;
            if (index[k] < d->size[k]) break;
            to -= (int64_t)d->size[k] * d->dst[k];
            from -= (int64_t)d->size[k] * d->src[k];
        }
    }
    return 0;
}

