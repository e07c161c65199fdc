/* The declarations alone: valid as C11, as C++11 and in CUDA C++. HEADER is the one header under
   test. */
#ifndef HEADER
#define HEADER "devstream.h"
#endif
#include HEADER

ds_result use_declarations(ds_stream stream, const void *src, void *dst);

ds_result use_declarations(ds_stream stream, const void *src, void *dst) {
    DS_DEVICE_SCOPE(ds_cpu(0)) {
        DS_STREAM_SCOPE(stream) {
            if (ds_copy(dst, src, 16, stream) < 0)
                return DS_ERR_FAILED;
        }
    }
    DS_RANGE_SCOPE("a range")
        DS_DEVICE_OF_SCOPE(dst)
            DS_IGNORE(ds_stream_synchronize(stream));
    return ds_error_get_last()[0] == 0 ? DS_OK : DS_NOT_READY;
}
