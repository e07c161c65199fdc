/* Collectives: torch.cuda.comm, and what it lacks. */
#include "comm.h"
#include <stdatomic.h>
#include <sys/mman.h>

/* ---- broadcast ---- */

static void test_a_broadcast_copies_to_every_device_of_the_list(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device from[] = { harness_device(0), host() },
              to[] = { harness_device(1), harness_device(0), host(), harness_device(1),
                       harness_device(2) };
    for (int f = 0; f < 2; f++) {
        ds_tensor *t = painted(from[f], ds_float32(), 2, SHAPE(33, 7), 5), *out[5];
        ok(ds_comm_broadcast(t, to, 5, NULL, out));
        for (int i = 0; i < 5; i++) {
            assert_int_equal(is_host(out[i]), to[i].type == DS_DEVICE_HOST);
            if (!is_host(out[i]))
                assert_int_equal(out[i]->device.index, to[i].index);
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
    if (harness_device_count() > 1)
        assert_ptr_not_equal(out[1]->data, t->data);
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
    for (int i = 0; i < 4; i++)
        expect_equal(t, out[i]);
    after = contents(wide);
    for (int i = 0; i < 12 * 60; i++)
        if (i % 60 < 14 || i % 60 >= 34)
            assert_int_equal(before[i], after[i]);
    free(before);
    free(after);
    ds_tensor *bad[4];
    bad[0] = out[0];
    bad[1] = on(harness_device(1), ds_int16(), 2, SHAPE(10, 12));
    refused(ds_comm_broadcast_into(t, INPUTS(bad), 2, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has the shape [10, 12], not [12, 10]");
    bad[2] = on(harness_device(1), ds_float16(), 2, SHAPE(12, 10));
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], bad[2] }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has elements of type float16, not int16");
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], NULL }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    says("index 1");
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ bad[0], bad[0] }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    says("shares memory");
    ok(ds_tensor_wrap(out[0], DS_TENSOR_READ_ONLY, NULL, NULL, &bad[3]));
    refused(ds_comm_broadcast_into(t, INPUTS(&bad[3]), 1, NULL), DS_ERR_INVALID_VALUE);
    says("read-only");
    drop(bad + 1, 3);
    drop(out, 4);
    ok(ds_tensor_free(wide));
    finish_comm();
}

/* Calls of the stand-in for cudart, where it is linked in. */
unsigned long standin_calls(const char *name) __attribute__((weak));

