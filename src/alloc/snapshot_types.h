/* alloc/snapshot_types.h - collected data of a snapshot; texts and frames by number.

   Defines the collected data of a snapshot (ds__snap) and the sets (ds__snap_set) that store each
   text and frame once. ds__snap_text and ds__snap_frame return the number of a text or a frame;
   ds__snap_string returns a text.

   Invariants: Numbers of texts and frames begin at 1; 0 means none. Texts are valid UTF-8. If
   memory runs out, `broken` is set, and later additions do nothing. The cache `recent` compares
   pointers, so ds__snap_forget must be called before the texts behind them may change.
   Locks: none. ds__snap_collect calls these functions under its locks.
   Threads: one thread per ds__snap. */
#ifndef DS__ALLOC_SNAPSHOT_TYPES_H
#define DS__ALLOC_SNAPSHOT_TYPES_H

#include "types.h"
#include "history.h"
#include "observer.h"

typedef struct ds__sframe {
    uint32_t file; /* number of a text */
    uint32_t line;
    uint32_t name; /* number of a text */
} ds__sframe;

typedef struct ds__sblock {
    uint64_t address;
    uint64_t size;
    uint64_t asked;
    uint32_t frame;
    uint32_t state;
} ds__sblock;

typedef struct ds__ssegment {
    uint64_t address;
    uint64_t size;
    uint64_t allocated;
    uint64_t active;
    uint64_t requested;
    uint64_t stream;
    uint32_t device;
    uint32_t pool;
    uint32_t kind;
    uint32_t growing;
    size_t first; /* index of the first block */
    size_t count; /* of blocks */
} ds__ssegment;

typedef struct ds__spool {
    uint64_t id;
    uint64_t name[2];
    uint32_t label;
    uint32_t device;
} ds__spool;

typedef struct ds__sdevice {
    ds_device device;
    size_t total;
    size_t limit;
    size_t room;
    uint64_t seen; /* events since the start of the history */
    uint64_t active;
    /* from the oldest event on; `line` is the number of the frame, or of an annotation's text, and
       `pool` an index */
    ds__history_event *events;
    size_t count;
} ds__sdevice;

/* Strings of bytes, each stored once. Their numbers begin at 1. No string is the beginning of
   another one: texts end with their 0, and frames have one size. */
typedef struct ds__snap_set {
    char *bytes;
    size_t *at;   /* string n is at bytes[at[n - 1]], up to bytes[at[n]] */
    size_t count; /* of strings */
    size_t size;  /* of all strings */
    size_t at_room;
    size_t room;
    uint32_t *slot; /* a hash table with the numbers of the strings; 0: free */
    size_t mask;    /* number of slots - 1 */
} ds__snap_set;

typedef struct ds__snap {
    int broken;           /* 1: out of host memory */
    ds__sdevice *devices; /* all devices of the machine */
    uint32_t device_count;
    ds__ssegment *segments;
    ds__sblock *blocks;
    ds__spool *pools;
    size_t segment_count;
    size_t segment_room;
    size_t block_count;
    size_t block_room;
    size_t pool_count;
    size_t pool_room;
    ds__snap_set texts;
    ds__snap_set frames; /* of ds__sframe */

    struct {
        const char *ptr;
        uint32_t text;
    } recent[256];

    ds_mem_config config;
    size_t entries;     /* of the history */
    uint32_t nobody;    /* the name of frames without a label */
    uint64_t time_ns;   /* of the monotonic clock */
    int64_t to_wall_ns; /* from the monotonic clock to the time of day */
} ds__snap;

/* Makes room for one more element of a list. 0: out of host memory, and the snapshot is broken. */
#define DS__SNAP_MORE(s, list, count, room)                                                       \
    (!(s)->broken && ((s)->broken = !ds__array_reserve(&(s)->list, sizeof *(s)->list, (s)->count, \
                                                       1, &(s)->room)) == 0)

