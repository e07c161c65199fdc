/* Collectives: torch.cuda.comm, and what it lacks. */
#include "alloc.h"
#include "devstream_comm.h"
#include <stdatomic.h>

#define SHAPE(...) (int64_t[]){ __VA_ARGS__ }
#define MOST 8 /* tensors of a test */

static ds_device host(void) { return (ds_device){ DS_DEVICE_HOST, 0 }; }
static uint32_t dice(uint32_t *seed, uint32_t sides) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % sides;
}
static ds_stream current(ds_device d) {
    ds_stream s = { 0 };
    if (d.type != DS_DEVICE_HOST) ok_thread(ds_stream_current(d, &s));
    return s;
}
static int is_host(const ds_tensor *t) { return t->device.type == DS_DEVICE_HOST || t->device.type == DS_TENSOR_CUDA_HOST; }
static void wait_all(void) {
    for (int i = 0; i < harness_device_count(); i++) ok_thread(ds_device_synchronize(harness_device(i)));
}

/* Elements of a tensor, wherever it is, in row-major order, and back. What lies between its elements is not touched. */
static void carry(const ds_tensor *t, unsigned char *plain, int write) {
    ds_stream s = is_host(t) ? current(harness_device(0)) : current(t->device);
    size_t item = ds_dtype_size(t->dtype), low = 0, high = 0;
    int64_t count = ds_tensor_count(t), at[DS_TENSOR_MAX_DIMS] = { 0 };
    if (!count) return;
    for (int d = 0; d < t->ndim; d++) {
        int64_t by = (t->shape[d] - 1) * (t->strides ? t->strides[d] : 0);
        if (by < 0) low += (size_t)-by;
        else high += (size_t)by;
    }
    if (!t->strides) high = (size_t)count - 1;
    size_t span = (low + high + 1) * item;
    unsigned char *all = malloc(span), *first = all + low * item;
    wait_all();
    ok_thread(ds_copy(all, (char *)ds_tensor_address(t) - low * item, span, s));
    ok_thread(ds_stream_synchronize(s));
    for (int64_t n = 0; n < count; n++) {
        int64_t where = t->strides ? 0 : n;
        for (int d = 0; d < t->ndim && t->strides; d++) where += at[d] * t->strides[d];
        if (write) memcpy(first + where * (int64_t)item, plain + (size_t)n * item, item);
        else memcpy(plain + (size_t)n * item, first + where * (int64_t)item, item);
        for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->shape[d]; d--) at[d] = 0;
    }
    if (write) {
        ok_thread(ds_copy((char *)ds_tensor_address(t) - low * item, all, span, s));
        ok_thread(ds_stream_synchronize(s));
    }
    free(all);
}
static unsigned char *contents(const ds_tensor *t) {
    unsigned char *p = malloc(ds_tensor_size(t) + 1);
    carry(t, p, 0);
    return p;
}
/* Bytes that depend on the position and the salt. */
static void color(const ds_tensor *t, uint32_t salt) {
    size_t n = ds_tensor_size(t);
    unsigned char *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)((i * 2654435761u + salt * 40503u) >> 7);
    carry(t, p, 1);
    free(p);
}
static void expect_equal(const ds_tensor *a, const ds_tensor *b) {
    assert_int_equal(ds_tensor_size(a), ds_tensor_size(b));
    unsigned char *x = contents(a), *y = contents(b);
    assert_memory_equal(x, y, ds_tensor_size(a));
    free(x);
    free(y);
}

/* A tensor on a device (on the host: pinned), row-major. */
static ds_tensor *on(ds_device d, ds_dtype dtype, int ndim, const int64_t *shape) {
    ds_tensor *t = NULL;
    if (d.type == DS_DEVICE_HOST) ok_thread(ds_tensor_alloc_host(dtype, ndim, shape, &t));
    else ok_thread(ds_tensor_alloc(dtype, ndim, shape, current(d), &t));
    if (ds_tensor_size(t) && d.type != DS_DEVICE_HOST) ok_thread(ds_fill(t->data, 0xEE, 1, ds_tensor_size(t), current(d)));
    return t;
}
static ds_tensor *painted(ds_device d, ds_dtype dtype, int ndim, const int64_t *shape, uint32_t salt) {
    ds_tensor *t = on(d, dtype, ndim, shape);
    color(t, salt);
    return t;
}
static void drop(ds_tensor *const *t, size_t n) {
    for (size_t i = 0; i < n; i++) ok_thread(ds_tensor_free(t[i]));
}
#define INPUTS(...) ((const ds_tensor *const *)(__VA_ARGS__))
/* Nothing of the devices' memory is left. */
static void finish_comm(void) {
    wait_all();
    for (int i = 0; i < harness_device_count(); i++) assert_int_equal(ds_mem_allocated(harness_device(i)), 0);
}
static void says(const char *what) {
    if (!strstr(ds_last_error(), what)) fail_msg("\"%s\" is not in: %s", what, ds_last_error());
}

/* ---- broadcast ---- */

static void test_a_broadcast_copies_to_every_device_of_the_list(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device from[] = { harness_device(0), host() }, to[] = { harness_device(1), harness_device(0), host(), harness_device(1), harness_device(2) };
    for (int f = 0; f < 2; f++) {
        ds_tensor *t = painted(from[f], ds_float32(), 2, SHAPE(33, 7), 5), *out[5];
        ok(ds_comm_broadcast(t, to, 5, NULL, out));
        for (int i = 0; i < 5; i++) {
            assert_int_equal(is_host(out[i]), to[i].type == DS_DEVICE_HOST);
            if (!is_host(out[i])) assert_int_equal(out[i]->device.index, to[i].index);
            assert_ptr_not_equal(out[i]->data, t->data);
            expect_equal(t, out[i]);
        }
        drop(out, 5);
        ok(ds_comm_broadcast(t, to, 0, NULL, NULL));
        ok(ds_tensor_free(t));
    }
    finish_comm();
}

static void test_a_broadcast_may_show_the_tensor_itself(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *t = painted(harness_device(0), ds_int64(), 1, SHAPE(100), 3), *out[3];
    ds_device to[] = { harness_device(0), harness_device(1), harness_device(0) };
    ok(ds_comm_broadcast(t, to, 3, &(ds_comm_options){ .flags = DS_COMM_ALIAS }, out));
    assert_ptr_equal(out[0]->data, t->data);
    assert_ptr_equal(out[2]->data, t->data);
    if (harness_device_count() > 1) assert_ptr_not_equal(out[1]->data, t->data);
    ok(ds_tensor_free(t));
    expect_equal(out[0], out[1]);
    drop(out, 3);
    finish_comm();
}

