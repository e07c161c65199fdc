/* graphs.c - the rows of graphs on the CPU driver, and beside them the same work enqueued. With
   the argument limits: what a machine without devstream allows. */
#define main streams_main /* the tiny operations and the queues */
#include "streams.c"
#undef main
#include "graphs.h"

enum { SAMPLES = 401 };

static ds_kernel kernel_work;
static ds_graph_exec exec_chain, exec_forkjoin, exec_branches, exec_serial, exec_one;
static uint64_t chain_want, forkjoin_want;

/* ---- measuring ------------------------------------------------------------------------------- */

/* Both in turn, either first as often: medians of each, and of the ratio of neighbours. NaN when
   a result was wrong. */
static void in_turn(double (*one)(void), double (*other)(void), int samples, double *out_one,
                    double *out_other, double *out_ratio) {
    static double v[2][SAMPLES], ratio[SAMPLES];
    int wrong = 0;
    for (int i = -4; i < samples; i++) { /* four to warm up */
        double t[2];
        for (int side = 0; side < 2; side++) {
            int which = (side + i) & 1;
            wrong |= isnan(t[which] = which ? other() : one());
        }
        if (i < 0)
            continue;
        v[0][i] = t[0];
        v[1][i] = t[1];
        ratio[i] = t[0] / t[1];
    }
    *out_one = wrong ? NAN : bench_median(v[0], samples);
    *out_other = wrong ? NAN : bench_median(v[1], samples);
    *out_ratio = wrong ? NAN : bench_median(ratio, samples);
}

static double once(double (*f)(void), int samples) {
    double one, other, ratio;
    in_turn(f, f, samples, &one, &other, &ratio);
    return one;
}

/* ---- what is captured or enqueued ------------------------------------------------------------ */

static uint64_t shift; /* what the chain's numbers begin with */

static void put_chain(void) {
    for (uint64_t i = 0; i < GRAPH_CHAIN; i++)
        q_fold(0, Q_H(0), shift + i);
}

static void put_one(void) {
    q_fold(0, Q_H(0), 0);
}

static void put_forkjoins(void) {
    for (uint64_t i = 0; i < GRAPH_FORKS; i++) {
        q_fold(0, Q_H(0), i);
        q_record(0);
        for (unsigned q = 1; q < 8; q++) {
            q_wait(q, 0);
            q_gather(q, Q_H(q), Q_H(0), 1);
            q_record(q);
        }
        for (unsigned q = 1; q < 8; q++)
            q_wait(0, q);
        q_gather(0, Q_H(0), Q_H(1), 7);
    }
}

static int work(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first, (void)count;
    *a->h = graph_work(a->n, GRAPH_TURNS);
    return 0;
}

static void put_work(int width) {
    for (unsigned i = 0; i < GRAPH_BRANCHES; i++) {
        fold_args a = { Q_H(i), i };
        check(ds_kernel_launch(kernel_work, 1, &a, sizeof a, streams[i % (unsigned)width]));
    }
}

static void put_serial(void) {
    put_work(1);
}

/* Captured, the other streams must come in and be joined; enqueued, they need not. */
static void put_branches(void) {
    q_record(0);
    for (unsigned q = 1; q < 8; q++)
        q_wait(q, 0);
    put_work(8);
    for (unsigned q = 1; q < 8; q++) {
        q_record(q);
        q_wait(0, q);
    }
}

static ds_graph captured(void (*put)(void)) {
    ds_graph graph;
    check(ds_capture_begin(streams[0], DS_CAPTURE_THREAD_LOCAL));
    put();
    check(ds_capture_end(streams[0], &graph));
    return graph;
}

