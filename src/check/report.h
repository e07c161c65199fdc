/* check/report.h - reports: text, JSON, keys, sinks.

   ds__race_report describes a hazard between two accesses and passes it to the sinks: the function
   of the program, and standard error or a file. ds__race_summary prints the numbers at the end.

   Policy:
   1. A pair of call sites is reported once for each hazard, and once more if it is exact after a
      possible one; further hazards are counted.
   2. A data race with an inexact access is possible only: it is counted, and printed with the
      option "possible". Errors of lifetime are exact in any case. A wait for an event that was
      never recorded is possible, too: the first turn of a loop often has one on purpose.
   3. A report whose key matches a pattern of the suppression file is only counted.

   Invariants: ds__race.text has the last report, or the last answer of ds_check_why.
   Locks: ds__race.lock is held, also over the function of the program.
   Threads: any. */
#ifndef DS__CHECK_REPORT_H
#define DS__CHECK_REPORT_H

#include "access.h"

static const char *const ds__hazard_names[] = { "none",
                                                "read-after-write",
                                                "write-after-read",
                                                "write-after-write",
                                                "use-before-alloc",
                                                "free-in-use",
                                                "use-after-free",
                                                "reuse-race",
                                                "graph-memory",
                                                "wait-on-unrecorded",
                                                "collective-order" };

DSDEF const char *(ds_hazard_get_name)(ds_hazard hazard) {
    return (unsigned)hazard <= DS_HAZARD_COLLECTIVE_ORDER ? ds__hazard_names[hazard] : "unknown";
}

/* Texts of a report while it is written. */
typedef struct ds__race_texts {
    char now_stream[80];
    char before_stream[80];
    char order[400];
    char fix[400];
    char key[400];
    size_t size; /* of ds__race.text */
} ds__race_texts;

/* Writes the name of a timeline: the label of a stream, "legacy stream", or "stream 7". */
static const char *ds__race_line_name(uint32_t index, char *out, size_t size) {
    const ds__race_line *l = index && index < ds__race.lines ? ds__race.line[index] : NULL;
    if (!l)
        snprintf(out, size, "graph");
    else if (*l->name)
        snprintf(out, size, "%s", l->name);
    else if (l->is_host && ds__race.threads)
        snprintf(out, size, "host thread %llu", (unsigned long long)l->number);
    else if (l->is_host)
        snprintf(out, size, "host");
    else if (l->legacy)
        snprintf(out, size, "legacy stream");
    else
        snprintf(out, size, "%sstream %llu", l->per_thread ? "per-thread " : "",
                 (unsigned long long)l->number);
    return out;
}

static const char *ds__race_base_name(const char *file) {
    const char *slash = strrchr(file ? file : "", '/');
    if (slash)
        return slash + 1;
    return file ? file : "";
}

/* Fills one side of a report with an operation. */
static void ds__race_side(ds_hazard_access *a, uint32_t place, uint32_t thread, uint64_t n,
                          const char *stream) {
    const ds__race_place *p = ds__race_place_get(place);
    *a = (ds_hazard_access){ .operation = p->operation,
                             .file = p->file ? p->file : "",
                             .line = p->line,
                             .thread = thread,
                             .stream = stream,
                             .sequence = n };
}

/* Adds its access. */
static void ds__race_side_range(ds_hazard_access *a, const ds__race_range *r, unsigned how) {
    a->inexact = how & DS__RACE_INEXACT ? 1 : 0;
    if (!r)
        return;
    a->ptr = (const void *)r->at;
    a->width = r->width;
    a->pitch = r->pitch;
    a->rows = r->rows;
}

/* Says which wait came nearest to ordering the two operations. known: the last operation of the
   earlier one's timeline that is ordered before the later one; e: the wait for it, or NULL. */
