/* What the CPU driver promises by name: nothing blocks what does not depend on it, nothing is
   only pretended, and lifetimes, exits, memory and the other ways of scheduling hold. What CUDA
   promises too is tested there as well; the rest is about host functions side by side, which
   CUDA may run one by one, or about the CPU driver's options and counters. */
#include "harness.h"
#include "random_program.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(long ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

/* A kernel that runs until it is released. */
typedef struct spin_args {
    _Atomic uint32_t *started, *release;
} spin_args;

static int spin_kernel(size_t first, size_t count, const void *args) {
    const spin_args *a = args;
    (void)first;
    (void)count;
    *a->started = 1;
    while (!*a->release)
        sched_yield();
    return 0;
}

typedef struct count_args {
    _Atomic uint64_t *count;
    uint64_t add;
} count_args;

static int count_kernel(size_t first, size_t count, const void *args) {
    const count_args *a = args;
    (void)first;
    (void)count;
    *a->count += a->add;
    return 0;
}

static const ds_param count_params[] = { PARAM(READ_WRITE, count_args, count),
                                         PARAM(VALUE, count_args, add) };
static const ds_param spin_params[] = { PARAM(WRITE, spin_args, started),
                                        PARAM(READ, spin_args, release) };

static ds_kernel make_count(void) {
    return harness_kernel("count", count_kernel, sizeof(count_args), count_params, 2, 0);
}

static ds_kernel make_spin(void) {
    return harness_kernel("spin", spin_kernel, sizeof(spin_args), spin_params, 2, 0);
}

static _Atomic uint64_t *counter(void) {
    return (_Atomic uint64_t *)word(0);
}

static _Atomic uint32_t *flag(void) {
    return (_Atomic uint32_t *)word(0);
}

/* ---- nothing blocks what does not depend on it ---- */

static void count_host(void *user) {
    ++*(_Atomic uint64_t *)user;
}

static void test_64_streams_in_host_functions_do_not_hold_the_65th(void **state) {
    (void)state;

    enum { BLOCKED = 64, N = 1 << 20 };

    static gate gates[BLOCKED];
    ds_stream blocked[BLOCKED], s;
    _Atomic uint64_t ran = 0;
    void *pin, *dev;
    uint64_t *h = word(1), want = 1;
    memset(gates, 0, sizeof gates);
    for (int i = 0; i < BLOCKED; i++) {
        ok(ds_stream_create(NULL, &blocked[i]));
        gate_close(blocked[i], &gates[i]);
    }
    for (int i = 0; i < BLOCKED; i++)
        gate_wait_entered(&gates[i]);
    ok(ds_stream_create(NULL, &s));
    ok(ds_pinned_alloc(N, &pin));
    ok(ds_device_alloc(harness_device(0), N, &dev));
    unsigned char *bytes = pin;
    for (int i = 0; i < N; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 256);
    ok(ds_copy(dev, pin, N, s));
    ok(ds_fill(pin, 0, 1, N, s));
    ok(ds_copy(pin, dev, N, s));
    for (uint64_t i = 0; i < 100; i++) {
        fold(s, h, i);
        want = fold_host(want, i);
    }
    ok(ds_stream_launch_host_func(s, count_host, &ran, NULL)); /* a host function too */
    ok(ds_stream_synchronize(s));
    assert_true(*h == want);
    assert_true(ran == 1);
    for (int i = 0; i < N; i++)
        if (bytes[i] != (unsigned char)(i * 7 + i / 256))
            fail_msg("byte %d differs", i);
    for (int i = 0; i < BLOCKED; i++)
        assert_int_equal(ds_stream_query(blocked[i]), DS_NOT_READY);
    for (int i = 0; i < BLOCKED; i++)
        gate_open(&gates[i]);
    for (int i = 0; i < BLOCKED; i++) {
        ok(ds_stream_synchronize(blocked[i]));
        ok(ds_stream_destroy(blocked[i]));
    }
    ok(ds_stream_destroy(s));
    ok(ds_device_free(dev));
    ok(ds_pinned_free(pin));
}

typedef struct locker {
    pthread_mutex_t *m;
    _Atomic int entered;
    _Atomic int got;
} locker;

static void take_lock(void *user) {
    locker *l = user;
    l->entered = 1;
    pthread_mutex_lock(l->m);
    l->got = 1;
    pthread_mutex_unlock(l->m);
}