static ds_graph_exec executable(void (*put)(void)) {
    ds_graph graph = captured(put);
    ds_graph_exec exec;
    check(ds_graph_instantiate(graph, NULL, &exec));
    check(ds_graph_destroy(graph));
    return exec;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* ns from the launch, or from the first submission, to the end of the wait. */
static double timed(ds_graph_exec exec, void (*put)(void)) {
    q_reset();
    double t = bench_now_ns();
    if (put)
        put();
    else
        check(ds_graph_launch(exec, streams[0]));
    q_sync(0);
    return bench_now_ns() - t;
}

#define TIMED(name, exec, put, right, count) \
    static double name(void) {               \
        double t = timed(exec, put);         \
        return (right) ? t / (count) : NAN;  \
    }
TIMED(chain_launched, exec_chain, NULL, *Q_H(0) == chain_want, GRAPH_CHAIN)
TIMED(chain_enqueued, exec_chain, put_chain, *Q_H(0) == chain_want, GRAPH_CHAIN)
TIMED(forkjoin_launched, exec_forkjoin, NULL, *Q_H(0) == forkjoin_want, GRAPH_FORKS)
TIMED(forkjoin_enqueued, exec_forkjoin, put_forkjoins, *Q_H(0) == forkjoin_want, GRAPH_FORKS)

static int worked(void) {
    static uint64_t want[GRAPH_BRANCHES];
    int right = 1;
    for (unsigned i = 0; i < GRAPH_BRANCHES; i++) {
        if (!want[i])
            want[i] = graph_work(i, GRAPH_TURNS);
        right &= *Q_H(i) == want[i];
    }
    return right;
}
TIMED(serial_launched, exec_serial, NULL, worked(), 1)
TIMED(serial_enqueued, exec_serial, put_serial, worked(), 1)
TIMED(branches_launched, exec_branches, NULL, worked(), 1)
TIMED(branches_enqueued, exec_branches, put_branches, worked(), 1)

/* Back to back: one operation alone is too short for the clock. */
static double one_by_one(ds_graph_exec exec, void (*put)(void)) {
    enum { TIMES = 500 };

    double t = bench_now_ns();
    for (int i = 0; i < TIMES; i++) {
        if (put)
            put();
        else
            check(ds_graph_launch(exec, streams[0]));
        q_sync(0);
    }
    return (bench_now_ns() - t) / TIMES;
}

static double one_launched(void) {
    return one_by_one(exec_one, NULL);
}

static double one_enqueued(void) {
    return one_by_one(exec_one, put_one);
}

/* ---- making and changing --------------------------------------------------------------------- */

static ds_graph graph_chain, graph_other; /* the other begins one number later */
static ds_graph_node chain_node[GRAPH_CHAIN];

static double capture_once(void) {
    size_t count = 0;
    double t = bench_now_ns();
    ds_graph graph = captured(put_chain);
    t = bench_now_ns() - t;
    check(ds_graph_get_nodes(graph, NULL, 0, &count));
    check(ds_graph_destroy(graph));
    return count == GRAPH_CHAIN ? t / GRAPH_CHAIN : NAN;
}

static double instantiate_once(void) {
    ds_graph_exec exec;
    double t = bench_now_ns();
    check(ds_graph_instantiate(graph_chain, NULL, &exec));
    t = bench_now_ns() - t;
    timed(exec, NULL);
    check(ds_graph_exec_destroy(exec));
    return *Q_H(0) == chain_want ? t / GRAPH_CHAIN : NAN;
}

static void upload(void) {
    check(ds_graph_upload(exec_chain, streams[0]));
    q_sync(0);
}

static double update_once(void) {
    static int turn;
    uint64_t want = 0, from = (uint64_t)(++turn % 2);
    double t = bench_now_ns();
    check(ds_graph_exec_update(exec_chain, from ? graph_other : graph_chain, NULL));
    upload();
    t = bench_now_ns() - t;
    for (uint64_t i = 0; i < GRAPH_CHAIN; i++)
        bench_fold(&want, from + i);
    timed(exec_chain, NULL);
    return *Q_H(0) == want ? t / GRAPH_CHAIN : NAN;
}

/* Another number for the middle node. */
static double set_once(int and_upload) {
    enum { NODE = GRAPH_CHAIN / 2 };

    static uint64_t number;
    uint64_t want = 0;
    fold_args a = { Q_H(0), ++number };
    ds_node_desc desc = {
        .kind = DS_NODE_KERNEL,
        .u.kernel = { .kernel = kernel_fold, .items = 1, .args = &a, .args_size = sizeof a }
    };
    double t = bench_now_ns();
    check(ds_graph_exec_set_node(exec_chain, chain_node[NODE], &desc));
    if (and_upload)
        upload();
    t = bench_now_ns() - t;
    for (uint64_t i = 0; i < GRAPH_CHAIN; i++)
        bench_fold(&want, i == NODE ? number : i);
    timed(exec_chain, NULL);
    return *Q_H(0) == want ? t : NAN;
}

static double set_alone(void) {
    return set_once(0);
}

static double set_and_upload(void) {
    return set_once(1);
}

/* ---- conditions and values ------------------------------------------------------------------- */

static ds_graph_exec exec_while, exec_body;
static uint32_t *word; /* pinned: the condition, and the value of the hops */
static uint64_t while_want;

/* Folds the word, then counts it down. */
static int count_down(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    bench_fold(a->h, *word);
    --*word;
    return 0;
}

static void make_while(void) {
    static ds_kernel kernel;
    ds_param p[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(void *) },
                     { DS_PARAM_VALUE, offsetof(fold_args, n), 8 } };
    ds_kernel_desc d = { .name = "count_down",
                         .cpu_fn = count_down,
                         .args_size = sizeof(fold_args),
                         .params = p,
                         .param_count = 2 };
    fold_args a = { Q_H(0), 0 };
    ds_graph body, loop;
    void *pinned;
    check(ds_pinned_alloc(64, &pinned));
    word = pinned;
    check(ds_kernel_create(&d, &kernel));
    check(ds_graph_create(NULL, &body));
    check(ds_graph_create(NULL, &loop));
    ds_node_desc n = { .kind = DS_NODE_KERNEL,
                       .u.kernel = {
                           .kernel = kernel, .items = 1, .args = &a, .args_size = sizeof a } };
    check(ds_graph_add(body, &n, NULL, 0, NULL));
    n = (ds_node_desc){
        .kind = DS_NODE_CONDITION,
        .u.condition = { .kind = DS_CONDITION_WHILE, .word = word, .bodies = &body, .count = 1 }
    };
    check(ds_graph_add(loop, &n, NULL, 0, NULL));
    check(ds_graph_instantiate(body, NULL, &exec_body));
    check(ds_graph_instantiate(loop, NULL, &exec_while));
    for (uint32_t i = GRAPH_LOOPS; i; i--)
        bench_fold(&while_want, i);
}

