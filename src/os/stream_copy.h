/* os/stream_copy.h - copies with stores around the caches.

   Copies memory to one place (ds__stream_copy) or to several (ds__stream_spread) with stores that
   do not read the destination into the caches. Large copies are faster with them.

   Invariants: the stores end with a fence, so a release that follows publishes them. On other
   processors, and under sanitizers, which do not see such stores, plain copies are used.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_STREAM_COPY_H
#define DS__OS_STREAM_COPY_H

#include "linux.h"

/* From this size on, copies with stores around the caches are faster; below, they are slower. */
#define DS__STREAM_BYTES ((size_t)32 << 20)

/* Copies with stores around the caches. On Intel's processors four pages are copied side by side,
   so that more than one row of memory is open, which is fastest there. On AMD's processors that
   takes 4.5 times as long as one line after another. */
DS__SEAM static void ds__stream_copy(char *dst, const char *src, size_t n) {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    size_t lead = (size_t)(-(uintptr_t)dst & 63);
    if (lead > n)
        lead = n;
    memcpy(dst, src, lead);
    dst += lead;
    src += lead;
    n -= lead;
#define DS__LINE(at)                                                                           \
    __asm__ __volatile__("movdqu 0(%0), %%xmm0\n\tmovdqu 16(%0), %%xmm1\n\tmovdqu 32(%0), "    \
                         "%%xmm2\n\tmovdqu 48(%0), %%xmm3\n\t"                                 \
                         "movntdq %%xmm0, 0(%1)\n\tmovntdq %%xmm1, 16(%1)\n\tmovntdq %%xmm2, " \
                         "32(%1)\n\tmovntdq %%xmm3, 48(%1)"                                    \
                         :                                                                     \
                         : "r"(src + (at)), "r"(dst + (at))                                    \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "memory")
    for (int four = __builtin_cpu_is("intel"); four && n >= 16384;
         n -= 16384, dst += 16384, src += 16384)
        for (size_t i = 0; i < 4096; i += 64) {
            __builtin_prefetch(src + i + 256);
            __builtin_prefetch(src + i + 4096 + 256);
            __builtin_prefetch(src + i + 8192 + 256);
            __builtin_prefetch(src + i + 12288 + 256);
            DS__LINE(i);
            DS__LINE(i + 4096);
            DS__LINE(i + 8192);
            DS__LINE(i + 12288);
        }
    for (; n >= 64; n -= 64, dst += 64, src += 64)
        DS__LINE(0);
#undef DS__LINE
    __asm__ __volatile__("sfence" ::: "memory");
#endif
    memcpy(dst, src, n);
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
