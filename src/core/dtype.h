/* core/dtype.h - data types: sizes, names, parsing.

   Holds the table of named data types, from the list DS_DTYPES, and makes their inline functions
   (ds_float32 and so on) external. Computes sizes and converts data
   types to and from text (ds_dtype_format, ds_dtype_parse).

   Invariants: ds_dtype_parse reads back every text that ds_dtype_format writes. A type without a
   name is written as code:bits:lanes.
   Locks: none.
   Threads: any. ds_dtype_get_size and ds_dtype_equal do not start devstream. */
#ifndef DS__CORE_DTYPE_H
#define DS__CORE_DTYPE_H

#include "../api/dtype.h"
#include "init.h"

#define DS__DTYPE_EXTERNAL(name, code, bits, lanes) DS__SYMBOL(ds_dtype ds_##name(void))
DS_DTYPES(DS__DTYPE_EXTERNAL)
#undef DS__DTYPE_EXTERNAL

static const struct {
    const char *name;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} ds__dtypes[] = {

#define DS__DTYPE(name, code, bits, lanes) { #name, (uint8_t)(code), bits, lanes },
    DS_DTYPES(DS__DTYPE)
#undef DS__DTYPE
};
#define DS__DTYPE_COUNT (sizeof ds__dtypes / sizeof ds__dtypes[0])

DSDEF size_t(ds_dtype_get_size)(ds_dtype dtype) {
    size_t bits = (size_t)dtype.bits * dtype.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}

DSDEF int(ds_dtype_equal)(ds_dtype a, ds_dtype b) {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* Writes the name of a type into a buffer of DS_DTYPE_NAME_SIZE; returns the buffer. */
DS__SEAM static const char *ds__dtype_name(ds_dtype dtype, char *out) {
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (ds__dtypes[i].code == dtype.code && ds__dtypes[i].bits == dtype.bits &&
            ds__dtypes[i].lanes == dtype.lanes)
            return ds__dtypes[i].name;
    snprintf(out, DS_DTYPE_NAME_SIZE, "%d:%d:%d", dtype.code, dtype.bits, dtype.lanes);
    return out;
}

DSDEF ds_result(ds_dtype_format)(ds_dtype dtype, char *out, size_t size) {
    char text[DS_DTYPE_NAME_SIZE];
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_dtype_format");
    const char *name = ds__dtype_name(dtype, text);
    DS__REQUIRE(out && strlen(name) < size, "out is NULL or has no room for \"%s\"", name);
    memcpy(out, name, strlen(name) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_dtype_parse)(const char *text, ds_dtype *out) {
    static const struct {
        const char *name;
        const char *is;
    } more[] = { { "float", "float32" },   { "double", "float64" },   { "half", "float16" },
                 { "short", "int16" },     { "int", "int32" },        { "long", "int64" },
                 { "chalf", "complex32" }, { "cfloat", "complex64" }, { "cdouble", "complex128" } };

    unsigned n[3];
    int end = 0;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_dtype_parse");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    const char *name = text;
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (strcmp(text, more[i].name) == 0)
            name = more[i].is;
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (strcmp(name, ds__dtypes[i].name) == 0) {
            *out = (ds_dtype){ ds__dtypes[i].code, ds__dtypes[i].bits, ds__dtypes[i].lanes };
            return DS_OK;
        }
    DS__REQUIRE(sscanf(text, "%3u:%3u:%5u%n", &n[0], &n[1], &n[2], &end) == 3 && !text[end] &&
                    n[0] < 256 && n[1] < 256 && n[2] < 65536,
                "there is no data type \"%.60s\"", text);
    *out = (ds_dtype){ (uint8_t)n[0], (uint8_t)n[1], (uint16_t)n[2] };
    return DS_OK;
}

#endif
