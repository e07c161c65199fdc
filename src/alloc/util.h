/* alloc/util.h - helpers of all rooms; labels.

   Has helpers for many rooms: calls of public functions for the allocator's own purposes
   (DS__KEEPING), and memory that stays until ds_shutdown (ds__mkeep). ds__mdevice_lock takes
   the device's lock; ds__hold_captures holds back new captures. It declares functions of later
   rooms. It implements ds_mem_label_push and ds_mem_label_pop.

   Invariants: Memory of ds__mkeep is freed by ds__mem_shutdown only, so an old pointer still
   finds an object of its type. DS__KEEPING keeps the name and call site of the user's call.
   ds__tls.upper_locked is above 0 while these functions hold the device's lock or ds__g.begin;
   no destructor of the user's runs then.
   Locks: ds__mkeep takes the registry's lock, also under an arena's; ds__mkeep_unlocked expects
   it. No capture begins between ds__hold_captures and ds__let_captures (ds__g.begin). The
   driver may be called under ds__g.begin. ds__native_of, ds__own_fill and ds__any_stream call
   the driver and expect no spinning lock.
   Threads: any. Labels belong to the calling thread. */
#ifndef DS__ALLOC_UTIL_H
#define DS__ALLOC_UTIL_H

#include "../api/mem_stats.h"
#include "../core/stream.h"
#include "../core/stream_default.h"
#include "../core/copy.h"
#include "types.h"
#include "state.h"

/* Orders blocks: by segment in the order in which they were made, so that a program sees the
   same order wherever its memory lies; then by address. */
static inline int ds__earlier(const ds__mblock *a, const ds__mblock *b) {
    return a->seg == b->seg ? a->ptr < b->ptr : a->seg->serial < b->seg->serial;
}

/* The stream that the arena is of, which changes when wrapped streams come and go. Zero: it has
   ended. */
static ds_stream ds__arena_stream(ds__arena *a) {
    ds_stream stream = { 0 };
    ds__lock_take(&a->lock);
    if (!a->orphan)
        stream = a->stream;
    ds__lock_give(&a->lock);
    return stream;
}

/* The driver's stream of an arena, for upstreams; NULL when it has ended. */
static void *ds__native_of(ds__arena *a) {
    void *native = NULL;
    ds__stream *s = ds__pin(&ds__g.streams, ds__arena_stream(a).id);
    if (!s)
        return NULL;
    if (s->driver->stream_native(s->native, &native) < 0)
        native = NULL;
    ds__stream_unpin(s);
    return native;
}

/* Calls of public functions on the allocator's behalf: the user's call stays the one that runs. */
#define DS__KEEPING(r, call)             \
    do {                                 \
        const char *ds__fn = ds__tls.fn; \
        ds_site ds__site = ds__tls.site; \
        ds__tls.next_site = ds__site;    \
        ds__tls.unwatched++;             \
        r = call;                        \
        ds__tls.unwatched--;             \
        ds__tls.fn = ds__fn;             \
        ds__tls.site = ds__site;         \
    } while (0)

static ds_result ds__own_fill(ds_stream stream, void *ptr, uint32_t value, size_t size) {
    ds_result r;
    DS__KEEPING(r, (ds_fill)(ptr, value, sizeof value, size / sizeof value, stream));
    return r;
}

/* A stream of the device that is always there, pinned; NULL and the sentence: none. */
static ds__stream *ds__any_stream(ds_device device) {
    ds_stream handle = { 0 };
    ds_result r;
    DS__KEEPING(r, (ds_stream_legacy)(device, &handle));
    return r < 0 ? NULL : ds__stream_pin(handle);
}

/* The result of what failed last on this thread: for functions that return an object. */
static ds_result ds__mem_error(void) {
    return ds__tls.code < 0 ? ds__tls.code : DS_ERR_OUT_OF_MEMORY;
}

