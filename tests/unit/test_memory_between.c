/* What another thread may do while the allocator, in the middle of a step, has no lock: it is
   made to happen at just that point. The guest comes when a certain mutex is about to be taken
   or was just released, or when a stream's driver is about to get an operation of some kind. */
#include <pthread.h>

static int lock_after_guest(pthread_mutex_t *m);
static int unlock_before_guest(pthread_mutex_t *m);
#define pthread_mutex_lock(m) lock_after_guest(m)
#define pthread_mutex_unlock(m) unlock_before_guest(m)
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "alloc/fallback.h"
#include "alloc/free.h"
#include "unit.h"
#undef pthread_mutex_lock
#undef pthread_mutex_unlock

#define MIB ((size_t)1 << 20)

static pthread_mutex_t *door;
static int doors_before; /* so many times it is taken before the guest comes */
static void (*guest)(void);

static int lock_after_guest(pthread_mutex_t *m) {
    if (m == door && doors_before-- == 0) {
        door = NULL;
        guest();
    }
    return pthread_mutex_lock(m);
}

static pthread_mutex_t *exit_door;
static int exits_before; /* so many times it is released before the guest comes */

static int unlock_before_guest(pthread_mutex_t *m) {
    int r = pthread_mutex_unlock(m);
    if (m == exit_door && exits_before-- == 0) {
        exit_door = NULL;
        guest();
    }
    return r;
}

static void guest_at_exit(void (*fn)(void), pthread_mutex_t *m) {
    guest = fn;
    exits_before = 0;
    exit_door = m;
}

static void guest_at_door(void (*fn)(void), pthread_mutex_t *m, int before) {
    guest = fn;
    doors_before = before;
    door = m;
}

/* The same between a check and the driver: a layer over it, for all streams of the device that
   go through this one. */
static ds__driver layer;
static const ds__driver *below;
static int guest_kind = -1;

static ds_result submit_after_guest(void *stream, const ds__op *op) {
    if (op->kind == guest_kind) {
        guest_kind = -1;
        guest();
    }
    return below->submit(stream, op);
}

enum { AT_WAIT = 1000 }; /* the host waits for a stream */

static ds_result wait_after_guest(void *stream, uint64_t timeout_ns) {
    if (guest_kind == AT_WAIT) {
        guest_kind = -1;
        guest();
    }
    return below->stream_synchronize(stream, timeout_ns);
}

static void guest_at_submit(void (*fn)(void), ds_stream stream, int kind) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    below = s->driver;
    layer = *below;
    layer.submit = submit_after_guest;
    layer.stream_synchronize = wait_after_guest;
    s->driver = ds__g.driver[1] = &layer;
    guest = fn;
    guest_kind = kind;
    ds__stream_unpin(s);
}

static void no_guest_at_submit(ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    s->driver = ds__g.driver[1] = below;
    ds__stream_unpin(s);
    assert_int_equal(guest_kind, -1); /* it was there */
}

static const ds_device device = { DS_DEVICE_CPU, 0 };
static ds_stream own, other;
static ds_pool pool;
static ds_graph graph;
static _Atomic int over;

static void wait_until_over(void *user) {
    (void)user;
    while (!over)
        ds__processor_pause();
}

static void begin(void) {
    const ds_cpu_desc cpu = { .devices = 2 };
    over = 0;
    graph.id = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &own));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
}

static void configure(ds_mem_config c) {
    ok(ds_mem_configure(device, &c));
}

static void end(void) {
    over = 1;
    ok(ds_shutdown());
    door = NULL;
}

static void *block(size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc(size, s, &p));
    return p;
}

static void *pool_block(size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = size, .stream = s, .pool = pool }, &p));
    return p;
}

static ds__mem_dev *memory(void) {
    return ds__mem_device_at(ds__backend_of(device), device.index);
}

static void share_room(void) { /* as soon as two threads allocate */
    ds__mem_lock_all(memory());
    ds__share_room(memory());
    ds__mem_unlock_all(memory());
}

static size_t done_in_all_arenas(void) {
    size_t done = 0;
    for (ds__arena *a = memory()->main.arenas; a; a = a->next)
        done += ds__pending_poll(a, 0);
    return done;
}

/* ---- pending blocks ---- */

static ds__arena *arena;
static size_t polled;

/* The block's use ends, and somebody asks for what is done. */
static void guest_polls(void) {
    over = 1;
    DS_IGNORE(ds_stream_synchronize(other));
    polled = ds__pending_poll(arena, 0);
}

