/* Functions, parameters and uses of parameters in PTX text, which ds_kernel_create compares with
   a kernel's table. Also reads changed and cut texts. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "unit.h"

#include "kernels_ptx.h"
#include "standin/ptx.h"

#define HEAD ".version 5.0\n.target sm_60\n.address_size 64\n"

static ds__ptx_function found;

static ds__ptx_answer find(const char *text, const char *name) {
    return ds__ptx_find(ds__ptx_text(text, 0), name, &found);
}

static const ds__ptx_param *param_of(const char *list) {
    char text[512];
    snprintf(text, sizeof text, HEAD ".visible .entry f(%s) { ret; }\n", list);
    if (find(text, "f") != DS__PTX_FOUND)
        return NULL;
    assert_int_equal(found.count, 1);
    return &found.param[0];
}

/* ---- texts ---- */

static void test_only_text_with_a_version_is_ptx(void **state) {
    static const char *const no[] = { "",
                                      "nonsense",
                                      "//",
                                      "/*",
                                      "\177ELF",
                                      "\x50\xed\x55\xba",
                                      ".target sm_60\n.version 5.0",
                                      ".versions 5.0" };
    static const char *const yes[] = { HEAD, "// a comment\n\t/* another */ " HEAD };
    (void)state;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        ds__ptx_reader text = ds__ptx_text(no[i], 0);
        assert_ptr_equal(text.at, text.end);
        text = ds__ptx_text(no[i], strlen(no[i]) + 1);
        assert_ptr_equal(text.at, text.end);
    }
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        ds__ptx_reader text = ds__ptx_text(yes[i], 0);
        assert_ptr_equal(text.end, yes[i] + strlen(yes[i]));
    }
}

static void test_a_text_ends_at_its_size_or_at_a_zero(void **state) {
    static const char text[] = HEAD ".entry f { ret; }\0.entry g { ret; }";
    (void)state;
    assert_int_equal(ds__ptx_find(ds__ptx_text(text, sizeof text), "f", &found), DS__PTX_FOUND);
    assert_int_equal(ds__ptx_find(ds__ptx_text(text, sizeof text), "g", &found), DS__PTX_ABSENT);
    assert_int_equal(ds__ptx_find(ds__ptx_text(text, strlen(HEAD)), "f", &found), DS__PTX_ABSENT);
    for (size_t size = strlen(HEAD); size < strlen(text); size++)
        assert_ptr_equal(ds__ptx_text(text, size).end, text + size);
}

static void test_pieces_are_joined_without_a_separator(void **state) {
    static const char *const pieces[] = { "ab", "", "c", NULL };
    static const char *const none[] = { NULL };
    (void)state;
    char *text = ds__ptx_join(pieces);
    assert_string_equal(text, "abc");
    ds__host_free(text);
    text = ds__ptx_join(none);
    assert_string_equal(text, "");
    ds__host_free(text);
}

static void test_functions_are_found_by_their_whole_name(void **state) {
    static const char text[] = HEAD ".func g(.param .u64 p) { ret; }\n"
                                    "// .entry h()\n/* .entry h() */ .pragma \".entry h()\";\n"
                                    ".visible .entry ab(\n.param .u64 ab_param_0\n)\n"
                                    ".maxntid 256, 1, 1\n.minnctapersm 2\n{\nret;\n}\n"
                                    ".weak .entry a { ret; }\n.entry abc() { ret; }\n";
    char names[100];
    (void)state;
    assert_int_equal(find(text, "ab"), DS__PTX_FOUND);
    assert_int_equal(found.count, 1);
    assert_int_equal(found.param[0].name_size, strlen("ab_param_0"));
    assert_int_equal(find(text, "a"), DS__PTX_FOUND);
    assert_int_equal(found.count, 0);
    assert_int_equal(find(text, "abc"), DS__PTX_FOUND);
    assert_int_equal(found.count, 0);
    assert_int_equal(find(text, "g"), DS__PTX_ABSENT);
    assert_int_equal(find(text, "h"), DS__PTX_ABSENT);
    assert_int_equal(find(text, ""), DS__PTX_ABSENT);
    ds__ptx_names(ds__ptx_text(text, 0), names, sizeof names);
    assert_string_equal(names, "ab, a, abc");
}

