/* trace/options.h - options of the layer.

   ds__trace_configure reads the list of ds_init_desc.trace or DEVSTREAM_TRACE into ds__trace.start.
   ds__trace_desc_check checks parameters, of a list and of ds_trace_start.

   Invariants: the texts of ds__trace.start point to static memory.
   Locks: ds__g.mutex is held.
   Threads: the one that starts devstream. */
#ifndef DS__TRACE_OPTIONS_H
#define DS__TRACE_OPTIONS_H

#include "file.h"

/* Checks the parameters of a trace. */
static ds_result ds__trace_desc_check(const ds_trace_desc *d) {
    const ds__trace_format *format;
    const char *paths[2] = { d->file, d->dump };
    for (int i = 0; i < 2; i++) {
        ds_result r = paths[i] ? ds__trace_format_find(paths[i], &format) : DS_OK;
        if (r < 0)
            return r;
    }
    DS__REQUIRE(!d->file || !d->dump || strcmp(d->file, d->dump) != 0,
                "trace: the file and the dump are both \"%.200s\"; use two files", d->file);
    DS__REQUIRE(!d->ring || (d->ring >= DS__TRACE_RING_LEAST && d->ring <= DS__TRACE_RING_MOST),
                "trace: a ring of %zu records; %d to %d are allowed", d->ring, DS__TRACE_RING_LEAST,
                DS__TRACE_RING_MOST);
    DS__REQUIRE(d->signal >= 0 && d->signal <= 64,
                "trace: signal %d; 1 to 64 are allowed, or 0 for none", d->signal);
    DS__REQUIRE(d->cupti == 0 || d->cupti == 1, "trace: cupti is %d; 0 or 1 is allowed", d->cupti);
    DS__REQUIRE(!d->signal || d->dump, "trace: signal %d needs a file for the dump", d->signal);
    return DS_OK;
}

/* Reads a number from 1 to `most`. Returns 0 if the text is none. */
static unsigned long long ds__trace_number(const char *text, unsigned long long most) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && n <= most ? n : 0;
}

/* Takes one option. */
static ds_result ds__trace_option(const char *o) {
    static char file[DS__TRACE_PATH];
    static char dump[DS__TRACE_PATH];
    ds_trace_desc *d = &ds__trace.start;
    const char *value = strchr(o, '=');
    const char *path = value ? value + 1 : o;
    DS__REQUIRE(strlen(path) < sizeof file,
                "trace: \"%.40s...\" has %zu characters; at most %zu are "
                "allowed",
                o, strlen(path), sizeof file - 1);
    if (strcmp(o, "cupti") == 0) {
        d->cupti = 1;
    } else if (!value || strncmp(o, "file=", 5) == 0) {
        DS__REQUIRE(!d->file, "trace: two files, \"%.100s\" and \"%.100s\"; use one", d->file,
                    path);
        memcpy(file, path, strlen(path) + 1);
        d->file = file;
    } else if (strncmp(o, "dump=", 5) == 0) {
        DS__REQUIRE(!d->dump, "trace: two dumps, \"%.100s\" and \"%.100s\"; use one", d->dump,
                    path);
        memcpy(dump, path, strlen(path) + 1);
        d->dump = dump;
    } else if (strncmp(o, "ring=", 5) == 0) {
        d->ring = (size_t)ds__trace_number(value + 1, DS__TRACE_RING_MOST);
        DS__REQUIRE(d->ring, "trace: \"%.40s\"; use ring=%d to ring=%d", o, DS__TRACE_RING_LEAST,
                    DS__TRACE_RING_MOST);
    } else if (strncmp(o, "timeout=", 8) == 0) {
        d->timeout_ns = ds__trace_number(value + 1, 1000000000) * 1000000;
        DS__REQUIRE(d->timeout_ns, "trace: \"%.40s\"; use timeout=1 to timeout=1000000000", o);
    } else if (strncmp(o, "signal=", 7) == 0) {
        d->signal = (int)ds__trace_number(value + 1, 64);
        DS__REQUIRE(d->signal, "trace: \"%.40s\"; use signal=1 to signal=64", o);
    } else {
        return ds__fail(
            DS_ERR_INVALID_VALUE,
            "trace: unknown option \"%.40s\"; use a file, file=FILE, ring=N, dump=FILE, "
            "timeout=MS, signal=N or cupti",
            o);
    }
    return DS_OK;
}

/* Reads a list of options; "1" stands for the defaults, and without options no trace begins with
   devstream. NULL: forgets them. On failure they are forgotten, too. */
static ds_result ds__trace_configure(const char *list) {
    char option[DS__LAYER_OPTIONS];
    ds_result r = DS_OK;
    memset(&ds__trace.start, 0, sizeof ds__trace.start);
    ds__trace.starts = 0;
    while (list && *list && r == DS_OK) {
        size_t n = strcspn(list, ",");
        memcpy(option, list, n);
        option[n] = 0;
        list += n + (list[n] == ',');
        ds__trace.starts |= n > 0;
        if (n && strcmp(option, "1") != 0)
            r = ds__trace_option(option);
    }
    if (r == DS_OK)
        r = ds__trace_desc_check(&ds__trace.start);
    if (r < 0) {
        memset(&ds__trace.start, 0, sizeof ds__trace.start);
        ds__trace.starts = 0;
    }
    return r;
}

#endif
