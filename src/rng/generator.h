/* rng/generator.h - generators: objects, reference counts, creation.

   Defines a generator (ds__generator), the part of a generator that a graph uses
   (ds__rng_graph), and the global state of the generators (ds__rng). ds__generator_create creates a
   generator, ds__generator_of returns the one of a device, and ds__generator_unref gives a
   reference back. ds__rng_shutdown frees what rng/ has.

   Policy:
   1. A generator's lock is held while a fill takes its words and is enqueued. So fills have the
      order of their words, and a refused fill takes no words.
   2. A capture uses a generator through an object of its graph (ds__rng_graph). The object has
      16 bytes of device memory, read by the fills, and the number of words that they take. At a
      launch, a kernel in front of the graph writes seed and offset there. The kernel's stream
      waits first for earlier launches, which may still read them.
   3. This memory is reused when the graph is gone, and freed at ds_shutdown.

   Invariants: `users` counts the handle, running calls and graphs; the last one frees the
   generator. A device's own generator has id 0 and stays until ds_shutdown. `changes` rises with
   every change of seed or offset, except that a failed launch undoes its own.
   Locks: the order is `launching` of objects by address, a generator's `lock`, then ds__rng.lock
   or ds__rng.making. The generator's lock guards seed, offset and mapping. ds__rng.lock guards
   `users` and the lists; no driver call is made under it.
   Threads: any thread. ds__generator_unref also runs on threads of the library, when a graph ends
   there. ds__rng_shutdown is called by ds_shutdown when all work is done; graphs end after it and
   release their objects then. */
#ifndef DS__RNG_GENERATOR_H
#define DS__RNG_GENERATOR_H

#include "../base/module.h"
#include "../api/rng.h"
#include "../core/internal.h"
#include "kernel.h"

typedef struct ds__generator {
    ds__mutex lock;
    int users;   /* the handle, calls and graphs; guarded by ds__rng.lock */
    uint64_t id; /* 0: destroyed, or the generator of a device */
    ds_device device;
    uint64_t seed;
    uint64_t offset;
    uint64_t changes; /* the number of changes of seed and offset */
    ds_rng_mapping mapping;
    int multiprocessors;
    int threads;
    char *label;
    ds_site made;
} ds__generator;

typedef struct ds__rng_graph {
    struct ds__rng_graph *next; /* in the list of idle objects */
    struct ds__rng_graph *all;  /* in the list of all */
    ds__generator *generator;
    ds_device device;
    uint64_t *state;     /* device memory */
    ds__mutex launching; /* held over a launch of a graph with these fills */
    ds_event read;       /* recorded after the last launch */
    int launched;
    ds_stream lost;   /* stream of the last launch, if its record failed */
    uint64_t capture; /* the capture of its fills */
    uint64_t taken;   /* words of a launch */
    uint64_t change;  /* the generator's `changes` after the last launch */
} ds__rng_graph;

static struct {
    ds__spinlock lock; /* of what follows */
    int ready;
    size_t room;
    uint32_t used;
    ds__generator **slot; /* by index; a handle is valid if the generator's id equals it */
    uint32_t generation;
    ds__generator *own[DS_BACKEND_COUNT][DS__MAX_DEVICES];
    ds__rng_graph *idle;
    ds__rng_graph *all;
    ds__mutex making; /* kernels */
    _Atomic uint64_t kernel[DS__RNG_KERNELS];
} ds__rng = { .making = DS__MUTEX_INIT };

static void ds__generator_destroy(ds__generator *g) {
    if (!g)
        return;
    ds__mutex_destroy(&g->lock);
    ds__host_free(g->label);
    ds__host_free(g);
}

/* Drops a reference; the last one frees the generator. Takes ds__rng.lock. */
static void ds__generator_unref(ds__generator *g) {
    ds__spinlock_lock(&ds__rng.lock);
    int last = --g->users == 0;
    ds__spinlock_unlock(&ds__rng.lock);
    if (last)
        ds__generator_destroy(g);
}

/* Returns the threads of a multiprocessor, by the table of compute capabilities in NVIDIA's
   programming guide. version: 10 * major + minor. */
static int ds__rng_threads_of(int version) {
    switch (version) {
    case 75:
        return 1024;
    case 86:
    case 87:
    case 89:
        return 1536;
    default:
        return version >= 110 ? 1536 : 2048;
    }
}

/* Asks the driver for the numbers of the GPU's multiprocessors and threads that are 0. */
static ds_result ds__rng_shape_ask(ds_device device, int *multiprocessors, int *threads) {
    ds_device_properties p;
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r < 0)
        return r;
    if (!*multiprocessors)
        *multiprocessors = p.multiprocessors;
    if (!*threads)
        *threads = ds__rng_threads_of(10 * p.major + p.minor);
    return DS_OK;
}

/* Checks the shape of a GPU that torch's mapping follows. A number that is 0 becomes that of the
   device; on the CPU driver that of an H100 and an H200, 132 and 2048. */
static ds_result ds__rng_shape(ds_device device, int *multiprocessors, int *threads) {
    DS__REQUIRE(*multiprocessors >= 0 && *threads >= 0 && *threads % 256 == 0 &&
                    *multiprocessors <= 1 << 20 && *threads <= 1 << 20,
                "%d multiprocessors of %d threads: threads must be a multiple of 256",
                *multiprocessors, *threads);
    if (device.type == DS_DEVICE_CUDA && (!*multiprocessors || !*threads)) {
        ds_result r = ds__rng_shape_ask(device, multiprocessors, threads);
        if (r < 0)
            return r;
    }
    if (!*multiprocessors)
        *multiprocessors = 132;
    if (!*threads)
        *threads = 2048;
    DS__REQUIRE((uint64_t)*multiprocessors * (uint64_t)*threads <= UINT32_MAX,
                "%d multiprocessors of %d threads: the total must be below 2^32", *multiprocessors,
                *threads);
    return DS_OK;
}

