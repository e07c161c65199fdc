/* api_graphs.c - steps of the API fuzzer: graphs, executables, captures. */
#include "api.h"

/* ---- nodes ---- */

static ds_grid any_node_grid;

/* A description whose pointers last. A host function's payload must end also if the call fails. */
static ds_node_desc any_node_desc(void) {
    static const kernel_args none = { NULL, 0 };
    static __thread kernel_args args;
    static __thread ds_value_op values[2];
    static __thread ds_graph bodies[2];
    ds_node_desc desc = { .kind = (ds_node_kind)pick(DS_NODE_CONDITION + 1), .label = any_text() };
    size_t size;
    if (odd())
        desc.kind = (ds_node_kind)any_int();
    if (odd())
        desc.priority = any_int();
    if (odd())
        desc.device = any_device();
    switch ((int)desc.kind) {
    case DS_NODE_KERNEL:
        desc.u.kernel.kernel = sane_kernel();
        args = (kernel_args){ reachable_out(), byte() };
        any_node_grid = (ds_grid){ .grid = { 1 + pick(3), pick(3), 0 },
                                   .block = { 1 + pick(33), 0, 0 },
                                   .cluster = { pick(3), 0, 0 },
                                   .flags = pick(4) };
        desc.u.kernel.items = odd() ? 0 : 1 + byte();
        desc.u.kernel.grid = odd() ? &any_node_grid : NULL;
        desc.u.kernel.args = odd() || !args.out ? NULL : &args;
        desc.u.kernel.args_size = odd() ? small_size() : sizeof none;
        break;
    case DS_NODE_COPY:
        desc.u.copy = (ds_copy_node){ .dst = steady_out(),
                                      .src = steady_in(),
                                      .width = pick(129),
                                      .height = pick(64),
                                      .dst_pitch = 128,
                                      .src_pitch = 256 };
        break;
    case DS_NODE_FILL:
        desc.u.fill.ptr = span_out(&size, 1);
        desc.u.fill.value_size = 1u << pick(4);
        desc.u.fill.width = size / desc.u.fill.value_size;
        desc.u.fill.value = byte();
        break;
    case DS_NODE_HOST:
        desc.u.host = (ds_host_node){ .fn = odd() ? NULL : payload_run };
        if (byte() & 1) {
            desc.u.host.user = new_payload();
            desc.u.host.dtor_fn = payload_end;
        }
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        desc.u.event = any_event();
        break;
    case DS_NODE_CHILD:
        desc.u.child = any_graph();
        break;
    case DS_NODE_VALUES:
        values[0] = (ds_value_op){ input_word(), 7, DS_VALUE_WRITE, 8 };
        values[1] = (ds_value_op){ odd() ? steady_odd() : input_word(), 7, DS_VALUE_WAIT_EQ, 8 };
        desc.u.values.ops = odd() ? NULL : values;
        desc.u.values.count = pick(3);
        break;
    case DS_NODE_CONDITION: /* the word is 7 for ever, so a while has a body too many */
        bodies[0] = any_graph();
        bodies[1] = any_graph();
        desc.u.condition.kind = (ds_condition_kind)pick(4);
        desc.u.condition.word = odd() ? steady_odd() : (const uint32_t *)(void *)input_word();
        desc.u.condition.bodies = odd() ? NULL : bodies;
        desc.u.condition.count = desc.u.condition.kind == DS_CONDITION_WHILE ? 2 : pick(3);
        break;
    default:
        break;
    }
    return desc;
}

/* For a call that is given no description: then nobody ends the payload. */
static void drop_node_desc(const ds_node_desc *desc) {
    if (desc->kind == DS_NODE_HOST && desc->u.host.dtor_fn)
        payload_end(desc->u.host.user);
}

/* Up to 4 nodes, or more than there can be without a list. */
static size_t any_nodes(ds_graph_node *nodes, const ds_graph_node **out) {
    size_t count = pick(5);
    for (size_t i = 0; i < 4; i++)
        nodes[i] = i < count ? any_graph_node() : (ds_graph_node){ 0 };
    *out = nodes;
    if (odd()) {
        *out = NULL;
        count = any_size();
    }
    return count;
}

static void keep_nodes(ds_graph graph) {
    ds_graph_node nodes[8];
    size_t count;
    if (ds_graph_get_nodes(graph, nodes, COUNT(nodes), &count) == DS_OK)
        for (size_t i = 0; i < count && i < COUNT(nodes); i++)
            keep_graph_node(nodes[i]);
}

