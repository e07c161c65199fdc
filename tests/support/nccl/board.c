/* The board of a communicator: memory that its ranks share, as threads or processes.

   A file in /dev/shm, which every rank maps for itself. It is made by ncclGetUniqueId, or by the
   first rank that joins, and removed when all have joined. Each word has one writer, except while
   the file is locked to join. A rank that waits sleeps on the bell, a futex that each change of the
   board rings. A killed process leaves no lock behind; the others see that it is gone in /proc. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ABSENT, JOINED, LEFT };

static const char FOLDER[] = "/dev/shm/";

typedef struct member {
    _Atomic int state;
    int device;
    pid_t pid;
    uint64_t host;
    unsigned long long started; /* the process, in ticks since the boot */
    /* Of operations in streams, and of control work: barriers that the rank has come to. */
    _Atomic uint64_t phase[2];
    sn_description description[2];
    _Atomic uint64_t called; /* operations with collectives that the rank has enqueued */
} member;

struct sn_board {
    uint64_t lineage; /* the same in each run of a program */
    _Atomic uint32_t bell;
    _Atomic int joined, failed; /* failed: the result of the initialisation of all */
    int nranks;
    member members[];
};

static size_t head_size(int nranks) {
    size_t size = sizeof(sn_board) + (size_t)nranks * sizeof(member);
    return (size + 4095) / 4096 * 4096;
}

static size_t board_size(int nranks) {
    size_t n = (size_t)nranks;
    return head_size(nranks) + n * SN_STAGE + n * n * sizeof(sn_channel);
}

char *sn_board_stage(sn_comm *comm, int rank) {
    return comm->board_memory + head_size(comm->nranks) + (size_t)rank * SN_STAGE;
}

sn_channel *sn_board_channel(sn_comm *comm, int from, int to) {
    char *channels = sn_board_stage(comm, comm->nranks);
    size_t index = (size_t)from * (size_t)comm->nranks + (size_t)to;
    return (sn_channel *)(void *)(channels + index * sizeof(sn_channel));
}

const sn_description *sn_board_description(const sn_comm *comm, sn_lane lane, int rank) {
    return &comm->board->members[rank].description[lane];
}

uint64_t sn_board_lineage(const sn_comm *comm) {
    return comm->board->lineage;
}

/* ---- names that this process has made ---- */

static struct {
    pthread_mutex_t lock;
    char (*names)[SN_NAME];
    size_t count;
    pid_t pid;
} made = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void path_of(char path[SN_NAME + sizeof FOLDER], const char *name) {
    snprintf(path, SN_NAME + sizeof FOLDER, "%s%s", FOLDER, name);
}

static void remove_file(const char *name) {
    char path[SN_NAME + sizeof FOLDER];
    path_of(path, name);
    (void)unlink(path);
}

static void forget_all(void) {
    if (made.pid != getpid())
        return;
    for (size_t i = 0; i < made.count; i++)
        remove_file(made.names[i]);
    made.count = 0;
}

static int file_exists(const char *name) {
    char path[SN_NAME + sizeof FOLDER];
    path_of(path, name);
    return access(path, F_OK) == 0;
}

static void remember(const char *name) {
    pthread_mutex_lock(&made.lock);
    if (made.pid != getpid()) { /* a child does not remove what the parent has made */
        made.pid = getpid();
        made.count = 0;
        atexit(forget_all);
    }
    made.names = realloc(made.names, (made.count + 1) * sizeof *made.names);
    if (!made.names)
        sn_fail_test("out of memory");
    snprintf(made.names[made.count++], SN_NAME, "%s", name);
    pthread_mutex_unlock(&made.lock);
}

size_t sn_board_unused(void) {
    size_t count = 0;
    pthread_mutex_lock(&made.lock);
    for (size_t i = 0; i < made.count && made.pid == getpid(); i++)
        count += (size_t)file_exists(made.names[i]);
    pthread_mutex_unlock(&made.lock);
    return count;
}

void sn_board_discard(const char *name) {
    remove_file(name);
}

