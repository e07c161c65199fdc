/* copy.cpp - tensors' memory, views, and copies between host and devices.

   A copy waits for its stream only where torch.cuda's waits: from or to pageable host memory, and
   from or to pinned memory without non_blocking. */
#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace devstream_torch {

namespace {

using Sizes = at::IntArrayRef;

constexpr c10::DispatchKeySet backend_keys(c10::DispatchKey::PrivateUse1);

/** The allocator serves the current device, so a guard selects it. */
c10::Device device_or_current(std::optional<c10::Device> device) {
    return device && device->has_index() ? *device : from_device(current_device());
}

at::Tensor empty(Sizes size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
    TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "Only strided tensors.");
    TORCH_CHECK(!pin_memory.value_or(false), "Only tensors of the CPU can be pinned.");
    c10::DeviceGuard guard(device_or_current(device));
    return at::detail::empty_generic(size, c10::GetAllocator(at::kPrivateUse1), backend_keys,
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
    TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "Only strided tensors.");
    TORCH_CHECK(!pin_memory.value_or(false), "Only tensors of the CPU can be pinned.");
    c10::DeviceGuard guard(device_or_current(device));
    return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kPrivateUse1),
                                             backend_keys, c10::dtype_or_default(dtype));
}

const at::Tensor &resize_(const at::Tensor &self, Sizes size,
                          std::optional<at::MemoryFormat> format) {
    size_t bytes = at::detail::computeStorageNbytesContiguous(
        size, self.itemsize(), static_cast<size_t>(self.storage_offset()));
    if (bytes > self.storage().nbytes())
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    if (format && *format != at::MemoryFormat::Preserve)
        self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
    return self;
}

/** Copies on one device, with any strides and types, in stream order. */
void copy_on_device(const at::Tensor &dst, const at::Tensor &src) {
    if (dst.scalar_type() == src.scalar_type() && dst.is_contiguous() && src.is_contiguous() &&
        dst.is_conj() == src.is_conj() && dst.is_neg() == src.is_neg()) {
        check(ds_copy(dst.data_ptr(), src.const_data_ptr(), dst.nbytes(), current_stream(dst)));
        return;
    }
    launch([](at::Tensor to,
              const at::Tensor &from) { at::compositeexplicitautograd::copy_(to, from); },
           dst, src);
}

/** Copies between the host and a device; both tensors are contiguous and of one type. */
void copy_bytes(const at::Tensor &dst, const at::Tensor &src, bool non_blocking) {
    const at::Tensor &host = dst.is_cpu() ? dst : src;
    ds_stream stream = current_stream(dst.is_cpu() ? src : dst);
    check(ds_copy(dst.data_ptr(), src.const_data_ptr(), dst.nbytes(), stream));
    if (!non_blocking) {
        check(ds_stream_synchronize(stream));
        return;
    }
    /* The block of pinned memory is not reused before the stream is past the copy. */
    int pinned;
    check(ds_mem_pinned_owns(host.const_data_ptr(), &pinned));
    if (pinned)
        check(ds_mem_pinned_record_use(const_cast<void *>(host.const_data_ptr()), stream));
}

/** Copies between two devices on the source's stream, between two points of the target's: after its
    earlier work, and before its later work. */
void copy_between_devices(const at::Tensor &dst, const at::Tensor &src) {
    ds_stream source = current_stream(src);
    ds_stream target = current_stream(dst);
    check(ds_stream_wait_stream(source, target));
    check(ds_copy(dst.data_ptr(), src.const_data_ptr(), dst.nbytes(), source));
    check(ds_stream_wait_stream(target, source));
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &dst, bool non_blocking) {
    if (dst.numel() == 0 || self.is_same(dst))
        return dst;
    at::Tensor src = self.expand_as(dst);
    if (src.device() == dst.device()) {
        copy_on_device(dst, src);
        return dst;
    }

    /* What crosses is one run of bytes in the target's type: each side packs on its own device. */
    src = src.to(dst.scalar_type()).resolve_conj().resolve_neg().contiguous();
    bool direct = dst.is_contiguous() && !dst.is_conj() && !dst.is_neg();
    at::Tensor landing = direct ? dst : at::empty_like(dst, at::MemoryFormat::Contiguous);
    if (src.is_cpu() || dst.is_cpu())
        copy_bytes(landing, src, non_blocking); /* to a landing on the host it waits */
    else
        copy_between_devices(landing, src);
    if (!direct)
        dst.copy_(landing);
    return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &dst) {
    if (dst.sizes() != self.sizes())
        dst.resize_(self.sizes());
    return copy_from(self, dst, false);
}

/** Tensor.item(): the one operator that must wait for its stream. */
at::Scalar local_scalar(const at::Tensor &self) {
    return at::_local_scalar_dense(self.to(at::kCPU));
}

void record_stream(at::Tensor &self, c10::Stream stream) {
    check(ds_mem_record_stream(self.storage().mutable_data(), to_stream(stream)));
}

/** All other operators run on the CPU: their inputs are copied there, and that waits. */
void cpu_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("resize_", resize_);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view",
           TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor &, Sizes)>(at::native::view)));
    m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar);
    m.impl("record_stream", record_stream);
    m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
    m.impl("set_.source_Storage",
           TORCH_FN(static_cast<at::Tensor &(*)(at::Tensor &, at::Storage)>(at::native::set_)));
    m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
}

/* Copies apply a lazy conjugation or negation themselves; PyTorch's way to do that is a copy. */
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

} // namespace

} // namespace devstream_torch
