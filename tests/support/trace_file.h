/* Reads traces: the chunks of a page into records and tables, as the page does. */
#ifndef TRACE_FILE_H
#define TRACE_FILE_H

#include "json.h"

#include <stdio.h>

/* A record, in the words of the format. */
typedef struct trace_record {
    uint8_t kind, flags, src, dst;
    uint32_t row;
    uint64_t begin, end, time;
    uint32_t name, call, file, line;
    uint64_t amount;
    uint32_t id, cause;
} trace_record;

typedef struct trace_row {
    uint32_t device, label;
    uint64_t number;
} trace_row;

typedef struct trace_file {
    trace_record *record;
    size_t records;
    char **text;
    size_t texts;
    char **device;
    size_t devices;
    trace_row *stream;
    size_t streams;
    trace_row *thread; /* label and number */
    size_t threads;
    char program[64], driver[16];
    uint64_t dropped, end;
    int chunks, ended;
    int cut; /* 1: the last chunk is not complete */
} trace_file;

static char *trace_read_all(const char *path, size_t *out_size) {
    FILE *file = fopen(path, "rb");
    size_t room = 1 << 16, size = 0, n;
    char *text = json_alloc(NULL, 0, room);
    *out_size = 0;
    if (!file)
        return NULL;
    while ((n = fread(text + size, 1, room - size - 1, file)) > 0) {
        size += n;
        if (size + 1 == room)
            text = json_alloc(text, size, room *= 2);
    }
    fclose(file);
    text[size] = 0;
    *out_size = size;
    return text;
}

/* Decodes base64 in place. Returns the bytes, or SIZE_MAX for a wrong text. */
static size_t trace_base64(char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(text), out = 0;
    if (n % 4)
        return SIZE_MAX;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        int pad = (text[i + 2] == '=') + (text[i + 3] == '=');
        for (size_t k = 0; k < 4; k++) {
            const char *d = text[i + k] == '=' && i + 4 == n ? digits : strchr(digits, text[i + k]);
            if (!d)
                return SIZE_MAX;
            bits = bits << 6 | (uint32_t)(d - digits);
        }
        text[out++] = (char)(bits >> 16);
        if (pad < 2)
            text[out++] = (char)(bits >> 8);
        if (pad < 1)
            text[out++] = (char)bits;
    }
    return out;
}

#ifdef DEVSTREAM_ZLIB
#include <zlib.h>

/* Returns the bytes of a zlib stream. */
static char *trace_inflate(const char *from, size_t size, size_t *out_size, int gzip) {
    z_stream z;
    size_t room = 64 * size + 4096;
    char *to = json_alloc(NULL, 0, room);
    memset(&z, 0, sizeof z);
    inflateInit2(&z, gzip ? 15 + 16 : 15);
    z.next_in = (Bytef *)(uintptr_t)from;
    z.avail_in = (uInt)size;
    z.next_out = (Bytef *)to;
    z.avail_out = (uInt)room;
    int code = inflate(&z, Z_SYNC_FLUSH);
    *out_size = code == Z_STREAM_END || code == Z_OK ? room - z.avail_out : SIZE_MAX;
    inflateEnd(&z);
    return to;
}
#endif

static uint32_t trace_number(const json *v) {
    return v && v->kind == JSON_NUMBER ? (uint32_t)strtoull(v->text, NULL, 10) : 0;
}

static void trace_rows(trace_row **rows, size_t *count, const json *list, int is_thread) {
    for (size_t i = 0; list && i < list->count; i++) {
        const json *row = &list->item[i];
        *rows = json_alloc(*rows, *count * sizeof **rows, (*count + 1) * sizeof **rows);
        trace_row *r = &(*rows)[(*count)++];
        r->device = is_thread ? 0 : trace_number(&row->item[0]);
        r->label = trace_number(&row->item[1]);
        r->number = trace_number(&row->item[is_thread ? 0 : 2]);
    }
}

static void trace_texts(char ***texts, size_t *count, const json *list) {
    for (size_t i = 0; list && i < list->count; i++) {
        *texts = json_alloc(*texts, *count * sizeof **texts, (*count + 1) * sizeof **texts);
        (*texts)[(*count)++] = list->item[i].text;
    }
}

