/* alloc/watched.h - guards, poison and checks of watched pools.

   Does the extra work of pools with poison, guard_bytes or debug from 2 on. ds__watched_alloc
   fills the guard behind a new block. ds__watched_free checks it, warns about damage, and
   poisons the block (poison.h).

   Invariants: A guard is a fill in stream order, and made only where ds__may_write permits it. A
   guard begins directly behind the requested bytes, rounded up to 4, and is checked only where
   one was filled (`guarded`). The policy may have changed since, or a capture was open then.
   Locks: expects no spinning lock; the freed block is claimed and in no list. ds__watched_alloc
   holds back new captures (ds__g.begin) around its fill. ds__watched_free may block the host
   until the uses of the block and the work of its stream are done.
   Threads: caller's threads, in allocations and frees. A guard is read on a stream of the
   allocator (ds__direct_giver), so a capture may begin on the block's stream meanwhile. */
#ifndef DS__ALLOC_WATCHED_H
#define DS__ALLOC_WATCHED_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "pool.h"
#include "stream_use.h"
#include "arena.h"
#include "poison.h"
#include "validate.h"
#include "request.h"

#define DS__GUARD 0x5AFE5AFEu

/* Returns the start of a block's guard. */
static char *ds__guard_of(const ds__mem_block *b) {
    return b->ptr + ((b->asked + 3) & ~(size_t)3);
}

/* Checks the pool, and fills the guard of a new block in stream order. No lock is held. */
static ds_result ds__watched_alloc(ds__wanted *q, size_t guard) {
    ds__mem_block *b = q->block;
    ds_result r = ds__pool_check(q->a->pool, 2);
    if (r < 0 || !guard)
        return r;
    ds__hold_captures();
    if (ds__may_write(q->a->pool)) {
        r = ds__own_fill(q->stream, ds__guard_of(b), DS__GUARD, guard);
        if (r == DS_OK)
            b->guarded = (uint32_t)guard;
    }
    ds__let_captures();
    return r;
}

/* Copies memory of a block to the host. Uses the allocator's own stream, so a capture that begins
   on the block's stream is not invalidated. The work on the block is done. */
static ds_result ds__own_read(ds__arena *a, void *to, const void *from, size_t size) {
    ds_result r;
    ds__stream *s = ds__direct_giver(a->dev);
    if (!s)
        return ds__mem_error();
    ds_stream reader = { ds__handle_of(&s->slot) };
    DS__KEEPING(r, (ds_copy)(to, from, size, reader));
    if (r == DS_OK)
        r = ds__stream_sync(reader, DS__FOREVER);
    ds__stream_unpin(s);
    return r;
}

/* Logs that a block was overwritten `behind` bytes behind the requested ones. */
static void ds__guard_report(const ds__mem_block *b, size_t behind) {
    ds__log_warn("%zu bytes at %p%s%s, allocated at %s:%u, were overwritten %zu bytes "
                 "behind their end; found at the free at %s:%d",
                 b->asked, (void *)b->ptr, b->label ? " of " : "", b->label ? b->label : "",
                 b->file ? b->file : "?", b->line, behind,
                 ds__tls.site.file ? ds__tls.site.file : "?", ds__tls.site.line);
}

/* Checks the guard of a freed block, after the work on the block is done. Logs damage; the free
   succeeds, because it caused no damage. */
static void ds__guard_check(ds__arena *a, const ds__mem_block *b, size_t guard) {
    /* the work of the borrowing stream is one of the uses */
    if (!ds__uses_awaited(b->uses) || !(b->lent || ds__arena_drain(a)))
        return;
    const char *at = ds__guard_of(b);
    uint32_t *seen = ds__host_alloc(guard);
    if (seen && ds__own_read(a, seen, at, guard) == DS_OK)
        for (size_t i = 0; i < guard / sizeof *seen; i++)
            if (seen[i] != DS__GUARD) {
                ds__guard_report(b, (size_t)(at - b->ptr) + i * sizeof *seen - b->asked);
                break;
            }
    ds__host_free(seen);
}

/* Poisons a freed block: at once, if only the stream that has the block uses it. Otherwise the
   block stays `stale` and is poisoned when all uses are done, or by the stream that takes it
   earlier. */
static void ds__watched_poison(ds__arena *a, ds__mem_block *b) {
    const ds__stream_use *u = b->uses;
    ds__owner o = ds__owner_of(a);
    int alone;
    if (b->lent)
        alone = u && !u->next && !u->recorded && !u->lost;
    else
        alone = !u && !o.orphan;
    b->stale = 1;
    if (alone && !b->exported)
        ds__poison_on(b, b->lent ? u->stream : o.stream);
    else if (!u && !b->exported && !b->seg->direct)
        (void)ds__poison_late(a, b, 0);
}

/* Does the extra work of a free in a watched pool. The block is claimed and in no list; no lock is
   held. */
static void ds__watched_free(ds__arena *a, ds__mem_block *b) {
    size_t guard = b->guarded;
    b->guarded = 0;
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    if (guard)
        ds__guard_check(a, b, guard);
    if (ds__pool_policy(a->pool)->poison)
        ds__watched_poison(a, b);
    if (ds__pool_check(a->pool, 2) < 0)
        ds__log_warn("%s", ds__tls.aside);
    ds__tls.mute--;
}

#endif
