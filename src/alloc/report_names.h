/* alloc/report_names.h - memory statistics by name.

   Maps PyTorch's names of memory statistics to members of ds_mem_stats (ds__mem_stats_sum).
   ds_mem_stats_get_by_name reads one value; ds_mem_stats_get_name lists the names.

   Invariants: ds__mem_stats_sum is sorted in the order of strcmp, because the look-up is a binary
   search. Every entry names an int64_t member.
   Locks: none.
   Threads: any. The table is constant, and ds_mem_stats_get_name needs no initialised library. */
#ifndef DS__ALLOC_REPORT_NAMES_H
#define DS__ALLOC_REPORT_NAMES_H

#include "../api/mem_stats.h"
#include "../core/internal.h"

/* PyTorch's names, in the order of strcmp. */
#define DS__STAT4(name, member)                                      \
    { name ".allocated", offsetof(ds_mem_stats, member.allocated) }, \
        { name ".current", offsetof(ds_mem_stats, member.current) }, \
        { name ".freed", offsetof(ds_mem_stats, member.freed) }, {   \
        name ".peak", offsetof(ds_mem_stats, member.peak)            \
    }
#define DS__STAT12(name, member)                              \
    DS__STAT4(name ".all", member[DS_STAT_ALL]),              \
        DS__STAT4(name ".large_pool", member[DS_STAT_LARGE]), \
        DS__STAT4(name ".small_pool", member[DS_STAT_SMALL])
#define DS__STAT1(member) \
    { #member, offsetof(ds_mem_stats, member) }

static const struct ds__mstat {
    const char *name;
    size_t offset;
} ds__mem_stats_sum[] = { DS__STAT12("active", active),
                          DS__STAT12("active_bytes", active_bytes),
                          DS__STAT12("allocated_bytes", allocated_bytes),
                          DS__STAT12("allocation", allocation),
                          DS__STAT12("inactive_split", inactive_split),
                          DS__STAT12("inactive_split_bytes", inactive_split_bytes),
                          DS__STAT1(max_split_size),
                          DS__STAT1(num_alloc_retries),
                          DS__STAT1(num_device_alloc),
                          DS__STAT1(num_device_free),
                          DS__STAT1(num_oom_rejections),
                          DS__STAT1(num_ooms),
                          DS__STAT1(num_sync_all_streams),
                          DS__STAT4("oversize_allocations", oversize_allocations),
                          DS__STAT4("oversize_segments", oversize_segments),
                          DS__STAT12("requested_bytes", requested_bytes),
                          DS__STAT12("reserved_bytes", reserved_bytes),
                          DS__STAT12("segment", segment) };

#define DS__STATS (sizeof ds__mem_stats_sum / sizeof ds__mem_stats_sum[0])

DSDEF const char *(ds_mem_stats_get_name)(size_t index) {
    return index < DS__STATS ? ds__mem_stats_sum[index].name : NULL;
}

DSDEF ds_result(ds_mem_stats_get_by_name)(const ds_mem_stats *stats, const char *name,
                                          int64_t *out) {
    char alias[64];
    const char *wanted = name;
    if (out)
        *out = 0;
    DS__ENTER("ds_mem_stats_get_by_name");
    DS__REQUIRE(stats, "stats is NULL");
    DS__REQUIRE(name && out, "%s is NULL", name ? "out" : "name");
    if (!strncmp(name, "allocated.", 10) && strlen(name) < 50) { /* as in PyTorch's documents */
        snprintf(alias, sizeof alias, "allocation.%s", name + 10);
        wanted = alias;
    }
    for (size_t low = 0, high = DS__STATS; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(wanted, ds__mem_stats_sum[middle].name);
        if (order == 0) {
            memcpy(out, (const char *)stats + ds__mem_stats_sum[middle].offset, sizeof *out);
            return DS_OK;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "there is no statistic '%.80s'; ds_mem_stats_get_name lists them", name);
}

#endif
