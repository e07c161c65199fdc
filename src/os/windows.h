/* os/windows.h - Windows.

   Wraps the clock, waits for words of memory, modules and pages of Windows 10 and newer on x86-64.
   windows_thread.h has threads, windows_share.h shared memory, windows_file.h files, and
   windows_machine.h what Windows tells about the machine. linux.h has the contract of each
   function.

   Policy:
   1. WaitOnAddress takes whole milliseconds, so timeouts are rounded up to them. Sleeps of less
      than a millisecond use a timer of high resolution, which has steps of about half a
      millisecond.
   2. WaitOnAddress is not in kernel32.dll and is looked up at its first use. Without it, a wait is
      a sleep of one millisecond.
   3. Windows has no fork, no signals and no program whose threads have ended while the process goes
      on: the functions for these do nothing.

   Invariants: pages have 4 KiB. A part of reserved address space is committed or decommitted in
   whole pages, and all of it is released at once, since Windows cannot release a part.
   Locks: none.
   Threads: any; except for the addresses of functions, no function keeps state of its own. */
#ifndef DS__OS_WINDOWS_H
#define DS__OS_WINDOWS_H

#include "compiler.h"
#include "windows_api.h"

#include <malloc.h>
#include <time.h>

/* Sets errno for the latest error of Windows. */
static void ds__win_set_errno(void) {
    switch (GetLastError()) {
    case DS__WIN_NO_FILE:
    case DS__WIN_NO_PATH:
    case DS__WIN_PARAMETER:
        errno = ENOENT;
        break;
    case DS__WIN_DENIED:
    case DS__WIN_SHARING:
        errno = EACCES;
        break;
    case DS__WIN_FILE_EXISTS:
    case DS__WIN_EXISTS:
        errno = EEXIST;
        break;
    case DS__WIN_DISK_FULL:
        errno = ENOSPC;
        break;
    case DS__WIN_NO_MEMORY:
    case DS__WIN_OUT_OF_MEMORY:
    case DS__WIN_NO_COMMIT:
        errno = ENOMEM;
        break;
    default:
        errno = EIO;
    }
}

/* ---- clock ---- */

DS__SEAM static uint64_t ds__now_ns(void) {
    static _Atomic uint64_t rate; /* of the counter per second; it does not change */
    uint64_t now = 0;
    uint64_t per_second = atomic_load_explicit(&rate, memory_order_relaxed);
    if (DS__UNLIKELY(!per_second)) {
        QueryPerformanceFrequency((union _LARGE_INTEGER *)(void *)&per_second);
        atomic_store_explicit(&rate, per_second, memory_order_relaxed);
    }
    QueryPerformanceCounter((union _LARGE_INTEGER *)(void *)&now);
    return now / per_second * 1000000000u + now % per_second * 1000000000u / per_second;
}

DS__SEAM static int64_t ds__os_wall_ns(void) {
    uint64_t now = 0; /* tenths of a microsecond since 1601 */
    GetSystemTimePreciseAsFileTime((struct _FILETIME *)(void *)&now);
    return ((int64_t)now - 116444736000000000) * 100;
}

/* ---- modules ---- */

DS__SEAM static void *ds__os_library_open(const char *path) {
    return (void *)LoadLibraryA(path);
}

/* library NULL: a symbol that the program itself exports. */
DS__SEAM static void *ds__os_library_symbol(void *library, const char *name) {
    void *symbol = NULL;
    struct HINSTANCE__ *module = library ? (struct HINSTANCE__ *)library : GetModuleHandleA(NULL);
    long long (*found)(void) = GetProcAddress(module, name);
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}

DS__SEAM static void ds__os_library_close(void *library) {
    FreeLibrary((struct HINSTANCE__ *)library);
}

DS__SEAM static void *ds__os_library_loaded(const char *name) {
    struct HINSTANCE__ *module = NULL;
    return GetModuleHandleExA(0, name, &module) ? (void *)module : NULL;
}

