/* os/linux.h - Linux, C library and processor.

   Wraps the calls that depend on Linux, the C library or the processor. They concern the clock,
   futexes, address space, shared memory, byte locks of files and signal masks. The main users
   are the CPU driver and the shared-memory registry (base/ipc_registry.h).

   Invariants: sizes and alignments of reserved address space are multiples of a page. A shared
   memory object (ds__os_memfd) has no name in the file system and never changes its size.
   ds__os_memfd_open opens only an object with the given cookie and size. Both report the cause
   of a failure in errno.
   Locks: none inside the process. A byte lock (ds__os_hold_byte) belongs to an open file and is
   requested without waiting. The kernel releases it when the file is closed or the process
   ends.
   Threads: any; no function keeps state of its own. ds__os_library_thread and
   ds__os_take_signals change the mask of the calling thread only, which must be a thread of the
   library. */
#ifndef DS__OS_LINUX_H
#define DS__OS_LINUX_H

#include "../api/base.h"
#include "cgroup.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- >>os: all that depends on Linux, the C library and the processor ------------------------ */

/* Declarations that strict -std=c11 hides. */
extern long syscall(long number, ...);
/* clockid_t is an int in glibc and musl */
extern int clock_gettime(int clock, struct timespec *out);
extern int madvise(void *at, size_t size, int advice);
extern int sched_getcpu(void);

#define DS__LIKELY(x) __builtin_expect(!!(x), 1)
#define DS__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DS__FOREVER UINT64_MAX
#define DS__SEAM __attribute__((unused)) /* for functions that only some drivers or layers use */

#if defined(__SANITIZE_THREAD__)
#define DS__SANITIZED 1
#elif defined(__SANITIZE_ADDRESS__)
#define DS__SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || \
    __has_feature(memory_sanitizer)
#define DS__SANITIZED 1
#endif
#endif

