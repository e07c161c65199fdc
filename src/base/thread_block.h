/* base/thread_block.h - thread-local block of the library.

   Defines the state that every thread has in thread-local memory (ds__tls): the running public
   function and its call site, the last error, the capture mode, and recent results of pointer
   look-ups (ds__found). Defines ds_site_set, which stores the site of the next call here.

   Invariants: ds__tls.thread is valid only if `epoch` equals ds__g.epoch. While in_callback is
   set, public calls are refused, except those callable anywhere and releases, which are deferred.
   While upper_locked is not 0, nothing is reclaimed. The entries of `hit` are valid only for the
   table version in hit_version. ds__tls_forget clears all pointers of the block that a shutdown
   makes invalid.
   Locks: none.
   Threads: each thread uses its own block only. Threads of the library have a block, too, but no
   thread state (`thread`). */
#ifndef DS__BASE_THREAD_BLOCK_H
#define DS__BASE_THREAD_BLOCK_H

#include "../api/memory.h"
#include "../api/capture.h"
#include "../api/site.h"

#include <string.h>

typedef struct ds__thread ds__thread;

/* The result of a look-up in the memory table. */
typedef struct ds__found {
    uintptr_t base;
    uintptr_t end;
    ds_memory_kind kind;
    int held; /* DS__HELD_* or 0 */
    int backend;
    int device;
} ds__found;

#define DS__DOMAINS 64 /* of ranges, with the default one */
#define DS__HITS 12    /* a collective of eight devices looks up nine ranges again and again */

/* The state that each thread has without an allocation. `thread` has the rest; the first use of the
   thread's device or streams creates it. */
typedef struct ds__tls_block {
    ds_site next_site; /* of the thread's next call (ds_site_set); no file: not known */
    const char *fn;    /* the public function that runs */
    ds_site site;      /* where it was called from */
    int in_callback;   /* 1: inside of user code that devstream runs */
    int nested;        /* CPU driver: streams being run inside of one another */
    /* the driver's stream or event for which the thread waits while it drives requests
       (base/drive.h); a driver sets it to NULL when the thread must go on */
    const void *awaited;
    /* the allocator maps or releases memory, which no open capture forbids (torch makes the thread
       relaxed meanwhile) */
    int relaxed;
    ds_capture_mode mode; /* of ds_capture_exchange_mode */
    uint64_t number;      /* of the thread, once asked for */
    int capture_locked;   /* 1: the thread has the capture lock */
    /* not 0: nothing is reclaimed, since locks are held that ds__modules_stream_end takes, or under
       which no destructor of the user may run */
    int upper_locked;
    uint32_t epoch; /* ds__g.epoch for which `thread` is valid */
    ds__thread *thread;
    uint32_t hit_version;    /* version of the memory table for which `hit` is valid */
    uint32_t hit_next;       /* the entry that is replaced next */
    ds__found hit[DS__HITS]; /* ranges found last */
    ds_result code;          /* of the last failure */
    /* not 0: errors go to `aside` and not to the log, since they are not the user's */
    int mute;
    int in_hook;   /* inside of the hook of ranges */
    int unwatched; /* not 0: waits are the library's own, not the user's */
    /* the generation of domains for which `level` is valid, but for that of the default domain */
    uint32_t domains;
    int level[DS__DOMAINS]; /* ranges of each domain that were pushed and not popped */
    char error[1024];
    char aside[1024];
} ds__tls_block;

static _Thread_local ds__tls_block ds__tls;

/* Clears every pointer that the thread remembers into memory that ds_shutdown or the thread's end
   frees. A new member that remembers such a pointer must be cleared here. */
static void ds__tls_forget(ds__tls_block *t) {
    t->thread = NULL;
    t->epoch = 0;
    t->hit_version = 0;
    memset(t->hit, 0, sizeof t->hit);
}

DSDEF void(ds_site_set)(const char *file, int line) {
    ds__tls.next_site.file = file;
    ds__tls.next_site.line = line;
}

/* Returns the site that the caller of the running public function has set, and clears it. */
static inline ds_site ds__site_take(ds__tls_block *t) {
    /* member by member: a load wider than the stores of ds_site_set would wait for them */
    ds_site site = { t->next_site.file, t->next_site.line };
    t->next_site.file = NULL;
    return site;
}

/* State of the current call while user code runs. Calls that are refused or postponed there report
   their errors; the current call keeps its name and call site. */
typedef struct ds__user_code {
    int outer;
    int mute;
    const char *fn;
    ds_site site;
} ds__user_code;

static inline ds__user_code ds__user_code_begin(void) {
    ds__tls_block *t = &ds__tls;
    ds__user_code u = { t->in_callback, t->mute, t->fn, t->site };
    t->in_callback = 1;
    t->mute = 0; /* a refused call sets its error */
    return u;
}

static inline void ds__user_code_end(const ds__user_code *u) {
    ds__tls_block *t = &ds__tls;
    t->mute = u->mute;
    t->in_callback = u->outer;
    t->fn = u->fn;
    t->site = u->site;
}

#endif
