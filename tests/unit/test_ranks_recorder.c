/* The flight recorder of process groups, and the launchers that started a process. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "unit.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { ENTRIES_AT = 4096 + (1 << 18), ENTRY = 192, ENTRIES = 4096, GROUP = 7 };

static char folder[64];
static char path[96];
static unsigned char *file; /* contents of `path` */

static int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/ds-recorder-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/rank3", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    free(file);
    file = NULL;
    unlink(path);
    return rmdir(folder);
}

static ds__recorder *open_recorder(void) {
    ds__recorder *r;
    char pattern[96];
    snprintf(pattern, sizeof pattern, "%s/rank%%r", folder);
    ok(ds__recorder_open(pattern, 3, 8, &r));
    return r;
}

static uint64_t number_at(size_t at, size_t size) {
    uint64_t n = 0;
    memcpy(&n, file + at, size);
    return n;
}

static void read_file(void) {
    struct stat info;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, ENTRIES_AT + ENTRIES * ENTRY);
    free(file);
    file = malloc((size_t)info.st_size);
    assert_int_equal(fread(file, 1, (size_t)info.st_size, f), info.st_size);
    fclose(f);
}

static ds__recorder_call call_of(uint64_t number) {
    ds__recorder_call call = { .group = GROUP,
                               .sequence = number,
                               .collective = number,
                               .verb = DS__RECORDER_ALL_REDUCE,
                               .dtype = ds_float32(),
                               .reduce = DS_REDUCE_MAX,
                               .root = -1,
                               .device = -1,
                               .count = 1000 + number,
                               .stream = 0x123456789a,
                               .fn = "ds_comm_all_reduce",
                               .site = { "examples/train.c", 42 },
                               .now = 100 + number };
    return call;
}

static uint64_t record(ds__recorder *r, uint64_t number, ds__recorder_status status) {
    ds__recorder_call call = call_of(number);
    uint64_t entry = ds__recorder_begin(r, &call);
    if (status > DS__RECORDER_ENQUEUED)
        ds__recorder_set(r, entry, DS__RECORDER_STARTED, 200 + number);
    if (status > DS__RECORDER_STARTED)
        ds__recorder_set(r, entry, status, 300 + number);
    return entry;
}

static void test_header_has_the_documented_offsets(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();

    read_file();
    assert_memory_equal(file, "DSRANKS", 8);
    assert_int_equal(number_at(8, 4), 1);
    assert_int_equal(number_at(12, 4), ENTRY);
    assert_int_equal(number_at(16, 4), 4096);
    assert_int_equal(number_at(20, 4), 1 << 18);
    assert_int_equal(number_at(24, 4), ENTRIES_AT);
    assert_int_equal(number_at(28, 4), ENTRIES);
    assert_int_equal(number_at(32, 4), 3);
    assert_int_equal(number_at(36, 4), 8);
    assert_int_equal(number_at(40, 4), getpid());
    assert_int_equal(number_at(44, 4), 0);
    assert_true(number_at(48, 8) <= ds__now_ns());
    assert_true(number_at(56, 8) <= (uint64_t)ds__os_wall_ns());
    assert_true(file[64] != 0);

    ds__recorder_close(r);
    read_file();
    assert_int_equal(number_at(44, 4), 1);
}

