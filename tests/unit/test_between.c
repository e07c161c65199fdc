/* What another thread, process or stream may do in the middle of a call of the core or of the
   drivers: it is made to happen at just that point. Each test has a process of its own, which a
   crash or a hang ends. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void come_before(const volatile void *what);
static int lock_after_guest(pthread_mutex_t *m);
static int guest_after_unlock(pthread_mutex_t *m);
static void late_load(const volatile void *what);
static long late_syscall(long number, ...);
#define pthread_mutex_lock(m) lock_after_guest(m)
#define pthread_mutex_unlock(m) guest_after_unlock(m)
#undef atomic_load
#define atomic_load(p) (late_load(p), atomic_load_explicit(p, memory_order_seq_cst))
#undef atomic_fetch_sub
#define atomic_fetch_sub(p, v) \
    (come_before(p), atomic_fetch_sub_explicit(p, v, memory_order_seq_cst))
#define syscall late_syscall
#ifdef DEVSTREAM_CUDA
#include <cuda_runtime_api.h>
static void (*after_begin)(void);

static cudaError_t begin_before_guest(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    void (*then)(void) = after_begin;
    cudaError_t code = cudaStreamBeginCapture(stream, mode);
    after_begin = NULL;
    if (then)
        then();
    return code;
}

#define cudaStreamBeginCapture begin_before_guest
#endif
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_rng.h"
#include "devstream_alloc.h"
#include "base/handle.h"
#include "base/pin.h"
#include "unit.h"
#ifdef DEVSTREAM_CUDA
#include "standin/standin.h"
#endif
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef syscall
#undef atomic_load
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)

/* A failure ends the process: cmocka's own would go on with the next test, here or on another
   thread's stack. */
