/* The layer is on, and must report what the page says. */
#include "page.h"

#include "devstream_check.h"

typedef struct kernel_args {
    void *x;
} kernel_args;

static int full;

static int nothing(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static void report_fn(const ds_hazard_report *report, void *user) {
    (void)user;
    fputs(report->text, stderr);
}

static int make_kernel(ds_param_kind kind, ds_kernel *out) {
    ds_param param = { kind, offsetof(kernel_args, x), sizeof(void *) };
    CHECK(ds_kernel_create(&(ds_kernel_desc){ .name = "nothing",
                                              .cpu_fn = nothing,
                                              .args_size = sizeof(kernel_args),
                                              .params = &param,
                                              .param_count = 1 },
                           out));
    return 0;
}

int main(void) {
    enum { size = 4096, items = 16 };

    static char foreign[size];
    ds_stream a, b;
    ds_event e;
    ds_kernel k, reader;
    void *x, *pinned, *batch, *counters;
    kernel_args args;

#include "1.c"
    CHECK(ds_stream_create(&(ds_stream_desc){ .label = "A" }, &a));
    CHECK(ds_stream_create(&(ds_stream_desc){ .label = "B" }, &b));
    CHECK(ds_event_create(0, NULL, &e));
    CHECK(ds_device_alloc(ds_device_current(), size, &x));
    CHECK(ds_device_alloc(ds_device_current(), size, &counters));
    CHECK(ds_pinned_alloc(size, &pinned));
    CHECK(ds_pinned_alloc(size, &batch));
    args.x = x;
    if (make_kernel(DS_PARAM_WRITE, &k) || make_kernel(DS_PARAM_READ, &reader))
        return 1;

#include "3.c"
    CHECK(ds_stream_wait_stream(a, b));
#include "4.c"
    CHECK(ds_stream_wait_stream(b, a));
    {
#include "5.c"
    } {
#include "6.c"
    } CHECK(ds_stream_synchronize(b));
#include "7.c"
#include "8.c"
#include "9.c"
    CHECK(ds_fill(counters, 0, 1, 64, a));
    CHECK(ds_fill(counters, 1, 1, 64, b));
    CHECK(ds_fill(x, 0, 1, size, a));
    {
#include "10.c"
        EXPECT(r == DS_OK && strstr(text, "of A comes before") && strstr(text, "one timeline"));
        CHECK(ds_fill(x, 0, 1, size, a));
        CHECK(ds_check_get_point(a, &from));
        CHECK(ds_check_get_point(b, &to));
        EXPECT(ds_check_why(from, to, text, sizeof text) == DS_NOT_READY);
        EXPECT(strstr(text, "no wait orders") && strstr(text, "ordered up to operation"));
    }
#include "2.c"
    EXPECT(stats.reports == 0 && stats.possible == 0 && stats.unchecked == 0);
    CHECK(ds_kernel_destroy(k));
    CHECK(ds_kernel_destroy(reader));
    CHECK(ds_event_destroy(e));
    CHECK(ds_device_free(x));
    CHECK(ds_device_free(counters));
    CHECK(ds_pinned_free(pinned));
    CHECK(ds_pinned_free(batch));
    CHECK(ds_stream_destroy(a));
    CHECK(ds_stream_destroy(b));
    return ds_shutdown() < 0;
}
