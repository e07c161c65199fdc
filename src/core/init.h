/* core/init.h - lazy initialisation and the entry of public calls.

   Starts devstream at the first call (ds__start_all), keeps the configuration of ds_init, and
   applies the layers to the driver tables. DS__ENTER (ds__api_enter, ds__api_enter_inline) is the
   first step of nearly every public function. It records the call site, starts devstream if needed,
   and refuses calls that are not permitted.

   Invariants: ds__g.state is DS__COLD until a start succeeds, then DS__READY until ds_shutdown.
   A failed start leaves it cold, so the next call tries again. In a forked child the state is
   DS__FORKED unless it was cold. ds__g.epoch differs after each start, so handles and thread
   states of an earlier one are stale. A CUDA driver that fails to start only leaves a reason in
   the backend report; if the CPU driver fails, the start fails.
   Locks: ds__g.mutex is held over ds__start_all, including the drivers' probe and start functions,
   and while ds_init keeps the configuration. The user's log function may run under the mutex.
   The fast path of ds__api_enter takes no lock.
   Threads: any thread may make the first call. Inside of a host function, callback, destructor,
   hook or kernel (ds__tls.in_callback) a call is refused before the mutex is taken, except for
   queries (ds__api_enter_query) and releases (postpone.h). ds__fork_handle runs in the child of a
   fork. */
#ifndef DS__CORE_INIT_H
#define DS__CORE_INIT_H

#include "../base/pin.h"
#include "../base/state.h"
#include "internal.h"
#include "drivers.h"
#include "fault.h"
#include "layers.h"

static int ds__device_ordinal_count(void) {
    return ds__g.backend[0].device_count + ds__g.backend[1].device_count;
}

static void ds__fork_handle(void) {
    atomic_store(&ds__g.state, atomic_load(&ds__g.state) == DS__COLD ? DS__COLD : DS__FORKED);
}

static const char *ds__layer_list(const ds_init_desc *desc) {
    return desc->layers ? desc->layers : getenv("DEVSTREAM_LAYERS");
}

/* Looks for devices and starts the drivers that have any. If the CUDA driver fails to start, the
   reason goes into the backend report and the start continues. */
static ds_result ds__start_drivers(unsigned layers) {
    const struct ds__backend *backends = ds__backends;
    ds_result r = DS_OK;
    memset(ds__g.backend, 0, sizeof ds__g.backend);
    int off = (ds__g.desc.flags & DS_INIT_NO_CUDA) || ds__env_number("DEVSTREAM_NO_CUDA");
    for (int b = 0; b < DS_BACKEND_COUNT; b++) {
        ds_backend_info *info = &ds__g.backend[b];
        ds__g.driver[b] = NULL;
        info->name = backends[b].name;
        info->type = backends[b].type;
        if (off && info->type == DS_DEVICE_CUDA)
            snprintf(info->reason, sizeof info->reason,
                     "not taken: DS_INIT_NO_CUDA or DEVSTREAM_NO_CUDA is set");
        else if (backends[b].driver)
            backends[b].driver->probe(info);
        else
            snprintf(info->reason, sizeof info->reason, "not taken: %s", backends[b].missing);
    }
    ds__g.legacy = ds__host_alloc((size_t)(ds__device_ordinal_count() + 1) * sizeof *ds__g.legacy);
    ds__g.label = ds__host_alloc((size_t)(ds__device_ordinal_count() + 1) * sizeof *ds__g.label);
    if (!ds__g.legacy || !ds__g.label)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to start");
    for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++) {
        ds__kept_error before;
        if (!ds__g.backend[b].available)
            continue;
        ds__error_save(&before);
        r = backends[b].driver->start();
        if (r == DS_OK)
            ds__g.driver[b] = backends[b].driver;
        if (r < 0 && b == 0) {
            /* the reason follows the name of the running function */
            const char *why = strstr(ds__tls.error, ds__tls.fn);
            ds__g.backend[b].available = ds__g.backend[b].device_count = 0;
            snprintf(ds__g.backend[b].reason, sizeof ds__g.backend[b].reason, "not taken: %.170s",
                     why ? why + strlen(ds__tls.fn) + 2 : ds__tls.error);
            ds__error_restore(&before);
            r = DS_OK;
            continue;
        }
        if (r == DS_OK)
            ds__g.driver[b] = ds__layers_apply(layers, ds__g.driver[b], b);
    }
    return r;
}

