#include "page.h"

int main(void) {
#include "all.c"
    CHECK(ds_free(x));
    CHECK(ds_stream_destroy(stream));
    return ds_shutdown() < 0;
}
