/* base/ipc_registry.h - shared-memory registries of several processes.

   A process that shares events or memory has a shared-memory registry (ds__registry): a page
   (ds__registry_page) of shared memory that other processes open. The page has the process's
   interprocess events (marks), the progress of the streams that record them (progress counters),
   and its exported memory with its users (export slots: ds__export_slot). ds__registry_own creates
   the process's own registry, ds__registry_open opens that of another process, and
   ds__registry_close closes it.

   Policy:
   1. The page lives as long as one process has it open.
   2. Every process that uses a registry has a number in it, never given twice. It holds the file
      lock of the byte with this number. The kernel drops the lock when the process ends, in any
      way. So a free lock means: the process will do nothing more there.
   3. The lock belongs to the open file (F_OFD_SETLK). flock has only one lock for a whole file.
      An ordinary record lock is lost as soon as anything in the process closes the file. A
      robust futex belongs to a thread, which would have to live as long as the process.
   4. A forked child inherits the open file too. It does not get the mapping, and the fork
      handler closes the child's copy of the file.
   5. Memory of the page is reserved before it is touched, so a lack of memory is a result and
      not a signal. An importer reads only marks and slots below the page's counts.
   6. The bytes of a handle come from outside. They name a place of a registry and its
      generation; sizes, offsets and handles of drivers are read there.

   Invariants: number 1 in a registry is its owner's. Progress counters are never returned. A
   registry of another process stays open while it has users or pending operations, and while its
   owner lives if this process has a progress counter in it. Else each opening would take new
   progress counters. A mark's generation is odd while it has an event. It rises when the event
   ends, and exported handles are stale.
   Locks: ds__registries.mutex guards the list and the process's own fields. ds__registries_deinit
   takes it; functions that change the list or a registry expect it. The fork handlers hold it
   across fork. alloc/ takes its sharing lock (ds__share.mutex) before it; the CPU driver takes an
   event's lock under it.
   Threads: any thread, and the watcher thread of the CPU driver. Other processes and the CPU
   driver's workers change atomic fields of the page without the mutex. */
#ifndef DS__BASE_IPC_REGISTRY_H
#define DS__BASE_IPC_REGISTRY_H

#include "error.h"
#include "state.h"

enum {
    DS__MARKS = 1 << 16,
    DS__PROGRESS_COUNTERS = 1 << 18,
    DS__EXPORT_SLOTS = 1 << 14,
    DS__LEASES = 62,
    DS__REGISTRY_LAYOUT = 2
};

/* The progress of one stream that records events of this registry. Operations up to `done` are
   finished; those from failed_from to failed_upto have failed. */
typedef struct ds__progress {
    _Atomic uint64_t done;
    _Atomic uint64_t failed_from;
    _Atomic uint64_t failed_upto;
    _Atomic uint64_t who; /* number << 24 | process id */
} ds__progress;

/* An event. */
typedef struct ds__mark {
    /* the latest record: progress counter + 1 (24 bits) and the number of the operation (lowest 40
       bits); 0: none */
    _Atomic uint64_t word;
    _Atomic uint32_t generation;
    uint32_t next; /* the owner's: index + 1, in the list of free ones */
} ds__mark;

/* The exporter's description of a piece of memory. Except for the event it is written before the
   slot opens, and it stays as it is while there is a lease. */
typedef struct ds__export_slot_facts {
    uint64_t size;
    uint64_t offset;             /* a block's: in its segment */
    uint32_t segment;            /* a block's: the slot of its segment */
    uint32_t segment_generation; /* a block's; 0: this is a segment */
    _Atomic uint32_t has_event;  /* a block's: `handle` is written */
    uint32_t device_type;        /* a segment's */
    unsigned char handle[64];    /* a segment's of share_export, a block's of event_export */
} ds__export_slot_facts;

/* A piece of memory. */
typedef struct ds__export_slot {
    _Atomic uint64_t word;              /* generation << 1, and 1: it may be taken */
    uint64_t next;                      /* as a mark's */
    _Atomic uint64_t lease[DS__LEASES]; /* the user: number << 24 | process id; 0: free */
    ds__export_slot_facts facts;
} ds__export_slot;

