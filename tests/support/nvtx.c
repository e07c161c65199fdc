/* A tool as NVTX loads one, by NVTX_INJECTION64_PATH: writes down what it is told, a line each.
   Written from nvtxTypes.h. Build: cc -shared -fPIC nvtx.c -o nvtx.so */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <nvtx3/nvToolsExt.h>
#pragma GCC diagnostic pop

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table);
EXPORT void nvtx_take(char *out, size_t size);

static char lines[1 << 16];
static size_t length;
static uint64_t ids;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What was told since the last call. */
void nvtx_take(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    snprintf(out, size, "%s", lines);
    lines[length = 0] = 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    int n = vsnprintf(lines + length, sizeof lines - length, format, args);
    if (n > 0)
        length = length + (size_t)n < sizeof lines ? length + (size_t)n : sizeof lines - 1;
    pthread_mutex_unlock(&lock);
    va_end(args);
}

static char *text_of(const nvtxEventAttributes_t *a, char out[200]) {
    int n = snprintf(out, 200, "%s",
                     a->messageType == NVTX_MESSAGE_TYPE_ASCII ? a->message.ascii : "?");
    if (a->version != NVTX_VERSION || a->size != sizeof *a)
        n += snprintf(out + n, 200 - (size_t)n, " of another version");
    if (a->category)
        n += snprintf(out + n, 200 - (size_t)n, " category %u", a->category);
    if (a->colorType == NVTX_COLOR_ARGB)
        n += snprintf(out + n, 200 - (size_t)n, " color %08x", a->color);
    switch (a->payloadType) {
    case NVTX_PAYLOAD_UNKNOWN:
        break;
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
        snprintf(out + n, 200 - (size_t)n, " u64 %" PRIu64, a->payload.ullValue);
        break;
    case NVTX_PAYLOAD_TYPE_INT64:
        snprintf(out + n, 200 - (size_t)n, " i64 %" PRId64, a->payload.llValue);
        break;
    case NVTX_PAYLOAD_TYPE_DOUBLE:
        snprintf(out + n, 200 - (size_t)n, " f64 %g", a->payload.dValue);
        break;
    default:
        snprintf(out + n, 200 - (size_t)n, " payload of type %d", a->payloadType);
    }
    return out;
}

static const char *name_of(nvtxDomainHandle_t domain) {
    return domain ? (const char *)domain : "default";
}

static void mark_a(const char *text) {
    note("mark %s\n", text);
}

static int push_a(const char *text) {
    note("push %s\n", text);
    return 0;
}

static int pop(void) {
    note("pop\n");
    return 0;
}

static nvtxRangeId_t start_a(const char *text) {
    uint64_t id = __atomic_add_fetch(&ids, 1, __ATOMIC_SEQ_CST);
    note("start %s\n", text);
    return id;
}

static void end(nvtxRangeId_t id) {
    note("end %" PRIu64 "\n", id);
}

static void name_thread(uint32_t thread, const char *name) {
    note("thread %s%s\n", thread ? "" : "0 ", name);
}

static void domain_mark(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    char text[200];
    note("%s: mark %s\n", name_of(d), text_of(a, text));
}

static int domain_push(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    char text[200];
    note("%s: push %s\n", name_of(d), text_of(a, text));
    return 0;
}

static int domain_pop(nvtxDomainHandle_t d) {
    note("%s: pop\n", name_of(d));
    return 0;
}

static nvtxRangeId_t domain_start(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    char text[200];
    uint64_t id = __atomic_add_fetch(&ids, 1, __ATOMIC_SEQ_CST);
    note("%s: start %s\n", name_of(d), text_of(a, text));
    return id;
}

static void domain_end(nvtxDomainHandle_t d, nvtxRangeId_t id) {
    note("%s: end %" PRIu64 "\n", name_of(d), id);
}

static nvtxDomainHandle_t domain_create(const char *name) {
    note("domain %s\n", name);
    return (nvtxDomainHandle_t)strdup(name);
}

static void domain_destroy(nvtxDomainHandle_t d) {
    note("domain %s over\n", name_of(d));
    free(d);
}

static void name_device(int device, const char *name) {
    note("device %d %s\n", device, name);
}

static void name_stream(void *stream, const char *name) {
    note("stream%s %s\n", stream ? "" : " 0", name);
}

#define TAKE(module, entry, fn)                                             \
    do {                                                                    \
        if (NVTX_CBID_##module##_##entry < size)                            \
            *table[NVTX_CBID_##module##_##entry] = (NvtxFunctionPointer)fn; \
    } while (0)

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
    NvtxFunctionTable table;
    unsigned size;
    const NvtxExportTableCallbacks *callbacks = export_table(NVTX_ETID_CALLBACKS);
    if (!callbacks || callbacks->struct_size < sizeof *callbacks)
        return 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
        return 0;
    TAKE(CORE, MarkA, mark_a);
    TAKE(CORE, RangePushA, push_a);
    TAKE(CORE, RangePop, pop);
    TAKE(CORE, RangeStartA, start_a);
    TAKE(CORE, RangeEnd, end);
    TAKE(CORE, NameOsThreadA, name_thread);
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    TAKE(CORE2, DomainMarkEx, domain_mark);
    TAKE(CORE2, DomainRangePushEx, domain_push);
    TAKE(CORE2, DomainRangePop, domain_pop);
    TAKE(CORE2, DomainRangeStartEx, domain_start);
    TAKE(CORE2, DomainRangeEnd, domain_end);
    TAKE(CORE2, DomainCreateA, domain_create);
    TAKE(CORE2, DomainDestroy, domain_destroy);
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CUDART, &table, &size))
        return 0;
    TAKE(CUDART, NameCudaDeviceA, name_device);
    TAKE(CUDART, NameCudaStreamA, name_stream);
    return 1;
}
