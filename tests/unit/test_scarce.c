/* Host memory runs out at each allocation of the library in turn: the call says so and leaves
   nothing behind, and the same call works as soon as there is memory. On the CPU driver and, upon
   the stand-in, on the CUDA driver; there, each call of cudart also fails in turn.

   Each program runs with the N-th allocation failing, for all N, and again with all allocations
   from the N-th on failing. Then it runs without a failure, which must succeed. Graphs and captures
   have such tests in the conformance suite. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <unistd.h>
#include "scarce.h"
#include "unit.h"
#include "kernels_ptx.h"
#ifdef DEVSTREAM_CUDA
#include "standin/standin.h"
#endif

#define MIB ((size_t)1 << 20)

static ds_device device, peer; /* of the driver under test */
static ds_stream stream, other;
static const char *config; /* options of the allocator */

static long step_now; /* number of the allocation or call that fails */
static int refusals;
static long step = 1;  /* from one failing allocation to the next */
static int capturing;  /* 1: a failed call may have ended a capture */
static int calls_fail; /* 1: a call of cudart fails instead of an allocation */

/* Returns 1 if the call succeeded, 0 if it failed for lack of memory or by the failed call. */
static int got(ds_result r, const char *call, int line) {
    if (r >= 0)
        return 1;
#ifdef DEVSTREAM_CUDA
    if (calls_fail) {
        if (!standin_failed())
            fail_msg("line %d: %s is %s: %s", line, call, ds_result_get_name(r),
                     ds_error_get_last());
        if (!*ds_error_get_last())
            fail_msg("line %d: %s says nothing", line, call);
        refusals++;
        return 0;
    }
#endif
    if (r != DS_ERR_OUT_OF_MEMORY &&
        !(scarce_refused && capturing &&
          (r == DS_ERR_CAPTURE_INVALIDATED || r == DS_ERR_CAPTURE_UNJOINED)))
        fail_msg("allocation %ld%s, line %d: %s is %s: %s", step_now,
                 scarce_once ? "" : " and later", line, call, ds_result_get_name(r),
                 ds_error_get_last());
    if (!scarce_refused)
        fail_msg("line %d: %s is out of memory without cause: %s", line, call, ds_error_get_last());
    if (!*ds_error_get_last())
        fail_msg("line %d: %s says nothing", line, call);
    refusals++;
    return 0;
}

#define may(call) got((call), #call, __LINE__)
/* What gives back must not need memory, but the call of cudart may fail. */
#define must(call)           \
    do {                     \
        if (calls_fail)      \
            (void)may(call); \
        else                 \
            ok(call);        \
    } while (0)

static int nothing(void *user) {
    (void)user;
    return 0;
}

static void no_result(void *user) {
    (void)user;
}

static void no_callback(ds_stream s, ds_result status, void *user) {
    (void)s, (void)status, (void)user;
}

static int discard(const char *text, size_t size, void *user) {
    (void)text, (void)user;
    return size > (size_t)1 << 40;
}

/* ---- the programs ---------------------------------------------------------------------------- */

static void streams(void) {
    ds_stream s = { 0 }, legacy, thread, wrapped = { 0 };
    ds_stream_native native;
    char text[40];
    may(ds_stream_get_legacy(device, &legacy));
    may(ds_stream_get_per_thread(device, &thread));
    if (may(ds_stream_create(&(ds_stream_desc){ .device = device }, &s))) {
        may(ds_stream_set_label(s, "a label"));
        may(ds_stream_get_label(s, text, sizeof text));
        if (may(ds_stream_push(s, 0)))
            must(ds_stream_pop());
        if (may(ds_stream_export(s, &native)) &&
            may(ds_stream_wrap(&native, DS_BORROW, no_result, NULL, &wrapped)))
            must(ds_stream_destroy(wrapped));
        if (may(ds_stream_unwrap(s, &native))) {
            /* without memory for the handle, the caller still owns the native stream */
            if (!may(ds_stream_wrap(&native, DS_OWN, no_result, NULL, &s))) {
                scarce_left = -1;
                must(ds_stream_wrap(&native, DS_OWN, no_result, NULL, &s));
            }
        }
        must(ds_stream_destroy(s));
    }
    if (may(ds_device_push(peer)))
        must(ds_device_pop());
    may(ds_thread_set_label("the thread"));
    may(ds_device_set_label(device, "a device"));
}

