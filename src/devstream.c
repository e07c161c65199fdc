/* devstream.c - all of devstream as one object: cc -c devstream.c. For programs in C++ or CUDA, and
   for programs that link instead of include. */
/* first, so that its pragma on contraction is in force for all code, as in the single file */
#include "devstream_kernel.h"

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
