/* os/vector.h - vector instructions.

   Has what the vector code of comm/ and rng/ needs beyond the vector types of gcc and clang:
   the largest vector of the processor (ds__os_vector), the markers of functions that use larger
   vectors than every processor has (DS__VECTOR_32, DS__VECTOR_64), stores that go around the
   caches, tests of masks, products of words, the order of independent sequences, and conversions
   of f16. W is the size of a vector in bytes: 16, and on x86-64 also 32 (AVX2, F16C) and 64
   (AVX-512).

   Invariants: a function marked DS__VECTOR_32 or DS__VECTOR_64 runs only if ds__os_vector returns
   at least that size. DS__VECTOR_FENCE follows stores around the caches before a release.
   Sanitizers do not see such stores, so there they are plain ones.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_VECTOR_H
#define DS__OS_VECTOR_H

#include "system.h"
#include "processor.h"

#include <stdatomic.h>

/* gcc for Windows aligns the stack to 16 bytes and yet stores larger vectors there with
   instructions that need more (gcc bug 54412), so they are left out. */
#if defined(__x86_64__) && !(defined(_WIN32) && !defined(__clang__))
#define DS__VECTOR_32 __attribute__((target("avx2,f16c")))
/* clang 18 to 21 has vectors of 64 bytes in a feature of its own, and zig turns that off. */
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ >= 18 && \
    __clang_major__ <= 21
#define DS__VECTOR_64 __attribute__((target("avx512f,evex512")))
#else
#define DS__VECTOR_64 __attribute__((target("avx512f")))
#endif
#define DS__VECTOR_HAS_32 1
#define DS__VECTOR_HAS_64 1
#else
#define DS__VECTOR_HAS_32 0
#define DS__VECTOR_HAS_64 0
#endif
#define DS__VECTOR_16
#define DS__VECTOR_HAS_16 1

#if DS__VECTOR_HAS_32
/* Asks the processor for its largest vector that the system saves at a switch of threads. The
   builtins for this need symbols that some compilers do not link. */
static int ds__os_vector_read(void) {
    enum { FMA = 1 << 12, XGETBV = 1 << 27, F16C = 1 << 29, AVX2 = 1 << 5, AVX512F = 1 << 16 };

    const unsigned basic = FMA | XGETBV | F16C;
    unsigned first[4];
    unsigned second[4];
    ds__processor_id(0, 0, first);
    if (first[0] < 7)
        return 16;

    ds__processor_id(1, 0, first);
    ds__processor_id(7, 0, second);
    if ((first[2] & basic) != basic || !(second[1] & AVX2))
        return 16;

    unsigned saved = ds__processor_saved();
    if ((saved & DS__PROCESSOR_SAVES_32) != DS__PROCESSOR_SAVES_32)
        return 16;
    return second[1] & AVX512F && (saved & DS__PROCESSOR_SAVES_64) == DS__PROCESSOR_SAVES_64 ? 64
                                                                                             : 32;
}
#endif

/* Returns the size of the processor's largest vector: 16, 32 or 64. */
DS__SEAM static int ds__os_vector(void) {
#if DS__VECTOR_HAS_32
    static _Atomic int known;
    int vector = atomic_load_explicit(&known, memory_order_relaxed);
    if (vector == 0) {
        vector = ds__os_vector_read();
        atomic_store_explicit(&known, vector, memory_order_relaxed);
    }
    return vector;
#else
    return 16;
#endif
}

/* Returns the processor's architecture and the extensions that the library uses. */
DS__SEAM static const char *ds__os_architecture(void) {
#if defined(__x86_64__)
    return ds__os_vector() >= 32 ? "x86_64 avx2" : "x86_64";
#else
    return "aarch64";
#endif
}

typedef float ds__os_floats_16 __attribute__((vector_size(16)));
typedef float ds__os_floats_32 __attribute__((vector_size(32)));
typedef float ds__os_floats_64 __attribute__((vector_size(64)));

