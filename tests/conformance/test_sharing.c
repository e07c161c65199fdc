/* Sharing between processes: events and blocks of other processes, and what becomes of those who
   wait or share when a process dies.

   The other process is this program again: it does what it is told through a socket, and ends
   when that is closed. */
#include "harness.h"
#include "devstream_alloc.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- what the other process does ---- */

enum {
    EVENT_MAKE = 1,
    EVENT_EXPORT,
    EVENT_IMPORT,
    EVENT_DESTROY,
    EVENT_RECORD,
    EVENT_WAIT,
    EVENT_QUERY,
    EVENT_SYNC,
    STREAM_QUERY,
    STREAM_SYNC,
    STREAM_FAIL,
    DEVICE_RESET,
    GATE_CLOSE,
    GATE_OPEN,
    GATE_ENTERED,
    STORE,
    LOAD,
    SHUTDOWN,
    SLEEPER,
    END_MAIN,
    BLOCK_ALLOC,
    BLOCK_FREE,
    BLOCK_FILL,
    BLOCK_CHECK,
    BLOCK_EXPORT,
    BLOCK_IMPORT,
    BLOCK_CLOSE,
    BLOCK_ADDRESS,
    COLLECT,
    MAPPINGS,
    QUIESCE
};

enum { SLOTS = 64 };

/* a: an event, a gate, a word or a block; b: a stream. */
typedef struct order {
    int verb, a, b;
    uint64_t value;
    size_t size;
    ds_ipc_event_handle event;
    ds_ipc_mem_handle block;
} order;

typedef struct answer {
    ds_result result;
    uint64_t value;
    ds_ipc_event_handle event;
    ds_ipc_mem_handle block;
    char text[512];
} answer;

static struct {
    ds_event event[SLOTS];
    ds_stream stream[SLOTS];
    gate gate[SLOTS];
    uint64_t *word[SLOTS];
    void *block[SLOTS];
    ds_pool pool;
} own;

static int fail_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

static void fail_on(ds_stream s) {
    ds_kernel kernel;
    ok_thread(ds_kernel_create(&(ds_kernel_desc){ .name = "fail", .cpu_fn = fail_item }, &kernel));
    ok_thread(ds_kernel_launch(kernel, 1, NULL, 0, s));
    ok_thread(ds_kernel_destroy(kernel));
}

static ds_stream own_stream(int b) {
    if (!own.stream[b].id)
        own.stream[b] = harness_stream(0, DS_STREAM_NON_BLOCKING);
    return own.stream[b];
}

static void store_one(void *pointer) {
    *(_Atomic uint64_t *)pointer = 1;
}

/* ---- blocks ---- */

static ds_pool shareable_pool(size_t limit) {
    ds_pool pool;
    ok_thread(ds_pool_create(
        &(ds_pool_desc){
            .device = harness_device(0), .shareable = 1, .limit = limit, .label = "shareable" },
        &pool));
    return pool;
}

static ds_result alloc_in(ds_pool pool, size_t size, ds_stream s, void **out) {
    return ds_mem_alloc_with(&(ds_mem_request){ .size = size, .stream = s, .pool = pool }, out);
}

static ds_result fill_with(void *ptr, size_t size, uint64_t value, ds_stream s) {
    return ds_fill(ptr, (uint32_t)value, 4, size / 4, s);
}

/* How many of the first `size` bytes are not as fill_with has left them. */
static ds_result count_wrong(const void *ptr, size_t size, uint64_t value, ds_stream s,
                             uint64_t *out) {
    uint32_t *copy = malloc(size);
    *out = size;
    if (!copy)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds_copy(copy, ptr, size, s);
    if (r == DS_OK)
        r = ds_stream_synchronize(s);
    for (size_t i = 0; r == DS_OK && i < size / 4; i++)
        *out -= 4u * (copy[i] == (uint32_t)value);
    free(copy);
    return r;
}

/* Lines of this process's table of mappings that name shared memory of devstream. */
static int shared_mappings(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "memfd:") != NULL;
    if (f)
        fclose(f);
    return n;
}

static ds_result obey(const order *o, answer *out) {
    if (o->a < 0 || o->a >= SLOTS || o->b < 0 || o->b >= SLOTS)
        return DS_ERR_INVALID_VALUE;
    gate *g = &own.gate[o->a];
    switch (o->verb) {
    case EVENT_MAKE:
        return ds_event_create(DS_EVENT_INTERPROCESS, NULL, &own.event[o->a]);
    case EVENT_EXPORT:
        return ds_event_export(own.event[o->a], &out->event);
    case EVENT_IMPORT:
        return ds_event_import(harness_device(0), &o->event, &own.event[o->a]);
    case EVENT_DESTROY:
        return ds_event_destroy(own.event[o->a]);
    case EVENT_RECORD:
        return ds_event_record(own.event[o->a], own_stream(o->b));
    case EVENT_WAIT:
        return ds_stream_wait_event(own_stream(o->b), own.event[o->a]);
    case EVENT_QUERY:
        return ds_event_query(own.event[o->a]);
    case EVENT_SYNC:
        return ds_event_synchronize(own.event[o->a]);
    case STREAM_QUERY:
        return ds_stream_query(own_stream(o->b));
    case STREAM_SYNC:
        return ds_stream_synchronize(own_stream(o->b));
    case STREAM_FAIL:
        fail_on(own_stream(o->b));
        return DS_OK;
    case DEVICE_RESET:
        return ds_device_reset(harness_device(0));
    case GATE_CLOSE:
        memset(g, 0, sizeof *g);
        gate_close(own_stream(o->b), g);
        return DS_OK;
    case GATE_OPEN:
        gate_open(g);
        return DS_OK;
    case GATE_ENTERED:
        gate_wait_entered(g);
        return DS_OK;
    case STORE:
        if (!own.word[o->a])
            own.word[o->a] = zeroed_words(1);
        return ds_stream_launch_host_func(own_stream(o->b), store_one, own.word[o->a], NULL);
    case LOAD:
        out->value = own.word[o->a] ? *(_Atomic uint64_t *)own.word[o->a] : 0;
        return DS_OK;
    case SHUTDOWN:
        memset(&own, 0, sizeof own);
        harness_forget();
        return ds_shutdown();
    case SLEEPER: { /* a child that outlives this process */
        pid_t child = fork();
        if (child == 0)
            for (;;)
                pause();
        out->value = (uint64_t)child;
        return DS_OK;
    }
    case END_MAIN: /* after the answer; it does not outlive the test */
        return prctl(PR_SET_PDEATHSIG, SIGKILL) ? DS_ERR_SYSTEM : DS_OK;
    case BLOCK_ALLOC:
        if (!own.pool.id)
            own.pool = shareable_pool(0);
        return alloc_in(own.pool, o->size, own_stream(o->b), &own.block[o->a]);
    case BLOCK_FREE:
        return ds_mem_free(own.block[o->a]);
    case BLOCK_FILL:
        return fill_with(own.block[o->a], o->size, o->value, own_stream(o->b));
    case BLOCK_CHECK:
        return count_wrong(own.block[o->a], o->size, o->value, own_stream(o->b), &out->value);
    case BLOCK_EXPORT:
        return ds_mem_export(own.block[o->a], &out->block);
    case BLOCK_IMPORT:
        return ds_mem_import(harness_device(0), &o->block, own_stream(o->b), &own.block[o->a]);
    case BLOCK_CLOSE:
        return ds_mem_import_close(own.block[o->a], own_stream(o->b));
    case BLOCK_ADDRESS:
        out->value = (uint64_t)(uintptr_t)own.block[o->a];
        return DS_OK;
    case COLLECT:
        return ds_mem_ipc_collect();
    case QUIESCE:
        return ds_quiesce();
    case MAPPINGS:
        out->value = (uint64_t)shared_mappings();
        return DS_OK;
    default:
        return DS_ERR_UNSUPPORTED;
    }
}

int sharing_peer(void);

int sharing_peer(void) {
    int fd = atoi(getenv("DS_TEST_PEER"));
    order o;
    while (recv(fd, &o, sizeof o, 0) == (ssize_t)sizeof o) {
        answer a;
        memset(&a, 0, sizeof a);
        a.result = obey(&o, &a);
        snprintf(a.text, sizeof a.text, "%s", a.result < 0 ? ds_error_get_last() : "");
        if (send(fd, &a, sizeof a, MSG_NOSIGNAL) != (ssize_t)sizeof a)
            break;
        if (o.verb == END_MAIN)
            pthread_exit(NULL);
    }
    _exit(0); /* as a process that crashed or was killed: nothing is drained */
}

/* ---- telling it what to do ---- */

typedef struct peer {
    pid_t pid;
    int fd;
} peer;

static peer start_peer(void) {
    int pair[2];
    peer p;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        fail_msg("socketpair: %s", strerror(errno));
    char mark[] = "DS_TEST_PEER=9", **argv = harness_self();
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = malloc((n + 2) * sizeof *env);
    assert_non_null(env);
    env[0] = mark;
    memcpy(env + 1, environ, (n + 1) * sizeof *env);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, pair[1], 9);
    int error = posix_spawnp(&p.pid, argv[0], &files, NULL, argv, env);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    close(pair[1]);
    p.fd = pair[0];
    if (error)
        fail_msg("posix_spawnp: %s", strerror(error));
    return p;
}

static void send_order(const peer *p, order o) {
    if (send(p->fd, &o, sizeof o, MSG_NOSIGNAL) != (ssize_t)sizeof o)
        fail_msg("the other process is gone");
}

static answer take_answer(const peer *p) {
    answer a;
    if (recv(p->fd, &a, sizeof a, 0) != (ssize_t)sizeof a)
        fail_msg("the other process has ended");
    return a;
}

static answer ask(const peer *p, order o) {
    send_order(p, o);
    return take_answer(p);
}

static answer expect(const peer *p, order o, ds_result result, const char *what) {
    answer a = ask(p, o);
    if (a.result != result)
        fail_msg("over there %s is %s, not %s: %s", what, ds_result_get_name(a.result),
                 ds_result_get_name(result), a.text);
    if (result < 0)
        harness_sentence(a.text, what);
    return a;
}

