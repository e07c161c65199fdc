/* Random programs on many streams and threads against a sequential oracle.

   The programs consist of operations that do not commute (each folds its number into h = h*P + n,
   for every word of a buffer), so a lost, doubled or swapped one shows. While a program is
   submitted the oracle computes the same at once, in the order of submission; the only thing that
   makes the asynchronous run agree is that each access to a buffer is ordered after the previous
   one. That order is made in every way the library offers, chosen at random.

   DS_RANDOM_SEEDS: how many seeds (30); DS_RANDOM_FIRST: the first (1), to run a failing one
   again. */
#include "harness.h"
#include "locks.h"
#include "random_program.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PRIME 1099511628211u

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *state, size_t n) {
    return (size_t)(draw(state) % n);
}

/* ---- the fold, as a kernel, a host function and on the oracle ---- */

typedef struct mix_args {
    uint64_t *h;
    uint64_t n;
} mix_args;

static void mix(uint64_t *h, size_t first, size_t count, uint64_t n) {
    for (size_t i = first; i < first + count; i++)
        h[i] = h[i] * PRIME + n + i;
}

static int mix_kernel(size_t first, size_t count, const void *args) {
    const mix_args *a = args;
    mix(a->h, first, count, a->n);
    return 0;
}

static ds_kernel make_mix(size_t grain) {
    static const ds_param params[] = { PARAM(READ_WRITE, mix_args, h), PARAM(VALUE, mix_args, n),
                                       PARAM_FIRST, PARAM_COUNT };
    return harness_kernel("mix", mix_kernel, sizeof(mix_args), params, 4, grain);
}

typedef struct mix_payload {
    uint64_t *h;
    size_t words;
    uint64_t n;
    _Atomic int *alive;
} mix_payload;

static void mix_host(void *user) {
    expect_no_lock();
    mix_payload *p = user;
    mix(p->h, 0, p->words, p->n);
}

static void mix_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    if (status == DS_OK)
        mix_host(user);
}

static void mix_drop(void *user) {
    expect_no_lock();
    mix_payload *p = user;
    _Atomic int *alive = p->alive;
    free(p);
    (*alive)--;
}

static mix_payload *make_payload(uint64_t *h, size_t words, uint64_t n, _Atomic int *alive) {
    mix_payload *p = malloc(sizeof *p);
    if (!p)
        abort();
    *p = (mix_payload){ h, words, n, alive };
    (*alive)++;
    return p;
}

/* ---- one thread submits ---- */

enum { MAX_STREAMS = 14, MAX_BUFFERS = 8, POOL = 6, MAX_DEVICES = 4 };

typedef struct lane { /* a stream of the program */
    ds_stream s;
    int device;       /* number for harness_device */
    int blocking;     /* takes part in the legacy stream's ordering */
    int legacy, mine; /* mine: created here */
} lane;

typedef struct buffer {
    uint64_t *p, *oracle;
    int kind;        /* 0 pinned, else device memory */
    int last;        /* lane of the last access, -1: none */
    ds_event marked; /* recorded right after the last access, or none */
} buffer;

typedef struct program {
    uint64_t seed, rng;
    size_t words;
    lane lanes[MAX_STREAMS];
    buffer buffers[MAX_BUFFERS];
    buffer scratch[MAX_DEVICES]; /* what only the legacy stream of a device works on */
    int lane_count, buffer_count, device_count;
    int reach[MAX_DEVICES][MAX_DEVICES]; /* kernels of the first on memory of the second */
    ds_event pool[MAX_DEVICES][POOL];    /* recorded again and again, a device's own */
    ds_kernel k;
    uint64_t *spare; /* ordinary host memory */
    _Atomic int payloads;
} program;

/* As ok(), and tells the seed. */
static void must(program *p, ds_result r, int line) {
    if (r == DS_OK)
        return;
    print_error("seed %llu, line %d: %s: %s\n", (unsigned long long)p->seed, line,
                ds_result_get_name(r), ds_error_get_last());
    fail();
}

