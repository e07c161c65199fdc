/* cuda/device.h - start-up and devices.

   Finds the CUDA devices and the entry points of the driver library (ds__cuda_probe) and starts the
   driver (ds__cuda_init). Implements the device entries: properties, memory, links, speed, peer
   access, priorities and synchronisation. Reset is not supported.

   Invariants: ds__cuda_probe creates no context. Peer access is asked for once for each ordered
   pair of devices, is enabled in both directions with the first positive answer, and is never
   disabled.
   ds__cuda_device_synchronize unloads only modules that had no users before the wait.
   Locks: ds__cuda_device_synchronize takes ds__cuda.mutex before and after its wait, never during
   the wait. The other functions take none.
   Threads: probe and start run during initialisation, all other entries on any thread. If two
   threads enable the same peer access, the second one accepts CUDA's answer "already enabled".
   Memory queries and peer access run in relaxed capture mode, so open captures neither forbid them
   nor become invalid. */
#ifndef DS__CUDA_DEVICE_H
#define DS__CUDA_DEVICE_H

#include "types.h"
#include "call.h"
#include "cudart_load.h"
#include "green.h"
#include "condition.h"

/* Fills in all entry points of ds__cuda, or none. *call: the one that was not found. */
static cudaError_t ds__cuda_find_entry_points(const ds__cuda_scope *scope, const char **call) {
    static const char *const names[] = {
#define DS__CUDA_NAME(function, parameters) #function,
        DS__CUDA_ENTRY_POINTS(DS__CUDA_NAME)
#undef DS__CUDA_NAME
    };
    void *found[sizeof names / sizeof names[0]] = { NULL };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cudaError_t code =
            ds__cuda_clear(scope, ds__cudart_entry_point(names[i], 11080, &found[i]));
        *call = names[i];
        if (code != cudaSuccess || !found[i])
            return code == cudaSuccess ? cudaErrorSymbolNotFound : code;
    }
    int i = 0;
#define DS__CUDA_TAKE(function, parameters) \
    memcpy(&ds__cuda.function, &found[i++], sizeof ds__cuda.function);
    DS__CUDA_ENTRY_POINTS(DS__CUDA_TAKE)
#undef DS__CUDA_TAKE
    return cudaSuccess;
}

/* Finds the functions of the log, or none. driver: the version of the driver library. Inside of a
   scope. */
static void ds__cuda_find_log(const ds__cuda_scope *scope, int driver) {
    int (*dump)(unsigned *at, char *text, size_t *size, unsigned flags) = NULL;
    const ds__cuda_optional list[] = { { "cuLogsCurrent", 12090, &ds__cuda.log_current },
                                       { "cuLogsDumpToMemory", 12090, &dump } };
    unsigned at = 0;
    ds__cuda.log_dump = NULL;
    if (driver < 12090 || !ds__cuda_find_optional(scope, list, 2) || ds__cuda.log_current(&at, 0))
        return;
    atomic_store(&ds__cuda.log_at, at);
    ds__cuda.log_dump = dump;
}

/* Finds the function for launches with attributes. Inside of a scope. Graphs have edges with an
   overlap from CUDA 12.3 on; before, a capture of an overlap is not documented. */
static void ds__cuda_find_launch(const ds__cuda_scope *scope, int driver) {
    static const ds__cuda_optional launch = { "cuLaunchKernelEx", 11080,
                                              &ds__cuda.cuLaunchKernelEx };
    ds__cuda.cuLaunchKernelEx = NULL;
    ds__cuda.overlaps = driver >= 12030 && ds__cudart_version() >= 12030;
    if (driver >= 11080)
        (void)ds__cuda_find_optional(scope, &launch, 1);
}

/* Finds devices and entry points of the cudart in use. Returns the code of a failed call. */
static cudaError_t ds__cuda_probe_devices(ds_backend_info *out) {
    int count = 0;
    int runtime = 0;
    int driver = 0;
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, -1);
    const char *call = "cudaGetDeviceCount";
    const char *library = ds__cudart_name();
    cudaError_t code = DS__RT_CODE(scope, cudaGetDeviceCount, (&count));
    if (code == cudaSuccess && count == 0) {
        snprintf(out->reason, sizeof out->reason, "not taken: cudaGetDeviceCount finds no device");
        return code;
    }
    if (code == cudaSuccess) {
        call = "cudaRuntimeGetVersion";
        code = DS__RT_CODE(scope, cudaRuntimeGetVersion, (&runtime));
    }
    if (code == cudaSuccess) {
        call = "cudaDriverGetVersion";
        code = DS__RT_CODE(scope, cudaDriverGetVersion, (&driver));
    }
    if (code == cudaSuccess)
        code = ds__cuda_find_entry_points(&scope, &call);
    if (code != cudaSuccess) {
        snprintf(out->reason, sizeof out->reason, "not taken: %s%s%s returned %d (%s: %s)", call,
                 *library ? " of " : "", library, (int)code, DS__CUDART(cudaGetErrorName)(code),
                 DS__CUDART(cudaGetErrorString)(code));
        return code;
    }
    ds__cuda_find_log(&scope, driver);
    ds__cuda_find_green(&scope, driver);
    ds__cuda_find_conditions(&scope, driver);
    ds__cuda_find_launch(&scope, driver);
    if (count > DS__MAX_DEVICES)
        count = DS__MAX_DEVICES;
    out->available = 1;
    out->device_count = ds__cuda.devices = count;
    snprintf(out->reason, sizeof out->reason, "taken: %d device%s, driver %d.%d, runtime %d.%d%s%s",
             count, count > 1 ? "s" : "", driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10, *library ? ", " : "", library);
    return code;
}

