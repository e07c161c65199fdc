/* expect: cpu   taken */
#include "page.h"

static int scale(size_t first, size_t count, const void *args);
static const char scale_ptx[] = "what clang writes";
#include "2.c"
#include "3.c"

static int scale(size_t first, size_t count, const void *args) {
    const scale_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->x[i] *= a->factor;
    return 0;
}

int main(void) {
#include "1.c"
    puts(text);
    float *x;
    void *memory;
    ds_stream s;
    ds_kernel k;
    CHECK(ds_stream_get_default(ds_device_current(), &s));
    CHECK(ds_pinned_alloc(100 * sizeof *x, &memory));
    x = memory;
    x[99] = 21;
    CHECK(ds_kernel_create(&desc, &k));
    CHECK(ds_kernel_launch(k, 100, (&(scale_args){ x, 2 }), sizeof(scale_args), s));
    CHECK(ds_stream_synchronize(s));
    EXPECT(x[99] == 42);
    CHECK(ds_kernel_destroy(k));
    CHECK(ds_pinned_free(memory));
    CHECK(ds_kernel_create(&checked, &k));
    CHECK(ds_kernel_destroy(k));
#include "4.c"
    EXPECT(r == DS_OK);
    return ds_shutdown() < 0;
}
