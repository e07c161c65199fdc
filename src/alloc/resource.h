/* alloc/resource.h - resources: records, numbers, calls of upstreams.

   Defines the record of a resource (ds__res) and the table of all records (ds__rs).
   ds__res_enter returns the record of a number and keeps it alive until ds__res_leave.
   ds__up_alloc and ds__up_free call an upstream: a resource made by devstream, or the program's
   own functions. ds__resource_leave and ds__resource_return surround user code.

   Policy:
   1. Every resource made by devstream has a number, and its `user` member is that number. A
      copy of a destroyed resource is therefore recognised.
   2. Each resource counts the allocations that were not freed, and the adaptors upon it. It
      cannot be destroyed before both counts are 0.
   3. Upstreams are called without the locks of resources. Allocations refused by them are not
      counted.

   Invariants: No number is used twice, also after ds_shutdown. Until ds_shutdown a record
   exists as long as its `live` or its `standing` is above 0. `live` counts allocations and the
   calls inside.
   Locks: ds__rs.lock guards the table and every record's `live` and `standing`. A record's own
   lock guards `used` and the members behind it. The two are never held together, and no
   upstream is called under them.
   Threads: any number of threads at once. The program's own functions run on the caller's
   thread and may call devstream, and CUDA, also while a stream captures. */
#ifndef DS__ALLOC_RESOURCE_H
#define DS__ALLOC_RESOURCE_H

#include "internal.h"
#include "../api/resource.h"
#include "../core/internal.h"

enum {
    DS__RES_DEVICE,
    DS__RES_POOL,
    DS__RES_DRIVER,
    DS__RES_LIMIT,
    DS__RES_STATISTICS,
    DS__RES_LOG,
    DS__RES_FAILURE,
    DS__RES_ALIGNED
};

#define DS__RES_PUSHES 16

typedef struct ds__moved {
    struct ds__moved *next;
    void *ptr;
    void *whole;
    size_t size;
} ds__moved;

typedef struct ds__res {
    uint64_t id;
    int kind;
    ds_site made;
    ds_resource up;
    /* allocations and calls that are inside; under the list's lock, as `standing` */
    int64_t live;
    int standing;
    ds_device device;
    ds_pool pool;
    size_t limit;
    size_t used;
    size_t alignment;
    size_t threshold;
    ds_write_fn write_fn;
    ds_resource_failure_fn failure_fn;
    void *user;
    ds__mutex lock; /* of `used` and what follows */
    int stopped;
    unsigned depth;
    ds_resource_stats stats[DS__RES_PUSHES + 1];
    ds__moved *moved[64]; /* what the aligned one gave, by its address */
} ds__res;

static struct {
    ds__mutex lock;
    ds__res **at;
    uint32_t count;
    uint32_t serial; /* no number is used twice */
} ds__rs = { .lock = DS__MUTEX_INIT };

/* The functions of every resource made by devstream. The values stand in resource_kinds.h, which
   uses the pools: a resource may allocate from a pool, and the upstream of a pool is a resource. */
static const ds_resource ds__res_made;

/* The resource of a number, which stays as long as the caller is inside; *out_live: how much it
   had. NULL and the sentence: there is none. */
static ds__res *ds__res_enter(const void *user, int64_t *out_live) {
    uint64_t id = (uint64_t)(uintptr_t)user;
    uint32_t i = (uint32_t)id;
    ds__mutex_lock(&ds__rs.lock);
    ds__res *r = i && i <= ds__rs.count ? ds__rs.at[i - 1] : NULL;
    if (r && r->id != id)
        r = NULL;
    if (r && out_live)
        *out_live = r->live;
    if (r)
        r->live++;
    ds__mutex_unlock(&ds__rs.lock);
    if (!r)
        ds__fail(DS_ERR_INVALID_HANDLE, "the resource was destroyed");
    return r;
}

static void ds__res_leave(ds__res *r, int64_t by) {
    ds__mutex_lock(&ds__rs.lock);
    r->live -= by;
    ds__mutex_unlock(&ds__rs.lock);
}

static ds_result ds__res_good(const ds_resource *resource, const char *what) {
    DS__REQUIRE(resource, "%s is NULL", what);
    DS__REQUIRE(resource->alloc_fn && resource->free_fn, "%s has no functions: was it destroyed?",
                what);
    return DS_OK;
}

/* Calls of another resource. The program's own functions may do what they like, and need not say
   why they fail. */
static ds_result ds__res_said(ds_result r, const char *what) {
    if (r > 0)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the resource's %s returned %d, which is not an error code", what, (int)r);
    return r == DS_OK || ds__tls.code == r
               ? r
               : ds__fail(r, "the resource's %s returned %s", what, (ds_result_get_name)(r));
}

/* Sets the thread's capture mode and returns the former one. If a driver refuses, the mode stays,
   and the error is not reported: the program called another function. */
static ds_capture_mode ds__mode_exchange(ds_capture_mode mode) {
    ds_result code = ds__tls.code;
    ds__tls.mute++;
    if ((ds_capture_exchange_mode)(&mode) < 0)
        mode = ds__tls.mode;
    ds__tls.mute--;
    ds__tls.code = code;
    return mode;
}

/* Before a function of the program: calls in it report their errors. */
static ds__outside ds__resource_leave(void) {
    ds__outside o = { ds__tls.fn, ds__tls.site, ds__tls.mode, ds__tls.mute };
    o.mode = ds__mode_exchange(DS_CAPTURE_RELAXED);
    ds__tls.code = DS_OK;
    ds__tls.mute = 0; /* errors of the user's code are the user's */
    return o;
}

static void ds__resource_return(ds__outside o) {
    (void)ds__mode_exchange(o.mode);
    ds__tls.mute = o.mute;
    if (o.mute && ds__tls.code < 0)
        memcpy(ds__tls.aside, ds__tls.error, sizeof ds__tls.aside);
    ds__tls.fn = o.fn;
    ds__tls.site = o.site;
}

static ds_result ds__up_alloc(const ds_resource *up, size_t size, size_t alignment,
                              ds_stream stream, void **out) {
    *out = NULL;
    if (up->alloc_fn == ds__res_made.alloc_fn)
        return up->alloc_fn(up->user, size, alignment, stream, out);
    ds__outside o = ds__resource_leave();
    ds_result r = up->alloc_fn(up->user, size, alignment, stream, out);
    ds__resource_return(o);
    r = ds__res_said(r, "alloc_fn");
    if (r == DS_OK && !*out)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "the resource's alloc_fn returned NULL");
    if (r < 0)
        *out = NULL;
    return r;
}

static ds_result ds__up_free(const ds_resource *up, void *ptr, size_t size, ds_stream stream) {
    if (up->free_fn == ds__res_made.free_fn)
        return up->free_fn(up->user, ptr, size, stream);
    ds__outside o = ds__resource_leave();
    ds_result r = up->free_fn(up->user, ptr, size, stream);
    ds__resource_return(o);
    return ds__res_said(r, "free_fn");
}

#endif
