/* cuda_headers.h - CUDA's headers for programs of tests, without the warnings about these headers:
   cuda.h of 13.5 has an enumerator that is not an int, which gcc reports with -Wpedantic. */
#ifndef CUDA_HEADERS_H
#define CUDA_HEADERS_H

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#include <cuda.h>
#include <cuda_runtime_api.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
