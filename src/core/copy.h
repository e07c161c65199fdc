/* core/copy.h - copies and fills.

   Checks the operands of copies and fills against the memory table and builds the operation
   (ds__copy_op, ds__fill_op). ds__copy_plain is the fast path for known memory; ds__copy_between
   handles all other copies. A copy between the drivers on a CPU stream runs as a kernel of one
   item (ds__copy_on_host).

   Invariants: an operand in known memory stays inside of its allocation. op->places says where
   each operand is. Only for a CUDA stream may a copy's operand stay unknown, and cudart decides
   then. DS__OP_BLOCKS is set if an operand is known to be pageable.
   Locks: none, and the memory table is read without one. core/graph_add.h calls ds__copy_op and
   ds__fill_op under a graph's lock; they call the driver's device_peer and pointer_query.
   Threads: any for the public functions. ds__copy_item runs where the CPU driver runs kernels,
   on a worker or a waiting thread, and calls the CUDA driver there. */
#ifndef DS__CORE_COPY_H
#define DS__CORE_COPY_H

#include "../api/copy.h"
#include "init.h"
#include "sync_debug.h"
#include "device.h"
#include "stream.h"
#include "stream_sync.h"
#include "submit.h"
#include "../base/memory_table.h"
#include "memory.h"

/* Returns the bytes from the first row to the end of the last one. 0: more than a size_t holds. */
static size_t ds__copy_span(size_t pitch, size_t width, size_t height) {
    size_t span;
    return __builtin_mul_overflow(height - 1, pitch, &span) ||
                   __builtin_add_overflow(span, width, &span)
               ? 0
               : span;
}

/* Returns 1 if memory of the CPU driver was freed and its part of the address space is unmapped. */
static inline int ds__is_unmapped(const ds__found *f, const void *ptr, size_t span) {
    return DS__UNLIKELY(atomic_load_explicit(&ds__g.mapping_taken, memory_order_relaxed)) &&
           f->held == DS__HELD_SPACE && f->backend && !ds__mapping_covers((uintptr_t)ptr, span);
}

/* Refuses an operand in freed memory of the CPU driver, if the driver can know that. */
static ds_result ds__check_freed(const void *ptr, size_t span, const char *what, int known) {
    const ds__found *f = known ? ds__range_hit(ptr) : NULL;
    ds_pointer_info info;
    DS__REQUIRE(!f || !ds__is_unmapped(f, ptr, span),
                "%s: the memory of %zu bytes at %p was already freed", what, span, ptr);
    ds_result r = known || !ds__g.driver[1] ? DS_OK : ds__g.driver[1]->pointer_query(ptr, &info);
    return r == DS_OK ? r : ds__fail_append(r, " (%s, %zu bytes)", what, span);
}

/* Looks up the memory of an operand and checks that it stays inside of its allocation. *known 0:
   devstream does not know the memory, and *out describes pageable memory. */
static ds_result ds__copy_operand_find(const void *ptr, size_t span, const char *what,
                                       ds_pointer_info *out, int *known) {
    DS__REQUIRE(ptr, "%s is NULL", what);
    DS__REQUIRE(span <= UINTPTR_MAX - (uintptr_t)ptr, "%s: %zu bytes exceed the address space",
                what, span);
    *known = ds__memory_table_find(ptr, out);
    size_t offset = *known ? (size_t)((uintptr_t)ptr - (uintptr_t)out->base) : 0;
    DS__REQUIRE(!*known || span <= out->size - offset,
                "%s: %zu bytes at offset %zu exceed the allocation of %zu bytes", what, span,
                offset, out->size);
    return ds__check_freed(ptr, span, what, *known);
}

/* Returns the place of an operand, DS__AT_*, for a stream of the driver. */
static unsigned ds__copy_place_of(const ds__driver *driver, const ds_pointer_info *p, int known,
                                  unsigned flags) {
    if (!known)
        return DS__AT_UNKNOWN;
    if (p->kind == DS_MEMORY_DEVICE)
        return p->device.type == (int32_t)driver->type ? DS__AT_DEVICE + (unsigned)p->device.index
                                                       : DS__AT_OTHER;
    if (p->kind != DS_MEMORY_PAGEABLE)
        return DS__AT_PINNED;
    return flags & DS_COPY_HOST_STABLE ? DS__AT_STABLE : DS__AT_PAGEABLE;
}