/* Adds a chunk. Returns 0 if it is wrong. */
static int trace_chunk(trace_file *t, const char *text, size_t size) {
    json chunk;
    if (json_parse(text, size, &chunk) || chunk.kind != JSON_OBJECT)
        return 0;
    t->chunks++;
    if (json_get(&chunk, "version")) {
        snprintf(t->program, sizeof t->program, "%s", json_text(&chunk, "program"));
        snprintf(t->driver, sizeof t->driver, "%s", json_text(&chunk, "driver"));
    }
    trace_texts(&t->text, &t->texts, json_get(&chunk, "strings"));
    trace_texts(&t->device, &t->devices, json_get(&chunk, "devices"));
    trace_rows(&t->stream, &t->streams, json_get(&chunk, "streams"), 0);
    trace_rows(&t->thread, &t->threads, json_get(&chunk, "threads"), 1);
    t->dropped += trace_number(json_get(&chunk, "dropped"));
    if (json_get(&chunk, "end")) {
        t->ended = 1;
        t->end = strtoull(json_text(&chunk, "end"), NULL, 10);
    }
    const json *records = json_get(&chunk, "records");
    const json *deflated = json_get(&chunk, "deflated");
    if (!records && !deflated)
        return 1;
    char *bytes = records ? records->text : deflated->text;
    size_t n = trace_base64(bytes);
#ifdef DEVSTREAM_ZLIB
    if (deflated && n != SIZE_MAX)
        bytes = trace_inflate(bytes, n, &n, 0);
#endif
    if (n % sizeof(trace_record))
        return 0;
    size_t have = t->records * sizeof *t->record;
    t->record = json_alloc(t->record, have, have + n);
    memcpy(t->record + t->records, bytes, n);
    t->records += n / sizeof(trace_record);
    return 1;
}

/* Reads a page. Returns 0 if it is not a trace. */
static int trace_read(const char *path, trace_file *t) {
    static const char begin[] = "\n<script type=application/x-devstream>{"; /* not in the page */
    size_t size;
    char *text = trace_read_all(path, &size);
    memset(t, 0, sizeof *t);
    t->text = json_alloc(NULL, 0, sizeof *t->text);
    t->text[t->texts++] = json_alloc(NULL, 0, 1);
    if (!text)
        return 0;
    char *at = text;
    while ((at = strstr(at, begin)) != NULL) {
        char *from = at + sizeof begin - 2;
        char *end = strstr(from, "</script>\n");
        if (!end) {
            t->cut = 1;
            break;
        }
        if (!trace_chunk(t, from, (size_t)(end - from)))
            return 0;
        at = end + sizeof "</script>" - 1;
    }
    return t->chunks > 0;
}

__attribute__((unused)) static const char *trace_text(const trace_file *t, uint32_t number) {
    return number < t->texts ? t->text[number] : "(no text)";
}

/* Returns the record of an operation, or NULL. */
__attribute__((unused)) static const trace_record *trace_find(const trace_file *t, uint32_t id) {
    for (size_t i = 0; i < t->records; i++)
        if (t->record[i].id == id && (t->record[i].kind < 9 || t->record[i].kind == 10))
            return &t->record[i];
    return NULL;
}

/* What is wrong with a record; NULL: nothing. */
static const char *trace_wrong_record(const trace_file *t, const trace_record *r) {
    if (r->begin > r->end)
        return "a record ends before its begin";
    if (r->name >= t->texts || r->call >= t->texts || r->file >= t->texts || r->src > t->devices ||
        r->dst > t->devices)
        return "a record has a number that no table has";
    if (r->kind >= 16)
        return r->kind < 24 && r->row >= t->threads ? "a call has no thread" : NULL;
    if (!(r->flags & 4) && (r->row >= t->streams || t->stream[r->row].device >= t->devices))
        return "an operation has no stream";
    if (!(r->flags & 4) && r->time > r->begin)
        return "an operation begins before its call";
    const trace_record *cause = r->kind == 6 && r->cause ? trace_find(t, r->cause) : NULL;
    return cause && cause->end > r->end ? "a wait ends before the operation that it waits for"
                                        : NULL;
}

/* What is wrong with a trace: numbers refer to entries of the tables, the records of a stream are
   in order and do not overlap, and a wait ends after the operation that it waited for. */
__attribute__((unused)) static const char *trace_wrong(const trace_file *t) {
    uint64_t *end = json_alloc(NULL, 0, (t->streams + 1) * sizeof *end);
    for (size_t i = 0; i < t->records; i++) {
        const trace_record *r = &t->record[i];
        const char *wrong = trace_wrong_record(t, r);
        if (wrong)
            return wrong;
        if (r->kind >= 16 || r->row >= t->streams)
            continue;
        if (r->begin < end[r->row])
            return "operations of a stream overlap";
        end[r->row] = r->end;
    }
    return NULL;
}

#endif
