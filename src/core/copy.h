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

/* Bytes from the first byte of the first row to the last of the last. 0: it does not fit into a
   size_t. */
static size_t ds__span(size_t pitch, size_t width, size_t height) {
    size_t span;
    return __builtin_mul_overflow(height - 1, pitch, &span) ||
                   __builtin_add_overflow(span, width, &span)
               ? 0
               : span;
}

/* Returns 1 if known memory of the CPU driver was freed and given back to the system since: the
   allocator has unmapped a part of its address space. */
static inline int ds__is_unmapped(const ds__found *f, const void *ptr, size_t span) {
    return DS__UNLIKELY(atomic_load_explicit(&ds__g.mapping_taken, memory_order_relaxed)) &&
           f->held == DS__HELD_SPACE && f->backend && !ds__mapping_covers((uintptr_t)ptr, span);
}

/* Refuses an operand in memory of the CPU driver that was freed, as far as that is known. */
static ds_result ds__check_freed(const void *ptr, size_t span, const char *what, int known) {
    const ds__found *f = known ? ds__range_hit(ptr) : NULL;
    ds_pointer_info info;
    DS__REQUIRE(!f || !ds__is_unmapped(f, ptr, span),
                "%s: the memory of %zu bytes at %p was already freed", what, span, ptr);
    ds_result r = known || !ds__g.driver[1] ? DS_OK : ds__g.driver[1]->pointer_query(ptr, &info);
    return r == DS_OK ? r : ds__also(r, " (%s, %zu bytes)", what, span);
}

/* Looks the range up and checks that it stays inside of its allocation. */
static ds_result ds__operand(const void *ptr, size_t span, const char *what, ds_pointer_info *out,
                             int *known) {
    DS__REQUIRE(ptr, "%s is NULL", what);
    DS__REQUIRE(span <= UINTPTR_MAX - (uintptr_t)ptr, "%s: %zu bytes exceed the address space",
                what, span);
    *known = ds__known(ptr, out);
    size_t offset = *known ? (size_t)((uintptr_t)ptr - (uintptr_t)out->base) : 0;
    DS__REQUIRE(!*known || span <= out->size - offset,
                "%s: %zu bytes at offset %zu exceed the allocation of %zu bytes", what, span,
                offset, out->size);
    return ds__check_freed(ptr, span, what, *known);
}

/* Where the operand is, as the driver sees it. */
static unsigned ds__place(const ds__driver *driver, const ds_pointer_info *p, int known,
                          unsigned flags) {
    if (!known)
        return DS__AT_UNKNOWN;
    if (p->kind == DS_MEMORY_DEVICE)
        return p->device.type == (int32_t)driver->type ? DS__AT_DEVICE + (unsigned)p->device.index
                                                       : DS__AT_OTHER;
    return p->kind != DS_MEMORY_PAGEABLE ? DS__AT_PINNED
           : flags & DS_COPY_HOST_STABLE ? DS__AT_STABLE
                                         : DS__AT_PAGEABLE;
}

static int ds__on_gpu(const ds_pointer_info *p) {
    return p->kind == DS_MEMORY_DEVICE && p->device.type == DS_DEVICE_CUDA;
}

/* A staged copy: neither device reaches the other. */
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

/* A copy of a GPU's memory on a stream of the CPU driver: a kernel of one item, which fails the
   device as any other. */
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

