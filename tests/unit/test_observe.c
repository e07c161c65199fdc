/* What a layer sees: a layer of this test records every driver call, and its observer what never
   reaches a driver. The recorded operations are carried out a second time, on copies of all
   memory that was recorded. Nothing has escaped when after each step of a program every copy has
   the bytes of the memory itself, and when the recorded blocks are those that the program has. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ds__driver;
struct ds__seen;
static const struct ds__driver *record_layer(const struct ds__driver *next, int backend);
static void record_seen(const struct ds__seen *seen);
#define DS__TEST_LAYERS(X) X("record", record_layer, record_seen)
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_rng.h"
#include "devstream_comm.h"
#include "core/layers.h"
#include "unit.h"
#ifdef DEVSTREAM_CUDA
#include <cuda_runtime_api.h>
#endif

/* ---- the record ---- */

enum { MOST = 4096, DEVICES = 2 };

typedef struct block {
    const char *ptr;
    size_t bytes;
    ds_device device;
    ds_stream stream;
} block;

/* Memory of a driver, with a copy on which recorded operations are carried out. */
typedef struct memory {
    char *base, *copy;
    size_t bytes;
    int backend, device;
} memory;

static struct {
    pthread_mutex_t lock;
    const ds__driver *next[2];
    ds__driver table[2];
    block block[MOST]; /* those that the program has */
    size_t blocks;
    memory memory[MOST];
    size_t memories;
    size_t seen[DS__SEEN_KINDS];
    size_t calls, ops, together; /* calls of submit, those that succeeded */
    int replay;                  /* carry out what is recorded */
    int wrong;                   /* the line of this file where the record was found to be wrong */
    uint32_t strangers;          /* operands that are in no memory that was recorded */
    uint32_t strays;             /* operands in a segment of the allocator but in no block */
    ds__seen last;               /* the last one of any kind but blocks */
    ds__seen_operand operand[16];
    size_t operands;
    const void *token;
    pthread_t acquirer;
    size_t records; /* of activity */
    ds_activity record[16];
    const char *fn; /* of the last allocation */
    int line;
} rec = { .lock = PTHREAD_MUTEX_INITIALIZER };

static memory *memory_of(const void *ptr) {
    for (size_t i = 0; i < rec.memories; i++)
        if ((const char *)ptr >= rec.memory[i].base &&
            (const char *)ptr < rec.memory[i].base + rec.memory[i].bytes)
            return &rec.memory[i];
    return NULL;
}

/* Reads memory; the host cannot read that of a GPU. */
static void peek(const memory *m, void *to, const void *from, size_t bytes) {
    if (m->backend == 1)
        memcpy(to, from, bytes);
#ifdef DEVSTREAM_CUDA
    int now = 0;
    if (m->backend == 0 && (cudaGetDevice(&now) || cudaSetDevice(m->device) ||
                            cudaMemcpy(to, from, bytes, cudaMemcpyDefault) || cudaSetDevice(now)))
        rec.wrong = __LINE__;
#endif
}

static void memory_in(int backend, int device, void *base, size_t bytes) {
    pthread_mutex_lock(&rec.lock);
    memory m = { base, malloc(bytes), bytes, backend, device };
    peek(&m, m.copy, base, bytes);
    rec.memory[rec.memories++] = m;
    pthread_mutex_unlock(&rec.lock);
}

static void memory_out(const void *base) {
    pthread_mutex_lock(&rec.lock);
    memory *m = memory_of(base);
    if (m) {
        free(m->copy);
        *m = rec.memory[--rec.memories];
    }
    pthread_mutex_unlock(&rec.lock);
}

/* Forgets all memory that begins in a range. */
static void memory_out_all(const char *at, size_t bytes) {
    for (size_t i = 0; i < rec.memories; i++)
        if ((const char *)rec.memory[i].base >= at &&
            (const char *)rec.memory[i].base < at + bytes) {
            memory_out(rec.memory[i].base);
            i = SIZE_MAX; /* from the beginning */
        }
}

/* Where an operand's copy is; memory of the program's own is its own copy. */
static char *copy_of(const void *ptr) {
    memory *m = memory_of(ptr);
    return m ? m->copy + ((const char *)ptr - m->base) : (char *)(uintptr_t)ptr;
}

