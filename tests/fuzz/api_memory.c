/* api_memory.c - steps of the API fuzzer: memory of the drivers, the caching allocator, pinned
   memory, statistics, snapshots, and what other processes get. */
#include "api.h"

/* ---- memory of the drivers ---- */

static void step_alloc(void) {
    ds_device device = any_device();
    size_t pitch;
    void *ptr;
    ds_result result;
    enum pointer_kind kind = DEVICE_MEMORY;
    switch (pick(4)) {
    case 0:
        result = CALL_OUT(ds_device_alloc(device, any_size(), MAYBE(ptr)), ptr);
        break;
    case 1:
        result = CALL_OUT(
            ds_device_alloc_pitch(device, any_size(), small_size(), MAYBE(ptr), &pitch), ptr);
        break;
    case 2: {
        ds_pinned_desc desc = { .flags = byte(), .numa_node = pick(3) ? 0 : any_int() };
        kind = HOST_MEMORY;
        result = CALL_OUT(ds_pinned_alloc_with(host_size(), odd() ? NULL : &desc, MAYBE(ptr)), ptr);
        break;
    }
    default:
        kind = HOST_MEMORY;
        result = CALL_OUT(ds_pinned_alloc(host_size(), MAYBE(ptr)), ptr);
    }
    if (result == DS_OK)
        keep_pointer(kind, ptr);
}

static void step_free(void) {
    void *device_memory = ending_pointer(DEVICE_MEMORY), *host = ending_pointer(HOST_MEMORY);
    if (byte() & 1)
        CALL(ds_device_free(device_memory));
    else
        CALL(ds_pinned_free(host));
}

/* Only this memory, or ranges that no memory can have. */
static void step_register(void) {
    static char ours[4][8192] __attribute__((aligned(4096)));
    char *at = ours[pick(4)] + (odd() ? byte() : 0u);
    size_t size = PICK(((const size_t[]){ 4096, 8192, 1, 0, SIZE_MAX, 100 }));
    if (size < SIZE_MAX && size > (size_t)(&ours[3][8191] - at))
        size = SIZE_MAX;
    if (byte() & 1)
        CALL(ds_pinned_register(odd() ? NULL : at, size));
    else
        CALL(ds_pinned_unregister(odd() ? ending_pointer(HOST_MEMORY) : at));
}

static void step_pointer(void) {
    ds_pointer_info info;
    ds_device device;
    ds_mem_block block;
    int owns;
    const void *ptr = any_pointer((enum pointer_kind)pick(POINTER_KINDS));
    switch (pick(4)) {
    case 0:
        CALL_OUT(ds_pointer_get_info(ptr, MAYBE(info)), info);
        break;
    case 1:
        CALL_OUT(ds_pointer_get_device(ptr, MAYBE(device)), device);
        break;
    case 2:
        CALL_OUT(ds_mem_get_block(ptr, MAYBE(block)), block);
        break;
    default:
        CALL_OUT(ds_mem_pinned_owns(ptr, MAYBE(owns)), owns);
    }
}

/* ---- the caching allocator ---- */

static void step_mem_alloc(void) {
    ds_stream stream = any_stream();
    ds_mem_request request = { .size = any_size(), .stream = stream, .pool = { 0 } };
    void *ptr;
    ds_result result;
    if (byte() < 128) {
        result = CALL_OUT(ds_mem_alloc(request.size, stream, MAYBE(ptr)), ptr);
    } else {
        request.pool = odd() ? any_pool() : (ds_pool){ 0 };
        request.alignment = odd() ? any_size() : (size_t)1 << pick(23);
        request.label = lasting_text();
        result = CALL_OUT(ds_mem_alloc_with(odd() ? NULL : &request, MAYBE(ptr)), ptr);
    }
    if (result == DS_OK)
        keep_pointer(BLOCK, ptr);
}

/* A block that work of its own stream uses, also while that captures. */
static void step_mem_use(void) {
    size_t size = 1 + number(2);
    ds_stream stream = any_stream();
    void *ptr;
    if (CALL_OUT(ds_mem_alloc(size, stream, &ptr), ptr) != DS_OK)
        return;
    CALL(ds_fill(ptr, 7, 1, size, stream));
    if (byte() & 1)
        CALL(ds_mem_free(ptr));
}