static int ds__on_gpu(const ds_pointer_info *p) {
    return p->kind == DS_MEMORY_DEVICE && p->device.type == DS_DEVICE_CUDA;
}

/* *out 1: the copy must be staged through the host, since neither device reaches the other. */
static ds_result ds__needs_staging(const ds__driver *driver, const ds_pointer_info *dst,
                                   const ds_pointer_info *src, int *out) {
    *out = 0;
    if (dst->kind != DS_MEMORY_DEVICE || src->kind != DS_MEMORY_DEVICE ||
        dst->device.type != (int32_t)driver->type || src->device.type != (int32_t)driver->type ||
        dst->device.index == src->device.index)
        return DS_OK;
    int reach = 0;
    ds_result r = driver->device_peer(dst->device.index, src->device.index, &reach);
    if (r == DS_OK && !reach)
        r = driver->device_peer(src->device.index, dst->device.index, &reach);
    *out = !reach;
    return r;
}

/* Copies memory of a GPU on a stream of the CPU driver, as a kernel of one item. Like any kernel it
   fails the device if the copy fails. */
static int ds__copy_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    return ds__g.driver[0]->copy_now(args) < 0;
}

static ds__kernel ds__copy_kernel = { .cpu_fn = ds__copy_item,
                                      .args_size = sizeof(ds__op),
                                      .grain = SIZE_MAX,
                                      .name = "copy of a GPU's memory",
                                      .ours = 1 };

/* Enqueues a copy of a GPU's memory on a stream of the CPU driver. Waits for it if an operand is
   pageable. */
static ds_result ds__copy_on_host(ds__stream *s, const ds__op *copy) {
    ds__op op = ds__op_init(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__copy_kernel;
    op.u.kernel.items = 1;
    op.u.kernel.args_size = sizeof *copy;
    op.u.kernel.args = copy;
    op.u.kernel.grid = NULL;
    ds_result r = ds__stream_submit(s, &op);
    if (r == DS_OK && (copy->flags & DS__OP_BLOCKS))
        r = ds__stream_error(s, s->driver->stream_synchronize(s->native, DS__FOREVER));
    return r;
}

/* The descriptions of the operands of a copy. *_known: the description is filled; only for a CUDA
   stream may it stay empty, and cudart decides then. */
typedef struct ds__copy_ends {
    ds_pointer_info to;
    ds_pointer_info from;
    int to_known;
    int from_known;
} ds__copy_ends;

/* Looks both operands up in the memory table and checks that they stay inside of their
   allocations. */
static ds_result ds__copy_ends_find(const ds__copy_request *c, ds__copy_ends *e) {
    size_t dst_span = ds__copy_span(c->dst_pitch, c->width, c->height);
    size_t src_span = ds__copy_span(c->src_pitch, c->width, c->height);
    DS__REQUIRE(dst_span && src_span, "the copy is larger than the address space");

    ds_result r = ds__copy_operand_find(c->dst, dst_span, "dst", &e->to, &e->to_known);
    if (r == DS_OK)
        r = ds__copy_operand_find(c->src, src_span, "src", &e->from, &e->from_known);
    return r;
}

/* Returns 1 if a driver must describe an operand that the memory table does not know. Cudart
   decides about a copy between a GPU's memory and memory that other libraries made. */
static int ds__copy_ends_matter(const ds__driver *driver, const ds__copy_request *c,
                                const ds__copy_ends *e) {
    return !ds__g.driver[0] || c->dst_device || c->flags || ds__sync_watched() ||
           driver->type != DS_DEVICE_CUDA || !(ds__on_gpu(&e->to) || ds__on_gpu(&e->from));
}

/* Asks the drivers for the descriptions that the memory table does not have. */
static ds_result ds__copy_ends_ask(const ds__copy_request *c, ds__copy_ends *e) {
    ds_result r = DS_OK;
    if (!e->to_known) {
        r = ds__pointer_find(c->dst, &e->to);
        e->to_known = 1;
    }
    if (r == DS_OK && !e->from_known) {
        r = ds__pointer_find(c->src, &e->from);
        e->from_known = 1;
    }
    return r;
}

/* Refuses a copy if an operand is not on the device that the caller named. */
static ds_result ds__copy_devices_check(const ds__copy_request *c, const ds__copy_ends *e) {
    const ds_device to = e->to.device;
    const ds_device from = e->from.device;
    const ds_device *dst_device = c->dst_device;
    const ds_device *src_device = c->src_device;
    if ((dst_device && (to.type != dst_device->type || to.index != dst_device->index)) ||
        (src_device && (from.type != src_device->type || from.index != src_device->index)))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "dst is on %s:%d and src on %s:%d",
                        ds__type_name(to.type), to.index, ds__type_name(from.type), from.index);
    return DS_OK;
}

