/* A stand-in for an MPI library with the standard ABI; mpi.h describes it. With LACKS defined it
   lacks MPI_Ialltoallv_c. */
#include "mpi.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Begins a function, which fails if its turn has come. */
#define BEGIN(name)             \
    do {                        \
        if (is_next(name))      \
            return FAILED_CODE; \
    } while (0)

/* The same with a communicator. */
#define BEGIN_ON(comm, name)   \
    do {                       \
        (void)comm_size(comm); \
        BEGIN(name);           \
    } while (0)

enum {
    FAILED_CODE = 77,
    MOST_RANKS = 16,
    WORLD = 0x101,
    SELF = 0x102,
    FIRST_COMM = 0x400,
    THREAD_MULTIPLE = 4096
};

#define NO_REQUEST ((request *)0x180)
#define COMPLETE ((request *)0x181)
#define IN_PLACE ((void *)1)

/* A receive that waits for its message, or a message. */
typedef struct request {
    struct request *next;
    uintptr_t comm;
    int rank;
    int tag;
    int canceled;
    void *at; /* of a message: behind it */
    int64_t bytes;
} request;

typedef struct status {
    int source;
    int tag;
    int error;
    int internal[5];
} status;

#ifdef LACKS
#define mpi mpi_lacks /* both libraries may be in a process */
#endif

