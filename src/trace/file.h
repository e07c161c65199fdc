/* trace/file.h - files of a trace: the one that is written while it runs, and dumps.

   ds__trace_pump writes the records that were added since the last call. ds__trace_dump_write
   writes the ring to a file of its own.

   Policy: a file that cannot be written any more is reported once, and the trace goes on without
   it.

   Invariants: a record is in the file once, or counted as lost.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken for short steps.
   Threads: any. */
#ifndef DS__TRACE_FILE_H
#define DS__TRACE_FILE_H

#include "html.h"
#include "standing.h"

static void ds__trace_txt_begin(ds__trace_output *o) {
    (void)o;
}

static void ds__trace_txt_end(ds__trace_output *o, uint64_t now) {
    (void)now;
    ds__trace_summary_write(o);
    ds__trace_print(o, "\n");
    ds__trace_standing_write(o);
    ds__trace_output_flush(o, 1);
}

static const ds__trace_format ds__trace_formats[] = {
    { ".html", 0, ds__trace_html_begin, ds__trace_html_write, ds__trace_html_end },
    { ".json", 0, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".json.gz", 1, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".txt", 0, ds__trace_txt_begin, NULL, ds__trace_txt_end },
};

/* Finds the format by the ending of a path. Sets the error if there is none. */
static ds_result ds__trace_format_find(const char *path, const ds__trace_format **out) {
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ds__trace_formats / sizeof ds__trace_formats[0]; i++) {
        const char *ending = ds__trace_formats[i].ending;
        size_t m = strlen(ending);
        if (n <= m || strcmp(path + n - m, ending) != 0)
            continue;
        *out = &ds__trace_formats[i];
        if (ds__trace_formats[i].compressed && !DS__DEFLATES)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "trace: the file \"%.200s\" needs zlib: compile with DEVSTREAM_ZLIB",
                            path);
        DS__REQUIRE(n < DS__TRACE_PATH,
                    "trace: the name of the file has %zu characters; at most "
                    "%d are allowed",
                    n, DS__TRACE_PATH - 1);
        return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "trace: the file \"%.200s\" must end with .html, .json, .json.gz or .txt",
                    path);
}

/* Copies the name of a file, with the number of the process in place of each "%p". Returns 0 if it
   has not enough room. */
static int ds__trace_path(char *to, size_t room, const char *name) {
    size_t n = 0;
    while (*name && n < room) {
        if (strncmp(name, "%p", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%u", ds__os_process_id());
            name += 2;
        } else {
            to[n++] = *name++;
        }
    }
    if (n >= room)
        return 0;
    to[n] = 0;
    return 1;
}

static ds_result ds__trace_output_open(ds__trace_output *o, const char *path) {
    const ds__trace_format *format;
    ds_result r = ds__trace_format_find(path, &format);
    if (r < 0)
        return r;
    memset(o, 0, sizeof *o);
    o->format = format;
    DS__REQUIRE(ds__trace_path(o->path, sizeof o->path, path),
                "trace: the file \"%.200s\" has too long a name with the process in it", path);
    o->list = ds__host_alloc(DS__TRACE_CHUNK * sizeof *o->list);
    if (!o->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to write a trace");
    if (ds__trace_output_fopen(o, o->path)) {
        (void)ds__trace_view_update();
        format->begin(o);
        return DS_OK;
    }
    r = ds__fail(errno == ENOMEM ? DS_ERR_OUT_OF_MEMORY : DS_ERR_INVALID_VALUE,
                 "trace: the file \"%.200s\": %s", o->path, strerror(errno));
    ds__trace_output_deinit(o);
    return r;
}

/* Copies records from the ring, from `at` on and before `upto`. Returns their number. */
static size_t ds__trace_ring_read(ds__trace_output *o, uint64_t upto) {
    size_t count = 0;
    while (count < DS__TRACE_CHUNK && o->at.record < upto) {
        ds__mutex_lock(&ds__trace.lock);
        uint64_t oldest =
            ds__trace.head > ds__trace.ring_size ? ds__trace.head - ds__trace.ring_size : 0;
        if (o->at.record < oldest) {
            o->lost += oldest - o->at.record;
            o->at.record = oldest;
        }
        for (size_t n = 0; n < DS__TRACE_SLICE && count < DS__TRACE_CHUNK && o->at.record < upto;
             n++)
            o->list[count++] = ds__trace.ring[o->at.record++ & (ds__trace.ring_size - 1)];
        ds__mutex_unlock(&ds__trace.lock);
    }
    return count;
}

/* Writes the records that were added until now. */
static void ds__trace_pump(ds__trace_output *o) {
    ds__mutex_lock(&ds__trace.lock);
    uint64_t upto = ds__trace.head;
    uint64_t dropped = ds__trace.dropped;
    ds__mutex_unlock(&ds__trace.lock);
    while (o->file && o->format->write && !o->failed && o->at.record < upto) {
        uint64_t lost = o->lost;
        size_t count = ds__trace_ring_read(o, upto);
        (void)ds__trace_view_update();
        o->format->write(o, o->list, count, o->lost - lost + dropped - o->dropped);
        o->dropped = dropped;
    }
    if (!o->failed || !o->file)
        return;
    ds__log_warn("trace: the file %.200s takes no more: the disk is full, or there is no memory",
                 o->path);
    ds__trace_output_fclose(o);
}

/* Completes the file. */
static void ds__trace_output_close(ds__trace_output *o, uint64_t now) {
    if (!o->file)
        return;
    o->format->end(o, now);
    ds__trace_output_fclose(o);
    if (o->failed)
        ds__log_warn("trace: the file %.200s could not be completed", o->path);
}

/* Writes the operations at which streams stand, behind the records of a dump. */
static void ds__trace_dump_standing(ds__trace_output *o) {
    ds__activity_standing *list = ds__host_alloc(DS__TRACE_STANDING * sizeof *list);
    size_t count = list && o->format->write ? ds__trace_standing_list(list) : 0;
    for (size_t i = 0; i < count; i++)
        o->list[i] = ds__trace_standing_record(&list[i]);
    (void)ds__trace_view_update();
    if (count)
        o->format->write(o, o->list, count, 0);
    ds__host_free(list);
}

/* Writes the ring to a file. */
static ds_result ds__trace_dump_write(const char *path) {
    ds__trace_output *o = ds__host_alloc(sizeof *o);
    if (!o)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to write a trace");
    ds__mutex_lock(&ds__trace.file_lock);
    ds_result r = ds__trace_output_open(o, path);
    if (r == DS_OK) {
        ds__mutex_lock(&ds__trace.lock);
        o->dropped = ds__trace.dropped;
        if (ds__trace.head > ds__trace.ring_size)
            o->at.record = ds__trace.head - ds__trace.ring_size;
        ds__mutex_unlock(&ds__trace.lock);
        ds__trace_pump(o);
        if (o->file)
            ds__trace_dump_standing(o);
        ds__trace_output_close(o, atomic_load(&ds__trace.on) ? ds__trace_now() : ds__trace.end_ns);
        if (o->failed)
            r = ds__fail(DS_ERR_SYSTEM, "trace: the file \"%.200s\" could not be written", path);
        ds__trace_output_deinit(o);
    }
    ds__mutex_unlock(&ds__trace.file_lock);
    ds__host_free(o);
    return r;
}

#endif
