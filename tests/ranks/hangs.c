/* Mistakes and failures of process groups: hangs ENGINE SITUATION
   ENGINE: mpi (a rank of mpiexec), local (HANGS_RANKS threads), or nccl (the same on the stand-in
   for cudart, or with RANK and WORLD_SIZE one rank).
   Each rank writes what its calls returned to HANGS_OUT/rank.R, a line for each:
       STEP LINE RESULT TIME DURATION SENTENCE
   LINE is that of the call in this file. TIME, of CLOCK_MONOTONIC, and DURATION are in
   microseconds. hangs.py knows what must be there. HANGS_LIMIT: time limit of the groups in ms.
   HANGS_COMPARE=1: with DS_RANKS_COMPARE. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum {
    FEW = 4,
    MANY = 4 << 20,
    PLACES = 16, /* tensors of FEW elements, before those of MANY */
    MAX_RANKS = 8,
    WRONG = 1 /* the rank that makes the mistake */
};

typedef struct rank {
    int rank;
    int size;
    FILE *out;
    pthread_mutex_t lock; /* of `out` */
    ds_ranks world;
    ds_stream stream;
    ds_device device;
    float *memory;
} rank;

/* A collective. */
typedef struct call {
    char verb; /* r: all_reduce, g: all_gather, b: broadcast, x: barrier */
    ds_ranks group;
    ds_dtype dtype;
    int64_t count; /* 0: FEW */
    size_t root;
    unsigned flags;
    uint64_t timeout_ns;
} call;

static const char *engine;
static int in_threads;      /* 1: the ranks are threads of this process */
static int local_ranks = 3; /* threads */
static uint64_t limit_ns = 1000000000u;
static unsigned flags;

static uint64_t now_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void sleep_ms(unsigned ms) {
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
    (void)nanosleep(&t, NULL);
}

/* Writes the result of a call that began at `since`. */
static ds_result say(rank *me, const char *step, int line, uint64_t since, ds_result r) {
    uint64_t now = now_us();
    (void)pthread_mutex_lock(&me->lock);
    fprintf(me->out, "%s %d %s %llu %llu %s\n", step, line, ds_result_get_name(r),
            (unsigned long long)now, (unsigned long long)(now - since),
            r < 0 ? ds_error_get_last() : "");
    fflush(me->out);
    (void)pthread_mutex_unlock(&me->lock);
    return r;
}

#define SAY(step, expression)                                \
    do {                                                     \
        uint64_t since_ = now_us();                          \
        (void)say(me, step, __LINE__, since_, (expression)); \
    } while (0)

/* ---- operations ------------------------------------------------------------------------------ */

/* Returns the verb's result; the call site is that of CALL. */
static ds_result enqueue(rank *me, int line, const call *c) {
    int64_t count = c->count ? c->count : FEW;
    int64_t all = count * me->size;
    int few = count <= FEW;
    ds_dtype dtype = c->dtype.bits ? c->dtype : ds_float32();
    ds_ranks_options more = { .timeout_ns = c->timeout_ns };
    ds_comm_options o = { .streams = &me->stream,
                          .stream_count = 1,
                          .stream = me->stream,
                          .flags = c->flags,
                          .ranks = c->group,
                          .root = c->root,
                          .ranks_options = &more };
    ds_tensor one =
        ds_tensor_of(few ? me->memory : me->memory + FEW * PLACES, me->device, dtype, 1, &count);
    ds_tensor joined = ds_tensor_of(me->memory + FEW, me->device, dtype, 1, &all);
    const ds_tensor *in = &one;
    const ds_tensor *out = &joined;
    ds_site_set(__FILE__, line);
    switch (c->verb) {
    case 'g':
        return (ds_comm_all_gather)(&in, &out, 1, &o);
    case 'b':
        return (ds_comm_broadcast_into)(c->root == (size_t)me->rank ? in : NULL, &in, 1, &o);
    case 'x':
        return (ds_ranks_barrier)(&o);
    default:
        return (ds_comm_all_reduce)(&in, &in, 1, DS_REDUCE_SUM, &o);
    }
}

