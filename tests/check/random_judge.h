/* random_judge.h - compares the reports of the check layer with the oracle.

   1. Each report names two steps that race, or a step that breaks the rule of a lifetime, with
      accesses that these steps have. There is no other report.
   2. For each step that races with an earlier one there is a report; likewise for each use of freed
      memory, each free of memory in use, each use before the allocation, and each wait for an event
      that was never recorded.
   3. For each pair (a, c) that races, there is a report, or steps after a that race with c in all
      cells in which a does. An allocation counts as a write of the block here.
   4. ds_check_why says of two moments what the oracle says.

   Locks: collected.lock, by the function that receives reports. */
#ifndef RANDOM_JUDGE_H
#define RANDOM_JUDGE_H

#include <stdarg.h>
#include "random_model.h"

enum { MAX_REPORTS = 4096, MAX_TEXT = 6000, WHY_PAIRS = 24 };

typedef struct seen_access {
    int line;
    unsigned thread;
    uint64_t sequence;
    char stream[LABEL];
    const char *ptr;
    size_t width;
    size_t pitch;
    size_t rows;
    int inexact;
    int known_file;
} seen_access;

typedef struct seen_report {
    ds_hazard hazard;
    int possible;
    seen_access now;
    seen_access before;
    const char *base;
    size_t bytes;
} seen_report;

static struct {
    pthread_mutex_t lock;
    seen_report report[MAX_REPORTS];
    size_t reports;
} collected = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct {
    uint64_t programs;
    uint64_t clean; /* programs without a hazard */
    uint64_t operations;
    uint64_t races;  /* pairs of steps */
    uint64_t racing; /* operations with a race */
    uint64_t used_after_free;
    uint64_t freed_in_use;
    uint64_t used_before_alloc;
    uint64_t reports;
    uint64_t whys;
    uint64_t excused; /* pairs without a report, by rule 3 */
} totals;

/* What is wrong with a program, as text. */
typedef struct verdict {
    char text[MAX_TEXT];
    size_t used;
    int wrong;
    int line;                        /* of step 0 */
    int nodes;                       /* 1: the steps are nodes of a graph, and have no stream */
    uint64_t sequence[ORACLE_NODES]; /* numbers of operations, as reported; 0: unknown */
    int thorough;                    /* 1: all orders are compared, not some of them */
} verdict;

__attribute__((format(printf, 2, 3))) static void complain(verdict *v, const char *format, ...) {
    va_list list;
    v->wrong++;
    if (v->used + 400 > MAX_TEXT)
        return;
    va_start(list, format);
    int n = vsnprintf(v->text + v->used, 399, format, list);
    va_end(list);
    v->used += n > 398 ? 398 : (size_t)n;
    v->text[v->used++] = '\n';
    v->text[v->used] = 0;
}

static void collect_access(seen_access *to, const ds_hazard_access *from) {
    *to = (seen_access){ .line = from->line,
                         .thread = from->thread,
                         .sequence = from->sequence,
                         .ptr = from->ptr,
                         .width = from->width,
                         .pitch = from->pitch,
                         .rows = from->rows,
                         .inexact = from->inexact,
                         .known_file = !strcmp(from->file, SITE_FILE) };
    snprintf(to->stream, sizeof to->stream, "%.*s", LABEL - 1, from->stream);
}

static void collect(const ds_hazard_report *report, void *user) {
    (void)user;
    pthread_mutex_lock(&collected.lock);
    if (collected.reports < MAX_REPORTS) {
        seen_report *r = &collected.report[collected.reports++];
        r->hazard = report->hazard;
        r->possible = report->possible;
        r->base = report->base;
        r->bytes = report->bytes;
        collect_access(&r->now, &report->now);
        collect_access(&r->before, &report->before);
    }
    pthread_mutex_unlock(&collected.lock);
}

/* Returns the step of a report's line; NO_NODE: it has no line of the program. */
static int step_of(const verdict *v, const program *p, const seen_access *a) {
    int number = a->line - v->line;
    return a->known_file && number >= 0 && number < (int)p->steps ? number : NO_NODE;
}

/* ---- races ----------------------------------------------------------------------------------- */

/* The cells in which a and c conflict as blocks that lived through both. */
static void meet_in_life(const machine *m, int a, int c, int maybe, cells *out) {
    const oracle *o = &m->oracle;
    oracle_conflict(&o->node[a], &o->node[c], maybe, out);
    if (!m->set.lifetimes)
        return;
    cells_remove(out, &o->node[c].stale);
    for (size_t i = 0; i < m->lives; i++)
        if (m->life[i].alloc > a && m->life[i].alloc < c)
            cells_remove(out, &m->life[i].cells);
}

