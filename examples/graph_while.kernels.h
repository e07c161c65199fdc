/* graph_while.kernels.h - the kernels of graph_while.c, for the CPU and for GPUs: an iteration of
   conjugate gradients for a x = b. In a row of a, 4 is on the diagonal, and -1 stands for each of
   the four neighbours of the point (the five-point stencil).

   A vector is a field of n rows of n inner points, with a border of zeros that is never written.
   Sums of products are computed in the same order on both drivers: a block adds up a row, and a
   last kernel of one block adds up the rows.

   After a change, `tools/devstream-kernels examples/graph_while.kernels.h` writes the CUDA form. */
#ifndef GRAPH_WHILE_KERNELS_H
#define GRAPH_WHILE_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("graph_while.ptx.h")
#include "graph_while.ptx.h"
#endif

enum { THREADS = 128 };

/* The numbers of an iteration. r is the residual b - a x, p the direction, q = a p. */
typedef struct solver {
    double rr;           /* r r */
    double limit;        /* of r r: the solution is found below this number */
    double length;       /* of the step along p */
    double turn;         /* share of the old direction in the new one */
    uint32_t iterations; /* done so far */
    uint32_t most;       /* iterations at most */
    uint32_t more;       /* the condition: 0 ends the iterations */
    uint32_t unused;
} solver;

#define EXTENT(n) (((size_t)(n) + 2) * ((size_t)(n) + 2))

/* The index of the first inner point of a row. */
DS_KERNEL_FN size_t row_begin(size_t n, size_t row) {
    return (row + 1) * (n + 2) + 1;
}

/* Adds up the numbers of all threads in numbers[0]. */
#define ADD_UP(numbers)                                              \
    for (uint32_t half = THREADS / 2; half > 0; half /= 2)           \
        DS_THREADS {                                                 \
            if (DS_THREAD_X < half)                                  \
                numbers[DS_THREAD_X] += numbers[DS_THREAD_X + half]; \
        }

DS_KERNEL_FN double add_rows(const double *rows, uint32_t n, uint32_t thread) {
    double sum = 0;
    for (uint32_t y = thread; y < n; y += THREADS)
        sum += rows[y];
    return sum;
}

/* 1. p = r + turn p */
DS_KERNEL_2D(new_direction, x, y, n, ny, DS_READ(solver, s, 1), DS_READ(double, r, EXTENT(n)),
             DS_READ_WRITE(double, p, EXTENT(n))) {
    size_t at = row_begin(n, y) + x;
    p[at] = r[at] + s->turn * p[at];
}

/* 2. q = a p, and p q of each row. A block per row. */
DS_BLOCK_KERNEL_1D(multiply, THREADS, DS_VALUE(uint32_t, n), DS_READ(double, p, EXTENT(n)),
                   DS_WRITE(double, q, EXTENT(n)), DS_WRITE(double, rows, n)) {
    DS_SHARED(double, sums, THREADS);
    const size_t begin = row_begin(n, DS_BLOCK_X);
    const size_t pitch = (size_t)n + 2;
    DS_THREADS {
        double sum = 0;
        for (size_t at = begin + DS_THREAD_X; at < begin + n; at += THREADS) {
            double near = (p[at - 1] + p[at + 1]) + (p[at - pitch] + p[at + pitch]);
            double product = 4 * p[at] - near;
            q[at] = product;
            sum += p[at] * product;
        }
        sums[DS_THREAD_X] = sum;
    }
    ADD_UP(sums)
    DS_THREADS {
        if (DS_THREAD_X == 0)
            rows[DS_BLOCK_X] = sums[0];
    }
}

/* 3. length = r r / p q. One block. */
DS_BLOCK_KERNEL_1D(find_length, THREADS, DS_VALUE(uint32_t, n), DS_READ(double, rows, n),
                   DS_READ_WRITE(solver, s, 1)) {
    DS_SHARED(double, sums, THREADS);
    DS_THREADS sums[DS_THREAD_X] = add_rows(rows, n, DS_THREAD_X);
    ADD_UP(sums)
    DS_THREADS {
        if (DS_THREAD_X == 0)
            s->length = s->rr / sums[0];
    }
}

/* 4. x = x + length p, r = r - length q, and r r of each row. A block per row. */
DS_BLOCK_KERNEL_1D(take_step, THREADS, DS_VALUE(uint32_t, n), DS_READ(solver, s, 1),
                   DS_READ(double, p, EXTENT(n)), DS_READ(double, q, EXTENT(n)),
                   DS_READ_WRITE(double, x, EXTENT(n)), DS_READ_WRITE(double, r, EXTENT(n)),
                   DS_WRITE(double, rows, n)) {
    DS_SHARED(double, sums, THREADS);
    const size_t begin = row_begin(n, DS_BLOCK_X);
    const double length = s->length;
    DS_THREADS {
        double sum = 0;
        for (size_t at = begin + DS_THREAD_X; at < begin + n; at += THREADS) {
            double left = r[at] - length * q[at];
            x[at] += length * p[at];
            r[at] = left;
            sum += left * left;
        }
        sums[DS_THREAD_X] = sum;
    }
    ADD_UP(sums)
    DS_THREADS {
        if (DS_THREAD_X == 0)
            rows[DS_BLOCK_X] = sums[0];
    }
}

/* 5. Decides if there is another iteration. One block. */
DS_BLOCK_KERNEL_1D(decide, THREADS, DS_VALUE(uint32_t, n), DS_READ(double, rows, n),
                   DS_READ_WRITE(solver, s, 1)) {
    DS_SHARED(double, sums, THREADS);
    DS_THREADS sums[DS_THREAD_X] = add_rows(rows, n, DS_THREAD_X);
    ADD_UP(sums)
    DS_THREADS {
        if (DS_THREAD_X == 0) {
            s->turn = sums[0] / s->rr;
            s->rr = sums[0];
            s->iterations++;
            s->more = sums[0] > s->limit && s->iterations < s->most;
        }
    }
}
#endif
