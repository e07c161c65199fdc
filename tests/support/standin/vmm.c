/* Memory beyond cudaMalloc: virtual memory management, and the pools behind cudaMallocAsync.

   A reservation has, like a device's arena, two stretches of addresses: the user's, where nothing
   can be touched, and the device's. Physical memory is a file in memory, so that a mapping shows
   the same bytes wherever it is made; a mapping is a range, and those side by side in one
   reservation are one memory. Until access is set nobody can touch it.

   A pool keeps what was freed as blocks of the device's memory. It gives a block out again in the
   stream in which it was freed, elsewhere when the free is over or, if it may, behind a dependency
   that it adds.

   Where CUDA leaves something open: addresses are aligned to a page of the host unless more is
   asked for; every call that makes or ends memory is unsafe during a capture; cuMemUnmap takes
   one mapping at a time and does not wait; a pool gives no empty allocations; allocations and
   frees are not captured. */
#include "core.h"
#include "standin.h"

#include <stdio.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)

typedef struct physical {
    int device, fd; /* -1: the handle is released */
    int rdma;       /* gpuDirectRDMACapable */
    size_t size;
    unsigned refs; /* the handle and the mappings */
} physical;

struct space {
    char *at, *memory; /* as the user sees it, and where it lies */
    size_t size;
    space *next;
};

static space *spaces;
static size_t live_handles;
static atomic_int rdma = RDMA_WORKS;
static atomic_size_t rdma_mappings;
static unsigned char without[MAX_DEVICES][2]; /* virtual memory, pools */

int si_supports(int index, int which) {
    return !without[index][which == cudaDevAttrMemoryPoolsSupported];
}

