/* ranks/group.h - groups: creation, look-up, end.

   Creates a group of a communicator (ds__group_create), which exchanges the numbers of devices of
   the ranks, finds groups (ds__group_pin), and ends them (ds__group_end).

   Invariants: a group is in the list of the process from its creation to its end. A group that has
   failed is never freed before ds_shutdown: its operations may not have arrived yet, and the engine
   may still use their memory.
   Locks: ds__ranks.lock guards the lists of groups. ds__net_wait takes the group's lock for each
   test, and sleeps without it.
   Threads: any. */
#ifndef DS__RANKS_GROUP_H
#define DS__RANKS_GROUP_H

#include "types.h"
#include "failure.h"
#include "progress.h"
#include "record.h"
#include "../comm/internal.h"

/* Finds a group, which stays until ds__group_unpin. NULL: the handle is not valid; the sentence is
   stored. */
static ds__group *ds__group_pin(ds_ranks handle) {
    ds__group *g = ds__pin(&ds__ranks.table, handle.id);
    if (DS__UNLIKELY(!g))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the group was finalized or never existed"
                                                  : "no group was given (the handle is zero)");
    return g;
}

static void ds__group_unpin(ds__group *g) {
    ds__unpin(&ds__ranks.table, g);
}

/* Returns the rank that has a device of the group. */
static int ds__group_rank_of(const ds__group *g, size_t device) {
    int rank = 0;
    while (device >= g->first[rank + 1])
        rank++;
    return rank;
}

/* Values that each rank sends when a group is created. */
typedef struct ds__hello {
    uint64_t owns;
    uint64_t type;     /* of its devices */
    uint64_t id;       /* of the group; that of rank 0 counts */
    uint64_t flags;    /* that must agree */
    uint64_t world;    /* rank of the file of the flight recorder, or of the group */
    uint64_t distinct; /* 1: no device repeats */
} ds__hello;

/* Checks that the ranks agree, and numbers the devices of the group. */
static ds_result ds__group_number(ds__group *g, const ds__hello *all) {
    g->id = all[0].id;
    for (int i = 0; i < g->size; i++) {
        if (all[i].type != all[0].type)
            return ds__fail(DS_ERR_CROSS_DRIVER,
                            "rank 0 has devices of type %s, rank %d of type %s",
                            ds__type_name((int)all[0].type), i, ds__type_name((int)all[i].type));
        if (all[i].flags != all[0].flags)
            return ds__fail(DS_ERR_MISMATCH,
                            "rank 0 has flags %#llx, rank %d has %#llx; they must agree",
                            (unsigned long long)all[0].flags, i, (unsigned long long)all[i].flags);
        g->first[i + 1] = g->first[i] + (size_t)all[i].owns;
        g->world[i] = (int)all[i].world;
    }
    g->devices = g->first[g->size];
    return DS_OK;
}

/* Returns 1 if the engine makes the devices members of a communicator: a rank has several, and no
   rank has one twice. */
static int ds__group_has_each(const ds__group *g, const ds__hello *all) {
    int distinct = 1;
    for (int i = 0; i < g->size; i++)
        distinct &= all[i].distinct != 0;
    return g->engine->join && distinct && g->devices > (size_t)g->size;
}

/* Gathers `bytes` of each rank on all ranks. *out: them in the order of the ranks, in memory that
   the caller frees with ds__host_free. */
static ds_result ds__group_gather(ds__group *g, const void *mine, size_t bytes, uint64_t deadline,
                                  void **out) {
    size_t n = (size_t)g->size;
    size_t all = ((n + 1) * bytes + 15) & ~(size_t)15;
    char *at = ds__host_alloc(all + 2 * n * sizeof(size_t));
    *out = NULL;
    if (!at)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", g->size);
    size_t *parts = (size_t *)(void *)(at + all);
    for (size_t i = 0; i < n; i++) {
        parts[i] = bytes;
        parts[n + i] = i * bytes;
    }
    memcpy(at + n * bytes, mine, bytes);
    ds__net_op gather = {
        .kind = DS__NET_ALL_GATHER, .in = at + n * bytes, .out = at, .parts = { parts, parts + n }
    };
    ds_result r = ds__net_wait(g, &gather, deadline, "creation of a group");
    if (r == DS_OK)
        *out = at;
    else if (g->engine->cancels) /* else the engine may still use the memory */
        ds__host_free(at);
    return r;
}

