/* alloc/internal.h - functions of the allocator that other layers use.

   Declares what tensors and collectives use of the allocator beyond its public functions.

   Invariants: if a function fails, it stores the sentence.
   Locks: callers hold none; ds__mem_operand and ds__pinned_operand take the lock of an arena.
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

/* Notes that a stream, which the caller has pinned, uses memory. Memory that is not the
   allocator's, or is the stream's own, needs no note; what a graph uses is its owner's care. */
static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream);
/* The same for pinned memory. */
static ds_result ds__pinned_operand(void *ptr, ds_stream stream);

/* Destroys an event of the library's own; a zero handle is allowed. */
static void ds__event_drop(ds_event event);

/* The running call, while a function of the program runs. */
typedef struct ds__outside {
    const char *fn;
    ds_site site;
    ds_capture_mode mode;
    int mute;
} ds__outside;

/* Before a function of the program, whose calls report their own errors, and after it. */
static ds__outside ds__resource_leave(void);
static void ds__resource_return(ds__outside o);

#endif
