/* alloc/internal.h - functions of the allocator that other layers use.

   Declares the functions of the allocator that tensors and collectives use, beyond the public ones.

   Invariants: If a function fails, it sets the error.
   Locks: Callers hold none; ds__mem_operand and ds__pinned_operand take the lock of an arena.
   Threads: any. */
#ifndef DS__ALLOC_INTERNAL_H
#define DS__ALLOC_INTERNAL_H

#include "../api/mem.h"
#include "../api/pool.h"
#include "../api/pinned.h"
#include "../api/resource.h"
#include "../core/internal.h"

/* Reads the environment and enters the module at the first use. */
static ds_result ds__mem_setup(void);

/* Notes that a stream, which the caller has pinned, uses memory. Memory of other sources, and
   memory of the stream itself, needs no note. In a capture, the program must keep the memory. */
static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream);
/* Notes that a stream uses pinned memory. */
static ds_result ds__pinned_operand(void *ptr, ds_stream stream);

/* Destroys an event of the library's own; a zero handle is allowed. */
static void ds__use_event_destroy(ds_event event);

/* State of the current call while a function of the program runs. */
typedef struct ds__outside {
    const char *fn;
    ds_site site;
    ds_capture_mode mode;
    int mute;
} ds__outside;

/* Called before and after a function of the program. Calls in the function report their own
   errors. */
static ds__outside ds__outside_begin(void);
static void ds__outside_end(ds__outside o);

#endif
