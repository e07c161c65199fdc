/* graph.c - the demo's pipeline, captured once and launched for every piece: what that saves,
   checked.

   Compile:  cc -O2 -I. examples/graph.c -o graph -pthread
     or, to use a GPU where there is one:
             cc -O2 -DDEVSTREAM_CUDA -I. -I$CUDA_HOME/include examples/graph.c -o graph \
                -L$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -pthread
   Run:      ./graph                      examples/data/digits.csv, again and again up to 64 MiB
             ./graph --dot FILE           and writes a picture of the graph to FILE:
                                          dot -Tsvg FILE -o graph.svg
             ./graph --help               the options

   A piece's way, in enqueue(); the pieces are small, so that what it costs to submit work counts:

       clear the results, copy the piece in
         -+- count its bytes (kernel "histogram") -+- add both, copy the results back
          +- sum them up (kernel "checksum") ------+

   The two kernels are on two streams, forked and joined by events. Four slots, each with streams
   and buffers of its own, take turns. The first time every piece is enqueued. The second time the
   calls of enqueue() were captured, once per slot: they ran nothing and became the nodes of a
   graph, and one ds_graph_launch per piece stands for all of them.

   A graph repeats what was captured, the same addresses and the same numbers. So what changes from
   piece to piece has to come through memory at a fixed place, as the bytes do in the slot's pinned
   buffer. A piece's position in the input would be a number among the kernels' arguments.
   ds_graph_exec_set_node could change it before every launch, and every launch would pay for it;
   here the kernels count positions from the start of the piece, and the host, which knows where
   that is, moves the result. Only the last piece has another size: for that enqueue() is captured
   anew, and ds_graph_exec_update takes over what is different.

   Exit status: 0 fine, 1 something failed (standard error says what), 2 the results are wrong. */
#define _POSIX_C_SOURCE 200809L
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FINE = 0, FAILED = 1, WRONG = 2 };

/* ---- kernels: the demo's, for the CPU and as PTX --------------------------------------------- */

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

/* ---- the pipeline ---------------------------------------------------------------------------- */

enum { HISTOGRAM, CHECKSUM, ADD, KERNELS };

enum { SLOTS = 4, ROW = WORDS * sizeof(uint64_t) };

typedef struct slot {
    ds_stream stream, side;
    ds_event fork, join;
    uint64_t *out;     /* pinned: the results, and after them */
    unsigned char *in; /* the piece */
    /* device: three rows of results, of both kernels together and of each, and after them */
    uint64_t *rows;
    unsigned char *data; /* the piece */
    ds_graph graph;
    ds_graph_exec exec;
    size_t size, captured; /* bytes of the piece, and of the pieces for which the graph is */
    uint64_t offset;       /* the piece's position in the input */
    int pending;           /* submitted and not taken */
} slot;

typedef struct way {        /* of running the pipeline: enqueued, or as graphs */
    uint64_t total[WORDS];  /* the results of all pieces */
    double seconds, submit; /* its time, and of that the time of calls that submit */
} way;

static ds_kernel kernel[KERNELS];
static slot slots[SLOTS];
static way ways[2];
static FILE *file;

