/* kernels.cpp - operators of the device type custom_cpu: enough for a small training.

   Each operator allocates its result, enqueues its work on the stream of the context and returns;
   nothing waits. Operators that are missing here are run on the host by Paddle, with copies before
   and after.

   Lifetime: the work is a lambda that captures pointers and sizes by value, since the tensors may
   be gone when the work runs. Their memory stays valid: Paddle gives freed memory to later work of
   the same stream only, or after the streams that used it.
   Threads: operators run on Paddle's threads, the lambdas on workers of devstream.
   Strides: `contiguous` takes any; all other operators get tensors without gaps. */
#include "paddle/phi/capi/all.h"

#include "custom_cpu.h"

#include <algorithm>
#include <type_traits>

namespace custom_cpu {

using phi::Context;
using phi::DenseTensor;

/* ---- launches -------------------------------------------------------------------------------- */

/* Creates the kernel of a type of lambda; it lives until ds_shutdown. The launch copies the lambda,
   and the driver splits its items over the workers. `grain` is the minimum of items per call. */
template <typename Body> ds_kernel kernel_of(size_t grain) {
    ds_kernel_desc desc = {};
    desc.name = "custom_cpu";
    desc.args_size = sizeof(Body);
    desc.grain = grain;
    desc.cpu_fn = [](size_t first, size_t count, const void *args) {
        (*static_cast<const Body *>(args))(first, count);
        return 0;
    };
    ds_kernel kernel = {};
    PD_CHECK(ds_kernel_create(&desc, &kernel) == DS_OK, ds_error_get_last());
    return kernel;
}

/* Enqueues body(first, count) for all items on the stream of the context. This is the only place
   where operators reach devstream. */
template <typename Body>
void enqueue_items(const Context &context, size_t items, size_t grain, Body body) {
    static_assert(std::is_trivially_copyable<Body>::value, "devstream copies the bytes of body");
    static const ds_kernel kernel = kernel_of<Body>(grain);
    ds_result result =
        ds_kernel_launch(kernel, items, &body, sizeof body, stream_of(context.stream()));
    PD_CHECK(result == DS_OK, ds_error_get_last());
}

/* Enqueues function(i) for the elements 0 .. count-1. */
template <typename Function>
void enqueue_elements(const Context &context, int64_t count, Function function) {
    enqueue_items(context, static_cast<size_t>(count), 4096, [=](size_t first, size_t items) {
        for (size_t i = first; i < first + items; i++)
            function(static_cast<int64_t>(i));
    });
}

/* ---- shapes ---------------------------------------------------------------------------------- */

using Dims = std::vector<int64_t>;

int64_t count_of(const Dims &dims) {
    int64_t count = 1;
    for (int64_t size : dims)
        count *= size;
    return count;
}

/* Maps the index of an element of a shape to its offset in a tensor with strides. */
struct View {
    int rank;
    int64_t size[9], stride[9];

    View(const Dims &dims, const Dims &strides) : rank(static_cast<int>(dims.size())) {
        PD_CHECK(rank <= 9, "tensors with more than 9 dimensions are not supported");
        std::copy(dims.begin(), dims.end(), size);
        std::copy(strides.begin(), strides.end(), stride);
    }

    int64_t offset_of(int64_t index) const {
        int64_t offset = 0;
        for (int i = rank - 1; i > 0; i--) {
            offset += index % size[i] * stride[i];
            index /= size[i];
        }
        return rank ? offset + index * stride[0] : 0;
    }
};

/* A tensor of the shape `dims`, without gaps, seen in the shape `full`. Where the tensor has the
   size 1 or no dimension, it is repeated: the stride is 0. */
View broadcast_view(const Dims &dims, const Dims &full) {
    if (dims == full)
        return View({ count_of(full) }, { 1 });
    Dims strides(full.size(), 0);
    int64_t stride = 1;
    for (size_t i = 1; i <= dims.size(); i++) {
        int64_t size = dims[dims.size() - i];
        strides[full.size() - i] = size == 1 ? 0 : stride;
        stride *= size;
    }
    return View(full, strides);
}

/* The shape with the size 1 in each dimension of `axes`; no axes: in all. */
Dims reduce_dims(Dims dims, const phi::IntArray &axes) {
    Dims list = axes.GetData();
    if (list.empty())
        return Dims(dims.size(), 1);
    for (int64_t axis : list)
        dims[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis)] = 1;
    return dims;
}

