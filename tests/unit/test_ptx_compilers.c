/* The PTX interpreter runs what the installed compilers, clang and nvcc, make of typical kernels
   (ptx/typical.cu) without the optimiser and with all of its levels. Tables that fit these kernels
   must be accepted. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

#include <math.h>

#include "standin/ptx.h"

enum { MOST_TEXT = 1 << 20 };

static char text[MOST_TEXT];

/* ---- compilers ---- */

static void folder_of_tests(char *to, size_t size) {
    const char *slash = strrchr(__FILE__, '/');
    snprintf(to, size, "%.*s", slash ? (int)(slash - __FILE__ + 1) : 0, __FILE__);
}

/* Returns 0 if the command fails, or writes no text. */
static int compile(const char *command) {
    char folder[300];
    char whole[1200];
    char path[] = "/tmp/ds-ptx-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    folder_of_tests(folder, sizeof folder);
    snprintf(whole, sizeof whole, "%s -o %s %sptx/typical.cu >/dev/null 2>&1", command, path,
             folder);
    int failed = system(whole);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    remove(path);
    return !failed && n > 0;
}

/* ---- launches ---- */

static _Alignas(16) struct {
    float a[400], b[400], c[400];
    uint32_t words[256], sums[256];
    uint8_t bytes[5000];
    double in[20 * 16], out[20 * 16];
    int64_t longs[64 * 8];
} data;

static void *reach(void *user, uint64_t address, size_t size, int write) {
    uint64_t start = (uint64_t)(uintptr_t)user;
    (void)write;
    if (address < start || address - start > sizeof data - size)
        return NULL;
    return (void *)(uintptr_t)address;
}

static ptx_module *module;

static void run(const char *name, unsigned blocks_x, unsigned blocks_y, unsigned threads_x,
                unsigned threads_y, unsigned shared, const void *const *params) {
    char error[500];
    const ptx_function *f = ptx_find(module, name);
    ptx_launch launch = { .grid = { blocks_x, blocks_y, 1 },
                          .block = { threads_x, threads_y, 1 },
                          .shared_bytes = shared,
                          .params = params,
                          .memory = { reach, &data } };
    assert_non_null(f);
    if (ptx_run(f, &launch, error, sizeof error) != PTX_OK)
        fail_msg("%s: %s", name, error);
}

#define PARAMS(...) ((const void *const[]){ __VA_ARGS__ })

/* Small integers, so that fused operations have the same results. */
static void check_matmul(void) {
    enum { N = 20 };

    float *a = data.a;
    float *b = data.b;
    float *c = data.c;
    int32_t n = N;
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 7);
        b[i] = (float)(i % 5 - 2);
    }
    run("matmul", 3, 3, 8, 8, 0, PARAMS(&a, &b, &c, &n));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float want = 0;
            for (int k = 0; k < N; k++)
                want += a[i * N + k] * b[k * N + j];
            assert_true(c[i * N + j] == want);
        }
}

static void check_scan(void) {
    uint32_t *in = data.words;
    uint32_t *out = data.sums;
    uint32_t n = 200;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        in[i] = i * 2654435761u >> 20;
    run("scan", 1, 1, 256, 1, 256 * sizeof *in, PARAMS(&in, &out, &n));
    for (uint32_t i = 0; i < n; i++) {
        sum += in[i];
        assert_int_equal(out[i], sum);
    }
}

static void check_histogram(void) {
    uint8_t *in = data.bytes;
    uint32_t *bins = data.words;
    uint64_t n = sizeof data.bytes;
    uint32_t want[256] = { 0 };
    memset(bins, 0, sizeof data.words);
    for (uint64_t i = 0; i < n; i++) {
        in[i] = (uint8_t)(i * i >> 3);
        want[in[i]]++;
    }
    run("histogram", 3, 1, 64, 1, 0, PARAMS(&in, &bins, &n));
    assert_memory_equal(bins, want, sizeof want);
}

