/* alloc/resource.h - resources: records, numbers, calls of upstreams.

   Defines the record of a resource (ds__res) and the table of all records (ds__rs).
   ds__res_ref returns the record of a number and keeps it alive until ds__res_unref.
   ds__up_alloc and ds__up_free call an upstream: a resource made by devstream, or the program's
   own functions. ds__outside_begin and ds__outside_end surround user code.

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
#include "../base/text_writer.h"
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

/* A block that was enlarged for its alignment. */
typedef struct ds__moved {
    struct ds__moved *next;
    void *ptr;   /* the aligned address */
    void *whole; /* the upstream's block */
    size_t size; /* of the upstream's block */
} ds__moved;

/* The record of a resource. */
typedef struct ds__res {
    uint64_t id;
    int kind;
    ds_site made;
    ds_resource up;
    /* allocations and calls in progress; guarded by ds__rs.lock */
    int64_t live;
    int standing; /* adaptors upon this resource; guarded by ds__rs.lock */
    ds_device device;
    ds_pool pool;
    size_t limit;
    size_t alignment;
    size_t threshold;
    ds_resource_failure_fn failure_fn;
    void *user;     /* of `failure_fn` */
    ds__mutex lock; /* guards the members below */
    size_t used;
    ds__text_writer log;
    unsigned depth;
    ds_resource_stats stats[DS__RES_PUSHES + 1];
    ds__moved *moved[64]; /* lists by a hash of the aligned address */
} ds__res;

static struct {
    ds__mutex lock;
    ds__res **at; /* NULL: a free entry */
    uint32_t count;
    size_t room;
    uint32_t serial; /* number of the last record; never reset, so that numbers are unique */
} ds__rs = { .lock = DS__MUTEX_INIT };

/* The functions of every resource made by devstream. resource_kinds.h defines the values, because
   it uses the pools: a resource may allocate from a pool, and the upstream of a pool is a
   resource. */
static const ds_resource ds__res_made;

/* Returns the record of a number, which stays until ds__res_unref; *out_live: its `live` before. If
   there is none, returns NULL and sets the error. */
static ds__res *ds__res_ref(const void *user, int64_t *out_live) {
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

/* Ends ds__res_ref: lowers `live` by 1, or by 2 after a free. */
static void ds__res_unref(ds__res *r, int64_t by) {
    ds__mutex_lock(&ds__rs.lock);
    r->live -= by;
    ds__mutex_unlock(&ds__rs.lock);
}

/* Checks a resource that the program passed as the argument `what`. */
static ds_result ds__res_good(const ds_resource *resource, const char *what) {
    DS__REQUIRE(resource, "%s is NULL", what);
    DS__REQUIRE(resource->alloc_fn && resource->free_fn, "%s has no functions: was it destroyed?",
                what);
    return DS_OK;
}

/* Returns the result of a function of the program. Sets an error if the function has set none for
   its result, or if the result is not an error code. */
static ds_result ds__res_said(ds_result r, const char *what) {
    if (r > 0)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the resource's %s returned %d, which is not an error code", what, (int)r);
    if (r == DS_OK || ds__tls.code == r)
        return r;
    return ds__fail(r, "the resource's %s returned %s", what, (ds_result_get_name)(r));
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

/* Prepares the thread for a function of the program. Calls in the function report their own errors,
   and are not affected by open captures. */
static ds__outside ds__outside_begin(void) {
    ds__outside o = { ds__tls.fn, ds__tls.site, ds__tls.mode, ds__tls.mute };
    o.mode = ds__mode_exchange(DS_CAPTURE_RELAXED);
    ds__tls.code = DS_OK;
    ds__tls.mute = 0;
    return o;
}

/* Ends ds__outside_begin. */
static void ds__outside_end(ds__outside o) {
    (void)ds__mode_exchange(o.mode);
    ds__tls.mute = o.mute;
    if (o.mute && ds__tls.code < 0)
        memcpy(ds__tls.aside, ds__tls.error, sizeof ds__tls.aside);
    ds__tls.fn = o.fn;
    ds__tls.site = o.site;
}

/* Allocates from an upstream. On failure *out is NULL and the error is set. No lock is held. */
static ds_result ds__up_alloc(const ds_resource *up, size_t size, size_t alignment,
                              ds_stream stream, void **out) {
    *out = NULL;
    if (up->alloc_fn == ds__res_made.alloc_fn)
        return up->alloc_fn(up->user, size, alignment, stream, out);
    ds__outside o = ds__outside_begin();
    ds_result r = up->alloc_fn(up->user, size, alignment, stream, out);
    ds__outside_end(o);
    r = ds__res_said(r, "alloc_fn");
    if (r == DS_OK && !*out)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "the resource's alloc_fn returned NULL");
    if (r < 0)
        *out = NULL;
    return r;
}

/* Frees memory of an upstream. No lock is held. */
static ds_result ds__up_free(const ds_resource *up, void *ptr, size_t size, ds_stream stream) {
    if (up->free_fn == ds__res_made.free_fn)
        return up->free_fn(up->user, ptr, size, stream);
    ds__outside o = ds__outside_begin();
    ds_result r = up->free_fn(up->user, ptr, size, stream);
    ds__outside_end(o);
    return ds__res_said(r, "free_fn");
}

#endif
