/* test_check_ranks.c - races of collectives with a process group.

   Each program runs on two ranks, which are threads of this process (engine "local"). Rank 0 runs
   the form with a defect, then the corrected one; rank 1 always runs the corrected one. The layer
   must report exactly the defect of rank 0, at the two calls that conflict and with the name of the
   collective, and nothing for the corrected form. Each program is a test; it runs on the CPU driver
   and on the stand-in for CUDA.

   Arguments: parts of names select programs. DS_CHECK_SHOW=1 prints the reports. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_ranks.h"
#include "data_races.h"
#include "unit.h"

enum { COUNT = 64, ROW = 8, BYTES = COUNT * (int)sizeof(float), SECONDS = 120, REPORTS = 8 };

/* ---- programs -------------------------------------------------------------------------------- */

/* A rank of a program, with what the harness has made for it. */
typedef struct side {
    int rank;
    int correct;
    ds_ranks group;
    ds_ranks second; /* of the same ranks */
    ds_device device;
    ds_stream stream;
    ds_stream other;
    char *in; /* memory of the device, BYTES each */
    char *out;
    char *scratch;
    float *host; /* pinned */
    float *host_out;
} side;

/* A program, with the report that its defect causes. */
typedef struct pair {
    const char *name;
    void (*run)(side *s);
    ds_hazard hazard;
    const char *collective; /* the operation that the report names */
} pair;

static struct {
    int first; /* lines of rank 0's calls that conflict */
    int second;
} lines;

static void die(const char *call, ds_result result, int line) {
    fprintf(stderr, "%s:%d: %s is %s: %s\n", __FILE__, line, call, ds_result_get_name(result),
            ds_error_get_last());
    exit(1);
}

