/* runtime.cpp - devices, streams and events for PyTorch's generic code, and the hooks by which that
   code finds pinned memory and generators.

   c10::Stream and the event pointer of DeviceGuardImplInterface do not own. The numbers of
   devstream's handles fit into both, so there is no table and no lock between the two. */
#include "backend.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace devstream_torch {

namespace {

c10::DeviceIndex device_count() noexcept {
    int count = 0;
    if (ds_device_get_count(DS_DEVICE_CPU, &count) < 0)
        return 0;
    return static_cast<c10::DeviceIndex>(count);
}

/** The legacy streams of all devices, which a program uses until it selects others. */
const std::vector<ds_stream> &default_streams() {
    static const std::vector<ds_stream> streams = [] {
        std::vector<ds_stream> list(static_cast<size_t>(device_count()));
        for (size_t i = 0; i < list.size(); i++)
            check(ds_stream_get_legacy(to_device(static_cast<c10::DeviceIndex>(i)), &list[i]));
        return list;
    }();
    return streams;
}

/** PyTorch copies streams and never destroys them. So they come, in turn, from a pool of each
    device, as torch.cuda's do. */
ds_stream stream_from_pool(c10::DeviceIndex index, bool high_priority) {
    struct Pool {
        std::once_flag once;
        std::array<ds_stream, 32> streams;
        std::atomic<unsigned> next{ 0 };
    };

    static std::vector<std::array<Pool, 2>> pools(static_cast<size_t>(device_count()));
    Pool &pool = pools.at(static_cast<size_t>(index))[high_priority];
    std::call_once(pool.once, [&] {
        ds_stream_desc desc = {};
        desc.device = to_device(index);
        desc.priority = high_priority ? DS_PRIORITY_HIGH : DS_PRIORITY_NORMAL;
        for (ds_stream &stream : pool.streams)
            check(ds_stream_create(&desc, &stream));
    });
    return pool.streams[pool.next++ % pool.streams.size()];
}

ds_event to_event(void *event) {
    return ds_event{ reinterpret_cast<uint64_t>(event) };
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = c10::kPrivateUse1;

    c10::DeviceType type() const override {
        return static_type;
    }

    /* devices */

    c10::DeviceIndex deviceCount() const noexcept override {
        return device_count();
    }

    c10::Device getDevice() const override {
        return from_device(current_device());
    }

    void setDevice(c10::Device device) const override {
        if (device.has_index())
            check(ds_device_set_current(to_device(device.index())));
    }

    void uncheckedSetDevice(c10::Device device) const noexcept override {
        (void)!ds_device_set_current(to_device(device.index()));
    }

    c10::Device exchangeDevice(c10::Device device) const override {
        c10::Device previous = getDevice();
        if (device != previous)
            setDevice(device);
        return previous;
    }

    void synchronizeDevice(c10::DeviceIndex index) const override {
        check(ds_device_synchronize(to_device(index)));
    }

    /* streams */

    c10::Stream getStream(c10::Device device) const override {
        c10::DeviceIndex index = device.has_index() ? device.index() : getDevice().index();
        return from_stream(current_stream(index), index);
    }

    c10::Stream getDefaultStream(c10::Device device) const override {
        return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
    }

    c10::Stream getNewStream(c10::Device device, int priority) const override {
        c10::DeviceIndex index = device.has_index() ? device.index() : getDevice().index();
        return from_stream(stream_from_pool(index, priority < 0), index);
    }

    c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
        return getNewStream(device, high_priority ? -1 : 0);
    }

    /** The current device stays, as torch.cuda's does; devstream's call would select the stream's
        device. */
    c10::Stream exchangeStream(c10::Stream stream) const override {
        ds_device device = current_device();
        ds_stream previous;
        check(ds_stream_set_current(to_stream(stream), 0, &previous));
        check(ds_device_set_current(device));
        return from_stream(previous, stream.device_index());
    }

    bool queryStream(const c10::Stream &stream) const override {
        return check(ds_stream_query(to_stream(stream))) == DS_OK;
    }

    void synchronizeStream(const c10::Stream &stream) const override {
        check(ds_stream_synchronize(to_stream(stream)));
    }

