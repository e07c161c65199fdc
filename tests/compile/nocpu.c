/* The implementation without its CPU driver: compiles, runs, and says that there is no device. */
#define DEVSTREAM_NO_CPU
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include <stdio.h>

int main(void) {
    int count = -1;
    ds_device device;
    ds_stream stream;
    char report[1024];
    if (ds_device_get_count(DS_DEVICE_CPU, &count) != DS_OK || count != 0)
        return 1;
    if (ds_device_parse("cpu:0", &device) != DS_ERR_NO_DEVICE)
        return 2;
    if (ds_stream_create(NULL, &stream) != DS_ERR_NO_DEVICE || ds_error_get_last()[0] == 0)
        return 3;
    if (ds_backend_format(report, sizeof report) != DS_OK)
        return 4;
    printf("%s", report);
    return ds_shutdown() == DS_OK ? 0 : 5;
}
