/* Readers of the library's private functions, and the library itself: environment of launchers,
   files of the system, ids of NCCL and signatures of other ranks. */
#define DEVSTREAM_IMPLEMENTATION
#include "reader.h"

#include "devstream_check.h"
#include "devstream_kernel.h"

/* ---- environment of launchers ---- */

static const char *const launch_names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "MPI_LOCALRANKID",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "MPI_LOCALNRANKS",
    "SLURM_NODEID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_LOCALID",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
};

enum { LAUNCH_NAMES = sizeof launch_names / sizeof *launch_names };

static char *launch_values[LAUNCH_NAMES];

static const char *launch_get(const char *name) {
    for (int i = 0; i < LAUNCH_NAMES; i++)
        if (strcmp(name, launch_names[i]) == 0)
            return launch_values[i];
    stop(name);
}

/* A line sets a variable: its first letter selects the variable. */
static void read_launch(input *in) {
    ds_ranks_launch launch;
    while (in->at < in->end) {
        unsigned i = take_choice(in, LAUNCH_NAMES);
        free(launch_values[i]);
        launch_values[i] = take_text(in, '\n');
    }
    memset(&launch, 7, sizeof launch);
    ds__launch_read(launch_get, &launch);
    if (launch.rank < -1 || launch.size < -1 || launch.local_rank < -1 || launch.local_size < -1 ||
        !memchr(launch.launcher, 0, sizeof launch.launcher))
        stop("a launcher");
    for (int i = 0; i < LAUNCH_NAMES; i++) {
        free(launch_values[i]);
        launch_values[i] = NULL;
    }
}

const reader reader_launch = { "launch", read_launch, 1 };

/* ---- files of the system ---- */

static const char *const system_files[] = {
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/a/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node3/cpulist",
    "sys/bus/pci/devices/0000:01:00.0/max_link_speed",
    "sys/bus/pci/devices/0000:01:00.0/max_link_width",
    "sys/bus/pci/devices/0000:01:00.0/current_link_speed",
    "sys/bus/pci/devices/0000:01:00.0/numa_node",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "sys/bus/pci/devices/0000:01:00.0/vendor",
};

enum { SYSTEM_FILES = sizeof system_files / sizeof *system_files };

static void check_place(char *link) {
    ds__tplace place;
    memset(&place, 0, sizeof place);
    ds__tplace_parse(link, &place);
    if (place.deep < 0 || place.deep > DS__TPLACE_DEEP)
        stop("a place");
    if (place.deep && ds__tplace_rate(&place, place.deep - 1, -1) <= 0)
        stop("a rate");
    ds__tplace_find("0000:01:00.0", &place);
    (void)ds__sys_nvswitch("0000:01:00.0");
    ds__sysfs_port port = ds__sysfs_port_read("0000:01:00.0", "max");
    if (!(port.speed >= 0 && port.speed < 10000) || !(port.width >= 0 && port.width <= 32))
        stop("a port");
}

static void check_lists(void) {
    ds__os_affinity all;
    ds__os_affinity nodes[DS__OS_NODES];
    memset(&all, 255, sizeof all);
    int count = ds__os_nodes(reader_folder, &all, nodes);
    if (count < 1 || count > DS__OS_NODES)
        stop("nodes");
}

/* Patterns of the check layer against keys of reports: the first lines of the input. */
static void check_patterns(const char *path, const char *key) {
    ds__race_options_init();
    ds_result r = ds__race_patterns_read(path);
    check_refusal(r);
    for (size_t i = 0; i < ds__race.patterns; i++)
        (void)ds__race_matches(ds__race.pattern[i], key);
    ds__race_options_init();
}

/* A part of the input up to the next zero byte is a file: its first letter selects the name. */
static void read_files(input *in) {
    char path[512];
    char sysfs[128];
    snprintf(sysfs, sizeof sysfs, "%s/sys", reader_folder);
    setenv("DEVSTREAM_SYSFS", sysfs, 1);
    char *link = take_text(in, '\n');
    const uint8_t *rest = in->at;
    size_t rest_size = (size_t)(in->end - rest);
    while (in->at < in->end) {
        unsigned i = take_choice(in, SYSTEM_FILES);
        size_t n = 0;
        while (in->at + n < in->end && in->at[n])
            n++;
        write_file(system_files[i], in->at, n, path);
        in->at += n + (in->at + n < in->end);
    }
    ds__cgroup_limit limit = ds__cgroup_limits(reader_folder);
    if (!limit.processors || !limit.memory)
        stop("a limit of 0");
    check_lists();
    check_place(link);
    (void)ds__os_cache_parse(link);
    write_file("patterns", rest, rest_size, path);
    check_patterns(path, link);
    remove_files();
    free(link);
}

const reader reader_files = { "files", read_files, 0 };

/* ---- ids and signatures of other ranks ---- */

static void check_id(const char *text) {
    ds__nccl_ticket ticket;
    char again[DS_RANKS_ID_SIZE];
    memset(&ticket, 0, sizeof ticket);
    if (!ds__nccl_id_parse(text, &ticket))
        return;
    ds__nccl_id_format(&ticket, again);
    if (strcmp(again, text) != 0)
        stop("an id is another one");
}

/* The signatures as ds__compare_end has them, each in memory of its size. */
static void check_signatures(input *in) {
    char text[160];
    char *bytes = malloc(DS__RANKS_SIGNATURE);
    if (!bytes)
        stop("malloc");
    take_bytes(in, bytes, DS__RANKS_SIGNATURE);
    (void)ds__compare_text(bytes, text, sizeof text);
    free(bytes);
}

static void read_ids(input *in) {
    ds__nccl_ticket ticket;
    char path[512];
    unsigned what = take(in) % 3;
    if (what == 0) {
        check_signatures(in);
        return;
    }
    size_t size = (size_t)(in->end - in->at);
    write_file("id", in->at, size, path);
    char *text = take_text(in, 0);
    check_id(text);
    ds_result r = ds__nccl_id_read(path, UINT64_MAX, &ticket);
    check_refusal(r);
    if (r == DS_OK && strncmp(text, DS__NCCL_GROW, 5) != 0 && strlen(text) < 256)
        stop("a file has a short id");
    if (what == 2) {
        ds_ranks ranks = { 0 };
        ds_ranks_desc desc = { .engine = "local", .size = 1, .id = text, .record = "" };
        check_refusal(ds_ranks_init(&desc, &ranks));
        if (ranks.id)
            MUST(ds_ranks_finalize(ranks));
    }
    free(text);
}

const reader reader_ids = { "ids", read_ids, 0 };
