/* The current stream: per thread and device, use, push and pop, scopes, ordering on entry and
   exit. */
#include "harness.h"

#include <string.h>

static const ds_device nothing;
static const ds_stream no_stream;

static int same(ds_device a, ds_device b) {
    return a.type == b.type && a.index == b.index;
}

static ds_stream default_of(int device) {
    ds_stream s;
    ok(ds_stream_get_default(harness_device(device), &s));
    return s;
}

static ds_stream current_of(int device) {
    ds_stream s;
    ok(ds_stream_get_current(harness_device(device), &s));
    return s;
}

static ds_device current_device(void) {
    ds_device d;
    ok(ds_device_get_current(&d));
    return d;
}

/* The current device, its current stream, and that this is what every way to ask says. */
static void expect_current(int device, ds_stream want) {
    ds_stream s;
    assert_true(same(current_device(), harness_device(device)));
    assert_int_equal(current_of(device).id, want.id);
    ok(ds_stream_get_current(nothing, &s));
    assert_int_equal(s.id, want.id);
}

static void expect_no_frames(void) {
    refused(ds_stream_pop(), DS_ERR_ILLEGAL_STATE);
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
}

static void expect_pending(ds_stream s) {
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
}

static ds_stream made(int device) {
    return harness_stream(device, DS_STREAM_NON_BLOCKING);
}

/* ---- asking ---- */

static void test_at_first_the_default_stream_of_each_device_is_current(void **state) {
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        assert_true(ds_stream_equal(current_of(i), default_of(i)));
        for (int j = 0; j < i; j++)
            assert_false(ds_stream_equal(current_of(i), current_of(j)));
    }
}

static void test_all_ways_to_name_the_device_give_the_same_stream(void **state) {
    char name[DS_DEVICE_NAME_SIZE];
    ds_device d;
    ds_stream by_name, by_zero;
    (void)state;
    ds_stream s = made(1);
    ok(ds_stream_set_current(s, 0, NULL));
    ok(ds_device_format(harness_device(1), name, sizeof name));
    ok(ds_device_parse(name, &d));
    ok(ds_stream_get_current(d, &by_name)); /* (dev.) Paddle's old namespace refuses strings */
    ok(ds_stream_get_current(nothing, &by_zero));
    assert_int_equal(by_name.id, s.id);
    assert_int_equal(by_zero.id, s.id);
    assert_int_equal(current_of(1).id, s.id);
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_destroy(s));
}

static void test_current_of_what_is_no_device_with_streams_is_refused(void **state) {
    ds_device beyond = harness_device(0);
    ds_stream s = { 7 };
    (void)state;
    beyond.index = harness_all_devices();
    refused(ds_stream_get_current(beyond, &s), DS_ERR_DEVICE_RANGE);
    assert_int_equal(s.id, 0);
    refused(ds_stream_get_current((ds_device){ 77, 0 }, &s), DS_ERR_INVALID_DEVICE);
    s.id = 7;
    refused_any(ds_stream_get_current((ds_device){ DS_DEVICE_HOST, 0 }, &s));
    assert_int_equal(s.id, 0);
    refused(ds_stream_get_current(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
}

/* ---- use ---- */

static void test_use_replaces_the_current_stream_and_returns_it(void **state) {
    ds_stream previous;
    (void)state;
    ds_stream a = made(0), b = made(0), first = default_of(0);
    ok(ds_stream_set_current(a, 0, &previous));
    assert_int_equal(previous.id, first.id);
    expect_current(0, a);
    ok(ds_stream_set_current(b, 0, &previous));
    assert_int_equal(previous.id, a.id);
    expect_current(0, b);
    ok(ds_stream_set_current(b, 0, &previous)); /* idempotent, the identical handle */
    assert_int_equal(previous.id, b.id);
    expect_current(0, b);
    ok(ds_stream_set_current(current_of(0), 0, NULL));
    expect_current(0, b);
    ok(ds_stream_set_current(first, 0, NULL));
    expect_current(0, first);
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
}

static void test_use_sets_the_streams_device_and_no_other(void **state) {
    ds_stream previous;
    (void)state;
    two_devices();
    ds_stream zero = made(0), one = made(1);
    ok(ds_stream_set_current(zero, 0, NULL));
    ok(ds_stream_set_current(one, 0, &previous)); /* (dev.) CuPy refuses, Paddle keeps the device */
    assert_int_equal(previous.id, default_of(1).id); /* of that device */
    expect_current(1, one);
    assert_int_equal(current_of(0).id, zero.id);
    ok(ds_device_synchronize(harness_device(0)));
    expect_current(1, one);
    ok(ds_device_set_current(harness_device(0)));
    expect_current(0, zero); /* valid again on return */
    assert_int_equal(current_of(1).id, one.id);
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(zero));
    ok(ds_stream_destroy(one));
}

static void test_use_refuses_what_is_no_stream_and_changes_nothing(void **state) {
    ds_stream previous = { 7 };
    (void)state;
    ds_stream s = made(0), gone = made(0);
    ok(ds_stream_destroy(gone));
    ok(ds_stream_set_current(s, 0, NULL));
    /* (dev.) torch: no-op */
    refused(ds_stream_set_current(no_stream, 0, &previous), DS_ERR_INVALID_HANDLE);
    assert_int_equal(previous.id, 0);
    previous.id = 7;
    refused(ds_stream_set_current(gone, 0, &previous), DS_ERR_INVALID_HANDLE);
    assert_int_equal(previous.id, 0);
    previous.id = 7;
    refused(ds_stream_set_current(s, DS_PUSH_WAIT_PREV, &previous), DS_ERR_INVALID_VALUE);
    assert_int_equal(previous.id, 0);
    refused(ds_stream_set_current(s, 0x80, NULL), DS_ERR_INVALID_VALUE);
    expect_current(0, s);
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(s));
}

