/* Groups, and the operations that go into streams.

   The calls of a group for one communicator are one operation: it holds all streams of the group,
   begins when all of them have come to it, and ends in all of them at once. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>

typedef struct sn_port {
    standin_external external; /* first: callbacks get its address */
    sn_batch *batch;
    cudaStream_t stream;
    standin_buffer *buffers;
} sn_port;

static _Thread_local struct {
    int depth;
    ncclResult_t result; /* of the first call that has failed */
    sn_call *calls;
    size_t call_count, call_capacity;
    sn_job *jobs, **last_job;
} group;

/* ---- runs: callbacks of the stand-in for cudart ---- */

static void unref_batch(sn_batch *batch) {
    if (atomic_fetch_sub(&batch->refs, 1) > 1)
        return;
    for (size_t i = 0; i < batch->port_count; i++)
        free(batch->ports[i].buffers);
    free(batch->ports);
    free(batch->calls);
    free(batch);
}

static sn_run *new_run(sn_batch *batch) {
    sn_comm *comm = batch->comm;
    sn_run *run = sn_allocate(sizeof *run);
    run->item.run = run;
    run->batch = batch;
    run->slots = sn_allocate(batch->port_count * sizeof *run->slots);
    run->expected = batch->port_count;
    atomic_fetch_add(&batch->refs, 1);
    *comm->last = &run->item;
    comm->last = &run->item.next;
    return run;
}

static void *put_task(standin_external *e, void *task) {
    sn_port *port = (sn_port *)(void *)e;
    sn_batch *batch = port->batch;
    sn_comm *comm = batch->comm;
    int state = atomic_load(&comm->state);
    if (state != SN_READY && state != SN_REVOKED)
        sn_fail_test("a graph is launched with a communicator that is destroyed or aborted");
    pthread_mutex_lock(&comm->lock);
    sn_run *run = batch->current ? batch->current : new_run(batch);
    batch->current = run;
    sn_slot *slot = &run->slots[run->put++];
    *slot = (sn_slot){ run, task, SN_PUT };
    if (run->put == run->expected)
        batch->current = NULL;
    pthread_mutex_unlock(&comm->lock);
    return slot;
}

static int start_task(void *put, int code) {
    sn_slot *slot = put;
    sn_run *run = slot->run;
    sn_comm *comm = run->batch->comm;
    pthread_mutex_lock(&comm->lock);
    int is_over = run->done;
    slot->state = is_over ? SN_ENDED : SN_STARTED;
    run->started++;
    if (code)
        run->code = code;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
    return is_over;
}

static void task_over(void *put) {
    sn_run *run = ((sn_slot *)put)->run;
    if (++run->over < run->expected)
        return;
    unref_batch(run->batch);
    free(run->slots);
    free(run);
}

