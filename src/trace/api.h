/* trace/api.h - the public functions of the layer.

   Invariants: parameters are checked before anything changes. A start that fails later has
   discarded the trace before.
   Locks: `control` while a trace starts or ends.
   Threads: any. */
#ifndef DS__TRACE_API_H
#define DS__TRACE_API_H

#include "layer.h"

static ds_result ds__trace_is_off(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE, "the trace layer is off; set DEVSTREAM_TRACE, or "
                                          "ds_init_desc.trace, or name \"trace\" in "
                                          "DEVSTREAM_LAYERS");
}

static ds_result ds__trace_is_idle(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE, "no trace runs");
}

DSDEF ds_result(ds_trace_start)(const ds_trace_desc *desc) {
    static const ds_trace_desc none;
    DS__ENTER("ds_trace_start");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_trace_desc", desc);
    ds_result r = ds__trace_desc_check(desc);
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__trace.control);
    r = atomic_load(&ds__trace.on)
            ? ds__fail(DS_ERR_ILLEGAL_STATE, "a trace runs already; end it first")
            : ds__trace_begin(desc);
    ds__mutex_unlock(&ds__trace.control);
    return r;
}

DSDEF ds_result(ds_trace_stop)(void) {
    DS__ENTER("ds_trace_stop");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    ds__mutex_lock(&ds__trace.control);
    ds_result r = atomic_load(&ds__trace.on) ? ds__trace_finish() : ds__trace_is_idle();
    ds__mutex_unlock(&ds__trace.control);
    return r;
}

DSDEF ds_result(ds_trace_flush)(void) {
    DS__ENTER("ds_trace_flush");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    return atomic_load(&ds__trace.on) ? ds__activity_client_flush(DS__ACTIVITY_TRACE)
                                      : ds__trace_is_idle();
}

/* Takes the records of complete operations, before the ring is read. */
static ds_result ds__trace_ready(void) {
    if (!ds__trace.layer)
        return ds__trace_is_off();
    if (atomic_load(&ds__trace.on))
        return ds__activity_client_flush(DS__ACTIVITY_TRACE);
    return ds__trace.ring ? DS_OK
                          : ds__fail(DS_ERR_ILLEGAL_STATE, "no trace was started; use "
                                                           "ds_trace_start");
}

DSDEF ds_result(ds_trace_dump)(const char *path) {
    DS__ENTER("ds_trace_dump");
    DS__REQUIRE(path, "path is NULL");
    ds_result r = ds__trace_ready();
    return r < 0 ? r : ds__trace_dump_write(path);
}

/* Hands text out: to the buffer, cut at a line, or to standard error. */
static ds_result ds__trace_hand_out(ds__trace_output *o, char *text, size_t size) {
    size_t n = o->size;
    if (!text) {
        fwrite(o->text, 1, n, stderr);
    } else {
        while (n && n >= size)
            for (n--; n && o->text[n - 1] != '\n';)
                n--;
        memcpy(text, o->text ? o->text : "", n);
        text[n] = 0;
    }
    int cut = n < o->size;
    size_t whole = o->size;
    int failed = o->failed;
    ds__trace_output_deinit(o);
    if (failed)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the text");
    return cut ? ds__fail(DS_ERR_LIMIT_EXCEEDED,
                          "the text has %zu bytes; the buffer has %zu, with the terminating zero",
                          whole, size)
               : DS_OK;
}

static ds_result ds__trace_text_check(const char *text, size_t size) {
    DS__REQUIRE(!text || size, "size is 0; at least 1 byte is needed");
    return ds__trace_ready();
}

DSDEF ds_result(ds_trace_summary)(char *text, size_t size) {
    ds__trace_output o;
    if (text && size)
        *text = 0;
    DS__ENTER("ds_trace_summary");
    ds_result r = ds__trace_text_check(text, size);
    if (r < 0)
        return r;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_summary_write(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
    return ds__trace_hand_out(&o, text, size);
}

DSDEF ds_result(ds_trace_standing)(char *text, size_t size) {
    ds__trace_output o;
    if (text && size)
        *text = 0;
    DS__ENTER("ds_trace_standing");
    ds_result r = ds__trace_text_check(text, size);
    if (r < 0)
        return r;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_standing_write(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
    return ds__trace_hand_out(&o, text, size);
}

DSDEF ds_result(ds_trace_get_stats)(ds_trace_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_trace_get_stats");
    DS__REQUIRE(out, "out is NULL");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    ds__mutex_lock(&ds__trace.file_lock);
    ds__mutex_lock(&ds__trace.lock);
    const ds__trace_output *o = &ds__trace.output;
    out->operations = ds__trace.operations;
    out->untimed = ds__trace.untimed;
    out->records = ds__trace.head;
    out->kept = ds__trace.head < ds__trace.ring_size ? ds__trace.head : ds__trace.ring_size;
    out->dropped = ds__trace.dropped + o->lost;
    out->written = o->at.record - o->lost;
    out->bytes = o->bytes;
    ds__mutex_unlock(&ds__trace.lock);
    ds__mutex_unlock(&ds__trace.file_lock);
    return DS_OK;
}

#endif
