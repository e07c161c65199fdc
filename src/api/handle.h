/* api/handle.h - handles as numbers of the program.

   Turns a handle into a number that a program may mark, and back.

   Threads: any. */
#ifndef DS__API_HANDLE_H
#define DS__API_HANDLE_H

#include "base.h"

/* ---- handles as numbers ---------------------------------------------------------------------- */

/** Returns a number of a pointer's size for the `id` of a stream, event, kernel, graph, executable
    or pool. It is even, so that its lowest bit is free for a mark, as in a pointer; 0 only for the
    zero handle; and different for different handles of one kind. Callable anywhere. */
DSINLINE uintptr_t ds_handle_to_number(uint64_t id) {
    return (uintptr_t)((id & 0xffffffff00000000u) | (id & 0x7fffffffu) << 1);
}

/** Returns the `id` again: (ds_stream){ ds_handle_from_number(number) }. Callable anywhere. */
DSINLINE uint64_t ds_handle_from_number(uintptr_t number) {
    return ((uint64_t)number & 0xffffffff00000000u) | ((uint64_t)number & 0xffffffffu) >> 1;
}

#endif