static void test_waiting_under_a_lock_a_host_function_wants_returns(void **state) {
    (void)state;
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    locker early = { .m = &m }, late = { .m = &m };
    ds_stream a, b;
    uint64_t *h = word(1), want = 1;
    _Atomic uint64_t ran = 0;
    ok(ds_stream_create(NULL, &a));
    ok(ds_stream_create(NULL, &b));
    harness_warm_up(); /* CUDA loads no kernel while a host function runs */
    pthread_mutex_lock(&m);
    ok(ds_stream_launch_host_func(b, take_lock, &early, NULL));
    while (!early.entered)
        sched_yield();
    ok(ds_stream_launch_host_func(b, take_lock, &late, NULL));
    for (uint64_t i = 0; i < 1000; i++) {
        fold(a, h, i);
        want = fold_host(want, i);
    }
    /* on CUDA b's may hold it up */
    if (harness_is_cpu())
        ok(ds_stream_launch_host_func(a, count_host, &ran, NULL));
    /* must not run b's host function here: this thread has the lock */
    ok(ds_stream_synchronize(a));
    assert_true(*h == want);
    if (harness_is_cpu())
        assert_true(ran == 1);
    assert_int_equal(early.got + late.got, 0);
    assert_int_equal(ds_stream_query(b), DS_NOT_READY);
    pthread_mutex_unlock(&m);
    ok(ds_stream_synchronize(b));
    assert_int_equal(early.got + late.got, 2);
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
    pthread_mutex_destroy(&m);
}

static void test_a_timed_wait_of_1_ms_on_a_long_kernel_comes_back(void **state) {
    (void)state;
    _Atomic uint32_t *release = flag();
    ds_kernel spin = make_spin();
    ds_stream s;
    ds_event e;
    ok(ds_stream_create(NULL, &s));
    ok(ds_kernel_launch(spin, 1, &(spin_args){ flag(), release }, sizeof(spin_args), s));
    ok(ds_stream_record_event(s, 0, &e));
    uint64_t longest = 0;
    for (int i = 0; i < 20; i++) {
        uint64_t t0 = now_ns();
        ds_result r =
            i % 2 ? ds_event_synchronize_for(e, 1000000) : ds_stream_synchronize_for(s, 1000000);
        uint64_t t = now_ns() - t0;
        assert_int_equal(r, DS_NOT_READY);
        assert_true(t >= 1000000); /* it may be late, not early */
        if (t > longest)
            longest = t;
    }
    print_message("          a timed wait of 1 ms took at most %.3f ms\n", (double)longest / 1e6);
    assert_int_equal(ds_stream_synchronize_for(s, 0), DS_NOT_READY);
    *release = 1;
    ok(ds_stream_synchronize_for(s, UINT64_MAX)); /* no wrap */
    ok(ds_event_synchronize_for(e, 1000000));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(spin));
}

static void test_a_kernel_after_idleness_runs_although_nobody_calls(void **state) {
    (void)state;

    enum { ROUNDS = 20 };

    ds_kernel k = make_count();
    ds_stream s;
    _Atomic uint64_t *done = counter();
    uint64_t sum = 0, longest = 0;
    ok(ds_stream_create(NULL, &s));
    for (uint64_t i = 0; i < ROUNDS; i++) {
        pause_ms(10); /* all threads have gone to sleep meanwhile */
        uint64_t t0 = now_ns();
        ok(ds_kernel_launch(k, 1, &(count_args){ done, 1 }, sizeof(count_args), s));
        while (*done != i + 1)
            sched_yield();
        uint64_t t = now_ns() - t0;
        sum += t;
        if (t > longest)
            longest = t;
    }
    print_message("          a kernel after 10 ms of idleness: %.1f us on average, %.1f at most\n",
                  (double)sum / (double)ROUNDS / 1e3, (double)longest / 1e3);
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
}

/* ---- lifetimes ---- */

enum { SLOTS = 8, USERS = 3, USES = 3000, RENEWALS = 1500 };

typedef struct arena { /* handles that one thread ends and makes anew while others use them */
    _Atomic uint64_t streams[SLOTS], events[SLOTS];
    _Atomic uint64_t ran, launched; /* host functions */
    /* apart: the two would not count together atomically on every GPU */
    _Atomic uint64_t *kernels_ran, kernels_launched;
    ds_kernel k;
} arena;

