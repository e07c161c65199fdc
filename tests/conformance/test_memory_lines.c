/* Lines of the checklists about memory that no other file has: torch's and CuPy's programs with
   their exact numbers, and limits of sharing.

   Lines that have no meaning here: torch 63, 101 and 61 in part (stacks are of Python; a block
   has one line of one file). Not offered: peers 90 in part (one stream's cache is not emptied by
   itself: it may have a pool), 96, 102 (managed memory), 105 in part (no tree of callers), 111,
   112 (nobody sleeps until another thread frees). */
#include "layout.h"

#include <unistd.h>

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static size_t reserved(int device) {
    return ds_mem_get_reserved(harness_device(device));
}

static const ds_pool none;

static ds_mem_config config_with(int preset, const char *text) {
    ds_mem_config c = config_of(preset);
    ok(ds_mem_config_parse(text, &c));
    return c;
}

/* ---- what a snapshot says ---- */

typedef struct text {
    char *at;
    size_t size;
} text;

static int add_text(const char *piece, size_t size, void *user) {
    text *t = user;
    char *more = realloc(t->at, t->size + size + 1);
    if (!more)
        return -1;
    memcpy(more + t->size, piece, size);
    more[t->size + size] = 0;
    t->at = more;
    t->size += size;
    return 0;
}

/* The number behind "key": in the line that begins here; lines are segments, blocks and events. */
static int64_t number_in(const char *line, const char *key) {
    char quoted[64];
    const char *end = strchr(line, '\n');
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    if (!at || (end && at > end))
        fail_msg("%s is missing in %.200s", key, line);
    return strtoll(at + strlen(quoted), NULL, 10);
}

static int line_has(const char *line, const char *words) {
    const char *at = strstr(line, words), *end = strchr(line, '\n');
    return at && (!end || at < end);
}

enum {
    ALLOCATION,
    SEGMENT,
    ACTIVE,
    SPLIT,
    ALLOCATED_BYTES,
    RESERVED_BYTES,
    ACTIVE_BYTES,
    SPLIT_BYTES,
    REQUESTED_BYTES,
    QUANTITIES
};

static const char *const quantities[] = { "allocation",      "segment",
                                          "active",          "inactive_split",
                                          "allocated_bytes", "reserved_bytes",
                                          "active_bytes",    "inactive_split_bytes",
                                          "requested_bytes" };

/* Adds a segment's line and those of its blocks up; device is its number in the snapshot. The
   next segment, or NULL. */
static const char *add_segment(const char *line, int64_t device, int64_t sum[QUANTITIES][3]) {
    int64_t add[QUANTITIES] = { 0 };
    int kind = line_has(line, "\"segment_type\":\"small\"") ? DS_STAT_SMALL : DS_STAT_LARGE,
        plain = line_has(line, "\"is_expandable\":false"), blocks = 0;
    int ours = number_in(line, "device") == device;
    add[SEGMENT] = plain;
    add[RESERVED_BYTES] = number_in(line, "total_size");
    while ((line = strchr(line, '\n')) != NULL && line_has(++line, "\"state\":")) {
        int64_t size = number_in(line, "size");
        int live = line_has(line, "\"active_allocated\""),
            free_block = line_has(line, "\"inactive\"");
        blocks++;
        add[ALLOCATION] += live;
        add[ALLOCATED_BYTES] += live ? size : 0;
        add[ACTIVE] += !free_block;
        add[ACTIVE_BYTES] += free_block ? 0 : size;
        add[REQUESTED_BYTES] += free_block ? 0 : number_in(line, "requested_size");
        add[SPLIT] += free_block && plain;
        add[SPLIT_BYTES] += free_block && plain ? size : 0;
    }
    /* the whole segment is no piece of one */
    if (blocks == 1)
        add[SPLIT] = add[SPLIT_BYTES] = 0;
    for (int q = 0; ours && q < QUANTITIES; q++) {
        sum[q][kind] += add[q];
        sum[q][DS_STAT_ALL] += add[q];
    }
    return line && line_has(line, "\"total_size\":") ? line : NULL;
}

/* Devices are numbered with the GPUs first. */
static int64_t number_of_device(int device) {
    int gpus = 0;
    if (harness_is_cpu() && ds_device_get_count(DS_DEVICE_CUDA, &gpus) != DS_OK)
        gpus = 0;
    return harness_device(device).index + gpus;
}

static void sums_are_the_statistics(int device) {
    static const char *const kinds[] = { "all", "small_pool", "large_pool" };
    int64_t sum[QUANTITIES][3] = { { 0 } };
    text t = { 0 };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, DS_SNAPSHOT_NO_HISTORY, none, add_text, &t));
    const char *line = strchr(t.at, '\n');
    for (line = line && line_has(line + 1, "\"total_size\":") ? line + 1 : NULL; line;)
        line = add_segment(line, number_of_device(device), sum);
    for (int q = 0; q < QUANTITIES; q++)
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s.current", quantities[q], kinds[k]);
            if (stat(device, name) != sum[q][k])
                fail_msg("%s is %lld, and %lld in the snapshot", name,
                         (long long)stat(device, name), (long long)sum[q][k]);
        }
    free(t.at);
}

static unsigned next_random(unsigned *seed) {
    return *seed = *seed * 1103515245u + 12345u, *seed >> 8;
}

