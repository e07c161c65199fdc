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
    size_t first; /* its first block */
    size_t count; /* how many blocks it has */
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
    /* from the oldest; `line` is their frame, or the text of an annotation, and `pool` an index */
    ds__history_event *events;
    size_t count;
} ds__sdevice;

typedef struct ds__sindex {
    uint32_t *slot; /* the element at i is entered as i + 1 */
    size_t mask;
} ds__sindex;

typedef struct ds__snap {
    int broken;           /* there was no memory */
    ds__sdevice *devices; /* all that exist */
    uint32_t device_count;
    ds__ssegment *segments;
    ds__sblock *blocks;
    ds__spool *pools;
    ds__sframe *frames; /* from 1 */
    char *text;
    size_t *texts; /* where they begin; from 1 */
    size_t segment_count, segment_room, block_count, block_room, pool_count, pool_room, frame_count,
        frame_room, text_size, text_room, texts_count, texts_room;
    ds__sindex text_index;
    ds__sindex frame_index;

    struct {
        const char *ptr;
        uint32_t text;
    } recent[256];

    ds_mem_config config;
    size_t entries;     /* of the history */
    uint32_t nobody;    /* the name of a frame without a label */
    uint64_t time_ns;   /* of the monotonic clock */
    int64_t to_wall_ns; /* and from that to the time of day */
} ds__snap;

#define DS__SNAP_MORE(s, list, count, room)                                                       \
    (!(s)->broken && ((s)->broken = !ds__array_reserve(&(s)->list, sizeof *(s)->list, (s)->count, \
                                                       1, &(s)->room)) == 0)

/* Finds the slot of the element that has this hash and is equal, or the place for it. `same`
   compares the key with the element at an index. NULL: no memory. */
static uint32_t *ds__snap_slot(ds__snap *s, ds__sindex *x, size_t count, uint64_t hash,
                               int (*same)(ds__snap *s, uint32_t at, const void *key),
                               uint64_t (*hash_of)(ds__snap *s, uint32_t at), const void *key) {
    if (2 * count >= x->mask) {
        size_t size = x->mask ? 4 * (x->mask + 1) : 1024;
        uint32_t *bigger = ds__host_alloc(size * sizeof *bigger);
        if (!bigger) {
            s->broken = 1;
            return NULL;
        }
        for (uint32_t i = 1; i <= count; i++) {
            size_t at = hash_of(s, i) & (size - 1);
            while (bigger[at])
                at = (at + 1) & (size - 1);
            bigger[at] = i;
        }
        ds__host_free(x->slot);
        x->slot = bigger;
        x->mask = size - 1;
    }
    size_t at = hash & x->mask;
    while (x->slot[at] && !same(s, x->slot[at], key))
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

static int ds__text_same(ds__snap *s, uint32_t at, const void *key) {
    return strcmp(ds__snap_string(s, at), key) == 0;
}

static uint64_t ds__text_hash(ds__snap *s, uint32_t at) {
    return ds__hash_text(ds__snap_string(s, at));
}

/* The number of a text, which is copied; 0: NULL, or no memory. */
static uint32_t ds__snap_text(ds__snap *s, const char *text) {
    char clean[2048];
    if (!text || s->broken)
        return 0;
    size_t n = ds__utf8_copy(clean, sizeof clean, text) + 1;
    uint32_t *slot = ds__snap_slot(s, &s->text_index, s->texts_count, ds__hash_text(clean),
                                   ds__text_same, ds__text_hash, clean);
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

/* The same for a text that nobody changes before ds__snap_forget. */
static uint32_t ds__snap_known(ds__snap *s, const char *text) {
    size_t at = ((uintptr_t)text ^ (uintptr_t)text >> 9) & 255;
    if (!text || s->recent[at].ptr != text) {
        s->recent[at].text = ds__snap_text(s, text);
        s->recent[at].ptr = text;
    }
    return s->recent[at].text;
}

static void ds__snap_forget(ds__snap *s) {
    memset(s->recent, 0, sizeof s->recent);
}

static uint64_t ds__hash_frame(const ds__sframe *f) {
    uint64_t h = (f->file * 0x9e3779b97f4a7c15u + f->line) * 0x9e3779b97f4a7c15u + f->name;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static int ds__frame_same(ds__snap *s, uint32_t at, const void *key) {
    return memcmp(&s->frames[at - 1], key, sizeof(ds__sframe)) == 0;
}

static uint64_t ds__frame_hash(ds__snap *s, uint32_t at) {
    return ds__hash_frame(&s->frames[at - 1]);
}

/* The number of a frame; 0: nothing is known, or no memory. */
static uint32_t ds__snap_frame(ds__snap *s, const char *file, uint32_t line, const char *label) {
    ds__sframe f = { ds__snap_known(s, file), file ? line : 0,
                     ds__snap_known(s, label && *label ? label : NULL) };
    if (!f.file && !f.name)
        return 0;
    uint32_t *slot = ds__snap_slot(s, &s->frame_index, s->frame_count, ds__hash_frame(&f),
                                   ds__frame_same, ds__frame_hash, &f);
    if (!slot || *slot)
        return slot ? *slot : 0;
    if (!DS__SNAP_MORE(s, frames, frame_count, frame_room))
        return 0;
    s->frames[s->frame_count] = f;
    return *slot = (uint32_t)++s->frame_count;
}

#endif
