/* rng/fill.h - public fill functions, and shutdown of the generators.

   Implements ds_rng_fill and the functions for single distributions. ds__rng_fill checks a
   request (ds__rng_request) and enqueues it, ds__rng_put enqueues its kernel and takes its words,
   and ds__rng_cut divides large fills as torch does.

   Invariants: a fill takes its words from the generator or, on a capturing stream, from the
   graph's object. A refused fill takes none. If a divided fill fails after its first part, the
   words of the enqueued parts stay taken. `changes` rises if the generator's offset has changed.
   Locks: the generator's lock is held from the checks to the submit. Under it come the graph's
   lock (ds__capture_attachment), ds__rng.making and the driver's submit.
   Threads: any thread. */
#ifndef DS__RNG_FILL_H
#define DS__RNG_FILL_H

#include "../base/observe.h"
#include "../core/internal.h"
#include "kernel_arith.h"
#include "kernel_cpu.h"
#include "kernel.h"
#include "generator.h"
#include "generator_api.h"
#include "fill_types.h"
#include "graph.h"
#include "order.h"

/* The kernel of a fill and the source of its words: the generator, or the graph that its stream
   captures. The generator is locked. */
typedef struct ds__rng_way {
    ds__generator *generator;
    ds__stream *stream;
    ds__rng_graph *graph;
    ds_kernel kernel;
    uint64_t *offset;
} ds__rng_way;

/* Returns the number of threads t of a fill with `total` elements; 1 in the mapping by element. */
static uint32_t ds__rng_stride(const ds__generator *g, const ds__rng_args *a, uint64_t total) {
    if (g->mapping != DS_RNG_TORCH || a->what == DS__RNG_PERMUTATION)
        return 1;
    uint64_t blocks = (total + 255) / 256;
    uint64_t most = (uint64_t)g->multiprocessors * (uint64_t)(g->threads / 256);
    return (uint32_t)(256 * (blocks < most ? blocks : most));
}

/* Enqueues a fill of `count` elements from `first` on, and takes the words of `total` elements. If
   count is 0, only takes them. */
static ds_result ds__rng_put(const ds__rng_way *w, ds__rng_args *a, uint64_t first, uint64_t count,
                             uint64_t total) {
    const ds__generator *g = w->generator;
    uint64_t each = (uint64_t)1 << ds__rng_shift(a);
    uint64_t skip = 0;
    a->count = count;
    a->stride = ds__rng_stride(g, a, total);
    uint64_t taken = ds__rng_taken(a, total);
    ds_result r = ds__rng_room(*w->offset, taken);
    if (r == DS_OK && count) {
        if (a->what == DS__RNG_PERMUTATION) {
            a->before = first;
            a->rows = count;
        } else {
            skip = a->stride > 1 ? 0 : first / each;
            a->before = a->stride > 1 ? 0 : first % each;
            a->rows = (a->before + count - 1) / (each * a->stride) + 1;
        }
        a->state = w->graph ? w->graph->state : NULL;
        a->seed = w->graph ? 0 : g->seed;
        a->start = *w->offset / 4 + skip;
        uint64_t items = g->device.type == DS_DEVICE_CUDA
                             ? a->rows * a->stride
                             : (count + DS__RNG_ITEM - 1) / DS__RNG_ITEM;
        r = ds__rng_submit(w->stream, w->kernel, (size_t)items, a,
                           w->graph ? w->graph->capture : 0);
    }
    if (r == DS_OK)
        *w->offset += taken;
    return r;
}

/* The most bytes that torch indexes with 32 bits; a test makes it smaller. */
#ifndef DS__RNG_INDEXED
#define DS__RNG_INDEXED INT32_MAX
#endif
/* Divides a fill into halves, like torch, until all parts can be indexed with 32 bits. */
static ds_result ds__rng_halves(const ds__rng_way *w, const ds__rng_args *all, uint64_t first,
                                uint64_t count) {
    size_t size = ds__rng_size(all->kind);
    if ((count - 1) * size >= DS__RNG_INDEXED) {
        ds_result r = ds__rng_halves(w, all, first, count / 2);
        return r != DS_OK ? r : ds__rng_halves(w, all, first + count / 2, count - count / 2);
    }
    ds__rng_args part = *all;
    part.out = (char *)all->out + first * size;
    return ds__rng_put(w, &part, 0, count, count);
}

/* Enqueues a fill of at least one element, divided as torch does. The whole fill takes words as if
   it were not divided, and then each part takes its own. */
static ds_result ds__rng_cut(const ds__rng_way *w, ds__rng_args *a, uint64_t count) {
    if (w->generator->mapping != DS_RNG_TORCH || a->what == DS__RNG_PERMUTATION ||
        (count - 1) * ds__rng_size(a->kind) < DS__RNG_INDEXED)
        return ds__rng_put(w, a, 0, count, count);
    uint64_t before = *w->offset;
    ds_result r = ds__rng_put(w, a, 0, 0, count);
    if (r < 0)
        return r;
    uint64_t begun = *w->offset;
    r = ds__rng_halves(w, a, 0, count);
    /* no part was enqueued; otherwise the words stay taken, since parts use them */
    if (*w->offset == begun)
        *w->offset = before;
    return r;
}

