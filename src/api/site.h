/* api/site.h - call site of the next call.

   Declares ds_site_set. The generated macros pass file and line to an inline function, which
   evaluates the arguments, then hands file and line to ds_site_set, then calls. The called
   function takes them.

   Threads: each thread has its own. */
#ifndef DS__API_SITE_H
#define DS__API_SITE_H

#include "result.h"

/* ---- call sites ------------------------------------------------------------------------------ */

/** Sets the place that errors, reports and graphs name for the thread's next call. The macros of
    the verbs do it; bindings of other languages may do it before a plain call. The file's name
    is not copied. NULL: not known. Callable anywhere. */
DSDEF void ds_site_set(const char *file, int line);

#endif