static int in_block(const char *ptr, size_t bytes) {
    for (size_t i = 0; i < rec.blocks; i++)
        if (ptr >= rec.block[i].ptr && ptr + bytes <= rec.block[i].ptr + rec.block[i].bytes)
            return 1;
    return 0;
}

/* An operand of device memory is in memory that was recorded, and in a block of the allocator or
   in memory that is no segment of it. */
static void check_operand(const void *ptr, size_t bytes, int held) {
    rec.strangers += held && !memory_of(ptr);
    rec.strays += held && memory_of(ptr) && !in_block(ptr, bytes);
}

/* The kernel of the programs. */
typedef struct add_args {
    int32_t *data;
    int32_t by;
} add_args;

static int add(size_t first, size_t count, const void *args) {
    const add_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->data[i] += a->by;
    return 0;
}

static void replay_op(const ds__op *op) {
    if (op->kind == DS__OP_COPY) {
        for (size_t y = 0; y < op->u.copy.height; y++)
            memmove(copy_of((char *)op->u.copy.dst + y * op->u.copy.dst_pitch),
                    copy_of((const char *)op->u.copy.src + y * op->u.copy.src_pitch),
                    op->u.copy.width);
    } else if (op->kind == DS__OP_FILL) {
        for (size_t y = 0; y < op->u.fill.height; y++)
            for (size_t x = 0; x < op->u.fill.width; x++)
                memcpy(copy_of((char *)op->u.fill.dst + y * op->u.fill.pitch) +
                           x * op->u.fill.value_size,
                       &op->u.fill.value, op->u.fill.value_size);
    } else if (op->kind == DS__OP_KERNEL && op->u.kernel.kernel->cpu_fn == add) {
        add_args args = *(const add_args *)op->u.kernel.args;
        args.data = (int32_t *)(void *)copy_of(args.data);
        add(0, op->u.kernel.items, &args);
    } else if (op->kind == DS__OP_GRAPH) {
        for (uint32_t i = 0; i < op->u.graph.body->count; i++) {
            const ds__node *n = op->u.graph.body->node[i];
            if (n &&
                (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL || n->kind == DS_NODE_KERNEL))
                replay_op(&n->op);
        }
    }
}

static void note_op(const ds__op *op) {
    pthread_mutex_lock(&rec.lock);
    rec.ops++;
    if (op->kind == DS__OP_COPY) {
        check_operand(op->u.copy.dst, op->u.copy.width,
                      ds__place_of(op, DS__OP_DST) >= DS__AT_DEVICE);
        check_operand(op->u.copy.src, op->u.copy.width,
                      ds__place_of(op, DS__OP_SRC) >= DS__AT_DEVICE);
    } else if (op->kind == DS__OP_FILL) {
        check_operand(op->u.fill.dst, op->u.fill.width * op->u.fill.value_size,
                      ds__place_of(op, DS__OP_DST) >= DS__AT_DEVICE);
    }
    if (rec.replay)
        replay_op(op);
    pthread_mutex_unlock(&rec.lock);
}

/* Every entry: passed on. What gives and takes memory and what carries operations is recorded. */
#define ENTRY(backend, entry, parameters, arguments)         \
    static ds_result record_##backend##_##entry parameters { \
        return rec.next[backend]->entry arguments;           \
    }
#define ENTRY_CUDA(entry, parameters, arguments) ENTRY(0, entry, parameters, arguments)
#define ENTRY_CPU(entry, parameters, arguments) ENTRY(1, entry, parameters, arguments)
DS__ENTRIES(ENTRY_CUDA)
DS__ENTRIES(ENTRY_CPU)

