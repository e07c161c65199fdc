/* api_streams.c - steps of the API fuzzer: streams, events, copies, host functions, kernels. */
#include "api.h"

static void step_stream_create(void) {
    ds_stream_desc desc = { .device = any_device(),
                            .priority = any_int(),
                            .flags = odd() ? any_flags() : byte() & 1u,
                            .label = any_text(),
                            .multiprocessors = pick(4) ? 0
                                               : odd() ? (int)pick(9)
                                                       : any_int() };
    ds_stream stream;
    if (CALL_OUT(ds_stream_create(odd() ? NULL : &desc, MAYBE(stream)), stream) == DS_OK)
        keep_stream(stream);
}

static void step_stream_destroy(void) {
    ds_stream stream = any_stream();
    if (odd())
        CALL(ds_stream_ref(stream));
    else
        CALL(ds_stream_destroy(stream));
}

static void step_stream_default(void) {
    ds_device device = any_device();
    ds_stream stream;
    ds_result result;
    switch (pick(4)) {
    case 0:
        result = CALL_OUT(ds_stream_get_legacy(device, MAYBE(stream)), stream);
        break;
    case 1:
        result = CALL_OUT(ds_stream_get_per_thread(device, MAYBE(stream)), stream);
        break;
    case 2:
        result = CALL_OUT(ds_stream_get_default(device, MAYBE(stream)), stream);
        break;
    default:
        result = CALL_OUT(ds_stream_get_current(device, MAYBE(stream)), stream);
    }
    if (result == DS_OK)
        keep_stream(stream);
}

static void step_stream_query(void) {
    ds_stream stream = any_stream();
    char text[64];
    uint64_t id;
    ds_device device;
    unsigned flags;
    int n, m;
    switch (pick(8)) {
    case 0:
        CALL_OUT(ds_stream_get_id(stream, MAYBE(id)), id);
        break;
    case 1:
        CALL_OUT(ds_stream_get_device(stream, MAYBE(device)), device);
        break;
    case 2:
        CALL_OUT(ds_stream_get_flags(stream, MAYBE(flags)), flags);
        break;
    case 3:
        if (odd())
            CALL_OUT(ds_stream_get_priority(stream, MAYBE(n), &m), n);
        else
            CALL_OUT(ds_stream_get_multiprocessors(stream, MAYBE(n)), n);
        break;
    case 4:
        CALL(ds_stream_get_label(stream, odd() ? NULL : text, small_size() % (sizeof text + 1)));
        break;
    case 5:
        CALL(ds_stream_set_label(stream, any_text()));
        break;
    case 6:
        CALL_VOID((void)ds_stream_equal(stream, any_stream()));
        break;
    default:
        CALL(ds_stream_query(stream));
    }
}

static void step_stream_wait(void) {
    ds_stream stream = any_stream();
    if (odd())
        CALL(ds_stream_synchronize_for(stream, odd() ? UINT64_MAX : number(2)));
    else
        CALL(ds_stream_synchronize(stream));
}

static void release_payload(void *user) {
    payload_end(user);
}

/* Only numbers of default streams: cudart takes any other for a pointer. The native form of a
   stream goes to its new wrapper and is not used otherwise. */
static void step_stream_native(void) {
    ds_stream_native native = { any_int() & ~2, any_device(), NULL };
    ds_stream stream = any_stream(), wrapper;
    void *payload = odd() ? new_payload() : NULL;
    ds_ownership ownership = (ds_ownership)(odd() ? any_int() : 0);
    native.handle = (void *)(uintptr_t)pick(3);
    if (byte() < 96 && CALL_OUT(ds_stream_unwrap(stream, &native), native) == DS_OK)
        ownership = DS_OWN;
    else if (odd())
        CALL_OUT(ds_stream_export(stream, MAYBE(native)), native), native = (ds_stream_native){ 0 };
    ds_result result = CALL_OUT(
        ds_stream_wrap(&native, ownership, payload ? release_payload : NULL, payload, &wrapper),
        wrapper);
    if (result == DS_OK)
        keep_stream(wrapper);
    else if (native.handle > (void *)2) /* nobody else can end it */
        DS_IGNORE(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &wrapper));
}