/* Gives the hash table four times as many slots. Returns 0 without host memory. */
static int ds__snap_set_grow(ds__snap_set *x) {
    size_t size = x->mask ? 4 * (x->mask + 1) : 1024;
    uint32_t *bigger = ds__host_alloc(size * sizeof *bigger);
    if (!bigger)
        return 0;
    for (size_t i = 0; i < x->count; i++) {
        size_t at = ds__hash(x->bytes + x->at[i], x->at[i + 1] - x->at[i]) & (size - 1);
        while (bigger[at])
            at = (at + 1) & (size - 1);
        bigger[at] = (uint32_t)i + 1;
    }
    ds__host_free(x->slot);
    x->slot = bigger;
    x->mask = size - 1;
    return 1;
}

/* Appends a string, and returns its number. Returns 0 without host memory. */
static uint32_t ds__snap_set_append(ds__snap_set *x, const void *bytes, size_t size) {
    if (!ds__array_reserve(&x->bytes, 1, x->size, size, &x->room) ||
        !ds__array_reserve(&x->at, sizeof *x->at, x->count, 2, &x->at_room))
        return 0;
    memcpy(x->bytes + x->size, bytes, size);
    x->at[x->count++] = x->size;
    x->size += size;
    x->at[x->count] = x->size;
    return (uint32_t)x->count;
}

/* Returns the number of a string, which is copied at its first use. Returns 0 without host memory,
   and the snapshot is broken. */
static uint32_t ds__snap_set_number(ds__snap *s, ds__snap_set *x, const void *bytes, size_t size) {
    if (2 * x->count >= x->mask && !ds__snap_set_grow(x)) {
        s->broken = 1;
        return 0;
    }
    size_t i = ds__hash(bytes, size) & x->mask;
    for (; x->slot[i]; i = (i + 1) & x->mask) {
        size_t at = x->at[x->slot[i] - 1];
        if (x->size - at >= size && !memcmp(x->bytes + at, bytes, size))
            return x->slot[i];
    }
    x->slot[i] = ds__snap_set_append(x, bytes, size);
    s->broken = !x->slot[i];
    return x->slot[i];
}

static void ds__snap_set_deinit(ds__snap_set *x) {
    ds__host_free(x->bytes);
    ds__host_free(x->at);
    ds__host_free(x->slot);
}

static const char *ds__snap_string(const ds__snap *s, uint32_t text) {
    return text ? s->texts.bytes + s->texts.at[text - 1] : "";
}

/* Returns the frame with this number, from 1 on. */
static const ds__sframe *ds__snap_frame_at(const ds__snap *s, uint32_t frame) {
    return (const ds__sframe *)(const void *)s->frames.bytes + (frame - 1);
}

/* Returns the number of a text. Returns 0 for NULL, or without host memory. */
static uint32_t ds__snap_text(ds__snap *s, const char *text) {
    char clean[2048];
    if (!text || s->broken)
        return 0;
    size_t n = ds__utf8_copy(clean, sizeof clean, text);
    return ds__snap_set_number(s, &s->texts, clean, n + 1);
}

/* As ds__snap_text, for a text that does not change before ds__snap_forget. Compares pointers
   first. */
static uint32_t ds__snap_known(ds__snap *s, const char *text) {
    size_t at = ((uintptr_t)text ^ (uintptr_t)text >> 9) & 255;
    if (!text || s->recent[at].ptr != text) {
        s->recent[at].text = ds__snap_text(s, text);
        s->recent[at].ptr = text;
    }
    return s->recent[at].text;
}

/* Empties the cache of ds__snap_known. */
static void ds__snap_forget(ds__snap *s) {
    memset(s->recent, 0, sizeof s->recent);
}

/* Returns the number of a frame. Returns 0 if neither file nor label is known, or without host
   memory. */
static uint32_t ds__snap_frame(ds__snap *s, const char *file, uint32_t line, const char *label) {
    ds__sframe f = { ds__snap_known(s, file), file ? line : 0,
                     ds__snap_known(s, label && *label ? label : NULL) };
    if (s->broken || (!f.file && !f.name))
        return 0;
    return ds__snap_set_number(s, &s->frames, &f, sizeof f);
}

#endif
