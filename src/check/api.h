/* check/api.h - the public functions of the layer.

   Invariants: a call that is permitted anywhere leaves the thread's site and last error as they
   were.
   Locks: ds__race.lock, for short steps.
   Threads: any. */
#ifndef DS__CHECK_API_H
#define DS__CHECK_API_H

#include "seen.h"

DSDEF void(ds_check_set_report_fn)(ds_hazard_fn fn, void *user) {
    ds__mutex_lock(&ds__race.lock);
    ds__race.report_fn = fn;
    ds__race.report_user = user;
    ds__mutex_unlock(&ds__race.lock);
}

DSDEF ds_result(ds_check_get_stats)(ds_check_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_check_get_stats");
    DS__REQUIRE(out, "out is NULL");
    /* also after the end of the checks for lack of memory */
    ds__mutex_lock(&ds__race.lock);
    if (atomic_load(&ds__race.on)) {
        *out = ds__race.stats;
        out->bytes = ds__race.bytes;
    }
    ds__mutex_unlock(&ds__race.lock);
    return DS_OK;
}

/* Takes the site of a call that is permitted anywhere. */
static void ds__race_call(const char *fn, const char **out_fn, ds_site *out_site) {
    *out_fn = ds__tls.fn;
    *out_site = ds__tls.site;
    ds__tls.fn = fn;
    ds__tls.site = ds__site_take(&ds__tls);
}

/* Checks an access of host code. */
static ds_result ds__race_host_access(const char *fn, const void *ptr, size_t bytes, unsigned how) {
    const char *outer;
    ds_site site;
    ds__race_call(fn, &outer, &site);
    ds__race_now now;
    if (ptr && bytes && ds__race_enter()) {
        ds__race_range r = ds__race_range_row(ptr, bytes);
        if (ds__race_host_now(&now))
            ds__race_access(&now, &r, how);
        ds__race_leave();
    }
    ds__tls.fn = outer;
    ds__tls.site = site;
    return DS_OK;
}

DSDEF ds_result(ds_check_host_read)(const void *ptr, size_t bytes) {
    return ds__race_host_access("ds_host_read", ptr, bytes, DS__RACE_READ);
}

DSDEF ds_result(ds_check_host_write)(const void *ptr, size_t bytes) {
    return ds__race_host_access("ds_host_write", ptr, bytes, DS__RACE_WRITE);
}

static ds_result ds__race_hand_over(const char *fn, const void *token,
                                    void (*step)(const void *token)) {
    const char *outer;
    ds_site site;
    ds__race_call(fn, &outer, &site);
    if (ds__race_enter()) {
        step(token);
        ds__race_leave();
    }
    ds__tls.fn = outer;
    ds__tls.site = site;
    return DS_OK;
}

DSDEF ds_result(ds_check_release)(const void *token) {
    return ds__race_hand_over("ds_check_release", token, ds__race_token_release);
}

DSDEF ds_result(ds_check_acquire)(const void *token) {
    return ds__race_hand_over("ds_check_acquire", token, ds__race_token_acquire);
}

/* Returns 1 if a handle is zero, which stands for the calling thread, or that of a stream.
   Otherwise the sentence is set. name: of the parameter. */
static int ds__race_stream_is_valid(ds_stream stream, const char *name) {
    ds__stream *s = stream.id ? ds__pin(&ds__g.streams, stream.id) : NULL;
    if (s)
        ds__stream_unpin(s);
    if (stream.id && !s)
        DS_IGNORE(
            ds__fail(DS_ERR_INVALID_HANDLE, "%s: the stream was destroyed or never existed", name));
    return !stream.id || s;
}

/* Returns the timeline of a stream, or of the calling thread for a zeroed handle. */
static ds__race_line *ds__race_line_of_point(ds_stream stream) {
    return stream.id ? ds__race_line_of_handle(stream) : ds__race_host();
}

