/* Stands for CUPTI, which is loaded by DEVSTREAM_CUPTI: records of the device work that the
   stand-in for cudart does (standin_watch). Written from CUPTI's headers and documentation.
   Build: cc -shared -fPIC cupti.c -o cupti.so

   As in CUPTI, records come when they are asked for or from a thread, each device has buffers of
   its own, a call has a record of its external id only if the kind of the call is enabled, and
   records without a buffer are dropped and counted. The clock has another zero and another rate
   than the host's. The library has the name of CUDA 12's. DS_TEST_CUPTI is read at each
   subscription, a list with commas:
     late=N     a record is held back for up to N flushes, but not by a forced one
     shuffle    records come in any order
     drop=N     one of N records of device work is dropped
     zero=N     one of N records of kernels has no times
     thread     a thread hands records over, too
     small      buffers are taken to be small
     apart      a buffer is asked for and filled before the one before it is given back
     nameless   records of kernels have no name
     early=N    all times are N ms too early
     drift      the clock runs faster still from 0.2 s after the subscription on
     taken      there is a subscriber
     deny=N     a subscription gives the code N
     old        the version is that of CUDA 11.7
     refuse=K   the kind K cannot be enabled
     seed=N     of the random numbers */
#define _GNU_SOURCE
#include <cuda.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>
#pragma GCC diagnostic pop
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin/standin.h"

#define EXPORT __attribute__((visibility("default")))

enum { KINDS = 64, NESTED = 16, SMALL = 1024 };

typedef union content {
    CUpti_Activity any;
    CUpti_ActivityKernel8 kernel;
    CUpti_ActivityMemcpy5 copy;
    CUpti_ActivityMemcpyPtoP4 peer;
    CUpti_ActivityMemset4 fill;
    CUpti_ActivityExternalCorrelation external;
    CUpti_ActivityAPI api;
} content;

typedef struct record {
    content is;
    size_t size;
    int device; /* -1: of a call */
    int delay;  /* flushes */
} record;

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    _Atomic int threaded; /* 1: the thread runs */
    int subscribed;
    _Atomic int enabled[KINDS];
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    record *list;
    size_t count, room;
    size_t dropped;
    uint64_t random;
    int late, shuffle, drop, zero, small, apart, nameless, early, refuse;
    uint64_t knee; /* the time of the host from which on the clock is faster; 0: none */
} cupti = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local uint64_t pushed[NESTED];
static _Thread_local unsigned depth;

static int option(const char *name, int other) {
    const char *list = getenv("DS_TEST_CUPTI");
    const char *at = list ? strstr(list, name) : NULL;
    if (!at)
        return other;
    at += strlen(name);
    return *at == '=' ? atoi(at + 1) : 1;
}

/* A number below `n`; 0 if n is. */
static int below(int n) {
    cupti.random = cupti.random * 6364136223846793005u + 1442695040888963407u;
    return n > 0 ? (int)((cupti.random >> 33) % (uint64_t)n) : 0;
}

/* CUPTI's time of a time of the host. */
static uint64_t clock_of(uint64_t ns) {
    uint64_t more = cupti.knee && ns > cupti.knee ? ns - cupti.knee : 0;
    return ns + ns / 4 + more + 1000000000000000u;
}

static void add(const content *is, size_t size, int device) {
    if (cupti.count == cupti.room) {
        cupti.room = cupti.room ? 2 * cupti.room : 1024;
        cupti.list = realloc(cupti.list, cupti.room * sizeof *cupti.list);
        if (!cupti.list)
            abort();
    }
    record *r = &cupti.list[cupti.count++];
    memset(r, 0, sizeof *r);
    memcpy(&r->is, is, size);
    r->size = size;
    r->device = device;
    r->delay = below(cupti.late + 1);
}

/* ---- told by the stand-in for cudart ---- */

static void on_call(unsigned correlation, int is_driver) {
    CUpti_ActivityKind kind = is_driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    content c;
    if (!atomic_load(&cupti.enabled[kind]))
        return;
    pthread_mutex_lock(&cupti.lock);
    if (depth && atomic_load(&cupti.enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION])) {
        memset(&c, 0, sizeof c);
        c.external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        c.external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;
        c.external.externalId = pushed[depth - 1];
        c.external.correlationId = correlation;
        add(&c, sizeof c.external, -1);
    }
    memset(&c, 0, sizeof c);
    c.api.kind = kind;
    c.api.correlationId = correlation;
    add(&c, sizeof c.api, -1);
    pthread_mutex_unlock(&cupti.lock);
}

