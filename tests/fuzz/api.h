/* api.h - shared parts of the API fuzzer: the reader of the input, arguments of every kind, tables
   of handles and pointers, and the check of results.

   An input is a program: each step is two bytes that select a public function, and the bytes of its
   arguments. Handles are taken from tables with the last 16 of a kind, where destroyed ones stay;
   a few of a hundred are zero, invented, or of another kind. When the input ends, all bytes are 0.

   Only arguments that the documentation calls an error, or that it allows, are passed. Memory that
   work reads or writes is steady memory: it stays until ds_shutdown, and it is large enough, or an
   allocation of devstream whose end devstream knows. */
#ifndef FUZZ_API_H
#define FUZZ_API_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
#include "devstream_check.h"
#include "devstream_trace.h"
#include "devstream_ranks.h"

/* ---- the input ---- */

typedef struct reader {
    const uint8_t *at, *end;
} reader;

/* The program of the calling thread. */
extern __thread reader input;

uint8_t byte(void);
uint64_t number(int bytes);
/* 0 to n-1; n is at most 256. */
unsigned pick(unsigned n);
/* 1 once in 16 times. */
int odd(void);
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define PICK(array) ((array)[pick((unsigned)COUNT(array))])

/* ---- steps ---- */

typedef void (*step_fn)(void);

typedef struct step_group {
    const step_fn *step;
    size_t count;
} step_group;

extern const step_group device_steps, stream_steps, graph_steps, memory_steps, pool_steps,
    tensor_steps, comm_steps, rng_steps, check_steps, trace_steps, ranks_steps;

/* Runs steps until the thread's input ends. */
void run_steps(void);
/* Runs the next few steps of the thread's input, inside of a callback that may call devstream. */
void run_some_steps(void);

/* 1 on the first thread while no other runs: only then may things be ended that work of other
   streams uses. */
int alone(void);
/* Waits for all work of all devices; 0 where that is refused. */
int quiesce(void);
/* 1 unless it is certain that the stream does not capture. */
int may_capture(ds_stream stream);

/* ---- results ---- */

typedef struct call_site {
    const char *call; /* text of the call */
    const char *file;
    int line;
    struct call_site *next;
    _Atomic int known;
    _Atomic unsigned long calls, failures;
} call_site;

void before_call(call_site *site);
/* Aborts with a sentence if the result is none of devstream, or negative without a sentence of its
   own in ds_error_get_last(). */
ds_result after_call(call_site *site, ds_result result);
/* A failed call leaves zeros in its outputs. */
void check_zero(call_site *site, ds_result result, const void *out, size_t size);
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

#define SITE_(call_text) \
    static call_site site_ = { .call = call_text, .file = __FILE__, .line = __LINE__ }
