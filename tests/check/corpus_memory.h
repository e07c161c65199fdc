/* corpus_memory.h - lifetimes: allocation, free and reuse of blocks of the allocator. */
#ifndef CORPUS_MEMORY_H
#define CORPUS_MEMORY_H
#include "corpus.h"

/* Returns a stream that has work, so that an allocation on it has a place in its order. */
static ds_stream busy_stream(const char *label) {
    ds_stream s = stream(label);
    must(ds_fill(device_memory(SIZE), 0, 1, SIZE, s));
    return s;
}

/* A block may be used after the last operation of its stream before the allocation. */
static void use_before_the_allocation(int correct) {
    ds_stream a = busy_stream("owner");
    ds_stream b = stream("user");
    void *p;

    FIRST(ds_mem_alloc(SIZE, a, &p));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_fill(p, 1, 1, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(p));
}

/* The host has waited for the stream of the block. */
static void use_after_a_wait_of_the_host(int correct) {
    ds_stream a = busy_stream("owner");
    ds_stream b = stream("user");
    void *p;

    if (correct)
        must(ds_stream_synchronize(a));
    FIRST(ds_mem_alloc(SIZE, a, &p));
    SECOND(LAUNCH(writing_kernel(), p, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(p));
}

/* The event was recorded before other work of the stream of the block. */
static void use_after_an_event_before_the_allocation(int correct) {
    ds_stream a = busy_stream("owner");
    ds_stream b = stream("user");
    ds_event e = event();
    void *p;

    must(ds_event_record(e, a));
    if (!correct)
        must(ds_fill(device_memory(SIZE), 0, 1, SIZE, a));
    FIRST(ds_mem_alloc(SIZE, a, &p));
    must(ds_stream_wait_event(b, e));
    SECOND(ds_fill(p, 1, 1, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(p));
}

static void free_without_a_recorded_use(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    char *q = device_memory(SIZE);
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_wait_stream(b, a));
    FIRST(ds_copy(q, p, SIZE, b));
    if (correct)
        must(ds_mem_record_use(p, b));
    SECOND(ds_mem_free(p));
}

/* The stream of the block waits for the user. */
static void free_without_a_join(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_stream_wait_stream(b, a));
    FIRST(ds_fill(p, 1, 1, SIZE, b));
    if (correct)
        must(ds_stream_wait_stream(a, b));
    SECOND(ds_mem_free(p));
}

/* The host waits for the user. */
static void free_before_a_poll(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    ds_event done = event();
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    FIRST(ds_fill(p, 1, 1, SIZE, b));
    must(ds_event_record(done, b));
    if (correct)
        poll_event(done);
    SECOND(ds_mem_free(p));
}

/* A use of one stream is recorded, that of the other one is not. */
static void free_with_one_of_two_uses(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("first user");
    ds_stream c = stream("second user");
    ds_kernel load = reading_kernel();
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(LAUNCH(load, p, SIZE, b));
    FIRST(LAUNCH(load, p, SIZE, c));
    must(ds_mem_record_use(p, b));
    if (correct)
        must(ds_mem_record_use(p, c));
    SECOND(ds_mem_free(p));
}

/* ds_mem_record_use counts the work until its call. */
static void recorded_use_too_early(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    ds_kernel load = reading_kernel();
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(LAUNCH(load, p, SIZE, b));
    if (!correct)
        must(ds_mem_record_use(p, b));
    FIRST(LAUNCH(load, p, SIZE, b));
    if (correct)
        must(ds_mem_record_use(p, b));
    SECOND(ds_mem_free(p));
}

/* Makes streams and destroys them. With two earlier ones, they are as many as devstream frees at a
   time, and the layer uses their numbers again. */
static void make_many_streams(void) {
    char *p = device_memory(16);
    for (int i = 0; i < 62; i++) {
        ds_stream s;
        must(ds_stream_create(&(ds_stream_desc){ .device = corpus.device }, &s));
        must(ds_fill(p, 1, 1, 16, s));
        must(ds_stream_synchronize(s));
        must(ds_stream_destroy(s));
    }
}

enum { FRESH = 24 };

/* A new stream is neither that of the block nor the one whose use was recorded. */
static void free_after_streams_have_ended(int correct) {
    ds_kernel load = reading_kernel();
    char *q = device_memory(SIZE);
    ds_stream a;
    ds_stream b;
    void *p;

    must(ds_stream_create(&(ds_stream_desc){ .device = corpus.device }, &a));
    must(ds_stream_create(&(ds_stream_desc){ .device = corpus.device }, &b));
    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_copy(q, p, SIZE, b));
    must(ds_mem_record_use(p, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_stream_destroy(a));
    must(ds_stream_destroy(b));
    make_many_streams();
    for (int i = 0; i < FRESH; i++) {
        ds_stream s = stream("user");
        FIRST(LAUNCH(load, p, SIZE, s));
        if (correct)
            must(ds_mem_record_use(p, s));
    }
    SECOND(ds_mem_free(p));
}

static void use_after_the_free(int correct) {
    ds_stream a = stream("owner");
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_fill(p, 2, 1, SIZE, a));
    FIRST(ds_mem_free(p));
    if (!correct)
        SECOND(ds_fill(p, 2, 1, SIZE, a));
}

