/* devstream_check.h - a detector of races between streams, and of errors of lifetime.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_check.h"
   in the C file that has the implementation of devstream.h; other headers of devstream may follow
   or precede. Put devstream.h beside it. Then run the program with DEVSTREAM_CHECK=1.

   The most frequent bug of programs with streams is a missing wait: memory is read, written, freed
   or reused on one stream while another stream still uses it. The layer decides from the order that
   the program states, so it finds such a bug in one run, without a GPU, whatever the timing.

   Example (compiles as it stands; the wait of `b` for `a` is missing):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_check.h"
       int main(void) {
           ds_stream a, b;
           void *p;
           if (ds_init(&(ds_init_desc){ .check = "1" }) < 0 || ds_stream_create(NULL, &a) < 0 ||
               ds_stream_create(NULL, &b) < 0 || ds_device_alloc(ds_device_current(), 4096, &p) < 0)
               return 1;
           DS_IGNORE(ds_fill(p, 0, 1, 4096, a));
           DS_IGNORE(ds_fill(p, 1, 1, 4096, b));
           ds_check_stats stats;
           DS_IGNORE(ds_check_get_stats(&stats));
           return stats.reports != 1 || ds_shutdown() < 0;
       }

   Environment, read once at the first call: DEVSTREAM_CHECK, a list of options (api/race.h, "The
   check layer").

   Contents: the check layer; implementation.

   Rules beyond devstream.h's:
   - Kernels state by their parameters which pointers they read and write, and by extents how far
     (ds_extent). Kernels of devstream_kernel.h have extents. Without an extent, an access covers
     the whole block, and a conflict is only a possible one.
   - Pointers inside of structs and in device memory are not accesses.
   - Host code declares its accesses to pinned memory by ds_host_read and ds_host_write.

   Known gaps: accesses to memory that devstream does not know are not checked
   (ds_check_declare_memory). Kernels are not looked into. */
#include "devstream.h"

#ifndef DEVSTREAM_CHECK_H_INCLUDED
#define DEVSTREAM_CHECK_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/race.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_check_sites.gen.h"
#endif

#endif /* DEVSTREAM_CHECK_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_CHECK_H_IMPLEMENTED)
#define DEVSTREAM_CHECK_H_IMPLEMENTED
#ifndef __cplusplus

#include "check/types.h"
#include "check/table.h"
#include "check/clock.h"
#include "check/edge.h"
#include "check/place.h"
#include "check/line.h"
#include "check/moment.h"
#include "check/word.h"
#include "check/range.h"
#include "check/record.h"
#include "check/memory.h"
#include "check/access.h"
#include "check/captured.h"
#include "check/explain.h"
#include "check/traced.h"
#include "check/report.h"
#include "check/graph.h"
#include "check/operation.h"
#include "check/options.h"
#include "check/token.h"
#include "check/layer.h"
#include "check/seen.h"
#include "check/api.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
