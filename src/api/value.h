/* api/value.h - waits for values in memory, and writes of values.

   Declares the operations by which streams wait for a word of memory and write one, as
   cuStreamWaitValue32, cuStreamWriteValue32 and cuStreamBatchMemOp do.

   Threads: any. */
#ifndef DS__API_VALUE_H
#define DS__API_VALUE_H

#include "stream.h"

/* ---- values in memory ------------------------------------------------------------------------ */

/* A stream can wait until a word of memory has some value, and can write a word. The word is memory
   of the stream's device, or pinned memory (ds_pinned_alloc, ds_pinned_register), and a multiple of
   its size. The host, kernels, copies and other streams can write a word for which a stream waits,
   and read a word that a stream writes. The host and kernels must use atomic operations; a copy or
   fill of just the word is one.

   A write comes after all earlier work of the stream, whose effects are visible to whoever reads
   the value. A wait delays only its own stream, and occupies no thread and no multiprocessor. A
   wait for a value that never comes blocks ds_stream_synchronize, ds_device_synchronize and
   ds_shutdown forever.

   On a CPU device, writes of streams end waits at once. Other writes are noticed by polling: within
   microseconds if the stream has waited for less than 40 us and a worker is idle, else at intervals
   that grow from 20 us to 1 ms. */

/** What an operation does with its word. The conditions are those of CUstreamWaitValue_flags. */
typedef enum ds_value_kind {
    DS_VALUE_WRITE = 0, /**< writes the value */
    /** waits until the word minus the value is at least 0 as a signed number, so that counters may
        overflow */
    DS_VALUE_WAIT_GEQ = 1,
    DS_VALUE_WAIT_EQ = 2,  /**< waits until the word is the value */
    DS_VALUE_WAIT_AND = 3, /**< waits until the word and the value have a bit in common */
    DS_VALUE_WAIT_NOR = 4  /**< waits until a bit is 0 in the word and in the value */
} ds_value_kind;

/** An operation on a word of memory. */
typedef struct ds_value_op {
    void *address;      /**< the word; a wait only reads it */
    uint64_t value;     /**< with size 4, at most UINT32_MAX */
    ds_value_kind kind; /**< write or condition */
    unsigned size;      /**< size of the word in bytes: 4 or 8 */
} ds_value_op;

enum {
    DS_VALUE_BATCH_MAX = 255 /**< operations of a batch; the limit of CUDA's driver (docs/gpu) */
};

/** Makes the stream wait, in stream order, until a word of 4 bytes meets the condition. condition:
    DS_VALUE_WAIT_*. Never blocks the caller. DS_ERR_INVALID_VALUE: pageable memory, memory of
    another device, an address that is not a multiple of 4, or no condition. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_value32(ds_stream stream, const void *address,
                                                   uint32_t value, ds_value_kind condition);
/** Makes the stream wait for a word of 8 bytes as ds_stream_wait_value32 does for 4 bytes. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_value64(ds_stream stream, const void *address,
                                                   uint64_t value, ds_value_kind condition);
/** Writes a word of 4 bytes in stream order. Errors are those of ds_stream_wait_value32. */
DSDEF DS_MUST_USE ds_result ds_stream_write_value32(ds_stream stream, void *address,
                                                    uint32_t value);
/** Writes a word of 8 bytes in stream order. */
DSDEF DS_MUST_USE ds_result ds_stream_write_value64(ds_stream stream, void *address,
                                                    uint64_t value);
/** Enqueues `count` writes and waits, at most DS_VALUE_BATCH_MAX, which run in the order of the
    list, as one operation of the stream: in a capture, one node. On failure, nothing is enqueued.
    count 0 does nothing. */
DSDEF DS_MUST_USE ds_result ds_stream_batch_values(ds_stream stream, const ds_value_op *ops,
                                                   size_t count);

#endif
