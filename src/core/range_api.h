/* core/range_api.h - ranges: marks, pushes, starts, domains, labels.

   Public functions of ranges (ds_range_push, ds_range_start, ds_domain_create, ds_range_set_hook).
   ds__tell_stream_label and ds__tell_device_label report labels to NVTX and to the hook;
   ds__ranges_deinit ends all domains at shutdown.

   Invariants: a range handle is its generation and its index + 1 in ds__notes.open. The search for
   a free entry begins at the entry that was freed last, or behind the one that was taken last.
   Domain handles carry the generation of the domains, so ds_shutdown makes them stale. Ranges of
   the default domain stay open over ds_shutdown.
   Locks: ds_domain_create holds ds__notes.lock over calls of NVTX. ds_range_set_hook holds
   ds__notes.hook_lock until no thread is inside of the former hook. ds__tell_stream_label and
   ds__tell_device_label invoke the hook, so their callers hold no lock.
   Threads: any. Inside of user code that devstream runs, ds_range_set_hook is refused.
   ds__ranges_deinit takes no lock and expects that no other thread uses domains or their ranges. */
#ifndef DS__CORE_RANGE_API_H
#define DS__CORE_RANGE_API_H

#include "range.h"

static ds_result ds__range_mark(const char *fn, const ds_range_desc *d) {
    ds_site site = ds__site_take(&ds__tls);
    int domain = ds__range_check(fn, site, d);
    if (domain < 0)
        return (ds_result)domain;
    ds__nvtx_mark(ds__notes.domain[domain].native, d);
    if (ds__range_heard())
        ds__range_tell_of(DS_RANGE_MARK, d, (uint32_t)domain, 0, 0, site);
    return DS_OK;
}

/* Inlined, so that the checks of a text alone cost nothing. */
__attribute__((always_inline)) static inline int ds__range_push(const char *fn,
                                                                const ds_range_desc *d) {
    ds_site site = ds__site_take(&ds__tls);
    int domain = ds__range_check(fn, site, d);
    if (DS__UNLIKELY(domain < 0))
        return domain;
    ds__nvtx_push(ds__notes.domain[domain].native, d);
    int level = (*ds__range_level(domain))++;
    if (DS__UNLIKELY(ds__range_heard()))
        ds__range_tell_of(DS_RANGE_PUSH, d, (uint32_t)domain, level, 0, site);
    return level;
}

__attribute__((always_inline)) static inline int ds__range_pop(const char *fn, ds_domain handle) {
    ds_site site = ds__site_take(&ds__tls);
    int domain = ds__range_domain_of(fn, site, handle);
    if (DS__UNLIKELY(domain < 0))
        return DS_ERR_INVALID_HANDLE;
    int *level = ds__range_level(domain);
    if (DS__UNLIKELY(*level == 0))
        return ds__range_fail(
            fn, site, DS_ERR_ILLEGAL_STATE, "no pushed range%s%s%s is open on this thread",
            domain ? " of the domain \"" : "", ds__notes.domain[domain].name, domain ? "\"" : "");
    --*level;
    ds__nvtx_pop(ds__notes.domain[domain].native);
    if (DS__UNLIKELY(ds__range_heard())) {
        ds_range_desc d = { .domain = handle };
        ds__range_tell_of(DS_RANGE_POP, &d, (uint32_t)domain, *level, 0, site);
    }
    return *level;
}

/* Takes an entry for a range, busy with the next generation. NULL: no entry is free. */
static ds__open_range *ds__range_place(void) {
    uint32_t first = atomic_load_explicit(&ds__notes.next, memory_order_relaxed);
    for (uint32_t n = 0; n < DS__RANGES; n++) {
        uint32_t i = (first + n) % DS__RANGES;
        ds__open_range *o = &ds__notes.open[i];
        uint64_t word = atomic_load(&o->word);
        uint64_t generation = ((word >> 2) + 1) & UINT32_MAX;
        if ((word & 3) == DS__RANGE_FREE &&
            atomic_compare_exchange_strong(&o->word, &word, generation << 2 | DS__RANGE_BUSY)) {
            atomic_store_explicit(&ds__notes.next, i + 1, memory_order_relaxed);
            return o;
        }
    }
    return NULL;
}

