/* os/library.h - shared libraries that the program is not linked with.

   Finds libraries that are loaded already (ds__os_library_loaded) and files by a pattern
   (ds__os_last_match). DS__CUDART_LOADED says whether cudart is such a library: 1 if the program
   defines DEVSTREAM_CUDA_DLOPEN, and 0 if it is linked with cudart. DS__MPI_LOADED is the same for
   MPI: 0 if the program defines DEVSTREAM_MPI, and 1 otherwise.

   Invariants: a process with more rights than its caller takes no library from the environment
   (ds__os_environment).
   Locks: none.
   Threads: any. The environment must not change at the same time (getenv). */
#ifndef DS__OS_LIBRARY_H
#define DS__OS_LIBRARY_H

#include "linux.h"
#include <glob.h>
#include <sys/auxv.h>

#ifdef DEVSTREAM_CUDA_DLOPEN
#define DS__CUDART_LOADED 1
#else
#define DS__CUDART_LOADED 0
#endif

#ifdef DEVSTREAM_MPI
#define DS__MPI_LOADED 0
#else
#define DS__MPI_LOADED 1
#endif

/* Returns a library that the process has loaded already, under any path. NULL: it has not. */
DS__SEAM static void *ds__os_library_loaded(const char *name) {
    return dlopen(name, RTLD_NOW | 4 /* RTLD_NOLOAD, which C11 hides */);
}

/* Loads a shared library whose symbols the libraries that are loaded later can use. Returns NULL on
   failure, with the reason in *out_error; the text is valid until the thread's next such call. */
DS__SEAM static void *ds__os_library_share(const char *path, const char **out_error) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    *out_error = library ? NULL : dlerror();
    return library;
}

/* Returns a variable of the environment that must not come from a caller with fewer rights. NULL:
   it is not set or empty, or the program has more rights than its caller (setuid). */
DS__SEAM static const char *ds__os_environment(const char *name) {
    const char *text = getauxval(23 /* AT_SECURE */) ? NULL : getenv(name);
    return text && *text ? text : NULL;
}

/* Gives the last file, in the order of names, that matches a pattern of glob(). Returns 0 if there
   is none, or if its path is too long. */
DS__SEAM static int ds__os_last_match(const char *pattern, char *out, size_t size) {
    glob_t found;
    int is = 0;
    if (glob(pattern, 0, NULL, &found) != 0)
        return 0;
    if (found.gl_pathc > 0) {
        int n = snprintf(out, size, "%s", found.gl_pathv[found.gl_pathc - 1]);
        is = n > 0 && (size_t)n < size;
    }
    globfree(&found);
    return is;
}

#endif
