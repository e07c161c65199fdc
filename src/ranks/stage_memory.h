/* ranks/stage_memory.h - memory of a collective.

   Allocates temporary memory of a call (ds__stage_buffer), decides which memory the engine can use
   (ds__stage_reaches), and copies tensors to and from memory of the engine (ds__stage_source,
   ds__stage_target, ds__stage_spread).

   Invariants: temporary memory belongs to the stage, then to the group until the operations of the
   call have passed.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */
#ifndef DS__RANKS_STAGE_MEMORY_H
#define DS__RANKS_STAGE_MEMORY_H

#include "stage.h"

/* Allocates temporary memory of device i of the rank or, with `pinned`, pinned memory. */
static ds_result ds__stage_temp(ds__stage *st, size_t i, size_t bytes, int pinned, void **out) {
    ds_result r;
    ds__rtemp *t = st->g->free_temps;
    if (t)
        st->g->free_temps = t->next;
    else
        t = ds__host_alloc(sizeof *t);
    *out = NULL;
    if (!t)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a collective");
    if (pinned)
        DS__KEEPING(r, (ds_mem_pinned_alloc)(bytes ? bytes : 1, &t->ptr));
    else
        DS__KEEPING(r, (ds_mem_alloc)(bytes ? bytes : 1, st->stream[i], &t->ptr));
    if (r < 0) {
        ds__host_free(t);
        return r;
    }
    t->pinned = pinned;
    t->next = st->temps;
    st->temps = t;
    *out = t->ptr;
    return DS_OK;
}

/* Allocates memory that the engine reaches: of the leading device, or pinned. */
static ds_result ds__stage_buffer(ds__stage *st, size_t bytes, ds__smem *out) {
    int pinned = st->reach == DS__REACH_HOST;
    *out = (ds__smem){ NULL, pinned, st->leading };
    return ds__stage_temp(st, st->leading, bytes, pinned, &out->at);
}

/* Allocates memory of the leading device. */
static ds_result ds__stage_lead_buffer(ds__stage *st, size_t bytes, ds__smem *out) {
    *out = (ds__smem){ NULL, 0, st->leading };
    return ds__stage_temp(st, st->leading, bytes, 0, &out->at);
}

/* Copies a tensor to another one of the same shape, on the streams of their devices. */
static ds_result ds__stage_copy(ds__stage *st, const ds_tensor *to, size_t to_device,
                                const ds_tensor *from, size_t from_device) {
    ds_result r;
    ds_comm_options o = { .streams = &st->stream[to_device],
                          .stream_count = 1,
                          .stream = st->stream[from_device] };
    DS__KEEPING(r, (ds_comm_broadcast_into)(from, &to, 1, &o));
    return r;
}

/* Returns the tensor of one dimension at `offset` bytes of memory; size: its elements, which must
   stay. */
static ds_tensor ds__smem_flat(const ds__stage *st, ds__smem mem, size_t offset, int64_t *size) {
    ds_device device = mem.host ? (ds_device){ DS_DEVICE_HOST, 0 } : st->own[mem.device];
    return ds_tensor_of(ds__behind(mem.at, offset), device, st->call.dtype, 1, size);
}

/* Returns a tensor in memory with the shape of a tile. */
static ds_tensor ds__smem_like(const ds__stage *st, ds__smem mem, const ds__stile *tile) {
    ds_device device = mem.host ? (ds_device){ DS_DEVICE_HOST, 0 } : st->own[mem.device];
    return ds_tensor_of(mem.at, device, tile->d.dtype, tile->d.ndim,
                        (int64_t *)(uintptr_t)tile->d.shape);
}

/* Returns the memory of a tile. */
static ds__smem ds__stile_memory(const ds__stile *tile) {
    return (ds__smem){ tile->d.first, tile->d.device.type == DS_DEVICE_HOST, tile->device };
}

/* Returns 1 if the engine can use the memory. */
static int ds__stage_reaches(const ds__stage *st, ds__smem mem) {
    if (st->reach == DS__REACH_LEAD)
        return !mem.host &&
               ds__device_key(st->own[mem.device]) == ds__device_key(st->own[st->leading]);
    return st->reach == DS__REACH_ALL || mem.host;
}

