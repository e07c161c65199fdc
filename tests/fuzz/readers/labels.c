/* Texts of the program that the library writes into files: labels, names, annotations, files of
   call sites. Snapshots and traces must stay valid JSON in valid UTF-8, a page must have the script
   elements of its template, and drawings must have closed strings, whatever the texts are. */
#include "reader.h"

#include "json.h"

enum { TEXTS = 8 };

static char *texts[TEXTS];

static void check_json(const char *what, const char *text, size_t size) {
    json value;
    size_t wrong = json_parse(text, size, &value);
    if (wrong) {
        size_t from = wrong > 60 ? wrong - 60 : 0;
        fprintf(stderr, "%.*s\n", (int)(size - from < 100 ? size - from : 100), text + from);
        stop(what);
    }
    json_free_all();
}

static size_t count_of(const char *text, size_t size, const char *word) {
    size_t n = 0;
    size_t length = strlen(word);
    for (size_t i = 0; i + length <= size; i++) {
        size_t k = 0;
        while (k < length && (text[i + k] | 32) == word[k])
            k++;
        n += k == length;
    }
    return n;
}

/* A page has as many script elements as one without texts; the first page is that. */
static void check_page(size_t *usual, const char *text, size_t size) {
    size_t n = count_of(text, size, "</script") + count_of(text, size, "<!--") +
               count_of(text, size, "<script");
    if (!*usual)
        *usual = n;
    else if (n != *usual)
        stop("a text is part of the page's elements");
}

static void check_drawing(const char *text, size_t size) {
    int inside = 0;
    for (size_t i = 0; i < size; i++) {
        if (inside && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            inside = !inside;
        else if (!inside && (unsigned char)text[i] >= 0x80)
            stop("a text is outside of the strings of a drawing");
    }
    if (inside)
        stop("a string of a drawing is open");
}

static int nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

/* Gives the texts to everything that takes one. */
static void give(void) {
    ds_stream stream;
    ds_event event;
    ds_kernel kernel;
    void *p;
    int range;
    ds_stream_desc desc = { .label = texts[0] };
    ds_kernel_desc kernel_desc = { .name = texts[1], .cpu_fn = nothing, .args_size = 8 };
    MUST(ds_stream_create(&desc, &stream));
    check_refusal(ds_stream_set_label(stream, texts[2]));
    check_refusal(ds_device_set_label(ds_cpu(0), texts[3]));
    check_refusal(ds_thread_set_label(texts[4]));
    MUST(ds_event_create(0, texts[5], &event));
    ds_mem_label_push(texts[6]);
    ds_site_set(texts[7], 3);
    MUST((ds_mem_alloc)(1000, stream, &p));
    ds_mem_label_pop();
    check_refusal(ds_mem_annotate(ds_cpu(0), texts[0]));
    DS_IGNORE(ds_range_mark(texts[1]));
    range = ds_range_push(texts[2]);
    ds_site_set(texts[3], 4);
    MUST((ds_fill)(p, 1, 1, 1000, stream));
    MUST(ds_event_record(event, stream));
    if (ds_kernel_create(&kernel_desc, &kernel) == DS_OK) {
        uint64_t args = 0;
        DS_IGNORE(ds_kernel_launch(kernel, 1, &args, 8, stream));
        MUST(ds_kernel_destroy(kernel));
    }
    if (range >= 0)
        DS_IGNORE(ds_range_pop());
    MUST(ds_stream_synchronize(stream));
    MUST(ds_mem_free(p));
    MUST(ds_event_destroy(event));
    MUST(ds_stream_destroy(stream));
}

/* `pages`: also writes pages, which take longer. */
static void write_snapshots(int pages) {
    static size_t usual;
    paper text = { NULL, 0, 0 };
    MUST(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, paper_write, &text));
    check_json("a snapshot is not JSON", text.text, text.size);
    text.size = 0;
    if (pages) {
        MUST(ds_mem_write_snapshot(DS_SNAPSHOT_HTML, 0, (ds_pool){ 0 }, paper_write, &text));
        check_page(&usual, text.text, text.size);
    }
    text.size = 0;
    MUST(ds_mem_write_snapshot(DS_SNAPSHOT_PICKLE, 0, (ds_pool){ 0 }, paper_write, &text));
    free(text.text);
}

static void write_drawing(void) {
    paper text = { NULL, 0, 0 };
    ds_graph graph;
    ds_graph_node node;
    ds_node_desc desc = { .kind = DS_NODE_EMPTY, .label = texts[4] };
    MUST(ds_graph_create(&(ds_graph_desc){ .label = texts[5] }, &graph));
    MUST(ds_graph_add(graph, &desc, NULL, 0, &node));
    MUST(ds_graph_write_dot(graph, 0, paper_write, &text));
    check_drawing(text.text, text.size);
    MUST(ds_graph_destroy(graph));
    free(text.text);
}

/* Reads a file. */
static char *contents(const char *path, size_t *out_size) {
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 24);
    if (!f || !text)
        stop(path);
    *out_size = fread(text, 1, 1 << 24, f);
    (void)fclose(f);
    return text;
}

static void write_traces(int pages) {
    static size_t usual;
    static const char *const names[] = { "dump.json", "dump.html", "dump.txt" };
    char path[512];
    for (int i = 0; i < 3; i++) {
        size_t size;
        if (i == 1 && !pages)
            continue;
        snprintf(path, sizeof path, "%s/%s", reader_folder, names[i]);
        MUST(ds_trace_dump(path));
        char *text = contents(path, &size);
        if (i == 0)
            check_json("a trace is not JSON", text, size);
        if (i == 1)
            check_page(&usual, text, size);
        free(text);
    }
}

static void read_labels(input *in) {
    static int started;
    ds_trace_desc trace = { .ring = 256 };
    if (!started) {
        started = 1;
        MUST(ds_init(&(ds_init_desc){ .layers = "trace" }));
        for (int i = 0; i < TEXTS; i++)
            texts[i] = calloc(1, 1);
        static const uint8_t byte;
        input none = { &byte, &byte };
        read_labels(&none);
    }
    MUST(ds_trace_start(&trace));
    MUST(ds_mem_history_start(&(ds_mem_history_desc){ .entries = 64 }));
    for (int i = 0; i < TEXTS; i++) {
        free(texts[i]);
        texts[i] = take_text(in, '\n');
    }
    give();
    int pages = !texts[0][0] || texts[0][0] % 8 == 2; /* as for a quote */
    write_snapshots(pages);
    write_drawing();
    write_traces(pages);
    MUST(ds_device_synchronize(ds_cpu(0)));
    MUST(ds_mem_empty_cache(ds_cpu(0), NULL)); /* no block has the label any more */
    MUST(ds_trace_stop());
    MUST(ds_mem_history_stop());
}

const reader reader_labels = { "labels", read_labels, 1 };
