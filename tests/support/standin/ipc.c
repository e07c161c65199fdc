/* Sharing between processes: cudaIpc*.

   What other processes open are files in memory, which they find as /proc/PID/fd/N: the memory of
   each device, and one board per process with its interprocess events and with who has opened its
   exported allocations. Records of an event are numbered on its owner's board; a record of another
   process, for which a stream waits, is a mark that a thread releases when the board says so.

   Where CUDA leaves something open: the five functions are unsafe during a capture; a handle of
   the process itself cannot be opened, with the code that PyTorch's users report; closing does
   not wait, and memory that pending work uses then fails the test; memory that somebody has open
   when it is freed, and an event that was destroyed where it was made, fail it too; a record of
   a process that has died never ends. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RING = 256, EVENTS = 2048, MEMORIES = 4096, OPENERS = 16, MAGIC = 0x73690001 };

typedef struct shared_event {
    atomic_ullong latest; /* number of the latest record */
    atomic_uint serial;   /* odd: in use */

    struct {
        atomic_ullong number;
        atomic_int done;
    } ring[RING];
} shared_event;

typedef struct shared_memory {
    atomic_uint serial; /* odd: in use */
    int device, arena;
    unsigned long long offset, size;
    atomic_int opener[OPENERS]; /* process ids */
} shared_memory;

typedef struct board {
    unsigned long long cookie;
    int pid;
    shared_event events[EVENTS];
    shared_memory memories[MEMORIES];
} board;

typedef struct peer {
    int pid;
    board *board;
    struct peer *next;
} peer;

struct ipc_event {
    shared_event *at;
    unsigned serial;
    int imported;
    /* number of the latest record that was made through this handle */
    unsigned long long mine;
};

struct ipc_memory {
    shared_memory *at;
    unsigned serial, opened; /* times that this process has opened it; 0: its own */
    void *map;
    size_t map_size;
};

/* What is in the 64 bytes. */
typedef struct address {
    unsigned magic;
    int pid, fd, slot, device, arena;
    unsigned serial, unused;
    unsigned long long cookie, offset, size;
} address;

static board *own_board;
static int own_fd;
static peer *peers;

