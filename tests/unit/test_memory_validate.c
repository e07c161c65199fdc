/* What ds_mem_validate must see: each number and list that the allocator keeps is damaged in
   turn, and mended again. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "alloc/validate.h"

#include <setjmp.h>
#include <cmocka.h>

#define MIB ((size_t)1 << 20)
#define ok(call)                                                               \
    do {                                                                       \
        if ((call) != DS_OK)                                                   \
            fail_msg("line %d: %s: %s", __LINE__, #call, ds_error_get_last()); \
    } while (0)

static ds_device device;
static ds_stream stream, other;
static ds_pool pool;
static void *blocks[4];

/* Blocks of both kinds in the device's pool and in one of its own, growing and plain segments,
   some of max_split_size or more, some free. */
static void begin(const char *conf) {
    device = ds_cpu(0);
    ok(ds_mem_configure_text(conf));
    ok(ds_device_set_current(device));
    ok(ds_stream_create(NULL, &stream));
    ok(ds_stream_create(NULL, &other));
    ok(ds_pool_create(&(ds_pool_desc){ .device = device }, &pool));
    ok(ds_mem_alloc(MIB / 2, stream, &blocks[0]));
    ok(ds_mem_alloc(24 * MIB, other, &blocks[1]));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 3 * MIB, .stream = stream, .pool = pool },
                         &blocks[2]));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 21 * MIB, .stream = stream, .pool = pool },
                         &blocks[3]));
    void *p;
    ok(ds_mem_alloc(2 * MIB, stream, &p));
    ok(ds_mem_free(p));
    ok(ds_mem_validate(device));
}

static void end(void) {
    ok(ds_mem_validate(device));
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(blocks[i]));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(stream));
    ok(ds_stream_destroy(other));
    ok(ds_mem_empty_cache(device, NULL));
    ok(ds_mem_validate(device));
    ok(ds_shutdown());
}

static void sees(const char *what, const char *word) {
    if (ds_mem_validate(device) != DS_ERR_ILLEGAL_STATE)
        fail_msg("%s: it is not seen", what);
    if (!strstr(ds_error_get_last(), word))
        fail_msg("%s: '%s' is not in: %s", what, word, ds_error_get_last());
}

