/* Process groups with a process for each rank: mpiexec -n N collectives [NAME]. The tests are those
   of tests.h. Rank 0 prints a line for each test, which has passed if it has passed on all ranks.
   DS_RANKS_ENGINE: "nccl" in place of "mpi"; DS_RANKS_FILES is then the path with which the names
   of the files of ids begin. */
#include <dlfcn.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "tests.h"

/* Returns the number of ranks on which checks of the test have failed. */
static int sum_failures(place *p) {
    int64_t one = 1;
    int32_t failed = atomic_load(&failures) != 0;
    tile x = tile_make(p, 0, FORM_DENSE, ds_int32(), 1, &one);
    const ds_tensor *list = x.t;
    ds_comm_options o = options_of(p, 0);
    o.ranks = p->ranks;
    tile_write(p, &x, &failed);
    OK(ds_comm_all_reduce(&list, &list, 1, DS_REDUCE_SUM, &o));
    tile_read(p, &x, &failed);
    tile_free(p, &x);
    return failed;
}

/* Sets the engine, and the id of the next group. */
static void place_engine(place *p) {
    static int number;
    const char *engine = getenv("DS_RANKS_ENGINE");
    const char *files = getenv("DS_RANKS_FILES");
    p->engine = engine ? engine : "mpi";
    if (engine)
        snprintf(p->id, sizeof p->id, "file:%s%d", files ? files : "", number++);
}

static int process_run(place *world, const ranks_test *test, int layout) {
    place p;
    running = test->name;
    limit_time();
    atomic_store(&failures, 0);
    memset(&p, 0, sizeof p);
    place_engine(&p);
    p.rank = world->rank;
    p.size = world->size;
    p.type = world->type;
    p.layout = layout;
    p.test_fn = test->test_fn;
    place_run(&p);
    return sum_failures(world);
}

/* With gpu_mpi.c, messages were in memory of a GPU. Returns 0 if none was. */
static int gpu_messages_check(const place *world) {
    int (*messages)(void) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "gpu_mpi_messages");
    memcpy(&messages, &found, sizeof found);
    int none = messages && messages() == 0;
    if (messages && world->rank == 0)
        printf("%s  %d messages were in memory of a GPU\n", none ? "FAIL" : "ok  ", messages());
    return !none;
}

int main(int argc, char **argv) {
    const char *driver = getenv("DS_TEST_DRIVER");
    const char *seed = getenv("DS_RANKS_SEED");
    ds_ranks_launch launch;
    place world;
    int passed = 0;
    int failed = 0;
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    test_seed = seed ? strtoull(seed, NULL, 10) : 1;
    ds_ranks_launch_get(&launch);
    memset(&world, 0, sizeof world);
    place_engine(&world);
    world.rank = launch.rank;
    world.size = launch.size;
    world.type = driver && strcmp(driver, "cuda") == 0 ? DS_DEVICE_CUDA : DS_DEVICE_CPU;
    world.layout = 1;
    limit_time();
    if (launch.size < 1 || launch.size > RANKS || !place_begin(&world))
        return 1;
    for (size_t i = 0; i < RANKS_TESTS; i++) {
        const ranks_test *t = &ranks_tests[i];
        int bad = 0;
        int needs =
            (is_mpi(&world) ? ON_MPI : ON_NCCL) | (world.type == DS_DEVICE_CUDA ? ON_CUDA : 0);
        if ((t->engines & needs) != needs || !(t->sizes >> world.size & 1) ||
            (argc > 1 && !strstr(t->name, argv[1])))
            continue;
        for (int layout = 1; layout <= 3; layout++)
            if (t->layouts >> layout & 1)
                bad += process_run(&world, t, layout);
        passed += !bad;
        failed += bad != 0;
        if (world.rank == 0)
            printf("%s  %s, %d ranks\n", bad ? "FAIL" : "ok  ", t->name, world.size);
        fflush(stdout);
    }
    failed += !gpu_messages_check(&world);
    if (world.rank == 0)
        printf("ranks: %d passed, %d failed with %d ranks\n", passed, failed, world.size);
    place_end(&world);
    return ds_shutdown() < 0 || failed > 0;
}