/* Peaks are divided among arenas: when an arena's share is used up a request gives its lock up
   to get more, with the pending block chosen. Nobody else may have that block meanwhile. */
static void test_a_pending_block_that_is_chosen_is_nobody_elses(void **state) {
    (void)state;
    const size_t size = 4 * MIB;
    begin();
    void *before = block(size, own), *p = block(size, own), *behind = block(size, own);
    ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
    ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
    ok(ds_mem_free(before));
    ok(ds_mem_free(behind));
    arena = memory()->main.arenas;
    assert_non_null(arena->pending);
    int kind = arena->pending->seg->kind;
    share_room();
    arena->own_room[kind].of[DS__ALLOCATION] = 0;
    guest_at_door(guest_polls, &memory()->lock, 0);
    ds__pending_wanted wanted = {
        .kind = kind, .size = size, .most = SIZE_MAX, .stream = own, .asked = size
    };
    assert_int_equal(ds__take_pending(arena, &wanted), 1);
    assert_null(door);
    assert_int_equal(polled, 0);
    ok(ds_mem_validate(device));
    assert_int_equal(ds_mem_get_allocated(device), 0);
    ok(ds_mem_empty_cache(device, NULL));
    assert_int_equal(ds_mem_get_reserved(device), 0);
    end();
}

/* What goes to another stream as it is counts as allocated again, also when that is far more
   than the arena has room for. */
static void test_a_peak_has_a_pending_block_that_another_stream_takes(void **state) {
    (void)state;
    const size_t size = 256 * MIB;
    ds_mem_config c = ds_mem_config_default();
    ds_stream third;
    ds_mem_stats st = { 0 };
    begin();
    c.reuse = DS_REUSE_ALWAYS;
    configure(c);
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &third));
    void *p = block(size, own);
    ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
    ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
    ok(ds_mem_reset_peak_stats(device));
    share_room();
    assert_ptr_equal(block(size, third), p);
    ok(ds_mem_get_stats(device, &st));
    assert_int_equal(st.allocated_bytes[DS_STAT_ALL].current, size);
    assert_true(st.allocated_bytes[DS_STAT_ALL].peak >= st.allocated_bytes[DS_STAT_ALL].current);
    end();
}

static ds_result sound;

static void guest_validates(void) {
    sound = ds_mem_validate(device);
}

static void guest_waits_for_the_next_fill(void) {
    guest = guest_validates;
    guest_kind = DS__OP_FILL;
}

/* Two blocks of an ended stream wait for their poison. While a poll writes that of the second
   one, the first one has neither a use nor poison to come, and is still in the list. */
static void test_a_pending_block_in_work_is_sound(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    begin();
    c.poison = 1;
    configure(c);
    void *p = block(2 * MIB, own), *q = block(2 * MIB, own);
    ok(ds_stream_launch_host_func(own, wait_until_over, NULL, NULL));
    ok(ds_stream_destroy(own));
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ds__stream *giver = ds__direct_giver(memory());
    ds_stream handle = { ds__handle_of(&giver->slot) };
    ds__stream_unpin(giver);
    over = 1;
    ok(ds_device_synchronize(device));

    sound = DS_ERR_FAILED;
    guest_at_submit(guest_waits_for_the_next_fill, handle, DS__OP_FILL);
    ok(ds_mem_empty_cache(device, NULL));

    no_guest_at_submit(handle);
    ok(sound);
    end();
}

/* ---- holes ---- */

static void *in_front, *behind_all;

static void guest_frees_in_front(void) {
    ok(ds_mem_free(in_front));
    ok(ds_mem_free(behind_all)); /* else the other one would stay parked */
}

/* The block is freed while a trim waits for the stream, before it unmaps the page behind. */
static void test_a_block_in_front_of_a_new_hole_changes_its_bin(void **state) {
    (void)state;
    begin();
    behind_all = block(2 * MIB, own);
    void *p = block(2 * MIB, own);
    in_front = block(4 * MIB, own);
    void *page = block(8 * MIB, own);
    assert_ptr_equal(page, (char *)behind_all + 8 * MIB);
    ok(ds_mem_free(page));

    arena = memory()->main.arenas;
    guest_at_door(guest_frees_in_front, &arena->grow, 1);
    ok(ds_mem_empty_cache(device, NULL));

    assert_null(door);
    assert_int_equal(ds_mem_get_reserved(device), 8 * MIB);
    ok(ds_mem_validate(device));
    ok(ds_mem_free(p));
    end();
}

static void *no_memory(size_t size, void *user) {
    (void)size;
    (void)user;
    return NULL;
}

