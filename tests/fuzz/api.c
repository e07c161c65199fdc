/* api.c - fuzzer of the public functions: threads, initialisation, and the check of results.

   api.h describes an input. The first bytes choose the options of ds_init. Steps run on a thread
   that is new for each input, and on two more, while the first one waits or at the same time.
   ds_shutdown ends an input and may stand in its middle. After it, every payload has ended, the
   library's bookkeeping memory is freed, and no function knows an old handle.

   FUZZ_API_TRACE=1: each call is written to standard error with its result. FUZZ_API_TABLE=FILE: at
   exit, the number of calls and of failures of each function are written there. */
#include "api.h"
#include <sanitizer/asan_interface.h>
#include <stdarg.h>
#include <unistd.h>

__thread reader input;
_Atomic long payloads_given, payloads_ended;

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "api fuzzer: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

/* ---- results ---- */

static _Atomic(call_site *) sites;
static int trace;
static __thread char *last_error; /* the buffer of ds_error_get_last(), emptied before each call */

void before_call(call_site *site) {
    if (!atomic_exchange(&site->known, 1)) {
        site->next = atomic_load(&sites);
        while (!atomic_compare_exchange_weak(&sites, &site->next, site)) {
        }
    }
    site->calls++;
    if (!last_error)
        last_error = (char *)(uintptr_t)ds_error_get_last();
    last_error[0] = 0;
}

/* Stops unless the sentence is "FILE:LINE: FUNCTION: " and more. The file is this one's, since the
   buffer was empty; a call may name a function that it calls in turn. */
static void check_sentence(const call_site *site, ds_result result) {
    const char *text = ds_error_get_last(), *at = text;
    size_t n = strlen(site->file);
    if (!text[0])
        die("%s is %s without a sentence", site->call, ds_result_get_name(result));
    if (!strncmp(at, site->file, n) && at[n] == ':')
        at += n + 1 + strspn(at + n + 1, "0123456789");
    if (strncmp(at, ": ds_", 5) != 0)
        die("%s is %s, and the sentence is of another call: %s", site->call,
            ds_result_get_name(result), text);
    at = strchr(at + 5, ':');
    if (!at || strlen(at) < 7)
        die("%s is %s, and the sentence says nothing: %s", site->call, ds_result_get_name(result),
            text);
    if (strstr(text, "(null)"))
        die("%s: a sentence with a NULL text: %s", site->call, text);
}

ds_result after_call(call_site *site, ds_result result) {
    const char *name = ds_result_get_name(result);
    if (trace)
        fprintf(stderr, "%s = %s%s%s\n", site->call, result <= 1 ? name : "a level",
                result < 0 ? ": " : "", result < 0 ? ds_error_get_last() : "");
    if (result >= 0)
        return result;
    site->failures++;
    if (!strcmp(name, "DS_UNKNOWN_RESULT"))
        die("%s is %d, which is no result", site->call, (int)result);
    check_sentence(site, result);
    return result;
}

void check_zero(call_site *site, ds_result result, const void *out, size_t size) {
    static const char zero[1024];
    const char *at = out;
    for (; result < 0 && size; size -= size < sizeof zero ? size : sizeof zero) {
        if (memcmp(at, zero, size < sizeof zero ? size : sizeof zero) != 0)
            die("%s is %s, and the output is not zero", site->call, ds_result_get_name(result));
        at += sizeof zero;
    }
}

/* Writes "FUNCTION CALLS FAILURES", a line for each place that calls one. */
static void write_table(void) {
    FILE *file = fopen(getenv("FUZZ_API_TABLE"), "w");
    for (call_site *s = atomic_load(&sites); file && s; s = s->next)
        fprintf(file, "%.*s %lu %lu\n", (int)strcspn(s->call, "("), s->call, s->calls, s->failures);
    if (file)
        fclose(file);
}

/* ---- payloads ---- */

void payload_run(void *user) {
    if (user && *(char *)user != 'p')
        die("a host function has another argument");
}

