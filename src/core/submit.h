/* core/submit.h - core: stream work. */
#ifndef DS__CORE_SUBMIT_H
#define DS__CORE_SUBMIT_H

#include "stream_sync.h"

static ds__op ds__op_make(int kind) { /* and flags << 8 */
    ds__op op;
    op.kind = (uint8_t)kind;
    op.flags = (uint8_t)(kind >> 8);
    op.places = 0;
    op.line = (uint32_t)ds__tls.site.line;
    op.file = ds__tls.site.file;
    return op;
}

static inline ds_result ds__submit(ds__stream *s, const ds__op *op) {
    ds_result r = s->driver->submit(s->native, op);
    return DS__LIKELY(r >= 0) ? r : ds__stream_error(s, r);
}

#endif
