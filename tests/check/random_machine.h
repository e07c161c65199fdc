/* random_machine.h - what random programs use, and their calls.

   A machine is devstream from ds_init to ds_shutdown, with the check layer on, and streams, events,
   memory, kernels and graphs on two devices of one driver. It runs programs one after another; a
   program begins when all earlier work is awaited. Each call gets its own line, so that reports
   name the step.

   Threads: steps of thread 1 run on a second thread; the first one waits meanwhile. */
#ifndef RANDOM_MACHINE_H
#define RANDOM_MACHINE_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "random_oracle.h"
#include "random_text.h"

#define SITE_FILE "random.c"

enum { LINES = 1000, MAX_LIVES = 64, GRAPH_LINES = 900000, LABEL = 24 };

typedef struct args {
    void *ptr[2];
    uint64_t count;
} args;

/* What a host function accesses. */
typedef struct host_access {
    void *ptr;
    size_t bytes;
    int line;
    int writes;
    atomic_int done;
} host_access;

/* A linear graph. */
typedef struct graph {
    step node[NODES_OF_GRAPH];
    size_t nodes;
    ds_graph_exec exec;
    int last; /* its last launch */
} graph;

/* A block from its allocation to its free. */
typedef struct life {
    int queue; /* of the stream that allocated it; NO_NODE: pinned memory */
    cells cells;
    int alloc_step;
    int free_step;
    int alloc;          /* node before which everything is that the owner may rely on */
    int free;           /* the same of the free; NO_NODE: it lives */
    int last_of_owner;  /* last operation of the stream before the allocation */
    int use[MAX_STEPS]; /* nodes of ds_mem_record_use */
    size_t uses;
    int later[MAX_STEPS]; /* streams of ds_mem_record_stream */
    size_t laters;
} life;

typedef struct machine {
    setting set;
    size_t unit;
    ds_device device[2];
    ds_stream stream[STREAMS];
    ds_stream alias[STREAMS]; /* a second handle of the stream, or 0 */
    int queue[STREAMS];       /* of the oracle, in the running program */
    char name[STREAMS][LABEL];
    char label[ORACLE_QUEUES][LABEL]; /* of the oracle's queues */
    unsigned streams_made;
    ds_event event[EVENTS];
    int recorded[EVENTS]; /* node; NO_NODE: never */
    int released[EVENTS]; /* the same of tokens */
    void *block[BLOCKS];
    void *memory[BLOCKS]; /* block, before it was aligned */
    int cached;           /* 1: memory of the caching allocator */
    ds_device home[BLOCKS];
    int live[BLOCKS]; /* number of its life; NO_NODE: none */
    life life[MAX_LIVES];
    size_t lives;
    form forms[FORMS];
    ds_kernel kernel[FORMS];
    graph graph[GRAPHS];
    oracle oracle;
    ds_check_point point[ORACLE_NODES];
    int unrecorded[MAX_STEPS]; /* 1: the step waits for an event that was never recorded */
    int ran[MAX_STEPS];        /* node of the step that has its accesses; NO_NODE: did not run */
} machine;

static size_t machine_unit; /* for extents_fn */

/* ---- a second thread ------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int started;
    void (*fn)(void *user); /* NULL: nothing to do */
    void *user;
    int quit;
} helper = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void *helper_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&helper.lock);
    while (!helper.quit) {
        if (helper.fn) {
            helper.fn(helper.user);
            helper.fn = NULL;
            pthread_cond_broadcast(&helper.changed);
        } else {
            pthread_cond_wait(&helper.changed, &helper.lock);
        }
    }
    pthread_mutex_unlock(&helper.lock);
    return NULL;
}

/* Runs a function on the second thread and waits for it. */
static void helper_run(void (*fn)(void *user), void *user) {
    pthread_mutex_lock(&helper.lock);
    if (!helper.started) {
        helper.quit = 0;
        assert_int_equal(pthread_create(&helper.thread, NULL, helper_main, NULL), 0);
        helper.started = 1;
    }
    helper.fn = fn;
    helper.user = user;
    pthread_cond_broadcast(&helper.changed);
    while (helper.fn)
        pthread_cond_wait(&helper.changed, &helper.lock);
    pthread_mutex_unlock(&helper.lock);
}