/* Returns 1 if a was known to be complete when a block was given out again, which c uses: a use was
   recorded behind a. */
static int is_over_by_use(const machine *m, int a, int c) {
    const oracle *o = &m->oracle;
    cells meet;
    oracle_conflict(&o->node[a], &o->node[c], 0, &meet);
    for (size_t i = 0; i < m->lives; i++) {
        const life *l = &m->life[i];
        if (l->free == NO_NODE || l->alloc > a || l->free < a || l->free > c)
            continue;
        for (size_t k = 0; k < l->uses; k++)
            if (l->use[k] == a || oracle_is_before(o, a, l->use[k]))
                cells_remove(&meet, &l->cells);
    }
    return !cells_any(&meet);
}

/* Returns 1 if the report names a conflict that the nodes have. */
static int hazard_fits(const oracle_node *a, const oracle_node *c, const seen_report *r) {
    int a_writes = r->hazard != DS_HAZARD_WRITE_AFTER_READ;
    int c_writes = r->hazard != DS_HAZARD_READ_AFTER_WRITE;
    cells meet;
    memset(&meet, 0, sizeof meet);
    if (r->before.inexact)
        oracle_meet_maybe(a, a_writes, c, c_writes, &meet);
    if (r->now.inexact)
        oracle_meet_maybe(c, c_writes, a, a_writes, &meet);
    if (!r->possible)
        oracle_meet(a, a_writes, c, c_writes, &meet);
    return cells_any(&meet);
}

/* The cells of an access in a report. Returns 0 if it is no access to memory of the program. */
static int access_cells(machine *m, const seen_access *a, cells *out) {
    oracle *o = &m->oracle;
    size_t pages = o->pages;
    memset(out, 0, sizeof *out);
    if (!a->ptr || a->rows > 64 || a->width > 2048)
        return 0;
    for (size_t row = 0; row < a->rows; row++)
        oracle_cells_of(o, out, a->ptr + row * a->pitch, a->width);
    int known = o->pages == pages && !o->overflow;
    o->pages = pages;
    o->overflow = 0;
    return known;
}

/* Complains if the report describes other memory than its step accesses. */
static void judge_access(machine *m, verdict *v, const seen_access *a, int node, int writes,
                         cells *out) {
    const oracle_node *n = &m->oracle.node[node];
    cells all;
    if (a->inexact) { /* the whole block, of which the oracle knows a part */
        *out = n->touched[writes ? MODE_MAYBE_WRITE : MODE_MAYBE_READ];
        return;
    }
    oracle_sure(n, !writes, writes, &all);
    if (!access_cells(m, a, out) || !cells_within(out, &all) || !cells_any(out))
        complain(v, "step %d does not %s %zu rows of %zu bytes at %p, pitch %zu", n->step,
                 writes ? "write" : "read", a->rows, a->width, (const void *)a->ptr, a->pitch);
}

/* Complains if the report names another stream than that of the step. */
static void judge_stream(const machine *m, verdict *v, const seen_access *a, int node) {
    const oracle_node *n = &m->oracle.node[node];
    if (v->nodes)
        return;
    const char *label = n->queue == NO_NODE ? "host" : m->label[n->queue];
    if (strncmp(a->stream, label, n->queue == NO_NODE ? 4 : LABEL)) /* "host thread 2" */
        complain(v, "step %d is on stream \"%s\", not on \"%s\"", n->step, label, a->stream);
}

/* Complains if the number of an operation contradicts what other reports say of its stream. */
static void judge_sequence(const machine *m, verdict *v, const seen_access *a, int node) {
    const oracle *o = &m->oracle;
    for (int i = 0; i < (int)o->nodes && !v->nodes && o->node[node].queue != NO_NODE; i++)
        if (v->sequence[i] && o->node[i].queue == o->node[node].queue && i != node &&
            (i < node) != (v->sequence[i] < a->sequence))
            complain(v, "step %d is operation %llu of its stream, and step %d is operation %llu",
                     o->node[i].step, (unsigned long long)v->sequence[i], o->node[node].step,
                     (unsigned long long)a->sequence);
    v->sequence[node] = a->sequence;
}

