/* peer_mpi.c - the collectives by MPI, a process for each device: mpirun -np 2 or 4. A round is
   a barrier, the collective and a barrier. */
#include "bench.h"
#include "comm.h"
#include <mpi.h>

enum { BCAST, SCATTER, GATHER, SUM, ALL };

static int rank, ranks;

static void round_of(int op, float *whole, float *other, size_t bytes) {
    int n = (int)(bytes / 4);
    switch (op) {
    case BCAST:
        MPI_Bcast(whole, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case SCATTER:
        MPI_Scatter(whole, n / ranks, MPI_FLOAT, other, n / ranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case GATHER:
        MPI_Gather(whole, n / ranks, MPI_FLOAT, other, n / ranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case SUM:
        MPI_Reduce(whole, other, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Allreduce(whole, other, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    }
}

/* Inputs as in comm.c; the result of this rank is looked at. */
static void fill(int op, float *whole, float *other, size_t n) {
    size_t own = op == BCAST ? 0 : (size_t)rank;
    for (size_t i = 0; i < n; i++)
        whole[i] = bench_comm_value(op == SCATTER || op == GATHER ? 0 : own,
                                    i + (op == GATHER ? (size_t)rank * (n / (size_t)ranks) : 0));
    if (op == BCAST && rank)
        memset(whole, 255, 4 * n);
    memset(other, 255, 4 * n);
}

static int right(int op, const float *whole, const float *other, size_t n) {
    size_t piece = n / (size_t)ranks;
    if (rank && (op == GATHER || op == SUM))
        return 1;
    /* of large ones a part */
    for (size_t i = 0; i<(op == SCATTER ? piece : n); i += n>(1 << 20) ? 61 : 1) {
        float want = bench_comm_value(0, op == SCATTER ? i + (size_t)rank * piece : i);
        for (int r = 1; r < ranks && (op == SUM || op == ALL); r++)
            want += bench_comm_value((size_t)r, i);
        if ((op == BCAST ? whole : other)[i] != want)
            return 0;
    }
    return 1;
}

static void row(const char *id, int op, size_t size, float *whole, float *other) {
    static double ns[1000];
    size_t bytes = bench_comm_sizes[size].bytes;
    int n = bench_comm_rounds(size), fine, all = 0;
    char name[32];
    /* four processes wait for two processors */
    if (n > 100)
        n = ranks > 2 ? n / 10 : n / 2;
    fill(op, whole, other, bytes / 4);
    round_of(op, whole, other, bytes);
    fine = right(op, whole, other, bytes / 4);
    for (int k = 0; k < n; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double t = bench_now_ns();
        round_of(op, whole, other, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        ns[k] = bench_now_ns() - t;
    }
    MPI_Reduce(&fine, &all, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
    snprintf(name, sizeof name, "%s_%s", id, bench_comm_sizes[size].suffix);
    if (!rank)
        bench_put(name, "openmpi",
                  all ? bench_median(ns, n) / bench_comm_sizes[size].unit_ns : NAN);
}

int main(int argc, char **argv) {
    static const struct {
        const char *id;
        int ranks, op;
    } list[] = { { "bcast2", 2, BCAST }, { "scatter2", 2, SCATTER }, { "gather2", 2, GATHER },
                 { "sum2", 2, SUM },     { "all2", 2, ALL },         { "bcast4", 4, BCAST },
                 { "sum4", 4, SUM } };

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t sizes = sizeof bench_comm_sizes / sizeof *bench_comm_sizes,
           most = bench_comm_sizes[sizes - (bench_quick() ? 2 : 1)].bytes;
    float *whole = malloc(most), *other = malloc(most);
    if (!whole || !other) {
        fprintf(stderr, "peer_mpi: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    } else
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            for (size_t s = 0; s < sizes && list[i].ranks == ranks; s++)
                if (bench_comm_rounds(s))
                    row(list[i].id, list[i].op, s, whole, other);
    free(whole);
    free(other);
    MPI_Finalize();
    return bench_failed;
}
