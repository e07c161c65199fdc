/* cuda/nvml.h - NVML: sensors of a GPU and the processes on it.

   Reads values of a GPU from NVML, a library of NVIDIA's driver: utilisation, temperature, power,
   clocks (ds__cuda_device_sensor) and processes (ds__cuda_device_processes). The first query loads
   the library; ds__nvml_end ends it when the driver stops.

   Policy: NVML is kept until shutdown, since its initialisation takes milliseconds. A GPU is
   found by its uuid or its place on the bus, because the process may see few GPUs, under other
   numbers. The types are as in nvml.h: a device is a pointer; a result and an option are ints.

   Invariants: n->library is NULL unless NVML is loaded and initialised. If loading fails, the
   next query tries again. Optional functions may be NULL; the functions that ds__nvml_load
   requires are not. ds__nvml_process and ds__nvml_process_v1 have the layout of nvml.h.
   Locks: ds__nvml_state.lock is held while the library is loaded and initialised. Queries and
   ds__nvml_end run without it.
   Threads: any; several threads may query NVML at once. ds__nvml_end runs in ds_shutdown, while
   no other thread is inside of devstream. */
#ifndef DS__CUDA_NVML_H
#define DS__CUDA_NVML_H

#include "types.h"
#include "call.h"
#include "device.h"

enum { DS__NVML_NOT_SUPPORTED = 3, DS__NVML_TOO_SMALL = 7, DS__NVML_NO_FUNCTION = 13 };

typedef struct ds__nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*text)(int code);
    int (*by_uuid)(const char *uuid, void **out);
    int (*by_pci)(const char *pci, void **out);
    int (*processes)(void *device, unsigned *count, void *out);
    int old; /* 1: `processes` writes ds__nvml_process_v1 */
    int (*utilization)(void *device, unsigned out[2] /* nvmlUtilization_t: gpu, memory */);
    int (*temperature)(void *device, int sensor, unsigned *out);
    int (*power)(void *device, unsigned *out_mw);
    int (*clock)(void *device, int clock, unsigned *out_mhz);
} ds__nvml;

static struct {
    ds__mutex lock;
    ds__nvml n;
} ds__nvml_state = { .lock = DS__MUTEX_INIT };

static int ds__nvml_get(void *library, const char *name, void *fn) {
    void *found = ds__os_library_symbol(library, name);
    memcpy(fn, &found, sizeof found);
    return found != NULL;
}

/* Loads and initialises NVML. Returns NULL, or the reason of a failure. */
static const char *ds__nvml_load(ds__nvml *n, const char *path) {
    memset(n, 0, sizeof *n);
    n->library = ds__os_library_open(path);
    if (!n->library)
        return "it cannot be loaded";
    int all = ds__nvml_get(n->library, "nvmlInit_v2", &n->init) &
              ds__nvml_get(n->library, "nvmlShutdown", &n->shutdown) &
              ds__nvml_get(n->library, "nvmlDeviceGetHandleByUUID", &n->by_uuid) &
              ds__nvml_get(n->library, "nvmlErrorString", &n->text);
    ds__nvml_get(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_pci);
    ds__nvml_get(n->library, "nvmlDeviceGetUtilizationRates", &n->utilization);
    ds__nvml_get(n->library, "nvmlDeviceGetTemperature", &n->temperature);
    ds__nvml_get(n->library, "nvmlDeviceGetPowerUsage", &n->power);
    ds__nvml_get(n->library, "nvmlDeviceGetClockInfo", &n->clock);
    if (!ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes) &&
        !ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses_v2", &n->processes)) {
        n->old = 1;
        all &= ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses", &n->processes);
    }
    int code = all ? n->init() : 0;
    if (all && code == 0)
        return NULL;
    const char *why = all ? "it cannot be initialised" : "it lacks functions";
    ds__os_library_close(n->library);
    n->library = NULL;
    return why;
}

static const char *ds__nvml_path(void) {
    const char *path = getenv("DEVSTREAM_NVML");
    return path && *path ? path : DS__NVML_NAME;
}

/* Returns NVML, which the first call loads, or NULL and the reason. */
static const ds__nvml *ds__nvml_open(const char **out_why) {
    ds__nvml *n = &ds__nvml_state.n;
    ds__mutex_lock(&ds__nvml_state.lock);
    *out_why = n->library ? NULL : ds__nvml_load(n, ds__nvml_path());
    ds__mutex_unlock(&ds__nvml_state.lock);
    return *out_why ? NULL : n;
}

static void ds__nvml_end(void) {
    ds__nvml *n = &ds__nvml_state.n;
    if (!n->library)
        return;
    n->shutdown();
    ds__os_library_close(n->library);
    n->library = NULL;
}

/* Finds the device in NVML by its uuid, as a GPU or as a part of one, else by its place on the bus.
   Returns NVML's code. */