#define MUST(call) must(p, (call), __LINE__)

/* A host function reaches device memory only where that is host memory. */
static void run_mix(program *p, lane *l, buffer *b) {
    uint64_t n = draw(&p->rng) >> 32;
    size_t way = below(&p->rng, 6);
    mix(b->oracle, 0, p->words, n);
    switch (b->kind && !harness_is_cpu() ? 6 : way) {
    case 0:
        MUST(ds_stream_launch_host_func(l->s, mix_host,
                                        make_payload(b->p, p->words, n, &p->payloads), mix_drop));
        break;
    case 1:
        MUST(ds_stream_add_callback(l->s, mix_callback,
                                    make_payload(b->p, p->words, n, &p->payloads), mix_drop));
        break;
    default:
        MUST(ds_kernel_launch(p->k, p->words, &(mix_args){ b->p, n }, sizeof(mix_args), l->s));
        break;
    }
}

/* Through an event of the pool, which the next user records again while this wait may be
   pending. */
static void order_by_pooled_event(program *p, lane *from, lane *to) {
    ds_event e = p->pool[from->device][below(&p->rng, POOL)];
    MUST(ds_event_record(e, from->s));
    MUST(ds_stream_wait_event(to->s, e));
    if (below(&p->rng, 2)) {
        lane *other = &p->lanes[below(&p->rng, (size_t)p->lane_count)];
        if (other->device == from->device)
            MUST(ds_event_record(e, other->s));
    }
}

static void order_by_new_event(program *p, lane *from, lane *to) {
    ds_event e;
    MUST(ds_stream_record_event(from->s, below(&p->rng, 2) ? DS_EVENT_TIMING : 0, &e));
    MUST(ds_stream_wait_event(to->s, e));
    MUST(ds_event_destroy(e));
}

/* Both take part in the legacy stream's ordering: the rule itself does it, if need be with an
   operation in between. */
static void order_by_legacy(program *p, lane *from, lane *to) {
    if (from->legacy || to->legacy)
        return;
    for (int i = 0; i < p->lane_count; i++)
        if (p->lanes[i].legacy && p->lanes[i].device == from->device) {
            run_mix(p, &p->lanes[i], &p->scratch[from->device]);
            return;
        }
}

static void order_after(program *p, buffer *b, int to) {
    int from = b->last;
    lane *f = &p->lanes[from < 0 ? 0 : from], *t = &p->lanes[to];
    if (from < 0 || from == to)
        return;
    if (f->device == t->device && f->blocking && t->blocking && below(&p->rng, 2)) {
        order_by_legacy(p, f, t);
        return;
    }
    if (b->marked.id && below(&p->rng, 2)) {
        MUST(ds_stream_wait_event(t->s, b->marked));
        return;
    }
    switch (below(&p->rng, 16)) {
    case 0:
        MUST(ds_stream_synchronize(f->s));
        break;
    case 1:
    case 2:
    case 3:
        order_by_new_event(p, f, t);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
        order_by_pooled_event(p, f, t);
        break;
    default:
        MUST(ds_stream_wait_stream(t->s, f->s));
        break;
    }
}

/* After the operation: this lane is the last, and sometimes an event says so. */
static void touched(program *p, buffer *b, int by) {
    b->last = by;
    if (b->marked.id) {
        MUST(ds_event_destroy(b->marked));
        b->marked.id = 0;
    }
    if (below(&p->rng, 3) == 0)
        MUST(ds_stream_record_event(p->lanes[by].s, 0, &b->marked));
}

static void copy_all(program *p, lane *l, buffer *to, buffer *from) {
    memcpy(to->oracle, from->oracle, p->words * 8);
    MUST(ds_copy(to->p, from->p, p->words * 8, l->s));
}