static void helper_end(void) {
    if (!helper.started)
        return;
    pthread_mutex_lock(&helper.lock);
    helper.quit = 1;
    pthread_cond_broadcast(&helper.changed);
    pthread_mutex_unlock(&helper.lock);
    pthread_join(helper.thread, NULL);
    helper.started = 0;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const char nothing_ptx[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry wide( .param .u64 p0, .param .u64 p1, .param .u64 p2 ) { ret; }\n"
    ".visible .entry narrow( .param .u64 p0, .param .u64 p1, .param .u32 p2 ) { ret; }\n";

static int nothing(size_t first, size_t count, const void *user) {
    (void)first;
    (void)count;
    (void)user;
    return 0;
}

static void state_extents(const void *user, size_t *out_bytes) {
    const args *a = user;
    out_bytes[0] = (size_t)a->count * machine_unit;
    out_bytes[1] = 2 * machine_unit;
    out_bytes[2] = 0;
}

static ds_kernel kernel_make(const form *f) {
    ds_kernel kernel;
    ds_param params[] = {
        { .kind = f->kind[0], .offset = offsetof(args, ptr), .size = sizeof(void *) },
        { .kind = f->kind[1],
          .offset = offsetof(args, ptr) + sizeof(void *),
          .size = sizeof(void *) },
        { .kind = DS_PARAM_VALUE, .offset = offsetof(args, count), .size = f->wide ? 8 : 4 }
    };
    ds_extent extents[3] = { f->extent[0], f->extent[1], { .kind = DS_EXTENT_NONE } };
    ds_kernel_desc desc = { .name = "nothing",
                            .cpu_fn = nothing,
                            .args_size = sizeof(args),
                            .params = params,
                            .param_count = 3,
                            .cuda = { .image = nothing_ptx, .entry = f->wide ? "wide" : "narrow" },
                            .extents = f->by_fn ? NULL : extents,
                            .extents_fn = f->by_fn ? state_extents : NULL };
    ok(ds_kernel_create(&desc, &kernel));
    return kernel;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void *address(const machine *m, const operand *at) {
    return (char *)m->block[at->block] + at->offset;
}

static ds_result perform_kernel(machine *m, const step *s, ds_stream stream, int line) {
    args a = { .ptr = { address(m, &s->to[0]), address(m, &s->to[1]) }, .count = s->count };
    if (s->given) {
        ds_result r = (ds_check_set_extents)(s->extent, s->given);
        if (r < 0)
            return r;
    }
    ds_site_set(SITE_FILE, line);
    if (s->kind == STEP_KERNEL)
        return (ds_kernel_launch)(m->kernel[s->form], s->items, &a, sizeof a, stream);
    unsigned items = (unsigned)s->items;
    ds_grid grid = { .grid = { items % 2 ? items : items / 2 }, .block = { items % 2 ? 1 : 2 } };
    return (ds_kernel_launch_grid)(m->kernel[s->form], &grid, &a, sizeof a, stream);
}

static ds_result perform_batch(machine *m, const step *s, ds_stream stream, int line) {
    void *dst[PARTS];
    const void *src[PARTS];
    size_t sizes[PARTS];
    for (size_t i = 0; i < s->parts; i++) {
        dst[i] = address(m, &s->to[i]);
        src[i] = address(m, &s->from[i]);
        sizes[i] = s->to[i].width;
    }
    ds_site_set(SITE_FILE, line);
    return (ds_copy_batch)(dst, src, sizes, s->parts, stream);
}

/* Copies and fills that return when they are done, on the legacy stream of the current device. */
static ds_result perform_sync(machine *m, const step *s, int line) {
    const operand *there = s->kind == STEP_COPY_SYNC ? &s->from[0] : &s->to[0];
    ds_device home = m->home[there->block];
    ds_result r = ds_device_set_current(home.type == DS_DEVICE_HOST ? m->device[0] : home);
    if (r < 0)
        return r;
    void *to = address(m, &s->to[0]);
    ds_site_set(SITE_FILE, line);
    if (s->kind == STEP_COPY_SYNC)
        return (ds_copy_sync)(to, address(m, &s->from[0]), s->to[0].width);
    return (ds_fill_sync)(to, 7, s->value_size, s->to[0].width / s->value_size);
}

static void host_access_run(void *user) {
    host_access *a = user;
    ds_site_set(SITE_FILE, a->line);
    if (a->writes)
        DS_IGNORE((ds_check_host_write)(a->ptr, a->bytes));
    else
        DS_IGNORE((ds_check_host_read)(a->ptr, a->bytes));
    atomic_store(&a->done, 1);
}

static int host_access_run_closure(void *user) {
    host_access_run(user);
    return 0;
}

static void host_access_run_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    (void)status;
    host_access_run(user);
}

/* Enqueues a host function, and waits until it has run: the layer sees its access when it runs. The
   layer does not see this wait. */
static ds_result perform_host_func(machine *m, const step *s, ds_stream stream, int line) {
    host_access a = { .ptr = address(m, &s->to[0]),
                      .bytes = s->to[0].width,
                      .line = line,
                      .writes = s->variant % 2 };
    ds_result r;
    atomic_init(&a.done, 0);
    if (s->variant < 2)
        r = (ds_stream_launch_host_func)(stream, host_access_run, &a, NULL);
    else if (s->variant < 4)
        r = (ds_stream_launch_closure)(stream, host_access_run_closure, &a, 0, NULL);
    else
        r = (ds_stream_add_callback)(stream, host_access_run_callback, &a, NULL);
    while (r == DS_OK && !atomic_load(&a.done))
        sched_yield();
    return r;
}

static ds_stream handle(const machine *m, const step *s) {
    if (s->stream == HOST)
        return (ds_stream){ 0 };
    return s->alias && m->alias[s->stream].id ? m->alias[s->stream] : m->stream[s->stream];
}

static ds_result perform_copy(const step *s, void *to, const void *from, ds_device to_device,
                              ds_device from_device, ds_stream stream) {
    if (s->variant == 0)
        return (ds_copy_with)(to, from, s->to[0].width, 0, stream);
    if (s->variant == 1 && to_device.type != DS_DEVICE_HOST && from_device.type != DS_DEVICE_HOST)
        return (ds_copy_peer)(to, to_device, from, from_device, s->to[0].width, stream);
    return (ds_copy)(to, from, s->to[0].width, stream);
}

static ds_result perform_access(machine *m, const step *s, int line) {
    ds_stream stream = handle(m, s);
    const operand *to = &s->to[0];
    const operand *from = &s->from[0];
    ds_site_set(SITE_FILE, line);
    switch (s->kind) {
    case STEP_COPY:
        return perform_copy(s, address(m, to), address(m, from), m->home[to->block],
                            m->home[from->block], stream);
    case STEP_COPY_2D:
        return (ds_copy_2d)(address(m, to), to->pitch, address(m, from), from->pitch, to->width,
                            to->rows, stream);
    case STEP_COPY_BATCH:
        return perform_batch(m, s, stream, line);
    case STEP_FILL:
        return (ds_fill)(address(m, to), 7, s->value_size, to->width / s->value_size, stream);
    case STEP_FILL_2D:
        return (ds_fill_2d)(address(m, to), to->pitch, 7, s->value_size, to->width / s->value_size,
                            to->rows, stream);
    case STEP_KERNEL:
    case STEP_GRID:
        return perform_kernel(m, s, stream, line);
    case STEP_GRAPH:
        return (ds_graph_launch)(m->graph[s->graph].exec, stream);
    case STEP_HOST_FUNC:
        return perform_host_func(m, s, stream, line);
    case STEP_HOST_READ:
        return (ds_check_host_read)(address(m, to), to->width);
    case STEP_HOST_WRITE:
        return (ds_check_host_write)(address(m, to), to->width);
    default:
        return perform_sync(m, s, line);
    }
}

/* Makes a second handle of a stream, with the same label. */
static ds_stream alias_make(ds_stream stream, const char *label) {
    ds_stream_native native;
    ds_stream alias;
    ok(ds_stream_export(stream, &native));
    ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &alias));
    ok(ds_stream_set_label(alias, label));
    return alias;
}