/* Creates a generator with one user. d->device is resolved, and d->seed is taken as it is, also
   0. */
static ds_result ds__generator_create(const ds_rng_desc *d, ds__generator **out) {
    int multiprocessors = d->multiprocessors;
    int threads = d->threads_per_multiprocessor;
    *out = NULL;
    DS__REQUIRE(d->mapping == DS_RNG_ELEMENT || d->mapping == DS_RNG_TORCH,
                "mapping is %d; use DS_RNG_ELEMENT or DS_RNG_TORCH", (int)d->mapping);
    ds_result r = ds__rng_shape(d->device, &multiprocessors, &threads);
    if (r < 0)
        return r;

    ds__generator *g = ds__host_alloc(sizeof *g);
    if (g && d->label)
        g->label = ds__copy_text(d->label, 255);
    if (!g || (d->label && !g->label)) {
        ds__host_free(g);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a generator");
    }
    ds__mutex_init(&g->lock);
    g->users = 1;
    g->device = d->device;
    g->mapping = d->mapping;
    g->multiprocessors = multiprocessors;
    g->threads = threads;
    g->seed = d->seed;
    g->made = ds__tls.site;
    *out = g;
    return DS_OK;
}

/* Frees the device memory and the event of every graph's object. A graph that still has one
   releases the object itself, and finds that the memory is gone. */
static void ds__rng_shutdown_graphs(void) {
    ds__spinlock_lock(&ds__rng.lock);
    while (ds__rng.all) {
        ds__rng_graph *u = ds__rng.all;
        uint64_t *state = u->state;
        ds_event read = u->read;
        ds__rng.all = u->all;
        u->state = NULL;
        ds__spinlock_unlock(&ds__rng.lock);
        ds__event *e = ds__pin(&ds__g.events, read.id);
        if (e) {
            ds__table_invalidate(&ds__g.events, e);
            ds__unpin(&ds__g.events, e);
        }
        DS_IGNORE(ds__segment_end(state, DS_MEMORY_DEVICE, 1));
        ds__spinlock_lock(&ds__rng.lock);
    }
    ds__rng_graph *idle = ds__rng.idle;
    ds__rng.idle = NULL;
    ds__spinlock_unlock(&ds__rng.lock);

    for (ds__rng_graph *u = idle, *next; u; u = next) {
        next = u->next;
        ds__mutex_destroy(&u->launching);
        ds__host_free(u);
    }
}

/* Drops the devices' own generators, and reports and drops those that the user did not destroy. */
static void ds__rng_shutdown_generators(void) {
    for (uint32_t i = 0; i < ds__rng.used; i++) {
        ds__generator *g = ds__rng.slot[i];
        if (!g)
            continue;
        ds__log_warn("generator \"%s\", created at %s:%d, was not destroyed",
                     g->label ? g->label : "", g->made.file ? g->made.file : "?", g->made.line);
        g->id = 0;
        ds__generator_unref(g);
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        for (int i = 0; i < DS__MAX_DEVICES; i++) {
            if (ds__rng.own[b][i])
                ds__generator_unref(ds__rng.own[b][i]);
            ds__rng.own[b][i] = NULL;
        }
}

static void ds__rng_shutdown_kernels(void) {
    for (int i = 0; i < DS__RNG_KERNELS; i++) {
        uint64_t id = atomic_exchange(&ds__rng.kernel[i], 0);
        ds__kernel *k = id ? ds__pin(&ds__g.kernels, id) : NULL;
        if (k) {
            ds__table_invalidate(&ds__g.kernels, k);
            ds__unpin(&ds__g.kernels, k);
        }
    }
}

/* Frees what rng/ has. ds_shutdown calls it when all work is done; graphs end after it, and release
   their objects then. */
static void ds__rng_shutdown(void) {
    ds__rng_shutdown_graphs();
    ds__rng_shutdown_generators();
    ds__rng_shutdown_kernels();
    ds__host_free(ds__rng.slot);
    ds__rng.slot = NULL;
    ds__rng.room = ds__rng.used = 0;
    ds__rng.ready = 0;
}

static const ds__module ds__rng_module = { .shutdown = ds__rng_shutdown };

static void ds__rng_setup(void) { /* the lock is held */
    if (ds__rng.ready)
        return;
    ds__module_add(DS__MODULE_RNG, &ds__rng_module);
    ds__rng.ready = 1;
}

/* Returns the generator of a device, which the first call creates. The caller drops the
   reference. */
static ds_result ds__generator_of(ds_device device, ds__generator **out) {
    DS__RESOLVE(device);
    ds__generator **at = &ds__rng.own[ds__backend_of(device)][device.index];
    ds__generator *fresh = NULL;
    ds__spinlock_lock(&ds__rng.lock);
    *out = *at;
    if (*out)
        (*out)->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    if (*out)
        return DS_OK;
    ds_rng_desc desc = { .device = device, .mapping = DS_RNG_ELEMENT, .seed = ds__os_cookie() };
    ds_result r = ds__generator_create(&desc, &fresh);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__rng.lock);
    ds__rng_setup();
    if (!*at) {
        *at = fresh;
        fresh = NULL;
    }
    *out = *at;
    (*out)->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    ds__generator_destroy(fresh);
    return DS_OK;
}

#endif
