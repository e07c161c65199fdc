/* corpus_graphs.h - captures, graphs and their launches. */
#ifndef CORPUS_GRAPHS_H
#define CORPUS_GRAPHS_H
#include "corpus.h"

/* Captures a fill of p and returns an executable. Memory that is gone is reported at this call. */
static ds_graph_exec captured_fill(void *p) {
    ds_stream s = stream("capture");
    must(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    FIRST(ds_fill(p, 1, 1, SIZE, s));
    return instantiate(end_capture(s));
}

/* What was captured has not run: only launches access memory. */
static void capture_is_no_access(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);

    if (correct) {
        must(ds_copy(q, p, SIZE, b));
        return;
    }
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void work_after_a_launch(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);

    FIRST(ds_graph_launch(e, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void launch_after_work(int correct) {
    ds_stream a = stream("reader");
    ds_stream b = stream("launch");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);

    FIRST(ds_copy(q, p, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_graph_launch(e, b));
}

/* The second launch accesses the memory again. */
static void second_launch(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);

    must(ds_graph_launch(e, a));
    must(ds_stream_wait_stream(b, a));
    FIRST(ds_copy(q, p, SIZE, b));
    if (correct)
        must(ds_stream_wait_stream(a, b));
    SECOND(ds_graph_launch(e, a));
}

/* Launches of one executable run one after another, launches of two do not. */
static void launches_on_two_streams(int correct) {
    ds_stream a = stream("first launch");
    ds_stream b = stream("second launch");
    char *p = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);
    ds_graph_exec other = captured_fill(p);

    FIRST(ds_graph_launch(e, a));
    SECOND(ds_graph_launch(correct ? e : other, b));
}

/* ---- order within a graph ---- */

static void fork_without_an_order(int correct) {
    ds_stream a = stream("origin");
    ds_stream b = stream("fork");
    char *p = device_memory(SIZE);

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_wait_stream(b, a));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_fill(p, 2, 1, SIZE, b));
    must(ds_stream_wait_stream(a, b));
    must(ds_graph_launch(instantiate(end_capture(a)), a));
}

/* The join comes too late for the reader. */
static void join_too_late(int correct) {
    ds_stream a = stream("origin");
    ds_stream b = stream("fork");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_wait_stream(b, a));
    FIRST(LAUNCH(writing_kernel(), p, SIZE, b));
    if (correct)
        must(ds_stream_wait_stream(a, b));
    SECOND(ds_copy(q, p, SIZE, a));
    must(ds_stream_wait_stream(a, b));
    must(ds_graph_launch(instantiate(end_capture(a)), a));
}

static void nodes_without_an_edge(int correct) {
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph g;
    ds_graph_node fill;
    ds_graph_node copy;
    ds_node_desc write = { .kind = DS_NODE_FILL, .u.fill = { p, 1, 1, SIZE, 1, 0, { 0 } } };
    ds_node_desc read = { .kind = DS_NODE_COPY, .u.copy = { q, p, SIZE, 1, 0, 0, { 0 } } };

    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    FIRST(ds_graph_add(g, &write, NULL, 0, &fill));
    SECOND(ds_graph_add(g, &read, &fill, correct ? 1 : 0, &copy));
    must(ds_graph_launch(instantiate(g), stream("launch")));
}

/* An edge that is added later counts as well. */
static void edge_that_is_missing(int correct) {
    char *p = device_memory(SIZE);
    ds_graph g;
    ds_graph_node node[3];
    ds_node_desc write = { .kind = DS_NODE_FILL, .u.fill = { p, 1, 1, SIZE, 1, 0, { 0 } } };
    ds_node_desc middle = { .kind = DS_NODE_EMPTY };

    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    FIRST(ds_graph_add(g, &write, NULL, 0, &node[0]));
    must(ds_graph_add(g, &middle, &node[0], 1, &node[1]));
    SECOND(ds_graph_add(g, &write, NULL, 0, &node[2]));
    if (correct)
        must(ds_graph_add_edges(g, &node[1], &node[2], 1));
    must(ds_graph_launch(instantiate(g), stream("launch")));
}

/* Two nodes of a child race. */
static void race_in_a_child(int correct) {
    ds_stream a = stream("origin");
    ds_stream b = stream("fork");
    char *p = device_memory(SIZE);
    ds_graph g;
    ds_graph_node node;
    ds_node_desc child = { .kind = DS_NODE_CHILD };

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_wait_stream(b, a));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_fill(p, 2, 1, SIZE, b));
    must(ds_stream_wait_stream(a, b));
    child.u.child = end_capture(a);
    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    must(ds_graph_add(g, &child, NULL, 0, &node));
    must(ds_graph_launch(instantiate(g), a));
}

