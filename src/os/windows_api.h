/* os/windows_api.h - declarations of the functions of Windows that devstream calls.

   Declares functions and structs of kernel32.dll. Programs that include devstream's implementation
   do not get the macros of <windows.h>, and may include <windows.h> before or after it: the
   declarations agree. Structs have names of their own and are passed as pointers.

   Invariants: x86-64 only, where Windows has one calling convention. Declarations are those of
   Windows 10; what newer or other versions lack is looked up at run time.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_WINDOWS_API_H
#define DS__OS_WINDOWS_API_H

#include "compiler.h"

#define DS__WINDOWS extern __declspec(dllimport)

/* structs of <windows.h> that are only passed on */
struct HINSTANCE__;
struct _SECURITY_ATTRIBUTES;
struct _RTL_SRWLOCK;
struct _RTL_CONDITION_VARIABLE;
struct _MEMORY_BASIC_INFORMATION;
struct _MEMORYSTATUSEX;
struct _SYSTEM_INFO;
struct _FILETIME;
struct _GROUP_AFFINITY;
struct _WIN32_FIND_DATAA;
struct _SYSTEM_LOGICAL_PROCESSOR_INFORMATION;
union _LARGE_INTEGER;

enum {
    DS__WIN_COMMIT = 0x1000,
    DS__WIN_RESERVE = 0x2000,
    DS__WIN_DECOMMIT = 0x4000,
    DS__WIN_RELEASE = 0x8000,
    DS__WIN_FREE = 0x10000,
    DS__WIN_NO_ACCESS = 1,
    DS__WIN_READ_WRITE = 4,
    DS__WIN_MAP_READ_WRITE = 6,
    DS__WIN_INFINITE = -1
};

/* numbers of errors */
enum {
    DS__WIN_NO_FILE = 2,
    DS__WIN_NO_PATH = 3,
    DS__WIN_DENIED = 5,
    DS__WIN_NO_MEMORY = 8,
    DS__WIN_OUT_OF_MEMORY = 14,
    DS__WIN_SHARING = 32,
    DS__WIN_PARAMETER = 87, /* also for the number of a process that has ended */
    DS__WIN_FILE_EXISTS = 80,
    DS__WIN_DISK_FULL = 112,
    DS__WIN_EXISTS = 183,
    DS__WIN_NO_COMMIT = 1455
};

/* MEMORY_BASIC_INFORMATION */
typedef struct ds__win_region {
    void *base;
    void *allocation;
    uint32_t allocation_protect;
    uint32_t partition;
    size_t size;
    uint32_t state;
    uint32_t protect;
    uint32_t type;
    uint32_t zero;
} ds__win_region;

/* MEMORYSTATUSEX */
typedef struct ds__win_memory {
    uint32_t size;
    uint32_t load;
    uint64_t physical;
    uint64_t rest[6];
} ds__win_memory;

/* GROUP_AFFINITY */
typedef struct ds__win_affinity {
    uint64_t mask;
    uint16_t group;
    uint16_t zero[3];
} ds__win_affinity;

/* WIN32_FIND_DATAA */
typedef struct ds__win_found {
    uint32_t attributes;
    uint32_t rest[10];
    char name[260];
    char short_name[14];
} ds__win_found;

/* SYSTEM_LOGICAL_PROCESSOR_INFORMATION, of a cache (relationship 2) */
typedef struct ds__win_processor {
    uint64_t mask;
    uint32_t relationship;
    uint32_t zero;
    unsigned char level;
    unsigned char ways;
    uint16_t line;
    uint32_t bytes;
    uint64_t rest;
} ds__win_processor;

/* modules */
DS__WINDOWS struct HINSTANCE__ *LoadLibraryA(const char *path);
DS__WINDOWS struct HINSTANCE__ *GetModuleHandleA(const char *name);
DS__WINDOWS int GetModuleHandleExA(unsigned long flags, const char *name, struct HINSTANCE__ **out);
DS__WINDOWS long long (*GetProcAddress(struct HINSTANCE__ *module, const char *name))(void);
DS__WINDOWS int FreeLibrary(struct HINSTANCE__ *module);
DS__WINDOWS unsigned long GetModuleFileNameA(struct HINSTANCE__ *module, char *out,
                                             unsigned long size);

/* errors, time, processes */
DS__WINDOWS unsigned long GetLastError(void);
DS__WINDOWS int QueryPerformanceCounter(union _LARGE_INTEGER *out);
DS__WINDOWS int QueryPerformanceFrequency(union _LARGE_INTEGER *out);
DS__WINDOWS void GetSystemTimePreciseAsFileTime(struct _FILETIME *out);
DS__WINDOWS void Sleep(unsigned long ms);
DS__WINDOWS int SwitchToThread(void);
DS__WINDOWS void *CreateWaitableTimerExW(struct _SECURITY_ATTRIBUTES *security, const wchar_t *name,
                                         unsigned long flags, unsigned long access);
