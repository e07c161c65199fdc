/* alloc/callbacks.h - lists of the program's callbacks for shortage, out of memory and events.

   ds__callback_add and ds__callback_remove change a list. ds__callback_get returns one entry, so
   that the caller invokes the function without a lock. ds__callback_clear empties a list at
   shutdown.

   Invariants: entries keep the order in which they were added.
   Locks: ds__memory_state.lock guards the lists for shortage and out of memory,
   ds__history_state.watch the list for events. No function here expects the lock to be held.
   Threads: any. A callback for shortage or out of memory that was removed may still run on another
   thread. */
#ifndef DS__ALLOC_CALLBACKS_H
#define DS__ALLOC_CALLBACKS_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "pool.h"

/* Adds an entry; `lock` guards the list. DS_ERR_INVALID_VALUE: its function is NULL. */
static ds_result ds__callback_add(ds__callback_list *list, ds__mutex *lock, ds__callback entry) {
    DS__REQUIRE(entry.fn, "fn is NULL");
    ds_result r = ds__mem_setup(); /* then ds_shutdown empties the list */
    if (r < 0)
        return r;

    ds__mutex_lock(lock);
    int room =
        ds__array_reserve(&list->entries, sizeof *list->entries, list->count, 1, &list->room);
    if (room)
        list->entries[list->count++] = entry;
    ds__mutex_unlock(lock);

    return room ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a callback");
}

/* Removes the first entry with this function and argument; `lock` guards the list. */
static ds_result ds__callback_remove(ds__callback_list *list, ds__mutex *lock, ds__callback entry) {
    size_t i = 0;

    ds__mutex_lock(lock);
    while (i < list->count &&
           (list->entries[i].fn != entry.fn || list->entries[i].user != entry.user))
        i++;
    int found = i < list->count;
    if (found) {
        list->count--;
        memmove(&list->entries[i], &list->entries[i + 1],
                (list->count - i) * sizeof *list->entries);
    }
    ds__mutex_unlock(lock);

    return found ? DS_OK
                 : ds__fail(DS_ERR_INVALID_VALUE,
                            "the callback was not added with this user pointer");
}

/* Returns the entry at this index; its function is NULL after the last one. */
static ds__callback ds__callback_get(const ds__callback_list *list, size_t index) {
    ds__callback entry = { NULL, NULL };
    ds__mutex_lock(&ds__memory_state.lock);
    if (index < list->count)
        entry = list->entries[index];
    ds__mutex_unlock(&ds__memory_state.lock);
    return entry;
}

/* Frees the list at shutdown, when no other thread uses the allocator. */
static void ds__callback_clear(ds__callback_list *list) {
    ds__host_free(list->entries);
    *list = (ds__callback_list){ 0 };
}

#endif
