/* The system refuses each call in turn: memory, threads, files and shared memory. A call of
   devstream then fails with a sentence or does without, and nothing is left behind; as soon as the
   system does not refuse any more, everything works. The other process, which exports an event and
   memory, is a child that is forked before devstream starts.

   The calls of the system that the implementation makes are replaced by macros. */
#undef DEVSTREAM_CUDA
#define _GNU_SOURCE
#include "scarce.h"
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic long calls, refused_call;
static _Atomic int was_refused;

/* Returns 1 if this call is the one that fails. */
static int refuses(int error) {
    if (!refused_call || ++calls != refused_call)
        return 0;
    was_refused = 1;
    errno = error;
    return 1;
}

static void *refusing_mmap(void *at, size_t size, int allowed, int flags, int fd, long offset) {
    return refuses(ENOMEM) ? MAP_FAILED : mmap(at, size, allowed, flags, fd, offset);
}

static int refusing_mprotect(void *at, size_t size, int allowed) {
    return refuses(ENOMEM) ? -1 : mprotect(at, size, allowed);
}

static int refusing_madvise(void *at, size_t size, int advice) {
    return refuses(EINVAL) ? -1 : madvise(at, size, advice);
}

static int refusing_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return refuses(EMFILE) ? -1 : open(path, flags, mode);
}

static int refusing_thread(pthread_t *out, const pthread_attr_t *how, void *(*fn)(void *),
                           void *user) {
    return refuses(EAGAIN) ? EAGAIN : pthread_create(out, how, fn, user);
}

static int refusing_key(pthread_key_t *out, void (*fn)(void *)) {
    return refuses(EAGAIN) ? EAGAIN : pthread_key_create(out, fn);
}

/* As libc's own functions, those with variable arguments read all that there may be. */
#define UNCHECKED __attribute__((no_sanitize("address")))

/* Of the calls by number, those that give something; waits and wakes do not fail. */
UNCHECKED static long refusing_syscall(long number, ...) {
    long arg[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arg[i] = va_arg(list, long);
    va_end(list);
    switch (number) {
    case SYS_memfd_create:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_mbind:
    case SYS_membarrier:
    case SYS_getrandom:
    case SYS_sched_getaffinity:
    case SYS_readlinkat:
        if (refuses(ENOSPC))
            return -1;
        break;
    default:
        break;
    }
    return syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

UNCHECKED static int refusing_fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    long arg = va_arg(list, long);
    va_end(list);
    return refuses(ENOLCK) ? -1 : fcntl(fd, command, arg);
}

#define mmap refusing_mmap
#define mprotect refusing_mprotect
#define madvise refusing_madvise
#define open refusing_open
#define pthread_create refusing_thread
#define pthread_key_create refusing_key
#define syscall refusing_syscall
#define fcntl refusing_fcntl
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#undef mmap
#undef mprotect
#undef madvise
#undef open
#undef pthread_create
#undef pthread_key_create
#undef syscall
#undef fcntl

#define MIB ((size_t)1 << 20)

/* ---- the other process ----------------------------------------------------------------------- */

static struct {
    ds_ipc_event_handle event;
    ds_ipc_mem_handle memory;
} handles;

static int there[2], here[2];
static pid_t child;

/* Exports an event and memory, and ends when the pipe is closed. */
static void export_both(void) {
    ds_event e;
    ds_stream s;
    ds_pool pool;
    void *p;
    char byte;
    close(here[1]);
    if (ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s) < 0 ||
        ds_event_create_on(ds_cpu(0), DS_EVENT_INTERPROCESS, NULL, &e) < 0 ||
        ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool) < 0 ||
        ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = s, .pool = pool }, &p) < 0 ||
        ds_fill(p, 7, 1, MIB, s) < 0 || ds_event_record(e, s) < 0 || ds_stream_synchronize(s) < 0 ||
        ds_event_export(e, &handles.event) < 0 || ds_mem_export(p, &handles.memory) < 0 ||
        write(there[1], &handles, sizeof handles) != (ssize_t)sizeof handles)
        _exit(1);
    while (read(here[0], &byte, 1) > 0) {
    }
    _exit(0);
}

static int begin_child(void **state) {
    (void)state;
    if (pipe(there) < 0 || pipe(here) < 0)
        return -1;
    child = fork();
    if (child == 0)
        export_both();
    close(here[0]);
    return read(there[0], &handles, sizeof handles) == (ssize_t)sizeof handles ? 0 : -1;
}

static int end_child(void **state) {
    int status = -1;
    (void)state;
    close(here[1]);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

/* ---- the programs ---------------------------------------------------------------------------- */

static int refusals;

/* Returns 1 if the call succeeded. It must succeed if nothing was refused. */
static int got(ds_result r, const char *call, int line) {
    if (r >= 0)
        return 1;
    if (!was_refused)
        fail_msg("line %d: %s is %s: %s", line, call, ds_result_get_name(r), ds_error_get_last());
    if (!*ds_error_get_last())
        fail_msg("call %ld, line %d: %s says nothing", (long)refused_call, line, call);
    refusals++;
    return 0;
}

#define may(call) got((call), #call, __LINE__)

static ds_result begin(void) {
    static ds_cpu_desc cpu;
    cpu = (ds_cpu_desc){ .devices = 2, .memory_limit = 256 * MIB };
    return ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE });
}

