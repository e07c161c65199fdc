/* core/kernel_table.h - comparison of a kernel's parameter table with its PTX.

   Refuses a table that does not fit the function in the image: its number of parameters, their
   sizes, and their kinds (ds__kernel_table_check). A GPU would read or write at wrong addresses,
   without an error. No driver is needed.

   Invariants: a table is refused only if the text of the image shows that it is wrong. Images that
   are not PTX text are not read.
   Locks: none; the program's allocator is called.
   Threads: any. */
#ifndef DS__CORE_KERNEL_TABLE_H
#define DS__CORE_KERNEL_TABLE_H

#include "../base/error.h"
#include "../base/ptx_text.h"
#include "../base/ptx_use.h"

static const char *const ds__param_kind_names[] = { "DS_PARAM_VALUE", "DS_PARAM_READ",
                                                    "DS_PARAM_WRITE", "DS_PARAM_READ_WRITE",
                                                    "DS_PARAM_FIRST", "DS_PARAM_COUNT" };

static ds_result ds__kernel_table_check_count(const ds_kernel_desc *d, const ds__ptx_function *f) {
    size_t in_table = d->param_count;
    if (in_table == f->count)
        return DS_OK;
    ds_result r =
        ds__fail(DS_ERR_INVALID_VALUE,
                 "kernel %s: the table has %zu parameters, function %s of the image has %zu",
                 d->name, in_table, d->cuda.entry, f->count);
    if (in_table > f->count)
        return ds__fail_append(r, " (parameter %zu of the table has no place there)", f->count);
    const ds__ptx_param *missing = &f->param[in_table < DS_KERNEL_MAX_PARAMS ? in_table : 0];
    return ds__fail_append(r, " (%.*s is missing)", (int)missing->name_size, missing->name);
}

static ds_result ds__kernel_table_check_sizes(const ds_kernel_desc *d, const ds__ptx_function *f) {
    for (size_t i = 0; i < f->count; i++) {
        const ds__ptx_param *p = &f->param[i];
        DS__REQUIRE(!p->size || p->size == d->params[i].size,
                    "kernel %s: parameter %zu (%s) has %zu bytes in the table, "
                    "but %.*s of function %s has %zu",
                    d->name, i, ds__param_kind_names[d->params[i].kind], d->params[i].size,
                    (int)p->name_size, p->name, d->cuda.entry, p->size);
    }
    return DS_OK;
}

static ds_result ds__kernel_table_check_kinds(const ds_kernel_desc *d, const ds__ptx_function *f) {
    unsigned char uses[DS_KERNEL_MAX_PARAMS];
    if (!ds__ptx_use_find(f, uses))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to check kernel %s", d->name);
    for (size_t i = 0; i < f->count; i++) {
        const ds__ptx_param *p = &f->param[i];
        ds_param_kind kind = d->params[i].kind;
        int pointer = kind >= DS_PARAM_READ && kind <= DS_PARAM_READ_WRITE;
        DS__REQUIRE(pointer || !(uses[i] & DS__PTX_ADDRESS),
                    "kernel %s: parameter %zu is %s, but function %s uses %.*s as an address; "
                    "DS_PARAM_READ, DS_PARAM_WRITE or DS_PARAM_READ_WRITE is allowed",
                    d->name, i, ds__param_kind_names[kind], d->cuda.entry, (int)p->name_size,
                    p->name);
        DS__REQUIRE(kind != DS_PARAM_READ || !(uses[i] & DS__PTX_STORED),
                    "kernel %s: parameter %zu is DS_PARAM_READ, but function %s stores through "
                    "%.*s; DS_PARAM_WRITE or DS_PARAM_READ_WRITE is allowed",
                    d->name, i, d->cuda.entry, (int)p->name_size, p->name);
    }
    return DS_OK;
}

/* Compares the table with the function in a text. */
static ds_result ds__kernel_table_check_text(const ds_kernel_desc *d, ds__ptx_reader text,
                                             ds__ptx_function *f) {
    char names[300];
    ds__ptx_answer answer = ds__ptx_find(text, d->cuda.entry, f);
    if (answer == DS__PTX_UNKNOWN)
        return DS_OK;
    if (answer == DS__PTX_ABSENT) {
        ds__ptx_names(text, names, sizeof names);
        return ds__fail(DS_ERR_INVALID_VALUE, "kernel %s: the image has no function %s; it has %s",
                        d->name, d->cuda.entry, *names ? names : "no functions");
    }
    ds_result r = ds__kernel_table_check_count(d, f);
    if (r == DS_OK)
        r = ds__kernel_table_check_sizes(d, f);
    if (r == DS_OK)
        r = ds__kernel_table_check_kinds(d, f);
    return r;
}

/* Refuses a table that does not fit the image, if that is PTX text. The description is checked
   otherwise. */
static ds_result ds__kernel_table_check(const ds_kernel_desc *d) {
    const ds_kernel_cuda *c = &d->cuda;
    ds_result r = DS_OK;
    if (!c->image && !c->image_pieces)
        return DS_OK;
    char *joined = c->image_pieces ? ds__ptx_join(c->image_pieces) : NULL;
    ds__ptx_function *f = ds__host_alloc(sizeof *f);
    const char *image = c->image_pieces ? joined : c->image;
    if (!f || !image) {
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to check kernel %s", d->name);
    } else {
        ds__ptx_reader text = ds__ptx_text(image, c->image_size);
        if (text.at != text.end)
            r = ds__kernel_table_check_text(d, text, f);
    }
    ds__host_free(f);
    ds__host_free(joined);
    return r;
}

#endif