static void test_a_snapshot_adds_up_to_every_current_statistic(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        void *live[40] = { 0 };
        unsigned seed = 5;
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), t = stream(0), user = stream(0);
        ds_pool pool = new_pool();
        gate_close(user, &g);
        for (int i = 0; i < 300; i++) {
            unsigned k = next_random(&seed) % 40;
            if (live[k]) {
                /* which stays pending */
                if (i % 7 == 0)
                    ok(ds_mem_record_use(live[k], user));
                ok(ds_mem_free(live[k]));
                live[k] = NULL;
            } else {
                size_t size = next_random(&seed) % (k % 4 ? 9000 : 7000000) + 1;
                live[k] = k % 10 == 9 ? block_in(pool, size, s) : block(size, k % 2 ? s : t);
            }
            if (i % 20 == 0)
                sums_are_the_statistics(0);
        }
        sums_are_the_statistics(0);
        assert_true(stat(0, "active.all.current") > stat(0, "allocation.all.current"));
        gate_open(&g);
        ok(ds_stream_synchronize(user));
        for (int i = 0; i < 40; i++)
            ok(ds_mem_free(live[i]));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        sums_are_the_statistics(0);
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void test_a_snapshot_has_address_size_and_line_of_a_block(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        char words[600], allocated_at[600];
        text t = { 0 };
        void *p = NULL;
        begin(preset);
        ok(ds_mem_history_start(NULL));
        ds_stream s = stream(0);
        ok(ds_mem_alloc(311 * 411 * 4, s, &p));
        int line = __LINE__ - 1;
        ok(ds_mem_free(block(700, s)));
        ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, none, add_text, &t));
        snprintf(allocated_at, sizeof allocated_at, "\"filename\":\"%s\",\"line\":%d,", __FILE__,
                 line);
        snprintf(words, sizeof words, "{\"address\":%llu,", (unsigned long long)(uintptr_t)p);
        const char *at = strstr(t.at, words);
        /* a segment may begin there too */
        while (at && !line_has(at, "\"state\":\"active_allocated\""))
            at = strstr(at + 1, words);
        if (!at)
            fail_msg("there is no block at %p", p);
        assert_int_equal(number_in(at, "requested_size"), 311 * 411 * 4);
        assert_int_equal(number_in(at, "size"), (int64_t)size_of(p));
        assert_true(line_has(at, allocated_at));
        /* and so has its event */
        snprintf(words, sizeof words, "{\"action\":\"alloc\",\"addr\":%llu,",
                 (unsigned long long)(uintptr_t)p);
        assert_non_null(at = strstr(t.at, words));
        assert_int_equal(number_in(at, "size"), 311 * 411 * 4);
        assert_true(line_has(at, allocated_at));
        free(t.at);
        ok(ds_mem_free(p));
        ok(ds_mem_history_stop());
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_snapshot_says_what_the_policy_is(void **state) {
    (void)state;
    static const char *const words[] = { "\"max_split_size\":67108864,",
                                         "\"garbage_collection_threshold\":0.600000,",
                                         "\"expandable_segments\":true,",
                                         "\"pinned_num_register_threads\":8,",
                                         "\"release_lock_on_cudamalloc\":true,",
                                         "\"pinned_use_cuda_host_register\":true,",
                                         "\"graph_capture_record_stream_reuse\":true,",
                                         "\"roundup_power2_divisions\":{\"1\":1099511627776,",
                                         "\"32768\":1099511627776}",
                                         "\"trace_alloc_overflowed\":false,",
                                         "\"trace_alloc_max_entries\":",
                                         "\"max_round_threshold\":3145728,",
                                         "\"max_cached_size\":5242880}" };
    ds_mem_config c = config_with(
        PRESET_TORCH, "max_split_size_mb:64,garbage_collection_threshold:0.6,"
                      "expandable_segments:True,pinned_num_register_threads:8,"
                      "pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True,"
                      "roundup_power2_divisions:1099511627776,pinned_max_round_"
                      "threshold_mb:3,pinned_max_cached_size_mb:5");
    text t = { 0 };
    harness_restart(NULL); /* no device was used before */
    begin_with(&c);
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, none, add_text, &t));
    const char *at = strstr(t.at, "\"allocator_settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\"");
    assert_non_null(at);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(at, words[i]))
            fail_msg("%s is not in %.900s", words[i], at);
    free(t.at);
    t = (text){ 0 };
    c = config_with(PRESET_TORCH, "");
    set_config(&c);
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, none, add_text, &t));
    assert_non_null(strstr(t.at, "\"max_split_size\":-1,"));
    assert_non_null(strstr(t.at, "\"expandable_segments\":false,"));
    assert_non_null(strstr(t.at, "\"roundup_power2_divisions\":{\"1\":0,"));
    assert_non_null(strstr(t.at, "\"max_round_threshold\":-1,\"max_cached_size\":-1}"));
    free(t.at);
    finish();
    harness_restart(NULL);
}

/* ---- the device's memory ---- */

static void test_free_memory_drops_by_what_is_reserved(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int device = 0; device < harness_device_count() && device < 2;
             device++) { /* device 0 is current */
            size_t before[2], total[2], after, still;
            begin(preset);
            ds_stream s = stream(device);
            for (int d = 0; d < harness_device_count() && d < 2; d++)
                ok(ds_device_get_memory_info(harness_device(d), &before[d], &total[d]));
            void *p = block(8 * MIB * 4, s);
            ok(ds_device_get_memory_info(harness_device(device), &after, &still));
            assert_int_equal(still, total[device]);
            assert_true(after < before[device]);
            assert_true(before[device] - after >= 8 * MIB * 4);
            if (harness_is_cpu())
                assert_int_equal(before[device] - after, reserved(device));
            if (harness_device_count() > 1) { /* the other one's stays */
                ok(ds_device_get_memory_info(harness_device(!device), &after, &still));
                assert_int_equal(after, before[!device]);
                assert_int_equal(reserved(!device), 0);
            }
            ok(ds_mem_free(p));
            ok(ds_mem_empty_cache(harness_device(device), NULL));
            ok(ds_device_get_memory_info(harness_device(device), &after, &still));
            assert_int_equal(after, before[device]);
            ok(ds_stream_destroy(s));
            finish();
        }
}

