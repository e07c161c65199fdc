/* Limits of control groups: files as Linux has them, in a folder that stands for the root. */
#define _GNU_SOURCE /* nftw */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

#include <ftw.h>
#include <sys/stat.h>

static char root[64];

/* Writes a file below the root, with the folders above it. */
static void put(const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *at = strchr(name + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(name, 0700);
        *at = '/';
    }
    FILE *f = fopen(name, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        fail_msg("%s: %s", name, strerror(errno));
}

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)is;
    (void)kind;
    (void)at;
    return remove(path);
}

static int begin(void **state) {
    (void)state;
    strcpy(root, "/tmp/ds-cgroup-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int end(void **state) {
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* One hierarchy of version 2, the process in this group. */
static void put_version_2(const char *group, const char *top) {
    char text[512];
    snprintf(text, sizeof text, "0::%s\n", group);
    put("/proc/self/cgroup", text);
    snprintf(text, sizeof text,
             "22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n"
             "35 22 0:30 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
             top);
    put("/proc/self/mountinfo", text);
}

static void expect(uint64_t processors, uint64_t memory) {
    ds__cgroup_limit limit = ds__cgroup_limits(root);
    assert_int_equal(limit.processors, processors);
    assert_int_equal(limit.memory, memory);
}

static void test_without_groups_there_is_no_limit(void **state) {
    (void)state;
    expect(UINT64_MAX, UINT64_MAX);
    put_version_2("/", "/");
    expect(UINT64_MAX, UINT64_MAX);
}

static void test_version_2_has_cpu_max_and_memory_max(void **state) {
    (void)state;
    put_version_2("/app", "/");
    put("/sys/fs/cgroup/app/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/app/memory.max", "536870912\n");
    expect(3, 536870912);
}

static void test_max_is_no_limit(void **state) {
    (void)state;
    put_version_2("/app", "/");
    put("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/app/memory.max", "max\n");
    expect(UINT64_MAX, UINT64_MAX);
}

static void test_a_part_of_a_processor_is_one(void **state) {
    (void)state;
    put_version_2("/app", "/");
    put("/sys/fs/cgroup/app/cpu.max", "5000 100000\n");
    expect(1, UINT64_MAX);
}

static void test_the_smallest_limit_up_to_the_root_counts(void **state) {
    (void)state;
    put_version_2("/pod/app/worker", "/");
    put("/sys/fs/cgroup/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/pod/app/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/pod/app/worker/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/memory.max", "1000000\n");
    put("/sys/fs/cgroup/pod/memory.max", "max\n");
    put("/sys/fs/cgroup/pod/app/worker/memory.max", "2000000\n");
    put("/sys/fs/cgroup/pod/other/memory.max", "5\n");
    expect(2, 1000000);
}

static void test_a_container_sees_its_own_group_at_the_mount_point(void **state) {
    (void)state;
    put_version_2("/docker/abc", "/docker/abc");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/memory.max", "1000000\n");
    expect(2, 1000000);
    put_version_2("/docker/abc/inner", "/docker/abc");
    put("/sys/fs/cgroup/inner/memory.max", "900000\n");
    expect(2, 900000);
    put_version_2("/docker/abcd", "/docker/abc"); /* beside the mount point */
    expect(2, 1000000);
    put_version_2("/../other", "/");
    expect(2, 1000000);
}

static void test_version_1_has_a_hierarchy_for_each_controller(void **state) {
    (void)state;
    put("/proc/self/cgroup", "12:memory:/pod/app\n"
                             "5:cpu,cpuacct:/slice\n"
                             "3:cpuset:/elsewhere\n"
                             "1:name=systemd:/user\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_quota_us", "150000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_period_us", "50000\n");
    put("/sys/fs/cgroup/cpuset/elsewhere/cpu.cfs_quota_us", "1\n");
    put("/sys/fs/cgroup/cpuset/elsewhere/cpu.cfs_period_us", "1\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "700000\n");
    put("/sys/fs/cgroup/memory/pod/app/memory.limit_in_bytes", "800000\n");
    expect(3, 700000);
}

static void test_both_versions_count_where_both_are_mounted(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/app\n0::/app\n");
    put("/proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory/app/memory.limit_in_bytes", "700000\n");
    put("/sys/fs/cgroup/unified/app/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/unified/app/memory.max", "600000\n");
    expect(1, 600000);
}

static void test_damaged_files_are_no_limit(void **state) {
    (void)state;
    char line[6000];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = 0;
    put("/proc/self/cgroup", "no colon\n:\n0::/app\n");
    put("/proc/self/mountinfo", line);
    expect(UINT64_MAX, UINT64_MAX);
    memcpy(line + 4000, "\n1 2 3 / /sys/fs/cgroup rw - cgroup2 c rw\n1 - cgroup2\n", 54);
    line[4054] = 0;
    put("/proc/self/mountinfo", line);
    put("/sys/fs/cgroup/app/cpu.max", "100000\n"); /* no period */
    put("/sys/fs/cgroup/app/memory.max", "0\n");
    put("/sys/fs/cgroup/cpu.max", "");
    expect(UINT64_MAX, UINT64_MAX);
    put("/sys/fs/cgroup/memory.max", "4096\n"); /* behind a line that is too long */
    expect(UINT64_MAX, 4096);
}

static void test_the_defaults_are_within_the_limits_of_this_process(void **state) {
    ds__cgroup_limit limit = ds__cgroup_limits("");
    (void)state;
    assert_true((uint64_t)ds__os_processors() <= limit.processors);
    assert_true((uint64_t)ds__os_memory() <= limit.memory);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(test_without_groups_there_is_no_limit),
        IN_A_FOLDER(test_version_2_has_cpu_max_and_memory_max),
        IN_A_FOLDER(test_max_is_no_limit),
        IN_A_FOLDER(test_a_part_of_a_processor_is_one),
        IN_A_FOLDER(test_the_smallest_limit_up_to_the_root_counts),
        IN_A_FOLDER(test_a_container_sees_its_own_group_at_the_mount_point),
        IN_A_FOLDER(test_version_1_has_a_hierarchy_for_each_controller),
        IN_A_FOLDER(test_both_versions_count_where_both_are_mounted),
        IN_A_FOLDER(test_damaged_files_are_no_limit),
        cmocka_unit_test(test_the_defaults_are_within_the_limits_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
