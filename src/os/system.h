/* os/system.h - chooses the operating system.

   Includes the rooms of one system: Linux, or Windows (windows*.h). linux.h, linux_share.h and
   linux_machine.h are the model of a port: they and the rooms posix*.h define all functions and
   types that other rooms use, and their comments are the contract. All functions exist on every
   system. If a system cannot do something, the function returns its value for a failure, or does
   nothing if its comment allows that.

   Invariants: except for entry files and the list of drivers, this is the only room that has a
   conditional around an include.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_SYSTEM_H
#define DS__OS_SYSTEM_H

#include "compiler.h"
#include "affinity_mask.h"

#if defined(_WIN32)
#if !defined(__x86_64__)
#error "devstream for Windows is implemented for x86-64 only, so far"
#endif
#include "windows_api.h"
#include "windows.h"
#include "windows_thread.h"
#include "windows_share.h"
#include "windows_file.h"
#include "windows_machine.h"
#else
#include "posix.h"
#include "posix_file.h"
#include "posix_thread.h"
#if defined(__linux__)
#include "cgroup.h"
#include "linux.h"
#include "linux_share.h"
#include "linux_machine.h"
#else
#include "macos.h"
#include "macos_share.h"
#include "macos_machine.h"
#endif
#endif

#endif
