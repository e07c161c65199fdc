/* Placement of workers and streams of the CPU driver: nodes of memory, groups of workers, and their
   lists of ready streams. The nodes of the machine are replaced by those of a test. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static int fake_count;                   /* nodes; 0: those of the machine */
static unsigned fake_node[DS__OS_NODES]; /* the first processor of each; it has two */
static unsigned fake_size;

static int some_nodes(const char *root, const ds__os_affinity *allowed, ds__os_affinity *out) {
    if (!fake_count)
        return ds__os_nodes(root, allowed, out);
    memset(out, 0, (size_t)fake_count * sizeof *out);
    for (int n = 0; n < fake_count; n++)
        for (unsigned i = 0; i < fake_size; i++)
            ds__os_affinity_add(&out[n], fake_node[n] + i);
    return fake_count;
}

#define ds__os_nodes some_nodes
#include "devstream.h"
#undef ds__os_nodes
#include "unit.h"

static ds_kernel kernel;
static _Atomic int runs, told, blocked;
static ds__os_affinity seen; /* the mask of the worker that ran the kernel last */

enum { QUICK, BLOCK, LOOK };

static int work(size_t first, size_t count, const void *args) {
    int what = *(const int *)args;
    (void)first, (void)count;
    if (what == LOOK)
        ds__os_affinity_get(&seen);
    if (what == BLOCK) {
        blocked++;
        while (!told)
            ds__os_sleep(100000);
    }
    runs++;
    return 0;
}

static void start(int workers, int devices) {
    runs = told = blocked = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = workers, .devices = devices } }));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "work", .cpu_fn = work, .args_size = sizeof(int) }, &kernel));
}

static int end(void **state) {
    (void)state;
    told = 1;
    fake_count = 0;
    return ds_shutdown() < 0;
}

static ds__cpu_stream *native_of(ds_stream stream) {
    ds_stream_native native;
    ok(ds_stream_export(stream, &native));
    return native.handle;
}

static void launch(ds_stream stream, int what) {
    ok(ds_kernel_launch(kernel, 1, &what, sizeof what, stream));
}

/* ---- nodes ---- */

static char folder[64];

static void write_node(int node, const char *list) {
    char path[256];
    snprintf(path, sizeof path, "mkdir -p %s/sys/devices/system/node/node%d", folder, node);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", folder, node);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", list);
    fclose(f);
}

static int begin_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/devstream-nodes-XXXXXX");
    return !mkdtemp(folder);
}

static int end_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0;
}

static ds__os_affinity mask_of(const char *list) {
    ds__os_affinity mask;
    ds__os_cpulist_read(list, &mask);
    return mask;
}

static void assert_mask(const ds__os_affinity *mask, const char *list) {
    ds__os_affinity want = mask_of(list);
    assert_memory_equal(mask, &want, sizeof want);
}

static void test_lists_of_processors_are_read(void **state) {
    (void)state;
    ds__os_affinity mask = mask_of("0-3,8,10-11\n");

    assert_int_equal(ds__os_affinity_count(&mask), 7);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(ds__os_affinity_has(&mask, i), i <= 3 || i == 8 || i == 10 || i == 11);
    mask = mask_of("\n");
    assert_int_equal(ds__os_affinity_count(&mask), 0);
    mask = mask_of("8190-99999");
    assert_int_equal(ds__os_affinity_count(&mask), 2);
}

static void test_nodes_have_the_allowed_processors(void **state) {
    ds__os_affinity allowed = mask_of("0-6,16");
    ds__os_affinity node[DS__OS_NODES];
    (void)state;
    write_node(0, "0-3,16-19");
    write_node(1, "8-11"); /* none is allowed */
    write_node(2, "");     /* memory without processors */
    write_node(5, "4-7");

    int count = ds__os_nodes(folder, &allowed, node);

    assert_int_equal(count, 2);
    assert_mask(&node[0], "0-3,16");
    assert_mask(&node[1], "4-6");
}

static void test_the_last_node_has_the_rest(void **state) {
    ds__os_affinity allowed = mask_of("0-31");
    ds__os_affinity node[DS__OS_NODES];
    char list[16];
    (void)state;
    for (int n = 0; n < DS__OS_NODES + 4; n++) {
        snprintf(list, sizeof list, "%d", n);
        write_node(n, list);
    }

    assert_int_equal(ds__os_nodes(folder, &allowed, node), DS__OS_NODES);

    assert_mask(&node[0], "0");
    assert_mask(&node[DS__OS_NODES - 1], "15-19");
}

static void test_without_files_there_is_one_node(void **state) {
    ds__os_affinity allowed = mask_of("2,5");
    ds__os_affinity node[DS__OS_NODES];
    (void)state;

    assert_int_equal(ds__os_nodes(folder, &allowed, node), 1);

    assert_mask(&node[0], "2,5");
}

/* ---- groups ---- */

static void test_few_workers_are_one_group(void **state) {
    (void)state;
    start(DS__CPU_GROUP_WORKERS, 1);

    assert_int_equal(ds__cpu.groups, 1);
}