static void test_less_than_half_of_the_device_fits_into_half_of_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_cpu_desc cpu = { .devices = 2, .memory_limit = 1024 * MIB + 4096 };
        ds_init_desc init = { .cpu = &cpu };
        void *p = &p;
        clear_memory();
        harness_restart(&init);
        begin(preset);
        ds_stream s = stream(0);
        /* growing segments have whole pages */
        size_t total = device_memory(0), page = config_of(preset).large_segment_size;
        if (harness_is_cpu())
            assert_int_equal(total, 1024 * MIB + 4096);
        ok(ds_mem_set_fraction(harness_device(0), 0.5));
        ok(ds_mem_alloc((size_t)(0.499 * (double)total) / page * page, s, &p));
        ok(ds_mem_free(p));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        refused(ds_mem_alloc(total / 2 + 1, s, &p), DS_ERR_LIMIT_EXCEEDED);
        assert_null(p);
        ok(ds_mem_set_fraction(harness_device(0), 1)); /* the device is none the worse for it */
        ok(ds_mem_alloc(total / 2 + 1, s, &p));
        paint(p, 5000, 1, s);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        finish();
        harness_restart(NULL);
    }
}

static void test_a_size_no_device_has_is_refused_with_any_split_size(void **state) {
    (void)state;
    static const char *const texts[] = {
        "", "max_split_size_mb:32",
        "max_split_size_mb:32,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9"
    };
    for (int preset = 0; preset < PRESETS; preset++)
        for (size_t i = HARNESS_EMULATES ? 2 : 0; i < sizeof texts / sizeof *texts; i++) {
            ds_mem_config c = config_with(preset, texts[i]);
            void *p = &p;
            begin_with(&c);
            ds_stream s = stream(0);
            looks *l = looks_create(200000);
            void *live = block(5000, s), *cached = block(40 * MIB, s);
            paint(live, 5000, 7, s);
            ok(ds_mem_free(cached));
            /* qemu keeps a table of all pages */
            no_memory(
                ds_mem_alloc(HARNESS_EMULATES ? 2 * device_memory(0) : (size_t)1 << 40, s, &p));
            assert_null(p);
            assert_int_equal(stat(0, "num_ooms"), 1);
            p = block(40 * MIB, s);
            paint(p, 40 * MIB, 8, s);
            look(l, live, 5000, 7, s);
            look(l, p, 40 * MIB, 8, s);
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_mem_free(p));
            ok(ds_mem_free(live));
            ok(ds_stream_destroy(s));
            finish();
        }
}

/* Calls of the stand-in for cudart, where it is linked in. */
unsigned standin_contexts(void) __attribute__((weak));

static void test_devices_that_were_not_used_are_not_begun_with(void **state) {
    (void)state;
    two_devices();
    harness_shutdown();
    ds_device other = harness_device(1);
    unsigned before = standin_contexts ? standin_contexts() : 0;
    size_t released = 5;
    ok(ds_mem_empty_cache(other, &released));
    assert_int_equal(released, 0);
    ok(ds_mem_trim(other, 0, NULL));
    assert_int_equal(ds_mem_get_allocated(other), 0);
    assert_int_equal(ds_mem_get_reserved(other), 0);
    assert_int_equal(stat(1, "num_sync_all_streams"), 0);
    ok(ds_mem_reset_peak_stats(other));
    ok(ds_mem_reset_accumulated_stats(other));
    /* no context was made for it */
    if (standin_contexts)
        assert_int_equal(standin_contexts(), before);
}

/* ---- where segments lie ---- */

/* An upstream that hands out places of one large allocation, in the order that it is told. */
enum { PLACES = 8, PLACE = 64 << 20 };

static struct {
    char *base;
    int order[PLACES], given;
    char *at[PLACES];
} shelf;

static void *shelf_alloc(ptrdiff_t size, int device, void *s) {
    (void)device;
    (void)s;
    if (size > PLACE || shelf.given == PLACES)
        return NULL;
    char *p = shelf.base + (size_t)shelf.order[shelf.given] * PLACE;
    shelf.at[shelf.given++] = p;
    return p;
}

static void shelf_free(void *ptr, ptrdiff_t size, int device, void *s) {
    (void)ptr;
    (void)size;
    (void)device;
    (void)s;
}