static void test_a_broadcast_into_tensors_that_are_there(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *t = painted(harness_device(0), ds_int16(), 2, SHAPE(12, 10), 9), *out[4], *wide;
    out[0] = on(harness_device(1), ds_int16(), 2, SHAPE(12, 10));
    wide = painted(harness_device(1), ds_int16(), 2, SHAPE(12, 30), 1);
    ok(ds_tensor_narrow(wide, 1, 7, 10, &out[1])); /* with gaps */
    out[2] = t;                                    /* nothing to do */
    out[3] = on(host(), ds_int16(), 2, SHAPE(12, 10));
    unsigned char *before = contents(wide), *after;
    ok(ds_comm_broadcast_into(t, INPUTS(out), 4, NULL));
    for (int i = 0; i < 4; i++) expect_equal(t, out[i]);
    after = contents(wide);
    for (int i = 0; i < 12 * 60; i++)
        if (i % 60 < 14 || i % 60 >= 34) assert_int_equal(before[i], after[i]);
    free(before);
    free(after);
    ds_tensor *bad[4];
    bad[0] = out[0];
    bad[1] = on(harness_device(1), ds_int16(), 2, SHAPE(10, 12));
    refused(ds_comm_broadcast_into(t, INPUTS(bad), 2, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has the shape [10, 12], not [12, 10]");
    bad[2] = on(harness_device(1), ds_float16(), 2, SHAPE(12, 10));
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], bad[2] }), 2, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has elements of type float16, not int16");
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], NULL }), 2, NULL), DS_ERR_INVALID_VALUE);
    says("index 1");
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], bad[0] }), 2, NULL), DS_ERR_INVALID_VALUE);
    says("shares memory");
    ok(ds_tensor_wrap(out[0], DS_TENSOR_READ_ONLY, NULL, NULL, &bad[3]));
    refused(ds_comm_broadcast_into(t, INPUTS(&bad[3]), 1, NULL), DS_ERR_INVALID_VALUE);
    says("read-only");
    drop(bad + 1, 3);
    drop(out, 4);
    ok(ds_tensor_free(wide));
    finish_comm();
}

static void test_many_tensors_travel_in_few_copies(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    const ds_dtype types[] = { ds_float32(), ds_int64(), ds_float8_e5m2() };
    ds_device to[] = { harness_device(0), harness_device(1), host(), harness_device(1) };
    const size_t sizes[] = { 0, 1, 600, 1 << 20 };
    for (size_t z = 0; z < 4; z++)
        for (int alias = 0; alias < 2; alias++) {
            ds_tensor *t[9], *out[4 * 9], *base;
            for (int i = 0; i < 9; i++) {
                if (i == 4) t[i] = on(harness_device(0), types[1], 2, SHAPE(3, 0)); /* the shape stays, unlike torch's */
                else if (i == 7) {
                    base = painted(harness_device(0), types[0], 2, SHAPE(6, 8), 77);
                    ok(ds_tensor_transpose(base, 0, 1, &t[i]));
                    ok(ds_tensor_free(base));
                } else t[i] = painted(harness_device(0), types[i % 3], 2, SHAPE(i + 1, 11), (uint32_t)i);
            }
            ok(ds_comm_broadcast_coalesced(INPUTS(t), 9, to, 4, sizes[z], &(ds_comm_options){ .flags = alias ? DS_COMM_ALIAS : 0 }, out));
            for (int d = 0; d < 4; d++)
                for (int i = 0; i < 9; i++) {
                    ds_tensor *o = out[d * 9 + i];
                    assert_int_equal(o->ndim, 2);
                    assert_int_equal(o->shape[1], t[i]->shape[1]);
                    assert_true(ds_dtype_equal(o->dtype, t[i]->dtype));
                    if (d == 0 && i != 4) assert_int_equal(o->data == t[i]->data, alias);
                    expect_equal(t[i], o);
                }
            drop(out, 4 * 9);
            drop(t, 9);
        }
    ds_tensor *t[2] = { on(harness_device(0), ds_int8(), 1, SHAPE(3)), on(harness_device(1), ds_int8(), 1, SHAPE(3)) }, *out[4];
    if (harness_device_count() > 1) {
        refused(ds_comm_broadcast_coalesced(INPUTS(t), 2, to, 2, 0, NULL, out), DS_ERR_DEVICE_MISMATCH);
        says("index 1");
    }
    refused(ds_comm_broadcast_coalesced(INPUTS(t), 2, to, 0, 0, NULL, out), DS_ERR_INVALID_VALUE);
    ok(ds_comm_broadcast_coalesced(INPUTS(t), 0, to, 2, 0, NULL, out));
    drop(t, 2);
    finish_comm();
}

/* ---- scatter and gather ---- */

static void test_a_scatter_cuts_as_torch_does(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    static const struct { int64_t size; size_t devices, pieces; int64_t length[4]; } c[] = {
        { 5, 4, 3, { 2, 2, 1 } }, { 1, 2, 1, { 1 } }, { 0, 3, 3, { 0, 0, 0 } }, { 8, 4, 4, { 2, 2, 2, 2 } }, { 7, 3, 3, { 3, 3, 1 } }, { 6, 4, 3, { 2, 2, 2 } },
    };
    ds_device to[4] = { harness_device(0), harness_device(1), harness_device(2), host() };
    for (size_t k = 0; k < sizeof c / sizeof *c; k++)
        for (int dim = -2; dim < 2; dim++) {
            int across = dim == 0 || dim == -2;
            ds_tensor *t = painted(harness_device(0), ds_float64(), 2, across ? SHAPE(c[k].size, 3) : SHAPE(3, c[k].size), 4), *out[4], *part;
            size_t n = 99;
            ok(ds_comm_scatter(t, to, c[k].devices, NULL, dim, NULL, out, &n));
            assert_int_equal(n, c[k].pieces);
            int64_t at = 0;
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(out[i]->shape[across ? 0 : 1], c[k].length[i]);
                ok(ds_tensor_narrow(t, dim, at, c[k].length[i], &part));
                expect_equal(part, out[i]);
                ok(ds_tensor_free(part));
                at += c[k].length[i];
            }
            for (size_t i = n; i < c[k].devices; i++) assert_null(out[i]);
            drop(out, n);
            ok(ds_tensor_free(t));
        }
    finish_comm();
}