static void test_entry_has_the_documented_offsets(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    record(r, 1, DS__RECORDER_COMPLETE);
    ds__recorder_call call = call_of(2);
    call.collective = 0;
    call.verb = DS__RECORDER_RECEIVE;
    call.reduce = DS__RECORDER_NO_REDUCE;
    call.flags = DS__RECORDER_COUNTS_VARY;
    call.root = 5;
    call.device = 6;
    assert_int_equal(ds__recorder_begin(r, &call), 2);

    read_file();
    const size_t at = ENTRIES_AT;
    assert_int_equal(number_at(128, 8), 2);
    assert_int_equal(number_at(at, 8), 1 << 8 | DS__RECORDER_COMPLETE);
    assert_int_equal(number_at(at + 8, 8), GROUP);
    assert_int_equal(number_at(at + 16, 8), 1);
    assert_int_equal(number_at(at + 24, 8), 1);
    assert_int_equal(number_at(at + 32, 8), 1001);
    assert_int_equal(number_at(at + 40, 8), 0x123456789a);
    assert_int_equal(number_at(at + 48, 8), 101);
    assert_int_equal(number_at(at + 56, 8), 201);
    assert_int_equal(number_at(at + 64, 8), 301);
    assert_int_equal((int32_t)number_at(at + 72, 4), -1);
    assert_int_equal((int32_t)number_at(at + 76, 4), -1);
    assert_int_equal(number_at(at + 80, 4), 42);
    assert_int_equal(file[at + 84], DS__RECORDER_ALL_REDUCE);
    assert_int_equal(file[at + 85], DS_REDUCE_MAX);
    assert_int_equal(number_at(at + 88, 4), 0x12002);
    assert_string_equal((char *)file + at + 96, "ds_comm_all_reduce");
    assert_string_equal((char *)file + at + 128, "examples/train.c");
    assert_int_equal(number_at(at + ENTRY, 8), 2 << 8 | DS__RECORDER_ENQUEUED);
    assert_int_equal(number_at(at + ENTRY + 24, 8), 0);
    assert_int_equal(number_at(at + ENTRY + 64, 8), 0);
    assert_int_equal(number_at(at + ENTRY + 72, 4), 5);
    assert_int_equal(number_at(at + ENTRY + 76, 4), 6);
    assert_int_equal(file[at + ENTRY + 85], 255);
    assert_int_equal(file[at + ENTRY + 86], 1);
    ds__recorder_close(r);
}

static void test_notes_have_the_documented_offsets(void **state) {
    (void)state;
    const int world[3] = { 1, 3, 5 };
    ds__recorder *r = open_recorder();
    ds__recorder_group group = { .group = GROUP,
                                 .rank = 1,
                                 .size = 3,
                                 .devices = 6,
                                 .first_device = 2,
                                 .own_devices = 2,
                                 .engine = "local",
                                 .label = "rows",
                                 .world_ranks = world };
    ds__recorder_group_add(r, &group);
    ds__recorder_failure_add(r, GROUP, DS_ERR_ABORTED, "the loss is NaN");

    read_file();
    const size_t at = 4096;
    assert_int_equal(number_at(at, 4), 1);
    assert_int_equal(number_at(at + 4, 4), 136);
    assert_int_equal(number_at(at + 8, 8), GROUP);
    assert_int_equal(number_at(at + 16, 4), 1);
    assert_int_equal(number_at(at + 20, 4), 3);
    assert_int_equal(number_at(at + 24, 4), 6);
    assert_int_equal(number_at(at + 28, 4), 2);
    assert_int_equal(number_at(at + 32, 4), 2);
    assert_int_equal(number_at(at + 36, 4), 3);
    assert_string_equal((char *)file + at + 40, "local");
    assert_string_equal((char *)file + at + 56, "rows");
    assert_int_equal(number_at(at + 128, 4), 5);
    assert_int_equal(number_at(at + 136, 4), 2);
    assert_int_equal((int32_t)number_at(at + 136 + 16, 4), DS_ERR_ABORTED);
    assert_string_equal((char *)file + at + 136 + 32, "the loss is NaN");
    assert_int_equal(number_at(144, 8), 136 + 416);
    ds__recorder_close(r);
}

static void test_notes_without_room_are_counted(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    const int fit = (1 << 18) / 416;

    for (int i = 0; i < fit + 5; i++)
        ds__recorder_failure_add(r, GROUP, DS_ERR_FAILED, "again");

    read_file();
    assert_int_equal(number_at(144, 8), fit * 416);
    assert_int_equal(number_at(152, 8), 5);
    ds__recorder_close(r);
}

/* A group with more ranks than all notes have room for. */
static void test_a_note_of_very_many_ranks_is_counted(void **state) {
    enum { MANY = 1 << 16 };

    static int32_t ranks[MANY];
    (void)state;
    ds__recorder *r = open_recorder();
    ds__recorder_group group = { .group = GROUP, .size = MANY, .world_ranks = ranks };

    ds__recorder_group_add(r, &group);
    ds__recorder_failure_add(r, GROUP, DS_ERR_FAILED, "there is room for this one");

    read_file();
    assert_int_equal(number_at(144, 8), 416);
    assert_int_equal(number_at(152, 8), 1);
    ds__recorder_close(r);
}