void payload_end(void *user) {
    if (*(char *)user != 'p')
        die("a payload ends twice, or a destructor has another argument");
    *(char *)user = 'e';
    free(user);
    payloads_ended++;
}

void *new_payload(void) {
    char *payload = malloc(1);
    if (!payload)
        abort();
    *payload = 'p';
    payloads_given++;
    return payload;
}

int write_text(const char *text, size_t size, void *user) {
    int *left = user;
    if (!text && size)
        die("a writer got no text");
    return left && (*left)-- <= 0;
}

void *any_writer_user(void) {
    static __thread int left;
    left = byte();
    return odd() ? &left : NULL;
}

/* ---- steps ---- */

static const step_group session_steps; /* below */

void run_steps(void) {
    static const step_group *const groups[] = {
        &device_steps, &stream_steps, &stream_steps, &graph_steps, &graph_steps,   &memory_steps,
        &memory_steps, &pool_steps,   &tensor_steps, &comm_steps,  &session_steps, &rng_steps,
        &check_steps,  &trace_steps,  &ranks_steps,  &ranks_steps
    };
    while (input.at < input.end) {
        const step_group *group = PICK(groups);
        unsigned n = byte();
        group->step[n % group->count]();
    }
}

void run_some_steps(void) {
    reader all = input;
    size_t left = (size_t)(all.end - all.at);
    size_t some = pick(48);
    input.end = all.at + (some < left ? some : left);
    run_steps();
    input = (reader){ input.end, all.end };
}

/* ---- threads ---- */

/* A thread that runs parts of the input. */
typedef struct helper {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    reader job;
    int started, busy, quit;
} helper;

static helper helpers[2] = {
    { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER },
    { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }
};
static __thread int depth;        /* of steps inside of steps; helpers begin with 1 */
static _Atomic int running_aside; /* helpers that run beside the first thread */