/* Returns in *out_all whether `mine` is 1 on all ranks. */
static ds_result ds__group_agree(ds__group *g, int mine, uint64_t deadline, int *out_all) {
    char own = (char)mine;
    void *all;
    ds_result r = ds__group_gather(g, &own, 1, deadline, &all);
    *out_all = r == DS_OK && !memchr(all, 0, (size_t)g->size);
    ds__host_free(all);
    return r;
}

/* Makes the devices of all ranks members of a communicator. If the engine cannot do that, for
   example since two ranks have one device, the members stay the ranks. */
static ds_result ds__group_join(ds__group *g, uint64_t deadline) {
    char mine[DS__RANKS_KEY] = { 0 };
    void *keys;
    ds_result r = DS_OK;
    g->each = ds__host_alloc((g->devices + 1) * sizeof *g->each);
    if (!g->each)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %zu devices", g->devices);
    for (size_t k = 0; k <= g->devices; k++)
        g->each[k] = k;
    if (g->rank == 0)
        r = g->engine->key(mine);
    if (r == DS_OK)
        r = ds__group_gather(g, mine, sizeof mine, deadline, &keys);
    if (r < 0)
        return r;
    ds__net_devices devices = { g->own, g->owns, g->first[g->rank], g->devices };
    int all = 0;
    ds__quiet outer = ds__quiet_begin();
    int joined = g->engine->join(g->comm, keys, &devices, deadline) == DS_OK; /* that of rank 0 */
    ds__quiet_end(&outer);
    ds__host_free(keys);
    r = ds__group_agree(g, joined, deadline, &all);
    if (r < 0 || all)
        return r;
    ds__log_warn("process group \"%s\": the devices of a rank take part through its first one: %s",
                 ds__group_name(g), joined ? "another rank has failed" : ds__quiet_reason());
    g->engine->leave(g->comm);
    ds__host_free(g->each);
    g->each = NULL;
    return DS_OK;
}

/* Returns 1 if no device of this rank repeats. */
static int ds__group_is_distinct(const ds__group *g) {
    int distinct = 1;
    for (size_t i = 0; i < g->owns; i++)
        for (size_t k = 0; k < i; k++)
            distinct &= ds__device_key(g->own[i]) != ds__device_key(g->own[k]);
    return distinct;
}

/* Exchanges the numbers of devices. */
static ds_result ds__group_meet(ds__group *g, uint64_t deadline) {
    size_t n = (size_t)g->size;
    void *all;
    g->first = ds__host_alloc((n + 1) * sizeof *g->first);
    g->world = ds__host_alloc(n * sizeof *g->world);
    if (!g->first || !g->world)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", g->size);
    ds__hello mine = { .owns = g->owns,
                       .type = (uint64_t)g->own[0].type,
                       .id = g->id,
                       .flags = g->flags & DS_RANKS_COMPARE,
                       .distinct = (uint64_t)ds__group_is_distinct(g),
                       .world = (uint64_t)(g->recorder ? g->recorder->header->rank : g->rank) };
    ds_result r = ds__group_gather(g, &mine, sizeof mine, deadline, &all);
    if (r == DS_OK)
        r = ds__group_number(g, all);
    int joins = r == DS_OK && ds__group_has_each(g, all);
    ds__host_free(all);
    return joins ? ds__group_join(g, deadline) : r;
}

static void ds__group_free_op(ds__rop *op) {
    ds__host_free(op->tables);
    ds__host_free(op->signatures);
    ds__host_free(op);
}

static void ds__group_free_list(ds__rtemp *list) {
    while (list) {
        ds__rtemp *next = list->next;
        ds__host_free(list);
        list = next;
    }
}

