#include "page.h"

#include "5.c" /* the kernel's function and parameters */

static int walk(void) {
#include "1.c"
#include "2.c"
#include "3.c"
#include "4.c"
    float *first = pinned;
    *first = 21;
    CHECK(ds_copy(x, pinned, sizeof *first, s));
#include "6.c"
    CHECK(ds_copy(pinned, x, sizeof *first, s));
#include "7.c"
#include "8.c"
#include "9.c"
    CHECK(ds_stream_synchronize(s));
    EXPECT(*first == 42);
    EXPECT(*ready == 2);
    CHECK(ds_pinned_free(ready));
    CHECK(ds_event_destroy(e));
    CHECK(ds_kernel_destroy(k));
    CHECK(ds_stream_destroy(s));
    CHECK(ds_stream_destroy(uploads));
    CHECK(ds_stream_destroy(background));
    CHECK(ds_device_free(x));
    CHECK(ds_pinned_free(pinned));
    return ds_shutdown() < 0;
}

static int machine(void) {
#include "10.c"
    ds_stream s;
    void *here, *there;
    CHECK(ds_stream_create(NULL, &s));
    CHECK(ds_device_alloc(ds_cpu(0), 1 << 20, &here));
    CHECK(ds_device_alloc(ds_cpu(1), 1 << 20, &there));
#include "11.c"
    EXPECT(ns == 1500 + 41943 + 2000);
    CHECK(ds_stream_destroy(s));
    CHECK(ds_device_free(here));
    CHECK(ds_device_free(there));
    return ds_shutdown() < 0;
}

int main(void) {
    return walk() || machine();
}
