/* ranks/capture.h - operations of a group in graphs.

   Captures an operation (ds__capture_rop): a host function node that starts it, and a node that
   waits for a word in pinned memory.

   Policy: each launch that gets to the host function makes a new operation of the group, whose
   number and place in the order are those of this moment. If the group has failed or was finalized,
   the operation is skipped and the graph continues; ds_ranks_get_status reports the
   failure.

   Invariants: a graph launches one after the other, so one operation at a time uses the word. The
   group lives as long as the graphs, or until ds_shutdown, which ends groups before graphs.
   Locks: `capture_lock` guards the list of captured operations; under it, only the locks of the
   table of groups and of the list of words are taken. The host function takes the list lock of the
   group.
   Threads: ds__capture_rop: the caller's. The host function runs on threads of the driver. */
#ifndef DS__RANKS_CAPTURE_H
#define DS__RANKS_CAPTURE_H

#include "types.h"
#include "run.h"

typedef struct ds__rcapture {
    struct ds__rcapture *next; /* in ds__ranks.captures */
    ds__group *group;          /* with a reference; NULL after ds_shutdown */
    ds__rcall call;
    ds__net_op net;
    uint64_t *word; /* pinned; NULL: the graph has calls of the engine */
    size_t table_bytes;
    _Alignas(16) char tables[];
} ds__rcapture;

/* Returns an address in a copy of tables. */
static const void *ds__rcapture_moved(const void *at, const void *from, void *to) {
    return at ? (char *)to + ((const char *)at - (const char *)from) : NULL;
}

/* Copies the description of an operation whose tables were copied from `from` to `to`. */
static void ds__rcapture_copy(ds__net_op *net, const void *from, void *to) {
    net->parts.bytes = ds__rcapture_moved(net->parts.bytes, from, to);
    net->parts.at = ds__rcapture_moved(net->parts.at, from, to);
    net->out_parts.bytes = ds__rcapture_moved(net->out_parts.bytes, from, to);
    net->out_parts.at = ds__rcapture_moved(net->out_parts.at, from, to);
    net->transfers = ds__rcapture_moved(net->transfers, from, to);
}

/* The host function: makes and begins the operation. */
static void ds__rcapture_run(void *user) {
    ds__rcapture *c = user;
    ds__rop *op = NULL;
    __atomic_store_n(c->word, 0, __ATOMIC_SEQ_CST);
    if (!atomic_load(&c->group->failed) && !atomic_load(&c->group->finalized))
        op = ds__rop_take(c->group, c->table_bytes);
    if (!op) {
        __atomic_store_n(c->word, 1, __ATOMIC_SEQ_CST);
        return;
    }
    op->call = c->call;
    op->net = c->net;
    op->word = c->word;
    if (c->table_bytes)
        memcpy(op->tables, c->tables, c->table_bytes);
    ds__rcapture_copy(&op->net, c->tables, op->tables);
    if (op->net.transfers)
        op->transfers =
            (ds__rtransfer *)(void *)((ds__net_transfer *)op->tables + op->net.transfer_count);
    ds__rop_add(op);
    (void)ds__rop_begin(&op->remote, DS__REMOTE_ARRIVED);
}

/* Takes a word without users, or allocates one. */
static ds_result ds__rword_take(void **out) {
    ds__spinlock_lock(&ds__ranks.failure_lock);
    ds__rword *word = ds__ranks.words;
    if (word)
        ds__ranks.words = word->next;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    *out = word;
    return word ? DS_OK : ds__pinned_segment_alloc(sizeof *word, out);
}

static void ds__rword_give_back(void *at) {
    ds__rword *word = at;
    ds__spinlock_lock(&ds__ranks.failure_lock);
    word->next = ds__ranks.words;
    ds__ranks.words = word;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
}

/* Frees the words. Called by ds_shutdown. */
static void ds__rwords_deinit(void) {
    for (ds__rword *word; (word = ds__ranks.words) != NULL;) {
        ds__ranks.words = word->next;
        DS_IGNORE(ds__segment_end(word, DS_MEMORY_PINNED, 1));
    }
}

/* Describes memory of the engine for observers. */
static ds__seen_operand ds__rcapture_operand(const void *at, size_t bytes, int writes) {
    return (ds__seen_operand){
        .ptr = at, .bytes = bytes, .width = bytes, .reads = !writes, .writes = writes
    };
}

/* Returns the bytes of the parts of all ranks. */
static size_t ds__rcapture_bytes(const ds__rcapture *c, const ds__net_parts *parts) {
    size_t bytes = 0;
    for (int i = 0; parts->bytes && i < c->group->size; i++)
        bytes += parts->bytes[i];
    return bytes;
}

/* Describes the memory of a collective on this rank: its input and its output. */
static void ds__rcapture_collective(const ds__rcapture *c, ds__seen_operand *in,
                                    ds__seen_operand *out) {
    const ds__net_op *net = &c->net;
    int root = net->root == c->group->rank;
    size_t item = (ds_dtype_get_size)(net->dtype);
    size_t all = ds__rcapture_bytes(c, &net->parts);
    size_t mine = net->parts.bytes ? net->parts.bytes[c->group->rank] : 0;
    size_t reads = net->count;
    size_t writes = net->count;
    switch (net->kind) {
    case DS__NET_ALL_REDUCE:
    case DS__NET_REDUCE:
        reads = net->count * item;
        writes = net->kind == DS__NET_ALL_REDUCE || root ? reads : 0;
        break;
    case DS__NET_BROADCAST:
        reads = 0;
        break;
    case DS__NET_ALL_GATHER:
        reads = mine;
        writes = all;
        break;
    case DS__NET_GATHER:
        writes = all;
        break;
    case DS__NET_SCATTER:
        reads = all;
        break;
    case DS__NET_REDUCE_SCATTER:
        reads = all;
        writes = mine;
        break;
    case DS__NET_ALL_TO_ALL:
        reads = all;
        writes = ds__rcapture_bytes(c, &net->out_parts);
        break;
    default:
        reads = writes = 0;
        break;
    }
    *in = ds__rcapture_operand(net->in, reads, 0);
    *out = ds__rcapture_operand(net->out, writes, net->kind != DS__NET_BROADCAST || !root);
}

