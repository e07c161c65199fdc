/* os/stream_copy.h - copies and fills with stores around the caches.

   Writes memory with stores that do not read the destination into the caches: copies to one place
   (ds__stream_copy) or to several (ds__stream_spread), and fills (ds__stream_fill).
   ds__stream_pays returns whether such stores are faster than plain ones.

   Policy: by measurements on two processors, with caches of 32 and 480 MiB.
   1. A plain copy reads its destination too. If source and destination together do not fit into the
      largest cache, stores around the caches are up to 1.7 times as fast; if they fit, plain copies
      are 2.5 times as fast. From 64 MiB on such stores were faster with the large cache as well.
   2. A plain fill does not read, since it writes whole lines. At twice the size of the cache both
      ways are equally fast, and stores around the caches leave the caches to others; at the size of
      the cache plain stores are still 1.4 times as fast.
   3. Copies go line by line, or through four pages side by side, so that more than one row of
      memory is open. The better way depends on the processor: side by side was faster on one and
      took up to 4.5 times as long on the other one. The first pieces and later a few of every
      DS__STREAM_PERIOD ones measure it, as part of their work.

   Invariants: the stores end with a fence, so a release that follows publishes them. On other
   processors, and under sanitizers, which do not see such stores, plain copies are used. The way of
   a copy does not change its result.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_STREAM_COPY_H
#define DS__OS_STREAM_COPY_H

#include "system.h"
#include "cache.h"

/* From this size of source and destination on, copies go around the caches in any case. */
#define DS__STREAM_MOST ((size_t)64 << 20)
/* Below this size the caches are large enough on every processor. */
#define DS__STREAM_LEAST ((size_t)4 << 20)
/* A copy of at least this size is measured. */
#define DS__STREAM_MEASURED ((size_t)256 << 10)

enum {
    DS__STREAM_LINES,
    DS__STREAM_PAGES,
    DS__STREAM_WAYS,
    DS__STREAM_TRIALS = 8, /* copies that are measured at first */
    DS__STREAM_PERIOD = 256
};

/* Returns 1 if an operation that reads and writes so many bytes is faster with stores around the
   caches. */
DS__SEAM static int ds__stream_pays(size_t reads, size_t writes) {
    if (reads + writes < DS__STREAM_LEAST)
        return 0;
    size_t cache = ds__os_cache_bytes();
    if (!reads)
        return writes / 2 >= cache;
    return reads + writes >= (cache < DS__STREAM_MOST ? cache : DS__STREAM_MOST);
}

#if defined(__x86_64__) && !defined(DS__SANITIZED)
/* The measured copies: their number, and the shortest time of each way in ns for 64 KiB. */
static struct {
    _Atomic uint32_t count;
    _Atomic uint64_t best[DS__STREAM_WAYS];
} ds__stream_state = { 0, { UINT64_MAX, UINT64_MAX } };

#define DS__STREAM_LINE(dst, src, at)                                                          \
    __asm__ __volatile__("movdqu 0(%0), %%xmm0\n\tmovdqu 16(%0), %%xmm1\n\tmovdqu 32(%0), "    \
                         "%%xmm2\n\tmovdqu 48(%0), %%xmm3\n\t"                                 \
                         "movntdq %%xmm0, 0(%1)\n\tmovntdq %%xmm1, 16(%1)\n\tmovntdq %%xmm2, " \
                         "32(%1)\n\tmovntdq %%xmm3, 48(%1)"                                    \
                         :                                                                     \
                         : "r"((src) + (at)), "r"((dst) + (at))                                \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "memory")

/* Copies whole lines to a multiple of 64. */
static void ds__stream_copy_lines(char *dst, const char *src, size_t n) {
    for (size_t i = 0; i + 64 <= n; i += 64) {
        __builtin_prefetch(src + i + 1024);
        DS__STREAM_LINE(dst, src, i);
    }
}

/* As ds__stream_copy_lines, four pages side by side, as long as there are four. */
static void ds__stream_copy_pages(char *dst, const char *src, size_t n) {
    for (; n >= 16384; n -= 16384, dst += 16384, src += 16384)
        for (size_t i = 0; i < 4096; i += 64) {
            __builtin_prefetch(src + i + 256);
            __builtin_prefetch(src + i + 4096 + 256);
            __builtin_prefetch(src + i + 8192 + 256);
            __builtin_prefetch(src + i + 12288 + 256);
            DS__STREAM_LINE(dst, src, i);
            DS__STREAM_LINE(dst, src, i + 4096);
            DS__STREAM_LINE(dst, src, i + 8192);
            DS__STREAM_LINE(dst, src, i + 12288);
        }
    ds__stream_copy_lines(dst, src, n);
}

#undef DS__STREAM_LINE

/* Returns the faster way so far: side by side, if that was at least a tenth faster. */
static int ds__stream_way(void) {
    uint64_t lines = atomic_load_explicit(&ds__stream_state.best[0], memory_order_relaxed);
    uint64_t pages = atomic_load_explicit(&ds__stream_state.best[1], memory_order_relaxed);
    return pages < lines - lines / 10 ? DS__STREAM_PAGES : DS__STREAM_LINES;
}