/* Neither pages nor descriptions are lost, and an empty of the cache ends. */
static void test_a_page_stays_if_there_is_no_memory_to_describe_the_hole(void **state) {
    (void)state;
    size_t released = 1;
    begin();
    void *low = block(2 * MIB, own);
    ok(ds_mem_free(block(16 * MIB, own)));
    ok(ds_mem_empty_cache(device, NULL)); /* leaves an event for the next wait */
    void *page = block(16 * MIB, own);
    void *high = block(2 * MIB, own);
    ok(ds_mem_free(page));
    arena = memory()->main.arenas;
    ds__mem_block *spares = arena->spare_blocks;

    arena->spare_blocks = NULL;
    ds__allocator.alloc_fn = no_memory;
    ok(ds_mem_empty_cache(device, &released));

    assert_int_equal(released, 0);
    ok(ds_mem_validate(device));
    ds__allocator.alloc_fn = NULL;
    arena->spare_blocks = spares;
    ok(ds_mem_empty_cache(device, &released));
    assert_int_equal(released, 8 * MIB);
    ok(ds_mem_validate(device));
    ok(ds_mem_free(low));
    ok(ds_mem_free(high));
    end();
}

/* ---- uses of streams that end or are given away ---- */

/* Nobody can record an event on it any more, and its new owner may go on using the block: it is
   not done before the device is. */
static void test_a_use_of_a_stream_that_was_given_away_is_not_done(void **state) {
    (void)state;
    for (int lent = 0; lent < 2; lent++) {
        ds_mem_config c = ds_mem_config_default();
        ds_stream_native native;
        begin();
        c.reuse = DS_REUSE_ALWAYS;
        configure(c);
        void *p = block(4 * MIB, own);
        if (lent) {
            ok(ds_mem_free(p));
            assert_ptr_equal(block(4 * MIB, other), p);
        } else {
            ok(ds_mem_record_stream(p, other));
        }
        ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
        ok(ds_stream_unwrap(other, &native));
        ok(ds_mem_free(p));
        assert_int_equal(done_in_all_arenas(), 0);
        over = 1;
        ok(ds_mem_empty_cache(device, NULL)); /* that waits for the device */
        assert_int_equal(ds_mem_get_reserved(device), 0);
        ok(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &other));
        end();
    }
}

static void test_a_stream_of_another_device_ends_with_a_use_behind_it(void **state) {
    (void)state;
    begin();
    ds_stream elsewhere; /* of a device whose memory nobody uses */
    ok(ds_stream_create(&(ds_stream_desc){ .device = { DS_DEVICE_CPU, 1 } }, &elsewhere));
    void *p = block(4 * MIB, own);
    ok(ds_mem_record_stream(p, elsewhere));
    ok(ds_stream_launch_host_func(elsewhere, wait_until_over, NULL, NULL));
    ok(ds_stream_destroy(elsewhere));
    ok(ds_mem_free(p));
    assert_int_equal(done_in_all_arenas(), 0);
    over = 1;
    ok(ds_device_synchronize((ds_device){ DS_DEVICE_CPU, 1 }));
    assert_int_equal(done_in_all_arenas(), 1); /* its event was recorded at its end */
    end();
}

static void *shared;

static void guest_records_late(void) {
    ok(ds_mem_record_stream(shared, other));
}

/* One thread's use is over with the call, the other's with the free. */
static void test_an_early_use_leaves_a_late_one_of_the_same_stream(void **state) {
    (void)state;
    begin();
    shared = block(4 * MIB, own);
    ok(ds_mem_record_use(shared, other));
    guest_at_submit(guest_records_late, other, DS__OP_RECORD);
    ok(ds_mem_record_use(shared, other));
    no_guest_at_submit(other);
    ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
    ok(ds_mem_free(shared));
    assert_int_equal(done_in_all_arenas(), 0);
    over = 1;
    ok(ds_stream_synchronize(other));
    assert_int_equal(done_in_all_arenas(), 1);
    end();
}

/* ---- captures that begin ---- */

static ds_stream captured;

/* A capture begins, unless it has to wait: then it begins after the step, and not here. */
static void guest_captures(void) {
    if (ds__g.begin.readers)
        return;
    ok(ds_capture_begin(captured, DS_CAPTURE_RELAXED));
}

static void none_has_begun(void) {
    ds_capture_info info;
    ok(ds_capture_get_info(captured, &info));
    assert_int_equal(info.status, DS_CAPTURE_NONE);
}

