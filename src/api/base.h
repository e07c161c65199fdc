/* api/base.h - version, platform and linkage macros.

   Defines the macros used by all other public rooms: the version, the platform check, and linkage
   (DEVSTREAM_API, DSDEF, DSINLINE). DS_MUST_USE and DS_IGNORE set the rules for unused results. */
#ifndef DS__API_BASE_H
#define DS__API_BASE_H

/* Compilers and targets that cannot work are refused before the first include and declaration, so
   that this is their first message. */
#if defined(__TINYC__)
#error "devstream cannot be compiled by tcc, which has no thread-local variables: use gcc or clang"
#elif defined(_MSC_VER) && !defined(__clang__) && defined(DEVSTREAM_IMPLEMENTATION)
#error "devstream cannot be implemented by cl: compile devstream.c with clang-cl or mingw gcc"
#elif !defined(__GNUC__) && !defined(__clang__) && !defined(_MSC_VER)
#error "devstream needs the attributes and builtins of gcc or clang, which this compiler lacks"
#elif !defined(__linux__) && !defined(_WIN32) && \
    !defined(__ENVIRONMENT_MAC_OS_X_VERSION_MIN_REQUIRED__)
#error "devstream runs on Linux and macOS (x86-64, aarch64) and on Windows (x86-64) only, so far"
#elif defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8
#error "devstream needs a 64-bit target: compile without -m32 or -mx32, with a 64-bit compiler"
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "devstream needs a little-endian target: x86-64 or aarch64"
#endif

#include <stddef.h>
#include <stdint.h>

/** Version of these headers: the major number, */
#define DEVSTREAM_VERSION_MAJOR 0
/** the minor number, */
#define DEVSTREAM_VERSION_MINOR 1
/** and the patch number. */
#define DEVSTREAM_VERSION_PATCH 0
/** Version as one number: 10000 * major + 100 * minor + patch. */
#define DEVSTREAM_VERSION \
    (DEVSTREAM_VERSION_MAJOR * 10000 + DEVSTREAM_VERSION_MINOR * 100 + DEVSTREAM_VERSION_PATCH)

#if defined(DEVSTREAM_SHARED) && !defined(DEVSTREAM_API)
#if defined(_WIN32)
#define DEVSTREAM_API __declspec(dllexport)
#else
#define DEVSTREAM_API __attribute__((visibility("default")))
#endif
#endif
#ifndef DEVSTREAM_API
/** Prefix of every function. A program may define its own before the include. */
#define DEVSTREAM_API
#if !defined(_WIN32)
/** Hides the implementation, unless the program has defined DEVSTREAM_API. */
#define DS__HIDDEN __attribute__((visibility("hidden")))
#endif
#endif
#ifdef DEVSTREAM_STATIC
#if defined(_MSC_VER) && !defined(__clang__)
#error "DEVSTREAM_STATIC needs gcc or clang; compile devstream.c with one of them and link it"
#endif
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
/** Prefix of functions defined in the header. The library also has each as an ordinary function. */
#define DSINLINE inline
#endif
#ifdef DEVSTREAM_STATIC
#define DS__SYMBOL(declaration)
#else
/** Makes an inline function a symbol of the library. */
#define DS__SYMBOL(declaration) extern declaration;
#endif
#if defined(_MSC_VER) && !defined(__clang__)
/** 1: Microsoft's compiler, which can use the declarations. The implementation needs gcc or
    clang. */
#define DS__MICROSOFT 1
#define DS_MUST_USE
#else
#define DS__MICROSOFT 0
/** Results must be checked; DS_IGNORE marks a result as ignored on purpose. */
#define DS_MUST_USE __attribute__((warn_unused_result))
#endif
/** Calls a function and discards its result. */
#define DS_IGNORE(call)                 \
    do {                                \
        ds_result ds_ignored_ = (call); \
        (void)ds_ignored_;              \
    } while (0)

#endif
