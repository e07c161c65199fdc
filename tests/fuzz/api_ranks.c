/* api_ranks.c - steps of the API fuzzer: process groups of the engine "local".

   A group mostly has one rank, the process itself, with one or two devices, so that operations end
   without other ranks. Time limits are short: an operation whose other side is missing, and a
   group of ranks that never come, end with DS_ERR_TIMEOUT. Collectives with a group are steps of
   api_tensors.c, which take the group from get_ranks. */
#include "api.h"

enum { LIMIT_NS = 20000000 };

/* ---- groups ---- */

void get_ranks(operands *o) {
    o->options.ranks = any_ranks();
    o->options.root = odd() ? any_size() : pick(2);
    if (byte() < 128)
        return;
    for (size_t i = 0; i < COUNT(o->sizes[0]); i++) {
        o->sizes[0][i] = odd() ? any_long() : (int64_t)pick(4);
        o->sizes[1][i] = odd() ? any_long() : (int64_t)pick(4);
    }
    o->more = (ds_ranks_options){ .sizes = odd() ? NULL : o->sizes[0],
                                  .out_sizes = odd() ? o->sizes[1] : NULL,
                                  .timeout_ns = odd() ? number(3) : LIMIT_NS };
    o->more.reserved[pick(4)] = odd() ? number(8) : 0;
    o->how = (ds_ranks_nccl){ .min_ctas = any_int(), .max_ctas = any_int(), .is_hint = odd() };
    o->more.nccl = odd() ? &o->how : NULL;
    o->options.ranks_options = &o->more;
}

static void make_ranks(const ds_ranks_desc *desc) {
    ds_ranks made;
    if (CALL_OUT(ds_ranks_init(desc, MAYBE(made)), made) == DS_OK)
        keep_ranks(made);
}

/* A group of the process alone on each driver, with one and with two devices. */
void furnish_ranks(void) {
    ds_device devices[2] = { ds_cpu(0), ds_cpu(1) };
    ds_ranks_desc desc = {
        .engine = "local", .size = 1, .id = "alone", .devices = devices, .timeout_ns = LIMIT_NS
    };
    ds_ranks made;
    for (desc.device_count = 1; desc.device_count <= 2; desc.device_count++)
        if (ds_ranks_init(&desc, &made) == DS_OK)
            keep_ranks(made);
    desc.device_count = 2;
    devices[0] = ds_cuda(0);
    devices[1] = ds_cuda(1);
    if (ds_backend_is_available(DS_DEVICE_CUDA) && ds_ranks_init(&desc, &made) == DS_OK)
        keep_ranks(made);
}

static void step_ranks_init(void) {
    static const char *const engines[] = { "other", "", NULL, "loca", "local2" };
    static const char *const records[] = { NULL, "", "/no/such/folder/%r", "/dev/null" };
    ds_device devices[2] = { good_device(), good_device() };
    ds_ranks_desc desc = { .engine = odd() ? PICK(engines) : "local",
                           .rank = odd() ? any_int() : 0,
                           .size = odd() ? any_int() : 1,
                           .id = odd() ? any_text() : lasting_text(),
                           .devices = odd() ? NULL : devices,
                           .device_count = pick(3),
                           .flags = odd() ? any_flags() : pick(2),
                           .timeout_ns = LIMIT_NS,
                           .record = odd() ? PICK(records) : "",
                           .label = odd() ? any_text() : lasting_text() };
    if (byte() < 128)
        devices[1] = devices[0];
    if (odd())
        devices[pick(2)] = any_device();
    if (odd())
        desc.mpi_comm = devices;
    desc.reserved[pick(8)] = odd() ? number(8) : 0;
    make_ranks(&desc);
}

static void step_ranks_finalize(void) {
    CALL(ds_ranks_finalize(any_ranks()));
}

static void step_ranks_split(void) {
    ds_ranks made;
    if (CALL_OUT(ds_ranks_split(any_ranks(), odd() ? any_int() : (int)pick(3) - 1,
                                odd() ? any_int() : 0, MAYBE(made)),
                 made) == DS_OK &&
        made.id)
        keep_ranks(made);
}

static void step_ranks_shrink(void) {
    int excluded[4] = { 0, any_int(), any_int(), any_int() };
    ds_ranks made;
    if (CALL_OUT(
            ds_ranks_shrink(any_ranks(), odd() ? NULL : excluded, odd() ? pick(5) : 0, MAYBE(made)),
            made) == DS_OK)
        keep_ranks(made);
    /* alone: nobody joins, so a call with an id reaches its time limit */
    if (CALL_OUT(ds_ranks_grow(any_ranks(), (int)pick(4) - 1, MAYBE(made)), made) == DS_OK)
        die("a group has grown without a new rank");
}

