/* api/dtype.h - data types of elements.

   Declares a data type (ds_dtype) with DLPack's layout, a function for each named type, and the
   functions that print, parse, measure and compare types. */
#ifndef DS__API_DTYPE_H
#define DS__API_DTYPE_H

#include "result.h"

/* ---- data types ------------------------------------------------------------------------------ */

/** Kinds of elements; the values are DLPack's. */
typedef enum ds_type_code {
    DS_CODE_INT = 0,     /**< signed integers */
    DS_CODE_UINT = 1,    /**< unsigned integers */
    DS_CODE_FLOAT = 2,   /**< IEEE floats of 16, 32, 64 bits */
    DS_CODE_OPAQUE = 3,  /**< opaque handles */
    DS_CODE_BFLOAT = 4,  /**< bfloat16 */
    DS_CODE_COMPLEX = 5, /**< two floats; bits counts both */
    DS_CODE_BOOL = 6,    /**< 0 or 1 in a byte */
    /** this and the following: bits of exponent (E) and mantissa (M); FN: no infinities; UZ: no
        negative zero; B11: bias 11; E8M0FNU: a power of two without a sign */
    DS_CODE_FLOAT8_E3M4 = 7,
    DS_CODE_FLOAT8_E4M3 = 8,        /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3B11FNUZ = 9, /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3FN = 10,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3FNUZ = 11,   /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E5M2 = 12,       /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E5M2FNUZ = 13,   /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E8M0FNU = 14,    /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT6_E2M3FN = 15,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT6_E3M2FN = 16,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT4_E2M1FN = 17      /**< see DS_CODE_FLOAT8_E3M4 */
} ds_type_code;

/** A data type with the layout of DLPack's DLDataType. */
typedef struct ds_dtype {
    uint8_t code;   /**< a ds_type_code */
    uint8_t bits;   /**< bits of one lane */
    uint16_t lanes; /**< 1, or more for vectors */
} ds_dtype;

/** X(name, code, bits, lanes): torch's types and names, and DLPack's other 8-bit types. */
/* clang-format off */
#define DS_DTYPES(X) \
    X(bool, DS_CODE_BOOL, 8, 1) \
    X(int8, DS_CODE_INT, 8, 1) \
    X(int16, DS_CODE_INT, 16, 1) \
    X(int32, DS_CODE_INT, 32, 1) \
    X(int64, DS_CODE_INT, 64, 1) \
    X(uint8, DS_CODE_UINT, 8, 1) \
    X(uint16, DS_CODE_UINT, 16, 1) \
    X(uint32, DS_CODE_UINT, 32, 1) \
    X(uint64, DS_CODE_UINT, 64, 1) \
    X(float16, DS_CODE_FLOAT, 16, 1) \
    X(bfloat16, DS_CODE_BFLOAT, 16, 1) \
    X(float32, DS_CODE_FLOAT, 32, 1) \
    X(float64, DS_CODE_FLOAT, 64, 1) \
    X(complex32, DS_CODE_COMPLEX, 32, 1) \
    X(complex64, DS_CODE_COMPLEX, 64, 1) \
    X(complex128, DS_CODE_COMPLEX, 128, 1) \
    X(float8_e3m4, DS_CODE_FLOAT8_E3M4, 8, 1) \
    X(float8_e4m3, DS_CODE_FLOAT8_E4M3, 8, 1) \
    X(float8_e4m3b11fnuz, DS_CODE_FLOAT8_E4M3B11FNUZ, 8, 1) \
    X(float8_e4m3fn, DS_CODE_FLOAT8_E4M3FN, 8, 1) \
    X(float8_e4m3fnuz, DS_CODE_FLOAT8_E4M3FNUZ, 8, 1) \
    X(float8_e5m2, DS_CODE_FLOAT8_E5M2, 8, 1) \
    X(float8_e5m2fnuz, DS_CODE_FLOAT8_E5M2FNUZ, 8, 1) \
    X(float8_e8m0fnu, DS_CODE_FLOAT8_E8M0FNU, 8, 1) \
    X(float4_e2m1fn_x2, DS_CODE_FLOAT4_E2M1FN, 4, 2)
/* clang-format on */

/* ds_bool(), ds_int8(), ds_float32() and so on. */
#define DS_DTYPE_FUNCTION_(name, c, b, l) \
    DSINLINE ds_dtype ds_##name(void) {   \
        ds_dtype t;                       \
        t.code = (uint8_t)(c);            \
        t.bits = (b);                     \
        t.lanes = (l);                    \
        return t;                         \
    }
DS_DTYPES(DS_DTYPE_FUNCTION_)
#undef DS_DTYPE_FUNCTION_

/** Returns the size of an element in bytes; 0 if it is not a whole number. Callable anywhere. */
DSDEF size_t ds_dtype_get_size(ds_dtype dtype);
/** Returns 1 if both types are the same, else 0. Callable anywhere. */
DSDEF int ds_dtype_equal(ds_dtype a, ds_dtype b);
/** Size in bytes of the longest text written by ds_dtype_format, with the terminating zero. */
#define DS_DTYPE_NAME_SIZE 32
/** Writes torch's name of the type ("float32"), or "code:bits:lanes" if it has no name.
    DS_ERR_INVALID_VALUE: size is too small. */
DSDEF DS_MUST_USE ds_result ds_dtype_format(ds_dtype dtype, char *out, size_t size);
/** Parses a name of ds_dtype_format, or one of torch's aliases: float, double, half, short, int,
    long, chalf, cfloat, cdouble. */
DSDEF DS_MUST_USE ds_result ds_dtype_parse(const char *text, ds_dtype *out);

#endif