static void step_stream_current(void) {
    ds_stream stream = any_stream(), previous;
    unsigned flags = odd() ? any_flags() : 0;
    ds_scope scope;
    switch (pick(5)) {
    case 0:
        CALL_OUT(ds_stream_set_current(stream, flags, MAYBE(previous)), previous);
        break;
    case 1:
        CALL(ds_stream_push(stream, flags));
        break;
    case 2:
        CALL(ds_stream_push(stream, any_flags()));
        break;
    case 3:
        CALL(ds_stream_pop());
        break;
    default:
        scope = ds_stream_scope_enter(stream, flags);
        run_some_steps();
        CALL_VOID(ds_stream_scope_leave(&scope));
    }
}

/* ---- events ---- */

static void step_event_create(void) {
    ds_event event;
    ds_result result;
    if (byte() < 50)
        result = CALL_OUT(ds_event_create_on(any_device(), 1u << pick(3), any_text(), MAYBE(event)),
                          event);
    else if (byte() < 200)
        result = CALL_OUT(
            ds_event_create(odd() ? any_flags() : 1u << pick(3), any_text(), MAYBE(event)), event);
    else
        result =
            CALL_OUT(ds_stream_record_event(any_stream(), any_flags() & 3, MAYBE(event)), event);
    if (result == DS_OK)
        keep_event(event);
}

static void step_event_order(void) {
    ds_stream stream = any_stream();
    ds_event event = any_event();
    switch (pick(6)) {
    case 0:
        CALL(ds_event_record(event, stream));
        break;
    case 1:
        CALL(ds_stream_wait_event(stream, event));
        break;
    case 2:
        CALL(ds_stream_wait_stream(stream, any_stream()));
        break;
    case 3:
        CALL(ds_event_record_external(event, stream));
        break;
    case 4:
        CALL(ds_stream_wait_event_external(stream, event));
        break;
    default:
        CALL(ds_event_destroy(event));
    }
}

static void step_event_query(void) {
    ds_event event = any_event();
    ds_device device;
    unsigned flags;
    double ms;
    switch (pick(6)) {
    case 0:
        CALL(ds_event_query(event));
        break;
    case 1:
        CALL(ds_event_synchronize(event));
        break;
    case 2:
        CALL(ds_event_synchronize_for(event, odd() ? UINT64_MAX : number(2)));
        break;
    case 3:
        CALL_OUT(ds_event_get_elapsed_ms(event, any_event(), MAYBE(ms)), ms);
        break;
    case 4:
        CALL_OUT(ds_event_get_device(event, MAYBE(device)), device);
        break;
    default:
        CALL_OUT(ds_event_get_flags(event, MAYBE(flags)), flags);
    }
}

/* ipc.c has other processes; here the handle is this process's own, or invented. */
static void step_event_share(void) {
    ds_ipc_event_handle handle = { { 0 } };
    ds_event event;
    if (!odd())
        CALL_OUT(ds_event_export(any_event(), &handle), handle);
    for (unsigned i = pick(4); i > 0; i--)
        handle.bytes[byte() & 63] = byte();
    if (CALL_OUT(ds_event_import(any_device(), odd() ? NULL : &handle, MAYBE(event)), event) ==
        DS_OK)
        keep_event(event);
}

/* ---- copies and fills ---- */

static void step_copy(void) {
    size_t out_size, in_size;
    void *out = span_out(&out_size, 0);
    void *in = span_in(&in_size);
    size_t size = out_size < in_size && in_size <= STEADY ? out_size : in_size;
    ds_stream stream = any_stream();
    ds_device out_device = any_device(), in_device = any_device();
    switch (pick(5)) {
    case 0:
        CALL(ds_copy(out, in, size, stream));
        break;
    case 3: {
        void *dst[2] = { out, out };
        const void *src[2] = { in, in };
        size_t sizes[2] = { size, odd() ? 0 : size / 2 };
        CALL(ds_copy_batch(dst, src, sizes, odd() ? 1 : 2, stream));
        break;
    }
    case 1:
        CALL(ds_copy_sync(out, in, size));
        break;
    case 2:
        CALL(ds_copy_with(out, in, size, odd() ? any_flags() : byte() & 1u, stream));
        break;
    default:
        if (odd() || ds_pointer_get_device(out, &out_device) < 0 ||
            ds_pointer_get_device(in, &in_device) < 0)
            out_device = any_device();
        CALL(ds_copy_peer(out, out_device, in, in_device, size, stream));
    }
}