DSDEF ds_result(ds_check_declare_order)(ds_stream from, ds_stream to) {
    DS__ENTER("ds_check_declare_order");
    if (!atomic_load(&ds__race.on))
        return DS_OK;
    if (!ds__race_stream_is_valid(from, "from") || !ds__race_stream_is_valid(to, "to"))
        return DS_ERR_INVALID_HANDLE;
    if (!ds__race_enter())
        return DS_OK;
    ds__race_line *a = ds__race_line_of_point(from);
    ds__race_line *b = ds__race_line_of_point(to);
    if (a && b) {
        b->n++;
        ds__race_line_wait(b, b->n, a, ds__race_place_of_call());
    }
    ds__race_leave();
    if (!a || !b)
        return ds__fail(DS_ERR_INVALID_HANDLE, "%s is not a stream that the layer knows",
                        a ? "to" : "from");
    return DS_OK;
}

DSDEF ds_result(ds_check_declare_memory)(const void *ptr, size_t bytes, const char *label) {
    DS__ENTER("ds_check_declare_memory");
    DS__REQUIRE(ptr && bytes, "the range is empty");
    DS__REQUIRE(bytes <= UINTPTR_MAX - (uintptr_t)ptr,
                "%zu bytes at %p end behind the address space; at most %zu are allowed", bytes, ptr,
                (size_t)(UINTPTR_MAX - (uintptr_t)ptr));
    if (!ds__race_enter())
        return DS_OK;
    ds__race_memory *m = ds__race_map_meet(&ds__race.alloc, (uintptr_t)ptr, bytes);
    int is_known = m && !m->dead;
    if (!is_known) {
        ds__race_memory *former = m && m->declared ? ds__race_memory_detach(m) : NULL;
        ds__race_memory *made = ds__race_memory_add(ptr, bytes, 0, label);
        if (made)
            made->declared = 1;
        if (made && former)
            ds__race_former_take(made, former);
        if (former)
            ds__race_memory_unwatch(former);
    }
    ds__race_leave();
    DS__REQUIRE(!is_known, "%zu bytes at %p overlap memory that is known", bytes, ptr);
    return DS_OK;
}

DSDEF ds_result(ds_check_forget_memory)(const void *ptr) {
    DS__ENTER("ds_check_forget_memory");
    if (!ds__race_enter())
        return DS_OK;
    ds__race_memory *m = ds__race_map_find(&ds__race.alloc, (uintptr_t)ptr);
    int is_declared = m && !m->dead && m->declared && m->base == (uintptr_t)ptr;
    if (is_declared)
        ds__race_memory_retire(m);
    ds__race_leave();
    DS__REQUIRE(is_declared, "%p is not the start of memory of ds_check_declare_memory", ptr);
    return DS_OK;
}

DSDEF ds_result(ds_check_ignore)(const void *ptr, size_t bytes) {
    DS__ENTER("ds_check_ignore");
    DS__REQUIRE(ptr && bytes, "the range is empty");
    if (!ds__race_enter())
        return DS_OK;
    uintptr_t at = (uintptr_t)ptr;
    ds__race_memory *m;
    while (bytes && (m = ds__race_memory_find(at)) != NULL) {
        size_t left = m->base + m->size - at;
        size_t size = bytes < left ? bytes : left;
        if (ds__race_array_reserve(&m->skip, sizeof *m->skip, m->skips, &m->skip_room))
            m->skip[m->skips++] = (ds__race_range){ at, size, size, 1 };
        at += size;
        bytes -= size;
    }
    ds__race_leave();
    return DS_OK;
}

DSDEF ds_result(ds_check_set_extents)(const ds_extent *extents, size_t count) {
    DS__ENTER("ds_check_set_extents");
    DS__REQUIRE(extents || !count, "extents is NULL");
    DS__REQUIRE(count <= DS_KERNEL_MAX_PARAMS, "%zu extents; at most %d are allowed", count,
                DS_KERNEL_MAX_PARAMS);
    for (size_t i = 0; i < count; i++) {
        ds_result r = ds__extent_check_form(&extents[i], i);
        if (r < 0)
            return r;
    }
    if (count)
        memcpy(ds__race_tls.extent, extents, count * sizeof *extents);
    ds__race_tls.extents = count;
    return DS_OK;
}