typedef struct arena_user {
    arena *a;
    uint64_t rng;
} arena_user;

static size_t pick(uint64_t *x, size_t n) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (size_t)(*x % n);
}

static void tolerate(ds_result r) {
    if (r != DS_OK && r != DS_NOT_READY && r != DS_ERR_INVALID_HANDLE) {
        fprintf(stderr, "%s: %s\n", ds_result_get_name(r), ds_error_get_last());
        abort();
    }
}

static void use_arena(arena *a, uint64_t *x) {
    ds_stream s = { a->streams[pick(x, SLOTS)] }, t = { a->streams[pick(x, SLOTS)] };
    ds_event e = { a->events[pick(x, SLOTS)] };
    ds_result r;
    switch (pick(x, 10)) {
    case 0:
        tolerate(ds_stream_query(s));
        break;
    case 1:
        tolerate(ds_event_record(e, s));
        break;
    case 2:
        tolerate(ds_stream_wait_event(s, e));
        break;
    case 3:
        tolerate(ds_stream_wait_stream(s, t));
        break;
    case 4:
        tolerate(ds_event_query(e));
        break;
    case 5:
        tolerate(ds_event_synchronize(e));
        break;
    case 6:
        tolerate(ds_stream_synchronize(s));
        break;
    case 7:
        tolerate(ds_stream_synchronize_for(s, 10000));
        break;
    case 8:
        r = ds_stream_launch_host_func(s, count_host, &a->ran, NULL);
        tolerate(r);
        if (r == DS_OK)
            a->launched++;
        break;
    default:
        r = ds_kernel_launch(a->k, 1, &(count_args){ a->kernels_ran, 1 }, sizeof(count_args), s);
        tolerate(r);
        if (r == DS_OK)
            a->kernels_launched++;
        break;
    }
}

static void *arena_user_main(void *user) {
    arena_user *u = user;
    for (int i = 0; i < USES; i++)
        use_arena(u->a, &u->rng);
    return NULL;
}

static void *arena_renewer_main(void *user) {
    arena_user *u = user;
    arena *a = u->a;
    for (int i = 0; i < RENEWALS; i++) {
        size_t slot = pick(&u->rng, SLOTS);
        ds_stream s;
        ds_event e;
        if (i % 2) {
            ok_thread(
                ds_stream_create(&(ds_stream_desc){ .flags = (unsigned)pick(&u->rng, 2) }, &s));
            ok_thread(ds_stream_destroy((ds_stream){ atomic_exchange(&a->streams[slot], s.id) }));
        } else {
            ok_thread(ds_event_create(pick(&u->rng, 2) ? DS_EVENT_TIMING : 0, NULL, &e));
            ok_thread(ds_event_destroy((ds_event){ atomic_exchange(&a->events[slot], e.id) }));
        }
    }
    return NULL;
}

