/* Sanitizers are slow, the thread sanitizer ten times as slow as none, and so is an emulator
   (HARNESS_EMULATED): there loops of many rounds do each third one only. The other builds do
   all.

   Tests in which each step fails in turn take each N-th step from DS_TEST_FIRST (0) on, with
   DS_TEST_EVERY=N (1: all). The gate gives another first step to each commit. */
#ifndef SLOW_H
#define SLOW_H
#include <stdlib.h>
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW_THREAD
#elif __has_feature(address_sanitizer)
#define SLOW_ADDRESS
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(SLOW_THREAD) || defined(HARNESS_EMULATED)
enum { HARNESS_THIRD = 3, HARNESS_SLOW = 1 };
#elif defined(__SANITIZE_ADDRESS__) || defined(SLOW_ADDRESS)
enum { HARNESS_THIRD = 1, HARNESS_SLOW = 1 };
#else
enum { HARNESS_THIRD = 1, HARNESS_SLOW = 0 };
#endif
static inline long harness_every(void) {
    const char *every = getenv("DS_TEST_EVERY");
    long n = every ? atol(every) : 1;
    return n > 0 ? n : 1;
}

static inline long harness_first(void) {
    const char *first = getenv("DS_TEST_FIRST");
    return (first ? atol(first) : 0) % harness_every();
}
#ifdef HARNESS_EMULATED
enum { HARNESS_EMULATES = 1 };
#else
enum { HARNESS_EMULATES = 0 };
#endif
#endif
