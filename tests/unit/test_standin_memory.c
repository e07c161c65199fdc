/* The stand-in's virtual memory and memory pools keep CUDA's rules: plain calls, and what the
   stand-in has to answer.

   Each test runs in a process of its own; some must end in abort() with a certain line.
   `test_standin_memory NAME` runs one test in this process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_headers.h"
#include "standin/standin.h"

#define OK(call) assert_int_equal((int)(call), 0)
#define CODE(code, call) assert_int_equal((int)(call), (int)(code))
#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)

/* ---- what the tests use ---- */

static const char ptx[] =
    ".version 5.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry store(.param .u64 store_0, .param .u32 store_1)\n"
    "{ .reg .b32 %r<2>; .reg .b64 %rd<3>;\n"
    "ld.param.u64 %rd1, [store_0]; cvta.to.global.u64 %rd2, %rd1; ld.param.u32 %r1, [store_1];\n"
    "st.global.u32 [%rd2], %r1; ret; }\n";

static CUresult (*load_data)(CUmodule *, const void *);
static CUresult (*get_function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, CUstream, void **, void **);
static CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice);
static CUresult (*device_get)(CUdevice *, int);
static CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                               CUmemAllocationGranularity_flags);
static CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
static CUresult (*address_free)(CUdeviceptr, size_t);
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                          unsigned long long);
static CUresult (*release)(CUmemGenericAllocationHandle);
static CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                       unsigned long long);
static CUresult (*unmap)(CUdeviceptr, size_t);
static CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
static CUresult (*get_access)(unsigned long long *, const CUmemLocation *, CUdeviceptr);

static void entry_point(const char *name, void *out) {
    void *function = NULL;
#if CUDART_VERSION >= 12050
    OK(cudaGetDriverEntryPointByVersion(name, &function, 11080, cudaEnableDefault, NULL));
#elif CUDART_VERSION >= 12000
    OK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, NULL));
#else
    OK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault));
#endif
    assert_non_null(function);
    memcpy(out, &function, sizeof function);
}

static void driver(void) {
    entry_point("cuModuleLoadData", &load_data);
    entry_point("cuModuleGetFunction", &get_function);
    entry_point("cuLaunchKernel", &launch_kernel);
    entry_point("cuDeviceGetAttribute", &get_attribute);
    entry_point("cuDeviceGet", &device_get);
    entry_point("cuMemGetAllocationGranularity", &granularity);
    entry_point("cuMemAddressReserve", &reserve);
    entry_point("cuMemAddressFree", &address_free);
    entry_point("cuMemCreate", &create);
    entry_point("cuMemRelease", &release);
    entry_point("cuMemMap", &map);
    entry_point("cuMemUnmap", &unmap);
    entry_point("cuMemSetAccess", &set_access);
    entry_point("cuMemGetAccess", &get_access);
}

static CUmemAllocationProp on_device(int device) {
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

static CUdeviceptr reserved(size_t size) {
    CUdeviceptr at = 0;
    OK(reserve(&at, size, PAGE, 0, 0));
    return at;
}

static CUmemGenericAllocationHandle memory(int device, size_t size) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp p = on_device(device);
    OK(create(&handle, size, &p, 0));
    return handle;
}

static CUresult allow(CUdeviceptr at, size_t size, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc desc = { { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device }, flags };
    return set_access(at, size, &desc, 1);
}