/* Enqueues out[j] = sum of value(i) over all elements i of the shape `full` that have their place
   at j of the shape `kept`. */
template <typename T, typename Function>
void enqueue_sum(const Context &context, const Dims &full, const Dims &kept, Function value,
                 DenseTensor *out) {
    if (kept == full) {
        T *to = context.Alloc<T>(out);
        enqueue_elements(context, count_of(full), [=](int64_t i) { to[i] = value(i); });
        return;
    }
    /* `out` may share its memory with an operand (Paddle's gradients in place), so it gets new. */
    DenseTensor fresh;
    fresh.Resize(out->dims());
    T *to = context.Alloc<T>(&fresh);
    out->ShareDataWith(fresh);
    int64_t sums = count_of(kept);
    int64_t count = count_of(full);
    View view = broadcast_view(kept, full);
    /* One item, since several threads cannot add to one sum. */
    enqueue_items(context, 1, 0, [=](size_t, size_t) {
        std::fill(to, to + sums, T(0));
        for (int64_t i = 0; i < count; i++)
            to[view.offset_of(i)] += value(i);
    });
}

/* ---- operators ------------------------------------------------------------------------------- */

template <typename T>
void enqueue_fill(const Context &context, const phi::Scalar &value, DenseTensor *out) {
    T element = value.to<T>();
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, out->numel(), [=](int64_t i) { to[i] = element; });
}

template <typename T>
void Full(const Context &context, const phi::IntArray &, const phi::Scalar &value, phi::DataType,
          DenseTensor *out) {
    enqueue_fill<T>(context, value, out);
}

template <typename T>
void FullLike(const Context &context, const DenseTensor &, const phi::Scalar &value, phi::DataType,
              DenseTensor *out) {
    enqueue_fill<T>(context, value, out);
}

/* Paddle calls this operator before all others for a tensor with gaps, such as a transposed one. */
template <typename T>
void Contiguous(const Context &context, const DenseTensor &x, DenseTensor *out) {
    Dims dims = x.dims();
    Dims strides(dims.size(), 1);
    for (size_t i = dims.size(); i > 1; i--)
        strides[i - 2] = strides[i - 1] * dims[i - 1];
    out->set_strides(strides);
    out->set_offset(0);

    View view(dims, x.strides());
    const T *from = x.data<T>();
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, x.numel(), [=](int64_t i) { to[i] = from[view.offset_of(i)]; });
}

template <typename T, typename Function>
void enqueue_binary(const Context &context, const DenseTensor &x, const DenseTensor &y,
                    Function function, DenseTensor *out) {
    View x_view = broadcast_view(x.dims(), out->dims());
    View y_view = broadcast_view(y.dims(), out->dims());
    const T *a = x.data<T>();
    const T *b = y.data<T>();
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, out->numel(), [=](int64_t i) {
        to[i] = function(a[x_view.offset_of(i)], b[y_view.offset_of(i)]);
    });
}

template <typename T>
void Add(const Context &context, const DenseTensor &x, const DenseTensor &y, DenseTensor *out) {
    enqueue_binary<T>(
        context, x, y, [](T a, T b) { return a + b; }, out);
}

template <typename T>
void Subtract(const Context &context, const DenseTensor &x, const DenseTensor &y,
              DenseTensor *out) {
    enqueue_binary<T>(
        context, x, y, [](T a, T b) { return a - b; }, out);
}

template <typename T>
void Multiply(const Context &context, const DenseTensor &x, const DenseTensor &y,
              DenseTensor *out) {
    enqueue_binary<T>(
        context, x, y, [](T a, T b) { return a * b; }, out);
}

/* A gradient may share its memory with dout. Then dx is written over dout, so dy comes first. */
template <typename T>
void enqueue_sum_grad(const Context &context, const DenseTensor &x, const DenseTensor &y,
                      const DenseTensor &dout, T sign, DenseTensor *dx, DenseTensor *dy) {
    const T *from = dout.data<T>();
    if (dy)
        enqueue_sum<T>(
            context, dout.dims(), y.dims(), [=](int64_t i) { return sign * from[i]; }, dy);
    if (dx)
        enqueue_sum<T>(
            context, dout.dims(), x.dims(), [=](int64_t i) { return from[i]; }, dx);
}

template <typename T>
void AddGrad(const Context &context, const DenseTensor &x, const DenseTensor &y,
             const DenseTensor &dout, int, DenseTensor *dx, DenseTensor *dy) {
    enqueue_sum_grad(context, x, y, dout, T(1), dx, dy);
}

