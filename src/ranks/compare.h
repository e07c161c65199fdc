/* ranks/compare.h - comparison of operations between ranks.

   Writes the signature of an operation, gathers those of all ranks before the operation starts
   (ds__compare_start), and fails the group if they differ (ds__compare_end).

   Invariants: a signature has 16 bytes that must agree, and the call site for the message. Ranks
   whose number of operations differs compare different operations, so a forgotten call is found at
   the next call.
   Locks: the group's lock is held.
   Threads: any. */
#ifndef DS__RANKS_COMPARE_H
#define DS__RANKS_COMPARE_H

#include "types.h"
#include "failure.h"
#include "record.h"

/* The part of a signature on which all ranks must agree. */
typedef struct ds__signature {
    uint8_t kind;
    uint8_t op; /* and the step of the collective */
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t lanes;
    uint16_t root;
    uint64_t count;
} ds__signature;

_Static_assert(sizeof(ds__signature) == 16, "a signature has no gap");

enum { DS__SIGNATURE_SITE = DS__RANKS_SIGNATURE - sizeof(ds__signature) };

/* Writes the signature of an operation and the end of its call site. */
static void ds__compare_write(ds__rop *op) {
    const ds__rcall *c = &op->call;
    ds__signature s = { .kind = (uint8_t)c->kind,
                        .op = (uint8_t)(c->op | c->step << 4),
                        .dtype_code = c->dtype.code,
                        .dtype_bits = c->dtype.bits,
                        .lanes = c->dtype.lanes,
                        .root = (uint16_t)c->root,
                        .count = c->count };
    char site[DS__RANKS_REASON];
    int n = snprintf(site, sizeof site, "%s:%d", c->site.file ? c->site.file : "?",
                     c->site.file ? c->site.line : 0);
    size_t length = ds__text_length(n, sizeof site);
    size_t most = DS__SIGNATURE_SITE - 1;
    size_t kept = length < most ? length : most;
    memset(op->signature, 0, sizeof op->signature);
    memcpy(op->signature, &s, sizeof s);
    memcpy(op->signature + sizeof s, site + length - kept, kept);
}

/* Describes the operation that gathers the signatures of all ranks. */
static ds_result ds__compare_prepare(ds__group *g, ds__rop *op, ds__net_op *out) {
    size_t n = (size_t)g->size;
    size_t *tables = ds__host_alloc(n * (2 * sizeof *tables + DS__RANKS_SIGNATURE));
    if (!tables)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the signatures of %d ranks", g->size);
    for (size_t i = 0; i < n; i++) {
        tables[i] = DS__RANKS_SIGNATURE;
        tables[n + i] = i * DS__RANKS_SIGNATURE;
    }
    ds__compare_write(op);
    op->signatures = tables;
    *out = (ds__net_op){ .kind = DS__NET_ALL_GATHER,
                         .in = op->signature,
                         .out = tables + 2 * n,
                         .parts = { tables, tables + n } };
    return DS_OK;
}

/* Starts to gather the signatures of all ranks. */
static ds_result ds__compare_start(ds__group *g, ds__rop *op) {
    ds__net_op gather;
    ds_result r = ds__compare_prepare(g, op, &gather);
    return r == DS_OK ? g->engine->start(g->comm, &gather, &op->request) : r;
}

/* Writes an operation for messages, such as "all_reduce of 4 float32 at file.c:3". The bytes are
   those of another rank, so the text of the call site may lack its zero. */
static const char *ds__compare_text(const char *signature, char *out, size_t size) {
    ds__signature s;
    char name[DS_DTYPE_NAME_SIZE];
    memcpy(&s, signature, sizeof s);
    ds_dtype dtype = { s.dtype_code, s.dtype_bits, s.lanes };
    const char *kind = s.kind < DS__NET_KINDS ? ds__net_names[s.kind] : "?";
    snprintf(out, size, "%s of %llu %s (operator %u, root %u) at %.*s", kind,
             (unsigned long long)s.count, dtype.bits ? ds__dtype_name(dtype, name) : "elements",
             s.op & 15u, s.root, (int)DS__SIGNATURE_SITE, signature + sizeof s);
    return out;
}

/* Compares the signatures of all ranks with that of rank 0. */
static ds_result ds__compare_end(ds__group *g, ds__rop *op) {
    char mine[160];
    char other[160];
    ds_result r = DS_OK;
    size_t *tables = op->signatures;
    const char *all = (const char *)(tables + 2 * (size_t)g->size);
    for (int i = 1; i < g->size && r == DS_OK; i++) {
        const char *at = all + (size_t)i * DS__RANKS_SIGNATURE;
        if (memcmp(all, at, sizeof(ds__signature)) != 0)
            r = ds__fail(DS_ERR_MISMATCH, "rank 0 calls %s, but rank %d calls %s",
                         ds__compare_text(all, mine, sizeof mine), i,
                         ds__compare_text(at, other, sizeof other));
    }
    ds__host_free(tables);
    op->signatures = NULL;
    return r;
}

#endif
