/* ranks/api.h - public functions of process groups.

   Implements ds_ranks_init, ds_ranks_finalize, ds_ranks_register, ds_ranks_abort,
   ds_ranks_get_status and ds_ranks_get_info, and sends collectives with a group to the functions
   that run them (ds__across). ds_shutdown ends the remaining groups.

   Invariants: the module and its hooks of base/drive.h are set before the first handle exists, and
   stay.
   Locks: none of its own. init waits for other ranks without a lock.
   Threads: caller's threads. */
#ifndef DS__RANKS_API_H
#define DS__RANKS_API_H

#include "types.h"
#include "failure.h"
#include "progress.h"
#include "group.h"
#include "capture.h"
#include "launch.h"
#include "local.h"
#include "mpi.h"
#include "nccl_op.h"
#include "reduce.h"
#include "move.h"
#include "exchange.h"
#include "derive.h"
#include "in_process.h"

static const ds__ranks_engine *const ds__ranks_engines[] = { &ds__mpi_engine, &ds__nccl_engine,
                                                             &ds__local_engine };

enum { DS__RANKS_ENGINES = sizeof ds__ranks_engines / sizeof *ds__ranks_engines };

/* ---- module ---------------------------------------------------------------------------------- */

/* Ends the groups that are left, and those of which handles, graphs or operations were left. Called
   by ds_shutdown, after all work is done. */
static void ds__ranks_deinit(void) {
    ds__inproc_end_all();
    ds__ranks_thread_end();
    ds__rcaptures_deinit();
    for (uint32_t i = 0; i < ds__ranks.table.used; i++) {
        ds__group *g = (ds__group *)(void *)ds__slot_at(&ds__ranks.table, i);
        int state = DS__STATE(atomic_load(&g->slot.word));
        if (state == DS__ALIVE)
            ds__log_warn("process group \"%s\", created at %s:%d, was not finalized",
                         ds__group_name(g), g->made.file ? g->made.file : "?", g->made.line);
        if (state != DS__FREE)
            ds__group_clear(g);
    }
    ds__ranks.groups = NULL;
    for (ds__rfailure *f; (f = ds__ranks.failures) != NULL;) {
        ds__ranks.failures = f->next;
        ds__host_free(f);
    }
    ds__rwords_deinit();
    for (int i = 0; i < DS__RANKS_ENGINES; i++)
        ds__ranks_engines[i]->shutdown();
    ds__table_destroy(&ds__ranks.table);
    atomic_store(&ds__drive.open, 0);
    atomic_store(&ds__drive.failed, 0);
}

/* Refuses a checkpoint while a group ties this process to others. */
static ds_result ds__ranks_quiesce(void) {
    ds_result r = DS_OK;
    ds__inproc_end_all(); /* a collective makes them again */
    ds__mutex_lock(&ds__ranks.lock);
    for (const ds__group *g = ds__ranks.groups; g && r == DS_OK; g = g->next)
        if (g->engine != &ds__local_engine)
            r = ds__fail(DS_ERR_ILLEGAL_STATE,
                         "process group \"%s\", created at %s:%d, ties this process to others; "
                         "finalize it",
                         ds__group_name(g), g->made.file ? g->made.file : "?", g->made.line);
    ds__mutex_unlock(&ds__ranks.lock);
    return r;
}

static const ds__module ds__ranks_module = { .shutdown = ds__ranks_deinit,
                                             .quiesce = ds__ranks_quiesce };

/* Runs a collective whose options have a group. */
static ds_result ds__across(const ds__comm_call *c) {
    static const struct {
        int kind;
        ds_result (*run_fn)(ds__stage *st, const ds__comm_call *c);
    } verbs[] = { [DS__VERB_ALL_REDUCE] = { DS__NET_ALL_REDUCE, ds__across_all_reduce },
                  [DS__VERB_REDUCE] = { DS__NET_REDUCE, ds__across_reduce },
                  [DS__VERB_BROADCAST] = { DS__NET_BROADCAST, ds__across_broadcast },
                  [DS__VERB_ALL_GATHER] = { DS__NET_ALL_GATHER, ds__across_all_gather },
                  [DS__VERB_GATHER] = { DS__NET_GATHER, ds__across_gather },
                  [DS__VERB_REDUCE_SCATTER] = { DS__NET_REDUCE_SCATTER, ds__across_reduce_scatter },
                  [DS__VERB_SCATTER] = { DS__NET_SCATTER, ds__across_scatter },
                  [DS__VERB_ALL_TO_ALL] = { DS__NET_ALL_TO_ALL, ds__across_all_to_all } };

    ds__stage st;
    ds__stage_init(&st, c->options);
    ds_result r = ds__stage_open(&st, verbs[c->verb].kind);
    st.call.op = c->op;
    if (r == DS_OK)
        r = verbs[c->verb].run_fn(&st, c);
    return ds__stage_close(&st, r);
}

