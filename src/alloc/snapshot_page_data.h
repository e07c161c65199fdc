/* alloc/snapshot_page_data.h - data of the HTML page of a snapshot.

   ds__page_data writes the collected snapshot in a short JSON form for the HTML page: flat
   lists of numbers, with frames and texts by number. The code of the page (snapshot_page.html)
   reads it.

   Invariants: The order of the numbers in each list is a contract with snapshot_page.html;
   comments beside the lists state it. Times of events are differences in nanoseconds and never
   negative. Quoted texts contain no `<`, so they cannot end the page's script element.
   Locks: none. The user's writer is called with no lock of the allocator held.
   Threads: the thread of the snapshot call. */
#ifndef DS__ALLOC_SNAPSHOT_PAGE_DATA_H
#define DS__ALLOC_SNAPSHOT_PAGE_DATA_H

#include "types.h"
#include "snapshot_types.h"
#include "snapshot_format.h"
#include "snapshot_write.h"

/* Writes numbers of a list, with a comma in front unless they are the first ones. */
static void ds__page_numbers(ds__item_writer *k, const uint64_t *n, size_t count, int first) {
    for (size_t i = 0; i < count; i++) {
        if (i || !first)
            ds__item_writer_byte(k, ',');
        ds__item_writer_number(k, n[i]);
    }
}

/* Writes a member: its name, with the comma and the colon, and a number. */
static void ds__page_member(ds__item_writer *k, const char *name, uint64_t n) {
    ds__item_writer_plain(k, name);
    ds__item_writer_number(k, n);
}

/* Writes the texts, frames and pools. */
static void ds__page_names(ds__item_writer *k) {
    const ds__snap *s = k->s;
    ds__item_writer_plain(k, ",\"texts\":[\"\"");
    for (uint32_t i = 1; i <= s->texts.count; i++) {
        ds__item_writer_byte(k, ',');
        ds__item_writer_quoted(k, ds__snap_string(s, i));
    }
    ds__item_writer_plain(k, "],\n\"frames\":[0,0,0"); /* file, line, label */
    for (uint32_t i = 1; i <= s->frames.count; i++) {
        const ds__sframe *f = ds__snap_frame_at(s, i);
        ds__page_numbers(k, (uint64_t[]){ f->file, f->line, f->name }, 3, 0);
    }
    ds__item_writer_plain(k, "],\n\"pools\":["); /* id, label */
    for (size_t i = 0; i < s->pool_count; i++)
        ds__page_numbers(
            k, (uint64_t[]){ s->pools[i].name[0], s->pools[i].name[1], s->pools[i].label }, 3, !i);
    ds__item_writer_byte(k, ']');
}

/* Writes a device with its events. */
static void ds__page_device(ds__item_writer *k, const ds__sdevice *v) {
    uint64_t start = v->count ? v->events[0].time_ns : 0;
    uint64_t last = start;
    ds__item_writer_plain(k, "\n{\"name\":");
    ds__write_name(k, v->device);
    ds__page_member(k, ",\"total\":", v->total);
    ds__page_member(k, ",\"limit\":", v->limit);
    ds__page_member(k, ",\"seen\":", v->seen);
    ds__page_member(k, ",\"start\":", v->count ? ds__snap_us(k->s, start) : 0);
    /* action, address, size, frame or text, ns since the event before */
    ds__item_writer_plain(k, ",\"events\":[");
    for (size_t i = 0; i < v->count && !k->out.stopped; i++) {
        const ds__history_event *e = &v->events[i];
        ds__page_numbers(k,
                         (uint64_t[]){ e->action, e->address, e->bytes, e->line,
                                       e->time_ns > last ? e->time_ns - last : 0 },
                         5, !i);
        if (e->time_ns > last)
            last = e->time_ns;
    }
    ds__item_writer_plain(k, "]}");
}

/* Writes the data of the page: flat lists of numbers, with frames and texts by number. */
static void ds__page_data(ds__item_writer *k) {
    const ds__snap *s = k->s;
    ds__page_member(k, "{\"time\":", ds__snap_us(s, s->time_ns));
    ds__page_names(k);
    /* device, address, size, stream, small or large, growing, pool, first block, blocks */
    ds__item_writer_plain(k, ",\n\"segments\":[");
    for (size_t i = 0; i < s->segment_count && !k->out.stopped; i++) {
        const ds__ssegment *g = &s->segments[i];
        ds__page_numbers(k,
                         (uint64_t[]){ g->device, g->address, g->size, g->stream, g->kind,
                                       g->growing, g->pool, g->first, g->count },
                         9, !i);
    }
    ds__item_writer_plain(k, "],\n\"blocks\":["); /* size, requested size, state, frame */
    for (size_t i = 0; i < s->block_count && !k->out.stopped; i++)
        ds__page_numbers(k,
                         (uint64_t[]){ s->blocks[i].size, s->blocks[i].asked, s->blocks[i].state,
                                       s->blocks[i].frame },
                         4, !i);
    ds__item_writer_plain(k, "],\n\"devices\":[");
    for (uint32_t d = 0; d < s->device_count; d++) {
        if (d)
            ds__item_writer_byte(k, ',');
        ds__page_device(k, &s->devices[d]);
    }
    ds__item_writer_plain(k, "]}");
}

#endif
