/* train_ranks.c - trains the network of train.c with several processes. The weights have the same
   bits as those of one process with the same number of devices.

   Compile:  cc -O2 -I. examples/train_ranks.c -o train_ranks -pthread -ldl
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/train_ranks.c -o train_ranks -pthread -ldl
   Run:      mpiexec -n 4 ./train_ranks           from the project's folder; four ranks
             mpiexec -n 2 ./train_ranks --devices 2       two ranks with two devices each
             ./train_ranks --devices 4            one process with four devices

   MPI is loaded at run time: `pip install mpich` has the library and mpiexec. DEVSTREAM_MPI_LIBRARY
   names the library if the loader does not find libmpi_abi.so.1.

   Each rank reads all pictures and shuffles them alike. A batch of 64 pictures has one part for
   each device of the group:

       copy                    the pictures of the part, from pinned memory to the device
       share_predict           probabilities of the ten digits, on the stream of the device
       share_slopes            the slopes of the loss along each weight, for these pictures
       ds_comm_all_reduce      the sum of the slopes of all parts, on every device of every rank
       step                    the weights change, on every device alike

   ds_comm_all_reduce adds the slopes in the order of the devices of the group, also between
   processes. Therefore the weights do not depend on the number of ranks. train.c has four parts, so
   a group of four devices gives the weights that train.c prints.

   If a rank fails, it aborts the group, so that the other ranks do not wait for it.

   Exit status: 0 fine, 1 something failed or is wrong (standard error says what). */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#define PROGRAM "train_ranks"
#include "train.digits.h"

#include <time.h>

enum { MOST_DEVICES = BATCH };

typedef struct options {
    const char *path;
    int devices; /* of this rank */
    int epochs;  /* passes over the data; 0: 24, and the accuracy is checked */
    int check;   /* rank 0 also trains in one process, and compares the weights */
    int any_order;
    int cpu; /* use CPU devices although there are GPUs */
} options;

static options opt = { .devices = 1 };

/* ---- a team of devices ----------------------------------------------------------------------- */

/* The devices of this rank. Without a group, all devices are in this process. */
typedef struct team {
    size_t count; /* devices here */
    size_t first; /* index in the group of the first one */
    size_t total; /* devices of the group */
    ds_device device[MOST_DEVICES];
    ds_stream stream[MOST_DEVICES];
    share share[MOST_DEVICES];
    ds_comm_options comm;
    /* of each layer and device: weights, momentum and slopes */
    ds_tensor *weights[2][MOST_DEVICES], *speed[2][MOST_DEVICES], *slopes[2][MOST_DEVICES];
    ds_tensor *rows; /* pinned: the pictures of a pass, shuffled */
    double loss, accuracy, seconds;
    float result[W1_SIZE + W2_SIZE];
} team;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Allocates a layer of a device and copies the first weights there. */
static int open_layer(team *t, size_t i, int layer, const float *initial) {
    int64_t shape[2] = { layer ? HIDDEN + 1 : PIXELS + 1, layer ? CLASSES : HIDDEN };
    ds_stream s = t->stream[i];
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, s, &t->weights[layer][i]));
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, s, &t->speed[layer][i]));
    CHECK(ds_tensor_alloc(ds_float32(), 2, shape, s, &t->slopes[layer][i]));
    size_t count = layer ? W2_SIZE : W1_SIZE;
    CHECK(ds_copy(t->weights[layer][i]->data, initial, count * sizeof *initial, s));
    CHECK(ds_fill(t->speed[layer][i]->data, 0, 4, count, s));
    return FINE;
}

/* Allocates what a device needs for `images` pictures at once. */
static int open_share(team *t, size_t i, size_t images) {
    ds_stream s = t->stream[i];
    void *rows, *h, *p, *dh;
    CHECK(ds_mem_alloc(images * ROW, s, &rows));
    CHECK(ds_mem_alloc(images * HIDDEN * sizeof(float), s, &h));
    CHECK(ds_mem_alloc(images * CLASSES * sizeof(float), s, &p));
    CHECK(ds_mem_alloc(images * HIDDEN * sizeof(float), s, &dh));
    t->share[i] = (share){ .rows = rows,
                           .w1 = t->weights[0][i]->data,
                           .w2 = t->weights[1][i]->data,
                           .h = h,
                           .p = p,
                           .dh = dh,
                           .g1 = t->slopes[0][i]->data,
                           .g2 = t->slopes[1][i]->data };
    return FINE;
}

static int team_open(team *t, ds_ranks ranks) {
    static float initial[W1_SIZE + W2_SIZE];
    int64_t shape[2] = { learnt_count / BATCH * BATCH, ROW };
    random_state = 1;
    weights_fill(initial, W1_SIZE + W2_SIZE);
    CHECK(ds_tensor_alloc_pinned(ds_uint8(), 2, shape, &t->rows));
    for (size_t i = 0; i < t->count; i++) {
        CHECK(ds_stream_create(&(ds_stream_desc){ .device = t->device[i], .label = "training" },
                               &t->stream[i]));
        /* device 0 also gets the pictures that are held out */
        size_t images = i || held_out_count < BATCH ? BATCH : (size_t)held_out_count;
        if (load_kernels(t->device[i]) != FINE || open_layer(t, i, 0, initial) != FINE ||
            open_layer(t, i, 1, initial + W1_SIZE) != FINE || open_share(t, i, images) != FINE)
            return FAILED;
    }
    t->comm = (ds_comm_options){ .streams = t->stream,
                                 .stream_count = t->count,
                                 .flags = opt.any_order ? DS_COMM_ANY_ORDER : 0,
                                 .ranks = ranks };
    return FINE;
}