/* ---- events and changes of graphs ---- */

/* The event is recorded within the graph, before or behind the write. */
static void record_within_a_graph(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    ds_event e = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec exec;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    if (!correct)
        must(ds_event_record_external(e, a));
    must(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_event_record_external(e, a));
    exec = instantiate(end_capture(a));
    FIRST(ds_graph_launch(exec, a));
    must(ds_stream_wait_event(b, e));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* The graph itself waits for an event. */
static void wait_within_a_graph(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("launch");
    ds_event e = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec exec;

    must(ds_event_record(e, a));
    must(ds_capture_begin(b, DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_wait_event_external(b, e));
    must(ds_copy(q, p, SIZE, b));
    exec = instantiate(end_capture(b));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_event_record(e, a));
    SECOND(ds_graph_launch(exec, b));
}

/* An update makes the graph write elsewhere. */
static void updated_graph(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    char *out = device_memory(SIZE);
    ds_graph_exec e = captured_fill(p);
    ds_graph changed;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_fill(q, 1, 1, SIZE, a));
    changed = end_capture(a);
    must(ds_graph_exec_update(e, changed, NULL));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(out, correct ? p : q, SIZE, b));
}

/* So does a replacement of pointers. */
static void replaced_pointers(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    char *out = device_memory(SIZE);
    void *before = p;
    void *after = q;
    ds_graph_exec e;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_fill(p, 1, 1, SIZE, a));
    must(ds_graph_instantiate(end_capture(a),
                              &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS }, &e));
    must(ds_graph_exec_replace_pointers(e, &before, &after, 1, NULL));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(out, correct ? p : q, SIZE, b));
    must(ds_graph_exec_destroy(e));
}

/* A disabled node accesses nothing. */
static void disabled_node(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *p = device_memory(SIZE);
    char *out = device_memory(SIZE);
    ds_graph g;
    ds_graph_node node;
    ds_graph_exec e;
    ds_node_desc write = { .kind = DS_NODE_FILL, .u.fill = { p, 1, 1, SIZE, 1, 0, { 0 } } };

    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    must(ds_graph_add(g, &write, NULL, 0, &node));
    e = instantiate(g);
    if (correct)
        must(ds_graph_exec_set_node_enabled(e, node, 0));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(out, p, SIZE, b));
}

/* The body of a condition may run. */
static void body_of_a_condition(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    uint32_t *word = (void *)device_memory(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph body;
    ds_graph g;
    ds_graph_node node;
    ds_graph_exec e;
    ds_node_desc branch = { .kind = DS_NODE_CONDITION };

    must(ds_fill(word, 1, 4, 1, a));
    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_fill(p, 1, 1, SIZE, a));
    body = end_capture(a);
    branch.u.condition =
        (ds_condition_node){ .kind = DS_CONDITION_IF, .word = word, .bodies = &body, .count = 1 };
    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    must(ds_graph_add(g, &branch, NULL, 0, &node));
    e = instantiate(g);
    FIRST(ds_graph_launch(e, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* A body may not run, but its nodes access no other bytes than theirs. */
static void half_of_a_body(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    uint32_t *word = (void *)device_memory(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph body;
    ds_graph g;
    ds_graph_node node;
    ds_graph_exec e;
    ds_node_desc branch = { .kind = DS_NODE_CONDITION };

    must(ds_fill(word, 1, 4, 1, a));
    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_fill(p, 1, 1, SIZE / 2, a));
    body = end_capture(a);
    branch.u.condition =
        (ds_condition_node){ .kind = DS_CONDITION_IF, .word = word, .bodies = &body, .count = 1 };
    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    graph_kept(g);
    must(ds_graph_add(g, &branch, NULL, 0, &node));
    e = instantiate(g);
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(q, correct ? p + SIZE / 2 : p, SIZE / 2, b));
}

/* ---- other operations in a capture ---- */

/* The program states the extents of a captured launch. */
static void extents_of_a_captured_launch(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    ds_kernel store = kernel_with("opaque", DS_PARAM_WRITE, NULL);
    ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = SIZE / 2 };
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph_exec e;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_check_set_extents(&half, 1));
    must(LAUNCH(store, p, SIZE, a));
    e = instantiate(end_capture(a));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(q, p + (correct ? SIZE / 2 : 0), SIZE / 2, b));
}