#define tell(p, ...) expect(&(p), (order){ __VA_ARGS__ }, DS_OK, #__VA_ARGS__)
#define tell_expecting(p, result, ...) expect(&(p), (order){ __VA_ARGS__ }, result, #__VA_ARGS__)

static void end_peer(peer *p) {
    close(p->fd);
    waitpid(p->pid, NULL, 0);
}

static void kill_peer(peer *p) {
    kill(p->pid, SIGKILL);
    end_peer(p);
}

/* ---- helpers on this side ---- */

static ds_stream made(void) {
    return harness_stream(0, DS_STREAM_NON_BLOCKING);
}

static ds_event shared_event(void) {
    ds_event e;
    ok(ds_event_create(DS_EVENT_INTERPROCESS, "shared", &e));
    return e;
}

static ds_ipc_event_handle exported(ds_event e) {
    ds_ipc_event_handle h;
    ok(ds_event_export(e, &h));
    return h;
}

static ds_event imported(ds_ipc_event_handle h) {
    ds_event e;
    ok(ds_event_import(harness_device(0), &h, &e));
    return e;
}

/* An event of the other process, and the one here that stands for it. */
static ds_event event_over_there(const peer *p, int a) {
    expect(p, (order){ .verb = EVENT_MAKE, .a = a }, DS_OK, "EVENT_MAKE");
    return imported(
        expect(p, (order){ .verb = EVENT_EXPORT, .a = a }, DS_OK, "EVENT_EXPORT").event);
}

static void give_event(const peer *p, ds_event e, int a) {
    expect(p, (order){ .verb = EVENT_IMPORT, .a = a, .event = exported(e) }, DS_OK, "EVENT_IMPORT");
}

static int over_there(const peer *p, int word) {
    return (int)expect(p, (order){ .verb = LOAD, .a = word }, DS_OK, "LOAD").value;
}

static int entries_of(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Returns the number of shared memory objects with the name of the library. Other programs may have
   objects there, too, and come and go. */
static int shared_names(void) {
    DIR *d = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strstr(e->d_name, "devstream") != NULL;
    if (d)
        closedir(d);
    return n;
}

/* Gives the scheduler of both processes its turn. */
static void a_moment(void) {
    for (int i = 0; i < 20; i++)
        harness_nap();
}

/* ---- order ---- */

static void test_a_stream_waits_for_a_record_of_another_process(void **state) {
    (void)state;
    gate g = { 0 };
    ds_stream s = made();
    ds_event e = shared_event();
    peer p = start_peer();
    give_event(&p, e, 0);
    gate_close(s, &g);
    ok(ds_event_record(e, s));
    tell(p, .verb = EVENT_WAIT, .a = 0, .b = 0);
    tell(p, .verb = STORE, .a = 0, .b = 0);
    a_moment();
    assert_int_equal(over_there(&p, 0), 0);
    tell_expecting(p, DS_NOT_READY, .verb = EVENT_QUERY, .a = 0);
    tell_expecting(p, DS_NOT_READY, .verb = STREAM_QUERY, .b = 0);
    gate_open(&g);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    assert_int_equal(over_there(&p, 0), 1);
    tell(p, .verb = EVENT_QUERY, .a = 0);
    end_peer(&p);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_an_imported_event_can_be_recorded(void **state) {
    (void)state;
    ds_stream s = made();
    ds_event e = shared_event();
    uint64_t *done = zeroed_words(1);
    peer p = start_peer();
    give_event(&p, e, 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    ok(ds_stream_wait_event(s, e));
    ok(ds_stream_launch_host_func(s, store_one, done, NULL));
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    assert_int_equal(ds_event_synchronize_for(e, 2000000), DS_NOT_READY);
    assert_int_equal(*(_Atomic uint64_t *)done, 0);
    tell(p, .verb = GATE_OPEN, .a = 0);
    ok(ds_event_synchronize(e));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*(_Atomic uint64_t *)done, 1);
    end_peer(&p);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_the_host_waits_for_a_record_of_another_process(void **state) {
    (void)state;
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0);
    ok(ds_event_query(e));
    ok(ds_event_synchronize(e)); /* unrecorded is complete */
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    tell(p, .verb = GATE_ENTERED, .a = 0);
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    send_order(&p, (order){ .verb = GATE_OPEN, .a = 0 });
    ok(ds_event_synchronize(e));
    ok(ds_event_query(e));
    assert_int_equal(take_answer(&p).result, DS_OK);
    end_peer(&p);
    ok(ds_event_query(e)); /* it was reached before its process ended */
    ok(ds_event_destroy(e));
}

static void test_a_wait_takes_the_record_as_of_the_call_in_all_processes(void **state) {
    (void)state;
    gate g[2] = { { 0 }, { 0 } };
    ds_stream s[2] = { made(), made() };
    ds_event e = shared_event();
    peer p = start_peer();
    give_event(&p, e, 0);
    gate_close(s[0], &g[0]);
    gate_close(s[1], &g[1]);
    ok(ds_event_record(e, s[0]));
    tell(p, .verb = EVENT_WAIT, .a = 0, .b = 0);
    ok(ds_event_record(e, s[1]));
    tell(p, .verb = EVENT_WAIT, .a = 0, .b = 1);
    tell(p, .verb = STORE, .a = 1, .b = 1);
    gate_open(&g[0]);
    tell(p, .verb = STREAM_SYNC, .b = 0); /* the second record was never reached */
    a_moment();
    assert_int_equal(over_there(&p, 1), 0);
    tell_expecting(p, DS_NOT_READY, .verb = EVENT_QUERY, .a = 0);
    gate_open(&g[1]);
    tell(p, .verb = STREAM_SYNC, .b = 1);
    end_peer(&p);
    ok(ds_event_destroy(e));
    for (int i = 0; i < 2; i++) {
        ok(ds_stream_synchronize(s[i]));
        ok(ds_stream_destroy(s[i]));
    }
}

/* On an H200 with driver 580, the other process's wait for the later record takes until the earlier
   one is reached. */
static void test_a_later_record_does_not_release_earlier_waits(void **state) {
    (void)state;
    gate g = { 0 };
    ds_stream s[2] = { made(), made() };
    ds_event e = shared_event();
    peer p = start_peer();
    give_event(&p, e, 0);
    gate_close(s[0], &g);
    ok(ds_event_record(e, s[0]));
    tell(p, .verb = EVENT_WAIT, .a = 0, .b = 0);
    tell(p, .verb = STORE, .a = 0, .b = 0);
    /* reached at once */
    for (int i = 0; i < 200; i++)
        ok(ds_event_record(e, s[1]));
    tell(p, .verb = EVENT_SYNC, .a = 0);
    a_moment();
    assert_int_equal(over_there(&p, 0), 0);
    gate_open(&g);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    end_peer(&p);
    ok(ds_event_destroy(e));
    for (int i = 0; i < 2; i++) {
        ok(ds_stream_synchronize(s[i]));
        ok(ds_stream_destroy(s[i]));
    }
}

static void test_two_processes_take_turns_with_two_events(void **state) {
    (void)state;

    enum { ROUNDS = 200 };

    ds_stream s = made();
    ds_event ping = shared_event();
    peer p = start_peer();
    ds_event pong = event_over_there(&p, 1);
    give_event(&p, ping, 0);
    for (int i = 0; i < ROUNDS; i++) { /* nobody waits on the host */
        ok(ds_event_record(ping, s));
        tell(p, .verb = EVENT_WAIT, .a = 0, .b = 0);
        tell(p, .verb = EVENT_RECORD, .a = 1, .b = 0);
        ok(ds_stream_wait_event(s, pong));
    }
    ok(ds_stream_synchronize(s));
    tell(p, .verb = STREAM_SYNC, .b = 0);
    end_peer(&p);
    ok(ds_event_destroy(ping));
    ok(ds_event_destroy(pong));
    ok(ds_stream_destroy(s));
}

static void test_two_importers_order_each_other(void **state) {
    (void)state;
    ds_event e = shared_event();
    peer p = start_peer(), q = start_peer();
    give_event(&p, e, 0);
    give_event(&q, e, 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    tell(q, .verb = EVENT_WAIT, .a = 0, .b = 0);
    tell(q, .verb = STORE, .a = 0, .b = 0);
    a_moment();
    assert_int_equal(over_there(&q, 0), 0);
    tell(p, .verb = GATE_OPEN, .a = 0);
    tell(q, .verb = STREAM_SYNC, .b = 0);
    assert_int_equal(over_there(&q, 0), 1);
    end_peer(&p);
    end_peer(&q);
    ok(ds_event_query(e));
    ok(ds_event_destroy(e));
}

static void test_an_event_imported_twice_is_one_event(void **state) {
    (void)state;
    peer p = start_peer();
    ds_stream s = made(), t = made();
    gate g = { 0 };
    ds_event a = event_over_there(&p, 0), b = imported(tell(p, .verb = EVENT_EXPORT, .a = 0).event);
    gate_close(s, &g);
    ok(ds_event_record(a, s));
    assert_int_equal(ds_event_query(b), DS_NOT_READY);
    ok(ds_stream_wait_event(t, b));
    assert_int_equal(ds_stream_query(t), DS_NOT_READY);
    tell_expecting(p, DS_NOT_READY, .verb = EVENT_QUERY, .a = 0);
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_event_query(b));
    end_peer(&p);
    ok(ds_event_destroy(a));
    ok(ds_event_destroy(b));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_an_event_is_imported_again_after_its_last_record(void **state) {
    (void)state;
    ds_stream s = made();
    gate g = { 0 };
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0);
    ds_ipc_event_handle h = tell(p, .verb = EVENT_EXPORT, .a = 0).event;

    gate_close(s, &g);
    ok(ds_event_record(e, s));
    ok(ds_event_destroy(e)); /* only the pending record needs the other process's registry */
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    e = imported(h);

    ok(ds_event_query(e));
    tell(p, .verb = EVENT_QUERY, .a = 0);
    ok(ds_event_destroy(e));
    kill_peer(&p);
    if (harness_is_cpu()) /* CUDA does not say what becomes of it */
        refused(ds_event_import(harness_device(0), &h, &e), DS_ERR_PEER_DIED);
    ok(ds_stream_destroy(s));
}

static void test_graphs_record_and_wait_for_shared_events(void **state) {
    (void)state;
    ds_stream s = made(), t = made();
    gate g = { 0 };
    uint64_t *done = zeroed_words(1);
    ds_event there = shared_event(), back = shared_event();
    ds_graph graph;
    ds_graph_exec exec;
    peer p = start_peer();
    harness_warm_up();
    give_event(&p, there, 0);
    give_event(&p, back, 1);
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_event_record_external(there, s));
    ok(ds_stream_wait_event_external(s, back));
    ok(ds_stream_launch_host_func(s, store_one, done, NULL));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 1, .b = 0);
    gate_close(t, &g);
    ok(ds_graph_launch(exec, t));
    tell_expecting(p, DS_NOT_READY, .verb = EVENT_QUERY, .a = 0);
    gate_open(&g);
    tell(p, .verb = EVENT_SYNC, .a = 0);
    a_moment();
    assert_int_equal(*(_Atomic uint64_t *)done, 0);
    tell(p, .verb = GATE_OPEN, .a = 0);
    ok(ds_stream_synchronize(t));
    assert_int_equal(*(_Atomic uint64_t *)done, 1);
    ok(ds_graph_launch(exec, t)); /* again */
    tell(p, .verb = EVENT_SYNC, .a = 0);
    ok(ds_stream_synchronize(t));
    end_peer(&p);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_event_destroy(there));
    ok(ds_event_destroy(back));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- handles ---- */

