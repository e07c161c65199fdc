/* DLPack's managed tensors with forged headers, in both forms. The members are bytes of the input;
   the shape has as many sizes as `ndim` says, as the contract demands, and the memory is never
   read.

   An accepted tensor must describe bytes inside the address space, also its views, and its deleter
   runs once. A refused one is not deleted. An accepted tensor that is exported and imported again
   is the same one. */
#include "reader.h"

static int deleted;

static void delete_plain(ds_managed_tensor *self) {
    (void)self;
    deleted++;
}

static void delete_versioned(ds_managed_tensor_versioned *self) {
    (void)self;
    deleted++;
}

/* Returns a size or stride, small ones more often. */
static int64_t take_size(input *in) {
    int64_t n;
    unsigned first = take(in);
    if (first < 200)
        return first % 16;
    if (first < 220)
        return -(int64_t)(first % 4);
    take_bytes(in, &n, sizeof n);
    return n;
}

static int64_t *take_sizes(input *in, int32_t ndim) {
    if (ndim <= 0 || ndim > DS_TENSOR_MAX_DIMS || take(in) % 16 == 15)
        return NULL;
    int64_t *sizes = malloc((size_t)ndim * sizeof *sizes);
    if (!sizes)
        stop("malloc");
    for (int32_t i = 0; i < ndim; i++)
        sizes[i] = take_size(in);
    return sizes;
}

static ds_tensor take_tensor(input *in) {
    static const int32_t types[] = { DS_DEVICE_HOST, DS_DEVICE_CPU, DS_TENSOR_CUDA_HOST,
                                     DS_DEVICE_CURRENT };
    ds_tensor t;
    uint64_t number;
    unsigned how = take(in);
    memset(&t, 0, sizeof t);
    take_bytes(in, &number, how & 1 ? 8 : 2);
    t.data = (void *)(uintptr_t)number;
    if (how & 2)
        take_bytes(in, &t.device, sizeof t.device);
    else
        t.device.type = types[take(in) % 4];
    if (how & 4)
        take_bytes(in, &t.ndim, sizeof t.ndim);
    else
        t.ndim = (int32_t)(take(in) % 6);
    if (how & 8)
        take_bytes(in, &t.dtype, sizeof t.dtype);
    else
        t.dtype = take(in) % 2 ? (ds_dtype){ 2, 32, 1 } : (ds_dtype){ 5, 64, 1 };
    if (how & 16)
        take_bytes(in, &t.byte_offset, sizeof t.byte_offset);
    t.shape = take_sizes(in, t.ndim);
    t.strides = how & 32 ? take_sizes(in, t.ndim) : NULL;
    return t;
}

/* All elements must lie in the address space. */
static void check(const ds_tensor *t) {
    __int128 low = (__int128)(uintptr_t)t->data + t->byte_offset;
    __int128 high = low;
    __int128 item = ds_dtype_get_size(t->dtype);
    int64_t count = ds_tensor_get_count(t);
    MUST(ds_tensor_check(t));
    if (count < 0)
        stop("a tensor without a number of elements");
    for (int i = 0; count && i < t->ndim; i++) {
        __int128 by = (__int128)(t->shape[i] - 1) * t->strides[i] * item;
        if (by < 0)
            low += by;
        else
            high += by;
    }
    if (count && (low < 0 || high + item > (__int128)UINTPTR_MAX + 1))
        stop("a tensor beyond the address space");
    (void)ds_tensor_is_dense(t);
    (void)ds_tensor_is_contiguous(t);
    (void)ds_tensor_get_size(t);
}

static ds_result make_view(input *in, const ds_tensor *t, ds_tensor **out) {
    int dim = (int)(take(in) % 8) - 4;
    int order[DS_TENSOR_MAX_DIMS];
    int64_t *shape;
    ds_result r;
    switch (take(in) % 7) {
    case 0:
        return ds_tensor_narrow(t, dim, take_size(in), take_size(in), out);
    case 1:
        return ds_tensor_slice(t, dim, take_size(in), take_size(in), take_size(in), out);
    case 2:
        return ds_tensor_select(t, dim, take_size(in), out);
    case 3:
        for (int i = 0; i < t->ndim; i++)
            order[i] = (int)(take(in) % (unsigned)t->ndim);
        return ds_tensor_permute(t, order, out);
    case 4:
        return ds_tensor_transpose(t, dim, (int)(take(in) % 8) - 4, out);
    case 5:
        return ds_tensor_as_real(t, out);
    default:
        dim = (int)(take(in) % 6);
        shape = take_sizes(in, dim);
        r = ds_tensor_view(t, dim, shape, out);
        free(shape);
        return r;
    }
}

static void make_views(input *in, const ds_tensor *t) {
    ds_tensor *view[6] = { NULL };
    const ds_tensor *from = t;
    for (int i = 0; i < 6 && in->at < in->end; i++) {
        ds_result r = make_view(in, from, &view[i]);
        check_refusal(r);
        if ((r < 0) != !view[i])
            stop("a view without a result");
        if (view[i]) {
            check(view[i]);
            from = view[i];
        }
    }
    for (int i = 0; i < 6; i++)
        MUST(ds_tensor_free(view[i]));
}

static void hand_over(const ds_tensor *t) {
    ds_managed_tensor_versioned *managed = NULL;
    ds_tensor *again = NULL;
    MUST(ds_tensor_export_versioned(t, &managed));
    MUST(ds_tensor_import_versioned(managed, &again));
    check(again);
    if (ds_tensor_get_count(again) != ds_tensor_get_count(t) || again->ndim != t->ndim)
        stop("an exported tensor is another one");
    MUST(ds_tensor_free(again));
}

static void read_tensors(input *in) {
    unsigned how = take(in);
    ds_managed_tensor plain = { .deleter = how & 1 ? delete_plain : NULL };
    ds_managed_tensor_versioned versioned = { .version = { 1, 1 },
                                              .deleter = how & 1 ? delete_versioned : NULL };
    ds_tensor *t = NULL;
    ds_result r;
    deleted = 0;
    if (how & 2) {
        if (how & 4)
            take_bytes(in, &versioned.version, sizeof versioned.version);
        take_bytes(in, &versioned.flags, how & 8 ? 8 : 1);
        versioned.tensor = take_tensor(in);
        r = ds_tensor_import_versioned(&versioned, &t);
    } else {
        plain.tensor = take_tensor(in);
        r = ds_tensor_import(&plain, &t);
    }
    check_refusal(r);
    if ((r < 0) != !t || deleted)
        stop("an import without a result");
    if (t) {
        check(t);
        make_views(in, t);
        hand_over(t);
        MUST(ds_tensor_free(t));
    }
    if (deleted != (r == DS_OK && how & 1))
        stop("the deleter");
    free(how & 2 ? versioned.tensor.shape : plain.tensor.shape);
    free(how & 2 ? versioned.tensor.strides : plain.tensor.strides);
}

const reader reader_tensors = { "tensors", read_tensors, 0 };
