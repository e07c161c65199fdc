/* The examples of the documents that docs/features.md goes through, line by line in C, each with
   the outcome that its document states. Where a document waits for something, a gate holds it up
   first: without the wait the test would see it. The names in a test's lines are those of the
   document; where it says device='cuda' or 'custom_cpu' the devices under test stand. */
#include "comm.h"
#include "locks.h"
#include "devstream_rng.h"

static ds_device device_named(const char *cpu_name, const char *cuda_name) {
    ds_device d;
    ok(ds_device_parse(harness_is_cpu() ? cpu_name : cuda_name, &d));
    return d;
}

static ds_stream stream_of(ds_stream_desc desc) {
    ds_stream s;
    ok(ds_stream_create(&desc, &s));
    return s;
}

static void end_streams(int count, const ds_stream *s) {
    for (int i = 0; i < count; i++) {
        ok(ds_stream_synchronize(s[i]));
        ok(ds_stream_destroy(s[i]));
    }
}

static int device_is(ds_device d, ds_device want) {
    return d.type == want.type && d.index == want.index;
}

static int is_on(ds_stream s, ds_device want) {
    ds_device d;
    ok(ds_stream_get_device(s, &d));
    return device_is(d, want);
}

/* What s is given now comes behind what `before` was given: held up there, it does not run; let
   through, it reads what was written there. `order` is the example's line that says so. */
typedef void (*order_fn)(ds_stream s, ds_stream before);

static void expect_order(ds_stream s, ds_stream before, order_fn order) {
    gate g = { 0 };
    uint64_t *h = word(7);
    gate_close(before, &g);
    fold(before, h, 1);
    order(s, before);
    fold(s, h, 2);
    gate_wait_entered(&g);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    assert_int_equal(*h, 7);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(7, 1), 2));
}

/* ---- torch.mtia.Stream ---- */

static ds_stream torch_stream(void) { /* torch.Stream(device='cuda') */
    ds_stream_desc desc = ds_stream_desc_torch();
    desc.device = device_named("cpu", "cuda");
    return stream_of(desc);
}

static void test_torch_makes_a_stream(void **state) {
    int priority = 7;
    unsigned flags = 7;
    (void)state;
    ds_stream s_cuda = torch_stream();
    assert_true(is_on(s_cuda, device_named("cpu", "cuda")));
    ok(ds_stream_get_priority(s_cuda, NULL, &priority)); /* "by default, streams have priority 0" */
    assert_int_equal(priority, 0);
    ok(ds_stream_get_flags(s_cuda, &flags));
    assert_int_equal(flags, DS_STREAM_NON_BLOCKING);
    uint64_t *h = word(3); /* "in first in first out order" */
    for (uint64_t i = 0; i < 100; i++)
        fold(s_cuda, h, i);
    ok(ds_stream_synchronize(s_cuda));
    uint64_t want = 3;
    for (uint64_t i = 0; i < 100; i++)
        want = fold_host(want, i);
    assert_true(*h == want);
    end_streams(1, &s_cuda);
}

static void test_torch_queries_a_stream(void **state) {
    gate g = { 0 };
    (void)state;
    ds_stream s_cuda = torch_stream();
    assert_int_equal(ds_stream_query(s_cuda), DS_OK); /* True */
    gate_close(s_cuda, &g);
    assert_int_equal(ds_stream_query(s_cuda), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(s_cuda));
    assert_int_equal(ds_stream_query(s_cuda), DS_OK);
    end_streams(1, &s_cuda);
}

static void test_torch_records_a_new_event_on_a_stream(void **state) {
    ds_event e_cuda;
    gate g = { 0 };
    (void)state;
    ds_stream s_cuda = torch_stream();
    gate_close(s_cuda, &g);
    ok(ds_stream_record_event(s_cuda, DS_EVENT_DEFAULT, &e_cuda));
    assert_int_equal(ds_event_query(e_cuda), DS_NOT_READY);
    gate_open(&g);
    ok(ds_event_synchronize(e_cuda));
    assert_int_equal(ds_event_query(e_cuda), DS_OK);
    ok(ds_event_destroy(e_cuda));
    end_streams(1, &s_cuda);
}

static void test_torch_synchronizes_a_stream(void **state) {
    (void)state;
    ds_stream s_cuda = torch_stream();
    uint64_t *h = word(1);
    for (uint64_t i = 0; i < 50; i++)
        fold(s_cuda, h, i);
    ok(ds_stream_synchronize(s_cuda)); /* "wait for all the kernels in this stream to complete" */
    uint64_t want = 1;
    for (uint64_t i = 0; i < 50; i++)
        want = fold_host(want, i);
    assert_true(*h == want);
    assert_int_equal(ds_stream_query(s_cuda), DS_OK);
    end_streams(1, &s_cuda);
}

static void torch_wait_event(ds_stream s2_cuda, ds_stream s1_cuda) {
    ds_event e_cuda;
    ok(ds_stream_record_event(s1_cuda, DS_EVENT_DEFAULT, &e_cuda));
    ok(ds_stream_wait_event(s2_cuda, e_cuda));
    ok(ds_event_destroy(e_cuda));
}

static void wait_stream(ds_stream s2, ds_stream s1) {
    ok(ds_stream_wait_stream(s2, s1));
}

static void test_torch_makes_a_stream_wait_for_an_event(void **state) {
    (void)state;
    ds_stream s[2] = { torch_stream(), torch_stream() };
    expect_order(s[1], s[0], torch_wait_event);
    end_streams(2, s);
}

static void test_torch_makes_a_stream_wait_for_a_stream(void **state) {
    (void)state;
    ds_stream s[2] = { torch_stream(), torch_stream() };
    expect_order(s[1], s[0], wait_stream);
    end_streams(2, s);
}

/* ---- cupy.cuda.Stream ---- */

