/* ranks/mpi_comm.h - communicators of MPI.

   Creates, splits, shrinks and destroys the communicators of the engine "mpi" (ds__mpi_link), and
   carries failures between ranks (ds__mpi_tell, ds__mpi_hear).

   Policy:
   1. A link has two communicators. `comm` has the operations of the group. `side` has the messages
      of failures, and the meetings of split and shrink, which run at the same time as operations.
   2. The functions that create communicators wait with a deadline, in steps that do not block:
      MPI_Comm_idup for a copy; a gathering of colors before a split; a message from each remaining
      rank before a shrink. MPI_Comm_create_group is called when all its ranks have arrived.
   3. A failure is a message of fixed size to every other rank. Each rank has a receive posted for
      it, so MPI_Test finds the message.
   4. If MPI was initialized with less than MPI_THREAD_MULTIPLE, one lock orders all calls of MPI
      (ds__mpi_begin). Such a program makes no calls of its own (DS_RANKS_NO_OTHER_MPI).

   Invariants: memory that a pending request of MPI uses is never freed. If a request cannot be
   completed, its memory and its communicator are leaked deliberately, and MPI is never finalized
   (ds__mpi_state.unfinished).
   Locks: ds__mpi_state.mutex, then ds__mpi_state.calls. No lock is held while a function waits.
   Threads: as ranks/engine.h says. */
#ifndef DS__RANKS_MPI_COMM_H
#define DS__RANKS_MPI_COMM_H

#include "../base/bookkeeping.h"
#include "engine.h"
#include "mpi_load.h"

enum {
    DS__MPI_TAG_FAILURE = 1,
    DS__MPI_TAG_MEETING = 2,
    DS__MPI_TAG_GROUP = 3,
    DS__MPI_TAG_END = 4,
    DS__MPI_TAG_COLLECTIVE = 32767, /* behind those of exchanges; each MPI has it */
    DS__MPI_TELL_ROUNDS = 64 /* tests of each message of a failure before its memory is leaked */
};

/* A failure, as it is sent. */
typedef struct ds__mpi_message {
    int32_t code; /* a ds_result */
    int32_t rank; /* -1: not known */
    char reason[DS__RANKS_REASON];
} ds__mpi_message;

typedef struct ds__mpi_link {
    ds__mpi_comm comm;
    ds__mpi_comm side;
    int rank;
    int size;
    ds__spinlock hearing; /* of the next three */
    int heard;            /* 1: `message` has a failure */
    ds__mpi_request listening;
    ds__mpi_message message;
} ds__mpi_link;

static struct {
    ds__mutex mutex;         /* guards loading, initialisation and end of MPI, and `owned` */
    ds__mutex calls;         /* taken for each call of MPI if `serialized` */
    _Atomic int serialized;  /* 1: MPI has less than MPI_THREAD_MULTIPLE */
    _Atomic int unfinished;  /* 1: a request was given up, so MPI_Finalize might wait for it */
    int owned;               /* 1: devstream has initialized MPI, and has the next two */
    ds__mpi_comm last;       /* a copy of MPI_COMM_WORLD, for the end of MPI */
    ds__mpi_request copying; /* the request of this copy */
    char told;               /* byte of a process that does not finalize MPI */
    int reaches_gpus;        /* 1: messages may be in memory of a GPU */
} ds__mpi_state = { .mutex = DS__MUTEX_INIT, .calls = DS__MUTEX_INIT };

/* Begin and end calls of MPI. */
static inline void ds__mpi_begin(void) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__mpi_state.serialized, memory_order_relaxed)))
        ds__mutex_lock(&ds__mpi_state.calls);
}

static inline void ds__mpi_end(void) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__mpi_state.serialized, memory_order_relaxed)))
        ds__mutex_unlock(&ds__mpi_state.calls);
}

/* Notes that a request was given up. */
static void ds__mpi_give_up(void) {
    atomic_store_explicit(&ds__mpi_state.unfinished, 1, memory_order_relaxed);
}

/* Waits for the requests until the deadline. step: the sentence of a failure begins with it. */
static ds_result ds__mpi_wait(ds__mpi_request *requests, int count, uint64_t deadline,
                              const char *step) {
    int done = 0;
    for (unsigned rounds = 0; done < count; rounds++) {
        int flag = 0;
        ds__mpi_begin();
        ds_result r = DS__MPI_CALL(Test, &requests[done], &flag, DS__MPI_STATUS_IGNORE);
        ds__mpi_end();
        if (r == DS_OK && !flag && ds__now_ns() >= deadline)
            r = ds__fail(DS_ERR_TIMEOUT, "%s: not all ranks have called within the time limit",
                         step);
        if (r < 0) {
            ds__mpi_give_up();
            return r;
        }

        done += flag != 0;
        if (!flag && rounds < 1000)
            ds__os_yield();
        else if (!flag)
            ds__os_sleep(100000);
    }
    return DS_OK;
}