static void test_strict_refuses_a_stream_of_another_device(void **state) {
    ds_stream previous = { 7 };
    (void)state;
    two_devices();
    ds_stream one = made(1);
    ok(ds_device_set_current(harness_device(0)));
    refused(ds_stream_set_current(one, DS_PUSH_STRICT, &previous), DS_ERR_DEVICE_MISMATCH);
    assert_int_equal(previous.id, 0);
    refused(ds_stream_push(one, DS_PUSH_STRICT), DS_ERR_DEVICE_MISMATCH);
    refused(ds_stream_push(one, DS_PUSH_STRICT | DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK),
            DS_ERR_DEVICE_MISMATCH);
    expect_no_frames();
    DS_STREAM_SCOPE_FLAGS(one, DS_PUSH_STRICT)
        fail();
    expect_no_frames();
    expect_current(0, default_of(0));
    assert_int_equal(current_of(1).id, default_of(1).id);
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_stream_set_current(one, DS_PUSH_STRICT, &previous));
    assert_int_equal(previous.id, default_of(1).id);
    ok(ds_stream_set_current(previous, DS_PUSH_STRICT, NULL));
    ok(ds_stream_push(one, DS_PUSH_STRICT));
    expect_current(1, one);
    ok(ds_stream_pop());
    ok(ds_stream_destroy(one));
}

/* ---- push and pop ---- */

static void test_pop_restores_the_stream_at_entry(void **state) {
    (void)state;
    ds_stream a = made(0), b = made(0), first = default_of(0);
    ok(ds_stream_push(a, 0));
    expect_current(0, a);
    ok(ds_stream_push(b, 0));
    expect_current(0, b);
    ok(ds_stream_pop());
    expect_current(0, a);
    ok(ds_stream_pop());
    expect_current(0, first);
    expect_no_frames();
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
}

static void test_a_stream_that_was_used_before_is_restored(void **state) {
    (void)state;
    ds_stream used = made(0), pushed = made(0);
    ok(ds_stream_set_current(used, 0, NULL));
    ok(ds_stream_push(pushed, 0));
    ok(ds_stream_push(default_of(0), 0));
    expect_current(0, default_of(0));
    ok(ds_stream_pop());
    ok(ds_stream_pop());
    expect_current(0, used); /* (dev.) CuPy: forgotten */
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(used));
    ok(ds_stream_destroy(pushed));
}

static void test_use_inside_a_frame_lasts_until_its_pop(void **state) {
    (void)state;
    ds_stream s1 = made(0), s2 = made(0), s3 = made(0), before = made(0);
    ok(ds_stream_set_current(before, 0, NULL));
    ok(ds_stream_push(s1, 0));
    ok(ds_stream_set_current(s2, 0, NULL));
    ok(ds_stream_push(s3, 0));
    ok(ds_stream_pop());
    expect_current(0, s2); /* (dev.) CuPy: s1 */
    ok(ds_stream_pop());
    expect_current(0, before); /* (dev.) CuPy: null */
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(s1));
    ok(ds_stream_destroy(s2));
    ok(ds_stream_destroy(s3));
    ok(ds_stream_destroy(before));
}

