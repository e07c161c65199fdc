/* trace/output.h - outputs: files, and text that is written next.

   Opens and closes files (ds__trace_output_open), collects their text (ds__trace_put,
   ds__trace_print, ds__trace_put_string), and writes it (ds__trace_output_flush), compressed if the
   format says so. Copies the tables for writers (ds__trace_view_update).

   Invariants: if there is no memory or the file takes no more, `failed` is set, and nothing is
   written afterwards.
   Locks: ds__trace.file_lock is held.
   Threads: any. */
#ifndef DS__TRACE_OUTPUT_H
#define DS__TRACE_OUTPUT_H

#include "../base/utf8.h"
#include "../os/deflate.h"
#include "record.h"

#include <stdarg.h>

/* Copies the new entries of a table. Returns their number; less if there is no memory. */
static size_t ds__trace_view_copy(void *to, size_t element, size_t have, size_t *room,
                                  const void *from, size_t count) {
    char *list;
    if (have >= count || !ds__array_reserve(to, element, have, count - have, room))
        return have;
    memcpy(&list, to, sizeof list);
    memcpy(list + have * element, (const char *)from + have * element, (count - have) * element);
    return count;
}

/* Brings the copies of the tables up to date. Streams and threads may get another name, so they are
   copied each time. Returns 0 if there is no memory for all entries. */
static int ds__trace_view_update(void) {
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_view.texts =
        ds__trace_view_copy(&ds__trace_view.text, sizeof *ds__trace_view.text, ds__trace_view.texts,
                            &ds__trace_view.text_room, ds__trace.text, ds__trace.texts);
    ds__trace_view.streams =
        ds__trace_view_copy(&ds__trace_view.stream, sizeof *ds__trace_view.stream, 0,
                            &ds__trace_view.stream_room, ds__trace.stream, ds__trace.streams);
    ds__trace_view.threads =
        ds__trace_view_copy(&ds__trace_view.thread, sizeof *ds__trace_view.thread, 0,
                            &ds__trace_view.thread_room, ds__trace.thread, ds__trace.threads);
    int complete = ds__trace_view.texts == ds__trace.texts &&
                   ds__trace_view.streams == ds__trace.streams &&
                   ds__trace_view.threads == ds__trace.threads;
    ds__mutex_unlock(&ds__trace.lock);
    return complete;
}

static void ds__trace_view_deinit(void) {
    ds__host_free(ds__trace_view.text);
    ds__host_free(ds__trace_view.stream);
    ds__host_free(ds__trace_view.thread);
    memset(&ds__trace_view, 0, sizeof ds__trace_view);
}

/* Returns a text by its number. */
static const char *ds__trace_view_text(uint32_t number) {
    return number < ds__trace_view.texts ? ds__trace_view.text[number] : "";
}

/* Returns the stream of a row, or NULL if it has none or there was no memory for the copy. */
static const ds__trace_stream *ds__trace_view_stream(uint32_t row) {
    return row < ds__trace_view.streams ? &ds__trace_view.stream[row] : NULL;
}

/* Makes room for `more` bytes and a zero. Returns 0 if there is no memory. */
static int ds__trace_room(ds__trace_output *o, size_t more) {
    if (o->size + more < o->room)
        return 1;
    size_t room = 2 * (o->size + more) + 4096;
    char *fresh = o->failed ? NULL : ds__host_alloc(room);
    if (!fresh) {
        o->failed = 1;
        return 0;
    }
    if (o->size)
        memcpy(fresh, o->text, o->size);
    ds__host_free(o->text);
    o->text = fresh;
    o->room = room;
    return 1;
}

static void ds__trace_put(ds__trace_output *o, const char *text, size_t size) {
    if (!ds__trace_room(o, size))
        return;
    memcpy(o->text + o->size, text, size);
    o->size += size;
}

__attribute__((format(DS__PRINTF, 2, 3))) static void ds__trace_print(ds__trace_output *o,
                                                                      const char *format, ...) {
    va_list args;
    char line[512];
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ds__trace_put(o, line, ds__text_length(n, sizeof line));
}

