/* corpus_order.h - orders between streams: waits, events, the legacy stream, values in memory. */
#ifndef CORPUS_ORDER_H
#define CORPUS_ORDER_H
#include "corpus.h"

enum { STREAMS = 150 };

static void read_after_write(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void write_after_read(int correct) {
    ds_stream a = stream("reader");
    ds_stream b = stream("writer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_copy(q, p, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_fill(p, 1, 1, SIZE, b));
}

static void write_after_write(int correct) {
    ds_stream a = stream("first");
    ds_stream b = stream("second");
    char *p = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_synchronize(a));
    SECOND(ds_fill(p, 2, 1, SIZE, b));
}

/* Two reads do not conflict. */
static void read_after_read(int correct) {
    ds_stream a = stream("first");
    ds_stream b = stream("second");
    ds_kernel second = correct ? reading_kernel() : writing_kernel();
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(reading_kernel(), p, SIZE, a));
    SECOND(LAUNCH(second, p, SIZE, b));
}

/* The write is ordered after the last read, but not after an earlier one. */
static void write_after_earlier_read(int correct) {
    ds_stream a = stream("first reader");
    ds_stream b = stream("second reader");
    ds_stream c = stream("writer");
    char *p = device_memory(SIZE);
    ds_kernel load = reading_kernel();

    FIRST(LAUNCH(load, p, SIZE, a));
    must(LAUNCH(load, p, SIZE, b));
    must(ds_stream_wait_stream(c, b));
    if (correct)
        must(ds_stream_wait_stream(c, a));
    SECOND(ds_fill(p, 1, 1, SIZE, c));
}

/* ---- events ---- */

static void event_too_early(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_event e = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    if (!correct)
        must(ds_event_record(e, a));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_event_record(e, a));
    must(ds_stream_wait_event(b, e));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void event_three_operations_too_early(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_event e = event();
    char *p = device_memory(3 * SIZE);
    char *q = device_memory(SIZE);

    must(ds_event_record(e, a));
    must(ds_fill(p, 1, 1, SIZE, a));
    must(ds_fill(p + SIZE, 1, 1, SIZE, a));
    FIRST(ds_fill(p + 2 * SIZE, 1, 1, SIZE, a));
    if (correct)
        must(ds_event_record(e, a));
    must(ds_stream_wait_event(b, e));
    SECOND(ds_copy(q, p + 2 * SIZE, SIZE, b));
}

/* A stream waits for the record as of the call. A later record does not count. */
static void event_recorded_again_after_the_wait(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_event e = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    must(ds_event_record(e, a));
    must(ds_stream_wait_event(b, e));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_event_record(e, a));
    if (correct)
        must(ds_stream_wait_event(b, e));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void wait_for_an_unrecorded_event(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_event e = event();

    char *p = device_memory(SIZE);

    must(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_event_record(e, a));
    SECOND(ds_stream_wait_event(b, e));
}