/* Returns 1 if an operand is memory of a device of the other driver. */
static int ds__copy_crosses(const ds__op *op) {
    return ds__place_of(op, DS__OP_DST) == DS__AT_OTHER ||
           ds__place_of(op, DS__OP_SRC) == DS__AT_OTHER;
}

/* Refuses a copy on a stream of a GPU, whose driver cannot open the memory of CPU devices. */
static ds_result ds__copy_reach_check(const ds__driver *driver, const ds__op *op) {
    return DS__UNLIKELY(ds__g.unreachable) && driver->type == DS_DEVICE_CUDA && ds__copy_crosses(op)
               ? ds__fail(
                     DS_ERR_UNSUPPORTED,
                     "with DS_CPU_UNREACHABLE, a copy to or from memory of a CPU device must be "
                     "enqueued on a stream of a CPU device")
               : DS_OK;
}

/* Checks a copy and fills its operation for a stream of the driver. On failure *op is of
   no use. */
static ds_result ds__copy_op(const ds__driver *driver, ds__op *op, const ds__copy_request *c) {
    ds__copy_ends e;
    int staged = 0;
    ds_result r = ds__copy_ends_find(c, &e);
    if (r == DS_OK && ds__copy_ends_matter(driver, c, &e))
        r = ds__copy_ends_ask(c, &e);
    if (r == DS_OK)
        r = ds__copy_devices_check(c, &e);
    if (r == DS_OK)
        r = ds__needs_staging(driver, &e.to, &e.from, &staged);
    if (r < 0)
        return r;

    int blocks = (e.to_known && e.to.kind == DS_MEMORY_PAGEABLE) ||
                 (e.from_known && e.from.kind == DS_MEMORY_PAGEABLE);
    int rows = c->dst_pitch != c->width || c->src_pitch != c->width; /* else it is one row */
    op->flags = (uint8_t)((staged ? DS__OP_STAGED : 0u) | (blocks ? DS__OP_BLOCKS : 0u));
    op->places =
        (uint16_t)(ds__copy_place_of(driver, &e.to, e.to_known, c->flags) << DS__OP_DST |
                   ds__copy_place_of(driver, &e.from, e.from_known, c->flags) << DS__OP_SRC);
    op->u.copy.dst = c->dst;
    op->u.copy.src = c->src;
    op->u.copy.dst_pitch = c->dst_pitch;
    op->u.copy.src_pitch = c->src_pitch;
    op->u.copy.width = rows ? c->width : c->width * c->height;
    op->u.copy.height = rows ? c->height : 1;
    return ds__copy_reach_check(driver, op);
}

/* If sync debug is on and the operation blocks the host, reports the wait. A negative result
   forbids the operation. */
static inline ds_result ds__sync_watch_blocking(ds__stream *s, const ds__op *op) {
    if (DS__UNLIKELY(op->flags & DS__OP_BLOCKS) && ds__sync_watched() && !ds__sync_is_captured(s))
        return ds__sync_tell_stream(s, "accesses pageable memory and waits for the stream");
    return DS_OK;
}

/* Enqueues a copy that was checked. */
static ds_result ds__copy_submit(ds__stream *s, const ds__op *op) {
    return s->device.type == DS_DEVICE_CPU && ds__copy_crosses(op) ? ds__copy_on_host(s, op)
                                                                   : ds__stream_submit(s, op);
}

static ds_result ds__copy_between(ds__stream *s, const ds__copy_request *copy) {
    ds__op op = ds__op_init(DS__OP_COPY);
    ds_result r = ds__copy_op(s->driver, &op, copy);
    if (r == DS_OK)
        r = ds__sync_watch_blocking(s, &op);
    if (r < 0)
        return r;
    return ds__copy_submit(s, &op);
}