/* Posts the receive of a failure. */
static ds_result ds__mpi_listen(ds__mpi_link *link) {
    return DS__MPI_CALL(Irecv, &link->message, (ds__mpi_count)sizeof link->message, DS__MPI_BYTE,
                        DS__MPI_ANY_SOURCE, DS__MPI_TAG_FAILURE, link->side, &link->listening);
}

/* Completes a link that has `comm`, and gives it to the caller. If that fails, the link is leaked,
   since a pending request may write to it. */
static ds_result ds__mpi_link_start(ds__mpi_link *link, uint64_t deadline, const char *step,
                                    ds__net_comm *out) {
    ds__mpi_request copying = DS__MPI_REQUEST_NULL;
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_set_errhandler, link->comm, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_rank, link->comm, &link->rank);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_size, link->comm, &link->size);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_idup, link->comm, &link->side, &copying);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&copying, 1, deadline, step);
    if (r < 0)
        return r;

    ds__mpi_begin();
    r = DS__MPI_CALL(Comm_set_errhandler, link->side, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = ds__mpi_listen(link);
    ds__mpi_end();
    if (r < 0)
        return r;
    *out = (ds__net_comm){ link, link->rank, link->size };
    return DS_OK;
}

/* Returns a link without communicators; NULL, with an error: no memory. */
static ds__mpi_link *ds__mpi_link_alloc(void) {
    ds__mpi_link *link = ds__host_alloc(sizeof *link);
    if (!link) {
        (void)ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    link->comm = DS__MPI_COMM_NULL;
    link->side = DS__MPI_COMM_NULL;
    link->listening = DS__MPI_REQUEST_NULL;
    return link;
}

/* Creates a link by a copy of a communicator of the program. */
static ds_result ds__mpi_link_copy(ds__mpi_comm from, uint64_t deadline, ds__net_comm *out) {
    static const char step[] = "copy of the communicator";
    ds__mpi_request copying = DS__MPI_REQUEST_NULL;
    ds__mpi_link *link = ds__mpi_link_alloc();
    if (!link)
        return DS_ERR_OUT_OF_MEMORY;

    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_idup, from, &link->comm, &copying);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&copying, 1, deadline, step);
    return r < 0 ? r : ds__mpi_link_start(link, deadline, step, out);
}

/* Creates a link of some ranks of another one, in the order of the list. All of them must have
   called. */
static ds_result ds__mpi_link_choose(ds__mpi_link *from, const int *ranks, int count,
                                     uint64_t deadline, ds__net_comm *out) {
    ds__mpi_group all;
    ds__mpi_group chosen;
    ds__mpi_link *link = ds__mpi_link_alloc();
    if (!link)
        return DS_ERR_OUT_OF_MEMORY;

    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_group, from->side, &all);
    if (r == DS_OK) {
        r = DS__MPI_CALL(Group_incl, all, count, ranks, &chosen);
        (void)ds__mpi.Group_free(&all);
    }
    if (r == DS_OK) {
        r = DS__MPI_CALL(Comm_create_group, from->side, chosen, DS__MPI_TAG_GROUP, &link->comm);
        (void)ds__mpi.Group_free(&chosen);
    }
    ds__mpi_end();
    return r < 0 ? r : ds__mpi_link_start(link, deadline, "new communicator", out);
}

static ds_result ds__mpi_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank);

/* ---- split ----------------------------------------------------------------------------------- */

/* A rank that takes part in a split. */
typedef struct ds__mpi_member {
    int32_t color;
    int32_t key;
} ds__mpi_member;

typedef struct ds__mpi_place {
    int key;
    int rank;
} ds__mpi_place;

