/* alloc/pinned_api.h - public functions of pinned host memory.

   Implements the functions of api/pinned.h, such as ds_mem_pinned_alloc, ds_mem_pinned_free and
   ds_mem_pinned_record_use, over the blocks of pinned_block.h. ds__pinned_hold records the use of a
   block by the graphs of a capture.

   Invariants: A freed block becomes pending if it has recorded uses, and free otherwise. The
   use by a capture (ds__hold) has no event; it ends with the last graph. ds_mem_pinned_free never
   queries an event.
   Locks: ds_mem_pinned_free holds the arena's lock, then ds__host.count, while the block changes
   its state. It releases both before it returns a segment to the driver. The statistics
   functions stop the device (ds__mem_lock_all) and take ds__host.clock_lock after that, not
   inside. ds__pinned_hold makes a use and its event without a lock, so it looks the block up
   again.
   Threads: any number of caller's threads at once. */
#ifndef DS__ALLOC_PINNED_API_H
#define DS__ALLOC_PINNED_API_H

#include "../api/pinned.h"
#include "../core/internal.h"
#include "internal.h"
#include "types.h"
#include "util.h"
#include "counters.h"
#include "block.h"
#include "pool.h"
#include "stream_use.h"
#include "pending.h"
#include "pinned.h"
#include "stats_sum.h"
#include "segment_plain.h"
#include "record_use.h"
#include "stats.h"
#include "pinned_block.h"

DSDEF ds_result(ds_mem_pinned_alloc)(size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__MEM_ENTER("ds_mem_pinned_alloc");
    DS__REQUIRE(out, "out is NULL");
    if (!size)
        return DS_OK;
    ds__mem_dev *dev = ds__pinned_device();
    if (!dev)
        return ds__mem_error();
    ds_result r = ds__pinned_check(dev, 2);
    if (r < 0)
        return r;
    int huge = size >= (size_t)1 << 60;
    ds__pinned_wish q = ds__pinned_want(huge ? DS__UNIT : size);
    if (huge) {
        q.asked = size;
        return ds__pinned_short(&q, DS_ERR_OUT_OF_MEMORY);
    }
    if (atomic_load_explicit(&ds__host.polls, memory_order_relaxed) && !ds__captures_open())
        (void)ds__pinned_poll(q.a, DS__POLLS);
    if (!ds__pinned_take(&q)) {
        r = ds__pinned_check(dev, 1);
        if (r < 0)
            return r;
        ds__tls.mute++;
        r = ds__pinned_fallback_serve(&q);
        ds__tls.mute--;
        if (ds__is_shortage(r))
            return ds__pinned_short(&q, r);
        if (r < 0) {
            if (!ds__tls.mute)
                memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
            return r;
        }
    }
    *out = q.ptr;
    return DS_OK;
}

static ds_result ds__mem_pinned_free_late(uint64_t what) {
    return (ds_mem_pinned_free)((void *)(uintptr_t)what);
}

DSDEF ds_result(ds_mem_pinned_free)(void *ptr) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_memory("ds_mem_pinned_free", ptr, DS_MEMORY_PINNED,
                                   ds__mem_pinned_free_late);
    ds__arena *a = NULL;
    DS__ENTER("ds_mem_pinned_free");
    if (!ptr)
        return DS_OK;
    ds__mem_block *b = ds__find_live(ptr, 1, &a);
    if (b && a->dev->device.type != DS_DEVICE_HOST) {
        ds__arena_unlock(a);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is device memory; use ds_mem_free", ptr);
    }
    DS__REQUIRE(b, "%p is not the start of a live pinned block", ptr);
    ds__segment *over = NULL;
    ds__spinlock_lock(&ds__host.count);
    if (ds__observer_is_set())
        ds__observe_block(a, DS_ACTION_FREE_REQUESTED, b);
    ds__live_out(b);
    if (b->uses) {
        ds__count_pending(a, b->seg->kind, (int64_t)b->size);
        ds__pending_in(a, b);
    } else {
        ds__count_free(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
        over = ds__pinned_settle(a, b);
    }
    ds__host_unlock(a);
    if (over)
        DS_IGNORE(ds__segment_return(a, over));
    return ds__pinned_check(a->dev, 2);
}

/* Returns whether the graphs of a capture use the block already. The arena is locked. */
static int ds__hold_is_noted(const ds__mem_block *b, const ds__hold *hold) {
    const ds__stream_use *u = b->uses;
    while (u && u->hold != hold)
        u = u->next;
    return u != NULL;
}

/* Adds a use by the graphs of a capture to a block. The arena is locked. */
static void ds__hold_note(ds__mem_block *b, ds__hold *hold, ds__stream_use *u) {
    u->stream.id = 0;
    u->recorded = 1;
    u->hold = hold;
    atomic_fetch_add(&hold->owners, 1);
    u->next = b->uses;
    b->uses = u;
}

static ds_result ds__pinned_not_live(const void *ptr) {
    return ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live pinned block", ptr);
}

/* Notes that the graphs of a capture use the block at `ptr`. The description of the use is made
   without a lock, so the block is looked up again. No lock is held. */
