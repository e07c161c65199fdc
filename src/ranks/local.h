/* ranks/local.h - engine "local": ranks as threads of one process.

   Implements the table of engines for tests: ranks find each other by an id, and the last rank that
   starts an operation moves the data of all ranks.

   Policy: ranks with the same id meet in a world (ds__world), which has a list of the operations
   that some rank has started. Operation n of one rank meets operation n of the others. Transfers
   meet by their ranks and tags.

   Invariants: an operation of the world has the description of each rank that has started it; when
   all have, its data is moved, and `left` counts the ranks that have not tested it yet. If a rank
   has given it up, its memory is not used any more, and its data is never moved. A world lives as
   long as one of its ranks.
   Locks: `ds__worlds.lock` guards the list of worlds, `lock` of a world everything in it. Data is
   moved under the latter. Both come after the lock of a group.
   Threads: any. */
#ifndef DS__RANKS_LOCAL_H
#define DS__RANKS_LOCAL_H

#include "../comm/types.h"
#include "types.h"
#include "local_move.h"

/* Transfers of one rank that have not met their other side. */
typedef struct ds__local_message {
    struct ds__local_message *next;
    int from;
    int to;
    ds__net_transfer transfer;
    struct ds__local_part *part; /* the operation that waits for it */
} ds__local_message;

/* An exchange that a rank has started. */
typedef struct ds__local_part {
    size_t left; /* transfers that have not met their other side */
    ds_result result;
} ds__local_part;

/* An operation of all ranks. */
typedef struct ds__local_op {
    struct ds__local_op *next;
    uint64_t number;
    int arrived;
    int left;
    ds_result result;
    char reason[DS__RANKS_REASON];
    ds__net_op net[]; /* of each rank */
} ds__local_op;

typedef struct ds__world {
    struct ds__world *next;
    ds__mutex lock;
    int size;
    int joined;     /* ranks that have joined */
    int members;    /* ranks that have not left */
    ds_result code; /* of a failure that a rank has told */
    int teller;
    ds__local_op *ops;
    ds__local_message *sends;
    ds__local_message *receives;
    char reason[DS__RANKS_REASON];
    char *id;
    unsigned char has[]; /* ranks that have joined */
} ds__world;

/* A rank of a world: the communicator. */
typedef struct ds__local_comm {
    ds__world *world;
    int rank;
    uint64_t started; /* operations of all ranks */
    uint64_t splits;
} ds__local_comm;

static struct {
    ds__mutex lock;
    ds__world *first;
} ds__worlds = { .lock = DS__MUTEX_INIT };

/* ---- worlds ---------------------------------------------------------------------------------- */

/* Finds the world of an id that still waits for ranks, or creates it. ds__worlds.lock is held. */
static ds__world *ds__world_get(const char *id, int size) {
    ds__world *w = ds__worlds.first;
    while (w && (strcmp(w->id, id) != 0 || w->joined == w->size))
        w = w->next;
    if (w)
        return w;
    w = ds__host_alloc(sizeof *w + (size_t)size);
    char *name = w ? ds__copy_text(id, SIZE_MAX) : NULL;
    if (!name) {
        ds__host_free(w);
        return NULL;
    }
    ds__mutex_init(&w->lock);
    w->id = name;
    w->size = size;
    w->next = ds__worlds.first;
    ds__worlds.first = w;
    return w;
}

/* No transfer is left: a rank ends when its own are complete or withdrawn. */
static void ds__world_free(ds__world *w) {
    ds__world **at = &ds__worlds.first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    while (w->ops) {
        ds__local_op *op = w->ops;
        w->ops = op->next;
        ds__host_free(op);
    }
    ds__mutex_destroy(&w->lock);
    ds__host_free(w->id);
    ds__host_free(w);
}

/* Takes a rank out of its world, which ends with its last rank. ds__worlds.lock is not held. */
static void ds__world_leave(ds__world *w) {
    ds__mutex_lock(&ds__worlds.lock);
    if (--w->members == 0)
        ds__world_free(w);
    ds__mutex_unlock(&ds__worlds.lock);
}

/* Enters a rank. ds__worlds.lock is held. */
static ds_result ds__world_enter(ds__world *w, int rank, int size) {
    DS__REQUIRE(w->size == size, "rank %d has joined group \"%s\" with size %d, others with %d",
                rank, w->id, size, w->size);
    if (w->has[rank])
        return ds__fail(DS_ERR_ILLEGAL_STATE, "rank %d has joined group \"%s\" already", rank,
                        w->id);
    w->has[rank] = 1;
    w->joined++;
    w->members++;
    return DS_OK;
}

