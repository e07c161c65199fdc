/* The stand-in for cudart keeps CUDA's rules: plain cudart calls, and what the stand-in has to
   answer.

   Each test runs in a process of its own, so that a device that has failed, a setting or a hang
   stays its own. Some must end in abort() with a certain line. `test_standin NAME` runs one test
   in this process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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

/* ---- what the tests use ---- */

#define HEAD ".version 5.0\n.target sm_60\n.address_size 64\n"
static const char ptx[] = HEAD
    ".visible .entry store(.param .u64 store_0, .param .u32 store_1)\n"
    "{ .reg .b32 %r<6>; .reg .b64 %rd<5>;\n"
    "ld.param.u64 %rd1, [store_0]; cvta.to.global.u64 %rd2, %rd1; ld.param.u32 %r1, [store_1];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, "
    "%r4;\n"
    "mul.wide.s32 %rd3, %r5, 4; add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], %r1; ret; }\n"
    ".visible .entry move(.param .u64 move_0, .param .u64 move_1)\n"
    "{ .reg .b32 %r<2>; .reg .b64 %rd<5>;\n"
    "ld.param.u64 %rd1, [move_0]; ld.param.u64 %rd2, [move_1]; cvta.to.global.u64 %rd3, %rd2;\n"
    "cvta.to.global.u64 %rd4, %rd1; ld.global.u32 %r1, [%rd3]; st.global.u32 [%rd4], %r1; ret; }\n"
    ".visible .entry stop()\n"
    "{ trap; ret; }\n"
    ".visible .entry spin(.param .u64 spin_0)\n"
    "{ .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<3>;\n"
    "ld.param.u64 %rd2, [spin_0]; cvta.to.global.u64 %rd1, %rd2;\n"
    "AGAIN: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.s32 %p1, %r1, 0; @%p1 bra AGAIN; ret; }\n";

static CUresult (*load_data)(CUmodule *, const void *);
static CUresult (*load_data_ex)(CUmodule *, const void *, unsigned, CUjit_option *, void **);
static CUresult (*unload)(CUmodule);
static CUresult (*get_function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, CUstream, void **, void **);
static CUresult (*address_range)(CUdeviceptr *, size_t *, CUdeviceptr);
static CUresult (*set_d16)(CUdeviceptr, unsigned short, size_t, CUstream);
static CUresult (*set_2d_d32)(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream);
static CUresult (*stream_query)(CUstream);
static CUresult (*event_query)(CUevent);
static CUresult (*get_current)(CUcontext *);
static CUresult (*set_current)(CUcontext);
static CUresult (*push)(CUcontext);
static CUresult (*pop)(CUcontext *);
static CUresult (*device_get)(CUdevice *, int);
static CUresult (*state_of)(CUdevice, unsigned *, int *);
static CUresult (*attributes)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);

static cudaError_t entry_point(const char *name, void *out, unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult *found) {
    void *function = &function;
    cudaError_t code;
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion(name, &function, 12000, flags, found);
#else
    code = cudaGetDriverEntryPoint(name, &function, flags, found);
#endif
    memcpy(out, &function, sizeof function);
    return code;
}

static void driver(void) {
    OK(entry_point("cuModuleLoadData", &load_data, cudaEnableDefault, NULL));
    OK(entry_point("cuModuleLoadDataEx", &load_data_ex, cudaEnableDefault, NULL));
    OK(entry_point("cuModuleUnload", &unload, cudaEnableDefault, NULL));
    OK(entry_point("cuModuleGetFunction", &get_function, cudaEnableDefault, NULL));
    OK(entry_point("cuLaunchKernel", &launch_kernel, cudaEnableDefault, NULL));
    OK(entry_point("cuMemGetAddressRange", &address_range, cudaEnableDefault, NULL));
    OK(entry_point("cuMemsetD16Async", &set_d16, cudaEnableDefault, NULL));
    OK(entry_point("cuMemsetD2D32Async", &set_2d_d32, cudaEnableDefault, NULL));
    OK(entry_point("cuStreamQuery", &stream_query, cudaEnableDefault, NULL));
    OK(entry_point("cuEventQuery", &event_query, cudaEnableDefault, NULL));
    OK(entry_point("cuCtxGetCurrent", &get_current, cudaEnableDefault, NULL));
    OK(entry_point("cuCtxSetCurrent", &set_current, cudaEnableDefault, NULL));
    OK(entry_point("cuCtxPushCurrent", &push, cudaEnableDefault, NULL));
    OK(entry_point("cuCtxPopCurrent", &pop, cudaEnableDefault, NULL));
    OK(entry_point("cuDeviceGet", &device_get, cudaEnableDefault, NULL));
    OK(entry_point("cuDevicePrimaryCtxGetState", &state_of, cudaEnableDefault, NULL));
    OK(entry_point("cuPointerGetAttributes", &attributes, cudaEnableDefault, NULL));
}

static void *device_memory(size_t size) {
    void *p = NULL;
    OK(cudaMalloc(&p, size));
    return p;
}

static void *pinned(size_t size) {
    void *p = NULL;
    OK(cudaHostAlloc(&p, size, cudaHostAllocPortable));
    return p;
}

static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t s = NULL;
    OK(cudaStreamCreateWithFlags(&s, flags));
    return s;
}

static cudaEvent_t new_event(unsigned flags) {
    cudaEvent_t e = NULL;
    OK(cudaEventCreateWithFlags(&e, flags));
    return e;
}

static CUfunction kernel(CUmodule *module, const char *name) {
    CUfunction f = NULL;
    if (!load_data)
        driver();
    OK(cudaFree(NULL));
    if (!*module)
        OK(load_data(module, ptx));
    OK(get_function(&f, *module, name));
    return f;
}

static CUresult launch(CUfunction f, cudaStream_t s, const void *a, const void *b) {
    void *params[] = { &a, &b };
    return launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

/* A host function that stays inside until the gate is opened. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int open, entered;
} gate;

#define GATE \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 }

static void CUDART_CB pass(void *of) {
    gate *g = of;
    pthread_mutex_lock(&g->lock);
    g->entered++;
    pthread_cond_broadcast(&g->change);
    while (!g->open)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = 1;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}

static void wait_entered(gate *g) {
    pthread_mutex_lock(&g->lock);
    while (!g->entered)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* A call on a thread of its own, to see whether it blocks. */
typedef struct aside {
    int (*call)(void *);
    void *of;
    int result;
    atomic_int over;
    pthread_t thread;
} aside;

static void *run_aside(void *of) {
    aside *a = of;
    a->result = a->call(a->of);
    atomic_store(&a->over, 1);
    return NULL;
}

static void start_aside(aside *a, int (*call)(void *), void *of) {
    a->call = call, a->of = of;
    atomic_init(&a->over, 0);
    OK(pthread_create(&a->thread, NULL, run_aside, a));
}

static int blocks(aside *a) {
    for (int i = 0; i < 10 && !atomic_load(&a->over); i++)
        pause_ms(5);
    return !atomic_load(&a->over);
}

static int result_of(aside *a) {
    OK(pthread_join(a->thread, NULL));
    return a->result;
}

static int elsewhere(int (*call)(void *), void *of) {
    aside a;
    start_aside(&a, call, of);
    return result_of(&a);
}

/* The call blocks while the devices are held, and ends well when they go on. */
static void blocks_until_done(int (*call)(void *), void *of) {
    aside a;
    standin_hold(1);
    start_aside(&a, call, of);
    assert_true(blocks(&a));
    standin_hold(0);
    OK(result_of(&a));
}

/* ---- threads, errors, contexts ---- */

static int last_error_is_clear(void *unused) {
    (void)unused;
    return (int)cudaPeekAtLastError();
}

static void test_a_failing_call_leaves_its_code_until_it_is_taken(void) {
    void *p;
    CODE(cudaErrorInvalidDevice, cudaSetDevice(99));
    OK(cudaMalloc(&p, 1));
    OK(cudaFree(p));
    CODE(cudaErrorInvalidDevice, cudaPeekAtLastError());
    OK(elsewhere(last_error_is_clear, NULL));
    CODE(cudaErrorInvalidDevice, cudaGetLastError());
    OK(cudaGetLastError());
}

static void test_not_ready_is_a_last_error_too(void) {
    cudaEvent_t e = new_event(cudaEventDisableTiming);
    standin_hold(1);
    OK(cudaEventRecord(e, 0));
    CODE(cudaErrorNotReady, cudaEventQuery(e));
    CODE(cudaErrorNotReady, cudaGetLastError());
    CODE(cudaErrorNotReady, cudaStreamQuery(0));
    CODE(cudaErrorNotReady, cudaGetLastError());
    driver();
    CODE(CUDA_ERROR_NOT_READY, event_query(e));
    CODE(CUDA_ERROR_NOT_READY, stream_query(0));
    OK(cudaGetLastError()); /* the driver leaves it alone */
    standin_hold(0);
    OK(cudaEventSynchronize(e));
    OK(event_query(e));
}

static int call_without_context(void *unused) {
    CUmodule module;
    CUcontext now = (CUcontext)&module;
    int value;
    (void)unused;
    OK(cudaGetDevice(&value));
    OK(cudaGetDeviceCount(&value));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    OK(get_current(&now));
    assert_null(now);
    CODE(CUDA_ERROR_INVALID_CONTEXT, load_data(&module, ptx));
    CODE(CUDA_ERROR_INVALID_CONTEXT, address_range(NULL, NULL, 0));
    CODE(CUDA_ERROR_INVALID_CONTEXT, set_d16(0, 0, 0, 0));
    CODE(CUDA_ERROR_INVALID_CONTEXT, stream_query(0));
    OK(cudaFree(NULL));
    OK(get_current(&now));
    assert_non_null(now);
    OK(load_data(&module, ptx));
    OK(unload(module));
    OK(set_current(NULL));
    CODE(CUDA_ERROR_INVALID_CONTEXT, load_data(&module, ptx));
    return 0;
}

static void test_driver_functions_need_a_bound_context(void) {
    driver();
    OK(cudaFree(NULL));
    OK(elsewhere(call_without_context, NULL));
}

static int synchronize(void *s) {
    return (int)cudaStreamSynchronize(s);
}

static int synchronize_event(void *e) {
    return (int)cudaEventSynchronize(e);
}

static void test_only_devices_that_are_used_get_a_context(void) {
    int value;
    char text[16];
    struct cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&value));
    assert_int_equal(value, 4);
    OK(cudaGetDevice(&value));
    OK(cudaDeviceCanAccessPeer(&value, 0, 1));
    OK(cudaGetDeviceProperties(&properties, 3));
    OK(cudaDeviceGetPCIBusId(text, sizeof text, 3));
    assert_string_equal(text, "0000:04:00.0");
    CODE(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(text, 12, 3));
    assert_int_equal(standin_contexts(), 0);
    OK(cudaSetDevice(2));
    assert_int_equal(standin_contexts(), 1 << 2);
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    assert_int_equal(standin_contexts(), 1 << 2);
    OK(elsewhere(synchronize, s)); /* that thread's device is 0 */
    assert_int_equal(standin_contexts(), 1 << 2 | 1);
    OK(cudaStreamDestroy(s));
}

