/* Handles of other processes as a fuzzer changes them: events and memory of a live process, whose
   bytes are kept, changed or invented. The other process is a child that is forked before
   devstream starts. DS_TEST_DRIVER says which driver is tested.

   An import must be refused with a sentence, or give an address in a block of the other process,
   all of whose bytes are FILL; everything else ends the program. */
#include "devstream_alloc.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCKS = 3, EVENTS = 2, KEPT = 6, FILL = 0x5a, SIZE = 12288 };

/* What the other process does when it gets one of these bytes. */
enum { TELL, REPLACE_BLOCK, REPLACE_EVENT, RECORD, COLLECT, ORDERS };

typedef struct handles {
    ds_ipc_mem_handle block[BLOCKS];
    ds_ipc_event_handle event[EVENTS];
} handles;

static int is_cuda(void) {
    const char *driver = getenv("DS_TEST_DRIVER");
    return driver && strcmp(driver, "cuda") == 0;
}

static ds_device device_under_test(void) {
    return is_cuda() ? ds_cuda(0) : ds_cpu(0);
}

static void stop(const char *what) {
    fprintf(stderr, "%d: %s: %s\n", (int)getpid(), what, ds_error_get_last());
    abort();
}

#define MUST(call)       \
    do {                 \
        if ((call) < 0)  \
            stop(#call); \
    } while (0)

/* ---- the other process ---- */

static struct {
    ds_stream stream;
    ds_pool pool;
    void *block[BLOCKS];
    ds_event event[EVENTS];
    handles h;
} there;

static void make_block(int i) {
    ds_mem_request request = { .size = SIZE, .stream = there.stream, .pool = there.pool };
    MUST(ds_mem_alloc_with(&request, &there.block[i]));
    MUST(ds_fill(there.block[i], FILL, 1, SIZE, there.stream));
    MUST(ds_mem_export((char *)there.block[i] + 100 * i, &there.h.block[i]));
}

static void make_event(int i) {
    MUST(ds_event_create(DS_EVENT_INTERPROCESS, NULL, &there.event[i]));
    MUST(ds_event_record(there.event[i], there.stream));
    MUST(ds_event_export(there.event[i], &there.h.event[i]));
}

static void obey(int fd) {
    unsigned char order[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MUST(ds_stream_create(&(ds_stream_desc){ .device = device_under_test() }, &there.stream));
    MUST(ds_pool_create(&(ds_pool_desc){ .device = device_under_test(), .shareable = 1 },
                        &there.pool));
    for (int i = 0; i < BLOCKS; i++)
        make_block(i);
    for (int i = 0; i < EVENTS; i++)
        make_event(i);
    while (recv(fd, order, 2, 0) == 2) {
        switch (order[0]) {
        case REPLACE_BLOCK:
            MUST(ds_mem_free(there.block[order[1] % BLOCKS]));
            make_block(order[1] % BLOCKS);
            break;
        case REPLACE_EVENT:
            MUST(ds_event_destroy(there.event[order[1] % EVENTS]));
            make_event(order[1] % EVENTS);
            break;
        case RECORD:
            MUST(ds_event_record(there.event[order[1] % EVENTS], there.stream));
            MUST(ds_stream_synchronize(there.stream));
            break;
        case COLLECT:
            MUST(ds_mem_ipc_collect());
            break;
        default:
            break;
        }
        if (send(fd, &there.h, sizeof there.h, MSG_NOSIGNAL) != (ssize_t)sizeof there.h)
            break;
    }
    _exit(0);
}

/* ---- this process ---- */

static int other; /* the socket */
static handles known;
static ds_stream stream;
static char *imported[KEPT];
static ds_event event[KEPT];

typedef struct input {
    const uint8_t *at, *end;
} input;

static unsigned take(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

static void ask(unsigned order, unsigned which) {
    unsigned char bytes[2] = { (unsigned char)order, (unsigned char)which };
    ssize_t got;
    if (send(other, bytes, 2, MSG_NOSIGNAL) != 2)
        stop("the other process has ended");
    do /* the alarm of libFuzzer interrupts */
        got = recv(other, &known, sizeof known, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof known)
        stop("the other process has ended");
}

/* Changes up to three places of one to eight bytes each: to small numbers, by a bit, or to bytes
   of the input. */
static void change(input *in, unsigned char *bytes, size_t size) {
    for (unsigned n = take(in) % 4; n; n--) {
        size_t at = take(in) % (take(in) % 4 ? 64 : size);
        size_t many = (size_t)1 << take(in) % 4;
        unsigned how = take(in) % 3, value = take(in);
        if (at + many > size)
            continue;
        if (how == 0)
            memset(bytes + at, 0, many);
        if (how == 1)
            bytes[at] ^= (unsigned char)(1u << value % 8);
        else
            bytes[at] = (unsigned char)value;
        for (size_t i = 1; how == 2 && i < many; i++)
            bytes[at + i] = (unsigned char)take(in);
    }
}

static void check_refusal(const void *out) {
    if (out || !*ds_error_get_last())
        stop("a refusal without a sentence, or with a result");
}

static void import_block(input *in) {
    ds_ipc_mem_handle h = known.block[take(in) % BLOCKS];
    ds_pointer_info info;
    unsigned char byte = 0;
    int i = 0;
    void *ptr = &byte;
    while (i < KEPT && imported[i])
        i++;
    change(in, h.bytes, sizeof h.bytes);
    if (i == KEPT)
        return;
    if (ds_mem_import(device_under_test(), &h, stream, &ptr) < 0) {
        check_refusal(ptr);
        return;
    }
    MUST(ds_pointer_get_info(ptr, &info));
    if (info.kind != DS_MEMORY_DEVICE || info.size > (size_t)1 << 30)
        stop("an import that is not in a segment");
    MUST(ds_copy(&byte, ptr, 1, stream));
    MUST(ds_stream_synchronize(stream));
    if (byte != FILL)
        stop("an import that is not in a block");
    imported[i] = ptr;
}

static void close_block(input *in) {
    int i = (int)(take(in) % KEPT);
    if (imported[i])
        MUST(ds_mem_import_close(imported[i], stream));
    else if (ds_mem_import_close((void *)(uintptr_t)(take(in) << 12), stream) == DS_OK)
        stop("closed what was not imported");
    imported[i] = NULL;
}

static void import_event(input *in) {
    ds_ipc_event_handle h = known.event[take(in) % EVENTS];
    int i = 0;
    while (i < KEPT && event[i].id)
        i++;
    change(in, h.bytes, sizeof h.bytes);
    if (i == KEPT)
        return;
    if (ds_event_import(device_under_test(), &h, &event[i]) < 0)
        check_refusal(event[i].id ? &event[i] : NULL);
}

/* The other process may have destroyed the event. */
static void use_event(input *in) {
    ds_event e = event[take(in) % KEPT];
    unsigned how = take(in) % 4;
    ds_result r = DS_OK;
    if (!e.id)
        return;
    if (how == 0)
        r = ds_event_query(e);
    else if (how == 1)
        r = ds_stream_wait_event(stream, e);
    else if (how == 2)
        r = ds_event_record(e, stream);
    else
        r = ds_event_synchronize(e);
    if (r < 0 && r != DS_ERR_INVALID_HANDLE)
        stop("use of an event");
}

static void drop_event(int i) {
    if (event[i].id)
        MUST(ds_event_destroy(event[i]));
    event[i].id = 0;
}

/* On CUDA an imported event may not be used any more once it is destroyed where it was made, nor
   may a stream wait for it. */
static void give_order(input *in) {
    unsigned order = take(in) % ORDERS;
    if (order == REPLACE_EVENT && is_cuda())
        MUST(ds_stream_synchronize(stream));
    for (int i = 0; i < KEPT && order == REPLACE_EVENT && is_cuda(); i++)
        drop_event(i);
    ask(order, take(in));
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    int pair[2];
    (void)argc;
    (void)argv;
    setenv("DEVSTREAM_CPU_DEVICES", "1", 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        stop("socketpair");
    pid_t child = fork();
    if (child < 0)
        stop("fork");
    if (child == 0) {
        close(pair[0]);
        obey(pair[1]);
    }
    close(pair[1]);
    other = pair[0];
    MUST(ds_stream_create(&(ds_stream_desc){ .device = device_under_test() }, &stream));
    ask(TELL, 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = { data, data + size };
    while (in.at < in.end)
        switch (take(&in) % 8) {
        case 0:
        case 1:
            import_block(&in);
            break;
        case 2:
            close_block(&in);
            break;
        case 3:
        case 4:
            import_event(&in);
            break;
        case 5:
            use_event(&in);
            break;
        case 6:
            drop_event((int)(take(&in) % KEPT));
            break;
        default:
            give_order(&in);
            break;
        }
    for (int i = 0; i < KEPT; i++) {
        drop_event(i);
        if (imported[i])
            MUST(ds_mem_import_close(imported[i], stream));
        imported[i] = NULL;
    }
    MUST(ds_stream_synchronize(stream));
    MUST(ds_mem_ipc_collect());
    return 0;
}
