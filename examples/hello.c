/* hello.c - a word goes to the device and back, and a host function says it when the stream gets
   there.

   Compile:  cc -I. examples/hello.c -o hello -pthread
     or, to use a GPU where there is one:
             cc -DDEVSTREAM_CUDA_DLOPEN -I. examples/hello.c -o hello -pthread
   Run:      ./hello */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include <stdio.h>
#include <string.h>

static void hello(void *who) {
    printf("hello from the stream, %s\n", (const char *)who);
}

int main(void) {
    ds_stream s;
    void *memory = NULL;
    char word[6] = "";
    if (ds_stream_create(NULL, &s) < 0 ||
        ds_device_alloc(ds_device_current(), sizeof word, &memory) < 0 ||
        ds_copy(memory, "world", sizeof word, s) < 0 || ds_copy(word, memory, sizeof word, s) < 0 ||
        ds_stream_launch_host_func(s, hello, word, NULL) < 0 || ds_stream_synchronize(s) < 0 ||
        ds_device_free(memory) < 0 || ds_stream_destroy(s) < 0 || ds_shutdown() < 0) {
        fprintf(stderr, "hello: %s\n", ds_error_get_last());
        return 1;
    }
    return strcmp(word, "world") != 0;
}
