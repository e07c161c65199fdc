/* ranks/nccl_comm.h - creation of communicators of NCCL.

   Creates, splits, shrinks and grows communicators of the engine "nccl". A rank is NCCL's rank with
   its leading device. If ranks have several devices, each device is a rank of NCCL in a second
   communicator (ds__nccl_join).

   Invariants: a communicator that a call of NCCL has begun is aborted or has a link in the end.
   Locks: `lock` of the communicator from which another one is made.
   Threads: any. */
#ifndef DS__RANKS_NCCL_COMM_H
#define DS__RANKS_NCCL_COMM_H

#include "types.h"
#include "nccl_load.h"
#include "nccl_id.h"
#include "nccl_link.h"

/* Returns rank and size of the options or, without them, of the launcher. */
static ds_result ds__nccl_place_find(const ds_ranks_desc *desc, int *out_rank, int *out_size) {
    ds_ranks_launch launch;
    (ds_ranks_launch_get)(&launch);
    *out_rank = desc->size ? desc->rank : launch.rank;
    *out_size = desc->size ? desc->size : launch.size;
    DS__REQUIRE(*out_size > 0 && *out_rank >= 0 && *out_rank < *out_size,
                "rank %d of %d ranks: set rank and size, or start the process with mpiexec, srun "
                "or torchrun",
                *out_rank, *out_size);
    return DS_OK;
}

static ds_result ds__nccl_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    ds_device device = { 0, 0 };
    ds__nccl_ticket ticket;
    ds__nccl_config config = ds__nccl_config_default();
    ds__nccl_comm comm = NULL;
    ds__nccl_result code;
    ds__library_scope scope;
    int rank = 0;
    int size = 0;
    ds_result r = ds__device_resolve(desc->devices[0], &device);
    if (r == DS_OK && device.type != DS_DEVICE_CUDA)
        r = ds__fail(
            DS_ERR_UNSUPPORTED,
            "the engine \"nccl\" needs CUDA devices, but devices[0] is cpu:%d; use \"mpi\"",
            device.index);
    if (r == DS_OK)
        r = ds__nccl_load();
    if (r == DS_OK)
        r = ds__nccl_place_find(desc, &rank, &size);
    if (r == DS_OK)
        r = ds__nccl_id_find(desc->id, rank, deadline, &ticket);
    if (r == DS_OK && ticket.grows && !ds__nccl.CommGrow)
        r = ds__nccl_old("grow a communicator", "2.29");
    if (r < 0)
        return r;

    const char *call = ticket.grows ? "CommGrow" : "CommInitRankConfig";
    ds__nccl_begin(device, &scope);
    if (ticket.grows)
        code = ds__nccl.CommGrow(NULL, size, &ticket.id, rank, &comm, &config);
    else
        code = ds__nccl.CommInitRankConfig(&comm, size, ticket.id, rank, &config);
    r = ds__nccl_wait(comm, code, call, deadline, NULL);
    if (r < 0 && comm)
        (void)ds__nccl.CommAbort(comm);
    ds__nccl_end(device, &scope);
    ds__nccl_id_done(desc->id, rank);
    return r < 0 ? r : ds__nccl_link_create(comm, rank, size, device, out);
}

static ds_result ds__nccl_key(char out[DS__RANKS_KEY]) {
    ds__nccl_ticket ticket = { .grows = 0 };
    _Static_assert(sizeof ticket.id == DS__RANKS_KEY, "a key is an id");
    ds_result r = ds__nccl_id_create(&ticket);
    memcpy(out, &ticket.id, sizeof ticket.id);
    return r;
}

