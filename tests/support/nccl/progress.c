/* The thread of a communicator: carries out its operations, one after the other, in the order in
   which the rank has enqueued them.

   A collective goes in pieces. Each rank that has data to give puts a piece in its part of the
   board, all wait for each other, each rank takes its data, and all wait again. Reductions take
   the ranks in an order that the seed, the communicator and the number of the operation choose.
   Send and Recv go through a ring for each pair of ranks; those of one group go on side by side. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- memory of the user ---- */

static void copy_from_user(char *to, const char *from, size_t size) {
    while (size) {
        size_t part = size;
        const char *memory = sn_cuda()->reach(from, &part);
        if (!memory)
            sn_fail_test("%p is freed while an operation uses it", (const void *)from);
        memcpy(to, memory, part);
        to += part;
        from += part;
        size -= part;
    }
}

static void copy_to_user(char *to, const char *from, size_t size) {
    while (size) {
        size_t part = size;
        char *memory = sn_cuda()->reach(to, &part);
        if (!memory)
            sn_fail_test("%p is freed while an operation uses it", (void *)to);
        memcpy(memory, from, part);
        to += part;
        from += part;
        size -= part;
    }
}

/* ---- what ranks tell each other ---- */

static void describe(char *text, size_t size, const sn_description *d) {
    if (d->kind >= SN_FINALIZE)
        snprintf(text, size, "%s", sn_kind_name(d->kind));
    else
        snprintf(text, size, "%s(count %llu, type %d, op %d, root %d)", sn_kind_name(d->kind),
                 (unsigned long long)d->count, d->type, d->op, d->root);
}

static void report_mismatch(sn_comm *comm, int rank, const sn_description *a, int other,
                            const sn_description *b) {
    char one[128], two[128], text[400];
    describe(one, sizeof one, a);
    describe(two, sizeof two, b);
    snprintf(text, sizeof text, "rank %d calls %s, but rank %d calls %s", rank, one, other, two);
    sn_mismatch(text);
    sn_comm_set_async(comm, ncclInvalidUsage);
}

int sn_compare(sn_comm *comm, sn_lane lane) {
    const sn_description *a = sn_board_description(comm, lane, 0);
    for (int i = 1; i < comm->nranks; i++) {
        const sn_description *b = sn_board_description(comm, lane, i);
        if (a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
            a->count == b->count)
            continue;
        report_mismatch(comm, 0, a, i, b);
        return 1;
    }
    return 0;
}

/* ---- collectives ---- */

/* A piece of a collective: `at` elements behind the begin of a block. */
typedef struct piece {
    int block;
    size_t at, count, size; /* size: of an element */
} piece;

typedef struct collective {
    sn_comm *comm;
    const sn_call *call;
    int order[SN_MAX_RANKS];
    char *result; /* room for a piece */
} collective;

static int has_block_for_each_rank(sn_kind kind) {
    return kind == SN_REDUCE_SCATTER || kind == SN_ALL_TO_ALL || kind == SN_SCATTER;
}

static int has_root(sn_kind kind) {
    return kind == SN_REDUCE || kind == SN_BROADCAST || kind == SN_GATHER || kind == SN_SCATTER;
}

static int reduces(sn_kind kind) {
    return kind == SN_REDUCE || kind == SN_ALL_REDUCE || kind == SN_REDUCE_SCATTER;
}

static int has_one_source(sn_kind kind) {
    return kind == SN_BROADCAST || kind == SN_SCATTER;
}

static int receives(const collective *c, const piece *p) {
    if (has_block_for_each_rank(c->call->kind))
        return c->comm->rank == p->block;
    if (c->call->kind == SN_REDUCE || c->call->kind == SN_GATHER)
        return c->comm->rank == c->call->root;
    return 1;
}

