/* counted.h - counts atomic operations of a program. Include it before devstream's implementation,
   and compile with gcc, whose __atomic builtins accept _Atomic objects.

   For the calling thread it counts the instructions that lock the bus or the cache line: exchanges,
   additions, compare-and-swaps, and stores and fences with the order of all threads. A line of 64
   bytes counts as transferred when an atomic store or read-modify-write of a thread finds another
   thread as its last writer. Plain stores, such as those of a queued operation, are not seen.
   Loads are not counted: the transfer is charged to the next writer. */
#ifndef BENCH_COUNTED_H_INCLUDED
#define BENCH_COUNTED_H_INCLUDED
#include <stdatomic.h>
#include <stdint.h>

enum { COUNTED_LINES = 1 << 16, COUNTED_THREADS = 1024 };

typedef struct counted {
    uint64_t locked, transferred, global; /* global: transferred lines of one address range */
    char pad[40];
} counted;

/* line -> its last writer; lines whose hashes are equal share an entry, which is rare */
static uint32_t counted_writer[COUNTED_LINES];
static counted counted_of[COUNTED_THREADS]; /* the threads are numbered from 1 on */
static uint32_t counted_threads;
static __thread uint32_t counted_thread;
static const char *counted_from, *counted_to; /* the range of `global` */

/* Returns the counts of the calling thread. */
static counted *counted_mine(void) {
    if (!counted_thread)
        counted_thread = __atomic_add_fetch(&counted_threads, 1, __ATOMIC_RELAXED);
    return &counted_of[counted_thread % COUNTED_THREADS];
}

__attribute__((unused)) static void counted_store(const volatile void *p) {
    uintptr_t line = (uintptr_t)p >> 6;
    uint32_t *writer = &counted_writer[(line ^ line >> 16 ^ line >> 32) % COUNTED_LINES];
    counted *mine = counted_mine();
    if (__atomic_load_n(writer, __ATOMIC_RELAXED) == counted_thread)
        return;
    __atomic_store_n(writer, counted_thread, __ATOMIC_RELAXED);
    mine->transferred++;
    mine->global += (const char *)p >= counted_from && (const char *)p < counted_to;
}

__attribute__((unused)) static void counted_lock(const volatile void *p) {
    counted_mine()->locked++;
    counted_store(p);
}

#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_exchange_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_or
#undef atomic_fetch_and
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_weak_explicit
#undef atomic_thread_fence
#define COUNTED_RMW(p, operation)    \
    __extension__({                  \
        __auto_type counted_p = (p); \
        counted_lock(counted_p);     \
        operation;                   \
    })
#define atomic_store_explicit(p, v, order)               \
    __extension__({                                      \
        __auto_type counted_p = (p);                     \
        if ((order) == memory_order_seq_cst)             \
            counted_lock(counted_p);                     \
        else                                             \
            counted_store(counted_p);                    \
        __typeof__((void)0, *counted_p) counted_v = (v); \
        __atomic_store(counted_p, &counted_v, (order));  \
    })
#define atomic_store(p, v) atomic_store_explicit(p, v, memory_order_seq_cst)
#define atomic_exchange_explicit(p, v, order) \
    COUNTED_RMW(p, __atomic_exchange_n(counted_p, (v), (order)))
#define atomic_exchange(p, v) atomic_exchange_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_add_explicit(p, v, order) \
    COUNTED_RMW(p, __atomic_fetch_add(counted_p, (v), (order)))
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, order) \
    COUNTED_RMW(p, __atomic_fetch_sub(counted_p, (v), (order)))
#define atomic_fetch_sub(p, v) atomic_fetch_sub_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_or(p, v) COUNTED_RMW(p, __atomic_fetch_or(counted_p, (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_and(p, v) COUNTED_RMW(p, __atomic_fetch_and(counted_p, (v), __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_strong_explicit(p, e, v, yes, no) \
    COUNTED_RMW(p, __atomic_compare_exchange_n(counted_p, (e), (v), 0, (yes), (no)))
#define atomic_compare_exchange_strong(p, e, v) \
    atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_compare_exchange_weak_explicit(p, e, v, yes, no) \
    COUNTED_RMW(p, __atomic_compare_exchange_n(counted_p, (e), (v), 1, (yes), (no)))
#define atomic_compare_exchange_weak(p, e, v) \
    atomic_compare_exchange_weak_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_thread_fence(order)                                               \
    ((order) == memory_order_seq_cst ? (void)counted_mine()->locked++ : (void)0, \
     __atomic_thread_fence(order))

#endif
