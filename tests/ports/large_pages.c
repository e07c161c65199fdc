/* A library to preload on Linux: system calls about memory that behave as on a machine with pages
   of 16 KiB, such as macOS on arm64. Mappings begin at multiples of 16 KiB. An address or a size of
   anonymous memory that is not such a multiple ends the program, after a line that names the call.
   Only calls of the program are seen, not those within the C library.

   Compile:  cc -shared -fPIC large_pages.c -o large_pages.so -ldl
   Run:      LD_PRELOAD=./large_pages.so PROGRAM */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 1 << 14 };

long sysconf(int name) {
    long (*next)(int);
    void *found = dlsym(RTLD_NEXT, "sysconf");
    memcpy(&next, &found, sizeof next);
    if (name == _SC_PAGESIZE)
        return PAGE;
    return name == _SC_PHYS_PAGES ? next(name) / (PAGE / 4096) : next(name);
}

static void check(const char *call, const void *at, size_t size, int whole) {
    char line[160];
    if ((uintptr_t)at % PAGE == 0 && (!whole || size % PAGE == 0))
        return;
    int n = snprintf(line, sizeof line, "large pages: %s(%p, %zu) is no multiple of %d bytes\n",
                     call, at, size, PAGE);
    (void)!write(2, line, (size_t)n);
    abort();
}

static void *map(void *at, size_t size, int access, int flags, int fd, off_t offset) {
    return (void *)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}

void *mmap(void *at, size_t size, int access, int flags, int fd, off_t offset) {
    check("mmap", at, size, (flags & MAP_ANONYMOUS) != 0);
    if (flags & MAP_FIXED)
        return map(at, size, access, flags, fd, offset);

    /* the file is mapped in the middle of a larger piece of address space */
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    char *space =
        map(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return MAP_FAILED;
    size_t before = (PAGE - (uintptr_t)space % PAGE) % PAGE;
    if (before)
        syscall(SYS_munmap, space, before);
    if (before < PAGE)
        syscall(SYS_munmap, space + before + whole, PAGE - before);
    void *got = map(space + before, size, access, flags | MAP_FIXED, fd, offset);
    if (got == MAP_FAILED)
        syscall(SYS_munmap, space + before, whole);
    return got;
}

int munmap(void *at, size_t size) {
    check("munmap", at, size, 0);
    return (int)syscall(SYS_munmap, at, (size + PAGE - 1) / PAGE * PAGE);
}

int mprotect(void *at, size_t size, int access) {
    check("mprotect", at, size, 1);
    return (int)syscall(SYS_mprotect, at, size, access);
}

int madvise(void *at, size_t size, int advice) {
    check("madvise", at, size, 0);
    return (int)syscall(SYS_madvise, at, size, advice);
}
