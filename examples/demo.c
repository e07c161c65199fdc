/* demo.c - reads a file in pieces, spreads them over all devices, counts bytes and takes a checksum
   there, and checks itself.

   Compile:  cc -O2 -I. examples/demo.c -o demo -pthread
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA_DLOPEN -I. examples/demo.c -o demo -pthread
   Run:      ./demo                       examples/data/digits.csv, again and again up to 256 MiB
             ./demo FILE                  a file of any size, in constant memory
             producer | ./demo -          standard input
             ./demo --help                the options

   The way of a piece: it is read into pinned memory, copied to its device, counted there (kernel
   "histogram"), summed there (kernel "checksum"), and its results are copied back. Every device has
   two slots, each with a stream and buffers of its own, so that one piece is copied while another
   is counted and a third is read. At the end the totals of all slots are copied from device to
   device onto the first one and added there.

   The checksum is Adler-32 (RFC 1950; zlib.adler32 in Python prints the same number). For N bytes
   d[0] .. d[N-1] it is
       A = 1 + sum d[i]    B = N + sum (N - i) * d[i]    both modulo 65521
   and the checksum is B * 65536 + A.
   With S = sum d[i] and W = sum i * d[i] that is A = 1 + S and B = N + N * S - W. S and W are plain
   sums over bytes and their positions in the whole input: blocks, pieces and devices can be added
   in any order, and pieces that were swapped show.

   The check is an ordinary loop over the same bytes on one thread that shares nothing with the
   kernels. A regular file is read a second time for it. What cannot be read twice is checked from
   the pinned buffers each time all slots are full; the streams are drained and the clock is stopped
   meanwhile.

   "overlap" is (sum of the stages' times - time) / sum of the stages' times, the stages timed with
   events on their streams.

   Exit status: 0 fine, 1 something failed (standard error says what), 2 the results are wrong,
   130 interrupted. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "demo.kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _WIN32
#include <io.h>
#else
#include <poll.h>
#define O_BINARY 0
#endif

/* mingw's headers say by which rules the compiler checks formats */
#ifdef __MINGW_PRINTF_FORMAT
#define PRINTF __MINGW_PRINTF_FORMAT
#else
#define PRINTF printf
#endif

#ifdef __APPLE__
#define MODIFIED_NS st_mtimensec
#else
#define MODIFIED_NS st_mtim.tv_nsec
#endif

#define CHECK(call)                              \
    do {                                         \
        if ((call) < 0) {                        \
            complain("%s", ds_error_get_last()); \
            goto fail;                           \
        }                                        \
    } while (0)

/* results of steps and of the program */
enum { FINE = 0, FAILED = 1, WRONG = 2, INTERRUPTED = 130 };

enum { COPY_IN, HISTOGRAM, CHECKSUM, COPY_BACK, STAGES };

/* One line on standard error, in place of the progress bar if there is one. */
static int bar_drawn;
static void complain(const char *format, ...) __attribute__((format(PRINTF, 1, 2)));

