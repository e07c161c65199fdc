/* cuda.c - what devstream adds to a call of cudart: each verb and the bare call in turn, in one
   process; and how fast the demo's kernels read and ds_comm_reduce_into adds up, beside the
   device's own copy, and random fills beside its own fill.

   On a GPU (linked with cudart) the two columns are real calls and the last is the difference.
   On the stand-in for cudart, in its null mode, submissions do nothing, so that little but
   devstream's own cost is left. Prints a table in Markdown. Exit 0, 1 when something failed, 77
   without a device. */
#define DEVSTREAM_IMPLEMENTATION
#include "../devstream_comm.h"
#include "../devstream_rng.h"
#include "../examples/demo.kernels.h"
#include <cuda_runtime_api.h>
#include "bench.h"

enum { BATCH = 64, ROUNDS = 301, BYTES = 4096, CHAIN = 8 };

/* Does nothing, of the three parameters that the launch below hands over. */
static const char empty_ptx[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry empty(.param .u64 p, .param .u64 n, .param .u32 f)\n{\n ret;\n}\n";

typedef struct empty_args {
    void *p;
    uint64_t n;
    uint32_t f;
} empty_args;

typedef int (*load_fn)(void **module, const void *image);
typedef int (*get_fn)(void **function, void *module, const char *name);
typedef int (*launch_fn)(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz, unsigned shared, cudaStream_t s, void **params, void **extra);
typedef int (*query_fn)(cudaStream_t s);

static struct {
    ds_stream s, s2;
    ds_event e;
    ds_kernel k;
    ds_graph_exec x; /* CHAIN launches of the kernel */
    void *d, *d2, *pin;
    empty_args args;
    /* the bare side */
    cudaStream_t n, n2;
    cudaEvent_t ne;
    cudaGraphExec_t nx;
    void *function, *params[3];
    launch_fn launch;
    query_fn query;
} w;

#define DIE(...)                      \
    do {                              \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr);          \
        exit(1);                      \
    } while (0)
#define OK(call)                            \
    do {                                    \
        if ((call) < 0)                     \
            DIE("%s", ds_error_get_last()); \
    } while (0)
#define CUDART(call)                                                                  \
    do {                                                                              \
        int cuda_ = (int)(call);                                                      \
        if (cuda_)                                                                    \
            DIE("%s: %d (%s)", #call, cuda_, cudaGetErrorString((cudaError_t)cuda_)); \
    } while (0)

static void *entry_point(const char *name) {
    void *p = NULL;
#if CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found;
#endif
#if CUDART_VERSION >= 12050
    CUDART(cudaGetDriverEntryPointByVersion(name, &p, 11080, cudaEnableLegacyStream, &found));
#elif CUDART_VERSION >= 12000
    CUDART(cudaGetDriverEntryPoint(name, &p, cudaEnableLegacyStream, &found));
#else
    CUDART(cudaGetDriverEntryPoint(name, &p, cudaEnableLegacyStream));
#endif
    if (!p)
        DIE("no %s", name);
    return p;
}

#define TAKE(variable, name)                 \
    do {                                     \
        void *p_ = entry_point(name);        \
        memcpy(&(variable), &p_, sizeof p_); \
    } while (0)

static void open_both(void) {
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, offsetof(empty_args, p),
                                         sizeof(void *) },
                                       { DS_PARAM_VALUE, offsetof(empty_args, n), 8 },
                                       { DS_PARAM_VALUE, offsetof(empty_args, f), 4 } };
    ds_stream_desc desc = { .device = ds_cuda(0) };
    ds_stream_native native;
    void *module;
    load_fn load;
    get_fn get;
    OK(ds_stream_create(&desc, &w.s));
    OK(ds_stream_create(&desc, &w.s2));
    OK(ds_event_create(0, NULL, &w.e));
    OK(ds_kernel_create(
        &(ds_kernel_desc){ .name = "empty",
                           .args_size = sizeof(empty_args),
                           .params = params,
                           .param_count = 3,
                           .cuda = { .image = empty_ptx, .entry = "empty", .block = 32 } },
        &w.k));
    OK(ds_kernel_load(w.k, ds_cuda(0)));
    OK(ds_device_alloc(ds_cuda(0), BYTES, &w.d));
    OK(ds_device_alloc(ds_cuda(0), BYTES, &w.d2));
    OK(ds_pinned_alloc(BYTES, &w.pin));
    w.args.p = w.d;
    OK(ds_event_record(w.e, w.s));
    OK(ds_stream_wait_stream(w.s2, w.s));
    /* the same streams, so that both sides meet the same queue */
    OK(ds_stream_export(w.s, &native));
    w.n = native.handle;
    OK(ds_stream_export(w.s2, &native));
    w.n2 = native.handle;
    CUDART(cudaSetDevice(0));
    CUDART(cudaEventCreateWithFlags(&w.ne, cudaEventDisableTiming));
    CUDART(cudaEventRecord(w.ne, w.n));
    TAKE(load, "cuModuleLoadData");
    TAKE(get, "cuModuleGetFunction");
    TAKE(w.launch, "cuLaunchKernel");
    TAKE(w.query, "cuStreamQuery");
    CUDART(load(&module, empty_ptx));
    CUDART(get(&w.function, module, "empty"));
    w.params[0] = &w.args.p;
    w.params[1] = &w.args.n;
    w.params[2] = &w.args.f;
}

