/* ranks/record.h - groups and operations in the flight recorder.

   Records a group and its operations: ds__group_record and ds__rop_record fill in what the recorder
   needs. ds__net_names are the names in records of activity and messages.

   Invariants: each transfer of an exchange has an entry of its own.
   Locks: `list_lock` of the group is held in ds__rop_record.
   Threads: any. */
#ifndef DS__RANKS_RECORD_H
#define DS__RANKS_RECORD_H

#include "types.h"
#include "recorder.h"

/* Names of operations, by ds__net_kind. */
static const char *const ds__net_names[DS__NET_KINDS] = {
    "all_reduce", "reduce",         "broadcast",  "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "exchange",   "barrier"
};

static void ds__group_record(const ds__group *g) {
    ds__recorder_group_add(g->recorder,
                           &(ds__recorder_group){ .group = g->id,
                                                  .rank = g->rank,
                                                  .size = g->size,
                                                  .devices = (uint32_t)g->devices,
                                                  .first_device = (uint32_t)g->first[g->rank],
                                                  .own_devices = (uint32_t)g->owns,
                                                  .engine = g->engine->name,
                                                  .label = g->label,
                                                  .world_ranks = g->world });
}

/* Returns the verb of an operation. */
static ds__recorder_verb ds__rop_verb(const ds__rcall *c) {
    static const ds__recorder_verb verbs[DS__NET_KINDS] = {
        [DS__NET_ALL_REDUCE] = DS__RECORDER_ALL_REDUCE,
        [DS__NET_REDUCE] = DS__RECORDER_REDUCE,
        [DS__NET_BROADCAST] = DS__RECORDER_BROADCAST,
        [DS__NET_ALL_GATHER] = DS__RECORDER_ALL_GATHER,
        [DS__NET_GATHER] = DS__RECORDER_GATHER,
        [DS__NET_SCATTER] = DS__RECORDER_SCATTER,
        [DS__NET_REDUCE_SCATTER] = DS__RECORDER_REDUCE_SCATTER,
        [DS__NET_ALL_TO_ALL] = DS__RECORDER_ALL_TO_ALL,
        [DS__NET_EXCHANGE] = DS__RECORDER_SEND,
        [DS__NET_BARRIER] = DS__RECORDER_BARRIER
    };
    return verbs[c->kind];
}

/* Records an operation that has its numbers. */
static uint64_t ds__rop_record(const ds__group *g, const ds__rop *op) {
    const ds__rcall *c = &op->call;
    int reduces = c->kind == DS__NET_ALL_REDUCE || c->kind == DS__NET_REDUCE ||
                  c->kind == DS__NET_REDUCE_SCATTER;
    int rooted = c->kind == DS__NET_REDUCE || c->kind == DS__NET_BROADCAST ||
                 c->kind == DS__NET_GATHER || c->kind == DS__NET_SCATTER;
    if (!g->recorder)
        return 0;
    ds__recorder_call call = { .group = g->id,
                               .sequence = g->operations,
                               .collective = g->collectives,
                               .verb = ds__rop_verb(c),
                               .flags = c->varies ? DS__RECORDER_COUNTS_VARY : 0,
                               .dtype = c->dtype,
                               .reduce = reduces ? (int)c->op : DS__RECORDER_NO_REDUCE,
                               .root = rooted ? (int)c->root : -1,
                               .device = -1,
                               .count = c->count,
                               .stream = c->stream,
                               .fn = c->fn,
                               .site = c->site,
                               .now = op->enqueued };
    if (c->kind != DS__NET_EXCHANGE)
        return ds__recorder_begin(g->recorder, &call);
    call.collective = 0;
    for (size_t i = 0; i < op->net.transfer_count; i++) {
        ds__rtransfer *t = &op->transfers[i];
        call.verb = op->net.transfers[i].receive ? DS__RECORDER_RECEIVE : DS__RECORDER_SEND;
        call.root = (int)t->peer;
        call.device = (int)t->device;
        call.count = t->count;
        t->ticket = ds__recorder_begin(g->recorder, &call);
    }
    return 0;
}

/* Records the status of an operation. */
static void ds__rop_status(const ds__group *g, const ds__rop *op, ds__recorder_status status,
                           uint64_t now) {
    if (!g->recorder)
        return;
    ds__recorder_set(g->recorder, op->ticket, status, now);
    for (size_t i = 0; i < op->net.transfer_count; i++)
        ds__recorder_set(g->recorder, op->transfers[i].ticket, status, now);
}

#endif