static int has_context(int index) {
    CUdevice handle = -1;
    unsigned flags = 7;
    int active = 7;
    OK(device_get(&handle, index));
    assert_int_not_equal(handle, index);
    OK(state_of(handle, &flags, &active));
    return active;
}

static void test_the_mode_of_a_capture_makes_a_context(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    driver();
    assert_int_equal(has_context(0), 0);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(has_context(0), 1);
    assert_int_equal(has_context(1), 0);
    CODE(CUDA_ERROR_INVALID_DEVICE, state_of(0, &(unsigned){ 0 }, &(int){ 0 }));
    assert_int_equal(standin_contexts(), 1);
}

static void test_a_context_that_is_not_primary_is_current_by_its_device(void) {
    CUcontext mine = standin_context(1), now = NULL;
    int value = -1;
    driver();
    OK(push(mine));
    OK(get_current(&now));
    assert_ptr_equal(now, mine);
    OK(cudaGetDevice(&value));
    assert_int_equal(value, 1);
    CODE(CUDA_ERROR_INVALID_CONTEXT, set_d16(0, 0, 1, NULL));
    OK(pop(&now));
    assert_ptr_equal(now, mine);
    OK(get_current(&now));
    assert_null(now);
    assert_int_equal(standin_contexts(), 0);
}

static void test_the_runtime_in_a_context_that_is_not_primary(void) {
    void *p;
    driver();
    OK(push(standin_context(0)));
    (void)cudaMalloc(&p, 64);
}

static void test_the_driver_describes_a_pointer_in_a_context_only(void) {
    CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS };
    unsigned type = 7;
    int managed = 7, ordinal = 7, access = 7;
    void *out[] = { &type, &managed, &ordinal, &access };
    CUcontext bound = NULL;
    driver();
    CODE(CUDA_ERROR_INVALID_CONTEXT, attributes(4, which, out, (CUdeviceptr)(uintptr_t)&type));
    OK(cudaSetDevice(1));
    void *p = device_memory(64), *h = pinned(64);
    OK(attributes(4, which, out, (CUdeviceptr)(uintptr_t)p));
    assert_true(type == CU_MEMORYTYPE_DEVICE && !managed && ordinal == 1);
    assert_int_equal(access, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    OK(attributes(4, which, out, (CUdeviceptr)(uintptr_t)h));
    assert_true(type == CU_MEMORYTYPE_HOST && ordinal == 1);
    OK(attributes(4, which, out, (CUdeviceptr)(uintptr_t)&type));
    assert_true(type == 0 && access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    OK(cudaSetDevice(0));
    OK(get_current(&bound));
    OK(attributes(4, which, out, (CUdeviceptr)(uintptr_t)p));
    assert_int_equal(access, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE); /* not enabled */
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(attributes(4, which, out, (CUdeviceptr)(uintptr_t)p));
    assert_int_equal(access, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
}

static void test_setting_a_context_changes_the_runtimes_device(void) {
    CUcontext one = NULL;
    int value;
    driver();
    OK(cudaSetDevice(1));
    OK(get_current(&one));
    OK(cudaSetDevice(0));
    OK(set_current(one));
    OK(cudaGetDevice(&value));
    assert_int_equal(value, 1);
}

static void test_a_driver_error_has_the_drivers_name(void) {
    CUresult (*name)(CUresult, const char **) = NULL;
    const char *text = NULL;
    OK(entry_point("cuGetErrorName", &name, cudaEnableDefault, NULL));
    OK(name(CUDA_ERROR_INVALID_HANDLE, &text));
    assert_string_equal(text, "CUDA_ERROR_INVALID_HANDLE");
    CODE(CUDA_ERROR_INVALID_VALUE, name((CUresult)12345, &text));
    assert_null(text);
    assert_string_equal(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
    assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
    assert_string_equal(cudaGetErrorString(cudaErrorNotReady), "device not ready");
}

/* ---- memory ---- */

static void test_device_memory_is_out_of_the_hosts_reach(void) {
    volatile char *p = device_memory(100);
    *p = 1;
}

static void test_device_memory_has_a_size_an_alignment_and_no_more(void) {
    void *p = &p, *q = NULL;
    size_t before, after, size = 0;
    CUdeviceptr base = 0;
    driver();
    OK(cudaMalloc(&p, 0));
    assert_null(p);
    OK(cudaMemGetInfo(&before, &size));
    assert_int_equal(size, 1 << 20);
    p = device_memory(1000);
    q = device_memory(1);
    assert_int_equal((uintptr_t)p % 512, 0);
    assert_int_equal((uintptr_t)q % 512, 0);
    OK(cudaMemGetInfo(&after, &size));
    assert_int_equal(before - after, 1024 + 512);
    OK(address_range(&base, &size, (CUdeviceptr)(uintptr_t)p + 999));
    assert_int_equal(base, (uintptr_t)p);
    assert_int_equal(size, 1000);
    CODE(CUDA_ERROR_NOT_FOUND, address_range(&base, NULL, (CUdeviceptr)(uintptr_t)p + 1000));
    CODE(CUDA_ERROR_NOT_FOUND, address_range(&base, NULL, (CUdeviceptr)(uintptr_t)&base));
    void *none = &none;
    CODE(cudaErrorMemoryAllocation, cudaMalloc(&none, 1 << 20));
    assert_null(none);
    OK(cudaFree(p));
    OK(cudaFree(q));
    OK(cudaMalloc(&none, 1 << 20));
    OK(cudaFree(none));
}

static void test_an_address_comes_again_as_late_as_possible(void) {
    enum { MANY = 1000 };

    char *kept = device_memory(5000), *first = NULL, *seen[MANY];
    int i, again = 0;
    for (i = 0; i < MANY && !again; i++) {
        seen[i] = device_memory(1000000);
        first = first ? first : seen[i];
        again = i && seen[i] == first;
        assert_true(seen[i] + 1000000 <= kept || seen[i] >= kept + 5000);
        OK(cudaFree(seen[i]));
    }
    assert_true(again && i > 100); /* all of the device's addresses came in between */
    OK(cudaFree(kept));
}

static void test_a_device_has_attributes(void) {
    const int expected[][2] = { { cudaDevAttrComputeCapabilityMajor, 9 },
                                { cudaDevAttrMultiProcessorCount, 8 },
                                { cudaDevAttrMaxThreadsPerBlock, 1024 },
                                { cudaDevAttrMaxGridDimX, 2147483647 },
                                { cudaDevAttrMaxGridDimY, 65535 },
                                { cudaDevAttrMaxSharedMemoryPerBlock, 49152 },
                                { cudaDevAttrUnifiedAddressing, 1 },
                                { cudaDevAttrWarpSize, 32 },
                                { cudaDevAttrPciBusId, 3 } };
    struct cudaDeviceProp p;
    int value;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        OK(cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)expected[i][0], 2));
        assert_int_equal(value, expected[i][1]);
    }
    for (int a = 1; a < (int)cudaDevAttrMax; a++)
        OK(cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)a, 0));
    CODE(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)0, 0));
    CODE(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 4));
    OK(cudaGetDeviceProperties(&p, 2));
    assert_string_equal(p.name, "Stand-in GPU 2");
    assert_int_equal(p.totalGlobalMem, 8ULL << 30);
}