/* The call returns DS_OK; on any thread. */
#define must(call)                              \
    do {                                        \
        ds_result must_result_ = (call);        \
        if (must_result_ != DS_OK)              \
            die(#call, must_result_, __LINE__); \
    } while (0)

#define MARK(which, call)           \
    do {                            \
        if (s->rank == 0)           \
            lines.which = __LINE__; \
        must(call);                 \
    } while (0)
#define FIRST(call) MARK(first, call)
#define SECOND(call) MARK(second, call)

/* The same for a call that may be refused in the form with the defect. */
#define SECOND_TRIED(call)                 \
    do {                                   \
        if (s->rank == 0)                  \
            lines.second = __LINE__;       \
        ds_result tried_ = (call);         \
        must(s->correct ? tried_ : DS_OK); \
    } while (0)

/* The same for the macros that declare accesses of host code. */
#define SECOND_HOST(verb, ptr, bytes) \
    do {                              \
        if (s->rank == 0)             \
            lines.second = __LINE__;  \
        ds_host_##verb(ptr, bytes);   \
    } while (0)

/* A tensor of one dimension; COUNT elements, unless another number is given. */
typedef struct flat {
    ds_tensor t;
    const ds_tensor *list[1];
    int64_t shape[2];
    int64_t strides[2];
} flat;

static flat *flat_of(flat *f, void *at, ds_device device, int64_t count) {
    f->shape[0] = count;
    f->t = ds_tensor_of(at, device, ds_float32(), 1, f->shape);
    f->list[0] = &f->t;
    return f;
}

/* Columns `first` to `first + count` of a matrix of ROW columns. */
static flat *columns_of(flat *f, void *at, ds_device device, int first, int64_t count) {
    f->shape[0] = COUNT / ROW;
    f->shape[1] = count;
    f->strides[0] = ROW;
    f->strides[1] = 1;
    f->t = ds_tensor_of((float *)at + first, device, ds_float32(), 2, f->shape);
    f->t.strides = f->strides;
    f->list[0] = &f->t;
    return f;
}

#define DEVICE(s, at) flat_of(&(flat){ .shape = { 0 } }, at, (s)->device, COUNT)
#define PART(s, at) flat_of(&(flat){ .shape = { 0 } }, at, (s)->device, COUNT / 2)
#define HOST(at) flat_of(&(flat){ .shape = { 0 } }, at, (ds_device){ DS_DEVICE_HOST, 0 }, COUNT)
#define COLUMNS(s, at, first, count) \
    columns_of(&(flat){ .shape = { 0 } }, at, (s)->device, first, count)

#define ON(s, of_stream, of_group) \
    (&(ds_comm_options){ .streams = &(of_stream), .stream_count = 1, .ranks = (of_group) })
#define ALL_REDUCE(s, in, out, of_stream) \
    ds_comm_all_reduce((in)->list, (out)->list, 1, DS_REDUCE_SUM, ON(s, of_stream, (s)->group))

/* ---- order between streams ---- */

static void result_read_on_another_stream(side *s) {
    FIRST(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_copy(s->scratch, s->out, BYTES, s->other));
}

static void input_written_while_it_runs(side *s) {
    FIRST(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_fill(s->in, 1, 1, BYTES, s->other));
}

static void input_written_on_another_stream(side *s) {
    FIRST(ds_fill(s->in, 1, 1, BYTES, s->other));
    if (s->correct)
        must(ds_stream_wait_stream(s->stream, s->other));
    SECOND(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
}

/* Two reads do not conflict; the root of a broadcast only reads its tensor. */
static void input_of_a_broadcast(side *s) {
    flat *in = DEVICE(s, s->in);
    flat *out = DEVICE(s, s->out);
    const ds_tensor *root = s->rank ? NULL : &in->t;
    void *to = s->correct ? s->scratch : s->in;
    void *from = s->correct ? s->in : s->scratch;
    FIRST(ds_copy(to, from, BYTES, s->other));
    SECOND(ds_comm_broadcast_into(root, out->list, 1, ON(s, s->stream, s->group)));
}

static void two_groups_write_one_buffer(side *s) {
    FIRST(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    flat *in = PART(s, s->scratch);
    SECOND(ds_comm_all_gather(in->list, DEVICE(s, s->out)->list, 1, ON(s, s->other, s->second)));
}

static void part_of_a_gather(side *s) {
    flat *part = PART(s, s->in);
    flat *all = DEVICE(s, s->out);
    FIRST(ds_comm_gather_into(part->list, 1, 0, s->rank ? NULL : &all->t,
                              ON(s, s->stream, s->group)));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_fill(s->in, 1, 1, 4, s->other));
}

static void result_of_a_reduce_scatter(side *s) {
    FIRST(ds_fill(s->out, 1, 1, BYTES / 2, s->other));
    if (s->correct)
        must(ds_stream_wait_stream(s->stream, s->other));
    SECOND(ds_comm_reduce_scatter(DEVICE(s, s->in)->list, PART(s, s->out)->list, 1, DS_REDUCE_SUM,
                                  ON(s, s->stream, s->group)));
}

/* A barrier orders the streams that it has, and no others. */
static void barrier_without_the_stream(side *s) {
    FIRST(ds_fill(s->in, 1, 1, BYTES, s->other));
    if (s->correct)
        must(ds_stream_wait_stream(s->stream, s->other));
    must(ds_ranks_barrier(ON(s, s->stream, s->group)));
    SECOND(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
}

/* Other columns of a matrix are other memory. */
static void columns_of_a_matrix(side *s) {
    int first = s->correct ? 4 : 3;
    FIRST(ALL_REDUCE(s, COLUMNS(s, s->in, 0, 4), COLUMNS(s, s->out, 4, 4), s->stream));
    SECOND(ds_fill_2d((float *)(void *)s->in + first, ROW * sizeof(float), 1, 4, 4, COUNT / ROW,
                      s->other));
}

/* ---- transfers ---- */

/* Both sides of a swap of two buffers with the other rank. */
#define SWAP(s)                                                            \
    ((ds_ranks_transfer[]){                                                \
        { &DEVICE(s, (s)->in)->t, DS_RANKS_SEND, 0, (size_t) !(s)->rank }, \
        { &DEVICE(s, (s)->out)->t, DS_RANKS_RECEIVE, 0, (size_t) !(s)->rank } })
#define SWAP_ON(s)                                                             \
    (&(ds_comm_options){ .streams = (ds_stream[]){ (s)->stream, (s)->stream }, \
                         .stream_count = 2,                                    \
                         .ranks = (s)->group })

static void sent_buffer_overwritten(side *s) {
    FIRST(ds_ranks_exchange(SWAP(s), 2, SWAP_ON(s)));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_fill(s->in, 1, 1, BYTES, s->other));
}

static void received_buffer_read_early(side *s) {
    FIRST(ds_ranks_exchange(SWAP(s), 2, SWAP_ON(s)));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_copy(s->scratch, s->out, BYTES, s->other));
}

/* All streams of a call wait for each other first. */
static void received_on_another_stream(side *s) {
    ds_stream streams[] = { s->stream, s->correct ? s->other : s->stream };
    ds_comm_options o = { .streams = streams, .stream_count = 2, .ranks = s->group };
    FIRST(ds_fill(s->out, 1, 1, BYTES, s->other));
    SECOND(ds_ranks_exchange(SWAP(s), 2, &o));
}

/* A sender only reads. */
static void sent_buffer_read(side *s) {
    void *to = s->correct ? s->scratch : s->in;
    void *from = s->correct ? s->in : s->scratch;
    FIRST(ds_copy(to, from, BYTES, s->other));
    SECOND(ds_ranks_exchange(SWAP(s), 2, SWAP_ON(s)));
}

static void host_reads_a_received_tensor(side *s) {
    if (s->rank) {
        must(ds_ranks_send(&HOST(s->host)->t, 0, ON(s, s->stream, s->group)));
        return;
    }
    FIRST(ds_ranks_receive(&HOST(s->host)->t, 1, ON(s, s->stream, s->group)));
    if (s->correct)
        must(ds_stream_synchronize(s->stream));
    SECOND_HOST(read, s->host, BYTES);
}

/* ---- the host ---- */

static void host_reads_a_result(side *s) {
    FIRST(ALL_REDUCE(s, HOST(s->host), HOST(s->host_out), s->stream));
    if (s->correct)
        must(ds_stream_synchronize(s->stream));
    SECOND_HOST(read, s->host_out, BYTES);
}

static void host_writes_an_input(side *s) {
    FIRST(ALL_REDUCE(s, HOST(s->host), HOST(s->host_out), s->stream));
    if (s->correct)
        must(ds_stream_synchronize(s->stream));
    SECOND_HOST(write, s->host, BYTES);
}

/* ---- blocks of the allocator ---- */

static void block_of_another_stream(side *s) {
    void *block;
    must(ds_fill(s->scratch, 1, 1, BYTES, s->other));
    FIRST(ds_mem_alloc(BYTES, s->other, &block));
    if (s->correct)
        must(ds_stream_wait_stream(s->stream, s->other));
    SECOND(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, block), s->stream));
    must(ds_stream_synchronize(s->stream));
    must(ds_mem_free(block));
}

