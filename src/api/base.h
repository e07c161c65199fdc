/* api/base.h - version, platform and linkage macros.

   Has the macros that all other public rooms use: the version, the check of the platform,
   linkage (DEVSTREAM_API, DSDEF, DSINLINE), and the rules for results (DS_MUST_USE, DS_IGNORE). */
#ifndef DS__API_BASE_H
#define DS__API_BASE_H

#include <stddef.h>
#include <stdint.h>

/** The version of these headers, major.minor.patch: the first number, */
#define DEVSTREAM_VERSION_MAJOR 0
/** the second, */
#define DEVSTREAM_VERSION_MINOR 1
/** and the third. */
#define DEVSTREAM_VERSION_PATCH 0
/** All three as one number: 10000 * major + 100 * minor + patch. */
#define DEVSTREAM_VERSION \
    (DEVSTREAM_VERSION_MAJOR * 10000 + DEVSTREAM_VERSION_MINOR * 100 + DEVSTREAM_VERSION_PATCH)

#if !defined(__linux__)
#error "devstream runs on Linux (x86-64 and aarch64) only, so far"
#endif

#if defined(DEVSTREAM_SHARED) && !defined(DEVSTREAM_API)
#define DEVSTREAM_API __attribute__((visibility("default")))
#endif
#ifndef DEVSTREAM_API
/** The prefix of every function: the program's, if it is defined before. */
#define DEVSTREAM_API
/** The implementation is hidden, unless the program has said otherwise. */
#define DS__HIDDEN __attribute__((visibility("hidden")))
#endif
#ifdef DEVSTREAM_STATIC
#define DSDEF __attribute__((unused)) static
#else
#define DSDEF DEVSTREAM_API
#endif
#if defined(DEVSTREAM_STATIC) || defined(__cplusplus) || defined(__GNUC_GNU_INLINE__)
#define DSINLINE static inline
#elif defined(DEVSTREAM_IMPLEMENTATION) && defined(DS__HIDDEN)
#define DSINLINE DS__HIDDEN inline
#elif defined(DEVSTREAM_IMPLEMENTATION)
#define DSINLINE DEVSTREAM_API inline
#else
/** Functions that the header defines; the library has each as an ordinary function, too. */
#define DSINLINE inline
#endif
#ifdef DEVSTREAM_STATIC
#define DS__SYMBOL(declaration)
#else
/** Makes an inline function a symbol of the library. */
#define DS__SYMBOL(declaration) extern declaration;
#endif
/** Results must be looked at; DS_IGNORE says that one is not wanted. */
#define DS_MUST_USE __attribute__((warn_unused_result))
/** Makes a call and drops its result. */
#define DS_IGNORE(call)                 \
    do {                                \
        ds_result ds_ignored_ = (call); \
        (void)ds_ignored_;              \
    } while (0)

#endif