template <typename T>
void SubtractGrad(const Context &context, const DenseTensor &x, const DenseTensor &y,
                  const DenseTensor &dout, int, DenseTensor *dx, DenseTensor *dy) {
    enqueue_sum_grad(context, x, y, dout, T(-1), dx, dy);
}

template <typename T>
void MultiplyGrad(const Context &context, const DenseTensor &x, const DenseTensor &y,
                  const DenseTensor &dout, int, DenseTensor *dx, DenseTensor *dy) {
    View x_view = broadcast_view(x.dims(), dout.dims());
    View y_view = broadcast_view(y.dims(), dout.dims());
    const T *a = x.data<T>();
    const T *b = y.data<T>();
    const T *from = dout.data<T>();
    if (dy)
        enqueue_sum<T>(
            context, dout.dims(), y.dims(),
            [=](int64_t i) { return from[i] * a[x_view.offset_of(i)]; }, dy);
    if (dx)
        enqueue_sum<T>(
            context, dout.dims(), x.dims(),
            [=](int64_t i) { return from[i] * b[y_view.offset_of(i)]; }, dx);
}

/* x * 2 and x + 1 are this operator, too. */
template <typename T>
void Scale(const Context &context, const DenseTensor &x, const phi::Scalar &scale,
           const phi::Scalar &bias, bool bias_after_scale, DenseTensor *out) {
    T factor = scale.to<T>();
    T summand = bias_after_scale ? bias.to<T>() : bias.to<T>() * factor;
    const T *from = x.data<T>();
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, x.numel(), [=](int64_t i) { to[i] = from[i] * factor + summand; });
}

template <typename T> void Relu(const Context &context, const DenseTensor &x, DenseTensor *out) {
    const T *from = x.data<T>();
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, x.numel(), [=](int64_t i) { to[i] = std::max(from[i], T(0)); });
}

template <typename T>
void ReluGrad(const Context &context, const DenseTensor &out, const DenseTensor &dout,
              DenseTensor *dx) {
    const T *value = out.data<T>();
    const T *from = dout.data<T>();
    T *to = context.Alloc<T>(dx);
    enqueue_elements(context, out.numel(),
                     [=](int64_t i) { to[i] = value[i] > 0 ? from[i] : T(0); });
}

template <typename T>
void Mean(const Context &context, const DenseTensor &x, const phi::IntArray &axes, bool,
          DenseTensor *out) {
    Dims kept = reduce_dims(x.dims(), axes);
    T scale = T(count_of(kept)) / T(x.numel());
    const T *from = x.data<T>();
    enqueue_sum<T>(
        context, x.dims(), kept, [=](int64_t i) { return from[i] * scale; }, out);
}

template <typename T>
void MeanGrad(const Context &context, const DenseTensor &x, const DenseTensor &dout,
              const phi::IntArray &axes, bool, bool reduce_all, DenseTensor *dx) {
    Dims kept = reduce_all ? Dims(x.dims().size(), 1) : reduce_dims(x.dims(), axes);
    T scale = T(count_of(kept)) / T(x.numel());
    View view = broadcast_view(kept, x.dims());
    const T *from = dout.data<T>();
    T *to = context.Alloc<T>(dx);
    enqueue_elements(context, x.numel(),
                     [=](int64_t i) { to[i] = from[view.offset_of(i)] * scale; });
}

/* ---- matrix products ------------------------------------------------------------------------- */

template <typename T> struct Matrix {
    const T *data;
    int64_t rows, columns, row_stride, column_stride;

    Matrix transposed() const {
        return { data, columns, rows, column_stride, row_stride };
    }
};

/* A tensor as a matrix: all dimensions but the last one are rows. */
template <typename T> Matrix<T> matrix_of(const DenseTensor &x, bool transpose) {
    Dims dims = x.dims();
    PD_CHECK(dims.size() == 2 || (dims.size() > 2 && !transpose),
             "matmul takes matrices, and a batch as the first operand");
    int64_t columns = dims.back();
    Matrix<T> matrix = { x.data<T>(), columns ? x.numel() / columns : 0, columns, columns, 1 };
    return transpose ? matrix.transposed() : matrix;
}