/* Makes a stream in place of the one that was there. One blocking and one free stream of each
   device have a second handle. */
static void stream_make(machine *m, int stream) {
    stream_role role = role_of_stream(stream);
    ds_device device = m->device[device_of_stream(stream)];
    ds_stream s;
    snprintf(m->name[stream], LABEL, "s%u", m->streams_made++);
    if (role == ROLE_LEGACY)
        ok(ds_stream_get_legacy(device, &s));
    else if (role == ROLE_PER_THREAD)
        ok(ds_stream_get_per_thread(device, &s));
    else
        ok(ds_stream_create(
            &(ds_stream_desc){ .device = device,
                               .flags = role == ROLE_BLOCKING ? DS_STREAM_BLOCKING : 0 },
            &s));
    ok(ds_stream_set_label(s, m->name[stream]));
    m->stream[stream] = s;
    int place = stream % STREAMS_PER_DEVICE;
    if (place == ROLE_BLOCKING || place == ROLE_FREE)
        m->alias[stream] = alias_make(s, m->name[stream]);
}

static void stream_end(machine *m, int stream) {
    if (role_of_stream(stream) < ROLE_BLOCKING)
        return;
    if (m->alias[stream].id)
        ok(ds_stream_destroy(m->alias[stream]));
    ok(ds_stream_destroy(m->stream[stream]));
}

