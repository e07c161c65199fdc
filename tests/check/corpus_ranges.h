/* corpus_ranges.h - the memory that operations access: tiles, extents of kernels, batches, random
   numbers, collectives, memory of other libraries. */
#ifndef CORPUS_RANGES_H
#define CORPUS_RANGES_H
#include "corpus.h"

enum { PITCH = 128, ROWS = 16 };

/* ---- copies and fills ---- */

/* Two tiles of a picture, side by side. */
static void tiles_of_copies(int correct) {
    ds_stream a = stream("left");
    ds_stream b = stream("right");
    char *picture = device_memory(PITCH * ROWS);
    char *tile = device_memory(2 * 64 * ROWS);
    char *right = picture + (correct ? 64 : 63);

    FIRST(ds_copy_2d(picture, PITCH, tile, 64, 64, ROWS, a));
    SECOND(ds_copy_2d(right, PITCH, tile + 64 * ROWS, 64, 64, ROWS, b));
}

/* Two sets of rows, one of which begins in the last row of the other one. */
static void rows_of_fills(int correct) {
    ds_stream a = stream("upper");
    ds_stream b = stream("lower");
    char *picture = device_memory(PITCH * 2 * ROWS);
    char *lower = picture + PITCH * (correct ? ROWS : ROWS - 1);

    FIRST(ds_fill_2d(picture, PITCH, 1, 1, 100, ROWS, a));
    SECOND(ds_fill_2d(lower, PITCH, 2, 1, 100, ROWS, b));
}

/* Rows of one picture are read as columns of another pitch. */
static void tiles_of_two_pitches(int correct) {
    ds_stream a = stream("writer");
    ds_stream b = stream("reader");
    char *picture = device_memory(PITCH * ROWS);
    char *out = device_memory(PITCH * ROWS);

    /* bytes 0 to 31 of each 128 are written, 32 to 63 or 24 to 55 of each 64 are read */
    FIRST(ds_fill_2d(picture, PITCH, 1, 1, 32, ROWS, a));
    SECOND(ds_copy_2d(out, 32, picture + (correct ? 32 : 24), PITCH / 2, 32, 2 * ROWS - 1, b));
}

static void halves_of_fills(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    char *p = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, correct ? SIZE / 2 : SIZE / 2 + 1, a));
    SECOND(ds_fill(p + SIZE / 2, 2, 4, SIZE / 8, b));
}

static void batch_of_copies(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *p = device_memory(4 * SIZE);
    char *q = device_memory(SIZE);
    void *to[2] = { p, p + SIZE };
    const void *from[2] = { p + 2 * SIZE, p + 3 * SIZE };
    size_t bytes[2] = { SIZE, SIZE };

    FIRST(ds_copy_batch(to, from, bytes, 2, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, p + SIZE, SIZE, b));
}

static void batch_over_a_source_in_use(int correct) {
    ds_stream a = stream("fill");
    ds_stream b = stream("batch");
    char *p = device_memory(4 * SIZE);
    void *to[2] = { p, p + SIZE };
    const void *from[2] = { p + 2 * SIZE, p + 3 * SIZE };
    size_t bytes[2] = { SIZE, SIZE };

    FIRST(ds_fill(p + 3 * SIZE, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy_batch(to, from, bytes, 2, b));
}

/* ---- extents of kernels ---- */

static void halves_of_kernels(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    ds_kernel store = writing_kernel();
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(store, p, correct ? SIZE / 2 : SIZE / 2 + 1, a));
    SECOND(LAUNCH(store, p + SIZE / 2, SIZE / 2, b));
}

/* Without an extent, a kernel may access the whole block, so the halves may overlap. */
static void kernels_without_extents(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    ds_kernel store = kernel_with("opaque", DS_PARAM_WRITE, correct ? &extent_of_n : NULL);
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(store, p, SIZE / 2, a));
    SECOND(LAUNCH(store, p + SIZE / 2, SIZE / 2, b));
}

static void kernel_without_extent_after_a_fill(int correct) {
    ds_stream a = stream("fill");
    ds_stream b = stream("kernel");
    ds_kernel load = kernel_with("opaque", DS_PARAM_READ, NULL);
    char *p = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, 16, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(LAUNCH(load, p + 16, 1, b));
}

/* The program states the extents of single launches. */
static void extents_of_a_launch(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    ds_kernel store = kernel_with("opaque", DS_PARAM_WRITE, NULL);
    char *p = device_memory(SIZE);
    ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = SIZE / 2 };

    must(ds_check_set_extents(&half, 1));
    FIRST(LAUNCH(store, p, SIZE, a));
    half.offset = correct ? SIZE / 2 : SIZE / 2 - 1;
    must(ds_check_set_extents(&half, 1));
    SECOND(LAUNCH(store, p, SIZE, b));
}

