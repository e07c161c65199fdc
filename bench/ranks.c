/* ranks.c - process groups beside raw MPI, in the same processes: mpiexec -n 2 ranks FOLDER. Rank 0
   prints tables in Markdown. Raw and devstream's calls take turns in short blocks; each figure is
   the median of the blocks, each ratio the median of the ratios of neighbouring blocks.

   FOLDER gets the files of the flight recorder. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "bench.h"
#include <mpi_abi.h>

enum { BLOCKS = 15 };

#define OK(call) must(call, #call)

static int rank, ranks;

static void must(ds_result r, const char *call) {
    if (r == DS_OK)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, call, ds_error_get_last());
    exit(1);
}

/* What is measured. */
typedef struct setting {
    ds_ranks group;
    ds_ranks recorded; /* with a flight recorder */
    ds_stream stream;
    ds_tensor *in, *out;
    int count;
} setting;

enum { RAW, RAW_REQUEST, ENGINE, FIXED, RECORDED, WAYS };

static const char *const way_names[WAYS] = { "MPI_Allreduce", "MPI_Iallreduce, MPI_Wait",
                                             "devstream, any order", "devstream, fixed order",
                                             "any order, flight recorder" };

static void all_reduce(const setting *s, int way) {
    const ds_tensor *in = s->in, *out = s->out;
    ds_comm_options options = { .ranks = way == RECORDED ? s->recorded : s->group,
                                .streams = &s->stream,
                                .stream_count = 1,
                                .flags = way == FIXED ? 0 : DS_COMM_ANY_ORDER };
    MPI_Request request;
    switch (way) {
    case RAW:
        MPI_Allreduce(in->data, out->data, s->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case RAW_REQUEST:
        MPI_Iallreduce(in->data, out->data, s->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        break;
    default:
        OK(ds_comm_all_reduce(&in, &out, 1, DS_REDUCE_SUM, &options));
        OK(ds_stream_synchronize(s->stream));
    }
}

/* Returns microseconds for each operation. */
static double block(const setting *s, int way, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = bench_now_ns();
    for (int i = 0; i < times; i++)
        all_reduce(s, way);
    return (bench_now_ns() - begin) / times / 1e3;
}

static void tensors(setting *s, int count) {
    int64_t shape[1] = { count };
    s->count = count;
    OK(ds_tensor_alloc(ds_float32(), 1, shape, s->stream, &s->in));
    OK(ds_tensor_alloc(ds_float32(), 1, shape, s->stream, &s->out));
    OK(ds_fill(s->in->data, 0x3f800000, 4, (size_t)count, s->stream));
    OK(ds_fill(s->out->data, 0, 4, (size_t)count, s->stream));
    OK(ds_stream_synchronize(s->stream));
}

static void end_tensors(setting *s) {
    const float *f = s->out->data;
    for (int i = 0; i < s->count; i++)
        if (f[i] != (float)ranks) {
            fprintf(stderr, "rank %d: element %d is %g, not %d\n", rank, i, (double)f[i], ranks);
            exit(1);
        }
    OK(ds_tensor_free(s->in));
    OK(ds_tensor_free(s->out));
}

/* A row for each size: median times, and the ratio to MPI_Allreduce. */
static void table(setting *s) {
    static const struct {
        int bytes, times;
        const char *name;
    } sizes[] = { { 8, 3000, "8 B" },
                  { 16384, 500, "16 KiB" },
                  { 1 << 20, 20, "1 MiB" },
                  { 64 << 20, 1, "64 MiB" } };

    if (!rank) {
        printf("| all_reduce of float32 |");
        for (int way = 0; way < WAYS; way++)
            printf(" %s |", way_names[way]);
        printf("\n|---|---|---|---|---|---|\n");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double us[WAYS][BLOCKS], ratio[WAYS][BLOCKS];
        tensors(s, sizes[i].bytes / 4);
        for (int b = -1; b < BLOCKS; b++)
            for (int way = 0; way < WAYS; way++) {
                double t = block(s, way, sizes[i].times);
                if (b < 0)
                    continue;
                us[way][b] = t;
                ratio[way][b] = i ? us[RAW][b] / t : t - us[RAW][b];
            }
        if (!rank)
            printf("| %s |", sizes[i].name);
        for (int way = 0; way < WAYS && !rank; way++) {
            printf(" %.2f us", bench_median(us[way], BLOCKS));
            if (way && !i)
                printf(", %+.2f us", bench_median(ratio[way], BLOCKS));
            else if (way)
                printf(", %.0f %%", 100 * bench_median(ratio[way], BLOCKS));
            printf(" |");
        }
        if (!rank)
            printf("\n");
        end_tensors(s);
    }
}

/* The cost of the flight recorder at 8 B: the median of the differences of neighbouring blocks and
   their quartiles. A third group without recorder shows what two groups differ by without it. */
static void recorder_cost(const setting *s, ds_ranks third) {
    static const char *const names[] = { "with flight recorder", "another group without" };
    double difference[2][BLOCKS];
    setting x = *s;
    tensors(&x, 2);
    for (int b = -1; b < BLOCKS; b++) {
        x.recorded = s->recorded;
        double plain = block(&x, ENGINE, 3000), recorded = block(&x, RECORDED, 3000);
        x.recorded = third;
        double other = block(&x, RECORDED, 3000);
        if (b < 0)
            continue;
        difference[0][b] = (recorded - plain) * 1e3;
        difference[1][b] = (other - plain) * 1e3;
    }
    if (!rank)
        printf("\n| all_reduce of 8 B, against a group without recorder | median | quartiles |\n"
               "|---|---|---|\n");
    for (int i = 0; i < 2 && !rank; i++) {
        double median = bench_median(difference[i], BLOCKS); /* sorts */
        printf("| %s | %+.0f ns | %+.0f to %+.0f ns |\n", names[i], median,
               difference[i][BLOCKS / 4], difference[i][BLOCKS - 1 - BLOCKS / 4]);
    }
    end_tensors(&x);
}

/* ---- overlap --------------------------------------------------------------------------------- */

enum { PIECES = 16 };

static double piece_us;     /* the duration of a piece of work */
static double rounds_in_us; /* of arithmetic */
static int elsewhere;       /* 1: the processor sleeps, as if another device did the work */

static float burn(double rounds) {
    volatile float x = 1;
    for (double i = 0; i < rounds; i++)
        x = x * 1.0001f + 0.5f;
    return x;
}

static void piece(void) {
    if (elsewhere)
        nanosleep(&(struct timespec){ .tv_nsec = (long)(piece_us * 1e3) }, NULL);
    else
        burn(piece_us * rounds_in_us);
}

static int piece_kernel(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    for (size_t i = 0; i < count; i++)
        piece();
    return 0;
}

enum { NO_TEST, TESTS, DEVSTREAM, HOWS };

/* Returns the microseconds of computation and communication together. */
static double both(const setting *s, int how, ds_kernel kernel, ds_stream other) {
    MPI_Request request;
    const ds_tensor *in = s->in, *out = s->out;
    ds_comm_options options = {
        .ranks = s->group, .streams = &s->stream, .stream_count = 1, .flags = DS_COMM_ANY_ORDER
    };
    int over = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = bench_now_ns();
    if (how == DEVSTREAM) {
        OK(ds_comm_all_reduce(&in, &out, 1, DS_REDUCE_SUM, &options));
        for (int i = 0; i < PIECES; i++)
            OK(ds_kernel_launch(kernel, 1, NULL, 0, other));
        OK(ds_stream_synchronize(s->stream));
        OK(ds_stream_synchronize(other));
        return (bench_now_ns() - begin) / 1e3;
    }
    MPI_Iallreduce(in->data, out->data, s->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    for (int i = 0; i < PIECES; i++) {
        piece();
        if (how == TESTS && !over)
            MPI_Test(&request, &over, MPI_STATUS_IGNORE);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return (bench_now_ns() - begin) / 1e3;
}

static double compute(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = bench_now_ns();
    for (int i = 0; i < PIECES; i++)
        piece();
    return (bench_now_ns() - begin) / 1e3;
}

/* Writes the median share of the shorter one, of computation and communication, that the other one
   hides. */
static void overlap_of(const setting *s, ds_kernel kernel, ds_stream other, double share[HOWS]) {
    double hidden[HOWS][BLOCKS];
    for (int b = -1; b < BLOCKS; b++)
        for (int how = 0; how < HOWS; how++) {
            double comm = block(s, how == DEVSTREAM ? ENGINE : RAW_REQUEST, 1), work = compute();
            double least = comm < work ? comm : work;
            double t = (comm + work - both(s, how, kernel, other)) / least;
            if (b >= 0)
                hidden[how][b] = t;
        }
    for (int how = 0; how < HOWS; how++)
        share[how] = 100 * bench_median(hidden[how], BLOCKS);
}

static void overlap(setting *s) {
    static const char *const names[] = { "MPI_Iallreduce, no test", "MPI_Iallreduce, tests between",
                                         "devstream, kernels on another stream" };
    double share[2][HOWS];
    ds_kernel kernel;
    ds_stream other;
    OK(ds_kernel_create(&(ds_kernel_desc){ .name = "piece", .cpu_fn = piece_kernel }, &kernel));
    OK(ds_stream_create(NULL, &other));
    tensors(s, (16 << 20) / 4);
    double alone = block(s, RAW, 3);
    MPI_Bcast(&alone, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    piece_us = alone / PIECES;
    double begin = bench_now_ns();
    burn(1e6);
    rounds_in_us = 1e9 / (bench_now_ns() - begin);
    for (elsewhere = 0; elsewhere < 2; elsewhere++)
        overlap_of(s, kernel, other, share[elsewhere]);
    if (!rank)
        printf(
            "\n| hidden of an all_reduce of 16 MiB and as much computation | processors compute | "
            "processors sleep |\n|---|---|---|\n");
    for (int how = 0; how < HOWS && !rank; how++)
        printf("| %s | %.0f %% | %.0f %% |\n", names[how], share[0][how], share[1][how]);
    end_tensors(s);
    OK(ds_stream_destroy(other));
    OK(ds_kernel_destroy(kernel));
}

int main(int argc, char **argv) {
    int level;
    char record[300];
    setting s = { .count = 0 };
    ds_ranks third;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) || argc < 2)
        return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    snprintf(record, sizeof record, "%s/ranks-%%r", argv[1]);
    OK(ds_ranks_init(&(ds_ranks_desc){ .engine = "mpi", .record = "" }, &s.group));
    OK(ds_ranks_init(&(ds_ranks_desc){ .engine = "mpi", .record = record }, &s.recorded));
    OK(ds_ranks_init(&(ds_ranks_desc){ .engine = "mpi", .record = "" }, &third));
    OK(ds_stream_create(NULL, &s.stream));
    table(&s);
    recorder_cost(&s, third);
    overlap(&s);
    OK(ds_stream_destroy(s.stream));
    OK(ds_ranks_finalize(third));
    OK(ds_ranks_finalize(s.recorded));
    OK(ds_ranks_finalize(s.group));
    OK(ds_shutdown());
    MPI_Finalize();
    return 0;
}
