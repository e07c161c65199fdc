/* cudart as it is found and loaded at run time, with libraries that only have cudart's names
   (support/cudart.c) in a folder of the test. Each search runs in a process of its own, since a
   loaded library stays. */
#define _GNU_SOURCE /* nftw */
#define DEVSTREAM_CUDA_DLOPEN
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char root[64];
static char program[PATH_MAX];
static char built[PATH_MAX]; /* the folder of the libraries */

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)is;
    (void)kind;
    (void)at;
    return remove(path);
}

static int begin(void **state) {
    (void)state;
    strcpy(root, "/tmp/ds-cudart-XXXXXX");
    unsetenv("DEVSTREAM_CUDART");
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    unsetenv("FAKE_CUDART_11");
    setenv("FAKE_CUDART_12", "12040 100", 1);
    setenv("FAKE_CUDART_13", "13000 100", 1);
    setenv("HOME", "/nowhere", 1);
    return mkdtemp(root) == NULL;
}

static int end(void **state) {
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void path_of(char *out, const char *path) {
    snprintf(out, PATH_MAX, "%s/%s", root, path);
}

/* Puts a library of the build into a folder below the root. */
static void put(const char *library, const char *path) {
    char from[2 * PATH_MAX];
    char to[PATH_MAX];
    path_of(to, path);
    for (char *at = strchr(to + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(to, 0700);
        *at = '/';
    }
    snprintf(from, sizeof from, "%s/%s.so", built, library);
    if (access(from, R_OK) != 0 || symlink(from, to) != 0)
        fail_msg("%s to %s: %s", from, to, strerror(errno));
}

/* Sets the variable that names cudart: a path below the root, or a word. */
static void name(const char *path) {
    char text[PATH_MAX];
    path_of(text, path);
    setenv("DEVSTREAM_CUDART", text, 1);
}

/* Runs a function in a process of its own, and gives the text that it wrote. */
static void in_process(void (*fn)(char *text, size_t size), char *out, size_t size) {
    int ends[2];
    int status = 1;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char text[600] = "";
        fn(text, sizeof text);
        _exit(write(ends[1], text, sizeof text) != (ssize_t)sizeof text);
    }
    close(ends[1]);
    memset(out, 0, size);
    ssize_t n = read(ends[0], out, size - 1);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(n > 0);
}

static void probe(char *text, size_t size) {
    ds_backend_info info;
    memset(&info, 0, sizeof info);
    ds__cuda_probe(&info);
    snprintf(text, size, "%s", info.reason);
}

/* The second time, another folder is named. */
static void probe_twice(char *text, size_t size) {
    probe(text, size);
    name("later");
    probe(text, size);
}

/* The reason of a probe must contain this text. */
static void expect(const char *want) {
    char text[600];
    in_process(probe, text, sizeof text);
    if (!strstr(text, want))
        fail_msg("\"%s\" does not contain \"%s\"", text, want);
}

/* ---- the search ---- */

static void test_the_newest_version_in_a_folder_is_loaded(void **state) {
    (void)state;
    put("cudart-12", "libcudart.so.12");
    put("cudart-13", "libcudart.so.13");
    name("");

    expect("cudaGetDeviceCount of libcudart.so.13 returned 100 (cudaErrorNoDevice");
}

static void test_a_driver_too_old_for_a_version_gets_the_next_one(void **state) {
    (void)state;
    put("cudart-12", "libcudart.so.12");
    put("cudart-13", "libcudart.so.13");
    name("");
    setenv("FAKE_CUDART_13", "13000 35", 1);

    expect("cudaGetDeviceCount of libcudart.so.12 returned 100");
}

static void test_a_driver_too_old_for_all_versions_is_reported(void **state) {
    (void)state;
    put("cudart-13", "libcudart.so.13");
    name("");
    setenv("FAKE_CUDART_13", "13000 35", 1);

    expect("not taken: cudaGetDeviceCount of libcudart.so.13 returned 35 (cudaErrorInsufficient");
}

static void test_a_toolkit_and_site_packages_are_searched(void **state) {
    static const char *const places[] = { "a/lib64/libcudart.so.12", "b/lib/libcudart.so.12",
                                          "c/nvidia/cuda_runtime/lib/libcudart.so.12",
                                          "d/nvidia/cu13/lib/libcudart.so.13" };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        put(i < 3 ? "cudart-12" : "cudart-13", places[i]);
        name((char[]){ (char)('a' + i), 0 });

        expect(i < 3 ? "of libcudart.so.12 returned 100" : "of libcudart.so.13 returned 100");
    }
}