/* They are for one launch only. */
static void extents_of_the_launch_before(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    ds_kernel store = writing_kernel();
    char *p = device_memory(SIZE);
    ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = SIZE / 2 };

    must(ds_check_set_extents(&half, 1));
    must(LAUNCH(store, p, SIZE, a));
    if (correct)
        must(ds_check_set_extents(&half, 1));
    FIRST(LAUNCH(store, p, SIZE, a));
    SECOND(ds_fill(p + SIZE / 2, 1, 1, SIZE / 2, b));
}

/* Kernels on even and on odd elements. */
static void strided_extents(int correct) {
    ds_stream a = stream("even");
    ds_stream b = stream("odd");
    ds_extent every_second = { .kind = DS_EXTENT_ITEMS, .bytes = 4, .stride = 8 };
    ds_kernel store = kernel_with("store_strided", DS_PARAM_WRITE, &every_second);
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(store, p, SIZE / 8, a));
    SECOND(LAUNCH(store, p + (correct ? 4 : 8), SIZE / 8 - 1, b));
}

/* A kernel that begins behind its pointer. */
static void offset_extents(int correct) {
    ds_stream a = stream("header");
    ds_stream b = stream("body");
    ds_extent body = { .kind = DS_EXTENT_COUNT, .bytes = 1, .offset = 64, .count_param = 1 };
    ds_kernel load = kernel_with("load_body", DS_PARAM_READ, &body);
    char *p = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, correct ? 64 : 65, a));
    SECOND(LAUNCH(load, p, SIZE - 64, b));
}

/* Bytes of each parameter from the arguments: x has n blocks of 16 bytes. */
static void blocks_of_args(const void *args, size_t *out_bytes) {
    out_bytes[0] = 16 * (size_t)((const work *)args)->n;
}

static void extents_by_function(int correct) {
    ds_stream a = stream("kernel");
    ds_stream b = stream("fill");
    ds_kernel store = kernel_of(
        &(ds_kernel_desc){ .name = "store_blocks", .extents_fn = blocks_of_args }, DS_PARAM_WRITE);
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(store, p, 10, a));
    SECOND(ds_fill(p + (correct ? 160 : 159), 1, 1, 16, b));
}

/* A launch for no elements accesses nothing. */
static void empty_extents(int correct) {
    ds_stream a = stream("kernel");
    ds_stream b = stream("fill");
    ds_kernel store = writing_kernel();
    char *p = device_memory(SIZE);
    work args = { p, correct ? 0 : 1 };

    FIRST(ds_kernel_launch(store, 1, &args, sizeof args, a));
    SECOND(ds_fill(p, 1, 1, SIZE, b));
}

/* Atomic operations conflict with other accesses only. */
static void atomic_and_plain(int correct) {
    ds_stream a = stream("first");
    ds_stream b = stream("second");
    ds_extent atomic = { .kind = DS_EXTENT_BYTES, .bytes = 8, .atomic = 1 };
    ds_extent plain = { .kind = DS_EXTENT_BYTES, .bytes = 8 };
    ds_kernel count = kernel_with("count", DS_PARAM_READ_WRITE, &atomic);
    ds_kernel read = kernel_with("read", DS_PARAM_READ, correct ? &atomic : &plain);
    char *p = device_memory(SIZE);

    FIRST(LAUNCH(count, p, SIZE, a));
    SECOND(LAUNCH(read, p, SIZE, b));
}

