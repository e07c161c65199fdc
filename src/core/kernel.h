/* core/kernel.h - kernels: creation, loading, launches.

   Creates kernels from descriptions (ds__kernel_check, ds__kernel_create), loads them on devices,
   launches them on streams (ds__kernel_launch), and destroys them.

   Destroyed kernels: launches hold no reference. A destroyed kernel is freed only after all work
   has finished that was pending when no call could launch it any more. ds__kernel_defer puts
   such a kernel into the batch `fresh`. ds__kernel_collect notes the pending work once for a
   whole batch (`mark`), and frees the batch after that work. Kernels that are destroyed
   meanwhile form the next batch. A call therefore asks about one mark, however many kernels
   wait.

   Invariants: a description is checked once, at creation; name, parameters and extents are copied.
   Offsets of the parameters "first" and "count" are 0, because they are not in the argument
   struct. `mark` is noted after the last kernel has joined the batch `waiting`.
   Locks: the driver's kernel_load and submit are called without a lock. `collecting` is only
   tried: if another thread collects, ds__kernel_collect returns at once.
   Threads: any; launches, loads and the destruction of one kernel may run concurrently. */
#ifndef DS__CORE_KERNEL_H
#define DS__CORE_KERNEL_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream.h"
#include "submit.h"
#include "kernel_table.h"
#include "../base/extent.h"

/* Destroyed kernels: lists of slots, as index + 1. */
static struct {
    _Atomic uint32_t fresh;  /* no mark has been noted for these */
    ds__spinlock collecting; /* guards the rest */
    uint32_t waiting;        /* for the work of `mark` */
    void *mark;              /* the drivers' note of pending work; NULL: none */
} ds__kernel_state;

static void ds__kernel_destroy(void *object) {
    ds__kernel *k = object;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            ds__g.driver[b]->kernel_destroy(k);
    ds__host_free((void *)(uintptr_t)k->name);
    ds__host_free(k->params);
    ds__host_free(k->extents);
}

/* Takes over a destroyed kernel that no call uses any more. */
static void ds__kernel_defer(void *object) {
    ds__slot *slot = object;
    uint32_t head = atomic_load_explicit(&ds__kernel_state.fresh, memory_order_relaxed);
    atomic_fetch_add(&ds__g.deferred_kernels, 1);
    do
        slot->next = head;
    while (!atomic_compare_exchange_weak(&ds__kernel_state.fresh, &head, slot->index + 1));
}

/* Returns 1 if the work of `mark` is finished. Without a mark, notes the pending work in it. */
static int ds__kernel_work_over(void) {
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b] && !ds__g.driver[b]->passed(&ds__kernel_state.mark))
            return 0;
    return 1;
}

/* Frees the deferred kernels that no pending work uses. */
static void ds__kernel_collect(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__g.deferred_kernels, memory_order_relaxed) == 0) ||
        !ds__spinlock_try(&ds__kernel_state.collecting))
        return;
    for (;;) {
        if (!ds__kernel_state.waiting)
            ds__kernel_state.waiting = atomic_exchange(&ds__kernel_state.fresh, 0);
        if (!ds__kernel_state.waiting || !ds__kernel_work_over())
            break;
        while (ds__kernel_state.waiting) {
            ds__slot *slot = ds__slot_at(&ds__g.kernels, ds__kernel_state.waiting - 1);
            ds__kernel_state.waiting = slot->next;
            ds__table_slot_free(&ds__g.kernels, slot);
            atomic_fetch_sub(&ds__g.deferred_kernels, 1);
        }
    }
    ds__spinlock_unlock(&ds__kernel_state.collecting);
}

/* At shutdown, after all work: frees all deferred kernels. */
static void ds__kernel_collect_all(void) {
    ds__kernel_collect();
    /* if there was no memory for a mark, the table frees the kernels that are left */
    ds__kernel_state.waiting = 0;
    atomic_store(&ds__kernel_state.fresh, 0);
    atomic_store(&ds__g.deferred_kernels, 0);
}

