/* Tests that run on the CPU driver and, upon the stand-in, on the CUDA driver. The test file has
   begin_cpu, begin_cuda (if DEVSTREAM_CUDA is defined) and end; ON_BOTH is a member of its list. */
#ifndef BOTH_H
#define BOTH_H
#ifdef DEVSTREAM_CUDA
#include "standin/standin.h"
#endif

#define ON_CPU(test) { #test " (cpu)", test, begin_cpu, end, NULL },
#ifdef DEVSTREAM_CUDA
#define ON_CUDA(test) { #test " (cuda)", test, begin_cuda, end, NULL },
#else
#define ON_CUDA(test)
#endif
#define ON_BOTH(test) ON_CPU(test) ON_CUDA(test)

#endif