static void test_the_names_of_many_functions_are_cut_short(void **state) {
    char text[6000] = HEAD;
    char names[40];
    (void)state;
    for (int i = 0; i < 100; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 ".entry function_with_a_long_name_%d { ret; }", i);
    ds__ptx_names(ds__ptx_text(text, 0), names, sizeof names);
    assert_int_equal(strlen(names), sizeof names - 1);
    strcpy(text, HEAD ".entry a{} .entry b{} .entry c{} .entry d{} .entry e{} .entry f{}");
    ds__ptx_names(ds__ptx_text(text, 0), names, sizeof names);
    assert_string_equal(names, "a, b, c, d and 2 more");
}

static void test_a_declaration_gives_way_to_the_definition(void **state) {
    (void)state;
    assert_int_equal(find(HEAD ".entry f(.param .u32 a);\n.entry f(.param .u32 b) { ret; }", "f"),
                     DS__PTX_FOUND);
    assert_memory_equal(found.param[0].name, "b", 1);
    assert_int_equal(find(HEAD ".entry f(.param .u32 a);", "f"), DS__PTX_FOUND);
    assert_ptr_equal(found.body.at, found.body.end);
}

static void test_texts_that_are_not_understood_say_nothing(void **state) {
    static const char *const texts[] = {
        HEAD "#if 1\n.entry f() { ret; }\n#endif",
        HEAD ".entry f(.param .u32 a",
        HEAD ".entry f(.param .u32)",
        HEAD ".entry f(.param .u32 a b) { ret; }",
        HEAD ".entry f(.param .u32 a, ) { ret; }",
        HEAD ".entry f(.param .attribute(.x) .u32 a) { ret; }",
        HEAD ".entry f(.param .u32 a)",
        HEAD ".entry ( f",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (find(texts[i], "f") != DS__PTX_UNKNOWN)
            fail_msg("text %zu was understood", i);
}

/* ---- parameters ---- */

static void test_sizes_of_parameters(void **state) {
    static const struct {
        const char *list;
        size_t size;
        int pointer;
    } cases[] = {
        { ".param .u8 p", 1, 0 },
        { ".param .s16 p", 2, 0 },
        { ".param .f16 p", 2, 0 },
        { ".param .b32 p", 4, 0 },
        { ".param .f32 p", 4, 0 },
        { ".param .u64 p", 8, 0 },
        { ".param\t.f64\n f_param_0", 8, 0 },
        { ".param .align 8 .b8 p[24]", 24, 0 },
        { ".param .align 4 .b8 p [ 12 ]", 12, 0 },
        { ".param .u32 p[3]", 12, 0 },
        { ".param.align 8 .b8 p[24]", 24, 0 },
        { ".param .u64 .ptr p", 8, 1 },
        { ".param .u64 .ptr .align 1 p", 8, 1 },
        { ".param .u64 .ptr .global .align 16 p /* the first */", 8, 1 },
        /* sizes that are not known here */
        { ".param .texref p", 0, 0 },
        { ".param .b128 p", 0, 0 },
        { ".param .v4 .f32 p", 0, 0 },
        { ".param .align 8 .b8 p[]", 0, 0 },
        { ".param .align 8 .b8 p[0x10]", 0, 0 },
        { ".param .b8 p[9999999]", 0, 0 },
        { ".param .b8 p[4][4]", 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ds__ptx_param *p = param_of(cases[i].list);
        if (!p || p->size != cases[i].size || p->pointer != cases[i].pointer)
            fail_msg("%s: size %zu, pointer %d", cases[i].list, p ? p->size : 0,
                     p ? p->pointer : 0);
    }
}

static void test_more_parameters_than_a_table_has_are_counted(void **state) {
    static char text[32 * (DS_KERNEL_MAX_PARAMS + 50)] = HEAD ".entry f(";
    (void)state;
    for (int i = 0; i < DS_KERNEL_MAX_PARAMS + 44; i++)
        snprintf(text + strlen(text), 32, "%s.param .u64 p%d", i ? ", " : "", i);
    strcat(text, ") { ret; }");
    assert_int_equal(find(text, "f"), DS__PTX_FOUND);
    assert_int_equal(found.count, DS_KERNEL_MAX_PARAMS + 44);
}

/* ---- uses ---- */

enum { NO = 0, READS = DS__PTX_ADDRESS, WRITES = DS__PTX_ADDRESS | DS__PTX_STORED };

/* Finds the uses of f(u64 a, u64 b, u32 n, struct of 8 bytes s). */
static void expect_uses(const char *body, int a, int b) {
    unsigned char uses[4];
    char text[2048];
    int wrote = snprintf(text, sizeof text,
                         HEAD ".entry f(.param .u64 a, .param .u64 b, .param .u32 n, "
                              ".param .align 8 .b8 s[8]) {\n%s\nret;\n}\n",
                         body);
    assert_in_range(wrote, 1, sizeof text - 1);
    assert_int_equal(find(text, "f"), DS__PTX_FOUND);
    assert_true(ds__ptx_use_find(&found, uses));
    if (uses[0] != a || uses[1] != b || uses[2] || uses[3])
        fail_msg("%s: uses %d %d %d %d", body, uses[0], uses[1], uses[2], uses[3]);
}

#define LOAD_A ".reg .b64 %rd<9>; ld.param.u64 %rd1, [a];\n"
#define LOAD_AB LOAD_A "ld.param.u64 %rd2, [b+0];\n"

static void test_addresses_of_one_parameter_are_known(void **state) {
    (void)state;
    expect_uses("", NO, NO);
    expect_uses(LOAD_A, NO, NO);
    expect_uses(LOAD_A "ld.global.u32 %r1, [%rd1];", READS, NO);
    expect_uses(LOAD_A "ld.global.nc.v2.u32 {%r1, %r2}, [%rd1+8];", READS, NO);
    expect_uses(LOAD_A "@%p1 st.u32 [%rd1], 7;", WRITES, NO);
    expect_uses(LOAD_A "@!%p1 atom.global.add.u32 %r1, [%rd1], 1;", WRITES, NO);
    expect_uses(LOAD_A "red.global.add.f32 [%rd1+-4], 0f3F800000;", WRITES, NO);
    expect_uses(LOAD_A "cvta.to.global.u64 %rd2, %rd1;", READS, NO);
    expect_uses(LOAD_AB "cvta.to.global.u64 %rd3, %rd2; st.global.u32 [%rd3], %r9;", NO, WRITES);
}

static void test_indices_of_threads_are_no_base(void **state) {
    (void)state;
    expect_uses(LOAD_AB "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x;"
                        "mad.lo.s32 %r4, %r1, %r3, %r2; mul.wide.s32 %rd3, %r4, 4;"
                        "add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;"
                        "ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd5], %f1;",
                READS, WRITES);
    expect_uses(LOAD_A "L: st.global.u8 [%rd1], 0; add.s64 %rd1, %rd1, 1; @%p1 bra L;", WRITES, NO);
    expect_uses("{.reg.b64 d; ld.param.u64 d, [a]; st.u8 [d], 0; }", WRITES, NO);
    expect_uses(LOAD_A "setp.gt.s64 %p1, %rd1, 0; selp.b64 %rd2, %rd1, 0, %p1;"
                       "ld.global.u8 %rs1, [%rd2];",
                READS, NO);
    expect_uses(LOAD_A "mov.b64 {%r1, %r2}, %rd1; mov.b64 %rd2, {%r1, %r2}; ld.u8 %rs1, [%rd2];",
                READS, NO);
}

static void test_what_may_have_another_base_is_not_known(void **state) {
    (void)state;
    /* either may be the base */
    expect_uses(LOAD_AB "add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 0;", NO, NO);
    expect_uses(LOAD_A "ld.param.u32 %r1, [n]; mul.wide.s32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;"
                       "st.global.u32 [%rd3], 0;",
                NO, NO);
    /* the same register for two values */
    expect_uses(LOAD_A "@%p1 ld.param.u64 %rd1, [b]; st.global.u32 [%rd1], 0;", NO, NO);
    /* a loaded address, one of a variable, one from an unknown instruction */
    expect_uses(LOAD_A "ld.u64 %rd2, [%rd1]; add.s64 %rd3, %rd2, %rd1; st.u32 [%rd3], 0;", READS,
                NO);
    expect_uses(LOAD_A
                ".global .u32 x; mov.u64 %rd2, x; add.s64 %rd3, %rd2, %rd1; st.u8 [%rd3], 0;",
                NO, NO);
    expect_uses(LOAD_A "frobnicate.u64 %rd2, %rd1; add.s64 %rd3, %rd2, %rd1; st.u8 [%rd3], 0;", NO,
                NO);
    expect_uses(LOAD_A "cvta.shared.u64 %rd2, %rd1; st.u8 [%rd2], 0;", NO, NO);
    expect_uses(LOAD_A "add.s64 %rd2, %rd1, [%rd3]; st.u8 [%rd2], 0;", NO, NO);
    /* what no instruction writes */
    expect_uses(LOAD_A "add.s64 %rd2, %rd1, %rd7; st.u8 [%rd2], 0;", NO, NO);
}

static void test_other_memory_and_parts_are_no_address(void **state) {
    (void)state;
    expect_uses(LOAD_A "st.shared.u32 [%rd1], 0;", NO, NO);
    expect_uses(LOAD_A "ld.const.u32 %r1, [%rd1]; ld.local.u32 %r2, [%rd1];", NO, NO);
    expect_uses(LOAD_A "atom.shared::cta.add.u32 %r1, [%rd1], 1;", NO, NO);
    expect_uses("ld.param.u32 %r1, [a]; cvt.u64.u32 %rd1, %r1; st.u32 [%rd1], 0;", NO, NO);
    expect_uses("ld.param.u32 %r1, [a+4]; cvt.u64.u32 %rd1, %r1; st.u32 [%rd1], 0;", NO, NO);
    expect_uses("ld.param.v2.u64 {%rd1, %rd2}, [a]; st.u32 [%rd1], 0;", NO, NO);
    /* a struct with an address in it may be a value */
    expect_uses("ld.param.u64 %rd1, [s]; st.u32 [%rd1], 0;", NO, NO);
    expect_uses("mov.b64 %rd1, s; ld.param.u64 %rd2, [%rd1]; st.u32 [%rd2], 0;", NO, NO);
}

static void test_bodies_that_are_not_understood_say_nothing(void **state) {
    (void)state;
    expect_uses(LOAD_A "st.u32 [%rd1], 0; .wizardry 7;", NO, NO);
    expect_uses(LOAD_A "st.u32 [%rd1], 0; add.u32 %r1, }{ %r2;", NO, NO);
    expect_uses(LOAD_A "st.u32 [%rd1], 0; { .param .b64 a; st.param.b64 [a], 0; }", NO, NO);
    expect_uses(LOAD_A "st.u32 [%rd1], 0; [%rd1];", NO, NO);
    expect_uses(LOAD_A "st.u32 [%rd1], 0; )", NO, NO);
    /* what is in many bodies does no harm */
    expect_uses(LOAD_A ".loc 1 2 3, function_name $L__x, inlined_at 1 4 5\nst.u32 [%rd1], 0;"
                       ".pragma \"nounroll\"; bar.sync 0; { .reg .b32 %t; mov.u32 %t, 0; }"
                       "{ .param .b64 param0; st.param.b64 [param0+0], %rd1; call.uni (r), g,"
                       " (param0); ld.param.b32 %r3, [r+0]; } membar.gl; $L__1: trap;",
                WRITES, NO);
}

static void test_a_chain_that_is_too_long_says_nothing(void **state) {
    static char text[4096];
    unsigned char uses[1];
    (void)state;
    /* backwards, so that each round of the computation reaches one more register */
    for (int length = 5; length < 70; length += 60) {
        strcpy(text, HEAD ".entry f(.param .u64 a) { .reg .b64 %r<99>;");
        for (int i = length; i > 0; i--)
            snprintf(text + strlen(text), 40, "mov.u64 %%r%d, %%r%d;", i, i - 1);
        snprintf(text + strlen(text), 80, "ld.param.u64 %%r0, [a]; st.u8 [%%r%d], 0; }", length);
        assert_int_equal(find(text, "f"), DS__PTX_FOUND);
        assert_true(ds__ptx_use_find(&found, uses));
        assert_int_equal(uses[0], length == 5 ? WRITES : NO);
    }
}

/* ---- the library's own kernels ---- */

/* The table may go on behind the parameters of the function. */
static void expect_table_fits(const char *text, const char *entry, const ds_param *params,
                              size_t param_count) {
    assert_int_equal(find(text, entry), DS__PTX_FOUND);
    assert_in_range(found.count, 1, param_count);
    ds_kernel_desc desc = {
        .name = entry, .params = params, .param_count = found.count, .cuda = { .entry = entry }
    };
    if (ds__kernel_table_check_sizes(&desc, &found) < 0 ||
        ds__kernel_table_check_kinds(&desc, &found) < 0)
        fail_msg("%s", ds_error_get_last());
}

static void test_the_tables_of_the_collectives_fit(void **state) {
    (void)state;
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        ds_kernel_desc desc = ds__comm_desc(i);
        char *joined = desc.cuda.image_pieces ? ds__ptx_join(desc.cuda.image_pieces) : NULL;
        expect_table_fits(joined ? joined : desc.cuda.image, desc.cuda.entry, desc.params,
                          desc.param_count);
        ds__host_free(joined);
    }
}

static void test_the_tables_of_the_generators_fit(void **state) {
    (void)state;
    for (int i = 0; i < DS__RNG_KERNELS; i++) {
        char *joined = ds__rng_forms[i].pieces ? ds__ptx_join(ds__rng_forms[i].pieces) : NULL;
        expect_table_fits(joined ? joined : ds__rng_forms[i].text, ds__rng_forms[i].entry,
                          ds__rng_forms[i].params, ds__rng_forms[i].count);
        assert_int_equal(found.count, ds__rng_forms[i].count);
        ds__host_free(joined);
    }
}

/* The results of collectives and fills are promised to the last bit. */
static void expect_exact(const char *text) {
    char error[300];
    ptx_module *m = ptx_load(text, error, sizeof error);
    if (!m || ptx_inexact(m))
        fail_msg("%s", m ? ptx_inexact(m) : error);
    ptx_unload(m);
}

static void test_the_librarys_kernels_have_defined_bits(void **state) {
    (void)state;
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        ds_kernel_desc desc = ds__comm_desc(i);
        char *joined = desc.cuda.image_pieces ? ds__ptx_join(desc.cuda.image_pieces) : NULL;
        expect_exact(joined ? joined : desc.cuda.image);
        ds__host_free(joined);
    }
    for (int i = 0; i < DS__RNG_KERNELS; i++) {
        char *joined = ds__rng_forms[i].pieces ? ds__ptx_join(ds__rng_forms[i].pieces) : NULL;
        expect_exact(joined ? joined : ds__rng_forms[i].text);
        ds__host_free(joined);
    }
    expect_exact(ptx_matmul);
}

