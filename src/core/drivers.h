/* core/drivers.h - list of the drivers and of their rooms.

   Includes the rooms of each compiled-in driver and lists the drivers' tables (ds__backends).
   DEVSTREAM_NO_CPU leaves the CPU driver out; DEVSTREAM_CUDA brings the CUDA driver in;
   DEVSTREAM_PER_THREAD_DEFAULT_STREAM makes the default stream that of the thread.

   Invariants: no other room names a table of a driver. Only entry files, os/ and this list ask
   for macros of the program, and only they may have conditionals around includes of rooms.
   Locks: none.
   Threads: any. */
#ifndef DS__CORE_DRIVERS_H
#define DS__CORE_DRIVERS_H

#include "../base/driver.h"

#ifndef DEVSTREAM_NO_CPU
#include "../cpu/affinity.h"
#include "../cpu/types.h"
#include "../cpu/failure.h"
#include "../cpu/queue.h"
#include "../cpu/clock_order.h"
#include "../cpu/scheduler.h"
#include "../cpu/job.h"
#include "../cpu/copy.h"
#include "../cpu/kernel.h"
#include "../cpu/host_func.h"
#include "../cpu/value.h"
#include "../cpu/clock.h"
#include "../cpu/run.h"
#include "../cpu/worker.h"
#include "../cpu/wait.h"
#include "../cpu/submit.h"
#include "../cpu/activity.h"
#include "../cpu/stream.h"
#include "../cpu/stream_wait.h"
#include "../cpu/event.h"
#include "../cpu/shared_event.h"
#include "../cpu/timeline.h"
#include "../cpu/watcher.h"
#include "../cpu/capture.h"
#include "../cpu/capture_op.h"
#include "../cpu/graph_plan.h"
#include "../cpu/graph.h"
#include "../cpu/graph_launch.h"
#include "../cpu/memory.h"
#include "../cpu/share.h"
#include "../cpu/host_memory.h"
#include "../cpu/device.h"
#include "../cpu/options.h"
#include "../cpu/driver.h"
#endif

#ifdef DEVSTREAM_CUDA
#include "../cuda/cudart_types.h"
#include "../cuda/cudart.h"
#include "../cuda/version.h"
#include "../cuda/types.h"
#include "../cuda/call.h"
#include "../cuda/cudart_load.h"
#include "../cuda/condition.h"
#include "../cuda/device.h"
#include "../cuda/nvml.h"
#include "../cuda/stream.h"
#include "../cuda/stream_wait.h"
#include "../cuda/event.h"
#include "../cuda/host_func.h"
#include "../cuda/copy_plain.h"
#include "../cuda/staging.h"
#include "../cuda/copy.h"
#include "../cuda/module.h"
#include "../cuda/launch.h"
#include "../cuda/graph_types.h"
#include "../cuda/value.h"
#include "../cuda/capture_info.h"
#include "../cuda/graph_read.h"
#include "../cuda/graph_node.h"
#include "../cuda/graph.h"
#include "../cuda/graph_condition.h"
#include "../cuda/graph_set.h"
#include "../cuda/graph_keep.h"
#include "../cuda/graph_exec.h"
#include "../cuda/host_memory.h"
#include "../cuda/timeline.h"
#include "../cuda/submit.h"
#include "../cuda/capture_op.h"
#include "../cuda/capture.h"
#include "../cuda/cupti.h"
#include "../cuda/activity_cupti.h"
#include "../cuda/activity_pair.h"
#include "../cuda/activity.h"
#include "../cuda/capture_query.h"
#include "../cuda/memory.h"
#include "../cuda/virtual_memory.h"
#include "../cuda/pool.h"
#include "../cuda/share.h"
#include "../cuda/driver.h"
#endif

#ifdef DEVSTREAM_PER_THREAD_DEFAULT_STREAM
enum { DS__PER_THREAD_DEFAULT_STREAM = 1 };
#else
enum { DS__PER_THREAD_DEFAULT_STREAM = 0 };
#endif

static const struct ds__backend {
    const char *name;
    ds_device_type type;
    const ds__driver *driver; /* NULL: not compiled in */
    const char *missing;      /* why it is not */
} ds__backends[DS_BACKEND_COUNT] = {
#ifdef DEVSTREAM_CUDA
    { "cuda", DS_DEVICE_CUDA, &ds__cuda_driver, NULL },
#else
    { "cuda", DS_DEVICE_CUDA, NULL, "CUDA not compiled in: define DEVSTREAM_CUDA" },
#endif
#ifdef DEVSTREAM_NO_CPU
    { "cpu", DS_DEVICE_CPU, NULL, "compiled with DEVSTREAM_NO_CPU" },
#else
    { "cpu", DS_DEVICE_CPU, &ds__cpu_driver, NULL },
#endif
};

#endif