static void ds__race_explain_order(const ds_hazard_report *r, ds__race_texts *t, uint64_t known,
                                   const ds__race_edge *e) {
    const ds__race_place *record = ds__race_place_get(e ? e->from_place : 0);
    const ds__race_place *wait = ds__race_place_get(e ? e->to_place : 0);
    size_t size = sizeof t->order;
    if (!known && !e) {
        snprintf(t->order, size, "nothing orders %s after %s", t->now_stream, t->before_stream);
        return;
    }
    int n = snprintf(t->order, size, "last ordered after operation %llu of %s, %llu too early",
                     (unsigned long long)known, t->before_stream, (unsigned long long)r->missed);
    if (record->file)
        n += snprintf(t->order + n, size - (size_t)n, "; recorded at %.80s:%d",
                      ds__race_base_name(record->file), record->line);
    if (wait->file)
        snprintf(t->order + n, size - (size_t)n, "; waited at %.80s:%d",
                 ds__race_base_name(wait->file), wait->line);
}

/* Says how to order the two operations, at least one of which is host code. */
static void ds__race_fix_host(ds__race_texts *t, const ds__race_now *now,
                              const ds__race_record *before) {
    const ds__race_place *p = ds__race_place_get(now->place);
    int waits = ds__race_line_at(now->line)->is_host && !ds__race_line_at(before->line)->is_host;
    snprintf(t->fix, sizeof t->fix,
             waits ? "ds_stream_synchronize(%s), or ds_event_synchronize for an event recorded "
                     "after operation %llu, before %.80s:%d"
                   : "ds_check_release by %s after operation %llu and ds_check_acquire before "
                     "%.80s:%d",
             t->before_stream, (unsigned long long)before->n, ds__race_base_name(p->file), p->line);
}

/* Says how to order the operations of two streams. */
static void ds__race_fix_streams(ds__race_texts *t, const ds__race_now *now,
                                 const ds__race_record *before, int was_recorded) {
    const char *to = t->now_stream;
    const char *from = t->before_stream;
    const ds__race_place *p = ds__race_place_get(now->place);
    const ds__race_place *q = ds__race_place_get(before->place);
    if (was_recorded)
        snprintf(t->fix, sizeof t->fix,
                 "record the event after operation %llu (%.80s:%d), or "
                 "ds_stream_wait_stream(%s, %s) before %.80s:%d",
                 (unsigned long long)before->n, ds__race_base_name(q->file), q->line, to, from,
                 ds__race_base_name(p->file), p->line);
    else
        snprintf(t->fix, sizeof t->fix,
                 "ds_stream_wait_stream(%s, %s), or an event recorded after operation %llu, before "
                 "%.80s:%d",
                 to, from, (unsigned long long)before->n, ds__race_base_name(p->file), p->line);
}

/* Explains a missing dependency of two nodes of a graph. */
static void ds__race_explain_nodes(ds__race_texts *t, const ds__race_now *now,
                                   const ds__race_record *before) {
    snprintf(t->order, sizeof t->order, "no dependency orders node %llu and node %llu",
             (unsigned long long)before->n, (unsigned long long)now->n);
    snprintf(t->fix, sizeof t->fix,
             "add a dependency from node %llu to node %llu, or let the captured streams wait",
             (unsigned long long)before->n, (unsigned long long)now->n);
}

/* Says which wait came nearest to ordering the two operations, and how to order them. */
static void ds__race_explain(ds_hazard_report *r, ds__race_texts *t, const ds__race_now *now,
                             const ds__race_record *before) {
    if (!now->line) {
        ds__race_explain_nodes(t, now, before);
        return;
    }
    uint64_t known = ds__race_clock_at(now->clock, before->line);
    const ds__race_edge *e = ds__race_edge_last(before->line, known, now->line);
    r->missed = known || e ? before->n - known : 0;
    ds__race_explain_order(r, t, known, e);
    if (ds__race_line_at(before->line)->is_host || ds__race_line_at(now->line)->is_host)
        ds__race_fix_host(t, now, before);
    else
        ds__race_fix_streams(t, now, before, known && e && ds__race_place_get(e->from_place)->file);
}

