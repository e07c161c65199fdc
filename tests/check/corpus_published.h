/* corpus_published.h - defects of other projects, each rebuilt from its description.

   The pools of these projects are rebuilt as pools of the program: memory that devstream has
   allocated once, and that the program hands out itself. So the layer sees what a tool without
   knowledge of the pool sees: accesses and waits. */
#ifndef CORPUS_PUBLISHED_H
#define CORPUS_PUBLISHED_H
#include "corpus.h"

/* A pool with one block, and the event that its last user has recorded. */
typedef struct pool {
    char *block;
    ds_event ready;
} pool;

/* NVIDIA/cub#373: CachingDeviceAllocator compares handles of streams. The handle of the per-thread
   stream is the same on all threads, so a block that one thread has freed is reused at once by
   another thread, whose per-thread stream is not ordered with that of the first one. */
static void cub_373_first(void *user) {
    pool *cache = user;
    ds_stream own;
    must(ds_stream_get_per_thread(corpus.device, &own));
    FIRST(ds_fill(cache->block, 1, 1, SIZE, own));
    must(ds_event_record(cache->ready, own));
}

static void cub_373(int correct) {
    pool cache = { device_memory(SIZE), event() };
    ds_stream own;

    on_thread(cub_373_first, &cache);
    must(ds_stream_get_per_thread(corpus.device, &own));
    if (correct)
        must(ds_stream_wait_event(own, cache.ready));
    SECOND(ds_fill(cache.block, 2, 1, SIZE, own));
}

/* NVIDIA/cub#156: DeviceFree unlocks its mutex between the insertion of the block into the list of
   free blocks and cudaEventRecord. Meanwhile another thread queries the event, which has the state
   of an earlier use, and takes the block. */
static void cub_156_allocate(void *user) {
    pool *cache = user;
    ds_stream s = stream("allocating");
    poll_event(cache->ready);
    SECOND(ds_fill(cache->block, 2, 1, SIZE, s));
}

static void cub_156(int correct) {
    pool cache = { device_memory(SIZE), event() };
    ds_stream s = stream("freeing");

    must(ds_event_record(cache.ready, s)); /* the earlier use */
    must(ds_event_synchronize(cache.ready));
    FIRST(ds_fill(cache.block, 1, 1, SIZE, s));
    if (correct)
        must(ds_event_record(cache.ready, s));
    on_thread(cub_156_allocate, &cache);
    if (!correct)
        must(ds_event_record(cache.ready, s));
}

/* rapidsai/rmm#2489: merge_lists makes stream b wait for the event of stream a and moves the free
   blocks of a to the list of b, but does not record the event of b again. A third stream that
   steals one of these blocks waits for that event, whose record is older than the merge. */
static void rmm_2489(int correct) {
    ds_stream a = stream("donor");
    ds_stream b = stream("merging");
    ds_stream c = stream("thief");
    ds_event event_a = event();
    ds_event event_b = event();
    char *block = device_memory(SIZE);

    must(ds_event_record(event_b, b)); /* an earlier free on b */
    FIRST(ds_fill(block, 1, 1, SIZE, a));
    must(ds_event_record(event_a, a)); /* the free on a */
    must(ds_stream_wait_event(b, event_a));
    if (correct)
        must(ds_event_record(event_b, b));
    must(ds_stream_wait_event(c, event_b));
    SECOND(ds_fill(block, 2, 1, SIZE, c));
}

/* microsoft/onnxruntime#32342: kernels of the CUDA provider allocate intermediate tensors without a
   stream. The arena takes such a block for one that is safe to reuse, although work that uses the
   block is still queued on the stream of the run. */
static void onnxruntime_32342(int correct) {
    ds_stream run = stream("run");
    void *tensor;

    must(ds_mem_alloc(SIZE, correct ? run : legacy_stream(), &tensor));
    FIRST(ds_fill(tensor, 0, 1, SIZE, run));
    SECOND(ds_mem_free(tensor));
}

/* NVIDIA/TensorRT-LLM#15265: tensors that are allocated on one stream are handed to another one.
   An event orders the work, but the allocator does not know of the second stream, because
   record_stream is missing, and recycles the tensor while the second stream reads it. */
