/* base/core_calls.h - functions of the core that lower layers call.

   Declares the functions of core/ that the drivers need, because rooms of base/ and of the
   drivers may not include a room of core/. They start a public call (ds__enter), add an object's
   name to an error (ds__name_object), give the current device (ds__thread_device) and look up a
   pointer (ds__known, ds__ask).

   Invariants: every function that is declared here is defined in core/.
   Locks: ds__enter may take ds__g.mutex, if devstream has not been started. The others take
   none. ds__ask calls the CUDA driver.
   Threads: any thread. On a thread of the library ds__thread_device returns cpu:0. */
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
