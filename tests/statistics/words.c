/* Random words on standard output, without end: words.c [torch | element] [seed]. For dieharder
   and its like (run.sh). */
#define DEVSTREAM_IMPLEMENTATION
#include "../../devstream_rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                          \
    do {                                                  \
        if ((call) < 0) {                                 \
            fprintf(stderr, "%s\n", ds_error_get_last()); \
            return 1;                                     \
        }                                                 \
    } while (0)

int main(int argc, char **argv) {
    enum { WORDS = 1 << 22 };

    ds_rng rng;
    ds_stream s;
    uint32_t *words = malloc(4 * WORDS);
    if (!words)
        return 1;
    OK(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    OK(ds_rng_create(&(ds_rng_desc){ .device = ds_cpu(0),
                                     .mapping = argc > 1 && !strcmp(argv[1], "torch")
                                                    ? DS_RNG_TORCH
                                                    : DS_RNG_ELEMENT },
                     &rng));
    OK(ds_rng_set_seed(rng, argc > 2 ? strtoull(argv[2], NULL, 0) : 1));
    do {
        OK(ds_rng_bits(rng, ds_uint32(), words, WORDS, s));
        OK(ds_stream_synchronize(s));
    } while (fwrite(words, 4, WORDS, stdout) == WORDS); /* until the reader has enough */
    return 0;
}
