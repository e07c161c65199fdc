/* copies.c - copies and fills: devstream and what the machine allows, in turn and on the same
   memory, because page placement and noisy neighbours move all of them together. The sources
   "libc 1" to "stream 2" are the limits. */
#include "bench.h"
#include "second.h"
#include "../devstream_rng.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void check(ds_result r) {
    if (r >= 0)
        return;
    fprintf(stderr, "devstream: %s: %s\n", ds_result_get_name(r), ds_error_get_last());
    exit(1);
}

/* In the place of a source: random numbers, whose limits are those of a fill. */
static const char random_numbers[1];

/* ---- the ways to write memory: src NULL is a fill with FILL_BYTE ----------------------------- */

enum { FILL_BYTE = 0x5a };

/* size: a multiple of 128, dst aligned to 64 */
typedef void (*way_fn)(char *dst, const char *src, size_t size);

static void by_libc(char *dst, const char *src, size_t size) {
    if (src)
        memcpy(dst, src, size);
    else
        memset(dst, FILL_BYTE, size);
}

#if defined(__x86_64__)
static void by_rep(char *dst, const char *src, size_t size) {
    if (src)
        __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(size) : : "memory");
    else
        __asm__ volatile("rep stosb" : "+D"(dst), "+c"(size) : "a"(FILL_BYTE) : "memory");
}

__attribute__((target("avx2"))) static void by_stream_avx2(char *dst, const char *src,
                                                           size_t size) {
    __m256i fill = _mm256_set1_epi8(FILL_BYTE);
    for (size_t i = 0; i < size; i += 128) {
        __m256i *d = (__m256i *)(void *)(dst + i);
        const __m256i *s = (const __m256i *)(const void *)(src ? src + i : NULL);
        __m256i a = s ? _mm256_loadu_si256(s) : fill, b = s ? _mm256_loadu_si256(s + 1) : fill;
        __m256i c = s ? _mm256_loadu_si256(s + 2) : fill, e = s ? _mm256_loadu_si256(s + 3) : fill;
        _mm256_stream_si256(d, a);
        _mm256_stream_si256(d + 1, b);
        _mm256_stream_si256(d + 2, c);
        _mm256_stream_si256(d + 3, e);
    }
    _mm_sfence();
}

static void by_stream_sse2(char *dst, const char *src, size_t size) {
    __m128i fill = _mm_set1_epi8(FILL_BYTE);
    for (size_t i = 0; i < size; i += 16)
        _mm_stream_si128((__m128i *)(void *)(dst + i),
                         src ? _mm_loadu_si128((const __m128i *)(const void *)(src + i)) : fill);
    _mm_sfence();
}
#endif

/* ---- on one thread or two; the second spins, so that waking it is not in the limit ----------- */

static struct {
    way_fn way;
    char *dst;
    const char *src;
    size_t size;
} job; /* of the second thread */

static void run_job(void) {
    job.way(job.dst, job.src, job.size);
}

static double time_way(way_fn way, int threads, char *dst, const char *src, size_t size, int n) {
    size_t half = threads == 2 ? size / 2 : size;
    job.way = way;
    job.dst = dst + half;
    job.src = src ? src + half : NULL;
    job.size = size - half;
    bench_second_begin(threads == 2 ? run_job : NULL);
    double t = bench_now_ns();
    for (int i = 0; i < n; i++) {
        bench_second_go();
        way(dst, src, half);
        bench_second_await();
    }
    t = bench_now_ns() - t;
    bench_second_end();
    return t / n;
}

static double time_devstream(ds_stream stream, char *dst, const char *src, size_t size, int n) {
    double t = bench_now_ns();
    for (int i = 0; i < n; i++) {
        check(src == random_numbers
                  ? ds_rng_uniform((ds_rng){ 0 }, ds_float32(), dst, size / 4, 0, 1, stream)
              : src ? ds_copy(dst, src, size, stream)
                    : ds_fill(dst, FILL_BYTE * 0x01010101u, 4, size / 4, stream));
        check(ds_stream_synchronize(stream));
    }
    return (bench_now_ns() - t) / n;
}