    /* events: the first record creates them */

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex index,
                const c10::EventFlag flag) const override {
        TORCH_CHECK(index == -1 || index == stream.device_index(), "The event belongs to device ",
                    index, ", but the stream to device ", stream.device_index(), ".");
        if (*event == nullptr) {
            ds_event created;
            unsigned flags = flag == c10::EventFlag::BACKEND_DEFAULT ? DS_EVENT_TIMING : 0;
            check(ds_event_create(flags, nullptr, &created));
            *event = reinterpret_cast<void *>(created.id);
        }
        check(ds_event_record(to_event(*event), to_stream(stream)));
    }

    void block(void *event, const c10::Stream &stream) const override {
        if (event != nullptr)
            check(ds_stream_wait_event(to_stream(stream), to_event(event)));
    }

    bool queryEvent(void *event) const override {
        return event == nullptr || check(ds_event_query(to_event(event))) == DS_OK;
    }

    void synchronizeEvent(void *event) const override {
        if (event != nullptr)
            check(ds_event_synchronize(to_event(event)));
    }

    double elapsedTime(void *start, void *end, c10::DeviceIndex) const override {
        TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded first.");
        double milliseconds;
        check(ds_event_get_elapsed_ms(to_event(start), to_event(end), &milliseconds));
        return milliseconds;
    }

    void destroyEvent(void *event, c10::DeviceIndex) const noexcept override {
        if (event != nullptr && ds_event_destroy(to_event(event)) < 0)
            TORCH_WARN(ds_error_get_last());
    }
};

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override {
        return true;
    }

    bool isAvailable() const override {
        return device_count() > 0;
    }

    bool hasPrimaryContext(c10::DeviceIndex) const override {
        return ds_is_initialized() != 0;
    }

    c10::DeviceIndex deviceCount() const override {
        return device_count();
    }

    c10::DeviceIndex getCurrentDevice() const override {
        return from_device(current_device()).index();
    }

    void setCurrentDevice(c10::DeviceIndex index) const override {
        check(ds_device_set_current(to_device(index)));
    }

    c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
        c10::DeviceIndex previous = getCurrentDevice();
        setCurrentDevice(index);
        return previous;
    }

    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
        return index < 0 ? getCurrentDevice() : exchangeDevice(index);
    }

    bool isPinnedPtr(const void *data) const override {
        ds_pointer_info info;
        check(ds_pointer_get_info(data, &info));
        return info.kind == DS_MEMORY_PINNED || info.kind == DS_MEMORY_REGISTERED;
    }

    at::Allocator *getPinnedMemoryAllocator() const override {
        return pinned_allocator();
    }

    at::Device getDeviceFromPtr(void *data) const override {
        ds_pointer_info info;
        check(ds_pointer_get_info(data, &info));
        TORCH_CHECK(info.kind == DS_MEMORY_DEVICE, data, " is not an address of device memory.");
        return from_device(info.device);
    }

    const at::Generator &getDefaultGenerator(c10::DeviceIndex index) const override {
        return default_generator(index < 0 ? getCurrentDevice() : index);
    }

    at::Generator getNewGenerator(c10::DeviceIndex index) const override {
        return new_generator(index < 0 ? getCurrentDevice() : index);
    }

    /** Copies the contents to a block of the new size, in the order of the current stream. */
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override {
        c10::DeviceGuard guard(storage.device());
        c10::DataPtr block = storage.allocator()->allocate(size);
        size_t kept = std::min(size, storage.nbytes());
        if (kept > 0)
            check(ds_copy(block.get(), storage.data(), kept,
                          current_stream(storage.device().index())));
        storage.set_data_ptr_noswap(std::move(block));
        storage.set_nbytes(size);
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

const bool hooks_are_registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

/** The message of the latest exception on a worker. The call that reports the failure quotes it. */
std::mutex failure_lock;
std::string failure_message;

int fail(const char *message) {
    std::lock_guard<std::mutex> hold(failure_lock);
    failure_message = message;
    return 1;
}

/** Runs on a worker. */
int run_work(void *payload) {
    Work *work = static_cast<Work *>(payload);
    /* A host thread that waits may run work too. Its dispatcher state (autograd, autocast, modes of
       Python) belongs to the caller, not to the work. */
    c10::impl::ForceDispatchKeyGuard guard(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                           c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                               c10::default_excluded_set);
    try {
        work->run();
        return 0;
    } catch (const c10::Error &error) {
        return fail(error.what_without_backtrace());
    } catch (const std::exception &error) {
        return fail(error.what());
    }
}

/** Runs once for each piece of work, also if a failure skipped it or the launch was refused. */
void delete_work(void *payload) {
    delete static_cast<Work *>(payload);
}

} // namespace

void throw_error(ds_result result) {
    if (result == DS_ERR_OUT_OF_MEMORY || result == DS_ERR_LIMIT_EXCEEDED)
        TORCH_CHECK_WITH(OutOfMemoryError, false, ds_error_get_last());
    std::lock_guard<std::mutex> hold(failure_lock);
    bool is_worker_failure = result == DS_ERR_FAILED && !failure_message.empty();
    TORCH_CHECK(false, ds_error_get_last(), is_worker_failure ? ": " + failure_message : "");
}

c10::Stream from_stream(ds_stream stream, c10::DeviceIndex index) {
    bool is_default = stream.id == default_streams().at(static_cast<size_t>(index)).id;
    c10::StreamId id = is_default ? 0 : static_cast<c10::StreamId>(stream.id);
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, index), id);
}

ds_stream to_stream(c10::Stream stream) {
    if (stream.id() == 0)
        return default_streams().at(static_cast<size_t>(stream.device_index()));
    return ds_stream{ static_cast<uint64_t>(stream.id()) };
}

void enqueue_work(ds_stream stream, std::unique_ptr<Work> work) {
    check(ds_stream_launch_closure(stream, run_work, work.release(), 0, delete_work));
}

/* Operators of the backend's own. wait_value makes the current stream wait until a word in pinned
   or device memory has at least this value: a program can so hold a stream without an event.
   device_reset makes a device usable again after an operator has failed. */
TORCH_LIBRARY(devstream, m) {
    m.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
    m.def("device_reset(int index) -> ()", [](int64_t index) {
        check(ds_device_reset(to_device(static_cast<c10::DeviceIndex>(index))));
    });
    m.def("wait_value(Tensor word, int value) -> ()", [](const at::Tensor &word, int64_t value) {
        TORCH_CHECK(word.nbytes() == 4, "The word must have 4 bytes.");
        check(ds_stream_wait_value32(current_stream(from_device(current_device()).index()),
                                     word.const_data_ptr(), static_cast<uint32_t>(value),
                                     DS_VALUE_WAIT_GEQ));
    });
}

} // namespace devstream_torch
