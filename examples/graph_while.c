/* graph_while.c - a solver that iterates until convergence in one graph launch, compared with a
   loop of the host.

   Compile:  cc -O2 -I. examples/graph_while.c -o graph_while -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/graph_while.c -o graph_while -pthread
   Run:      ./graph_while                128 x 128 points
             ./graph_while --n 500        500 x 500 points
             ./graph_while --help         the options

   The program solves Poisson's equation on a square by conjugate gradients. The five kernels of an
   iteration are captured into a graph. The last of them writes a word of device memory: 1 for
   another iteration; 0 if the residual is small enough, or after the largest number of iterations.
   The graph is used twice:

       host    In each iteration, the host launches the graph, copies the residual and the word
               back, and waits.
       device  The graph is the body of a conditional node, which repeats the body while the word
               is not 0. The host launches one graph and waits once.

   The second way saves a launch, a copy and a wait per iteration. On the CPU driver they cost
   little, so both times are similar. Both solutions have the same bits.

   On a GPU, conditional nodes need a driver of CUDA 12.8 or newer. If the driver does not support
   conditional nodes, the program says so and runs the loop of the host only.

   Exit status: 0 fine, 1 something failed, 2 a result is wrong or has not converged. */
#define DEVSTREAM_IMPLEMENTATION
#include "graph_while.kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Largest residual of a solution, relative to the right side. */
#define TOLERANCE 1e-8

static uint32_t side = 128; /* points per row and column */
static uint32_t rounds = 3;
static uint32_t most = 100000;
static int cpu;

/* Memory of the device. */
static struct {
    double *x; /* vectors, as in the kernels */
    double *r;
    double *p;
    double *q;
    double *rows; /* a number per row */
    solver *state;
} dev;

/* Memory of the host, pinned. */
static double *right;
static double *solutions[2]; /* by the loop of the host, and by that of the device */
static solver *copy;         /* of the state */

static size_t bytes; /* of a vector */
static ds_stream stream;

/* ---- an iteration, and its two loops --------------------------------------------------------- */

static ds_result enqueue_iteration(ds_stream s, void *user) {
    (void)user;
    DS_CHECK(DS_LAUNCH(new_direction, s, side, side, dev.state, dev.r, dev.p));
    DS_CHECK(DS_LAUNCH(multiply, s, side, side, dev.p, dev.q, dev.rows));
    DS_CHECK(DS_LAUNCH(find_length, s, 1, side, dev.rows, dev.state));
    DS_CHECK(DS_LAUNCH(take_step, s, side, side, dev.state, dev.p, dev.q, dev.x, dev.r, dev.rows));
    return DS_LAUNCH(decide, s, 1, side, dev.rows, dev.state);
}

/* Creates a graph of one node, which repeats the body while the word of the state is not 0. */
static ds_result create_loop(ds_graph body, ds_graph_exec *out) {
    ds_node_desc loop = { .kind = DS_NODE_CONDITION,
                          .u.condition = { .kind = DS_CONDITION_WHILE,
                                           .word = &dev.state->more,
                                           .bodies = &body,
                                           .count = 1 } };
    ds_graph graph;
    DS_CHECK(ds_graph_create(NULL, &graph));
    ds_result result = ds_graph_add(graph, &loop, NULL, 0, NULL);
    if (result >= 0)
        result = ds_graph_instantiate(graph, NULL, out);
    DS_CHECK(ds_graph_destroy(graph));
    return result;
}

/* Sets x = 0 and r = b. */
static void set_start(const solver *start) {
    *copy = *start;
    DS_CHECK(ds_copy(dev.state, copy, sizeof *copy, stream));
    DS_CHECK(ds_copy(dev.r, right, bytes, stream));
    DS_CHECK(ds_fill(dev.x, 0, 4, bytes / 4, stream));
    DS_CHECK(ds_fill(dev.p, 0, 4, bytes / 4, stream));
    DS_CHECK(ds_stream_synchronize(stream));
}

