/* torch's own tests of torch.cuda.comm (test_cuda_multigpu.py), line by line of the checklist, 115
   to 122, with its shapes, sizes and errors.

   What is an error there and none here: outputs on the host, which are written; 'devices' beside
   'out' and 'destination' beside 'out', since these are functions of their own; a list of
   another length than chunk_sizes, since there is one count. What torch shows instead of copying
   is asked for with DS_COMM_ALIAS. Sparse tensors (116, 119 in part) have no form in DLPack;
   namedtuples (123) are of Python. */
#include "comm.h"

static const ds_comm_options alias = { .flags = DS_COMM_ALIAS };

/* DLPack's Metal */
static ds_device nowhere(void) {
    return (ds_device){ 8, 0 };
}

static ds_tensor *part_of(const ds_tensor *t, int dim, int64_t from, int64_t size) {
    ds_tensor *v;
    ok_thread(ds_tensor_narrow(t, dim, from, size, &v));
    return v;
}

static void expect_part(const ds_tensor *whole, int dim, int64_t from, const ds_tensor *piece) {
    ds_tensor *v = part_of(whole, dim, from, piece->shape[dim < 0 ? dim + piece->ndim : dim]);
    expect_equal(v, piece);
    drop(&v, 1);
}

/* The same memory description with one more dimension in front. */
static ds_tensor *unsqueezed(const ds_tensor *t) {
    int64_t shape[DS_TENSOR_MAX_DIMS] = { 1 };
    ds_tensor *v;
    memcpy(shape + 1, t->shape, (size_t)t->ndim * sizeof *shape);
    ok_thread(ds_tensor_view(t, t->ndim + 1, shape, &v));
    return v;
}

static ds_tensor elsewhere(const ds_tensor *t) {
    ds_tensor v = *t;
    v.device = nowhere();
    return v;
}

/* ---- 115: broadcast ---- */

static void broadcasts(ds_device from) {
    begin(PRESET_DEFAULT);
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_tensor *t = painted(from, ds_float32(), 2, SHAPE(5, 5), 115), *out[2];
    ok(ds_comm_broadcast(t, to, 2, &alias, out));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out[i]->device.index, to[i].index);
        expect_equal(t, out[i]);
        /* no copy on the same device */
        if (!is_host(t) && t->device.index == to[i].index)
            assert_ptr_equal(out[i]->data, t->data);
    }
    drop(out, 2);
    /* into what is there */
    for (int i = 0; i < 2; i++)
        out[i] = on(to[i], ds_float32(), 2, SHAPE(5, 5));
    void *data[2] = { out[0]->data, out[1]->data };
    ok(ds_comm_broadcast_into(t, INPUTS(out), 2, NULL));
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(out[i]->data, data[i]);
        expect_equal(t, out[i]);
    }
    ds_tensor *wide = unsqueezed(out[1]), odd = elsewhere(out[1]), *none[2] = { out[0], out[0] };
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ out[0], wide }), 2, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 1 has the shape [1, 5, 5], not [5, 5]");
    refused(ds_comm_broadcast_into(t, INPUTS((ds_tensor *[]){ out[0], &odd }), 2, NULL),
            DS_ERR_UNSUPPORTED);
    says("output tensor at index 1 is on a device of DLPack's type 8");
    to[1] = nowhere();
    /* and what was made for the first one is gone */
    refused_any(ds_comm_broadcast(t, to, 2, NULL, none));
    says("the device at index 1");
    assert_null(none[0]);
    drop(&wide, 1);
    drop(out, 2);
    ds_tensor *far[2] = { on(harness_device(0), ds_float32(), 2, SHAPE(5, 5)),
                          on(host(), ds_float32(), 2, SHAPE(5, 5)) };
    ok(ds_comm_broadcast_into(t, INPUTS(far), 2, NULL)); /* torch refuses the second one */
    expect_equal(t, far[1]);
    drop(far, 2);
    drop(&t, 1);
    finish_comm();
}

static void test_broadcast_cpu_as_in_torch(void **state) {
    (void)state;
    broadcasts(host());
}

static void test_broadcast_gpu_as_in_torch(void **state) {
    (void)state;
    broadcasts(harness_device(0));
}

/* ---- 116, 117: broadcast_coalesced ---- */

