/* train.c - trains a small neural network on pictures of digits, on one device and on four, and
   shows that both give the same bits.

   Compile:  cc -O2 -I. examples/train.c -o train -pthread
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/train.c -o train -pthread
   Run:      ./train                      from the project's folder; ./train --help has the options

   The data are 1,797 pictures of 8x8 pixels. Every fifth one is held out: the network never learns
   from it, and is judged by it.

   The network has one hidden layer. It learns from a batch of 64 pictures at a time, and each batch
   goes the same way:

       scatter               the batch, from pinned memory: 16 pictures to each of four parts
       broadcast_coalesced   the weights, from the first device to all
       hidden, predict       forwards, on each part's stream: probabilities of the ten digits
       unit_slopes, slopes   and backwards: the slopes of the loss along each weight, for these 16
                             pictures
       reduce_add_coalesced  the slopes of the four parts, to the first device
       gather                the probabilities, into pinned memory, for the loss that is shown
       step                  the weights change, on the first device

   Nothing here waits: the host puts a whole pass over the pictures on the streams and then waits
   once. Memory is allocated for every batch and freed as soon as the last use of it was put on its
   stream, which costs the caching allocator next to nothing.

   This is done twice, with all four parts on one stream of the first device, then with one device
   for each part (where there are fewer devices, some have more than one part). A batch is always
   cut into the same parts, every sum is taken in the same order and no number is left to a
   library's mathematics, so that the weights are the same in the end, bit for bit, whatever the
   number and kind of devices.

   What it checks: the weights of both runs are equal; at least 95 % of the pictures that were held
   out are recognised.

   Exit status: 0 fine, 1 something failed or is wrong (standard error says what). */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#define PROGRAM "train"
#include "train.digits.h"

#include <time.h>
#include <unistd.h>

enum { PARTS = 4, MOST_MARKS = 5 * (MOST_ROWS / BATCH + 1) };

typedef struct options {
    const char *path;
    int epochs;   /* passes over the data; 0: as many as are needed, and the accuracy is checked */
    int cpu;      /* use CPU devices although there are GPUs */
    int progress; /* show it although standard error is no terminal */
    int damage;   /* change a weight of the second run */
} options;

static options opt;

/* ---- a team of devices ----------------------------------------------------------------------- */

/* What the time between two marks on the first stream was spent on. Communication is what the
   collectives do. */
typedef enum work { COMPUTE, COMMUNICATION, NOTHING, WORKS } work;

typedef struct team {
    int devices;             /* different ones */
    ds_device device[PARTS]; /* of each part */
    ds_stream stream[PARTS];
    ds_comm_options comm;             /* these streams; the first one is for what is there once */
    ds_tensor *weights[2], *speed[2]; /* W1 and W2, and their momentum, on the first device */
    /* pinned: what is learnt in this pass, shuffled, and the probabilities that came back */
    ds_tensor *rows, *seen;
    ds_tensor *exam, *answers; /* pinned: what is held out, and its probabilities */
    ds_event mark[MOST_MARKS];
    work after[MOST_MARKS];
    int marks;
    double ms[WORKS], seconds; /* in the end */
    double loss, accuracy;     /* of the last pass, and of what is held out */
    float result[W1_SIZE + W2_SIZE];
} team;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int pinned(ds_dtype type, int64_t rows, int64_t columns, ds_tensor **out) {
    int64_t shape[2] = { rows, columns };
    CHECK(ds_tensor_alloc_pinned(type, 2, shape, out));
    return FINE;
}

/* Weights begin somewhere between -0.2 and 0.2, the same for every team. */
static int first_weights(team *t, int which) {
    static float initial[W1_SIZE];
    int64_t shape[2] = { which ? HIDDEN + 1 : PIXELS + 1, which ? CLASSES : HIDDEN };
    size_t count = which ? W2_SIZE : W1_SIZE;
    weights_fill(initial, count);
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, t->stream[0], &t->weights[which]));
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, t->stream[0], &t->speed[which]));
    CHECK(ds_copy(t->weights[which]->data, initial, count * sizeof *initial, t->stream[0]));
    CHECK(ds_fill(t->speed[which]->data, 0, 4, count, t->stream[0]));
    return FINE;
}