/* The i-th of `n` in an order that is the same on all ranks. */
static void choose_order(collective *c) {
    uint64_t random = sn_mix(sn_mix(sn_seed(), sn_board_lineage(c->comm)), c->comm->sequence++);
    for (int i = 0; i < c->comm->nranks; i++)
        c->order[i] = i;
    for (int i = c->comm->nranks - 1; i > 0; i--) {
        random = sn_mix(random, (uint64_t)i);
        int j = (int)(random % (uint64_t)(i + 1)), swapped = c->order[i];
        c->order[i] = c->order[j];
        c->order[j] = swapped;
    }
}

/* The scalar by which this rank multiplies; 0: none. */
static int scalar_of(const sn_comm *comm, const sn_call *call, char scalar[8]) {
    if (!reduces(call->kind))
        return 0;
    if (call->op == ncclAvg && sn_is_floating(call->type)) {
        sn_reciprocal(call->type, comm->nranks, scalar);
        return 1;
    }
    if (call->op < ncclNumOps)
        return 0;
    if (call->scale.on_device)
        copy_from_user(scalar, call->scale.address, sn_type_size(call->type));
    else
        memcpy(scalar, call->scale.value, 8);
    return 1;
}

static void give(const collective *c, const piece *p) {
    const sn_call *call = c->call;
    char scalar[8] = { 0 };
    if (has_one_source(call->kind) && c->comm->rank != call->root)
        return;
    char *stage = sn_board_stage(c->comm, c->comm->rank);
    size_t from = ((size_t)p->block * call->count + p->at) * p->size;
    copy_from_user(stage, (const char *)call->send + from, p->count * p->size);
    if (scalar_of(c->comm, call, scalar))
        sn_scale(call->type, stage, p->count, scalar);
}

static void take_reduced(const collective *c, const piece *p) {
    const char *parts[SN_MAX_RANKS];
    int op = c->call->op < ncclNumOps ? (int)c->call->op : (int)ncclSum;
    sn_reduction r = { c->call->type, op, c->comm->nranks };
    for (int i = 0; i < c->comm->nranks; i++)
        parts[i] = sn_board_stage(c->comm, c->order[i]);
    sn_reduce(&r, parts, c->comm->nranks, p->count, c->result);
    copy_to_user((char *)c->call->recv + p->at * p->size, c->result, p->count * p->size);
}

static void take(const collective *c, const piece *p) {
    const sn_call *call = c->call;
    if (!receives(c, p))
        return; /* recv may be NULL */
    char *to = (char *)call->recv + p->at * p->size;
    if (reduces(call->kind)) {
        take_reduced(c, p);
    } else if (has_one_source(call->kind)) {
        copy_to_user(to, sn_board_stage(c->comm, call->root), p->count * p->size);
    } else {
        for (int i = 0; i < c->comm->nranks; i++)
            copy_to_user(to + (size_t)i * call->count * p->size, sn_board_stage(c->comm, i),
                         p->count * p->size);
    }
}

static int move_piece(const collective *c, const piece *p) {
    give(c, p);
    if (sn_board_barrier(c->comm, SN_DATA))
        return 1;
    take(c, p);
    return sn_board_barrier(c->comm, SN_DATA);
}

static int run_collective(sn_comm *comm, const sn_call *call) {
    collective c = { .comm = comm, .call = call };
    sn_description mine = { .kind = (int)call->kind,
                            .type = (int)call->type,
                            .count = call->count };
    if (reduces(call->kind))
        mine.op = call->op < ncclNumOps ? (int)call->op : (int)ncclNumOps;
    if (has_root(call->kind))
        mine.root = call->root;
    int is_over = sn_board_arrive(comm, SN_DATA, &mine) || sn_compare(comm, SN_DATA);
    if (is_over)
        return 1;
    choose_order(&c);
    c.result = sn_allocate(SN_STAGE);
    piece p = { .size = sn_type_size(call->type) };
    size_t most = SN_STAGE / p.size;
    int blocks = has_block_for_each_rank(call->kind) ? comm->nranks : 1;
    for (p.block = 0; p.block < blocks && !is_over; p.block++)
        for (p.at = 0; p.at < call->count && !is_over; p.at += p.count) {
            p.count = call->count - p.at < most ? call->count - p.at : most;
            is_over = move_piece(&c, &p);
        }
    free(c.result);
    return is_over;
}