static void test_each_group_has_workers(void **state) {
    static const int workers[] = { 2, 9, 40, 128, 256 };
    static const int nodes[] = { 1, 2, 3, 16 };
    (void)state;
    fake_size = 2;
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++)
        for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
            int count[DS__CPU_GROUPS] = { 0 };
            fake_count = nodes[k];
            for (int n = 0; n < fake_count; n++)
                fake_node[n] = 2 * (unsigned)n;
            start(workers[i], 1);

            assert_in_range(ds__cpu.groups, 1, DS__CPU_GROUPS);
            assert_int_equal(ds__cpu.nodes, nodes[k] < workers[i] ? nodes[k] : workers[i]);
            for (int w = 0; w < workers[i]; w++) {
                assert_in_range(ds__cpu.worker[w].group, 0, ds__cpu.groups - 1);
                count[ds__cpu.worker[w].group]++;
            }
            for (int g = 0; g < ds__cpu.groups; g++)
                assert_true(count[g] > 0);
            ok(ds_shutdown());
        }
    start(2, 1);
}

static void test_a_seed_makes_one_group(void **state) {
    (void)state;
    runs = told = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 64, .seed = 7 } }));
    ds_stream stream;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));

    assert_int_equal(ds__cpu.groups, 1);
    assert_int_equal(native_of(stream)->group, 0);
}

static void test_streams_of_a_device_are_on_its_node(void **state) {
    int used[DS__CPU_GROUPS] = { 0 };
    (void)state;
    fake_count = 2;
    fake_size = 2;
    fake_node[0] = 0;
    fake_node[1] = 2;
    start(64, 4);
    assert_int_equal(ds__cpu.node_groups, 4);

    for (int i = 0; i < 64; i++) {
        ds_stream stream;
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(i % 4) }, &stream));
        int group = native_of(stream)->group;
        assert_int_equal(group / 4, i % 2);
        used[group]++;
    }
    for (int g = 0; g < 8; g++)
        assert_true(used[g] > 0);
}

/* Runs a kernel on a machine that seems to have two nodes with one processor, and writes the mask
   of its worker to `seen`. Returns the processor. */
static unsigned look_on_two_nodes(const char *affinity) {
    ds__os_affinity allowed;
    ds_stream stream;
    ds__os_affinity_get(&allowed);
    unsigned other = 1;
    while (other < DS__OS_PROCESSORS && !ds__os_affinity_has(&allowed, other))
        other++;
    fake_count = 2;
    fake_size = 1;
    fake_node[0] = fake_node[1] = other;
    runs = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 2, .affinity = affinity } }));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "work", .cpu_fn = work, .args_size = sizeof(int) }, &kernel));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));

    launch(stream, LOOK);
    while (!runs)
        sched_yield();
    return other;
}

static void test_workers_are_bound_to_their_node(void **state) {
    (void)state;

    unsigned processor = look_on_two_nodes(NULL);

    assert_int_equal(ds__os_affinity_count(&seen), 1);
    assert_true(ds__os_affinity_has(&seen, processor));
}

static void test_an_empty_list_binds_no_worker(void **state) {
    ds__os_affinity allowed;
    (void)state;
    ds__os_affinity_get(&allowed);

    look_on_two_nodes("");

    assert_memory_equal(&seen, &allowed, sizeof seen);
}

/* ---- ready streams ---- */

static void test_another_group_takes_the_work_of_a_busy_one(void **state) {
    enum { WORKERS = 2 * DS__CPU_GROUP_WORKERS };

    ds_stream busy[WORKERS];
    ds_stream last;
    int in_group = 0;
    (void)state;
    start(WORKERS, 1);
    assert_int_equal(ds__cpu.groups, 2);
    for (int i = 0; in_group < DS__CPU_GROUP_WORKERS; i++) {
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &busy[i]));
        if (native_of(busy[i])->group == 0) {
            launch(busy[i], BLOCK);
            in_group++;
        }
    }
    while (blocked < DS__CPU_GROUP_WORKERS)
        sched_yield();
    do
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &last));
    while (native_of(last)->group != 0);

    launch(last, QUICK);
    while (ds_stream_query(last) == DS_NOT_READY) /* does not help */
        sched_yield();

    assert_int_equal(runs, 1);
}

/* A worker begins with its own group, but the priority of a stream counts more. */
static void test_priority_counts_more_than_the_group(void **state) {
    (void)state;
    start(2 * DS__CPU_GROUP_WORKERS, 1);
    assert_int_equal(ds__cpu.groups, 2);
    ds__cpu_group *own = &ds__cpu.ready[0];
    ds__cpu_group *other = &ds__cpu.ready[1];
    assert_ptr_equal(ds__cpu_ready_group(0), NULL);

    atomic_store(&other->mask, 1u << 5); /* nothing is listed: workers find no stream */
    assert_ptr_equal(ds__cpu_ready_group(0), other);
    atomic_store(&own->mask, 1u << 5);
    assert_ptr_equal(ds__cpu_ready_group(0), own);
    assert_ptr_equal(ds__cpu_ready_group(1), other);
    atomic_store(&other->mask, 1u << 3);
    assert_ptr_equal(ds__cpu_ready_group(0), other);

    atomic_store(&own->mask, 0);
    atomic_store(&other->mask, 0);
}

