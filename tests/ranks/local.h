/* Runs a test of process groups with the engine "local" or "nccl": a thread for each rank. */
#ifndef RANKS_LOCAL_H
#define RANKS_LOCAL_H

#include "tests.h"

static void *local_rank(void *user) {
    place_run(user);
    return NULL;
}

/* Runs a test with a number of ranks. Returns the number of failed checks. */
static int local_run(const ranks_test *test, const char *engine, int size, int layout, int type) {
    place places[RANKS];
    pthread_t threads[RANKS];
    atomic_store(&failures, 0);
    running = test->name;
    memset(places, 0, sizeof places);
    if (ds_ranks_id_create(engine, places[0].id, sizeof places[0].id) < 0) {
        printf("%s\n", ds_error_get_last());
        return 1;
    }
    for (int r = 0; r < size; r++) {
        places[r].engine = engine;
        memcpy(places[r].id, places[0].id, sizeof places[0].id);
        places[r].rank = r;
        places[r].size = size;
        places[r].type = type;
        places[r].layout = layout;
        places[r].test_fn = test->test_fn;
        if (pthread_create(&threads[r], NULL, local_rank, &places[r]) != 0)
            abort();
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    return atomic_load(&failures);
}

#endif
