/* The implementation as one object. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