static void test_streams_and_events_are_destroyed_while_others_use_them(void **state) {
    (void)state;
    static arena a;
    arena_user users[USERS + 1];
    pthread_t threads[USERS + 1];
    memset(&a, 0, sizeof a);
    a.k = make_count();
    a.kernels_ran = counter();
    for (int i = 0; i < SLOTS; i++) {
        ds_stream s;
        ds_event e;
        ok(ds_stream_create(NULL, &s));
        ok(ds_event_create(0, NULL, &e));
        a.streams[i] = s.id;
        a.events[i] = e.id;
    }
    for (int i = 0; i <= USERS; i++) {
        users[i] = (arena_user){ &a, 12345u + (uint64_t)i * 777u };
        assert_int_equal(pthread_create(&threads[i], NULL,
                                        i < USERS ? arena_user_main : arena_renewer_main,
                                        &users[i]),
                         0);
    }
    for (int i = 0; i <= USERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(a.launched > 0 && a.kernels_launched > 0);
    assert_true(a.ran == a.launched); /* on destroyed streams too */
    assert_true(*a.kernels_ran == a.kernels_launched);
    for (int i = 0; i < SLOTS; i++) {
        ok(ds_stream_destroy((ds_stream){ a.streams[i] }));
        ok(ds_event_destroy((ds_event){ a.events[i] }));
    }
    ok(ds_kernel_destroy(a.k));
}

typedef struct short_lived {
    ds_kernel k;
    _Atomic uint64_t *count;
    int wait;
} short_lived;

static void *short_lived_main(void *user) {
    short_lived *t = user;
    ds_stream own;
    ok_thread(ds_stream_get_per_thread(harness_device(0), &own));
    ok_thread(ds_kernel_launch(t->k, 1, &(count_args){ t->count, 1 }, sizeof(count_args), own));
    if (t->wait)
        ok_thread(ds_stream_synchronize(own));
    return NULL; /* else with its work pending */
}

static void test_10000_short_threads_use_their_own_stream(void **state) {
    (void)state;

    enum { THREADS = HARNESS_EMULATES ? 1000 : 10000, BATCH = 50 };

    ds_kernel k = make_count();
    _Atomic uint64_t *count = counter();
    short_lived both[2] = { { k, count, 0 }, { k, count, 1 } };
    ds_cpu_stats stats;
    int most = 0;
    for (int n = 0; n < THREADS; n += BATCH) {
        pthread_t threads[BATCH];
        for (int i = 0; i < BATCH; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, short_lived_main, &both[i % 2]), 0);
        for (int i = 0; i < BATCH; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        ok(ds_cpu_get_stats(&stats));
        if (stats.streams > most)
            most = stats.streams;
    }
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(*count == THREADS);
    print_message("          at most %d streams alive between batches of %d threads\n", most,
                  BATCH);
    assert_true(most < THREADS / 10); /* they go with their threads */
    ok(ds_kernel_destroy(k));
}

/* ---- exit with work pending ---- */

static gate never; /* stays closed */

static void pending_exit(void) {
    ds_stream s, t;
    ds_kernel k;
    void *flags;
    if (ds_stream_create(NULL, &s) < 0 || ds_stream_create(NULL, &t) < 0 ||
        ds_pinned_alloc(8, &flags) < 0)
        _exit(3);
    if (ds_kernel_create(&(ds_kernel_desc){ .name = "spin",
                                            .cpu_fn = spin_kernel,
                                            .args_size = sizeof(spin_args),
                                            .params = spin_params,
                                            .param_count = 2,
                                            .cuda = harness_cuda_form("spin") },
                         &k) < 0)
        _exit(4);
    memset(flags, 0, 8);
    _Atomic uint32_t *started = flags;
    if (ds_kernel_launch(k, 1, &(spin_args){ started, started + 1 }, sizeof(spin_args), s) < 0)
        _exit(5);
    if (ds_stream_launch_host_func(t, gate_fn, &never, NULL) < 0 ||
        ds_stream_launch_host_func(t, gate_fn, &never, NULL) < 0)
        _exit(6);
    while (!*started)
        sched_yield();
    gate_wait_entered(&never);
    if (ds_stream_query(s) != DS_NOT_READY || ds_stream_query(t) != DS_NOT_READY)
        _exit(7);
}

/* The test starts its own program again with this variable; the child's work is done here, and
   then it exits as from main, in the midst of a kernel and of a host function. */
__attribute__((constructor)) static void child_of_the_exit_test(void) {
    const char *what = getenv("DS_TEST_CHILD");
    if (!what || strcmp(what, "pending_exit") != 0)
        return;
    pending_exit();
    exit(0);
}

static void test_return_from_main_with_work_pending_is_clean(void **state) {
    (void)state;
    for (int round = 0; round < 5; round++) {
        int status =
            harness_respawn((const char *const[]){ "DS_TEST_CHILD=pending_exit", NULL }, NULL);
        if (status == -1)
            fail_msg("the child did not exit");
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* ---- a shared object that holds devstream ---- */

static int thread_count(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

typedef struct guest {
    int (*use)(void);
    int result;
    _Atomic int used, leave;
} guest;

static void *guest_main(void *user) {
    guest *g = user;
    g->result = g->use();
    g->used = 1;
    while (!g->leave)
        sched_yield();
    return NULL; /* after the object is gone: nothing of it may run now */
}

static int (*symbol(void *object, const char *name))(void) {
    void *p = dlsym(object, name);
    int (*fn)(void) = NULL;
    assert_non_null(p);
    memcpy(&fn, &p, sizeof fn); /* ISO C has no conversion from object to function pointers */
    return fn;
}

static void test_a_shared_object_is_loaded_used_and_unloaded_100_times(void **state) {
    (void)state;
    const char *path = getenv("DS_TEST_PLUGIN");
    if (!path || !*path)
        fail_msg("DS_TEST_PLUGIN does not name the plugin");
    pthread_key_t before, after;
    assert_int_equal(pthread_key_create(&before, NULL), 0);
    pthread_key_delete(before);
    int threads = thread_count();
    for (int round = 0; round < 100; round++) {
        void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!object)
            fail_msg("%s", dlerror());
        guest g = { .use = symbol(object, "plugin_use") };
        int (*end)(void) = symbol(object, "plugin_end");
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, guest_main, &g), 0);
        assert_int_equal(g.use(), 0);
        while (!g.used)
            sched_yield();
        assert_int_equal(g.result, 0);
        assert_int_equal(end(), 0);
        assert_int_equal(dlclose(object), 0);
#ifdef __GLIBC__ /* musl never unloads */
        object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        assert_null(object);
#endif
        g.leave = 1;
        assert_int_equal(pthread_join(other, NULL), 0);
    }
    /* the kernel lists an ended thread for a moment longer */
    while (thread_count() > threads)
        sched_yield();
    assert_int_equal(pthread_key_create(&after, NULL), 0);
    pthread_key_delete(after);
    /* keys are few, and taken lowest first: they were given back */
    assert_true(after < before + 50);
}

/* ---- many ---- */

static long resident_bytes(void) {
    long pages = 0, ignored = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%ld %ld", &ignored, &pages) != 2)
        pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static void test_10000_streams_at_once_all_work(void **state) {
    (void)state;

    enum { STREAMS = 10000 };

    static ds_stream s[STREAMS];
    ds_cpu_stats stats;
    _Atomic uint64_t *count = counter();
    harness_restart(NULL); /* the memory of earlier tests must not hide what this one takes */
    ds_kernel k = make_count();
    ok(ds_cpu_get_stats(&stats));
    size_t queue0 = stats.queue_bytes;
    long resident0 = resident_bytes();
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_create(
            &(ds_stream_desc){ .device = harness_device(i % harness_device_count()) }, &s[i]));
    long resident1 = resident_bytes();
    ok(ds_cpu_get_stats(&stats));
    print_message("          %d idle streams: %.1f MiB resident, %.1f MiB of queues\n", STREAMS,
                  (double)(resident1 - resident0) / 1048576.0,
                  (double)(stats.queue_bytes - queue0) / 1048576.0);
    assert_true(stats.streams >= STREAMS);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < STREAMS; i++) {
            ok(ds_kernel_launch(k, 1, &(count_args){ count, 1 }, sizeof(count_args), s[i]));
            if (round)
                ok(ds_stream_wait_stream(s[i], s[(i + 4999) % STREAMS]));
        }
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_synchronize(s[i]));
    assert_true(*count == 3 * STREAMS);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(ds_stream_query(s[i]), DS_OK);
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_destroy(s[i]));
    /* they do go */
    do {
        ok(ds_cpu_get_stats(&stats));
        sched_yield();
    } while (stats.streams > STREAMS / 10);
    ok(ds_kernel_destroy(k));
}

