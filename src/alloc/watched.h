/* alloc/watched.h - guards, poison and checks of watched pools.

   Does the extra work of pools with poison, guard_bytes or debug from 2 on. ds__watched_alloc
   fills the guard behind a new block. ds__watched_free checks it, warns about damage, and
   poisons the block (poison.h).

   Invariants: A guard is a fill in stream order, and made only where ds__may_write permits it. A
   guard begins directly behind the requested bytes, rounded up to 4, and is checked only where
   one was filled (`guarded`). The policy may have changed since, or a capture was open then.
   Locks: expects no spinning lock; the freed block is quiet and in no list. ds__watched_alloc
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

static char *ds__guard_of(const ds__mem_block *b) {
    return b->ptr + ((b->asked + 3) & ~(size_t)3);
}

static ds_result ds__watched_alloc(ds__wanted *q, size_t guard) {
    ds__mem_block *b = q->block;
    ds_result r = ds__pool_check(q->a->pool, 2);
    if (r < 0 || !guard)
        return r;
    ds__hold_captures();
    if (ds__may_write(q->a->pool) &&
        (r = ds__own_fill(q->stream, ds__guard_of(b), DS__GUARD, guard)) == DS_OK)
        b->guarded = (uint32_t)guard;
    ds__let_captures();
    return r;
}

/* What the device's work has left there. It is read on a stream that nobody captures: a capture
   that begins on the block's own one is not spoilt. */
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

/* Is called with the block in no list. A damaged guard is told through the log: the free itself
   has done nothing wrong. */
static void ds__watched_free(ds__arena *a, ds__mem_block *b) {
    size_t guard = b->guarded;
    b->guarded = 0;
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    /* a borrower is one of the uses */
    if (guard && ds__uses_awaited(b->uses) && (b->lent || ds__arena_drain(a))) {
        const char *at = ds__guard_of(b);
        uint32_t *seen = ds__host_alloc(guard);
        if (seen && ds__own_read(a, seen, at, guard) == DS_OK)
            for (size_t i = 0; i < guard / sizeof *seen; i++)
                if (seen[i] != DS__GUARD) {
                    ds__log_warn(
                        "%zu bytes at %p%s%s, allocated at %s:%u, were overwritten %zu bytes "
                        "behind their end; found at the free at %s:%d",
                        b->asked, (void *)b->ptr, b->label ? " of " : "", b->label ? b->label : "",
                        b->file ? b->file : "?", b->line,
                        (size_t)(at - b->ptr) + i * sizeof *seen - b->asked,
                        ds__tls.site.file ? ds__tls.site.file : "?", ds__tls.site.line);
                    break;
                }
        ds__host_free(seen);
    }
    /* at once on the stream that has it, if nobody else does; else when all are done, or by who
       takes it before */
    if (ds__pool_policy(a->pool)->poison) {
        const ds__stream_use *u = b->uses;
        ds__owner o = ds__owner_of(a);
        int alone =
            !b->exported && (b->lent ? u && !u->next && !u->recorded && !u->lost : !u && !o.orphan);
        b->stale = 1;
        if (alone)
            ds__poison_on(b, b->lent ? u->stream : o.stream);
        else if (!u && !b->exported && !b->seg->direct)
            (void)ds__poison_late(a, b, 0);
    }
    if (ds__pool_check(a->pool, 2) < 0)
        ds__log_warn("%s", ds__tls.aside);
    ds__tls.mute--;
}

#endif