static void use_of_a_freed_tensor(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    int64_t shape[1] = { SIZE / 4 };
    ds_tensor *t;

    must(ds_tensor_alloc(ds_float32(), 1, shape, a, &t));
    must(ds_stream_wait_stream(b, a));
    FIRST(LAUNCH(writing_kernel(), ds_tensor_address(t), SIZE, b));
    if (correct)
        must(ds_mem_record_use(ds_tensor_address(t), b));
    SECOND(ds_tensor_free(t));
}

/* The next block has the same memory, and its stream is ordered after the uses of the first one. */
static void next_block_on_the_same_stream(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    void *p;
    void *q;

    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_fill(p, 1, 1, SIZE, a));
    must(ds_mem_free(p));
    FIRST(ds_mem_alloc(SIZE, a, &q));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_fill(q, 2, 1, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(q));
}

/* The next block has memory that is in use. The report is that of the free. */
static void reuse_of_memory_in_use(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    void *p;
    void *q;

    must(ds_mem_alloc(SIZE, a, &p));
    FIRST(ds_fill(p, 1, 1, SIZE, b));
    if (correct)
        must(ds_mem_record_use(p, b));
    SECOND(ds_mem_free(p));
    must(ds_mem_alloc(SIZE, a, &q));
    must(ds_fill(q, 2, 1, SIZE, a));
    must(ds_mem_free(q));
}

/* The report has the label of the block. */
static void labelled_block(int correct) {
    ds_stream a = stream("owner");
    ds_stream b = stream("user");
    char *q = device_memory(SIZE);
    ds_mem_request request = { .size = SIZE, .stream = a, .label = "weights" };
    void *p;

    must(ds_mem_alloc_with(&request, &p));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(p));
}

/* The padding belongs to the block, and not to an earlier one of these addresses. */
static void padding_of_a_block(int correct) {
    ds_stream s = stream("owner");
    void *p;

    must(ds_mem_alloc(100, s, &p));
    must(ds_mem_free(p));
    must(ds_mem_alloc(3, s, &p));
    if (correct)
        must(ds_fill(p, 1, 4, 1, s));
    FIRST(ds_mem_free(p));
    if (!correct)
        SECOND(ds_fill(p, 1, 4, 1, s));
}

/* ---- pinned memory ---- */

static void free_of_pinned_memory(int correct) {
    ds_stream s = stream("h2d");
    char *q = device_memory(SIZE);
    void *p;

    must(ds_mem_pinned_alloc(SIZE, &p));
    ds_host_write(p, SIZE);
    FIRST(ds_copy(q, p, SIZE, s));
    if (correct)
        must(ds_mem_pinned_record_use(p, s));
    SECOND(ds_mem_pinned_free(p));
}

static void host_access_to_freed_pinned_memory(int correct) {
    void *p;

    must(ds_mem_pinned_alloc(SIZE, &p));
    if (correct)
        ds_host_write(p, SIZE);
    FIRST(ds_mem_pinned_free(p));
    if (!correct)
        SECOND_HOST(write, p, SIZE);
}

/* ---- memory of the driver ---- */

/* ds_device_free waits for the device, so it needs no recorded use. Memory after it is gone. */
static void copy_of_freed_device_memory(int correct) {
    ds_stream s = stream("compute");
    ds_kernel load = reading_kernel();
    void *p;

    must(ds_device_alloc(corpus.device, SIZE, &p));
    must(LAUNCH(load, p, SIZE, s));
    if (correct)
        must(LAUNCH(load, p, SIZE, s));
    FIRST(ds_device_free(p));
    if (!correct)
        SECOND(LAUNCH(load, p, SIZE, s));
}

static const pair memory_pairs[] = {
    PAIR(use_before_the_allocation, USE_BEFORE_ALLOC, .fix = "ds_stream_wait_stream"),
    PAIR(use_after_a_wait_of_the_host, USE_BEFORE_ALLOC),
    PAIR(use_after_an_event_before_the_allocation, USE_BEFORE_ALLOC),
    PAIR(free_without_a_recorded_use, FREE_IN_USE, .fix = "ds_mem_record_use",
         .order = "in the order of owner, and nothing orders owner after user"),
    PAIR(free_without_a_join, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(free_before_a_poll, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(free_with_one_of_two_uses, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(recorded_use_too_early, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(free_after_streams_have_ended, FREE_IN_USE, .repeated = FRESH - 1),
    PAIR(use_after_the_free, USE_AFTER_FREE),
    PAIR(use_of_a_freed_tensor, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(next_block_on_the_same_stream, USE_BEFORE_ALLOC),
    PAIR(reuse_of_memory_in_use, FREE_IN_USE, .fix = "ds_mem_record_use"),
    PAIR(padding_of_a_block, USE_AFTER_FREE),
    PAIR(labelled_block, READ_AFTER_WRITE, .label = "weights"),
    PAIR(free_of_pinned_memory, FREE_IN_USE, .fix = "ds_mem_pinned_record_use"),
    PAIR(host_access_to_freed_pinned_memory, USE_AFTER_FREE),
    PAIR(copy_of_freed_device_memory, USE_AFTER_FREE),
};

#endif
