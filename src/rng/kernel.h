/* rng/kernel.h - table of the generators' kernels.

   Lists the kernels for fills and for the state of a graph's fills (ds__rng_forms): name, entry
   point, CPU form, parameters, and PTX. ds__rng_kernel (rng/fill_types.h) creates a kernel from
   an entry at its first use. DS__RNG_STATE and the following numbers are the indices.

   Invariants: a parameter list has the parameters of the CUDA form, in its order. An entry has
   its PTX either in one text or in pieces.
   Locks: none.
   Threads: the table is constant. ds__rng_state_items runs on the threads of the CPU driver's
   operations. */
#ifndef DS__RNG_KERNEL_H
#define DS__RNG_KERNEL_H

#include "../api/kernel.h"
#include "kernel_arith.h"
#include "kernel_cpu.h"
#include "kernels.gen.h"

enum {
    DS__RNG_STATE,
    DS__RNG_UNIFORM32,
    DS__RNG_UNIFORMS,
    DS__RNG_UNIFORM64,
    DS__RNG_NORMALS,
    DS__RNG_NORMAL64,
    DS__RNG_EXPONENTIALS,
    DS__RNG_EXPONENTIAL64,
    DS__RNG_ONE_WORD,
    DS__RNG_TWO_WORDS,
    DS__RNG_ONE_OR_ZERO,
    DS__RNG_ORDER,
    DS__RNG_KERNELS
};

#define DS__RNG_PARAM(kind, member) \
    { DS_PARAM_##kind, offsetof(ds__rng_args, member), sizeof(((ds__rng_args *)0)->member) }
#define DS__RNG_OPERANDS                                                                        \
    DS__RNG_PARAM(WRITE, out), DS__RNG_PARAM(READ, state), DS__RNG_PARAM(VALUE, seed),          \
        DS__RNG_PARAM(VALUE, start), DS__RNG_PARAM(VALUE, before), DS__RNG_PARAM(VALUE, count), \
        DS__RNG_PARAM(VALUE, rows), DS__RNG_PARAM(VALUE, stride)
static const ds_param ds__rng_state_params[] = { DS__RNG_PARAM(WRITE, out),
                                                 DS__RNG_PARAM(VALUE, seed),
                                                 DS__RNG_PARAM(VALUE, start) };
static const ds_param ds__rng_uniform32_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from32),
                                                     DS__RNG_PARAM(VALUE, to32) };
static const ds_param ds__rng_uniform_params[] = { DS__RNG_OPERANDS,
                                                   DS__RNG_PARAM(VALUE, from32),
                                                   DS__RNG_PARAM(VALUE, scale32),
                                                   DS__RNG_PARAM(VALUE, from_bits),
                                                   DS__RNG_PARAM(VALUE, to_bits),
                                                   DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_normal_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from32),
                                                  DS__RNG_PARAM(VALUE, to32),
                                                  DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_exponential_params[] = { DS__RNG_OPERANDS,
                                                       DS__RNG_PARAM(VALUE, from32),
                                                       DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_exponential64_params[] = { DS__RNG_OPERANDS,
                                                         DS__RNG_PARAM(VALUE, from) };
static const ds_param ds__rng_f64_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from),
                                               DS__RNG_PARAM(VALUE, to) };
static const ds_param ds__rng_integer_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, low),
                                                   DS__RNG_PARAM(VALUE, range),
                                                   DS__RNG_PARAM(VALUE, kind) };

static int ds__rng_state_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = args;
    uint64_t *state = a->out;
    (void)first, (void)count;
    state[0] = a->seed;
    state[1] = a->start;
    return 0;
}

static uint64_t ds__rng_bytes(size_t items, const void *args) {
    const ds__rng_args *a = args;
    (void)items;
    return a->count * ds__rng_size(a->kind);
}

/* Writes the bytes that a launch accesses through `out` and, in a graph, through `state`. */
static void ds__rng_extents(const void *args, size_t *out_bytes) {
    const ds__rng_args *a = args;
    out_bytes[0] = (size_t)(a->count * ds__rng_size(a->kind));
    out_bytes[1] = 2 * sizeof *a->state;
}

/* The device code of each kernel: one text, or several pieces of one. */
static const struct {
    const char *name;
    const char *entry;
    ds_kernel_fn cpu_fn;
    const ds_param *params;
    size_t count;
    const char *text;
    const char *const *pieces;
} ds__rng_forms[DS__RNG_KERNELS] = {

#define DS__RNG_FORM(name, entry, fn, list, text, pieces)                   \
    {                                                                       \
        name, "ds__rng_" entry, ds__rng_##fn, ds__rng_##list##_params,      \
            sizeof ds__rng_##list##_params / sizeof(ds_param), text, pieces \
    }
    [DS__RNG_STATE] =
        DS__RNG_FORM("state of a generator", "state", state_items, state, ds__ptx_rng_state, NULL),
    [DS__RNG_UNIFORM32] =
        DS__RNG_FORM("uniform numbers", "uniform32", items, uniform32, NULL, ds__ptx_rng_uniform32),
    [DS__RNG_UNIFORMS] =
        DS__RNG_FORM("uniform numbers", "uniform", items, uniform, NULL, ds__ptx_rng_uniform),
    [DS__RNG_UNIFORM64] =
        DS__RNG_FORM("uniform numbers", "uniform64", items, f64, NULL, ds__ptx_rng_uniform64),
    [DS__RNG_NORMALS] =
        DS__RNG_FORM("normal numbers", "normal", items, normal, NULL, ds__ptx_rng_normal),
    [DS__RNG_NORMAL64] =
        DS__RNG_FORM("normal numbers", "normal64", items, f64, NULL, ds__ptx_rng_normal64),
    [DS__RNG_EXPONENTIALS] = DS__RNG_FORM("exponential numbers", "exponential", items, exponential,
                                          NULL, ds__ptx_rng_exponential),
    [DS__RNG_EXPONENTIAL64] = DS__RNG_FORM("exponential numbers", "exponential64", items,
                                           exponential64, NULL, ds__ptx_rng_exponential64),
    [DS__RNG_ONE_WORD] =
        DS__RNG_FORM("random integers", "integers", items, integer, NULL, ds__ptx_rng_integers),
    [DS__RNG_TWO_WORDS] = DS__RNG_FORM("random integers", "wide_integers", items, integer, NULL,
                                       ds__ptx_rng_wide_integers),
    [DS__RNG_ONE_OR_ZERO] =
        DS__RNG_FORM("Bernoulli numbers", "bernoulli", items, integer, NULL, ds__ptx_rng_bernoulli),
    [DS__RNG_ORDER] = DS__RNG_FORM("random permutation", "permutation", permutation_items, integer,
                                   NULL, ds__ptx_rng_permutation),
#undef DS__RNG_FORM
};

#endif