static void test_the_event_of_a_use_comes_into_no_capture(void **state) {
    (void)state;
    begin();
    void *p = block(4 * MIB, own);
    captured = other;
    ok(ds_mem_record_stream(p, other));
    ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
    guest_at_submit(guest_captures, other, DS__OP_RECORD);
    ok(ds_mem_free(p));
    no_guest_at_submit(other);
    none_has_begun();
    assert_int_equal(done_in_all_arenas(), 0);
    over = 1;
    ok(ds_stream_synchronize(other));
    assert_int_equal(done_in_all_arenas(), 1);
    end();
}

static void test_who_borrows_is_not_drawn_into_a_capture(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    ds_capture_info info;
    begin();
    c.reuse = DS_REUSE_ALWAYS;
    configure(c);
    ok(ds_mem_free(block(4 * MIB, own)));
    captured = own;
    guest_at_submit(guest_captures, own, DS__OP_RECORD);
    (void)block(4 * MIB, other);
    no_guest_at_submit(own);
    ok(ds_capture_get_info(other, &info));
    assert_int_equal(info.status, DS_CAPTURE_NONE);
    none_has_begun();
    end();
}

static void test_poison_comes_into_no_capture(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    begin();
    c.poison = 1;
    configure(c);
    void *p = block(4 * MIB, own);
    captured = own;
    guest_at_submit(guest_captures, own, DS__OP_FILL);
    ok(ds_mem_free(p));
    no_guest_at_submit(own);
    none_has_begun();
    end();
}

static void test_a_guard_comes_into_no_capture(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    begin();
    c.guard_bytes = 512;
    configure(c);
    captured = own;
    guest_at_submit(guest_captures, own, DS__OP_FILL);
    void *p = block(4000, own);
    no_guest_at_submit(own);
    none_has_begun();
    ok(ds_mem_free(p));
    end();
}

/* A guard is read where nobody captures. */
static void test_the_look_at_a_guard_spoils_no_capture(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    size_t nodes = 1;
    begin();
    c.guard_bytes = 512;
    configure(c);
    void *p = block(4000, own);
    captured = own;
    guest_at_submit(guest_captures, own, AT_WAIT);
    ok(ds_mem_free(p));
    no_guest_at_submit(own);
    ok(ds_capture_end(own, &graph));
    ok(ds_graph_get_nodes(graph, NULL, 0, &nodes));
    assert_int_equal(nodes, 0);
    end();
}

static void test_the_event_of_a_shared_block_comes_into_no_capture(void **state) {
    (void)state;
    ds_ipc_mem_handle handle;
    begin();
    ok(ds_pool_create(&(ds_pool_desc){ .device = device, .shareable = 1 }, &pool));
    void *p = pool_block(4 * MIB, own);
    ok(ds_mem_export(p, &handle));
    ok(ds_stream_launch_host_func(own, wait_until_over, NULL, NULL));
    captured = own;
    guest_at_submit(guest_captures, own, DS__OP_RECORD);
    ok(ds_mem_export(p, &handle));
    no_guest_at_submit(own);
    none_has_begun();
    end();
}

/* ---- new pools ---- */

static ds__mem_pool newest;

static void guest_sees_the_newest_pool(void) {
    ds__mem_lock_all(memory());
    newest = *memory()->main.next;
    ds__mem_unlock_all(memory());
}

static void test_others_see_a_pool_complete(void **state) {
    (void)state;
    ds_capture_info info;
    begin();
    (void)block(512,
                own); /* else the device's memory is made with the lock that the guest waits for */
    for (int again = 0; again < 2; again++) { /* a new object, then one that is used again */
        guest_at_exit(guest_sees_the_newest_pool, &ds__memory_state.lock);
        ok(ds_pool_create(
            &(ds_pool_desc){
                .device = device, .shareable = 1, .no_split = 1, .use_on_oom = 1, .limit = MIB },
            &pool));
        assert_null(exit_door);
        assert_int_equal(newest.id, pool.id);
        assert_int_equal(newest.name[1], pool.id >> 32);
        assert_true(newest.shareable && newest.no_split && newest.use_on_oom);
        assert_int_equal(newest.limit, MIB);
        ok(ds_pool_destroy(pool));

        ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
        ok(ds_capture_get_info(other, &info));
        guest_at_exit(guest_sees_the_newest_pool, &ds__memory_state.lock);
        ok(ds_mem_free(block(512, other)));
        assert_null(exit_door);
        assert_int_equal(newest.name[0], info.id);
        assert_int_equal(newest.name[1], 0);
        ok(ds_capture_end(other, &graph));
        ok(ds_graph_destroy(graph));
        ok(ds_mem_empty_cache(device, NULL));
    }
    end();
}

