/* The training example: its exponential beside libm's, and the whole program on the stand-in for
   cudart and on CPU devices, which must end with the same weights. It checks itself that one
   device and four give the same. */
#define main train_main
#include "../../examples/train.c"
#undef main

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

/* Every 97th number from 0 down to where the result is no normal number any more. */
static void test_the_exponential_is_off_by_one_ulp_at_most(void **unused) {
    union {
        float value;
        uint32_t bits;
    } x = { .value = 87.0f };

    double worst = 0;
    (void)unused;
    for (; x.bits > 97; x.bits -= 97) {
        double exact = exp(-(double)x.value), ulp;
        int e;
        (void)frexp(exact, &e);
        ulp = ldexp(1, e - 24);
        worst = fmax(worst, fabs((double)exponential(-x.value) - exact) / ulp);
    }
    if (!(worst < 1))
        fail_msg("off by %g ulp", worst);
    assert_true(exponential(0) == 1 && exponential(-88) == 0 && exponential(-INFINITY) == 0 &&
                exponential(NAN) == 0);
}

/* Runs the program with its standard output, and its standard error where that is wanted, going
   to a file. */
static int run(char *said, size_t size, int with_errors, int argc, char **argv) {
    FILE *out = tmpfile();
    int saved[2] = { dup(STDOUT_FILENO), dup(STDERR_FILENO) }, result;
    assert_true(out && saved[0] >= 0 && saved[1] >= 0);
    fflush(stdout);
    dup2(fileno(out), STDOUT_FILENO);
    if (with_errors)
        dup2(fileno(out), STDERR_FILENO);
    memset(&opt, 0, sizeof opt);
    learnt_count = held_out_count = 0;
    result = train_main(argc, argv);
    fflush(stdout);
    dup2(saved[0], STDOUT_FILENO);
    dup2(saved[1], STDERR_FILENO);
    rewind(out);
    said[fread(said, 1, size - 1, out)] = 0;
    close(saved[0]);
    close(saved[1]);
    fclose(out);
    return result;
}

/* The first pictures of the data, so that the interpreter is done soon: two batches of 64 and 33
   that are held out. */
static char path[] = "/tmp/test_train.XXXXXX";

static int make_data(void **unused) {
    char line[512];
    FILE *from = fopen("examples/data/digits.csv", "r");
    int fd = mkstemp(path);
    FILE *to = fd < 0 ? NULL : fdopen(fd, "w");
    (void)unused;
    if (!from || !to)
        return -1;
    for (int i = 0; i < 165 && fgets(line, sizeof line, from); i++)
        fputs(line, to);
    fclose(from);
    return fclose(to);
}

static int drop_data(void **unused) {
    (void)unused;
    return unlink(path);
}

static void test_all_devices_end_with_the_same_weights(void **unused) {
    static char name[] = "train", epochs[] = "--epochs", one[] = "1", cpu[] = "--cpu";
    char *argv[] = { name, epochs, one, path, cpu, NULL }, said[2][2048], *weights[2];
    (void)unused;
    assert_int_equal(run(said[0], sizeof said[0], 0, 5, argv), FINE);
    assert_int_equal(run(said[1], sizeof said[1], 0, 4, argv), FINE);
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(said[i], "the same, bit for bit"));
        weights[i] = strstr(said[i], "weights   ");
        assert_non_null(weights[i]);
    }
    assert_non_null(strstr(said[0], "from cpu:0"));
    assert_string_equal(weights[0], weights[1]);
#ifdef DEVSTREAM_CUDA
    assert_non_null(strstr(said[1], "from cuda:0"));
#endif
}

static void test_another_result_of_four_devices_is_found(void **unused) {
    static char name[] = "train", epochs[] = "--epochs", one[] = "1", cpu[] = "--cpu",
                damage[] = "--damage";
    char *argv[] = { name, epochs, one, path, cpu, damage, NULL }, said[2048];
    (void)unused;
    assert_int_equal(run(said, sizeof said, 1, 6, argv), FAILED);
    assert_non_null(strstr(said, "WRONG: weight 0 is"));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_exponential_is_off_by_one_ulp_at_most),
        cmocka_unit_test(test_all_devices_end_with_the_same_weights),
        cmocka_unit_test(test_another_result_of_four_devices_is_found),
    };
    return cmocka_run_group_tests_name("train", tests, make_data, drop_data);
}
