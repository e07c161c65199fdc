/* What the tests of the allocator share: presets, blocks with contents that are checked in
   stream order, statistics. */
#ifndef ALLOC_H
#define ALLOC_H
#include "harness.h"
#include <stdatomic.h>
#include "devstream_alloc.h"

#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define UNIT ((size_t)512)

/* ---- policies ---- */

enum { PRESET_DEFAULT, PRESET_PLAIN, PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_CUPY, PRESETS };

static inline const char *preset_name(int preset) {
    static const char *const names[] = { "default", "default without growing segments", "torch",
                                         "torch with growing segments", "cupy" };
    return names[preset];
}

static inline ds_mem_config config_of(int preset) {
    ds_mem_config c = preset == PRESET_TORCH || preset == PRESET_TORCH_GROWING
                          ? ds_mem_config_torch()
                      : preset == PRESET_CUPY ? ds_mem_config_cupy()
                                              : ds_mem_config_default();
    if (preset == PRESET_PLAIN)
        c.expandable_segments = 0;
    if (preset == PRESET_TORCH_GROWING)
        c.expandable_segments = 1;
    c.debug = 2;
    return c;
}

/* What a test before this one has left behind goes. */
static inline void clear_memory(void) {
    for (int i = 0; i < harness_device_count(); i++) {
        DS_IGNORE(ds_mem_empty_cache(harness_device(i), NULL));
        if (ds_mem_get_allocated(harness_device(i)) || ds_mem_get_reserved(harness_device(i))) {
            harness_shutdown();
            return;
        }
    }
}

static inline void set_config(const ds_mem_config *config) {
    for (int i = 0; i < harness_device_count() && i < 2; i++) {
        ok(ds_mem_configure(harness_device(i), config));
        ok(ds_mem_reset_accumulated_stats(harness_device(i)));
        ok(ds_mem_reset_peak_stats(harness_device(i)));
    }
}

static inline void begin_with(const ds_mem_config *config) {
    clear_memory();
    set_config(config);
}

static inline void begin(int preset) {
    if (getenv("DS_RANDOM_VERBOSE"))
        print_message("%s\n", preset_name(preset));
    ds_mem_config c = config_of(preset);
    begin_with(&c);
}

/* All blocks are freed: nothing may be left. */
static inline void finish(void) {
    ds_mem_config c = ds_mem_config_default();
    for (int i = 0; i < harness_device_count() && i < 2; i++) {
        ds_device d = harness_device(i);
        ok(ds_mem_validate(d));
        ok(ds_device_synchronize(d));
        ok(ds_mem_empty_cache(d, NULL));
        ok(ds_mem_validate(d));
        assert_int_equal(ds_mem_get_allocated(d), 0);
        assert_int_equal(ds_mem_get_reserved(d), 0);
    }
    set_config(&c);
}

/* ---- blocks ---- */

static inline void *block(size_t size, ds_stream s) {
    void *p = NULL;
    ok_thread(ds_mem_alloc(size, s, &p));
    if (!p)
        harness_die("ds_mem_alloc gave no address", DS_OK);
    return p;
}

static inline ds_mem_block find(const void *p) {
    ds_mem_block b;
    memset(&b, 0, sizeof b);
    ok_thread(ds_mem_get_block(p, &b));
    return b;
}

static inline size_t size_of(const void *p) {
    return find(p).size;
}

/* A call that finds no memory, because of a limit or of the device. */
#define no_memory(call)                                                                          \
    do {                                                                                         \
        ds_result no_memory_result_ = (call);                                                    \
        if (no_memory_result_ != DS_ERR_OUT_OF_MEMORY &&                                         \
            no_memory_result_ != DS_ERR_LIMIT_EXCEEDED)                                          \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_get_name(no_memory_result_), \
                     ds_error_get_last());                                                       \
        harness_sentence(ds_error_get_last(), #call);                                            \
    } while (0)

/* The first word of each 512 bytes of a block gets the value, in stream order; blocks never
   share 512 bytes. */
