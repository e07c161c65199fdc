/* cuda/green.h - green contexts: streams with a share of a device.

   Finds the functions for green contexts in the driver library (ds__cuda_find_green), creates
   streams in a green context (ds__cuda_make_share), and destroys the green contexts at shutdown
   (ds__cuda_end_greens).

   Invariants: streams with the same number of multiprocessors share a green context, which stays
   until shutdown. CUDA takes the first multiprocessors of the device for each, so green contexts
   overlap. A green context belongs to the primary context of its device (cuda.h, "Green Contexts"),
   and its streams are used like others of that context.
   Locks: `host_lock` for the list only. Two threads may create a green context for the same number;
   both stay.
   Threads: any. ds__cuda_find_green runs during initialisation, ds__cuda_end_greens during
   shutdown. */
#ifndef DS__CUDA_GREEN_H
#define DS__CUDA_GREEN_H

#include "types.h"
#include "call.h"

/* A CUdevResource, whose size depends on the version of CUDA. */
typedef union ds__cuda_resource {
    struct {
        int type; /* 1: multiprocessors */
        char padding[92];
        unsigned count;
    } sm;

    uint64_t room[64];
} ds__cuda_resource;

/* Finds the functions; green_stream stays NULL if one is missing. driver: the version of the driver
   library. */
static void ds__cuda_find_green(const ds__cuda_scope *scope, int driver) {
    static const ds__cuda_optional list[] = {
        { "cuDeviceGetDevResource", 12050, &ds__cuda.green_resource },
        { "cuDevSmResourceSplitByCount", 12050, &ds__cuda.green_split },
        { "cuDevResourceGenerateDesc", 12050, &ds__cuda.green_desc },
        { "cuGreenCtxCreate", 12050, &ds__cuda.green_create },
        { "cuGreenCtxDestroy", 12050, &ds__cuda.green_destroy },
        { "cuGreenCtxStreamCreate", 12050, &ds__cuda.green_stream },
    };

    ds__cuda.green_stream = NULL;
    if (driver >= 12050)
        (void)ds__cuda_find_optional(scope, list, sizeof list / sizeof list[0]);
}

/* Creates a green context with at least `wanted` multiprocessors. Inside of a scope of the
   device. */
static ds_result ds__cuda_green_create(const ds__cuda_scope *scope, ds__cuda_green *g) {
    ds__cuda_resource all;
    ds__cuda_resource part;
    void *desc = NULL;
    unsigned count = 1;
    int device = ds__cuda.handle[scope->device];
    memset(&all, 0, sizeof all);
    memset(&part, 0, sizeof part);
    const char *call = "cuDeviceGetDevResource";
    int code = ds__cuda.green_resource(device, &all, 1 /* CU_DEV_RESOURCE_TYPE_SM */);
    if (!code) {
        call = "cuDevSmResourceSplitByCount";
        code = ds__cuda.green_split(&part, &count, &all, NULL, 0, (unsigned)g->wanted);
    }
    if (!code) {
        call = "cuDevResourceGenerateDesc";
        code = ds__cuda.green_desc(&desc, &part, 1);
    }
    if (!code) {
        call = "cuGreenCtxCreate";
        code = ds__cuda.green_create(&g->handle, desc, device, 1 /* CU_GREEN_CTX_DEFAULT_STREAM */);
    }
    g->granted = (int)part.sm.count;
    return code ? ds__cuda_fail(scope, call, code) : DS_OK;
}

static ds__cuda_green *ds__cuda_green_find(int device, int wanted) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    ds__cuda_green *g = ds__cuda.greens;
    while (g && (g->device != device || g->wanted != wanted))
        g = g->next;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    return g;
}

/* Returns a green context of the scope's device. */
static ds_result ds__cuda_green_of(const ds__cuda_scope *scope, int wanted, ds__cuda_green **out) {
    *out = ds__cuda_green_find(scope->device, wanted);
    if (*out)
        return DS_OK;
    ds__cuda_green *g = ds__host_alloc(sizeof *g);
    if (!g)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a share of a device");
    g->device = scope->device;
    g->wanted = wanted;
    ds_result r = ds__cuda_green_create(scope, g);
    if (r < 0) {
        ds__host_free(g);
        return r;
    }
    ds__spinlock_lock(&ds__cuda.host_lock);
    g->next = ds__cuda.greens;
    ds__cuda.greens = g;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    *out = g;
    return DS_OK;
}

/* Creates a non-blocking stream with a share of the scope's device; *share becomes the number of
   multiprocessors. */
static ds_result ds__cuda_make_share(const ds__cuda_scope *scope, int *share, int priority,
                                     cudaStream_t *out) {
    ds__cuda_green *g;
    int all = ds__cuda.properties[scope->device].multiprocessors;
    if (!ds__cuda.green_stream)
        return ds__fail(
            DS_ERR_UNSUPPORTED,
            "a share of a GPU needs streams of green contexts, which the driver has from "
            "CUDA 12.5 on");
    DS__REQUIRE(*share <= all, "multiprocessors is %d; cuda:%d has %d", *share, scope->device, all);
    ds_result r = ds__cuda_green_of(scope, *share, &g);
    if (r < 0)
        return r;
    int code = ds__cuda.green_stream(out, g->handle, 1 /* CU_STREAM_NON_BLOCKING */, priority);
    if (code)
        return ds__cuda_fail(scope, "cuGreenCtxStreamCreate", code);
    *share = g->granted;
    return DS_OK;
}

/* Destroys the green contexts of a device. Inside of a scope of it. */
static void ds__cuda_end_greens(int device) {
    for (ds__cuda_green **at = &ds__cuda.greens; *at;) {
        ds__cuda_green *g = *at;
        if (g->device != device) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        (void)ds__cuda.green_destroy(g->handle);
        ds__host_free(g);
    }
}

#endif
