/* Random programs on the caching allocator against a simple model, threads that share it, and a
   fault at each call in turn.

   The model knows which blocks live and what each holds. A block is written on its stream, read by
   streams that are ordered behind that, and freed at once; streams are held up by gates meanwhile.
   If its memory went to somebody else too early, or twice, a stream reads something else.
   Shortage, poison, guards and debug:2 come in all combinations, and none may report anything.

   DS_RANDOM_SEEDS: how many seeds (30); DS_RANDOM_FIRST: the first (1), to run a failing one
   again, with DS_RANDOM_TRACE=1 step by step. */
#include "alloc.h"

#include <stdatomic.h>

static uint64_t draw(uint64_t *x) { /* splitmix64 */
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

enum { LANES = 6, BLOCKS = 60, POOLS = 2, GRAPHS = 3, GATES = 12, STEPS = 200 };

typedef struct live {
    char *p;
    size_t size, whole; /* asked for, and what it occupies */
    uint32_t value;
    int lane;     /* its stream, or the one that came behind it */
    int homeless; /* its stream has ended: every use must be recorded */
    int readers;  /* bit i: lane i has read it since it was written */
    int standing; /* bit i: lane i may use it until it is freed */
} live;

typedef struct recording {
    ds_graph g;
    ds_graph_exec exec;
    looks *l;
    int lane;
    void *kept; /* a block of the graph that is freed behind the capture, or NULL */
} recording;

/* What a seed switches on: all combinations, with all presets, in 80 seeds. */
enum { SHORTAGE = 1, POISON = 2, GUARDS = 4, CHECKS = 8, OPTIONS = 16 };

static _Atomic int reports; /* warnings in the log; errors are results of calls too */

static void count_reports(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level != DS_LOG_WARNING)
        return;
    reports++;
    print_error("logged: %s\n", item->text);
}

static void begin_reports(void) {
    harness_restart(&(ds_init_desc){ .log_fn = count_reports, .log_level = DS_LOG_WARNING });
    reports = 0;
}

static void end_reports(void) {
    harness_restart(NULL);
    assert_int_equal(reports, 0);
}

typedef struct program {
    uint64_t seed, x;
    int step, preset, lanes, count, pools, gates_used, limited, blocking_frees;
    size_t limit;
    uint32_t next_value;
    ds_stream s[LANES];
    gate gates[GATES], *closed[LANES];
    live block[BLOCKS];
    ds_pool pool[POOLS];
    recording graph[GRAPHS];
    looks *l;
    int refused, captured;
} program;

static int refused_in_captures; /* of all programs */

/* DS_RANDOM_TRACE=1: the steps before a failure, a line each. */
static char trace[1 << 18];
static size_t trace_end;
static int tracing;
#define TRACE(...)                                                                 \
    do {                                                                           \
        if (tracing && trace_end + 400 < sizeof trace) {                           \
            trace_end += (size_t)snprintf(trace + trace_end, 20, "%d: ", p->step); \
            trace_end += (size_t)snprintf(trace + trace_end, 300, __VA_ARGS__);    \
            trace[trace_end++] = '\n';                                             \
        }                                                                          \
    } while (0)

static void lost(program *p, int line, const char *what) {
    if (tracing)
        fwrite(trace, 1, trace_end, stderr);
    print_error("seed %llu, step %d, %s, line %d: %s: %s\n", (unsigned long long)p->seed, p->step,
                preset_name(p->preset), line, what, ds_error_get_last());
    fail();
}

