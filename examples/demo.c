/* demo.c - reads a file in pieces, spreads them over all devices, counts bytes and takes a checksum
   there, and checks itself.

   Compile:  cc -O2 -I. examples/demo.c -o demo -pthread
     or, to use GPUs where there are some:
             cc -O2 -DDEVSTREAM_CUDA -I. -I$CUDA_HOME/include examples/demo.c -o demo \
                -L$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread
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
#include "devstream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

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

/* ---- kernels --------------------------------------------------------------------------------- */

/* What the kernels compute is written once, in kernels/, for the CPU and for CUDA; the PTX below
   is the CUDA form. */

/* clang-format off */
/* >>device-code kernels/demo.cu: written by make kernels */
enum {
    BLOCK = 16 * 1024, /* bytes of one item of a kernel */
    ADLER = 65521      /* the largest prime below 65536 */
};

/* what a row of results holds: 256 counts, S and W */
enum { COUNTS = 0, SUM = 256, WEIGHTED = 257, WORDS = 258 };

/* Where the items end. */
static inline uint64_t end_of(uint64_t size, uint64_t first, uint64_t count) {
    return (first + count) * BLOCK < size ? (first + count) * BLOCK : size;
}

static inline uint32_t byte_of(uint32_t word, uint32_t k) {
    return word >> 8 * k & 255;
}

/* Of n words, n at most 16: the sum of the bytes, and of i times byte i. The sums are taken in
   16 bits, two side by side: (0 + 1 + ... + 15) * (255 + 255) fits. */
static inline void sum_words(const uint32_t *word, uint32_t n, uint32_t *sum, uint32_t *weighted) {
    uint32_t even = 0, odd = 0, words = 0, both;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = word[i] & 0xff00ff, o = word[i] >> 8 & 0xff00ff;
        even += e;
        odd += o;
        words += i * (e + o);
    }
    both = even + odd;
    *sum = (both & 0xffff) + (both >> 16);
    *weighted =
        4 * ((words & 0xffff) + (words >> 16)) + (odd & 0xffff) + (odd >> 16) + 2 * (both >> 16);
}

/* What bytes with these sums add to W; remainder: of the position of the first of them modulo
   ADLER. */
static inline uint64_t weigh(uint32_t remainder, uint32_t sum, uint32_t weighted) {
    return (uint64_t)remainder * sum + weighted;
}

static inline uint64_t add_column(uint64_t sum, const uint64_t *rows, uint64_t count, uint64_t column) {
    for (uint64_t r = 0; r < count; r++)
        sum += rows[r * WORDS + column];
    return sum;
}


/* The CPU forms. */
typedef struct piece_args {
    const unsigned char *data; /* the piece; on a multiple of 16 */
    uint64_t *results;         /* WORDS words that are added to */
    uint64_t size;             /* bytes of the piece */
    uint64_t offset;           /* position of its first byte in the input */
} piece_args;

typedef struct add_args {
    uint64_t *sum;        /* WORDS words that are added to */
    const uint64_t *rows; /* count rows of WORDS words */
    uint64_t count;
} add_args;

