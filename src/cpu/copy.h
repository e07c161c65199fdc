/* cpu/copy.h - copies and fills by the processor.

   Runs a queued copy or fill (ds__cpu_move): on the current thread, staged through a buffer, or
   as a job on several threads. ds__cpu_copy_part and ds__cpu_fill_part process a range of one
   operation. ds__cpu_spread_kernel copies one source to several destinations, for collectives.

   Invariants: the pieces of a job do not overlap and cover the operation. Operations below
   DS__CPU_SPLIT_BYTES are not split, nor is any operation in inline mode or with a seed. Stores
   past the caches end with a fence before the piece counts as finished.
   Locks: expects and takes none itself; ds__cpu_job_run takes the pool's lock. ds__cpu_at_once
   (cpu/submit.h) calls ds__cpu_copy_part and ds__cpu_fill_part under a put lock.
   Threads: ds__cpu_move runs on the owner of the stream. Pieces also run on other workers and on
   waiting host threads, at the same time. */
#ifndef DS__CPU_COPY_H
#define DS__CPU_COPY_H

#include "../base/driver.h"
#include "types.h"
#include "scheduler.h"
#include "job.h"

/* Copies with stores that go around the caches; on Intel's processors four pages side by side:
   more than one row of memory is open then, which is what the hardware prefetchers and the
   memory controller like best there. AMD's take 4.5 times as long for that as for one line after
   another. */
static void ds__cpu_stream_copy(char *dst, const char *src, size_t n) {
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

/* Bytes first .. first+count-1 of the copy, row by row. */
static void ds__cpu_copy_part(const ds__op *op, size_t first, size_t count, int around) {
    size_t width = op->u.copy.width;
    char *dst = op->u.copy.dst;
    const char *src = op->u.copy.src;
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        char *to = dst + row * op->u.copy.dst_pitch + column;
        const char *from = src + row * op->u.copy.src_pitch + column;
        if (around && n >= 65536)
            ds__cpu_stream_copy(to, from, n);
        else
            memcpy(to, from, n);
        first += n;
        count -= n;
    }
}

/* One source to several destinations, which is read once: a kernel of the library's own, whose
   items are pieces. */
enum { DS__CPU_SPREAD = 8, DS__CPU_SPREAD_ITEM = 16 << 10 };

typedef struct ds__cpu_spread_args {
    char *dst[DS__CPU_SPREAD];
    const char *src;
    size_t count;
    size_t bytes;
} ds__cpu_spread_args;

/* From one place to bytes `at` and on of several, past the caches; line by line, so that each is
   read once and the stores of all go on side by side. Returns the bytes that are done: the rest,
   or all where addresses do not allow it, is the caller's. */
static size_t ds__cpu_stream_spread(char *const *dst, size_t count, size_t at, const char *src,
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

static int ds__cpu_spread_items(size_t first, size_t count, const void *args) {
    const ds__cpu_spread_args *a = args;
    size_t at = first * DS__CPU_SPREAD_ITEM;
    size_t end =
        at + count * DS__CPU_SPREAD_ITEM < a->bytes ? at + count * DS__CPU_SPREAD_ITEM : a->bytes;
    if (a->count * a->bytes >= DS__CPU_STREAM_BYTES)
        at += ds__cpu_stream_spread(a->dst, a->count, at, a->src + at, end - at);
    while (at < end) {
        size_t n = end - at < DS__CPU_SPREAD_ITEM ? end - at : DS__CPU_SPREAD_ITEM;
        for (size_t d = 0; d < a->count; d++)
            memcpy(a->dst[d] + at, a->src + at, n);
        at += n;
    }
    return 0;
}

DS__SEAM static ds__kernel ds__cpu_spread_kernel = { .cpu_fn = ds__cpu_spread_items,
                                                     .args_size = sizeof(ds__cpu_spread_args),
                                                     .grain = 1,
                                                     .name = "copy to several devices",
                                                     .ours = 1 };

/* The same through a buffer, as when two GPUs cannot reach each other. */
static void ds__cpu_copy_staged(const ds__op *op) {
    char stage[4096];
    size_t width = op->u.copy.width;
    for (size_t row = 0; row < op->u.copy.height; row++)
        for (size_t at = 0; at < width; at += sizeof stage) {
            size_t n = width - at < sizeof stage ? width - at : sizeof stage;
            memcpy(stage, (const char *)op->u.copy.src + row * op->u.copy.src_pitch + at, n);
            memcpy((char *)op->u.copy.dst + row * op->u.copy.dst_pitch + at, stage, n);
        }
    atomic_fetch_add_explicit(&ds__cpu.staged, 1, memory_order_relaxed);
}

/* Sets n bytes to a pattern of eight, whose first byte stands at `to`. Stores through the
   caches: measured faster than those around them at every size that was tried, since nothing is
   read. */
static void ds__cpu_fill_row(char *to, const char *pattern, size_t n) {
    uint64_t word;
    uint64_t block[512];
    memcpy(&word, pattern, 8);
    if (word == (word & 255) * 0x0101010101010101u) {
        memset(to, (int)(word & 255), n);
        return;
    }
    if (n >= sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++)
            block[i] = word;
        for (; n >= sizeof block; n -= sizeof block, to += sizeof block)
            memcpy(to, block, sizeof block);
    }
    for (; n >= 8; n -= 8, to += 8)
        memcpy(to, &word, 8);
    memcpy(to, pattern, n);
}