static ds_result ds__range_start(const char *fn, const ds_range_desc *d, ds_range *out) {
    ds_site site = ds__site_take(&ds__tls);
    if (out)
        out->id = 0;
    else
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE, "out is NULL");
    int domain = ds__range_check(fn, site, d);
    if (domain < 0)
        return (ds_result)domain;
    ds__open_range *o = ds__range_place();
    if (!o)
        return ds__range_fail(fn, site, DS_ERR_LIMIT_EXCEEDED,
                              "%d ranges are open, the maximum; end some", (int)DS__RANGES);
    o->domain = (uint32_t)domain;
    o->native = ds__nvtx_range_start(ds__notes.domain[domain].native, d);
    uint64_t generation = atomic_load(&o->word) >> 2;
    out->id = generation << 32 | (uint64_t)(o - ds__notes.open + 1);
    atomic_store(&o->word, generation << 2 | DS__RANGE_OPEN);
    if (ds__range_heard())
        ds__range_tell_of(DS_RANGE_START, d, (uint32_t)domain, 0, out->id, site);
    return DS_OK;
}

DSDEF ds_result(ds_domain_create)(const char *name, ds_domain *out) {
    ds_site site = ds__site_take(&ds__tls);
    if (out)
        out->id = 0;
    if (!out || !name || !*name)
        return ds__range_fail("ds_domain_create", site, DS_ERR_INVALID_VALUE, "%s",
                              !out ? "out is NULL" : "a domain needs a name");
    if (strlen(name) >= sizeof ds__notes.domain[0].name)
        return ds__range_fail("ds_domain_create", site, DS_ERR_INVALID_VALUE,
                              "the name of a domain has more than %zu characters",
                              sizeof ds__notes.domain[0].name - 1);
    ds__mutex_lock(&ds__notes.lock);
    uint32_t n = atomic_load(&ds__notes.domains);
    uint32_t i = 1;
    while (i <= n && strcmp(ds__notes.domain[i].name, name) != 0)
        i++;
    if (i > n && i < DS__DOMAINS) {
        memcpy(ds__notes.domain[i].name, name, strlen(name) + 1);
        ds__notes.domain[i].native = ds__nvtx_domain_create(name);
        atomic_store_explicit(&ds__notes.domains, i, memory_order_release);
    }
    if (i < DS__DOMAINS)
        out->id = (uint64_t)(atomic_load(&ds__notes.generation) + 1) << 32 | i;
    ds__mutex_unlock(&ds__notes.lock);
    return out->id ? DS_OK
                   : ds__range_fail("ds_domain_create", site, DS_ERR_LIMIT_EXCEEDED,
                                    "%d domains exist, the maximum", DS__DOMAINS - 1);
}

/* A description with a text only. */
#define DS__TEXT(words) (&(ds_range_desc){ .text = (words) })

DSDEF ds_result(ds_range_mark)(const char *text) {
    return ds__range_mark("ds_range_mark", DS__TEXT(text));
}

DSDEF ds_result(ds_range_mark_with)(const ds_range_desc *desc) {
    return ds__range_mark("ds_range_mark_with", desc);
}

DSDEF int(ds_range_push)(const char *text) {
    return ds__range_push("ds_range_push", DS__TEXT(text));
}

DSDEF int(ds_range_push_with)(const ds_range_desc *desc) {
    return ds__range_push("ds_range_push_with", desc);
}

DSDEF int(ds_range_pop)(void) {
    return ds__range_pop("ds_range_pop", (ds_domain){ 0 });
}

DSDEF int(ds_range_pop_in)(ds_domain domain) {
    return ds__range_pop("ds_range_pop_in", domain);
}

DSDEF ds_result(ds_range_start)(const char *text, ds_range *out) {
    return ds__range_start("ds_range_start", DS__TEXT(text), out);
}

DSDEF ds_result(ds_range_start_with)(const ds_range_desc *desc, ds_range *out) {
    return ds__range_start("ds_range_start_with", desc, out);
}

DSDEF ds_result(ds_range_end)(ds_range range) {
    ds_site site = ds__site_take(&ds__tls);
    uint32_t index = (uint32_t)range.id;
    uint64_t generation = range.id >> 32;
    uint64_t word = generation << 2 | DS__RANGE_OPEN;
    if (!index || index > DS__RANGES ||
        !atomic_compare_exchange_strong(&ds__notes.open[index - 1].word, &word,
                                        generation << 2 | DS__RANGE_BUSY))
        return ds__range_fail("ds_range_end", site, DS_ERR_INVALID_HANDLE, "%s",
                              range.id ? "the range has ended already, or was never started"
                                       : "no range was given (the handle is zero)");
    ds__open_range *o = &ds__notes.open[index - 1];
    uint32_t domain = o->domain;
    ds__nvtx_range_end(ds__notes.domain[domain].native, o->native);
    atomic_store(&o->word, generation << 2 | DS__RANGE_FREE);
    atomic_store_explicit(&ds__notes.next, index - 1, memory_order_relaxed);
    if (ds__range_heard()) {
        ds_range_desc d = { 0 };
        if (domain)
            d.domain.id = (uint64_t)(atomic_load(&ds__notes.generation) + 1) << 32 | domain;
        ds__range_tell_of(DS_RANGE_END, &d, domain, 0, range.id, site);
    }
    return DS_OK;
}