typedef struct ds__registry_page {
    uint64_t cookie;
    uint32_t layout;
    _Atomic uint32_t progress_count; /* given out */
    _Atomic uint32_t waiters;        /* threads that sleep on the bell */
    _Atomic uint32_t bell;           /* changed after `done` of a progress counter */
    _Atomic uint64_t peers;          /* numbers given out; 1 is the owner's */
    int32_t pid;                     /* the owner's */
    uint32_t zero;
    _Atomic uint32_t marks; /* given out so far */
    _Atomic uint32_t slots; /* given out so far */
    char pad[4096 - 48];
    ds__mark mark[DS__MARKS];
    ds__progress progress[DS__PROGRESS_COUNTERS];
    ds__export_slot slot[DS__EXPORT_SLOTS];
} ds__registry_page;

/* A registry that this process has open. */
typedef struct ds__registry {
    struct ds__registry *next;
    ds__registry_page *page;
    uint64_t serial; /* unique among the registries of this process */
    uint64_t cookie;
    uint64_t me;
    int pid;
    int fd;
    int held;            /* the lock of the number; -1: none */
    int owner_fd;        /* of a registry of another process: its number there */
    int has_progress;    /* this process has one */
    int users;           /* of a registry of another process */
    _Atomic int pending; /* operations that will write to it */
    /* the process's own registry only: */
    uint32_t free_mark; /* index + 1 of the first free one */
    uint32_t free_slot; /* index + 1 of the first free one */
} ds__registry;

static struct {
    ds__mutex mutex;
    ds__registry *own;
    ds__registry *others;
    uint64_t serials;
    int atfork;
} ds__registries = { .mutex = DS__MUTEX_INIT };

/* The content of an exported handle of the CPU driver, for an event or memory. The rest of its 64
   bytes is 0. */
typedef struct ds__address {
    uint32_t kind; /* DS__ADDRESS_* */
    int32_t pid;
    int32_t fd;
    uint32_t index;
    uint32_t generation;
    uint32_t zero;
    uint64_t cookie;
    uint64_t size;
} ds__address;

enum { DS__ADDRESS_EVENT = 0x01457344, DS__ADDRESS_MEMORY = 0x014d7344 };

static void ds__registries_lock(void) {
    ds__mutex_lock(&ds__registries.mutex);
}

static void ds__registries_unlock(void) {
    ds__mutex_unlock(&ds__registries.mutex);
}

/* Runs in a forked child. Closes the files, so that the child does not hold the parent's file
   locks. */
static void ds__registries_forked(void) {
    if (ds__registries.own) {
        ds__os_close(ds__registries.own->fd);
        ds__registries.own->fd = -1;
    }
    for (ds__registry *b = ds__registries.others; b; b = b->next) {
        ds__os_close(b->fd);
        b->fd = -1;
    }
    ds__registries_unlock();
}

static void ds__registry_destroy(ds__registry *b) {
    if (b->page)
        ds__os_unmap(b->page, sizeof *b->page);
    if (b->held >= 0)
        ds__os_release_byte(b->held);
    if (b->fd >= 0)
        ds__os_close(b->fd);
    ds__host_free(b);
}

/* The mutex is held. */
static ds__registry *ds__registry_create(int fd) {
    ds__registry *b = ds__host_alloc(sizeof *b);
    if (b && !ds__registries.atfork)
        ds__registries.atfork =
            ds__os_at_fork(ds__registries_lock, ds__registries_unlock, ds__registries_forked) == 0;
    if (b && ds__registries.atfork)
        b->page = ds__os_memfd_map(fd, sizeof *b->page);
    if (b && b->page && !ds__os_keep_from_child(b->page, sizeof *b->page)) {
        ds__os_unmap(b->page, sizeof *b->page);
        b->page = NULL;
    }
    if (!b || !b->page) {
        ds__host_free(b);
        ds__os_close(fd);
        return NULL;
    }
    b->fd = fd;
    b->held = -1;
    b->serial = ++ds__registries.serials;
    return b;
}

static ds_result ds__registry_short(void) {
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the shared-memory registry");
}

