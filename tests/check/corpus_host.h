/* corpus_host.h - the host: pinned memory, waits and queries, host functions. */
#ifndef CORPUS_HOST_H
#define CORPUS_HOST_H
#include "corpus.h"

static void host_read_before_the_wait(int correct) {
    ds_stream s = stream("d2h");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(read, host, SIZE);
}

static void host_write_during_a_copy(int correct) {
    ds_stream s = stream("h2d");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    ds_host_write(host, SIZE);
    FIRST(ds_copy(p, host, SIZE, s));
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(write, host, SIZE);
}

/* Parts of one buffer are filled while others are copied. */
static void host_write_beside_a_copy(int correct) {
    ds_stream s = stream("h2d");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    ds_host_write(host, SIZE / 2);
    FIRST(ds_copy(p, host, SIZE / 2, s));
    SECOND_HOST(write, host + (correct ? SIZE / 2 : SIZE / 2 - 1), SIZE / 2);
}

/* Work that is enqueued later comes after what the host has done, but a thread of the host may do
   more before it runs. */
static void host_write_after_the_launch(int correct) {
    ds_stream s = stream("compute");
    ds_kernel load = reading_kernel();
    char *flags = pinned(SIZE);

    if (correct)
        ds_host_write(flags, SIZE);
    FIRST(LAUNCH(load, flags, SIZE, s));
    if (!correct)
        SECOND_HOST(write, flags, SIZE);
}

/* An event that is complete orders its work, not later work. */
static void polled_event(int correct) {
    ds_stream s = stream("d2h");
    ds_event before = event();
    ds_event after = event();
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    must(ds_event_record(before, s));
    FIRST(ds_copy(host, p, SIZE, s));
    must(ds_event_record(after, s));
    poll_event(correct ? after : before);
    SECOND_HOST(read, host, SIZE);
}

static void polled_stream(int correct) {
    ds_stream s = stream("d2h");
    ds_stream other = stream("idle");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);
    ds_result r;

    FIRST(ds_copy(host, p, SIZE, s));
    while ((r = ds_stream_query(correct ? s : other)) == DS_NOT_READY)
        nap();
    must(r);
    SECOND_HOST(read, host, SIZE);
}

static _Atomic int the_gate;

static void wait_at_the_gate(void *user) {
    (void)user;
    await(&the_gate);
}

/* A wait that ends after a time has ordered nothing. */
static void wait_that_ends_too_early(int correct) {
    ds_stream s = stream("d2h");
    ds_event done = event();
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    the_gate = 0;
    must(ds_stream_launch_host_func(s, wait_at_the_gate, NULL, NULL));
    FIRST(ds_copy(host, p, SIZE, s));
    must(ds_event_record(done, s));
    the_gate = correct;
    if (ds_event_synchronize_for(done, correct ? UINT64_MAX : 1000) < 0)
        exit(1);
    SECOND_HOST(read, host, SIZE);
    the_gate = 1;
}

/* ds_copy_sync waits for its own copy. */
static void synchronous_copy(int correct) {
    ds_stream s = blocking_stream("d2h");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_copy_sync(p, host + SIZE / 2, SIZE / 2));
    SECOND_HOST(read, host, SIZE);
}

/* ds_device_free waits for the device. */
static void wait_by_a_free(int correct) {
    ds_stream s = stream("d2h");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);
    void *scratch;

    must(ds_device_alloc(corpus.device, SIZE, &scratch));
    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_device_free(scratch));
    SECOND_HOST(read, host, SIZE);
    if (!correct)
        must(ds_device_free(scratch));
}

/* ds_pinned_free waits for all devices. */
static void wait_by_a_pinned_free(int correct) {
    ds_stream s = stream("d2h");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);
    void *scratch;

    must(ds_pinned_alloc(SIZE, &scratch));
    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_pinned_free(scratch));
    SECOND_HOST(read, host, SIZE);
    if (!correct)
        must(ds_pinned_free(scratch));
}

static void wait_by_quiesce(int correct) {
    ds_stream s = stream("d2h");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);

    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_quiesce());
    SECOND_HOST(read, host, SIZE);
}

