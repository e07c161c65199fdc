/* alloc/resource_api.h - public functions of resources.

   Implements the functions of api/resource.h: makes, uses, measures and destroys resources.
   ds__res_create enters a record in the table, and ds_resource_destroy removes it.
   ds__resource_shutdown reports and frees the records that are left.

   Invariants: An adaptor counts in `standing` of its upstream's record from creation to
   destruction, if devstream made that upstream. stats[0] to stats[depth] are the open levels of
   counting; a pop adds the innermost level to the one below it.
   Locks: ds__rs.lock or a record's own lock, never both at once. No driver, upstream or writer
   is called under them.
   Threads: any number of caller's threads. ds__resource_shutdown runs on the thread of
   ds_shutdown and takes no lock. */
#ifndef DS__ALLOC_RESOURCE_API_H
#define DS__ALLOC_RESOURCE_API_H

#include "../core/internal.h"
#include "pool.h"
#include "resource.h"
#include "stats.h"
#include "resource_kinds.h"

/* Checks the arguments of an allocation or a free. */
static ds_result ds__res_check(const ds_resource *resource, size_t alignment) {
    ds_result r = ds__res_good(resource, "resource");
    if (r < 0)
        return r;
    DS__REQUIRE((alignment & (alignment - 1)) == 0, "an alignment of %zu is not a power of two",
                alignment);
    return DS_OK;
}

DSDEF ds_result(ds_resource_alloc)(const ds_resource *resource, size_t size, size_t alignment,
                                   ds_stream stream, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_resource_alloc");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__res_check(resource, alignment);
    return r < 0 || !size ? r : ds__up_alloc(resource, size, alignment, stream, out);
}

DSDEF ds_result(ds_resource_free)(const ds_resource *resource, void *ptr, size_t size,
                                  ds_stream stream) {
    DS__ENTER("ds_resource_free");
    ds_result r = ds__res_check(resource, 0);
    return r < 0 || !ptr ? r : ds__up_free(resource, ptr, size, stream);
}

/* Enters a record in the table and gives it a number. Returns 0 without host memory. ds__rs.lock is
   held. */
static int ds__res_table_in(ds__res *r) {
    uint32_t i = 0;
    while (i < ds__rs.count && ds__rs.at[i])
        i++;
    if (i == ds__rs.count) {
        if (!ds__array_reserve(&ds__rs.at, sizeof *ds__rs.at, i, 1, &ds__rs.room))
            return 0;
        ds__rs.count++;
    }
    r->id = (uint64_t)++ds__rs.serial << 32 | (i + 1);
    ds__rs.at[i] = r;
    return 1;
}

/* Makes a record like `what`, with its upstream, and the resource of the record. */
static ds_result ds__res_create(const ds__res *what, ds_resource *out) {
    ds_result result = ds__mem_setup();
    if (result < 0)
        return result;
    ds__res *r = ds__host_alloc(sizeof *r);
    if (!r)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a resource");
    int adapts = what->up.alloc_fn == ds__res_alloc;
    ds__res *up = adapts ? ds__res_ref(what->up.user, NULL) : NULL;
    if (adapts && !up) {
        ds__host_free(r);
        return DS_ERR_INVALID_HANDLE;
    }

    *r = *what;
    r->made = ds__tls.site;
    ds__mutex_init(&r->lock);
    ds__mutex_lock(&ds__rs.lock);
    int entered = ds__res_table_in(r);
    if (up) {
        up->standing += entered;
        up->live--;
    }
    ds__mutex_unlock(&ds__rs.lock);
    if (!entered) {
        ds__mutex_destroy(&r->lock);
        ds__host_free(r);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a resource");
    }
    *out = (ds_resource){ ds__res_alloc, ds__res_free, (void *)(uintptr_t)r->id };
    if (r->kind == DS__RES_LOG)
        ds__text_writer_print(&r->log, "time_us,action,pointer,size,stream\n");
    return DS_OK;
}