/* In which order segments are used again; they are numbered as they were made. */
static void reuse_order(int preset, const int order[PLACES], int out[PLACES]) {
    void *p[PLACES];
    begin(preset);
    ds_stream s = stream(0);
    void *base;
    memset(&shelf, 0, sizeof shelf);
    ok(ds_device_alloc(harness_device(0), (size_t)PLACES * PLACE, &base));
    shelf.base = base;
    memcpy(shelf.order, order, sizeof shelf.order);
    ds_pool pool = pool_with((ds_pool_desc){ .alloc_fn = shelf_alloc, .free_fn = shelf_free });
    for (int i = 0; i < PLACES; i++) {
        p[i] = block_in(pool, PLACE, s);
        assert_int_equal(shelf.given, i + 1);
        assert_ptr_equal(p[i], shelf.at[i]);
    }
    for (int i = 0; i < PLACES; i++)
        ok(ds_mem_free(p[i * 3 % PLACES]));
    for (int i = 0; i < PLACES; i++) {
        p[i] = block_in(pool, PLACE, s);
        out[i] = -1;
        for (int k = 0; k < PLACES; k++)
            if (p[i] == shelf.at[k])
                out[i] = k;
    }
    assert_int_equal(shelf.given, PLACES);
    for (int i = 0; i < PLACES; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_pool_destroy(pool));
    ok(ds_device_free(base));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_order_of_reuse_does_not_depend_on_addresses(void **state) {
    (void)state;
    static const int orders[3][PLACES] = { { 0, 1, 2, 3, 4, 5, 6, 7 },
                                           { 7, 6, 5, 4, 3, 2, 1, 0 },
                                           { 3, 7, 0, 5, 1, 6, 2, 4 } };
    for (int preset = 0; preset < PRESETS; preset++) {
        int used[3][PLACES];
        for (int i = 0; i < 3; i++)
            reuse_order(preset, orders[i], used[i]);
        for (int i = 0; i < PLACES; i++) {
            assert_true(used[0][i] >= 0);
            if (used[0][i] != used[1][i] || used[0][i] != used[2][i])
                fail_msg("%s: the %d. block is in segment %d, %d and %d", preset_name(preset), i,
                         used[0][i], used[1][i], used[2][i]);
        }
    }
}

/* ---- pools ---- */

static size_t segments_of(ds_pool pool) {
    return layout_of(0, pool).segments;
}

typedef struct in_pool {
    ds_pool pool;
    ds_stream s;
    void *p[3];
} in_pool;

static void *allocate_three(void *arg) {
    in_pool *t = arg;
    if (t->pool.id)
        ok_thread(ds_pool_push(t->pool));
    for (int i = 0; i < 3; i++)
        t->p[i] = block(20 * MIB, t->s);
    if (t->pool.id)
        ok_thread(ds_pool_pop());
    return NULL;
}

static void test_only_the_thread_that_pushed_it_fills_a_pool(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_CUPY, PRESET_PLAIN };
    for (int i = 0; i < 3; i++) {
        begin(presets[i]);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        in_pool in = { .pool = pool, .s = s }, out = { .s = s };
        ok(ds_pool_push(pool));
        assert_int_equal(segments_of(pool), 0);
        void *p = block(20 * MIB, s);
        assert_int_equal(segments_of(pool), 1);
        join(spawn(allocate_three, &out)); /* a thread without it */
        assert_int_equal(segments_of(pool), 1);
        join(spawn(allocate_three, &in));
        assert_int_equal(segments_of(pool), 4);
        ok(ds_pool_pop());
        ok(ds_mem_free(p));
        for (int k = 0; k < 3; k++) {
            ok(ds_mem_free(in.p[k]));
            ok(ds_mem_free(out.p[k]));
        }
        ok(ds_pool_empty_cache(pool, NULL));
        assert_int_equal(segments_of(pool), 0);
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_nested_pools_have_two_two_and_one_segments(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool outer = new_pool(), middle = new_pool(), inner = new_pool();
    void *p[5];
    ok(ds_pool_push(outer));
    p[0] = block(20 * MIB, s);
    ok(ds_pool_push(middle));
    p[1] = block(20 * MIB, s);
    ok(ds_pool_push(inner));
    p[2] = block(20 * MIB, s);
    ok(ds_pool_pop());
    p[3] = block(20 * MIB, s);
    ok(ds_pool_pop());
    p[4] = block(20 * MIB, s);
    ok(ds_pool_pop());
    assert_int_equal(segments_of(outer), 2);
    assert_int_equal(segments_of(middle), 2);
    assert_int_equal(segments_of(inner), 1);
    assert_int_equal(segments_of(none), 0);
    for (int i = 0; i < 5; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_pool_destroy(outer));
    ok(ds_pool_destroy(middle));
    ok(ds_pool_destroy(inner));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_pool_with_an_upstream_helps_out_with_equal_addresses(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int helps = 0; helps < 2; helps++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0);
            memset(&up, 0, sizeof up);
            ds_pool pool = pool_with(
                (ds_pool_desc){ .alloc_fn = up_alloc, .free_fn = up_free, .use_on_oom = helps });
            void *p = block_in(pool, 20 * MIB, s), *q = NULL;
            assert_int_equal(up.allocs, 1);
            ok(ds_mem_set_limit(harness_device(0), reserved(0)));
            no_memory(ds_mem_alloc(20 * MIB, s, &q)); /* it has none that is free */
            ok(ds_mem_free(p));
            if (helps) {
                gate_close(s, &g); /* on its own stream memory is used again at once */
                pthread_t thread = spawn(open_later, &g);
                q = block(20 * MIB, s);
                assert_ptr_equal(q, p);
                assert_true(find(q).pool.id == pool.id);
                ok(ds_mem_free(q));
                q = block_in(pool, 20 * MIB, s); /* and the pool has it back */
                assert_ptr_equal(q, p);
                join(thread);
                ok(ds_stream_synchronize(s));
                ok(ds_mem_free(q));
            } else {
                no_memory(ds_mem_alloc(20 * MIB, s, &q));
            }
            assert_int_equal(up.allocs, 1);
            ok(ds_mem_set_limit(harness_device(0), 0));
            ok(ds_pool_destroy(pool));
            assert_int_equal(up.frees, 1);
            assert_int_equal(up.strange, 0);
            ok(ds_stream_destroy(s));
            finish();
        }
}

/* ---- captures ---- */

/* x is read by others and freed; then another block is allocated, before or after the capturing
   stream has waited for them. */
static void reuse_in_capture(int preset, int streams, int joined) {
    enum { SIZE = 32 << 20 }; /* nothing that is left over beside it is as large */

    ds_mem_config c = config_with(preset, "graph_capture_record_stream_reuse:True");
    begin_with(&c);
    harness_warm_up();
    ds_stream s = stream(0), t[3];
    looks *l = looks_create(300000);
    ds_graph g;
    harness_watch(s);
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    void *p = block(SIZE, s);
    paint(p, SIZE, 1, s);
    for (int i = 0; i < streams; i++) {
        t[i] = stream(0);
        ok(ds_stream_wait_stream(t[i], s));
        look(l, p, SIZE, 1, t[i]);
        ok(ds_mem_record_stream(p, t[i]));
    }
    ok(ds_mem_free(p));
    for (int i = 0; joined && i < streams; i++)
        ok(ds_stream_wait_stream(s, t[i]));
    void *q = block(SIZE, s);
    if (joined && q != p)
        fail_msg("%s, %d streams: the memory is not used again", preset_name(preset), streams);
    paint(q, SIZE, 2, s);
    look(l, q, SIZE, 2, s);
    for (int i = 0; !joined && i < streams; i++)
        ok(ds_stream_wait_stream(s, t[i]));
    ok(ds_mem_free(q));
    ok(ds_capture_end(s, &g));
    ds_graph_exec exec = instantiate_graph(g);
    for (int i = 0; i < 2; i++) {
        ok(ds_graph_launch(exec, s));
        ok(ds_stream_synchronize(s));
    }
    assert_true(looks_right(l));
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(g));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    for (int i = 0; i < streams; i++)
        ok(ds_stream_destroy(t[i]));
    await_graphs_memory(0);
    finish();
}

