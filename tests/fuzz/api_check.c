/* api_check.c - steps of the API fuzzer: the check layer, which is on for some inputs. */
#include "api.h"

/* Points of the thread: of streams, and invented ones. */
static __thread ds_check_point points[8];

static ds_check_point any_point(void) {
    ds_check_point point = points[pick(8)];
    if (odd())
        point.line = (uint32_t)number(4);
    if (odd())
        point.sequence = number(8);
    return point;
}

static char report_user;

/* Locks of devstream are held, so nothing is called but functions that are callable anywhere. */
static void take_report(const ds_hazard_report *r, void *user) {
    const char *texts[] = { r->now.operation, r->now.file,      r->now.stream, r->before.operation,
                            r->before.file,   r->before.stream, r->label,      r->file,
                            r->order,         r->fix,           r->key,        r->text };
    for (size_t i = 0; i < COUNT(texts); i++)
        if (!texts[i])
            die("report %llu: text %zu is NULL", (unsigned long long)r->number, i);
    if (user != &report_user || !*r->now.operation || !*r->fix || !*r->key || !*r->text ||
        !r->number)
        die("a report without %s", !*r->fix ? "a fix" : "a text");
    if (!strcmp(ds_hazard_get_name(r->hazard), "unknown") || r->hazard == DS_HAZARD_NONE)
        die("a report of hazard %d", (int)r->hazard);
}

static void step_check_report_fn(void) {
    if (odd())
        CALL_VOID(ds_check_set_report_fn(NULL, NULL));
    else
        CALL_VOID(ds_check_set_report_fn(take_report, &report_user));
}

static void step_check_stats(void) {
    ds_check_stats stats;
    if (CALL_OUT(ds_check_get_stats(MAYBE(stats)), stats) == DS_OK && stats.ranges > 1u << 24)
        die("the check layer knows %llu ranges", (unsigned long long)stats.ranges);
}

static void step_check_host(void) {
    const char *ptr = any_pointer((enum pointer_kind)pick(POINTER_KINDS));
    size_t bytes = any_size();
    if (pick(2))
        CALL(ds_check_host_read(ptr, bytes));
    else
        CALL(ds_check_host_write(ptr, bytes));
}

static void step_check_hand_over(void) {
    static const char tokens[4];
    const char *token = odd() ? NULL : &tokens[pick(4)];
    if (pick(2))
        CALL(ds_check_release(token));
    else
        CALL(ds_check_acquire(token));
}

static void step_check_order(void) {
    ds_stream from = pick(4) ? any_stream() : (ds_stream){ 0 };
    ds_stream to = pick(4) ? any_stream() : (ds_stream){ 0 };
    CALL(ds_check_declare_order(from, to));
}

static void step_check_memory(void) {
    static char declared[8][64];
    char *ptr = odd() ? any_pointer(DEVICE_MEMORY) : declared[pick(8)];
    switch (pick(3)) {
    case 0:
        CALL(ds_check_declare_memory(ptr, odd() ? any_size() : pick(129), any_text()));
        break;
    case 1:
        CALL(ds_check_forget_memory(ptr));
        break;
    default:
        CALL(ds_check_ignore(odd() ? ptr : any_pointer(DEVICE_MEMORY), any_size()));
    }
}

static void step_check_extents(void) {
    ds_extent extents[4];
    size_t count = odd() ? any_size() : pick(5);
    for (size_t i = 0; i < COUNT(extents); i++)
        extents[i] = (ds_extent){ .kind = (ds_extent_kind)(odd() ? any_int() : (int)pick(5)),
                                  .atomic = (int)pick(2),
                                  .bytes = any_size(),
                                  .offset = any_size(),
                                  .stride = any_size(),
                                  .count_param = pick(4) };
    if (count <= COUNT(extents) || count > DS_KERNEL_MAX_PARAMS)
        CALL(ds_check_set_extents(odd() ? NULL : extents, count));
}

static void step_check_point(void) {
    ds_check_point point;
    ds_stream stream = pick(4) ? any_stream() : (ds_stream){ 0 };
    if (CALL_OUT(ds_check_get_point(stream, MAYBE(point)), point) == DS_OK)
        points[pick(8)] = point;
}

static void step_check_why(void) {
    char text[300];
    size_t size = pick(2) ? sizeof text : pick(200);
    ds_check_point a = any_point();
    ds_check_point b = any_point();
    ds_result result = CALL(ds_check_why(a, b, text, size));
    if (result != DS_ERR_ILLEGAL_STATE && size && !memchr(text, 0, size))
        die("ds_check_why writes a text without an end");
}

static const step_fn steps[] = { step_check_report_fn, step_check_stats,     step_check_host,
                                 step_check_host,      step_check_hand_over, step_check_order,
                                 step_check_memory,    step_check_memory,    step_check_extents,
                                 step_check_point,     step_check_why };
const step_group check_steps = { steps, COUNT(steps) };