/* The first half of every row of 16 words. */
static void copy_half_rows(program *p, lane *l, buffer *to, buffer *from) {
    size_t rows = p->words / 16;
    for (size_t r = 0; r < rows; r++)
        memcpy(to->oracle + r * 16, from->oracle + r * 16, 64);
    MUST(ds_copy_2d(to->p, 128, from->p, 128, 64, rows, l->s));
}

static void fill_some(program *p, lane *l, buffer *b) {
    uint32_t v = (uint32_t)draw(&p->rng);
    size_t first = below(&p->rng, p->words), count = below(&p->rng, p->words - first) + 1;
    for (size_t i = first; i < first + count; i++)
        b->oracle[i] = ((uint64_t)v << 32) | v;
    MUST(ds_fill(b->p + first, v, 4, count * 2, l->s));
}

/* ordinary memory: spare can be used again when the call returns */
static void upload(program *p, lane *l, buffer *b) {
    for (size_t i = 0; i < p->words; i++)
        b->oracle[i] = p->spare[i] = draw(&p->rng);
    MUST(ds_copy(b->p, p->spare, p->words * 8, l->s));
}

/* A stream may go with work pending; the one that takes its place inherits its order. */
static void replace_stream(program *p, lane *l) {
    ds_stream next;
    if (!l->mine)
        return;
    MUST(ds_stream_create(&(ds_stream_desc){ .device = harness_device(l->device),
                                             .flags = l->blocking ? DS_STREAM_BLOCKING : 0,
                                             .priority = -(int)below(&p->rng, 6) },
                          &next));
    MUST(ds_stream_wait_stream(next, l->s));
    MUST(ds_stream_destroy(l->s));
    l->s = next;
}

static void run_one(program *p) {
    int to = (int)below(&p->rng, (size_t)p->lane_count);
    lane *l = &p->lanes[to];
    size_t bi = below(&p->rng, (size_t)p->buffer_count),
           ci = below(&p->rng, (size_t)p->buffer_count);
    buffer *b = &p->buffers[bi], *c = &p->buffers[ci];
    size_t what = below(&p->rng, 32);
    if (what == 31) {
        replace_stream(p, l);
        return;
    }
    if (what > 10 && b->kind && !p->reach[l->device][b->kind - 1])
        what = 8;
    order_after(p, b, to);
    if (what < 8 && bi != ci) {
        order_after(p, c, to);
        if (what < 4 && p->words >= 16)
            copy_half_rows(p, l, b, c);
        else
            copy_all(p, l, b, c);
        touched(p, c, to);
    } else if (what < 10)
        fill_some(p, l, b);
    else if (what == 10)
        upload(p, l, b);
    else
        run_mix(p, l, b);
    touched(p, b, to);
}

static void add_lane(program *p, ds_stream s, int device, int blocking, int legacy, int mine) {
    p->lanes[p->lane_count++] = (lane){ s, device, blocking, legacy, mine };
}

static void make_lanes(program *p) {
    size_t count = 1 + below(&p->rng, 8);
    for (int d = 0; d < p->device_count; d++) {
        ds_stream s;
        MUST(ds_stream_get_legacy(harness_device(d), &s));
        add_lane(p, s, d, 1, 1, 0);
    }
    ds_stream own;
    MUST(ds_stream_get_per_thread(harness_device(0), &own));
    add_lane(p, own, 0, 1, 0, 0);
    for (size_t i = 0; i < count; i++) {
        ds_stream s;
        int d = (int)below(&p->rng, (size_t)p->device_count), blocking = (int)below(&p->rng, 2);
        MUST(ds_stream_create(&(ds_stream_desc){ .device = harness_device(d),
                                                 .flags = blocking ? DS_STREAM_BLOCKING : 0,
                                                 .priority = -(int)below(&p->rng, 6) },
                              &s));
        add_lane(p, s, d, blocking, 0, 1);
    }
}

