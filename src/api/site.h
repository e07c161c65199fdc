/* api/site.h - call site of the next call.

   Declares ds_site_set. The generated macros pass file and line to an inline function. It evaluates
   the arguments, passes file and line to ds_site_set, then calls the verb. The verb reads and
   clears the site.

   Threads: each thread has its own call site. */
#ifndef DS__API_SITE_H
#define DS__API_SITE_H

#include "result.h"

/* ---- call sites ------------------------------------------------------------------------------ */

/** Sets the call site that errors, reports and graphs name for the thread's next call. The macros
    of the verbs call it; bindings of other languages may call it before a plain call. The file name
    is not copied. NULL: unknown. Callable anywhere. */
DSDEF void ds_site_set(const char *file, int line);

#endif