static double while_launched(void) {
    *Q_H(0) = 0;
    *word = GRAPH_LOOPS;
    double t = bench_now_ns();
    check(ds_graph_launch(exec_while, streams[0]));
    q_sync(0);
    t = bench_now_ns() - t;
    return *Q_H(0) == while_want && !*word ? t / GRAPH_LOOPS : NAN;
}

static double while_enqueued(void) {
    *Q_H(0) = 0;
    *word = GRAPH_LOOPS;
    double t = bench_now_ns();
    while (*(volatile uint32_t *)word) {
        check(ds_graph_launch(exec_body, streams[0]));
        q_sync(0);
    }
    t = bench_now_ns() - t;
    return *Q_H(0) == while_want ? t / GRAPH_LOOPS : NAN;
}

/* Each operation folds its number into one hash. */
static double hops(int by_value) {
    uint64_t want = 0;
    *Q_H(0) = 0;
    *word = 0;
    double t = bench_now_ns();
    for (uint32_t i = 0; i < GRAPH_HOPS; i++) {
        unsigned from = i & 1;
        unsigned to = !from;
        q_fold(from, Q_H(0), i);
        if (by_value) {
            check(ds_stream_write_value32(streams[from], word, i + 1));
            check(ds_stream_wait_value32(streams[to], word, i + 1, DS_VALUE_WAIT_GEQ));
        } else {
            q_record(from);
            q_wait(to, from);
        }
    }
    q_sync(GRAPH_HOPS & 1);
    t = bench_now_ns() - t;
    q_sync(!(GRAPH_HOPS & 1));
    for (uint32_t i = 0; i < GRAPH_HOPS; i++)
        bench_fold(&want, i);
    return *Q_H(0) == want ? t / GRAPH_HOPS : NAN;
}

static double hops_by_values(void) {
    return hops(1);
}

static double hops_by_events(void) {
    return hops(0);
}

/* ---- the rows -------------------------------------------------------------------------------- */

static void put_pair(const char *row, double (*launched)(void), double (*enqueued)(void),
                     const char *row_ratio) {
    double launch, enqueue, ratio;
    in_turn(launched, enqueued, SAMPLES, &launch, &enqueue, &ratio);
    bench_put(row, "devstream", launch);
    bench_put(row, "plain", enqueue);
    if (row_ratio)
        bench_put(row_ratio, "devstream", ratio);
}

/* Of what takes milliseconds. */
static void put_few(const char *row, double (*launched)(void), double (*enqueued)(void)) {
    double launch, enqueue, ratio;
    in_turn(launched, enqueued, bench_quick() ? 21 : 101, &launch, &enqueue, &ratio);
    bench_put(row, "devstream", launch);
    bench_put(row, "plain", enqueue);
}

static void speedup(const char *source, double (*serial)(void), double (*parallel)(void)) {
    double one, all, ratio;
    in_turn(serial, parallel, bench_quick() ? 51 : 201, &one, &all, &ratio);
    bench_put("graph_branches", source, one / all);
}

