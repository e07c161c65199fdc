/* cuda/graph_keep.h - lifetime of the objects that executables need.

   Makes a CUDA user object that owns all kept objects of an executable (ds__cuda_keep_create), and
   moves it into a graph before instantiation (ds__cuda_retain). ds__cuda_exec_end destroys an
   executable.

   Invariants: The thread that changes a keep's state from pending to taken drops its objects, so
   this happens once. A keep is in ds__cuda.keeps until its objects are dropped. After instantiation
   or update only CUDA's executable owns the user object; CUDA ends it after the last launch.
   Locks: `host_lock` guards the list of keeps; no call into CUDA is made under it. User destructors
   run before ds__cuda_keep_end takes it. The keep itself is freed under it, so the stop of the
   driver cannot come first. The user's free function therefore runs under a spinlock.
   Threads: ds__cuda_keep_end runs on a thread of CUDA, where calls into CUDA are not allowed. If
   the user object cannot be made, it runs on the caller's thread. The other functions run on any
   thread. */
#ifndef DS__CUDA_GRAPH_KEEP_H
#define DS__CUDA_GRAPH_KEEP_H

#include "types.h"
#include "call.h"
#include "graph_types.h"

/* Takes a keep out of the list. host_lock is held. */
static void ds__cuda_keep_unlist(ds__cuda_keep *k) {
    if (k->previous)
        k->previous->next = k->next;
    else
        ds__cuda.keeps = k->next;
    if (k->next)
        k->next->previous = k->previous;
}

/* The destructor of the user object: drops the kept objects, unless ds__cuda_end_keeps has taken
   the keep. */
static void CUDART_CB ds__cuda_keep_end(void *user) {
    ds__cuda_keep *k = user;
    int pending = DS__CUDA_PENDING;
    if (!atomic_compare_exchange_strong(&k->state, &pending, DS__CUDA_TAKEN))
        return;
    for (uint32_t i = 0; i < k->count; i++)
        ds__object_unref(k->object[i]);
    ds__spinlock_lock(&ds__cuda.host_lock);
    ds__cuda_keep_unlist(k);
    /* under the lock: the driver may stop after its release, and the program's allocator may
       change */
    ds__host_free(k);
    ds__spinlock_unlock(&ds__cuda.host_lock);
}

/* Makes a user object that owns all objects of the list. An empty list makes none: *out is NULL. */
static ds_result ds__cuda_keep_create(const ds__cuda_scope *scope, const ds__cuda_owns *owns,
                                      cudaUserObject_t *out) {
    *out = NULL;
    if (!owns->count)
        return DS_OK;
    ds__cuda_keep *k = ds__host_alloc(sizeof *k + owns->count * sizeof k->object[0]);
    if (!k)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
    for (; k->count < owns->count; k->count++)
        k->object[k->count] = ds__object_ref(owns->at[k->count].object);
    ds__spinlock_lock(&ds__cuda.host_lock);
    k->next = ds__cuda.keeps;
    if (k->next)
        k->next->previous = k;
    ds__cuda.keeps = k;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    ds_result r = DS__RT(*scope, cudaUserObjectCreate,
                         (out, k, ds__cuda_keep_end, 1, cudaUserObjectNoDestructorSync));
    if (r < 0) {
        *out = NULL;
        ds__cuda_keep_end(k);
    }
    return r;
}

/* Releases a user object, which may be NULL. */
static void ds__cuda_keep_unref(const ds__cuda_scope *scope, cudaUserObject_t object) {
    cudaError_t code = object ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        code = DS__RT_CODE(*scope, cudaUserObjectRelease, (object, 1));
}

/* Makes a user object, as ds__cuda_keep_create, and moves it into the graph. */
static ds_result ds__cuda_retain(const ds__cuda_scope *scope, cudaGraph_t graph,
                                 const ds__cuda_owns *owns, cudaUserObject_t *out) {
    ds_result r = ds__cuda_keep_create(scope, owns, out);
    if (r < 0 || !*out)
        return r;
    r = DS__RT(*scope, cudaGraphRetainUserObject, (graph, *out, 1, cudaGraphUserObjectMove));
    if (r < 0) {
        ds__cuda_keep_unref(scope, *out);
        *out = NULL;
    }
    return r;
}

/* Releases the graph's reference to a user object, which may be NULL. Only the executable owns the
   object then. */
static void ds__cuda_unretain(const ds__cuda_scope *scope, cudaGraph_t graph,
                              cudaUserObject_t object) {
    cudaError_t code = object ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        code = DS__RT_CODE(*scope, cudaGraphReleaseUserObject, (graph, object, 1));
}

/* Destroys the native executable. In relaxed mode: a capture in global mode forbids the call (H200,
   driver 580; docs/gpu). */
static void ds__cuda_exec_destroy_native(const ds__cuda_scope *scope, cudaGraphExec_t exec) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    (void)DS__RT_CODE(*scope, cudaGraphExecDestroy, (exec));
    ds__cuda_unrelax(scope, relaxed, mode);
}

/* Frees an executable, which may be incomplete. */
static void ds__cuda_exec_end(ds__cuda_exec *x) {
    ds__cuda_scope scope;
    ds__cuda_enter_or_not(&scope, x->device);
    if (x->exec)
        ds__cuda_exec_destroy_native(&scope, x->exec);
    if (x->now != x->kept)
        ds__cuda_drop_graph(&scope, x->now);
    ds__cuda_drop_graph(&scope, x->kept);
    ds__cuda_scope_end(&scope);
    if (x->now_node != x->kept_node)
        ds__host_free(x->now_node);
    ds__host_free(x->kept_node);
    ds__host_free(x->off);
    ds__host_free(x->on);
    ds__cuda_own_end(&x->owns);
    if (x->held)
        ds__body_destroy(x->held);
    ds__host_free(x);
}

static void ds__cuda_exec_destroy(void *exec) {
    ds__cuda_exec_end(exec);
}

#endif