static int ds__nvml_device(const ds__nvml *n, const ds_device_properties *properties, void **out) {
    static const char *const kinds[] = { "GPU-", "MIG-" };
    char uuid[41];
    int code = 0;
    for (int i = 0; i < 2; i++) {
        int at = snprintf(uuid, sizeof uuid, "%s", kinds[i]);
        for (int k = 0; k < 16; k++) {
            int dash = k == 4 || k == 6 || k == 8 || k == 10;
            at += snprintf(uuid + at, sizeof uuid - (size_t)at, dash ? "-%02x" : "%02x",
                           properties->uuid[k]);
        }
        code = n->by_uuid(uuid, out);
        if (code == 0)
            return 0;
    }
    return n->by_pci && properties->pci[0] ? n->by_pci(properties->pci, out) : code;
}

static int ds__nvml_utilization(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->utilization ? n->utilization(device, out) : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_temperature(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->temperature ? n->temperature(device, 0 /* NVML_TEMPERATURE_GPU */, out)
                          : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_power(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->power ? n->power(device, out) : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_clock(const ds__nvml *n, void *device, unsigned out[2]) {
    int code = n->clock ? n->clock(device, 1 /* NVML_CLOCK_SM */, &out[0]) : DS__NVML_NO_FUNCTION;
    return code ? code : n->clock(device, 2 /* NVML_CLOCK_MEM */, &out[1]);
}

/* Reads a sensor. DS_ERR_UNSUPPORTED: NVML is missing, or does not know the value. */
static ds_result ds__cuda_device_sensor(int device, int sensor, unsigned out[2]) {
    static int (*const ask[])(const ds__nvml *n, void *handle,
                              unsigned out[2]) = { [DS__SENSOR_UTILIZATION] = ds__nvml_utilization,
                                                   [DS__SENSOR_TEMPERATURE] = ds__nvml_temperature,
                                                   [DS__SENSOR_POWER] = ds__nvml_power,
                                                   [DS__SENSOR_CLOCK] = ds__nvml_clock };
    const char *why;
    void *handle = NULL;
    const ds__nvml *n = ds__nvml_open(&why);
    if (!n)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the %s of cuda:%d is not available: NVML (%s) is needed, and %s",
                        ds__sensor_names[sensor], device, ds__nvml_path(), why);
    int code = ds__nvml_device(n, &ds__cuda.properties[device], &handle);
    if (code == 0)
        code = ask[sensor](n, handle, out);
    /* the value that stands for "not available" */
    if (code == 0 && (out[0] == UINT_MAX || out[1] == UINT_MAX))
        code = DS__NVML_NOT_SUPPORTED;
    if (code == 0)
        return DS_OK;
    int unknown = code == DS__NVML_NOT_SUPPORTED || code == DS__NVML_NO_FUNCTION;
    return ds__fail(unknown ? DS_ERR_UNSUPPORTED : DS_ERR_DRIVER,
                    "the %s of cuda:%d is not available: NVML returned %d (%s)",
                    ds__sensor_names[sensor], device, code, n->text(code));
}

/* nvmlProcessInfo_t of nvml.h, and its form before processes had instances. */
typedef struct ds__nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
} ds__nvml_process;

typedef struct ds__nvml_process_v1 {
    unsigned pid;
    unsigned long long bytes;
} ds__nvml_process_v1;

/* Lists the processes on a GPU; returns NVML's code. */
static int ds__nvml_list(const ds__nvml *n, void *handle, ds__processes *out) {
    unsigned room = 64;
    int code = DS__NVML_TOO_SMALL;
    for (int i = 0; i < 8 && code == DS__NVML_TOO_SMALL; i++) { /* more may start meanwhile */
        unsigned count = room;
        ds__nvml_process *list = ds__host_alloc(room * sizeof *list);
        out->list = list ? ds__host_alloc(room * sizeof *out->list) : NULL;
        code = out->list ? n->processes(handle, &count, list) : DS__NVML_TOO_SMALL;
        for (unsigned k = 0; code == 0 && k < count && k < room; k++) {
            const ds__nvml_process_v1 *old = (const ds__nvml_process_v1 *)list + k;
            out->list[k].id = n->old ? old->pid : list[k].pid;
            out->list[k].bytes = n->old ? old->bytes : list[k].bytes;
            out->count = k + 1;
        }
        ds__host_free(list);
        if (code == 0)
            break;
        ds__host_free(out->list);
        out->list = NULL;
        room = count > room ? count + 16 : 2 * room;
    }
    return code;
}

/* Lists the processes that use a device. If NVML is missing or fails, out->unknown has the
   reason. */
static ds_result ds__cuda_device_processes(int device, ds__processes *out) {
    const char *why;
    void *handle = NULL;
    memset(out, 0, sizeof *out);
    const ds__nvml *n = ds__nvml_open(&why);
    if (!n) {
        snprintf(out->unknown, sizeof out->unknown, "NVML (%s) is needed, and %s", ds__nvml_path(),
                 why);
        return DS_OK;
    }
    int code = ds__nvml_device(n, &ds__cuda.properties[device], &handle);
    if (code == 0)
        code = ds__nvml_list(n, handle, out);
    if (code != 0)
        snprintf(out->unknown, sizeof out->unknown, "NVML returned %d (%s)", code, n->text(code));
    return DS_OK;
}

#endif