static void tensorrt_llm_15265(int correct) {
    ds_stream aux = stream("aux");
    ds_stream caller = stream("caller");
    ds_event done = event();
    ds_kernel load = reading_kernel();
    void *topk;

    must(ds_mem_alloc(SIZE, aux, &topk));
    must(ds_fill(topk, 1, 1, SIZE, aux));
    must(ds_event_record(done, aux));
    must(ds_stream_wait_event(caller, done));
    FIRST(LAUNCH(load, topk, SIZE, caller));
    if (correct)
        must(ds_mem_record_use(topk, caller));
    SECOND(ds_mem_free(topk));
}

/* openvm-org/stark-backend#362, first defect: before the pool remaps a free region, it makes a
   stream wait for the event of the region. The remapping is done by the host, which does not wait.
   Here the host writes to the region. */
static void stark_backend_362(int correct) {
    ds_stream prover = stream("prover");
    ds_stream pool_stream = stream("pool");
    ds_event freed = event();
    ds_kernel load = reading_kernel();
    char *region = pinned(SIZE);

    FIRST(LAUNCH(load, region, SIZE, prover));
    must(ds_event_record(freed, prover));
    if (correct)
        must(ds_event_synchronize(freed));
    else
        must(ds_stream_wait_event(pool_stream, freed));
    SECOND_HOST(write, region, SIZE);
}

/* openvm-org/stark-backend#362, second defect: the generation of traces and the proof have an
   engine with a stream each, and buffers go from one to the other without a wait. */
static void stark_backend_362_engines(int correct) {
    ds_stream trace = stream("trace");
    ds_stream proof = stream("proof");
    char *buffer = device_memory(SIZE);

    FIRST(LAUNCH(writing_kernel(), buffer, SIZE, trace));
    if (correct)
        must(ds_stream_synchronize(trace));
    SECOND(LAUNCH(reading_kernel(), buffer, SIZE, proof));
}

/* NVIDIA/warp#1418: memory that is allocated and freed during a capture, while a forked stream
   uses it. The free depends on the work of the stream on which the capture began, not on that of
   the fork, so a launch may free the memory before the kernel has run. */
static void warp_1418(int correct) {
    ds_stream begun = stream("begun");
    ds_stream fork = stream("fork");
    ds_kernel store = writing_kernel();
    void *scratch;
    void *next;

    must(ds_capture_begin(begun, DS_CAPTURE_THREAD_LOCAL));
    must(ds_mem_alloc(SIZE, begun, &scratch));
    must(ds_stream_wait_stream(fork, begun));
    FIRST(LAUNCH(store, scratch, SIZE, fork));
    if (correct)
        must(ds_stream_wait_stream(begun, fork));
    must(ds_mem_free(scratch));
    must(ds_mem_alloc(SIZE, begun, &next)); /* the same memory */
    SECOND(ds_fill(next, 0, 1, SIZE, begun));
    must(ds_mem_free(next));
    must(ds_stream_wait_stream(begun, fork));
    must(ds_graph_launch(instantiate(end_capture(begun)), begun));
}

/* ROCm/xla#979: PJRT frees a buffer when its computation is enqueued. The autotuner, which has a
   stream of its own, gets the memory as scratch while the computation still writes to it. */
static void rocm_xla_979(int correct) {
    ds_stream compute = stream("compute");
    ds_stream tuner = stream("autotuner");
    pool arena = { device_memory(SIZE), event() };

    FIRST(LAUNCH(writing_kernel(), arena.block, SIZE, compute));
    must(ds_event_record(arena.ready, compute));
    if (correct)
        poll_event(arena.ready); /* the free is deferred */
    SECOND(ds_fill(arena.block, 0, 1, SIZE, tuner));
}

/* meta-pytorch/torchrec#4231: a tensor is copied to the host on a side stream, then its memory is
   released to the allocator. record_stream is missing. */
