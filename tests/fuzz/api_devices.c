/* api_devices.c - steps of the API fuzzer: devices, backends, results, ranges, options. */
#include "api.h"

static void step_device_text(void) {
    ds_device device;
    char text[64];
    size_t size = small_size() % (sizeof text + 1);
    const char *name = any_text();
    switch (pick(6)) {
    case 0:
        CALL_OUT(ds_device_parse(name, MAYBE(device)), device);
        break;
    case 1:
        if (odd())
            CALL_OUT(ds_device_get_current(MAYBE(device)), device);
        else
            CALL_OUT(ds_device_get_default(MAYBE(device)), device);
        break;
    case 2:
        CALL(ds_device_format(any_device(), odd() ? NULL : text, size));
        break;
    case 3:
        CALL(ds_device_get_name(any_device(), odd() ? NULL : text, size));
        break;
    case 4:
        CALL(ds_device_set_label(any_device(), name));
        break;
    default:
        CALL(ds_device_get_label(any_device(), odd() ? NULL : text, size));
    }
}

static void step_device_current(void) {
    switch (pick(5)) {
    case 4:
        CALL(ds_device_set_default(any_device()));
        break;
    case 0:
        CALL(ds_device_set_current(odd() ? ds_device_at(any_int()) : any_device()));
        break;
    case 1:
        CALL(ds_device_push(any_device()));
        break;
    case 2:
        CALL(ds_device_pop());
        break;
    default: {
        ds_scope scope = odd() ? ds_device_of_scope_enter(any_pointer(DEVICE_MEMORY))
                               : ds_device_scope_enter(any_device());
        run_some_steps();
        CALL_VOID(ds_device_scope_leave(&scope));
    }
    }
}

static void step_backend(void) {
    static char report[4096];
    ds_backend_info info;
    int n;
    switch (pick(5)) {
    case 0:
        CALL_OUT(ds_backend_get_info(any_int(), MAYBE(info)), info);
        break;
    case 1:
        CALL(ds_backend_format(odd() ? NULL : report, odd() ? small_size() % 64 : sizeof report));
        break;
    case 2:
        CALL(ds_backend_is_available((ds_device_type)any_device().type));
        break;
    case 3:
        CALL(ds_backend_format_arch_list((ds_device_type)any_device().type, odd() ? NULL : report,
                                         odd() ? small_size() % 64 : sizeof report));
        break;
    default:
        CALL_OUT(ds_device_get_count((ds_device_type)any_device().type, MAYBE(n)), n);
    }
}

static void step_device_query(void) {
    ds_device_properties properties;
    ds_device device = any_device();
    size_t bytes, more_bytes;
    int64_t value;
    int n, m;
    switch (pick(7)) {
    case 0: {
        ds_attribute attribute = (ds_attribute)(odd() ? any_int() : (int)byte());
        CALL_OUT(ds_device_get_attribute(device, attribute, MAYBE(value)), value);
        CALL_VOID((void)ds_attribute_get_name(attribute));
        break;
    }
    case 6:
        CALL_OUT(ds_device_get_properties(device, MAYBE(properties)), properties);
        break;
    case 1:
        CALL_OUT(ds_device_get_capability(device, MAYBE(n), &m), n);
        break;
    case 2:
        CALL_OUT(ds_device_get_memory_info(device, &bytes, MAYBE(more_bytes)), bytes);
        break;
    case 3:
        CALL_OUT(ds_device_can_access_peer(device, any_device(), MAYBE(n)), n);
        break;
    case 4:
        CALL_OUT(ds_device_get_priority_range(device, MAYBE(n), &m), n);
        break;
    default:
        CALL_OUT(ds_stream_priority_from_paddle(any_int(), MAYBE(n)), n);
    }
}

static void step_device_wait(void) {
    ds_device device = any_device();
    if (odd())
        CALL(ds_device_reset(device));
    else
        CALL(ds_device_synchronize(device));
}

static void step_nvml(void) {
    ds_device device = any_device();
    unsigned n, m;
    switch (pick(4)) {
    case 0:
        CALL_OUT(ds_device_get_utilization(device, MAYBE(n), &m), n);
        break;
    case 1:
        CALL_OUT(ds_device_get_temperature(device, MAYBE(n)), n);
        break;
    case 2:
        CALL_OUT(ds_device_get_power_draw(device, MAYBE(n)), n);
        break;
    default:
        CALL_OUT(ds_device_get_clock_rate(device, MAYBE(n), &m), n);
    }
}

static void step_names(void) {
    ds_result result = (ds_result)((int)byte() - 40);
    ds_dtype dtype = { byte(), byte(), (uint16_t)number(2) };
    char text[64];
    size_t size = small_size() % (sizeof text + 1);
    unsigned char uuid[16] = { byte(), byte() };
    if (!ds_result_get_name(result)[0] || !ds_result_get_text(result)[0])
        die("a result without a name");
    CALL(ds_dtype_format(dtype, odd() ? NULL : text, size));
    CALL_OUT(ds_dtype_parse(byte() & 1 ? "half" : any_text(), MAYBE(dtype)), dtype);
    CALL(ds_uuid_format(odd() ? NULL : uuid, odd() ? NULL : text, size));
    if (ds_version_get() != DEVSTREAM_VERSION)
        die("the library has another version than the headers");
    if (ds_dtype_equal(dtype, dtype) != 1)
        die("a type does not equal itself");
    CALL_VOID(ds_site_set(odd() ? NULL : "file", any_int()));
    CALL_VOID((void)ds_dtype_get_size(dtype));
    CALL_VOID((void)ds_collective_get_name((ds_collective)any_int()));
    CALL_VOID((void)ds_mem_stats_get_name(small_size()));
}