/* Returns the place of known memory, DS__AT_*, for a stream of the backend. */
static inline unsigned ds__place_known(int backend, const ds__found *f) {
    if (f->kind != DS_MEMORY_DEVICE)
        return DS__AT_PINNED;
    return f->backend == backend ? DS__AT_DEVICE + (unsigned)f->device : DS__AT_OTHER;
}

/* The fast path: fills the operation of a copy between known memory on at most one device, of the
   stream's driver, for a tenth of the cost of ds__copy_op. Returns 0 for all other copies. */
static inline int ds__copy_plain_op(ds__stream *s, void *dst, const void *src, size_t size,
                                    ds__op *op) {
    const ds__found *to = ds__range_hit(dst);
    if (DS__UNLIKELY(!to || size > to->end - (uintptr_t)dst) || ds__is_unmapped(to, dst, size))
        return 0;
    unsigned to_place = ds__place_known(ds__backend_of(s->device), to);
    const ds__found *from = ds__range_hit(src); /* may replace the result of the first look-up */
    if (DS__UNLIKELY(!from || size > from->end - (uintptr_t)src) ||
        ds__is_unmapped(from, src, size))
        return 0;
    unsigned from_place = ds__place_known(ds__backend_of(s->device), from);
    if (to_place == DS__AT_OTHER || from_place == DS__AT_OTHER)
        return 0;
    if (to_place != from_place && to_place >= DS__AT_DEVICE && from_place >= DS__AT_DEVICE)
        return 0;
    *op = ds__op_init(DS__OP_COPY);
    op->places = (uint16_t)(to_place << DS__OP_DST | from_place << DS__OP_SRC);
    op->u.copy.dst = dst;
    op->u.copy.src = src;
    op->u.copy.dst_pitch = op->u.copy.src_pitch = op->u.copy.width = size;
    op->u.copy.height = 1;
    return 1;
}

/* Enqueues a copy by the fast path. Returns 0 if it is none for that. */
static inline int ds__copy_plain(ds__stream *s, void *dst, const void *src, size_t size,
                                 ds_result *out) {
    ds__op op;
    if (!ds__copy_plain_op(s, dst, src, size, &op))
        return 0;
    *out = ds__stream_submit(s, &op);
    return 1;
}

DSDEF ds_result(ds_copy)(void *dst, const void *src, size_t size, ds_stream stream) {
    ds_result r = ds__api_enter_inline("ds_copy");
    if (DS__UNLIKELY(r < 0))
        return r;
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    if (DS__LIKELY(size > 0) && !ds__copy_plain(s, dst, src, size, &r))
        r = ds__copy_between(s, &DS__COPY_ROW(dst, src, size));
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

/* Returns 1 if the CUDA driver may take a copy as a part of a batch: on the stream's device, or
   between this device and pinned memory. */
static int ds__copy_is_local(const ds__stream *s, const ds__op *op) {
    int here = DS__AT_DEVICE + s->device.index;
    int to = ds__place_of(op, DS__OP_DST);
    int from = ds__place_of(op, DS__OP_SRC);
    return (to == here && (from == here || from == DS__AT_PINNED)) ||
           (to == DS__AT_PINNED && from == here);
}

/* Checks all copies of a batch. *out_whole: 1 if the driver may take them all at once. */
static ds_result ds__copy_batch_check(ds__stream *s, const ds__copy_list *list, int *out_whole) {
    *out_whole = s->device.type == DS_DEVICE_CUDA && list->count > 1;
    for (size_t i = 0; i < list->count; i++) {
        ds__op op = { .kind = DS__OP_COPY };
        ds__copy_request copy = DS__COPY_ROW(list->dst[i], list->src[i], list->sizes[i]);
        if (!copy.width) {
            *out_whole = 0;
            continue;
        }
        if (!ds__copy_plain_op(s, copy.dst, copy.src, copy.width, &op)) {
            ds_result r = ds__copy_op(s->driver, &op, &copy);
            if (r == DS_OK)
                r = ds__sync_watch_blocking(s, &op);
            if (r < 0)
                return ds__fail_append(r, "; copy %zu of %zu in the batch", i, list->count);
        }
        *out_whole &= ds__copy_is_local(s, &op);
    }
    return DS_OK;
}

/* Enqueues a copy of a batch. Its wait was reported by the check. */
static ds_result ds__copy_one(ds__stream *s, void *dst, const void *src, size_t size) {
    ds_result r;
    if (ds__copy_plain(s, dst, src, size, &r))
        return r;
    ds__op op = ds__op_init(DS__OP_COPY);
    r = ds__copy_op(s->driver, &op, &DS__COPY_ROW(dst, src, size));
    return r == DS_OK ? ds__copy_submit(s, &op) : r;
}

/* Enqueues the copies of a batch one by one. */
static ds_result ds__copy_each(ds__stream *s, const ds__copy_list *list) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < list->count && r == DS_OK; i++) {
        if (list->sizes[i])
            r = ds__copy_one(s, list->dst[i], list->src[i], list->sizes[i]);
        if (r < 0)
            ds__fail_append(r, "; copy %zu of %zu in the batch", i, list->count);
    }
    return r;
}

