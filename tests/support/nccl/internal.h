/* What the files of the stand-in for NCCL share: control.c (settings, counts, errors), board.c (the
   shared memory of a communicator's ranks), comm.c (communicators), manage.c (communicators that
   are made of others), group.c (groups and the operations in streams), progress.c (the thread of a
   communicator), calls.c (the functions that move data) and reduce.c (arithmetic).

   Locks, in this order: the stand-in's for cudart, a communicator's `lock`, the one of control.c.
   Callbacks of the stand-in for cudart come with its lock held; so nothing here calls it under a
   communicator's lock. Between ranks there are only atomic words, and each has one writer. */
#ifndef STANDIN_NCCL_INTERNAL_H
#define STANDIN_NCCL_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../standin/external.h"
#include "nccl_api.h"
#include "nccl_standin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    SN_NAME = 96,          /* bytes of the name of a board */
    SN_MAX_RANKS = 64,     /* of one communicator */
    SN_STAGE = 256 * 1024, /* bytes of a rank in a collective at a time */
    SN_RING = 64 * 1024,   /* bytes on the way from one rank to another */
    SN_LOOK_MS = 50        /* a waiting rank looks so often whether the others are alive */
};

typedef enum sn_function {

#define X(result, name, parameters) SN_##name,
    NCCL_FUNCTIONS(X)
#undef X
        SN_FUNCTIONS
} sn_function;

typedef enum sn_kind {
    SN_REDUCE,
    SN_BROADCAST,
    SN_ALL_REDUCE,
    SN_REDUCE_SCATTER,
    SN_ALL_GATHER,
    SN_ALL_TO_ALL,
    SN_GATHER,
    SN_SCATTER,
    SN_SEND,
    SN_RECV,
    /* what is done for all ranks without a stream */
    SN_FINALIZE,
    SN_SPLIT,
    SN_GROW
} sn_kind;

/* What a rank tells the others of a call, so that they can compare. */
typedef struct sn_description {
    int kind, type, op, root;
    uint64_t count;
    int color, key;
    char name[SN_NAME]; /* SN_GROW: the board of the new communicator, from one rank */
} sn_description;

/* ---- board.c ---- */

typedef struct sn_board sn_board;

typedef struct sn_place {
    const char *name;
    int nranks, rank, device;
    uint64_t lineage; /* of a board that is made now */
    int make;         /* it may have to be made */
} sn_place;

struct ncclComm;
/* A name that no other board has; the file is made. */
ncclResult_t sn_board_create(char name[SN_NAME], uint64_t lineage);
/* Joins, and waits until all ranks have. */
ncclResult_t sn_board_join(struct ncclComm *comm, const sn_place *at);
void sn_board_leave(struct ncclComm *comm);
void sn_board_discard(const char *name); /* nobody joins any more */
void sn_board_ring(struct ncclComm *comm);
uint64_t sn_board_lineage(const struct ncclComm *comm);

/* Barriers of operations in streams and those of control work have nothing to do with each other:
   operations that were stopped must not count for what comes later. */
typedef enum sn_lane { SN_DATA, SN_CONTROL } sn_lane;

/* Waits for all ranks. 0, or the communicator is over. */
int sn_board_barrier(struct ncclComm *comm, sn_lane lane);
/* The same, and tells the description. Those of others stay until the next barrier. */
int sn_board_arrive(struct ncclComm *comm, sn_lane lane, const sn_description *mine);
const sn_description *sn_board_description(const struct ncclComm *comm, sn_lane lane, int rank);
char *sn_board_stage(struct ncclComm *comm, int rank);
/* Whether ranks of other processes are alive; sets the asynchronous error. */
void sn_board_look(struct ncclComm *comm);

/* The way from one rank to another. */
typedef struct sn_channel {
    _Atomic uint64_t posted, written; /* messages, bytes: by the sender */
    _Atomic uint64_t received, taken; /* by the receiver */
    sn_description message;           /* the last that was posted */
    char ring[SN_RING];
} sn_channel;

sn_channel *sn_board_channel(struct ncclComm *comm, int from, int to);
/* bell: before the look that found nothing to do. 0, or the communicator is over. */
uint32_t sn_board_bell(struct ncclComm *comm);
int sn_board_wait(struct ncclComm *comm, uint32_t bell);
/* This rank has enqueued an operation: waits until all ranks have. */
void sn_board_await_calls(struct ncclComm *comm);
size_t sn_board_unused(void); /* unique ids of this process that nobody has used */

/* ---- communicators ---- */

typedef struct sn_redop {
    int used, on_device;
    ncclDataType_t type;
    char value[8];
    const void *address;
} sn_redop;

typedef struct sn_item sn_item;

typedef enum sn_state {
    SN_INITIALIZING,
    SN_READY,
    SN_FINALIZED,
    SN_REVOKED,
    SN_FAILED, /* initialisation has failed */
    SN_OVER    /* destroyed or aborted */
} sn_state;

struct ncclComm {
    struct ncclComm *next; /* of all that there ever were: a handle is never given out twice */
    pthread_mutex_t lock;
    pthread_cond_t change;
    atomic_int state, async, stop; /* stop: operations end at once */
    atomic_int aborted;
    atomic_int calls;                 /* threads in a call that needs the communicator alone */
    _Atomic(struct ncclComm *) child; /* that a job makes: an abort ends that, too */
    int rank, nranks, device, blocking;
    char *board_memory;
    sn_board *board;
    size_t board_size;
    int has_others; /* some ranks are of other processes */
    char board_name[SN_NAME];
    uint64_t phase[2], sequence;
    _Atomic long long looked; /* after other ranks, in ms */
    sn_item *first, **last;   /* of the queue */
    pthread_t thread;
    int has_thread, leaving, left;
    unsigned jobs;  /* in the background */
    unsigned nodes; /* of graphs */
    unsigned shrinks, splits;
    char grow_name[SN_NAME]; /* the board of a unique id for ncclCommGrow that is not used */
    sn_redop *redops;
    int redop_count;
    void **registered; /* list of handles */
    size_t registered_count;
};

