// peer_tbb.cpp - the peer oneTBB; peer_tbb graphs: the rows about graphs. A queue is a serial
// function node of a flow graph. The rows with events use graphs that are built beforehand, which
// is how a flow graph is meant to be used; nothing is submitted per hop there.
#include "bench.h"
#include "graphs.h"
#include <tbb/flow_graph.h>
#include <tuple>
#include <vector>
#include <memory>

#define Q_OPS (bench_quick() ? 100000u : 500000u)
#define Q_HOPS 100000u
#define Q_FORKS 10000u
#define Q_HOT 20000u
#define Q_OWN_EVENTS

namespace flow = tbb::flow;

struct work {
    uint64_t *h, n;
};

typedef flow::function_node<work, flow::continue_msg> queue_node;

static flow::graph graph;
static std::vector<std::unique_ptr<queue_node>> queues;

static void q_fold(unsigned q, uint64_t *h, uint64_t n) {
    queues[q]->try_put(work{ h, n });
}

static void q_sync(unsigned) {
    graph.wait_for_all();
}

static double q_hop(uint64_t n);
static double q_forkjoin(uint64_t n);
#include "queues.h"

static double q_hop(uint64_t n) {
    typedef flow::multifunction_node<uint64_t, std::tuple<uint64_t>> node;
    uint64_t want = 0;
    for (uint64_t i = 0; i < n; i++)
        bench_fold(&want, i);
    q_reset();
    flow::graph g;
    auto body = [n](uint64_t i, node::output_ports_type &ports) {
        bench_fold(Q_H(0), i);
        if (i + 1 < n)
            std::get<0>(ports).try_put(i + 1);
    };
    node a(g, flow::serial, body), b(g, flow::serial, body);
    flow::make_edge(flow::output_port<0>(a), b);
    flow::make_edge(flow::output_port<0>(b), a);
    double t = bench_now_ns();
    a.try_put(0);
    g.wait_for_all();
    t = bench_now_ns() - t;
    return *Q_H(0) == want ? t / static_cast<double>(n) : NAN;
}

static double q_forkjoin(uint64_t n) {
    q_reset();
    flow::graph g;
    flow::function_node<uint64_t, flow::continue_msg> root(g, flow::serial, [](uint64_t i) {
        bench_fold(Q_H(0), i);
        return flow::continue_msg();
    });
    uint64_t i = 0;
    flow::continue_node<flow::continue_msg> join(g, [&](const flow::continue_msg &) {
        bench_gather(Q_H(0), Q_H(1), 7);
        if (++i < n)
            root.try_put(i);
        return flow::continue_msg();
    });
    std::vector<std::unique_ptr<flow::continue_node<flow::continue_msg>>> branches;
    for (unsigned q = 1; q < 8; q++) {
        branches.emplace_back(
            new flow::continue_node<flow::continue_msg>(g, [q](const flow::continue_msg &) {
                bench_gather(Q_H(q), Q_H(0), 1);
                return flow::continue_msg();
            }));
        flow::make_edge(root, *branches.back());
        flow::make_edge(*branches.back(), join);
    }
    double t = bench_now_ns();
    root.try_put(0);
    g.wait_for_all();
    t = bench_now_ns() - t;
    return *Q_H(0) == q_forkjoin_want(n) ? t / static_cast<double>(n) : NAN;
}

int main(int argc, char **argv) {
    alignas(64) static uint64_t hashes[64];
    q_hash = hashes;
    for (int i = 0; i < 8; i++)
        queues.emplace_back(new queue_node(graph, flow::serial, [](const work &w) {
            bench_fold(w.h, w.n);
            return flow::continue_msg();
        }));
    if (argc > 1 && !strcmp(argv[1], "graphs")) {
        BENCH_REPEAT("graph_chain", "tbb", 21, q_hop(GRAPH_CHAIN));
        BENCH_REPEAT("graph_forkjoin", "tbb", 21, q_forkjoin(GRAPH_FORKS));
        BENCH_REPEAT("graph_wait", "tbb", 5, q_wait_hot(Q_HOT));
    } else {
        q_run("tbb");
    }
    return bench_failed;
}