static void test_a_handle_is_64_bytes_that_do_not_change(void **state) {
    (void)state;
    ds_device d;
    ds_event e = shared_event();
    assert_int_equal(sizeof(ds_ipc_event_handle), 64);
    ok(ds_event_get_device(e, &d));
    assert_int_equal(d.type, 0);
    ds_ipc_event_handle first = exported(e), second = exported(e);
    assert_memory_equal(&first, &second, sizeof first);
    ok(ds_event_get_device(e, &d)); /* the export made it on the current device */
    ds_device current;
    ok(ds_device_get_current(&current));
    assert_int_equal(d.type, current.type);
    assert_int_equal(d.index, current.index);
    ok(ds_event_query(e));
    ds_event other = shared_event();
    ds_ipc_event_handle third = exported(other);
    assert_memory_not_equal(&first, &third, sizeof first);
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(other));
}

static void test_an_exported_event_stays_on_its_device(void **state) {
    (void)state;
    two_devices();
    ds_event e = shared_event();
    ds_stream s;
    ok(ds_device_push(harness_device(0)));
    (void)exported(e);
    ok(ds_device_pop());
    s = harness_stream(1, DS_STREAM_NON_BLOCKING);
    refused(ds_event_record(e, s), DS_ERR_DEVICE_MISMATCH);
    ok(ds_stream_destroy(s));
    ok(ds_event_destroy(e));
}

static void test_what_cannot_be_exported_or_imported_is_refused(void **state) {
    (void)state;
    ds_event e = shared_event(), plain, none = { 9 };
    ds_ipc_event_handle h, mine = exported(e);
    ok(ds_event_create(0, NULL, &plain));
    memset(&h, 1, sizeof h);
    refused(ds_event_export(plain, &h), DS_ERR_INVALID_VALUE);
    assert_int_equal(h.bytes[0], 0);
    refused(ds_event_export(e, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_event_export((ds_event){ 77 }, &h), DS_ERR_INVALID_HANDLE);
    /* as CUDA does */
    refused(ds_event_import(harness_device(0), &mine, &none), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(none.id, 0);
    refused(ds_event_import(harness_device(0), NULL, &none), DS_ERR_INVALID_VALUE);
    refused(ds_event_import(harness_device(0), &mine, NULL), DS_ERR_INVALID_VALUE);
    memset(&h, 0x5a, sizeof h);
    refused(ds_event_import(harness_device(0), &h, &none), DS_ERR_INVALID_VALUE);
    peer p = start_peer();
    ds_event far = event_over_there(&p, 0);
    refused(ds_event_export(far, &h), DS_ERR_INVALID_VALUE);
    unsigned flags = 0;
    ok(ds_event_get_flags(far, &flags));
    assert_int_equal(flags, DS_EVENT_INTERPROCESS);
    end_peer(&p);
    ok(ds_event_destroy(far));
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(plain));
}

static void test_handles_are_exported_and_opened_during_a_capture(void **state) {
    (void)state;
    ds_stream s = made();
    ds_event e = shared_event(), got;
    ds_graph graph;
    ds_ipc_event_handle h;
    peer p = start_peer();
    tell(p, .verb = EVENT_MAKE, .a = 0);
    ds_ipc_event_handle far = tell(p, .verb = EVENT_EXPORT, .a = 0).event;
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_event_export(e, &h));
    ok(ds_event_import(harness_device(0), &far, &got));
    ok(ds_capture_end(s, &graph));
    end_peer(&p);
    ok(ds_event_destroy(got));
    ok(ds_graph_destroy(graph));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_a_handle_of_a_destroyed_event_or_ended_process_is_void(void **state) {
    (void)state;
    ds_event e, kept;
    peer p = start_peer();
    kept = event_over_there(&p, 0);
    ds_ipc_event_handle h = tell(p, .verb = EVENT_EXPORT, .a = 0).event;
    tell(p, .verb = EVENT_DESTROY, .a = 0);
    refused(ds_event_import(harness_device(0), &h, &e), DS_ERR_INVALID_HANDLE);
    refused(ds_event_query(kept), DS_ERR_INVALID_HANDLE);
    tell(p, .verb = EVENT_MAKE, .a = 1);
    h = tell(p, .verb = EVENT_EXPORT, .a = 1).event;
    ds_event before = imported(h);
    tell(p, .verb = SHUTDOWN);
    refused(ds_event_import(harness_device(0), &h, &e), DS_ERR_PEER_DIED);
    tell(p, .verb = EVENT_MAKE, .a = 1);
    h = tell(p, .verb = EVENT_EXPORT, .a = 1).event;
    kill_peer(&p);
    refused(ds_event_import(harness_device(0), &h, &e), DS_ERR_PEER_DIED);
    assert_int_equal(e.id, 0);
    ok(ds_event_destroy(kept));
    ok(ds_event_destroy(before));
}

/* ---- failure and death ---- */

static void test_a_failure_over_there_is_reported_to_who_waits(void **state) {
    (void)state;
    ds_stream s = made(), t = made();
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_FAIL, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    ok(ds_stream_wait_event(s, e));
    tell(p, .verb = GATE_OPEN, .a = 0);
    refused(ds_event_synchronize(e), DS_ERR_FAILED);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    ok(ds_stream_synchronize(t)); /* this device has not failed */
    ok(ds_stream_launch_host_func(t, store_one, zeroed_words(1), NULL));
    ok(ds_stream_synchronize(t));
    tell(p, .verb = DEVICE_RESET);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    ok(ds_event_synchronize(e));
    ok(ds_device_reset(harness_device(0)));
    ok(ds_stream_wait_event(s, e));
    ok(ds_stream_synchronize(s));
    end_peer(&p);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_waiting_for_a_process_that_dies_has_its_own_result(void **state) {
    (void)state;
    ds_stream s = made(), t = made(), u = made();
    payload call = { 0 };
    uint64_t *done = zeroed_words(1);
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0), behind;
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    ok(ds_stream_wait_event(s, e));
    ok(ds_stream_launch_host_func(s, store_one, done, NULL));
    ok(ds_stream_add_callback(s, payload_callback, &call, payload_destroy));
    ok(ds_event_create(0, NULL, &behind));
    ok(ds_event_record(behind, s));
    ok(ds_stream_wait_event(t, behind));
    a_moment();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    kill_peer(&p);
    refused(ds_stream_synchronize(s), DS_ERR_PEER_DIED);
    refused(ds_event_synchronize(e), DS_ERR_PEER_DIED);
    refused(ds_event_query(e), DS_ERR_PEER_DIED);
    refused(ds_event_query(behind), DS_ERR_PEER_DIED);
    refused(ds_stream_synchronize(t), DS_ERR_PEER_DIED); /* it waited too */
    assert_int_equal(*(_Atomic uint64_t *)done, 0);
    await_destroyed(&call, 1);
    assert_int_equal(call.status, DS_ERR_PEER_DIED);
    refused(ds_stream_launch_host_func(s, store_one, done, NULL), DS_ERR_PEER_DIED);
    ok(ds_stream_launch_host_func(u, store_one, done, NULL)); /* others are not concerned */
    ok(ds_stream_synchronize(u));
    assert_int_equal(*(_Atomic uint64_t *)done, 1);
    ok(ds_device_synchronize(harness_device(0)));
    ok(ds_device_reset(harness_device(0)));
    ok(ds_event_record(e, s)); /* it can be used without its maker */
    ok(ds_event_synchronize(e));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_synchronize(t));
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(behind));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(u));
}