static void test_long_texts_are_cut(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    ds__recorder_call call = call_of(1);
    call.fn = "a_function_with_a_name_of_more_than_31_characters";
    call.site.file = "/a/long/path/of/more/than/64/characters/that/begins/with/folders/of/a/user/"
                     "and/ends/with/train.c";
    ds__recorder_begin(r, &call);

    read_file();
    assert_string_equal((char *)file + ENTRIES_AT + 96, "a_function_with_a_name_of_more_");
    assert_string_equal((char *)file + ENTRIES_AT + 128,
                        call.site.file + strlen(call.site.file) - 63);
    ds__recorder_close(r);
}

static void test_the_ring_overwrites_complete_entries(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();

    for (uint64_t i = 1; i <= ENTRIES + 10; i++)
        assert_int_equal(record(r, i, DS__RECORDER_COMPLETE), i);

    read_file();
    assert_int_equal(number_at(128, 8), ENTRIES + 10);
    assert_int_equal(number_at(ENTRIES_AT + 9 * ENTRY, 8) >> 8, ENTRIES + 10);
    assert_int_equal(number_at(ENTRIES_AT + 10 * ENTRY, 8) >> 8, 11);
    ds__recorder_close(r);
}

static void test_pending_entries_are_not_overwritten(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    uint64_t pending = record(r, 1, DS__RECORDER_STARTED);

    for (uint64_t i = 2; i <= 2 * ENTRIES; i++)
        assert_true(record(r, i, DS__RECORDER_COMPLETE) > 0);

    read_file();
    assert_int_equal(number_at(ENTRIES_AT, 8), pending << 8 | DS__RECORDER_STARTED);
    assert_int_equal(number_at(ENTRIES_AT + 16, 8), 1);
    assert_int_equal(number_at(136, 8), 0);
    ds__recorder_set(r, pending, DS__RECORDER_COMPLETE, 1);
    read_file();
    assert_int_equal(number_at(ENTRIES_AT, 8), pending << 8 | DS__RECORDER_COMPLETE);
    ds__recorder_close(r);
}

static void test_a_ring_full_of_pending_entries_counts(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    for (uint64_t i = 1; i <= ENTRIES; i++)
        record(r, i, DS__RECORDER_ENQUEUED);

    uint64_t number = record(r, ENTRIES + 1, DS__RECORDER_COMPLETE);

    assert_int_equal(number, 0);
    read_file();
    assert_int_equal(number_at(136, 8), 1);
    for (size_t i = 0; i < ENTRIES; i++)
        assert_int_equal(number_at(ENTRIES_AT + i * ENTRY, 8), (i + 1) << 8 | 1);
    ds__recorder_close(r);
}

static void test_an_entry_is_incomplete_while_it_is_written(void **state) {
    (void)state;
    uint64_t number;
    ds__recorder *r = open_recorder();

    assert_non_null(ds__recorder_claim(r, &number));

    read_file();
    assert_int_equal(number_at(ENTRIES_AT, 8), 1 << 8 | DS__RECORDER_WRITING);
    ds__recorder_close(r);
}

static void test_a_final_status_stays(void **state) {
    (void)state;
    ds__recorder *r = open_recorder();
    uint64_t number = record(r, 1, DS__RECORDER_FAILED);

    ds__recorder_set(r, number, DS__RECORDER_ABANDONED, 1);
    ds__recorder_set(r, number + ENTRIES, DS__RECORDER_COMPLETE, 1);

    read_file();
    assert_int_equal(number_at(ENTRIES_AT, 8), number << 8 | DS__RECORDER_FAILED);
    assert_int_equal(number_at(ENTRIES_AT + 64, 8), 301);
    ds__recorder_close(r);
}

static void test_no_recorder_is_allowed(void **state) {
    (void)state;
    ds__recorder_group group = { .group = GROUP, .size = 1 };

    ds__recorder_group_add(NULL, &group);
    ds__recorder_failure_add(NULL, GROUP, DS_ERR_FAILED, "");
    assert_int_equal(record(NULL, 1, DS__RECORDER_COMPLETE), 0);
    ds__recorder_close(NULL);
}

