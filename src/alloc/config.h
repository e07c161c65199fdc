/* alloc/config.h - allocator options: presets, checks, sizes.

   Defines the presets ds_mem_config_default, ds_mem_config_torch and ds_mem_config_cupy. Lists the
   options (ds__config_options), and checks configurations (ds__config_check).
   ds__config_round_size, ds__config_segment_size and ds__config_reserve_size compute from a
   configuration the sizes of blocks, of plain segments and of reserved address space.

   Invariants: A configuration is accepted only with the exact size of ds_mem_config in its first
   member. The size of a block is a multiple of 512. A size too large to round becomes the
   largest multiple of 512.
   Locks: none.
   Threads: any; results depend on the arguments only, and errors go to the calling thread. */
#ifndef DS__ALLOC_CONFIG_H
#define DS__ALLOC_CONFIG_H

#include "../base/error.h"
#include "types.h"

DSDEF ds_mem_config(ds_mem_config_default)(void) {
    ds_mem_config c;
    memset(&c, 0, sizeof c);
    c.backend = DS_MEM_NATIVE;
    c.expandable_segments = 1;
    c.reuse = DS_REUSE_ON_SHORTAGE;
    c.max_split_size = SIZE_MAX;
    c.max_non_split_rounding = 20 * DS__MIB;
    c.small_segment_size = 2 * DS__MIB;
    c.large_segment_size = 8 * DS__MIB;
    c.segment_growth = 4;
    c.memory_fraction = 1;
    c.expandable_segments_reserve = 1.125;
    c.pinned_max_cached_size = SIZE_MAX;
    c.pinned_num_register_threads = 1;
    return c;
}

DSDEF ds_mem_config(ds_mem_config_torch)(void) {
    ds_mem_config c = (ds_mem_config_default)();
    c.expandable_segments = 0;
    c.best_fit_by_address = 1;
    c.reuse = DS_REUSE_NEVER;
    c.poll_on_alloc = 1;
    c.large_segment_size = 20 * DS__MIB;
    c.segment_growth = 0;
    c.pinned_max_round_threshold = SIZE_MAX;
    return c;
}

DSDEF ds_mem_config(ds_mem_config_cupy)(void) {
    ds_mem_config c = (ds_mem_config_torch)();
    c.single_pool = 1;
    c.poll_on_alloc = 0;
    return c;
}

enum {
    DS__IS_BOOL,
    DS__IS_MB,
    DS__IS_BYTES,
    DS__IS_COUNT,
    DS__IS_CHOICE,
    DS__IS_OPEN,
    DS__IS_CLOSED,
    DS__IS_DIVISIONS,
    DS__IS_RESERVE,
    DS__IS_LIMIT,
    DS__IS_PRESET,
    DS__IS_FIXED /* only the value that devstream implements */
};

typedef struct ds__config_option {
    const char *name;
    int kind;
    size_t offset;
    uint64_t low;  /* MB, bytes, count: the smallest value */
    uint64_t high; /* MB, bytes, count: the largest value; bool, choice: the largest number */
    /* DS__IS_CHOICE: the choices in the order of their numbers, each with a bar behind it.
       DS__IS_FIXED: the only value, a bar, and the reason */
    const char *choices;
} ds__config_option;

