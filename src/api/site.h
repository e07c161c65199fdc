/* api/site.h - site. */
#ifndef DS__API_SITE_H
#define DS__API_SITE_H

#include "result.h"

/* ---- call sites ------------------------------------------------------------------------------ */

/** The calling thread's site for its next call. */
DSDATA __thread ds_site ds_call_site;

#endif
