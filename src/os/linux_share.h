/* os/linux_share.h - shared memory of several processes on Linux.

   Provides shared memory that other processes open (ds__os_memfd), waits between processes, and
   random numbers that identify memory (ds__os_cookie). The main users are the CPU driver and the
   shared-memory registry (base/ipc_registry.h).

   Invariants: a shared memory object (ds__os_memfd) has no name in the file system and never
   changes its size. ds__os_memfd_open opens only an object with the given cookie and size. Both
   report the cause of a failure in errno.
   Locks: none inside the process; posix_file.h has the locks of bytes.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_LINUX_SHARE_H
#define DS__OS_LINUX_SHARE_H

#include "linux.h"

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
    int got = open(path, O_RDWR | DS__O_CLOEXEC);
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

/* Allocates the pages of these bytes, so that an access cannot fail. Returns 0 if there is no
   memory. */
DS__SEAM static int ds__os_memfd_reserve(int fd, size_t at, size_t size) {
    long r;
    do
        r = syscall(SYS_fallocate, fd, 0, (long)at, (long)size);
    while (r && errno == EINTR);
    return r == 0;
}

DS__SEAM static void ds__os_close(int fd) {
    close(fd);
}

DS__SEAM static void *ds__os_memfd_map(int fd, size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Keeps the mapping, and with it the open file, from forked children. */
DS__SEAM static int ds__os_keep_from_child(void *at, size_t size) {
    return madvise(at, size, 10 /* MADV_DONTFORK */) == 0;
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

/* Returns an entry for ds__futex_wait_any: a word and the value that it has while the caller
   sleeps. shared: other processes change the word. */
DS__SEAM static ds__sleep ds__sleep_on(_Atomic uint32_t *word, uint32_t value, int shared) {
    return (ds__sleep){ value, (uintptr_t)word, 2u /* of 32 bits */ | (shared ? 0 : 128u), 0 };
}

/* Sleeps while all words have these values. Before Linux 5.16 there is no wait for several words;
   it sleeps for half a millisecond then. */
DS__SEAM static void ds__futex_wait_any(ds__sleep *list, unsigned count, uint64_t timeout_ns) {
    uint64_t until = ds__now_ns() + timeout_ns;
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    struct timespec nap = { 0, 500000 };
    if (syscall(449 /* SYS_futex_waitv */, list, count, 0, &t, DS__CLOCK_MONOTONIC) < 0 &&
        errno == ENOSYS)
        syscall(SYS_nanosleep, &nap, NULL);
}

#endif
