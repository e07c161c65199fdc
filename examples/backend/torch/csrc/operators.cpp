/* operators.cpp - the operators that run asynchronously. Each one lets TensorIterator (or a few
   checks) validate, broadcast, and allocate or resize the result on the caller's thread, and then
   launches ATen's CPU function.

   PyTorch derives the functional and in-place forms of a structured operator from its `out` form:
   add.out serves torch.add, Tensor.add_ and torch.add(out=...). */
#include "operators.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/eq_cpu_dispatch.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/gt_cpu_dispatch.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/lt_cpu_dispatch.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/tanh_backward_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/threshold_backward_cpu_dispatch.h>
#include <torch/library.h>

namespace devstream_torch {

namespace {

using at::Scalar;
using at::Tensor;
using at::TensorIterator;

/* ---- elementwise ----------------------------------------------------------------------------- */

/** Registered for `NAME.out` of one input; the rule determines the result's type. */
using Unary = Tensor &(*)(const Tensor &, Tensor &);
using UnaryRule = void (at::TensorIteratorBase::*)(const at::TensorBase &, const at::TensorBase &);

template <UnaryRule rule, Unary op> Tensor &unary(const Tensor &self, Tensor &out) {
    TensorIterator iter;
    (iter.*rule)(out, self);
    launch([](Tensor result, const Tensor &x) { op(x, result); }, out, self);
    return out;
}

/** The same for two inputs. */
using Binary = Tensor &(*)(const Tensor &, const Tensor &, Tensor &);
using BinaryRule = void (at::TensorIteratorBase::*)(const at::TensorBase &, const at::TensorBase &,
                                                    const at::TensorBase &);

template <BinaryRule rule, Binary op>
Tensor &binary(const Tensor &self, const Tensor &other, Tensor &out) {
    TensorIterator iter;
    (iter.*rule)(out, self, other);
    launch([](Tensor result, const Tensor &x, const Tensor &y) { op(x, y, result); }, out, self,
           other);
    return out;
}

/** A comparison with a number; elsewhere PyTorch itself turns numbers into tensors. */
template <Binary op> Tensor &compare_number(const Tensor &self, const Scalar &number, Tensor &out) {
    constexpr BinaryRule rule = &TensorIterator::build_borrowing_comparison_op;
    return binary<rule, op>(self, at::native::wrapped_scalar_tensor(number), out);
}

/** Registered for two inputs and a number. */
using BinaryScalar = Tensor &(*)(const Tensor &, const Tensor &, const Scalar &, Tensor &);

template <BinaryScalar op>
Tensor &binary_scalar(const Tensor &self, const Tensor &other, const Scalar &number, Tensor &out) {
    TensorIterator iter;
    iter.build_borrowing_binary_op(out, self, other);
    launch([number](Tensor result, const Tensor &x, const Tensor &y) { op(x, y, number, result); },
           out, self, other);
    return out;
}

Tensor &clamp_min_out(const Tensor &self, const Scalar &minimum, Tensor &out) {
    TensorIterator iter;
    iter.build_borrowing_unary_op(out, self);
    launch(
        [minimum](Tensor result, const Tensor &x) { at::cpu::clamp_min_outf(x, minimum, result); },
        out, self);
    return out;
}

Tensor relu(const Tensor &self) {
    return at::clamp_min(self, 0);
}

Tensor &fill_scalar(Tensor &self, const Scalar &value) {
    launch([value](Tensor result) { at::cpu::fill_(result, value); }, self);
    return self;
}

Tensor &zero(Tensor &self) {
    if (!self.is_non_overlapping_and_dense())
        return fill_scalar(self, 0);
    check(ds_fill(self.data_ptr(), 0, 1, self.nbytes(), current_stream(self)));
    return self;
}

/* ---- reductions ------------------------------------------------------------------------------ */

using Reduction = Tensor &(*)(const Tensor &, at::OptionalIntArrayRef, bool,
                              std::optional<at::ScalarType>, Tensor &);

template <Reduction op>
Tensor &reduce(const Tensor &self, at::OptionalIntArrayRef dim, bool keepdim,
               std::optional<at::ScalarType> type, Tensor &out) {
    c10::DimVector dims = at::native::make_dim_vector(dim, self.dim());
    at::maybe_wrap_dims(dims, self.dim());
    at::native::resize_output(out, at::meta::get_reduction_shape(self, dims, keepdim));
    launch([=](Tensor result, const Tensor &x) { op(x, dims, keepdim, type, result); }, out, self);
    return out;
}

/* ---- products of matrices -------------------------------------------------------------------- */

void check_types(const Tensor &a, const Tensor &b, const Tensor &out) {
    TORCH_CHECK(a.scalar_type() == b.scalar_type() && a.scalar_type() == out.scalar_type() &&
                    a.scalar_type() != at::kBool,
                "The matrices must have one type of numbers, but they have ", a.scalar_type(), ", ",
                b.scalar_type(), " and ", out.scalar_type(), ".");
}

Tensor &mm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    check_types(a, b, out);
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "Shapes ", a.sizes(),
                " and ", b.sizes(), " cannot be multiplied.");
    at::native::resize_output(out, { a.size(0), b.size(1) });
    launch([](Tensor result, const Tensor &x, const Tensor &y) { at::cpu::mm_outf(x, y, result); },
           out, a, b);
    return out;
}

