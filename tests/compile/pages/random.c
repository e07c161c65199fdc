#include "page.h"

int main(void) {
#include "all.c"
    CHECK(ds_device_free(x));
    CHECK(ds_stream_destroy(stream));
    return ds_shutdown() < 0;
}