#undef ok
#define ok(call)                                                                         \
    do {                                                                                 \
        ds_result ok_result_ = (call);                                                   \
        if (ok_result_ != DS_OK)                                                         \
            wrong(__LINE__, #call, ds_result_get_name(ok_result_), ds_error_get_last()); \
    } while (0)
#define holds(condition)                               \
    do {                                               \
        if (!(condition))                              \
            wrong(__LINE__, #condition, "not so", ""); \
    } while (0)

static void wrong(int line, const char *what, const char *how, const char *text) {
    fprintf(stderr, "line %d: %s is %s %s\n", line, what, how, text);
    _exit(1);
}

/* the guest comes before this thread takes this lock, or counts this down */
static _Thread_local const volatile void *door;
static _Thread_local const volatile void *exit_door; /* and after it has given this lock up */
/* is set when this thread is about to take a lock other than the library's */
static _Thread_local _Atomic int *at_a_lock;
/* is set to 1 when this thread finds a lock taken; the thread is then suspended until it is 2 */
static _Thread_local _Atomic int *lock_late;
static void (*guest)(void);

static void come_before(const volatile void *what) {
    if (!door || door != what)
        return;
    door = NULL;
    guest();
}

static int lock_after_guest(pthread_mutex_t *m) {
    come_before(m);
    if (at_a_lock && m != &ds__g.mutex)
        *at_a_lock = 1;
    if (lock_late && pthread_mutex_trylock(m) == 0)
        return 0;
    if (lock_late) {
        _Atomic int *late = lock_late;
        lock_late = NULL;
        *late = 1;
        while (*late != 2)
            sched_yield();
    }
    return pthread_mutex_lock(m);
}

static int guest_after_unlock(pthread_mutex_t *m) {
    int r = pthread_mutex_unlock(m);
    if (exit_door && exit_door == m) {
        exit_door = NULL;
        guest();
    }
    return r;
}

/* the worker comes late to the word that it sleeps on: when all that sleep there were called */
static _Atomic int worker_late;
static _Atomic int called;
/* the thread for host functions sleeps on until there are two for it, and the workers until all
   is over */
static _Atomic int host_late;

static void late_load(const volatile void *what) {
    if (!worker_late || what != &ds__cpu.wake_word)
        return;
    worker_late = 0;
    while (!called)
        sched_yield();
}

static void become_late(long number, const void *word, int futex) {
    if (number != SYS_futex)
        return;
    if (futex == 129 /* FUTEX_WAKE_PRIVATE */ && word == &ds__cpu.wake_word &&
        atomic_load(&ds__cpu.quit))
        called = 1;
    if (futex != 128 /* FUTEX_WAIT_PRIVATE */)
        return;
    while (host_late && word == &ds__cpu.wake_word)
        sched_yield();
    for (int two = 0; host_late && word == &ds__cpu.host_word && !two; sched_yield()) {
        ds__spinlock_lock(&ds__cpu.lock);
        two = ds__cpu.host_head && ds__cpu.host_head->next;
        ds__spinlock_unlock(&ds__cpu.lock);
    }
}

/* As the C library's: it takes six, however many there are. */
__attribute__((no_sanitize("address"), no_sanitize("thread"))) static long late_syscall(long number,
                                                                                        ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    long r = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int error = errno;
    become_late(number, (const void *)a[0], (int)a[1]);
    errno = error;
    return r;
}

static void set_deadline(void) {
    const char *timeout = getenv("DS_TEST_TIMEOUT"); /* seconds, as of the suites */
    alarm(timeout ? (unsigned)atoi(timeout) : 120);
}

/* Runs it in a process that has not called devstream yet; what it left is found. */
static void run_alone(void (*test)(void)) {
    /* cmocka would go on with the next test */
    static const int faults[] = { SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE };
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
            signal(faults[i], SIG_DFL);
        set_deadline();
        test();
        ok(ds_shutdown());
#ifdef DEVSTREAM_CUDA
        char report[200];
        if (standin_live(report, sizeof report))
            wrong(__LINE__, "the end", "not clean:", report);
#endif
        exit(0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        fail_msg("ended by signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    assert_int_equal(WEXITSTATUS(status), 0);
}

static pthread_t begin(void *(*run)(void *), void *user) {
    pthread_t thread;
    holds(pthread_create(&thread, NULL, run, user) == 0);
    return thread;
}

static void wait_for(_Atomic int *flag, int value) {
    while (*flag != value)
        sched_yield();
}

static ds_stream stream_on(ds_device device) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    return s;
}

static void nothing(void *user) {
    (void)user;
}

/* ---- threads and ds_shutdown ---- */

/* The allocator keeps events of a stream that has ended. */
static void *allocate(void *user) {
    ds_device devices[2] = { ds_cpu(0), ds_cuda(0) };
    for (int i = 0; i < 1 + ds_backend_is_available(DS_DEVICE_CUDA); i++) {
        void *p;
        ds_stream s = stream_on(devices[i]);
        ok(ds_mem_alloc(1000, s, &p));
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
    }
    return user;
}

/* The device's own generator is there until the end. */
static void *draw(void *user) {
    void *p;
    ds_rng g;
    ds_stream s = stream_on(ds_cpu(0));
    ok(ds_device_alloc(ds_cpu(0), 4096, &p));
    ok(ds_rng_get_default(ds_cpu(0), &g));
    ok(ds_rng_uniform(g, ds_float32(), p, 1024, 0, 1, s));
    ok(ds_stream_synchronize(s));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    return user;
}

static void end_what_allocated(void) {
    pthread_join(begin(allocate, NULL), NULL);
    ok(ds_shutdown());
}

static void end_what_drew(void) {
    pthread_join(begin(draw, NULL), NULL);
    ok(ds_shutdown());
    pthread_join(begin(draw, NULL), NULL);
    ok(ds_shutdown()); /* this thread's part in it is of the end before */
}

static void test_a_thread_that_never_called_may_end_it(void **state) {
    (void)state;
    run_alone(end_what_allocated);
    run_alone(end_what_drew);
}

static _Atomic int step;

static void *call_before_and_after(void *user) {
    ok(ds_stream_destroy(stream_on(ds_cpu(0))));
    step = 1;
    wait_for(&step, 2);
    if (user)
        ok(ds_shutdown());
    else
        ok(ds_device_set_current(ds_cpu(0)));
    return NULL;
}

static void *leave_a_stream(void *user) {
    ds_stream s;
    void *p;
    ok(ds_stream_get_per_thread(ds_cpu(0), &s));
    ok(ds_mem_alloc(1000, s, &p));
    ok(ds_mem_free(p));
    return user;
}

/* Bookkeeping that is freed is spoilt, and nobody gets it again: nothing of it can be used
   unnoticed. */
typedef struct block {
    struct block *next;
    size_t size;
    _Alignas(16) char bytes[];
} block;

static block *spoilt;

static void *alloc_block(size_t size, void *user) {
    block *b = malloc(sizeof *b + size);
    (void)user;
    if (!b)
        return NULL;
    b->size = size;
    return b->bytes;
}

static void spoil_block(void *ptr, void *user) {
    block *b = (void *)((char *)ptr - offsetof(block, bytes));
    pthread_mutex_t *lock = user;
    memset(b->bytes, 0xdd, b->size);
    pthread_mutex_lock(lock);
    b->next = spoilt;
    spoilt = b;
    pthread_mutex_unlock(lock);
}

static void call_after_an_end(void *ends) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    ok(ds_init(&(ds_init_desc){ .allocator = { alloc_block, spoil_block, &lock } }));
    pthread_t old = begin(call_before_and_after, ends);
    wait_for(&step, 1);
    ok(ds_stream_destroy(stream_on(ds_cpu(0))));
    ok(ds_shutdown());
    pthread_join(begin(ends ? allocate : leave_a_stream, NULL), NULL);
    step = 2;
    pthread_join(old, NULL);
    ok(ds_stream_destroy(stream_on(ds_cpu(0))));
    ok(ds_shutdown());
    for (const block *b = spoilt; b; b = b->next)
        for (size_t k = 0; k < b->size; k++)
            holds(b->bytes[k] == (char)0xdd);
}

static void call_after_the_end(void) {
    call_after_an_end(NULL);
}

static void end_after_the_end(void) {
    call_after_an_end(&step);
}

/* What the thread has of before the end must not be used for it. */
static void test_a_thread_from_before_the_end_may_find_one_that_is_gone(void **state) {
    (void)state;
    run_alone(call_after_the_end);
    run_alone(end_after_the_end);
}

#ifdef DEVSTREAM_CUDA
static _Atomic int legacy_over, legacy_waits, may_end;
static pthread_t dying;

static void *end_later(void *user) {
    ds_stream s;
    ok(ds_stream_get_per_thread(ds_cuda(0), &s));
    may_end = 1;
    wait_for(&may_end, 2);
    return user;
}

static void *make_the_legacy_stream(void *user) {
    ds_stream s;
    at_a_lock = &legacy_waits;
    ok(ds_stream_get_legacy(ds_cpu(0), &s));
    at_a_lock = NULL;
    legacy_over = 1;
    return user;
}

/* This thread has the allocator's lock of the device, and is about to take the library's. */
static void guest_makes_the_legacy_stream(void) {
    may_end = 2;
    pthread_join(dying, NULL);
    dying = begin(make_the_legacy_stream, NULL);
    while (!legacy_over && !legacy_waits)
        sched_yield();
}

static void lock_in_both_orders(void) {
    ds_stream s;
    void *p;
    ok(ds_stream_get_per_thread(ds_cuda(0), &s));
    dying = begin(end_later, NULL);
    wait_for(&may_end, 1);
    guest = guest_makes_the_legacy_stream;
    door = &ds__g.mutex;
    ok(ds_mem_alloc(1000, s, &p));
    holds(!door);
    pthread_join(dying, NULL);
    ok(ds_mem_free(p));
}

/* A thread's stream that is gone takes the allocator's lock with it, under which the legacy
   stream may be made. */
static void test_a_legacy_stream_is_made_while_memory_is_allocated(void **state) {
    (void)state;
    run_alone(lock_in_both_orders);
}

/* ---- streams that others own ---- */

static cudaStream_t native_stream(void) {
    cudaStream_t native;
    holds(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    return native;
}

static ds_stream borrow(cudaStream_t native) {
    ds_stream w;
    ok(ds_stream_wrap(&(ds_stream_native){ .device = ds_cuda(0), .handle = native }, DS_BORROW,
                      NULL, NULL, &w));
    return w;
}

/* Memory is freed while a capture is open: the streams that capture nothing are asked. */
static void free_in_a_capture(void) {
    ds_stream s = stream_on(ds_cuda(0));
    ds_graph g;
    void *p;
    ok(ds_pinned_alloc(4096, &p));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_pinned_free(p));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void destroy_a_wrapper_in_use(void) {
    cudaStream_t native = native_stream();
    ds_stream w = borrow(native);
    ok(ds_stream_set_current(w, 0, NULL)); /* the object stays, as the current stream */
    ok(ds_stream_destroy(w));
    holds(cudaStreamDestroy(native) == cudaSuccess); /* it is the caller's */
    free_in_a_capture();
}

static void unwrap_a_stream_in_use(void) {
    ds_stream_native n;
    ds_stream w = stream_on(ds_cuda(0));
    ok(ds_stream_set_current(w, 0, NULL));
    ok(ds_stream_unwrap(w, &n));
    holds(cudaStreamDestroy(n.handle) == cudaSuccess);
    free_in_a_capture();
}

static void test_a_stream_that_is_the_callers_again_is_not_asked(void **state) {
    (void)state;
    run_alone(destroy_a_wrapper_in_use);
    run_alone(unwrap_a_stream_in_use);
}

static void destroy_a_wrapper_that_captures_beside(int hidden) {
    cudaStream_t native = native_stream();
    ds_stream w = borrow(native), s = stream_on(ds_cuda(0));
    ds_graph g;
    ok(ds_stream_set_current(w, 0, NULL));
    if (hidden) { /* what has the handle still is nobody's */
        ok(ds_stream_destroy(w));
        w = borrow(native);
    }
    ok(ds_capture_begin(w, DS_CAPTURE_RELAXED));
    ok(ds_stream_destroy(w));
    holds(cudaStreamDestroy(native) == cudaSuccess);
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void destroy_a_wrapper_that_captures(void) {
    destroy_a_wrapper_that_captures_beside(0);
}

static void destroy_the_last_wrapper_that_captures(void) {
    destroy_a_wrapper_that_captures_beside(1);
}

static void test_a_capture_ends_with_its_borrowed_streams_handle(void **state) {
    (void)state;
    run_alone(destroy_a_wrapper_that_captures);
    run_alone(destroy_the_last_wrapper_that_captures);
}
#endif

/* ---- captures and graphs ---- */

static ds_graph theirs;

static void *make_a_graph(void *user) {
    ok(ds_graph_create(NULL, &theirs));
    return user;
}

static void guest_makes_a_graph(void) {
    pthread_join(begin(make_a_graph, NULL), NULL);
}

static void end_a_capture_that_is_not_joined(void) {
    ds_stream s = stream_on(ds_cpu(0)), fork_of_it = stream_on(ds_cpu(0));
    ds_event e;
    ds_graph g;
    ds_graph_exec x;
    ds_capture_info info;
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_event_create(0, NULL, &e));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(fork_of_it, e));
    ok(ds_stream_launch_host_func(fork_of_it, nothing, NULL, NULL));
    ok(ds_capture_get_info(s, &info));
    guest = guest_makes_a_graph;
    door = &((ds__graph *)ds__slot_at(&ds__g.graphs, (uint32_t)info.graph.id - 1))->capturing;
    holds(ds_capture_end(s, &g) < 0);
    holds(!door);
    ok(ds_graph_instantiate(theirs, NULL, &x)); /* nobody captures into it */
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(theirs));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(fork_of_it));
    ok(ds_stream_destroy(s));
}

