/* alloc/oom_hint.h - advice in out-of-memory reports.

   Chooses one sentence of advice for a request that found no memory (ds__oom_hint), from the
   numbers in ds__oom_facts. The first reason that applies wins. The order is: impossible
   requests, an open capture, unusable cached memory, the pool's limit, the device's limit, other
   users of the device, live blocks.

   Invariants: oom_walk.h has collected the numbers before; nothing is read from blocks or arenas
   here. ds__oom_fits decides whether memory given back would serve the request under all
   limits. The text is cut to the size of `hint`.
   Locks: takes none and expects none. ds__oom_could_grow may reserve address space from the
   driver and release it, with errors muted.
   Threads: the thread of the failed request. */
#ifndef DS__ALLOC_OOM_HINT_H
#define DS__ALLOC_OOM_HINT_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "pool.h"
#include "request.h"
#include "oom_owners.h"
#include "oom_walk.h"

/* Returns the fragmentation in percent. */
static int ds__oom_fragmentation(const ds__oom_facts *s) {
    return s->cached ? (int)(100.0 * (1.0 - (double)s->largest / (double)s->cached) + 0.5) : 0;
}

/* Returns whether growing segments are off but possible. */
static int ds__oom_could_grow(const ds__oom_facts *s) {
    void *at = NULL;
    size_t page = 0;
    if (ds__pool_policy(s->pool)->expandable_segments || s->pool->has_upstream ||
        s->pool->shareable || s->dev->has_space == 0)
        return 0;
    if (s->dev->has_space > 0)
        return 1;
    ds__tls.mute++;
    ds_result r = ds__space_reserve(s->dev->device, 2 * DS__MIB, &page, &at);
    if (r == DS_OK)
        ds__space_release(s->dev->device, at, 2 * DS__MIB);
    ds__tls.mute--;
    return r == DS_OK;
}

/* Returns whether the request could be served if `back` bytes went back to the device, `pool_back`
   of these from the pool. */
static int ds__oom_fits(const ds__oom_facts *s, size_t back, size_t pool_back) {
    size_t need = s->segment > s->size ? s->segment : s->size;
    size_t left = s->reserved - back;
    size_t pool_left = s->pool_reserved - pool_back;
    if (s->limit && (left > s->limit || need > s->limit - left))
        return 0;
    if (s->pool_limit && (pool_left > s->pool_limit || need > s->pool_limit - pool_left))
        return 0;
    return !s->known || need <= s->free + back;
}

/* Advice if an open capture keeps memory from the request. Returns 0 if the reason does not
   apply. */
static int ds__oom_hint_capture(ds__oom_facts *s) {
    const ds_mem_config *c = ds__pool_policy(s->pool);
    if (!s->capturing || ds__oom_fits(s, 0, 0))
        return 0;
    if (s->back && ds__oom_fits(s, s->back, s->pool_back))
        return snprintf(s->hint, sizeof s->hint,
                        "%s are cached, but cannot be freed while a capture is open; call %s "
                        "before the capture",
                        DS__SIZE(s->back),
                        s->back == s->pool_back && s->pool != &s->dev->main ? "ds_pool_empty_cache"
                                                                            : "ds_mem_empty_cache");
    if (s->awaited && ds__oom_fits(s, s->back + s->awaited, s->pool_back + s->pool_awaited))
        return snprintf(s->hint, sizeof s->hint,
                        "%s are freed but in use by other streams, which are not polled while a "
                        "capture is open; empty the cache before the capture",
                        DS__SIZE(s->awaited));
    if (s->pool->name[0] && s->pool_pending >= s->size && c->reuse == DS_REUSE_NEVER &&
        !c->graph_capture_record_stream_reuse)
        return snprintf(s->hint, sizeof s->hint,
                        "%s are freed, and other streams of the capture have used them; "
                        "graph_capture_record_stream_reuse:True allows their reuse",
                        DS__SIZE(s->pool_pending));
    return 0;
}

/* Returns the advice about a free block of another stream. */
static const char *ds__oom_theirs_advice(const ds__oom_facts *s) {
    if (s->apart)
        return ", and this stream cannot wait for it while a capture is open";
    if (ds__pool_policy(s->pool)->reuse == DS_REUSE_NEVER)
        return "; with reuse:on_shortage this stream may wait for it";
    return "; wait for that stream, or allocate on it";
}

/* Returns the reason why the block must be larger than the request. */
static const char *ds__oom_enlarged_by(const ds__oom_facts *s) {
    const ds_mem_config *c = ds__pool_policy(s->pool);
    if (s->aligned)
        return "the alignment";
    if (c->guard_bytes)
        return "guard_bytes";
    return ds__request_has_rounding(c) ? "roundup_power2_divisions" : "rounding";
}

/* Advice if one block would be large enough, but cannot be used. Returns 0 if the reason does not
   apply. */