static void test_fresh_memory_is_not_zero(void) {
    unsigned char seen = 0, *p = device_memory(10), *h = pinned(10);
    OK(cudaMemcpy(&seen, p, 1, cudaMemcpyDeviceToHost));
    assert_int_not_equal(seen, 0);
    assert_int_not_equal(*h, 0);
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
}

static void test_a_pointer_has_attributes(void) {
    struct cudaPointerAttributes a;
    int local = 0;
    OK(cudaSetDevice(1));
    char *p = device_memory(8), *h = pinned(8), *mine = NULL;
    OK(cudaMallocHost((void **)&mine, 8));
    OK(cudaPointerGetAttributes(&a, p + 7));
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    assert_int_equal(a.device, 1);
    assert_ptr_equal(a.devicePointer, p + 7);
    assert_null(a.hostPointer);
    OK(cudaPointerGetAttributes(&a, p + 8));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    OK(cudaSetDevice(0));
    OK(cudaPointerGetAttributes(&a, h));
    assert_int_equal(a.type, cudaMemoryTypeHost);
    assert_int_equal(a.device, 1);
    assert_ptr_equal(a.devicePointer, h);
    OK(cudaPointerGetAttributes(&a, mine)); /* pinned for device 1 alone */
    assert_null(a.devicePointer);
    OK(cudaPointerGetAttributes(&a, p)); /* no peer access */
    assert_null(a.devicePointer);
    OK(cudaPointerGetAttributes(&a, &local));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    OK(cudaPointerGetAttributes(&a, (void *)12345));
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
    OK(cudaFreeHost(mine));
}

static void test_a_range_is_registered_once(void) {
    char *block = aligned_alloc(4096, 4 * 4096);
    OK(cudaHostRegister(block + 4096, 4096, cudaHostRegisterDefault));
    CODE(cudaErrorHostMemoryAlreadyRegistered,
         cudaHostRegister(block + 4096, 1, cudaHostRegisterDefault));
    CODE(cudaErrorHostMemoryAlreadyRegistered,
         cudaHostRegister(block, 4097, cudaHostRegisterDefault));
    OK(cudaHostRegister(block + 2 * 4096, 10, cudaHostRegisterPortable));
    /* the same page */
    CODE(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(block + 2 * 4096 + 100, 10, 0));
    CODE(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(block + 4097));
    CODE(cudaErrorInvalidValue, cudaHostRegister(block, 0, 0));
    CODE(cudaErrorInvalidValue, cudaHostRegister(NULL, 10, 0));
    OK(cudaHostUnregister(block + 4096));
    OK(cudaHostUnregister(block + 2 * 4096));
    CODE(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(block + 4096));
    free(block);
}

static void test_memory_is_freed_once(void) {
    void *p = device_memory(8);
    OK(cudaFree(p));
    cudaFree(p);
}

static void test_host_memory_is_no_device_memory(void) {
    cudaFree(pinned(8));
}

static void test_a_part_of_host_memory_cannot_be_freed(void) {
    cudaFreeHost((char *)pinned(8) + 1);
}

static void test_device_free_does_not_wait_for_the_device(void) {
    void *p = device_memory(8), *q = device_memory(8);
    OK(cudaMemsetAsync(p, 1, 8, 0));
    OK(cudaDeviceSynchronize());
    standin_hold(1);
    OK(cudaMemsetAsync(p, 1, 8, 0));
    OK(cudaFree(q));
    standin_hold(0);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
}

static void test_device_memory_in_use_cannot_be_freed(void) {
    void *p = device_memory(8);
    standin_hold(1);
    OK(cudaMemsetAsync(p, 1, 8, 0));
    cudaFree(p);
}

static void test_device_memory_in_use_elsewhere_cannot_be_freed(void) {
    void *p = device_memory(8);
    OK(cudaSetDevice(1));
    void *q = device_memory(8);
    standin_hold(1);
    OK(cudaMemcpyPeerAsync(q, 1, p, 0, 8, 0));
    cudaFree(p);
}

static void test_host_memory_in_use_cannot_be_freed(void) {
    void *p = device_memory(8), *h = pinned(8);
    standin_hold(1);
    OK(cudaMemcpyAsync(p, h, 8, cudaMemcpyHostToDevice, 0));
    cudaFreeHost(h);
}

static void test_host_memory_in_use_cannot_be_unregistered(void) {
    static char h[8];
    void *p = device_memory(8);
    OK(cudaHostRegister(h, 8, 0));
    standin_hold(1);
    OK(cudaMemcpyAsync(h, p, 8, cudaMemcpyDeviceToHost, 0));
    cudaHostUnregister(h);
}

static void test_memory_given_to_a_kernel_is_in_use(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "move");
    void *p = device_memory(8), *h = pinned(8);
    standin_hold(1);
    OK(launch(f, 0, h, p));
    cudaFreeHost(h);
}

/* ---- copies and fills ---- */

static void test_a_copy_keeps_every_byte(void) {
    unsigned char to[600], from[600], pitched[10 * 7];
    char *p = device_memory(600), *q = device_memory(600);
    for (int i = 0; i < 600; i++)
        from[i] = (unsigned char)(i * 7);
    OK(cudaMemcpyAsync(p, from, 600, cudaMemcpyDefault, 0));
    OK(cudaMemcpyAsync(q, p, 600, cudaMemcpyDeviceToDevice, 0));
    OK(cudaMemcpyAsync(to, q, 600, cudaMemcpyDeviceToHost, 0));
    assert_memory_equal(to, from, 600);
    memset(pitched, 0, sizeof pitched);
    OK(cudaMemcpy2DAsync(pitched, 10, p + 3, 20, 4, 7, cudaMemcpyDeviceToHost, 0));
    for (int y = 0; y < 7; y++)
        for (int x = 0; x < 10; x++)
            assert_int_equal(pitched[y * 10 + x], x < 4 ? from[3 + y * 20 + x] : 0);
    OK(cudaMemcpyAsync(p + 1, p, 599, cudaMemcpyDeviceToDevice, 0)); /* overlapping */
    OK(cudaMemcpy(to, p, 600, cudaMemcpyDeviceToHost));
    assert_memory_equal(to + 1, from, 599);
    OK(cudaFree(p));
    OK(cudaFree(q));
}

