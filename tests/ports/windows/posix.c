/* posix.c - implements posix.h with functions of Windows. */
#define PORTS_WINDOWS_POSIX_C
#include "posix.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#undef free
#undef close
#undef write
#undef environ
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

void posix_lacks(const char *what) {
    printf("          skipped: Windows does not have %s\n", what);
    fflush(stdout);
    if (getenv("DS_TEST_PEER"))
        _exit(1);
    skip();
}

int posix_nanosleep(const struct timespec *time, struct timespec *rest) {
    static __thread HANDLE timer;
    LARGE_INTEGER due;
    (void)rest;
    due.QuadPart = -(time->tv_sec * 10000000ll + time->tv_nsec / 100);
    if (!timer)
        timer = CreateWaitableTimerExW(NULL, NULL, 2 /* high resolution */, TIMER_ALL_ACCESS);
    if (timer && SetWaitableTimer(timer, &due, 0, NULL, NULL, FALSE))
        WaitForSingleObject(timer, INFINITE);
    else
        Sleep((DWORD)(time->tv_sec * 1000 + time->tv_nsec / 1000000 + 1));
    return 0;
}

/* ---- environment ---- */

int posix_setenv(const char *name, const char *value, int replace) {
    if (!replace && getenv(name))
        return 0;
    return _putenv_s(name, value);
}

int posix_unsetenv(const char *name) {
    return _putenv_s(name, "");
}

/* ---- memory ---- */

enum { ALIGNED = 256 };

static struct {
    CRITICAL_SECTION lock;
    LONG ready;
    void *at[ALIGNED];
} aligned;

static void aligned_lock(void) {
    if (InterlockedCompareExchange(&aligned.ready, 1, 0) == 0) {
        InitializeCriticalSection(&aligned.lock);
        InterlockedExchange(&aligned.ready, 2);
    }
    while (InterlockedCompareExchange(&aligned.ready, 2, 2) != 2)
        Sleep(0);
    EnterCriticalSection(&aligned.lock);
}

void *posix_aligned_alloc(size_t align, size_t size) {
    void *at = _aligned_malloc(size, align);
    aligned_lock();
    int i = 0;
    while (i < ALIGNED && aligned.at[i])
        i++;
    if (i < ALIGNED)
        aligned.at[i] = at;
    LeaveCriticalSection(&aligned.lock);
    if (i == ALIGNED)
        abort();
    return at;
}

void posix_free(void *at) {
    int i = 0;
    aligned_lock();
    while (at && i < ALIGNED && aligned.at[i] != at)
        i++;
    if (at && i < ALIGNED)
        aligned.at[i] = NULL;
    LeaveCriticalSection(&aligned.lock);
    if (at && i < ALIGNED)
        _aligned_free(at);
    else
        free(at);
}

void *posix_mmap(void *at, size_t size, int protect, int flags, int fd, long long offset) {
    (void)flags;
    (void)fd;
    (void)offset;
    at = VirtualAlloc(at, size, MEM_RESERVE | MEM_COMMIT, protect ? PAGE_READWRITE : PAGE_NOACCESS);
    return at ? at : MAP_FAILED;
}

int posix_munmap(void *at, size_t size) {
    (void)size;
    return VirtualFree(at, 0, MEM_RELEASE) ? 0 : -1;
}

int posix_mprotect(void *at, size_t size, int protect) {
    DWORD before;
    DWORD wanted = protect & PROT_WRITE ? PAGE_READWRITE : protect ? PAGE_READONLY : PAGE_NOACCESS;
    return VirtualProtect(at, size, wanted, &before) ? 0 : -1;
}

int posix_mincore(void *at, size_t size, unsigned char *out) {
    MEMORY_BASIC_INFORMATION region;
    (void)size;
    *out = 0;
    if (VirtualQuery(at, &region, sizeof region) && region.State != MEM_FREE)
        return 0;
    errno = ENOMEM;
    return -1;
}

