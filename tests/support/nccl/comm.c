/* Communicators: how they begin and end, their errors, and what is known of them. */
#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
    pthread_mutex_t lock;
    sn_comm *first; /* all that there ever were */
} comms = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- objects ---- */

sn_comm *sn_comm_create(int rank, int nranks, int device, int blocking) {
    sn_comm *comm = sn_allocate(sizeof *comm);
    comm->rank = rank;
    comm->nranks = nranks;
    comm->device = device;
    comm->blocking = blocking;
    comm->last = &comm->first;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->change, NULL);
    pthread_mutex_lock(&comms.lock);
    comm->next = comms.first;
    comms.first = comm;
    pthread_mutex_unlock(&comms.lock);
    return comm;
}

static int is_known(const sn_comm *comm) {
    int is = 0;
    pthread_mutex_lock(&comms.lock);
    for (const sn_comm *c = comms.first; c && !is; c = c->next)
        is = c == comm;
    pthread_mutex_unlock(&comms.lock);
    return is;
}

size_t sn_comm_count(size_t *registrations, size_t *redops) {
    size_t count = 0;
    pthread_mutex_lock(&comms.lock);
    for (const sn_comm *c = comms.first; c; c = c->next) {
        if (atomic_load(&c->state) == SN_OVER)
            continue;
        count++;
        *registrations += c->registered_count;
        for (int i = 0; i < c->redop_count; i++)
            *redops += (size_t)c->redops[i].used;
    }
    pthread_mutex_unlock(&comms.lock);
    return count;
}

ncclResult_t sn_comm_exists(const char *call, sn_comm *comm) {
    if (!comm)
        return sn_error(ncclInvalidArgument, "%s: comm is NULL", call);
    if (!is_known(comm) || atomic_load(&comm->state) == SN_OVER)
        sn_fail_test("%s: %p is no communicator, or it is destroyed", call, (void *)comm);
    return ncclSuccess;
}

static unsigned jobs_of(sn_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    unsigned jobs = comm->jobs;
    pthread_mutex_unlock(&comm->lock);
    return jobs;
}

static const char *const state_names[] = {
    [SN_INITIALIZING] = "not initialised",
    [SN_READY] = "ready",
    [SN_FINALIZED] = "finalized",
    [SN_REVOKED] = "revoked",
    [SN_FAILED] = "one whose start has failed",
    [SN_OVER] = "destroyed",
};

ncclResult_t sn_comm_check(const char *call, sn_comm *comm) {
    ncclResult_t result = sn_comm_exists(call, comm);
    if (result)
        return result;
    int async = atomic_load(&comm->async), state = atomic_load(&comm->state);
    if (async)
        return sn_error((ncclResult_t)async, "%s: the communicator has failed: %s", call,
                        ncclGetErrorString((ncclResult_t)async));
    if (jobs_of(comm))
        return sn_error(ncclInvalidArgument,
                        "%s: the call before has not been seen to end: "
                        "ncclCommGetAsyncError still says ncclInProgress",
                        call);
    if (state == SN_READY)
        return ncclSuccess;
    return sn_error(ncclInvalidUsage, "%s: the communicator is %s", call, state_names[state]);
}

/* ---- begin and end ---- */

ncclResult_t sn_comm_start(sn_comm *comm, const sn_place *at) {
    sigset_t all, before;
    snprintf(comm->board_name, sizeof comm->board_name, "%s", at->name);
    ncclResult_t result = sn_board_join(comm, at);
    if (result)
        return result;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&comm->thread, NULL, sn_progress, comm))
        sn_fail_test("no thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&comm->lock);
    comm->has_thread = 1;
    pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->state, SN_READY);
    return ncclSuccess;
}