/* Ends the operations of a group, once in 16 times: it is of no use afterwards. */
static void step_ranks_abort(void) {
    if (odd())
        CALL(ds_ranks_abort(any_ranks(), odd() ? NULL : any_text()));
}

static void step_ranks_look(void) {
    ds_ranks ranks = any_ranks();
    ds_ranks_info info;
    ds_ranks_launch launch;
    static const char *const engines[] = { "local", "nccl", "mpi", "", NULL };

    char id[DS_RANKS_ID_SIZE];

    switch (pick(6)) {
    case 0:
        CALL(ds_ranks_get_status(ranks));
        break;
    case 3:
        CALL(ds_ranks_register(ranks, odd() ? NULL : id, any_size()));
        CALL(ds_ranks_deregister(ranks, odd() ? NULL : id));
        break;
    case 4:
        if (CALL(ds_ranks_grow_id(ranks, odd() ? id : NULL, odd() ? sizeof id : pick(8))) ==
                DS_OK &&
            !id[0])
            die("an id has no text");
        break;
    case 1:
        if (CALL_OUT(ds_ranks_get_info(ranks, MAYBE(info)), info) == DS_OK &&
            (info.rank >= info.size || info.own_devices > info.device_count ||
             info.pending > info.operations || strcmp(info.engine, "local") != 0))
            die("rank %d of %d has %llu of %llu operations pending", info.rank, info.size,
                (unsigned long long)info.pending, (unsigned long long)info.operations);
        break;
    case 2:
        if (CALL(ds_ranks_id_create(PICK(engines), odd() ? id : NULL,
                                    odd() ? sizeof id : pick(8))) == DS_OK &&
            !id[0])
            die("an id has no text");
        break;
    default:
        CALL_VOID(ds_ranks_launch_get(&launch));
        if (launch.launcher[0] || launch.rank != -1)
            die("launcher \"%s\" has started the fuzzer", launch.launcher);
    }
}

/* ---- operations between ranks ---- */

/* Both sides of some transfers, of a rank to itself. */
static void step_ranks_exchange(void) {
    operands o;
    ds_ranks_transfer list[8];
    if (!get_operands(&o))
        return;
    get_ranks(&o);
    size_t pairs = 1 + pick(2);
    for (size_t i = 0; i < pairs; i++) {
        size_t from = odd() ? any_size() : pick(2);
        size_t to = odd() ? any_size() : pick(2);
        list[2 * i] = (ds_ranks_transfer){ o.tensors[2 * i], DS_RANKS_SEND, from, to };
        list[2 * i + 1] = (ds_ranks_transfer){ o.tensors[2 * i + 1], DS_RANKS_RECEIVE, to, from };
        if (odd())
            list[2 * i + pick(2)].kind = any_int();
    }
    size_t count = odd() ? 0 : 2 * pairs;
    o.options.stream_count = o.options.streams ? (odd() ? any_size() & 3 : count) : 0;
    put_operands(&o,
                 CALL(ds_ranks_exchange(odd() ? NULL : list, count, odd() ? NULL : &o.options)));
}

/* A send and a receive of a rank to itself, mostly on two streams: on one, the first waits for the
   second until its time limit. */
static void step_ranks_send(void) {
    operands o;
    if (!get_operands(&o))
        return;
    get_ranks(&o);
    size_t peer = odd() ? any_size() : 0;
    const ds_comm_options *options = odd() ? NULL : &o.options;
    o.options.stream_count = 1;
    o.options.streams = o.streams;
    o.streams[0] = good_stream();
    ds_result sent = CALL(ds_ranks_send(odd() ? NULL : o.tensors[0], peer, options));
    o.streams[0] = good_stream();
    ds_result received = CALL(ds_ranks_receive(odd() ? NULL : o.tensors[1], peer, options));
    put_operands(&o, sent < 0 ? sent : received);
}

static void step_ranks_barrier(void) {
    ds_stream streams[4] = { good_stream(), good_stream(), any_stream(), any_stream() };
    ds_ranks_options more = { .timeout_ns = LIMIT_NS };
    ds_comm_options options = { .ranks = any_ranks(),
                                .ranks_options = odd() ? NULL : &more,
                                .streams = odd() ? NULL : streams,
                                .stream_count = pick(4) };
    CALL(ds_ranks_barrier(odd() ? NULL : &options));
}

static const step_fn steps[] = { step_ranks_init,     step_ranks_init,    step_ranks_finalize,
                                 step_ranks_split,    step_ranks_shrink,  step_ranks_abort,
                                 step_ranks_look,     step_ranks_look,    step_ranks_exchange,
                                 step_ranks_exchange, step_ranks_barrier, step_ranks_send };
const step_group ranks_steps = { steps, COUNT(steps) };
