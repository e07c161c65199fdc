/* devstream_trace.h - a timeline of streams and host threads.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_trace.h"
   in the C file that has the implementation of devstream.h; other headers of devstream may follow
   or precede. Put devstream.h beside it. Then run the program with DEVSTREAM_TRACE=trace.html and
   open the file in a browser.

   The timeline shows whether copies and kernels overlap, where a stream waits, and for which
   operation. It needs no other tool and no network.

   Example (compiles as it stands; the fill of `b` waits for that of `a`):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_trace.h"
       int main(void) {
           ds_stream a, b;
           char text[4096];
           void *p;
           if (ds_init(&(ds_init_desc){ .trace = "trace.html" }) < 0 ||
               ds_stream_create(NULL, &a) < 0 || ds_stream_create(NULL, &b) < 0 ||
               ds_device_alloc(ds_device_current(), 1 << 20, &p) < 0)
               return 1;
           DS_IGNORE(ds_fill(p, 0, 1, 1 << 20, a));
           DS_IGNORE(ds_stream_wait_stream(b, a));
           DS_IGNORE(ds_fill(p, 1, 1, 1 << 20, b));
           DS_IGNORE(ds_stream_synchronize(b));
           DS_IGNORE(ds_trace_summary(text, sizeof text));
           return printf("%s", text) < 0 || ds_shutdown() < 0;
       }

   Defines:
       DEVSTREAM_ZLIB  with the implementation: compresses traces with zlib, which the program then
                       links (-lz)

   Environment, read once at the first call: DEVSTREAM_TRACE, a list of options (api/trace.h, "The
   trace layer").

   Contents: the trace layer; implementation.

   Rules beyond devstream.h's:
   - A trace contains file names of the program's source, labels and names of kernels.
   - Without ds_shutdown, the file ends with the last flush, at most a tenth of a second before the
     end of the process.

   Known gaps: on CUDA, nodes of graphs have records only with the option "cupti". Operations of
   other libraries are not seen. */
#include "devstream.h"

#ifndef DEVSTREAM_TRACE_H_INCLUDED
#define DEVSTREAM_TRACE_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/trace.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_trace_sites.gen.h"
#endif

#endif /* DEVSTREAM_TRACE_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_TRACE_H_IMPLEMENTED)
#define DEVSTREAM_TRACE_H_IMPLEMENTED
#ifndef __cplusplus

#include "os/deflate.h"
#include "os/signal.h"
#include "trace/types.h"
#include "trace/table.h"
#include "trace/record.h"
#include "trace/output.h"
#include "trace/page.gen.h"
#include "trace/html.h"
#include "trace/json.h"
#include "trace/summary.h"
#include "trace/standing.h"
#include "trace/file.h"
#include "trace/options.h"
#include "trace/run.h"
#include "trace/seen.h"
#include "trace/layer.h"
#include "trace/api.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