static void test_the_same_stream_may_be_entered_many_times(void **state) {
    enum { DEPTH = 500 };

    (void)state;
    ds_stream s0 = made(0), s1 = made(0);
    ok(ds_stream_push(s0, 0));
    ok(ds_stream_push(s0, 0));
    ok(ds_stream_push(s1, 0));
    ok(ds_stream_push(s0, 0));
    expect_current(0, s0);
    ok(ds_stream_pop());
    expect_current(0, s1);
    ok(ds_stream_pop());
    expect_current(0, s0);
    ok(ds_stream_pop());
    expect_current(0, s0);
    ok(ds_stream_pop());
    expect_current(0, default_of(0));
    for (int i = 0; i < DEPTH; i++)
        ok(ds_stream_push(i % 3 ? s0 : s1, 0));
    for (int i = DEPTH - 1; i >= 0; i--) {
        expect_current(0, i % 3 ? s0 : s1);
        ok(ds_stream_pop());
    }
    expect_current(0, default_of(0));
    expect_no_frames();
    ok(ds_stream_destroy(s0));
    ok(ds_stream_destroy(s1));
}

static void test_a_push_switches_the_device_and_its_pop_restores_both(void **state) {
    (void)state;
    two_devices();
    ds_stream zero = made(0), one = made(1), other = made(1);
    ok(ds_stream_set_current(other, 0, NULL));
    ok(ds_stream_set_current(zero, 0, NULL));
    ok(ds_stream_push(one, 0));
    expect_current(1, one);
    assert_int_equal(current_of(0).id, zero.id);
    ok(ds_stream_push(default_of(0), 0));
    expect_current(0, default_of(0));
    assert_int_equal(current_of(1).id, one.id);
    ok(ds_stream_pop());
    expect_current(1, one);
    assert_int_equal(current_of(0).id, zero.id);
    ok(ds_stream_pop());
    expect_current(0, zero);
    assert_int_equal(current_of(1).id, other.id);
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(zero));
    ok(ds_stream_destroy(one));
    ok(ds_stream_destroy(other));
}

static void test_a_pop_restores_the_device_if_another_was_set_inside(void **state) {
    (void)state;
    two_devices();
    ds_stream zero = made(0);
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_stream_push(zero, 0));
    ok(ds_device_set_current(harness_device(1)));
    expect_current(1, default_of(1)); /* of the device that is current now */
    assert_int_equal(current_of(0).id, zero.id);
    ok(ds_stream_pop());
    expect_current(1, default_of(1));
    assert_int_equal(current_of(0).id, default_of(0).id);
    ok(ds_stream_destroy(zero));
}

static void test_a_zeroed_stream_pushes_a_frame_that_changes_nothing(void **state) {
    static const unsigned flags[] = { 0, DS_PUSH_STRICT, DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK };
    (void)state;
    ds_stream s = made(1);
    ok(ds_stream_set_current(s, 0, NULL));
    for (int i = 0; i < 3; i++) {
        ok(ds_stream_push(no_stream, flags[i]));
        expect_current(1, s);
        ok(ds_stream_pop());
        expect_current(1, s);
    }
    expect_no_frames();
    int entered = 0;
    DS_STREAM_SCOPE(no_stream) {
        expect_current(1, s);
        entered++;
    }
    assert_int_equal(entered, 1);
    expect_no_frames();
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_destroy(s));
}

static void test_pushing_the_current_stream_changes_nothing(void **state) {
    (void)state;
    ds_stream s = current_of(0);
    ok(ds_stream_push(s, 0));
    expect_current(0, s);
    ok(ds_stream_pop());
    expect_current(0, s);
}