static void test_a_capture_uses_memory_again_that_it_has_waited_for(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int joined = 0; joined < 2; joined++) {
            reuse_in_capture(preset, 1, joined);
            reuse_in_capture(preset, 3, joined);
        }
}

/* ---- CuPy's pool in its units ---- */

static void test_a_limit_of_six_units_holds_whatever_was_set_before(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0);
    ok(ds_mem_set_limit(harness_device(0), 6 * UNIT));
    void *p = block(5 * UNIT, s);
    ok(ds_mem_free(p));
    p = block(6 * UNIT, s);
    assert_int_equal(reserved(0), 6 * UNIT);
    ok(ds_mem_free(p));
    void *q = block(2 * UNIT, s), *r = block(4 * UNIT, s); /* both from what is there */
    assert_int_equal(reserved(0), 6 * UNIT);
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_set_limit(harness_device(0), 0));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_free_blocks_are_none_then_one_then_none(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0);
    assert_int_equal(layout_of(0, none).blocks[DS_BLOCK_FREE], 0);
    void *p = block(1, s);
    assert_int_equal(layout_of(0, none).blocks[DS_BLOCK_FREE], 0);
    ok(ds_mem_free(p));
    assert_int_equal(layout_of(0, none).blocks[DS_BLOCK_FREE], 1);
    assert_int_equal(layout_of(0, none).bytes[DS_BLOCK_FREE], UNIT);
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(layout_of(0, none).blocks[DS_BLOCK_FREE], 0);
    assert_int_equal(reserved(0), 0);
    ok(ds_stream_destroy(s));
    finish();
}

/* What another stream has freed is no use to this one, and counts all the same. */
static void test_used_free_and_total_bytes_of_two_streams(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0), t = stream(0);
    ds_device d = harness_device(0);
    void *p = block(4 * UNIT, s);
    ok(ds_mem_free(p));
    void *q = block(2 * UNIT, t);
    assert_int_equal(ds_mem_get_allocated(d), 2 * UNIT);
    assert_int_equal(layout_of(0, none).bytes[DS_BLOCK_FREE], 4 * UNIT);
    assert_int_equal(ds_mem_get_reserved(d), 6 * UNIT);
    ok(ds_mem_free(q));
    assert_int_equal(ds_mem_get_allocated(d), 0);
    assert_int_equal(ds_mem_get_reserved(d), 6 * UNIT);
    ok(ds_mem_empty_cache(d, NULL)); /* of all streams */
    assert_int_equal(ds_mem_get_reserved(d), 0);
    p = block(4 * UNIT, s);
    q = block(4 * UNIT, t);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    assert_int_equal(ds_mem_get_reserved(d), 8 * UNIT);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

/* ---- the driver's pool ---- */

static void test_a_block_of_the_drivers_pool_remembers_its_stream(void **state) {
    (void)state;
    ds_mem_config c = config_with(PRESET_DEFAULT, "backend:cudaMallocAsync");
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0);
    uint64_t id;
    void *p = NULL;
    ok(ds_stream_get_id(s, &id));
    DS_STREAM_SCOPE(t) {
        p = block(5000, s);
    }
    assert_true(find((char *)p + 4999).stream == id);
    ok(ds_stream_destroy(s));
    assert_true(find(p).stream == id);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_most_of_a_device_and_then_the_rest_by_the_drivers_pool(void **state) {
    (void)state;
    scarce sc;
    ds_mem_config c = config_with(PRESET_DEFAULT, "backend:cudaMallocAsync");
    size_t before, after, total;
    scarce_begin(&sc, 100 * MIB, &c);
    ds_stream s = stream(0);
    ok(ds_device_get_memory_info(harness_device(0), &before, &total));
    void *p = block(70 * MIB, s), *q;
    paint(p, 70 * MIB, 1, s);
    ok(ds_mem_free(p));
    q = block(30 * MIB, s); /* while the driver still has the other */
    paint(q, 30 * MIB, 2, s);
    ok(ds_mem_free(q));
    assert_int_equal(stat(0, "num_ooms"), 0);
    ok(ds_stream_synchronize(s));
    /* a GPU may use the freed memory again, and its pool grows by 32 MiB (H200) */
    size_t reserved = ds_mem_get_reserved(harness_device(0));
    assert_true(harness_is_cpu() ? !reserved : reserved >= 70 * MIB && reserved <= 128 * MIB);
    ok(ds_mem_empty_cache(harness_device(0), NULL)); /* now others may have it */
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_int_equal(after, before);
    c = config_of(PRESET_TORCH);
    ok(ds_mem_configure(harness_device(0), &c));
    p = block(70 * MIB, s);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
    scarce_end(&sc);
}

typedef struct most {
    ds_stream s;
    size_t size;
    ds_result result;
} most;