static ds_result put_chain(ds_stream s, void *unused) {
    ds_result r = DS_OK;
    (void)unused;
    for (int i = 0; i < CHAIN && r >= 0; i++)
        r = ds_kernel_launch(w.k, 32, &w.args, sizeof w.args, s);
    return r;
}

/* The same chain captured by both sides. */
static void capture_both(void) {
    ds_graph graph;
    cudaGraph_t bare;
    OK(ds_capture_function(w.s, put_chain, NULL, &graph));
    OK(ds_graph_instantiate(graph, NULL, &w.x));
    OK(ds_graph_destroy(graph));
    CUDART(cudaStreamBeginCapture(w.n, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < CHAIN; i++)
        CUDART(w.launch(w.function, 1, 1, 1, 32, 1, 1, 0, w.n, w.params, NULL));
    CUDART(cudaStreamEndCapture(w.n, &bare));
    CUDART(cudaGraphInstantiateWithFlags(&w.nx, bare, 0));
    CUDART(cudaGraphDestroy(bare));
}

static void settle(void) {
    CUDART(cudaStreamSynchronize(w.n));
    CUDART(cudaStreamSynchronize(w.n2));
}

/* X(what, the verb, the bare call) */
/* clang-format off */
#define ROWS(X) \
    X("ds_kernel_launch / cuLaunchKernel", ds_kernel_launch(w.k, 32, &w.args, sizeof w.args, w.s), \
      w.launch(w.function, 1, 1, 1, 32, 1, 1, 0, w.n, w.params, NULL)) \
    X("ds_copy, device to device / cudaMemcpyAsync", ds_copy(w.d2, w.d, BYTES, w.s), \
      cudaMemcpyAsync(w.d2, w.d, BYTES, cudaMemcpyDeviceToDevice, w.n)) \
    X("ds_copy, pinned to device / cudaMemcpyAsync", ds_copy(w.d, w.pin, BYTES, w.s), \
      cudaMemcpyAsync(w.d, w.pin, BYTES, cudaMemcpyHostToDevice, w.n)) \
    X("ds_fill, bytes / cudaMemsetAsync", ds_fill(w.d, 0, 1, BYTES, w.s), \
      cudaMemsetAsync(w.d, 0, BYTES, w.n)) \
    X("ds_event_record / cudaEventRecord", ds_event_record(w.e, w.s), cudaEventRecord(w.ne, w.n)) \
    X("ds_stream_wait_event / cudaStreamWaitEvent", ds_stream_wait_event(w.s2, w.e), \
      cudaStreamWaitEvent(w.n2, w.ne, 0)) \
    X("ds_graph_launch, 8 kernels / cudaGraphLaunch", ds_graph_launch(w.x, w.s), \
      cudaGraphLaunch(w.nx, w.n)) \
    X("ds_stream_query / cuStreamQuery", ds_stream_query(w.s), w.query(w.n)) \
    X("ds_stream_synchronize, idle / cudaStreamSynchronize", ds_stream_synchronize(w.s), \
      cudaStreamSynchronize(w.n)) \
    X("ds_event_synchronize, reached / cudaEventSynchronize", ds_event_synchronize(w.e), \
      cudaEventSynchronize(w.ne))
/* clang-format on */

#define TIMED(out, call)                         \
    do {                                         \
        double begin_ = bench_now_ns();          \
        for (int i_ = 0; i_ < BATCH; i_++)       \
            bad |= (int)(call) != 0;             \
        out = (bench_now_ns() - begin_) / BATCH; \
        settle();                                \
    } while (0)

#define ROW(what, verb, call)                                                                \
    {                                                                                        \
        static double ours[ROUNDS], bare[ROUNDS], more[ROUNDS];                              \
        int bad = 0;                                                                         \
        settle();                                                                            \
        for (int r = 0; r < ROUNDS; r++) {                                                   \
            if (r % 2) {                                                                     \
                TIMED(bare[r], call);                                                        \
                TIMED(ours[r], verb);                                                        \
            } else {                                                                         \
                TIMED(ours[r], verb);                                                        \
                TIMED(bare[r], call);                                                        \
            }                                                                                \
            more[r] = ours[r] - bare[r];                                                     \
        }                                                                                    \
        if (bad)                                                                             \
            DIE("%s: a call failed: %s", what, ds_error_get_last());                         \
        double difference = bench_median(more, ROUNDS);                                      \
        printf("| %-52s | %7.0f | %7.0f | %8.1f | %s |\n", what, bench_median(ours, ROUNDS), \
               bench_median(bare, ROUNDS), difference,                                       \
               difference <= goal ? "met" : "**not met**");                                  \
    }

/* The demo's kernels over 1 GiB, in bytes read; the copy in bytes read and written. Goal: 80 %
   of it. */
static void bandwidth(void) {
    enum { RUNS = 21 };

    static const char *const titles[] = { "copy, device to device", "histogram", "checksum" };
    const size_t size = bench_quick() ? (size_t)1 << 20 : (size_t)1 << 30;
    double gbs[3][RUNS], copy = 0;
    const size_t blocks = size / BLOCK, result_bytes = WORDS * sizeof(uint64_t);
    void *data, *other, *results;
    ds_event begin, end;
    OK(ds_device_alloc(ds_cuda(0), size, &data));
    OK(ds_device_alloc(ds_cuda(0), size, &other));
    OK(ds_device_alloc(ds_cuda(0), result_bytes, &results));
    OK(ds_fill(data, 0x20, 1, size, w.s));
    OK(ds_fill(results, 0, 1, result_bytes, w.s));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &begin));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &end));
    for (int r = -2; r < RUNS; r++) /* two to warm up */
        for (int i = 0; i < 3; i++) {
            double ms;
            OK(ds_event_record(begin, w.s));
            if (i == 0)
                OK(ds_copy(other, data, size, w.s));
            else if (i == 1)
                OK(DS_LAUNCH(histogram, w.s, blocks, data, results, size));
            else
                OK(DS_LAUNCH(checksum, w.s, blocks, data, results, size, 0));
            OK(ds_event_record(end, w.s));
            OK(ds_event_synchronize(end));
            OK(ds_event_get_elapsed_ms(begin, end, &ms));
            if (r >= 0)
                gbs[i][r] = (double)size * (i == 0 ? 2 : 1) / ms / 1e6;
        }
    printf("\n| %zu MiB of blanks | GB/s | of the copy | at least 80 %% |\n|---|---:|---:|---:|\n",
           size >> 20);
    for (int i = 0; i < 3; i++) {
        double v = bench_median(gbs[i], RUNS);
        if (i == 0) {
            copy = v;
            printf("| %s | %.0f | | |\n", titles[i], v);
        } else
            printf("| %s | %.0f | %.0f %% | %s |\n", titles[i], v, 100 * v / copy,
                   v >= 0.8 * copy ? "met" : "**not met**");
    }
}

