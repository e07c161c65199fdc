/* rng/fill.h - public fill functions, and shutdown of the generators.

   Implements ds_rng_fill and the functions for single distributions. ds__rng_fill checks a
   request, ds__rng_put enqueues its kernel and takes its words, and ds__rng_cut divides large
   fills as torch does.

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

/* A fill on its way: its kernel, and where its words come from, the generator or the graph that
   its stream captures. The generator is locked. */
typedef struct ds__rng_way {
    ds__generator *generator;
    ds__stream *stream;
    ds__rng_graph *graph;
    ds_kernel kernel;
    uint64_t *offset;
} ds__rng_way;

static uint32_t ds__rng_stride(const ds__generator *g, const ds__rng_args *a, uint64_t total) {
    uint64_t blocks = (total + 255) / 256;
    uint64_t most = (uint64_t)g->multiprocessors * (uint64_t)(g->threads / 256);
    return g->mapping == DS_RNG_TORCH && a->what != DS__RNG_PERMUTATION
               ? (uint32_t)(256 * (blocks < most ? blocks : most))
               : 1;
}

/* Puts a fill on the stream and takes its words; of no elements, only takes them. */
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

/* What torch indexes with 32 bits; a test makes it smaller. */
#ifndef DS__RNG_INDEXED
#define DS__RNG_INDEXED INT32_MAX
#endif
/* torch cuts what is larger into halves until all parts fit. */
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

/* Each part takes its words, and before them the whole fill takes as many as if it were not cut. */
static ds_result ds__rng_cut(const ds__rng_way *w, ds__rng_args *a, uint64_t count) {
    if (w->generator->mapping != DS_RNG_TORCH || a->what == DS__RNG_PERMUTATION || !count ||
        (count - 1) * ds__rng_size(a->kind) < DS__RNG_INDEXED)
        return ds__rng_put(w, a, 0, count, count);
    uint64_t before = *w->offset;
    ds_result r = ds__rng_put(w, a, 0, 0, count);
    if (r < 0)
        return r;
    uint64_t begun = *w->offset;
    r = ds__rng_halves(w, a, 0, count);
    /* not even the first part was put; what was keeps its words, since they are used */
    if (*w->offset == begun)
        *w->offset = before;
    return r;
}

/* Tells observers of a fill; kind: DS__SEEN_BEGIN or DS__SEEN_END. */
__attribute__((cold, noinline)) static void ds__rng_observe(int kind, const ds__rng_args *a,
                                                            size_t bytes, ds__stream *s,
                                                            ds_result r) {
    ds__seen_operand out = { .ptr = a->out, .bytes = bytes, .device = s->device, .writes = 1 };
    out.stream.id = ds__handle(&s->slot);
    ds__observe(&(ds__seen){ .kind = kind, .operand = &out, .operands = 1, .result = r });
}