/* Calls NCCL for all devices of the rank, and waits for their communicators. */
static ds_result ds__nccl_join_all(ds__nccl_link *link, ds__nccl_id id, uint64_t deadline) {
    ds__nccl_config config = ds__nccl_config_default();
    ds__library_scope scope;
    ds__nccl_result code = ds__nccl.GroupStart();
    ds_result r = ds__nccl_check(NULL, code, "GroupStart");
    if (r < 0)
        return r;
    for (size_t i = 0; i < link->count && r == DS_OK; i++) {
        ds__nccl_place *p = &link->places[i];
        ds__nccl_begin(p->device, &scope);
        code = ds__nccl.CommInitRankConfig(&p->comm, p->size, id, p->rank, &config);
        r = ds__nccl_check(NULL, code, "CommInitRankConfig");
        ds__nccl_end(p->device, &scope);
    }
    code = ds__nccl.GroupEnd();
    if (r == DS_OK)
        r = ds__nccl_check(NULL, code, "GroupEnd");
    for (size_t i = 0; i < link->count && r == DS_OK; i++)
        r = ds__nccl_wait(link->places[i].comm, DS__NCCL_IN_PROGRESS, "CommInitRankConfig",
                          deadline, NULL);
    return r;
}

static void ds__nccl_leave(void *comm) {
    ds__nccl_link *link = comm;
    for (size_t i = 0; i < link->count; i++)
        ds__nccl_abort(link->places[i].comm, link->places[i].device);
    link->count = 0;
    ds__host_free(link->places);
    link->places = NULL;
}

/* If it fails, ds__nccl_leave or ds__nccl_destroy aborts what is there. */
static ds_result ds__nccl_join(void *comm, const char key[DS__RANKS_KEY],
                               const ds__net_devices *devices, uint64_t deadline) {
    ds__nccl_link *link = comm;
    ds__nccl_id id;
    memcpy(&id, key, sizeof id);
    link->places = ds__host_alloc(devices->count * sizeof *link->places);
    if (!link->places)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu communicators", devices->count);
    link->count = devices->count;
    for (size_t i = 0; i < link->count; i++)
        link->places[i] =
            (ds__nccl_place){ NULL, (int)(devices->first + i), (int)devices->all, devices->own[i] };
    return ds__nccl_join_all(link, id, deadline);
}

/* Waits until NCCL has made link->child; `lock` is held. wanted 0: this rank is in no new
   communicator. */
static ds_result ds__nccl_derive(ds__nccl_link *link, ds__nccl_result code, const char *call,
                                 uint64_t deadline, int wanted, ds__net_comm *out) {
    const _Atomic int *stopped = link->revoked ? NULL : &link->stopped;
    ds_result r = ds__nccl_wait(link->own.comm, code, call, deadline, stopped);
    /* A communicator that has failed keeps its error, also if it was shrunk. */
    if (r < 0 && !(link->revoked && r != DS_ERR_TIMEOUT))
        return r;
    ds__nccl_comm child = __atomic_exchange_n(&link->child, NULL, __ATOMIC_ACQUIRE);
    if (!child && r < 0)
        return r;
    if (!child)
        return wanted ? ds__fail(DS_ERR_FAILED, "nccl%s: there is no new communicator", call)
                      : DS_OK;
    r = ds__nccl_wait(child, DS__NCCL_IN_PROGRESS, call, deadline, stopped);
    if (r == DS_OK)
        r = ds__nccl_check(child, ds__nccl.CommUserRank(child, &out->rank), "CommUserRank");
    if (r == DS_OK)
        r = ds__nccl_check(child, ds__nccl.CommCount(child, &out->size), "CommCount");
    if (r < 0)
        (void)ds__nccl.CommAbort(child);
    else
        out->comm = child;
    return r;
}

/* Makes the link of a communicator of ds__nccl_derive, if there is one. No lock is held, since
   memory is allocated. */
static ds_result ds__nccl_complete(const ds__nccl_link *link, ds_result r, ds__net_comm *out) {
    ds__net_comm made = *out;
    *out = (ds__net_comm){ NULL, 0, 0 };
    return made.comm ? ds__nccl_link_create(made.comm, made.rank, made.size, link->own.device, out)
                     : r;
}