static void broadcasts_coalesced(ds_tensor *const *t, size_t n, size_t buffer_size) {
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_tensor *one[2], *all[2 * 8];
    ok(ds_comm_broadcast_coalesced(INPUTS(t), n, to, 2, buffer_size, &alias, all));
    for (size_t i = 0; i < n; i++) {
        ok(ds_comm_broadcast(t[i], to, 2, &alias, one));
        for (size_t d = 0; d < 2; d++) {
            ds_tensor *c = all[d * n + i];
            expect_equal(one[d], c);
            expect_equal(t[i], c);
            assert_true(ds_dtype_equal(c->dtype, t[i]->dtype));
            assert_int_equal(c->device.index, to[d].index);
            assert_int_equal(c->ndim, t[i]->ndim);
            /* device 0 has the tensors themselves */
            if (d == 0 || to[1].index == 0)
                assert_ptr_equal(c->data, t[i]->data);
        }
        drop(one, 2);
    }
    /* results of one buffer lie in one piece of memory, those of different types never */
    if (to[1].index) {
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < i; k++)
                assert_true(!all[n + i]->data || all[n + i]->data != all[n + k]->data);
    }
    drop(all, 2 * n);
}

static void test_broadcast_coalesced_as_in_torch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    const ds_dtype types[] = { ds_int64(), ds_float32(), ds_int64(),
                               ds_int64(), ds_int32(),   ds_float32() };
    ds_tensor *t[6];
    for (uint32_t i = 0; i < 6; i++)
        t[i] = painted(harness_device(0), types[i], 1, SHAPE(i == 4 ? 10 : 5), i);
    broadcasts_coalesced(t, 6, 5 * 8 * 5 / 2); /* two and a half of them */
    ds_tensor *out[12], *mixed[2] = { t[0], on(host(), ds_int64(), 1, SHAPE(5)) };
    refused(ds_comm_broadcast_coalesced(INPUTS(mixed), 2, &(ds_device){ harness_device(0).type, 0 },
                                        1, 0, NULL, out),
            DS_ERR_DEVICE_MISMATCH);
    says("the tensor at index 1 is on host:0, the first one on");
    drop(&mixed[1], 1);
    drop(t, 6);
    finish_comm();
}

static void test_broadcast_coalesced_empty_tensors_as_in_torch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *t[5] = { on(harness_device(0), ds_uint8(), 1, SHAPE(0)),
                        painted(harness_device(0), ds_float32(), 1, SHAPE(5), 1),
                        painted(harness_device(0), ds_float64(), 1, SHAPE(5), 2),
                        on(harness_device(0), ds_uint8(), 3, SHAPE(2, 0, 3)),
                        on(harness_device(0), ds_uint8(), 1, SHAPE(0)) };
    broadcasts_coalesced(t, 3, 256);
    broadcasts_coalesced(t, 5, 256);
    broadcasts_coalesced(&t[3], 2, 256); /* a buffer without a byte */
    ds_tensor *out[5];
    ds_device to = harness_device(1);
    /* the shape is kept, which torch loses */
    ok(ds_comm_broadcast_coalesced(INPUTS(t), 5, &to, 1, 256, NULL, out));
    assert_int_equal(out[3]->shape[0], 2);
    assert_int_equal(out[3]->shape[2], 3);
    drop(out, 5);
    drop(t, 5);
    finish_comm();
}

/* ---- 118, 119: reduce_add, reduce_add_coalesced ---- */

static void test_reduce_add_as_in_torch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_tensor *in[2], *out, *same;
    for (int i = 0; i < 2; i++) {
        in[i] = on(harness_device(i), ds_float32(), 2, SHAPE(5, 5));
        put_floats(in[i], (float)i * 3.3f - 1);
    }
    /* no destination: the current device */
    ok(ds_comm_reduce_add(INPUTS(in), 2, (ds_device){ 0, 0 }, NULL, &out));
    ds_device now;
    ok(ds_device_get_current(&now));
    assert_int_equal(out->device.type, now.type);
    assert_int_equal(out->device.index, now.index);
    expect_reduced(in, 2, out, DS_REDUCE_SUM, 0, 25);
    drop(&out, 1);
    /* ValueError: input 1 has invalid size */
    same = on(harness_device(0), ds_float32(), 2, SHAPE(5, 4));
    refused(ds_comm_reduce_add(INPUTS((ds_tensor *[]){ in[0], same }), 2, harness_device(0), NULL,
                               &out),
            DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [5, 4], not [5, 5]");
    assert_null(out);
    drop(&same, 1);
    drop(in, 2);
    finish_comm();
}

