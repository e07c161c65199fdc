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

/* Returns a key of a place. */
static uint64_t ds__race_place_key(const char *operation, const char *file, int line) {
    uint64_t key = (uint64_t)(uintptr_t)file * 31 + (unsigned)line;
    for (const char *c = operation; *c; c++)
        key = key * 131 + (unsigned char)*c;
    return key | 1;
}

/* Returns the number of a place. The file is not copied: it lives as long as the program. */
static uint32_t ds__race_place_named(const char *operation, const char *file, int line) {
    if (!ds__race_array_reserve(&ds__race.place, sizeof *ds__race.place, ds__race.places,
                                &ds__race.place_room))
        return 0;
    if (!ds__race.places) /* the unknown place */
        ds__race.place[ds__race.places++] = (ds__race_place){ "", NULL, 0 };

    /* of two places with one key, the later one takes the next key */
    uint64_t key = ds__race_place_key(operation, file, line);
    uint32_t i;
    while ((i = (uint32_t)(uintptr_t)ds__race_table_find(&ds__race.place_keys, key)) != 0) {
        const ds__race_place *p = &ds__race.place[i];
        if (p->line == line && p->file == file && strcmp(p->operation, operation) == 0)
            return i;
        key += 2;
    }

    char *copy = ds__copy_text(operation, 255);
    void *number = (void *)(uintptr_t)ds__race.places;
    if (!copy || !ds__race_table_set(&ds__race.place_keys, key, number)) {
        ds__host_free(copy);
        ds__race_fail();
        return 0;
    }
    ds__race.place[ds__race.places] = (ds__race_place){ copy, file, line };
    return (uint32_t)ds__race.places++;
}

/* Finds the number of a place by its name. kernel: the name of a kernel; NULL: the running public
   call. */
__attribute__((noinline)) static uint32_t ds__race_place_look_up(const char *kernel,
                                                                 const char *file, int line) {
    char name[101];
    char text[128];
    if (!kernel)
        return ds__race_place_named(ds__tls.fn ? ds__tls.fn : "devstream", file, line);
    ds__utf8_copy(name, sizeof name, kernel);
    snprintf(text, sizeof text, "kernel %s", name);
    return ds__race_place_named(text, file, line);
}

/* Returns the number of a place. A name that was found last for a source, which is a kernel's
   handle or a public function, and a call site is found again without a comparison of texts. */
static uint32_t ds__race_place_find(uint64_t source, const char *kernel, const char *file,
                                    uint32_t line) {
    uint64_t key = source * 31 + (uint64_t)(uintptr_t)file * 7 + line;
    ds__race_found *f = &ds__race.found[ds__race_hash(key) % DS__RACE_FOUND];
    if (DS__LIKELY(f->source == source && f->file == file && f->line == line && f->place))
        return f->place;
    uint32_t place = ds__race_place_look_up(kernel, file, (int)line);
    *f = (ds__race_found){ source, file, line, place };
    return place;
}

/* Returns the number of the running public call. */
static uint32_t ds__race_place_of_call(void) {
    return ds__race_place_find((uint64_t)(uintptr_t)ds__tls.fn, NULL, ds__tls.site.file,
                               (uint32_t)ds__tls.site.line);
}

/* Returns the number of a stream's operation. */
static uint32_t ds__race_place_of(const ds__op *op) {
    const ds__kernel *k = op->kind == DS__OP_KERNEL ? op->u.kernel.kernel : NULL;
    uint64_t source = k ? ds__handle_of(&k->slot) : (uint64_t)(uintptr_t)ds__tls.fn;
    return ds__race_place_find(source, k ? k->name : NULL, op->file, op->line);
}

static const ds__race_place *ds__race_place_get(uint32_t place) {
    static const ds__race_place unknown = { "", NULL, 0 };
    return place && place < ds__race.places ? &ds__race.place[place] : &unknown;
}

static void ds__race_places_deinit(void) {
    for (size_t i = 1; i < ds__race.places; i++)
        ds__host_free((void *)(uintptr_t)ds__race.place[i].operation);
    ds__race_release(ds__race.place, ds__race.place_room * sizeof *ds__race.place);
    ds__race_table_deinit(&ds__race.place_keys);
    ds__race.place = NULL;
    ds__race.places = ds__race.place_room = 0;
    memset(ds__race.found, 0, sizeof ds__race.found);
}

#endif
