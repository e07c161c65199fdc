/* Writes a log for examples/replay.c: blocks of two streams, and a request that fails. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include <stdio.h>

#define TRY(call)                                                    \
    do {                                                             \
        if ((call) < 0) {                                            \
            fprintf(stderr, "%s: %s\n", #call, ds_error_get_last()); \
            return 1;                                                \
        }                                                            \
    } while (0)

static int to_file(const char *text, size_t size, void *file) {
    return fwrite(text, 1, size, file) != size;
}

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "w") : NULL;
    static const size_t size[4] = { 30 << 20, 3 << 20, 1000, 12 << 20 };
    ds_stream s[2];
    ds_resource pool, log;
    void *p[4], *none;
    if (!file)
        return 1;
    for (int i = 0; i < 2; i++)
        TRY(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s[i]));
    TRY(ds_resource_create_pool((ds_pool){ 0 }, &pool));
    TRY(ds_resource_create_log(&pool, to_file, file, &log));
    for (int i = 0; i < 3; i++)
        TRY(ds_resource_alloc(&log, size[i], 0, s[i / 2], &p[i]));
    if (ds_resource_alloc(&log, (size_t)1 << 60, 0, s[0], &none) >= 0)
        return 1;
    TRY(ds_resource_free(&log, p[0], size[0], s[0]));
    TRY(ds_resource_alloc(&log, size[3], 0, s[1], &p[3]));
    for (int i = 1; i < 4; i++)
        TRY(ds_resource_free(&log, p[i], size[i], s[i / 2]));
    TRY(ds_resource_destroy(&log));
    TRY(ds_resource_destroy(&pool));
    TRY(ds_shutdown());
    return fclose(file) != 0;
}