#define COMMON(of, id)                                                               \
    of.kind = id, of.start = start, of.end = end, of.deviceId = (uint32_t)w->device, \
    of.contextId = (uint32_t)w->device + 1, of.streamId = w->stream,                 \
    of.correlationId = w->correlation, of.graphNodeId = w->node

static void on_work(const standin_work *w) {
    uint64_t early = (uint64_t)cupti.early * 1000000u;
    uint64_t start = clock_of(w->begin_ns - early), end = clock_of(w->end_ns - early);
    content c;
    size_t size = 0;
    memset(&c, 0, sizeof c);
    pthread_mutex_lock(&cupti.lock);
    if (w->kind == STANDIN_KERNEL) {
        if (cupti.zero && !below(cupti.zero))
            start = end = 0;
        COMMON(c.kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
        c.kernel.name = cupti.nameless ? NULL : w->name;
        size = sizeof c.kernel;
    } else if (w->kind == STANDIN_FILL) {
        COMMON(c.fill, CUPTI_ACTIVITY_KIND_MEMSET);
        c.fill.bytes = w->bytes;
        size = sizeof c.fill;
    } else if (w->kind == STANDIN_COPY) {
        COMMON(c.copy, CUPTI_ACTIVITY_KIND_MEMCPY);
        c.copy.bytes = w->bytes;
        size = sizeof c.copy;
    } else {
        COMMON(c.peer, CUPTI_ACTIVITY_KIND_MEMCPY2);
        c.peer.bytes = w->bytes;
        size = sizeof c.peer;
    }
    if (!atomic_load(&cupti.enabled[c.any.kind]))
        size = 0;
    else if (cupti.drop && !below(cupti.drop))
        cupti.dropped++;
    else
        add(&c, size, w->device);
    pthread_mutex_unlock(&cupti.lock);
}

/* ---- delivery ---- */

/* Takes the records that are due: of one device, or of calls. */
static size_t take(record **out, int *device, int forced) {
    size_t taken = 0, kept = 0;
    *out = NULL;
    pthread_mutex_lock(&cupti.lock);
    record *list = malloc((cupti.count + 1) * sizeof *list);
    if (!list)
        abort();
    for (size_t i = 0; i < cupti.count; i++) {
        record *r = &cupti.list[i];
        int due = r->delay <= 0 || forced;
        if (due && (!taken || r->device == *device)) {
            *device = r->device;
            list[taken++] = *r;
        } else {
            cupti.list[kept++] = *r;
        }
    }
    cupti.count = kept;
    for (size_t i = taken; cupti.shuffle && i > 1; i--) {
        size_t k = (size_t)below((int)i);
        record r = list[k];
        list[k] = list[i - 1];
        list[i - 1] = r;
    }
    pthread_mutex_unlock(&cupti.lock);
    *out = list;
    return taken;
}

/* Gives the buffer back of which the size and the use are kept, if there is one. */
static struct {
    uint8_t *buffer;
    size_t size, used;
} held;

static void give_back(void) {
    if (held.buffer)
        cupti.complete(NULL, 0, held.buffer, held.size, held.used);
    held.buffer = NULL;
}

/* Fills buffers and gives them back, each one before the next one is asked for or after that. */
static void deliver(const record *list, size_t count) {
    for (size_t i = 0; i < count;) {
        uint8_t *buffer = NULL;
        size_t size = 0, most = 0, used = 0, first = i;
        cupti.request(&buffer, &size, &most);
        if (!buffer) {
            give_back();
            pthread_mutex_lock(&cupti.lock);
            cupti.dropped += count - i;
            pthread_mutex_unlock(&cupti.lock);
            return;
        }
        if (cupti.small && size > SMALL)
            size = SMALL;
        for (; i < count && used + list[i].size <= size && (!most || i - first < most); i++) {
            memcpy(buffer + used, &list[i].is, list[i].size);
            used += list[i].size;
        }
        give_back();
        held.buffer = buffer, held.size = size, held.used = used;
        if (!cupti.apart)
            give_back();
    }
    give_back();
}

static pthread_mutex_t delivery = PTHREAD_MUTEX_INITIALIZER;

static void flush(int forced) {
    record *list;
    size_t count;
    int device = 0;
    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&cupti.lock);
    for (size_t i = 0; i < cupti.count; i++)
        cupti.list[i].delay--;
    pthread_mutex_unlock(&cupti.lock);
    while (cupti.request && (count = take(&list, &device, forced)) > 0) {
        deliver(list, count);
        free(list);
    }
    if (cupti.request)
        free(list);
    pthread_mutex_unlock(&delivery);
}

