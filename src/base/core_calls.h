/* base/core_calls.h - the CPU driver. */
#ifndef DS__BASE_CORE_CALLS_H
#define DS__BASE_CORE_CALLS_H

#include "../api/memory.h"
#include "../os/os.h"

static ds_result ds__enter(const char *fn);
DS__SEAM static ds_result ds__name_object(ds_result r, const char *what, const char *label);
DS__SEAM static ds_device ds__thread_device(void);
DS__SEAM static int ds__known(const void *ptr, ds_pointer_info *out);
DS__SEAM static ds_result ds__ask(const void *ptr, ds_pointer_info *out);

#endif
