/* Communicators that are made of another one: split, shrink and grow.

   Split and grow exchange what the ranks want through the board of the parent, in the parent's
   queue: so they begin when the operations before have ended. The ranks of a new communicator meet
   at a board whose name each of them computes. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const char *text) {
    uint64_t hash = 0;
    for (; *text; text++)
        hash = sn_mix(hash, (unsigned char)*text);
    return hash;
}

/* The board of a child: `number` tells children of one parent apart. */
static void name_child(const sn_comm *parent, uint64_t number, char name[SN_NAME]) {
    uint64_t hash = sn_mix(hash_of(parent->board_name), number);
    snprintf(name, SN_NAME, "standin-nccl-%016llx%016llx", (unsigned long long)hash,
             (unsigned long long)sn_mix(hash, hash_of(parent->board_name)));
}

static ncclResult_t stopped(const sn_comm *parent, const char *call) {
    int async = atomic_load(&parent->async);
    return sn_error(async ? (ncclResult_t)async : ncclInvalidUsage,
                    "%s: the communicator was stopped", call);
}

/* Whether the parent can have children. */
static ncclResult_t check_parent(const char *call, sn_comm *parent, int may_have_failed) {
    ncclResult_t result = sn_comm_exists(call, parent);
    int is_idle_revoked = !result && atomic_load(&parent->state) == SN_REVOKED &&
                          (may_have_failed || !atomic_load(&parent->async));
    if (result || is_idle_revoked || (may_have_failed && atomic_load(&parent->state) == SN_READY))
        return result;
    return sn_comm_check(call, parent);
}

static ncclResult_t make_job(const char *call, sn_comm *parent, const ncclConfig_t *config,
                             ncclComm_t *out, sn_job **job) {
    int blocking = parent->blocking;
    ncclResult_t result = sn_config_read(call, config, &blocking);
    if (result)
        return result;
    *job = sn_allocate(sizeof **job);
    (*job)->parent = parent;
    (*job)->comm = sn_comm_create(-1, 0, parent->device, blocking);
    (*job)->out = out; /* gets the communicator at the end of the job */
    *out = NULL;
    return ncclSuccess;
}

static ncclResult_t start_child(const sn_job *job) {
    sn_comm *comm = job->comm;
    sn_place at = { job->name, comm->nranks, comm->rank, comm->device, job->lineage, job->make };
    atomic_store(&job->parent->child, comm);
    if (atomic_load(&job->parent->aborted))
        sn_comm_stop(comm);
    ncclResult_t result = sn_comm_start(comm, &at);
    atomic_store(&job->parent->child, NULL);
    return result;
}

/* ---- split ---- */

typedef struct split {
    int color, key, rank, nranks; /* rank, nranks: of the child */
    int done;
    uint64_t lineage;
} split;

static void run_split_control(sn_comm *comm, void *data) {
    split *s = data;
    sn_description mine = { .kind = SN_SPLIT, .color = s->color, .key = s->key };
    if (sn_board_arrive(comm, SN_CONTROL, &mine) || sn_compare(comm, SN_CONTROL))
        return;
    for (int i = 0; i < comm->nranks; i++) {
        const sn_description *d = sn_board_description(comm, SN_CONTROL, i);
        if (d->color != s->color)
            continue;
        s->nranks++;
        s->rank += d->key < s->key || (d->key == s->key && i < comm->rank);
    }
    s->lineage = sn_mix(sn_mix(sn_board_lineage(comm), comm->splits), (uint64_t)s->color);
    s->done = !sn_board_barrier(comm, SN_CONTROL);
}

static ncclResult_t run_split(sn_job *job) {
    split s = { .color = job->color, .key = job->key };
    sn_comm *parent = job->parent;
    unsigned number = parent->splits;
    (void)sn_control(parent, run_split_control, &s);
    parent->splits++;
    if (!s.done)
        return stopped(parent, "ncclCommSplit");
    if (!job->comm)
        return ncclSuccess;
    job->comm->rank = s.rank;
    job->comm->nranks = s.nranks;
    job->lineage = s.lineage;
    job->make = 1;
    name_child(parent, sn_mix(number, (uint64_t)s.color), job->name);
    return start_child(job);
}

