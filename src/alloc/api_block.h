/* alloc/api_block.h - block query and emptying the cache.

   Implements ds_mem_get_block, ds_mem_empty_cache, ds_mem_empty_stream_cache and ds_mem_trim.
   ds__block_describe fills the public description of a block; checkpoint.h and snapshot.h use it
   too.

   Invariants: Label and call site are reported only for live and pending blocks. While a capture
   is open, nothing is given back and DS_ERR_CAPTURE_UNSUPPORTED is returned.
   Locks: ds__block_describe expects the lock of the block's arena; ds_mem_get_block takes that
   lock. The functions that give memory back expect no lock; trim.h takes the locks for them. While
   the host waits for a stream, no spinlock is held.
   Threads: any caller's thread. The functions that give memory back may block the host until
   streams have done their work. */
#ifndef DS__ALLOC_API_BLOCK_H
#define DS__ALLOC_API_BLOCK_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "history_ring.h"
#include "block.h"
#include "pool.h"
#include "arena.h"
#include "pending.h"
#include "validate.h"
#include "segment.h"
#include "trim.h"

/* Fills the public description of a block. The arena is locked. */
static void ds__block_describe(const ds__arena *a, const ds__mem_block *b, ds_mem_block *out) {
    memset(out, 0, sizeof *out);
    out->ptr = b->ptr;
    out->size = b->size;
    out->requested = b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING ? b->asked : 0;
    out->segment = b->seg->base;
    out->segment_size = b->seg->mapped;
    out->device = a->dev->device;
    out->stream = ds__stream_of(a, b);
    out->pool.id = a->pool->id;
    out->state = (ds_mem_state)b->state;
    if (b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING) {
        out->label = b->label;
        out->site.file = b->file;
        out->site.line = (int)b->line;
    }
}

DSDEF ds_result(ds_mem_get_block)(const void *ptr, ds_mem_block *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_get_block");
    DS__REQUIRE(out, "out is NULL");
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
    DS__REQUIRE(b, "%p is not inside a live allocation", ptr);
    ds__block_describe(a, b, out);
    ds__arena_unlock(a);
    return DS_OK;
}

/* Gives the cached memory of a device back, down to `keep` reserved bytes. */
static ds_result ds__mem_empty(ds_device device, size_t keep, size_t *out_released) {
    ds__mem_dev *dev;
    ds_result r = ds__mem_used(device, &dev);
    if (r < 0 || !dev)
        return r;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    size_t done = 0;
    r = ds__pool_check(&dev->main, 1);
    if (r == DS_OK && DS__UNLIKELY(ds__sync_watched()))
        r = ds__sync_tell("waits for blocks in use by other streams");
    if (r < 0)
        return r;
    size_t pool = ds__async_has(dev, NULL);
    if (atomic_load(&dev->reserved) > keep)
        done = ds__mem_flush(dev, NULL, keep);
    else
        atomic_fetch_add(&dev->stats.syncs, keep == 0);
    size_t blocks = atomic_load(&dev->async_bytes);
    size_t others = atomic_load(&dev->reserved);
    others = others > blocks ? others - blocks : 0;
    keep = keep > others ? keep - others : 0;
    if (pool > keep) { /* the driver's pool gives back memory only after the work of streams */
        ds__async_give(dev, keep);
        size_t left = ds__async_has(dev, NULL);
        done += pool > left ? pool - left : 0;
    }
    if (out_released)
        *out_released = done;
    return r;
}

DSDEF ds_result(ds_mem_empty_cache)(ds_device device, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_empty_cache");
    return ds__mem_empty(device, 0, out_released);
}

DSDEF ds_result(ds_mem_empty_stream_cache)(ds_stream stream, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_empty_stream_cache");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(s->device), s->device.index);
    ds_result r = DS_OK;
    if (ds__captures_open())
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "cached memory cannot be freed while a capture is open");
    else if (DS__UNLIKELY(ds__sync_watched()))
        r = ds__sync_tell("waits for blocks in use by other streams");
    if (r == DS_OK && dev)
        r = ds__pool_check(&dev->main, 1);
    ds__arena *a = r == DS_OK && dev ? ds__arena_main(s, stream) : NULL;
    if (r == DS_OK && dev && !a)
        r = ds__mem_error();
    if (a) {
        (void)ds__pending_poll(a, 1);
        size_t done = ds__arena_trim(a, SIZE_MAX, 0);
        if (out_released)
            *out_released = done;
    }
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_mem_trim)(ds_device device, size_t keep, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_trim");
    return ds__mem_empty(device, keep, out_released);
}

#endif