/* Records until it is killed. */
static void record_for_ever(int to) {
    ds__recorder *r = open_recorder();
    record(r, 1, DS__RECORDER_STARTED);
    for (uint64_t i = 2;; i++) {
        record(r, i, DS__RECORDER_COMPLETE);
        if (i == 3 * ENTRIES && write(to, "", 1) != 1)
            _exit(1);
    }
}

static void test_the_file_survives_a_kill(void **state) {
    (void)state;
    int status, pipes[2];
    char byte;
    size_t incomplete = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0)
        record_for_ever(pipes[1]);
    assert_int_equal(read(pipes[0], &byte, 1), 1);

    kill(child, SIGKILL);

    assert_int_equal(waitpid(child, &status, 0), child);
    close(pipes[0]);
    close(pipes[1]);
    read_file();
    assert_int_equal(number_at(44, 4), 0);
    assert_int_equal(number_at(40, 4), child);
    assert_int_equal(number_at(ENTRIES_AT, 8), 1 << 8 | DS__RECORDER_STARTED);
    for (size_t at = ENTRIES_AT + ENTRY; at < ENTRIES_AT + ENTRIES * ENTRY; at += ENTRY) {
        uint64_t word = number_at(at, 8);
        assert_int_equal(((word >> 8) - 1) % ENTRIES, (at - ENTRIES_AT) / ENTRY);
        if ((word & 255) == DS__RECORDER_WRITING) {
            incomplete++;
            continue;
        }
        uint64_t sequence = number_at(at + 16, 8);
        assert_int_equal(number_at(at + 32, 8), 1000 + sequence);
        assert_int_equal(number_at(at + 48, 8), 100 + sequence);
    }
    assert_true(incomplete <= 1);
}

enum { EACH = 20000 };

static void *record_many(void *user) {
    for (uint64_t i = 1; i <= EACH; i++)
        if (!record(user, i, DS__RECORDER_COMPLETE))
            return user;
    return NULL;
}

static void test_two_threads_share_a_recorder(void **state) {
    (void)state;
    ds__os_thread thread;
    ds__recorder *r = open_recorder();
    uint64_t pending = record(r, 1, DS__RECORDER_STARTED);
    void *mine;

    assert_int_equal(ds__os_thread_start(&thread, record_many, r), 0);
    mine = record_many(r);
    ds__os_thread_join(thread);

    assert_null(mine);
    read_file();
    assert_int_equal(number_at(ENTRIES_AT, 8), pending << 8 | DS__RECORDER_STARTED);
    assert_true(number_at(128, 8) >= 2 * EACH + 1);
    for (size_t at = ENTRIES_AT + ENTRY; at < ENTRIES_AT + ENTRIES * ENTRY; at += ENTRY) {
        assert_int_equal(number_at(at, 8) & 255, DS__RECORDER_COMPLETE);
        assert_int_equal(number_at(at + 64, 8), 300 + number_at(at + 16, 8));
    }
    ds__recorder_close(r);
}

static void test_groups_share_the_recorder_of_a_path(void **state) {
    (void)state;
    ds__recorder *first = open_recorder();

    ds__recorder *second = open_recorder();

    assert_ptr_equal(first, second);
    ds__recorder_close(first);
    record(second, 1, DS__RECORDER_COMPLETE);
    read_file();
    assert_int_equal(number_at(44, 4), 0);
    ds__recorder_close(second);
    read_file();
    assert_int_equal(number_at(44, 4), 1);
}

static void test_a_child_does_not_close_the_file(void **state) {
    (void)state;
    int status;
    ds__recorder *r = open_recorder();
    pid_t child = fork();
    if (child == 0) {
        ds__recorder_close(r);
        _exit(0);
    }

    assert_int_equal(waitpid(child, &status, 0), child);

    assert_int_equal(status, 0);
    read_file();
    assert_int_equal(number_at(44, 4), 0);
    ds__recorder_close(r);
}

