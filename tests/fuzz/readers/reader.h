/* Readers of texts and bytes that come from outside, for libFuzzer. Each reader gets an input, and
   ends the program if the library breaks a promise about it. FUZZ_READER selects the reader.

   What is given to the library lies in memory of its own size, so that the address sanitizer sees a
   byte too many. */
#ifndef FUZZ_READER_H
#define FUZZ_READER_H

#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_ranks.h"
#include "devstream_rng.h"
#include "devstream_trace.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct input {
    const uint8_t *at;
    const uint8_t *end;
} input;

typedef struct reader {
    const char *name;
    void (*read)(input *in);
    int cold; /* 1: the reader starts and stops devstream itself */
} reader;

extern const reader reader_names;
extern const reader reader_options;
extern const reader reader_topology;
extern const reader reader_start;
extern const reader reader_labels;
extern const reader reader_states;
extern const reader reader_tensors;
extern const reader reader_launch;
extern const reader reader_files;
extern const reader reader_ids;

/* The folder of this process for files of an input. */
extern char reader_folder[64];

/* Ends the program; libFuzzer keeps the input. */
_Noreturn void stop(const char *what);

/* Ends the program unless the call succeeds. */
#define MUST(call)       \
    do {                 \
        if ((call) < 0)  \
            stop(#call); \
    } while (0)

/* A refusal must have a sentence. */
void check_refusal(ds_result r);

/* Returns the next byte of the input, or 0 behind its end. */
unsigned take(input *in);

/* Returns a number below `count` for the next byte: 0 for A, 1 for B. */
unsigned take_choice(input *in, unsigned count);

/* Fills `size` bytes; behind the end of the input they are 0. */
void take_bytes(input *in, void *out, size_t size);

/* Returns the bytes up to the next byte `end` or the end of the input as a text, which ends at a
   zero byte. The caller frees the text. */
char *take_text(input *in, int end);

/* Text that ds_write_fn has written. */
typedef struct paper {
    char *text;
    size_t size;
    size_t room;
} paper;

int paper_write(const char *text, size_t size, void *user);

/* Writes a file into reader_folder, or below it, and gives its path. */
void write_file(const char *name, const void *bytes, size_t size, char path[512]);

/* Removes all files of reader_folder. */
void remove_files(void);

#endif