/* Frees the resources of a group. No operation of its list is used any more. */
static void ds__group_clear(ds__group *g) {
    atomic_fetch_sub(&ds__drive.groups, g->counted);
    if (g->comm && !atomic_load(&g->graphs))
        g->engine->destroy(g->comm, atomic_load(&g->failed));
    else if (g->comm)
        ds__log_warn("graphs still have operations of process group \"%s\", whose communicator is "
                     "leaked; destroy the graphs before ds_shutdown",
                     ds__group_name(g));
    if (g->timeline)
        g->driver->timeline_destroy(g->timeline);
    while (g->free_ops) {
        ds__rop *op = g->free_ops;
        g->free_ops = op->next;
        ds__group_free_op(op);
    }
    while (g->head) {
        ds__rop *op = g->head;
        g->head = op->next;
        ds__group_free_op(op);
    }
    ds__group_free_list(g->temps); /* the allocator frees the memory */
    ds__group_free_list(g->free_temps);
    ds__recorder_close(g->recorder);
    ds__host_free(g->first);
    ds__host_free(g->each);
    ds__host_free(g->world);
    ds__host_free(g->own);
    ds__host_free(g->label);
    ds__mutex_destroy(&g->calls);
    ds__mutex_destroy(&g->lock);
}

/* Copies devices, label and options to a group. */
static ds_result ds__group_describe(ds__group *g, const ds_ranks_desc *desc) {
    g->owns = desc->device_count;
    g->own = ds__host_alloc(g->owns * sizeof *g->own);
    g->label = desc->label ? ds__copy_text(desc->label, 63) : NULL;
    if (!g->own || (desc->label && !g->label))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    for (size_t i = 0; i < g->owns; i++) {
        ds_result r = ds__device_resolve(desc->devices[i], &g->own[i]);
        if (r < 0)
            return r;
    }
    g->driver = ds__driver_of(g->own[0]);
    g->gpu = g->driver->type == DS_DEVICE_CUDA && g->engine->reaches(DS__NET_EXCHANGE);
    g->flags = desc->flags;
    g->timeout_ns = desc->timeout_ns;
    return DS_OK;
}

/* Loads the kernels of collectives on the group's GPUs. Called before the group has operations:
   CUDA loads a module when all work of the device is complete (docs/gpu, R2). If ranks share a GPU,
   this would be never while an operation waits for the rank that loads. */
static void ds__group_load(const ds__group *g) {
    for (size_t i = 0; g->driver->type == DS_DEVICE_CUDA && i < g->owns; i++)
        ds__comm_load(g->own[i]);
}

/* Arguments of ds__group_create. */
typedef struct ds__group_start {
    const ds__ranks_engine *engine;
    ds__net_comm comm;
    uint64_t id;                   /* a proposal; that of rank 0 counts */
    struct ds__recorder *recorder; /* NULL, or with a use for the group */
    uint64_t deadline;
} ds__group_start;

/* Creates a group of a communicator, which becomes the group's also on failure. */
static ds_result ds__group_create(const ds__group_start *start, const ds_ranks_desc *desc,
                                  ds_ranks *out) {
    uint64_t base = 0;
    ds__group *g = ds__table_add(&ds__ranks.table);
    if (!g) {
        start->engine->destroy(start->comm.comm, 1);
        ds__recorder_close(start->recorder);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    }
    g->engine = start->engine;
    g->comm = start->comm.comm;
    g->rank = start->comm.rank;
    g->size = start->comm.size;
    g->id = start->id;
    g->recorder = start->recorder;
    g->made = ds__tls.site;
    ds__mutex_init(&g->calls);
    ds__mutex_init(&g->lock);
    ds_result r = ds__group_describe(g, desc);
    if (r == DS_OK) {
        ds__group_load(g);
        r = ds__group_meet(g, start->deadline);
    }
    if (r == DS_OK)
        r = g->driver->timeline_create(&g->timeline, &base);
    if (r < 0) {
        atomic_store(&g->failed, 1);
        ds__table_invalidate(&ds__ranks.table, g);
        ds__table_reclaim(&ds__ranks.table);
        return r;
    }
    if (g->engine->enqueue)
        atomic_store(&ds__drive.look_fn, ds__ranks_look);
    atomic_fetch_add(&ds__drive.groups, g->size > 1);
    g->counted = g->size > 1;
    g->listed = base;
    g->base = base;
    atomic_store(&g->passed, base);
    ds__group_record(g);
    ds__mutex_lock(&ds__ranks.lock);
    g->next = ds__ranks.groups;
    ds__ranks.groups = g;
    ds__mutex_unlock(&ds__ranks.lock);
    out->id = ds__handle_of(&g->slot);
    return DS_OK;
}