/* Runs a collective with a group or an engine. Returns 0 if the layer below has to do it. */
static int ds__elsewhere(const ds__comm_call *c, ds_result *out) {
    if (!c->options->ranks.id)
        return ds__inproc_run(c, ds__across, out);
    *out = ds__across(c);
    return 1;
}

static int (*ds__comm_elsewhere_fn)(const ds__comm_call *call, ds_result *out) = ds__elsewhere;
static void (*ds__plan_explain_fn)(const ds__engine_question *q, char *out,
                                   size_t size) = ds__inproc_explain;

/* Registers the module and its hooks, and starts the progress thread. */
static ds_result ds__ranks_setup(void) {
    ds_result r = ds__tensor_setup();
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__ranks.lock);
    if (!ds__ranks.table.element) {
        ds__ranks.table.what = "process group";
        ds__ranks.table.element = sizeof(ds__group);
        ds__ranks.table.free_fn = ds__group_freed;
        ds__drive.wait_fn = ds__ranks_wait;
        ds__drive.failure_fn = ds__rfailure_of;
        ds__drive.forget_fn = ds__rfailure_forget;
    }
    ds__module_add(DS__MODULE_RANKS, &ds__ranks_module);
    r = ds__ranks_thread_start();
    ds__mutex_unlock(&ds__ranks.lock);
    return r;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Finds the engine by its name or, without one, by the environment or the launcher. */
static ds_result ds__ranks_engine_find(const ds_ranks_desc *desc, const ds__ranks_engine **out) {
    ds_ranks_launch launch;
    (ds_ranks_launch_get)(&launch);
    const char *name = desc->engine;
    if (!name)
        name = ds__os_environment("DEVSTREAM_RANKS_ENGINE");
    if (!name)
        name = *launch.launcher ? "mpi" : "local";
    for (int i = 0; i < DS__RANKS_ENGINES; i++) {
        *out = ds__ranks_engines[i];
        if (strcmp((*out)->name, name) == 0)
            return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE, "engine is \"%.40s\"; use \"mpi\", \"nccl\" or \"local\"",
                    name);
}

/* Completes the options: the devices of the rank, its size without an engine, the time limit. */
static ds_result ds__ranks_desc_resolve(ds_ranks_desc *desc, ds_device *one) {
    DS__REQUIRE_RESERVED("ds_ranks_desc", desc);
    DS__REQUIRE(!(desc->flags & ~(unsigned)(DS_RANKS_COMPARE | DS_RANKS_NO_OTHER_MPI)),
                "unknown flags %#x; use DS_RANKS_* flags", desc->flags);
    DS__REQUIRE(desc->devices || !desc->device_count, "devices is NULL, but device_count is %zu",
                desc->device_count);
    if (!desc->device_count) {
        desc->devices = one;
        desc->device_count = 1;
    }
    ds_device first = { 0, 0 };
    for (size_t i = 0; i < desc->device_count; i++) {
        ds_device d = { 0, 0 };
        ds_result r = ds__device_resolve(desc->devices[i], &d);
        if (r < 0)
            return r;
        if (!i)
            first = d;
        if (d.type != first.type)
            return ds__fail(DS_ERR_CROSS_DRIVER, "devices[0] and devices[%zu] are of two drivers",
                            i);
    }
    if (!desc->timeout_ns)
        desc->timeout_ns = DS__RANKS_TIMEOUT_S * 1000000000ull;
    return DS_OK;
}

/* Opens the recorder that the options or the environment ask for; *out NULL: none does. */
static ds_result ds__ranks_recorder(const ds_ranks_desc *desc, int rank, int size,
                                    ds__recorder **out) {
    const char *path = desc->record ? desc->record : getenv("DEVSTREAM_RANKS_RECORD");
    *out = NULL;
    return path && *path ? ds__recorder_open(path, rank, size, out) : DS_OK;
}

DSDEF ds_result(ds_ranks_init)(const ds_ranks_desc *desc, ds_ranks *out) {
    ds_ranks_desc d = { 0 };
    ds_device one = { 0, 0 };
    const ds__ranks_engine *engine = NULL;
    ds__group_start start = { .recorder = NULL };
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_init");
    DS__REQUIRE(out, "out is NULL");
    if (desc)
        d = *desc;
    ds_result r = ds__ranks_setup();
    if (r == DS_OK)
        r = ds__ranks_desc_resolve(&d, &one);
    if (r == DS_OK)
        r = ds__ranks_engine_find(&d, &engine);
    if (r < 0)
        return r;
    if (!d.engine && engine == &ds__local_engine && !d.id) {
        d.id = "alone";
        d.size = 1;
    }
    start.engine = engine;
    start.deadline = ds__ranks_deadline(d.timeout_ns);
    start.id = ds__ranks_id(0, 0, 0);
    r = engine->init(&d, start.deadline, &start.comm);
    if (r < 0)
        return r;
    r = ds__ranks_recorder(&d, start.comm.rank, start.comm.size, &start.recorder);
    if (r < 0) {
        engine->destroy(start.comm.comm, 1);
        return r;
    }
    return ds__group_create(&start, &d, out);
}