/* Packing them is one call of cudart, with CUDA 12.8 or newer. */
static void test_tensors_are_packed_by_one_batch_of_copies(void **state) {
    enum { TENSORS = 20 };

    ds_tensor *t[TENSORS], *out[TENSORS];
    (void)state;
    two_devices();
    begin(PRESET_DEFAULT);
    ds_device to = harness_device(1);
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ok(ds_stream_push(s, 0)); /* CUDA takes no batch on the legacy stream */
    for (int i = 0; i < TENSORS; i++)
        t[i] = painted(harness_device(0), ds_float32(), 2, SHAPE(i + 1, 1100), (uint32_t)i);
    unsigned long batches = standin_calls ? standin_calls("cudaMemcpyBatchAsync") : 0;
    unsigned long singles = standin_calls ? standin_calls("cudaMemcpyAsync") : 0;
    ok(ds_comm_broadcast_coalesced(INPUTS(t), TENSORS, &to, 1, 1 << 24, NULL, out));
    if (standin_calls) {
        assert_int_equal(standin_calls("cudaMemcpyBatchAsync") - batches, 1);
        assert_true(standin_calls("cudaMemcpyAsync") - singles <= 1); /* to the other device */
    }
    for (int i = 0; i < TENSORS; i++)
        expect_equal(t[i], out[i]);
    drop(t, TENSORS);
    drop(out, TENSORS);
    ok(ds_stream_pop());
    ok(ds_stream_destroy(s));
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
                /* the shape stays, unlike torch's */
                if (i == 4)
                    t[i] = on(harness_device(0), types[1], 2, SHAPE(3, 0));
                else if (i == 7) {
                    base = painted(harness_device(0), types[0], 2, SHAPE(6, 8), 77);
                    ok(ds_tensor_transpose(base, 0, 1, &t[i]));
                    ok(ds_tensor_free(base));
                } else
                    t[i] =
                        painted(harness_device(0), types[i % 3], 2, SHAPE(i + 1, 11), (uint32_t)i);
            }
            ok(ds_comm_broadcast_coalesced(INPUTS(t), 9, to, 4, sizes[z],
                                           &(ds_comm_options){ .flags = alias ? DS_COMM_ALIAS : 0 },
                                           out));
            for (int d = 0; d < 4; d++)
                for (int i = 0; i < 9; i++) {
                    ds_tensor *o = out[d * 9 + i];
                    assert_int_equal(o->ndim, 2);
                    assert_int_equal(o->shape[1], t[i]->shape[1]);
                    assert_true(ds_dtype_equal(o->dtype, t[i]->dtype));
                    if (d == 0 && i != 4)
                        assert_int_equal(o->data == t[i]->data, alias);
                    expect_equal(t[i], o);
                }
            drop(out, 4 * 9);
            drop(t, 9);
        }
    ds_tensor *t[2] = { on(harness_device(0), ds_int8(), 1, SHAPE(3)),
                        on(harness_device(1), ds_int8(), 1, SHAPE(3)) },
              *out[4];
    if (harness_device_count() > 1) {
        refused(ds_comm_broadcast_coalesced(INPUTS(t), 2, to, 2, 0, NULL, out),
                DS_ERR_DEVICE_MISMATCH);
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

    static const struct {
        int64_t size;
        size_t devices, pieces;
        int64_t length[4];
    } c[] = {
        { 5, 4, 3, { 2, 2, 1 } },    { 1, 2, 1, { 1 } },       { 0, 3, 3, { 0, 0, 0 } },
        { 8, 4, 4, { 2, 2, 2, 2 } }, { 7, 3, 3, { 3, 3, 1 } }, { 6, 4, 3, { 2, 2, 2 } },
    };

    ds_device to[4] = { harness_device(0), harness_device(1), harness_device(2), host() };
    for (size_t k = 0; k < sizeof c / sizeof *c; k++)
        for (int dim = -2; dim < 2; dim++) {
            int across = dim == 0 || dim == -2;
            ds_tensor *t = painted(harness_device(0), ds_float64(), 2,
                                   across ? SHAPE(c[k].size, 3) : SHAPE(3, c[k].size), 4),
                      *out[4], *part;
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
            for (size_t i = n; i < c[k].devices; i++)
                assert_null(out[i]);
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
    says("no devices to scatter to");
    refused(ds_comm_scatter(t, to, 2, SHAPE(5, 5), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("exceeds 9");
    refused(ds_comm_scatter(t, to, 2, SHAPE(5, 3), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("sum of chunk_sizes is 8");
    refused(ds_comm_scatter(t, to, 2, SHAPE(10, -1), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, SHAPE(-1, 10), 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("chunk_sizes[0] is -1");
    refused(ds_comm_scatter(t, to, 2, SHAPE(INT64_MAX, INT64_MAX), 0, NULL, out, &n),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, NULL, 2, NULL, out, &n), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter(t, to, 2, NULL, -3, NULL, out, &n), DS_ERR_INVALID_VALUE);
    ds_tensor *scalar = on(harness_device(0), ds_int32(), 0, NULL);
    refused(ds_comm_scatter(scalar, to, 2, NULL, 0, NULL, out, &n), DS_ERR_INVALID_VALUE);
    ds_stream s = harness_stream(0, 0);
    if (harness_device_count() > 1) {
        refused(ds_comm_scatter(
                    t, to, 2, NULL, 0,
                    &(ds_comm_options){ .streams = (ds_stream[]){ s, s }, .stream_count = 2 }, out,
                    &n),
                DS_ERR_DEVICE_MISMATCH);
        says("at index 1");
    }
    to[1] = (ds_device){ harness_device(0).type, 1000 };
    refused(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, &n), DS_ERR_DEVICE_RANGE);
    assert_null(out[0]);
    to[1].index = -1;
    refused(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, &n), DS_ERR_DEVICE_RANGE);
    refused(ds_comm_scatter(t, to, 2, NULL, 0, &(ds_comm_options){ .flags = 128 }, out, &n),
            DS_ERR_INVALID_VALUE);
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
    ds_tensor *nhwc = painted(harness_device(0), ds_float16(), 4, SHAPE(4, 5, 6, 3), 4), *t,
              *out[2], *back;
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
    ds_tensor *t = painted(harness_device(0), ds_complex64(), 3, SHAPE(2, 9, 3), 8), *out[3], *back,
              *bad;
    out[0] = on(harness_device(1), ds_complex64(), 3, SHAPE(2, 4, 3));
    out[1] = on(host(), ds_complex64(), 3, SHAPE(2, 0, 3));
    out[2] = on(harness_device(0), ds_complex64(), 3, SHAPE(2, 5, 3));
    ok(ds_comm_scatter_into(t, INPUTS(out), 3, -2, NULL));
    back = on(host(), ds_complex64(), 3, SHAPE(2, 9, 3));
    ds_tensor *both[2] = { out[0], out[2] };
    ok(ds_comm_gather_into(INPUTS(both), 2, 1, back, NULL));
    expect_equal(t, back);
    refused(ds_comm_scatter_into(t, INPUTS(out), 2, 1, NULL), DS_ERR_INVALID_VALUE);
    says("is 4; it must be 9");
    refused(ds_comm_scatter_into(t, INPUTS(out), 0, 1, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter_into(t, INPUTS(out), 3, 0, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 has the shape [2, 4, 3], which differs from [2, 9, 3] in more "
         "than dimension 0");
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
            for (int i = 0; i < 3; i++)
                in[i] = painted(harness_device(i), ds_bfloat16(), 2,
                                across ? SHAPE(size[i], 3) : SHAPE(3, size[i]), (uint32_t)i);
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
    ds_tensor *in[2] = { on(harness_device(0), ds_int8(), 2, SHAPE(2, 3)),
                         on(harness_device(0), ds_int8(), 1, SHAPE(3)) },
              *out;
    refused(ds_comm_gather(INPUTS(in), 0, 0, to[0], NULL, &out), DS_ERR_INVALID_VALUE);
    says("no tensors to gather");
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
static void test_random_scatters_and_gathers(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    uint32_t seed = 11;
    const ds_dtype types[] = { ds_uint8(),   ds_float16(),    ds_float32(),
                               ds_float64(), ds_complex128(), { DS_CODE_FLOAT, 32, 3 } };
    for (int round = 0; round < 120; round++) {
        int ndim = 1 + (int)dice(&seed, 4), dim = (int)dice(&seed, (uint32_t)ndim);
        size_t n = 1 + dice(&seed, 4);
        int64_t shape[4], piece[4], sizes[4], sum = 0;
        ds_tensor *out[4], *part, *back, *to[4];
        ds_dtype dtype = types[dice(&seed, 6)];
        for (int i = 0; i < ndim; i++)
            shape[i] = piece[i] = (int64_t)dice(&seed, 6);
        for (size_t i = 0; i < n; i++)
            sum += sizes[i] = (int64_t)dice(&seed, 4);
        shape[dim] = sum;
        ds_device where[4], from = dice(&seed, 4) ? harness_device((int)dice(&seed, 4)) : host();
        for (size_t i = 0; i < n; i++)
            where[i] = dice(&seed, 5) ? harness_device((int)dice(&seed, 4)) : host();
        if (n == 1 && from.type == DS_DEVICE_HOST)
            where[0] = harness_device(0);
        int all_host = from.type == DS_DEVICE_HOST;
        for (size_t i = 0; i < n; i++)
            all_host &= where[i].type == DS_DEVICE_HOST;
        if (all_host)
            where[0] = harness_device(1);
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
            /* in place */
            ok(ds_comm_reduce_into(INPUTS(in), n, (ds_reduce_op)op, in[n - 1], NULL));
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
    ok(ds_comm_reduce_add(INPUTS(in), 1, harness_device(0),
                          &(ds_comm_options){ .flags = DS_COMM_ALIAS }, &out));
    assert_ptr_equal(out->data, in[0]->data);
    drop(&out, 1);
    ok(ds_comm_reduce_add(INPUTS(in), 1, harness_device(0), NULL, &out));
    assert_ptr_not_equal(out->data, in[0]->data);
    expect_equal(in[0], out);
    drop(&out, 1);
    refused(ds_comm_reduce_add(INPUTS(in), 0, harness_device(0), NULL, &out), DS_ERR_INVALID_VALUE);
    if (harness_device_count() > 1) {
        refused(ds_comm_reduce_add(INPUTS(in), 1, harness_device(1), NULL, &out),
                DS_ERR_DEVICE_MISMATCH);
        says("none of the input tensors is on the destination");
    }
    refused(ds_comm_reduce_add(INPUTS(in), 1, host(), NULL, &out), DS_ERR_DEVICE_MISMATCH);
    odd = on(host(), ds_float32(), 1, SHAPE(1000));
    refused(
        ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out),
        DS_ERR_INVALID_DEVICE);
    says("input tensor at index 1 is on the host");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_float32(), 1, SHAPE(999));
    refused(
        ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out),
        DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [999], not [1000]");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_int32(), 1, SHAPE(1000));
    refused(
        ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], odd }), 2, harness_device(0), NULL, &out),
        DS_ERR_INVALID_VALUE);
    says("int32, not float32");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_float8_e4m3fn(), 1, SHAPE(10));
    refused(
        ds_comm_reduce_add(INPUTS((ds_tensor *[]){ odd, odd }), 2, harness_device(0), NULL, &out),
        DS_ERR_UNSUPPORTED);
    says("float8_e4m3fn");
    drop(&odd, 1);
    odd = on(harness_device(0), ds_complex64(), 1, SHAPE(10));
    refused(ds_comm_reduce(INPUTS((ds_tensor *[]){ odd, odd }), 2, DS_REDUCE_MAX, harness_device(0),
                           NULL, &out),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_reduce(INPUTS((ds_tensor *[]){ odd, odd }), 2, (ds_reduce_op)5,
                           harness_device(0), NULL, &out),
            DS_ERR_INVALID_VALUE);
    drop(&odd, 1);
    assert_null(out);
    ds_tensor *half; /* the output begins inside of an input */
    ok(ds_tensor_narrow(in[0], 0, 0, 500, &half));
    ok(ds_tensor_narrow(in[0], 0, 100, 500, &odd));
    refused(ds_comm_reduce_into(INPUTS((ds_tensor *[]){ half, half }), 2, DS_REDUCE_SUM, odd, NULL),
            DS_ERR_INVALID_VALUE);
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
        for (int i = 0; i < ndim; i++)
            count *= (size_t)(shape[i] = 1 + (int64_t)dice(&seed, 6));
        ds_tensor *in[4], *out;
        for (size_t i = 0; i < n; i++) {
            in[i] = ndim ? random_view(&seed, harness_device((int)i), ds_float32(), ndim, shape)
                         : on(harness_device((int)i), ds_float32(), 0, NULL);
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
                for (size_t i = 0; i < n; i++)
                    expect_reduced(copy, n, out[i], DS_REDUCE_SUM, 0, (size_t)sizes[z]);
                if (!place)
                    drop(out, n);
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
                if (place)
                    ok(ds_tensor_narrow(many[i], 0, (int64_t)i * c, c, &one[i]));
                else
                    one[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(c, 5));
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
                if (place)
                    ok(ds_tensor_narrow(many[i], 0, (int64_t)i * c, c, &part[i]));
                else
                    part[i] = on(harness_device((int)i), ds_float32(), 2, SHAPE(c, 5));
            }
            ok(ds_comm_reduce_scatter(INPUTS(many), INPUTS(part), n, DS_REDUCE_AVERAGE, NULL));
            for (size_t i = 0; i < n; i++)
                expect_reduced(copy, n, part[i], DS_REDUCE_AVERAGE, i * 15, 15);
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
    ds_tensor *a = on(harness_device(0), ds_float32(), 1, SHAPE(6)),
              *b = on(harness_device(0), ds_float32(), 1, SHAPE(7));
    refused(ds_comm_all_reduce(INPUTS(&a), INPUTS(&b), 1, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_gather(INPUTS((ds_tensor *[]){ a, a }), INPUTS((ds_tensor *[]){ b, a }), 2,
                               NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_reduce(INPUTS((ds_tensor *[]){ a, a }), INPUTS((ds_tensor *[]){ a, a }), 2,
                               DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
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
    /* one after the other, and nothing in between waits */
    ok(ds_comm_reduce(INPUTS(in), 4, DS_REDUCE_SUM, to[0], &o, &sum));
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
    for (int i = 0; i < 4; i++)
        ok(ds_stream_destroy(s[i]));
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
    for (int i = 0; i < 2; i++)
        ok(ds_tensor_narrow(sum, 1, i * 20, 20, &back[i]));
    put_floats(in[0], 1);
    put_floats(in[1], 2);
    /* once outside: kernels are loaded */
    ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_SUM, sum, &o));
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
        for (int i = 0; i < 2; i++)
            expect_equal(back[i], half[i]);
    }
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    drop(back, 2);
    drop(half, 2);
    drop(in, 2);
    drop(wide, 2);
    drop(&sum, 1);
    for (int i = 0; i < 2; i++)
        ok(ds_stream_destroy(s[i]));
    finish_comm();
}

/* ---- memory that others have made ---- */

/* Pinned memory of others is host memory, whether it is known to be pinned or not: neither
   driver needs more. */
static void test_memory_that_others_call_pinned_is_host_memory(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    float *mine = malloc(60 * sizeof *mine), *back = malloc(60 * sizeof *back);
    ds_tensor t = ds_tensor_of(mine, (ds_device){ DS_TENSOR_CUDA_HOST, 0 }, ds_float32(), 2,
                               SHAPE(6, 10)),
              b = t, *out[2], *sum;
    ds_device to[2] = { harness_device(0), harness_device(1) };
    b.data = back;
    for (int i = 0; i < 60; i++)
        mine[i] = (float)i;
    ok(ds_comm_scatter(&t, to, 2, NULL, 0, NULL, out, NULL));
    ok(ds_comm_gather_into(INPUTS(out), 2, 0, &b, NULL));
    wait_all();
    assert_memory_equal(mine, back, 60 * sizeof *mine);
    b.shape = out[0]->shape;
    /* kernels do not write there */
    ok(ds_comm_reduce_into(INPUTS(out), 2, DS_REDUCE_MAX, &b, NULL));
    wait_all();
    for (int i = 0; i < 30; i++)
        assert_true(back[i] == mine[30 + i]);
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ out[0], &b }), 2, to[0], NULL, &sum),
            DS_ERR_INVALID_DEVICE);
    says("input tensor at index 1 is on the host");
    drop(out, 2);
    free(mine);
    free(back);
    finish_comm();
}