static void test_cupy_captures_a_graph_and_launches_it_on_any_stream(void **state) {
    ds_graph graph;
    ds_graph_exec g;
    ds_stream s1, s2, now;
    ds_capture_status status;
    (void)state;
    harness_warm_up();
    uint64_t *h = word(5);
    s1 = harness_stream(0, DS_STREAM_NON_BLOCKING); /* cp.cuda.Stream(non_blocking=True) */
    DS_STREAM_SCOPE(s1) {
        ok(ds_capture_begin(s1, DS_CAPTURE_RELAXED)); /* CuPy's default */
        harness_watch(s1);
        fold(s1, h, 1);
        fold(s1, h, 2);
        ok(ds_capture_get_status(s1, &status)); /* is_capturing() */
        assert_int_equal(status, DS_CAPTURE_ACTIVE);
        ok(ds_capture_end(s1, &graph));
        ok(ds_graph_instantiate(graph, NULL, &g)); /* CuPy's end_capture() does both */
    }
    ok(ds_stream_synchronize(s1));
    assert_int_equal(*h, 5); /* nothing has run yet */
    ok(ds_graph_launch(g, s1));
    ok(ds_stream_synchronize(s1));
    uint64_t once = fold_host(fold_host(5, 1), 2);
    assert_true(*h == once);
    s2 = stream_of(ds_stream_desc_cupy()); /* cp.cuda.Stream() */
    DS_STREAM_SCOPE(s2) {
        ok(ds_stream_get_current(ds_device_current(), &now));
        assert_true(ds_stream_equal(now, s2));
        ok(ds_graph_launch(g, now)); /* g.launch() */
    }
    ok(ds_stream_synchronize(s2));
    assert_true(*h == fold_host(fold_host(once, 1), 2));
    ok(ds_graph_exec_destroy(g));
    ok(ds_graph_destroy(graph));
    end_streams(2, (ds_stream[]){ s1, s2 });
}

static void release_payload(void *user) {
    expect_no_lock();
    payload_destroy(user);
}

static void test_cupy_makes_a_stream_of_another_librarys(void **state) {
    ds_stream_native protocol, malformed;
    ds_stream cupy_stream;
    payload kept = { 0 };
    gate g = { 0 };
    (void)state;
    ds_stream torchs = torch_stream();
    ok(ds_stream_export(torchs, &protocol)); /* its __cuda_stream__(): version and handle */
    assert_int_equal(protocol.version, 0);
    ok(ds_stream_wrap(&protocol, DS_BORROW, release_payload, &kept, &cupy_stream));
    gate_close(torchs, &g); /* both are one queue */
    assert_int_equal(ds_stream_query(cupy_stream), DS_NOT_READY);
    gate_open(&g);
    uint64_t *h = word(2);
    fold(cupy_stream, h, 1);
    fold(torchs, h, 2);
    fold(cupy_stream, h, 3);
    ok(ds_stream_synchronize(torchs));
    assert_true(*h == fold_host(fold_host(fold_host(2, 1), 2), 3));
    assert_int_equal(kept.destroyed, 0); /* "holds a reference to the foreign stream object" */
    ok(ds_stream_destroy(cupy_stream));
    await_destroyed(&kept, 1);
    malformed = protocol; /* "TypeError: does not return a valid 2-tuple" */
    malformed.version = 1;
    refused(ds_stream_wrap(&malformed, DS_BORROW, NULL, NULL, &cupy_stream), DS_ERR_INVALID_VALUE);
    end_streams(1, &torchs);
}

/* ---- paddle.device.Stream ---- */

static ds_stream paddle_stream(const char *place) {
    ds_stream_desc desc = ds_stream_desc_paddle();
    if (place)
        ok(ds_device_parse(place, &desc.device));
    return stream_of(desc);
}

static void paddle_set_device(void) {
    ok(ds_device_set_current(device_named("custom_cpu", "gpu")));
}

static void test_paddle_makes_streams_in_four_ways(void **state) {
    ds_stream s[4];
    ds_device place = device_named("custom_cpu:0", "gpu:0");
    (void)state;
    paddle_set_device();
    s[0] = paddle_stream(NULL);
    s[1] = paddle_stream(harness_is_cpu() ? "custom_cpu" : "gpu");
    s[2] = paddle_stream(harness_is_cpu() ? "custom_cpu:0" : "gpu:0");
    /* paddle.CustomPlace('custom_cpu', 0) */
    s[3] = stream_of((ds_stream_desc){ .device = { place.type, 0 } });
    for (int i = 0; i < 4; i++) {
        int priority, normal;
        unsigned flags;
        assert_true(is_on(s[i], place));
        ok(ds_stream_priority_from_paddle(2, &normal)); /* "None: 2, normal" */
        ok(ds_stream_get_priority(s[i], NULL, &priority));
        assert_int_equal(priority, normal);
        ok(ds_stream_get_flags(s[i], &flags)); /* "blocking: False" */
        assert_int_equal(flags, DS_STREAM_NON_BLOCKING);
        for (int k = 0; k < i; k++)
            assert_false(ds_stream_equal(s[i], s[k]));
    }
    end_streams(4, s);
}

static void test_paddle_records_a_new_event_and_a_given_one(void **state) {
    ds_event e1, e2;
    gate g = { 0 };
    (void)state;
    paddle_set_device();
    ds_stream s = paddle_stream(NULL);
    gate_close(s, &g);
    ok(ds_stream_record_event(s, DS_EVENT_DEFAULT, &e1)); /* e1 = s.record_event() */
    ok(ds_event_create(DS_EVENT_DEFAULT, NULL, &e2));     /* e2 = paddle.device.Event() */
    ok(ds_event_record(e2, s));                           /* s.record_event(e2) */
    assert_int_equal(ds_event_query(e1), DS_NOT_READY);
    assert_int_equal(ds_event_query(e2), DS_NOT_READY);
    gate_open(&g);
    ok(ds_event_synchronize(e2));
    assert_int_equal(ds_event_query(e1), DS_OK);
    ok(ds_event_destroy(e1));
    ok(ds_event_destroy(e2));
    end_streams(1, &s);
}

static void paddle_wait_event(ds_stream s2, ds_stream s1) {
    ds_event e;
    ok(ds_event_create(DS_EVENT_DEFAULT, NULL, &e));
    ok(ds_event_record(e, s1)); /* e.record(s1) */
    ok(ds_stream_wait_event(s2, e));
    ok(ds_event_destroy(e));
}