/* Sets the level of the log: that of ds_init for its function, else that of the environment. */
static ds_result ds__start_log(void) {
    int wanted = (int)ds__g.desc.log_level;
    const char *log = getenv("DEVSTREAM_LOG");
    DS__REQUIRE(!log || !*log || (log[0] >= '0' && log[0] <= '2' && !log[1]),
                "DEVSTREAM_LOG is \"%.20s\"; it must be 0 (silent), 1 (errors) or 2 (warnings too)",
                log);

    if (ds__g.desc.log_fn)
        ds__logger.level = wanted ? wanted : DS_LOG_WARNING;
    else
        ds__logger.level = log && *log ? log[0] - '0' : DS_LOG_SILENT;
    return DS_OK;
}

/* Returns the options of the layers: those of ds_init, else those of the environment. */
static ds__layer_options ds__layer_options_get(const ds_init_desc *desc) {
    ds__layer_options options;
    options.text[DS__UPPER_CHECK] = desc->check ? desc->check : getenv("DEVSTREAM_CHECK");
    options.text[DS__UPPER_TRACE] = desc->trace ? desc->trace : getenv("DEVSTREAM_TRACE");
    return options;
}

/* Reads the configuration of ds_init and of the environment. Returns the layers. */
static ds_result ds__start_config(unsigned *out_layers) {
    ds_result r = ds__start_log();
    if (r < 0)
        return r;
    ds__g.per_thread_default = DS__PER_THREAD_DEFAULT_STREAM ||
                               (ds__g.desc.flags & DS_INIT_PER_THREAD_DEFAULT_STREAM) ||
                               ds__env_number("DEVSTREAM_PER_THREAD_DEFAULT_STREAM");
    const char *fault = ds__g.desc.fault ? ds__g.desc.fault : getenv("DEVSTREAM_FAULT");
    const ds__layer_options options = ds__layer_options_get(&ds__g.desc);
    r = ds__layers_read(ds__layer_list(&ds__g.desc), out_layers);
    if (r == DS_OK)
        r = ds__layers_read_options(&options, out_layers);
    if (r == DS_OK)
        r = ds__layers_check_fault(*out_layers, fault);
    if (r == DS_OK)
        r = ds__sync_debug_read(getenv("DEVSTREAM_SYNC_DEBUG"));
    if (r == DS_OK)
        r = ds__fault_parse(fault);
    if (r == DS_OK) /* the last step, since it keeps memory and files */
        r = ds__layers_configure(*out_layers, &options);
    return r;
}

/* Empties the tables of objects. Handles of an earlier epoch stay invalid. */
static void ds__start_tables(void) {
    ds__g.streams = (ds__table){ .what = "stream",
                                 .element = sizeof(ds__stream),
                                 .free_fn = ds__stream_destroy,
                                 .batched_fn = ds__stream_batched };
    ds__g.events = (ds__table){ .what = "event",
                                .element = sizeof(ds__event),
                                .free_fn = ds__event_destroy,
                                .batched_fn = ds__event_batched };
    ds__g.kernels = (ds__table){ .what = "kernel",
                                 .element = sizeof(ds__kernel),
                                 .free_fn = ds__kernel_destroy,
                                 .defer_fn = ds__kernel_defer };
    ds__g.graphs =
        (ds__table){ .what = "graph", .element = sizeof(ds__graph), .free_fn = ds__graph_destroy };
    ds__g.execs = (ds__table){ .what = "executable",
                               .element = sizeof(ds__exec),
                               .free_fn = ds__exec_destroy };
    ds__g.streams.generation = ds__g.events.generation = ds__g.kernels.generation =
        ds__g.graphs.generation = ds__g.execs.generation = ds__g.epoch << 20;
}