static void test_a_copy_is_refused_when_something_is_wrong(void) {
    char local[64] = { 0 }, *p = device_memory(64), *h = pinned(64);
    void *unset = NULL;
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(local, p, 8, cudaMemcpyHostToDevice, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p, local, 8, cudaMemcpyDeviceToDevice, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p, h, 8, cudaMemcpyHostToHost, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p, p, 8, cudaMemcpyDeviceToHost, 0));
    CODE(cudaErrorInvalidMemcpyDirection, cudaMemcpyAsync(p, p, 8, (enum cudaMemcpyKind)7, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p + 60, h, 8, cudaMemcpyDefault, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p - 4, h, 8, cudaMemcpyDefault, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p, h + 60, 8, cudaMemcpyDefault, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(p, unset, 8, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyAsync(p, unset, 0, cudaMemcpyHostToDevice, 0));
    CODE(cudaErrorInvalidPitchValue, cudaMemcpy2DAsync(p, 8, h, 7, 8, 2, cudaMemcpyDefault, 0));
    CODE(cudaErrorInvalidPitchValue,
         cudaMemcpy2DAsync(p, (size_t)1 << 31, h, 8, 8, 2, cudaMemcpyDefault, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpy2DAsync(p, 32, h, 8, 8, 3, cudaMemcpyDefault, 0));
    OK(cudaMemcpy2DAsync(p, 28, h, 8, 8, 3, cudaMemcpyDefault, 0));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
}

static void test_a_small_pageable_source_is_taken_at_the_call(void) {
    char local[3] = "ab", seen[3] = "";
    void *p = device_memory(3);
    standin_hold(1);
    OK(cudaMemcpyAsync(p, local, 3, cudaMemcpyHostToDevice, 0));
    local[0] = 'x';
    standin_hold(0);
    OK(cudaMemcpy(seen, p, 3, cudaMemcpyDeviceToHost));
    assert_string_equal(seen, "ab");
    OK(cudaFree(p));
}

typedef struct copy {
    void *dst, *src;
    size_t size;
    enum cudaMemcpyKind kind;
    int plain, device;
} copy;

static int do_copy(void *of) {
    copy *c = of;
    OK(cudaSetDevice(c->device));
    return (int)(c->plain ? cudaMemcpy(c->dst, c->src, c->size, c->kind)
                          : cudaMemcpyAsync(c->dst, c->src, c->size, c->kind, 0));
}

static void test_copies_with_pageable_memory_block(void) {
    enum { LARGE = 64 * 1024 + 1 };

    char *local = calloc(1, LARGE), *p = device_memory(LARGE), *h = pinned(LARGE),
         *other = pinned(LARGE);
    blocks_until_done(do_copy, &(copy){ p, local, LARGE, cudaMemcpyHostToDevice, 0, 0 });
    blocks_until_done(do_copy, &(copy){ local, p, 4, cudaMemcpyDeviceToHost, 0, 0 });
    blocks_until_done(do_copy, &(copy){ local, h, 4, cudaMemcpyHostToHost, 0, 0 });
    blocks_until_done(do_copy, &(copy){ other, h, 4, cudaMemcpyHostToHost, 0, 0 });
    blocks_until_done(do_copy, &(copy){ other, h, 4, cudaMemcpyDefault, 0, 0 });
    blocks_until_done(do_copy, &(copy){ p, h, 4, cudaMemcpyHostToDevice, 1, 0 });
    blocks_until_done(do_copy, &(copy){ h, p, 4, cudaMemcpyDeviceToHost, 1, 0 });
    standin_hold(1);
    OK(cudaMemset(p, 0, 4));
    /* "a stream sync is performed before" */
    blocks_until_done(do_copy, &(copy){ p, local, 4, cudaMemcpyHostToDevice, 1, 0 });
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
    OK(cudaFreeHost(other));
    free(local);
}

static void test_other_copies_do_not_block(void) {
    char *p = device_memory(8), *q = device_memory(8), *h = pinned(8);
    memcpy(h, "before", 7);
    standin_hold(1);
    OK(cudaMemcpyAsync(p, h, 8, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyAsync(q, p, 8, cudaMemcpyDeviceToDevice, 0));
    OK(cudaMemcpy(q, p, 8, cudaMemcpyDeviceToDevice)); /* "no host-side synchronization" */
    OK(cudaMemcpyAsync(h, q, 8, cudaMemcpyDeviceToHost, 0));
    OK(cudaMemset(q, 0, 8));
    memcpy(h, "after.", 7);
    standin_hold(0);
    OK(cudaDeviceSynchronize());
    assert_string_equal(h, "after."); /* read when it ran */
    OK(cudaFree(p));
    OK(cudaFree(q));
    OK(cudaFreeHost(h));
}

static void test_memory_pinned_for_one_device_is_pageable_for_another(void) {
    char *mine = NULL;
    OK(cudaMallocHost((void **)&mine, 8));
    OK(cudaSetDevice(1));
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    void *p = device_memory(8);
    blocks_until_done(do_copy, &(copy){ mine, p, 8, cudaMemcpyDeviceToHost, 0, 1 });
    memcpy(mine, "before", 7);
    standin_hold(1);
    OK(cudaMemcpyAsync(p, mine, 8, cudaMemcpyHostToDevice, s));
    memcpy(mine, "after.", 7);
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(mine, p, 8, cudaMemcpyDeviceToHost));
    assert_string_equal(mine, "before"); /* it was staged at the call */
}

static void test_a_copy_between_devices_needs_no_peer_access(void) {
    char seen[49] = "";
    OK(cudaSetDevice(1));
    char *q = device_memory(48);
    OK(cudaMemset(q, 'q', 48));
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    char *p = device_memory(48);
    OK(cudaMemset(p, 'p', 48));
    CODE(cudaErrorInvalidValue, cudaMemcpyPeerAsync(p, 1, q, 1, 8, 0));
    CODE(cudaErrorInvalidDevice, cudaMemcpyPeerAsync(p, 0, q, 9, 8, 0));
    CODE(cudaErrorInvalidValue, cudaMemcpyPeerAsync(p, 0, seen, 1, 8, 0));
    OK(cudaMemcpyPeerAsync(p, 0, q, 1, 8, 0));
    OK(cudaMemcpyAsync(p + 8, q, 4, cudaMemcpyDefault, 0));
    OK(cudaMemcpy(seen, p, 16, cudaMemcpyDeviceToHost));
    assert_string_equal(seen, "qqqqqqqqqqqqpppp");
    struct cudaMemcpy3DPeerParms c; /* two layers of three rows of 8 bytes; the inner 2 x 2 x 2 */
    memset(&c, 0, sizeof c);
    c.dstDevice = 0, c.dstPtr = (struct cudaPitchedPtr){ p, 8, 8, 3 };
    c.srcDevice = 1, c.srcPtr = (struct cudaPitchedPtr){ q, 8, 8, 3 };
    c.dstPos = (struct cudaPos){ 3, 1, 0 };
    c.extent = (struct cudaExtent){ 2, 2, 2 };
    OK(cudaMemset(p, 'p', 48));
    OK(cudaMemcpy3DPeerAsync(&c, 0));
    OK(cudaMemcpy(seen, p, 48, cudaMemcpyDeviceToHost));
    assert_string_equal(seen, "pppppppp"
                              "pppqqppp"
                              "pppqqppp"
                              "pppppppp"
                              "pppqqppp"
                              "pppqqppp");
    c.dstPos.y = 2;
    CODE(cudaErrorInvalidValue, cudaMemcpy3DPeerAsync(&c, 0));
    c.dstPos.x = 7;
    CODE(cudaErrorInvalidPitchValue, cudaMemcpy3DPeerAsync(&c, 0));
    OK(cudaFree(p));
    OK(cudaFree(q));
}

static void test_fills_take_device_memory_of_the_current_device(void) {
    uint32_t seen[8] = { 0 };
    char local[8] = "", *p = device_memory(32), *h = pinned(8);
    driver();
    CODE(cudaErrorInvalidValue, cudaMemset(local, 0, 8));
    CODE(cudaErrorInvalidValue, cudaMemset(h, 0, 8));
    CODE(cudaErrorInvalidValue, cudaMemset(p, 0, 33));
    CODE(CUDA_ERROR_INVALID_VALUE, set_d16((CUdeviceptr)(uintptr_t)p + 1, 0, 1, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, set_2d_d32((CUdeviceptr)(uintptr_t)p, 6, 0, 1, 2, 0));
    CODE(CUDA_ERROR_INVALID_VALUE, set_2d_d32((CUdeviceptr)(uintptr_t)p, 4, 0, 2, 2, 0));
    OK(cudaMemset(p, 0, 32));
    OK(set_d16((CUdeviceptr)(uintptr_t)p, 0x1234, 3, 0));
    OK(set_2d_d32((CUdeviceptr)(uintptr_t)p + 8, 12, 0x89abcdef, 2, 2, 0));
    OK(cudaMemset2DAsync(p + 28, 0, 0x177, 4, 1, 0));
    OK(cudaMemcpy(seen, p, 32, cudaMemcpyDeviceToHost));
    const uint32_t expected[8] = { 0x12341234, 0x1234,     0x89abcdef, 0x89abcdef,
                                   0,          0x89abcdef, 0x89abcdef, 0x77777777 };
    assert_memory_equal(seen, expected, 32);
    cudaStream_t s = new_stream(0);
    OK(cudaSetDevice(1));
    CODE(cudaErrorInvalidResourceHandle, cudaMemsetAsync(p, 0, 8, s));
    CODE(cudaErrorInvalidValue, cudaMemset(p, 0, 8)); /* another device's memory, no peer access */
    OK(cudaMemcpyAsync(p, h, 8, cudaMemcpyDefault, s)); /* a copy may */
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
}

/* ---- streams and events ---- */

static void test_the_legacy_and_blocking_streams_wait_for_each_other(void) {
    gate before = GATE;
    cudaStream_t a = new_stream(cudaStreamDefault), b = new_stream(cudaStreamDefault);
    cudaStream_t free_one = new_stream(cudaStreamNonBlocking);
    cudaEvent_t first = new_event(0), legacy = new_event(0), after = new_event(0),
                apart = new_event(0);
    OK(cudaEventRecord(first, b)); /* between the two blocking streams there is no order yet */
    OK(cudaLaunchHostFunc(a, pass, &before));
    wait_entered(&before);
    OK(cudaEventSynchronize(first));
    OK(cudaStreamQuery(cudaStreamLegacy)); /* the host's question covers its own work only */
    OK(cudaStreamSynchronize(cudaStreamLegacy));
    OK(cudaEventRecord(legacy, cudaStreamLegacy));
    CODE(cudaErrorNotReady, cudaStreamQuery(cudaStreamLegacy));
    OK(cudaEventRecord(after, b));
    OK(cudaEventRecord(apart, free_one));
    OK(cudaEventSynchronize(apart));
    pause_ms(10);
    CODE(cudaErrorNotReady, cudaEventQuery(legacy));
    CODE(cudaErrorNotReady, cudaEventQuery(after));
    open_gate(&before);
    OK(cudaEventSynchronize(after));
    OK(cudaEventQuery(legacy));
}

static int query_own_stream(void *unused) {
    (void)unused;
    return (int)cudaStreamQuery(cudaStreamPerThread);
}

static void test_each_thread_has_a_stream_of_its_own(void) {
    gate hold = GATE;
    cudaEvent_t legacy = new_event(0);
    unsigned long long own = 0, zero = 0;
    OK(cudaStreamGetId(cudaStreamPerThread, &own));
    OK(cudaStreamGetId(cudaStreamLegacy, &zero));
    assert_int_not_equal(own, zero);
    OK(cudaLaunchHostFunc(cudaStreamPerThread, pass, &hold));
    CODE(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
    OK(elsewhere(query_own_stream, NULL));
    OK(cudaEventRecord(legacy, cudaStreamLegacy)); /* but it is a blocking one */
    CODE(cudaErrorNotReady, cudaEventQuery(legacy));
    open_gate(&hold);
    OK(cudaEventSynchronize(legacy));
}

static void test_a_stream_knows_its_device_flags_and_clamped_priority(void) {
    cudaStream_t s = NULL;
    unsigned flags = 9;
    int least = 9, greatest = 9, priority = 9;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    assert_int_equal(least, 0);
    assert_int_equal(greatest, -5);
    CODE(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&s, 8));
    OK(cudaSetDevice(2));
    OK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -100));
    OK(cudaSetDevice(0));
    OK(cudaStreamGetPriority(s, &priority));
    assert_int_equal(priority, -5);
    OK(cudaStreamGetFlags(s, &flags));
    assert_int_equal(flags, cudaStreamNonBlocking);
#if CUDART_VERSION >= 12080
    int index = 9;
    OK(cudaStreamGetDevice(s, &index));
    assert_int_equal(index, 2);
    OK(cudaStreamGetDevice(0, &index));
    assert_int_equal(index, 0);
#endif
    CODE(cudaErrorInvalidResourceHandle, cudaStreamDestroy(0));
    OK(cudaStreamDestroy(s));
}

static void test_a_wait_takes_the_record_of_its_time(void) {
    gate first = GATE, second = GATE;
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    cudaStream_t c = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event(cudaEventDisableTiming);
    OK(cudaStreamWaitEvent(c, e, 0)); /* never recorded: nothing to wait for */
    OK(cudaEventQuery(e));
    OK(cudaEventSynchronize(e));
    OK(cudaStreamSynchronize(c));
    OK(cudaLaunchHostFunc(a, pass, &first));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(cudaLaunchHostFunc(a, pass, &second));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(c, e, 0));
    OK(cudaEventDestroy(e)); /* the waits stay */
    CODE(cudaErrorNotReady, cudaStreamQuery(b));
    open_gate(&first);
    OK(cudaStreamSynchronize(b));
    CODE(cudaErrorNotReady, cudaStreamQuery(c));
    open_gate(&second);
    OK(cudaStreamSynchronize(c));
    e = new_event(cudaEventDisableTiming);
    OK(cudaEventRecord(e, a));
    OK(cudaEventSynchronize(e));
    OK(cudaStreamWaitEvent(c, e, 0)); /* over already: waits for nothing, takes no time */
    OK(cudaStreamQuery(c));
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(c, new_event(0), 8));
}

