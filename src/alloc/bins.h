/* alloc/bins.h - free blocks of an arena, sorted by size.

   Puts free blocks into bins: one for each size below 32 KiB, then 32 for each power of two.
   ds__bin_best_fit finds the best fitting block for a request, or nearly the best if
   best_fit_by_address is off. ds__too_large applies max_split_size and max_non_split_rounding to
   plain segments; ds__segment_is_growing tells which segments grow.

   Invariants: A block is in a bin exactly if its state is free and it is not quiet. The bit of a
   bin is set exactly if the bin holds a block. A bit of the summary is set exactly if its word
   of the map is not 0. `free_bytes` is the sum of the blocks in bins. Blocks in front of an
   unmapped block are in the last bin (DS__EDGE), which is used last.
   Locks: Every function expects the arena's lock, takes none, and calls neither the driver nor
   user code.
   Threads: any thread that holds the arena's lock. */
#ifndef DS__ALLOC_BINS_H
#define DS__ALLOC_BINS_H

#include "types.h"
#include "util.h"

static inline unsigned ds__bin_of_size(size_t size) {
    size_t u = size / DS__UNIT;
    if (u < 64)
        return (unsigned)u;
    unsigned e = 63u - (unsigned)__builtin_clzll(u);
    return 64 + (e - 6) * 32 + (unsigned)(u >> (e - 5) & 31);
}

/* Where a free block belongs. One in front of a hole could still grow, so it is the last to be
   used: such blocks have a bin of their own. */
#define DS__EDGE (DS__BINS - 1u)

static inline unsigned ds__bin_of(const ds__mem_block *b) {
    return DS__UNLIKELY(b->next && b->next->state == DS_BLOCK_UNMAPPED) ? DS__EDGE
                                                                        : ds__bin_of_size(b->size);
}

static inline void ds__bin_in(ds__arena *a, ds__mem_block *b, int by_address) {
    ds__bins *bins = &a->bins[b->seg->kind];
    unsigned i = ds__bin_of(b);
    ds__mem_block *before = NULL;
    ds__mem_block *at = bins->head[i];
    b->bin = (uint16_t)i;
    if (by_address)
        while (at && (at->size < b->size || (at->size == b->size && ds__block_is_earlier(at, b)))) {
            before = at;
            at = at->list_next;
        }
    b->list_prev = before;
    b->list_next = at;
    if (at)
        at->list_prev = b;
    if (before)
        before->list_next = b;
    else
        bins->head[i] = b;
    bins->map[i / 64] |= (uint64_t)1 << i % 64;
    bins->summary |= (uint64_t)1 << i / 64;
    a->free_bytes += b->size;
}

static inline void ds__bin_out(ds__arena *a, ds__mem_block *b) {
    ds__bins *bins = &a->bins[b->seg->kind];
    if (b->list_next)
        b->list_next->list_prev = b->list_prev;
    if (b->list_prev) {
        b->list_prev->list_next = b->list_next;
    } else {
        unsigned i = b->bin;
        if (!(bins->head[i] = b->list_next) && !(bins->map[i / 64] &= ~((uint64_t)1 << i % 64)))
            bins->summary &= ~((uint64_t)1 << i / 64);
    }
    a->free_bytes -= b->size;
}

/* Sorts the blocks of all bins, when best_fit_by_address is switched on. */
static void ds__bins_sort(ds__arena *a) {
    for (int kind = 0; kind < 2; kind++)
        for (unsigned i = 0; i < DS__BINS; i++) {
            ds__mem_block *rest = a->bins[kind].head[i];
            a->bins[kind].head[i] = NULL;
            while (rest) {
                ds__mem_block *b = rest;
                rest = b->list_next;
                a->free_bytes -= b->size; /* ds__bin_in adds them */
                ds__bin_in(a, b, 1);
            }
        }
}

static inline int ds__segment_is_growing(const ds__segment *s) {
    return s->page != 0;
}

/* torch's limits on what a large block may be used for. */
static int ds__too_large(const ds__mem_pool *p, size_t block, size_t size) {
    size_t limit = p->config.max_split_size;
    return size < limit ? block >= limit : block - size >= p->config.max_non_split_rounding;
}

#define DS__LOOKS 16 /* candidates in one bin, unless the fit must be exact */

/* The free block that fits best, or nearly; NULL: none does. */
static inline ds__mem_block *ds__bin_best_fit(ds__arena *a, int kind, size_t size) {
    ds__bins *bins = &a->bins[kind];
    unsigned i = ds__bin_of_size(size);
    unsigned w;
    const ds__mem_pool *p = a->pool;
    int exact = p->config.best_fit_by_address;
    ds__mem_block *best = NULL;
    if (i >= DS__EDGE)
        return NULL;
    int looks = exact ? INT_MAX : DS__LOOKS;
    /* here some may be too small */
    for (ds__mem_block *b = bins->head[i]; b && looks > 0; b = b->list_next, looks--) {
        if (b->size < size || (best && b->size >= best->size))
            continue;
        best = b;
        /* they are sorted; or it cannot be better */
        if (exact || b->size == size)
            break;
    }
    if (!best) {
        w = ++i / 64;
        uint64_t bits = w < DS__BINS / 64 && i % 64 ? bins->map[w] & ~(uint64_t)0 << i % 64
                        : w < DS__BINS / 64         ? bins->map[w]
                                                    : 0;
        if (!bits) {
            uint64_t words = ++w < 64 ? bins->summary & ~(uint64_t)0 << w : 0;
            if (!words)
                return NULL;
            w = (unsigned)__builtin_ctzll(words);
            bits = bins->map[w];
        }
        i = w * 64 + (unsigned)__builtin_ctzll(bits);
        if (DS__UNLIKELY(i == DS__EDGE)) {
            for (ds__mem_block *b = bins->head[i]; b; b = b->list_next)
                if (b->size >= size && (!best || b->size < best->size))
                    best = b;
            if (!best)
                return NULL;
        } else {
            best = bins->head[i];
            looks = exact ? 0 : DS__LOOKS;
            for (ds__mem_block *b = best->list_next; b && looks > 0; b = b->list_next, looks--)
                if (b->size < best->size)
                    best = b;
        }
    }
    if (DS__UNLIKELY(p->oversize) && !a->fresh && !ds__segment_is_growing(best->seg) &&
        ds__too_large(p, best->size, size))
        return NULL;
    return best;
}

#endif
