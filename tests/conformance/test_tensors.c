/* Tensors: descriptions in DLPack's layout, objects and their memory, views, and the exchange
   with other libraries. */
#include "alloc.h"
#include "devstream_comm.h"
#include <stdatomic.h>
#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define HAVE_DLPACK 1
#endif
#endif

#define SHAPE(...)  \
    (int64_t[]) {   \
        __VA_ARGS__ \
    }

static ds_device host(void) {
    return (ds_device){ DS_DEVICE_HOST, 0 };
}

/* Whole numbers in host memory, 0, 1, 2 and so on: an element is its own position. */
static int32_t numbers[4096];

static void count_up(void) {
    for (int i = 0; i < 4096; i++)
        numbers[i] = i;
}

/* The elements of a tensor of such numbers, in row-major order. */
static size_t elements(const ds_tensor *t, int32_t *out, size_t room) {
    int64_t at[DS_TENSOR_MAX_DIMS] = { 0 };
    size_t n = 0;
    int64_t count = ds_tensor_get_count(t);
    while ((int64_t)n < count && n < room) {
        int64_t where = 0;
        for (int d = 0; d < t->ndim; d++)
            where += at[d] * t->strides[d];
        out[n++] = ((const int32_t *)ds_tensor_address(t))[where];
        for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->shape[d]; d--)
            at[d] = 0;
    }
    return n;
}

static void expect_shape(const ds_tensor *t, int ndim, const int64_t *shape) {
    assert_int_equal(t->ndim, ndim);
    for (int d = 0; d < ndim; d++)
        assert_int_equal(t->shape[d], shape[d]);
}

static void expect_elements(const ds_tensor *t, int count, const int32_t *want) {
    int32_t got[64];
    assert_int_equal(elements(t, got, 64), count);
    for (int i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("element %d is %d, not %d", i, got[i], want[i]);
}

#define ELEMENTS(t, ...) \
    expect_elements(t, (int)(sizeof(int32_t[]){ __VA_ARGS__ } / 4), (int32_t[]){ __VA_ARGS__ })

/* ---- descriptions ---- */

static void test_a_description_has_the_bytes_of_dlpacks(void **state) {
    (void)state;
    assert_int_equal(sizeof(ds_dtype), 4);
    assert_int_equal(offsetof(ds_dtype, bits), 1);
    assert_int_equal(offsetof(ds_dtype, lanes), 2);
    assert_int_equal(sizeof(ds_tensor), 48);
    assert_int_equal(offsetof(ds_tensor, device), 8);
    assert_int_equal(offsetof(ds_tensor, ndim), 16);
    assert_int_equal(offsetof(ds_tensor, dtype), 20);
    assert_int_equal(offsetof(ds_tensor, shape), 24);
    assert_int_equal(offsetof(ds_tensor, strides), 32);
    assert_int_equal(offsetof(ds_tensor, byte_offset), 40);
    assert_int_equal(offsetof(ds_managed_tensor, manager_ctx), 48);
    assert_int_equal(offsetof(ds_managed_tensor, deleter), 56);
    /* The versioned struct of DLPack 1.1. */
    assert_int_equal(sizeof(ds_managed_tensor_versioned), 80);
    assert_int_equal(offsetof(ds_managed_tensor_versioned, manager_ctx), 8);
    assert_int_equal(offsetof(ds_managed_tensor_versioned, deleter), 16);
    assert_int_equal(offsetof(ds_managed_tensor_versioned, flags), 24);
    assert_int_equal(offsetof(ds_managed_tensor_versioned, tensor), 32);
    assert_int_equal(DS_DLPACK_READ_ONLY, 1 << 0);
    assert_int_equal(DS_DLPACK_IS_COPIED, 1 << 1);
    assert_int_equal(DS_DLPACK_SUBBYTE_PADDED, 1 << 2);
#ifdef HAVE_DLPACK
    assert_int_equal(sizeof(DLTensor), sizeof(ds_tensor));
    assert_int_equal(offsetof(DLTensor, data), offsetof(ds_tensor, data));
    assert_int_equal(offsetof(DLTensor, ndim), offsetof(ds_tensor, ndim));
    assert_int_equal(offsetof(DLTensor, dtype), offsetof(ds_tensor, dtype));
    assert_int_equal(offsetof(DLTensor, shape), offsetof(ds_tensor, shape));
    assert_int_equal(offsetof(DLTensor, strides), offsetof(ds_tensor, strides));
    assert_int_equal(offsetof(DLTensor, byte_offset), offsetof(ds_tensor, byte_offset));
    assert_int_equal(sizeof(DLManagedTensor), sizeof(ds_managed_tensor));
    assert_int_equal(offsetof(DLManagedTensor, manager_ctx),
                     offsetof(ds_managed_tensor, manager_ctx));
    assert_int_equal(offsetof(DLManagedTensor, deleter), offsetof(ds_managed_tensor, deleter));
    assert_int_equal(kDLCPU, DS_DEVICE_HOST);
    assert_int_equal(kDLCUDA, DS_DEVICE_CUDA);
    assert_int_equal(kDLCUDAHost, DS_TENSOR_CUDA_HOST);
    assert_int_equal(kDLCUDAManaged, DS_TENSOR_CUDA_MANAGED);
    assert_int_equal(kDLExtDev, DS_DEVICE_CPU);
    assert_int_equal(kDLInt, DS_CODE_INT);
    assert_int_equal(kDLUInt, DS_CODE_UINT);
    assert_int_equal(kDLFloat, DS_CODE_FLOAT);
    assert_int_equal(kDLOpaqueHandle, DS_CODE_OPAQUE);
    assert_int_equal(kDLBfloat, DS_CODE_BFLOAT);
    assert_int_equal(kDLComplex, DS_CODE_COMPLEX);
#endif
}

static void test_every_data_type_has_torchs_name(void **state) {
    (void)state;

    /* codes of DLPack 1.1 */
    static const struct {
        const char *name;
        int code, bits, lanes;
        size_t size;
    } types[] = {
        { "bool", 6, 8, 1, 1 },
        { "int8", 0, 8, 1, 1 },
        { "int16", 0, 16, 1, 2 },
        { "int32", 0, 32, 1, 4 },
        { "int64", 0, 64, 1, 8 },
        { "uint8", 1, 8, 1, 1 },
        { "uint16", 1, 16, 1, 2 },
        { "uint32", 1, 32, 1, 4 },
        { "uint64", 1, 64, 1, 8 },
        { "float16", 2, 16, 1, 2 },
        { "bfloat16", 4, 16, 1, 2 },
        { "float32", 2, 32, 1, 4 },
        { "float64", 2, 64, 1, 8 },
        { "complex32", 5, 32, 1, 4 },
        { "complex64", 5, 64, 1, 8 },
        { "complex128", 5, 128, 1, 16 },
        { "float8_e3m4", 7, 8, 1, 1 },
        { "float8_e4m3", 8, 8, 1, 1 },
        { "float8_e4m3b11fnuz", 9, 8, 1, 1 },
        { "float8_e4m3fn", 10, 8, 1, 1 },
        { "float8_e4m3fnuz", 11, 8, 1, 1 },
        { "float8_e5m2", 12, 8, 1, 1 },
        { "float8_e5m2fnuz", 13, 8, 1, 1 },
        { "float8_e8m0fnu", 14, 8, 1, 1 },
        { "float4_e2m1fn_x2", 17, 4, 2, 1 },
        { "3:64:1", 3, 64, 1, 8 },
        { "2:32:4", 2, 32, 4, 16 },
        { "15:6:1", 15, 6, 1, 0 },
    };

    static const char *const others[][2] = { { "float", "float32" },    { "double", "float64" },
                                             { "half", "float16" },     { "long", "int64" },
                                             { "int", "int32" },        { "short", "int16" },
                                             { "cfloat", "complex64" }, { "cdouble", "complex128" },
                                             { "chalf", "complex32" } };
    char text[DS_DTYPE_NAME_SIZE];
    ds_dtype t, u;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ok(ds_dtype_parse(types[i].name, &t));
        assert_int_equal(t.code, types[i].code);
        assert_int_equal(t.bits, types[i].bits);
        assert_int_equal(t.lanes, types[i].lanes);
        assert_int_equal(ds_dtype_get_size(t), types[i].size);
        ok(ds_dtype_format(t, text, sizeof text));
        assert_string_equal(text, types[i].name);
        refused(ds_dtype_format(t, text, strlen(types[i].name)), DS_ERR_INVALID_VALUE);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ok(ds_dtype_parse(others[i][0], &t));
        ok(ds_dtype_parse(others[i][1], &u));
        assert_true(ds_dtype_equal(t, u));
    }
    assert_true(ds_dtype_equal(t, ds_complex32()) && !ds_dtype_equal(ds_float16(), ds_bfloat16()) &&
                !ds_dtype_equal(ds_int8(), ds_bool()));
    refused(ds_dtype_parse("float33", &t), DS_ERR_INVALID_VALUE);
    refused(ds_dtype_parse("2:32", &t), DS_ERR_INVALID_VALUE);
    refused(ds_dtype_parse("2:32:4x", &t), DS_ERR_INVALID_VALUE);
    refused(ds_dtype_parse("300:32:4", &t), DS_ERR_INVALID_VALUE);
    refused(ds_dtype_parse(NULL, &t), DS_ERR_INVALID_VALUE);
}