/* All in [0, 1), and half of them below one half. */
static int are_uniform(const float *x, size_t n) {
    size_t low = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] >= 0 && x[i] < 1))
            return 0;
        low += x[i] < 0.5f;
    }
    return low > n / 2 - n / 100 && low < n / 2 + n / 100;
}

static void run(const char *row, ds_stream stream, char *dst, const char *src, size_t size) {
    const char *from = src == random_numbers ? NULL : src;
    static const char *const names[7] = { "libc 1",   "libc 2",   "rep 1",    "rep 2",
                                          "stream 1", "stream 2", "devstream" };
    way_fn ways[3] = { by_libc, NULL, NULL };
    double v[7][9];
    int repeats = bench_quick() ? 3 : size > (size_t)256 << 20 ? 5 : 7, right = 1;
    int n = size >= (size_t)64 << 20 ? (int)(((size_t)256 << 20) / size)
            : bench_quick()          ? 8
                                     : (int)(((size_t)128 << 20) / size);
    if (n < 1)
        n = 1;
#if defined(__x86_64__)
    ways[1] = by_rep;
    ways[2] = __builtin_cpu_supports("avx2") ? by_stream_avx2 : by_stream_sse2;
#endif
    for (int r = 0; r < repeats; r++)
        for (int k = 0; k < 7; k++) {
            int c = (k + r) % 7; /* another one begins each time */
            if (c < 6 && !ways[c / 2])
                continue;
            /* the result is checked once */
            if (c == 6 && r == 0)
                memset(dst, 0, size);
            v[c][r] = (double)size / (c < 6 ? time_way(ways[c / 2], c % 2 + 1, dst, from, size, n)
                                            : time_devstream(stream, dst, src, size, n));
            if (c == 6 && r == 0)
                right = src == random_numbers
                            ? are_uniform((const float *)(const void *)dst, size / 4)
                        : src ? !memcmp(dst, src, size)
                              : dst[0] == FILL_BYTE && !memcmp(dst, dst + 1, size - 1);
        }
    for (int c = 0; c < 7; c++)
        if (c == 6 || ways[c / 2])
            bench_put(row, names[c], c == 6 && !right ? NAN : bench_median(v[c], repeats));
}

int main(void) {
    static const struct {
        const char *row;
        size_t mib;
    } sizes[] = { { "copy_1m", 1 },
                  { "copy_16m", 16 },
                  { "copy_64m", 64 },
                  { "copy_256m", 256 },
                  { "copy_1g", 1024 } };

    ds_stream_desc desc = { .device = ds_cpu(0) };
    ds_stream stream;
    void *dst = NULL, *src = NULL;
    size_t most = bench_quick() ? 64 : 1024;
    check(ds_device_set_current(ds_cpu(0)));
    check(ds_stream_create(&desc, &stream));
    while (ds_device_alloc(ds_cpu(0), most << 20, &dst) < 0 ||
           ds_device_alloc(ds_cpu(0), most << 20, &src) < 0) {
        check(ds_device_free(dst)); /* a small machine: rows that do not fit stay empty */
        dst = NULL;
        if ((most /= 2) < 64) {
            fprintf(stderr, "copies: %s\n", ds_error_get_last());
            return 1;
        }
    }
    uint64_t x = 1, *words = src;
    for (size_t i = 0; i < (most << 20) / 8; i++)
        words[i] = x = x * BENCH_P + i;
    memset(dst, 1, most << 20);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].mib <= most)
            run(sizes[i].row, stream, dst, src, sizes[i].mib << 20);
    run("fill_64m", stream, dst, NULL, (size_t)64 << 20);
    run("random_64m", stream, dst, random_numbers, (size_t)64 << 20);
    if (most >= 256)
        run("random_256m", stream, dst, random_numbers, (size_t)256 << 20);
    return bench_failed;
}
