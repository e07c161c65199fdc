/* topology/measure.h - measured rates of pairs of devices.

   ds__measure_probe measures each pair of a list by short copies and keeps the results in a table
   of the process (ds__measured). ds__measured_find looks up a pair in either direction.

   Invariants: a pair in the table is not measured again before ds_shutdown. After 150 ms no
   further pair is measured, and the missing pairs keep the rates of the link kinds. Rates are
   whole bytes per second, so the text form keeps them exactly. `both` is 0 if copies in both
   directions at once were not measured or not slower.
   Locks: ds__c.lock protects the table. No driver call runs under that lock. ds__measures_end
   takes no lock.
   Threads: caller's threads, which wait for the copies. Two threads may measure the same pair at
   the same time; the older entry counts then. ds__measures_end runs in ds_shutdown only. */
#ifndef DS__TOPOLOGY_MEASURE_H
#define DS__TOPOLOGY_MEASURE_H

#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/types.h"
#include "types.h"

#define DS__PROBE_BYTES ((size_t)2 << 20)

/* Measured values of two devices; [0] is from the first to the second, [1] back. */
typedef struct ds__measured {
    ds_device device[2];
    double push[2];
    double pull[2];
    double both;          /* 0: as fast as one after the other */
    uint64_t least_ns[2]; /* of a copy of 64 bytes, with the wait for it */
} ds__measured;

/* The table of this process; ds__c.lock protects all three. */
static ds__measured *ds__measures;
static size_t ds__measure_count, ds__measure_room;

/* Looks up a pair in either direction. Returns 1 if the pair was measured. */
static int ds__measured_find(ds_device from, ds_device to, ds__measured *out) {
    int found = 0;
    ds__spinlock_lock(&ds__c.lock);
    for (size_t i = 0; i < ds__measure_count && !found; i++)
        for (int back = 0; back < 2 && !found; back++) {
            const ds__measured *m = &ds__measures[i];
            if (memcmp(&m->device[back], &from, sizeof from) != 0 ||
                memcmp(&m->device[!back], &to, sizeof to) != 0)
                continue;
            *out = (ds__measured){ { from, to },
                                   { m->push[back], m->push[!back] },
                                   { m->pull[back], m->pull[!back] },
                                   m->both,
                                   { m->least_ns[back], m->least_ns[!back] } };
            found = 1;
        }
    ds__spinlock_unlock(&ds__c.lock);
    return found;
}

static void ds__measures_end(void) {
    ds__host_free(ds__measures);
    ds__measures = NULL;
    ds__measure_count = ds__measure_room = 0;
}

static const ds__module ds__topology_module = { .shutdown = ds__measures_end };

/* Measures the nanoseconds of one or two simultaneous copies and the wait for them: the shortest of
   three times. */
static ds_result ds__probe_copies(int copies, void *const *dst, void *const *src, size_t bytes,
                                  const ds_stream *stream, uint64_t *out_ns) {
    ds_result r = DS_OK;
    *out_ns = UINT64_MAX;
    for (int i = 0; i < 3 && r == DS_OK; i++) {
        uint64_t begin = ds__now_ns();
        uint64_t ns;
        for (int n = 0; n < copies && r == DS_OK; n++)
            DS__KEEPING(r, (ds_copy)(dst[n], src[n], bytes, stream[n]));
        for (int n = 0; n < copies && r == DS_OK; n++)
            DS__KEEPING(r, (ds_stream_synchronize)(stream[n]));
        ns = ds__now_ns() - begin;
        if (ns < *out_ns)
            *out_ns = ns;
    }
    return r;
}

/* Returns the rate in whole bytes per second, which the text form keeps. `little` is the time of 64
   bytes, which is not part of the transfer. */
static double ds__probe_rate(size_t bytes, uint64_t whole, uint64_t little) {
    uint64_t ns = whole > little ? whole - little : 0;
    uint64_t least = bytes / 10000; /* 10 TB/s: more is noise */
    return (double)(uint64_t)((double)bytes * 1e9 / (double)(ns > least ? ns : least));
}

/* Streams and memory of the devices that are measured. */
typedef struct ds__probes {
    const ds_device *device;
    size_t count;
    ds_stream *stream;
    void **memory; /* of each device: DS__PROBE_BYTES to read, then as many to write */
} ds__probes;