/* Makes an adaptor like `what` upon an upstream. */
static ds_result ds__res_upon(const ds_resource *upstream, ds__res *what, ds_resource *out) {
    ds_result r = ds__res_good(upstream, "upstream");
    if (r < 0)
        return r;
    what->up = *upstream;
    return ds__res_create(what, out);
}

/* Begins a function that makes a resource: `what` is its record. */
#define DS__RES_BEGIN(name, which)    \
    ds__res what = { .kind = which }; \
    if (out)                          \
        memset(out, 0, sizeof *out);  \
    DS__ENTER(name);                  \
    DS__REQUIRE(out, "out is NULL")

DSDEF ds_result(ds_resource_create_device)(ds_device device, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_device", DS__RES_DEVICE);
    DS__RESOLVE(device);
    what.device = device;
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_pool)(ds_pool pool, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_pool", DS__RES_POOL);
    if (pool.id && !ds__mem_pool_of(pool))
        return DS_ERR_INVALID_HANDLE;
    what.pool = pool;
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_driver_pool)(ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_driver_pool", DS__RES_DRIVER);
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_functions)(ds_resource_alloc_fn alloc_fn,
                                              ds_resource_free_fn free_fn, void *user,
                                              ds_resource *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_create_functions");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(alloc_fn && free_fn, "%s is NULL", alloc_fn ? "free_fn" : "alloc_fn");
    *out = (ds_resource){ alloc_fn, free_fn, user };
    return DS_OK;
}

DSDEF ds_result(ds_resource_create_limit)(const ds_resource *upstream, size_t bytes,
                                          ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_limit", DS__RES_LIMIT);
    what.limit = bytes;
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_stats)(const ds_resource *upstream, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_stats", DS__RES_STATISTICS);
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_log)(const ds_resource *upstream, ds_write_fn write_fn,
                                        void *user, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_log", DS__RES_LOG);
    DS__REQUIRE(write_fn, "write_fn is NULL");
    what.log = (ds__text_writer){ .write_fn = write_fn, .user = user };
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_on_failure)(const ds_resource *upstream,
                                               ds_resource_failure_fn fn, void *user,
                                               ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_on_failure", DS__RES_FAILURE);
    DS__REQUIRE(fn, "fn is NULL");
    what.failure_fn = fn;
    what.user = user;
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_aligned)(const ds_resource *upstream, size_t alignment,
                                            size_t threshold, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_aligned", DS__RES_ALIGNED);
    DS__REQUIRE(alignment && (alignment & (alignment - 1)) == 0,
                "an alignment of %zu is not a power of two", alignment);
    what.alignment = alignment;
    what.threshold = threshold;
    return ds__res_upon(upstream, &what, out);
}

/* Steps of ds__res_stats. */
enum { DS__STATS_READ, DS__STATS_PUSH, DS__STATS_POP };

/* Adds the statistics of a level to the level below. */
static void ds__stat_fold(ds_mem_stat *to, const ds_mem_stat *from) {
    if (to->current + from->peak > to->peak)
        to->peak = to->current + from->peak;
    to->current += from->current;
    to->allocated += from->allocated;
    to->freed += from->freed;
}

