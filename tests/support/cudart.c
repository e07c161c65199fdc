/* cudart.c - a library with the names of cudart's functions, which do nothing. Its soname is that
   of version MAJOR. The variable FAKE_CUDART_<MAJOR> has two numbers: the version, or 0 for a
   version that cannot be told, and the code of cudaGetDeviceCount. fake_cudart_error is the pending
   error. fake_cudart_last has the last
   call of a function that differs by version, with one parameter. fake_cudart_found is the answer
   about an entry point; 0: it is there. With -DLACKS there is no cudaMemcpyAsync, and with MAJOR 11
   no cudaStreamGetDevice.
   Build: cc -DMAJOR=12 -Isrc -shared -fPIC -Wl,-soname,libcudart.so.12 cudart.c -o cudart-12.so */
#define DEVSTREAM_CUDA_DLOPEN
#include "cuda/cudart.h"

#define EXPORT __attribute__((visibility("default")))
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

EXPORT extern char fake_cudart_last[200];
char fake_cudart_last[200];

static int setting(int which) {
    int number[2] = { 0, 0 };
    const char *text = getenv("FAKE_CUDART_" TEXT(MAJOR));
    if (text)
        sscanf(text, "%d %d", &number[0], &number[1]);
    return number[which];
}

EXPORT extern int fake_cudart_error;
int fake_cudart_error;
EXPORT extern int fake_cudart_found;
int fake_cudart_found;

static int call(const char *name) {
    int error = fake_cudart_error;
    if (strcmp(name, "cudaGetLastError") == 0)
        fake_cudart_error = 0;
    if (strcmp(name, "cudaPeekAtLastError") == 0 || strcmp(name, "cudaGetLastError") == 0)
        return error;
    return strcmp(name, "cudaGetDeviceCount") == 0 ? setting(1) : 0;
}

#ifdef LACKS
#define cudaMemcpyAsync cudaMemcpyAsync_is_not_there
#endif
#define STUB(function, parameters) \
    EXPORT int function(void);     \
    int function(void) {           \
        return call(#function);    \
    }
DS__CUDART_FUNCTIONS(STUB)

EXPORT const void *fake_cudart_table(void);

const void *fake_cudart_table(void) {
    return &ds__cudart;
}

EXPORT const char *cudaGetErrorName(int code);
EXPORT const char *cudaGetErrorString(int code);
EXPORT int cudaRuntimeGetVersion(int *out);

const char *cudaGetErrorName(int code) {
    return code == 35 ? "cudaErrorInsufficientDriver" : "cudaErrorNoDevice";
}

const char *cudaGetErrorString(int code) {
    return code == 35 ? "CUDA driver version is insufficient" : "no CUDA device";
}

int cudaRuntimeGetVersion(int *out) {
    *out = setting(0);
    if (!*out)
        fake_cudart_error = 35;
    return *out ? 0 : 35;
}

/* The functions whose form differs by version. Each records its name and the parameter in which a
   form differs. */
#define FORM(name, parameters, number)                                        \
    EXPORT int name parameters;                                               \
    int name parameters {                                                     \
        snprintf(fake_cudart_last, sizeof fake_cudart_last, "%s %llu", #name, \
                 (unsigned long long)(number));                               \
        return 0;                                                             \
    }
#define FOURTH_OR_FIFTH (setting(0) >= 13000 ? (uintptr_t)e : (uintptr_t)d)
FORM(cudaStreamGetCaptureInfo_v2, (void *a, void *b, void *c, void *d, void *e, size_t *f),
     (*f = 3, !a + !b + !c + !d + !e))
FORM(cudaStreamGetCaptureInfo_v3, (void *a, void *b, void *c, void *d, void *e, void *f, size_t *g),
     (*g = 3, !a + !b + !c + !d + !e + !f))
FORM(cudaStreamGetCaptureInfo, (void *a, void *b, void *c, void *d, void *e, void *f, size_t *g),
     (*g = 3, !a + !b + !c + !d + !e + !f))
FORM(cudaStreamUpdateCaptureDependencies, (void *a, void *b, void *c, void *d, void *e),
     ((void)a, (void)b, (void)e, (uintptr_t)(setting(0) >= 13000 ? d : c)))
FORM(cudaStreamBeginCaptureToGraph, (void *a, void *b, void *c, void *d, void *e, int f),
     ((void)a, (void)b, (void)c, (void)d, (void)f, (uintptr_t)e))
FORM(cudaGraphAddDependencies, (void *a, void *b, void *c, void *d, void *e),
     ((void)a, (void)b, (void)c, FOURTH_OR_FIFTH))
FORM(cudaGraphNodeGetDependencies, (void *a, void *b, void *c, size_t *d),
     ((void)a, (void)b, *(setting(0) >= 12030 ? d : (size_t *)c) = 4))
FORM(cudaGraphNodeGetDependencies_v2, (void *a, void *b, void *c, size_t *d),
     ((void)a, (void)b, (void)c, *d = 4))
FORM(cudaGetDriverEntryPoint, (void *a, void *b, unsigned long long c, int *d),
     ((void)a, (void)b, setting(0) >= 12000 ? *d = 0 : 0, c))
FORM(cudaGetDriverEntryPointByVersion, (void *a, void *b, unsigned c, unsigned long long d, int *e),
     ((void)a, (void)b, (void)d, *e = fake_cudart_found, c))
#if MAJOR > 11
FORM(cudaStreamGetDevice, (void *a, int *b), ((void)a, *b = 5))
#endif
FORM(cudaMemcpyBatchAsync,
     (void *a, void *b, void *c, size_t d, void *e, void *f, size_t g, void *h, void *i),
     ((void)a, (void)b, (void)c, (void)e, (void)f, (void)g,
      d + (uintptr_t)(setting(0) >= 13000 ? h : i)))

EXPORT int cudaGraphExecUpdate(void *exec, void *graph, void *third, int *fourth);

int cudaGraphExecUpdate(void *exec, void *graph, void *third, int *fourth) {
    cudaGraphExecUpdateResultInfo *info = third;
    int is_info = setting(0) >= 12000;
    (void)exec;
    snprintf(fake_cudart_last, sizeof fake_cudart_last, "cudaGraphExecUpdate %d", is_info);
    if (is_info) {
        info->result = (enum cudaGraphExecUpdateResult)2;
        info->errorNode = graph;
    } else {
        *(void **)third = graph;
        *fourth = 2;
    }
    return 0;
}