static void events(void) {
    ds_event e[3] = { { 0 } };
    ds_event fresh = { 0 };
    int made = may(ds_event_create_on(device, DS_EVENT_TIMING, "begin", &e[0]));
    made += may(ds_event_create_on(device, 0, NULL, &e[1]));
    made += may(ds_event_create_on(peer, 0, NULL, &e[2]));
    if (made == 3) {
        may(ds_event_record(e[0], stream));
        may(ds_event_record(e[1], stream));
        may(ds_stream_wait_event(other, e[1]));
        may(ds_event_record(e[2], other));
        may(ds_stream_wait_event(stream, e[2]));
        may(ds_stream_wait_stream(other, stream));
        if (may(ds_stream_record_event(stream, 0, &fresh)))
            must(ds_event_destroy(fresh));
    }
    may(ds_stream_synchronize(stream));
    may(ds_stream_synchronize(other));
    for (int i = 0; i < 3; i++)
        if (e[i].id)
            must(ds_event_destroy(e[i]));
}

static void copies(void) {
    enum { PIECES = 40 };

    void *pinned = NULL, *memory = NULL, *far = NULL;
    static char pageable[PIECES * 4096];
    if (may(ds_pinned_alloc(sizeof pageable, &pinned)) &&
        may(ds_device_alloc(device, 4 * sizeof pageable, &memory)) &&
        may(ds_device_alloc(peer, sizeof pageable, &far))) {
        void *dst[PIECES];
        const void *src[PIECES];
        size_t sizes[PIECES];
        for (int i = 0; i < PIECES; i++) {
            dst[i] = (char *)memory + (size_t)i * 4096;
            src[i] = (char *)pinned + (size_t)i * 4096;
            sizes[i] = 100;
        }
        may(ds_copy_batch(dst, src, sizes, PIECES, stream));
        may(ds_copy(memory, pageable, sizeof pageable, stream));
        may(ds_copy(pageable, memory, sizeof pageable, stream));
        may(ds_copy(far, memory, sizeof pageable, stream));
        may(ds_copy_peer(memory, device, far, peer, 4096, stream));
        may(ds_copy_2d(memory, 4096, pageable, 1000, 900, 40, stream));
        may(ds_copy_2d(pageable, 1000, memory, 4096, 900, 40, stream));
        may(ds_fill_2d(memory, 4096, 7, 4, 100, 10, stream));
        /* on the default stream, which does not wait for the other one: memory of their own */
        static char more[4096];
        may(ds_copy_sync((char *)memory + 2 * sizeof pageable, more, sizeof more));
        may(ds_fill_sync((char *)memory + 3 * sizeof pageable, 1, 1, 4096));
        if (may(ds_stream_write_value32(stream, pinned, 1)))
            may(ds_stream_wait_value32(stream, pinned, 1, DS_VALUE_WAIT_EQ));
        may(ds_stream_synchronize(stream));
    }
    must(ds_device_synchronize(device));
    must(ds_device_synchronize(peer));
    must(ds_device_free(memory));
    must(ds_device_free(far));
    must(ds_pinned_free(pinned));
}

static void host_functions(void) {
    char payload[64] = { 0 };
    may(ds_stream_launch_host_func(stream, no_result, NULL, NULL));
    may(ds_stream_launch_closure(stream, nothing, payload, sizeof payload, NULL));
    may(ds_stream_add_callback(stream, no_callback, NULL, NULL));
    may(ds_stream_synchronize(stream));
}

static void allocations(void) {
    static const size_t sizes[] = { 100, 5000, 3 * MIB, 12 * MIB, 100, 700 << 10 };
    void *p[6] = { NULL };
    void *aligned = NULL;
    size_t released;
    int has_backend = config && strstr(config, "backend"); /* such memory has no alignments */
    for (int i = 0; i < 6; i++)
        may(ds_mem_alloc(sizes[i], i & 1 ? other : stream, &p[i]));
    may(ds_mem_alloc_with(&(ds_mem_request){ .size = 1000,
                                             .stream = stream,
                                             .alignment = has_backend ? 0 : MIB,
                                             .label = "aligned" },
                          &aligned));
    for (int i = 0; i < 6; i++) {
        if (!p[i])
            continue;
        may(ds_mem_record_use(p[i], i & 1 ? stream : other));
        may(ds_mem_record_stream(p[i], i & 1 ? stream : other));
        must(ds_mem_free(p[i]));
    }
    must(ds_mem_free(aligned));
    may(ds_mem_alloc(2 * MIB, stream, &p[0]));
    must(ds_mem_free(p[0]));
    may(ds_mem_trim(device, 0, &released));
    may(ds_mem_empty_stream_cache(stream, &released));
    may(ds_mem_empty_cache(device, &released));
}