static void do_nothing(void *user) {
    (void)user;
}

static void ignore_records(const ds_activity_batch *batch, void *user) {
    (void)batch, (void)user;
}

static void memory_and_threads(void) {
    ds_stream s = { 0 };
    void *p = NULL;
    unsigned char *pinned = NULL;
    if (may(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s))) {
        if (may(ds_mem_alloc(3 * MIB, s, &p))) {
            may(ds_fill(p, 1, 1, 3 * MIB, s));
            may(ds_stream_synchronize(s));
            ok(ds_mem_free(p));
        }
        may(ds_stream_launch_host_func(s, do_nothing, NULL, NULL));
        may(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
    }
    if (may(ds_activity_start(&(ds_activity_desc){ .fn = ignore_records })))
        ok(ds_activity_stop());
    if (may(ds_device_alloc(ds_cpu(1), 5 * MIB, &p)))
        ok(ds_device_free(p));
    if (may(ds_pinned_alloc(MIB, &p)))
        ok(ds_pinned_free(p));
    if (may(ds_mem_pinned_alloc(MIB, &p)))
        ok(ds_mem_pinned_free(p));
    unsigned flags[] = { 0, DS_PINNED_NUMA_NODE, DS_PINNED_HUGE_PAGES };
    for (int i = 0; i < 3; i++) {
        void *out = NULL;
        if (may(ds_pinned_alloc_with(MIB, &(ds_pinned_desc){ .flags = flags[i] }, &out))) {
            pinned = out;
            pinned[MIB - 1] = 1;
            ok(ds_pinned_free(out));
        }
    }
}

static void sharing(void) {
    ds_stream s = { 0 };
    ds_event e = { 0 };
    ds_pool pool = { 0 };
    ds_ipc_event_handle event;
    ds_ipc_mem_handle memory;
    void *p = NULL;
    if (!may(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s)))
        return;
    if (may(ds_event_create_on(ds_cpu(0), DS_EVENT_INTERPROCESS, NULL, &e))) {
        may(ds_event_record(e, s));
        may(ds_event_export(e, &event));
        may(ds_stream_synchronize(s));
        ok(ds_event_destroy(e));
    }
    if (may(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool))) {
        if (may(ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = s, .pool = pool },
                                  &p))) {
            may(ds_mem_export(p, &memory));
            ok(ds_mem_free(p));
        }
        ok(ds_pool_destroy(pool));
    }
    if (may(ds_event_import(ds_cpu(0), &handles.event, &e))) {
        may(ds_stream_wait_event(s, e));
        may(ds_event_synchronize(e));
        ok(ds_event_destroy(e));
    }
    if (may(ds_mem_import(ds_cpu(0), &handles.memory, s, &p))) {
        unsigned char byte = 0;
        if (may(ds_copy_sync(&byte, p, 1)))
            assert_int_equal(byte, 7);
        if (!may(ds_mem_import_close(p, s))) {
            refused_call = 0; /* its end is an operation of the stream; the import is still there */
            ok(ds_mem_import_close(p, s));
        }
    }
    ok(ds_stream_destroy(s));
}

/* ---- what runs them -------------------------------------------------------------------------- */

static int files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void refuse_each(void (*program)(void)) {
    long most = 0;
    alarm(300);
    refusals = 0;
    ok(ds_shutdown());
    int open_before = files();
    for (int hit = 1; hit;) {
        calls = 0;
        was_refused = 0;
        refused_call = ++most;
        if (most > 2000)
            fail_msg("the program calls the system ever more often");
        if (may(begin()))
            program();
        hit = was_refused;
        refused_call = 0;
        was_refused = 0;
        ok(ds_shutdown());
        ok(begin()); /* the system gives everything again */
        program();
        ok(ds_shutdown());
        if (scarce_held)
            fail_msg("call %ld: %ld blocks are left", most, (long)scarce_held);
        if (files() != open_before)
            fail_msg("call %ld: %d files are open, before %d", most, files(), open_before);
    }
    print_message("          %ld calls, %d refusals of devstream\n", most - 1, refusals);
    assert_true(refusals > 0);
    alarm(0);
}

static void test_memory_and_threads_that_the_system_refuses(void **state) {
    (void)state;
    refuse_each(memory_and_threads);
}

static void test_sharing_that_the_system_refuses(void **state) {
    (void)state;
    refuse_each(sharing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_and_threads_that_the_system_refuses),
        cmocka_unit_test(test_sharing_that_the_system_refuses),
    };
    return cmocka_run_group_tests_name("system calls", tests, begin_child, end_child);
}