/* Rows that fit; or one number of the shape is one that no memory holds. */
static void step_copy_2d(void) {
    size_t width = pick(65), height = pick(65);
    size_t out_pitch = width + pick(128), in_pitch = width + pick(128);
    char *out = steady_out(), *in = steady_in();
    switch (odd() ? pick(4) : 4) {
    case 0:
        out_pitch = PICK(((const size_t[]){ 0, 1, 64, SIZE_MAX, SIZE_MAX / 2 + 1 }));
        in_pitch = out_pitch;
        break;
    case 1:
        width = SIZE_MAX - pick(3);
        break;
    case 2:
        height = SIZE_MAX - pick(3);
        break;
    default:
        break;
    }
    if (out_pitch > 256 || in_pitch > 256 || width > 256 || height > 256)
        in = out = reachable_out();
    if (in == out && out)
        in += STEADY / 2;
    CALL(ds_copy_2d(out, out_pitch, in, in_pitch, width, height, any_stream()));
}

static void step_fill(void) {
    size_t size, value_size = PICK(((const size_t[]){ 1, 2, 4, 1, 2, 4, 0, 3, 8, SIZE_MAX }));
    void *out = span_out(&size, 1);
    size_t count = value_size == 1 || value_size > 8 ? size : size / (value_size ? value_size : 1);
    ds_stream stream = any_stream();
    if (byte() < 128) {
        if (byte() & 1)
            CALL(ds_fill_sync(out, (uint32_t)byte(), value_size, count));
        else
            CALL(ds_fill(out, (uint32_t)byte(), value_size, count, stream));
        return;
    }
    size_t width = pick(33), height = pick(33), pitch = pick(65) * 4;
    out = steady_out();
    CALL(ds_fill_2d(out, pitch, 0x01020304, value_size, width, height, stream));
}

/* ---- values in memory ---- */

/* Waits for what holds: a word that is only ever set to 7, before each wait. Other waits are for
   memory that is refused. */
static void step_values(void) {
    ds_stream stream = any_stream();
    uint64_t *word = input_word();
    ds_value_kind kind = (ds_value_kind)pick(6);
    ds_value_op ops[2] = { { word, 7, DS_VALUE_WRITE, 8 }, { word, 7, DS_VALUE_WAIT_EQ, 8 } };
    switch (pick(7)) {
    case 0:
        CALL(ds_stream_batch_values(stream, NULL, pick(300)));
        break;
    case 1:
        CALL(ds_stream_wait_value32(stream, odd() ? NULL : steady_odd(), (uint32_t)byte(), kind));
        break;
    case 2:
        CALL(ds_stream_wait_value64(stream, odd() ? NULL : steady_odd(), (uint64_t)byte(), kind));
        break;
    case 3:
        CALL(
            ds_stream_write_value32(stream, odd() ? steady_out() : steady_odd(), (uint32_t)byte()));
        break;
    case 4:
        CALL(
            ds_stream_write_value64(stream, odd() ? steady_out() : steady_odd(), (uint64_t)byte()));
        break;
    default:
        ops[1].size = PICK(((const unsigned[]){ 8, 8, 8, 3, 0 }));
        ops[1].kind = odd() ? kind : DS_VALUE_WAIT_EQ;
        if (ops[1].kind == DS_VALUE_WAIT_NOR || ops[1].kind == DS_VALUE_WRITE)
            ops[1].value = ops[1].kind == DS_VALUE_WRITE ? 7 : 0;
        CALL(ds_stream_batch_values(stream, ops, pick(3)));
    }
}

/* ---- host functions ---- */

