/* check/place.h - call sites of operations.

   ds__race_place_of returns a number for the running public call and its site, ds__race_place_named
   one for a given name. Equal places have one number, so a record of an access is small.

   Invariants: place 0 is unknown. Places live until ds_shutdown; a program has as many as it has
   call sites.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_PLACE_H
#define DS__CHECK_PLACE_H

#include "table.h"

/* Returns the slot of a place in the hash table: its own, or the free one in which it belongs. */
static uint32_t *ds__race_place_slot(const char *operation, const char *file, int line) {
    uint64_t key = (uint64_t)(uintptr_t)file * 31 + (unsigned)line;
    for (const char *c = operation; *c; c++)
        key = key * 131 + (unsigned char)*c;
    size_t i = ds__race_hash(key) & (ds__race.place_slots - 1);
    for (;; i = (i + 1) & (ds__race.place_slots - 1)) {
        uint32_t *slot = &ds__race.place_slot[i];
        const ds__race_place *p = &ds__race.place[*slot];
        if (!*slot || (p->line == line && p->file == file && strcmp(p->operation, operation) == 0))
            return slot;
    }
}

/* Doubles the hash table if it is half full. Returns 0 if there is no memory. */
static int ds__race_place_reserve(void) {
    size_t before = ds__race.place_slots;
    if (!ds__race_array_reserve(&ds__race.place, sizeof *ds__race.place, ds__race.places,
                                &ds__race.place_room))
        return 0;
    if (2 * (ds__race.places + 1) <= before)
        return 1;
    uint32_t *old = ds__race.place_slot;
    size_t size = before ? 2 * before : 256;
    uint32_t *fresh = ds__race_alloc(size * sizeof *fresh);
    if (!fresh)
        return 0;
    ds__race.place_slot = fresh;
    ds__race.place_slots = size;
    for (size_t i = 1; i < ds__race.places; i++) {
        const ds__race_place *p = &ds__race.place[i];
        *ds__race_place_slot(p->operation, p->file, p->line) = (uint32_t)i;
    }
    ds__race_release(old, before * sizeof *old);
    return 1;
}

/* Returns the number of a place. The file is not copied: it lives as long as the program. */
static uint32_t ds__race_place_named(const char *operation, const char *file, int line) {
    if (!ds__race_place_reserve())
        return 0;
    if (!ds__race.places) { /* the unknown place */
        ds__race.place[0] = (ds__race_place){ "", NULL, 0 };
        ds__race.places = 1;
    }
    uint32_t *slot = ds__race_place_slot(operation, file, line);
    if (*slot)
        return *slot;
    char *copy = ds__copy_text(operation, 255);
    if (!copy) {
        ds__race.failed = 1;
        return 0;
    }
    ds__race.place[ds__race.places] = (ds__race_place){ copy, file, line };
    *slot = (uint32_t)ds__race.places++;
    return *slot;
}

/* Returns the number of the running public call. */
static uint32_t ds__race_place_of_call(void) {
    const char *fn = ds__tls.fn ? ds__tls.fn : "devstream";
    return ds__race_place_named(fn, ds__tls.site.file, ds__tls.site.line);
}

/* Finds the number of a stream's operation by its name. */
__attribute__((noinline)) static uint32_t ds__race_place_look_up(const ds__op *op) {
    char text[128];
    if (op->kind != DS__OP_KERNEL)
        return ds__race_place_named(ds__tls.fn ? ds__tls.fn : "devstream", op->file, (int)op->line);
    snprintf(text, sizeof text, "kernel %.100s", op->u.kernel.kernel->name);
    return ds__race_place_named(text, op->file, (int)op->line);
}

/* Returns the number of a stream's operation. A name that was found last for a kernel's handle, or
   for a public function, and a call site is found again without a comparison of texts. */
static uint32_t ds__race_place_of(const ds__op *op) {
    uint64_t what = op->kind == DS__OP_KERNEL ? ds__handle_of(&op->u.kernel.kernel->slot)
                                              : (uint64_t)(uintptr_t)ds__tls.fn;
    uint64_t key = what * 31 + (uint64_t)(uintptr_t)op->file * 7 + op->line;
    ds__race_found *f = &ds__race.found[ds__race_hash(key) % DS__RACE_FOUND];
    if (DS__LIKELY(f->what == what && f->file == op->file && f->line == op->line && f->place))
        return f->place;
    uint32_t place = ds__race_place_look_up(op);
    *f = (ds__race_found){ what, op->file, op->line, place };
    return place;
}

static const ds__race_place *ds__race_place_get(uint32_t place) {
    static const ds__race_place unknown = { "", NULL, 0 };
    return place && place < ds__race.places ? &ds__race.place[place] : &unknown;
}

static void ds__race_places_deinit(void) {
    for (size_t i = 1; i < ds__race.places; i++)
        ds__host_free((void *)(uintptr_t)ds__race.place[i].operation);
    ds__race_release(ds__race.place, ds__race.place_room * sizeof *ds__race.place);
    ds__race_release(ds__race.place_slot, ds__race.place_slots * sizeof *ds__race.place_slot);
    ds__race.place = NULL;
    ds__race.place_slot = NULL;
    ds__race.places = ds__race.place_room = ds__race.place_slots = 0;
    memset(ds__race.found, 0, sizeof ds__race.found);
}

#endif