/* Writes a JSON string with its quotes. No "<" is in it, so that it may stand in a script of a
   page. Bytes that are no UTF-8 become "?". */
static void ds__trace_put_string(ds__trace_output *o, const char *text) {
    const unsigned char *t = (const unsigned char *)text;
    ds__trace_put(o, "\"", 1);
    while (*t) {
        size_t more = ds__utf8_length((const char *)t);
        if (*t == '"' || *t == '\\')
            ds__trace_print(o, "\\%c", *t);
        else if (*t < 32 || *t == '<' || *t == 127)
            ds__trace_print(o, "\\u%04x", *t);
        else if (!more)
            ds__trace_put(o, "?", 1);
        else
            ds__trace_put(o, (const char *)t, more);
        t += more ? more : 1;
    }
    ds__trace_put(o, "\"", 1);
}

/* Writes bytes in base64. */
static void ds__trace_put_base64(ds__trace_output *o, const unsigned char *from, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (!ds__trace_room(o, (size + 2) / 3 * 4))
        return;
    char *to = o->text + o->size;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t bits = (uint32_t)from[i] << 16;
        bits |= i + 1 < size ? (uint32_t)from[i + 1] << 8 : 0;
        bits |= i + 2 < size ? from[i + 2] : 0;
        *to++ = digits[bits >> 18];
        *to++ = digits[bits >> 12 & 63];
        *to++ = i + 1 < size ? digits[bits >> 6 & 63] : '=';
        *to++ = i + 2 < size ? digits[bits & 63] : '=';
    }
    o->size += (size_t)(to - (o->text + o->size));
}

/* Writes bytes to the file, so that they are in it even if the process is killed. */
static void ds__trace_output_write(ds__trace_output *o, const char *text, size_t size) {
    if (o->failed || !size)
        return;
    if (fwrite(text, 1, size, o->file) == size && fflush(o->file) == 0)
        o->bytes += size;
    else
        o->failed = 1;
}

/* Writes the collected text. end: a compressed file ends with it. */
static void ds__trace_output_flush(ds__trace_output *o, int end) {
    if (o->packer && !o->failed) {
        const char *packed = o->text;
        size_t size = ds__deflate(o->packer, o->text, o->size, end, &packed);
        if (size == SIZE_MAX)
            o->failed = 1;
        else
            ds__trace_output_write(o, packed, size);
    } else {
        ds__trace_output_write(o, o->text, o->size);
    }
    o->part_size += o->size;
    o->size = 0;
}

/* Opens the file of an output whose format is set. Returns 0 after a failure; errno has it. */
static int ds__trace_output_fopen(ds__trace_output *o, const char *path) {
    o->file = fopen(path, "wb");
    o->part_size = 0;
    o->packer = NULL;
    if (!o->file || !o->format->compressed)
        return o->file != NULL;
    o->packer = ds__deflate_begin(1);
    if (o->packer)
        return 1;
    fclose(o->file);
    o->file = NULL;
    errno = ENOMEM;
    return 0;
}

static void ds__trace_output_fclose(ds__trace_output *o) {
    ds__deflate_end(o->packer);
    o->packer = NULL;
    if (o->file && fclose(o->file) != 0)
        o->failed = 1;
    o->file = NULL;
}

/* Continues in another file, whose name has the number of the part. Returns 0 after a failure. */
static int ds__trace_output_turn(ds__trace_output *o) {
    char path[sizeof o->path + 16];
    size_t stem = strlen(o->path) - strlen(o->format->ending);
    ds__trace_output_fclose(o);
    o->part++;
    snprintf(path, sizeof path, "%.*s-%d%s", (int)stem, o->path, o->part + 1, o->format->ending);
    if (!ds__trace_output_fopen(o, path)) {
        ds__log_warn("trace: the file %.200s: %s", path, strerror(errno));
        o->failed = 1;
    }
    return !o->failed;
}

/* Frees an output after its file is closed. */
static void ds__trace_output_deinit(ds__trace_output *o) {
    ds__host_free(o->text);
    ds__host_free(o->ends);
    ds__host_free(o->queue);
    ds__host_free(o->list);
    memset(o, 0, sizeof *o);
}

#endif