/* Returns 1 if the engine can use the tensor's memory in place. */
static int ds__stile_is_direct(const ds__stage *st, const ds__stile *tile) {
    return ds__stage_reaches(st, ds__stile_memory(tile)) && (ds_tensor_is_contiguous)(&tile->t);
}

static ds__smem ds__smem_at(ds__smem mem, size_t offset) {
    return (ds__smem){ ds__behind(mem.at, offset), mem.host, mem.device };
}

/* Copies a tile to contiguous memory, unless it is there. */
static ds_result ds__stage_pack(ds__stage *st, const ds__stile *tile, ds__smem mem) {
    if (!tile->d.count || mem.at == (void *)tile->d.first)
        return DS_OK;
    ds_tensor to = ds__smem_like(st, mem, tile);
    return ds__stage_copy(st, &to, mem.device, &tile->t, tile->device);
}

/* Copies contiguous memory to a tile, unless it is there. */
static ds_result ds__stage_unpack(ds__stage *st, const ds__stile *tile, ds__smem mem) {
    if (!tile->d.count || mem.at == (void *)tile->d.first)
        return DS_OK;
    ds_tensor from = ds__smem_like(st, mem, tile);
    return ds__stage_copy(st, &tile->t, tile->device, &from, mem.device);
}

/* Gives memory of the engine with the elements of a tile: its own, or a copy. */
static ds_result ds__stage_source(ds__stage *st, const ds__stile *tile, ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (ds__stile_is_direct(st, tile))
        return DS_OK;
    ds_result r = ds__stage_buffer(st, tile->d.bytes, out);
    return r == DS_OK ? ds__stage_pack(st, tile, *out) : r;
}

/* Returns 1 if a copy from the tile's memory to a GPU may read it in the call, before the engine
   has written it: CUDA does so with pageable memory. */
static int ds__stile_is_read_early(const ds__stage *st, const ds__stile *tile) {
    ds_pointer_info info;
    ds_result r;
    if (st->g->driver->type == DS_DEVICE_CPU || tile->d.device.type != DS_DEVICE_HOST)
        return 0;
    DS__KEEPING(r, (ds_pointer_get_info)(tile->d.first, &info));
    return r < 0 || info.kind != DS_MEMORY_PINNED;
}

/* Gives memory of the engine for the elements of a tile: its own, or a buffer from which
   ds__stage_unpack copies. If the call has several outputs, all are copied from that memory. */
static ds_result ds__stage_target(ds__stage *st, const ds__stile *tile, ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (ds__stile_is_direct(st, tile) && (st->outs < 2 || !ds__stile_is_read_early(st, tile)))
        return DS_OK;
    return ds__stage_buffer(st, tile->d.bytes, out);
}

/* Copies `elements` to a buffer that the engine reaches or, with `lead`, to memory of the leading
   device, unless they are there. */
static ds_result ds__stage_move(ds__stage *st, ds__smem mem, int64_t elements, int lead,
                                ds__smem *out) {
    size_t bytes = (size_t)elements * (ds_dtype_get_size)(st->call.dtype);
    int there = lead ? !mem.host && mem.device == st->leading : ds__stage_reaches(st, mem);
    *out = mem;
    if (there || !elements)
        return DS_OK;
    ds_result r = lead ? ds__stage_lead_buffer(st, bytes, out) : ds__stage_buffer(st, bytes, out);
    if (r < 0)
        return r;
    ds_tensor to = ds__smem_flat(st, *out, 0, &elements);
    ds_tensor from = ds__smem_flat(st, mem, 0, &elements);
    return ds__stage_copy(st, &to, out->device, &from, mem.device);
}

/* Copies contiguous memory to all outputs. */
static ds_result ds__stage_spread(ds__stage *st, ds__smem mem) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->outs && r == DS_OK; i++)
        r = ds__stage_unpack(st, &st->out[i], mem);
    return r;
}

#endif