/* Managed memory (DLPack's type 13) is memory of the GPU whose index it has; what is made of it
   is ordinary. */
static void test_managed_memory_is_memory_of_its_gpu(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *plain = painted(harness_device(0), ds_float32(), 2, SHAPE(6, 10), 13),
              managed = *plain, *out[3], *in[2] = { &managed, &managed }, *sum;
    ds_device to[3] = { harness_device(0), harness_device(1), host() };
    managed.device = (ds_device){ DS_TENSOR_CUDA_MANAGED, 0 };
    if (harness_is_cpu()) { /* it is nobody's */
        refused_any(ds_comm_broadcast(&managed, to, 3, NULL, out));
        says("the tensor");
        assert_null(out[0]);
        drop(&plain, 1);
        finish_comm();
        return;
    }
    put_floats(plain, 1);
    ok(ds_comm_broadcast(&managed, to, 3, NULL, out));
    for (int i = 0; i < 3; i++) {
        expect_equal(plain, out[i]);
        assert_int_not_equal(out[i]->device.type, DS_TENSOR_CUDA_MANAGED);
    }
    ok(ds_comm_reduce_add(INPUTS(in), 2, to[0], NULL, &sum));
    in[0] = in[1] = plain;
    expect_reduced(in, 2, sum, DS_REDUCE_SUM, 0, 60);
    ok(ds_fill(plain->data, 0, 4, 60, current(to[0])));
    ok(ds_comm_broadcast_into(out[2], INPUTS((ds_tensor *[]){ &managed }), 1, NULL));
    expect_equal(out[2], plain);
    drop(out, 3);
    ok(ds_comm_broadcast(&managed, to, 1, &(ds_comm_options){ .flags = DS_COMM_ALIAS }, out));
    assert_int_equal(out[0]->device.type, DS_TENSOR_CUDA_MANAGED);
    ds_tensor *seen;
    ok(ds_tensor_as_host(out[0], &seen)); /* the host reaches it, and only it */
    assert_int_equal(seen->device.type, DS_DEVICE_HOST);
    assert_ptr_equal(seen->data, plain->data);
    drop(&seen, 1);
    refused(ds_tensor_as_host(plain, &seen), DS_ERR_INVALID_DEVICE);
    drop(out, 1);
    drop(&sum, 1);
    drop(&plain, 1);
    finish_comm();
}

/* A worker counts what it has run a moment after the waits for that return. */
static uint64_t counted_operations(void) {
    ds_cpu_stats last, now;
    ok(ds_cpu_get_stats(&now));
    do {
        last = now;
        harness_sleep_ms(10);
        ok(ds_cpu_get_stats(&now));
    } while (now.operations != last.operations);
    return now.operations + now.inline_operations; /* small copies may run at once */
}

/* What buffers are for: many small tensors are fewer copies than one by one, and a buffer ends
   when it is full. */
static void test_few_copies_are_made_of_many_tensors(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);

    enum { N = 40 };

    ds_tensor *t[N], *out[2 * N];
    ds_device to[2] = { harness_device(0), harness_device(1) };
    uint64_t made[3];
    static const size_t sizes[3] = { 1, 10 * 400, 1 << 20 };
    for (uint32_t i = 0; i < N; i++)
        t[i] = painted(harness_device(0), ds_float32(), 1, SHAPE(100), i);
    for (int z = 0; z < 3; z++) {
        wait_all();
        uint64_t before = counted_operations();
        ok(ds_comm_broadcast_coalesced(INPUTS(t), N, to, 2, sizes[z], NULL, out));
        wait_all();
        made[z] = counted_operations() - before;
        for (int i = 0; i < 2 * N; i++)
            expect_equal(t[i % N], out[i]);
        drop(out, 2 * N);
    }
    assert_true(made[0] >= 2 * N);  /* two copies of each */
    assert_true(made[1] < made[0]); /* four buffers, each sent twice */
    assert_true(made[2] < made[1]); /* one */
    drop(t, N);
    finish_comm();
}

/* ---- bad input ---- */

static void test_a_description_that_contradicts_its_memory_is_refused(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to = harness_device(0);
    void *p;
    ok(ds_device_alloc(to, 1 << 20, &p)); /* whose end is known to the byte */
    ds_tensor t = ds_tensor_of(p, to, ds_float32(), 2, SHAPE(512, 512)), *out = NULL;
    ok(ds_comm_broadcast(&t, &to, 1, NULL, &out));
    drop(&out, 1);
    t.byte_offset = 4;
    refused(ds_comm_broadcast(&t, &to, 1, NULL, &out), DS_ERR_INVALID_VALUE);
    says("the tensor: 1048576 bytes at offset 4 exceed the allocation of 1048576 bytes");
    t.byte_offset = 511 * 512 * 4;
    t.strides = (int64_t[]){ -512, 1 }; /* from the last row to the first */
    ok(ds_comm_broadcast(&t, &to, 1, NULL, &out));
    drop(&out, 1);
    t.strides = (int64_t[]){ 512, 1 };
    refused(ds_comm_broadcast(&t, &to, 1, NULL, &out), DS_ERR_INVALID_VALUE);
    t.byte_offset = 4 * 512 * 4;
    t.strides = (int64_t[]){ -512, 1 }; /* begins in it and leads out of it in front */
    refused(ds_comm_broadcast(&t, &to, 1, NULL, &out), DS_ERR_INVALID_VALUE);
    says("the tensor: 1048576 bytes at offset -1038336 exceed the allocation of 1048576 bytes");
    t = ds_tensor_of(p, harness_device(1), ds_float32(), 1, SHAPE(3));
    if (harness_device_count() > 1) {
        refused(ds_comm_broadcast(&t, &to, 1, NULL, &out), DS_ERR_DEVICE_MISMATCH);
        says("but its memory is on");
    }
    t.device = host();
    if (!harness_is_cpu()) {
        refused(ds_comm_broadcast(&t, &to, 1, NULL, &out), DS_ERR_DEVICE_MISMATCH);
        says("the device of the tensor is the host, but its memory is on cuda:0");
    }
    assert_null(out);
    ok(ds_device_free(p));
    finish_comm();
}