static void torchrec_4231(int correct) {
    ds_stream train = stream("train");
    ds_stream d2h = stream("d2h");
    char *stash = pinned(SIZE);
    void *weights;

    must(ds_mem_alloc(SIZE, train, &weights));
    must(ds_fill(weights, 1, 1, SIZE, train));
    must(ds_stream_wait_stream(d2h, train));
    FIRST(ds_copy(stash, weights, SIZE, d2h));
    if (correct)
        must(ds_mem_record_stream(weights, d2h));
    SECOND(ds_mem_free(weights));
}

/* cupy/cupy#8789: cupy.array copies from pinned memory asynchronously and does not keep the source
   alive. The memory goes back to the pool, and the next array gets it. */
static void cupy_8789(int correct) {
    ds_stream s = stream("current");
    pool arrays = { pinned(SIZE), event() };
    char *array = device_memory(SIZE);

    FIRST(ds_copy(array, arrays.block, SIZE, s));
    must(ds_event_record(arrays.ready, s));
    if (correct)
        must(ds_event_synchronize(arrays.ready));
    SECOND_HOST(write, arrays.block, SIZE); /* the next array */
    memset(arrays.block, 1, SIZE);
}

/* PFLAREProject/PFLARE#263: an asynchronous deep_copy to the device is followed by the release of
   its source, without a fence. */
static void pflare_263(int correct) {
    ds_stream exec = stream("exec");
    char *indices = device_memory(SIZE);
    void *mirror;

    must(ds_mem_pinned_alloc(SIZE, &mirror));
    FIRST(ds_copy(indices, mirror, SIZE, exec));
    if (correct)
        must(ds_stream_synchronize(exec));
    SECOND(ds_mem_pinned_free(mirror));
}

/* alpaka-group/alpaka#850: the queue has a stream with cudaStreamNonBlocking, but its copies are
   cudaMemcpy on the legacy stream, which does not wait for such a stream. */
static void alpaka_850(int correct) {
    ds_stream queue = correct ? blocking_stream("queue") : stream("queue");
    char *buffer = device_memory(SIZE);
    char *host = pinned(SIZE);

    FIRST(LAUNCH(writing_kernel(), buffer, SIZE, queue));
    SECOND(ds_copy_sync(host, buffer, SIZE));
}

/* kzwrime/torch_mcpu 3ced638: all records of an event had one counter, so a later record on a fast
   stream satisfied a wait for an earlier record on a slow stream. A program that records one event
   on both streams has this defect on every runtime: the wait is for the last record only. */
static void torch_mcpu_3ced638(int correct) {
    ds_stream slow = stream("slow");
    ds_stream fast = stream("fast");
    ds_stream reader = stream("reader");
    ds_event done = event();
    char *p = device_memory(SIZE);
    char *q = device_memory(SIZE);

    FIRST(LAUNCH(writing_kernel(), p, SIZE, slow));
    must(ds_event_record(done, slow));
    if (correct)
        must(ds_stream_wait_event(reader, done));
    must(ds_event_record(done, fast));
    must(ds_stream_wait_event(reader, done));
    SECOND(ds_copy(q, p, SIZE, reader));
}

/* NVIDIA/TensorRT-LLM#15546: one pinned buffer is the source of the copy of each iteration. The
   host is an iteration ahead and overwrites the buffer before the copy has run. */
static void tensorrt_llm_15546(int correct) {
    ds_stream s = stream("execution");
    char *staging[2] = { pinned(SIZE), pinned(SIZE) };
    char *offsets = device_memory(SIZE);

    ds_host_write(staging[0], SIZE);
    FIRST(ds_copy(offsets, staging[0], SIZE, s));
    SECOND_HOST(write, staging[correct], SIZE);
    must(ds_copy(offsets, staging[correct], SIZE, s));
}

/* kokkos/kokkos#3269: scratch memory for teams is one allocation, which the kernels of all
   execution space instances share. */
static void kokkos_3269(int correct) {
    ds_stream instance[2] = { stream("instance 1"), stream("instance 2") };
    char *scratch[2] = { device_memory(SIZE), device_memory(SIZE) };
    ds_kernel team = kernel_with("team", DS_PARAM_READ_WRITE, &extent_of_n);

    FIRST(LAUNCH(team, scratch[0], SIZE, instance[0]));
    SECOND(LAUNCH(team, scratch[correct], SIZE, instance[1]));
}

