/* alloc/util.h - helpers of all rooms; labels.

   Has helpers for many rooms: calls of public functions for the allocator's own purposes
   (DS__KEEPING), and memory that stays until ds_shutdown (ds__kept_alloc). ds__mem_dev_lock takes
   the device's lock, ds__arena_lock that of an arena; ds__hold_captures holds back new captures.
   ds__block_list_in and ds__block_list_out link blocks into the lists of an arena.
   ds__direct_giver is the allocator's own stream for memory of ended streams. It implements
   ds_mem_label_push and ds_mem_label_pop.

   Invariants: Memory of ds__kept_alloc is freed by ds__mem_shutdown only, so an old pointer still
   finds an object of its type. DS__KEEPING keeps the name and call site of the user's call.
   ds__tls.upper_locked is above 0 while these functions hold the device's lock or ds__g.begin;
   no destructor of the user's runs then.
   Locks: ds__kept_alloc takes the registry's lock, also under an arena's; ds__kept_alloc_unlocked
   expects it. No capture begins between ds__hold_captures and ds__let_captures (ds__g.begin). The
   driver may be called under ds__g.begin. ds__native_of, ds__own_fill and ds__any_stream call the
   driver and expect no spinning lock.
   Threads: any. Labels belong to the calling thread. */
#ifndef DS__ALLOC_UTIL_H
#define DS__ALLOC_UTIL_H

#include "../api/mem.h"
#include "../core/internal.h"
#include "types.h"
#include "state.h"

/* The first step of a public function whose result depends on what is free: makes the frees that
   were postponed. */
#define DS__MEM_ENTER(fn)                        \
    do {                                         \
        DS__ENTER(fn);                           \
        ds__postponed_run(DS__POSTPONED_MEMORY); \
    } while (0)

/* Orders blocks: by segment in the order in which they were made, so that a program sees the
   same order independent of addresses; then by address. */
static inline int ds__block_is_earlier(const ds__mem_block *a, const ds__mem_block *b) {
    return a->seg == b->seg ? a->ptr < b->ptr : a->seg->serial < b->seg->serial;
}

/* Links a block into a list between two neighbours. `before` is NULL at the head, `at` is NULL at
   the end. */
static inline void ds__block_list_in(ds__mem_block **head, ds__mem_block *b, ds__mem_block *before,
                                     ds__mem_block *at) {
    b->list_prev = before;
    b->list_next = at;
    if (at)
        at->list_prev = b;
    if (before)
        before->list_next = b;
    else
        *head = b;
}

/* Unlinks a block from its list. The links of the block itself stay. */
static inline void ds__block_list_out(ds__mem_block **head, const ds__mem_block *b) {
    if (b->list_next)
        b->list_next->list_prev = b->list_prev;
    if (b->list_prev)
        b->list_prev->list_next = b->list_next;
    else
        *head = b->list_next;
}

/* Returns the stream of an arena, or a zero handle if the stream has ended. The stream changes
   when wrapped streams come and go. */
static ds_stream ds__arena_stream(ds__arena *a) {
    ds_stream stream = { 0 };
    ds__spinlock_lock(&a->lock);
    if (!a->orphan)
        stream = a->stream;
    ds__spinlock_unlock(&a->lock);
    return stream;
}

/* Returns the driver's stream of an arena, for upstreams, or NULL if the stream has ended. */
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

/* Fills memory for the allocator's own purposes: with poison, or as a guard. */
static ds_result ds__own_fill(ds_stream stream, void *ptr, uint32_t value, size_t size) {
    ds_result r;
    DS__KEEPING(r, (ds_fill)(ptr, value, sizeof value, size / sizeof value, stream));
    return r;
}

/* Returns the legacy stream of the device, pinned. On failure returns NULL and sets the error. */
static ds__stream *ds__any_stream(ds_device device) {
    ds_stream handle = { 0 };
    ds_result r;
    DS__KEEPING(r, (ds_stream_get_legacy)(device, &handle));
    return r < 0 ? NULL : ds__stream_pin(handle);
}

