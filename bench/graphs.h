/* graphs.h - the rows about graphs, which stand in a table of their own, and what the programs
   that measure them share. Taken in after bench.h. */

/* X(id, plot, title, unit, meaning of goal, goal or NAN, what it measures and why its limit is
   one) */
/* clang-format off */
#define BENCH_GRAPH_ROWS(X) \
    X(graph_chain, GRAPH, "chain of 1,000 kernels", "ns/node", MOST, 25, \
      "One-item kernels, each of which folds its number into one hash; a launch and a wait. " \
      "Enqueued: the same by ds_kernel_launch and a wait, in turn with the graph. PoCL: the same as " \
      "native kernels on an in-order queue. oneTBB: two nodes that invoke each other by turns, built " \
      "in advance. Limit: a loop that calls the function through a " \
      "pointer, with pointer and arguments read from memory.") \
    X(graph_half, GRAPH, "that, graph by enqueued", "ratio", MOST, 0.5, \
      "Median of the ratios of adjacent measurements, so other load of the machine has less " \
      "influence.") \
    X(graph_forkjoin, GRAPH, "100 fork-joins 1-7-1", "ns/fork", MOST, 200, \
      "A graph of 900 nodes: kernel, seven kernels after it, kernel after all seven, and so " \
      "on; time per fork-join. Enqueued: on eight streams by events. oneTBB: a graph that was built " \
      "in advance and restarts itself. Limit: as for the chain, nine calls.") \
    X(graph_branches, GRAPH, "8 branches, speed-up", "times", SHARE, 0.9, \
      "Eight independent kernels of about 100 us: the time of a graph that chains them, " \
      "divided by the time of a graph that does not. The two graphs run in turn, so all " \
      "workers but one sleep before the second graph. Enqueued: the time on one stream " \
      "divided by the time on eight. Limit: one thread compared with one spinning thread per " \
      "processor, so no thread needs a wake-up.") \
    X(graph_wait, GRAPH, "one kernel, launch and wait", "ns", MOST, NAN, \
      "Repeated, workers hot. Enqueued: ds_kernel_launch and a wait.") \
    X(graph_capture, GRAPH, "capture of 1,000 launches", "ns/node", MOST, NAN, \
      "From ds_capture_begin to ds_capture_end.") \
    X(graph_instantiate, GRAPH, "instantiate 1,000 nodes", "ns/node", MOST, NAN, "The chain.") \
    X(graph_update, GRAPH, "update 1,000 nodes", "ns/node", MOST, NAN, \
      "ds_graph_exec_update with a graph that has other arguments, and ds_graph_upload, which " \
      "does the work of the next launch in advance.") \
    X(graph_set, GRAPH, "set one node of 1,000", "ns", MOST, NAN, "ds_graph_exec_set_node alone.") \
    X(graph_set_all, GRAPH, "that and upload", "ns", MOST, NAN, \
      "Including the cost for the next launch, in which the node is written.") \
    X(graph_while, GRAPH, "while, 100,000 iterations", "ns/run", MOST, NAN, \
      "A conditional node whose body is one kernel, which folds a number and counts the word " \
      "down: one launch and one wait. Enqueued: a host loop that launches the body as a graph, " \
      "waits, and reads the word.") \
    X(graph_value, GRAPH, "hop by values", "ns/hop", MOST, NAN, \
      "As the hop by events: operation on A, write of a value, B waits for the value, operation " \
      "on B, and so on, all submitted in advance. Enqueued: by events, in turn with the values.")

/* clang-format on */

enum { BENCH_GRAPH = BENCH_OTHER + 1 };

enum {
    GRAPH_CHAIN = 1000,
    GRAPH_FORKS = 100,
    GRAPH_LOOPS = 100000,
    GRAPH_HOPS = 10000,
    GRAPH_BRANCHES = 8,
    GRAPH_TURNS = 80000 /* of work(), some 100 us */
};

/* The real work of a branch: its result depends on each turn. */
BENCH_FN uint64_t graph_work(uint64_t from, uint64_t turns) {
    for (uint64_t i = 0; i < turns; i++)
        bench_fold(&from, i);
    return from;
}