#define WRAPPERS(b)                                                                              \
    static ds_result take_submit_##b(void *stream, const ds__op *op) {                           \
        rec.calls++;                                                                             \
        ds_result r = rec.next[b]->submit(stream, op);                                           \
        if (r == DS_OK && !ds__captures_open())                                                  \
            note_op(op);                                                                         \
        return r;                                                                                \
    }                                                                                            \
    static ds_result take_copy_now_##b(const ds__op *op) {                                       \
        ds_result r = rec.next[b]->copy_now(op);                                                 \
        if (r == DS_OK)                                                                          \
            note_op(op);                                                                         \
        return r;                                                                                \
    }                                                                                            \
    static ds_result take_together_##b(void *const *streams, size_t count,                       \
                                       void (*run_fn)(void *user), void *user, int *out_ran) {   \
        (void)streams, (void)count, (void)run_fn, (void)user;                                    \
        rec.together++;                                                                          \
        *out_ran = 0;                                                                            \
        return DS_OK;                                                                            \
    }                                                                                            \
    static ds_result take_memory_##b(int device, size_t size, void **out) {                      \
        ds_result r = rec.next[b]->memory_alloc(device, size, out);                              \
        if (r == DS_OK)                                                                          \
            memory_in(b, device, *out, size);                                                    \
        return r;                                                                                \
    }                                                                                            \
    static ds_result take_host_##b(size_t size, void **out) {                                    \
        ds_result r = rec.next[b]->host_alloc(size, out);                                        \
        if (r == DS_OK)                                                                          \
            memory_in(b, 0, *out, size);                                                         \
        return r;                                                                                \
    }                                                                                            \
    static ds_result take_map_##b(int device, void *at, size_t size, size_t page) {              \
        ds_result r = rec.next[b]->space_map(device, at, size, page);                            \
        for (size_t i = 0; r == DS_OK && i < size; i += page)                                    \
            memory_in(b, device, (char *)at + i, page);                                          \
        return r;                                                                                \
    }                                                                                            \
    static ds_result take_unmap_##b(int device, void *at, size_t size) {                         \
        memory_out_all(at, size);                                                                \
        return rec.next[b]->space_unmap(device, at, size);                                       \
    }                                                                                            \
    static ds_result take_release_##b(ds_memory_kind kind, int device, void *ptr, size_t size) { \
        memory_out(ptr);                                                                         \
        return rec.next[b]->memory_release(kind, device, ptr, size);                             \
    }
WRAPPERS(0)
WRAPPERS(1)

static const ds__driver *record_layer(const ds__driver *next, int backend) {
    ds__driver *t = &rec.table[backend];
    rec.next[backend] = next;
    *t = *next;
#define MEMBER(entry, parameters, arguments) \
    t->entry = backend ? record_1_##entry : record_0_##entry;
    DS__ENTRIES(MEMBER)
#undef MEMBER
    t->inline_bytes = 0;
    t->submit = backend ? take_submit_1 : take_submit_0;
    t->copy_now = backend ? take_copy_now_1 : take_copy_now_0;
    t->run_together = backend ? take_together_1 : take_together_0;
    t->memory_alloc = backend ? take_memory_1 : take_memory_0;
    t->host_alloc = backend ? take_host_1 : take_host_0;
    t->space_map = backend ? take_map_1 : take_map_0;
    t->space_unmap = backend ? take_unmap_1 : take_unmap_0;
    t->memory_release = backend ? take_release_1 : take_release_0;
    return t;
}

static void seen_block(const ds__seen *seen) {
    size_t i = 0;
    while (i < rec.blocks && rec.block[i].ptr != seen->ptr)
        i++;
    if (seen->kind == DS__SEEN_ALLOC) {
        rec.fn = seen->fn;
        rec.line = seen->site.line;
        if (i != rec.blocks) /* it was not given back before */
            rec.wrong = __LINE__;
        rec.block[rec.blocks++] = (block){ seen->ptr, seen->bytes, seen->device, seen->stream };
    } else if (seen->kind == DS__SEEN_FREE) {
        if (i == rec.blocks || rec.block[i].bytes != seen->bytes)
            rec.wrong = __LINE__;
        else
            rec.block[i] = rec.block[--rec.blocks];
    }
}

static void record_seen(const ds__seen *seen) {
    pthread_mutex_lock(&rec.lock);
    rec.seen[seen->kind]++;
    if (seen->kind <= DS__SEEN_FREE_DONE)
        seen_block(seen);
    else
        rec.last = *seen;
    if (seen->kind == DS__SEEN_BEGIN || seen->kind == DS__SEEN_END) {
        rec.operands = seen->operands;
        for (size_t i = 0; i < seen->operands && i < 16; i++)
            rec.operand[i] = seen->operand[i];
    }
    for (size_t i = 0; seen->kind == DS__SEEN_ACTIVITY && i < seen->activity->count; i++)
        if (rec.records < 16)
            rec.record[rec.records++] = seen->activity->records[i];
    if (seen->kind == DS__SEEN_ACQUIRE) {
        rec.token = seen->ptr;
        rec.acquirer = pthread_self();
    }
    pthread_mutex_unlock(&rec.lock);
}

