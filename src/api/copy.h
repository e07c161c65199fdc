/* api/copy.h - copies and fills.

   Declares the functions that enqueue copies and fills of memory on a stream.

   Threads: any. A copy or fill of pageable memory may block the calling thread. */
#ifndef DS__API_COPY_H
#define DS__API_COPY_H

#include "stream.h"

/* ---- copies and fills ------------------------------------------------------------------------ */

/** Copies size bytes, in stream order, between any memory: host and device, within and between
    devices (directly where the devices can reach each other, else staged through host memory),
    also between a GPU and a CPU device, on a stream of either. Ranges must not overlap. A copy
    that touches pageable host memory may block until it is done: on CPU devices it does; on CUDA
    one to the host does, one from the host returns when the source may be changed. Others return
    at once, and both ranges must stay valid until the stream has passed the copy. On CUDA a copy
    between pinned memory, or between a GPU and a CPU device, is a host function as to what may
    hold it up (ds_stream_launch_host_func). On CPU devices up to 16 KiB on an idle stream may be
    done before the call returns. Memory that cudart or other libraries allocated is taken as what
    it is. A range that leaves an allocation of ds_device_alloc or ds_pinned_alloc is
    DS_ERR_INVALID_VALUE. size 0 does nothing. */
DSDEF DS_MUST_USE ds_result ds_copy(void *dst, const void *src, size_t size, ds_stream stream);

enum {
    /** pageable memory stays valid, at its place, as long as a graph that has captured the copy */
    DS_COPY_HOST_STABLE = 1
};

/** As ds_copy, with flags (DS_COPY_HOST_STABLE or 0). */
DSDEF DS_MUST_USE ds_result ds_copy_with(void *dst, const void *src, size_t size, unsigned flags,
                                         ds_stream stream);
/** Copies height rows of width bytes; pitches are the distances of rows in bytes and at least
    width. Else as ds_copy. */
DSDEF DS_MUST_USE ds_result ds_copy_2d(void *dst, size_t dst_pitch, const void *src,
                                       size_t src_pitch, size_t width, size_t height,
                                       ds_stream stream);
/** As ds_copy, and says between which devices; a pointer that is not on the device named is
    DS_ERR_DEVICE_MISMATCH. */
DSDEF DS_MUST_USE ds_result ds_copy_peer(void *dst, ds_device dst_device, const void *src,
                                         ds_device src_device, size_t size, ds_stream stream);
/** Sets count elements of value_size (1, 2 or 4) bytes to the low bytes of value, in stream
    order. Device or pinned memory: returns at once; pageable memory: blocks. ptr must be a
    multiple of value_size. Device memory must belong to the driver of the stream: else
    DS_ERR_CROSS_DRIVER. On CUDA a fill of host memory is a host function as to what may hold it
    up. */
DSDEF DS_MUST_USE ds_result ds_fill(void *ptr, uint32_t value, size_t value_size, size_t count,
                                    ds_stream stream);
/** The same for height rows of width elements; pitch is the distance of rows in bytes, a
    multiple of value_size. */
DSDEF DS_MUST_USE ds_result ds_fill_2d(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                                       size_t width, size_t height, ds_stream stream);

#endif