int posix_readable(const void *at) {
    MEMORY_BASIC_INFORMATION region;
    return VirtualQuery(at, &region, sizeof region) && region.State == MEM_COMMIT &&
           !(region.Protect & PAGE_NOACCESS);
}

long posix_sysconf(int name) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return name == _SC_PAGESIZE ? (long)info.dwPageSize : (long)info.dwNumberOfProcessors;
}

/* ---- files ---- */

char *posix_mkdtemp(char *path) {
    return _mktemp(path) && CreateDirectoryA(path, NULL) ? path : NULL;
}

ssize_t posix_readlink(const char *path, char *out, size_t size) {
    if (strcmp(path, "/proc/self/exe") != 0)
        return -1;
    DWORD n = GetModuleFileNameA(NULL, out, (DWORD)size);
    for (DWORD i = 0; i < n; i++)
        if (out[i] == '\\')
            out[i] = '/';
    return n && n < size ? (ssize_t)n : -1;
}

static int of_linux(const char *path) {
    return strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
}

DIR *posix_opendir(const char *path) {
    if (of_linux(path))
        posix_lacks("/proc");
    if (strncmp(path, "/dev/", 5) == 0)
        return NULL;
#undef opendir
    return opendir(path);
}

FILE *posix_fopen(const char *path, const char *mode) {
    if (of_linux(path))
        posix_lacks("/proc");
#undef fopen
    return fopen(path, mode);
}

/* Only "rm -rf 'FOLDER'", of a folder with files. */
int posix_system(const char *command) {
    char folder[MAX_PATH];
    char path[2 * MAX_PATH + 2];
    WIN32_FIND_DATAA one;
    if (sscanf(command, "rm -rf '%250[^']'", folder) != 1)
        posix_lacks("the programs that this test starts");
    snprintf(path, sizeof path, "%s/*", folder);
    HANDLE search = FindFirstFileA(path, &one);
    for (int more = search != INVALID_HANDLE_VALUE; more; more = FindNextFileA(search, &one)) {
        snprintf(path, sizeof path, "%s/%s", folder, one.cFileName);
        DeleteFileA(path);
    }
    if (search != INVALID_HANDLE_VALUE)
        FindClose(search);
    return RemoveDirectoryA(folder) ? 0 : -1;
}

FILE *posix_popen(const char *command, const char *mode) {
    (void)command;
    (void)mode;
    posix_lacks("the programs that this test starts");
    return NULL;
}

/* ---- processes ---- */

enum { CHILDREN = 4096 };

static struct {
    DWORD pid;
    HANDLE handle;
} children[CHILDREN];

pid_t posix_fork(void) {
    posix_lacks("fork");
    return -1;
}

static int child_of(pid_t pid) {
    for (int i = 0; i < CHILDREN; i++)
        if (children[i].handle && children[i].pid == (DWORD)pid)
            return i;
    return -1;
}

pid_t posix_waitpid(pid_t pid, int *status, int flags) {
    int i = child_of(pid);
    DWORD code = 0;
    if (i < 0)
        return -1;
    if (WaitForSingleObject(children[i].handle, flags & WNOHANG ? 0 : INFINITE) != WAIT_OBJECT_0)
        return 0;
    GetExitCodeProcess(children[i].handle, &code);
    CloseHandle(children[i].handle);
    children[i].handle = NULL;
    /* posix_kill ends a process with 0x70000 and the signal; a fault has a code of Windows */
    if (status)
        *status = code >> 16 == 7 ? (int)(code & 0x7f) : code > 0xff ? 11 : (int)code << 8;
    return pid;
}

int posix_kill(pid_t pid, int number) {
    int i = child_of(pid);
    return i >= 0 && TerminateProcess(children[i].handle, 0x70000u | (UINT)number) ? 0 : -1;
}

static volatile LONG64 deadline; /* of the running test, in ms; 0: none */

static DWORD WINAPI deadline_main(void *unused) {
    static const char text[] = "\ntimed out\n";
    (void)unused;
    for (;;) {
        Sleep(200);
        LONG64 end = InterlockedCompareExchange64(&deadline, 0, 0);
        if (!end || (LONG64)GetTickCount64() < end)
            continue;
        (void)!write(2, text, sizeof text - 1);
        TerminateProcess(GetCurrentProcess(), 124);
    }
    return 0;
}

