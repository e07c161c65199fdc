/* corpus_words.h - programs with graphs whose nodes write words of memory and wait for them. */
#ifndef CORPUS_WORDS_H
#define CORPUS_WORDS_H

/* Adds a node that writes 1 into a word, or that waits for 1. */
static ds_graph_node add_word(ds_graph g, uint32_t *word, ds_value_kind kind,
                              const ds_graph_node *after) {
    ds_value_op op = { word, 1, kind, 4 };
    ds_node_desc d = { .kind = DS_NODE_VALUES, .u.values = { .ops = &op, .count = 1 } };
    ds_graph_node n;
    must(ds_graph_add(g, &d, after, after ? 1 : 0, &n));
    return n;
}

static ds_graph new_graph(void) {
    ds_graph g;
    must(ds_graph_create(&(ds_graph_desc){ .device = corpus.device }, &g));
    return graph_kept(g);
}

/* A node that waits for a word comes after the node that writes it, without an edge. */
static void words_between_nodes(int correct) {
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph g = new_graph();
    ds_graph_node fill;
    ds_graph_node node;
    ds_node_desc write = { .kind = DS_NODE_FILL, .u.fill = { p, 1, 1, SIZE, 1, 0, { 0 } } };
    ds_node_desc read = { .kind = DS_NODE_COPY, .u.copy = { q, p, SIZE, 1, 0, 0, { 0 } } };

    FIRST(ds_graph_add(g, &write, NULL, 0, &fill));
    (void)add_word(g, word, DS_VALUE_WRITE, correct ? &fill : NULL);
    node = add_word(g, word, DS_VALUE_WAIT_EQ, NULL);
    SECOND(ds_graph_add(g, &read, &node, 1, &node));
    must(ds_graph_launch(instantiate(g), stream("launch")));
}

/* A stream waits for a word of a graph. */
static void word_of_a_launch(int correct) {
    ds_stream a = stream("launch");
    ds_stream b = stream("reader");
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph g = new_graph();
    ds_graph_node fill;
    ds_node_desc write = { .kind = DS_NODE_FILL, .u.fill = { p, 1, 1, SIZE, 1, 0, { 0 } } };

    must(ds_graph_add(g, &write, NULL, 0, &fill));
    (void)add_word(g, word, DS_VALUE_WRITE, &fill);
    FIRST(ds_graph_launch(instantiate(g), a));
    if (correct)
        must(ds_stream_wait_value32(b, word, 1, DS_VALUE_WAIT_EQ));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* A graph waits for a word of a stream. */
static void launch_that_waits_for_a_word(int correct) {
    ds_stream a = stream("writer");
    ds_stream b = stream("launch");
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_graph g = new_graph();
    ds_graph_node node;
    ds_node_desc read = { .kind = DS_NODE_COPY, .u.copy = { q, p, SIZE, 1, 0, 0, { 0 } } };

    node = add_word(g, word, DS_VALUE_WAIT_EQ, NULL);
    must(ds_graph_add(g, &read, &node, 1, &node));
    if (!correct)
        must(ds_stream_write_value32(a, word, 1));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_write_value32(a, word, 1));
    SECOND(ds_graph_launch(instantiate(g), b));
}

static const pair word_pairs[] = {
    PAIR(words_between_nodes, READ_AFTER_WRITE),
    PAIR(word_of_a_launch, READ_AFTER_WRITE),
    PAIR(launch_that_waits_for_a_word, READ_AFTER_WRITE),
};

#endif
