/* cuda/driver.h - driver table, drain and stop.

   Includes all rooms of the CUDA driver and fills its table (ds__cuda_driver). ds__cuda_drain waits
   for all work, host functions included. ds__cuda_deinit frees the driver's own streams, pools,
   modules and staging buffers.

   Invariants: After ds__cuda_drain, no host function is enqueued or running. After a
   failure of a device CUDA runs its callbacks, but no host functions: if none runs for 0.1 s,
   ds__cuda_drain runs the pending ones of that device with the failure. Their records stay
   allocated, because CUDA may still invoke them.
   Locks: The core holds its initialisation mutex. ds__cuda_drain takes `host_lock` only to choose a
   host function; it runs user code after it has released that lock. ds__cuda_deinit takes
   ds__cuda.mutex to take the modules out of their list.
   Threads: drain runs on the thread that calls ds_shutdown; stop runs there, or where an
   initialisation failed. No other thread is in an entry of the driver then, but CUDA's threads may
   run host functions during the drain. */
#ifndef DS__CUDA_DRIVER_H
#define DS__CUDA_DRIVER_H

#include "types.h"
#include "call.h"
#include "cudart_load.h"
#include "device.h"
#include "nvml.h"
#include "stream.h"
#include "green.h"
#include "condition.h"
#include "stream_wait.h"
#include "event.h"
#include "host_func.h"
#include "staging.h"
#include "copy.h"
#include "module.h"
#include "graph.h"
#include "graph_condition.h"
#include "graph_set.h"
#include "graph_keep.h"
#include "graph_exec.h"
#include "capture.h"
#include "activity.h"
#include "capture_query.h"
#include "memory.h"
#include "virtual_memory.h"
#include "pool.h"
#include "share.h"
#include "timeline.h"
#include "host_memory.h"

/* Returns 1: CUDA copies all data of a launch except for the module, which stays loaded. */
static int ds__cuda_passed(void **mark) {
    (void)mark;
    return 1;
}

/* Takes a host function that a failed device has not begun to run, for the caller to run. NULL:
   there is none. failed: by device. */
static ds__cuda_host *ds__cuda_take_left(const unsigned char *failed) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    ds__cuda_host *h = ds__cuda.hosts;
    for (; h; h = h->next) {
        int pending = DS__CUDA_PENDING;
        if (failed[h->device] &&
            atomic_compare_exchange_strong(&h->state, &pending, DS__CUDA_TAKEN))
            break;
    }
    ds__spinlock_unlock(&ds__cuda.host_lock);
    return h;
}

/* Waits for the device. Returns 1 if that is not possible, because the device failed. */
static int ds__cuda_settle(int device) {
    ds__cuda_scope scope;
    cudaError_t code = cudaErrorUnknown;
    for (int tries = 0; tries < 3 && code != cudaSuccess && !ds__cuda_is_sticky((int)code);
         tries++) {
        if (ds__cuda_scope_begin(&scope, device) < 0)
            continue;
        code = DS__RT_CODE(scope, cudaDeviceSynchronize, ());
        /* a capture that this thread cannot end is open: waits for the other streams */
        if (code == cudaErrorStreamCaptureUnsupported && ds__cuda_wait_streams_of(&scope) == DS_OK)
            code = cudaSuccess;
        ds__cuda_scope_end(&scope);
    }
    return code != cudaSuccess;
}

/* Waits until no host function is pending. After a failure of a device, CUDA runs its callbacks
   only. If CUDA runs none for 0.1 s, the pending ones are run here, and their records are kept,
   because CUDA may still invoke them later. */
static void ds__cuda_drain(void) {
    unsigned char failed[DS__MAX_DEVICES] = { 0 };
    for (int i = 0; i < ds__cuda.devices; i++)
        failed[i] = (unsigned char)(atomic_load(&ds__cuda.used[i]) && ds__cuda_settle(i));
    int count = atomic_load(&ds__cuda.host_count);
    for (uint64_t begin = ds__now_ns(); count != 0;) {
        ds__os_sleep(50000);
        int now = atomic_load(&ds__cuda.host_count);
        if (now != count || atomic_load(&ds__cuda.inside))
            begin = ds__now_ns();
        count = now;
        if (ds__now_ns() - begin < 100000000u)
            continue;
        ds__cuda_host *h = ds__cuda_take_left(failed);
        if (!h)
            continue;
        /* keeps the record of a staged copy for good */
        if (h->embedded)
            atomic_fetch_add(&((ds__cuda_piece *)h->user)->whole->users, 1);
        ds__cuda_run_host(h, 1);
        h->next = ds__cuda.drained; /* only this thread uses the driver now */
        ds__cuda.drained = h;
        count = atomic_fetch_sub(&ds__cuda.host_count, 1) - 1;
    }
}

