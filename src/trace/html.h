/* trace/html.h - traces as a page.

   Writes the text of the page, then chunks: scripts of a type of their own, each one a JSON object
   with new entries of the tables and records in base64, compressed if zlib is compiled in. A page
   that is cut off shows the chunks that are complete.

   Invariants: an entry of a table is in the same chunk as the first record that refers to it, or in
   an earlier one.
   Locks: ds__trace.file_lock is held.
   Threads: any. */
#ifndef DS__TRACE_HTML_H
#define DS__TRACE_HTML_H

#include "output.h"
#include "page.gen.h"

/* Begins a member of the object. */
static void ds__trace_html_member(ds__trace_output *o, int *first, const char *name) {
    ds__trace_print(o, "%s\"%s\":", *first ? "" : ",", name);
    *first = 0;
}

/* Writes the new entries of the tables. */
static void ds__trace_html_tables(ds__trace_output *o, int *first) {
    ds__trace_place *at = &o->at;
    if (at->devices < ds__trace_devices()) {
        ds__trace_html_member(o, first, "devices");
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            for (int i = 0; i < ds__g.backend[b].device_count; i++)
                ds__trace_print(o, "%s\"%s:%d\"", at->devices++ ? "," : "[",
                                ds__type_name((int)ds__g.backend[b].type), i);
        ds__trace_print(o, "]");
    }
    if (!at->texts)
        at->texts = 1; /* the page knows text 0 */
    if (at->texts < ds__trace_view.texts) {
        ds__trace_html_member(o, first, "strings");
        for (const char *sign = "["; at->texts < ds__trace_view.texts; at->texts++, sign = ",") {
            ds__trace_print(o, "%s", sign);
            ds__trace_put_string(o, ds__trace_view.text[at->texts]);
        }
        ds__trace_print(o, "]");
    }
    if (at->streams < ds__trace_view.streams) {
        ds__trace_html_member(o, first, "streams");
        for (const char *sign = "["; at->streams < ds__trace_view.streams;
             at->streams++, sign = ",") {
            const ds__trace_stream *s = &ds__trace_view.stream[at->streams];
            ds__trace_print(o, "%s[%u,%u,%llu]", sign, s->device, s->label,
                            (unsigned long long)s->number);
        }
        ds__trace_print(o, "]");
    }
    if (at->threads < ds__trace_view.threads) {
        ds__trace_html_member(o, first, "threads");
        for (const char *sign = "["; at->threads < ds__trace_view.threads;
             at->threads++, sign = ",") {
            const ds__trace_thread *t = &ds__trace_view.thread[at->threads];
            ds__trace_print(o, "%s[%llu,%u]", sign, (unsigned long long)t->number, t->name);
        }
        ds__trace_print(o, "]");
    }
}

/* Writes the records. With zlib, each chunk is a stream of its own. */
static void ds__trace_html_records(ds__trace_output *o, int *first, const ds__trace_record *list,
                                   size_t count) {
    const char *packed = (const char *)list;
    size_t size = count * sizeof *list;
    void *packer = ds__deflate_begin(0);
    if (packer)
        size = ds__deflate(packer, packed, size, 1, &packed);
    if (size == SIZE_MAX) {
        o->failed = 1;
    } else {
        ds__trace_html_member(o, first, packer ? "deflated" : "records");
        ds__trace_put(o, "\"", 1);
        ds__trace_put_base64(o, (const unsigned char *)packed, size);
        ds__trace_put(o, "\"", 1);
    }
    ds__deflate_end(packer);
}

static const char ds__trace_chunk_begin[] = "<script type=application/x-devstream>{";
static const char ds__trace_chunk_end[] = "}</script>\n";

static void ds__trace_html_write(ds__trace_output *o, const ds__trace_record *list, size_t count,
                                 uint64_t dropped) {
    int first = 1;
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_html_tables(o, &first);
    if (dropped) {
        ds__trace_html_member(o, &first, "dropped");
        ds__trace_print(o, "%llu", (unsigned long long)dropped);
    }
    if (count)
        ds__trace_html_records(o, &first, list, count);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 0);
}

static void ds__trace_html_begin(ds__trace_output *o) {
    char program[256];
    for (size_t i = 0; i < sizeof ds__trace_page / sizeof ds__trace_page[0]; i++)
        ds__trace_put(o, ds__trace_page[i], strlen(ds__trace_page[i]));
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_print(o, "\"version\":1,\"program\":");
    ds__os_program_name(program, sizeof program);
    ds__trace_put_string(o, program);
    ds__trace_print(o, ",\"driver\":\"%s\",\"unix_ns\":\"%llu\"",
                    ds__g.backend[0].available ? "cuda" : "cpu",
                    (unsigned long long)ds__trace.unix_ns);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 0);
}

static void ds__trace_html_end(ds__trace_output *o, uint64_t now) {
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_print(o, "\"end\":%llu", (unsigned long long)now);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 1);
}

#endif