static ds_result ds__race_is_off(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE,
                    "the check layer is off; set DEVSTREAM_CHECK=1 or ds_init_desc.check");
}

DSDEF ds_result(ds_check_get_point)(ds_stream stream, ds_check_point *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_check_get_point");
    DS__REQUIRE(out, "out is NULL");
    if (!atomic_load(&ds__race.on))
        return ds__race_is_off();
    if (!ds__race_stream_is_valid(stream, "stream"))
        return DS_ERR_INVALID_HANDLE;
    if (!ds__race_enter())
        return ds__race_is_off();
    ds__race_line *l = ds__race_line_of_point(stream);
    if (l && !stream.id)
        l->n++;
    if (l)
        *out = (ds_check_point){ .line = l->index, .sequence = l->n };
    ds__race_leave();
    return l ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the stream was destroyed or never existed");
}

/* Writes the chain of waits that orders two points, from the first one on. */
static void ds__race_why_print(ds__race_texts *t, const ds__race_reach *reach, ds_check_point a,
                               ds_check_point b) {
    char from[80];
    char to[80];
    uint32_t line = a.line;
    uint64_t n = a.sequence;
    for (int steps = 0; line != b.line && steps < 32; steps++) {
        const ds__race_edge *e = reach[line].next;
        if (!e)
            break;
        const ds__race_place *record = ds__race_place_get(e->from_place);
        const ds__race_place *wait = ds__race_place_get(e->to_place);
        ds__race_line_name(e->from, from, sizeof from);
        ds__race_line_name(e->to, to, sizeof to);
        ds__race_print(t, "operation %llu of %s comes before operation %llu of %s: ",
                       (unsigned long long)(n > e->from_n ? n : e->from_n), from,
                       (unsigned long long)e->to_n, to);
        if (record->file)
            ds__race_print(t, "recorded at %s:%d, ", ds__race_base_name(record->file),
                           record->line);
        ds__race_print(t, "%s at %s:%d\n", wait->operation, ds__race_base_name(wait->file),
                       wait->line);
        line = e->to;
        n = e->to_n;
    }
    if (line == b.line)
        ds__race_print(t, "operation %llu of %s comes before operation %llu: one timeline\n",
                       (unsigned long long)n, ds__race_line_name(line, from, sizeof from),
                       (unsigned long long)b.sequence);
}

/* Writes the answer of ds_check_why. Returns 1 if `a` is ordered before `b`. */
static int ds__race_why(ds__race_texts *t, ds_check_point a, ds_check_point b) {
    char from[80];
    char to[80];
    ds__race_reach *reach = ds__race_edges_reach(b.line, b.sequence);
    int ordered = reach && reach[a.line].n >= a.sequence;
    ds__race_line_name(a.line, from, sizeof from);
    ds__race_line_name(b.line, to, sizeof to);
    if (ordered) {
        ds__race_why_print(t, reach, a, b);
    } else {
        ds__race_print(t, "no wait orders operation %llu of %s before operation %llu of %s",
                       (unsigned long long)a.sequence, from, (unsigned long long)b.sequence, to);
        if (reach && reach[a.line].n)
            ds__race_print(t, "; ordered up to operation %llu",
                           (unsigned long long)reach[a.line].n);
        ds__race_print(t, "\n");
    }
    ds__race_reach_release(reach);
    return ordered;
}

DSDEF ds_result(ds_check_why)(ds_check_point a, ds_check_point b, char *text, size_t size) {
    if (text && size)
        *text = 0;
    DS__ENTER("ds_check_why");
    if (!ds__race_enter())
        return ds__race_is_off();
    int known = a.line && b.line && a.line < ds__race.lines && b.line < ds__race.lines;
    ds__race_texts t = { .size = 0 };
    int ordered = known && ds__race_why(&t, a, b);
    if (known && text && size)
        ds__utf8_copy(text, size, ds__race_text(&t));
    else if (known && !text)
        fputs(ds__race_text(&t), stderr);
    ds__race_leave();
    DS__REQUIRE(known, "%s is no point of ds_check_get_point", a.line ? "b" : "a");
    return ordered ? DS_OK : DS_NOT_READY;
}

#endif
