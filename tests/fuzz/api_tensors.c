/* api_tensors.c - steps of the API fuzzer: tensors, views, DLPack, collectives, topologies, plans.

   Tensors of the library are in a table. One that a graph uses stays until ds_shutdown. Described
   tensors, with whatever numbers, go only to functions that do not touch their memory. */
#include "api.h"

static entry table[16];
static unsigned next_entry;

void forget_tensors(void) {
    memset(table, 0, sizeof table);
    next_entry = 0;
}

/* Of several threads only the first one has tensors, since freeing one while another thread uses it
   is not allowed. */
static int have_tensors(void) {
    return alone();
}

static void keep_tensor(ds_tensor *tensor, int captured) {
    entry *to = &table[next_entry++ & 15];
    if (captured) /* it is the graph's */
        return;
    *to = (entry){ tensor, 0 };
}

static entry *any_entry(void) {
    unsigned how = byte(), n = next_entry < 16 ? next_entry : 16;
    return &table[n ? (how & 16 ? next_entry - 1 - (how & 1) : how % n) & 15 : 0];
}

static ds_dtype any_dtype(void) {
    const ds_dtype good[] = { ds_float32(), ds_float64(), ds_float16(),   ds_int32(),
                              ds_int64(),   ds_uint8(),   ds_complex64(), ds_bool() };
    if (odd())
        return (ds_dtype){ byte(), byte(), (uint16_t)number(2) };
    return PICK(good);
}

/* Few small dimensions; or whatever. Returns ndim. */
static int any_shape(int64_t *shape) {
    int ndim = (int)pick(4);
    for (int i = 0; i < DS_TENSOR_MAX_DIMS; i++)
        shape[i] = i < ndim ? (int64_t)pick(9) : 1;
    if (odd())
        shape[pick(4)] = any_long();
    return odd() ? any_int() : ndim;
}

/* A description that may be wrong; its memory must not be touched. */
static ds_tensor described(int64_t *shape, int64_t *strides) {
    ds_tensor tensor = { .data = any_pointer(BLOCK), .device = any_device(), .dtype = any_dtype() };
    tensor.ndim = any_shape(shape);
    tensor.shape = odd() ? NULL : shape;
    if (byte() < 96) {
        for (int i = 0; i < DS_TENSOR_MAX_DIMS; i++)
            strides[i] = i < 4 ? any_long() : 1;
        tensor.strides = strides;
    }
    if (odd())
        tensor.byte_offset = any_size();
    return tensor;
}

/* ---- tensors ---- */

static void step_tensor_alloc(void) {
    int64_t shape[DS_TENSOR_MAX_DIMS], strides[DS_TENSOR_MAX_DIMS];
    ds_stream stream = good_stream();
    int captured = may_capture(stream);
    ds_dtype dtype = any_dtype();
    ds_tensor *made;
    int ndim = any_shape(shape);
    ds_tensor like;
    ds_result result;
    switch (pick(3)) {
    case 0:
        result =
            CALL_OUT(ds_tensor_alloc(dtype, ndim, odd() ? NULL : shape, stream, MAYBE(made)), made);
        break;
    case 1:
        result = CALL_OUT(ds_tensor_alloc_pinned(dtype, ndim, shape, MAYBE(made)), made);
        break;
    default:
        like = described(shape, strides);
        result = CALL_OUT(ds_tensor_alloc_like(odd() ? NULL : &like, stream, MAYBE(made)), made);
    }
    if (result == DS_OK && have_tensors())
        keep_tensor(made, captured);
}

static void step_tensor_free(void) {
    entry *at = any_entry();
    ds_tensor other = { 0 };
    if (!have_tensors() || at->kept)
        return;
    if (odd()) {
        CALL(ds_tensor_free(&other));
        return;
    }
    if (!quiesce())
        return;
    CALL(ds_tensor_free(at->tensor));
    at->tensor = NULL;
}