/* The graph of a capture that failed is gone at once, and its place may be another's before the
   capture is over. */
static void test_a_capture_that_fails_counts_down_its_own_graph(void **state) {
    (void)state;
    run_alone(end_a_capture_that_is_not_joined);
}

#ifdef DEVSTREAM_CUDA
static ds_result not_added;
static ds_graph ending;

static void *add_what_is_refused(void *user) {
    ds_node_desc fill = { .kind = DS_NODE_FILL,
                          .device = ds_cuda(0),
                          .u.fill = { .ptr = user, .value_size = 1, .width = 1000 } };
    standin_fail(1, cudaErrorStreamCaptureUnsupported);
    not_added = ds_graph_add(ending, &fill, NULL, 0, NULL);
    return NULL;
}

static void *to_fill;

static void guest_adds_what_is_refused(void) {
    pthread_join(begin(add_what_is_refused, to_fill), NULL);
}

static void add_when_a_capture_ends(void) {
    ds_stream s = stream_on(ds_cuda(0));
    ds_graph g;
    ds_capture_info info;
    ok(ds_device_set_current(ds_cuda(0)));
    ok(ds_device_alloc(ds_cuda(0), 1000, &to_fill));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_get_info(s, &info));
    ending = info.graph;
    guest = guest_adds_what_is_refused;
    door = &((ds__graph *)ds__slot_at(&ds__g.graphs, (uint32_t)info.graph.id - 1))->capturing;
    ok(ds_capture_end(s, &g));
    holds(!door && standin_failed());
    holds(not_added == DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_graph_destroy(g));
    ok(ds_device_free(to_fill));
    ok(ds_stream_destroy(s));
}

