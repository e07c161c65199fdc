/* cpu/together.h - cooperative launches: all blocks of a kernel at once.

   Checks that the blocks of a launch fit, and starts threads for them (ds__cpu_together_ready).
   Runs each block on a thread of its own (ds__cpu_together_run), so that blocks may wait for one
   another. ds__cpu_together_end ends the threads.

   Policy: the thread that runs the stream takes the first block, and kept threads take the
   others. Idle workers do not: a block must run although all workers are busy. One launch runs
   at a time, since the blocks of two launches that share the threads could wait for each other
   forever.

   Invariants: the threads exist before a launch is enqueued or becomes a node, so a failure to
   start one is reported then. Thread i runs block i + 1, and has a launch exactly while `launch`
   is set. A launch is on the stack of the thread that runs the stream. Once its last block is over
   (`left`), only its address is used.
   Locks: `starting` guards the list of threads, `running` is held during a launch. Kernels, which
   are user code, run under `running`, but under no other lock.
   Threads: submitters call ds__cpu_together_ready, owners of streams ds__cpu_together_run. */
#ifndef DS__CPU_TOGETHER_H
#define DS__CPU_TOGETHER_H

#include "types.h"

enum { DS__CPU_TOGETHER = 8 }; /* blocks that always fit */

/* A cooperative launch. */
typedef struct ds__cpu_together {
    const ds__op *op;
    const void *args;
    _Atomic uint32_t left; /* blocks of other threads that are not over; the owner sleeps on it */
    _Atomic int status;
} ds__cpu_together;

/* A thread for blocks. */
typedef struct ds__cpu_mate {
    ds__os_thread thread;
    _Atomic uint32_t word; /* changes with `launch` and at the end; the thread sleeps on it */
    _Atomic(ds__cpu_together *) launch;
} ds__cpu_mate;

static struct {
    ds__mutex starting;
    ds__mutex running;
    _Atomic(ds__cpu_mate *) mate; /* room for ds__cpu_together_limit(0) - 1 threads */
    _Atomic size_t count;         /* threads that were started */
    _Atomic int quit;
} ds__cpu_together_state = { .starting = DS__MUTEX_INIT, .running = DS__MUTEX_INIT };

/* Returns the blocks that can run at once on a stream with that share of the threads; 0: all. */
static size_t ds__cpu_together_limit(int share) {
    if (share)
        return (size_t)share;
    return (size_t)(ds__cpu.workers > DS__CPU_TOGETHER ? ds__cpu.workers : DS__CPU_TOGETHER);
}

static size_t ds__cpu_together_blocks(const ds__op *op) {
    return op->u.kernel.items / op->places;
}

static void ds__cpu_together_block(ds__cpu_together *launch, size_t block) {
    const ds__op *op = launch->op;
    int status = op->u.kernel.kernel->cpu_fn(block * op->places, (size_t)op->places, launch->args);
    if (status)
        atomic_store_explicit(&launch->status, status, memory_order_relaxed);
}

static void *ds__cpu_together_main(void *arg) {
    ds__cpu_mate *m = arg;
    size_t block = (size_t)(m - atomic_load(&ds__cpu_together_state.mate)) + 1;
    ds__os_library_thread();
    ds__cpu_affinity_bind();
    ds__tls.in_callback = 1;
    for (;;) {
        uint32_t word = atomic_load(&m->word);
        ds__cpu_together *launch = atomic_load(&m->launch);
        if (!launch && atomic_load(&ds__cpu_together_state.quit))
            return NULL;
        if (!launch) {
            ds__futex_wait(&m->word, word, DS__FOREVER);
            continue;
        }
        ds__cpu_together_block(launch, block);
        atomic_store(&m->launch, NULL); /* before `left`: after that, the next launch may be set */
        if (atomic_fetch_sub(&launch->left, 1) == 1)
            ds__futex_wake(&launch->left, 1);
    }
}

/* Starts threads until there are `count`. */
static ds_result ds__cpu_together_start(size_t count) {
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__cpu_together_state.starting);
    ds__cpu_mate *mate = atomic_load(&ds__cpu_together_state.mate);
    if (!mate) {
        mate = ds__host_alloc((ds__cpu_together_limit(0) - 1) * sizeof *mate);
        atomic_store(&ds__cpu_together_state.mate, mate);
    }
    if (!mate)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the threads of a cooperative launch");
    for (size_t i = atomic_load(&ds__cpu_together_state.count); i < count && r == DS_OK; i++) {
        int error = ds__os_thread_start(&mate[i].thread, ds__cpu_together_main, &mate[i]);
        if (error)
            r = ds__fail(DS_ERR_SYSTEM,
                         "thread %zu of %zu for the blocks of a cooperative launch was not "
                         "started: %s",
                         i + 1, count, strerror(error));
        else
            atomic_store(&ds__cpu_together_state.count, i + 1);
    }
    ds__mutex_unlock(&ds__cpu_together_state.starting);
    return r;
}

/* Refuses a cooperative launch that does not fit, and starts the threads that it needs. share: of
   the stream. */
static ds_result ds__cpu_together_ready(int device, int share, const ds__op *op) {
    if (DS__LIKELY(!(op->flags & DS__OP_TOGETHER)))
        return DS_OK;
    size_t blocks = ds__cpu_together_blocks(op);
    size_t limit = ds__cpu_together_limit(share);
    DS__REQUIRE(blocks <= limit,
                "kernel %s: a cooperative launch of %zu blocks; at most %zu can run at once on "
                "%scpu:%d",
                op->u.kernel.kernel->name, blocks, limit, share ? "this stream of " : "", device);
    return blocks - 1 <= atomic_load(&ds__cpu_together_state.count)
               ? DS_OK
               : ds__cpu_together_start(blocks - 1);
}

/* Runs a cooperative launch, and returns its status. */
static int ds__cpu_together_run(const ds__op *op, const void *args) {
    size_t others = ds__cpu_together_blocks(op) - 1;
    ds__cpu_together launch = { .op = op, .args = args };
    atomic_init(&launch.left, (uint32_t)others);
    atomic_init(&launch.status, 0);
    ds__mutex_lock(&ds__cpu_together_state.running);
    ds__cpu_mate *mate = atomic_load(&ds__cpu_together_state.mate);
    for (size_t i = 0; i < others; i++) {
        atomic_store(&mate[i].launch, &launch);
        atomic_fetch_add(&mate[i].word, 1);
        ds__futex_wake(&mate[i].word, 1);
    }
    ds__cpu_together_block(&launch, 0);
    uint32_t left;
    while ((left = atomic_load(&launch.left)) != 0)
        ds__futex_wait(&launch.left, left, DS__FOREVER);
    ds__mutex_unlock(&ds__cpu_together_state.running);
    return atomic_load(&launch.status);
}

/* Ends the threads, when no launch can run any more. */
static void ds__cpu_together_end(void) {
    ds__cpu_mate *mate = atomic_load(&ds__cpu_together_state.mate);
    size_t count = atomic_load(&ds__cpu_together_state.count);
    atomic_store(&ds__cpu_together_state.quit, 1);
    for (size_t i = 0; i < count; i++) {
        atomic_fetch_add(&mate[i].word, 1);
        ds__futex_wake(&mate[i].word, 1);
    }
    for (size_t i = 0; i < count; i++)
        ds__os_thread_join(mate[i].thread);
    ds__host_free(mate);
    atomic_store(&ds__cpu_together_state.mate, NULL);
    atomic_store(&ds__cpu_together_state.count, 0);
    atomic_store(&ds__cpu_together_state.quit, 0);
}

#endif