/* ---- pools that become a graph's ---- */

static ds_graph_exec exec;
static char *of_graph;

/* A graph with a block of the pool, which its launches write to. */
static void guest_captures_in_the_pool(void) {
    ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
    ok(ds_capture_set_pool(other, pool));
    of_graph = block(4 * MIB, other);
    ok(ds_fill(of_graph, 7, 4, MIB, other));
    ok(ds_mem_free(of_graph));
    ok(ds_capture_end(other, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
}

static void graph_has_its_memory(void) {
    uint32_t read = 0;
    ok(ds_graph_launch(exec, other));
    ok(ds_copy(&read, of_graph, sizeof read, other));
    ok(ds_stream_synchronize(other));
    assert_int_equal(read, 7);
}

static void test_a_pool_that_is_emptied_becomes_a_graphs(void **state) {
    (void)state;
    size_t released = 1;
    begin();
    ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
    ok(ds_mem_free(pool_block(4 * MIB, other)));
    guest_at_door(guest_captures_in_the_pool, &ds__mem_pool_of(pool)->arenas->grow, 0);
    ok(ds_pool_empty_cache(pool, &released));
    assert_null(door);
    assert_int_equal(released, 0);
    graph_has_its_memory();
    end();
}

static void test_a_pool_whose_garbage_is_collected_becomes_a_graphs(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_torch();
    begin();
    c.garbage_collection_threshold = 0.1;
    c.limit = 64 * MIB;
    configure(c);
    ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
    ok(ds_mem_free(pool_block(20 * MIB, other)));
    guest_at_door(guest_captures_in_the_pool, &ds__mem_pool_of(pool)->arenas->grow, 0);
    char *more = pool_block(24 * MIB, other);
    assert_null(door);
    assert_true(of_graph + 4 * MIB <= more || of_graph >= more + 24 * MIB);
    graph_has_its_memory();
    end();
}

static void test_a_pool_that_helps_out_becomes_a_graphs(void **state) {
    (void)state;
    /* at one of these it has been found to be nobody's, and its arena is not locked yet */
    for (int before = 0; before < 12; before++) {
        ds_mem_config c = ds_mem_config_default();
        void *p = NULL;
        begin();
        c.limit = 40 * MIB;
        configure(c);
        ok(ds_pool_create(&(ds_pool_desc){ .device = device, .use_on_oom = 1 }, &pool));
        ok(ds_mem_free(pool_block(18 * MIB, other)));
        ok(ds_mem_free(block(100, own)));
        of_graph = NULL;
        guest_at_door(guest_captures_in_the_pool, &memory()->lock, before);
        ds_result r = ds_mem_alloc(16 * MIB, own, &p);
        char *q = p;
        if (!door && r == DS_OK && (q < of_graph + 4 * MIB && of_graph < q + 16 * MIB))
            fail_msg("at %d: the graph's block was given out", before);
        if (!door)
            graph_has_its_memory();
        end();
    }
}

/* ---- process groups ---- */

/* A block of an ended stream that `other`, which waits, still uses. */
static void leave_a_block_in_use(void) {
    ds_stream ended;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &ended));
    void *p = block(20 * MIB, ended);
    ok(ds_stream_launch_host_func(other, wait_until_over, NULL, NULL));
    ok(ds_mem_record_stream(p, other));
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(ended));
}

/* `other` may wait for another rank, which may wait for `own`. */
static void test_no_stream_waits_for_others_beside_a_group(void **state) {
    (void)state;
    for (int groups = 0; groups < 2; groups++) {
        begin();
        leave_a_block_in_use();
        atomic_store(&ds__drive.groups, groups);

        (void)block(20 * MIB, own);

        atomic_store(&ds__drive.groups, 0);
        assert_int_equal(ds_stream_synchronize_for(own, 20000000), groups ? DS_OK : DS_NOT_READY);
        end();
    }
}

/* Nor for the work of an ended stream. */
static void test_no_stream_waits_for_ended_ones_beside_a_group(void **state) {
    (void)state;
    for (int groups = 0; groups < 2; groups++) {
        ds_stream ended;
        begin();
        ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &ended));
        ok(ds_mem_free(block(20 * MIB, ended)));
        ok(ds_stream_launch_host_func(ended, wait_until_over, NULL, NULL));
        ok(ds_stream_destroy(ended));
        atomic_store(&ds__drive.groups, groups);

        (void)block(20 * MIB, own);

        atomic_store(&ds__drive.groups, 0);
        assert_int_equal(ds_stream_synchronize_for(own, 20000000), groups ? DS_OK : DS_NOT_READY);
        end();
    }
}

