/* The owners and scopes of devstream.hpp, on the CPU driver. UNCHECKED=N: statements that must not
   compile. */
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

template <typename Owner> struct is_owner {
    static constexpr bool value =
        !std::is_copy_constructible<Owner>::value && !std::is_copy_assignable<Owner>::value &&
        std::is_nothrow_default_constructible<Owner>::value &&
        std::is_nothrow_move_constructible<Owner>::value &&
        std::is_nothrow_move_assignable<Owner>::value &&
        std::is_nothrow_destructible<Owner>::value && !std::is_convertible<Owner, bool>::value;
};

static_assert(is_owner<ds::stream>::value && is_owner<ds::event>::value &&
                  is_owner<ds::kernel>::value && is_owner<ds::graph>::value &&
                  is_owner<ds::graph_exec>::value && is_owner<ds::block<int>>::value &&
                  is_owner<ds::pinned<float>>::value,
              "owners are moved, not copied, and moves do not fail");
static_assert(sizeof(ds::stream) == sizeof(ds_stream) &&
                  sizeof(ds::block<int>) == 2 * sizeof(int *),
              "an owner is as large as what it owns");
static_assert(!std::is_convertible<ds_stream, ds::stream>::value &&
                  std::is_constructible<ds::stream, ds_stream>::value,
              "an owner takes a handle only if asked to");
static_assert(std::is_convertible<const ds::stream &, ds_stream>::value &&
                  !std::is_convertible<ds::stream, ds_stream>::value,
              "an owner with a name converts to its handle, a temporary one does not");
static_assert(!std::is_convertible<ds::block<int> &, int *>::value &&
                  !std::is_convertible<ds::block<int> &, void *>::value,
              "memory is not dereferenced or freed by accident");
static_assert(!std::is_copy_constructible<ds::device_scope>::value &&
                  !std::is_move_constructible<ds::stream_scope>::value,
              "scopes stay where they are");

#if UNCHECKED == 1
void unchecked() {
    ds::stream s;
    s.create();
}
#elif UNCHECKED == 2
void unchecked(ds_stream s) {
    ds::block<int> x;
    x.create(1, s);
}
#elif UNCHECKED == 3
void unchecked() {
    ds::device_scope scope;
    scope.enter(ds_cpu(0));
}
#elif UNCHECKED == 4
void unchecked(ds::pinned<int> &x) {
    x.reset();
}
#elif UNCHECKED == 5
struct with_constructor {
    with_constructor(const with_constructor &) {
    }
};

ds::block<with_constructor> unchecked;
#endif

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

/* For each kind of owner: a moved-from owner is empty, and a move to itself changes nothing. */
template <typename Owner> static int moves(Owner &a) {
    auto object = a.get();
    Owner b;
    Owner &same = a;
    CHECK(a && !b);
    a = std::move(same);
    CHECK(a);
    b = std::move(a);
    CHECK(b && !a);
    Owner c(std::move(b));
    CHECK(c && !b);
    a = std::move(c);
    CHECK(a && !c && c.reset() == DS_OK);
    auto now = a.get();
    CHECK(std::memcmp(&now, &object, sizeof now) == 0);
    return 0;
}

static int streams_and_events() {
    ds::stream s;
    ds::stream t;
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

    /* the object that an owner has is destroyed by the next one, by reset, by a move to it */
    ds_stream first = t.get();
    DS_CHECK(t.create());
    CHECK(ds_stream_query(first) == DS_ERR_INVALID_HANDLE);
    ds_stream second = t.release();
    CHECK(!t && t.reset() == DS_OK && ds_stream_query(second) >= 0);
    t = ds::stream(second);
    CHECK(t.get().id == second.id);
    t = std::move(s);
    CHECK(ds_stream_query(second) == DS_ERR_INVALID_HANDLE && ds_stream_query(t) >= 0);
    ds_stream third = t.get();
    CHECK(t.reset() == DS_OK && !t && ds_stream_query(third) == DS_ERR_INVALID_HANDLE);

    /* and at the end of its scope */
    ds_stream fourth;
    {
        ds::stream u;
        DS_CHECK(u.create());
        fourth = u;
    }
    CHECK(ds_stream_query(fourth) == DS_ERR_INVALID_HANDLE);

    /* a second destruction is reported by reset */
    DS_CHECK(s.create());
    DS_CHECK(ds_stream_destroy(s));
    CHECK(s.reset() == DS_ERR_INVALID_HANDLE && !s);
    return 0;
}

