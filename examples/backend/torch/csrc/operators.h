/* operators.h - launch(), by which an operator enqueues its computation.

   The memory of CPU devices is addressable by the host, so ATen's own CPU functions are the kernels
   of this backend: a worker wraps the addresses in tensors of the CPU and calls at::cpu::NAME. A
   backend of a real device would launch a kernel of its own there. */
#pragma once

#include "backend.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/DimVector.h>

#include <tuple>

namespace devstream_torch {

/** An operand as the worker sees it: address, type and geometry. A CPU tensor is allowed if it has
    no dimensions (a number); its value as of the call counts, so it is copied. */
class View {
  public:
    View(const at::Tensor &tensor, c10::Device device) {
        if (tensor.is_cpu() && tensor.dim() == 0) {
            bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
            number_ = is_number ? tensor : tensor.clone();
            return;
        }
        TORCH_CHECK(tensor.device() == device, "Expected all tensors on ", device,
                    ", but one is on ", tensor.device(), ".");
        data_ = tensor.data_ptr();
        type_ = tensor.scalar_type();
        sizes_ = tensor.sizes();
        strides_ = tensor.strides();
        is_conj_ = tensor.is_conj();
        is_neg_ = tensor.is_neg();
    }

    at::Tensor tensor() const {
        if (number_.defined())
            return number_;
        at::Tensor tensor = at::from_blob(data_, sizes_, strides_, at::dtype(type_));
        tensor.unsafeGetTensorImpl()->_set_conj(is_conj_);
        tensor.unsafeGetTensorImpl()->_set_neg(is_neg_);
        return tensor;
    }

  private:
    void *data_ = nullptr;
    at::ScalarType type_ = at::kFloat;
    bool is_conj_ = false;
    bool is_neg_ = false;
    c10::DimVector sizes_;
    c10::DimVector strides_;
    at::Tensor number_;
};

/** Enqueues fn(out, in...) on the current stream of out's device. The caller has checked shapes and
    types: fn must not resize. */
template <class F, class... In> void launch(F fn, const at::Tensor &out, const In &...in) {
    if (out.numel() == 0)
        return;
    c10::Device device = out.device();
    enqueue(current_stream(out),
            [fn = std::move(fn), views = std::make_tuple(View(out, device), View(in, device)...)] {
                std::apply([&](const auto &...view) { fn(view.tensor()...); }, views);
            });
}

} // namespace devstream_torch
