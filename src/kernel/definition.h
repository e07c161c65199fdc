/* kernel/definition.h - kernels that a program defines with macros.

   Creates the kernel of a definition at its first use (ds_kernel_def_get_kernel) and launches it
   (ds_kernel_def_launch).

   Invariants: a definition is in the list exactly while `epoch` is that of the library's present
   start; then `kernel` is valid. The epoch is stored last, so a launch that reads it needs no lock.
   Locks: `making` guards the list and the creation; the driver is not called under it.
   Threads: any. The list is emptied in ds_shutdown, while no other thread is inside of
   devstream. */
#ifndef DS__KERNEL_DEFINITION_H
#define DS__KERNEL_DEFINITION_H

#include "../api/kernel_def.h"
#include "../base/module.h"
#include "../core/internal.h"
#include "scratch.h"

static struct {
    ds__mutex making;
    ds_kernel_def *list;
} ds__kernel_defs = { DS__MUTEX_INIT, NULL };

/* Destroys the kernels of all definitions. */
static void ds__kernel_defs_shutdown(void) {
    for (ds_kernel_def *def = ds__kernel_defs.list; def; def = def->next) {
        ds__kernel *k = ds__pin(&ds__g.kernels, def->kernel.id);
        if (k) {
            ds__table_invalidate(&ds__g.kernels, k);
            ds__unpin(&ds__g.kernels, k);
        }
    }
    ds__kernel_defs.list = NULL;
    ds__scratch_free_all();
}

static ds_result ds__kernel_def_create(ds_kernel_def *def, ds_kernel *out) {
    ds_kernel_desc desc = { .name = def->name,
                            .cpu_fn = def->cpu_fn,
                            .args_size = def->args_size,
                            .params = def->params,
                            .param_count = def->param_count,
                            .bytes_fn = def->bytes_fn,
                            .extents_fn = def->extents_fn,
                            .cuda = { .image_pieces = def->ptx,
                                      .entry = def->ptx ? def->name : NULL,
                                      .block = def->block,
                                      .items_per_block = def->items_per_block } };
    return ds__kernel_create(&desc, out);
}

/* The slow part of ds__kernel_def_get: creates the kernel, unless another thread did. */
static ds_result ds__kernel_def_get_slow(ds_kernel_def *def, ds_kernel *out) {
    static const ds__module module = { .shutdown = ds__kernel_defs_shutdown };
    ds_result r = DS_OK;
    uint32_t epoch = atomic_load(&ds__g.epoch);
    ds__mutex_lock(&ds__kernel_defs.making);
    if (def->epoch != epoch) {
        r = ds__kernel_def_create(def, &def->kernel);
        if (r == DS_OK) {
            ds__module_add(DS__MODULE_KERNEL, &module);
            def->next = ds__kernel_defs.list;
            ds__kernel_defs.list = def;
            __atomic_store_n(&def->epoch, epoch, __ATOMIC_RELEASE);
        }
    }
    out->id = r == DS_OK ? def->kernel.id : 0;
    ds__mutex_unlock(&ds__kernel_defs.making);
    return r;
}

/* Returns the kernel of a definition. */
static inline ds_result ds__kernel_def_get(ds_kernel_def *def, ds_kernel *out) {
    if (DS__UNLIKELY(__atomic_load_n(&def->epoch, __ATOMIC_ACQUIRE) != atomic_load(&ds__g.epoch)))
        return ds__kernel_def_get_slow(def, out);
    *out = def->kernel;
    return DS_OK;
}

DSDEF ds_result(ds_kernel_def_get_kernel)(ds_kernel_def *def, ds_kernel *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_kernel_def_get_kernel");
    DS__REQUIRE(def && out, "%s is NULL", def ? "out" : "def");
    return ds__kernel_def_get(def, out);
}

DSDEF ds_result(ds_kernel_def_launch)(ds_kernel_def *def, ds_stream stream,
                                      const ds_kernel_dims *dims, const void *args) {
    ds_result r = ds__api_enter_inline("ds_kernel_def_launch");
    if (DS__UNLIKELY(r < 0))
        return r;
    DS__REQUIRE(def, "def is NULL");
    DS__REQUIRE(dims && args, "%s is NULL", dims ? "args" : "dims");
    size_t items;
    int overflow = __builtin_mul_overflow(dims->n[0], dims->n[1], &items);
    overflow |= __builtin_mul_overflow(items, dims->n[2], &items);
    DS__REQUIRE(!overflow, "kernel %s: %zu x %zu x %zu items exceed size_t", def->name, dims->n[0],
                dims->n[1], dims->n[2]);
    ds_kernel kernel;
    r = ds__kernel_def_get(def, &kernel);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = ds__kernel_launch(kernel, items, NULL, args, def->args_size, stream);
    if (DS__UNLIKELY(r == DS_ERR_UNSUPPORTED) && !def->ptx)
        return ds__fail_append(r, "; run `devstream-kernels %s` and compile again", def->source);
    return r;
}

#endif