/* Enqueues a collective: CALL(.verb = 'g'). Without a group: on the first one. */
#define CALL(...)                                                            \
    do {                                                                     \
        uint64_t since_ = now_us();                                          \
        call c_ = { __VA_ARGS__ };                                           \
        if (!c_.group.id)                                                    \
            c_.group = me->world;                                            \
        (void)say(me, "call", __LINE__, since_, enqueue(me, __LINE__, &c_)); \
    } while (0)

#define SYNC() SAY("sync", ds_stream_synchronize(me->stream))

/* Joins a group of all ranks. */
static ds_result join(rank *me, const char *id, uint64_t timeout_ns, ds_ranks *out) {
    ds_ranks_desc desc = { .engine = engine,
                           .devices = &me->device,
                           .device_count = 1,
                           .flags = flags,
                           .timeout_ns = timeout_ns };
    char path[512];
    const char *folder = getenv("HANGS_OUT");
    if (strcmp(engine, "mpi") != 0) {
        desc.rank = me->rank;
        desc.size = me->size;
        desc.id = id;
    }
    if (strcmp(engine, "nccl") == 0) {
        snprintf(path, sizeof path, "file:%s/id.%s", folder ? folder : ".", id);
        desc.id = path;
    }
    return ds_ranks_init(&desc, out);
}

static void create_stream(rank *me) {
    ds_stream_desc desc = { .device = me->device };
    SAY("stream", ds_stream_create(&desc, &me->stream));
}

/* What every rank does when the situation is over: the failure must be known to all calls, and the
   end must not wait. */
static void leave(rank *me, int failed) {
    if (failed) {
        CALL(.verb = 'r');
        SAY("status", ds_ranks_get_status(me->world));
        SYNC();
    }
    SAY("finalize", ds_ranks_finalize(me->world));
}

/* ---- situations ------------------------------------------------------------------------------ */

static void fine(rank *me) {
    CALL(.verb = 'r', .count = MANY);
    CALL(.verb = 'g');
    CALL(.verb = 'b', .root = 1);
    CALL(.verb = 'x');
    SYNC();
    SAY("status", ds_ranks_get_status(me->world));
    leave(me, 0);
}

/* The rank calls after the time limit. */
static void late(rank *me) {
    if (me->rank == WRONG)
        sleep_ms((unsigned)(limit_ns / 1000000u) * 8 / 5);
    CALL(.verb = 'r');
    SYNC();
    leave(me, 1);
}