static void pools(void) {
    ds_pool pool = { 0 };
    void *p = NULL, *q = NULL;
    size_t released;
    ds_pool_checkpoint *saved = NULL;
    if (!may(ds_pool_create(&(ds_pool_desc){ .device = device, .label = "a pool" }, &pool)))
        return;
    if (may(ds_pool_push(pool))) {
        may(ds_mem_alloc(3 * MIB, stream, &p));
        may(ds_mem_alloc(5000, stream, &q));
        must(ds_pool_pop());
    }
    if (may(ds_pool_save(pool, &saved))) {
        void *live[] = { p, q };
        if (p && q)
            may(ds_pool_check_live(pool, live, 2));
        must(ds_mem_free(q));
        if (q && !may(ds_pool_restore(pool, saved, NULL, NULL)))
            q = NULL;
        ds_pool_checkpoint_destroy(saved);
    }
    must(ds_mem_free(p));
    must(ds_mem_free(q));
    may(ds_pool_empty_cache(pool, &released));
    must(ds_pool_destroy(pool));
}

/* Ends the use of a block a little later, since a request without memory for an event waits. */
static void *end_use(void *word) {
    usleep(2000);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A block that another stream still uses is all the memory there is: a request of a third stream
   takes the block behind its owner and that use. */
static void block_in_use(void) {
    ds_stream user = { 0 }, asker = { 0 };
    void *word = NULL, *p = NULL, *q = NULL;
    if (may(ds_pinned_alloc(64, &word)) && may(ds_mem_set_limit(device, 64 * MIB)) &&
        may(ds_stream_create(&(ds_stream_desc){ .device = device }, &user)) &&
        may(ds_stream_create(&(ds_stream_desc){ .device = device }, &asker)) &&
        may(ds_mem_alloc(40 * MIB, stream, &p))) {
        pthread_t thread;
        *(uint32_t *)word = 0;
        assert_int_equal(pthread_create(&thread, NULL, end_use, word), 0);
        may(ds_stream_wait_value32(user, word, 1, DS_VALUE_WAIT_GEQ));
        may(ds_mem_record_use(p, user));
        must(ds_mem_free(p));
        may(ds_mem_alloc(40 * MIB, asker, &q));
        must(ds_mem_free(q));
        pthread_join(thread, NULL);
    }
    if (!may(ds_device_synchronize(device))) {
        scarce_left = -1; /* the word must outlive the wait */
        must(ds_device_synchronize(device));
    }
    if (asker.id)
        must(ds_stream_destroy(asker));
    if (user.id)
        must(ds_stream_destroy(user));
    may(ds_mem_set_limit(device, 0));
    must(ds_pinned_free(word));
}

static void pinned_memory(void) {
    void *p[3] = { NULL }, *plain = malloc(3 * MIB);
    size_t released;
    may(ds_mem_pinned_alloc(1000, &p[0]));
    may(ds_mem_pinned_alloc(3 * MIB, &p[1]));
    may(ds_mem_pinned_alloc(100 << 10, &p[2]));
    for (int i = 0; i < 3; i++) {
        if (!p[i])
            continue;
        may(ds_mem_pinned_record_use(p[i], stream));
        may(ds_mem_pinned_record_use(p[i], other));
        must(ds_mem_pinned_free(p[i]));
    }
    may(ds_stream_synchronize(stream));
    may(ds_stream_synchronize(other));
    may(ds_mem_pinned_empty_cache(&released));
    if (may(ds_pinned_register(plain, 3 * MIB)))
        must(ds_pinned_unregister(plain));
    free(plain);
}

static void history(void) {
    void *p = NULL;
    if (may(ds_mem_history_start(NULL))) {
        may(ds_mem_alloc(5000, stream, &p));
        may(ds_mem_annotate(device, "here"));
        must(ds_mem_free(p));
    }
    for (int format = DS_SNAPSHOT_PICKLE; format <= DS_SNAPSHOT_HTML; format++)
        may(ds_mem_write_snapshot((ds_mem_format)format, 0, (ds_pool){ 0 }, discard, NULL));
    may(ds_mem_write_summary(device, 0, discard, NULL));
    may(ds_mem_write_processes(device, discard, NULL));
    must(ds_mem_history_stop());
}

static ds_result take_heap(void *user, size_t size, size_t alignment, ds_stream s, void **out) {
    (void)user, (void)s, (void)alignment;
    *out = aligned_alloc(512, (size + 511) / 512 * 512);
    return *out ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

static ds_result give_heap(void *user, void *ptr, size_t size, ds_stream s) {
    (void)user, (void)size, (void)s;
    free(ptr);
    return DS_OK;
}

static int give_up(size_t size, void *user) {
    (void)size, (void)user;
    return 0;
}

static void use_resource(ds_resource *r) {
    void *p = NULL;
    if (may(ds_resource_alloc(r, 1000, 0, stream, &p)) &&
        !may(ds_resource_free(r, p, 1000, stream))) {
        scarce_left = -1; /* a free in stream order is an operation; the memory is still there */
        must(ds_resource_free(r, p, 1000, stream));
    }
    must(ds_resource_destroy(r));
}

static void resources(void) {
    ds_resource base = { 0 }, r;
    ds_pool pool = { 0 };
    if (may(ds_resource_create_device(device, &r)))
        use_resource(&r);
    if (may(ds_resource_create_driver_pool(&r)))
        use_resource(&r);
    if (may(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool))) {
        if (may(ds_resource_create_pool(pool, &r)))
            use_resource(&r);
        must(ds_pool_destroy(pool));
    }
    if (!may(ds_resource_create_functions(take_heap, give_heap, NULL, &base)))
        return;
    if (may(ds_resource_create_limit(&base, MIB, &r)))
        use_resource(&r);
    if (may(ds_resource_create_log(&base, discard, NULL, &r)))
        use_resource(&r);
    if (may(ds_resource_create_on_failure(&base, give_up, NULL, &r)))
        use_resource(&r);
    if (may(ds_resource_create_aligned(&base, 4096, 0, &r)))
        use_resource(&r);
    if (may(ds_resource_create_stats(&base, &r))) {
        ds_resource_stats stats;
        if (may(ds_resource_push_stats(&r)))
            may(ds_resource_pop_stats(&r, &stats));
        use_resource(&r);
    }
    must(ds_resource_destroy(&base));
}

static void ranges(void) {
    ds_domain domain;
    ds_range range;
    may(ds_domain_create("a domain", &domain));
    if (may(ds_range_start("a range", &range)))
        may(ds_range_end(range));
    may(ds_range_mark("a mark"));
    if (ds_range_push("pushed") >= 0)
        (void)ds_range_pop();
}

static void ignore_records(const ds_activity_batch *batch, void *user) {
    (void)batch, (void)user;
}

static void recording(void) {
    void *pinned = NULL;
    if (!may(ds_activity_start(&(ds_activity_desc){ .fn = ignore_records, .capacity = 64 })))
        return;
    if (may(ds_pinned_alloc(64, &pinned))) {
        may(ds_fill(pinned, 1, 1, 64, stream));
        may(ds_stream_launch_host_func(stream, no_result, NULL, NULL));
        may(ds_stream_synchronize(stream));
        must(ds_pinned_free(pinned));
    }
    ranges();
    may(ds_activity_flush());
    must(ds_activity_stop());
}

/* A thread that has not used devstream before. */
static void *begin_thread(void *user) {
    ds_stream s, before;
    (void)user;
    may(ds_device_set_default(device));
    may(ds_device_set_current(peer));
    may(ds_stream_get_current(device, &s));
    may(ds_stream_get_per_thread(device, &s));
    may(ds_stream_get_default(peer, &s));
    may(ds_stream_set_current(stream, 0, &before));
    int pushes = 0;
    while (pushes < 10 && may(ds_stream_push(other, 0)))
        pushes++;
    while (pushes-- > 0)
        must(ds_stream_pop());
    if (may(ds_device_push(device)))
        must(ds_device_pop());
    return NULL;
}

static void first_use(void) {
    ds_stream_native native;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, begin_thread, NULL), 0);
    pthread_join(thread, NULL);
    may(ds_stream_export(stream, &native));
}