DS__SEAM static void *ds__os_library_share(const char *path, const char **out_error) {
    static _Thread_local char text[48];
    void *library = ds__os_library_open(path);
    *out_error = NULL;
    if (!library) {
        snprintf(text, sizeof text, "LoadLibrary reports error %u", (unsigned)GetLastError());
        *out_error = text;
    }
    return library;
}

/* ---- waits ---- */

/* Functions that may be missing. */
typedef struct ds__win_waits {
    int (*wait)(volatile void *word, void *value, size_t size, unsigned long ms);
    void (*wake_one)(void *word);
    void (*wake_all)(void *word);
} ds__win_waits;

/* Looks a function up in the library that has it on Windows 10 and newer. */
static void ds__win_find(const char *name, void *out) {
    struct HINSTANCE__ *module = GetModuleHandleA("kernelbase.dll");
    long long (*found)(void) = module ? GetProcAddress(module, name) : NULL;
    memcpy(out, &found, sizeof found);
}

static const ds__win_waits *ds__win_waits_get(void) {
    static ds__win_waits waits;
    static _Atomic int ready; /* 1: being looked up; 2: known */
    int expected = 0;
    while (DS__UNLIKELY(atomic_load_explicit(&ready, memory_order_acquire) != 2)) {
        if (!atomic_compare_exchange_strong(&ready, &expected, 1)) {
            SwitchToThread();
            expected = 0;
            continue;
        }
        ds__win_find("WaitOnAddress", &waits.wait);
        ds__win_find("WakeByAddressSingle", &waits.wake_one);
        ds__win_find("WakeByAddressAll", &waits.wake_all);
        if (!waits.wake_one || !waits.wake_all)
            waits.wait = NULL;
        atomic_store_explicit(&ready, 2, memory_order_release);
    }
    return &waits;
}

/* Returns whole milliseconds, rounded up. */
static unsigned long ds__win_ms(uint64_t ns) {
    if (ns == DS__FOREVER)
        return (unsigned long)DS__WIN_INFINITE;
    uint64_t ms = ns / 1000000u + (ns % 1000000u != 0);
    return ms < 0x7fffffff ? (unsigned long)ms : 0x7fffffff;
}

DS__SEAM static void ds__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    const ds__win_waits *w = ds__win_waits_get();
    if (w->wait)
        w->wait((volatile void *)word, &value, sizeof value, ds__win_ms(timeout_ns));
    else if (atomic_load(word) == value)
        Sleep(1);
}

DS__SEAM static void ds__futex_wake(_Atomic uint32_t *word, int count) {
    const ds__win_waits *w = ds__win_waits_get();
    if (!w->wait)
        return;
    if (count > 8) {
        w->wake_all((void *)word);
        return;
    }
    while (count-- > 0)
        w->wake_one((void *)word);
}

DS__SEAM static void ds__os_sleep(uint64_t ns) {
    int64_t due = -(int64_t)((ns + 99) / 100); /* tenths of a microsecond from now on */
    void *timer = ns < 1000000u
                      ? CreateWaitableTimerExW(NULL, NULL, 2 /* high resolution */, 0x100002)
                      : NULL;
    if (timer &&
        SetWaitableTimer(timer, (const union _LARGE_INTEGER *)(const void *)&due, 0, NULL, NULL, 0))
        WaitForSingleObject(timer, (unsigned long)DS__WIN_INFINITE);
    else
        Sleep(ds__win_ms(ns));
    if (timer)
        CloseHandle(timer);
}

DS__SEAM static void ds__os_yield(void) {
    SwitchToThread();
}

/* ---- the process and its threads ---- */

DS__SEAM static int ds__os_processor(void) {
    return (int)GetCurrentProcessorNumber();
}

DS__SEAM static unsigned ds__os_process_id(void) {
    return (unsigned)GetCurrentProcessId();
}

