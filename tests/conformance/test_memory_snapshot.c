/* History and snapshots of the allocator, read as others read them: by Python's pickle and JSON
   modules and by a browser. */
#include "alloc.h"

#include <errno.h>
#include <unistd.h>

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

/* ---- where snapshots go, and what reads them ---- */

/* A text that is written into, piece by piece; `most` pieces are taken, then it says 77. */
typedef struct paper {
    char *text;
    size_t size, room;
    int pieces, most;
} paper;

static int put(const char *text, size_t size, void *user) {
    paper *p = user;
    if (p->most && ++p->pieces > p->most)
        return 77;
    if (p->size + size + 1 > p->room) {
        p->room = 2 * (p->size + size + 1);
        p->text = realloc(p->text, p->room);
        if (!p->text)
            abort();
    }
    memcpy(p->text + p->size, text, size);
    p->size += size;
    p->text[p->size] = 0;
    return 0;
}

static char folder[64];

static const char *file_in(const char *name, char path[128]) {
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/devstream_snapshot_XXXXXX");
        if (!mkdtemp(folder))
            fail_msg("%s: %s", folder, strerror(errno));
    }
    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static void save(const paper *p, const char *path) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p->text, 1, p->size, f), p->size);
    assert_int_equal(fclose(f), 0);
}

/* The folder with its files, when a test does not need it any more. */
static void clean_up(void) {
    char command[128];
    if (!folder[0])
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    folder[0] = 0;
}

/* Runs a command; its output, which stays until the next. */
static char *run(const char *command, int *out_status) {
    static paper out;
    char piece[4096];
    size_t n;
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out.size = 0;
    put("", 0, &out);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        put(piece, n, &out);
    *out_status = pclose(f);
    return out.text;
}

static int there_is(const char *program) {
    char command[128];
    int status;
    snprintf(command, sizeof command, "command -v %s 2>&1", program);
    run(command, &status);
    return status == 0;
}

/* Snapshots are read by tests/support/read_snapshot.py, which lies beside this file's folder. */
static const char *reader(void) {
    static char path[512];
    const char *end = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../support/read_snapshot.py", end ? (int)(end - __FILE__) : 1,
             end ? __FILE__ : ".");
    if (access(path, R_OK) != 0)
        snprintf(path, sizeof path, "tests/support/read_snapshot.py");
    if (access(path, R_OK) == 0 && there_is("python3"))
        return path;
    print_message("skip: %s\n", access(path, R_OK) == 0
                                    ? "python3 is not installed"
                                    : "tests/support/read_snapshot.py is not there");
    skip();
    return NULL;
}

/* What the reader says of a snapshot: one "key=value" a line. */
static char *facts;
/* 1: some of it was not recorded, so that it cannot be followed back. */
static int partial;

static void read_files(const char *pickle, const char *json) {
    char command[1024];
    int status;
    snprintf(command, sizeof command, "python3 '%s' %s '%s' %s 2>&1", reader(),
             partial ? "--partial" : "", pickle, json ? json : "");
    free(facts);
    facts = strdup(run(command, &status));
    if (status != 0)
        fail_msg("the snapshot is not as it should be: %s",
                 strstr(facts, "wrong=") ? strstr(facts, "wrong=") : facts);
}

/* Takes a snapshot and reads it. */
static void look_at(unsigned flags, ds_pool pool) {
    char path[128];
    paper p = { 0 };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_PICKLE, flags, pool, put, &p));
    save(&p, file_in("snapshot.pickle", path));
    free(p.text);
    read_files(path, NULL);
}

static void look_at_all(void) {
    look_at(0, (ds_pool){ 0 });
}