enum { COPIES = 64 };

/* The copies of a batch, BYTES each, and the two ways to enqueue them, on a stream of a device. */
typedef struct batch {
    void *dst[COPIES];
    const void *src[COPIES];
    size_t sizes[COPIES];
    ds_stream s;
} batch;

static batch make_batch(ds_device device) {
    batch b;
    void *to, *from;
    OK(ds_stream_create(&(ds_stream_desc){ .device = device }, &b.s));
    OK(ds_device_alloc(device, COPIES * BYTES, &to));
    OK(ds_device_alloc(device, COPIES * BYTES, &from));
    OK(ds_fill(to, 0, 1, COPIES * BYTES, b.s));
    OK(ds_fill(from, 0, 1, COPIES * BYTES, b.s));
    OK(ds_stream_synchronize(b.s));
    for (size_t i = 0; i < COPIES; i++) {
        b.dst[i] = (char *)to + i * BYTES;
        b.src[i] = (char *)from + i * BYTES;
        b.sizes[i] = BYTES;
    }
    return b;
}

/* Enqueues the copies: 0: one batch, 1: one by one, 2: the bare batch, 3: bare calls one by one. */
static void put_batch(const batch *b, int way, cudaStream_t bare) {
    if (way == 0)
        OK(ds_copy_batch(b->dst, b->src, b->sizes, COPIES, b->s));
#if CUDART_VERSION >= 13000
    struct cudaMemcpyAttributes in_order = { .srcAccessOrder = cudaMemcpySrcAccessOrderStream };
    size_t first = 0;
    if (way == 2)
        CUDART(cudaMemcpyBatchAsync(b->dst, b->src, b->sizes, COPIES, &in_order, &first, 1, bare));
#endif
    for (int i = 0; i < COPIES && way % 2; i++)
        if (way == 1)
            OK(ds_copy(b->dst[i], b->src[i], BYTES, b->s));
        else
            CUDART(cudaMemcpyAsync(b->dst[i], b->src[i], BYTES, cudaMemcpyDeviceToDevice, bare));
}