static void test_an_older_file_is_replaced(void **state) {
    (void)state;
    char text[8] = "";
    FILE *old = fopen(path, "w+");
    assert_non_null(old);
    assert_true(fputs("older", old) >= 0 && fflush(old) == 0);

    ds__recorder_close(open_recorder());

    rewind(old); /* a process that has it open keeps it */
    assert_non_null(fgets(text, sizeof text, old));
    assert_string_equal(text, "older");
    fclose(old);
    read_file();
    assert_memory_equal(file, "DSRANKS", 8);
}

static void path_refused(ds_result result, const char *pattern, int rank, const char *sentence) {
    ds__recorder *r = (ds__recorder *)(void *)path;
    assert_int_equal(ds__recorder_open(pattern, rank, 8, &r), result);
    assert_null(r);
    if (!strstr(ds_error_get_last(), sentence))
        fail_msg("\"%s\" is not in: %s", sentence, ds_error_get_last());
}

static void test_paths_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    char pattern[1024];
    ds__recorder *r = open_recorder();

    path_refused(
        DS_ERR_SYSTEM, "/nowhere/rank%r", 0,
        "recorder: the file \"/nowhere/rank0\" cannot be created: No such file or directory");
    path_refused(
        DS_ERR_INVALID_VALUE, "/tmp/recorder", 0,
        "all 8 ranks would write the file \"/tmp/recorder\": put %r (the rank) into the path");
    memset(pattern, 'a', sizeof pattern);
    strcpy(pattern + 600, "%r");
    path_refused(DS_ERR_INVALID_VALUE, pattern, 0,
                 "is too long; at most 511 characters are allowed");

    ds__recorder_close(r);
}