static void test_paddle_makes_a_stream_wait_for_an_event(void **state) {
    (void)state;
    paddle_set_device();
    ds_stream s[2] = { paddle_stream(NULL), paddle_stream(NULL) };
    expect_order(s[1], s[0], paddle_wait_event);
    end_streams(2, s);
}

static void test_paddle_makes_a_stream_wait_for_a_stream(void **state) {
    (void)state;
    paddle_set_device();
    ds_stream s[2] = { paddle_stream(NULL), paddle_stream(NULL) };
    expect_order(s[0], s[1], wait_stream); /* s1.wait_stream(s2) */
    end_streams(2, s);
}

static void test_paddle_queries_a_stream(void **state) {
    gate g = { 0 };
    (void)state;
    paddle_set_device();
    ds_stream s = paddle_stream(NULL);
    assert_int_equal(ds_stream_query(s), DS_OK);
    gate_close(s, &g);
    /* Paddle's custom_cpu says that everything is done */
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&g);
    end_streams(1, &s);
}

static void test_paddle_synchronizes_a_stream(void **state) {
    (void)state;
    paddle_set_device();
    ds_stream s = paddle_stream(NULL);
    ok(ds_stream_synchronize(s)); /* also with nothing to wait for */
    uint64_t *h = word(9);
    fold(s, h, 4);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(9, 4));
    end_streams(1, &s);
}

/* ---- mindspore.hal.Stream ---- */

typedef struct matmul_args {
    float *c;
    const float *a, *b;
    uint32_t inner, columns;
} matmul_args;

static int matmul_items(size_t first, size_t count, const void *args) {
    const matmul_args *m = args;
    for (size_t i = first; i < first + count; i++) {
        float sum = 0;
        for (size_t k = 0; k < m->inner; k++)
            sum += m->a[i / m->columns * m->inner + k] * m->b[k * m->columns + i % m->columns];
        m->c[i] = sum;
    }
    return 0;
}

typedef struct floats_args {
    float *c;
    const float *a, *b;
} floats_args;

static int add_items(size_t first, size_t count, const void *args) {
    const floats_args *f = args;
    for (size_t i = first; i < first + count; i++)
        f->c[i] = f->a[i] + f->b[i];
    return 0;
}

static int multiply_items(size_t first, size_t count, const void *args) {
    const floats_args *f = args;
    for (size_t i = first; i < first + count; i++)
        f->c[i] = f->a[i] * f->b[i];
    return 0;
}

/* ops.matmul, +, *: into a tensor that is there, on the current stream as in MindSpore. */
static struct { ds_kernel matmul, add, multiply; } ops;

static void make_ops(void) {
    static const ds_param matmul_params[] = { PARAM(WRITE, matmul_args, c),
                                              PARAM(READ, matmul_args, a),
                                              PARAM(READ, matmul_args, b),
                                              PARAM(VALUE, matmul_args, inner),
                                              PARAM(VALUE, matmul_args, columns),
                                              PARAM_FIRST,
                                              PARAM_COUNT };
    static const ds_param floats_params[] = { PARAM(WRITE, floats_args, c),
                                              PARAM(READ, floats_args, a),
                                              PARAM(READ, floats_args, b), PARAM_FIRST,
                                              PARAM_COUNT };
    ops.matmul = harness_kernel("matmul", matmul_items, sizeof(matmul_args), matmul_params, 7, 64);
    ops.add = harness_kernel("add_floats", add_items, sizeof(floats_args), floats_params, 5, 0);
    ops.multiply =
        harness_kernel("multiply_floats", multiply_items, sizeof(floats_args), floats_params, 5, 0);
}

static void end_ops(void) {
    ok(ds_kernel_destroy(ops.matmul));
    ok(ds_kernel_destroy(ops.add));
    ok(ds_kernel_destroy(ops.multiply));
}

static void matmul(ds_tensor *c, const ds_tensor *a, const ds_tensor *b) {
    matmul_args m = { c->data, a->data, b->data, (uint32_t)a->shape[1], (uint32_t)b->shape[1] };
    ok(ds_kernel_launch(ops.matmul, (size_t)ds_tensor_get_count(c), &m, sizeof m,
                        current(c->device)));
}

static void elementwise(ds_kernel op, ds_tensor *c, const ds_tensor *a, const ds_tensor *b) {
    floats_args f = { c->data, a->data, b->data };
    ok(ds_kernel_launch(op, (size_t)ds_tensor_get_count(c), &f, sizeof f, current(c->device)));
}

/* Tensor(np.full(shape, value), float32), which is there when the call returns, as in MindSpore. */
static ds_tensor *full(float value, int64_t rows, int64_t columns) {
    ds_device d = harness_device(0);
    ds_tensor *t = on(d, ds_float32(), 2, SHAPE(rows, columns));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ok(ds_fill(t->data, bits, 4, (size_t)ds_tensor_get_count(t), current(d)));
    ok(ds_stream_synchronize(current(d)));
    return t;
}

static void expect_full(const ds_tensor *t, float value) {
    float *x = (float *)(void *)contents(t);
    for (int64_t i = 0; i < ds_tensor_get_count(t); i++)
        if (x[i] != value)
            fail_msg("element %d is %g, not %g", (int)i, (double)x[i], (double)value);
    free(x);
}

static ds_stream mindspore_stream(void) {
    ds_stream_desc desc = ds_stream_desc_mindspore();
    desc.device = harness_device(0);
    return stream_of(desc);
}

/* The document's matrices are 1024 x 2048 and 2048 x 4096; a sixteenth of each side keeps the
   interpreter of PTX short. The same program stands there under query() and under synchronize(). */
static void multiply_and_wait(int query_before) {
    begin(PRESET_DEFAULT);
    ok(ds_device_set_current(harness_device(0)));
    make_ops();
    ds_tensor *a = full(1, 64, 128), *b = full(1, 128, 256),
              *c = on(harness_device(0), ds_float32(), 2, SHAPE(64, 256));
    gate g = { 0 };
    wait_all();
    ds_stream s1 = mindspore_stream();
    if (query_before)
        gate_close(s1, &g);
    DS_STREAM_SCOPE(s1)
        matmul(c, a, b); /* with ms.hal.StreamCtx(s1) */
    if (query_before) {
        assert_int_equal(ds_stream_query(s1), DS_NOT_READY);
        gate_open(&g);
    }
    ok(ds_stream_synchronize(s1));
    assert_int_equal(ds_stream_query(s1), DS_OK); /* assert s1.query() */
    expect_full(c, 128);
    drop((ds_tensor *[]){ a, b, c }, 3);
    end_streams(1, &s1);
    end_ops();
    finish_comm();
}