static const char *fact(const char *key) {
    static char value[4][4096];
    static int next;
    char *to = value[next = (next + 1) % 4];
    size_t n = strlen(key);
    for (const char *line = facts; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0 && line[n] == '=') {
            snprintf(to, sizeof value[0], "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
            return to;
        }
    fail_msg("the reader says nothing of %s", key);
    return "";
}

/* The number of the i-th device under test in the lists of a snapshot. */
static int place_of(int i) {
    char name[DS_DEVICE_NAME_SIZE], key[32];
    int count = atoi(fact("devices"));
    ok(ds_device_format(harness_device(i), name, sizeof name));
    for (int d = 0; d < count; d++) {
        snprintf(key, sizeof key, "%d.name", d);
        if (strcmp(fact(key), name) == 0)
            return d;
    }
    fail_msg("%s is not in the snapshot", name);
    return -1;
}

static const char *device_text(int i, const char *key) {
    char all[128];
    snprintf(all, sizeof all, "%d.%s", place_of(i), key);
    return fact(all);
}

static int64_t device_number(int i, const char *key) {
    return strtoll(device_text(i, key), NULL, 10);
}

/* ---- the state of things at the beginning and at the end ---- */

static void begin_recording(int preset, size_t entries, unsigned skipped) {
    begin(preset);
    ok(ds_mem_history_start(&(ds_mem_history_desc){ .entries = entries, .skip = skipped }));
    partial = skipped != 0;
}

static void end_recording(void) {
    ok(ds_mem_history_stop());
    partial = 0;
    clean_up();
    finish();
}

static void free_all(void **p, int count) {
    for (int i = 0; i < count; i++) {
        ok(ds_mem_free(p[i]));
        p[i] = NULL;
    }
}

/* Blocks of many sizes, some freed, and one that another stream has not passed; the gate is
   closed. */
typedef struct scene {
    ds_stream s, t;
    void *p[60];
    void *late;
    gate g;
} scene;

static void scene_make(scene *c, int device) {
    memset(c, 0, sizeof *c);
    c->s = stream(device);
    c->t = stream(device);
    for (int i = 0; i < 60; i++) {
        ds_mem_label_push(i % 3 == 0 ? "weights" : i % 3 == 1 ? "activations" : NULL);
        c->p[i] = block((size_t)(i + 1) * (size_t)(i + 1) * 700, i % 5 ? c->s : c->t);
        ds_mem_label_pop();
    }
    for (int i = 0; i < 60; i += 4)
        free_all(&c->p[i], 1);
    gate_close(c->t, &c->g);
    gate_wait_entered(&c->g);
    c->late = block(3 * MIB, c->s);
    ok(ds_mem_record_use(c->late, c->t));
    ok(ds_mem_free(c->late));
}

static void scene_end(scene *c) {
    gate_open(&c->g);
    ok(ds_stream_synchronize(c->t));
    free_all(c->p, 60);
    ok(ds_stream_destroy(c->s));
    ok(ds_stream_destroy(c->t));
}

static void same_as_statistics(int device) {
    ds_mem_stats s = stats_of(device);
    ds_mem_config c;
    const char *const kinds[] = { "small", "large" };
    ok(ds_mem_get_config(harness_device(device), &c));
    for (int k = 0; k < 2; k++) {
        char key[64];

        const struct {
            const char *name;
            int64_t is;
        } sums[] = { { "reserved", s.reserved_bytes[1 + k].current },
                     { "allocated", s.allocated_bytes[1 + k].current },
                     { "active", s.active_bytes[1 + k].current },
                     { "requested", s.requested_bytes[1 + k].current } };

        for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
            snprintf(key, sizeof key, "%s.%s", sums[i].name, kinds[k]);
            /* what the driver's pool keeps is in no segment */
            int kept = c.backend == DS_MEM_DRIVER_POOL && k == 1 && i == 0;
            if (kept ? device_number(device, key) > sums[i].is
                     : device_number(device, key) != sums[i].is)
                fail_msg("%s is %lld in the snapshot and %lld in the statistics", key,
                         (long long)device_number(device, key), (long long)sums[i].is);
        }
    }
    assert_int_equal(device_number(device, "active_allocated"), s.allocation[DS_STAT_ALL].current);
    assert_int_equal(device_number(device, "active_allocated") +
                         device_number(device, "active_pending_free"),
                     s.active[DS_STAT_ALL].current);
    assert_int_equal(device_number(device, "plain_segments"), s.segment[DS_STAT_ALL].current);
}

/* ---- snapshots ---- */

static void test_totals_of_a_snapshot_are_the_statistics(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin_recording(preset, 0, 0);
        scene c;
        scene_make(&c, 0);
        look_at_all();
        same_as_statistics(0);
        assert_int_equal(device_number(0, "active_pending_free"), 1);
        scene_end(&c);
        look_at_all();
        same_as_statistics(0);
        assert_int_equal(device_number(0, "active_allocated"), 0);
        end_recording();
    }
}

static void test_the_pickle_is_what_python_and_pytorchs_viewer_read(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    void *p;
    ds_mem_label_push("the only one");
    ok(ds_mem_alloc(1000, s, &p));
    int line = __LINE__ - 1;
    ds_mem_label_pop();
    look_at_all(); /* the reader has checked it */
    char frame[128];
    snprintf(frame, sizeof frame, "%s:%d:the only one", __FILE__, line);
    assert_string_equal(fact("labels"), "the only one");
    /* a segment, a block; the snapshot's own entry comes after it */
    assert_int_equal(device_number(0, "events"), 2);
    assert_string_equal(device_text(0, "last"), "alloc");
    assert_int_equal(device_number(0, "last_size"), 1000);
    assert_string_equal(device_text(0, "last_frame"), frame);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_a_large_snapshot_is_read_too(void **state) {
    static void *p[4000];
    (void)state;
    begin_recording(PRESET_TORCH, 20000, 0);
    ds_mem_config c = config_of(PRESET_TORCH);
    c.debug = 0;
    ok(ds_mem_configure(harness_device(0), &c));
    ds_stream s = stream(0);
    char labels[300][16];
    for (int i = 0; i < 300; i++)
        snprintf(labels[i], sizeof labels[i], "owner %d", i);
    /* more than the reader of the viewer takes at once, and more texts than one byte can number */
    for (int i = 0; i < 4000; i++) {
        ds_mem_label_push(labels[i % 300]);
        p[i] = block(512 + 512 * (size_t)(i % 7), s);
        ds_mem_label_pop();
    }
    look_at_all();
    same_as_statistics(0);
    assert_int_equal(device_number(0, "alloc"), 4000);
    free_all(p, 4000);
    ok(ds_mem_history_start(NULL)); /* the labels go */
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_json_says_the_same_as_the_pickle(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        char pickle[128], json[128];
        begin_recording(preset, 0, 0);
        scene c;
        scene_make(&c, 0);
        ok(ds_mem_annotate(harness_device(0), "a \"quoted\" remark\n\x01 <b>"));
        ok(ds_mem_history_stop()); /* else the first leaves an entry that the second has */
        ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_PICKLE, 0, file_in("one.pickle", pickle)));
        ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, file_in("two.json", json)));
        read_files(pickle, json);
        assert_int_equal(device_number(0, "alloc"), 61);
        scene_end(&c);
        end_recording();
    }
}