static void test_a_push_that_fails_leaves_no_frame(void **state) {
    (void)state;
    ds_stream s = made(0), gone = made(0);
    ok(ds_stream_destroy(gone));
    refused(ds_stream_push(gone, 0), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_push(gone, DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_push(s, 0x80), DS_ERR_INVALID_VALUE);
    refused(ds_stream_push(no_stream, 0x80), DS_ERR_INVALID_VALUE);
    expect_no_frames();
    expect_current(0, default_of(0));
    ok(ds_stream_push(s, 0));
    refused(ds_stream_push(gone, 0), DS_ERR_INVALID_HANDLE);
    expect_current(0, s);
    ok(ds_stream_pop());
    expect_no_frames();
    ok(ds_stream_destroy(s));
}

static void test_frames_of_streams_and_devices_are_popped_in_their_order(void **state) {
    (void)state;
    two_devices();
    ds_stream s = made(0);
    ok(ds_stream_push(s, 0));
    ok(ds_device_push(harness_device(1)));
    refused(ds_stream_pop(), DS_ERR_ILLEGAL_STATE);
    expect_current(1, default_of(1)); /* the refusal has changed nothing */
    ok(ds_device_pop());
    expect_current(0, s);
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
    expect_current(0, s);
    ok(ds_stream_pop());
    expect_current(0, default_of(0));
    ok(ds_device_push(harness_device(1)));
    ok(ds_stream_push(s, 0));
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
    ok(ds_stream_pop());
    assert_true(same(current_device(), harness_device(1)));
    ok(ds_device_pop());
    expect_no_frames();
    ok(ds_stream_destroy(s));
}

/* ---- streams that go while they are current ---- */

static void test_a_destroyed_current_stream_refuses_work(void **state) {
    uint64_t *h = word(1);
    ds_event e;
    ds_stream previous;
    (void)state;
    ds_stream s = made(0);
    ok(ds_stream_set_current(s, 0, NULL));
    fold(s, h, 2);
    ok(ds_stream_destroy(s));
    assert_int_equal(current_of(0).id, s.id);
    refused(ds_stream_query(current_of(0)), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_record_event(current_of(0), 0, &e), DS_ERR_INVALID_HANDLE);
    for (int i = 0; i < 20; i++) { /* its place is not taken by another */
        ds_stream t = made(0);
        assert_int_equal(current_of(0).id, s.id);
        refused(ds_stream_query(current_of(0)), DS_ERR_INVALID_HANDLE);
        ok(ds_stream_destroy(t));
    }
    ok(ds_stream_set_current(default_of(0), 0, &previous)); /* one can go back to the default */
    assert_int_equal(previous.id, s.id);
    expect_current(0, default_of(0));
    ok(ds_device_synchronize(harness_device(0)));
    assert_int_equal(*h, fold_host(1, 2));
}

static void test_frames_unwind_over_destroyed_streams(void **state) {
    (void)state;
    ds_stream used = made(0), pushed = made(0);
    ok(ds_stream_set_current(used, 0, NULL));
    ok(ds_stream_push(pushed, 0));
    ok(ds_stream_destroy(pushed));
    ok(ds_stream_destroy(used));
    ok(ds_stream_pop());
    assert_int_equal(current_of(0).id, used.id); /* exactly the state at entry */
    refused(ds_stream_query(current_of(0)), DS_ERR_INVALID_HANDLE);
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    expect_no_frames();
}

/* ---- threads ---- */

typedef struct visitor {
    ds_stream use, first, first_default, seen;
    ds_device first_device;
    ds_result pop;
    uint64_t *h;
    _Atomic int turn;
} visitor;

static void take_turn(visitor *v, int turn) {
    while (v->turn < turn)
        harness_nap();
}

static void *visit(void *user) {
    visitor *v = user;
    ok_thread(ds_device_get_current(&v->first_device));
    ok_thread(ds_stream_get_current(harness_device(0), &v->first));
    ok_thread(ds_stream_get_default(harness_device(0), &v->first_default));
    v->pop = ds_stream_pop();
    ok_thread(ds_stream_set_current(v->use, 0, NULL));
    v->turn = 1;
    take_turn(v, 2);
    ok_thread(ds_stream_get_current(harness_device(0), &v->seen));
    if (v->h)
        fold(v->seen, v->h, 3);
    ok_thread(ds_stream_synchronize(v->seen));
    return NULL;
}

static void test_a_new_thread_has_the_default_stream_and_no_frames(void **state) {
    (void)state;
    ds_stream mine = made(0), theirs = made(0), pushed = made(1);
    visitor v = { .use = theirs };
    ok(ds_stream_set_current(mine, 0, NULL));
    ok(ds_stream_push(pushed, 0));
    pthread_t thread = spawn(visit, &v);
    take_turn(&v, 1);
    assert_int_equal(v.first.id, v.first_default.id); /* nothing is inherited */
    assert_int_equal(v.first_device.index, 0);
    assert_int_equal(v.pop, DS_ERR_ILLEGAL_STATE);
    expect_current(1, pushed); /* and nothing comes back */
    v.turn = 2;
    join(thread);
    assert_int_equal(v.seen.id, theirs.id);
    ok(ds_stream_pop());
    expect_current(0, mine);
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(mine));
    ok(ds_stream_destroy(theirs));
    ok(ds_stream_destroy(pushed));
}