static void test_the_death_of_a_recorder_of_my_event_is_noticed(void **state) {
    (void)state;
    ds_event e = shared_event();
    peer p = start_peer();
    give_event(&p, e, 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    kill_peer(&p);
    refused(ds_event_synchronize(e), DS_ERR_PEER_DIED);
    ds_stream s = made();
    ok(ds_event_record(e, s));
    ok(ds_event_synchronize(e));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_a_record_that_was_reached_outlives_its_process(void **state) {
    (void)state;
    ds_stream s = made();
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    kill_peer(&p);
    ok(ds_event_query(e));
    ok(ds_stream_wait_event(s, e));
    ok(ds_stream_synchronize(s));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_a_child_of_a_dead_process_does_not_keep_it_alive(void **state) {
    (void)state;
    not_emulated("MADV_DONTFORK, which keeps shared memory from a child");
    not_on_windows("fork");
    peer p = start_peer();
    ds_event e = event_over_there(&p, 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = EVENT_RECORD, .a = 0, .b = 0);
    pid_t child = (pid_t)tell(p, .verb = SLEEPER).value;
    a_moment();
    kill_peer(&p);
    ds_result r = ds_event_synchronize(e);
    kill(child, SIGKILL);
    assert_int_equal(r, DS_ERR_PEER_DIED);
    ok(ds_event_destroy(e));
}

/* The state of a process in Linux's letters: Z when its main thread has ended. */
static int state_of(pid_t pid) {
    char path[40], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    const char *rest = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return rest && rest[1] ? rest[2] : 0;
}

/* On CUDA threads of cudart live on, and whether one of them takes the signal is not known. */
static void test_sigterm_ends_a_process_of_which_main_has_ended(void **state) {
    (void)state;
    if (HARNESS_THIRD > 1) /* ThreadSanitizer and emulators have a thread of their own */
        skip();
    not_on_windows("a process that lives on without its main thread");
    for (int busy = 0; busy < 2; busy++) {
        peer p = start_peer();
        int status = 0;
        tell(p, .verb = STREAM_QUERY, .b = 0);
        if (busy)
            tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
        tell(p, .verb = END_MAIN);
        eventually(state_of(p.pid) == 'Z');
        kill(p.pid, SIGTERM);
        pid_t waited = 0;
        AWAIT(waited || (waited = waitpid(p.pid, &status, WNOHANG)));
        if (!waited) {
            kill_peer(&p);
            fail_msg("the process does not end, busy: %d", busy);
        }
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGTERM);
        close(p.fd);
    }
}

enum { DEATHS = HARNESS_SLOW ? 40 : 1000 };

/* One that was started while the one before was at work. */
static peer next_peer(peer *spare) {
    peer p = spare->pid ? *spare : start_peer();
    *spare = start_peer();
    return p;
}

/* Each time the other process dies between a record and its completion, and waits itself for a
   record of this one. */
static void test_a_thousand_deaths_before_completion_leave_nothing(void **state) {
    (void)state;
    ds_stream s = made(), t = made();
    int files = 0, names = shared_names(), threads = 0;
    size_t before = 0, after = 0;
    peer spare = { 0, 0 };
    for (int i = 0; i < DEATHS + 10; i++) {
        gate g = { 0 };
        peer p = next_peer(&spare);
        ds_event mine = shared_event(), theirs = event_over_there(&p, 0);
        give_event(&p, mine, 1);
        gate_close(t, &g);
        ok(ds_event_record(mine, t));
        send_order(&p, (order){ .verb = EVENT_WAIT, .a = 1, .b = 1 });
        send_order(&p, (order){ .verb = GATE_CLOSE, .a = 0, .b = 0 });
        send_order(&p, (order){ .verb = EVENT_RECORD, .a = 0, .b = 0 });
        for (int k = 0; k < 3; k++)
            assert_int_equal(take_answer(&p).result, DS_OK);
        ok(ds_stream_wait_event(s, theirs));
        kill(p.pid, SIGKILL);
        if (ds_stream_synchronize(s) != DS_ERR_PEER_DIED)
            fail_msg("death %d: %s", i, ds_error_get_last());
        end_peer(&p);
        gate_open(&g);
        ok(ds_event_synchronize(mine));
        ok(ds_event_destroy(mine));
        ok(ds_event_destroy(theirs));
        ok(ds_device_reset(harness_device(0)));
        if (i != 9)
            continue;
        files = entries_of("/proc/self/fd");
        threads = entries_of("/proc/self/task");
        ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    }
    end_peer(&spare);
    a_moment();
    /* what is not needed any more is closed when the next thing is shared or unshared */
    ds_event e = shared_event();
    ok(ds_event_destroy(e));
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_true(entries_of("/proc/self/fd") <= files);
    assert_int_equal(entries_of("/proc/self/task"), threads);
    assert_int_equal(shared_names(), names);
    assert_true(before == after);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_process_that_was_killed_while_it_waited_is_forgotten(void **state) {
    (void)state;
    gate g = { 0 };
    ds_stream s = made();
    ds_event e = shared_event();
    gate_close(s, &g);
    ok(ds_event_record(e, s));
    for (int i = 0; i < 5; i++) {
        peer p = start_peer();
        give_event(&p, e, 0);
        tell(p, .verb = EVENT_WAIT, .a = 0, .b = 0);
        kill_peer(&p);
    }
    gate_open(&g);
    ok(ds_event_synchronize(e));
    peer p = start_peer();
    give_event(&p, e, 0);
    tell(p, .verb = EVENT_SYNC, .a = 0);
    end_peer(&p);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

/* ---- blocks ---- */

static ds_ipc_mem_handle exported_block(const void *ptr) {
    ds_ipc_mem_handle h;
    ok(ds_mem_export(ptr, &h));
    return h;
}

static void give_block(const peer *p, const void *ptr, int a, int b) {
    expect(p, (order){ .verb = BLOCK_IMPORT, .a = a, .b = b, .block = exported_block(ptr) }, DS_OK,
           "BLOCK_IMPORT");
}

static void expect_over_there(const peer *p, int a, int b, size_t size, uint64_t value) {
    assert_int_equal(
        expect(p, (order){ .verb = BLOCK_CHECK, .a = a, .b = b, .size = size, .value = value },
               DS_OK, "BLOCK_CHECK")
            .value,
        0);
}

static void expect_here(const void *ptr, size_t size, uint64_t value, ds_stream s) {
    uint64_t wrong = 1;
    ok(count_wrong(ptr, size, value, s, &wrong));
    assert_int_equal(wrong, 0);
}

static void test_an_importer_sees_what_was_written_before_the_export(void **state) {
    (void)state;

    enum { SIZE = 3 << 20 };

    gate g = { 0 };
    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    gate_close(s, &g);
    ok(fill_with(ptr, SIZE, 0x1234567, s));
    give_block(&p, ptr, 0, 0); /* the fill is still to come */
    send_order(&p,
               (order){ .verb = BLOCK_CHECK, .a = 0, .b = 0, .size = SIZE, .value = 0x1234567 });
    a_moment();
    gate_open(&g);
    answer a = take_answer(&p);
    assert_int_equal(a.result, DS_OK);
    assert_int_equal(a.value, 0);
    /* and it is the same memory */
    tell(p, .verb = BLOCK_FILL, .a = 0, .b = 0, .size = SIZE, .value = 0x7654321);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    expect_here(ptr, SIZE, 0x7654321, s);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    end_peer(&p);
    ok(ds_mem_free(ptr));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_a_block_is_exported_again_behind_later_work(void **state) {
    (void)state;

    enum { SIZE = 1 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    ok(fill_with(ptr, SIZE, 1, s));
    ds_ipc_mem_handle first = exported_block(ptr);
    give_block(&p, ptr, 0, 0);
    expect_over_there(&p, 0, 0, SIZE, 1);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    gate g = { 0 };
    gate_close(s, &g);
    ok(fill_with(ptr, SIZE, 2, s));
    ds_ipc_mem_handle second = exported_block(ptr);
    assert_memory_equal(&first, &second, sizeof first);
    tell(p, .verb = BLOCK_IMPORT, .a = 0, .b = 0, .block = second);
    send_order(&p, (order){ .verb = BLOCK_CHECK, .a = 0, .b = 0, .size = SIZE, .value = 2 });
    gate_open(&g);
    assert_int_equal(take_answer(&p).value, 0);
    end_peer(&p);
    ok(ds_mem_free(ptr));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_addresses_inside_of_blocks_can_be_exported(void **state) {
    (void)state;

    enum { SIZE = 64 << 10 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    char *a, *b;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, (void **)&a));
    ok(alloc_in(pool, SIZE, s, (void **)&b));
    ok(fill_with(a, SIZE, 1, s));
    ok(fill_with(a + 4096, 4096, 2, s));
    ok(fill_with(b, SIZE, 3, s));
    give_block(&p, a + 4096, 0, 0);
    give_block(&p, a, 1, 0);
    give_block(&p, b + 512, 2, 0);
    expect_over_there(&p, 0, 0, 4096, 2);
    expect_over_there(&p, 1, 0, 4096, 1);
    expect_over_there(&p, 2, 0, SIZE - 512, 3);
    uint64_t at[3];
    for (int i = 0; i < 3; i++)
        at[i] = tell(p, .verb = BLOCK_ADDRESS, .a = i).value;
    assert_true(at[0] - at[1] == 4096);                    /* one mapping of the block, */
    assert_true(at[2] - at[1] == (uint64_t)(b + 512 - a)); /* and of the segment */
    for (int i = 0; i < 3; i++)
        tell(p, .verb = BLOCK_CLOSE, .a = i, .b = 0);
    end_peer(&p);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_a_freed_block_stays_until_all_importers_closed_it(void **state) {
    (void)state;

    enum { SIZE = 2 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr, *other;
    peer p = start_peer(), q = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    ok(fill_with(ptr, SIZE, 5, s));
    give_block(&p, ptr, 0, 0);
    give_block(&p, ptr, 1, 0); /* twice */
    give_block(&q, ptr, 0, 0);
    ok(ds_mem_free(ptr));
    ok(alloc_in(pool, SIZE, s, &other));
    assert_ptr_not_equal(other, ptr);
    ok(fill_with(other, SIZE, 6, s));
    expect_over_there(&p, 0, 0, SIZE, 5);
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.allocated_bytes[0].current, SIZE);
    assert_int_equal(stats.active_bytes[0].current, 2 * SIZE);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    tell(q, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(q, .verb = STREAM_SYNC, .b = 0);
    ok(ds_mem_ipc_collect());
    ok(ds_pool_get_stats(pool, &stats));
    /* the first has imported it once more than closed */
    assert_int_equal(stats.active_bytes[0].current, 2 * SIZE);
    expect_over_there(&p, 1, 0, SIZE, 5);
    tell(p, .verb = BLOCK_CLOSE, .a = 1, .b = 1); /* on another stream */
    tell(p, .verb = STREAM_SYNC, .b = 1);
    ok(ds_mem_ipc_collect());
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, SIZE);
    void *again;
    ok(alloc_in(pool, SIZE, s, &again));
    assert_ptr_equal(again, ptr);
    end_peer(&p);
    end_peer(&q);
    ok(ds_mem_free(again));
    ok(ds_mem_free(other));
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_a_freed_block_is_poisoned_when_nobody_has_it_any_more(void **state) {
    (void)state;

    enum { SIZE = 2 << 20 };

    ds_stream s = made();
    ds_mem_config c = ds_mem_config_default();
    c.poison = c.poll_on_alloc = 1;
    ds_pool pool;
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .config = &c, .shareable = 1 },
                      &pool));
    void *ptr, *again;
    uint64_t wrong = 1;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    ok(fill_with(ptr, SIZE, 5, s));
    give_block(&p, ptr, 0, 0);
    ok(ds_mem_free(ptr));
    ok(ds_stream_synchronize(s));
    expect_over_there(&p, 0, 0, SIZE, 5);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    ok(ds_mem_ipc_collect());
    ok(alloc_in(pool, SIZE, s, &again));
    assert_ptr_equal(again, ptr);
    ok(count_wrong(again, SIZE, 0xDBDBDBDBu, s, &wrong));
    assert_int_equal(wrong, 0);
    end_peer(&p);
    ok(ds_mem_free(again));
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_closing_is_ordered_behind_the_importers_last_use(void **state) {
    (void)state;

    enum { SIZE = 1 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr, *other;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    give_block(&p, ptr, 0, 0);
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = BLOCK_FILL, .a = 0, .b = 0, .size = SIZE, .value = 9);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    ok(ds_mem_free(ptr));
    a_moment();
    ok(ds_mem_ipc_collect());
    ok(alloc_in(pool, SIZE, s, &other));
    assert_ptr_not_equal(other, ptr);
    ok(ds_mem_free(other));
    tell(p, .verb = GATE_OPEN, .a = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0); /* and no call of the allocator over there */
    ok(ds_mem_ipc_collect());
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, 0);
    end_peer(&p);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

/* The other process makes its context on the GPU, which takes memory there, and loads its kernel.
   Nothing stays allocated but that. */
static void warm_peer_up(peer *p, ds_pool pool, ds_stream s) {
    void *ptr;
    ok(alloc_in(pool, 65536, s, &ptr));
    ok(fill_with(ptr, 65536, 4, s));
    give_block(p, ptr, 0, 0);
    expect_over_there(p, 0, 0, 65536, 4);
    tell(*p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(*p, .verb = STREAM_SYNC, .b = 0);
    tell(*p, .verb = COLLECT);
    ok(ds_mem_free(ptr));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_empty_cache(pool, NULL));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
}

static void test_a_segment_stays_while_someone_has_it_open(void **state) {
    (void)state;
    not_on_windows("a table of mappings in /proc");

    enum { SIZE = 32 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr;
    size_t before, during, after, released = 0;
    peer p = start_peer();
    warm_peer_up(&p, pool, s);
    ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    ok(alloc_in(pool, SIZE, s, &ptr));
    give_block(&p, ptr, 0, 0);
    int open = (int)tell(p, .verb = MAPPINGS).value;
    tell(p, .verb = GATE_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = GATE_OPEN, .a = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    ok(ds_mem_free(ptr));
    /* the block is free, but the other process has not been in the allocator since */
    ok(ds_pool_empty_cache(pool, &released));
    assert_true(released >= SIZE);
    ok(ds_device_get_memory_info(harness_device(0), &during, NULL));
    assert_true(during <= before - SIZE);
    tell(p, .verb = COLLECT);
    assert_true((int)tell(p, .verb = MAPPINGS).value < open);
    ok(ds_mem_ipc_collect());
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_int_equal(after, before);
    end_peer(&p);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_memory_that_comes_back_is_found_when_it_is_short(void **state) {
    (void)state;

    enum { SIZE = 32 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(40 << 20);
    void *ptr, *other;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    give_block(&p, ptr, 0, 0);
    ok(ds_mem_free(ptr));
    refused_any(alloc_in(pool, SIZE, s, &other));
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    ok(alloc_in(pool, SIZE, s, &other));
    ok(ds_mem_free(other));
    end_peer(&p);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_what_cannot_be_shared_is_refused(void **state) {
    (void)state;
    ds_stream s = made(), elsewhere = harness_stream(1, DS_STREAM_NON_BLOCKING);
    ds_pool pool = shareable_pool(0);
    ds_ipc_mem_handle h;
    void *plain, *ptr, *got;
    uint64_t host = 0;
    ok(ds_mem_alloc(4096, s, &plain));
    ok(alloc_in(pool, 4096, s, &ptr));
    memset(&h, 1, sizeof h);
    refused(ds_mem_export(plain, &h), DS_ERR_INVALID_VALUE);
    assert_int_equal(h.bytes[0], 0);
    refused(ds_mem_export(&host, &h), DS_ERR_INVALID_VALUE);
    refused(ds_mem_export(NULL, &h), DS_ERR_INVALID_VALUE);
    refused(ds_mem_export(ptr, NULL), DS_ERR_INVALID_VALUE);
    h = exported_block(ptr);
    got = &host;
    refused(ds_mem_import(harness_device(0), &h, s, &got), DS_ERR_ILLEGAL_STATE);
    assert_null(got);
    refused(ds_mem_import(harness_device(0), NULL, s, &got), DS_ERR_INVALID_VALUE);
    refused(ds_mem_import(harness_device(0), &h, s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_import(harness_device(0), &h, (ds_stream){ 0 }, &got), DS_ERR_INVALID_HANDLE);
    ds_ipc_mem_handle bad = h;
    bad.bytes[0] = 9;
    /* of a later version */
    refused(ds_mem_import(harness_device(0), &bad, s, &got), DS_ERR_UNSUPPORTED);
    memset(&bad, 0, sizeof bad);
    refused(ds_mem_import(harness_device(0), &bad, s, &got), DS_ERR_INVALID_VALUE);
    memset(&bad, 0xff, sizeof bad);
    refused(ds_mem_import(harness_device(0), &bad, s, &got), DS_ERR_INVALID_VALUE);
    refused(ds_mem_import_close(ptr, s), DS_ERR_INVALID_VALUE);
    refused(ds_mem_import_close(NULL, s), DS_ERR_INVALID_VALUE);
    peer p = start_peer();
    tell(p, .verb = BLOCK_ALLOC, .a = 0, .b = 0, .size = 8192);
    h = tell(p, .verb = BLOCK_EXPORT, .a = 0).block;
    if (harness_device_count() > 1)
        refused(ds_mem_import(harness_device(0), &h, elsewhere, &got), DS_ERR_DEVICE_MISMATCH);
    if (!harness_is_cpu())
        refused(ds_mem_import(ds_cpu(0), &h, s, &got), DS_ERR_CROSS_DRIVER);
    ok(ds_mem_import(harness_device(0), &h, s, &got));
    if (!harness_is_cpu()) {
        ds_stream on_cpu;
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &on_cpu));
        refused(ds_mem_import_close(got, on_cpu), DS_ERR_CROSS_DRIVER);
        ok(ds_stream_destroy(on_cpu));
    }
    refused(ds_mem_export(got, &bad), DS_ERR_INVALID_VALUE);
    refused(ds_mem_export((char *)got + 100, &bad), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(got), DS_ERR_INVALID_VALUE);
    refused(ds_mem_free(got), DS_ERR_INVALID_VALUE);
    ok(ds_mem_import_close(got, s));
    refused(ds_mem_import_close(got, s), DS_ERR_INVALID_VALUE);
    ok(ds_stream_synchronize(s));
    tell(p, .verb = BLOCK_FREE, .a = 0);
    refused(ds_mem_import(harness_device(0), &h, s, &got), DS_ERR_INVALID_HANDLE);
    tell(p, .verb = BLOCK_ALLOC, .a = 1, .b = 0, .size = 8192);
    h = tell(p, .verb = BLOCK_EXPORT, .a = 1).block;
    kill_peer(&p);
    refused(ds_mem_import(harness_device(0), &h, s, &got), DS_ERR_PEER_DIED);
    ok(ds_mem_free(plain));
    ok(ds_mem_free(ptr));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(elsewhere));
}

/* The n-th change of the first `words` 32-bit words of a handle: two of them, each to one of three
   values. 0: there are no more. */
static int change_handle(unsigned char *bytes, int words, int n) {
    static const uint32_t value[3] = { 0, 1, 0x100 };
    int first = n / 9 / words, second = n / 9 % words;
    if (first >= words)
        return 0;
    memcpy(bytes + 4 * first, &value[n % 3], 4);
    memcpy(bytes + 4 * second, &value[n / 3 % 3], 4);
    return 1;
}

/* Imports all changed forms of a handle: each is refused or gives an address in the block. */
static void import_changed(const ds_ipc_mem_handle *h, size_t block, ds_stream s) {
    void *got, *base;
    ds_ipc_mem_handle f = *h;
    for (int n = 0; change_handle(f.bytes, 24, n); n++, f = *h) {
        if (ds_mem_import(harness_device(0), &f, s, &got) < 0) {
            harness_sentence(ds_error_get_last(), "ds_mem_import");
            continue;
        }
        ds_pointer_info one, all;
        ok(ds_mem_import(harness_device(0), h, s, &base));
        if ((uintptr_t)got - (uintptr_t)base >= block)
            fail_msg("change %d: %p is not inside of the block at %p", n, got, base);
        ok(ds_pointer_get_info(got, &one));
        ok(ds_pointer_get_info(base, &all));
        assert_ptr_equal(one.base, all.base);
        assert_int_equal(one.size, all.size);
        assert_true(one.size < (size_t)1 << 40);
        ok(ds_mem_import_close(base, s));
        ok(ds_mem_import_close(got, s));
    }
}

static void test_a_changed_handle_gives_no_memory_outside_of_its_block(void **state) {
    (void)state;

    enum { SIZE = 4096 };

    ds_stream s = made();
    void *got;
    peer p = start_peer();
    tell(p, .verb = BLOCK_ALLOC, .a = 0, .b = 0, .size = SIZE);
    tell(p, .verb = BLOCK_ALLOC, .a = 1, .b = 0, .size = SIZE);
    tell(p, .verb = BLOCK_FILL, .a = 0, .b = 0, .size = SIZE, .value = 7);
    ds_ipc_mem_handle h = tell(p, .verb = BLOCK_EXPORT, .a = 0).block; /* the only one */

    import_changed(&h, SIZE, s); /* each the first import */
    ok(ds_mem_import(harness_device(0), &h, s, &got));
    import_changed(&h, SIZE, s); /* each a further one */

    expect_here(got, SIZE, 7, s);
    ok(ds_mem_import_close(got, s));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_ipc_collect());
    ok(ds_mem_validate(harness_device(0)));
    end_peer(&p);
    ok(ds_stream_destroy(s));
}

static void test_a_changed_handle_of_an_event_is_no_event(void **state) {
    (void)state;
    ds_event e;
    peer p = start_peer();
    ds_event kept = event_over_there(&p, 0);
    ds_ipc_event_handle h = tell(p, .verb = EVENT_EXPORT, .a = 0).event, f = h;
    tell(p, .verb = EVENT_MAKE, .a = 1); /* a mark that has had an event */
    tell(p, .verb = EVENT_DESTROY, .a = 1);

    for (int n = 0; change_handle(f.bytes, 16, n); n++, f = h)
        if (memcmp(&f, &h, sizeof f) != 0)
            refused_any(ds_event_import(harness_device(0), &f, &e));
    f.bytes[63] = 1;
    refused_any(ds_event_import(harness_device(0), &f, &e));

    ok(ds_event_query(kept));
    end_peer(&p);
    ok(ds_event_destroy(kept));
}

typedef struct waiting_export {
    ds_pool pool;
    ds_stream stream;
    _Atomic int begun;
} waiting_export;

static void *export_behind_a_gate(void *arg) {
    waiting_export *x = arg;
    void *ptr;
    ds_ipc_mem_handle h;
    ok_thread(alloc_in(x->pool, 4096, x->stream, &ptr));
    x->begun = 1;
    ok_thread(ds_mem_export(ptr, &h));
    ok_thread(ds_mem_free(ptr));
    return NULL;
}

static void test_an_export_that_waits_holds_up_no_other_thread(void **state) {
    (void)state;

    enum { COUNT = 1000, SIZE = 4096 }; /* so many have an event */

    static void *ptr[COUNT];
    ds_stream s = made();
    gate g = { 0 };
    waiting_export x = { shareable_pool(0), made(), 0 };
    for (int i = 0; i < COUNT; i++) {
        ok(alloc_in(x.pool, SIZE, s, &ptr[i]));
        (void)exported_block(ptr[i]);
    }

    gate_close(x.stream, &g);
    pthread_t thread = spawn(export_behind_a_gate, &x);
    while (!x.begun)
        harness_nap();
    a_moment();
    (void)exported_block(ptr[0]);
    ok(ds_mem_ipc_collect());
    gate_open(&g);
    join(thread);

    for (int i = 0; i < COUNT; i++)
        ok(ds_mem_free(ptr[i]));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_destroy(x.pool));
    ok(ds_stream_destroy(x.stream));
    ok(ds_stream_destroy(s));
}

static void test_blocks_are_not_shared_on_a_stream_that_captures(void **state) {
    (void)state;
    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    ds_ipc_mem_handle h;
    ds_graph graph;
    void *ptr, *got, *none;
    peer p = start_peer();
    harness_warm_up();
    ok(alloc_in(pool, 4096, s, &ptr));
    tell(p, .verb = BLOCK_ALLOC, .a = 0, .b = 0, .size = 4096);
    ds_ipc_mem_handle theirs = tell(p, .verb = BLOCK_EXPORT, .a = 0).block;
    ok(ds_mem_import(harness_device(0), &theirs, s, &got));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    refused(ds_mem_export(ptr, &h), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_mem_import(harness_device(0), &theirs, s, &none), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_mem_import_close(got, s), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_mem_ipc_collect());
    ok(ds_capture_end(s, &graph)); /* unharmed */
    ok(ds_graph_destroy(graph));
    ok(ds_mem_import_close(got, s));
    ok(ds_stream_synchronize(s));
    end_peer(&p);
    ok(ds_mem_free(ptr));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_more_blocks_than_have_events_are_exported_in_order(void **state) {
    (void)state;

    enum { COUNT = 1100, SIZE = 4096 };

    static void *ptr[COUNT];
    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    peer p = start_peer();
    for (int i = 0; i < COUNT; i++) {
        ok(alloc_in(pool, SIZE, s, &ptr[i]));
        ok(fill_with(ptr[i], SIZE, (uint64_t)i, s));
        ds_ipc_mem_handle h = exported_block(ptr[i]);
        if (i < COUNT - 120)
            continue;
        tell(p, .verb = BLOCK_IMPORT, .a = 0, .b = 0, .block = h);
        expect_over_there(&p, 0, 0, SIZE, (uint64_t)i);
        tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    }
    tell(p, .verb = STREAM_SYNC, .b = 0);
    for (int i = 0; i < COUNT; i++)
        ok(ds_mem_free(ptr[i]));
    ok(ds_mem_ipc_collect());
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, 0);
    end_peer(&p);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

static void test_an_importer_that_is_killed_gives_its_blocks_back(void **state) {
    (void)state;

    enum { SIZE = 1 << 20, BLOCKS = 10 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr[BLOCKS], *again;
    peer p = start_peer();
    for (int i = 0; i < BLOCKS; i++) {
        ok(alloc_in(pool, SIZE, s, &ptr[i]));
        give_block(&p, ptr[i], i, 0);
        ok(ds_mem_free(ptr[i]));
    }
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, BLOCKS * SIZE);
    kill_peer(&p);
    ok(ds_mem_ipc_collect());
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, 0);
    ok(alloc_in(pool, SIZE, s, &again));
    ok(ds_mem_free(again));
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

/* On CUDA the memory of a process that has died is gone. */
static void test_memory_of_a_dead_exporter_is_usable_until_closed(void **state) {
    (void)state;

    enum { SIZE = 1 << 20 };

    ds_stream s = made();
    void *got;
    int before = shared_mappings();
    peer p = start_peer();
    tell(p, .verb = BLOCK_ALLOC, .a = 0, .b = 0, .size = SIZE);
    tell(p, .verb = BLOCK_FILL, .a = 0, .b = 0, .size = SIZE, .value = 11);
    ds_ipc_mem_handle h = tell(p, .verb = BLOCK_EXPORT, .a = 0).block;
    ok(ds_mem_import(harness_device(0), &h, s, &got));
    ok(ds_stream_synchronize(s));
    kill_peer(&p);
    expect_here(got, SIZE, 11, s);
    ok(ds_mem_import_close(got, s));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_ipc_collect());
    assert_int_equal(shared_mappings(), before);
    ok(ds_stream_destroy(s));
}

static void test_deaths_of_each_side_leave_no_block_behind(void **state) {
    (void)state;

    enum { SIZE = 256 << 10 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    int files = 0, mappings = 0, names = shared_names(), failed = 0;
    size_t before = 0, after = 0;
    peer spare = { 0, 0 };
    /* a process that uses a GPU begins and ends in seconds */
    int deaths = harness_is_cpu() ? DEATHS / 4 + 10 : 14;
    for (int i = 0; i < deaths; i++) {
        void *ptr, *got = NULL;
        peer p = next_peer(&spare);
        ok(alloc_in(pool, SIZE, s, &ptr));
        ok(fill_with(ptr, SIZE, (uint64_t)i, s));
        send_order(&p,
                   (order){ .verb = BLOCK_IMPORT, .a = 0, .b = 0, .block = exported_block(ptr) });
        /* it ends with its last use before it, and what it exports not yet written */
        if (harness_is_cpu()) {
            send_order(&p, (order){ .verb = GATE_CLOSE, .a = 0, .b = 0 });
            send_order(&p, (order){ .verb = BLOCK_ALLOC, .a = 1, .b = 0, .size = SIZE });
            send_order(&p, (order){ .verb = BLOCK_FILL, .a = 1, .b = 0, .size = SIZE, .value = 3 });
            send_order(&p, (order){ .verb = BLOCK_EXPORT, .a = 1 });
            send_order(&p, (order){ .verb = BLOCK_CLOSE, .a = 0, .b = 0 });
            for (int k = 0; k < 4; k++) {
                answer a = take_answer(&p);
                if (a.result != DS_OK)
                    fail_msg("death %d, order %d: %s", i, k, a.text);
            }
            ds_ipc_mem_handle h = take_answer(&p).block;
            assert_int_equal(take_answer(&p).result, DS_OK);
            ok(ds_mem_import(harness_device(0), &h, s, &got));
        } else {
            assert_int_equal(take_answer(&p).result, DS_OK);
        }
        ok(ds_mem_free(ptr));
        kill_peer(&p);
        if (got) {
            failed += ds_stream_synchronize(s) == DS_ERR_PEER_DIED;
            ok(ds_mem_import_close(got, s));
            ok(ds_device_reset(harness_device(0)));
        }
        ok(ds_mem_ipc_collect());
        if (i != 9)
            continue;
        files = entries_of("/proc/self/fd");
        mappings = shared_mappings();
        ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    }
    end_peer(&spare);
    assert_int_equal(failed, harness_is_cpu() ? DEATHS / 4 + 10 : 0);
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_int_equal(after, before);
    assert_int_equal(entries_of("/proc/self/fd"), files - 1); /* the spare one's */
    if (harness_is_cpu())
        assert_int_equal(shared_mappings(), mappings);
    assert_int_equal(shared_names(), names);
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, 0);
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

/* Threads that allocate, export and free, while the other process imports and closes. */
typedef struct exporter {
    const peer *p;
    pthread_mutex_t *talking;
    ds_pool pool;
    int slot;
} exporter;

static void *export_many(void *arg) {
    const exporter *x = arg;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    for (int i = 0; i < 60; i++) {
        void *ptr;
        ds_ipc_mem_handle h;
        ok_thread(alloc_in(x->pool, 65536, s, &ptr));
        ok_thread(fill_with(ptr, 65536, (uint64_t)i, s));
        ok_thread(ds_mem_export(ptr, &h));
        order o[4] = { { .verb = BLOCK_IMPORT, .a = x->slot, .b = x->slot, .block = h },
                       { .verb = BLOCK_CHECK,
                         .a = x->slot,
                         .b = x->slot,
                         .size = 65536,
                         .value = (uint64_t)i },
                       { .verb = BLOCK_CLOSE, .a = x->slot, .b = x->slot },
                       { .verb = STREAM_SYNC, .b = x->slot } };
        for (int k = 0; k < 4; k++) {
            if (k == 2)
                ok_thread(ds_mem_free(ptr));
            pthread_mutex_lock(x->talking);
            answer a = ask(x->p, o[k]);
            pthread_mutex_unlock(x->talking);
            if (a.result != DS_OK || a.value) {
                fprintf(stderr, "order %d: %s, %zu wrong\n", k, a.text, (size_t)a.value);
                abort();
            }
        }
    }
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_export_while_others_close(void **state) {
    (void)state;
    pthread_mutex_t talking = PTHREAD_MUTEX_INITIALIZER;
    ds_pool pool = shareable_pool(0);
    peer p = start_peer();
    exporter x[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        x[i] = (exporter){ &p, &talking, pool, i };
        thread[i] = spawn(export_many, &x[i]);
    }
    for (int i = 0; i < 3; i++)
        join(thread[i]);
    ok(ds_mem_ipc_collect());
    ds_mem_stats stats = { 0 };
    ok(ds_pool_get_stats(pool, &stats));
    assert_int_equal(stats.active_bytes[0].current, 0);
    ok(ds_mem_validate(harness_device(0)));
    end_peer(&p);
    ok(ds_pool_destroy(pool));
}

static void test_a_shutdown_ends_what_is_shared_on_both_sides(void **state) {
    (void)state;
    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr, *got;
    int files;
    peer p = start_peer();
    tell(p, .verb = BLOCK_ALLOC, .a = 0, .b = 0, .size = 4096);
    ds_ipc_mem_handle h = tell(p, .verb = BLOCK_EXPORT, .a = 0).block;
    ok(alloc_in(pool, 4096, s, &ptr));
    give_block(&p, ptr, 1, 0);
    ok(ds_mem_import(harness_device(0), &h, s, &got));
    tell(p, .verb = SHUTDOWN); /* with a block imported, another exported */
    tell(p, .verb = EVENT_MAKE, .a = 0);
    harness_shutdown();
    files = entries_of("/proc/self/fd");
    ok(ds_device_get_count((ds_device_type)harness_device(0).type, &(int){ 0 }));
    s = made();
    assert_true(entries_of("/proc/self/fd") <= files);
    ok(ds_stream_destroy(s));
    end_peer(&p);
}

static void test_a_pool_ends_while_others_have_its_blocks(void **state) {
    (void)state;

    enum { SIZE = 32 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr;
    size_t before, after;
    peer p = start_peer();
    warm_peer_up(&p, pool, s);
    ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    ok(alloc_in(pool, SIZE, s, &ptr));
    ok(fill_with(ptr, SIZE, 4, s));
    give_block(&p, ptr, 0, 0);
    ok(ds_mem_free(ptr));
    ok(ds_pool_destroy(pool));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    expect_over_there(&p, 0, 0, SIZE, 4);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    tell(p, .verb = COLLECT);
    ok(ds_mem_ipc_collect());
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_int_equal(after, before);
    ok(ds_mem_validate(harness_device(0)));
    end_peer(&p);
    ok(ds_stream_destroy(s));
}

/* CUDA cannot checkpoint a process that shares memory or events with another one. */
static void test_quiesce_is_refused_while_something_is_shared(void **state) {
    (void)state;

    enum { SIZE = 1 << 20 };

    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr;
    peer p = start_peer();
    ok(alloc_in(pool, SIZE, s, &ptr));
    ok(ds_quiesce());
    give_block(&p, ptr, 0, 0);
    refused(ds_quiesce(), DS_ERR_ILLEGAL_STATE);
    assert_non_null(strstr(ds_error_get_last(), "have 1 segments of this process open"));
    tell_expecting(p, DS_ERR_ILLEGAL_STATE, .verb = QUIESCE);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    tell(p, .verb = QUIESCE); /* closes the segment, too */
    ok(ds_quiesce());
    ds_event e = event_over_there(&p, 1);
    refused(ds_quiesce(), DS_ERR_ILLEGAL_STATE);
    assert_non_null(strstr(ds_error_get_last(), "of another process, imported at"));
    ok(ds_event_destroy(e));
    ok(ds_quiesce());
    end_peer(&p);
    ok(ds_mem_free(ptr));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

/* ---- a fault at each call ---- */

/* Bookkeeping memory of which one block is refused. */
static struct { _Atomic long calls, fail_at, live; } books;

static void *book_alloc(size_t size, void *user) {
    (void)user;
    if (++books.calls == books.fail_at)
        return NULL;
    void *p = malloc(size);
    books.live += p != NULL;
    return p;
}

static void book_free(void *p, void *user) {
    (void)user;
    books.live -= p != NULL;
    free(p);
}

static int failures;
/* A call that may meet the fault: then it has done nothing, and the next one succeeds. */
#define in_the_end(call)                                                                           \
    do {                                                                                           \
        ds_result end_result_ = (call);                                                            \
        if (end_result_ < 0 && failures++ == 0)                                                    \
            end_result_ = (call);                                                                  \
        if (end_result_ < 0)                                                                       \
            fail_msg("%s is %s: %s", #call, ds_result_get_name(end_result_), ds_error_get_last()); \
    } while (0)

static void share_everything(const peer *p) {
    ds_stream s;
    ds_event mine, theirs;
    ds_pool pool;
    ds_ipc_event_handle e;
    ds_ipc_mem_handle h;
    void *ptr, *got;
    in_the_end(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    in_the_end(ds_event_create(DS_EVENT_INTERPROCESS, NULL, &mine));
    in_the_end(ds_event_export(mine, &e));
    tell(*p, .verb = EVENT_IMPORT, .a = 0, .event = e);
    in_the_end(ds_event_record(mine, s));
    tell(*p, .verb = EVENT_WAIT, .a = 0, .b = 0);
    tell(*p, .verb = STREAM_SYNC, .b = 0);
    tell(*p, .verb = EVENT_MAKE, .a = 1);
    e = tell(*p, .verb = EVENT_EXPORT, .a = 1).event;
    in_the_end(ds_event_import(harness_device(0), &e, &theirs));
    tell(*p, .verb = GATE_CLOSE, .a = 1, .b = 1);
    tell(*p, .verb = EVENT_RECORD, .a = 1, .b = 1);
    in_the_end(ds_stream_wait_event(s, theirs));
    tell(*p, .verb = GATE_OPEN, .a = 1);
    in_the_end(ds_stream_synchronize(s));
    in_the_end(ds_event_record(theirs, s));
    in_the_end(ds_event_synchronize(theirs));
    in_the_end(
        ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .shareable = 1 }, &pool));
    in_the_end(alloc_in(pool, 4096, s, &ptr));
    in_the_end(fill_with(ptr, 4096, 8, s));
    in_the_end(ds_mem_export(ptr, &h));
    tell(*p, .verb = BLOCK_IMPORT, .a = 0, .b = 0, .block = h);
    expect_over_there(p, 0, 0, 4096, 8);
    tell(*p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(*p, .verb = STREAM_SYNC, .b = 0);
    tell(*p, .verb = BLOCK_ALLOC, .a = 1, .b = 0, .size = 4096);
    tell(*p, .verb = BLOCK_FILL, .a = 1, .b = 0, .size = 4096, .value = 9);
    h = tell(*p, .verb = BLOCK_EXPORT, .a = 1).block;
    in_the_end(ds_mem_import(harness_device(0), &h, s, &got));
    uint64_t wrong = 1;
    in_the_end(count_wrong(got, 4096, 9, s, &wrong));
    assert_int_equal(wrong, 0);
    in_the_end(ds_mem_import_close(got, s));
    in_the_end(ds_stream_synchronize(s));
    in_the_end(ds_mem_ipc_collect());
    in_the_end(ds_mem_free(ptr));
    in_the_end(ds_pool_destroy(pool));
    in_the_end(ds_event_destroy(mine));
    in_the_end(ds_event_destroy(theirs));
    in_the_end(ds_stream_destroy(s));
    tell(*p, .verb = BLOCK_FREE, .a = 1);
    tell(*p, .verb = COLLECT);
    tell(*p, .verb = EVENT_DESTROY, .a = 0);
    tell(*p, .verb = EVENT_DESTROY, .a = 1);
}

/* 1: the fault was met. */
static int share_with_a_fault(const peer *p, const char *fault, long book_fault) {
    ds_init_desc init = { .layers = fault ? "fault" : NULL,
                          .fault = fault,
                          .allocator = { book_alloc, book_free, NULL } };
    failures = 0;
    ok(ds_init(&init));
    (void)harness_device_count(); /* it is started */
    books.calls = 0;
    books.fail_at = book_fault;
    share_everything(p);
    int met = failures > 0 || (book_fault && books.calls >= book_fault);
    if (!met)
        books.fail_at = 0;
    ok(ds_shutdown());
    harness_forget();
    books.fail_at = 0;
    if (books.live)
        fail_msg("%s %ld: %ld blocks of bookkeeping are left", fault ? fault : "bookkeeping",
                 book_fault, (long)books.live);
    return met;
}

static void test_a_fault_in_any_call_loses_nothing(void **state) {
    static const char *const entries[] = { "stream_create",     "event_create",      "event_export",
                                           "event_import",      "event_synchronize", "submit",
                                           "share_alloc",       "share_export",      "share_import",
                                           "stream_synchronize" };
    (void)state;
    harness_shutdown();
    peer p = start_peer();
    (void)share_with_a_fault(&p, NULL, 0);
    int files = entries_of("/proc/self/fd"), mappings = shared_mappings(), met = 0;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        char fault[64];
        int more = 1;
        for (int n = 1; more && n < 50; n++, met += more) {
            snprintf(fault, sizeof fault, "%s:%d", entries[i], n);
            more = share_with_a_fault(&p, fault, 0);
        }
    }
    assert_true(met > 10);
    int more = 1;
    for (long n = 1; more && n < 300; n++)
        more = share_with_a_fault(&p, NULL, n);
    assert_int_equal(entries_of("/proc/self/fd"), files);
    assert_int_equal(shared_mappings(), mappings);
    end_peer(&p);
}

static void test_a_shutdown_that_cannot_wait_leaves_no_segment_record(void **state) {
    (void)state;
    harness_shutdown();
    books.calls = books.live = 0;
    books.fail_at = 0;
    for (int n = 1; n < 4; n++) {
        char fault[32];
        void *ptr;
        snprintf(fault, sizeof fault, "memory_wait:%d", n);
        ok(ds_init(&(ds_init_desc){
            .layers = "fault", .fault = fault, .allocator = { book_alloc, book_free, NULL } }));
        ds_pool pool = shareable_pool(0);
        ok(alloc_in(pool, 1 << 20, made(), &ptr));
        ok(ds_shutdown());
        harness_forget();
        if (books.live)
            fail_msg("fault %d: %ld blocks of bookkeeping are left", n, books.live);
    }
}

/* On the stand-in a record of a process that died never ends, and CUDA does not say what becomes
   of it: those tests are the CPU driver's. */
/* ---- who shares ---- */

typedef struct process_list {
    char text[4000];
    size_t n;
} process_list;

static int keep_text(const char *text, size_t size, void *user) {
    process_list *l = user;
    if (size > sizeof l->text - 1 - l->n)
        return 1;
    memcpy(l->text + l->n, text, size);
    l->n += size;
    l->text[l->n] = 0;
    return 0;
}

/* MiB that a process is said to use; -1: it is not listed. */
static double shared_with(pid_t pid) {
    process_list l = { .n = 0 };
    char line[40];
    double mb = -1;
    ok(ds_mem_write_processes(harness_device(0), keep_text, &l));
    snprintf(line, sizeof line, "process %10u uses ", (unsigned)pid);
    const char *at = strstr(l.text, line);
    return at && sscanf(at + strlen(line), "%lf", &mb) == 1 ? mb : -1;
}

static void test_a_process_can_have_a_limited_number_of_ipc_events(void **state) {
    enum { MOST = 65536 };

    ds_ipc_event_handle h;
    ds_event *e = calloc(MOST + 1, sizeof *e);
    (void)state;
    assert_non_null(e);
    ds_stream s = made();
    /* which takes no place */
    for (int i = 0; i <= MOST; i++)
        ok(ds_event_create(DS_EVENT_INTERPROCESS, NULL, &e[i]));
    for (int i = 0; i < MOST; i++)
        ok(ds_event_record(e[i], s));
    refused(ds_event_record(e[MOST], s), DS_ERR_LIMIT_EXCEEDED);
    refused(ds_event_export(e[MOST], &h), DS_ERR_LIMIT_EXCEEDED);
    ok(ds_event_destroy(e[0]));
    ok(ds_stream_synchronize(s));
    ok(ds_event_record(e[MOST], s));
    for (int i = 1; i <= MOST; i++)
        ok(ds_event_destroy(e[i]));
    ok(ds_stream_destroy(s));
    free(e);
}

static void test_processes_that_share_a_cpu_devices_memory_are_listed(void **state) {
    (void)state;
    ds_stream s = made();
    ds_pool pool = shareable_pool(0);
    void *ptr, *more, *theirs;
    peer p = start_peer(), q = start_peer();
    ok(alloc_in(pool, 3 << 20, s, &ptr));
    ok(alloc_in(pool, 1 << 20, s, &more));
    assert_true(shared_with(p.pid) < 0);
    give_block(&p, ptr, 0, 0);
    give_block(&q, ptr, 0, 0);
    give_block(&p, more, 1, 0);
    assert_true(shared_with(getpid()) >= 4);
    assert_true(shared_with(p.pid) == 4);
    assert_true(shared_with(q.pid) == 3);
    tell(p, .verb = BLOCK_CLOSE, .a = 0, .b = 0);
    tell(p, .verb = STREAM_SYNC, .b = 0);
    assert_true(shared_with(p.pid) == 1);
    ok(ds_mem_free(ptr)); /* q has it still */
    assert_true(shared_with(q.pid) == 3);
    kill_peer(&q);
    assert_true(shared_with(q.pid) < 0);
    tell(p, .verb = BLOCK_ALLOC, .a = 2, .b = 0, .size = 2 << 20);
    ds_ipc_mem_handle h = tell(p, .verb = BLOCK_EXPORT, .a = 2).block;
    ok(ds_mem_import(harness_device(0), &h, s, &theirs));
    assert_true(shared_with(p.pid) == 3); /* one of ours, and one of its own */
    ok(ds_mem_import_close(theirs, s));
    ok(ds_stream_synchronize(s));
    assert_true(shared_with(p.pid) == 1);
    end_peer(&p);
    assert_true(shared_with(p.pid) < 0);
    ok(ds_mem_free(more));
    ok(ds_mem_ipc_collect());
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_sharing[] = {
    DS_TEST(test_a_stream_waits_for_a_record_of_another_process, "issue 5.8"),
    DS_TEST(test_an_imported_event_can_be_recorded, "issue 5.8"),
    DS_TEST(test_the_host_waits_for_a_record_of_another_process, "issue 5.8"),
    DS_TEST(test_a_wait_takes_the_record_as_of_the_call_in_all_processes, "issue 5.8"),
    DS_TEST_CPU(test_a_later_record_does_not_release_earlier_waits, "issue 5.8"),
    DS_TEST(test_two_processes_take_turns_with_two_events, "issue 5.8"),
    DS_TEST(test_two_importers_order_each_other, "issue 5.8"),
    DS_TEST(test_an_event_imported_twice_is_one_event, "issue 5.8"),
    DS_TEST(test_an_event_is_imported_again_after_its_last_record, "review"),
    DS_TEST(test_graphs_record_and_wait_for_shared_events, "issue 5.8"),
    DS_TEST(test_a_handle_is_64_bytes_that_do_not_change, "torch 2"),
    DS_TEST(test_an_exported_event_stays_on_its_device, "torch 2"),
    DS_TEST(test_what_cannot_be_exported_or_imported_is_refused, "torch 2"),
    DS_TEST(test_handles_are_exported_and_opened_during_a_capture, "issue 5.8"),
    DS_TEST_CPU(test_a_process_can_have_a_limited_number_of_ipc_events, "issue 5.8"),
    DS_TEST_CPU(test_a_handle_of_a_destroyed_event_or_ended_process_is_void, "issue 5.8"),
    DS_TEST_CPU(test_a_failure_over_there_is_reported_to_who_waits, "issue 5.8"),
    DS_TEST_CPU(test_waiting_for_a_process_that_dies_has_its_own_result, "issue 5.8"),
    DS_TEST_CPU(test_the_death_of_a_recorder_of_my_event_is_noticed, "issue 5.8"),
    DS_TEST_CPU(test_a_record_that_was_reached_outlives_its_process, "issue 5.8"),
    DS_TEST_CPU(test_a_child_of_a_dead_process_does_not_keep_it_alive, "issue 5.8"),
    DS_TEST_CPU(test_sigterm_ends_a_process_of_which_main_has_ended, "review"),
    DS_TEST_CPU(test_a_thousand_deaths_before_completion_leave_nothing, "issue 5.8"),
    DS_TEST_CPU(test_a_process_that_was_killed_while_it_waited_is_forgotten, "issue 5.8"),
    DS_TEST(test_an_importer_sees_what_was_written_before_the_export, "torch 3.15"),
    DS_TEST(test_a_block_is_exported_again_behind_later_work, "torch 3.15"),
    DS_TEST(test_addresses_inside_of_blocks_can_be_exported, "torch 3.15"),
    DS_TEST(test_a_freed_block_stays_until_all_importers_closed_it, "torch 3.15"),
    DS_TEST(test_a_freed_block_is_poisoned_when_nobody_has_it_any_more, "torch 3.15"),
    DS_TEST(test_closing_is_ordered_behind_the_importers_last_use, "torch 3.15"),
    DS_TEST(test_a_segment_stays_while_someone_has_it_open, "torch 3.15"),
    DS_TEST(test_memory_that_comes_back_is_found_when_it_is_short, "torch 3.15"),
    DS_TEST(test_what_cannot_be_shared_is_refused, "torch 3.15"),
    DS_TEST(test_a_changed_handle_gives_no_memory_outside_of_its_block, "review"),
    DS_TEST_CPU(test_a_changed_handle_of_an_event_is_no_event, "review"),
    DS_TEST(test_an_export_that_waits_holds_up_no_other_thread, "review"),
    DS_TEST(test_blocks_are_not_shared_on_a_stream_that_captures, "issue 5.8"),
    DS_TEST(test_more_blocks_than_have_events_are_exported_in_order, "torch 3.15"),
    DS_TEST(test_an_importer_that_is_killed_gives_its_blocks_back, "issue 5.8"),
    DS_TEST_CPU(test_memory_of_a_dead_exporter_is_usable_until_closed, "issue 5.8"),
    DS_TEST(test_deaths_of_each_side_leave_no_block_behind, "issue 5.8"),
    DS_TEST(test_threads_export_while_others_close, "issue 5.8"),
    DS_TEST(test_a_shutdown_ends_what_is_shared_on_both_sides, "issue 5.8"),
    DS_TEST(test_quiesce_is_refused_while_something_is_shared, "users 2"),
    DS_TEST(test_a_pool_ends_while_others_have_its_blocks, "issue 5.8"),
    DS_TEST(test_a_fault_in_any_call_loses_nothing, "issue 5.8"),
    DS_TEST(test_a_shutdown_that_cannot_wait_leaves_no_segment_record, "fuzzing"),
    DS_TEST_CPU(test_processes_that_share_a_cpu_devices_memory_are_listed, "alloc"),
};
const size_t tests_sharing_count = sizeof tests_sharing / sizeof *tests_sharing;