Tensor &bmm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    check_types(a, b, out);
    TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
                "Shapes ", a.sizes(), " and ", b.sizes(), " cannot be multiplied.");
    at::native::resize_output(out, { a.size(0), a.size(1), b.size(2) });
    launch([](Tensor result, const Tensor &x, const Tensor &y) { at::cpu::bmm_outf(x, y, result); },
           out, a, b);
    return out;
}

Tensor &addmm_out(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta,
                  const Scalar &alpha, Tensor &out) {
    check_types(a, b, out);
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "Shapes ", a.sizes(),
                " and ", b.sizes(), " cannot be multiplied.");
    at::native::resize_output(out, { a.size(0), b.size(1) });
    Tensor bias = self.expand(out.sizes());
    launch([=](Tensor result, const Tensor &c, const Tensor &x,
               const Tensor &y) { at::cpu::addmm_outf(c, x, y, beta, alpha, result); },
           out, bias, a, b);
    return out;
}

/* ---- registration ---------------------------------------------------------------------------- */

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    constexpr UnaryRule same = &TensorIterator::build_borrowing_unary_op;
    constexpr UnaryRule floating = &TensorIterator::build_borrowing_unary_float_op;
    m.impl("neg.out", TORCH_FN((unary<same, at::cpu::neg_outf>)));
    m.impl("exp.out", TORCH_FN((unary<floating, at::cpu::exp_outf>)));
    m.impl("log.out", TORCH_FN((unary<floating, at::cpu::log_outf>)));
    m.impl("sqrt.out", TORCH_FN((unary<floating, at::cpu::sqrt_outf>)));
    m.impl("rsqrt.out", TORCH_FN((unary<floating, at::cpu::rsqrt_outf>)));
    m.impl("tanh.out", TORCH_FN((unary<floating, at::cpu::tanh_outf>)));
    m.impl("sigmoid.out", TORCH_FN((unary<floating, at::cpu::sigmoid_outf>)));

    constexpr BinaryRule promote = &TensorIterator::build_borrowing_binary_op;
    constexpr BinaryRule promote_float = &TensorIterator::build_borrowing_binary_float_op;
    constexpr BinaryRule compare = &TensorIterator::build_borrowing_comparison_op;
    m.impl("add.out", TORCH_FN(binary_scalar<at::cpu::add_outf>));
    m.impl("sub.out", TORCH_FN(binary_scalar<at::cpu::sub_outf>));
    m.impl("mul.out", TORCH_FN((binary<promote, at::cpu::mul_outf>)));
    m.impl("div.out", TORCH_FN((binary<promote_float, at::cpu::div_outf>)));
    m.impl("eq.Tensor_out", TORCH_FN((binary<compare, at::cpu::eq_outf>)));
    m.impl("eq.Scalar_out", TORCH_FN(compare_number<at::cpu::eq_outf>));
    m.impl("ne.Tensor_out", TORCH_FN((binary<compare, at::cpu::ne_outf>)));
    m.impl("ne.Scalar_out", TORCH_FN(compare_number<at::cpu::ne_outf>));
    m.impl("lt.Tensor_out", TORCH_FN((binary<compare, at::cpu::lt_outf>)));
    m.impl("lt.Scalar_out", TORCH_FN(compare_number<at::cpu::lt_outf>));
    m.impl("gt.Tensor_out", TORCH_FN((binary<compare, at::cpu::gt_outf>)));
    m.impl("gt.Scalar_out", TORCH_FN(compare_number<at::cpu::gt_outf>));
    m.impl("tanh_backward.grad_input", TORCH_FN((binary<promote, at::cpu::tanh_backward_outf>)));
    m.impl("sigmoid_backward.grad_input",
           TORCH_FN((binary<promote, at::cpu::sigmoid_backward_outf>)));
    m.impl("threshold_backward.grad_input",
           TORCH_FN(binary_scalar<at::cpu::threshold_backward_outf>));

    m.impl("clamp_min.out", clamp_min_out);
    m.impl("relu", relu);
    m.impl("fill_.Scalar", fill_scalar);
    m.impl("zero_", zero);
    m.impl("sum.IntList_out", TORCH_FN(reduce<at::cpu::sum_outf>));
    m.impl("mean.out", TORCH_FN(reduce<at::cpu::mean_outf>));
    m.impl("mm.out", mm_out);
    m.impl("bmm.out", bmm_out);
    m.impl("addmm.out", addmm_out);
}

} // namespace

} // namespace devstream_torch
