/* alloc/oom_owners.h - owners of live blocks.

   Groups live blocks by owner for out-of-memory reports and leak reports. An owner is a label,
   or a file and a line for blocks without a label. ds__oom_owners_add adds a block,
   ds__oom_owners_next takes out the owner with the most bytes. ds__oom_size_format (DS__SIZE)
   writes a size as text; pinned memory uses it too.

   Invariants: Labels are compared by their text, which belongs to the blocks. Names must be
   copied before the blocks can be freed. At most three quarters of the table are used; further
   owners, or all if there is no table, are summed in `rest`.
   Locks: Callers of ds__oom_owners_add and ds__oom_owner_name hold all locks of the device, except
   at shutdown. ds__oom_owners_begin calls the program's memory functions and must be called without
   a spinlock.
   Threads: each table belongs to one thread. */
#ifndef DS__ALLOC_OOM_OWNERS_H
#define DS__ALLOC_OOM_OWNERS_H

#include "../base/capture_list.h"
#include "types.h"

typedef struct ds__oom_size {
    char text[24];
} ds__oom_size;

/* Returns a size as text, in the largest unit of which there is more than one. */
static ds__oom_size ds__oom_size_format(size_t n) {
    ds__oom_size s;
    double kib = (double)n / 1024;
    if (n <= 1024)
        snprintf(s.text, sizeof s.text, "%zu bytes", n);
    else if (n <= DS__MIB)
        snprintf(s.text, sizeof s.text, "%.2f KiB", kib);
    else if (n <= 1024 * DS__MIB)
        snprintf(s.text, sizeof s.text, "%.2f MiB", kib / 1024);
    else
        snprintf(s.text, sizeof s.text, "%.2f GiB", kib / 1048576);
    return s;
}

#define DS__SIZE(n) ds__oom_size_format(n).text

/* The largest number of slots in the table. Only three quarters are used; further owners are
   counted together, as `rest`. */
#define DS__OWNERS ((size_t)1 << 17)

/* An owner of live blocks: a label, else a file and line. Labels are compared by their text and
   belong to the blocks. */
typedef struct ds__oom_owner {
    const char *label;
    const char *file;
    uint32_t line;
    size_t bytes;
    size_t count;
} ds__oom_owner;

typedef struct ds__oom_owners {
    ds__oom_owner *slot; /* NULL: no memory for the table */
    size_t room;
    size_t used;
    ds__oom_owner rest;
} ds__oom_owners;

/* Makes a table for the owners of a number of blocks. */
static void ds__oom_owners_begin(ds__oom_owners *t, size_t blocks) {
    memset(t, 0, sizeof *t);
    for (t->room = 64; t->room < DS__OWNERS && t->room / 4 * 3 < blocks;)
        t->room *= 2;
    t->slot = ds__host_alloc(t->room * sizeof *t->slot);
}

static int ds__oom_text_same(const char *a, const char *b) {
    return a == b || (a && b && !strcmp(a, b));
}

/* Returns whether a block belongs to an owner: blocks with a label by the label, others by file and
   line. */
static int ds__oom_owner_has(const ds__oom_owner *o, const ds__mem_block *b) {
    return ds__oom_text_same(o->label, b->label) &&
           (b->label || (o->line == b->line && ds__oom_text_same(o->file, b->file)));
}

/* Returns the owner of a block, which is entered if there is room; else `rest`. */
static ds__oom_owner *ds__oom_owner_of(ds__oom_owners *t, const ds__mem_block *b) {
    uint32_t hash = 2166136261u ^ (b->label ? 0 : b->line); /* FNV-1a */
    const char *name = b->label ? b->label : b->file;
    for (const char *c = name ? name : ""; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    if (!t->slot)
        return &t->rest;
    size_t i = hash & (t->room - 1);
    while (t->slot[i].count && !ds__oom_owner_has(&t->slot[i], b))
        i = (i + 1) & (t->room - 1);

    ds__oom_owner *at = &t->slot[i];
    if (at->count)
        return at;
    if (t->used >= t->room / 4 * 3)
        return &t->rest;
    t->used++;
    at->label = b->label;
    at->file = b->file;
    at->line = b->line;
    return at;
}

/* Adds a live block to its owner. */
static void ds__oom_owners_add(ds__oom_owners *t, const ds__mem_block *b) {
    ds__oom_owner *o = ds__oom_owner_of(t, b);
    o->bytes += b->size;
    o->count++;
}

/* Takes out the owner with the most bytes: copies it to *out and returns its entry. Returns NULL
   after the last one. */
static ds__oom_owner *ds__oom_owners_next(ds__oom_owners *t, ds__oom_owner *out) {
    ds__oom_owner *best = &t->rest;
    for (size_t i = 0; t->slot && i < t->room; i++)
        if (t->slot[i].bytes > best->bytes)
            best = &t->slot[i];
    *out = *best;
    best->bytes = 0;
    return out->bytes ? best : NULL;
}

/* Writes the name of an owner that ds__oom_owners_next has returned. */
static void ds__oom_owner_name(const ds__oom_owners *t, const ds__oom_owner *which,
                               const ds__oom_owner *o, char out[80]) {
    if (which == &t->rest)
        snprintf(out, 80, t->slot ? "(many others)" : "(unknown owners: no memory)");
    else if (o->label)
        snprintf(out, 80, "%.79s", o->label);
    else if (o->file)
        snprintf(out, 80, "%.66s:%u", ds__short_path(o->file), (unsigned)o->line);
    else
        snprintf(out, 80, "(unknown)");
}

#endif
