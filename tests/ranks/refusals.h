/* Wrong arguments: the code and the sentence of each refusal. Nothing is enqueued, and the group
   works afterwards. */
#ifndef RANKS_REFUSALS_H
#define RANKS_REFUSALS_H

#include "small.h"

static uint64_t operations_of(place *p) {
    ds_ranks_info info;
    OK(ds_ranks_get_info(p->ranks, &info));
    return info.operations;
}

/* Tensors of this rank for wrong calls. */
typedef struct wrong {
    small s;
    const ds_tensor *in[OWN];
    const ds_tensor *out[OWN];
    ds_tensor other[OWN]; /* of another type or shape */
    ds_comm_options o;
} wrong;

static void wrong_lists(place *p, wrong *w) {
    for (size_t i = 0; i < p->own; i++) {
        w->in[i] = w->s.in[i];
        w->out[i] = w->s.out[i];
        w->other[i] = *w->s.out[i];
    }
    w->o = options_of(p, 0);
}

static void wrong_counts(place *p, wrong *w) {
    REFUSED(ds_comm_all_reduce(w->in, w->out, p->own + 1, DS_REDUCE_SUM, &w->o),
            DS_ERR_INVALID_VALUE, "but this rank has");
    REFUSED(ds_comm_all_gather(w->in, w->out, 0, &w->o), DS_ERR_INVALID_VALUE,
            "tensors has 0 tensors");
    REFUSED(ds_comm_reduce_scatter(w->in, NULL, p->own, DS_REDUCE_SUM, &w->o), DS_ERR_INVALID_VALUE,
            "outs is NULL");
    REFUSED(ds_comm_all_to_all(NULL, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "tensors is NULL");
    w->o.stream_count = p->own + 1;
    REFUSED(ds_ranks_barrier(&w->o), DS_ERR_INVALID_VALUE, "streams were passed for");
    w->o = options_of(p, p->devices);
    REFUSED(ds_comm_broadcast_into(NULL, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "options->root is");
    REFUSED(ds_ranks_barrier(NULL), DS_ERR_INVALID_VALUE, "options is NULL");
    wrong_lists(p, w);
}

/* A single tensor on a rank that is not the root's, and none on the root's. */
static void wrong_roots(place *p, wrong *w) {
    int here = is_mine(p, 0);
    const ds_tensor *in = here ? NULL : w->in[0];
    const ds_tensor *out = here ? NULL : w->out[0];
    const char *words = here ? "is NULL, but device 0, the root" : "must be NULL on this rank";
    REFUSED(ds_comm_broadcast_into(in, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE, words);
    REFUSED(ds_comm_scatter_into(in, w->out, p->own, 0, &w->o), DS_ERR_INVALID_VALUE, words);
    REFUSED(ds_comm_gather_into(w->in, p->own, 0, out, &w->o), DS_ERR_INVALID_VALUE, words);
    REFUSED(ds_comm_reduce_into(w->in, p->own, DS_REDUCE_SUM, out, &w->o), DS_ERR_INVALID_VALUE,
            words);
}

static void wrong_tensors(place *p, wrong *w) {
    int64_t shape[1] = { w->s.all - 1 };
    const ds_tensor *others[OWN];
    for (size_t i = 0; i < p->own; i++)
        others[i] = &w->other[i];
    w->other[0].shape = shape;
    REFUSED(ds_comm_all_reduce(w->in, others, p->own, DS_REDUCE_SUM, &w->o), DS_ERR_INVALID_VALUE,
            "it must be");
    REFUSED(ds_comm_reduce_scatter(w->in, others, p->own, DS_REDUCE_SUM, &w->o),
            DS_ERR_INVALID_VALUE, "must have size");
    if (p->devices > 1)
        REFUSED(ds_comm_all_to_all(w->in, others, p->own, &w->o), DS_ERR_INVALID_VALUE,
                "no multiple of");
    w->other[0] = *w->s.out[0];
    w->other[0].dtype = ds_float32();
    REFUSED(ds_comm_all_reduce(w->in, others, p->own, DS_REDUCE_SUM, &w->o), DS_ERR_INVALID_VALUE,
            "has type float32, others int32");
    REFUSED(ds_comm_all_gather(w->in, others, p->own, &w->o), DS_ERR_INVALID_VALUE, "has type");
    others[0] = NULL;
    REFUSED(ds_comm_all_reduce(w->in, others, p->own, DS_REDUCE_SUM, &w->o), DS_ERR_INVALID_VALUE,
            "is NULL");
    w->other[0] = *w->s.in[0];
    w->other[0].data = (char *)w->s.in[0]->data + 4;
    others[0] = &w->other[0];
    w->other[0].shape = shape;
    w->s.in[0]->shape[0]--;
    if (p->own == 1 && p->devices > 1)
        REFUSED(ds_comm_all_reduce(w->in, others, 1, DS_REDUCE_SUM, &w->o), DS_ERR_INVALID_VALUE,
                "shares memory");
    w->s.in[0]->shape[0]++;
    REFUSED(ds_comm_all_reduce(w->in, w->out, p->own, (ds_reduce_op)77, &w->o),
            DS_ERR_INVALID_VALUE, "77");
    wrong_lists(p, w);
}

static void wrong_sizes(place *p, wrong *w) {
    int64_t sizes[OWN * DEVICES] = { 0 };
    ds_ranks_options more = { .sizes = sizes };
    w->o.ranks_options = &more;
    REFUSED(ds_comm_all_gather(w->in, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "the sum of ranks_options->sizes is 0");
    REFUSED(ds_comm_reduce_scatter(w->in, w->out, p->own, DS_REDUCE_SUM, &w->o),
            DS_ERR_INVALID_VALUE, "the sum of ranks_options->sizes is 0");
    REFUSED(ds_comm_all_to_all(w->in, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "set both or none");
    more.out_sizes = sizes;
    REFUSED(ds_comm_all_to_all(w->in, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "the sum of ranks_options->sizes is 0");
    sizes[0] = -1;
    REFUSED(ds_comm_all_gather(w->in, w->out, p->own, &w->o), DS_ERR_INVALID_VALUE,
            "ranks_options->sizes[0] is -1");
    wrong_lists(p, w);
}

static void wrong_devices(place *p, wrong *w) {
    int count = 1;
    ds_stream streams[OWN];
    ds_stream_desc d;
    memset(&d, 0, sizeof d);
    d.device.type = p->type;
    OK(ds_device_get_count((ds_device_type)p->type, &count));
    d.device.index = (p->device[0].index + 1) % count;
    OK(ds_stream_create(&d, &streams[0]));
    memcpy(streams + 1, p->stream + 1, (OWN - 1) * sizeof *streams);
    w->o.streams = streams;
    REFUSED(ds_ranks_barrier(&w->o), DS_ERR_DEVICE_MISMATCH, "streams[0] is on");
    OK(ds_stream_destroy(streams[0]));
    REFUSED(ds_ranks_barrier(&w->o), DS_ERR_INVALID_HANDLE, "stream");
    wrong_lists(p, w);
    w->other[0].device = d.device;
    w->out[0] = &w->other[0];
    ds_result r = ds_comm_all_reduce(w->in, w->out, p->own, DS_REDUCE_SUM, &w->o);
    CHECK(r == DS_ERR_DEVICE_MISMATCH, "a tensor of another device: %s", ds_result_get_name(r));
    wrong_lists(p, w);
}

static void wrong_transfers(place *p, wrong *w) {
    ds_ranks_transfer t = { w->in[0], 7, 0, 0 };
    w->o.stream_count = 1;
    REFUSED(ds_ranks_exchange(&t, 1, &w->o), DS_ERR_INVALID_VALUE, "has kind 7");
    t.kind = DS_RANKS_SEND;
    t.device = p->own;
    REFUSED(ds_ranks_exchange(&t, 1, &w->o), DS_ERR_INVALID_VALUE, "but this rank has");
    t.device = 0;
    t.peer = p->devices;
    REFUSED(ds_ranks_exchange(&t, 1, &w->o), DS_ERR_INVALID_VALUE, "as its other side");
    REFUSED(ds_ranks_exchange(NULL, 1, &w->o), DS_ERR_INVALID_VALUE, "transfers is NULL");
    REFUSED(ds_ranks_send(NULL, 0, &w->o), DS_ERR_INVALID_VALUE, "is NULL");
    REFUSED(ds_ranks_receive(w->in[0], 0, NULL), DS_ERR_INVALID_VALUE, "options is NULL");
    OK(ds_ranks_exchange(NULL, 0, &w->o));
    wrong_lists(p, w);
}

static void wrong_results(place *p, wrong *w) {
    ds_tensor *out[OWN];
    ds_device to = p->device[0];
    int64_t size = 1;
    REFUSED(ds_comm_broadcast(w->in[0], &to, 1, &w->o, out), DS_ERR_UNSUPPORTED, "_into");
    REFUSED(ds_comm_scatter(w->in[0], &to, 1, &size, 0, &w->o, out, NULL), DS_ERR_UNSUPPORTED,
            "_into");
    REFUSED(ds_comm_gather(w->in, 1, 0, to, &w->o, out), DS_ERR_UNSUPPORTED, "_into");
    REFUSED(ds_comm_reduce(w->in, 1, DS_REDUCE_SUM, to, &w->o, out), DS_ERR_UNSUPPORTED, "_into");
    w->o.ranks.id = 0;
    w->o.root = 1;
    ds_result r = ds_comm_broadcast_into(w->in[0], w->out, 1, &w->o);
    CHECK(r == DS_ERR_INVALID_VALUE, "options.root without a group: %s", ds_result_get_name(r));
    wrong_lists(p, w);
}

static void test_wrong_arguments(place *p) {
    wrong w;
    w.s = small_make(p, SMALL_ALL_REDUCE, 0);
    wrong_lists(p, &w);
    uint64_t before = operations_of(p);

    wrong_counts(p, &w);
    wrong_roots(p, &w);
    wrong_tensors(p, &w);
    wrong_sizes(p, &w);
    wrong_devices(p, &w);
    wrong_transfers(p, &w);
    wrong_results(p, &w);

    CHECK(operations_of(p) == before, "a refused call was enqueued");
    OK(ds_ranks_get_status(p->ranks));
    small_free(p, &w.s);
    small_all(p, 3);
}

static void test_wrong_handles(place *p) {
    ds_ranks old;
    ds_ranks_info info;
    ds_comm_options o = options_of(p, 0);
    OK(ds_ranks_split(p->ranks, 0, p->rank, &old));
    OK(ds_ranks_finalize(old));

    REFUSED(ds_ranks_finalize(old), DS_ERR_INVALID_HANDLE, "finalized");
    REFUSED(ds_ranks_get_status(old), DS_ERR_INVALID_HANDLE, "finalized");
    REFUSED(ds_ranks_get_info(old, &info), DS_ERR_INVALID_HANDLE, "finalized");
    REFUSED(ds_ranks_get_info(p->ranks, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    REFUSED(ds_ranks_abort(old, "no"), DS_ERR_INVALID_HANDLE, "finalized");
    o.ranks = old;
    REFUSED(ds_ranks_barrier(&o), DS_ERR_INVALID_HANDLE, "finalized");
    o.ranks.id = 0;
    REFUSED(ds_ranks_barrier(&o), DS_ERR_INVALID_HANDLE, "zero");
    REFUSED(ds_ranks_split(o.ranks, 0, 0, &old), DS_ERR_INVALID_HANDLE, "zero");
    CHECK(!old.id, "the output of a failed call");
    REFUSED(ds_ranks_split(p->ranks, 0, 0, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    REFUSED(ds_ranks_shrink(p->ranks, NULL, 1, &old), DS_ERR_INVALID_VALUE, "excluded is NULL");
    REFUSED(ds_ranks_shrink(p->ranks, &p->rank, 1, &old), DS_ERR_INVALID_VALUE, "another rank");
    OK(ds_ranks_finalize(o.ranks));
}

static void test_wrong_descriptions(place *p) {
    ds_ranks r;
    char id[32];
    snprintf(id, sizeof id, "%.16s, wrong %d", p->id, p->rank);
    ds_ranks_desc good = desc_of(p);
    if (is_local(p))
        good.id = id;
    ds_ranks_desc d = good;
    good.timeout_ns = 1000000;
    REFUSED(ds_ranks_init(&good, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    d.engine = "pigeon";
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "engine is \"pigeon\"");
    d = good;
    d.flags = 1u << 20;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "unknown flags");
    d = good;
    d.reserved[3] = 1;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "reserved");
    d = good;
    d.devices = NULL;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "devices is NULL");
    if (!is_local(p))
        return;
    d = good;
    d.id = NULL;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "id is NULL");
    d = good;
    d.rank = d.size;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "rank is");
    d.size = 0;
    REFUSED(ds_ranks_init(&d, &r), DS_ERR_INVALID_VALUE, "size is 0");
    d = good;
    if (d.size > 1)
        REFUSED(ds_ranks_init(&d, &r), DS_ERR_TIMEOUT, "1 of");
    CHECK(!r.id, "the output of a failed call");
}

#endif