static void step_tensor_look(void) {
    int64_t shape[DS_TENSOR_MAX_DIMS], strides[DS_TENSOR_MAX_DIMS];
    ds_tensor tensor = described(shape, strides), *made;
    unsigned flags;
    void *payload;
    switch (pick(4)) {
    case 0:
        CALL(ds_tensor_check(odd() ? NULL : &tensor));
        break;
    case 1:
        if (CALL(ds_tensor_check(&tensor)) == DS_OK) {
            CALL_VOID((void)ds_tensor_get_count(&tensor));
            CALL_VOID((void)ds_tensor_get_size(&tensor));
            CALL_VOID((void)ds_tensor_is_contiguous(&tensor));
            CALL_VOID((void)ds_tensor_is_dense(&tensor));
        }
        break;
    case 2:
        CALL_OUT(ds_tensor_get_flags(odd() ? NULL : &tensor, MAYBE(flags)), flags);
        break;
    default:
        payload = new_payload();
        if (CALL_OUT(ds_tensor_wrap(&tensor, byte() & 1, payload_end, payload, MAYBE(made)),
                     made) == DS_OK)
            CALL(ds_tensor_free(made));
    }
}

static int small_int(void) {
    return odd() ? any_int() : (int)pick(4);
}

/* Views of the library's tensors show memory that is there. */
static void step_view(void) {
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int order[4] = { 1, 0, 2, 3 };
    ds_tensor *made, *of;
    ds_result result;
    int dim = (int)pick(6) - 2, ndim = any_shape(shape);
    if (odd())
        order[pick(4)] = any_int();
    if (!have_tensors())
        return;
    of = any_entry()->tensor;
    if (of && of->ndim > 4)
        return;
    switch (pick(8)) {
    case 0:
        result = CALL_OUT(ds_tensor_view(of, ndim, odd() ? NULL : shape, MAYBE(made)), made);
        break;
    case 1:
        result = CALL_OUT(ds_tensor_narrow(of, dim, small_int(), small_int(), MAYBE(made)), made);
        break;
    case 2:
        result = CALL_OUT(ds_tensor_slice(of, dim, any_long(), any_long(), any_long(), MAYBE(made)),
                          made);
        break;
    case 3:
        result = CALL_OUT(ds_tensor_select(of, dim, small_int(), MAYBE(made)), made);
        break;
    case 4:
        result = CALL_OUT(ds_tensor_permute(of, odd() ? NULL : order, MAYBE(made)), made);
        break;
    case 5:
        result = CALL_OUT(ds_tensor_transpose(of, dim, small_int(), MAYBE(made)), made);
        break;
    case 6:
        result = CALL_OUT(ds_tensor_as_real(of, MAYBE(made)), made);
        break;
    default:
        result = CALL_OUT(ds_tensor_as_host(of, MAYBE(made)), made);
    }
    if (result == DS_OK)
        keep_tensor(made, 0);
}

/* ---- DLPack ---- */

static void managed_end(ds_managed_tensor *self) {
    payload_end(self->manager_ctx);
}

static void managed_end_versioned(ds_managed_tensor_versioned *self) {
    payload_end(self->manager_ctx);
}

static void step_export(void) {
    ds_managed_tensor *managed = NULL;
    ds_managed_tensor_versioned *versioned = NULL;
    ds_tensor *of = have_tensors() ? any_entry()->tensor : NULL, *made;
    if (byte() & 1) {
        if (CALL_OUT(ds_tensor_export(of, MAYBE(managed)), managed) != DS_OK)
            return;
        if (odd() && CALL_OUT(ds_tensor_import(managed, &made), made) == DS_OK)
            CALL(ds_tensor_free(made));
        else
            managed->deleter(managed);
        return;
    }
    if (CALL_OUT(ds_tensor_export_versioned(of, MAYBE(versioned)), versioned) != DS_OK)
        return;
    if (odd() && CALL_OUT(ds_tensor_import_versioned(versioned, &made), made) == DS_OK)
        CALL(ds_tensor_free(made));
    else
        versioned->deleter(versioned);
}