static void test_a_bad_description_is_refused_with_its_numbers(void **state) {
    (void)state;
    float x[8] = { 0 };
    int64_t big = INT64_MAX / 2;

    struct {
        ds_tensor t;
        ds_result r;
        const char *says;
    } bad[] = {
        { { x, host(), -1, ds_float32(), SHAPE(1), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "-1 dimensions" },
        { { x, host(), 65, ds_float32(), SHAPE(1), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "65 dimensions" },
        { { x, host(), 1, ds_float32(), NULL, NULL, 0 }, DS_ERR_INVALID_VALUE, "shape of" },
        { { x, host(), 2, ds_float32(), SHAPE(2, -3), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "the size -3 in dimension 1" },
        { { x, host(), 2, ds_float32(), SHAPE(big, big), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "larger than the address space" },
        { { x, host(), 1, ds_float32(), SHAPE(big), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "larger than the address space" },
        { { x, host(), 1, ds_float32(), SHAPE(3), SHAPE(big), 0 },
          DS_ERR_INVALID_VALUE,
          "strides" },
        { { x, host(), 1, ds_float32(), SHAPE(3), SHAPE(-big), 0 },
          DS_ERR_INVALID_VALUE,
          "strides" },
        { { x, host(), 1, ds_float32(), SHAPE(3), SHAPE(-(INT64_MAX / 16)), 0 },
          DS_ERR_INVALID_VALUE,
          "beyond the address space" },
        { { x, host(), 1, ds_float32(), SHAPE(3), NULL, UINT64_MAX - 8 },
          DS_ERR_INVALID_VALUE,
          "beyond the address space" },
        { { NULL, host(), 1, ds_float32(), SHAPE(3), NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "3 elements and its data is NULL" },
        { { NULL, host(), 0, ds_float32(), NULL, NULL, 0 },
          DS_ERR_INVALID_VALUE,
          "1 elements and its data is NULL" },
        { { x, host(), 1, { 2, 0, 1 }, SHAPE(3), NULL, 0 }, DS_ERR_INVALID_VALUE, "0 bits" },
        { { x, host(), 1, { 2, 32, 0 }, SHAPE(3), NULL, 0 }, DS_ERR_INVALID_VALUE, "0 lanes" },
        { { x, host(), 1, { 15, 6, 1 }, SHAPE(3), NULL, 0 }, DS_ERR_UNSUPPORTED, "6 bits" },
        { { x, { 10, 0 }, 1, ds_float32(), SHAPE(3), NULL, 0 }, DS_ERR_UNSUPPORTED, "type 10" },
        { { x, { harness_device(0).type, 1000 }, 1, ds_float32(), SHAPE(3), NULL, 0 },
          DS_ERR_DEVICE_RANGE,
          ":1000" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ds_tensor *out = &bad[0].t;
        refused(ds_tensor_check(&bad[i].t), bad[i].r);
        if (!strstr(ds_error_get_last(), bad[i].says))
            fail_msg("case %zu says: %s", i, ds_error_get_last());
        refused(ds_tensor_wrap(&bad[i].t, 0, NULL, NULL, &out), bad[i].r);
        assert_null(out);
    }
    refused(ds_tensor_check(NULL), DS_ERR_INVALID_VALUE);
    /* What is unusual and good. */
    ok(ds_tensor_check(&(ds_tensor){ NULL, host(), 3, ds_float32(), SHAPE(big, 0, big), NULL, 0 }));
    ok(ds_tensor_check(&(ds_tensor){ NULL, host(), 3, ds_float32(), SHAPE(big, big, 0), NULL, 0 }));
    ok(ds_tensor_check(&(ds_tensor){ x, host(), 0, ds_float32(), NULL, NULL, 4 }));
    ok(ds_tensor_check(&(ds_tensor){ x + 7, host(), 1, ds_float32(), SHAPE(8), SHAPE(-1), 0 }));
    ok(ds_tensor_check(
        &(ds_tensor){ x, host(), 2, ds_float32(), SHAPE(1, 1), SHAPE(big, -big), 0 }));
    ok(ds_tensor_check(
        &(ds_tensor){ x, { DS_TENSOR_CUDA_HOST, 0 }, 1, ds_float32(), SHAPE(8), NULL, 0 }));
    ok(ds_tensor_check(&(ds_tensor){ x, { 0, 0 }, 1, ds_float32(), SHAPE(8), NULL, 0 }));
}

static void test_sizes_do_not_overflow(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t = NULL;
    int64_t half = (int64_t)1 << 62;
    ds_tensor d = ds_tensor_of(NULL, host(), ds_float64(), 2, SHAPE(half, 4));
    assert_int_equal(ds_tensor_get_count(&d), -1);
    assert_int_equal(ds_tensor_get_count(NULL), -1);
    assert_int_equal(ds_tensor_get_size(NULL), 0);
    assert_int_equal(ds_tensor_is_contiguous(NULL) + ds_tensor_is_dense(NULL), 0);
    assert_int_equal(ds_tensor_get_size(&d), 0);
    d.ndim = 1;
    assert_int_equal(ds_tensor_get_count(&d), half);
    assert_int_equal(ds_tensor_get_size(&d), 0);
    d.shape = SHAPE(-5);
    assert_int_equal(ds_tensor_get_count(&d), -1);
    refused(ds_tensor_alloc(ds_float64(), 2, SHAPE(half, 4), s, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_alloc(ds_float64(), 1, SHAPE(half), s, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_alloc_pinned(ds_float64(), 1, SHAPE(half), &t), DS_ERR_INVALID_VALUE);
    assert_null(t);
    ok(ds_stream_destroy(s));
}

static void test_contiguous_and_dense_are_told_from_the_strides(void **state) {
    (void)state;

    static const struct {
        int ndim;
        int64_t shape[4], strides[4];
        int contiguous, dense;
    } c[] = {
        { 2, { 3, 4 }, { 4, 1 }, 1, 1 },
        { 2, { 3, 4 }, { 1, 3 }, 0, 1 },
        { 2, { 3, 4 }, { 5, 1 }, 0, 0 },
        { 2, { 1, 4 }, { 77, 1 }, 1, 1 },
        { 2, { 3, 4 }, { 0, 1 }, 0, 0 },
        { 2, { 0, 4 }, { 9, 9 }, 1, 1 },
        { 1, { 4 }, { -1 }, 0, 0 },
        { 0, { 0 }, { 0 }, 1, 1 },
        { 4, { 2, 3, 4, 5 }, { 60, 1, 15, 3 }, 0, 1 },
        { 4, { 2, 1, 4, 5 }, { 20, 1, 5, 1 }, 1, 1 },
        { 2, { 4, 1 }, { 1, 99 }, 1, 1 },
    };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t shape[4], strides[4];
        memcpy(shape, c[i].shape, sizeof shape);
        memcpy(strides, c[i].strides, sizeof strides);
        ds_tensor t = ds_tensor_of(numbers, host(), ds_int32(), c[i].ndim, shape);
        assert_true(ds_tensor_is_contiguous(&t) && ds_tensor_is_dense(&t));
        t.strides = strides;
        if (ds_tensor_is_contiguous(&t) != c[i].contiguous || ds_tensor_is_dense(&t) != c[i].dense)
            fail_msg("case %zu", i);
    }
}

/* ---- objects and their memory ---- */

static void test_a_tensor_is_allocated_on_its_stream(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *u;
    ok(ds_tensor_alloc(ds_int16(), 3, SHAPE(5, 7, 11), s, &t));
    expect_shape(t, 3, SHAPE(5, 7, 11));
    assert_int_equal(t->device.type, harness_device(0).type);
    assert_int_equal(t->device.index, 0);
    assert_int_equal(t->strides[0], 77);
    assert_int_equal(t->strides[2], 1);
    assert_int_equal(ds_tensor_get_count(t), 385);
    assert_int_equal(ds_tensor_get_size(t), 770);
    assert_true((uintptr_t)ds_tensor_address(t) % 512 == 0);
    ok(ds_tensor_check(t));
    int16_t all[385];
    ok(ds_fill(t->data, 0x1234, 2, 385, s));
    ok(ds_copy(all, t->data, sizeof all, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(all[384], 0x1234);
    size_t used = ds_mem_get_allocated(harness_device(0));
    assert_true(used >= 770);
    void *was = t->data;
    ok(ds_tensor_free(t));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    /* the same stream has it again at once */
    ok(ds_tensor_alloc(ds_int16(), 3, SHAPE(5, 7, 11), s, &u));
    assert_ptr_equal(u->data, was);
    ok(ds_tensor_free(u));
    refused(ds_tensor_free(u), DS_ERR_INVALID_VALUE);
    ds_tensor mine = ds_tensor_of(all, host(), ds_int16(), 1, SHAPE(385));
    refused(ds_tensor_free(&mine), DS_ERR_INVALID_VALUE);
    ok(ds_tensor_free(NULL));
    refused(ds_tensor_alloc(ds_int16(), 1, SHAPE(3), (ds_stream){ 0 }, &t), DS_ERR_INVALID_HANDLE);
    refused(ds_tensor_alloc(ds_int16(), 1, SHAPE(3), s, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_tensor_alloc(ds_int16(), 0, NULL, s, &t)); /* one element */
    assert_int_equal(ds_tensor_get_size(t), 2);
    assert_non_null(t->data);
    ok(ds_tensor_free(t));
    ok(ds_tensor_alloc(ds_int16(), 2, SHAPE(4, 0), s, &t)); /* none */
    assert_null(t->data);
    assert_int_equal(ds_tensor_get_count(t), 0);
    ok(ds_tensor_check(t));
    ok(ds_tensor_free(t));
    ok(ds_tensor_alloc_pinned(ds_complex128(), 1, SHAPE(100), &t));
    ds_pointer_info info;
    ok(ds_pointer_get_info(t->data, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    assert_int_equal(t->device.type, harness_is_cpu() ? DS_DEVICE_HOST : DS_TENSOR_CUDA_HOST);
    ok(ds_tensor_check(t));
    ok(ds_tensor_free(t));
    ok(ds_stream_destroy(s));
}

static void test_a_tensor_like_another_keeps_the_order_of_its_dimensions(void **state) {
    (void)state;

    static const struct {
        int ndim;
        int64_t shape[4], strides[4], want[4];
    } c[] = {
        { 4, { 2, 3, 4, 5 }, { 60, 1, 15, 3 }, { 60, 1, 15, 3 } }, /* channels_last */
        { 2, { 3, 4 }, { 1, 3 }, { 1, 3 } },
        { 2, { 3, 4 }, { 8, 2 }, { 4, 1 } }, /* gaps are closed */
        { 4, { 2, 3, 4, 5 }, { 240, 1, 60, 6 }, { 60, 1, 15, 3 } },
        { 2, { 3, 4 }, { 1, 0 }, { 4, 1 } }, /* torch: what is expanded comes last */
        { 3, { 3, 1, 4 }, { 4, 4, 1 }, { 4, 4, 1 } },
        { 4,
          { 2, 1, 3, 4 },
          { 12, 1, 4, 1 },
          { 12, 1, 4, 1 } }, /* one channel, last: its stride stays */
        { 1, { 6 }, { -1 }, { 1 } },
    };

    ds_stream s = harness_stream(0, 0);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t shape[4], strides[4];
        memcpy(shape, c[i].shape, sizeof shape);
        memcpy(strides, c[i].strides, sizeof strides);
        ds_tensor like = ds_tensor_of(numbers + 600, host(), ds_int32(), c[i].ndim, shape), *t;
        like.strides = strides;
        for (int pinned = 0; pinned < 2; pinned++) {
            ok(ds_tensor_alloc_like(&like, pinned ? (ds_stream){ 0 } : s, &t));
            expect_shape(t, c[i].ndim, shape);
            for (int d = 0; d < c[i].ndim; d++)
                if (t->strides[d] != c[i].want[d])
                    fail_msg("case %zu: stride %d is %lld", i, d, (long long)t->strides[d]);
            ok(ds_tensor_free(t));
        }
    }
    ok(ds_stream_destroy(s));
}

static void test_memory_stays_as_long_as_a_view_of_it(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *v, *w;
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(10, 20), s, &t));
    ok(ds_tensor_narrow(t, 0, 2, 3, &v));
    ok(ds_tensor_transpose(v, 0, 1, &w));
    assert_ptr_equal(v->data, (char *)t->data + 2 * 20 * 4);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(v));
    assert_int_not_equal(ds_mem_get_allocated(harness_device(0)), 0);
    expect_shape(w, 2, SHAPE(20, 3));
    ok(ds_tensor_free(w));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_stream_destroy(s));
}

static void test_a_wrapped_tensor_tells_its_owner_when_it_is_over(void **state) {
    (void)state;
    payload p = { 0 };
    ds_tensor d = ds_tensor_of(numbers, host(), ds_int32(), 1, SHAPE(100)), *t, *v;
    unsigned flags = 9;
    ok(ds_tensor_wrap(&d, DS_TENSOR_READ_ONLY, payload_destroy, &p, &t));
    ok(ds_tensor_narrow(t, 0, 1, 2, &v));
    ok(ds_tensor_get_flags(v, &flags));
    assert_int_equal(flags, DS_TENSOR_READ_ONLY);
    ok(ds_tensor_free(t));
    assert_int_equal(p.destroyed, 0);
    ok(ds_tensor_free(v));
    assert_int_equal(p.destroyed, 1);
    ok(ds_tensor_get_flags(&d, &flags));
    assert_int_equal(flags, 0);
    d.ndim = -1;
    refused(ds_tensor_wrap(&d, 0, payload_destroy, &p, &t), DS_ERR_INVALID_VALUE);
    assert_int_equal(p.destroyed, 2);
    d.ndim = 1;
    refused(ds_tensor_wrap(&d, 8, payload_destroy, &p, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_wrap(&d, 0, payload_destroy, &p, NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(p.destroyed, 4);
}

static void wrap_inside(void *user) {
    payload *p = user;
    ds_tensor d = ds_tensor_of(numbers, host(), ds_int32(), 1, SHAPE(100)), *t;
    p->status = ds_tensor_wrap(&d, 0, payload_destroy, p, &t);
}

/* A call inside of a host function is refused, and the owner is told as after other failures. */
static void test_a_wrap_refused_in_a_host_function_tells_the_owner(void **state) {
    (void)state;
    payload p = { 0 };
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));

    ok(ds_stream_launch_host_func(s, wrap_inside, &p, NULL));
    ok(ds_stream_synchronize(s));

    assert_int_equal(p.status, DS_ERR_NOT_PERMITTED);
    assert_int_equal(p.destroyed, 1);
    ok(ds_stream_destroy(s));
}

static void call_that_fails(void *user) {
    ds_stream s;
    ((payload *)user)->destroyed++;
    refused(ds_stream_create(&(ds_stream_desc){ .device = { 99, 0 } }, &s), DS_ERR_INVALID_DEVICE);
}

static void expect_no_data(ds_result r) {
    assert_int_equal(r, DS_ERR_INVALID_VALUE);
    if (!strstr(ds_error_get_last(), "ds_tensor_wrap") ||
        !strstr(ds_error_get_last(), "data is NULL"))
        fail_msg("\"%s\" is not the sentence of ds_tensor_wrap", ds_error_get_last());
}

/* devstream sets the capture mode around the release function; 1 and 2: before and after it with
   one driver, 3 and 4: with two */
static void test_a_refused_wrap_keeps_its_sentence_and_the_mode(void **state) {
    (void)state;
    ds_tensor d = ds_tensor_of(NULL, host(), ds_int32(), 1, SHAPE(4)), *t;
    for (int n = 0; n <= 4; n++) {
        payload p = { 0 };
        char fault[40];
        ds_capture_mode mode = DS_CAPTURE_THREAD_LOCAL;
        snprintf(fault, sizeof fault, "capture_mode:%d", n ? n : 1000);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });

        expect_no_data(ds_tensor_wrap(&d, 0, n ? payload_destroy : call_that_fails, &p, &t));

        assert_int_equal(p.destroyed, 1);
        DS_IGNORE(ds_capture_exchange_mode(&mode));
        if (n == 0 || n == 1) /* the fault was before the mode changed, or there was none */
            assert_int_equal(mode, DS_CAPTURE_GLOBAL);
        mode = DS_CAPTURE_GLOBAL;
        if (ds_capture_exchange_mode(&mode) == DS_ERR_DRIVER) /* one call fails at most */
            ok(ds_capture_exchange_mode(&mode));
    }
    harness_restart(NULL);
}

/* ---- views ---- */

static void test_views_show_the_elements_that_python_would(void **state) {
    (void)state;
    count_up();
    ds_tensor base = ds_tensor_of(numbers, host(), ds_int32(), 2, SHAPE(3, 4)), *t, *u;
    ok(ds_tensor_narrow(&base, 1, 1, 2, &t));
    ELEMENTS(t, 1, 2, 5, 6, 9, 10);
    ok(ds_tensor_free(t));
    ok(ds_tensor_narrow(&base, -1, 4, 0, &t));
    expect_shape(t, 2, SHAPE(3, 0));
    ok(ds_tensor_free(t));
    ok(ds_tensor_slice(&base, 0, 0, INT64_MAX, 2, &t));
    ELEMENTS(t, 0, 1, 2, 3, 8, 9, 10, 11);
    ok(ds_tensor_slice(t, 1, -3, -1, 1, &u));
    ELEMENTS(u, 1, 2, 9, 10);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(u));
    ok(ds_tensor_slice(&base, 1, -100, 100, 3, &t));
    ELEMENTS(t, 0, 3, 4, 7, 8, 11);
    ok(ds_tensor_free(t));
    ok(ds_tensor_slice(&base, 1, 3, 1, 1, &t));
    expect_shape(t, 2, SHAPE(3, 0));
    ok(ds_tensor_free(t));
    ok(ds_tensor_slice(&base, 1, 1, 3, INT64_MAX, &t)); /* one index: a long step is no harm */
    ELEMENTS(t, 1, 5, 9);
    ok(ds_tensor_free(t));
    ok(ds_tensor_select(&base, 0, -1, &t));
    expect_shape(t, 1, SHAPE(4));
    ELEMENTS(t, 8, 9, 10, 11);
    ok(ds_tensor_select(t, 0, 2, &u));
    assert_int_equal(u->ndim, 0);
    ELEMENTS(u, 10);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(u));
    ok(ds_tensor_transpose(&base, 0, -1, &t));
    ELEMENTS(t, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11);
    ok(ds_tensor_free(t));
    ds_tensor cube = ds_tensor_of(numbers, host(), ds_int32(), 3, SHAPE(2, 3, 2));
    ok(ds_tensor_permute(&cube, (int[]){ 2, -3, 1 }, &t));
    expect_shape(t, 3, SHAPE(2, 2, 3));
    ELEMENTS(t, 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11);
    ok(ds_tensor_free(t));
    refused(ds_tensor_narrow(&base, 1, 3, 2, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_narrow(&base, 1, -1, 2, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_narrow(&base, 1, INT64_MAX, INT64_MAX, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_narrow(&base, 2, 0, 1, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_narrow(&base, -3, 0, 1, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_slice(&base, 0, 0, 1, 0, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_select(&base, 0, 3, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_select(&base, 0, -4, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_permute(&base, (int[]){ 0, -2 }, &t), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_permute(&base, NULL, &t), DS_ERR_INVALID_VALUE);
    refused(
        ds_tensor_select(&(ds_tensor){ numbers, host(), 0, ds_int32(), NULL, NULL, 0 }, 0, 0, &t),
        DS_ERR_INVALID_VALUE);
    assert_null(t);
}

static void test_a_view_of_another_shape(void **state) {
    (void)state;
    count_up();
    ds_tensor base = ds_tensor_of(numbers, host(), ds_int32(), 2, SHAPE(3, 4)), *t, *u;
    ok(ds_tensor_view(&base, 3, SHAPE(2, -1, 3), &t));
    expect_shape(t, 3, SHAPE(2, 2, 3));
    ELEMENTS(t, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    ok(ds_tensor_free(t));
    ok(ds_tensor_transpose(&base, 0, 1, &t));
    refused(ds_tensor_view(t, 1, SHAPE(12), &u), DS_ERR_INVALID_VALUE);
    ok(ds_tensor_view(t, 4, SHAPE(2, 1, 2, 3), &u)); /* what does not mix the two */
    ELEMENTS(u, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(u));
    refused(ds_tensor_view(&base, 1, SHAPE(13), &u), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_view(&base, 2, SHAPE(5, -1), &u), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_view(&base, 2, SHAPE(-1, -1), &u), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_view(&base, 2, SHAPE(-2, 6), &u), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_view(&base, 2, SHAPE(INT64_MAX, INT64_MAX), &u), DS_ERR_INVALID_VALUE);
    ds_tensor wide = ds_tensor_of(numbers, host(), ds_int32(), 2, SHAPE(81, 3));
    wide.strides = SHAPE(1, (int64_t)1 << 58); /* 243 of them are more than an int64_t has */
    refused(ds_tensor_view(&wide, 2, SHAPE(1, 243), &u), DS_ERR_INVALID_VALUE);
    ds_tensor one = ds_tensor_of(numbers + 7, host(), ds_int32(), 0, NULL);
    ok(ds_tensor_view(&one, 2, SHAPE(1, 1), &t));
    ELEMENTS(t, 7);
    ok(ds_tensor_view(t, 0, NULL, &u));
    assert_int_equal(u->ndim, 0);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(u));
    ds_tensor none = ds_tensor_of(NULL, host(), ds_int32(), 2, SHAPE(0, 4));
    ok(ds_tensor_view(&none, 3, SHAPE(2, 0, 9), &t));
    ok(ds_tensor_free(t));
    ok(ds_tensor_view(&none, 2, SHAPE(-1, 4), &t));
    expect_shape(t, 2, SHAPE(0, 4));
    ok(ds_tensor_free(t));
    refused(ds_tensor_view(&none, 2, SHAPE(-1, 0), &t), DS_ERR_INVALID_VALUE);
}

static uint32_t dice(uint32_t *seed, uint32_t sides) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % sides;
}

/* Chains of views, at random: whatever is allowed shows what the plain rule says, and a shape
   that is refused has elements at uneven distances. */
static void test_random_views_agree_with_copies(void **state) {
    (void)state;
    count_up();
    uint32_t seed = 7;
    for (int round = 0; round < 400; round++) {
        static int32_t before[4096], after[4096];
        int64_t shape[4];
        int ndim = 1 + (int)dice(&seed, 4);
        for (int d = 0; d < ndim; d++)
            shape[d] = 1 + (int64_t)dice(&seed, 6);
        ds_tensor base = ds_tensor_of(numbers, host(), ds_int32(), ndim, shape), *t, *u;
        ok(ds_tensor_wrap(&base, 0, NULL, NULL, &t));
        for (int step = 0; step < 4; step++) {
            int dim = (int)dice(&seed, (uint32_t)t->ndim);
            size_t n = elements(t, before, 4096);
            if (dice(&seed, 3) == 0)
                ok(ds_tensor_transpose(t, dim, (int)dice(&seed, (uint32_t)t->ndim), &u));
            else if (dice(&seed, 2) == 0)
                ok(ds_tensor_slice(t, dim, (int64_t)dice(&seed, 3), INT64_MAX,
                                   1 + (int64_t)dice(&seed, 2), &u));
            else {
                int64_t cut[2] = { -1, 1 };
                while (n % (size_t)cut[1] == 0 && cut[1] < 4 && n)
                    cut[1]++;
                if (n % (size_t)cut[1])
                    cut[1]--;
                if (!n || !cut[1])
                    break;
                ds_result r = ds_tensor_view(t, 2, cut, &u);
                if (r < 0) {
                    /* Were it possible, the elements of a row would be equally far from each
                       other, and the rows too. */
                    int even = 1;
                    size_t width = (size_t)cut[1], rows = n / width;
                    for (size_t i = 0; i < n; i++) {
                        size_t row = i / width, column = i % width;
                        int32_t by_row = rows > 1 ? before[width] - before[0] : 0,
                                by_column = width > 1 ? before[1] - before[0] : 0;
                        even &= before[i] ==
                                before[0] + (int32_t)row * by_row + (int32_t)column * by_column;
                    }
                    assert_false(even);
                    break;
                }
                assert_int_equal(elements(u, after, 4096), n);
                assert_memory_equal(before, after, n * 4);
            }
            ok(ds_tensor_check(u));
            ok(ds_tensor_free(t));
            t = u;
        }
        ok(ds_tensor_free(t));
    }
}

static void test_complex_numbers_as_pairs(void **state) {
    (void)state;
    float pairs[12];
    for (int i = 0; i < 12; i++)
        pairs[i] = (float)i;
    ds_tensor base = ds_tensor_of(pairs, host(), ds_complex64(), 2, SHAPE(2, 3)), *t, *u;
    ok(ds_tensor_transpose(&base, 0, 1, &t));
    ok(ds_tensor_as_real(t, &u));
    expect_shape(u, 3, SHAPE(3, 2, 2));
    assert_true(ds_dtype_equal(u->dtype, ds_float32()));
    assert_int_equal(u->strides[0], 2);
    assert_int_equal(u->strides[1], 6);
    assert_int_equal(u->strides[2], 1);
    ok(ds_tensor_free(t));
    refused(ds_tensor_as_real(u, &t), DS_ERR_INVALID_VALUE);
    ok(ds_tensor_free(u));
}

static void test_memory_of_a_virtual_device_as_host_memory(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *u;
    ok(ds_tensor_alloc(ds_int32(), 1, SHAPE(4), s, &t));
    if (harness_is_cpu()) {
        ok(ds_tensor_as_host(t, &u));
        assert_int_equal(u->device.type, DS_DEVICE_HOST);
        assert_ptr_equal(u->data, t->data);
        ok(ds_tensor_free(u));
    } else {
        refused(ds_tensor_as_host(t, &u), DS_ERR_INVALID_DEVICE);
    }
    ok(ds_tensor_free(t));
    ok(ds_tensor_alloc_pinned(ds_int32(), 1, SHAPE(4), &t));
    ok(ds_tensor_as_host(t, &u));
    assert_int_equal(u->device.type, DS_DEVICE_HOST);
    ok(ds_tensor_free(u));
    ok(ds_tensor_free(t));
    ok(ds_stream_destroy(s));
}

/* ---- exchange ---- */

static _Atomic int deleted;

static void delete_plain(ds_managed_tensor *self) {
    assert_ptr_equal(self->manager_ctx, numbers);
    deleted++;
    free(self);
}

static void delete_versioned(ds_managed_tensor_versioned *self) {
    assert_ptr_equal(self->manager_ctx, numbers);
    deleted++;
    free(self);
}

static ds_managed_tensor *plain(int64_t *shape) {
    ds_managed_tensor *m = calloc(1, sizeof *m);
    m->tensor = ds_tensor_of(numbers, host(), ds_int32(), 1, shape);
    m->tensor.byte_offset = 8;
    m->manager_ctx = numbers;
    m->deleter = delete_plain;
    return m;
}

static ds_managed_tensor_versioned *versioned(int64_t *shape, uint64_t flags) {
    ds_managed_tensor_versioned *m = calloc(1, sizeof *m);
    m->version = (ds_dlpack_version){ 1, 3 };
    m->tensor = ds_tensor_of(numbers, host(), ds_int32(), 1, shape);
    m->manager_ctx = numbers;
    m->deleter = delete_versioned;
    m->flags = flags;
    return m;
}

static void test_an_imported_tensor_is_given_back_once(void **state) {
    (void)state;
    count_up();
    deleted = 0;
    int64_t shape[1] = { 5 };
    ds_tensor *t, *v;
    unsigned flags;
    ok(ds_tensor_import(plain(shape), &t));
    shape[0] = 77; /* the description was copied */
    ELEMENTS(t, 2, 3, 4, 5, 6);
    ok(ds_tensor_narrow(t, 0, 3, 2, &v));
    ok(ds_tensor_free(t));
    assert_int_equal(deleted, 0);
    ELEMENTS(v, 5, 6);
    ok(ds_tensor_free(v));
    assert_int_equal(deleted, 1);
    shape[0] = 3;
    ok(ds_tensor_import_versioned(versioned(shape, DS_DLPACK_READ_ONLY | DS_DLPACK_IS_COPIED), &t));
    ok(ds_tensor_get_flags(t, &flags));
    assert_int_equal(flags, DS_TENSOR_READ_ONLY);
    ELEMENTS(t, 0, 1, 2);
    ok(ds_tensor_free(t));
    assert_int_equal(deleted, 2);
    ok(ds_tensor_import_versioned(versioned(shape, 0), &t));
    ok(ds_tensor_get_flags(t, &flags));
    assert_int_equal(flags, 0);
    ok(ds_tensor_free(t));
    /* no deleter: nothing to do */
    ds_managed_tensor bare = { ds_tensor_of(numbers, host(), ds_int32(), 1, shape), NULL, NULL };
    ok(ds_tensor_import(&bare, &t));
    ok(ds_tensor_free(t));
    assert_int_equal(deleted, 3);
}

static void test_what_cannot_be_imported_stays_the_callers(void **state) {
    (void)state;
    deleted = 0;
    int64_t shape[1] = { -5 };
    ds_tensor *t;
    ds_managed_tensor *m = plain(shape);
    refused(ds_tensor_import(m, &t), DS_ERR_INVALID_VALUE);
    assert_null(t);
    refused(ds_tensor_import(NULL, &t), DS_ERR_INVALID_VALUE);
    shape[0] = 5;
    ds_managed_tensor_versioned *v = versioned(shape, 0);
    v->version.major = 2;
    refused(ds_tensor_import_versioned(v, &t), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "2.3"));
    v->version.major = 1;
    v->flags = DS_DLPACK_SUBBYTE_PADDED;
    v->tensor.dtype = (ds_dtype){ DS_CODE_FLOAT4_E2M1FN, 4, 2 };
    refused(ds_tensor_import_versioned(v, &t), DS_ERR_UNSUPPORTED);
    v->flags = 0;
    ok(ds_tensor_import_versioned(v, &t)); /* packed in pairs: whole bytes */
    assert_int_equal(ds_tensor_get_size(t), 5);
    assert_int_equal(deleted, 0);
    ok(ds_tensor_free(t));
    ok(ds_tensor_import(m, &t));
    ok(ds_tensor_free(t));
    assert_int_equal(deleted, 2);
}

static void test_an_exported_tensor_keeps_its_memory(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *v, *again;
    ds_managed_tensor *m;
    ds_managed_tensor_versioned *w;
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(4, 6), s, &t));
    ok(ds_tensor_narrow(t, 1, 2, 3, &v));
    ok(ds_tensor_export(v, &m));
    ok(ds_tensor_export_versioned(t, &w));
    assert_int_equal(w->version.major, 1);
    assert_int_equal(w->version.minor, 1);
    assert_int_equal(w->flags, 0);
    assert_int_equal(m->tensor.byte_offset, 0);
    assert_ptr_equal(m->tensor.data, (char *)t->data + 8);
    assert_int_equal(m->tensor.device.type, harness_device(0).type);
    expect_shape(&m->tensor, 2, SHAPE(4, 3));
    assert_int_equal(m->tensor.strides[0], 6);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(v));
    assert_int_equal(m->tensor.strides[0], 6);
    ok(ds_tensor_check(&m->tensor));
    ok(ds_tensor_import(m, &again)); /* round the world */
    w->deleter(w);
    assert_int_not_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_tensor_free(again));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
#ifdef HAVE_DLPACK
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(4, 6), s, &t));
    ok(ds_tensor_export(t, &m));
    DLManagedTensor *theirs = (DLManagedTensor *)(void *)m;
    assert_ptr_equal(theirs->dl_tensor.data, t->data);
    assert_int_equal(theirs->dl_tensor.ndim, 2);
    assert_int_equal(theirs->dl_tensor.shape[1], 6);
    assert_int_equal(theirs->dl_tensor.strides[0], 6);
    assert_int_equal(theirs->dl_tensor.dtype.code, kDLFloat);
    assert_int_equal(theirs->dl_tensor.dtype.bits, 32);
    assert_int_equal(theirs->dl_tensor.device.device_type, harness_device(0).type);
    ok(ds_tensor_free(t));
    theirs->deleter(theirs);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
#endif
    ds_tensor mine = ds_tensor_of(numbers, host(), ds_int32(), 1, SHAPE(3));
    refused(ds_tensor_export(&mine, &m), DS_ERR_INVALID_VALUE);
    refused(ds_tensor_export(NULL, &m), DS_ERR_INVALID_VALUE);
    ok(ds_tensor_wrap(&mine, DS_TENSOR_READ_ONLY, NULL, NULL, &t));
    refused(ds_tensor_export(t, &m), DS_ERR_UNSUPPORTED);
    ok(ds_tensor_export_versioned(t, &w));
    assert_int_equal(w->flags, DS_DLPACK_READ_ONLY);
    ok(ds_tensor_free(t));
    w->deleter(w);
    ok(ds_stream_destroy(s));
}

static void delete_on_stream(void *user) {
    ds_managed_tensor *m = user;
    m->deleter(m);
}

static void *delete_on_thread(void *user) {
    delete_on_stream(user);
    return NULL;
}

static void test_a_deleter_is_called_anywhere(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t;
    ds_managed_tensor *m;
    for (int i = 0; i < 2; i++) {
        ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s, &t));
        ok(ds_tensor_export(t, &m));
        ok(ds_tensor_free(t));
        if (i)
            join(spawn(delete_on_thread, m));
        else
            ok(ds_stream_launch_host_func(s, delete_on_stream, m, NULL));
        ok(ds_stream_synchronize(s));
        /* what was freed inside of a host function goes with a next call */
        ok(ds_tensor_alloc(ds_float32(), 0, NULL, s, &t));
        ok(ds_tensor_free(t));
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    }
    assert_string_equal(strstr(ds_error_get_last(), "deleter") ? "a deleter's business" : "", "");
    ok(ds_stream_destroy(s));
}

static char told[2000];

static void keep_text(const ds_log_item *item, void *user) {
    (void)user;
    if (strlen(told) + strlen(item->text) + 2 < sizeof told)
        strcat(strcat(told, item->text), "\n");
}

static void test_shutdown_reports_live_blocks_and_returns_foreign_ones(void **state) {
    (void)state;
    told[0] = 0;
    deleted = 0;
    int64_t shape[1] = { 5 };
    ds_tensor *t, *v;
    ds_managed_tensor *m, *alive;
    harness_restart(&(ds_init_desc){ .log_fn = keep_text });
    ds_stream s = harness_stream(0, 0);
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s, &t));
    ok(ds_tensor_export(t, &m));
    ok(ds_tensor_export(t, &alive));
    ok(ds_tensor_narrow(t, 0, 0, 5, &v));
    ok(ds_tensor_import(plain(shape), &v));
    harness_shutdown();
    assert_int_equal(deleted, 1);
    int lines = 0;
    for (const char *p = told; (p = strstr(p, "test_tensors.c")) != NULL; p++)
        if (strstr(p, "was not freed"))
            lines++;
    assert_true(lines >= 3);
    m->deleter(m); /* other libraries may be later */
    harness_restart(NULL);
    s = harness_stream(0, 0);
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s, &t));
    alive->deleter(alive);
    assert_int_not_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_tensor_free(t));
    ok(ds_stream_destroy(s));
}

