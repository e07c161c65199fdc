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
   4. Texts of the program are copied as valid UTF-8 and cut between two characters. A line of JSON
      is never cut, because ds__race.text grows with the report.

   Invariants: ds__race.text has the last report, or the last answer of ds_check_why.
   Locks: ds__race.lock is held, also over the function of the program.
   Threads: any. */
#ifndef DS__CHECK_REPORT_H
#define DS__CHECK_REPORT_H

#include "explain.h"
#include "traced.h"

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

/* Writes the line of key=value, which is the same in each run. */
static void ds__race_write_key(const ds_hazard_report *r, ds__race_texts *t) {
    char a[61];
    char b[61];
    char label[41];
    char at[61];
    char bt[61];
    snprintf(t->key, sizeof t->key, "hazard=%s%s a=%s b=%s memory=%s at=%s:%d bt=%s:%d missed=%llu",
             ds__hazard_names[r->hazard], r->possible ? " possible=1" : "",
             ds__race_cut(a, sizeof a, r->now.operation),
             ds__race_cut(b, sizeof b, r->before.operation),
             ds__race_cut(label, sizeof label, r->label),
             ds__race_cut(at, sizeof at, ds__race_base_name(r->now.file)), r->now.line,
             ds__race_cut(bt, sizeof bt, ds__race_base_name(r->before.file)), r->before.line,
             (unsigned long long)r->missed);
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

/* Makes room for n further bytes and a 0 in ds__race.text. Returns 0 if there is no memory: the
   text is lost then. */
static int ds__race_text_reserve(ds__race_texts *t, size_t n) {
    size_t before = ds__race.text_room;
    if (!t->lost && ds__array_reserve(&ds__race.text, 1, t->size, n + 1, &ds__race.text_room)) {
        ds__race.bytes += ds__race.text_room - before;
        return 1;
    }
    t->lost = 1;
    ds__race_fail();
    return 0;
}

/* Returns the text that was printed; "" if it is lost. */
static const char *ds__race_text(const ds__race_texts *t) {
    return t->lost || !t->size ? "" : ds__race.text;
}

__attribute__((format(DS__PRINTF, 2, 3))) static void ds__race_print(ds__race_texts *t,
                                                                     const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !ds__race_text_reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(ds__race.text + t->size, (size_t)n + 1, format, args);
    va_end(args);
    t->size += (size_t)n;
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

/* Prints text inside of a JSON string. Bytes that are not UTF-8 become question marks. */
static void ds__race_print_quoted(ds__race_texts *t, const char *text) {
    while (*text) {
        size_t n = ds__utf8_length(text);
        if ((unsigned char)*text < 32)
            ds__race_print(t, "\\u%04x", (unsigned char)*text);
        else if (*text == '"' || *text == '\\')
            ds__race_print(t, "\\%c", *text);
        else if (n)
            ds__race_print(t, "%.*s", (int)n, text);
        else
            ds__race_print(t, "?");
        text += n ? n : 1;
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

/* Prints a text to the file of reports, or to standard error. */
static void ds__race_put(const char *text) {
    FILE *out = ds__race.output ? ds__race.output : stderr;
    fputs(text, out);
    fflush(out);
}

/* Prints a notice where reports are printed; with the option "quiet", to the log. */
static void ds__race_notice(const char *text) {
    ds__race_texts t = { .size = 0 };
    if (ds__race.quiet) {
        ds__log_warn("check: %s", text);
        return;
    }
    ds__race_print(&t, ds__race.json ? "{\"notice\":\"" : "devstream check: ");
    if (ds__race.json)
        ds__race_print_quoted(&t, text);
    else
        ds__race_print(&t, "%s", text);
    ds__race_print(&t, ds__race.json ? "\"}\n" : "\n");
    ds__race_put(ds__race_text(&t));
}

/* Prints a notice that there is no host memory; needs none itself. */
static void ds__race_notice_failure(void) {
    if (ds__race.quiet)
        ds__log_warn("check: no host memory; nothing is checked any more");
    else if (ds__race.json)
        ds__race_put("{\"notice\":\"no host memory; nothing is checked any more\"}\n");
    else
        ds__race_put("devstream check: no host memory; nothing is checked any more\n");
}

/* Passes a report to the sinks. */
static void ds__race_emit(ds_hazard_report *r, ds__race_texts *t, const ds__race_now *now,
                          const ds__race_record *before) {
    t->size = 0;
    if (ds__race.json)
        ds__race_print_json(r, t);
    else
        ds__race_print_text(r, t);
    r->text = ds__race_text(t);
    if (!ds__race.quiet && (!r->possible || ds__race.possible))
        ds__race_put(r->text);
    if (ds__race.report_fn) {
        ds__user_code user = ds__user_code_begin();
        ds__race.report_fn(r, ds__race.report_user);
        ds__user_code_end(&user);
    }
    if (!r->possible || ds__race.possible)
        ds__race_traced_notify(r, ds__hazard_names[r->hazard], now, before);
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
    ds__race_emit(&r, &t, now, before);
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
