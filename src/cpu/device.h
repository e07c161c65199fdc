/* cpu/device.h - device entries of the CPU driver.

   Describes the virtual devices (properties, free memory, peer access, speed, priorities), waits
   for one (ds__cpu_device_synchronize), and clears its failure (ds__cpu_device_reset).

   Invariants: ds__cpu_device_reset waits for the work submitted before the call. It then clears
   the failures of the device and of its streams, but their failed numbers stay failed (`past`).
   With a fabric, peer access follows from its routes, else from the matrix of the options.
   Locks: ds__cpu_unsafe_wait takes the core's capture lock. ds__cpu_device_reset takes the
   device's lock to visit the streams, and `raw_lock` under it. The waits hold no lock of the
   driver.
   Threads: caller's threads. */
#ifndef DS__CPU_DEVICE_H
#define DS__CPU_DEVICE_H

#include "types.h"
#include "submit.h"
#include "stream_wait.h"
#include "capture_op.h"
#include "graph_launch.h"

static ds_result ds__cpu_device_properties(int device, ds_device_properties *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "devstream CPU device %d", device);
    char name[121];
    if (ds__os_processor_name(name, sizeof name))
        snprintf(out->name, sizeof out->name, "%s", name);
    out->total_memory = ds__cpu.device[device].limit;
    out->multiprocessors = ds__cpu.workers;
    out->unified_addressing = 1;
    /* "devstream-cpu" and the index: the same in every process of the machine, as the device is
       the machine */
    memcpy(out->uuid, "devstream-cpu", 13);
    out->uuid[15] = (unsigned char)device;
    return DS_OK;
}

/* Limits that the core keeps for launches, and properties of the driver. A device of this driver
   has no warps, registers, clocks, caches and buses of its own. */
static ds_result ds__cpu_device_attribute(int device, ds_attribute attribute, int64_t *out) {
    int n = ds__cpu.workers;
    const int64_t pairs[][2] = {
        { DS_ATTR_MAX_THREADS_PER_BLOCK, DS__MAX_BLOCK_THREADS },
        { DS_ATTR_MAX_BLOCK_X, DS__MAX_BLOCK_THREADS },
        { DS_ATTR_MAX_BLOCK_Y, DS__MAX_BLOCK_THREADS },
        { DS_ATTR_MAX_BLOCK_Z, DS__MAX_BLOCK_Z },
        { DS_ATTR_MAX_GRID_X, INT_MAX },
        { DS_ATTR_MAX_GRID_Y, DS__MAX_GRID_YZ },
        { DS_ATTR_MAX_GRID_Z, DS__MAX_GRID_YZ },
        { DS_ATTR_SHARED_MEMORY_PER_BLOCK, DS__MAX_SHARED_BYTES },
        { DS_ATTR_SHARED_MEMORY_PER_BLOCK_OPTIN, DS__MAX_SHARED_BYTES },
        { DS_ATTR_MULTIPROCESSORS, n },
        { DS_ATTR_CONCURRENT_KERNELS, n > 1 && !ds__cpu.is_inline && !ds__cpu.seed },
        { DS_ATTR_COPY_ENGINES, ds__cpu.fabric ? ds__cpu.fabric->engines : n },
        { DS_ATTR_KERNEL_TIMEOUT, 0 },
        { DS_ATTR_INTEGRATED, 1 },
        { DS_ATTR_CAN_MAP_HOST_MEMORY, 1 },
        { DS_ATTR_COMPUTE_MODE, 0 },
        { DS_ATTR_UNIFIED_ADDRESSING, 1 },
        { DS_ATTR_CAPABILITY_MAJOR, 0 },
        { DS_ATTR_CAPABILITY_MINOR, 0 },
        { DS_ATTR_MANAGED_MEMORY, 0 },
        { DS_ATTR_PAGEABLE_MEMORY_ACCESS, 1 },
        { DS_ATTR_CONCURRENT_MANAGED_ACCESS, 0 },
        { DS_ATTR_COOPERATIVE_LAUNCH, 1 },
        { DS_ATTR_MEMORY_POOLS, 1 },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] == (int64_t)attribute) {
            *out = pairs[i][1];
            return DS_OK;
        }
    return ds__fail(DS_ERR_UNSUPPORTED, "cpu:%d does not have attribute %d, which GPUs have",
                    device, (int)attribute);
}

static const char *ds__cpu_architectures(void) {
    return ds__os_architecture();
}

static ds_result ds__cpu_device_memory(int device, size_t *out_free, size_t *out_total) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    *out_total = d->limit;
    *out_free = d->limit - used;
    return DS_OK;
}

static ds_result ds__cpu_device_sensor(int device, int sensor, unsigned out[2]) {
    (void)out;
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "the %s of cpu:%d is not supported: NVML reports it for GPUs only",
                    ds__sensor_names[sensor], device);
}

/* Lists this process only: the driver does not know other processes that use the memory. */
static ds_result ds__cpu_device_processes(int device, ds__processes *out) {
    size_t used = atomic_load(&ds__cpu.device[device].used);
    memset(out, 0, sizeof *out);
    if (!used)
        return DS_OK;
    out->list = ds__host_alloc(sizeof *out->list);
    if (!out->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the list of processes");
    out->list[0] = (ds__process){ ds__os_process_id(), used };
    out->count = 1;
    return DS_OK;
}

static ds_result ds__cpu_device_synchronize(int device) {
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    ds__cpu_failure *f = atomic_load(&ds__cpu.device[device].failure);
    return r == DS_OK && f ? ds__cpu_report(f) : r;
}

static int ds__cpu_device_used(int device) {
    (void)device;
    return 1;
}

static ds_result ds__cpu_device_reset(int device) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    if (r < 0)
        return r;
    atomic_store(&d->failure, NULL);
    ds__spinlock_lock(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        ds__cpu_failure *f = atomic_load(&s->failure);
        if (f)
            ds__cpu_forgive(s);
    }
    ds__spinlock_unlock(&d->lock);
    return DS_OK;
}

static ds_result ds__cpu_device_peer(int device, int peer, int *out) {
    if (ds__cpu.fabric)
        *out =
            device == peer || ds__cpu.fabric->route[device * (ds__cpu.devices + 1) + peer].direct;
    else
        *out =
            device == peer || !ds__cpu.peers || ds__cpu.peers[device * ds__cpu.devices + peer] != 0;
    return DS_OK;
}

static ds_result ds__cpu_device_link(int device, int peer, int *out) {
    (void)device;
    (void)peer;
    *out = 0;
    return DS_OK;
}

static ds_result ds__cpu_device_speed(int device, int *out_engines, double *out_memory) {
    (void)device;
    *out_engines = ds__cpu.fabric ? ds__cpu.fabric->engines : 0;
    *out_memory = ds__cpu.fabric ? ds__cpu.fabric->memory_bytes_per_s : 0;
    return DS_OK;
}

static ds_result ds__cpu_priority_range(int device, int *out_least, int *out_greatest) {
    (void)device;
    *out_least = 0;
    *out_greatest = 1 - DS__CPU_LEVELS;
    return DS_OK;
}

#endif
