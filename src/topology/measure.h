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

/* What was measured of two devices; [0] is from the first to the second, [1] back. */
typedef struct ds__measured {
    ds_device device[2];
    double push[2];
    double pull[2];
    double both;          /* 0: as fast as one after the other */
    uint64_t least_ns[2]; /* of a little copy, with the wait for it */
} ds__measured;

static ds__measured *ds__measures; /* of this process; under ds__c.lock, as what follows */
static size_t ds__measure_count, ds__measure_room;

static int ds__measured_find(ds_device from, ds_device to, ds__measured *out) {
    int found = 0;
    ds__lock_take(&ds__c.lock);
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
    ds__lock_give(&ds__c.lock);
    return found;
}

static void ds__measures_end(void) {
    ds__host_free(ds__measures);
    ds__measures = NULL;
    ds__measure_count = ds__measure_room = 0;
}

static const ds__module ds__topology_module = { .shutdown = ds__measures_end };

/* Nanoseconds of one or two copies at once and the wait for them, the shortest of three. */
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

/* Whole bytes per second, so that a text says the same. */
static double ds__probe_rate(size_t bytes, uint64_t whole, uint64_t little) {
    uint64_t ns = whole > little ? whole - little : 0;
    uint64_t least = bytes / 10000; /* 10 TB/s: more is noise */
    return (double)(uint64_t)((double)bytes * 1e9 / (double)(ns > least ? ns : least));
}

/* Two devices: copies on the stream of the source (push) and of the destination (pull), in each
   direction, then in both at once. */
static ds_result ds__probe_pair(const ds_device *device, const ds_stream *stream,
                                void *const *memory, size_t a, size_t b) {
    ds__measured m = {
        { device[a], device[b] }, { 0, 0 }, { 0, 0 }, 0, { UINT64_MAX, UINT64_MAX }
    };
    ds_stream on[2] = { stream[a], stream[b] };
    void *src[2] = { memory[a], memory[b] };
    void *dst[2] = { (char *)memory[b] + DS__PROBE_BYTES, (char *)memory[a] + DS__PROBE_BYTES };
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
    /* else the second copy begins too late to tell, and no such link is only one way at a time */
    if (r == DS_OK && shortest > 50000) {
        double alone = m.push[0] + m.push[1];
        r = ds__probe_copies(2, dst, src, DS__PROBE_BYTES, on, &whole);
        m.both = ds__probe_rate(2 * DS__PROBE_BYTES, whole, little);
        if (m.both > alone * 0.9)
            m.both = 0;
    }
    if (r < 0)
        return r;
    ds__lock_take(&ds__c.lock);
    ds__measured *one =
        ds__array_grow(&ds__measures, ds__measure_count, &ds__measure_room, sizeof *one);
    if (one) {
        *one = m;
        ds__measure_count++;
        ds__module_start(DS__MODULE_TOPOLOGY, &ds__topology_module);
    }
    ds__lock_give(&ds__c.lock);
    return one ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Pairs that were not measured before; what 150 ms do not suffice for stays as the table has it. */
static ds_result ds__measure_probe(const ds_device *device, size_t count) {
    ds_stream *stream = ds__host_alloc(count * sizeof *stream);
    void **memory = ds__host_alloc(count * sizeof *memory);
    ds_result r = stream && memory
                      ? DS_OK
                      : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to measure %zu devices", count);
    ds_result end = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_stream_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.device = device[i];
        DS__KEEPING(r, (ds_stream_create)(&desc, &stream[i]));
        if (r == DS_OK)
            DS__KEEPING(r, (ds_mem_alloc)(2 * DS__PROBE_BYTES, stream[i], &memory[i]));
    }
    /* a device that is used for the first time has taken longer than that */
    uint64_t begin = ds__now_ns();
    for (size_t turn = 1; turn <= count / 2 && r == DS_OK; turn++)
        for (size_t i = 0; i < count && r == DS_OK; i++) {
            ds__measured known;
            size_t k = (i + turn) % count;
            if (memcmp(&device[i], &device[k], sizeof *device) == 0 ||
                ds__measured_find(device[i], device[k], &known) ||
                ds__now_ns() - begin > 150000000u)
                continue;
            r = ds__probe_pair(device, stream, memory, i, k);
        }
    ds__tls.mute += r < 0;
    for (size_t i = 0; stream && memory && i < count; i++) {
        ds_result one = DS_OK;
        if (memory[i])
            DS__KEEPING(one, (ds_mem_free)(memory[i]));
        if (end == DS_OK)
            end = one;
        if (stream[i].id)
            DS__KEEPING(one, (ds_stream_destroy)(stream[i]));
        if (end == DS_OK)
            end = one;
    }
    ds__tls.mute -= r < 0;
    ds__host_free(stream);
    ds__host_free(memory);
    return r < 0 ? r : end;
}

#endif