/* ---- send and receive ---- */

typedef struct transfer {
    const sn_call *call;
    sn_channel *channel;
    size_t size, moved;

    enum { WAITS, MOVES, ENDED } state;
} transfer;

static int same_message(sn_comm *comm, const transfer *t, int sender) {
    const sn_description *d = &t->channel->message;
    sn_description mine = { .kind = SN_RECV, .type = (int)t->call->type, .count = t->call->count };
    if (d->type == mine.type && d->count == mine.count)
        return 1;
    report_mismatch(comm, sender, d, comm->rank, &mine);
    return 0;
}

/* Each step returns whether it has changed something. */
static int step_send(sn_comm *comm, transfer *t) {
    sn_channel *c = t->channel;
    uint64_t posted = atomic_load(&c->posted), written = atomic_load(&c->written);
    if (t->state == WAITS) {
        if (atomic_load(&c->received) != posted)
            return 0;
        c->message = (sn_description){ .kind = SN_SEND,
                                       .type = (int)t->call->type,
                                       .count = t->call->count };
        atomic_store(&c->posted, posted + 1);
        t->state = MOVES;
        sn_board_ring(comm);
        return 1;
    }
    if (t->moved == t->size) {
        if (atomic_load(&c->received) != posted)
            return 0;
        t->state = ENDED;
        return 1;
    }
    size_t room = SN_RING - (size_t)(written - atomic_load(&c->taken)), at = written % SN_RING;
    size_t part = t->size - t->moved < room ? t->size - t->moved : room;
    if (part > SN_RING - at)
        part = SN_RING - at;
    if (!part)
        return 0;
    copy_from_user(c->ring + at, (const char *)t->call->send + t->moved, part);
    t->moved += part;
    atomic_store(&c->written, written + part);
    sn_board_ring(comm);
    return 1;
}

static int step_recv(sn_comm *comm, transfer *t) {
    sn_channel *c = t->channel;
    uint64_t received = atomic_load(&c->received), taken = atomic_load(&c->taken);
    if (t->state == WAITS) {
        if (atomic_load(&c->posted) == received)
            return 0;
        if (!same_message(comm, t, t->call->root))
            return 0;
        t->state = MOVES;
        return 1;
    }
    if (t->moved == t->size) {
        t->state = ENDED;
        atomic_store(&c->received, received + 1);
        sn_board_ring(comm);
        return 1;
    }
    size_t there = (size_t)(atomic_load(&c->written) - taken), at = taken % SN_RING;
    size_t part = there < SN_RING - at ? there : SN_RING - at;
    if (!part)
        return 0;
    copy_to_user((char *)t->call->recv + t->moved, c->ring + at, part);
    t->moved += part;
    atomic_store(&c->taken, taken + part);
    sn_board_ring(comm);
    return 1;
}

/* An earlier transfer of the same way has not ended. */
static int has_turn(const transfer *all, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (all[i].channel == all[index].channel && all[i].call->kind == all[index].call->kind &&
            all[i].state != ENDED)
            return 0;
    return 1;
}

static int step_all(sn_comm *comm, transfer *all, size_t count, size_t *left) {
    int changed = 0;
    *left = 0;
    for (size_t i = 0; i < count; i++) {
        if (all[i].state == ENDED)
            continue;
        if (has_turn(all, i))
            changed |=
                all[i].call->kind == SN_SEND ? step_send(comm, &all[i]) : step_recv(comm, &all[i]);
        *left += all[i].state != ENDED;
    }
    return changed;
}