/* Finds devices and entry points, and cudart if the program loads it. Creates no context, so that a
   process that only asks for devices takes no memory of a GPU. */
static void ds__cuda_probe(ds_backend_info *out) {
    ds__cudart_search search = { 0 };
    cudaError_t code = cudaErrorInsufficientDriver;
    while (code == cudaErrorInsufficientDriver &&
           ds__cudart_load(&search, out->reason, sizeof out->reason))
        code = ds__cuda_probe_devices(out);
    if (!out->available)
        ds__cudart_drop();
}

static ds_result ds__cuda_attribute(int device, enum cudaDeviceAttr attribute, int *out) {
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, device);
    return DS__RT(scope, cudaDeviceGetAttribute, (out, attribute, device));
}

static ds_result ds__cuda_read_properties(int device, ds_device_properties *out) {
    ds__cuda_scope scope;
    ds_result r;
    memset(out, 0, sizeof *out);
    ds__cuda_anywhere(&scope, device);
    /* cudaGetDeviceProperties reads all attributes, and its struct differs by version */
    DS__DR(scope, r, cuDeviceGetName, (out->name, (int)sizeof out->name, ds__cuda.handle[device]));
    if (r == DS_OK)
        DS__DR(scope, r, cuDeviceGetUuid, (out->uuid, ds__cuda.handle[device]));
    if (r == DS_OK)
        DS__DR(scope, r, cuDeviceTotalMem, (&out->total_memory, ds__cuda.handle[device]));
    if (r == DS_OK)
        r = DS__RT(scope, cudaDeviceGetPCIBusId, (out->pci, (int)sizeof out->pci, device));
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrComputeCapabilityMajor, &out->major);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrComputeCapabilityMinor, &out->minor);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrUnifiedAddressing, &out->unified_addressing);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrMultiProcessorCount, &out->multiprocessors);
    return r;
}

/* Reads who copies between pinned ranges. CUDA's manual does not say whether cudart's copy blocks
   the caller, so host functions do it by default. */
static ds_result ds__cuda_choose_copies(void) {
    const char *by = ds__os_environment("DEVSTREAM_CUDA_PINNED_COPIES");
    atomic_store(&ds__cuda.no_batches, 0);
    ds__cuda.cudart_copies = by && !strcmp(by, "cudart");
    DS__REQUIRE(!by || ds__cuda.cudart_copies || !strcmp(by, "host"),
                "DEVSTREAM_CUDA_PINNED_COPIES is \"%s\"; \"host\" and \"cudart\" are allowed", by);
    return DS_OK;
}

static ds_result ds__cuda_init(void) {
    ds_result r = ds__cuda_choose_copies();
    for (int i = 0; i < ds__cuda.devices && r == DS_OK; i++) {
        ds__cuda.side[i] = NULL;
        atomic_store(&ds__cuda.ended[i], NULL);
        atomic_store(&ds__cuda.used[i], 0);
        atomic_store(&ds__cuda.page[i], 0);
        atomic_store(&ds__cuda.alone[i], 0);
        atomic_store(&ds__cuda.rdma[i], 0);
        atomic_store(&ds__cuda.peer[i][i], 2);
        ds__cuda_scope scope;
        ds__cuda_anywhere(&scope, i);
        DS__DR(scope, r, cuDeviceGet, (&ds__cuda.handle[i], i));
        if (r == DS_OK)
            r = ds__cuda_read_properties(i, &ds__cuda.properties[i]);
    }
    return r;
}

/* The numbers of the attributes are cudart's. The core has checked the arguments, so a value that
   cudart calls invalid is an attribute that this version does not know. */
static ds_result ds__cuda_device_attribute(int device, ds_attribute attribute, int64_t *out) {
    int value = 0;
    ds_result r = ds__cuda_attribute(device, (enum cudaDeviceAttr)attribute, &value);
    *out = value;
    return r == DS_ERR_INVALID_VALUE ? DS_ERR_UNSUPPORTED : r;
}