static ds_result ds__kernel_check_param(const ds_kernel_desc *d, size_t i) {
    const ds_param *p = &d->params[i];
    DS__REQUIRE((unsigned)p->kind <= DS_PARAM_COUNT,
                "kernel %s: parameter %zu has the kind %d; use a DS_PARAM_* kind", d->name, i,
                (int)p->kind);
    if (p->kind == DS_PARAM_FIRST || p->kind == DS_PARAM_COUNT) {
        DS__REQUIRE(p->size == 4 || p->size == 8,
                    "kernel %s: parameter %zu, a number of items, has %zu bytes; use 4 or 8",
                    d->name, i, p->size);
        return DS_OK;
    }
    DS__REQUIRE(p->size > 0 && p->size <= d->args_size && p->offset <= d->args_size - p->size,
                "kernel %s: parameter %zu, %zu bytes at offset %zu, is not inside the %zu bytes of "
                "arguments",
                d->name, i, p->size, p->offset, d->args_size);
    DS__REQUIRE(p->kind == DS_PARAM_VALUE || p->size == sizeof(void *),
                "kernel %s: parameter %zu is a pointer of %zu bytes; %zu are needed", d->name, i,
                p->size, sizeof(void *));
    return DS_OK;
}

static ds_result ds__kernel_check_extents(const ds_kernel_desc *d) {
    DS__REQUIRE(!d->extents || !d->extents_fn,
                "kernel %s has extents and extents_fn; at most one of both is allowed", d->name);
    for (size_t i = 0; d->extents && i < d->param_count; i++) {
        ds_result r = ds__extent_check_form(&d->extents[i], i);
        if (r == DS_OK)
            r = ds__extent_check_param(&d->extents[i], i, d->params, d->param_count);
        if (r < 0)
            return ds__fail_append(r, " (kernel %s)", d->name);
    }
    return DS_OK;
}

/* Refuses a description of a kernel that no driver could run. */
static ds_result ds__kernel_check(const ds_kernel_desc *d) {
    DS__REQUIRE(d && d->name && *d->name, "a kernel needs a desc with a name");
    DS__REQUIRE_RESERVED("ds_kernel_desc", d);
    DS__REQUIRE_RESERVED("ds_kernel_cuda", &d->cuda);
    int forms = !!d->cuda.image + !!d->cuda.image_pieces + !!d->cuda.native_fn;
    DS__REQUIRE(d->cpu_fn || forms, "kernel %s has neither a CPU nor a CUDA form", d->name);
    DS__REQUIRE(d->args_size <= DS_KERNEL_MAX_ARGS,
                "kernel %s: %zu bytes of arguments are more than %d", d->name, d->args_size,
                DS_KERNEL_MAX_ARGS);
    DS__REQUIRE(d->params || !d->param_count, "kernel %s: params is NULL", d->name);
    DS__REQUIRE(d->param_count <= DS_KERNEL_MAX_PARAMS,
                "kernel %s: %zu parameters are more than %d", d->name, d->param_count,
                DS_KERNEL_MAX_PARAMS);
    DS__REQUIRE(forms <= 1,
                "kernel %s has %d of image, image_pieces and native_fn; at most one is allowed",
                d->name, forms);
    DS__REQUIRE(!d->cuda.image_pieces || !d->cuda.image_size,
                "kernel %s: image_size is %zu; with image_pieces 0 is allowed", d->name,
                d->cuda.image_size);
    DS__REQUIRE(!forms || d->cuda.native_fn || d->cuda.entry,
                "kernel %s: the image needs the name of the function", d->name);
    DS__REQUIRE(d->cuda.block <= DS__MAX_BLOCK_THREADS,
                "kernel %s: a block of %u threads; at most %d are allowed", d->name, d->cuda.block,
                DS__MAX_BLOCK_THREADS);
    DS__REQUIRE(d->cuda.shared_bytes <= DS__MAX_SHARED_BYTES,
                "kernel %s: %u bytes of shared memory; at most %d are allowed", d->name,
                d->cuda.shared_bytes, DS__MAX_SHARED_BYTES);
    for (size_t i = 0; i < d->param_count; i++) {
        ds_result r = ds__kernel_check_param(d, i);
        if (r < 0)
            return r;
    }
    return ds__kernel_check_extents(d);
}