static int run_transfers(sn_comm *comm, const sn_batch *batch) {
    transfer *all = sn_allocate(batch->call_count * sizeof *all);
    size_t count = 0, left;
    for (size_t i = 0; i < batch->call_count; i++) {
        const sn_call *call = &batch->calls[i];
        if (call->kind != SN_SEND && call->kind != SN_RECV)
            continue;
        int is_send = call->kind == SN_SEND;
        all[count++] = (transfer){
            .call = call,
            .channel = sn_board_channel(comm, is_send ? comm->rank : call->root,
                                        is_send ? call->root : comm->rank),
            .size = call->count * sn_type_size(call->type),
        };
    }
    int is_over = 0;
    while (count && !is_over) {
        uint32_t bell = sn_board_bell(comm);
        int changed = step_all(comm, all, count, &left);
        if (!left)
            break;
        is_over = atomic_load(&comm->stop);
        if (!changed && !is_over)
            is_over = sn_board_wait(comm, bell);
    }
    free(all);
    return is_over;
}

/* ---- the thread ---- */

/* With STANDIN_NCCL_ONE_AT_A_TIME: the devices of this process on which an operation runs. */
static struct {
    pthread_mutex_t lock;
    int is_used[SN_MAX_RANKS];
} devices = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Whether the communicator is over before its device is free. */
static int take_device(const sn_comm *comm) {
    int is_taken = 0;
    while (!is_taken && !atomic_load(&comm->stop)) {
        pthread_mutex_lock(&devices.lock);
        is_taken = !devices.is_used[comm->device];
        devices.is_used[comm->device] = 1;
        pthread_mutex_unlock(&devices.lock);
        if (!is_taken)
            usleep(1000);
    }
    return !is_taken;
}

static void give_device(const sn_comm *comm) {
    pthread_mutex_lock(&devices.lock);
    devices.is_used[comm->device] = 0;
    pthread_mutex_unlock(&devices.lock);
}

static void move_data(sn_comm *comm, const sn_batch *batch) {
    for (size_t i = 0; i < batch->call_count; i++)
        if (batch->calls[i].kind < SN_SEND && run_collective(comm, &batch->calls[i]))
            return;
    (void)run_transfers(comm, batch);
}

static void execute(sn_comm *comm, const sn_run *run) {
    const sn_batch *batch = run->batch;
    if (run->code) {
        sn_error(ncclUnhandledCudaError, "a stream or device of %s has failed: error %d of CUDA",
                 sn_kind_name((int)batch->calls[0].kind), run->code);
        sn_comm_set_async(comm, ncclUnhandledCudaError);
    }
    if (atomic_load(&comm->stop) || atomic_load(&comm->state) != SN_READY)
        return;
    sn_nap();
    if (!sn_is_on("STANDIN_NCCL_ONE_AT_A_TIME")) {
        move_data(comm, batch);
    } else if (!take_device(comm)) {
        move_data(comm, batch);
        give_device(comm);
    }
}

/* With the communicator's lock. */
static int can_start(const sn_comm *comm, const sn_item *item) {
    return !item->run || item->run->started == item->run->expected || atomic_load(&comm->stop);
}

static void take_first(sn_comm *comm) {
    comm->first = comm->first->next;
    if (!comm->first)
        comm->last = &comm->first;
}

static void run_item(sn_comm *comm, sn_item *item) {
    sn_run *run = item->run;
    pthread_mutex_unlock(&comm->lock);
    if (run)
        execute(comm, run);
    else
        item->control(comm, item->data);
    pthread_mutex_lock(&comm->lock);
    take_first(comm);
    item->done = 1;
    pthread_cond_broadcast(&comm->change);
    if (!run)
        return; /* its owner goes on, and the item is gone */
    pthread_mutex_unlock(&comm->lock);
    sn_run_end(run);
    pthread_mutex_lock(&comm->lock);
}

static int wait_idle(sn_comm *comm) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 4 * SN_LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    return pthread_cond_timedwait(&comm->change, &comm->lock, &until) == ETIMEDOUT;
}

void *sn_progress(void *of) {
    sn_comm *comm = of;
    pthread_mutex_lock(&comm->lock);
    while (comm->first || !comm->leaving) {
        if (comm->first && can_start(comm, comm->first)) {
            run_item(comm, comm->first);
        } else if (wait_idle(comm) && !atomic_load(&comm->stop)) {
            pthread_mutex_unlock(&comm->lock);
            sn_board_look(comm);
            pthread_mutex_lock(&comm->lock);
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}
