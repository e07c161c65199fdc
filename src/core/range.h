/* core/range.h - ranges: NVTX, the hook, domains and levels.

   State and helpers of core/range_api.h: the tables of open ranges and domains, the check of a
   description (ds__range_check), and the report to the hook (ds__range_tell).

   Policy: a range is reported to NVTX and to the hook. The functions of NVTX do nothing unless a
   tool has brought its own. Nothing here starts devstream, allocates memory or reads state of
   the first call, so ranges can stand anywhere.

   Invariants: levels belong to a thread. Open ranges and domains stand in tables of fixed size.
   The word of a range holds its state and its generation; of two threads that end a range, one
   finds it open. A thread that invokes the hook first counts itself in and reads the hook
   again. So the thread that removes a hook can wait until no other thread is inside.
   Locks: ds__notes.lock guards the creation of domains and the initialisation of NVTX.
   ds__notes.hook_lock guards the exchange of the hook. They are separate, because a hook may
   create a domain. The hook is invoked without either.
   Threads: any, also before the first call and inside of user code that devstream runs. The hook
   runs on the thread of the range, with ds__tls.in_callback set; ranges inside of the hook are
   not reported to it. */
#ifndef DS__CORE_RANGE_H
#define DS__CORE_RANGE_H

#include "../api/range.h"
#include "../base/capture_list.h"
#include "../base/observe.h"
#include "../os/os.h"

enum { DS__RANGES = 4096 };

/* The state of an entry for open ranges. `busy`: a thread writes or reads its members. */
enum { DS__RANGE_FREE, DS__RANGE_BUSY, DS__RANGE_OPEN };

typedef struct ds__open_range {
    _Atomic uint64_t word; /* generation << 2 | state; the id is generation << 32 | index + 1 */
    uint64_t native;       /* NVTX's id */
    uint32_t domain;
} ds__open_range;

typedef struct ds__range_domain {
    char name[64];
    void *native;
} ds__range_domain;

typedef struct ds__range_watcher {
    ds_range_fn fn;
    void *user;
    _Atomic int inside;
} ds__range_watcher;

static struct {
    _Atomic(ds__range_watcher *) hook; /* one of the two, or NULL */
    _Atomic uint32_t domains;          /* the number of domains, without the default one */
    _Atomic uint32_t generation;       /* raised by ds_shutdown, which makes all handles invalid */
    ds__mutex lock;                    /* held while a domain is created */
    /* held while the hook is set. The setter waits for the former hook, which may take the other
       lock */
    ds__mutex hook_lock;
    ds__range_watcher watcher[2];
    ds__range_domain domain[DS__DOMAINS];
    _Atomic uint32_t next; /* the entry of `open` that is tried first */
    ds__open_range open[DS__RANGES];
} ds__notes = { .lock = DS__MUTEX_INIT, .hook_lock = DS__MUTEX_INIT };

/* Like ds__fail, but inside of another function of devstream, whose name and site are kept. */
__attribute__((format(DS__PRINTF, 4, 5), cold, noinline)) static ds_result ds__range_fail(
    const char *fn, ds_site site, ds_result code, const char *format, ...) {
    ds__tls_block *t = &ds__tls;
    int n = site.file ? snprintf(t->error, sizeof t->error, "%s:%d: %s: ", site.file, site.line, fn)
                      : snprintf(t->error, sizeof t->error, "%s: ", fn);
    size_t at = ds__text_length(n, sizeof t->error);
    va_list args;
    va_start(args, format);
    vsnprintf(t->error + at, sizeof t->error - at, format, args);
    va_end(args);
    t->code = code;
    if (atomic_load(&ds__g.state) == DS__READY && !t->in_hook) { /* else the log is not known yet */
        ds_site outer = t->site;
        t->site = site;
        ds__log_write(DS_LOG_ERROR, code, t->error);
        t->site = outer;
    }
    return code;
}

/* Fills the common members of a range event and passes it to the observers and to the hook. The
   event is a mark, a range, or a label of the thread, a device or a stream. */
__attribute__((noinline)) static void ds__range_tell(ds_range_event *e, ds_site site) {
    ds__tls_block *t = &ds__tls;
    e->file = site.file;
    e->line = site.file ? site.line : 0;
    e->thread = ds__thread_number();
    e->time_ns = ds__now_ns();
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_RANGE, .range = e });
    for (ds__range_watcher *w; !t->in_hook && (w = atomic_load(&ds__notes.hook)) != NULL;) {
        atomic_fetch_add(&w->inside, 1);
        if (atomic_load(&ds__notes.hook) != w) {
            atomic_fetch_sub(&w->inside, 1);
            continue;
        }
        ds__user_code outer = ds__user_code_begin();
        t->in_hook = 1;
        w->fn(e, w->user);
        t->in_hook = 0;
        ds__user_code_end(&outer);
        atomic_fetch_sub(&w->inside, 1);
        return;
    }
}

static inline int ds__range_heard(void) {
    return atomic_load_explicit(&ds__range_listeners, memory_order_relaxed) != 0;
}

static void ds__range_tell_of(ds_range_kind kind, const ds_range_desc *d, uint32_t domain,
                              int level, uint64_t id, ds_site site) {
    ds_range_event e = { .kind = kind,
                         .level = level,
                         .domain = d->domain,
                         .domain_name = ds__notes.domain[domain].name,
                         .text = d->text,
                         .color = d->color,
                         .category = d->category,
                         .payload = d->payload,
                         .id = id };
    ds__range_tell(&e, site);
}

/* Returns the index of the domain in the table. -1: the handle is not valid, and the sentence is
   set. */
static inline int ds__range_domain_of(const char *fn, ds_site site, ds_domain domain) {
    if (DS__LIKELY(!domain.id))
        return 0;
    uint32_t index = (uint32_t)domain.id;
    if (index && index <= atomic_load_explicit(&ds__notes.domains, memory_order_acquire) &&
        (uint32_t)(domain.id >> 32) == atomic_load(&ds__notes.generation) + 1)
        return (int)index;
    ds__range_fail(fn, site, DS_ERR_INVALID_HANDLE,
                   "the domain was never created, or ended with ds_shutdown");
    return -1;
}

/* Returns the thread's level in a domain. */
static inline int *ds__range_level(int domain) {
    ds__tls_block *t = &ds__tls;
    uint32_t now = atomic_load_explicit(&ds__notes.generation, memory_order_relaxed);
    if (DS__UNLIKELY(t->domains != now)) {
        memset(t->level + 1, 0, sizeof t->level - sizeof t->level[0]);
        t->domains = now;
    }
    return &t->level[domain];
}

/* Returns the domain of a description, or a negative result. */
static inline int ds__range_check(const char *fn, ds_site site, const ds_range_desc *d) {
    if (DS__UNLIKELY(!d || !d->text))
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE,
                              d ? "the text is NULL" : "desc is NULL");
    if (DS__UNLIKELY((unsigned)d->payload.kind > DS_PAYLOAD_F64))
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE,
                              "payload.kind is %d; use a DS_PAYLOAD_* kind", (int)d->payload.kind);
    if (DS__UNLIKELY(!ds__reserved_clear(d->reserved, sizeof d->reserved)))
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE,
                              "ds_range_desc.reserved is not 0: the struct was not zeroed, or has "
                              "a member of a later version");
    int domain = ds__range_domain_of(fn, site, d->domain);
    return domain < 0 ? DS_ERR_INVALID_HANDLE : domain;
}

#endif