static void test_texts_that_are_odd_are_written_so_that_they_can_be_read(void **state) {
    (void)state;
    char pickle[128], json[128], page[128];
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    const char *const labels[] = { "</script><script>document.title='owned'</script>",
                                   "\xff\xc0\x80 no UTF-8 \xed\xa0\x80", "quotes \" ' \\ \n\t\x7f",
                                   "", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80" };
    void *p[5];
    for (int i = 0; i < 5; i++) {
        ds_mem_label_push(labels[i]);
        p[i] = block(5000, s);
        ds_mem_label_pop();
    }
    ok(ds_mem_history_stop());
    ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_PICKLE, 0, file_in("odd.pickle", pickle)));
    ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, file_in("odd.json", json)));
    ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_HTML, 0, file_in("odd.html", page)));
    read_files(pickle, json);
    assert_non_null(strstr(fact("labels"), "??? no UTF-8 ???"));
    assert_non_null(strstr(facts, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
    paper text = { 0 };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_HTML, 0, (ds_pool){ 0 }, put, &text));
    /* a label cannot become part of the page */
    assert_null(strstr(text.text, "</script><script>document"));
    free(text.text);
    free_all(p, 5);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_without_history_the_totals_are_the_same(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    scene c;
    scene_make(&c, 0);
    look_at(DS_SNAPSHOT_NO_HISTORY, (ds_pool){ 0 });
    same_as_statistics(0);
    assert_int_equal(device_number(0, "events"), 0);
    look_at_all();
    same_as_statistics(0);
    assert_true(device_number(0, "events") > 0);
    scene_end(&c);
    end_recording();
}

static void test_a_snapshot_leaves_an_entry_for_the_next(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    scene c;
    scene_make(&c, 0);
    look_at_all();
    assert_int_equal(device_number(0, "snapshot"), 0);
    look_at_all();
    assert_int_equal(device_number(0, "snapshot"), 1);
    assert_string_equal(device_text(0, "last"), "snapshot");
    assert_int_equal(device_number(0, "last_size"), stat(0, "active_bytes.all.current"));
    scene_end(&c);
    end_recording();
}

static void test_the_snapshot_of_a_pool_has_only_its_own(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    ds_pool pool, other;
    uint64_t id[2];
    char name[64];
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .label = "private" }, &pool));
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .label = "other" }, &other));
    ok(ds_pool_get_id(pool, id));
    snprintf(name, sizeof name, "%llu,%llu", (unsigned long long)id[0], (unsigned long long)id[1]);
    void *p[3] = { block(MIB, s) };
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 2 * MIB, .stream = s, .pool = pool }, &p[1]));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 3 * MIB, .stream = s, .pool = other }, &p[2]));
    look_at(0, pool);
    assert_string_equal(device_text(0, "pools"), name);
    assert_string_equal(device_text(0, "pool_labels"), "private");
    assert_int_equal(device_number(0, "active_allocated"), 1);
    assert_int_equal(device_number(0, "alloc"), 1);
    assert_int_equal(device_number(0, "last_size"), 2 * MIB);
    assert_int_equal(device_number(0, "reserved.small") + device_number(0, "reserved.large"),
                     pool_stat(pool, "reserved_bytes.all.current"));
    look_at_all();
    assert_int_equal(device_number(0, "active_allocated"), 3);
    assert_non_null(strstr(device_text(0, "pools"), "0,0"));
    assert_string_equal(device_text(0, "pool_labels"), "other,private");
    free_all(p, 3);
    ok(ds_pool_destroy(pool));
    ok(ds_pool_destroy(other));
    paper none = { 0 };
    refused(ds_mem_write_snapshot(DS_SNAPSHOT_PICKLE, 0, pool, put, &none), DS_ERR_INVALID_HANDLE);
    assert_null(none.text);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_a_hole_in_a_growing_segment_parts_it(void **state) {
    (void)state;
    ds_mem_config config = config_of(PRESET_TORCH_GROWING);
    ds_mem_stats before = { 0 };
    begin_with(&config);
    ok(ds_mem_history_start(NULL));
    ds_stream s = stream(0);
    void *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = block(40 * MIB, s);
    before = stats_of(0);
    look_at_all();
    if (before.segment[DS_STAT_ALL].current == 0) { /* the device has virtual memory */
        assert_int_equal(device_number(0, "segments"), 1);
        ok(ds_mem_free(p[1]));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        look_at_all();
        same_as_statistics(0);
        assert_int_equal(device_number(0, "segments"), 2);
        assert_string_equal(device_text(0, "last"), "segment_unmap");
        p[1] = NULL;
    }
    free_all(p, 3);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_memory_of_a_capture_has_the_pool_of_its_graph(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    ds_graph graph;
    void *p;
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    harness_watch(s);
    p = block(MIB, s);
    look_at_all(); /* breaks no capture */
    ok(ds_fill(p, 0, 4, 4, s));
    ok(ds_mem_free(p));
    ok(ds_capture_end(s, &graph));
    char pools[256];
    snprintf(pools, sizeof pools, " %s ", device_text(0, "pools"));
    assert_null(strstr(pools, " 0,0 "));
    assert_non_null(strstr(pools, ",0 "));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_each_device_has_its_own_list(void **state) {
    (void)state;
    two_devices();
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0), t = stream(1);
    void *p[3] = { block(MIB, s), block(2 * MIB, t), block(3 * MIB, t) };
    ok(ds_mem_annotate(harness_device(1), "only here"));
    look_at_all();
    same_as_statistics(0);
    same_as_statistics(1);
    assert_int_equal(device_number(0, "alloc"), 1);
    assert_int_equal(device_number(1, "alloc"), 2);
    char expected[64];
    snprintf(expected, sizeof expected, "%d:only here", place_of(1));
    assert_string_equal(fact("annotation0"), expected);
    free_all(p, 3);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    end_recording();
}

/* ---- the page ---- */

static void test_the_page_needs_no_network(void **state) {
    (void)state;
    static const char *const away[] = { "http:",  "https:",  "src=",  "@import",  "url(",
                                        "fetch(", "XMLHttp", "<link", "WebSocket" };
    begin_recording(PRESET_DEFAULT, 0, 0);
    scene c;
    scene_make(&c, 0);
    paper page = { 0 };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_HTML, 0, (ds_pool){ 0 }, put, &page));
    for (size_t i = 0; i < sizeof away / sizeof *away; i++)
        if (strstr(page.text, away[i]))
            fail_msg("the page has %s", away[i]);
    assert_int_equal(strlen(page.text), page.size);
    assert_true(strncmp(page.text, "<!doctype html>", 15) == 0);
    free(page.text);
    scene_end(&c);
    end_recording();
}

