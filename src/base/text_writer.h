/* base/text_writer.h - text in pieces to a function of the user.

   ds__text_writer_print formats a piece of at most 1023 characters and passes it on;
   ds__text_writer_to_file is such a function, which writes to a FILE.

   Invariants: once the user's function has returned a value other than 0 (`stopped`), it is not
   called again.
   Locks: none. The user's function runs under all locks that the caller holds; calls to devstream
   are refused meanwhile (ds__tls.in_callback).
   Threads: any; the function runs on the calling thread. */
#ifndef DS__BASE_TEXT_WRITER_H
#define DS__BASE_TEXT_WRITER_H

#include "../api/graph.h"
#include "../os/os.h"
#include "error.h"
#include "thread_block.h"

typedef struct ds__text_writer {
    ds_write_fn write_fn;
    void *user;
    int stopped;
    unsigned flags;
} ds__text_writer;

__attribute__((format(DS__PRINTF, 2, 3))) DS__SEAM static void ds__text_writer_print(
    ds__text_writer *p, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t size = ds__text_length(n, sizeof text);
    if (p->stopped || !size)
        return;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1; /* locks are held */
    p->stopped = p->write_fn(text, size, p->user);
    ds__tls.in_callback = outer;
}

/* Prints text inside of a quoted string of DOT. */
DS__SEAM static void ds__text_writer_quote(ds__text_writer *p, const char *text) {
    char quoted[2 * 256 + 1];
    size_t n = 0;
    for (; *text && n < sizeof quoted - 3; text++) {
        if (*text == '"' || *text == '\\')
            quoted[n++] = '\\';
        quoted[n++] = *text == '\n' ? ' ' : *text;
    }
    quoted[n] = 0;
    ds__text_writer_print(p, "%s", quoted);
}

/* Returns DS_OK, or the error of a writer that has stopped. */
DS__SEAM static ds_result ds__text_writer_result(const ds__text_writer *p) {
    return p->stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", p->stopped) : DS_OK;
}

DS__SEAM static int ds__text_writer_to_file(const char *text, size_t size, void *user) {
    if (fwrite(text, 1, size, user) == size)
        return 0;
    return errno ? errno : EIO;
}

#endif
