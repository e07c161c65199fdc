/* tensor/storage.h - storages, the memory that tensors share.

   Creates storages (ds__storage_create) and drops uses of them (ds__storage_unref). The last drop
   frees memory of the allocator, or invokes the release function or deleter of foreign memory.

   Invariants: memory of the allocator is freed only while devstream runs in the storage's
   epoch; otherwise ds_shutdown has freed it. A release function or deleter is invoked once, on
   the thread that drops the last use, also after ds_shutdown.
   Locks: none. Memory is freed and foreign functions are invoked without a lock.
   Threads: ds__storage_unref may run on any thread, also inside a host function, where the
   allocator postpones the free. */
#ifndef DS__TENSOR_STORAGE_H
#define DS__TENSOR_STORAGE_H

#include "../api/dlpack.h"
#include "../alloc/internal.h"
#include "types.h"

/* Returns 1 if the memory of this epoch is still valid: no ds_shutdown has ended it. */
static int ds__of_now(uint32_t epoch) {
    return atomic_load_explicit(&ds__g.state, memory_order_acquire) == DS__READY &&
           epoch == ds__g.epoch;
}

static ds__storage *ds__storage_create(int kind, void *ptr, void (*release_fn)(void *)) {
    ds__storage *s = calloc(1, sizeof *s);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a tensor");
        return NULL;
    }
    atomic_store(&s->users, 1);
    s->kind = kind;
    s->epoch = ds__g.epoch;
    s->ptr = ptr;
    s->release_fn = release_fn;
    return s;
}

/* Frees a storage's memory of the allocator, device or pinned memory. */
static ds_result ds__storage_free_memory(int kind, void *ptr) {
    ds_result r;
    if (kind == DS__OF_ALLOCATOR)
        DS__KEEPING(r, (ds_mem_free)(ptr));
    else
        DS__KEEPING(r, (ds_mem_pinned_free)(ptr));
    return r;
}

/* Invokes the deleter or release function of foreign memory. */
static void ds__storage_release(const ds__storage *s) {
    ds_managed_tensor *m = s->kind == DS__OF_MANAGED ? s->ptr : NULL;
    ds_managed_tensor_versioned *v = s->kind == DS__OF_VERSIONED ? s->ptr : NULL;
    if (m && m->deleter)
        m->deleter(m);
    if (v && v->deleter)
        v->deleter(v);
    if (s->release_fn)
        s->release_fn(s->ptr);
}

/* Removes a user; the last one frees the memory. NULL is allowed. */
static ds_result ds__storage_unref(ds__storage *s) {
    ds_result r = DS_OK;
    if (!s || atomic_fetch_sub(&s->users, 1) != 1)
        return r;
    int now = ds__of_now(s->epoch);
    if (s->kind == DS__OF_ALLOCATOR || s->kind == DS__OF_PINNED) {
        if (now)
            r = ds__storage_free_memory(s->kind, s->ptr);
    } else if (now && !ds__tls.in_callback) {
        ds__outside o = ds__outside_begin();
        ds__storage_release(s);
        ds__outside_end(o);
    } else {
        ds__storage_release(s);
    }
    free(s);
    return r;
}

#endif