/* Opens the page, and gives what became of it. */
static char *browse(const char *path, char *errors) {
    char command[1024];
    int status;
    const char *name = there_is("chromium")           ? "chromium"
                       : there_is("chromium-browser") ? "chromium-browser"
                       : there_is("google-chrome")    ? "google-chrome"
                                                      : NULL;
    if (!name) {
        print_message("skip: there is no Chromium to open the page with\n");
        skip();
    }
    snprintf(command, sizeof command,
             "timeout 45 %s --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
             "--user-data-dir='%s/profile' --window-size=1200,1000 "
             "--virtual-time-budget=2000 --enable-logging=stderr --dump-dom 'file://%s' 2>'%s'",
             name, folder, path, errors);
    char *dom = run(command, &status);
    if (status != 0)
        fail_msg("%s ended with %d", name, status);
    return dom;
}

static void no_errors_in(const char *errors) {
    char line[2000];
    FILE *f = fopen(errors, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, "CONSOLE") || strstr(line, "Uncaught"))
            fail_msg("the page says: %s", line);
    fclose(f);
}

static void test_the_page_opens_in_a_browser_without_errors(void **state) {
    (void)state;
    char page[128], errors[128];
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    scene c;
    void *none;
    ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
    ds_mem_label_push("too much");
    no_memory(ds_mem_alloc(100 * MIB, s, &none));
    ds_mem_label_pop();
    ok(ds_mem_set_limit(harness_device(0), 0));
    scene_make(&c, 0);
    ok(ds_mem_annotate(harness_device(0), "after the limit"));
    ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_HTML, 0, file_in("page.html", page)));
    char *dom = browse(page, (char *)(uintptr_t)file_in("errors", errors));
    no_errors_in(errors);
    char blocks[64];
    snprintf(blocks, sizeof blocks, "allocated, in %lld blocks",
             (long long)stat(0, "allocation.all.current"));
    if (!strstr(dom, blocks))
        fail_msg("the page does not say \"%s\"", blocks);
    assert_non_null(strstr(dom, "</i>weights</td>"));
    assert_non_null(strstr(dom, "</i>activations</td>"));
    assert_non_null(strstr(dom, "1 allocation failed"));
    assert_non_null(strstr(dom, "too much"));
    assert_non_null(strstr(dom, "pending"));
    scene_end(&c);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_a_page_without_anything_opens_too(void **state) {
    (void)state;
    char page[128], errors[128];
    clear_memory();
    ok(ds_mem_history_start(NULL));
    ok(ds_mem_history_stop());
    ok(ds_mem_write_snapshot_file(DS_SNAPSHOT_HTML, DS_SNAPSHOT_NO_HISTORY,
                                  file_in("page.html", page)));
    char *dom = browse(page, (char *)(uintptr_t)file_in("errors", errors));
    no_errors_in(errors);
    assert_non_null(strstr(dom, "No history was recorded"));
    clean_up();
}

/* ---- blocks one by one ---- */

typedef struct walk {
    const char *next;
    size_t count, live, pending, bytes, requested;
    int ordered;
    ds_device device;
    ds_mem_block seen;
    const void *wanted;
} walk;

static void walk_block(const ds_mem_block *b, void *user) {
    walk *w = user;
    w->count++;
    if (w->next && (const char *)b->ptr < w->next)
        w->ordered = 0;
    w->next = (const char *)b->ptr + b->size;
    if (b->device.type != w->device.type || b->device.index != w->device.index)
        w->ordered = 0;
    if (b->state == DS_BLOCK_LIVE) {
        w->live++;
        w->bytes += b->size;
        w->requested += b->requested;
    }
    if (b->state == DS_BLOCK_PENDING)
        w->pending++;
    if (b->state == DS_BLOCK_FREE && (b->requested || b->label || b->site.file))
        w->ordered = 0;
    if (b->ptr == w->wanted)
        w->seen = *b;
    if (ds_device_synchronize(w->device) != DS_ERR_NOT_PERMITTED)
        w->ordered = 0;
}

static void test_each_block_is_shown_in_the_order_of_addresses(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        scene c;
        scene_make(&c, 0);
        walk w = { .ordered = 1, .device = harness_device(0), .wanted = c.p[3] };
        ok(ds_mem_for_each_block(harness_device(0), walk_block, &w));
        assert_true(w.ordered);
        assert_int_equal(w.live, stat(0, "allocation.all.current"));
        assert_int_equal(w.bytes, ds_mem_get_allocated(harness_device(0)));
        assert_int_equal(w.pending, 1);
        assert_true(w.count > w.live);
        assert_ptr_equal(w.seen.ptr, c.p[3]);
        assert_int_equal(w.seen.requested, 16 * 700);
        assert_string_equal(w.seen.label, "weights");
        refused(ds_mem_for_each_block(harness_device(0), NULL, NULL), DS_ERR_INVALID_VALUE);
        scene_end(&c);
        finish();
    }
}

/* ---- history ---- */

