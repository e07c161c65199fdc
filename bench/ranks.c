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

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *list, int count) {
    qsort(list, (size_t)count, sizeof *list, by_value);
    return list[count / 2];
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

static double block(const setting *s, int way, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = seconds();
    for (int i = 0; i < times; i++)
        all_reduce(s, way);
    return (seconds() - begin) / times;
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
                double t = block(s, way, sizes[i].times) * 1e6;
                if (b < 0)
                    continue;
                us[way][b] = t;
                ratio[way][b] = i ? us[RAW][b] / t : t - us[RAW][b];
            }
        if (!rank)
            printf("| %s |", sizes[i].name);
        for (int way = 0; way < WAYS && !rank; way++) {
            printf(" %.2f us", middle(us[way], BLOCKS));
            if (way && !i)
                printf(", %+.2f us", middle(ratio[way], BLOCKS));
            else if (way)
                printf(", %.0f %%", 100 * middle(ratio[way], BLOCKS));
            printf(" |");
        }
        if (!rank)
            printf("\n");
        end_tensors(s);
    }
}

/* ---- overlap --------------------------------------------------------------------------------- */

enum { PIECES = 64 };

static double work_unit; /* rounds of arithmetic in a piece */

static float burn(double rounds) {
    volatile float x = 1;
    for (double i = 0; i < rounds; i++)
        x = x * 1.0001f + 0.5f;
    return x;
}

static int burn_kernel(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    for (size_t i = 0; i < count; i++)
        burn(work_unit);
    return 0;
}

/* Returns the time of computation and communication together. how: 0 raw without tests, 1 raw with
   a test after each piece, 2 devstream. */
static double both(const setting *s, int how, ds_kernel kernel, ds_stream other) {
    MPI_Request request;
    const ds_tensor *in = s->in, *out = s->out;
    ds_comm_options options = {
        .ranks = s->group, .streams = &s->stream, .stream_count = 1, .flags = DS_COMM_ANY_ORDER
    };
    int over = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = seconds();
    if (how == 2) {
        OK(ds_comm_all_reduce(&in, &out, 1, DS_REDUCE_SUM, &options));
        for (int i = 0; i < PIECES; i++)
            OK(ds_kernel_launch(kernel, 1, NULL, 0, other));
        OK(ds_stream_synchronize(s->stream));
        OK(ds_stream_synchronize(other));
        return seconds() - begin;
    }
    MPI_Iallreduce(in->data, out->data, s->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    for (int i = 0; i < PIECES; i++) {
        burn(work_unit);
        if (how == 1 && !over)
            MPI_Test(&request, &over, MPI_STATUS_IGNORE);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return seconds() - begin;
}

static double compute(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = seconds();
    for (int i = 0; i < PIECES; i++)
        burn(work_unit);
    return seconds() - begin;
}

/* The share of the shorter of computation and communication that the other one hides. */
static void overlap(setting *s) {
    static const char *const names[] = { "MPI_Iallreduce, no test", "MPI_Iallreduce, tests between",
                                         "devstream, kernels on another stream" };
    double hidden[3][BLOCKS];
    ds_kernel kernel;
    ds_stream other;
    OK(ds_kernel_create(&(ds_kernel_desc){ .name = "burn", .cpu_fn = burn_kernel }, &kernel));
    OK(ds_stream_create(NULL, &other));
    tensors(s, (16 << 20) / 4);
    double alone = block(s, RAW, 3);
    MPI_Bcast(&alone, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    double begin = seconds();
    burn(1e6);
    work_unit = alone / PIECES / ((seconds() - begin) / 1e6);
    for (int b = -1; b < BLOCKS; b++)
        for (int how = 0; how < 3; how++) {
            double comm = block(s, how == 2 ? ENGINE : RAW_REQUEST, 1), work = compute();
            double least = comm < work ? comm : work;
            double t = (comm + work - both(s, how, kernel, other)) / least;
            if (b >= 0)
                hidden[how][b] = t;
        }
    if (!rank)
        printf("\n| overlap of an all_reduce of 16 MiB with as much computation | hidden |\n"
               "|---|---|\n");
    for (int how = 0; how < 3 && !rank; how++)
        printf("| %s | %.0f %% |\n", names[how], 100 * middle(hidden[how], BLOCKS));
    end_tensors(s);
    OK(ds_stream_destroy(other));
    OK(ds_kernel_destroy(kernel));
}

int main(int argc, char **argv) {
    int level;
    char record[300];
    setting s = { .count = 0 };
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) || argc < 2)
        return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    snprintf(record, sizeof record, "%s/ranks-%%r", argv[1]);
    OK(ds_ranks_init(&(ds_ranks_desc){ .engine = "mpi", .record = "" }, &s.group));
    OK(ds_ranks_init(&(ds_ranks_desc){ .engine = "mpi", .record = record }, &s.recorded));
    OK(ds_stream_create(NULL, &s.stream));
    table(&s);
    overlap(&s);
    OK(ds_stream_destroy(s.stream));
    OK(ds_ranks_finalize(s.recorded));
    OK(ds_ranks_finalize(s.group));
    OK(ds_shutdown());
    MPI_Finalize();
    return 0;
}
