/* devstream.h - streams, events, copies and kernels for C, with a GPU and without.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream.h"
   in exactly one C file, and #include "devstream.h" in all other files that use it.
   Link:  cc app.c -pthread
   With NVIDIA GPUs (the same program also starts and runs without a GPU or cudart):
          cc -DDEVSTREAM_CUDA_DLOPEN app.c -pthread
   or linked with cudart:
          cc -DDEVSTREAM_CUDA app.c -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -pthread

   A stream is a queue of work on a device. Work on one stream runs in order. Work on different
   streams runs concurrently, and events order one stream after another. The CUDA driver runs the
   work on GPUs through cudart. The CPU driver runs it on threads and keeps CUDA's ordering rules,
   so that a program behaves the same with a GPU and without.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream.h"
       #include <stdio.h>
       static void hello(void *name) { printf("hello from the stream, %s\n", (char *)name); }
       int main(void) {
           ds_stream s;
           if (ds_stream_create(NULL, &s) < 0 ||
               ds_stream_launch_host_func(s, hello, "world", NULL) < 0 ||
               ds_stream_synchronize(s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           return ds_shutdown() < 0;
       }

   Macros that you may define, in every file that includes this header unless stated otherwise:
       DEVSTREAM_IMPLEMENTATION  in one C file: implements every devstream header that the file
                                 includes
       DEVSTREAM_STATIC          all functions are static (declare and implement in the same file)
       DEVSTREAM_SHARED          with the implementation: exports the functions, for a shared
                                 library. By default they are hidden: each plugin or library that
                                 contains devstream has its own copy, with its own ds_init
       DEVSTREAM_API             a prefix of every function instead of these two
       DEVSTREAM_NO_SITES        verbs are plain functions; errors do not name the caller's file and
                                 line
       DEVSTREAM_NO_CPU          with the implementation: leaves the CPU driver out
       DEVSTREAM_CUDA            with the implementation: adds the CUDA driver. Needs the headers of
                                 cudart 11.8 or newer and its library, static or shared; needs no
                                 nvcc, and no libcuda at link time
       DEVSTREAM_CUDA_DLOPEN     with the implementation: the same without CUDA's headers and
                                 libraries. The program finds cudart when it starts (before glibc
                                 2.34: -ldl). A file that includes CUDA's headers as well must
                                 include them before the implementation
       DEVSTREAM_PER_THREAD_DEFAULT_STREAM  with the implementation: ds_stream_get_default() is the
                                 per-thread stream
       DEVSTREAM_NO_NVTX         with the implementation: ranges are not sent to NVIDIA's tools. By
                                 default they are sent if the compiler finds <nvtx3/nvToolsExt.h>,
                                 which needs no library (before glibc 2.34: -ldl)
   Environment, read once at the first call:
       DEVSTREAM_CPU_DEVICES, DEVSTREAM_CPU_WORKERS, DEVSTREAM_CPU_MEMORY, DEVSTREAM_CPU_INLINE,
       DEVSTREAM_CPU_PEERS, DEVSTREAM_CPU_SEED, DEVSTREAM_CPU_SPIN (nanoseconds),
       DEVSTREAM_CPU_AFFINITY ("0-3,8"), DEVSTREAM_CPU_UNREACHABLE, DEVSTREAM_LAYERS,
       DEVSTREAM_FAULT,
       DEVSTREAM_DEVICE (default device, "cpu:1"), DEVSTREAM_NO_CUDA (1: no CUDA device is used),
       DEVSTREAM_LOG (0: silent, 1: errors, 2: warnings too),
       DEVSTREAM_PER_THREAD_DEFAULT_STREAM, DEVSTREAM_SYNC_DEBUG (default, warn, error)
   Environment, read when needed:
       DEVSTREAM_NVML (another name of libnvidia-ml.so.1)
   Environment, read when the CUDA driver starts:
       DEVSTREAM_CUDART (with DEVSTREAM_CUDA_DLOPEN: folder or name of cudart, or "wheels")

   Contents: results; checks; initialisation; devices; streams; the current stream; events; memory;
   copies and fills; host functions; data types; kernels; graphs; capture; ranges; activity; the CPU
   driver; call sites; implementation.

   Rules that hold everywhere:
   - Any thread may call any function at any time, except ds_init and ds_shutdown, which may not run
     concurrently with other calls.
   - User code that devstream runs (host functions, callbacks, payload destructors, hooks, kernels)
     may only call functions marked "Callable anywhere" or "Deferred in user code". Other functions
     return DS_ERR_NOT_PERMITTED there (CUDA returns 800). A deferred release takes no lock and
     waits for nothing; a later call outside of user code makes it, ds_shutdown at the latest. A
     stale handle and memory that devstream does not know are refused at once; a later error is
     logged.
   - Invalid input returns a negative result with a sentence in ds_error_get_last(), and enqueues
     nothing.
   - A call blocks only if its comment states it.
   - Handles are small structs, passed by value. A destroyed or invented handle returns
     DS_ERR_INVALID_HANDLE and never crashes. A handle has 64 bits, in its member `id`, and fits a
     pointer: (void *)(uintptr_t)stream.id stores it, (ds_stream){ (uintptr_t)ptr } restores it.
     ds_handle_to_number gives an even number, whose lowest bit a program may use as a mark.
   - On failure, outputs are set to 0 or NULL.
   - Structs that may get members in later versions end with `reserved`. These words must be 0 in
     input structs (else DS_ERR_INVALID_VALUE), and are set to 0 in output structs. New members take
     words of `reserved`; 0 means their default or "unknown". Size and layout thus stay the same
     within a series of versions (0.1.x). A zeroed struct, or one with designated initialisers, fits
     a library of any version of the series.
   - Errors common to all calls:
       DS_ERR_INVALID_VALUE  a NULL pointer, an unknown flag, a text buffer that is too small, or a
                             number outside the documented range
       DS_ERR_INVALID_DEVICE, DS_ERR_NO_DEVICE, DS_ERR_DEVICE_RANGE  the device does not exist
       DS_ERR_OUT_OF_MEMORY  no memory
       DS_ERR_DRIVER, DS_ERR_SYSTEM  with the code in ds_error_get_last()
       DS_ERR_FAILED         the device has failed
       DS_ERR_FORKED         the process is a fork of a process that used devstream
       errors of capture     see ds_capture_mode

   Known gaps: on macOS the library is compiled and linked, but was never run. On Windows the CPU
   driver runs under Wine, and was never run on Windows itself; the CUDA driver never ran there.
   Collectives stay within one process. CPU devices share one address space, so a wrong pointer
   between "devices" is not detected. The CUDA driver is tested against a simulated cudart that
   keeps CUDA's documented rules; docs/gpu lists the runs on real GPUs.

   Licence: MIT or public domain, at your choice; see the end of this file. */