/* Returns the time of the monotonic clock in nanoseconds. */
DS__SEAM static uint64_t ds__now_ns(void) {
    struct timespec t;
    clock_gettime(1 /* CLOCK_MONOTONIC */, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds since 1970. */
DS__SEAM static int64_t ds__os_wall_ns(void) {
    struct timespec t;
    clock_gettime(0 /* CLOCK_REALTIME */, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

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

/* Loads a shared library; NULL: it cannot be loaded. Programs that use this link with -ldl before
   glibc 2.34. */
DS__SEAM static void *ds__os_library_open(const char *path) {
    return dlopen(path, RTLD_NOW);
}

/* Returns the address of a symbol; NULL: there is none. library NULL: a symbol of the program or of
   a library that it is linked with. */
DS__SEAM static void *ds__os_library_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

DS__SEAM static void ds__os_library_close(void *library) {
    dlclose(library);
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

/* Returns the number by which tools know the process. */
DS__SEAM static unsigned ds__os_process_id(void) {
    return (unsigned)getpid();
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

/* Returns the bytes of memory that this process may use: the machine's, or fewer by its control
   groups. */
DS__SEAM static size_t ds__os_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    size_t all = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)1 << 30;
    uint64_t limit = ds__cgroup_limits("").memory;
    return all > limit ? (size_t)limit : all;
}

/* Writes the system's name of the processor. Returns 0 if there is none, as on many systems with
   aarch64. */
DS__SEAM static int ds__os_processor_name(char *out, size_t size) {
    char line[256];
    int found = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || !colon[1])
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "%s", colon + 2);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

/* Allocates memory at a multiple of `align`, a power of two; the size is rounded up to it. NULL: no
   memory. */
DS__SEAM static void *ds__os_aligned_alloc(size_t align, size_t size) {
    return size > SIZE_MAX - align ? NULL : aligned_alloc(align, (size + align - 1) & ~(align - 1));
}

DS__SEAM static void ds__os_aligned_free(void *at) {
    free(at);
}

/* Reserves address space without memory, aligned to a power of two. NULL: there is none. The size
   is a multiple of a page. */
DS__SEAM static void *ds__os_reserve(size_t size, size_t align) {
    const int flags = MAP_PRIVATE | 0x20 /* MAP_ANONYMOUS */ | 0x4000 /* MAP_NORESERVE */;
    if (size > SIZE_MAX - align)
        return NULL;
    char *at = mmap(NULL, size + align, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = (align - (uintptr_t)at % align) % align;
    if (before)
        munmap(at, before);
    munmap(at + before + size, align - before);
    return at + before;
}

/* Maps zeroed memory at the addresses, in large pages if the system has them. Returns 0 if there is
   no memory. */
DS__SEAM static int ds__os_commit(void *at, size_t size) {
    if (mprotect(at, size, PROT_READ | PROT_WRITE))
        return 0;
    madvise(at, size, 14 /* MADV_HUGEPAGE */);
    return 1;
}

/* Returns the bytes of a page, a power of two. */
DS__SEAM static size_t ds__os_page(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Allows or forbids accesses to whole pages. Returns 0 if the system refuses. */
DS__SEAM static int ds__os_protect(void *at, size_t size, int allow) {
    return mprotect(at, size, allow ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
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

/* Returns the memory to the system; an access to the addresses is a fault then. If the process has
   too many mappings, the addresses stay accessible. */
DS__SEAM static void ds__os_decommit(void *at, size_t size) {
    const int flags =
        MAP_PRIVATE | MAP_FIXED | 0x20 /* MAP_ANONYMOUS */ | 0x4000 /* MAP_NORESERVE */;
    if (mmap(at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        madvise(at, size, 4 /* MADV_DONTNEED */);
}

DS__SEAM static void ds__os_unreserve(void *at, size_t size) {
    munmap(at, size);
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

/* Creates memory that other processes can open through /proc/PID/fd/N, and that no file name
   outlives. `cookie` identifies the memory. Its size is fixed, and no pages are allocated yet.
   Returns -1 if the system refuses (errno). */
DS__SEAM static int ds__os_memfd(size_t size, uint64_t cookie) {
    char name[48];
    snprintf(name, sizeof name, "devstream-%016llx", (unsigned long long)cookie);
    int fd = (int)syscall(SYS_memfd_create, name, 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
    if (fd >= 0 && (syscall(SYS_ftruncate, fd, (long)size) ||
                    fcntl(fd, 1033 /* F_ADD_SEALS */, 6 /* F_SEAL_SHRINK | F_SEAL_GROW */))) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Reads a symbolic link. Returns 0 if it is not a link, or too long. */
DS__SEAM static int ds__os_link(const char *path, char *out, size_t size) {
    long n = syscall(SYS_readlinkat, -100 /* AT_FDCWD */, path, out, size);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    out[n] = 0;
    return 1;
}

/* Returns 1 if is_fn returns 1 for a name in the folder. */
DS__SEAM static int ds__os_any(const char *path, int (*is_fn)(const char *name)) {
    DIR *folder = opendir(path);
    int is = 0;
    for (struct dirent *one; folder && !is && (one = readdir(folder)) != NULL;)
        is = is_fn(one->d_name);
    if (folder)
        closedir(folder);
    return is;
}

static int ds__os_is_memfd(const char *path, uint64_t cookie) {
    char link[96];
    char name[48];
    int n = snprintf(name, sizeof name, "/memfd:devstream-%016llx", (unsigned long long)cookie);
    return ds__os_link(path, link, sizeof link) && strncmp(link, name, (size_t)n) == 0;
}

/* Opens the memory of another process. Returns -1 with errno; ENOENT: the process has ended or has
   closed the memory. */
DS__SEAM static int ds__os_memfd_open(int pid, int fd, uint64_t cookie, size_t size) {
    char path[48];
    char mine[48];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    errno = 0; /* reading a link to another file does not set errno */

    /* no other file may be opened, since it might be a device */
    if (!ds__os_is_memfd(path, cookie)) {
        if (errno != EACCES && errno != EPERM)
            errno = ENOENT;
        return -1;
    }
    int got = open(path, O_RDWR | 0x80000 /* O_CLOEXEC */);
    if (got < 0)
        return -1;
    snprintf(mine, sizeof mine, "/proc/self/fd/%d", got);
    /* the size must be fixed: an access to a page that is cut off later would raise a signal */
    int seals = fcntl(got, 1034 /* F_GET_SEALS */);
    if (ds__os_is_memfd(mine, cookie) && seals >= 0 && (seals & 6) == 6 &&
        (size_t)lseek(got, 0, SEEK_END) == size)
        return got;
    close(got);
    errno = ENOENT;
    return -1;
}

DS__SEAM static void ds__os_close(int fd) {
    close(fd);
}

/* Allocates the pages of these bytes, so that an access cannot fail. Returns 0 if there is no
   memory. */
DS__SEAM static int ds__os_memfd_reserve(int fd, size_t at, size_t size) {
    long r;
    do
        r = syscall(SYS_fallocate, fd, 0, (long)at, (long)size);
    while (r && errno == EINTR);
    return r == 0;
}

DS__SEAM static void *ds__os_memfd_map(int fd, size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Keeps the mapping, and with it the open file, from forked children. */
DS__SEAM static int ds__os_keep_from_child(void *at, size_t size) {
    return madvise(at, size, 10 /* MADV_DONTFORK */) == 0;
}

DS__SEAM static void ds__os_unmap(void *at, size_t size) {
    munmap(at, size);
}

/* Takes the lock of a byte for the open file, until the file is closed; the kernel closes it at the
   latest when the process ends. */
static int ds__os_lock_byte(int fd, uint64_t byte, int command) {
    struct flock f;
    memset(&f, 0, sizeof f);
    f.l_type = F_WRLCK;
    f.l_whence = SEEK_SET;
    f.l_start = (long)byte;
    f.l_len = 1;
    if (fcntl(fd, command, &f))
        return -1;
    return f.l_type != F_UNLCK;
}

DS__SEAM static int ds__os_hold_byte(int fd, uint64_t byte) {
    return ds__os_lock_byte(fd, byte, 37 /* F_OFD_SETLK */) >= 0;
}

/* Returns 1 if another process holds the lock of the byte. */
DS__SEAM static int ds__os_byte_held(int fd, uint64_t byte) {
    return ds__os_lock_byte(fd, byte, 36 /* F_OFD_GETLK */) != 0;
}

/* Returns a random number that is unlikely to repeat. */
DS__SEAM static uint64_t ds__os_cookie(void) {
    uint64_t n = 0;
    if (syscall(SYS_getrandom, &n, sizeof n, 0) != (long)sizeof n || n == 0)
        n = ds__now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&n ^ (uint64_t)getpid() << 32;
    return n ? n : 1;
}

/* Like ds__futex_wake and ds__futex_wait, between processes. */
DS__SEAM static void ds__futex_wake_shared(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, 1 /* FUTEX_WAKE */, INT_MAX, NULL, NULL, 0);
}

/* struct futex_waitv */
typedef struct ds__sleep {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t zero;
} ds__sleep;

/* Sleeps while all words have these values. Before Linux 5.16 there is no wait for several words;
   it sleeps for half a millisecond then. */
DS__SEAM static void ds__futex_wait_any(ds__sleep *list, unsigned count, uint64_t timeout_ns) {
    uint64_t until = ds__now_ns() + timeout_ns;
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    struct timespec nap = { 0, 500000 };
    if (syscall(449 /* SYS_futex_waitv */, list, count, 0, &t, 1 /* CLOCK_MONOTONIC */) < 0 &&
        errno == ENOSYS)
        syscall(SYS_nanosleep, &nap, NULL);
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

/* Returns 1 if the system's clock is the processor's: the system has found it to run evenly and to
   be the same on all processors. That of aarch64 is by its architecture. */
DS__SEAM static int ds__os_ticks_are_time(void) {
#if defined(__x86_64__)
    char name[32] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (file && !fgets(name, sizeof name, file))
        *name = 0;
    if (file)
        fclose(file);
    return strcmp(name, "tsc\n") == 0;
#else
    return 1;
#endif
}

/* Writes the name of the program into a buffer, as far as the system tells it. */
DS__SEAM static void ds__os_program_name(char *out, size_t size) {
    FILE *file = fopen("/proc/self/comm", "r");
    *out = 0;
    if (file && !fgets(out, (int)size, file))
        *out = 0;
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
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
