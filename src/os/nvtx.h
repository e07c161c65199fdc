/* os/nvtx.h - ranges and names for NVIDIA's tools.

   Passes ranges, marks and names to NVTX, which is a set of headers, if these are present and
   DEVSTREAM_NO_NVTX is not defined. Else the functions do nothing.

   Invariants: a domain is what ds__nvtx_domain_create returned, or NULL for the default one.
   Names of streams and devices are passed on if DEVSTREAM_CUDA is defined, with
   DEVSTREAM_CUDA_DLOPEN only if the program includes CUDA's headers.
   Locks: ds__nvtx.lock is held while NVTX is initialised, which replaces its functions.
   Threads: any. */
#ifndef DS__OS_NVTX_H
#define DS__OS_NVTX_H

#include "../api/range.h"
#include "system.h"
#include "thread.h"

#if !defined(DEVSTREAM_NO_NVTX) && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define DS__NVTX 1
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include <nvtx3/nvToolsExt.h>
#if defined(DEVSTREAM_CUDA) && (!defined(DEVSTREAM_CUDA_DLOPEN) || defined(CUDART_VERSION)) && \
    __has_include(<nvtx3/nvToolsExtCudaRt.h>) && __has_include(<cuda.h>)
#include <nvtx3/nvToolsExtCudaRt.h>
#define DS__NVTX_CUDA 1
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif
#endif

#ifdef DS__NVTX
static struct {
    _Atomic int ready; /* 1: initialised, so that its functions are no longer replaced */
    ds__mutex lock;
} ds__nvtx = { .lock = DS__MUTEX_INIT };

__attribute__((cold, noinline)) static void ds__nvtx_initialize(void) {
    ds__mutex_lock(&ds__nvtx.lock);
    if (!atomic_load(&ds__nvtx.ready)) {
        nvtxInitialize(NULL);
        atomic_store_explicit(&ds__nvtx.ready, 1, memory_order_release);
    }
    ds__mutex_unlock(&ds__nvtx.lock);
}

static inline void ds__nvtx_init(void) {
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__nvtx.ready, memory_order_acquire)))
        ds__nvtx_initialize();
}

static nvtxEventAttributes_t ds__nvtx_attributes(const ds_range_desc *d) {
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.category = d->category;
    a.colorType = d->color ? NVTX_COLOR_ARGB : NVTX_COLOR_UNKNOWN;
    a.color = d->color;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = d->text;
    switch (d->payload.kind) {
    case DS_PAYLOAD_U64:
        a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        a.payload.ullValue = d->payload.value.u64;
        break;
    case DS_PAYLOAD_I64:
        a.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        a.payload.llValue = d->payload.value.i64;
        break;
    case DS_PAYLOAD_F64:
        a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
        a.payload.dValue = d->payload.value.f64;
        break;
    case DS_PAYLOAD_NONE:
        break;
    }
    return a;
}

/* Returns 1 if the functions without attributes can express the description. */
static inline int ds__nvtx_plain(const ds_range_desc *d) {
    return !d->domain.id && !d->color && !d->category && !d->payload.kind;
}
#endif

static inline void ds__nvtx_mark(void *domain, const ds_range_desc *d) {
#ifdef DS__NVTX
    ds__nvtx_init();
    if (ds__nvtx_plain(d))
        nvtxMarkA(d->text);
    else {
        nvtxEventAttributes_t a = ds__nvtx_attributes(d);
        nvtxDomainMarkEx((nvtxDomainHandle_t)domain, &a);
    }
#else
    (void)domain;
    (void)d;
#endif
}

static inline void ds__nvtx_push(void *domain, const ds_range_desc *d) {
#ifdef DS__NVTX
    ds__nvtx_init();
    if (ds__nvtx_plain(d))
        nvtxRangePushA(d->text);
    else {
        nvtxEventAttributes_t a = ds__nvtx_attributes(d);
        nvtxDomainRangePushEx((nvtxDomainHandle_t)domain, &a);
    }
#else
    (void)domain;
    (void)d;
#endif
}

static inline void ds__nvtx_pop(void *domain) {
#ifdef DS__NVTX
    ds__nvtx_init();
    if (domain)
        nvtxDomainRangePop((nvtxDomainHandle_t)domain);
    else
        nvtxRangePop();
#else
    (void)domain;
#endif
}

/* Returns NVTX's number of the range. */
static inline uint64_t ds__nvtx_range_start(void *domain, const ds_range_desc *d) {
#ifdef DS__NVTX
    ds__nvtx_init();
    if (ds__nvtx_plain(d))
        return nvtxRangeStartA(d->text);
    nvtxEventAttributes_t a = ds__nvtx_attributes(d);
    return nvtxDomainRangeStartEx((nvtxDomainHandle_t)domain, &a);
#else
    (void)domain;
    (void)d;
    return 0;
#endif
}

static inline void ds__nvtx_range_end(void *domain, uint64_t range) {
#ifdef DS__NVTX
    if (domain)
        nvtxDomainRangeEnd((nvtxDomainHandle_t)domain, range);
    else
        nvtxRangeEnd(range);
#else
    (void)domain;
    (void)range;
#endif
}

static inline void *ds__nvtx_domain_create(const char *name) {
#ifdef DS__NVTX
    ds__nvtx_init();
    return nvtxDomainCreateA(name);
#else
    (void)name;
    return NULL;
#endif
}

static inline void ds__nvtx_domain_destroy(void *domain) {
#ifdef DS__NVTX
    nvtxDomainDestroy((nvtxDomainHandle_t)domain);
#else
    (void)domain;
#endif
}

/* Names the calling thread. */
static inline void ds__nvtx_name_thread(const char *label) {
#ifdef DS__NVTX
    ds__nvtx_init();
    nvtxNameOsThreadA(ds__os_thread_id(), label);
#else
    (void)label;
#endif
}

static inline int ds__nvtx_names_cuda(void) {
#ifdef DS__NVTX_CUDA
    return 1;
#else
    return 0;
#endif
}

/* Names a stream of CUDA. */
static inline void ds__nvtx_name_stream(void *native, const char *label) {
#ifdef DS__NVTX_CUDA
    ds__nvtx_init();
    nvtxNameCudaStreamA((cudaStream_t)native, label);
#else
    (void)native;
    (void)label;
#endif
}

static inline void ds__nvtx_name_device(int index, const char *label) {
#ifdef DS__NVTX_CUDA
    ds__nvtx_init();
    nvtxNameCudaDeviceA(index, label);
#else
    (void)index;
    (void)label;
#endif
}

#endif
