/* os/os.h - os. */
#ifndef DS__OS_OS_H
#define DS__OS_OS_H

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "devstream is implemented for x86-64 and aarch64 only, so far"
#endif
#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L || defined(__STDC_NO_ATOMICS__)
#error "devstream needs C11 with atomics: compile with -std=c11 or newer"
#endif

#include "linux.h"
#include "lock.h"

#endif
