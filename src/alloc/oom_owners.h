/* alloc/oom_owners.h - owners of live blocks.

   Groups live blocks by owner for out-of-memory reports and leak reports. An owner is a label,
   or a file and a line for blocks without a label. ds__mowners_add adds a block,
   ds__mowners_next takes out the owner with the most bytes. ds__mformat (DS__SIZE) writes a size
   as text; pinned memory uses it too.

   Invariants: Labels are compared by their text, which belongs to the blocks. Names must be
   copied before the blocks can be freed. At most three quarters of the table are used; further
   owners, or all if there is no table, are summed in `rest`.
   Locks: Callers of ds__mowners_add and ds__mowner_name hold all locks of the device, except at
   shutdown. ds__mowners_begin calls the program's memory functions and must be called without a
   spinlock.
   Threads: each table belongs to one thread. */
#ifndef DS__ALLOC_OOM_OWNERS_H
#define DS__ALLOC_OOM_OWNERS_H

#include "../base/capture_list.h"
#include "types.h"

typedef struct ds__msize {
    char text[24];
} ds__msize;

static ds__msize ds__mformat(size_t n) {
    ds__msize s;
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

#define DS__SIZE(n) ds__mformat(n).text

/* most slots of the table; when three quarters of it are taken the others are one owner, `rest` */
#define DS__OWNERS ((size_t)1 << 17)

/* An owner of live blocks: a label, else a file and line. Labels are compared by their text and
   belong to the blocks. */
typedef struct ds__mowner {
    const char *label;
    const char *file;
    uint32_t line;
    size_t bytes;
    size_t count;
} ds__mowner;

typedef struct ds__mowners {
    ds__mowner *slot; /* NULL: no memory for the table */
    size_t room;
    size_t used;
    ds__mowner rest;
} ds__mowners;

/* Room for the owners of so many blocks. */
static void ds__mowners_begin(ds__mowners *t, size_t blocks) {
    memset(t, 0, sizeof *t);
    for (t->room = 64; t->room < DS__OWNERS && t->room / 4 * 3 < blocks;)
        t->room *= 2;
    t->slot = ds__alloc(t->room * sizeof *t->slot);
}

static int ds__msame(const char *a, const char *b) {
    return a == b || (a && b && !strcmp(a, b));
}

static void ds__mowners_add(ds__mowners *t, const ds__mblock *b) {
    uint32_t hash = 2166136261u ^ (b->label ? 0 : b->line);
    ds__mowner *o = &t->rest;
    for (const char *c = b->label ? b->label : b->file ? b->file : ""; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (size_t i = hash & (t->room - 1); t->slot; i = (i + 1) & (t->room - 1)) {
        ds__mowner *at = &t->slot[i];
        if (at->count) {
            if (!ds__msame(at->label, b->label) ||
                (!b->label && (at->line != b->line || !ds__msame(at->file, b->file))))
                continue;
        } else {
            if (t->used >= t->room / 4 * 3)
                break;
            t->used++;
            at->label = b->label;
            at->file = b->file;
            at->line = b->line;
        }
        o = at;
        break;
    }
    o->bytes += b->size;
    o->count++;
}

/* Takes the one with most bytes out; NULL: all are out. */
static ds__mowner *ds__mowners_next(ds__mowners *t, ds__mowner *out) {
    ds__mowner *best = &t->rest;
    for (size_t i = 0; t->slot && i < t->room; i++)
        if (t->slot[i].bytes > best->bytes)
            best = &t->slot[i];
    *out = *best;
    best->bytes = 0;
    return out->bytes ? best : NULL;
}

static void ds__mowner_name(const ds__mowners *t, const ds__mowner *which, const ds__mowner *o,
                            char out[80]) {
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
