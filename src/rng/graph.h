/* rng/graph.h - fills in graphs.

   Lets graphs draw numbers from a generator. ds__rng_graph_attach creates the object for the fills
   of one capture, or reuses an idle one of the device. ds__rng_launch is invoked before and
   after each launch of the graph: it writes seed and offset into the object's device memory and
   moves the generator. ds__rng_graph_release makes the object idle.

   Invariants: after a launch the event `read` is recorded, and the next launch waits for it
   before it writes the state. If the record fails, `lost` names the stream and the next launch
   repeats the record or waits for the device. A failed launch takes its words back, unless
   another fill has drawn since.
   Locks: the caller holds the executable's lock, and `launching` of the launch's objects over the
   submit. ds__rng_launch holds the generator's lock over its own driver calls; ds__rng_find may
   wait for the device there. ds__rng_graph_attach is called with the locks of generator and graph,
   and may allocate device memory under them. ds__rng.lock comes last.
   Threads: threads that launch or capture. ds__rng_graph_release runs on any thread, also of the
   library, and must not call devstream. */
#ifndef DS__RNG_GRAPH_H
#define DS__RNG_GRAPH_H

#include "../core/internal.h"
#include "kernel_arith.h"
#include "kernel.h"
#include "generator.h"
#include "fill_types.h"

/* Checks that so many words are left of the sequence. Both numbers are below 2^63: a fill takes at
   most 2^61 words, and this function has checked the sum of the fills of a graph. */
static ds_result ds__rng_room(uint64_t offset, uint64_t taken) {
    DS__REQUIRE((offset + taken) >> 63 == 0,
                "offset %llu and %llu more words exceed 2^63; seed the generator",
                (unsigned long long)offset, (unsigned long long)taken);
    return DS_OK;
}

/* Returns 1 if the last launch failed. A failed launch does not read any more, and a wait for its
   event would fail even after the device is reset. */
static int ds__rng_read_failed(ds_event read) {
    ds__event *e = ds__pin(&ds__g.events, read.id);
    void *native = e ? atomic_load_explicit(&e->native, memory_order_acquire) : NULL;
    int failed = native && e->driver->event_query(native) == DS_ERR_FAILED;
    if (e)
        ds__event_unpin(e);
    return failed;
}

/* Records the end of a launch on a pinned stream, whose handle may be stale. If the record fails,
   u->lost names the stream. */
static ds_result ds__rng_record(ds__rng_graph *u, ds__stream *s) {
    ds__event *e = ds__event_pin(u->read);
    ds_result r =
        e ? ds__event_record_on(e, s, DS__OP_RECORD | DS__OP_OUTSIDE << 8) : DS_ERR_INVALID_HANDLE;
    if (e)
        ds__event_unpin(e);
    u->lost.id = r == DS_OK ? 0 : ds__handle_of(&s->slot);
    if (r == DS_OK)
        u->launched = 1;
    return r;
}

/* Repeats a record that failed, so that a stream can wait for the launch. If its stream is gone,
   the host waits for the device. */
static ds_result ds__rng_find(ds__rng_graph *u, const ds__stream *s) {
    ds__stream *lost = ds__pin(&ds__g.streams, u->lost.id);
    ds_result r;
    if (lost) {
        r = ds__rng_record(u, lost);
        ds__stream_unpin(lost);
        if (r == DS__CHANGED)
            r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                         "the launch must wait for an earlier launch, whose stream captures");
        return r;
    }
    if (ds__captures_open())
        return ds__fail(
            DS_ERR_CAPTURE_UNSUPPORTED,
            "the host must wait for an earlier launch of the graph, but a capture is open");
    r = ds__device_error(u->device, s->driver->device_synchronize(u->device.index));
    if (r == DS_OK) {
        u->lost.id = 0;
        u->launched = 0;
    }
    return r;
}

static ds_result ds__rng_captures(void) {
    return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "a graph with random fills cannot be launched on a "
                                                "stream that captures; add it as a child graph");
}

/* Refuses a stream that captures, or that is of another device than the fills. */
static ds_result ds__rng_launch_check(const ds__rng_graph *u, ds__stream *s) {
    ds_capture_info info;
    memset(&info, 0, sizeof info);
    if (ds__captures_open()) {
        ds_result r = s->driver->capture_query(s->native, &info);
        if (r < 0)
            return r;
    }
    if (info.status != DS_CAPTURE_NONE)
        return ds__rng_captures();
    if (s->device.index != u->device.index) /* ds_graph_launch has compared the drivers */
        return ds__fail(
            DS_ERR_DEVICE_MISMATCH,
            "the graph has random fills of %s:%d and cannot be launched on a stream of %s:%d",
            ds__type_name(u->device.type), u->device.index, ds__type_name(s->device.type),
            s->device.index);
    return DS_OK;
}

/* Enqueues the kernel that writes seed and offset for the fills, after a wait for the last launch,
   which may still read them. The generator's lock is held. */
static ds_result ds__rng_launch_write(ds__rng_graph *u, ds__stream *s) {
    const ds__generator *g = u->generator;
    ds_stream stream = { ds__handle_of(&s->slot) };
    ds__rng_args a = { .out = u->state };
    ds_kernel kernel;
    a.seed = g->seed;
    a.start = g->offset;
    ds_result r = ds__rng_kernel(DS__RNG_STATE, &kernel);
    if (r == DS_OK)
        r = ds__rng_room(g->offset, u->taken);
    if (r == DS_OK && u->lost.id)
        r = ds__rng_find(u, s);
    if (r == DS_OK && u->launched && ds__rng_read_failed(u->read))
        u->launched = 0;
    if (r == DS_OK && u->launched)
        r = ds__wait_event(stream, u->read, DS__OP_WAIT | DS__OP_OUTSIDE << 8);
    if (r == DS_OK)
        r = ds__rng_submit(s, kernel, 1, &a, 0);
    return r == DS__CHANGED ? ds__rng_captures() : r;
}