static void check_stencil(void) {
    enum { W = 20, H = 16 };

    double *in = data.in;
    double *out = data.out;
    int32_t width = W;
    int32_t height = H;
    for (int i = 0; i < W * H; i++) {
        in[i] = i % 11;
        out[i] = -1;
    }
    run("stencil", 3, H, 8, 1, 0, PARAMS(&in, &out, &width, &height));
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            int i = y * W + x;
            int inside = x > 0 && y > 0 && x < W - 1 && y < H - 1;
            double want = inside ? 0.25 * (in[i - 1] + in[i + 1] + in[i - W] + in[i + W]) : -1;
            assert_true(out[i] == want);
        }
}

static void check_local_array(void) {
    uint32_t *out = data.sums;
    uint32_t rounds = 100;
    run("local_array", 1, 1, 40, 1, 0, PARAMS(&out, &rounds));
    for (uint32_t t = 0; t < 40; t++) {
        uint32_t values[32];
        for (uint32_t i = 0; i < 32; i++)
            values[i] = i + t;
        for (uint32_t i = 0; i < rounds; i++)
            values[i * 7 % 32] += values[i * 3 % 32];
        assert_int_equal(out[t], values[t % 32]);
    }
}

static void check_waves(void) {
    float *in = data.a;
    float *out = data.c;
    int32_t n = 400;
    for (int32_t i = 0; i < n; i++)
        in[i] = (float)(i - 200) * 0.05f;
    run("waves", 7, 1, 64, 1, 0, PARAMS(&in, &out, &n));
    for (int32_t i = 0; i < n; i++) {
        double x = (double)in[i];
        double want = exp2(x) * sin(x) / (x * x + 1);
        assert_true(fabs((double)out[i] - want) <= fabs(want) * 0x1p-21);
    }
}

static void check_conversions(void) {
    float *in = data.a;
    int64_t *out = data.longs;
    double *real = data.out;
    for (int i = 0; i < 64; i++)
        in[i] = (float)(i * i * i - 60000) * 0.37f;
    run("conversions", 1, 1, 64, 1, 0, PARAMS(&in, &out, &real));
    for (int i = 0; i < 64; i++) {
        int32_t whole = (int32_t)in[i];
        int64_t wide = (int64_t)((double)in[i] * 65536);
        int64_t want[8] = { (int8_t)whole,
                            (uint8_t)whole,
                            (uint16_t)whole,
                            whole,
                            in[i] >= 0 ? (int64_t)(uint32_t)in[i] : -1,
                            (int64_t)in[i],
                            wide,
                            (int64_t)(float)wide };
        assert_memory_equal(out + 8 * i, want, sizeof want);
        assert_true(real[i] == (double)(float)wide + whole + (double)want[2] + (double)want[1]);
    }
}

static void check_vectors(void) {
    float *in = data.a;
    float *out = data.c;
    uint8_t *from = data.bytes;
    uint8_t *to = data.bytes + 256;
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 4; k++) {
            in[4 * i + k] = (float)(10 * i + k);
            from[4 * i + k] = (uint8_t)(40 * i + k);
        }
    run("vectors", 1, 1, 64, 1, 0, PARAMS(&in, &out, &from, &to));
    for (int i = 0; i < 64; i++, in += 4, out += 4, from += 4, to += 4) {
        float want[4] = { in[3], in[2], in[1] + in[0], in[0] };
        uint8_t bytes[4] = { from[1], from[0], from[3], (uint8_t)(from[2] + from[3]) };
        assert_memory_equal(out, want, sizeof want);
        assert_memory_equal(to, bytes, sizeof bytes);
    }
}

static void check_functions(void) {
    static const uint32_t fibonacci[12] = { 0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89 };
    float *in = data.a;
    float *out = data.c;
    uint32_t *numbers = data.sums;
    for (int i = 0; i < 4 * 40; i++)
        in[i] = (float)i;
    run("functions", 1, 1, 40, 1, 0, PARAMS(&in, &out, &numbers));
    for (int i = 0; i < 40; i++) {
        for (int k = 0; k < 4; k++)
            assert_true(out[4 * i + k] == in[4 * i + (i % 2 ? (k + 1) % 4 : k)]);
        assert_int_equal(numbers[i], fibonacci[i % 12]);
    }
}