void sn_comm_stop(sn_comm *comm) {
    atomic_store(&comm->stop, 1);
    pthread_mutex_lock(&comm->lock);
    if (comm->has_thread) /* from then on it has a board */
        sn_board_ring(comm);
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

void sn_comm_set_async(sn_comm *comm, ncclResult_t code) {
    int none = 0;
    atomic_compare_exchange_strong(&comm->async, &none, (int)code);
    sn_comm_stop(comm);
}

void standin_nccl_async_error(struct ncclComm *comm, int code) {
    if (sn_comm_exists("standin_nccl_async_error", comm))
        return;
    sn_error((ncclResult_t)code, "a test has set an asynchronous error");
    sn_comm_set_async(comm, (ncclResult_t)code);
}

/* A job may end it, and a call of another thread that aborts it. */
void sn_comm_end(sn_comm *comm, sn_state becomes) {
    pthread_mutex_lock(&comm->lock);
    while (comm->leaving && !comm->left) /* another thread ends it */
        pthread_cond_wait(&comm->change, &comm->lock);
    int has_thread = comm->has_thread;
    comm->has_thread = 0;
    comm->leaving = 1;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
    if (has_thread)
        pthread_join(comm->thread, NULL);
    pthread_mutex_lock(&comm->lock);
    sn_board_leave(comm);
    for (size_t i = 0; i < comm->registered_count; i++)
        free(comm->registered[i]);
    free(comm->registered);
    free(comm->redops);
    comm->registered = NULL;
    comm->redops = NULL;
    comm->registered_count = 0;
    comm->redop_count = 0;
    comm->left = 1;
    atomic_store(&comm->state, becomes);
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
    if (*comm->grow_name)
        sn_board_discard(comm->grow_name);
}

static void wait_for_jobs(sn_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    while (comm->jobs)
        pthread_cond_wait(&comm->change, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

/* NCCL waits without an end for graphs that hold operations of the communicator. */
static void wait_for_graphs(sn_comm *comm) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_mutex_lock(&comm->lock);
    while (comm->nodes)
        if (pthread_cond_timedwait(&comm->change, &comm->lock, &until) == ETIMEDOUT)
            break;
    unsigned nodes = comm->nodes;
    pthread_mutex_unlock(&comm->lock);
    if (nodes)
        sn_fail_test("ncclCommDestroy: graphs still have %u nodes of the communicator, for which "
                     "NCCL waits without an end",
                     nodes);
}

static void nothing(sn_comm *comm, void *data) {
    (void)comm;
    (void)data;
}

/* ---- configurations ---- */

static int is_set(int value) {
    return value != NCCL_CONFIG_UNDEF_INT;
}

static int is_one_of_two(int value) {
    return !is_set(value) || value == 0 || value == 1;
}

static int are_ctas_valid(const ncclConfig_t *config) {
    int least = is_set(config->minCTAs) ? config->minCTAs : 1;
    int most = is_set(config->maxCTAs) ? config->maxCTAs : INT_MAX;
    return least > 0 && most >= least;
}

/* Fields of which NCCL says what they may be, and that all versions have. */
ncclResult_t sn_config_read(const char *call, const ncclConfig_t *config, int *blocking) {
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC || config->size < offsetof(ncclConfig_t, trafficClass))
        return sn_error(ncclInvalidArgument,
                        "%s: config was not initialised with NCCL_CONFIG_INITIALIZER", call);
    if (!is_one_of_two(config->blocking))
        return sn_error(ncclInvalidArgument, "%s: config.blocking is %d, not 0 or 1", call,
                        config->blocking);
    if (is_set(config->cgaClusterSize) && config->cgaClusterSize < 0)
        return sn_error(ncclInvalidArgument, "%s: config.cgaClusterSize is %d", call,
                        config->cgaClusterSize);
    if (!are_ctas_valid(config))
        return sn_error(ncclInvalidArgument, "%s: config has minCTAs %d and maxCTAs %d", call,
                        config->minCTAs, config->maxCTAs);
    if (!is_one_of_two(config->splitShare))
        return sn_error(ncclInvalidArgument, "%s: config.splitShare is %d, not 0 or 1", call,
                        config->splitShare);
    if (is_set(config->blocking))
        *blocking = config->blocking;
    return ncclSuccess;
}

/* ---- initialisation ---- */

static ncclResult_t run_init(sn_job *job) {
    sn_comm *comm = job->comm;
    sn_place at = { job->name, comm->nranks, comm->rank, comm->device, 0, 0 };
    return sn_comm_start(comm, &at);
}

static int id_is_valid(const ncclUniqueId *id) {
    static const char begin[] = "standin-nccl-";
    return !strncmp(id->internal, begin, sizeof begin - 1) && memchr(id->internal, 0, SN_NAME) &&
           !strchr(id->internal, '/');
}

typedef struct member {
    int nranks, rank, device, blocking;
    const ncclUniqueId *id;
} member;

static ncclResult_t init_member(const char *call, ncclComm_t *out, const member *m) {
    if (!id_is_valid(m->id))
        return sn_error(ncclInvalidArgument, "%s: this is no unique id of ncclGetUniqueId", call);
    if (m->nranks < 1 || m->rank < 0 || m->rank >= m->nranks)
        return sn_error(ncclInvalidArgument, "%s: rank %d of %d: ranks are from 0 to nranks - 1",
                        call, m->rank, m->nranks);
    if (m->nranks > SN_MAX_RANKS)
        return sn_error(ncclInvalidArgument, "%s: the stand-in has at most %d ranks", call,
                        SN_MAX_RANKS);
    sn_job *job = sn_allocate(sizeof *job);
    job->run = run_init;
    job->comm = sn_comm_create(m->rank, m->nranks, m->device, m->blocking);
    job->out = out;
    memcpy(job->name, m->id->internal, sizeof job->name);
    *out = job->comm;
    return sn_group_job(job);
}

static ncclResult_t init_rank(const char *call, ncclComm_t *out, int nranks, const ncclUniqueId *id,
                              int rank, const ncclConfig_t *config) {
    int blocking = 1;
    if (!out)
        return sn_error(ncclInvalidArgument, "%s: comm is NULL", call);
    *out = NULL;
    ncclResult_t result = sn_config_read(call, config, &blocking);
    if (result)
        return result;
    int device = sn_cuda()->current_device();
    if (device < 0)
        return sn_error(ncclUnhandledCudaError, "%s: no device is current: error %d of CUDA", call,
                        -device);
    member m = { nranks, rank, device, blocking, id };
    return init_member(call, out, &m);
}

static ncclResult_t in_group(ncclResult_t result) {
    sn_group_fails(result);
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    SN_ENTER(ncclCommInitRank);
    return in_group(init_rank("ncclCommInitRank", comm, nranks, &id, rank, NULL));
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    SN_ENTER(ncclCommInitRankConfig);
    return in_group(init_rank("ncclCommInitRankConfig", comm, nranks, &id, rank, config));
}

#ifndef STANDIN_NCCL_OLD
ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int nranks, int rank, int id_count,
                                      ncclUniqueId *ids, ncclConfig_t *config) {
    SN_ENTER(ncclCommInitRankScalable);
    if (!ids || id_count < 1 || id_count > nranks)
        return in_group(sn_error(ncclInvalidArgument,
                                 "ncclCommInitRankScalable: %d unique ids for %d ranks", id_count,
                                 nranks));
    for (int i = 0; i < id_count; i++)
        if (!id_is_valid(&ids[i]))
            return in_group(
                sn_error(ncclInvalidArgument, "ncclCommInitRankScalable: unique id %d is none", i));
    ncclResult_t result =
        in_group(init_rank("ncclCommInitRankScalable", out, nranks, ids, rank, config));
    /* the ranks meet at the first; the others are used up, too */
    for (int i = 1; i < id_count && rank == 0; i++)
        sn_board_discard(ids[i].internal);
    return result;
}
#endif