static ds_result ds__copy_on_host(ds__stream *s, const ds__op *copy) {
    ds__op op = ds__op_make(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__copy_kernel;
    op.u.kernel.items = 1;
    op.u.kernel.args_size = sizeof *copy;
    op.u.kernel.args = copy;
    op.u.kernel.grid = NULL;
    ds_result r = ds__submit(s, &op);
    return r == DS_OK && (copy->flags & DS__OP_BLOCKS)
               ? ds__stream_error(s, s->driver->stream_synchronize(s->native, DS__FOREVER))
               : r;
}

/* Fills the operation of a copy, as a stream of the driver's has it, or says what is wrong. The
   devices, when given, are checked. */
static ds_result ds__copy_op(const ds__driver *driver, ds__op *op, void *dst, size_t dst_pitch,
                             const void *src, size_t src_pitch, size_t width, size_t height,
                             const ds_device *dst_device, const ds_device *src_device,
                             unsigned flags) {
    ds_pointer_info to;
    ds_pointer_info from;
    int to_known;
    int from_known;
    int staged = 0;
    size_t dst_span = ds__span(dst_pitch, width, height);
    size_t src_span = ds__span(src_pitch, width, height);
    DS__REQUIRE(dst_span && src_span, "the copy is larger than the address space");
    ds_result r = ds__operand(dst, dst_span, "dst", &to, &to_known);
    if (r == DS_OK)
        r = ds__operand(src, src_span, "src", &from, &from_known);
    /* Between a GPU's own memory and what others made cudart decides; else it must be asked. */
    if (!ds__g.driver[0] || dst_device || flags || ds__sync_watched() ||
        driver->type != DS_DEVICE_CUDA || !(ds__on_gpu(&to) || ds__on_gpu(&from))) {
        if (r == DS_OK && !to_known) {
            r = ds__ask(dst, &to);
            to_known = 1;
        }
        if (r == DS_OK && !from_known) {
            r = ds__ask(src, &from);
            from_known = 1;
        }
    }
    if (r < 0)
        return r;
    if ((dst_device &&
         (to.device.type != dst_device->type || to.device.index != dst_device->index)) ||
        (src_device &&
         (from.device.type != src_device->type || from.device.index != src_device->index)))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "dst is on %s:%d and src on %s:%d",
                        ds__type_name(to.device.type), to.device.index,
                        ds__type_name(from.device.type), from.device.index);
    if ((r = ds__needs_staging(driver, &to, &from, &staged)) < 0)
        return r;
    int blocks = (to_known && to.kind == DS_MEMORY_PAGEABLE) ||
                 (from_known && from.kind == DS_MEMORY_PAGEABLE);
    int rows = dst_pitch != width || src_pitch != width; /* else it is one row */
    op->flags = (uint8_t)((staged ? DS__OP_STAGED : 0u) | (blocks ? DS__OP_BLOCKS : 0u));
    op->places = (uint16_t)(ds__place(driver, &to, to_known, flags) << DS__OP_DST |
                            ds__place(driver, &from, from_known, flags) << DS__OP_SRC);
    op->u.copy.dst = dst;
    op->u.copy.src = src;
    op->u.copy.dst_pitch = dst_pitch;
    op->u.copy.src_pitch = src_pitch;
    op->u.copy.width = rows ? width : width * height;
    op->u.copy.height = rows ? height : 1;
    return DS_OK;
}

/* 1: one of the operands is memory of the other driver's devices. */
static int ds__copy_crosses(const ds__op *op) {
    return ds__place_of(op, DS__OP_DST) == DS__AT_OTHER ||
           ds__place_of(op, DS__OP_SRC) == DS__AT_OTHER;
}

static ds_result ds__copy_between(ds__stream *s, void *dst, size_t dst_pitch, const void *src,
                                  size_t src_pitch, size_t width, size_t height,
                                  const ds_device *dst_device, const ds_device *src_device,
                                  unsigned flags) {
    ds__op op = ds__op_make(DS__OP_COPY);
    ds_result r = ds__copy_op(s->driver, &op, dst, dst_pitch, src, src_pitch, width, height,
                              dst_device, src_device, flags);
    if (r == DS_OK && DS__UNLIKELY(op.flags & DS__OP_BLOCKS) && ds__sync_watched() &&
        !ds__sync_is_captured(s))
        r = ds__sync_tell_stream(s, "accesses pageable memory and waits for the stream");
    if (r < 0)
        return r;
    return s->device.type == DS_DEVICE_CPU && ds__copy_crosses(&op) ? ds__copy_on_host(s, &op)
                                                                    : ds__submit(s, &op);
}

/* Where memory that is known lies, as a stream of the backend sees it. */
static inline unsigned ds__place_known(int backend, const ds__found *f) {
    return f->kind != DS_MEMORY_DEVICE ? DS__AT_PINNED
           : f->backend == backend     ? DS__AT_DEVICE + (unsigned)f->device
                                       : DS__AT_OTHER;
}

/* The usual copy, between memory that is known, on at most one device, which is of the stream's
   driver: a tenth of the work of ds__copy_between, which has the other cases and the sentences.
   0: not that. */
static inline int ds__copy_plain(ds__stream *s, void *dst, const void *src, size_t size,
                                 ds_result *out) {
    const ds__found *to = ds__range_hit(dst);
    if (DS__UNLIKELY(!to || size > to->end - (uintptr_t)dst) || ds__is_unmapped(to, dst, size))
        return 0;
    unsigned to_place = ds__place_known(ds__backend_of(s->device), to);
    const ds__found *from = ds__range_hit(src); /* may take the place of what was found before */
    if (DS__UNLIKELY(!from || size > from->end - (uintptr_t)src) ||
        ds__is_unmapped(from, src, size))
        return 0;
    unsigned from_place = ds__place_known(ds__backend_of(s->device), from);
    if (to_place == DS__AT_OTHER || from_place == DS__AT_OTHER)
        return 0;
    if (to_place != from_place && to_place >= DS__AT_DEVICE && from_place >= DS__AT_DEVICE)
        return 0;
    ds__op op = ds__op_make(DS__OP_COPY);
    op.places = (uint16_t)(to_place << DS__OP_DST | from_place << DS__OP_SRC);
    op.u.copy.dst = dst;
    op.u.copy.src = src;
    op.u.copy.dst_pitch = op.u.copy.src_pitch = op.u.copy.width = size;
    op.u.copy.height = 1;
    *out = ds__submit(s, &op);
    return 1;
}