/* Returns the number of blocks of device memory. */
static int64_t blocks() {
    ds_mem_stats stats;
    DS_CHECK(ds_mem_get_stats(ds_device_current(), &stats));
    return stats.allocation[DS_STAT_ALL].current;
}

static int memory() {
    ds::stream s;
    ds::block<int> x;
    ds::block<int> none;
    ds::pinned<int> h;
    ds_pointer_info info;
    DS_CHECK(s.create());
    DS_CHECK(x.create(1000, s));
    DS_CHECK(h.create(1000));
    CHECK(x.count() == 1000 && x.bytes() == 4000 && h.bytes() == 4000);
    int next = 0;
    for (int &value : h)
        value = next++;
    DS_CHECK(ds_copy(x.get(), h.get(), x.bytes(), s));
    DS_CHECK(ds_fill(h.get(), 0, 4, h.count(), s));
    DS_CHECK(ds_copy(h.get() + 1, x.get(), 999 * sizeof(int), s));
    DS_CHECK(ds_stream_synchronize(s));
    CHECK(h[0] == 0 && h[1] == 0 && h[999] == 998);
    CHECK(moves(x) == 0 && x.count() == 1000 && moves(h) == 0);

    /* too many bytes for a size_t, for the allocator, for the device; each leaves an empty owner */
    const size_t most = static_cast<size_t>(-1);
    CHECK(none.create(most / 4 + 2, s) == DS_ERR_OUT_OF_MEMORY && !none && none.count() == 0);
    CHECK(none.create(most / 8, s) == DS_ERR_OUT_OF_MEMORY && !none);
    CHECK(h.create(most / 4 + 2) == DS_ERR_OUT_OF_MEMORY && !h && h.begin() == h.end());
    DS_CHECK(none.create(0, s));
    CHECK(!none && none.count() == 0);
    CHECK(blocks() == 1);
    CHECK(x.create(most / 8, s) == DS_ERR_OUT_OF_MEMORY && !x && x.bytes() == 0);
    CHECK(blocks() == 0);
    DS_CHECK(x.create(10, s));
    DS_CHECK(none.create(20, s));
    x = std::move(none);
    CHECK(blocks() == 1 && x.count() == 20 && none.count() == 0);

    DS_CHECK(h.create(10));
    int *ptr = h.release();
    CHECK(!h && h.count() == 0);
    DS_CHECK(ds_pointer_get_info(ptr, &info));
    CHECK(info.kind == DS_MEMORY_PINNED);
    DS_CHECK(ds_mem_pinned_free(ptr));
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
    DS_CHECK(k.launch(1, add_args{ word.get(), 1 }, s));
    DS_CHECK(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    DS_CHECK(k.launch(1, add_args{ word.get(), 10 }, s));
    DS_CHECK(g.capture_end(s));
    DS_CHECK(x.create(g));
    CHECK(moves(k) == 0 && moves(g) == 0 && moves(x) == 0);
    for (int i = 0; i < 2; i++)
        DS_CHECK(ds_graph_launch(x, s));
    DS_CHECK(ds_stream_synchronize(s));
    CHECK(word[0] == 22);

    DS_CHECK(g.create());
    size_t nodes = 1;
    DS_CHECK(ds_graph_get_nodes(g, nullptr, 0, &nodes));
    CHECK(nodes == 0);
    CHECK(g.capture_end(s) < 0 && !g); /* no capture is open */
    return 0;
}

static int scopes() {
    ds::stream s;
    ds_stream before;
    ds_stream now;
    ds_device device;
    DS_CHECK(s.create());
    DS_CHECK(ds_stream_get_current(ds_device_current(), &before));
    {
        ds::stream_scope in_stream;
        ds::device_scope in_device;
        ds::device_scope missing;
        CHECK(!in_stream && in_stream.leave() == DS_OK);
        DS_CHECK(in_stream.enter(s));
        DS_CHECK(ds_stream_get_current(ds_device_current(), &now));
        CHECK(in_stream && ds_stream_equal(now, s));
        DS_CHECK(in_device.enter(ds_cpu(1)));
        DS_CHECK(ds_device_get_current(&device));
        CHECK(in_device && device.index == 1);
        CHECK(missing.enter(ds_cpu(77)) == DS_ERR_DEVICE_RANGE && !missing);
        CHECK(in_device.leave() == DS_OK && !in_device);
        DS_CHECK(ds_device_get_current(&device));
        CHECK(device.index == 0);
        DS_CHECK(in_device.enter(ds_cpu(1)));
        DS_CHECK(in_device.enter(ds_cpu(0))); /* leaves the other one first */
        DS_CHECK(ds_device_get_current(&device));
        CHECK(device.index == 0);
    }
    DS_CHECK(ds_device_get_current(&device));
    DS_CHECK(ds_stream_get_current(device, &now));
    CHECK(device.index == 0 && ds_stream_equal(now, before));
    CHECK(ds_device_pop() == DS_ERR_ILLEGAL_STATE); /* nothing is pushed */
    return 0;
}

/* Returns 1 if the last error begins with this file, a line and a function. */
static int error_is_at(int line, const char *function) {
    char text[200];
    std::snprintf(text, sizeof text, "%s:%d: %s: ", __FILE__, line, function);
    return std::strncmp(ds_error_get_last(), text, std::strlen(text)) == 0;
}

/* An error names the caller's line, also if an object is destroyed first. */
static int sites() {
    ds::stream s;
    ds::block<int> x;
    ds::device_scope scope;
    ds_stream_desc wrong = ds_stream_desc_torch();
    wrong.flags = 77;
    DS_CHECK(s.create());
    int line = __LINE__ + 1;
    CHECK(s.create(&wrong) == DS_ERR_INVALID_VALUE && !s);
    CHECK(error_is_at(line, "ds_stream_create"));
    DS_CHECK(s.create());
    DS_CHECK(x.create(1, s));
    line = __LINE__ + 1;
    CHECK(x.create(static_cast<size_t>(-1), s) == DS_ERR_OUT_OF_MEMORY);
    CHECK(error_is_at(line, "ds_mem_alloc"));
    line = __LINE__ + 1;
    CHECK(scope.enter(ds_cpu(77)) == DS_ERR_DEVICE_RANGE);
    CHECK(error_is_at(line, "ds_device_push"));
    return 0;
}

#undef DS_CHECK_HANDLER
#define DS_CHECK_HANDLER(result, text, file, line) return (result)

/* Fails after an object of each kind was created. */
static ds_result fails_by_return(ds_stream *out) {
    ds::stream s;
    ds::block<int> x;
    ds::stream_scope scope;
    DS_CHECK(s.create());
    DS_CHECK(x.create(10, s));
    DS_CHECK(scope.enter(s));
    *out = s;
    DS_CHECK(x.create(static_cast<size_t>(-1), s));
    return DS_OK;
}

#ifdef __cpp_exceptions
#undef DS_CHECK_HANDLER
#define DS_CHECK_HANDLER(result, text, file, line) throw(result)

static ds_result fails_by_throw(ds_stream *out) {
    ds::stream s;
    ds::block<int> x;
    ds::stream_scope scope;
    DS_CHECK(s.create());
    DS_CHECK(x.create(10, s));
    DS_CHECK(scope.enter(s));
    *out = s;
    DS_CHECK(x.create(static_cast<size_t>(-1), s));
    return DS_OK;
}

static ds_result result_of_throw(ds_stream *out) {
    try {
        return fails_by_throw(out);
    } catch (ds_result thrown) {
        return thrown;
    }
}
#endif

#undef DS_CHECK_HANDLER
#define DS_CHECK_HANDLER(result, text, file, line) ds_check_report(result, text, file, line)

/* A function that is left by a failed check leaks nothing: neither object, memory nor scope. */
static int failures() {
    ds_stream s = ds_stream();
    CHECK(fails_by_return(&s) == DS_ERR_OUT_OF_MEMORY);
    CHECK(ds_stream_query(s) == DS_ERR_INVALID_HANDLE);
    CHECK(ds_stream_pop() == DS_ERR_ILLEGAL_STATE);
#ifdef __cpp_exceptions
    s = ds_stream();
    CHECK(result_of_throw(&s) == DS_ERR_OUT_OF_MEMORY);
    CHECK(ds_stream_query(s) == DS_ERR_INVALID_HANDLE);
    CHECK(ds_stream_pop() == DS_ERR_ILLEGAL_STATE);
#endif
    CHECK(blocks() == 0);
    return 0;
}

/* Destroyed after the three below, whose destructors do not start devstream again. */
struct last {
    ~last() {
        if (ds_is_initialized())
            std::_Exit(3);
    }
};

static last end;
static ds::stream late;
static ds::pinned<char> late_memory;
static ds::device_scope late_scope;

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
    if (streams_and_events() || memory() || kernels_and_graphs() || scopes() || sites() ||
        failures())
        return 1;
    DS_CHECK(ds_shutdown());
    CHECK(warnings == 0); /* of objects that were not destroyed */

    DS_CHECK(late.create());
    DS_CHECK(late_memory.create(10));
    DS_CHECK(late_scope.enter(ds_cpu(0)));
    DS_CHECK(ds_shutdown());
    return 0;
}