static void check_atomics(void) {
    uint32_t *out = data.words;
    uint32_t *bits = data.sums;
    out[0] = out[1] = out[2] = out[3] = 0;
    bits[0] = 0x80000000;
    run("atomics", 2, 1, 64, 1, 0, PARAMS(&out, &bits));
    assert_int_equal(out[0], (uint32_t)(7 - 63));
    assert_int_equal(out[1], 63 * 3);
    assert_int_equal(out[2], 128);
    assert_true(out[3] >= 1 && out[3] <= 64);
    assert_int_equal(bits[0], 0x8000ffff);
}

/* ---- tables ---- */

static void check_table(const char *entry, const ds_param *params, size_t count) {
    ds_kernel k;
    ds_kernel_desc desc = { .name = entry,
                            .args_size = 8,
                            .params = params,
                            .param_count = count,
                            .cuda = { .image = text, .entry = entry } };
    if (ds_kernel_create(&desc, &k) < 0 || ds_kernel_destroy(k) < 0)
        fail_msg("%s", ds_error_get_last());
}

static void check_tables(void) {
    static const ds_param in = { DS_PARAM_READ, 0, 8 };
    static const ds_param out = { DS_PARAM_WRITE, 0, 8 };
    static const ds_param both = { DS_PARAM_READ_WRITE, 0, 8 };
    static const ds_param n4 = { DS_PARAM_VALUE, 0, 4 };
    static const ds_param n8 = { DS_PARAM_COUNT, 0, 8 };
    check_table("matmul", (const ds_param[]){ in, in, out, n4 }, 4);
    check_table("scan", (const ds_param[]){ in, out, n4 }, 3);
    check_table("histogram", (const ds_param[]){ in, both, n8 }, 3);
    check_table("stencil", (const ds_param[]){ in, out, n4, n4 }, 4);
    check_table("local_array", (const ds_param[]){ out, n4 }, 2);
    check_table("waves", (const ds_param[]){ in, out, n4 }, 3);
    check_table("conversions", (const ds_param[]){ in, out, out }, 3);
    check_table("vectors", (const ds_param[]){ in, out, in, out }, 4);
    check_table("functions", (const ds_param[]){ in, out, out }, 3);
    check_table("atomics", (const ds_param[]){ both, both }, 2);
}

/* ---- tests ---- */

static void check_all(const char *command) {
    char error[500];
    if (!compile(command))
        fail_msg("failed: %s", command);
    module = ptx_load(text, error, sizeof error);
    if (!module)
        fail_msg("%s: %s", command, error);
    check_matmul();
    check_scan();
    check_histogram();
    check_stencil();
    check_local_array();
    check_waves();
    check_conversions();
    check_vectors();
    check_functions();
    check_atomics();
    ptx_unload(module);
    check_tables();
}

static void test_kernels_of_clang_run_at_every_level(void **state) {
    static const char base[] = "-x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc "
                               "-nocudalib -Wno-unknown-cuda-version -S";
    static const char *const names[] = { "clang-14", "clang" };
    char command[300];
    int found = 0;
    (void)state;
    for (int i = 0; i < 2 && !found; i++) {
        for (int level = 0; level < 4; level++) {
            snprintf(command, sizeof command, "%s %s -O%d", names[i], base, level);
            found += level > 0 || compile(command);
            if (!found)
                break;
            check_all(command);
        }
        if (found) {
            snprintf(command, sizeof command, "%s %s -O3 -ffast-math", names[i], base);
            check_all(command);
        }
    }
    if (!found)
        skip();
}

static void test_kernels_of_nvcc_run_at_every_level(void **state) {
    static const char *const levels[] = { "-Xcicc -O0", "-Xcicc -O1", "-Xcicc -O2",
                                          "-O3",        "-G",         "-use_fast_math" };
    const char *home = getenv("CUDA_HOME");
    char command[500];
    (void)state;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        snprintf(command, sizeof command, "PATH=$PATH:%s/bin nvcc -ptx -arch=sm_75 %s",
                 home && *home ? home : "/usr/local/cuda", levels[i]);
        if (i == 0 && !compile(command))
            skip();
        check_all(command);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_of_clang_run_at_every_level),
        cmocka_unit_test(test_kernels_of_nvcc_run_at_every_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
