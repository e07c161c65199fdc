/* Random graphs with conditions and values against an interpreter.

   A program is a list of steps on words: arithmetic, a copy, an if with or without an else, a
   while over a counter, a switch, each with programs inside. The interpreter runs the list in its
   order on an array. The graph of a program has an edge between two steps only if they touch the
   same word, so that the other steps run side by side, or hands a word over by a value: the
   first step is followed by a write, and the second one by no edge but a wait for it. A difference
   prints the seed; DS_RANDOM_FIRST and DS_RANDOM_SEEDS choose others. */
#include "harness.h"
#include <stdlib.h>
#include <string.h>

enum { WORDS = 10, FLAGS = 16, STEPS = 9, DEPTH = 3, CHOICES = 3, LAUNCHES = 3 };

typedef enum kind { ADD, THRICE, STORE, COPY, IF, WHILE, SWITCH } kind;

typedef struct program program;

typedef struct step {
    kind kind;
    int to, from; /* words; the condition of an if, a while or a switch is `from` */
    uint64_t n;   /* the operand; of a while, the number of runs */
    size_t inside;
    program *body[CHOICES];
    unsigned words; /* that it touches, as a mask */
    int handed;     /* flag by which the next step waits for it, or -1 */
} step;

struct program {
    size_t count;
    step at[STEPS];
};

static uint64_t rng;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(int n) {
    return (int)(draw() % (unsigned)n);
}

/* ---- programs ---- */

static unsigned words_of(const program *p) {
    unsigned words = 0;
    for (size_t i = 0; i < p->count; i++)
        words |= p->at[i].words;
    return words;
}

/* counters: words that are counters of whiles around the program; it does not change them. */
static program *make(int depth, unsigned counters) {
    program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->count = 1 + (size_t)below(depth ? 4 : STEPS);
    for (size_t i = 0; i < p->count; i++) {
        step *s = &p->at[i];
        s->kind = (kind)below(depth < DEPTH ? SWITCH + 1 : IF);
        s->handed = -1;
        s->n = 1 + draw() % 1000;
        do
            s->to = below(WORDS);
        while (counters >> s->to & 1);
        s->from = below(WORDS);
        unsigned inner = counters;
        if (s->kind == WHILE) {
            s->from = s->to; /* the counter */
            s->n = (uint64_t)below(4);
            inner |= 1u << s->to;
            /* a word must be left */
            if (inner == (1u << WORDS) - 1)
                s->kind = ADD;
        }
        if (s->kind >= IF)
            s->inside = s->kind == WHILE ? 1 : 1 + (size_t)below(s->kind == IF ? 2 : CHOICES);
        s->words = 1u << s->from | (s->kind < IF || s->kind == WHILE ? 1u << s->to : 0);
        for (size_t k = 0; k < s->inside; k++) {
            s->body[k] = make(depth + 1, inner);
            s->words |= words_of(s->body[k]);
        }
    }
    return p;
}

static void end(program *p) {
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->at[i].inside; k++)
            end(p->at[i].body[k]);
    free(p);
}

/* ---- the interpreter ---- */

static void interpret(const program *p, uint64_t *w) {
    for (size_t i = 0; i < p->count; i++) {
        const step *s = &p->at[i];
        uint32_t condition = (uint32_t)w[s->from];
        switch (s->kind) {
        case ADD:
            w[s->to] += s->n;
            break;
        case THRICE:
            w[s->to] = w[s->to] * 3 + s->n;
            break;
        case STORE:
            w[s->to] = s->n;
            break;
        case COPY:
            w[s->to] = w[s->from];
            break;
        case IF:
            if (condition)
                interpret(s->body[0], w);
            else if (s->inside > 1)
                interpret(s->body[1], w);
            break;
        case WHILE:
            for (w[s->to] = s->n; w[s->to]; w[s->to]--)
                interpret(s->body[0], w);
            break;
        case SWITCH:
            if (condition < s->inside)
                interpret(s->body[condition], w);
            break;
        }
    }
}

/* ---- the graph ---- */

static uint64_t *words, *flags;
static ds_kernel kernels[3];
static int flag_count;

static int run_add(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h += a->n;
    return 0;
}

static int run_thrice(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = *a->h * 3 + a->n;
    return 0;
}

static int run_store(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = a->n;
    return 0;
}

static ds_graph_node add(ds_graph g, ds_node_desc d, const ds_graph_node *after, size_t count) {
    ds_graph_node n = { 0 };
    ok(ds_graph_add(g, &d, after, count, &n));
    return n;
}

static ds_graph_node add_kernel(ds_graph g, kind k, int word, uint64_t n,
                                const ds_graph_node *after, size_t count) {
    fold_args a = { &words[word], n };
    ds_node_desc d = { .kind = DS_NODE_KERNEL,
                       .u.kernel = {
                           .kernel = kernels[k], .items = 1, .args = &a, .args_size = sizeof a } };
    return add(g, d, after, count);
}

static ds_graph graph_of(program *p, int hand_over);

static ds_graph_node add_condition(ds_graph g, const step *s, const ds_graph_node *after,
                                   size_t count) {
    static const ds_condition_kind kinds[] = {
        [IF] = DS_CONDITION_IF, [WHILE] = DS_CONDITION_WHILE, [SWITCH] = DS_CONDITION_SWITCH
    };
    ds_graph bodies[CHOICES];
    ds_graph_node counter;
    if (s->kind == WHILE) {
        counter = add_kernel(g, STORE, s->to, s->n, after, count);
        after = &counter;
        count = 1;
    }
    for (size_t k = 0; k < s->inside; k++) {
        bodies[k] = graph_of(s->body[k], 0);
        if (s->kind != WHILE)
            continue;
        /* counts down after all of the body */
        ds_graph_node all[3 * STEPS];
        size_t nodes = 0;
        ok(ds_graph_get_nodes(bodies[k], all, 3 * STEPS, &nodes));
        assert_true(nodes <= 3 * STEPS);
        add_kernel(bodies[k], ADD, s->to, UINT64_MAX, all, nodes);
    }
    ds_node_desc d = { .kind = DS_NODE_CONDITION,
                       .u.condition = { .kind = kinds[s->kind],
                                        .word = (const uint32_t *)(void *)&words[s->from],
                                        .bodies = bodies,
                                        .count = s->inside } };
    ds_graph_node n = add(g, d, after, count);
    for (size_t k = 0; k < s->inside; k++)
        ok(ds_graph_destroy(bodies[k]));
    return n;
}