/* ---- helpers ---- */

static int begin(void **state) {
    (void)state;
    static ds_cpu_desc cpu;
    cpu.devices = DEVICES;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "record" }));
    memset(rec.seen, 0, sizeof rec.seen);
    rec.ops = rec.together = rec.strangers = rec.strays = 0;
    rec.wrong = 0;
    rec.blocks = 0;
    rec.replay = 1;
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
    assert_int_equal(rec.wrong, 0);
    assert_int_equal(rec.blocks, 0);
    assert_int_equal(ds__observer_is_set(), 0);
    assert_int_equal(atomic_load(&ds__range_listeners), 0);
    while (rec.memories)
        free(rec.memory[--rec.memories].copy);
    return 0;
}

/* Each device that there is: those of the CPU, and of the stand-in for CUDA if it is linked. */
static int each_device(int i, ds_device *out) {
    int gpus = 0;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &gpus));
    *out = i < gpus ? ds_cuda(i) : ds_cpu(i - gpus);
    return i < gpus + DEVICES;
}

#define EACH_DEVICE(device) \
    ds_device device;       \
    for (int i_ = 0; each_device(i_, &device); i_++)

static ds_stream stream_on(ds_device device) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    return s;
}

/* What operations of the library write is known from the operands of its begin. */
static void explain_operands(void) {
    pthread_mutex_lock(&rec.lock);
    for (size_t i = 0; i < rec.operands; i++)
        if (rec.operand[i].writes)
            peek(memory_of(rec.operand[i].ptr), copy_of(rec.operand[i].ptr), rec.operand[i].ptr,
                 rec.operand[i].bytes);
    pthread_mutex_unlock(&rec.lock);
}

/* All blocks have the bytes of their copies. */
static void nothing_has_escaped(int line) {
    static char now[65536];
    for (size_t i = 0; i < rec.blocks; i++) {
        const memory *m = memory_of(rec.block[i].ptr);
        assert_non_null(m);
        assert_true(rec.block[i].bytes <= sizeof now);
        peek(m, now, rec.block[i].ptr, rec.block[i].bytes);
        if (memcmp(now, copy_of(rec.block[i].ptr), rec.block[i].bytes) != 0)
            fail_msg("line %d: a block of %zu bytes was written by no recorded operation", line,
                     rec.block[i].bytes);
    }
    assert_int_equal(rec.wrong, 0);
    assert_int_equal(rec.strangers, 0);
    assert_int_equal(rec.strays, 0);
}

#define NOTHING_HAS_ESCAPED() nothing_has_escaped(__LINE__)

static size_t seen(int kind) {
    size_t n = rec.seen[kind];
    rec.seen[kind] = 0;
    return n;
}

/* ---- tests ---- */

/* A random program of allocations, copies, fills, kernels, random numbers, graphs and
   collectives, looked at after each step. */
enum { BLOCKS = 12, WORDS = 600, STEPS = 400 };

typedef struct program {
    unsigned random;
    ds_device device;
    ds_stream stream[2];
    ds_rng rng;
    ds_kernel kernel;
    int has_kernel;
    int32_t *data[BLOCKS];
    size_t live;
} program;

static unsigned draw(program *p, unsigned n) {
    p->random = p->random * 1103515245u + 12345u;
    return (p->random >> 16) % n;
}

static void step_allocate(program *p, unsigned i, ds_stream s) {
    (void)seen(DS__SEEN_FREE);
    if (p->data[i]) {
        ok(ds_mem_free(p->data[i]));
        p->data[i] = NULL;
        p->live--;
        assert_int_equal(seen(DS__SEEN_FREE), 1);
        return;
    }
    size_t bytes = WORDS * 4 + draw(p, 5) * 512;
    ok(ds_mem_alloc(bytes, s, (void **)&p->data[i]));
    p->live++;
    assert_int_equal(seen(DS__SEEN_ALLOC), 1);
    int known = 0;
    for (size_t k = 0; k < rec.blocks; k++)
        known |= rec.block[k].ptr == (char *)p->data[i] && rec.block[k].bytes == bytes &&
                 rec.block[k].stream.id == s.id;
    assert_true(known);
}