static inline void paint(void *p, size_t size, uint32_t value, ds_stream s) {
    ok_thread(ds_fill_2d(p, UNIT, value, 4, 1, (size + UNIT - 1) / UNIT, s));
}

/* What a stream read of painted blocks, to be compared when it is done. */
typedef struct looks {
    uint32_t *words; /* pinned */
    size_t room, taken, count;

    struct look {
        size_t at, words;
        uint32_t value;
    } look[2000];
} looks;

static inline looks *looks_create(size_t room) {
    looks *l = calloc(1, sizeof *l);
    void *p = NULL;
    if (!l)
        abort();
    ok_thread(ds_pinned_alloc(room * 4, &p));
    l->words = p;
    l->room = room;
    return l;
}

/* Room for one more of this size. */
static inline int looks_fit(const looks *l, size_t size) {
    return l->count < sizeof l->look / sizeof *l->look &&
           (size + UNIT - 1) / UNIT <= l->room - l->taken;
}

/* The stream reads the block; it must find the value everywhere. */
static inline void look(looks *l, const void *p, size_t size, uint32_t value, ds_stream s) {
    size_t words = (size + UNIT - 1) / UNIT;
    if (!looks_fit(l, size))
        harness_die("too many looks", DS_ERR_LIMIT_EXCEEDED);
    memset(l->words + l->taken, 0, words * 4);
    ok_thread(ds_copy_2d(l->words + l->taken, 4, p, UNIT, 4, words, s));
    l->look[l->count++] = (struct look){ l->taken, words, value };
    l->taken += words;
}

/* All streams that looked are synchronized. 1 when every look found what it should. */
static inline int looks_right(looks *l) {
    for (size_t i = 0; i < l->count; i++)
        for (size_t k = 0; k < l->look[i].words; k++)
            if (l->words[l->look[i].at + k] != l->look[i].value) {
                print_error("look %zu: word %zu of %zu is %#x, not %#x\n", i, k, l->look[i].words,
                            (unsigned)l->words[l->look[i].at + k], (unsigned)l->look[i].value);
                return 0;
            }
    l->count = l->taken = 0;
    return 1;
}

static inline void looks_destroy(looks *l) {
    ok_thread(ds_pinned_free(l->words));
    free(l);
}

/* ---- statistics ---- */

static inline ds_mem_stats stats_of(int device) {
    ds_mem_stats s;
    memset(&s, 0, sizeof s);
    ok_thread(ds_mem_get_stats(harness_device(device), &s));
    return s;
}

static inline int64_t stat(int device, const char *name) {
    ds_mem_stats s = stats_of(device);
    int64_t value = -12345;
    ok_thread(ds_mem_stats_get_by_name(&s, name, &value));
    return value;
}

static inline int64_t pool_stat(ds_pool pool, const char *name) {
    ds_mem_stats s;
    int64_t value = -12345;
    memset(&s, 0, sizeof s);
    ok_thread(ds_pool_get_stats(pool, &s));
    ok_thread(ds_mem_stats_get_by_name(&s, name, &value));
    return value;
}

/* allocated <= active <= reserved, small and large make all, no peak below its current value. */
static inline void check_invariants(int device) {
    ds_mem_stats s = stats_of(device);
    ds_mem_config c;
    ok(ds_mem_get_config(harness_device(device), &c));
    ds_mem_stat *const all[] = { s.allocation,      s.segment,
                                 s.active,          s.inactive_split,
                                 s.allocated_bytes, s.reserved_bytes,
                                 s.active_bytes,    s.inactive_split_bytes,
                                 s.requested_bytes };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(all[i][DS_STAT_ALL].current ==
                    all[i][DS_STAT_SMALL].current + all[i][DS_STAT_LARGE].current);
        assert_true(all[i][DS_STAT_ALL].allocated ==
                    all[i][DS_STAT_SMALL].allocated + all[i][DS_STAT_LARGE].allocated);
        assert_true(all[i][DS_STAT_ALL].freed ==
                    all[i][DS_STAT_SMALL].freed + all[i][DS_STAT_LARGE].freed);
        for (int k = 0; k < 3; k++) {
            assert_true(all[i][k].current >= 0);
            assert_true(all[i][k].peak >= all[i][k].current ||
                        c.statistics == DS_STATISTICS_CURRENT);
        }
    }
    for (int k = 0; k < 3; k++) {
        assert_true(s.allocated_bytes[k].current <= s.active_bytes[k].current);
        assert_true(s.active_bytes[k].current <= s.reserved_bytes[k].current);
        assert_true(s.requested_bytes[k].current <= s.active_bytes[k].current);
        assert_true(s.allocation[k].current <= s.active[k].current);
    }
}

