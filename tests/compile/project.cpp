/* The C++ file of the project: knows nothing of CUDA. */
#include "devstream.h"

ds_result copy_there_and_back(void *host, size_t size, ds_kernel kernel, const void *args,
                              size_t args_size, size_t items, void *device, ds_stream stream);

ds_result copy_there_and_back(void *host, size_t size, ds_kernel kernel, const void *args,
                              size_t args_size, size_t items, void *device, ds_stream stream) {
    DS_STREAM_SCOPE(stream) {
        ds_result result = ds_copy(device, host, size, stream);
        if (result == DS_OK)
            result = ds_kernel_launch(kernel, items, args, args_size, stream);
        if (result == DS_OK)
            result = ds_copy(host, device, size, stream);
        return result == DS_OK ? ds_stream_synchronize(stream) : result;
    }
    return DS_ERR_FAILED; /* the push failed */
}