static void test_mindspore_queries_a_stream(void **state) {
    (void)state;
    multiply_and_wait(1);
}

static void test_mindspore_synchronizes_a_stream(void **state) {
    (void)state;
    multiply_and_wait(0);
}

/* The same program stands there under record_event() and under wait_event(). One gate is before
   what the event covers: nobody may pass the wait before it. The other is behind the event: what
   waits for the event must not wait for that. */
static void add_wait_and_add(int gate_before_event) {
    ds_event event;
    gate g = { 0 };
    begin(PRESET_DEFAULT);
    ok(ds_device_set_current(harness_device(0)));
    make_ops();
    ds_tensor *a = full(1, 3, 3), *b = full(1, 3, 3), *three = full(3, 3, 3), *c = full(100, 3, 3),
              *d = full(100, 3, 3), *e = full(100, 3, 3);
    ds_stream s1 = mindspore_stream(), cur_stream;
    if (gate_before_event)
        gate_close(s1, &g);
    DS_STREAM_SCOPE(s1) {
        elementwise(ops.add, c, a, b);
        ok(ds_stream_record_event(s1, DS_EVENT_DEFAULT, &event));
        if (!gate_before_event)
            gate_close(s1, &g);
        elementwise(ops.multiply, d, a, b);
    }
    ok(ds_stream_get_current(harness_device(0), &cur_stream)); /* ms.hal.current_stream() */
    ok(ds_stream_wait_event(cur_stream, event));
    elementwise(ops.add, e, c, three);
    if (gate_before_event) {
        assert_int_equal(ds_stream_query(cur_stream), DS_NOT_READY);
        gate_open(&g);
        ok(ds_stream_synchronize(cur_stream));
    } else {
        ok(ds_stream_synchronize(cur_stream));
        assert_int_equal(ds_stream_query(s1), DS_NOT_READY);
        gate_open(&g);
    }
    expect_full(e, 2 + 3); /* [[5. 5. 5.] [5. 5. 5.] [5. 5. 5.]] */
    expect_full(d, 1);
    ok(ds_event_destroy(event));
    drop((ds_tensor *[]){ a, b, three, c, d, e }, 6);
    end_streams(1, &s1);
    end_ops();
    finish_comm();
}

static void test_mindspore_records_an_event(void **state) {
    (void)state;
    add_wait_and_add(0);
}

static void test_mindspore_makes_a_stream_wait_for_an_event(void **state) {
    (void)state;
    add_wait_and_add(1);
}

static void test_mindspore_makes_a_stream_wait_for_a_stream(void **state) {
    gate g = { 0 };
    (void)state;
    begin(PRESET_DEFAULT);
    ok(ds_device_set_current(harness_device(0)));
    make_ops();
    ds_stream s1 = mindspore_stream(), s2 = mindspore_stream();
    ds_tensor *a = full(1, 1, 2), *b = full(1, 2, 2), *c = full(100, 1, 2), *d = full(100, 1, 2);
    gate_close(s1, &g);
    DS_STREAM_SCOPE(s1)
        matmul(c, a, b);
    DS_STREAM_SCOPE(s2) {
        ok(ds_stream_wait_stream(s2, s1));
        matmul(d, c, b);
    }
    assert_int_equal(ds_stream_query(s2), DS_NOT_READY);
    gate_open(&g);
    ok(ds_device_synchronize(harness_device(0))); /* ms.hal.synchronize() */
    assert_int_equal(ds_stream_query(s2), DS_OK);
    expect_full(d, 4); /* [[4. 4.]] */
    drop((ds_tensor *[]){ a, b, c, d }, 4);
    end_streams(2, (ds_stream[]){ s1, s2 });
    end_ops();
    finish_comm();
}

/* ---- torch.cuda, whose document has no code: what it says that its functions are good for ---- */

static void test_torch_cuda_starts_by_itself(void **state) {
    int count = 0;
    (void)state;
    harness_shutdown();
    assert_false(ds_is_initialized());
    /* "initialize CUDA state on-demand" */
    ok(ds_device_get_count((ds_device_type)harness_device(0).type, &count));
    assert_true(ds_is_initialized() && count > 0);
    assert_true(ds_backend_is_available((ds_device_type)harness_device(0).type));
    /* "you can always import it, and use is_available()" */
    int was_there = ds_backend_is_available(DS_DEVICE_CUDA);
    assert_true(harness_is_cpu() || was_there);
}

static void test_torch_cuda_tells_what_a_device_is(void **state) {
    ds_device_properties p;
    char name[128];
    int major = -1, minor = -1, reach = 0;
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        ds_device d = harness_device(i);
        ok(ds_device_get_properties(d, &p));
        ok(ds_device_get_name(d, name, sizeof name));
        ok(ds_device_get_capability(d, &major, &minor));
        assert_string_equal(name, p.name);
        assert_true(*name && major == p.major && minor == p.minor && p.total_memory > 0);
        assert_true(harness_is_cpu() ? major == 0 : major > 0);
        ok(ds_device_can_access_peer(d, d, &reach));
        assert_int_equal(reach, 1);
    }
}

static void expect_device(ds_device want) {
    ds_device now;
    ok(ds_device_get_current(&now));
    assert_true(device_is(now, want));
}