/* ---- graphs ---- */

static void step_graph_create(void) {
    ds_graph_desc desc = { .device = any_device(), .label = any_text() };
    ds_graph graph;
    ds_result result;
    if (byte() < 160) {
        result = CALL_OUT(ds_graph_create(odd() ? NULL : &desc, MAYBE(graph)), graph);
    } else {
        result = CALL_OUT(ds_graph_clone(any_graph(), MAYBE(graph)), graph);
        if (result == DS_OK)
            keep_nodes(graph);
    }
    if (result == DS_OK)
        keep_graph(graph);
}

static void step_graph_destroy(void) {
    if (byte() & 1)
        CALL(ds_graph_destroy(any_graph()));
    else
        CALL(ds_graph_exec_destroy(any_graph_exec()));
}

static void step_graph_add(void) {
    ds_graph_node nodes[4], node;
    const ds_graph_node *list;
    ds_graph graph = any_graph();
    ds_node_desc desc = any_node_desc();
    size_t count = any_nodes(nodes, &list);
    int none = odd();
    if (none)
        drop_node_desc(&desc);
    if (CALL_OUT(ds_graph_add(graph, none ? NULL : &desc, list, count, MAYBE(node)), node) == DS_OK)
        keep_graph_node(node);
}

static void step_graph_edges(void) {
    ds_graph_node from[4], to[4];
    const ds_graph_node *from_list, *to_list;
    ds_graph graph = any_graph();
    size_t count = any_nodes(from, &from_list), to_count = any_nodes(to, &to_list);
    if (byte() < 192) {
        if (from_list && to_list && count > to_count)
            count = to_count;
        if (count > 4 && (from_list || to_list))
            count = 4;
        CALL(ds_graph_add_edges(graph, from_list, to_list, count));
        return;
    }
    CALL_OUT(
        ds_graph_get_edges(graph, odd() ? NULL : from, odd() ? NULL : to, pick(5), MAYBE(count)),
        count);
}

static void step_graph_read(void) {
    static __thread ds_graph_node nodes[4];
    ds_graph graph = any_graph();
    ds_graph_node node = any_graph_node();
    ds_node_desc desc;
    ds_site site;
    size_t count;
    switch (pick(5)) {
    case 0:
        CALL_OUT(ds_graph_get_nodes(graph, odd() ? NULL : nodes, pick(5), MAYBE(count)), count);
        break;
    case 1:
        if (CALL_OUT(ds_graph_find_in_clone(graph, node, MAYBE(node)), node) == DS_OK)
            keep_graph_node(node);
        break;
    case 2:
        CALL_OUT(ds_graph_get_node(graph, node, MAYBE(desc), odd() ? NULL : &site), desc);
        break;
    case 3:
        CALL(ds_graph_write_dot(graph, any_flags(), odd() ? NULL : write_text, any_writer_user()));
        break;
    default:
        CALL(ds_graph_write_dot_file(graph, any_flags(),
                                     PICK(((const char *[]){ "/dev/null", "/dev/full", "", NULL,
                                                             "/nonexistent/file", "/tmp" }))));
    }
}

static void step_graph_change(void) {
    ds_graph graph = any_graph();
    ds_node_desc desc;
    void *payload;
    if (byte() < 96) {
        payload = new_payload();
        CALL(ds_graph_attach(graph, payload, payload_end));
        return;
    }
    desc = any_node_desc();
    if (odd()) {
        drop_node_desc(&desc);
        CALL(ds_graph_set_node(graph, any_graph_node(), NULL));
        return;
    }
    CALL(ds_graph_set_node(graph, any_graph_node(), &desc));
}

/* ---- executables ---- */

static void step_instantiate(void) {
    ds_graph_exec_desc desc = { .flags = odd()    ? any_flags()
                                         : odd()  ? DS_GRAPH_UPLOAD
                                         : byte() ? 0
                                                  : DS_GRAPH_REPLACE_POINTERS,
                                .upload_stream = any_stream(),
                                .label = any_text() };
    ds_graph_exec exec;
    if (byte() & 1)
        desc.flags |= DS_GRAPH_REPLACE_POINTERS;
    if (CALL_OUT(ds_graph_instantiate(any_graph(), odd() ? NULL : &desc, MAYBE(exec)), exec) ==
        DS_OK)
        keep_graph_exec(exec);
}