DS__SEAM static uint32_t ds__os_thread_id(void) {
    return (uint32_t)GetCurrentThreadId();
}

DS__SEAM static int ds__os_barrier_register(void) {
    return 1;
}

DS__SEAM static void ds__os_barrier(void) {
    FlushProcessWriteBuffers();
}

/* Gives the thread a name, which debuggers show. */
DS__SEAM static void ds__os_library_thread(void) {
    long (*name_fn)(void *thread, const wchar_t *name);
    ds__win_find("SetThreadDescription", &name_fn);
    if (name_fn)
        (void)name_fn(GetCurrentThread(), L"devstream");
}

DS__SEAM static void ds__os_take_signals(void) {
}

DS__SEAM static int ds__os_program_ended(void) {
    return 0;
}

/* ---- memory ---- */

DS__SEAM static void *ds__os_aligned_alloc(size_t align, size_t size) {
    return size > SIZE_MAX - align ? NULL
                                   : _aligned_malloc((size + align - 1) & ~(align - 1), align);
}

DS__SEAM static void ds__os_aligned_free(void *at) {
    _aligned_free(at);
}

DS__SEAM static size_t ds__os_page(void) {
    return 4096;
}

/* Reserves more than the size if the alignment is larger than that of Windows; ds__os_unreserve
   finds the beginning. */
DS__SEAM static void *ds__os_reserve(size_t size, size_t align) {
    const size_t granularity = 1 << 16;
    size_t more = align > granularity ? align - granularity : 0;
    if (size > SIZE_MAX - more)
        return NULL;
    uintptr_t at = (uintptr_t)VirtualAlloc(NULL, size + more, DS__WIN_RESERVE, DS__WIN_NO_ACCESS);
    return at ? (void *)((at + align - 1) & ~(align - 1)) : NULL;
}

DS__SEAM static int ds__os_commit(void *at, size_t size) {
    return VirtualAlloc(at, size, DS__WIN_COMMIT, DS__WIN_READ_WRITE) != NULL;
}

DS__SEAM static int ds__os_protect(void *at, size_t size, int allow) {
    unsigned long before;
    return VirtualProtect(at, size, allow ? DS__WIN_READ_WRITE : DS__WIN_NO_ACCESS, &before);
}

/* Large pages need a privilege and memory that is never paged out. */
DS__SEAM static int ds__os_large_pages(void *at, size_t size) {
    (void)at;
    (void)size;
    errno = ENOSYS;
    return 0;
}

/* A node can be named only when memory is reserved. */
DS__SEAM static int ds__os_prefer_node(void *at, size_t size, int node) {
    unsigned long last = 0;
    (void)at;
    (void)size;
    return GetNumaHighestNodeNumber(&last) && (unsigned long)node > last ? EINVAL : ENOSYS;
}

DS__SEAM static void ds__os_decommit(void *at, size_t size) {
    VirtualFree(at, size, DS__WIN_DECOMMIT);
}

static ds__win_region ds__win_region_at(const void *at) {
    ds__win_region region;
    memset(&region, 0, sizeof region);
    region.state = DS__WIN_FREE;
    VirtualQuery(at, (struct _MEMORY_BASIC_INFORMATION *)(void *)&region, sizeof region);
    return region;
}

DS__SEAM static void ds__os_unreserve(void *at, size_t size) {
    (void)size;
    VirtualFree(ds__win_region_at(at).allocation, 0, DS__WIN_RELEASE);
}

DS__SEAM static int ds__os_is_mapped(uintptr_t address) {
    return ds__win_region_at((const void *)address).state != DS__WIN_FREE;
}

/* Windows forks no process. */
DS__SEAM static int ds__os_keep_from_child(void *at, size_t size) {
    (void)at;
    (void)size;
    return 1;
}

DS__SEAM static void ds__os_unmap(void *at, size_t size) {
    (void)size;
    UnmapViewOfFile(at);
}

#endif