static void step_work(program *p, unsigned what, int32_t *to, int32_t *from, ds_stream s) {
    static int32_t host[WORDS];
    size_t n = 1 + draw(p, WORDS - 1);
    int32_t value = (int32_t)draw(p, 1000);
    switch (what) {
    case 0:
        ok(ds_copy(to, from, n * 4, s));
        break;
    case 1:
        ok(ds_fill(to, (uint32_t)value, 4, n, s));
        break;
    case 2:
        for (int k = 0; k < WORDS; k++)
            host[k] = value + k;
        ok(ds_copy(to, host, n * 4, s));
        break;
    case 3:
        ok(ds_copy(host, from, n * 4, s));
        break;
    case 4:
        ok(ds_copy_2d(to, 80, from, 40, 40, 10, s));
        break;
    default:
        if (p->has_kernel)
            ok(ds_kernel_launch(p->kernel, n, &(add_args){ to, value }, sizeof(add_args), s));
    }
}

static void step_graph(program *p, int32_t *to, int32_t *from, ds_stream s) {
    ds_graph g;
    ds_graph_exec e;
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_fill(to, 7, 4, 20, s));
    ok(ds_copy(from, to, 60, s));
    if (p->has_kernel)
        ok(ds_kernel_launch(p->kernel, 10, &(add_args){ from, 3 }, sizeof(add_args), s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &e));
    (void)seen(DS__SEEN_LAUNCH);
    ok(ds_graph_launch(e, s));
    ok(ds_graph_launch(e, s));
    assert_int_equal(seen(DS__SEEN_LAUNCH), 2);
    assert_int_equal(rec.last.exec.id, e.id);
    assert_int_equal(rec.last.stream.id, s.id);
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(e));
    ok(ds_graph_destroy(g));
}

static void step_random(program *p, int32_t *to, ds_stream s) {
    size_t n = 1 + draw(p, WORDS - 1);
    ok(ds_rng_uniform(p->rng, ds_float32(), to, n, 0, 1, s));
    assert_int_equal(seen(DS__SEEN_BEGIN), 1);
    assert_int_equal(seen(DS__SEEN_END), 1);
    assert_int_equal(rec.operands, 1);
    assert_ptr_equal(rec.operand[0].ptr, to);
    assert_int_equal(rec.operand[0].bytes, n * 4);
    assert_true(rec.operand[0].writes && !rec.operand[0].reads);
    ok(ds_stream_synchronize(s));
    explain_operands();
}

static void run_program(ds_device device, unsigned seed) {
    program p = { .random = seed, .device = device };
    for (int i = 0; i < 2; i++)
        p.stream[i] = stream_on(device);
    ok(ds_rng_create(&(ds_rng_desc){ .device = device }, &p.rng));
    p.has_kernel = device.type == DS_DEVICE_CPU;
    ds_param params[] = {
        { .kind = DS_PARAM_READ_WRITE, .offset = offsetof(add_args, data), .size = 8 },
        { .kind = DS_PARAM_VALUE, .offset = offsetof(add_args, by), .size = 4 }
    };
    ds_kernel_desc k = { .name = "add",
                         .cpu_fn = add,
                         .args_size = sizeof(add_args),
                         .params = params,
                         .param_count = 2 };
    ok(ds_kernel_create(&k, &p.kernel));
    for (int step = 0; step < STEPS; step++) {
        unsigned what = draw(&p, 10);
        unsigned i = draw(&p, BLOCKS);
        unsigned j = draw(&p, BLOCKS);
        ds_stream s = p.stream[draw(&p, 2)];
        if (what >= 8 || !p.data[i] || !p.data[j])
            step_allocate(&p, i, s);
        else if (what < 6)
            step_work(&p, what, p.data[i], p.data[j], s);
        else if (what == 6)
            step_random(&p, p.data[i], s);
        else if (i != j)
            step_graph(&p, p.data[i], p.data[j], s);
        ok(ds_device_synchronize(device));
        NOTHING_HAS_ESCAPED();
        assert_int_equal(rec.blocks, p.live);
    }
    for (int i = 0; i < BLOCKS; i++)
        ok(ds_mem_free(p.data[i]));
    assert_int_equal(rec.blocks, 0);
    ok(ds_kernel_destroy(p.kernel));
    ok(ds_rng_destroy(p.rng));
    for (int i = 0; i < 2; i++)
        ok(ds_stream_destroy(p.stream[i]));
}