DS__WINDOWS int SetWaitableTimer(void *timer, const union _LARGE_INTEGER *due, long period,
                                 void (*done_fn)(void *, unsigned long, unsigned long), void *user,
                                 int resume);
DS__WINDOWS unsigned long GetCurrentProcessId(void);
DS__WINDOWS unsigned long GetCurrentThreadId(void);
DS__WINDOWS void *GetCurrentProcess(void);
DS__WINDOWS void *GetCurrentThread(void);
DS__WINDOWS void *OpenProcess(unsigned long access, int inherit, unsigned long pid);
DS__WINDOWS int DuplicateHandle(void *from, void *handle, void *to, void **out,
                                unsigned long access, int inherit, unsigned long options);
DS__WINDOWS unsigned long GetCurrentProcessorNumber(void);
DS__WINDOWS void FlushProcessWriteBuffers(void);

/* memory */
DS__WINDOWS void *VirtualAlloc(void *at, size_t size, unsigned long type, unsigned long protect);
DS__WINDOWS int VirtualFree(void *at, size_t size, unsigned long type);
DS__WINDOWS int VirtualProtect(void *at, size_t size, unsigned long protect, unsigned long *out);
DS__WINDOWS size_t VirtualQuery(const void *at, struct _MEMORY_BASIC_INFORMATION *out, size_t size);
DS__WINDOWS int GlobalMemoryStatusEx(struct _MEMORYSTATUSEX *out);

/* objects, files */
DS__WINDOWS int CloseHandle(void *handle);
DS__WINDOWS unsigned long WaitForSingleObject(void *handle, unsigned long ms);
DS__WINDOWS void *CreateFileMappingA(void *file, struct _SECURITY_ATTRIBUTES *security,
                                     unsigned long protect, unsigned long high, unsigned long low,
                                     const char *name);
DS__WINDOWS void *OpenFileMappingA(unsigned long access, int inherit, const char *name);
DS__WINDOWS void *MapViewOfFile(void *mapping, unsigned long access, unsigned long high,
                                unsigned long low, size_t size);
DS__WINDOWS int UnmapViewOfFile(const void *at);
DS__WINDOWS void *CreateEventA(struct _SECURITY_ATTRIBUTES *security, int manual, int set,
                               const char *name);
DS__WINDOWS void *OpenEventA(unsigned long access, int inherit, const char *name);
DS__WINDOWS void *CreateFileA(const char *path, unsigned long access, unsigned long share,
                              struct _SECURITY_ATTRIBUTES *security, unsigned long how,
                              unsigned long flags, void *model);
DS__WINDOWS unsigned long GetFileType(void *file);
DS__WINDOWS unsigned long GetFileAttributesA(const char *path);
DS__WINDOWS int DeleteFileA(const char *path);
DS__WINDOWS void *FindFirstFileA(const char *pattern, struct _WIN32_FIND_DATAA *out);
DS__WINDOWS int FindNextFileA(void *search, struct _WIN32_FIND_DATAA *out);
DS__WINDOWS int FindClose(void *search);

/* threads */
DS__WINDOWS void AcquireSRWLockExclusive(struct _RTL_SRWLOCK *lock);
DS__WINDOWS void ReleaseSRWLockExclusive(struct _RTL_SRWLOCK *lock);
DS__WINDOWS unsigned char TryAcquireSRWLockExclusive(struct _RTL_SRWLOCK *lock);
DS__WINDOWS int SleepConditionVariableSRW(struct _RTL_CONDITION_VARIABLE *condition,
                                          struct _RTL_SRWLOCK *lock, unsigned long ms,
                                          unsigned long flags);
DS__WINDOWS void WakeAllConditionVariable(struct _RTL_CONDITION_VARIABLE *condition);
DS__WINDOWS void *CreateThread(struct _SECURITY_ATTRIBUTES *security, size_t stack,
                               unsigned long (*main_fn)(void *), void *user, unsigned long flags,
                               unsigned long *out_id);
DS__WINDOWS unsigned long FlsAlloc(void (*ended_fn)(void *));
DS__WINDOWS int FlsSetValue(unsigned long slot, void *value);
DS__WINDOWS int FlsFree(unsigned long slot);

/* processors, machine */
DS__WINDOWS int GetProcessAffinityMask(void *process, unsigned long long *out_process,
                                       unsigned long long *out_system);
DS__WINDOWS int GetThreadGroupAffinity(void *thread, struct _GROUP_AFFINITY *out);
DS__WINDOWS unsigned long long SetThreadAffinityMask(void *thread, unsigned long long mask);
DS__WINDOWS int GetNumaHighestNodeNumber(unsigned long *out);
DS__WINDOWS int GetNumaNodeProcessorMask(unsigned char node, unsigned long long *out);
DS__WINDOWS int GetLogicalProcessorInformation(struct _SYSTEM_LOGICAL_PROCESSOR_INFORMATION *out,
                                               unsigned long *size);
DS__WINDOWS int GetComputerNameA(char *out, unsigned long *size);

#endif