static void test_without_bookkeeping_memory_nothing_is_lost(void **state) {
    (void)state;
    harness_restart(&(ds_init_desc){ .allocator = { count_alloc, count_free, NULL } });
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *v;
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s, &t)); /* the allocator has what it needs */
    ok(ds_tensor_free(t));
    size_t used = ds_mem_get_allocated(harness_device(0));
    int done = 0;
    for (int n = 0; n < 20 && !done; n++) {
        deleted = 0;
        int64_t shape[1] = { 5 };
        ds_managed_tensor *m = plain(shape);
        ds_result r[3];
        t = v = NULL;
        allowance = n;
        r[0] = ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s, &t);
        r[1] = r[0] == DS_OK ? ds_tensor_narrow(t, 0, 1, 2, &v) : r[0];
        ds_tensor *got = NULL;
        r[2] = ds_tensor_import(m, &got);
        allowance = -1;
        for (int i = 0; i < 3; i++)
            assert_true(r[i] == DS_OK || r[i] == DS_ERR_OUT_OF_MEMORY);
        done = r[0] == DS_OK && r[1] == DS_OK && r[2] == DS_OK;
        ok(ds_tensor_free(v));
        ok(ds_tensor_free(t));
        assert_int_equal(deleted, 0);
        if (r[2] < 0)
            delete_plain(m);
        ok(ds_tensor_free(got));
        assert_int_equal(deleted, 1);
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), used);
    }
    assert_true(done);
    harness_restart(NULL);
}