static void test_the_parameters_of_a_fill_are_recognised(void **state) {
    unsigned char uses[DS_KERNEL_MAX_PARAMS];
    (void)state;
    assert_int_equal(find(ds__ptx_rng_state, "ds__rng_state"), DS__PTX_FOUND);
    assert_true(ds__ptx_use_find(&found, uses));
    assert_int_equal(uses[0], WRITES);
    assert_int_equal(uses[1], NO);
}

/* ---- memory ---- */

static int allocations_left;

static void *scarce_alloc(size_t size, void *user) {
    (void)user;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void scarce_free(void *ptr, void *user) {
    (void)user;
    free(ptr);
}

static void test_a_check_without_memory_is_refused_as_such(void **state) {
    static const char *const pieces[] = { ptx_fold, NULL };
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, 0, 8 }, { DS_PARAM_VALUE, 8, 8 } };
    ds_kernel_desc desc = { .name = "fold",
                            .args_size = 16,
                            .params = params,
                            .param_count = 2,
                            .cuda = { .image_pieces = pieces, .entry = "fold" } };
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    int calls = 0;
    (void)state;
    ds__allocator = (ds_allocator){ .alloc_fn = scarce_alloc, .free_fn = scarce_free };
    for (; r == DS_ERR_OUT_OF_MEMORY; calls++) {
        allocations_left = calls;
        r = ds__kernel_table_check(&desc);
        assert_true(r == DS_OK || strstr(ds_error_get_last(), "no memory to check kernel fold"));
    }
    ds__allocator = (ds_allocator){ 0 };
    assert_int_equal(r, DS_OK);
    assert_in_range(calls, 4, 10);
}

