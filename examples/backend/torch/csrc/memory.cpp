/* memory.cpp - devstream's caching allocators as PyTorch's: device memory in the order of the
   current stream, and pinned host memory. The statistics have the same fields on both sides, so
   torch.accelerator's memory functions work. */
#include "backend.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

namespace devstream_torch {

namespace {

c10::CachingAllocator::Stat from_stat(const ds_mem_stat &stat) {
    c10::CachingAllocator::Stat result;
    result.current = stat.current;
    result.peak = stat.peak;
    result.allocated = stat.allocated;
    result.freed = stat.freed;
    return result;
}

/** Both sides index by: all, small, large. */
void set_stats(c10::CachingAllocator::StatArray &to, const ds_mem_stat (&from)[3]) {
    for (size_t i = 0; i < 3; i++)
        to[i] = from_stat(from[i]);
}

/** Deleters run in destructors and must not throw. */
void free_device(void *ptr) {
    if (ds_mem_free(ptr) < 0)
        TORCH_WARN(ds_error_get_last());
}

void free_pinned(void *ptr) {
    if (ds_mem_pinned_free(ptr) < 0)
        TORCH_WARN(ds_error_get_last());
}

struct DeviceAllocator final : c10::DeviceAllocator {
    /** The block belongs to the current stream of the current device. */
    c10::DataPtr allocate(size_t size) override {
        ds_device device = current_device();
        ds_stream stream;
        void *ptr;
        check(ds_stream_get_current(device, &stream));
        check(ds_mem_alloc(size, stream, &ptr));
        return { ptr, ptr, &free_device, from_device(device) };
    }

    c10::DeleterFnPtr raw_deleter() const override {
        return &free_device;
    }

    void copy_data(void *dst, const void *src, size_t size) const override {
        check(ds_copy(dst, src, size, current_stream(from_device(current_device()).index())));
    }

    bool initialized() override {
        return true;
    }

    void emptyCache(c10::MempoolId_t) override {
        int count;
        check(ds_device_get_count(DS_DEVICE_CPU, &count));
        for (int i = 0; i < count; i++)
            check(ds_mem_empty_cache(to_device(static_cast<c10::DeviceIndex>(i)), nullptr));
    }

    void recordStream(const c10::DataPtr &ptr, c10::Stream stream) override {
        check(ds_mem_record_stream(ptr.get(), to_stream(stream)));
    }

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
        ds_mem_stats stats;
        check(ds_mem_get_stats(to_device(index), &stats));
        c10::CachingDeviceAllocator::DeviceStats result;
        set_stats(result.allocation, stats.allocation);
        set_stats(result.segment, stats.segment);
        set_stats(result.active, stats.active);
        set_stats(result.inactive_split, stats.inactive_split);
        set_stats(result.allocated_bytes, stats.allocated_bytes);
        set_stats(result.reserved_bytes, stats.reserved_bytes);
        set_stats(result.active_bytes, stats.active_bytes);
        set_stats(result.inactive_split_bytes, stats.inactive_split_bytes);
        set_stats(result.requested_bytes, stats.requested_bytes);
        result.oversize_allocations = from_stat(stats.oversize_allocations);
        result.oversize_segments = from_stat(stats.oversize_segments);
        result.num_alloc_retries = stats.num_alloc_retries;
        result.num_ooms = stats.num_ooms;
        result.num_sync_all_streams = stats.num_sync_all_streams;
        result.num_device_alloc = stats.num_device_alloc;
        result.num_device_free = stats.num_device_free;
        result.num_oom_rejections = stats.num_oom_rejections;
        result.max_split_size = stats.max_split_size;
        return result;
    }

    void resetAccumulatedStats(c10::DeviceIndex index) override {
        check(ds_mem_reset_accumulated_stats(to_device(index)));
    }

    void resetPeakStats(c10::DeviceIndex index) override {
        check(ds_mem_reset_peak_stats(to_device(index)));
    }

    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
        size_t free, total;
        check(ds_device_get_memory_info(to_device(index), &free, &total));
        return { free, total };
    }
};

struct PinnedAllocator final : at::HostAllocator {
    c10::DataPtr allocate(size_t size) override {
        void *ptr;
        check(ds_mem_pinned_alloc(size, &ptr));
        return { ptr, ptr, &free_pinned, c10::Device(c10::kCPU) };
    }

    c10::DeleterFnPtr raw_deleter() const override {
        return &free_pinned;
    }

    void copy_data(void *dst, const void *src, size_t size) const override {
        default_copy_data(dst, src, size);
    }

    bool record_event(void *ptr, void *, c10::Stream stream) override {
        int owned;
        check(ds_mem_pinned_owns(ptr, &owned));
        if (owned)
            check(ds_mem_pinned_record_use(ptr, to_stream(stream)));
        return owned != 0;
    }

    void empty_cache() override {
        check(ds_mem_pinned_empty_cache(nullptr));
    }

    at::HostStats get_stats() override {
        ds_mem_pinned_stats stats;
        check(ds_mem_pinned_get_stats(&stats));
        at::HostStats result;
        result.active_requests = from_stat(stats.active_requests);
        result.active_bytes = from_stat(stats.active_bytes);
        result.allocations = from_stat(stats.allocations);
        result.allocated_bytes = from_stat(stats.allocated_bytes);
        result.num_host_alloc = stats.num_host_alloc;
        result.num_host_free = stats.num_host_free;
        return result;
    }

    void reset_accumulated_stats() override {
        check(ds_mem_pinned_reset_accumulated_stats());
    }

    void reset_peak_stats() override {
        check(ds_mem_pinned_reset_peak_stats());
    }
};

DeviceAllocator device_allocator;
PinnedAllocator the_pinned_allocator;

REGISTER_ALLOCATOR(c10::kPrivateUse1, &device_allocator)
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &the_pinned_allocator)

} // namespace

at::Allocator *pinned_allocator() {
    return &the_pinned_allocator;
}

} // namespace devstream_torch