static void test_a_scatter_with_sizes_and_its_errors(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[4] = { harness_device(0), harness_device(1), host(), harness_device(1) };
    ds_tensor *t = painted(host(), ds_int32(), 2, SHAPE(9, 5), 4), *out[4], *part;
    size_t n;
    ok(ds_comm_scatter(t, to, 4, SHAPE(2, 0, 3, 4), 0, NULL, out, &n));
    assert_int_equal(n, 4);
    int64_t at = 0, size[] = { 2, 0, 3, 4 };
    for (int i = 0; i < 4; i++) {
        ok(ds_tensor_narrow(t, 0, at, size[i], &part));
        expect_equal(part, out[i]);
        ok(ds_tensor_free(part));
        at += size[i];
    }
    drop(out, 4);
    refused(ds_comm_scatter(t, to, 0, NULL, 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("no device to scatter to");
    refused(ds_comm_scatter(t, to, 2, SHAPE(5, 5), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("more than 9");
    refused(ds_comm_scatter(t, to, 2, SHAPE(5, 3), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("add up to 8");
    refused(ds_comm_scatter(t, to, 2, SHAPE(10, -1), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, SHAPE(-1, 10), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("chunk_sizes[0] is -1");
    refused(ds_comm_scatter(t, to, 2, SHAPE(INT64_MAX, INT64_MAX), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, NULL, 2, NULL, out, &n), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, NULL, -3, NULL, out, &n), DS_ERR_INVALID_VALUE);
    ds_tensor *scalar = on(harness_device(0), ds_int32(), 0, NULL);
    refused(ds_comm_scatter(scalar, to, 2, NULL, 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    ds_stream s = harness_stream(0, 0);
    if (harness_device_count() > 1) {
        refused(ds_comm_scatter(t, to, 2, NULL, 0, &(ds_comm_options){ .streams = (ds_stream[]){ s, s }, .stream_count = 2 }, out, &n), DS_ERR_DEVICE_MISMATCH);
        says("at index 1");
    }
    to[1] = (ds_device){ harness_device(0).type, 1000 };
    refused(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, &n), DS_ERR_DEVICE_RANGE);
    assert_null(out[0]);
    to[1].index = -1;
    refused(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, &n), DS_ERR_DEVICE_RANGE);
    refused(ds_comm_scatter(t, to, 2, NULL, 0, &(ds_comm_options){ .flags = 128 }, out, &n), DS_ERR_INVALID_VALUE);
    assert_int_equal(n, 0);
    ok(ds_tensor_free(scalar));
    ok(ds_tensor_free(t));
    ok(ds_stream_destroy(s));
    finish_comm();
}

static void test_a_scatter_shows_what_is_there_already(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_tensor *t = painted(harness_device(0), ds_uint8(), 2, SHAPE(4, 6), 4), *out[2];
    ok(ds_comm_scatter(t, to, 2, NULL, 1, &(ds_comm_options){ .flags = DS_COMM_ALIAS }, out, NULL));
    assert_ptr_equal(out[0]->data, t->data);
    assert_int_equal(out[0]->strides[0], 6);
    drop(out, 2);
    ok(ds_tensor_free(t));
    finish_comm();
}

static void test_scatter_and_gather_keep_channels_last(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_tensor *nhwc = painted(harness_device(0), ds_float16(), 4, SHAPE(4, 5, 6, 3), 4), *t, *out[2], *back;
    ok(ds_tensor_permute(nhwc, (int[]){ 0, 3, 1, 2 }, &t));
    ok(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, NULL));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out[i]->strides[1], 1);
        assert_int_equal(out[i]->strides[3], 3);
        assert_true(ds_tensor_is_dense(out[i]));
    }
    ok(ds_comm_gather(INPUTS(out), 2, 0, harness_device(1), NULL, &back));
    assert_int_equal(back->strides[1], 1);
    expect_equal(t, back);
    drop(out, 2);
    ok(ds_tensor_free(t));
    ok(ds_tensor_free(nhwc));
    ok(ds_tensor_free(back));
    finish_comm();
}

static void test_scatter_into_and_gather_into(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *t = painted(harness_device(0), ds_complex64(), 3, SHAPE(2, 9, 3), 8), *out[3], *back, *bad;
    out[0] = on(harness_device(1), ds_complex64(), 3, SHAPE(2, 4, 3));
    out[1] = on(host(), ds_complex64(), 3, SHAPE(2, 0, 3));
    out[2] = on(harness_device(0), ds_complex64(), 3, SHAPE(2, 5, 3));
    ok(ds_comm_scatter_into(t, INPUTS(out), 3, -2, NULL));
    back = on(host(), ds_complex64(), 3, SHAPE(2, 9, 3));
    ds_tensor *both[2] = { out[0], out[2] };
    ok(ds_comm_gather_into(INPUTS(both), 2, 1, back, NULL));
    expect_equal(t, back);
    refused(ds_comm_scatter_into(t, INPUTS(out), 2, 1, NULL), DS_ERR_INVALID_VALUE);
    says("add up to 4, not to 9");
    refused(ds_comm_scatter_into(t, INPUTS(out), 0, 1, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter_into(t, INPUTS(out), 3, 0, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 has the shape [2, 4, 3], which differs from [2, 9, 3] in more than dimension 0");
    bad = on(harness_device(0), ds_complex64(), 3, SHAPE(2, 8, 3));
    refused(ds_comm_gather_into(INPUTS(both), 2, 1, bad, NULL), DS_ERR_INVALID_VALUE);
    says("[2, 8, 3], not [2, 9, 3]");
    drop(&bad, 1);
    bad = on(harness_device(0), ds_float64(), 3, SHAPE(2, 9, 3));
    refused(ds_comm_gather_into(INPUTS(both), 2, 1, bad, NULL), DS_ERR_INVALID_VALUE);
    says("float64");
    drop(&bad, 1);
    drop(&back, 1);
    drop(out, 3);
    drop(&t, 1);
    finish_comm();
}

static void test_gather_and_its_errors(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[] = { harness_device(0), harness_device(1), host(), { 0, 0 } };
    for (int dim = -2; dim < 2; dim++)
        for (int d = 0; d < 4; d++) {
            int across = dim == 0 || dim == -2;
            ds_tensor *in[3], *out, *part;
            int64_t size[3] = { 4, 0, 7 }, at = 0;
            for (int i = 0; i < 3; i++) in[i] = painted(harness_device(i), ds_bfloat16(), 2, across ? SHAPE(size[i], 3) : SHAPE(3, size[i]), (uint32_t)i);
            ok(ds_comm_gather(INPUTS(in), 3, dim, to[d], NULL, &out));
            assert_int_equal(is_host(out), to[d].type == DS_DEVICE_HOST);
            for (int i = 0; i < 3; i++) {
                ok(ds_tensor_narrow(out, dim, at, size[i], &part));
                expect_equal(in[i], part);
                ok(ds_tensor_free(part));
                at += size[i];
            }
            drop(&out, 1);
            drop(in, 3);
        }
    ds_tensor *in[2] = { on(harness_device(0), ds_int8(), 2, SHAPE(2, 3)), on(harness_device(0), ds_int8(), 1, SHAPE(3)) }, *out;
    refused(ds_comm_gather(INPUTS(in), 0, 0, to[0], NULL, &out), DS_ERR_INVALID_VALUE);
    says("no tensor to gather from");
    refused(ds_comm_gather(INPUTS(in), 2, 0, to[0], NULL, &out), DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [3]");
    drop(&in[1], 1);
    in[1] = on(harness_device(0), ds_int8(), 2, SHAPE(2, 4));
    refused(ds_comm_gather(INPUTS(in), 2, 0, to[0], NULL, &out), DS_ERR_INVALID_VALUE);
    drop(&in[1], 1);
    in[1] = on(harness_device(0), ds_uint8(), 2, SHAPE(2, 3));
    refused(ds_comm_gather(INPUTS(in), 2, 0, to[0], NULL, &out), DS_ERR_INVALID_VALUE);
    says("uint8");
    assert_null(out);
    drop(in, 2);
    finish_comm();
}

/* Random views of random tensors, scattered and gathered again: every path that a copy may take. */
static ds_tensor *random_view(uint32_t *seed, ds_device d, ds_dtype dtype, int ndim, const int64_t *shape) {
    int64_t wide[4], steps[4], start[4];
    int order[4], place[4];
    for (int i = 0; i < ndim; i++) order[i] = i;
    for (int i = ndim - 1; i > 0; i--) {
        int k = (int)dice(seed, (uint32_t)i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    for (int i = 0; i < ndim; i++) { /* dimension i of the view is dimension place[i] in memory */
        place[order[i]] = i;
        steps[i] = 1 + (int64_t)dice(seed, 2);
        start[i] = (int64_t)dice(seed, 2);
    }
    for (int i = 0; i < ndim; i++) wide[place[i]] = start[i] + shape[i] * steps[i] + (int64_t)dice(seed, 2);
    ds_tensor *t = painted(d, dtype, ndim, wide, *seed), *u;
    ok(ds_tensor_permute(t, place, &u));
    ok(ds_tensor_free(t));
    for (int i = 0; i < ndim; i++) {
        ok(ds_tensor_slice(u, i, start[i], start[i] + shape[i] * steps[i], steps[i], &t));
        ok(ds_tensor_free(u));
        u = t;
    }
    for (int i = 0; i < ndim; i++) assert_int_equal(u->shape[i], shape[i]);
    return u;
}
static void test_random_scatters_and_gathers(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    uint32_t seed = 11;
    const ds_dtype types[] = { ds_uint8(), ds_float16(), ds_float32(), ds_float64(), ds_complex128(), { DS_CODE_FLOAT, 32, 3 } };
    for (int round = 0; round < 120; round++) {
        int ndim = 1 + (int)dice(&seed, 4), dim = (int)dice(&seed, (uint32_t)ndim);
        size_t n = 1 + dice(&seed, 4);
        int64_t shape[4], piece[4], sizes[4], sum = 0;
        ds_tensor *out[4], *part, *back, *to[4];
        ds_dtype dtype = types[dice(&seed, 6)];
        for (int i = 0; i < ndim; i++) shape[i] = piece[i] = (int64_t)dice(&seed, 6);
        for (size_t i = 0; i < n; i++) sum += sizes[i] = (int64_t)dice(&seed, 4);
        shape[dim] = sum;
        ds_device where[4], from = dice(&seed, 4) ? harness_device((int)dice(&seed, 4)) : host();
        for (size_t i = 0; i < n; i++) where[i] = dice(&seed, 5) ? harness_device((int)dice(&seed, 4)) : host();
        if (n == 1 && from.type == DS_DEVICE_HOST) where[0] = harness_device(0);
        int all_host = from.type == DS_DEVICE_HOST;
        for (size_t i = 0; i < n; i++) all_host &= where[i].type == DS_DEVICE_HOST;
        if (all_host) where[0] = harness_device(1);
        ds_tensor *t = random_view(&seed, from, dtype, ndim, shape);
        ok(ds_comm_scatter(t, where, n, sizes, dim, NULL, out, NULL));
        for (size_t i = 0; i < n; i++) {
            piece[dim] = sizes[i];
            to[i] = random_view(&seed, where[i], dtype, ndim, piece);
        }
        ok(ds_comm_scatter_into(t, INPUTS(to), n, dim, NULL));
        int64_t at = 0;
        for (size_t i = 0; i < n; i++) {
            ok(ds_tensor_narrow(t, dim, at, sizes[i], &part));
            expect_equal(part, out[i]);
            expect_equal(part, to[i]);
            ok(ds_tensor_free(part));
            at += sizes[i];
        }
        ok(ds_comm_gather(INPUTS(to), n, dim, harness_device((int)dice(&seed, 3)), NULL, &back));
        expect_equal(t, back);
        drop(&back, 1);
        back = random_view(&seed, harness_device((int)dice(&seed, 3)), dtype, ndim, shape);
        ok(ds_comm_gather_into(INPUTS(out), n, dim, back, NULL));
        expect_equal(t, back);
        drop(&back, 1);
        drop(to, n);
        drop(out, n);
        drop(&t, 1);
    }
    finish_comm();
}

/* ---- reductions ---- */

static void put_floats(const ds_tensor *t, float base) {
    size_t n = (size_t)ds_tensor_count(t);
    float *p = malloc((n + 1) * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = base + (float)i * 0.37f;
    carry(t, (unsigned char *)p, 1);
    free(p);
}
/* In the order of the list. */
static float fold_floats(float *x, size_t n, ds_reduce_op op) {
    float a = x[0];
    for (size_t i = 1; i < n; i++)
        a = op == DS_REDUCE_PRODUCT ? a * x[i] : op == DS_REDUCE_MAX ? (x[i] > a ? x[i] : a) : op == DS_REDUCE_MIN ? (x[i] < a ? x[i] : a) : a + x[i];
    return op == DS_REDUCE_AVERAGE ? a / (float)n : a;
}
static void expect_reduced(ds_tensor *const *in, size_t n, const ds_tensor *out, ds_reduce_op op, size_t from, size_t count) {
    float *x[MOST], *y = (float *)(void *)contents(out), one[MOST];
    for (size_t i = 0; i < n; i++) x[i] = (float *)(void *)contents(in[i]);
    for (size_t k = 0; k < count; k++) {
        for (size_t i = 0; i < n; i++) one[i] = x[i][from + k];
        float want = fold_floats(one, n, op);
        if (memcmp(&want, &y[k], 4) != 0) fail_msg("element %zu is %a, not %a", k, (double)y[k], (double)want);
    }
    for (size_t i = 0; i < n; i++) free(x[i]);
    free(y);
}

static void test_a_reduction_is_in_the_order_of_the_list(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    for (int op = DS_REDUCE_SUM; op <= DS_REDUCE_AVERAGE; op++)
        for (size_t n = 1; n <= 5; n++) {
            ds_tensor *in[5], *out, *into;
            for (size_t i = 0; i < n; i++) {
                in[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(37, 11));
                put_floats(in[i], (float)((i * 7) % 5) - 1.3f);
            }
            ok(ds_comm_reduce(INPUTS(in), n, (ds_reduce_op)op, harness_device(0), NULL, &out));
            assert_int_equal(out->device.index, 0);
            expect_reduced(in, n, out, (ds_reduce_op)op, 0, 37 * 11);
            into = on(harness_device(1), ds_float32(), 2, SHAPE(37, 11));
            ok(ds_comm_reduce_into(INPUTS(in), n, (ds_reduce_op)op, into, NULL));
            expect_equal(out, into);
            ok(ds_comm_reduce_into(INPUTS(in), n, (ds_reduce_op)op, in[n - 1], NULL)); /* in place */
            expect_equal(out, in[n - 1]);
            drop(&into, 1);
            drop(&out, 1);
            drop(in, n);
        }
    finish_comm();
}

static void test_reduce_add_and_its_errors(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *in[3], *out = NULL, *odd;
    for (int i = 0; i < 3; i++) {
        in[i] = on(harness_device(i), ds_float32(), 1, SHAPE(1000));
        put_floats(in[i], (float)i);
    }
    ok(ds_comm_reduce_add(INPUTS(in), 3, harness_device(1), NULL, &out));
    expect_reduced(in, 3, out, DS_REDUCE_SUM, 0, 1000);
    drop(&out, 1);
    ok(ds_comm_reduce_add(INPUTS(in), 1, harness_device(0), &(ds_comm_options){ .flags = DS_COMM_ALIAS }, &out));
    assert_ptr_equal(out->data, in[0]->data);
    drop(&out, 1);
    ok(ds_comm_reduce_add(INPUTS(in), 1, harness_device(0), NULL, &out));
    assert_ptr_not_equal(out->data, in[0]->data);
    expect_equal(in[0], out);
    drop(&out, 1);
    refused(ds_comm_reduce_add(INPUTS(in), 0, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    if (harness_device_count() > 1) {
        refused(ds_comm_reduce_add(INPUTS(in), 1, harness_device(1), NULL, &out), DS_ERR_DEVICE_MISMATCH);
        says("none of the input tensors is on the destination");
    }
    refused(ds_comm_reduce_add(INPUTS(in), 1, host(), NULL, &out), DS_ERR_DEVICE_MISMATCH);
    odd = on(host(), ds_float32(), 1, SHAPE(1000));
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out), DS_ERR_INVALID_DEVICE);
    says("input tensor at index 1 is on the host");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_float32(), 1, SHAPE(999));
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [999], not [1000]");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_int32(), 1, SHAPE(1000));
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    says("int32, not float32");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_float8_e4m3fn(), 1, SHAPE(10));
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ odd, odd }), 2, harness_device(0), NULL, &out), DS_ERR_UNSUPPORTED);
    says("float8_e4m3fn");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_complex64(), 1, SHAPE(10));
    refused(ds_comm_reduce(INPUTS((ds_tensor *[]){ odd, odd }), 2, DS_REDUCE_MAX, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    refused(ds_comm_reduce(INPUTS((ds_tensor *[]){ odd, odd }), 2, (ds_reduce_op)5, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    drop(&odd, 1);
    assert_null(out);
    ds_tensor *half; /* the output begins inside of an input */
    ok(ds_tensor_narrow(in[0], 0, 0, 500, &half));
    ok(ds_tensor_narrow(in[0], 0, 100, 500, &odd));
    refused(ds_comm_reduce_into(INPUTS((ds_tensor *[]){ half, half }), 2, DS_REDUCE_SUM, odd, NULL), DS_ERR_INVALID_VALUE);
    says("shares memory");
    drop(&half, 1);
    drop(&odd, 1);
    ds_tensor *none = on(harness_device(0), ds_float32(), 2, SHAPE(0, 5));
    ok(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ none, none }), 2, harness_device(0), NULL, &out));
    assert_int_equal(out->shape[1], 5);
    drop(&out, 1);
    drop(&none, 1);
    drop(in, 3);
    finish_comm();
}

static void test_reductions_of_all_layouts(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    uint32_t seed = 5;
    for (int round = 0; round < 60; round++) {
        int ndim = (int)dice(&seed, 4);
        size_t n = 2 + dice(&seed, 3), count = 1;
        int64_t shape[4];
        for (int i = 0; i < ndim; i++) count *= (size_t)(shape[i] = 1 + (int64_t)dice(&seed, 6));
        ds_tensor *in[4], *out;
        for (size_t i = 0; i < n; i++) {
            in[i] = ndim ? random_view(&seed, harness_device((int)i), ds_float32(), ndim, shape) : on(harness_device((int)i), ds_float32(), 0, NULL);
            put_floats(in[i], (float)i * 0.7f);
        }
        ok(ds_comm_reduce_add(INPUTS(in), n, harness_device(0), NULL, &out));
        expect_reduced(in, n, out, DS_REDUCE_SUM, 0, count);
        drop(&out, 1);
        if (ndim) {
            out = random_view(&seed, harness_device(1), ds_float32(), ndim, shape);
            ok(ds_comm_reduce_into(INPUTS(in), n, DS_REDUCE_SUM, out, NULL));
            expect_reduced(in, n, out, DS_REDUCE_SUM, 0, count);
            drop(&out, 1);
        }
        drop(in, n);
    }
    finish_comm();
}

static void test_many_sums_at_once(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *in[3 * 4], *out[4];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) {
            in[i * 4 + k] = on(harness_device(i), ds_float32(), 2, SHAPE(k, 50));
            put_floats(in[i * 4 + k], (float)(i + k));
        }
    ok(ds_comm_reduce_add_coalesced(INPUTS(in), 3, 4, harness_device(0), 1 << 20, NULL, out));
    for (int k = 0; k < 4; k++) {
        ds_tensor *same[3] = { in[k], in[4 + k], in[8 + k] };
        expect_reduced(same, 3, out[k], DS_REDUCE_SUM, 0, (size_t)k * 50);
    }
    drop(out, 4);
    drop(in, 12);
    finish_comm();
}

/* ---- everyone with everyone ---- */

static void test_all_reduce_gives_everyone_the_sum(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    static const int64_t sizes[] = { 0, 1, 63, 64, 65, 1000, 5000 };
    for (size_t z = 0; z < 7; z++)
        for (size_t n = 1; n <= MOST; n += n < 4 ? 1 : 4)
            for (int place = 0; place < 2; place++) {
                ds_tensor *in[MOST], *copy[MOST], *out[MOST];
                for (size_t i = 0; i < n; i++) {
                    in[i] = on(harness_device((int)i), ds_float32(), 1, &sizes[z]);
                    copy[i] = on(host(), ds_float32(), 1, &sizes[z]);
                    put_floats(in[i], (float)i * 1.1f);
                    put_floats(copy[i], (float)i * 1.1f);
                    out[i] = place ? in[i] : on(harness_device((int)i), ds_float32(), 1, &sizes[z]);
                }
                ok(ds_comm_all_reduce(INPUTS(in), INPUTS(out), n, DS_REDUCE_SUM, NULL));
                for (size_t i = 0; i < n; i++) expect_reduced(copy, n, out[i], DS_REDUCE_SUM, 0, (size_t)sizes[z]);
                if (!place) drop(out, n);
                drop(copy, n);
                drop(in, n);
            }
    finish_comm();
}

static void test_all_gather_reduce_scatter_and_all_to_all(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    for (size_t n = 1; n <= 4; n++)
        for (int place = 0; place < 2; place++) {
            int64_t c = 3, all = c * (int64_t)n;
            ds_tensor *one[4], *many[4], *part[4], *copy[4], *view;
            for (size_t i = 0; i < n; i++) { /* all-gather */
                many[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(all, 5));
                if (place) ok(ds_tensor_narrow(many[i], 0, (int64_t)i * c, c, &one[i]));
                else one[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(c, 5));
                put_floats(one[i], (float)i * 3);
            }
            ok(ds_comm_all_gather(INPUTS(one), INPUTS(many), n, NULL));
            for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < n; k++) {
                    ok(ds_tensor_narrow(many[i], 0, (int64_t)k * c, c, &view));
                    expect_equal(one[k], view);
                    drop(&view, 1);
                }
            drop(one, n);
            for (size_t i = 0; i < n; i++) { /* reduce-scatter */
                put_floats(many[i], (float)i * 3);
                copy[i] = on(host(), ds_float32(), 2, SHAPE(all, 5));
                put_floats(copy[i], (float)i * 3);
                if (place) ok(ds_tensor_narrow(many[i], 0, (int64_t)i * c, c, &part[i]));
                else part[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(c, 5));
            }
            ok(ds_comm_reduce_scatter(INPUTS(many), INPUTS(part), n, DS_REDUCE_AVERAGE, NULL));
            for (size_t i = 0; i < n; i++) expect_reduced(copy, n, part[i], DS_REDUCE_AVERAGE, i * 15, 15);
            drop(part, n);
            drop(copy, n);
            for (size_t i = 0; i < n; i++) { /* all-to-all */
                color(many[i], (uint32_t)i);
                copy[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(all, 5));
            }
            ok(ds_comm_all_to_all(INPUTS(many), INPUTS(copy), n, NULL));
            for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < n; k++) {
                    ok(ds_tensor_narrow(copy[i], 0, (int64_t)k * c, c, &view));
                    ok(ds_tensor_narrow(many[k], 0, (int64_t)i * c, c, &part[0]));
                    expect_equal(part[0], view);
                    drop(&view, 1);
                    drop(part, 1);
                }
            refused(ds_comm_all_to_all(INPUTS(many), INPUTS(many), n, NULL), DS_ERR_INVALID_VALUE);
            drop(copy, n);
            drop(many, n);
        }
    ds_tensor *a = on(harness_device(0), ds_float32(), 1, SHAPE(6)), *b = on(harness_device(0), ds_float32(), 1, SHAPE(7));
    refused(ds_comm_all_reduce(INPUTS(&a), INPUTS(&b), 1, DS_REDUCE_SUM, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_gather(INPUTS((ds_tensor *[]){ a, a }), INPUTS((ds_tensor *[]){ b, a }), 2, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_reduce(INPUTS((ds_tensor *[]){ a, a }), INPUTS((ds_tensor *[]){ a, a }), 2, DS_REDUCE_SUM, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_reduce(NULL, NULL, 0, DS_REDUCE_SUM, NULL), DS_ERR_INVALID_VALUE);
    drop(&a, 1);
    drop(&b, 1);
    finish_comm();
}

/* ---- order ---- */

static void test_a_collective_waits_for_all_streams_and_they_for_it(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0), t = harness_stream(1, 0);
    ds_tensor *a, *b;
    gate g = { 0 }, h = { 0 };
    ok(ds_tensor_alloc(ds_int32(), 1, SHAPE(100), s, &a));
    ok(ds_tensor_alloc(ds_int32(), 1, SHAPE(100), t, &b));
    ds_comm_options o = { .streams = &t, .stream_count = 1, .stream = s };
    ok(ds_fill(a->data, 1, 4, 100, s));
    ok(ds_fill(b->data, 2, 4, 100, t));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_synchronize(t));
    gate_close(s, &g);
    ok(ds_fill(a->data, 7, 4, 100, s));
    ok(ds_comm_broadcast_into(a, INPUTS(&b), 1, &o)); /* returns at once */
    gate_close(t, &h);
    gate_expect_unentered(&h);
    gate_open(&g);
    gate_wait_entered(&h);
    gate_open(&h);
    ok(ds_fill(a->data, 9, 4, 100, s)); /* what comes later does not overtake the copy */
    int32_t got[100];
    ok(ds_copy(got, b->data, sizeof got, t));
    ok(ds_stream_synchronize(t));
    assert_int_equal(got[0], 7);
    assert_int_equal(got[99], 7);
    gate_close(t, &(gate){ .open = 1 });
    ok(ds_comm_barrier((ds_stream[]){ s, t }, 2));
    refused(ds_comm_barrier((ds_stream[]){ s, { 0 } }, 2), DS_ERR_INVALID_HANDLE);
    ok(ds_comm_barrier(NULL, 0));
    ok(ds_stream_synchronize(s));
    ok(ds_tensor_free(a));
    ok(ds_tensor_free(b));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish_comm();
}

/* As on a single GPU: the list of devices repeats it, and each entry has a stream of its own. */
static void test_several_streams_of_one_device_take_part(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s[4];
    ds_device to[4];
    ds_tensor *in[4], *copy[4], *out[4], *part[4], *whole, *sum;
    for (int i = 0; i < 4; i++) {
        s[i] = harness_stream(0, 0);
        to[i] = harness_device(0);
        in[i] = on(to[i], ds_float32(), 2, SHAPE(64, 33));
        copy[i] = on(host(), ds_float32(), 2, SHAPE(64, 33));
        put_floats(copy[i], (float)i * 1.7f);
        put_floats(in[i], (float)i * 1.7f);
    }
    wait_all();
    ds_comm_options o = { .streams = s, .stream_count = 4, .stream = s[3] };
    ok(ds_comm_reduce(INPUTS(in), 4, DS_REDUCE_SUM, to[0], &o, &sum)); /* one after the other, and nothing in between waits */
    ok(ds_comm_all_reduce(INPUTS(in), INPUTS(in), 4, DS_REDUCE_SUM, &o));
    ok(ds_comm_scatter(in[1], to, 4, NULL, -1, &o, part, NULL));
    ok(ds_comm_gather(INPUTS(part), 4, 1, to[0], &o, &whole));
    ok(ds_comm_broadcast(whole, to, 4, &o, out));
    drop(part, 4); /* at once: their streams have been told */
    drop(&whole, 1);
    expect_reduced(copy, 4, sum, DS_REDUCE_SUM, 0, 64 * 33);
    for (int i = 0; i < 4; i++) {
        expect_equal(sum, in[i]);
        expect_equal(sum, out[i]);
    }
    drop(&sum, 1);
    drop(in, 4);
    drop(copy, 4);
    drop(out, 4);
    for (int i = 0; i < 4; i++) ok(ds_stream_destroy(s[i]));
    finish_comm();
}

static void test_devices_that_cannot_reach_each_other(void **state) {
    const unsigned char alone[9] = { 1, 0, 0, 0, 1, 0, 0, 0, 1 };
    ds_cpu_desc cpu = { .devices = 3, .peer_access = alone };
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    test_a_broadcast_into_tensors_that_are_there(state);
    test_random_scatters_and_gathers(state);
    test_reductions_of_all_layouts(state);
    test_all_reduce_gives_everyone_the_sum(state);
    test_all_gather_reduce_scatter_and_all_to_all(state);
    harness_restart(NULL);
}

static void test_a_collective_is_captured_with_its_temporary_memory(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    harness_warm_up();
    ds_stream s[2] = { harness_stream(0, 0), harness_stream(1, 0) };
    ds_comm_options o = { .streams = s, .stream_count = 2, .stream = s[0] };
    ds_tensor *wide[2], *in[2], *sum, *back[2], *half[2];
    for (int i = 0; i < 2; i++) {
        ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(40, 30), s[i], &wide[i]));
        ok(ds_tensor_transpose(wide[i], 0, 1, &in[i]));
        ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(30, 20), s[i], &half[i]));
        ok(ds_stream_synchronize(s[i]));
    }
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(30, 40), s[0], &sum));
    for (int i = 0; i < 2; i++) ok(ds_tensor_narrow(sum, 1, i * 20, 20, &back[i]));
    put_floats(in[0], 1);
    put_floats(in[1], 2);
    ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_SUM, sum, &o)); /* once outside: kernels are loaded */
    ok(ds_comm_scatter_into(sum, INPUTS(half), 2, 1, &o));
    wait_all();
    ds_graph graph;
    ds_graph_exec exec;
    harness_watch(s[0]);
    ok(ds_capture_begin(s[0], DS_CAPTURE_GLOBAL));
    ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_SUM, sum, &o));
    ok(ds_comm_scatter_into(sum, INPUTS(half), 2, 1, &o));
    ok(ds_capture_end(s[0], &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    for (int round = 0; round < 3; round++) {
        put_floats(in[0], (float)round);
        put_floats(in[1], (float)round * 5);
        ok(ds_graph_launch(exec, s[0]));
        ok(ds_stream_synchronize(s[0]));
        expect_reduced(in, 2, sum, DS_REDUCE_SUM, 0, 1200);
        for (int i = 0; i < 2; i++) expect_equal(back[i], half[i]);
    }
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    drop(back, 2);
    drop(half, 2);
    drop(in, 2);
    drop(wide, 2);
    drop(&sum, 1);
    for (int i = 0; i < 2; i++) ok(ds_stream_destroy(s[i]));
    finish_comm();
}

/* ---- failures ---- */

static int explode(size_t first, size_t count, const void *args) {
    (void)first; (void)count; (void)args;
    return 7;
}
static void test_a_part_that_fails_is_reported_by_every_stream(void **state) {
    (void)state;
    if (harness_device_count() < 2) skip();
    int devices = harness_device_count() < 4 ? harness_device_count() : 4;
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_tensor *out[4], *a;
    ds_stream s[4];
    gate g = { 0 };
    for (int i = 0; i < devices; i++) {
        s[i] = harness_stream(i, 0);
        ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(70000), s[i], &out[i]));
    }
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(70000), s[0], &a));
    gate_close(s[1], &g);
    ok(ds_launch(k, 1, NULL, 0, s[1]));
    ok(ds_comm_broadcast_into(a, INPUTS(out), (size_t)devices, &(ds_comm_options){ .streams = s, .stream_count = 4, .stream = s[0] }));
    gate_open(&g);
    for (int i = 0; i < devices; i++) refused(ds_stream_synchronize(s[i]), DS_ERR_FAILED);
    for (int i = 0; i < devices; i++) DS_IGNORE(ds_tensor_free(out[i]));
    DS_IGNORE(ds_tensor_free(a));
    for (int i = 0; i < devices; i++) ok(ds_stream_destroy(s[i]));
    harness_recover(1);
}