/* Enqueues to = a b; the items are the rows of the result. */
template <typename T>
void enqueue_product(const Context &context, Matrix<T> a, Matrix<T> b, T *to) {
    PD_CHECK(a.columns == b.rows, "matmul takes one matrix as the second operand");
    enqueue_items(context, static_cast<size_t>(a.rows), 1, [=](size_t first, size_t rows) {
        for (size_t i = first; i < first + rows; i++) {
            const T *a_row = a.data + static_cast<int64_t>(i) * a.row_stride;
            T *row = to + static_cast<int64_t>(i) * b.columns;
            std::fill(row, row + b.columns, T(0));
            for (int64_t k = 0; k < a.columns; k++) {
                T factor = a_row[k * a.column_stride];
                const T *b_row = b.data + k * b.row_stride;
                for (int64_t j = 0; j < b.columns; j++)
                    row[j] += factor * b_row[j * b.column_stride];
            }
        }
    });
}

template <typename T>
void Matmul(const Context &context, const DenseTensor &x, const DenseTensor &y, bool transpose_x,
            bool transpose_y, DenseTensor *out) {
    PD_CHECK(y.dims().size() == 2, "matmul takes one matrix as the second operand");
    enqueue_product(context, matrix_of<T>(x, transpose_x), matrix_of<T>(y, transpose_y),
                    context.Alloc<T>(out));
}

template <typename T>
void MatmulGrad(const Context &context, const DenseTensor &x, const DenseTensor &y,
                const DenseTensor &dout, bool transpose_x, bool transpose_y, DenseTensor *dx,
                DenseTensor *dy) {
    Matrix<T> a = matrix_of<T>(x, transpose_x);
    Matrix<T> b = matrix_of<T>(y, transpose_y);
    Matrix<T> d = matrix_of<T>(dout, false);
    if (dx && !transpose_x)
        enqueue_product(context, d, b.transposed(), context.Alloc<T>(dx));
    if (dx && transpose_x)
        enqueue_product(context, b, d.transposed(), context.Alloc<T>(dx));
    if (dy && !transpose_y)
        enqueue_product(context, a.transposed(), d, context.Alloc<T>(dy));
    if (dy && transpose_y)
        enqueue_product(context, d.transposed(), a, context.Alloc<T>(dy));
}

/* ---- optimizer ------------------------------------------------------------------------------- */

template <typename T>
void Sgd(const Context &context, const DenseTensor &param, const DenseTensor &learning_rate,
         const DenseTensor &grad, const paddle::optional<DenseTensor> &, bool multi_precision,
         DenseTensor *out, DenseTensor *) {
    PD_CHECK(!multi_precision, "sgd takes no second set of parameters");
    const T *from = param.data<T>();
    const T *slope = grad.data<T>();
    const T *rate = learning_rate.data<T>(); /* memory of the device: it is read by the worker */
    T *to = context.Alloc<T>(out);
    enqueue_elements(context, param.numel(),
                     [=](int64_t i) { to[i] = from[i] - *rate * slope[i]; });
}

} // namespace custom_cpu

/* Adds an operator to Paddle's table, for the listed types of elements. */
#define REGISTER(name, function, ...)                                                      \
    PD_BUILD_PHI_KERNEL(name, custom_cpu, ALL_LAYOUT, custom_cpu::function, __VA_ARGS__) { \
    }                                                                                      \
    static_assert(true, "") /* takes the semicolon */

REGISTER(full, Full, bool, int32_t, int64_t, float, double);
REGISTER(full_like, FullLike, bool, int32_t, int64_t, float, double);
REGISTER(contiguous, Contiguous, bool, uint8_t, int32_t, int64_t, float, double);
REGISTER(add, Add, int32_t, int64_t, float, double);
REGISTER(subtract, Subtract, int32_t, int64_t, float, double);
REGISTER(multiply, Multiply, int32_t, int64_t, float, double);
REGISTER(add_grad, AddGrad, float, double);
REGISTER(subtract_grad, SubtractGrad, float, double);
REGISTER(multiply_grad, MultiplyGrad, float, double);
REGISTER(scale, Scale, int32_t, int64_t, float, double);
REGISTER(relu, Relu, float, double);
REGISTER(relu_grad, ReluGrad, float, double);
REGISTER(mean, Mean, float, double);
REGISTER(mean_grad, MeanGrad, float, double);
REGISTER(matmul, Matmul, float, double);
REGISTER(matmul_grad, MatmulGrad, float, double);
REGISTER(sgd, Sgd, float, double);
