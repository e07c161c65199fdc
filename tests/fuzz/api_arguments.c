/* api_arguments.c - arguments of the API fuzzer: numbers, texts, devices, handles and pointers. */
#include "api.h"
#include "kernels_ptx.h"

__thread void *null_out;

/* ---- the input ---- */

uint8_t byte(void) {
    return input.at < input.end ? *input.at++ : 0;
}

uint64_t number(int bytes) {
    uint64_t n = 0;
    for (int i = 0; i < bytes; i++)
        n = n << 8 | byte();
    return n;
}

unsigned pick(unsigned n) {
    return byte() % n;
}

int odd(void) {
    return (byte() & 15) == 15;
}

/* ---- numbers and texts ---- */

static const size_t small_sizes[] = { 0,   1,   2,    3,    4,    8,    16,    100,
                                      511, 512, 1024, 4095, 4096, 8192, 16384, 65536 };
static const size_t huge_sizes[] = { (size_t)1 << 47, (size_t)1 << 63, SIZE_MAX / 2,
                                     SIZE_MAX - 511,  SIZE_MAX - 1,    SIZE_MAX };
static const size_t middle_sizes[] = { 1 << 20,  (1 << 20) + 1, 2 << 20,         5 << 20,
                                       10 << 20, 20 << 20,      (20 << 20) + 1,  64 << 20,
                                       96 << 20, 97 << 20,      (size_t)1 << 31, (size_t)1 << 32 };

size_t any_size(void) {
    unsigned how = byte();
    if (how < 128)
        return PICK(small_sizes);
    if (how < 200)
        return (size_t)number(2);
    return how < 240 ? PICK(middle_sizes) : PICK(huge_sizes);
}

size_t small_size(void) {
    return PICK(small_sizes);
}

size_t host_size(void) {
    return odd() ? PICK(huge_sizes) : (size_t)number(2);
}

int any_int(void) {
    static const int numbers[] = {
        0, 1, -1, 2, 3, 4, 8, 31, 32, 64, 65, 255, 1000, INT_MAX, INT_MIN
    };
    return PICK(numbers);
}

int64_t any_long(void) {
    static const int64_t numbers[] = {
        0, 1, -1, 2, 3, -2, 4, 7, 9, 63, INT64_MAX, INT64_MIN, (int64_t)1 << 32, INT64_MAX - 1, 100
    };
    return PICK(numbers);
}

double any_double(void) {
    static const double numbers[] = {
        0,      1,   -1,   0.5,        2,    1e-300, 1e300, 1.0 / 0.0,
        -1e300, 100, -0.0, -1.0 / 0.0, 0.25, 1e10,   1e-7,  0.0 / 0.0
    };
    return PICK(numbers);
}

unsigned any_flags(void) {
    unsigned how = byte();
    return how < 240 ? how & 15 : how < 250 ? 1u << (how - 240) : (unsigned)number(4);
}

const char *lasting_text(void) {
    static const char *const texts[] = {
        "a",
        "",
        "label",
        "cpu",
        "cuda:1",
        "cpu:0",
        "host",
        " gpu:0 ",
        "float32",
        "warn",
        "preset:torch",
        "expandable_segments:True,max_split_size_mb:20",
        "preset:cupy,debug:2,poison:1",
        "guard_bytes:512,limit:50%",
        "reuse:always,statistics:current",
        "garbage_collection_threshold:0.5,roundup_power2_divisions:[256:1,512:2,>:4]",
        "allocated_bytes.all.current",
        "device gpu0..1\nsocket s\nlink gpu0 gpu1 nvlink\nlink gpu0..1 s pcie 20GB/s\n",
        "device a b c\nswitch w\nlink a b c w nvswitch\npeer a b off\nengines 2\n",
        "device a\nlink a",
        "/proc/self/status",
        "/dev/null",
        "/nonexistent/file",
        "a text that is longer than the buffers that functions write into: 0123456789 0123456789 "
        "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 "
        "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"
    };
    return PICK(texts);
}

const char *any_text(void) {
    static __thread char texts[8][40];
    static __thread unsigned next;
    unsigned how = byte();
    if (how < 24)
        return NULL;
    if (how < 192)
        return lasting_text();
    char *text = texts[next++ % 8];
    size_t n = pick(39);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)byte();
    text[n] = 0;
    return strstr(text, "(null") ? NULL : text; /* what the check looks for, before a bracket */
}

/* ---- devices ---- */

static int with_cuda(void) {
    static _Atomic int known; /* 1: no, 2: yes */
    if (!known) {
        const char *driver = getenv("DS_TEST_DRIVER");
        known = 1 + (driver && !strcmp(driver, "cuda"));
    }
    return known == 2;
}

ds_device good_device(void) {
    int n = byte();
    if (n & 2)
        return (ds_device){ 0, 0 };
    return with_cuda() && n < 224 ? ds_cuda(n & 1) : ds_cpu(n & 1);
}

