/* corpus_threads.h - threads of the host, with the option "threads": only hand-over that is
   declared orders them. */
#ifndef CORPUS_THREADS_H
#define CORPUS_THREADS_H
#include "corpus.h"

/* What the threads of a program share. */
typedef struct team {
    int correct;
    ds_stream stream[2];
    ds_event event;
    char *p;
    char *q;
    char *host;
    ds_kernel kernel;
    _Atomic int flag;
    _Atomic int back;
    pthread_mutex_t lock;
} team;

static team team_of(int correct) {
    return (team){ .correct = correct,
                   .stream = { stream("first"), stream("second") },
                   .event = event(),
                   .p = device_memory(SIZE),
                   .q = device_memory(SIZE),
                   .host = pinned(SIZE),
                   .lock = PTHREAD_MUTEX_INITIALIZER };
}

/* Runs two threads at the same time. */
static void run_both(team *t, void (*first)(void *user), void (*second)(void *user)) {
    runner r[2];
    start(&r[0], first, t);
    start(&r[1], second, t);
    finish(&r[0]);
    finish(&r[1]);
}

/* ---- without hand-over ---- */

static void first_writes(void *user) {
    team *t = user;
    FIRST(ds_fill(t->p, 1, 1, SIZE / 2, t->stream[0]));
}

static void second_writes(void *user) {
    team *t = user;
    char *p = t->correct ? t->p + SIZE / 2 : t->p;
    SECOND(ds_fill(p, 2, 1, SIZE / 2, t->stream[1]));
}

/* Each thread has its half of a buffer. */
static void threads_with_halves(int correct) {
    team t = team_of(correct);
    run_both(&t, first_writes, second_writes);
}

static void first_allocates(void *user) {
    team *t = user;
    void *own;
    must(ds_mem_alloc(SIZE, t->stream[0], &own));
    must(ds_fill(own, 1, 1, SIZE, t->stream[0]));
    FIRST(ds_copy(t->p, own, SIZE, t->stream[0]));
    must(ds_mem_free(own));
}

static void second_allocates(void *user) {
    team *t = user;
    void *own;
    must(ds_mem_alloc(SIZE, t->stream[1], &own));
    must(ds_fill(own, 1, 1, SIZE, t->stream[1]));
    SECOND(ds_copy(t->correct ? t->q : t->p, own, SIZE, t->stream[1]));
    must(ds_mem_free(own));
}

/* The allocator gives memory from thread to thread; that is no race. */
static void threads_with_blocks(int correct) {
    team t = team_of(correct);
    run_both(&t, first_allocates, second_allocates);
}

/* ---- hand-over by a flag ---- */

static void produce(void *user) {
    team *t = user;
    FIRST(ds_fill(t->p, 1, 1, SIZE, t->stream[0]));
    must(ds_stream_synchronize(t->stream[0]));
    if (t->correct)
        must(ds_check_release(&t->flag));
    t->flag = 1;
}

static void consume(void *user) {
    team *t = user;
    await(&t->flag);
    if (t->correct)
        must(ds_check_acquire(&t->flag));
    SECOND(ds_copy(t->q, t->p, SIZE, t->stream[1]));
}

static void hand_over_by_a_flag(int correct) {
    team t = team_of(correct);
    run_both(&t, produce, consume);
}

static void produce_with_an_event(void *user) {
    team *t = user;
    FIRST(ds_fill(t->p, 1, 1, SIZE, t->stream[0]));
    must(ds_event_record(t->event, t->stream[0]));
    t->flag = 1;
}

static void consume_with_an_event(void *user) {
    team *t = user;
    await(&t->flag);
    if (t->correct)
        must(ds_stream_wait_event(t->stream[1], t->event));
    SECOND(ds_copy(t->q, t->p, SIZE, t->stream[1]));
}

/* An event orders the work of two threads. */
static void hand_over_of_an_event(int correct) {
    team t = team_of(correct);
    run_both(&t, produce_with_an_event, consume_with_an_event);
}

static void fill_staging(void *user) {
    team *t = user;
    FIRST_HOST(write, t->host, SIZE);
    memset(t->host, 1, SIZE);
    if (t->correct)
        must(ds_check_release(&t->flag));
    t->flag = 1;
}

static void copy_staging(void *user) {
    team *t = user;
    await(&t->flag);
    if (t->correct)
        must(ds_check_acquire(&t->flag));
    SECOND(ds_copy(t->p, t->host, SIZE, t->stream[1]));
}

/* A thread that loads data fills pinned memory for a thread that copies. */
static void staging_buffer(int correct) {
    team t = team_of(correct);
    run_both(&t, fill_staging, copy_staging);
}