static void captured_random_numbers(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    float *x = (void *)device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_rng own = { 0 };
    ds_graph_exec e;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_rng_uniform(own, ds_float32(), x, SIZE / 8, 0, 1, a));
    e = instantiate(end_capture(a));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_copy(q, x + (correct ? SIZE / 8 : 0), SIZE / 2, b));
}

static void captured_collective(int correct) {
    ranks r;
    ds_stream c = stream("reader");
    char *q = device_memory(SIZE);
    ds_graph_exec e;

    ranks_init(&r);
    must(ds_device_synchronize(corpus.device));
    must(ds_device_synchronize(corpus.other));
    must(ds_capture_begin(r.stream[0], DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_wait_stream(r.stream[1], r.stream[0]));
    must(ds_comm_all_reduce(r.list, r.list, 2, DS_REDUCE_SUM, &r.options));
    must(ds_stream_wait_stream(r.stream[0], r.stream[1]));
    e = instantiate(end_capture(r.stream[0]));
    FIRST(ds_graph_launch(e, r.stream[0]));
    if (correct)
        must(ds_stream_wait_stream(c, r.stream[0]));
    SECOND(ds_copy(q, r.tensor[0].data, SIZE, c));
}

static void write_as_a_node(void *user) {
    SECOND_HOST(write, user, SIZE);
}

/* A host function of a graph accesses memory in the order of the launch. */
static void captured_host_function(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("h2d");
    char *host = pinned(SIZE);
    char *p = device_memory(SIZE);
    ds_graph_exec e;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_stream_launch_host_func(a, write_as_a_node, host, NULL));
    e = instantiate(end_capture(a));
    FIRST(ds_copy(p, host, SIZE, b));
    if (correct)
        must(ds_stream_wait_stream(a, b));
    must(ds_graph_launch(e, a));
}

/* ---- memory of graphs ---- */

static void launch_with_freed_memory(int correct) {
    ds_stream s = stream("launch");
    ds_graph_exec e;
    void *p;

    must(ds_mem_alloc(SIZE, s, &p));
    e = captured_fill(p);
    if (correct)
        must(ds_graph_launch(e, s));
    must(ds_mem_free(p));
    if (!correct)
        SECOND(ds_graph_launch(e, s));
}

/* The memory has a new owner, which the graph does not know. */
static void launch_with_memory_of_another(int correct) {
    ds_stream s = stream("launch");
    ds_graph_exec e;
    void *p;
    void *q;

    must(ds_mem_alloc(SIZE, s, &p));
    e = captured_fill(p);
    if (correct)
        must(ds_graph_launch(e, s));
    must(ds_mem_free(p));
    must(ds_mem_alloc(SIZE, s, &q));
    if (!correct)
        SECOND(ds_graph_launch(e, s));
    must(ds_mem_free(q));
}

