/* comm/kernel.h - kernels of the collectives.

   Describes the kernels of reductions and strided copies (ds__comm_desc), creates them, and
   launches them (ds__comm_launch). ds__comm_kind and ds__comm_which select the kernel for a data
   type and an operation. There is one kernel with one module for each way to compute. A kernel
   is created at first use, for all devices. On a GPU, a block of threads processes 4 KiB of the
   result at a time, or 256 numbers. The CPU form and the CUDA form accept any number of items.

   Invariants: the inputs are one parameter of the CUDA form, an array. The parameter list names
   each input again at its end, for code that looks for pointers in the list. The id of a kernel
   is 0 until its creation and does not change before ds_shutdown. A zero stream handle makes
   ds__comm_launch run the CPU form at once.
   Locks: ds__comm_made.mutex is held while a kernel is created, and the lock of the kernel table
   is taken under that mutex. No driver call runs under the mutex.
   Threads: caller's threads, several at the same time. ds__comm_kernels_deinit runs in ds_shutdown
   only. */
#ifndef DS__COMM_KERNEL_H
#define DS__COMM_KERNEL_H

#include "../api/dtype.h"
#include "../core/internal.h"
#include "../alloc/internal.h"
#include "kernel_arith.h"
#include "kernel_cpu.h"
#include "kernel_pack.h"
#include "runs.h"
#include "kernels.gen.h"

enum {
    DS__COMM_SELECT,
    DS__COMM_INTEGERS,
    DS__COMM_DIVIDE,
    DS__COMM_REAL32,
    DS__COMM_REAL64,
    DS__COMM_HALVES,
    DS__COMM_HALVES_CUT,
    DS__COMM_COMPLEX,
    DS__COMM_PACK,
    DS__COMM_KERNELS
};

static struct {
    ds__mutex mutex;
    _Atomic uint64_t id[DS__COMM_KERNELS]; /* 0: not created yet */
} ds__comm_made = { .mutex = DS__MUTEX_INIT };

#define DS__COMM_P(kind, args, member) \
    { DS_PARAM_##kind, offsetof(args, member), sizeof(((args *)0)->member) }
#define DS__COMM_R(kind, member) DS__COMM_P(kind, ds__comm_reduce_args, member)
#define DS__COMM_OPERANDS                                                    \
    DS__COMM_R(WRITE, out), DS__COMM_R(VALUE, in), DS__COMM_R(VALUE, bytes), \
        DS__COMM_R(VALUE, inputs)
#define DS__COMM_IN(i) DS__COMM_R(READ, in.at[i])
#define DS__COMM_POINTERS                                                           \
    DS__COMM_IN(0), DS__COMM_IN(1), DS__COMM_IN(2), DS__COMM_IN(3), DS__COMM_IN(4), \
        DS__COMM_IN(5), DS__COMM_IN(6), DS__COMM_IN(7)

static const ds_param ds__comm_select_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks),
                                                   DS__COMM_POINTERS };
static const ds_param ds__comm_integer_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks),
                                                    DS__COMM_R(VALUE, op), DS__COMM_POINTERS };
static const ds_param ds__comm_real_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op),
                                                 DS__COMM_R(VALUE, divisor), DS__COMM_POINTERS };
static const ds_param ds__comm_half_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op),
                                                 DS__COMM_R(VALUE, divisor),
                                                 DS__COMM_R(VALUE, kind), DS__COMM_POINTERS };
static const ds_param ds__comm_cut_params[] = { DS__COMM_OPERANDS,          DS__COMM_R(VALUE, op),
                                                DS__COMM_R(VALUE, divisor), DS__COMM_R(VALUE, kind),
                                                DS__COMM_R(VALUE, wide),    DS__COMM_POINTERS };
static const ds_param ds__comm_complex_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, kind),
                                                    DS__COMM_POINTERS };
static const ds_param ds__comm_divide_params[] = {
    DS__COMM_P(READ_WRITE, ds__comm_divide_args, out),
    DS__COMM_P(VALUE, ds__comm_divide_args, bytes), DS__COMM_P(VALUE, ds__comm_divide_args, kind),
    DS__COMM_P(VALUE, ds__comm_divide_args, divisor)
};
static const ds_param ds__comm_pack_params[] = {
    DS__COMM_P(WRITE, ds__comm_pack_args, dst),   DS__COMM_P(READ, ds__comm_pack_args, src),
    DS__COMM_P(VALUE, ds__comm_pack_args, dims),  DS__COMM_P(VALUE, ds__comm_pack_args, elements),
    DS__COMM_P(VALUE, ds__comm_pack_args, ndim),  DS__COMM_P(VALUE, ds__comm_pack_args, size),
    DS__COMM_P(VALUE, ds__comm_pack_args, narrow)
};

