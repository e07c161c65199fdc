/* What another thread may do while the allocator, in the middle of a step, has given up a lock: it is made to happen at just that point. */
#include <pthread.h>

static int lock_after_guest(pthread_mutex_t *m);
#define pthread_mutex_lock(m) lock_after_guest(m)
#define DEVSTREAM_IMPLEMENTATION
#include "../../devstream_alloc.h"
#include "unit.h"
#undef pthread_mutex_lock

static pthread_mutex_t *door; /* the guest comes when this one is about to be taken */
static void (*guest)(void);

static int lock_after_guest(pthread_mutex_t *m) {
    if (m == door) {
        door = NULL;
        guest();
    }
    return pthread_mutex_lock(m);
}

static ds_stream own, other;
static ds__arena *arena;
static _Atomic int over;
static size_t polled;

static void wait_until_over(void *user) {
    (void)user;
    while (!over) ds__pause();
}

/* The block's use ends, and somebody asks for what is done. */
static void guest_polls(void) {
    over = 1;
    DS_IGNORE(ds_stream_synchronize(other));
    polled = ds__poll(arena, 0);
}

/* Peaks are divided among arenas: when an arena's share is used up a request gives its lock up to get more, with the pending block chosen. Nobody else may
   have that block meanwhile. */
static void test_a_pending_block_that_is_chosen_is_nobody_elses(void **state) {
    (void)state;
    const size_t size = 4 << 20;
    const ds_device device = { DS_DEVICE_CPU, 0 };
    void *p = NULL, *around[2] = { NULL, NULL };
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &own));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &other));
    ok(ds_mem_alloc(size, own, &around[0]));
    ok(ds_mem_alloc(size, own, &p));
    ok(ds_mem_alloc(size, own, &around[1]));
    ok(ds_launch_host_func(other, wait_until_over, NULL, NULL));
    ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
    ok(ds_mem_free(around[0]));
    ok(ds_mem_free(around[1]));

    ds__mdevice *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    arena = dev->main.arenas;
    assert_non_null(arena->pending);
    int kind = arena->pending->seg->kind;
    ds__share_room(dev, arena, kind, 0); /* as soon as two threads allocate */
    arena->own_room[kind].of[DS__ALLOCATION] = 0;
    guest = guest_polls;
    door = &dev->lock;
    assert_int_equal(ds__take_pending(arena, kind, size, SIZE_MAX, own, size, NULL), 1);
    assert_null(door); /* it was there */
    assert_int_equal(polled, 0);
    ok(ds_mem_validate(device));
    assert_int_equal(ds_mem_allocated(device), 0);
    ok(ds_mem_empty_cache(device, NULL));
    assert_int_equal(ds_mem_reserved(device), 0);
    ok(ds_stream_destroy(own));
    ok(ds_stream_destroy(other));
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_pending_block_that_is_chosen_is_nobody_elses) };
    return cmocka_run_group_tests_name("what happens in between", tests, NULL, NULL);
}
