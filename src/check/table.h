/* check/table.h - memory of the layer, and a hash table.

   ds__race_alloc and ds__race_release count the bytes of the layer; ds__race_array_reserve lets an
   array grow. ds__race_table_find, ds__race_table_set and ds__race_table_remove are a hash table
   with open addressing.

   Invariants: without memory, ds__race.failed is set, and nothing is checked any more. A table is
   at most half full.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_TABLE_H
#define DS__CHECK_TABLE_H

#include "types.h"

/* Ends the checks for lack of memory. */
static void ds__race_fail(void) {
    if (ds__race.failed)
        return;
    ds__race.failed = 1;
    ds__race_notice_failure();
}

/* Returns zeroed memory. NULL: there is none, and the layer ends. */
static void *ds__race_alloc(size_t size) {
    void *ptr = ds__host_alloc(size);
    if (ptr) {
        ds__race.bytes += size;
        return ptr;
    }
    ds__race_fail();
    return NULL;
}

static void ds__race_release(void *ptr, size_t size) {
    if (ptr)
        ds__race.bytes -= size;
    ds__host_free(ptr);
}

/* Makes room for one more element. Returns 0 if there is no memory. */
static int ds__race_array_reserve(void *array, size_t element, size_t count, size_t *room) {
    size_t before = *room;
    if (count < before)
        return 1;
    if (!ds__array_reserve(array, element, count, 1, room)) {
        ds__race_fail();
        return 0;
    }
    ds__race.bytes += (*room - before) * element;
    return 1;
}

static size_t ds__race_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return (size_t)(key ^ key >> 32);
}

/* Returns the slot of the key, or the free slot in which it belongs. */
static ds__race_entry *ds__race_table_slot(const ds__race_table *t, uint64_t key) {
    size_t i = ds__race_hash(key) & (t->size - 1);
    while (t->entry[i].key && t->entry[i].key != key)
        i = (i + 1) & (t->size - 1);
    return &t->entry[i];
}

/* Returns the value of a key, or NULL. */
static void *ds__race_table_find(const ds__race_table *t, uint64_t key) {
    return t->size ? ds__race_table_slot(t, key)->value : NULL;
}

/* Sets the value of a key. Returns 0 if there is no memory. */
static int ds__race_table_set(ds__race_table *t, uint64_t key, void *value) {
    if (2 * (t->used + 1) > t->size) {
        ds__race_table old = *t;
        size_t size = old.size ? 2 * old.size : 64;
        ds__race_entry *entry = ds__race_alloc(size * sizeof *entry);
        if (!entry)
            return 0;
        t->entry = entry;
        t->size = size;
        for (size_t i = 0; i < old.size; i++)
            if (old.entry[i].key)
                *ds__race_table_slot(t, old.entry[i].key) = old.entry[i];
        ds__race_release(old.entry, old.size * sizeof *old.entry);
    }
    ds__race_entry *e = ds__race_table_slot(t, key);
    t->used += !e->key;
    e->key = key;
    e->value = value;
    return 1;
}

/* Removes a key, and moves the entries that follow it to where they are found. */
static void ds__race_table_remove(ds__race_table *t, uint64_t key) {
    if (!t->size)
        return;
    ds__race_entry *e = ds__race_table_slot(t, key);
    if (!e->key)
        return;
    t->used--;
    e->key = 0;
    e->value = NULL;
    size_t i = (size_t)(e - t->entry);
    for (i = (i + 1) & (t->size - 1); t->entry[i].key; i = (i + 1) & (t->size - 1)) {
        ds__race_entry moved = t->entry[i];
        t->entry[i] = (ds__race_entry){ 0, NULL };
        *ds__race_table_slot(t, moved.key) = moved;
    }
}

/* Removes all keys of a value. */
static void ds__race_table_remove_value(ds__race_table *t, const void *value) {
    for (size_t i = 0; i < t->size;)
        if (t->entry[i].key && t->entry[i].value == value)
            ds__race_table_remove(t, t->entry[i].key);
        else
            i++;
}

static void ds__race_table_deinit(ds__race_table *t) {
    ds__race_release(t->entry, t->size * sizeof *t->entry);
    *t = (ds__race_table){ NULL, 0, 0 };
}

static uint64_t ds__race_key(const void *ptr) {
    return (uint64_t)(uintptr_t)ptr;
}

#endif