/* What a program would do, with whatever the call gives; 1: something failed. */
static int attempt(void) {
    ds_tensor *in[3] = { 0 }, *all[3] = { 0 }, *part[3] = { 0 }, *sum = NULL, *view = NULL;
    ds_device to[3] = { harness_device(0), harness_device(1), harness_device(0) };
    ds_result r = DS_OK;
    int frees = 0;
    for (int i = 0; i < 3 && r == DS_OK; i++) {
        ds_stream s;
        r = ds_stream_current(to[i], &s);
        if (r == DS_OK) r = ds_tensor_alloc(ds_float32(), 2, SHAPE(6, 50), s, &in[i]);
    }
    if (r == DS_OK) r = ds_tensor_transpose(in[0], 0, 1, &view);
    if (r == DS_OK) {
        r = ds_comm_broadcast(view, to, 3, NULL, all);
        if (r < 0) for (int i = 0; i < 3; i++) assert_null(all[i]);
    }
    if (r == DS_OK) r = ds_comm_scatter(view, to, 3, NULL, 1, NULL, part, NULL);
    if (r < 0) for (int i = 0; i < 3; i++) assert_null(part[i]);
    if (r == DS_OK) r = ds_comm_reduce_add(INPUTS(in), 3, to[0], NULL, &sum);
    if (r < 0) assert_null(sum);
    if (r < 0 && !ds_last_error()[0]) fail_msg("%s without a sentence", ds_result_name(r));
    for (int i = 0; i < 2; i++) { /* at the second time there is no fault left */
        ds_result one = ds_device_synchronize(to[i]), again = one < 0 ? ds_device_synchronize(to[i]) : DS_OK;
        if (again < 0) fail_msg("%s stays %s", i ? "the second device" : "the first device", ds_result_name(again));
        if (one < 0) r = one;
    }
    for (int i = 0; i < 3; i++) frees |= ds_tensor_free(in[i]) < 0 || ds_tensor_free(all[i]) < 0 || ds_tensor_free(part[i]) < 0;
    frees |= ds_tensor_free(sum) < 0 || ds_tensor_free(view) < 0;
    if (!frees)
        for (int i = 0; i < 2; i++) assert_int_equal(ds_mem_allocated(to[i]), 0);
    return r < 0 || frees;
}
static void test_a_fault_at_every_driver_call_in_turn(void **state) {
    (void)state;
    int n = 0, calm = 0;
    harness_shutdown();
    while (calm < 3 && ++n < 400) { /* a fault that is mended says nothing */
        char fault[40];
        snprintf(fault, sizeof fault, "*:%d", n);
        ok(ds_init(&(ds_init_desc){ .layers = "fault", .fault = fault }));
        calm = attempt() ? 0 : calm + 1;
        DS_IGNORE(ds_shutdown()); /* which may come to the fault */
        harness_forget();
    }
    assert_true(n > 15 && n < 400);
}