/* Twice, if no other thread can get the memory meanwhile; or what is not the start of a block. */
static void step_mem_free(void) {
    void *ptr = ending_pointer(BLOCK), *pinned = ending_pointer(PINNED_MEMORY);
    int again = odd() && alone();
    switch (pick(4)) {
    case 0:
        CALL(ds_mem_pinned_free(pinned));
        if (again && pinned && CALL(ds_mem_pinned_free(pinned)) >= 0)
            die("a pinned block was freed twice");
        keep_pointer(BLOCK, ptr);
        break;
    case 1:
        CALL(ds_mem_free((void *)((uintptr_t)ptr + 1 + byte())));
        keep_pointer(BLOCK, ptr);
        break;
    default:
        CALL(ds_mem_free(ptr));
        if (again && ptr && CALL(ds_mem_free(ptr)) >= 0)
            die("a block was freed twice");
        keep_pointer(PINNED_MEMORY, pinned);
    }
}

static void step_mem_record(void) {
    void *ptr = any_pointer(odd() ? PINNED_MEMORY : BLOCK);
    ds_stream stream = any_stream();
    switch (pick(3)) {
    case 0:
        CALL(ds_mem_record_use(ptr, stream));
        break;
    case 1:
        CALL(ds_mem_record_stream(ptr, stream));
        break;
    default:
        CALL(ds_mem_pinned_record_use(ptr, stream));
    }
}

static void step_mem_cache(void) {
    ds_device device = any_device();
    size_t released;
    switch (pick(6)) {
    case 0:
        CALL(ds_mem_empty_cache(device, odd() ? &released : NULL));
        break;
    case 1:
        CALL(ds_mem_empty_stream_cache(any_stream(), odd() ? &released : NULL));
        break;
    case 2:
        CALL_OUT(ds_mem_trim(device, any_size(), MAYBE(released)), released);
        break;
    case 3:
        CALL_OUT(ds_mem_pinned_empty_cache(MAYBE(released)), released);
        break;
    case 4:
        CALL_VOID(ds_mem_label_push(odd() ? NULL : lasting_text()));
        break;
    default:
        CALL_VOID(ds_mem_label_pop());
    }
}

/* Must hold after whatever happened. */
static void step_mem_validate(void) {
    ds_device device = any_device();
    if (CALL(ds_mem_validate(device)) == DS_ERR_ILLEGAL_STATE)
        die("the allocator is damaged: %s", ds_error_get_last());
}

/* ---- pinned memory ---- */

static void step_pinned(void) {
    ds_mem_pinned_stats stats;
    void *ptr;
    switch (pick(6)) {
    case 0:
    case 1:
    case 2:
        if (CALL_OUT(ds_mem_pinned_alloc(host_size(), MAYBE(ptr)), ptr) == DS_OK)
            keep_pointer(PINNED_MEMORY, ptr);
        break;
    case 3:
        CALL(ds_mem_pinned_set_limit(any_size()));
        break;
    case 4:
        CALL(ds_mem_pinned_get_stats(odd() ? NULL : &stats));
        break;
    default:
        if (odd())
            CALL(ds_mem_pinned_reset_peak_stats());
        else
            CALL(ds_mem_pinned_reset_accumulated_stats());
    }
}

/* ---- policy and limits ---- */

static int shortage(ds_device device, size_t size, void *user) {
    (void)device;
    (void)user;
    if (!size)
        die("a shortage of nothing");
    void *ptr = ending_pointer(BLOCK);
    return CALL(ds_mem_free(ptr)) == DS_OK;
}

static void out_of_memory(ds_device device, size_t needed, size_t total, size_t left, void *user) {
    (void)device;
    (void)needed;
    (void)total;
    (void)left;
    (void)user;
}

static void event(ds_device device, const ds_mem_event *item, void *user) {
    (void)device;
    (void)user;
    if ((unsigned)item->action > DS_ACTION_ANNOTATION)
        die("an allocator event without an action");
}

