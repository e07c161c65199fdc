/* api/dlpack.h - tensors exchanged through DLPack.

   Declares DLPack's managed tensors, in both forms, and the functions that import and export
   them.

   Threads: the deleter of an exported tensor may be called by any thread, also inside a host
   function and after ds_shutdown. */
#ifndef DS__API_DLPACK_H
#define DS__API_DLPACK_H

#include "tensor.h"

/* ---- exchange with other libraries ----------------------------------------------------------- */

/** DLPack's DLManagedTensor (capsule "dltensor"): a tensor with its deleter. */
typedef struct ds_managed_tensor {
    ds_tensor tensor;                                /**< description of the memory */
    void *manager_ctx;                               /**< context of the producer */
    void (*deleter)(struct ds_managed_tensor *self); /**< releases the tensor; may be NULL */
} ds_managed_tensor;

/** DLPack's DLPackVersion. */
typedef struct ds_dlpack_version {
    uint32_t major; /**< versions with another number have another layout */
    uint32_t minor; /**< versions with another number only add members */
} ds_dlpack_version;

/** DLPack version that devstream writes, 1.1: the major number, */
#define DS_DLPACK_MAJOR 1
/** and the minor number. */
#define DS_DLPACK_MINOR 1

/** Flags of ds_managed_tensor_versioned. */
enum {
    DS_DLPACK_READ_ONLY = 1,     /**< the memory must not be written */
    DS_DLPACK_IS_COPIED = 2,     /**< the memory was copied for the consumer */
    DS_DLPACK_SUBBYTE_PADDED = 4 /**< elements of less than a byte are padded to one byte each */
};

/** DLPack's DLManagedTensorVersioned (capsule "dltensor_versioned"). */
typedef struct ds_managed_tensor_versioned {
    ds_dlpack_version version; /**< version of the members below */
    void *manager_ctx;         /**< context of the producer */
    /** releases the tensor; may be NULL */
    void (*deleter)(struct ds_managed_tensor_versioned *self);
    uint64_t flags;   /**< DS_DLPACK_* */
    ds_tensor tensor; /**< description of the memory */
} ds_managed_tensor_versioned;

/** Imports a managed tensor without a copy. Its deleter is invoked once, after the last object that
    shares the memory is freed. On failure, the caller still owns it. The producer's library must
    order the caller's stream after the producer's work (in Python: the stream argument of
    __dlpack__). */
DSDEF DS_MUST_USE ds_result ds_tensor_import(ds_managed_tensor *managed, ds_tensor **out);
/** Imports a versioned managed tensor, as ds_tensor_import does. DS_ERR_UNSUPPORTED: a major
    version other than 1, or padded elements of less than a byte. */
DSDEF DS_MUST_USE ds_result ds_tensor_import_versioned(ds_managed_tensor_versioned *managed,
                                                       ds_tensor **out);
/** Exports an object as a managed tensor that shares the memory and keeps it alive until its
    deleter is invoked. Any thread may invoke the deleter, also inside a host function and after
    ds_shutdown. ds_shutdown frees the memory itself. data is the first element and byte_offset is
    0, because some libraries ignore byte_offset. Allocated by malloc. DS_ERR_UNSUPPORTED: a
    read-only tensor, since this form has no such flag. */
DSDEF DS_MUST_USE ds_result ds_tensor_export(const ds_tensor *tensor, ds_managed_tensor **out);
/** Exports an object, as ds_tensor_export does, in the versioned form. Supports read-only
    tensors. */
DSDEF DS_MUST_USE ds_result ds_tensor_export_versioned(const ds_tensor *tensor,
                                                       ds_managed_tensor_versioned **out);

#endif