static struct {
    const char *path, *dot;
    uint64_t piece, total;
    int cpu, damage;
} options = { .piece = 64 << 10 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The whole way of a piece. Each call queues work or, while the stream captures, makes a node. */
static ds_result enqueue(ds_stream stream, void *user) {
    slot *s = user;
    size_t blocks = (s->size + BLOCK - 1) / BLOCK;
    piece_args h = { s->data, s->rows + WORDS, s->size, 0 },
               c = { s->data, s->rows + 2 * WORDS, s->size, 0 };
    add_args both = { s->rows, s->rows + WORDS, 2 };
    ds_result r = ds_fill(s->rows, 0, 4, 3 * ROW / 4, stream);
    if (r >= 0)
        r = ds_copy(s->data, s->in, s->size, stream);
    if (r >= 0)
        r = ds_event_record(s->fork, stream);
    /* fork: from here on the other stream captures too */
    if (r >= 0)
        r = ds_stream_wait_event(s->side, s->fork);
    if (r >= 0)
        r = ds_kernel_launch(kernel[HISTOGRAM], blocks, &h, sizeof h, stream);
    if (r >= 0)
        r = ds_kernel_launch(kernel[CHECKSUM], blocks, &c, sizeof c, s->side);
    if (r >= 0)
        r = ds_event_record(s->join, s->side);
    /* join: without it the capture could not end */
    if (r >= 0)
        r = ds_stream_wait_event(stream, s->join);
    if (r >= 0)
        r = ds_kernel_launch(kernel[ADD], WORDS, &both, sizeof both, stream);
    if (r >= 0)
        r = ds_copy(s->out, s->rows, ROW, stream);
    return r;
}

/* Captures enqueue() for pieces of the slot's present size: into a new executable, or into the
   one there is. */
static int capture(slot *s) {
    if (s->graph.id)
        DS_CHECK(ds_graph_destroy(s->graph));
    DS_CHECK(ds_capture_function(s->stream, enqueue, s, &s->graph));
    if (s->exec.id)
        DS_CHECK(ds_graph_exec_update(s->exec, s->graph, NULL));
    else
        DS_CHECK(ds_graph_instantiate(s->graph, NULL, &s->exec));
    s->captured = s->size;
    return FINE;
}

/* Waits for the slot's piece, if there is one, and adds its results. WEIGHTED is the sum of
   bytes times their positions (demo.c says what for), which were counted from the start of the
   piece. */
static int take(slot *s, way *w) {
    if (!s->pending)
        return FINE;
    s->pending = 0;
    DS_CHECK(ds_stream_synchronize(s->stream));
    for (int i = 0; i < WORDS; i++)
        w->total[i] += s->out[i];
    w->total[WEIGHTED] += s->offset % ADLER * (s->out[SUM] % ADLER);
    return FINE;
}

/* The next bytes of the file, which begins again at its end. */
static int read_piece(unsigned char *to, size_t size) {
    for (size_t n = 0, got; n < size; n += got) {
        got = fread(to + n, 1, size - n, file);
        if (got > 0)
            continue;
        if (ferror(file) || ftell(file) <= 0) {
            fprintf(stderr, "graph: cannot read %s\n", options.path);
            return FAILED;
        }
        rewind(file);
    }
    return FINE;
}

/* All of the input, by enqueuing every piece or by launching its slot's graph. */
static int run(int graphs, way *w) {
    double start = now(), begin;
    uint64_t offset = 0;
    rewind(file);
    for (slot *s = slots; offset < options.total; s = s < slots + SLOTS - 1 ? s + 1 : slots) {
        uint64_t left = options.total - offset;
        if (take(s, w) != FINE)
            return FAILED;
        s->offset = offset;
        s->size = (size_t)(left < options.piece ? left : options.piece);
        if (read_piece(s->in, s->size) != FINE)
            return FAILED;
        if (graphs && options.damage && offset == 0)
            s->in[0] ^= 1;
        begin = now();
        if (graphs && s->size != s->captured && capture(s) != FINE)
            return FAILED;
        s->pending = 1;
        DS_CHECK(graphs ? ds_graph_launch(s->exec, s->stream) : enqueue(s->stream, s));
        w->submit += now() - begin;
        offset += s->size;
    }
    for (slot *s = slots; s < slots + SLOTS; s++)
        if (take(s, w) != FINE)
            return FAILED;
    w->seconds = now() - start;
    return FINE;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int open_kernels(ds_device device) {
#define PARAM(kind, type, member) \
    { DS_PARAM_##kind, offsetof(type, member), sizeof((type *)0)->member }
#define ITEMS                                  \
    { DS_PARAM_FIRST, 0, sizeof(uint64_t) }, { \
        DS_PARAM_COUNT, 0, sizeof(uint64_t)    \
    }
    static const ds_param h[] = { PARAM(READ, piece_args, data),
                                  PARAM(READ_WRITE, piece_args, results),
                                  PARAM(VALUE, piece_args, size), ITEMS },
                          c[] = { PARAM(READ, piece_args, data),
                                  PARAM(READ_WRITE, piece_args, results),
                                  PARAM(VALUE, piece_args, size), PARAM(VALUE, piece_args, offset),
                                  ITEMS },
                          a[] = { PARAM(READ_WRITE, add_args, sum), PARAM(READ, add_args, rows),
                                  PARAM(VALUE, add_args, count), ITEMS };
    const ds_kernel_desc desc[KERNELS] = { { .name = "histogram",
                                             .cpu_fn = histogram,
                                             .args_size = sizeof(piece_args),
                                             .params = h,
                                             .param_count = 5,
                                             .grain = 4,
                                             .cuda = { .image = ptx_histogram,
                                                       .entry = "histogram",
                                                       .block = 256,
                                                       .items_per_block = 1 } },
                                           { .name = "checksum",
                                             .cpu_fn = checksum,
                                             .args_size = sizeof(piece_args),
                                             .params = c,
                                             .param_count = 6,
                                             .grain = 8,
                                             .cuda = { .image = ptx_checksum,
                                                       .entry = "checksum",
                                                       .block = 256,
                                                       .items_per_block = 1 } },
                                           { .name = "add",
                                             .cpu_fn = add_rows,
                                             .args_size = sizeof(add_args),
                                             .params = a,
                                             .param_count = 5,
                                             .grain = SIZE_MAX,
                                             .cuda = { .image = ptx_add_rows,
                                                       .entry = "add_rows" } } };
    for (int i = 0; i < KERNELS; i++) {
        DS_CHECK(ds_kernel_create(&desc[i], &kernel[i]));
        DS_CHECK(ds_kernel_load(kernel[i], device)); /* now, so that it is not timed */
    }
    return FINE;
}

static int open_slot(slot *s, ds_device device) {
    ds_stream_desc stream = { .device = device, .label = "slot" },
                   side = { .device = device, .label = "side of a slot" };
    void *pinned, *memory;
    s->size = (size_t)options.piece;
    DS_CHECK(ds_stream_create(&stream, &s->stream));
    DS_CHECK(ds_stream_create(&side, &s->side));
    DS_CHECK(ds_event_create(0, "fork", &s->fork));
    DS_CHECK(ds_event_create(0, "join", &s->join));
    DS_CHECK(ds_pinned_alloc(ROW + s->size, &pinned));
    s->out = pinned;
    s->in = (unsigned char *)pinned + ROW;
    DS_CHECK(ds_device_alloc(device, 3 * ROW + s->size, &memory));
    s->rows = memory;
    s->data = (unsigned char *)memory + 3 * ROW; /* on a multiple of 16, as the kernels want it */
    return FINE;
}

/* Freeing memory waits for what is under way after a failure. */
static void close_all(void) {
    for (slot *s = slots; s < slots + SLOTS; s++) {
        DS_IGNORE(ds_device_free(s->rows));
        DS_IGNORE(ds_pinned_free(s->out));
        if (s->graph.id)
            DS_IGNORE(ds_graph_destroy(s->graph));
        if (s->exec.id)
            DS_IGNORE(ds_graph_exec_destroy(s->exec));
        if (s->fork.id)
            DS_IGNORE(ds_event_destroy(s->fork));
        if (s->join.id)
            DS_IGNORE(ds_event_destroy(s->join));
        if (s->side.id)
            DS_IGNORE(ds_stream_destroy(s->side));
        if (s->stream.id)
            DS_IGNORE(ds_stream_destroy(s->stream));
    }
    for (int i = 0; i < KERNELS; i++)
        if (kernel[i].id)
            DS_IGNORE(ds_kernel_destroy(kernel[i]));
    if (file)
        fclose(file);
}

/* ---- the check, options and main ------------------------------------------------------------- */

static uint32_t adler(const uint64_t *results, uint64_t bytes) {
    uint64_t n = bytes % ADLER, s = results[SUM] % ADLER, w = results[WEIGHTED] % ADLER;
    uint64_t a = (1 + s) % ADLER, b = (n + n * s + ADLER - w) % ADLER;
    return (uint32_t)(b << 16 | a);
}

static int differ(const char *what, const uint64_t *count, uint32_t sum, const way *w) {
    int same = memcmp(count, w->total + COUNTS, 256 * sizeof *count) == 0 &&
               sum == adler(w->total, options.total);
    if (!same)
        fprintf(stderr, "graph: WRONG: the results of %s differ\n", what);
    return !same;
}

/* Against an ordinary loop over the same bytes, which shares nothing with the kernels, and
   against each other. */
static int check(void) {
    uint64_t count[256] = { 0 };
    uint32_t a = 1, b = 0, sum;
    rewind(file);
    for (uint64_t n = 0; n < options.total; n++) {
        unsigned char byte;
        int c = getc(file);
        if (c != EOF)
            byte = (unsigned char)c;
        else if (read_piece(&byte, 1) != FINE)
            return FAILED;
        count[byte]++;
        a = (a + byte) % 65521;
        b = (b + a) % 65521;
    }
    sum = b << 16 | a;
    if (differ("enqueued work and an ordinary loop", count, sum, &ways[0]) +
        differ("graphs and an ordinary loop", count, sum, &ways[1]) +
        differ("enqueued work and graphs", ways[0].total + COUNTS,
               adler(ways[0].total, options.total), &ways[1]))
        return WRONG;
    printf("check            both as an ordinary loop: checksum %08x (Adler-32), and the count of "
           "every byte\n",
           (unsigned)sum);
    return FINE;
}

static const char USAGE[] =
    "usage: graph [options] [FILE]\n"
    "Counts the bytes of FILE on a device in small pieces: enqueued each time, then by launching "
    "graphs.\n"
    "Without FILE: examples/data/digits.csv, again and again up to 67108864 bytes.\n"
    "  --total BYTES   read so many bytes in all; the file again and again as needed\n"
    "  --piece BYTES   of a piece (65536)\n"
    "  --dot FILE      write the graph to FILE, in Graphviz' language\n"
    "  --cpu           use the CPU although there is a GPU\n"
    "  --damage        change a byte before a graph is launched, to see the check find it\n";

static int parse_size(const char *text, uint64_t most, uint64_t *out) {
    char *end = NULL;
    *out = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    return end && !*end && *out >= 1 && *out <= most;
}

static int parse_options(char **a) {
    for (a++; *a; a++) {
        if (strcmp(*a, "--cpu") == 0)
            options.cpu = 1;
        else if (strcmp(*a, "--damage") == 0)
            options.damage = 1;
        else if (strcmp(*a, "--dot") == 0 && a[1])
            options.dot = *++a;
        else if (strcmp(*a, "--total") == 0 && parse_size(a[1], (uint64_t)1 << 40, &options.total))
            a++;
        else if (strcmp(*a, "--piece") == 0 && parse_size(a[1], (uint64_t)1 << 30, &options.piece))
            a++;
        else if (**a != '-' && !options.path)
            options.path = *a;
        else {
            fprintf(stderr, "graph: cannot understand \"%s\"\n%s", *a, USAGE);
            return FAILED;
        }
    }
    return FINE;
}

static int open_all(void) {
    ds_device device;
    char name[DS_DEVICE_NAME_SIZE];
    if (!options.path && !options.total)
        options.total = 64 << 20;
    if (!options.path)
        options.path = "examples/data/digits.csv";
    file = fopen(options.path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0 || ftell(file) <= 0) {
        fprintf(stderr, "graph: %s is not there, or is no file with bytes in it\n", options.path);
        return FAILED;
    }
    if (!options.total)
        options.total = (uint64_t)ftell(file);
    if (options.cpu)
        DS_CHECK(ds_device_set_current(ds_cpu(0)));
    DS_CHECK(ds_device_get_current(&device));
    DS_CHECK(ds_device_format(device, name, sizeof name));
    printf("device           %s\n", name);
    for (int i = 0; i < SLOTS; i++)
        if (open_slot(&slots[i], device) != FINE)
            return FAILED;
    return open_kernels(device);
}

static int work(void) {
    double begin, pieces;
    if (open_all() != FINE || run(0, &ways[0]) != FINE)
        return FAILED;
    begin = now();
    for (slot *s = slots; s < slots + SLOTS; s++) {
        s->size = (size_t)options.piece;
        if (capture(s) != FINE)
            return FAILED;
    }
    begin = now() - begin;
    pieces = (double)((options.total + options.piece - 1) / options.piece);
    if (options.dot)
        DS_CHECK(ds_graph_write_dot_file(slots[0].graph, DS_DOT_PLAIN, options.dot));
    if (run(1, &ways[1]) != FINE)
        return FAILED;
    printf("input            %s, %llu bytes in %.0f pieces\n", options.path,
           (unsigned long long)options.total, pieces);
    printf("captured         in %.3f us a slot, with its executable\n", 1e6 * begin / SLOTS);
    for (int i = 0; i < 2; i++)
        printf("%s %11.3f ms, %9.3f us a piece, of which %.3f us to submit it\n",
               i ? "graphs launched" : "enqueued       ", 1e3 * ways[i].seconds,
               1e6 * ways[i].seconds / pieces, 1e6 * ways[i].submit / pieces);
    return check();
}

int main(int argc, char **argv) {
    int result;
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(USAGE, stdout) < 0;
    if (parse_options(argv) != FINE)
        return FAILED;
    result = work();
    close_all();
    if (ds_shutdown() < 0 && result == FINE) {
        fprintf(stderr, "graph: %s\n", ds_error_get_last());
        result = FAILED;
    }
    if (fflush(stdout) != 0 && result == FINE) {
        perror("graph: standard output");
        result = FAILED;
    }
    return result;
}