#define MUST(call)                    \
    do {                              \
        if ((call) != DS_OK)          \
            lost(p, __LINE__, #call); \
    } while (0)
#define HOLDS(condition)                              \
    do {                                              \
        if (!(condition))                             \
            lost(p, __LINE__, "not so: " #condition); \
    } while (0)

static size_t below(program *p, size_t n) {
    return (size_t)(draw(&p->x) % n);
}

static int chance(program *p, size_t percent) {
    return below(p, 100) < percent;
}

/* ---- streams ---- */

static void open_lane(program *p, int i) {
    if (p->closed[i])
        TRACE("lane %d opens", i);
    if (p->closed[i])
        gate_open(p->closed[i]);
    p->closed[i] = NULL;
}

static void open_all(program *p) {
    for (int i = 0; i < p->lanes; i++)
        open_lane(p, i);
}

static void *open_all_later(void *arg) {
    program *p = arg;
    for (int i = 0; i < 20; i++)
        harness_nap();
    open_all(p);
    return NULL;
}

/* Before a call that may wait for the device: the gates open now, or while it waits. */
static pthread_t opener;
static int opening;

static void may_wait(program *p) {
    int any = 0;
    for (int i = 0; i < p->lanes; i++)
        any |= p->closed[i] != NULL;
    if (any && chance(p, 50)) {
        opener = spawn(open_all_later, p);
        opening = 1;
    } else {
        open_all(p);
    }
}

static void has_waited(void) {
    if (opening)
        join(opener);
    opening = 0;
}

static void settle(program *p) {
    open_all(p);
    for (int i = 0; i < p->lanes; i++)
        MUST(ds_stream_synchronize(p->s[i]));
    HOLDS(looks_right(p->l));
}

static ds_stream lane_stream(program *p, int i) {
    (void)p;
    return harness_stream(i == 5 ? 1 : 0, 0); /* the sixth is another device's */
}

/* ---- blocks ---- */

static void write_block(program *p, live *b) {
    b->value = ++p->next_value;
    b->readers = 0;
    TRACE("write %p %zu value %#x lane %d", (void *)b->p, b->size, (unsigned)b->value, b->lane);
    MUST(ds_fill_2d(b->p, UNIT, b->value, 4, 1, (b->size + UNIT - 1) / UNIT, p->s[b->lane]));
}

static void read_block(program *p, live *b, int lane) {
    if (!looks_fit(p->l, b->size))
        settle(p);
    TRACE("look %zu: %p %zu value %#x lane %d", p->l->count, (void *)b->p, b->size,
          (unsigned)b->value, lane);
    look(p->l, b->p, b->size, b->value, p->s[lane]);
}

static void check_new(program *p, const live *b, const ds_mem_request *r) {
    ds_mem_block info;
    HOLDS((uintptr_t)b->p % (r->alignment > UNIT ? r->alignment : UNIT) == 0);
    MUST(ds_mem_get_block(b->p + b->size - 1, &info));
    HOLDS(info.ptr == b->p && info.requested == b->size && info.size == b->whole &&
          info.state == DS_BLOCK_LIVE);
    HOLDS((char *)info.segment <= b->p && b->whole <= info.segment_size);
    HOLDS(!r->pool.id || info.pool.id == r->pool.id);
    for (int i = 0; i < p->count; i++)
        HOLDS(&p->block[i] == b || b->p + b->whole <= p->block[i].p ||
              p->block[i].p + p->block[i].whole <= b->p);
}

static size_t draw_size(program *p) {
    switch (below(p, 10)) {
    case 0:
        return below(p, 600) + 1;
    case 1:
    case 2:
    case 3:
        return below(p, 20000) + 1;
    case 4:
    case 5:
    case 6:
        return below(p, MIB) + 1;
    case 7:
    case 8:
        return below(p, 4 * MIB) + 1;
    default:
        return below(p, 24 * MIB) + 1;
    }
}

static void is_refused(program *p, ds_result result, const void *out) {
    HOLDS(p->limited && out == NULL);
    HOLDS(result == DS_ERR_LIMIT_EXCEEDED || result == DS_ERR_OUT_OF_MEMORY);
    HOLDS(strchr(ds_error_get_last(), ' '));
}

static void step_alloc(program *p) {
    if (p->count == BLOCKS)
        return;
    live *b = &p->block[p->count];
    int lane = (int)below(p, (size_t)p->lanes);
    ds_mem_request r = { .size = draw_size(p), .stream = p->s[lane] };
    ds_mem_block info;
    void *out = p;
    if (chance(p, 10))
        r.alignment = UNIT << below(p, 13);
    if (p->pools && lane != 5 && chance(p, 25))
        r.pool = p->pool[below(p, (size_t)p->pools)];
    if (p->limited)
        may_wait(p);
    ds_result result = ds_mem_alloc_with(&r, &out);
    has_waited();
    if (result != DS_OK) {
        is_refused(p, result, out);
        /* with no block there is room */
        HOLDS(p->pools || p->count || p->captured || r.size > 8 * MIB || r.alignment > UNIT);
        p->refused++;
        return;
    }
    *b = (live){ .p = out, .size = r.size, .lane = lane };
    MUST(ds_mem_get_block(out, &info));
    b->whole = info.size;
    p->count++;
    check_new(p, b, &r);
    write_block(p, b);
}

static void use_elsewhere(program *p, live *b, int lane) {
    if (lane == b->lane && !b->homeless) {
        read_block(p, b, lane);
        if (chance(p, 30))
            MUST(ds_mem_record_use(b->p, p->s[lane]));
        return;
    }
    TRACE("use of %p (lane %d%s) on lane %d", (void *)b->p, b->lane,
          b->homeless ? ", homeless" : "", lane);
    char *inside = b->p + below(p, b->size);
    int before = chance(p, 50);
    if (lane != b->lane)
        MUST(ds_stream_wait_stream(p->s[lane], p->s[b->lane]));
    if (chance(p, 30) && before) {
        MUST(ds_mem_record_stream(inside, p->s[lane]));
        b->standing |= 1 << lane;
    }
    read_block(p, b, lane);
    if (!(b->standing & 1 << lane)) {
        if (chance(p, 60))
            MUST(ds_mem_record_use(inside, p->s[lane]));
        else
            MUST(ds_mem_record_stream(inside, p->s[lane])); /* holds what follows too */
    }
    b->readers |= 1 << lane;
}

static void rewrite(program *p, live *b) {
    for (int i = 0; i < p->lanes; i++)
        if (b->readers & 1 << i && i != b->lane)
            MUST(ds_stream_wait_stream(p->s[b->lane], p->s[i]));
    write_block(p, b);
    if (b->homeless)
        MUST(ds_mem_record_use(b->p, p->s[b->lane]));
}

static void *free_it(void *arg) {
    ok_thread(ds_mem_free(arg));
    return NULL;
}

static void free_block(program *p, live *b) {
    void *was = b->p;
    TRACE("free %p (lane %d%s)", was, b->lane, b->homeless ? ", homeless" : "");
    read_block(p, b, b->lane);
    if (b->homeless)
        MUST(ds_mem_record_use(b->p, p->s[b->lane]));
    if (p->blocking_frees)
        may_wait(p);
    if (chance(p, 5))
        join(spawn(free_it, b->p));
    else
        MUST(ds_mem_free(b->p));
    has_waited();
    *b = p->block[--p->count];
    if (chance(p, 10))
        HOLDS(ds_mem_free(was) == DS_ERR_INVALID_VALUE);
}

static void step_free(program *p) {
    if (p->count)
        free_block(p, &p->block[below(p, (size_t)p->count)]);
}

static void step_lane_ends(program *p) {
    int i = (int)below(p, (size_t)p->lanes);
    for (int k = 0; k < GRAPHS; k++)
        if (p->graph[k].exec.id && p->graph[k].lane == i)
            return;
    TRACE("lane %d ends", i);
    ds_stream next = lane_stream(p, i);
    MUST(ds_stream_wait_stream(next, p->s[i]));
    MUST(ds_stream_destroy(p->s[i])); /* perhaps held up */
    p->s[i] = next;
    for (int k = 0; k < p->count; k++) {
        if (p->block[k].lane == i)
            p->block[k].homeless = 1;
        p->block[k].standing &= ~(1 << i);
    }
}

/* ---- captures ---- */

/* Launches before and after it have the block's memory to themselves. */
static void free_kept(program *p, recording *r) {
    if (!r->kept)
        return;
    TRACE("free %p of the graph of lane %d", r->kept, r->lane);
    if (p->blocking_frees)
        may_wait(p);
    MUST(ds_mem_free(r->kept));
    has_waited();
    r->kept = NULL;
}

static void drop_graph(program *p, recording *r) {
    if (!r->exec.id)
        return;
    TRACE("graph of lane %d ends", r->lane);
    int early = chance(p, 50);
    if (early)
        free_kept(p, r);
    MUST(ds_stream_synchronize(p->s[r->lane]));
    HOLDS(looks_right(r->l));
    MUST(ds_graph_exec_destroy(r->exec));
    MUST(ds_graph_destroy(r->g));
    free_kept(p, r);
    looks_destroy(r->l);
    *r = (recording){ .lane = 0 };
}

static void launch_graph(program *p, recording *r) {
    if (r->exec.id)
        MUST(ds_graph_launch(r->exec, p->s[r->lane]));
}

/* Temporary blocks in a capture: the graph writes and reads them at each launch, whatever the
   program does meanwhile. Where memory is short some are refused, and the capture goes on
   without them. */
static void step_capture(program *p) {
    recording *r = &p->graph[below(p, GRAPHS)];
    if (r->exec.id) {
        if (chance(p, 30))
            free_kept(p, r);
        launch_graph(p, r);
        if (chance(p, 30))
            free_kept(p, r);
        return;
    }
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    void *tmp[6];
    size_t size[6];
    uint32_t value[6];
    int count = 1 + (int)below(p, 6), lane = (int)below(p, (size_t)(p->lanes < 5 ? p->lanes : 5));
    ds_stream s = p->s[lane];
    TRACE("capture on lane %d", lane);
    p->captured = 1;
    r->l = looks_create(100000);
    r->lane = lane;
    harness_watch(s);
    MUST(ds_capture_begin(s, modes[below(p, 3)]));
    for (int i = 0; i < count; i++) {
        size[i] = below(p, chance(p, p->limited ? 50 : 80) ? 50000
                           : p->limited                    ? 8 * MIB
                                                           : 3 * MIB) +
                  1;
        value[i] = ++p->next_value;
        ds_result result = ds_mem_alloc(size[i], s, &tmp[i]);
        if (result == DS_OK) {
            MUST(ds_fill_2d(tmp[i], UNIT, value[i], 4, 1, (size[i] + UNIT - 1) / UNIT, s));
        } else {
            TRACE("%zu refused in the capture", size[i]);
            is_refused(p, result, tmp[i]);
            refused_in_captures++;
        }
        if (i && chance(p, 50) && tmp[i - 1]) {
            look(r->l, tmp[i - 1], size[i - 1], value[i - 1], s);
            MUST(ds_mem_free(tmp[i - 1]));
            tmp[i - 1] = NULL;
        }
        if (p->count && chance(p, 20)) { /* others go on meanwhile */
            live *b = &p->block[below(p, (size_t)p->count)];
            if (b->lane != lane && looks_fit(p->l, b->size))
                free_block(p, b);
        }
        if (p->count < BLOCKS && chance(p, 20)) {
            int other = (lane + 1) % p->lanes;
            if (other != lane) {
                live *b = &p->block[p->count];
                ds_mem_block info;
                void *out = p;
                if ((result = ds_mem_alloc(5000, p->s[other], &out)) != DS_OK) {
                    is_refused(p, result, out);
                    refused_in_captures++;
                    continue;
                }
                *b = (live){ .p = out, .size = 5000, .lane = other };
                MUST(ds_mem_get_block(b->p, &info));
                b->whole = info.size;
                p->count++;
                check_new(p, b, &(ds_mem_request){ .size = 5000 });
                write_block(p, b);
            }
        }
    }
    for (int i = 0; i < count; i++)
        if (tmp[i]) {
            look(r->l, tmp[i], size[i], value[i], s);
            if (!r->kept && chance(p, 50))
                r->kept = tmp[i];
            else
                MUST(ds_mem_free(tmp[i]));
        }
    MUST(ds_capture_end(s, &r->g));
    r->exec = instantiate_graph(r->g);
    launch_graph(p, r);
}

/* ---- the rest ---- */

static void check_counts(program *p) {
    int64_t count[2] = { 0, 0 }, bytes[2] = { 0, 0 }, asked[2] = { 0, 0 };
    for (int i = 0; i < GRAPHS; i++)
        if (p->graph[i].kept) {
            count[0]++;
            bytes[0] += (int64_t)size_of(p->graph[i].kept);
        }
    for (int i = 0; i < p->count; i++) {
        ds_mem_block b;
        MUST(ds_mem_get_block(p->block[i].p, &b));
        HOLDS(b.ptr == p->block[i].p && b.size == p->block[i].whole);
        int d = harness_device_count() > 1 && b.device.index == harness_device(1).index;
        count[d]++;
        bytes[d] += (int64_t)p->block[i].whole;
        asked[d] += (int64_t)p->block[i].size;
    }
    for (int d = 0; d < harness_device_count() && d < 2; d++) {
        ds_mem_stats st = stats_of(d);
        HOLDS(st.allocation[DS_STAT_ALL].current == count[d]);
        HOLDS(st.allocated_bytes[DS_STAT_ALL].current == bytes[d]);
        HOLDS(st.requested_bytes[DS_STAT_ALL].current >= asked[d]);
        HOLDS(!p->limit || d || st.reserved_bytes[DS_STAT_ALL].current <= (int64_t)p->limit);
        check_invariants(d);
    }
}

static void step(program *p) {
    size_t what = below(p, 100);
    ds_device d = harness_device((int)below(p, 2));
    if (what < 36)
        step_alloc(p);
    else if (what < 62)
        step_free(p);
    else if (what < 76) {
        if (p->count)
            use_elsewhere(p, &p->block[below(p, (size_t)p->count)],
                          (int)below(p, (size_t)p->lanes));
    } else if (what < 80) {
        if (p->count)
            rewrite(p, &p->block[below(p, (size_t)p->count)]);
    } else if (what < 86) {
        int i = (int)below(p, (size_t)p->lanes);
        if (!p->closed[i] && p->gates_used < GATES) {
            p->closed[i] = &p->gates[p->gates_used++];
            TRACE("lane %d closes", i);
            gate_close(p->s[i], p->closed[i]);
        }
    } else if (what < 90)
        open_lane(p, (int)below(p, (size_t)p->lanes));
    else if (what < 92) {
        TRACE("empty cache");
        may_wait(p);
        MUST(ds_mem_empty_cache(d, NULL));
        has_waited();
    } else if (what < 94) {
        TRACE("trim");
        may_wait(p);
        MUST(ds_mem_trim(d, below(p, 64 * MIB), NULL));
        has_waited();
    } else if (what < 95) {
        if (p->pools) {
            may_wait(p);
            MUST(ds_pool_empty_cache(p->pool[below(p, (size_t)p->pools)], NULL));
            has_waited();
        }
    } else if (what < 97)
        step_lane_ends(p);
    else if (what < 98) {
        if (p->limited) { /* what is reserved already stays */
            p->limit = chance(p, 50) ? 0 : (40 + below(p, 100)) * MIB;
            if (p->limit && p->limit < ds_mem_get_reserved(harness_device(0)))
                p->limit = ds_mem_get_reserved(harness_device(0));
            MUST(ds_mem_set_limit(harness_device(0), p->limit));
        }
    } else
        step_capture(p);
}

static ds_mem_config draw_config(program *p, unsigned options) {
    ds_mem_config c = config_of(p->preset);
    c.debug = options & CHECKS ? 2 : (int)below(p, 2);
    if (chance(p, 40))
        c.reuse = (int)below(p, 3);
    if (chance(p, 30))
        c.poll_on_alloc = !c.poll_on_alloc;
    if (chance(p, 30))
        c.best_fit_by_address = !c.best_fit_by_address;
    if (chance(p, 20))
        c.statistics = DS_STATISTICS_CURRENT;
    if (chance(p, 20))
        MUST(ds_mem_config_parse("roundup_power2_divisions:4", &c));
    if (chance(p, 15))
        MUST(ds_mem_config_parse("max_split_size_mb:20", &c));
    if (chance(p, 15))
        c.garbage_collection_threshold = 0.6;
    c.poison = (options & POISON) != 0;
    c.guard_bytes = options & GUARDS ? UNIT << below(p, 3) : 0;
    p->blocking_frees = c.guard_bytes != 0;
    TRACE("reuse %d, poll %d, by address %d, divisions %d, split %zu, collect %g, poison %d, guard "
          "%zu",
          c.reuse, c.poll_on_alloc, c.best_fit_by_address, c.roundup_power2_divisions[0],
          c.max_split_size, c.garbage_collection_threshold, c.poison, c.guard_bytes);
    return c;
}

static void run_program(uint64_t seed) {
    static program the_program;
    program *p = &the_program;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    tracing = getenv("DS_RANDOM_TRACE") != NULL;
    trace_end = 0;
    p->x = seed * 7919;
    p->preset = (int)(seed % PRESETS);
    p->limited = (seed % OPTIONS & SHORTAGE) != 0;
    p->lanes = 2 + (int)below(p, harness_device_count() > 1 ? 5 : 4);
    p->pools = chance(p, 40) ? 1 + (int)below(p, POOLS) : 0;
    ds_mem_config c = draw_config(p, (unsigned)(seed % OPTIONS));
    if (p->limited)
        c.limit = p->limit = (64 + below(p, 64)) * MIB;
    begin_with(&c);
    harness_warm_up();
    p->l = looks_create(1 << 18);
    for (int i = 0; i < p->lanes; i++)
        p->s[i] = lane_stream(p, i);
    for (int i = 0; i < p->pools; i++)
        MUST(ds_pool_create(
            &(ds_pool_desc){ .device = harness_device(0), .use_on_oom = chance(p, 30) },
            &p->pool[i]));
    for (p->step = 1; p->step <= STEPS; p->step++) {
        step(p);
        for (int d = 0; d < harness_device_count() && d < 2; d++)
            MUST(ds_mem_validate(harness_device(d)));
        if (p->step % 10 == 0)
            check_counts(p);
    }
    settle(p);
    for (int i = 0; i < GRAPHS; i++)
        drop_graph(p, &p->graph[i]);
    p->limited = 0;
    while (p->count)
        step_free(p);
    settle(p);
    for (int i = 0; i < p->pools; i++)
        MUST(ds_pool_destroy(p->pool[i]));
    for (int i = 0; i < p->lanes; i++)
        MUST(ds_stream_destroy(p->s[i]));
    looks_destroy(p->l);
    await_graphs_memory(0);
    finish();
    harness_reuse();
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_programs_find_in_every_block_what_they_wrote(void **state) {
    (void)state;
    uint64_t first = setting("DS_RANDOM_FIRST", 1),
             count = setting("DS_RANDOM_SEEDS", 30 / HARNESS_THIRD);
    refused_in_captures = 0;
    begin_reports();
    for (uint64_t seed = first; seed < first + count; seed++)
        run_program(seed);
    end_reports();
    assert_true(count < 30 || refused_in_captures > 0); /* captures and shortage have met */
}

/* ---- threads ---- */

enum { THREADS = 4, HELD = 24, MAILBOXES = 8 };

/* A block on its way to another thread, which frees it. */
typedef struct parcel {
    void *p;
    size_t size;
    uint32_t value;
    ds_stream s;
} parcel;

typedef struct hand hand;

/* One program of several threads. */
typedef struct shared {
    _Atomic(parcel *) box[MAILBOXES];
    ds_stream common;
    hand *hands;
    uint32_t rounds;
    int captures, limited;
    uint64_t seed;
} shared;

struct hand {
    shared *all;
    ds_stream own;
    ds_stream aside; /* for captures: no other thread uses it */
    uint64_t x;
    uint32_t base;
};

/* 0: out of memory, where memory may be short. */
static int got(const shared *all, ds_result r) {
    if (r == DS_OK)
        return 1;
    if (!all->limited || (r != DS_ERR_OUT_OF_MEMORY && r != DS_ERR_LIMIT_EXCEEDED))
        harness_die("an allocation", r);
    return 0;
}

static void settle_hand(hand *h, looks *l) {
    for (int i = 0; i < THREADS; i++)
        ok_thread(ds_stream_synchronize(h->all->hands[i].own));
    ok_thread(ds_stream_synchronize(h->all->common));
    ok_thread(ds_stream_synchronize(h->aside));
    if (!looks_right(l)) {
        print_error("seed %llu: ", (unsigned long long)h->all->seed);
        harness_die("a block has not what was written", DS_ERR_ILLEGAL_STATE);
    }
}

static void put_away(hand *h, looks *l, parcel *b, ds_stream reader) {
    if (!looks_fit(l, b->size))
        settle_hand(h, l);
    if (ds_stream_equal(reader, b->s)) {
        look(l, b->p, b->size, b->value, reader);
    } else {
        ok_thread(ds_stream_wait_stream(reader, b->s));
        look(l, b->p, b->size, b->value, reader);
        ok_thread(ds_mem_record_use(b->p, reader));
    }
    ok_thread(ds_mem_free(b->p));
    free(b);
}

/* A graph with a block that is freed in the capture, and one that is freed before a launch, behind
   it, or behind the end of the graph. */
static void capture_aside(hand *h, looks *l, uint64_t r) {
    enum { LOOKS = 2 };

    size_t size = (size_t)(r >> 20) % 100000 + 1;
    void *p[LOOKS] = { NULL, NULL };
    ds_graph g;
    ds_graph_exec exec;
    int when = (int)((r >> 40) % 3);
    if (!looks_fit(l, LOOKS * size + UNIT))
        settle_hand(h, l);
    ok_thread(ds_capture_begin(h->aside, DS_CAPTURE_RELAXED));
    for (uint32_t i = 0; i < LOOKS; i++)
        if (got(h->all, ds_mem_alloc(size, h->aside, &p[i]))) {
            paint(p[i], size, h->base + i, h->aside);
            look(l, p[i], size, h->base + i, h->aside);
            if (i == 0)
                ok_thread(ds_mem_free(p[i]));
        }
    ok_thread(ds_capture_end(h->aside, &g));
    ok_thread(ds_graph_instantiate(g, NULL, &exec));
    ok_thread(ds_graph_destroy(g));
    if (when == 0)
        ok_thread(ds_mem_free(p[1]));
    ok_thread(ds_graph_launch(exec, h->aside));
    if (when == 1)
        ok_thread(ds_mem_free(p[1]));
    ok_thread(ds_graph_exec_destroy(exec));
    if (when == 2)
        ok_thread(ds_mem_free(p[1]));
}

/* NULL: there was no memory. */
static parcel *make_parcel(hand *h, uint64_t r, uint32_t value) {
    parcel *b = malloc(sizeof *b);
    if (!b)
        abort();
    b->size = (size_t)(r >> 20) % ((r >> 10) % 6 ? 30000 : 2 << 20) + 1;
    b->s = (r >> 8) % 4 ? h->own : h->all->common;
    b->value = value;
    if (!got(h->all, ds_mem_alloc(b->size, b->s, &b->p))) {
        free(b);
        return NULL;
    }
    paint(b->p, b->size, b->value, b->s);
    /* away with it, for whatever lies there */
    if ((r >> 12) % 4 == 0)
        b = atomic_exchange(&h->all->box[(r >> 16) % MAILBOXES], b);
    return b;
}

/* What gives memory back is refused while another thread captures. */
static void given_back(const hand *h, ds_result r) {
    if (r != DS_OK && !(h->all->captures && r == DS_ERR_CAPTURE_UNSUPPORTED))
        harness_die("giving memory back", r);
}

static void *work(void *arg) {
    hand *h = arg;
    parcel *held[HELD];
    int count = 0;
    looks *l = looks_create(1 << 17);
    for (uint32_t i = 0; i < h->all->rounds; i++) {
        uint64_t r = draw(&h->x);
        if (count < HELD && r % 100 < 55) {
            parcel *b = make_parcel(h, r, h->base + 2 + i);
            if (b)
                held[count++] = b;
        } else if (h->all->captures && r % 100 > 92) {
            capture_aside(h, l, r);
        } else if (count) {
            int k = (int)((r >> 30) % (uint64_t)count);
            parcel *b = held[k];
            held[k] = held[--count];
            put_away(h, l, b, (r >> 9) % 3 ? b->s : h->own);
        }
        if (i % 100 == 49) {
            ds_mem_stats st = stats_of(0);
            if (st.allocation[DS_STAT_ALL].current < 0)
                abort();
            ok_thread(ds_mem_validate(harness_device(0)));
        }
        if (i % 150 == 69)
            given_back(h, ds_mem_empty_cache(harness_device(0), NULL));
        if (i % 130 == 59)
            given_back(h, ds_mem_trim(harness_device(0), 20 * MIB, NULL));
    }
    while (count)
        put_away(h, l, held[--count], h->own);
    settle_hand(h, l);
    looks_destroy(l);
    return NULL;
}

/* Threads that hand each other blocks, with this policy. */
static void share_blocks(const ds_mem_config *config, uint64_t seed, uint32_t rounds,
                         int captures) {
    hand h[THREADS];
    pthread_t thread[THREADS];
    shared all = { .hands = h,
                   .rounds = rounds,
                   .captures = captures,
                   .limited = config->limit != 0,
                   .seed = seed };
    begin_with(config);
    harness_warm_up();
    all.common = harness_stream(0, 0);
    for (uint32_t i = 0; i < THREADS; i++)
        h[i] = (hand){ .all = &all,
                       .own = harness_stream(0, 0),
                       .aside = harness_stream(0, 0),
                       .x = i * 77 + seed * 1000003,
                       .base = (i + 1) << 20 };
    for (int i = 0; i < THREADS; i++)
        thread[i] = spawn(work, &h[i]);
    for (int i = 0; i < THREADS; i++)
        join(thread[i]);
    looks *l = looks_create(1 << 17);
    for (int i = 0; i < MAILBOXES; i++)
        if (all.box[i])
            put_away(&h[0], l, all.box[i], all.common);
    settle_hand(&h[0], l);
    looks_destroy(l);
    check_invariants(0);
    for (int i = 0; i < THREADS; i++) {
        ok(ds_stream_destroy(h[i].own));
        ok(ds_stream_destroy(h[i].aside));
    }
    ok(ds_stream_destroy(all.common));
    await_graphs_memory(0);
    finish();
}

static void test_threads_share_streams_and_free_each_others_blocks(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.debug = 0;
        if (preset % 2 == 0)
            c.reuse = DS_REUSE_ALWAYS;
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("%s\n", preset_name(preset));
        share_blocks(&c, (uint64_t)preset, 400, 0);
    }
}

static void test_threads_and_captures_share_memory_under_all_checks(void **state) {
    (void)state;
    uint64_t first = setting("DS_RANDOM_FIRST", 1),
             count = setting("DS_RANDOM_SEEDS", 32 / HARNESS_THIRD);
    begin_reports();
    for (uint64_t seed = first; seed < first + count; seed++) {
        unsigned options = (unsigned)(seed % OPTIONS);
        ds_mem_config c = config_of((int)(seed % PRESETS));
        c.reuse = (int)(seed / PRESETS % 3);
        c.debug = options & CHECKS ? 2 : 0;
        c.poison = (options & POISON) != 0;
        c.guard_bytes = options & GUARDS ? UNIT : 0;
        c.limit = options & SHORTAGE ? 24 * MIB : 0;
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("seed %llu\n", (unsigned long long)seed);
        share_blocks(&c, seed, 80, 1);
        harness_reuse();
    }
    end_reports();
}

/* ---- a fault at each call ---- */

/* Bookkeeping memory: counted, and the n-th request fails. */
static struct { _Atomic long live, calls, fail_at; } books;

static void *book_alloc(size_t size, void *user) {
    (void)user;
    long n = ++books.calls;
    if (n == books.fail_at)
        return NULL;
    void *p = malloc(size);
    if (p)
        books.live++;
    return p;
}

static void book_free(void *p, void *user) {
    (void)user;
    if (p)
        books.live--;
    free(p);
}

/* What failed is counted and must have left a sentence; 1: it went well. */
static int failures;

static int went(ds_result r) {
    if (r >= 0)
        return 1;
    failures++;
    if (!strchr(ds_error_get_last(), ' '))
        fail_msg("%s left no sentence", ds_result_get_name(r));
    return 0;
}

#define WENT(call) went(call)
/* Ends something: when the fault hits, the next try must succeed, unless the first has done it
   all the same. */
#define ENDS(call)                                                                \
    do {                                                                          \
        if (!WENT(call)) {                                                        \
            ds_result again_ = (call);                                            \
            if (again_ != DS_OK && again_ != DS_ERR_INVALID_VALUE &&              \
                again_ != DS_ERR_INVALID_HANDLE)                                  \
                fail_msg("%s is %s again: %s", #call, ds_result_get_name(again_), \
                         ds_error_get_last());                                    \
        }                                                                         \
    } while (0)

static void idle(ds_stream s) {
    if (!WENT(ds_stream_synchronize(s)))
        ok(ds_stream_synchronize(s));
}

/* Returns 0 when the block was not written. */
static int write_if(void *q, size_t size, uint32_t value, ds_stream s) {
    return q && WENT(ds_fill_2d(q, UNIT, value, 4, 1, (size + UNIT - 1) / UNIT, s));
}

static void read_if(looks *l, void *q, size_t size, uint32_t value, ds_stream s) {
    size_t words = (size + UNIT - 1) / UNIT;
    if (!WENT(ds_copy_2d(l->words + l->taken, 4, q, UNIT, 4, words, s)))
        return;
    l->look[l->count++] = (struct look){ l->taken, words, value };
    l->taken += words;
}

static void in_a_capture(ds_stream s, looks *l) {
    ds_graph g = { 0 };
    ds_graph_exec exec = { 0 };
    void *q = NULL;
    harness_watch(s);
    if (!WENT(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL)))
        return;
    size_t count = l->count, taken = l->taken;
    if (WENT(ds_mem_alloc(5000, s, &q))) {
        if (write_if(q, 5000, 55, s))
            read_if(l, q, 5000, 55, s);
        ENDS(ds_mem_free(q));
    }
    int made = WENT(ds_capture_end(s, &g));
    /* when it is still open */
    if (!made)
        DS_IGNORE(ds_capture_end(s, &g));
    int launched =
        made && WENT(ds_graph_instantiate(g, NULL, &exec)) && WENT(ds_graph_launch(exec, s));
    if (!launched) { /* nothing was read */
        l->count = count;
        l->taken = taken;
    }
    idle(s);
    if (exec.id)
        ENDS(ds_graph_exec_destroy(exec));
    if (g.id)
        ENDS(ds_graph_destroy(g));
}

static void short_program(const ds_mem_config *c, looks *l) {
    static const size_t sizes[] = { 700, 5000, 3 << 20, 11 << 20 };

    enum { N = sizeof sizes / sizeof *sizes };

    ds_device d = harness_device(0);
    ds_stream s = { 0 }, t = { 0 };
    ds_pool pool = { 0 };
    void *q[N] = { NULL }, *more = NULL;
    failures = 0;
    DS_IGNORE(ds_mem_configure(d, c));
    if (!WENT(ds_mem_configure(d, c)) && !WENT(ds_mem_configure(d, c)))
        fail_msg("%s", ds_error_get_last());
    if (!WENT(ds_stream_create(&(ds_stream_desc){ .device = d }, &s)))
        ok(ds_stream_create(&(ds_stream_desc){ .device = d }, &s));
    if (!WENT(ds_stream_create(&(ds_stream_desc){ .device = d }, &t)))
        ok(ds_stream_create(&(ds_stream_desc){ .device = d }, &t));
    for (uint32_t i = 0; i < N; i++) {
        if (!WENT(ds_mem_alloc(sizes[i], s, &q[i]))) {
            assert_null(q[i]);
            continue;
        }
        if (!write_if(q[i], sizes[i], i + 1, s))
            continue;
        if (!WENT(ds_stream_wait_stream(t, s)))
            continue;
        read_if(l, q[i], sizes[i], i + 1, t);
        if (!WENT(i % 2 ? ds_mem_record_use(q[i], t) : ds_mem_record_stream(q[i], t))) {
            idle(t); /* what was not recorded must be over */
        }
    }
    for (uint32_t i = 0; i < N; i++)
        if (q[i])
            ENDS(ds_mem_free(q[i]));
    for (uint32_t i = 0; i < N; i++) {
        q[i] = NULL;
        if (WENT(ds_mem_alloc(sizes[i], i % 2 ? s : t, &q[i])))
            (void)write_if(q[i], sizes[i], 100 + i, i % 2 ? s : t);
    }
    (void)WENT(ds_mem_empty_cache(d, NULL));
    (void)WENT(ds_mem_set_limit(d, 40 * MIB));
    /* may be refused by right */
    if (ds_mem_alloc(24 * MIB, s, &more) == DS_OK)
        ENDS(ds_mem_free(more));
    (void)WENT(ds_mem_set_limit(d, 0));
    for (uint32_t i = 0; i < N; i++)
        if (q[i])
            ENDS(ds_mem_free(q[i]));
    if (WENT(ds_pool_create(&(ds_pool_desc){ .device = d, .label = "p" }, &pool))) {
        more = NULL;
        if (WENT(ds_mem_alloc_with(&(ds_mem_request){ .size = 9000, .stream = s, .pool = pool },
                                   &more)))
            ENDS(ds_mem_free(more));
        ENDS(ds_pool_destroy(pool));
    }
    in_a_capture(s, l);
    (void)WENT(ds_mem_trim(d, MIB, NULL));
    ok(ds_mem_validate(d));
    idle(s);
    idle(t);
    if (!looks_right(l))
        fail_msg("a block was used again too early");
    ENDS(ds_stream_destroy(s));
    ENDS(ds_stream_destroy(t));
    (void)WENT(ds_mem_empty_cache(d, NULL));
    (void)WENT(ds_mem_empty_cache(d, NULL));
    await_graphs_memory(0);
    ok(ds_mem_validate(d));
    assert_int_equal(ds_mem_get_allocated(d), 0);
    assert_int_equal(ds_mem_get_reserved(d), 0);
    assert_int_equal(stats_of(0).active[DS_STAT_ALL].current, 0);
}

/* Runs the program with one fault, then without, then looks what is left. 1 when the fault was
   met. */
static int with_a_fault(int preset, const char *fault, long book_fault) {
    if (getenv("DS_RANDOM_VERBOSE"))
        print_message("%s: fault %s, bookkeeping %ld\n", preset_name(preset),
                      fault ? fault : "none", book_fault);
    ds_mem_config c = config_of(preset);
    ds_init_desc init = { .layers = fault ? "fault" : NULL,
                          .fault = fault,
                          .allocator = { book_alloc, book_free, NULL } };
    ds_cpu_desc cpu = { .devices = 2, .workers = 2 };
    int met;
    init.cpu = &cpu;
    c.debug = 1;
    harness_shutdown();
    memset(&books, 0, sizeof books);
    ok(ds_init(&init));
    looks *l = calloc(1, sizeof *l);
    void *words = NULL;
    if (!l)
        abort();
    if (ds_pinned_alloc(1 << 20, &words) < 0)
        ok(ds_pinned_alloc(1 << 20, &words));
    l->words = words;
    l->room = 1 << 18;
    books.calls = 0;
    books.fail_at = book_fault;
    short_program(&c, l);
    met = failures > 0 || (book_fault && books.calls >= book_fault);
    books.fail_at = 0;
    /* else the fault may be still to come */
    if (met)
        short_program(&c, l);
    if (met && failures)
        fail_msg("%s %ld, %s: the second run fails %d times: %s", fault ? fault : "bookkeeping",
                 book_fault, preset_name(preset), failures, ds_error_get_last());
    if (ds_pinned_free(words) < 0)
        ok(ds_pinned_free(words));
    free(l);
    ds_result r = ds_shutdown();
    if (r != DS_OK && !(fault && r == DS_ERR_DRIVER))
        fail_msg("ds_shutdown is %s: %s", ds_result_get_name(r), ds_error_get_last());
    harness_forget();
    AWAIT(!books.live);
    if (books.live)
        fail_msg("%s %ld, %s: %ld pieces of bookkeeping are left", fault ? fault : "bookkeeping",
                 book_fault, preset_name(preset), (long)books.live);
    return met;
}

static void faults(int preset) {
    int quiet = 0;
    /* calls whose failure need not be told are some in a row */
    for (int n = 1; quiet < 12; n += HARNESS_THIRD) {
        char fault[32];
        snprintf(fault, sizeof fault, "*:%d", n);
        quiet = with_a_fault(preset, fault, 0) ? 0 : quiet + 1;
    }
}

static void test_a_fault_at_any_call_of_the_driver_leaks_nothing(void **state) {
    (void)state;
    faults(PRESET_DEFAULT);
}

static void test_a_fault_at_any_call_leaks_nothing_with_plain_segments(void **state) {
    (void)state;
    faults(PRESET_TORCH);
}

static void test_a_shortage_of_bookkeeping_memory_leaks_nothing(void **state) {
    (void)state;
    for (long n = 1; with_a_fault(PRESET_DEFAULT, NULL, n); n += HARNESS_THIRD) {
    }
}

static void test_exhausted_bookkeeping_leaks_nothing_in_plain_segments(void **state) {
    (void)state;
    for (long n = 1; with_a_fault(PRESET_TORCH, NULL, n); n += HARNESS_THIRD) {
    }
}

const struct CMUnitTest tests_alloc_random[] = {
    DS_TEST(test_random_programs_find_in_every_block_what_they_wrote, "torch: test_allocator_fuzz"),
    DS_TEST(test_threads_share_streams_and_free_each_others_blocks,
            "paddle: CUDAMutilThreadMutilStreamTest, torch: test_multi_threads_alloc"),
    DS_TEST(test_threads_and_captures_share_memory_under_all_checks,
            "torch: test_multi_threads_alloc, peers D12"),
    DS_TEST(test_a_fault_at_any_call_of_the_driver_leaks_nothing, "alloc"),
    DS_TEST(test_a_fault_at_any_call_leaks_nothing_with_plain_segments, "alloc"),
    DS_TEST(test_a_shortage_of_bookkeeping_memory_leaks_nothing, "alloc"),
    DS_TEST(test_exhausted_bookkeeping_leaks_nothing_in_plain_segments, "alloc"),
};
const size_t tests_alloc_random_count = sizeof tests_alloc_random / sizeof *tests_alloc_random;
