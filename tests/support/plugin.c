/* A shared object that holds a devstream of its own; the dlopen test loads, uses and unloads it
   again and again. Build: cc -shared -fPIC plugin.c -pthread -o plugin.so */
#define DEVSTREAM_STATIC
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_trace.h"

#include <stddef.h>
#include "kernels_ptx.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int plugin_use(void);
EXPORT int plugin_end(void);

typedef struct add_args {
    uint64_t *h;
    uint64_t n;
} add_args;

static int add_kernel(size_t first, size_t count, const void *args) {
    const add_args *a = (const add_args *)args;
    (void)first;
    (void)count;
    *a->h = *a->h * 3u + a->n;
    return 0;
}

static void add_host(void *user) {
    *(uint64_t *)user += 1;
}

static int run(ds_kernel k, ds_stream s, ds_stream own, uint64_t *h, void *dev) {
    uint64_t want = 1;
    *h = 1;
    for (uint64_t i = 0; i < 20; i++) {
        add_args args;
        args.h = h;
        args.n = i;
        if (ds_kernel_launch(k, 1, &args, sizeof args, i % 2 ? s : own) < 0)
            return 10;
        if (ds_stream_wait_stream(i % 2 ? own : s, i % 2 ? s : own) < 0)
            return 11;
        want = want * 3u + i;
    }
    if (ds_stream_launch_host_func(s, add_host, h, NULL) < 0)
        return 12;
    if (ds_copy(dev, h, sizeof *h, s) < 0 || ds_fill(h, 0, 4, 2, s) < 0 ||
        ds_copy(h, dev, sizeof *h, s) < 0)
        return 13;
    if (ds_stream_synchronize(s) < 0)
        return 14;
    return *h == want + 1 ? 0 : 15;
}

/* Uses streams (the thread's own too), an event, memory, a kernel and a host function; 0, or the
   step that failed. */
EXPORT int plugin_use(void) {
    ds_stream s, own;
    ds_event e;
    ds_kernel k;
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(add_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(add_args, n), sizeof(uint64_t) }
    };
    ds_kernel_desc desc = { 0 };
    void *h, *dev;
    int result;
    desc.name = "add";
    desc.cpu_fn = add_kernel;
    desc.args_size = sizeof(add_args);
    desc.params = params;
    desc.param_count = 2;
    desc.cuda.image = ptx_thrice;
    desc.cuda.entry = "thrice";
    desc.cuda.block = 1;
    if (ds_stream_create(NULL, &s) < 0 || ds_stream_get_per_thread(ds_device_current(), &own) < 0)
        return 1;
    if (ds_kernel_create(&desc, &k) < 0)
        return 2;
    if (ds_pinned_alloc(8, &h) < 0 || ds_device_alloc(ds_device_current(), 8, &dev) < 0)
        return 3;
    if (ds_stream_record_event(s, DS_EVENT_TIMING, &e) < 0)
        return 4;
    result = run(k, s, own, (uint64_t *)h, dev);
    if (ds_event_synchronize(e) < 0 || ds_event_destroy(e) < 0)
        return 5;
    if (ds_device_free(dev) < 0 || ds_pinned_free(h) < 0)
        return 6;
    if (ds_kernel_destroy(k) < 0 || ds_stream_destroy(s) < 0)
        return 7;
    return result;
}

/* What must come before dlclose. */
EXPORT int plugin_end(void) {
    return ds_shutdown() < 0;
}
