/* trace/run.h - start and end of a trace.

   ds__trace_begin starts the recording of activity and opens the file. Ten times in a second the
   thread of the recordings (ds__trace_tick) writes new records, writes the dump that a signal has
   asked for, and reports calls that block longer than the time-out. ds__trace_finish ends the
   trace.

   Invariants: while `on` is 1, the ring exists. The ring and the tables stay after the end, until
   the next begin or the end of the layer.
   Locks: `control` is held by ds__trace_begin and ds__trace_finish.
   Threads: any start and end. ds__trace_tick runs on the thread of the recordings. */
#ifndef DS__TRACE_RUN_H
#define DS__TRACE_RUN_H

#include "../os/signal.h"
#include "options.h"

static struct {
    int number; /* 0: none */
    ds__os_handler former;
} ds__trace_signal;

/* The handler of the signal: only asks the thread of the recordings. */
static void ds__trace_signalled(int number) {
    int error = errno;
    ds__os_handler former;
    (void)ds__os_signal_set(number, ds__trace_signalled, &former);
    atomic_store(&ds__trace.signalled, 1);
    ds__activity_urge();
    errno = error;
}

/* Prints where the streams stand, because of a call that blocks. */
static void ds__trace_report(const char *fn, ds_site site, uint64_t took) {
    ds__trace_output o;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    if (site.file)
        ds__trace_print(&o, "devstream: trace: %.80s at %.200s:%d has waited for %.3f ms\n", fn,
                        site.file, site.line, (double)took / 1e6);
    else
        ds__trace_print(&o, "devstream: trace: %.80s has waited for %.3f ms\n", fn,
                        (double)took / 1e6);
    ds__trace_standing_write(&o);
    fwrite(o.text, 1, o.size, stderr);
    ds__trace_output_deinit(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
}

/* Reports each call that blocks longer than the time-out, once. Returns 1 if there was one. */
static int ds__trace_waiting_check(void) {
    int reported = 0;
    uint64_t limit = ds__trace.desc.timeout_ns;
    for (int found = limit != 0; found;) {
        ds__trace_waiting one = { .fn = NULL };
        uint64_t now = ds__now_ns();
        found = 0;
        ds__mutex_lock(&ds__trace.lock);
        for (ds__trace_waiting *w = ds__trace.waiting; w && !found; w = w->next)
            if (!w->reported && now - w->begin >= limit) {
                w->reported = found = 1;
                one = *w;
            }
        ds__mutex_unlock(&ds__trace.lock);
        if (found)
            ds__trace_report(one.fn ? one.fn : "a call", one.site, now - one.begin);
        reported |= found;
    }
    return reported;
}

/* The callback of the recording. */
static void ds__trace_tick(const ds_activity_batch *batch, void *unused) {
    (void)unused;
    ds__trace_take(batch);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_pump(&ds__trace.output);
    ds__mutex_unlock(&ds__trace.file_lock);
    int dumps = atomic_exchange(&ds__trace.signalled, 0);
    dumps |= ds__trace_waiting_check();
    if (dumps && ds__trace.desc.dump && ds__trace_dump_write(ds__trace.desc.dump) < 0)
        ds__log_warn("%s", ds__tls.error);
}

/* Frees what a trace has, except for the streams. */
static void ds__trace_release(void) {
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_output_fclose(&ds__trace.output);
    ds__trace_output_deinit(&ds__trace.output);
    ds__trace_view_deinit();
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_record *ring = ds__trace.ring;
    uint64_t *place = ds__trace.place;
    ds__trace.ring = NULL;
    ds__trace.place = NULL;
    ds__trace.head = ds__trace.ring_size = 0;
    ds__trace_tables_deinit();
    ds__mutex_unlock(&ds__trace.lock);
    ds__mutex_unlock(&ds__trace.file_lock);
    ds__host_free(ring);
    ds__host_free(place);
}

/* Allocates the ring, with a power of two of records, and sets everything to the beginning. */
static ds_result ds__trace_prepare(const ds_trace_desc *desc) {
    size_t wanted = desc->ring ? desc->ring : DS__TRACE_RING;
    size_t size = DS__TRACE_RING_LEAST;
    while (size < wanted)
        size *= 2;
    ds__trace_record *ring = ds__host_alloc(size * sizeof *ring);
    uint64_t *place = ds__host_alloc(size * sizeof *place);
    ds__mutex_lock(&ds__trace.lock);
    int ready = ring && place && ds__trace_tables_init();
    ds__trace.ring = ring;
    ds__trace.place = place;
    ds__trace.ring_size = size;
    ds__trace.has_file = desc->file != NULL;
    ds__trace.dropped = ds__trace.operations = ds__trace.untimed = 0;
    ds__trace.waits = 0;
    ds__trace.end_ns = 0;
    memset(ds__trace.open, 0, sizeof ds__trace.open);
    ds__trace.zero_ns = ds__now_ns();
    ds__trace.unix_ns = (uint64_t)ds__os_wall_ns();
    atomic_fetch_add(&ds__trace.epoch, 1);
    ds__mutex_unlock(&ds__trace.lock);
    return ready ? DS_OK
                 : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a ring of %zu records", size);
}

/* Keeps the parameters with copies of their texts. */
static void ds__trace_desc_keep(const ds_trace_desc *desc) {
    ds__trace.desc = *desc;
    if (desc->dump)
        snprintf(ds__trace.dump, sizeof ds__trace.dump, "%s", desc->dump);
    ds__trace.desc.dump = desc->dump ? ds__trace.dump : NULL;
    ds__trace.desc.file = NULL; /* the output has it */
}

static ds_result ds__trace_signal_set(int number) {
    ds__trace_signal.number = 0;
    int error =
        number ? ds__os_signal_set(number, ds__trace_signalled, &ds__trace_signal.former) : 0;
    if (error)
        return ds__fail(DS_ERR_INVALID_VALUE, "trace: no handler for signal %d: %s", number,
                        strerror(error));
    ds__trace_signal.number = number;
    return DS_OK;
}

static void ds__trace_signal_end(void) {
    ds__os_handler own;
    if (ds__trace_signal.number)
        (void)ds__os_signal_set(ds__trace_signal.number, ds__trace_signal.former, &own);
    ds__trace_signal.number = 0;
}

/* Starts a trace with parameters that were checked. `control` is held. */
static ds_result ds__trace_begin(const ds_trace_desc *desc) {
    ds_activity_desc activity = { .fn = ds__trace_tick, .capacity = DS__TRACE_ACTIVITIES };
    ds__trace_release(); /* of the trace before */
    ds_result r = ds__trace_prepare(desc);
    ds__trace_desc_keep(desc);
    if (r == DS_OK && desc->file) {
        ds__mutex_lock(&ds__trace.file_lock);
        r = ds__trace_output_open(&ds__trace.output, desc->file);
        ds__mutex_unlock(&ds__trace.file_lock);
    }
    if (r == DS_OK)
        r = ds__trace_signal_set(desc->signal);
    if (r == DS_OK)
        r = ds__activity_client_start(DS__ACTIVITY_TRACE, &activity, desc->cupti);
    if (r < 0) {
        ds__trace_signal_end();
        ds__trace_release();
        return r;
    }
    atomic_store(&ds__trace.on, 1);
    return DS_OK;
}

/* Completes the file of a trace whose recording has ended. */
static void ds__trace_complete(void) {
    ds__mutex_lock(&ds__trace.file_lock);
    ds__mutex_lock(&ds__trace.lock);
    atomic_store(&ds__trace.on, 0);
    ds__trace.end_ns = ds__trace_now();
    ds__mutex_unlock(&ds__trace.lock);
    ds__trace_signal_end();
    ds__trace_pump(&ds__trace.output);
    ds__trace_output_close(&ds__trace.output, ds__trace.end_ns);
    ds__mutex_unlock(&ds__trace.file_lock);
}

/* Ends the trace. `control` is held. */
static ds_result ds__trace_finish(void) {
    ds_result r = ds__activity_client_stop(DS__ACTIVITY_TRACE);
    if (r == DS_OK)
        ds__trace_complete();
    return r;
}

#endif