/* A copy to pageable memory is complete when the call returns, a copy from it need not be. */
static void copies_of_pageable_memory(int correct) {
    ds_stream s = stream("copies");
    char *p = device_memory(SIZE);
    char *host = pinned(SIZE);
    static char pageable[SIZE];

    FIRST(ds_copy(host, p, SIZE, s));
    if (correct)
        must(ds_copy(pageable, p, SIZE, s));
    else
        must(ds_copy(p, pageable, SIZE, s));
    SECOND_HOST(read, host, SIZE);
}

/* ---- host functions ---- */

typedef struct host_work {
    char *host;
    _Atomic int go;
    _Atomic int ran;
    int release; /* declares a hand-over at its end */
} host_work;

/* Static, since the function may outlive the program. */
static host_work the_work;

static host_work *new_work(void) {
    the_work.host = pinned(SIZE);
    the_work.go = 1;
    the_work.ran = 0;
    the_work.release = 0;
    return &the_work;
}

static void write_on_a_stream(void *user) {
    host_work *w = user;
    await(&w->go);
    FIRST_HOST(write, w->host, SIZE);
    memset(w->host, 1, SIZE);
    if (w->release)
        must(ds_check_release(w));
    w->ran = 1;
}

static void read_on_a_stream(void *user) {
    host_work *w = user;
    await(&w->go);
    SECOND_HOST(read, w->host, SIZE);
    w->ran = 1;
}

/* The access of a host function belongs to its stream. */
static void host_function_and_host(int correct) {
    ds_stream s = stream("callbacks");
    host_work *w = new_work();

    must(ds_stream_launch_host_func(s, write_on_a_stream, w, NULL));
    await(&w->ran);
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(read, w->host, SIZE);
}

/* The flag is a hand-over if the program declares it. */
static void host_function_hands_over(int correct) {
    ds_stream s = stream("callbacks");
    host_work *w = new_work();

    w->release = 1;
    must(ds_stream_launch_host_func(s, write_on_a_stream, w, NULL));
    await(&w->ran);
    if (correct)
        must(ds_check_acquire(w));
    SECOND_HOST(read, w->host, SIZE);
}

static void host_function_and_another_stream(int correct) {
    ds_stream a = stream("callbacks");
    ds_stream b = stream("h2d");
    host_work *w = new_work();
    char *p = device_memory(SIZE);

    must(ds_stream_launch_host_func(a, write_on_a_stream, w, NULL));
    await(&w->ran);
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(p, w->host, SIZE, b));
}

/* The function runs after the work that comes after it was enqueued. */
static void host_function_runs_late(int correct) {
    ds_stream a = stream("callbacks");
    ds_stream b = stream("h2d");
    host_work *w = new_work();
    char *p = device_memory(SIZE);

    w->go = 0;
    must(ds_stream_launch_host_func(a, write_on_a_stream, w, NULL));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(p, w->host, SIZE, b));
    w->go = 1;
}

/* So late that the layer may have dropped the access that conflicts. */
static void host_function_runs_very_late(int correct) {
    ds_stream a = stream("callbacks");
    ds_stream b = stream("h2d");
    host_work *w = new_work();
    char *p = device_memory(SIZE);

    w->go = 0;
    if (correct) {
        must(ds_copy(p, w->host, SIZE, b));
        must(ds_stream_wait_stream(a, b));
    }
    must(ds_stream_launch_host_func(a, write_on_a_stream, w, NULL));
    if (!correct)
        SECOND(ds_copy(p, w->host, SIZE, b));
    must(ds_stream_synchronize(b));
    access_often();
    w->go = 1;
}