static void test_a_stream_may_be_current_in_two_threads_and_be_dropped(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ok(ds_stream_ref(s)); /* one ownership for each thread */
    ok(ds_stream_set_current(s, 0, NULL));
    visitor v = { .use = s, .h = h };
    pthread_t thread = spawn(visit, &v);
    take_turn(&v, 1);
    fold(s, h, 2);
    ok(ds_stream_destroy(s)); /* the other thread's ownership remains */
    assert_true(ds_stream_query(current_of(0)) >= 0);
    v.turn = 2;
    join(thread);
    assert_int_equal(v.seen.id, s.id);
    assert_int_equal(*h, fold_host(fold_host(1, 2), 3));
    fold(current_of(0), h, 4); /* although the other thread has ended */
    ok(ds_stream_synchronize(s));
    assert_int_equal(*h, fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(s));
}

static void *switch_often(void *user) {
    ds_stream mine = *(ds_stream *)user, first, now;
    ok_thread(ds_stream_get_current(harness_device(0), &first));
    for (int i = 0; i < 500; i++) {
        ok_thread(ds_stream_push(mine, 0));
        ok_thread(ds_stream_get_current(nothing, &now));
        if (now.id != mine.id)
            return "another thread's stream is current";
        ok_thread(ds_stream_pop());
        ok_thread(ds_stream_get_current(harness_device(0), &now));
        if (now.id != first.id)
            return "another stream came back";
    }
    return NULL;
}

static void test_many_threads_push_and_pop_without_seeing_each_other(void **state) {
    enum { MANY = 8 };

    ds_stream s[MANY];
    pthread_t thread[MANY];
    void *complaint[MANY];
    (void)state;
    for (int i = 0; i < MANY; i++)
        s[i] = made(i);
    for (int i = 0; i < MANY; i++)
        thread[i] = spawn(switch_often, &s[i]);
    for (int i = 0; i < MANY; i++)
        pthread_join(thread[i], &complaint[i]);
    for (int i = 0; i < MANY; i++) {
        if (complaint[i])
            fail_msg("%s", (char *)complaint[i]);
        ok(ds_stream_destroy(s[i]));
    }
}

/* ---- scopes ---- */

static int leave_by_return(ds_stream s) {
    DS_STREAM_SCOPE(s) {
        if (current_of(0).id == s.id)
            return 1;
    }
    return 0;
}

