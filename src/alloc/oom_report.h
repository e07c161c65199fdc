/* alloc/oom_report.h - out-of-memory report.

   Writes the report of a request that found no memory (ds__oom_report): one sentence for
   ds_error_get_last, and a page for ds_mem_get_last_report. Numbers come from oom_walk.h, the
   advice from oom_hint.h. ds__oom_page_print is a text writer for a fixed buffer (ds__oom_page).

   Invariants: The page belongs to the thread, until the next shortage on the thread or the end
   of the thread. If there is no host memory for the page, ds_mem_get_last_report gives an empty
   string; the sentence is set in any case. The sentence leaves out owners, the smallest first,
   if they do not fit.
   Locks: expects none. ds__oom_collect takes all locks of the device; the program's memory and
   log functions are called without a lock.
   Threads: the thread of the failed request; ds_mem_get_last_report: any thread, for its own
   page. */
#ifndef DS__ALLOC_OOM_REPORT_H
#define DS__ALLOC_OOM_REPORT_H

#include "../core/internal.h"
#include "pool.h"
#include "arena.h"
#include "request.h"
#include "reuse.h"
#include "oom_owners.h"
#include "oom_walk.h"
#include "oom_hint.h"

/* A text of limited size. */
typedef struct ds__oom_page {
    char *text;
    size_t room;
    size_t n;
} ds__oom_page;

/* Appends formatted text, and cuts the part without room. */
__attribute__((format(DS__PRINTF, 2, 3))) static void ds__oom_page_print(ds__oom_page *p,
                                                                         const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(p->text + p->n, p->room - p->n, format, args);
    va_end(args);
    if (n > 0)
        p->n = p->n + (size_t)n < p->room ? p->n + (size_t)n : p->room - 1;
}

/* Writes the part of the page about the request. */
static void ds__oom_page_request(const ds__oom_facts *s, ds__oom_page *p) {
    const char *type = ds__type_name(s->dev->device.type);
    ds__oom_page_print(p, "out of memory on %s:%d", type, s->dev->device.index);
    if (ds__tls.site.file)
        ds__oom_page_print(p, " in %s at %s:%d", ds__tls.fn, ds__short_path(ds__tls.site.file),
                           ds__tls.site.line);
    ds__oom_page_print(p, "\n  asked for       %s", DS__SIZE(s->wanted));
    if (s->segment != s->wanted)
        ds__oom_page_print(p, ", for which %s were needed", DS__SIZE(s->segment));
    if (s->pool->name[0])
        ds__oom_page_print(p, ", from the capture's own pool");
    else if (s->pool != &s->dev->main)
        ds__oom_page_print(p, ", from the pool %s",
                           s->pool->label ? s->pool->label : "without a label");
}

/* Writes the part of the page about the device and the limits. */
static void ds__oom_page_device(const ds__oom_facts *s, ds__oom_page *p) {
    ds__oom_page_print(p, "\n  device          %s in all, %s free", DS__SIZE(s->total),
                       s->known ? DS__SIZE(s->free) : "an unknown amount");
    if (s->outside)
        ds__oom_page_print(p, ", %s used outside this allocator", DS__SIZE(s->outside));
    ds__oom_page_print(p, "\n  limit           %s", s->limit ? DS__SIZE(s->limit) : "none");
    if (s->pool_limit)
        ds__oom_page_print(p, ", of the pool %s, which has reserved %s", DS__SIZE(s->pool_limit),
                           DS__SIZE(s->pool_reserved));
    ds__oom_page_print(p, "\n  reserved        %s", DS__SIZE(s->reserved));
    if (s->private_reserved)
        ds__oom_page_print(p, ", %s of it by private pools, of which %s are cached",
                           DS__SIZE(s->private_reserved), DS__SIZE(s->private_cached));
}

/* Writes a line about blocks in one state. */
static void ds__oom_page_blocks(ds__oom_page *p, const char *state, size_t bytes, size_t count,
                                const char *remark) {
    ds__oom_page_print(p, "\n  %-16s%s in %zu block%s%s", state, DS__SIZE(bytes), count,
                       count == 1 ? "" : "s", remark);
}

/* Writes the page of ds_mem_get_last_report. */
static void ds__oom_page_write(const ds__oom_facts *s, ds__oom_page *p) {
    ds__oom_page_request(s, p);
    ds__oom_page_device(s, p);
    ds__oom_page_blocks(p, "allocated", s->live, s->live_count, "");
    ds__oom_page_blocks(p, "pending", s->pending, s->pending_count,
                        ", freed while other streams use them");
    ds__oom_page_blocks(p, "cached", s->cached, s->cached_count, "");
    ds__oom_page_print(p, "\n  largest free    %s\n  fragmentation   %d %%\n", DS__SIZE(s->largest),
                       ds__oom_fragmentation(s));
    if (s->tops)
        ds__oom_page_print(p, "biggest owners\n");
    for (size_t i = 0; i < s->tops; i++)
        ds__oom_page_print(p, "  %-16s in %6zu block%s %s\n", DS__SIZE(s->top[i].bytes),
                           s->top[i].count, s->top[i].count == 1 ? " " : "s", s->top[i].name);
    ds__oom_page_print(p, "hint: %s\n", s->hint);
}