static ds_result ds__pinned_hold(void *ptr, ds__hold *hold) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
    if (!b)
        return ds__pinned_not_live(ptr);
    int noted = ds__hold_is_noted(b, hold);
    ds__arena_unlock(a);
    if (noted)
        return DS_OK;
    ds__arena *stock = a;
    ds__stream_use *fresh = ds__stream_use_create(stock, stock->dev->device);
    if (!fresh)
        return DS_ERR_OUT_OF_MEMORY;

    b = ds__find_live(ptr, 0, &a);
    noted = !b || ds__hold_is_noted(b, hold);
    if (!noted)
        ds__hold_note(b, hold, fresh);
    if (b)
        ds__arena_unlock(a);
    if (noted) {
        ds__arena_lock(stock);
        ds__stream_uses_destroy(stock, fresh);
        ds__arena_unlock(stock);
    }
    return b ? DS_OK : ds__pinned_not_live(ptr);
}

/* Returns whether the address is inside of a live block of pinned memory. */
static int ds__pinned_known(const void *ptr) {
    ds__arena *a = NULL;
    if (!ds__find_live(ptr, 0, &a))
        return 0;
    ds__arena_unlock(a);
    return a->dev->device.type == DS_DEVICE_HOST;
}

/* Notes the use of pinned memory by the capture of a stream. *out_captured: 0 if the stream does
   not capture, and then nothing is noted. */
static ds_result ds__pinned_capture_use(void *ptr, ds_stream stream, int *out_captured) {
    ds__object *kept = NULL;
    *out_captured = 0;
    if (!ds__pinned_known(ptr))
        return ds__pinned_not_live(ptr);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__capture_attachment(s,
                                         &(ds__attachment){ .key = &ds__host,
                                                            .make_fn = ds__hold_create,
                                                            .release_fn = ds__hold_release },
                                         &kept);
    ds__stream_unpin(s);
    if (r < 0 || !kept)
        return r;
    *out_captured = 1;
    r = ds__pinned_hold(ptr, kept->user);
    ds__object_unref(kept);
    if (r == DS_OK && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_USE, .ptr = ptr, .stream = stream });
    return r;
}

DSDEF ds_result(ds_mem_pinned_record_use)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_pinned_record_use");
    if (!ptr)
        return DS_OK;
    int captured = 0;
    ds_result r = DS_OK;
    if (DS__UNLIKELY(ds__captures_open()))
        r = ds__pinned_capture_use(ptr, stream, &captured);
    if (r < 0 || captured)
        return r;
    r = ds__note_use(ptr, stream, 1, 1, 1);
    return r == DS_OK ? ds__pinned_check(ds__pinned_used(), 2) : r;
}

/* As ds__mem_operand, for pinned memory. */
DS__SEAM static ds_result ds__pinned_operand(void *ptr, ds_stream stream) {
    ds_result r = DS_OK;
    if (ds__pinned_known(ptr))
        DS__KEEPING(r, (ds_mem_pinned_record_use)(ptr, stream));
    return r;
}

DSDEF ds_result(ds_mem_pinned_owns)(const void *ptr, int *out) {
    if (out)
        *out = 0;
    DS__MEM_ENTER("ds_mem_pinned_owns");
    DS__REQUIRE(out, "out is NULL");
    *out = ds__pinned_known(ptr);
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_empty_cache)(size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_pinned_empty_cache");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    size_t done = ds__pinned_flush();
    if (out_released)
        *out_released = done;
    return ds__pinned_check(dev, 1);
}

DSDEF ds_result(ds_mem_pinned_set_limit)(size_t bytes) {
    DS__MEM_ENTER("ds_mem_pinned_set_limit");
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__host.lock);
    atomic_store(&ds__host.limit, bytes);
    if (ds__pinned_used())
        atomic_store(&ds__pinned_used()->limit, bytes);
    ds__mutex_unlock(&ds__host.lock);
    return DS_OK;
}

/* Returns times of driver calls in microseconds. */
static ds_mem_duration ds__pinned_duration_of(const ds__clock *c) {
    ds_mem_duration d = { c->total / 1000, c->max / 1000, c->min / 1000, c->count,
                          c->count ? c->total / c->count / 1000 : 0 };
    return d;
}

DSDEF ds_result(ds_mem_pinned_get_stats)(ds_mem_pinned_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_pinned_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_dev *dev = ds__pinned_used();
    if (dev) {
        ds_mem_stats s;
        ds__stats_sum(dev, NULL, &s);
        out->allocations = s.allocation[DS_STAT_ALL];
        out->allocated_bytes = s.reserved_bytes[DS_STAT_ALL];
        out->active_requests = s.active[DS_STAT_ALL];
        out->active_bytes = s.active_bytes[DS_STAT_ALL];
        out->num_host_alloc = s.num_device_alloc;
        out->num_host_free = s.num_device_free;
        ds__spinlock_lock(&ds__host.clock_lock);
        out->host_alloc_time = ds__pinned_duration_of(&ds__host.made);
        out->host_free_time = ds__pinned_duration_of(&ds__host.ended);
        ds__spinlock_unlock(&ds__host.clock_lock);
    }
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_reset_peak_stats)(void) {
    DS__MEM_ENTER("ds_mem_pinned_reset_peak_stats");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    ds__mem_reset_of(dev, 1);
    ds__spinlock_lock(&ds__host.clock_lock);
    ds__host.made.max = ds__host.made.min = ds__host.ended.max = ds__host.ended.min = 0;
    ds__spinlock_unlock(&ds__host.clock_lock);
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_reset_accumulated_stats)(void) {
    DS__MEM_ENTER("ds_mem_pinned_reset_accumulated_stats");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    ds__mem_reset_of(dev, 0);
    ds__spinlock_lock(&ds__host.clock_lock);
    ds__host.made.total = ds__host.made.count = ds__host.ended.total = ds__host.ended.count = 0;
    ds__spinlock_unlock(&ds__host.clock_lock);
    return DS_OK;
}

#endif
