/* ranks/derive.h - groups that are made of another group.

   Implements ds_ranks_split, ds_ranks_shrink, ds_ranks_grow_id and ds_ranks_grow.

   Invariants: the new group has the devices, limits and recorder of the group.
   Locks: `calls` of the group is held while other ranks are waited for.
   Threads: caller's threads. */
#ifndef DS__RANKS_DERIVE_H
#define DS__RANKS_DERIVE_H

#include "types.h"
#include "failure.h"
#include "group.h"

static uint64_t ds__ranks_deadline(uint64_t timeout_ns) {
    uint64_t now = ds__now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* Creates a group of a communicator that was made of another group's, if r is DS_OK and there is
   one. Ends the pin. how: for the label, such as "split 1, color 0". */
static ds_result ds__group_derive(ds__group *g, ds_result r, ds__group_start *start,
                                  const char *how, ds_ranks *out) {
    char label[64];
    if (r == DS_OK && start->comm.comm) {
        snprintf(label, sizeof label, "%.30s, %.30s", ds__group_name(g), how);
        ds_ranks_desc desc = { .devices = g->own,
                               .device_count = g->owns,
                               .flags = g->flags,
                               .timeout_ns = g->timeout_ns,
                               .label = label };
        start->engine = g->engine;
        start->recorder = ds__recorder_ref(g->recorder);
        r = ds__group_create(start, &desc, out);
    }
    ds__group_unpin(g);
    return r;
}

/* Splits the communicator of a group. A rank that gives up fails the group: the others must not
   wait for it, and a later split would meet its abandoned part. */
static ds_result ds__group_split(ds__group *g, int color, int key, uint64_t deadline,
                                 ds__net_comm *comm) {
    char text[DS__RANKS_REASON];
    ds_result r = g->engine->split(g->comm, color, key, deadline, comm);
    if (r != DS_ERR_TIMEOUT)
        return r;
    snprintf(text, sizeof text,
             "ds_ranks_split at %s:%d of group \"%s\" on rank %d of %d: not all ranks have called "
             "within the time limit",
             ds__tls.site.file ? ds__tls.site.file : "?", ds__tls.site.file ? ds__tls.site.line : 0,
             ds__group_name(g), g->rank, g->size);
    ds__mutex_lock(&g->lock);
    ds__group_fail(g, r, text, 1);
    ds__mutex_unlock(&g->lock);
    return ds__group_report(g);
}

DSDEF ds_result(ds_ranks_split)(ds_ranks ranks, int color, int key, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_split");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_settle(g, start.deadline);
    if (r == DS_OK)
        r = ds__group_split(g, color, key, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "split %u, color %d", number, color);
    start.id = ds__ranks_id(g->id, number, color);
    return ds__group_derive(g, r, &start, how, out);
}

DSDEF ds_result(ds_ranks_shrink)(ds_ranks ranks, const int *excluded, size_t count, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_shrink");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(excluded || !count, "excluded is NULL, but count is %zu", count);
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (excluded[i] < 0 || excluded[i] >= g->size || excluded[i] == g->rank)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "excluded[%zu] is %d; it must be another rank of the %d ranks", i,
                         excluded[i], g->size);
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    if (r == DS_OK)
        r = g->engine->shrink(g->comm, excluded, count, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "shrink %u", number);
    start.id = ds__ranks_id(g->id, number, 0);
    return ds__group_derive(g, r, &start, how, out);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Refuses an engine whose groups cannot grow. */
static ds_result ds__group_check_grow(const ds__group *g) {
    return g->engine->grow ? DS_OK
                           : ds__fail(DS_ERR_UNSUPPORTED,
                                      "a group of engine \"%s\" cannot grow: MPI's ranks are those "
                                      "that its launcher has started",
                                      g->engine->name);
}

DSDEF ds_result(ds_ranks_grow_id)(ds_ranks ranks, char *out, size_t size) {
    if (out && size)
        *out = '\0';
    DS__ENTER("ds_ranks_grow_id");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(size >= DS_RANKS_ID_SIZE, "out has %zu bytes; DS_RANKS_ID_SIZE (%d) are required",
                size, DS_RANKS_ID_SIZE);
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&g->calls);
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_check_grow(g);
    if (r == DS_OK && g->rank)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "this is rank %d; rank 0 creates the id", g->rank);
    if (r == DS_OK && *g->grow_id)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "the group has an id already, which ds_ranks_grow has not used");
    if (r == DS_OK)
        r = g->engine->grow_id(g->comm, g->grow_id);
    if (r == DS_OK)
        memcpy(out, g->grow_id, sizeof g->grow_id);
    ds__mutex_unlock(&g->calls);
    ds__group_unpin(g);
    return r;
}

/* Gives all ranks the id of rank 0, and creates the communicator. `calls` is held. */
static ds_result ds__group_grow(ds__group *g, int size, uint64_t deadline, ds__net_comm *out) {
    void *ids = NULL;
    ds_result r = ds__group_settle(g, deadline);
    if (r == DS_OK)
        r = ds__group_gather(g, g->grow_id, sizeof g->grow_id, deadline, &ids);
    *g->grow_id = '\0';
    const char *id = ids; /* that of rank 0 */
    if (r == DS_OK && !*id)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "rank 0 has not called ds_ranks_grow_id");
    if (r == DS_OK)
        r = g->engine->grow(g->comm, id, size, deadline, out);
    ds__host_free(ids);
    return r;
}

DSDEF ds_result(ds_ranks_grow)(ds_ranks ranks, int size, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_grow");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_check_grow(g);
    if (r == DS_OK && size <= g->size)
        r = ds__fail(DS_ERR_INVALID_VALUE, "size is %d; it must be above %d, that of the group",
                     size, g->size);
    if (r == DS_OK)
        r = ds__group_grow(g, size, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "grow %u", number);
    start.id = ds__ranks_id(g->id, number, size);
    return ds__group_derive(g, r, &start, how, out);
}

#endif
