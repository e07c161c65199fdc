/* Names: of devices, data types, statistics, modes and environment variables with modes.

   The first byte selects the kind of name. A name that is accepted must be the same after it was
   written and read again; a refusal leaves zeros. */
#include "reader.h"

static void read_device(const char *text) {
    ds_device d = { 7, 7 };
    ds_device again = { 0, 0 };
    char name[DS_DEVICE_NAME_SIZE];
    ds_result r = ds_device_parse(text, &d);
    check_refusal(r);
    if (r < 0) {
        if (d.type || d.index)
            stop("a refused device is not zeroed");
        return;
    }
    MUST(ds_device_format(d, name, sizeof name));
    MUST(ds_device_parse(name, &again));
    if (d.type != again.type || d.index != again.index)
        stop("a device has another name");
}

static void read_dtype(const char *text) {
    ds_dtype t = { 7, 7, 7 };
    ds_dtype again = { 0, 0, 0 };
    char name[DS_DTYPE_NAME_SIZE];
    ds_result r = ds_dtype_parse(text, &t);
    check_refusal(r);
    if (r < 0) {
        if (t.code || t.bits || t.lanes)
            stop("a refused data type is not zeroed");
        return;
    }
    MUST(ds_dtype_format(t, name, sizeof name));
    MUST(ds_dtype_parse(name, &again));
    if (!ds_dtype_equal(t, again))
        stop("a data type has another name");
}

static void read_statistic(const char *text) {
    ds_mem_stats stats;
    int64_t value = 7;
    MUST(ds_mem_get_stats(ds_cpu(0), &stats));
    ds_result r = ds_mem_stats_get_by_name(&stats, text, &value);
    check_refusal(r);
    if (r < 0 && value)
        stop("an unknown statistic has a value");
}

static void read_sync_mode(const char *text) {
    ds_sync_debug_mode mode;
    ds_result r = ds_sync_debug_set_mode_text(text);
    check_refusal(r);
    MUST(ds_sync_debug_get_mode(&mode));
    if (r < 0 && mode != DS_SYNC_DEBUG_DEFAULT)
        stop("a refused mode is set");
    MUST(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
}

static void read_algorithm(const char *text) {
    static ds_topology *topology;
    const ds_plan *plan = NULL;
    if (!topology)
        MUST(ds_topology_create_of_text("device a b\nlink a b nvlink\n", &topology));
    ds_plan_desc desc = { .what = DS_BROADCAST, .bytes = 64, .algorithm = text };
    ds_result r = ds_plan_get(topology, &desc, &plan);
    check_refusal(r);
    if ((r < 0) != !plan)
        stop("a plan without a result");
}

static void read_engine(const char *text) {
    char id[DS_RANKS_ID_SIZE] = "?";
    ds_result r = ds_ranks_id_create(text, id, sizeof id);
    check_refusal(r);
    if (r < 0 && id[0])
        stop("a refused id is not empty");
}

static void read_names(input *in) {
    static void (*const kinds[])(const char *) = { read_device,    read_dtype,     read_statistic,
                                                   read_sync_mode, read_algorithm, read_engine };
    unsigned kind = take(in) % (sizeof kinds / sizeof *kinds);
    char *text = take_text(in, 0);
    kinds[kind](text);
    free(text);
}

const reader reader_names = { "names", read_names, 0 };