ncclResult_t sn_board_create(char name[SN_NAME], uint64_t lineage) {
    char path[SN_NAME + sizeof FOLDER];
    unsigned char random[16];
    sn_board start = { .lineage = lineage };
    size_t at = (size_t)snprintf(name, SN_NAME, "standin-nccl-");
    if (getentropy(random, sizeof random))
        return sn_error(ncclSystemError, "the system has no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        at += (size_t)snprintf(name + at, SN_NAME - at, "%02x", random[i]);
    path_of(path, name);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return sn_error(ncclSystemError, "%s cannot be made: %s", path, strerror(errno));
    int is_written = write(file, &start, sizeof start) == (ssize_t)sizeof start;
    close(file);
    remember(name);
    if (!is_written)
        return sn_error(ncclSystemError, "%s cannot be written: %s", path, strerror(errno));
    return ncclSuccess;
}

/* ---- joining ---- */

/* When the process has started, and 0 if it has ended. */
static unsigned long long start_of(pid_t pid) {
    char path[64], text[1024];
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid); /* columns: proc(5) */
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    const char *at = strrchr(text, ')'); /* behind the name, which may have any characters */
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    at++;
    for (int column = 3; column < 22 && at; column++)
        at = strchr(at + 1, ' ');
    if (at)
        (void)sscanf(at, "%llu", &started);
    return started;
}

/* Ranks of one host must have different devices. NCCL_HOSTID makes ranks look like those of another
   host. */
static uint64_t this_host(void) {
    const char *text = getenv("NCCL_HOSTID");
    uint64_t hash = 0;
    for (; text && *text; text++)
        hash = sn_mix(hash, (unsigned char)*text);
    return hash;
}

static ncclResult_t refuse_all(sn_board *board, ncclResult_t result) {
    atomic_store(&board->failed, (int)result);
    return result;
}

/* The file is locked. */
static ncclResult_t take_seat(sn_comm *comm, const sn_place *at) {
    sn_board *board = comm->board;
    member *me = &board->members[at->rank];
    if (atomic_load(&me->state) != ABSENT)
        return sn_error(ncclInvalidUsage, "rank %d has joined already with this unique id",
                        at->rank);
    uint64_t host = this_host();
    for (int i = 0; i < board->nranks; i++) {
        const member *other = &board->members[i];
        if (atomic_load(&other->state) == ABSENT || other->host != host ||
            other->device != at->device)
            continue;
        refuse_all(board, ncclInvalidUsage);
        sn_board_ring(comm);
        return sn_error(ncclInvalidUsage,
                        "ranks %d and %d both use device %d; a communicator may have one rank on "
                        "a device",
                        i, at->rank, at->device);
    }
    me->device = at->device;
    me->host = host;
    me->pid = getpid();
    me->started = start_of(me->pid);
    atomic_store(&me->state, JOINED);
    if (atomic_fetch_add(&board->joined, 1) + 1 == board->nranks)
        remove_file(at->name);
    sn_board_ring(comm);
    return ncclSuccess;
}

static ncclResult_t map_board(sn_comm *comm, const sn_place *at, int file) {
    struct stat is;
    sn_board head;
    size_t size = board_size(at->nranks);
    if (fstat(file, &is) || pread(file, &head, sizeof head, 0) < 0)
        return sn_error(ncclSystemError, "%s cannot be read: %s", at->name, strerror(errno));
    int is_new = is.st_size < (off_t)sizeof head;
    if (!is_new && head.nranks && head.nranks != at->nranks)
        return sn_error(ncclInvalidArgument, "rank %d has joined for %d ranks, another rank for %d",
                        at->rank, at->nranks, head.nranks);
    if (ftruncate(file, (off_t)size))
        return sn_error(ncclSystemError, "%s cannot grow: %s", at->name, strerror(errno));
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return sn_error(ncclSystemError, "%s cannot be mapped: %s", at->name, strerror(errno));
    comm->board_memory = memory;
    comm->board = memory;
    comm->board_size = size;
    comm->board->nranks = at->nranks;
    if (is_new)
        comm->board->lineage = at->lineage;
    return take_seat(comm, at);
}

static ncclResult_t wait_for_all(sn_comm *comm) {
    sn_board *board = comm->board;
    for (;;) {
        uint32_t bell = sn_board_bell(comm);
        int failed = atomic_load(&board->failed);
        if (failed)
            return sn_error((ncclResult_t)failed, "two ranks of the communicator use one device");
        if (atomic_load(&board->joined) == board->nranks)
            break;
        if (sn_board_wait(comm, bell))
            return sn_error((ncclResult_t)(atomic_load(&comm->async) ? atomic_load(&comm->async)
                                                                     : ncclInvalidUsage),
                            "the initialisation of rank %d of %d was stopped", comm->rank,
                            comm->nranks);
    }
    for (int i = 0; i < board->nranks; i++)
        comm->has_others |= board->members[i].pid != getpid();
    return ncclSuccess;
}