/* Waits of the host for a stream: with and without a deadline, and by queries. */
static ds_result perform_stream_sync(const step *s, ds_stream stream, int line) {
    ds_result r;
    if (s->variant == 0)
        return (ds_stream_synchronize_for)(stream, 60 * (uint64_t)1000000000);
    if (s->variant > 1)
        return (ds_stream_synchronize)(stream);
    do {
        ds_site_set(SITE_FILE, line);
        r = (ds_stream_query)(stream);
    } while (r == DS_NOT_READY && sched_yield() == 0);
    return r;
}

static ds_result perform_event_sync(const step *s, ds_event event, int line) {
    ds_result r;
    if (s->variant == 0)
        return (ds_event_synchronize_for)(event, 60 * (uint64_t)1000000000);
    if (s->variant > 1)
        return (ds_event_synchronize)(event);
    do {
        ds_site_set(SITE_FILE, line);
        r = (ds_event_query)(event);
    } while (r == DS_NOT_READY && sched_yield() == 0);
    return r;
}

static ds_result perform_new(machine *m, const step *s) {
    if (s->kind == STEP_NEW_EVENT) {
        ok(ds_event_destroy(m->event[s->event]));
        ok(ds_event_create(0, NULL, &m->event[s->event]));
    } else {
        stream_end(m, s->stream);
        stream_make(m, s->stream);
    }
    return DS_OK;
}

static ds_result perform_order(machine *m, const step *s, int line) {
    ds_stream stream = handle(m, s);
    ds_event event = m->event[s->event];
    const void *token = &m->released[s->event];
    ds_site_set(SITE_FILE, line);
    switch (s->kind) {
    case STEP_RECORD:
        return s->variant ? (ds_event_record)(event, stream)
                          : (ds_event_record_external)(event, stream);
    case STEP_WAIT:
        return s->variant || m->recorded[s->event] == NO_NODE
                   ? (ds_stream_wait_event)(stream, event)
                   : (ds_stream_wait_event_external)(stream, event);
    case STEP_WAIT_STREAM:
        return (ds_stream_wait_stream)(stream, m->stream[s->other]);
    case STEP_SYNC:
        return perform_stream_sync(s, stream, line);
    case STEP_SYNC_EVENT:
        return perform_event_sync(s, event, line);
    case STEP_SYNC_DEVICE:
        return (ds_device_synchronize)(m->device[s->stream]);
    case STEP_DECLARE:
        return (ds_check_declare_order)(m->stream[s->other], stream);
    case STEP_RELEASE:
        return (ds_check_release)(token);
    case STEP_ACQUIRE:
        return (ds_check_acquire)(token);
    default:
        return perform_new(m, s);
    }
}

static ds_result perform_lifetime(machine *m, const step *s, int line) {
    int block = s->to[0].block;
    int pinned = block >= FIRST_PINNED;
    void *ptr = m->block[block];
    size_t bytes = block_size(block);
    ds_stream stream = m->stream[s->stream];
    ds_site_set(SITE_FILE, line);
    switch (s->kind) {
    case STEP_ALLOC:
        if (pinned)
            return (ds_mem_pinned_alloc)(bytes, &m->block[block]);
        m->home[block] = m->device[device_of_stream(s->stream)];
        return (ds_mem_alloc)(bytes, stream, &m->block[block]);
    case STEP_FREE:
        return pinned ? (ds_mem_pinned_free)(ptr) : (ds_mem_free)(ptr);
    case STEP_USE:
        return pinned ? (ds_mem_pinned_record_use)(ptr, stream) : (ds_mem_record_use)(ptr, stream);
    default:
        return pinned ? (ds_mem_pinned_record_use)(ptr, stream)
                      : (ds_mem_record_stream)(ptr, stream);
    }
}

/* ---- a machine ------------------------------------------------------------------------------- */

