/* devstream.c - all of devstream as one object: cc -c devstream.c. For programs in C++ or CUDA, and
   for programs that link instead of include. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
#include "devstream_check.h"
#include "devstream_trace.h"
#include "devstream_ranks.h"