static ncclResult_t begin_split(sn_comm *comm, int color, int key, ncclComm_t *out,
                                const ncclConfig_t *config) {
    sn_job *job;
    if (!out)
        return sn_error(ncclInvalidArgument, "ncclCommSplit: newcomm is NULL");
    *out = NULL;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return sn_error(ncclInvalidArgument,
                        "ncclCommSplit: color %d is negative and not NCCL_SPLIT_NOCOLOR", color);
    ncclResult_t result = check_parent("ncclCommSplit", comm, 0);
    if (!result)
        result = make_job("ncclCommSplit", comm, config, out, &job);
    if (result)
        return result;
    job->run = run_split;
    job->color = color;
    job->key = key;
    if (color == NCCL_SPLIT_NOCOLOR) {
        sn_comm_end(job->comm, SN_OVER);
        job->comm = NULL;
        *out = NULL;
    }
    return sn_group_job(job);
}

static ncclResult_t in_group(ncclResult_t result) {
    sn_group_fails(result);
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config) {
    SN_ENTER(ncclCommSplit);
    return in_group(begin_split(comm, color, key, out, config));
}

#ifndef STANDIN_NCCL_OLD

/* ---- shrink ---- */

static void nothing(sn_comm *comm, void *data) {
    (void)comm;
    (void)data;
}

/* The ranks that go on need not hear of each other in the parent, which may have failed. */
static ncclResult_t run_shrink(sn_job *job) {
    sn_comm *parent = job->parent;
    if (job->flags & NCCL_SHRINK_ABORT)
        sn_comm_stop(parent);
    (void)sn_control(parent, nothing, NULL);
    if (job->flags & NCCL_SHRINK_ABORT)
        atomic_store(&parent->stop, atomic_load(&parent->async) != 0);
    else if (atomic_load(&parent->stop))
        return stopped(parent, "ncclCommShrink");
    return start_child(job);
}

static int is_excluded(const sn_job *job, int rank) {
    for (int i = 0; i < job->excluded_count; i++)
        if (job->excluded[i] == rank)
            return 1;
    return 0;
}

static ncclResult_t check_excluded(const sn_comm *comm, const int *excluded, int count) {
    if (!excluded || count < 1 || count >= comm->nranks)
        return sn_error(ncclInvalidArgument, "ncclCommShrink: %d of %d ranks are excluded", count,
                        comm->nranks);
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->nranks)
            return sn_error(ncclInvalidArgument, "ncclCommShrink: there is no rank %d",
                            excluded[i]);
        if (excluded[i] == comm->rank)
            return sn_error(ncclInvalidArgument,
                            "ncclCommShrink: rank %d excludes itself; it must not call",
                            comm->rank);
        for (int j = 0; j < i; j++)
            if (excluded[j] == excluded[i])
                return sn_error(ncclInvalidArgument, "ncclCommShrink: rank %d is excluded twice",
                                excluded[i]);
    }
    return ncclSuccess;
}

static ncclResult_t begin_shrink(sn_job *job, const int *excluded, int count) {
    sn_comm *parent = job->parent, *comm = job->comm;
    uint64_t number = sn_mix(3, parent->shrinks++);
    job->run = run_shrink;
    job->make = 1;
    job->excluded_count = count;
    job->excluded = sn_allocate((size_t)count * sizeof *job->excluded);
    memcpy(job->excluded, excluded, (size_t)count * sizeof *job->excluded);
    comm->rank = 0;
    for (int i = 0; i < parent->nranks; i++) {
        if (is_excluded(job, i)) {
            number = sn_mix(number, (uint64_t)i);
            continue;
        }
        comm->rank += i < parent->rank;
        comm->nranks++;
    }
    job->lineage = sn_mix(sn_board_lineage(parent), number);
    name_child(parent, number, job->name);
    return sn_group_job(job);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *out,
                            ncclConfig_t *config, int flags) {
    sn_job *job;
    SN_ENTER(ncclCommShrink);
    if (!out || (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT))
        return in_group(sn_error(ncclInvalidArgument,
                                 "ncclCommShrink: newcomm is NULL, or shrinkFlags %d", flags));
    *out = NULL;
    ncclResult_t result = check_parent("ncclCommShrink", comm, flags == NCCL_SHRINK_ABORT);
    if (!result)
        result = check_excluded(comm, excluded, count);
    if (!result)
        result = make_job("ncclCommShrink", comm, config, out, &job);
    if (result)
        return in_group(result);
    job->flags = flags;
    return in_group(begin_shrink(job, excluded, count));
}