static void test_torch_cuda_selects_devices_for_a_while(void **state) {
    void *p;
    ds_device zero = harness_device(0), one = harness_device(1);
    (void)state;
    ok(ds_device_set_current(zero));
    DS_DEVICE_SCOPE(one)
        expect_device(one); /* with torch.cuda.device(1) */
    expect_device(zero);
    /* "a no-op if a negative integer or None" */
    DS_DEVICE_SCOPE(((ds_device){ one.type, -1 }))
        expect_device(zero);
    DS_DEVICE_SCOPE(ds_device_current())
        expect_device(zero);
    ok(ds_device_set_current((ds_device){ one.type, -1 }));
    expect_device(zero);
    ok(ds_device_alloc(one, 64, &p));
    DS_DEVICE_OF_SCOPE(p)
        expect_device(one); /* with torch.cuda.device_of(tensor) */
    int here = 0;
    DS_DEVICE_OF_SCOPE(&here)
        expect_device(zero); /* "not allocated on a GPU: a no-op" */
    expect_device(zero);
    ok(ds_device_free(p));
}

static void test_torch_cuda_selects_streams_for_a_while(void **state) {
    ds_stream now, first, none = { 0 };
    (void)state;
    ds_device zero = harness_device(0), one = harness_device(1);
    ok(ds_device_set_current(zero));
    ok(ds_stream_get_current(zero, &first));
    ds_stream s = harness_stream(1, DS_STREAM_NON_BLOCKING);
    /* "if the selected stream is not on the current device, this will also change the current
       device" */
    DS_STREAM_SCOPE(s) {
        expect_device(one);
        ok(ds_stream_get_current(ds_device_current(), &now));
        assert_true(ds_stream_equal(now, s));
    }
    expect_device(zero);
    int entered = 0;
    DS_STREAM_SCOPE(none) { /* "a no-op if it is None" */
        entered = 1;
        ok(ds_stream_get_current(ds_device_current(), &now));
        assert_true(ds_stream_equal(now, first));
    }
    assert_int_equal(entered, 1);
    end_streams(1, &s);
}

static void test_torch_cuda_synchronizes_all_streams_of_a_device(void **state) {
    ds_stream s[4];
    uint64_t *h = zeroed_words(4);
    (void)state;
    for (int i = 0; i < 4; i++) {
        s[i] = harness_stream(0, i & 1 ? DS_STREAM_BLOCKING : DS_STREAM_NON_BLOCKING);
        for (uint64_t k = 1; k < 20; k++)
            fold(s[i], &h[i], k);
    }
    ok(ds_device_synchronize(harness_device(0)));
    uint64_t want = 0;
    for (uint64_t k = 1; k < 20; k++)
        want = fold_host(want, k);
    for (int i = 0; i < 4; i++) {
        assert_true(h[i] == want);
        assert_int_equal(ds_stream_query(s[i]), DS_OK);
    }
    end_streams(4, s);
}

static void test_torch_cuda_times_work_with_events(void **state) {
    ds_event start, end;
    double ms = -1;
    (void)state;
    ds_stream s = torch_stream();
    ok(ds_event_create(DS_EVENT_TIMING, NULL, &start));
    ok(ds_event_create(DS_EVENT_TIMING, NULL, &end));
    gate g = { 0 };
    ok(ds_event_record(start, s));
    gate_close(s, &g);
    ok(ds_event_record(end, s));
    gate_wait_entered(&g);
    uint64_t entered = now_ns();
    /* for at least 2 ms */
    while (now_ns() < entered + 2000000) {
    }
    gate_open(&g);
    ok(ds_event_synchronize(end));
    ok(ds_event_get_elapsed_ms(start, end, &ms));
    assert_true(ms >= (getenv("DS_TEST_FABRIC") ? 0 : 1.9));
    ok(ds_event_destroy(start));
    ok(ds_event_destroy(end));
    end_streams(1, &s);
}

static void test_torch_cuda_records_on_one_device_and_waits_on_any(void **state) {
    ds_event event;
    (void)state;
    two_devices();
    ds_stream s[2] = { harness_stream(0, DS_STREAM_NON_BLOCKING),
                       harness_stream(1, DS_STREAM_NON_BLOCKING) };
    expect_order(s[1], s[0], torch_wait_event); /* "streams on any device can wait on the event" */
    ok(ds_stream_record_event(s[0], DS_EVENT_DEFAULT, &event));
    /* "only streams on the same device may record the event" */
    refused(ds_event_record(event, s[1]), DS_ERR_DEVICE_MISMATCH);
    ok(ds_event_destroy(event));
    end_streams(2, s);
}

/* "These two functions can measure the peak allocated (cached) memory usage of each iteration in
   a training loop." */
static void test_torch_cuda_measures_the_peak_of_each_iteration(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_device d = harness_device(0);
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    /* less from step to step, so that a peak that was not reset would show */
    for (size_t step = 4; step > 0; step--) {
        /* each "resets all peak memory stats" */
        ok(ds_mem_reset_peak_stats(d));
        void *activations = block(step * MIB, s), *gradients = block(step * MIB, s);
        assert_int_equal(ds_mem_get_allocated(d), 2 * step * MIB);
        ok(ds_mem_free(gradients));
        ok(ds_mem_free(activations));
        assert_int_equal(ds_mem_get_allocated(d), 0);
        assert_int_equal(ds_mem_get_max_allocated(d), 2 * step * MIB);
        /* "some unused memory can be held by the caching allocator" */
        assert_true(ds_mem_get_reserved(d) >= 2 * step * MIB);
        assert_int_equal(ds_mem_get_max_reserved(d), ds_mem_get_reserved(d));
        ok(ds_mem_empty_cache(d, NULL)); /* "releases all unoccupied cached memory" */
        assert_int_equal(ds_mem_get_reserved(d), 0);
    }
    end_streams(1, &s);
    finish();
}

static int keep_text(const char *text, size_t size, void *user) {
    char *kept = user;
    size_t length = strlen(kept), room = 20000 - 1 - length;
    strncat(kept, text, size < room ? size : room);
    return 0;
}

/* "It uses the current device, given by current_device(), if device is None": of all that have
   such a parameter. */
static void expect_figures(ds_device d, size_t bytes) {
    ds_mem_stats stats = { 0 };
    assert_int_equal(ds_mem_get_allocated(d), bytes);
    assert_int_equal(ds_mem_get_max_allocated(d), bytes);
    assert_int_equal(!ds_mem_get_reserved(d), !bytes);
    assert_int_equal(ds_mem_get_max_reserved(d), ds_mem_get_reserved(d));
    ok(ds_mem_get_stats(d, &stats));
    assert_int_equal(stats.allocated_bytes[DS_STAT_ALL].current, bytes);
}

