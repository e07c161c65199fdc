/* Another thread ends a capture and destroys its graph just when ds_mem_pinned_record_use has found
   what the capture holds: the rest of the call must not read freed memory. */
#define DEVSTREAM_IMPLEMENTATION
#include "core/capture.h"
static ds_result attach_before_guest(ds__stream *s, const ds__attachment *a, ds__object **out);
#define ds__capture_attachment attach_before_guest
#include "devstream_alloc.h"
#undef ds__capture_attachment
#include "unit.h"

static ds_stream captured; /* by the guest; zero: by none */

static ds_result attach_before_guest(ds__stream *s, const ds__attachment *a, ds__object **out) {
    ds_graph g;
    ds_result r = ds__capture_attachment(s, a, out);
    if (!captured.id)
        return r;
    ok(ds_capture_end(captured, &g));
    captured.id = 0;
    ok(ds_graph_destroy(g));
    return r;
}

/* A freed block is overwritten and kept, so that a late read sees 0 instead of its content. */
typedef struct block {
    size_t size;
    struct block *next; /* in `freed` */
} block;

static block *freed;

static void *take(size_t size, void *user) {
    (void)user;
    block *b = calloc(1, sizeof *b + size);
    if (!b)
        return NULL;
    b->size = size;
    return b + 1;
}

static void overwrite(void *ptr, void *user) {
    (void)user;
    block *b = (block *)ptr - 1;
    memset(ptr, 0, b->size);
    b->next = freed;
    freed = b;
}

static void free_blocks(void) {
    while (freed) {
        block *next = freed->next;
        free(freed);
        freed = next;
    }
}

static void test_a_use_is_noted_while_another_thread_ends_the_capture(void **state) {
    (void)state;
    ds_stream s;
    void *p;
    size_t released;
    ok(ds_init(&(ds_init_desc){ .allocator = { take, overwrite, NULL } }));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_mem_pinned_alloc(4096, &p));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));

    captured = s;
    ok(ds_mem_pinned_record_use(p, s));

    assert_int_equal(captured.id, 0); /* the guest was there */
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_empty_cache(&released));
    assert_true(released > 0); /* no graph uses the block any more */
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
    free_blocks();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_use_is_noted_while_another_thread_ends_the_capture),
    };
    return cmocka_run_group_tests_name("capture_hold", tests, NULL, NULL);
}
