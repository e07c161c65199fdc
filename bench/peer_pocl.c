/* peer_pocl.c - the peer PoCL: in-order OpenCL queues on the CPU. The operation is a native
   kernel (a C function), the cheapest that OpenCL has; nothing is compiled. Argument graphs: the
   rows of graphs instead, enqueued one by one: the command buffers of cl_khr_command_buffer take
   no native kernels. */
#define CL_TARGET_OPENCL_VERSION 120
#include "bench.h"
#include "graphs.h"
#include <CL/cl.h>

#define Q_OPS (bench_quick() ? 30000 : 100000)
#define Q_HOPS (bench_quick() ? 10000 : 30000)
#define Q_FORKS 3000
#define Q_HOT 3000

typedef struct args {
    uint64_t *h;
    const uint64_t *from;
    uint64_t n, turns;
} args;

static cl_command_queue queues[8];
/* last: the latest recorded; pending: what the queue's next operation waits for */
static cl_event last[8], pending[8][8];
static cl_uint pendings[8];

static void check(cl_int code, const char *what) {
    if (code == CL_SUCCESS)
        return;
    fprintf(stderr, "PoCL: %s: error %d\n", what, (int)code);
    exit(1);
}

static void CL_CALLBACK native(void *user) {
    args *a = user;
    if (a->turns)
        *a->h = graph_work(a->n, a->turns);
    else if (a->from)
        bench_gather(a->h, a->from, a->n);
    else
        bench_fold(a->h, a->n);
}

static void put(unsigned q, args a, cl_event *event) {
    check(clEnqueueNativeKernel(queues[q], native, &a, sizeof a, 0, NULL, NULL, pendings[q],
                                pendings[q] ? pending[q] : NULL, event),
          "clEnqueueNativeKernel");
    for (cl_uint i = 0; i < pendings[q]; i++)
        clReleaseEvent(pending[q][i]);
    pendings[q] = 0;
}

/* An operation's own event serves as its queue's record; rows without records do not ask for
   events. */
static int with_events;
#define Q_EVENTS

static void q_events(int on) {
    with_events = on;
}

static void put_op(unsigned q, args a) {
    if (!with_events) {
        put(q, a, NULL);
        return;
    }
    if (last[q])
        clReleaseEvent(last[q]);
    put(q, a, &last[q]);
}

static void q_fold(unsigned q, uint64_t *h, uint64_t n) {
    put_op(q, (args){ h, NULL, n, 0 });
}

static void q_gather(unsigned q, uint64_t *h, const uint64_t *from, uint64_t n) {
    put_op(q, (args){ h, from, n, 0 });
}

/* OpenCL asks for it before another queue waits */
static void q_record(unsigned q) {
    check(clFlush(queues[q]), "clFlush");
}

static void q_wait(unsigned q, unsigned p) {
    check(clRetainEvent(last[p]), "clRetainEvent");
    pending[q][pendings[q]++] = last[p];
}

static void q_sync(unsigned q) {
    /* a wait that no operation followed */
    for (cl_uint i = 0; i < pendings[q]; i++)
        clReleaseEvent(pending[q][i]);
    pendings[q] = 0;
    check(clFinish(queues[q]), "clFinish");
}

#include "queues.h"

/* ---- rows of graphs -------------------------------------------------------------------------- */

static double chain(void) {
    return q_queue(1, GRAPH_CHAIN);
}

static double branches(unsigned width) {
    int right = 1;
    q_reset();
    double t = bench_now_ns();
    for (unsigned i = 0; i < GRAPH_BRANCHES; i++)
        put(i % width, (args){ Q_H(i), NULL, i, GRAPH_TURNS }, NULL);
    /* all begin before the first wait */
    for (unsigned i = 0; i < width; i++)
        check(clFlush(queues[i]), "clFlush");
    for (unsigned i = 0; i < width; i++)
        q_sync(i);
    t = bench_now_ns() - t;
    for (unsigned i = 0; i < GRAPH_BRANCHES; i++)
        right &= *Q_H(i) == graph_work(i, GRAPH_TURNS);
    return right ? t : NAN;
}

static void graphs(void) {
    enum { SAMPLES = 41 };

    double one[SAMPLES], all[SAMPLES];
    BENCH_REPEAT("graph_chain", "pocl", 21, chain());
    BENCH_REPEAT("graph_forkjoin", "pocl", 5, q_forkjoin(GRAPH_FORKS));
    BENCH_REPEAT("graph_wait", "pocl", 5, q_wait_hot(500));
    for (int i = 0; i < SAMPLES; i++) {
        one[i] = branches(1);
        all[i] = branches(GRAPH_BRANCHES);
        if (isnan(one[i]) || isnan(all[i])) {
            bench_put("graph_branches", "pocl", NAN);
            return;
        }
    }
    bench_put("graph_branches", "pocl", bench_median(one, SAMPLES) / bench_median(all, SAMPLES));
}

int main(int argc, char **argv) {
    static _Alignas(64) uint64_t hashes[64];
    cl_platform_id platforms[16];
    cl_uint count = 0;
    cl_device_id device = NULL;
    cl_device_exec_capabilities can = 0;
    cl_int code;
    char name[64] = "";
    q_hash = hashes;
    if (clGetPlatformIDs(16, platforms, &count) != CL_SUCCESS)
        count = 0;
    for (cl_uint i = 0; i < count && i < 16 && !device; i++) {
        if (clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof name, name, NULL) ==
                CL_SUCCESS &&
            strstr(name, "Portable Computing Language"))
            check(clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, NULL),
                  "clGetDeviceIDs");
    }
    if (!device) {
        bench_absent("pocl", "not installed: package pocl-opencl-icd");
        return 0;
    }
    check(clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof can, &can, NULL),
          "clGetDeviceInfo");
    if (!(can & CL_EXEC_NATIVE_KERNEL)) {
        bench_absent("pocl", "cannot run here: its CPU device has no native kernels");
        return 0;
    }
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    for (int i = 0; i < 8; i++) {
        queues[i] = clCreateCommandQueue(context, device, 0, &code);
        check(code, "clCreateCommandQueue");
    }
    if (argc > 1 && !strcmp(argv[1], "graphs"))
        graphs();
    else
        q_run("pocl");
    return bench_failed;
}