static void step_graph_launch(void) {
    if (odd())
        CALL(ds_graph_upload(any_graph_exec(), any_stream()));
    else
        CALL(ds_graph_launch(any_graph_exec(), any_stream()));
}

static void step_exec_update(void) {
    ds_graph_exec exec = any_graph_exec();
    ds_graph_node node = any_graph_node();
    ds_graph_update_info info;
    ds_node_desc desc;
    void *old_pointers[2] = { steady_out(), steady_out() };
    void *new_pointers[2] = { steady_out(), steady_out() };
    size_t count;
    int on;
    switch (pick(5)) {
    case 0:
        CALL(ds_graph_exec_update(exec, any_graph(), odd() ? NULL : &info));
        break;
    case 1:
        desc = any_node_desc();
        CALL(ds_graph_exec_set_node(exec, node, &desc));
        break;
    case 2:
        CALL(ds_graph_exec_set_node_enabled(exec, node, any_int()));
        break;
    case 3:
        CALL_OUT(ds_graph_exec_get_node_enabled(exec, node, MAYBE(on)), on);
        break;
    default:
        CALL_OUT(ds_graph_exec_replace_pointers(exec, old_pointers, odd() ? NULL : new_pointers,
                                                pick(3), MAYBE(count)),
                 count);
    }
}

/* ---- captures ---- */

static ds_capture_mode any_mode(void) {
    return (ds_capture_mode)(odd() ? any_int() : (int)pick(3));
}

static void step_capture_begin(void) {
    ds_graph_node nodes[4];
    const ds_graph_node *list;
    ds_stream stream = any_stream();
    ds_capture_mode mode = any_mode();
    if (byte() < 192) {
        CALL(ds_capture_begin(stream, mode));
        return;
    }
    size_t count = any_nodes(nodes, &list);
    CALL(ds_capture_begin_to_graph(stream, any_graph(), list, count, mode));
}

static void step_capture_end(void) {
    ds_graph graph;
    if (odd()) {
        CALL(ds_capture_end_recapture(any_stream(), any_graph()));
        return;
    }
    if (CALL_OUT(ds_capture_end(any_stream(), MAYBE(graph)), graph) != DS_OK)
        return;
    keep_graph(graph);
    keep_nodes(graph);
}

static void step_capture_query(void) {
    static __thread ds_graph_node nodes[4];
    const ds_graph_node *list;
    ds_stream stream = any_stream();
    ds_capture_status status;
    ds_capture_info info;
    ds_capture_mode mode = any_mode();
    size_t count;
    switch (pick(5)) {
    case 0:
        CALL_OUT(ds_capture_get_status(stream, MAYBE(status)), status);
        break;
    case 1:
        if (CALL_OUT(ds_capture_get_info(stream, MAYBE(info)), info) == DS_OK && info.graph.id)
            keep_graph(info.graph);
        break;
    case 2:
        CALL_OUT(ds_capture_get_dependencies(stream, odd() ? NULL : nodes, pick(5), MAYBE(count)),
                 count);
        break;
    case 3:
        count = any_nodes(nodes, &list);
        CALL(ds_capture_update_dependencies(stream, list, count, odd() ? any_flags() : pick(2)));
        break;
    default:
        CALL(ds_capture_exchange_mode(odd() ? NULL : &mode));
    }
}

/* Runs steps; then it fails, or not. */
static ds_result capture_some(ds_stream stream, void *user) {
    (void)stream;
    (void)user;
    run_some_steps();
    return odd() ? CALL(ds_stream_synchronize((ds_stream){ 0 })) : DS_OK;
}

static void step_capture_function(void) {
    ds_graph graph;
    if (CALL_OUT(ds_capture_function(any_stream(), odd() ? NULL : capture_some, NULL, MAYBE(graph)),
                 graph) != DS_OK)
        return;
    keep_graph(graph);
    keep_nodes(graph);
}

static const step_fn steps[] = { step_graph_create,  step_graph_destroy,   step_graph_add,
                                 step_graph_add,     step_graph_add,       step_graph_edges,
                                 step_graph_read,    step_graph_change,    step_instantiate,
                                 step_instantiate,   step_graph_launch,    step_graph_launch,
                                 step_exec_update,   step_exec_update,     step_capture_begin,
                                 step_capture_begin, step_capture_end,     step_capture_end,
                                 step_capture_query, step_capture_function };
const step_group graph_steps = { steps, COUNT(steps) };
