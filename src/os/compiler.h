/* os/compiler.h - compiler and standard library.

   Includes the headers of standard C that all rooms use, and defines markers for the compiler:
   likely and unlikely conditions, functions that only some drivers or layers use, and builds with
   a sanitizer.

   Invariants: nothing here depends on the operating system.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_COMPILER_H
#define DS__OS_COMPILER_H

#include "../api/base.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DS__LIKELY(x) __builtin_expect(!!(x), 1)
#define DS__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DS__FOREVER UINT64_MAX
#define DS__SEAM __attribute__((unused)) /* for functions that only some drivers or layers use */

/* for attributes: the format of the library's texts. gcc for Windows takes printf for that of an
   old C library, which the headers of mingw replace. */
#if defined(__MINGW32__) && !defined(__clang__)
#define DS__PRINTF gnu_printf
#else
#define DS__PRINTF printf
#endif

#if defined(__SANITIZE_THREAD__)
#define DS__SANITIZED 1
#elif defined(__SANITIZE_ADDRESS__)
#define DS__SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || \
    __has_feature(memory_sanitizer)
#define DS__SANITIZED 1
#endif
#endif

#endif