static ncclResult_t check_devices(int count, const int *devices) {
    int most = sn_cuda()->device_count();
    if (count < 1)
        return sn_error(ncclInvalidArgument, "ncclCommInitAll: ndev is %d", count);
    for (int i = 0; i < count; i++) {
        int device = devices ? devices[i] : i;
        if (device < 0 || device >= most)
            return sn_error(devices ? ncclUnhandledCudaError : ncclInvalidUsage,
                            "ncclCommInitAll: there is no device %d, but %d devices", device, most);
        for (int j = 0; j < i && devices; j++)
            if (devices[j] == device)
                return sn_error(ncclInvalidUsage, "ncclCommInitAll: devlist has device %d twice",
                                device);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *out, int count, const int *devices) {
    ncclUniqueId id;
    SN_ENTER(ncclCommInitAll);
    if (!out)
        return sn_error(ncclInvalidArgument, "ncclCommInitAll: comm is NULL");
    int device = sn_cuda()->current_device();
    if (device < 0)
        return sn_error(ncclUnhandledCudaError, "ncclCommInitAll: no device: error %d of CUDA",
                        -device);
    ncclResult_t result = check_devices(count, devices);
    memset(&id, 0, sizeof id);
    if (!result)
        result = sn_board_create(id.internal, sn_mix(2, (uint64_t)count));
    if (result)
        return result;
    (void)ncclGroupStart();
    for (int i = 0; i < count; i++) {
        member m = { count, i, devices ? devices[i] : i, 1, &id };
        (void)in_group(init_member("ncclCommInitAll", &out[i], &m));
    }
    return ncclGroupEnd();
}

/* ---- the end ---- */

/* Waits for the operations of this rank only: NVIDIA's examples finalize the communicators of
   several devices one after the other on one thread. */
static ncclResult_t run_finalize(sn_job *job) {
    sn_comm *comm = job->parent;
    if (!sn_control(comm, nothing, NULL))
        return sn_error((ncclResult_t)(atomic_load(&comm->async) ? atomic_load(&comm->async)
                                                                 : ncclInvalidUsage),
                        "ncclCommFinalize: the communicator was stopped");
    atomic_store(&comm->state, SN_FINALIZED);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    SN_ENTER(ncclCommFinalize);
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = sn_comm_exists("ncclCommFinalize", comm);
    int state = atomic_load(&comm->state);
    if (state == SN_FINALIZED || state == SN_REVOKED)
        return in_group(sn_error(ncclInvalidArgument, "ncclCommFinalize: the communicator is %s",
                                 state_names[state]));
    result = result ? result : sn_comm_check("ncclCommFinalize", comm);
    if (result)
        return in_group(result);
    sn_job *job = sn_allocate(sizeof *job);
    job->run = run_finalize;
    job->parent = comm;
    return in_group(sn_group_job(job));
}

/* Without ncclCommFinalize, the rank waits for its own operations. */
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ncclResult_t injected = sn_enter(SN_ncclCommDestroy);
    if (!comm)
        return ncclSuccess;
    (void)sn_comm_exists("ncclCommDestroy", comm);
    wait_for_jobs(comm);
    wait_for_graphs(comm);
    if (atomic_load(&comm->state) == SN_READY)
        (void)sn_control(comm, nothing, NULL);
    sn_comm_end(comm, SN_OVER);
    return injected;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    ncclResult_t injected = sn_enter(SN_ncclCommAbort);
    if (!comm)
        return ncclSuccess;
    (void)sn_comm_exists("ncclCommAbort", comm);
    atomic_store(&comm->aborted, 1);
    sn_comm_stop(comm);
    sn_comm *child = atomic_load(&comm->child); /* NCCL has childAbortFlag for it */
    if (child)
        sn_comm_stop(child);
    wait_for_jobs(comm);
    sn_comm_end(comm, SN_OVER);
    return injected;
}