/* ---- handles and addresses that come again ---- */

static ds_pool newer;

static void guest_replaces_the_pool(void) {
    ok(ds_pool_destroy(pool));
    ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &newer));
}

static void test_a_pool_that_came_to_the_same_place_is_another_one(void **state) {
    (void)state;
    for (int pushes = 0; pushes < 2; pushes++) {
        int count = 0;
        begin();
        ok(ds_mem_free(block(100, own)));
        ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
        guest_at_door(guest_replaces_the_pool, pushes ? &memory()->lock : &ds__memory_state.lock,
                      !pushes);
        assert_int_equal(pushes ? ds_pool_push(pool) : ds_pool_destroy(pool),
                         DS_ERR_INVALID_HANDLE);
        assert_null(door);
        ok(ds_pool_get_use_count(newer, &count));
        assert_int_equal(count, 1);
        ok(ds_pool_destroy(newer));
        end();
    }
}

static char *area;
static int given;
static ds_result found[4];

static void *give_area(ptrdiff_t size, int index, void *stream) {
    (void)size;
    (void)index;
    (void)stream;
    return given == 0 ? area + 2 * MIB : given == 1 ? area : NULL;
}

static void *get_it_again(void *unused) {
    void *p[2] = { NULL, NULL };
    given = 1;
    for (int i = 0; i < 2; i++)
        found[i] = ds_mem_alloc_with(
            &(ds_mem_request){ .size = 3 * MIB, .stream = other, .pool = pool }, &p[i]);
    found[2] = ds_mem_record_use(p[1], own);
    found[3] = ds_mem_free(p[1]);
    return unused;
}

/* As soon as the upstream has it back, another thread has it, as a part of a larger segment. */
static void take_area(void *p, ptrdiff_t size, int index, void *stream) {
    pthread_t thread;
    (void)p;
    (void)size;
    (void)index;
    (void)stream;
    if (given == 0 && !pthread_create(&thread, NULL, get_it_again, NULL))
        pthread_join(thread, NULL);
}

static void test_memory_that_is_given_back_is_found_as_what_it_is_next(void **state) {
    (void)state;
    begin();
    given = 0;
    area = aligned_alloc(2 * MIB, 64 * MIB);
    assert_non_null(area);
    ok(ds_pool_create(
        &(ds_pool_desc){ .device = device, .alloc_fn = give_area, .free_fn = take_area }, &pool));
    ok(ds_mem_free(pool_block(1000, own)));
    ok(ds_pool_empty_cache(pool, NULL));
    for (int i = 0; i < 4; i++)
        assert_int_equal(found[i], DS_OK);
    ok(ds_mem_validate(device));
    end();
    free(area);
}

/* ---- configuration, checkpoints, destructors ---- */

static void guest_uses_another_device(void) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = { DS_DEVICE_CPU, 1 } }, &s));
    ok(ds_mem_free(block(1000, s)));
}

static void test_a_text_is_for_devices_too_that_come_meanwhile(void **state) {
    (void)state;
    for (int before = 0; before < 6; before++) {
        ds_mem_config here, there;
        begin();
        ok(ds_mem_free(block(1000, own)));
        guest_at_door(guest_uses_another_device, &ds__memory_state.lock, before);
        ok(ds_mem_configure_text("reuse:always"));
        int came = !door;
        door = NULL;
        ok(ds_mem_get_config(device, &here));
        ok(ds_mem_get_config((ds_device){ DS_DEVICE_CPU, 1 }, &there));
        assert_int_equal(here.reuse, DS_REUSE_ALWAYS);
        if (there.reuse != here.reuse)
            fail_msg("at %d: a device that %s has another policy", before,
                     came ? "came" : "comes later");
        end();
    }
}

static void test_a_block_that_a_restore_ends_has_no_guard(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    ds_pool_checkpoint *saved = NULL;
    begin();
    c.guard_bytes = 512;
    configure(c);
    ok(ds_pool_create(&(ds_pool_desc){ .device = device, .config = &c }, &pool));
    ok(ds_pool_save(pool, &saved));
    (void)pool_block(1000, own);
    ok(ds_pool_restore(pool, saved, NULL, NULL));
    ok(ds_mem_validate(device));
    ds_pool_checkpoint_destroy(saved);
    end();
}

static ds_pool_checkpoint *empty;
static ds_result restored;

static void *restore_inside(ptrdiff_t size, int index, void *stream) {
    (void)index;
    (void)stream;
    restored = ds_pool_restore(pool, empty, NULL, NULL);
    return aligned_alloc(2 * MIB, (size_t)size);
}