/* A team of one has one stream for all parts. */
static int team_open(team *t, int devices) {
    ds_device first;
    int available = 0;
    CHECK(ds_device_get_current(&first));
    CHECK(ds_device_get_count((ds_device_type)first.type, &available));
    t->devices = devices < available ? devices : available;
    random_state = 1;
    for (int i = 0; i < PARTS; i++) {
        t->device[i] = (ds_device){ first.type, i % t->devices };
        if (devices == 1 && i)
            t->stream[i] = t->stream[0];
        else
            CHECK(ds_stream_create(&(ds_stream_desc){ .device = t->device[i], .label = "training" },
                                   &t->stream[i]));
        if (load_kernels(t->device[i]) != FINE)
            return FAILED;
    }
    t->comm =
        (ds_comm_options){ .streams = t->stream, .stream_count = PARTS, .stream = t->stream[0] };
    for (int i = 0; i < MOST_MARKS; i++)
        CHECK(ds_event_create(DS_EVENT_TIMING, "training", &t->mark[i]));
    if (pinned(ds_uint8(), learnt_count / BATCH * BATCH, ROW, &t->rows) != FINE ||
        pinned(ds_float32(), learnt_count / BATCH * BATCH, CLASSES, &t->seen) != FINE ||
        pinned(ds_uint8(), held_out_count, ROW, &t->exam) != FINE ||
        pinned(ds_float32(), held_out_count, CLASSES, &t->answers) != FINE)
        return FAILED;
    memcpy(t->exam->data, held_out, ds_tensor_get_size(t->exam));
    return first_weights(t, 0) == FINE && first_weights(t, 1) == FINE ? FINE : FAILED;
}

static int team_close(team *t) {
    ds_tensor *all[] = { t->weights[0], t->weights[1], t->speed[0], t->speed[1],
                         t->rows,       t->seen,       t->exam,     t->answers };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(ds_tensor_free(all[i]));
    for (int i = 0; i < MOST_MARKS; i++)
        CHECK(ds_event_destroy(t->mark[i]));
    for (int i = 0; i < PARTS && (i == 0 || t->stream[i].id != t->stream[0].id); i++)
        CHECK(ds_stream_destroy(t->stream[i]));
    return FINE;
}

/* From here on the first stream does work of this kind. All parts get there first: what they
   still compute is not communication. */
static int mark(team *t, work kind) {
    CHECK(ds_comm_barrier(t->stream, PARTS));
    CHECK(ds_event_record(t->mark[t->marks], t->stream[0]));
    t->after[t->marks++] = kind;
    return FINE;
}

static int wait_for_all(team *t) {
    if (mark(t, NOTHING) != FINE)
        return FAILED;
    for (int i = 0; i < PARTS; i++)
        CHECK(ds_stream_synchronize(t->stream[i]));
    for (int m = 0; m + 1 < t->marks; m++) {
        double ms = 0;
        CHECK(ds_event_get_elapsed_ms(t->mark[m], t->mark[m + 1], &ms));
        t->ms[t->after[m]] += ms;
    }
    t->marks = 0;
    return FINE;
}

/* ---- a batch --------------------------------------------------------------------------------- */

typedef struct batch {
    ds_tensor *rows[PARTS], *weights[PARTS][2]; /* what each part is given */
    ds_tensor *p[PARTS], *slopes[PARTS][2];     /* and what it makes of it */
    share share[PARTS];
} batch;

/* Every part gets its pictures and the weights, and predicts. */
static int forwards(team *t, const ds_tensor *rows, batch *b) {
    if (mark(t, COMMUNICATION) != FINE)
        return FAILED;
    CHECK(ds_comm_scatter(rows, t->device, PARTS, NULL, 0, &t->comm, b->rows, NULL));
    CHECK(ds_comm_broadcast_coalesced((const ds_tensor *const *)t->weights, 2, t->device, PARTS, 0,
                                      &t->comm, b->weights[0]));
    if (mark(t, COMPUTE) != FINE)
        return FAILED;
    for (int i = 0; i < PARTS; i++) {
        ds_stream s = t->stream[i];
        int64_t n = b->rows[i]->shape[0];
        share *a = &b->share[i];
        void *h = NULL;
        CHECK(ds_tensor_alloc(ds_float32(), 2, (int64_t[]){ n, CLASSES }, s, &b->p[i]));
        CHECK(ds_mem_alloc((size_t)n * HIDDEN * sizeof(float), s, &h));
        *a = (share){ .rows = ds_tensor_address(b->rows[i]),
                      .w1 = ds_tensor_address(b->weights[i][0]),
                      .w2 = ds_tensor_address(b->weights[i][1]),
                      .p = b->p[i]->data,
                      .h = h,
                      .images = (size_t)n };
        if (share_predict(a, s) != FINE)
            return FAILED;
    }
    return FINE;
}

