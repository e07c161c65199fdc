/* docs/backend.md */
#include "page.h"
#include "devstream_alloc.h"
#include <stdlib.h>
#include "1.c"
#include "2.c"
#include "3.c"

int main(void) {
#include "4.c"
    /* expect: 3 */
    CHECK(ds_mem_free(b));
    CHECK(ds_mem_free(out));
    CHECK(ds_mem_pinned_free(host));
    CHECK(ds_stream_destroy(ds_stream_of(stream)));
    return ds_shutdown() < 0;
}