static void free_inside(void *p, ptrdiff_t size, int index, void *stream) {
    (void)size;
    (void)index;
    (void)stream;
    free(p);
}

static void test_an_upstream_cannot_restore_its_own_pool(void **state) {
    (void)state;
    begin();
    ok(ds_pool_create(
        &(ds_pool_desc){ .device = device, .alloc_fn = restore_inside, .free_fn = free_inside },
        &pool));
    ok(ds_pool_save(pool, &empty));
    ok(ds_mem_free(pool_block(1000, own)));
    assert_int_equal(restored, DS_ERR_NOT_PERMITTED);
    ds_pool_checkpoint_destroy(empty);
    end();
}

/* ---- a restore while the pool is used ---- */

static ds_pool_checkpoint *checkpoint;
static void *victim;

static void guest_frees_the_victim(void) {
    ok(ds_mem_free(victim));
}

static void guest_takes_the_victims_memory(void) {
    void *p = pool_block(1000, own);
    assert_ptr_equal(p, victim);
}

/* The plan is made when the guest frees a block that shall end, or takes memory of a block that
   shall be live again. */
static void test_a_restore_says_that_the_pool_was_used(void **state) {
    (void)state;
    for (int takes = 0; takes < 2; takes++) {
        begin();
        ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
        if (takes)
            victim = pool_block(1000, own);
        ok(ds_pool_save(pool, &checkpoint));
        if (takes)
            ok(ds_mem_free(victim));
        else
            victim = pool_block(1000, own);

        guest_at_exit(takes ? guest_takes_the_victims_memory : guest_frees_the_victim,
                      &memory()->lock);
        exits_before = 2; /* blocks are polled, and the arenas listed, before the plan */
        refused(ds_pool_restore(pool, checkpoint, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                "another thread used the pool during the call");

        assert_null(exit_door);
        ok(ds_mem_validate(device));
        ds_pool_checkpoint_destroy(checkpoint);
        end();
    }
}

/* ---- an export while the block is freed ---- */

static void guest_frees_the_segment(void) {
    ok(ds_mem_free(victim));
    ok(ds_pool_empty_cache(pool, NULL));
}

static void test_an_export_says_that_the_block_was_freed(void **state) {
    (void)state;
    for (int segment = 0; segment < 2; segment++) {
        ds_ipc_mem_handle handle;
        begin();
        ok(ds_pool_create(&(ds_pool_desc){ .device = device, .shareable = 1 }, &pool));
        victim = pool_block(4 * MIB, own);
        guest_at_door(segment ? guest_frees_the_segment : guest_frees_the_victim, &ds__share.mutex,
                      0);
        refused(ds_mem_export(victim, &handle), DS_ERR_INVALID_VALUE,
                "was freed by another thread at the same time");
        assert_null(door);
        assert_int_equal(ds__share.events, 0); /* no record is left */
        void *p = pool_block(4 * MIB, own);
        ok(ds_mem_export(p, &handle));
        ok(ds_mem_free(p));
        ok(ds_mem_validate(device));
        end();
    }
}

/* The use's event is recorded when the block is freed. */
static void test_a_use_says_that_the_block_was_freed(void **state) {
    (void)state;
    begin();
    victim = block(1000, own);
    guest_at_submit(guest_frees_the_victim, other, DS__OP_RECORD);
    refused(ds_mem_record_use(victim, other), DS_ERR_INVALID_VALUE,
            "was freed by another thread at the same time");
    no_guest_at_submit(other);
    assert_int_equal(guest_kind, -1);
    ok(ds_mem_validate(device));
    end();
}

static void *empty_the_cache(void *r) {
    *(ds_result *)r = ds_mem_empty_cache(device, NULL);
    return NULL;
}

/* Who empties the cache waits for the streams' work. Another thread's request, which has memory
   to take, does not. */
static void test_no_request_waits_for_a_thread_that_empties_the_cache(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        ds_mem_config c = ds_mem_config_default();
        ds_result r = DS_NOT_READY;
        pthread_t thread;
        begin();
        c.expandable_segments = !plain;
        configure(c);
        ok(ds_mem_free(block(4 * MIB, own)));
        ok(ds_stream_launch_host_func(own, wait_until_over, NULL, NULL));
        arena = memory()->main.arenas;
        assert_int_equal(pthread_create(&thread, NULL, empty_the_cache, &r), 0);
        for (size_t left = 1; left;) { /* until it has taken what it gives back */
            ds__arena_lock(arena);
            left = arena->free_bytes || arena->parked[DS__QUICK_LISTS + DS__SMALL].first ||
                   arena->parked[DS__QUICK_LISTS + DS__LARGE].first;
            ds__arena_unlock(arena);
        }
        char *p = block(64 * MIB, own);
        ok(ds_mem_free(p));
        assert_int_equal(over, 0);
        over = 1;
        pthread_join(thread, NULL);
        ok(r);
        ok(ds_mem_validate(device));
        ok(ds_mem_empty_cache(device, NULL));
        assert_int_equal(ds_mem_get_reserved(device), 0);
        end();
    }
}