/* Says how far the stream of a block, whose order a free by the host has, comes after an operation;
   unless the host has waited for more of it. */
static void ds__race_explain_free(const ds_hazard_report *r, ds__race_texts *t,
                                  const ds__race_memory *m, const ds__race_now *now,
                                  const ds__race_record *before) {
    if (!m || !m->line || !before || !ds__race_line_at(now->line)->is_host)
        return;
    char own[80];
    ds__race_line_name(m->line, own, sizeof own);
    uint64_t known = ds__race_line_next_known(ds__race_line_at(m->line), before->line);
    if (r->missed && before->n - r->missed >= known)
        return;
    if (known)
        snprintf(t->order, sizeof t->order,
                 "the free is in the order of %s, which comes after operation %llu of %s only", own,
                 (unsigned long long)known, t->before_stream);
    else
        snprintf(t->order, sizeof t->order,
                 "the free is in the order of %s, and nothing orders %s after %s", own, own,
                 t->before_stream);
}

/* The same for errors of lifetime. */
static void ds__race_explain_lifetime(ds_hazard_report *r, ds__race_texts *t,
                                      const ds__race_memory *m, const ds__race_now *now,
                                      const ds__race_record *before) {
    const ds__race_place *made = ds__race_place_get(m ? m->made : 0);
    const ds__race_place *freed = ds__race_place_get(m ? m->freed : 0);
    const ds__race_place *p = ds__race_place_get(now->place);
    const ds__race_place *q = ds__race_place_get(before ? before->place : 0);
    char own[80];
    ds__race_line_name(m ? m->line : 0, own, sizeof own);
    switch (r->hazard) {
    case DS_HAZARD_USE_BEFORE_ALLOC:
        snprintf(
            t->fix, sizeof t->fix,
            "ds_stream_wait_stream(%s, %s) after the allocation at %.80s:%d, or allocate on %s",
            t->now_stream, own, ds__race_base_name(made->file), made->line, t->now_stream);
        break;
    case DS_HAZARD_FREE_IN_USE:
        ds__race_explain_free(r, t, m, now, before);
        snprintf(t->fix, sizeof t->fix,
                 "%s for %s before the free at %.80s:%d, or let %s wait for %s",
                 m && !m->line ? "ds_mem_pinned_record_use" : "ds_mem_record_use", t->before_stream,
                 ds__race_base_name(p->file), p->line, m && !m->line ? "the host" : own,
                 t->before_stream);
        break;
    case DS_HAZARD_REUSE:
        snprintf(t->fix, sizeof t->fix,
                 "let %s wait for %s, the former owner of the memory, before %.80s:%d",
                 t->now_stream, t->before_stream, ds__race_base_name(p->file), p->line);
        break;
    case DS_HAZARD_COLLECTIVE_ORDER:
        snprintf(t->order, sizeof t->order, "two threads use the same streams in no stated order");
        snprintf(t->fix, sizeof t->fix,
                 "call the collectives of these streams on one thread, or hand over by "
                 "ds_check_release after %.80s:%d and ds_check_acquire before %.80s:%d",
                 ds__race_base_name(q->file), q->line, ds__race_base_name(p->file), p->line);
        break;
    case DS_HAZARD_USE_AFTER_FREE:
        snprintf(t->order, sizeof t->order, "freed by %s at %.80s:%d", freed->operation,
                 ds__race_base_name(freed->file), freed->line);
        snprintf(t->fix, sizeof t->fix, "free the memory after %.80s:%d",
                 ds__race_base_name(p->file), p->line);
        break;
    case DS_HAZARD_GRAPH_MEMORY:
        snprintf(t->order, sizeof t->order, "freed by %s at %.80s:%d", freed->operation,
                 ds__race_base_name(freed->file), freed->line);
        snprintf(t->fix, sizeof t->fix,
                 "keep the memory until the last launch, or capture the graph again");
        break;
    case DS_HAZARD_UNRECORDED_WAIT:
        snprintf(t->order, sizeof t->order,
                 "the event was never recorded, so the wait orders nothing");
        snprintf(t->fix, sizeof t->fix, "record the event before %.80s:%d",
                 ds__race_base_name(p->file), p->line);
        break;
    default:
        snprintf(t->fix, sizeof t->fix, "order the operations");
        break;
    }
}