/* A call that gives a result or a level; negative means an error. */
#define CALL(call)                             \
    __extension__({                            \
        SITE_(#call);                          \
        before_call(&site_);                   \
        after_call(&site_, (ds_result)(call)); \
    })
/* The same with an output, which is an lvalue. The call may be given NULL instead of its
   address: MAYBE(out). */
#define CALL_OUT(call, out)                                   \
    __extension__({                                           \
        SITE_(#call);                                         \
        ds_result result_;                                    \
        memset(&(out), 0xA5, sizeof(out));                    \
        null_out = NULL;                                      \
        before_call(&site_);                                  \
        result_ = after_call(&site_, (call));                 \
        if (!null_out)                                        \
            check_zero(&site_, result_, &(out), sizeof(out)); \
        result_;                                              \
    })
/* A call without a result. */
#define CALL_VOID(call)      \
    do {                     \
        SITE_(#call);        \
        before_call(&site_); \
        call;                \
    } while (0)
/* The address of an output, or NULL once in 16 times. */
#define MAYBE(out) (odd() ? (null_out = &(out), (void *)NULL) : (void *)&(out))
extern __thread void *null_out;

/* ---- arguments ---- */

size_t any_size(void);
/* Small, or more than any machine has. */
size_t host_size(void);
size_t small_size(void);
int any_int(void);
int64_t any_long(void);
double any_double(void);
unsigned any_flags(void);
/* NULL, one of a few texts, or bytes of the input; valid for the thread's next 8. */
const char *any_text(void);
/* Never NULL, and valid for ever. */
const char *lasting_text(void);
ds_device any_device(void);
/* A device that exists, mostly. */
ds_device good_device(void);

enum handle_kind {
    STREAM,
    EVENT,
    GRAPH,
    NODE,
    EXEC,
    KERNEL,
    POOL,
    RNG,
    DOMAIN,
    RANGE,
    RANKS,
    KINDS
};

uint64_t any_handle(enum handle_kind kind);
void keep(enum handle_kind kind, uint64_t id);

#define HANDLE_(type, kind)                            \
    static inline ds_##type any_##type(void) {         \
        return (ds_##type){ any_handle(kind) };        \
    }                                                  \
    static inline void keep_##type(ds_##type handle) { \
        keep(kind, handle.id);                         \
    }
HANDLE_(stream, STREAM)
HANDLE_(event, EVENT)
HANDLE_(graph, GRAPH)
HANDLE_(graph_node, NODE)
HANDLE_(graph_exec, EXEC)
HANDLE_(kernel, KERNEL)
HANDLE_(pool, POOL)
HANDLE_(rng, RNG)
HANDLE_(domain, DOMAIN)
HANDLE_(range, RANGE)
HANDLE_(ranks, RANKS)

/* Makes a handle, mostly if there is none yet. */
ds_stream good_stream(void);

enum pointer_kind { DEVICE_MEMORY, HOST_MEMORY, PINNED_MEMORY, BLOCK, POINTER_KINDS };

/* A pointer from the table of this kind, or from another one, into steady memory, to the stack, or
   an invented one: for functions that only compare it. */
void *any_pointer(enum pointer_kind kind);
void keep_pointer(enum pointer_kind kind, void *ptr);
/* The same for a function that ends the allocation: never the start of steady memory. */
void *ending_pointer(enum pointer_kind kind);

#define STEADY ((size_t)16384)

/* A pinned word that no other work writes. */
uint64_t *input_word(void);
/* An address that is no multiple of 4. */
void *steady_odd(void);
/* What is written, or read, by work: STEADY bytes, aligned to 512. */
void *steady_out(void);
void *steady_in(void);
/* 128 bytes that kernels of all devices reach; NULL: there is no memory. */
void *reachable_out(void);
/* Part of it; or more than there is, where devstream knows its end. */
void *span_out(size_t *out_size, int aligned);
void *span_in(size_t *out_size);
void forget_steady(void);
void forget_arguments(void);
void forget_tensors(void);
void forget_topologies(void);

/* A kernel with a form for both drivers, whose arguments are `kernel_args`. */
ds_kernel sane_kernel(void);

typedef struct kernel_args {
    uint64_t *out;
    uint64_t value;
} kernel_args;

/* A tensor of the library; once a graph may use it, it is not freed. */
typedef struct entry {
    ds_tensor *tensor;
    int kept;
} entry;

/* Tensors, streams and options of a collective. */
typedef struct operands {
    entry *entries[8];
    const ds_tensor *tensors[8];
    ds_tensor *made[8];
    ds_stream streams[4];
    ds_device devices[4];
    ds_comm_options options;
    ds_ranks_options more;
    ds_ranks_nccl how;
    int64_t sizes[2][16]; /* of up to four devices in a group of up to four */
    size_t count;
    int captures; /* 1: a stream of the call may capture */
} operands;

/* Chooses the operands of a call. Returns 0 if there are no tensors. */
int get_operands(operands *o);
/* Keeps what the call has made, and what a graph may use now. */
void put_operands(operands *o, ds_result result);
/* Sets a process group in the options. */
void get_ranks(operands *o);

/* Makes a few objects of each kind. */
void furnish(void);
void furnish_tensors(void);
void furnish_resources(void);
void furnish_ranks(void);

/* ---- payloads ---- */

/* Every payload that is handed over must end once. */
extern _Atomic long payloads_given, payloads_ended;
void payload_run(void *user);
void payload_end(void *user);
void *new_payload(void);
/* Writers that take everything, or stop after some calls. */
int write_text(const char *text, size_t size, void *user);
void *any_writer_user(void);

#endif
