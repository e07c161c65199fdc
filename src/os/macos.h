/* os/macos.h - macOS.

   Wraps the calls that depend on macOS: waits on addresses, pages, and the threads of the library.
   macos_share.h has shared memory, macos_machine.h what macOS tells about the machine, and posix.h
   the calls that other systems have as well. linux.h describes the contract of each function.

   Policy: waits on addresses are os_sync_wait_on_address of macOS 14.4, else __ulock_wait2 of macOS
   11, else __ulock_wait. They are looked up at the first wait, so a program for an older system
   starts on each of them.

   Invariants: sizes of reserved address space are multiples of a page, of 16 KiB on arm64.
   Locks: none.
   Threads: any. ds__os_library_thread and ds__os_take_signals change the mask of the calling thread
   only, which must be a thread of the library. */
#ifndef DS__OS_MACOS_H
#define DS__OS_MACOS_H

#include "compiler.h"
#include "posix.h"
#include "posix_file.h"
#include "posix_thread.h"

#include <mach/mach.h>
#include <sched.h>
#include <signal.h>

/* Declarations that a program hides by _POSIX_C_SOURCE. */
extern int pthread_setname_np(const char *name);
extern int pthread_threadid_np(pthread_t thread, uint64_t *out);

/* The longest wait for one call; the callers' loops wait again. */
#define DS__OS_WAIT_NS ((uint64_t)60 * 1000000000u)

/* The system's functions for waits; NULL: this system does not have it. */
static struct {
    pthread_once_t once;
    int (*wait)(void *at, uint64_t value, size_t size, uint32_t flags);
    int (*wait_for)(void *at, uint64_t value, size_t size, uint32_t flags, uint32_t clock,
                    uint64_t ns);
    int (*wake_any)(void *at, size_t size, uint32_t flags);
    int (*wake_all)(void *at, size_t size, uint32_t flags);
    int (*ulock_wait2)(uint32_t operation, void *at, uint64_t value, uint64_t ns, uint64_t zero);
    int (*ulock_wait)(uint32_t operation, void *at, uint64_t value, uint32_t us);
    int (*ulock_wake)(uint32_t operation, void *at, uint64_t zero);
} ds__os_waits = { .once = PTHREAD_ONCE_INIT };

/* Writes the address of a function, which is NULL if the system does not have it. */
static void ds__os_waits_find(const char *name, void *out_fn) {
    void *found = ds__os_library_symbol(NULL, name);
    memcpy(out_fn, &found, sizeof found);
}

static void ds__os_waits_init(void) {
    ds__os_waits_find("os_sync_wait_on_address", &ds__os_waits.wait);
    ds__os_waits_find("os_sync_wait_on_address_with_timeout", &ds__os_waits.wait_for);
    ds__os_waits_find("os_sync_wake_by_address_any", &ds__os_waits.wake_any);
    ds__os_waits_find("os_sync_wake_by_address_all", &ds__os_waits.wake_all);
    ds__os_waits_find("__ulock_wait2", &ds__os_waits.ulock_wait2);
    ds__os_waits_find("__ulock_wait", &ds__os_waits.ulock_wait);
    ds__os_waits_find("__ulock_wake", &ds__os_waits.ulock_wake);
    if (!ds__os_waits.wait_for || !ds__os_waits.wake_any || !ds__os_waits.wake_all)
        ds__os_waits.wait = NULL;
}

/* Sleeps for less than a second. */
DS__SEAM static void ds__os_sleep(uint64_t ns) {
    struct timespec t = { 0, (long)ns };
    nanosleep(&t, NULL);
}

/* Lets other threads run. */
DS__SEAM static void ds__os_yield(void) {
    sched_yield();
}

/* The operation of __ulock_*: a comparison of 32 bits, in this process or in several. */
static uint32_t ds__os_ulock(int shared) {
    return shared ? 3 /* UL_COMPARE_AND_WAIT_SHARED */ : 1 /* UL_COMPARE_AND_WAIT */;
}

/* Sleeps while *word == value, as ds__futex_wait. If the system refuses, it sleeps for a short
   time, so that the caller's loop does not spin. */
static void ds__os_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns, int shared) {
    void *at = (void *)word;
    int status = -1;
    if (timeout_ns == 0)
        return;
    pthread_once(&ds__os_waits.once, ds__os_waits_init);
    if (timeout_ns != DS__FOREVER && timeout_ns > DS__OS_WAIT_NS)
        timeout_ns = DS__OS_WAIT_NS;
    const uint64_t ns = timeout_ns == DS__FOREVER ? 0 : timeout_ns;

    errno = 0;
    if (ds__os_waits.wait && ns)
        status = ds__os_waits.wait_for(at, value, sizeof value, (uint32_t)shared,
                                       32 /* OS_CLOCK_MACH_ABSOLUTE_TIME */, ns);
    else if (ds__os_waits.wait)
        status = ds__os_waits.wait(at, value, sizeof value, (uint32_t)shared);
    else if (ds__os_waits.ulock_wait2)
        status = ds__os_waits.ulock_wait2(ds__os_ulock(shared), at, value, ns, 0);
    else if (ds__os_waits.ulock_wait)
        status =
            ds__os_waits.ulock_wait(ds__os_ulock(shared), at, value, (uint32_t)((ns + 999) / 1000));
    if (status < 0 && errno != EINTR && errno != ETIMEDOUT && errno != EFAULT)
        ds__os_sleep(50000);
}