/* CUDA says why it refuses under the captures' lock, which the core has as long as a capture may
   add to the graph. */
static void test_a_refused_node_just_when_a_capture_ends_is_refused(void **state) {
    (void)state;
    run_alone(add_when_a_capture_ends);
}
#endif

static ds_graph into;
static ds_stream into_from;
static ds_result begun;
static _Atomic int begin_is_late;
static pthread_t beginner;

static void *begin_into(void *user) {
    int count;
    ok(ds_device_get_count(DS_DEVICE_CPU, &count)); /* the first call takes locks of its own */
    lock_late = &begin_is_late;
    begun = ds_capture_begin_to_graph(into_from, into, NULL, 0, DS_CAPTURE_RELAXED);
    lock_late = NULL;
    return user;
}

/* The graph is locked as long as it is drawn. */
static int begin_meanwhile(const char *text, size_t size, void *user) {
    (void)text, (void)size, (void)user;
    if (begin_is_late)
        return 0;
    beginner = begin(begin_into, NULL);
    wait_for(&begin_is_late, 1);
    return 0;
}

static void begin_into_a_graph_that_goes(void) {
    into_from = stream_on(ds_cpu(0));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_graph_create(NULL, &into));
    ok(ds_graph_write_dot(into, 0, begin_meanwhile, NULL));
    ok(ds_graph_destroy(into));
    begin_is_late = 2;
    pthread_join(beginner, NULL);
    holds(begun == DS_ERR_INVALID_HANDLE);
    ok(ds_stream_launch_host_func(into_from, nothing, NULL, NULL));
    ok(ds_stream_synchronize(into_from));
    ok(ds_stream_destroy(into_from));
}

static void test_a_capture_into_a_destroyed_graph_is_refused(void **state) {
    (void)state;
    run_alone(begin_into_a_graph_that_goes);
}

/* ---- the first record of an event ---- */

static ds__driver layer;
static const ds__driver *below;
static int refusing; /* no operation is taken */
/* the next one of this kind is not taken; the guest comes before it */
static int refused_kind = -1, guest_kind = -1;
static ds_event raced;
static ds_stream refused, elsewhere;
static ds_result seen[3];

static ds_result submit_after_guest(void *stream, const ds__op *op) {
    come_before(&layer);
    if (op->kind == guest_kind) {
        guest_kind = -1;
        guest();
    }
    if (op->kind == refused_kind) {
        refused_kind = -1;
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no room");
    }
    return refusing ? ds__fail(DS_ERR_OUT_OF_MEMORY, "no room") : below->submit(stream, op);
}

static ds_result export_after_guest(void *event, unsigned char *handle) {
    come_before(&layer);
    return below->event_export(event, handle);
}

static void lay_over(ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    if (!below)
        below = s->driver;
    layer = *below;
    layer.submit = submit_after_guest;
    layer.event_export = export_after_guest;
    s->driver = ds__g.driver[ds__backend_of(s->device)] = &layer;
    ds__stream_unpin(s);
}

static void *fail_to_record(void *user) {
    refusing = 1;
    seen[0] = ds_event_record(raced, refused);
    refusing = 0;
    seen[1] = ds_event_record(raced, elsewhere);
    return user;
}

static void one_fails_to_record(void) {
    pthread_join(begin(fail_to_record, NULL), NULL);
}

static void settle_an_event(int way) {
    ds_ipc_event_handle h;
    ds_graph g;
    setenv("DEVSTREAM_CPU_DEVICES", "2", 1);
    refused = stream_on(ds_cpu(0));
    elsewhere = stream_on(ds_cpu(1));
    ok(ds_device_set_current(ds_cpu(0)));
    lay_over(refused);
    ds_stream s = stream_on(ds_cpu(0));
    ok(ds_event_create(way == 1 ? DS_EVENT_INTERPROCESS : 0, NULL, &raced));
    if (way == 2)
        ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    guest = one_fails_to_record;
    door = &layer;
    seen[2] = way == 0   ? ds_event_record(raced, s)
              : way == 1 ? ds_event_export(raced, &h)
                         : ds_stream_wait_event_external(s, raced);
    ok(seen[2]);
    holds(!door);
    holds(seen[0] == DS_ERR_OUT_OF_MEMORY);
    holds(seen[1] == DS_ERR_DEVICE_MISMATCH);
    if (way == 2) {
        ok(ds_capture_end(s, &g));
        ok(ds_graph_destroy(g));
    }
    holds(ds_event_record(raced, elsewhere) == DS_ERR_DEVICE_MISMATCH);
    ok(ds_event_record(raced, refused));
    ok(ds_stream_synchronize(refused));
    ok(ds_stream_synchronize(s));
    ok(ds_event_destroy(raced));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(refused));
    ok(ds_stream_destroy(elsewhere));
    ds__g.driver[1] = below;
}

static void settle_by_a_record(void) {
    settle_an_event(0);
}

static void settle_by_an_export(void) {
    settle_an_event(1);
}

static void settle_by_a_graph(void) {
    settle_an_event(2);
}

