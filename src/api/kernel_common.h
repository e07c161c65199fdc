/* api/kernel_common.h - common macros of elementwise kernels and block kernels on the CPU.

   Defines the argument struct and NAME_pack, the functions that count a launch's bytes, the
   parameter table, the definition NAME_def, and NAME_launch.

   Threads: any; NAME_pack and NAME_launch only read their arguments. */
#ifndef DS__API_KERNEL_COMMON_H
#define DS__API_KERNEL_COMMON_H

#include "kernel_params.h"
#include "kernel_dims.h"

/* ---- launching defined kernels --------------------------------------------------------------- */

/* Removes the parentheses of a list. */
#define DS__LIST(...) __VA_ARGS__

#ifndef DEVSTREAM_KERNEL_DEVICE

/** Launches a kernel of the macros and passes file and line: DS_LAUNCH(name, stream, counts...,
    parameters...). Returns ds_result. The arguments are those of the function NAME_launch, so the
    compiler checks their number and types. */
#ifdef DEVSTREAM_NO_SITES
#define DS_LAUNCH(name, ...) name##_launch(__VA_ARGS__)
#else
#define DS_LAUNCH(name, ...) name##_launch_at(__FILE__, __LINE__, __VA_ARGS__)
#endif

/* The argument struct and the function that fills it. */
#define DS__KERNEL_ARGS(name, counts, dims, ...)                      \
    DS__KERNEL_OPTIONS(name)                                          \
    struct name##_args {                                              \
        DS__EACH(DS__AS_MEMBER, 0, __VA_ARGS__)                       \
        ds_kernel_dims dsk__dims;                                     \
    };                                                                \
    static inline DS__UNUSED struct name##_args name##_pack(          \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) { \
        struct name##_args dsk__a;                                    \
        DS__EACH(DS__AS_STORE, dsk__a, __VA_ARGS__)                   \
        dsk__a.dsk__dims = ds_kernel_dims_of dims;                    \
        return dsk__a;                                                \
    }

/* Counts the bytes of the extents, in which the numbers of items are variables: NAME__bytes, the
   bytes that a launch moves, and NAME__extents, those that it accesses through each parameter. The
   three parameters behind the list have no extent. */
#define DS__KERNEL_BYTES_1D(name, counts, ...) \
    DS__KERNEL_BYTES(name, counts, (void)0, (dsk__a->dsk__dims.n[0]), __VA_ARGS__)
#define DS__KERNEL_BYTES_2D(name, counts, ...)                                                \
    DS__KERNEL_BYTES(name, counts, (void)0, (dsk__a->dsk__dims.n[0], dsk__a->dsk__dims.n[1]), \
                     __VA_ARGS__)
#define DS__KERNEL_BYTES_3D(name, counts, ...)                                                 \
    DS__KERNEL_BYTES(name, counts, (void)0,                                                    \
                     (dsk__a->dsk__dims.n[0], dsk__a->dsk__dims.n[1], dsk__a->dsk__dims.n[2]), \
                     __VA_ARGS__)
/* first: a declaration or statement before `values` are used. */
#define DS__KERNEL_BYTES(name, counts, first, values, ...)                                       \
    static inline uint64_t name##__moved(                                                        \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {                            \
        return 0 DS__EACH(DS__AS_BYTES, 0, __VA_ARGS__);                                         \
    }                                                                                            \
    static inline void name##__accessed(                                                         \
        size_t *dsk__out, DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {          \
        DS__EACH(DS__AS_EXTENT, dsk__out, __VA_ARGS__)                                           \
        dsk__out[0] = dsk__out[1] = dsk__out[2] = 0;                                             \
    }                                                                                            \
    static uint64_t name##__bytes(size_t dsk__items, const void *dsk__args) {                    \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                \
        first;                                                                                   \
        (void)dsk__items;                                                                        \
        return name##__moved(DS__LIST values DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__));       \
    }                                                                                            \
    static void name##__extents(const void *dsk__args, size_t *dsk__out) {                       \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                \
        first;                                                                                   \
        name##__accessed(dsk__out, DS__LIST values DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__)); \
    }

/* The parameter table, the definition and the launch function. threads: block of ds_kernel_def;
   per_block: its items_per_block. */
#define DS__KERNEL_DEF(name, counts, numbers, threads, per_block, ...)                         \
    static const ds_param name##__params[] = {                                                 \
        DS__EACH(DS__AS_ROW, name##_args, __VA_ARGS__){                                        \
            DS_PARAM_VALUE, offsetof(struct name##_args, dsk__dims), sizeof(ds_kernel_dims) }, \
        { DS_PARAM_FIRST, 0, 8 },                                                              \
        { DS_PARAM_COUNT, 0, 8 }                                                               \
    };                                                                                         \
    static ds_kernel_def name##_def = { #name,                                                 \
                                        __FILE__,                                              \
                                        threads,                                               \
                                        per_block,                                             \
                                        sizeof(struct name##_args),                            \
                                        name##__params,                                        \
                                        sizeof name##__params / sizeof *name##__params,        \
                                        name##__cpu,                                           \
                                        DS__PTX_OF(name),                                      \
                                        name##__bytes,                                         \
                                        name##__extents,                                       \
                                        { 0, 0, 0 },                                           \
                                        { 0 },                                                 \
                                        0,                                                     \
                                        NULL };                                                \
    static inline DS__UNUSED DS_MUST_USE ds_result name##_launch(                              \
        ds_stream dsk__stream, DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {   \
        struct name##_args dsk__a =                                                            \
            name##_pack(DS__LIST numbers DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));           \
        return (ds_kernel_def_launch)(&name##_def, dsk__stream, &dsk__a.dsk__dims, &dsk__a);   \
    }                                                                                          \
    static inline DS__UNUSED DS_MUST_USE ds_result name##_launch_at(                           \
        const char *dsk__file, int dsk__line, ds_stream dsk__stream,                           \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {                          \
        ds_site_set(dsk__file, dsk__line);                                                     \
        return name##_launch(dsk__stream,                                                      \
                             DS__LIST numbers DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));      \
    }

/* The kernel's PTX, if the output file of devstream-kernels was included before. The file defines
   DS_PTX_NAME as a comma and the array's name. Otherwise NULL. */
#define DS__PTX_OF(name) DS__SECOND(DS_PTX_##name, NULL, 0)
#define DS__SECOND(...) DS__SECOND_(__VA_ARGS__)
#define DS__SECOND_(first, second, ...) second

#endif

#endif