/* Orders by key, then by rank. */
static int ds__mpi_place_compare(const void *left, const void *right) {
    const ds__mpi_place *a = left;
    const ds__mpi_place *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

/* Memory of a split: leaked if the gathering is not complete. */
typedef struct ds__mpi_split_memory {
    ds__mpi_member mine;
    ds__mpi_member *members;
    ds__mpi_place *places;
    int *ranks;
} ds__mpi_split_memory;

static void ds__mpi_split_free(ds__mpi_split_memory *m) {
    ds__host_free(m->members);
    ds__host_free(m->places);
    ds__host_free(m->ranks);
    ds__host_free(m);
}

static ds__mpi_split_memory *ds__mpi_split_alloc(size_t size) {
    ds__mpi_split_memory *m = ds__host_alloc(sizeof *m);
    if (!m)
        return NULL;
    m->members = ds__host_alloc(size * sizeof *m->members);
    m->places = ds__host_alloc(size * sizeof *m->places);
    m->ranks = ds__host_alloc(size * sizeof *m->ranks);
    if (m->members && m->places && m->ranks)
        return m;
    ds__mpi_split_free(m);
    return NULL;
}

/* Lists the ranks of the own color in their new order; returns their number. */
static int ds__mpi_split_list(ds__mpi_split_memory *m, int size) {
    int count = 0;
    for (int i = 0; i < size; i++)
        if (m->members[i].color == m->mine.color)
            m->places[count++] = (ds__mpi_place){ m->members[i].key, i };
    qsort(m->places, (size_t)count, sizeof *m->places, ds__mpi_place_compare);
    for (int i = 0; i < count; i++)
        m->ranks[i] = m->places[i].rank;
    return count;
}

/* Fails if another rank has given up the split, after its color had arrived here: then
   MPI_Comm_create_group would wait for it for ever. */
static ds_result ds__mpi_split_check(ds__mpi_link *link) {
    char reason[DS__RANKS_REASON];
    int rank = 0;
    ds_result r = ds__mpi_hear(link, reason, &rank);
    return r < 0 ? ds__fail(r, "rank %d: %s", rank, reason) : DS_OK;
}

static ds_result ds__mpi_split(void *comm, int color, int key, uint64_t deadline,
                               ds__net_comm *out) {
    ds__mpi_link *link = comm;
    ds__mpi_request gathering = DS__MPI_REQUEST_NULL;
    ds__mpi_split_memory *m = ds__mpi_split_alloc((size_t)link->size);
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a split of %d ranks",
                        link->size);

    m->mine = (ds__mpi_member){ color < 0 ? -1 : color, key };
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Iallgather, &m->mine, 2, DS__MPI_INT32_T, m->members, 2,
                               DS__MPI_INT32_T, link->side, &gathering);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&gathering, 1, deadline, "split");
    if (r == DS_OK)
        r = ds__mpi_split_check(link);
    if (r < 0)
        return r;

    if (color >= 0) {
        int count = ds__mpi_split_list(m, link->size);
        r = ds__mpi_link_choose(link, m->ranks, count, deadline, out);
    }
    ds__mpi_split_free(m);
    return r;
}

/* ---- shrink ---------------------------------------------------------------------------------- */

/* Memory of a shrink: leaked if a message is pending. */
typedef struct ds__mpi_meeting {
    int count; /* remaining ranks */
    char sent;
    char *received;            /* one for each */
    int *ranks;                /* the remaining ranks in their order */
    ds__mpi_request *requests; /* two for each */
} ds__mpi_meeting;

static void ds__mpi_meeting_free(ds__mpi_meeting *m) {
    ds__host_free(m->received);
    ds__host_free(m->ranks);
    ds__host_free(m->requests);
    ds__host_free(m);
}

/* Returns a meeting of the ranks that are not excluded, or NULL. */
static ds__mpi_meeting *ds__mpi_meeting_alloc(int size, const int *excluded, size_t count) {
    ds__mpi_meeting *m = ds__host_alloc(sizeof *m);
    if (!m)
        return NULL;
    m->received = ds__host_alloc((size_t)size);
    m->ranks = ds__host_alloc((size_t)size * sizeof *m->ranks);
    m->requests = ds__host_alloc(2 * (size_t)size * sizeof *m->requests);
    if (!m->received || !m->ranks || !m->requests) {
        ds__mpi_meeting_free(m);
        return NULL;
    }

    for (int i = 0; i < size; i++) {
        int remains = 1;
        for (size_t k = 0; k < count; k++)
            remains &= excluded[k] != i;
        if (remains)
            m->ranks[m->count++] = i;
    }
    return m;
}

/* Sends a message to each remaining rank, and receives one of each. */
static ds_result ds__mpi_meet(ds__mpi_link *link, ds__mpi_meeting *m, uint64_t deadline) {
    ds_result r = DS_OK;
    ds__mpi_begin();
    for (int i = 0; r == DS_OK && i < m->count; i++) {
        r = DS__MPI_CALL(Irecv, &m->received[i], 1, DS__MPI_BYTE, m->ranks[i], DS__MPI_TAG_MEETING,
                         link->side, &m->requests[2 * i]);
        if (r == DS_OK)
            r = DS__MPI_CALL(Isend, &m->sent, 1, DS__MPI_BYTE, m->ranks[i], DS__MPI_TAG_MEETING,
                             link->side, &m->requests[2 * i + 1]);
    }
    ds__mpi_end();
    return r < 0 ? r : ds__mpi_wait(m->requests, 2 * m->count, deadline, "shrink");
}

