/* trace/table.h - tables of texts, streams and threads.

   ds__trace_text returns the number of a text, ds__trace_stream_of that of a stream, and
   ds__trace_thread_of that of the calling thread.

   Invariants: text 0 is "". Numbers are not reused within a trace. If there is no memory or no room
   for a text, it is "".
   Locks: ds__trace.lock is held.
   Threads: any. */
#ifndef DS__TRACE_TABLE_H
#define DS__TRACE_TABLE_H

#include "types.h"

static uint64_t ds__trace_hash_text(const char *text, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static uint64_t ds__trace_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 32;
}

/* Makes room in a map for one more index. Returns 0 if there is no memory; hash_fn gives the hash
   of an index. */
static int ds__trace_map_reserve(ds__trace_map *m, size_t used, uint64_t (*hash_fn)(size_t index)) {
    if (2 * (used + 1) <= m->size)
        return 1;
    size_t size = m->size ? 2 * m->size : 64;
    uint32_t *slot = ds__host_alloc(size * sizeof *slot);
    if (!slot)
        return 0;
    for (size_t i = 0; i < used; i++) {
        size_t at = (size_t)hash_fn(i) & (size - 1);
        while (slot[at])
            at = (at + 1) & (size - 1);
        slot[at] = (uint32_t)i + 1;
    }
    ds__host_free(m->slot);
    *m = (ds__trace_map){ slot, size };
    return 1;
}

static uint64_t ds__trace_text_hash(size_t index) {
    return ds__trace_hash_text(ds__trace.text[index], ds__trace.text_size[index]);
}

static uint64_t ds__trace_stream_key(uint64_t handle, uint32_t lane) {
    return ds__trace_hash(handle * 31 + lane);
}

static uint64_t ds__trace_stream_hash(size_t index) {
    return ds__trace_stream_key(ds__trace.stream[index].handle, ds__trace.stream[index].lane);
}

/* Adds a text. Returns 0 if there is no memory. */
static uint32_t ds__trace_text_add(const char *text, size_t size, size_t slot) {
    char *copy = ds__host_alloc(size + 1);
    if (!copy ||
        !ds__array_reserve(&ds__trace.text, sizeof *ds__trace.text, ds__trace.texts, 1,
                           &ds__trace.text_room) ||
        !ds__array_reserve(&ds__trace.text_size, sizeof *ds__trace.text_size, ds__trace.texts, 1,
                           &ds__trace.text_size_room)) {
        ds__host_free(copy);
        return 0;
    }
    memcpy(copy, text, size);
    ds__trace.text[ds__trace.texts] = copy;
    ds__trace.text_size[ds__trace.texts] = (uint32_t)size;
    ds__trace.text_map.slot[slot] = (uint32_t)ds__trace.texts + 1;
    ds__trace.text_bytes += size + 1;
    return (uint32_t)ds__trace.texts++;
}

/* Returns the number of a text of this size. */
static uint32_t ds__trace_text_of(const char *text, size_t size) {
    if (!ds__trace_map_reserve(&ds__trace.text_map, ds__trace.texts, ds__trace_text_hash))
        return 0;
    size_t mask = ds__trace.text_map.size - 1;
    size_t at = (size_t)ds__trace_hash_text(text, size) & mask;
    for (uint32_t found; (found = ds__trace.text_map.slot[at]) != 0; at = (at + 1) & mask)
        if (ds__trace.text_size[found - 1] == size &&
            memcmp(ds__trace.text[found - 1], text, size) == 0)
            return found - 1;
    if (ds__trace.texts >= DS__TRACE_TEXTS || ds__trace.text_bytes + size >= DS__TRACE_TEXT_BYTES)
        return 0;
    return ds__trace_text_add(text, size, at);
}

/* Returns the number of a text; NULL: 0. Most texts are literals, which are found by address. The
   address alone is not enough: the memory of a plugin or of a label may have another text by
   now. */
static uint32_t ds__trace_text(const char *text) {
    if (!text || !*text)
        return 0;
    size_t c = (size_t)ds__trace_hash((uint64_t)(uintptr_t)text) % DS__TRACE_CACHE;
    uint32_t cached = ds__trace.cache[c].text;
    if (ds__trace.cache[c].address == text && strcmp(ds__trace.text[cached], text) == 0)
        return cached;
    size_t size = strlen(text);
    uint32_t number = ds__trace_text_of(text, size < 4096 ? size : 4096);
    ds__trace.cache[c].address = text;
    ds__trace.cache[c].text = number;
    return number;
}

/* Finds a stream, or adds it with the members of `fresh`. Returns DS__TRACE_NONE if there is no
   memory. */
