/* second.h - a second thread for the limits of copies, collectives and kernels. It spins until it
   is told to run its function, so that waking it is not in the limit. One at a time. */
#ifndef BENCH_SECOND_H
#define BENCH_SECOND_H

#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>

static struct {
    void (*run)(void); /* NULL: there is no second thread */
    pthread_t thread;
    int turn;
    _Alignas(64) atomic_int order; /* the turn to run; negative: the thread ends */
    _Alignas(64) atomic_int done;  /* the last turn that has run */
} bench_second;

static void *bench_second_main(void *user) {
    (void)user;
    for (int turn = 1;; turn++) {
        int order = atomic_load_explicit(&bench_second.order, memory_order_acquire);
        while (order >= 0 && order != turn) {
            bench_pause();
            order = atomic_load_explicit(&bench_second.order, memory_order_acquire);
        }
        if (order < 0)
            return NULL;
        bench_second.run();
        atomic_store_explicit(&bench_second.done, turn, memory_order_release);
    }
}

/* Starts the thread, which will run the function; NULL: no thread. Returns when the thread spins
   and devstream's threads have gone to sleep. */
static void bench_second_begin(void (*run)(void)) {
    bench_second.run = run;
    bench_second.turn = 0;
    atomic_store(&bench_second.order, 0);
    atomic_store(&bench_second.done, 0);
    if (run && pthread_create(&bench_second.thread, NULL, bench_second_main, NULL))
        abort();
    bench_sleep_us(500);
}

/* Lets the thread run its function once. */
static inline void bench_second_go(void) {
    if (bench_second.run)
        atomic_store_explicit(&bench_second.order, ++bench_second.turn, memory_order_release);
}

/* Waits until the function has returned. */
static inline void bench_second_await(void) {
    if (!bench_second.run)
        return;
    while (atomic_load_explicit(&bench_second.done, memory_order_acquire) != bench_second.turn)
        bench_pause();
}

static void bench_second_end(void) {
    if (!bench_second.run)
        return;
    atomic_store(&bench_second.order, -1);
    pthread_join(bench_second.thread, NULL);
}

#endif