/* Reports a fill to the observers; kind: DS__SEEN_BEGIN or DS__SEEN_END. */
__attribute__((cold, noinline)) static void ds__rng_observe(int kind, const ds__rng_args *a,
                                                            size_t bytes, ds__stream *s,
                                                            ds_result r) {
    ds__seen_operand out = {
        .ptr = a->out, .bytes = bytes, .width = bytes, .device = s->device, .writes = 1
    };
    out.stream.id = ds__handle_of(&s->slot);
    ds__observer_notify(&(ds__seen){ .kind = kind, .operand = &out, .operands = 1, .result = r });
}

/* A fill that is being checked and enqueued. */
typedef struct ds__rng_request {
    const ds_rng_fill_desc *desc;
    ds__generator *generator; /* locked */
    ds__stream *stream;
    size_t total; /* elements of the whole fill; desc may describe a part of it */
    size_t bytes; /* of the memory that is written */
    int part;     /* 1: the fill is a part of a larger one */
    int which;    /* the kernel: DS__RNG_UNIFORMS ... */
    ds__rng_args args;
    ds__object *kept; /* the object of the graph that the stream captures; NULL: none */
} ds__rng_request;

/* Returns the number of elements of the whole fill. Refuses an unknown fill, and a part that is not
   inside of the whole. */
static ds_result ds__rng_request_total(const ds_rng_fill_desc *d, size_t *out) {
    size_t end;
    DS__REQUIRE((unsigned)d->kind <= DS_RNG_PERMUTATION, "kind is %d; use a DS_RNG_* distribution",
                (int)d->kind);
    DS__REQUIRE(!__builtin_add_overflow(d->first, d->count, &end) && (!d->total || end <= d->total),
                "elements %zu to %zu exceed the total of %zu", d->first, d->first + d->count,
                d->total);
    *out = d->total ? d->total : end;
    DS__REQUIRE((uint64_t)*out <= (uint64_t)1 << 60,
                "the fill has %zu elements; at most 2^60 are allowed", *out);
    return DS_OK;
}

/* Checks generator, stream and distribution, and translates them into kernel and arguments. */
static ds_result ds__rng_request_translate(ds__rng_request *q) {
    const ds_rng_fill_desc *d = q->desc;
    const ds__generator *g = q->generator;
    const ds__stream *s = q->stream;
    int torch = g->mapping == DS_RNG_TORCH;
    ds_result r;
    if (g->device.type != s->device.type || g->device.index != s->device.index)
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the generator belongs to %s:%d, but the stream belongs to %s:%d",
                        ds__type_name(g->device.type), g->device.index,
                        ds__type_name(s->device.type), s->device.index);
    if (torch && q->part && d->kind != DS_RNG_PERMUTATION)
        return ds__fail(DS_ERR_INVALID_VALUE, "torch's mapping does not support parts of a fill");

    if (d->kind <= DS_RNG_EXPONENTIAL)
        r = ds__rng_reals(d, torch, &q->args, &q->which);
    else if (d->kind == DS_RNG_PERMUTATION)
        r = ds__rng_order(d, q->total, &q->args, &q->which);
    else
        r = ds__rng_whole(d, torch, &q->args, &q->which);
    if (r == DS_OK && q->which == DS__RNG_UNIFORMS && q->args.kind == DS__RNG_F32 && !torch)
        q->which = DS__RNG_UNIFORM32;
    return r;
}

/* Checks the memory that is written: its alignment, and that it is on the stream's device. */
static ds_result ds__rng_request_check_out(ds__rng_request *q) {
    const ds_rng_fill_desc *d = q->desc;
    const ds__stream *s = q->stream;
    ds_pointer_info p;
    int known;
    size_t size = ds__rng_size(q->args.kind);
    q->args.out = d->out;
    q->args.stride = 1;
    q->bytes = d->count * size; /* ds__rng_request_total allows 2^60 elements, of 8 bytes at most */
    if (!d->count)
        return DS_OK;
    if ((uintptr_t)d->out % size)
        return ds__fail(DS_ERR_INVALID_VALUE, "out is %p; it must be a multiple of %zu", d->out,
                        size);
    ds_result r = ds__copy_operand_find(d->out, q->bytes, "out", &p, &known);
    if (r == DS_OK && known && p.kind == DS_MEMORY_DEVICE &&
        (p.device.type != s->device.type || p.device.index != s->device.index))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH, "out is on %s:%d, but the stream is on %s:%d",
                     ds__type_name(p.device.type), p.device.index, ds__type_name(s->device.type),
                     s->device.index);
    return r;
}

/* Enqueues the fill, for the capture of the stream if there is one. Tries again if a capture begins
   or ends meanwhile (DS__CHANGED). */