/* Extents of the parameters: `bytes` bytes, parameter 2, for the result and each input. The
   arguments stand for values between the operands and the pointers. */
#define DS__COMM_EXTENT \
    { .kind = DS_EXTENT_COUNT, .bytes = 1, .count_param = 2 }
#define DS__COMM_VALUE \
    { .kind = DS_EXTENT_NONE }
#define DS__COMM_EXTENTS_OF_INPUTS                                                       \
    DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, \
        DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT
#define DS__COMM_EXTENTS(...)                                                         \
    {                                                                                 \
        DS__COMM_EXTENT, DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE, __VA_ARGS__, \
            DS__COMM_EXTENTS_OF_INPUTS                                                \
    }
static const ds_extent ds__comm_select_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE);
static const ds_extent ds__comm_integer_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_real_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_half_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_cut_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_complex_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE);
static const ds_extent ds__comm_divide_extents[] = {
    { .kind = DS_EXTENT_COUNT, .bytes = 1, .count_param = 1 }, { 0 }, { 0 }, { 0 }
};
/* of a strided copy: ds__comm_pack_rows */
static const ds_extent ds__comm_pack_extents[sizeof ds__comm_pack_params / sizeof(ds_param)];

/* Bytes that a launch reads and writes. On a virtual clock they determine its duration. */
static uint64_t ds__comm_reduce_bytes(size_t items, const void *args) {
    const ds__comm_reduce_args *a = args;
    uint64_t numbers =
        a->inputs + 1u + ((a->wide & DS__COMM_WIDE_IN) != 0) + ((a->wide & DS__COMM_WIDE_OUT) != 0);
    (void)items;
    return numbers * a->bytes;
}

static uint64_t ds__comm_divide_bytes(size_t items, const void *args) {
    (void)items;
    return 2 * ((const ds__comm_divide_args *)args)->bytes;
}

static uint64_t ds__comm_pack_bytes(size_t items, const void *args) {
    const ds__comm_pack_args *a = args;
    (void)items;
    return 2 * a->elements * a->size;
}

/* Writes the rows of one side of a strided copy; see ds__kernel.rows_fn. */
static int ds__comm_pack_rows(const void *args, size_t param, size_t out_rows[3]) {
    const ds__comm_pack_args *a = args;
    int64_t shape[DS__COMM_DIMS + 1];
    int64_t strides[DS__COMM_DIMS + 1];
    for (uint32_t i = 0; i < a->ndim; i++) {
        strides[i] = param == 0 ? a->dims.dst[i] : a->dims.src[i];
        shape[i] = strides[i] ? (int64_t)a->dims.size[i] : 1; /* elements at one address are one */
    }
    shape[a->ndim] = a->size;
    strides[a->ndim] = 1;
    ds__comm_copy side = { 1, (int)a->ndim + 1, shape, strides, strides };
    ds__runs m;
    ds__runs_of(&side, &m);
    if (m.ndim > 1 || (m.ndim && m.dst[0] < (int64_t)m.width)) /* not of one pitch, or backwards */
        return 0;
    out_rows[0] = m.width;
    out_rows[1] = m.ndim ? (size_t)m.dst[0] : m.width;
    out_rows[2] = m.ndim ? (size_t)m.shape[0] : 1;
    return 1;
}

