/* alloc/snapshot_write.h - writing a snapshot as pickle or JSON.

   ds__write_snapshot writes segments, events, settings, annotations and devices in the
   structure of PyTorch's snapshots. One walk over the collected data makes the pickle or the
   JSON, so both have the same contents.

   Invariants: The loops over segments, blocks and events end once the user's writer has stopped the
   output.
   Locks: none. The user's writer is called with no lock of the allocator held.
   Threads: the thread of the snapshot call. */
#ifndef DS__ALLOC_SNAPSHOT_WRITE_H
#define DS__ALLOC_SNAPSHOT_WRITE_H

#include "../core/internal.h"
#include "types.h"
#include "history.h"
#include "snapshot_types.h"
#include "snapshot_format.h"

/* Writes the identifier of a pool: a tuple or a list of two numbers. */
static void ds__put_pool(ds__item_writer *k, uint32_t pool) {
    const uint64_t *name = k->s->pools[pool].name;
    ds__item_writer_key(k, "segment_pool_id");
    if (!k->pickle)
        ds__item_writer_byte(k, '[');
    ds__item_writer_int(k, name[0]);
    if (!k->pickle)
        ds__item_writer_byte(k, ',');
    ds__item_writer_int(k, name[1]);
    ds__item_writer_byte(k, k->pickle ? 0x86 : ']');
}

