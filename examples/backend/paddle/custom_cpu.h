/* custom_cpu.h - what the two files of the plugin share. */
#ifndef CUSTOM_CPU_H
#define CUSTOM_CPU_H

#include "devstream_alloc.h"

/* Paddle keeps a stream as a pointer: its bits are the handle. */
inline ds_stream stream_of(const void *stream) {
    return ds_stream{ reinterpret_cast<uint64_t>(stream) };
}

#endif