/* What others made, with whatever numbers; nothing touches its memory. */
static void step_import(void) {
    int64_t shape[DS_TENSOR_MAX_DIMS], strides[DS_TENSOR_MAX_DIMS];
    ds_managed_tensor managed = { described(shape, strides), new_payload(), managed_end };
    ds_managed_tensor_versioned versioned = { .version = { odd() ? 2 : 1, byte() },
                                              .manager_ctx = managed.manager_ctx,
                                              .deleter = managed_end_versioned,
                                              .flags = any_flags(),
                                              .tensor = managed.tensor };
    ds_tensor *made;
    ds_result result = byte() & 1
                           ? CALL_OUT(ds_tensor_import(&managed, MAYBE(made)), made)
                           : CALL_OUT(ds_tensor_import_versioned(&versioned, MAYBE(made)), made);
    if (result == DS_OK)
        CALL(ds_tensor_free(made));
    else
        payload_end(managed.manager_ctx);
}

static const step_fn steps[] = { step_tensor_alloc, step_tensor_alloc, step_tensor_alloc,
                                 step_tensor_free,  step_tensor_look,  step_view,
                                 step_view,         step_export,       step_import };
const step_group tensor_steps = { steps, COUNT(steps) };

/* ---- topologies and plans ---- */

static ds_topology *topology_of_devices, *topology_of_text;
static const ds_plan *plan; /* of one of them */
static const ds_topology *plan_topology;

void forget_topologies(void) {
    ds_topology_destroy(topology_of_devices);
    ds_topology_destroy(topology_of_text);
    topology_of_devices = topology_of_text = NULL;
    plan = NULL;
}

static const ds_topology *any_topology(void) {
    return odd() ? NULL : byte() & 1 ? topology_of_devices : topology_of_text;
}

static void replace_topology(ds_topology **old, ds_topology *with) {
    if (plan_topology == *old)
        plan = NULL;
    CALL_VOID(ds_topology_destroy(*old));
    *old = with;
}

static const char *topology_text(void) {
    static const char *const texts[] = {
        "device gpu0..1\nsocket s\nlink gpu0 gpu1 nvlink\nlink gpu0..1 s pcie 20GB/s\n",
        "device gpu0..2\nswitch w\nlink gpu0..2 w nvswitch\npeer gpu0 gpu1 off\nengines 2\n",
        "device a b\nlink a b nvlink\n"
    };
    return byte() & 1 ? PICK(texts) : any_text();
}

static void step_topology_make(void) {
    ds_device devices[2] = { good_device(), any_device() };
    ds_topology *made;
    if (!alone())
        return;
    switch (pick(3)) {
    case 0:
        if (CALL_OUT(ds_topology_create_of_text(topology_text(), MAYBE(made)), made) == DS_OK)
            replace_topology(&topology_of_text, made);
        break;
    case 1:
        if (CALL_OUT(ds_topology_create_of_file(any_text(), MAYBE(made)), made) == DS_OK)
            replace_topology(&topology_of_text, made);
        break;
    default:
        if (byte() < 192) {
            devices[0].index = 0;
            devices[1] = devices[0];
            devices[1].index = 1;
        }
        if (CALL_OUT(ds_topology_create_of_devices(odd() ? NULL : devices,
                                                   odd() ? any_size() % 3 : 2u,
                                                   odd() ? any_flags() & ~1u : 0, MAYBE(made)),
                     made) == DS_OK)
            replace_topology(&topology_of_devices, made);
    }
}

static void step_topology(void) {
    const ds_topology *topology = any_topology();
    ds_cpu_fabric fabric;
    if (!alone())
        return;
    if (odd())
        CALL_OUT(ds_topology_get_fabric(topology, MAYBE(fabric)), fabric);
    else
        CALL(ds_topology_write(topology, (ds_topology_format)(odd() ? any_int() : (int)pick(3)),
                               odd() ? NULL : write_text, any_writer_user()));
    CALL_VOID((void)ds_topology_get_size(topology));
}