typedef struct fold_args {
    uint64_t *h, n;
} fold_args;

static int fold(size_t first, size_t items, const void *args) {
    const fold_args *a = args;
    (void)first, (void)items;
    *a->h = *a->h * 1099511628211u + a->n;
    return 0;
}

static const ds_param fold_params[] = {
    { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
    { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
};

static int make_fold(ds_kernel *k) {
    return may(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .cpu_fn = fold,
                           .args_size = sizeof(fold_args),
                           .params = fold_params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        k));
}

static void kernels(void) {
    ds_kernel k = { 0 };
    void *word = NULL;
    ds_stream share = { 0 };
    static const ds_grid together = { .grid = { 1 }, .block = { 1 }, .flags = DS_GRID_COOPERATIVE };
    static const ds_grid shared = { .grid = { 1 }, .block = { 1 }, .shared_bytes = 100 << 10 };
    if (may(ds_pinned_alloc(64, &word)) && make_fold(&k)) {
        fold_args args = { word, 1 };
        *args.h = 0;
        may(ds_kernel_load(k, device));
        may(ds_kernel_launch(k, 1, &args, sizeof args, stream));
        may(ds_kernel_launch_grid(k, &together, &args, sizeof args, stream));
        may(ds_kernel_launch_grid(k, &shared, &args, sizeof args, stream));
        if (device.type == DS_DEVICE_CPU) /* the stand-in's driver has no green contexts */
            may(ds_stream_create(&(ds_stream_desc){ .device = device, .multiprocessors = 1 },
                                 &share));
        if (share.id) {
            may(ds_stream_wait_stream(share, stream));
            may(ds_kernel_launch(k, 1, &args, sizeof args, share));
            may(ds_stream_synchronize(share));
            must(ds_stream_destroy(share));
        }
        may(ds_stream_synchronize(stream));
    }
    must(ds_device_synchronize(device));
    if (k.id)
        must(ds_kernel_destroy(k));
    must(ds_pinned_free(word));
}

/* Two branches with kernels and events of each kind, and their end. */
static int add_nodes(ds_graph g, ds_kernel k, uint64_t *words, const ds_event *event) {
    ds_graph_node first, branch[2], last;
    fold_args args[2] = { { words, 1 }, { words + 1, 2 } };
    ds_node_desc d = { .kind = DS_NODE_EVENT_RECORD };
    d.u.event = event[0];
    int added = may(ds_graph_add(g, &d, NULL, 0, &first));
    for (int i = 0; i < 2 && added; i++) {
        d = (ds_node_desc){ .kind = DS_NODE_KERNEL };
        d.u.kernel = (ds_kernel_node){
            .kernel = k, .items = 1, .args = &args[i], .args_size = sizeof args[i]
        };
        added = may(ds_graph_add(g, &d, &first, 1, &branch[i]));
    }
    d = (ds_node_desc){ .kind = DS_NODE_EVENT_WAIT };
    d.u.event = event[1];
    if (added && may(ds_graph_add(g, &d, branch, 2, &last))) {
        d = (ds_node_desc){ .kind = DS_NODE_HOST };
        d.u.host = (ds_host_node){ .fn = no_result };
        return may(ds_graph_add(g, &d, &last, 1, NULL));
    }
    return 0;
}

static void graphs(void) {
    ds_kernel k = { 0 };
    ds_graph g = { 0 }, copy = { 0 };
    ds_graph_exec x = { 0 };
    ds_event event[2] = { { 0 } };
    void *words = NULL;
    int made = may(ds_pinned_alloc(64, &words)) && make_fold(&k);
    made = made && may(ds_event_create_on(device, DS_EVENT_TIMING, NULL, &event[0]));
    made = made && may(ds_event_create_on(peer, 0, NULL, &event[1]));
    made = made && may(ds_event_record(event[1], other));
    made = made && may(ds_graph_create(&(ds_graph_desc){ .device = device }, &g));
    if (made && add_nodes(g, k, words, event) && may(ds_graph_clone(g, &copy))) {
        ds_graph_update_info info;
        may(ds_graph_write_dot(g, 0, discard, NULL));
        if (may(ds_graph_instantiate(copy, NULL, &x))) {
            memset(words, 0, 64);
            may(ds_graph_upload(x, stream));
            may(ds_graph_launch(x, stream));
            may(ds_graph_exec_update(x, copy, &info));
            may(ds_graph_launch(x, stream));
            may(ds_stream_synchronize(stream));
        }
    }
    must(ds_device_synchronize(device));
    if (x.id)
        must(ds_graph_exec_destroy(x));
    if (copy.id)
        must(ds_graph_destroy(copy));
    if (g.id)
        must(ds_graph_destroy(g));
    for (int i = 0; i < 2; i++)
        if (event[i].id)
            must(ds_event_destroy(event[i]));
    if (k.id)
        must(ds_kernel_destroy(k));
    must(ds_pinned_free(words));
}

/* A node of each kind, in a chain; n[0] to n[6]. The second version differs in the arguments. */
static int describe(ds_node_desc d[7], ds_kernel k, char *pinned, const ds_event *event,
                    fold_args *args, ds_value_op *op, int second) {
    memset(d, 0, 7 * sizeof *d);
    *args = (fold_args){ (uint64_t *)(void *)pinned, 1 };
    *op = (ds_value_op){ pinned + 8, 1 + (unsigned)second, DS_VALUE_WRITE, 4 };
    d[0].kind = DS_NODE_KERNEL;
    d[0].u.kernel =
        (ds_kernel_node){ .kernel = k, .items = 1, .args = args, .args_size = sizeof *args };
    d[1].kind = DS_NODE_COPY;
    d[1].u.copy = (ds_copy_node){ .dst = pinned + 64, .src = pinned, .width = second ? 32 : 16 };
    d[2].kind = DS_NODE_FILL;
    d[2].u.fill = (ds_fill_node){
        .ptr = pinned + 128, .value = 5, .value_size = 1, .width = second ? 32 : 16
    };
    d[3].kind = DS_NODE_HOST;
    d[3].u.host = (ds_host_node){ .fn = no_result, .user = second ? pinned : NULL };
    d[4].kind = DS_NODE_EVENT_RECORD;
    d[4].u.event = event[second];
    d[5].kind = DS_NODE_EVENT_WAIT;
    d[5].u.event = event[2 + second];
    d[6].kind = DS_NODE_VALUES;
    d[6].u.values = (ds_values_node){ .ops = op, .count = 1 };
    return 7;
}

static void set_nodes(ds_graph g, ds_graph child, ds_graph_node inner, ds_kernel k, char *pinned,
                      const ds_event *event) {
    ds_node_desc d[7];
    ds_graph_node n[7], last;
    ds_graph_exec x = { 0 };
    fold_args args;
    ds_value_op op;
    int count_of = describe(d, k, pinned, event, &args, &op, 0);
    for (int i = 0; i < count_of; i++)
        if (!may(ds_graph_add(g, &d[i], i ? &n[i - 1] : NULL, i > 0, &n[i])))
            return;
    ds_node_desc whole = { .kind = DS_NODE_CHILD };
    whole.u.child = child;
    if (!may(ds_graph_add(g, &whole, &n[6], 1, &last)) || !may(ds_graph_instantiate(g, NULL, &x)))
        return;
    may(ds_graph_launch(x, stream));
    describe(d, k, pinned, event, &args, &op, 1);
    for (int i = 0; i < count_of; i++) {
        may(ds_graph_set_node(g, n[i], &d[i]));
        may(ds_graph_exec_set_node(x, n[i], &d[i]));
    }
    may(ds_graph_set_node(child, inner, &d[1]));
    may(ds_graph_set_node(g, last, &whole));
    may(ds_graph_exec_set_node(x, last, &whole));
    int enabled;
    may(ds_graph_exec_set_node_enabled(x, n[1], 0));
    may(ds_graph_exec_get_node_enabled(x, n[1], &enabled));
    may(ds_graph_exec_set_node_enabled(x, n[1], 1));
    void *from[] = { pinned + 64 }, *to[] = { pinned + 256 };
    size_t replaced;
    ds_graph_exec y = { 0 };
    may(ds_graph_launch(x, stream));
    if (may(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS },
                                 &y))) {
        may(ds_graph_exec_replace_pointers(y, from, to, 1, &replaced));
        may(ds_graph_launch(y, stream));
        must(ds_graph_exec_destroy(y));
    }
    may(ds_stream_synchronize(stream));
    must(ds_device_synchronize(device));
    must(ds_graph_exec_destroy(x));
}

