/* peer_thread.c - the peer that everybody writes first: a thread per queue, a linked list, a
   mutex and a condition variable. It is written with care: the thread takes the whole list at
   once, it is signalled only when it sleeps, and entries go back to a list of spare ones instead
   of to free. */
#include "bench.h"
#include <pthread.h>

#define Q_OPS (bench_quick() ? 200000 : 500000)
#define Q_HOPS 5000
#define Q_FORKS 1000
#define Q_HOT 3000

typedef struct work {
    struct work *next;

    enum { FOLD, GATHER, RECORD, WAIT } kind;

    unsigned other; /* WAIT: the queue whose record is awaited */
    uint64_t *h, n; /* WAIT: n is the number of that record */
    const uint64_t *from;
} work;

typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled, drained; /* drained: also "recorded" */
    work *first, **last, *spare;
    int asleep;
    uint64_t put, done, records, recorded;
    pthread_t thread;
} queue;

static queue queues[8];

static void run(queue *q, work *w) {
    queue *o;
    switch (w->kind) {
    case FOLD:
        bench_fold(w->h, w->n);
        break;
    case GATHER:
        bench_gather(w->h, w->from, w->n);
        break;
    case RECORD:
        pthread_mutex_lock(&q->lock);
        q->recorded++;
        pthread_cond_broadcast(&q->drained);
        pthread_mutex_unlock(&q->lock);
        break;
    case WAIT:
        o = &queues[w->other];
        pthread_mutex_lock(&o->lock);
        while (o->recorded < w->n)
            pthread_cond_wait(&o->drained, &o->lock);
        pthread_mutex_unlock(&o->lock);
        break;
    }
}

static void *serve(void *user) {
    queue *q = user;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        q->asleep = 1;
        while (!q->first)
            pthread_cond_wait(&q->filled, &q->lock);
        q->asleep = 0;
        work *list = q->first, *w = list, *end = NULL;
        q->first = NULL;
        q->last = &q->first;
        pthread_mutex_unlock(&q->lock);
        uint64_t n = 0;
        for (; w; end = w, w = w->next, n++)
            run(q, w);
        pthread_mutex_lock(&q->lock);
        end->next = q->spare;
        q->spare = list;
        q->done += n;
        if (q->done == q->put)
            pthread_cond_broadcast(&q->drained);
    }
    return NULL;
}

static void put(unsigned index, work value) {
    queue *q = &queues[index];
    pthread_mutex_lock(&q->lock);
    work *w = q->spare;
    if (w)
        q->spare = w->next;
    else if (!(w = malloc(sizeof *w)))
        abort();
    *w = value;
    *q->last = w;
    q->last = &w->next;
    q->put++;
    if (w->kind == RECORD)
        q->records++;
    if (q->asleep)
        pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

static void q_fold(unsigned q, uint64_t *h, uint64_t n) {
    put(q, (work){ .kind = FOLD, .h = h, .n = n });
}

static void q_gather(unsigned q, uint64_t *h, const uint64_t *from, uint64_t n) {
    put(q, (work){ .kind = GATHER, .h = h, .from = from, .n = n });
}

static void q_record(unsigned q) {
    put(q, (work){ .kind = RECORD });
}

static void q_wait(unsigned q, unsigned p) { /* only the submitting thread changes records */
    put(q, (work){ .kind = WAIT, .other = p, .n = queues[p].records });
}

static void q_sync(unsigned index) {
    queue *q = &queues[index];
    pthread_mutex_lock(&q->lock);
    while (q->done != q->put)
        pthread_cond_wait(&q->drained, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

#define Q_HOST

static void q_host(unsigned q, uint64_t *h, uint64_t n) {
    q_fold(q, h, n);
}

#include "queues.h"

int main(void) {
    static _Alignas(64) uint64_t hashes[64];
    q_hash = hashes;
    for (int i = 0; i < 8; i++) {
        queue *q = &queues[i];
        q->last = &q->first;
        if (pthread_mutex_init(&q->lock, NULL) || pthread_cond_init(&q->filled, NULL) ||
            pthread_cond_init(&q->drained, NULL) || pthread_create(&q->thread, NULL, serve, q))
            abort();
    }
    q_run("thread");
    return bench_failed;
}
