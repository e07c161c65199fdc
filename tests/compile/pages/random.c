#include "page.h"

int main(void) {
    ds_device device = ds_device_current();
    ds_stream stream;
    void *x;
    CHECK(ds_stream_create(NULL, &stream));
    CHECK(ds_alloc(device, 4000, &x));
#include "all.c"
    CHECK(ds_free(x));
    CHECK(ds_stream_destroy(stream));
    return ds_shutdown() < 0;
}
