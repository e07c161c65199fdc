/* The declarations beside device code. */
#include "decl.c"

__global__ void nothing(void) {
}

ds_result launch_nothing(const ds_stream_native *native);

ds_result launch_nothing(const ds_stream_native *native) {
    nothing<<<1, 1, 0, (cudaStream_t)native->handle>>>();
    return cudaGetLastError() == cudaSuccess ? DS_OK : DS_ERR_DRIVER;
}