static void graphs(void) {
    ds_param p[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(void *) },
                     { DS_PARAM_VALUE, offsetof(fold_args, n), 8 } };
    ds_kernel_desc d = { .name = "work",
                         .cpu_fn = work,
                         .args_size = sizeof(fold_args),
                         .params = p,
                         .param_count = 2 };
    size_t count = 0;
    check(ds_kernel_create(&d, &kernel_work));
    for (uint64_t i = 0; i < GRAPH_CHAIN; i++)
        bench_fold(&chain_want, i);
    forkjoin_want = q_forkjoin_want(GRAPH_FORKS);
    shift = 1;
    graph_other = captured(put_chain);
    shift = 0;
    graph_chain = captured(put_chain);
    check(ds_graph_get_nodes(graph_chain, chain_node, GRAPH_CHAIN, &count));
    check(ds_graph_instantiate(graph_chain, NULL, &exec_chain));
    exec_one = executable(put_one);
    exec_forkjoin = executable(put_forkjoins);
    exec_serial = executable(put_serial);
    exec_branches = executable(put_branches);
    put_pair("graph_chain", chain_launched, chain_enqueued, "graph_half");
    put_pair("graph_forkjoin", forkjoin_launched, forkjoin_enqueued, NULL);
    put_pair("graph_wait", one_launched, one_enqueued, NULL);
    speedup("devstream", serial_launched, branches_launched);
    speedup("plain", serial_enqueued, branches_enqueued);
    bench_put("graph_capture", "devstream", once(capture_once, 101));
    bench_put("graph_instantiate", "devstream", once(instantiate_once, 101));
    bench_put("graph_update", "devstream", once(update_once, 101));
    check(ds_graph_exec_update(exec_chain, graph_chain, NULL));
    bench_put("graph_set", "devstream", once(set_alone, 101));
    bench_put("graph_set_all", "devstream", once(set_and_upload, 101));
    make_while();
    put_few("graph_while", while_launched, while_enqueued);
    put_few("graph_value", hops_by_values, hops_by_events);
}

/* ---- limits ---------------------------------------------------------------------------------- */

typedef struct command {
    int (*fn)(size_t, size_t, const void *);
    fold_args args;
} command;

static command commands[GRAPH_CHAIN];
static uint64_t loop_hash;

static double loop_once(void) {
    loop_hash = 0;
    double t = bench_now_ns();
    for (const command *c = commands; c < commands + GRAPH_CHAIN; c++)
        c->fn(0, 1, &c->args);
    t = bench_now_ns() - t;
    return loop_hash == chain_want ? t / GRAPH_CHAIN : NAN;
}

/* As many threads as processors take the branches one by one; they spin, so that none has to be
   woken. */
static struct {
    _Alignas(64) atomic_int go, next, done;
    int threads;
    _Alignas(64) uint64_t hash[8 * GRAPH_BRANCHES];
} pool;

static void take_branches(void) {
    for (int i; (i = atomic_fetch_add(&pool.next, 1)) < GRAPH_BRANCHES;) {
        fold_args a = { &pool.hash[8 * i], (uint64_t)i };
        work(0, 1, &a);
        atomic_fetch_add(&pool.done, 1);
    }
}

static void *stand_by(void *user) {
    for (int seen = 0, now; (now = atomic_load(&pool.go)) >= 0;) {
        if (now != seen && now % 2)
            take_branches();
        seen = now;
        bench_pause();
    }
    return user;
}

/* An odd number calls the others. */
static double through_pool(int odd) {
    int right = 1;
    memset(pool.hash, 0, sizeof pool.hash);
    atomic_store(&pool.done, 0);
    atomic_store(&pool.next, 0);
    double t = bench_now_ns();
    atomic_store(&pool.go, ((atomic_load(&pool.go) + 2) & ~1) + odd);
    take_branches();
    while (atomic_load(&pool.done) < GRAPH_BRANCHES)
        bench_pause();
    t = bench_now_ns() - t;
    for (int i = 0; i < GRAPH_BRANCHES; i++)
        right &= pool.hash[8 * i] != 0;
    return right ? t : NAN;
}

static double alone(void) {
    return through_pool(0);
}

static double together(void) {
    return through_pool(1);
}

static void limits(void) {
    pthread_t thread[GRAPH_BRANCHES];
    int more = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (more > GRAPH_BRANCHES - 1)
        more = GRAPH_BRANCHES - 1;
    for (uint64_t i = 0; i < GRAPH_CHAIN; i++) {
        commands[i] = (command){ fold, { &loop_hash, i } };
        bench_fold(&chain_want, i);
    }
    double call = once(loop_once, SAMPLES);
    bench_put("graph_chain", "limit", call);
    bench_put("graph_forkjoin", "limit", 9 * call);
    for (int i = 0; i < more; i++)
        if (pthread_create(&thread[i], NULL, stand_by, NULL))
            abort();
    speedup("limit", alone, together);
    atomic_store(&pool.go, -1);
    for (int i = 0; i < more; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "limits")) {
        limits();
        return bench_failed;
    }
    start();
    graphs();
    return bench_failed;
}