static void *killer(void *ms) {
    sleep_ms(*(unsigned *)ms);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

/* The rank is gone before the call: its process, or with threads only its calls. */
static void dead(rank *me) {
    if (me->rank == WRONG && !in_threads)
        (void)raise(SIGKILL);
    if (me->rank == WRONG)
        return;
    CALL(.verb = 'r');
    SYNC();
    leave(me, 1);
}

/* The process is gone in the middle of large operations. */
static void dead_large(rank *me) {
    static unsigned delay = 40;
    pthread_t thread;
    int nccl = strcmp(engine, "nccl") == 0; /* the stand-in interprets kernels */
    if (me->rank == WRONG)
        (void)pthread_create(&thread, NULL, killer, &delay);
    for (int i = 0; i < 40; i++)
        CALL(.verb = 'r', .count = MANY, .flags = i % 2 || nccl ? DS_COMM_ANY_ORDER : 0);
    SYNC();
    leave(me, 1);
}

static void hold(void *ms) {
    sleep_ms(*(unsigned *)ms);
}

/* Keeps the stream busy, so that the calls that follow are enqueued before the first one starts. */
static void keep_busy(rank *me, unsigned *ms) {
    SAY("busy", ds_stream_launch_host_func(me->stream, hold, ms, NULL));
}

/* Two collectives in another order. */
static void order(rank *me) {
    static unsigned busy = 100;
    keep_busy(me, &busy);
    if (me->rank == WRONG) {
        CALL(.verb = 'g');
        CALL(.verb = 'r');
    } else {
        CALL(.verb = 'r');
        CALL(.verb = 'g');
    }
    SYNC();
    leave(me, 1);
}

static void count(rank *me) {
    if (me->rank == WRONG)
        CALL(.verb = 'r', .count = 3);
    else
        CALL(.verb = 'r');
    CALL(.verb = 'x');
    SYNC();
    leave(me, 1);
}

static void type(rank *me) {
    if (me->rank == WRONG)
        CALL(.verb = 'r', .dtype = ds_int32());
    else
        CALL(.verb = 'r');
    CALL(.verb = 'x');
    SYNC();
    leave(me, 1);
}

static void root(rank *me) {
    if (me->rank == WRONG)
        CALL(.verb = 'b', .root = 1);
    else
        CALL(.verb = 'b', .root = 0);
    CALL(.verb = 'x');
    SYNC();
    leave(me, 1);
}

/* The ranks form rows and columns, and the rank takes the one for the other. With four ranks. */
static void group(rank *me) {
    ds_ranks row;
    ds_ranks column;
    SAY("split", ds_ranks_split(me->world, me->rank / 2, me->rank, &row));
    SAY("split", ds_ranks_split(me->world, me->rank % 2, me->rank, &column));
    if (me->rank == WRONG)
        CALL(.verb = 'r', .group = column);
    else
        CALL(.verb = 'r', .group = row);
    SYNC();
    SAY("status", ds_ranks_get_status(me->rank == WRONG ? column : row));
    SAY("finalize", ds_ranks_finalize(row));
    SAY("finalize", ds_ranks_finalize(column));
    leave(me, 0);
}

/* The rank leaves out its last call, and ends. */
static void forgotten(rank *me) {
    if (me->rank == WRONG) {
        leave(me, 0);
        return;
    }
    CALL(.verb = 'x');
    SYNC();
    leave(me, 1);
}

/* The rank leaves out a call, and makes the next ones. */
static void skipped(rank *me) {
    static unsigned busy = 100;
    keep_busy(me, &busy);
    if (me->rank != WRONG)
        CALL(.verb = 'b');
    CALL(.verb = 'r', .count = 2);
    CALL(.verb = 'x');
    SYNC();
    leave(me, 1);
}

static void abort_while_others_wait(rank *me) {
    if (me->rank == WRONG) {
        sleep_ms(200);
        SAY("abort", ds_ranks_abort(me->world, "the loss is NaN"));
        SAY("again", ds_ranks_abort(me->world, "a second reason"));
    } else {
        CALL(.verb = 'r', .count = MANY);
        SYNC();
    }
    leave(me, 1);
}

static void *aborter(void *user) {
    rank *me = user;
    sleep_ms(200);
    SAY("abort", ds_ranks_abort(me->world, "the disk is full"));
    return NULL;
}

/* Another thread of a rank that waits aborts the group; rank 0 never calls. */
static void abort_by_a_thread(rank *me) {
    pthread_t thread;
    if (me->rank == WRONG)
        (void)pthread_create(&thread, NULL, aborter, me);
    if (me->rank != 0) {
        CALL(.verb = 'r');
        SYNC();
    } else {
        sleep_ms(400);
        SAY("status", ds_ranks_get_status(me->world));
    }
    if (me->rank == WRONG)
        (void)pthread_join(thread, NULL);
    leave(me, 1);
}

/* The rank joins again, alone. The first group goes on. */
static void second_init(rank *me) {
    ds_ranks other;
    if (me->rank == WRONG)
        SAY("init", join(me, "hangs", limit_ns, &other));
    CALL(.verb = 'r', .timeout_ns = 10000000000u);
    SYNC();
    SAY("status", ds_ranks_get_status(me->world));
    leave(me, 0);
}

/* Two threads have the same rank of a group that is not complete. With threads only. */
static void same_rank(rank *me) {
    ds_ranks other;
    rank as = { .rank = me->rank == 2 ? 1 : me->rank, .size = 3, .device = me->device };
    sleep_ms(me->rank == 2 ? 200 : 0);
    SAY("init", join(&as, "twice", limit_ns, &other));
    leave(me, 0);
}

/* A child of the process uses the group; the process goes on. */
static void forked(rank *me) {
    if (me->rank == WRONG) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            CALL(.verb = 'r');
            SAY("status", ds_ranks_get_status(me->world));
            SAY("abort", ds_ranks_abort(me->world, "a child"));
            SAY("finalize", ds_ranks_finalize(me->world));
            SAY("shutdown", ds_shutdown());
            _exit(7);
        }
        (void)waitpid(child, &status, 0);
        SAY("child", WIFEXITED(status) && WEXITSTATUS(status) == 7 ? DS_OK : DS_ERR_FAILED);
    }
    CALL(.verb = 'r');
    SYNC();
    SAY("status", ds_ranks_get_status(me->world));
    leave(me, 0);
}

