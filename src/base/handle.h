/* base/handle.h - handles and their tables.

   Turns a handle into the address of an object and back. A table (ds__table) has a slot for
   every object of one kind; ds__table_add gives out a slot, ds__slot_at finds one, and
   ds__handle_of makes the public handle. base/pin.h destroys objects and reclaims them.

   Policy:
   1. A handle is index + 1 and generation. A slot's word is generation (32 bits), state (2 bits)
      and references (30 bits): one for the owners, and one for each other holder, such as a
      current-stream slot or a graph node.
   2. Destroying an object makes its handle stale at once and drops the owners' reference. An
      object without references is freed when no call uses it.
   3. A call that uses an object stores its address in the thread's hazard pointers, with a plain
      store. A thread that wants to free objects makes all processors pass a barrier
      (membarrier), then reads all hazard pointers. So a call pays two stores and no locked
      instruction; the freeing thread pays for both.
   4. Slots are in chunks that do not move before ds_shutdown, so a look-up takes no lock.

   Invariants: an object begins with its ds__slot. The generation of a slot in use is not 0, and
   it rises each time the slot is given out. Chunk i has DS__FIRST_CHUNK << i objects.
   Locks: ds__table_add takes the table's lock, and calls the user's allocator under it. The
   other functions take none.
   Threads: any thread, concurrently. */
#ifndef DS__BASE_HANDLE_H
#define DS__BASE_HANDLE_H

#include "bookkeeping.h"

/* A program may keep a handle in a pointer; tests/unit/abi.h has the sizes of all handles. */
_Static_assert(sizeof(void *) >= sizeof(uint64_t), "a handle does not fit a pointer");

/* ds_handle_to_number moves the index to the left. */
_Static_assert(((uint64_t)64 << 25) <= (uint64_t)1 << 31, "an index has more than 31 bits");

/* Returns a copy of the first `longest` bytes of a text. NULL: no memory. */
static char *ds__copy_text(const char *text, size_t longest) {
    size_t n = strlen(text);
    if (n > longest)
        n = longest;
    char *copy = ds__host_alloc(n + 1);
    if (copy)
        memcpy(copy, text, n);
    return copy;
}

/* Modules above the core, in the order of their layers. */
enum {
    DS__MODULE_ALLOC,
    DS__STREAM_MODULES, /* the number of modules above, which keep state for each stream */
    DS__MODULE_KERNEL = DS__STREAM_MODULES,
    DS__MODULE_RNG,
    DS__MODULE_TENSOR,
    DS__MODULE_TOPOLOGY,
    DS__MODULE_COMM,
    DS__MODULE_RANKS,
    DS__MODULES
};

/* ---- >>handles ------------------------------------------------------------------------------- */

enum {
    DS__FREE = 0,
    DS__ALIVE = 1,
    DS__DYING = 2,
    DS__ZOMBIE = 3 /* destroyed, without references, in the list to be freed */
};

#define DS__REFS(word) ((uint32_t)(word)&0x3fffffffu)
#define DS__STATE(word) ((uint32_t)((word) >> 30) & 3u)
#define DS__GENERATION(word) ((uint32_t)((word) >> 32))
#define DS__WORD(generation, state, refs) \
    ((uint64_t)(generation) << 32 | (uint64_t)(state) << 30 | (refs))

typedef struct ds__slot {
    _Atomic uint64_t word;
    uint32_t index;
    uint32_t next; /* index + 1, in the list of free slots or of zombies */
} ds__slot;

#define DS__FIRST_CHUNK 64u

typedef struct ds__table {
    const char *what; /* "stream" */
    size_t element;   /* size of the object, which begins with a ds__slot */
    void (*free_fn)(void *object);
    /* NULL, or: takes over an object that no call uses any more, and calls ds__table_slot_free
       later */
    void (*defer_fn)(void *object);
    /* NULL, or: 1 if the program cannot notice a late release of the object (DS__RECLAIM_BATCH) */
    int (*batched_fn)(const void *object);
    ds__spinlock lock;
    uint32_t generation; /* the generation of unused slots; differs after each shutdown */
    uint32_t used;
    uint32_t free_head;
    uint32_t zombies;
    _Atomic(char *) chunk[25]; /* chunk i holds DS__FIRST_CHUNK << i objects */
} ds__table;

/* Returns the slot with this index, or NULL if its chunk is not allocated. */
static inline ds__slot *ds__slot_at(ds__table *t, uint32_t index) {
    uint32_t c = 31u - (uint32_t)__builtin_clz(index / DS__FIRST_CHUNK + 1);
    if (DS__UNLIKELY(c >= 25))
        return NULL;
    char *chunk = atomic_load_explicit(&t->chunk[c], memory_order_acquire);
    if (DS__UNLIKELY(!chunk))
        return NULL;
    return (ds__slot *)(void *)(chunk + (size_t)(index - (DS__FIRST_CHUNK << c) + DS__FIRST_CHUNK) *
                                            t->element);
}

static inline uint64_t ds__handle_of(const ds__slot *slot) {
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    return (word & 0xffffffff00000000u) | (slot->index + 1);
}

/* Allocates a chunk of slots, if it is not there. The table's lock is held. */
static void ds__table_grow(ds__table *t, uint32_t c) {
    if (atomic_load_explicit(&t->chunk[c], memory_order_relaxed))
        return;
    size_t count = (size_t)DS__FIRST_CHUNK << c;
    char *chunk = ds__host_alloc(count * t->element);
    for (uint32_t i = 0; chunk && i < count; i++)
        ((ds__slot *)(void *)(chunk + i * t->element))->index =
            (DS__FIRST_CHUNK << c) - DS__FIRST_CHUNK + i;
    atomic_store_explicit(&t->chunk[c], chunk, memory_order_release);
}

/* Takes a free slot; NULL: no memory. The table's lock is held. */
static ds__slot *ds__table_slot_alloc(ds__table *t) {
    ds__slot *slot = NULL;
    if (t->free_head) {
        slot = ds__slot_at(t, t->free_head - 1);
        t->free_head = slot->next;
        return slot;
    }
    uint32_t c = 31u - (uint32_t)__builtin_clz(t->used / DS__FIRST_CHUNK + 1);
    if (c >= 25)
        return NULL;
    ds__table_grow(t, c);
    slot = ds__slot_at(t, t->used);
    if (slot)
        t->used++;
    return slot;
}

/* Returns a slot for a new object, alive with one reference. No other thread reaches the object
   before it has the handle. NULL: no memory. */
static void *ds__table_add(ds__table *t) {
    ds__spinlock_lock(&t->lock);
    ds__slot *slot = ds__table_slot_alloc(t);
    ds__spinlock_unlock(&t->lock);
    if (!slot)
        return NULL;

    memset((char *)slot + sizeof *slot, 0, t->element - sizeof *slot);
    uint32_t generation = DS__GENERATION(atomic_load_explicit(&slot->word, memory_order_relaxed));
    /* never used */
    if (generation == 0)
        generation = t->generation;
    if (++generation == 0)
        generation = 1;
    atomic_store_explicit(&slot->word, DS__WORD(generation, DS__ALIVE, 1), memory_order_release);
    return slot;
}

#endif
