/* Process groups with the engine "local": each rank is a thread. The tests are those of
   tests/ranks. DS_TEST_DRIVER=cpu or cuda: only with its devices. DS_RANKS_SIZE: only with that
   number of ranks. DS_RANKS_PROGRAMS, DS_RANKS_SEED: number of random programs, and the first one.
   */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "unit.h"
#include "../ranks/local.h"

/* Returns 1 if the environment does not exclude devices of the type. */
static int is_chosen(int type) {
    const char *driver = getenv("DS_TEST_DRIVER");
    int count = 0;
    if (driver && strcmp(driver, type == DS_DEVICE_CPU ? "cpu" : "cuda") != 0)
        return 0;
    return ds_device_get_count((ds_device_type)type, &count) == DS_OK && count > 0;
}

/* Runs a test with each number of ranks and each layout. On GPUs, which are slow here, with a few.
   */
static void run(void **state) {
    const ranks_test *test = *state;
    const char *only = getenv("DS_RANKS_SIZE");
    int types[] = { DS_DEVICE_CPU, DS_DEVICE_CUDA };
    int runs = 0;
    limit_time();
    for (int t = 0; t < 2; t++) {
        int is_cuda = types[t] == DS_DEVICE_CUDA;
        int sizes = is_cuda ? test->sizes & (1 << 1 | 1 << 3) : test->sizes;
        if (!(test->engines & (is_cuda ? ON_CUDA : ON_LOCAL)) || !is_chosen(types[t]))
            continue;
        for (int size = 1; size <= RANKS; size++)
            for (int layout = 1; layout <= 3; layout++)
                if (sizes >> size & 1 && test->layouts >> layout & 1 &&
                    (!only || atoi(only) == size)) {
                    runs++;
                    if (local_run(test, "local", size, layout, types[t]) != 0)
                        fail_msg("%s: %d ranks, layout %d, %s", test->name, size, layout,
                                 is_cuda ? "cuda" : "cpu");
                }
    }
    alarm(0);
    if (!runs)
        skip();
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[RANKS_TESTS];
    size_t count = 0;
    const char *seed = getenv("DS_RANKS_SEED");
    test_seed = seed ? strtoull(seed, NULL, 10) : 1;
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    for (size_t i = 0; i < RANKS_TESTS; i++)
        if (ranks_tests[i].engines & (ON_LOCAL | ON_CUDA) &&
            (argc < 2 || strstr(ranks_tests[i].name, argv[1])))
            tests[count++] = (struct CMUnitTest){ ranks_tests[i].name, run, NULL, NULL,
                                                  (void *)(uintptr_t)&ranks_tests[i] };
    int failed = _cmocka_run_group_tests("ranks", tests, count, NULL, NULL);
    return ds_shutdown() < 0 ? 1 : failed;
}