static void judge_side(machine *m, verdict *v, const seen_report *r, const seen_access *a,
                       int node) {
    judge_stream(m, v, a, node);
    judge_sequence(m, v, a, node);
    if (a->ptr < r->base || a->ptr >= r->base + r->bytes)
        complain(v, "step %d accesses %p, which is not in the memory of %zu bytes at %p",
                 m->oracle.node[node].step, (const void *)a->ptr, r->bytes, (const void *)r->base);
}

static void judge_race(machine *m, verdict *v, const seen_report *r, int now, int before) {
    const oracle *o = &m->oracle;
    int c = now == NO_NODE ? NO_NODE : m->ran[now];
    int a = before == NO_NODE ? NO_NODE : m->ran[before];
    cells first;
    cells second;
    if (a == NO_NODE || c == NO_NODE || a >= c) {
        complain(v, "%s of lines %d and %d names no two accesses", ds_hazard_get_name(r->hazard),
                 r->before.line - v->line, r->now.line - v->line);
        return;
    }
    if (oracle_is_before(o, a, c))
        complain(v, "false report: step %d is ordered before step %d", before, now);
    else if (m->set.lifetimes && is_over_by_use(m, a, c))
        complain(v, "false report: step %d is over before step %d", before, now);
    if (!hazard_fits(&o->node[a], &o->node[c], r))
        complain(v, "false report: no %s of steps %d and %d", ds_hazard_get_name(r->hazard), before,
                 now);
    judge_access(m, v, &r->now, c, r->hazard != DS_HAZARD_READ_AFTER_WRITE, &second);
    judge_access(m, v, &r->before, a, r->hazard != DS_HAZARD_WRITE_AFTER_READ, &first);
    if (!cells_meet(&first, &second))
        complain(v, "the accesses that are reported of steps %d and %d do not meet", before, now);
    judge_side(m, v, r, &r->now, c);
    judge_side(m, v, r, &r->before, a);
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* Returns 1 if the node uses the block while the block lives. */
static int uses_life(const machine *m, int node, const life *l) {
    cells touched;
    oracle_sure(&m->oracle.node[node], 1, 1, &touched);
    return node > l->alloc && (l->free == NO_NODE || node < l->free) &&
           cells_meet(&touched, &l->cells);
}

/* Returns 1 if the owner of the block may rely on something that is not ordered before the node. */
static int is_before_alloc(const machine *m, int node, const life *l) {
    const oracle *o = &m->oracle;
    for (size_t i = 0; i < NODE_WORDS; i++)
        if (o->node[l->alloc].before[i] & ~o->node[node].before[i])
            return 1;
    return 0;
}

/* Returns 1 if a use of the block may still run when the memory is used again. */
static int is_in_use(const machine *m, int node, const life *l) {
    return l->free != NO_NODE && uses_life(m, node, l) &&
           !oracle_is_before(&m->oracle, node, l->free);
}

static int breaks_lifetime(const machine *m, const seen_report *r, const life *l, int now,
                           int before) {
    int c = m->ran[now];
    int a = m->ran[before];
    cells touched;
    switch (r->hazard) {
    case DS_HAZARD_USE_AFTER_FREE:
        return c != NO_NODE && before == l->free_step && l->free < c &&
               cells_meet(&m->oracle.node[c].stale, &l->cells);
    case DS_HAZARD_FREE_IN_USE:
        return a != NO_NODE && now == l->free_step && is_in_use(m, a, l);
    case DS_HAZARD_USE_BEFORE_ALLOC:
        return c != NO_NODE && before == l->alloc_step && uses_life(m, c, l) &&
               is_before_alloc(m, c, l);
    case DS_HAZARD_REUSE:
        if (a == NO_NODE || now != l->alloc_step || a > l->alloc)
            return 0;
        oracle_sure(&m->oracle.node[a], 1, 1, &touched);
        return cells_meet(&touched, &l->cells) && !oracle_is_before(&m->oracle, a, l->alloc);
    default:
        return 0;
    }
}

static void judge_lifetime(machine *m, verdict *v, const seen_report *r, int now, int before) {
    for (size_t i = 0; i < m->lives && now != NO_NODE && before != NO_NODE; i++)
        if (breaks_lifetime(m, r, &m->life[i], now, before))
            return;
    complain(v, "false report: %s of lines %d and %d", ds_hazard_get_name(r->hazard),
             r->before.line - v->line, r->now.line - v->line);
}

static void judge_report(machine *m, const program *p, verdict *v, const seen_report *r) {
    int now = step_of(v, p, &r->now);
    int before = step_of(v, p, &r->before);
    int unrecorded = r->hazard == DS_HAZARD_UNRECORDED_WAIT;
    if (r->possible != (r->now.inexact || r->before.inexact || unrecorded))
        complain(v, "%s of lines %d and %d is %s", ds_hazard_get_name(r->hazard),
                 r->before.line - v->line, r->now.line - v->line,
                 r->possible ? "possible only" : "exact");
    if (unrecorded) {
        if (now == NO_NODE || !m->unrecorded[now])
            complain(v, "false report: step %d waits for no unrecorded event", now);
    } else if (r->hazard >= DS_HAZARD_READ_AFTER_WRITE &&
               r->hazard <= DS_HAZARD_WRITE_AFTER_WRITE) {
        judge_race(m, v, r, now, before);
    } else {
        judge_lifetime(m, v, r, now, before);
    }
}

/* ---- completeness ---------------------------------------------------------------------------- */

/* Returns whether a report of a group of hazards has this step as the later one, and, unless before
   is NO_NODE, that one as the earlier one. */
static int is_reported(const verdict *v, ds_hazard first, ds_hazard last, int maybe, int now,
                       int before) {
    for (size_t i = 0; i < collected.reports; i++) {
        const seen_report *r = &collected.report[i];
        if (r->hazard >= first && r->hazard <= last && r->possible <= maybe &&
            r->now.line - v->line == now &&
            (before == NO_NODE || r->before.line - v->line == before))
            return 1;
    }
    return 0;
}

static int is_race_reported(const verdict *v, int maybe, int now, int before) {
    return is_reported(v, DS_HAZARD_READ_AFTER_WRITE, DS_HAZARD_WRITE_AFTER_WRITE, maybe, now,
                       before);
}

static int is_lifetime_reported(const verdict *v, ds_hazard hazard, int now, int before) {
    return is_reported(v, hazard, hazard, 0, now, before);
}

/* Returns 1 if nodes between a and c race with c in all cells in which a does. */
static int is_excused(const machine *m, int a, int c, int maybe) {
    const oracle *o = &m->oracle;
    cells open;
    meet_in_life(m, a, c, maybe, &open);
    for (int b = a + 1; b < c; b++) {
        cells meet;
        if (!o->node[b].accesses || !oracle_is_before(o, a, b) || oracle_is_before(o, b, c))
            continue;
        meet_in_life(m, b, c, maybe, &meet);
        cells_remove(&open, &meet);
    }
    return !cells_any(&open);
}

/* Demands the reports of races of a node with earlier ones; maybe: of possible ones, too. Returns
   their number. */
static size_t demand_races(const machine *m, verdict *v, int c, int maybe) {
    const oracle *o = &m->oracle;
    size_t races = 0;
    for (int a = 0; a < c; a++) {
        cells meet;
        if (!o->node[a].accesses || oracle_is_before(o, a, c))
            continue;
        meet_in_life(m, a, c, maybe, &meet);
        if (!cells_any(&meet))
            continue;
        races++;
        if (is_race_reported(v, maybe, o->node[c].step, o->node[a].step))
            continue;
        totals.excused++;
        if (!is_excused(m, a, c, maybe))
            complain(v, "missed: the %s of steps %d and %d", maybe ? "possible race" : "race",
                     o->node[a].step, o->node[c].step);
    }
    if (races && !is_race_reported(v, maybe, o->node[c].step, NO_NODE))
        complain(v, "missed: step %d races, and no race of it is reported", o->node[c].step);
    totals.races += races;
    totals.racing += races != 0;
    return races;
}

/* Returns 1 if the allocation needs no report, since later uses of the block race with c in all
   cells in which c uses the block. */
static int is_alloc_excused(const machine *m, const life *l, int c) {
    const oracle *o = &m->oracle;
    cells open;
    cells touched;
    memset(&open, 0, sizeof open);
    oracle_sure(&o->node[c], 1, 1, &touched);
    cells_unite_common(&open, &touched, &l->cells);
    for (int b = l->alloc + 1; b < c; b++) {
        cells meet;
        if (!o->node[b].accesses || !oracle_is_before(o, l->last_of_owner, b) ||
            oracle_is_before(o, b, c))
            continue;
        meet_in_life(m, b, c, 0, &meet);
        cells_remove(&open, &meet);
    }
    return !cells_any(&open);
}

/* Demands the reports of what a node does to lifetimes. Returns their number. */
static size_t demand_lifetimes(const machine *m, verdict *v, int c) {
    const oracle *o = &m->oracle;
    int number = o->node[c].step;
    size_t found = 0;
    if (cells_any(&o->node[c].stale)) {
        found++;
        totals.used_after_free++;
        if (!is_lifetime_reported(v, DS_HAZARD_USE_AFTER_FREE, number, NO_NODE))
            complain(v, "missed: step %d uses memory that was freed", number);
    }
    for (size_t i = 0; i < m->lives; i++) {
        const life *l = &m->life[i];
        if (!uses_life(m, c, l) || l->last_of_owner == NO_NODE ||
            oracle_is_before(o, l->last_of_owner, c))
            continue;
        found++;
        totals.used_before_alloc++;
        if (!is_alloc_excused(m, l, c) &&
            !is_lifetime_reported(v, DS_HAZARD_USE_BEFORE_ALLOC, number, l->alloc_step))
            complain(v, "missed: step %d uses a block before the allocation of step %d", number,
                     l->alloc_step);
    }
    return found;
}

static size_t demand_frees(const machine *m, verdict *v) {
    size_t found = 0;
    for (size_t i = 0; i < m->lives; i++) {
        const life *l = &m->life[i];
        int used = NO_NODE;
        for (int a = 0; a < (int)m->oracle.nodes && used == NO_NODE; a++)
            if (m->oracle.node[a].accesses && is_in_use(m, a, l))
                used = m->oracle.node[a].step;
        if (used == NO_NODE)
            continue;
        found++;
        totals.freed_in_use++;
        if (!is_lifetime_reported(v, DS_HAZARD_FREE_IN_USE, l->free_step, NO_NODE))
            complain(v, "missed: step %d frees a block while step %d may use it", l->free_step,
                     used);
    }
    return found;
}

/* Compares what ds_check_why says of two moments with the oracle. */
static void judge_why_pair(const machine *m, verdict *v, int a, int b) {
    const oracle *o = &m->oracle;
    char text[512];
    if (!m->point[a].line || !m->point[b].line)
        return;
    ds_result r = (ds_check_why)(m->point[a], m->point[b], text, sizeof text);
    ds_result truth = oracle_is_before(o, a, b) ? DS_OK : DS_NOT_READY;
    totals.whys++;
    if (r != truth)
        complain(v, "ds_check_why of steps %d and %d is %s, not %s: %s", o->node[a].step,
                 o->node[b].step, ds_result_get_name(r), ds_result_get_name(truth), text);
}

/* Compares some pairs of moments, or all of them. */
static void judge_why(const machine *m, verdict *v, uint64_t seed) {
    size_t nodes = m->oracle.nodes;
    int before = v->wrong;
    if (v->thorough)
        for (int b = 1; b < (int)nodes && v->wrong == before; b++)
            for (int a = 0; a < b && v->wrong == before; a++)
                judge_why_pair(m, v, a, b);
    for (int i = 0; i < WHY_PAIRS && nodes > 1 && v->wrong == before; i++) {
        int b = 1 + (int)below(&seed, nodes - 1);
        judge_why_pair(m, v, (int)below(&seed, (size_t)b), b);
    }
}

static void judge(machine *m, const program *p, verdict *v) {
    size_t hazards = 0;
    for (size_t i = 0; i < collected.reports; i++)
        judge_report(m, p, v, &collected.report[i]);
    for (int c = 0; c < (int)m->oracle.nodes; c++) {
        if (!m->oracle.node[c].accesses)
            continue;
        totals.operations++;
        hazards += demand_races(m, v, c, 0) + demand_lifetimes(m, v, c);
        if (m->set.inexact)
            hazards += demand_races(m, v, c, 1);
    }
    hazards += demand_frees(m, v);
    for (int i = 0; i < (int)p->steps; i++)
        if (m->unrecorded[i] &&
            !is_reported(v, DS_HAZARD_UNRECORDED_WAIT, DS_HAZARD_UNRECORDED_WAIT, 1, i, NO_NODE))
            complain(v, "missed: step %d waits for an event that was never recorded", i);
    judge_why(m, v, p->seed);
    if (m->oracle.overflow)
        complain(v, "a table of the oracle is too small");
    totals.reports += collected.reports;
    totals.programs++;
    totals.clean += !hazards;
}

#endif