static void test_reduce_add_coalesced_as_in_torch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    const ds_dtype types[] = { ds_int64(), ds_float32(), ds_int64(),
                               ds_int64(), ds_int32(),   ds_float32() };
    ds_tensor *t[12], *out[6], *one;
    for (uint32_t i = 0; i < 12; i++) {
        t[i] = painted(harness_device(i < 6 ? 0 : 1), types[i % 6], 1, SHAPE(i % 6 == 4 ? 10 : 5),
                       i % 6);
        if (types[i % 6].code == DS_CODE_FLOAT)
            put_floats(t[i], (float)(i % 6));
    }
    ok(ds_comm_reduce_add_coalesced(INPUTS(t), 2, 6, harness_device(0), 5 * 8 * 5 / 2, NULL, out));
    for (int i = 0; i < 6; i++) {
        ds_tensor *pair[2] = { t[i], t[6 + i] };
        ok(ds_comm_reduce_add(INPUTS(pair), 2, harness_device(0), NULL, &one));
        assert_true(ds_dtype_equal(out[i]->dtype, types[i]));
        expect_equal(one, out[i]);
        unsigned char *x = contents(t[i]), *y = contents(out[i]);
        for (int64_t k = 0; k < ds_tensor_get_count(t[i]); k++) { /* twice what they are */
            if (types[i].bits == 64)
                assert_true(((uint64_t *)(void *)y)[k] == 2 * ((uint64_t *)(void *)x)[k]);
            else if (types[i].code == DS_CODE_INT)
                assert_true(((uint32_t *)(void *)y)[k] == 2 * ((uint32_t *)(void *)x)[k]);
            else
                assert_true(((float *)(void *)y)[k] == 2 * ((float *)(void *)x)[k]);
        }
        free(x);
        free(y);
        drop(&one, 1);
    }
    drop(out, 6);
    if (harness_device_count() > 1) {
        /* none of them is there */
        refused(ds_comm_reduce_add_coalesced(INPUTS(t), 1, 6, harness_device(1), 0, NULL, out),
                DS_ERR_DEVICE_MISMATCH);
        for (int i = 0; i < 6; i++)
            assert_null(out[i]);
    }
    drop(t, 12);
    finish_comm();
}

/* ---- 120: scatter ---- */

