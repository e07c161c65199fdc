/* os/linux.h - Linux.

   Wraps the calls that depend on Linux: futexes, barriers, pages, the threads of the library and
   links between files. linux_share.h has shared memory, linux_machine.h what Linux tells about the
   machine, and posix.h the calls that other systems have as well.

   Invariants: sizes of reserved address space are multiples of a page.
   Locks: none.
   Threads: any; no function keeps state of its own. ds__os_library_thread and ds__os_take_signals
   change the mask of the calling thread only, which must be a thread of the library. */
#ifndef DS__OS_LINUX_H
#define DS__OS_LINUX_H

#include "compiler.h"
#include "posix.h"
#include "posix_file.h"
#include "posix_thread.h"

#include <sys/syscall.h>

/* Declarations that strict -std=c11 hides. */
extern long syscall(long number, ...);
extern int sched_getcpu(void);

/* Sleeps while *word == value; returns at a wake, a signal, or after timeout_ns. */
DS__SEAM static void ds__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    struct timespec t;
    struct timespec *limit = NULL;
    if (timeout_ns != DS__FOREVER) {
        t.tv_sec = (time_t)(timeout_ns / 1000000000u);
        t.tv_nsec = (long)(timeout_ns % 1000000000u);
        limit = &t;
    }
    syscall(SYS_futex, word, 128 /* FUTEX_WAIT_PRIVATE */, value, limit, NULL, 0);
}

DS__SEAM static void ds__futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, 129 /* FUTEX_WAKE_PRIVATE */, count, NULL, NULL, 0);
}

/* Sleeps for less than a second. */
DS__SEAM static void ds__os_sleep(uint64_t ns) {
    struct timespec t = { 0, (long)ns };
    syscall(SYS_nanosleep, &t, NULL);
}

/* Lets other threads run. */
DS__SEAM static void ds__os_yield(void) {
    syscall(SYS_sched_yield);
}

/* Returns the processor that the thread runs on at this moment; negative: it is not known. */
DS__SEAM static int ds__os_processor(void) {
    return sched_getcpu();
}

/* Returns the number by which tools know the thread. */
DS__SEAM static uint32_t ds__os_thread_id(void) {
    return (uint32_t)syscall(SYS_gettid);
}

/* Prepares ds__os_barrier for the process. Returns 0 if the kernel has no such barrier. */
DS__SEAM static int ds__os_barrier_register(void) {
    return syscall(SYS_membarrier, 16 /* MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED */, 0, 0) == 0;
}

/* Makes every thread of the process pass a full barrier. */
DS__SEAM static void ds__os_barrier(void) {
    syscall(SYS_membarrier, 8 /* MEMBARRIER_CMD_PRIVATE_EXPEDITED */, 0, 0);
}

/* Maps zeroed memory at the addresses, in large pages if the system has them. Returns 0 if there is
   no memory. */
DS__SEAM static int ds__os_commit(void *at, size_t size) {
    if (mprotect(at, size, PROT_READ | PROT_WRITE))
        return 0;
    madvise(at, size, 14 /* MADV_HUGEPAGE */);
    return 1;
}

/* Asks for large pages at the addresses. Returns 0 if the system has none. */
DS__SEAM static int ds__os_large_pages(void *at, size_t size) {
    return madvise(at, size, 14 /* MADV_HUGEPAGE */) == 0;
}

/* Asks for memory of a NUMA node at the addresses, which have no pages yet. If the node is full,
   the system takes another one. Returns 0 or the system's error number. */
DS__SEAM static int ds__os_prefer_node(void *at, size_t size, int node) {
    const unsigned bits = sizeof(unsigned long) * 8;
    unsigned long mask[1024 / (sizeof(unsigned long) * 8)] = { 0 };
    mask[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
    return syscall(SYS_mbind, at, size, 1 /* MPOL_PREFERRED */, mask, 1025ul, 0u) ? errno : 0;
}

/* Returns 0 if the process has no memory at the address. Addresses that are only reserved count
   as memory. */
DS__SEAM static int ds__os_is_mapped(uintptr_t address) {
    unsigned char resident;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    int before = errno;
    int mapped = !syscall(SYS_mincore, address - address % page, 1, &resident) || errno != ENOMEM;
    errno = before;
    return mapped;
}

/* Reads a symbolic link. Returns 0 if it is not a link, or too long. */
DS__SEAM static int ds__os_link(const char *path, char *out, size_t size) {
    long n = syscall(SYS_readlinkat, -100 /* AT_FDCWD */, path, out, size);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    out[n] = 0;
    return 1;
}

#define DS__OS_THREAD_NAME "devstream" /* at most 15 characters */

/* Prepares a thread of the library. The thread gets a name by which ds__os_program_ended knows it,
   and blocks signals, so handlers run on threads of the program. The C library's own signals (32 to
   34, for instance of setuid) and those of faults are not blocked. */
DS__SEAM static void ds__os_library_thread(void) {
    static const int
        open[] = { 32,           33,          34,          4 /* ILL */,   5 /* TRAP */,
                   6 /* ABRT */, 7 /* BUS */, 8 /* FPE */, 11 /* SEGV */, 31 /* SYS */ };
    uint64_t set = ~(uint64_t)0;
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++)
        set &= ~((uint64_t)1 << (open[i] - 1));
    syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &set, NULL, sizeof set);
    syscall(SYS_prctl, 15 /* PR_SET_NAME */, DS__OS_THREAD_NAME, 0, 0, 0);
}

/* Unblocks all signals on the calling thread of the library. */
DS__SEAM static void ds__os_take_signals(void) {
    uint64_t set = 0;
    syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &set, NULL, sizeof set);
}

/* Returns 1 if the entry of /proc/self/task is a living thread of the program, not the library. */
static int ds__os_is_program_thread(const char *name) {
    char path[300];
    char line[64];
    if (*name < '0' || *name > '9')
        return 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const char *rest = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    /* "1 (name) S ...": Z and X are ended threads; threads of any devstream in this process have
       the name */
    if (!rest || !rest[1] || rest[2] == 'Z' || rest[2] == 'X')
        return 0;
    return !strstr(line, "(" DS__OS_THREAD_NAME ")");
}

/* Returns 1 if all threads of the program have ended, the main thread included. */
DS__SEAM static int ds__os_program_ended(void) {
    return !ds__os_any("/proc/self/task", ds__os_is_program_thread);
}

#endif
