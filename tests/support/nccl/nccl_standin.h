/* The stand-in for NCCL: how a test steers and watches it.

   The stand-in is a test double of libnccl.so.2 that computes on the devices of the stand-in for
   cudart (standin.h). It is written from NCCL's header and documentation and has the version
   2.32.3; the build with STANDIN_NCCL_OLD has 2.18.3, without the functions that are newer. Ranks
   are threads or processes of one machine, and data go through shared memory: a file in /dev/shm
   with the name that is in the unique id, which is removed when all ranks have joined. It refuses
   what NCCL refuses and waits where NCCL waits; where NCCL leaves something open, it takes the
   least convenient behaviour that is allowed. What is undefined in NCCL fails the test: one line on
   stderr, then abort().

   What is strict:
     - An operation holds its stream, and none of the threads of the stand-in for cudart, until all
       ranks have come to it and its data are there. Operations of a communicator run in the order
       in which the rank has enqueued them, also those in different streams.
     - The calls of a group for one communicator are one operation in all of their streams: it
       begins when all streams have come to it. In a group, collectives come before messages.
     - A message is never buffered: ncclSend ends when the other rank has received all of it.
       Messages that cross without a group hang. A message of a rank to itself needs both calls in
       one group.
     - Count, type, operation, root and kind of a collective must be the same on all ranks, type and
       count of a message on both: a mismatch fails the test.
     - Buffers must be memory that the communicator's device has, or pinned host memory, of at least
       the size that the call needs; they must not be freed before the operation has ended. They
       overlap only as NCCL's rules for calls in place allow.
     - A communicator that does not block returns ncclInProgress from each call that NCCL allows it
       for, and enqueues later, from another thread. The next call is refused with
       ncclInvalidArgument until ncclCommGetAsyncError has told the end.
     - ncclCommFinalize, and ncclCommDestroy without it, wait for operations of their own rank.
       ncclCommDestroy fails the test if graphs have operations of the communicator, for which NCCL
       waits without an end. A graph that is launched later fails the test.
     - ncclCommAbort and ncclCommRevoke end operations of their own rank; other ranks wait on. A
       revoked communicator can be split, shrunk, destroyed and aborted, and nothing else.
     - Operations of an aborted communicator that their stream has not come to end as they begin.
     - A unique id is good for one communicator. A device has one rank of a communicator, unless
       NCCL_HOSTID says that two processes are on different hosts.
     - A group either makes communicators or uses them.
     - A handle that was destroyed fails the test; so do two threads that enqueue operations of one
       communicator at the same moment, if they happen to meet.
     - When a process of a rank ends without ncclCommDestroy or ncclCommAbort, the other ranks get
       the asynchronous error ncclRemoteError within a fifth of a second, and their operations end.
       So they do after any asynchronous error, also ncclUnhandledCudaError of a device that has
       failed.
     - Sums are added in an order of ranks that differs from operation to operation; all ranks get
       the same bits. Types that are smaller than float are computed as float and rounded to nearest
       even after each operation; float8 saturates. Averages of floating types multiply by the
       rounded 1/n before they add; those of integers divide the sum, which may have wrapped.

   Captures: an operation becomes one node for each stream of its group. It is a kernel node for
   cudaGraphNodeGetType, and the runtime's functions for parameters of kernel nodes refuse it. Each
   launch runs the operation again; the launches of a graph and other operations of the communicator
   run in the order in which they were enqueued. Bodies of conditional nodes refuse it.

   Left open: maxima and minima of values that are not numbers; what config says about performance,
   names and sharing; that a communicator takes memory of its device; versions of NCCL that compute
   collectives of several communicators of a device at once or one after another (see
   STANDIN_NCCL_ONE_AT_A_TIME).

   Left out, and not exported: pnccl*, windows and the functions for kernels (ncclCommWindow*,
   ncclWin*, ncclDev*), one-sided operations (ncclPutSignal, ncclSignal, ncclWaitSignal),
   ncclCommSuspend, ncclCommResume, ncclCommMemStats, ncclParam*, ncclSetEncryption,
   ncclResetDebugInit. launchCompletionEvent of ncclCollConfig_t is refused.

   Environment:
     STANDIN_NCCL_SEED       chooses the orders of ranks in sums (1)
     STANDIN_NCCL_MISMATCH   error: a mismatch of calls is the asynchronous error ncclInvalidUsage
                             on all ranks, and buffers that overlap are refused with this code
     STANDIN_NCCL_ONE_AT_A_TIME  1: a device of a process runs one operation of NCCL at a time,
                             whatever its communicator: so programs hang whose ranks use two
                             communicators in different orders (0)
     STANDIN_NCCL_CALLS_WAIT 1: a call or group with collectives of communicators that block returns
                             when all ranks have made it, as NCCL may do; so programs hang in which
                             a thread has several ranks and no group. It does not wait in a capture
                             (0)
     STANDIN_NCCL_REPORT     1: each error is a line on stderr, and first the functions that are
                             left out; NCCL_DEBUG with any value does the same
     NCCL_HOSTID             as in NCCL: ranks with different values are on different hosts

   libnccl.so.2 looks for standin_get_services in the program (which exports it with
   -Wl,--export-dynamic-symbol=standin_get_services if the stand-in for cudart is linked into it),
   in a libcudart that is loaded, and in the one beside itself. */
#ifndef STANDIN_NCCL_H
#define STANDIN_NCCL_H

#include <stddef.h>

struct ncclComm;

#pragma GCC visibility push(default)

/* The nth call from now, counted over all threads, fails with `code` and has no effect; but what
   frees, destroys or aborts, and ncclGroupEnd, ends what it should and returns the code all the
   same. In a group the group fails, too. Each function that returns a result counts, except
   ncclCommGetAsyncError. nth 0 switches it off. */
void standin_nccl_fail(unsigned long nth, int code);
/* The nth call of ncclCommGetAsyncError from now finds that its communicator has an asynchronous
   error: the call before it was accepted, and then the error came. nth 0 switches it off. */
void standin_nccl_fail_async(unsigned long nth, int code);
int standin_nccl_failed(void); /* whether that call has come */

/* The communicator has an asynchronous error from now on, and its operations end. */
void standin_nccl_async_error(struct ncclComm *comm, int code);

/* Calls of a function so far, by all threads. A name that the stand-in does not have fails the
   test. */
unsigned long standin_nccl_calls(const char *name);

/* Communicators, registrations, operations of reduction and unused unique ids that are alive: their
   number, and the kinds as one line. report may be NULL. */
size_t standin_nccl_live(char *report, size_t size);

/* How long operations, and the background work of communicators that do not block, take in
   addition; 0 at first. */
void standin_nccl_delay(unsigned ms);

#pragma GCC visibility pop

#endif