static void test_options_that_say_nothing_sensible_are_refused(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *t = on(harness_device(0), ds_float32(), 1, SHAPE(8)), *out = NULL;
    ds_device to = harness_device(0);
    refused(ds_comm_broadcast(t, &to, 1, &(ds_comm_options){ .stream_count = 1 }, &out),
            DS_ERR_INVALID_VALUE);
    says("streams is NULL, but stream_count is 1");
    refused(ds_comm_broadcast(t, &to, 1, &(ds_comm_options){ .flags = 4 }, &out),
            DS_ERR_INVALID_VALUE);
    says("0x4");
    ds_stream over = harness_stream(0, 0);
    ok(ds_stream_destroy(over));
    refused(ds_comm_broadcast(t, &to, 1, &(ds_comm_options){ .streams = &over, .stream_count = 1 },
                              &out),
            DS_ERR_INVALID_HANDLE);
    says("at index 0");
    refused(ds_comm_broadcast(t, &to, 1, &(ds_comm_options){ .stream = over }, &out),
            DS_ERR_INVALID_HANDLE);
    says("the tensor");
    assert_null(out);
    ds_tensor *h[2] = { on(host(), ds_float32(), 1, SHAPE(8)),
                        on(host(), ds_float32(), 1, SHAPE(8)) };
    /* who should do it? */
    refused(ds_comm_broadcast_into(h[0], INPUTS(&h[1]), 1, NULL), DS_ERR_INVALID_DEVICE);
    says("none of the tensors is on a device, and no stream was given");
    drop(h, 2);
    drop(&t, 1);
    finish_comm();
}

