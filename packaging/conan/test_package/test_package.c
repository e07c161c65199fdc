/* The program of devstream's Conan package: memory goes to a device and back. */
#include <devstream.h>
#include <stdio.h>

int main(void) {
    ds_stream stream;
    void *memory = NULL;
    int number = 42;
    int back = 0;

    if (ds_stream_create(NULL, &stream) < 0 ||
        ds_device_alloc(ds_device_current(), sizeof number, &memory) < 0 ||
        ds_copy(memory, &number, sizeof number, stream) < 0 ||
        ds_copy(&back, memory, sizeof number, stream) < 0 || ds_stream_synchronize(stream) < 0 ||
        ds_device_free(memory) < 0 || ds_stream_destroy(stream) < 0 || ds_shutdown() < 0) {
        fprintf(stderr, "%s\n", ds_error_get_last());
        return 1;
    }
    printf("devstream %d: %d\n", ds_version_get(), back);
    return back != number;
}