mpi_standin mpi = { .abi = 1, .level = THREAD_MULTIPLE, .size = 1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static request *sent;
static request *posted; /* receives that no test has completed */

static int is_next(const char *name) {
    pthread_mutex_lock(&lock);
    int counts = mpi.fail_at > 0 && (!mpi.fail_name || strcmp(mpi.fail_name, name) == 0);
    int next = counts && --mpi.fail_at == 0;
    mpi.failed |= next;
    pthread_mutex_unlock(&lock);
    return next;
}

static int64_t size_of(uintptr_t type) {
    switch (type) {
    case 0x210: /* MPI_FLOAT */
        return 4;
    case 0x212: /* MPI_C_FLOAT_COMPLEX */
    case 0x214: /* MPI_DOUBLE */
        return 8;
    case 0x216: /* MPI_C_DOUBLE_COMPLEX */
        return 16;
    default: /* the ABI has the logarithm of the size in these types */
        return 1 << (type >> 3 & 7);
    }
}

/* Returns the number of ranks. A handle that is none ends the program. */
static int comm_size(uintptr_t comm) {
    if (comm == WORLD)
        return mpi.size;
    if (comm == SELF)
        return 1;
    if (comm >= FIRST_COMM)
        return (int)(comm % MOST_RANKS);
    fprintf(stderr, "FAIL  mpi: %#lx is no communicator\n", (unsigned long)comm);
    abort();
}

static uintptr_t comm_make(int size) {
    static _Atomic uintptr_t made;
    return FIRST_COMM + ++made * MOST_RANKS + (uintptr_t)size;
}

static void copy(void *to, const void *from, int64_t bytes) {
    if (from == IN_PLACE || !bytes)
        return;
    if (mpi.copy_fn)
        mpi.copy_fn(to, from, (size_t)bytes);
    else
        memmove(to, from, (size_t)bytes);
}

static int complete(request **r) {
    *r = COMPLETE;
    return 0;
}

/* ---- the library ----------------------------------------------------------------------------- */

int MPI_Abi_get_version(int *major, int *minor) {
    *major = mpi.abi;
    *minor = 0;
    return 0;
}

int MPIX_Query_cuda_support(void) {
    return mpi.gpus;
}

int MPI_Get_library_version(char *text, int *length) {
    BEGIN("Get_library_version");
    *length = sprintf(text, "MPI\tthat stands in\nsecond line");
    return 0;
}

int MPI_Initialized(int *flag) {
    BEGIN("Initialized");
    *flag = mpi.initialized;
    return 0;
}

int MPI_Finalized(int *flag) {
    BEGIN("Finalized");
    *flag = mpi.finalized;
    return 0;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *out) {
    BEGIN("Init_thread");
    mpi.initialized = 1;
    *out = mpi.level;
    return 0;
}

int MPI_Query_thread(int *out) {
    BEGIN("Query_thread");
    *out = mpi.level;
    return 0;
}

int MPI_Finalize(void) {
    BEGIN("Finalize");
    mpi.finalized = 1;
    return 0;
}

int MPI_Error_string(int code, char *text, int *length) {
    *length = sprintf(text, "the test wants error %d", code);
    return mpi.nameless;
}

/* ---- communicators --------------------------------------------------------------------------- */

int MPI_Comm_rank(uintptr_t comm, int *out) {
    BEGIN_ON(comm, "Comm_rank");
    *out = 0;
    return 0;
}

int MPI_Comm_size(uintptr_t comm, int *out) {
    BEGIN("Comm_size");
    *out = comm_size(comm);
    return 0;
}

int MPI_Comm_group(uintptr_t comm, uintptr_t *out) {
    BEGIN("Comm_group");
    *out = (uintptr_t)comm_size(comm);
    return 0;
}

int MPI_Group_incl(uintptr_t group, int n, const int *ranks, uintptr_t *out) {
    BEGIN("Group_incl");
    *out = (uintptr_t)n;
    return 0;
}

int MPI_Group_free(uintptr_t *group) {
    BEGIN("Group_free");
    return 0;
}

int MPI_Comm_create_group(uintptr_t comm, uintptr_t group, int tag, uintptr_t *out) {
    BEGIN_ON(comm, "Comm_create_group");
    *out = comm_make((int)group);
    return 0;
}

int MPI_Comm_idup(uintptr_t comm, uintptr_t *out, request **r) {
    BEGIN("Comm_idup");
    *out = comm_make(comm_size(comm));
    return complete(r);
}

int MPI_Comm_set_errhandler(uintptr_t comm, uintptr_t handler) {
    BEGIN_ON(comm, "Comm_set_errhandler");
    return 0;
}

int MPI_Comm_free(uintptr_t *comm) {
    BEGIN("Comm_free");
    *comm = 0x100;
    return 0;
}

/* ---- messages and requests ------------------------------------------------------------------- */

int MPI_Isend_c(const void *at, int64_t count, uintptr_t type, int to, int tag, uintptr_t comm,
                request **r) {
    BEGIN_ON(comm, "Isend");
    int64_t bytes = count * size_of(type);
    request *m = malloc(sizeof *m + (size_t)bytes);
    if (!m)
        abort();
    *m = (request){ .comm = comm, .rank = to, .tag = tag, .at = m + 1, .bytes = bytes };
    copy(m->at, at, bytes);
    pthread_mutex_lock(&lock);
    request **last = &sent;
    while (*last)
        last = &(*last)->next;
    *last = m;
    pthread_mutex_unlock(&lock);
    return complete(r);
}

int MPI_Irecv_c(void *at, int64_t count, uintptr_t type, int from, int tag, uintptr_t comm,
                request **r) {
    BEGIN_ON(comm, "Irecv");
    *r = malloc(sizeof **r);
    if (!*r)
        abort();
    **r = (request){
        .comm = comm, .rank = from, .tag = tag, .at = at, .bytes = count * size_of(type)
    };
    pthread_mutex_lock(&lock);
    (*r)->next = posted;
    posted = *r;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Receives the first message that fits. Returns its size, or -1. The lock is held. */
static int64_t receive(const request *r) {
    request **at = &sent;
    while (*at && ((*at)->comm != r->comm || (*at)->tag != r->tag ||
                   (r->rank >= 0 && (*at)->rank != r->rank)))
        at = &(*at)->next;
    request *m = *at;
    if (!m)
        return -1;
    int64_t bytes = m->bytes > mpi.lost ? m->bytes - mpi.lost : 0;
    copy(r->at, m->at, bytes < r->bytes ? bytes : r->bytes);
    *at = m->next;
    free(m);
    return bytes;
}

static void request_free(request *r) {
    pthread_mutex_lock(&lock);
    request **at = &posted;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    pthread_mutex_unlock(&lock);
    free(r);
}

int MPI_Test(request **r, int *flag, status *out) {
    int64_t bytes = 0;
    BEGIN("Test");
    *flag = 1;
    if (*r == NO_REQUEST)
        return 0;
    pthread_mutex_lock(&lock);
    if (mpi.pending && *r == COMPLETE)
        *flag = 0;
    if (mpi.pending > 0 && *r == COMPLETE)
        mpi.pending--;
    if (*r != COMPLETE && !(*r)->canceled) {
        bytes = receive(*r);
        *flag = bytes >= 0;
    }
    pthread_mutex_unlock(&lock);
    if (!*flag)
        return 0;
    if (out)
        out->internal[0] = (int)bytes;
    if (*r != COMPLETE)
        request_free(*r);
    *r = NO_REQUEST;
    return 0;
}

int MPI_Cancel(request **r) {
    BEGIN("Cancel");
    (*r)->canceled = 1;
    return 0;
}

int MPI_Get_count_c(const status *s, uintptr_t type, int64_t *out) {
    BEGIN("Get_count");
    *out = s->internal[0] / size_of(type);
    return 0;
}

/* ---- collectives ----------------------------------------------------------------------------- */

int MPI_Ibarrier(uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ibarrier");
    return complete(r);
}

int MPI_Ibcast_c(void *at, int64_t count, uintptr_t type, int root, uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ibcast");
    return complete(r);
}

int MPI_Iallreduce_c(const void *in, void *out, int64_t count, uintptr_t type, uintptr_t op,
                     uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Iallreduce");
    copy(out, in, count * size_of(type));
    return complete(r);
}

int MPI_Ireduce_c(const void *in, void *out, int64_t count, uintptr_t type, uintptr_t op, int root,
                  uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ireduce");
    if (root == 0)
        copy(out, in, count * size_of(type));
    return complete(r);
}

int MPI_Ireduce_scatter_c(const void *in, void *out, const int64_t *counts, uintptr_t type,
                          uintptr_t op, uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ireduce_scatter");
    copy(out, in, counts[0] * size_of(type));
    return complete(r);
}

int MPI_Ireduce_scatter_block_c(const void *in, void *out, int64_t count, uintptr_t type,
                                uintptr_t op, uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ireduce_scatter_block");
    copy(out, in, count * size_of(type));
    return complete(r);
}

int MPI_Iallgather_c(const void *in, int64_t count, uintptr_t type, void *out, int64_t out_count,
                     uintptr_t out_type, uintptr_t comm, request **r) {
    BEGIN("Iallgather");
    for (int i = 0; i < comm_size(comm); i++)
        copy((char *)out + i * count * size_of(type), in, count * size_of(type));
    return complete(r);
}

int MPI_Iallgatherv_c(const void *in, int64_t count, uintptr_t type, void *out,
                      const int64_t *counts, const intptr_t *at, uintptr_t out_type, uintptr_t comm,
                      request **r) {
    BEGIN("Iallgatherv");
    const char *mine = in == IN_PLACE ? (char *)out + at[0] : in;
    for (int i = 0; i < comm_size(comm); i++)
        copy((char *)out + at[i], mine, counts[counts[i] < counts[0] ? i : 0] * size_of(type));
    return complete(r);
}

int MPI_Igatherv_c(const void *in, int64_t count, uintptr_t type, void *out, const int64_t *counts,
                   const intptr_t *at, uintptr_t out_type, int root, uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Igatherv");
    if (root == 0)
        copy((char *)out + at[0], in, count * size_of(type));
    return complete(r);
}

int MPI_Iscatterv_c(const void *in, const int64_t *counts, const intptr_t *at, uintptr_t type,
                    void *out, int64_t count, uintptr_t out_type, int root, uintptr_t comm,
                    request **r) {
    BEGIN_ON(comm, "Iscatterv");
    if (root == 0 && out != IN_PLACE)
        copy(out, (const char *)in + at[0], count * size_of(type));
    return complete(r);
}

#ifndef LACKS
int MPI_Ialltoallv_c(const void *in, const int64_t *counts, const intptr_t *at, uintptr_t type,
                     void *out, const int64_t *out_counts, const intptr_t *out_at,
                     uintptr_t out_type, uintptr_t comm, request **r) {
    BEGIN_ON(comm, "Ialltoallv");
    copy((char *)out + out_at[0], (const char *)in + at[0], counts[0] * size_of(type));
    return complete(r);
}
#endif