/* Registers for the end of a thread and, once per process, for fork. */
static ds_result ds__start_handlers(void) {
    int error = ds__os_thread_key_create(&ds__g.key, ds__thread_ends);
    if (error)
        return ds__fail(DS_ERR_SYSTEM, "no thread-specific data: %s", strerror(error));
    if (!ds__g.atfork) {
        ds__os_at_fork(NULL, NULL, ds__fork_handle);
        ds__g.atfork = 1;
    }
    return DS_OK;
}

/* Starts devstream; ds__g.mutex is held. On failure the state stays cold, and the next call tries
   again. */
static ds_result ds__start_all(void) {
    unsigned layers;
    ds_result r = ds__start_config(&layers);
    if (r < 0)
        return r;
    ds__start_tables();
    r = ds__start_drivers(layers);
    if (!ds__os_barrier_register()) /* also after an error: drivers that stop may need barriers */
        atomic_store(&ds__no_membarrier, 1);
    if (r == DS_OK)
        r = ds__device_default_read();
    if (r == DS_OK)
        r = ds__start_handlers();
    if (r == DS_OK)
        r = ds__layers_start(layers);
    if (r < 0) {
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            if (ds__g.driver[b])
                ds__g.driver[b]->stop();
        ds__layers_forget(layers);
        ds__host_free(ds__g.legacy);
        ds__host_free(ds__g.label);
        ds__g.legacy = NULL;
        ds__g.label = NULL;
        return r;
    }
    ds__layers_observe(layers);
    ds__g.epoch++;
    return DS_OK;
}

__attribute__((noinline, cold)) static ds_result ds__api_enter_slow(ds__tls_block *t) {
    if (t->epoch != ds__g.epoch)
        ds__tls_forget(t); /* the objects of before ds_shutdown are freed */
    if (t->in_callback)
        return ds__fail(
            DS_ERR_NOT_PERMITTED,
            "devstream was called from inside of a host function, callback, destructor or kernel");
    if (atomic_load(&ds__g.state) == DS__FORKED)
        return ds__fail(
            DS_ERR_FORKED,
            "devstream was in use before fork; use it in one process only, or start it after fork");
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__g.mutex);
    if (atomic_load(&ds__g.state) == DS__COLD) {
        r = ds__start_all();
        if (r == DS_OK)
            atomic_store(&ds__g.state, DS__READY);
    }
    ds__mutex_unlock(&ds__g.mutex);
    if (r == DS_OK && !ds__thread_state())
        r = DS_ERR_OUT_OF_MEMORY;
    return r;
}

/* The first step of a public function: records the call site, starts devstream if needed, and
   refuses calls that are not permitted. */
static inline ds_result ds__api_enter_inline(const char *fn) {
    ds__tls_block *t = &ds__tls;
    t->fn = fn;
    t->site = ds__site_take(t);
    if (DS__UNLIKELY(t->in_callback ||
                     atomic_load_explicit(&ds__g.state, memory_order_acquire) != DS__READY ||
                     t->epoch != ds__g.epoch))
        return ds__api_enter_slow(t);
    return DS_OK;
}

__attribute__((noinline)) static ds_result ds__api_enter(const char *fn) {
    return ds__api_enter_inline(fn);
}

/* Like ds__api_enter for a query that takes no lock and calls no driver: inside of user code that
   devstream runs, it is permitted. */
static ds_result ds__api_enter_query(const char *fn) {
    ds__tls_block *t = &ds__tls;
    if (!t->in_callback || atomic_load(&ds__g.state) != DS__READY)
        return ds__api_enter(fn);
    if (t->thread && t->epoch != ds__g.epoch)
        ds__tls_forget(t); /* a hook of ranges may outlive ds_shutdown */
    t->fn = fn;
    t->site = ds__site_take(t);
    return DS_OK;
}

DSDEF int(ds_version_get)(void) {
    return DEVSTREAM_VERSION;
}