static void test_a_library_that_is_named_is_loaded(void **state) {
    (void)state;
    put("cudart-12", "lib/anything.so");
    name("lib/anything.so");

    expect("cudaGetDeviceCount of DEVSTREAM_CUDART returned 100");
}

static void test_wheels_are_found_in_an_environment_of_python(void **state) {
    char text[PATH_MAX];
    (void)state;
    put("cudart-12", "venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12");
    path_of(text, "venv");
    setenv("VIRTUAL_ENV", text, 1);
    setenv("DEVSTREAM_CUDART", "wheels", 1);

    expect("of libcudart.so.12 returned 100");
}

static void test_the_reason_names_what_was_looked_for(void **state) {
    (void)state;
    name("nothing");

    expect(
        "not taken: no cudart (libcudart.so.13, libcudart.so.12, libcudart.so.11.0) was found in "
        "DEVSTREAM_CUDART=/tmp/ds-cudart-");
}

static void test_a_library_without_a_function_is_not_taken(void **state) {
    (void)state;
    put("cudart-lacks", "libcudart.so.12");
    name("");
    expect("not taken: libcudart.so.12 lacks cudaMemcpyAsync");

    put("cudart-11", "libcudart.so.11.0");
    setenv("FAKE_CUDART_11", "11080 100", 1);
    expect("of libcudart.so.11.0 returned 100");
}

/* The version has functions of its own. */
static void test_a_library_without_a_form_of_its_version_is_not_taken(void **state) {
    (void)state;
    put("cudart-11", "libcudart.so.11.0");
    setenv("FAKE_CUDART_11", "12080 100", 1);
    name("");

    expect("not taken: libcudart.so.11.0 lacks cudaStreamGetDevice");
}

static void test_a_machine_with_no_device_is_reported(void **state) {
    (void)state;
    put("cudart-13", "libcudart.so.13");
    setenv("FAKE_CUDART_13", "13000 0", 1);
    name("");

    expect("not taken: cudaGetDeviceCount finds no device");
}

static void test_a_version_before_11_8_is_not_taken(void **state) {
    (void)state;
    put("cudart-11", "libcudart.so.11.0");
    setenv("FAKE_CUDART_11", "11070 0", 1);
    name("");

    expect("not taken: libcudart.so.11.0 lacks CUDA 11.8");
}

static void test_without_a_driver_11_8_reports_that(void **state) {
    (void)state;
    put("cudart-11", "libcudart.so.11.0");
    setenv("FAKE_CUDART_11", "0 35", 1);
    name("");

    expect("not taken: cudaGetDeviceCount of libcudart.so.11.0 returned 35");
}

/* The program again, with a folder that the system searches, which is known at the start of a
   process: it loads the library of the process, and then searches. */
static void test_a_cudart_of_the_process_is_shared(void **state) {
    char command[4 * PATH_MAX];
    char text[600] = "";
    (void)state;
    put("cudart-13", "system/libcudart.so.13");
    put("cudart-12", "elsewhere/torch.so");
    snprintf(command, sizeof command,
             "LD_LIBRARY_PATH=%s/system '%s' --beside '%s/elsewhere/torch.so'", root, program,
             root);

    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    assert_int_equal(pclose(f), 0);

    if (!strstr(text, "of libcudart.so.12 returned 100"))
        fail_msg("%s", text);
}

static int beside(const char *path) {
    char text[600] = "";
    if (!dlopen(path, RTLD_NOW))
        return 1;
    probe(text, sizeof text);
    return puts(text) < 0;
}

static void test_a_second_start_searches_again_after_a_failure(void **state) {
    char text[600];
    (void)state;
    put("cudart-13", "libcudart.so.13");
    put("cudart-12", "later/libcudart.so.12");
    name("");

    in_process(probe_twice, text, sizeof text);

    assert_non_null(strstr(text, "of libcudart.so.12 returned 100"));
}

/* Two searches: the second one gets the library in use, then that of the folder. */
static void search_twice(char *text, size_t size) {
    char reason[300];
    int found[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        ds__cudart_search search = { 0 };
        while (found[k] < 9 && ds__cudart_load(&search, reason, sizeof reason))
            found[k]++;
    }
    snprintf(text, size, "%d, then %d", found[0], found[1]);
}

static void test_a_library_in_use_is_offered_once_for_each_search(void **state) {
    char text[600];
    (void)state;
    put("cudart-13", "libcudart.so.13");
    name("");

    in_process(search_twice, text, sizeof text);

    assert_string_equal(text, "1, then 2");
}