static void test_pending_operations_take_at_most_256_bytes_each(void **state) {
    (void)state;

    enum { PENDING = 100000 };

    gate g = { 0 };
    ds_cpu_stats idle, full;
    ds_stream s;
    _Atomic uint64_t *count = counter();
    harness_restart(NULL); /* no spare blocks of earlier tests */
    ds_kernel k = make_count();
    assert_int_equal(sizeof(count_args), 16);
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g);
    gate_wait_entered(&g);
    ok(ds_cpu_get_stats(&idle));
    for (uint64_t i = 0; i < PENDING; i++)
        ok(ds_kernel_launch(k, 1, &(count_args){ count, i }, sizeof(count_args), s));
    ok(ds_cpu_get_stats(&full));
    gate_open(&g);
    double each = (double)(full.queue_bytes - idle.queue_bytes) / (double)PENDING;
    print_message("          %.1f bytes for each pending operation\n", each);
    ok(ds_stream_synchronize(s));
    assert_true(*count == (uint64_t)PENDING * (PENDING - 1) / 2);
    assert_true(each >= 16); /* the arguments at least: the counter counts */
    assert_true(each <= 256);
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
}

/* Bookkeeping memory that is counted. */
typedef struct meter {
    _Atomic long bytes, blocks;
} meter;

