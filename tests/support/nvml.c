/* Stands for NVML, which is loaded by DEVSTREAM_NVML. DS_TEST_NVML_MODE says how it behaves.
   Written from nvml.h. With -DOLD processes are told as before 2020, and there are no sensors.
   Build: cc -shared -fPIC nvml.c -o nvml.so */
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    UNINITIALIZED = 1,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9
};
#ifdef OLD
typedef struct process {
    unsigned pid;
    unsigned long long used;
} process;
#else
typedef struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process;
#endif

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT const char *nvmlErrorString(int code);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out);
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, process *out);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *out);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2]);
EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *out);
EXPORT int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *out);

static int started, device;

static int mode(const char *name) {
    const char *set = getenv("DS_TEST_NVML_MODE");
    return set && !strcmp(set, name);
}

int nvmlInit_v2(void) {
    if (mode("no-driver"))
        return DRIVER_NOT_LOADED;
    started++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    return started-- > 0 ? SUCCESS : UNINITIALIZED;
}

const char *nvmlErrorString(int code) {
    return code == NO_PERMISSION   ? "no permission"
           : code == NOT_FOUND     ? "not found"
           : code == NOT_SUPPORTED ? "not supported"
                                   : "another error";
}

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, in lower case. */
static int is_uuid(const char *text) {
    if (strlen(text) != 40 || (strncmp(text, "GPU-", 4) && strncmp(text, "MIG-", 4)))
        return 0;
    for (int i = 4; i < 40; i++) {
        int dash = i == 12 || i == 17 || i == 22 || i == 27;
        if (dash ? text[i] != '-' : !strchr("0123456789abcdef", text[i]))
            return 0;
    }
    return 1;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (started != 1)
        return UNINITIALIZED;
    if (!is_uuid(uuid))
        return INVALID_ARGUMENT;
    if (mode("by-pci") || mode("unknown-device") || (mode("mig") && uuid[0] == 'G'))
        return NOT_FOUND;
    *out = &device;
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out) {
    if (started != 1)
        return UNINITIALIZED;
    if (!strchr(pci, ':') || !strchr(pci, '.'))
        return INVALID_ARGUMENT;
    if (!mode("by-pci"))
        return NOT_FOUND;
    *out = &device;
    return SUCCESS;
}

static int running(void *of, unsigned *count, process *out) {
    unsigned room = *count, there = mode("none") ? 0 : mode("many") ? 300 : 2;
    if (started != 1)
        return UNINITIALIZED;
    if (of != &device)
        return INVALID_ARGUMENT;
    if (mode("denied"))
        return NO_PERMISSION;
    *count = there;
    if (there > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].pid = mode("many") ? 1000 + i : i ? 5 : 4711;
        out[i].used = mode("many") ? (i + 1ull) << 20 : i ? ~0ull : 3073ull << 19;
    }
    return SUCCESS;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses(void *of, unsigned *count, process *out) {
    return running(of, count, out);
}
#else
int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned *count, process *out) {
    return running(of, count, out);
}

/* A part of a GPU has no sensors of its own. */
static int sensor(void *of) {
    return started != 1     ? UNINITIALIZED
           : of != &device  ? INVALID_ARGUMENT
           : mode("denied") ? NO_PERMISSION
           : mode("mig")    ? NOT_SUPPORTED
                            : SUCCESS;
}

static unsigned value(unsigned of) {
    return mode("unavailable") ? ~0u : of;
}

int nvmlDeviceGetUtilizationRates(void *of, unsigned out[2]) {
    int code = sensor(of);
    if (code == SUCCESS) {
        out[0] = 37;
        out[1] = value(12);
    }
    return code;
}

int nvmlDeviceGetTemperature(void *of, int which, unsigned *out) {
    int code = which == 0 ? sensor(of) : INVALID_ARGUMENT;
    if (code == SUCCESS)
        *out = value(54);
    return code;
}

int nvmlDeviceGetPowerUsage(void *of, unsigned *out) {
    int code = sensor(of);
    if (code == SUCCESS)
        *out = value(123456);
    return code;
}

int nvmlDeviceGetClockInfo(void *of, int which, unsigned *out) {
    int code = which == 1 || which == 2 ? sensor(of) : INVALID_ARGUMENT;
    if (code == SUCCESS)
        *out = which == 1 ? 1410 : value(1215);
    return code;
}
#endif