static ds_result ds__rng_request_put(ds__rng_request *q, ds__rng_way *w) {
    const ds_rng_fill_desc *d = q->desc;
    ds__generator *g = q->generator;
    ds__attachment a = { .key = g,
                         .make_fn = ds__rng_graph_attach,
                         .user = g,
                         .release_fn = ds__rng_graph_release,
                         .launch_fn = ds__rng_launch,
                         .launch_lock_fn = ds__rng_launch_lock };
    ds_result r = DS__CHANGED;
    for (int i = 0; i < 100 && r == DS__CHANGED; i++) {
        ds__object_unref(q->kept);
        r = ds__capture_attachment(q->stream, &a, &q->kept);
        if (r != DS_OK)
            break;
        w->graph = q->kept ? q->kept->user : NULL;
        w->offset = w->graph ? &w->graph->taken : &g->offset;
        r = q->part ? ds__rng_put(w, &q->args, d->first, d->count, q->total)
                    : ds__rng_cut(w, &q->args, d->count);
    }
    if (r == DS__CHANGED)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "captures began and ended on the stream during the call; try again");
    return r;
}

/* Enqueues a fill whose arguments are translated, and tells observers of it. */
static ds_result ds__rng_request_submit(ds__rng_request *q) {
    ds__generator *g = q->generator;
    ds__rng_way w = { .generator = g, .stream = q->stream };
    uint64_t before = g->offset;
    ds_result r = ds__rng_request_check_out(q);
    if (r == DS_OK)
        r = ds__rng_kernel(q->which, &w.kernel);
    if (r < 0)
        return r;
    if (ds__observer_is_set())
        ds__rng_observe(DS__SEEN_BEGIN, &q->args, q->bytes, q->stream, r);
    r = ds__rng_request_put(q, &w);
    if (ds__observer_is_set())
        ds__rng_observe(DS__SEEN_END, &q->args, q->bytes, q->stream, r);
    if (g->offset != before)
        g->changes++;
    return r;
}

/* Checks and enqueues a fill. The generator is locked meanwhile. */
static ds_result ds__rng_fill(ds_rng rng, const ds_rng_fill_desc *d, ds__stream *s) {
    ds__rng_request q;
    memset(&q, 0, sizeof q);
    q.desc = d;
    q.stream = s;
    ds_result r = ds__rng_request_total(d, &q.total);
    if (r < 0)
        return r;
    q.part = d->first || q.total != d->count;
    r = ds__generator_ref(rng, s->device, &q.generator);
    if (r < 0)
        return r;

    ds__mutex_lock(&q.generator->lock);
    r = ds__rng_request_translate(&q);
    if (r == DS_OK && q.total)
        r = ds__rng_request_submit(&q);
    ds__mutex_unlock(&q.generator->lock);

    ds__object_unref(q.kept);
    ds__generator_unref(q.generator);
    return r;
}

static ds_result ds__rng_fill_on(ds_rng rng, const ds_rng_fill_desc *d, ds_stream stream) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__rng_fill(rng, d, s);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_rng_fill)(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream) {
    DS__ENTER("ds_rng_fill");
    DS__REQUIRE(desc, "desc is NULL");
    DS__REQUIRE_RESERVED("ds_rng_fill_desc", desc);
    return ds__rng_fill_on(rng, desc, stream);
}

DSDEF ds_result(ds_rng_uniform)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double from,
                                double to, ds_stream stream) {
    DS__ENTER("ds_rng_uniform");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_UNIFORM, .dtype = dtype, .out = out, .count = count, .a = from, .b = to
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_normal)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double mean,
                               double deviation, ds_stream stream) {
    DS__ENTER("ds_rng_normal");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_NORMAL, .dtype = dtype, .out = out, .count = count, .a = mean, .b = deviation
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_exponential)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    double rate, ds_stream stream) {
    DS__ENTER("ds_rng_exponential");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_EXPONENTIAL, .dtype = dtype, .out = out, .count = count, .a = rate
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_integers)(ds_rng rng, ds_dtype dtype, void *out, size_t count, int64_t low,
                                 int64_t high, ds_stream stream) {
    DS__ENTER("ds_rng_integers");
    ds_rng_fill_desc d = { .kind = DS_RNG_INTEGERS,
                           .dtype = dtype,
                           .out = out,
                           .count = count,
                           .low = low,
                           .high = high };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_bernoulli)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double p,
                                  ds_stream stream) {
    DS__ENTER("ds_rng_bernoulli");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_BERNOULLI, .dtype = dtype, .out = out, .count = count, .a = p
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_bits)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                             ds_stream stream) {
    DS__ENTER("ds_rng_bits");
    ds_rng_fill_desc d = { .kind = DS_RNG_BITS, .dtype = dtype, .out = out, .count = count };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_permutation)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    ds_stream stream) {
    DS__ENTER("ds_rng_permutation");
    ds_rng_fill_desc d = { .kind = DS_RNG_PERMUTATION, .dtype = dtype, .out = out, .count = count };
    return ds__rng_fill_on(rng, &d, stream);
}

#endif
