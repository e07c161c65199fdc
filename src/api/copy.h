/* api/copy.h - copies and fills.

   Declares the functions that enqueue copies and fills of memory on a stream.

   Threads: any. A copy or fill of pageable memory may block the calling thread. */
#ifndef DS__API_COPY_H
#define DS__API_COPY_H

#include "stream.h"

/* ---- copies and fills ------------------------------------------------------------------------ */

/** Copies size bytes in stream order between any two ranges of host or device memory. The devices
    may differ, also in their driver; the stream may belong to either. Copies between devices are
    direct if the devices can access each other, else staged through host memory. Ranges must not
    overlap. size 0 does nothing.

    A copy of pageable host memory may block: on CPU devices, and on CUDA for a copy to the host,
    until the copy is complete. On CUDA, a copy from pageable memory returns when the source may be
    changed. Other copies do not block; both ranges must stay valid until the stream has passed the
    copy. On CPU devices, copies of up to 16 KiB on an idle stream may complete before the call
    returns.

    On CUDA, a copy within pinned memory, or between a GPU and a CPU device, runs as a host
    function. The rules of ds_stream_launch_host_func for delays apply. Memory allocated by cudart
    or other libraries is recognised. DS_ERR_INVALID_VALUE: a range exceeds an allocation of
    ds_device_alloc or ds_pinned_alloc. */
DSDEF DS_MUST_USE ds_result ds_copy(void *dst, const void *src, size_t size, ds_stream stream);

enum {
    /** the pageable memory remains valid at its address as long as a graph that has captured the
        copy */
    DS_COPY_HOST_STABLE = 1
};

/** Copies as ds_copy does, with flags (DS_COPY_HOST_STABLE or 0). */
DSDEF DS_MUST_USE ds_result ds_copy_with(void *dst, const void *src, size_t size, unsigned flags,
                                         ds_stream stream);
/** Copies height rows of width bytes as ds_copy does. The pitches are the distances between rows in
    bytes, at least width. */
DSDEF DS_MUST_USE ds_result ds_copy_2d(void *dst, size_t dst_pitch, const void *src,
                                       size_t src_pitch, size_t width, size_t height,
                                       ds_stream stream);
/** Copies as ds_copy does between two named devices. DS_ERR_DEVICE_MISMATCH: a pointer is not on
    its named device. */
DSDEF DS_MUST_USE ds_result ds_copy_peer(void *dst, ds_device dst_device, const void *src,
                                         ds_device src_device, size_t size, ds_stream stream);
/** Enqueues `count` copies as ds_copy does: copy i moves sizes[i] bytes from src[i] to dst[i]. They
    may run in any order among themselves, so no dst may overlap another range of the batch; work
    that is enqueued later comes after all of them. A size of 0 is allowed, and so is count 0. The
    three arrays may be changed when the call returns.

    All copies are checked before the first one is enqueued; an error names the copy. If a driver
    refuses a copy after that, earlier ones may be enqueued.

    CUDA 12.8 or newer: one call of cudart (cudaMemcpyBatchAsync), if all copies are between the
    stream's device, or this device and pinned memory, no size is 0, the stream is not the legacy
    one, and it does not capture. Otherwise, and on CPU devices, single copies. In a capture each
    copy is a node. */
DSDEF DS_MUST_USE ds_result ds_copy_batch(void *const *dst, const void *const *src,
                                          const size_t *sizes, size_t count, ds_stream stream);
/** Sets count elements of value_size (1, 2 or 4) bytes to the low bytes of value, in stream order.
    ptr must be a multiple of value_size. Does not block for device or pinned memory; blocks for
    pageable memory. On CUDA, a fill of host memory runs as a host function (see
    ds_stream_launch_host_func for delays). DS_ERR_CROSS_DRIVER: device memory of another driver
    than the stream's. */
DSDEF DS_MUST_USE ds_result ds_fill(void *ptr, uint32_t value, size_t value_size, size_t count,
                                    ds_stream stream);
/** Fills height rows of width elements as ds_fill does. pitch is the distance between rows in
    bytes, a multiple of value_size. */
DSDEF DS_MUST_USE ds_result ds_fill_2d(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                                       size_t width, size_t height, ds_stream stream);
/** Copies size bytes as ds_copy does and returns when the copy is complete (blocks), as cudaMemcpy
    does. The copy runs on the default stream of the thread's current device
    (ds_stream_get_default), after the earlier work of the device's blocking streams. If an operand
    is on another device, the copy also runs after the earlier work of that device's default stream.
    Non-blocking streams are not ordered with the copy: wait for them first. During a capture the
    default stream is refused as in other calls. size 0 does nothing. */
DSDEF DS_MUST_USE ds_result ds_copy_sync(void *dst, const void *src, size_t size);
/** Fills as ds_fill does, in the order of ds_copy_sync, and returns when the fill is complete
    (blocks). cudaMemset counts bytes: its value_size is 1, and it does not block for device
    memory. */
DSDEF DS_MUST_USE ds_result ds_fill_sync(void *ptr, uint32_t value, size_t value_size,
                                         size_t count);

#endif
