/* core/types.h - functions of the core that its rooms call before they are defined.

   The tables of objects name the functions that free objects, the end of a thread ends streams, and
   the start of devstream needs the state of the first thread.

   Invariants: no other room of core/ declares a function of another room.
   Locks: none.
   Threads: any. */
#ifndef DS__CORE_TYPES_H
#define DS__CORE_TYPES_H

#include "../api/stream.h"
#include "../base/state.h"

/* Functions that rooms call although a later room defines them. */

/* core/event.h */
static void ds__event_destroy(void *object);
static int ds__event_batched(const void *object);

/* core/graph.h */
static void ds__graph_destroy(void *object);
static void ds__exec_destroy(void *object);

/* core/kernel.h */
static void ds__kernel_destroy(void *object);
static void ds__kernel_defer(void *object);
static void ds__kernel_collect(void);

/* core/stream.h */
static void ds__stream_destroy(void *object);
static int ds__stream_batched(const void *object);
static void ds__stream_unref(ds_stream handle);

/* core/sync_debug.h */
static ds_result ds__sync_debug_read(const char *text);

/* core/thread.h */
static void ds__thread_ends(void *thread);
static ds__thread *ds__thread_state(void);

#endif