/* Several threads add to the same results; whole numbers give the same sum in any order. */
static void add_shared(uint64_t *to, uint64_t value) {
    if (value)
        (void)__atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

/* Four tables in turn: equal bytes in a row, as text has them, would otherwise wait for each
   other's increment. */
static int histogram(size_t first, size_t count, const void *args) {
    const piece_args *a = args;
    const unsigned char *p = a->data + first * BLOCK,
                        *end = a->data + end_of(a->size, first, count);
    uint32_t table[4][256], w[2];
    memset(table, 0, sizeof table);
    for (; end - p >= 8; p += 8) {
        memcpy(w, p, 8);
        table[0][byte_of(w[0], 0)]++;
        table[1][byte_of(w[0], 1)]++;
        table[2][byte_of(w[0], 2)]++;
        table[3][byte_of(w[0], 3)]++;
        table[0][byte_of(w[1], 0)]++;
        table[1][byte_of(w[1], 1)]++;
        table[2][byte_of(w[1], 2)]++;
        table[3][byte_of(w[1], 3)]++;
    }
    for (; p < end; p++)
        table[0][*p]++;
    for (int i = 0; i < 256; i++)
        add_shared(&a->results[COUNTS + i],
                   (uint64_t)table[0][i] + table[1][i] + table[2][i] + table[3][i]);
    return 0;
}

static int checksum(size_t first, size_t count, const void *args) {
    const piece_args *a = args;
    uint64_t at = (uint64_t)first * BLOCK, end = end_of(a->size, first, count), sum = 0,
             weighted = 0;
    uint32_t remainder = (uint32_t)((a->offset + at) % ADLER), word[16], s, w;
    for (; end - at >= sizeof word; at += sizeof word) {
        memcpy(word, a->data + at, sizeof word);
        sum_words(word, 16, &s, &w);
        sum += s;
        weighted += weigh(remainder, s, w);
        remainder += (uint32_t)sizeof word;
        if (remainder >= ADLER)
            remainder -= ADLER;
    }
    for (; at < end; at++) {
        sum += a->data[at];
        weighted += weigh(remainder++, a->data[at], 0);
    }
    add_shared(&a->results[SUM], sum);
    add_shared(&a->results[WEIGHTED], weighted % ADLER);
    return 0;
}

/* Items are words. */
static int add_rows(size_t first, size_t count, const void *args) {
    const add_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->sum[i] = add_column(a->sum[i], a->rows, a->count, i);
    return 0;
}


static const char ptx_histogram[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry histogram( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<13>; .reg .b32 %r<85>; .reg .b64 %d<67>; .shared .align 4 .b8 s_table[32768]; ld.param.u64 %d20,[p0];\n"
    "ld.param.u64 %d22,[p2]; ld.param.u64 %d23,[p3]; mov.u32 %r31,%tid.x; and.b32 %r32,%r31,31; ld.param.u64 %d24,[p4];\n"
    "mul.wide.u32 %d25,%r32,4; mov.u64 %d26,s_table; mov.u32 %r33,%ctaid.x; mul.wide.u32 %d27,%r33,256;\n"
    "cvt.u64.u32 %d4,%r31; add.s64 %d28,%d27,%d4; shl.b64 %d29,%d28,4; shl.b64 %d30,%d23,14; add.s64 %d65,%d30,%d29;\n"
    "add.s64 %d31,%d24,%d23; shl.b64 %d32,%d31,14; min.u64 %d7,%d32,%d22; and.b64 %d66,%d7,-16; setp.gt.u32 %p1,%r31,8191;\n"
    "cvt.u32.u64 %r71,%d4; @%p1 bra L3; add.s32 %r73,%r71,-256; shl.b64 %d33,%d4,2; add.s64 %d63,%d26,%d33; mov.u32 %r36,0;\n"
    "L2: st.shared.u32 [%d63],%r36; add.s32 %r73,%r73,256; add.s64 %d63,%d63,1024; setp.lt.u32 %p2,%r73,7936; @%p2 bra L2;\n"
    "L3: cvta.to.global.u64 %d2,%d20; add.s64 %d3,%d26,%d25; bar.sync 0; setp.lt.u64 %p3,%d65,%d66; @%p3 bra L4;\n"
    "bra.uni L8;\n"
    "L4: mov.u32 %r34,%nctaid.x; mul.wide.u32 %d6,%r34,4096; add.s64 %d35,%d2,%d65;\n"
    "ld.global.v4.u32 {%r79,%r80,%r76,%r77},[%d35]; add.s64 %d12,%d66,-16; mov.u32 %r37,2;\n"
    "L5: add.s64 %d65,%d65,%d6; setp.lt.u64 %p4,%d65,%d66; selp.b64 %d36,%d65,%d12,%p4; add.s64 %d37,%d2,%d36;\n"
    "ld.global.v4.u32 {%r12,%r13,%r14,%r15},[%d37]; mov.u32 %r78,%r37;\n"
    "L6: shl.b32 %r38,%r79,5; and.b32 %r39,%r38,8160; mul.wide.u32 %d38,%r39,4; add.s64 %d39,%d3,%d38;\n"
    "atom.shared.add.u32 %r40,[%d39],1; shr.u32 %r41,%r79,3; and.b32 %r42,%r41,8160; mul.wide.u32 %d40,%r42,4;\n"
    "add.s64 %d41,%d3,%d40; atom.shared.add.u32 %r43,[%d41],1; shr.u32 %r44,%r79,11; and.b32 %r45,%r44,8160;\n"
    "mul.wide.u32 %d42,%r45,4; add.s64 %d43,%d3,%d42; atom.shared.add.u32 %r46,[%d43],1; shr.u32 %r47,%r79,19;\n"
    "and.b32 %r48,%r47,8160; mul.wide.u32 %d44,%r48,4; add.s64 %d45,%d3,%d44; atom.shared.add.u32 %r49,[%d45],1;\n"
    "shl.b32 %r50,%r80,5; and.b32 %r51,%r50,8160; mul.wide.u32 %d46,%r51,4; add.s64 %d47,%d3,%d46;\n"
    "atom.shared.add.u32 %r52,[%d47],1; shr.u32 %r53,%r80,3; and.b32 %r54,%r53,8160; mul.wide.u32 %d48,%r54,4;\n"
    "add.s64 %d49,%d3,%d48; atom.shared.add.u32 %r55,[%d49],1; shr.u32 %r56,%r80,11; and.b32 %r57,%r56,8160;\n"
    "mul.wide.u32 %d50,%r57,4; add.s64 %d51,%d3,%d50; atom.shared.add.u32 %r58,[%d51],1; shr.u32 %r59,%r80,19;\n"
    "and.b32 %r60,%r59,8160; mul.wide.u32 %d52,%r60,4; add.s64 %d53,%d3,%d52; atom.shared.add.u32 %r61,[%d53],1;\n"
    "add.s32 %r78,%r78,-1; setp.ne.s32 %p5,%r78,0; mov.u32 %r79,%r76; mov.u32 %r80,%r77; @%p5 bra L6; mov.u32 %r79,%r12;\n"
    "mov.u32 %r80,%r13; mov.u32 %r76,%r14; mov.u32 %r77,%r15; @%p4 bra L5;\n"
    "L8: ld.param.u64 %d21,[p1]; setp.ne.s64 %p7,%d65,%d66; setp.ge.u64 %p8,%d65,%d7; or.pred %p9,%p7,%p8; @%p9 bra L10;\n"
    "L9: add.s64 %d54,%d2,%d66; ld.global.u8 %r62,[%d54]; mul.wide.u32 %d55,%r62,32; shl.b64 %d56,%d55,2;\n"
    "add.s64 %d57,%d3,%d56; atom.shared.add.u32 %r63,[%d57],1; add.s64 %d66,%d66,1; setp.lt.u64 %p10,%d66,%d7;\n"
    "@%p10 bra L9;\n"
    "L10: cvta.to.global.u64 %d1,%d21; mov.u32 %r83,0; bar.sync 0; shl.b32 %r26,%r71,5; mov.u32 %r84,%r83;\n"
    "L11: add.s32 %r67,%r71,%r83; and.b32 %r68,%r67,31; or.b32 %r69,%r68,%r26; mul.wide.u32 %d58,%r69,4;\n"
    "add.s64 %d60,%d26,%d58; ld.shared.u32 %r70,[%d60]; add.s32 %r84,%r70,%r84; add.s32 %r83,%r83,1;\n"
    "setp.eq.s32 %p11,%r83,32; @%p11 bra L12; bra.uni L11;\n"
    "L12: setp.eq.s32 %p12,%r84,0; @%p12 bra L14; cvt.u64.u32 %d18,%r84; shl.b64 %d61,%d4,3; add.s64 %d19,%d1,%d61;\n"
    "atom.global.add.u64 %d62,[%d19],%d18;\n"
    "L14: ret; }\n"; /* 3484 characters */
static const char ptx_checksum[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry checksum( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5 ) { .reg .pred %p<11>; .reg .b16 %rs<2>; .reg .b32 %r<67>; .reg .b64 %d<108>;\n"
    ".shared .align 16 .b8 s_part[4096]; ld.param.u64 %d36,[p0]; cvta.to.global.u64 %d2,%d36; ld.param.u64 %d38,[p2];\n"
    "ld.param.u64 %d39,[p3]; mov.u32 %r10,%tid.x; ld.param.u64 %d40,[p4]; mov.u32 %r11,%ctaid.x; ld.param.u64 %d41,[p5];\n"
    "mul.wide.u32 %d42,%r11,256; cvt.u64.u32 %d3,%r10; add.s64 %d43,%d42,%d3; shl.b64 %d44,%d43,4; shl.b64 %d45,%d40,14;\n"
    "add.s64 %d98,%d45,%d44; add.s64 %d46,%d41,%d40; shl.b64 %d47,%d46,14; min.u64 %d6,%d47,%d38; and.b64 %d99,%d6,-16;\n"
    "add.s64 %d48,%d98,%d39; mul.hi.u64 %d49,%d48,4223091239536077; sub.s64 %d50,%d48,%d49; shr.u64 %d51,%d50,1;\n"
    "add.s64 %d52,%d51,%d49; shr.u64 %d53,%d52,15; mul.lo.s64 %d54,%d53,65521; sub.s64 %d55,%d48,%d54;\n"
    "cvt.u32.u64 %r64,%d55; setp.ge.u64 %p1,%d98,%d99; mov.u64 %d102,0; mov.u64 %d103,%d102; @%p1 bra L3;\n"
    "mov.u32 %r12,%nctaid.x; mul.wide.u32 %d5,%r12,4096; mul.hi.u64 %d56,%d5,4223091239536077; sub.s64 %d57,%d5,%d56;\n"
    "shr.u64 %d58,%d57,1; add.s64 %d59,%d58,%d56; shr.u64 %d60,%d59,15; mul.lo.s64 %d61,%d60,65521; sub.s64 %d62,%d5,%d61;\n"
    "cvt.u32.u64 %r2,%d62; add.s64 %d8,%d2,12; mov.u64 %d102,0; mov.u64 %d103,%d102;\n"
    "L2: add.s64 %d65,%d8,%d98; ld.global.v4.u32 {%r13,%r14,%r15,%r16},[%d65+-12]; and.b32 %r17,%r13,16711935;\n"
    "shr.u32 %r18,%r13,8; and.b32 %r19,%r18,16711935; and.b32 %r20,%r14,16711935; shr.u32 %r21,%r14,8;\n"
    "and.b32 %r22,%r21,16711935; add.s32 %r23,%r20,%r17; add.s32 %r24,%r22,%r19; add.s32 %r25,%r22,%r20;\n"
    "and.b32 %r26,%r15,16711935; shr.u32 %r27,%r15,8; and.b32 %r28,%r27,16711935; add.s32 %r29,%r23,%r26;\n"
    "add.s32 %r30,%r24,%r28; add.s32 %r31,%r28,%r26; shl.b32 %r32,%r31,1; add.s32 %r33,%r25,%r32;\n"
    "and.b32 %r34,%r16,16711935; shr.u32 %r35,%r16,8; and.b32 %r36,%r35,16711935; add.s32 %r37,%r29,%r34;\n"
    "add.s32 %r38,%r30,%r36; add.s32 %r39,%r36,%r34; mad.lo.s32 %r40,%r39,3,%r33; add.s32 %r41,%r37,%r38;\n"
    "and.b32 %r42,%r41,4095; shr.u32 %r43,%r41,16; add.s32 %r44,%r42,%r43; and.b32 %r45,%r40,65535; shr.u32 %r46,%r40,16;\n"
    "add.s32 %r47,%r45,%r46; shl.b32 %r48,%r47,2; and.b32 %r49,%r38,2047; shr.u32 %r50,%r38,16; shl.b32 %r51,%r43,1;\n"
    "add.s32 %r52,%r50,%r49; add.s32 %r53,%r52,%r51; add.s32 %r54,%r53,%r48; cvt.u64.u32 %d66,%r44;\n"
    "add.s64 %d102,%d102,%d66; mul.wide.u32 %d67,%r44,%r64; cvt.u64.u32 %d68,%r54; add.s64 %d69,%d67,%d103;\n"
    "add.s64 %d103,%d69,%d68; add.s32 %r55,%r64,%r2; setp.gt.u32 %p2,%r55,65520; add.s32 %r56,%r55,-65521;\n"
    "selp.b32 %r64,%r56,%r55,%p2; add.s64 %d98,%d98,%d5; setp.lt.u64 %p3,%d98,%d99; @%p3 bra L2;\n"
    "L3: ld.param.u64 %d37,[p1]; setp.ne.s64 %p4,%d98,%d99; setp.ge.u64 %p5,%d98,%d6; or.pred %p6,%p4,%p5; @%p6 bra L5;\n"
    "L4: add.s64 %d70,%d2,%d99; ld.global.u8 %rs1,[%d70]; cvt.u64.u16 %d71,%rs1; and.b64 %d72,%d71,255;\n"
    "add.s64 %d102,%d102,%d72; add.s32 %r7,%r64,1; cvt.u32.u16 %r57,%rs1; and.b32 %r58,%r57,255;\n"
    "mul.wide.u32 %d73,%r58,%r64; add.s64 %d103,%d73,%d103; add.s64 %d99,%d99,1; setp.lt.u64 %p7,%d99,%d6;\n"
    "mov.u32 %r64,%r7; @%p7 bra L4;\n"
    "L5: cvta.to.global.u64 %d1,%d37; shl.b64 %d74,%d3,4; mov.u64 %d75,s_part; add.s64 %d26,%d75,%d74;\n"
    "st.shared.v2.u64 [%d26],{%d102,%d103}; mov.u32 %r66,128; cvt.u32.u64 %r60,%d3; bra.uni L6;\n"
    "L8: shr.u32 %r9,%r66,1; setp.lt.u32 %p9,%r66,2; mov.u32 %r66,%r9; @%p9 bra L9;\n"
    "L6: bar.sync 0; setp.ge.u32 %p8,%r60,%r66; @%p8 bra L8; add.s32 %r61,%r66,%r60; mul.wide.u32 %d76,%r61,16;\n"
    "add.s64 %d29,%d75,%d76; ld.shared.v2.u64 {%d78,%d79},[%d29]; add.s64 %d103,%d103,%d79; add.s64 %d102,%d102,%d78;\n"
    "st.shared.v2.u64 [%d26],{%d102,%d103}; bra.uni L8;\n"
    "L9: setp.eq.s32 %p10,%r60,0; @%p10 bra L10; bra.uni L11;\n"
    "L10: add.s64 %d80,%d1,2048; ld.shared.v2.u64 {%d81,%d82},[s_part]; atom.global.add.u64 %d83,[%d80],%d81;\n"
    "add.s64 %d84,%d1,2056; mul.hi.u64 %d85,%d82,4223091239536077; sub.s64 %d86,%d82,%d85; shr.u64 %d87,%d86,1;\n"
    "add.s64 %d88,%d87,%d85; shr.u64 %d89,%d88,15; mul.lo.s64 %d90,%d89,65521; sub.s64 %d91,%d82,%d90;\n"
    "atom.global.add.u64 %d92,[%d84],%d91;\n"
    "L11: ret; }\n"; /* 4037 characters */
static const char ptx_add_rows[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry add_rows( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<6>; .reg .b32 %r<4>; .reg .b64 %d<50>; mov.u32 %r1,%ctaid.x; ld.param.u64 %d28,[p4];\n"
    "mov.u32 %r2,%ntid.x; mul.wide.u32 %d29,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d30,%r3; add.s64 %d3,%d29,%d30;\n"
    "setp.ge.u64 %p1,%d3,%d28; @%p1 bra L8; ld.param.u64 %d25,[p3]; ld.param.u64 %d24,[p2]; ld.param.u64 %d26,[p0];\n"
    "cvta.to.global.u64 %d2,%d26; add.s64 %d4,%d3,%d25; shl.b64 %d31,%d4,3; add.s64 %d5,%d2,%d31; ld.global.u64 %d46,[%d5];\n"
    "setp.eq.s64 %p2,%d24,0; @%p2 bra L7; ld.param.u64 %d27,[p1]; cvta.to.global.u64 %d1,%d27; and.b64 %d7,%d24,1;\n"
    "setp.eq.s64 %p3,%d24,1; mov.u64 %d47,0; @%p3 bra L5; and.b64 %d42,%d24,-2; add.s64 %d44,%d1,%d31; mov.u64 %d47,0;\n"
    "L4: ld.global.u64 %d36,[%d44]; add.s64 %d37,%d36,%d46; ld.global.u64 %d38,[%d44+2064]; add.s64 %d46,%d38,%d37;\n"
    "add.s64 %d44,%d44,4128; add.s64 %d47,%d47,516; add.s64 %d42,%d42,-2; setp.ne.s64 %p4,%d42,0; @%p4 bra L4;\n"
    "L5: setp.eq.s64 %p5,%d7,0; @%p5 bra L7; add.s64 %d39,%d47,%d4; shl.b64 %d40,%d39,3; add.s64 %d21,%d1,%d40;\n"
    "ld.global.u64 %d41,[%d21]; add.s64 %d46,%d41,%d46;\n"
    "L7: st.global.u64 [%d5],%d46;\n"
    "L8: ret; }\n"; /* 1235 characters */
/* <<device-code kernels/demo.cu */
/* clang-format on */

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
    ds_kernel histogram, checksum, add;
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

/* The handler also writes into a pipe that the reading side polls, so that no wait for input can
   miss it. */
static volatile sig_atomic_t interrupted;
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

/* ---- input ----------------------------------------------------------------------------------- */

static int input_open(input *in, const options *opt) {
    static const char *const digits[] = { "examples/data/digits.csv", "data/digits.csv" };
    in->name = opt->path ? opt->path : digits[0];
    if (opt->path && strcmp(opt->path, "-") == 0) {
        in->name = "standard input";
        in->fd = STDIN_FILENO;
    } else {
        in->fd = open(in->name, O_RDONLY);
        if (in->fd < 0 && !opt->path)
            in->fd = open(digits[1], O_RDONLY);
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
        struct pollfd ready[2] = { { .fd = in->fd, .events = POLLIN },
                                   { .fd = wake[0], .events = POLLIN } };
        ssize_t n = poll(ready, 2, -1);
        if (interrupted)
            return INTERRUPTED;
        if (n > 0)
            n = read(in->fd, to, size);
        else if (n == 0)
            continue;
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
static int slot_submit(demo *d, slot *s, uint64_t offset, int damage) {
    piece_args args = { s->data, s->piece, s->size, offset };
    add_args total = { s->total, s->piece, 1 };
    size_t blocks = (s->size + BLOCK - 1) / BLOCK;
    s->pending = s->unchecked = 1;
    CHECK(ds_event_record(s->mark[COPY_IN], s->stream));
    CHECK(ds_copy(s->data, s->in, s->size, s->stream));
    if (damage)
        CHECK(ds_fill(s->data, *(unsigned char *)s->in ^ 1u, 1, 1, s->stream));
    CHECK(ds_fill(s->piece, 0, 4, RESULT_BYTES / 4, s->stream));
    CHECK(ds_event_record(s->mark[HISTOGRAM], s->stream));
    CHECK(ds_kernel_launch(d->histogram, blocks, &args, sizeof args, s->stream));
    CHECK(ds_event_record(s->mark[CHECKSUM], s->stream));
    CHECK(ds_kernel_launch(d->checksum, blocks, &args, sizeof args, s->stream));
    CHECK(ds_kernel_launch(d->add, WORDS, &total, sizeof total, s->stream));
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

static int create_kernels(demo *d) {
    static const ds_param h_params[] = {
        { DS_PARAM_READ, offsetof(piece_args, data), sizeof(void *) },
        { DS_PARAM_READ_WRITE, offsetof(piece_args, results), sizeof(void *) },
        { DS_PARAM_VALUE, offsetof(piece_args, size), sizeof(uint64_t) },
        { DS_PARAM_FIRST, 0, sizeof(uint64_t) },
        { DS_PARAM_COUNT, 0, sizeof(uint64_t) }
    };
    static const ds_param c_params[] = {
        { DS_PARAM_READ, offsetof(piece_args, data), sizeof(void *) },
        { DS_PARAM_READ_WRITE, offsetof(piece_args, results), sizeof(void *) },
        { DS_PARAM_VALUE, offsetof(piece_args, size), sizeof(uint64_t) },
        { DS_PARAM_VALUE, offsetof(piece_args, offset), sizeof(uint64_t) },
        { DS_PARAM_FIRST, 0, sizeof(uint64_t) },
        { DS_PARAM_COUNT, 0, sizeof(uint64_t) }
    };
    static const ds_param a_params[] = {
        { DS_PARAM_READ_WRITE, offsetof(add_args, sum), sizeof(void *) },
        { DS_PARAM_READ, offsetof(add_args, rows), sizeof(void *) },
        { DS_PARAM_VALUE, offsetof(add_args, count), sizeof(uint64_t) },
        { DS_PARAM_FIRST, 0, sizeof(uint64_t) },
        { DS_PARAM_COUNT, 0, sizeof(uint64_t) }
    };
    ds_kernel_desc h = { .name = "histogram",
                         .cpu_fn = histogram,
                         .args_size = sizeof(piece_args),
                         .params = h_params,
                         .param_count = 5,
                         .grain = 4,
                         .cuda = { .image = ptx_histogram,
                                   .entry = "histogram",
                                   .block = 256,
                                   .items_per_block = 1,
                                   .blocks_per_multiprocessor =
                                       6 } }; /* as many as its shared memory leaves room for */
    ds_kernel_desc c = { .name = "checksum",
                         .cpu_fn = checksum,
                         .args_size = sizeof(piece_args),
                         .params = c_params,
                         .param_count = 6,
                         .grain = 8,
                         .cuda = { .image = ptx_checksum,
                                   .entry = "checksum",
                                   .block = 256,
                                   .items_per_block = 1,
                                   .blocks_per_multiprocessor = 8 } };
    ds_kernel_desc a = { .name = "add",
                         .cpu_fn = add_rows,
                         .args_size = sizeof(add_args),
                         .params = a_params,
                         .param_count = 5,
                         .grain = SIZE_MAX,
                         .cuda = { .image = ptx_add_rows, .entry = "add_rows" } };
    CHECK(ds_kernel_create(&h, &d->histogram));
    CHECK(ds_kernel_create(&c, &d->checksum));
    CHECK(ds_kernel_create(&a, &d->add));
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
    if (choose_devices(d) != FINE || create_kernels(d) != FINE)
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
        CHECK(ds_kernel_load(d->histogram, device)); /* now, so that it is not timed */
        CHECK(ds_kernel_load(d->checksum, device));
        CHECK(ds_kernel_load(d->add, device));
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
    if (d->histogram.id)
        DS_IGNORE(ds_kernel_destroy(d->histogram));
    if (d->checksum.id)
        DS_IGNORE(ds_kernel_destroy(d->checksum));
    if (d->add.id)
        DS_IGNORE(ds_kernel_destroy(d->add));
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
    add_args args = { d->joined, rows, (uint64_t)d->slots };
    CHECK(ds_fill(d->joined, 0, 4, RESULT_BYTES / 4, d->join));
    for (int i = 0; i < d->slots; i++) {
        slot *s = &d->slot[i];
        CHECK(ds_stream_wait_stream(d->join, s->stream));
        CHECK(ds_copy_peer(rows + (size_t)i * WORDS, d->slot[0].device, s->total, s->device,
                           RESULT_BYTES, d->join));
    }
    CHECK(ds_kernel_launch(d->add, WORDS, &args, sizeof args, d->join));
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
        if (slot_submit(d, s, offset, d->opt.damage && d->pieces == 0) != FINE)
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
    if (fstat(in.fd, &after) < 0 || after.st_size != in.stat.st_size ||
        after.st_mtim.tv_sec != in.stat.st_mtim.tv_sec ||
        after.st_mtim.tv_nsec != in.stat.st_mtim.tv_nsec) {
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