/* Creates streams until one belongs to the group. */
static ds_stream stream_of(int group) {
    ds_stream stream;
    do
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    while (native_of(stream)->group != group);
    return stream;
}

/* A worker that runs short operations will look at the lists soon, but first at those of its
   group. */
static void test_a_busy_worker_of_another_group_does_not_count(void **state) {
    (void)state;
    start(2 * DS__CPU_GROUP_WORKERS, 1);
    ds_stream busy = stream_of(0);
    int group = -1;
    for (int i = 0; i < 8; i++)
        launch(busy, QUICK);
    ok(ds_stream_synchronize(busy)); /* the kernel counts as short */
    launch(busy, BLOCK);
    while (!blocked || ds__cpu.parked != ds__cpu.workers - 1)
        sched_yield();
    for (int i = 0; i < ds__cpu.workers; i++)
        if (ds__cpu.worker[i].beat & 1)
            group = ds__cpu.worker[i].group;
    ds_stream other = stream_of(1 - group);
    uint32_t word = ds__cpu.wake_word;

    launch(other, QUICK);

    assert_int_not_equal(ds__cpu.wake_word, word);
    while (ds_stream_query(other) == DS_NOT_READY)
        sched_yield();
    assert_int_equal(runs, 9);
}

static void test_streams_give_way_to_those_of_other_groups(void **state) {
    (void)state;
    start(2 * DS__CPU_GROUP_WORKERS, 1);
    ds__cpu_worker worker = { .group = 0 };
    const ds__cpu_stream *s = native_of(stream_of(0));
    ds__cpu_group *other = &ds__cpu.ready[1];

    atomic_store(&other->mask, 1u << s->level); /* nothing is listed: workers find no stream */
    assert_false(ds__cpu_gives_way(&worker, s, DS__CPU_NOTICE, 1));
    assert_true(ds__cpu_gives_way(&worker, s, DS__CPU_BATCH, 1));
    atomic_store(&other->mask, 1u << (s->level - 1));
    assert_false(ds__cpu_gives_way(&worker, s, DS__CPU_NOTICE - 1, 1));
    assert_true(ds__cpu_gives_way(&worker, s, DS__CPU_NOTICE, 1));
    assert_false(ds__cpu_gives_way(&worker, s, DS__CPU_NOTICE, 0));

    atomic_store(&other->mask, 0);
}

/* A thread has looked at a stream, which was then recycled and is now ready in another group. */
static void test_a_stream_is_taken_out_of_its_own_list_only(void **state) {
    static ds__cpu_stream s; /* of no device, so that no worker runs it */
    (void)state;
    start(2 * DS__CPU_GROUP_WORKERS, 1);
    s.group = 0;
    s.queued = 2;
    s.state = DS__CPU_READY;

    assert_false(ds__cpu_take_ready(&s));

    assert_int_equal(s.queued, 2);
    assert_int_equal(s.state, DS__CPU_READY);
}

static void test_streams_of_all_groups_run(void **state) {
    enum { STREAMS = 40, LAUNCHES = 50 };

    ds_stream stream[STREAMS];
    (void)state;
    start(64, 1);
    assert_int_equal(ds__cpu.groups, 8);
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream[i]));

    for (int k = 0; k < LAUNCHES; k++)
        for (int i = 0; i < STREAMS; i++) {
            launch(stream[i], QUICK);
            if (k % 5 == 4)
                ok(ds_stream_wait_stream(stream[(i + 1) % STREAMS], stream[i]));
        }
    ok(ds_device_synchronize(ds_cpu(0)));

    assert_int_equal(runs, STREAMS * LAUNCHES);
}

int main(void) {
#define FOLDER(name) cmocka_unit_test_setup_teardown(name, begin_folder, end_folder)
#define TEST(name) cmocka_unit_test_teardown(name, end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_of_processors_are_read),
        FOLDER(test_nodes_have_the_allowed_processors),
        FOLDER(test_the_last_node_has_the_rest),
        FOLDER(test_without_files_there_is_one_node),
        TEST(test_few_workers_are_one_group),
        TEST(test_each_group_has_workers),
        TEST(test_a_seed_makes_one_group),
        TEST(test_streams_of_a_device_are_on_its_node),
        TEST(test_workers_are_bound_to_their_node),
        TEST(test_an_empty_list_binds_no_worker),
        TEST(test_another_group_takes_the_work_of_a_busy_one),
        TEST(test_priority_counts_more_than_the_group),
        TEST(test_a_busy_worker_of_another_group_does_not_count),
        TEST(test_streams_give_way_to_those_of_other_groups),
        TEST(test_a_stream_is_taken_out_of_its_own_list_only),
        TEST(test_streams_of_all_groups_run),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