static void make_board(void) {
    if (own_board)
        return;
    own_fd = memfd_create("standin", MFD_CLOEXEC);
    if (own_fd < 0 || ftruncate(own_fd, sizeof *own_board))
        si_fail_test("no memory to share: %s", strerror(errno));
    own_board = mmap(NULL, sizeof *own_board, PROT_READ | PROT_WRITE, MAP_SHARED, own_fd, 0);
    if (own_board == MAP_FAILED)
        si_fail_test("no memory to share: %s", strerror(errno));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    own_board->pid = getpid();
    own_board->cookie =
        ((unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec) ^
        (unsigned long long)getpid() << 40;
}

/* The stand-in's file that the process has open under this number; -1: it is gone. Nothing else
   is opened, since the numbers may be invented. */
static int open_of(int pid, int fd) {
    char path[64], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0 || strncmp(link, "/memfd:standin", 14))
        return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

/* NULL: the process is gone. */
static board *board_of(const address *a) {
    for (peer *p = peers; p; p = p->next)
        if (p->pid == a->pid && p->board->cookie == a->cookie)
            return kill(a->pid, 0) ? NULL : p->board;
    int fd = open_of(a->pid, a->fd);
    if (fd < 0)
        return NULL;
    board *b = lseek(fd, 0, SEEK_END) == (off_t)sizeof *b
                   ? mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    close(fd);
    if (b == MAP_FAILED)
        return NULL;
    if (b->cookie != a->cookie || b->pid != a->pid) {
        munmap(b, sizeof *b);
        return NULL;
    }
    peer *p = si_allocate(sizeof *p);
    *p = (peer){ a->pid, b, peers };
    return (peers = p)->board;
}

static int read_handle(const char *bytes, address *a) {
    char same[64] = { 0 };
    memcpy(a, bytes, sizeof *a);
    memcpy(same, a, sizeof *a);
    if (a->magic != MAGIC || a->unused || memcmp(same, bytes, sizeof same))
        return cudaErrorInvalidValue;
    return a->pid == getpid() ? cudaErrorDeviceUninitialized : 0;
}

static void write_handle(char *bytes, address a) {
    a.magic = MAGIC, a.pid = getpid(), a.fd = own_fd, a.cookie = own_board->cookie;
    memset(bytes, 0, 64);
    memcpy(bytes, &a, sizeof a);
}

/* ---- events ---- */

/* A record of another process that a stream waits for. */
typedef struct awaited {
    shared_event *at;
    unsigned long long number;
    op *mark;
    struct awaited *next;
} awaited;

static awaited *all_awaited;
static int watching;

static int is_done(shared_event *at, unsigned long long number) {
    if (!number)
        return 1;
    unsigned long long there = atomic_load(&at->ring[number % RING].number);
    if (there > number)
        si_fail_test("%d records of an interprocess event were pending", RING);
    return there == number && atomic_load(&at->ring[number % RING].done);
}

static void *watch(void *unused) {
    lock();
    while (all_awaited) {
        for (awaited **p = &all_awaited; *p;) {
            awaited *w = *p;
            if (!is_done(w->at, w->number) && !sticky(w->mark->device)) {
                p = &w->next;
                continue;
            }
            *p = w->next;
            si_release(w->mark);
            free(w);
        }
        unlock();
        nanosleep(&(struct timespec){ 0, 100000 }, NULL);
        lock();
    }
    watching = 0;
    unlock();
    return unused;
}

void si_ipc_new_event(event *e) {
    make_board();
    int i = 0;
    while (i < EVENTS && atomic_load(&own_board->events[i].serial) & 1)
        i++;
    if (i == EVENTS)
        si_fail_test("more than %d interprocess events", EVENTS);
    shared_event *at = &own_board->events[i];
    memset(at->ring, 0, sizeof at->ring);
    atomic_store(&at->latest, 0);
    e->ipc = si_allocate(sizeof *e->ipc);
    e->ipc->at = at, e->ipc->serial = atomic_fetch_add(&at->serial, 1) + 1;
}

void si_ipc_drop_event(event *e) {
    if (!e->ipc)
        return;
    if (!e->ipc->imported)
        atomic_fetch_add(&e->ipc->at->serial, 1);
    free(e->ipc);
    e->ipc = NULL;
}

static shared_event *state_of(const event *e) {
    if (atomic_load(&e->ipc->at->serial) != e->ipc->serial)
        si_fail_test("an imported event is used that was destroyed where it was made");
    return e->ipc->at;
}

void si_ipc_record(event *e, op *o) {
    o->u.record.at = NULL;
    if (!e->ipc)
        return;
    shared_event *at = state_of(e);
    unsigned long long n = atomic_fetch_add(&at->latest, 1) + 1;
    atomic_ullong *number = &at->ring[n % RING].number;
    if (n > RING && !is_done(at, n - RING))
        si_fail_test("%d records of an interprocess event are pending", RING);
    atomic_store(&at->ring[n % RING].done, 0);
    atomic_store(number, n);
    o->u.record.at = at, o->u.record.number = e->ipc->mine = n;
}

void si_ipc_recorded(op *o) {
    if (o->u.record.at)
        atomic_store(&o->u.record.at->ring[o->u.record.number % RING].done, 1);
}

int si_ipc_is_recorded(const event *e) {
    return e->ipc && atomic_load(&state_of(e)->latest);
}

int si_ipc_ready(const event *e) {
    shared_event *at = state_of(e);
    return is_done(at, atomic_load(&at->latest));
}

op *si_record_of(event *e) {
    if (!e->ipc)
        return e->record;
    shared_event *at = state_of(e);
    unsigned long long n = atomic_load(&at->latest);
    if (e->record && n == e->ipc->mine)
        return e->record;
    if (is_done(at, n))
        return NULL;
    awaited *w = si_allocate(sizeof *w);
    *w = (awaited){ at, n, si_new_op(OP_MARK, NULL, e->device), all_awaited };
    si_prepare(w->mark);
    all_awaited = w;
    if (!watching) {
        watching = 1;
        si_start_thread(watch, NULL);
    }
    return w->mark;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event_handle) {
    ENTER(cudaIpcGetEventHandle);
    int code = si_context();
    if (code)
        return result(code);
    if (!handle)
        return result(cudaErrorInvalidValue);
    lock();
    event *e = si_object_of("cudaIpcGetEventHandle", H_EVENT, event_handle);
    code = sticky(e->device);
    if (!code && (!e->ipc || e->ipc->imported))
        code = cudaErrorInvalidResourceHandle;
    if (!code)
        write_handle(handle->reserved, (address){ .slot = (int)(e->ipc->at - own_board->events),
                                                  .serial = e->ipc->serial,
                                                  .device = -1 });
    unlock();
    return result(code);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle) {
    ENTER(cudaIpcOpenEventHandle);
    address a;
    int code = si_context();
    if (!code)
        code = si_unsafe();
    if (code)
        return result(code);
    if (!out)
        return result(cudaErrorInvalidValue);
    code = read_handle(handle.reserved, &a);
    if (!code && (a.device != -1 || a.slot < 0 || a.slot >= EVENTS || !(a.serial & 1) || a.arena ||
                  a.offset || a.size))
        code = cudaErrorInvalidValue;
    if (code == cudaErrorInvalidValue)
        code = cudaErrorMapBufferObjectFailed; /* H200, driver 580 */
    lock();
    board *b = code ? NULL : board_of(&a);
    if (!code && (!b || atomic_load(&b->events[a.slot].serial) != a.serial))
        code = cudaErrorMapBufferObjectFailed;
    if (!code) {
        event *e = si_allocate(sizeof *e);
        e->device = si_me.current, e->flags = cudaEventDisableTiming | cudaEventInterprocess;
        e->ipc = si_allocate(sizeof *e->ipc);
        e->ipc->at = &b->events[a.slot], e->ipc->serial = a.serial, e->ipc->imported = 1;
        si_event_is_made(e, out);
    }
    unlock();
    return result(code);
}

/* ---- memory ---- */

/* The allocation ends; nobody else may have it open. */
void si_ipc_freed(range *r) {
    if (!r->ipc)
        return;
    for (int i = 0; i < OPENERS; i++) {
        int pid = atomic_load(&r->ipc->at->opener[i]);
        if (pid && !kill(pid, 0))
            si_fail_test("cudaFree: %p is open in process %d", (void *)r->start, pid);
        atomic_store(&r->ipc->at->opener[i], 0);
    }
    atomic_fetch_add(&r->ipc->at->serial, 1);
    free(r->ipc);
    r->ipc = NULL;
}

int si_ipc_imported(const range *r) {
    return r->ipc && r->ipc->opened;
}

static void export_range(range *r) {
    make_board();
    int i = 0;
    while (i < MEMORIES && atomic_load(&own_board->memories[i].serial) & 1)
        i++;
    if (i == MEMORIES)
        si_fail_test("more than %d exported allocations", MEMORIES);
    device *d = &si_devices[r->device];
    own_board->memories[i].device = r->device, own_board->memories[i].arena = d->arena_fd;
    own_board->memories[i].offset = (unsigned long long)(r->memory - d->backing);
    own_board->memories[i].size = r->size;
    r->ipc = si_allocate(sizeof *r->ipc);
    r->ipc->at = &own_board->memories[i],
    r->ipc->serial = atomic_fetch_add(&r->ipc->at->serial, 1) + 1;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    ENTER(cudaIpcGetMemHandle);
    int code = si_context();
    if (!code)
        code = si_unsafe();
    if (code)
        return result(code);
    if (!handle)
        return result(cudaErrorInvalidValue);
    lock();
    range *r = si_range_starting(pointer);
    if (!r || r->kind != DEVICE_MEMORY || r->space || r->pool || r->freeing || si_ipc_imported(r))
        code = cudaErrorInvalidValue;
    if (!code) {
        if (!r->ipc)
            export_range(r);
        write_handle(handle->reserved, (address){ .slot = (int)(r->ipc->at - own_board->memories),
                                                  .serial = r->ipc->serial,
                                                  .device = r->device,
                                                  .arena = r->ipc->at->arena,
                                                  .offset = r->ipc->at->offset,
                                                  .size = r->size });
    }
    unlock();
    return result(code);
}

typedef struct opened {
    unsigned long long cookie;
    int slot, device;
    unsigned serial;
    range *range;
    struct opened *next;
} opened;

static opened *all_opened;

/* Whether the exporter's board says what the handle says. */
static int says(shared_memory *at, const address *a) {
    return (a->serial & 1) && atomic_load(&at->serial) == a->serial && at->device == a->device &&
           at->arena == a->arena && at->offset == a->offset && at->size == a->size;
}

static int open_memory(const address *a, board *b, range **out) {
    shared_memory *at = &b->memories[a->slot];
    int index = si_me.current, fd = open_of(a->pid, a->arena), i = 0;
    size_t before = a->offset % PAGE, whole = si_round_up(before + a->size, PAGE);
    if (fd < 0)
        return cudaErrorMapBufferObjectFailed;
    if (a->device != index && !si_devices[index].can_reach[a->device])
        return close(fd), cudaErrorMapBufferObjectFailed;
    char *memory =
        mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(a->offset - before));
    char *shown = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    close(fd);
    if (memory == MAP_FAILED || shown == MAP_FAILED)
        si_fail_test("no address space for opened memory");
    for (; i < OPENERS; i++) {
        int pid = atomic_load(&at->opener[i]);
        /* else nobody, or one that is dead */
        if (pid && !kill(pid, 0))
            continue;
        if (atomic_compare_exchange_strong(&at->opener[i], &pid, getpid()))
            break;
    }
    if (i == OPENERS)
        si_fail_test("an allocation is open in more than %d processes", OPENERS);
    si_devices[index].reaches[a->device] = 1;
    range *r = si_add_range(shown + before, a->size, memory + before, a->device);
    r->ipc = si_allocate(sizeof *r->ipc);
    *r->ipc = (struct ipc_memory){ at, a->serial, 0, memory, whole };
    opened *o = si_allocate(sizeof *o);
    *o = (opened){ a->cookie, a->slot, index, a->serial, r, all_opened };
    all_opened = o;
    *out = r;
    return 0;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    ENTER(cudaIpcOpenMemHandle);
    address a;
    range *r = NULL;
    int code = si_context();
    if (!code)
        code = si_unsafe();
    if (code)
        return result(code);
    if (!out || flags != cudaIpcMemLazyEnablePeerAccess)
        return result(cudaErrorInvalidValue);
    code = read_handle(handle.reserved, &a);
    if (!code && (a.slot < 0 || a.slot >= MEMORIES || !is_device(a.device)))
        code = cudaErrorInvalidValue;
    lock();
    board *b = code ? NULL : board_of(&a);
    if (!code && (!b || !says(&b->memories[a.slot], &a)))
        code = cudaErrorMapBufferObjectFailed;
    for (opened *o = all_opened; o && !code && !r; o = o->next)
        if (o->cookie == a.cookie && o->slot == a.slot && o->serial == a.serial &&
            o->device == si_me.current)
            r = o->range;
    if (!code && !r)
        code = open_memory(&a, b, &r);
    if (!code) {
        r->ipc->opened++;
        *out = (void *)r->start;
    }
    unlock();
    return result(code);
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    int code = enter(F_cudaIpcCloseMemHandle);
    if (refused(code))
        return result(code);
    si_bind();
    int not_now = si_unsafe();
    if (not_now)
        return result(not_now);
    lock();
    range *r = si_range_starting(pointer);
    if (!r || !si_ipc_imported(r)) {
        unlock();
        return result(cudaErrorInvalidValue);
    }
    if (!code)
        code = sticky(r->device);
    if (--r->ipc->opened == 0) {
        int mine = getpid();
        r->ipc->opened = 1; /* until it is over */
        si_check_unused("cudaIpcCloseMemHandle", r);
        for (int i = 0; i < OPENERS; i++)
            if (atomic_compare_exchange_strong(&r->ipc->at->opener[i], &mine, 0))
                break;
            else
                mine = getpid();
        for (opened **p = &all_opened; *p; p = &(*p)->next)
            if ((*p)->range == r) {
                opened *over = *p;
                *p = over->next;
                free(over);
                break;
            }
        munmap(r->ipc->map, r->ipc->map_size);
        munmap((void *)(r->start / PAGE * PAGE), r->ipc->map_size);
        free(r->ipc);
        si_remove_range(r);
    }
    unlock();
    return result(code);
}
