/* tensor/dlpack.h - exchange of tensors by DLPack.

   Imports managed tensors of other libraries and exports objects as managed tensors, in the
   plain and the versioned form. Also frees all tensors that are left at shutdown
   (ds__tensors_deinit).

   Invariants: if an import fails, the managed tensor still belongs to the caller. An exported
   managed tensor (ds__handed) holds one use of the storage until its deleter is called. It is
   allocated with malloc and has copies of shape and strides, so it remains valid after
   ds_shutdown. A read-only tensor is exported in the versioned form only.
   Locks: the functions of tensor/tensor.h take ds__c.lock. ds__tensors_deinit takes no lock for
   the table; ds_shutdown calls it with ds__g.mutex held, and foreign deleters run inside.
   Threads: imports and exports run on threads of the caller. The deleters of exported tensors
   may run on any thread, also inside a host function, and do not change ds_error_get_last. */
#ifndef DS__TENSOR_DLPACK_H
#define DS__TENSOR_DLPACK_H

#include "../core/internal.h"
#include "types.h"
#include "dims.h"
#include "storage.h"
#include "tensor.h"

static ds_result ds__dlpack_import(const ds_tensor *t, int kind, void *managed, unsigned flags,
                                   ds_tensor **out) {
    ds__dims d;
    ds_result r = ds__tensor_read(t, ds__name_of("the managed tensor", DS__NO_LIST), &d);
    ds__storage *storage = r == DS_OK ? ds__storage_create(kind, managed, NULL) : NULL;
    if (!storage)
        return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
    /* A second user, so that a failure of ds__tensor_create does not invoke the caller's deleter.
       */
    atomic_fetch_add(&storage->users, 1);
    r = ds__tensor_create(&d, storage, flags, out);
    if (r < 0)
        free(storage);
    else
        DS_IGNORE(ds__storage_unref(storage));
    return r;
}

DSDEF ds_result(ds_tensor_import)(ds_managed_tensor *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import");
    DS__REQUIRE(managed, "managed is NULL");
    return ds__dlpack_import(&managed->tensor, DS__OF_MANAGED, managed, 0, out);
}

DSDEF ds_result(ds_tensor_import_versioned)(ds_managed_tensor_versioned *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import_versioned");
    DS__REQUIRE(managed, "managed is NULL");
    if (managed->version.major != DS_DLPACK_MAJOR)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the managed tensor has DLPack version %u.%u; %d.x is supported",
                        managed->version.major, managed->version.minor, DS_DLPACK_MAJOR);
    if (managed->flags & DS_DLPACK_SUBBYTE_PADDED && managed->tensor.dtype.bits % 8)
        return ds__fail(DS_ERR_UNSUPPORTED, "the managed tensor has padded elements of %d bits",
                        managed->tensor.dtype.bits);
    return ds__dlpack_import(&managed->tensor, DS__OF_VERSIONED, managed,
                             managed->flags & DS_DLPACK_READ_ONLY ? DS_TENSOR_READ_ONLY : 0, out);
}

typedef struct ds__handed {
    union {
        ds_managed_tensor plain;
        ds_managed_tensor_versioned versioned;
    } u;

    ds__storage *storage;
    int64_t dims[];
} ds__handed;

static void ds__handed_end(ds__handed *e) {
    ds__tls.mute++; /* the caller of a deleter does not expect an error of devstream */
    DS_IGNORE(ds__storage_unref(e->storage));
    ds__tls.mute--;
    free(e);
}

static void ds__handed_destroy(ds_managed_tensor *self) {
    ds__handed_end(self->manager_ctx);
}

static void ds__handed_delete_versioned(ds_managed_tensor_versioned *self) {
    ds__handed_end(self->manager_ctx);
}

/* Allocates a managed tensor, which holds a use of the tensor's storage, and copies the description
   to it. */
static ds_result ds__handed_create(const ds_tensor *tensor, int versioned, ds__handed **out,
                                   unsigned *out_flags) {
    DS__REQUIRE(tensor, "the tensor is NULL");
    ds__storage *storage;
    int known = ds__tensor_share(tensor, &storage, out_flags);
    DS__REQUIRE(known, "%p is not a tensor of devstream; create one by ds_tensor_wrap",
                (const void *)tensor);
    if (!versioned && *out_flags & DS_TENSOR_READ_ONLY) {
        DS_IGNORE(ds__storage_unref(storage));
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the tensor is read-only; use ds_tensor_export_versioned");
    }
    size_t n = (size_t)tensor->ndim;
    ds__handed *e = calloc(1, sizeof *e + 2 * n * sizeof(int64_t));
    if (!e) {
        DS_IGNORE(ds__storage_unref(storage));
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a managed tensor");
    }
    ds_tensor *t = versioned ? &e->u.versioned.tensor : &e->u.plain.tensor;
    *t = *tensor;
    if (n)
        memcpy(e->dims, tensor->shape, n * sizeof(int64_t));
    if (n)
        memcpy(e->dims + n, tensor->strides, n * sizeof(int64_t));
    t->shape = e->dims;
    t->strides = e->dims + n;
    e->storage = storage;
    *out = e;
    return DS_OK;
}

DSDEF ds_result(ds_tensor_export)(const ds_tensor *tensor, ds_managed_tensor **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export");
    ds_result r = ds__handed_create(tensor, 0, &e, &flags);
    if (r < 0)
        return r;
    e->u.plain.manager_ctx = e;
    e->u.plain.deleter = ds__handed_destroy;
    *out = &e->u.plain;
    return DS_OK;
}

DSDEF ds_result(ds_tensor_export_versioned)(const ds_tensor *tensor,
                                            ds_managed_tensor_versioned **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export_versioned");
    ds_result r = ds__handed_create(tensor, 1, &e, &flags);
    if (r < 0)
        return r;
    e->u.versioned.version = (ds_dlpack_version){ DS_DLPACK_MAJOR, DS_DLPACK_MINOR };
    e->u.versioned.manager_ctx = e;
    e->u.versioned.deleter = ds__handed_delete_versioned;
    e->u.versioned.flags = flags & DS_TENSOR_READ_ONLY ? DS_DLPACK_READ_ONLY : 0;
    *out = &e->u.versioned;
    return DS_OK;
}

/* Called by ds_shutdown. Warns of tensors that were not freed. Foreign memory is released now; the
   allocator frees its own memory later. */
static void ds__tensors_deinit(void) {
    for (size_t i = 0; i < DS__TENSOR_BUCKETS; i++)
        for (ds__tensor *o = ds__c.bucket[i], *next; o; o = next) {
            next = o->next;
            ds__log_warn("tensor created at %s:%d was not freed", o->made.file ? o->made.file : "?",
                         o->made.line);
            /* an epoch that has ended: the drop below does not free the memory */
            if (o->storage && o->storage->kind <= DS__OF_PINNED)
                o->storage->epoch--;
            ds__tls.in_callback++;
            DS_IGNORE(ds__storage_unref(o->storage));
            ds__tls.in_callback--;
            ds__host_free(o);
        }
    memset(ds__c.bucket, 0, sizeof ds__c.bucket);
    atomic_store(&ds__c.ready, 0);
}

#endif