/* Medians for a whole batch until the call returns, and until its copies are done. */
static void batches(void) {
    printf("\n| %d copies of %d bytes within a device, ns for all of them | ds_copy_batch | %d "
           "ds_copy "
           "| cudaMemcpyBatchAsync | %d cudaMemcpyAsync |\n|---|---:|---:|---:|---:|\n",
           COPIES, BYTES, COPIES, COPIES);
    for (int cpu = 0; cpu < 2; cpu++) {
        static double times[2][4][ROUNDS];
        batch b = make_batch(cpu ? ds_cpu(0) : ds_cuda(0));
        ds_stream_native native = { .handle = NULL };
        int ways = cpu ? 2 : 4;
        if (!cpu)
            OK(ds_stream_export(b.s, &native));
        for (int r = -2; r < ROUNDS; r++)
            for (int k = 0; k < ways; k++) {
                int way = (k + r + 2) % ways;
                double begin = bench_now_ns();
                put_batch(&b, way, native.handle);
                double put = bench_now_ns();
                OK(ds_stream_synchronize(b.s));
                if (r < 0)
                    continue;
                times[0][way][r] = put - begin;
                times[1][way][r] = bench_now_ns() - begin;
            }
        for (int done = 0; done < 2; done++) {
            printf("| %s, %s |", cpu ? "CPU device" : "GPU",
                   done ? "until they are done" : "the calls");
            for (int way = 0; way < 4; way++)
                if (way < ways && (way != 2 || CUDART_VERSION >= 13000))
                    printf(" %.0f |", bench_median(times[done][way], ROUNDS));
                else
                    printf(" |");
            printf("\n");
        }
        OK(ds_device_free(b.dst[0]));
        OK(ds_device_free((void *)(uintptr_t)b.src[0]));
        OK(ds_stream_destroy(b.s));
    }
}

/* Sums of tensors of 256 MiB of float32, all on one device, into another one; in bytes read and
   written, as the copy, which takes turns with them. Goal: 90 % of it. */
static void sums(void) {
    enum { RUNS = 21, MOST = 8 };

    static const size_t counts[] = { 0, 2, 4, 8 };
    const size_t bytes = bench_quick() ? (size_t)1 << 20 : (size_t)256 << 20;
    const int64_t shape[] = { (int64_t)(bytes / 4) };
    double gbs[4][RUNS];
    ds_tensor *in[MOST], *out;
    const ds_tensor *inputs[MOST];
    ds_stream streams[MOST];
    ds_event begin, end;
    for (int i = 0; i < MOST; i++) {
        streams[i] = w.s;
        OK(ds_tensor_alloc(ds_float32(), 1, shape, w.s, &in[i]));
        OK(ds_fill(in[i]->data, 0x3f800000, 4, bytes / 4, w.s));
        inputs[i] = in[i];
    }
    OK(ds_tensor_alloc(ds_float32(), 1, shape, w.s, &out));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &begin));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &end));
    ds_comm_options on = { .streams = streams, .stream_count = MOST, .stream = w.s };
    for (int r = -2; r < RUNS; r++) /* two to warm up */
        for (int i = 0; i < 4; i++) {
            double ms;
            float last = 0;
            OK(ds_event_record(begin, w.s));
            if (i == 0)
                OK(ds_copy(out->data, in[0]->data, bytes, w.s));
            else
                OK(ds_comm_reduce_into(inputs, counts[i], DS_REDUCE_SUM, out, &on));
            OK(ds_event_record(end, w.s));
            OK(ds_event_synchronize(end));
            OK(ds_event_get_elapsed_ms(begin, end, &ms));
            if (r >= 0)
                gbs[i][r] = (double)bytes * (i == 0 ? 2 : (double)counts[i] + 1) / ms / 1e6;
            OK(ds_copy(&last, (char *)out->data + bytes - 4, 4, w.s));
            OK(ds_stream_synchronize(w.s));
            if (last != (i == 0 ? 1.0f : (float)counts[i]))
                DIE("the sum of %zu is %g", counts[i], (double)last);
        }
    printf("\n| sums of float32, %zu MiB each | GB/s | of the copy | at least 90 %% "
           "|\n|---|---:|---:|---:|\n",
           bytes >> 20);
    for (int i = 0; i < 4; i++) {
        double v = bench_median(gbs[i], RUNS), copy = bench_median(gbs[0], RUNS);
        if (i == 0)
            printf("| copy, device to device | %.0f | | |\n", v);
        else
            printf("| reduce_add of %zu | %.0f | %.0f %% | %s |\n", counts[i], v, 100 * v / copy,
                   v >= 0.9 * copy ? "met" : "**not met**");
    }
    for (int i = 0; i < MOST; i++)
        OK(ds_tensor_free(in[i]));
    OK(ds_tensor_free(out));
}