ds_device any_device(void) {
    static const int32_t types[] = { 0, 1, 2, 12, 3, 13, -1, INT32_MAX };
    static const int32_t indices[] = { 0, 1, -1, 2, 99, INT32_MAX, INT32_MIN, 0 };
    if (byte() < 208)
        return good_device();
    int32_t type = PICK(types);
    return (ds_device){ type, PICK(indices) };
}

/* ---- handles ---- */

static struct {
    _Atomic uint64_t id[16];
    _Atomic unsigned next;
} handles[KINDS];

/* How many of a kind are in the table. */
static unsigned filled(enum handle_kind kind) {
    unsigned n = handles[kind].next;
    return n < 16 ? n : 16;
}

uint64_t any_handle(enum handle_kind kind) {
    unsigned how = byte(), n = filled(kind);
    uint64_t id = n ? handles[kind].id[how % n] : 0;
    if (how < 224) /* of the latest: one that lives, mostly */
        return how & 16 ? handles[kind].id[(handles[kind].next - 1) & 15] : id;
    if (how < 232)
        return 0;
    if (how < 240)
        return id ^ (uint64_t)1 << (byte() & 63);
    return how < 248 ? handles[pick(KINDS)].id[how & 15] : number(8);
}

void keep(enum handle_kind kind, uint64_t id) {
    handles[kind].id[handles[kind].next++ & 15] = id;
}

/* A zeroed device in one case of four, which leaves the input's bytes to the description. */
ds_stream good_stream(void) {
    unsigned how = byte(), n = filled(STREAM);
    ds_stream stream = { n ? handles[STREAM].id[how % n] : 0 };
    if (how >= 16 && stream.id)
        return stream;
    ds_stream_desc desc = { .device = good_device(),
                            .flags = how >> 6 & 1,
                            .label = lasting_text() };
    if (ds_stream_create(&desc, &stream) == DS_OK)
        keep_stream(stream);
    return stream;
}

/* ---- pointers ---- */

static struct {
    void *_Atomic at[16];
    _Atomic unsigned next;
} pointers[POINTER_KINDS];

/* The four are memory of cuda:0, cuda:1, cpu:0 and cpu:1; ordinary; pinned. */
enum { STEADY_ORDINARY = 4, STEADY_PINNED = 5, STEADY_KINDS };

static char ordinary[2][STEADY] __attribute__((aligned(4096)));
static void *_Atomic steady[2][STEADY_KINDS];
static pthread_mutex_t steady_lock = PTHREAD_MUTEX_INITIALIZER;

void forget_steady(void) {
    memset((void *)steady, 0, sizeof steady);
}

void forget_arguments(void) {
    memset((void *)handles, 0, sizeof handles);
    memset((void *)pointers, 0, sizeof pointers);
    forget_steady();
}

/* The memory for output (0) or input (1); ordinary memory while no other can be made. */
static void *steady_of(int in, int kind) {
    void *made = NULL;
    ds_capture_mode mode = DS_CAPTURE_RELAXED; /* open captures stay as they are */
    if (kind == STEADY_ORDINARY)
        return ordinary[in];
    pthread_mutex_lock(&steady_lock);
    if (!steady[in][kind] && ds_capture_exchange_mode(&mode) == DS_OK) {
        ds_result r =
            kind == STEADY_PINNED
                ? ds_pinned_alloc(STEADY, &made)
                : ds_device_alloc(kind < 2 ? ds_cuda(kind) : ds_cpu(kind - 2), STEADY, &made);
        if (r == DS_OK)
            steady[in][kind] = made;
        DS_IGNORE(ds_capture_exchange_mode(&mode));
    }
    made = steady[in][kind];
    pthread_mutex_unlock(&steady_lock);
    return made ? made : ordinary[in];
}

static int steady_kind(void) {
    unsigned how = byte();
    if (how >= 128)
        return how & 1 ? STEADY_ORDINARY : STEADY_PINNED;
    return (with_cuda() && how < 112 ? 0 : 2) + (int)(how & 1);
}

void *steady_out(void) {
    return steady_of(0, steady_kind());
}

void *steady_in(void) {
    return steady_of(1, steady_kind());
}

uint64_t *input_word(void) {
    return (uint64_t *)(void *)((char *)steady_of(1, STEADY_PINNED) + STEADY - 8);
}

void *steady_odd(void) {
    return (char *)steady_of(0, steady_kind()) + 1 + 2 * pick(8);
}

void *reachable_out(void) {
    char *out = steady_of(0, STEADY_PINNED);
    return out == ordinary[0] ? NULL : out + pick(128) * 128;
}

static void *span(int in, size_t *out_size, int aligned) {
    int kind = steady_kind();
    char *at = steady_of(in, kind);
    size_t offset = number(2) % STEADY, left;
    if (aligned)
        offset &= ~(size_t)15;
    left = STEADY - offset;
    *out_size = odd() && at != ordinary[in] ? any_size() : number(2) % (left + 1);
    return odd() ? NULL : at + offset;
}

