/* devstream_ranks.h - process groups: collectives across processes.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_ranks.h"
   in exactly one C file, and #include "devstream_ranks.h" in all other files that use it. Put
   devstream.h, devstream_alloc.h and devstream_comm.h beside it, and link as described in
   devstream.h. MPI is loaded when the first group is created; nothing of it is needed to compile.

   The collectives of devstream_comm.h span a group of processes if their options have one.

   Example (compiles as it stands; one process is a group of one rank, `mpiexec -n 4` starts four):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_ranks.h"
       #include <stdio.h>
       int main(void) {
           ds_ranks ranks;
           ds_ranks_info info;
           ds_tensor *t;
           ds_stream s;
           int64_t shape[1] = { 1000 };
           if (ds_ranks_init(NULL, &ranks) < 0 || ds_ranks_get_info(ranks, &info) < 0 ||
               ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_tensor_alloc(ds_float32(), 1, shape, s, &t) < 0 ||
               ds_fill(t->data, 0, 4, 1000, s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           const ds_tensor *one = t;
           ds_comm_options options = { .ranks = ranks };
           if (ds_comm_all_reduce(&one, &one, 1, DS_REDUCE_SUM, &options) < 0 ||
               ds_stream_synchronize(s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("rank %d of %d\n", info.rank, info.size);
           return ds_tensor_free(t) < 0 || ds_ranks_finalize(ranks) < 0 || ds_shutdown() < 0;
       }

   Defines:
       DEVSTREAM_MPI  with the implementation: uses mpi.h of the MPI that the program is linked
                      with, instead of loading a library with MPI's standard ABI

   Environment, read when a group is created: DEVSTREAM_RANKS_RECORD, the path of the flight
   recorder; DEVSTREAM_MPI_LIBRARY, the MPI library to load.

   Contents: process groups; operations between ranks; implementation.

   Known gaps: groups cannot grow. An operation of MPI that was abandoned may write to its memory
   later. If a group of a graph fails, the graph goes on. A group of a graph must not be called
   while a launch is pending. */
#include "devstream_comm.h"

#ifndef DEVSTREAM_RANKS_H_INCLUDED
#define DEVSTREAM_RANKS_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/ranks.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_ranks_sites.gen.h"
#endif

#endif /* DEVSTREAM_RANKS_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_RANKS_H_IMPLEMENTED)
#define DEVSTREAM_RANKS_H_IMPLEMENTED
#ifndef __cplusplus

#include "ranks/engine.h"
#include "ranks/messages.h"
#include "ranks/types.h"
#include "ranks/launch.h"
#include "ranks/recorder.h"
#include "ranks/record.h"
#include "ranks/failure.h"
#include "ranks/compare.h"
#include "ranks/progress.h"
#include "ranks/group.h"
#include "ranks/run.h"
#include "ranks/capture.h"
#include "ranks/stage.h"
#include "ranks/stage_memory.h"
#include "ranks/parts.h"
#include "ranks/arguments.h"
#include "ranks/pieces.h"
#include "ranks/reduce.h"
#include "ranks/move.h"
#include "ranks/exchange.h"
#include "ranks/local_move.h"
#include "ranks/local.h"
#include "ranks/mpi_abi.h"
#include "ranks/mpi_load.h"
#include "ranks/mpi_comm.h"
#include "ranks/mpi_op.h"
#include "ranks/mpi.h"
#include "ranks/nccl_abi.h"
#include "ranks/nccl_load.h"
#include "ranks/nccl_id.h"
#include "ranks/nccl_comm.h"
#include "ranks/nccl_op.h"
#include "ranks/api.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