/* A collective records its uses, so that a block can be freed while it runs. */
static void block_freed_before(side *s) {
    void *block;
    must(ds_mem_alloc(BYTES, s->stream, &block));
    must(ds_stream_wait_stream(s->other, s->stream));
    if (!s->correct)
        FIRST(ds_mem_free(block));
    SECOND_TRIED(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, block), s->other));
    if (s->correct)
        FIRST(ds_mem_free(block));
}

/* The same for pinned memory. The other rank takes no block, and the block is so large that the
   other rank does not get it for the copies of its part: it would be live again. */
static void pinned_block_freed_before(side *s) {
    void *block = s->host;
    if (!s->rank)
        must(ds_mem_pinned_alloc((size_t)4 << 20, &block));
    if (!s->correct)
        FIRST(ds_mem_pinned_free(block));
    SECOND_TRIED(ALL_REDUCE(s, HOST(block), DEVICE(s, s->out), s->stream));
    if (s->correct && !s->rank)
        FIRST(ds_mem_pinned_free(block));
}

/* ---- graphs ---- */

/* Captures a collective from `host` to `host_out`; the executable stays until ds_shutdown. */
static ds_graph_exec captured(side *s) {
    ds_graph graph;
    ds_graph_exec exec;
    flat *part =
        flat_of(&(flat){ .shape = { 0 } }, s->host, (ds_device){ DS_DEVICE_HOST, 0 }, COUNT / 2);
    must(ds_capture_begin(s->stream, DS_CAPTURE_RELAXED));
    must(ds_comm_all_gather(part->list, HOST(s->host_out)->list, 1, ON(s, s->stream, s->group)));
    must(ds_capture_end(s->stream, &graph));
    must(ds_graph_instantiate(graph, NULL, &exec));
    return exec;
}

/* The rank's part is the first half of `host`. */
static void input_of_a_graph(side *s) {
    ds_graph_exec exec = captured(s);
    FIRST(ds_copy(s->host + (s->correct ? COUNT / 2 : 0), s->in, BYTES / 2, s->other));
    SECOND(ds_graph_launch(exec, s->stream));
}

static void result_of_a_graph(side *s) {
    ds_graph_exec exec = captured(s);
    FIRST(ds_graph_launch(exec, s->stream));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_copy(s->in, s->host_out, BYTES, s->other));
}