static void test_outputs_that_share_memory_are_refused(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device d = harness_device(0);
    ds_tensor *whole = on(d, ds_float32(), 2, SHAPE(8, 6)), *top, *middle, *in[2],
              *side = on(d, ds_float32(), 2, SHAPE(4, 6));
    ok(ds_tensor_narrow(whole, 0, 0, 4, &top));
    ok(ds_tensor_narrow(whole, 0, 2, 4, &middle));
    for (int i = 0; i < 2; i++)
        in[i] = on(d, ds_float32(), 2, SHAPE(4, 6));
    ds_tensor *twice[2] = { side, side }, *cross[2] = { top, middle },
              *turned[2] = { in[1], in[0] };
    ds_tensor *source = on(d, ds_float32(), 2, SHAPE(8, 6));
    refused(ds_comm_scatter_into(source, INPUTS(twice), 2, 0, NULL), DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 shares memory with the output tensor at index 0");
    refused(ds_comm_scatter_into(source, INPUTS(cross), 2, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_scatter_into(whole, INPUTS((ds_tensor *[]){ middle, side }), 2, 0, NULL),
            DS_ERR_INVALID_VALUE);
    says("shares memory with the tensor to send");
    refused(ds_comm_gather_into(INPUTS((ds_tensor *[]){ middle, side }), 2, 0, whole, NULL),
            DS_ERR_INVALID_VALUE);
    says("the result shares memory with the input tensor at index 0");
    refused(ds_comm_broadcast_into(top, INPUTS(&middle), 1, NULL), DS_ERR_INVALID_VALUE);
    /* each other's places */
    refused(ds_comm_all_reduce(INPUTS(in), INPUTS(turned), 2, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 shares memory with the input tensor at index 1");
    refused(ds_comm_all_reduce(INPUTS(in), INPUTS(twice), 2, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    /* in its own place, which another input overlaps */
    refused(ds_comm_all_reduce(INPUTS(cross), INPUTS((ds_tensor *[]){ top, side }), 2,
                               DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 shares memory with the input tensor at index 1");
    refused(ds_comm_all_to_all(INPUTS(in), INPUTS(in), 2, NULL), DS_ERR_INVALID_VALUE);
    /* a part that is where it belongs */
    ok(ds_comm_scatter_into(whole, INPUTS((ds_tensor *[]){ top, side }), 2, 0, NULL));
    ds_tensor row = *side; /* one row, four times: it may be read, but what would be in it? */
    row.strides = (int64_t[]){ 0, 1 };
    refused(ds_comm_broadcast_into(top, INPUTS((ds_tensor *[]){ in[0], &row }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has 4 elements at one address: dimension 0 has the stride 0");
    ok(ds_comm_broadcast_into(&row, INPUTS((ds_tensor *[]){ in[0], in[1] }), 2, NULL));
    expect_equal(&row, in[1]);
    drop(&source, 1);
    drop(in, 2);
    drop(&side, 1);
    drop(&top, 1);
    drop(&middle, 1);
    drop(&whole, 1);
    finish_comm();
}

static void test_everyone_with_everyone_and_what_does_not_fit(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device d = harness_device(0);
    ds_tensor *a = on(d, ds_float32(), 1, SHAPE(6)), *b = on(d, ds_float32(), 1, SHAPE(6)),
              *h = on(host(), ds_float32(), 1, SHAPE(6)),
              *far = on(harness_device(1), ds_float32(), 1, SHAPE(6)),
              *small = on(d, ds_float32(), 1, SHAPE(4)), *other = on(d, ds_int32(), 1, SHAPE(6)),
              *scalar = on(d, ds_float32(), 0, NULL), *truth = on(d, ds_bool(), 1, SHAPE(6)),
              *out = NULL;
    refused(ds_comm_all_reduce(INPUTS(&h), INPUTS(&b), 1, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_DEVICE);
    says("input tensor at index 0 is on the host");
    refused(ds_comm_all_gather(INPUTS(&a), INPUTS(&h), 1, NULL), DS_ERR_INVALID_DEVICE);
    says("output tensor at index 0 is on the host");
    if (harness_device_count() > 1) {
        refused(ds_comm_all_to_all(INPUTS(&a), INPUTS(&far), 1, NULL), DS_ERR_DEVICE_MISMATCH);
        says("input tensor at index 0 is on");
    }
    refused(ds_comm_all_reduce(INPUTS((ds_tensor *[]){ a, small }),
                               INPUTS((ds_tensor *[]){ b, far }), 2, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [4], not [6]");
    refused(ds_comm_all_reduce(INPUTS(&a), INPUTS(&other), 1, DS_REDUCE_SUM, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 has elements of type int32, not float32");
    refused(ds_comm_all_gather(INPUTS(&a), INPUTS(&small), 1, NULL), DS_ERR_INVALID_VALUE);
    says("output tensors have the size 4 in dimension 0; it must be 1 times 6, the size of the "
         "input tensor");
    refused(ds_comm_all_gather(INPUTS(&scalar), INPUTS(&scalar), 1, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_to_all(INPUTS((ds_tensor *[]){ a, b, a, b }),
                               INPUTS((ds_tensor *[]){ a, b, a, b }), 4, NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_reduce(INPUTS(&truth), 1, DS_REDUCE_AVERAGE, d, NULL, &out),
            DS_ERR_INVALID_VALUE);
    says("average is not supported for bool");
    refused(ds_comm_reduce_scatter(INPUTS(&truth), INPUTS(&truth), 1, DS_REDUCE_AVERAGE, NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_all_to_all(INPUTS((ds_tensor *[]){ a, b, other, small }), NULL, 4, NULL),
            DS_ERR_INVALID_VALUE);
    says("outs is NULL");
    ds_tensor *seven[2] = { on(d, ds_float32(), 1, SHAPE(7)), on(d, ds_float32(), 1, SHAPE(7)) };
    refused(ds_comm_all_to_all(INPUTS(seven), INPUTS((ds_tensor *[]){ a, b }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    ds_tensor *eight[2] = { on(d, ds_float32(), 1, SHAPE(7)), on(d, ds_float32(), 1, SHAPE(7)) };
    refused(ds_comm_all_to_all(INPUTS(seven), INPUTS(eight), 2, NULL), DS_ERR_INVALID_VALUE);
    says("the size in dimension 0, 7, cannot be split into 2 equal parts");
    ds_tensor *all[] = { a,      b,     h,        far,      small,    other,
                         scalar, truth, seven[0], seven[1], eight[0], eight[1] };
    drop(all, sizeof all / sizeof *all);
    assert_null(out);
    finish_comm();
}

/* A CUDA device and one of the CPU driver do not take part in one collective. */
static void test_devices_of_two_drivers_do_not_mix(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device cpu = { DS_DEVICE_CPU, 0 }, both[2] = { harness_device(0), cpu };
    ds_tensor *t = on(harness_device(0), ds_float32(), 1, SHAPE(8)),
              *u = on(cpu, ds_float32(), 1, SHAPE(8)), *out[2] = { NULL, NULL };
    refused(ds_comm_broadcast(t, both, 2, NULL, out), DS_ERR_CROSS_DRIVER);
    says("result at index 1 is on cpu:0, but others are on cuda:0");
    assert_null(out[0]);
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ t, u }), 2, both[0], NULL, out),
            DS_ERR_CROSS_DRIVER);
    ds_topology *none = NULL;
    refused(ds_topology_create_of_devices(both, 2, 0, &none), DS_ERR_CROSS_DRIVER);
    assert_null(none);
    drop(&t, 1);
    drop(&u, 1);
    assert_int_equal(ds_mem_get_allocated(cpu), 0);
    finish_comm();
}

/* ---- corners ---- */

/* More dimensions than a kernel's arguments hold, none of which is one with another. */
static void test_tensors_of_ten_dimensions(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    int64_t shape[10];
    int order[10];
    ds_tensor *wide, *t, *out[2], *back, *base[2], *in[2], *sum;
    for (int i = 0; i < 10; i++) {
        shape[i] = 2;
        order[i] = 9 - i;
    }
    ds_device to[2] = { harness_device(1), host() };
    wide = painted(harness_device(0), ds_int16(), 10, shape, 3);
    ok(ds_tensor_permute(wide, order, &t));
    back = on(harness_device(1), ds_int16(), 10, shape);
    ok(ds_comm_broadcast_into(t, INPUTS(&back), 1, NULL));
    expect_equal(t, back);
    ok(ds_comm_scatter(t, to, 2, NULL, 4, NULL, out, NULL));
    ok(ds_comm_gather_into(INPUTS(out), 2, 4, back, NULL));
    expect_equal(t, back);
    for (int i = 0; i < 2; i++) {
        base[i] = on(harness_device(i), ds_float32(), 10, shape);
        put_floats(base[i], (float)i);
    }
    in[0] = base[0];
    ok(ds_tensor_permute(base[1], order, &in[1]));
    ok(ds_comm_reduce_add(INPUTS(in), 2, harness_device(0), NULL, &sum));
    expect_reduced(in, 2, sum, DS_REDUCE_SUM, 0, 1024);
    ds_tensor *all[] = { wide, t, out[0], out[1], back, base[0], base[1], in[1], sum };
    drop(all, sizeof all / sizeof *all);
    finish_comm();
}

/* Inputs whose dimensions lie in different orders: the result is row-major, as torch's is. */
static void test_a_gather_of_different_layouts_is_row_major(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *a = painted(harness_device(0), ds_float32(), 2, SHAPE(4, 5), 1),
              *b = painted(harness_device(1), ds_float32(), 2, SHAPE(5, 4), 2), *t, *u, *out;
    ok(ds_tensor_transpose(b, 0, 1, &t));
    ok(ds_tensor_transpose(a, 0, 1, &u));
    ok(ds_comm_gather(INPUTS((ds_tensor *[]){ t, a }), 2, 0, harness_device(0), NULL, &out));
    assert_true(ds_tensor_is_contiguous(out));
    drop(&out, 1);
    /* and of the same one is like them */
    ok(ds_comm_gather(INPUTS((ds_tensor *[]){ t, t }), 2, 0, harness_device(0), NULL, &out));
    assert_int_equal(out->strides[0], 1);
    assert_int_equal(out->strides[1], 8);
    ds_tensor *all[] = { a, b, t, u, out };
    drop(all, 5);
    finish_comm();
}

/* Twenty inputs, more than a launch takes, in every type that is not summed in itself, in place
   too. */
static void test_many_inputs_are_summed_as_if_they_were_one_launch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);

    enum { N = 20, SIZE = 300 };

    for (int place = 0; place < N; place += 5) {
        ds_tensor *in[N], *wide[N], *out, *f[N];
        for (int i = 0; i < N; i++) {
            /* numbers that only wide sums keep apart */
            in[i] = on(harness_device(i), ds_bfloat16(), 1, SHAPE(SIZE));
            wide[i] = on(harness_device(i), ds_int8(), 1, SHAPE(SIZE));
            f[i] = on(harness_device(i), ds_float32(), 1, SHAPE(SIZE));
            uint16_t x[SIZE];
            int8_t w[SIZE];
            /* 256 and nineteen times 1, which bf16 would lose */
            for (int k = 0; k < SIZE; k++) {
                x[k] = (uint16_t)(i ? 0x3f80 : 0x4380);
                w[k] = (int8_t)(k % 7 + i);
            }
            carry(in[i], (unsigned char *)x, 1);
            carry(wide[i], (unsigned char *)w, 1);
            put_floats(f[i], (float)i * 0.1f);
        }
        ds_tensor *copy[N];
        for (int i = 0; i < N; i++) {
            copy[i] = on(host(), ds_float32(), 1, SHAPE(SIZE));
            put_floats(copy[i], (float)i * 0.1f);
        }
        ok(ds_comm_reduce(INPUTS(in), N, DS_REDUCE_SUM, harness_device(0), NULL, &out));
        uint16_t *got = (uint16_t *)(void *)contents(out);
        /* 276, to the nearest even of 276 and 274 */
        for (int k = 0; k < SIZE; k++)
            assert_int_equal(got[k], 0x438a);
        free(got);
        drop(&out, 1);
        ok(ds_comm_reduce_into(INPUTS(in), N, DS_REDUCE_SUM, in[place], NULL));
        got = (uint16_t *)(void *)contents(in[place]);
        for (int k = 0; k < SIZE; k++)
            assert_int_equal(got[k], 0x438a);
        free(got);
        ok(ds_comm_reduce_into(INPUTS(wide), N, DS_REDUCE_AVERAGE, wide[place], NULL));
        int8_t *mean = (int8_t *)(void *)contents(wide[place]);
        /* the sum wraps */
        for (int k = 0; k < SIZE; k++)
            assert_int_equal(mean[k], (int8_t)(20 * (k % 7) + 190) / 20);
        free(mean);
        ok(ds_comm_reduce_into(INPUTS(f), N, DS_REDUCE_SUM, f[place], NULL));
        expect_reduced(copy, N, f[place], DS_REDUCE_SUM, 0, SIZE);
        drop(copy, N);
        drop(in, N);
        drop(wide, N);
        drop(f, N);
    }
    finish_comm();
}

/* Pinned memory that is freed while a collective reads it is not given to others before that is
   done. */
static void test_pinned_memory_is_not_given_away_before_it_was_read(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ds_tensor *t, *out, *next[4];
    int32_t all[3000], *got;
    gate g = { 0 };
    for (int i = 0; i < 3000; i++)
        all[i] = i * 5;
    ok(ds_tensor_alloc_pinned(ds_int32(), 1, SHAPE(3000), &t));
    ok(ds_tensor_alloc(ds_int32(), 1, SHAPE(3000), s, &out));
    memcpy(t->data, all, sizeof all);
    ds_comm_options o = { .streams = &s, .stream_count = 1 };
    /* once without a gate: what it needs is there */
    ok(ds_comm_broadcast_into(t, INPUTS(&out), 1, &o));
    ok(ds_stream_synchronize(s));
    gate_close(s, &g);
    ok(ds_comm_broadcast_into(t, INPUTS(&out), 1, &o));
    ok(ds_tensor_free(t));
    for (int i = 0; i < 4; i++) {
        ok(ds_tensor_alloc_pinned(ds_int32(), 1, SHAPE(3000), &next[i]));
        memset(next[i]->data, 0x77, sizeof all);
    }
    gate_open(&g);
    got = (int32_t *)(void *)contents(out);
    assert_memory_equal(got, all, sizeof all);
    free(got);
    drop(next, 4);
    drop(&out, 1);
    ok(ds_stream_destroy(s));
    finish_comm();
}

/* Each stream that takes part is behind every other one: of inputs, and of what nobody reads but
   is written. */
static void test_a_gather_and_a_reduction_wait_for_every_stream(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    for (int kind = 0; kind < 4; kind++)
        for (int slow = 0; slow < 3; slow++) {
            ds_stream s[3] = { harness_stream(0, 0), harness_stream(1, 0), harness_stream(2, 0) };
            ds_tensor *in[2], *out;
            gate g = { 0 }, h = { 0 };
            ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(kind == 0 ? 64 : 32), s[2], &out));
            for (int i = 0; i < 2; i++) {
                ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(32), s[i], &in[i]));
                ok(ds_fill(in[i]->data, 0, 4, 32, s[i]));
            }
            ok(ds_fill(out->data, 0, 4, kind == 0 ? 64 : 32, s[2]));
            ds_comm_options o = { .streams = s, .stream_count = 2, .stream = s[2] };
            wait_all(); /* this one is on other streams */
            /* kernels are loaded */
            ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_SUM, in[0], NULL));
            wait_all();
            if (kind == 1)
                ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_MAX, out, &o));
            ok(ds_fill(in[0]->data, 0, 4, 32, s[0]));
            wait_all();
            gate_close(s[slow], &g);
            if (slow < 2)
                ok(ds_fill(in[slow]->data, 0x3f800000, 4, 32, s[slow]));
            else
                ok(ds_fill(out->data, 0x40000000, 4, kind == 0 ? 64 : 32,
                           s[2])); /* is overwritten */
            if (kind == 0)
                ok(ds_comm_gather_into(INPUTS(in), 2, 0, out, &o));
            else if (kind == 1)
                ok(ds_comm_reduce_into(INPUTS(in), 2, DS_REDUCE_MAX, out, &o));
            else if (kind == 2)
                ok(ds_comm_barrier(s, 3));
            else
                ok(ds_comm_broadcast_into(
                    in[0], INPUTS((ds_tensor *[]){ in[1], out }), 2,
                    &(ds_comm_options){ .streams = s + 1, .stream_count = 2, .stream = s[0] }));
            int fast = slow == 1 ? 0 : 1; /* one that had nothing to do with it */
            gate_close(s[fast], &h);
            gate_expect_unentered(&h);
            gate_open(&g);
            gate_wait_entered(&h);
            gate_open(&h);
            float *got = (float *)(void *)contents(out);
            for (int k = 0; k < (kind == 0 ? 64 : 32); k++) {
                float want = kind == 0   ? (slow < 2 && k / 32 == slow ? 1.0f : 0.0f)
                             : kind == 1 ? (slow < 2 ? 1.0f : 0.0f)
                             : kind == 2 ? (slow < 2 ? 0.0f : 2.0f)
                             : slow == 0 ? 1.0f
                                         : 0.0f;
                if (got[k] < want || got[k] > want)
                    fail_msg("kind %d, slow %d: element %d is %g, not %g", kind, slow, k,
                             (double)got[k], (double)want);
            }
            free(got);
            drop(in, 2);
            drop(&out, 1);
            for (int i = 0; i < 3; i++)
                ok(ds_stream_destroy(s[i]));
        }
    finish_comm();
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 60 };

/* Collectives of a thread's own tensors, on streams of its own and on those that all threads
   share. */
static void *make_collectives(void *user) {
    float me = *(const float *)user;
    ds_stream s[2] = { harness_stream(0, 0), harness_stream(1, 0) };
    ds_comm_options o = { .streams = s, .stream_count = 2, .stream = s[1] };
    ds_device to[2] = { harness_device(0), harness_device(1) };
    for (int round = 0; round < ROUNDS; round++) {
        const ds_comm_options *options = round % 2 ? &o : NULL;
        ds_tensor *in[2], *out[2], *sum, *back;
        for (int i = 0; i < 2; i++) {
            in[i] = on(to[i], ds_float32(), 2, SHAPE(30, 8));
            float x = me + (float)(round * (i + 1));
            uint32_t bits;
            memcpy(&bits, &x, 4);
            ok_thread(ds_fill(in[i]->data, bits, 4, 240, current(to[i])));
            ok_thread(ds_stream_synchronize(current(to[i])));
        }
        ok_thread(ds_comm_all_reduce(INPUTS(in), INPUTS(in), 2, DS_REDUCE_SUM, options));
        ok_thread(ds_comm_reduce(INPUTS(in), 2, DS_REDUCE_MAX, to[1], options, &sum));
        ok_thread(ds_comm_scatter(sum, to, 2, NULL, 0, options, out, NULL));
        ok_thread(ds_comm_gather(INPUTS(out), 2, 0, host(), options, &back));
        for (int i = 0; i < 2; i++)
            ok_thread(ds_stream_synchronize(s[i]));
        for (int i = 0; i < 2; i++)
            ok_thread(ds_stream_synchronize(current(to[i])));
        for (int k = 0; k < 240; k++) {
            float got = ((const float *)back->data)[k], want = 2 * me + (float)(3 * round);
            if (got < want || got > want)
                harness_die("another thread's numbers", DS_OK);
        }
        drop(in, 2);
        drop(out, 2);
        drop(&sum, 1);
        drop(&back, 1);
    }
    for (int i = 0; i < 2; i++)
        ok_thread(ds_stream_destroy(s[i]));
    return NULL;
}

static void test_threads_make_collectives_side_by_side(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    pthread_t thread[THREADS];
    float me[THREADS];
    for (int i = 0; i < THREADS; i++) {
        me[i] = (float)(1000 * i);
        thread[i] = spawn(make_collectives, &me[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join(thread[i]);
    finish_comm();
}

/* Streams come into a capture before anything is allocated on them, also for results: what the
   graph writes when it is launched is nobody else's memory. */
static void test_results_of_a_captured_collective_are_graph_memory(void **state) {
    (void)state;

    enum { NUMBERS = 300000 };

    begin(PRESET_DEFAULT);
    harness_warm_up();
    for (int what = 0; what < 5; what++)
        for (int first = 0; first < 2;
             first++) { /* which stream captures; the other one comes in */
            ds_stream s[2] = { harness_stream(0, 0), harness_stream(1, 0) };
            ds_device to[2] = { harness_device(0), harness_device(1) };
            ds_comm_options o = { .streams = s, .stream_count = 2, .stream = s[0] };
            ds_tensor *in[2], *out[2] = { NULL, NULL }, *later[2];
            ds_graph graph;
            ds_graph_exec exec;
            for (int i = 0; i < 2; i++) {
                ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), s[i], &in[i]));
                ok(ds_fill(in[i]->data, 0x3f800000, 4, NUMBERS, s[i]));
                ok(ds_stream_synchronize(s[i]));
            }
            /* kernels are loaded */
            ok(ds_comm_all_reduce(INPUTS(in), INPUTS(in), 2, DS_REDUCE_MAX, &o));
            wait_all();
            if (what == 2 || what == 3)
                o.stream = s[1 - first];
            ok(ds_capture_begin(s[first], DS_CAPTURE_RELAXED));
            if (what == 0)
                ok(ds_comm_broadcast(in[0], to, 2, &o, out));
            if (what == 1)
                ok(ds_comm_scatter(in[0], to, 2, NULL, 0, &o, out, NULL));
            if (what == 2)
                ok(ds_comm_gather(INPUTS(in), 2, 0, to[1 - first], &o, out));
            if (what == 3)
                ok(ds_comm_reduce(INPUTS(in), 2, DS_REDUCE_SUM, to[1 - first], &o, out));
            if (what == 4)
                ok(ds_comm_broadcast_coalesced(INPUTS(in), 1, to, 2, 0, &o, out));
            size_t size = ds_tensor_get_size(out[0]);
            drop(out, 2);
            ok(ds_capture_end(s[first], &graph));
            ok(ds_graph_instantiate(graph, NULL, &exec));
            for (int i = 0; i < 2; i++) {
                ok(ds_tensor_alloc(ds_uint8(), 1, SHAPE((int64_t)size), s[i], &later[i]));
                ok(ds_fill(later[i]->data, 0, 1, size, s[i]));
                ok(ds_stream_synchronize(s[i]));
            }
            ok(ds_graph_launch(exec, s[first]));
            ok(ds_stream_synchronize(s[first]));
            for (int i = 0; i < 2; i++) {
                unsigned char *p = contents(later[i]);
                for (size_t k = 0; k < size; k++)
                    if (p[k])
                        fail_msg("collective %d, captured on stream %d: the graph writes to other "
                                 "memory of stream %d",
                                 what, first, i);
                free(p);
            }
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(graph));
            drop(later, 2);
            drop(in, 2);
            for (int i = 0; i < 2; i++)
                ok(ds_stream_destroy(s[i]));
        }
    finish_comm();
}

/* One that is refused after its results were made leaves no stream behind in the capture. */
static void test_a_refused_collective_does_not_spoil_a_capture(void **state) {
    (void)state;
    two_devices();
    ds_stream s[2] = { harness_stream(0, 0), harness_stream(1, 0) };
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_topology *t;
    const ds_plan *plan;
    ds_tensor *in, *out[2];
    ds_graph graph;
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(1000), s[0], &in));
    ok(ds_topology_create_of_devices(to, 2, 0, &t));
    ok(ds_plan_get(t, &(ds_plan_desc){ .what = DS_BROADCAST, .bytes = 64 }, &plan));
    ok(ds_stream_synchronize(s[0]));
    ok(ds_capture_begin(s[0], DS_CAPTURE_RELAXED));
    refused(ds_comm_broadcast(
                in, to, 2,
                &(ds_comm_options){
                    .streams = s, .stream_count = 2, .stream = s[0], .topology = t, .plan = plan },
                out),
            DS_ERR_INVALID_VALUE);
    says("it is for 64 bytes");
    ok(ds_capture_end(s[0], &graph));
    ok(ds_graph_destroy(graph));
    drop(&in, 1);
    ds_topology_destroy(t);
    for (int i = 0; i < 2; i++)
        ok(ds_stream_destroy(s[i]));
    finish_comm();
}

/* A GPU faults on such a number, and the device with it. */
static void test_misaligned_numbers_are_not_reduced(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    two_devices();
    ds_topology *topology;
    ds_device at[2] = { harness_device(0), harness_device(1) };
    ok(ds_topology_create_of_devices(at, 2, 0, &topology));
    ds_tensor *in[2], *out[2], *part[2], *memory[6], bad[6], *made, *shown;
    for (int i = 0; i < 2; i++) {
        memory[i] = in[i] = painted(at[i], ds_float32(), 1, SHAPE(4100), 3);
        memory[2 + i] = out[i] = on(at[i], ds_float32(), 1, SHAPE(4100));
        memory[4 + i] = part[i] = on(at[i], ds_float32(), 1, SHAPE(2050));
    }
    for (int i = 0; i < 6; i++) {
        bad[i] = *memory[i];
        bad[i].byte_offset = 2;
        bad[i].shape = i < 4 ? SHAPE(4098) : SHAPE(2049);
        bad[i].strides = NULL;
    }
    ok(ds_tensor_check(&bad[0]));
    ds_tensor good[6];
    for (int i = 0; i < 6; i++) {
        good[i] = bad[i];
        good[i].byte_offset = 4;
    }
    ds_comm_options plain = { .flags = 0 }, planned = { .topology = topology };
    for (int by_plan = 0; by_plan < 2; by_plan++)
        for (int which = 0; which < 2; which++) { /* an input, an output */
            const ds_comm_options *o = by_plan ? &planned : &plain;
            const ds_tensor *from[2] = { &good[0], which ? &good[1] : &bad[1] },
                            *to[2] = { &good[2], which ? &bad[3] : &good[3] };
            const ds_tensor *parts[2] = { &good[4], which ? &bad[5] : &good[5] };
            const char *name = which ? "output tensor" : "input tensor at index 1";
            refused(ds_comm_reduce_into(from, 2, DS_REDUCE_SUM, to[1], o), DS_ERR_INVALID_VALUE);
            says(name);
            refused(ds_comm_all_reduce(from, to, 2, DS_REDUCE_MAX, o), DS_ERR_INVALID_VALUE);
            says(name);
            refused(ds_comm_reduce_scatter(from, parts, 2, DS_REDUCE_SUM, o), DS_ERR_INVALID_VALUE);
            says(name);
            says("multiple of 4");
            if (which)
                continue;
            refused(ds_comm_reduce(from, 2, DS_REDUCE_SUM, at[0], o, &made), DS_ERR_INVALID_VALUE);
            refused(ds_comm_reduce_add_coalesced(from, 2, 1, at[0], 0, o, &made),
                    DS_ERR_INVALID_VALUE);
        }
    /* Complex numbers are two; and what is only copied may lie anywhere. */
    for (int i = 0; i < 4; i++) {
        good[i].dtype = ds_complex64();
        good[i].shape = SHAPE(1024);
    }
    ok(ds_comm_reduce_into(INPUTS((ds_tensor *[]){ &good[0], &good[1] }), 2, DS_REDUCE_PRODUCT,
                           &good[2], NULL));
    ok(ds_comm_reduce_into(INPUTS((ds_tensor *[]){ &good[0], &good[1] }), 2, DS_REDUCE_SUM,
                           &good[3], NULL));
    for (int i = 0; i < 4; i++)
        bad[i].shape = SHAPE(1025);
    ok(ds_comm_broadcast_into(&bad[0], INPUTS((ds_tensor *[]){ &bad[2], &bad[3] }), 2, NULL));
    ok(ds_comm_gather(INPUTS((ds_tensor *[]){ &bad[2], &bad[3] }), 2, 0, at[1], NULL, &made));
    ok(ds_tensor_narrow(made, 0, 1025, 1025, &shown));
    expect_equal(&bad[0], shown);
    drop(&shown, 1);
    drop(&made, 1);
    wait_all();
    drop(memory, 6);
    ds_topology_destroy(topology);
    finish_comm();
}

/* Tensors without elements in front of the others take no buffer. */
static void test_empty_tensors_that_travel_take_no_memory(void **state) {
    (void)state;

    enum { EMPTY = 15 };

    begin(PRESET_DEFAULT);
    ds_tensor *in[EMPTY + 2], *out[EMPTY + 2];
    for (int i = 0; i < EMPTY; i++)
        in[i] = on(harness_device(0), ds_float32(), 2, SHAPE(3, 0));
    for (int i = EMPTY; i < EMPTY + 2; i++)
        in[i] = painted(harness_device(0), ds_float32(), 1, SHAPE(1 << 18), (uint32_t)i);
    wait_all();
    ok(ds_mem_reset_peak_stats(harness_device(0)));
    ds_mem_stats before = { 0 }, after = before;
    ok(ds_mem_get_stats(harness_device(0), &before));
    ok(ds_comm_broadcast_coalesced(INPUTS(in), EMPTY + 2, (ds_device[]){ harness_device(0) }, 1, 0,
                                   NULL, out));
    ok(ds_mem_get_stats(harness_device(0), &after));
    /* what is packed, and the results */
    assert_true(after.allocated_bytes[0].peak - before.allocated_bytes[0].current <=
                2 * (2 << 20) + 4096);
    for (int i = 0; i < EMPTY + 2; i++)
        expect_equal(in[i], out[i]);
    drop(in, EMPTY + 2);
    drop(out, EMPTY + 2);
    finish_comm();
}

/* Tensors that were allocated on streams that have no part in the collective can be freed at
   once, too. */
static void test_memory_of_other_streams_is_kept_during_a_collective(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    harness_warm_up();

    enum { NUMBERS = 300000 };

    ds_stream mine = harness_stream(0, 0), s[2] = { harness_stream(0, 0), harness_stream(1, 0) };
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_comm_options o = { .streams = s, .stream_count = 2, .stream = s[0] };
    ds_tensor *in, *into, *out[2], *later[2];
    gate g = { 0 };
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), mine, &in));
    ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), mine, &into));
    color(in, 5);
    ds_tensor *same = painted(host(), ds_float32(), 1, SHAPE(NUMBERS), 5);
    ok(ds_stream_synchronize(mine));
    gate_close(s[0], &g);
    ok(ds_comm_broadcast(in, to, 2, &o, out));
    ok(ds_comm_broadcast_into(out[0], INPUTS(&into), 1, &o));
    ok(ds_tensor_free(in));
    ok(ds_tensor_free(into));
    for (int i = 0; i < 2; i++) {
        ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), mine, &later[i]));
        ok(ds_fill(later[i]->data, 0, 4, NUMBERS, mine));
    }
    ok(ds_stream_synchronize(mine));
    gate_open(&g);
    for (int i = 0; i < 2; i++)
        expect_equal(same, out[i]);
    for (int i = 0; i < 2; i++) {
        unsigned char *p = contents(later[i]);
        for (int k = 0; k < 4 * NUMBERS; k++)
            assert_int_equal(p[k], 0);
        free(p);
    }
    drop(&same, 1);
    drop(out, 2);
    drop(later, 2);
    ok(ds_stream_destroy(mine));
    for (int i = 0; i < 2; i++)
        ok(ds_stream_destroy(s[i]));
    finish_comm();
}