/* Returns the registry of this process, which the first call creates. The mutex is held. */
DS__SEAM static ds_result ds__registry_own(ds__registry **out) {
    uint64_t cookie = ds__os_cookie();
    *out = ds__registries.own;
    if (*out)
        return DS_OK;
    int fd = ds__os_memfd(sizeof(ds__registry_page), cookie);
    if (fd < 0)
        return ds__fail(DS_ERR_SYSTEM, "the system refused shared memory: %s", strerror(errno));
    int reserved = ds__os_memfd_reserve(fd, 0, offsetof(ds__registry_page, mark));
    ds__registry *b = ds__registry_create(fd);
    if (b)
        b->held = reserved ? ds__os_hold_byte(fd, cookie, 1) : -1;
    if (b && b->held < 0) {
        ds__registry_destroy(b);
        b = NULL;
    }
    if (!b)
        return ds__registry_short();
    b->cookie = b->page->cookie = cookie;
    b->me = 1;
    b->pid = b->page->pid = (int)ds__os_process_id();
    b->page->layout = DS__REGISTRY_LAYOUT;
    atomic_store(&b->page->peers, 1);
    *out = ds__registries.own = b;
    return DS_OK;
}

/* Returns 1 if the process with this number on the registry is alive. */
static int ds__registry_alive(const ds__registry *b, uint64_t number) {
    return number == b->me || ds__os_byte_held(b->fd, b->cookie, number);
}

/* Reports why the memory of another process could not be opened, by errno. */
static ds_result ds__peer_fail(int pid) {
    if (errno == ENOENT)
        return ds__fail(
            DS_ERR_PEER_DIED,
            "process %d, which exported the handle, has ended or has shut devstream down", pid);
    if (errno == EACCES || errno == EPERM)
        return ds__fail(DS_ERR_SYSTEM,
                        "process %d, which exported the handle, cannot be accessed; both processes "
                        "must belong to the same user",
                        pid);
    return ds__fail(DS_ERR_SYSTEM, "the shared memory of process %d cannot be opened: %s", pid,
                    strerror(errno));
}

/* Closes registries of other processes that are not used any more. The mutex is held. */
static void ds__registries_tidy(void) {
    for (ds__registry **p = &ds__registries.others; *p;) {
        ds__registry *b = *p;
        if (b->users || atomic_load(&b->pending) || (b->has_progress && ds__registry_alive(b, 1))) {
            p = &b->next;
            continue;
        }
        *p = b->next;
        ds__registry_destroy(b);
    }
}

/* Checks the registry that another process exports, and takes a number on it, whose file lock says
   that this process lives. */
static ds_result ds__registry_register(ds__registry *b) {
    int pid = b->pid;
    if (b->page->cookie != b->cookie || b->page->layout != DS__REGISTRY_LAYOUT)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "process %d has an incompatible version of devstream; use the same version "
                        "in both processes",
                        pid);
    if (b->page->pid != pid)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the handle names process %d, but the events and memory are of process %d",
                        pid, b->page->pid);
    b->me = atomic_fetch_add(&b->page->peers, 1) + 1;
    b->held = ds__os_hold_byte(b->fd, b->cookie, b->me);
    if (b->held < 0)
        return ds__fail(DS_ERR_SYSTEM, "the system refuses a file lock: %s", strerror(errno));
    return DS_OK;
}

static ds_result ds__registry_join(int pid, int fd, uint64_t cookie, ds__registry **out) {
    int got = ds__os_memfd_open(pid, fd, cookie, sizeof(ds__registry_page));
    if (got < 0)
        return ds__peer_fail(pid);
    ds__registry *b = ds__registry_create(got);
    if (!b)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to map the shared memory of process %d",
                        pid);
    b->me = UINT64_MAX;
    b->pid = pid;
    b->owner_fd = fd;
    b->cookie = cookie;
    ds_result r = ds__registry_register(b);
    if (r < 0) {
        ds__registry_destroy(b);
        return r;
    }
    b->next = ds__registries.others;
    ds__registries.others = b;
    *out = b;
    return DS_OK;
}

/* Opens the registry of the process that exported a handle. That process must be alive. The caller
   ends with ds__registry_close. The mutex is held. */