static void refill_staging(void *user) {
    team *t = user;
    ds_host_write(t->host, SIZE);
    must(ds_check_release(&t->flag));
    t->flag = 1;
    await(&t->back);
    must(ds_check_acquire(&t->back));
    SECOND_HOST(write, t->host, SIZE);
}

static void copy_and_return_staging(void *user) {
    team *t = user;
    await(&t->flag);
    must(ds_check_acquire(&t->flag));
    FIRST(ds_copy(t->p, t->host, SIZE, t->stream[1]));
    if (t->correct)
        must(ds_stream_synchronize(t->stream[1]));
    must(ds_check_release(&t->back));
    t->back = 1;
}

/* Both hand-overs are declared, but the buffer goes back before the copy has read it. */
static void staging_buffer_goes_back(int correct) {
    team t = team_of(correct);
    run_both(&t, refill_staging, copy_and_return_staging);
}

/* ---- hand-over by a mutex ---- */

static void take(team *t) {
    pthread_mutex_lock(&t->lock);
    if (t->correct)
        must(ds_check_acquire(&t->lock));
}

static void give(team *t) {
    if (t->correct)
        must(ds_check_release(&t->lock));
    pthread_mutex_unlock(&t->lock);
}

static void first_locks(void *user) {
    team *t = user;
    take(t);
    FIRST(ds_fill(t->p, 1, 1, SIZE, t->stream[0]));
    must(ds_stream_synchronize(t->stream[0]));
    give(t);
}

static void second_locks(void *user) {
    team *t = user;
    take(t);
    SECOND(ds_fill(t->p, 2, 1, SIZE, t->stream[1]));
    must(ds_stream_synchronize(t->stream[1]));
    give(t);
}

static void buffer_with_a_mutex(int correct) {
    team t = team_of(correct);
    run_both(&t, first_locks, second_locks);
}

/* ---- waits of another thread ---- */

static void copy_and_wait(void *user) {
    team *t = user;
    FIRST(ds_copy(t->host, t->p, SIZE, t->stream[0]));
    must(ds_event_record(t->event, t->stream[0]));
    must(ds_event_synchronize(t->event));
    t->flag = 1;
}

static void read_results(void *user) {
    team *t = user;
    await(&t->flag);
    if (t->correct)
        poll_event(t->event);
    SECOND_HOST(read, t->host, SIZE);
}

/* A wait orders the thread that has waited. */
static void wait_of_another_thread(int correct) {
    team t = team_of(correct);
    run_both(&t, copy_and_wait, read_results);
}

static void release_on_a_stream(void *user) {
    team *t = user;
    must(ds_check_release(&t->back));
    t->back = 1;
}

static void copy_and_call_back(void *user) {
    team *t = user;
    FIRST(ds_copy(t->host, t->p, SIZE, t->stream[0]));
    must(ds_stream_launch_host_func(t->stream[0], release_on_a_stream, t, NULL));
    await(&t->back);
}

static void read_after_the_callback(void *user) {
    team *t = user;
    await(&t->back);
    if (t->correct)
        must(ds_check_acquire(&t->back));
    SECOND_HOST(read, t->host, SIZE);
}

/* A host function hands the results of its stream over to a thread. */
static void hand_over_by_a_host_function(int correct) {
    team t = team_of(correct);
    run_both(&t, copy_and_call_back, read_after_the_callback);
}

static void start_late_fn(void *user) {
    team *t = user;
    SECOND(ds_copy(t->q, t->p, SIZE, t->stream[1]));
}

static void *undeclared_main(void *user) {
    start_late_fn(user);
    return NULL;
}

/* The start of a thread is a hand-over. */
static void start_of_a_thread(int correct) {
    team t = team_of(correct);
    runner r;
    pthread_t thread;

    FIRST(ds_fill(t.p, 1, 1, SIZE, t.stream[0]));
    must(ds_stream_synchronize(t.stream[0]));
    if (correct) {
        start(&r, start_late_fn, &t);
        finish(&r);
    } else if (pthread_create(&thread, NULL, undeclared_main, &t) == 0) {
        pthread_join(thread, NULL);
    }
}

enum { MANY = 100 };

static void write_a_part(void *user) {
    FIRST_HOST(write, user, 16);
}

static void *undeclared_part(void *user) {
    write_a_part(user);
    return NULL;
}

/* The end of a thread is a hand-over as well. */
static void threads_that_have_ended(int correct) {
    char *host = pinned(MANY * 16);
    char *p = device_memory(MANY * 16);
    pthread_t thread;

    for (int i = 0; i < MANY; i++)
        if (correct)
            on_thread(write_a_part, host + i * 16);
        else if (pthread_create(&thread, NULL, undeclared_part, host + i * 16) == 0)
            pthread_join(thread, NULL);
    SECOND(ds_copy(p, host, MANY * 16, stream("h2d")));
}