/* CUDA copies rows only so far apart as an int counts. */
static void test_rows_that_are_far_apart(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    size_t pitch = ((size_t)1 << 31) + 4096;
    unsigned char *p = mmap(NULL, pitch + 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    ds_tensor rows = ds_tensor_of(p, host(), ds_uint8(), 2, SHAPE(2, 300)),
              *out = on(harness_device(0), ds_uint8(), 2, SHAPE(2, 300));
    rows.strides = SHAPE((int64_t)pitch, 1);
    for (int i = 0; i < 2; i++)
        memset(p + (size_t)i * pitch, i + 1, 300);
    ok(ds_comm_broadcast_into(&rows, INPUTS(&out), 1, NULL));
    unsigned char *got = contents(out);
    for (int i = 0; i < 600; i++)
        assert_int_equal(got[i], i / 300 + 1);
    free(got);
    drop(&out, 1);
    munmap(p, pitch + 4096);
    finish_comm();
}

/* The stream of a result that shows its tensor takes no part: it does not wait for the others. */
static void test_coalesced_aliases_leave_their_stream_alone(void **state) {
    (void)state;
    ds_device to[2] = { harness_device(0), harness_device(0) };
    if (harness_device_count() < 2)
        skip();
    to[1] = harness_device(1);
    for (int coalesced = 0; coalesced < 2; coalesced++) {
        gate g = { 0 };
        ds_stream streams[2] = { harness_stream(0, 0), harness_stream(1, 0) };
        ds_comm_options o = { .streams = streams, .stream_count = 2, .flags = DS_COMM_ALIAS };
        ds_tensor *t = painted(harness_device(0), ds_int8(), 1, SHAPE(100000), 1), *out[2];
        ok(ds_device_synchronize(harness_device(0)));
        gate_close(streams[1], &g);

        if (coalesced)
            ok(ds_comm_broadcast_coalesced(INPUTS(&t), 1, to, 2, 0, &o, out));
        else
            ok(ds_comm_broadcast(t, to, 2, &o, out));
        ds_result r = ds_stream_query(streams[0]);
        gate_open(&g);

        assert_int_equal(r, DS_OK);
        assert_ptr_equal(out[0]->data, t->data);
        expect_equal(t, out[1]);
        drop(out, 2);
        drop(&t, 1);
        ok(ds_stream_destroy(streams[0]));
        ok(ds_stream_destroy(streams[1]));
    }
}

const struct CMUnitTest tests_comm[] = {
    DS_TEST(test_coalesced_aliases_leave_their_stream_alone, "comm"),
    DS_TEST_CUDA(test_tensors_are_packed_by_one_batch_of_copies, "comm"),
    DS_TEST(test_a_broadcast_copies_to_every_device_of_the_list, "comm: torch 115"),
    DS_TEST(test_a_broadcast_may_show_the_tensor_itself, "comm: torch 115"),
    DS_TEST(test_a_broadcast_into_tensors_that_are_there, "comm: torch 115"),
    DS_TEST(test_many_tensors_travel_in_few_copies, "comm: torch 116 117"),
    DS_TEST(test_a_scatter_cuts_as_torch_does, "comm: torch 120"),
    DS_TEST(test_a_scatter_with_sizes_and_its_errors, "comm: torch 120"),
    DS_TEST(test_a_scatter_shows_what_is_there_already, "comm: torch 120"),
    DS_TEST(test_scatter_and_gather_keep_channels_last, "comm: torch 122"),
    DS_TEST(test_scatter_into_and_gather_into, "comm: torch 120 121"),
    DS_TEST(test_gather_and_its_errors, "comm: torch 121"),
    DS_TEST(test_random_scatters_and_gathers, "comm: torch 120 121"),
    DS_TEST(test_a_reduction_is_in_the_order_of_the_list, "comm: reduce"),
    DS_TEST(test_reduce_add_and_its_errors, "comm: torch 118"),
    DS_TEST(test_reductions_of_all_layouts, "comm: torch 118"),
    DS_TEST(test_many_sums_at_once, "comm: torch 119"),
    DS_TEST(test_all_reduce_gives_everyone_the_sum, "comm: all_reduce"),
    DS_TEST(test_all_gather_reduce_scatter_and_all_to_all,
            "comm: all_gather, reduce_scatter, all_to_all"),
    DS_TEST(test_a_collective_waits_for_all_streams_and_they_for_it, "comm: order"),
    DS_TEST(test_several_streams_of_one_device_take_part, "comm: order"),
    DS_TEST_CPU(test_devices_that_cannot_reach_each_other, "comm: staged"),
    DS_TEST(test_a_collective_is_captured_with_its_temporary_memory, "comm: capture"),
    DS_TEST(test_memory_that_others_call_pinned_is_host_memory, "comm: memory of others"),
    DS_TEST_CPU(test_few_copies_are_made_of_many_tensors, "comm: torch 116"),
    DS_TEST(test_managed_memory_is_memory_of_its_gpu, "comm: memory of others"),
    DS_TEST(test_a_description_that_contradicts_its_memory_is_refused, "comm: bad input"),
    DS_TEST(test_options_that_say_nothing_sensible_are_refused, "comm: bad input"),
    DS_TEST(test_outputs_that_share_memory_are_refused, "comm: bad input"),
    DS_TEST(test_everyone_with_everyone_and_what_does_not_fit, "comm: bad input"),
    DS_TEST_CUDA(test_devices_of_two_drivers_do_not_mix, "comm: bad input"),
    DS_TEST(test_tensors_of_ten_dimensions, "comm: layouts"),
    DS_TEST(test_a_gather_of_different_layouts_is_row_major, "comm: layouts"),
    DS_TEST(test_many_inputs_are_summed_as_if_they_were_one_launch, "comm: reduce"),
    DS_TEST(test_pinned_memory_is_not_given_away_before_it_was_read, "comm: order"),
    DS_TEST(test_a_gather_and_a_reduction_wait_for_every_stream, "comm: order"),
    DS_TEST(test_threads_make_collectives_side_by_side, "comm: threads"),
    DS_TEST(test_results_of_a_captured_collective_are_graph_memory, "comm: capture"),
    DS_TEST(test_a_refused_collective_does_not_spoil_a_capture, "comm: capture"),
    DS_TEST(test_misaligned_numbers_are_not_reduced, "comm: bad input"),
    DS_TEST(test_empty_tensors_that_travel_take_no_memory, "comm: torch 116"),
    DS_TEST(test_memory_of_other_streams_is_kept_during_a_collective, "comm: order"),
    DS_TEST(test_rows_that_are_far_apart, "comm: layouts"),
};
const size_t tests_comm_count = sizeof tests_comm / sizeof *tests_comm;