DSDEF ds_result(ds_ranks_id_create)(const char *engine, char *out, size_t size) {
    ds__nccl_ticket id;
    if (out && size)
        *out = '\0';
    DS__ENTER("ds_ranks_id_create");
    DS__REQUIRE(engine && out, "engine or out is NULL");
    DS__REQUIRE(size >= DS_RANKS_ID_SIZE, "out has %zu bytes; DS_RANKS_ID_SIZE (%d) are required",
                size, DS_RANKS_ID_SIZE);
    if (strcmp(engine, "local") == 0) {
        snprintf(out, size, "%016llx", (unsigned long long)ds__os_cookie());
        return DS_OK;
    }
    if (strcmp(engine, "nccl") != 0)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the engine \"%.40s\" needs no id; \"nccl\" and \"local\" do", engine);
    ds_result r = ds__nccl_load();
    if (r == DS_OK)
        r = ds__nccl_id_create(&id);
    if (r == DS_OK)
        ds__nccl_id_format(&id, out);
    return r;
}

/* ---- registered memory ----------------------------------------------------------------------- */

DSDEF ds_result(ds_ranks_register)(ds_ranks ranks, void *ptr, size_t size) {
    ds_pointer_info info;
    ds_result r = DS_OK;
    memset(&info, 0, sizeof info);
    DS__ENTER("ds_ranks_register");
    DS__REQUIRE(ptr && size, "ptr is NULL, or size is 0");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    if (!g->engine->enlist)
        r = ds__fail(DS_ERR_UNSUPPORTED, "engine \"%s\" registers no memory; \"nccl\" does",
                     g->engine->name);
    if (r == DS_OK)
        DS__KEEPING(r, (ds_pointer_get_info)(ptr, &info));
    size_t i = 0;
    while (r == DS_OK && i < g->owns && ds__device_key(g->own[i]) != ds__device_key(info.device))
        i++;
    if (r == DS_OK && (info.kind != DS_MEMORY_DEVICE || i == g->owns))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not memory of a device of this rank", ptr);
    if (r == DS_OK)
        r = g->engine->enlist(g->comm, ptr, size, info.device);
    ds__group_unpin(g);
    return r;
}

DSDEF ds_result(ds_ranks_deregister)(ds_ranks ranks, void *ptr) {
    DS__ENTER("ds_ranks_deregister");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = g->engine->delist ? g->engine->delist(g->comm, ptr)
                                    : ds__fail(DS_ERR_INVALID_VALUE, "%p is not registered", ptr);
    ds__group_unpin(g);
    return r;
}

/* ---- end and state --------------------------------------------------------------------------- */

DSDEF ds_result(ds_ranks_finalize)(ds_ranks ranks) {
    DS__ENTER("ds_ranks_finalize");
    if (!ranks.id)
        return DS_OK;
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__group_end(g);
    return DS_OK;
}

DSDEF ds_result(ds_ranks_abort)(ds_ranks ranks, const char *reason) {
    char text[DS__RANKS_REASON];
    DS__ENTER("ds_ranks_abort");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    snprintf(text, sizeof text, "rank %d has aborted group \"%s\" at %s:%d: %.200s", g->rank,
             ds__group_name(g), ds__tls.site.file ? ds__tls.site.file : "?",
             ds__tls.site.file ? ds__tls.site.line : 0, reason ? reason : "no reason was given");
    ds__mutex_lock(&g->lock);
    ds__group_list_ops(g);
    ds__group_fail(g, DS_ERR_ABORTED, text, 1);
    ds__group_clear_ops(g);
    ds__mutex_unlock(&g->lock);
    ds__group_unpin(g);
    return DS_OK;
}

DSDEF ds_result(ds_ranks_get_status)(ds_ranks ranks) {
    DS__ENTER("ds_ranks_get_status");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__group_drive(g);
    if (ds__mutex_trylock(&g->lock)) { /* a group without operations does not ask by itself */
        ds__group_hear(g);
        ds__mutex_unlock(&g->lock);
    }
    ds_result r = ds__group_report(g);
    ds__group_unpin(g);
    return r;
}

DSDEF ds_result(ds_ranks_get_info)(ds_ranks ranks, ds_ranks_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_ranks_get_info");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    out->rank = g->rank;
    out->size = g->size;
    out->device_count = g->devices;
    out->first_device = g->first[g->rank];
    out->own_devices = g->owns;
    snprintf(out->engine, sizeof out->engine, "%s", g->engine->name);
    g->engine->library(out->library, sizeof out->library);
    uint64_t passed = ds__group_passed(g); /* before `listed`, which is not smaller */
    ds__spinlock_lock(&g->list_lock);
    out->operations = g->operations;
    out->pending = g->listed - passed;
    ds__spinlock_unlock(&g->list_lock);
    ds__group_unpin(g);
    return DS_OK;
}

#endif
