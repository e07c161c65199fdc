/* cpu/job.h - jobs: one operation on several threads.

   Splits an operation into pieces that several threads run. The owner of the stream calls
   ds__cpu_job_run; idle workers and waiting host threads call ds__cpu_job_join. Kernels, copies
   and fills use jobs.

   Invariants: each piece runs exactly once. A job is in the list of jobs exactly while it is the
   `job` of its stream, and only until its last piece is taken: threads do not look for work in a
   job that has none left. It is on the owner's stack: ds__cpu_job_run returns only when all
   pieces are finished and no other thread is inside (`users`).
   Locks: the pool's lock guards the list, a stream's `job`, `users` and `owner_sleeps`. Pieces,
   which may be user code, run without a lock.
   Threads: the owner of the stream, workers and waiting host threads, at the same time. The
   owner spins for some microseconds until the others have finished their pieces, then it
   sleeps. */
#ifndef DS__CPU_JOB_H
#define DS__CPU_JOB_H

#include "types.h"
#include "scheduler.h"

/* Takes a job without pieces left out of the list, so that no further thread joins it. */
static void ds__cpu_job_unlink(ds__cpu_job *job) {
    ds__spinlock_lock(&ds__cpu.lock);
    atomic_store_explicit(&job->stream->job, NULL, memory_order_relaxed);
    if (job->prev_job)
        job->prev_job->next_job = job->next_job;
    else
        ds__cpu.jobs = job->next_job;
    if (job->next_job)
        job->next_job->prev_job = job->prev_job;
    atomic_fetch_sub(&ds__cpu.job_count, 1);
    ds__spinlock_unlock(&ds__cpu.lock);
}

/* Runs at most `limit` pieces. Waiting host threads take pieces from the front and workers from the
   back, so that each processor touches much the same memory every time. A thread first counts its
   piece in `taken`; front and back therefore never meet. leave: the thread stops if there are ready
   streams. */
static void ds__cpu_job_work(ds__cpu_job *job, int worker, int leave, size_t limit) {
    while (limit-- > 0 && !(leave && ds__cpu_ready())) {
        /* acquire: after the last piece, the owner must see the others in `users` */
        size_t before = atomic_fetch_add_explicit(&job->taken, 1, memory_order_acq_rel);
        if (before >= job->pieces)
            return;
        if (before == job->pieces - 1)
            ds__cpu_job_unlink(job);
        size_t n =
            atomic_fetch_add_explicit(worker ? &job->back : &job->front, 1, memory_order_relaxed);
        job->piece_fn(job, worker ? job->pieces - 1 - n : n);
    }
}

/* Returns 1 if another thread may join the job: pieces are left, and the stream's share of the
   threads is not used up. The pool's lock is held. */
static int ds__cpu_job_is_open(const ds__cpu_job *job) {
    unsigned share = (unsigned)job->stream->share;
    return atomic_load_explicit(&job->taken, memory_order_relaxed) < job->pieces &&
           (!share || atomic_load_explicit(&job->users, memory_order_relaxed) + 1 < share);
}

/* Joins the job of stream s, if s has not passed `upto`, or with s NULL any job. Returns 0 if there
   is no such job with pieces left. */
static int ds__cpu_job_join(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    ds__spinlock_lock(&ds__cpu.lock);
    ds__cpu_job *job = s ? atomic_load_explicit(&s->job, memory_order_relaxed) : ds__cpu.jobs;
    /* the job is that of a later operation then */
    if (s && atomic_load_explicit(&s->done, memory_order_relaxed) >= upto)
        job = NULL;
    while (job && !ds__cpu_job_is_open(job))
        job = s ? NULL : job->next_job;
    if (job)
        atomic_fetch_add_explicit(&job->users, 1, memory_order_relaxed);
    ds__spinlock_unlock(&ds__cpu.lock);
    if (!job)
        return 0;
    ds__user_code outer = ds__user_code_begin();
    /* a worker can look at ready streams between the pieces of a copy; a piece of a kernel may take
       long */
    int moves = job->op->kind != DS__OP_KERNEL;
    if (!moves)
        ds__cpu_long(w, 1);
    ds__cpu_job_work(job, w != NULL, w != NULL && moves, SIZE_MAX);
    ds__cpu_long(w, 0);
    ds__user_code_end(&outer);
    ds__spinlock_lock(&ds__cpu.lock);
    uint32_t users = atomic_load_explicit(&job->users, memory_order_relaxed) - 1;
    int wake = users == 0 && job->owner_sleeps;
    atomic_store_explicit(&job->users, users, memory_order_release);
    ds__spinlock_unlock(&ds__cpu.lock);
    /* the job may not exist any more; only its address is used */
    if (wake)
        ds__futex_wake(&job->users, 1);
    return 1;
}

/* Waits until the other threads have left the job, which has no pieces left: the job is on the
   owner's stack. */
static void ds__cpu_job_await(ds__cpu_worker *w, ds__cpu_job *job) {
    uint64_t start = 0;
    for (int spins = 0; !start || ds__now_ns() - start < ds__cpu_spin(); spins++) {
        if (atomic_load_explicit(&job->users, memory_order_acquire) == 0)
            return;
        if (!ds__cpu_spin())
            break;
        if (spins < 200) {
            ds__processor_pause();
            continue;
        }
        if (!start)
            start = ds__now_ns();
        ds__os_yield();
    }
    int was_long = w && w->is_long;
    ds__cpu_long(w, 1);
    ds__spinlock_lock(&ds__cpu.lock);
    job->owner_sleeps = 1;
    ds__spinlock_unlock(&ds__cpu.lock);
    uint32_t users;
    while ((users = atomic_load_explicit(&job->users, memory_order_acquire)) != 0)
        ds__futex_wait(&job->users, users, DS__FOREVER);
    if (!was_long)
        ds__cpu_long(w, 0);
}

/* Runs a job to its end, together with threads that join it. call_workers: sleeping workers are
   woken, if processors are free. */
static void ds__cpu_job_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_job *job,
                            int call_workers) {
    job->stream = s;
    ds__spinlock_lock(&ds__cpu.lock);
    job->prev_job = NULL;
    job->next_job = ds__cpu.jobs;
    if (job->next_job)
        job->next_job->prev_job = job;
    ds__cpu.jobs = job;
    atomic_fetch_add(&ds__cpu.job_count, 1);
    atomic_store_explicit(&s->job, job, memory_order_release);
    ds__spinlock_unlock(&ds__cpu.lock);
    /* During the first two pieces, a waiting host thread or an awake worker can join. Then sleeping
       workers are woken, but no more threads than processors: a piece of one thread too many would
       wait for a time slice. */
    ds__cpu_job_work(job, w != NULL, 0, 2);
    int parked = atomic_load(&ds__cpu.parked);
    int waiting = atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed);
    int looking = waiting - atomic_load_explicit(&ds__cpu.asleep, memory_order_relaxed);
    int wanted = ds__cpu.processors - (ds__cpu.workers - parked) - (looking > 0 ? looking : 0) -
                 (w == NULL && waiting == 0);
    if (s->share && wanted > s->share - 1)
        wanted = s->share - 1;
    if (call_workers && parked > 0 && wanted > 0) {
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, wanted < parked ? wanted : parked);
    }
    ds__cpu_job_work(job, w != NULL, 0, SIZE_MAX);
    ds__cpu_job_await(w, job);
}

#endif