static void memory_make(machine *m) {
    for (int i = 0; i < BLOCKS; i++) {
        m->live[i] = NO_NODE;
        m->home[i] = i < FIRST_PINNED ? m->device[i == 3] : (ds_device){ DS_DEVICE_HOST, 0 };
        if (m->set.lifetimes)
            continue;
        ds_stream owner = m->stream[(i == 3 ? STREAMS_PER_DEVICE : 0) + ROLE_FREE];
        if (i < FIRST_PINNED && m->cached)
            ok(ds_mem_alloc(1024, owner, &m->memory[i]));
        else if (i < FIRST_PINNED)
            ok(ds_device_alloc(m->home[i], 1024, &m->memory[i]));
        else if (m->cached)
            ok(ds_mem_pinned_alloc(1024, &m->memory[i]));
        else
            ok(ds_pinned_alloc(1024, &m->memory[i]));
        m->block[i] =
            (void *)(((uintptr_t)m->memory[i] + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    }
}

static void memory_free(machine *m) {
    for (int i = 0; i < BLOCKS && !m->set.lifetimes; i++)
        if (i < FIRST_PINNED && m->cached)
            ok(ds_mem_free(m->memory[i]));
        else if (i < FIRST_PINNED)
            ok(ds_device_free(m->memory[i]));
        else if (m->cached)
            ok(ds_mem_pinned_free(m->memory[i]));
        else
            ok(ds_pinned_free(m->memory[i]));
}

/* Draws the nodes of a graph as steps of a program, and captures them. */
static void graph_make(machine *m, graph *g, int number, uint64_t seed) {
    static program p;
    program_draw(&p, seed, m->set, m->forms);
    p.streams = 1;
    p.stream[0] = ROLE_FREE;
    p.plain = 1;
    g->nodes = 1 + below(&p.rng, NODES_OF_GRAPH);
    ok(ds_capture_begin(m->stream[ROLE_FREE], DS_CAPTURE_GLOBAL));
    for (size_t i = 0; i < g->nodes; i++) {
        step *s = &g->node[i];
        do {
            memset(s, 0, sizeof *s);
            access_draw(&p, s);
            s->alias = 0;
        } while (s->kind > STEP_KERNEL || s->kind == STEP_COPY_SYNC || s->kind == STEP_FILL_SYNC);
        ok(perform_access(m, s, GRAPH_LINES + number * NODES_OF_GRAPH + (int)i));
    }
    ds_graph captured;
    ok(ds_capture_end(m->stream[ROLE_FREE], &captured));
    ok(ds_graph_instantiate(captured, NULL, &g->exec));
    ok(ds_graph_destroy(captured));
}

/* Starts devstream and makes everything that programs use, the same for the same seed. */
static void machine_begin(machine *m, setting set, uint64_t seed) {
    static ds_cpu_desc cpu = { .devices = 2, .workers = 2 };
    uint64_t rng = seed;
    memset(m, 0, sizeof *m);
    m->set = set;
    m->unit = machine_unit = set.lifetimes ? 32 : 1;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = set.handover ? "quiet,threads" : "quiet" }));
    for (int i = 0; i < 2; i++)
        m->device[i] = set.gpu ? ds_cuda(i) : ds_cpu(i);
    for (int i = 0; i < STREAMS; i++)
        stream_make(m, i);
    for (int i = 0; i < EVENTS; i++)
        ok(ds_event_create(0, NULL, &m->event[i]));
    forms_draw(m->forms, &rng, m->unit, set.inexact);
    for (int i = 0; i < FORMS; i++)
        m->kernel[i] = kernel_make(&m->forms[i]);
    m->cached = seed % 2 == 1;
    memory_make(m);
    for (int i = 0; i < GRAPHS && !set.lifetimes; i++)
        graph_make(m, &m->graph[i], i, draw(&rng));
}

static void machine_end(machine *m) {
    for (int i = 0; i < 2; i++)
        ok(ds_device_synchronize(m->device[i]));
    for (int i = 0; i < GRAPHS && !m->set.lifetimes; i++)
        ok(ds_graph_exec_destroy(m->graph[i].exec));
    memory_free(m);
    for (int i = 0; i < FORMS; i++)
        ok(ds_kernel_destroy(m->kernel[i]));
    for (int i = 0; i < EVENTS; i++)
        ok(ds_event_destroy(m->event[i]));
    for (int i = 0; i < STREAMS; i++)
        stream_end(m, i);
    ok(ds_shutdown());
}

#endif