ncclResult_t sn_board_join(sn_comm *comm, const sn_place *at) {
    char path[SN_NAME + sizeof FOLDER];
    path_of(path, at->name);
    int file = open(path, O_RDWR | O_CLOEXEC | (at->make ? O_CREAT : 0), 0600);
    if (file < 0)
        return sn_error(ncclSystemError,
                        "no rank answers for this unique id: it has been used, or the process "
                        "that made it has ended");
    (void)flock(file, LOCK_EX);
    ncclResult_t result = map_board(comm, at, file);
    (void)flock(file, LOCK_UN);
    close(file);
    if (!result)
        result = wait_for_all(comm);
    return result;
}

void sn_board_leave(sn_comm *comm) {
    if (!comm->board)
        return;
    member *me = &comm->board->members[comm->rank];
    if (me->pid == getpid() && atomic_load(&me->state) == JOINED)
        atomic_store(&me->state, LEFT);
    if (atomic_load(&comm->board->joined) < comm->nranks)
        remove_file(comm->board_name); /* its initialisation cannot succeed any more */
    sn_board_ring(comm);
    munmap(comm->board_memory, comm->board_size);
    comm->board = NULL;
    comm->board_memory = NULL;
}

/* ---- waiting ---- */

void sn_board_ring(sn_comm *comm) {
    atomic_fetch_add(&comm->board->bell, 1);
    (void)syscall(SYS_futex, &comm->board->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t sn_board_bell(sn_comm *comm) {
    return atomic_load(&comm->board->bell);
}

void sn_board_look(sn_comm *comm) {
    sn_board *board = comm->board;
    if (sn_cuda()->device_error(comm->device)) {
        sn_error(ncclUnhandledCudaError, "device %d has failed", comm->device);
        sn_comm_set_async(comm, ncclUnhandledCudaError);
    }
    for (int i = 0; i < board->nranks; i++) {
        const member *other = &board->members[i];
        if (atomic_load(&other->state) != JOINED || other->pid == getpid())
            continue;
        unsigned long long started = start_of(other->pid);
        if (started && started == other->started)
            continue;
        if (atomic_load(&other->state) != JOINED)
            continue; /* it has left meanwhile */
        sn_error(ncclRemoteError, "rank %d (process %d) has ended without leaving the communicator",
                 i, (int)other->pid);
        sn_comm_set_async(comm, ncclRemoteError);
        return;
    }
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The bell also rings for what this rank does not wait for. */
int sn_board_wait(sn_comm *comm, uint32_t bell) {
    struct timespec pause = { 0, SN_LOOK_MS * 1000000L };
    if (atomic_load(&comm->stop))
        return 1;
    (void)syscall(SYS_futex, &comm->board->bell, FUTEX_WAIT, bell, &pause, NULL, 0);
    long long now = now_ms();
    if (now - atomic_load(&comm->looked) >= SN_LOOK_MS) {
        atomic_store(&comm->looked, now);
        sn_board_look(comm);
    }
    return atomic_load(&comm->stop);
}

static int all_have_come(const sn_board *board, sn_lane lane, uint64_t phase) {
    for (int i = 0; i < board->nranks; i++)
        if (atomic_load(&board->members[i].phase[lane]) < phase)
            return 0;
    return 1;
}

int sn_board_barrier(sn_comm *comm, sn_lane lane) {
    uint64_t phase = ++comm->phase[lane];
    atomic_store(&comm->board->members[comm->rank].phase[lane], phase);
    sn_board_ring(comm);
    for (;;) {
        uint32_t bell = sn_board_bell(comm);
        if (atomic_load(&comm->stop))
            return 1;
        if (all_have_come(comm->board, lane, phase))
            return 0;
        if (sn_board_wait(comm, bell))
            return 1;
    }
}

void sn_board_await_calls(sn_comm *comm) {
    uint64_t mine = atomic_fetch_add(&comm->board->members[comm->rank].called, 1) + 1;
    sn_board_ring(comm);
    for (;;) {
        uint32_t bell = sn_board_bell(comm);
        int missing = 0;
        for (int i = 0; i < comm->nranks; i++)
            missing += atomic_load(&comm->board->members[i].called) < mine;
        if (!missing || sn_board_wait(comm, bell))
            return;
    }
}

int sn_board_arrive(sn_comm *comm, sn_lane lane, const sn_description *mine) {
    comm->board->members[comm->rank].description[lane] = *mine;
    return sn_board_barrier(comm, lane);
}
