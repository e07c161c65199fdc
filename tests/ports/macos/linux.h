/* What the tests use of Linux and macOS does not have. Included before each test that is compiled
   for macOS.

   Invariants: a function that macOS cannot have fails as on an old Linux (ENOSYS), so that a test
   leaves that part out or fails; it never seems to succeed. */
#ifndef MACOS_LINUX_H
#define MACOS_LINUX_H

#include <errno.h>
#include <fcntl.h>
#include <malloc/malloc.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* A barrier of threads. */
typedef struct pthread_barrier_t {
    pthread_mutex_t lock;
    pthread_cond_t full;
    unsigned needed;
    unsigned waiting;
    unsigned rounds;
} pthread_barrier_t;

__attribute__((unused)) static int pthread_barrier_init(pthread_barrier_t *b, const void *unused,
                                                        unsigned needed) {
    (void)unused;
    b->needed = needed;
    b->waiting = 0;
    b->rounds = 0;
    pthread_mutex_init(&b->lock, NULL);
    return pthread_cond_init(&b->full, NULL);
}

__attribute__((unused)) static int pthread_barrier_wait(pthread_barrier_t *b) {
    pthread_mutex_lock(&b->lock);
    unsigned round = b->rounds;
    if (++b->waiting == b->needed) {
        b->waiting = 0;
        b->rounds++;
        pthread_cond_broadcast(&b->full);
    }
    while (round == b->rounds)
        pthread_cond_wait(&b->full, &b->lock);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

__attribute__((unused)) static int pthread_barrier_destroy(pthread_barrier_t *b) {
    pthread_cond_destroy(&b->full);
    return pthread_mutex_destroy(&b->lock);
}

/* The processors of a thread: no thread can be bound. */
typedef struct cpu_set_t {
    unsigned char at[128];
} cpu_set_t;

#define CPU_SETSIZE 1024
#define CPU_ZERO(set) memset(set, 0, sizeof *(set))
#define CPU_SET(i, set) ((set)->at[(i) / 8] = (unsigned char)((set)->at[(i) / 8] | 1 << (i) % 8))
#define CPU_CLR(i, set) ((set)->at[(i) / 8] = (unsigned char)((set)->at[(i) / 8] & ~(1 << (i) % 8)))
#define CPU_ISSET(i, set) ((set)->at[(i) / 8] >> (i) % 8 & 1)
#define CPU_EQUAL(a, b) (memcmp(a, b, sizeof *(a)) == 0)
#define CPU_COUNT(set) macos_cpu_count(set)

__attribute__((unused)) static int macos_cpu_count(const cpu_set_t *set) {
    int n = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        n += CPU_ISSET(i, set);
    return n;
}

__attribute__((unused)) static int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    (void)thread;
    (void)size;
    CPU_ZERO(set);
    for (long i = 0; i < n && i < CPU_SETSIZE; i++)
        CPU_SET(i, set);
    return 0;
}

__attribute__((unused)) static int sched_setaffinity(pid_t thread, size_t size,
                                                     const cpu_set_t *set) {
    (void)thread;
    (void)size;
    (void)set;
    errno = ENOSYS;
    return -1;
}

__attribute__((unused)) static int sched_getcpu(void) {
    errno = ENOSYS;
    return -1;
}

/* System calls by number. */
enum { SYS_get_mempolicy, SYS_mbind, SYS_gettid, SYS_sched_getaffinity, SYS_sched_setaffinity };

__attribute__((unused)) static long macos_no_call(void) {
    errno = ENOSYS;
    return -1;
}

#define syscall(...) macos_no_call()

#define MADV_HUGEPAGE 1000 /* no such advice: EINVAL */
#define SOCK_CLOEXEC 0

/* Newer macOS declares a function of this name. */
#define pipe2 macos_pipe

__attribute__((unused)) static int macos_pipe(int out[2], int flags) {
    if (pipe(out))
        return -1;
    return flags && (fcntl(out[0], F_SETFD, FD_CLOEXEC) || fcntl(out[1], F_SETFD, FD_CLOEXEC)) ? -1
                                                                                               : 0;
}

__attribute__((unused)) static size_t malloc_usable_size(void *at) {
    return malloc_size(at);
}

#endif