/* The error of the program before the load, and what is left after it. */
static void load_with_error(char *text, size_t size, int before) {
    char path[PATH_MAX];
    path_of(path, "libcudart.so.11.0");
    void *library = dlopen(path, RTLD_NOW);
    int *error = library ? dlsym(library, "fake_cudart_error") : NULL;
    if (!error)
        return;
    *error = before;
    (void)ds__cudart_fill(library);
    snprintf(text, size, "%d left", *error);
}

static void load_with_700(char *text, size_t size) {
    load_with_error(text, size, 700);
}

static void load_without_error(char *text, size_t size) {
    load_with_error(text, size, 0);
}

static void test_a_load_leaves_the_programs_error_and_none_of_its_own(void **state) {
    char text[600];
    (void)state;
    put("cudart-11", "libcudart.so.11.0");
    setenv("FAKE_CUDART_11", "11080 100", 1);

    in_process(load_with_700, text, sizeof text);
    assert_string_equal(text, "700 left");
    setenv("FAKE_CUDART_11", "0 35", 1); /* the question for the version fails */
    in_process(load_without_error, text, sizeof text);
    assert_string_equal(text, "0 left");
}

/* ---- forms by version ---- */

/* Calls every function whose form differs, and lists what the library has recorded. */
static void call_forms(char *text, size_t size) {
    ds__cudart_search search = { 0 };
    char *last;
    size_t at = 0;
    if (!ds__cudart_load(&search, text, size))
        return;
    last = ds__os_library_symbol(ds__cudart_library.library, "fake_cudart_last");
#define CALL(call)                                                          \
    do {                                                                    \
        int code_ = (int)(call);                                            \
        if (code_)                                                          \
            at += (size_t)snprintf(text + at, size - at, "%d\n", code_);    \
        else                                                                \
            at += (size_t)snprintf(text + at, size - at, "%s\n", last + 4); \
    } while (0)
#define CHECK(condition) \
    if (!(condition))    \
    at += (size_t)snprintf(text + at, size - at, "wrong: %s\n", #condition)
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph = (cudaGraph_t)(uintptr_t)64;
    cudaStream_t stream = (cudaStream_t)(uintptr_t)32;
    cudaGraphNode_t node = NULL;
    const cudaGraphNode_t *after;
    size_t count = 0;
    int number = 0;
    void *entry = text;
    CALL(ds__cudart_capture_info(stream, &status, &id, &graph, &after, &count));
    CHECK(count == 3);
    CALL(ds__cudart_capture_after(stream, &node, 7, 1));
    CALL(ds__cudart_capture_into(stream, graph, NULL, 8, cudaStreamCaptureModeRelaxed));
    CALL(ds__cudart_connect(graph, &node, &node, 9));
    CALL(ds__cudart_dependencies(node, NULL, NULL, &count));
    CHECK(count == 4);
    CALL(ds__cudart_update(NULL, graph, &number, &node));
    CHECK(number == 2 && node == (void *)graph);
    CALL(ds__cudart_entry_point("cuCtxGetCurrent", 11080, &entry));
    CHECK(entry == text);
    CALL(ds__cudart_stream_device(stream, &number));
    CALL(ds__cudart_copy_batch(NULL, NULL, NULL, 6, stream)); /* with the stream: 38 */
#undef CALL
#undef CHECK
}

static void expect_forms(const char *library, const char *setting, const char *want) {
    char text[600];
    char variable[24];
    char path[2 * PATH_MAX];
    snprintf(variable, sizeof variable, "FAKE_CUDART_%s", library + strlen("cudart-"));
    setenv(variable, setting, 1);
    snprintf(path, sizeof path, "%s/%s.so", built, library);
    setenv("DEVSTREAM_CUDART", path, 1);

    in_process(call_forms, text, sizeof text);

    assert_string_equal(text, want);
}

static void test_each_version_is_called_in_its_own_form(void **state) {
    (void)state;
    expect_forms("cudart-11", "11080 0",
                 "StreamGetCaptureInfo_v2 0\n"
                 "StreamUpdateCaptureDependencies 7\n"
                 "801\n"
                 "GraphAddDependencies 9\n"
                 "GraphNodeGetDependencies 4\n"
                 "GraphExecUpdate 0\n"
                 "GetDriverEntryPoint 1\n"
                 "36\n"
                 "801\n");
    expect_forms("cudart-12", "12020 0",
                 "StreamGetCaptureInfo_v2 0\n"
                 "StreamUpdateCaptureDependencies 7\n"
                 "801\n"
                 "GraphAddDependencies 9\n"
                 "GraphNodeGetDependencies 4\n"
                 "GraphExecUpdate 1\n"
                 "GetDriverEntryPoint 1\n"
                 "36\n"
                 "801\n");
    expect_forms("cudart-12", "12040 0",
                 "StreamGetCaptureInfo_v3 0\n"
                 "StreamUpdateCaptureDependencies 7\n"
                 "StreamBeginCaptureToGraph 8\n"
                 "GraphAddDependencies 9\n"
                 "GraphNodeGetDependencies_v2 4\n"
                 "GraphExecUpdate 1\n"
                 "GetDriverEntryPoint 1\n"
                 "36\n"
                 "801\n");
    expect_forms("cudart-12", "12090 0",
                 "StreamGetCaptureInfo_v3 0\n"
                 "StreamUpdateCaptureDependencies 7\n"
                 "StreamBeginCaptureToGraph 8\n"
                 "GraphAddDependencies 9\n"
                 "GraphNodeGetDependencies_v2 4\n"
                 "GraphExecUpdate 1\n"
                 "GetDriverEntryPointByVersion 11080\n"
                 "StreamGetDevice 5\n"
                 "MemcpyBatchAsync 38\n");
    expect_forms("cudart-13", "13000 0",
                 "StreamGetCaptureInfo 0\n"
                 "StreamUpdateCaptureDependencies 7\n"
                 "StreamBeginCaptureToGraph 8\n"
                 "GraphAddDependencies 9\n"
                 "GraphNodeGetDependencies 4\n"
                 "GraphExecUpdate 1\n"
                 "GetDriverEntryPointByVersion 11080\n"
                 "StreamGetDevice 5\n"
                 "MemcpyBatchAsync 38\n");
}

/* cudart reports success for an entry point that the driver lacks, and sets the pointer. */
static void ask_for_an_entry(char *text, size_t size) {
    ds__cudart_search search = { 0 };
    void *entry = text;
    if (!ds__cudart_load(&search, text, size))
        return;
    *(int *)ds__os_library_symbol(ds__cudart_library.library, "fake_cudart_found") = 1;
    int code = (int)ds__cudart_entry_point("cuGreenCtxCreate", 12040, &entry);
    snprintf(text, size, "%d, %s", code, entry ? "an entry" : "none");
}

static void test_an_entry_point_that_was_not_found_is_none(void **state) {
    char text[600];
    (void)state;
    put("cudart-13", "libcudart.so.13");
    name("");

    in_process(ask_for_an_entry, text, sizeof text);

    assert_string_equal(text, "0, none");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(test_the_newest_version_in_a_folder_is_loaded),
        TEST(test_a_driver_too_old_for_a_version_gets_the_next_one),
        TEST(test_a_driver_too_old_for_all_versions_is_reported),
        TEST(test_a_toolkit_and_site_packages_are_searched),
        TEST(test_a_library_that_is_named_is_loaded),
        TEST(test_wheels_are_found_in_an_environment_of_python),
        TEST(test_the_reason_names_what_was_looked_for),
        TEST(test_a_library_without_a_function_is_not_taken),
        TEST(test_a_library_without_a_form_of_its_version_is_not_taken),
        TEST(test_a_machine_with_no_device_is_reported),
        TEST(test_a_version_before_11_8_is_not_taken),
        TEST(test_without_a_driver_11_8_reports_that),
        TEST(test_a_cudart_of_the_process_is_shared),
        TEST(test_a_second_start_searches_again_after_a_failure),
        TEST(test_a_library_in_use_is_offered_once_for_each_search),
        TEST(test_a_load_leaves_the_programs_error_and_none_of_its_own),
        TEST(test_each_version_is_called_in_its_own_form),
        TEST(test_an_entry_point_that_was_not_found_is_none),
    };
    char library[PATH_MAX + 20];
    ssize_t n = readlink("/proc/self/exe", built, sizeof built - 1);
    if (n <= 0)
        return 1;
    strcpy(program, built);
    *strrchr(built, '/') = 0;
    snprintf(library, sizeof library, "%s/cudart-13.so", built);
    if (access(library, R_OK) != 0)
        *strrchr(built, '/') = 0;
    if (argc > 2 && strcmp(argv[1], "--beside") == 0)
        return beside(argv[2]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