static ds_stream wrapper;
static int released, locked;

static void look_at_the_lock(void *user) {
    (void)user;
    released = 1;
    locked = pthread_mutex_trylock(&arena->grow) != 0;
    if (!locked)
        pthread_mutex_unlock(&arena->grow);
}

/* A thread is just inside of a call with the stream that another one destroys. */
static void guest_destroys_the_wrapper(void) {
    ds__stream *s = ds__pin(&ds__g.streams, wrapper.id);
    ok(ds_stream_destroy(wrapper));
    ds__stream_unpin(s);
}

static void test_destructors_run_under_no_lock_of_the_allocator(void **state) {
    (void)state;
    ds_stream_native native;
    begin();
    released = locked = 0;
    ok(ds_stream_export(other, &native));
    ok(ds_stream_wrap(&native, DS_BORROW, look_at_the_lock, NULL, &wrapper));
    ok(ds_mem_free(block(4 * MIB, own)));
    arena = memory()->main.arenas;
    guest_at_door(guest_destroys_the_wrapper, &arena->grow, 0);
    ok(ds_mem_empty_cache(device, NULL));
    assert_null(door);
    assert_int_equal(locked, 0);
    ok(ds_stream_synchronize(own));
    assert_int_equal(released, 1);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pending_block_that_is_chosen_is_nobody_elses),
        cmocka_unit_test(test_a_peak_has_a_pending_block_that_another_stream_takes),
        cmocka_unit_test(test_a_pending_block_in_work_is_sound),
        cmocka_unit_test(test_a_block_in_front_of_a_new_hole_changes_its_bin),
        cmocka_unit_test(test_a_page_stays_if_there_is_no_memory_to_describe_the_hole),
        cmocka_unit_test(test_a_use_of_a_stream_that_was_given_away_is_not_done),
        cmocka_unit_test(test_a_stream_of_another_device_ends_with_a_use_behind_it),
        cmocka_unit_test(test_an_early_use_leaves_a_late_one_of_the_same_stream),
        cmocka_unit_test(test_the_event_of_a_use_comes_into_no_capture),
        cmocka_unit_test(test_who_borrows_is_not_drawn_into_a_capture),
        cmocka_unit_test(test_poison_comes_into_no_capture),
        cmocka_unit_test(test_a_guard_comes_into_no_capture),
        cmocka_unit_test(test_the_look_at_a_guard_spoils_no_capture),
        cmocka_unit_test(test_the_event_of_a_shared_block_comes_into_no_capture),
        cmocka_unit_test(test_others_see_a_pool_complete),
        cmocka_unit_test(test_a_pool_that_is_emptied_becomes_a_graphs),
        cmocka_unit_test(test_a_pool_whose_garbage_is_collected_becomes_a_graphs),
        cmocka_unit_test(test_no_stream_waits_for_others_beside_a_group),
        cmocka_unit_test(test_no_stream_waits_for_ended_ones_beside_a_group),
        cmocka_unit_test(test_a_pool_that_helps_out_becomes_a_graphs),
        cmocka_unit_test(test_a_pool_that_came_to_the_same_place_is_another_one),
        cmocka_unit_test(test_memory_that_is_given_back_is_found_as_what_it_is_next),
        cmocka_unit_test(test_a_text_is_for_devices_too_that_come_meanwhile),
        cmocka_unit_test(test_a_block_that_a_restore_ends_has_no_guard),
        cmocka_unit_test(test_an_upstream_cannot_restore_its_own_pool),
        cmocka_unit_test(test_a_restore_says_that_the_pool_was_used),
        cmocka_unit_test(test_an_export_says_that_the_block_was_freed),
        cmocka_unit_test(test_a_use_says_that_the_block_was_freed),
        cmocka_unit_test(test_no_request_waits_for_a_thread_that_empties_the_cache),
        cmocka_unit_test(test_destructors_run_under_no_lock_of_the_allocator),
    };
    alarm(30);
    return cmocka_run_group_tests_name("what happens in between", tests, NULL, NULL);
}
