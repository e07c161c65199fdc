/* os/processor.h - processor instructions.

   Wraps instructions for waiting, cache lines, the clock and the state of floating-point
   arithmetic. vector.h has the vector instructions.

   Invariants: each function has a form for x86-64 and one for aarch64.
   Locks: none.
   Threads: any. ds__os_set_float_state concerns the calling thread only. */
#ifndef DS__OS_PROCESSOR_H
#define DS__OS_PROCESSOR_H

#include "system.h"

#if defined(__x86_64__)
/* Writes a leaf of the processor's description: eax, ebx, ecx, edx. */
DS__SEAM static void ds__processor_id(unsigned leaf, unsigned part, unsigned out[4]) {
    __asm__ __volatile__("cpuid"
                         : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                         : "0"(leaf), "2"(part));
}

/* Registers that the system saves at a switch of threads: vectors of up to 32 or 64 bytes. */
enum { DS__PROCESSOR_SAVES_32 = 0x06, DS__PROCESSOR_SAVES_64 = 0xe6 };

/* Returns the set of registers that the system saves. The processor must have xgetbv. */
DS__SEAM static unsigned ds__processor_saved(void) {
    unsigned low;
    unsigned high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

/* Tells the processor that the thread spins. */
static inline void ds__processor_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ __volatile__("yield");
#endif
}

/* Asks for a cache line that will be written soon and that another processor may have; any
   address is allowed. */
static inline void ds__own_line(const void *line) {
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw (%0)" : : "r"(line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Keeps the compiler from moving or combining memory accesses across this place. */
#define DS__COMPILER_FENCE() __asm__ __volatile__("" : : : "memory")

/* Returns the processor's clock, which costs half of the system's clock. Its rate is not known. */
static inline uint64_t ds__os_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t t;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#endif
}

/* The same, read after all instructions before it. */
static inline uint64_t ds__os_ticks_ordered(void) {
#if defined(__x86_64__)
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc();
#else
    __asm__ __volatile__("isb" : : : "memory");
    return ds__os_ticks();
#endif
}

/* Get and set the calling thread's rounding mode, flushing of subnormal numbers and traps. Programs
   that gcc links with -ffast-math change them for all threads. In the bits DS__FLOAT_STATE the
   usual state is DS__FLOAT_USUAL. */
#if defined(__x86_64__)
enum { DS__FLOAT_USUAL = 0x1f80, DS__FLOAT_STATE = 0xffc0 };
#else
enum { DS__FLOAT_USUAL = 0, DS__FLOAT_STATE = 0x7ffffff };
#endif

DS__SEAM static uint64_t ds__os_float_state(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr();
#else
    uint64_t state;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(state));
    return state;
#endif
}

DS__SEAM static void ds__os_set_float_state(uint64_t state) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)state);
#else
    __asm__ __volatile__("msr fpcr, %0" ::"r"(state) : "memory");
#endif
}

#endif