static int team_close(team *t) {
    CHECK(ds_tensor_free(t->rows));
    for (size_t i = 0; i < t->count; i++) {
        const share *a = &t->share[i];
        for (int layer = 0; layer < 2; layer++) {
            CHECK(ds_tensor_free(t->weights[layer][i]));
            CHECK(ds_tensor_free(t->speed[layer][i]));
            CHECK(ds_tensor_free(t->slopes[layer][i]));
        }
        CHECK(ds_mem_free((void *)a->rows));
        CHECK(ds_mem_free(a->h));
        CHECK(ds_mem_free(a->p));
        CHECK(ds_mem_free(a->dh));
        CHECK(ds_stream_destroy(t->stream[i]));
    }
    return FINE;
}

/* ---- training -------------------------------------------------------------------------------- */

/* Enqueues the work of a device up to the slopes of its part of a batch. */
static int learn_part(team *t, size_t i, const uint8_t *batch) {
    size_t part = t->first + i;
    size_t begin = BATCH * part / t->total;
    share *a = &t->share[i];
    a->images = BATCH * (part + 1) / t->total - begin;
    CHECK(ds_copy((void *)a->rows, batch + begin * ROW, a->images * ROW, t->stream[i]));
    if (share_predict(a, t->stream[i]) != FINE)
        return FAILED;
    return share_slopes(a, t->stream[i]);
}

/* Enqueues all work of a batch. The host does not wait. */
static int learn(team *t, const uint8_t *batch) {
    for (size_t i = 0; i < t->count; i++)
        if (learn_part(t, i, batch) != FINE)
            return FAILED;
    for (int layer = 0; layer < 2; layer++) {
        const ds_tensor *const *slopes = (const ds_tensor *const *)t->slopes[layer];
        CHECK(ds_comm_all_reduce(slopes, slopes, t->count, DS_REDUCE_SUM, &t->comm));
        for (size_t i = 0; i < t->count; i++)
            CHECK(DS_LAUNCH(step, t->stream[i], layer ? W2_SIZE : W1_SIZE,
                            t->weights[layer][i]->data, t->speed[layer][i]->data,
                            t->slopes[layer][i]->data, RATE / (float)BATCH));
    }
    return FINE;
}

/* Predicts the pictures that are held out, and copies the weights to the host. */
static int examine(team *t) {
    static float p[MOST_ROWS * CLASSES];
    share *a = &t->share[0];
    a->images = (size_t)held_out_count;
    CHECK(ds_copy((void *)a->rows, held_out, a->images * ROW, t->stream[0]));
    if (share_predict(a, t->stream[0]) != FINE)
        return FAILED;
    CHECK(ds_copy(p, a->p, a->images * CLASSES * sizeof *p, t->stream[0]));
    CHECK(ds_copy(t->result, a->w1, W1_SIZE * sizeof(float), t->stream[0]));
    CHECK(ds_copy(t->result + W1_SIZE, a->w2, W2_SIZE * sizeof(float), t->stream[0]));
    CHECK(ds_stream_synchronize(t->stream[0]));
    judge(held_out[0], p, held_out_count, &t->loss, &t->accuracy);
    return FINE;
}

