/* test_check_corpus.c - the corpus of races: small programs with a defect, and their corrected
   forms.

   The layer must report exactly the defect of the first form, at the two calls that conflict, and
   nothing for the second form. Each program is a test; it runs on the CPU driver with 1, 2 and 4
   workers, and on the stand-in for CUDA. The programs are in corpus_*.h.

   Arguments: parts of names select programs. Environment: DS_CHECK_RUNS, the number of runs of the
   programs with threads (50); DS_CHECK_SHOW=1 prints the reports. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
#include "data_races.h"
#include "unit.h"

#include "corpus.h"
#include "corpus_published.h"
#include "corpus_order.h"
#include "corpus_ranges.h"
#include "corpus_host.h"
#include "corpus_memory.h"
#include "corpus_graphs.h"
#include "corpus_words.h"
#include "corpus_threads.h"

enum { REPORTS = 8, TEXT = 2048, SECONDS = 300 };

/* ---- reports ---- */

/* The part of a report that the tests look at. */
typedef struct seen_report {
    ds_hazard hazard;
    int possible;
    int now;
    int before;
    int missed;
    int whole; /* no text is missing */
    char file[256];
    char label[64];
    char fix[TEXT];
    char order[TEXT];
    char text[TEXT];
} seen_report;

static struct {
    pthread_mutex_t lock;
    size_t count;
    seen_report report[REPORTS];
} seen = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void note_report(const ds_hazard_report *r, void *user) {
    (void)user;
    pthread_mutex_lock(&seen.lock);
    if (seen.count < REPORTS) {
        seen_report *s = &seen.report[seen.count];
        s->hazard = r->hazard;
        s->possible = r->possible;
        s->now = r->now.line;
        s->before = r->before.line;
        s->missed = (int)r->missed;
        s->whole = r->now.operation && r->now.stream && r->before.operation && r->before.file &&
                   r->before.stream && r->file && r->order && *r->key && *r->fix && *r->text;
        snprintf(s->file, sizeof s->file, "%s", r->now.file);
        snprintf(s->label, sizeof s->label, "%s", r->label);
        snprintf(s->fix, sizeof s->fix, "%s", r->fix);
        snprintf(s->order, sizeof s->order, "%s", r->order);
        snprintf(s->text, sizeof s->text, "%s", r->text);
    }
    seen.count++;
    pthread_mutex_unlock(&seen.lock);
}

/* ---- one run of one form ---- */

/* Where a program runs. */
typedef struct setting {
    ds_device_type type;
    int workers; /* of the CPU driver */
} setting;

static void init(const pair *p, const setting *s) {
    ds_cpu_desc cpu = { .devices = 2, .workers = s->workers };
    const char *options = p->flags & THREADS ? "quiet,threads" : "quiet";
    if (p->flags & POSSIBLE)
        options = "quiet,possible";

    memset(&corpus, 0, sizeof corpus);
    seen.count = 0;
    corpus.device = s->type == DS_DEVICE_CPU ? ds_cpu(0) : ds_cuda(0);
    corpus.other = s->type == DS_DEVICE_CPU ? ds_cpu(1) : ds_cuda(1);
    ds_check_set_report_fn(note_report, NULL);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .check = options,
                                .log_level = DS_LOG_SILENT,
                                .device = s->type == DS_DEVICE_CPU ? "cpu:0" : "cuda:0" }));
}

/* Waits for the devices, destroys what the program has made, and returns the statistics. */
static ds_check_stats deinit(void) {
    ds_check_stats stats;

    ok(ds_device_synchronize(corpus.device));
    ok(ds_device_synchronize(corpus.other));
    for (size_t i = 0; i < corpus.execs; i++)
        ok(ds_graph_exec_destroy(corpus.exec[i]));
    for (size_t i = 0; i < corpus.graphs; i++)
        ok(ds_graph_destroy(corpus.graph[i]));
    for (size_t i = 0; i < corpus.kernels; i++)
        ok(ds_kernel_destroy(corpus.kernel[i]));
    for (size_t i = 0; i < corpus.device_memories; i++)
        ok(ds_device_free(corpus.device_memory[i]));
    for (size_t i = 0; i < corpus.pinneds; i++)
        ok(ds_pinned_free(corpus.pinned[i]));
    for (size_t i = 0; i < corpus.events; i++)
        ok(ds_event_destroy(corpus.event[i]));
    for (size_t i = 0; i < corpus.streams; i++)
        ok(ds_stream_destroy(corpus.stream[i]));
    ok(ds_check_get_stats(&stats));
    ok(ds_shutdown());
    return stats;
}

/* ---- expectations ---- */

static void show_reports(const pair *p, const setting *s, const char *form) {
    printf("%s on %s with %d workers, %s form: calls in lines %d and %d, %zu reports\n", p->name,
           s->type == DS_DEVICE_CPU ? "cpu" : "cuda", s->workers, form, corpus.first, corpus.second,
           seen.count);
    for (size_t i = 0; i < seen.count && i < REPORTS; i++)
        printf("%s\n", seen.report[i].text);
}