static void *meter_alloc(size_t size, void *user) {
    meter *m = user;
    size_t *p = malloc(size + 64); /* 64: keeps the alignment of malloc */
    if (!p)
        return NULL;
    *p = size;
    m->bytes += (long)size;
    m->blocks++;
    return (char *)p + 64;
}

static void meter_free(void *p, void *user) {
    meter *m = user;
    if (!p)
        return;
    size_t *start = (size_t *)(void *)((char *)p - 64);
    m->bytes -= (long)*start;
    m->blocks--;
    free(start);
}

static void test_a_million_records_and_waits_take_bounded_memory(void **state) {
    (void)state;
    const int pairs = harness_is_cpu() ? 1000000 : 100000, early_pairs = pairs / 10;
    static meter m;
    ds_stream a, b;
    ds_event e;
    ds_cpu_stats early = { 0 }, late; /* zeros on CUDA */
    long bytes = 0, blocks = 0;
    m = (meter){ 0, 0 };
    harness_restart(&(ds_init_desc){ .allocator = { meter_alloc, meter_free, &m } });
    ok(ds_stream_create(NULL, &a));
    ok(ds_stream_create(NULL, &b));
    ok(ds_event_create(0, NULL, &e));
    for (int i = 0; i < pairs; i++) {
        if (i == early_pairs) {
            ok(ds_cpu_get_stats(&early));
            bytes = m.bytes;
            blocks = m.blocks;
        }
        if (i % 2) {
            ok(ds_event_record(e, a));
            ok(ds_stream_wait_event(b, e));
        } else {
            ok(ds_event_record(e, b));
            ok(ds_stream_wait_event(a, e));
        }
        /* so that little is pending */
        if (i % 500 == 499)
            ok(ds_stream_synchronize(a));
    }
    ok(ds_stream_synchronize(a));
    ok(ds_stream_synchronize(b));
    ok(ds_cpu_get_stats(&late));
    print_message("          after %d pairs %ld bytes, after %d %ld\n", early_pairs, bytes, pairs,
                  (long)m.bytes);
    assert_true(bytes > 0);
    assert_true(m.bytes <= bytes + pairs); /* the pairs since have about one byte each */
    assert_true(m.blocks <= blocks + 1000);
    assert_true(late.queue_bytes <= early.queue_bytes + (1 << 20));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
    harness_restart(NULL);
    assert_int_equal(m.blocks, 0);
}

/* ---- other ways of scheduling ---- */

static void test_inline_mode_is_done_at_every_return_and_right(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2, .flags = DS_CPU_INLINE };
    ds_stream s;
    _Atomic uint64_t ran = 0;
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    uint64_t *h = word(1), want = 1, copy = 0;
    ok(ds_stream_create(NULL, &s));
    for (uint64_t i = 0; i < 20; i++) {
        fold(s, h, i);
        want = fold_host(want, i);
        assert_true(*h == want); /* before any synchronisation */
        assert_int_equal(ds_stream_query(s), DS_OK);
        ok(ds_stream_launch_host_func(s, count_host, &ran, NULL));
        assert_true(ran == i + 1);
    }
    ok(ds_copy(&copy, h, 8, s));
    assert_true(copy == want);
    ok(ds_stream_destroy(s));
    for (uint64_t seed = 1; seed <= 10; seed++)
        random_program(seed);
    harness_restart(NULL);
}

static void test_the_seeded_scheduler_gives_the_results_of_the_oracle(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        ds_cpu_desc cpu = { .devices = 2, .seed = seed };
        harness_restart(&(ds_init_desc){ .cpu = &cpu });
        random_program(1);
        random_program(100 + seed);
    }
    harness_restart(NULL);
}

static void test_one_worker_is_enough(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2, .workers = 1, .flags = DS_CPU_NO_SPIN };
    ds_cpu_stats stats;
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    for (uint64_t seed = 201; seed <= 205; seed++)
        random_program(seed);
    ok(ds_cpu_get_stats(&stats));
    assert_int_equal(stats.workers, 1);
    harness_restart(NULL);
}

typedef struct rank_args {
    _Atomic int *next;
    _Atomic int *place;
} rank_args;

static int rank_kernel(size_t first, size_t count, const void *args) {
    const rank_args *a = args;
    (void)first;
    (void)count;
    *a->place = ++*a->next;
    return 0;
}

