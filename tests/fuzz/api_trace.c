/* api_trace.c - steps of the API fuzzer: the trace layer, which is on for some inputs. */
#include "api.h"

static void step_trace_start(void) {
    static const char *const files[] = { "/dev/null", "trace.xml", "" };
    ds_trace_desc desc = { .file = odd() ? PICK(files) : NULL,
                           .dump = odd() ? PICK(files) : NULL,
                           .ring = odd() ? any_size() : 256u << pick(4),
                           .timeout_ns = odd() ? number(8) : 0,
                           .signal = odd() ? any_int() : 0,
                           .cupti = odd() ? any_int() : 0 };
    desc.reserved[pick(6)] = odd() ? number(8) : 0;
    CALL(ds_trace_start(odd() ? NULL : &desc));
}

static void step_trace_stop(void) {
    CALL(ds_trace_stop());
}

static void step_trace_flush(void) {
    CALL(ds_trace_flush());
}

static void step_trace_dump(void) {
    CALL(ds_trace_dump(odd() ? NULL : "trace.xml"));
}

static void step_trace_text(void) {
    char text[2000];
    size_t size = pick(2) ? sizeof text : pick(200);
    text[0] = 'x';
    ds_result r =
        pick(2) ? CALL(ds_trace_summary(text, size)) : CALL(ds_trace_standing(text, size));
    if (size && !memchr(text, 0, size))
        die("a text of the trace layer without an end");
    if (r == DS_OK && size && text[0] == 'x')
        die("a summary that was not written");
}

static void step_trace_stats(void) {
    ds_trace_stats stats;
    if (CALL_OUT(ds_trace_get_stats(MAYBE(stats)), stats) == DS_OK && stats.kept > stats.records)
        die("the ring has %llu of %llu records", (unsigned long long)stats.kept,
            (unsigned long long)stats.records);
}

static const step_fn steps[] = { step_trace_start, step_trace_stop, step_trace_flush,
                                 step_trace_dump,  step_trace_text, step_trace_stats };
const step_group trace_steps = { steps, COUNT(steps) };