static void nodes(void) {
    ds_kernel k = { 0 };
    ds_graph g = { 0 }, child = { 0 };
    ds_graph_node inner;
    ds_event event[4] = { { 0 } };
    void *pinned = NULL;
    int made = may(ds_pinned_alloc(4096, &pinned)) && make_fold(&k);
    for (int i = 0; i < 4 && made; i++)
        made = may(ds_event_create_on(device, 0, NULL, &event[i]));
    made = made && may(ds_graph_create(&(ds_graph_desc){ .device = device }, &g)) &&
           may(ds_graph_create(&(ds_graph_desc){ .device = device }, &child));
    if (made) {
        ds_node_desc copy = { .kind = DS_NODE_COPY };
        copy.u.copy = (ds_copy_node){ .dst = (char *)pinned + 300, .src = pinned, .width = 8 };
        if (may(ds_graph_add(child, &copy, NULL, 0, &inner)))
            set_nodes(g, child, inner, k, pinned, event);
    }
    must(ds_device_synchronize(device));
    if (child.id)
        must(ds_graph_destroy(child));
    if (g.id)
        must(ds_graph_destroy(g));
    for (int i = 0; i < 4; i++)
        if (event[i].id)
            must(ds_event_destroy(event[i]));
    if (k.id)
        must(ds_kernel_destroy(k));
    must(ds_pinned_free(pinned));
}