/* Random numbers of 1 GiB, against a fill with a constant. */
static void randoms(void) {
    enum { RUNS = 11, KINDS = 5 };

    static const char *const titles[KINDS] = { "fill", "uniform float32", "normal float32",
                                               "32 random bits",
                                               "uniform float32, torch's mapping" };
    const size_t bytes = (size_t)1 << 30, n = bytes / 4;
    double gbs[KINDS][RUNS];
    ds_rng torch, own = { 0 };
    ds_event begin, end;
    void *x;
    OK(ds_device_alloc(ds_cuda(0), bytes, &x));
    OK(ds_rng_create(&(ds_rng_desc){ .device = ds_cuda(0), .mapping = DS_RNG_TORCH }, &torch));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &begin));
    OK(ds_event_create(DS_EVENT_TIMING, NULL, &end));
    for (int r = -2; r < RUNS; r++) /* two to warm up */
        for (int i = 0; i < KINDS; i++) {
            double ms;
            OK(ds_event_record(begin, w.s));
            switch (i) {
            case 0:
                OK(ds_fill(x, 0x3f000000u, 4, n, w.s));
                break;
            case 1:
                OK(ds_rng_uniform(own, ds_float32(), x, n, 0, 1, w.s));
                break;
            case 2:
                OK(ds_rng_normal(own, ds_float32(), x, n, 0, 1, w.s));
                break;
            case 3:
                OK(ds_rng_bits(own, ds_uint32(), x, n, w.s));
                break;
            default:
                OK(ds_rng_uniform(torch, ds_float32(), x, n, 0, 1, w.s));
                break;
            }
            OK(ds_event_record(end, w.s));
            OK(ds_event_synchronize(end));
            OK(ds_event_get_elapsed_ms(begin, end, &ms));
            if (r >= 0)
                gbs[i][r] = (double)bytes / ms / 1e6;
        }
    printf("\n| random numbers, %zu MiB | GB/s | of the fill | at least 85 %% "
           "|\n|---|---:|---:|---:|\n",
           bytes >> 20);
    for (int i = 0; i < KINDS; i++) {
        double v = bench_median(gbs[i], RUNS), fill = bench_median(gbs[0], RUNS);
        if (i == 0)
            printf("| fill | %.0f | | |\n", v);
        else
            printf("| %s | %.0f | %.0f %% | %s |\n", titles[i], v, 100 * v / fill,
                   i > 1              ? ""
                   : v >= 0.85 * fill ? "met"
                                      : "**not met**");
    }
    OK(ds_rng_destroy(torch));
    OK(ds_event_destroy(begin));
    OK(ds_event_destroy(end));
    OK(ds_device_free(x));
}

int main(int argc, char **argv) {
    int devices;
    ds_device_properties p;
    OK(ds_device_get_count(DS_DEVICE_CUDA, &devices));
    if (!devices) {
        ds_backend_info info;
        OK(ds_backend_get_info(0, &info));
        fprintf(stderr, "no CUDA device: %s\n", info.reason);
        return 77;
    }
    int standin = argc > 1 && !strcmp(argv[1], "--standin");
    double goal = standin ? 30 : 50;
    OK(ds_device_get_properties(ds_cuda(0), &p));
    open_both();
    capture_both();
    printf("On %s; ns of CPU time per call, medians of %d rounds of %d calls, the two in turn.\n\n",
           standin ? "the stand-in for cudart, null mode" : p.name, ROUNDS, BATCH);
    printf("| verb / bare call | devstream | bare | own cost | at most %.0f "
           "|\n|---|---:|---:|---:|---:|\n",
           goal);
    ROWS(ROW)
    batches();
    if (!standin) {
        bandwidth();
        sums();
        randoms();
    }
    return 0;
}