static void test_a_wait_crosses_devices_a_record_does_not(void) {
    gate hold = GATE;
    cudaStream_t zero = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event(0);
    OK(cudaSetDevice(1));
    cudaStream_t one = new_stream(cudaStreamNonBlocking);
    CODE(cudaErrorInvalidResourceHandle, cudaEventRecord(e, one));
    OK(cudaLaunchHostFunc(zero, pass, &hold));
    OK(cudaEventRecord(e, zero));
    OK(cudaStreamWaitEvent(one, e, 0));
    CODE(cudaErrorNotReady, cudaStreamQuery(one));
    open_gate(&hold);
    OK(cudaStreamSynchronize(one));
}

static void test_elapsed_time_needs_two_timed_records_that_have_come(void) {
    cudaEvent_t a = new_event(0), b = new_event(0), untimed = new_event(cudaEventDisableTiming);
    float ms = -1;
    CODE(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, b));
    OK(cudaEventRecord(a, 0));
    OK(cudaEventRecord(untimed, 0));
    CODE(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, b));
    OK(cudaDeviceSynchronize());
    CODE(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, untimed));
    pause_ms(3);
    standin_hold(1);
    OK(cudaEventRecord(b, 0));
    CODE(cudaErrorNotReady, cudaEventElapsedTime(&ms, a, b));
    standin_hold(0);
    OK(cudaEventSynchronize(b));
    OK(cudaEventElapsedTime(&ms, a, b));
    assert_true(ms >= 3 && ms < 10000);
    OK(cudaEventElapsedTime(&ms, b, a));
    assert_true(ms <= -3);
    CODE(cudaErrorInvalidValue, cudaEventCreateWithFlags(&untimed, cudaEventInterprocess));
    OK(cudaSetDevice(1));
    b = new_event(0);
    OK(cudaEventRecord(b, 0));
    OK(cudaEventSynchronize(b));
    CODE(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, b)); /* of two devices */
}

static void test_work_of_a_destroyed_stream_still_runs(void) {
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    void *p = device_memory(4);
    int seen = 0;
    standin_hold(1);
    OK(cudaMemsetAsync(p, 1, 4, s));
    OK(cudaStreamDestroy(s));
    standin_hold(0);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&seen, p, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(seen, 0x01010101);
    OK(cudaFree(p));
}

static void test_a_destroyed_stream_is_no_stream(void) {
    cudaStream_t s = new_stream(0), next;
    OK(cudaStreamDestroy(s));
    next = new_stream(0); /* not at the same address */
    assert_ptr_not_equal(s, next);
    cudaStreamQuery(s);
}

static void test_a_destroyed_event_is_no_event(void) {
    cudaEvent_t e = new_event(0);
    OK(cudaEventDestroy(e));
    cudaEventQuery(e);
}

static void test_a_stream_is_no_event(void) {
    cudaEventQuery((cudaEvent_t)new_stream(0));
}

static void test_a_function_goes_with_its_module(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "stop");
    OK(unload(m));
    launch(f, 0, NULL, NULL);
}

static void test_a_module_with_pending_kernels_cannot_be_unloaded(void) {
    CUmodule m = NULL;
    kernel(&m, "stop");
    standin_hold(1);
    OK(launch(kernel(&m, "stop"), 0, NULL, NULL));
    unload(m);
}

static void test_idle_streams_cost_no_threads(void) {
    enum { N = 10000 };

    static cudaStream_t s[N];
    char *p = device_memory(4 * N);
    for (int i = 0; i < N; i++)
        s[i] = new_stream(cudaStreamNonBlocking);
    assert_int_equal(standin_threads(), 0);
    for (int i = 0; i < N; i++)
        OK(cudaMemsetAsync(p + 4 * i, i, 4, s[i]));
    assert_in_range(standin_threads(), 1, 128);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++)
        OK(cudaStreamDestroy(s[i]));
    for (int i = 0; i < 100 && standin_threads(); i++)
        pause_ms(100);
    assert_int_equal(standin_threads(), 0);
    OK(cudaFree(p));
}

/* ---- host functions ---- */

static void CUDART_CB call_cuda(void *result) {
    void *p;
    int *code = result;
    code[0] = (int)cudaStreamQuery(0);
    code[1] = (int)cudaMalloc(&p, 1);
    code[2] = (int)stream_query(0);
    code[3] = (int)cudaSetDevice(0);
}

static void test_a_host_function_must_not_call_cuda(void) {
    int code[4] = { 0 };
    driver();
    OK(cudaLaunchHostFunc(0, call_cuda, code));
    OK(cudaStreamSynchronize(0));
    for (int i = 0; i < 4; i++)
        CODE(cudaErrorNotPermitted, code[i]);
    OK(cudaPeekAtLastError());
    CODE(cudaErrorInvalidValue, cudaLaunchHostFunc(0, NULL, NULL));
    CODE(cudaErrorInvalidValue, cudaStreamAddCallback(0, NULL, NULL, 0));
}

static void test_a_blocked_host_function_holds_up_those_of_its_device(void) {
    gate hold = GATE, behind = GATE, other = GATE;
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    behind.open = other.open = 1;
    OK(cudaLaunchHostFunc(a, pass, &hold));
    wait_entered(&hold);
    OK(cudaLaunchHostFunc(b, pass, &behind));
    OK(cudaSetDevice(1));
    OK(cudaLaunchHostFunc(0, pass, &other));
    OK(cudaStreamSynchronize(0));
    assert_int_equal(other.entered, 1);
    pause_ms(10);
    CODE(cudaErrorNotReady, cudaStreamQuery(b));
    open_gate(&hold);
    OK(cudaStreamSynchronize(b));
    assert_int_equal(behind.entered, 1);
}

/* ---- kernels ---- */

static void test_a_kernel_runs_with_the_parameters_of_the_call(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "store");
    int seen[64], value = 7;
    void *p = device_memory(sizeof seen), *params[] = { &p, &value };
    standin_hold(1);
    OK(launch_kernel(f, 4, 1, 1, 16, 1, 1, 0, 0, params, NULL));
    value = 8;
    standin_hold(0);
    OK(cudaMemcpy(seen, p, sizeof seen, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++)
        assert_int_equal(seen[i], 7);
    OK(unload(m));
    OK(cudaFree(p));
}

static void test_a_launch_is_refused_when_something_is_wrong(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "store");
    int value = 7;
    void *p = device_memory(4096), *params[] = { &p, &value };
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 0, 1, 1, 1, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 65536, 1, 1, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 65536, 1, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1u << 31, 1, 1, 1, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 1, 1025, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 1, 64, 32, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 1, 1, 1, 65, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 1, 1, 1, 1, 49153, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_VALUE, launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
    OK(launch_kernel(f, 1, 1, 1, 1024, 1, 1, 49152, 0, params, NULL));
    cudaStream_t s = new_stream(0);
    OK(cudaSetDevice(1));
    /* stream of device 0 */
    CODE(CUDA_ERROR_INVALID_HANDLE, launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    /* module of device 0 */
    CODE(CUDA_ERROR_INVALID_HANDLE, launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, 0, params, NULL));
    CODE(CUDA_ERROR_INVALID_CONTEXT, unload(m));
    CUmodule there = NULL;
    f = kernel(&there, "store");
    /* stream of device 0 alone */
    CODE(CUDA_ERROR_INVALID_HANDLE, launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    OK(unload(there));
    OK(cudaPeekAtLastError());
    OK(cudaSetDevice(0));
    OK(cudaDeviceSynchronize());
    OK(unload(m));
    OK(cudaFree(p));
}