static ds_graph_node add_value(ds_graph g, int flag, int write, const ds_graph_node *after,
                               size_t count) {
    ds_value_op op = { &flags[flag], 1, write ? DS_VALUE_WRITE : DS_VALUE_WAIT_EQ,
                       flag % 2 ? 4 : 8 };
    ds_node_desc d = { .kind = DS_NODE_VALUES, .u.values = { .ops = &op, .count = 1 } };
    return add(g, d, after, count);
}

/* hand_over: some dependencies are values, which bodies cannot have. */
static ds_graph graph_of(program *p, int hand_over) {
    ds_graph g = { 0 };
    ds_graph_node last[STEPS];
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    for (size_t i = 0; i < p->count; i++) {
        step *s = &p->at[i];
        ds_graph_node after[STEPS];
        size_t count = 0;
        for (size_t k = 0; k < i; k++) {
            if (!(p->at[k].words & s->words))
                continue;
            if (hand_over && flag_count < FLAGS && below(3) == 0) {
                add_value(g, flag_count, 1, &last[k], 1);
                after[count++] = add_value(g, flag_count++, 0, NULL, 0);
            } else {
                after[count++] = last[k];
            }
        }
        if (s->kind >= IF) {
            last[i] = add_condition(g, s, after, count);
        } else if (s->kind == COPY && s->to != s->from) {
            ds_node_desc d = { .kind = DS_NODE_COPY,
                               .u.copy = {
                                   .dst = &words[s->to], .src = &words[s->from], .width = 8 } };
            last[i] = add(g, d, after, count);
        } else if (s->kind == COPY) {
            last[i] = add(g, (ds_node_desc){ .kind = DS_NODE_EMPTY }, after, count);
        } else {
            last[i] = add_kernel(g, s->kind, s->to, s->n, after, count);
        }
    }
    return g;
}

static void run_seed(uint64_t seed, ds_stream stream, uint64_t *shown) {
    uint64_t want[WORDS];
    rng = seed;
    flag_count = 0;
    program *p = make(0, 0);
    ds_graph g = graph_of(p, 1), clone = { 0 };
    ds_graph_exec x = { 0 };
    int cloned = below(2);
    if (cloned)
        ok(ds_graph_clone(g, &clone));
    ok(ds_graph_instantiate(cloned ? clone : g, NULL, &x));
    for (int i = 0; i < WORDS; i++)
        shown[i] = want[i] = draw() % 4;
    ok(ds_copy(words, shown, sizeof want, stream));
    for (int launch = 0; launch < LAUNCHES; launch++) {
        memset(flags, 0, FLAGS * sizeof *flags);
        interpret(p, want);
        ok(ds_graph_launch(x, stream));
        ok(ds_copy(shown, words, sizeof want, stream));
        ok(ds_stream_synchronize(stream));
        for (int i = 0; i < WORDS; i++)
            if (shown[i] != want[i])
                fail_msg("seed %llu, launch %d: word %d is %llu, not %llu",
                         (unsigned long long)seed, launch, i, (unsigned long long)shown[i],
                         (unsigned long long)want[i]);
    }
    ok(ds_graph_exec_destroy(x));
    if (cloned)
        ok(ds_graph_destroy(clone));
    ok(ds_graph_destroy(g));
    end(p);
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_conditions_match_an_interpreter(void **state) {
    (void)state;
    static const ds_param params[] = { PARAM(READ_WRITE, fold_args, h),
                                       PARAM(VALUE, fold_args, n) };
    uint64_t first = setting("DS_RANDOM_FIRST", 1), count = setting("DS_RANDOM_SEEDS", 60);
    void *p = NULL, *pinned = NULL;
    ds_stream stream = harness_stream(0, 0);
    ok(ds_device_alloc(harness_device(0), WORDS * sizeof *words, &p));
    ok(ds_pinned_alloc(4096, &pinned));
    if (!harness_has_conditions(p)) {
        ok(ds_device_free(p));
        ok(ds_pinned_free(pinned));
        ok(ds_stream_destroy(stream));
        skip();
    }
    words = p;
    flags = (uint64_t *)pinned + 256;
    kernels[ADD] = harness_kernel("add", run_add, sizeof(fold_args), params, 2, 1);
    kernels[THRICE] = harness_kernel("thrice", run_thrice, sizeof(fold_args), params, 2, 1);
    kernels[STORE] = harness_kernel("store", run_store, sizeof(fold_args), params, 2, 1);
    for (uint64_t seed = first; seed < first + count; seed++)
        run_seed(seed, stream, pinned);
    for (int i = 0; i < 3; i++)
        ok(ds_kernel_destroy(kernels[i]));
    ok(ds_pinned_free(pinned));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(stream));
}

const struct CMUnitTest tests_condition_random[] = {
    DS_TEST(test_random_conditions_match_an_interpreter,
            "CUDA C++ Programming Guide, Conditional Graph Nodes"),
};
const size_t tests_condition_random_count =
    sizeof tests_condition_random / sizeof tests_condition_random[0];
