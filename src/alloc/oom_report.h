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
   Threads: the thread of the failed request; ds_mem_get_last_report: any thread, for its own page.
   */
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

typedef struct ds__oom_page {
    char *text;
    size_t room;
    size_t n;
} ds__oom_page;

__attribute__((format(printf, 2, 3))) static void ds__oom_page_print(ds__oom_page *p,
                                                                     const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(p->text + p->n, p->room - p->n, format, args);
    va_end(args);
    if (n > 0)
        p->n = p->n + (size_t)n < p->room ? p->n + (size_t)n : p->room - 1;
}

static void ds__oom_page_write(const ds__oom_facts *s, ds__oom_page *p) {
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
    ds__oom_page_print(p, "\n  allocated       %s in %zu block%s", DS__SIZE(s->live), s->live_count,
                       s->live_count == 1 ? "" : "s");
    ds__oom_page_print(p,
                       "\n  pending         %s in %zu block%s, freed while other streams use them",
                       DS__SIZE(s->pending), s->pending_count, s->pending_count == 1 ? "" : "s");
    ds__oom_page_print(p, "\n  cached          %s in %zu block%s", DS__SIZE(s->cached),
                       s->cached_count, s->cached_count == 1 ? "" : "s");
    ds__oom_page_print(p, "\n  largest free    %s\n  fragmentation   %d %%\n", DS__SIZE(s->largest),
                       ds__oom_fragmentation(s));
    if (s->tops)
        ds__oom_page_print(p, "biggest owners\n");
    for (size_t i = 0; i < s->tops; i++)
        ds__oom_page_print(p, "  %-16s in %6zu block%s %s\n", DS__SIZE(s->top[i].bytes),
                           s->top[i].count, s->top[i].count == 1 ? " " : "s", s->top[i].name);
    ds__oom_page_print(p, "hint: %s\n", s->hint);
}

/* What ds_error_get_last() has room for: owners are left out from the least one on. */
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

/* Sets the sentence of the error `why` and the thread's long report. Nothing is locked.
   `segment` is what was asked of the driver. */
__attribute__((cold, noinline)) DS__SEAM static void ds__oom_report(const ds__wanted *q,
                                                                    size_t segment, ds_result why) {
    char line[450];
    ds__oom_facts s;
    ds__oom_page page = { NULL, 6144, 0 };
    ds__oom_page short_one = { line, sizeof line, 0 };
    /* of ds__fail */
    size_t before = (ds__tls.site.file ? strlen(ds__tls.site.file) + 14 : 0) +
                    (ds__tls.fn ? strlen(ds__tls.fn) : 9) + 3;
    if (before + sizeof line > sizeof ds__tls.error)
        short_one.room = before + 200 < sizeof ds__tls.error ? sizeof ds__tls.error - before : 200;
    ds__caller *t = ds__my_caller();
    memset(&s, 0, sizeof s);
    s.dev = q->a->dev;
    s.pool = q->a->pool;
    s.arena = q->a;
    s.wanted = q->asked;
    s.size = q->size;
    s.kind = q->kind;
    s.aligned = q->aligned;
    s.quiet = ds__captures_open() != 0;
    s.segment = segment > s.wanted &&
                        !(ds__pool_policy(s.pool)->expandable_segments && s.dev->has_space > 0)
                    ? segment
                    : s.wanted;
    ds__oom_collect(&s);
    s.apart = s.quiet && s.owner && !ds__can_await(q, ds__owner_of(s.owner));
    ds__oom_hint(&s);
    page.text = t ? ds__host_alloc(page.room) : NULL;
    if (page.text)
        ds__oom_page_write(&s, &page);
    if (t) {
        ds__host_free(t->module[DS__MODULE_ALLOC]);
        t->module[DS__MODULE_ALLOC] = page.text;
    }
    ds__oom_line(&s, &short_one);
    ds__fail(why, "%s", line);
}

DSDEF const char *(ds_mem_get_last_report)(void) {
    const ds__caller *t = ds__my_caller();
    const char *report = t && ds__tls.epoch == ds__g.epoch ? t->module[DS__MODULE_ALLOC] : NULL;
    return report ? report : "";
}

#endif