static ds_result ds__copy_batch(ds__stream *s, const ds__copy_list *list) {
    int whole = 0;
    ds_result r = ds__copy_batch_check(s, list, &whole);
    if (r < 0)
        return r;
    r = DS__ONE_BY_ONE;
    if (whole) {
        ds__op op = ds__op_init(DS__OP_COPY_BATCH);
        op.u.batch.dst = list->dst;
        op.u.batch.src = list->src;
        op.u.batch.sizes = list->sizes;
        op.u.batch.count = list->count;
        r = ds__stream_submit(s, &op);
    }
    return r == DS__ONE_BY_ONE ? ds__copy_each(s, list) : r;
}

DSDEF ds_result(ds_copy_batch)(void *const *dst, const void *const *src, const size_t *sizes,
                               size_t count, ds_stream stream) {
    DS__ENTER("ds_copy_batch");
    DS__REQUIRE(!count || (dst && src && sizes), "an array of the batch is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__copy_list list = { dst, src, sizes, count };
    ds_result r = ds__copy_batch(s, &list);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_copy_with)(void *dst, const void *src, size_t size, unsigned flags,
                              ds_stream stream) {
    DS__ENTER("ds_copy_with");
    DS__REQUIRE((flags & ~(unsigned)DS_COPY_HOST_STABLE) == 0,
                "unknown flags %#x; use DS_COPY_HOST_STABLE or 0", flags);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__copy_request copy = DS__COPY_ROW(dst, src, size);
    copy.flags = flags;
    ds_result r = size ? ds__copy_between(s, &copy) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_copy_2d)(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                            size_t width, size_t height, ds_stream stream) {
    DS__ENTER("ds_copy_2d");
    DS__REQUIRE(dst_pitch >= width && src_pitch >= width,
                "a pitch is smaller than the width of %zu bytes", width);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__copy_request copy = { .dst = dst,
                              .src = src,
                              .dst_pitch = dst_pitch,
                              .src_pitch = src_pitch,
                              .width = width,
                              .height = height };
    ds_result r = width && height ? ds__copy_between(s, &copy) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_copy_peer)(void *dst, ds_device dst_device, const void *src,
                              ds_device src_device, size_t size, ds_stream stream) {
    DS__ENTER("ds_copy_peer");
    DS__RESOLVE(dst_device);
    DS__RESOLVE(src_device);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__copy_request copy = DS__COPY_ROW(dst, src, size);
    copy.dst_device = &dst_device;
    copy.src_device = &src_device;
    ds_result r = size ? ds__copy_between(s, &copy) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

/* A fill of rows. The pitch is in bytes, the width in elements. */
typedef struct ds__fill_request {
    void *ptr;
    size_t pitch;
    size_t value_size;
    size_t width;
    size_t height;
    uint32_t value;
    unsigned flags; /* DS_COPY_* */
} ds__fill_request;

/* A fill of one row. */
static inline ds__fill_request ds__fill_row(void *ptr, uint32_t value, size_t value_size,
                                            size_t count) {
    return (ds__fill_request){ .ptr = ptr,
                               .pitch = count * (value_size <= 4 ? value_size : 0),
                               .value_size = value_size,
                               .width = count,
                               .height = 1,
                               .value = value };
}

/* Refuses an element size, extent, pitch or alignment that the drivers do not support. */
static inline ds_result ds__fill_check(const ds__fill_request *f) {
    DS__REQUIRE(f->value_size == 1 || f->value_size == 2 || f->value_size == 4,
                "a value of %zu bytes is not 1, 2 or 4", f->value_size);
    /* a shift, since a division takes longer than all other checks */
    DS__REQUIRE(f->width <= SIZE_MAX >> (f->value_size >> 1),
                "%zu elements are larger than the address space", f->width);
    DS__REQUIRE(f->height <= 1 ||
                    (f->pitch >= f->width * f->value_size && (f->pitch & (f->value_size - 1)) == 0),
                "the pitch %zu is too small or not a multiple of %zu", f->pitch, f->value_size);
    DS__REQUIRE(((uintptr_t)f->ptr & (f->value_size - 1)) == 0, "%p is not a multiple of %zu",
                f->ptr, f->value_size);
    return DS_OK;
}

/* Describes the memory of a fill of at least one element, by the memory table or by a driver.
   Refuses memory of another driver's device. */
static inline ds_result ds__fill_find(const ds__driver *driver, const ds__fill_request *f,
                                      ds_pointer_info *to) {
    int known = 0;
    size_t span = ds__copy_span(f->pitch, f->width * f->value_size, f->height);
    ds_result r = DS__LIKELY(span)
                      ? ds__copy_operand_find(f->ptr, span, "ptr", to, &known)
                      : ds__fail(DS_ERR_INVALID_VALUE, "the fill is larger than the address space");
    if (r == DS_OK && !known)
        r = ds__pointer_find(f->ptr, to);
    if (r < 0)
        return r;
    if (to->kind == DS_MEMORY_DEVICE && to->device.type != (int32_t)driver->type)
        return ds__fail(
            DS_ERR_CROSS_DRIVER, "the memory is on %s:%d, but the stream is on a device of type %s",
            ds__type_name(to->device.type), to->device.index, ds__type_name((int)driver->type));
    return DS_OK;
}

/* Checks a fill and fills its operation for a stream of the driver. On failure, and if the fill has
   no elements, *op is not changed. */
static ds_result ds__fill_op(const ds__driver *driver, ds__op *op, const ds__fill_request *f) {
    ds_pointer_info to;
    ds_result r = ds__fill_check(f);
    if (r < 0 || !f->width || !f->height)
        return r;
    r = ds__fill_find(driver, f, &to);
    if (r < 0)
        return r;

    int rows = f->pitch != f->width * f->value_size;
    op->u.fill.dst = f->ptr;
    op->u.fill.pitch = f->pitch;
    op->u.fill.value_size = f->value_size;
    op->u.fill.width = rows ? f->width : f->width * f->height;
    op->u.fill.height = rows ? f->height : 1;
    op->u.fill.value = f->value;
    op->flags = to.kind == DS_MEMORY_PAGEABLE ? DS__OP_BLOCKS : 0;
    op->places = (uint16_t)(ds__copy_place_of(driver, &to, 1, f->flags) << DS__OP_DST);
    return DS_OK;
}

/* Enqueues a fill; one of no elements is only checked. */
static ds_result ds__fill_rows(ds_stream stream, const ds__fill_request *fill) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_init(DS__OP_FILL);
    ds_result r = ds__fill_op(s->driver, &op, fill);
    if (r == DS_OK)
        r = ds__sync_watch_blocking(s, &op);
    if (r == DS_OK && fill->width && fill->height)
        r = ds__stream_submit(s, &op);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_fill)(void *ptr, uint32_t value, size_t value_size, size_t count,
                         ds_stream stream) {
    DS__ENTER("ds_fill");
    ds__fill_request fill = ds__fill_row(ptr, value, value_size, count);
    return ds__fill_rows(stream, &fill);
}

DSDEF ds_result(ds_fill_2d)(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                            size_t width, size_t height, ds_stream stream) {
    DS__ENTER("ds_fill_2d");
    ds__fill_request fill = { .ptr = ptr,
                              .pitch = pitch,
                              .value_size = value_size,
                              .width = width,
                              .height = height,
                              .value = value };
    return ds__fill_rows(stream, &fill);
}

#endif