static ds_result ds__nccl_split(void *comm, int color, int key, uint64_t deadline,
                                ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    ds__nccl_config config = ds__nccl_config_default();
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    ds__nccl_begin(link->own.device, &scope);
    ds__nccl_result code = ds__nccl.CommSplit(link->own.comm, color < 0 ? DS__NCCL_NO_COLOR : color,
                                              key, &link->child, &config);
    r = ds__nccl_derive(link, code, "CommSplit", deadline, color >= 0, out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    return ds__nccl_complete(link, r, out);
}

/* Shrinks a communicator, whose work NCCL ends first if its group has failed. `lock` is held. */
static ds_result ds__nccl_shrink_comm(ds__nccl_link *link, int *excluded, int count,
                                      uint64_t deadline, ds__net_comm *out) {
    ds__nccl_config config = ds__nccl_config_default();
    ds_result r = DS_OK;
    int flags = atomic_load(&link->stopped) ? DS__NCCL_SHRINK_ABORT : 0;
    if (!link->own.comm)
        return ds__nccl_old("revoke the communicator of a group that has failed", "2.28.7");
    if (link->revoked) /* the revoke must be complete; the communicator keeps its error */
        r = ds__nccl_wait(link->own.comm, DS__NCCL_IN_PROGRESS, "CommRevoke", deadline, NULL);
    if (r == DS_ERR_TIMEOUT)
        return r;
    if (!count) { /* NCCL does not shrink without a rank to exclude */
        ds__nccl_result code =
            ds__nccl.CommSplit(link->own.comm, 0, link->own.rank, &link->child, &config);
        return ds__nccl_derive(link, code, "CommSplit", deadline, 1, out);
    }
    ds__nccl_result code =
        ds__nccl.CommShrink(link->own.comm, excluded, count, &link->child, &config, flags);
    return ds__nccl_derive(link, code, "CommShrink", deadline, 1, out);
}

static ds_result ds__nccl_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                 ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (count && !ds__nccl.CommShrink)
        return ds__nccl_old("shrink a communicator", "2.27");
    int *list = ds__host_alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a list of %zu ranks", count);
    for (size_t i = 0; i < count; i++)
        list[i] = excluded[i];
    ds__mutex_lock(&link->lock);
    ds__nccl_begin(link->own.device, &scope);
    ds_result r = ds__nccl_shrink_comm(link, list, (int)count, deadline, out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    ds__host_free(list);
    return ds__nccl_complete(link, r, out);
}

/* NCCL before 2.29 makes the larger communicator anew. */
static ds_result ds__nccl_grow_id(void *comm, char out[DS_RANKS_ID_SIZE]) {
    ds__nccl_link *link = comm;
    ds__nccl_ticket ticket = { .grows = ds__nccl.CommGrow != NULL };
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    if (ticket.grows) {
        ds__nccl_result code = ds__nccl.CommGetUniqueId(link->own.comm, &ticket.id);
        r = ds__nccl_check(link->own.comm, code, "CommGetUniqueId");
    } else {
        r = ds__nccl_id_create(&ticket);
    }
    ds__nccl_unlock(link);
    if (r == DS_OK)
        ds__nccl_id_format(&ticket, out);
    return r;
}

static ds_result ds__nccl_grow(void *comm, const char *id, int size, uint64_t deadline,
                               ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    ds__nccl_config config = ds__nccl_config_default();
    ds__nccl_ticket ticket;
    ds__nccl_result code;
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (!ds__nccl_id_parse(id, &ticket))
        return ds__fail(DS_ERR_INVALID_VALUE, "rank 0 has sent no id of NCCL");
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    ds__nccl_begin(link->own.device, &scope);
    if (ticket.grows)
        code = ds__nccl.CommGrow(link->own.comm, size, link->own.rank ? NULL : &ticket.id, -1,
                                 &link->child, &config);
    else
        code = ds__nccl.CommInitRankConfig(&link->child, size, ticket.id, link->own.rank, &config);
    r = ds__nccl_derive(link, code, ticket.grows ? "CommGrow" : "CommInitRankConfig", deadline, 1,
                        out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    return ds__nccl_complete(link, r, out);
}

#endif