#define DAMAGED(object, by, word)    \
    do {                             \
        (object) += (by);            \
        sees(#object, word);         \
        (object) -= (by);            \
        ok(ds_mem_validate(device)); \
    } while (0)

static const char *const confs[] = { "preset:default,max_split_size_mb:20",
                                     "preset:torch,max_split_size_mb:20",
                                     "preset:default,backend:cudaMallocAsync,max_split_size_mb:20",
                                     "preset:default,backend:uncached,max_split_size_mb:20" };

enum { CONFS = sizeof confs / sizeof *confs };

static void test_the_validator_sees_wrong_limit_accounting(void **state) {
    (void)state;
    for (int i = 0; i < CONFS; i++) {
        begin(confs[i]);
        ds__mem_dev *dev = ds__mem_device(device);
        ds__mem_pool *p = ds__mem_pool_of(pool);
        DAMAGED(dev->reserved, 5 * MIB, "limit");
        DAMAGED(dev->reserved, -MIB, "limit");
        DAMAGED(p->reserved, MIB, "limit");
        DAMAGED(dev->main.reserved, MIB, "limit");
        DAMAGED(dev->async_bytes, 512, "driver's own pool");
        end();
    }
}

static void test_the_validator_sees_wrong_statistics(void **state) {
    (void)state;
    for (int i = 0; i < CONFS; i++) {
        begin(confs[i]);
        ds__mem_dev *dev = ds__mem_device(device);
        ds__mem_pool *p = ds__mem_pool_of(pool);
        for (ds__domain *d = &dev->stats; d; d = d == &dev->stats ? &p->stats : NULL) {
            for (int k = 0; k < 2; k++) {
                for (int m = 0; m < DS__COUNTED; m++)
                    DAMAGED(d->tally.kind[k].now[m], 7, "counted");
                for (int m = 0; m < 2; m++)
                    DAMAGED(d->tally.kind[k].pending[m], 1, "counted");
                for (int m = 0; m < DS__METERS; m++)
                    DAMAGED(d->meter[k][m].now, 512, "counted");
            }
            for (int m = 0; m < DS__METERS; m++)
                DAMAGED(d->all[m].now, 512, "both kinds");
            DAMAGED(d->oversize_allocations.now, 1, "oversize");
            DAMAGED(d->oversize_segments.now, -1, "oversize");
        }
        DAMAGED(p->arenas->own.kind[0].now[0], 1, "counted");
        end();
    }
}

static void test_the_validator_sees_a_wrong_order_of_segments(void **state) {
    (void)state;
    for (int i = 0; i < CONFS; i++) {
        begin(confs[i]);
        assert_true(ds__memory_state.sorted_count >= 2);
        ds__segment **at = ds__memory_state.sorted, *first = at[0],
                    *last = at[ds__memory_state.sorted_count - 1];
        at[0] = last;
        at[ds__memory_state.sorted_count - 1] = first;
        sees("two have changed their places", "segment");
        at[0] = first;
        at[ds__memory_state.sorted_count - 1] = last;
        ok(ds_mem_validate(device));
        ds__memory_state.sorted_count--;
        sees("one is missing", "segment");
        ds__memory_state.sorted_count++;
        ok(ds_mem_validate(device));
        ds__segment twin = { .base = first->base, .size = first->size, .arena = first->arena };
        at[0] = &twin;
        sees("another is in its place", "segment");
        at[0] = first;
        ds__segment stray = { .base = last->base + last->size, .size = MIB, .arena = first->arena };
        assert_true(ds__array_reserve(&ds__memory_state.sorted, sizeof *at,
                                      ds__memory_state.sorted_count, 1,
                                      &ds__memory_state.sorted_room));
        at = ds__memory_state.sorted;
        at[ds__memory_state.sorted_count++] = &stray;
        sees("one is nobody's", "segment");
        ds__memory_state.sorted_count--;
        end();
    }
}

/* Returns the first block of the default pool in this state, or NULL. */
static ds__mem_block *first_block(int block_state) {
    for (ds__arena *a = ds__mem_device(device)->main.arenas; a; a = a->next)
        for (ds__segment *s = a->segments; s; s = s->next)
            for (ds__mem_block *b = s->first; b; b = b->next)
                if ((int)b->state == block_state)
                    return b;
    return NULL;
}

static void test_the_validator_sees_damaged_blocks(void **state) {
    (void)state;
    for (int i = 0; i < CONFS; i++) {
        begin(confs[i]);
        ds__mem_block *unused = first_block(DS_BLOCK_FREE), *live = first_block(DS_BLOCK_LIVE);
        assert_int_equal(unused != NULL, i < 2); /* the other backends have no cache */
        if (unused) {
            ds__mem_block *before = unused->list_prev;
            unused->list_prev = live;
            sees("a free block has another one in front", "the list of bin");
            unused->list_prev = before;
        }
        size_t asked = live->asked;
        live->asked = live->size + 1;
        sees("more bytes were requested than a block has", "smaller than what was asked for");
        live->asked = asked;
        end();
    }
}

/* While another thread takes memory or gives some back the sums are not all there: that is no
   damage. */
typedef struct busy {
    _Atomic int quit;
    ds_stream stream;
} busy;

static void *take_and_give(void *user) {
    busy *b = user;
    while (!atomic_load(&b->quit)) {
        void *p = NULL, *q = NULL;
        if (ds_mem_alloc(5 * MIB, b->stream, &p) != DS_OK ||
            ds_mem_alloc(700, b->stream, &q) != DS_OK)
            abort();
        if (ds_mem_free(p) != DS_OK || ds_mem_free(q) != DS_OK)
            abort();
        if (ds_mem_empty_cache(device, NULL) != DS_OK)
            abort();
    }
    return NULL;
}

static void test_the_validator_accepts_changes_by_other_threads(void **state) {
    (void)state;
    for (int i = 0; i < CONFS; i++) {
        begin(confs[i]);
        busy b = { 0, other };
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_and_give, &b), 0);
        for (int k = 0; k < 2000; k++)
            ok(ds_mem_validate(device));
        atomic_store(&b.quit, 1);
        pthread_join(thread, NULL);
        end();
    }
}

/* The same without another thread: it would be between its call of the driver and the sums. */
static void test_the_validator_accepts_sums_that_are_moving(void **state) {
    (void)state;
    begin(confs[0]);
    ds__mem_dev *dev = ds__mem_device(device);
    atomic_fetch_add(&dev->moving, 1);
    atomic_fetch_add(&dev->reserved, 512);
    ok(ds_mem_validate(device));
    atomic_fetch_sub(&dev->reserved, 512);
    atomic_fetch_sub(&dev->moving, 1);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_validator_sees_wrong_limit_accounting),
        cmocka_unit_test(test_the_validator_sees_wrong_statistics),
        cmocka_unit_test(test_the_validator_sees_a_wrong_order_of_segments),
        cmocka_unit_test(test_the_validator_sees_damaged_blocks),
        cmocka_unit_test(test_the_validator_accepts_changes_by_other_threads),
        cmocka_unit_test(test_the_validator_accepts_sums_that_are_moving)
    };
    return cmocka_run_group_tests_name("memory validate", tests, NULL, NULL);
}
