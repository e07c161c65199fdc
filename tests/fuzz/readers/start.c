/* Texts with which devstream starts: variables of the environment, and texts of ds_init.

   A line sets one of them: the first letter selects the variable or member. ds_init must start or
   refuse with a sentence; after ds_shutdown it must start again without them. Slashes become
   underscores, so that files of the layers stay in the folder of this process. Libraries that
   variables name are left out: loading a foreign library runs its code. */
#define _GNU_SOURCE
#include "reader.h"

#include <fcntl.h>
#include <unistd.h>

static const char *const variables[] = {
    "DEVSTREAM_LOG",
    "DEVSTREAM_LAYERS",
    "DEVSTREAM_FAULT",
    "DEVSTREAM_CHECK",
    "DEVSTREAM_TRACE",
    "DEVSTREAM_SYNC_DEBUG",
    "DEVSTREAM_DEVICE",
    "DEVSTREAM_ALLOC_CONF",
    "DEVSTREAM_CPU_DEVICES",
    "DEVSTREAM_CPU_MEMORY",
    "DEVSTREAM_CPU_WORKERS",
    "DEVSTREAM_CPU_SEED",
    "DEVSTREAM_CPU_INLINE",
    "DEVSTREAM_CPU_PEERS",
    "DEVSTREAM_CPU_SPIN",
    "DEVSTREAM_CPU_AFFINITY",
    "DEVSTREAM_CPU_UNREACHABLE",
    "DEVSTREAM_NO_CUDA",
    "DEVSTREAM_PER_THREAD_DEFAULT_STREAM",
    "DEVSTREAM_RANKS_RECORD",
    "DEVSTREAM_RANKS_ENGINE",
};

enum { VARIABLES = sizeof variables / sizeof *variables, MEMBERS = 6, MOST_LINES = 8 };

static void set_member(ds_init_desc *desc, ds_cpu_desc *cpu, unsigned i, const char *text) {
    const char **const members[MEMBERS] = { &desc->fault, &desc->layers, &desc->check,
                                            &desc->trace, &desc->device, &cpu->affinity };
    *members[i] = text;
}

/* What a started library does: some work, so that layers and faults are met. Calls may fail. */
static void work(void) {
    ds_stream stream = { 0 };
    void *p = NULL;
    ds_ranks ranks = { 0 };
    int count = 0;
    ds_result r = ds_device_get_count(DS_DEVICE_CPU, &count); /* starts the drivers */
    check_refusal(r);
    if ((r < 0) != !count)
        stop("a start without devices");
    if (ds_stream_create(NULL, &stream) == DS_OK) {
        DS_IGNORE(ds_mem_alloc(1000, stream, &p));
        if (p)
            DS_IGNORE(ds_fill(p, 1, 1, 1000, stream));
        DS_IGNORE(ds_stream_synchronize(stream));
        if (p)
            DS_IGNORE(ds_mem_free(p));
        DS_IGNORE(ds_stream_destroy(stream));
    }
    if (ds_ranks_init(NULL, &ranks) == DS_OK)
        DS_IGNORE(ds_ranks_finalize(ranks));
}

/* Works in the folder for files, or again in that of the start of this program. */
static void enter(int folder) {
    static int home = -1;
    if (home < 0)
        home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (home < 0 || (folder ? chdir(reader_folder) : fchdir(home)))
        stop("chdir");
}

static void read_start(input *in) {
    char *texts[MOST_LINES] = { NULL };
    int count = 0;
    ds_cpu_desc cpu = { .devices = 0 };
    ds_init_desc desc = { .cpu = &cpu };
    enter(1);
    for (int i = 0; i < VARIABLES; i++)
        unsetenv(variables[i]);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    setenv("DEVSTREAM_CPU_MEMORY", "16777216", 1);

    for (int i = 0; i < MOST_LINES && in->at < in->end; i++) {
        unsigned what = take_choice(in, VARIABLES + MEMBERS);
        texts[i] = take_text(in, '\n');
        for (char *c = texts[i]; (c = strchr(c, '/'));)
            *c = '_';
        if (what < VARIABLES)
            setenv(variables[what], texts[i], 1);
        else
            set_member(&desc, &cpu, what - VARIABLES, texts[i]);
    }
    ds_result r = ds_init(&desc);
    check_refusal(r);
    if (r == DS_OK) {
        work();
        DS_IGNORE(ds_shutdown());
    } else if (ds_is_initialized()) {
        stop("a refused start has started");
    }

    for (int i = 0; i < VARIABLES; i++)
        unsetenv(variables[i]);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    MUST(ds_init(NULL));
    if (ds_device_get_count(DS_DEVICE_CPU, &count) < 0 || count < 1)
        stop("no second start");
    MUST(ds_shutdown());
    for (int i = 0; i < MOST_LINES; i++)
        free(texts[i]);
    remove_files();
    enter(0);
}

const reader reader_start = { "start", read_start, 1 };
