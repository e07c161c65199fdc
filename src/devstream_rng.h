/* devstream_rng.h - random numbers on devices: generators, and fills on a stream.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_rng.h"
   in exactly one C file, and #include "devstream_rng.h" in all other files that use it. Put
   devstream.h beside it, and link as described in devstream.h.

   A generator is a seed and an offset. A fill takes the next numbers of the seed's sequence, on a
   stream, and advances the offset. Every device has its own generator, which a zeroed ds_rng names;
   a program may create more.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_rng.h"
       #include <stdio.h>
       int main(void) {
           float y[4];
           void *x;
           ds_stream s;
           ds_rng rng = { 0 };
           if (ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_device_alloc(ds_device_current(), sizeof y, &x) < 0 ||
               ds_rng_set_device_seed(ds_device_current(), 42) < 0 ||
               ds_rng_uniform(rng, ds_float32(), x, 4, 0, 1, s) < 0 ||
               ds_copy(y, x, sizeof y, s) < 0 || ds_stream_synchronize(s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%g %g %g %g\n", y[0], y[1], y[2], y[3]);
           return ds_shutdown() < 0;
       }

   Contents: generators; seeds and states; fills; implementation.

   Numbers are words of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
   as 1, 2, 3; SC11). The generator's mapping decides which words an element gets:
   - DS_RNG_ELEMENT: the words depend on the seed, the offset and the element's index only. The bits
     are the same on every device and driver, and for every way to cut a fill into parts. Two
     successive fills equal one fill of both lengths if the words of the first end with a block of
     four.
   - DS_RNG_TORCH: the numbers of torch.cuda for the same seed and GPU. They depend on the number of
     multiprocessors. This number can be set, so any device can reproduce any GPU. Uniform numbers
     (float32 in [0, 1)) and integers are torch's bit for bit. Normal and exponential numbers differ
     by about 1e-6 of a deviation, since torch uses the GPU's fast sine, cosine and logarithm.
     docs/random.md lists the comparisons with a GPU.

   Rules beyond devstream.h's:
   - Several threads may use a generator concurrently: each fill gets its own numbers, in the
     order of the calls.
   - Fills may be captured. Each launch of the graph takes new numbers, from the generator's offset
     at the launch. The graph keeps the generator's data alive. Seeds set between launches take
     effect.
   - No function of the C library's mathematics is used, and results are not contracted: gcc, clang
     and a GPU give the same bits. Under -ffast-math, normal and exponential fills, and uniform
     fills with torch's mapping, are refused.

   Known gaps: the generators are not cryptographically secure. torch's randperm, multinomial and
   dropout consume numbers in other ways, so ds_rng_permutation is the same in both mappings. A
   graph with fills cannot be launched while its stream captures: add it as a child graph. A
   graph added twice as a child generates the same numbers twice in a launch. All fills of a
   graph must belong to the device of the launching stream. A capture of a wrapped stream
   begun outside devstream generates the same numbers at each replay. */
#include "devstream.h"

#ifndef DEVSTREAM_RNG_H_INCLUDED
#define DEVSTREAM_RNG_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/rng.h"
#include "api/rng_state.h"
#include "api/rng_fill.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_rng_sites.gen.h"
#endif

#endif /* DEVSTREAM_RNG_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_RNG_H_IMPLEMENTED)
#define DEVSTREAM_RNG_H_IMPLEMENTED
#ifndef __cplusplus

#include "rng/kernel_arith.h"
#include "rng/kernel_vector.h"
#include "rng/kernel_vector.gen.h"
#include "rng/kernel_cpu.h"
#include "rng/kernels.gen.h"
#include "rng/kernel.h"
#include "rng/generator.h"
#include "rng/generator_api.h"
#include "rng/state.h"
#include "rng/fill_types.h"
#include "rng/graph.h"
#include "rng/order.h"
#include "rng/fill.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
