/* devstream_comm.h - tensors, and collectives over several devices.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
   in exactly one C file, and #include "devstream_comm.h" in all other files that use it. Put
   devstream.h and devstream_alloc.h beside it, and link as described in devstream.h.

   A tensor is a DLPack tensor: tensors that PyTorch, CuPy, JAX or Paddle export are imported
   without a copy. A collective is one call for all devices of the process. It checks all arguments
   first, then enqueues copies and sums on the streams and returns.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
       #include <stdio.h>
       int main(void) {
           ds_tensor *t;
           int64_t shape[2] = { 4, 1000 };
           ds_stream s;
           if (ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_tensor_alloc(ds_float32(), 2, shape, s, &t) < 0 ||
               ds_fill(t->data, 0, 4, 4000, s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%lld elements\n", (long long)ds_tensor_get_count(t));
           return ds_tensor_free(t) < 0 || ds_shutdown() < 0;
       }

   Contents: tensors; exchange with other libraries; reductions; collectives; topologies; plans;
   implementation.

   Known gaps: a plan needs one tensor on each of its ranks, and pieces of one size. Pageable
   host memory is copied piece by piece if its elements are not in rows. Sparse tensors are not
   supported, as in DLPack. Types of less than a byte are supported only where whole bytes hold
   their elements (float4 in pairs, for example). On CUDA, a stream that waits for a failed
   device may continue without an error. A tensor of a CPU device has DLPack's extension type 12,
   unknown to other libraries: export a view of the tensor as host memory (ds_tensor_as_host). */
#include "devstream_alloc.h"

#ifndef DEVSTREAM_COMM_H_INCLUDED
#define DEVSTREAM_COMM_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/tensor.h"
#include "api/dlpack.h"
#include "api/reduce_op.h"
#include "api/comm.h"
#include "api/topology.h"
#include "api/plan.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_comm_sites.gen.h"
#endif

#endif /* DEVSTREAM_COMM_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_COMM_H_IMPLEMENTED)
#define DEVSTREAM_COMM_H_IMPLEMENTED
#ifndef __cplusplus

#include "tensor/types.h"
#include "tensor/internal.h"
#include "tensor/dims.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/view.h"
#include "tensor/dlpack.h"

#include "comm/kernel_arith.h"
#include "comm/kernel_args.h"
#include "comm/kernel_vector.h"
#include "comm/kernel_vector.gen.h"
#include "comm/kernel_cpu.h"
#include "comm/kernel_spread.h"
#include "comm/kernel_pack.h"
#include "comm/kernels.gen.h"
#include "comm/kernel.h"
#include "comm/types.h"
#include "comm/runs.h"
#include "comm/reduce.h"
#include "comm/pack.h"

#include "topology/types.h"
#include "topology/route.h"
#include "topology/build.h"
#include "topology/parse.h"
#include "topology/write.h"
#include "topology/sysfs.h"
#include "topology/measure.h"
#include "topology/here.h"

#include "plan/types.h"
#include "plan/heap.h"
#include "plan/cost_model.h"
#include "plan/schedule.h"
#include "plan/settle.h"
#include "plan/emit.h"
#include "plan/grid.h"
#include "plan/pieces.h"
#include "plan/cycle.h"
#include "plan/tree.h"
#include "plan/mesh.h"
#include "plan/flow.h"
#include "plan/packed_tree.h"
#include "plan/flows.h"
#include "plan/bound.h"
#include "plan/search.h"
#include "plan/guess.h"
#include "plan/search_large.h"
#include "plan/plan.h"

#include "comm/internal.h"
#include "comm/step.h"
#include "comm/move.h"
#include "comm/submit.h"
#include "comm/join.h"
#include "comm/result.h"
#include "comm/side_stream.h"
#include "comm/follow_plan.h"
#include "comm/broadcast.h"
#include "comm/scatter_gather.h"
#include "comm/reduction.h"
#include "comm/all_to_all.h"
#include "comm/coalesced.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