/* pytorch/FBGEMM#4367: a copy between devices in two hops is launched on the stream of the source,
   without a wait for the earlier kernels of the destination. */
static void fbgemm_4367(int correct) {
    ds_stream source = stream("source");
    ds_stream target = stream_with(corpus.other, DS_STREAM_NON_BLOCKING, "target");
    char *from = device_memory(SIZE);
    char *to = memory_of(corpus.other, SIZE);

    FIRST(LAUNCH(reading_kernel(), to, SIZE, target));
    if (correct)
        must(ds_stream_wait_stream(source, target));
    SECOND(ds_copy(to, from, SIZE, source));
}

/* meta-pytorch/torchrec#4191: the streams of the prefetch and of the data distribution use one
   cache, and the second one does not wait for the first one. */
static void torchrec_4191(int correct) {
    ds_stream prefetch = stream("prefetch");
    ds_stream data_dist = stream("data_dist");
    ds_kernel update = kernel_with("update", DS_PARAM_READ_WRITE, &extent_of_n);
    char *cache = device_memory(SIZE);

    FIRST(LAUNCH(update, cache, SIZE, prefetch));
    if (correct)
        must(ds_stream_wait_stream(data_dist, prefetch));
    SECOND(LAUNCH(update, cache, SIZE, data_dist));
}

static const pair published_pairs[] = {
    PAIR(cub_373, WRITE_AFTER_WRITE, .source = "NVIDIA/cub#373"),
    PAIR(cub_156, WRITE_AFTER_WRITE, .source = "NVIDIA/cub#156"),
    PAIR(rmm_2489, WRITE_AFTER_WRITE, .source = "rapidsai/rmm#2489"),
    PAIR(onnxruntime_32342, FREE_IN_USE, .source = "microsoft/onnxruntime#32342",
         .fix = "ds_mem_record_use"),
    PAIR(tensorrt_llm_15265, FREE_IN_USE, .source = "NVIDIA/TensorRT-LLM#15265",
         .fix = "ds_mem_record_use"),
    PAIR(stark_backend_362, WRITE_AFTER_READ, .source = "openvm-org/stark-backend#362",
         .fix = "ds_stream_synchronize"),
    PAIR(stark_backend_362_engines, READ_AFTER_WRITE, .source = "openvm-org/stark-backend#362",
         .fix = "ds_stream_wait_stream"),
    PAIR(warp_1418, WRITE_AFTER_WRITE, .source = "NVIDIA/warp#1418"),
    PAIR(rocm_xla_979, WRITE_AFTER_WRITE, .source = "ROCm/xla#979"),
    PAIR(torchrec_4231, FREE_IN_USE, .source = "meta-pytorch/torchrec#4231",
         .fix = "ds_mem_record_use"),
    PAIR(cupy_8789, WRITE_AFTER_READ, .source = "cupy/cupy#8789", .fix = "ds_stream_synchronize"),
    PAIR(pflare_263, FREE_IN_USE, .source = "PFLAREProject/PFLARE#263",
         .fix = "ds_mem_pinned_record_use"),
    PAIR(alpaka_850, READ_AFTER_WRITE, .source = "alpaka-group/alpaka#850"),
    PAIR(torch_mcpu_3ced638, READ_AFTER_WRITE, .source = "kzwrime/torch_mcpu 3ced638"),
    PAIR(tensorrt_llm_15546, WRITE_AFTER_READ, .source = "NVIDIA/TensorRT-LLM#15546"),
    PAIR(kokkos_3269, WRITE_AFTER_WRITE, .source = "kokkos/kokkos#3269"),
    PAIR(fbgemm_4367, WRITE_AFTER_READ, .source = "pytorch/FBGEMM#4367"),
    PAIR(torchrec_4191, WRITE_AFTER_WRITE, .source = "meta-pytorch/torchrec#4191"),
};

#endif