/* Wakes one thread that sleeps on the word, or all of them. */
static void ds__os_wake(_Atomic uint32_t *word, int all, int shared) {
    void *at = (void *)word;
    pthread_once(&ds__os_waits.once, ds__os_waits_init);
    if (ds__os_waits.wait)
        (all ? ds__os_waits.wake_all : ds__os_waits.wake_any)(at, sizeof *word, (uint32_t)shared);
    else if (ds__os_waits.ulock_wake)
        ds__os_waits.ulock_wake(ds__os_ulock(shared) | (all ? 0x100u /* ULF_WAKE_ALL */ : 0), at,
                                0);
}

/* Sleeps while *word == value; returns at a wake, a signal, or after timeout_ns. */
DS__SEAM static void ds__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    ds__os_wait(word, value, timeout_ns, 0);
}

/* Wakes at least `count` threads, if so many sleep. */
DS__SEAM static void ds__futex_wake(_Atomic uint32_t *word, int count) {
    ds__os_wake(word, count > 1, 0);
}

/* Returns the processor that the thread runs on at this moment; negative: it is not known. */
DS__SEAM static int ds__os_processor(void) {
    return -1;
}

/* Returns the number by which tools know the thread. */
DS__SEAM static uint32_t ds__os_thread_id(void) {
    uint64_t id = 0;
    pthread_threadid_np(NULL, &id);
    return (uint32_t)id;
}

/* Prepares ds__os_barrier for the process. Returns 0 if the kernel has no such barrier. */
DS__SEAM static int ds__os_barrier_register(void) {
    return 0;
}

DS__SEAM static void ds__os_barrier(void) {
}

/* Maps zeroed memory at the addresses. Returns 0 if there is no memory. */
DS__SEAM static int ds__os_commit(void *at, size_t size) {
    return mprotect(at, size, PROT_READ | PROT_WRITE) == 0;
}

/* Asks for large pages at the addresses. Returns 0 if the system has none. */
DS__SEAM static int ds__os_large_pages(void *at, size_t size) {
    (void)at;
    (void)size;
    errno = ENOTSUP;
    return 0;
}

/* Asks for memory of a NUMA node. Returns 0 or the system's error number. */
DS__SEAM static int ds__os_prefer_node(void *at, size_t size, int node) {
    (void)at;
    (void)size;
    (void)node;
    return ENOTSUP;
}

/* Returns 0 if the process has no memory at the address. Addresses that are only reserved count
   as memory. */
DS__SEAM static int ds__os_is_mapped(uintptr_t address) {
    vm_address_t at = address;
    vm_size_t size = 0;
    vm_region_basic_info_data_64_t info;
    mach_msg_type_number_t count = VM_REGION_BASIC_INFO_COUNT_64;
    mach_port_t unused = MACH_PORT_NULL;
    kern_return_t status = vm_region_64(mach_task_self(), &at, &size, VM_REGION_BASIC_INFO_64,
                                        (vm_region_info_t)&info, &count, &unused);
    /* the region is the first one that ends after the address */
    return status == KERN_SUCCESS && at <= address;
}

/* Reads a symbolic link. Returns 0 if it is not a link, or too long. */
DS__SEAM static int ds__os_link(const char *path, char *out, size_t size) {
    ssize_t n = readlink(path, out, size);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    out[n] = 0;
    return 1;
}

#define DS__OS_THREAD_NAME "devstream"

/* Prepares a thread of the library. The thread gets a name by which ds__os_program_ended knows it,
   and blocks signals, so handlers run on threads of the program. Those of faults are not
   blocked. */
DS__SEAM static void ds__os_library_thread(void) {
    static const int open[] = { SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS };
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++)
        sigdelset(&set, open[i]);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    pthread_setname_np(DS__OS_THREAD_NAME);
}

/* Unblocks all signals on the calling thread of the library. */
DS__SEAM static void ds__os_take_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
}

/* Returns 1 if the thread lives and is not of the library. */
static int ds__os_is_program_thread(thread_act_t thread) {
    thread_extended_info_data_t info;
    mach_msg_type_number_t count = THREAD_EXTENDED_INFO_COUNT;
    if (thread_info(thread, THREAD_EXTENDED_INFO, (thread_info_t)&info, &count) != KERN_SUCCESS)
        return 0;
    return strncmp(info.pth_name, DS__OS_THREAD_NAME, sizeof info.pth_name) != 0;
}

/* Returns 1 if all threads of the program have ended, the main thread included. Threads of the
   system's own queues count as the program's. */
DS__SEAM static int ds__os_program_ended(void) {
    thread_act_array_t threads;
    mach_msg_type_number_t count;
    int living = 0;
    if (task_threads(mach_task_self(), &threads, &count) != KERN_SUCCESS)
        return 0;
    for (mach_msg_type_number_t i = 0; i < count; i++) {
        living += ds__os_is_program_thread(threads[i]);
        mach_port_deallocate(mach_task_self(), threads[i]);
    }
    vm_deallocate(mach_task_self(), (vm_address_t)threads, count * sizeof threads[0]);
    return living == 0;
}

#endif
