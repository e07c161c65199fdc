/* api/dlpack.h - tensors exchanged through DLPack.

   Declares DLPack's managed tensors, in both forms, and the functions that import and export
   them.

   Threads: the deleter of an exported tensor may be called by any thread, also inside a host
   function and after ds_shutdown. */
#ifndef DS__API_DLPACK_H
#define DS__API_DLPACK_H

#include "tensor.h"

/* ---- exchange with other libraries ----------------------------------------------------------- */

/** DLPack's DLManagedTensor (capsule "dltensor"): a tensor with the function that ends it. */
typedef struct ds_managed_tensor {
    ds_tensor tensor;                                /**< what it is */
    void *manager_ctx;                               /**< the maker's */
    void (*deleter)(struct ds_managed_tensor *self); /**< ends it; may be NULL */
} ds_managed_tensor;

/** DLPack's DLPackVersion. */
typedef struct ds_dlpack_version {
    uint32_t major; /**< another one is another layout */
    uint32_t minor; /**< adds only */
} ds_dlpack_version;

/** What devstream writes: 1.1. */
#define DS_DLPACK_MAJOR 1
/** Its second number. */
#define DS_DLPACK_MINOR 1

/** Flags of ds_managed_tensor_versioned. */
enum {
    DS_DLPACK_READ_ONLY = 1,     /**< must not be written to */
    DS_DLPACK_IS_COPIED = 2,     /**< it was copied for the taker */
    DS_DLPACK_SUBBYTE_PADDED = 4 /**< elements of less than a byte have one each */
};

/** DLPack's DLManagedTensorVersioned (capsule "dltensor_versioned"). */
typedef struct ds_managed_tensor_versioned {
    ds_dlpack_version version;                                 /**< of what follows */
    void *manager_ctx;                                         /**< the maker's */
    void (*deleter)(struct ds_managed_tensor_versioned *self); /**< ends it; may be NULL */
    uint64_t flags;                                            /**< DS_DLPACK_* */
    ds_tensor tensor;                                          /**< what it is */
} ds_managed_tensor_versioned;

/** Takes over a managed tensor: its deleter is called once, when no object shows its memory any
    more. When the call fails it is still the caller's. The caller's stream must be ordered
    behind the maker's work, which is the business of the maker's library (in Python the stream
    argument of __dlpack__). */
DSDEF DS_MUST_USE ds_result ds_tensor_import(ds_managed_tensor *managed, ds_tensor **out);
/** The same of a versioned one. DS_ERR_UNSUPPORTED: a major version other than 1, or elements of
    less than a byte that are padded. */
DSDEF DS_MUST_USE ds_result ds_tensor_import_versioned(ds_managed_tensor_versioned *managed,
                                                       ds_tensor **out);
/** Makes a managed tensor that shows an object's memory and keeps it until its deleter is
    called; that may be done by any thread, also inside a host function, and after ds_shutdown,
    which ends the memory. data is the first element and byte_offset 0, as some libraries read it
    so. It is made with malloc. DS_ERR_UNSUPPORTED for read-only tensors, of which this form
    cannot tell. */
DSDEF DS_MUST_USE ds_result ds_tensor_export(const ds_tensor *tensor, ds_managed_tensor **out);
/** The same in the versioned form. */
DSDEF DS_MUST_USE ds_result ds_tensor_export_versioned(const ds_tensor *tensor,
                                                       ds_managed_tensor_versioned **out);

#endif