static void capture_work(char *pinned, ds_stream aside, ds_event fork, ds_event join) {
    void *p = NULL;
    ds_graph_node deps[4];
    size_t found;
    char payload[32] = { 0 };
    ds_capture_info info;
    may(ds_fill(pinned, 1, 1, 64, stream));
    may(ds_copy(pinned + 64, pinned, 64, stream));
    may(ds_stream_launch_host_func(stream, no_result, NULL, no_result));
    may(ds_stream_launch_closure(stream, nothing, payload, sizeof payload, NULL));
    if (may(ds_event_record(fork, stream)) && may(ds_stream_wait_event(aside, fork))) {
        may(ds_fill(pinned + 128, 1, 1, 64, aside));
        if (may(ds_event_record(join, aside)))
            may(ds_stream_wait_event(stream, join));
    }
    if (may(ds_mem_alloc(5000, stream, &p))) {
        may(ds_fill(p, 1, 1, 64, stream));
        must(ds_mem_free(p));
    }
    may(ds_capture_get_info(stream, &info));
    if (may(ds_capture_get_dependencies(stream, deps, 4, &found)))
        may(ds_capture_update_dependencies(stream, deps, found, DS_CAPTURE_SET_DEPENDENCIES));
    may(ds_stream_write_value32(stream, pinned + 200, 1));
}