static void wait_for_the_wrong_stream(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_stream c = stream("bystander");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_wait_stream(b, correct ? a : c));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void wait_before_the_work(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    if (!correct)
        must(ds_stream_wait_stream(b, a));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* An order is transitive, but only if the waits are made in the order of the chain. */
static void chain_of_waits(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("middle");
    ds_stream c = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (!correct)
        must(ds_stream_wait_stream(c, b));
    must(ds_stream_wait_stream(b, a));
    if (correct)
        must(ds_stream_wait_stream(c, b));
    SECOND(ds_copy(q, p, SIZE, c));
}

/* ---- legacy, blocking and per-thread streams ---- */

static void legacy_before_a_stream(int correct) {
    ds_stream a = legacy_stream();
    ds_stream b = correct ? blocking_stream("blocking") : stream("non-blocking");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void a_stream_before_legacy(int correct) {
    ds_stream a = correct ? blocking_stream("blocking") : stream("non-blocking");
    ds_stream b = legacy_stream();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* Blocking streams are ordered with the legacy stream, not with each other. */
static void legacy_between_two_streams(int correct) {
    ds_stream a = blocking_stream("first");
    ds_stream b = blocking_stream("second");
    char *p = device_memory(SIZE);
    char *q = device_memory(2 * SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_fill(q + SIZE, 1, 1, SIZE, legacy_stream()));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void per_thread_fill(void *user) {
    ds_stream own;
    must(ds_stream_get_per_thread(corpus.device, &own));
    FIRST(ds_fill(user, 1, 1, SIZE, own));
}

/* Per-thread streams are blocking, so work on the legacy stream orders them. */
static void per_thread_streams(int correct) {
    char *p = device_memory(SIZE);
    char *q = device_memory(2 * SIZE);
    ds_stream own;

    on_thread(per_thread_fill, p);
    must(ds_stream_get_per_thread(corpus.device, &own));
    if (correct)
        must(ds_fill(q + SIZE, 1, 1, SIZE, legacy_stream()));
    SECOND(ds_copy(q, p, SIZE, own));
}

/* A wait of the host for the legacy stream counts the work of blocking streams. */
static void wait_for_the_legacy_stream(int correct) {
    ds_stream a = correct ? blocking_stream("d2h") : stream("d2h");
    char *p = device_memory(SIZE);
    char *q = pinned(SIZE);

    FIRST(ds_copy(q, p, SIZE, a));
    must(ds_stream_synchronize(legacy_stream()));
    SECOND_HOST(read, q, SIZE);
}

/* The legacy stream that waits for itself is a barrier of the blocking streams. */
static void barrier_of_the_legacy_stream(int correct) {
    ds_stream a = blocking_stream("first");
    ds_stream b = blocking_stream("second");
    ds_stream legacy = legacy_stream();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(legacy, legacy));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* A stream that waits for the legacy stream waits for what that waits for. */
static void wait_of_a_stream_for_the_legacy_stream(int correct) {
    ds_stream a = correct ? blocking_stream("producer") : stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_wait_stream(b, legacy_stream()));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* The same by an event. */
static void event_on_the_legacy_stream(int correct) {
    ds_stream a = correct ? blocking_stream("producer") : stream("producer");
    ds_stream b = stream("consumer");
    ds_event e = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_event_record(e, legacy_stream()));
    must(ds_stream_wait_event(b, e));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* Each device has a legacy stream of its own. */
static void legacy_stream_of_another_device(int correct) {
    ds_stream a = blocking_stream("producer");
    char *p = device_memory(SIZE);
    char *q = pinned(SIZE);
    ds_stream legacy;

    must(ds_stream_get_legacy(correct ? corpus.device : corpus.other, &legacy));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, legacy));
}

static void device_synchronize(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_device_synchronize(correct ? corpus.device : corpus.other));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* A wrapper is the stream that it wraps. */
static void two_handles_of_a_stream(int correct) {
    ds_stream a = stream("library");
    ds_stream b = stream("program");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_stream_native native;
    ds_stream wrapper;

    must(ds_stream_export(correct ? a : b, &native));
    must(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &wrapper));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, wrapper));
    must(ds_stream_destroy(wrapper));
}

/* The queue remains when its handle is given up. */
static void stream_that_was_unwrapped(int correct) {
    ds_stream other = stream("other");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_stream_native native;
    ds_stream a;
    ds_stream b;

    must(ds_stream_create(&(ds_stream_desc){ .device = corpus.device }, &a));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_unwrap(a, &native));
    must(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &b));
    SECOND(ds_copy(q, p, SIZE, correct ? b : other));
    must(ds_stream_destroy(b));
}

/* With DS_PUSH_WAIT_PREV, the pushed stream waits for the current one. */
static void pushed_stream(int correct) {
    ds_stream a = stream("outer");
    ds_stream b = stream("inner");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    must(ds_stream_push(a, 0));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_push(b, correct ? DS_PUSH_WAIT_PREV : 0));
    SECOND(ds_copy(q, p, SIZE, b));
    must(ds_stream_pop());
    must(ds_stream_pop());
}

/* Each stream does a part of the work and is destroyed. */
static void streams_that_have_ended(int correct) {
    ds_stream b = stream("consumer");
    char *p = device_memory(STREAMS * 16);
    char *q = device_memory(STREAMS * 16);

    for (int i = 0; i < STREAMS; i++) {
        ds_stream s;
        must(ds_stream_create(&(ds_stream_desc){ .device = corpus.device }, &s));
        FIRST(ds_fill(p + i * 16, 1, 1, 16, s));
        if (correct)
            must(ds_stream_wait_stream(b, s));
        must(ds_stream_destroy(s));
    }
    SECOND(ds_copy(q, p, STREAMS * 16, b));
}

/* ---- values in memory ---- */

static void value_written_too_early(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    if (!correct)
        must(ds_stream_write_value32(a, word, 1));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_write_value32(a, word, 1));
    must(ds_stream_wait_value32(b, word, 1, DS_VALUE_WAIT_GEQ));
    SECOND(ds_copy(q, p, SIZE, b));
}

static void wait_for_another_word(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    ds_stream c = stream("bystander");
    uint64_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_value_op done = { &word[0], 1, DS_VALUE_WRITE, 8 };

    must(ds_stream_write_value64(c, &word[1], 1));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_batch_values(a, &done, 1));
    must(ds_stream_wait_value64(b, correct ? &word[0] : &word[1], 1, DS_VALUE_WAIT_EQ));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* The first of two writes ends the wait. */