static void test_no_operation_and_no_allocation_escapes(void **state) {
    (void)state;
    EACH_DEVICE(device) run_program(device, (unsigned)i_ + 1);
}

/* Small reductions are operations too: without the layer the CPU driver would run them on the
   thread of the caller. */
static void test_collectives_tell_their_operands(void **state) {
    (void)state;
    int64_t shape[1] = { 64 };
    ds_device device[2] = { ds_cpu(0), ds_cpu(1) };
    ds_stream s[2];
    ds_tensor *t[2], *out[2];
    for (int i = 0; i < 2; i++) {
        s[i] = stream_on(device[i]);
        ok(ds_tensor_alloc(ds_int32(), 1, shape, s[i], &t[i]));
        ok(ds_tensor_alloc(ds_int32(), 1, shape, s[i], &out[i]));
        ok(ds_fill(ds_tensor_address(t[i]), 5 + (uint32_t)i, 4, 64, s[i]));
        ok(ds_fill(ds_tensor_address(out[i]), 0, 4, 64, s[i]));
    }
    ds_comm_options o = { .streams = s, .stream_count = 2 };
    (void)seen(DS__SEEN_BEGIN);
    (void)seen(DS__SEEN_END);
    size_t before = rec.ops;
    ok(ds_comm_all_reduce((const ds_tensor *const *)t, (const ds_tensor *const *)out, 2,
                          DS_REDUCE_SUM, &o));
    assert_int_equal(seen(DS__SEEN_BEGIN), 1);
    assert_int_equal(seen(DS__SEEN_END), 1);
    assert_string_equal(rec.last.fn, "ds_comm_all_reduce");
    assert_int_equal(rec.last.result, DS_OK);
    assert_int_equal(rec.together, 0);
    assert_true(rec.ops > before);
    int found[2][2] = { { 0 } };
    for (size_t i = 0; i < rec.operands; i++)
        for (int k = 0; k < 2; k++) {
            if (rec.operand[i].bytes != sizeof(int32_t) * 64)
                continue;
            found[0][k] |= rec.operand[i].ptr == ds_tensor_address(t[k]) && rec.operand[i].reads;
            found[1][k] |= rec.operand[i].ptr == ds_tensor_address(out[k]) && rec.operand[i].writes;
        }
    for (int k = 0; k < 2; k++)
        assert_true(found[0][k] && found[1][k]);
    for (int k = 0; k < 2; k++)
        ok(ds_stream_synchronize(s[k]));
    explain_operands();
    NOTHING_HAS_ESCAPED();
    for (int k = 0; k < 2; k++) {
        int32_t first;
        memcpy(&first, ds_tensor_address(out[k]), sizeof first);
        assert_int_equal(first, 11);
        ok(ds_tensor_free(t[k]));
        ok(ds_tensor_free(out[k]));
        ok(ds_stream_destroy(s[k]));
    }
}

static void test_waits_of_the_host_are_seen_with_their_results(void **state) {
    (void)state;
    EACH_DEVICE(device) {
        ds_stream s = stream_on(device);
        ds_event e;
        void *ptr;
        ok(ds_event_create(0, NULL, &e));
        ok(ds_event_record(e, s));
        (void)seen(DS__SEEN_WAIT);
        ok(ds_stream_synchronize(s));
        assert_int_equal(rec.last.stream.id, s.id);
        ok(ds_event_synchronize(e));
        assert_int_equal(rec.last.event.id, e.id);
        assert_int_equal(rec.last.result, DS_OK);
        ok(ds_device_synchronize(device));
        assert_int_equal(rec.last.device.type, device.type);
        assert_int_equal(rec.last.device.index, device.index);
        assert_int_equal(rec.last.stream.id | rec.last.event.id, 0);
        assert_int_equal(seen(DS__SEEN_WAIT), 3);
        ok(ds_device_alloc(device, 100, &ptr));
        ok(ds_device_free(ptr));
        assert_int_equal(seen(DS__SEEN_WAIT), 1);
        assert_int_equal(rec.last.device.type, device.type);
        ok(ds_event_destroy(e));
        ok(ds_stream_destroy(s));
    }
}

