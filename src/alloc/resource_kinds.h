/* alloc/resource_kinds.h - allocation and free of each kind of resource.

   Implements allocation and free for all kinds of resources (DS__RES_*): device, pool, driver's
   pool, limit, statistics, log, retry after a failure, alignment. ds__res_alloc and
   ds__res_free are the two functions of every resource made by devstream.

   Invariants: A successful allocation adds 1 to `live`, and its free subtracts 1; failed calls
   change nothing. `moved` has one entry for each block that was enlarged for its alignment. A
   limit's bytes are taken before the upstream is called, and returned if it fails.
   Locks: A record's own lock, around its counters, `moved` and its log line. The log's write_fn
   is user code and runs under that lock, so lines keep their order; devstream refuses calls
   from it. Upstreams, drivers and failure_fn are called with no lock of a resource held.
   Threads: any number of threads at once. Upstreams and failure_fn run on the caller's thread
   and may call devstream. */
#ifndef DS__ALLOC_RESOURCE_KINDS_H
#define DS__ALLOC_RESOURCE_KINDS_H

#include "../core/internal.h"
#include "../base/memory_table.h"
#include "util.h"
#include "resource.h"
#include "oom_owners.h"
#include "free.h"
#include "allocate.h"
#include "record_use.h"

static void ds__stat_add(ds_mem_stat *s, int64_t by) {
    s->current += by;
    *(by > 0 ? &s->allocated : &s->freed) += by > 0 ? by : -by;
    if (s->current > s->peak)
        s->peak = s->current;
}

/* Counts an allocation (1) or a free (-1) in the innermost level. */
static void ds__res_count(ds__res *r, size_t size, int sign) {
    ds__mutex_lock(&r->lock);
    ds__stat_add(&r->stats[r->depth].bytes, sign * (int64_t)size);
    ds__stat_add(&r->stats[r->depth].allocations, sign);
    ds__mutex_unlock(&r->lock);
}

/* Writes a line of the log. The time is read under the lock, so the times of the lines rise. */
static void ds__res_write(ds__res *r, const char *action, const void *ptr, size_t size,
                          ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    uint64_t id = s ? s->id : 0;
    if (s)
        ds__stream_unpin(s);
    ds__mutex_lock(&r->lock);
    ds__text_writer_print(&r->log, "%llu,%s,0x%llx,%zu,%llu\n",
                          (unsigned long long)(ds__now_ns() / 1000), action,
                          (unsigned long long)(uintptr_t)ptr, size, (unsigned long long)id);
    ds__mutex_unlock(&r->lock);
}

/* Takes bytes from the limit (1) or returns them (-1). */
static ds_result ds__res_take(ds__res *r, size_t size, int sign) {
    ds_result result = DS_OK;
    ds__mutex_lock(&r->lock);
    size_t left = r->limit > r->used ? r->limit - r->used : 0;
    if (sign < 0)
        r->used -= size < r->used ? size : r->used;
    else if (size <= left)
        r->used += size;
    else
        result = DS_ERR_LIMIT_EXCEEDED;
    ds__mutex_unlock(&r->lock);
    if (result == DS_OK)
        return result;
    return ds__fail(result, "%s exceed the resource's limit of %s, of which %s are left",
                    DS__SIZE(size), DS__SIZE(r->limit), DS__SIZE(left));
}

/* Returns the link to the entry of an enlarged block, or the end of its list. The record is
   locked. */
static ds__moved **ds__res_moved(ds__res *r, const void *ptr) {
    uintptr_t n = (uintptr_t)ptr >> 8;
    ds__moved **at = &r->moved[(n ^ n >> 6 ^ n >> 14) & 63];
    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    return at;
}

/* Enters an enlarged block. */
static void ds__res_moved_in(ds__res *r, ds__moved *m) {
    ds__mutex_lock(&r->lock);
    ds__moved **at = ds__res_moved(r, m->ptr);
    m->next = *at;
    *at = m;
    ds__mutex_unlock(&r->lock);
}

/* Allocates aligned memory: a larger block of the upstream, from its first aligned address on. */
static ds_result ds__res_alloc_aligned(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                       void **out) {
    if (size >= r->threshold && r->alignment > alignment)
        alignment = r->alignment;
    if (alignment <= 256)
        return ds__up_alloc(&r->up, size, 0, stream, out);
    DS__REQUIRE(size <= SIZE_MAX - alignment, "%zu bytes exceed the address space", size);
    ds__moved *m = ds__host_alloc(sizeof *m);
    ds_result result =
        m ? ds__up_alloc(&r->up, size + alignment, 0, stream, &m->whole)
          : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record the start of a block");
    if (result < 0) {
        ds__host_free(m);
        return result;
    }
    m->size = size + alignment;
    m->ptr = *out = (char *)m->whole + (alignment - (uintptr_t)m->whole % alignment) % alignment;
    ds__res_moved_in(r, m);
    return DS_OK;
}

/* Frees memory of ds__res_alloc_aligned. If the upstream fails, the block stays. */
static ds_result ds__res_free_aligned(ds__res *r, void *ptr, size_t size, ds_stream stream) {
    ds__mutex_lock(&r->lock);
    ds__moved **at = ds__res_moved(r, ptr);
    ds__moved *m = *at;
    if (m)
        *at = m->next;
    ds__mutex_unlock(&r->lock);
    ds_result result = ds__up_free(&r->up, m ? m->whole : ptr, m ? m->size : size, stream);
    if (result < 0 && m)
        ds__res_moved_in(r, m);
    else
        ds__host_free(m);
    return result;
}

/* Allocates from the upstream. After a shortage, invokes failure_fn and repeats while it returns 1.
   Errors are muted; only the last one is reported. */