unsigned posix_alarm(unsigned seconds) {
    static LONG started;
    InterlockedExchange64(&deadline, seconds ? (LONG64)GetTickCount64() + seconds * 1000ll : 0);
    if (InterlockedExchange(&started, 1) == 0)
        CloseHandle(CreateThread(NULL, 0, deadline_main, NULL, 0, NULL));
    return 0;
}

int posix_pipe(int fds[2]) {
    return _pipe(fds, 4096, _O_BINARY | _O_NOINHERIT);
}

long posix_syscall(long number, ...) {
    (void)number;
    return -1;
}

/* ---- messages between processes ---- */

/* Numbers of ends: FIRST + index. In a child, the environment has the handle of a number. */
enum { ENDS = 256, FIRST = 1000 };

static HANDLE ends[ENDS];

static HANDLE end_of(int fd) {
    char name[40];
    if (fd >= FIRST && fd < FIRST + ENDS)
        return ends[fd - FIRST];
    snprintf(name, sizeof name, "PORTS_FD_%d", fd);
    const char *text = getenv(name);
    return text ? (HANDLE)(intptr_t)atoll(text) : NULL;
}

static int end_add(HANDLE handle) {
    int i = 0;
    while (i < ENDS && ends[i])
        i++;
    if (i == ENDS)
        abort();
    ends[i] = handle;
    return FIRST + i;
}

/* The first is inherited by no process, the second one by the next. */
int posix_socketpair(int domain, int type, int protocol, int fds[2]) {
    static LONG pairs;
    char name[80];
    SECURITY_ATTRIBUTES inherited = { sizeof inherited, NULL, TRUE };
    (void)domain;
    (void)type;
    (void)protocol;
    snprintf(name, sizeof name, "\\\\.\\pipe\\devstream-test-%lu-%ld", GetCurrentProcessId(),
             InterlockedIncrement(&pairs));
    HANDLE mine = CreateNamedPipeA(name, PIPE_ACCESS_DUPLEX,
                                   PIPE_TYPE_MESSAGE | PIPE_READMODE_MESSAGE | PIPE_WAIT, 1,
                                   1 << 16, 1 << 16, 0, NULL);
    HANDLE theirs =
        CreateFileA(name, GENERIC_READ | GENERIC_WRITE, 0, &inherited, OPEN_EXISTING, 0, NULL);
    DWORD mode = PIPE_READMODE_MESSAGE;
    if (mine == INVALID_HANDLE_VALUE || theirs == INVALID_HANDLE_VALUE ||
        !SetNamedPipeHandleState(theirs, &mode, NULL, NULL))
        return -1;
    fds[0] = end_add(mine);
    fds[1] = end_add(theirs);
    return 0;
}

ssize_t posix_send(int fd, const void *from, size_t size, int flags) {
    DWORD done = 0;
    (void)flags;
    return WriteFile(end_of(fd), from, (DWORD)size, &done, NULL) ? (ssize_t)done : -1;
}

ssize_t posix_recv(int fd, void *to, size_t size, int flags) {
    DWORD done = 0;
    (void)flags;
    return ReadFile(end_of(fd), to, (DWORD)size, &done, NULL) ? (ssize_t)done : 0;
}

int posix_close(int fd) {
    if (fd < FIRST)
        return close(fd);
    CloseHandle(ends[fd - FIRST]);
    ends[fd - FIRST] = NULL;
    return 0;
}

/* ---- starts of processes ---- */

int posix_spawn_file_actions_init(posix_spawn_file_actions_t *files) {
    memset(files, 0, sizeof *files);
    return 0;
}

int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *files) {
    (void)files;
    return 0;
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *files, int from, int to) {
    if (files->count == 4)
        return ENOMEM;
    files->from[files->count] = from;
    files->to[files->count++] = to;
    return 0;
}