/* What fails must not take the device back that a call beside it relies on. */
static void test_a_failed_record_beside_another_leaves_its_device(void **state) {
    (void)state;
    run_alone(settle_by_a_record);
    run_alone(settle_by_an_export);
    run_alone(settle_by_a_graph);
}

/* ---- events of another process ---- */

static int to_owner[2], from_owner[2];
static ds_event imported;

static void say(int fd) {
    holds(write(fd, "", 1) == 1);
}

static void hear(int fd) {
    char byte;
    /* the other process is gone */
    if (read(fd, &byte, 1) != 1)
        _exit(1);
}

static void hear_it(void *user) {
    (void)user;
    hear(to_owner[0]);
}

static void own_an_event(void) {
    ds_ipc_event_handle h;
    ds_event e;
    char byte;
    ds_stream s = stream_on(ds_cpu(0));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_event_create(DS_EVENT_INTERPROCESS, NULL, &e));
    ok(ds_event_record(e, s));
    ok(ds_stream_synchronize(s));
    ok(ds_event_export(e, &h));
    holds(write(from_owner[1], &h, sizeof h) == sizeof h);
    hear(to_owner[0]);
    ok(ds_stream_launch_host_func(s, hear_it, NULL, NULL));
    ok(ds_event_record(e, s));
    say(from_owner[1]);
    ok(ds_stream_synchronize(s));
    holds(read(to_owner[0], &byte, 1) == 0); /* until it is closed */
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

static void *ask_for_it(void *user) {
    holds(ds_event_query(imported) == DS_NOT_READY);
    return user;
}

/* The owner records again, behind work that is not done; then another thread, which does not
   wait, brings the event up to date. */
static void guest_records_and_asks(void) {
    say(to_owner[1]);
    hear(from_owner[0]);
    pthread_join(begin(ask_for_it, NULL), NULL);
    say(to_owner[1]);
}

enum { HERE, ON_A_STREAM, IN_A_GRAPH };

static void wait_for_an_imported_event(int where) {
    ds_graph g;
    ds_graph_node node;
    ds_graph_exec x;
    ds_ipc_event_handle h;
    int status = 0;
    holds(!pipe(to_owner) && !pipe(from_owner));
    pid_t owner = fork();
    if (!owner) {
        set_deadline();
        close(to_owner[1]);
        close(from_owner[0]);
        own_an_event();
        exit(0);
    }
    close(to_owner[0]);
    close(from_owner[1]);
    holds(read(from_owner[0], &h, sizeof h) == sizeof h);
    ok(ds_event_import(ds_cpu(0), &h, &imported));
    ds_stream s = stream_on(ds_cpu(0));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    ok(ds_graph_add(g, &(ds_node_desc){ .kind = DS_NODE_EVENT_WAIT, .u.event = imported }, NULL, 0,
                    &node));
    ok(ds_graph_instantiate(g, NULL, &x));
    guest = guest_records_and_asks;
    exit_door = &ds__registries.mutex;
    if (where == ON_A_STREAM)
        ok(ds_stream_wait_event(s, imported));
    if (where == IN_A_GRAPH)
        ok(ds_graph_launch(x, s));
    if (where == HERE)
        ok(ds_event_synchronize(imported));
    holds(!exit_door);
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(imported));
    ok(ds_stream_destroy(s));
    close(to_owner[1]);
    holds(waitpid(owner, &status, 0) == owner && status == 0);
}

static void wait_for_it_here(void) {
    wait_for_an_imported_event(HERE);
}

static void wait_for_it_on_a_stream(void) {
    wait_for_an_imported_event(ON_A_STREAM);
}

static void wait_for_it_in_a_graph(void) {
    wait_for_an_imported_event(IN_A_GRAPH);
}

static void test_an_imported_event_that_changes_is_watched_for_who_waits(void **state) {
    (void)state;
    run_alone(wait_for_it_here);
}

static void test_an_imported_event_that_changes_is_watched_for_a_stream(void **state) {
    (void)state;
    run_alone(wait_for_it_on_a_stream);
}

static void test_an_imported_event_that_changes_is_watched_for_a_launch(void **state) {
    (void)state;
    run_alone(wait_for_it_in_a_graph);
}

/* ---- threads of the CPU driver ---- */

static int come_late(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    worker_late = 1;
    return 0;
}

static void end_while_the_worker_comes_late(void) {
    ds_kernel k;
    ds_cpu_route route[4] = { { 0 } };
    ds_cpu_fabric fabric = { .devices = 1, .route = route };
    ds_cpu_desc cpu = { .fabric = &fabric };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "come late", .cpu_fn = come_late, .grain = SIZE_MAX }, &k));
    ds_stream s = stream_on(ds_cpu(0));
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
    holds(called && !worker_late);
}

/* Between its look whether all is over and its sleep it is called. */
static void test_a_worker_of_the_virtual_clock_hears_of_the_end(void **state) {
    (void)state;
    run_alone(end_while_the_worker_comes_late);
}

static _Atomic int told;
static ds_stream hosts[2];

static void wait_until_told(void *user) {
    (void)user;
    wait_for(&told, 1);
}

static void tell(void *user) {
    (void)user;
    told = 1;
}

static void *wait_for_the_first(void *user) {
    ok(ds_stream_synchronize(hosts[0]));
    return user;
}

static int nobody_is_awake(void) {
    ds__spinlock_lock(&ds__cpu.lock);
    int idle = ds__cpu.host_idle == 1 && ds__cpu.host_threads == 1;
    ds__spinlock_unlock(&ds__cpu.lock);
    return idle && ds__cpu.workers && atomic_load(&ds__cpu.parked) == ds__cpu.workers &&
           atomic_load(&ds__cpu.monitor_word) == 0;
}

