/* Another thread destroys and frees an object just when a call gives up its hazard pointer: the
   rest of the call must not read the object. */
#define DEVSTREAM_IMPLEMENTATION
#include "core/event.h"
static void unpin_before_guest(ds__event *e);
#define ds__event_unpin unpin_before_guest
#include "devstream.h"
#undef ds__event_unpin
#include "unit.h"
#include <stdlib.h>

/* The room of each block is known and blocks are kept, so that memory can be overwritten when it is
   freed, and read then without undefined behaviour. */
typedef struct kept {
    struct kept *next;
    size_t size;
} kept;

static kept *blocks;
static ds__spinlock blocks_lock;

static void *keep(size_t size, void *user) {
    (void)user;
    kept *k = calloc(1, sizeof *k + size);
    if (!k)
        return NULL;
    k->size = size;
    ds__spinlock_lock(&blocks_lock);
    k->next = blocks;
    blocks = k;
    ds__spinlock_unlock(&blocks_lock);
    return k + 1;
}

static void overwrite(void *ptr, void *user) {
    const kept *k = (const kept *)ptr - 1;
    (void)user;
    memset(ptr, 0, k->size);
}

static ds_event destroyed; /* by the guest; zero: by none */

/* Destroys the event and as many others as a batch of ds__retired_reclaim has, which frees it. */
static void unpin_before_guest(ds__event *e) {
    ds_event event = destroyed;
    ds__event_unpin(e);
    if (!event.id)
        return;
    destroyed.id = 0;
    ok(ds_event_destroy(event));
    for (int i = 0; i < DS__RECLAIM_BATCH; i++) {
        ok(ds_event_create(0, NULL, &event));
        ok(ds_event_destroy(event));
    }
}

static void test_a_refused_export_names_an_event_that_is_destroyed(void **state) {
    (void)state;
    ds_event event;
    ds_ipc_event_handle handle;
    ok(ds_init(&(ds_init_desc){ .allocator = { keep, overwrite, NULL } }));
    ok(ds_event_create(0, "the label of the event", &event));

    destroyed = event;
    ds_result r = ds_event_export(event, &handle);

    assert_int_equal(r, DS_ERR_INVALID_VALUE);
    assert_int_equal(destroyed.id, 0); /* the guest was there */
    assert_non_null(strstr(ds_error_get_last(), "the label of the event"));
    ok(ds_shutdown());
    while (blocks) {
        kept *k = blocks;
        blocks = k->next;
        free(k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_export_names_an_event_that_is_destroyed),
    };
    return cmocka_run_group_tests_name("objects after their hazard pointers", tests, NULL, NULL);
}
