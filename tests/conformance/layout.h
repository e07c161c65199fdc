/* The blocks of a pool as text, and an upstream of one's own: for the tests of pools, captures
   and backends. */
#ifndef LAYOUT_H
#define LAYOUT_H
#include "alloc.h"

/* "[2M live, 18M free]": a bracket for each segment, in the order of addresses; holes at the end
   of growing segments, and segments without memory, are not named. */
typedef struct layout {
    uint64_t pool;
    char text[2000];
    size_t length, segments, blocks[4], bytes[4];
    void *segment;
    size_t hole;  /* not named yet */
    void *before; /* its segment */
} layout;

static inline void layout_add(layout *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->length, sizeof l->text - l->length, format, args);
    va_end(args);
    if (n > 0)
        l->length += (size_t)n;
    if (l->length >= sizeof l->text)
        l->length = sizeof l->text - 1;
}

static inline void layout_size(layout *l, size_t size, const char *what) {
    if (l->text[l->length - 1] != '[')
        layout_add(l, ", ");
    if (size % MIB == 0)
        layout_add(l, "%zuM %s", size / MIB, what);
    else if (size % KIB == 0)
        layout_add(l, "%zuK %s", size / KIB, what);
    else
        layout_add(l, "%zu %s", size, what);
}

static inline void layout_block(const ds_mem_block *b, void *user) {
    static const char *const states[] = { "free", "live", "pending", "hole" };
    layout *l = user;
    if (b->pool.id != l->pool)
        return;
    l->blocks[b->state]++;
    l->bytes[b->state] += b->size;
    if (b->state == DS_BLOCK_UNMAPPED) {
        l->hole = b->size;
        l->before = b->segment;
        return;
    }
    if (b->segment != l->segment || !l->segments) {
        layout_add(l, l->segments ? "] [" : "[");
        l->segment = b->segment;
        l->segments++;
    }
    if (l->hole && l->before == b->segment)
        layout_size(l, l->hole, "hole");
    l->hole = 0;
    layout_size(l, b->size, states[b->state]);
}

/* The pool's blocks; a zeroed pool: the device's own. */
static inline layout layout_of(int device, ds_pool pool) {
    layout l;
    memset(&l, 0, sizeof l);
    l.pool = pool.id;
    ok_thread(ds_mem_for_each_block(harness_device(device), layout_block, &l));
    if (l.segments)
        layout_add(&l, "]");
    return l;
}

static inline void expect_layout(int device, ds_pool pool, const char *text) {
    layout l = layout_of(device, pool);
    if (strcmp(l.text, text) != 0)
        fail_msg("the blocks are %s, not %s", l.text, text);
}

/* ---- pools ---- */

static inline ds_pool pool_with(ds_pool_desc desc) {
    ds_pool p = { 0 };
    if (!desc.device.type)
        desc.device = harness_device(0);
    ok_thread(ds_pool_create(&desc, &p));
    if (!p.id)
        harness_die("ds_pool_create gave no handle", DS_OK);
    return p;
}

static inline ds_pool new_pool(void) {
    return pool_with((ds_pool_desc){ 0 });
}

static inline void *block_in(ds_pool pool, size_t size, ds_stream s) {
    void *p = NULL;
    ds_mem_request r = { .size = size, .stream = s, .pool = pool };
    ok_thread(ds_mem_alloc_with(&r, &p));
    if (!p)
        harness_die("ds_mem_alloc_with gave no address", DS_OK);
    return p;
}

static inline int owners(ds_pool pool) {
    int n = -1;
    ok_thread(ds_pool_get_use_count(pool, &n));
    return n;
}

/* ---- an upstream: the device's own memory, with a record of what came and went ---- */

typedef struct upstream {
    /* refuse: gives NULL; strange: something was freed that was not given so */
    _Atomic int allocs, frees, refuse, strange;
    size_t last_size;
    int last_device;
    void *last_stream, *at[64];
    size_t size[64];
    void *stream[64];
    _Atomic int entered_free;
} upstream;

static upstream up;

static inline void *up_alloc(ptrdiff_t size, int device, void *stream) {
    void *p = NULL;
    ds_device d = harness_device(0);
    if (up.refuse || size <= 0)
        return NULL;
    d.index = device;
    if (ds_device_alloc(d, (size_t)size, &p) != DS_OK)
        return NULL;
    up.allocs++;
    up.last_size = (size_t)size;
    up.last_device = device;
    up.last_stream = stream;
    for (int i = 0; i < 64; i++)
        if (!up.at[i]) {
            up.at[i] = p;
            up.size[i] = (size_t)size;
            up.stream[i] = stream;
            break;
        }
    return p;
}

static inline void up_free(void *ptr, ptrdiff_t size, int device, void *stream) {
    int found = 0;
    up.entered_free++;
    for (int i = 0; i < 64 && !found; i++)
        if (up.at[i] == ptr) {
            /* NULL: the stream has ended */
            found = up.size[i] == (size_t)size && (!stream || up.stream[i] == stream);
            up.at[i] = NULL;
        }
    if (!found || device != up.last_device)
        up.strange++;
    if (ds_device_free(ptr) != DS_OK)
        up.strange++;
    up.frees++;
}

static inline ds_pool upstream_pool(void) {
    memset(&up, 0, sizeof up);
    return pool_with((ds_pool_desc){ .alloc_fn = up_alloc, .free_fn = up_free });
}

#endif