/* ---- changed texts ---- */

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Reads a text in memory of its own, in which a sanitizer sees a byte too many. */
static void read_exactly(const char *text, size_t size, const char *entry) {
    unsigned char uses[DS_KERNEL_MAX_PARAMS];
    char names[64];
    char *copy = malloc(size + (size == 0));
    assert_non_null(copy);
    memcpy(copy, text, size);
    ds__ptx_reader reader = size ? ds__ptx_text(copy, size) : (ds__ptx_reader){ copy, copy };
    ds__ptx_names(reader, names, sizeof names);
    if (ds__ptx_find(reader, entry, &found) == DS__PTX_FOUND && found.count <= DS_KERNEL_MAX_PARAMS)
        assert_true(ds__ptx_use_find(&found, uses));
    free(copy);
}

static void test_changed_and_cut_texts_are_read_safely(void **state) {
    static const char alphabet[] = "{}[]();:,.@!%/*\"#+- \n\0aw019\x80";

    static const struct {
        const char *text;
        const char *entry;
    } sources[] = { { ds__ptx_comm_select, "ds__comm_select" },
                    { ptx_matmul, "matmul" },
                    { ptx_tally, "tally" },
                    { ds__ptx_rng_state, "ds__rng_state" } };

    static char text[8192];
    (void)state;
    for (int round = 0; round < 12000; round++) {
        size_t i = random_below(sizeof sources / sizeof *sources);
        size_t size = strlen(sources[i].text);
        assert_in_range(size, 1, sizeof text - 1);
        memcpy(text, sources[i].text, size);
        for (uint32_t changes = random_below(6); changes; changes--)
            text[random_below((uint32_t)size)] = alphabet[random_below(sizeof alphabet)];
        if (random_below(2)) /* without a part in the middle */
        {
            size_t from = random_below((uint32_t)size);
            size_t to = from + random_below((uint32_t)(size - from));
            memmove(text + from, text + to, size - to);
            size -= to - from;
        }
        read_exactly(text, random_below(3) ? size : random_below((uint32_t)size + 1),
                     sources[i].entry);
    }
}

