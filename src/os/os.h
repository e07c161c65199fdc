/* os/os.h - entry to the operating-system layer.

   Refuses unsupported processors and compilers, and includes the rooms of this layer. Other
   layers include this file and not the rooms themselves.

   Invariants: system.h chooses the rooms of the operating system.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_OS_H
#define DS__OS_OS_H

/* The declarations for kernels have this pragma. Here it keeps the object independent of whether
   they are read before or after this line. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "devstream is implemented for x86-64 and aarch64 only, so far"
#endif
#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L || defined(__STDC_NO_ATOMICS__)
#error "devstream needs C11 with atomics: compile with -std=c11 or newer"
#endif

#include "cache.h"
#include "device_code.h"
#include "library.h"
#include "lock.h"
#include "nodes.h"
#include "nvtx.h"
#include "processor.h"
#include "stream_copy.h"
#include "system.h"
#include "thread.h"
#include "vector.h"

#endif