static void test_uses_by_other_streams_are_seen(void **state) {
    (void)state;
    EACH_DEVICE(device) {
        ds_stream s = stream_on(device);
        ds_stream other = stream_on(device);
        void *ptr;
        ok(ds_mem_alloc(1000, s, &ptr));
        (void)seen(DS__SEEN_USE);
        ok(ds_mem_record_use(ptr, s)); /* its own */
        assert_int_equal(seen(DS__SEEN_USE), 0);
        ok(ds_mem_record_use(ptr, other));
        ok(ds_mem_record_stream(ptr, other));
        assert_int_equal(seen(DS__SEEN_USE), 2);
        assert_ptr_equal(rec.last.ptr, ptr);
        assert_int_equal(rec.last.stream.id, other.id);
        (void)seen(DS__SEEN_FREE);
        (void)seen(DS__SEEN_FREE_DONE);
        ok(ds_mem_free(ptr));
        assert_int_equal(seen(DS__SEEN_FREE), 1);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(other));
        ok(ds_stream_destroy(other));
        ok(ds_stream_destroy(s));
    }
}

static void test_an_allocation_is_seen_with_its_site(void **state) {
    (void)state;
    ds_stream s = stream_on(ds_cpu(0));
    void *ptr;
    for (int i = 0; i < 3; i++) { /* the second one is a cached block */
        int line = __LINE__ + 1;
        ok(ds_mem_alloc(1000, s, &ptr));
        assert_string_equal(rec.fn, "ds_mem_alloc");
        assert_int_equal(rec.line, line);
        ok(ds_mem_free(ptr));
    }
    ok(ds_mem_pinned_alloc(1000, &ptr));
    assert_int_equal(rec.blocks, 1);
    assert_int_equal(rec.block[0].device.type, DS_DEVICE_HOST);
    ok(ds_mem_pinned_free(ptr));
    assert_int_equal(rec.blocks, 0);
    ok(ds_stream_destroy(s));
}

static void hook(const ds_range_event *event, void *user) {
    (void)event;
    ++*(int *)user;
}

/* And with one that comes and goes, without which nobody listens at the end. */
static void test_ranges_are_seen_without_a_hook(void **state) {
    (void)state;
    int heard = 0;
    ds_stream s = stream_on(ds_cpu(0)); /* before the start there is nobody who hears */
    (void)seen(DS__SEEN_RANGE);
    ds_range r;
    assert_int_equal(ds_range_push("outer"), 0);
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_range_mark("mark"));
    ok(ds_range_start("start", &r));
    ok(ds_range_end(r));
    assert_int_equal(seen(DS__SEEN_RANGE), 5);
    ok(ds_range_set_hook(hook, &heard));
    ok(ds_range_mark("mark"));
    ok(ds_range_set_hook(NULL, NULL));
    ok(ds_range_mark("mark"));
    assert_int_equal(seen(DS__SEEN_RANGE), 2);
    assert_int_equal(heard, 1);
    ok(ds_stream_destroy(s));
}

static void host_fn(void *user) {
    *(int *)user = 1;
}

/* What the calling thread did before a host function comes before what that does. */
static void test_host_functions_are_handed_over(void **state) {
    (void)state;
    EACH_DEVICE(device) {
        ds_stream s = stream_on(device);
        int done = 0;
        (void)seen(DS__SEEN_RELEASE);
        (void)seen(DS__SEEN_ACQUIRE);
        rec.token = NULL;
        ok(ds_stream_launch_host_func(s, host_fn, &done, NULL));
        ok(ds_stream_synchronize(s));
        assert_int_equal(done, 1);
        ok(ds_device_synchronize(device));
        pthread_mutex_lock(&rec.lock);
        const void *token = rec.token;
        int elsewhere = !pthread_equal(rec.acquirer, pthread_self());
        pthread_mutex_unlock(&rec.lock);
        assert_ptr_equal(token, &done);
        assert_true(elsewhere);
        assert_int_equal(seen(DS__SEEN_ACQUIRE), 1);
        ok(ds_stream_destroy(s));
    }
}

/* The order of the layers is fixed, whatever the order of the names: the recording layer sees a
   call that a fault keeps from the driver, and its failure. */
static void count_records(const ds_activity_batch *batch, void *user) {
    *(size_t *)user += batch->count;
}