static void captures(void) {
    ds_graph g = { 0 };
    ds_graph_exec x = { 0 };
    ds_stream aside = { 0 };
    ds_event event[2] = { { 0 } };
    void *pinned = NULL;
    int made = may(ds_pinned_alloc(4096, &pinned)) &&
               may(ds_stream_create(&(ds_stream_desc){ .device = device }, &aside));
    for (int i = 0; i < 2 && made; i++)
        made = may(ds_event_create_on(device, 0, NULL, &event[i]));
    if (made && may(ds_capture_begin(stream, DS_CAPTURE_RELAXED))) {
        capturing = 1;
        capture_work(pinned, aside, event[0], event[1]);
        int whole = may(ds_capture_end(stream, &g));
        capturing = 0;
        if (!whole && calls_fail && !g.id)
            DS_IGNORE(ds_capture_end(stream, &g)); /* the call that failed was the end itself */
        if (whole && may(ds_graph_instantiate(g, NULL, &x))) {
            may(ds_graph_launch(x, stream));
            may(ds_stream_synchronize(stream));
        }
    }
    must(ds_device_synchronize(device));
    if (x.id)
        must(ds_graph_exec_destroy(x));
    if (g.id)
        must(ds_graph_destroy(g));
    for (int i = 0; i < 2; i++)
        if (event[i].id)
            must(ds_event_destroy(event[i]));
    if (aside.id)
        must(ds_stream_destroy(aside));
    must(ds_pinned_free(pinned));
}

/* ---- what runs them -------------------------------------------------------------------------- */

static void prepare(void) {
    static ds_cpu_desc cpu;
    cpu = (ds_cpu_desc){ .devices = 2, .memory_limit = 256 * MIB };
    scarce_begin(-1);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE }));
    if (config)
        ok(ds_mem_configure_text(config));
    ok(ds_device_set_current(device));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &stream));
    ok(ds_stream_create(&(ds_stream_desc){ .device = peer }, &other));
}

static void finish(long n) {
    ok(ds_shutdown());
#ifdef DEVSTREAM_CUDA
    char report[200];
    if (standin_live(report, sizeof report) != 0)
        fail_msg("allocation %ld: left behind: %s", n, report);
    while (cudaGetLastError() != cudaSuccess) {
    }
#endif
    if (scarce_held)
        fail_msg("allocation %ld: %ld blocks are left", n, (long)scarce_held);
}

static void run_out(void (*program)(void)) {
    const char *timeout = getenv("DS_TEST_TIMEOUT"); /* seconds, as of the suites */
    alarm(timeout ? (unsigned)atoi(timeout) : 120);
    ok(ds_shutdown());
    refusals = 0;
    for (int all = 0; all < 2; all++) {
        int hit = 1;
        for (long n = 1 + harness_first(); hit; n += step * harness_every()) {
            if (n > 3000)
                fail_msg("the program allocates ever more");
            prepare();
            step_now = n;
            scarce_once = !all;
            scarce_begin(n - 1);
            program();
            hit = scarce_refused;
            scarce_begin(-1);
            program();
            finish(n);
        }
    }
    assert_true(refusals > 0 || harness_every() > 1);
}

