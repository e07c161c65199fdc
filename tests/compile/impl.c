/* The implementation as one object. */
#define DEVSTREAM_IMPLEMENTATION
#if __has_include("devstream_alloc.h")
#include "devstream_alloc.h"
#else
#include "devstream.h"
#endif
