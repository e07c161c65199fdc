/* Process groups with the engine "nccl" on the stand-ins for NCCL and cudart: each rank is a thread
   with devices of its own. The tests are those of tests/ranks. DS_RANKS_SIZE: only with that number
   of ranks, otherwise with 1, 2 and 3. DS_RANKS_PROGRAMS, DS_RANKS_SEED: number of random programs,
   and the first one. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "unit.h"
#include "../ranks/local.h"

/* Runs a test with each number of ranks and each layout. */
static void run(void **state) {
    const ranks_test *test = *state;
    const char *only = getenv("DS_RANKS_SIZE");
    int sizes = test->sizes & (only ? 1 << atoi(only) : 1 << 1 | 1 << 2 | 1 << 3);
    limit_time();
    for (int size = 1; size <= RANKS; size++)
        for (int layout = 1; layout <= 3; layout++)
            if (sizes >> size & 1 && test->layouts >> layout & 1 &&
                local_run(test, "nccl", size, layout, DS_DEVICE_CUDA) != 0)
                fail_msg("%s: %d ranks, layout %d", test->name, size, layout);
    alarm(0);
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[RANKS_TESTS];
    size_t count = 0;
    const char *seed = getenv("DS_RANKS_SEED");
    test_seed = seed ? strtoull(seed, NULL, 10) : 1;
    setenv("STANDIN_DEVICES", "16", 1);
    for (size_t i = 0; i < RANKS_TESTS; i++)
        if (ranks_tests[i].engines & ON_NCCL && (argc < 2 || strstr(ranks_tests[i].name, argv[1])))
            tests[count++] = (struct CMUnitTest){ ranks_tests[i].name, run, NULL, NULL,
                                                  (void *)(uintptr_t)&ranks_tests[i] };
    int failed = _cmocka_run_group_tests("ranks on NCCL", tests, count, NULL, NULL);
    return ds_shutdown() < 0 ? 1 : failed;
}