/* The wait of the launch is over when the graph is: later reports are still exact ones. */
static void work_after_a_graph(side *s) {
    ds_graph_exec exec = captured(s);
    must(ds_graph_launch(exec, s->stream));
    must(ds_stream_synchronize(s->stream)); /* the order of the group is that of the arrivals */
    FIRST(ALL_REDUCE(s, DEVICE(s, s->in), DEVICE(s, s->out), s->stream));
    if (s->correct)
        must(ds_stream_wait_stream(s->other, s->stream));
    SECOND(ds_copy(s->scratch, s->out, BYTES, s->other));
}

static const pair pairs[] = {
#define PAIR(function, kind, collective) \
    { #function, function, DS_HAZARD_##kind, collective }
    PAIR(result_read_on_another_stream, READ_AFTER_WRITE, "ds_comm_all_reduce"),
    PAIR(input_written_while_it_runs, WRITE_AFTER_READ, "ds_comm_all_reduce"),
    PAIR(input_written_on_another_stream, READ_AFTER_WRITE, "ds_comm_all_reduce"),
    PAIR(input_of_a_broadcast, READ_AFTER_WRITE, "ds_comm_broadcast_into"),
    PAIR(two_groups_write_one_buffer, WRITE_AFTER_WRITE, "ds_comm_all_gather"),
    PAIR(part_of_a_gather, WRITE_AFTER_READ, "ds_comm_gather_into"),
    PAIR(result_of_a_reduce_scatter, WRITE_AFTER_WRITE, "ds_comm_reduce_scatter"),
    PAIR(barrier_without_the_stream, READ_AFTER_WRITE, "ds_comm_all_reduce"),
    PAIR(columns_of_a_matrix, WRITE_AFTER_READ, "ds_comm_all_reduce"),
    PAIR(sent_buffer_overwritten, WRITE_AFTER_READ, "ds_ranks_exchange"),
    PAIR(received_buffer_read_early, READ_AFTER_WRITE, "ds_ranks_exchange"),
    PAIR(received_on_another_stream, WRITE_AFTER_WRITE, "ds_ranks_exchange"),
    PAIR(sent_buffer_read, READ_AFTER_WRITE, "ds_ranks_exchange"),
    PAIR(host_reads_a_received_tensor, READ_AFTER_WRITE, "ds_ranks_receive"),
    PAIR(host_reads_a_result, READ_AFTER_WRITE, "ds_comm_all_reduce"),
    PAIR(host_writes_an_input, WRITE_AFTER_READ, "ds_comm_all_reduce"),
    PAIR(block_of_another_stream, USE_BEFORE_ALLOC, "ds_comm_all_reduce"),
    PAIR(block_freed_before, USE_AFTER_FREE, "ds_comm_all_reduce"),
    PAIR(pinned_block_freed_before, USE_AFTER_FREE, "ds_comm_all_reduce"),
    PAIR(input_of_a_graph, READ_AFTER_WRITE, "ds_comm_all_gather"),
    PAIR(result_of_a_graph, READ_AFTER_WRITE, "ds_comm_all_gather"),
    PAIR(work_after_a_graph, READ_AFTER_WRITE, "ds_comm_all_reduce"),
};

/* ---- reports --------------------------------------------------------------------------------- */

/* The part of a report that the tests look at. */
typedef struct seen_report {
    ds_hazard hazard;
    int possible;
    int now;
    int before;
    char operations[2][128];
    char text[2048];
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
        *s = (seen_report){ r->hazard, r->possible, r->now.line, r->before.line, { "", "" }, "" };
        snprintf(s->operations[0], sizeof s->operations[0], "%s", r->now.operation);
        snprintf(s->operations[1], sizeof s->operations[1], "%s", r->before.operation);
        snprintf(s->text, sizeof s->text, "%s", r->text);
    }
    seen.count++;
    pthread_mutex_unlock(&seen.lock);
}

static void show(const pair *p, const char *form) {
    printf("%s, %s form: calls in lines %d and %d, %zu reports\n", p->name, form, lines.first,
           lines.second, seen.count);
    for (size_t i = 0; i < seen.count && i < REPORTS; i++)
        printf("%s\n", seen.report[i].text);
}