static void scatters(ds_device from, int64_t rows, const int64_t *sizes, int dim) {
    begin(PRESET_DEFAULT);
    ds_device to[3] = { harness_device(0), harness_device(1), harness_device(0) };
    ds_tensor *t = painted(from, ds_float32(), 2, SHAPE(rows, 4), 120),
              *out[3] = { NULL, NULL, NULL };
    int64_t half[2] = { t->shape[dim < 0 ? dim + 2 : dim] / 2,
                        t->shape[dim < 0 ? dim + 2 : dim] / 2 };
    const int64_t *want = sizes ? sizes : half;
    size_t n = 0;
    ok(ds_comm_scatter(t, to, 2, sizes, dim, &alias, out, &n));
    assert_int_equal(n, 2);
    for (int i = 0; i < 2; i++) {
        int64_t at = i ? want[0] : 0;
        expect_part(t, dim, at, out[i]);
        assert_int_equal(out[i]->device.index, to[i].index);
        ds_tensor *view = part_of(t, dim, at, want[i]);
        /* a view of the input */
        if (!is_host(t) && to[i].index == t->device.index)
            assert_ptr_equal(out[i]->data, view->data);
        drop(&view, 1);
    }
    ds_tensor *into[3] = { NULL, NULL, NULL };
    for (int i = 0; i < 2; i++)
        into[i] = on(to[i], ds_float32(), 2, out[i]->shape);
    drop(out, 2);
    void *data[2] = { into[0]->data, into[1]->data };
    ok(ds_comm_scatter_into(t, INPUTS(into), 2, dim, NULL));
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(into[i]->data, data[i]);
        expect_part(t, dim, i ? want[0] : 0, into[i]);
    }
    /* The seven: a count that does not fit, devices beside outputs (of which there is no form),
       no device, no output, an output nowhere, of another number of dimensions, and outputs that
       are less than the input. */
    int64_t three[3] = { want[0], want[1], 1 };
    refused(ds_comm_scatter(t, to, 3, three, dim, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("sum of chunk_sizes exceeds");
    says("at index 2");
    assert_int_equal(n, 0);
    refused(ds_comm_scatter(t, to, 0, NULL, dim, NULL, out, &n), DS_ERR_INVALID_VALUE);
    says("no devices to scatter to");
    refused(ds_comm_scatter_into(t, INPUTS(into), 0, dim, NULL), DS_ERR_INVALID_VALUE);
    says("no output tensors to scatter to");
    ds_tensor odd = elsewhere(into[0]), *wide = unsqueezed(into[0]),
              *less = part_of(into[0], dim, 1, want[0] - 1);
    refused(ds_comm_scatter_into(t, INPUTS((ds_tensor *[]){ &odd, into[1] }), 2, dim, NULL),
            DS_ERR_UNSUPPORTED);
    says("output tensor at index 0 is on a device of DLPack's type 8");
    refused(ds_comm_scatter_into(t, INPUTS((ds_tensor *[]){ wide, into[1] }), 2, dim, NULL),
            DS_ERR_INVALID_VALUE);
    says("output tensor at index 0 has the shape [1, ");
    refused(ds_comm_scatter_into(t, INPUTS((ds_tensor *[]){ less, into[1] }), 2, dim, NULL),
            DS_ERR_INVALID_VALUE);
    says("sum of the sizes");
    into[2] = on(host(), ds_float32(), 2, into[0]->shape);
    /* torch refuses the first one */
    ok(ds_comm_scatter_into(t, INPUTS((ds_tensor *[]){ into[2], into[1] }), 2, dim, NULL));
    expect_equal(into[0], into[2]);
    drop(&wide, 1);
    drop(&less, 1);
    drop(into, 3);
    drop(&t, 1);
    finish_comm();
}

static void test_scatter_cpu_as_in_torch(void **state) {
    (void)state;
    scatters(host(), 4, NULL, 0);
}

static void test_scatter_cpu_dim_as_in_torch(void **state) {
    (void)state;
    scatters(host(), 4, NULL, 1);
}

static void test_scatter_cpu_neg_dim_as_in_torch(void **state) {
    (void)state;
    scatters(host(), 4, NULL, -2);
}

static void test_scatter_cpu_sizes_as_in_torch(void **state) {
    (void)state;
    scatters(host(), 6, SHAPE(2, 4), 0);
}

static void test_scatter_gpu_as_in_torch(void **state) {
    (void)state;
    scatters(harness_device(0), 4, NULL, 0);
}

static void test_scatter_gpu_dim_as_in_torch(void **state) {
    (void)state;
    scatters(harness_device(0), 4, NULL, 1);
}

static void test_scatter_gpu_neg_dim_as_in_torch(void **state) {
    (void)state;
    scatters(harness_device(0), 4, NULL, -2);
}

static void test_scatter_gpu_sizes_as_in_torch(void **state) {
    (void)state;
    scatters(harness_device(0), 6, SHAPE(2, 4), 0);
}

/* ---- 121: gather ---- */

static void gathers(int dim) {
    begin(PRESET_DEFAULT);
    ds_device to[4] = { { 0, 0 }, harness_device(0), host(), harness_device(2) };
    ds_tensor *in[2], *out, *again;
    int across = dim == 0 || dim == -2;
    ds_device was;
    ok(ds_device_get_current(&was));
    for (int i = 0; i < 2; i++)
        in[i] = painted(harness_device(i), ds_float32(), 2, SHAPE(2, 5), (uint32_t)i);
    ok(ds_device_set_current(harness_device(1)));
    for (int d = 0; d < 4; d++) {
        ok(ds_comm_gather(INPUTS(in), 2, dim, to[d], NULL, &out));
        assert_int_equal(is_host(out), d == 2);
        if (d != 2)
            assert_int_equal(out->device.index, d ? to[d].index : harness_device(1).index);
        assert_int_equal(out->shape[0], across ? 4 : 2);
        assert_int_equal(out->shape[1], across ? 5 : 10);
        for (int i = 0; i < 2; i++)
            expect_part(out, dim, i * (across ? 2 : 5), in[i]);
        again = on(d ? to[d] : harness_device(1), ds_float32(), 2, out->shape);
        void *data = again->data;
        ok(ds_comm_gather_into(INPUTS(in), 2, dim, again, NULL));
        assert_ptr_equal(again->data, data);
        expect_equal(out, again);
        drop(&again, 1);
        drop(&out, 1);
    }
    /* The five: a destination beside an output (of which there is no form; one of the wrong
       shape instead), no input, one nowhere (torch: on the host, which is read here), one of
       another number of dimensions, one of another size. */
    again = on(host(), ds_float32(), 2, SHAPE(across ? 3 : 2, across ? 5 : 9));
    refused(ds_comm_gather_into(INPUTS(in), 2, dim, again, NULL), DS_ERR_INVALID_VALUE);
    says(across ? "the output tensor has the shape [3, 5], not [4, 5]"
                : "the output tensor has the shape [2, 9], not [2, 10]");
    drop(&again, 1);
    refused(ds_comm_gather(NULL, 0, dim, host(), NULL, &out), DS_ERR_INVALID_VALUE);
    says("no tensors to gather");
    ds_tensor odd = elsewhere(in[0]), *wide = unsqueezed(in[1]),
              *less = part_of(in[1], across ? 1 : 0, 1, across ? 4 : 1);
    refused(ds_comm_gather(INPUTS((ds_tensor *[]){ &odd, in[1] }), 2, dim, host(), NULL, &out),
            DS_ERR_UNSUPPORTED);
    says("input tensor at index 0 is on a device of DLPack's type 8");
    refused(ds_comm_gather(INPUTS((ds_tensor *[]){ in[0], wide }), 2, dim, host(), NULL, &out),
            DS_ERR_INVALID_VALUE);
    says("input tensor at index 1 has the shape [1, 2, 5]");
    refused(ds_comm_gather(INPUTS((ds_tensor *[]){ in[0], less }), 2, dim, host(), NULL, &out),
            DS_ERR_INVALID_VALUE);
    says(across ? "input tensor at index 1 has the shape [2, 4], which differs from [2, 5] in more "
                  "than dimension 0"
                : "input tensor at index 1 has the shape [1, 5], which differs from [2, 5] in more "
                  "than dimension 1");
    assert_null(out);
    ds_tensor *mixed[2] = { painted(host(), ds_float32(), 2, SHAPE(2, 5), 7), in[1] };
    ok(ds_comm_gather(INPUTS(mixed), 2, dim, host(), NULL, &out));
    for (int i = 0; i < 2; i++)
        expect_part(out, dim, i * (across ? 2 : 5), mixed[i]);
    drop(&out, 1);
    drop(mixed, 1);
    drop(&wide, 1);
    drop(&less, 1);
    drop(in, 2);
    ok(ds_device_set_current(was));
    finish_comm();
}

static void test_gather_as_in_torch(void **state) {
    (void)state;
    gathers(0);
}

static void test_gather_dim_as_in_torch(void **state) {
    (void)state;
    gathers(1);
}

static void test_gather_neg_dim_as_in_torch(void **state) {
    (void)state;
    gathers(-1);
}

/* ---- 122: channels_last ---- */

static int is_channels_last(const ds_tensor *t) {
    ds_tensor *v;
    ok_thread(ds_tensor_permute(t, (int[]){ 0, 2, 3, 1 }, &v));
    int is = ds_tensor_is_contiguous(v);
    drop(&v, 1);
    return is;
}

static void test_memory_format_scatter_gather_as_in_torch(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[2] = { harness_device(0), harness_device(1) };
    ds_tensor *rows = painted(host(), ds_float32(), 4, SHAPE(10, 32, 32, 3), 122), *nhwc, *out[2],
              *back;
    ok(ds_tensor_permute(rows, (int[]){ 0, 3, 1, 2 }, &nhwc));
    ok(ds_comm_scatter(nhwc, to, 2, NULL, 0, NULL, out, NULL));
    for (int i = 0; i < 2; i++)
        assert_true(is_channels_last(out[i]) && !ds_tensor_is_contiguous(out[i]));
    ok(ds_comm_gather(INPUTS(out), 2, 0, (ds_device){ 0, 0 }, NULL, &back));
    assert_true(is_channels_last(back) && !ds_tensor_is_contiguous(back));
    expect_equal(nhwc, back);
    drop(&back, 1);
    drop(out, 2);
    drop(&nhwc, 1);
    drop(&rows, 1);
    finish_comm();
}

const struct CMUnitTest tests_comm_torch[] = {
    DS_TEST(test_broadcast_cpu_as_in_torch, "comm: torch 115"),
    DS_TEST(test_broadcast_gpu_as_in_torch, "comm: torch 115"),
    DS_TEST(test_broadcast_coalesced_as_in_torch, "comm: torch 116"),
    DS_TEST(test_broadcast_coalesced_empty_tensors_as_in_torch, "comm: torch 117"),
    DS_TEST(test_reduce_add_as_in_torch, "comm: torch 118"),
    DS_TEST(test_reduce_add_coalesced_as_in_torch, "comm: torch 119"),
    DS_TEST(test_scatter_cpu_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_cpu_dim_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_cpu_neg_dim_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_cpu_sizes_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_gpu_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_gpu_dim_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_gpu_neg_dim_as_in_torch, "comm: torch 120"),
    DS_TEST(test_scatter_gpu_sizes_as_in_torch, "comm: torch 120"),
    DS_TEST(test_gather_as_in_torch, "comm: torch 121"),
    DS_TEST(test_gather_dim_as_in_torch, "comm: torch 121"),
    DS_TEST(test_gather_neg_dim_as_in_torch, "comm: torch 121"),
    DS_TEST(test_memory_format_scatter_gather_as_in_torch, "comm: torch 122"),
};
const size_t tests_comm_torch_count = sizeof tests_comm_torch / sizeof *tests_comm_torch;