#ifdef DEVSTREAM_CUDA
/* Each call of cudart and of the driver gives this code in turn. */
static void fail_calls(void (*program)(void)) {
    const char *timeout = getenv("DS_TEST_TIMEOUT");
    alarm(timeout ? (unsigned)atoi(timeout) : 120);
    ok(ds_shutdown());
    calls_fail = 1;
    int hit = 1;
    for (unsigned long n = 1; hit; n++) {
        if (n > 3000)
            fail_msg("the program calls cudart ever more often");
        prepare();
        standin_fail(n, cudaErrorUnknown);
        program();
        hit = standin_failed();
        standin_fail(0, 0);
        finish((long)n);
    }
    calls_fail = 0;
}

static void test_each_call_of_cudart_fails(void **state) {
    (void)state;
    void (*const programs[])(void) = { streams,       events,    copies,   host_functions,
                                       allocations,   pools,     history,  resources,
                                       pinned_memory, recording, kernels,  graphs,
                                       first_use,     nodes,     captures, block_in_use };
    refusals = 0;
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
        fail_calls(programs[i]);
    config = "backend:cudaMallocAsync";
    fail_calls(allocations);
    config = "expandable_segments:False";
    fail_calls(allocations);
    print_message("          %d refusals\n", refusals);
    assert_true(refusals > 100);
}
#endif

#define PROGRAM(name)                                             \
    static void test_##name##_without_host_memory(void **state) { \
        (void)state;                                              \
        run_out(name);                                            \
    }
PROGRAM(streams)
PROGRAM(events)
PROGRAM(copies)
PROGRAM(host_functions)
PROGRAM(allocations)
PROGRAM(pools)
PROGRAM(pinned_memory)
PROGRAM(history)
PROGRAM(resources)
PROGRAM(recording)
PROGRAM(first_use)
PROGRAM(kernels)
PROGRAM(graphs)
PROGRAM(nodes)
PROGRAM(captures)
PROGRAM(block_in_use)

static void test_plain_segments_without_host_memory(void **state) {
    (void)state;
    config = "expandable_segments:False,pinned_reserve_segment_size_mb:1";
    run_out(allocations);
    run_out(pinned_memory);
    run_out(pools);
}

static void test_checks_without_host_memory(void **state) {
    (void)state;
    config = "debug:2,poison:True,guard_bytes:512";
    step = 5; /* the guards make the program slow */
    run_out(allocations);
}

static void test_the_drivers_pool_without_host_memory(void **state) {
    (void)state;
    config = "backend:cudaMallocAsync";
    run_out(allocations);
}

static void test_the_drivers_calls_without_host_memory(void **state) {
    (void)state;
    config = "backend:uncached";
    run_out(allocations);
}

static int begin_cpu(void **state) {
    (void)state;
    device = ds_cpu(0);
    peer = ds_cpu(1);
    config = NULL;
    return 0;
}
#ifdef DEVSTREAM_CUDA
static int begin_cuda(void **state) {
    (void)state;
    device = ds_cuda(0);
    peer = ds_cuda(1);
    config = NULL;
    return 0;
}
#endif

static int end(void **state) {
    (void)state;
    scarce_begin(-1);
    calls_fail = 0;
    step = 1;
    alarm(0);
    return ds_shutdown() == DS_OK ? 0 : -1;
}

#define TESTS(F)                                                                                  \
    F(streams_without_host_memory), F(events_without_host_memory), F(copies_without_host_memory), \
        F(host_functions_without_host_memory), F(allocations_without_host_memory),                \
        F(pools_without_host_memory), F(pinned_memory_without_host_memory),                       \
        F(history_without_host_memory), F(resources_without_host_memory),                         \
        F(recording_without_host_memory), F(first_use_without_host_memory),                       \
        F(kernels_without_host_memory), F(graphs_without_host_memory),                            \
        F(nodes_without_host_memory), F(captures_without_host_memory),                            \
        F(block_in_use_without_host_memory), F(plain_segments_without_host_memory),               \
        F(checks_without_host_memory), F(the_drivers_pool_without_host_memory),                   \
        F(the_drivers_calls_without_host_memory)

int main(void) {
#define CPU(name) \
    { "test_" #name, test_##name, begin_cpu, end, NULL }
    const struct CMUnitTest tests[] = { TESTS(CPU) };
    int status = cmocka_run_group_tests_name("scarce, cpu", tests, NULL, NULL);
#ifdef DEVSTREAM_CUDA
#define CUDA(name) \
    { "test_" #name "_cuda", test_##name, begin_cuda, end, NULL }
    const struct CMUnitTest more[] = { TESTS(CUDA), CUDA(each_call_of_cudart_fails) };
    status += cmocka_run_group_tests_name("scarce, cuda", more, NULL, NULL);
#endif
    return status;
}