/* Joins the world of an id and waits for all ranks. */
static ds_result ds__world_join(const char *id, int rank, int size, uint64_t deadline,
                                ds__net_comm *out) {
    ds_result r = DS_OK;
    ds__local_comm *c = ds__host_alloc(sizeof *c);
    ds__mutex_lock(&ds__worlds.lock);
    ds__world *w = c ? ds__world_get(id, size) : NULL;
    if (w)
        r = ds__world_enter(w, rank, size);
    else
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    int joined = r == DS_OK;
    int present = 0; /* the most ranks; some may have given up before this one */
    while (r == DS_OK && w->joined < w->size) {
        present = w->joined > present ? w->joined : present;
        if (ds__now_ns() > deadline) { /* under the lock: no rank joins between this and the end */
            r = ds__fail(DS_ERR_TIMEOUT,
                         "%d of %d ranks have joined group \"%s\" within the time limit", present,
                         size, id);
            break;
        }
        ds__mutex_unlock(&ds__worlds.lock);
        ds__os_sleep(50000);
        ds__mutex_lock(&ds__worlds.lock);
    }
    if (r < 0 && joined) {
        w->has[rank] = 0;
        w->joined--;
        if (--w->members == 0)
            ds__world_free(w);
    }
    ds__mutex_unlock(&ds__worlds.lock);
    if (r < 0) {
        ds__host_free(c);
        return r;
    }
    c->world = w;
    c->rank = rank;
    *out = (ds__net_comm){ c, rank, size };
    return DS_OK;
}

static ds_result ds__local_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    DS__REQUIRE(desc->size >= 1, "size is %d; engine \"local\" needs the number of ranks",
                desc->size);
    DS__REQUIRE(desc->rank >= 0 && desc->rank < desc->size, "rank is %d; it must be 0 to %d",
                desc->rank, desc->size - 1);
    DS__REQUIRE(desc->id && *desc->id, "id is %s; engine \"local\" finds ranks by it",
                desc->id ? "empty" : "NULL");
    DS__REQUIRE(!desc->mpi_comm, "mpi_comm is set for engine \"local\"");
    return ds__world_join(desc->id, desc->rank, desc->size, deadline, out);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Finds or adds operation `number` of the world. `lock` is held. */
static ds__local_op *ds__local_op_get(ds__world *w, uint64_t number) {
    ds__local_op *op = w->ops;
    while (op && op->number != number)
        op = op->next;
    if (op)
        return op;
    op = ds__host_alloc(sizeof *op + (size_t)w->size * sizeof *op->net);
    if (!op)
        return NULL;
    op->number = number;
    op->left = w->size;
    op->result = DS_NOT_READY;
    op->next = w->ops;
    w->ops = op;
    return op;
}

/* Ends this rank's part of an operation. `lock` is held. */
static void ds__local_op_leave(ds__world *w, ds__local_op *op) {
    if (--op->left)
        return;
    ds__local_op **at = &w->ops;
    while (*at != op)
        at = &(*at)->next;
    *at = op->next;
    ds__host_free(op);
}

/* Adds a transfer to one list, unless its other side is in the other one: then the data moves. */
static ds_result ds__local_meet(ds__local_comm *c, const ds__net_transfer *t,
                                ds__local_part *part) {
    ds__world *w = c->world;
    int from = t->receive ? t->rank : c->rank;
    int to = t->receive ? c->rank : t->rank;
    ds__local_message **at = t->receive ? &w->sends : &w->receives;
    while (*at && ((*at)->from != from || (*at)->to != to || (*at)->transfer.tag != t->tag))
        at = &(*at)->next;
    ds__local_message *m = *at;
    if (m) {
        const ds__net_transfer *receive = t->receive ? t : &m->transfer;
        const ds__net_transfer *send = t->receive ? &m->transfer : t;
        ds_result r = ds__local_transfer(send, from, receive, to);
        *at = m->next;
        m->part->left--;
        part->left--;
        if (r < 0) { /* an earlier failure of the other side stays */
            part->result = r;
            m->part->result = r;
        }
        ds__host_free(m);
        return r;
    }
    m = ds__host_alloc(sizeof *m);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a transfer");
    *m = (ds__local_message){ NULL, from, to, *t, part };
    at = t->receive ? &w->receives : &w->sends;
    while (*at)
        at = &(*at)->next;
    *at = m;
    return DS_OK;
}

/* Takes the transfers of an exchange back. `lock` is held. */
static void ds__local_withdraw(ds__world *w, const ds__local_part *part) {
    for (int k = 0; k < 2; k++)
        for (ds__local_message **at = k ? &w->receives : &w->sends; *at;) {
            ds__local_message *m = *at;
            if (m->part != part) {
                at = &m->next;
                continue;
            }
            *at = m->next;
            ds__host_free(m);
        }
}