static void test_history_is_off_until_it_is_started(void **state) {
    (void)state;
    harness_shutdown();
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    void *p = block(1000, s);
    look_at_all();
    assert_int_equal(device_number(0, "events"), 0);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_history_can_start_before_a_device_is_used(void **state) {
    (void)state;
    harness_shutdown();
    ok(ds_mem_history_start(NULL));
    ds_stream s = stream(0);
    void *p = block(1000, s);
    look_at_all();
    assert_int_equal(device_number(0, "alloc"), 1);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_the_ring_keeps_the_newest_from_the_oldest_of_them(void **state) {
    (void)state;
    begin_recording(
        PRESET_DEFAULT, 10,
        DS_HISTORY_SKIP(DS_ACTION_FREE_COMPLETED) | DS_HISTORY_SKIP(DS_ACTION_FREE_REQUESTED) |
            DS_HISTORY_SKIP(DS_ACTION_SEGMENT_MAP) | DS_HISTORY_SKIP(DS_ACTION_SEGMENT_ALLOC));
    ds_stream s = stream(0);
    for (size_t i = 1; i <= 25; i++)
        ok(ds_mem_free(block(i, s)));
    look_at_all();
    assert_int_equal(device_number(0, "events"), 10);
    assert_int_equal(device_number(0, "alloc"), 10);
    assert_int_equal(device_number(0, "first_size"), 16);
    assert_int_equal(device_number(0, "last_size"), 25);
    assert_int_equal(device_number(0, "overflowed"), 1);
    ok(ds_mem_history_start(&(ds_mem_history_desc){ .entries = 1 }));
    ok(ds_mem_free(block(77, s)));
    look_at_all();
    assert_int_equal(device_number(0, "events"), 1);
    assert_string_equal(device_text(0, "last"), "free_completed");
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_a_start_clears_and_a_stop_keeps(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    void *p = block(1000, s);
    ok(ds_mem_history_stop());
    void *q = block(2000, s);
    look_at_all();
    look_at_all();
    assert_int_equal(device_number(0, "alloc"), 1);
    assert_int_equal(device_number(0, "snapshot"), 0);
    assert_int_equal(device_number(0, "last_size"), 1000);
    ok(ds_mem_history_start(NULL));
    look_at_all();
    assert_int_equal(device_number(0, "events"), 0);
    void *r = block(3000, s);
    look_at_all();
    assert_int_equal(device_number(0, "alloc"), 1);
    assert_int_equal(device_number(0, "last_size"), 3000);
    free_all((void *[]){ p, q, r }, 3);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_every_action_can_be_left_out(void **state) {
    (void)state;
    static const char *const names[] = { "alloc",         "free_requested", "free_completed",
                                         "segment_alloc", "segment_free",   "segment_map",
                                         "segment_unmap", "snapshot",       "oom" };
    for (unsigned skipped = 0; skipped < sizeof names / sizeof *names; skipped++) {
        begin_recording(skipped % 2 ? PRESET_TORCH : PRESET_DEFAULT, 0, DS_HISTORY_SKIP(skipped));
        ds_stream s = stream(0);
        void *none;
        ok(ds_mem_free(block(1000, s)));
        ok(ds_mem_set_limit(harness_device(0), 30 * MIB));
        no_memory(ds_mem_alloc(100 * MIB, s, &none));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        paper p = { 0 };
        ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, put, &p));
        free(p.text);
        look_at_all();
        assert_int_equal(device_number(0, names[skipped]), 0);
        assert_int_equal(device_number(0, "alloc"), skipped != DS_ACTION_ALLOC);
        assert_int_equal(device_number(0, "free_completed"), skipped != DS_ACTION_FREE_COMPLETED);
        assert_int_equal(device_number(0, "oom"), skipped != DS_ACTION_OOM);
        assert_int_equal(device_number(0, "snapshot"), skipped != DS_ACTION_SNAPSHOT);
        ok(ds_stream_destroy(s));
        end_recording();
    }
    refused(ds_mem_history_start(&(ds_mem_history_desc){ .skip = DS_HISTORY_SKIP(10) }),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_history_start(&(ds_mem_history_desc){ .entries = SIZE_MAX / 2 }),
            DS_ERR_INVALID_VALUE);
}

static void test_segments_come_and_go_in_the_history(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin_recording(preset, 0, 0);
        ds_stream s = stream(0);
        void *p[3] = { block(1000, s), block(5 * MIB, s), block(30 * MIB, s) };
        free_all(p, 3);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        look_at_all();
        assert_int_equal(device_number(0, "segments"), 0);
        assert_int_equal(device_number(0, "segment_alloc"), device_number(0, "segment_free"));
        assert_true(device_number(0, "segment_alloc") + device_number(0, "segment_map") > 0);
        assert_true(strcmp(device_text(0, "last"), "segment_free") == 0 ||
                    strcmp(device_text(0, "last"), "segment_unmap") == 0);
        ok(ds_stream_destroy(s));
        end_recording();
    }
}

static void test_memory_of_the_driver_has_segments_in_the_history(void **state) {
    (void)state;
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++) {
        ds_mem_config config = config_of(PRESET_DEFAULT);
        config.backend = backend;
        begin_with(&config);
        ok(ds_mem_history_start(NULL));
        ds_stream s = stream(0);
        void *p[2] = { block(MIB, s), block(2 * MIB, s) };
        ok(ds_mem_free(p[0]));
        look_at_all(); /* the reader follows the history back */
        same_as_statistics(0);
        ok(ds_mem_free(p[1]));
        ok(ds_stream_synchronize(s));
        look_at_all();
        same_as_statistics(0);
        assert_int_equal(device_number(0, "segment_alloc"), 2);
        assert_int_equal(device_number(0, "segment_free"), 2);
        ok(ds_stream_destroy(s));
        end_recording();
    }
}