static void take_check(const ds_check_item *item, void *user) {
    (void)user;
    if (item->result >= 0 || !item->error)
        die("a failed check without a negative result or a sentence");
}

/* Never the default handler, which would end the process. */
static void step_check(void) {
    CALL_VOID(ds_check_set_handler(take_check, NULL));
    CALL_VOID((void)DS_CHECK(ds_stream_query(any_stream())));
    CALL_VOID(
        ds_check_report(DS_ERR_DRIVER, odd() ? NULL : "text", odd() ? NULL : "file", any_int()));
}

static void step_sync_debug(void) {
    ds_sync_debug_mode mode;
    switch (pick(3)) {
    case 0:
        CALL(ds_sync_debug_set_mode((ds_sync_debug_mode)any_int()));
        break;
    case 1:
        CALL(ds_sync_debug_set_mode_text(any_text()));
        break;
    default:
        CALL_OUT(ds_sync_debug_get_mode(MAYBE(mode)), mode);
    }
    if (pick(8) == 0)
        CALL(ds_quiesce());
}

static void step_cpu(void) {
    ds_cpu_stats stats;
    int64_t ns;
    switch (pick(4)) {
    case 0:
        CALL_OUT(ds_cpu_get_clock(MAYBE(ns)), ns);
        break;
    case 1:
        CALL_OUT(ds_cpu_get_spin(MAYBE(ns)), ns);
        break;
    case 2:
        CALL(ds_cpu_set_spin((int64_t)pick(8) * 10000 - 10000));
        break;
    default:
        CALL_OUT(ds_cpu_get_stats(MAYBE(stats)), stats);
    }
}

/* ---- activity ---- */

static void take_activity(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++) {
        const ds_activity *a = &batch->records[i];
        if (a->kind < DS_ACTIVITY_KERNEL || a->kind > DS_ACTIVITY_GRAPH || !a->correlation_id)
            die("a record without a kind or number");
        if (a->result == DS_OK && (a->begin_ns < a->enqueue_ns || a->end_ns < a->begin_ns))
            die("a record whose times are out of order");
    }
}

static void step_activity(void) {
    static const size_t capacities[] = { 0, 16, 15, 1000 };
    ds_activity_desc desc = { .fn = odd() ? NULL : take_activity,
                              .capacity = PICK(capacities),
                              .kinds = odd() ? byte() : 0u };
    uint64_t id;
    switch (pick(8)) {
    case 0:
    case 1:
        CALL(ds_activity_start(odd() ? NULL : &desc));
        break;
    case 2:
        CALL(ds_activity_flush());
        break;
    case 3:
        CALL(ds_activity_stop());
        break;
    case 4:
        CALL(ds_activity_push_id(byte()));
        break;
    case 5:
        CALL(ds_activity_pop_id(odd() ? NULL : &id));
        break;
    default:
        if (!ds_activity_kind_get_name((ds_activity_kind)any_int()))
            die("a kind of activity without a name");
    }
}

/* ---- ranges ---- */

static void take_range(const ds_range_event *event, void *user) {
    (void)user;
    if ((unsigned)event->kind > DS_RANGE_THREAD_LABEL || !event->domain_name)
        die("a range event without a kind or domain");
}

static ds_range_desc any_range_desc(void) {
    ds_range_desc desc = { .text = any_text(), .domain = any_domain(), .color = (uint32_t)byte() };
    desc.payload.kind = (ds_payload_kind)(pick(5) - (odd() ? 2u : 0u));
    desc.payload.value.u64 = byte();
    return desc;
}

static void step_range_nested(void) {
    ds_range_desc desc = any_range_desc();
    ds_range_scope scope;
    switch (pick(6)) {
    case 0:
        CALL(ds_range_push(any_text()));
        break;
    case 1:
        CALL(ds_range_push_with(odd() ? NULL : &desc));
        break;
    case 2:
        CALL(ds_range_pop());
        break;
    case 3:
        CALL(ds_range_pop_in(any_domain()));
        break;
    default:
        scope = odd() ? ds_range_scope_enter(any_text()) : ds_range_scope_enter_with(&desc);
        run_some_steps();
        CALL_VOID(ds_range_scope_leave(&scope));
    }
}

static void step_range(void) {
    ds_range_desc desc = any_range_desc();
    ds_domain domain;
    ds_range range;
    switch (pick(8)) {
    case 0:
        if (CALL_OUT(ds_domain_create(any_text(), MAYBE(domain)), domain) == DS_OK)
            keep_domain(domain);
        break;
    case 1:
        CALL(ds_range_mark(any_text()));
        break;
    case 2:
        CALL(ds_range_mark_with(odd() ? NULL : &desc));
        break;
    case 3:
        if (CALL_OUT(ds_range_start(any_text(), MAYBE(range)), range) == DS_OK)
            keep_range(range);
        break;
    case 4:
        if (CALL_OUT(ds_range_start_with(odd() ? NULL : &desc, MAYBE(range)), range) == DS_OK)
            keep_range(range);
        break;
    case 5:
        CALL(ds_range_end(any_range()));
        break;
    case 6:
        CALL(ds_range_set_hook(odd() ? NULL : take_range, NULL));
        break;
    default:
        CALL(ds_thread_set_label(any_text()));
    }
}

static const step_fn steps[] = { step_device_text, step_device_current, step_device_current,
                                 step_backend,     step_device_query,   step_device_wait,
                                 step_device_wait, step_nvml,           step_names,
                                 step_check,       step_sync_debug,     step_activity,
                                 step_cpu,         step_range_nested,   step_range };
const step_group device_steps = { steps, COUNT(steps) };