typedef struct ncclComm sn_comm;

/* ---- control.c ---- */

const standin_services *sn_cuda(void);
__attribute__((format(printf, 1, 2))) _Noreturn void sn_fail_test(const char *format, ...);
/* Keeps the sentence for ncclGetLastError and returns the result. */
__attribute__((format(printf, 2, 3))) ncclResult_t sn_error(ncclResult_t result, const char *format,
                                                            ...);
void *sn_allocate(size_t size); /* zeroed */
ncclResult_t sn_enter(sn_function f);
void sn_nap(void); /* as long as standin_nccl_delay says */
uint64_t sn_seed(void);
uint64_t sn_mix(uint64_t a, uint64_t b);
int sn_is_on(const char *setting); /* it is 1 */
int sn_mismatch_is_error(void);
void sn_mismatch(const char *text); /* fails the test, unless it is an error */
const char *sn_kind_name(int kind);
size_t sn_type_size(ncclDataType_t type);

#define SN_ENTER(name)                         \
    do {                                       \
        ncclResult_t r_ = sn_enter(SN_##name); \
        if (r_)                                \
            return r_;                         \
    } while (0)

/* ---- comm.c ---- */

sn_comm *sn_comm_create(int rank, int nranks, int device, int blocking);
/* Whether the handle is a communicator that is ready for work. */
ncclResult_t sn_comm_check(const char *call, sn_comm *comm);
/* Not NULL, and alive. */
ncclResult_t sn_comm_exists(const char *call, sn_comm *comm);
ncclResult_t sn_comm_start(sn_comm *comm, const sn_place *at); /* joins, and starts the thread */
void sn_comm_set_async(sn_comm *comm, ncclResult_t code);
/* Sets it if a test has asked for it with this call (standin_nccl_fail_async). */
void sn_fail_async(sn_comm *comm);
void sn_comm_stop(sn_comm *comm);                  /* wakes all that waits in it */
void sn_comm_end(sn_comm *comm, sn_state becomes); /* its thread ends, it leaves the board */
ncclResult_t sn_config_read(const char *call, const ncclConfig_t *config, int *blocking);
size_t sn_comm_count(size_t *registrations, size_t *redops);

/* Work that makes or changes a communicator, alone or in a group. */
typedef struct sn_job sn_job;

struct sn_job {
    ncclResult_t (*run)(sn_job *job);
    sn_comm *comm, *parent; /* comm: that is made; parent: that is in use meanwhile */
    ncclComm_t *out;
    char name[SN_NAME];
    uint64_t lineage;
    int make, color, key, flags;
    int *excluded, excluded_count;
    ncclResult_t result;
    pthread_t thread;
    sn_job *next;
};

/* ---- group.c ---- */

typedef struct sn_call {
    sn_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    sn_comm *comm;
    cudaStream_t stream;
    sn_redop scale; /* of an operation that the program has made */
} sn_call;

typedef struct sn_batch sn_batch;

/* The calls of a group for one communicator: one operation, which is in all streams of the group
   at once. `nodes`: it is in a graph, and each launch runs it. */
struct sn_batch {
    sn_comm *comm;
    sn_call *calls;
    size_t call_count;
    struct sn_port *ports; /* one for each stream */
    size_t port_count;
    atomic_uint refs; /* ports, runs, the caller's */
    struct sn_run *current;
};

/* One execution of a batch, or control work, in the queue of a communicator. */
struct sn_item {
    sn_item *next;
    struct sn_run *run; /* NULL: control work */
    void (*control)(sn_comm *comm, void *data);
    void *data;
    int done;
};

typedef struct sn_slot {
    struct sn_run *run;
    void *task;

    enum { SN_PUT, SN_STARTED, SN_ENDED } state;
} sn_slot;

typedef struct sn_run {
    sn_item item;
    sn_batch *batch;
    sn_slot *slots; /* one for each port */
    size_t expected, put, started, over;
    int code, done;
} sn_run;

ncclResult_t sn_group_call(const sn_call *call); /* now, or at the end of the group */
ncclResult_t sn_group_job(sn_job *job);          /* now, or at the end of the group */
void sn_group_fails(ncclResult_t result);        /* of a call in a group */
void sn_run_end(sn_run *run);                    /* its operations in the streams end */
/* In the queue, and waits for it. 0: the communicator is over. */
int sn_control(sn_comm *comm, void (*control)(sn_comm *comm, void *data), void *data);

/* ---- progress.c ---- */

void *sn_progress(void *comm);
/* Whether all ranks have called the same; 0: yes. */
int sn_compare(sn_comm *comm, sn_lane lane);

/* ---- reduce.c ---- */

typedef struct sn_reduction {
    ncclDataType_t type;
    int op; /* of ncclRedOp_t; one that the program has made is ncclSum here */
    int divisor;
} sn_reduction;

void sn_reduce(const sn_reduction *r, const char *const *parts, int part_count, size_t count,
               char *out);
/* Multiplies each element by a scalar of the same type. */
void sn_scale(ncclDataType_t type, char *values, size_t count, const char scalar[8]);
void sn_reciprocal(ncclDataType_t type, int n, char out[8]);
int sn_is_floating(ncclDataType_t type);

#endif