/* Reads, pushes or pops a level of counting. The record's lock is held. */
static ds_result ds__res_stats_step(ds__res *r, int step, ds_resource_stats *out) {
    ds_resource_stats *top = &r->stats[r->depth];
    if (step == DS__STATS_PUSH) {
        if (r->depth == DS__RES_PUSHES)
            return ds__fail(DS_ERR_ILLEGAL_STATE, "%d pushes are open, the maximum",
                            DS__RES_PUSHES);
        memset(&r->stats[++r->depth], 0, sizeof r->stats[0]);
        return DS_OK;
    }
    if (step == DS__STATS_POP && r->depth == 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no push is open");
    if (out)
        *out = *top;
    if (step == DS__STATS_POP) {
        ds__stat_fold(&top[-1].bytes, &top->bytes);
        ds__stat_fold(&top[-1].allocations, &top->allocations);
        r->depth--;
    }
    return DS_OK;
}

/* Does a step with the statistics of a resource, which must be one of ds_resource_create_stats. */
static ds_result ds__res_stats(const ds_resource *resource, int step, ds_resource_stats *out) {
    ds_result result = ds__res_good(resource, "resource");
    if (result < 0)
        return result;
    int made = resource->alloc_fn == ds__res_alloc;
    ds__res *r = made ? ds__res_ref(resource->user, NULL) : NULL;
    if (made && !r)
        return DS_ERR_INVALID_HANDLE;
    if (made && r->kind == DS__RES_STATISTICS) {
        ds__mutex_lock(&r->lock);
        result = ds__res_stats_step(r, step, out);
        ds__mutex_unlock(&r->lock);
    } else {
        result = ds__fail(DS_ERR_INVALID_VALUE,
                          "the resource was not created by ds_resource_create_stats");
    }
    if (made)
        ds__res_unref(r, 1);
    return result;
}

DSDEF ds_result(ds_resource_get_stats)(const ds_resource *resource, ds_resource_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_get_stats");
    DS__REQUIRE(out, "out is NULL");
    return ds__res_stats(resource, DS__STATS_READ, out);
}

DSDEF ds_result(ds_resource_push_stats)(const ds_resource *resource) {
    DS__ENTER("ds_resource_push_stats");
    return ds__res_stats(resource, DS__STATS_PUSH, NULL);
}

DSDEF ds_result(ds_resource_pop_stats)(const ds_resource *resource, ds_resource_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_pop_stats");
    return ds__res_stats(resource, DS__STATS_POP, out);
}

/* Frees a record that is not in the table. */
static void ds__res_destroy(ds__res *r) {
    for (int i = 0; i < 64; i++)
        while (r->moved[i]) {
            ds__moved *next = r->moved[i]->next;
            ds__host_free(r->moved[i]);
            r->moved[i] = next;
        }
    ds__mutex_destroy(&r->lock);
    ds__host_free(r);
}

/* Removes a record from the table and from the count of its upstream. ds__rs.lock is held. */
static void ds__res_table_out(const ds__res *r) {
    ds__rs.at[(uint32_t)r->id - 1] = NULL;
    if (r->up.alloc_fn != ds__res_alloc)
        return;
    for (uint32_t i = 0; i < ds__rs.count; i++)
        if (ds__rs.at[i] && ds__rs.at[i]->id == (uint64_t)(uintptr_t)r->up.user)
            ds__rs.at[i]->standing--;
}

DSDEF ds_result(ds_resource_destroy)(ds_resource *resource) {
    DS__ENTER("ds_resource_destroy");
    if (!resource)
        return DS_OK;
    ds_result result = ds__res_good(resource, "resource");
    if (result < 0)
        return result;
    if (resource->alloc_fn == ds__res_alloc) {
        ds__res *r = ds__res_ref(resource->user, NULL);
        if (!r)
            return DS_ERR_INVALID_HANDLE;
        ds__mutex_lock(&ds__rs.lock);
        int64_t live = --r->live;
        int standing = r->standing;
        if (!live && !standing)
            ds__res_table_out(r);
        ds__mutex_unlock(&ds__rs.lock);
        if (live)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "allocations of the resource that are not freed: %lld",
                            (long long)live);
        if (standing)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "adaptors that use this resource: %d; destroy them first", standing);
        ds__res_destroy(r);
    }
    memset(resource, 0, sizeof *resource);
    return DS_OK;
}

/* Warns about the resources that were not destroyed, and frees them. Called by ds_shutdown. */
static void ds__resource_shutdown(void) {
    for (uint32_t i = 0; i < ds__rs.count; i++) {
        ds__res *r = ds__rs.at[i];
        if (!r)
            continue;
        ds__log_warn("resource created at %s:%d was not destroyed",
                     r->made.file ? r->made.file : "?", r->made.line);
        ds__res_destroy(r);
    }
    ds__host_free(ds__rs.at);
    ds__rs.at = NULL;
    ds__rs.count = 0;
    ds__rs.room = 0;
}

#endif
