/* linked.c - a program that is linked with devstream: a stream, an event, an allocation and a
   collective on two CPU devices. Prints "linked: 42" and the version of the library. */
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include <stdio.h>

#define TRY(call)                                                 \
    do {                                                          \
        if ((call) < 0) {                                         \
            fprintf(stderr, "linked: %s\n", ds_error_get_last()); \
            return 1;                                             \
        }                                                         \
    } while (0)

int main(void) {
    ds_cpu_desc cpu = { .devices = 2 };
    ds_init_desc desc = { .cpu = &cpu };
    ds_stream streams[2];
    ds_event written;
    int32_t *numbers[2] = { NULL, NULL };
    ds_tensor tensors[2];
    const ds_tensor *list[2] = { &tensors[0], &tensors[1] };
    int64_t shape[1] = { 1 };
    int32_t values[2] = { 40, 2 };
    int32_t sum = 0;

    TRY(ds_init(&desc));
    TRY(ds_event_create(DS_EVENT_DEFAULT, NULL, &written));
    for (int i = 0; i < 2; i++) {
        ds_stream_desc of_device = { .device = ds_cpu(i) };
        TRY(ds_stream_create(&of_device, &streams[i]));
        TRY(ds_mem_alloc(sizeof sum, streams[i], (void **)&numbers[i]));
        TRY(ds_copy(numbers[i], &values[i], sizeof sum, streams[i]));
        tensors[i] = ds_tensor_of(numbers[i], ds_cpu(i), ds_int32(), 1, shape);
    }

    ds_comm_options options = { .streams = streams, .stream_count = 2 };
    TRY(ds_comm_all_reduce(list, list, 2, DS_REDUCE_SUM, &options));
    TRY(ds_event_record(written, streams[1]));
    TRY(ds_stream_wait_event(streams[0], written));
    TRY(ds_copy(&sum, numbers[1], sizeof sum, streams[0]));
    TRY(ds_stream_synchronize(streams[0]));
    printf("linked: %d, version %d\n", (int)sum, ds_version_get());

    for (int i = 0; i < 2; i++) {
        TRY(ds_mem_free(numbers[i]));
        TRY(ds_stream_destroy(streams[i]));
    }
    TRY(ds_event_destroy(written));
    TRY(ds_shutdown());
    return sum != 42 || ds_version_get() != DEVSTREAM_VERSION;
}