/* Copies the parameters and extents of a description. Returns 0 if there is no memory. */
static int ds__kernel_copy_params(ds__kernel *k, const ds_kernel_desc *desc) {
    size_t count = desc->param_count;
    if (count == 0)
        return 1;
    k->params = ds__host_alloc(count * sizeof *k->params);
    if (!k->params)
        return 0;
    for (size_t i = 0; i < count; i++) {
        k->params[i] = desc->params[i];
        /* it is not in the struct */
        if (desc->params[i].kind >= DS_PARAM_FIRST)
            k->params[i].offset = 0;
    }

    if (!desc->extents)
        return 1;
    k->extents = ds__host_alloc(count * sizeof *k->extents);
    if (!k->extents)
        return 0;
    memcpy(k->extents, desc->extents, count * sizeof *k->extents);
    return 1;
}

/* Creates a kernel from a description that was checked. */
static ds_result ds__kernel_add(const ds_kernel_desc *desc, ds_kernel *out) {
    ds__kernel *k = ds__table_add(&ds__g.kernels);
    if (!k)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for kernel %s", desc->name);
    k->cpu_fn = desc->cpu_fn;
    k->bytes_fn = desc->bytes_fn;
    k->extents_fn = desc->extents_fn;
    k->args_size = desc->args_size;
    k->grain = desc->grain;
    k->name = ds__copy_text(desc->name, 255);
    k->param_count = desc->param_count;
    k->cuda = desc->cuda;
    k->made = ds__tls.site;
    if (!ds__kernel_copy_params(k, desc) || !k->name) {
        ds__table_invalidate(&ds__g.kernels, k);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for kernel %s", desc->name);
    }
    out->id = ds__handle_of(&k->slot);
    return DS_OK;
}

/* Creates a kernel of the library. Its table is not compared with the image: behind the function's
   parameters it may name pointers inside of a struct, for ds_graph_exec_replace. */
DS__SEAM static ds_result ds__kernel_create(const ds_kernel_desc *desc, ds_kernel *out) {
    out->id = 0;
    ds_result r = ds__kernel_check(desc);
    return r < 0 ? r : ds__kernel_add(desc, out);
}

DSDEF ds_result(ds_kernel_create)(const ds_kernel_desc *desc, ds_kernel *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_kernel_create");
    DS__REQUIRE(out, "out is NULL");
    ds__retired_reclaim();
    ds_result r = ds__kernel_check(desc);
    if (r == DS_OK)
        r = ds__kernel_table_check(desc);
    return r < 0 ? r : ds__kernel_add(desc, out);
}

DSDEF ds_result(ds_kernel_load)(ds_kernel kernel, ds_device device) {
    DS__ENTER("ds_kernel_load");
    DS__RESOLVE(device);
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed or never existed");
    ds_result r = ds__driver_of(device)->kernel_load(device.index, k);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

static ds_result ds__kernel_release(uint64_t id) {
    return (ds_kernel_destroy)((ds_kernel){ id });
}

DSDEF ds_result(ds_kernel_destroy)(ds_kernel kernel) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_object("ds_kernel_destroy", &ds__g.kernels, kernel.id,
                                   ds__kernel_release);
    DS__ENTER("ds_kernel_destroy");
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed or never existed");
    int killed = ds__table_invalidate(&ds__g.kernels, k);
    ds__unpin(&ds__g.kernels, k);
    ds__retired_reclaim();
    return killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed already");
}

/* Enqueues a kernel; no items: only checks. */
static ds_result ds__kernel_launch(ds_kernel kernel, size_t items, const ds_grid *grid,
                                   const void *args, size_t args_size, ds_stream stream) {
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__kernel *k = ds__pin_inline(&ds__g.kernels, kernel.id);
    ds_result r = DS_OK;
    if (DS__UNLIKELY(!k)) {
        r = ds__fail(DS_ERR_INVALID_HANDLE, kernel.id ? "the kernel was destroyed or never existed"
                                                      : "no kernel was given (the handle is zero)");
    } else if (DS__UNLIKELY(args_size != k->args_size || (args_size && !args))) {
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "kernel %s has %zu bytes of arguments; the call passes %zu at %p", k->name,
                     k->args_size, args_size, args);
    } else if (items) {
        ds__op op = ds__op_init(DS__OP_KERNEL);
        op.u.kernel.kernel = k;
        op.u.kernel.items = items;
        op.u.kernel.args_size = args_size;
        op.u.kernel.args = args;
        ds__op_set_grid(&op, grid);
        r = ds__stream_submit(s, &op);
    }
    if (DS__LIKELY(k != NULL))
        ds__unpin_inline(&ds__g.kernels, k);
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

