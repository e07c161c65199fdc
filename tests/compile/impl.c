/* The implementation as one object. */
#define DEVSTREAM_IMPLEMENTATION
#if __has_include("devstream_comm.h")
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
#include "devstream_check.h"
#include "devstream_trace.h"
#include "devstream_ranks.h"
#else
#include "devstream.h"
#endif
