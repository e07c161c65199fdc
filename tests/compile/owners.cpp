/* The owners of devstream.hpp, on the CPU driver: create, move, release, reset, scopes, typed
   allocation. PLAIN: without devstream_alloc.h. */
#if !defined(PLAIN) && __has_include("devstream_alloc.h")
#include "devstream_alloc.h"
#endif
#include "devstream.hpp"
#include "devstream.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define CHECK(what)                                                                 \
    do {                                                                            \
        if (!(what)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            return 1;                                                               \
        }                                                                           \
    } while (0)

static_assert(!std::is_copy_constructible<ds::stream>::value, "owners are not copied");
static_assert(!std::is_copy_assignable<ds::block<int>>::value, "owners are not copied");
static_assert(std::is_nothrow_move_constructible<ds::graph_exec>::value, "moves do not fail");
static_assert(std::is_nothrow_move_assignable<ds::pinned<int>>::value, "moves do not fail");
static_assert(!std::is_copy_constructible<ds::device_scope>::value, "scopes are not copied");

static int warnings;

static void count_warnings(const ds_log_item *item, void *) {
    if (item->level == DS_LOG_WARNING) {
        std::fprintf(stderr, "%s\n", item->text);
        warnings++;
    }
}

struct add_args {
    int *x;
    int summand;
};

static int add(size_t first, size_t count, const void *args) {
    const add_args *a = static_cast<const add_args *>(args);
    for (size_t i = first; i < first + count; i++)
        a->x[i] += a->summand;
    return 0;
}

/* Of each kind of owner: moved-from is empty, self-move changes nothing, release gives it up. */
template <typename Owner> static int moves(Owner &a) {
    Owner b;
    Owner &same = a;
    CHECK(a && !b);
    a = std::move(same);
    CHECK(a);
    b = std::move(a);
    CHECK(b && !a); // NOLINT: what is left is empty
    Owner c(std::move(b));
    CHECK(c && !b);
    a = std::move(c);
    CHECK(a && !c && c.reset() == DS_OK);
    return 0;
}

static int streams_and_events() {
    ds::stream s, t;
    ds::event e;
    ds_stream_desc desc = ds_stream_desc_cuda();
    unsigned flags = 0;
    DS_CHECK(s.create());
    DS_CHECK(t.create(&desc));
    DS_CHECK(e.create(DS_EVENT_TIMING, "e"));
    DS_CHECK(ds_stream_get_flags(t, &flags));
    CHECK(flags == DS_STREAM_BLOCKING);
    DS_CHECK(ds_event_record(e, s));
    DS_CHECK(ds_stream_wait_event(t, e));
    CHECK(moves(s) == 0 && moves(e) == 0);

    ds_stream old = t;
    DS_CHECK(t.create()); /* destroys the present one */
    CHECK(ds_stream_query(old) == DS_ERR_INVALID_HANDLE);
    ds_stream mine = t.release();
    CHECK(!t && t.reset() == DS_OK);
    t = ds::stream(mine);
    CHECK(t.get().id == mine.id);
    CHECK(t.reset() == DS_OK && ds_stream_query(mine) == DS_ERR_INVALID_HANDLE);
    return 0;
}

static int memory() {
    ds::stream s;
    ds::block<int> x, none;
    ds::pinned<int> h;
    ds_pointer_info info;
    DS_CHECK(s.create());
    DS_CHECK(ds::alloc(1000, s, &x));
    DS_CHECK(h.create(1000));
    CHECK(x.size() == 1000 && x.size_bytes() == 4000 && h.size_bytes() == 4000);
    for (int i = 0; i < 1000; i++)
        h[i] = i;
    DS_CHECK(ds_copy(x, h, x.size_bytes(), s));
    std::memset(h.get(), 0, h.size_bytes());
    DS_CHECK(ds_copy(h, x, h.size_bytes(), s));
    DS_CHECK(ds_stream_synchronize(s));
    CHECK(h[999] == 999);
    CHECK(moves(x) == 0 && x.size() == 1000 && moves(h) == 0);

    CHECK(ds::alloc(SIZE_MAX / 4 + 2, s, &none) < 0 && !none && none.size() == 0);
    CHECK(x.create(SIZE_MAX / 8, s) < 0 && !x && x.size() == 0); /* and the former is freed */
    int *ptr = h.release();
    CHECK(!h && h.size() == 0);
    DS_CHECK(ds_pointer_get_info(ptr, &info));
    CHECK(info.kind == DS_MEMORY_PINNED);
#ifdef DEVSTREAM_ALLOC_H_INCLUDED
    DS_CHECK(ds_mem_pinned_free(ptr));
#else
    DS_CHECK(ds_pinned_free(ptr));
#endif
    return 0;
}