static void atomic_after_a_fill(int correct) {
    ds_stream a = stream("reset");
    ds_stream b = stream("count");
    ds_extent atomic = { .kind = DS_EXTENT_BYTES, .bytes = 8, .atomic = 1 };
    ds_kernel count = kernel_with("count", DS_PARAM_WRITE, &atomic);
    char *p = device_memory(SIZE);

    FIRST(ds_fill(p, 0, 8 / 2, 2, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(LAUNCH(count, p, SIZE, b));
}

DS_KERNEL_1D(corpus_scale, i, n, DS_READ_WRITE(float, x, n)) {
    x[i] *= 2;
}

/* Kernels of devstream_kernel.h have the extents of their parameters. */
static void halves_of_defined_kernels(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    float *x = (void *)device_memory(64 * sizeof *x);

    must(ds_fill(x, 0, 4, 64, a));
    must(ds_stream_wait_stream(b, a));
    FIRST(DS_LAUNCH(corpus_scale, a, correct ? 32 : 33, x));
    SECOND(DS_LAUNCH(corpus_scale, b, 32, x + 32));
}

/* An item of a launch over a grid is a thread. */
static void kernel_on_a_grid(int correct) {
    ds_stream a = stream("low");
    ds_stream b = stream("high");
    ds_extent item = { .kind = DS_EXTENT_ITEMS, .bytes = 4 };
    ds_kernel store = kernel_with("store_items", DS_PARAM_WRITE, &item);
    char *p = device_memory(SIZE);
    ds_grid grid = { .grid = { 2, 2, 1 }, .block = { 8, 4, 1 } };
    work args = { p, 0 };

    FIRST(ds_kernel_launch_grid(store, &grid, &args, sizeof args, a));
    SECOND(ds_fill(p + 4 * (correct ? 128 : 127), 1, 4, 16, b));
}

/* Copies between drivers: streams of two drivers cannot wait for each other. */
static void copy_from_a_cpu_device(int correct) {
    ds_stream a = stream_with(ds_cpu(0), DS_STREAM_NON_BLOCKING, "cpu");
    ds_stream b = stream("copy");
    char *p = memory_of(ds_cpu(0), SIZE);
    char *q = device_memory(SIZE);

    FIRST(ds_fill(p, 1, 1, SIZE, a));
    if (correct)
        must(ds_stream_synchronize(a));
    SECOND(ds_copy(q, p, SIZE, b));
}

/* ---- random numbers and collectives ---- */

static void random_numbers(int correct) {
    ds_stream a = stream("generator");
    ds_stream b = stream("consumer");
    float *x = (void *)device_memory(SIZE);
    char *q = device_memory(SIZE);
    ds_rng own = { 0 };

    FIRST(ds_rng_uniform(own, ds_float32(), x, SIZE / 4, 0, 1, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_copy(q, x, SIZE, b));
}

static void random_numbers_over_data_in_use(int correct) {
    ds_stream a = stream("reader");
    ds_stream b = stream("generator");
    float *x = (void *)device_memory(SIZE);
    ds_rng own = { 0 };

    FIRST(LAUNCH(reading_kernel(), x, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(ds_rng_normal(own, ds_float32(), x, SIZE / 4, 0, 1, b));
}

/* Two ranks with a stream and a tensor each. */
typedef struct ranks {
    ds_stream stream[2];
    ds_tensor tensor[2];
    const ds_tensor *list[2];
    ds_comm_options options;
} ranks;

static void ranks_init(ranks *r) {
    static int64_t shape[1] = { SIZE / 4 };
    for (int i = 0; i < 2; i++) {
        ds_device device = i ? corpus.other : corpus.device;
        void *data = memory_of(device, SIZE);
        r->stream[i] = stream_with(device, DS_STREAM_NON_BLOCKING, i ? "rank 1" : "rank 0");
        must(ds_fill(data, 0, 4, SIZE / 4, r->stream[i]));
        r->tensor[i] = ds_tensor_of(data, device, ds_float32(), 1, shape);
        r->list[i] = &r->tensor[i];
    }
    r->options = (ds_comm_options){ .streams = r->stream, .stream_count = 2 };
}

static void result_of_a_collective(int correct) {
    ranks r;
    ds_stream c = stream("consumer");
    char *q = device_memory(SIZE);

    ranks_init(&r);
    FIRST(ds_comm_all_reduce(r.list, r.list, 2, DS_REDUCE_SUM, &r.options));
    if (correct)
        must(ds_stream_wait_stream(c, r.stream[0]));
    SECOND(ds_copy(q, r.tensor[0].data, SIZE, c));
}

static void operand_of_a_collective_is_overwritten(int correct) {
    ranks r;
    ds_stream c = stream("writer");

    ranks_init(&r);
    must(ds_stream_wait_stream(c, r.stream[0]));
    FIRST(ds_comm_broadcast_into(
        r.list[0], &r.list[1], 1,
        &(ds_comm_options){ .streams = &r.stream[1], .stream_count = 1, .stream = r.stream[0] }));
    if (correct)
        must(ds_stream_wait_stream(c, r.stream[0]));
    SECOND(ds_fill(r.tensor[0].data, 1, 4, SIZE / 4, c));
}

/* In place: the write is reported, too. */
static void operand_of_a_collective_is_not_ready(int correct) {
    ranks r;
    ds_stream c = stream("producer");

    ranks_init(&r);
    must(ds_stream_wait_stream(c, r.stream[0]));
    FIRST(LAUNCH(writing_kernel(), r.tensor[0].data, SIZE, c));
    if (correct)
        must(ds_stream_wait_stream(r.stream[0], c));
    SECOND(ds_comm_all_reduce(r.list, r.list, 2, DS_REDUCE_SUM, &r.options));
}

/* The second call: a collective on one stream with a tensor that is not dense. stride: of the rows,
   or of the elements if there is one row. */
static void broadcast_to(char *out, int64_t rows, int64_t elements, int64_t stride, ds_stream s) {
    int64_t shape[2] = { rows, elements };
    int64_t strides[2] = { rows > 1 ? stride : elements, rows > 1 ? 1 : stride };
    ds_tensor to = ds_tensor_of(out, corpus.device, ds_float32(), 2, shape);
    ds_tensor from = ds_tensor_of(device_memory(SIZE), corpus.device, ds_float32(), 2, shape);
    const ds_tensor *list[1] = { &to };
    ds_comm_options options = { .streams = &s, .stream_count = 1, .stream = s };
    to.strides = strides;
    SECOND(ds_comm_broadcast_into(&from, list, 1, &options));
}

/* Two streams may work on the columns of one matrix. */
static void columns_of_a_collective(int correct) {
    ds_stream a = stream("left");
    ds_stream b = stream("right");
    char *p = device_memory(SIZE);

    FIRST(ds_fill_2d(p + 256 + 128, 256, 1, 4, 32, 15, a)); /* but for the first row */
    broadcast_to(p, 16, correct ? 32 : 33, 64, b);
}

/* The first element of a tensor with a negative stride has the highest address. */
static void backwards_collective(int correct) {
    ds_stream a = stream("fill");
    ds_stream b = stream("collective");
    char *p = device_memory(SIZE);

    FIRST(ds_fill(correct ? p + SIZE / 2 : p, 1, 1, SIZE / 2, a));
    broadcast_to(p + SIZE / 2 - 4, 1, SIZE / 8, -1, b);
}

/* A collective orders all its streams. */
static void collective_as_a_barrier(int correct) {
    ranks r;
    ds_stream c = stream_with(corpus.other, DS_STREAM_NON_BLOCKING, "consumer");
    char *p = device_memory(SIZE);
    char *q = memory_of(corpus.other, SIZE);

    ranks_init(&r);
    FIRST(ds_fill(p, 1, 1, SIZE, r.stream[0]));
    must(ds_comm_barrier(r.stream, 2));
    if (correct)
        must(ds_stream_wait_stream(c, r.stream[1]));
    SECOND(ds_copy(q, p, SIZE, c));
}

/* The results of a collective are new tensors. */
static void new_result_of_a_collective(int correct) {
    ranks r;
    ds_stream c = stream("consumer");
    char *q = device_memory(SIZE);
    ds_tensor *sum;

    ranks_init(&r);
    FIRST(ds_comm_reduce_add(r.list, 2, corpus.device, &r.options, &sum));
    if (correct)
        must(ds_stream_wait_stream(c, r.stream[0]));
    SECOND(ds_copy(q, ds_tensor_address(sum), SIZE, c));
    must(ds_device_synchronize(corpus.device));
    must(ds_tensor_free(sum));
}

/* A collective orders each of its streams after the work of all. */
static void work_of_another_rank(int correct) {
    ranks r;
    ds_kernel store = writing_kernel();
    char *q = device_memory(SIZE);

    ranks_init(&r);
    if (correct)
        FIRST(LAUNCH(store, r.tensor[1].data, SIZE, r.stream[1]));
    must(ds_comm_all_reduce(r.list, r.list, 2, DS_REDUCE_SUM, &r.options));
    if (!correct)
        FIRST(LAUNCH(store, r.tensor[1].data, SIZE, r.stream[1]));
    SECOND(ds_copy(q, r.tensor[1].data, SIZE, r.stream[0]));
}

/* ---- memory of other libraries ---- */

static char foreign[SIZE];

static void declared_memory(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");

    must(ds_check_declare_memory(foreign, SIZE, "foreign"));
    FIRST(LAUNCH(writing_kernel(), foreign, SIZE, a));
    if (correct)
        must(ds_stream_wait_stream(b, a));
    SECOND(LAUNCH(reading_kernel(), foreign, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_check_forget_memory(foreign));
}

/* Memory that the library has given back may have another owner. */
static void forgotten_memory(int correct) {
    ds_stream a = stream("first owner");
    ds_stream b = stream("second owner");

    must(ds_check_declare_memory(foreign, SIZE, "first"));
    FIRST(LAUNCH(writing_kernel(), foreign, SIZE, a));
    if (correct)
        must(ds_check_declare_order(a, b));
    must(ds_check_forget_memory(foreign));
    must(ds_check_declare_memory(foreign, SIZE, "second"));
    SECOND(LAUNCH(writing_kernel(), foreign, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_check_forget_memory(foreign));
}

/* Only the part that the program names is ignored. */
static void ignored_part(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("monitor");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    must(ds_check_ignore(correct ? p + SIZE / 2 : p, SIZE / 2));
    FIRST(ds_fill(p + SIZE / 2, 1, 1, SIZE / 2, a));
    SECOND(ds_copy(q, p + SIZE / 2, SIZE / 2, b));
}

/* The next block at the address is checked again. */
static void ignored_until_the_free(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("consumer");
    char *q = device_memory(SIZE);
    void *p;

    must(ds_mem_alloc(SIZE, a, &p));
    must(ds_check_ignore(p, SIZE));
    if (!correct) {
        must(ds_mem_free(p));
        must(ds_mem_alloc(SIZE, a, &p));
    }
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, b));
    must(ds_device_synchronize(corpus.device));
    must(ds_mem_free(p));
}

/* A race that the program knows and accepts. */
static void ignored_memory(int correct) {
    ds_stream a = stream("producer");
    ds_stream b = stream("monitor");
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    if (correct)
        must(ds_check_ignore(p, SIZE));
    FIRST(ds_fill(p, 1, 1, SIZE, a));
    SECOND(ds_copy(q, p, SIZE, b));
}

static const pair range_pairs[] = {
    PAIR(tiles_of_copies, WRITE_AFTER_WRITE),
    PAIR(rows_of_fills, WRITE_AFTER_WRITE),
    PAIR(tiles_of_two_pitches, READ_AFTER_WRITE),
    PAIR(halves_of_fills, WRITE_AFTER_WRITE),
    PAIR(batch_of_copies, READ_AFTER_WRITE),
    PAIR(batch_over_a_source_in_use, READ_AFTER_WRITE),
    PAIR(halves_of_kernels, WRITE_AFTER_WRITE),
    PAIR(kernels_without_extents, WRITE_AFTER_WRITE, .flags = POSSIBLE),
    PAIR(kernel_without_extent_after_a_fill, READ_AFTER_WRITE, .flags = POSSIBLE),
    PAIR(extents_of_a_launch, WRITE_AFTER_WRITE),
    PAIR(extents_of_the_launch_before, WRITE_AFTER_WRITE),
    PAIR(strided_extents, WRITE_AFTER_WRITE),
    PAIR(offset_extents, READ_AFTER_WRITE),
    PAIR(extents_by_function, WRITE_AFTER_WRITE),
    PAIR(atomic_and_plain, READ_AFTER_WRITE),
    PAIR(atomic_after_a_fill, WRITE_AFTER_WRITE),
    PAIR(halves_of_defined_kernels, WRITE_AFTER_WRITE, .flags = CPU_ONLY),
    PAIR(random_numbers, READ_AFTER_WRITE),
    PAIR(random_numbers_over_data_in_use, WRITE_AFTER_READ),
    PAIR(result_of_a_collective, READ_AFTER_WRITE),
    PAIR(operand_of_a_collective_is_overwritten, WRITE_AFTER_READ),
    PAIR(operand_of_a_collective_is_not_ready, READ_AFTER_WRITE, .extra = 1),
    PAIR(columns_of_a_collective, WRITE_AFTER_WRITE),
    PAIR(backwards_collective, WRITE_AFTER_WRITE),
    PAIR(collective_as_a_barrier, READ_AFTER_WRITE),
    PAIR(empty_extents, WRITE_AFTER_WRITE),
    PAIR(new_result_of_a_collective, READ_AFTER_WRITE),
    PAIR(work_of_another_rank, READ_AFTER_WRITE),
    PAIR(copy_from_a_cpu_device, READ_AFTER_WRITE),
    PAIR(ignored_part, READ_AFTER_WRITE),
    PAIR(ignored_until_the_free, READ_AFTER_WRITE),
    PAIR(kernel_on_a_grid, WRITE_AFTER_WRITE),
    PAIR(declared_memory, READ_AFTER_WRITE, .label = "foreign"),
    PAIR(forgotten_memory, REUSE, .label = "second"),
    PAIR(ignored_memory, READ_AFTER_WRITE),
};

#endif
