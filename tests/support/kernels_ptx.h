/* kernels_ptx.h - the PTX of kernels.cu, a module for each kernel. */
#ifndef KERNELS_PTX_H
#define KERNELS_PTX_H

/* >>device-code tests/support/kernels.cu: written by make kernels */
static const char ptx_fold[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry fold( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<10>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d4,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d5,%r3;\n"
    "neg.s64 %d6,%d5; setp.ne.s64 %p1,%d4,%d6; @%p1 bra L2; ld.param.u64 %d2,[p1]; ld.param.u64 %d3,[p0];\n"
    "cvta.to.global.u64 %d1,%d3; ld.global.u64 %d7,[%d1]; mul.lo.s64 %d8,%d7,1099511628211; add.s64 %d9,%d8,%d2;\n"
    "st.global.u64 [%d1],%d9;\n"
    "L2: ret; }\n"; /* 509 characters */
static const char ptx_gate[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry gate( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<8>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d5,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d6,%r3;\n"
    "neg.s64 %d7,%d6; setp.ne.s64 %p1,%d5,%d7; @%p1 bra L3; ld.param.u64 %d3,[p0]; ld.param.u64 %d4,[p1];\n"
    "cvta.to.global.u64 %d1,%d4; cvta.to.global.u64 %d2,%d3; mov.u32 %r4,1; st.volatile.global.u32 [%d2],%r4; membar.sys;\n"
    "L2: ld.volatile.global.u32 %r5,[%d1]; setp.eq.s32 %p2,%r5,0; @%p2 bra L2;\n"
    "L3: ret; }\n"; /* 566 characters */
static const char ptx_spin[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry spin( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<8>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d5,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d6,%r3;\n"
    "neg.s64 %d7,%d6; setp.ne.s64 %p1,%d5,%d7; @%p1 bra L3; ld.param.u64 %d3,[p0]; ld.param.u64 %d4,[p1];\n"
    "cvta.to.global.u64 %d1,%d4; cvta.to.global.u64 %d2,%d3; mov.u32 %r4,1; st.volatile.global.u32 [%d2],%r4; membar.sys;\n"
    "L2: ld.volatile.global.u32 %r5,[%d1]; setp.eq.s32 %p2,%r5,0; @%p2 bra L2;\n"
    "L3: ret; }\n"; /* 566 characters */
static const char ptx_store[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry store( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<7>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d4,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d5,%r3;\n"
    "neg.s64 %d6,%d5; setp.ne.s64 %p1,%d4,%d6; @%p1 bra L2; ld.param.u64 %d2,[p1]; ld.param.u64 %d3,[p0];\n"
    "cvta.to.global.u64 %d1,%d3; st.global.u64 [%d1],%d2;\n"
    "L2: ret; }\n"; /* 429 characters */
static const char ptx_add[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry add( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<9>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d4,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d5,%r3;\n"
    "neg.s64 %d6,%d5; setp.ne.s64 %p1,%d4,%d6; @%p1 bra L2; ld.param.u64 %d2,[p1]; ld.param.u64 %d3,[p0];\n"
    "cvta.to.global.u64 %d1,%d3; ld.global.u64 %d7,[%d1]; add.s64 %d8,%d7,%d2; st.global.u64 [%d1],%d8;\n"
    "L2: ret; }\n"; /* 473 characters */
static const char ptx_thrice[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry thrice( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<10>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d4,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d5,%r3;\n"
    "neg.s64 %d6,%d5; setp.ne.s64 %p1,%d4,%d6; @%p1 bra L2; ld.param.u64 %d2,[p1]; ld.param.u64 %d3,[p0];\n"
    "cvta.to.global.u64 %d1,%d3; ld.global.u64 %d7,[%d1]; mul.lo.s64 %d8,%d7,3; add.s64 %d9,%d8,%d2;\n"
    "st.global.u64 [%d1],%d9;\n"
    "L2: ret; }\n"; /* 499 characters */
static const char ptx_count[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry count( .param .u64 p0, .param .u64 p1 ) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<8>;\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d4,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d5,%r3;\n"
    "neg.s64 %d6,%d5; setp.ne.s64 %p1,%d4,%d6; @%p1 bra L2; ld.param.u64 %d2,[p1]; ld.param.u64 %d3,[p0];\n"
    "cvta.to.global.u64 %d1,%d3; atom.global.add.u64 %d7,[%d1],%d2;\n"
    "L2: ret; }\n"; /* 439 characters */
static const char ptx_explode[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry explode() { trap; }\n"; /* 80 characters */
static const char ptx_none[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry none() { ret; }\n"; /* 76 characters */
static const char ptx_big[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry big( .param .u64 p0, .param .align 1 .b8 p1[4088] ) { .reg .pred %p<3>; .reg .b16 %rs<2>;\n"
    ".reg .b32 %r<5>; .reg .b64 %d<15>; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d7,%r1,%r2;\n"
    "mov.u32 %r3,%tid.x; cvt.u64.u32 %d8,%r3; neg.s64 %d9,%d8; setp.ne.s64 %p1,%d7,%d9; @%p1 bra L3; ld.param.u64 %d5,[p0];\n"
    "mov.b64 %d6,p1; mov.u64 %d1,%d6; cvta.to.global.u64 %d2,%d5; mov.u64 %d14,0;\n"
    "L2: cvt.u32.u64 %r4,%d14; add.s64 %d11,%d1,%d14; ld.param.u8 %rs1,[%d11]; add.s64 %d12,%d2,%d14;\n"
    "st.global.u8 [%d12],%rs1; add.s64 %d13,%d14,1; and.b64 %d14,%d13,4294967295; setp.lt.u32 %p2,%r4,4087; @%p2 bra L2;\n"
    "L3: ret; }\n"; /* 674 characters */
static const char ptx_odd[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry odd( .param .u64 p0, .param .align 1 .b8 p1[9] ) { .reg .pred %p<11>; .reg .b16 %rs<10>;\n"
    ".reg .b32 %r<13>; .reg .b64 %d<8>; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.wide.u32 %d5,%r1,%r2;\n"
    "mov.u32 %r3,%tid.x; cvt.u64.u32 %d6,%r3; neg.s64 %d7,%d6; setp.ne.s64 %p1,%d5,%d7; @%p1 bra L19;\n"
    "ld.param.u64 %d3,[p0]; mov.b64 %d4,p1; mov.u64 %d1,%d4; cvta.to.global.u64 %d2,%d3; ld.param.u8 %rs1,[%d1];\n"
    "setp.eq.s16 %p2,%rs1,0; @%p2 bra L3; atom.global.add.u32 %r4,[%d2],1;\n"
    "L3: ld.param.u8 %rs2,[%d1+1]; setp.eq.s16 %p3,%rs2,1; @%p3 bra L5; atom.global.add.u32 %r5,[%d2],1;\n"
    "L5: ld.param.u8 %rs3,[%d1+2]; setp.eq.s16 %p4,%rs3,2; @%p4 bra L7; atom.global.add.u32 %r6,[%d2],1;\n"
    "L7: ld.param.u8 %rs4,[%d1+3]; setp.eq.s16 %p5,%rs4,3; @%p5 bra L9; atom.global.add.u32 %r7,[%d2],1;\n"
    "L9: ld.param.u8 %rs5,[%d1+4]; setp.eq.s16 %p6,%rs5,4; @%p6 bra L11; atom.global.add.u32 %r8,[%d2],1;\n"
    "L11: ld.param.u8 %rs6,[%d1+5]; setp.eq.s16 %p7,%rs6,5; @%p7 bra L13; atom.global.add.u32 %r9,[%d2],1;\n"
    "L13: ld.param.u8 %rs7,[%d1+6]; setp.eq.s16 %p8,%rs7,6; @%p8 bra L15; atom.global.add.u32 %r10,[%d2],1;\n"
    "L15: ld.param.u8 %rs8,[%d1+7]; setp.eq.s16 %p9,%rs8,7; @%p9 bra L17; atom.global.add.u32 %r11,[%d2],1;\n"
    "L17: ld.param.u8 %rs9,[%d1+8]; setp.eq.s16 %p10,%rs9,8; @%p10 bra L19; atom.global.add.u32 %r12,[%d2],1;\n"
    "L19: ret; }\n"; /* 1354 characters */
static const char ptx_tally[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry tally( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<3>; .reg .b32 %r<13>; .reg .b64 %d<33>; mov.u32 %r1,%ctaid.z; ld.param.u64 %d9,[p4];\n"
    "mov.u32 %r2,%nctaid.y; mul.wide.u32 %d10,%r1,%r2; mov.u32 %r3,%ctaid.y; cvt.u64.u32 %d11,%r3; add.s64 %d12,%d10,%d11;\n"
    "mov.u32 %r4,%nctaid.x; cvt.u64.u32 %d13,%r4; mul.lo.s64 %d14,%d12,%d13; mov.u32 %r5,%ctaid.x; cvt.u64.u32 %d15,%r5;\n"
    "add.s64 %d16,%d14,%d15; mov.u32 %r6,%ntid.x; cvt.u64.u32 %d17,%r6; mov.u32 %r7,%ntid.y; cvt.u64.u32 %d18,%r7;\n"
    "mov.u32 %r8,%ntid.z; cvt.u64.u32 %d19,%r8; mul.lo.s64 %d20,%d16,%d19; mov.u32 %r9,%tid.z; cvt.u64.u32 %d21,%r9;\n"
    "mov.u32 %r10,%tid.y; cvt.u64.u32 %d22,%r10; mov.u32 %r11,%tid.x; cvt.u64.u32 %d23,%r11; add.s64 %d24,%d20,%d21;\n"
    "mul.lo.s64 %d25,%d24,%d18; add.s64 %d26,%d25,%d22; mul.lo.s64 %d27,%d26,%d17; add.s64 %d3,%d27,%d23;\n"
    "setp.ge.u64 %p1,%d3,%d9; @%p1 bra L4; ld.param.u64 %d6,[p3]; ld.param.u64 %d5,[p2]; ld.param.u64 %d8,[p1];\n"
    "cvta.to.global.u64 %d1,%d8; atom.global.add.u64 %d28,[%d1],1; add.s64 %d4,%d3,%d6; setp.ge.u64 %p2,%d4,%d5;\n"
    "@%p2 bra L3; ld.param.u64 %d7,[p0]; cvta.to.global.u64 %d2,%d7; shl.b64 %d31,%d4,2; add.s64 %d32,%d2,%d31;\n"
    "atom.global.add.u32 %r12,[%d32],1; bra.uni L4;\n"
    "L3: add.s64 %d29,%d1,8; atom.global.add.u64 %d30,[%d29],1;\n"
    "L4: ret; }\n"; /* 1357 characters */
static const char ptx_step[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry step( .param .u64 p0, .param .u32 p1, .param .u64 p2, .param .u64 p3 ) { .reg .pred %p<2>;\n"
    ".reg .b32 %r<7>; .reg .b64 %d<11>; mov.u32 %r2,%ctaid.x; ld.param.u64 %d5,[p3]; mov.u32 %r3,%ntid.x;\n"
    "mul.wide.u32 %d6,%r2,%r3; mov.u32 %r4,%tid.x; cvt.u64.u32 %d7,%r4; add.s64 %d8,%d6,%d7; setp.ge.u64 %p1,%d8,%d5;\n"
    "@%p1 bra L2; ld.param.u32 %r1,[p1]; ld.param.u64 %d2,[p0]; cvta.to.global.u64 %d3,%d2; ld.param.u64 %d4,[p2];\n"
    "add.s64 %d9,%d8,%d4; shl.b64 %d10,%d9,2; add.s64 %d1,%d3,%d10; ld.global.u32 %r5,[%d1]; mad.lo.s32 %r6,%r5,31,%r1;\n"
    "st.global.u32 [%d1],%r6;\n"
    "L2: ret; }\n"; /* 626 characters */
static const char ptx_mix[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry mix( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3 ) { .reg .pred %p<2>;\n"
    ".reg .b32 %r<4>; .reg .b64 %d<16>; mov.u32 %r1,%ctaid.x; ld.param.u64 %d7,[p3]; mov.u32 %r2,%ntid.x;\n"
    "mul.wide.u32 %d8,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d9,%r3; add.s64 %d10,%d8,%d9; setp.ge.u64 %p1,%d10,%d7;\n"
    "@%p1 bra L2; ld.param.u64 %d3,[p0]; cvta.to.global.u64 %d4,%d3; ld.param.u64 %d5,[p1]; ld.param.u64 %d6,[p2];\n"
    "add.s64 %d11,%d10,%d6; shl.b64 %d12,%d11,3; add.s64 %d1,%d4,%d12; add.s64 %d2,%d11,%d5; ld.global.u64 %d13,[%d1];\n"
    "mul.lo.s64 %d14,%d13,1099511628211; add.s64 %d15,%d2,%d14; st.global.u64 [%d1],%d15;\n"
    "L2: ret; }\n"; /* 686 characters */
static const char ptx_step4[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry step4( .param .u64 p0, .param .u32 p1, .param .u32 p2, .param .u32 p3 ) { .reg .pred %p<2>;\n"
    ".reg .b32 %r<7>; .reg .b64 %d<11>; mov.u32 %r2,%ctaid.x; ld.param.u32 %d5,[p3]; mov.u32 %r3,%ntid.x;\n"
    "mul.wide.u32 %d6,%r2,%r3; mov.u32 %r4,%tid.x; cvt.u64.u32 %d7,%r4; add.s64 %d8,%d6,%d7; setp.ge.u64 %p1,%d8,%d5;\n"
    "@%p1 bra L2; ld.param.u32 %r1,[p1]; ld.param.u64 %d2,[p0]; cvta.to.global.u64 %d3,%d2; ld.param.u32 %d4,[p2];\n"
    "add.s64 %d9,%d8,%d4; shl.b64 %d10,%d9,2; add.s64 %d1,%d3,%d10; ld.global.u32 %r5,[%d1]; mad.lo.s32 %r6,%r5,31,%r1;\n"
    "st.global.u32 [%d1],%r6;\n"
    "L2: ret; }\n"; /* 627 characters */
static const char ptx_matmul[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry matmul( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3, .param .u32 p4,\n"
    ".param .u64 p5, .param .u64 p6 ) { .reg .pred %p<5>; .reg .b32 %r<16>; .reg .f32 %f<11>; .reg .b64 %d<34>;\n"
    "mov.u32 %r7,%ctaid.x; ld.param.u64 %d17,[p6]; mov.u32 %r8,%ntid.x; mul.wide.u32 %d18,%r7,%r8; mov.u32 %r9,%tid.x;\n"
    "cvt.u64.u32 %d19,%r9; add.s64 %d4,%d18,%d19; setp.ge.u64 %p1,%d4,%d17; @%p1 bra L8; ld.param.u64 %d13,[p5];\n"
    "ld.param.u32 %r6,[p4]; ld.param.u32 %r14,[p3]; ld.param.u64 %d14,[p0]; add.s64 %d5,%d4,%d13; cvt.u64.u32 %d6,%r6;\n"
    "and.b64 %d20,%d5,-4294967296; setp.ne.s64 %p2,%d20,0; @%p2 bra L3; bra.uni L2;\n"
    "L3: div.u64 %d33,%d5,%d6; bra.uni L4;\n"
    "L2: cvt.u32.u64 %r10,%d6; cvt.u32.u64 %r11,%d5; div.u32 %r12,%r11,%r10; cvt.u64.u32 %d33,%r12;\n"
    "L4: cvta.to.global.u64 %d3,%d14; setp.eq.s32 %p3,%r14,0; mov.f32 %f10,0f00000000; @%p3 bra L7; ld.param.u64 %d15,[p2];\n"
    "ld.param.u64 %d16,[p1]; cvta.to.global.u64 %d1,%d15; cvta.to.global.u64 %d2,%d16; mul.lo.s64 %d21,%d33,%d6;\n"
    "sub.s64 %d11,%d5,%d21; cvt.u64.u32 %d22,%r14; mul.lo.s64 %d12,%d33,%d22; mov.f32 %f10,0f00000000; mov.u32 %r15,0;\n"
    "L6: cvt.u64.u32 %d23,%r15; add.s64 %d24,%d12,%d23; shl.b64 %d25,%d24,2; add.s64 %d26,%d2,%d25;\n"
    "ld.global.f32 %f6,[%d26]; mul.lo.s64 %d27,%d23,%d6; add.s64 %d28,%d27,%d11; shl.b64 %d29,%d28,2;\n"
    "add.s64 %d30,%d1,%d29; ld.global.f32 %f7,[%d30]; mul.rn.f32 %f8,%f6,%f7; add.rn.f32 %f10,%f10,%f8;\n"
    "add.s32 %r15,%r15,1; add.s32 %r14,%r14,-1; setp.eq.s32 %p4,%r14,0; @%p4 bra L7; bra.uni L6;\n"
    "L7: shl.b64 %d31,%d5,2; add.s64 %d32,%d3,%d31; st.global.f32 [%d32],%f10;\n"
    "L8: ret; }\n"; /* 1612 characters */
static const char ptx_add_floats[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry add_floats( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<17>; ld.param.u64 %d11,[p4]; mov.u32 %r1,%ctaid.x;\n"
    "mov.u32 %r2,%ntid.x; mul.wide.u32 %d12,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d13,%r3; add.s64 %d14,%d12,%d13;\n"
    "setp.ge.u64 %p1,%d14,%d11; @%p1 bra L2; ld.param.u64 %d4,[p0]; ld.param.u64 %d5,[p2]; cvta.to.global.u64 %d6,%d5;\n"
    "ld.param.u64 %d7,[p1]; cvta.to.global.u64 %d8,%d7; cvta.to.global.u64 %d9,%d4; ld.param.u64 %d10,[p3];\n"
    "add.s64 %d15,%d14,%d10; shl.b64 %d16,%d15,2; add.s64 %d1,%d9,%d16; add.s64 %d2,%d6,%d16; add.s64 %d3,%d8,%d16;\n"
    "ld.global.f32 %f1,[%d3]; ld.global.f32 %f2,[%d2]; add.rn.f32 %f3,%f1,%f2; st.global.f32 [%d1],%f3;\n"
    "L2: ret; }\n"; /* 823 characters */
static const char ptx_multiply_floats[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry multiply_floats( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<17>; ld.param.u64 %d11,[p4]; mov.u32 %r1,%ctaid.x;\n"
    "mov.u32 %r2,%ntid.x; mul.wide.u32 %d12,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d13,%r3; add.s64 %d14,%d12,%d13;\n"
    "setp.ge.u64 %p1,%d14,%d11; @%p1 bra L2; ld.param.u64 %d4,[p0]; ld.param.u64 %d5,[p2]; cvta.to.global.u64 %d6,%d5;\n"
    "ld.param.u64 %d7,[p1]; cvta.to.global.u64 %d8,%d7; cvta.to.global.u64 %d9,%d4; ld.param.u64 %d10,[p3];\n"
    "add.s64 %d15,%d14,%d10; shl.b64 %d16,%d15,2; add.s64 %d1,%d9,%d16; add.s64 %d2,%d6,%d16; add.s64 %d3,%d8,%d16;\n"
    "ld.global.f32 %f1,[%d3]; ld.global.f32 %f2,[%d2]; mul.rn.f32 %f3,%f1,%f2; st.global.f32 [%d1],%f3;\n"
    "L2: ret; }\n"; /* 828 characters */
static const char ptx_whereabouts[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry whereabouts( .param .u64 p0 ) { .reg .b32 %r<12>; .reg .b64 %d<35>; ld.param.u64 %d1,[p0];\n"
    "cvta.to.global.u64 %d2,%d1; mov.u32 %r1,%ctaid.x; cvt.u64.u32 %d3,%r1; shl.b64 %d4,%d3,52; mov.u32 %r2,%ctaid.y;\n"
    "cvt.u64.u32 %d5,%r2; shl.b64 %d6,%d5,44; mov.u32 %r3,%ctaid.z; cvt.u64.u32 %d7,%r3; shl.b64 %d8,%d7,36;\n"
    "mov.u32 %r4,%tid.x; cvt.u64.u32 %d9,%r4; mul.wide.u32 %d10,%r4,1048576; mov.u32 %r5,%tid.y; cvt.u64.u32 %d11,%r5;\n"
    "mul.wide.u32 %d12,%r5,1024; mov.u32 %r6,%tid.z; cvt.u64.u32 %d13,%r6; or.b64 %d14,%d6,%d13; or.b64 %d15,%d14,%d4;\n"
    "or.b64 %d16,%d15,%d8; or.b64 %d17,%d16,%d10; or.b64 %d18,%d17,%d12; mov.u32 %r7,%nctaid.y; mul.wide.u32 %d19,%r3,%r7;\n"
    "add.s64 %d20,%d19,%d5; mov.u32 %r8,%nctaid.x; cvt.u64.u32 %d21,%r8; mul.lo.s64 %d22,%d20,%d21; add.s64 %d23,%d22,%d3;\n"
    "mov.u32 %r9,%ntid.x; cvt.u64.u32 %d24,%r9; mov.u32 %r10,%ntid.y; cvt.u64.u32 %d25,%r10; mov.u32 %r11,%ntid.z;\n"
    "cvt.u64.u32 %d26,%r11; mul.lo.s64 %d27,%d23,%d26; add.s64 %d28,%d27,%d13; mul.lo.s64 %d29,%d28,%d25;\n"
    "add.s64 %d30,%d29,%d11; mul.lo.s64 %d31,%d30,%d24; add.s64 %d32,%d31,%d9; shl.b64 %d33,%d32,3; add.s64 %d34,%d2,%d33;\n"
    "st.global.u64 [%d34],%d18; ret; }\n"; /* 1195 characters */
static const char ptx_turn_around[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".extern .shared .align 4 .b8 dynamic_shared[];  .visible .entry turn_around( .param .u64 p0 ) { .reg .b32 %r<8>;\n"
    ".reg .b64 %d<13>; ld.param.u64 %d1,[p0]; cvta.to.global.u64 %d2,%d1; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x;\n"
    "mul.wide.u32 %d3,%r1,%r2; mov.u32 %r3,%tid.x; cvt.u64.u32 %d4,%r3; add.s64 %d5,%d3,%d4; shl.b64 %d6,%d5,2;\n"
    "add.s64 %d7,%d2,%d6; ld.global.u32 %r4,[%d7]; mul.wide.u32 %d8,%r3,4; mov.u64 %d9,dynamic_shared;\n"
    "add.s64 %d10,%d9,%d8; st.shared.u32 [%d10],%r4; bar.sync 0; not.b32 %r5,%r3; add.s32 %r6,%r2,%r5;\n"
    "mul.wide.u32 %d11,%r6,4; add.s64 %d12,%d9,%d11; ld.shared.u32 %r7,[%d12]; st.global.u32 [%d7],%r7; ret; }\n"; /* 678 characters */
static const char ptx_rows[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry rows( .param .u64 p0, .param .u32 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4 ) {\n"
    ".reg .pred %p<4>; .reg .b32 %r<13>; .reg .b64 %d<27>; ld.param.u64 %d12,[p4]; ld.param.u32 %r5,[p1];\n"
    "mov.u32 %r6,%ntid.x; div.u32 %r7,%r6,%r5; cvt.u64.u32 %d3,%r7; mov.u32 %r8,%ctaid.x; cvt.u64.u32 %d4,%r8;\n"
    "mul.wide.u32 %d15,%r8,%r6; mov.u32 %r1,%tid.x; cvt.u64.u32 %d16,%r1; neg.s64 %d17,%d16; setp.ne.s64 %p1,%d15,%d17;\n"
    "mov.u32 %r2,%nctaid.x; @%p1 bra L2; ld.param.u64 %d14,[p2]; cvta.to.global.u64 %d1,%d14; st.global.u32 [%d1],%r2;\n"
    "L2: mul.lo.s64 %d18,%d3,%d4; div.u32 %r4,%r1,%r5; cvt.u64.u32 %d19,%r4; add.s64 %d26,%d18,%d19;\n"
    "setp.ge.u64 %p2,%d26,%d12; @%p2 bra L5; ld.param.u64 %d13,[p0]; ld.param.u64 %d11,[p3]; cvta.to.global.u64 %d2,%d13;\n"
    "cvt.u64.u32 %d6,%r5; mul.lo.s32 %r9,%r4,%r5; sub.s32 %r10,%r1,%r9; cvt.u64.u32 %d20,%r2; mul.lo.s64 %d7,%d3,%d20;\n"
    "mul.wide.u32 %d21,%r10,4; add.s64 %d8,%d2,%d21;\n"
    "L4: add.s64 %d22,%d26,%d11; mul.lo.s64 %d23,%d22,%d6; shl.b64 %d24,%d23,2; add.s64 %d25,%d8,%d24;\n"
    "ld.global.u32 %r11,[%d25]; mad.lo.s32 %r12,%r11,31,1; st.global.u32 [%d25],%r12; add.s64 %d26,%d26,%d7;\n"
    "setp.lt.u64 %p3,%d26,%d12; @%p3 bra L4;\n"
    "L5: ret; }\n"; /* 1213 characters */
static const char ptx_meet[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry meet( .param .u64 p0, .param .u64 p1, .param .u32 p2 ) { .reg .pred %p<3>; .reg .b32 %r<6>;\n"
    ".reg .b64 %d<5>; mov.u32 %r2,%tid.x; setp.ne.s32 %p1,%r2,0; @%p1 bra L4; ld.param.u32 %r1,[p2]; ld.param.u64 %d3,[p0];\n"
    "ld.param.u64 %d4,[p1]; cvta.to.global.u64 %d1,%d4; cvta.to.global.u64 %d2,%d3; atom.global.add.u32 %r3,[%d2],1;\n"
    "L2: ld.volatile.global.u32 %r4,[%d2]; setp.lt.u32 %p2,%r4,%r1; @%p2 bra L2; atom.global.add.u32 %r5,[%d1],1;\n"
    "L4: ret; }\n"; /* 503 characters */
/* <<device-code tests/support/kernels.cu */

#endif