static inline ds_range_scope ds__range_scope(int level, ds_domain domain) {
    ds_range_scope scope = { domain, level >= 0, 1 };
    return scope;
}

DSDEF ds_range_scope(ds_range_scope_enter)(const char *text) {
    return ds__range_scope(ds__range_push("ds_range_scope_enter", DS__TEXT(text)),
                           (ds_domain){ 0 });
}

DSDEF ds_range_scope(ds_range_scope_enter_with)(const ds_range_desc *desc) {
    int level = ds__range_push("ds_range_scope_enter_with", desc);
    return ds__range_scope(level, level >= 0 ? desc->domain : (ds_domain){ 0 });
}

DSDEF void(ds_range_scope_leave)(ds_range_scope *scope) {
    if (scope->pushed)
        (void)ds__range_pop("ds_range_scope_leave", scope->domain);
    scope->pushed = 0;
}

DSDEF ds_result(ds_range_set_hook)(ds_range_fn fn, void *user) {
    ds_site site = ds__site_take(&ds__tls);
    if (ds__tls.in_callback)
        return ds__range_fail("ds_range_set_hook", site, DS_ERR_NOT_PERMITTED,
                              "the hook cannot be set inside of a host function, callback, "
                              "destructor, kernel or hook");
    ds__mutex_lock(&ds__notes.hook_lock);
    ds__range_watcher *now = atomic_load(&ds__notes.hook);
    ds__range_watcher *next =
        now == &ds__notes.watcher[0] ? &ds__notes.watcher[1] : &ds__notes.watcher[0];
    /* no thread is inside of the hook: the call waited for that */
    if (fn) {
        next->fn = fn;
        next->user = user;
    }
    atomic_fetch_add(&ds__range_listeners, (fn != NULL) - (now != NULL));
    atomic_store(&ds__notes.hook, fn ? next : NULL);
    for (int spins = 0; now && atomic_load(&now->inside); spins++) {
        if (spins < 64)
            ds__processor_pause();
        else
            ds__os_yield();
    }
    ds__mutex_unlock(&ds__notes.hook_lock);
    return DS_OK;
}

DSDEF ds_result(ds_thread_set_label)(const char *label) {
    ds_site site = ds__site_take(&ds__tls);
    if (!label)
        return ds__range_fail("ds_thread_set_label", site, DS_ERR_INVALID_VALUE,
                              "the label is NULL");
    ds__nvtx_name_thread(label);
    ds_range_event e = { .kind = DS_RANGE_THREAD_LABEL, .domain_name = "", .text = label };
    if (ds__range_heard())
        ds__range_tell(&e, site);
    return DS_OK;
}

/* Passes the new label of a stream to CUDA and to the range hook; NULL: the label is removed. */
static void ds__tell_stream_label(ds__stream *s, const char *label) {
    void *native = NULL;
    if (ds__nvtx_names_cuda() && s->device.type == DS_DEVICE_CUDA) {
        ds__tls.mute++; /* another thread's own stream has no name in CUDA */
        int known = s->driver->stream_native(s->native, &native) == DS_OK;
        ds__tls.mute--;
        if (known)
            ds__nvtx_name_stream(native, label ? label : "");
    }
    ds_range_event e = { .kind = DS_RANGE_STREAM_LABEL,
                         .domain_name = "",
                         .text = label ? label : "",
                         .device = s->device,
                         .id = s->id };
    if (ds__range_heard())
        ds__range_tell(&e, ds__tls.site);
}

static void ds__tell_device_label(ds_device device, const char *label) {
    if (device.type == DS_DEVICE_CUDA)
        ds__nvtx_name_device(device.index, label);
    ds_range_event e = {
        .kind = DS_RANGE_DEVICE_LABEL, .domain_name = "", .text = label, .device = device
    };
    if (ds__range_heard())
        ds__range_tell(&e, ds__tls.site);
}

/* At shutdown: domains end, with the ranges in them. */
static void ds__ranges_deinit(void) {
    for (uint32_t i = 0; i < DS__RANGES; i++) {
        ds__open_range *o = &ds__notes.open[i];
        uint64_t word = atomic_load(&o->word);
        if ((word & 3) == DS__RANGE_OPEN && o->domain)
            atomic_store(&o->word, word >> 2 << 2 | DS__RANGE_FREE);
    }
    for (uint32_t i = 1; i <= atomic_load(&ds__notes.domains); i++)
        ds__nvtx_domain_destroy(ds__notes.domain[i].native);
    if (atomic_load(&ds__notes.domains))
        atomic_fetch_add(&ds__notes.generation, 1);
    atomic_store(&ds__notes.domains, 0);
}

#endif
