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

/* The names of cudart and its places in a folder: the folder itself, a toolkit, and site-packages
   with wheels; and the name of NVML. Those of Windows are from NVIDIA's packages and were never
   tried. */
#if defined(_WIN32)
#define DS__CUDART_NAMES "cudart64_13.dll", "cudart64_12.dll", "cudart64_110.dll"
#define DS__CUDART_PLACES \
    "", "bin/", "bin/x64/", "nvidia/cu13/bin/x86_64/", "nvidia/cuda_runtime/bin/"
#define DS__NVML_NAME "nvml.dll"
#else
#define DS__CUDART_NAMES "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"
#define DS__CUDART_PLACES "", "lib64/", "lib/", "nvidia/cu13/lib/", "nvidia/cuda_runtime/lib/"
#define DS__NVML_NAME "libnvidia-ml.so.1"
#endif

#ifdef DEVSTREAM_MPI
#define DS__MPI_LOADED 0
#else
#define DS__MPI_LOADED 1
#endif

#endif