void *span_out(size_t *out_size, int aligned) {
    return span(0, out_size, aligned);
}

void *span_in(size_t *out_size) {
    return span(1, out_size, 0);
}

void keep_pointer(enum pointer_kind kind, void *ptr) {
    pointers[kind].at[pointers[kind].next++ & 15] = ptr;
}

void *any_pointer(enum pointer_kind kind) {
    unsigned how = byte();
    char *at = pointers[kind].at[how & 15];
    if (how < 208)
        return how & 16 ? pointers[kind].at[(pointers[kind].next - 1) & 15] : at;
    if (how < 216)
        return (void *)((uintptr_t)at + PICK(small_sizes));
    if (how < 224)
        return (void *)((uintptr_t)steady_of(how & 1, steady_kind()) + pick(2) * 256);
    if (how < 232)
        return pointers[pick(POINTER_KINDS)].at[how & 15];
    if (how < 240)
        return how & 1 ? (void *)&input : (void *)ordinary[0];
    return how < 248 ? NULL : (void *)(uintptr_t)number(8);
}

/* Blocks of the caches leave the table: tensors and collectives may get their address next. */
void *ending_pointer(enum pointer_kind kind) {
    unsigned how = byte();
    void *ptr = NULL;
    if (how < 224 || kind == BLOCK || kind == PINNED_MEMORY)
        return atomic_exchange(&pointers[kind].at[(pointers[kind].next - 1 - (how & 7)) & 15],
                               NULL);
    ptr = any_pointer(kind);
    for (int in = 0; in < 2; in++)
        for (int k = 0; k < STEADY_KINDS; k++)
            if (ptr == steady[in][k])
                return NULL;
    return ptr;
}

/* ---- kernels ---- */

static int run_kernel(size_t first, size_t count, const void *args) {
    const kernel_args *a = args;
    if (count == 0)
        die("a kernel without items");
    if (first == 0)
        __atomic_store_n(a->out, a->value, __ATOMIC_RELAXED);
    return 0;
}

ds_kernel sane_kernel(void) {
    static const ds_param params[] = { { DS_PARAM_WRITE, offsetof(kernel_args, out), 8 },
                                       { DS_PARAM_VALUE, offsetof(kernel_args, value), 8 } };
    ds_kernel_desc desc = { .name = "store",
                            .cpu_fn = run_kernel,
                            .args_size = sizeof(kernel_args),
                            .params = params,
                            .param_count = 2,
                            .cuda = { .image = ptx_store, .entry = "store", .block = 32 } };
    ds_kernel kernel = any_kernel();
    if (byte() >= 32 && filled(KERNEL))
        return kernel;
    if (ds_kernel_create(&desc, &kernel) == DS_OK)
        keep_kernel(kernel);
    return kernel;
}

/* ---- a furnished start ---- */

static void furnish_graph(void) {
    ds_node_desc desc = { .kind = DS_NODE_HOST,
                          .u.host = { .fn = payload_run, .user = NULL, .dtor_fn = NULL } };
    ds_graph_exec_desc exec_desc = { .flags = DS_GRAPH_REPLACE_POINTERS };
    ds_graph_node node;
    ds_graph_exec exec;
    ds_graph graph;
    if (ds_graph_create(NULL, &graph) != DS_OK)
        return;
    keep_graph(graph);
    if (ds_graph_add(graph, &desc, NULL, 0, &node) == DS_OK)
        keep_graph_node(node);
    desc = (ds_node_desc){ .kind = DS_NODE_COPY };
    desc.u.copy =
        (ds_copy_node){ .dst = steady_out(), .src = steady_in(), .width = 64, .height = 1 };
    if (ds_graph_add(graph, &desc, &node, 1, &node) == DS_OK)
        keep_graph_node(node);
    if (ds_graph_instantiate(graph, &exec_desc, &exec) == DS_OK)
        keep_graph_exec(exec);
}

void furnish(void) {
    ds_stream stream;
    ds_event event;
    ds_pool pool;
    ds_rng rng;
    void *block;
    for (unsigned i = 0; i < 5; i++) {
        ds_device device = with_cuda() ? ds_cuda(i & 1) : ds_cpu(i & 1);
        ds_stream_desc desc = { .device = device, .flags = i >> 1 & 1 };
        if (ds_stream_create(&desc, &stream) == DS_OK)
            keep_stream(stream);
        if (ds_event_create(i < 2 ? 1 : i, "event", &event) == DS_OK)
            keep_event(event);
        DS_IGNORE(ds_event_record(event, stream));
    }
    furnish_graph();
    (void)sane_kernel();
    if (ds_pool_create(&(ds_pool_desc){ .shareable = 1 }, &pool) == DS_OK) {
        ds_mem_request request = { .size = 1000, .stream = stream, .pool = pool };
        keep_pool(pool);
        if (ds_mem_alloc_with(&request, &block) == DS_OK)
            keep_pointer(BLOCK, block);
    }
    if (ds_rng_create(NULL, &rng) == DS_OK)
        keep_rng(rng);
}
