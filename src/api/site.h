/* api/site.h - call site of the next call.

   Declares the thread-local ds_call_site. The generated macros pass file and line to an inline
   function, which evaluates the arguments, then stores file and line here, then calls. The called
   function takes them.

   Threads: each thread has its own. */
#ifndef DS__API_SITE_H
#define DS__API_SITE_H

#include "result.h"

/* ---- call sites ------------------------------------------------------------------------------ */

/** The calling thread's site for its next call. */
DSDATA __thread ds_site ds_call_site;

/** Sets it; used by the macros. */
static inline void ds_site_set(const char *file, int line) {
    ds_call_site.file = file;
    ds_call_site.line = line;
}

#endif
