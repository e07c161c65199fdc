/* base/device_code.h - markers of functions shared with device code.

   Defines DS__DEVICE and DS__CONSTANT for rooms that are compiled both as C and as device code:
   the arithmetic of the kernels in comm/ and rng/. For device code kernels/device.h defines both
   macros before it includes such a room; in C they mean `static inline` and `static const`.

   Invariants: a room that uses the markers includes nothing else but this room.
   Locks: none.
   Threads: any. */
#ifndef DS__BASE_DEVICE_CODE_H
#define DS__BASE_DEVICE_CODE_H

#ifndef DS__DEVICE
#include <stdint.h>
#include <string.h>
#define DS__DEVICE static inline
#define DS__CONSTANT static const
#endif

#endif