static void test_a_stream_scope_is_left_however_the_block_is(void **state) {
    int entered = 0;
    (void)state;
    ds_stream s = made(0), t = made(0), first = default_of(0);
    DS_STREAM_SCOPE(s) {
        expect_current(0, s);
        entered++;
        DS_STREAM_SCOPE(t) {
            expect_current(0, t);
            entered++;
        }
        expect_current(0, s);
        ok(ds_stream_set_current(t, 0, NULL));
    }
    expect_current(0, first);
    assert_int_equal(entered, 2);
    DS_STREAM_SCOPE(s) {
        if (entered)
            break;
        fail();
    }
    expect_current(0, first);
    DS_STREAM_SCOPE(s) {
        if (entered)
            continue;
        fail();
    }
    expect_current(0, first);
    DS_STREAM_SCOPE(s) {
        DS_STREAM_SCOPE(t) {
            if (entered)
                goto out;
            fail();
        }
        fail();
    }
out:
    expect_current(0, first);
    assert_int_equal(leave_by_return(s), 1);
    expect_current(0, first);
    expect_no_frames();
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_scope_of_an_invalid_stream_is_not_entered(void **state) {
    (void)state;
    ds_stream gone = made(0);
    ok(ds_stream_destroy(gone));
    refused(ds_device_get_current(NULL), DS_ERR_INVALID_VALUE);
    DS_STREAM_SCOPE(gone)
        fail();
    assert_non_null(strstr(ds_error_get_last(), "test_current.c"));
    assert_null(strstr(ds_error_get_last(), "ds_device_get_current"));
    expect_no_frames();
    expect_current(0, default_of(0));
}

static void test_scopes_of_streams_and_devices_nest(void **state) {
    (void)state;
    two_devices();
    ds_stream zero = made(0), one = made(1);
    DS_STREAM_SCOPE(one) {
        DS_DEVICE_SCOPE(harness_device(0)) {
            expect_current(0, default_of(0));
            DS_STREAM_SCOPE(zero)
                expect_current(0, zero);
            expect_current(0, default_of(0));
            assert_int_equal(current_of(1).id, one.id);
        }
        expect_current(1, one);
        ok(ds_device_set_current(harness_device(0)));
    }
    expect_current(0, default_of(0));
    assert_int_equal(current_of(1).id, default_of(1).id);
    ok(ds_stream_destroy(zero));
    ok(ds_stream_destroy(one));
}

static void test_work_in_a_scope_gives_what_it_gives_outside(void **state) {
    uint64_t *inside = word(1), *outside = word(1);
    ds_event e;
    (void)state;
    ds_stream s = made(0);
    DS_STREAM_SCOPE(s) {
        for (uint64_t i = 0; i < 100; i++)
            fold(current_of(0), inside, i);
        ok(ds_stream_record_event(current_of(0), 0, &e));
    }
    for (uint64_t i = 0; i < 100; i++)
        fold(current_of(0), outside, i);
    ok(ds_event_synchronize(e));
    ok(ds_stream_query(s));
    ok(ds_stream_synchronize(current_of(0)));
    assert_int_equal(*inside, *outside);
    uint64_t want = 1;
    for (uint64_t i = 0; i < 100; i++)
        want = fold_host(want, i);
    assert_int_equal(*inside, want);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_a_record_after_the_scope_still_orders_another_stream(void **state) {
    gate g = { 0 };
    uint64_t *h = word(1);
    ds_event e;
    (void)state;
    ds_stream s1 = made(0), s2 = made(0);
    DS_STREAM_SCOPE(s1) {
        gate_close(current_of(0), &g);
        fold(current_of(0), h, 2);
    }
    expect_current(0, default_of(0));
    ok(ds_stream_record_event(s1, 0, &e));
    ok(ds_stream_wait_event(s2, e));
    DS_STREAM_SCOPE(s2)
        fold(current_of(0), h, 3);
    expect_pending(s2);
    gate_open(&g);
    ok(ds_stream_synchronize(s2));
    assert_int_equal(*h, fold_host(fold_host(1, 2), 3));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s1));
    ok(ds_stream_destroy(s2));
}

/* ---- ordering across a frame ---- */

static void test_a_push_orders_nothing_unless_asked(void **state) {
    gate g = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream outer = made(0), inner = made(0);
    ok(ds_stream_set_current(outer, 0, NULL));
    gate_close(outer, &g);
    DS_STREAM_SCOPE(inner) {
        fold(inner, h, 2);
        ok(ds_stream_synchronize(inner)); /* a hang here is the failure */
        assert_int_equal(*h, fold_host(1, 2));
    }
    gate_open(&g);
    ok(ds_stream_synchronize(outer));
    g = (gate){ 0 };
    DS_STREAM_SCOPE(inner)
        gate_close(inner, &g);
    ok(ds_stream_query(outer));
    ok(ds_stream_synchronize(outer));
    gate_open(&g);
    ok(ds_stream_synchronize(inner));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(outer));
    ok(ds_stream_destroy(inner));
}