static void test_every_prefix_of_a_text_is_read_safely(void **state) {
    (void)state;
    for (size_t size = strlen(ptx_matmul); size > 0; size--)
        read_exactly(ptx_matmul, size, "matmul");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_text_with_a_version_is_ptx),
        cmocka_unit_test(test_a_text_ends_at_its_size_or_at_a_zero),
        cmocka_unit_test(test_pieces_are_joined_without_a_separator),
        cmocka_unit_test(test_functions_are_found_by_their_whole_name),
        cmocka_unit_test(test_the_names_of_many_functions_are_cut_short),
        cmocka_unit_test(test_a_declaration_gives_way_to_the_definition),
        cmocka_unit_test(test_texts_that_are_not_understood_say_nothing),
        cmocka_unit_test(test_sizes_of_parameters),
        cmocka_unit_test(test_more_parameters_than_a_table_has_are_counted),
        cmocka_unit_test(test_addresses_of_one_parameter_are_known),
        cmocka_unit_test(test_indices_of_threads_are_no_base),
        cmocka_unit_test(test_what_may_have_another_base_is_not_known),
        cmocka_unit_test(test_other_memory_and_parts_are_no_address),
        cmocka_unit_test(test_bodies_that_are_not_understood_say_nothing),
        cmocka_unit_test(test_a_chain_that_is_too_long_says_nothing),
        cmocka_unit_test(test_the_tables_of_the_collectives_fit),
        cmocka_unit_test(test_the_tables_of_the_generators_fit),
        cmocka_unit_test(test_the_librarys_kernels_have_defined_bits),
        cmocka_unit_test(test_the_parameters_of_a_fill_are_recognised),
        cmocka_unit_test(test_a_check_without_memory_is_refused_as_such),
        cmocka_unit_test(test_changed_and_cut_texts_are_read_safely),
        cmocka_unit_test(test_every_prefix_of_a_text_is_read_safely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
