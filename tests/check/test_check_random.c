/* The check layer compared with an oracle, on random programs.

   The oracle (random_oracle.h) knows every order between operations, and every byte that they
   access, for the whole program. The layer must report exactly what the oracle finds
   (random_judge.h).

   DS_CHECK_PROGRAMS (1,000) is the number of programs for each kind of device and of program;
   DS_CHECK_FIRST (0) is the first seed. A program that fails is made as short as possible and
   printed; a run ends after DS_CHECK_FAILURES (1) of them. The programs race on purpose, and a
   thread sanitizer reports that. */
#define DS__TEST_RACE_LIST 2 /* blocks are divided after a few accesses */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "data_races.h"
#include "unit.h"
#include "random_graphs.h"

enum { PROGRAMS_OF_MACHINE = 32 };

typedef enum kind { RACES, LIFETIMES, NODES } kind;

static machine machine_now;

/* ---- one program ----------------------------------------------------------------------------- */

typedef struct call {
    machine *m;
    const step *s;
    int line;
    int host; /* 1: the step leaves a moment of the host */
    ds_result result;
    ds_check_point point;
    char error[300];
} call;

/* Makes the call of a step on the thread of the step. */
static void call_make(void *user) {
    call *c = user;
    const step *s = c->s;
    if (s->kind <= STEP_HOST_WRITE)
        c->result = perform_access(c->m, s, c->line);
    else if (s->kind <= STEP_ACQUIRE)
        c->result = perform_order(c->m, s, c->line);
    else
        c->result = perform_lifetime(c->m, s, c->line);
    if (c->result < 0)
        snprintf(c->error, sizeof c->error, "%.*s", (int)sizeof c->error - 1, ds_error_get_last());
    ds_stream stream = c->host ? (ds_stream){ 0 } : handle(c->m, s);
    int moment = s->kind < STEP_NEW_EVENT || s->kind == STEP_RELEASE || s->kind == STEP_ACQUIRE;
    if (moment && (ds_check_get_point)(stream, &c->point) < 0)
        c->point.line = 0;
}

static int step_is_of_host(step_kind k) {
    return k == STEP_HOST_READ || k == STEP_HOST_WRITE ||
           (k >= STEP_SYNC && k <= STEP_SYNC_DEVICE) || k >= STEP_RELEASE;
}

static void run_step(machine *m, const program *p, verdict *v, int number) {
    const step *s = &p->step[number];
    call c = { .m = m, .s = s, .line = v->line + number, .host = step_is_of_host(s->kind) };
    if (!step_is_possible(m, s))
        return;
    if (s->thread)
        helper_run(call_make, &c);
    else
        call_make(&c);
    if (c.result != DS_OK) {
        complain(v, "step %d is %s: %s", number, ds_result_get_name(c.result), c.error);
        return;
    }
    int node = model_step(m, s, number);
    if (node != NO_NODE)
        m->point[node] = c.point;
}

static void devices_wait(void *user) {
    const machine *m = user;
    for (int i = 0; i < 2; i++)
        ok(ds_device_synchronize(m->device[i]));
    ok(ds_check_release(m));
    ok(ds_check_acquire(m));
}

/* Orders everything so far before everything that follows, on both threads. */
static void settle(machine *m) {
    devices_wait(m);
    if (!m->set.handover)
        return;
    helper_run(devices_wait, m);
    devices_wait(m);
}

/* Runs the steps of a program that are kept, and compares. */
static void run_program(machine *m, const program *p, const char *keep, verdict *v) {
    model_begin(m);
    settle(m);
    for (int i = 0; i < EVENTS; i++) {
        ok(ds_event_destroy(m->event[i]));
        ok(ds_event_create(0, NULL, &m->event[i]));
    }
    collected.reports = 0;
    for (int i = 0; i < (int)p->steps && !v->wrong; i++)
        if (keep[i])
            run_step(m, p, v, i);
    if (!v->wrong)
        judge(m, p, v);
    settle(m);
    size_t reports = collected.reports;
    for (int i = 0; i < BLOCKS && m->set.lifetimes; i++)
        if (m->live[i] != NO_NODE)
            ok(i < FIRST_PINNED ? ds_mem_free(m->block[i]) : ds_mem_pinned_free(m->block[i]));
    if (collected.reports != reports)
        complain(v, "blocks are freed behind all work, and yet %s is reported",
                 ds_hazard_get_name(collected.report[reports].hazard));
}