/* Writes the line of key=value, which is the same in each run. */
static void ds__race_write_key(const ds_hazard_report *r, ds__race_texts *t) {
    snprintf(t->key, sizeof t->key,
             "hazard=%s%s a=%.60s b=%.60s memory=%.40s at=%.60s:%d bt=%.60s:%d missed=%llu",
             ds__hazard_names[r->hazard], r->possible ? " possible=1" : "", r->now.operation,
             r->before.operation, r->label, ds__race_base_name(r->now.file), r->now.line,
             ds__race_base_name(r->before.file), r->before.line, (unsigned long long)r->missed);
    for (char *c = t->key; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
}

/* Returns 1 if a text matches a pattern with * and ?. */
static int ds__race_matches(const char *pattern, const char *text) {
    const char *star = NULL;
    const char *retry = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            retry = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

static int ds__race_suppressed(const char *key) {
    for (size_t i = 0; i < ds__race.patterns; i++)
        if (ds__race_matches(ds__race.pattern[i], key))
            return 1;
    return 0;
}

__attribute__((format(printf, 2, 3))) static void ds__race_print(ds__race_texts *t,
                                                                 const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(ds__race.text + t->size, sizeof ds__race.text - t->size, format, args);
    va_end(args);
    t->size += ds__text_length(n, sizeof ds__race.text - t->size);
}

/* Writes one side as text: 'now ds_copy at pipeline.c:132, operation 20 of h2d, thread 1'. */
static void ds__race_print_side(ds__race_texts *t, const char *side, const ds_hazard_access *a,
                                const void *base) {
    ds__race_print(t, "  %-8s %s at %s:%d", side, a->operation,
                   a->line ? ds__race_base_name(a->file) : "an unknown call", a->line);
    if (*a->stream && strcmp(a->stream, "graph") == 0)
        ds__race_print(t, ", node %llu", (unsigned long long)a->sequence);
    else if (*a->stream && a->sequence)
        ds__race_print(t, ", operation %llu of %s", (unsigned long long)a->sequence, a->stream);
    if (a->thread)
        ds__race_print(t, ", thread %u", a->thread);
    ds__race_print(t, "\n");
    if (!a->ptr)
        return;
    size_t at = (size_t)((uintptr_t)a->ptr - (uintptr_t)base);
    if (a->rows > 1)
        ds__race_print(t, "           bytes +%zu, %zu rows of %zu, %zu apart%s\n", at, a->rows,
                       a->width, a->pitch, a->inexact ? " (no extent: the whole block)" : "");
    else
        ds__race_print(t, "           bytes +[%zu, %zu)%s\n", at, at + a->width,
                       a->inexact ? " (no extent: the whole block)" : "");
}

static void ds__race_print_text(const ds_hazard_report *r, ds__race_texts *t) {
    ds__race_print(t, "devstream check #%llu: %s%s\n", (unsigned long long)r->number,
                   r->possible ? "possible " : "", ds__hazard_names[r->hazard]);
    if (r->base) {
        ds__race_print(t, "  memory   %s%s%s%p, %zu bytes", *r->label ? "\"" : "", r->label,
                       *r->label ? "\" " : "", r->base, r->bytes);
        if (r->line)
            ds__race_print(t, ", allocated at %s:%d", ds__race_base_name(r->file), r->line);
        ds__race_print(t, "\n");
    }
    ds__race_print_side(t, "now", &r->now, r->base);
    if (*r->before.operation || r->before.line)
        ds__race_print_side(t, "before", &r->before, r->base);
    if (*r->order)
        ds__race_print(t, "  order    %s\n", r->order);
    ds__race_print(t, "  fix      %s\n  key      %s\n", r->fix, r->key);
}

/* Prints text inside of a JSON string. */
static void ds__race_print_quoted(ds__race_texts *t, const char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < 32)
            ds__race_print(t, "\\u%04x", (unsigned char)*text);
        else
            ds__race_print(t, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
}

static void ds__race_print_json_text(ds__race_texts *t, const char *name, const char *text) {
    ds__race_print(t, ",\"%s\":\"", name);
    ds__race_print_quoted(t, text);
    ds__race_print(t, "\"");
}

static void ds__race_print_json_side(ds__race_texts *t, const char *name, const ds_hazard_access *a,
                                     const void *base) {
    ds__race_print(t, ",\"%s\":{\"sequence\":%llu,\"thread\":%u,\"line\":%d", name,
                   (unsigned long long)a->sequence, a->thread, a->line);
    ds__race_print_json_text(t, "operation", a->operation);
    ds__race_print_json_text(t, "file", a->file);
    ds__race_print_json_text(t, "stream", a->stream);
    if (a->ptr)
        ds__race_print(t, ",\"offset\":%zu,\"width\":%zu,\"pitch\":%zu,\"rows\":%zu,\"inexact\":%d",
                       (size_t)((uintptr_t)a->ptr - (uintptr_t)base), a->width, a->pitch, a->rows,
                       a->inexact);
    ds__race_print(t, "}");
}

static void ds__race_print_json(const ds_hazard_report *r, ds__race_texts *t) {
    ds__race_print(t, "{\"report\":%llu,\"hazard\":\"%s\",\"possible\":%d,\"missed\":%llu",
                   (unsigned long long)r->number, ds__hazard_names[r->hazard], r->possible,
                   (unsigned long long)r->missed);
    ds__race_print_json_side(t, "now", &r->now, r->base);
    if (*r->before.operation || r->before.line)
        ds__race_print_json_side(t, "before", &r->before, r->base);
    if (r->base) {
        ds__race_print(t, ",\"bytes\":%zu,\"allocated_line\":%d", r->bytes, r->line);
        ds__race_print_json_text(t, "memory", r->label);
        ds__race_print_json_text(t, "allocated_file", r->file);
    }
    ds__race_print_json_text(t, "order", r->order);
    ds__race_print_json_text(t, "fix", r->fix);
    ds__race_print_json_text(t, "key", r->key);
    ds__race_print(t, "}\n");
}

/* Passes a report to the sinks. */
static void ds__race_emit(ds_hazard_report *r, ds__race_texts *t) {
    t->size = 0;
    if (ds__race.json)
        ds__race_print_json(r, t);
    else
        ds__race_print_text(r, t);
    r->text = ds__race.text;
    if (!ds__race.quiet && (!r->possible || ds__race.possible)) {
        FILE *out = ds__race.output ? ds__race.output : stderr;
        fputs(ds__race.text, out);
        fflush(out);
    }
    if (ds__race.report_fn) {
        ds__user_code user = ds__user_code_begin();
        ds__race.report_fn(r, ds__race.report_user);
        ds__user_code_end(&user);
    }
    if (ds__race.aborts && !r->possible)
        abort();
}

/* Returns 1 if a pair of sites is new, and counts it. */
static int ds__race_pair_is_new(const ds_hazard_report *r, uint32_t now, uint32_t before) {
    uint64_t key = (uint64_t)now << 34 ^ (uint64_t)before << 5 ^ (uint64_t)r->hazard << 1 ^
                   (uint64_t)(r->possible != 0);
    if (ds__race_table_find(&ds__race.pairs, key + 1))
        return 0;
    ds__race_table_set(&ds__race.pairs, key + 1, &ds__race);
    return 1;
}

/* Returns 1 if a hazard is not certain. */
static int ds__race_is_possible(ds_hazard hazard, const ds__race_now *now, unsigned how,
                                const ds__race_record *before) {
    if (hazard == DS_HAZARD_UNRECORDED_WAIT)
        return 1;
    if (hazard > DS_HAZARD_WRITE_AFTER_WRITE || !before)
        return 0;
    return (how | before->how) & (DS__RACE_INEXACT | DS__RACE_MAYBE) || now->vague || before->vague;
}

/* Describes the memory of a report. */
static void ds__race_describe_memory(ds_hazard_report *r, const ds__race_memory *m) {
    const ds__race_place *made = ds__race_place_get(m->made);
    r->label = m->label;
    r->base = (const void *)m->base;
    r->bytes = ds__race_memory_bytes(m);
    r->file = made->file ? made->file : "";
    r->line = made->line;
}

/* Describes the earlier operation; without one, the free of the memory. */
static void ds__race_describe_before(ds_hazard_report *r, ds__race_texts *t, uint32_t freed,
                                     const ds__race_record *before) {
    if (!before) {
        ds__race_side(&r->before, freed, 0, 0, "");
        return;
    }
    ds__race_line_name(before->line, t->before_stream, sizeof t->before_stream);
    ds__race_side(&r->before, before->place, before->thread, before->n, t->before_stream);
    ds__race_side_range(&r->before, &before->range, before->how);
}

static void ds__race_report(ds_hazard hazard, const ds__race_now *now, const ds__race_range *range,
                            unsigned how, const ds__race_memory *m, const ds__race_record *before) {
    if (ds__race.failed) /* a wait may be missing */
        return;
    ds_hazard_report r = { .hazard = hazard, .label = "", .file = "", .order = "", .fix = "" };
    ds__race_texts t = { .size = 0 };
    uint32_t freed = m ? m->freed : 0;
    r.possible = ds__race_is_possible(hazard, now, how, before);
    if (!ds__race_pair_is_new(&r, now->place, before ? before->place : freed)) {
        ds__race.stats.repeated++;
        return;
    }
    ds__race_line_name(now->line, t.now_stream, sizeof t.now_stream);
    ds__race_side(&r.now, now->place, now->thread, now->n, t.now_stream);
    ds__race_side_range(&r.now, range, how);
    ds__race_describe_before(&r, &t, freed, before);
    if (m)
        ds__race_describe_memory(&r, m);
    if (before && hazard != DS_HAZARD_GRAPH_MEMORY)
        ds__race_explain(&r, &t, now, before);
    if (hazard > DS_HAZARD_WRITE_AFTER_WRITE)
        ds__race_explain_lifetime(&r, &t, m, now, before);
    r.order = t.order;
    r.fix = t.fix;
    ds__race_write_key(&r, &t);
    r.key = t.key;
    if (ds__race_suppressed(t.key)) {
        ds__race.stats.suppressed++;
        return;
    }
    r.number = r.possible ? ++ds__race.stats.possible : ++ds__race.stats.reports;
    ds__race_emit(&r, &t);
}

/* Prints the numbers at the end, if there was a report. */
static void ds__race_summary(void) {
    const ds_check_stats *s = &ds__race.stats;
    if (ds__race.quiet || (!s->reports && !s->possible && !s->suppressed && !s->evicted))
        return;
    FILE *out = ds__race.output ? ds__race.output : stderr;
    fprintf(
        out,
        ds__race.json
            ? "{\"reports\":%llu,\"repeated\":%llu,\"possible\":%llu,\"suppressed\":%llu,"
              "\"operations\":%llu,\"unchecked\":%llu,\"undeclared\":%llu,\"evicted\":%llu}\n"
            : "devstream check: %llu reports (%llu repeated), %llu possible, %llu suppressed; "
              "%llu operations; %llu accesses to unknown memory; %llu launches without a list of "
              "parameters; %llu ranges given up\n",
        (unsigned long long)s->reports, (unsigned long long)s->repeated,
        (unsigned long long)s->possible, (unsigned long long)s->suppressed,
        (unsigned long long)s->operations, (unsigned long long)s->unchecked,
        (unsigned long long)s->undeclared, (unsigned long long)s->evicted);
    fflush(out);
}

#endif