static int fails(void *unused) {
    (void)unused;
    return 5;
}

/* The stream of the rank has failed before the operation. */
static void failed_stream(rank *me) {
    if (me->rank == WRONG)
        SAY("closure", ds_stream_launch_closure(me->stream, fails, NULL, 0, NULL));
    CALL(.verb = 'r');
    SYNC();
    sleep_ms(50); /* the wait for the stream may end before the stream has got to the operation */
    leave(me, 1);
}

/* The stream has failed with another group. */
static void failed_group(rank *me) {
    ds_ranks other;
    SAY("split", ds_ranks_split(me->world, 0, me->rank, &other));
    if (me->rank == WRONG) {
        CALL(.verb = 'r', .group = other);
        SAY("abort", ds_ranks_abort(other, "the first group"));
        SYNC();
    }
    CALL(.verb = 'r');
    SYNC();
    SAY("finalize", ds_ranks_finalize(other));
    leave(me, 1);
}

/* The operation has a time limit of its own. */
static void own_limit(rank *me) {
    if (me->rank == WRONG) {
        sleep_ms(800);
    } else {
        CALL(.verb = 'r', .timeout_ns = 300000000);
        SYNC();
    }
    leave(me, 1);
}

/* An operation waits for one that comes first and whose stream is busy. */
static void busy_stream(rank *me) {
    static unsigned busy = 900;
    ds_stream first = me->stream;
    if (me->rank == WRONG)
        keep_busy(me, &busy);
    CALL(.verb = 'r', .timeout_ns = 10000000000u);
    create_stream(me);
    CALL(.verb = 'x', .timeout_ns = 400000000);
    SYNC();
    me->stream = first;
    leave(me, 1);
}

/* A rank is late at the creation of a group. With threads only: MPI_Init has no time limit. */
static void late_init(rank *me) {
    ds_ranks other = { 0 };
    sleep_ms(me->rank == WRONG ? 700 : 0);
    SAY("init", join(me, "late", me->rank == WRONG ? 100000000 : 400000000, &other));
    leave(me, 0);
}

/* A rank is late at a split. */
static void late_split(rank *me) {
    ds_ranks other = { 0 };
    sleep_ms(me->rank == WRONG ? (unsigned)(limit_ns / 1000000u) * 3 / 2 : 0);
    SAY("split", ds_ranks_split(me->world, 0, 0, &other));
    SAY("status", ds_ranks_get_status(me->world));
    leave(me, 0);
}

/* After a rank is gone, the others go on without it. */
static void shrink(rank *me) {
    int gone = WRONG;
    ds_ranks rest = { 0 };
    ds_ranks_info info;
    if (me->rank == WRONG && !in_threads)
        (void)raise(SIGKILL);
    if (me->rank == WRONG)
        return;
    CALL(.verb = 'r');
    SYNC();
    SAY("shrink", ds_ranks_shrink(me->world, &gone, 1, &rest));
    create_stream(me);
    float value = (float)(me->rank + 1);
    SAY("write", ds_copy(me->memory, &value, sizeof value, me->stream));
    CALL(.verb = 'r', .group = rest);
    SAY("read", ds_copy(&value, me->memory, sizeof value, me->stream));
    SAY("end", ds_stream_synchronize(me->stream));
    SAY("info", ds_ranks_get_info(rest, &info));
    int sum = (int)value;
    SAY("sum", info.size == me->size - 1 && sum == 4 * (me->size - 2) ? DS_OK : DS_ERR_FAILED);
    SAY("end", ds_ranks_finalize(rest));
    leave(me, 0);
}

/* Engines that are not there. No launcher has started the process. */
static void no_engine(rank *me) {
    ds_ranks other;
    static const char *const names[] = { "mpi", "gloo", "" };
    const char *own = engine;
    for (int i = 0; i < 3; i++) {
        engine = names[i];
        SAY("init", join(me, "none", limit_ns, &other));
    }
    engine = own;
    CALL(.verb = 'r');
    SYNC();
    leave(me, 0);
}