static ds_kernel_desc ds__comm_desc(int which) {
#define DS__COMM_DESC(text, form, code, what, args, list)                                          \
    {                                                                                              \
        .name = text, .cpu_fn = ds__comm_##what##_items, .bytes_fn = ds__comm_##what##_bytes,      \
        .args_size = sizeof(args), .params = list##_params,                                        \
        .param_count = sizeof(list##_params) / sizeof *(list##_params), .extents = list##_extents, \
        .cuda = {                                                                                  \
            .form = ds__ptx_comm_##code,                                                           \
            .entry = "ds__comm_" #code,                                                            \
            .block = 256,                                                                          \
            .items_per_block = 1,                                                                  \
            .blocks_per_multiprocessor = 8                                                         \
        }                                                                                          \
    }
    static const ds_kernel_desc desc[DS__COMM_KERNELS] = {
        [DS__COMM_SELECT] = DS__COMM_DESC("largest or smallest of tensors", image, select, reduce,
                                          ds__comm_reduce_args, ds__comm_select),
        [DS__COMM_INTEGERS] = DS__COMM_DESC("sum or product of tensors", image, integers, reduce,
                                            ds__comm_reduce_args, ds__comm_integer),
        [DS__COMM_DIVIDE] = DS__COMM_DESC("average of integer tensors", image, divide, divide,
                                          ds__comm_divide_args, ds__comm_divide),
        [DS__COMM_REAL32] = DS__COMM_DESC("sum or product of tensors", image, f32, reduce,
                                          ds__comm_reduce_args, ds__comm_real),
        [DS__COMM_REAL64] = DS__COMM_DESC("sum or product of tensors", image, f64, reduce,
                                          ds__comm_reduce_args, ds__comm_real),
        [DS__COMM_HALVES] = DS__COMM_DESC("sum or product of tensors", image_pieces, halves, reduce,
                                          ds__comm_reduce_args, ds__comm_half),
        [DS__COMM_HALVES_CUT] = DS__COMM_DESC("sum or product of tensors", image, halves_cut,
                                              reduce, ds__comm_reduce_args, ds__comm_cut),
        [DS__COMM_COMPLEX] = DS__COMM_DESC("product of complex tensors", image, complex, reduce,
                                           ds__comm_reduce_args, ds__comm_complex),
        [DS__COMM_PACK] = DS__COMM_DESC("strided copy of a tensor", image_pieces, pack, pack,
                                        ds__comm_pack_args, ds__comm_pack),
    };
#undef DS__COMM_DESC
    return desc[which];
}

static void ds__comm_set_rows(ds_kernel kernel) {
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    k->rows_fn = ds__comm_pack_rows;
    ds__unpin(&ds__g.kernels, k);
}

/* Returns the handle of a kernel, which is created at first use. */
static ds_result ds__comm_kernel(int which, ds_kernel *out) {
    ds_result r = DS_OK;
    out->id = atomic_load_explicit(&ds__comm_made.id[which], memory_order_acquire);
    if (DS__LIKELY(out->id))
        return DS_OK;
    ds__mutex_lock(&ds__comm_made.mutex);
    out->id = atomic_load(&ds__comm_made.id[which]);
    if (!out->id) {
        ds_kernel_desc desc = ds__comm_desc(which);
        r = ds__kernel_create(&desc, out);
        if (r == DS_OK && which == DS__COMM_PACK)
            ds__comm_set_rows(*out);
        if (r == DS_OK)
            atomic_store_explicit(&ds__comm_made.id[which], out->id, memory_order_release);
    }
    ds__mutex_unlock(&ds__comm_made.mutex);
    return r;
}

/* Destroys the kernels. Called by ds_shutdown, when no launch is pending. */
static void ds__comm_kernels_deinit(void) {
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        uint64_t id = atomic_exchange(&ds__comm_made.id[i], 0);
        ds__kernel *k = id ? ds__pin(&ds__g.kernels, id) : NULL;
        if (!k)
            continue;
        ds__table_invalidate(&ds__g.kernels, k);
        ds__unpin(&ds__g.kernels, k);
    }
}

/* Returns the items of a launch: parts of DS__COMM_ITEM bytes on a CPU device, else blocks of 256
   threads. A GPU's thread processes one of `numbers`; if `numbers` is 0, 16 bytes. */
