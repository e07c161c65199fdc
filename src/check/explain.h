/* check/explain.h - texts that explain a hazard: streams, call sites, the order, a correction.

   ds__race_side describes an access for a report. ds__race_explain and ds__race_explain_lifetime
   write how far the order goes, and a call that would correct it.

   Policy: texts of the program are copied as valid UTF-8 and cut between two characters.

   Invariants: the texts of ds__race_texts have room for the longest names.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_EXPLAIN_H
#define DS__CHECK_EXPLAIN_H

#include "access.h"

enum { DS__RACE_SITE = 96 };

/* Texts of a report while it is written. The parts have room for the longest names. */
typedef struct ds__race_texts {
    char now_stream[80];
    char before_stream[80];
    char order[600];
    char fix[600];
    char key[600];
    size_t size; /* of ds__race.text */
    int lost;    /* there was no memory for ds__race.text */
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

/* Copies the first bytes of a text as whole characters. */
static const char *ds__race_cut(char *out, size_t size, const char *text) {
    ds__utf8_copy(out, size, text);
    return out;
}

/* Writes a call site, "app.c:12", with at most 80 bytes of the file's name. */
static const char *ds__race_site(char out[DS__RACE_SITE], const char *file, int line) {
    char name[81];
    snprintf(out, DS__RACE_SITE, "%s:%d", ds__race_cut(name, sizeof name, ds__race_base_name(file)),
             line);
    return out;
}

static const char *ds__race_place_site(char out[DS__RACE_SITE], uint32_t place) {
    const ds__race_place *p = ds__race_place_get(place);
    return ds__race_site(out, p->file, p->line);
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
    char site[DS__RACE_SITE];
    size_t size = sizeof t->order;
    if (!known && !e) {
        snprintf(t->order, size, "nothing orders %s after %s", t->now_stream, t->before_stream);
        return;
    }
    int n = snprintf(t->order, size, "last ordered after operation %llu of %s, %llu too early",
                     (unsigned long long)known, t->before_stream, (unsigned long long)r->missed);
    if (record->file)
        n += snprintf(t->order + n, size - (size_t)n, "; recorded at %s",
                      ds__race_site(site, record->file, record->line));
    if (wait->file)
        snprintf(t->order + n, size - (size_t)n, "; waited at %s",
                 ds__race_site(site, wait->file, wait->line));
}

/* Says how to order the two operations, at least one of which is host code. */
static void ds__race_fix_host(ds__race_texts *t, const ds__race_now *now,
                              const ds__race_record *before) {
    char site[DS__RACE_SITE];
    int waits = ds__race_line_at(now->line)->is_host && !ds__race_line_at(before->line)->is_host;
    snprintf(t->fix, sizeof t->fix,
             waits ? "ds_stream_synchronize(%s), or ds_event_synchronize for an event recorded "
                     "after operation %llu, before %s"
                   : "ds_check_release by %s after operation %llu and ds_check_acquire before %s",
             t->before_stream, (unsigned long long)before->n,
             ds__race_place_site(site, now->place));
}

/* Says how to order the operations of two streams. */
static void ds__race_fix_streams(ds__race_texts *t, const ds__race_now *now,
                                 const ds__race_record *before, int was_recorded) {
    const char *to = t->now_stream;
    const char *from = t->before_stream;
    char at[DS__RACE_SITE];
    char after[DS__RACE_SITE];
    ds__race_place_site(at, now->place);
    if (was_recorded)
        snprintf(t->fix, sizeof t->fix,
                 "record the event after operation %llu (%s), or ds_stream_wait_stream(%s, %s) "
                 "before %s",
                 (unsigned long long)before->n, ds__race_place_site(after, before->place), to, from,
                 at);
    else
        snprintf(t->fix, sizeof t->fix,
                 "ds_stream_wait_stream(%s, %s), or an event recorded after operation %llu, before "
                 "%s",
                 to, from, (unsigned long long)before->n, at);
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

/* Returns 1 if no stream frees a block: pinned memory, or the block's stream has ended. */
static int ds__race_is_of_host(const ds__race_memory *m) {
    return m && (!m->line || m->line == DS__RACE_GONE);
}

/* Says how far the stream of a block, whose order a free by the host has, comes after an operation;
   unless the host has waited for more of it. */
static void ds__race_explain_free(const ds_hazard_report *r, ds__race_texts *t,
                                  const ds__race_memory *m, const ds__race_now *now,
                                  const ds__race_record *before) {
    if (!m || ds__race_is_of_host(m) || !before || !ds__race_line_at(now->line)->is_host)
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
    const ds__race_place *freed = ds__race_place_get(m ? m->freed : 0);
    char own[80];
    char at[DS__RACE_SITE];
    char site[DS__RACE_SITE];
    ds__race_line_name(m ? m->line : 0, own, sizeof own);
    ds__race_place_site(at, now->place);
    switch (r->hazard) {
    case DS_HAZARD_USE_BEFORE_ALLOC:
        snprintf(t->fix, sizeof t->fix,
                 "ds_stream_wait_stream(%s, %s) after the allocation at %s, or allocate on %s",
                 t->now_stream, own, ds__race_place_site(site, m ? m->made : 0), t->now_stream);
        break;
    case DS_HAZARD_FREE_IN_USE:
        ds__race_explain_free(r, t, m, now, before);
        snprintf(t->fix, sizeof t->fix, "%s for %s before the free at %s, or let %s wait for %s",
                 m && !m->line ? "ds_mem_pinned_record_use" : "ds_mem_record_use", t->before_stream,
                 at, ds__race_is_of_host(m) ? "the host" : own, t->before_stream);
        break;
    case DS_HAZARD_REUSE:
        snprintf(t->fix, sizeof t->fix,
                 "let %s wait for %s, the former owner of the memory, before %s", t->now_stream,
                 t->before_stream, at);
        break;
    case DS_HAZARD_COLLECTIVE_ORDER:
        snprintf(t->order, sizeof t->order, "two threads use the same streams in no stated order");
        snprintf(t->fix, sizeof t->fix,
                 "call the collectives of these streams on one thread, or hand over by "
                 "ds_check_release after %s and ds_check_acquire before %s",
                 ds__race_place_site(site, before ? before->place : 0), at);
        break;
    case DS_HAZARD_USE_AFTER_FREE:
        snprintf(t->order, sizeof t->order, "freed by %s at %s", freed->operation,
                 ds__race_site(site, freed->file, freed->line));
        snprintf(t->fix, sizeof t->fix, "free the memory after %s", at);
        break;
    case DS_HAZARD_GRAPH_MEMORY:
        snprintf(t->order, sizeof t->order, "freed by %s at %s", freed->operation,
                 ds__race_site(site, freed->file, freed->line));
        snprintf(t->fix, sizeof t->fix,
                 "keep the memory until the last launch, or capture the graph again");
        break;
    default: /* DS_HAZARD_UNRECORDED_WAIT */
        snprintf(t->order, sizeof t->order,
                 "the event was never recorded, so the wait orders nothing");
        snprintf(t->fix, sizeof t->fix, "record the event before %s", at);
        break;
    }
}

#endif