static const struct {
    const char *name;
    void (*fn)(rank *me);
} situations[] = { { "fine", fine },
                   { "late", late },
                   { "dead", dead },
                   { "dead_large", dead_large },
                   { "order", order },
                   { "count", count },
                   { "type", type },
                   { "root", root },
                   { "group", group },
                   { "forgotten", forgotten },
                   { "skipped", skipped },
                   { "abort", abort_while_others_wait },
                   { "abort_thread", abort_by_a_thread },
                   { "second_init", second_init },
                   { "same_rank", same_rank },
                   { "fork", forked },
                   { "failed_stream", failed_stream },
                   { "failed_group", failed_group },
                   { "own_limit", own_limit },
                   { "busy_stream", busy_stream },
                   { "late_init", late_init },
                   { "late_split", late_split },
                   { "shrink", shrink },
                   { "no_engine", no_engine } };

/* ---- ranks ----------------------------------------------------------------------------------- */

static void (*situation)(rank *me);

/* Joins the group, so that all ranks run, and begins. */
static void *rank_main(void *user) {
    rank *me = user;
    char path[512];
    const char *folder = getenv("HANGS_OUT");
    (void)pthread_mutex_init(&me->lock, NULL);
    snprintf(path, sizeof path, "%s/rank.%d", folder ? folder : ".", me->rank);
    me->out = fopen(path, "w");
    if (!me->out)
        abort();
    create_stream(me);
    size_t size = (FEW * PLACES + MANY) * sizeof *me->memory;
    void *memory = NULL;
    SAY("alloc", ds_mem_alloc(size, me->stream, &memory));
    SAY("fill", ds_fill(memory, 0, 1, size, me->stream));
    me->memory = memory;
    ds_result r = join(me, "hangs", limit_ns, &me->world);
    if (r < 0) {
        (void)say(me, "join", __LINE__, now_us(), r);
        return NULL;
    }
    CALL(.verb = 'r');
    SAY("begin", ds_stream_synchronize(me->stream));
    situation(me);
    return NULL;
}

/* Reads the environment, and starts the ranks of this process. Returns one of them. */
static rank *start_ranks(rank *ranks) {
    pthread_t threads[MAX_RANKS];
    int nccl = strcmp(engine, "nccl") == 0;
    const char *number = getenv(nccl ? "RANK" : "PMI_RANK");
    const char *size = getenv(nccl ? "WORLD_SIZE" : "PMI_SIZE");
    in_threads = strcmp(engine, "local") == 0 || (nccl && !size);
    for (int i = 0; i < MAX_RANKS; i++) {
        ranks[i].rank = i;
        ranks[i].size = local_ranks;
        ranks[i].device =
            (ds_device){ nccl ? DS_DEVICE_CUDA : DS_DEVICE_CPU, nccl || in_threads ? i : 0 };
    }
    if (!in_threads) {
        rank *me = &ranks[number ? atoi(number) : 0];
        me->size = size ? atoi(size) : 1;
        (void)rank_main(me);
        return me;
    }
    for (int i = 0; i < local_ranks; i++)
        (void)pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < local_ranks; i++)
        (void)pthread_join(threads[i], NULL);
    return &ranks[0];
}

int main(int argc, char **argv) {
    static rank ranks[MAX_RANKS];
    const char *limit = getenv("HANGS_LIMIT");
    const char *compare = getenv("HANGS_COMPARE");
    const char *threads = getenv("HANGS_RANKS");
    alarm(60);
    (void)signal(SIGUSR1, SIG_IGN);
    if (argc < 3)
        return 2;
    engine = argv[1];
    for (size_t i = 0; i < sizeof situations / sizeof situations[0]; i++)
        if (strcmp(argv[2], situations[i].name) == 0)
            situation = situations[i].fn;
    if (!situation)
        return 2;
    if (threads)
        local_ranks = atoi(threads);
    if (limit)
        limit_ns = (uint64_t)atoi(limit) * 1000000u;
    flags = compare && *compare == '1' ? DS_RANKS_COMPARE : 0;

    rank *me = start_ranks(ranks);
    SAY("shutdown", ds_shutdown());
    SAY("over", DS_OK);
    return 0;
}
