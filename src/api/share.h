/* api/share.h - blocks shared between processes.

   Declares the functions that export a block to other processes, import one, and close the
   import. */
#ifndef DS__API_SHARE_H
#define DS__API_SHARE_H

#include "stream.h"

/* ---- sharing between processes --------------------------------------------------------------- */

/** Handle of a block for other processes: bytes that can be sent to them. */
typedef struct ds_ipc_mem_handle {
    unsigned char bytes[256]; /**< opaque; read by ds_mem_import only */
} ds_ipc_mem_handle;

/** Writes the handle by which other processes import the block around `ptr` (any address inside).
    May be called repeatedly. Work enqueued on the block's stream before the call is ordered before
    the importer's work. Keep the block until a process has imported it: the free of a block without
    importers invalidates the handle. Memory of an imported block is reused only after all importers
    have closed it or ended; the free does not wait. Does not block, except for the block's stream
    if 1,000 blocks are already exported. DS_ERR_INVALID_VALUE: the block's pool is not shareable
    (ds_pool_desc), or the block was imported. DS_ERR_LIMIT_EXCEEDED: 16,384 blocks and segments are
    exported. */
DSDEF DS_MUST_USE ds_result ds_mem_export(const void *ptr, ds_ipc_mem_handle *out);
/** Imports a block of another process on a device of the same type. *out is the address in this
    process that corresponds to the exported `ptr`. Later work on `stream`, a stream of that device,
    waits for the work before the export. Other streams must be ordered after `stream`. Repeated
    imports of a block share one mapping. Each import needs a ds_mem_import_close.

    Errors: DS_ERR_LIMIT_EXCEEDED (62 processes already share the block), DS_ERR_PEER_DIED (the
    exporter has ended), DS_ERR_INVALID_HANDLE (the exporter has freed the block),
    DS_ERR_ILLEGAL_STATE (exported by this process), DS_ERR_CROSS_DRIVER (memory of another device
    type), DS_ERR_DEVICE_MISMATCH (stream of another device), DS_ERR_CAPTURE_UNSUPPORTED (the stream
    captures), DS_ERR_UNSUPPORTED (handle of a newer devstream). */
DSDEF DS_MUST_USE ds_result ds_mem_import(ds_device device, const ds_ipc_mem_handle *handle,
                                          ds_stream stream, void **out);
/** Closes one import of the block that contains `ptr`, after the last use on the stream (of any
    device of the driver). The exporter may reuse the memory after the work enqueued on the stream
    so far. Does not block, except for a failed stream. Errors: DS_ERR_INVALID_VALUE (not an
    imported block), DS_ERR_CROSS_DRIVER (stream of another driver), DS_ERR_CAPTURE_UNSUPPORTED (the
    stream captures). */
DSDEF DS_MUST_USE ds_result ds_mem_import_close(void *ptr, ds_stream stream);
/** Returns freed blocks without importers to their pools, and closes unused imported segments.
    Exports, imports, closes, frees and memory shortages do the same implicitly. May be called at
    any time. */
DSDEF DS_MUST_USE ds_result ds_mem_ipc_collect(void);

#endif