static void host_function_reads_results(int correct) {
    ds_stream a = stream("d2h");
    ds_stream b = stream("callbacks");
    host_work *w = new_work();
    char *p = device_memory(SIZE);

    FIRST(ds_copy(w->host, p, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    must(ds_stream_launch_host_func(b, read_on_a_stream, w, NULL));
    must(ds_stream_synchronize(b));
}

/* A host function comes after what its thread did before the call. */
static void host_function_and_earlier_host_code(int correct) {
    ds_stream s = stream("callbacks");
    host_work *w = new_work();

    w->go = 0;
    if (correct)
        ds_host_write(w->host, SIZE);
    must(ds_stream_launch_host_func(s, read_on_a_stream, w, NULL));
    if (!correct)
        FIRST_HOST(write, w->host, SIZE);
    w->go = 1;
    await(&w->ran);
}

static void write_for_a_callback(ds_stream s, ds_result status, void *user) {
    (void)s;
    (void)status;
    write_on_a_stream(user);
}

static void callback_and_host(int correct) {
    ds_stream s = stream("callbacks");
    host_work *w = new_work();

    must(ds_stream_add_callback(s, write_for_a_callback, w, NULL));
    await(&w->ran);
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(read, w->host, SIZE);
}

static int write_in_a_closure(void *payload) {
    write_on_a_stream(*(host_work **)payload);
    return 0;
}

/* The closure gets a copy of its payload. */
static void closure_and_host(int correct) {
    ds_stream s = stream("closures");
    host_work *w = new_work();

    must(ds_stream_launch_closure(s, write_in_a_closure, &w, sizeof w, NULL));
    await(&w->ran);
    if (correct)
        must(ds_stream_synchronize(s));
    SECOND_HOST(read, w->host, SIZE);
}

static void do_nothing(void *user) {
    (void)user;
}

static void write_the_work(void *user) {
    (void)user;
    write_on_a_stream(&the_work);
}

/* Functions of two streams have the same argument, and the later one runs first. */
static void host_functions_with_one_argument(int correct) {
    ds_stream a = stream("held up");
    ds_stream b = stream("callbacks");
    uint32_t *word = (void *)pinned(SIZE);
    host_work *w = new_work();

    must(ds_stream_wait_value32(a, word, 1, DS_VALUE_WAIT_EQ));
    must(ds_stream_launch_host_func(a, do_nothing, NULL, NULL));
    must(ds_stream_launch_host_func(b, write_the_work, NULL, NULL));
    await(&w->ran);
    if (correct)
        must(ds_stream_synchronize(b));
    SECOND_HOST(read, w->host, SIZE);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

static const pair host_pairs[] = {
    PAIR(host_read_before_the_wait, READ_AFTER_WRITE, .fix = "ds_stream_synchronize"),
    PAIR(host_write_during_a_copy, WRITE_AFTER_READ, .fix = "ds_stream_synchronize"),
    PAIR(host_write_beside_a_copy, WRITE_AFTER_READ),
    PAIR(host_write_after_the_launch, WRITE_AFTER_READ),
    PAIR(polled_event, READ_AFTER_WRITE, .missed = 1),
    PAIR(polled_stream, READ_AFTER_WRITE),
    PAIR(wait_that_ends_too_early, READ_AFTER_WRITE),
    PAIR(synchronous_copy, READ_AFTER_WRITE),
    PAIR(wait_by_a_free, READ_AFTER_WRITE),
    PAIR(wait_by_a_pinned_free, READ_AFTER_WRITE),
    PAIR(wait_by_quiesce, READ_AFTER_WRITE),
    PAIR(copies_of_pageable_memory, READ_AFTER_WRITE),
    PAIR(callback_and_host, READ_AFTER_WRITE),
    PAIR(closure_and_host, READ_AFTER_WRITE),
    PAIR(host_functions_with_one_argument, READ_AFTER_WRITE),
    PAIR(host_function_and_host, READ_AFTER_WRITE),
    PAIR(host_function_hands_over, READ_AFTER_WRITE),
    PAIR(host_function_and_another_stream, READ_AFTER_WRITE),
    PAIR(host_function_runs_late, WRITE_AFTER_READ, .flags = EITHER),
    PAIR(host_function_runs_very_late, WRITE_AFTER_READ, .flags = EITHER),
    PAIR(host_function_reads_results, READ_AFTER_WRITE),
    PAIR(host_function_and_earlier_host_code, READ_AFTER_WRITE, .flags = EITHER),
};

#endif