static void step_mem_observers(void) {
    static char users[2];
    void *user = &users[pick(2)];
    switch (pick(6)) {
    case 0:
        CALL(ds_mem_add_shortage_callback(odd() ? NULL : shortage, user));
        break;
    case 1:
        CALL(ds_mem_remove_shortage_callback(shortage, user));
        break;
    case 2:
        CALL(ds_mem_add_oom_callback(odd() ? NULL : out_of_memory, user));
        break;
    case 3:
        CALL(ds_mem_remove_oom_callback(out_of_memory, user));
        break;
    case 4:
        CALL(ds_mem_add_event_callback(odd() ? NULL : event, user));
        break;
    default:
        CALL(ds_mem_remove_event_callback(event, user));
    }
}

/* Texts for the allocator, put together from words of its grammar. */
static const char *any_policy(void) {
    static const char *const words[] = { "preset:torch",
                                         "preset:cupy",
                                         "preset:default",
                                         "reuse:always",
                                         "reuse:never",
                                         "debug:2",
                                         "debug:1",
                                         "poison:1",
                                         "guard_bytes:512",
                                         "limit:30000000",
                                         "limit:50%",
                                         "expandable_segments:True",
                                         "expandable_segments:False",
                                         "single_pool:1",
                                         "best_fit_by_address:1",
                                         "poll_on_alloc:1",
                                         "segment_growth:8",
                                         "statistics:current",
                                         "max_split_size_mb:21",
                                         "garbage_collection_threshold:0.1",
                                         "roundup_power2_divisions:4",
                                         "backend:cudaMallocAsync",
                                         "backend:native",
                                         "pinned_use_cuda_host_register:True",
                                         "pinned_num_register_threads:4" };
    static __thread char text[256];
    size_t n = 0;
    if (odd())
        return any_text();
    for (unsigned left = 1 + pick(3); left > 0; left--)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? "," : "", PICK(words));
    return text;
}

static ds_mem_config any_config(void) {
    ds_mem_config config = odd() ? ds_mem_config_cupy() : ds_mem_config_default();
    const char *text = any_policy();
    CALL(ds_mem_config_parse(text, odd() ? NULL : &config));
    switch (byte()) {
    case 1:
        config = ds_mem_config_torch();
        break;
    case 2:
        config.reserved[0] = byte() & 1;
        break;
    case 3:
        config.backend = any_int();
        break;
    case 4:
        config.max_split_size = any_size();
        break;
    case 5:
        config.small_segment_size = any_size();
        break;
    case 6:
        config.large_segment_size = any_size();
        break;
    case 7:
        config.garbage_collection_threshold = any_double();
        break;
    case 8:
        config.memory_fraction = any_double();
        break;
    case 9:
        config.expandable_segments_reserve = any_double();
        break;
    case 10:
        config.guard_bytes = any_size();
        break;
    case 11:
        config.roundup_power2_divisions[pick(16)] = byte();
        break;
    case 12:
        config.segment_growth = any_flags();
        break;
    case 13:
        config.pinned_max_round_threshold = any_size();
        break;
    case 14:
        config.pinned_reserve_segment_size = host_size();
        break;
    case 15:
        config.pinned_max_cached_size = any_size();
        break;
    case 16:
        config.backend = DS_MEM_UNCACHED;
        break;
    case 17:
        config.backend = DS_MEM_DRIVER_POOL;
        break;
    case 18:
        config.reuse = any_int();
        break;
    case 19:
        config.debug = any_int();
        break;
    case 20:
        config.max_non_split_rounding = any_size();
        break;
    default:
        break;
    }
    return config;
}

static void step_mem_config(void) {
    ds_mem_config config;
    ds_device device = any_device();
    switch (pick(4)) {
    case 0:
    case 1:
        config = any_config();
        CALL(ds_mem_configure(device, odd() ? NULL : &config));
        break;
    case 2:
        CALL(ds_mem_configure_text(any_policy()));
        break;
    default:
        CALL_OUT(ds_mem_get_config(device, MAYBE(config)), config);
    }
}

static void step_mem_limit(void) {
    ds_device device = any_device();
    size_t bytes;
    double fraction;
    switch (pick(4)) {
    case 0:
        CALL(ds_mem_set_limit(device, any_size()));
        break;
    case 1:
        CALL_OUT(ds_mem_get_limit(device, MAYBE(bytes)), bytes);
        break;
    case 2:
        CALL(ds_mem_set_fraction(device, any_double()));
        break;
    default:
        CALL_OUT(ds_mem_get_fraction(device, MAYBE(fraction)), fraction);
    }
}

/* ---- statistics and reports ---- */