static void loop_on_host(ds_graph_exec iteration) {
    do {
        DS_CHECK(ds_graph_launch(iteration, stream));
        DS_CHECK(ds_copy(copy, dev.state, sizeof *copy, stream));
        DS_CHECK(ds_stream_synchronize(stream));
    } while (copy->more);
}

static void loop_on_device(ds_graph_exec loop) {
    DS_CHECK(ds_graph_launch(loop, stream));
    DS_CHECK(ds_copy(copy, dev.state, sizeof *copy, stream));
    DS_CHECK(ds_stream_synchronize(stream));
}

/* ---- the check ------------------------------------------------------------------------------- */

static double square_sum(const double *v) {
    double sum = 0;
    for (size_t i = 0; i < EXTENT(side); i++)
        sum += v[i] * v[i];
    return sum;
}

/* Returns the square sum of b - a v, computed by a plain loop. */
static double plain_rr(const double *v) {
    size_t pitch = (size_t)side + 2;
    double sum = 0;
    for (size_t y = 0; y < side; y++)
        for (size_t at = row_begin(side, y); at < row_begin(side, y) + side; at++) {
            double near = v[at - 1] + v[at + 1] + v[at - pitch] + v[at + pitch];
            double left = right[at] - (4 * v[at] - near);
            sum += left * left;
        }
    return sum;
}

/* FNV-1a of the bytes. */
static uint32_t checksum(const void *data, size_t size) {
    const unsigned char *byte = data;
    uint32_t hash = 0x811c9dc5u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ byte[i]) * 0x01000193u;
    return hash;
}

/* Fetches a solution and prints a line. Returns 1 if it solves the equation. */
static int check(const char *name, double *solution, double limit) {
    DS_CHECK(ds_copy(solution, dev.x, bytes, stream));
    DS_CHECK(ds_stream_synchronize(stream));
    int solved = plain_rr(solution) <= 4 * limit; /* twice the tolerance: copy->rr has roundings */
    printf("check %-6s  %u iterations, %s, checksum %08x\n", name, (unsigned)copy->iterations,
           solved ? "solved" : "NOT SOLVED", (unsigned)checksum(solution, bytes));
    return solved;
}

