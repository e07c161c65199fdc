/* os/windows_share.h - shared memory of several processes on Windows.

   Provides shared memory that other processes open by a name (ds__os_memfd), numbers that are held
   until their process ends (ds__os_hold_byte), waits between processes, and random numbers that
   identify memory (ds__os_cookie). linux_share.h has the contract.

   Policy:
   1. Memory is a named mapping of the paging file. The name has the process, the cookie and the
      size, so only a process that knows all of them can open it. Windows removes the name with the
      last handle or view. A process that opens memory compares it with the handle of the process
      that created it, which must still have it open.
   2. A number that a process holds is a named event. Windows closes it when the process ends, in
      any way. If the name does not exist, no process holds the number.
   3. All pages are allocated when the mapping is created.
   4. A wait for a word does not reach other processes. ds__futex_wait_any therefore sleeps for at
      most a millisecond, and its caller looks again.

   Invariants: handles have 32 significant bits, so an int holds them. Names are in the namespace of
   the session, and other users may not open them. Failures set errno.
   Locks: none.
   Threads: any; no function keeps state of its own. */
#ifndef DS__OS_WINDOWS_SHARE_H
#define DS__OS_WINDOWS_SHARE_H

#include "windows.h"

enum { DS__WIN_NAME = 96 };

static void *ds__win_handle(int fd) {
    return (void *)(intptr_t)fd;
}

static void ds__win_memory_name(char *out, unsigned pid, uint64_t cookie, size_t size) {
    snprintf(out, DS__WIN_NAME, "Local\\devstream-%u-%016llx-%llu", pid, (unsigned long long)cookie,
             (unsigned long long)size);
}

static void ds__win_event_name(char *out, uint64_t cookie, uint64_t number) {
    snprintf(out, DS__WIN_NAME, "Local\\devstream-%016llx-%llu", (unsigned long long)cookie,
             (unsigned long long)number);
}

/* Returns a new handle as a number; -1 with errno if there is none, or if another one has the name
   already. */
static int ds__win_new(void *handle) {
    if (handle && GetLastError() == DS__WIN_EXISTS) {
        CloseHandle(handle);
        errno = EEXIST;
        return -1;
    }
    if (!handle)
        ds__win_set_errno();
    return handle ? (int)(intptr_t)handle : -1;
}

DS__SEAM static int ds__os_memfd(size_t size, uint64_t cookie) {
    char name[DS__WIN_NAME];
    ds__win_memory_name(name, ds__os_process_id(), cookie, size);
    return ds__win_new(CreateFileMappingA((void *)(intptr_t)-1, NULL, DS__WIN_READ_WRITE,
                                          (unsigned long)((uint64_t)size >> 32),
                                          (unsigned long)(size & 0xffffffffu), name));
}

/* Checks that a handle is the same mapping as handle `fd` of the other process, which has it open
   then. Returns 0 with errno if it is not. */
static int ds__win_is_same(void *handle, int pid, int fd) {
    int (*same_fn)(void *a, void *b);
    void *copy = NULL;
    int same = 0;
    ds__win_find("CompareObjectHandles", &same_fn);
    void *process = OpenProcess(0x40 /* PROCESS_DUP_HANDLE */, 0, (unsigned long)pid);
    if (!process) {
        ds__win_set_errno();
        return 0;
    }
    if (DuplicateHandle(process, ds__win_handle(fd), GetCurrentProcess(), &copy, 0, 0,
                        2 /* the same access */)) {
        same = same_fn && same_fn(handle, copy);
        CloseHandle(copy);
    }
    CloseHandle(process);
    errno = ENOENT;
    return same;
}

DS__SEAM static int ds__os_memfd_open(int pid, int fd, uint64_t cookie, size_t size) {
    char name[DS__WIN_NAME];
    ds__win_memory_name(name, (unsigned)pid, cookie, size);
    void *handle = OpenFileMappingA(DS__WIN_MAP_READ_WRITE, 0, name);
    if (!handle) {
        ds__win_set_errno();
        return -1;
    }
    if (ds__win_is_same(handle, pid, fd))
        return (int)(intptr_t)handle;
    CloseHandle(handle);
    return -1;
}

DS__SEAM static void ds__os_close(int fd) {
    CloseHandle(ds__win_handle(fd));
}

DS__SEAM static int ds__os_memfd_reserve(int fd, size_t at, size_t size) {
    (void)fd;
    (void)at;
    (void)size;
    return 1;
}

DS__SEAM static void *ds__os_memfd_map(int fd, size_t size) {
    return MapViewOfFile(ds__win_handle(fd), DS__WIN_MAP_READ_WRITE, 0, 0, size);
}

DS__SEAM static int ds__os_hold_byte(int fd, uint64_t cookie, uint64_t byte) {
    char name[DS__WIN_NAME];
    (void)fd;
    ds__win_event_name(name, cookie, byte);
    return ds__win_new(CreateEventA(NULL, 1, 0, name));
}

DS__SEAM static void ds__os_release_byte(int held) {
    CloseHandle(ds__win_handle(held));
}

DS__SEAM static int ds__os_byte_held(int fd, uint64_t cookie, uint64_t byte) {
    char name[DS__WIN_NAME];
    (void)fd;
    ds__win_event_name(name, cookie, byte);
    void *event = OpenEventA(0x100000 /* SYNCHRONIZE */, 0, name);
    if (!event)
        return GetLastError() == DS__WIN_DENIED;
    CloseHandle(event);
    return 1;
}

DS__SEAM static uint64_t ds__os_cookie(void) {
    uint64_t n = 0;
    unsigned char (*random_fn)(void *out, unsigned long size);
    void *library = ds__os_library_open("advapi32.dll");
    /* RtlGenRandom by its exported name */
    void *found = library ? ds__os_library_symbol(library, "SystemFunction036") : NULL;
    memcpy(&random_fn, &found, sizeof random_fn);
    if (!random_fn || !random_fn(&n, sizeof n) || n == 0)
        n = ds__now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&n ^
            (uint64_t)ds__os_process_id() << 32;
    return n ? n : 1;
}

DS__SEAM static void ds__futex_wake_shared(_Atomic uint32_t *word) {
    (void)word;
}

typedef struct ds__sleep {
    _Atomic uint32_t *word; /* NULL: other processes change it */
    uint32_t value;
} ds__sleep;

DS__SEAM static ds__sleep ds__sleep_on(_Atomic uint32_t *word, uint32_t value, int shared) {
    return (ds__sleep){ shared ? NULL : word, value };
}

/* Sleeps on the first word of the process itself, or without one. */
DS__SEAM static void ds__futex_wait_any(ds__sleep *list, unsigned count, uint64_t timeout_ns) {
    uint64_t nap = timeout_ns < 1000000u ? timeout_ns : 1000000u;
    unsigned i = 0;
    while (i < count && !list[i].word)
        i++;
    if (i < count)
        ds__futex_wait(list[i].word, list[i].value, nap);
    else
        ds__os_sleep(nap);
}

#endif