/* Lists the architectures of the library's device code: PTX for compute_60, which the driver
   compiles for each device. */
static const char *ds__cuda_architectures(void) {
    return "sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_100 sm_101 "
           "sm_103 sm_110 sm_120 sm_121 compute_60";
}

/* A copy of what was read at the start, so that it can be asked for in host functions, too. */
static ds_result ds__cuda_device_properties(int device, ds_device_properties *out) {
    *out = ds__cuda.properties[device];
    return DS_OK;
}

/* Finds out whether NVLink connects two devices: only over NVLink are all atomic operations on the
   peer's memory native. */
static ds_result ds__cuda_device_link(int device, int peer, int *out) {
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, device);
    return DS__RT(scope, cudaDeviceGetP2PAttribute,
                  (out, cudaDevP2PAttrNativeAtomicSupported, device, peer));
}

static ds_result ds__cuda_device_speed(int device, int *out_engines, double *out_memory) {
    int khz = 0;
    int bits = 0;
    ds_result r = ds__cuda_attribute(device, cudaDevAttrAsyncEngineCount, out_engines);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrMemoryClockRate, &khz);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrGlobalMemoryBusWidth, &bits);
    *out_memory = r == DS_OK ? khz * 1e3 * 2 /* transfers per clock */ * bits / 8 : 0;
    return r;
}

static ds_result ds__cuda_device_memory(int device, size_t *out_free, size_t *out_total) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = DS__RT(scope, cudaMemGetInfo, (out_free, out_total));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r;
}

static int ds__cuda_device_used(int device) {
    return atomic_load(&ds__cuda.used[device]);
}

static ds_result ds__cuda_device_synchronize(int device) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    /* before the wait, which then covers all launches of these modules */
    ds__cuda_module *unused = ds__cuda_take_modules(device, 0);
    r = DS__RT(scope, cudaDeviceSynchronize, ());
    if (r == DS_OK) {
        ds__cuda_unload(&scope, unused);
    } else {
        ds__mutex_lock(&ds__cuda.mutex);
        while (unused) {
            ds__cuda_module *m = unused;
            unused = m->next;
            m->next = ds__cuda.modules;
            ds__cuda.modules = m;
        }
        ds__mutex_unlock(&ds__cuda.mutex);
    }
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_device_reset(int device) {
    return ds__fail(
        DS_ERR_UNSUPPORTED,
        "cuda:%d cannot be reset: other libraries share its context; start a new process", device);
}

/* Enables access to the memory of a peer. Sets *out to 0 if CUDA does not support the access, which
   makes copies staged. Inside of a scope. */
static ds_result ds__cuda_enable_peer(const ds__cuda_scope *scope, int peer, int *out) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaDeviceEnablePeerAccess, (peer, 0));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (code == cudaErrorTooManyPeers || code == cudaErrorPeerAccessUnsupported) {
        *out = 0;
        return DS_OK;
    }
    /* the program itself has enabled it */
    if (code == cudaErrorPeerAccessAlreadyEnabled)
        return DS_OK;
    return ds__cuda_check(scope, code, "cudaDeviceEnablePeerAccess");
}

/* Asks whether a device can access the memory of a peer, and enables the access. *known: 1: no, 2:
   yes. */
static ds_result ds__cuda_ask_peer(int device, int peer, unsigned char *known) {
    ds__cuda_scope scope;
    int can = 0;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaDeviceCanAccessPeer, (&can, device, peer));
    if (r == DS_OK && can)
        r = ds__cuda_enable_peer(&scope, peer, &can);
    ds__cuda_scope_end(&scope);
    if (r < 0)
        return r;
    *known = can ? 2 : 1;
    atomic_store_explicit(&ds__cuda.peer[device][peer], *known, memory_order_release);
    return DS_OK;
}

/* Finds out whether a device can access the memory of a peer. The first answer for a pair enables
   the access in both directions, because CUDA stages a copy that its stream's device cannot make
   alone; the answer is kept. Both devices have contexts then. Memory of a device that is `alone`
   may be out of reach in spite of peer access. */
static ds_result ds__cuda_device_peer(int device, int peer, int *out) {
    unsigned char known = atomic_load_explicit(&ds__cuda.peer[device][peer], memory_order_acquire);
    if (!known) {
        unsigned char back = atomic_load(&ds__cuda.peer[peer][device]);
        ds_result r = ds__cuda_ask_peer(device, peer, &known);
        if (r < 0)
            return r;
        if (known == 2 && !back)
            DS_IGNORE(ds__cuda_ask_peer(peer, device, &back)); /* asked again when it is needed */
    }
    *out = known == 2 && (device == peer || !atomic_load(&ds__cuda.alone[peer]));
    return DS_OK;
}

static ds_result ds__cuda_priority_range(int device, int *out_least, int *out_greatest) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaDeviceGetStreamPriorityRange, (out_least, out_greatest));
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