static int expect_lines(const pair *p, const seen_report *r) {
    int straight = r->before == corpus.first && r->now == corpus.second;
    int crossed = r->before == corpus.second && r->now == corpus.first;
    return straight || (p->flags & EITHER && crossed);
}

/* Returns NULL, or how the report differs from the one that is expected. */
static const char *differs(const pair *p, const seen_report *r) {
    if (r->hazard != p->hazard)
        return "the hazard differs";
    if (r->possible != !!(p->flags & POSSIBLE))
        return "`possible` differs";
    if (!expect_lines(p, r))
        return "the lines differ";
    if (!strstr(r->file, "corpus_"))
        return "the file differs";
    if (p->missed && r->missed != p->missed)
        return "`missed` differs";
    if (p->fix && !strstr(r->fix, p->fix))
        return "the fix differs";
    if (p->order && !strstr(r->order, p->order))
        return "the order differs";
    if (p->label && strcmp(r->label, p->label) != 0)
        return "the label differs";
    return r->whole ? NULL : "a text is empty";
}

/* Returns NULL if the first report is the expected one, or, with any number of reports, one of
   them; else how the first one differs. */
static const char *all_differ(const pair *p) {
    size_t last = p->extra == ANY && seen.count < REPORTS ? seen.count : 1;
    for (size_t i = 1; i < last; i++)
        if (!differs(p, &seen.report[i]))
            return NULL;
    return differs(p, &seen.report[0]);
}

static int expect_numbers(const pair *p, const ds_check_stats *stats) {
    uint64_t expected = p->hazard == DS_HAZARD_NONE ? 0 : 1 + (uint64_t)p->extra;
    uint64_t possible = p->flags & POSSIBLE ? expected : 0;

    if (p->extra == ANY)
        return seen.count > 0;
    return seen.count == expected && stats->reports == expected - possible &&
           stats->possible == possible;
}

static void differ(const pair *p, const setting *s, const char *form, const char *how) {
    show_reports(p, s, form);
    fail_msg("%s: %s, %s form", p->name, how, form);
}

static void expect_defect(const pair *p, const setting *s, const ds_check_stats *stats) {
    const char *wrong = NULL;

    if (!expect_numbers(p, stats))
        wrong = "the number of reports differs";
    else if (stats->repeated != (uint64_t)p->repeated)
        wrong = "`repeated` differs";
    else if (p->hazard != DS_HAZARD_NONE)
        wrong = all_differ(p);
    if (wrong)
        differ(p, s, "racy", wrong);
    if (getenv("DS_CHECK_SHOW"))
        show_reports(p, s, "racy");
}

static void expect_silence(const pair *p, const setting *s, const ds_check_stats *stats) {
    size_t reports = p->flags & VAGUE ? stats->reports : seen.count;
    if (reports || stats->reports || (stats->possible && !(p->flags & VAGUE)))
        differ(p, s, "corrected", "there is a report");
    if (!stats->accesses)
        differ(p, s, "corrected", "the layer has seen nothing");
}

static void run_pair(const pair *p, const setting *s) {
    ds_check_stats stats;

    init(p, s);
    p->run(0);
    stats = deinit();
    expect_defect(p, s, &stats);

    init(p, s);
    p->run(1);
    stats = deinit();
    expect_silence(p, s, &stats);
}

/* ---- tests ---- */

static int has_gpus(void) {
    int count = 0;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &count));
    ok(ds_shutdown());
    return count > 1;
}

static void test_pair(void **state) {
    const pair *p = *state;
    const char *text = getenv("DS_CHECK_RUNS");
    int runs = p->flags & THREADS ? (text ? atoi(text) : 50) : 1;

    for (int run = 0; run < runs; run++) {
        alarm(SECONDS);
        for (int workers = 1; workers <= 4; workers *= 2)
            run_pair(p, &(setting){ DS_DEVICE_CPU, workers });
        if (!(p->flags & CPU_ONLY) && has_gpus())
            run_pair(p, &(setting){ DS_DEVICE_CUDA, 2 });
    }
    alarm(0);
}

static int is_selected(const char *name, int count, char **parts) {
    for (int i = 1; i < count; i++)
        if (strstr(name, parts[i]))
            return 1;
    return count < 2;
}

int main(int count, char **parts) {
    static struct CMUnitTest tests[256];
    size_t n = 0;

    struct {
        const pair *row;
        size_t rows;
    } part[] = {

#define PART(pairs) { pairs, sizeof(pairs) / sizeof *(pairs) }
        PART(published_pairs), PART(order_pairs), PART(range_pairs), PART(host_pairs),
        PART(memory_pairs),    PART(graph_pairs), PART(word_pairs),  PART(thread_pairs),
    };

    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        for (size_t k = 0; k < part[i].rows; k++)
            if (is_selected(part[i].row[k].name, count, parts))
                tests[n++] =
                    (struct CMUnitTest){ .name = part[i].row[k].name,
                                         .test_func = test_pair,
                                         .initial_state = (void *)(uintptr_t)&part[i].row[k] };
    return _cmocka_run_group_tests("corpus", tests, n, NULL, NULL);
}