static void test_wait_prev_orders_the_pushed_after_the_previous_stream(void **state) {
    gate g = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream outer = made(0), inner = made(0);
    ok(ds_stream_set_current(outer, 0, NULL));
    gate_close(outer, &g);
    fold(outer, h, 2);
    DS_STREAM_SCOPE_FLAGS(inner, DS_PUSH_WAIT_PREV) {
        expect_pending(inner);
        fold(inner, h, 3);
    }
    ok(ds_stream_wait_stream(outer, inner));
    expect_pending(inner);
    gate_open(&g);
    ok(ds_stream_synchronize(inner));
    assert_int_equal(*h, fold_host(fold_host(1, 2), 3));
    g = (gate){ 0 };
    ok(ds_stream_push(inner, DS_PUSH_WAIT_PREV));
    gate_close(inner, &g);
    ok(ds_stream_pop());
    ok(ds_stream_synchronize(outer)); /* there is no wait back */
    gate_open(&g);
    ok(ds_stream_synchronize(inner));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(outer));
    ok(ds_stream_destroy(inner));
}

static void test_wait_back_orders_the_restored_after_the_pushed_stream(void **state) {
    gate g = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream outer = made(0), inner = made(0);
    ok(ds_stream_set_current(outer, 0, NULL));
    ok(ds_stream_push(inner, DS_POP_WAIT_BACK));
    ok(ds_stream_query(inner));
    gate_close(inner, &g);
    fold(inner, h, 2);
    ok(ds_stream_query(outer));
    ok(ds_stream_pop());
    expect_pending(outer);
    fold(outer, h, 3);
    gate_open(&g);
    ok(ds_stream_synchronize(outer));
    assert_int_equal(*h, fold_host(fold_host(1, 2), 3));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(outer));
    ok(ds_stream_destroy(inner));
}

static void test_waits_across_a_frame_use_the_pushed_devices_streams(void **state) {
    gate elsewhere = { 0 }, before = { 0 }, inside = { 0 };
    (void)state;
    two_devices();
    ds_stream zero = made(0), outer = made(1), inner = made(1);
    ok(ds_stream_set_current(outer, 0, NULL));
    ok(ds_stream_set_current(zero, 0, NULL));
    gate_close(zero, &elsewhere);
    gate_close(outer, &before);
    ok(ds_stream_push(inner, DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK));
    expect_pending(inner); /* waits for outer, not for zero */
    gate_open(&before);
    ok(ds_stream_synchronize(inner));
    gate_close(inner, &inside);
    gate_open(&elsewhere);
    ok(ds_stream_synchronize(zero));
    ok(ds_stream_pop());
    expect_current(0, zero);
    assert_int_equal(current_of(1).id, outer.id);
    expect_pending(outer);
    ok(ds_stream_query(zero));
    gate_open(&inside);
    ok(ds_stream_synchronize(outer));
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(zero));
    ok(ds_stream_destroy(outer));
    ok(ds_stream_destroy(inner));
}

static void test_a_chain_of_scopes_that_wait_keeps_one_order(void **state) {
    enum { ROUNDS = 200 };

    uint64_t *h = word(1), want = 1, n = 0;
    (void)state;
    ds_stream outer = made(0), inner = made(0);
    ok(ds_stream_set_current(outer, 0, NULL));
    for (int i = 0; i < ROUNDS; i++) {
        fold(current_of(0), h, n++);
        DS_STREAM_SCOPE_FLAGS(inner, DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK)
            fold(current_of(0), h, n++);
    }
    for (uint64_t i = 0; i < n; i++)
        want = fold_host(want, i);
    ok(ds_stream_synchronize(outer));
    assert_int_equal(*h, want);
    ok(ds_stream_set_current(default_of(0), 0, NULL));
    ok(ds_stream_destroy(outer));
    ok(ds_stream_destroy(inner));
}

static void *take_over(void *stream) {
    ds_stream s = *(ds_stream *)stream, now;
    ds_device device, of_stream;
    ok_thread(ds_stream_set_current(s, 0, NULL));
    ok_thread(ds_device_get_current(&device));
    ok_thread(ds_stream_get_device(s, &of_stream));
    ok_thread(ds_stream_get_current((ds_device){ 0, 0 }, &now));
    return device.index == of_stream.index && ds_stream_equal(now, s) ? stream : NULL;
}

/* Inheriting is by handing the handle over; that one call sets the device too. */
static void test_a_thread_that_wants_to_takes_over_another_ones_stream(void **state) {
    pthread_t thread;
    void *taken = NULL;
    (void)state;
    ds_stream s = made(1);
    ok(ds_stream_set_current(s, 0, NULL));
    assert_int_equal(pthread_create(&thread, NULL, take_over, &s), 0);
    pthread_join(thread, &taken);
    assert_non_null(taken);
    ok(ds_stream_set_current(default_of(1), 0, NULL));
    ok(ds_stream_destroy(s));
}

