/* Sanitizers are slow, the thread sanitizer ten times as slow as none, and so is an emulator
   (HARNESS_EMULATED): there loops of many rounds do each third one only. The other builds do
   all. */
#ifndef SLOW_H
#define SLOW_H
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
#ifdef HARNESS_EMULATED
enum { HARNESS_EMULATES = 1 };
#else
enum { HARNESS_EMULATES = 0 };
#endif
#endif
