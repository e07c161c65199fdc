/* api/kernel_params.h - parameter lists of kernels.

   A kernel macro gets its parameters as DS_READ(...), DS_WRITE(...), DS_READ_WRITE(...) and
   DS_VALUE(...). These words are not macros. DS__EACH applies a macro to each parameter. The macro
   pastes the word to a prefix and so gets kind, type, name, element type and extent. One list
   defines the argument struct, the table of parameters, the parameters of both forms and the launch
   function.

   Threads: none. */
#ifndef DS__API_KERNEL_PARAMS_H
#define DS__API_KERNEL_PARAMS_H

#include "kernel_target.h"

/* ---- parameters ------------------------------------------------------------------------------ */

/* Expand each form of a parameter to kind, type, name, element type, extent in elements. */
#define DS__PARAM_DS_READ(type, name, extent) READ, const type *, name, type, extent
#define DS__PARAM_DS_WRITE(type, name, extent) WRITE, type *, name, type, extent
#define DS__PARAM_DS_READ_WRITE(type, name, extent) READ_WRITE, type *, name, type, extent
#define DS__PARAM_DS_VALUE(type, name) VALUE, type, name, type, 0

/* Calls macro(context, kind, type, name, element, extent) for each parameter, at most 24. */
#define DS__EACH(macro, context, ...) \
    DS__JOIN(DS__EACH_, DS__NUMBER(__VA_ARGS__))(macro, context, __VA_ARGS__)
#define DS__JOIN(a, b) DS__JOIN_(a, b)
#define DS__JOIN_(a, b) a##b
#define DS__APPLY(macro, context, parameter) DS__APPLY_(macro, context, DS__PARAM_##parameter)
#define DS__APPLY_(macro, context, ...) DS__APPLY__(macro, context, __VA_ARGS__)
#define DS__APPLY__(macro, ...) macro(__VA_ARGS__)
#define DS__NUMBER(...)                                                                           \
    DS__NUMBER_(__VA_ARGS__, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, \
                6, 5, 4, 3, 2, 1, 0)
#define DS__NUMBER_(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, \
                    a18, a19, a20, a21, a22, a23, a24, n, ...)                                  \
    n
#define DS__EACH_1(m, c, p) DS__APPLY(m, c, p)
#define DS__EACH_2(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_1(m, c, __VA_ARGS__)
#define DS__EACH_3(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_2(m, c, __VA_ARGS__)
#define DS__EACH_4(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_3(m, c, __VA_ARGS__)
#define DS__EACH_5(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_4(m, c, __VA_ARGS__)
#define DS__EACH_6(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_5(m, c, __VA_ARGS__)
#define DS__EACH_7(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_6(m, c, __VA_ARGS__)
#define DS__EACH_8(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_7(m, c, __VA_ARGS__)
#define DS__EACH_9(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_8(m, c, __VA_ARGS__)
#define DS__EACH_10(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_9(m, c, __VA_ARGS__)
#define DS__EACH_11(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_10(m, c, __VA_ARGS__)
#define DS__EACH_12(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_11(m, c, __VA_ARGS__)
#define DS__EACH_13(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_12(m, c, __VA_ARGS__)
#define DS__EACH_14(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_13(m, c, __VA_ARGS__)
#define DS__EACH_15(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_14(m, c, __VA_ARGS__)
#define DS__EACH_16(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_15(m, c, __VA_ARGS__)
#define DS__EACH_17(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_16(m, c, __VA_ARGS__)
#define DS__EACH_18(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_17(m, c, __VA_ARGS__)
#define DS__EACH_19(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_18(m, c, __VA_ARGS__)
#define DS__EACH_20(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_19(m, c, __VA_ARGS__)
#define DS__EACH_21(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_20(m, c, __VA_ARGS__)
#define DS__EACH_22(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_21(m, c, __VA_ARGS__)
#define DS__EACH_23(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_22(m, c, __VA_ARGS__)
#define DS__EACH_24(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_23(m, c, __VA_ARGS__)

/* The expansions of a parameter for the kernel macros. */
#define DS__AS_MEMBER(context, kind, type, name, element, extent) type name;
#define DS__AS_PARAMETER(context, kind, type, name, element, extent) , type name DS__UNUSED
#define DS__AS_DEVICE_PARAMETER(context, kind, type, name, element, extent) type name,
#define DS__AS_ARGUMENT(context, kind, type, name, element, extent) , name
#define DS__AS_FIELD(context, kind, type, name, element, extent) , (context)->name
#define DS__AS_STORE(context, kind, type, name, element, extent) (context).name = name;
#define DS__AS_LOCAL(context, kind, type, name, element, extent) \
    type name DS__UNUSED = (context)->name;
#define DS__AS_ROW(context, kind, type, name, element, extent) \
    { DS_PARAM_##kind, offsetof(struct context, name), sizeof(type) },
/* Bytes that a launch moves through the parameter. */
#define DS__AS_BYTES(context, kind, type, name, element, extent) \
    +(uint64_t)(extent) * sizeof(element) * DS__TRAFFIC_##kind
/* Writes the bytes that a launch accesses through the parameter. */
#define DS__AS_EXTENT(context, kind, type, name, element, extent) \
    *(context)++ = dsk__extent_bytes((uint64_t)(extent), sizeof(element));
#define DS__TRAFFIC_READ 1
#define DS__TRAFFIC_WRITE 1
#define DS__TRAFFIC_READ_WRITE 2
#define DS__TRAFFIC_VALUE 0
#define DS__UNUSED __attribute__((unused))

#endif