static ds_result ds__res_alloc_or_ask(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                      void **out) {
    char why[sizeof ds__tls.aside];
    for (;;) {
        ds__tls.mute++;
        ds_result result = ds__up_alloc(&r->up, size, alignment, stream, out);
        ds__tls.mute--;
        if (result == DS_OK)
            return result;
        memcpy(why, ds__tls.aside, sizeof why);
        ds__outside o = ds__outside_begin();
        int more = ds__is_shortage(result) && r->failure_fn(size, r->user) == 1;
        ds__outside_end(o);
        if (more)
            continue;
        memcpy(ds__tls.mute ? ds__tls.aside : ds__tls.error, why, sizeof why);
        ds__tls.code = result;
        if (!ds__tls.mute)
            ds__log_write(DS_LOG_ERROR, result, why);
        return result;
    }
}

/* Allocates memory as the kind of the resource demands. No lock is held. */
static ds_result ds__res_alloc_from(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                    void **out) {
    ds_result result = DS_OK;
    switch (r->kind) {
    case DS__RES_DEVICE:
        DS__REQUIRE(alignment <= 256,
                    "device memory is aligned to 256, not to %zu: use ds_resource_create_aligned",
                    alignment);
        return ds__alloc_device(r->device, size, out);
    case DS__RES_POOL: {
        ds_mem_request q = {
            .size = size, .stream = stream, .pool = r->pool, .alignment = alignment
        };
        DS__KEEPING(result, (ds_mem_alloc_with)(&q, out));
        return result;
    }
    case DS__RES_DRIVER: {
        DS__REQUIRE(
            alignment <= 256,
            "the driver's memory is aligned to 256, not to %zu: use ds_resource_create_aligned",
            alignment);
        ds__stream *s = ds__stream_pin(stream);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        result = ds__async_alloc(s, size, out);
        ds__stream_unpin(s);
        return result;
    }
    case DS__RES_LIMIT:
        result = ds__res_take(r, size, 1);
        if (result < 0)
            return result;
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        if (result < 0)
            DS_IGNORE(ds__res_take(r, size, -1));
        return result;
    case DS__RES_STATISTICS:
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        if (result == DS_OK)
            ds__res_count(r, size, 1);
        return result;
    case DS__RES_LOG:
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        ds__res_write(r, result == DS_OK ? "allocate" : "allocate_failure", *out, size, stream);
        return result;
    case DS__RES_FAILURE:
        return ds__res_alloc_or_ask(r, size, alignment, stream, out);
    default:
        return ds__res_alloc_aligned(r, size, alignment, stream, out);
    }
}

/* Frees memory as the kind of the resource demands. No lock is held. */
static ds_result ds__res_free_to(ds__res *r, void *ptr, size_t size, ds_stream stream) {
    ds_result result = DS_OK;
    switch (r->kind) {
    case DS__RES_DEVICE:
        return ds__memory_deinit(ptr, DS_MEMORY_DEVICE, "an allocation of ds_device_alloc");
    case DS__RES_POOL:
        /* does nothing for the block's own stream */
        if (stream.id)
            DS__KEEPING(result, (ds_mem_record_use)(ptr, stream));
        if (result == DS_OK)
            DS__KEEPING(result, (ds_mem_free)(ptr));
        return result;
    case DS__RES_DRIVER: {
        ds__found f = { 0, 0, DS_MEMORY_DEVICE, 0, 0, 0 };
        int known = ds__range_find(ptr, &f);
        ds_device device = { f.backend ? DS_DEVICE_CPU : DS_DEVICE_CUDA, f.device };
        DS__REQUIRE(known, "%p is not the start of memory of the driver's allocator", ptr);
        /* without a stream, all work on the memory is done */
        ds__stream *s = stream.id ? ds__stream_pin(stream) : ds__any_stream(device);
        if (!s)
            return ds__mem_error();
        result = ds__async_free(s, ptr);
        ds__stream_unpin(s);
        return result;
    }
    case DS__RES_ALIGNED:
        return ds__res_free_aligned(r, ptr, size, stream);
    default:
        break;
    }
    result = ds__up_free(&r->up, ptr, size, stream);
    if (result < 0)
        return result;
    if (r->kind == DS__RES_LIMIT)
        DS_IGNORE(ds__res_take(r, size, -1));
    if (r->kind == DS__RES_STATISTICS)
        ds__res_count(r, size, -1);
    if (r->kind == DS__RES_LOG)
        ds__res_write(r, "free", ptr, size, stream);
    return result;
}

static ds_result ds__res_alloc(void *user, size_t size, size_t alignment, ds_stream stream,
                               void **out) {
    *out = NULL;
    ds__res *r = ds__res_ref(user, NULL);
    if (!r)
        return DS_ERR_INVALID_HANDLE;
    ds_result result = ds__res_alloc_from(r, size, alignment, stream, out);
    if (result < 0) {
        *out = NULL;
        ds__res_unref(r, 1);
    }
    return result;
}

static ds_result ds__res_free(void *user, void *ptr, size_t size, ds_stream stream) {
    int64_t live;
    ds__res *r = ds__res_ref(user, &live);
    if (!r)
        return DS_ERR_INVALID_HANDLE;
    ds_result result =
        live > 0 ? ds__res_free_to(r, ptr, size, stream)
                 : ds__fail(DS_ERR_INVALID_VALUE, "ptr was not allocated by the resource");
    ds__res_unref(r, result == DS_OK ? 2 : 1);
    return result;
}

static const ds_resource ds__res_made = { ds__res_alloc, ds__res_free, NULL };

#endif
