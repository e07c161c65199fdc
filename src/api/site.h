/* api/site.h - call site of the next call.

   Declares the thread-local ds_call_site. The generated macros store file and line there before
   a call, and the call takes them.

   Threads: each thread has its own. */
#ifndef DS__API_SITE_H
#define DS__API_SITE_H

#include "result.h"

/* ---- call sites ------------------------------------------------------------------------------ */

/** The calling thread's site for its next call. */
DSDATA __thread ds_site ds_call_site;

#endif