/* ---- many programs --------------------------------------------------------------------------- */

static size_t from_environment(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, NULL, 10) : otherwise;
}

/* What the programs of the machine of this seed have in common. */
static setting setting_of(uint64_t seed, int gpu, kind of) {
    uint64_t place = seed / PROGRAMS_OF_MACHINE % 4;
    return (setting){ .gpu = gpu,
                      .lifetimes = of == LIFETIMES,
                      .inexact = of == RACES && place == 2,
                      .handover = of == RACES && place == 3 };
}

static void machine_start(setting set, uint64_t seed) {
    ds_check_set_report_fn(collect, NULL);
    machine_begin(&machine_now, set, seed / PROGRAMS_OF_MACHINE);
}

/* Runs a program on a new machine. Returns 1 if it fails with a complaint that begins as that of
   `before`. */
static int fails_alone(const program *p, const char *keep, const verdict *before, verdict *v) {
    *v = (verdict){ .line = LINES, .thorough = 1 };
    machine_start(p->set, p->seed);
    run_program(&machine_now, p, keep, v);
    machine_end(&machine_now);
    size_t same = strcspn(before->text, "0123456789\n");
    return v->wrong && !strncmp(v->text, before->text, same);
}

/* Leaves out each step without which the program fails, too. */
static void program_shorten(const program *p, char *keep, verdict *v) {
    verdict last;
    int shorter = fails_alone(p, keep, v, &last);
    if (!shorter)
        complain(v, "alone, the program does not fail: it needs the programs before it");
    else
        *v = last;
    while (shorter) {
        shorter = 0;
        for (size_t i = p->steps; i-- > 0;) {
            if (!keep[i])
                continue;
            keep[i] = 0;
            if (fails_alone(p, keep, v, &last)) {
                shorter = 1;
                *v = last;
            } else {
                keep[i] = 1;
            }
        }
    }
}

static void program_print(const program *p, const char *keep, const verdict *v) {
    fprintf(stderr, "seed %llu, %s, %s%s%s:\n", (unsigned long long)p->seed,
            p->set.lifetimes ? "lifetimes" : "races", p->set.gpu ? "cuda" : "cpu",
            p->set.inexact ? ", kernels without extents" : "",
            p->set.handover ? ", threads ordered by hand-over" : "");
    for (size_t i = 0; i < p->steps; i++)
        if (keep[i])
            step_print(stderr, p->forms, i, &p->step[i]);
    for (size_t i = 0; i < p->steps; i++) {
        const graph *g = &machine_now.graph[p->step[i].graph];
        if (!keep[i] || p->step[i].kind != STEP_GRAPH)
            continue;
        fprintf(stderr, "  graph %d is\n", p->step[i].graph);
        for (size_t k = 0; k < g->nodes; k++)
            step_print(stderr, p->forms, k, &g->node[k]);
    }
    fputs(v->text, stderr);
}

static void machine_check_stats(void) {
    ds_check_stats stats;
    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.evicted, 0);
    if (!machine_now.set.inexact)
        assert_int_equal(stats.inexact, 0);
    assert_int_equal(stats.unchecked, 0);
}

/* Runs a program. If it fails, the machine is started again. */
static void run_seed(uint64_t seed, setting set, size_t *failures) {
    static program p;
    static char keep[MAX_STEPS];
    verdict v = { .line = LINES * ((int)(seed % PROGRAMS_OF_MACHINE) + 1) };
    program_draw(&p, seed, set, machine_now.forms);
    memset(keep, 1, sizeof keep);
    run_program(&machine_now, &p, keep, &v);
    if (!v.wrong)
        return;
    machine_end(&machine_now);
    program_shorten(&p, keep, &v);
    program_print(&p, keep, &v);
    ++*failures;
    if (*failures == from_environment("DS_CHECK_FAILURES", 1))
        fail_msg("%zu programs fail, the last one is that of seed %llu", *failures,
                 (unsigned long long)seed);
    machine_start(set, seed);
}