/* DS__VECTOR_STREAM(W, to, v) stores a vector around the caches; `to` is a multiple of W. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#define DS__VECTOR_CAN_STREAM 1
#ifdef __clang__
#define DS__VECTOR_STREAM(W, to, v) \
    __builtin_nontemporal_store((ds__os_floats_##W)(v), (ds__os_floats_##W *)(void *)(to))
#else
#define DS__VECTOR_MOVNT_16 __builtin_ia32_movntps
#define DS__VECTOR_MOVNT_32 __builtin_ia32_movntps256
#define DS__VECTOR_MOVNT_64 __builtin_ia32_movntps512
#define DS__VECTOR_STREAM(W, to, v) \
    DS__VECTOR_MOVNT_##W((float *)(void *)(to), (ds__os_floats_##W)(v))
#endif
#define DS__VECTOR_FENCE() __asm__ __volatile__("sfence" ::: "memory")
#else
typedef float ds__os_any_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef float ds__os_any_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef float ds__os_any_64 __attribute__((vector_size(64), aligned(1), may_alias));
#define DS__VECTOR_CAN_STREAM 0
#define DS__VECTOR_STREAM(W, to, v) \
    (void)(*(ds__os_any_##W *)(void *)(to) = (ds__os_any_##W)(ds__os_floats_##W)(v))
#define DS__VECTOR_FENCE() (void)0
#endif

/* DS__VECTOR_ANY_W(mask): 1 if a mask is not empty. */
typedef uint64_t ds__os_words_16 __attribute__((vector_size(16)));
#if defined(__x86_64__)
#define DS__VECTOR_ANY_16(mask) (__builtin_ia32_movmskps((ds__os_floats_16)(mask)) != 0)
#define DS__VECTOR_ANY_32(mask) (__builtin_ia32_movmskps256((ds__os_floats_32)(mask)) != 0)
#else
#define DS__VECTOR_ANY_16(mask) ((((ds__os_words_16)(mask))[0] | ((ds__os_words_16)(mask))[1]) != 0)
#endif

/* DS__VECTOR_TIMES(W, a, b): the products of the lower halves of the 64-bit lanes of a with the
   word b. clang finds the instruction itself. */
typedef uint64_t ds__os_words_32 __attribute__((vector_size(32)));
typedef uint64_t ds__os_words_64 __attribute__((vector_size(64)));
#if defined(__clang__) || !defined(__x86_64__)
#define DS__VECTOR_TIMES(W, a, b) (((a)&0xffffffffu) * (ds__os_words_##W)((a)*0 + (b)))
#else
typedef int ds__os_ints_16 __attribute__((vector_size(16)));
typedef int ds__os_ints_32 __attribute__((vector_size(32)));
typedef int ds__os_ints_64 __attribute__((vector_size(64)));
typedef long long ds__os_longs_64 __attribute__((vector_size(64)));
#define DS__VECTOR_TIMES(W, a, b) DS__VECTOR_TIMES_##W(a, (ds__os_words_##W)((a)*0 + (b)))
#define DS__VECTOR_TIMES_16(a, b) \
    (ds__os_words_16) __builtin_ia32_pmuludq128((ds__os_ints_16)(a), (ds__os_ints_16)(b))
#define DS__VECTOR_TIMES_32(a, b) \
    (ds__os_words_32) __builtin_ia32_pmuludq256((ds__os_ints_32)(a), (ds__os_ints_32)(b))
#define DS__VECTOR_TIMES_64(a, b)                                                              \
    (ds__os_words_64) __builtin_ia32_pmuludq512_mask((ds__os_ints_64)(a), (ds__os_ints_64)(b), \
                                                     (ds__os_longs_64)(a), (unsigned char)-1)
#endif

/* DS__VECTOR_IN_STEP(W, ...): all these vectors are computed before what follows. clang would else
   compute one of several independent sequences after the other. */
#if defined(__clang__) && defined(__x86_64__)
#define DS__VECTOR_KEEP_16(v) "+x"(v)
#define DS__VECTOR_KEEP_32(v) "+x"(v)
#define DS__VECTOR_KEEP_64(v) "+v"(v)
#define DS__VECTOR_IN_STEP(W, a, b, c, d, e, f, g, h)                                 \
    __asm__(""                                                                        \
            : DS__VECTOR_KEEP_##W(a), DS__VECTOR_KEEP_##W(b), DS__VECTOR_KEEP_##W(c), \
              DS__VECTOR_KEEP_##W(d), DS__VECTOR_KEEP_##W(e), DS__VECTOR_KEEP_##W(f), \
              DS__VECTOR_KEEP_##W(g), DS__VECTOR_KEEP_##W(h))
#else
#define DS__VECTOR_IN_STEP(W, ...) (void)0
#endif

/* Eight numbers of f16, a vector of 16 bytes, to f32 and back, rounded to nearest even. */
typedef short ds__os_halves_16 __attribute__((vector_size(16)));
#ifdef __clang__
typedef __fp16 ds__os_f16s_16 __attribute__((vector_size(16)));
#define DS__VECTOR_WIDEN(halves) __builtin_convertvector((ds__os_f16s_16)(halves), ds__os_floats_32)
#else
#define DS__VECTOR_WIDEN(halves) __builtin_ia32_vcvtph2ps256((ds__os_halves_16)(halves))
#endif
#define DS__VECTOR_NARROW(floats) __builtin_ia32_vcvtps2ph256((ds__os_floats_32)(floats), 0)

#endif