static void complain(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fputs(bar_drawn ? "\r\033[Kdemo: " : "demo: ", stderr);
    bar_drawn = 0;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

static const size_t RESULT_BYTES = WORDS * sizeof(uint64_t);

static size_t least(uint64_t a, uint64_t b) {
    return (size_t)(a < b ? a : b);
}

/* ---- the parts of the program ---------------------------------------------------------------- */

typedef struct options {
    const char *path; /* NULL: the digits; "-": standard input */
    uint64_t total;   /* bytes to read, over and over; UINT64_MAX: the input once */
    uint64_t piece;   /* bytes of a piece */
    int devices;      /* 0: see configure() */
    int cpu;          /* use CPU devices although there are GPUs */
    int progress;     /* show it although standard error is no terminal */
    int damage;       /* change a byte on a device */
} options;

typedef struct input {
    const char *name;
    int fd;
    off_t start;       /* where its first byte is */
    struct stat stat;  /* as it was opened */
    int again;         /* a regular file: can be read twice */
    int repeat;        /* at its end begin again */
    uint64_t limit;    /* bytes to read in all */
    uint64_t expected; /* bytes that will come, for the progress bar; 0: unknown */
    uint64_t done;     /* bytes read */
    uint64_t pass;     /* bytes that were read when the present pass began */
} input;

typedef struct slot {
    ds_device device;
    ds_stream stream;
    ds_event mark[STAGES + 1]; /* before and after each stage */
    void *in;                  /* pinned: the piece as it was read */
    void *data;                /* device: the piece */
    void *piece;               /* device: results of the piece */
    void *total;               /* device: results of all pieces of the slot */
    void *out;                 /* pinned: results of the piece, copied back */
    size_t size;               /* bytes of the piece */
    int pending;               /* submitted and not waited for */
    int unchecked;             /* the plain pass has still to see it */
} slot;

typedef struct plain {
    uint64_t bytes, count[256];
    uint32_t a, b;  /* Adler-32 as RFC 1950 computes it */
    double seconds; /* taken */
} plain;

typedef struct demo {
    options opt;
    input in;
    int32_t type; /* of the devices */
    int devices, slots;
    slot *slot;
    ds_stream join;       /* on the device of slot 0 */
    void *joined;         /* there: the sum, then a row of results per slot */
    void *result;         /* pinned: the sum, copied back */
    uint64_t seen[WORDS]; /* the sum of the results that came back piece by piece */
    double stage_ms[STAGES];
    uint64_t pieces;
    /* the pipeline's clock: when it went on, time it stood still, its time in the end */
    double started, stopped, seconds;
    double drawn; /* when the progress bar was drawn last */
    int bar;      /* whether to draw it */
    plain plain;
} demo;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

#ifdef _WIN32
static void on_interrupt(int number) {
    (void)number;
    interrupted = 1; /* the handler is set back: a second Ctrl-C ends the program at once */
}

static int catch_interrupt(void) {
    if (signal(SIGINT, on_interrupt) != SIG_ERR)
        return FINE;
    complain("signal: %s", strerror(errno));
    return FAILED;
}

/* Returns what read returns; Ctrl-C is seen after it. */
static ssize_t read_or_wake(int fd, void *to, size_t size) {
    return read(fd, to, size < 1 << 30 ? (unsigned)size : 1u << 30);
}
#else
/* The handler also writes into a pipe that the reading side polls, so that no wait for input can
   miss it. */
static int wake[2] = { -1, -1 };

static void on_interrupt(int number) {
    int saved = errno;
    (void)number;
    interrupted = 1;
    if (write(wake[1], "", 1) < 0) { /* full: the reader wakes up all the same */
    }
    errno = saved;
}

static int catch_interrupt(void) {
    struct sigaction action;
    if (pipe(wake) < 0) {
        complain("pipe: %s", strerror(errno));
        return FAILED;
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C ends the program at once */
    if (sigaction(SIGINT, &action, NULL) < 0) {
        complain("sigaction: %s", strerror(errno));
        return FAILED;
    }
    return FINE;
}

/* Waits for input or Ctrl-C, and returns what read returns; -1 with EAGAIN: there is no input. */
static ssize_t read_or_wake(int fd, void *to, size_t size) {
    struct pollfd ready[2] = { { .fd = fd, .events = POLLIN },
                               { .fd = wake[0], .events = POLLIN } };
    int n = poll(ready, 2, -1);
    if (n > 0 && !interrupted)
        return read(fd, to, size);
    if (n == 0)
        errno = EAGAIN;
    return -1;
}
#endif

/* ---- input ----------------------------------------------------------------------------------- */

static int input_open(input *in, const options *opt) {
    static const char *const digits[] = { "examples/data/digits.csv", "data/digits.csv" };
    in->name = opt->path ? opt->path : digits[0];
    if (opt->path && strcmp(opt->path, "-") == 0) {
        in->name = "standard input";
        in->fd = STDIN_FILENO;
#ifdef _WIN32
        _setmode(in->fd, O_BINARY);
#endif
    } else {
        in->fd = open(in->name, O_RDONLY | O_BINARY);
        if (in->fd < 0 && !opt->path)
            in->fd = open(digits[1], O_RDONLY | O_BINARY);
    }
    if (in->fd < 0 || fstat(in->fd, &in->stat) < 0) {
        complain("cannot read %s: %s%s", in->name, strerror(errno),
                 opt->path ? "" : " (run this from the project's folder, or name a file)");
        return FAILED;
    }
    if (S_ISDIR(in->stat.st_mode)) {
        complain("cannot read %s: it is a directory", in->name);
        return FAILED;
    }
    in->start = lseek(in->fd, 0, SEEK_CUR);
    /* files of /proc say 0 */
    in->again = S_ISREG(in->stat.st_mode) && in->stat.st_size > 0 && in->start >= 0;
    in->limit = opt->total;
    in->repeat = in->again && opt->total != UINT64_MAX;
    if (opt->total != UINT64_MAX)
        in->expected = opt->total;
    else if (in->again && in->stat.st_size > in->start)
        in->expected = (uint64_t)(in->stat.st_size - in->start);
    return FINE;
}

/* One read of at most size bytes, which waits for input or Ctrl-C. *got is 0 at the end. */
static int input_read_some(input *in, unsigned char *to, size_t size, size_t *got) {
    for (;;) {
        ssize_t n = read_or_wake(in->fd, to, size);
        if (interrupted)
            return INTERRUPTED;
        if (n >= 0) {
            *got = (size_t)n;
            return FINE;
        }
        if (errno != EINTR && errno != EAGAIN)
            break;
    }
    complain("reading %s failed after %llu bytes: %s", in->name, (unsigned long long)in->done,
             strerror(errno));
    return FAILED;
}

/* Returns 1 if a file has another size or time than before. */
static int is_changed(const struct stat *now, const struct stat *before) {
    if (now->st_size != before->st_size || now->st_mtime != before->st_mtime)
        return 1;
#ifdef _WIN32
    return 0;
#else
    return now->MODIFIED_NS != before->MODIFIED_NS;
#endif
}

static int input_rewind(input *in) {
    if (lseek(in->fd, in->start, SEEK_SET) >= 0)
        return FINE;
    complain("cannot go back to the start of %s: %s", in->name, strerror(errno));
    return FAILED;
}

/* Fills a piece; *got is smaller than size at the end of the input only. */
static int input_read(input *in, unsigned char *to, size_t size, size_t *got) {
    size = least(size, in->limit - in->done);
    for (*got = 0; *got < size;) {
        size_t n = 0;
        int r = input_read_some(in, to + *got, size - *got, &n);
        if (r != FINE)
            return r;
        *got += n;
        in->done += n;
        if (n > 0)
            continue;
        /* a pass that brought nothing: the file is empty */
        if (!in->repeat || in->done == in->pass)
            break;
        in->pass = in->done;
        if ((r = input_rewind(in)) != FINE)
            return r;
    }
    return FINE;
}

/* ---- the plain pass -------------------------------------------------------------------------- */

static void plain_init(plain *p) {
    memset(p, 0, sizeof *p);
    p->a = 1;
}

/* The loop of RFC 1950, section 9; 5552 bytes are what 32 bits hold before the remainder must be
   taken. */
static void plain_add(plain *p, const unsigned char *bytes, size_t size) {
    double begin = now();
    uint32_t a = p->a, b = p->b;
    for (size_t i = 0; i < size;) {
        size_t stop = size - i < 5552 ? size : i + 5552;
        for (; i < stop; i++) {
            p->count[bytes[i]]++;
            a += bytes[i];
            b += a;
        }
        a %= 65521u;
        b %= 65521u;
    }
    p->a = a;
    p->b = b;
    p->bytes += size;
    p->seconds += now() - begin;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static int slot_open(slot *s, ds_device device, size_t piece) {
    ds_stream_desc desc = { .device = device, .label = "demo slot" };
    s->device = device;
    CHECK(ds_stream_create(&desc, &s->stream));
    CHECK(ds_pinned_alloc(piece, &s->in));
    CHECK(ds_pinned_alloc(RESULT_BYTES, &s->out));
    CHECK(ds_device_alloc(device, piece, &s->data));
    CHECK(ds_device_alloc(device, RESULT_BYTES, &s->piece));
    CHECK(ds_device_alloc(device, RESULT_BYTES, &s->total));
    CHECK(ds_fill(s->total, 0, 4, RESULT_BYTES / 4, s->stream));
    for (int i = 0; i <= STAGES; i++)
        CHECK(ds_event_create(DS_EVENT_TIMING, "demo stage", &s->mark[i]));
    CHECK(ds_stream_synchronize(s->stream));
    return FINE;
fail:
    return FAILED;
}

/* Freeing waits for the device's work, so that this is right with pieces under way too. */
static void slot_close(slot *s) {
    DS_IGNORE(ds_device_free(s->data));
    DS_IGNORE(ds_device_free(s->piece));
    DS_IGNORE(ds_device_free(s->total));
    DS_IGNORE(ds_pinned_free(s->in));
    DS_IGNORE(ds_pinned_free(s->out));
    for (int i = 0; i <= STAGES; i++)
        if (s->mark[i].id)
            DS_IGNORE(ds_event_destroy(s->mark[i]));
    if (s->stream.id)
        DS_IGNORE(ds_stream_destroy(s->stream));
}

/* Puts the whole way of a piece on the slot's stream; nothing here waits. */
static int slot_submit(slot *s, uint64_t offset, int damage) {
    size_t blocks = (s->size + BLOCK - 1) / BLOCK;
    s->pending = s->unchecked = 1;
    CHECK(ds_event_record(s->mark[COPY_IN], s->stream));
    CHECK(ds_copy(s->data, s->in, s->size, s->stream));
    if (damage)
        CHECK(ds_fill(s->data, *(unsigned char *)s->in ^ 1u, 1, 1, s->stream));
    CHECK(ds_fill(s->piece, 0, 4, RESULT_BYTES / 4, s->stream));
    CHECK(ds_event_record(s->mark[HISTOGRAM], s->stream));
    CHECK(DS_LAUNCH(histogram, s->stream, blocks, s->data, s->piece, s->size));
    CHECK(ds_event_record(s->mark[CHECKSUM], s->stream));
    CHECK(DS_LAUNCH(checksum, s->stream, blocks, s->data, s->piece, s->size, offset));
    CHECK(DS_LAUNCH(add_rows, s->stream, WORDS, s->total, s->piece, 1));
    CHECK(ds_event_record(s->mark[COPY_BACK], s->stream));
    CHECK(ds_copy(s->out, s->piece, RESULT_BYTES, s->stream));
    CHECK(ds_event_record(s->mark[STAGES], s->stream));
    return FINE;
fail:
    return FAILED;
}

/* Waits for the slot's piece, if there is one, and takes its results and times. */
static int slot_wait(demo *d, slot *s) {
    const uint64_t *out = s->out;
    if (!s->pending)
        return FINE;
    s->pending = 0;
    CHECK(ds_event_synchronize(s->mark[STAGES]));
    for (int i = 0; i < STAGES; i++) {
        double ms = 0;
        CHECK(ds_event_get_elapsed_ms(s->mark[i], s->mark[i + 1], &ms));
        d->stage_ms[i] += ms;
    }
    for (int i = 0; i < WORDS; i++)
        d->seen[i] += out[i];
    return FINE;
fail:
    return FAILED;
}

static int drain(demo *d) {
    int result = FINE;
    for (int i = 0; i < d->slots; i++)
        if (slot_wait(d, &d->slot[i]) != FINE)
            result = FAILED;
    return result;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* One virtual CPU device would leave nothing to join, so the demo asks for two unless it is told
   otherwise. */
static int configure(const options *opt) {
    ds_cpu_desc cpu = { .devices = opt->devices };
    ds_init_desc desc = { .cpu = &cpu };
    if (!cpu.devices && !getenv("DEVSTREAM_CPU_DEVICES"))
        cpu.devices = 2;
    CHECK(ds_init(&desc));
    if (opt->cpu)
        CHECK(ds_device_set_current(ds_cpu(0)));
    return FINE;
fail:
    return FAILED;
}

/* Compiles the kernels before the first launch, so that this is not timed. */
static int load_kernels(ds_device device) {
    ds_kernel_def *const def[] = { &histogram_def, &checksum_def, &add_rows_def };
    for (size_t i = 0; i < sizeof def / sizeof *def; i++) {
        ds_kernel kernel;
        CHECK(ds_kernel_def_get_kernel(def[i], &kernel));
        CHECK(ds_kernel_load(kernel, device));
    }
    return FINE;
fail:
    return FAILED;
}

/* The type of the current device is the one to use: a GPU where there is one. */
static int choose_devices(demo *d) {
    ds_device first;
    CHECK(ds_device_get_current(&first));
    CHECK(ds_device_get_count((ds_device_type)first.type, &d->devices));
    if (d->opt.devices > d->devices) {
        complain("there are only %d devices, --cpu gives virtual ones", d->devices);
        goto fail;
    }
    if (d->opt.devices)
        d->devices = d->opt.devices;
    d->type = first.type;
    return FINE;
fail:
    return FAILED;
}

static int demo_open(demo *d) {
    ds_stream_desc join = { .label = "demo join" };
    if (choose_devices(d) != FINE)
        goto fail;
    d->slot = calloc(2 * (size_t)d->devices, sizeof *d->slot);
    if (!d->slot) {
        complain("out of memory");
        goto fail;
    }
    /* neighbouring pieces go to different devices */
    for (; d->slots < 2 * d->devices; d->slots++) {
        ds_device device = { d->type, d->slots % d->devices };
        if (slot_open(&d->slot[d->slots], device, (size_t)d->opt.piece) != FINE) {
            d->slots++;
            goto fail;
        }
        if (load_kernels(device) != FINE)
            goto fail;
    }
    join.device = d->slot[0].device;
    CHECK(ds_stream_create(&join, &d->join));
    CHECK(ds_device_alloc(join.device, (1 + (size_t)d->slots) * RESULT_BYTES, &d->joined));
    CHECK(ds_pinned_alloc(RESULT_BYTES, &d->result));
    return FINE;
fail:
    return FAILED;
}

static void demo_close(demo *d) {
    for (int i = 0; i < d->slots; i++)
        slot_close(&d->slot[i]);
    free(d->slot);
    DS_IGNORE(ds_device_free(d->joined));
    DS_IGNORE(ds_pinned_free(d->result));
    if (d->join.id)
        DS_IGNORE(ds_stream_destroy(d->join));
    if (d->in.fd > STDIN_FILENO)
        close(d->in.fd);
}

/* ---- what a person sees ---------------------------------------------------------------------- */

static void print_size(FILE *to, double bytes) {
    static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    fprintf(to, "%.*f %s", u ? 1 : 0, bytes, unit[u]);
}

static double gigabytes_per_second(uint64_t bytes, double seconds) {
    return seconds > 0 ? 1e-9 * (double)bytes / seconds : 0;
}

static void progress_draw(demo *d, const char *what, uint64_t done, double seconds) {
    char bar[31];
    double t = now();
    if (!d->bar || t - d->drawn < 0.1)
        return;
    d->drawn = t;
    bar_drawn = 1;
    fprintf(stderr, "\r\033[K%s ", what);
    if (d->in.expected) {
        double part = (double)done / (double)d->in.expected;
        size_t full = part < 1 ? (size_t)(part * 30) : 30;
        memset(bar, '.', 30);
        memset(bar, '#', full);
        bar[30] = 0;
        fprintf(stderr, "[%s] %3.0f %%  ", bar, part < 1 ? 100 * part : 100.0);
    }
    print_size(stderr, (double)done);
    fprintf(stderr, "  %.2f GB/s", gigabytes_per_second(done, seconds));
    fflush(stderr);
}

static void progress_clear(void) {
    if (bar_drawn)
        fputs("\r\033[K", stderr);
    bar_drawn = 0;
}

/* log2 without the mathematics library, so that the compile line stays short: the digits come
   from squaring. */
static double binary_logarithm(double x) {
    double log = 0, bit = 1;
    for (; x < 1; x *= 2)
        log -= 1;
    for (; x >= 2; x /= 2)
        log += 1;
    for (int i = 0; i < 48; i++) {
        bit /= 2;
        x *= x;
        if (x >= 2) {
            x /= 2;
            log += bit;
        }
    }
    return log;
}

static double entropy(const uint64_t count[256], uint64_t bytes) {
    double bits = 0;
    for (int i = 0; i < 256; i++) {
        double part = count[i] ? (double)count[i] / (double)bytes : 1;
        bits -= part * binary_logarithm(part);
    }
    return bits > 0 ? bits : 0;
}

static uint32_t adler(const uint64_t *results, uint64_t bytes) {
    uint64_t n = bytes % ADLER, s = results[SUM] % ADLER, w = results[WEIGHTED] % ADLER;
    uint64_t a = (1 + s) % ADLER, b = (n + n * s + ADLER - w) % ADLER;
    return (uint32_t)(b << 16 | a);
}

static void print_stages(const demo *d) {
    static const char *const name[STAGES] = { "copy in", "histogram", "checksum", "copy back" };
    double sum = 0, wall = 1e3 * d->seconds;
    for (int i = 0; i < STAGES; i++) {
        printf("  %-9s %11.3f ms\n", name[i], d->stage_ms[i]);
        sum += d->stage_ms[i];
    }
    if (wall < sum)
        printf("overlap     %11.0f %%   of the stages' time was hidden behind others\n",
               100 * (sum - wall) / sum);
    else
        printf("overlap            none     (the devices were idle in between)\n");
}

static int print_table(const demo *d) {
    char name[DS_DEVICE_NAME_SIZE];
    ds_device_properties about;
    uint64_t bytes = d->in.done;
    CHECK(ds_device_format(d->slot[0].device, name, sizeof name));
    CHECK(ds_device_get_properties(d->slot[0].device, &about));
    printf("devices     %d from %s (%s), %d streams\n", d->devices, name, about.name, d->slots);
    printf("input       %s", d->in.name);
    if (d->in.repeat)
        printf(", again and again");
    printf("\npieces      %llu of at most ", (unsigned long long)d->pieces);
    print_size(stdout, (double)d->opt.piece);
    printf("\nbytes       %llu\n", (unsigned long long)bytes);
    printf("entropy     %.6f bits per byte\n", bytes ? entropy(d->result, bytes) : 0.0);
    printf("checksum    %08x (Adler-32)\n", (unsigned)adler(d->result, bytes));
    printf("time        %11.3f ms  %.2f GB/s\n", 1e3 * d->seconds,
           gigabytes_per_second(bytes, d->seconds));
    print_stages(d);
    return FINE;
fail:
    return FAILED;
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

static double elapsed(const demo *d) {
    return now() - d->started - d->stopped;
}

/* The plain pass over pieces that cannot be read again: their bytes are still in the pinned
   buffers. */
static int check_slots(demo *d) {
    double begin;
    if (drain(d) != FINE)
        return FAILED;
    begin = now();
    for (int i = 0; i < d->slots; i++) {
        if (d->slot[i].unchecked)
            plain_add(&d->plain, d->slot[i].in, d->slot[i].size);
        d->slot[i].unchecked = 0;
    }
    d->stopped += now() - begin;
    return FINE;
}

/* Copies the totals of all slots onto the first device, whatever device they are on, and adds
   them there. */
static int join_totals(demo *d) {
    uint64_t *rows = (uint64_t *)d->joined + WORDS;
    CHECK(ds_fill(d->joined, 0, 4, RESULT_BYTES / 4, d->join));
    for (int i = 0; i < d->slots; i++) {
        slot *s = &d->slot[i];
        CHECK(ds_stream_wait_stream(d->join, s->stream));
        CHECK(ds_copy_peer(rows + (size_t)i * WORDS, d->slot[0].device, s->total, s->device,
                           RESULT_BYTES, d->join));
    }
    CHECK(DS_LAUNCH(add_rows, d->join, WORDS, d->joined, rows, (uint64_t)d->slots));
    CHECK(ds_copy(d->result, d->joined, RESULT_BYTES, d->join));
    CHECK(ds_stream_synchronize(d->join));
    return FINE;
fail:
    return FAILED;
}

static int run_pipeline(demo *d) {
    int result = FINE;
    d->started = now();
    for (;;) {
        slot *s = &d->slot[d->pieces % (uint64_t)d->slots];
        uint64_t offset = d->in.done;
        if (slot_wait(d, s) != FINE)
            return FAILED;
        if ((result = input_read(&d->in, s->in, (size_t)d->opt.piece, &s->size)) != FINE ||
            s->size == 0)
            break;
        if (slot_submit(s, offset, d->opt.damage && d->pieces == 0) != FINE)
            return FAILED;
        d->pieces++;
        if (!d->in.again && d->pieces % (uint64_t)d->slots == 0 && check_slots(d) != FINE)
            return FAILED;
        progress_draw(d, "devices", d->in.done, elapsed(d));
        if (s->size < d->opt.piece)
            break;
    }
    if (result == FINE && !d->in.again && check_slots(d) != FINE)
        return FAILED;
    if (drain(d) != FINE)
        return FAILED;
    if (result == FINE)
        result = join_totals(d);
    d->seconds = elapsed(d);
    return result;
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Reads the same bytes once more and checks that they are the same: a file may be written to
   meanwhile. */
static int check_again(demo *d) {
    input in = d->in;
    unsigned char *buffer = malloc((size_t)d->opt.piece);
    size_t got = 0;
    struct stat after;
    int result = FAILED;
    if (!buffer) {
        complain("out of memory");
        goto fail;
    }
    in.limit = d->in.done;
    in.done = in.pass = 0;
    if (input_rewind(&in) != FINE)
        goto fail;
    do {
        if ((result = input_read(&in, buffer, (size_t)d->opt.piece, &got)) != FINE)
            goto fail;
        plain_add(&d->plain, buffer, got);
        progress_draw(d, "check  ", in.done, d->plain.seconds);
    } while (got > 0);
    if (fstat(in.fd, &after) < 0 || is_changed(&after, &in.stat)) {
        complain("%s was changed while it was read; there is nothing to compare with", in.name);
        result = FAILED;
    }
fail:
    free(buffer);
    return result;
}

/* Compares both ways of the results, joined on the device and copied back piece by piece, with
   the plain pass. */
static int compare(const demo *d) {
    const uint64_t *way[2] = { d->result, d->seen };
    const char *const name[2] = { "joined on the device", "copied back piece by piece" };
    uint32_t expected = d->plain.b << 16 | d->plain.a;
    int result = FINE;
    if (d->plain.bytes != d->in.done) {
        complain("WRONG: the devices got %llu bytes, the plain pass %llu",
                 (unsigned long long)d->in.done, (unsigned long long)d->plain.bytes);
        result = WRONG;
    }
    for (int w = 0; w < 2; w++) {
        int value = 0;
        while (value < 256 && way[w][COUNTS + value] == d->plain.count[value])
            value++;
        if (value < 256) {
            complain("WRONG: results %s: byte %d counted %llu times, the plain pass says %llu",
                     name[w], value, (unsigned long long)way[w][COUNTS + value],
                     (unsigned long long)d->plain.count[value]);
            result = WRONG;
        }
        if (adler(way[w], d->in.done) != expected) {
            complain("WRONG: results %s: checksum %08x, the plain pass says %08x", name[w],
                     (unsigned)adler(way[w], d->in.done), (unsigned)expected);
            result = WRONG;
        }
    }
    if (result == FINE)
        printf("check       the same as a plain pass on one thread (%.3f ms, %.2f GB/s)\n",
               1e3 * d->plain.seconds, gigabytes_per_second(d->plain.bytes, d->plain.seconds));
    return result;
}

/* ---- options and main ------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: demo [options] [FILE | -]\n"
    "Counts the bytes of FILE (\"-\": standard input) on all devices and checks the result.\n"
    "Without FILE: examples/data/digits.csv, read again and again up to 256M.\n"
    "  --total SIZE   read SIZE bytes in all; a file is read again from its start as often as "
    "needed\n"
    "  --piece SIZE   bytes of a piece (4M)\n"
    "  --devices N    devices to use: of GPUs the first N (all), else virtual CPU devices "
    "(DEVSTREAM_CPU_DEVICES, or 2)\n"
    "  --cpu          use virtual CPU devices although there are GPUs\n"
    "  --progress     show the progress bar although standard error is no terminal\n"
    "  --damage       change one byte on a device, to see the check find it\n"
    "  --help         this text\n"
    "SIZE is a number of bytes and may end in K, M or G.\n";

static int parse_size(const char *text, uint64_t *out) {
    static const char units[] = "KMG";
    char *end = NULL;
    const char *unit;
    unsigned long long n;
    if (!text || *text < '0' || *text > '9')
        return FAILED;
    errno = 0;
    n = strtoull(text, &end, 10);
    unit = *end ? strchr(units, *end) : NULL;
    if (errno || (*end && (!unit || end[1])))
        return FAILED;
    if (unit) {
        int shift = 10 * (int)(unit - units + 1);
        if (n > UINT64_MAX >> shift)
            return FAILED;
        n <<= shift;
    }
    *out = n;
    return FINE;
}

static int parse_options(int argc, char **argv, options *opt) {
    int i = 1;
    for (; i < argc; i++) {
        uint64_t n = 0;
        const char *a = argv[i];
        if (strcmp(a, "--progress") == 0)
            opt->progress = 1;
        else if (strcmp(a, "--damage") == 0)
            opt->damage = 1;
        else if (strcmp(a, "--cpu") == 0)
            opt->cpu = 1;
        else if ((a[0] != '-' || !a[1]) && !opt->path)
            opt->path = a;
        else if (parse_size(argv[i + 1], &n) != FINE)
            break;
        else if (strcmp(a, "--total") == 0)
            opt->total = n, i++;
        else if (strcmp(a, "--piece") == 0 && n >= 1 && n <= 1u << 30)
            opt->piece = n, i++;
        else if (strcmp(a, "--devices") == 0 && n >= 1 && n <= 64)
            opt->devices = (int)n, i++;
        else
            break;
    }
    if (i < argc) {
        complain("cannot understand \"%s%s%s\"", argv[i], argv[i + 1] ? " " : "",
                 argv[i + 1] ? argv[i + 1] : "");
        fputs(USAGE, stderr);
        return FAILED;
    }
    if (!opt->path && opt->total == UINT64_MAX)
        opt->total = (uint64_t)256 << 20;
    return FINE;
}

static int work(demo *d) {
    int result = input_open(&d->in, &d->opt);
    if (result == FINE)
        result = catch_interrupt();
    if (result == FINE)
        result = configure(&d->opt);
    if (result == FINE)
        result = demo_open(d);
    if (result == FINE)
        result = run_pipeline(d);
    if (result == FINE && d->in.again)
        result = check_again(d);
    progress_clear();
    if (result == FINE)
        result = print_table(d);
    if (result == FINE)
        result = compare(d);
    if (result == INTERRUPTED)
        complain("interrupted after %llu bytes of input; every piece under way was finished",
                 (unsigned long long)d->in.done);
    return result;
}

int main(int argc, char **argv) {
    demo d;
    int result;
    memset(&d, 0, sizeof d);
    plain_init(&d.plain);
    d.in.fd = -1;
    d.opt.total = UINT64_MAX;
    d.opt.piece = 4 << 20;
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argc, argv, &d.opt) != FINE)
        return FAILED;
    d.bar = d.opt.progress || isatty(STDERR_FILENO);
    result = work(&d);
    demo_close(&d);
    if (ds_shutdown() < 0 && result == FINE) {
        complain("%s", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        complain("standard output: %s", strerror(errno));
        result = FAILED;
    }
    return result;
}