static void test_ready_streams_run_by_priority_then_by_submission(void **state) {
    (void)state;

    enum { LEVELS = 6, EACH = 3, N = LEVELS * EACH };

    ds_cpu_desc cpu = { .devices = 1, .workers = 1 };
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    _Atomic uint32_t started = 0, release = 0;
    _Atomic int next = 0, place[N] = { 0 };
    ds_kernel spin = make_spin(),
              rank = harness_kernel("rank", rank_kernel, sizeof(rank_args), NULL, 0, 0);
    ds_stream first, s[N];
    int least, greatest, priority[N];
    ok(ds_device_get_priority_range(ds_cpu(0), &least, &greatest));
    assert_true(least == 0 && greatest == -5);
    ok(ds_stream_create(NULL, &first));
    for (int i = 0; i < N; i++) {
        priority[i] = -(i * 5 % LEVELS); /* 0 -5 -4 -3 -2 -1, and again */
        ok(ds_stream_create(&(ds_stream_desc){ .priority = priority[i] }, &s[i]));
    }
    ok(ds_kernel_launch(spin, 1, &(spin_args){ &started, &release }, sizeof(spin_args), first));
    /* the only worker is held */
    while (!started)
        sched_yield();
    for (int i = 0; i < N; i++)
        ok(ds_kernel_launch(rank, 1, &(rank_args){ &next, &place[i] }, sizeof(rank_args), s[i]));
    for (int i = 0; i < N; i++)
        assert_int_equal(ds_stream_query(s[i]), DS_NOT_READY);
    release = 1;
    /* queries, because a thread that waits may help and so change the order */
    for (int i = 0; i < N; i++)
        while (ds_stream_query(s[i]) != DS_OK)
            sched_yield();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int before = priority[i] < priority[j] || (priority[i] == priority[j] && i < j);
            if (before && place[i] >= place[j])
                fail_msg("stream %d (priority %d) ran as number %d, stream %d (priority %d) as %d",
                         i, priority[i], place[i], j, priority[j], place[j]);
        }
    for (int i = 0; i < N; i++)
        ok(ds_stream_destroy(s[i]));
    ok(ds_stream_destroy(first));
    ok(ds_kernel_destroy(spin));
    ok(ds_kernel_destroy(rank));
    harness_restart(NULL);
}

/* ---- how long threads look for work before they sleep ---- */

static void count_one(void *count) {
    ++*(_Atomic uint64_t *)count;
}

static int64_t spin_time(void) {
    int64_t ns = -1;
    ok(ds_cpu_get_spin(&ns));
    return ns;
}

static void test_the_time_to_spin_is_set_and_read(void **state) {
    int64_t ns = 5;
    (void)state;
    harness_restart(NULL);
    assert_int_equal(spin_time(), 20000);

    ok(ds_cpu_set_spin(0));
    assert_int_equal(spin_time(), 0);
    ok(ds_cpu_set_spin(DS_CPU_MAX_SPIN_NS));
    assert_int_equal(spin_time(), DS_CPU_MAX_SPIN_NS);
    refused(ds_cpu_set_spin(-1), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "-1 ns; it must be from 0 to 1000000000"));
    refused(ds_cpu_set_spin((int64_t)DS_CPU_MAX_SPIN_NS + 1), DS_ERR_INVALID_VALUE);
    refused(ds_cpu_set_spin(INT64_MIN), DS_ERR_INVALID_VALUE);
    refused(ds_cpu_get_spin(NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(spin_time(), DS_CPU_MAX_SPIN_NS); /* a refused call changes nothing */

    harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .flags = DS_CPU_NO_SPIN } });
    assert_int_equal(spin_time(), 0);
    ok(ds_cpu_set_spin(1000));
    assert_int_equal(spin_time(), 1000);
    harness_restart(NULL);
    assert_int_equal(ds_cpu_get_spin(&ns), DS_OK);
    assert_int_equal(ns, 20000);
}