/* Adds an entry unless the block has its name already. */
static char *block_add(char *block, char *end, const char *entry) {
    size_t name = strcspn(entry, "=");
    for (const char *p = block; p < end; p += strlen(p) + 1)
        if (strncmp(p, entry, name) == 0 && p[name] == '=')
            return end;
    memcpy(end, entry, strlen(entry) + 1);
    return end + strlen(entry) + 1;
}

static char *block_of(char *const envp[], const posix_spawn_file_actions_t *files,
                      STARTUPINFOA *start) {
    size_t size = 400;
    char entry[80];
    for (size_t i = 0; envp[i]; i++)
        size += strlen(envp[i]) + 1;
    char *block = malloc(size);
    char *end = block;
    for (int i = 0; block && i < files->count; i++) {
        int to = files->to[i];
        HANDLE handle = files->from[i] >= FIRST ? end_of(files->from[i])
                                                : (HANDLE)_get_osfhandle(files->from[i]);
        if (to == 1 || to == 2) {
            SetHandleInformation(handle, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT);
            *(to == 1 ? &start->hStdOutput : &start->hStdError) = handle;
            continue;
        }
        snprintf(entry, sizeof entry, "PORTS_FD_%d=%lld", to, (long long)(intptr_t)handle);
        end = block_add(block, end, entry);
    }
    for (size_t i = 0; block && envp[i]; i++)
        end = block_add(block, end, envp[i]);
    if (block)
        *end = 0;
    return block;
}

int posix_spawnp(pid_t *out, const char *path, const posix_spawn_file_actions_t *files,
                 const void *attributes, char *const argv[], char *const envp[]) {
    STARTUPINFOA start = { .cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES };
    PROCESS_INFORMATION process;
    char line[8192] = "";
    int i = 0;
    (void)path;
    (void)attributes;
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    for (size_t k = 0; argv[k]; k++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s\"%s\"", k ? " " : "",
                 argv[k]);
    while (i < CHILDREN && children[i].handle)
        i++;
    char *block = block_of(envp, files, &start);
    if (!block || i == CHILDREN)
        return ENOMEM;
    int started = CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, block, NULL, &start, &process);
    free(block);
    if (!started)
        return ENOENT;
    CloseHandle(process.hThread);
    children[i].pid = process.dwProcessId;
    children[i].handle = process.hProcess;
    *out = (pid_t)process.dwProcessId;
    return 0;
}

/* ---- signals and processors ---- */

static void (*on_fault)(int, siginfo_t *, void *);

static LONG CALLBACK fault(EXCEPTION_POINTERS *e) {
    siginfo_t info;
    if (e->ExceptionRecord->ExceptionCode != EXCEPTION_ACCESS_VIOLATION)
        return EXCEPTION_CONTINUE_SEARCH;
    info.si_addr = (void *)e->ExceptionRecord->ExceptionInformation[1];
    on_fault(SIGSEGV, &info, NULL);
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* Handlers of faults only. */
int posix_sigaction(int number, const struct sigaction *action, struct sigaction *former) {
    if (number != SIGSEGV || former || !(action->sa_flags & SA_SIGINFO))
        return -1;
    on_fault = action->sa_sigaction;
    return AddVectoredExceptionHandler(1, fault) ? 0 : -1;
}

int posix_cpu_count(const cpu_set_t *set) {
    int n = 0;
    for (int i = 0; i < 16; i++)
        n += __builtin_popcountll(set->word[i]);
    return n;
}

int posix_getaffinity(pid_t pid, size_t size, cpu_set_t *out) {
    GROUP_AFFINITY mask;
    (void)size;
    if (pid)
        return -1;
    CPU_ZERO(out);
    if (!GetThreadGroupAffinity(GetCurrentThread(), &mask))
        return -1;
    out->word[0] = mask.Mask;
    return 0;
}

int posix_setaffinity(pid_t pid, size_t size, const cpu_set_t *set) {
    (void)size;
    return !pid && SetThreadAffinityMask(GetCurrentThread(), set->word[0]) ? 0 : -1;
}
