/* cuda/launch_attributes.h - attributes of launches and kernel nodes.

   Translates clusters and flags of a grid into attributes of CUDA (ds__cuda_attributes_of),
   launches a kernel with these (ds__cuda_launch_with), and sets them in a node
   (ds__cuda_set_attributes).

   Policy: a device that lacks clusters or cooperative launches refuses the launch. An overlap is a
   permission, and is left out where CUDA or the device may not take it.

   Invariants: a grid without attributes never comes here. CUDA decides whether the blocks of a
   cooperative launch fit: at the launch, or for a node when its graph is instantiated.
   Locks: takes none.
   Threads: any. */
#ifndef DS__CUDA_LAUNCH_ATTRIBUTES_H
#define DS__CUDA_LAUNCH_ATTRIBUTES_H

#include "types.h"
#include "call.h"
#include "module.h"

typedef struct ds__cuda_attributes {
    cudaLaunchAttribute list[3];
    unsigned count;
} ds__cuda_attributes;

static int ds__cuda_has_attributes(const ds_grid *g) {
    return g->flags || g->cluster[0];
}

/* Adds an attribute with the value 0. */
static cudaLaunchAttributeValue *ds__cuda_attribute_add(ds__cuda_attributes *a,
                                                        cudaLaunchAttributeID id) {
    cudaLaunchAttribute *last = &a->list[a->count++];
    memset(last, 0, sizeof *last);
    last->id = id;
    return &last->val;
}

/* Refuses a launch if the scope's device does not have the ability that it needs. */
static ds_result ds__cuda_require(const ds__cuda_scope *scope, enum cudaDeviceAttr ability,
                                  const char *what) {
    int has = 0;
    ds_result r = DS__RT(*scope, cudaDeviceGetAttribute, (&has, ability, scope->device));
    if (r < 0 || has)
        return r;
    return ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d does not support %s", scope->device, what);
}

/* Returns 1 if the scope's device can overlap kernels of a stream (CUDA C++ Programming Guide,
   "Programmatic Dependent Launch": compute capability 9.0). */
static int ds__cuda_can_overlap(const ds__cuda_scope *scope) {
    int major = 0;
    return ds__cuda.overlaps &&
           DS__RT_CODE(*scope, cudaDeviceGetAttribute,
                       (&major, cudaDevAttrComputeCapabilityMajor, scope->device)) == cudaSuccess &&
           major >= 9;
}

/* Gives the attributes of a whole grid on the scope's device. */
static ds_result ds__cuda_attributes_of(const ds__cuda_scope *scope, const ds_grid *g,
                                        ds__cuda_attributes *out) {
    ds_result r = DS_OK;
    out->count = 0;
    if (g->cluster[0]) {
        r = ds__cuda_require(scope, cudaDevAttrClusterLaunch, "clusters of blocks");
        cudaLaunchAttributeValue *v =
            ds__cuda_attribute_add(out, cudaLaunchAttributeClusterDimension);
        v->clusterDim.x = g->cluster[0];
        v->clusterDim.y = g->cluster[1];
        v->clusterDim.z = g->cluster[2];
    }
    if (r == DS_OK && g->flags & DS_GRID_COOPERATIVE) {
        r = ds__cuda_require(scope, cudaDevAttrCooperativeLaunch, "cooperative launches");
        ds__cuda_attribute_add(out, cudaLaunchAttributeCooperative)->cooperative = 1;
    }
    if (r == DS_OK && g->flags & DS_GRID_OVERLAP && ds__cuda_can_overlap(scope))
        ds__cuda_attribute_add(out, cudaLaunchAttributeProgrammaticStreamSerialization)
            ->programmaticStreamSerializationAllowed = 1;
    return r;
}

/* Launches a kernel that is loaded on the stream's device, and may have the shared memory of the
   grid. */
static ds_result ds__cuda_launch_with(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                      ds__kernel *k, const ds_grid *g, void **params) {
    ds__cuda_attributes a;
    ds_result r = ds__cuda_attributes_of(scope, g, &a);
    if (r < 0)
        return r;
    if (k->cuda.native_fn) {
        cudaLaunchConfig_t c;
        memset(&c, 0, sizeof c);
        c.gridDim = (struct dim3){ g->grid[0], g->grid[1], g->grid[2] };
        c.blockDim = (struct dim3){ g->block[0], g->block[1], g->block[2] };
        c.dynamicSmemBytes = g->shared_bytes;
        c.stream = s->handle;
        c.attrs = a.list;
        c.numAttrs = a.count;
        return DS__RT(*scope, cudaLaunchKernelExC, (&c, k->cuda.native_fn, params));
    }
    ds__cuda_launch_config c = { .grid = { g->grid[0], g->grid[1], g->grid[2] },
                                 .block = { g->block[0], g->block[1], g->block[2] },
                                 .shared_bytes = g->shared_bytes,
                                 .stream = s->handle,
                                 .attributes = a.list,
                                 .count = a.count };
    if (!ds__cuda.cuLaunchKernelEx)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "clusters and flags of a grid need a driver library of CUDA 11.8 or newer");
    void *function = atomic_load(&ds__cuda_loaded(k, s->device)->function);
    DS__DR(*scope, r, cuLaunchKernelEx, (&c, function, params, NULL));
    return r;
}

/* Sets the attributes of a kernel node. */
static ds_result ds__cuda_set_attributes(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                         const ds__cuda_attributes *a) {
    ds_result r = DS_OK;
    for (unsigned i = 0; i < a->count && r == DS_OK; i++)
        r = DS__RT(*scope, cudaGraphKernelNodeSetAttribute, (node, a->list[i].id, &a->list[i].val));
    return r;
}

#endif