static void make_buffer(program *p, buffer *b, int kind) {
    size_t bytes = p->words * 8;
    void *mem;
    *b = (buffer){ .kind = kind, .last = -1, .oracle = malloc(bytes) };
    assert_non_null(b->oracle);
    if (kind)
        MUST(ds_device_alloc(harness_device(kind - 1), bytes, &mem));
    else
        MUST(ds_pinned_alloc(bytes, &mem));
    b->p = mem;
    for (size_t i = 0; i < p->words; i++)
        b->oracle[i] = p->spare[i] = draw(&p->rng);
    MUST(ds_copy(b->p, p->spare, bytes, p->lanes[0].s));
    MUST(ds_stream_synchronize(p->lanes[0].s));
}

/* Reads the buffer behind its last access, with no other synchronisation, and compares. */
static void check_buffer(program *p, buffer *b, const char *what, int number) {
    int to = (int)below(&p->rng, (size_t)p->lane_count);
    order_after(p, b, to);
    MUST(ds_copy(p->spare, b->p, p->words * 8, p->lanes[to].s));
    for (size_t i = 0; i < p->words; i++)
        if (p->spare[i] != b->oracle[i]) {
            print_error("seed %llu: %s %d, word %zu of %zu differs from the oracle\n",
                        (unsigned long long)p->seed, what, number, i, p->words);
            fail();
        }
}

static void drop_buffer(program *p, buffer *b) {
    if (b->marked.id)
        MUST(ds_event_destroy(b->marked));
    MUST(b->kind ? ds_device_free(b->p) : ds_pinned_free(b->p));
    free(b->oracle);
}

static int legacy_lane(const program *p, int device) {
    for (int i = 0; i < p->lane_count; i++)
        if (p->lanes[i].legacy && p->lanes[i].device == device)
            return i;
    return 0;
}

static void begin(program *p, uint64_t seed) {
    static const size_t words[] = { 1, 8, 300, 2500, 5000 }; /* 8 bytes to 40 KiB */
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->rng = seed * 0x2545f4914f6cdd1du;
    p->words = words[below(&p->rng, 5)];
    p->device_count = harness_device_count() < MAX_DEVICES ? harness_device_count() : MAX_DEVICES;
    p->buffer_count = 2 + (int)below(&p->rng, MAX_BUFFERS - 1);
    p->spare = malloc(p->words * 8);
    assert_non_null(p->spare);
    p->k = make_mix(below(&p->rng, 2) ? 0 : 512);
    for (int i = 0; i < p->device_count; i++)
        for (int k = 0; k < p->device_count; k++)
            MUST(ds_device_can_access_peer(harness_device(i), harness_device(k), &p->reach[i][k]));
    make_lanes(p);
    for (int i = 0; i < p->buffer_count; i++)
        make_buffer(p, &p->buffers[i], (int)below(&p->rng, (size_t)p->device_count + 1));
    for (int d = 0; d < p->device_count; d++) {
        make_buffer(p, &p->scratch[d], d + 1);
        p->scratch[d].last = legacy_lane(p, d);
        for (int i = 0; i < POOL; i++)
            MUST(ds_event_create(i % 2 ? DS_EVENT_TIMING : 0, NULL, &p->pool[d][i]));
    }
}

static void finish(program *p) {
    for (int i = 0; i < p->buffer_count; i++)
        check_buffer(p, &p->buffers[i], "buffer", i);
    for (int d = 0; d < p->device_count; d++)
        check_buffer(p, &p->scratch[d], "scratch", d);
    for (int i = 0; i < p->lane_count; i++)
        if (p->lanes[i].mine)
            MUST(ds_stream_destroy(p->lanes[i].s));
    for (int d = 0; d < p->device_count; d++) {
        MUST(ds_device_synchronize(harness_device(d)));
        for (int i = 0; i < POOL; i++)
            MUST(ds_event_destroy(p->pool[d][i]));
        drop_buffer(p, &p->scratch[d]);
    }
    for (int i = 0; i < p->buffer_count; i++)
        drop_buffer(p, &p->buffers[i]);
    MUST(ds_kernel_destroy(p->k));
    /* every destructor runs: else this hangs */
    while (p->payloads)
        sched_yield();
    free(p->spare);
}

