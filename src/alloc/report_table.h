/* alloc/report_table.h - table of ds_mem_write_summary.

   Implements ds_mem_write_summary: writes the statistics of a device as the table of
   torch.cuda.memory_summary (ds__report_table_write), row by row to the user's writer.

   Invariants: The text is PyTorch's apart from the name in the title, also on CPU devices. The
   rows of one metric share the unit of each column; the row of all sizes determines it.
   Locks: none of its own. ds_mem_get_stats stops the device; the writer is called after that,
   with no lock held.
   Threads: any caller's thread. devstream refuses calls from inside the writer. */
#ifndef DS__ALLOC_REPORT_TABLE_H
#define DS__ALLOC_REPORT_TABLE_H

#include "../base/text_writer.h"
#include "../core/internal.h"
#include "stats.h"

/* Writes a value in the unit of its column, which suits `unit_of`, the value of the first row. */
static void ds__report_cell_format(char out[32], int counts, int64_t value, int64_t unit_of) {
    static const char *const sizes[] = { "B  ", "KiB", "MiB", "GiB", "TiB", "PiB" };
    static const char *const thousands[] = { "  ", "K ", "M " };
    const int64_t from = counts ? 750000 : 768 * 1024;
    const int64_t step = counts ? 1000 : 1024;
    int unit = 0;
    for (; unit < (counts ? 2 : 5) && unit_of >= from; unit++) {
        value /= step;
        unit_of /= step;
    }
    if (counts)
        snprintf(out, 32, "%7lld %s", (long long)value, thousands[unit]);
    else
        snprintf(out, 32, "%6lld %s", (long long)value, sizes[unit]);
}

/* Writes the row of a metric; `unit_of`: the row of all sizes. */
static void ds__report_row_write(ds__text_writer *p, const char *name, int counts,
                                 const ds_mem_stat *s, const ds_mem_stat *unit_of) {
    char cell[4][32];
    ds__report_cell_format(cell[0], counts, s->current, unit_of->current);
    ds__report_cell_format(cell[1], counts, s->peak, unit_of->peak);
    ds__report_cell_format(cell[2], counts, s->allocated, unit_of->allocated);
    ds__report_cell_format(cell[3], counts, s->freed, unit_of->freed);
    ds__text_writer_print(p, "| %-21s | %s | %s | %s | %s |\n", name, cell[0], cell[1], cell[2],
                          cell[3]);
}

static void ds__report_rule_write(ds__text_writer *p, char c) {
    char rule[76];
    memset(rule, c, 75);
    rule[75] = 0;
    ds__text_writer_print(p, "|%s|\n", rule);
}

static void ds__report_table_write(ds__text_writer *p, int device, const ds_mem_stats *s,
                                   int abbreviated) {
    const struct {
        const char *name;
        const ds_mem_stat *stat;
        int counts;
    } rows[] = { { "Allocated memory", s->allocated_bytes, 0 },
                 { "Active memory", s->active_bytes, 0 },
                 { "Requested memory", s->requested_bytes, 0 },
                 { "GPU reserved memory", s->reserved_bytes, 0 },
                 { "Non-releasable memory", s->inactive_split_bytes, 0 },
                 { "Allocations", s->allocation, 1 },
                 { "Active allocs", s->active, 1 },
                 { "GPU reserved segments", s->segment, 1 },
                 { "Non-releasable allocs", s->inactive_split, 1 } };

    ds__report_rule_write(p, '=');
    ds__text_writer_print(p, "| %16s devstream memory summary, device ID %-20d |\n", "", device);
    ds__report_rule_write(p, '-');
    ds__text_writer_print(p, "|  %9s CUDA OOMs: %-12lld | %6s cudaMalloc retries: %-8lld  |\n", "",
                          (long long)s->num_ooms, "", (long long)s->num_alloc_retries);
    ds__report_rule_write(p, '=');
    ds__text_writer_print(
        p, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ds_mem_stat *all = &rows[i].stat[DS_STAT_ALL];
        ds__report_rule_write(p, '-');
        ds__report_row_write(p, rows[i].name, rows[i].counts, all, all);
        if (abbreviated)
            continue;
        ds__report_row_write(p, "      from large pool", rows[i].counts,
                             &rows[i].stat[DS_STAT_LARGE], all);
        ds__report_row_write(p, "      from small pool", rows[i].counts,
                             &rows[i].stat[DS_STAT_SMALL], all);
    }
    ds__report_rule_write(p, '-');
    ds__report_row_write(p, "Oversize allocations", 1, &s->oversize_allocations,
                         &s->oversize_allocations);
    ds__report_rule_write(p, '-');
    ds__report_row_write(p, "Oversize GPU segments", 1, &s->oversize_segments,
                         &s->oversize_segments);
    ds__report_rule_write(p, '=');
}

DSDEF ds_result(ds_mem_write_summary)(ds_device device, int abbreviated, ds_write_fn write_fn,
                                      void *user) {
    ds_mem_stats stats;
    DS__MEM_ENTER("ds_mem_write_summary");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    DS__RESOLVE(device);
    ds_site site = ds__tls.site;
    ds_result r = (ds_mem_get_stats)(device, &stats);
    if (r < 0)
        return r;
    ds__tls.fn = "ds_mem_write_summary";
    ds__tls.site = site;
    ds__text_writer writer = { write_fn, user, 0, 0 };
    ds__report_table_write(&writer, device.index, &stats, abbreviated);
    return ds__text_writer_result(&writer);
}

#endif
