/* api/share.h - blocks shared between processes.

   Declares the functions that export a block to other processes, import one, and close the
   import. */
#ifndef DS__API_SHARE_H
#define DS__API_SHARE_H

#include "stream.h"

/* ---- sharing between processes --------------------------------------------------------------- */

/** A block for other processes: bytes to send to them. */
typedef struct ds_ipc_mem_handle {
    unsigned char bytes[256]; /**< of meaning to ds_mem_import only */
} ds_ipc_mem_handle;

/** Writes the handle with which other processes import the block that holds `ptr`, any address
    inside it; as often as wanted. What was put on the block's stream before the call is ordered
    before what an importer does. Keep the block until someone has imported it: freeing a block
    that nobody has imported makes the handle void; one that others have is kept until they have
    closed it or are gone, however that happens, and nobody waits. Returns at once, but waits for
    the block's stream while 1,000 blocks are exported already. DS_ERR_INVALID_VALUE: not of a
    shareable pool (ds_pool_desc), or imported. DS_ERR_LIMIT_EXCEEDED: 16,384 blocks and segments
    are exported. */
DSDEF DS_MUST_USE ds_result ds_mem_export(const void *ptr, ds_ipc_mem_handle *out);
/** Makes another process's block appear here, on a device of the same kind; `stream`, of that
    device, goes on behind what the exporter had put on the block's stream, and others must be
    ordered after it. *out is what `ptr` was there, under an address of this process. Of a block
    that is imported several times there is one mapping. Each import is to be ended by a
    ds_mem_import_close. At most 62 processes can have a block: DS_ERR_LIMIT_EXCEEDED.
    DS_ERR_PEER_DIED: the exporter has ended. DS_ERR_INVALID_HANDLE: it has freed the block.
    DS_ERR_ILLEGAL_STATE: it is this process. DS_ERR_CROSS_DRIVER: the memory is of devices of
    the other kind. DS_ERR_DEVICE_MISMATCH: the stream is of another device.
    DS_ERR_CAPTURE_UNSUPPORTED: it captures. DS_ERR_UNSUPPORTED: a newer devstream has made the
    handle. */
DSDEF DS_MUST_USE ds_result ds_mem_import(ds_device device, const ds_ipc_mem_handle *handle,
                                          ds_stream stream, void **out);
/** Ends one import of the block that holds `ptr`: the stream, of any device of the driver, has
    been given its last use here, and the exporter may use the memory again when it has come
    there. Returns at once (it waits for a stream that has failed). DS_ERR_INVALID_VALUE: nothing
    that was imported. DS_ERR_CROSS_DRIVER: a stream of the other driver.
    DS_ERR_CAPTURE_UNSUPPORTED: it captures. */
DSDEF DS_MUST_USE ds_result ds_mem_import_close(void *ptr, ds_stream stream);
/** Gives freed blocks that no other process has any more back to their pools, and closes
    segments of others that are not needed. That is done by the way too, when blocks are
    exported, imported, closed or freed and when memory is short. Callable at any time. */
DSDEF DS_MUST_USE ds_result ds_mem_ipc_collect(void);

#endif
