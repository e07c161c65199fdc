/* alloc/snapshot_types.h - collected data of a snapshot; texts and frames by number.

   Defines the collected data of a snapshot (ds__snap) and the tables that store each text and
   frame once. ds__snap_text and ds__snap_frame return the number of a text or a frame;
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

/* A hash table of texts or frames. */
typedef struct ds__sindex {
    uint32_t *slot; /* numbers of elements; 0: free */
    size_t mask;    /* number of slots - 1 */
} ds__sindex;

typedef struct ds__snap {
    int broken;           /* 1: out of host memory */
    ds__sdevice *devices; /* all devices of the machine */
    uint32_t device_count;
    ds__ssegment *segments;
    ds__sblock *blocks;
    ds__spool *pools;
    ds__sframe *frames; /* from 1 */
    char *text;
    size_t *texts; /* starts of the texts in `text`; from 1 */
    size_t segment_count;
    size_t segment_room;
    size_t block_count;
    size_t block_room;
    size_t pool_count;
    size_t pool_room;
    size_t frame_count;
    size_t frame_room;
    size_t text_size;
    size_t text_room;
    size_t texts_count;
    size_t texts_room;
    ds__sindex text_index;
    ds__sindex frame_index;

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

/* The functions of a hash table: whether an element equals a key, and the hash of an element. */
typedef struct ds__sindex_kind {
    int (*same)(const ds__snap *s, uint32_t at, const void *key);
    uint64_t (*hash_of)(const ds__snap *s, uint32_t at);
} ds__sindex_kind;

/* Gives a hash table with `count` elements four times as many slots. Returns 0 without host
   memory. */
static int ds__sindex_grow(const ds__snap *s, ds__sindex *x, const ds__sindex_kind *kind,
                           size_t count) {
    size_t size = x->mask ? 4 * (x->mask + 1) : 1024;
    uint32_t *bigger = ds__host_alloc(size * sizeof *bigger);
    if (!bigger)
        return 0;
    for (uint32_t i = 1; i <= count; i++) {
        size_t at = kind->hash_of(s, i) & (size - 1);
        while (bigger[at])
            at = (at + 1) & (size - 1);
        bigger[at] = i;
    }
    ds__host_free(x->slot);
    x->slot = bigger;
    x->mask = size - 1;
    return 1;
}

/* Returns the slot of the element that equals the key, or the free slot for it. Returns NULL
   without host memory, and the snapshot is broken. */
static uint32_t *ds__snap_slot(ds__snap *s, ds__sindex *x, const ds__sindex_kind *kind,
                               size_t count, uint64_t hash, const void *key) {
    if (2 * count >= x->mask && !ds__sindex_grow(s, x, kind, count)) {
        s->broken = 1;
        return NULL;
    }
    size_t at = hash & x->mask;
    while (x->slot[at] && !kind->same(s, x->slot[at], key))
        at = (at + 1) & x->mask;
    return &x->slot[at];
}

static uint64_t ds__hash_text(const char *text) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h ^ h >> 32;
}

static const char *ds__snap_string(const ds__snap *s, uint32_t text) {
    return text ? s->text + s->texts[text - 1] : "";
}

static int ds__text_same(const ds__snap *s, uint32_t at, const void *key) {
    return strcmp(ds__snap_string(s, at), key) == 0;
}

static uint64_t ds__text_hash(const ds__snap *s, uint32_t at) {
    return ds__hash_text(ds__snap_string(s, at));
}

static const ds__sindex_kind ds__text_kind = { ds__text_same, ds__text_hash };

/* Returns the number of a text, which is copied at its first use. Returns 0 for NULL, or without
   host memory. */
static uint32_t ds__snap_text(ds__snap *s, const char *text) {
    char clean[2048];
    if (!text || s->broken)
        return 0;
    size_t n = ds__utf8_copy(clean, sizeof clean, text) + 1;
    uint32_t *slot = ds__snap_slot(s, &s->text_index, &ds__text_kind, s->texts_count,
                                   ds__hash_text(clean), clean);
    if (!slot || *slot)
        return slot ? *slot : 0;
    if (!DS__SNAP_MORE(s, texts, texts_count, texts_room))
        return 0;
    if (!ds__array_reserve(&s->text, 1, s->text_size, n, &s->text_room)) {
        s->broken = 1;
        return 0;
    }
    memcpy(s->text + s->text_size, clean, n);
    s->texts[s->texts_count] = s->text_size;
    s->text_size += n;
    return *slot = (uint32_t)++s->texts_count;
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

static uint64_t ds__hash_frame(const ds__sframe *f) {
    uint64_t h = (f->file * 0x9e3779b97f4a7c15u + f->line) * 0x9e3779b97f4a7c15u + f->name;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static int ds__frame_same(const ds__snap *s, uint32_t at, const void *key) {
    return memcmp(&s->frames[at - 1], key, sizeof(ds__sframe)) == 0;
}

static uint64_t ds__frame_hash(const ds__snap *s, uint32_t at) {
    return ds__hash_frame(&s->frames[at - 1]);
}

static const ds__sindex_kind ds__frame_kind = { ds__frame_same, ds__frame_hash };

/* Returns the number of a frame. Returns 0 if neither file nor label is known, or without host
   memory. */
static uint32_t ds__snap_frame(ds__snap *s, const char *file, uint32_t line, const char *label) {
    ds__sframe f = { ds__snap_known(s, file), file ? line : 0,
                     ds__snap_known(s, label && *label ? label : NULL) };
    if (!f.file && !f.name)
        return 0;
    uint32_t *slot =
        ds__snap_slot(s, &s->frame_index, &ds__frame_kind, s->frame_count, ds__hash_frame(&f), &f);
    if (!slot || *slot)
        return slot ? *slot : 0;
    if (!DS__SNAP_MORE(s, frames, frame_count, frame_room))
        return 0;
    s->frames[s->frame_count] = f;
    return *slot = (uint32_t)++s->frame_count;
}

#endif
