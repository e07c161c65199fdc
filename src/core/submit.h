/* core/submit.h - stream work: operations and their way to the driver.

   Makes an operation with the call site of the current call (ds__op_init) and hands an operation
   to the stream's driver (ds__stream_submit). All stream work of the core goes through
   ds__stream_submit.

   Invariants: ds__op_init leaves the union `u` uninitialised. ds__stream_submit may return a
   positive result: DS__CHANGED for an operation with DS__OP_OUTSIDE or DS__OP_INSIDE, and
   DS__ONE_BY_ONE for a batch of copies.
   Locks: none. The driver's submit may block if the operation touches pageable memory.
   Threads: any. The caller keeps the stream and the operation's objects by hazard pointers or
   references until ds__stream_submit returns. */
#ifndef DS__CORE_SUBMIT_H
#define DS__CORE_SUBMIT_H

#include "stream_sync.h"

static ds__op ds__op_init(int kind) { /* and flags << 8 */
    ds__op op;
    op.kind = (uint8_t)kind;
    op.flags = (uint8_t)(kind >> 8);
    op.places = 0;
    op.line = (uint32_t)ds__tls.site.line;
    op.file = ds__tls.site.file;
    return op;
}

static inline ds_result ds__stream_submit(ds__stream *s, const ds__op *op) {
    ds_result r = s->driver->submit(s->native, op);
    return DS__LIKELY(r >= 0) ? r : ds__stream_error(s, r);
}

#endif