/* Objects of one storage by several threads. */
enum { CREW = 4, TURNS = 300 };

static void *take_views(void *user) {
    const ds_tensor *t = user;
    for (int i = 0; i < TURNS; i++) {
        ds_tensor *v, *w;
        ds_managed_tensor *m;
        ok_thread(ds_tensor_narrow(t, 0, i % 5, 5, &v));
        ok_thread(ds_tensor_view(v, 2, SHAPE(5, -1), &w));
        ok_thread(ds_tensor_export(w, &m));
        ok_thread(ds_tensor_free(v));
        ok_thread(ds_tensor_free(w));
        m->deleter(m);
    }
    return NULL;
}

static void test_threads_share_a_tensor(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    pthread_t thread[CREW];
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t;
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(10, 3), s, &t));
    for (int i = 0; i < CREW; i++)
        thread[i] = spawn(take_views, t);
    for (int i = 0; i < CREW; i++)
        join(thread[i]);
    ok(ds_tensor_free(t));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_stream_destroy(s));
}

/* The stride of a dimension of one element says nothing, however large it is. */
static void test_strides_that_nobody_follows_may_be_anything(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    static float memory[16];
    const int64_t huge[] = { INT64_MAX, INT64_MIN, (int64_t)1 << 62, -((int64_t)1 << 61) };
    for (int i = 0; i < 4; i++) {
        ds_tensor t = ds_tensor_of(memory, (ds_device){ DS_DEVICE_HOST, 0 }, ds_float32(), 2,
                                   SHAPE(1, 4)),
                  *v, *out[2];
        t.strides = (int64_t[]){ huge[i], 1 };
        ok(ds_tensor_narrow(&t, 0, 1, 0, &v));
        ok(ds_tensor_free(v));
        ok(ds_tensor_slice(&t, 0, 1, 1, 1, &v));
        ok(ds_tensor_free(v));
        ok(ds_tensor_select(&t, 0, -1, &v));
        assert_ptr_equal(ds_tensor_address(v), memory);
        ok(ds_tensor_free(v));
        ok(ds_tensor_view(&t, 4, SHAPE(1, 2, 2, 1), &v));
        ok(ds_tensor_free(v));
        ds_device to[2] = { harness_device(0), harness_device(0) };
        ok(ds_comm_scatter(&t, to, 2, SHAPE(1, 0), 0, NULL, out, NULL));
        for (int k = 0; k < 2; k++) {
            assert_int_equal(ds_tensor_get_count(out[k]), 4 * (1 - k));
            ok(ds_tensor_free(out[k]));
        }
        t = ds_tensor_of(memory, (ds_device){ DS_DEVICE_HOST, 0 }, ds_uint8(), 2, SHAPE(2, 1));
        t.strides = (int64_t[]){ 1, huge[i] };
        ok(ds_tensor_view(&t, 1, SHAPE(2), &v));
        ok(ds_tensor_free(v));
    }
    ds_tensor wide = ds_tensor_of(memory, (ds_device){ DS_DEVICE_HOST, 0 }, ds_uint8(), 2,
                                  SHAPE(2, 2)),
              *v;
    wide.strides = (int64_t[]){ 1, (int64_t)1 << 62 };
    refused(ds_tensor_view(&wide, 1, SHAPE(4), &v), DS_ERR_INVALID_VALUE);
}

