/* Loops of the functions in kernel_math.h: MATH_FN(floats), MATH_FN(doubles) and
   MATH_FN(integers)(which, n, in, out).
   To be included several times; MATH_TARGET is an attribute of the loops. */
#define MATH_LOOP(name, type, expression)                                                          \
    MATH_TARGET DS__KERNEL_EXACT static void MATH_FN(name)(size_t n, type *const *in, type *out) { \
        for (size_t i = 0; i < n; i++) {                                                           \
            type x = in[0][i];                                                                     \
            type y = in[1][i];                                                                     \
            type z = in[2][i];                                                                     \
            (void)(x + y + z);                                                                     \
            out[i] = expression;                                                                   \
        }                                                                                          \
    }
#define X(name, expression) MATH_LOOP(name, float, expression)
MATH_FLOATS(X)
#undef X
#define X(name, expression) MATH_LOOP(name, double, expression)
MATH_DOUBLES(X)
#undef X
#define X(name, expression) MATH_LOOP(name, uint64_t, expression)
MATH_INTEGERS(X)
#undef X

static void MATH_FN(floats)(int which, size_t n, float *const *in, float *out) {
    switch (which) {
#define X(name, expression)        \
    case MATH_##name:              \
        MATH_FN(name)(n, in, out); \
        break;
        MATH_FLOATS(X)
#undef X
    }
}

static void MATH_FN(doubles)(int which, size_t n, double *const *in, double *out) {
    switch (which) {
#define X(name, expression)        \
    case MATH_##name:              \
        MATH_FN(name)(n, in, out); \
        break;
        MATH_DOUBLES(X)
#undef X
    }
}

DS__UNUSED static void MATH_FN(integers)(int which, size_t n, uint64_t *const *in, uint64_t *out) {
    switch (which) {
#define X(name, expression)        \
    case MATH_##name:              \
        MATH_FN(name)(n, in, out); \
        break;
        MATH_INTEGERS(X)
#undef X
    }
}

#undef MATH_LOOP
#undef MATH_FN
#undef MATH_TARGET