/* Trains with the devices of the team. ranks: the group, or zeroed. */
static int train(team *t, ds_ranks ranks, int epochs) {
    static uint8_t order[MOST_ROWS][ROW];
    memcpy(order, learnt, sizeof order);
    if (team_open(t, ranks) != FINE)
        return FAILED;

    double begin = now();
    for (int epoch = 0; epoch < epochs; epoch++) {
        shuffle();
        memcpy(t->rows->data, learnt, ds_tensor_get_size(t->rows));
        for (int64_t row = 0; row < t->rows->shape[0]; row += BATCH)
            if (learn(t, (const uint8_t *)t->rows->data + row * ROW) != FINE)
                return FAILED;
        for (size_t i = 0; i < t->count; i++)
            CHECK(ds_stream_synchronize(t->stream[i]));
    }
    t->seconds = now() - begin;

    memcpy(learnt, order, sizeof order);
    if (examine(t) != FINE)
        return FAILED;
    return team_close(t);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Chooses devices for a team: those of the ranks on one machine follow each other. */
static int choose_devices(team *t, size_t count, int local_rank) {
    ds_device first;
    int available = 0;
    CHECK(ds_device_get_current(&first));
    CHECK(ds_device_get_count((ds_device_type)first.type, &available));
    size_t begin = first.type == DS_DEVICE_CPU || local_rank < 0 ? 0 : (size_t)local_rank * count;
    t->count = t->total = count;
    for (size_t i = 0; i < count; i++)
        t->device[i] = (ds_device){ first.type, (int32_t)((begin + i) % (size_t)available) };
    return FINE;
}

/* Creates the group of all ranks, or one of this process alone if no launcher started it. */
static int join(team *t, ds_ranks *ranks, ds_ranks_info *info) {
    ds_ranks_launch launch;
    ds_ranks_launch_get(&launch);
    if (choose_devices(t, (size_t)opt.devices, launch.local_rank) != FINE)
        return FAILED;
    CHECK(ds_ranks_init(
        &(ds_ranks_desc){ .devices = t->device, .device_count = t->count, .label = "training" },
        ranks));
    CHECK(ds_ranks_get_info(*ranks, info));
    t->first = info->first_device;
    t->total = info->device_count;
    if (t->total <= MOST_DEVICES)
        return FINE;
    complain("%zu devices are too many for batches of %d pictures", t->total, BATCH);
    return FAILED;
}

static int print_table(const team *t, const ds_ranks_info *info, int epochs) {
    char name[DS_DEVICE_NAME_SIZE];
    CHECK(ds_device_format(t->device[0], name, sizeof name));
    printf("ranks         %d, engine %s%s%s\n", info->size, info->engine,
           *info->library ? ", " : "", info->library);
    printf("devices       %zu in the group, %zu of rank 0, from %s\n", t->total, t->count, name);
    printf("pictures      %d to learn from, in batches of %d, %d times; %d held out\n",
           learnt_count, BATCH, epochs, held_out_count);
    printf("loss          %.6f        of those held out\n", t->loss);
    printf("accuracy      %.2f %%\n", 100 * t->accuracy);
    printf("time          %.3f ms\n", 1e3 * t->seconds);
    printf("weights       %08x\n", fingerprint(t->result));
    return fflush(stdout) == 0 ? FINE : FAILED;
}

/* Trains once more, with all devices of the group in this process, and compares the weights. */
static int check(const team *t, int epochs) {
    static team alone;
    char name[32];
    if (choose_devices(&alone, t->total, -1) != FINE ||
        train(&alone, (ds_ranks){ 0 }, epochs) != FINE)
        return FAILED;
    snprintf(name, sizeof name, "%zu devices", t->total);
    printf("one process   %08x        with %s\n", fingerprint(alone.result), name);
    return weights_compare(t->result, alone.result, "the group", name);
}

/* Trains with a group that exists. */
static int work(team *t, ds_ranks ranks, const ds_ranks_info *info) {
    int epochs = opt.epochs ? opt.epochs : 24;
    if (read_data(opt.path) != FINE || train(t, ranks, epochs) != FINE)
        return FAILED;
    if (info->rank > 0)
        return FINE;
    if (print_table(t, info, epochs) != FINE || (opt.check && check(t, epochs) != FINE))
        return FAILED;
    if (opt.epochs || t->accuracy >= 0.95)
        return FINE;
    complain("WRONG: the accuracy is below 95 %%");
    return FAILED;
}

static int work_all(void) {
    static team t;
    ds_cpu_desc cpu = { .devices = getenv("DEVSTREAM_CPU_DEVICES") ? 0 : opt.devices };
    ds_ranks ranks = { 0 };
    ds_ranks_info info;
    CHECK(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    if (opt.cpu)
        CHECK(ds_device_set_current(ds_cpu(0)));
    int result = join(&t, &ranks, &info);
    if (result == FINE)
        result = work(&t, ranks, &info);
    if (result != FINE && ranks.id)
        DS_IGNORE(ds_ranks_abort(ranks, "this rank cannot go on"));
    if (ranks.id)
        CHECK(ds_ranks_finalize(ranks));
    return result;
}

/* ---- options and main ------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: train_ranks [options] [FILE]\n"
    "Trains a network on the pictures of FILE (examples/data/digits.csv) with all ranks that "
    "mpiexec or srun has started.\n"
    "  --devices N  devices of this rank (1)\n"
    "  --epochs N   passes over the pictures (24); the accuracy is then shown and not checked\n"
    "  --check      train in one process with as many devices, too, and compare the weights\n"
    "  --any-order  let the engine choose the order of sums; the weights may then differ\n"
    "  --cpu        use virtual CPU devices although there are GPUs\n"
    "  --help       this text\n";

static int parse_number(const char *text, int most, int *out) {
    *out = text ? atoi(text) : 0;
    return *out > 0 && *out <= most;
}

static int parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--check") == 0)
            opt.check = 1;
        else if (strcmp(a, "--any-order") == 0)
            opt.any_order = 1;
        else if (strcmp(a, "--cpu") == 0)
            opt.cpu = 1;
        else if (strcmp(a, "--devices") == 0 && parse_number(value, MOST_DEVICES, &opt.devices))
            i++;
        else if (strcmp(a, "--epochs") == 0 && parse_number(value, 1 << 20, &opt.epochs))
            i++;
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

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argc, argv) != FINE)
        return FAILED;
    int result = work_all();
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