const struct CMUnitTest tests_tensors[] = {
    DS_TEST(test_a_description_has_the_bytes_of_dlpacks, "tensors: DLPack 0.6 and 1.1"),
    DS_TEST(test_every_data_type_has_torchs_name, "tensors: data types"),
    DS_TEST(test_a_bad_description_is_refused_with_its_numbers, "tensors: bad input"),
    DS_TEST(test_sizes_do_not_overflow, "tensors: bad input"),
    DS_TEST(test_contiguous_and_dense_are_told_from_the_strides, "tensors: strides"),
    DS_TEST(test_a_tensor_is_allocated_on_its_stream, "tensors: memory"),
    DS_TEST(test_a_tensor_like_another_keeps_the_order_of_its_dimensions, "tensors: memory format"),
    DS_TEST(test_memory_stays_as_long_as_a_view_of_it, "tensors: memory"),
    DS_TEST(test_a_wrapped_tensor_tells_its_owner_when_it_is_over, "tensors: memory"),
    DS_TEST(test_a_wrap_refused_in_a_host_function_tells_the_owner, "tensors: memory"),
    DS_TEST(test_a_refused_wrap_keeps_its_sentence_and_the_mode, "tensors: memory"),
    DS_TEST(test_views_show_the_elements_that_python_would, "tensors: views"),
    DS_TEST(test_a_view_of_another_shape, "tensors: views"),
    DS_TEST(test_random_views_agree_with_copies, "tensors: views"),
    DS_TEST(test_complex_numbers_as_pairs, "tensors: views"),
    DS_TEST(test_memory_of_a_virtual_device_as_host_memory, "tensors: devices"),
    DS_TEST(test_an_imported_tensor_is_given_back_once, "tensors: import"),
    DS_TEST(test_what_cannot_be_imported_stays_the_callers, "tensors: import"),
    DS_TEST(test_an_exported_tensor_keeps_its_memory, "tensors: export"),
    DS_TEST(test_a_deleter_is_called_anywhere, "tensors: export"),
    DS_TEST(test_shutdown_reports_live_blocks_and_returns_foreign_ones, "tensors: shutdown"),
    DS_TEST(test_without_bookkeeping_memory_nothing_is_lost, "tensors: faults"),
    DS_TEST(test_threads_share_a_tensor, "tensors: threads"),
    DS_TEST(test_strides_that_nobody_follows_may_be_anything, "tensors: views"),
};
const size_t tests_tensors_count = sizeof tests_tensors / sizeof *tests_tensors;