static void test_activity_is_seen_with_begin_and_end(void **state) {
    (void)state;
    EACH_DEVICE(device) {
        size_t given = 0;
        void *ptr;
        ds_stream s = stream_on(device);
        ok(ds_mem_alloc(1 << 20, s, &ptr));
        ok(ds_stream_synchronize(s));
        rec.records = 0;
        (void)seen(DS__SEEN_ACTIVITY);
        ok(ds_activity_start(&(ds_activity_desc){ .fn = count_records, .user = &given }));
        ok(ds_fill(ptr, 1, 4, 1000, s));
        ok(ds_copy(ptr, (char *)ptr + 4096, 4000, s));
        ok(ds_stream_synchronize(s));
        ok(ds_activity_stop());
        assert_true(seen(DS__SEEN_ACTIVITY) >= 1);
        assert_int_equal(given, 2);
        assert_int_equal(rec.records, 2);
        for (int i = 0; i < 2; i++) {
            const ds_activity *a = &rec.record[i];
            assert_int_equal(a->kind, i ? DS_ACTIVITY_COPY : DS_ACTIVITY_FILL);
            assert_int_equal(a->stream.id, s.id);
            assert_true(a->begin_ns && a->end_ns >= a->begin_ns);
        }
        assert_true(rec.record[0].end_ns <= rec.record[1].begin_ns);
        assert_true(rec.record[0].correlation_id < rec.record[1].correlation_id);
        ok(ds_mem_free(ptr));
        ok(ds_stream_destroy(s));
    }
}

static void test_the_order_of_layers_is_fixed(void **state) {
    (void)state;
    const char *lists[] = { "fault,record", "record,fault" };
    for (int i = 0; i < 2; i++) {
        ok(ds_shutdown());
        ok(ds_init(&(ds_init_desc){ .layers = lists[i], .fault = "submit:1" }));
        ds_stream s = stream_on(ds_cpu(0));
        ds_event e;
        ok(ds_event_create(0, NULL, &e));
        rec.ops = rec.calls = 0;
        assert_int_equal(ds_event_record(e, s), DS_ERR_DRIVER);
        assert_int_equal(rec.calls, 1);
        assert_int_equal(rec.ops, 0);
        ok(ds_event_record(e, s));
        assert_int_equal(rec.ops, 1);
        ok(ds_event_destroy(e));
        ok(ds_stream_destroy(s));
    }
}

static void test_without_layers_nothing_is_seen(void **state) {
    (void)state;
    ok(ds_shutdown());
    ok(ds_init(NULL));
    memset(rec.seen, 0, sizeof rec.seen);
    ds_stream s = stream_on(ds_cpu(0));
    void *ptr;
    rec.ops = 0;
    ok(ds_mem_alloc(1000, s, &ptr));
    ok(ds_fill(ptr, 1, 4, 10, s));
    ok(ds_mem_free(ptr));
    ok(ds_stream_synchronize(s));
    ok(ds_range_mark("mark"));
    for (int i = 0; i < DS__SEEN_KINDS; i++)
        assert_int_equal(rec.seen[i], 0);
    assert_int_equal(rec.ops, 0);
    ok(ds_stream_destroy(s));
}

static void is_missing(ds_result r) {
    assert_int_equal(r, DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(),
                           "the layer \"check\" is not in this program: include devstream_check.h "
                           "where DEVSTREAM_IMPLEMENTATION is defined"));
}

/* This program has no devstream_check.h. */
static void test_the_check_layer_needs_its_header(void **state) {
    ds_stream s;
    (void)state;
    ok(ds_shutdown());

    is_missing(ds_init(&(ds_init_desc){ .layers = "check" }));
    is_missing(ds_init(&(ds_init_desc){ .check = "1" }));
    setenv("DEVSTREAM_CHECK", "1", 1);
    is_missing(ds_stream_create(NULL, &s));
    unsetenv("DEVSTREAM_CHECK");

    ok(ds_init(NULL));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_no_operation_and_no_allocation_escapes),
        TEST(test_collectives_tell_their_operands),
        TEST(test_waits_of_the_host_are_seen_with_their_results),
        TEST(test_uses_by_other_streams_are_seen),
        TEST(test_an_allocation_is_seen_with_its_site),
        TEST(test_ranges_are_seen_without_a_hook),
        TEST(test_host_functions_are_handed_over),
        TEST(test_activity_is_seen_with_begin_and_end),
        TEST(test_the_order_of_layers_is_fixed),
        TEST(test_without_layers_nothing_is_seen),
        TEST(test_the_check_layer_needs_its_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