/* Adds measured values to the table. */
static ds_result ds__measured_add(const ds__measured *m) {
    ds__spinlock_lock(&ds__c.lock);
    ds__measured *one =
        ds__array_add(&ds__measures, ds__measure_count, &ds__measure_room, sizeof *one);
    if (one) {
        *one = *m;
        ds__measure_count++;
        ds__module_add(DS__MODULE_TOPOLOGY, &ds__topology_module);
    }
    ds__spinlock_unlock(&ds__c.lock);
    return one ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Measures two devices: copies on the stream of the source (push) and of the destination (pull), in
   each direction, then in both directions at once. */
static ds_result ds__probe_pair(const ds__probes *p, size_t a, size_t b) {
    ds__measured m = {
        { p->device[a], p->device[b] }, { 0, 0 }, { 0, 0 }, 0, { UINT64_MAX, UINT64_MAX }
    };
    ds_stream on[2] = { p->stream[a], p->stream[b] };
    void *src[2] = { p->memory[a], p->memory[b] };
    void *dst[2] = { (char *)p->memory[b] + DS__PROBE_BYTES,
                     (char *)p->memory[a] + DS__PROBE_BYTES };
    uint64_t whole = 0;
    uint64_t little = 0;
    uint64_t shortest = UINT64_MAX;
    ds_result r = DS_OK;
    for (int way = 0; way < 2; way++)
        for (int pull = 0; pull < 2 && r == DS_OK; pull++) {
            r = ds__probe_copies(1, &dst[way], &src[way], DS__PROBE_BYTES, &on[way ^ pull], &whole);
            if (r == DS_OK)
                r = ds__probe_copies(1, &dst[way], &src[way], 64, &on[way ^ pull], &little);
            *(pull ? &m.pull[way] : &m.push[way]) = ds__probe_rate(DS__PROBE_BYTES, whole, little);
            if (little < m.least_ns[way])
                m.least_ns[way] = little;
            if (whole < shortest)
                shortest = whole;
        }
    /* In a shorter time the second copy begins too late for a result. Links that carry one
       direction at a time are slower than that. */
    if (r == DS_OK && shortest > 50000) {
        double alone = m.push[0] + m.push[1];
        r = ds__probe_copies(2, dst, src, DS__PROBE_BYTES, on, &whole);
        m.both = ds__probe_rate(2 * DS__PROBE_BYTES, whole, little);
        if (m.both > alone * 0.9)
            m.both = 0;
    }
    return r == DS_OK ? ds__measured_add(&m) : r;
}

/* Creates a stream and memory for each device. */
static ds_result ds__probes_init(ds__probes *p, const ds_device *device, size_t count) {
    *p = (ds__probes){ device, count, NULL, NULL };
    p->stream = ds__host_alloc(count * sizeof *p->stream);
    p->memory = ds__host_alloc(count * sizeof *p->memory);
    if (!p->stream || !p->memory)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to measure %zu devices", count);
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_stream_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.device = device[i];
        DS__KEEPING(r, (ds_stream_create)(&desc, &p->stream[i]));
        if (r == DS_OK)
            DS__KEEPING(r, (ds_mem_alloc)(2 * DS__PROBE_BYTES, p->stream[i], &p->memory[i]));
    }
    return r;
}

/* Frees streams and memory; returns the first error. */
static ds_result ds__probes_deinit(ds__probes *p) {
    ds_result end = DS_OK;
    for (size_t i = 0; p->stream && p->memory && i < p->count; i++) {
        ds_result one = DS_OK;
        if (p->memory[i])
            DS__KEEPING(one, (ds_mem_free)(p->memory[i]));
        if (end == DS_OK)
            end = one;
        if (p->stream[i].id)
            DS__KEEPING(one, (ds_stream_destroy)(p->stream[i]));
        if (end == DS_OK)
            end = one;
    }
    ds__host_free(p->stream);
    ds__host_free(p->memory);
    return end;
}

/* Measures the pairs that are not in the table, for 150 ms. Neighbours of the list come first. */
static ds_result ds__probes_run(const ds__probes *p) {
    uint64_t begin = ds__now_ns();
    ds_result r = DS_OK;
    for (size_t turn = 1; turn <= p->count / 2; turn++)
        for (size_t i = 0; i < p->count && r == DS_OK; i++) {
            ds__measured known;
            size_t k = (i + turn) % p->count;
            if (memcmp(&p->device[i], &p->device[k], sizeof *p->device) == 0 ||
                ds__measured_find(p->device[i], p->device[k], &known))
                continue;
            if (ds__now_ns() - begin > 150000000u)
                return DS_OK;
            r = ds__probe_pair(p, i, k);
        }
    return r;
}

/* Measures the pairs of a list that were not measured before. The first use of a device, which
   takes long, is not part of the 150 ms. */
static ds_result ds__measure_probe(const ds_device *device, size_t count) {
    ds__probes p;
    ds_result r = ds__probes_init(&p, device, count);
    if (r == DS_OK)
        r = ds__probes_run(&p);
    ds__tls.mute += r < 0;
    ds_result end = ds__probes_deinit(&p);
    ds__tls.mute -= r < 0;
    return r < 0 ? r : end;
}

#endif