/* ---- a device with little memory ---- */

static inline size_t device_memory(int device) {
    size_t total = 0;
    ok(ds_device_get_memory_info(harness_device(device), NULL, &total));
    return total;
}

/* Leaves device 0 with about this many bytes: as a limit of the CPU driver; on CUDA something
   else has the rest. */
typedef struct scarce {
    void *rest[64];
    size_t count;
} scarce;

static inline void scarce_begin(scarce *sc, size_t bytes, const ds_mem_config *config) {
    memset(sc, 0, sizeof *sc);
    clear_memory();
    if (harness_is_cpu()) {
        ds_cpu_desc cpu = { .devices = 2, .memory_limit = bytes };
        ds_init_desc init = { .cpu = &cpu };
        harness_restart(&init);
    } else {
        size_t left = 0, piece;
        ok(ds_device_get_memory_info(harness_device(0), &left, NULL));
        for (piece = left - bytes; left > bytes + 2 * MIB && piece > MIB && sc->count < 64;) {
            if (ds_device_alloc(harness_device(0), piece, &sc->rest[sc->count]) == DS_OK)
                sc->count++;
            else
                piece /= 2;
            ok(ds_device_get_memory_info(harness_device(0), &left, NULL));
            if (left > bytes && piece > left - bytes)
                piece = left - bytes;
        }
    }
    set_config(config);
}

static inline void scarce_end(scarce *sc) {
    while (sc->count)
        ok(ds_device_free(sc->rest[--sc->count]));
    if (harness_is_cpu())
        harness_restart(NULL);
}

/* CUDA tells only some time after the end of a graph that nothing uses it any more; then its
   pool's memory can be given back. */
static inline void await_graphs_memory(size_t reserved) {
    uint64_t end = now_ns() + 10000000000u;
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    while (!harness_is_cpu() && ds_mem_get_reserved(harness_device(0)) > reserved &&
           now_ns() < end) {
        harness_nap();
        ok(ds_mem_empty_cache(harness_device(0), NULL));
    }
    if (ds_mem_get_reserved(harness_device(0)) > reserved)
        fail_msg("%zu bytes are reserved when the graphs are gone, not %zu",
                 ds_mem_get_reserved(harness_device(0)), reserved);
}

static inline ds_graph_exec instantiate_graph(ds_graph g) {
    ds_graph_exec exec;
    ok(ds_graph_instantiate(g, NULL, &exec));
    return exec;
}

/* ---- what devstream keeps for itself ---- */

/* For ds_init_desc.allocator: { count_alloc, count_free, NULL }. */
static _Atomic size_t kept_bytes;
static _Atomic int starving; /* there is no memory */
/* so many more pieces there are; negative: as many as are asked for */
static _Atomic int allowance = -1;

static inline void *count_alloc(size_t size, void *user) {
    (void)user;
    int left = allowance;
    while (left > 0 && !atomic_compare_exchange_weak(&allowance, &left, left - 1)) {
    }
    size_t *p = starving || left == 0 ? NULL : malloc(size + 16);
    if (!p)
        return NULL;
    *p = size;
    kept_bytes += size;
    return (char *)p + 16;
}

static inline void count_free(void *ptr, void *user) {
    (void)user;
    if (!ptr)
        return;
    size_t *p = (size_t *)(void *)((char *)ptr - 16);
    kept_bytes -= *p;
    free(p);
}

/* Opens a gate some milliseconds from now, while the test waits in a call. */
static inline void *open_later(void *g) {
    for (int i = 0; i < 60; i++)
        harness_nap();
    gate_open(g);
    return NULL;
}

#endif
