/* alloc/bins.h - free blocks of an arena, sorted by size.

   Puts free blocks into bins: one for each size below 32 KiB, then 32 for each power of two.
   ds__bin_best_fit finds the best fitting block for a request, or nearly the best if
   best_fit_by_address is off. ds__too_large applies max_split_size and max_non_split_rounding to
   plain segments; ds__segment_is_growing tells which segments grow.

   Invariants: A block is in a bin exactly if its state is free and it is not claimed. The bit of a
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

/* Returns the bin of blocks with `size` bytes. */
static inline unsigned ds__bin_of_size(size_t size) {
    size_t u = size / DS__UNIT;
    if (u < 64)
        return (unsigned)u;
    unsigned e = 63u - (unsigned)__builtin_clzll(u);
    return 64 + (e - 6) * 32 + (unsigned)(u >> (e - 5) & 31);
}

/* The bin of all free blocks in front of an unmapped block. Such a block can still grow, so it is
   used last. */
#define DS__EDGE (DS__BINS - 1u)

/* Returns the bin of a free block. */
static inline unsigned ds__bin_of(const ds__mem_block *b) {
    return DS__UNLIKELY(b->next && b->next->state == DS_BLOCK_UNMAPPED) ? DS__EDGE
                                                                        : ds__bin_of_size(b->size);
}

/* Returns whether a neighbour, which may be NULL, is in a bin: it is free and not claimed. */
static inline int ds__block_is_binned(const ds__mem_block *b) {
    return b && b->state == DS_BLOCK_FREE && !b->claimed;
}

/* Puts a free block into its bin: at its place by size and address, or in front. */
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
    a->free_bytes += b->size;
    if (!bins->head[i]) {
        bins->map[i / 64] |= (uint64_t)1 << i % 64;
        bins->summary |= (uint64_t)1 << i / 64;
    }
    ds__block_list_in(&bins->head[i], b, before, at);
}

/* Takes a block out of its bin. */
static inline void ds__bin_out(ds__arena *a, ds__mem_block *b) {
    ds__bins *bins = &a->bins[b->seg->kind];
    unsigned i = b->bin;
    ds__block_list_out(&bins->head[i], b);
    a->free_bytes -= b->size;
    if (bins->head[i])
        return;

    bins->map[i / 64] &= ~((uint64_t)1 << i % 64);
    if (!bins->map[i / 64])
        bins->summary &= ~((uint64_t)1 << i / 64);
}

/* Sorts the blocks of all bins. Called if best_fit_by_address is switched on. */
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

/* Returns whether a free block is too large for a request of `size` bytes, as PyTorch decides:
   a block of max_split_size or more serves only requests that large, and must not exceed the
   request by max_non_split_rounding. */
static int ds__too_large(const ds__mem_pool *p, size_t block, size_t size) {
    size_t limit = p->config.max_split_size;
    return size < limit ? block >= limit : block - size >= p->config.max_non_split_rounding;
}

/* Returns the first bin from `i` on that holds a block, or DS__BINS. `i` is at most DS__EDGE. */
static inline unsigned ds__bin_next_used(const ds__bins *bins, unsigned i) {
    unsigned w = i / 64;
    uint64_t bits = bins->map[w] & ~(uint64_t)0 << i % 64;
    if (!bits) {
        uint64_t words = bins->summary & ~(uint64_t)0 << (w + 1);
        if (!words)
            return DS__BINS;
        w = (unsigned)__builtin_ctzll(words);
        bits = bins->map[w];
    }
    return w * 64 + (unsigned)__builtin_ctzll(bits);
}

/* Returns the smallest of the first `looks` blocks of a list that have `size` bytes or more, or
   NULL. In a sorted list this is the first such block. */
static inline ds__mem_block *ds__bin_smallest(ds__mem_block *b, size_t size, int looks,
                                              int is_sorted) {
    ds__mem_block *best = NULL;
    for (; b && looks > 0; b = b->list_next, looks--) {
        if (b->size < size || (best && b->size >= best->size))
            continue;
        best = b;
        /* no later block can be better */
        if (is_sorted || b->size == size)
            break;
    }
    return best;
}

#define DS__LOOKS 16 /* candidates in one bin, unless the fit must be exact */

/* Returns the free block that fits best, or nearly; NULL: none fits, or the policy forbids the
   best one. */
static inline ds__mem_block *ds__bin_best_fit(ds__arena *a, int kind, size_t size) {
    ds__bins *bins = &a->bins[kind];
    const ds__mem_pool *p = a->pool;
    int exact = p->config.best_fit_by_address;
    unsigned i = ds__bin_of_size(size);
    if (i >= DS__EDGE)
        return NULL;

    /* blocks of the request's own bin may be too small, later ones are not, except at the edge */
    ds__mem_block *best = ds__bin_smallest(bins->head[i], size, exact ? INT_MAX : DS__LOOKS, exact);
    if (!best) {
        i = ds__bin_next_used(bins, i + 1);
        if (i == DS__BINS)
            return NULL;
        if (DS__UNLIKELY(i == DS__EDGE))
            best = ds__bin_smallest(bins->head[i], size, INT_MAX, 0);
        else
            best = ds__bin_smallest(bins->head[i], size, DS__LOOKS + 1, exact);
        if (!best)
            return NULL;
    }

    if (DS__UNLIKELY(p->oversize) && !a->fresh && !ds__segment_is_growing(best->seg) &&
        ds__too_large(p, best->size, size))
        return NULL;
    return best;
}

#endif