static void step_plan(void) {
    static const char *const algorithms[] = { NULL,      "direct", "binomial", "chain", "spread",
                                              "islands", "trees",  "staged",   "other", "" };
    const ds_topology *topology = any_topology();
    ds_plan_desc desc = { .what = (ds_collective)(odd() ? any_int() : (int)pick(8)),
                          .bytes = odd() ? any_size() : number(3),
                          .root = odd() ? any_int() : 0,
                          .item = odd() ? any_size() : 4,
                          .order = (ds_plan_order)(odd() ? any_int() : (int)pick(3)),
                          .algorithm = odd() ? PICK(algorithms) : NULL,
                          .pieces = odd() ? any_size() : pick(5) };
    const ds_plan *made;
    if (!alone())
        return;
    if (byte() < 64) {
        CALL(ds_plan_write(topology, plan_topology == topology ? plan : NULL,
                           odd() ? NULL : write_text, any_writer_user()));
        return;
    }
    if (CALL_OUT(ds_plan_get(topology, odd() ? NULL : &desc, MAYBE(made)), made) != DS_OK)
        return;
    plan = made;
    plan_topology = topology;
}

/* Eight of one shape on two devices, and a topology. */
void furnish_tensors(void) {
    const int64_t shape[] = { 4, 2 };
    ds_tensor *made;
    ds_stream streams[2] = { any_stream(), any_stream() };
    for (unsigned i = 0; i < 8; i++)
        if (ds_tensor_alloc(ds_float32(), 2, shape, streams[i & 1], &made) == DS_OK)
            keep_tensor(made, 0);
    DS_IGNORE(ds_topology_create_of_text("device a b\nlink a b nvlink\n", &topology_of_text));
}

/* ---- collectives ---- */

static int captures_now(const operands *o) {
    int captures = o->options.stream.id && may_capture(o->options.stream);
    for (int i = 0; i < 4; i++) {
        ds_stream stream;
        ds_device device = i < 2 ? ds_cpu(i) : ds_cuda(i - 2);
        if (ds_stream_get_current(device, &stream) == DS_OK)
            captures |= may_capture(stream);
        if (o->options.streams && o->streams[i].id)
            captures |= may_capture(o->streams[i]);
    }
    return captures;
}

/* With streams of the call's own other work on the tensors' streams is not ordered: freeing one
   waits for everything. What may be captured is kept. */
int get_operands(operands *o) {
    memset(o, 0, sizeof *o);
    o->count = 1 + pick(3);
    int in_order = byte() < 144;
    for (size_t i = 0; i < COUNT(o->entries); i++) {
        o->entries[i] = in_order ? &table[i] : any_entry();
        o->tensors[i] = o->entries[i]->tensor;
    }
    for (size_t i = 0; i < COUNT(o->devices); i++)
        o->devices[i] = any_device();
    if (byte() < 96) {
        for (size_t i = 0; i < COUNT(o->streams); i++)
            o->streams[i] = odd() ? any_stream() : (ds_stream){ 0 };
        o->options.streams = o->streams;
        o->options.stream_count = o->count;
        o->options.stream = odd() ? any_stream() : (ds_stream){ 0 };
    }
    o->options.flags = odd() ? any_flags() : byte() & 3u;
    o->options.topology = byte() < 96 ? topology_of_devices : NULL;
    o->options.engine = byte() < 32 ? "nccl" : NULL;
    if (o->options.topology && odd())
        o->options.plan = plan_topology == o->options.topology ? plan : NULL;
    if (byte() < 48)
        get_ranks(o);
    if (odd())
        o->count = 0;
    o->captures = captures_now(o);
    return have_tensors();
}

/* The list of results is zeroed before; a failed call leaves it so. */
static void check_results(const operands *o, ds_result result) {
    for (size_t i = 0; i < COUNT(o->made) && result < 0; i++)
        if (o->made[i])
            die("a collective is %s, and result %zu is not NULL", ds_result_get_name(result), i);
}