static void test_running_out_of_memory_is_an_entry(void **state) {
    (void)state;
    begin_recording(PRESET_TORCH, 0, 0);
    ds_stream s = stream(0);
    void *none;
    ok(ds_mem_set_limit(harness_device(0), 30 * MIB));
    ds_mem_label_push("greedy");
    no_memory(ds_mem_alloc(100 * MIB, s, &none));
    int line = __LINE__ - 1;
    ds_mem_label_pop();
    look_at_all();
    char frame[128];
    snprintf(frame, sizeof frame, "%s:%d:greedy", __FILE__, line);
    assert_int_equal(device_number(0, "oom"), 1);
    assert_int_equal(device_number(0, "oom_size"), 100 * MIB);
    assert_true(device_number(0, "oom_free") > 0);
    assert_string_equal(device_text(0, "last_frame"), frame);
    ok(ds_mem_set_limit(harness_device(0), 0));
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_labels_nest(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    ds_stream s = stream(0);
    void *p[4];
    ds_mem_label_push("outer");
    ds_mem_label_push("inner");
    p[0] = block(512, s);
    ds_mem_label_pop();
    p[1] = block(1024, s);
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1536, .stream = s, .label = "own" }, &p[2]));
    ds_mem_label_pop();
    p[3] = block(2048, s);
    assert_string_equal(find(p[0]).label, "inner");
    assert_string_equal(find(p[1]).label, "outer");
    assert_string_equal(find(p[2]).label, "own");
    assert_null(find(p[3]).label);
    ds_mem_label_pop(); /* one too many changes nothing */
    look_at_all();
    assert_string_equal(fact("labels"), "(no label),inner,outer,own");
    free_all(p, 4);
    ok(ds_stream_destroy(s));
    end_recording();
}