#ifndef STANDIN_NCCL_OLD
/* Local: what this rank does ends, and others see nothing of it. */
static ncclResult_t run_revoke(sn_job *job) {
    sn_comm *comm = job->parent;
    atomic_store(&comm->state, SN_REVOKED);
    sn_comm_stop(comm);
    (void)sn_control(comm, nothing, NULL);
    if (!atomic_load(&comm->async))
        atomic_store(&comm->stop, 0);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    SN_ENTER(ncclCommRevoke);
    if (!comm)
        return ncclSuccess;
    (void)sn_comm_exists("ncclCommRevoke", comm);
    if (flags != NCCL_REVOKE_DEFAULT)
        return sn_error(ncclInvalidArgument, "ncclCommRevoke: revokeFlags is %d, not 0", flags);
    if (atomic_load(&comm->state) != SN_READY)
        return sn_error(ncclInvalidArgument,
                        "ncclCommRevoke: the communicator is revoked, finalized or not ready");
    sn_job *job = sn_allocate(sizeof *job);
    job->run = run_revoke;
    job->parent = comm;
    return in_group(sn_group_job(job));
}
#endif

/* ---- what is known of a communicator ---- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out) {
    SN_ENTER(ncclCommGetAsyncError);
    if (!comm || !out)
        return sn_error(ncclInvalidArgument, "ncclCommGetAsyncError: comm or asyncError is NULL");
    (void)sn_comm_exists("ncclCommGetAsyncError", comm);
    sn_fail_async(comm);
    /* As in NCCL, work in progress ends first, also if it ends with the error. */
    *out = jobs_of(comm) ? ncclInProgress : (ncclResult_t)atomic_load(&comm->async);
    return ncclSuccess;
}