/* Forgets the configuration. */
static void ds__drop_desc(void) {
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__backends[b].driver)
            DS_IGNORE(ds__backends[b].driver->configure(NULL));
    memset(&ds__g.desc, 0, sizeof ds__g.desc);
    memset(&ds__allocator, 0, sizeof ds__allocator);
    ds__logger.log_fn = NULL;
}

/* Keeps the configuration, with copies of the texts and options that it points to. */
static ds_result ds__keep_desc(const ds_init_desc *desc) {
    static char layers[64]; /* a longer text names nothing that is known */
    static char fault[64];  /* a longer text names nothing that is known */
    static char device[64]; /* a longer text names nothing that is known */
    static char check[DS__LAYER_OPTIONS];
    static char trace[DS__LAYER_OPTIONS];
    ds__drop_desc(); /* of an earlier ds_init */
    ds__g.desc = *desc;
    ds__allocator = desc->allocator;
    ds__logger.log_fn = desc->log_fn;
    ds__logger.user = desc->log_user;
    if (desc->layers) {
        snprintf(layers, sizeof layers, "%s", desc->layers);
        ds__g.desc.layers = layers;
    }
    if (desc->fault) {
        snprintf(fault, sizeof fault, "%s", desc->fault);
        ds__g.desc.fault = fault;
    }
    if (desc->device) {
        snprintf(device, sizeof device, "%s", desc->device);
        ds__g.desc.device = device;
    }
    if (desc->check) {
        snprintf(check, sizeof check, "%s", desc->check);
        ds__g.desc.check = check;
    }
    if (desc->trace) {
        snprintf(trace, sizeof trace, "%s", desc->trace);
        ds__g.desc.trace = trace;
    }
    ds__g.desc.cpu = NULL; /* the program's, which the driver copies */
    ds_result r = DS_OK;
    for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++)
        if (ds__backends[b].driver)
            r = ds__backends[b].driver->configure(desc);
    return r;
}

DSDEF ds_result(ds_init)(const ds_init_desc *desc) {
    ds__tls_block *t = &ds__tls;
    t->fn = "ds_init";
    t->site = ds__site_take(t);
    if (t->in_callback)
        return ds__api_enter_slow(t);
    static const ds_init_desc none;
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_init_desc", desc);
    DS__REQUIRE(!desc->allocator.alloc_fn == !desc->allocator.free_fn,
                "the allocator needs both functions or neither");
    DS__REQUIRE((desc->flags & ~(unsigned)(DS_INIT_PER_THREAD_DEFAULT_STREAM | DS_INIT_NO_CUDA)) ==
                    0,
                "unknown flags %#x; use DS_INIT_* flags", desc->flags);
    int level = (int)desc->log_level;
    DS__REQUIRE(level >= DS_LOG_SILENT && level <= DS_LOG_WARNING,
                "log_level is %d; it must be from %d to %d", level, DS_LOG_SILENT, DS_LOG_WARNING);
    ds_result r = DS_OK;
    unsigned layers;
    const ds__layer_options options = { { desc->check, desc->trace } };
    for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++)
        if (ds__backends[b].driver)
            r = ds__backends[b].driver->check(desc);
    if (r == DS_OK)
        r = ds__layers_read(ds__layer_list(desc), &layers);
    if (r == DS_OK)
        r = ds__layers_read_options(&options, &layers);
    if (r == DS_OK)
        r = ds__layers_check_fault(layers, desc->fault);
    if (r < 0)
        return r;
    /* before the lock: in a forked child it may never be released */
    if (atomic_load(&ds__g.state) == DS__FORKED)
        return ds__api_enter_slow(t);
    ds__mutex_lock(&ds__g.mutex);
    if (atomic_load(&ds__g.state) != DS__COLD)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "devstream is in use already; call ds_init first, or after ds_shutdown");
    else if (desc->fault)
        r = ds__fault_parse(desc->fault);
    if (r == DS_OK) {
        r = ds__keep_desc(desc);
        if (r < 0)
            ds__drop_desc();
    }
    ds__mutex_unlock(&ds__g.mutex);
    return r;
}

#endif