/* What is not "Callable anywhere" is refused inside of a host function. */
static void refused_inside(void *user) {
    static const ds_stream none = { 0 };
    void *out = &out;
    payload_run(user);
    if (CALL(ds_stream_synchronize(none)) != DS_ERR_NOT_PERMITTED)
        die("a host function may synchronize");
    if (CALL(ds_mem_alloc(64, none, &out)) != DS_ERR_NOT_PERMITTED || out)
        die("a host function may allocate");
    if (CALL(ds_graph_launch((ds_graph_exec){ 0 }, none)) != DS_ERR_NOT_PERMITTED)
        die("a host function may launch");
    if (CALL(ds_mem_free(&out)) != DS_ERR_INVALID_VALUE)
        die("a host function may free what is not memory of devstream");
    if (CALL(ds_event_destroy((ds_event){ 0 })) != DS_ERR_INVALID_HANDLE)
        die("a host function may destroy what is no event");
}

static void callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    if (status > 0)
        die("the status of a callback is positive");
    refused_inside(user);
}

static int closure_run(void *copy) {
    void *payload;
    memcpy(&payload, copy, sizeof payload);
    refused_inside(payload);
    return 0;
}

static void closure_end(void *copy) {
    void *payload;
    memcpy(&payload, copy, sizeof payload);
    payload_end(payload);
}

static int closure_nothing(void *payload) {
    (void)payload;
    return 0;
}

static void step_host_func(void) {
    ds_stream stream = any_stream();
    void *payload = odd() ? NULL : new_payload();
    ds_host_fn end = payload ? payload_end : NULL;
    switch (pick(5)) {
    case 3: /* a copy of the pointer, which the destructor gets as well */
        if (payload)
            CALL(ds_stream_launch_closure(stream, odd() ? NULL : closure_run, &payload,
                                          sizeof payload, closure_end));
        else
            CALL(ds_stream_launch_closure(stream, closure_nothing, NULL, (size_t)byte() * 2, NULL));
        break;
    case 4:
        CALL(ds_stream_launch_closure(stream, odd() ? NULL : closure_nothing, payload, 0, end));
        break;
    case 0:
        CALL(ds_stream_launch_host_func(stream, odd() ? NULL : refused_inside, payload, end));
        break;
    case 1:
        CALL(ds_stream_add_callback(stream, odd() ? NULL : callback, payload, end));
        break;
    default:
        CALL(ds_stream_launch_host_func(stream, payload_run, payload, end));
    }
}

/* ---- kernels ---- */

static int run_nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

/* Fills extents of which many are correct for a pointer parameter. */
static void fill_extents(ds_extent *extents, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned kind = pick(5);
        extents[i] = (ds_extent){ .kind = (ds_extent_kind)kind,
                                  .atomic = odd() ? (int)pick(3) : 0,
                                  .bytes = kind ? any_size() : 0,
                                  .stride = kind == DS_EXTENT_ITEMS ? any_size() : pick(8) / 7,
                                  .count_param = kind == DS_EXTENT_COUNT ? pick(6) : 0 };
    }
}

static void state_extents(const void *args, size_t *out_bytes) {
    (void)args;
    (void)out_bytes;
}

/* No CUDA form, or one that no driver takes, or a function without parameters. */
static void step_kernel_create(void) {
    static const char *const images[] = { NULL, "", "garbage", ".version 6.0\n.target sm_50\n" };
    static const char *const pieces[] = { ".version 5.0\n.target sm_60\n.address_",
                                          "size 64\n.visible .entry none() { ret; }\n", NULL };
    ds_param params[4];
    ds_extent extents[COUNT(params)];
    ds_kernel_desc desc = { .name = any_text(),
                            .cpu_fn = odd() ? NULL : run_nothing,
                            .args_size = PICK(((const size_t[]){ 0, 8, 16, 16, 4096, 4097 })),
                            .params = odd() ? NULL : params,
                            .param_count = odd() ? any_size() : pick(5),
                            .grain = any_size() };
    ds_kernel kernel;
    for (size_t i = 0; i < COUNT(params); i++)
        params[i] =
            (ds_param){ (ds_param_kind)(pick(7) - (odd() ? 1u : 0u)),
                        odd() ? any_size() : pick(4) * 4, odd() ? any_size() : 4u << pick(2) };
    if (desc.param_count > COUNT(params) && desc.param_count <= DS_KERNEL_MAX_PARAMS)
        desc.param_count = COUNT(params);
    fill_extents(extents, COUNT(extents));
    desc.extents = odd() ? extents : NULL;
    desc.extents_fn = pick(4) == 0 ? state_extents : NULL;
    if (byte() < 64)
        desc.cuda = (ds_kernel_cuda){ .image = PICK(images),
                                      .image_pieces = odd() ? pieces : NULL,
                                      .entry = odd() ? "none" : any_text(),
                                      .block = any_flags(),
                                      .shared_bytes = any_flags(),
                                      .items_per_block = any_flags(),
                                      .blocks_per_multiprocessor = any_flags() };
    if (CALL_OUT(ds_kernel_create(odd() ? NULL : &desc, MAYBE(kernel)), kernel) == DS_OK)
        keep_kernel(kernel);
}