/* Runs a graph. If it fails, it is made as short as possible; the machine is started again. */
static void run_graph(uint64_t seed, setting set, size_t *failures) {
    static graph_program g;
    char keep[MAX_STEPS];
    verdict v = { .line = LINES * ((int)(seed % PROGRAMS_OF_MACHINE) + 1) };
    graph_draw(&g, seed, set, machine_now.forms);
    memset(keep, 1, sizeof keep);
    graph_run(&machine_now, &g, keep, &v);
    if (!v.wrong)
        return;
    for (size_t i = g.p.steps; i-- > 0;) {
        verdict last = { .line = LINES };
        keep[i] = 0;
        machine_end(&machine_now);
        machine_start(set, seed);
        graph_run(&machine_now, &g, keep, &last);
        keep[i] = !last.wrong;
        v = last.wrong ? last : v;
    }
    graph_print(&g, keep, &v);
    ++*failures;
    if (*failures == from_environment("DS_CHECK_FAILURES", 1))
        fail_msg("%zu graphs fail, the last one is that of seed %llu", *failures,
                 (unsigned long long)seed);
    machine_end(&machine_now);
    machine_start(set, seed);
}

/* Runs programs on machines of PROGRAMS_OF_MACHINE programs each. */
static void run_programs(int gpu, kind of) {
    uint64_t first = from_environment("DS_CHECK_FIRST", 0);
    uint64_t count = from_environment("DS_CHECK_PROGRAMS", HARNESS_SLOW ? 100 : 1000);
    size_t failures = 0;
    memset(&totals, 0, sizeof totals);
    for (uint64_t seed = first; seed < first + count; seed++) {
        setting set = setting_of(seed, gpu, of);
        if (seed == first || seed % PROGRAMS_OF_MACHINE == 0)
            machine_start(set, seed);
        if (of == NODES)
            run_graph(seed, set, &failures);
        else
            run_seed(seed, set, &failures);
        if (seed + 1 == first + count || (seed + 1) % PROGRAMS_OF_MACHINE == 0) {
            machine_check_stats();
            machine_end(&machine_now);
        }
    }
    assert_int_equal(failures, 0);
}

static void totals_print(int gpu, kind of) {
    static const char *const kinds[] = { "races", "lifetimes", "graphs" };
    printf("%s, %s: %llu programs, %llu without a hazard; %llu accesses; %llu races of %llu steps, "
           "%llu of them left out; %llu uses after free, %llu frees in use, %llu uses before "
           "allocation; %llu reports, %llu orders\n",
           gpu ? "cuda" : "cpu", kinds[of], (unsigned long long)totals.programs,
           (unsigned long long)totals.clean, (unsigned long long)totals.operations,
           (unsigned long long)totals.races, (unsigned long long)totals.racing,
           (unsigned long long)totals.excused, (unsigned long long)totals.used_after_free,
           (unsigned long long)totals.freed_in_use, (unsigned long long)totals.used_before_alloc,
           (unsigned long long)totals.reports, (unsigned long long)totals.whys);
}

/* Programs on the CPU driver, and on that of CUDA if it has two devices. */
static void run_on_all_drivers(kind of) {
    int gpus = 0;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &gpus));
    ok(ds_shutdown());
    for (int gpu = 0; gpu <= (gpus >= 2); gpu++) {
        run_programs(gpu, of);
        totals_print(gpu, of);
    }
}

static void test_races_are_those_of_the_oracle(void **state) {
    (void)state;
    run_on_all_drivers(RACES);
}

static void test_lifetimes_are_those_of_the_oracle(void **state) {
    (void)state;
    run_on_all_drivers(LIFETIMES);
}

static void test_races_in_graphs_are_those_of_the_oracle(void **state) {
    (void)state;
    run_on_all_drivers(NODES);
}

static int end(void **state) {
    (void)state;
    helper_end();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_races_are_those_of_the_oracle),
        cmocka_unit_test(test_lifetimes_are_those_of_the_oracle),
        cmocka_unit_test(test_races_in_graphs_are_those_of_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