DSDEF ds_result(ds_copy)(void *dst, const void *src, size_t size, ds_stream stream) {
    ds_result r = ds__enter_inline("ds_copy");
    if (DS__UNLIKELY(r < 0))
        return r;
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    if (DS__LIKELY(size > 0) && !ds__copy_plain(s, dst, src, size, &r))
        r = ds__copy_between(s, dst, size, src, size, size, 1, NULL, NULL, 0);
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

DSDEF ds_result(ds_copy_with)(void *dst, const void *src, size_t size, unsigned flags,
                              ds_stream stream) {
    DS__ENTER("ds_copy_with");
    DS__REQUIRE((flags & ~(unsigned)DS_COPY_HOST_STABLE) == 0, "unknown flags %#x", flags);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        size ? ds__copy_between(s, dst, size, src, size, size, 1, NULL, NULL, flags) : DS_OK;
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
    ds_result r = width && height ? ds__copy_between(s, dst, dst_pitch, src, src_pitch, width,
                                                     height, NULL, NULL, 0)
                                  : DS_OK;
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
    ds_result r =
        size ? ds__copy_between(s, dst, size, src, size, size, 1, &dst_device, &src_device, 0)
             : DS_OK;
    ds__stream_unpin(s);
    return r;
}

/* Fills the operation of a fill, as a stream of the driver's has it, or says what is wrong. */
static ds_result ds__fill_op(const ds__driver *driver, ds__op *op, void *ptr, size_t pitch,
                             uint32_t value, size_t value_size, size_t width, size_t height,
                             unsigned flags) {
    DS__REQUIRE(value_size == 1 || value_size == 2 || value_size == 4,
                "a value of %zu bytes is not 1, 2 or 4", value_size);
    /* a division takes longer than all the rest */
    DS__REQUIRE(width <= SIZE_MAX >> (value_size >> 1),
                "%zu elements are larger than the address space", width);
    DS__REQUIRE(height <= 1 || (pitch >= width * value_size && (pitch & (value_size - 1)) == 0),
                "the pitch %zu is too small or not a multiple of %zu", pitch, value_size);
    DS__REQUIRE(((uintptr_t)ptr & (value_size - 1)) == 0, "%p is not a multiple of %zu", ptr,
                value_size);
    ds_pointer_info to;
    int known = 0;
    size_t span = width && height ? ds__span(pitch, width * value_size, height) : 1;
    if (!width || !height)
        return DS_OK;
    ds_result r = DS__LIKELY(span)
                      ? ds__operand(ptr, span, "ptr", &to, &known)
                      : ds__fail(DS_ERR_INVALID_VALUE, "the fill is larger than the address space");
    if (r == DS_OK && !known)
        r = ds__ask(ptr, &to);
    if (r < 0)
        return r;
    if (to.kind == DS_MEMORY_DEVICE && to.device.type != (int32_t)driver->type)
        return ds__fail(
            DS_ERR_CROSS_DRIVER, "the memory is on %s:%d, but the stream is on a device of type %s",
            ds__type_name(to.device.type), to.device.index, ds__type_name((int)driver->type));
    int rows = pitch != width * value_size;
    op->u.fill.dst = ptr;
    op->u.fill.pitch = pitch;
    op->u.fill.value_size = value_size;
    op->u.fill.width = rows ? width : width * height;
    op->u.fill.height = rows ? height : 1;
    op->u.fill.value = value;
    op->flags = to.kind == DS_MEMORY_PAGEABLE ? DS__OP_BLOCKS : 0;
    op->places = (uint16_t)(ds__place(driver, &to, 1, flags) << DS__OP_DST);
    return DS_OK;
}

static ds_result ds__fill_rows(ds_stream stream, void *ptr, size_t pitch, uint32_t value,
                               size_t value_size, size_t width, size_t height) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_make(DS__OP_FILL);
    ds_result r = ds__fill_op(s->driver, &op, ptr, pitch, value, value_size, width, height, 0);
    if (r == DS_OK && DS__UNLIKELY(op.flags & DS__OP_BLOCKS) && ds__sync_watched() &&
        !ds__sync_is_captured(s))
        r = ds__sync_tell_stream(s, "accesses pageable memory and waits for the stream");
    if (r == DS_OK && width && height)
        r = ds__submit(s, &op);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_fill)(void *ptr, uint32_t value, size_t value_size, size_t count,
                         ds_stream stream) {
    DS__ENTER("ds_fill");
    return ds__fill_rows(stream, ptr, count * (value_size <= 4 ? value_size : 0), value, value_size,
                         count, 1);
}

DSDEF ds_result(ds_fill_2d)(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                            size_t width, size_t height, ds_stream stream) {
    DS__ENTER("ds_fill_2d");
    return ds__fill_rows(stream, ptr, pitch, value, value_size, width, height);
}

#endif