#define DS__AT(member) offsetof(ds_mem_config, member)
static const ds__config_option ds__config_options[] = {
    { "preset", DS__IS_PRESET, 0, 0, 0, "default|torch|cupy|" },
    { "backend", DS__IS_CHOICE, DS__AT(backend), 0, DS_MEM_UNCACHED,
      "native|cudaMallocAsync|uncached|" },
    { "max_split_size_mb", DS__IS_MB, DS__AT(max_split_size), 1, UINT64_MAX, NULL },
    { "max_non_split_rounding_mb", DS__IS_MB, DS__AT(max_non_split_rounding), 1, UINT64_MAX, NULL },
    { "large_segment_size_mb", DS__IS_MB, DS__AT(large_segment_size), 2, 1 << 20, NULL },
    { "garbage_collection_threshold", DS__IS_OPEN, DS__AT(garbage_collection_threshold), 0, 0,
      NULL },
    { "roundup_power2_divisions", DS__IS_DIVISIONS, 0, 0, 0, NULL },
    { "expandable_segments", DS__IS_BOOL, DS__AT(expandable_segments), 0, 1, NULL },
    { "expandable_segments_reserve", DS__IS_RESERVE, DS__AT(expandable_segments_reserve), 0, 0,
      NULL },
    { "expandable_segments_reserve_by_class", DS__IS_FIXED, 0, 0, 0,
      "|streams have no classes; use expandable_segments_reserve" },
    { "release_lock_on_cudamalloc", DS__IS_FIXED, 0, 0, 0,
      "True|the driver is always called without a lock that other streams need" },
    { "per_process_memory_fraction", DS__IS_CLOSED, DS__AT(memory_fraction), 0, 0, NULL },
    { "throw_on_cudamalloc_oom", DS__IS_BOOL, DS__AT(throw_on_cudamalloc_oom), 0, 1, NULL },
    { "graph_capture_record_stream_reuse", DS__IS_BOOL, DS__AT(graph_capture_record_stream_reuse),
      0, 1, NULL },
    { "pinned_use_cuda_host_register", DS__IS_BOOL, DS__AT(pinned_use_cuda_host_register), 0, 1,
      NULL },
    { "pinned_num_register_threads", DS__IS_COUNT, DS__AT(pinned_num_register_threads), 1, 128,
      NULL },
    { "pinned_use_background_threads", DS__IS_FIXED, 0, 0, 0,
      "False|events are queried at allocations, without a thread" },
    { "pinned_reserve_segment_size_mb", DS__IS_MB, DS__AT(pinned_reserve_segment_size), 1, 1 << 20,
      NULL },
    { "pinned_max_round_threshold_mb", DS__IS_MB, DS__AT(pinned_max_round_threshold), 0, UINT64_MAX,
      NULL },
    { "pinned_max_cached_size_mb", DS__IS_MB, DS__AT(pinned_max_cached_size), 0, UINT64_MAX, NULL },
    { "pinned_free_catch_all", DS__IS_FIXED, 0, 0, 0,
      "False|an error of the driver at a free is always reported" },
    { "reuse", DS__IS_CHOICE, DS__AT(reuse), 0, DS_REUSE_ALWAYS, "never|on_shortage|always|" },
    { "statistics", DS__IS_CHOICE, DS__AT(statistics), 0, DS_STATISTICS_CURRENT, "full|current|" },
    { "limit", DS__IS_LIMIT, 0, 0, 0, NULL },
    { "debug", DS__IS_CHOICE, DS__AT(debug), 0, 2, "0|1|2|" },
    { "poison", DS__IS_BOOL, DS__AT(poison), 0, 1, NULL },
    { "guard_bytes", DS__IS_BYTES, DS__AT(guard_bytes), 0, 1 << 30, NULL },
    { "segment_growth", DS__IS_COUNT, DS__AT(segment_growth), 0, UINT32_MAX, NULL },
    { "single_pool", DS__IS_BOOL, DS__AT(single_pool), 0, 1, NULL },
    { "best_fit_by_address", DS__IS_BOOL, DS__AT(best_fit_by_address), 0, 1, NULL },
    { "poll_on_alloc", DS__IS_BOOL, DS__AT(poll_on_alloc), 0, 1, NULL }
};
#define DS__OPTIONS (sizeof ds__config_options / sizeof ds__config_options[0])

#define DS__LARGEST_DIVISIONS 64 /* 1 + log2 of 2^63 */
/* expandable_segments_reserve: values from here on are bytes, smaller ones a multiple */
#define DS__RESERVE_BYTES ((double)(2 * DS__MIB))

/* Checks the options in bytes. */
static ds_result ds__config_check_sizes(const ds_mem_config *c) {
    DS__REQUIRE(c->guard_bytes % DS__UNIT == 0 && c->guard_bytes <= (size_t)1 << 30,
                "guard_bytes is %zu; it must be a multiple of 512, at most 1 GiB", c->guard_bytes);
    DS__REQUIRE(c->small_segment_size && c->small_segment_size % (2 * DS__MIB) == 0 &&
                    c->small_segment_size <= (size_t)1 << 40,
                "small_segment_size is %zu; it must be a multiple of 2 MiB, at most 1 TiB",
                c->small_segment_size);
    DS__REQUIRE(c->large_segment_size && c->large_segment_size % (2 * DS__MIB) == 0 &&
                    c->large_segment_size <= (size_t)1 << 40,
                "large_segment_size is %zu; it must be a multiple of 2 MiB, at most 1 TiB",
                c->large_segment_size);
    DS__REQUIRE(c->max_split_size >= c->large_segment_size,
                "max_split_size is %zu, less than large_segment_size, %zu", c->max_split_size,
                c->large_segment_size);
    DS__REQUIRE(c->max_non_split_rounding >= c->large_segment_size,
                "max_non_split_rounding is %zu, less than large_segment_size, %zu",
                c->max_non_split_rounding, c->large_segment_size);
    DS__REQUIRE(c->pinned_reserve_segment_size % 4096 == 0,
                "pinned_reserve_segment_size is %zu; it must be a multiple of 4096",
                c->pinned_reserve_segment_size);
    return DS_OK;
}