/* Elements first .. first+count-1 of the fill. */
static void ds__cpu_fill_part(const ds__op *op, size_t first, size_t count) {
    size_t width = op->u.fill.width;
    size_t size = op->u.fill.value_size;
    char pattern[8];
    /* little endian: the low bytes */
    for (size_t i = 0; i < 8; i += size)
        memcpy(pattern + i, &op->u.fill.value, size);
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        ds__cpu_fill_row((char *)op->u.fill.dst + row * op->u.fill.pitch + column * size, pattern,
                         n * size);
        first += n;
        count -= n;
    }
}

static void ds__cpu_part_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t total = op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                           : op->u.fill.width * op->u.fill.height;
    size_t first = piece * job->piece_items;
    size_t n = total - first < job->piece_items ? total - first : job->piece_items;
    if (op->kind == DS__OP_COPY)
        ds__cpu_copy_part(op, first, n, ds__op_bytes(op) >= DS__CPU_STREAM_BYTES);
    else
        ds__cpu_fill_part(op, first, n);
}

/* A copy or fill, on this thread or on several. */
static void ds__cpu_move(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    size_t bytes = ds__op_bytes(op);
    size_t elements = bytes;
    if (op->kind == DS__OP_FILL)
        elements = op->u.fill.width * op->u.fill.height;
    if (op->kind == DS__OP_COPY && (op->flags & DS__OP_STAGED)) {
        ds__cpu_long(w, 1);
        ds__cpu_copy_staged(op);
    } else if (bytes < DS__CPU_SPLIT_BYTES || ds__cpu.is_inline || ds__cpu.seed) {
        if (bytes > 65536)
            ds__cpu_long(w, 1);
        if (op->kind == DS__OP_COPY)
            ds__cpu_copy_part(op, 0, elements, 0);
        else
            ds__cpu_fill_part(op, 0, elements);
    } else {
        ds__cpu_job job;
        memset(&job, 0, sizeof job);
        size_t piece = bytes >= DS__CPU_STREAM_BYTES      ? DS__CPU_STREAM_PIECE
                       : bytes >= 4 * DS__CPU_PIECE_BYTES ? DS__CPU_PIECE_BYTES
                                                          : (bytes / 4 + 63) & ~(size_t)63;
        job.piece_fn = ds__cpu_part_piece;
        job.op = op;
        job.piece_items = op->kind == DS__OP_FILL ? piece / op->u.fill.value_size : piece;
        job.pieces = (elements + job.piece_items - 1) / job.piece_items;
        ds__cpu_long(w, 1);
        ds__cpu_job_run(w, s, &job, bytes >= DS__CPU_CALL_BYTES);
    }
    ds__cpu_long(w, 0);
}

#endif
