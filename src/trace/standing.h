/* trace/standing.h - where streams stand.

   Asks the drivers for the operation at which each stream with pending work stands
   (ds__trace_standing_list), and writes the list as text.

   Invariants: the list is of one moment for each stream, not for all streams at once.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken.
   Threads: any. */
#ifndef DS__TRACE_STANDING_H
#define DS__TRACE_STANDING_H

#include "summary.h"

enum { DS__TRACE_STANDING = 256 }; /* streams in a list */

/* Lists the operations. Returns their number. */
static size_t ds__trace_standing_list(ds__activity_standing *list) {
    size_t count = 0;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__trace.next[b])
            count += ds__trace.next[b]->activity_standing(list + count, DS__TRACE_STANDING - count);
    return count;
}

/* Makes a record of an operation that is not complete. */
static ds__trace_record ds__trace_standing_record(const ds__activity_standing *s) {
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_record r = ds__trace_record_of(&s->record);
    ds__mutex_unlock(&ds__trace.lock);
    r.end = ds__trace_now();
    if (!s->record.begin_ns)
        r.begin = r.end;
    r.flags |= DS__TRACE_OPEN;
    return r;
}

/* Writes one line for each stream that stands. Without memory, the output has failed. */
static void ds__trace_standing_write(ds__trace_output *o) {
    ds__activity_standing *list = ds__host_alloc(DS__TRACE_STANDING * sizeof *list);
    if (!list) {
        o->failed = 1;
        return;
    }
    size_t count = ds__trace_standing_list(list);
    if (!count)
        ds__trace_print(o, "no stream has pending operations with a record\n");
    for (size_t i = 0; i < count; i++) {
        ds__trace_record r = ds__trace_standing_record(&list[i]);
        if (!ds__trace_view_update())
            o->failed = 1;
        ds__trace_put_stream(o, r.row);
        ds__trace_print(o, " stands at %s of ", ds__activity_kind_name(list[i].record.kind));
        ds__trace_put_site(o, r.call, r.file, r.line);
        if (r.name)
            ds__trace_print(o, " (%.100s)", ds__trace_view_text(r.name));
        if (list[i].record.begin_ns)
            ds__trace_print(o, ", since %.3f ms", (double)(r.end - r.begin) / 1e6);
        if (list[i].on) {
            ds__mutex_lock(&ds__trace.lock);
            uint32_t row = ds__trace_stream_of(list[i].on, 0, 0);
            ds__mutex_unlock(&ds__trace.lock);
            if (!ds__trace_view_update())
                o->failed = 1;
            ds__trace_print(o, ", and waits for ");
            ds__trace_put_stream(o, row);
        }
        ds__trace_print(o, "\n");
    }
    ds__host_free(list);
}

#endif