/* Every part finds the slopes of its pictures. */
static int backwards(team *t, batch *b) {
    for (int i = 0; i < PARTS; i++) {
        ds_stream s = t->stream[i];
        share *a = &b->share[i];
        void *dh = NULL;
        for (int k = 0; k < 2; k++)
            CHECK(ds_tensor_alloc_like(b->weights[i][k], s, &b->slopes[i][k]));
        CHECK(ds_mem_alloc(a->images * HIDDEN * sizeof(float), s, &dh));
        a->dh = dh;
        a->g1 = b->slopes[i][0]->data;
        a->g2 = b->slopes[i][1]->data;
        if (share_slopes(a, s) != FINE)
            return FAILED;
    }
    return FINE;
}

/* The weights change by the sum of all slopes. */
static int change_weights(team *t, batch *b) {
    ds_tensor *sum[2];
    CHECK(ds_comm_reduce_add_coalesced((const ds_tensor *const *)b->slopes[0], PARTS, 2,
                                       t->device[0], 0, &t->comm, sum));
    if (mark(t, COMPUTE) != FINE)
        return FAILED;
    for (int k = 0; k < 2; k++) {
        CHECK(DS_LAUNCH(step, t->stream[0], (size_t)ds_tensor_get_count(sum[k]),
                        t->weights[k]->data, t->speed[k]->data, sum[k]->data, RATE / (float)BATCH));
        CHECK(ds_tensor_free(sum[k]));
    }
    return FINE;
}

/* All of it was used for the last time, as far as the host is concerned. What is still on the
   streams comes before the next use. */
static int batch_end(batch *b) {
    for (int i = 0; i < PARTS; i++) {
        CHECK(ds_tensor_free(b->rows[i]));
        CHECK(ds_tensor_free(b->p[i]));
        CHECK(ds_mem_free(b->share[i].h));
        CHECK(ds_mem_free(b->share[i].dh));
        for (int k = 0; k < 2; k++) {
            CHECK(ds_tensor_free(b->weights[i][k]));
            CHECK(ds_tensor_free(b->slopes[i][k]));
        }
    }
    return FINE;
}

/* Puts pictures through the network; learns from them, unless they are the exam. */
static int run_batch(team *t, const ds_tensor *rows, const ds_tensor *answers, int learn) {
    batch b;
    memset(&b, 0, sizeof b);
    if (forwards(t, rows, &b) != FINE || (learn && backwards(t, &b) != FINE) ||
        mark(t, COMMUNICATION) != FINE)
        return FAILED;
    CHECK(ds_comm_gather_into((const ds_tensor *const *)b.p, PARTS, 0, answers, &t->comm));
    if (learn && change_weights(t, &b) != FINE)
        return FAILED;
    return batch_end(&b);
}

/* ---- training -------------------------------------------------------------------------------- */

static void draw(const team *t, int epoch, int epochs) {
    char bar[31];
    if (!opt.progress && !isatty(STDERR_FILENO))
        return;
    memset(bar, '.', 30);
    memset(bar, '#', (size_t)(30 * epoch / epochs));
    bar[30] = 0;
    fprintf(stderr, "\r\033[K%d device%s [%s] pass %2d of %d  loss %.4f  accuracy %.1f %%",
            t->devices, t->devices == 1 ? "" : "s", bar, epoch, epochs, t->loss, 100 * t->accuracy);
    fflush(stderr);
    bar_drawn = 1;
}

static int pass(team *t) {
    double accuracy;
    shuffle();
    memcpy(t->rows->data, learnt, ds_tensor_get_size(t->rows));
    for (int64_t first = 0; first < t->rows->shape[0]; first += BATCH) {
        ds_tensor *rows, *seen;
        CHECK(ds_tensor_narrow(t->rows, 0, first, BATCH, &rows));
        CHECK(ds_tensor_narrow(t->seen, 0, first, BATCH, &seen));
        if (run_batch(t, rows, seen, 1) != FINE)
            return FAILED;
        CHECK(ds_tensor_free(rows)); /* views: what they show stays */
        CHECK(ds_tensor_free(seen));
    }
    if (run_batch(t, t->exam, t->answers, 0) != FINE || wait_for_all(t) != FINE)
        return FAILED;
    judge(t->rows->data, t->seen->data, t->rows->shape[0], &t->loss, &accuracy);
    judge(t->exam->data, t->answers->data, t->exam->shape[0], NULL, &t->accuracy);
    return FINE;
}