static int ds__oom_hint_block(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (s->mine >= s->size)
        return snprintf(out, room, "a block of %s was freed during the call; try again",
                        DS__SIZE(s->mine));
    if (s->kept >= s->size)
        return snprintf(out, room, "a free block of %s is not split because of max_split_size, %s",
                        DS__SIZE(s->kept), DS__SIZE(ds__pool_policy(s->pool)->max_split_size));
    if (s->theirs >= s->size)
        return snprintf(out, room, "a free block of %s belongs to another stream%s",
                        DS__SIZE(s->theirs), ds__oom_theirs_advice(s));
    if (s->elsewhere >= s->size)
        return snprintf(
            out, room,
            "a free block of %s is in segments for %s requests; single_pool:True shares segments",
            DS__SIZE(s->elsewhere), s->kind == DS__SMALL ? "large" : "small");
    if (s->mine >= s->wanted)
        return snprintf(out, room,
                        "a free block of %s would fit, but %s enlarges the request to %s",
                        DS__SIZE(s->mine), ds__oom_enlarged_by(s), DS__SIZE(s->size));
    return 0;
}

/* Advice if there is enough memory that cannot be used: pending, in one block, in pieces, or in
   other pools. Returns 0 if the reason does not apply. */
static int ds__oom_hint_cached(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (s->pool_pending >= s->size && !s->capturing)
        return snprintf(out, room,
                        "%s are freed but in use by other streams; synchronize those, or call "
                        "ds_mem_record_use right after their last use",
                        DS__SIZE(s->pool_pending));
    int n = ds__oom_hint_block(s);
    if (n)
        return n;
    if (s->pool_cached >= s->wanted && ds__oom_could_grow(s))
        return snprintf(out, room,
                        "%s are cached in pieces too small; with expandable_segments:True pieces "
                        "can be remapped",
                        DS__SIZE(s->pool_cached));
    if (s->pool_cached >= s->wanted)
        return snprintf(out, room,
                        "%s are cached in pieces too small; allocate long-lived blocks first, or "
                        "use fewer sizes (roundup_power2_divisions:4)",
                        DS__SIZE(s->pool_cached));
    if (s->private_cached >= s->wanted)
        return snprintf(out, room,
                        "%s are free in private pools; destroy unused graphs and pools, or create "
                        "the pools with use_on_oom",
                        DS__SIZE(s->private_cached));
    return 0;
}

/* Advice if no freed memory would help: the request exceeds the device or a limit, or an upstream
   has refused. Returns 0 if the reason does not apply. */
static int ds__oom_hint_impossible(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    size_t most = s->limit && s->limit < s->total ? s->limit : s->total;
    if (s->wanted >= (size_t)1 << 60)
        return snprintf(
            out, room,
            "no device has 2^60 bytes; the size looks like a negative number or an overflow");
    if (ds__memory_thread.upstream_empty)
        return snprintf(out, room,
                        "the pool's upstream returned NULL; check the upstream's own report");
    if (s->total && s->wanted > s->total)
        return snprintf(out, room, "the device is smaller than the request");
    if (most && s->wanted > most)
        return snprintf(
            out, room,
            "the request is larger than the limit of %s; raise it by ds_mem_set_limit or "
            "ds_mem_set_fraction",
            DS__SIZE(most));
    if (s->pool_limit && s->wanted > s->pool_limit)
        return snprintf(out, room, "the request is larger than the pool's limit of %s",
                        DS__SIZE(s->pool_limit));
    return 0;
}

/* Returns whether a limit (0: none) prevents the segment while so many bytes are reserved. */
static int ds__oom_exceeds(const ds__oom_facts *s, size_t limit, size_t reserved) {
    return limit && s->segment > limit - (reserved < limit ? reserved : limit);
}

/* Advice if a limit prevents the allocation. Returns 0 if the reason does not apply. */
static int ds__oom_hint_limit(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (ds__oom_exceeds(s, s->pool_limit, s->pool_reserved))
        return snprintf(
            out, room,
            "only the pool's limit of %s prevents the allocation; raise it, or free memory of "
            "the pool",
            DS__SIZE(s->pool_limit));
    if (ds__oom_exceeds(s, s->limit, s->reserved))
        return snprintf(
            out, room,
            "only the limit of %s prevents the allocation; raise it by ds_mem_set_limit or "
            "ds_mem_set_fraction (limit, per_process_memory_fraction)",
            DS__SIZE(s->limit));
    return 0;
}

/* Writes the advice of the first reason that applies to s->hint. */
static void ds__oom_hint(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (ds__oom_hint_impossible(s) || ds__oom_hint_capture(s) || ds__oom_hint_cached(s) ||
        ds__oom_hint_limit(s))
        return;
    if (s->outside >= s->wanted || s->outside > s->total / 2)
        snprintf(out, room,
                 "%s of the device are used outside the allocator: processes "
                 "(ds_mem_write_processes), contexts, libraries, ds_device_alloc",
                 DS__SIZE(s->outside));
    else if (s->tops && s->top[0].bytes > s->live / 2)
        snprintf(out, room, "%.60s has %s of the %s allocated bytes; check this owner first",
                 s->top[0].name, DS__SIZE(s->top[0].bytes), DS__SIZE(s->live));
    else
        snprintf(out, room, "live blocks use all memory; free some, or use smaller requests");
}

#endif