/* Fresh memory of the device that goes when it is unmapped. */
static void mapped(CUdeviceptr at, size_t size, int device) {
    CUmemGenericAllocationHandle handle = memory(device, size);
    OK(map(at, size, 0, handle, 0));
    OK(release(handle));
    OK(allow(at, size, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static void *pointer(CUdeviceptr at) {
    return (void *)(uintptr_t)at;
}

static size_t used(void) {
    size_t unused = 0, total = 0;
    OK(cudaMemGetInfo(&unused, &total));
    return total - unused;
}

static unsigned char byte_at(CUdeviceptr at) {
    unsigned char byte = 0;
    OK(cudaMemcpy(&byte, pointer(at), 1, cudaMemcpyDeviceToHost));
    return byte;
}

static cudaStream_t new_stream(void) {
    cudaStream_t s = NULL;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static CUresult store(CUdeviceptr at, cudaStream_t s) {
    static CUmodule module;
    CUfunction f = NULL;
    unsigned value = 7;
    void *params[] = { &at, &value };
    if (!module)
        OK(load_data(&module, ptx));
    OK(get_function(&f, module, "store"));
    return launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* ---- reservations ---- */

static void test_a_reservation_has_whole_pages_and_its_alignment(void) {
    CUdeviceptr at = 0;
    CODE(CUDA_ERROR_INVALID_VALUE, reserve(&at, 0, 0, 0, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, reserve(&at, 4097, 0, 0, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, reserve(&at, 4096, 3, 0, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, reserve(&at, 4096, 0, 0, 1));
    CODE(CUDA_ERROR_INVALID_VALUE, reserve(NULL, 4096, 0, 0, 0));
    OK(reserve(&at, 64 * MIB, 0, 0, 0));
    assert_true(at % 4096 == 0 && at % PAGE != 0); /* nothing is promised of more */
    OK(address_free(at, 64 * MIB));
    OK(reserve(&at, (size_t)1 << 40, PAGE, 0, 0));
    assert_true(at % PAGE == 0);
    assert_int_equal(used(), 0);
    OK(address_free(at, (size_t)1 << 40));
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_a_reservation_is_freed_as_a_whole_and_when_it_is_empty(void) {
    char report[200];
    CUdeviceptr at = reserved(4 * PAGE);
    CODE(CUDA_ERROR_INVALID_VALUE, address_free(at, 2 * PAGE));
    CODE(CUDA_ERROR_INVALID_VALUE, address_free(at + PAGE, PAGE));
    mapped(at + PAGE, PAGE, 0);
    CODE(CUDA_ERROR_INVALID_VALUE, address_free(at, 4 * PAGE));
    standin_live(report, sizeof report);
    assert_string_equal(report, "1 reservation, 1 mapping");
    OK(unmap(at + PAGE, PAGE));
    OK(address_free(at, 4 * PAGE));
    CODE(CUDA_ERROR_INVALID_VALUE, address_free(at, 4 * PAGE));
}

/* ---- physical memory ---- */

static void test_memory_comes_in_pages_of_two_mebibytes(void) {
    CUmemAllocationProp p = on_device(0);
    CUmemGenericAllocationHandle handle;
    size_t page = 0;
    OK(granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(page, PAGE);
    CODE(CUDA_ERROR_INVALID_VALUE, create(&handle, PAGE / 2, &p, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, create(&handle, 0, &p, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, create(&handle, PAGE, &p, 1));
    CODE(CUDA_ERROR_INVALID_VALUE, create(&handle, PAGE, NULL, 0));
    p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    CODE(CUDA_ERROR_INVALID_VALUE, create(&handle, PAGE, &p, 0));
    p = on_device(99);
    CODE(CUDA_ERROR_INVALID_DEVICE, create(&handle, PAGE, &p, 0));
    CODE(CUDA_ERROR_INVALID_DEVICE, granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

static void test_memory_stays_until_handle_and_mappings_are_gone(void) {
    CUmemGenericAllocationHandle handle, more = 0;
    CUmemAllocationProp p = on_device(0);
    CUdeviceptr at = reserved(2 * PAGE);
    void *plain;
    OK(cudaMalloc(&plain, PAGE));
    handle = memory(0, 2 * PAGE);
    assert_int_equal(used(), 3 * PAGE);
    CODE(CUDA_ERROR_OUT_OF_MEMORY, create(&more, 6 * PAGE, &p, 0)); /* 16 MiB in all */
    OK(map(at, 2 * PAGE, 0, handle, 0));
    OK(release(handle));
    assert_int_equal(used(), 3 * PAGE);
    CODE(cudaErrorMemoryAllocation, cudaMalloc(&plain, 5 * PAGE + 1));
    OK(unmap(at, 2 * PAGE));
    assert_int_equal(used(), PAGE);
    handle = memory(0, PAGE);
    OK(release(handle));
    assert_int_equal(used(), PAGE);
}

static void test_a_handle_is_released_once(void) {
    CUmemGenericAllocationHandle handle = memory(0, PAGE);
    OK(release(handle));
    release(handle);
}

/* ---- mappings ---- */

static void test_a_mapping_needs_a_free_place_in_a_reservation(void) {
    CUdeviceptr at = reserved(4 * PAGE);
    CUmemGenericAllocationHandle handle = memory(0, 2 * PAGE);
    CODE(CUDA_ERROR_INVALID_VALUE, map(at + 4096, PAGE, 0, handle, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, map(at, 4096, 0, handle, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, map(at, PAGE, PAGE, handle, 0));  /* "currently must be zero" */
    CODE(CUDA_ERROR_INVALID_VALUE, map(at, 3 * PAGE, 0, handle, 0)); /* it has less */
    CODE(CUDA_ERROR_INVALID_VALUE, map(at + 3 * PAGE, 2 * PAGE, 0, handle, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, map((CUdeviceptr)4 << 40, PAGE, 0, handle, 0));
    OK(map(at + PAGE, 2 * PAGE, 0, handle, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, map(at + 2 * PAGE, 2 * PAGE, 0, handle, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, map(at, 2 * PAGE, 0, handle, 0));
}

static void test_mapped_memory_cannot_be_touched_before_access_is_set(void) {
    CUdeviceptr at = reserved(PAGE);
    CUmemGenericAllocationHandle handle = memory(0, PAGE);
    unsigned long long flags = 77;
    CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 };
    OK(map(at, PAGE, 0, handle, 0));
    OK(get_access(&flags, &here, at));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CODE(cudaErrorInvalidValue, cudaMemset(pointer(at), 1, 4));
    CODE(cudaErrorInvalidValue, cudaMemcpyPeerAsync(pointer(at), 0, pointer(at + 64), 0, 4, NULL));
    OK(allow(at, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(get_access(&flags, &here, at + 5));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(byte_at(at), 0xa5); /* fresh memory is not zero */
    OK(cudaMemset(pointer(at), 1, 4));
    assert_int_equal(byte_at(at), 1);
    OK(allow(at, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    CODE(cudaErrorInvalidValue, cudaMemset(pointer(at), 1, 4));
    CODE(CUDA_ERROR_INVALID_VALUE, get_access(&flags, &here, at + PAGE));
}

static void test_a_kernel_that_touches_memory_without_access_fails(void) {
    CUdeviceptr at = reserved(2 * PAGE);
    OK(cudaFree(NULL));
    mapped(at, PAGE, 0);
    OK(store(at, NULL));
    OK(cudaDeviceSynchronize());
    assert_int_equal(byte_at(at), 7);
    OK(store(at + PAGE, NULL)); /* nothing is there */
    CODE(cudaErrorIllegalAddress, cudaDeviceSynchronize());
}

static void test_access_is_set_for_whole_mappings_of_reachable_devices(void) {
    CUdeviceptr at = reserved(4 * PAGE);
    CUmemAccessDesc both[2] = {
        { { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
        { { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
    };
    mapped(at, 2 * PAGE, 0);
    CODE(CUDA_ERROR_INVALID_VALUE, allow(at, PAGE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CODE(CUDA_ERROR_INVALID_VALUE, allow(at, 3 * PAGE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    /* it does not reach it */
    CODE(CUDA_ERROR_INVALID_DEVICE, allow(at, 2 * PAGE, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CODE(CUDA_ERROR_INVALID_DEVICE, allow(at, 2 * PAGE, 9, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    mapped(at + 2 * PAGE, PAGE, 0);
    OK(set_access(at, 3 * PAGE, both, 2));
    assert_int_equal(standin_contexts() & 2, 0); /* it makes no context */
    OK(cudaSetDevice(1));
    OK(cudaMemset(pointer(at + 2 * PAGE), 5, 4)); /* without cudaDeviceEnablePeerAccess */
    assert_int_equal(byte_at(at + 2 * PAGE), 5);
    OK(cudaSetDevice(2));
    CODE(cudaErrorInvalidValue, cudaMemset(pointer(at), 5, 4));
}

static void test_peer_access_does_not_hold_for_mappings(void) {
    CUdeviceptr at = reserved(PAGE);
    mapped(at, PAGE, 0);
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    CODE(cudaErrorInvalidValue, cudaMemset(pointer(at), 5, 4));
}

static void test_a_mapping_is_unmapped_as_a_whole_and_alone(void) {
    CUdeviceptr at = reserved(4 * PAGE);
    mapped(at, 2 * PAGE, 0);
    mapped(at + 2 * PAGE, PAGE, 0);
    CODE(CUDA_ERROR_INVALID_VALUE, unmap(at, PAGE));
    CODE(CUDA_ERROR_INVALID_VALUE, unmap(at + PAGE, PAGE));
    CODE(CUDA_ERROR_INVALID_VALUE, unmap(at, 3 * PAGE));
    CODE(CUDA_ERROR_INVALID_VALUE, unmap(at + 3 * PAGE, PAGE));
    OK(unmap(at, 2 * PAGE));
    OK(unmap(at + 2 * PAGE, PAGE));
    assert_int_equal(used(), 0);
    CODE(cudaErrorInvalidValue,
         cudaMemcpyPeerAsync(pointer(at), 0, pointer(at + PAGE), 0, 4, NULL));
}

static void test_memory_keeps_its_bytes_wherever_it_is_mapped(void) {
    CUdeviceptr at = reserved(4 * PAGE);
    CUmemGenericAllocationHandle handle = memory(0, PAGE);
    OK(map(at, PAGE, 0, handle, 0));
    OK(map(at + 2 * PAGE, PAGE, 0, handle, 0));
    OK(allow(at, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(allow(at + 2 * PAGE, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cudaMemset(pointer(at + 9), 42, 1));
    OK(cudaDeviceSynchronize());
    assert_int_equal(byte_at(at + 2 * PAGE + 9), 42);
    OK(unmap(at, PAGE));
    OK(unmap(at + 2 * PAGE, PAGE));
    OK(map(at + 3 * PAGE, PAGE, 0, handle, 0));
    OK(allow(at + 3 * PAGE, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    assert_int_equal(byte_at(at + 3 * PAGE + 9), 42);
}

static void test_mappings_side_by_side_are_one_memory(void) {
    CUdeviceptr at = reserved(5 * PAGE), other = reserved(PAGE);
    char *text = malloc(3 * PAGE), *back = malloc(3 * PAGE);
    for (size_t i = 0; i < 3 * PAGE; i++)
        text[i] = (char)(i % 251);
    mapped(other, PAGE, 0);
    mapped(at, PAGE, 0);
    mapped(at + PAGE, 2 * PAGE, 0);
    mapped(at + 4 * PAGE, PAGE, 0);
    OK(cudaMemcpy(pointer(at), text, 3 * PAGE, cudaMemcpyHostToDevice));
    OK(cudaMemset(pointer(at + PAGE - 8), 0, 16));
    memset(text + PAGE - 8, 0, 16);
    OK(cudaMemcpy(back, pointer(at), 3 * PAGE, cudaMemcpyDeviceToHost));
    assert_memory_equal(text, back, 3 * PAGE);
    /* a gap */
    CODE(cudaErrorInvalidValue,
         cudaMemcpy(back, pointer(at), 3 * PAGE + 1, cudaMemcpyDeviceToHost));
    CODE(cudaErrorInvalidValue,
         cudaMemcpy(back, pointer(at + 4 * PAGE), PAGE + 1, cudaMemcpyDeviceToHost));
    OK(unmap(at, PAGE));
    OK(cudaMemcpy(back, pointer(at + PAGE), 2 * PAGE, cudaMemcpyDeviceToHost));
    assert_memory_equal(text + PAGE, back, 2 * PAGE);
    mapped(at, PAGE, 0);
    assert_int_equal(byte_at(at + 1), 0xa5);
    free(text);
    free(back);
}

static void test_a_copy_over_two_mappings_uses_both(void) {
    CUdeviceptr at = reserved(2 * PAGE);
    cudaStream_t s = new_stream();
    mapped(at, PAGE, 0);
    mapped(at + PAGE, PAGE, 0);
    standin_hold(1);
    OK(cudaMemsetAsync(pointer(at), 1, 2 * PAGE, s));
    unmap(at + PAGE, PAGE);
}

static void test_memory_is_not_unmapped_under_a_kernel(void) {
    CUdeviceptr at = reserved(PAGE);
    cudaStream_t s = new_stream();
    OK(cudaFree(NULL));
    mapped(at, PAGE, 0);
    standin_hold(1);
    OK(store(at + 64, s));
    unmap(at, PAGE);
}

static void test_work_elsewhere_in_the_reservation_does_not_hinder(void) {
    CUdeviceptr at = reserved(2 * PAGE);
    cudaStream_t s = new_stream();
    mapped(at, PAGE, 0);
    mapped(at + PAGE, PAGE, 0);
    standin_hold(1);
    OK(cudaMemsetAsync(pointer(at), 1, PAGE, s));
    OK(unmap(at + PAGE, PAGE));
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    assert_int_equal(byte_at(at + PAGE - 1), 1);
}

static void test_a_mapping_cannot_be_freed(void) {
    CUdeviceptr at = reserved(PAGE);
    mapped(at, PAGE, 0);
    cudaFree(pointer(at));
}

static void test_a_capture_forbids_such_calls_unless_relaxed(void) {
    cudaStream_t s = new_stream();
    CUdeviceptr at = reserved(2 * PAGE), more = 0;
    CUmemAllocationProp p = on_device(0);
    CUmemGenericAllocationHandle handle = memory(0, PAGE), fresh;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    for (int i = 0; i < 7; i++) {
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        CODE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
             i == 0   ? reserve(&more, PAGE, 0, 0, 0)
             : i == 1 ? create(&fresh, PAGE, &p, 0)
             : i == 2 ? map(at, PAGE, 0, handle, 0)
             : i == 3 ? allow(at, PAGE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
             : i == 4 ? unmap(at, PAGE)
             : i == 5 ? release(handle)
                      : address_free(at, 2 * PAGE));
        CODE(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(s, &graph));
    }
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    mapped(at, PAGE, 0);
    OK(unmap(at, PAGE));
    OK(address_free(at, 2 * PAGE));
    OK(release(handle));
    OK(cudaStreamIsCapturing(s, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphDestroy(graph));
}

static void test_a_device_may_have_no_virtual_memory(void) {
    CUmemAllocationProp p = on_device(1);
    CUmemGenericAllocationHandle handle;
    size_t page;
    int has = 77;
    CUdevice one = -1;
    OK(device_get(&one, 1));
    OK(get_attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, one));
    assert_int_equal(has, 1);
    standin_virtual_memory(1, 0);
    OK(get_attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, one));
    assert_int_equal(has, 0);
    CODE(CUDA_ERROR_NOT_SUPPORTED, granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CODE(CUDA_ERROR_NOT_SUPPORTED, create(&handle, PAGE, &p, 0));
    OK(release(memory(0, PAGE)));
    standin_virtual_memory(1, 1);
    OK(release(memory(1, PAGE)));
    CODE(CUDA_ERROR_INVALID_DEVICE, get_attribute(&has, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
    CODE(CUDA_ERROR_INVALID_VALUE, get_attribute(&has, (CUdevice_attribute)0, one));
    /* a device is a handle, and not its number */
    CODE(CUDA_ERROR_INVALID_DEVICE, get_attribute(&has, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1));
    CODE(CUDA_ERROR_INVALID_DEVICE, device_get(&one, 99));
}

static void test_what_ends_memory_does_so_although_it_fails(void) {
    CUdeviceptr at = reserved(PAGE);
    CUmemGenericAllocationHandle handle = memory(0, PAGE), fresh;
    CUmemAllocationProp p = on_device(0);
    OK(map(at, PAGE, 0, handle, 0));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    CODE(CUDA_ERROR_UNKNOWN, create(&fresh, PAGE, &p, 0));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    CODE(CUDA_ERROR_UNKNOWN, unmap(at, PAGE));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    CODE(CUDA_ERROR_UNKNOWN, release(handle));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    CODE(CUDA_ERROR_UNKNOWN, address_free(at, PAGE));
    assert_int_equal(standin_live(NULL, 0), 0);
    assert_int_equal(used(), 0);
}

/* ---- pools ---- */

static cudaMemPool_t pool_of(int device) {
    cudaMemPool_t p = NULL;
    OK(cudaDeviceGetDefaultMemPool(&p, device));
    return p;
}

static uint64_t pool_has(enum cudaMemPoolAttr which) {
    uint64_t value = 77;
    OK(cudaMemPoolGetAttribute(pool_of(0), which, &value));
    return value;
}

static void keep(uint64_t bytes) {
    OK(cudaMemPoolSetAttribute(pool_of(0), cudaMemPoolAttrReleaseThreshold, &bytes));
}

static void policy(enum cudaMemPoolAttr which, int on) {
    OK(cudaMemPoolSetAttribute(pool_of(0), which, &on));
}

static void *take(size_t size, cudaStream_t s) {
    void *p = NULL;
    OK(cudaMallocAsync(&p, size, s));
    return p;
}

static void test_a_pool_gives_memory_to_a_stream_and_takes_it_back(void) {
    cudaStream_t s = new_stream();
    unsigned char bytes[4];
    void *p = take(1000, s), *q = NULL;
    CODE(cudaErrorInvalidValue, cudaMallocAsync(&q, 0, s));
    CODE(cudaErrorInvalidValue, cudaMallocAsync(NULL, 4, s));
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemCurrent), 1024);
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemCurrent), 1024);
    OK(cudaMemsetAsync(p, 3, 4, s));
    OK(cudaMemcpyAsync(bytes, p, 4, cudaMemcpyDeviceToHost, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    assert_int_equal(bytes[3], 3);
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemCurrent), 0); /* the threshold is 0 */
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemHigh), 1024);
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemHigh), 1024);
    assert_int_equal(used(), 0);
}

static void test_a_pool_keeps_what_its_threshold_allows(void) {
    cudaStream_t s = new_stream();
    keep(UINT64_MAX);
    void *p = take(1000, s), *q = take(3000, s);
    OK(cudaFreeAsync(p, s));
    OK(cudaFreeAsync(q, s));
    OK(cudaStreamSynchronize(s));
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemCurrent), 0);
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemCurrent), 4096);
    assert_int_equal(used(), 4096);
    assert_int_equal(standin_live(NULL, 0), 1); /* the stream */
    assert_ptr_equal(take(2500, s), q);
    OK(cudaMemPoolTrimTo(pool_of(0), 4096)); /* at least so many are left */
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemCurrent), 4096);
    OK(cudaMemPoolTrimTo(pool_of(0), 0));
    assert_int_equal(pool_has(cudaMemPoolAttrReservedMemCurrent), 3072);
    OK(cudaFreeAsync(q, s));
    keep(0);
    OK(cudaDeviceSynchronize());
    assert_int_equal(used(), 0);
}

static void test_memory_about_to_be_free_is_reused_in_its_stream(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    keep(UINT64_MAX);
    void *p = take(4096, s);
    standin_hold(1);
    OK(cudaMemsetAsync(p, 1, 4096, s));
    OK(cudaFreeAsync(p, s));
    policy(cudaMemPoolReuseAllowInternalDependencies, 0);
    void *other = take(4096, t);
    assert_ptr_not_equal(other, p);
    void *again = take(4096, s);
    assert_ptr_equal(again, p);
    OK(cudaMemsetAsync(again, 2, 4096, s));
    OK(cudaFreeAsync(again, s));
    policy(cudaMemPoolReuseAllowInternalDependencies, 1);
    assert_ptr_equal(take(4096, t), p); /* behind a wait for the free */
    OK(cudaMemsetAsync(p, 3, 4096, t));
    standin_hold(0);
    OK(cudaStreamSynchronize(t));
    CODE(cudaSuccess, cudaStreamQuery(s)); /* so it has waited */
    assert_int_equal(byte_at((CUdeviceptr)(uintptr_t)p), 3);
}

static void test_free_memory_goes_to_another_stream_if_that_is_allowed(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    keep(UINT64_MAX);
    void *p = take(4096, s);
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    policy(cudaMemPoolReuseAllowOpportunistic, 0);
    void *q = take(4096, t);
    assert_ptr_not_equal(q, p);
    policy(cudaMemPoolReuseAllowOpportunistic, 1);
    assert_ptr_equal(take(4096, t), p);
}

static void test_only_memory_of_pools_is_freed_in_a_stream(void) {
    void *p;
    OK(cudaMalloc(&p, 4096));
    CODE(cudaErrorInvalidValue, cudaFreeAsync(p, NULL));
    CODE(cudaErrorInvalidValue, cudaFreeAsync(NULL, NULL));
    OK(cudaFree(p));
}

static void test_memory_of_a_pool_is_freed_once(void) {
    void *p = take(4096, NULL);
    OK(cudaFreeAsync(p, NULL));
    cudaFreeAsync(p, NULL);
}

static void test_memory_of_a_pool_is_not_used_after_its_free(void) {
    cudaStream_t s = new_stream();
    keep(UINT64_MAX);
    void *p = take(4096, s);
    OK(cudaFreeAsync(p, s));
    cudaMemsetAsync(p, 1, 4, s);
}

static void CUDART_CB stay(void *unused) {
    (void)unused;
    for (;;)
        nanosleep(&(struct timespec){ 1, 0 }, NULL);
}

static void test_a_pools_memory_is_not_freed_under_another_streams_work(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    void *p = take(4096, s);
    OK(cudaLaunchHostFunc(t, stay, NULL));
    OK(cudaMemsetAsync(p, 1, 4, t));
    cudaFreeAsync(p, s);
}

static void test_a_plain_free_takes_memory_of_a_pool_and_does_not_wait(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    void *p = take(4096, s);
    OK(cudaStreamSynchronize(s));
    standin_hold(1);
    void *q = take(64, t);
    OK(cudaMemsetAsync(q, 1, 4, t));
    OK(cudaFree(p));
    standin_hold(0);
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemCurrent), 512);
}

static void test_a_pool_decides_who_reaches_its_memory(void) {
    enum cudaMemAccessFlags flags;
    struct cudaMemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location.type = cudaMemLocationTypeDevice;
    desc.location.id = 1;
    desc.flags = cudaMemAccessFlagsProtReadWrite;
    void *p = take(4096, NULL);
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    CODE(cudaErrorInvalidValue, cudaMemset(p, 5, 4));
    OK(cudaMemPoolSetAccess(pool_of(0), &desc, 1));
    OK(cudaMemPoolGetAccess(&flags, pool_of(0), &desc.location));
    assert_int_equal(flags, cudaMemAccessFlagsProtReadWrite);
    OK(cudaMemset(p, 5, 4));
    OK(cudaDeviceSynchronize());
    desc.location.id = 2; /* which reaches nobody */
    CODE(cudaErrorInvalidDevice, cudaMemPoolSetAccess(pool_of(0), &desc, 1));
    desc.location.id = 0;
    desc.flags = cudaMemAccessFlagsProtNone;
    CODE(cudaErrorInvalidValue, cudaMemPoolSetAccess(pool_of(0), &desc, 1));
}

static void test_pools_and_allocations_share_the_device(void) {
    void *p = take(10 * MIB, NULL), *q;
    CODE(cudaErrorMemoryAllocation, cudaMalloc(&q, 7 * MIB)); /* 16 MiB in all */
    CODE(cudaErrorMemoryAllocation, cudaMallocAsync(&q, 7 * MIB, NULL));
    keep(UINT64_MAX);
    OK(cudaFreeAsync(p, NULL));
    OK(cudaStreamSynchronize(NULL));
    /* what is kept is too large for that, but goes when it is in the way */
    OK(cudaMallocAsync(&q, 4 * MIB, NULL));
    OK(cudaMallocAsync(&q, 12 * MIB, NULL));
}

static void test_a_device_may_have_no_pools(void) {
    cudaMemPool_t p;
    int has = 77;
    void *q;
    standin_memory_pools(0, 0);
    OK(cudaDeviceGetAttribute(&has, cudaDevAttrMemoryPoolsSupported, 0));
    assert_int_equal(has, 0);
    CODE(cudaErrorNotSupported, cudaDeviceGetDefaultMemPool(&p, 0));
    CODE(cudaErrorNotSupported, cudaMallocAsync(&q, 4, NULL));
    OK(cudaDeviceGetDefaultMemPool(&p, 1));
}

static void test_attributes_of_a_pool(void) {
    uint64_t high = 1;
    CODE(cudaErrorInvalidValue,
         cudaMemPoolSetAttribute(pool_of(0), cudaMemPoolAttrUsedMemHigh, &high));
    CODE(cudaErrorInvalidValue,
         cudaMemPoolSetAttribute(pool_of(0), cudaMemPoolAttrUsedMemCurrent, &high));
    CODE(cudaErrorInvalidValue,
         cudaMemPoolSetAttribute(pool_of(0), cudaMemPoolAttrReleaseThreshold, NULL));
    void *p = take(4096, NULL);
    OK(cudaFreeAsync(p, NULL));
    OK(cudaStreamSynchronize(NULL));
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemHigh), 4096);
    high = 0;
    OK(cudaMemPoolSetAttribute(pool_of(0), cudaMemPoolAttrUsedMemHigh, &high));
    assert_int_equal(pool_has(cudaMemPoolAttrUsedMemHigh), 0);
    int on = 77;
    OK(cudaMemPoolGetAttribute(pool_of(0), cudaMemPoolReuseFollowEventDependencies, &on));
    assert_int_equal(on, 1);
}

static void test_a_stream_that_captures_gets_no_memory_of_a_pool(void) {
    cudaStream_t s = new_stream();
    void *p;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    cudaMallocAsync(&p, 4, s);
}

/* ---- running them ---- */

typedef struct test {
    const char *name;
    void (*body)(void);
    const char *setting, *line;
} test;

#define ENDS(name) \
    { #name, name, NULL, NULL }
#define WITH(name, setting) \
    { #name, name, setting, NULL }
#define ABORTS(name, line) \
    { #name, name, NULL, line }
static test tests[] = {
    ENDS(test_a_reservation_has_whole_pages_and_its_alignment),
    ENDS(test_a_reservation_is_freed_as_a_whole_and_when_it_is_empty),
    ENDS(test_memory_comes_in_pages_of_two_mebibytes),
    WITH(test_memory_stays_until_handle_and_mappings_are_gone, "STANDIN_MEMORY=16777216"),
    ABORTS(test_a_handle_is_released_once, "is no handle of memory"),
    ENDS(test_a_mapping_needs_a_free_place_in_a_reservation),
    ENDS(test_mapped_memory_cannot_be_touched_before_access_is_set),
    ENDS(test_a_kernel_that_touches_memory_without_access_fails),
    WITH(test_access_is_set_for_whole_mappings_of_reachable_devices,
         "STANDIN_PEERS=0000100000000000"),
    ENDS(test_peer_access_does_not_hold_for_mappings),
    ENDS(test_a_mapping_is_unmapped_as_a_whole_and_alone),
    ENDS(test_memory_keeps_its_bytes_wherever_it_is_mapped),
    ENDS(test_mappings_side_by_side_are_one_memory),
    ABORTS(test_a_copy_over_two_mappings_uses_both, "in use by a pending fill"),
    ABORTS(test_memory_is_not_unmapped_under_a_kernel, "in use by a pending kernel"),
    ENDS(test_work_elsewhere_in_the_reservation_does_not_hinder),
    ABORTS(test_a_mapping_cannot_be_freed, "is not what the matching allocation returned"),
    ENDS(test_a_capture_forbids_such_calls_unless_relaxed),
    ENDS(test_a_device_may_have_no_virtual_memory),
    ENDS(test_what_ends_memory_does_so_although_it_fails),
    ENDS(test_a_pool_gives_memory_to_a_stream_and_takes_it_back),
    ENDS(test_a_pool_keeps_what_its_threshold_allows),
    ENDS(test_memory_about_to_be_free_is_reused_in_its_stream),
    ENDS(test_free_memory_goes_to_another_stream_if_that_is_allowed),
    ENDS(test_only_memory_of_pools_is_freed_in_a_stream),
    ABORTS(test_memory_of_a_pool_is_freed_once, "is freed already"),
    ABORTS(test_memory_of_a_pool_is_not_used_after_its_free, "is freed, or being freed"),
    ABORTS(test_a_pools_memory_is_not_freed_under_another_streams_work,
           "when the stream comes to the free"),
    ENDS(test_a_plain_free_takes_memory_of_a_pool_and_does_not_wait),
    WITH(test_a_pool_decides_who_reaches_its_memory, "STANDIN_PEERS=0000100000000000"),
    WITH(test_pools_and_allocations_share_the_device, "STANDIN_MEMORY=16777216"),
    ENDS(test_a_device_may_have_no_pools),
    ENDS(test_attributes_of_a_pool),
    ABORTS(test_a_stream_that_captures_gets_no_memory_of_a_pool, "the stream captures"),
};

enum { TESTS = sizeof tests / sizeof *tests };

static int spawn(const char *name, char *output, size_t size) {
    int ends[2], status = 0;
    size_t length = 0;
    char rest[512];
    OK(pipe(ends));
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        const char *options = getenv("TSAN_OPTIONS"); /* it sleeps a second before each exit */
        char quick[1000];
        snprintf(quick, sizeof quick, "%s:atexit_sleep_ms=50", options ? options : "");
        setenv("TSAN_OPTIONS", quick, 1);
        execl("/proc/self/exe", "test_standin_memory", name, (char *)NULL);
        _exit(126);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], rest, sizeof rest)) > 0;) {
        size_t room = size - 1 - length, taken = (size_t)n < room ? (size_t)n : room;
        memcpy(output + length, rest, taken);
        length += taken;
    }
    output[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static void run_here(void **state) {
    driver();
    ((const test *)*state)->body();
}

static void run_apart(void **state) {
    const test *t = *state;
    char output[8192];
    int status = spawn(t->name, output, sizeof output);
    if (t->line) {
        int aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        if (!aborted || !strstr(output, t->line))
            fail_msg("should have ended with \"%s\", ended with status %x and: %s", t->line,
                     (unsigned)status, output);
    } else if (status) {
        fail_msg("ended with status %x and: %s", (unsigned)status, output);
    }
}

int main(int argc, char **argv) {
    struct CMUnitTest all[TESTS];
    for (int i = 0; argc == 2 && i < TESTS; i++)
        if (!strcmp(argv[1], tests[i].name)) {
            if (tests[i].setting)
                putenv((char *)(uintptr_t)tests[i].setting);
            alarm(120);
            *all = (struct CMUnitTest){ tests[i].name, run_here, NULL, NULL, &tests[i] };
            return _cmocka_run_group_tests("stand-in", all, 1, NULL, NULL);
        }
    for (int i = 0; i < TESTS; i++)
        all[i] = (struct CMUnitTest){ tests[i].name, run_apart, NULL, NULL, &tests[i] };
    return cmocka_run_group_tests_name("stand-in", all, NULL, NULL);
}
