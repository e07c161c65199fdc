/* os/deflate.h - compression by zlib.

   With DEVSTREAM_ZLIB, compresses a stream of bytes (ds__deflate_begin, ds__deflate,
   ds__deflate_end), in the format of zlib or gzip. Without it, ds__deflate_begin returns NULL.

   Invariants: after each call of ds__deflate, the output so far can be decompressed without the
   rest (Z_SYNC_FLUSH).
   Locks: none.
   Threads: one at a time for each compressor. */
#ifndef DS__OS_DEFLATE_H
#define DS__OS_DEFLATE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef DEVSTREAM_ZLIB

#include <zlib.h>

enum { DS__DEFLATES = 1 };

typedef struct ds__deflate_state {
    z_stream stream;
    char *text;
    size_t room;
} ds__deflate_state;

/* Returns a compressor, or NULL without memory. gzip: 1 for the format of gzip, 0 for zlib's. */
static void *ds__deflate_begin(int gzip) {
    ds__deflate_state *d = calloc(1, sizeof *d);
    if (d &&
        deflateInit2(&d->stream, 1, Z_DEFLATED, gzip ? 15 + 16 : 15, 8, Z_DEFAULT_STRATEGY) == Z_OK)
        return d;
    free(d);
    return NULL;
}

/* Compresses bytes. end: they are the last ones. *out is valid until the next call. Returns the
   size of *out, or SIZE_MAX without memory. */
static size_t ds__deflate(void *packer, const char *text, size_t size, int end, const char **out) {
    ds__deflate_state *d = packer;
    size_t done = 0;
    if (size > UINT_MAX / 4)
        return SIZE_MAX;
    d->stream.next_in = (Bytef *)(uintptr_t)text;
    d->stream.avail_in = (uInt)size;
    for (;;) {
        if (d->room - done < 4096) {
            size_t room = 2 * d->room + size / 4 + 8192;
            char *fresh = realloc(d->text, room);
            if (!fresh)
                return SIZE_MAX;
            d->text = fresh;
            d->room = room;
        }
        d->stream.next_out = (Bytef *)d->text + done;
        d->stream.avail_out = (uInt)(d->room - done);
        int code = deflate(&d->stream, end ? Z_FINISH : Z_SYNC_FLUSH);
        done = d->room - d->stream.avail_out;
        if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END)
            return SIZE_MAX;
        if (d->stream.avail_out > 0 && (!end || code == Z_STREAM_END))
            break;
    }
    *out = d->text;
    return done;
}

static void ds__deflate_end(void *packer) {
    ds__deflate_state *d = packer;
    if (!d)
        return;
    deflateEnd(&d->stream);
    free(d->text);
    free(d);
}

#else

enum { DS__DEFLATES = 0 };

static void *ds__deflate_begin(int gzip) {
    (void)gzip;
    return NULL;
}

static size_t ds__deflate(void *packer, const char *text, size_t size, int end, const char **out) {
    (void)packer, (void)text, (void)size, (void)end, (void)out;
    return SIZE_MAX;
}

static void ds__deflate_end(void *packer) {
    (void)packer;
}

#endif

#endif