static void hand_over_two(void) {
    pthread_t waits;
    for (int i = 0; i < 2; i++)
        hosts[i] = stream_on(ds_cpu(0));
    /* without a function, for which a late first thread would get a second */
    ok(ds__cpu_host_ready());
    /* a monitor that started before a thread of the program had called sleeps for a while only */
    ds__cpu_wake_monitor();
    /* what was awake may be on its way to its sleep */
    for (int calm = 0; calm < 20; calm = nobody_is_awake() ? calm + 1 : 0)
        usleep(1000);
    host_late = 1;
    ok(ds_stream_launch_host_func(hosts[0], wait_until_told, NULL, NULL));
    waits = begin(wait_for_the_first, NULL);
    for (int first = 0; !first; sched_yield()) {
        ds__spinlock_lock(&ds__cpu.lock);
        first = ds__cpu.host_head != NULL;
        ds__spinlock_unlock(&ds__cpu.lock);
    }
    ok(ds_stream_launch_host_func(hosts[1], tell, NULL, NULL));
    ok(ds_stream_synchronize(hosts[1]));
    host_late = 0;
    pthread_join(waits, NULL);
    for (int i = 0; i < 2; i++)
        ok(ds_stream_destroy(hosts[i]));
}

/* The one thread for host functions counts as idle for both; the first waits for the second. */
static void test_a_second_host_function_gets_a_thread_of_its_own(void **state) {
    (void)state;
    run_alone(hand_over_two);
}

/* ---- graphs with fills ---- */

/* Two executables of one captured fill, behind a host function that waits; the first's numbers
   come into drawn[0], the second's into drawn[1]. */
enum { DRAWN = 1000 * sizeof(uint32_t) };

static ds_rng from;
static ds_stream drawing, beside;
static ds_graph_exec draws[2];
static void *drawn[2];
static _Atomic int may_draw;

static void wait_to_draw(void *user) {
    (void)user;
    wait_for(&may_draw, 1);
}

static void capture_a_fill(void) {
    ds_graph g;
    size_t replaced;
    drawing = stream_on(ds_cpu(0));
    beside = stream_on(ds_cpu(0));
    lay_over(drawing);
    for (int i = 0; i < 2; i++)
        ok(ds_device_alloc(ds_cpu(0), DRAWN, &drawn[i]));
    ok(ds_rng_create(&(ds_rng_desc){ .device = ds_cpu(0) }, &from));
    ok(ds_capture_begin(drawing, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_stream_launch_host_func(drawing, wait_to_draw, NULL, NULL));
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 1000, drawing));
    ok(ds_capture_end(drawing, &g));
    for (int i = 0; i < 2; i++)
        ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS },
                                &draws[i]));
    ok(ds_graph_exec_replace_pointers(draws[1], &drawn[0], &drawn[1], 1, &replaced));
    ok(ds_graph_destroy(g));
}

/* What was drawn is what fills one behind the other draw. */
static void expect_drawn(void) {
    ds_rng like;
    void *p;
    ok(ds_device_alloc(ds_cpu(0), DRAWN, &p));
    ok(ds_rng_create(&(ds_rng_desc){ .device = ds_cpu(0) }, &like));
    ok(ds_device_synchronize(ds_cpu(0)));
    for (int i = 0; i < 2; i++) {
        ok(ds_rng_bits(like, ds_uint32(), p, 1000, beside));
        ok(ds_stream_synchronize(beside));
        holds(!memcmp(p, drawn[i], DRAWN));
        ok(ds_device_free(drawn[i]));
        ok(ds_graph_exec_destroy(draws[i]));
    }
    ok(ds_rng_destroy(like));
    ok(ds_rng_destroy(from));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(beside));
    ds__g.driver[1] = below;
}

static void *destroy_what_draws(void *user) {
    ok(ds_stream_destroy(drawing));
    return user;
}

static void guest_destroys_what_draws(void) {
    pthread_join(begin(destroy_what_draws, NULL), NULL);
}

static void launch_from_a_stream_that_goes(void) {
    capture_a_fill();
    guest = guest_destroys_what_draws;
    guest_kind = DS__OP_GRAPH;
    ok(ds_graph_launch(draws[0], drawing));
    holds(guest_kind == -1);
    ok(ds_graph_launch(draws[1], beside));
    may_draw = 1;
    expect_drawn();
}

/* Its state is not another launch's before it was read. */
static void test_a_launch_on_a_stream_destroyed_meanwhile_is_waited_for(void **state) {
    (void)state;
    run_alone(launch_from_a_stream_that_goes);
}

static void launch_without_a_record(void) {
    capture_a_fill();
    refused_kind = DS__OP_RECORD;
    ok(ds_graph_launch(draws[0], drawing));
    holds(refused_kind == -1);
    ok(ds_graph_launch(draws[1], beside));
    may_draw = 1;
    ok(ds_stream_destroy(drawing));
    expect_drawn();
}

static void *let_draw(void *user) {
    struct timespec a_while = { 0, 50000000 };
    nanosleep(&a_while, NULL);
    may_draw = 1;
    return user;
}

