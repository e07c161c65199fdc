/* With cudart loaded at run time: needs nothing of CUDA to compile, and runs with or without a GPU.
   Prints whether the CUDA driver is taken, or why not. */
#define DEVSTREAM_CUDA_DLOPEN
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include <stdio.h>

static void set(void *user) {
    *(int *)user = 1;
}

int main(void) {
    ds_backend_info info;
    ds_stream stream;
    int done = 0;
    for (int i = 0; i < DS_BACKEND_COUNT; i++) {
        if (ds_backend_get_info(i, &info) != DS_OK)
            return 1;
        printf("%s: %s\n", info.name, info.reason);
    }
    if (ds_stream_create(NULL, &stream) != DS_OK)
        return 2;
    if (ds_stream_launch_host_func(stream, set, &done, NULL) != DS_OK)
        return 3;
    if (ds_stream_synchronize(stream) != DS_OK || !done)
        return 4;
    if (ds_stream_destroy(stream) != DS_OK)
        return 5;
    return ds_shutdown() == DS_OK ? 0 : 6;
}