static void test_the_environment_sets_the_time_to_spin(void **state) {
    static const char *const bad[] = { "-1", "1000000001", "20us", "0x10",
                                       " 5", "5 ",         "1e3",  "99999999999999999999999" };
    const char *was = getenv("DEVSTREAM_CPU_SPIN");
    int64_t ns = 5;
    char before[32];
    (void)state;
    snprintf(before, sizeof before, "%s", was ? was : "");
    setenv("DEVSTREAM_CPU_SPIN", "0", 1);
    harness_restart(NULL);
    assert_int_equal(spin_time(), 0);
    setenv("DEVSTREAM_CPU_SPIN", "1000000000", 1);
    harness_restart(NULL);
    assert_int_equal(spin_time(), 1000000000);
    harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .flags = DS_CPU_NO_SPIN } });
    assert_int_equal(spin_time(), 0); /* the options count more */
    setenv("DEVSTREAM_CPU_SPIN", "", 1);
    harness_restart(NULL);
    assert_int_equal(spin_time(), 20000);

    harness_shutdown();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("DEVSTREAM_CPU_SPIN", bad[i], 1);
        refused(ds_cpu_get_spin(&ns), DS_ERR_INVALID_VALUE);
        assert_int_equal(ns, 0);
        assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_CPU_SPIN is \""));
    }
    if (was)
        setenv("DEVSTREAM_CPU_SPIN", before, 1);
    else
        unsetenv("DEVSTREAM_CPU_SPIN");
    harness_restart(NULL);
}

/* Kernels, host functions, words and waits, with threads that sleep at once and with threads that
   spin for long. */
static void test_work_is_done_with_any_time_to_spin(void **state) {
    static const int64_t times[] = { 0, 100, 1000000 };
    (void)state;
    ds_kernel k = make_count();
    _Atomic uint64_t *count = counter();
    uint64_t want = 0;
    ds_stream s, t;
    ok(ds_stream_create(NULL, &s));
    ok(ds_stream_create(NULL, &t));
    for (int i = 0; i < 300; i++) {
        ok(ds_cpu_set_spin(times[i / 10 % 3]));
        ok(ds_stream_launch_host_func(s, count_one, count, NULL));
        ok(ds_kernel_launch(k, 1, &(count_args){ count, 1 }, sizeof(count_args), s));
        ok(ds_stream_wait_stream(t, s));
        ok(ds_stream_launch_host_func(t, count_one, count, NULL));
        ok(ds_stream_launch_host_func(t, count_one, count, NULL));
        want += 4;
        if (i % 3 == 0)
            ok(ds_stream_synchronize(t));
        if (i % 3 == 0)
            assert_int_equal(*count, want);
    }
    ok(ds_stream_synchronize(t));
    assert_int_equal(*count, want);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_kernel_destroy(k));
    harness_restart(NULL);
}

const struct CMUnitTest tests_cpu_named[] = {
    DS_TEST_CPU(test_the_time_to_spin_is_set_and_read, "cpu driver"),
    DS_TEST_CPU(test_the_environment_sets_the_time_to_spin, "cpu driver"),
    DS_TEST_CPU(test_work_is_done_with_any_time_to_spin, "cpu driver"),
    DS_TEST_CPU(test_64_streams_in_host_functions_do_not_hold_the_65th, "peers b.11"),
    DS_TEST(test_waiting_under_a_lock_a_host_function_wants_returns, "peers b.1"),
    DS_TEST(test_a_timed_wait_of_1_ms_on_a_long_kernel_comes_back, "peers b.3"),
    DS_TEST(test_a_kernel_after_idleness_runs_although_nobody_calls, "peers b.1"),
    DS_TEST(test_streams_and_events_are_destroyed_while_others_use_them, "peers b.3"),
    DS_TEST_CPU(test_10000_short_threads_use_their_own_stream, "peers b.2"),
    DS_TEST(test_return_from_main_with_work_pending_is_clean, "peers b.11"),
    DS_TEST(test_a_shared_object_is_loaded_used_and_unloaded_100_times, "cpu driver"),
    DS_TEST_CPU(test_10000_streams_at_once_all_work, "cpu driver"),
    DS_TEST_CPU(test_pending_operations_take_at_most_256_bytes_each, "cpu driver"),
    DS_TEST(test_a_million_records_and_waits_take_bounded_memory, "peers D11"),
    DS_TEST_CPU(test_inline_mode_is_done_at_every_return_and_right, "cpu driver"),
    DS_TEST_CPU(test_the_seeded_scheduler_gives_the_results_of_the_oracle, "cpu driver"),
    DS_TEST_CPU(test_one_worker_is_enough, "cpu driver"),
    DS_TEST_CPU(test_ready_streams_run_by_priority_then_by_submission, "peers b.11"),
};
const size_t tests_cpu_named_count = sizeof tests_cpu_named / sizeof tests_cpu_named[0];