#ifndef DEVSTREAM_H_INCLUDED
#define DEVSTREAM_H_INCLUDED

#include "api/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "api/result.h"
#include "api/check.h"
#include "api/init.h"
#include "api/handle.h"
#include "api/device.h"
#include "api/stream.h"
#include "api/event.h"
#include "api/memory.h"
#include "api/copy.h"
#include "api/value.h"
#include "api/host_func.h"
#include "api/dtype.h"
#include "api/kernel.h"
#include "api/graph.h"
#include "api/capture.h"
#include "api/range.h"
#include "api/activity.h"
#include "api/cpu.h"
#include "api/site.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "api/scope.h"

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_sites.gen.h"
#endif

#endif /* DEVSTREAM_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_H_IMPLEMENTED)
#define DEVSTREAM_H_IMPLEMENTED
#ifdef __cplusplus
#error "devstream is implemented in C: compile devstream.c with a C compiler and link it"
#else

/* Definitions are hidden; declarations are not, so that a program may link a shared library. */
#if defined(DS__HIDDEN) && !defined(DEVSTREAM_STATIC)
#undef DSDEF
#define DSDEF DS__HIDDEN
#endif

#if defined(DEVSTREAM_CUDA_DLOPEN) && !defined(DEVSTREAM_CUDA)
#define DEVSTREAM_CUDA
#endif

#include "os/os.h"

#include "base/thread_block.h"
#include "base/observe.h"
#include "base/drive.h"
#include "base/bookkeeping.h"
#include "base/log.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/pin.h"
#include "base/object.h"
#include "base/extent.h"
#include "base/module.h"
#include "base/operation.h"
#include "base/driver.h"
#include "base/activity.h"
#include "base/state.h"
#include "base/text_writer.h"
#include "base/utf8.h"
#include "base/graph_body.h"
#include "base/capture_list.h"
#include "base/mapping.h"
#include "base/touch.h"
#include "base/ipc_registry.h"
#include "base/memory_table.h"
#include "base/ptx_text.h"
#include "base/ptx_use.h"

#include "core/drivers.h"
#include "core/types.h"
#include "core/internal.h"
#include "core/check.h"
#include "core/fault.h"
#include "core/layers.h"
#include "core/init.h"
#include "core/postpone.h"
#include "core/thread.h"
#include "core/sync_debug.h"
#include "core/range.h"
#include "core/range_api.h"
#include "core/activity.h"
#include "core/device.h"
#include "core/device_query.h"
#include "core/sensor.h"
#include "core/stream.h"
#include "core/stream_sync.h"
#include "core/stream_default.h"
#include "core/stream_wrap.h"
#include "core/stream_info.h"
#include "core/current_stream.h"
#include "core/submit.h"
#include "core/event.h"
#include "core/event_sync.h"
#include "core/memory.h"
#include "core/segment.h"
#include "core/user_memory.h"
#include "core/copy.h"
#include "core/copy_sync.h"
#include "core/host_func.h"
#include "core/closure.h"
#include "core/kernel_table.h"
#include "core/kernel.h"
#include "core/graph.h"
#include "core/value.h"
#include "core/graph_add.h"
#include "core/graph_edit.h"
#include "core/graph_dot.h"
#include "core/graph_exec.h"
#include "core/graph_exec_update.h"
#include "core/capture.h"
#include "core/recapture.h"
#include "core/dtype.h"
#include "core/cpu_api.h"
#include "core/inline.h"
#include "core/quiesce.h"
#include "core/shutdown.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* ----------------------------------------------------------------------------------------------
This software is available under two licences; choose whichever you prefer.

ALTERNATIVE A - MIT License. Copyright (c) 2026 the devstream authors
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions: The above copyright notice and this
permission notice shall be included in all copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

ALTERNATIVE B - Public Domain (www.unlicense.org)
This is free and unencumbered software released into the public domain. Anyone is free to copy,
modify, publish, use, compile, sell, or distribute this software, either in source code form or as a
compiled binary, for any purpose, commercial or non-commercial, and by any means. In jurisdictions
that recognize copyright laws, the author or authors of this software dedicate any and all copyright
interest in the software to the public domain. We make this dedication for the benefit of the public
at large and to the detriment of our heirs and successors. We intend this dedication to be an overt
act of relinquishment in perpetuity of all present and future rights to this software under
copyright law.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
---------------------------------------------------------------------------------------------- */
