/* Texts of images as a fuzzer invents them: ds_kernel_create compares their functions with a table
   of parameters. A byte of the input from 128 on stands for a word of PTX, so that functions with
   parameters and bodies are met soon.

   A text that is given whole, with its size, or in pieces must get the same answer, and a refusal
   must have a sentence; everything else ends the program. The text lies in memory of its own, so
   that the address sanitizer sees a byte too many. */
#include "devstream.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARAMS = 6, MOST_PIECES = 9, MOST_TEXT = 1 << 16 };

static const char *const words[] = {
    ".version 5.0\n",
    ".target sm_60\n",
    ".visible .entry f(",
    ".entry f(",
    ".entry g",
    ".param .u64 p0",
    ".param .u64 p1",
    ".param .u32 p2",
    ".param .align 8 .b8 p3[8]",
    ".ptr .global .align 4 ",
    ") {\n",
    ", ",
    "ret; }\n",
    ".reg .b64 %rd<9>;\n",
    "ld.param.u64 %rd1, [p0];\n",
    "ld.param.u64 %rd2, [p1];\n",
    "ld.param.u64 %rd3, [p3+0];\n",
    "cvta.to.global.u64 %rd3, %rd1;\n",
    "add.s64 %rd4, %rd2, %rd3;\n",
    "mov.u64 %rd1, %rd4;\n",
    "mov.b64 {%r1, %r2}, %rd1;\n",
    "ld.global.u32 %r1, [%rd1];\n",
    "st.global.v2.u32 [%rd4+8], {%r1, %r2};\n",
    "atom.add.u32 %r1, [%rd2], 1;\n",
    "@!%p1 bra L1;\n",
    "L1: ",
    "%tid.x",
    "%rd",
    "[",
    "]",
    "{",
    "}",
    ";\n",
    ".loc 1 2 3\n",
    "// ",
    "/* ",
    "*/",
    "\"",
    ".local .align 4 .b8 x[16];\n",
    "{ .param .b64 p0; st.param.b64 [p0], %rd1; }\n",
    "bar.sync 0;\n",
    "#",
    "::",
    ".maxntid 256, 1, 1\n",
};

static void stop(const char *what) {
    fprintf(stderr, "%s: %s\n", what, ds_error_get_last());
    abort();
}

static int nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

/* Writes the text of an input, without zeros. Returns its length. */
static size_t spell(const uint8_t *data, size_t size, char *text) {
    size_t n = 0;
    for (size_t i = 0; i < size && n < MOST_TEXT - 64; i++) {
        const char *word = words[data[i] % (sizeof words / sizeof *words)];
        if (data[i] >= 128) {
            memcpy(text + n, word, strlen(word));
            n += strlen(word);
        } else if (data[i]) {
            text[n++] = (char)data[i];
        }
    }
    text[n] = 0;
    return n;
}

/* Creates a kernel and destroys it. A refusal is a result with a sentence. */
static ds_result create(const ds_kernel_desc *desc) {
    ds_kernel k = { 1 };
    ds_result r = ds_kernel_create(desc, &k);
    if (r == DS_OK) {
        if (ds_kernel_destroy(k) < 0)
            stop("destroy");
    } else if (r != DS_ERR_INVALID_VALUE || k.id || !*ds_error_get_last()) {
        stop("a refusal without a sentence, or with a result");
    }
    return r;
}

/* The same text in pieces, which end where the bytes tell. */
static ds_result create_in_pieces(ds_kernel_desc desc, const char *text, size_t size,
                                  const uint8_t *ends) {
    const char *pieces[MOST_PIECES + 1] = { NULL };
    char *memory = malloc(size + MOST_PIECES);
    char *to = memory;
    size_t from = 0;
    if (!memory)
        stop("malloc");
    for (int i = 0; i < MOST_PIECES; i++) {
        size_t part = i == MOST_PIECES - 1 ? size - from : ends[i] % (size - from + 1);
        memcpy(to, text + from, part);
        to[part] = 0;
        pieces[i] = to;
        to += part + 1;
        from += part;
    }
    desc.cuda.image = NULL;
    desc.cuda.image_size = 0;
    desc.cuda.image_pieces = pieces;
    ds_result r = create(&desc);
    free(memory);
    return r;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    setenv("DEVSTREAM_CPU_DEVICES", "1", 0);
    setenv("DEVSTREAM_LOG", "0", 0);
    return ds_init(NULL) < 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[MOST_TEXT];
    static const size_t sizes[] = { 8, 8, 4, 1 };
    ds_param params[MOST_PARAMS];
    if (size < MOST_PARAMS + MOST_PIECES + 1)
        return 0;
    for (size_t i = 0; i < MOST_PARAMS; i++) {
        ds_param_kind kind = (ds_param_kind)(data[i] % 6);
        int pointer = kind >= DS_PARAM_READ && kind <= DS_PARAM_READ_WRITE;
        params[i] = (ds_param){ kind, 0, pointer ? 8 : sizes[data[i] / 6 % 4] };
    }
    const uint8_t *ends = data + MOST_PARAMS;
    size_t param_count = ends[MOST_PIECES] % (MOST_PARAMS + 1);
    size_t head = MOST_PARAMS + MOST_PIECES + 1;
    size_t length = spell(data + head, size - head, text);
    char *copy = malloc(length + 1);
    if (!copy)
        stop("malloc");
    memcpy(copy, text, length + 1);
    ds_kernel_desc desc = { .name = "fuzz",
                            .cpu_fn = nothing,
                            .args_size = 8,
                            .params = params,
                            .param_count = param_count,
                            .cuda = { .image = copy, .entry = "f" } };
    ds_result whole = create(&desc);
    if (create_in_pieces(desc, text, length, ends) != whole)
        stop("pieces are another text");
    free(copy);

    /* without a zero */
    copy = malloc(length + !length);
    if (!copy)
        stop("malloc");
    memcpy(copy, text, length);
    desc.cuda.image = copy;
    desc.cuda.image_size = length;
    if (length && create(&desc) != whole)
        stop("a text of a given size is another text");
    free(copy);
    return 0;
}
