/* posix.h - what the tests use of POSIX, for Windows: tests/ports/windows.sh includes it before
   each test. Processes, environment and mappings are there. A test that needs fork, /proc, signals
   with addresses, plug-ins or another program says so and is skipped (posix_lacks). */
#ifndef PORTS_WINDOWS_POSIX_H
#define PORTS_WINDOWS_POSIX_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <process.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Prints "skipped: Windows does not have WHAT" and ends the test as skipped; the process of a peer
   ends. */
void posix_lacks(const char *what);

/* time; the C library's sleeps of less than a millisecond end at once */
int posix_nanosleep(const struct timespec *time, struct timespec *rest);
#define nanosleep posix_nanosleep
#define usleep(us) posix_nanosleep(&(struct timespec){ 0, (us)*1000L }, NULL)

/* environment */
int posix_setenv(const char *name, const char *value, int replace);
int posix_unsetenv(const char *name);
#define setenv posix_setenv
#define unsetenv posix_unsetenv

/* memory; free is that of both kinds */
void *posix_aligned_alloc(size_t align, size_t size);
void posix_free(void *at);
void *posix_mmap(void *at, size_t size, int protect, int flags, int fd, long long offset);
int posix_munmap(void *at, size_t size);
int posix_mprotect(void *at, size_t size, int protect);
#define aligned_alloc posix_aligned_alloc
#define free(at) posix_free(at)
#define malloc_usable_size _msize
#define mmap posix_mmap
#define munmap posix_munmap
#define mprotect posix_mprotect
#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED ((void *)-1)
#define _SC_PAGESIZE 30
#define _SC_NPROCESSORS_ONLN 84
long posix_sysconf(int name);
int posix_mincore(void *at, size_t size, unsigned char *out);
int posix_readable(const void *at);
#define mincore posix_mincore
#define write(fd, from, size) \
    (posix_readable(from) ? write((fd), (from), (unsigned)(size)) : (errno = EFAULT, -1))
#define madvise(...) (-1)
#define msync(at, size, flags) ((void)(flags), posix_mincore((at), (size), (unsigned char[1]){ 0 }))
#define MADV_HUGEPAGE 14
#define MS_ASYNC 1
#define MAP_NORESERVE 0
#define sysconf posix_sysconf

/* files */
char *posix_mkdtemp(char *path);
ssize_t posix_readlink(const char *path, char *out, size_t size);
DIR *posix_opendir(const char *path);
FILE *posix_fopen(const char *path, const char *mode);
FILE *posix_popen(const char *command, const char *mode);
#define mkdtemp posix_mkdtemp
#define readlink posix_readlink
#define opendir posix_opendir
#define fopen posix_fopen
int posix_system(const char *command);
#define system posix_system
#undef popen
#undef pclose
#define popen posix_popen
#define pclose(file) ((void)(file), -1)

/* processes */
extern char **environ;
pid_t posix_fork(void);
pid_t posix_waitpid(pid_t pid, int *status, int flags);
int posix_kill(pid_t pid, int number);
unsigned posix_alarm(unsigned seconds);
int posix_pipe(int fds[2]);
#define fork posix_fork
#define waitpid posix_waitpid
#define kill posix_kill
#define alarm posix_alarm
#define pipe posix_pipe
#define pipe2(fds, flags) ((void)(flags), posix_pipe(fds))
#define O_NONBLOCK 0
#define O_CLOEXEC 0
#define pause() (void)0
#define getuid() 0
#define setuid(user) (posix_lacks("setuid"), (user))
#define prctl(...) (-1)
long posix_syscall(long number, ...);
#define SYS_get_mempolicy 239
#define SYS_mbind 237
#define syscall posix_syscall
#define PR_SET_PDEATHSIG 1
#define SIGKILL 9
#ifndef SIGALRM
#define SIGALRM 14
#endif
#define WNOHANG 1
#define WIFEXITED(status) (((status)&0x7f) == 0)
#define WEXITSTATUS(status) ((status) >> 8 & 0xff)
#define WIFSIGNALED(status) (((status)&0x7f) != 0)
#define WTERMSIG(status) ((status)&0x7f)

typedef struct posix_spawn_file_actions_t {
    int count;
    int from[4], to[4];
} posix_spawn_file_actions_t;

int posix_spawn_file_actions_init(posix_spawn_file_actions_t *files);
int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *files);
int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *files, int from, int to);
int posix_spawnp(pid_t *out, const char *path, const posix_spawn_file_actions_t *files,
                 const void *attributes, char *const argv[], char *const envp[]);

/* a pair of sockets for messages; `fd` in another process: the one that became this number */
int posix_socketpair(int domain, int type, int protocol, int fds[2]);
ssize_t posix_send(int fd, const void *from, size_t size, int flags);
ssize_t posix_recv(int fd, void *to, size_t size, int flags);
int posix_close(int fd);
#define close(fd) posix_close(fd)

/* signals */
typedef struct siginfo_t {
    void *si_addr;
} siginfo_t;

struct sigaction {
    void (*sa_handler)(int);
    void (*sa_sigaction)(int, siginfo_t *, void *);
    int sa_flags;
};

#define SA_SIGINFO 4
int posix_sigaction(int number, const struct sigaction *action, struct sigaction *former);
#define sigaction(...) posix_sigaction(__VA_ARGS__)

/* processors */
typedef struct cpu_set_t {
    uint64_t word[16];
} cpu_set_t;

#define CPU_SETSIZE 1024
#define CPU_ZERO(set) memset((set), 0, sizeof *(set))
#define CPU_SET(i, set) ((set)->word[(i) / 64] |= (uint64_t)1 << (i) % 64)
#define CPU_ISSET(i, set) ((set)->word[(i) / 64] >> (i) % 64 & 1)
#define CPU_EQUAL(a, b) (memcmp((a), (b), sizeof *(a)) == 0)
#define CPU_COUNT(set) posix_cpu_count(set)
int posix_cpu_count(const cpu_set_t *set);
int posix_getaffinity(pid_t pid, size_t size, cpu_set_t *out);
int posix_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
#define sched_getaffinity posix_getaffinity
#define sched_setaffinity posix_setaffinity

/* plug-ins */
#define RTLD_NOW 2
#define RTLD_LOCAL 0
#define RTLD_NOLOAD 4
#define dlopen(path, flags) (posix_lacks("plug-ins of this test"), (void)(path), (void *)NULL)
#define dlsym(library, name) ((void)(library), (void)(name), (void *)NULL)
#define dlclose(library) ((void)(library), 0)
#define dlerror() "not on Windows"

#ifndef PORTS_WINDOWS_POSIX_C
#undef strtok_r
#define strtok_r strtok_s
#endif
#endif