/* Needs no MPIX_Comm_shrink, which the ABI has not: the list names the ranks that are gone, and
   MPI_Comm_create_group is called by the remaining ones only. */
static ds_result ds__mpi_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                ds__net_comm *out) {
    ds__mpi_link *link = comm;
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds__mpi_meeting *m = ds__mpi_meeting_alloc(link->size, excluded, count);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a shrink of %d ranks",
                        link->size);

    ds_result r = ds__mpi_meet(link, m, deadline);
    if (r < 0)
        return r;
    r = ds__mpi_link_choose(link, m->ranks, m->count, deadline, out);
    ds__mpi_meeting_free(m);
    return r;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Sends the message to each other rank; returns the number of requests. */
static int ds__mpi_tell_send(ds__mpi_link *link, const ds__mpi_message *message,
                             ds__mpi_request *requests) {
    int count = 0;
    for (int to = 0; to < link->size; to++) {
        if (to == link->rank)
            continue;
        int code = ds__mpi.Isend(message, (ds__mpi_count)sizeof *message, DS__MPI_BYTE, to,
                                 DS__MPI_TAG_FAILURE, link->side, &requests[count]);
        count += code == 0;
    }
    return count;
}

/* Errors are ignored: the group has failed, and some ranks may be gone. */
static void ds__mpi_tell(void *comm, ds_result code, const char *reason) {
    ds__mpi_link *link = comm;
    ds__mpi_message *message = ds__host_alloc(sizeof *message);
    ds__mpi_request *requests = ds__host_alloc((size_t)link->size * sizeof *requests);
    if (!message || !requests) {
        ds__host_free(message);
        ds__host_free(requests);
        return;
    }
    message->code = (int32_t)code;
    message->rank = (int32_t)link->rank;
    snprintf(message->reason, sizeof message->reason, "%s", reason);

    ds__mpi_begin();
    int count = ds__mpi_tell_send(link, message, requests);
    int done = 0;
    for (int i = 0; i < count; i++) {
        int flag = 0;
        for (int round = 0; round < DS__MPI_TELL_ROUNDS && !flag; round++)
            if (ds__mpi.Test(&requests[i], &flag, DS__MPI_STATUS_IGNORE) != 0)
                break;
        done += flag != 0;
    }
    ds__mpi_end();

    ds__host_free(requests);
    if (done == count)
        ds__host_free(message);
    else
        ds__mpi_give_up();
}

/* A request of the engine fails if MPI knows that a process is gone; the rank is then -1. `hearing`
   is held. */
static ds_result ds__mpi_hear_locked(ds__mpi_link *link, char reason[DS__RANKS_REASON],
                                     int *out_rank) {
    ds__mpi_message *message = &link->message;
    if (!link->heard) {
        ds__mpi_begin();
        int code = ds__mpi.Test(&link->listening, &link->heard, DS__MPI_STATUS_IGNORE);
        ds__mpi_end();
        if (code == 0 && !link->heard)
            return DS_OK;

        if (code != 0) {
            char text[DS__MPI_MAX_ERROR_STRING + 1];
            ds__mpi_error_format(code, text);
            link->heard = 1;
            message->code = DS_ERR_FAILED;
            message->rank = -1;
            snprintf(message->reason, sizeof message->reason, "MPI_Test failed: %.340s", text);
        }
        message->reason[sizeof message->reason - 1] = 0;
    }
    memcpy(reason, message->reason, sizeof message->reason);
    *out_rank = message->rank;
    return (ds_result)message->code;
}

static ds_result ds__mpi_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__mpi_link *link = comm;
    ds_result r = DS_OK;
    ds__spinlock_lock(&link->hearing);
    /* MPI may need several tests for a message that has arrived. */
    for (int round = 0; round < 4 && r == DS_OK; round++)
        r = ds__mpi_hear_locked(link, reason, out_rank);
    ds__spinlock_unlock(&link->hearing);
    return r;
}

static void ds__mpi_destroy(void *comm, int failed) {
    ds__mpi_link *link = comm;
    int done = link->heard;
    if (failed)
        ds__mpi_give_up();
    ds__mpi_begin();
    if (!done && ds__mpi.Cancel(&link->listening) == 0)
        (void)ds__mpi.Test(&link->listening, &done, DS__MPI_STATUS_IGNORE);
    if (!failed) {
        (void)ds__mpi.Comm_free(&link->side);
        (void)ds__mpi.Comm_free(&link->comm);
    }
    ds__mpi_end();
    if (done)
        ds__host_free(link);
    else
        ds__mpi_give_up();
}

#endif