static void ds__unpark_all(ds__arena *a);
static void ds__bins_sort(ds__arena *a);
static void ds__event_drop(ds_event event);
static ds_result ds__event_ask(ds_event event);
static void ds__muses_drop(ds__arena *a, ds__muse *u);
static void ds__block_end(ds__arena *a, ds__mblock *b);
static void ds__poison_on(ds__mblock *b, ds_stream stream);
static int ds__poison_late(ds__arena *a, ds__mblock *b, int wait);
static int ds__is_shortage(ds_result r);
static int ds__is_capturing(ds__stream *s);
static uint64_t ds__capture_of(ds__stream *s);
static ds_result ds__capture_pool_of(ds__stream *s, ds__mpool **out);
static ds_result ds__capture_keep(ds__stream *s, ds__mpool *p);
static ds_result ds__direct_free(ds__arena *a, ds__mblock *b);

/* What a call may wait for when it gives blocks back that no cache keeps: an allocation for
   nothing, a free for the driver's own free of plain memory. */
enum { DS__WAIT_NONE = 0, DS__WAIT_DEVICE, DS__WAIT_ALL };

static size_t ds__direct_again(ds__mdevice *dev, int wait);
static int ds__arena_drain(ds__arena *a);
static size_t ds__async_surplus(ds__mdevice *dev);
static void ds__async_give(ds__mdevice *dev, size_t keep);
static void ds__direct_drain(ds__mdevice *dev);
static void ds__stats(ds__mdevice *dev, ds__mpool *only, ds_mem_stats *out);
static ds__stream *ds__direct_giver(ds__mdevice *dev);
typedef struct ds__wanted ds__wanted;
static ds_result ds__direct_alloc(ds__wanted *q, const ds_mem_request *request, void **out);
static int ds__align(ds__wanted *q, size_t align, size_t size);
static ds_result ds__validate(ds__mdevice *dev);
static ds_result ds__check(ds__mpool *p, int level);
static void ds__mem_limit(ds__mdevice *dev);
static void ds__mem_shutdown(void);
static ds_result ds__share_segment_alloc(ds_device device, size_t size, void **out);
static ds_result ds__share_segment_free(ds_device device, void *ptr, size_t size);
static void ds__tell_leaks(ds__mdevice *dev);
static void ds__mem_end(ds__mdevice *dev);

/* Memory that stays until shutdown, so that whoever holds an old pointer meets an object of the
   same type. */
typedef struct ds__mkept {
    struct ds__mkept *next;
    uint64_t pad;
} ds__mkept;

static void *ds__mkeep_unlocked(size_t size) { /* the registry is locked */
    ds__mkept *k = ds__alloc(sizeof *k + size);
    if (!k)
        return NULL;
    k->next = ds__m.kept;
    ds__m.kept = k;
    return k + 1;
}

static void *ds__mkeep(size_t size) {
    pthread_mutex_lock(&ds__m.registry);
    void *p = ds__mkeep_unlocked(size);
    pthread_mutex_unlock(&ds__m.registry);
    return p;
}

static void ds__mdevice_lock(ds__mdevice *dev) {
    pthread_mutex_lock(&dev->lock);
    ds__tls.upper_locked++;
}

static void ds__mdevice_unlock(ds__mdevice *dev) {
    ds__tls.upper_locked--;
    pthread_mutex_unlock(&dev->lock);
}

/* Between the question whether something captures and work that must not come into a capture
   none begins. Destructors of the user's wait as well: they could free. */
static void ds__hold_captures(void) {
    pthread_mutex_lock(&ds__g.begin);
    ds__tls.upper_locked++;
}

static void ds__let_captures(void) {
    ds__tls.upper_locked--;
    pthread_mutex_unlock(&ds__g.begin);
}

static const char *ds__mem_label(void) {
    unsigned n = ds__mtls.labels;
    return n == 0 ? NULL : ds__mtls.label[n <= DS__LABELS ? n - 1 : DS__LABELS - 1];
}

DSDEF void(ds_mem_label_push)(const char *label) {
    if (ds__mtls.labels < DS__LABELS)
        ds__mtls.label[ds__mtls.labels] = label;
    ds__mtls.labels++;
}

DSDEF void(ds_mem_label_pop)(void) {
    if (ds__mtls.labels)
        ds__mtls.labels--;
}

#endif