void random_program(uint64_t seed) {
    static program p;
    begin(&p, seed);
    for (size_t ops = 50 + below(&p.rng, 250); ops > 0; ops--)
        run_one(&p);
    finish(&p);
}

static uint64_t from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_programs_agree_with_the_oracle(void **state) {
    (void)state;
    uint64_t first = from_environment("DS_RANDOM_FIRST", 1),
             count = from_environment("DS_RANDOM_SEEDS", 30);
    for (uint64_t seed = first; seed < first + count; seed++)
        random_program(seed);
}

/* ---- many threads submit ---- */

enum { THREADS = 4, SHARED = 10, STEPS = 150, OWN_STREAMS = 4, SHARED_WORDS = 40 };

/* A buffer that all threads use. The lock makes the order of submission the order of the oracle. */
typedef struct shared_buffer {
    pthread_mutex_t lock;
    uint64_t *p, oracle[SHARED_WORDS];
    ds_stream last;  /* of whichever thread, or none */
    ds_event marked; /* after the last access, or none */
} shared_buffer;

typedef struct crowd {
    uint64_t seed;
    shared_buffer buffers[SHARED];
    ds_stream streams[THREADS][OWN_STREAMS];
    ds_kernel k;
    _Atomic int payloads;
} crowd;

typedef struct member {
    crowd *c;
    int number;
    uint64_t rng;
} member;

/* Order after the last access; the lock is held. */
static void shared_order(member *m, shared_buffer *b, ds_stream to) {
    if (b->marked.id && (b->last.id == 0 || below(&m->rng, 2))) {
        ok_thread(ds_stream_wait_event(to, b->marked));
        return;
    }
    if (b->last.id)
        ok_thread(ds_stream_wait_stream(to, b->last));
}

/* A thread's own default stream means another queue in another thread, so others can only wait
   for its event. */
static void shared_touched(member *m, shared_buffer *b, ds_stream by, int own) {
    if (b->marked.id) {
        ok_thread(ds_event_destroy(b->marked));
        b->marked.id = 0;
    }
    if (own || below(&m->rng, 2))
        ok_thread(ds_stream_record_event(by, 0, &b->marked));
    b->last = own ? (ds_stream){ 0 } : by;
}

static void shared_step(member *m) {
    crowd *c = m->c;
    size_t i = below(&m->rng, SHARED), j = below(&m->rng, SHARED),
           which = below(&m->rng, OWN_STREAMS + 2);
    size_t low = i < j ? i : j, high = i < j ? j : i;
    int own = which == OWN_STREAMS, two = i != j && below(&m->rng, 4) == 0;
    ds_stream s;
    if (own)
        ok_thread(ds_stream_get_per_thread(harness_device(0), &s));
    else if (which > OWN_STREAMS)
        ok_thread(ds_stream_get_legacy(harness_device(0), &s)); /* all threads put work on it */
    else
        s = c->streams[m->number][which];
    shared_buffer *b = &c->buffers[i], *from = &c->buffers[j];
    uint64_t n = draw(&m->rng) >> 32;
    if (two) { /* always the lower one first, so that two threads cannot wait for each other */
        pthread_mutex_lock(&c->buffers[low].lock);
        pthread_mutex_lock(&c->buffers[high].lock);
        shared_order(m, from, s);
    } else
        pthread_mutex_lock(&b->lock);
    shared_order(m, b, s);
    if (two) {
        memcpy(b->oracle, from->oracle, sizeof b->oracle);
        ok_thread(ds_copy(b->p, from->p, sizeof b->oracle, s));
        shared_touched(m, from, s, own);
    } else {
        mix(b->oracle, 0, SHARED_WORDS, n);
        if (below(&m->rng, 5) == 0)
            ok_thread(ds_stream_launch_host_func(
                s, mix_host, make_payload(b->p, SHARED_WORDS, n, &c->payloads), mix_drop));
        else
            ok_thread(
                ds_kernel_launch(c->k, SHARED_WORDS, &(mix_args){ b->p, n }, sizeof(mix_args), s));
    }
    shared_touched(m, b, s, own);
    if (two) {
        pthread_mutex_unlock(&c->buffers[high].lock);
        pthread_mutex_unlock(&c->buffers[low].lock);
    } else
        pthread_mutex_unlock(&b->lock);
    if (below(&m->rng, 60) == 0)
        ok_thread(ds_stream_synchronize(s));
}