static void *hold_most(void *arg) {
    most *m = arg;
    void *p = NULL;
    m->result = ds_mem_alloc(m->size, m->s, &p);
    if (p)
        paint(p, m->size, 3, m->s);
    ok_thread(ds_mem_free(p));
    return NULL;
}

/* Each thread in its turn gets three quarters of the device, on a stream of its own, by each
   backend; what the one before had goes back. */
static void test_three_quarters_of_a_device_go_from_thread_to_thread(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        scarce sc;
        ds_mem_config c = config_of(PRESET_TORCH);
        most m[3];
        c.backend = backend;
        scarce_begin(&sc, 100 * MIB, &c);
        for (int i = 0; i < 3; i++) {
            m[i] = (most){ stream(0), 75 * MIB, DS_OK };
            join(spawn(hold_most, &m[i]));
            if (m[i].result != DS_OK)
                fail_msg("backend %d, thread %d: %s", backend, i, ds_result_get_name(m[i].result));
        }
        assert_int_equal(stat(0, "num_ooms"), 0);
        for (int i = 0; i < 3; i++)
            ok(ds_stream_destroy(m[i].s));
        finish();
        scarce_end(&sc);
    }
}

/* Neighbours in memory, each used by a stream of its own and freed before that has come to it;
   one of them is held up. */
static void test_memory_of_the_drivers_pool_freed_early_on_many_streams(void **state) {
    (void)state;

    enum { STREAMS = 64, PER = 3, SIZE = 3 * 512 };

    ds_mem_config c = config_with(PRESET_DEFAULT, "backend:cudaMallocAsync");
    ds_stream s[STREAMS];
    gate g = { 0 };
    const int streams = harness_is_cpu() ? STREAMS : 16;
    begin_with(&c);
    looks *l = looks_create(100000);
    ds_stream home = stream(0);
    for (int i = 0; i < streams; i++)
        s[i] = stream(0);
    gate_close(s[0], &g);
    for (int i = 0; i < streams * PER; i++) {
        ds_stream t = s[i % streams];
        void *p = block(SIZE, home);
        paint(p, SIZE, (uint32_t)i, home);
        ok(ds_stream_wait_stream(t, home));
        look(l, p, SIZE, (uint32_t)i, t);
        if (i & 1)
            ok(ds_mem_record_use(p, t));
        else
            ok(ds_mem_record_stream(p, t));
        ok(ds_mem_free(p)); /* before the stream has read it */
        void *q = block(SIZE, home);
        paint(q, SIZE, 0xFFFFFFFFu, home);
        ok(ds_mem_free(q));
    }
    assert_int_equal(ds_stream_query(s[0]), DS_NOT_READY); /* nobody has waited for it */
    gate_open(&g);
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(looks_right(l));
    looks_destroy(l);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    for (int i = 0; i < streams; i++)
        ok(ds_stream_destroy(s[i]));
    ok(ds_stream_destroy(home));
    finish();
}

/* ---- pinned memory ---- */