static void *deliver_always(void *unused) {
    (void)unused;
    while (atomic_load(&cupti.threaded)) {
        usleep(1000);
        flush(0);
    }
    return NULL;
}

/* ---- CUPTI's functions ---- */

EXPORT CUptiResult CUPTIAPI cuptiGetVersion(uint32_t *version) {
    *version = option("old", 0) ? 17 : CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char **out) {
    *out = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
               ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
               : "another error";
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t *timestamp) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *timestamp = clock_of((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
    return CUPTI_SUCCESS;
}

static void watch(const standin_watcher *w) {
    void (*set)(const standin_watcher *);
    void *found = dlsym(RTLD_DEFAULT, "standin_watch");
    memcpy(&set, &found, sizeof set);
    if (!set) {
        fprintf(stderr, "cupti.so: the program does not export standin_watch\n");
        abort();
    }
    set(w);
}

EXPORT CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle *subscriber,
                                           CUpti_CallbackFunc callback, void *user) {
    static const standin_watcher watcher = { on_call, on_work };
    (void)callback;
    (void)user;
    if (cupti.subscribed || option("taken", 0))
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    if (option("deny", 0))
        return (CUptiResult)option("deny", 0);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&cupti.lock);
    cupti.subscribed = 1;
    cupti.late = option("late", 0), cupti.shuffle = option("shuffle", 0);
    cupti.drop = option("drop", 0), cupti.zero = option("zero", 0);
    cupti.small = option("small", 0), cupti.refuse = option("refuse", 0);
    cupti.apart = option("apart", 0), cupti.nameless = option("nameless", 0);
    cupti.early = option("early", 0);
    cupti.knee = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 200000000u;
    cupti.knee = option("drift", 0) ? cupti.knee : 0;
    cupti.random = (uint64_t)option("seed", 1);
    cupti.dropped = 0;
    pthread_mutex_unlock(&cupti.lock);
    memcpy(subscriber, &(void *){ &cupti }, sizeof *subscriber);
    watch(&watcher);
    atomic_store(&cupti.threaded, option("thread", 0));
    if (atomic_load(&cupti.threaded) &&
        pthread_create(&cupti.thread, NULL, deliver_always, NULL) != 0)
        abort();
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
    void *handle;
    memcpy(&handle, &subscriber, sizeof handle);
    if (handle != (void *)&cupti || !cupti.subscribed)
        return CUPTI_ERROR_INVALID_PARAMETER;
    watch(NULL);
    if (atomic_exchange(&cupti.threaded, 0))
        pthread_join(cupti.thread, NULL);
    pthread_mutex_lock(&cupti.lock);
    cupti.subscribed = 0;
    cupti.count = 0;
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
    if ((int)kind == cupti.refuse || (int)kind >= KINDS)
        return CUPTI_ERROR_NOT_COMPATIBLE;
    atomic_store(&cupti.enabled[kind], 1);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
    atomic_store(&cupti.enabled[kind], 0);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(
    CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
    pthread_mutex_lock(&delivery);
    cupti.request = request;
    cupti.complete = complete;
    pthread_mutex_unlock(&delivery);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
    if (!cupti.request)
        return CUPTI_ERROR_INVALID_OPERATION;
    flush(flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    return CUPTI_SUCCESS;
}

static size_t size_of(const CUpti_Activity *a) {
    const content *c = (const void *)a;
    switch (a->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof c->kernel;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof c->copy;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
        return sizeof c->peer;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof c->fill;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        return sizeof c->external;
    default:
        return sizeof c->api;
    }
}

EXPORT CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t *buffer, size_t size,
                                                       CUpti_Activity **next) {
    uint8_t *at = *next ? (uint8_t *)*next + size_of(*next) : buffer;
    if (!buffer)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (at >= buffer + size)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *next = (void *)at;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
                                                              size_t *dropped) {
    (void)context;
    (void)stream;
    pthread_mutex_lock(&cupti.lock);
    *dropped = cupti.dropped;
    cupti.dropped = 0;
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI
cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    if (kind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1 || depth == NESTED)
        return CUPTI_ERROR_INVALID_PARAMETER;
    pushed[depth++] = id;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult CUPTIAPI
cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
    if (kind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (!depth)
        return CUPTI_ERROR_QUEUE_EMPTY;
    *last = pushed[--depth];
    return CUPTI_SUCCESS;
}