/* Frees the driver's own objects in CUDA, and unloads all modules. */
static void ds__cuda_deinit(void) {
    ds__cuda_scope scope;
    ds__nvml_end();
    ds__cuda_end_keeps();
    for (int i = 0; i < ds__cuda.devices; i++) {
        if (!atomic_load(&ds__cuda.used[i]))
            continue;
        ds__cuda_enter_or_not(&scope, i);
        ds__cuda_end_asides(i);
        if (ds__cuda.side[i])
            (void)DS__RT_CODE(scope, cudaStreamDestroy, (ds__cuda.side[i]));
        if (atomic_load(&ds__cuda.ended[i]))
            (void)DS__RT_CODE(scope, cudaStreamDestroy, (atomic_load(&ds__cuda.ended[i])));
        ds__cuda.side[i] = NULL;
        atomic_store(&ds__cuda.ended[i], NULL);
        ds__cuda_activity_end(&scope, i);
        ds__cuda_end_marks(&scope, i);
        ds__cuda_end_greens(i);
        ds__cuda_end_conditions(i);
        ds__cuda_pool_deinit(&scope, i);
        ds__cuda_unload(&scope, ds__cuda_take_modules(i, 1));
        ds__cuda_scope_end(&scope);
    }
    /* the memory needs a device with a context, and a device has one if there is memory */
    if (!ds__cuda.stages && !ds__cuda.free_timelines && !ds__cuda.failed_timelines)
        return;
    ds__cuda_enter_any_or_not(&scope);
    ds__cuda_end_timelines(&scope, &ds__cuda.free_timelines);
    ds__cuda_end_timelines(&scope, &ds__cuda.failed_timelines);
    while (ds__cuda.stages) {
        ds__cuda_stage *stage = ds__cuda.stages;
        ds__cuda.stages = stage->next;
        (void)DS__RT_CODE(scope, cudaFreeHost, (stage->memory));
        ds__host_free(stage);
    }
    ds__cuda_scope_end(&scope);
}

/* Accepts all options: none of them is for this driver. */
static ds_result ds__cuda_take_options(const ds_init_desc *desc) {
    (void)desc;
    return DS_OK;
}

static int ds__cuda_spreads(void) {
    return 0;
}

static const ds_cpu_fabric *ds__cuda_fabric(void) {
    return NULL;
}

static const ds__driver ds__cuda_driver = { "cuda",
                                            DS_DEVICE_CUDA,
                                            0,
                                            ds__cuda_take_options,
                                            ds__cuda_take_options,
                                            ds__cuda_probe,
                                            ds__cuda_init,
                                            ds__cuda_architectures,
                                            ds__cuda_device_used,
                                            ds__cuda_spreads,
                                            ds__cuda_fabric,
                                            NULL, /* clock_ns, stats, spin_get, spin_set */
                                            NULL,
                                            NULL,
                                            NULL,
                                            ds__cuda_drain,
                                            ds__cuda_deinit,
                                            ds__cuda_stream_destroy,
                                            ds__cuda_stream_unwrap,
                                            ds__cuda_stream_hide,
                                            ds__cuda_stream_forget,
                                            ds__cuda_stream_identity,
                                            ds__cuda_event_destroy,
                                            ds__cuda_timeline_pass,
                                            ds__cuda_timeline_fail,
                                            ds__cuda_timeline_get,
                                            ds__cuda_timeline_destroy,
                                            ds__cuda_library_begin,
                                            ds__cuda_library_end,
                                            ds__cuda_kernel_destroy,
                                            ds__cuda_capture_abandon,
                                            ds__cuda_graph_destroy,
                                            ds__cuda_exec_destroy,
                                            ds__cuda_passed,
                                            ds__cuda_memory_release,
                                            ds__cuda_space_release,
                                            ds__cuda_stream_named,
                                            ds__cuda_activity_set,
                                            ds__cuda_activity_source,
                                            ds__cuda_activity_collect,
                                            ds__cuda_activity_last,
                                            ds__cuda_activity_standing,
                                            ds__cuda_share_end,
#define DS__MEMBER(entry, parameters, arguments) ds__cuda_##entry,
                                            DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

#endif