static void launch_with_freed_pinned_memory(int correct) {
    ds_stream s = stream("launch");
    char *q = device_memory(SIZE);
    ds_graph_exec e;
    void *p;

    must(ds_mem_pinned_alloc(SIZE, &p));
    must(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    FIRST(ds_copy(q, p, SIZE, s));
    e = instantiate(end_capture(s));
    if (correct) {
        must(ds_graph_launch(e, s));
        must(ds_stream_synchronize(s));
    }
    must(ds_mem_pinned_free(p));
    if (!correct)
        SECOND(ds_graph_launch(e, s));
}

/* An executable may be made of a graph whose memory is gone. */
static void graph_of_freed_memory(int correct) {
    ds_stream s = stream("capture");
    ds_graph_exec e;
    ds_graph g;
    void *p;

    must(ds_device_alloc(corpus.device, SIZE, &p));
    must(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    FIRST(ds_fill(p, 1, 1, SIZE, s));
    g = end_capture(s);
    if (correct) {
        must(ds_graph_instantiate(g, NULL, &e));
        must(ds_graph_launch(e, s));
        must(ds_stream_synchronize(s));
        must(ds_device_free(p));
    } else {
        must(ds_device_free(p));
        SECOND(ds_graph_instantiate(g, NULL, &e));
    }
    must(ds_graph_exec_destroy(e));
}

/* Memory of a capture that the capture does not free has the result of a launch. */
static void memory_of_a_graph(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    char *q = device_memory(SIZE);
    ds_graph_exec e;
    void *result;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_mem_alloc(SIZE, a, &result));
    must(ds_fill(result, 1, 1, SIZE, a));
    e = instantiate(end_capture(a));
    FIRST(ds_graph_launch(e, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, result, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(result));
}

/* The work of a launch is in flight when its memory is freed. */
static void free_during_a_launch(int correct) {
    ds_stream s = stream("owner");
    ds_stream other = stream("launch");
    ds_graph_exec e;
    void *p;

    must(ds_mem_alloc(SIZE, s, &p));
    e = captured_fill(p);
    FIRST(ds_graph_launch(e, other));
    if (correct)
        must(ds_stream_wait_stream(s, other));
    SECOND(ds_mem_free(p));
}

/* Memory that is allocated in a capture belongs to the graph; the host has to wait for its result.
   */
static void result_of_a_graph(int correct) {
    ds_stream s = stream("launch");
    char *host = pinned(SIZE);
    ds_graph_exec e;
    void *scratch;

    must(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    must(ds_mem_alloc(SIZE, s, &scratch));
    must(ds_fill(scratch, 1, 1, SIZE, s));
    must(ds_copy(host, scratch, SIZE, s));
    must(ds_mem_free(scratch));
    e = instantiate(end_capture(s));
    must(ds_graph_launch(e, s));
    must(ds_stream_synchronize(s));
    FIRST(ds_graph_launch(e, s));
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(read, host, SIZE);
}

/* A collective writes columns of a matrix by a strided copy, which is a node in a capture. */
static void captured_columns(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("columns");
    int64_t shape[2] = { 16, 32 };
    int64_t strides[2] = { 1, 64 }; /* transposed: 32 rows of 16 elements */
    char *p = device_memory(SIZE * 2);
    ds_tensor to = ds_tensor_of(p, corpus.device, ds_float32(), 2, shape);
    ds_tensor from = ds_tensor_of(device_memory(SIZE), corpus.device, ds_float32(), 2, shape);
    const ds_tensor *list[1] = { &to };
    ds_comm_options options = { .streams = &a, .stream_count = 1, .stream = a };
    to.strides = strides;

    must(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    must(ds_comm_broadcast_into(&from, list, 1, &options));
    ds_graph_exec e = instantiate(end_capture(a));
    FIRST(ds_graph_launch(e, a));
    SECOND(ds_fill_2d(p + (correct ? 64 : 60), 256, 1, 4, 16, 32, b));
}

static const pair graph_pairs[] = {
    PAIR(capture_is_no_access, READ_AFTER_WRITE),
    PAIR(work_after_a_launch, READ_AFTER_WRITE, .fix = "ds_stream_wait_stream"),
    PAIR(launch_after_work, WRITE_AFTER_READ, .fix = "ds_stream_wait_stream"),
    PAIR(second_launch, WRITE_AFTER_READ),
    PAIR(launches_on_two_streams, WRITE_AFTER_WRITE),
    PAIR(fork_without_an_order, WRITE_AFTER_WRITE),
    PAIR(join_too_late, READ_AFTER_WRITE),
    PAIR(nodes_without_an_edge, READ_AFTER_WRITE),
    PAIR(edge_that_is_missing, WRITE_AFTER_WRITE),
    PAIR(race_in_a_child, WRITE_AFTER_WRITE),
    PAIR(record_within_a_graph, READ_AFTER_WRITE),
    PAIR(wait_within_a_graph, READ_AFTER_WRITE),
    PAIR(updated_graph, READ_AFTER_WRITE),
    PAIR(replaced_pointers, READ_AFTER_WRITE),
    PAIR(extents_of_a_captured_launch, READ_AFTER_WRITE),
    PAIR(captured_random_numbers, READ_AFTER_WRITE),
    PAIR(captured_collective, READ_AFTER_WRITE, .extra = ANY),
    PAIR(captured_columns, WRITE_AFTER_WRITE),
    PAIR(captured_host_function, WRITE_AFTER_READ),
    PAIR(disabled_node, READ_AFTER_WRITE),
    PAIR(body_of_a_condition, READ_AFTER_WRITE, .flags = POSSIBLE),
    PAIR(half_of_a_body, READ_AFTER_WRITE, .flags = POSSIBLE),
    PAIR(launch_with_freed_memory, GRAPH_MEMORY, .order = "freed by ds_mem_free"),
    PAIR(launch_with_memory_of_another, GRAPH_MEMORY, .order = "freed by ds_mem_free"),
    PAIR(launch_with_freed_pinned_memory, GRAPH_MEMORY, .order = "freed by ds_mem_pinned_free"),
    PAIR(graph_of_freed_memory, GRAPH_MEMORY, .order = "freed by ds_device_free"),
    PAIR(memory_of_a_graph, READ_AFTER_WRITE),
    PAIR(free_during_a_launch, FREE_IN_USE),
    PAIR(result_of_a_graph, READ_AFTER_WRITE),
};

#endif
