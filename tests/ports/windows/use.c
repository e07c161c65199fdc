/* use.c - a program that links devstream.dll: a stream, an event, a block of the allocator, and a
   collective. tests/ports/windows.sh also compiles it as C++. Prints "right" at the end. */
#include "devstream_alloc.h"
#include "devstream_comm.h"

#include <stdio.h>
#include <string.h>

#define CHECKED(call)                                     \
    do {                                                  \
        if ((call) < 0) {                                 \
            fprintf(stderr, "%s\n", ds_error_get_last()); \
            return 1;                                     \
        }                                                 \
    } while (0)

enum { COUNT = 1000 };

static void add_one(void *user) {
    ++*(int *)user;
}

/* Sums two vectors. Returns 0 if the sum is right. */
static int sum_two_vectors(void) {
    static float values[2][COUNT], sum[COUNT];
    int64_t shape[1] = { COUNT };
    ds_tensor in[2], out;
    const ds_tensor *list[2];
    for (int i = 0; i < 2; i++) {
        void *p = NULL;
        for (int k = 0; k < COUNT; k++)
            values[i][k] = (float)(k * (i + 1));
        CHECKED(ds_device_alloc(ds_cpu(0), sizeof values[i], &p));
        CHECKED(ds_copy_sync(p, values[i], sizeof values[i]));
        in[i] = ds_tensor_of(p, ds_cpu(0), ds_float32(), 1, shape);
        list[i] = &in[i];
    }
    out = ds_tensor_of(in[0].data, ds_cpu(0), ds_float32(), 1, shape);
    CHECKED(ds_comm_reduce_into(list, 2, DS_REDUCE_SUM, &out, NULL));
    CHECKED(ds_device_synchronize(ds_cpu(0)));
    CHECKED(ds_copy_sync(sum, out.data, sizeof sum));
    for (int k = 0; k < COUNT; k++)
        if (sum[k] != (float)(3 * k))
            return 1;
    CHECKED(ds_device_free(in[0].data));
    CHECKED(ds_device_free(in[1].data));
    return 0;
}

int main(void) {
    ds_stream s;
    ds_event e;
    void *p = NULL;
    int ran = 0;
    char back[64];
    ds_stream stale = { 4711 };
    CHECKED(ds_stream_create(NULL, &s));
    CHECKED(ds_event_create(0, NULL, &e));
    CHECKED(ds_mem_alloc(64, s, &p));
    CHECKED(ds_fill(p, 7, 1, 64, s));
    CHECKED(ds_copy(back, p, 64, s));
    CHECKED(ds_stream_launch_host_func(s, add_one, &ran, NULL));
    CHECKED(ds_event_record(e, s));
    CHECKED(ds_event_synchronize(e));
    if (ran != 1 || back[0] != 7 || back[63] != 7 || sum_two_vectors())
        return 2;
    /* the call site of a thread is set by a function, so the sentence names this line */
    if (ds_stream_synchronize(stale) >= 0 || !strstr(ds_error_get_last(), "use.c"))
        return 3;
    CHECKED(ds_mem_free(p));
    CHECKED(ds_event_destroy(e));
    CHECKED(ds_stream_destroy(s));
    CHECKED(ds_shutdown());
    puts("right");
    return 0;
}