/* Returns the allocator's own stream of a device, pinned, or NULL if it cannot be made. Memory of
   ended streams is given back on this stream. */
static ds__stream *ds__direct_giver(ds__mem_dev *dev) {
    ds_stream made = { 0 };
    uint64_t none = 0;
    if (!atomic_load(&dev->giver) &&
        ds__stream_create(dev->device, DS__STREAM_NEW, 0, 0, NULL, &made) == DS_OK &&
        !atomic_compare_exchange_strong(&dev->giver, &none, made.id))
        ds__stream_end(made); /* another thread was faster */
    return ds__pin(&ds__g.streams, atomic_load(&dev->giver));
}

/* Returns the code of the thread's last error, for callers of functions that return an object. */
static ds_result ds__mem_error(void) {
    return ds__tls.code < 0 ? ds__tls.code : DS_ERR_OUT_OF_MEMORY;
}

static int ds__is_shortage(ds_result r) {
    return r == DS_ERR_OUT_OF_MEMORY || r == DS_ERR_LIMIT_EXCEEDED;
}

/* The waits that are allowed to a call that gives back blocks of backends without a cache: none in
   an allocation, the driver's own free of plain memory in a free, all in a flush. */
enum { DS__WAIT_NONE = 0, DS__WAIT_DEVICE, DS__WAIT_ALL };

/* Header of memory that stays until shutdown. An old pointer still leads to an object of its
   type. */
typedef struct ds__kept {
    struct ds__kept *next;
    uint64_t pad;
} ds__kept;

/* Returns zeroed memory that stays until shutdown, or NULL. The registry is locked. */
static void *ds__kept_alloc_unlocked(size_t size) {
    ds__kept *k = ds__host_alloc(sizeof *k + size);
    if (!k)
        return NULL;
    k->next = ds__memory_state.kept;
    ds__memory_state.kept = k;
    return k + 1;
}

static void *ds__kept_alloc(size_t size) {
    ds__mutex_lock(&ds__memory_state.registry);
    void *p = ds__kept_alloc_unlocked(size);
    ds__mutex_unlock(&ds__memory_state.registry);
    return p;
}

static void ds__mem_dev_lock(ds__mem_dev *dev) {
    ds__mutex_lock(&dev->lock);
    ds__tls.upper_locked++;
}

static void ds__mem_dev_unlock(ds__mem_dev *dev) {
    ds__tls.upper_locked--;
    ds__mutex_unlock(&dev->lock);
}

static void ds__arena_lock(ds__arena *a) {
    ds__spinlock_lock(&a->lock);
}

static void ds__arena_unlock(ds__arena *a) {
    ds__spinlock_unlock(&a->lock);
}

/* Holds back new captures until ds__let_captures: between the check for captures and work that
   must not be captured. Destructors of the program wait too, because they could free blocks. */
static void ds__hold_captures(void) {
    ds__rwlock_read(&ds__g.begin);
    ds__tls.upper_locked++;
}

static void ds__let_captures(void) {
    ds__tls.upper_locked--;
    ds__rwlock_end_read(&ds__g.begin);
}

/* Returns the label of the thread that was pushed last, or NULL. Of more than DS__LABELS labels,
   the last ones are not stored. */
static const char *ds__mem_label(void) {
    unsigned n = ds__memory_thread.labels < DS__LABELS ? ds__memory_thread.labels : DS__LABELS;
    return n ? ds__memory_thread.label[n - 1] : NULL;
}

DSDEF void(ds_mem_label_push)(const char *label) {
    if (ds__memory_thread.labels < DS__LABELS)
        ds__memory_thread.label[ds__memory_thread.labels] = label;
    ds__memory_thread.labels++;
}

DSDEF void(ds_mem_label_pop)(void) {
    if (ds__memory_thread.labels)
        ds__memory_thread.labels--;
}

#endif