static void test_devices_are_not_replaced(void **state) {
    (void)state;
    struct stat info;

    assert_null(ds__os_file_map("/dev/null", 4096));

    assert_int_equal(errno, EEXIST);
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

static void test_ranks_of_a_process_need_files_of_their_own(void **state) {
    (void)state;
    ds__recorder *r;
    char pattern[96];
    snprintf(pattern, sizeof pattern, "%s/rank%%p", folder);
    snprintf(path, sizeof path, "%s/rank%d", folder, (int)getpid());
    ok(ds__recorder_open(pattern, 3, 8, &r));

    path_refused(
        DS_ERR_INVALID_VALUE, pattern, 4,
        "is that of rank 3, and was named for rank 4, too: put %r (the rank) into the path");

    ds__recorder_close(r);
}

/* Returns the output of a command, in a static buffer. */
static const char *output_of(const char *command) {
    static char text[1 << 16];
    FILE *f = popen(command, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    pclose(f);
    return text;
}

/* The tool has tables of its own for the operations, types, reductions and statuses. */
static void test_the_tool_knows_all_names(void **state) {
    (void)state;
    static const char *const verbs[] = { "init",       "split",          "shrink",    "finalize",
                                         "all_reduce", "reduce",         "broadcast", "all_gather",
                                         "gather",     "reduce_scatter", "scatter",   "all_to_all",
                                         "send",       "receive",        "barrier" };
    static const char *const reduces[] = { "sum", "product", "max", "min", "average" };
    static const char *const types[] = {
#define TYPE(name, code, bits, lanes) #name,
        DS_DTYPES(TYPE)
#undef TYPE
    };
    static const ds_dtype values[] = {
#define TYPE(name, code, bits, lanes) { code, bits, lanes },
        DS_DTYPES(TYPE)
#undef TYPE
    };
    const size_t count = sizeof types / sizeof types[0];
    char command[256];
    char wanted[256];
    ds__recorder *r = open_recorder();
    for (size_t i = 0; i < count; i++) {
        ds__recorder_call call = call_of(i + 1);
        call.verb = (ds__recorder_verb)(i % 15 + 1);
        call.dtype = values[i];
        call.reduce = (int)(i % 5);
        ds__recorder_set(r, ds__recorder_begin(r, &call), DS__RECORDER_COMPLETE, 1);
    }
    ds__recorder_close(r);
    if (access("tools/devstream-ranks", X_OK) || system("python3 --version >/dev/null 2>&1"))
        skip();

    snprintf(command, sizeof command, "tools/devstream-ranks --json --last 99 %s", path);
    const char *text = output_of(command);

    for (size_t i = 0; i < count; i++) {
        snprintf(wanted, sizeof wanted,
                 "\"verb\": \"%s\",\n     \"type\": \"%s\",\n     \"count\": %zu,\n     "
                 "\"reduction\": \"%s\"",
                 verbs[i % 15], types[i], 1001 + i, reduces[i % 5]);
        if (!strstr(text, wanted))
            fail_msg("%s is not in %s", wanted, text);
    }
}

/* ---- launchers ------------------------------------------------------------------------------- */

static const char *const *environment; /* "NAME=value", NULL at the end */

static const char *get(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; environment[i]; i++)
        if (strncmp(environment[i], name, n) == 0 && environment[i][n] == '=')
            return environment[i] + n + 1;
    return NULL;
}

static void launched(const char *const *variables, const char *launcher, int rank, int size,
                     int local_rank, int local_size) {
    ds_ranks_launch is;
    environment = variables;
    ds__launch_read(get, &is);
    assert_string_equal(is.launcher, launcher);
    assert_int_equal(is.rank, rank);
    assert_int_equal(is.size, size);
    assert_int_equal(is.local_rank, local_rank);
    assert_int_equal(is.local_size, local_size);
}

#define ENVIRONMENT(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define MPICH "PMI_RANK=5", "PMI_SIZE=8", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4"
#define OPEN_MPI                                                       \
    "PMIX_RANK=5", "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", \
        "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4"
#define BATCH "SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0", "SLURM_NODEID=0"
#define STEP(rank)                                                                       \
    "SLURM_STEP_ID=0", "SLURM_PROCID=" rank, "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=6", \
        "SLURM_LOCALID=1", "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=2(x2),3,1(x9)"
#define TORCHRUN "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"

static void test_each_launcher_is_known(void **state) {
    (void)state;
    launched(ENVIRONMENT("HOME=/"), "", -1, -1, -1, -1);
    launched(ENVIRONMENT(MPICH), "mpiexec", 5, 8, 1, 4);
    launched(ENVIRONMENT(OPEN_MPI), "mpiexec", 5, 8, 1, 4);
    launched(ENVIRONMENT("PMIX_RANK=5"), "mpiexec", 5, -1, -1, -1);
    launched(ENVIRONMENT(STEP("5")), "slurm", 5, 6, 1, 3);
    launched(ENVIRONMENT(TORCHRUN, "TORCHELASTIC_RUN_ID=1"), "torchrun", 3, 4, 1, 2);
    launched(ENVIRONMENT(TORCHRUN, "MASTER_ADDR=a"), "torchrun", 3, 4, 1, 2);
    launched(ENVIRONMENT(TORCHRUN), "", -1, -1, -1, -1);
}

static void test_the_inner_launcher_counts(void **state) {
    (void)state;
    launched(ENVIRONMENT(MPICH, BATCH), "mpiexec", 5, 8, 1, 4);
    launched(ENVIRONMENT(OPEN_MPI, STEP("2")), "mpiexec", 5, 8, 1, 4);
    launched(ENVIRONMENT(MPICH, STEP("5")), "mpiexec", 5, 8, 1, 4);
    launched(ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=4", STEP("2")), "mpiexec", 1, 4, -1, -1);
    launched(ENVIRONMENT("PMI_RANK=5", "PMI_SIZE=6", STEP("5")), "slurm", 5, 6, 1, 3);
    launched(ENVIRONMENT("PMIX_RANK=5", STEP("5")), "slurm", 5, 6, 1, 3);
    launched(ENVIRONMENT(TORCHRUN, "TORCHELASTIC_RUN_ID=1", STEP("0"), MPICH), "torchrun", 3, 4, 1,
             2);
    launched(ENVIRONMENT(TORCHRUN, "MASTER_ADDR=a", STEP("5")), "slurm", 5, 6, 1, 3);
}

static void test_a_batch_script_is_no_rank(void **state) {
    (void)state;
    launched(ENVIRONMENT(BATCH), "", -1, -1, -1, -1);
}

static void test_malformed_numbers_are_not_known(void **state) {
    (void)state;
    launched(ENVIRONMENT("PMI_RANK=-1", "PMI_SIZE=x", "MPI_LOCALRANKID=1x", "MPI_LOCALNRANKS="),
             "mpiexec", -1, -1, -1, -1);
    launched(ENVIRONMENT("PMI_RANK=2147483647", "PMI_SIZE=2147483648", "MPI_LOCALRANKID= 1"),
             "mpiexec", INT_MAX, -1, -1, -1);
    launched(ENVIRONMENT("PMI_RANK=99999999999999999999", "PMI_SIZE=007"), "mpiexec", -1, 7, -1,
             -1);
}

static void test_tasks_of_a_machine_are_read_from_the_list(void **state) {
    (void)state;
    assert_int_equal(ds__launch_tasks("4", 0), 4);
    assert_int_equal(ds__launch_tasks("2(x3),1", 2), 2);
    assert_int_equal(ds__launch_tasks("2(x3),1", 3), 1);
    assert_int_equal(ds__launch_tasks("2(x3),1", 4), -1);
    assert_int_equal(ds__launch_tasks("2(x3),1", -1), -1);
    assert_int_equal(ds__launch_tasks("2(x3", 0), -1);
    assert_int_equal(ds__launch_tasks("2(x", 0), -1);
    assert_int_equal(ds__launch_tasks("2(3)", 0), -1);
    assert_int_equal(ds__launch_tasks("", 0), -1);
    assert_int_equal(ds__launch_tasks("x", 0), -1);
    launched(ENVIRONMENT("SLURM_STEPID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0",
                         "SLURM_NTASKS_PER_NODE=2"),
             "slurm", 1, 2, 0, 2);
}

static void test_the_environment_of_the_process_is_read(void **state) {
    (void)state;
    ds_ranks_launch is;
    static const char *const names[] = { "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE" };
    for (int i = 0; i < 3; i++)
        setenv(names[i], "3", 1);

    ds_ranks_launch_get(&is);

    for (int i = 0; i < 3; i++)
        unsetenv(names[i]);
    assert_string_equal(is.launcher, "torchrun");
    assert_int_equal(is.rank, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_header_has_the_documented_offsets, begin, end),
        cmocka_unit_test_setup_teardown(test_entry_has_the_documented_offsets, begin, end),
        cmocka_unit_test_setup_teardown(test_notes_have_the_documented_offsets, begin, end),
        cmocka_unit_test_setup_teardown(test_notes_without_room_are_counted, begin, end),
        cmocka_unit_test_setup_teardown(test_a_note_of_very_many_ranks_is_counted, begin, end),
        cmocka_unit_test_setup_teardown(test_long_texts_are_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_the_ring_overwrites_complete_entries, begin, end),
        cmocka_unit_test_setup_teardown(test_pending_entries_are_not_overwritten, begin, end),
        cmocka_unit_test_setup_teardown(test_a_ring_full_of_pending_entries_counts, begin, end),
        cmocka_unit_test_setup_teardown(test_an_entry_is_incomplete_while_it_is_written, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_final_status_stays, begin, end),
        cmocka_unit_test(test_no_recorder_is_allowed),
        cmocka_unit_test_setup_teardown(test_the_file_survives_a_kill, begin, end),
        cmocka_unit_test_setup_teardown(test_two_threads_share_a_recorder, begin, end),
        cmocka_unit_test_setup_teardown(test_groups_share_the_recorder_of_a_path, begin, end),
        cmocka_unit_test_setup_teardown(test_a_child_does_not_close_the_file, begin, end),
        cmocka_unit_test_setup_teardown(test_an_older_file_is_replaced, begin, end),
        cmocka_unit_test_setup_teardown(test_paths_that_cannot_be_used_are_refused, begin, end),
        cmocka_unit_test(test_devices_are_not_replaced),
        cmocka_unit_test_setup_teardown(test_ranks_of_a_process_need_files_of_their_own, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_the_tool_knows_all_names, begin, end),
        cmocka_unit_test(test_each_launcher_is_known),
        cmocka_unit_test(test_the_inner_launcher_counts),
        cmocka_unit_test(test_a_batch_script_is_no_rank),
        cmocka_unit_test(test_malformed_numbers_are_not_known),
        cmocka_unit_test(test_tasks_of_a_machine_are_read_from_the_list),
        cmocka_unit_test(test_the_environment_of_the_process_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