static void launch_without_a_record_from_a_stream_that_goes(void) {
    ds_graph g;
    capture_a_fill();
    refused_kind = DS__OP_RECORD;
    ok(ds_graph_launch(draws[0], drawing));
    ok(ds_stream_destroy(drawing));
    ds_stream capturing = stream_on(ds_cpu(0));
    ok(ds_capture_begin(capturing, DS_CAPTURE_RELAXED));
    holds(ds_graph_launch(draws[1], beside) == DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_capture_end(capturing, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(capturing));
    pthread_t thread = begin(let_draw, NULL);
    ok(ds_graph_launch(draws[1], beside));
    holds(may_draw);
    pthread_join(thread, NULL);
    expect_drawn();
}

static void test_a_launch_that_could_not_be_recorded_is_waited_for(void **state) {
    (void)state;
    run_alone(launch_without_a_record);
    run_alone(launch_without_a_record_from_a_stream_that_goes);
}

static ds_result drew;

static void *draw_in_vain(void *user) {
    refused_kind = DS__OP_KERNEL;
    drew = ds_rng_bits(from, ds_uint32(), drawn[1], 1000, drawing);
    refused_kind = DS__OP_GRAPH;
    return user;
}

static void guest_draws_in_vain(void) {
    pthread_join(begin(draw_in_vain, NULL), NULL);
}

static void launch_in_vain(void) {
    uint64_t offset;
    capture_a_fill();
    guest = guest_draws_in_vain;
    guest_kind = DS__OP_GRAPH;
    holds(ds_graph_launch(draws[0], drawing) == DS_ERR_OUT_OF_MEMORY &&
          drew == DS_ERR_OUT_OF_MEMORY);
    ok(ds_rng_get_offset(from, &offset));
    holds(offset == 0);
    may_draw = 1;
    for (int i = 0; i < 2; i++)
        ok(ds_graph_launch(draws[i], drawing));
    expect_drawn();
    ok(ds_stream_destroy(drawing));
}

static void test_a_refused_fill_does_not_keep_a_launchs_words(void **state) {
    (void)state;
    run_alone(launch_in_vain);
}

/* Another thread begins or ends a capture on the stream when a fill or a launch is about to put
   a kernel there. */
static ds_device where;
static ds_graph ended;
static int destroy_it;

static void *begin_a_capture(void *user) {
    ok(ds_capture_begin(drawing, DS_CAPTURE_RELAXED));
    return user;
}

static void *end_the_capture(void *user) {
    ok(ds_capture_end(drawing, &ended));
    if (destroy_it)
        ok(ds_graph_destroy(ended));
    return user;
}

static void guest_begins_a_capture(void) {
    pthread_join(begin(begin_a_capture, NULL), NULL);
}

static void guest_ends_the_capture(void) {
    pthread_join(begin(end_the_capture, NULL), NULL);
}

static void begin_to_draw(void) {
    ok(ds_device_set_current(where));
    drawing = stream_on(where);
    beside = stream_on(where);
    ok(ds_rng_create(&(ds_rng_desc){ .device = where, .seed = 5 }, &from));
    ok(ds_device_alloc(where, 64, &drawn[0]));
    /* what is made at the first use cannot be made in a capture */
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    ok(ds_rng_set_seed(from, 5));
    ok(ds_rng_set_offset(from, 0));
    ok(ds_stream_synchronize(drawing));
    lay_over(drawing);
}

static void end_drawing(void) {
    ok(ds_device_free(drawn[0]));
    ok(ds_rng_destroy(from));
    ok(ds_stream_destroy(drawing));
    ok(ds_stream_destroy(beside));
    ds__g.driver[ds__backend_of(where)] = below;
}

static void capture_sixteen(ds_graph_exec *out) {
    ds_graph g;
    ok(ds_capture_begin(drawing, DS_CAPTURE_RELAXED));
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    ok(ds_capture_end(drawing, &g));
    ok(ds_graph_instantiate(g, NULL, out));
    ok(ds_graph_destroy(g));
}

/* The words that are there now are those from this offset on. */
static void expect_sixteen(uint64_t offset) {
    uint32_t got[16], want[16];
    uint64_t now;
    ds_rng like;
    ok(ds_device_synchronize(where));
    ok(ds_copy(got, drawn[0], 64, beside));
    ok(ds_rng_get_offset(from, &now));
    holds(now == offset + 16);
    ok(ds_rng_create(&(ds_rng_desc){ .device = where, .seed = 5 }, &like));
    ok(ds_rng_set_offset(like, offset));
    ok(ds_rng_bits(like, ds_uint32(), drawn[0], 16, beside));
    ok(ds_copy(want, drawn[0], 64, beside));
    ok(ds_stream_synchronize(beside));
    holds(!memcmp(got, want, 64));
    ok(ds_rng_destroy(like));
}

static void draw_when_a_capture_begins(void) {
    ds_graph_exec x;
    begin_to_draw();
    guest = guest_begins_a_capture;
    guest_kind = DS__OP_KERNEL;
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    holds(guest_kind == -1);
    ok(ds_capture_end(drawing, &ended));
    ok(ds_graph_instantiate(ended, NULL, &x));
    ok(ds_graph_destroy(ended));
    for (uint64_t i = 0; i < 3; i++) {
        ok(ds_graph_launch(x, drawing));
        expect_sixteen(16 * i);
    }
    ok(ds_graph_exec_destroy(x));
    end_drawing();
}

static void draw_when_a_capture_ends(void) {
    begin_to_draw();
    ok(ds_capture_begin(drawing, DS_CAPTURE_RELAXED));
    guest = guest_ends_the_capture;
    guest_kind = DS__OP_KERNEL;
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    holds(guest_kind == -1);
    expect_sixteen(0);
    if (!destroy_it)
        ok(ds_graph_destroy(ended));
    end_drawing();
}

static void launch_when_a_capture_begins(void) {
    static const int kinds[] = { DS__OP_KERNEL, DS__OP_WAIT, DS__OP_GRAPH, DS__OP_RECORD };
    ds_graph_exec x;
    size_t nodes;
    uint64_t offset = 0;
    begin_to_draw();
    capture_sixteen(&x);
    ok(ds_graph_launch(x, drawing));
    expect_sixteen(0);
    for (int i = 0; i < 4; i++) {
        guest = guest_begins_a_capture;
        guest_kind = kinds[i];
        ds_result r = ds_graph_launch(x, drawing);
        holds(guest_kind == -1 && r == (i < 3 ? DS_ERR_CAPTURE_UNSUPPORTED : DS_OK));
        ok(ds_capture_end(drawing, &ended));
        ok(ds_graph_get_nodes(ended, NULL, 0, &nodes));
        holds(nodes == 0);
        ok(ds_graph_destroy(ended));
        if (r == DS_OK)
            expect_sixteen(offset += 16);
        for (int k = 0; k < 2; k++) {
            ok(ds_graph_launch(x, k ? drawing : beside));
            expect_sixteen(offset += 16);
        }
    }
    ok(ds_graph_exec_destroy(x));
    end_drawing();
}

static int guest_after_query;

static ds_result query_before_guest(void *stream, ds_capture_info *out) {
    ds_result r = below->capture_query(stream, out);
    if (guest_after_query) {
        guest_after_query = 0;
        guest();
    }
    return r;
}

static void draw_when_the_captured_graph_goes(void) {
    begin_to_draw();
    ok(ds_capture_begin(drawing, DS_CAPTURE_RELAXED));
    layer.capture_query = query_before_guest;
    guest = guest_ends_the_capture;
    guest_after_query = destroy_it = 1;
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    holds(!guest_after_query);
    expect_sixteen(0);
    end_drawing();
}

static void in_every_way(void (*test)(void)) {
    for (int i = 0; i < 2; i++) {
        where = i ? ds_cuda(0) : ds_cpu(0);
        run_alone(test);
    }
}

static void test_a_fill_is_put_where_a_capture_has_just_begun(void **state) {
    (void)state;
    in_every_way(draw_when_a_capture_begins);
}

static void test_a_fill_is_put_where_a_capture_has_just_ended(void **state) {
    (void)state;
    for (destroy_it = 0; destroy_it < 2; destroy_it++)
        in_every_way(draw_when_a_capture_ends);
    in_every_way(draw_when_the_captured_graph_goes);
}

static void test_a_launch_of_fills_stays_out_of_a_new_capture(void **state) {
    (void)state;
    in_every_way(launch_when_a_capture_begins);
}

#ifdef DEVSTREAM_CUDA
static pthread_t drawer;

static void *draw_sixteen(void *user) {
    ok(ds_rng_bits(from, ds_uint32(), drawn[0], 16, drawing));
    return user;
}

static void guest_draws(void) {
    struct timespec a_while = { 0, 50000000 };
    drawer = begin(draw_sixteen, NULL);
    nanosleep(&a_while, NULL); /* it may have to wait for this thread */
}

static void draw_while_cuda_begins(void) {
    ds_graph_exec x;
    where = ds_cuda(0);
    begin_to_draw();
    after_begin = guest_draws;
    ok(ds_capture_begin(drawing, DS_CAPTURE_RELAXED));
    pthread_join(drawer, NULL);
    ok(ds_capture_end(drawing, &ended));
    ok(ds_graph_instantiate(ended, NULL, &x));
    ok(ds_graph_destroy(ended));
    for (uint64_t i = 0; i < 2; i++) {
        ok(ds_graph_launch(x, drawing));
        expect_sixteen(16 * i);
    }
    ok(ds_graph_exec_destroy(x));
    end_drawing();
}

/* CUDA captures what is put there; so others must learn of it. */
static void test_a_fill_while_cuda_begins_a_capture_is_one_of_the_graph(void **state) {
    (void)state;
    run_alone(draw_while_cuda_begins);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_that_never_called_may_end_it),
        cmocka_unit_test(test_a_thread_from_before_the_end_may_find_one_that_is_gone),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_a_legacy_stream_is_made_while_memory_is_allocated),
        cmocka_unit_test(test_a_stream_that_is_the_callers_again_is_not_asked),
        cmocka_unit_test(test_a_capture_ends_with_its_borrowed_streams_handle),