/* What may be part of a graph now is kept. */
void put_operands(operands *o, ds_result result) {
    o->captures |= captures_now(o);
    check_results(o, result);
    for (size_t i = 0; i < COUNT(o->entries); i++)
        o->entries[i]->kept |= o->captures;
    for (size_t i = 0; i < COUNT(o->made); i++)
        if (o->made[i])
            keep_tensor(o->made[i], o->captures);
}

static void step_comm_spread(void) {
    operands o;
    ds_result result;
    int64_t sizes[4] = { pick(5), pick(5), pick(5), any_long() };
    size_t out_count;
    if (!get_operands(&o))
        return;
    const ds_comm_options *options = odd() ? NULL : &o.options;
    int dim = (int)pick(4) - 1;
    switch (pick(5)) {
    case 0:
        result = CALL(ds_comm_broadcast(o.tensors[0], o.devices, o.count, options, o.made));
        break;
    case 1:
        result = CALL(ds_comm_broadcast_into(o.tensors[0], o.tensors + 1, o.count, options));
        break;
    case 2:
        result = CALL(ds_comm_broadcast_coalesced(o.tensors, o.count, o.devices, 2, small_size(),
                                                  options, o.made));
        break;
    case 3:
        result = CALL(ds_comm_scatter(o.tensors[0], o.devices, o.count, odd() ? sizes : NULL, dim,
                                      options, o.made, odd() ? NULL : &out_count));
        break;
    default:
        result = CALL(ds_comm_scatter_into(o.tensors[0], o.tensors + 1, o.count, dim, options));
    }
    put_operands(&o, result);
}

static void step_comm_collect(void) {
    operands o;
    ds_result result;
    if (!get_operands(&o))
        return;
    const ds_comm_options *options = odd() ? NULL : &o.options;
    ds_reduce_op op = (ds_reduce_op)(odd() ? any_int() : (int)pick(5));
    int dim = (int)pick(4) - 1;
    ds_tensor **made = &o.made[0];
    switch (pick(7)) {
    case 0:
        result = CALL(ds_comm_gather(o.tensors, o.count, dim, o.devices[0], options, made));
        break;
    case 1:
        result = CALL(ds_comm_gather_into(o.tensors, o.count, dim, o.tensors[4], options));
        break;
    case 2:
        result = CALL(ds_comm_reduce(o.tensors, o.count, op, o.devices[0], options, made));
        break;
    case 3:
        result = CALL(ds_comm_reduce_into(o.tensors, o.count, op, o.tensors[4], options));
        break;
    case 4:
        result = CALL(ds_comm_reduce_add(o.tensors, o.count, o.devices[0], options, made));
        break;
    case 5:
        result = CALL(ds_comm_reduce_add_coalesced(o.tensors, 2, o.count, o.devices[0],
                                                   small_size(), options, o.made));
        break;
    default:
        result = CALL(ds_comm_barrier(odd() ? NULL : o.streams, o.count));
    }
    put_operands(&o, result);
}

static void step_comm_all(void) {
    operands o;
    ds_result result;
    if (!get_operands(&o))
        return;
    const ds_comm_options *options = odd() ? NULL : &o.options;
    const ds_tensor *const *outs = byte() & 1 ? o.tensors : o.tensors + 4;
    ds_reduce_op op = (ds_reduce_op)(odd() ? any_int() : (int)pick(5));
    switch (pick(4)) {
    case 0:
        result = CALL(ds_comm_all_reduce(o.tensors, outs, o.count, op, options));
        break;
    case 1:
        result = CALL(ds_comm_all_gather(o.tensors, outs, o.count, options));
        break;
    case 2:
        result = CALL(ds_comm_reduce_scatter(o.tensors, outs, o.count, op, options));
        break;
    default:
        result = CALL(ds_comm_all_to_all(o.tensors, outs, o.count, options));
    }
    put_operands(&o, result);
}

static const step_fn collective_steps[] = { step_topology_make, step_topology,
                                            step_plan,          step_comm_spread,
                                            step_comm_collect,  step_comm_collect,
                                            step_comm_all,      step_comm_all };
const step_group comm_steps = { collective_steps, COUNT(collective_steps) };