/* Returns NULL, or how the report differs from the one that is expected. */
static const char *differs(const pair *p, const seen_report *r) {
    if (r->hazard != p->hazard)
        return "the hazard differs";
    if (r->possible)
        return "the report is a possible one";
    if (r->before != lines.first || r->now != lines.second)
        return "the lines differ";
    if (!strstr(r->operations[0], p->collective) && !strstr(r->operations[1], p->collective))
        return "no operation has the name of the collective";
    return NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct run {
    const pair *pair;
    ds_device device;
    int rank;
    int correct;
} run;

static void *memory_of(ds_device device) {
    void *p;
    must(ds_device_alloc(device, BYTES, &p));
    return p;
}

static float *pinned(void) {
    void *p;
    must(ds_pinned_alloc(BYTES, &p));
    memset(p, 0, BYTES);
    return p;
}

static ds_stream stream_of(ds_device device, const char *label) {
    ds_stream s;
    must(ds_stream_create(
        &(ds_stream_desc){ .device = device, .flags = DS_STREAM_NON_BLOCKING, .label = label },
        &s));
    return s;
}

/* One rank, from its creation to the end of its work. */
static void *rank_main(void *user) {
    const run *r = user;
    side s = { .rank = r->rank, .correct = r->correct, .device = r->device };
    ds_ranks_desc desc = { .engine = "local",
                           .rank = r->rank,
                           .size = 2,
                           .id = "check",
                           .devices = &s.device,
                           .device_count = 1,
                           .timeout_ns = 30000000000u,
                           .record = "" };
    must(ds_ranks_init(&desc, &s.group));
    must(ds_ranks_split(s.group, 0, 0, &s.second));
    s.stream = stream_of(r->device, "stream");
    s.other = stream_of(r->device, "other");
    s.in = memory_of(r->device);
    s.out = memory_of(r->device);
    s.scratch = memory_of(r->device);
    s.host = pinned();
    s.host_out = pinned();
    r->pair->run(&s);
    must(ds_stream_synchronize(s.stream));
    must(ds_stream_synchronize(s.other));
    must(ds_ranks_finalize(s.second));
    must(ds_ranks_finalize(s.group));
    return NULL;
}

/* Runs a form of a program, and returns the statistics of the layer. */
static ds_check_stats run_form(const pair *p, ds_device_type type, int correct) {
    ds_cpu_desc cpu = { .devices = 2, .workers = 2 };
    int is_cpu = type == DS_DEVICE_CPU;
    run ranks[2];
    pthread_t thread;
    ds_check_stats stats;

    seen.count = 0;
    lines.first = lines.second = 0;
    ds_check_set_report_fn(note_report, NULL);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = "quiet", .log_level = DS_LOG_SILENT }));
    for (int i = 0; i < 2; i++)
        ranks[i] = (run){ p, is_cpu ? ds_cpu(i) : ds_cuda(i), i, correct || i };
    assert_int_equal(pthread_create(&thread, NULL, rank_main, &ranks[1]), 0);
    rank_main(&ranks[0]);
    pthread_join(thread, NULL);
    ok(ds_check_get_stats(&stats));
    ok(ds_shutdown());
    return stats;
}

static void run_pair(const pair *p, ds_device_type type) {
    const char *wrong = NULL;
    ds_check_stats stats = run_form(p, type, 0);
    if (seen.count != 1 || stats.reports != 1)
        wrong = "the number of reports differs";
    else
        wrong = differs(p, &seen.report[0]);
    if (wrong || getenv("DS_CHECK_SHOW"))
        show(p, "racy");
    if (wrong)
        fail_msg("%s on %s: %s", p->name, type == DS_DEVICE_CPU ? "cpu" : "cuda", wrong);

    stats = run_form(p, type, 1);
    if (seen.count || stats.reports || stats.possible) {
        show(p, "corrected");
        fail_msg("%s on %s: there is a report", p->name, type == DS_DEVICE_CPU ? "cpu" : "cuda");
    }
    assert_true(stats.accesses > 0);
}

#ifdef DEVSTREAM_CUDA
static int has_gpus(void) {
    int count = 0;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &count));
    ok(ds_shutdown());
    return count > 1;
}
#endif

static void test_pair(void **state) {
    alarm(SECONDS);
    run_pair(*state, DS_DEVICE_CPU);
#ifdef DEVSTREAM_CUDA
    assert_true(has_gpus()); /* of the stand-in */
    run_pair(*state, DS_DEVICE_CUDA);
#endif
    alarm(0);
}

static int is_selected(const char *name, int count, char **parts) {
    for (int i = 1; i < count; i++)
        if (strstr(name, parts[i]))
            return 1;
    return count < 2;
}

int main(int count, char **parts) {
    static struct CMUnitTest tests[sizeof pairs / sizeof *pairs];
    size_t n = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (is_selected(pairs[i].name, count, parts))
            tests[n++] = (struct CMUnitTest){ .name = pairs[i].name,
                                              .test_func = test_pair,
                                              .initial_state = (void *)(uintptr_t)&pairs[i] };
    return _cmocka_run_group_tests("ranks under the check layer", tests, n, NULL, NULL);
}