static ncclResult_t ask(const char *call, sn_comm *comm, int *out, const int *from) {
    if (!out)
        return sn_error(ncclInvalidArgument, "%s: the place of the result is NULL", call);
    ncclResult_t result = sn_comm_exists(call, comm);
    if (!result && atomic_load(&comm->state) == SN_INITIALIZING)
        result = sn_error(ncclInvalidArgument, "%s: the communicator is not ready", call);
    if (!result)
        *out = *from;
    return result;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
    SN_ENTER(ncclCommCount);
    return ask("ncclCommCount", comm, count, comm ? &comm->nranks : NULL);
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
    SN_ENTER(ncclCommCuDevice);
    return ask("ncclCommCuDevice", comm, device, comm ? &comm->device : NULL);
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    SN_ENTER(ncclCommUserRank);
    return ask("ncclCommUserRank", comm, rank, comm ? &comm->rank : NULL);
}

/* ---- registrations and memory ---- */

#ifndef STANDIN_NCCL_OLD
ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t size, void **handle) {
    SN_ENTER(ncclCommRegister);
    if (!handle || !buffer || !size)
        return sn_error(ncclInvalidArgument, "ncclCommRegister: buff or handle is NULL, or size 0");
    ncclResult_t result = sn_comm_check("ncclCommRegister", comm);
    if (result)
        return result;
    if (sn_cuda()->look(comm->device, buffer, size) != STANDIN_REACHED)
        return sn_error(ncclInvalidArgument,
                        "ncclCommRegister: %p is no memory of device %d of %zu bytes", buffer,
                        comm->device, size);
    pthread_mutex_lock(&comm->lock);
    size_t bytes = (comm->registered_count + 1) * sizeof *comm->registered;
    comm->registered = realloc(comm->registered, bytes);
    if (!comm->registered)
        sn_fail_test("out of memory");
    *handle = comm->registered[comm->registered_count++] = sn_allocate(1);
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
    ncclResult_t injected = sn_enter(SN_ncclCommDeregister);
    ncclResult_t result = sn_comm_exists("ncclCommDeregister", comm);
    if (result || !handle)
        return result;
    pthread_mutex_lock(&comm->lock);
    size_t at = 0;
    while (at < comm->registered_count && comm->registered[at] != handle)
        at++;
    int is_there = at < comm->registered_count;
    if (is_there) {
        free(handle);
        comm->registered[at] = comm->registered[--comm->registered_count];
    }
    pthread_mutex_unlock(&comm->lock);
    if (is_there)
        return injected;
    return sn_error(ncclInvalidArgument, "ncclCommDeregister: %p is no registration", handle);
}

ncclResult_t ncclMemAlloc(void **out, size_t size) {
    SN_ENTER(ncclMemAlloc);
    if (!out || !size)
        return sn_error(ncclInvalidArgument, "ncclMemAlloc: ptr is NULL, or size is 0");
    cudaError_t code = sn_cuda()->allocate(out, size);
    if (code == cudaSuccess)
        return ncclSuccess;
    return sn_error(ncclUnhandledCudaError, "ncclMemAlloc: %zu bytes: error %d of CUDA", size,
                    (int)code);
}

ncclResult_t ncclMemFree(void *pointer) {
    ncclResult_t injected = sn_enter(SN_ncclMemFree);
    cudaError_t code = pointer ? sn_cuda()->free(pointer) : cudaSuccess;
    if (code == cudaSuccess)
        return injected;
    return sn_error(ncclUnhandledCudaError, "ncclMemFree: %p: error %d of CUDA", pointer,
                    (int)code);
}
#endif