static int kernels_and_graphs() {
    ds::stream s;
    ds::kernel k;
    ds::graph g;
    ds::graph_exec x;
    ds::pinned<int> word;
    ds_kernel_desc desc;
    std::memset(&desc, 0, sizeof desc);
    desc.name = "add";
    desc.cpu_fn = add;
    desc.args_size = sizeof(add_args);
    DS_CHECK(s.create());
    DS_CHECK(k.create(desc));
    DS_CHECK(word.create(1));
    word[0] = 1;
    DS_CHECK(k.launch(1, add_args{ word, 1 }, s));
    DS_CHECK(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    DS_CHECK(k.launch(1, add_args{ word, 10 }, s));
    DS_CHECK(g.capture_end(s));
    DS_CHECK(x.create(g));
    CHECK(moves(k) == 0 && moves(g) == 0 && moves(x) == 0);
    for (int i = 0; i < 2; i++)
        DS_CHECK(ds_graph_launch(x, s));
    DS_CHECK(ds_stream_synchronize(s));
    CHECK(word[0] == 22);
    DS_CHECK(g.create()); /* an empty one */
    size_t nodes = 1;
    DS_CHECK(ds_graph_get_nodes(g, nullptr, 0, &nodes));
    CHECK(nodes == 0);
    return 0;
}

static int scopes() {
    ds::stream s;
    ds_stream before, now;
    ds_device device;
    DS_CHECK(s.create());
    DS_CHECK(ds_stream_get_current(ds_device_current(), &before));
    {
        ds::current_stream_scope scope(s);
        DS_CHECK(ds_stream_get_current(ds_device_current(), &now));
        CHECK(scope && ds_stream_equal(now, s));
        ds::device_scope other(ds_cpu(1));
        DS_CHECK(ds_device_get_current(&device));
        CHECK(other && device.index == 1);
        ds::device_scope missing(ds_cpu(77));
        CHECK(!missing && std::strstr(ds_error_get_last(), "cpu:77"));
    }
    DS_CHECK(ds_stream_get_current(ds_device_current(), &now));
    CHECK(ds_stream_equal(now, before));
    return 0;
}

/* An error names the caller's line, also if an object is destroyed first. */
static int sites() {
    ds::stream s;
    ds_stream_desc wrong = ds_stream_desc_torch();
    char text[100];
    wrong.flags = 77;
    DS_CHECK(s.create());
    std::snprintf(text, sizeof text, "%s:%d: ds_stream_create: ", __FILE__, __LINE__ + 1);
    CHECK(s.create(&wrong) == DS_ERR_INVALID_VALUE && !s);
    CHECK(std::strstr(ds_error_get_last(), text) == ds_error_get_last());
    return 0;
}

/* Destroyed after the two below, whose destructors start nothing once devstream has ended. */
struct last {
    ~last() {
        if (ds_is_initialized())
            std::_Exit(3);
    }
};

static last end;
static ds::stream late;
static ds::pinned<char> late_memory;

int main() {
    ds_cpu_desc cpu;
    ds_init_desc init;
    std::memset(&cpu, 0, sizeof cpu);
    std::memset(&init, 0, sizeof init);
    cpu.devices = 2;
    init.cpu = &cpu;
    init.log_fn = count_warnings;
    init.log_level = DS_LOG_WARNING;
    DS_CHECK(ds_init(&init));
    if (streams_and_events() || memory() || kernels_and_graphs() || scopes() || sites())
        return 1;
    DS_CHECK(ds_shutdown());
    CHECK(warnings == 0); /* nothing was left */

    DS_CHECK(late.create());
    DS_CHECK(late_memory.create(10));
    DS_CHECK(ds_shutdown());
    return 0;
}
