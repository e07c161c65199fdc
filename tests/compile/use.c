/* A program that uses a bit of everything and checks its result. Valid as C11 and as C++11.
   IMPLEMENT: all in this file. */
#ifdef IMPLEMENT
#define DEVSTREAM_IMPLEMENTATION
#endif
#include "devstream.h"
#include <stdio.h>
#include <string.h>

#define N 1000u
#define TRY(call)                                                                    \
    do {                                                                             \
        if ((call) < 0) {                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ds_error_get_last()); \
            return 1;                                                                \
        }                                                                            \
    } while (0)
#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            return 1;                                                          \
        }                                                                      \
    } while (0)

typedef struct add_args {
    unsigned *data;
    unsigned summand;
} add_args;

static int add(size_t first, size_t count, const void *args) {
    const add_args *a = (const add_args *)args;
    for (size_t i = first; i < first + count; i++)
        a->data[i] += a->summand;
    return 0;
}

static void mark(void *user) {
    *(int *)user = 1;
}

static int leave_by_return(ds_stream stream, int *out_is_current) {
    ds_stream current;
    DS_STREAM_SCOPE(stream) {
        TRY(ds_stream_get_current(ds_device_current(), &current));
        *out_is_current = ds_stream_equal(current, stream);
        return 0;
    }
    return 1; /* the push failed */
}

static int leave_by_break(ds_stream stream) {
    int entered = 0;
    DS_STREAM_SCOPE(stream) {
        entered = 1;
        if (entered)
            break;
        entered = 2;
    }
    return entered == 1 ? 0 : 1;
}

static void count_ranges(const ds_range_event *event, void *user) {
    if (event->kind == DS_RANGE_PUSH || event->kind == DS_RANGE_POP)
        ++*(int *)user;
}

static int ranges(void) {
    int told = 0;
    ds_range range;
    ds_domain domain;
    ds_range_desc desc;
    memset(&desc, 0, sizeof desc);
    TRY(ds_domain_create("use", &domain));
    desc.text = "with a number";
    desc.domain = domain;
    desc.payload.kind = DS_PAYLOAD_F64;
    desc.payload.value.f64 = 0.5;
    TRY(ds_range_set_hook(count_ranges, &told));
    for (int i = 0; i < 3; i++) {
        DS_RANGE_SCOPE("turn") {
            if (i == 1)
                continue;
            DS_RANGE_SCOPE_WITH(&desc) {
                if (i == 2)
                    break;
            }
        }
    }
    CHECK(ds_range_push("level") == 0 && ds_range_push("level") == 1 && ds_range_pop() == 1 &&
          ds_range_pop() == 0);
    TRY(ds_range_set_hook(NULL, NULL));
    CHECK(told == 3 * 2 + 2 * 2 + 4);
    TRY(ds_range_start("from", &range));
    TRY(ds_range_end(range));
    CHECK(ds_range_end(range) == DS_ERR_INVALID_HANDLE);
    return 0;
}

int main(void) {
    static unsigned host[N];
    ds_stream stream, before, after, none;
    ds_event done;
    ds_kernel kernel;
    void *device;
    int marked = 0, was_current = 0;

    ds_param params[2];
    memset(params, 0, sizeof params);
    params[0].kind = DS_PARAM_READ_WRITE;
    params[0].offset = offsetof(add_args, data);
    params[0].size = sizeof(void *);
    params[1].kind = DS_PARAM_VALUE;
    params[1].offset = offsetof(add_args, summand);
    params[1].size = sizeof(unsigned);
    ds_kernel_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.name = "add";
    desc.cpu_fn = add;
    desc.args_size = sizeof(add_args);
    desc.params = params;
    desc.param_count = 2;

    if (ranges())
        return 1;
    CHECK(!ds_is_initialized()); /* ranges start nothing */
    TRY(ds_device_set_current(ds_cpu(0)));
    TRY(ds_stream_create(NULL, &stream));
    TRY(ds_event_create(DS_EVENT_DEFAULT, "done", &done));
    TRY(ds_kernel_create(&desc, &kernel));
    TRY(ds_device_alloc(ds_device_current(), sizeof host, &device));

    add_args args;
    args.data = (unsigned *)device;
    args.summand = 35;
    TRY(ds_fill(device, 7, sizeof(unsigned), N, stream));
    TRY(ds_kernel_launch(kernel, N, &args, sizeof args, stream));
    TRY(ds_copy(host, device, sizeof host, stream));
    TRY(ds_stream_launch_host_func(stream, mark, &marked, NULL));
    TRY(ds_event_record(done, stream));
    TRY(ds_event_synchronize(done));
    CHECK(marked == 1);
    for (unsigned i = 0; i < N; i++)
        CHECK(host[i] == 42);

    TRY(ds_stream_get_current(ds_device_current(), &before));
    CHECK(leave_by_return(stream, &was_current) == 0);
    CHECK(leave_by_break(stream) == 0);
    DS_DEVICE_OF_SCOPE(device)
        CHECK(ds_backend_is_available(DS_DEVICE_CURRENT) && ds_is_initialized());
    TRY(ds_stream_get_current(ds_device_current(), &after));
    CHECK(was_current && ds_stream_equal(before, after));

    /* An error names this file, unless the macros that remember it were asked away. */
    none.id = 0;
    const int line = __LINE__ + 1;
    CHECK(ds_stream_query(none) == DS_ERR_INVALID_HANDLE);
#ifdef DEVSTREAM_NO_SITES
    (void)line;
    CHECK(ds_error_get_last()[0] != 0 && strstr(ds_error_get_last(), "use.c") == NULL);
#else
    char text[16];
    snprintf(text, sizeof text, ":%d", line);
    CHECK(strstr(ds_error_get_last(), "use.c") != NULL &&
          strstr(ds_error_get_last(), text) != NULL);
#endif

    TRY(ds_device_free(device));
    TRY(ds_kernel_destroy(kernel));
    TRY(ds_event_destroy(done));
    TRY(ds_stream_destroy(stream));
    TRY(ds_shutdown());
    return 0;
}
