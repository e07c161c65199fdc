/* Arithmetic of reductions. Small floating types are computed as float and rounded to nearest even
   after each operation; float8 saturates at its largest finite value. Integers wrap. */
#include "internal.h"

#include <math.h>
#include <string.h>

/* Bits of the exponent and of the fraction of a small floating type. */
typedef struct format {
    int exponent, fraction;
    int is_finite; /* all exponents are those of numbers: e4m3 */
    int saturates;
} format;

static const format formats[ncclNumTypes] = {
    [ncclFloat16] = { 5, 10, 0, 0 },
    [ncclBfloat16] = { 8, 7, 0, 0 },
    [ncclFloat8e4m3] = { 4, 3, 1, 1 },
    [ncclFloat8e5m2] = { 5, 2, 0, 1 },
};

int sn_is_floating(ncclDataType_t type) {
    return type >= ncclFloat16 && type < ncclNumTypes;
}

size_t sn_type_size(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

static float decode(const format *f, unsigned bits) {
    int bias = (1 << (f->exponent - 1)) - 1, most = (1 << f->exponent) - 1;
    int sign = (int)(bits >> (f->exponent + f->fraction)) & 1;
    int exponent = (int)(bits >> f->fraction) & most;
    unsigned fraction = bits & ((1u << f->fraction) - 1);
    float value;
    if (exponent == most && f->is_finite && fraction == (1u << f->fraction) - 1)
        value = NAN;
    else if (exponent == most && !f->is_finite)
        value = fraction ? NAN : INFINITY;
    else if (!exponent)
        value = ldexpf((float)fraction, 1 - bias - f->fraction);
    else
        value = ldexpf((float)(fraction | 1u << f->fraction), exponent - bias - f->fraction);
    return sign ? -value : value;
}

/* The code of infinity, or in a format without one, the code behind the largest number. */
static unsigned code_above(const format *f) {
    unsigned exponents = (1u << f->exponent) - 1;
    return f->is_finite ? (exponents << f->fraction) + (1u << f->fraction) - 1
                        : exponents << f->fraction;
}

static unsigned encode(const format *f, float value) {
    int bias = (1 << (f->exponent - 1)) - 1, exponent;
    unsigned sign = signbit(value) ? 1u << (f->exponent + f->fraction) : 0, above = code_above(f);
    if (isnan(value))
        return f->saturates ? (1u << (f->exponent + f->fraction)) - 1
                            : sign | above | 1u << (f->fraction - 1);
    float size = fabsf(value);
    if (isinf(size))
        return sign | (f->saturates ? above - 1 : above);
    if (size == 0)
        return sign;
    (void)frexpf(size, &exponent);
    exponent--; /* size = 1.x * 2^exponent */
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    /* in units of the last place; exact, for float has more digits */
    double units = ldexp((double)size, f->fraction - exponent);
    unsigned whole = (unsigned)nearbyint(units); /* to nearest even */
    unsigned code = whole + ((unsigned)(exponent + bias - 1) << f->fraction);
    if (code >= above)
        code = f->saturates ? above - 1 : above;
    return sign | code;
}

static float load_small(const format *f, const char *at, size_t size) {
    uint16_t wide = 0;
    memcpy(&wide, at, size); /* little-endian */
    return decode(f, wide);
}

static void store_small(const format *f, char *at, size_t size, float value) {
    uint16_t code = (uint16_t)encode(f, value);
    memcpy(at, &code, size);
}

static double combine(int op, double a, double b) {
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    case ncclMin:
        return fmin(a, b);
    default:
        return a + b;
    }
}

static float combine_single(int op, float a, float b) {
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmaxf(a, b);
    case ncclMin:
        return fminf(a, b);
    default:
        return a + b;
    }
}

static double load_floating(ncclDataType_t type, const char *at) {
    double value;
    float single;
    if (type == ncclFloat64) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (type == ncclFloat32) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    return (double)load_small(&formats[type], at, sn_type_size(type));
}

static void store_floating(ncclDataType_t type, char *at, double value) {
    float single = (float)value;
    if (type == ncclFloat64)
        memcpy(at, &value, sizeof value);
    else if (type == ncclFloat32)
        memcpy(at, &single, sizeof single);
    else
        store_small(&formats[type], at, sn_type_size(type), single);
}

/* a op b, rounded as the type says. */
static double step(ncclDataType_t type, int op, double a, double b) {
    if (type == ncclFloat64)
        return combine(op, a, b);
    float value = combine_single(op, (float)a, (float)b);
    if (type == ncclFloat32)
        return (double)value;
    return (double)decode(&formats[type], encode(&formats[type], value));
}

static int is_signed(ncclDataType_t type) {
    return type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
}

static uint64_t load_whole(ncclDataType_t type, const char *at) {
    size_t size = sn_type_size(type);
    uint64_t value = 0;
    memcpy(&value, at, size);
    unsigned unused = 64 - 8 * (unsigned)size;
    if (is_signed(type) && unused)
        value = (uint64_t)((int64_t)(value << unused) >> unused);
    return value;
}

static uint64_t combine_whole(ncclDataType_t type, int op, uint64_t a, uint64_t b) {
    int is_less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return is_less ? b : a;
    case ncclMin:
        return is_less ? a : b;
    default:
        return a + b;
    }
}

static uint64_t divide(ncclDataType_t type, uint64_t sum, int by) {
    char rounded[8];
    memcpy(rounded, &sum, sizeof rounded);
    sum = load_whole(type, rounded); /* the sum has wrapped */
    return is_signed(type) ? (uint64_t)((int64_t)sum / by) : sum / (unsigned)by;
}

static void reduce_whole(const sn_reduction *r, const char *const *parts, int part_count, size_t at,
                         char *out) {
    uint64_t value = load_whole(r->type, parts[0] + at);
    for (int k = 1; k < part_count; k++)
        value = combine_whole(r->type, r->op, value, load_whole(r->type, parts[k] + at));
    if (r->op == ncclAvg)
        value = divide(r->type, value, r->divisor);
    memcpy(out + at, &value, sn_type_size(r->type));
}

void sn_reduce(const sn_reduction *r, const char *const *parts, int part_count, size_t count,
               char *out) {
    size_t size = sn_type_size(r->type);
    for (size_t i = 0; i < count; i++) {
        if (!sn_is_floating(r->type)) {
            reduce_whole(r, parts, part_count, i * size, out);
            continue;
        }
        double value = load_floating(r->type, parts[0] + i * size);
        for (int k = 1; k < part_count; k++)
            value = step(r->type, r->op, value, load_floating(r->type, parts[k] + i * size));
        store_floating(r->type, out + i * size, value);
    }
}

void sn_scale(ncclDataType_t type, char *values, size_t count, const char scalar[8]) {
    size_t size = sn_type_size(type);
    for (char *at = values; at < values + count * size; at += size) {
        if (sn_is_floating(type)) {
            double value =
                step(type, ncclProd, load_floating(type, at), load_floating(type, scalar));
            store_floating(type, at, value);
        } else {
            uint64_t value = load_whole(type, at) * load_whole(type, scalar);
            memcpy(at, &value, size);
        }
    }
}

void sn_reciprocal(ncclDataType_t type, int n, char out[8]) {
    store_floating(type, out, 1.0 / n);
}
