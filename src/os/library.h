/* os/library.h - shared libraries that the program is not linked with.

   The room of the system loads and finds them. DS__CUDART_LOADED says whether cudart is such a
   library: 1 if the program defines DEVSTREAM_CUDA_DLOPEN, and 0 if it is linked with cudart.
   DS__MPI_LOADED is the same for MPI: 0 if the program defines DEVSTREAM_MPI, and 1 otherwise.

   Invariants: the values depend on macros of the program only.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_LIBRARY_H
#define DS__OS_LIBRARY_H

#include "system.h"

#ifdef DEVSTREAM_CUDA_DLOPEN
#define DS__CUDART_LOADED 1
#else
#define DS__CUDART_LOADED 0
#endif

#ifdef DEVSTREAM_MPI
#define DS__MPI_LOADED 0
#else
#define DS__MPI_LOADED 1
#endif

#endif
