/* cpu/copy.h - copies and fills by the processor.

   Runs a queued copy or fill (ds__cpu_move): on the current thread, staged through a buffer, or
   as a job on several threads. ds__cpu_copy_part and ds__cpu_fill_part process a range of one
   operation.

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

/* rows of at least this size are written around the caches */
#define DS__CPU_AROUND_ROW ((size_t)64 << 10)

/* Returns 1 if an operation is faster with stores past the caches. */
static int ds__cpu_goes_around(const ds__op *op) {
    size_t bytes = ds__op_bytes(op);
    return ds__stream_pays(op->kind == DS__OP_COPY ? bytes : 0, bytes);
}

/* Copies n bytes. An aligned word of 4 or 8 bytes is stored as a whole, after the earlier work of
   the stream: other streams may wait for it (cpu/value.h). */
static inline void ds__cpu_copy_bytes(char *to, const char *from, size_t n) {
    if (n == 4 && (uintptr_t)to % 4 == 0) {
        uint32_t word;
        memcpy(&word, from, 4);
        __atomic_store_n((uint32_t *)(void *)to, word, __ATOMIC_RELEASE);
    } else if (n == 8 && (uintptr_t)to % 8 == 0) {
        uint64_t word;
        memcpy(&word, from, 8);
        __atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELEASE);
    } else {
        memcpy(to, from, n);
    }
}

/* Copies bytes first to first+count-1 of the operation, row by row. around: long rows are copied
   with stores past the caches. */
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
        if (around && n >= DS__CPU_AROUND_ROW)
            ds__stream_copy(to, from, n);
        else
            ds__cpu_copy_bytes(to, from, n);
        first += n;
        count -= n;
    }
}

/* Copies through a buffer, as between two GPUs that cannot reach each other. */
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

/* Fills n bytes with a pattern of 8 bytes, which begins at `to`, through the caches. */
static void ds__cpu_fill_row(char *to, const char *pattern, size_t n) {
    uint64_t word;
    uint64_t block[512];
    if (n <= 8) {
        ds__cpu_copy_bytes(to, pattern, n);
        return;
    }
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

/* Fills elements first to first+count-1 of the operation. around: as for ds__cpu_copy_part. */
static void ds__cpu_fill_part(const ds__op *op, size_t first, size_t count, int around) {
    size_t width = op->u.fill.width;
    size_t size = op->u.fill.value_size;
    char pattern[8];
    /* little endian: the low bytes */
    for (size_t i = 0; i < 8; i += size)
        memcpy(pattern + i, &op->u.fill.value, size);
    uint64_t word;
    memcpy(&word, pattern, 8);
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        char *to = (char *)op->u.fill.dst + row * op->u.fill.pitch + column * size;
        if (around && n * size >= DS__CPU_AROUND_ROW)
            ds__stream_fill(to, word, n * size);
        else
            ds__cpu_fill_row(to, pattern, n * size);
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
        ds__cpu_copy_part(op, first, n, ds__cpu_goes_around(op));
    else
        ds__cpu_fill_part(op, first, n, ds__cpu_goes_around(op));
}

/* Returns the bytes of a piece of a copy or fill that is split, in whole cache lines. With stores
   past the caches: a 64th, so that the threads end at much the same time, but large enough for such
   stores. Else a constant or, of small operations, a quarter. */
static size_t ds__cpu_piece_bytes(size_t bytes, int around) {
    if (around) {
        size_t piece = bytes / 64 & ~(size_t)63;
        piece = piece < DS__CPU_STREAM_LEAST ? DS__CPU_STREAM_LEAST : piece;
        return piece < DS__CPU_STREAM_PIECE ? piece : DS__CPU_STREAM_PIECE;
    }
    if (bytes >= 4 * DS__CPU_PIECE_BYTES)
        return DS__CPU_PIECE_BYTES;
    return (bytes / 4 + 63) & ~(size_t)63;
}

/* Runs a copy or fill of that many elements as a job. */
static void ds__cpu_move_split(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                               size_t elements) {
    size_t bytes = ds__op_bytes(op);
    size_t piece = ds__cpu_piece_bytes(bytes, ds__cpu_goes_around(op));
    ds__cpu_job job;
    memset(&job, 0, sizeof job);
    job.piece_fn = ds__cpu_part_piece;
    job.op = op;
    job.piece_items = op->kind == DS__OP_FILL ? piece / op->u.fill.value_size : piece;
    job.pieces = (elements + job.piece_items - 1) / job.piece_items;
    ds__cpu_long(w, 1);
    ds__cpu_job_run(w, s, &job, bytes >= DS__CPU_CALL_BYTES);
}

/* Runs a copy or fill, on this thread or, if it is large, on several. w: NULL if the thread is not
   a worker. */
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
            ds__cpu_fill_part(op, 0, elements, 0);
    } else {
        ds__cpu_move_split(w, s, op, elements);
    }
    ds__cpu_long(w, 0);
}

#endif