static void expect_the_same_device(ds_device none, ds_device d) {
    ds_device_properties p, q;
    char name[2][128];
    int major[2], minor[2];
    ds_stream s[4];
    ok(ds_device_get_properties(none, &p));
    ok(ds_device_get_properties(d, &q));
    assert_memory_equal(p.uuid, q.uuid, sizeof p.uuid);
    for (int i = 0; i < 2; i++) {
        ok(ds_device_get_name(i ? d : none, name[i], sizeof name[i]));
        ok(ds_device_get_capability(i ? d : none, &major[i], &minor[i]));
        ok(ds_stream_get_current(i ? d : none, &s[i]));
        ok(ds_stream_get_default(i ? d : none, &s[2 + i]));
    }
    assert_string_equal(name[0], name[1]);
    assert_true(major[0] == major[1] && minor[0] == minor[1] && ds_stream_equal(s[0], s[1]) &&
                ds_stream_equal(s[2], s[3]));
    assert_true(is_on(s[0], d) && is_on(s[2], d));
}

static void test_torch_cuda_means_the_current_device_where_none_is_named(void **state) {
    static char text[2][20000];
    ds_device none = ds_device_current();
    uint64_t seed;
    double fraction;
    (void)state;
    begin(PRESET_TORCH);
    for (int i = 0; i < 2; i++) {
        ds_device d = harness_device(i), other = harness_device(1 - i);
        ok(ds_device_set_current(d));
        expect_the_same_device(none, d);
        ds_stream s = harness_stream(i, DS_STREAM_NON_BLOCKING);
        void *p = block(MIB, s);
        expect_figures(none, MIB);
        expect_figures(d, MIB);
        /* each device counts for itself */
        if (other.index != d.index)
            expect_figures(other, 0);
        text[0][0] = text[1][0] = 0;
        for (int k = 0; k < 2; k++)
            ok(ds_mem_write_summary(k ? d : none, 0, keep_text, text[k]));
        assert_string_equal(text[0], text[1]);
        text[0][0] = text[1][0] = 0;
        for (int k = 0; k < 2; k++)
            ok(ds_mem_write_processes(k ? d : none, keep_text, text[k]));
        assert_string_equal(text[0], text[1]);
        gate g = { 0 };
        uint64_t *h = word(1);
        gate_close(s, &g);
        fold(s, h, 1);
        assert_int_equal(ds_stream_query(s), DS_NOT_READY);
        gate_open(&g);
        ok(ds_device_synchronize(none));
        assert_true(*h == fold_host(1, 1));
        ok(ds_rng_set_device_seed(none, 100 + (uint64_t)i));
        ok(ds_rng_get_device_seed(d, &seed));
        assert_int_equal(seed, 100 + i);
        ok(ds_mem_set_fraction(none, 0.5));
        ok(ds_mem_get_fraction(d, &fraction));
        assert_true(fraction == 0.5);
        ok(ds_mem_set_fraction(none, 1));
        ok(ds_mem_free(p));
        end_streams(1, &s);
        ok(ds_mem_empty_cache(d, NULL));
        ok(ds_mem_reset_peak_stats(none));
        expect_figures(d, 0);
    }
    finish();
}

static void test_torch_cuda_names_its_statistics(void **state) {
    static const char *const quantity[] = { "allocated",      "allocated_bytes",
                                            "segment",        "reserved_bytes",
                                            "active",         "active_bytes",
                                            "inactive_split", "inactive_split_bytes" };
    static const char *const pool[] = { "all", "large_pool", "small_pool" }, *const metric[] = {
        "current", "peak", "allocated", "freed"
    };
    static const char *const counter[] = { "num_alloc_retries", "num_ooms" };
    ds_mem_stats stats = { 0 };
    char name[80];
    int64_t value[3];
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    void *small = block(1000, s), *large = block(3 * MIB, s);
    ok(ds_mem_get_stats(harness_device(0), &stats));
    for (size_t q = 0; q < 8; q++)
        for (size_t m = 0; m < 4; m++) {
            for (size_t p = 0; p < 3; p++) {
                snprintf(name, sizeof name, "%s.%s.%s", quantity[q], pool[p], metric[m]);
                ok(ds_mem_stats_get_by_name(&stats, name, &value[p]));
                assert_true(value[p] >= 0); /* "each of which is a non-negative integer" */
            }
            /* "combined statistics across all memory pools" */
            if (m != 1)
                assert_int_equal(value[0], value[1] + value[2]);
        }
    for (size_t i = 0; i < 2; i++) {
        ok(ds_mem_stats_get_by_name(&stats, counter[i], value));
        assert_int_equal(value[0], 0);
    }
    ok(ds_mem_stats_get_by_name(&stats, "allocated.small_pool.current", value));
    assert_int_equal(value[0], 1);
    ok(ds_mem_stats_get_by_name(&stats, "allocated_bytes.all.current", value));
    assert_int_equal(value[0], (int64_t)(1024 + 3 * MIB));
    ok(ds_mem_free(small));
    ok(ds_mem_free(large));
    end_streams(1, &s);
    finish();
}

/* "This can be useful to display periodically during training, or when handling out-of-memory
   exceptions." */
static void test_torch_cuda_prints_memory_when_a_limit_is_reached(void **state) {
    static char summary[20000], processes[20000];
    size_t total, limit;
    void *p;
    (void)state;
    begin(PRESET_TORCH);
    ds_device d = harness_device(0);
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ok(ds_device_get_memory_info(d, NULL, &total));
    ok(ds_mem_set_fraction(d, 1e-2)); /* "allowed memory equals total_memory * fraction" */
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, (size_t)(1e-2 * (double)total));
    /* "will raise an out of memory error in allocator" */
    no_memory(ds_mem_alloc(limit + 1, s, &p));
    assert_null(p);
    summary[0] = processes[0] = 0;
    ok(ds_mem_write_summary(d, 1, keep_text, summary));
    assert_non_null(strstr(summary, "CUDA OOMs: 1 "));
    ok(ds_mem_write_processes(d, keep_text, processes));
    assert_true(*processes);
    ok(ds_mem_set_fraction(d, 1));
    end_streams(1, &s);
    finish();
}