/* The kernel that writes the state, the launch and the record of `read` come one after the other,
   though several executables may have the fills of one capture. */
static void ds__rng_launch_lock(void *user, int take) {
    ds__rng_graph *u = user;
    if (take)
        ds__mutex_lock(&u->launching);
    else
        ds__mutex_unlock(&u->launching);
}

/* Before a launch: takes the words of the fills. */
static ds_result ds__rng_launch_begin(ds__rng_graph *u, ds__stream *s) {
    ds__generator *g = u->generator;
    ds_result r = ds__rng_launch_check(u, s);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    r = ds__rng_launch_write(u, s);
    if (r == DS_OK) {
        g->offset += u->taken;
        u->change = ++g->changes;
    }
    ds__mutex_unlock(&g->lock);
    return r;
}

/* Gives the words of a failed launch back, unless another fill has taken words since. */
static void ds__rng_launch_undo(ds__rng_graph *u) {
    ds__generator *g = u->generator;
    ds__mutex_lock(&g->lock);
    if (g->changes == u->change) {
        g->offset -= u->taken;
        /* as before: another object of the same launch may have taken words before this one */
        g->changes = u->change - 1;
    }
    ds__mutex_unlock(&g->lock);
}

/* After a launch, with its result. The sentence of a failed launch stays. */
static void ds__rng_launch_end(ds__rng_graph *u, ds__stream *s, ds_result how) {
    if (how < 0)
        ds__rng_launch_undo(u);
    char before[sizeof ds__tls.error]; /* why the launch failed */
    memcpy(before, ds__tls.error, sizeof before);
    DS_IGNORE(ds__rng_record(u, s)); /* the state is written, though the graph may not run */
    memcpy(ds__tls.error, before, sizeof before);
}

/* Called before a launch of a graph with fills (how is DS_NOT_READY), and after it with its
   result. */
static ds_result ds__rng_launch(void *user, ds__stream *s, ds_result how) {
    if (how == DS_NOT_READY)
        return ds__rng_launch_begin(user, s);
    ds__rng_launch_end(user, s, how);
    return DS_OK;
}

/* Makes the object idle when the last graph with it is gone. Must not call devstream. */
static void ds__rng_graph_release(void *user) {
    ds__rng_graph *u = user;
    ds__spinlock_lock(&ds__rng.lock);
    ds__generator *g = u->generator;
    int over = !u->state; /* the library has ended */
    u->generator = NULL;
    if (!over) {
        u->next = ds__rng.idle;
        ds__rng.idle = u;
    }
    ds__spinlock_unlock(&ds__rng.lock);
    ds__generator_unref(g);
    if (over) {
        ds__mutex_destroy(&u->launching);
        ds__host_free(u);
    }
}

/* Takes an idle object of the device; NULL: there is none. */
static ds__rng_graph *ds__rng_graph_take_idle(ds_device device) {
    ds__rng_graph **at = &ds__rng.idle;
    ds__spinlock_lock(&ds__rng.lock);
    ds__rng_setup();
    while (*at && !((*at)->device.type == device.type && (*at)->device.index == device.index))
        at = &(*at)->next;
    ds__rng_graph *u = *at;
    if (u)
        *at = u->next;
    ds__spinlock_unlock(&ds__rng.lock);
    return u;
}

/* Loads the kernel that writes the state. A launch must not do that: the driver may wait for work
   when it loads a kernel, and a launch holds locks. */
static ds_result ds__rng_load(ds_device device) {
    ds_kernel kernel;
    ds_result r = ds__rng_kernel(DS__RNG_STATE, &kernel);
    ds__kernel *k = r == DS_OK ? ds__pin(&ds__g.kernels, kernel.id) : NULL;
    if (!k)
        return r;
    r = ds__driver_of(device)->kernel_load(device.index, k);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

/* Creates an object with its device memory and event. */
static ds_result ds__rng_graph_create(ds_device device, ds__rng_graph **out) {
    void *state = NULL;
    ds__rng_graph *u = ds__host_alloc(sizeof *u);
    if (!u)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the fills of a graph");
    ds_result r = ds__rng_load(device);
    if (r == DS_OK)
        r = ds__segment_alloc(device, 2 * sizeof(uint64_t), &state);
    if (r == DS_OK)
        r = ds__event_create(0, "generator of a graph", &u->read);
    if (r < 0) {
        if (state)
            DS_IGNORE(ds__segment_end(state, DS_MEMORY_DEVICE, 1));
        ds__host_free(u);
        return r;
    }
    u->state = state;
    u->device = device;
    ds__mutex_init(&u->launching);
    ds__spinlock_lock(&ds__rng.lock);
    u->all = ds__rng.all;
    ds__rng.all = u;
    ds__spinlock_unlock(&ds__rng.lock);
    *out = u;
    return DS_OK;
}

/* Makes the object of a capture for the fills of a generator. */
static ds_result ds__rng_graph_attach(uint64_t capture, void *user, void **out) {
    ds__generator *g = user;
    *out = NULL;
    ds__rng_graph *u = ds__rng_graph_take_idle(g->device);
    if (!u) {
        ds_result r = ds__rng_graph_create(g->device, &u);
        if (r < 0)
            return r;
    }
    ds__spinlock_lock(&ds__rng.lock);
    u->taken = 0;
    u->capture = capture;
    u->generator = g;
    g->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    *out = u;
    return DS_OK;
}

#endif