const struct CMUnitTest tests_comm[] = {
    DS_TEST(test_a_broadcast_copies_to_every_device_of_the_list, "torch 115"),
    DS_TEST(test_a_broadcast_may_show_the_tensor_itself, "torch 115"),
    DS_TEST(test_a_broadcast_into_tensors_that_are_there, "torch 115"),
    DS_TEST(test_many_tensors_travel_in_few_copies, "torch 116 117"),
    DS_TEST(test_a_scatter_cuts_as_torch_does, "torch 120"),
    DS_TEST(test_a_scatter_with_sizes_and_its_errors, "torch 120"),
    DS_TEST(test_a_scatter_shows_what_is_there_already, "torch 120"),
    DS_TEST(test_scatter_and_gather_keep_channels_last, "torch 122"),
    DS_TEST(test_scatter_into_and_gather_into, "torch 120 121"),
    DS_TEST(test_gather_and_its_errors, "torch 121"),
    DS_TEST(test_random_scatters_and_gathers, "torch 120 121"),
    DS_TEST(test_a_reduction_is_in_the_order_of_the_list, "comm: reduce"),
    DS_TEST(test_reduce_add_and_its_errors, "torch 118"),
    DS_TEST(test_reductions_of_all_layouts, "torch 118"),
    DS_TEST(test_many_sums_at_once, "torch 119"),
    DS_TEST(test_all_reduce_gives_everyone_the_sum, "comm: all_reduce"),
    DS_TEST(test_all_gather_reduce_scatter_and_all_to_all, "comm: all_gather, reduce_scatter, all_to_all"),
    DS_TEST(test_a_collective_waits_for_all_streams_and_they_for_it, "comm: order"),
    DS_TEST(test_several_streams_of_one_device_take_part, "comm: order"),
    DS_TEST_CPU(test_devices_that_cannot_reach_each_other, "comm: staged"),
    DS_TEST(test_a_collective_is_captured_with_its_temporary_memory, "comm: capture"),
    DS_TEST_CPU(test_a_part_that_fails_is_reported_by_every_stream, "comm: failure"),
    DS_TEST(test_a_fault_at_every_driver_call_in_turn, "comm: faults"),
};
const size_t tests_comm_count = sizeof tests_comm / sizeof *tests_comm;