/* Notifies observers of the captured operation. */
__attribute__((cold, noinline)) static void ds__rcapture_observe(const ds__rcapture *c) {
    size_t n = c->net.transfer_count > 2 ? c->net.transfer_count : 2;
    ds__seen_operand *list = ds__host_alloc(n * sizeof *list);
    if (!list)
        return;
    ds__rcapture_collective(c, &list[0], &list[1]);
    for (size_t i = 0; i < c->net.transfer_count; i++) {
        const ds__net_transfer *t = &c->net.transfers[i];
        list[i] = ds__rcapture_operand(t->at, t->bytes, t->receive);
    }
    ds__observer_notify(&(ds__seen){
        .kind = DS__SEEN_CAPTURE, .ptr = c, .word = c->word, .operand = list, .operands = n });
    ds__host_free(list);
}

/* Runs when the last graph is gone; on CUDA, on a thread that may not call CUDA, also after
   ds_shutdown. */
static void ds__rcapture_end(void *user) {
    ds__rcapture *c = user;
    if (c->word && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_CAPTURE_END, .ptr = c, .word = c->word });
    ds__spinlock_lock(&ds__ranks.capture_lock);
    if (c->group) {
        ds__rcapture **at = &ds__ranks.captures;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        if (c->word)
            ds__rword_give_back(c->word);
        else
            atomic_fetch_sub(&c->group->graphs, 1);
        ds__unref(&ds__ranks.table, c->group);
    }
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    ds__host_free(c);
}

/* Returns 1 if graphs have calls of the engine. */
static int ds__rcaptures_native(void) {
    int found = 0;
    ds__spinlock_lock(&ds__ranks.capture_lock);
    for (const ds__rcapture *c = ds__ranks.captures; c && !found; c = c->next)
        found = !c->word;
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    return found;
}

/* Takes the groups and words of the captured operations that graphs still have. In ds_shutdown,
   which ends groups before graphs. CUDA tells of the end of a graph later, on a thread: the
   communicators of graphs that were destroyed shortly before are not leaked. */
static void ds__rcaptures_deinit(void) {
    uint64_t until = ds__now_ns() + 100000000u;
    while (ds__rcaptures_native() && ds__now_ns() < until)
        ds__os_sleep(200000);
    ds__spinlock_lock(&ds__ranks.capture_lock);
    for (ds__rcapture *c; (c = ds__ranks.captures) != NULL;) {
        ds__ranks.captures = c->next;
        c->group = NULL;
        if (c->word)
            ds__rword_give_back(c->word);
    }
    ds__spinlock_unlock(&ds__ranks.capture_lock);
}

/* Captures an operation, which is given back. tables: bytes of its tables. */
static ds_result ds__capture_rop(ds_stream stream, ds__rop *op, size_t tables) {
    ds_result r;
    void *word = NULL;
    ds__rcapture *c = ds__host_alloc(sizeof *c + tables);
    r = c ? ds__rword_take(&word)
          : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a captured operation");
    if (r < 0) {
        ds__host_free(c);
        ds__rop_give_back(op);
        return r;
    }
    c->group = op->group;
    ds__ref(c->group);
    c->call = op->call;
    c->net = op->net;
    c->word = word;
    c->table_bytes = tables;
    if (tables)
        memcpy(c->tables, op->tables, tables);
    ds__rcapture_copy(&c->net, op->tables, c->tables);
    ds__rop_give_back(op);
    ds__spinlock_lock(&ds__ranks.capture_lock);
    c->next = ds__ranks.captures;
    ds__ranks.captures = c;
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    if (ds__observer_is_set())
        ds__rcapture_observe(c);
    DS__KEEPING(r, (ds_stream_launch_host_func)(stream, ds__rcapture_run, c, ds__rcapture_end));
    if (r == DS_OK)
        DS__KEEPING(r, (ds_stream_wait_value64)(stream, word, 1, DS_VALUE_WAIT_EQ));
    return r;
}

/* Captures an operation of an engine that enqueues its operations. The graph keeps the group, since
   NCCL does not end a communicator that graphs use. */
static ds_result ds__capture_native(ds_stream stream, ds__stream *s, ds__rop *op, size_t bytes) {
    ds_capture_info info;
    ds_result r;
    ds__rcapture *c = NULL;
    memset(&info, 0, sizeof info);
    DS__KEEPING(r, (ds_capture_get_info)(stream, &info));
    if (r == DS_OK && info.graph.id) { /* else another library captures */
        c = ds__host_alloc(sizeof *c);
        r = c ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a captured operation");
    }
    if (c) {
        c->group = op->group;
        ds__ref(c->group);
        atomic_fetch_add(&c->group->graphs, 1);
        ds__spinlock_lock(&ds__ranks.capture_lock);
        c->next = ds__ranks.captures;
        ds__ranks.captures = c;
        ds__spinlock_unlock(&ds__ranks.capture_lock);
        DS__KEEPING(r, (ds_graph_attach)(info.graph, c, ds__rcapture_end));
    }
    if (r == DS_OK)
        return ds__rop_submit_native(op, s, bytes, 1);
    ds__rop_give_back(op);
    return r;
}

#endif
