/* The target of libFuzzer for readers.h: finds the reader, and has its helpers. */
#define _GNU_SOURCE
#include "reader.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static const reader *const readers[] = {
    &reader_names,  &reader_options, &reader_topology, &reader_start, &reader_labels,
    &reader_states, &reader_tensors, &reader_launch,   &reader_files, &reader_ids,
};

static const reader *chosen;
char reader_folder[64];

void stop(const char *what) {
    fprintf(stderr, "%s: %s\n", what, ds_error_get_last());
    abort();
}

void check_refusal(ds_result r) {
    if (r < 0 && !*ds_error_get_last())
        stop("a refusal without a sentence");
}

unsigned take(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

unsigned take_choice(input *in, unsigned count) {
    return (take(in) + 256 - 'A') % 256 % count;
}

void take_bytes(input *in, void *out, size_t size) {
    size_t left = (size_t)(in->end - in->at);
    size_t n = size < left ? size : left;
    memset(out, 0, size);
    if (n)
        memcpy(out, in->at, n);
    in->at += n;
}

char *take_text(input *in, int end) {
    size_t n = 0;
    size_t left = (size_t)(in->end - in->at);
    while (n < left && in->at[n] != end)
        n++;
    size_t length = n ? strnlen((const char *)in->at, n) : 0;
    char *text = malloc(length + 1);
    if (!text)
        stop("malloc");
    memcpy(text, in->at, length);
    text[length] = 0;
    in->at += n + (n < left);
    return text;
}

int paper_write(const char *text, size_t size, void *user) {
    paper *p = user;
    if (p->size + size + 1 > p->room) {
        p->room = 2 * (p->size + size + 1);
        p->text = realloc(p->text, p->room);
        if (!p->text)
            stop("realloc");
    }
    memcpy(p->text + p->size, text, size);
    p->size += size;
    p->text[p->size] = 0;
    return 0;
}

void write_file(const char *name, const void *bytes, size_t size, char path[512]) {
    snprintf(path, 512, "%s/%s", reader_folder, name);
    for (char *at = strchr(path + strlen(reader_folder) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(bytes, size, 1, f) != 1) || fclose(f))
        stop(path);
}

/* 1: folders are removed, too. */
static int leaving;

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)is;
    return at->level && (kind == FTW_F || leaving) ? remove(path) : 0;
}

void remove_files(void) {
    (void)nftw(reader_folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void remove_folder(void) {
    leaving = 1;
    remove_files();
    (void)rmdir(reader_folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("FUZZ_READER");
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (name && strcmp(name, readers[i]->name) == 0)
            chosen = readers[i];
    if (!chosen) {
        fprintf(stderr, "FUZZ_READER must be one of:");
        for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
            fprintf(stderr, " %s", readers[i]->name);
        fprintf(stderr, "\n");
        exit(2);
    }
    setenv("DEVSTREAM_CPU_DEVICES", "2", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    strcpy(reader_folder, "/tmp/ds-readers-XXXXXX");
    if (!mkdtemp(reader_folder) || atexit(remove_folder))
        stop("mkdtemp");
    return chosen->cold ? 0 : ds_init(NULL) < 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = { data, data + size };
    chosen->read(&in);
    return 0;
}