static void wait_for_an_earlier_value(int correct) {
    ds_stream a = stream("first step");
    ds_stream b = stream("consumer");
    ds_stream c = stream("second step");
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    must(ds_stream_write_value32(a, word, 1));
    must(ds_stream_wait_value32(c, word, 1, DS_VALUE_WAIT_EQ));
    FIRST(ds_fill(p, 1, 1, SIZE, c));
    must(ds_stream_write_value32(c, word, 2));
    must(ds_stream_wait_value32(b, word, correct ? 2 : 1, DS_VALUE_WAIT_GEQ));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* A wait may be enqueued before the write that ends it. The layer does not know which write that
   will be, so conflicts of the corrected form are possible ones. */
static void wait_for_a_value_of_the_future(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    uint32_t *word = (void *)pinned(SIZE);
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    if (correct)
        must(ds_stream_wait_value32(b, word, 1, DS_VALUE_WAIT_GEQ));
    FIRST(ds_copy(q, p, SIZE, b));
    SECOND(ds_fill(p, 1, 1, SIZE, a));
    must(ds_stream_write_value32(a, word, 1));
}

/* ---- declared orders ---- */

/* Another library has ordered the streams. */
static void declared_order(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_check_declare_order(a, b));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* Another library has made the host wait. */
static void declared_order_with_the_host(int correct) {
    ds_stream a = stream("producer");
    ds_stream host = { 0 };
    char *p = device_memory(SIZE);
    char *q = pinned(SIZE);

    FIRST(ds_copy(q, p, SIZE, a));
    if (correct)
        must(ds_check_declare_order(a, host));
    SECOND_HOST(read, q, SIZE);
}

static const pair order_pairs[] = {
    PAIR(read_after_write, READ_AFTER_WRITE, .fix = "ds_stream_wait_stream"),
    PAIR(write_after_read, WRITE_AFTER_READ, .fix = "ds_stream_wait_stream"),
    PAIR(write_after_write, WRITE_AFTER_WRITE, .fix = "ds_stream_wait_stream"),
    PAIR(read_after_read, WRITE_AFTER_READ),
    PAIR(write_after_earlier_read, WRITE_AFTER_READ),
    PAIR(event_too_early, READ_AFTER_WRITE, .fix = "record", .missed = 1),
    PAIR(event_three_operations_too_early, READ_AFTER_WRITE, .fix = "record", .missed = 3),
    PAIR(event_recorded_again_after_the_wait, READ_AFTER_WRITE, .missed = 1),
    PAIR(wait_for_an_unrecorded_event, UNRECORDED_WAIT, .fix = "record", .flags = POSSIBLE),
    PAIR(wait_for_the_wrong_stream, READ_AFTER_WRITE, .fix = "ds_stream_wait_stream"),
    PAIR(wait_before_the_work, READ_AFTER_WRITE, .missed = 1),
    PAIR(chain_of_waits, READ_AFTER_WRITE),
    PAIR(legacy_before_a_stream, READ_AFTER_WRITE, .order = "after legacy stream"),
    PAIR(a_stream_before_legacy, READ_AFTER_WRITE),
    PAIR(legacy_between_two_streams, READ_AFTER_WRITE),
    PAIR(per_thread_streams, READ_AFTER_WRITE, .order = "after per-thread stream "),
    PAIR(wait_for_the_legacy_stream, READ_AFTER_WRITE),
    PAIR(barrier_of_the_legacy_stream, READ_AFTER_WRITE),
    PAIR(wait_of_a_stream_for_the_legacy_stream, READ_AFTER_WRITE),
    PAIR(event_on_the_legacy_stream, READ_AFTER_WRITE),
    PAIR(legacy_stream_of_another_device, READ_AFTER_WRITE),
    PAIR(device_synchronize, READ_AFTER_WRITE),
    PAIR(stream_that_was_unwrapped, READ_AFTER_WRITE),
    PAIR(two_handles_of_a_stream, READ_AFTER_WRITE),
    PAIR(pushed_stream, READ_AFTER_WRITE),
    PAIR(streams_that_have_ended, READ_AFTER_WRITE, .repeated = STREAMS - 1),
    PAIR(value_written_too_early, READ_AFTER_WRITE),
    PAIR(wait_for_another_word, READ_AFTER_WRITE),
    PAIR(wait_for_an_earlier_value, READ_AFTER_WRITE),
    PAIR(wait_for_a_value_of_the_future, WRITE_AFTER_READ, .flags = VAGUE),
    PAIR(declared_order, READ_AFTER_WRITE),
    PAIR(declared_order_with_the_host, READ_AFTER_WRITE),
};

#endif