static uint64_t ds__comm_items(ds_device device, uint64_t bytes, uint64_t numbers) {
    if (device.type != DS_DEVICE_CUDA)
        return (bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM;
    return numbers ? (numbers + 255) / 256 : (bytes + 15 + 4095) / 4096;
}

/* Launches a kernel for `bytes` of the result; zero stream: the calling thread runs the CPU form.
   numbers: as in ds__comm_items. */
static ds_result ds__comm_launch(int which, ds_stream stream, uint64_t bytes, uint64_t numbers,
                                 const void *args, size_t args_size) {
    ds_device device;
    ds_kernel kernel;
    if (!stream.id) {
        device = (ds_device){ DS_DEVICE_CPU, 0 };
        (void)ds__comm_desc(which).cpu_fn(0, (size_t)ds__comm_items(device, bytes, 0), args);
        return DS_OK;
    }
    ds_result r;
    DS__KEEPING(r, (ds_stream_get_device)(stream, &device));
    if (r == DS_OK)
        r = ds__comm_kernel(which, &kernel);
    if (r < 0)
        return r;
    size_t items = (size_t)ds__comm_items(device, bytes, numbers);
    DS__KEEPING(r, (ds_kernel_launch)(kernel, items, args, args_size, stream));
    return r;
}

/* Kinds of the numbers of a data type, plus 1, by DS_CODE_* and the logarithm of the bytes; 0: not
   supported. A sum of complex elements adds real numbers, so its row has their kinds. */
static const unsigned char ds__comm_kinds[][5] = {
    [DS_CODE_INT] = { 1 + DS__COMM_I8, 1 + DS__COMM_I16, 1 + DS__COMM_I32, 1 + DS__COMM_I64, 0 },
    [DS_CODE_UINT] = { 1 + DS__COMM_U8, 1 + DS__COMM_U16, 1 + DS__COMM_U32, 1 + DS__COMM_U64, 0 },
    [DS_CODE_FLOAT] = { 0, 1 + DS__COMM_F16, 1 + DS__COMM_F32, 1 + DS__COMM_F64, 0 },
    [DS_CODE_BFLOAT] = { 0, 1 + DS__COMM_BF16, 0, 0, 0 },
    [DS_CODE_COMPLEX] = { 0, 0, 1 + DS__COMM_F16, 1 + DS__COMM_F32, 1 + DS__COMM_F64 },
    [DS_CODE_BOOL] = { 1 + DS__COMM_U8, 0, 0, 0, 0 }
};

static const unsigned char ds__comm_complex_products[5] = { 0, 0, 0, 1 + DS__COMM_C64,
                                                            1 + DS__COMM_C128 };

/* Returns the kind of a data type's numbers, and their count per element; -1: the reduction is not
   supported. For bool, sum and product become maximum and minimum. divisor: not 0 for an
   average. */
static int ds__comm_kind(ds_dtype dtype, uint32_t *op, uint32_t divisor, uint64_t *per_element) {
    int complex = dtype.code == DS_CODE_COMPLEX;
    *per_element = complex && *op != DS__COMM_PRODUCT ? 2 : 1;
    if (dtype.lanes != 1 || dtype.code > DS_CODE_BOOL || dtype.bits < 8 ||
        dtype.bits & (dtype.bits - 1))
        return -1;
    int log = __builtin_ctz(dtype.bits) - 3;
    if (complex && *op == DS__COMM_PRODUCT)
        return ds__comm_complex_products[log] - 1;
    if (complex && *op != DS__COMM_SUM)
        return -1;
    if (dtype.code == DS_CODE_BOOL) {
        if (divisor)
            return -1;
        if (*op == DS__COMM_SUM)
            *op = DS__COMM_MAX;
        if (*op == DS__COMM_PRODUCT)
            *op = DS__COMM_MIN;
    }
    return ds__comm_kinds[dtype.code][log] - 1;
}

/* Returns the kernel (DS__COMM_SELECT and so on) of a kind, operation and DS__COMM_WIDE_*. */
static int ds__comm_which(uint32_t kind, uint32_t op, uint32_t wide) {
    if (op >= DS__COMM_MAX)
        return DS__COMM_SELECT;
    if (kind <= DS__COMM_I64)
        return DS__COMM_INTEGERS;
    if (kind <= DS__COMM_BF16)
        return wide ? DS__COMM_HALVES_CUT : DS__COMM_HALVES;
    if (kind >= DS__COMM_C64)
        return DS__COMM_COMPLEX;
    return kind == DS__COMM_F32 ? DS__COMM_REAL32 : DS__COMM_REAL64;
}

/* With these compiler options, the compiler may reorder sums and assume that there is no NaN, so
   the results would not be bit-identical. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__) || __FINITE_MATH_ONLY__ + 0
enum { DS__COMM_EXACT = 0 };
#else
enum { DS__COMM_EXACT = 1 };
#endif

#endif