/* Checks fractions, counts and divisions. */
static ds_result ds__config_check_numbers(const ds_mem_config *c) {
    double threshold = c->garbage_collection_threshold;
    double reserve = c->expandable_segments_reserve;
    unsigned threads = c->pinned_num_register_threads;
    DS__REQUIRE(threshold >= 0 && threshold < 1,
                "garbage_collection_threshold is %g; it must be 0, or above 0 and below 1",
                threshold);
    DS__REQUIRE(c->memory_fraction >= 0 && c->memory_fraction <= 1,
                "memory_fraction is %g; it must be from 0 to 1", c->memory_fraction);
    DS__REQUIRE((reserve > 0 && reserve <= 1024) ||
                    (reserve >= DS__RESERVE_BYTES && reserve <= 1e18),
                "expandable_segments_reserve is %g; it must be a multiple of the device's memory "
                "above 0 and up to 1024, or 2 MiB or more in bytes",
                reserve);
    DS__REQUIRE(threads >= 1 && threads <= 128 && (threads & (threads - 1)) == 0,
                "pinned_num_register_threads is %u; it must be a power of two up to 128", threads);
    for (size_t i = 0; i < sizeof c->roundup_power2_divisions; i++)
        DS__REQUIRE(c->roundup_power2_divisions[i] <= DS__LARGEST_DIVISIONS,
                    "roundup_power2_divisions[%zu] is %u; it is 1 + log2 of a number, at most %d",
                    i, (unsigned)c->roundup_power2_divisions[i], DS__LARGEST_DIVISIONS);
    return DS_OK;
}

/* Checks a configuration. If a member is out of its range, returns DS_ERR_INVALID_VALUE, and the
   error names the member and its value. */
DS__SEAM static ds_result ds__config_check(const ds_mem_config *c) {
    DS__REQUIRE(c, "config is NULL");
    DS__REQUIRE_RESERVED("ds_mem_config", c);

    for (size_t i = 0; i < DS__OPTIONS; i++) {
        const ds__config_option *o = &ds__config_options[i];
        int value = 0;
        if (o->kind == DS__IS_BOOL || o->kind == DS__IS_CHOICE)
            memcpy(&value, (const char *)c + o->offset, sizeof value);
        DS__REQUIRE(value >= 0 && (unsigned)value <= o->high, "%s is %d; it must be from 0 to %d",
                    o->name, value, (int)o->high);
    }
    ds_result r = ds__config_check_sizes(c);
    return r < 0 ? r : ds__config_check_numbers(c);
}

/* Rounds up n to the next of 2^log2_divisions equal steps between two powers of two. Returns the
   largest multiple of 512 if there is no such step. */
static size_t ds__round_by_power2(size_t n, unsigned log2_divisions) {
    const size_t largest = SIZE_MAX & ~(DS__UNIT - 1);
    if ((n & (n - 1)) == 0)
        return n;
    size_t below = (size_t)1 << (63 - __builtin_clzll(n));
    size_t step = log2_divisions < 64 ? below >> log2_divisions : 0;
    if (step == 0) /* more divisions than bytes */
        step = below;
    return n <= largest - (step - 1) ? (n + step - 1) & ~(step - 1) : largest;
}

/* Returns the entry of roundup_power2_divisions for a size: 1 + log2 of the divisions. 0 is off,
   and so is 1, a single division (pytorch#161139). */
static inline unsigned ds__config_divisions_of(const ds_mem_config *c, size_t n) {
    int power = 63 - __builtin_clzll(n) - 20;
    if (power < 0)
        power = 0;
    return c->roundup_power2_divisions[power < 15 ? power : 15];
}

/* Returns the size of the block for n bytes, n > 0. For sizes too large to round, returns the
   largest multiple of 512. */
DS__SEAM static inline size_t ds__config_round_size(const ds_mem_config *c, size_t n) {
    if (n < DS__UNIT)
        return DS__UNIT;
    unsigned coded = ds__config_divisions_of(c, n);
    if (DS__UNLIKELY(coded > 1) && coded - 1 < 55 && n > DS__UNIT << (coded - 1))
        return ds__round_by_power2(n, coded - 1);
    return n <= SIZE_MAX - (DS__UNIT - 1) ? (n + DS__UNIT - 1) & ~(DS__UNIT - 1)
                                          : SIZE_MAX & ~(DS__UNIT - 1);
}

/* Returns the size of the plain segment for a block of this size, before segment_growth. */
DS__SEAM static size_t ds__config_segment_size(const ds_mem_config *c, int kind, size_t rounded) {
    const size_t unit = 2 * DS__MIB;
    if (c->single_pool)
        return rounded;
    if (kind == DS__SMALL && rounded <= c->small_segment_size)
        return c->small_segment_size;
    if (rounded < c->large_segment_size / 2)
        return c->large_segment_size;
    return rounded <= SIZE_MAX - (unit - 1) ? (rounded + unit - 1) & ~(unit - 1) : rounded;
}

/* Returns the bytes of address space of a growing segment on a device with `total` bytes, in whole
   pages. If the option is in bytes, the size is at most 9/8 of the device's memory. */
DS__SEAM static size_t ds__config_reserve_size(const ds_mem_config *c, size_t total, size_t page) {
    double bytes = c->expandable_segments_reserve;
    double most = (double)total * 1.125;
    if (bytes < DS__RESERVE_BYTES)
        bytes *= (double)total;
    else if (bytes > most)
        bytes = most;
    size_t pages = bytes < 1e18 ? (size_t)(bytes / (double)page) : (size_t)1e18 / page;
    return (pages ? pages : 1) * page;
}

#endif