static int has_virtual(int index) {
    return si_supports(index, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

void standin_virtual_memory(int index, int on) {
    lock();
    without[index][0] = !on;
    unlock();
}

int si_rdma(void) {
    return atomic_load(&rdma);
}

void standin_rdma(int how) {
    atomic_store(&rdma, how);
}

size_t standin_rdma_mappings(void) {
    return atomic_load(&rdma_mappings);
}

void standin_memory_pools(int index, int on) {
    lock();
    without[index][1] = !on;
    unlock();
}

/* ---- the driver's functions: virtual memory ---- */

CUresult si_cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice handle) {
    ENTER_DRIVER(cuDeviceGetAttribute);
    int index = si_index_of(handle);
    if (!out || (int)which <= 0 || (int)which >= (int)CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = si_attribute(index, (int)which);
    return CUDA_SUCCESS;
}

CUresult si_cuDeviceGetName(char *out, int size, CUdevice handle) {
    ENTER_DRIVER(cuDeviceGetName);
    if (!out || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int index = si_index_of(handle);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(out, (size_t)size, "Stand-in GPU %d", index);
    return CUDA_SUCCESS;
}

CUresult si_cuDeviceGetUuid(CUuuid *out, CUdevice handle) {
    ENTER_DRIVER(cuDeviceGetUuid);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    int index = si_index_of(handle);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    for (int i = 0; i < 16; i++)
        out->bytes[i] = (char)(0x10 * index + i);
    return CUDA_SUCCESS;
}

CUresult si_cuDeviceTotalMem(size_t *out, CUdevice handle) {
    ENTER_DRIVER(cuDeviceTotalMem);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    int index = si_index_of(handle);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = si_config.memory;
    return CUDA_SUCCESS;
}

/* What a call means by its properties: 0, or why it cannot. */
static int check_properties(const CUmemAllocationProp *p) {
    if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || p->win32HandleMetaData ||
        (p->requestedHandleTypes != 0 &&
         p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(p->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    return has_virtual(p->location.id) ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult si_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *p,
                                          CUmemAllocationGranularity_flags option) {
    ENTER_DRIVER(cuMemGetAllocationGranularity);
    if (!out || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                 option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    int code = check_properties(p);
    if (!code)
        *out = GRANULARITY;
    return (CUresult)code;
}

CUresult si_cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                unsigned long long flags) {
    ENTER_DRIVER(cuMemAddressReserve);
    if (!out || !size || size % PAGE || alignment & (alignment - 1) || flags || hint % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    int code = si_unsafe();
    if (code)
        return (CUresult)code;
    if (alignment < PAGE)
        alignment = PAGE;
    if (size > SIZE_MAX / 4 || alignment > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *at = mmap(NULL, size + 2 * alignment, PROT_NONE, how, -1, 0),
         *memory = mmap(NULL, size, PROT_NONE, how, -1, 0);
    if (at == MAP_FAILED || memory == MAP_FAILED) {
        if (at != MAP_FAILED)
            munmap(at, size + 2 * alignment);
        if (memory != MAP_FAILED)
            munmap(memory, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* where the alignment ends, so that nobody relies on more */
    size_t before = (2 * alignment - (uintptr_t)at % (2 * alignment)) % (2 * alignment);
    before = before >= alignment ? before - alignment : before + alignment;
    if (before)
        munmap(at, before);
    if (before < 2 * alignment)
        munmap(at + before + size, 2 * alignment - before);
    space *s = si_allocate(sizeof *s);
    *s = (space){ at + before, memory, size, NULL };
    lock();
    s->next = spaces;
    spaces = s;
    unlock();
    *out = (CUdeviceptr)(uintptr_t)s->at;
    return CUDA_SUCCESS;
}

/* The reservation that has all of the range. */
static space *space_of(CUdeviceptr at, size_t size) {
    for (space *s = spaces; s; s = s->next) {
        uintptr_t offset = (uintptr_t)at - (uintptr_t)s->at;
        if (offset < s->size && size <= s->size - offset)
            return s;
    }
    return NULL;
}

CUresult si_cuMemAddressFree(CUdeviceptr at, size_t size) {
    int code = si_enter_with(F_cuMemAddressFree, "");
    if (refused(code))
        return (CUresult)code;
    int not_now = si_unsafe();
    if (not_now)
        return (CUresult)not_now;
    lock();
    space *s = space_of(at, size);
    if (!s || s->at != (char *)(uintptr_t)at || s->size != size ||
        si_range_touching((uintptr_t)at, size)) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    space **link = &spaces;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    munmap(s->at, s->size);
    munmap(s->memory, s->size);
    free(s);
    unlock();
    return (CUresult)code;
}

CUresult si_cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                        const CUmemAllocationProp *p, unsigned long long flags) {
    ENTER_DRIVER(cuMemCreate);
    if (!out || !size || size % GRANULARITY || flags)
        return CUDA_ERROR_INVALID_VALUE;
    int code = check_properties(p);
    if (!code && p->allocFlags.gpuDirectRDMACapable &&
        (si_rdma() == RDMA_NONE || si_rdma() == RDMA_FAILS_AT_CREATE))
        code = CUDA_ERROR_NOT_SUPPORTED;
    if (!code)
        code = si_unsafe();
    if (code)
        return (CUresult)code;
    lock();
    device *d = &si_devices[p->location.id];
    int fd = -1;
    if (sticky(d->index))
        code = sticky(d->index);
    else if (size > si_config.memory || d->used > si_config.memory - size)
        code = CUDA_ERROR_OUT_OF_MEMORY;
    else if ((fd = memfd_create("standin", MFD_CLOEXEC)) < 0 || ftruncate(fd, (off_t)size))
        si_fail_test("no memory for a device's memory");
    if (!code) {
        char garbage[PAGE];
        memset(garbage, 0xa5, sizeof garbage);
        for (off_t at = 0; at < GARBAGE; at += PAGE)
            if (pwrite(fd, garbage, sizeof garbage, at) != PAGE)
                si_fail_test("no memory for a device's memory");
        physical *m = si_allocate(sizeof *m);
        *m = (physical){ d->index, fd, p->allocFlags.gpuDirectRDMACapable, size, 1 };
        d->used += size;
        live_handles++;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)si_new_handle(H_MEMORY, m);
    }
    unlock();
    return (CUresult)code;
}

static void unref_physical(physical *m) {
    if (--m->refs)
        return;
    si_devices[m->device].used -= m->size;
    free(m);
}

CUresult si_cuMemRelease(CUmemGenericAllocationHandle handle) {
    int code = si_enter_with(F_cuMemRelease, "");
    if (refused(code))
        return (CUresult)code;
    int not_now = si_unsafe();
    if (not_now)
        return (CUresult)not_now;
    lock();
    physical *m = si_object_of("cuMemRelease", H_MEMORY, (void *)(uintptr_t)handle);
    si_drop_handle("cuMemRelease", H_MEMORY, (void *)(uintptr_t)handle);
    close(m->fd);
    m->fd = -1;
    live_handles--;
    unref_physical(m);
    unlock();
    return (CUresult)code;
}

CUresult si_cuMemMap(CUdeviceptr at, size_t size, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER_DRIVER(cuMemMap);
    if (!at || !size || at % GRANULARITY || size % GRANULARITY || offset || flags)
        return CUDA_ERROR_INVALID_VALUE;
    int code = si_unsafe();
    if (code)
        return (CUresult)code;
    lock();
    physical *m = si_object_of("cuMemMap", H_MEMORY, (void *)(uintptr_t)handle);
    space *s = space_of(at, size);
    if (!s || size > m->size || si_range_touching((uintptr_t)at, size)) {
        code = CUDA_ERROR_INVALID_VALUE;
    } else {
        char *memory = s->memory + ((char *)(uintptr_t)at - s->at);
        if (mmap(memory, size, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) != memory)
            si_fail_test("cuMemMap: the system maps no more");
        range *r = si_add_range((void *)(uintptr_t)at, size, memory, m->device);
        r->space = s;
        r->physical = m;
        m->refs++;
        atomic_fetch_add(&rdma_mappings, (size_t)m->rdma);
    }
    unlock();
    return (CUresult)code;
}

CUresult si_cuMemUnmap(CUdeviceptr at, size_t size) {
    int code = si_enter_with(F_cuMemUnmap, "");
    if (refused(code))
        return (CUresult)code;
    int not_now = si_unsafe();
    if (not_now)
        return (CUresult)not_now;
    lock();
    range *r = si_range_starting((void *)(uintptr_t)at);
    if (!r || !r->space || r->size != size) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!code)
        code = sticky(r->device);
    si_check_unused("cuMemUnmap", r);
    if (mmap(r->memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) != r->memory)
        si_fail_test("cuMemUnmap: the system maps no more");
    atomic_fetch_sub(&rdma_mappings, (size_t)r->physical->rdma);
    unref_physical(r->physical);
    si_remove_range(r);
    unlock();
    return (CUresult)code;
}

/* Devices other than this one that have access by the mask. */
static int peers_in(unsigned access, int index) {
    return __builtin_popcount(access & ~(1u << index));
}

/* What access becomes by a list of devices. */
static unsigned access_by(unsigned access, const CUmemAccessDesc *desc, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned bit = 1u << desc[i].location.id;
        access = desc[i].flags ? access | bit : access & ~bit;
    }
    return access;
}

CUresult si_cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count) {
    ENTER_DRIVER(cuMemSetAccess);
    if (!size || !desc || !count)
        return CUDA_ERROR_INVALID_VALUE;
    int code = si_unsafe();
    if (code)
        return (CUresult)code;
    lock();
    size_t left = size;
    for (range *r; left; left -= r->size) { /* whole mappings, without a gap */
        r = si_range_starting((char *)(uintptr_t)at + (size - left));
        if (!r || !r->space || r->size > left) {
            code = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        for (size_t i = 0; i < count && !code; i++) {
            int id = desc[i].location.id, of = r->device;
            if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                code = CUDA_ERROR_INVALID_VALUE;
            else if (!is_device(id) || (id != of && !si_devices[id].can_reach[of]))
                code = CUDA_ERROR_INVALID_DEVICE;
            else if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
                     desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                code = CUDA_ERROR_NOT_SUPPORTED; /* reading alone has no use here */
        }
        /* realm#155, legion#1860 */
        if (!code && peers_in(access_by(r->access, desc, count), r->device) > si_config.max_peers)
            code = CUDA_ERROR_TOO_MANY_PEERS;
        if (!code && r->physical->rdma && si_rdma() == RDMA_FAILS_AT_ACCESS)
            code = CUDA_ERROR_UNKNOWN;
        if (code)
            break;
    }
    for (range *r; !code && left < size; left += r->size) {
        r = si_range_starting((char *)(uintptr_t)at + left);
        r->access = access_by(r->access, desc, count);
        if (mprotect(r->memory, r->size, r->access ? PROT_READ | PROT_WRITE : PROT_NONE))
            si_fail_test("cuMemSetAccess: the system refuses");
    }
    unlock();
    return (CUresult)code;
}

CUresult si_cuMemGetAccess(unsigned long long *out, const CUmemLocation *location, CUdeviceptr at) {
    ENTER_DRIVER(cuMemGetAccess);
    if (!out || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(location->id))
        return CUDA_ERROR_INVALID_DEVICE;
    lock();
    range *r = si_range_touching((uintptr_t)at, 1);
    int known = r && r->space;
    if (known)
        *out = r->access >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- pools ---- */

typedef struct block {
    struct block *next;
    pool *of;
    /* it stays while the pool has the block; `freeing` while nobody has it */
    range *r;
    op *freed;                 /* its last free, until that is over */
    unsigned long long stream; /* in which that was */
} block;

struct pool {
    int index;
    cudaMemPool_t handle;
    block *blocks;
    uint64_t threshold, reserved, used, reserved_high, used_high;
    int follow, opportunistic, internal;
    unsigned access;
};

static pool pools[MAX_DEVICES];

int si_pool_reaches(const pool *p, int index) {
    return (int)(p->access >> index & 1);
}

int si_pool_is_shared(const pool *p) {
    return peers_in(p->access, p->index) > 0;
}

static pool *pool_of(int index) {
    pool *p = &pools[index];
    if (p->handle)
        return p;
    *p = (pool){
        .index = index, .follow = 1, .opportunistic = 1, .internal = 1, .access = 1u << index
    };
    p->handle = si_new_handle(H_POOL, p);
    return p;
}

static int is_free(const block *b) {
    return b->r->freeing && !b->freed;
}

/* Gives free blocks back to the device while more than so many bytes are reserved; it may end
   below. */
static void shrink(pool *p, uint64_t keep, int below) {
    for (block **at = &p->blocks, *b; (b = *at) && p->reserved > keep;) {
        if (!is_free(b) || (!below && p->reserved - b->r->size < keep)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        p->reserved -= b->r->size;
        si_free_device_range(b->r);
        free(b);
    }
}

/* "the allocator will try to release memory back to the OS on the next call to stream, event or
   context synchronize" */
void si_pool_settle(int index) {
    if (pools[index].handle)
        shrink(&pools[index], pools[index].threshold, 1);
}

static void give_back(block *b) {
    b->of->used -= b->r->size;
}

void si_pool_freed(op *o) {
    block *b = o->u.block;
    for (int i = 0; i < si_config.devices && b->r->uses; i++)
        for (op *other = si_devices[i].first; other; other = other->next)
            for (size_t k = 0; k < other->use_count; k++)
                if (other->uses[k] == b->r && other->number < o->number && !sticky(i) &&
                    !sticky(o->device))
                    si_fail_test("cudaFreeAsync: %p is in use by earlier work on device %d when "
                                 "the stream comes to the free",
                                 (void *)b->r->start, i);
    give_back(b);
    if (b->freed != o)
        return;
    si_unref(o);
    b->freed = NULL;
}

static block *block_of(const range *r) {
    block *b = r->pool->blocks;
    while (b->r != r)
        b = b->next;
    return b;
}

void si_pool_take_back(range *r) {
    block *b = block_of(r);
    if (b->freed)
        si_unref(b->freed);
    b->freed = NULL;
    give_back(b);
}

/* A block to give out again in the stream; NULL: none. */
static block *reusable(pool *p, const stream *s, size_t size) {
    block *best = NULL;
    for (block *b = p->blocks; b; b = b->next) {
        int mine = b->stream == s->id;
        if (!b->r->freeing || b->r->size < size || b->r->size > 2 * size + 65536)
            continue;
        if (!mine && !(b->freed ? p->internal : p->opportunistic))
            continue;
        if (!best || b->r->size < best->r->size)
            best = b;
    }
    return best;
}

static block *fresh(pool *p, size_t size) {
    device *d = &si_devices[p->index];
    range *r = si_allocate_on(d, size);
    if (!r) {
        shrink(p, 0, 1);
        r = si_allocate_on(d, size);
    }
    if (!r)
        return NULL;
    block *b = si_allocate(sizeof *b);
    *b = (block){ p->blocks, p, r, NULL, 0 };
    p->blocks = b;
    r->pool = p;
    p->reserved += r->size;
    if (p->reserved > p->reserved_high)
        p->reserved_high = p->reserved;
    return b;
}

cudaError_t si_malloc_async(void **out, size_t size, cudaStream_t handle) {
    ENTER(cudaMallocAsync);
    si_bind();
    if (!out || !size)
        return result(cudaErrorInvalidValue);
    if (size > SIZE_MAX / 4)
        return result(cudaErrorMemoryAllocation);
    size = si_round_up(size, 512);
    lock();
    stream *s = si_stream_of("cudaMallocAsync", handle);
    int code = sticky(s->device);
    if (!code && !si_supports(s->device, cudaDevAttrMemoryPoolsSupported))
        code = cudaErrorNotSupported;
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && s->capture)
        si_fail_test(
            "cudaMallocAsync: the stream captures, and nodes that allocate are not known here");
    if (!code)
        code = si_capture_unsafe(); /* H200, driver 580 (docs/gpu, P11); so are all below */
    if (!code) {
        pool *p = pool_of(s->device);
        block *b = reusable(p, s, size);
        op *before = b ? b->freed : NULL;
        if (!b)
            b = fresh(p, size);
        if (b) {
            si_submit(si_new_op(OP_MARK, s, s->device), before);
            if (b->freed)
                si_unref(b->freed);
            b->freed = NULL;
            b->r->freeing = 0;
            p->used += b->r->size;
            if (p->used > p->used_high)
                p->used_high = p->used;
            *out = (void *)b->r->start;
        } else {
            code = cudaErrorMemoryAllocation;
        }
    }
    unlock();
    return result(code);
}

cudaError_t si_free_async(void *pointer, cudaStream_t handle) {
    ENTER(cudaFreeAsync);
    si_bind();
    lock();
    range *r = si_range_starting(pointer);
    stream *s = si_stream_of("cudaFreeAsync", handle);
    int not_now = !r || !r->pool ? (int)cudaErrorInvalidValue : si_capture_enqueue(s);
    if (!not_now && s->capture)
        si_fail_test("cudaFreeAsync: the stream captures, and nodes that free are not known here");
    if (!not_now)
        not_now = si_capture_unsafe();
    if (not_now) {
        unlock();
        return result(not_now);
    }
    if (r->freeing)
        si_fail_test("cudaFreeAsync: %p is freed already", pointer);
    int code = sticky(s->device);
    block *b = block_of(r);
    op *o = si_new_op(OP_FREE, s, s->device);
    o->u.block = b;
    o->refs++;
    r->freeing = 1;
    b->freed = o;
    b->stream = s->id;
    si_submit(o, NULL);
    unlock();
    return result(code);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int index) {
    ENTER(cudaDeviceGetDefaultMemPool);
    if (!is_device(index))
        return result(cudaErrorInvalidDevice);
    if (!out)
        return result(cudaErrorInvalidValue);
    if (!si_supports(index, cudaDevAttrMemoryPoolsSupported))
        return result(cudaErrorNotSupported);
    lock();
    *out = pool_of(index)->handle;
    unlock();
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr which, void *value) {
    int flag = 0, code = 0;
    uint64_t number = 0;
    ENTER(cudaMemPoolSetAttribute);
    if (!value)
        return result(cudaErrorInvalidValue);
    code = si_unsafe();
    if (code)
        return result(code);
    lock();
    pool *p = si_object_of("cudaMemPoolSetAttribute", H_POOL, handle);
    if ((int)which <= (int)cudaMemPoolReuseAllowInternalDependencies)
        memcpy(&flag, value, sizeof flag);
    else
        memcpy(&number, value, sizeof number);
    switch ((int)which) {
    case cudaMemPoolReuseFollowEventDependencies:
        p->follow = flag;
        break;
    case cudaMemPoolReuseAllowOpportunistic:
        p->opportunistic = flag;
        break;
    case cudaMemPoolReuseAllowInternalDependencies:
        p->internal = flag;
        break;
    case cudaMemPoolAttrReleaseThreshold:
        p->threshold = number;
        break;
    case cudaMemPoolAttrReservedMemHigh:
        if (number)
            code = cudaErrorInvalidValue;
        else
            p->reserved_high = p->reserved;
        break;
    case cudaMemPoolAttrUsedMemHigh:
        if (number)
            code = cudaErrorInvalidValue;
        else
            p->used_high = p->used;
        break;
    default:
        code = cudaErrorInvalidValue;
    }
    unlock();
    return result(code);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr which, void *value) {
    int flag = 0, code = 0;
    uint64_t number = 0;
    ENTER(cudaMemPoolGetAttribute);
    if (!value)
        return result(cudaErrorInvalidValue);
    code = si_unsafe();
    if (code)
        return result(code);
    lock();
    const pool *p = si_object_of("cudaMemPoolGetAttribute", H_POOL, handle);
    switch ((int)which) {
    case cudaMemPoolReuseFollowEventDependencies:
        flag = p->follow;
        break;
    case cudaMemPoolReuseAllowOpportunistic:
        flag = p->opportunistic;
        break;
    case cudaMemPoolReuseAllowInternalDependencies:
        flag = p->internal;
        break;
    case cudaMemPoolAttrReleaseThreshold:
        number = p->threshold;
        break;
    case cudaMemPoolAttrReservedMemCurrent:
        number = p->reserved;
        break;
    case cudaMemPoolAttrReservedMemHigh:
        number = p->reserved_high;
        break;
    case cudaMemPoolAttrUsedMemCurrent:
        number = p->used;
        break;
    case cudaMemPoolAttrUsedMemHigh:
        number = p->used_high;
        break;
    default:
        code = cudaErrorInvalidValue;
    }
    unlock();
    if (code)
        return result(code);
    if ((int)which <= (int)cudaMemPoolReuseAllowInternalDependencies)
        memcpy(value, &flag, sizeof flag);
    else
        memcpy(value, &number, sizeof number);
    return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
    ENTER(cudaMemPoolTrimTo);
    int code = si_unsafe();
    if (code)
        return result(code);
    lock();
    shrink(si_object_of("cudaMemPoolTrimTo", H_POOL, handle), keep, 0);
    unlock();
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const struct cudaMemAccessDesc *desc,
                                 size_t count) {
    int code = 0;
    ENTER(cudaMemPoolSetAccess);
    if (!desc || !count)
        return result(cudaErrorInvalidValue);
    lock();
    pool *p = si_object_of("cudaMemPoolSetAccess", H_POOL, handle);
    for (size_t i = 0; i < count && !code; i++) {
        int id = desc[i].location.id, on = desc[i].flags == cudaMemAccessFlagsProtReadWrite;
        if (desc[i].location.type != cudaMemLocationTypeDevice)
            code = cudaErrorInvalidValue;
        else if (!on && desc[i].flags != cudaMemAccessFlagsProtNone)
            code = cudaErrorInvalidValue;
        else if (!is_device(id) || (id != p->index && !si_devices[id].can_reach[p->index]))
            code = cudaErrorInvalidDevice;
        else if (id == p->index && !on)
            code = cudaErrorInvalidValue; /* the owner's access stays */
    }
    unsigned access = p->access;
    for (size_t i = 0; i < count && !code; i++) {
        unsigned bit = 1u << desc[i].location.id;
        access = desc[i].flags ? access | bit : access & ~bit;
    }
    if (!code && peers_in(access, p->index) > si_config.max_peers)
        code = cudaErrorTooManyPeers;
    if (!code)
        p->access = access;
    unlock();
    return result(code);
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *out, cudaMemPool_t handle,
                                 struct cudaMemLocation *location) {
    ENTER(cudaMemPoolGetAccess);
    if (!out || !location || location->type != cudaMemLocationTypeDevice ||
        !is_device(location->id))
        return result(cudaErrorInvalidValue);
    lock();
    const pool *p = si_object_of("cudaMemPoolGetAccess", H_POOL, handle);
    *out = si_pool_reaches(p, location->id) ? cudaMemAccessFlagsProtReadWrite
                                            : cudaMemAccessFlagsProtNone;
    unlock();
    return cudaSuccess;
}

/* ---- control ---- */

void si_memory_counts(size_t *reservations, size_t *handles, size_t *allocations) {
    *reservations = *allocations = 0;
    *handles = live_handles;
    for (space *s = spaces; s; s = s->next)
        ++*reservations;
    for (int i = 0; i < MAX_DEVICES; i++)
        for (block *b = pools[i].blocks; b; b = b->next)
            *allocations += !is_free(b);
}