static void *helper_main(void *arg) {
    helper *h = arg;
    depth = 1;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->busy && !h->quit)
            pthread_cond_wait(&h->changed, &h->lock);
        if (h->quit)
            break;
        input = h->job;
        pthread_mutex_unlock(&h->lock);
        run_steps();
        pthread_mutex_lock(&h->lock);
        h->busy = 0;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void helper_wait(helper *h) {
    pthread_mutex_lock(&h->lock);
    while (h->busy)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static void helpers_wait(void) {
    for (size_t i = 0; i < COUNT(helpers); i++)
        helper_wait(&helpers[i]);
    running_aside = 0;
}

static void helper_end(helper *h) {
    if (!h->started)
        return;
    helper_wait(h);
    pthread_mutex_lock(&h->lock);
    h->quit = 1;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    h->started = h->quit = 0;
}

/* Runs the next bytes of the input on another thread. */
static void on_helper(int aside) {
    helper *h = &helpers[pick(2)];
    size_t size = byte(), left = (size_t)(input.end - input.at);
    if (depth)
        return;
    if (size > left)
        size = left;
    helper_wait(h);
    if (!h->started && pthread_create(&h->thread, NULL, helper_main, h) != 0)
        abort();
    h->started = 1;
    pthread_mutex_lock(&h->lock);
    h->job = (reader){ input.at, input.at + size };
    input.at += size;
    if (aside)
        running_aside = 1;
    h->busy = 1;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (!aside)
        helper_wait(h);
}

int alone(void) {
    return !running_aside;
}

int quiesce(void) {
    int all = alone();
    for (int i = 0; i < 2 && all; i++) {
        all &= ds_device_synchronize(ds_cpu(i)) == DS_OK;
        if (ds_backend_is_available(DS_DEVICE_CUDA))
            all &= ds_device_synchronize(ds_cuda(i)) == DS_OK;
    }
    return all;
}

int may_capture(ds_stream stream) {
    ds_capture_status status;
    return ds_capture_get_status(stream, &status) != DS_OK || status != DS_CAPTURE_NONE;
}

/* ---- initialisation and shutdown ---- */

/* A block of the library's own memory. */
typedef union block {
    struct {
        union block *next, *prev;
    };

    max_align_t bytes[2];
} block;

static block blocks = { .next = &blocks, .prev = &blocks };
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static int cuda_there;

static void *keep_alloc(size_t size, void *user) {
    block *b = size < SIZE_MAX - sizeof *b ? malloc(sizeof *b + size) : NULL;
    (void)user;
    if (!b)
        return NULL;
    pthread_mutex_lock(&blocks_lock);
    b->next = &blocks;
    b->prev = blocks.prev;
    b->prev->next = b->next->prev = b;
    pthread_mutex_unlock(&blocks_lock);
    return b + 1;
}

static void keep_free(void *p, void *user) {
    block *b = p;
    (void)user;
    if (!b--)
        return;
    pthread_mutex_lock(&blocks_lock);
    b->prev->next = b->next;
    b->next->prev = b->prev;
    pthread_mutex_unlock(&blocks_lock);
    free(b);
}

/* Fails if the library has not freed its own memory. Prints where the blocks were allocated. */
static void expect_no_blocks(void) {
    int left = 0;
    for (block *b = blocks.next; b != &blocks; b = b->next, left++)
        if (left < 3)
            __asan_describe_address(b);
    if (left)
        die("%d blocks of the library's own memory are left", left);
}

/* A helper began a capture on its per-thread stream, which CUDA keeps open over ds_shutdown. */
static atomic_int capture_left;

static void take_log(const ds_log_item *item, void *user) {
    (void)user;
    if (!item->text || !item->text[0])
        die("a log item without a text");
    if (strstr(item->text, "remains open in CUDA"))
        capture_left = 1;
}

static const char *any_fault(char *text, size_t size) {
    static const char *const entries[] = { "*",
                                           "submit",
                                           "memory_alloc",
                                           "stream_create",
                                           "event_create",
                                           "capture_begin",
                                           "capture_end",
                                           "graph_instantiate",
                                           "graph_add",
                                           "space_map",
                                           "host_alloc",
                                           "kernel_load",
                                           "run_together",
                                           "nothing" };
    const char *entry = PICK(entries);
    snprintf(text, size, "%s:%d", entry, odd() ? 0 : 1 + byte());
    return text;
}

static void start(void) {
    static const char *const layers[] = { "fault", "", "none", "fault,fault" };
    static const char *const checks[] = { "quiet",
                                          "quiet,threads",
                                          "possible,output=/dev/null",
                                          "json,possible,output=/dev/null",
                                          "memory=1,quiet",
                                          "suppress=/dev/null,quiet",
                                          "exit=0",
                                          "suppress=/dev/null,nothing" };
    static const unsigned char peers[4] = { 1, 0, 1, 1 };
    char fault[64];
    unsigned how = byte();
    ds_cpu_desc cpu = { .devices = 2, .workers = 2, .memory_limit = 96u << 20 };
    ds_init_desc desc = { .cpu = &cpu, .log_fn = take_log };
    if (how & 1)
        desc.allocator = (ds_allocator){ keep_alloc, keep_free, NULL };
    if (how & 2)
        desc.flags = DS_INIT_PER_THREAD_DEFAULT_STREAM;
    if ((how & 12) == 12) {
        desc.layers = odd() ? PICK(layers) : "fault";
        desc.fault = any_fault(fault, sizeof fault);
    }
    if ((how & 48) == 48)
        cpu.flags = byte() & 7;
    if ((how & 0xC0) == 0xC0)
        cpu.peer_access = peers;
    if (how == 0x10)
        cpu.seed = number(2);
    if (how == 0x20)
        cpu.devices = any_int();
    if (how == 0x30)
        cpu.workers = (int)pick(4);
    if (how == 0x40)
        desc.flags = any_flags();
    if (how == 0x50)
        desc.log_level = (ds_log_level)any_int();
    if (how == 0x60)
        desc.allocator.alloc_fn = keep_alloc;
    if (byte() < 64)
        desc.check = PICK(checks);
    if ((byte() & 3) == 0)
        desc.trace = odd() ? "ring=1" : "ring=256";
    if (CALL(ds_init(&desc)) < 0) {
        desc = (ds_init_desc){ .cpu = &cpu, .log_fn = take_log };
        cpu = (ds_cpu_desc){ .devices = 2, .workers = 2, .memory_limit = 96u << 20 };
        if (CALL(ds_init(&desc)) < 0)
            die("devstream does not start: %s", ds_error_get_last());
    }
    cuda_there = ds_backend_is_available(DS_DEVICE_CUDA);
    if (byte() < 224) {
        furnish();
        furnish_tensors();
        furnish_resources();
        furnish_ranks();
    }
}

static void finish(void) {
    static const ds_result results[] = { DS_OK,          DS_ERR_FAILED,  DS_ERR_DRIVER,
                                         DS_ERR_TIMEOUT, DS_ERR_ABORTED, DS_ERR_MISMATCH };
    int known = 0;
    helpers_wait();
    forget_topologies();
    ds_result result = CALL(ds_shutdown());
    for (size_t i = 0; i < COUNT(results); i++)
        known |= result == results[i];
    /* CUDA does not wait for a device meanwhile. */
    known |= result == DS_ERR_CAPTURE_UNSUPPORTED && capture_left;
    if (!known)
        die("ds_shutdown is %s: %s", ds_result_get_name(result), ds_error_get_last());
    if (ds_is_initialized())
        die("devstream runs after ds_shutdown");
    /* CUDA ends the payloads of graphs on a thread of its own. */
    for (int i = 0; payloads_ended != payloads_given && i < 10000; i++)
        usleep(1000);
    if (payloads_ended != payloads_given)
        die("%ld payloads were given, %ld have ended", payloads_given, payloads_ended);
    /* What CUDA has not ended in a tenth of a second is not freed. */
    if (!cuda_there)
        expect_no_blocks();
    forget_steady();
    forget_tensors();
}

static void step_restart(void) {
    if (depth)
        return;
    finish();
    start();
}

static void step_init_again(void) {
    ds_init_desc desc = { .log_fn = take_log };
    if (depth)
        return;
    helpers_wait();
    if (CALL(ds_init(odd() ? NULL : &desc)) >= 0)
        quiesce();
}

static void step_on_helper(void) {
    on_helper(0);
}

static void step_aside(void) {
    on_helper(1);
}

static void step_helpers_wait(void) {
    if (!depth)
        helpers_wait();
}

static void step_helper_end(void) {
    unsigned n = pick(2);
    if (!depth)
        helper_end(&helpers[n]);
}

static const step_fn session[] = { step_on_helper,    step_on_helper,  step_aside,
                                   step_helpers_wait, step_helper_end, step_restart,
                                   step_init_again };
static const step_group session_steps = { session, COUNT(session) };

/* ---- the fuzzer ---- */

static void *first_thread(void *arg) {
    input = *(reader *)arg;
    depth = 0;
    start();
    run_steps();
    finish();
    for (size_t i = 0; i < COUNT(helpers); i++)
        helper_end(&helpers[i]);
    capture_left = 0; /* it ended with its thread */
    return NULL;
}

const char *__asan_default_options(void);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An allocation of more than any machine has must be refused with a sentence. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=1024";
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    setenv("DEVSTREAM_NVML", "none", 1);
    setenv("STANDIN_DEVICES", "2", 0);
    setenv("STANDIN_MEMORY", "100663296", 0);
    trace = getenv("FUZZ_API_TRACE") != NULL;
    if (getenv("FUZZ_API_TABLE"))
        atexit(write_table);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    reader whole = { data, data + size };
    pthread_t thread;
    payloads_given = payloads_ended = 0;
    if (pthread_create(&thread, NULL, first_thread, &whole) != 0)
        abort();
    pthread_join(thread, NULL);
    forget_arguments();
    return 0;
}
