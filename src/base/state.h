/* base/state.h - global state, bookkeeping memory and log.

   Holds the state of the library (ds__g): configuration, drivers, object tables, the locks of
   the core and the lists that they guard. ds__upper has the functions that the allocator and the
   generators register for the end of streams and for shutdown. The room also defines ds__alloc,
   ds__release and ds__log.

   Invariants: configuration, drivers and tables are written by initialisation and shutdown only,
   and read without a lock. A thread state is valid only if its epoch equals ds__g.epoch. `dead`
   counts ended threads and retired objects. range_version is odd while the ranges are changed.
   Locks: the functions take none. `mutex` is held for all of initialisation and shutdown, driver
   calls included. `begin` is taken before capture_lock and must not be held over a wait. `lock`,
   label_lock, range_lock and mapping_lock protect short steps; no driver call is made under
   them. ds__alloc, ds__release and ds__log call functions of the user, under all locks of the
   caller.
   Threads: any thread. ds_init and ds_shutdown must not run concurrently with other calls. */
#ifndef DS__BASE_STATE_H
#define DS__BASE_STATE_H

#include "../api/init.h"
#include "thread_block.h"
#include "handle.h"
#include "object.h"

enum { DS__COLD = 0, DS__READY = 1, DS__FORKED = 2 };

typedef struct ds__mapping {
    uintptr_t at;
    size_t size;
} ds__mapping;

static struct {
    _Atomic int state; /* DS__COLD ... */
    /* counts initialisations; a thread's state of an earlier one is void */
    uint32_t epoch;
    int configured;        /* ds_init was called */
    pthread_mutex_t mutex; /* initialisation and shutdown */
    pthread_key_t key;     /* tells that a thread ends */
    int atfork;            /* the fork handler is installed, for good */
    ds_init_desc desc;
    int log_level;
    int per_thread_default;
    const ds__driver *driver[DS_BACKEND_COUNT]; /* with layers; NULL: not available */
    ds_backend_info backend[DS_BACKEND_COUNT];
    ds__table streams;
    ds__table events;
    ds__table kernels;
    ds__table graphs;
    ds__table execs;
    ds__lock lock;       /* of what follows */
    ds__thread *threads; /* all of them */
    _Atomic int callers; /* living threads that have a state */
    _Atomic int dead;    /* ended threads and retired objects, in shares of DS__RECLAIM_BATCH */
    /* destroyed kernels that pending work may use; not in `dead` */
    _Atomic int deferred_kernels;
    _Atomic uint64_t next_stream_id;
    _Atomic uint64_t next_thread;
    _Atomic uint32_t next_graph;
    ds__lock capture_lock;
    ds__capture *captures; /* open ones */
    uint64_t next_capture;
    _Atomic int capture_count;
    /* held while a capture begins, and by who must know that none is open: never over a wait */
    pthread_mutex_t begin;
    ds_stream *legacy;      /* per device ordinal, made at first use */
    _Atomic int sync_debug; /* a ds_sync_debug_mode */
    ds__lock label_lock;    /* of the labels of streams and devices, which can be replaced */
    char (*label)[64];      /* of each device ordinal */
    /* memory that is known: readers take no lock, they check `range_version` */
    ds__lock range_lock;
    _Atomic(ds__ranges *) ranges;
    _Atomic size_t range_count;
    _Atomic uint32_t range_version; /* odd while it is changed */
    ds__lock mapping_lock;
    ds__mapping *mappings; /* what is mapped in reserved address space, by address */
    size_t mapping_count;
    size_t mapping_room;
    /* 1: memory was unmapped, so that pointers into reserved address space may be void */
    _Atomic int mapping_taken;
} ds__g = { .mutex = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_MUTEX_INITIALIZER };

/* What the allocator and the generators are told, where they are. */
static struct {
    /* before a stream ends, which is pinned or nobody else's; not while the caller has
       `upper_locked` */
    void (*_Atomic stream_gone_fn)(ds__stream *s);
    /* all work is done, everything else is still there */
    void (*_Atomic shutdown_fn)(void);
    void (*_Atomic rng_shutdown_fn)(void); /* the same, for the generators */
} ds__upper;

/* Called when the last thread that has a state ends. It may only wake a thread. */
static void (*_Atomic ds__callers_gone_fn)(void);

static void ds__count_dead(int n) {
    atomic_fetch_add(&ds__g.dead, n);
}

static void *ds__alloc(size_t size) {
    if (!ds__g.desc.allocator.alloc_fn)
        return calloc(1, size);
    void *ptr = ds__g.desc.allocator.alloc_fn(size, ds__g.desc.allocator.user);
    if (ptr)
        memset(ptr, 0, size);
    return ptr;
}

/* Returns memory to the allocator that it was taken from. Objects that outlive ds_shutdown keep a
   copy of ds__g.desc.allocator for it. */
static void ds__release_to(const ds_allocator *allocator, void *ptr) {
    if (!ptr)
        return;
    if (allocator->free_fn)
        allocator->free_fn(ptr, allocator->user);
    else
        free(ptr);
}

static void ds__release(void *ptr) {
    ds__release_to(&ds__g.desc.allocator, ptr);
}

static void ds__log(ds_log_level level, int id, const char *text) {
    if ((int)level > ds__g.log_level)
        return;
    if (!ds__g.desc.log_fn) {
        fprintf(stderr, "devstream: %s\n", text);
        return;
    }
    ds_log_item item = { level, id, text, ds__tls.site.file, ds__tls.site.line };
    ds__g.desc.log_fn(&item, ds__g.desc.log_user);
}

/* A number from the environment, 0 when unset or not a number. */
static uint64_t ds__env_number(const char *name) {
    const char *text = getenv(name);
    return text && *text && !strchr(text, '-') ? strtoull(text, NULL, 0) : 0;
}

#endif
