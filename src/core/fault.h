/* core/fault.h - fault layer: makes the n-th call of a driver entry fail.

   A wrapped driver table for tests of error paths (ds__fault_layer). The text "entry:n" of
   ds_init or DEVSTREAM_FAULT selects the entry and the call; "*" counts the calls of all entries
   (ds__fault_parse).

   Invariants: both drivers share one count, and at most one call fails with DS_ERR_DRIVER. All
   other calls are passed to the next table. Only the entries of DS__ENTRIES can fail.
   Locks: none. The fault and the tables are set during ds_init or the start, under ds__g.mutex.
   Threads: any thread that calls a driver entry, including workers of the CPU driver; the count
   is atomic. */
#ifndef DS__CORE_FAULT_H
#define DS__CORE_FAULT_H

#include "../base/error.h"
#include "../base/driver.h"

static struct {
    const ds__driver *next[DS_BACKEND_COUNT];
    ds__driver table[DS_BACKEND_COUNT];
    char entry[32];
    _Atomic uint64_t left;
} ds__fault;

__attribute__((noinline)) static int ds__fault_hit(const char *entry) {
    if (strcmp(ds__fault.entry, "*") != 0 && strcmp(ds__fault.entry, entry) != 0)
        return 0;
    return atomic_fetch_sub(&ds__fault.left, 1) == 1;
}

/* One function per entry and driver, since an entry does not know which driver it belongs to. */
#define DS__FAULT_ENTRY(backend, entry, parameters, arguments)                           \
    static ds_result ds__fault_##backend##_##entry parameters {                          \
        if (DS__UNLIKELY(ds__fault_hit(#entry)))                                         \
            return ds__fail(DS_ERR_DRIVER, "injected fault in the driver's %s", #entry); \
        return ds__fault.next[backend]->entry arguments;                                 \
    }
#define DS__FAULT_CUDA(entry, parameters, arguments) \
    DS__FAULT_ENTRY(0, entry, parameters, arguments)
#define DS__FAULT_CPU(entry, parameters, arguments) DS__FAULT_ENTRY(1, entry, parameters, arguments)
DS__ENTRIES(DS__FAULT_CUDA)
DS__ENTRIES(DS__FAULT_CPU)
#undef DS__FAULT_CUDA
#undef DS__FAULT_CPU

static const ds__driver *ds__fault_layer(const ds__driver *next, int backend) {
    ds__fault.next[backend] = next;
    ds__fault.table[backend] = *next;
#define DS__MEMBER(entry, parameters, arguments) \
    ds__fault.table[backend].entry = backend ? ds__fault_1_##entry : ds__fault_0_##entry;
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
    return &ds__fault.table[backend];
}

/* Parses "entry:n". Returns DS_ERR_INVALID_VALUE for an unknown entry or a bad number. */
static ds_result ds__fault_parse(const char *text) {
    static const char *const names[] = {
#define DS__NAME(entry, parameters, arguments) #entry,
        DS__ENTRIES(DS__NAME)
#undef DS__NAME
            "*"
    };
    const char *colon = text ? strchr(text, ':') : NULL;
    char *end = NULL;
    ds__fault.entry[0] = 0;
    atomic_store(&ds__fault.left, 0);
    if (!text || !*text)
        return DS_OK;
    uint64_t n = colon ? strtoull(colon + 1, &end, 10) : 0;
    if (n > 0 && *end == 0)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strlen(names[i]) != (size_t)(colon - text) ||
                strncmp(names[i], text, (size_t)(colon - text)) != 0)
                continue;
            snprintf(ds__fault.entry, sizeof ds__fault.entry, "%s", names[i]);
            atomic_store(&ds__fault.left, n);
            return DS_OK;
        }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "the fault rule \"%s\" is invalid; use entry:n with a name of a driver entry",
                    text);
}

#endif