static ds_result ds__rng_fill(ds_rng rng, const ds_rng_fill_desc *d, ds__stream *s) {
    ds__rng_args a;
    ds__generator *g;
    ds__object *kept = NULL; /* of the graph that a capture makes */
    ds_pointer_info p;
    int which = 0;
    int known;
    size_t total = d->total;
    size_t size;
    size_t bytes;
    memset(&a, 0, sizeof a);
    DS__REQUIRE((unsigned)d->kind <= DS_RNG_PERMUTATION, "kind is %d; use a DS_RNG_* distribution",
                (int)d->kind);
    DS__REQUIRE(!__builtin_add_overflow(d->first, d->count, &size) && (!total || size <= total),
                "elements %zu to %zu exceed the total of %zu", d->first, d->first + d->count,
                total);
    if (!total)
        total = size;
    DS__REQUIRE((uint64_t)total <= (uint64_t)1 << 60,
                "the fill has %zu elements; at most 2^60 are allowed", total);
    ds_result r = ds__generator_take(rng, s->device, &g);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    int torch = g->mapping == DS_RNG_TORCH;
    int part = d->first || total != d->count;
    if (g->device.type != s->device.type || g->device.index != s->device.index)
        r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                     "the generator belongs to %s:%d, but the stream belongs to %s:%d",
                     ds__type_name(g->device.type), g->device.index, ds__type_name(s->device.type),
                     s->device.index);
    if (r == DS_OK && torch && part && d->kind != DS_RNG_PERMUTATION)
        r = ds__fail(DS_ERR_INVALID_VALUE, "torch's mapping does not support parts of a fill");
    if (r == DS_OK)
        r = d->kind <= DS_RNG_EXPONENTIAL   ? ds__rng_reals(d, torch, &a, &which)
            : d->kind == DS_RNG_PERMUTATION ? ds__rng_order(d, total, &a, &which)
                                            : ds__rng_whole(d, torch, &a, &which);
    if (r == DS_OK && which == DS__RNG_UNIFORMS && a.kind == DS__RNG_F32 && !torch)
        which = DS__RNG_UNIFORM32;
    if (r == DS_OK && total) {
        size = ds__rng_size(a.kind);
        a.out = d->out;
        a.stride = 1;
        if (__builtin_mul_overflow(d->count, size, &bytes))
            r = ds__fail(DS_ERR_INVALID_VALUE, "%zu elements of %zu bytes exceed the address space",
                         d->count, size);
        if (r == DS_OK && d->count && (uintptr_t)d->out % size)
            r = ds__fail(DS_ERR_INVALID_VALUE, "out must be a multiple of %zu", size);
        if (r == DS_OK && d->count)
            r = ds__operand(d->out, bytes, "out", &p, &known);
        if (r == DS_OK && d->count && known && p.kind == DS_MEMORY_DEVICE &&
            (p.device.type != s->device.type || p.device.index != s->device.index))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH, "out is on %s:%d, but the stream is on %s:%d",
                         ds__type_name(p.device.type), p.device.index,
                         ds__type_name(s->device.type), s->device.index);
        ds__rng_way w = { .generator = g, .stream = s };
        uint64_t before = g->offset;
        if (r == DS_OK)
            r = ds__rng_kernel(which, &w.kernel);
        if (ds__observed() && r == DS_OK)
            ds__rng_observe(DS__SEEN_BEGIN, &a, bytes, s, r);
        int begun = r == DS_OK;
        if (r == DS_OK)
            r = DS__CHANGED;
        /* until no capture begins or ends on the stream meanwhile */
        for (int i = 0; i < 100 && r == DS__CHANGED; i++) {
            ds__object_drop(kept);
            r = ds__capture_attachment(s, g, ds__rng_graph_make, g, ds__rng_graph_release,
                                       ds__rng_launch, &kept);
            if (r != DS_OK)
                break;
            w.graph = kept ? kept->user : NULL;
            w.offset = w.graph ? &w.graph->taken : &g->offset;
            r = part ? ds__rng_put(&w, &a, d->first, d->count, total)
                     : ds__rng_cut(&w, &a, d->count);
        }
        if (r == DS__CHANGED)
            r = ds__fail(DS_ERR_ILLEGAL_STATE,
                         "captures began and ended on the stream during the call; try again");
        if (ds__observed() && begun)
            ds__rng_observe(DS__SEEN_END, &a, bytes, s, r);
        if (g->offset != before)
            g->changes++;
    }
    ds__mutex_unlock(&g->lock);
    ds__object_drop(kept);
    ds__generator_drop(g);
    return r;
}

DSDEF ds_result(ds_rng_fill)(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream) {
    DS__ENTER("ds_rng_fill");
    DS__REQUIRE(desc, "desc is NULL");
    DS__REQUIRE_RESERVED("ds_rng_fill_desc", desc);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__rng_fill(rng, desc, s);
    ds__stream_unpin(s);
    return r;
}

#define DS__RNG_FILL(name, ...)             \
    ds_rng_fill_desc d = { __VA_ARGS__ };   \
    DS__ENTER(name);                        \
    ds__stream *s = ds__stream_pin(stream); \
    if (!s)                                 \
        return DS_ERR_INVALID_HANDLE;       \
    ds_result r = ds__rng_fill(rng, &d, s); \
    ds__stream_unpin(s);                    \
    return r

DSDEF ds_result(ds_rng_uniform)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double from,
                                double to, ds_stream stream) {
    DS__RNG_FILL("ds_rng_uniform", .kind = DS_RNG_UNIFORM, .dtype = dtype, .out = out,
                 .count = count, .a = from, .b = to);
}

DSDEF ds_result(ds_rng_normal)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double mean,
                               double deviation, ds_stream stream) {
    DS__RNG_FILL("ds_rng_normal", .kind = DS_RNG_NORMAL, .dtype = dtype, .out = out, .count = count,
                 .a = mean, .b = deviation);
}

DSDEF ds_result(ds_rng_exponential)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    double rate, ds_stream stream) {
    DS__RNG_FILL("ds_rng_exponential", .kind = DS_RNG_EXPONENTIAL, .dtype = dtype, .out = out,
                 .count = count, .a = rate);
}

DSDEF ds_result(ds_rng_integers)(ds_rng rng, ds_dtype dtype, void *out, size_t count, int64_t low,
                                 int64_t high, ds_stream stream) {
    DS__RNG_FILL("ds_rng_integers", .kind = DS_RNG_INTEGERS, .dtype = dtype, .out = out,
                 .count = count, .low = low, .high = high);
}

DSDEF ds_result(ds_rng_bernoulli)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double p,
                                  ds_stream stream) {
    DS__RNG_FILL("ds_rng_bernoulli", .kind = DS_RNG_BERNOULLI, .dtype = dtype, .out = out,
                 .count = count, .a = p);
}

DSDEF ds_result(ds_rng_bits)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                             ds_stream stream) {
    DS__RNG_FILL("ds_rng_bits", .kind = DS_RNG_BITS, .dtype = dtype, .out = out, .count = count);
}

DSDEF ds_result(ds_rng_permutation)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    ds_stream stream) {
    DS__RNG_FILL("ds_rng_permutation", .kind = DS_RNG_PERMUTATION, .dtype = dtype, .out = out,
                 .count = count);
}

#endif