static ds_rng generator_of(ds_device d) {
    ds_rng rng;
    ok(ds_rng_get_default(d, &rng));
    return rng;
}

/* 16 numbers of the device's own generator. */
static void draw(ds_device d, float *out) {
    void *p;
    ds_stream s;
    ok(ds_stream_get_current(d, &s));
    ok(ds_device_alloc(d, 64, &p));
    ok(ds_rng_uniform((ds_rng){ 0 }, ds_float32(), p, 16, 0, 1, s));
    ok(ds_copy(out, p, 64, s));
    ok(ds_stream_synchronize(s));
    ok(ds_device_free(p));
}

static void test_torch_cuda_seeds_generators_and_sets_their_states(void **state) {
    unsigned char one[DS_RNG_STATE_SIZE], all[64 * DS_RNG_STATE_SIZE];
    float x[2][16], y[2][16];
    uint64_t seed = 0, was = 0;
    size_t count = 0;
    (void)state;
    ds_device d[2] = { harness_device(0), harness_device(1) };
    ds_device_type type = (ds_device_type)d[0].type;
    ok(ds_device_set_current(d[0]));
    ok(ds_rng_set_device_seed(ds_device_current(), 42)); /* "for the current GPU" */
    ok(ds_rng_get_device_seed(d[0], &seed));
    assert_int_equal(seed, 42);
    draw(d[0], x[0]);
    ok(ds_rng_set_device_seed(d[0], 42));
    draw(d[0], y[0]);
    assert_memory_equal(x[0], y[0], sizeof x[0]);
    ok(ds_rng_get_state(generator_of(d[0]), one, sizeof one)); /* get_rng_state(device) */
    draw(d[0], x[0]);
    assert_memory_not_equal(x[0], y[0], sizeof x[0]);
    ok(ds_rng_set_state(generator_of(d[0]), one, sizeof one));
    draw(d[0], y[0]);
    assert_memory_equal(x[0], y[0], sizeof x[0]);
    ok(ds_rng_set_seed_all(7)); /* "to seed all GPUs" */
    for (int i = 0; i < 2; i++) {
        ok(ds_rng_get_device_seed(d[i], &seed));
        assert_int_equal(seed, 7);
    }
    ok(ds_rng_get_state_all(type, all, 64, &count)); /* "the random number states of all devices" */
    assert_int_equal(count, harness_all_devices());
    for (int i = 0; i < 2; i++)
        draw(d[i], x[i]);
    ok(ds_rng_set_state_all(type, all, count));
    for (int i = 0; i < 2; i++)
        draw(d[i], y[i]);
    assert_memory_equal(x, y, sizeof x);
    ok(ds_rng_reseed_device(d[0], &seed)); /* "to a random number for the current GPU" */
    ok(ds_rng_reseed_device(d[0], &was));
    assert_true(seed != was); /* once in 2^64 */
    ok(ds_rng_reseed_all(&seed));
    for (int i = 0; i < 2; i++) {
        ok(ds_rng_get_device_seed(d[i], &was));
        assert_true(was == seed);
    }
    /* "if CUDA is not available, silently ignored" */
    if (!ds_backend_is_available(DS_DEVICE_CUDA))
        ok(ds_rng_set_device_seed(ds_cuda(0), 1));
}

static void test_torch_cuda_broadcasts_and_adds_up(void **state) {
    ds_tensor *out[3], *sum, *coalesced[6];
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[3] = { harness_device(0), harness_device(1), harness_device(0) };
    ds_tensor *t = on(harness_device(0), ds_float32(), 2, SHAPE(3, 4)),
              *u = painted(harness_device(0), ds_int32(), 1, SHAPE(5), 1);
    float x[12];
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    carry(t, (unsigned char *)x, 1);
    ok(ds_comm_broadcast(t, to, 3, NULL, out)); /* "copies of tensor, placed on devices" */
    for (int i = 0; i < 3; i++) {
        assert_true(device_is(out[i]->device, to[i]));
        expect_equal(t, out[i]);
    }
    /* "the output will be of the same shape, dtype" */
    ok(ds_comm_reduce_add(INPUTS(out), 3, harness_device(0), NULL, &sum));
    assert_int_equal(sum->shape[0], 3);
    assert_true(ds_dtype_equal(sum->dtype, ds_float32()));
    float *y = (float *)(void *)contents(sum);
    for (int i = 0; i < 12; i++)
        assert_true(y[i] == 3 * x[i]);
    free(y);
    ok(ds_fill(out[1]->data, 0, 4, 12, current(to[1])));
    /* "out tensors, each containing a copy of tensor" */
    ok(ds_comm_broadcast_into(t, INPUTS(&out[1]), 1, NULL));
    expect_equal(t, out[1]);
    /* torch's default */
    ok(ds_comm_broadcast_coalesced(INPUTS((ds_tensor *[]){ t, u }), 2, to, 3, 10485760, NULL,
                                   coalesced));
    for (int i = 0; i < 3; i++) {
        expect_equal(t, coalesced[2 * i]);
        expect_equal(u, coalesced[2 * i + 1]);
    }
    drop(coalesced, 6);
    drop(out, 3);
    drop((ds_tensor *[]){ t, u, sum }, 3);
    finish_comm();
}