static void test_a_module_is_ptx_or_known(void) {
    static const unsigned cubin[16] = { 0x464c457f }, fatbin[16] = { 0xba55ed50 };
    char text[200] = "";
    CUmodule m = NULL;
    CUfunction f = NULL, again = NULL;
    CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
    void *values[] = { text, (void *)(uintptr_t)sizeof text };
    driver();
    OK(cudaFree(NULL));
    CODE(CUDA_ERROR_INVALID_PTX,
         load_data_ex(&m, HEAD ".visible .entry broken() { ret", 2, options, values));
    assert_true(strlen(text) > 5 && (uintptr_t)values[1] == strlen(text));
    CODE(CUDA_ERROR_INVALID_IMAGE, load_data(&m, "neither"));
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, load_data(&m, cubin));
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, load_data(&m, fatbin));
    standin_register_image(fatbin, ptx);
    OK(load_data(&m, fatbin));
    OK(get_function(&f, m, "move"));
    OK(get_function(&again, m, "move"));
    assert_ptr_equal(f, again);
    CODE(CUDA_ERROR_NOT_FOUND, get_function(&f, m, "absent"));
    OK(unload(m));
}

static int known, unknown; /* stand for the addresses of host stubs */

static void test_the_runtime_launches_registered_functions(void) {
    int seen = 0, value = 5;
    void *p = device_memory(4), *args[] = { &p, &value };
    dim3 one = { 1, 1, 1 }, none = { 0, 1, 1 };
    standin_register_function(&known, ptx, "store");
    CODE(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(&unknown, one, one, args, 0, 0));
    CODE(cudaErrorInvalidConfiguration, cudaLaunchKernel(&known, one, none, args, 0, 0));
    OK(cudaLaunchKernel(&known, one, one, args, 0, 0));
    OK(cudaMemcpy(&seen, p, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(seen, 5);
    OK(cudaFree(p));
}

static void test_a_kernel_reaches_pinned_memory_and_its_peers(void) {
    CUmodule m = NULL;
    int *h = pinned(4), seen = 0;
    OK(cudaSetDevice(1));
    int *q = device_memory(4);
    OK(cudaSetDevice(0));
    CUfunction f = kernel(&m, "move");
    *h = 42;
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(launch(f, 0, q, h));
    OK(cudaMemcpy(&seen, q, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(seen, 42);
    OK(unload(m));
    OK(cudaFree(q));
    OK(cudaFreeHost(h));
}

/* The kernel fails, and with it its device. */
static void faults(const char *name, const void *a, const void *b, int code) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, name);
    OK(launch(f, 0, a, b));
    CODE(code, cudaStreamSynchronize(0));
}

static void test_pageable_memory_is_an_illegal_address(void) {
    int local = 0;
    faults("move", device_memory(4), &local, cudaErrorIllegalAddress);
}

static void test_memory_of_another_device_is_an_illegal_address(void) {
    OK(cudaSetDevice(1));
    void *q = device_memory(4);
    OK(cudaSetDevice(0));
    faults("move", q, device_memory(4), cudaErrorIllegalAddress);
}

static void test_memory_pinned_for_another_device_is_an_illegal_address(void) {
    void *mine = NULL;
    OK(cudaSetDevice(1));
    OK(cudaMallocHost(&mine, 4));
    OK(cudaSetDevice(0));
    faults("move", device_memory(4), mine, cudaErrorIllegalAddress);
}

static void test_behind_an_allocation_is_an_illegal_address(void) {
    faults("move", (char *)device_memory(8) + 8, device_memory(4), cudaErrorIllegalAddress);
}

static void test_across_the_end_of_an_allocation_is_an_illegal_address(void) {
    faults("move", (char *)device_memory(6) + 4, device_memory(4), cudaErrorIllegalAddress);
}

static void test_a_freed_allocation_is_an_illegal_address(void) {
    void *p = device_memory(8);
    OK(cudaFree(p));
    faults("move", p, device_memory(4), cudaErrorIllegalAddress);
}

static void test_an_odd_address_is_misaligned(void) {
    faults("move", (char *)device_memory(8) + 2, device_memory(4), cudaErrorMisalignedAddress);
}

static void CUDART_CB count_one(void *of) {
    ++*(int *)of;
}

static void CUDART_CB keep_code(cudaStream_t s, cudaError_t code, void *of) {
    (void)s;
    ((int *)of)[0]++;
    ((int *)of)[1] = (int)code;
}

static void test_a_trap_poisons_its_device_and_no_other(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "stop");
    cudaStream_t s = new_stream(cudaStreamNonBlocking), t = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event(0);
    int called = 0, back[2] = { 0, 0 };
    size_t size;
    void *p = device_memory(4), *h = pinned(4), *more = NULL;
    memset(h, 0, 4);
    standin_hold(1);
    OK(launch(f, s, NULL, NULL));
    OK(cudaMemcpyAsync(h, p, 4, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(s, count_one, &called));
    OK(cudaStreamAddCallback(s, keep_code, back, 0));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    standin_hold(0);
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(t));
    CODE(cudaErrorLaunchFailure, cudaMalloc(&more, 4));
    CODE(cudaErrorLaunchFailure, cudaHostAlloc(&more, 4, 0));
    CODE(cudaErrorLaunchFailure, cudaMemcpyAsync(p, h, 4, cudaMemcpyDefault, s));
    CODE(cudaErrorLaunchFailure, cudaEventQuery(e));
    CODE(cudaErrorLaunchFailure, cudaEventSynchronize(e));
    CODE(cudaErrorLaunchFailure, cudaStreamQuery(0));
    CODE(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    CODE(cudaErrorLaunchFailure, cudaMemGetInfo(&size, &size));
    CODE(CUDA_ERROR_LAUNCH_FAILED, launch(f, s, NULL, NULL));
    CODE(cudaErrorLaunchFailure, cudaGetLastError());
    CODE(cudaErrorLaunchFailure, cudaGetLastError()); /* it stays */
    OK(cudaSetDevice(1));
    void *q = device_memory(4);
    OK(cudaMemset(q, 1, 4));
    OK(cudaDeviceSynchronize());
    CODE(cudaErrorLaunchFailure, cudaStreamQuery(s)); /* still that device's */
    OK(cudaFree(q));
    OK(cudaSetDevice(0));
    CODE(cudaErrorLaunchFailure, cudaFree(p));
    CODE(cudaErrorLaunchFailure, cudaEventDestroy(e));
    CODE(cudaErrorLaunchFailure, cudaStreamDestroy(s));
    CODE(cudaErrorLaunchFailure, cudaStreamDestroy(t));
    CODE(CUDA_ERROR_LAUNCH_FAILED, unload(m));
    assert_int_equal(*(int *)h, 0);
    CODE(cudaErrorLaunchFailure, cudaFreeHost(h));
    /* by then the callback has come */
    for (int i = 0; i < 1000 && standin_threads(); i++)
        pause_ms(5);
    assert_int_equal(called, 0);
    assert_int_equal(back[0], 1);
    CODE(cudaErrorLaunchFailure, back[1]);
    char report[100];
    assert_int_equal(standin_live(report, sizeof report), 0);
}

static void test_a_kernel_sees_what_the_host_writes_and_then_ends(void) {
    CUmodule m = NULL;
    CUfunction f = kernel(&m, "spin");
    atomic_int *flag = pinned(4);
    atomic_store(flag, 0);
    OK(launch(f, 0, flag, NULL));
    pause_ms(10);
    CODE(cudaErrorNotReady, cudaStreamQuery(0));
    atomic_store(flag, 1);
    OK(cudaStreamSynchronize(0));
    OK(cudaFreeHost(flag));
    OK(unload(m));
}

static void test_a_spinning_kernel_ends_when_its_device_fails(void) {
    CUmodule m = NULL;
    cudaStream_t s = new_stream(cudaStreamNonBlocking), t = new_stream(cudaStreamNonBlocking);
    int *flag = pinned(4);
    *flag = 0;
    OK(launch(kernel(&m, "spin"), s, flag, NULL));
    OK(launch(kernel(&m, "stop"), t, NULL, NULL));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
    CODE(cudaErrorLaunchFailure, cudaFreeHost(flag)); /* waits for its end */
}

static void test_waits_end_when_the_device_fails(void) {
    static gate hold = GATE; /* the function may still be in it when this one returns */
    CUmodule m = NULL;
    cudaStream_t s = new_stream(cudaStreamNonBlocking), t = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event(0);
    CUfunction f = kernel(&m, "stop");
    aside stream_wait, event_wait;
    OK(cudaLaunchHostFunc(s, pass, &hold));
    OK(cudaEventRecord(e, s));
    start_aside(&stream_wait, synchronize, s);
    start_aside(&event_wait, synchronize_event, e);
    assert_true(blocks(&stream_wait));
    OK(launch(f, t, NULL, NULL));
    CODE(cudaErrorLaunchFailure, result_of(&stream_wait));
    CODE(cudaErrorLaunchFailure, result_of(&event_wait));
    CODE(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    open_gate(&hold);
}

static void test_a_process_ends_with_work_pending(void) {
    CUmodule m = NULL;
    int *flag = pinned(4);
    gate *hold = calloc(1, sizeof *hold);
    *flag = 0;
    pthread_mutex_init(&hold->lock, NULL);
    pthread_cond_init(&hold->change, NULL);
    OK(launch(kernel(&m, "spin"), 0, flag, NULL));
    OK(cudaSetDevice(1));
    OK(cudaLaunchHostFunc(0, pass, hold));
    wait_entered(hold);
}

/* ---- entry points, peers, machines without a driver ---- */

static void test_an_entry_point_is_found_by_name_version_and_stream_kind(void) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    CUresult (*other)(CUdeviceptr, unsigned short, size_t, CUstream) = NULL;
    void *f = &f;
    OK(entry_point("cuNotThere", &f, cudaEnableDefault, &found));
    assert_int_equal(found, cudaDriverEntryPointSymbolNotFound);
    assert_null(f);
#if CUDART_VERSION >= 12050
    OK(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &f, 3000, cudaEnableDefault, &found));
    assert_int_equal(found, cudaDriverEntryPointVersionNotSufficent);
    assert_null(f);
    CODE(cudaErrorInvalidValue,
         cudaGetDriverEntryPointByVersion("cuLaunchKernel", &f, 99000, cudaEnableDefault, &found));
#endif
    driver();
    OK(entry_point("cuMemsetD16Async", &other, cudaEnablePerThreadDefaultStream, &found));
    assert_int_equal(found, cudaDriverEntryPointSuccess);
    void *p = device_memory(4);
    standin_hold(1);
    OK(other((CUdeviceptr)(uintptr_t)p, 1, 2, 0));
    CODE(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
    OK(cudaStreamQuery(cudaStreamLegacy));
    standin_hold(0);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
}

static void test_peer_access_is_enabled_once_and_in_one_direction(void) {
    int can = 9;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(cudaDeviceCanAccessPeer(&can, 1, 1));
    assert_int_equal(can, 0);
    CODE(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
    CODE(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(1, 1));
    CODE(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    CODE(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaSetDevice(1));
    CODE(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(0));
    OK(cudaSetDevice(0));
    OK(cudaDeviceDisablePeerAccess(1));
}

static void test_peers_are_as_the_matrix_says(void) {
    int can = 9;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    assert_int_equal(can, 0);
    OK(cudaSetDevice(1));
    CODE(cudaErrorPeerAccessUnsupported, cudaDeviceEnablePeerAccess(0, 0));
}

static void test_peers_may_be_those_of_the_same_half(void) {
    static const int want[4][4] = {
        { 0, 1, 0, 0 }, { 1, 0, 0, 0 }, { 0, 0, 0, 1 }, { 0, 0, 1, 0 }
    };
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int can = 9;
            OK(cudaDeviceCanAccessPeer(&can, i, j));
            assert_int_equal(can, want[i][j]);
        }
}

/* With STANDIN_REPORT the reasons of failures go to stderr, which is a file meanwhile. */
static void test_reasons_are_written_to_stderr_if_asked(void) {
    static const unsigned fatbin[16] = { 0xba55ed50 };
    static const char *const lines[] = {
        "standin: an image cannot be loaded: line ",
        "standin: an image cannot be loaded: the image is a cubin or a fatbin",
        "standin: a kernel failed on device 0: ",
    };
    char seen[2000] = "";
    CUmodule m = NULL;
    FILE *file = tmpfile();
    int kept = dup(2);
    assert_non_null(file);
    driver();
    OK(cudaFree(NULL));

    dup2(fileno(file), 2);
    CODE(CUDA_ERROR_INVALID_PTX, load_data(&m, HEAD ".visible .entry broken() { ret"));
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, load_data(&m, fatbin));
    faults("move", device_memory(4), &m, cudaErrorIllegalAddress);
    dup2(kept, 2);

    rewind(file);
    seen[fread(seen, 1, sizeof seen - 1, file)] = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(seen, lines[i]))
            fail_msg("\"%s\" is not in: %s", lines[i], seen);
}

static void test_links_are_nvlink_where_the_setting_says_so(void) {
    int value = 9;
    OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, 1, 2));
    assert_int_equal(value, 1);
    OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrPerformanceRank, 2, 1));
    assert_int_equal(value, 0);
    OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, 0, 2));
    assert_int_equal(value, 0);
    OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrPerformanceRank, 0, 2));
    assert_int_equal(value, 1);
    OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 2));
    assert_int_equal(value, 1);
    CODE(cudaErrorInvalidDevice,
         cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 2, 2));
    CODE(cudaErrorInvalidDevice,
         cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 4));
    CODE(cudaErrorInvalidValue,
         cudaDeviceGetP2PAttribute(NULL, cudaDevP2PAttrAccessSupported, 0, 1));
    CODE(cudaErrorInvalidValue, cudaDeviceGetP2PAttribute(&value, (enum cudaDeviceP2PAttr)0, 0, 1));
    assert_int_equal(standin_contexts(), 0);
}

