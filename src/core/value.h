/* core/value.h - waits for values in memory, and writes of values.

   Checks operations on words of memory (ds__values_check) and enqueues them as one operation of the
   stream (ds_stream_batch_values and the functions for one word).

   Invariants: a list that reaches a driver has 1 to DS_VALUE_BATCH_MAX operations. Each one has a
   known kind and size, and an aligned word in pinned memory or in memory of the stream's device.
   Locks: none. core/graph_add.h and core/graph_exec_update.h call ds__values_check under the lock
   of a graph or an executable; it calls the driver's pointer_query.
   Threads: any. */
#ifndef DS__CORE_VALUE_H
#define DS__CORE_VALUE_H

#include "../api/value.h"
#include "init.h"
#include "stream.h"
#include "submit.h"
#include "copy.h"

/* Refuses a word that is not in pinned memory or in memory of the device. */
static ds_result ds__value_place(const ds__driver *driver, ds_device device,
                                 const ds_value_op *op) {
    ds_pointer_info info;
    int known;
    ds_result r = ds__copy_operand_find(op->address, op->size, "address", &info, &known);
    if (r == DS_OK && !known)
        r = driver->pointer_query(op->address, &info);
    if (r < 0)
        return r;
    if (info.kind == DS_MEMORY_PAGEABLE)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the word at %p is in pageable memory; use ds_pinned_alloc, "
                        "ds_pinned_register or memory of the device",
                        op->address);
    if (info.kind == DS_MEMORY_DEVICE &&
        (info.device.type != device.type || info.device.index != device.index))
        return ds__fail(
            info.device.type == device.type ? DS_ERR_INVALID_VALUE : DS_ERR_CROSS_DRIVER,
            "the word at %p is in memory of %s:%d, but the stream or node is of %s:%d; use pinned "
            "memory",
            op->address, ds__type_name(info.device.type), info.device.index,
            ds__type_name(device.type), device.index);
    return DS_OK;
}

static ds_result ds__value_check(const ds__driver *driver, ds_device device,
                                 const ds_value_op *op) {
    DS__REQUIRE((unsigned)op->kind <= DS_VALUE_WAIT_NOR, "kind is %d; use a DS_VALUE_* kind",
                (int)op->kind);
    DS__REQUIRE(op->size == 4 || op->size == 8, "size is %u bytes; a word has 4 or 8", op->size);
    DS__REQUIRE(op->size == 8 || op->value <= UINT32_MAX,
                "value is %#llx, which does not fit into a word of 4 bytes",
                (unsigned long long)op->value);
    DS__REQUIRE(op->address && (uintptr_t)op->address % op->size == 0,
                "address is %p; it must be a multiple of %u and not NULL", op->address, op->size);
    return ds__value_place(driver, device, op);
}

/* Checks a list of operations on words for a stream or a node of the device. */
static ds_result ds__values_check(const ds__driver *driver, ds_device device,
                                  const ds_value_op *ops, size_t count) {
    ds_result r = DS_OK;
    DS__REQUIRE(ops, "ops is NULL");
    DS__REQUIRE(count <= DS_VALUE_BATCH_MAX,
                "%zu operations exceed a batch; at most %d are allowed", count, DS_VALUE_BATCH_MAX);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__value_check(driver, device, &ops[i]);
        if (r < 0 && count > 1)
            ds__fail_append(r, "; operation %zu of %zu in the batch", i, count);
    }
    return r;
}

static ds_result ds__values_submit(ds_stream stream, const ds_value_op *ops, size_t count) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = count ? ds__values_check(s->driver, s->device, ops, count) : DS_OK;
    if (r == DS_OK && count) {
        ds__op op = ds__op_init(DS__OP_VALUES);
        op.u.values.list = ops;
        op.u.values.count = count;
        op.u.values.next = 0;
        r = ds__stream_submit(s, &op);
    }
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_batch_values)(ds_stream stream, const ds_value_op *ops, size_t count) {
    DS__ENTER("ds_stream_batch_values");
    return ds__values_submit(stream, ops, count);
}

/* Enqueues a wait for one word. */
static ds_result ds__value_wait(ds_stream stream, const ds_value_op *op) {
    DS__REQUIRE(op->kind != DS_VALUE_WRITE, "condition is %d; use a DS_VALUE_WAIT_* condition",
                (int)op->kind);
    return ds__values_submit(stream, op, 1);
}

DSDEF ds_result(ds_stream_wait_value32)(ds_stream stream, const void *address, uint32_t value,
                                        ds_value_kind condition) {
    DS__ENTER("ds_stream_wait_value32");
    return ds__value_wait(
        stream, &(ds_value_op){ (void *)(uintptr_t)address, value, condition, sizeof value });
}

DSDEF ds_result(ds_stream_wait_value64)(ds_stream stream, const void *address, uint64_t value,
                                        ds_value_kind condition) {
    DS__ENTER("ds_stream_wait_value64");
    return ds__value_wait(
        stream, &(ds_value_op){ (void *)(uintptr_t)address, value, condition, sizeof value });
}

DSDEF ds_result(ds_stream_write_value32)(ds_stream stream, void *address, uint32_t value) {
    DS__ENTER("ds_stream_write_value32");
    return ds__values_submit(stream, &(ds_value_op){ address, value, DS_VALUE_WRITE, sizeof value },
                             1);
}

DSDEF ds_result(ds_stream_write_value64)(ds_stream stream, void *address, uint64_t value) {
    DS__ENTER("ds_stream_write_value64");
    return ds__values_submit(stream, &(ds_value_op){ address, value, DS_VALUE_WRITE, sizeof value },
                             1);
}

#endif