static void copy_late(void *user) {
    SECOND(ds_copy(device_memory(16), user, 16, stream("h2d")));
}

static void *undeclared_copy(void *user) {
    copy_late(user);
    return NULL;
}

/* All threads of this time know the first access. A thread that starts later does not. */
static void thread_that_starts_very_late(int correct) {
    char *host = pinned(16);
    pthread_t thread;

    on_thread(write_a_part, host);
    access_often();
    if (correct)
        on_thread(copy_late, host);
    else if (pthread_create(&thread, NULL, undeclared_copy, host) == 0)
        pthread_join(thread, NULL);
}

static void *produce_and_wait(void *user) {
    team *t = user;
    FIRST(ds_fill(t->p, 1, 1, SIZE, t->stream[0]));
    if (t->correct)
        must(ds_stream_synchronize(t->stream[0]));
    return NULL;
}

/* Without the option "threads", calls of threads are ordered as they happened. */
static void threads_in_the_default_mode(int correct) {
    team t = team_of(correct);
    pthread_t thread;

    if (pthread_create(&thread, NULL, produce_and_wait, &t) == 0)
        pthread_join(thread, NULL);
    SECOND(ds_copy(t.q, t.p, SIZE, t.stream[1]));
}

/* ---- one stream of two threads ---- */

static void scan(team *t) {
    if (t->correct)
        take(t);
    must(LAUNCH(t->kernel, t->p, SIZE, t->stream[0]));
    must(LAUNCH(t->kernel, t->p, SIZE, t->stream[0]));
    if (t->correct)
        give(t);
}

static void scan_on_a_thread(void *user) {
    scan(user);
}

/* kokkos/kokkos#9291: parallel_scan has two kernels, and the second one reads scratch memory that
   the first one has written. Two threads that use the default instance share its stream and its
   scratch memory, and the kernels of one scan come between those of the other one. All accesses
   are ordered by the stream, so this is no race between streams: the layer must not report it. */
static void kokkos_9291(int correct) {
    team t = team_of(correct);
    t.kernel = kernel_with("scan", DS_PARAM_READ_WRITE, &extent_of_n);
    run_both(&t, scan_on_a_thread, scan_on_a_thread);
}

/* ---- collectives ---- */

/* What two threads share that call collectives of the same streams. */
typedef struct crew {
    team team;
    ranks ranks;
} crew;

static void first_reduces(void *user) {
    crew *c = user;
    if (c->team.correct)
        take(&c->team);
    FIRST(ds_comm_all_reduce(c->ranks.list, c->ranks.list, 2, DS_REDUCE_SUM, &c->ranks.options));
    if (c->team.correct)
        give(&c->team);
}

static void second_reduces(void *user) {
    crew *c = user;
    if (c->team.correct)
        take(&c->team);
    SECOND(ds_comm_all_reduce(c->ranks.list, c->ranks.list, 2, DS_REDUCE_MAX, &c->ranks.options));
    if (c->team.correct)
        give(&c->team);
}

/* The order of the collectives differs from run to run, though each stream has its order. */
static void collectives_of_two_threads(int correct) {
    crew c = { .team = team_of(correct) };
    runner r[2];
    ranks_init(&c.ranks);
    start(&r[0], first_reduces, &c);
    start(&r[1], second_reduces, &c);
    finish(&r[0]);
    finish(&r[1]);
}

static const pair thread_pairs[] = {
    PAIR(threads_with_halves, WRITE_AFTER_WRITE, .flags = THREADS | EITHER),
    PAIR(threads_with_blocks, WRITE_AFTER_WRITE, .flags = THREADS | EITHER),
    PAIR(hand_over_by_a_flag, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(hand_over_of_an_event, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(staging_buffer, READ_AFTER_WRITE, .fix = "ds_check_release", .flags = THREADS),
    PAIR(staging_buffer_goes_back, WRITE_AFTER_READ, .flags = THREADS),
    PAIR(buffer_with_a_mutex, WRITE_AFTER_WRITE, .flags = THREADS | EITHER),
    PAIR(wait_of_another_thread, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(hand_over_by_a_host_function, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(start_of_a_thread, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(threads_that_have_ended, READ_AFTER_WRITE, .repeated = MANY - 1, .flags = THREADS),
    PAIR(thread_that_starts_very_late, READ_AFTER_WRITE, .flags = THREADS),
    PAIR(threads_in_the_default_mode, READ_AFTER_WRITE),
    PAIR(collectives_of_two_threads, COLLECTIVE_ORDER, .order = "no stated order",
         .fix = "ds_check_release after", .flags = THREADS | EITHER),
    PAIR(kokkos_9291, NONE, .source = "kokkos/kokkos#9291", .flags = THREADS),
};

#endif
