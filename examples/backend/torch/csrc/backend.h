/* backend.h - what all files of the backend use: errors, devices, streams, and
   enqueue(), by which every operator reaches a stream.

   The backend runs on CPU devices of devstream. An operator checks its arguments and allocates its
   results on the caller's thread, then enqueues a closure on the current stream and returns. A
   worker of devstream runs the closure when the stream gets there.

   A closure holds addresses, not tensors. Memory is valid as long as a CUDA kernel's would be: the
   caching allocator gives a freed block to later work of the same stream only, and record_stream
   adds other streams. So closures never own device memory, and freeing stays with the host. */
#pragma once

#include "devstream_alloc.h"
#include "devstream_rng.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <utility>

namespace devstream_torch {

/* ---- errors ---------------------------------------------------------------------------------- */

/** Throws the exception of a negative result, with the sentence of ds_error_get_last(). */
[[noreturn]] void throw_error(ds_result result);

/** Throws if a call has failed; returns other results (DS_OK, DS_NOT_READY). */
inline ds_result check(ds_result result) {
    if (C10_UNLIKELY(result < 0))
        throw_error(result);
    return result;
}

/* ---- devices and streams --------------------------------------------------------------------- */

inline ds_device to_device(c10::DeviceIndex index) {
    return ds_device{ DS_DEVICE_CPU, index };
}

inline c10::Device from_device(ds_device device) {
    return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device.index));
}

inline ds_device current_device() {
    ds_device device;
    check(ds_device_get_current(&device));
    return device;
}

inline ds_stream current_stream(c10::DeviceIndex index) {
    ds_stream stream;
    check(ds_stream_get_current(to_device(index), &stream));
    return stream;
}

inline ds_stream current_stream(const at::TensorBase &tensor) {
    return current_stream(tensor.get_device());
}

/** The two directions between torch's streams and devstream's: a StreamId is the handle's number.
    0, torch's name of a default stream, is the legacy stream of the device. */
c10::Stream from_stream(ds_stream stream, c10::DeviceIndex index);
ds_stream to_stream(c10::Stream stream);

/** Implemented in memory.cpp and random.cpp. */
at::Allocator *pinned_allocator();
const at::Generator &default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

/* ---- enqueue --------------------------------------------------------------------------------- */

/** A piece of work that a stream runs. */
struct Work {
    virtual ~Work() = default;
    virtual void run() = 0;
};

/** Enqueues work as a closure. Takes ownership. Does not block. */
void enqueue_work(ds_stream stream, std::unique_ptr<Work> work);

/** Enqueues fn() on a stream; fn may capture anything that any thread may destroy. An exception of
    fn fails the device, as a fault on a GPU does: the next synchronization throws. */
template <class F> void enqueue(ds_stream stream, F fn) {
    struct Closure final : Work {
        explicit Closure(F &&f) : fn(std::move(f)) {
        }

        void run() override {
            fn();
        }

        F fn;
    };

    enqueue_work(stream, std::make_unique<Closure>(std::move(fn)));
}

} // namespace devstream_torch