DS__SEAM static ds_result ds__registry_open(int pid, int fd, uint64_t cookie, ds__registry **out) {
    ds_result r = DS_OK;
    if (pid == (int)ds__os_process_id() ||
        (ds__registries.own && ds__registries.own->cookie == cookie))
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the handle was exported by this process; use the exported object");
    ds__registries_tidy();
    ds__registry *b = ds__registries.others;
    while (b && (b->cookie != cookie || b->pid != pid || b->owner_fd != fd))
        b = b->next;
    if (!b)
        r = ds__registry_join(pid, fd, cookie, &b);
    if (r == DS_OK && !ds__registry_alive(b, 1)) {
        errno = ENOENT;
        r = ds__peer_fail(pid);
    }
    if (r < 0) {
        ds__registries_tidy();
        return r;
    }
    b->users++;
    *out = b;
    return DS_OK;
}

/* The mutex is held. */
DS__SEAM static void ds__registry_close(ds__registry *b) {
    b->users--;
    ds__registries_tidy();
}

/* Returns the registry with this serial, or NULL if this process does not have it open. The mutex
   is held. */
DS__SEAM static ds__registry *ds__registry_of(uint64_t serial) {
    ds__registry *b = ds__registries.own;
    if (b && b->serial == serial)
        return b;
    for (b = ds__registries.others; b && b->serial != serial;)
        b = b->next;
    return b;
}

/* Takes a progress counter of the registry for this process. The mutex is held. */
DS__SEAM static ds_result ds__registry_progress_add(ds__registry *b, uint32_t *out) {
    ds__registry_page *s = b->page;
    uint32_t i = atomic_load(&s->progress_count);
    do {
        if (i >= DS__PROGRESS_COUNTERS)
            return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                            "%d streams have recorded events of process %d, the maximum",
                            DS__PROGRESS_COUNTERS, b->pid);
    } while (!atomic_compare_exchange_weak(&s->progress_count, &i, i + 1));
    if (!ds__os_memfd_reserve(b->fd,
                              offsetof(ds__registry_page, progress) + i * sizeof *s->progress,
                              sizeof *s->progress))
        return ds__registry_short();
    atomic_store(&s->progress[i].who, b->me << 24 | ((uint64_t)ds__os_process_id() & 0xffffff));
    b->has_progress = 1;
    *out = i;
    return DS_OK;
}

/* Takes an event slot on the registry of this process. The mutex is held. */
DS__SEAM static ds_result ds__registry_event_add(ds__registry *b, uint32_t *out) {
    uint32_t i = b->free_mark ? b->free_mark - 1 : atomic_load(&b->page->marks);
    if (i >= DS__MARKS)
        return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                        "the process has %d interprocess events, the maximum; destroy some",
                        DS__MARKS);
    ds__mark *m = &b->page->mark[i];
    if (b->free_mark) {
        b->free_mark = m->next;
    } else {
        if (!ds__os_memfd_reserve(b->fd, offsetof(ds__registry_page, mark) + i * sizeof *m,
                                  sizeof *m))
            return ds__registry_short();
        atomic_fetch_add(&b->page->marks, 1);
    }
    atomic_fetch_add(&m->generation, 1);
    *out = i;
    return DS_OK;
}

/* Returns 1 if the slot has the event of this generation. */
DS__SEAM static int ds__registry_has_event(const ds__registry *b, uint32_t i, uint32_t generation) {
    return i < DS__MARKS && i < atomic_load(&b->page->marks) && (generation & 1) &&
           atomic_load(&b->page->mark[i].generation) == generation;
}

/* Frees an event slot; exported handles of the event become invalid. The mutex is held. */
DS__SEAM static void ds__registry_event_remove(ds__registry *b, uint32_t i) {
    ds__mark *m = &b->page->mark[i];
    atomic_fetch_add(&m->generation, 1);
    atomic_store(&m->word, 0);
    m->next = b->free_mark;
    b->free_mark = i + 1;
}

/* At shutdown, when all operations are over. */
static void ds__registries_deinit(void) {
    ds__registries_lock();
    while (ds__registries.others) {
        ds__registry *b = ds__registries.others;
        ds__registries.others = b->next;
        ds__registry_destroy(b);
    }
    if (ds__registries.own)
        ds__registry_destroy(ds__registries.own);
    ds__registries.own = NULL;
    ds__registries_unlock();
}

#endif