static uint32_t ds__trace_stream_find(const ds__trace_stream *fresh) {
    if (!ds__trace_map_reserve(&ds__trace.stream_map, ds__trace.streams, ds__trace_stream_hash))
        return DS__TRACE_NONE;
    size_t mask = ds__trace.stream_map.size - 1;
    size_t at = (size_t)ds__trace_stream_key(fresh->handle, fresh->lane) & mask;
    for (uint32_t found; (found = ds__trace.stream_map.slot[at]) != 0; at = (at + 1) & mask)
        if (ds__trace.stream[found - 1].handle == fresh->handle &&
            ds__trace.stream[found - 1].lane == fresh->lane)
            return found - 1;
    if (!ds__array_reserve(&ds__trace.stream, sizeof *ds__trace.stream, ds__trace.streams, 1,
                           &ds__trace.stream_room))
        return DS__TRACE_NONE;
    ds__trace.stream[ds__trace.streams] = *fresh;
    ds__trace.stream_map.slot[at] = (uint32_t)ds__trace.streams + 1;
    return (uint32_t)ds__trace.streams++;
}

/* Returns the index of a stream, which has been named, or of a lane of its launches. */
static uint32_t ds__trace_stream_of(uint64_t handle, uint32_t lane, uint32_t device) {
    ds__trace_stream fresh = { .handle = handle, .device = device };
    uint32_t index = ds__trace_stream_find(&fresh);
    if (!lane || index == DS__TRACE_NONE)
        return index;
    const ds__trace_stream *s = &ds__trace.stream[index];
    fresh.lane = lane;
    fresh.number = s->number;
    if (*s->name)
        snprintf(fresh.name, sizeof fresh.name, "%.40s lane %u", s->name, lane);
    else
        snprintf(fresh.name, sizeof fresh.name, "stream %llu lane %u",
                 (unsigned long long)s->number, lane);
    size_t before = ds__trace.streams;
    index = ds__trace_stream_find(&fresh);
    if (ds__trace.streams > before)
        ds__trace.stream[index].label = ds__trace_text(ds__trace.stream[index].name);
    return index;
}

/* Returns the index of the calling thread. */
static uint32_t ds__trace_thread_of(void) {
    uint32_t epoch = atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed);
    if (ds__trace_tls.epoch == epoch)
        return ds__trace_tls.thread;
    ds__trace_tls.epoch = epoch;
    ds__trace_tls.ranges = 0;
    ds__trace_tls.depth = 0;
    ds__trace_tls.thread = DS__TRACE_NONE;
    if (ds__array_reserve(&ds__trace.thread, sizeof *ds__trace.thread, ds__trace.threads, 1,
                          &ds__trace.thread_room)) {
        ds__trace.thread[ds__trace.threads] =
            (ds__trace_thread){ .number = ds__thread_number(), .name = 0 };
        ds__trace_tls.thread = (uint32_t)ds__trace.threads++;
    }
    return ds__trace_tls.thread;
}

/* Frees the tables of a trace. */
static void ds__trace_tables_deinit(void) {
    for (size_t i = 0; i < ds__trace.texts; i++)
        ds__host_free(ds__trace.text[i]);
    ds__host_free(ds__trace.text);
    ds__host_free(ds__trace.text_size);
    ds__host_free(ds__trace.text_map.slot);
    ds__host_free(ds__trace.thread);
    ds__trace.text = NULL;
    ds__trace.text_size = NULL;
    ds__trace.thread = NULL;
    ds__trace.text_map = (ds__trace_map){ NULL, 0 };
    ds__trace.texts = ds__trace.text_room = ds__trace.text_size_room = ds__trace.text_bytes = 0;
    ds__trace.threads = ds__trace.thread_room = 0;
    memset(ds__trace.cache, 0, sizeof ds__trace.cache);
}

/* Frees the streams, too, at the end of the layer. */
static void ds__trace_streams_deinit(void) {
    ds__host_free(ds__trace.stream);
    ds__host_free(ds__trace.stream_map.slot);
    ds__trace.stream = NULL;
    ds__trace.stream_map = (ds__trace_map){ NULL, 0 };
    ds__trace.streams = ds__trace.stream_room = 0;
}

/* Begins the tables of a trace: adds the text 0 and the labels of streams. Returns 0 if there is no
   memory. */
static int ds__trace_tables_init(void) {
    if (!ds__trace_map_reserve(&ds__trace.text_map, 0, ds__trace_text_hash))
        return 0;
    ds__trace_text_of("", 0);
    for (size_t i = 0; i < ds__trace.streams && ds__trace.texts; i++) {
        ds__trace_stream *s = &ds__trace.stream[i];
        s->label = ds__trace_text(s->name);
        s->operations = 0;
        s->busy_ns = s->wait_ns = s->bytes = s->first = s->last = 0;
    }
    return ds__trace.texts > 0;
}

/* Sets number and label of a stream. */
static void ds__trace_stream_name(uint64_t handle, uint32_t device, uint64_t number,
                                  const char *label) {
    uint32_t index = ds__trace_stream_of(handle, 0, device);
    if (index == DS__TRACE_NONE)
        return;
    ds__trace_stream *s = &ds__trace.stream[index];
    s->device = device;
    s->number = number;
    snprintf(s->name, sizeof s->name, "%s", label ? label : "");
    s->label = ds__trace.texts ? ds__trace_text(s->name) : 0;
}

#endif