static void step_mem_stats(void) {
    ds_device device = any_device();
    ds_mem_stats stats;
    size_t bytes, used;
    int64_t value;
    memset(&stats, 0, sizeof stats);
    switch (pick(8)) {
    case 0:
        CALL(ds_mem_get_stats(device, odd() ? NULL : &stats));
        CALL_OUT(ds_mem_stats_get_by_name(odd() ? NULL : &stats,
                                          byte() & 1 ? "num_ooms" : any_text(), MAYBE(value)),
                 value);
        break;
    case 1:
        CALL(ds_pool_get_stats(any_pool(), odd() ? NULL : &stats));
        break;
    case 2:
        CALL(ds_mem_reset_peak_stats(device));
        break;
    case 3:
        CALL(ds_mem_reset_accumulated_stats(device));
        break;
    case 4:
        CALL_VOID((void)ds_mem_get_allocated(device));
        CALL_VOID((void)ds_mem_get_max_allocated(device));
        CALL_VOID((void)ds_mem_get_reserved(device));
        CALL_VOID((void)ds_mem_get_max_reserved(device));
        break;
    case 5:
        CALL_OUT(ds_mem_get_driver_pool_info(device, MAYBE(bytes), odd() ? NULL : &used), bytes);
        break;
    case 6:
        CALL(ds_mem_write_summary(device, any_int(), odd() ? NULL : write_text, any_writer_user()));
        break;
    default:
        CALL(ds_mem_write_processes(device, odd() ? NULL : write_text, any_writer_user()));
    }
    if (!ds_mem_get_last_report())
        die("no report of the last shortage");
}

static void take_block(const ds_mem_block *block, void *user) {
    (void)user;
    if ((unsigned)block->state > DS_BLOCK_UNMAPPED)
        die("a block without a state");
}

static void step_snapshot(void) {
    ds_mem_history_desc desc = { .entries = odd() ? any_size() : small_size(), .skip = byte() };
    ds_mem_format format = (ds_mem_format)(odd() ? any_int() : (int)pick(3));
    switch (pick(6)) {
    case 0:
        CALL(ds_mem_history_start(odd() ? NULL : &desc));
        break;
    case 1:
        CALL(ds_mem_history_stop());
        break;
    case 2:
        CALL(ds_mem_annotate(any_device(), any_text()));
        break;
    case 3:
        CALL(ds_mem_write_snapshot(format, any_flags() & 3, odd() ? any_pool() : (ds_pool){ 0 },
                                   odd() ? NULL : write_text, any_writer_user()));
        break;
    case 4:
        CALL(ds_mem_write_snapshot_file(format, any_flags() & 3,
                                        PICK(((const char *[]){ "/dev/null", "/dev/full", "", NULL,
                                                                "/nonexistent/file", "/tmp" }))));
        break;
    default:
        CALL(ds_mem_for_each_block(any_device(), odd() ? NULL : take_block, NULL));
    }
}

/* ---- other processes ---- */

/* ipc.c has other processes; here the handle is this process's own, or invented. */
static void step_mem_share(void) {
    static __thread ds_ipc_mem_handle handle;
    void *ptr = any_pointer(BLOCK);
    ds_stream stream = any_stream();
    switch (pick(4)) {
    case 0:
        CALL_OUT(ds_mem_export(ptr, MAYBE(handle)), handle);
        break;
    case 1:
        for (unsigned i = pick(4); i > 0; i--)
            handle.bytes[byte()] = byte();
        CALL_OUT(ds_mem_import(any_device(), odd() ? NULL : &handle, stream, MAYBE(ptr)), ptr);
        break;
    case 2:
        CALL(ds_mem_import_close(ptr, stream));
        break;
    default:
        CALL(ds_mem_ipc_collect());
    }
}

static const step_fn steps[] = {
    step_alloc,     step_free,          step_register,    step_pointer,   step_mem_alloc,
    step_mem_alloc, step_mem_alloc,     step_mem_use,     step_mem_use,   step_mem_free,
    step_mem_free,  step_mem_record,    step_mem_record,  step_mem_cache, step_pinned,
    step_pinned,    step_mem_observers, step_mem_config,  step_mem_limit, step_mem_stats,
    step_snapshot,  step_mem_share,     step_mem_validate
};
const step_group memory_steps = { steps, COUNT(steps) };