/* ---- grow ---- */

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id) {
    SN_ENTER(ncclCommGetUniqueId);
    if (!id)
        return sn_error(ncclInvalidArgument, "ncclCommGetUniqueId: uniqueId is NULL");
    ncclResult_t result = check_parent("ncclCommGetUniqueId", comm, 0);
    if (result)
        return result;
    if (*comm->grow_name)
        return sn_error(ncclInvalidUsage,
                        "ncclCommGetUniqueId: ncclCommGrow has not used the id before");
    memset(id, 0, sizeof *id);
    uint64_t lineage = sn_mix(sn_mix(sn_board_lineage(comm), 5), comm->splits);
    result = sn_board_create(comm->grow_name, lineage);
    if (!result)
        memcpy(id->internal, comm->grow_name, SN_NAME);
    return result;
}

typedef struct growth {
    int nranks, is_root, done;
    char name[SN_NAME];
} growth;

static void run_grow_control(sn_comm *comm, void *data) {
    growth *g = data;
    sn_description mine = { .kind = SN_GROW, .count = (uint64_t)g->nranks };
    if (g->is_root)
        memcpy(mine.name, comm->grow_name, SN_NAME);
    if (sn_board_arrive(comm, SN_CONTROL, &mine) || sn_compare(comm, SN_CONTROL))
        return;
    for (int i = 0; i < comm->nranks; i++) {
        const sn_description *d = sn_board_description(comm, SN_CONTROL, i);
        if (*d->name)
            memcpy(g->name, d->name, SN_NAME);
    }
    g->done = !sn_board_barrier(comm, SN_CONTROL);
}

static ncclResult_t run_grow(sn_job *job) {
    sn_comm *parent = job->parent;
    growth g = { .nranks = job->comm->nranks, .is_root = job->flags };
    (void)sn_control(parent, run_grow_control, &g);
    if (!g.done)
        return stopped(parent, "ncclCommGrow");
    if (!*g.name)
        return sn_error(ncclInvalidUsage, "ncclCommGrow: no rank has passed the unique id");
    memcpy(job->name, g.name, SN_NAME);
    if (g.is_root)
        *parent->grow_name = 0;
    return start_child(job);
}

static ncclResult_t join_growth(int nranks, const ncclUniqueId *id, int rank, ncclComm_t *out,
                                ncclConfig_t *config) {
    if (!id)
        return sn_error(ncclInvalidArgument, "ncclCommGrow: a new rank needs the unique id");
    return ncclCommInitRankConfig(out, nranks, *id, rank, config);
}

static ncclResult_t begin_grow(sn_comm *comm, int nranks, const ncclUniqueId *id, ncclComm_t *out,
                               const ncclConfig_t *config) {
    sn_job *job;
    ncclResult_t result = check_parent("ncclCommGrow", comm, 0);
    if (!result && (nranks <= comm->nranks || nranks > SN_MAX_RANKS))
        result = sn_error(ncclInvalidArgument, "ncclCommGrow: from %d ranks to %d", comm->nranks,
                          nranks);
    if (!result && id && memcmp(id->internal, comm->grow_name, SN_NAME) != 0)
        result = sn_error(ncclInvalidArgument,
                          "ncclCommGrow: the unique id is not that of ncclCommGetUniqueId");
    if (!result)
        result = make_job("ncclCommGrow", comm, config, out, &job);
    if (result)
        return result;
    job->run = run_grow;
    job->flags = id != NULL;
    job->comm->rank = comm->rank;
    job->comm->nranks = nranks;
    return sn_group_job(job);
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank,
                          ncclComm_t *out, ncclConfig_t *config) {
    SN_ENTER(ncclCommGrow);
    if (!out)
        return in_group(sn_error(ncclInvalidArgument, "ncclCommGrow: newcomm is NULL"));
    *out = NULL;
    if (!comm)
        return in_group(join_growth(nranks, id, rank, out, config));
    if (rank != -1)
        return in_group(sn_error(ncclInvalidArgument,
                                 "ncclCommGrow: rank %d of a rank that exists must be -1", rank));
    return in_group(begin_grow(comm, nranks, id, out, config));
}

#endif