static ds_result ds__local_start_exchange(ds__local_comm *c, const ds__net_op *net,
                                          ds__net_request *request) {
    ds_result r = DS_OK;
    ds__local_part *part = ds__host_alloc(sizeof *part);
    if (!part)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an exchange");
    part->left = net->transfer_count;
    ds__mutex_lock(&c->world->lock);
    for (size_t i = 0; i < net->transfer_count && r == DS_OK; i++)
        r = ds__local_meet(c, &net->transfers[i], part);
    if (r < 0)
        ds__local_withdraw(c->world, part);
    ds__mutex_unlock(&c->world->lock);
    if (r < 0) {
        ds__host_free(part);
        return r;
    }
    request->at[0] = NULL;
    request->at[1] = part;
    return DS_OK;
}

static ds_result ds__local_start(void *comm, const ds__net_op *net, ds__net_request *request) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    if (net->kind == DS__NET_EXCHANGE)
        return ds__local_start_exchange(c, net, request);
    ds__mutex_lock(&w->lock);
    ds__local_op *op = ds__local_op_get(w, c->started + 1);
    if (op) {
        c->started++;
        op->net[c->rank] = *net;
        if (++op->arrived == w->size && op->result == DS_NOT_READY)
            op->result = ds__local_move(op->net, w->size, op->reason);
    }
    ds__mutex_unlock(&w->lock);
    request->at[0] = op;
    request->at[1] = NULL;
    return op ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an operation");
}

static ds_result ds__local_test(void *comm, ds__net_request *request) {
    ds__world *w = ((ds__local_comm *)comm)->world;
    ds__local_op *op = request->at[0];
    ds__local_part *part = request->at[1];
    ds_result r;
    ds__mutex_lock(&w->lock);
    if (part) {
        r = part->left && part->result == DS_OK ? DS_NOT_READY : part->result;
        if (r < 0) {
            ds__local_withdraw(w, part);
            ds__fail(r, "the two sides of a transfer differ in size");
        }
        if (r != DS_NOT_READY)
            ds__host_free(part);
    } else {
        r = op->result;
        if (r < 0)
            ds__fail(r, "%s", op->reason);
        if (r != DS_NOT_READY)
            ds__local_op_leave(w, op);
    }
    ds__mutex_unlock(&w->lock);
    return r;
}

/* Gives up an operation, which then ends with `code` on the other ranks. */
static void ds__local_give_up(ds__local_comm *c, ds__net_request *request, ds_result code,
                              const char *reason) {
    ds__local_op *op = request->at[0];
    ds__local_part *part = request->at[1];
    ds__mutex_lock(&c->world->lock);
    if (part) {
        ds__local_withdraw(c->world, part);
        ds__host_free(part);
    } else {
        if (op->result == DS_NOT_READY) { /* it will never be complete */
            op->result = code;
            snprintf(op->reason, sizeof op->reason, "rank %d has given up the operation: %s",
                     c->rank, reason);
        }
        ds__local_op_leave(c->world, op);
    }
    ds__mutex_unlock(&c->world->lock);
}

static void ds__local_abandon(void *comm, ds__net_request *request) {
    ds__local_give_up(comm, request, DS_ERR_ABORTED, "its group has failed");
}

/* ---- failures, split and end ----------------------------------------------------------------- */

static void ds__local_tell(void *comm, ds_result code, const char *reason) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    ds__mutex_lock(&w->lock);
    if (w->code == DS_OK) {
        w->code = code;
        w->teller = c->rank;
        snprintf(w->reason, sizeof w->reason, "%s", reason);
    }
    ds__mutex_unlock(&w->lock);
}

static ds_result ds__local_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    ds__mutex_lock(&w->lock);
    ds_result r = w->teller == c->rank ? DS_OK : w->code;
    if (r < 0) {
        memcpy(reason, w->reason, DS__RANKS_REASON);
        *out_rank = w->teller;
    }
    ds__mutex_unlock(&w->lock);
    return r;
}

enum { DS__LOCAL_ID = 160 };

/* Writes the id of a world that is made of another one. */
static const char *ds__local_id(const ds__local_comm *c, const char *how, uint64_t number,
                                int color, char out[DS__LOCAL_ID]) {
    snprintf(out, DS__LOCAL_ID, "%p %s %llu %d", (void *)c->world, how, (unsigned long long)number,
             color);
    return out;
}

