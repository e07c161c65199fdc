#include "page.h"

typedef struct {
    float *x;
    float factor;
} scale_args;

static int scale(size_t first, size_t count, const void *args) {
    const scale_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->x[i] *= a->factor;
    return 0;
}

int main(void) {
    enum { items = 1000 };

    const size_t size = items * sizeof(float);
    ds_device device = ds_device_current();
    ds_stream s, t;
    ds_event fork;
    ds_kernel k;
    void *x, *pinned, *more;
    CHECK(ds_stream_create(NULL, &s));
    CHECK(ds_stream_create(NULL, &t));
    CHECK(ds_event_create(DS_EVENT_DEFAULT, "fork", &fork));
    CHECK(ds_kernel_create(
        &(ds_kernel_desc){ .name = "scale", .cpu_fn = scale, .args_size = sizeof(scale_args) },
        &k));
    CHECK(ds_device_alloc(device, 3 * size, &x));
    CHECK(ds_pinned_alloc(size, &pinned));
    float *number = pinned;
    number[0] = 1;
    scale_args args = { x, 2 }, args_s = { (float *)x + items, 2 },
               args_t = { (float *)x + 2 * items, 2 };
#include "1.c"
    float expected = 1;
    for (int i = 0; i < 100; i++)
        expected *= 2;
    EXPECT(number[0] == expected);

#include "2.c"
    CHECK(ds_graph_destroy(graph));
#include "3.c"
    EXPECT(mode == DS_CAPTURE_RELAXED);
    CHECK(ds_device_free(more));

#include "4.c"
    CHECK(ds_graph_instantiate(g, NULL, &exec));
    CHECK(ds_graph_launch(exec, s));
    CHECK(ds_copy(pinned, x, size, s));
    CHECK(ds_stream_synchronize(s));
    EXPECT(number[0] == 0);

    CHECK(ds_graph_exec_destroy(exec));
    CHECK(ds_graph_destroy(g));

#include "5.c"
    ds_graph_exec repeat;
    *again = 1;
    CHECK(ds_graph_instantiate(loop, NULL, &repeat));
    CHECK(ds_graph_launch(repeat, s));
    CHECK(ds_stream_synchronize(s));
    EXPECT(*again == 0);
    CHECK(ds_graph_exec_destroy(repeat));
    CHECK(ds_graph_destroy(loop));
    CHECK(ds_pinned_free(again));

    CHECK(ds_kernel_destroy(k));
    CHECK(ds_event_destroy(fork));
    CHECK(ds_stream_destroy(s));
    CHECK(ds_stream_destroy(t));
    CHECK(ds_device_free(x));
    CHECK(ds_pinned_free(pinned));
    return ds_shutdown() < 0;
}