/* Lines that have no meaning in C: peers 17, 44 (part): what is not a stream does not compile; a
   zeroed one is here. */

/* Nothing has asked for the thread's current stream before. */
static void *push_first(void *user) {
    const ds_stream *s = user;
    ok_thread(ds_stream_push(*s, DS_POP_WAIT_BACK));
    ok_thread(ds_stream_pop());
    return NULL;
}

static void test_a_pop_waits_with_a_stream_that_was_never_asked_for(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    join(spawn(push_first, &s));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_current[] = {
    DS_TEST(test_at_first_the_default_stream_of_each_device_is_current, "peers 49, torch 16 17"),
    DS_TEST(test_all_ways_to_name_the_device_give_the_same_stream, "peers 29 37, torch 16"),
    DS_TEST(test_current_of_what_is_no_device_with_streams_is_refused, "peers 29, torch 16 25"),
    DS_TEST(test_use_replaces_the_current_stream_and_returns_it, "peers 7 28 43 46 49, torch 16"),
    DS_TEST(test_use_sets_the_streams_device_and_no_other, "peers 8 27, torch 16"),
    DS_TEST(test_use_refuses_what_is_no_stream_and_changes_nothing, "peers 44"),
    DS_TEST(test_strict_refuses_a_stream_of_another_device, "peers 9"),
    DS_TEST(test_pop_restores_the_stream_at_entry, "peers 6 32, torch 15 20"),
    DS_TEST(test_a_stream_that_was_used_before_is_restored, "peers 6"),
    DS_TEST(test_use_inside_a_frame_lasts_until_its_pop, "peers 10"),
    DS_TEST(test_the_same_stream_may_be_entered_many_times, "peers 33"),
    DS_TEST(test_a_push_switches_the_device_and_its_pop_restores_both, "peers 34, torch 19 31"),
    DS_TEST(test_a_pop_restores_the_device_if_another_was_set_inside, "peers 8, torch 11 19"),
    DS_TEST(test_a_zeroed_stream_pushes_a_frame_that_changes_nothing, "peers 31 54"),
    DS_TEST(test_pushing_the_current_stream_changes_nothing, "peers 43"),
    DS_TEST(test_a_push_that_fails_leaves_no_frame, "peers 44"),
    DS_TEST(test_frames_of_streams_and_devices_are_popped_in_their_order, "current"),
    DS_TEST(test_a_destroyed_current_stream_refuses_work, "peers 3"),
    DS_TEST(test_frames_unwind_over_destroyed_streams, "peers 3"),
    DS_TEST(test_a_new_thread_has_the_default_stream_and_no_frames, "peers D3, torch 30"),
    DS_TEST(test_a_thread_that_wants_to_takes_over_another_ones_stream, "peers D3 C4"),
    DS_TEST(test_a_stream_may_be_current_in_two_threads_and_be_dropped, "peers 11"),
    DS_TEST(test_many_threads_push_and_pop_without_seeing_each_other, "torch 30"),
    DS_TEST(test_a_stream_scope_is_left_however_the_block_is, "peers 6 32 33 53, torch 20"),
    DS_TEST(test_a_scope_of_an_invalid_stream_is_not_entered, "peers 44"),
    DS_TEST(test_scopes_of_streams_and_devices_nest, "peers 34, torch 19 31"),
    DS_TEST(test_work_in_a_scope_gives_what_it_gives_outside, "peers 28 42 48"),
    DS_TEST(test_a_record_after_the_scope_still_orders_another_stream, "peers 53"),
    DS_TEST(test_a_push_orders_nothing_unless_asked, "peers a.7"),
    DS_TEST(test_wait_prev_orders_the_pushed_after_the_previous_stream, "peers a.7"),
    DS_TEST(test_wait_back_orders_the_restored_after_the_pushed_stream, "peers a.7"),
    DS_TEST(test_waits_across_a_frame_use_the_pushed_devices_streams, "peers a.7"),
    DS_TEST(test_a_chain_of_scopes_that_wait_keeps_one_order, "peers a.7"),
    DS_TEST(test_a_pop_waits_with_a_stream_that_was_never_asked_for, "peers a.7"),
};
const size_t tests_current_count = sizeof tests_current / sizeof *tests_current;