/* Copies whole lines, and measures it if it is the turn of the copy. */
static void ds__stream_copy_measured(char *dst, const char *src, size_t n) {
    int way = ds__stream_way();
    uint32_t turn = DS__STREAM_TRIALS;
    if (n >= DS__STREAM_MEASURED)
        turn = atomic_fetch_add_explicit(&ds__stream_state.count, 1, memory_order_relaxed);
    int measured = n >= DS__STREAM_MEASURED &&
                   (turn < DS__STREAM_TRIALS || turn % DS__STREAM_PERIOD < DS__STREAM_WAYS);
    uint64_t begin = 0;
    if (measured) {
        way = (int)(turn % DS__STREAM_WAYS);
        begin = ds__now_ns();
    }
    if (way == DS__STREAM_PAGES)
        ds__stream_copy_pages(dst, src, n);
    else
        ds__stream_copy_lines(dst, src, n);
    if (!measured)
        return;
    uint64_t ns = (ds__now_ns() - begin) * 65536 / n;
    uint64_t best = atomic_load_explicit(&ds__stream_state.best[way], memory_order_relaxed);
    if (ns < best)
        atomic_store_explicit(&ds__stream_state.best[way], ns, memory_order_relaxed);
}
#endif

/* Copies with stores around the caches. */
DS__SEAM static void ds__stream_copy(char *dst, const char *src, size_t n) {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    size_t lead = (size_t)(-(uintptr_t)dst & 63);
    if (lead > n)
        lead = n;
    memcpy(dst, src, lead);
    size_t lines = (n - lead) & ~(size_t)63;
    ds__stream_copy_measured(dst + lead, src + lead, lines);
    __asm__ __volatile__("sfence" ::: "memory");
    dst += lead + lines;
    src += lead + lines;
    n -= lead + lines;
#endif
    memcpy(dst, src, n);
}

/* Writes the low n bytes of a word, n at most 8, and returns the word as it goes on after them. */
static uint64_t ds__stream_word(char *dst, uint64_t word, size_t n) {
    memcpy(dst, &word, n);
    return n % 8 ? word >> 8 * n | word << (64 - 8 * n) : word;
}

/* Fills with a word of eight bytes, which begins at dst, with stores around the caches. */
DS__SEAM static void ds__stream_fill(char *dst, uint64_t word, size_t n) {
    while (n && (uintptr_t)dst & 63) {
        size_t lead = (size_t)(-(uintptr_t)dst & 7);
        lead = lead ? lead : 8;
        lead = lead < n ? lead : n;
        word = ds__stream_word(dst, word, lead);
        dst += lead;
        n -= lead;
    }
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    for (; n >= 64; dst += 64, n -= 64)
        __asm__ __volatile__(
            "movq %1, %%xmm0\n\tpunpcklqdq %%xmm0, %%xmm0\n\tmovntdq %%xmm0, 0(%0)\n\t"
            "movntdq %%xmm0, 16(%0)\n\tmovntdq %%xmm0, 32(%0)\n\tmovntdq %%xmm0, 48(%0)"
            :
            : "r"(dst), "r"(word)
            : "xmm0", "memory");
    __asm__ __volatile__("sfence" ::: "memory");
#endif
    for (; n >= 8; dst += 8, n -= 8)
        memcpy(dst, &word, 8);
    (void)ds__stream_word(dst, word, n);
}

/* Copies from one source to several destinations with stores around the caches, line by line, so
   that each line is read once. Returns the number of bytes that were copied. The caller copies the
   rest, or everything if the addresses are not aligned. */
DS__SEAM static size_t ds__stream_spread(char *const *dst, size_t count, size_t at, const char *src,
                                         size_t n) {
    size_t done = 0;
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    for (size_t d = 0; d < count; d++)
        if ((uintptr_t)(dst[d] + at) & 15)
            return 0;
    for (; done + 128 <= n; done += 128) {
        char *const *to = dst;
        __asm__ __volatile__("movdqu 0(%1), %%xmm0\n\tmovdqu 16(%1), %%xmm1\n\tmovdqu 32(%1), "
                             "%%xmm2\n\tmovdqu 48(%1), %%xmm3\n\t"
                             "movdqu 64(%1), %%xmm4\n\tmovdqu 80(%1), %%xmm5\n\tmovdqu 96(%1), "
                             "%%xmm6\n\tmovdqu 112(%1), %%xmm7\n"
                             "1:\n\tmovq (%0), %%rax\n\taddq %3, %%rax\n\t"
                             "movntdq %%xmm0, 0(%%rax)\n\tmovntdq %%xmm1, 16(%%rax)\n\tmovntdq "
                             "%%xmm2, 32(%%rax)\n\tmovntdq %%xmm3, 48(%%rax)\n\t"
                             "movntdq %%xmm4, 64(%%rax)\n\tmovntdq %%xmm5, 80(%%rax)\n\tmovntdq "
                             "%%xmm6, 96(%%rax)\n\tmovntdq %%xmm7, 112(%%rax)\n\t"
                             "addq $8, %0\n\tcmpq %2, %0\n\tjne 1b"
                             : "+r"(to)
                             : "r"(src + done), "r"(dst + count), "r"(at + done)
                             : "rax", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
                               "xmm5", "xmm6", "xmm7");
    }
    __asm__ __volatile__("sfence" ::: "memory");
#else
    (void)dst;
    (void)count;
    (void)at;
    (void)src;
    (void)n;
#endif
    return done;
}

#endif