static void step_kernel(void) {
    if (odd())
        CALL(ds_kernel_destroy(any_kernel()));
    else
        CALL(ds_kernel_load(any_kernel(), any_device()));
}

static void step_launch(void) {
    static const size_t items[] = { 0, 1, 2, 31, 32, 33, 100, 1000, SIZE_MAX };
    ds_kernel kernel = sane_kernel();
    ds_stream stream = any_stream();
    kernel_args args = { reachable_out(), byte() };
    size_t size = odd() ? small_size() : sizeof args;
    if (!args.out)
        return;
    if (byte() < 192) {
        CALL(ds_kernel_launch(kernel, PICK(items), odd() ? NULL : &args, size, stream));
        return;
    }
    ds_grid grid = { .grid = { pick(5), pick(4), pick(4) },
                     .block = { pick(9), pick(4), pick(4) },
                     .cluster = { pick(3), pick(3), 0 },
                     .flags = pick(5) };
    unsigned huge = any_flags();
    if (odd())
        grid.block[byte() % 3] = 1025 + huge;
    if (odd())
        grid.grid[1 + (byte() & 1)] = 65536 + huge;
    if (odd())
        grid.shared_bytes = huge << 20;
    CALL(ds_kernel_launch_grid(kernel, odd() ? NULL : &grid, &args, size, stream));
}

/* A kernel of the macros. */
DS_KERNEL_2D(fuzz_add, x, y, nx, ny, DS_VALUE(uint32_t, what), DS_READ_WRITE(uint32_t, out, 1)) {
    if (x == 0 && y == 0)
        out[0] += what;
}

static void step_defined_kernel(void) {
    static const size_t sizes[] = { 0, 1, 2, 33, 100, SIZE_MAX / 2, SIZE_MAX };
    ds_stream stream = any_stream();
    uint32_t *out = reachable_out();
    if (!out)
        return;
    size_t nx = PICK(sizes);
    size_t ny = PICK(sizes);
    if (nx > 100 && ny < 3)
        nx = 100; /* the items do not exceed size_t, so all would run */
    if (ny > 100 && nx < 3)
        ny = 100;
    struct fuzz_add_args args = fuzz_add_pack(nx, ny, byte(), out);
    CALL(ds_kernel_def_launch(odd() ? NULL : &fuzz_add_def, stream, odd() ? NULL : &args.dsk__dims,
                              odd() ? NULL : &args));
    ds_kernel kernel;
    if (CALL_OUT(ds_kernel_def_get_kernel(odd() ? NULL : &fuzz_add_def, MAYBE(kernel)), kernel) ==
        DS_OK)
        CALL(ds_kernel_load(kernel, any_device()));
}

static const step_fn steps[] = { step_stream_create,  step_stream_create,  step_stream_destroy,
                                 step_stream_default, step_stream_query,   step_stream_wait,
                                 step_stream_native,  step_stream_current, step_event_create,
                                 step_event_create,   step_event_order,    step_event_order,
                                 step_event_order,    step_event_query,    step_event_share,
                                 step_copy,           step_copy,           step_copy_2d,
                                 step_fill,           step_values,         step_host_func,
                                 step_kernel_create,  step_kernel,         step_launch,
                                 step_launch,         step_defined_kernel };
const step_group stream_steps = { steps, COUNT(steps) };
