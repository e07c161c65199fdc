/* peer_gomp.c - the peer libgomp: OpenMP tasks; a queue is a chain of tasks that all depend on
   one token. */
#include "bench.h"
#include <omp.h>

#define Q_OPS (bench_quick() ? 50000 : 100000)
#define Q_HOPS 20000
#define Q_FORKS 2000
#define Q_HOT 10000

static char token[8];
/* the queues whose latest task the queue's next task depends on */
static unsigned pending[8][8], pendings[8];

static void q_op(unsigned q, uint64_t *h, const uint64_t *from, uint64_t n) {
    if (!pendings[q]) {
#pragma omp task depend(inout : token[q]) firstprivate(h, from, n)
        {
            if (from)
                bench_gather(h, from, n);
            else
                bench_fold(h, n);
        }
        return;
    }
    unsigned *p = pending[q], count = pendings[q];
    (void)count; /* gcc 12 does not see its use in the iterator */
#pragma omp task depend(inout                                      \
                        : token[q]) depend(iterator(unsigned i = 0 \
                                                    : count),      \
                                           in                      \
                                           : token[p[i]]) firstprivate(h, from, n)
    {
        if (from)
            bench_gather(h, from, n);
        else
            bench_fold(h, n);
    }
    pendings[q] = 0;
}

static void q_fold(unsigned q, uint64_t *h, uint64_t n) {
    q_op(q, h, NULL, n);
}

static void q_gather(unsigned q, uint64_t *h, const uint64_t *from, uint64_t n) {
    q_op(q, h, from, n);
}

/* the latest task on a token is what a dependence names */
static void q_record(unsigned q) {
    (void)q;
}

static void q_wait(unsigned q, unsigned p) {
    pending[q][pendings[q]++] = p;
}

static void q_sync(unsigned q) {
    pendings[q] = 0;
#pragma omp taskwait
}

#include "queues.h"

int main(void) {
    static _Alignas(64) uint64_t hashes[64];
    int threads = omp_get_num_procs();
    q_hash = hashes;
#pragma omp parallel num_threads(threads < 2 ? 2 : threads)
#pragma omp single
    q_run("gomp");
    return bench_failed;
}
