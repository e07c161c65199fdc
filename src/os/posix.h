/* os/posix.h - system calls that POSIX systems share.

   Wraps the clock, shared libraries, the process and address space, for Linux (linux.h) and other
   systems of this kind.

   Invariants: sizes and alignments of reserved address space are multiples of a page. Values that
   the headers hide in strict C11 are written here once.
   Locks: none.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_POSIX_H
#define DS__OS_POSIX_H

#include "compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Declarations and values that strict -std=c11 or a program's _POSIX_C_SOURCE hides. clockid_t is
   an int in glibc and musl, and the header of macOS always declares clock_gettime. The monotonic
   clock of macOS is CLOCK_UPTIME_RAW, which as on Linux does not count the time of a sleeping
   machine. */
extern int madvise(void *at, size_t size, int advice);

#if defined(__APPLE__)
#define DS__CLOCK_REALTIME ((clockid_t)0)
#define DS__CLOCK_MONOTONIC ((clockid_t)8) /* CLOCK_UPTIME_RAW */
#define DS__MAP_ANONYMOUS 0x1000
#define DS__MAP_NORESERVE 0x40
#define DS__MAP_POPULATE 0
#define DS__O_CLOEXEC 0x1000000
#define DS__O_NOFOLLOW 0x100
#define DS__RTLD_NOLOAD 0x10
#define DS__RTLD_DEFAULT ((void *)-2)
#define DS__F_OFD_SETLK 90
#define DS__F_OFD_GETLK 92
#else
extern int clock_gettime(int clock, struct timespec *out);
#define DS__CLOCK_REALTIME 0
#define DS__CLOCK_MONOTONIC 1
#define DS__MAP_ANONYMOUS 0x20
#define DS__MAP_NORESERVE 0x4000
#define DS__MAP_POPULATE 0x8000
#define DS__O_CLOEXEC 0x80000
#define DS__RTLD_NOLOAD 4
#define DS__RTLD_DEFAULT NULL
#define DS__F_OFD_SETLK 37
#define DS__F_OFD_GETLK 36
#endif
#define DS__MADV_DONTNEED 4

/* Returns the time of the monotonic clock in nanoseconds. */
DS__SEAM static uint64_t ds__now_ns(void) {
    struct timespec t;
    clock_gettime(DS__CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds since 1970. */
DS__SEAM static int64_t ds__os_wall_ns(void) {
    struct timespec t;
    clock_gettime(DS__CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Loads a shared library; NULL: it cannot be loaded. Programs that use this link with -ldl before
   glibc 2.34. */
DS__SEAM static void *ds__os_library_open(const char *path) {
    return dlopen(path, RTLD_NOW);
}

/* Returns the address of a symbol; NULL: there is none. library NULL: a symbol of the program or of
   a library that it is linked with. */
DS__SEAM static void *ds__os_library_symbol(void *library, const char *name) {
    return dlsym(library ? library : DS__RTLD_DEFAULT, name);
}

DS__SEAM static void ds__os_library_close(void *library) {
    dlclose(library);
}

/* Returns a library that the process has loaded already, under any path. NULL: it has not. */
DS__SEAM static void *ds__os_library_loaded(const char *name) {
    return dlopen(name, RTLD_NOW | DS__RTLD_NOLOAD);
}

/* Loads a shared library whose symbols the libraries that are loaded later can use. Returns NULL on
   failure, with the reason in *out_error; the text is valid until the thread's next such call. */
DS__SEAM static void *ds__os_library_share(const char *path, const char **out_error) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    *out_error = library ? NULL : dlerror();
    return library;
}

/* Returns the number by which tools know the process. */
DS__SEAM static unsigned ds__os_process_id(void) {
    return (unsigned)getpid();
}

/* Allocates memory at a multiple of `align`, a power of two; the size is rounded up to it. NULL: no
   memory. */
DS__SEAM static void *ds__os_aligned_alloc(size_t align, size_t size) {
    return size > SIZE_MAX - align ? NULL : aligned_alloc(align, (size + align - 1) & ~(align - 1));
}

DS__SEAM static void ds__os_aligned_free(void *at) {
    free(at);
}

/* Returns the bytes of a page, a power of two. */
DS__SEAM static size_t ds__os_page(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Reserves address space without memory, aligned to a power of two. NULL: there is none. The size
   is a multiple of a page. */
DS__SEAM static void *ds__os_reserve(size_t size, size_t align) {
    const int flags = MAP_PRIVATE | DS__MAP_ANONYMOUS | DS__MAP_NORESERVE;
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

/* Allows or forbids accesses to whole pages. Returns 0 if the system refuses. */
DS__SEAM static int ds__os_protect(void *at, size_t size, int allow) {
    return mprotect(at, size, allow ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}

/* Returns the memory to the system; an access to the addresses is a fault then. If the process has
   too many mappings, the addresses stay accessible. */
DS__SEAM static void ds__os_decommit(void *at, size_t size) {
    const int flags = MAP_PRIVATE | MAP_FIXED | DS__MAP_ANONYMOUS | DS__MAP_NORESERVE;
    if (mmap(at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        madvise(at, size, DS__MADV_DONTNEED);
}

DS__SEAM static void ds__os_unreserve(void *at, size_t size) {
    munmap(at, size);
}

DS__SEAM static void ds__os_unmap(void *at, size_t size) {
    munmap(at, size);
}

#endif