static void test_torch_cuda_scatters_and_gathers(void **state) {
    ds_tensor *out[2], *back, *into;
    size_t count;
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device to[2] = { harness_device(0), harness_device(1) };
    for (int from_host = 0; from_host < 2; from_host++) { /* "can be on CPU or GPU" */
        ds_tensor *t = painted(from_host ? host() : to[0], ds_float32(), 2, SHAPE(6, 5), 3);
        ok(ds_comm_scatter(t, to, 2, NULL, 0, NULL, out, &count)); /* "divided into equal chunks" */
        assert_int_equal(count, 2);
        for (int i = 0; i < 2; i++)
            assert_true(out[i]->shape[0] == 3 && out[i]->shape[1] == 5 &&
                        device_is(out[i]->device, to[i]));
        /* "concatenating tensors along dim" */
        ok(ds_comm_gather(INPUTS(out), 2, 0, from_host ? host() : to[1], NULL, &back));
        expect_equal(t, back);
        assert_int_equal(is_host(back), from_host); /* "the output device. Can be CPU or CUDA" */
        drop(&back, 1);
        drop(out, 2);
        ok(ds_comm_scatter(t, to, 2, SHAPE(1, 4), 1, NULL, out, &count)); /* chunk_sizes, dim=1 */
        assert_int_equal(out[0]->shape[1], 1);
        assert_int_equal(out[1]->shape[1], 4);
        /* "out: now containing results of concatenating" */
        into = on(to[1], ds_float32(), 2, SHAPE(6, 5));
        ok(ds_comm_gather_into(INPUTS(out), 2, 1, into, NULL));
        expect_equal(t, into);
        for (int i = 0; i < 2; i++)
            ok(ds_fill(out[i]->data, 0, 4, (size_t)ds_tensor_get_count(out[i]), current(to[i])));
        /* "will be inferred from sizes of out" */
        ok(ds_comm_scatter_into(t, INPUTS(out), 2, 1, NULL));
        ok(ds_comm_gather_into(INPUTS(out), 2, 1, into, NULL));
        expect_equal(t, into);
        drop(out, 2);
        drop((ds_tensor *[]){ t, into }, 2);
    }
    finish_comm();
}

static void hear_mark(const ds_range_event *event, void *user) {
    if (event->kind == DS_RANGE_MARK && !strcmp(event->text, "ASCII message"))
        ++*(int *)user;
}

static void test_torch_cuda_marks_a_moment(void **state) {
    int heard = 0;
    (void)state;
    ok(ds_range_set_hook(hear_mark, &heard));
    ok(ds_range_mark("ASCII message"));
    ok(ds_range_set_hook(NULL, NULL));
    assert_int_equal(heard, 1);
}

const struct CMUnitTest tests_documents[] = {
    DS_TEST(test_torch_makes_a_stream, "documents: torch.Stream"),
    DS_TEST(test_torch_queries_a_stream, "documents: torch.Stream.query"),
    DS_TEST(test_torch_records_a_new_event_on_a_stream, "documents: torch.Stream.record_event"),
    DS_TEST(test_torch_synchronizes_a_stream, "documents: torch.Stream.synchronize"),
    DS_TEST(test_torch_makes_a_stream_wait_for_an_event, "documents: torch.Stream.wait_event"),
    DS_TEST(test_torch_makes_a_stream_wait_for_a_stream, "documents: torch.Stream.wait_stream"),
    DS_TEST(test_cupy_captures_a_graph_and_launches_it_on_any_stream,
            "documents: cupy.cuda.Stream.begin_capture"),
    DS_TEST(test_cupy_makes_a_stream_of_another_librarys,
            "documents: cupy.cuda.Stream.from_external"),
    DS_TEST(test_paddle_makes_streams_in_four_ways, "documents: paddle.device.Stream"),
    DS_TEST(test_paddle_records_a_new_event_and_a_given_one,
            "documents: paddle.device.Stream.record_event"),
    DS_TEST(test_paddle_makes_a_stream_wait_for_an_event,
            "documents: paddle.device.Stream.wait_event"),
    DS_TEST(test_paddle_makes_a_stream_wait_for_a_stream,
            "documents: paddle.device.Stream.wait_stream"),
    DS_TEST(test_paddle_queries_a_stream, "documents: paddle.device.Stream.query"),
    DS_TEST(test_paddle_synchronizes_a_stream, "documents: paddle.device.Stream.synchronize"),
    DS_TEST(test_mindspore_queries_a_stream, "documents: mindspore.hal.Stream.query"),
    DS_TEST(test_mindspore_records_an_event, "documents: mindspore.hal.Stream.record_event"),
    DS_TEST(test_mindspore_synchronizes_a_stream, "documents: mindspore.hal.Stream.synchronize"),
    DS_TEST(test_mindspore_makes_a_stream_wait_for_an_event,
            "documents: mindspore.hal.Stream.wait_event"),
    DS_TEST(test_mindspore_makes_a_stream_wait_for_a_stream,
            "documents: mindspore.hal.Stream.wait_stream"),
    DS_TEST(test_torch_cuda_starts_by_itself, "documents: torch.cuda.init"),
    DS_TEST(test_torch_cuda_tells_what_a_device_is, "documents: torch.cuda.get_device_properties"),
    DS_TEST(test_torch_cuda_selects_devices_for_a_while, "documents: torch.cuda.device, device_of"),
    DS_TEST(test_torch_cuda_selects_streams_for_a_while, "documents: torch.cuda.stream"),
    DS_TEST(test_torch_cuda_synchronizes_all_streams_of_a_device,
            "documents: torch.cuda.synchronize"),
    DS_TEST(test_torch_cuda_times_work_with_events, "documents: torch.cuda.Event.elapsed_time"),
    DS_TEST(test_torch_cuda_records_on_one_device_and_waits_on_any, "documents: torch.cuda.Event"),
    DS_TEST(test_torch_cuda_measures_the_peak_of_each_iteration,
            "documents: torch.cuda.max_memory_allocated, reset_max_memory_cached"),
    DS_TEST(test_torch_cuda_means_the_current_device_where_none_is_named,
            "documents: torch.cuda, device=None"),
    DS_TEST(test_torch_cuda_names_its_statistics, "documents: torch.cuda.memory_stats"),
    DS_TEST(test_torch_cuda_prints_memory_when_a_limit_is_reached,
            "documents: torch.cuda.memory_summary, list_gpu_processes"),
    DS_TEST(test_torch_cuda_seeds_generators_and_sets_their_states,
            "documents: torch.cuda.manual_seed, get_rng_state, set_rng_state"),
    DS_TEST(test_torch_cuda_broadcasts_and_adds_up, "documents: torch.cuda.comm"),
    DS_TEST(test_torch_cuda_scatters_and_gathers, "documents: torch.cuda.comm"),
    DS_TEST(test_torch_cuda_marks_a_moment, "documents: torch.cuda.nvtx.mark"),
};
const size_t tests_documents_count = sizeof tests_documents / sizeof *tests_documents;