static void test_annotations_are_copied_and_kept_while_the_ring_has_them(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 8, 0);
    char text[400];
    memset(text, 'x', sizeof text);
    text[399] = 0;
    ok(ds_mem_annotate(harness_device(0), text));
    memset(text, 'y', 10);
    look_at_all();
    assert_int_equal(strlen(fact("annotation0")), 255 + 2);
    assert_int_equal(strspn(fact("annotation0") + 2, "x"), 255);
    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "step %d", i);
        ok(ds_mem_annotate(harness_device(0), text));
    }
    look_at_all();
    assert_int_equal(atoi(fact("annotations")), 8);
    assert_string_equal(fact("annotation0") + 2, "step 992");
    assert_string_equal(fact("annotation7") + 2, "step 999");
    refused(ds_mem_annotate(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
    refused_any(ds_mem_annotate((ds_device){ harness_device(0).type, 4711 }, "nowhere"));
    refused_any(ds_mem_annotate((ds_device){ harness_device(0).type, -1 }, "nowhere"));
    ok(ds_mem_history_stop());
    ok(ds_mem_annotate(harness_device(0), "nobody listens"));
    look_at_all();
    /* the second snapshot's entry has taken the place of the oldest */
    assert_int_equal(atoi(fact("annotations")), 7);
    end_recording();
}

/* ---- observers ---- */

typedef struct tally {
    ds_device device;
    int count[10];
    ds_mem_event last;
    int wrong;
} tally;

static void count_event(ds_device device, const ds_mem_event *event, void *user) {
    tally *t = user;
    t->count[event->action]++;
    t->last = *event;
    if (device.type != t->device.type || device.index != t->device.index ||
        ds_device_synchronize(device) != DS_ERR_NOT_PERMITTED)
        t->wrong = 1;
}

static void test_observers_are_told_everything_also_without_history(void **state) {
    (void)state;
    static tally one, two;
    begin(PRESET_TORCH);
    ok(ds_mem_history_stop());
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
    one.device = two.device = harness_device(0);
    ok(ds_mem_add_event_callback(count_event, &one));
    ok(ds_mem_add_event_callback(count_event, &two));
    ds_stream s = stream(0);
    void *p;
    ds_mem_label_push("seen");
    ok(ds_mem_alloc(1000, s, &p));
    int line = __LINE__ - 1;
    ds_mem_label_pop();
    assert_int_equal(one.count[DS_ACTION_SEGMENT_ALLOC], 1);
    assert_int_equal(one.count[DS_ACTION_ALLOC], 1);
    assert_int_equal(one.last.action, DS_ACTION_ALLOC);
    assert_true(one.last.address == (uintptr_t)p);
    assert_int_equal(one.last.bytes, 1000);
    assert_string_equal(one.last.label, "seen");
    assert_int_equal(one.last.site.line, line);
    assert_true(one.last.time_ns > 0 && one.last.time_ns <= now_ns());
    assert_true(one.last.pool.id == 0);
    ok(ds_mem_annotate(harness_device(0), "told"));
    assert_int_equal(one.count[DS_ACTION_ANNOTATION], 1);
    ok(ds_mem_remove_event_callback(count_event, &two));
    refused(ds_mem_remove_event_callback(count_event, &two), DS_ERR_INVALID_VALUE);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(one.count[DS_ACTION_FREE_REQUESTED], 1);
    assert_int_equal(one.count[DS_ACTION_FREE_COMPLETED], 1);
    assert_int_equal(one.count[DS_ACTION_SEGMENT_FREE], 1);
    assert_int_equal(two.count[DS_ACTION_FREE_COMPLETED], 0);
    assert_int_equal(one.wrong + two.wrong, 0);
    ok(ds_mem_remove_event_callback(count_event, &one));
    ok(ds_mem_free(block(1000, s)));
    assert_int_equal(one.count[DS_ACTION_ALLOC], 1);
    refused(ds_mem_add_event_callback(NULL, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    end_recording();
}

/* ---- threads ---- */

static _Atomic int over;

static _Atomic int churned; /* blocks */

static void *churn(void *user) {
    ds_stream s = harness_stream(0, 0);
    unsigned seed = (unsigned)(uintptr_t)user;
    void *p[16] = { NULL };
    while (!over) {
        seed = seed * 1664525 + 1013904223;
        unsigned i = seed >> 20 & 15;
        ok_thread(ds_mem_free(p[i]));
        ds_mem_label_push(i & 1 ? "odd" : "even");
        p[i] = block(512 + (seed >> 10) % (300 * KIB), s);
        ds_mem_label_pop();
        churned++;
        harness_nap();
    }
    for (int i = 0; i < 16; i++)
        ok_thread(ds_mem_free(p[i]));
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

/* Also where nothing else of the allocator was called before. */
static void test_observers_and_history_end_with_shutdown(void **state) {
    (void)state;
    static tally seen;
    memset(&seen, 0, sizeof seen);
    for (int history = 0; history < 2; history++) {
        harness_restart(NULL);
        if (history)
            ok(ds_mem_history_start(NULL));
        else
            ok(ds_mem_add_event_callback(count_event, &seen));
        harness_restart(NULL);
        ds_stream s = stream(0);
        void *p = block(1000, s);

        refused(ds_mem_remove_event_callback(count_event, &seen), DS_ERR_INVALID_VALUE);
        look_at_all();

        assert_int_equal(seen.count[DS_ACTION_ALLOC], 0);
        assert_int_equal(device_number(0, "events"), 0);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
    }
    end_recording();
}

static void test_snapshots_are_taken_beside_threads_that_allocate(void **state) {
    (void)state;
    not_on_windows("the programs that this test starts");
    begin_recording(PRESET_DEFAULT, 500, 0);
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.debug = 0;
    ok(ds_mem_configure(harness_device(0), &c));
    pthread_t threads[3];
    over = 0;
    for (uintptr_t i = 0; i < 3; i++)
        threads[i] = spawn(churn, (void *)(i + 1));
    for (int i = 0; i < 10; i++) {
        paper p = { 0 };
        ok(ds_mem_annotate(harness_device(0), "once more"));
        ok(ds_mem_write_snapshot(i % 2 ? DS_SNAPSHOT_JSON : DS_SNAPSHOT_HTML, 0, (ds_pool){ 0 },
                                 put, &p));
        free(p.text);
        if (i == 5)
            ok(ds_mem_history_start(&(ds_mem_history_desc){ .entries = 300 }));
        harness_nap();
    }
    look_at_all();
    over = 1;
    for (int i = 0; i < 3; i++)
        join(threads[i]);
    look_at_all();
    same_as_statistics(0);
    end_recording();
}

static void test_nothing_is_recorded_after_a_stop_however_many_allocate(void **state) {
    (void)state;
    not_on_windows("the programs that this test starts");
    begin_recording(PRESET_DEFAULT, 1000, 0);
    pthread_t threads[3];
    over = 0;
    churned = 0;
    for (uintptr_t i = 0; i < 3; i++)
        threads[i] = spawn(churn, (void *)(i + 1));
    /* on a busy machine that may take a while */
    while (churned < 60)
        harness_nap();
    ok(ds_mem_history_stop());
    partial = 1;
    look_at_all();
    int64_t events = device_number(0, "events"), size = device_number(0, "last_size");
    for (int i = 0; i < 20; i++)
        harness_nap();
    over = 1;
    for (int i = 0; i < 3; i++)
        join(threads[i]);
    look_at_all();
    assert_int_equal(device_number(0, "events"), events);
    assert_int_equal(device_number(0, "last_size"), size);
    end_recording();
}

/* ---- what goes wrong ---- */

static void test_a_writer_that_stops_ends_the_snapshot(void **state) {
    (void)state;
    begin_recording(PRESET_DEFAULT, 0, 0);
    scene c;
    scene_make(&c, 0);
    for (int f = 0; f <= DS_SNAPSHOT_HTML; f++) {
        ds_result r = DS_ERR_SYSTEM;
        int most = 1;
        for (; r != DS_OK; most++) {
            paper p = { .most = most };
            r = ds_mem_write_snapshot((ds_mem_format)f, 0, (ds_pool){ 0 }, put, &p);
            free(p.text);
            if (r == DS_OK)
                break;
            assert_int_equal(r, DS_ERR_SYSTEM);
            assert_non_null(strstr(ds_error_get_last(), "77"));
            assert_int_equal(p.pieces, most + 1); /* it is not asked again */
        }
        assert_true(most >= 1);
    }
    scene_end(&c);
    end_recording();
}

static int put_and_call(const char *text, size_t size, void *user) {
    (void)text;
    (void)size;
    *(ds_result *)user = ds_device_synchronize(harness_device(0));
    return 0;
}

static void test_snapshots_refuse_what_they_cannot_do(void **state) {
    (void)state;
    paper p = { 0 };
    ds_result inside = DS_OK;
    refused(ds_mem_write_snapshot(DS_SNAPSHOT_PICKLE, 0, (ds_pool){ 0 }, NULL, NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_write_snapshot((ds_mem_format)3, 0, (ds_pool){ 0 }, put, &p),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_write_snapshot((ds_mem_format)-1, 0, (ds_pool){ 0 }, put, &p),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 2, (ds_pool){ 0 }, put, &p),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 4711 }, put, &p),
            DS_ERR_INVALID_HANDLE);
    refused(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, "/no/such/folder/snapshot"),
            DS_ERR_SYSTEM);
    if (harness_has_full_device())
        refused(ds_mem_write_snapshot_file(DS_SNAPSHOT_HTML, 0, "/dev/full"), DS_ERR_SYSTEM);
    assert_null(p.text);
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, put_and_call, &inside));
    assert_int_equal(inside, DS_ERR_NOT_PERMITTED);
}