/* Writes the sentence of ds_error_get_last. Leaves out owners without room, the smallest ones
   first. */
static void ds__oom_line(const ds__oom_facts *s, ds__oom_page *p) {
    const size_t tail = strlen(s->hint) + 16;
    ds__oom_page_print(p, "%s were requested on %s:%d, which has %s, %s free", DS__SIZE(s->wanted),
                       ds__type_name(s->dev->device.type), s->dev->device.index, DS__SIZE(s->total),
                       s->known ? DS__SIZE(s->free) : "unknown");
    if (s->limit)
        ds__oom_page_print(p, ", limit %s", DS__SIZE(s->limit));
    if (s->pool_limit)
        ds__oom_page_print(p, ", limit of the pool %s", DS__SIZE(s->pool_limit));
    ds__oom_page_print(
        p, "; allocated %s, reserved %s, pending %s, largest free %s, fragmentation %d %%",
        DS__SIZE(s->live), DS__SIZE(s->reserved), DS__SIZE(s->pending), DS__SIZE(s->largest),
        ds__oom_fragmentation(s));
    for (size_t i = 0; i < s->tops; i++) {
        ds__oom_size size = ds__oom_size_format(s->top[i].bytes);
        if (p->n + strlen(s->top[i].name) + strlen(size.text) + tail >= p->room)
            break;
        ds__oom_page_print(p, "%s%s %s", i ? ", " : "; most: ", s->top[i].name, size.text);
    }
    ds__oom_page_print(p, "; hint: %s", s->hint);
}

/* Collects the numbers about a request. `segment`: the bytes that the driver was asked for. No lock
   is held. */
static void ds__oom_facts_set(ds__oom_facts *s, const ds__wanted *q, size_t segment) {
    memset(s, 0, sizeof *s);
    s->dev = q->a->dev;
    s->pool = q->a->pool;
    s->arena = q->a;
    s->wanted = q->asked;
    s->size = q->size;
    s->kind = q->kind;
    s->aligned = q->aligned;
    s->capturing = ds__captures_open() != 0;
    /* a growing segment maps the request's own pages only */
    int grows = ds__pool_policy(s->pool)->expandable_segments && s->dev->has_space > 0;
    s->segment = segment > s->wanted && !grows ? segment : s->wanted;
    ds__oom_collect(s);
    s->apart = s->capturing && s->owner && !ds__can_await(q, ds__owner_of(s->owner));
}

/* Returns how many of `most` characters ds__fail can store behind the call site and the name of the
   function. */
static size_t ds__oom_line_room(size_t most) {
    size_t before = (ds__tls.site.file ? strlen(ds__tls.site.file) + 14 : 0) +
                    (ds__tls.fn ? strlen(ds__tls.fn) : 9) + 3;
    if (before + most <= sizeof ds__tls.error)
        return most;
    return before + 200 < sizeof ds__tls.error ? sizeof ds__tls.error - before : 200;
}

/* Sets the error `why` with a sentence about the shortage, and the thread's report. `segment`: the
   bytes that the driver was asked for. No lock is held. */
__attribute__((cold, noinline)) DS__SEAM static void ds__oom_report(const ds__wanted *q,
                                                                    size_t segment, ds_result why) {
    char line[450];
    ds__oom_facts s;
    ds__oom_page page = { NULL, 6144, 0 };
    ds__oom_page sentence = { line, ds__oom_line_room(sizeof line), 0 };
    ds__caller *t = ds__my_caller();
    ds__oom_facts_set(&s, q, segment);
    ds__oom_hint(&s);
    page.text = t ? ds__host_alloc(page.room) : NULL;
    if (page.text)
        ds__oom_page_write(&s, &page);
    if (t) {
        ds__host_free(t->module[DS__MODULE_ALLOC]);
        t->module[DS__MODULE_ALLOC] = page.text;
    }
    ds__oom_line(&s, &sentence);
    ds__fail(why, "%s", line);
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_OOM,
                                         .bytes = q->asked,
                                         .device = q->a->dev->device,
                                         .stream = q->stream,
                                         .result = why });
}

DSDEF const char *(ds_mem_get_last_report)(void) {
    const ds__caller *t = ds__my_caller();
    const char *report = t && ds__tls.epoch == ds__g.epoch ? t->module[DS__MODULE_ALLOC] : NULL;
    return report ? report : "";
}

#endif
