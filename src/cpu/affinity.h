/* cpu/affinity.h - the processors on which threads of the CPU driver run.

   Reads a list of processors such as "0-3,8" (ds__cpu_affinity_read), takes that of the options or
   of the environment (ds__cpu_affinity_start), and binds the driver's threads: each worker to one
   processor, all other threads to all of the list.

   Policy: a thread for host functions is not bound to one processor, because the worker of that
   processor may run a long kernel. Threads of the program are never bound, also while they wait and
   run operations.

   Invariants: the list is read before the first thread starts, and does not change until the
   driver stops. An empty list binds nothing.
   Locks: none.
   Threads: ds__cpu_affinity_start runs on the thread that starts the driver, the functions that
   bind on the bound thread. */
#ifndef DS__CPU_AFFINITY_H
#define DS__CPU_AFFINITY_H

#include "../api/cpu.h"
#include "../base/error.h"
#include "../os/os.h"

enum { DS__CPU_LISTED = 1024 }; /* the most processors of a list */

typedef struct ds__cpu_affinity {
    ds__os_affinity mask; /* all processors of the list */
    int count;
    uint16_t processor[DS__CPU_LISTED]; /* in the order of the list */
} ds__cpu_affinity;

/* The list of the running driver. */
static ds__cpu_affinity ds__cpu_bound;

/* Writes a set of processors as numbers and ranges; a long one is cut. */
static void ds__cpu_affinity_format(const ds__os_affinity *mask, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (unsigned i = 0; i < DS__OS_PROCESSORS && used + 16 < size; i++) {
        if (!ds__os_affinity_has(mask, i))
            continue;
        unsigned last = i;
        while (ds__os_affinity_has(mask, last + 1))
            last++;
        int n = snprintf(out + used, size - used, last > i ? "%s%u-%u" : "%s%u", used ? "," : "", i,
                         last);
        used += (size_t)n;
        i = last;
    }
}

/* Reads a number at *at and moves *at behind it. Returns 0 if there is none, or a larger one than
   any processor has. */
static int ds__cpu_affinity_number(const char **at, unsigned *out) {
    const char *p = *at;
    unsigned n = 0;
    for (; *p >= '0' && *p <= '9' && n < DS__OS_PROCESSORS; p++)
        n = 10 * n + (unsigned)(*p - '0');
    *out = n;
    int found = p > *at && n < DS__OS_PROCESSORS;
    *at = p;
    return found;
}

/* Appends the processors of a range. Returns DS_ERR_INVALID_VALUE if one is not allowed. */
static ds_result ds__cpu_affinity_add(ds__cpu_affinity *list, unsigned first, unsigned last,
                                      const char *name, const char *text) {
    ds__os_affinity allowed;
    char names[160];
    ds__os_affinity_get(&allowed);
    for (unsigned i = first; i <= last; i++) {
        if (!ds__os_affinity_has(&allowed, i)) {
            ds__cpu_affinity_format(&allowed, names, sizeof names);
            return ds__fail(DS_ERR_INVALID_VALUE,
                            "%s is \"%.40s\": processor %u does not exist or is outside of the "
                            "affinity mask; %s are allowed",
                            name, text, i, names);
        }
        DS__REQUIRE(list->count < DS__CPU_LISTED,
                    "%s is \"%.40s\": at most %d processors are allowed", name, text,
                    DS__CPU_LISTED);
        list->processor[list->count++] = (uint16_t)i;
        ds__os_affinity_add(&list->mask, i);
    }
    return DS_OK;
}

/* Reads a list of processors. `name` is the option for error messages. NULL or an empty text: an
   empty list. */
static ds_result ds__cpu_affinity_read(const char *text, const char *name, ds__cpu_affinity *out) {
    const char *at = text;
    memset(out, 0, sizeof *out);
    while (at && *at) {
        const char *part = at;
        unsigned first;
        unsigned last;
        int valid = ds__cpu_affinity_number(&at, &first);
        last = first;
        if (valid && *at == '-') {
            at++;
            valid = ds__cpu_affinity_number(&at, &last) && first <= last;
        }
        valid = valid && (*at == 0 || (*at == ',' && at[1] != 0));
        DS__REQUIRE(valid,
                    "%s is \"%.40s\", which is wrong at \"%.20s\"; numbers below %d and ascending "
                    "ranges, with commas between them, are allowed, as \"0-3,8\"",
                    name, text, part, DS__OS_PROCESSORS);
        ds_result r = ds__cpu_affinity_add(out, first, last, name, text);
        if (r < 0)
            return r;
        at += *at == ',';
    }
    return DS_OK;
}

/* Checks the list of the options. */
static ds_result ds__cpu_affinity_check(const ds_cpu_desc *desc) {
    ds__cpu_affinity list;
    return ds__cpu_affinity_read(desc->affinity, "ds_cpu_desc.affinity", &list);
}

/* Reads the list of the options, or else of the environment. The mask of the thread may have
   changed since ds_init. */
static ds_result ds__cpu_affinity_start(const ds_cpu_desc *desc) {
    return desc->affinity
               ? ds__cpu_affinity_read(desc->affinity, "ds_cpu_desc.affinity", &ds__cpu_bound)
               : ds__cpu_affinity_read(getenv("DEVSTREAM_CPU_AFFINITY"), "DEVSTREAM_CPU_AFFINITY",
                                       &ds__cpu_bound);
}

/* Binds the calling thread, worker `index`, to its processor. A processor that went offline since
   the start binds nothing. */
static void ds__cpu_affinity_bind_worker(size_t index) {
    if (!ds__cpu_bound.count)
        return;
    ds__os_affinity one;
    memset(&one, 0, sizeof one);
    ds__os_affinity_add(&one, ds__cpu_bound.processor[index % (size_t)ds__cpu_bound.count]);
    (void)ds__os_affinity_set(&one);
}

/* Binds the calling thread, which is of the driver but no worker, to all listed processors. */
static void ds__cpu_affinity_bind(void) {
    if (ds__cpu_bound.count)
        (void)ds__os_affinity_set(&ds__cpu_bound.mask);
}

#endif