static void test_without_a_driver_every_call_says_so(void) {
    int n = 77, version = 77;
    void *p;
    CODE(35, cudaGetDeviceCount(&n));
    assert_int_equal(n, 77);
    OK(cudaDriverGetVersion(&version));
    assert_int_equal(version, 0);
    OK(cudaRuntimeGetVersion(&version));
    assert_int_equal(version, CUDART_VERSION);
    CODE(35, cudaMalloc(&p, 1));
    CODE(35, cudaSetDevice(0));
    CODE(35, entry_point("cuLaunchKernel", &p, 0, NULL));
    CODE(35, cudaGetLastError());
    CODE(35, cudaGetLastError());
    assert_string_equal(cudaGetErrorName(cudaErrorInsufficientDriver),
                        "cudaErrorInsufficientDriver");
}

static void test_without_a_gpu_there_is_no_device(void) {
    int n = 0;
    CODE(cudaErrorNoDevice, cudaGetDeviceCount(&n));
    CODE(cudaErrorNoDevice, cudaFree(NULL));
}

/* ---- control ---- */

static void test_the_nth_call_fails(void) {
    void *p = NULL, *q = device_memory(4);
    OK(cudaGetLastError());
    standin_fail(2, cudaErrorUnknown);
    OK(cudaPeekAtLastError()); /* does not count */
    OK(cudaFree(NULL));
    assert_false(standin_failed());
    CODE(cudaErrorUnknown, cudaMalloc(&p, 4));
    assert_null(p);
    assert_true(standin_failed());
    CODE(cudaErrorUnknown, cudaGetLastError());
    OK(cudaMalloc(&p, 4));
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaFree(p)); /* frees all the same */
    assert_int_equal(standin_live(NULL, 0), 1);
    standin_fail(1, cudaErrorUnknown);
    standin_fail(0, 0);
    OK(cudaFree(q));
    assert_false(standin_failed());
}

static void test_a_driver_call_fails_without_a_last_error(void) {
    CUmodule m = NULL;
    driver();
    OK(cudaFree(NULL));
    standin_fail(1, CUDA_ERROR_OUT_OF_MEMORY);
    CODE(CUDA_ERROR_OUT_OF_MEMORY, load_data(&m, ptx));
    OK(cudaGetLastError());
    OK(load_data(&m, ptx));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    CODE(CUDA_ERROR_UNKNOWN, unload(m));
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_what_is_alive_is_counted(void) {
    char report[200], *block = aligned_alloc(4096, 4096);
    cudaStream_t a = new_stream(0), b = new_stream(0);
    cudaEvent_t e = new_event(0);
    CUmodule m = NULL;
    void *p = device_memory(4), *h = pinned(4);
    kernel(&m, "stop");
    OK(cudaHostRegister(block, 4096, 0));
    OK(cudaStreamSynchronize(cudaStreamPerThread)); /* not created, not counted */
    assert_int_equal(standin_live(report, sizeof report), 7);
    assert_string_equal(
        report,
        "2 streams, 1 event, 1 device allocation, 1 host allocation, 1 registration, 1 module");
    OK(cudaHostUnregister(block));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(e));
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
    OK(unload(m));
    assert_int_equal(standin_live(report, sizeof report), 0);
    assert_string_equal(report, "");
    free(block);
}

static void test_calls_are_counted_and_logged(void) {
    int value;
    void *p = device_memory(4);
    driver();
    assert_int_equal(standin_calls("cudaMalloc"), 1);
    assert_int_equal(standin_calls("cuStreamQuery"), 0);
    assert_string_equal(standin_log_take(), "");
    standin_log_begin();
    OK(cudaSetDevice(1));
    OK(cudaMemcpyAsync(p, p, 0, cudaMemcpyDeviceToDevice, 0));
    OK(stream_query(0));
    OK(cudaSetDevice(0));
    assert_string_equal(standin_log_take(),
                        "cudaSetDevice:1 cudaMemcpyAsync:D2D cuStreamQuery cudaSetDevice:0");
    OK(cudaGetDevice(&value));
    standin_log_begin();
    OK(cudaGetDevice(&value));
    assert_string_equal(standin_log_take(), "cudaGetDevice");
    OK(cudaFree(p));
}