/* Writes a list with one frame, or an empty list for frame 0. */
static void ds__put_frames(ds__item_writer *k, uint32_t frame) {
    ds__item_writer_key(k, "frames");
    if (k->pickle && ds__pickle_again(k, &k->frame[frame]))
        return;
    ds__item_writer_open(k, '[');
    if (frame) {
        const ds__sframe *f = ds__snap_frame_at(k->s, frame);
        k->level[k->depth - 1].count++;
        if (k->pickle)
            ds__item_writer_byte(k, '(');
        ds__item_writer_open(k, '{');
        ds__put_text(k, "filename", f->file);
        ds__put_int(k, "line", f->line);
        ds__put_text(k, "name", f->name ? f->name : k->s->nobody);
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
    if (k->pickle && frame)
        ds__pickle_keep(k, &k->frame[frame]);
}

/* Returns a time of day in microseconds. */
static uint64_t ds__snap_us(const ds__snap *s, uint64_t time_ns) {
    return (uint64_t)((int64_t)time_ns + s->to_wall_ns) / 1000;
}

static void ds__write_block(ds__item_writer *k, const ds__sblock *b) {
    static const char *const states[] = { "inactive", "active_allocated", "active_pending_free" };
    ds__item_writer_open(k, '{');
    ds__put_int(k, "address", b->address);
    ds__put_int(k, "size", b->size);
    ds__put_int(k, "requested_size", b->asked);
    ds__put_word(k, "state", states[b->state]);
    ds__put_frames(k, b->frame);
    ds__item_writer_close(k);
}

static void ds__write_segment(ds__item_writer *k, const ds__ssegment *g) {
    ds__item_writer_open(k, '{');
    ds__put_int(k, "device", g->device);
    ds__put_int(k, "address", g->address);
    ds__put_int(k, "total_size", g->size);
    ds__put_int(k, "allocated_size", g->allocated);
    ds__put_int(k, "active_size", g->active);
    ds__put_int(k, "requested_size", g->requested);
    ds__put_int(k, "stream", g->stream);
    ds__put_word(k, "segment_type", g->kind == DS__SMALL ? "small" : "large");
    ds__put_pool(k, g->pool);
    if (k->s->pools[g->pool].label)
        ds__put_text(k, "pool_label", k->s->pools[g->pool].label);
    ds__put_bool(k, "is_expandable", (int)g->growing);
    ds__put_frames(k, 0);
    ds__put_list(k, "blocks");
    for (size_t i = 0; i < g->count && !k->out.stopped; i++) {
        ds__item_writer_item(k);
        ds__write_block(k, &k->s->blocks[g->first + i]);
    }
    ds__item_writer_close(k);
    ds__item_writer_close(k);
}

static void ds__write_event(ds__item_writer *k, const ds__history_event *e) {
    /* in the order of ds_mem_action; annotations are written elsewhere */
    static const char *const actions[] = { "alloc",         "free_requested", "free_completed",
                                           "segment_alloc", "segment_free",   "segment_map",
                                           "segment_unmap", "snapshot",       "oom" };
    ds__item_writer_open(k, '{');
    ds__put_word(k, "action", actions[e->action]);
    ds__put_int(k, e->action == DS_ACTION_OOM ? "device_free" : "addr", e->address);
    ds__put_int(k, "size", e->bytes);
    ds__put_int(k, "stream", e->stream);
    ds__put_int(k, "time_us", ds__snap_us(k->s, e->time_ns));
    if (k->s->pools[e->pool].id)
        ds__put_pool(k, (uint32_t)e->pool);
    ds__put_frames(k, e->line);
    ds__item_writer_close(k);
}

static void ds__write_settings(ds__item_writer *k) {
    const ds_mem_config *c = &k->s->config;
    const char *conf = getenv("DEVSTREAM_ALLOC_CONF");
    char clean[1024];
    int overflowed = 0;
    for (uint32_t i = 0; i < k->s->device_count; i++)
        overflowed |= k->s->devices[i].seen > k->s->devices[i].room;
    ds__item_writer_key(k, "allocator_settings");
    ds__item_writer_open(k, '{');
    ds__item_writer_key(k, "PYTORCH_CUDA_ALLOC_CONF");
    ds__utf8_copy(clean, sizeof clean, conf ? conf : "");
    ds__item_writer_string(k, clean);
    ds__put_size(k, "max_split_size", c->max_split_size);
    ds__put_real(k, "garbage_collection_threshold", c->garbage_collection_threshold);
    ds__put_bool(k, "expandable_segments", c->expandable_segments);
    ds__put_int(k, "pinned_num_register_threads", c->pinned_num_register_threads);
    ds__put_bool(k, "release_lock_on_cudamalloc", 1); /* always */
    ds__put_bool(k, "pinned_use_cuda_host_register", c->pinned_use_cuda_host_register);
    ds__put_bool(k, "graph_capture_record_stream_reuse", c->graph_capture_record_stream_reuse);
    ds__item_writer_key(k, "roundup_power2_divisions");
    ds__item_writer_open(k, '{');
    for (unsigned i = 0; i < 16; i++) { /* the keys are sizes in MiB */
        char mib[8];
        uint32_t memo = 0;
        snprintf(mib, sizeof mib, "%u", 1u << i);
        ds__item_writer_key_once(k, mib, &memo);
        ds__item_writer_int(k, c->roundup_power2_divisions[i]
                                   ? (uint64_t)1 << (c->roundup_power2_divisions[i] - 1)
                                   : (uint64_t)0);
    }
    ds__item_writer_close(k);
    ds__put_bool(k, "trace_alloc_overflowed", overflowed);
    ds__put_int(k, "trace_alloc_max_entries", k->s->entries);
    ds__put_size(k, "max_round_threshold", c->pinned_max_round_threshold);
    ds__put_size(k, "max_cached_size", c->pinned_max_cached_size);
    ds__item_writer_close(k);
}

static void ds__write_name(ds__item_writer *k, ds_device device) {
    char name[DS_DEVICE_NAME_SIZE];
    snprintf(name, sizeof name, "%s:%d", ds__type_name(device.type), (int)device.index);
    ds__item_writer_string(k, name);
}

static void ds__write_devices(ds__item_writer *k) {
    ds__put_list(k, "devices");
    for (uint32_t i = 0; i < k->s->device_count; i++) {
        const ds__sdevice *d = &k->s->devices[i];
        ds__item_writer_item(k);
        ds__item_writer_open(k, '{');
        ds__item_writer_key(k, "name");
        ds__write_name(k, d->device);
        ds__put_int(k, "total_memory", d->total);
        ds__put_int(k, "limit", d->limit);
        ds__put_int(k, "history_entries", d->room);
        ds__put_int(k, "history_events", d->seen);
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
}

static void ds__write_annotations(ds__item_writer *k) {
    ds__put_list(k, "external_annotations");
    for (uint32_t d = 0; d < k->s->device_count; d++)
        for (size_t i = 0; i < k->s->devices[d].count && !k->out.stopped; i++) {
            const ds__history_event *e = &k->s->devices[d].events[i];
            if (e->action != DS_ACTION_ANNOTATION)
                continue;
            ds__item_writer_item(k);
            ds__item_writer_open(k, '{');
            ds__put_int(k, "device", d);
            ds__put_int(k, "time_us", ds__snap_us(k->s, e->time_ns));
            ds__put_text(k, "name", e->line);
            ds__item_writer_close(k);
        }
    ds__item_writer_close(k);
}

/* Writes the snapshot as pickle or JSON. */
static void ds__write_snapshot(ds__item_writer *k) {
    const ds__snap *s = k->s;
    if (k->pickle)
        ds__snapshot_opcode_write(k, 0x80, 2, 1);
    ds__item_writer_open(k, '{');
    ds__put_list(k, "segments");
    for (size_t i = 0; i < s->segment_count && !k->out.stopped; i++) {
        ds__item_writer_item(k);
        ds__write_segment(k, &s->segments[i]);
    }
    ds__item_writer_close(k);
    ds__put_list(k, "device_traces");
    for (uint32_t d = 0; d < s->device_count; d++) {
        ds__item_writer_item(k);
        ds__item_writer_open(k, '[');
        for (size_t i = 0; i < s->devices[d].count && !k->out.stopped; i++) {
            if (s->devices[d].events[i].action == DS_ACTION_ANNOTATION)
                continue;
            ds__item_writer_item(k);
            ds__write_event(k, &s->devices[d].events[i]);
        }
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
    ds__write_settings(k);
    ds__write_annotations(k);
    ds__write_devices(k);
    ds__put_int(k, "time_us", ds__snap_us(s, s->time_ns));
    ds__item_writer_close(k);
    ds__item_writer_plain(k, k->pickle ? "." : "\n");
}

#endif