static void count_node(standin_external *e, int change) {
    sn_comm *comm = ((sn_port *)(void *)e)->batch->comm;
    pthread_mutex_lock(&comm->lock);
    comm->nodes += (unsigned)change;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

static void drop_port(standin_external *e) {
    unref_batch(((sn_port *)(void *)e)->batch);
}

void sn_run_end(sn_run *run) {
    sn_comm *comm = run->batch->comm;
    void **tasks = sn_allocate(run->expected * sizeof *tasks);
    size_t count = 0;
    pthread_mutex_lock(&comm->lock);
    run->done = 1;
    for (size_t i = 0; i < run->put; i++)
        if (run->slots[i].state == SN_STARTED) {
            run->slots[i].state = SN_ENDED;
            tasks[count++] = run->slots[i].task;
        }
    pthread_mutex_unlock(&comm->lock);
    /* the run is gone with its last task */
    for (size_t i = 0; i < count; i++)
        sn_cuda()->end(tasks[i]);
    free(tasks);
}

int sn_control(sn_comm *comm, void (*control)(sn_comm *comm, void *data), void *data) {
    sn_item item = { .control = control, .data = data };
    pthread_mutex_lock(&comm->lock);
    *comm->last = &item;
    comm->last = &item.next;
    pthread_cond_broadcast(&comm->change);
    while (!item.done)
        pthread_cond_wait(&comm->change, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    return !atomic_load(&comm->stop);
}

/* ---- batches ---- */

static size_t bytes_of(const sn_call *call, int per_rank) {
    return call->count * sn_type_size(call->type) * (per_rank ? (size_t)call->comm->nranks : 1);
}

/* The memory that a call reads and writes on this rank. Returns how many buffers. */
static size_t buffers_of(const sn_call *call, standin_buffer out[3]) {
    sn_kind kind = call->kind;
    int is_root = call->comm->rank == call->root;
    size_t count = 0;
    int sends = kind != SN_RECV && ((kind != SN_BROADCAST && kind != SN_SCATTER) || is_root);
    int receives = kind != SN_SEND && ((kind != SN_REDUCE && kind != SN_GATHER) || is_root);
    int sends_all = kind == SN_REDUCE_SCATTER || kind == SN_ALL_TO_ALL || kind == SN_SCATTER;
    int receives_all = kind == SN_ALL_GATHER || kind == SN_ALL_TO_ALL || kind == SN_GATHER;
    if (sends)
        out[count++] = (standin_buffer){ call->send, bytes_of(call, sends_all) };
    if (receives)
        out[count++] = (standin_buffer){ call->recv, bytes_of(call, receives_all) };
    if (call->op >= ncclNumOps && call->scale.on_device)
        out[count++] = (standin_buffer){ call->scale.address, sn_type_size(call->type) };
    return count;
}

static sn_port *port_of(sn_batch *batch, cudaStream_t stream) {
    for (size_t i = 0; i < batch->port_count; i++)
        if (batch->ports[i].stream == stream)
            return &batch->ports[i];
    sn_port *port = &batch->ports[batch->port_count++];
    port->external = (standin_external){ .name = "a collective",
                                         .put = put_task,
                                         .ready = start_task,
                                         .over = task_over,
                                         .node = count_node,
                                         .drop = drop_port,
                                         .refs = 1 };
    port->batch = batch;
    port->stream = stream;
    atomic_fetch_add(&batch->refs, 1);
    return port;
}

static void add_call(sn_batch *batch, const sn_call *call) {
    standin_buffer used[3];
    size_t count = buffers_of(call, used);
    sn_port *port = port_of(batch, call->stream);
    standin_external *e = &port->external;
    batch->calls[batch->call_count++] = *call;
    port->buffers = realloc(port->buffers, (e->buffer_count + count) * sizeof *port->buffers);
    if (count && !port->buffers)
        sn_fail_test("out of memory");
    for (size_t i = 0; i < count; i++)
        if (used[i].size)
            port->buffers[e->buffer_count++] = used[i];
    e->buffers = port->buffers;
}

/* The calls of one communicator. */
static sn_batch *make_batch(sn_comm *comm, const sn_call *calls, size_t count) {
    sn_batch *batch = sn_allocate(sizeof *batch);
    batch->comm = comm;
    batch->refs = 1;
    batch->calls = sn_allocate(count * sizeof *batch->calls);
    batch->ports = sn_allocate(count * sizeof *batch->ports);
    for (size_t i = 0; i < count; i++)
        if (calls[i].comm == comm)
            add_call(batch, &calls[i]);
    return batch;
}

/* Some streams have not got their operation: the others must not wait for them. */
static void end_partly(sn_batch *batch, int code) {
    sn_comm *comm = batch->comm;
    pthread_mutex_lock(&comm->lock);
    sn_run *run = batch->current;
    batch->current = NULL;
    if (run) {
        run->expected = run->put;
        run->code = code;
    }
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

/* The caller's reference of the batch goes. */
static ncclResult_t submit_batch(sn_batch *batch) {
    sn_comm *comm = batch->comm;
    int failed = 0;
    if (atomic_fetch_add(&comm->calls, 1))
        sn_fail_test("two threads use the communicator of rank %d at the same time", comm->rank);
    for (size_t i = 0; i < batch->port_count; i++) {
        sn_port *port = &batch->ports[i];
        int code = sn_cuda()->submit(comm->device, port->stream, &port->external);
        failed = code ? code : failed;
    }
    if (failed)
        end_partly(batch, failed);
    atomic_fetch_sub(&comm->calls, 1);
    unref_batch(batch);
    if (!failed)
        return ncclSuccess;
    return sn_error(ncclUnhandledCudaError,
                    "an operation cannot be put into its stream: error %d of CUDA", failed);
}

/* ---- the checks at the end of a group ---- */

/* A rank may send to itself only what it receives in the same group. */
static ncclResult_t check_own_messages(const sn_call *calls, size_t count, const sn_comm *comm) {
    int sends = 0, receives = 0;
    for (size_t i = 0; i < count; i++) {
        if (calls[i].comm != comm || calls[i].root != comm->rank)
            continue;
        sends += calls[i].kind == SN_SEND;
        receives += calls[i].kind == SN_RECV;
    }
    if (sends == receives)
        return ncclSuccess;
    return sn_error(ncclInvalidUsage,
                    "rank %d sends %d messages to itself in a group and receives %d", comm->rank,
                    sends, receives);
}

static ncclResult_t check_streams(const sn_call *calls, size_t count, const sn_comm *comm) {
    int captured = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        if (calls[i].comm != comm)
            continue;
        all++;
        captured += sn_cuda()->captures(comm->device, calls[i].stream);
    }
    if (!captured || captured == all)
        return ncclSuccess;
    return sn_error(ncclInvalidUsage, "some streams of a group are captured and others are not");
}

static int is_first(const sn_call *calls, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (calls[i].comm == calls[index].comm)
            return 0;
    return 1;
}

static ncclResult_t check_calls(const sn_call *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (calls[i].comm->blocking != calls[0].comm->blocking)
            return sn_error(ncclInvalidArgument,
                            "a group has communicators that block and others that do not");
        if (!is_first(calls, i))
            continue;
        ncclResult_t result = sn_comm_check("ncclGroupEnd", calls[i].comm);
        if (!result)
            result = check_own_messages(calls, count, calls[i].comm);
        if (!result)
            result = check_streams(calls, count, calls[i].comm);
        if (result)
            return result;
    }
    return ncclSuccess;
}

typedef struct batches {
    sn_batch **at;
    size_t count;
} batches;

static void change_jobs(sn_comm *comm, int change) {
    pthread_mutex_lock(&comm->lock);
    comm->jobs += (unsigned)change;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

static void start_thread(pthread_t *thread, void *(*body)(void *), void *of, int detach) {
    sigset_t all, before;
    pthread_t unused;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(thread ? thread : &unused, NULL, body, of))
        sn_fail_test("no thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (detach)
        pthread_detach(thread ? *thread : unused);
}

static void *await_calls_of(void *of) {
    sn_comm *comm = of;
    sn_board_await_calls(comm);
    change_jobs(comm, -1);
    return NULL;
}

/* Whether calls wait for the same calls of other ranks: collectives that are not captured. */
static int awaits_calls(const sn_batch *batch) {
    if (!sn_is_on("STANDIN_NCCL_CALLS_WAIT") ||
        sn_cuda()->captures(batch->comm->device, batch->ports[0].stream))
        return 0;
    for (size_t i = 0; i < batch->call_count; i++)
        if (batch->calls[i].kind < SN_SEND)
            return 1;
    return 0;
}

/* All at once, for one thread may have several ranks in a group. */
static void await_calls(sn_comm *const *comms, size_t count) {
    pthread_t *threads = sn_allocate(count * sizeof *threads);
    for (size_t i = 0; i < count; i++)
        start_thread(&threads[i], await_calls_of, comms[i], 0);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}

static ncclResult_t submit_all(const batches *b) {
    ncclResult_t result = ncclSuccess;
    sn_comm **waiting = sn_allocate(b->count * sizeof *waiting);
    size_t count = 0;
    for (size_t i = 0; i < b->count; i++) {
        sn_comm *comm = b->at[i]->comm;
        int awaits = awaits_calls(b->at[i]);
        if (awaits)
            change_jobs(comm, 1); /* an abort waits for the end of this */
        ncclResult_t one = submit_batch(b->at[i]);
        if (awaits && !one)
            waiting[count++] = comm;
        else if (awaits)
            change_jobs(comm, -1);
        result = result ? result : one;
    }
    await_calls(waiting, count);
    free(waiting);
    return result;
}

static void *submit_later(void *of) {
    batches *b = of;
    sn_nap();
    for (size_t i = 0; i < b->count; i++) {
        sn_comm *comm = b->at[i]->comm;
        ncclResult_t result = submit_batch(b->at[i]);
        if (result)
            sn_comm_set_async(comm, result);
        change_jobs(comm, -1);
    }
    free(b->at);
    free(b);
    return NULL;
}

static ncclResult_t submit_calls(const sn_call *calls, size_t count) {
    batches b = { sn_allocate(count * sizeof *b.at), 0 };
    ncclResult_t result = check_calls(calls, count);
    for (size_t i = 0; i < count && !result; i++)
        if (is_first(calls, i))
            b.at[b.count++] = make_batch(calls[i].comm, calls, count);
    if (!result && !calls[0].comm->blocking) {
        batches *later = sn_allocate(sizeof *later);
        *later = b;
        for (size_t i = 0; i < b.count; i++)
            change_jobs(b.at[i]->comm, 1);
        start_thread(NULL, submit_later, later, 1);
        return ncclInProgress;
    }
    if (!result)
        result = submit_all(&b);
    free(b.at);
    return result;
}

/* ---- jobs ---- */

static void job_users(const sn_job *job, int change) {
    if (job->comm)
        change_jobs(job->comm, change);
    if (job->parent)
        change_jobs(job->parent, change);
}

/* What a failed call of a communicator that blocks leaves behind is nothing. */
static void finish_job(sn_job *job) {
    sn_comm *comm = job->comm;
    int is_child = comm && job->parent; /* the program has no handle of it before the end */
    if (job->result && comm) {
        atomic_store(&comm->async, (int)job->result);
        sn_comm_end(comm, comm->blocking || is_child ? SN_OVER : SN_FAILED);
    }
    if (job->result && (!comm || is_child) && job->parent && !job->parent->blocking)
        sn_comm_set_async(job->parent, job->result);
    if (!job->result && is_child)
        __atomic_store_n(job->out, comm, __ATOMIC_RELEASE);
    if (!job->result || !is_child)
        job_users(job, -1);
    else
        change_jobs(job->parent, -1);
}

static void *run_job(void *of) {
    sn_job *job = of;
    job->result = job->run(job);
    finish_job(job);
    return NULL;
}

static void *run_job_later(void *of) {
    sn_job *job = of;
    sn_nap();
    run_job(job);
    free(job->excluded);
    free(job);
    return NULL;
}

static int job_blocks(const sn_job *job) {
    return job->parent ? job->parent->blocking : job->comm->blocking;
}

static ncclResult_t wait_for_jobs(sn_job *jobs) {
    ncclResult_t result = ncclSuccess;
    for (sn_job *job = jobs, *next; job; job = next) {
        next = job->next;
        pthread_join(job->thread, NULL);
        if (job->result && job->out)
            *job->out = NULL;
        result = result ? result : job->result;
        free(job->excluded);
        free(job);
    }
    return result;
}

static ncclResult_t run_jobs(sn_job *jobs) {
    int blocks = job_blocks(jobs), is_mixed = 0;
    for (sn_job *job = jobs; job; job = job->next) {
        is_mixed |= job_blocks(job) != blocks;
        job_users(job, 1);
    }
    if (is_mixed)
        sn_fail_test("a group initialises communicators that block and others that do not");
    for (sn_job *job = jobs, *next; job; job = next) {
        next = job->next;
        if (blocks)
            start_thread(&job->thread, run_job, job, 0);
        else
            start_thread(NULL, run_job_later, job, 1);
    }
    return blocks ? wait_for_jobs(jobs) : ncclInProgress;
}

ncclResult_t sn_group_job(sn_job *job) {
    if (!group.depth)
        return run_jobs(job);
    if (!group.jobs)
        group.last_job = &group.jobs;
    *group.last_job = job;
    group.last_job = &job->next;
    return ncclSuccess;
}

/* ---- the functions ---- */

/* A call that fails lets its group fail. */
ncclResult_t sn_group_call(const sn_call *call) {
    if (!group.depth)
        return submit_calls(call, 1);
    if (group.call_count == group.call_capacity) {
        group.call_capacity = group.call_capacity ? 2 * group.call_capacity : 16;
        group.calls = realloc(group.calls, group.call_capacity * sizeof *group.calls);
        if (!group.calls)
            sn_fail_test("out of memory");
    }
    group.calls[group.call_count++] = *call;
    return ncclSuccess;
}

void sn_group_fails(ncclResult_t result) {
    if (group.depth && result != ncclInProgress && !group.result)
        group.result = result;
}

ncclResult_t ncclGroupStart(void) {
    SN_ENTER(ncclGroupStart);
    group.depth++;
    return ncclSuccess;
}

static void drop_jobs(sn_job *jobs) {
    for (sn_job *job = jobs, *next; job; job = next) {
        next = job->next;
        if (job->comm)
            sn_comm_end(job->comm, SN_OVER);
        if (job->out)
            *job->out = NULL;
        free(job->excluded);
        free(job);
    }
}

static ncclResult_t end_group(void) {
    ncclResult_t result = group.result;
    sn_call *calls = group.calls;
    sn_job *jobs = group.jobs;
    size_t count = group.call_count;
    memset(&group, 0, sizeof group);
    if (!result && jobs && count)
        result = sn_error(ncclInvalidUsage, "a group may not both initialise communicators and use "
                                            "them");
    if (result)
        drop_jobs(jobs);
    else if (jobs)
        result = run_jobs(jobs);
    else if (count)
        result = submit_calls(calls, count);
    free(calls);
    return result;
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t injected = sn_enter(SN_ncclGroupEnd);
    if (injected && !group.depth)
        return injected;
    if (!group.depth)
        return sn_error(ncclInvalidUsage, "ncclGroupEnd: no group is open");
    return --group.depth ? injected : end_group();
}

#ifndef STANDIN_NCCL_OLD
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
    SN_ENTER(ncclGroupSimulateEnd);
    if (!group.depth)
        return sn_error(ncclInvalidUsage, "ncclGroupSimulateEnd: no group is open");
    if (info && (info->magic != NCCL_SIM_MAGIC || info->size < sizeof *info))
        return sn_error(ncclInvalidArgument, "ncclGroupSimulateEnd: simInfo was not initialised");
    if (--group.depth)
        return ncclSuccess;
    ncclResult_t result = group.result;
    drop_jobs(group.jobs);
    if (info)
        info->estimatedTime = (float)group.call_count;
    free(group.calls);
    memset(&group, 0, sizeof group);
    return result;
}
#endif