static void test_in_null_mode_submissions_do_nothing(void) {
    char *p = device_memory(4), *h = pinned(4);
    memcpy(h, "abc", 4);
    OK(cudaMemset(p, 0, 4));
    OK(cudaDeviceSynchronize());
    standin_null(1);
    OK(cudaMemcpyAsync(h, p, 4, cudaMemcpyDeviceToHost, 0));
    CODE(cudaErrorInvalidMemcpyDirection, cudaMemcpyAsync(h, p, 4, (enum cudaMemcpyKind)9, 0));
    OK(cudaMemsetAsync(p, 1, 4, 0));
    OK(cudaStreamSynchronize(0));
    assert_string_equal(h, "abc");
    standin_null(0);
    OK(cudaMemcpy(h, p, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(h[0], 0);
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
}

/* Threads with streams, events and copies of their own, and a chain through all of them. */
enum { THREADS = 4, ROUNDS = 200 };

static cudaEvent_t chain[THREADS];
static pthread_mutex_t chain_lock = PTHREAD_MUTEX_INITIALIZER;

static int work_along(void *of) {
    int i = (int)(intptr_t)of;
    cudaStream_t s = NULL;
    int *p, *h = pinned(4);
    OK(cudaSetDevice(i % 2));
    OK(cudaStreamCreateWithFlags(&s, i < 2 ? cudaStreamDefault : cudaStreamNonBlocking));
    p = device_memory(4);
    for (int round = 1; round <= ROUNDS; round++) {
        OK(cudaMemsetAsync(p, round & 127, 4, s));
        OK(cudaMemcpyAsync(h, p, 4, cudaMemcpyDeviceToHost, s));
        pthread_mutex_lock(&chain_lock);
        OK(cudaStreamWaitEvent(s, chain[(i + 1) % THREADS], 0));
        OK(cudaEventRecord(chain[i], s));
        pthread_mutex_unlock(&chain_lock);
        if (round % 16 == 0) {
            OK(cudaStreamSynchronize(s));
            assert_int_equal(*h, (round & 127) * 0x01010101);
        }
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
    return 0;
}

static void test_many_threads_work_at_once(void) {
    aside a[THREADS];
    for (int i = 0; i < THREADS; i++) {
        OK(cudaSetDevice(i % 2));
        chain[i] = new_event(cudaEventDisableTiming);
    }
    for (int i = 0; i < THREADS; i++)
        start_aside(&a[i], work_along, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++)
        OK(result_of(&a[i]));
    for (int i = 0; i < THREADS; i++)
        OK(cudaEventDestroy(chain[i]));
    assert_int_equal(standin_live(NULL, 0), 0);
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
    ENDS(test_a_failing_call_leaves_its_code_until_it_is_taken),
    ENDS(test_not_ready_is_a_last_error_too),
    ENDS(test_driver_functions_need_a_bound_context),
    ENDS(test_only_devices_that_are_used_get_a_context),
    ENDS(test_setting_a_context_changes_the_runtimes_device),
    ENDS(test_the_mode_of_a_capture_makes_a_context),
    ENDS(test_a_context_that_is_not_primary_is_current_by_its_device),
    ABORTS(test_the_runtime_in_a_context_that_is_not_primary, "not the primary one"),
    ENDS(test_the_driver_describes_a_pointer_in_a_context_only),
    ENDS(test_a_driver_error_has_the_drivers_name),
    ABORTS(test_device_memory_is_out_of_the_hosts_reach, ""),
    WITH(test_device_memory_has_a_size_an_alignment_and_no_more, "STANDIN_MEMORY=1048576"),
    WITH(test_an_address_comes_again_as_late_as_possible, "STANDIN_MEMORY=4000000"),
    ENDS(test_a_device_has_attributes),
    ENDS(test_fresh_memory_is_not_zero),
    ENDS(test_a_pointer_has_attributes),
    ENDS(test_a_range_is_registered_once),
    ABORTS(test_memory_is_freed_once, "cudaFree:"),
    ABORTS(test_host_memory_is_no_device_memory, "cudaFree:"),
    ABORTS(test_a_part_of_host_memory_cannot_be_freed, "cudaFreeHost:"),
    ENDS(test_device_free_does_not_wait_for_the_device),
    ABORTS(test_device_memory_in_use_cannot_be_freed, "in use by a pending fill"),
    ABORTS(test_device_memory_in_use_elsewhere_cannot_be_freed,
           "in use by a pending copy on device 1"),
    ABORTS(test_host_memory_in_use_cannot_be_freed, "in use by a pending copy"),
    ABORTS(test_host_memory_in_use_cannot_be_unregistered, "in use by a pending copy"),
    ABORTS(test_memory_given_to_a_kernel_is_in_use, "in use by a pending kernel"),
    ENDS(test_a_copy_keeps_every_byte),
    ENDS(test_a_copy_is_refused_when_something_is_wrong),
    ENDS(test_a_small_pageable_source_is_taken_at_the_call),
    ENDS(test_copies_with_pageable_memory_block),
    ENDS(test_other_copies_do_not_block),
    ENDS(test_memory_pinned_for_one_device_is_pageable_for_another),
    ENDS(test_a_copy_between_devices_needs_no_peer_access),
    ENDS(test_fills_take_device_memory_of_the_current_device),
    ENDS(test_the_legacy_and_blocking_streams_wait_for_each_other),
    ENDS(test_each_thread_has_a_stream_of_its_own),
    ENDS(test_a_stream_knows_its_device_flags_and_clamped_priority),
    ENDS(test_a_wait_takes_the_record_of_its_time),
    ENDS(test_a_wait_crosses_devices_a_record_does_not),
    ENDS(test_elapsed_time_needs_two_timed_records_that_have_come),
    ENDS(test_work_of_a_destroyed_stream_still_runs),
    ABORTS(test_a_destroyed_stream_is_no_stream, "cudaStreamQuery:"),
    ABORTS(test_a_destroyed_event_is_no_event, "cudaEventQuery:"),
    ABORTS(test_a_stream_is_no_event, "is no event"),
    ABORTS(test_a_function_goes_with_its_module, "cuLaunchKernel:"),
    ABORTS(test_a_module_with_pending_kernels_cannot_be_unloaded, "cuModuleUnload:"),
    ENDS(test_idle_streams_cost_no_threads),
    ENDS(test_a_host_function_must_not_call_cuda),
    ENDS(test_a_blocked_host_function_holds_up_those_of_its_device),
    ENDS(test_a_kernel_runs_with_the_parameters_of_the_call),
    ENDS(test_a_launch_is_refused_when_something_is_wrong),
    ENDS(test_a_module_is_ptx_or_known),
    ENDS(test_the_runtime_launches_registered_functions),
    ENDS(test_a_kernel_reaches_pinned_memory_and_its_peers),
    ENDS(test_pageable_memory_is_an_illegal_address),
    ENDS(test_memory_of_another_device_is_an_illegal_address),
    ENDS(test_memory_pinned_for_another_device_is_an_illegal_address),
    ENDS(test_behind_an_allocation_is_an_illegal_address),
    ENDS(test_across_the_end_of_an_allocation_is_an_illegal_address),
    ENDS(test_a_freed_allocation_is_an_illegal_address),
    ENDS(test_an_odd_address_is_misaligned),
    ENDS(test_a_trap_poisons_its_device_and_no_other),
    ENDS(test_a_kernel_sees_what_the_host_writes_and_then_ends),
    ENDS(test_a_spinning_kernel_ends_when_its_device_fails),
    ENDS(test_waits_end_when_the_device_fails),
    ENDS(test_a_process_ends_with_work_pending),
    ENDS(test_an_entry_point_is_found_by_name_version_and_stream_kind),
    ENDS(test_peer_access_is_enabled_once_and_in_one_direction),
    WITH(test_peers_are_as_the_matrix_says, "STANDIN_PEERS=0111001111011110"),
    WITH(test_peers_may_be_those_of_the_same_half, "STANDIN_PEERS=half"),
    WITH(test_reasons_are_written_to_stderr_if_asked, "STANDIN_REPORT=1"),
    WITH(test_links_are_nvlink_where_the_setting_says_so, "STANDIN_NVLINK=0-1,2-1"),
    WITH(test_without_a_driver_every_call_says_so, "STANDIN_ERROR=35"),
    WITH(test_without_a_gpu_there_is_no_device, "STANDIN_DEVICES=0"),
    ENDS(test_the_nth_call_fails),
    ENDS(test_a_driver_call_fails_without_a_last_error),
    ENDS(test_what_is_alive_is_counted),
    ENDS(test_calls_are_counted_and_logged),
    ENDS(test_in_null_mode_submissions_do_nothing),
    ENDS(test_many_threads_work_at_once),
};

enum { TESTS = sizeof tests / sizeof *tests };

/* What the process wrote, cut where the buffer is full, and how it ended. */
static int spawn(const char *name, char *output, size_t size) {
    int ends[2], status = 0;
    size_t length = 0;
    char rest[512];
    assert_int_equal(pipe(ends), 0);
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
        execl("/proc/self/exe", "test_standin", name, (char *)NULL);
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
    ((const test *)*state)->body();
}

static void run_apart(void **state) {
    const test *t = *state;
    char output[8192];
    int status = spawn(t->name, output, sizeof output);
    if (t->line) {
        int aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        if (*t->line ? !aborted || !strstr(output, t->line) : !status)
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
