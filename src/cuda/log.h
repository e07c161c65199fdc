/* cuda/log.h - log lines of the driver library.

   Since CUDA 12.9 the driver library keeps a buffer of text lines about calls that failed
   (cuLogsDumpToMemory). ds__cuda_append_log adds the newest line to the sentence of an error.
   ds__cuda_find_log (device.h) finds the functions of the log at the start.

   Invariants: `log_at` is the place behind the last line that was looked at, so lines from before
   the start, and lines that were shown, are not shown again. The lines of a process are in one
   buffer: if another thread or library fails in the same moment, the newest line may be about that
   call. The sentence therefore does not say that the line is about the failed call.
   Locks: none. A failed call may be reported under locks of the caller; CUDA's log functions wait
   for no work.
   Threads: any. The functions are found during initialisation only. A successful call pays
   nothing. */
#ifndef DS__CUDA_LOG_H
#define DS__CUDA_LOG_H

#include "../base/error.h"
#include "types.h"

/* Returns the last line of a text of `size` bytes, without its leading parts in brackets (time,
   level). Ends the text behind that line. */
static const char *ds__cuda_last_line(char *text, size_t size) {
    while (size && (text[size - 1] == '\n' || text[size - 1] == 0))
        size--;
    text[size] = 0;
    const char *line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    while (*line == '[' && strchr(line, ']'))
        line = strchr(line, ']') + 1;
    return line + strspn(line, " ");
}

/* Appends the newest line of the driver library's log to the sentence of an error, if there is one
   since the last look. Returns r. */
static ds_result ds__cuda_append_log(ds_result r) {
    char text[2048];
    size_t size = sizeof text - 1;
    unsigned at = atomic_load(&ds__cuda.log_at);
    if (!ds__cuda.log_dump || ds__cuda.log_dump(&at, text, &size, 0) || !size ||
        size >= sizeof text)
        return r;
    atomic_store(&ds__cuda.log_at, at);
    return ds__fail_append(r, "; the newest line of CUDA's log: \"%s\"",
                           ds__cuda_last_line(text, size));
}

#endif