static void test_pinned_memory_is_used_again_after_its_stream(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_DEFAULT };
    for (int i = 0; i < 2; i++) {
        gate g = { 0 };
        ds_mem_config c = config_with(presets[i], "pinned_use_background_threads:False");
        void *p, *q, *again;
        begin_with(&c);
        ok(ds_mem_pinned_empty_cache(NULL));
        ds_stream s = stream(0);
        ok(ds_mem_pinned_alloc(3 * MIB, &p));
        gate_close(s, &g);
        ok(ds_mem_pinned_record_use(p, s));
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_alloc(3 * MIB, &q));
        assert_ptr_not_equal(p, q);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        ok(ds_mem_pinned_alloc(3 * MIB, &again));
        assert_ptr_equal(p, again);
        ok(ds_mem_pinned_free(again));
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_pinned_empty_cache(NULL));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_memory_that_the_program_registered_is_pinned(void **state) {
    (void)state;

    enum { SIZE = 1 << 20 };

    ds_pointer_info info;
    gate g = { 0 };
    ds_mem_config c = config_of(PRESET_DEFAULT);
    begin_with(&c);
    ds_stream s = stream(0);
    unsigned char *p = aligned_alloc(4096, SIZE), *d = block(SIZE, s);
    int yes = 1;
    assert_non_null(p);
    memset(p, 1, SIZE);
    ok(ds_pointer_get_info(p, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    ok(ds_pinned_register(p, SIZE));
    ok(ds_pointer_get_info(p + SIZE - 1, &info));
    assert_int_equal(info.kind, DS_MEMORY_REGISTERED);
    ok(ds_mem_pinned_owns(p, &yes));
    assert_int_equal(yes, 0); /* but it is not the cache's */
    refused(ds_mem_pinned_free(p), DS_ERR_INVALID_VALUE);
    ok(ds_stream_synchronize(s));
    gate_close(s, &g);
    ok(ds_copy(d, p, SIZE, s)); /* does not block: it is read when the stream comes there */
    p[77] = 9;
    gate_open(&g);
    ok(ds_copy(p, d + 77, 1, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(p[0], 9);
    ok(ds_pinned_unregister(p));
    ok(ds_pointer_get_info(p, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    free(p);
    ok(ds_mem_free(d));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- what bookkeeping costs ---- */

static void test_a_live_block_costs_at_most_128_bytes_of_bookkeeping(void **state) {
    (void)state;
    not_checked("a block costs the memory of the layer, too");

    /* so many that a table of 128 KiB more, which depends on addresses, does not count */
    enum { BLOCKS = 60000 };

    void **p = calloc(BLOCKS, sizeof *p);
    ds_cpu_desc cpu = { .devices = 2 };
    ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
    assert_non_null(p);
    for (int preset = 0; preset < PRESETS; preset++) {
        /* there each has a segment of its own */
        if (preset == PRESET_CUPY)
            continue;
        ds_mem_config c = config_of(preset);
        c.debug = 0;
        harness_restart(&init);
        begin_with(&c);
        ds_stream s = stream(0);
        ok(ds_mem_free(block(512, s)));
        size_t before = kept_bytes;
        for (int i = 0; i < BLOCKS; i++)
            p[i] = block(4096, s);
        double each = (double)(kept_bytes - before) / (double)BLOCKS;
        if (each > 128)
            fail_msg("%s: %.1f bytes for each block", preset_name(preset), each);
        for (int i = 0; i < BLOCKS; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_stream_destroy(s));
        finish();
    }
    free(p);
    harness_restart(NULL);
}

/* ---- limits of sharing ---- */

enum { MANY = 1001 };

static char told[4000];

static void keep_log(const ds_log_item *item, void *user) {
    size_t n = strlen(told);
    (void)user;
    if (item->level == DS_LOG_WARNING)
        snprintf(told + n, sizeof told - n, "%s\n", item->text);
}

static int told_times(const char *words) {
    int n = 0;
    for (const char *at = told; (at = strstr(at, words)) != NULL; at++)
        n++;
    return n;
}

static char *path_with(char out[200], const char *path, const char *end) {
    snprintf(out, 200, "%s%s", path, end);
    return out;
}

/* Waits for a file that the other process makes; 1 when it is there. */
static int await_file(const char *path) {
    uint64_t end = now_ns() + 60000000000u;
    while (access(path, F_OK)) {
        if (now_ns() > end)
            return 0;
        /* more than sixty wait like this at once */
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return 1;
}

static void make_file(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f || fclose(f))
        harness_die(path, DS_ERR_SYSTEM);
}

/* The other process: opens the blocks whose handles are in PATH, says so by PATH.openN, and
   closes them when PATH.close is there. It ends with 7 when too many processes have a block. */
static void import_many(int number, const char *path) {
    static ds_ipc_mem_handle handle[MANY];
    static void *p[MANY];
    char name[200], end[20];
    ds_device d = { harness_is_cpu() ? DS_DEVICE_CPU : DS_DEVICE_CUDA, 0 };
    ds_stream s;
    FILE *f = fopen(path, "rb");
    size_t count = f ? fread(handle, sizeof *handle, MANY, f) : 0;
    if (!count || fclose(f))
        _exit(3);
    ok_thread(ds_stream_create(&(ds_stream_desc){ .device = d }, &s));
    for (size_t i = 0; i < count; i++) {
        ds_result r = ds_mem_import(d, &handle[i], s, &p[i]);
        if (r == DS_ERR_LIMIT_EXCEEDED)
            _exit(7);
        ok_thread(r);
    }
    snprintf(end, sizeof end, ".open%d", number);
    make_file(path_with(name, path, end));
    int closed = 0; /* sixty processes take their time to start, more so with a sanitizer */
    for (int tries = 0; tries < 10 && !closed; tries++)
        closed = await_file(path_with(name, path, ".close"));
    if (!closed)
        _exit(4);
    for (size_t i = 0; i < count; i++)
        ok_thread(ds_mem_import_close(p[i], s));
    ok_thread(ds_stream_synchronize(s));
    ok_thread(ds_shutdown());
}

__attribute__((constructor)) static void child_that_imports(void) {
    const char *what = getenv("DS_TEST_CHILD");
    int number, length = 0;
    if (!what || sscanf(what, "import_many:%d:%n", &number, &length) != 1 || !length)
        return;
    import_many(number, what + length);
    exit(0);
}

static pid_t start_child(int number, const char *path) {
    char setting[300];
    snprintf(setting, sizeof setting, "DS_TEST_CHILD=import_many:%d:%s", number, path);
    pid_t child = harness_start((const char *const[]){ setting, NULL }, NULL);
    assert_true(child > 0);
    return child;
}

static void write_handles(const char *path, const ds_ipc_mem_handle *handle, size_t count) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(handle, sizeof *handle, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static void remove_files(const char *folder, const char *path, int children) {
    char name[200], end[20];
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(path_with(name, path, ".close")), 0);
    for (int i = 0; i < children; i++) {
        snprintf(end, sizeof end, ".open%d", i);
        assert_int_equal(unlink(path_with(name, path, end)), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void test_a_thousand_freed_blocks_that_others_keep_are_told_once(void **state) {
    (void)state;
    static ds_ipc_mem_handle handle[MANY];
    static void *p[MANY];
    ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
    char folder[] = "/tmp/devstream_lines_XXXXXX", path[100], name[200];
    clear_memory();
    harness_restart(&init);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/handles", folder);
    ds_stream s = stream(0);
    ds_pool pool = pool_with((ds_pool_desc){ .shareable = 1 });
    for (int i = 0; i < MANY; i++) {
        p[i] = block_in(pool, 512, s);
        ok(ds_mem_export(p[i], &handle[i]));
    }
    write_handles(path, handle, MANY);
    pid_t child = start_child(0, path);
    assert_true(await_file(path_with(name, path, ".open0")));
    told[0] = 0;
    for (int i = 0; i < MANY; i++)
        ok(ds_mem_free(p[i]));
    assert_int_equal(pool_stat(pool, "allocation.all.current"), 0);
    assert_int_equal(pool_stat(pool, "active.all.current"), MANY);
    for (int i = 0; i < 3; i++)
        ok(ds_mem_ipc_collect());
    assert_int_equal(pool_stat(pool, "active.all.current"), MANY);
    assert_int_equal(
        told_times("1001 freed blocks are kept because other processes have not closed them"), 1);
    assert_int_equal(told_times("\n"), 1);
    make_file(path_with(name, path, ".close"));
    assert_int_equal(harness_await(child), 0);
    ok(ds_mem_ipc_collect());
    assert_int_equal(pool_stat(pool, "active.all.current"), 0);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    remove_files(folder, path, 1);
    finish();
    harness_restart(NULL);
}

static void test_so_many_processes_can_have_a_block_and_no_more(void **state) {
    (void)state;

    enum { MOST = 62 };

    pid_t child[MOST];
    char folder[] = "/tmp/devstream_lines_XXXXXX", path[100], name[200], end[20];
    ds_ipc_mem_handle handle;
    begin(PRESET_DEFAULT);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/handle", folder);
    ds_stream s = stream(0);
    ds_pool pool = pool_with((ds_pool_desc){ .shareable = 1 });
    void *p = block_in(pool, 5000, s);
    ok(ds_mem_export(p, &handle));
    write_handles(path, &handle, 1);
    for (int i = 0; i < MOST; i++)
        child[i] = start_child(i, path);
    for (int i = 0; i < MOST; i++) {
        int open = 0;
        snprintf(end, sizeof end, ".open%d", i);
        for (int tries = 0; tries < 10 && !open; tries++)
            open = await_file(path_with(name, path, end));
        assert_true(open);
    }
    assert_int_equal(harness_await(start_child(MOST, path)), 7 << 8); /* refused */
    ok(ds_mem_free(p));
    ok(ds_mem_ipc_collect());
    assert_int_equal(pool_stat(pool, "active.all.current"), 1);
    make_file(path_with(name, path, ".close"));
    for (int i = 0; i < MOST; i++)
        assert_int_equal(harness_await(child[i]), 0);
    ok(ds_mem_ipc_collect());
    assert_int_equal(pool_stat(pool, "active.all.current"), 0);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    remove_files(folder, path, MOST);
    finish();
}

static void test_a_process_can_export_so_many_blocks_and_no_more(void **state) {
    (void)state;

    enum { MOST = 16384 };

    ds_ipc_mem_handle h;
    void **p = calloc(MOST + 1, sizeof *p);
    int count = 0;
    assert_non_null(p);
    begin(PRESET_DEFAULT);
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.debug = 0;
    begin_with(&c);
    ds_stream s = stream(0);
    ds_pool pool = pool_with((ds_pool_desc){ .shareable = 1 });
    ds_result r = DS_OK;
    while (r == DS_OK && count <= MOST) {
        p[count] = block_in(pool, 512, s);
        r = ds_mem_export(p[count++], &h);
    }
    assert_int_equal(r, DS_ERR_LIMIT_EXCEEDED);
    harness_sentence(ds_error_get_last(), "ds_mem_export");
    assert_true(count > MOST - 100); /* their segments count, too */
    ok(ds_mem_free(p[0]));           /* which nobody has imported */
    ok(ds_mem_ipc_collect());
    ok(ds_mem_export(p[count - 1], &h));
    for (int i = 1; i < count; i++)
        ok(ds_mem_free(p[i]));
    free(p);
    ok(ds_mem_ipc_collect());
    assert_int_equal(pool_stat(pool, "active.all.current"), 0);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

const struct CMUnitTest tests_memory_lines[] = {
    DS_TEST(test_a_snapshot_adds_up_to_every_current_statistic, "torch 47"),
    DS_TEST(test_a_snapshot_has_address_size_and_line_of_a_block, "torch 60 62"),
    DS_TEST(test_a_snapshot_says_what_the_policy_is, "torch 4.6"),
    DS_TEST(test_free_memory_drops_by_what_is_reserved, "torch 13 14, peers 25"),
    DS_TEST(test_less_than_half_of_the_device_fits_into_half_of_it, "torch 51"),
    DS_TEST(test_a_size_no_device_has_is_refused_with_any_split_size, "torch 57"),
    DS_TEST(test_devices_that_were_not_used_are_not_begun_with, "peers e.4 5"),
    DS_TEST(test_the_order_of_reuse_does_not_depend_on_addresses, "torch 66 67"),
    DS_TEST(test_only_the_thread_that_pushed_it_fills_a_pool, "torch 84 96"),
    DS_TEST(test_nested_pools_have_two_two_and_one_segments, "torch 95"),
    DS_TEST(test_a_pool_with_an_upstream_helps_out_with_equal_addresses, "torch 91"),
    DS_TEST(test_a_capture_uses_memory_again_that_it_has_waited_for, "torch 98"),
    DS_TEST(test_a_limit_of_six_units_holds_whatever_was_set_before, "peers 87"),
    DS_TEST(test_free_blocks_are_none_then_one_then_none, "peers 94"),
    DS_TEST(test_used_free_and_total_bytes_of_two_streams, "peers 90 91"),
    DS_TEST(test_a_block_of_the_drivers_pool_remembers_its_stream, "peers 100"),
    DS_TEST(test_most_of_a_device_and_then_the_rest_by_the_drivers_pool, "peers 101"),
    DS_TEST(test_three_quarters_of_a_device_go_from_thread_to_thread, "peers 108 110"),
    DS_TEST(test_memory_of_the_drivers_pool_freed_early_on_many_streams, "peers 109 110"),
    DS_TEST(test_pinned_memory_is_used_again_after_its_stream, "torch 105"),
    DS_TEST(test_memory_that_the_program_registered_is_pinned, "torch 106"),
    DS_TEST(test_a_live_block_costs_at_most_128_bytes_of_bookkeeping, "issue 5"),
    DS_TEST(test_a_thousand_freed_blocks_that_others_keep_are_told_once, "torch 3.15"),
    /* the stand-in lets 16 open an allocation */
    DS_TEST_CPU(test_so_many_processes_can_have_a_block_and_no_more, "torch 3.15"),
    DS_TEST(test_a_process_can_export_so_many_blocks_and_no_more, "torch 3.15"),
};
const size_t tests_memory_lines_count = sizeof tests_memory_lines / sizeof *tests_memory_lines;