static void *member_main(void *user) {
    for (int i = 0; i < STEPS; i++)
        shared_step(user);
    return NULL; /* with work pending, on the thread's own stream too */
}

static void begin_crowd(crowd *c, uint64_t seed) {
    uint64_t rng = seed;
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->k = make_mix(0);
    for (int i = 0; i < SHARED; i++) {
        void *p;
        ok(ds_pinned_alloc(SHARED_WORDS * 8, &p));
        c->buffers[i].p = p;
        assert_int_equal(pthread_mutex_init(&c->buffers[i].lock, NULL), 0);
        for (int w = 0; w < SHARED_WORDS; w++)
            c->buffers[i].p[w] = c->buffers[i].oracle[w] = draw(&rng);
    }
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < OWN_STREAMS; i++) {
            int d = (int)below(&rng, (size_t)harness_device_count());
            ok(ds_stream_create(
                &(ds_stream_desc){ .device = harness_device(d), .flags = (unsigned)below(&rng, 2) },
                &c->streams[t][i]));
        }
}

static void finish_crowd(crowd *c) {
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < OWN_STREAMS; i++)
            ok(ds_stream_destroy(c->streams[t][i]));
    for (int d = 0; d < harness_device_count(); d++)
        ok(ds_device_synchronize(harness_device(d)));
    for (int i = 0; i < SHARED; i++) {
        shared_buffer *b = &c->buffers[i];
        for (int w = 0; w < SHARED_WORDS; w++)
            if (b->p[w] != b->oracle[w]) {
                print_error("seed %llu: shared buffer %d, word %d differs from the oracle\n",
                            (unsigned long long)c->seed, i, w);
                fail();
            }
        if (b->marked.id)
            ok(ds_event_destroy(b->marked));
        ok(ds_pinned_free(b->p));
        pthread_mutex_destroy(&b->lock);
    }
    ok(ds_kernel_destroy(c->k));
    while (c->payloads)
        sched_yield();
}

static void random_crowd(uint64_t seed) {
    static crowd c;
    pthread_t threads[THREADS];
    member members[THREADS];
    begin_crowd(&c, seed);
    for (int t = 0; t < THREADS; t++) {
        members[t] = (member){ &c, t, seed * 1000 + (uint64_t)t };
        assert_int_equal(pthread_create(&threads[t], NULL, member_main, &members[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    finish_crowd(&c);
}

static void test_random_programs_of_many_threads_agree_with_the_oracle(void **state) {
    (void)state;
    uint64_t first = from_environment("DS_RANDOM_FIRST", 1),
             count = from_environment("DS_RANDOM_SEEDS", 30);
    for (uint64_t seed = first; seed < first + count; seed++)
        random_crowd(seed);
}

const struct CMUnitTest tests_random[] = {
    DS_TEST(test_random_programs_agree_with_the_oracle, "peers b.1"),
    DS_TEST(test_random_programs_of_many_threads_agree_with_the_oracle, "peers b.1"),
};
const size_t tests_random_count = sizeof tests_random / sizeof tests_random[0];