static int train(team *t, int devices, int epochs) {
    static uint8_t order[MOST_ROWS][ROW];
    double begin;
    float *to = t->result;
    memcpy(order, learnt, sizeof order);
    if (team_open(t, devices) != FINE)
        return FAILED;
    begin = now();
    for (int epoch = 1; epoch <= epochs; epoch++) {
        /* for timelines */
        DS_RANGE_SCOPE("pass over the pictures")
            if (pass(t) != FINE)
                return FAILED;
        draw(t, epoch, epochs);
    }
    t->seconds = now() - begin;
    memcpy(learnt, order, sizeof order);
    if (opt.damage && devices > 1)
        CHECK(ds_fill(t->weights[0]->data, 0, 4, 1, t->stream[0]));
    for (int k = 0; k < 2; to += ds_tensor_get_count(t->weights[k++]))
        CHECK(ds_copy(to, t->weights[k]->data, ds_tensor_get_size(t->weights[k]), t->stream[0]));
    CHECK(ds_stream_synchronize(t->stream[0]));
    return team_close(t);
}

/* ---- what a person sees ---------------------------------------------------------------------- */

static int print_table(const team *one, const team *four, int epochs) {
    char name[DS_DEVICE_NAME_SIZE];
    CHECK(ds_device_format(one->device[0], name, sizeof name));
    printf("network       %d - %d - %d, %d weights\n", PIXELS, HIDDEN, CLASSES, W1_SIZE + W2_SIZE);
    printf("pictures      %d to learn from, in batches of %d, %d times; %d held out\n",
           learnt_count, BATCH, epochs, held_out_count);
    printf("devices       %10d      %10d      from %s\n", one->devices, four->devices, name);
    printf("loss          %10.6f      %10.6f\n", one->loss, four->loss);
    printf("accuracy      %10.2f %%    %10.2f %%    of those held out\n", 100 * one->accuracy,
           100 * four->accuracy);
    printf("time          %10.3f ms   %10.3f ms\n", 1e3 * one->seconds, 1e3 * four->seconds);
    printf("  compute     %10.3f ms   %10.3f ms\n", one->ms[COMPUTE], four->ms[COMPUTE]);
    printf("  communicate %10.3f ms   %10.3f ms\n", one->ms[COMMUNICATION],
           four->ms[COMMUNICATION]);
    printf("weights         %08x        %08x\n", fingerprint(one->result),
           fingerprint(four->result));
    return FINE;
}

static int compare(const team *one, const team *four, int enough) {
    char name[24];
    snprintf(name, sizeof name, "%d devices", four->devices);
    int result = weights_compare(one->result, four->result, "one device", name);
    if (!enough || four->accuracy >= 0.95)
        return result;
    complain("WRONG: the accuracy is below 95 %%");
    return FAILED;
}

/* ---- options and main ------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: train [options] [FILE]\n"
    "Trains a network on the pictures of FILE (examples/data/digits.csv) with one device and with "
    "four, and compares the results.\n"
    "  --epochs N   passes over the pictures (24); the accuracy is then shown and not checked\n"
    "  --cpu        use virtual CPU devices although there are GPUs\n"
    "  --progress   show the progress bar although standard error is no terminal\n"
    "  --damage     change a weight of the second run, to see the check find it\n"
    "  --help       this text\n"
    "Virtual CPU devices: as many as DEVSTREAM_CPU_DEVICES says, or 4.\n";

static int parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--progress") == 0)
            opt.progress = 1;
        else if (strcmp(a, "--damage") == 0)
            opt.damage = 1;
        else if (strcmp(a, "--cpu") == 0)
            opt.cpu = 1;
        else if (strcmp(a, "--epochs") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            opt.epochs = atoi(argv[++i]);
        else if (a[0] != '-' && !opt.path)
            opt.path = a;
        else {
            complain("cannot understand \"%s\"", a);
            fputs(USAGE, stderr);
            return FAILED;
        }
    }
    return FINE;
}

static int work_all(void) {
    static team one, four;
    ds_cpu_desc cpu = { .devices = getenv("DEVSTREAM_CPU_DEVICES") ? 0 : PARTS };
    int epochs = opt.epochs ? opt.epochs : 24;
    memset(&one, 0, sizeof one);
    memset(&four, 0, sizeof four);
    if (read_data(opt.path) != FINE)
        return FAILED;
    CHECK(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    if (opt.cpu)
        CHECK(ds_device_set_current(ds_cpu(0)));
    if (train(&one, 1, epochs) != FINE || train(&four, PARTS, epochs) != FINE)
        return FAILED;
    if (bar_drawn)
        fputs("\r\033[K", stderr);
    bar_drawn = 0;
    if (print_table(&one, &four, epochs) != FINE)
        return FAILED;
    return compare(&one, &four, !opt.epochs);
}

int main(int argc, char **argv) {
    int result;
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argc, argv) != FINE)
        return FAILED;
    result = work_all();
    if (ds_shutdown() < 0 && result == FINE) {
        complain("%s", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        complain("standard output cannot be written");
        result = FAILED;
    }
    return result;
}