/* Waits on this thread for an operation of the engine. */
static ds_result ds__local_wait(ds__local_comm *c, ds__net_request *request, uint64_t deadline) {
    for (;;) {
        ds_result r = ds__local_test(c, request);
        if (r != DS_NOT_READY)
            return r;
        if (ds__now_ns() > deadline) {
            const char *reason = "not all ranks have called within the time limit";
            ds__local_give_up(c, request, DS_ERR_TIMEOUT, reason);
            return ds__fail(DS_ERR_TIMEOUT, "%s", reason);
        }
        ds__os_sleep(50000);
    }
}

/* Computes the new rank and size of the rank among those with its color. pairs: color and key. */
static void ds__local_order(const int (*pairs)[2], int count, int me, int *rank, int *size) {
    *rank = *size = 0;
    for (int i = 0; i < count; i++) {
        if (pairs[i][0] != pairs[me][0])
            continue;
        ++*size;
        *rank += pairs[i][1] < pairs[me][1] || (pairs[i][1] == pairs[me][1] && i < me);
    }
}

static ds_result ds__local_split(void *comm, int color, int key, uint64_t deadline,
                                 ds__net_comm *out) {
    ds__local_comm *c = comm;
    int n = c->world->size;
    int pair[2] = { color, key };
    int rank;
    int size;
    char id[DS__LOCAL_ID];
    ds__net_request request = { { NULL } };
    size_t *parts = ds__host_alloc((size_t)n * (2 * sizeof *parts + sizeof pair));
    if (!parts)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a split");
    int(*pairs)[2] = (void *)(parts + 2 * n);
    for (size_t i = 0; i < (size_t)n; i++) {
        parts[i] = sizeof pair;
        parts[(size_t)n + i] = i * sizeof pair;
    }
    ds__net_op gather = {
        .kind = DS__NET_ALL_GATHER, .in = pair, .out = pairs, .parts = { parts, parts + n }
    };
    out->comm = NULL;
    ds_result r = ds__local_start(c, &gather, &request);
    if (r == DS_OK)
        r = ds__local_wait(c, &request, deadline);
    if (r == DS_OK && color >= 0) {
        ds__local_order((const int(*)[2])pairs, n, c->rank, &rank, &size);
        r = ds__world_join(ds__local_id(c, "split", c->splits, color, id), rank, size, deadline,
                           out);
    }
    c->splits++;
    ds__host_free(parts);
    return r;
}

static ds_result ds__local_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                  ds__net_comm *out) {
    ds__local_comm *c = comm;
    char id[DS__LOCAL_ID];
    int size = 0;
    int rank = 0;
    for (int i = 0; i < c->world->size; i++) {
        int gone = 0;
        for (size_t k = 0; k < count; k++)
            gone |= excluded[k] == i;
        rank += i < c->rank && !gone;
        size += !gone;
    }
    return ds__world_join(ds__local_id(c, "shrink", count, 0, id), rank, size, deadline, out);
}

static ds_result ds__local_grow_id(void *comm, char out[DS_RANKS_ID_SIZE]) {
    (void)comm;
    snprintf(out, DS_RANKS_ID_SIZE, "%016llx", (unsigned long long)ds__os_cookie());
    return DS_OK;
}

static ds_result ds__local_grow(void *comm, const char *id, int size, uint64_t deadline,
                                ds__net_comm *out) {
    const ds__local_comm *c = comm;
    return ds__world_join(id, c->rank, size, deadline, out);
}

static void ds__local_destroy(void *comm, int failed) {
    ds__local_comm *c = comm;
    (void)failed;
    ds__world_leave(c->world);
    ds__host_free(c);
}

/* Its threads copy with the processor. */
static int ds__local_reaches(ds__net_kind kind) {
    (void)kind;
    return 0;
}

static void ds__local_library(char *out, size_t size) {
    if (size)
        *out = '\0';
}

static void ds__local_shutdown(void) {
}

static const ds__ranks_engine ds__local_engine = { .name = "local",
                                                   .captures = 1,
                                                   .cancels = 1,
                                                   .reduces = ds__local_reduces,
                                                   .reaches = ds__local_reaches,
                                                   .init = ds__local_init,
                                                   .split = ds__local_split,
                                                   .shrink = ds__local_shrink,
                                                   .grow_id = ds__local_grow_id,
                                                   .grow = ds__local_grow,
                                                   .start = ds__local_start,
                                                   .test = ds__local_test,
                                                   .abandon = ds__local_abandon,
                                                   .tell = ds__local_tell,
                                                   .hear = ds__local_hear,
                                                   .destroy = ds__local_destroy,
                                                   .library = ds__local_library,
                                                   .shutdown = ds__local_shutdown };

#endif