/* The bookkeeping memory of devstream, of which the n-th piece can be refused. */
static _Atomic int pieces_out, until_refusal;

static void *give(size_t size, void *user) {
    (void)user;
    if (until_refusal && --until_refusal == 0)
        return NULL;
    void *p = malloc(size);
    if (p)
        pieces_out++;
    return p;
}

static void take_back(void *ptr, void *user) {
    (void)user;
    if (ptr)
        pieces_out--;
    free(ptr);
}

static void test_a_snapshot_without_memory_fails_and_leaves_nothing(void **state) {
    (void)state;
    const ds_init_desc init = { .allocator = { give, take_back, NULL } };
    harness_restart(&init);
    begin_recording(PRESET_DEFAULT, 100, 0);
    scene c;
    scene_make(&c, 0);
    for (int f = 0; f <= DS_SNAPSHOT_HTML; f++) {
        int before = pieces_out, n = 1;
        for (;; n++) {
            paper p = { 0 };
            until_refusal = n;
            ds_result r = ds_mem_write_snapshot((ds_mem_format)f, 0, (ds_pool){ 0 }, put, &p);
            int left = until_refusal;
            until_refusal = 0;
            assert_int_equal(pieces_out, before);
            free(p.text);
            if (left > 0) {
                assert_int_equal(r, DS_OK);
                break;
            }
            assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
            harness_sentence(ds_error_get_last(), "ds_mem_write_snapshot");
        }
        assert_true(n > 5);
    }
    until_refusal = 1;
    refused(ds_mem_history_start(NULL), DS_ERR_OUT_OF_MEMORY);
    until_refusal = 1;
    refused(ds_mem_annotate(harness_device(0), "no room"), DS_ERR_OUT_OF_MEMORY);
    until_refusal = 1;
    refused(ds_mem_add_event_callback(count_event, NULL), DS_ERR_OUT_OF_MEMORY);
    walk w = { .ordered = 1, .device = harness_device(0) };
    until_refusal = 1;
    refused(ds_mem_for_each_block(harness_device(0), walk_block, &w), DS_ERR_OUT_OF_MEMORY);
    until_refusal = 0;
    look_at_all(); /* the history that was there goes on */
    assert_int_equal(device_number(0, "oom"), 0);
    assert_true(device_number(0, "snapshot") > 0);
    scene_end(&c);
    end_recording();
    harness_shutdown();
    assert_int_equal(pieces_out, 0);
    harness_restart(NULL);
}

const struct CMUnitTest tests_memory_snapshot[] = {
    DS_TEST(test_totals_of_a_snapshot_are_the_statistics, "torch 47"),
    DS_TEST(test_the_pickle_is_what_python_and_pytorchs_viewer_read,
            "torch 60, torch 61, torch 62, torch 63"),
    DS_TEST(test_a_large_snapshot_is_read_too, "snapshots"),
    DS_TEST(test_json_says_the_same_as_the_pickle, "snapshots"),
    DS_TEST(test_texts_that_are_odd_are_written_so_that_they_can_be_read, "snapshots"),
    DS_TEST(test_without_history_the_totals_are_the_same, "torch 65"),
    DS_TEST(test_a_snapshot_leaves_an_entry_for_the_next, "torch 60"),
    DS_TEST(test_the_snapshot_of_a_pool_has_only_its_own, "torch 99, torch 100"),
    DS_TEST(test_a_hole_in_a_growing_segment_parts_it, "torch 99"),
    DS_TEST(test_memory_of_a_capture_has_the_pool_of_its_graph, "torch 100"),
    DS_TEST(test_each_device_has_its_own_list, "peers 115"),
    DS_TEST(test_the_page_needs_no_network, "snapshots"),
    DS_TEST(test_the_page_opens_in_a_browser_without_errors, "snapshots"),
    DS_TEST(test_a_page_without_anything_opens_too, "snapshots"),
    DS_TEST(test_each_block_is_shown_in_the_order_of_addresses, "snapshots"),
    DS_TEST(test_history_is_off_until_it_is_started, "peers 115"),
    DS_TEST(test_history_can_start_before_a_device_is_used, "peers 115"),
    DS_TEST(test_the_ring_keeps_the_newest_from_the_oldest_of_them, "peers 115"),
    DS_TEST(test_a_start_clears_and_a_stop_keeps, "peers 115"),
    DS_TEST(test_every_action_can_be_left_out, "torch 61, peers 115"),
    DS_TEST(test_segments_come_and_go_in_the_history, "torch 60"),
    DS_TEST(test_memory_of_the_driver_has_segments_in_the_history, "snapshots"),
    DS_TEST(test_running_out_of_memory_is_an_entry, "torch 58"),
    DS_TEST(test_labels_nest, "peers 115"),
    DS_TEST(test_annotations_are_copied_and_kept_while_the_ring_has_them, "peers 115"),
    DS_TEST(test_observers_are_told_everything_also_without_history, "torch 64"),
    DS_TEST(test_observers_and_history_end_with_shutdown, "torch 64"),
    DS_TEST(test_snapshots_are_taken_beside_threads_that_allocate, "peers 115"),
    DS_TEST(test_nothing_is_recorded_after_a_stop_however_many_allocate, "peers 115"),
    DS_TEST(test_a_writer_that_stops_ends_the_snapshot, "snapshots"),
    DS_TEST(test_snapshots_refuse_what_they_cannot_do, "snapshots"),
    DS_TEST(test_a_snapshot_without_memory_fails_and_leaves_nothing, "snapshots"),
};
const size_t tests_memory_snapshot_count =
    sizeof tests_memory_snapshot / sizeof *tests_memory_snapshot;