#endif
        cmocka_unit_test(test_a_capture_that_fails_counts_down_its_own_graph),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_a_refused_node_just_when_a_capture_ends_is_refused),
#endif
        cmocka_unit_test(test_a_capture_into_a_destroyed_graph_is_refused),
        cmocka_unit_test(test_a_failed_record_beside_another_leaves_its_device),
        cmocka_unit_test(test_an_imported_event_that_changes_is_watched_for_who_waits),
        cmocka_unit_test(test_an_imported_event_that_changes_is_watched_for_a_stream),
        cmocka_unit_test(test_an_imported_event_that_changes_is_watched_for_a_launch),
        cmocka_unit_test(test_a_worker_of_the_virtual_clock_hears_of_the_end),
        cmocka_unit_test(test_a_second_host_function_gets_a_thread_of_its_own),
        cmocka_unit_test(test_a_launch_on_a_stream_destroyed_meanwhile_is_waited_for),
        cmocka_unit_test(test_a_launch_that_could_not_be_recorded_is_waited_for),
        cmocka_unit_test(test_a_refused_fill_does_not_keep_a_launchs_words),
        cmocka_unit_test(test_a_fill_is_put_where_a_capture_has_just_begun),
        cmocka_unit_test(test_a_fill_is_put_where_a_capture_has_just_ended),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_a_fill_while_cuda_begins_a_capture_is_one_of_the_graph),
#endif
        cmocka_unit_test(test_a_launch_of_fills_stays_out_of_a_new_capture),
    };
    return cmocka_run_group_tests_name("what happens in between", tests, NULL, NULL);
}
