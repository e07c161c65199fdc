/* A project whose other files are compiled by nvcc: the kernel is nvcc's, devstream is the
   object of a C compiler. Runs on a GPU where there is one, else the kernel's CPU form. */
#include "devstream.h"
#include <cstdio>
#include <cstdlib>

enum { N = 10000 };

struct add_args {
    unsigned *data;
    unsigned summand;
};

__global__ void add(unsigned *data, unsigned summand, unsigned long long first,
                    unsigned long long count) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count)
        data[first + i] += summand;
}

static int add_on_cpu(size_t first, size_t count, const void *args) {
    const add_args *a = static_cast<const add_args *>(args);
    for (size_t i = first; i < first + count; i++)
        a->data[i] += a->summand;
    return 0;
}

static void must(ds_result result, int line) {
    if (result == DS_OK)
        return;
    std::fprintf(stderr, "project.cu:%d: %s: %s\n", line, ds_result_get_name(result),
                 ds_error_get_last());
    std::exit(1);
}

#define MUST(call) must(call, __LINE__)

ds_result copy_there_and_back(void *host, size_t size, ds_kernel kernel, const void *args,
                              size_t args_size, size_t items, void *device,
                              ds_stream stream); /* project.cpp */

int main() {
    ds_param params[4] = {};
    params[0].kind = DS_PARAM_READ_WRITE;
    params[0].offset = offsetof(add_args, data);
    params[0].size = sizeof(unsigned *);
    params[1].kind = DS_PARAM_VALUE;
    params[1].offset = offsetof(add_args, summand);
    params[1].size = sizeof(unsigned);
    params[2].kind = DS_PARAM_FIRST;
    params[2].size = sizeof(unsigned long long);
    params[3].kind = DS_PARAM_COUNT;
    params[3].size = sizeof(unsigned long long);
    ds_kernel_desc desc = {};
    desc.name = "add";
    desc.cpu_fn = add_on_cpu;
    desc.args_size = sizeof(add_args);
    desc.params = params;
    desc.param_count = 4;
    desc.cuda.native_fn = reinterpret_cast<const void *>(add);

    ds_device device;
    ds_kernel kernel;
    ds_stream stream;
    void *memory;
    MUST(ds_device_get_current(&device));
    MUST(ds_kernel_create(&desc, &kernel));
    MUST(ds_stream_create(NULL, &stream));
    MUST(ds_device_alloc(device, N * sizeof(unsigned), &memory));
    static unsigned host[N];
    for (unsigned i = 0; i < N; i++)
        host[i] = i;
    add_args args = { static_cast<unsigned *>(memory), 5 };
    MUST(copy_there_and_back(host, sizeof host, kernel, &args, sizeof args, N, memory, stream));
    for (unsigned i = 0; i < N; i++)
        if (host[i] != i + 5) {
            std::fprintf(stderr, "item %u is %u\n", i, host[i]);
            return 1;
        }

    if (device.type == DS_DEVICE_CUDA) {
        std::printf("the kernel ran on cuda:%d\n", static_cast<int>(device.index));
    } else {
        ds_backend_info cuda;
        MUST(ds_backend_get_info(0, &cuda));
        std::printf("no CUDA device (%s): the CPU form ran\n", cuda.reason);
    }
    MUST(ds_device_free(memory));
    MUST(ds_stream_destroy(stream));
    MUST(ds_kernel_destroy(kernel));
    MUST(ds_shutdown());
    return 0;
}