/* Called when no thread has a pin of the group any more. */
static void ds__group_freed(void *object) {
    ds__group_clear(object);
}

/* Frees the temporary memory of operations that have passed. */
static void ds__group_free_temps(ds__group *g, uint64_t passed) {
    for (ds__rtemp **at = &g->temps; *at;) {
        ds__rtemp *t = *at;
        ds_result r;
        if (t->number > passed) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        if (t->pinned)
            DS__KEEPING(r, (ds_mem_pinned_free)(t->ptr));
        else
            DS__KEEPING(r, (ds_mem_free)(t->ptr));
        DS_IGNORE(r);
        t->next = g->free_temps;
        g->free_temps = t;
    }
}

/* Takes a group out of the list of the process. */
static void ds__group_unlist(ds__group *g) {
    ds__mutex_lock(&ds__ranks.lock);
    ds__group **at = &ds__ranks.groups;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
    ds__mutex_unlock(&ds__ranks.lock);
}

/* Returns the number of the last operation of the group. */
static uint64_t ds__group_listed(ds__group *g) {
    ds__spinlock_lock(&g->list_lock);
    uint64_t listed = g->listed;
    ds__spinlock_unlock(&g->list_lock);
    return listed;
}

/* Returns the number of the last operation that is complete. */
static uint64_t ds__group_passed(ds__group *g) {
    int asks = g->engine->enqueue && !atomic_load(&g->failed);
    return asks ? g->driver->timeline_get(g->timeline) : atomic_load(&g->passed);
}

/* Waits until all operations have passed, or the group has failed. Returns 0 at the deadline. */
static int ds__group_drain(ds__group *g, uint64_t deadline) {
    uint64_t nap = 2000;
    while (!atomic_load(&g->failed) && atomic_load(&g->passed) < ds__group_listed(g)) {
        if (ds__now_ns() > deadline)
            return 0;
        ds__group_drive(g);
        ds__os_sleep(nap);
        nap = nap < 500000 ? nap * 2 : nap;
    }
    return 1;
}

/* Waits until all operations of the group have passed, so that the engine can be used between
   them. `calls` is held. */
static ds_result ds__group_settle(ds__group *g, uint64_t deadline) {
    if (!ds__group_drain(g, deadline))
        return ds__fail(DS_ERR_TIMEOUT,
                        "earlier operations of group \"%s\" are not complete within the time "
                        "limit",
                        ds__group_name(g));
    return ds__group_report(g);
}

/* Returns the number of a group that was made of group `parent`; 0: a number of its own. */
static uint64_t ds__ranks_id(uint64_t parent, uint32_t number, int color) {
    if (!parent)
        return ds__os_cookie();
    uint64_t words[3] = { parent, number, (uint64_t)(int64_t)color };
    return ds__hash(words, sizeof words);
}

/* Ends a group whose handle was found; the caller has a pin, which ends, too. A group that has
   failed keeps a reference, and with it its memory, until ds_shutdown: operations may not have
   arrived yet. */
static void ds__group_end(ds__group *g) {
    atomic_store(&g->finalized, 1);
    (void)ds__group_drain(g, UINT64_MAX);
    if (atomic_load(&g->failed))
        ds__ref(g);
    else
        ds__group_free_temps(g, UINT64_MAX);
    ds__group_unlist(g);
    while (atomic_load(&g->users))
        ds__os_yield();
    ds__table_invalidate(&ds__ranks.table, g);
    ds__group_unpin(g);
    ds__table_reclaim(&ds__ranks.table);
}

#endif