DSDEF ds_result(ds_kernel_launch)(ds_kernel kernel, size_t items, const void *args,
                                  size_t args_size, ds_stream stream) {
    ds_result r = ds__api_enter_inline("ds_kernel_launch");
    return DS__UNLIKELY(r < 0) ? r
                               : ds__kernel_launch(kernel, items, NULL, args, args_size, stream);
}

/* Refuses clusters and flags that no GPU accepts (CUDA C++ Programming Guide, "Thread Block
   Clusters": 8 blocks are portable). g: a whole grid. */
static ds_result ds__grid_check_attributes(const ds_grid *g) {
    const unsigned *c = g->cluster;
    const unsigned known = DS_GRID_COOPERATIVE | DS_GRID_OVERLAP;
    DS__REQUIRE(!(g->flags & ~known), "the flags of the grid are %#x; DS_GRID_* are allowed",
                g->flags);
    DS__REQUIRE(c[0] || (!c[1] && !c[2]),
                "cluster.x is 0, but cluster.y is %u and cluster.z %u; without clusters all are 0",
                c[1], c[2]);
    if (!c[0])
        return DS_OK;
    int fits = c[0] <= DS__MAX_CLUSTER && c[1] <= DS__MAX_CLUSTER && c[2] <= DS__MAX_CLUSTER;
    DS__REQUIRE(fits && c[0] * c[1] * c[2] <= DS__MAX_CLUSTER,
                "a cluster of %u x %u x %u blocks; at most %d are allowed", c[0], c[1], c[2],
                DS__MAX_CLUSTER);
    for (int i = 0; i < 3; i++)
        DS__REQUIRE(g->grid[i] % c[i] == 0,
                    "grid.%c is %u and cluster.%c %u; the cluster must divide the grid", "xyz"[i],
                    g -> grid[i], "xyz"[i], c[i]);
    return DS_OK;
}

/* Returns the number of threads of a grid. Refuses a grid that no GPU accepts. */
static ds_result ds__grid_items(const ds_grid *grid, size_t *out) {
    ds_grid g = ds__grid_whole(grid);
    const unsigned *n = g.grid;
    const unsigned *b = g.block;
    DS__REQUIRE(n[0] >= 1 && n[0] <= INT_MAX, "grid.x is %u; 1 to %d is allowed", n[0], INT_MAX);
    DS__REQUIRE(n[1] <= DS__MAX_GRID_YZ && n[2] <= DS__MAX_GRID_YZ,
                "grid.y is %u and grid.z %u; at most %d is allowed", n[1], n[2], DS__MAX_GRID_YZ);
    DS__REQUIRE(b[2] <= DS__MAX_BLOCK_Z, "block.z is %u; at most %d is allowed", b[2],
                DS__MAX_BLOCK_Z);
    uint64_t face = (uint64_t)b[0] * b[1];
    DS__REQUIRE(face <= DS__MAX_BLOCK_THREADS && face * b[2] <= DS__MAX_BLOCK_THREADS,
                "a block of %u x %u x %u threads; at most %d are allowed", b[0], b[1], b[2],
                DS__MAX_BLOCK_THREADS);
    DS__REQUIRE(g.shared_bytes <= DS__MAX_SHARED_BYTES,
                "%u bytes of shared memory; at most %d are allowed", g.shared_bytes,
                DS__MAX_SHARED_BYTES);
    DS__REQUIRE(!__builtin_mul_overflow((size_t)(face * b[2]) * n[0] * n[1], (size_t)n[2], out),
                "the number of threads in the grid exceeds size_t");
    return ds__grid_check_attributes(&g);
}

DSDEF ds_result(ds_kernel_launch_grid)(ds_kernel kernel, const ds_grid *grid, const void *args,
                                       size_t args_size, ds_stream stream) {
    DS__ENTER("ds_kernel_launch_grid");
    DS__REQUIRE(grid, "grid is NULL");
    size_t items = 0;
    ds_result r = ds__grid_items(grid, &items);
    if (DS__LIKELY(r == DS_OK))
        return ds__kernel_launch(kernel, items, grid, args, args_size, stream);
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (k) {
        r = ds__fail_append(r, " (kernel %s)", k->name);
        ds__unpin(&ds__g.kernels, k);
    }
    return r;
}

#endif
