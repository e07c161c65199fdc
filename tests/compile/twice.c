/* Every header twice, before and after the implementation was asked for. */
#include "devstream.h"
#include "devstream.h"
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "devstream.h"
#if __has_include("devstream_alloc.h")
#include "devstream_alloc.h"
#include "devstream_alloc.h"
#endif
