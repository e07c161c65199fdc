/* core/nvml.h - NVML: utilisation, temperature, power, clocks.

   Reads values of a GPU that only NVML, a library of NVIDIA's driver, knows. ds__nvml_open loads
   the library at the first question; core/shutdown.h ends it (ds__nvml_end). Memory reports of
   the allocator ask it for the processes on a GPU.

   Policy: NVML is kept until shutdown, since its initialisation takes milliseconds. A GPU is
   found by its uuid or its place on the bus, because the process may see few GPUs, under other
   numbers. The types are as in nvml.h: a device is a pointer; a result and an option are ints.

   Invariants: n->library is NULL unless NVML is loaded and initialised. If loading fails, the
   next question tries again. Optional functions may be NULL; the functions that ds__nvml_load
   requires are not.
   Locks: ds__nvml_state.lock is held while the library is loaded and initialised. Questions and
   ds__nvml_end run without it.
   Threads: any; NVML may be asked by several threads at once. ds__nvml_end runs in ds_shutdown,
   while no other thread is inside of devstream. */
#ifndef DS__CORE_NVML_H
#define DS__CORE_NVML_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "device_query.h"

enum { DS__NVML_NOT_SUPPORTED = 3, DS__NVML_TOO_SMALL = 7, DS__NVML_NO_FUNCTION = 13 };

typedef struct ds__nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*text)(int code);
    int (*by_uuid)(const char *uuid, void **out);
    int (*by_pci)(const char *pci, void **out);
    int (*processes)(void *device, unsigned *count, void *out);
    int old; /* 1: processes gives smaller descriptions */
    int (*utilization)(void *device, unsigned out[2] /* nvmlUtilization_t: gpu, memory */);
    int (*temperature)(void *device, int sensor, unsigned *out);
    int (*power)(void *device, unsigned *out_mw);
    int (*clock)(void *device, int clock, unsigned *out_mhz);
} ds__nvml;

#ifdef DEVSTREAM_CUDA
static struct {
    pthread_mutex_t lock;
    ds__nvml n;
} ds__nvml_state = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int ds__nvml_get(void *library, const char *name, void *fn) {
    void *found = ds__os_library_symbol(library, name);
    memcpy(fn, &found, sizeof found);
    return found != NULL;
}

/* NULL, or why not. */
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
    return path && *path ? path : "libnvidia-ml.so.1";
}

/* NVML, or NULL and why not. */
static const ds__nvml *ds__nvml_open(const char **out_why) {
    ds__nvml *n = &ds__nvml_state.n;
    pthread_mutex_lock(&ds__nvml_state.lock);
    *out_why = n->library ? NULL : ds__nvml_load(n, ds__nvml_path());
    pthread_mutex_unlock(&ds__nvml_state.lock);
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

/* A device that is a part of a GPU has a uuid of its own. */
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
        if ((code = n->by_uuid(uuid, out)) == 0)
            return 0;
    }
    return n->by_pci && properties->pci[0] ? n->by_pci(properties->pci, out) : code;
}
#else
static const char *ds__nvml_path(void) {
    return "";
}

/* there is no such device */
static const ds__nvml *ds__nvml_open(const char **out_why) {
    *out_why = "CUDA is not compiled in";
    return NULL;
}

static void ds__nvml_end(void) {
}

static int ds__nvml_device(const ds__nvml *n, const ds_device_properties *properties, void **out) {
    (void)n;
    (void)properties;
    (void)out;
    return 0;
}
#endif

/* Reads a value, or two; ask_fn returns NVML's code. */
static ds_result ds__nvml_read(ds_device device, const char *what,
                               int (*ask_fn)(const ds__nvml *n, void *device, unsigned out[2]),
                               unsigned *out_first, unsigned *out_second) {
    ds_device_properties p;
    const char *why;
    void *handle = NULL;
    unsigned value[2] = { 0, 0 };
    if (device.type != DS_DEVICE_CUDA)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the %s of cpu:%d is not known: only NVML tells it, of GPUs", what,
                        device.index);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r < 0)
        return r;
    const ds__nvml *n = ds__nvml_open(&why);
    if (!n)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the %s of cuda:%d is not known: NVML (%s) tells it, and %s", what,
                        device.index, ds__nvml_path(), why);
    int code = ds__nvml_device(n, &p, &handle);
    if (code == 0)
        code = ask_fn(n, handle, value);
    /* how it says "not available" in values */
    if (code == 0 && (value[0] == UINT_MAX || value[1] == UINT_MAX))
        code = DS__NVML_NOT_SUPPORTED;
    if (code != 0)
        return ds__device_error(
            device, ds__fail(code == DS__NVML_NOT_SUPPORTED || code == DS__NVML_NO_FUNCTION
                                 ? DS_ERR_UNSUPPORTED
                                 : DS_ERR_DRIVER,
                             "the %s of cuda:%d is not known: NVML says %d (%s)", what,
                             device.index, code, n->text(code)));
    if (out_first)
        *out_first = value[0];
    if (out_second)
        *out_second = value[1];
    return DS_OK;
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

DSDEF ds_result(ds_device_utilization)(ds_device device, unsigned *out_gpu_percent,
                                       unsigned *out_memory_percent) {
    if (out_gpu_percent)
        *out_gpu_percent = 0;
    if (out_memory_percent)
        *out_memory_percent = 0;
    DS__ENTER("ds_device_utilization");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "utilisation", ds__nvml_utilization, out_gpu_percent,
                         out_memory_percent);
}

DSDEF ds_result(ds_device_temperature)(ds_device device, unsigned *out_celsius) {
    if (out_celsius)
        *out_celsius = 0;
    DS__ENTER("ds_device_temperature");
    DS__REQUIRE(out_celsius, "out_celsius is NULL");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "temperature", ds__nvml_temperature, out_celsius, NULL);
}

DSDEF ds_result(ds_device_power_draw)(ds_device device, unsigned *out_milliwatts) {
    if (out_milliwatts)
        *out_milliwatts = 0;
    DS__ENTER("ds_device_power_draw");
    DS__REQUIRE(out_milliwatts, "out_milliwatts is NULL");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "power draw", ds__nvml_power, out_milliwatts, NULL);
}

DSDEF ds_result(ds_device_clock_rate)(ds_device device, unsigned *out_sm_mhz,
                                      unsigned *out_memory_mhz) {
    if (out_sm_mhz)
        *out_sm_mhz = 0;
    if (out_memory_mhz)
        *out_memory_mhz = 0;
    DS__ENTER("ds_device_clock_rate");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "clock rate", ds__nvml_clock, out_sm_mhz, out_memory_mhz);
}

#endif