/* ---- main ------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Solves the equation in one of the two ways. Returns the seconds of the fastest round. */
static double solve(void (*loop_fn)(ds_graph_exec), ds_graph_exec exec, const solver *start) {
    double best = 1e30;
    for (uint32_t i = 0; i < rounds; i++) {
        set_start(start);
        double begin = now();
        loop_fn(exec);
        double seconds = now() - begin;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void print_time(const char *name, double seconds) {
    printf("loop on %-6s %10.3f ms, %8.3f us per iteration\n", name, 1e3 * seconds,
           1e6 * seconds / copy->iterations);
}

static void allocate(void) {
    ds_device device = ds_device_current();
    double **vectors[] = { &dev.x, &dev.r, &dev.p, &dev.q };
    bytes = EXTENT(side) * sizeof(double);
    for (int i = 0; i < 4; i++)
        DS_CHECK(ds_device_alloc(device, bytes, (void **)vectors[i]));
    DS_CHECK(ds_device_alloc(device, side * sizeof(double), (void **)&dev.rows));
    DS_CHECK(ds_device_alloc(device, sizeof *dev.state, (void **)&dev.state));
    DS_CHECK(ds_pinned_alloc(bytes, (void **)&right));
    DS_CHECK(ds_pinned_alloc(bytes, (void **)&solutions[0]));
    DS_CHECK(ds_pinned_alloc(bytes, (void **)&solutions[1]));
    DS_CHECK(ds_pinned_alloc(sizeof *copy, (void **)&copy));
    DS_CHECK(ds_stream_create(NULL, &stream));
}

static void release(void) {
    void *device[] = { dev.x, dev.r, dev.p, dev.q, dev.rows, dev.state };
    void *pinned[] = { right, solutions[0], solutions[1], copy };
    for (int i = 0; i < 6; i++)
        DS_CHECK(ds_device_free(device[i]));
    for (int i = 0; i < 4; i++)
        DS_CHECK(ds_pinned_free(pinned[i]));
    DS_CHECK(ds_stream_destroy(stream));
}

/* Solves the equation in both ways, and returns the exit status. */
static int run(void) {
    ds_graph body;
    ds_graph_exec iteration;
    ds_graph_exec loop;
    double charge = 1.0 / (side + 1) / (side + 1); /* 1, times the square of the mesh size */
    memset(right, 0, bytes);
    for (size_t y = 0; y < side; y++)
        for (size_t i = 0; i < side; i++)
            right[row_begin(side, y) + i] = charge;
    double rr = square_sum(right);
    solver start = { .rr = rr, .limit = TOLERANCE * TOLERANCE * rr, .most = most, .more = 1 };

    DS_CHECK(ds_capture_function(stream, enqueue_iteration, NULL, &body));
    DS_CHECK(ds_graph_instantiate(body, NULL, &iteration));
    ds_result result = create_loop(body, &loop);
    if (result == DS_ERR_UNSUPPORTED)
        printf("no loop on the device: %s\n", ds_error_get_last());
    else
        DS_CHECK(result);
    DS_CHECK(ds_graph_destroy(body));

    double host = solve(loop_on_host, iteration, &start);
    print_time("host", host);
    int fine = check("host", solutions[0], start.limit);
    DS_CHECK(ds_graph_exec_destroy(iteration));
    if (result < 0)
        return fine ? 0 : 2;

    double device = solve(loop_on_device, loop, &start);
    print_time("device", device);
    fine &= check("device", solutions[1], start.limit);
    DS_CHECK(ds_graph_exec_destroy(loop));
    int same = memcmp(solutions[0], solutions[1], bytes) == 0;
    printf("check          %s\n", same ? "the same bits" : "WRONG: the solutions differ");
    printf("host / device  %8.2f\n", host / device);
    return fine && same ? 0 : 2;
}

static const char USAGE[] =
    "usage: graph_while [options]\n"
    "Solves Poisson's equation by conjugate gradients: iterations by the host, then by a graph.\n"
    "  --n N         rows and columns of points (128)\n"
    "  --most N      iterations at most (100000)\n"
    "  --rounds N    solve N times in each way, and print the shortest time (3)\n"
    "  --cpu         use the CPU although there is a GPU\n";

static int read_number(const char *text, uint32_t limit, uint32_t *out) {
    char *end = NULL;
    unsigned long value = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    *out = (uint32_t)value;
    return end && !*end && value >= 1 && value <= limit;
}

/* Sets the options; 0 if there is a wrong one. */
static int read_arguments(char **a) {
    for (a++; *a; a++) {
        if (strcmp(*a, "--cpu") == 0)
            cpu = 1;
        else if (strcmp(*a, "--n") == 0 && read_number(a[1], 30000, &side))
            a++;
        else if (strcmp(*a, "--most") == 0 && read_number(a[1], 1000000000, &most))
            a++;
        else if (strcmp(*a, "--rounds") == 0 && read_number(a[1], 1000000, &rounds))
            a++;
        else
            return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    char name[DS_DEVICE_NAME_SIZE];
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (!read_arguments(argv)) {
        fputs(USAGE, stderr);
        return 1;
    }
    if (cpu)
        DS_CHECK(ds_device_set_current(ds_cpu(0)));
    DS_CHECK(ds_device_format(ds_device_current(), name, sizeof name));
    printf("%u x %u points on %s\n", (unsigned)side, (unsigned)side, name);
    allocate();
    int status = run();
    release();
    DS_CHECK(ds_shutdown());
    return status;
}
