/* cuda/cudart_load.h - cudart found and loaded at run time.

   Loads the shared library of cudart (ds__cudart_load) and fills the tables of its functions, if
   the program defines DEVSTREAM_CUDA_DLOPEN. A program that is linked with cudart has it already.

   Policy:
   1. The sonames are libcudart.so.13, .12 and .11.0. A cudart that the process has loaded already,
      for example by PyTorch, comes first, so that both use the same one.
   2. Without DEVSTREAM_CUDART the system searches: LD_LIBRARY_PATH, the run path of the program,
      ldconfig. If DEVSTREAM_CUDART names a folder, only this folder and those below it are
      searched that a toolkit, or a site-packages with NVIDIA's wheels, has. If it names a library,
      that library is loaded. If it is "wheels", the usual site-packages are searched.
   3. If the driver of the machine is too old for a version, the caller tries the next one.
   4. A program that includes CUDA's headers loads only the same major version, because structs
      differ between major versions.

   Invariants: either all functions of a version are set, or none is changed. A library is never
   closed, since cudart may have threads and the program may have its handles.
   Locks: The core holds its initialisation mutex.
   Threads: runs during initialisation only. */
#ifndef DS__CUDA_CUDART_LOAD_H
#define DS__CUDA_CUDART_LOAD_H

#include "version.h"

/* The state of a search, zeroed before its first step. */
typedef struct ds__cudart_search {
    int step;
    int kept;     /* 1: the library in use was offered */
    int reported; /* 1: the reason says why a library that was found is not taken */
} ds__cudart_search;

#if !DS__CUDART_LOADED

/* Returns 1 at the first step: the program is linked with cudart. */
static int ds__cudart_load(ds__cudart_search *search, char *reason, size_t size) {
    (void)reason;
    (void)size;
    return search->step++ == 0;
}

/* Returns the name of the loaded library; "" if the program is linked with cudart. */
static const char *ds__cudart_name(void) {
    return "";
}

static void ds__cudart_drop(void) {
}

#else

enum { DS__CUDART_SONAMES = 3, DS__CUDART_PATH = 1024 };

static const char *const ds__cudart_sonames[DS__CUDART_SONAMES] = { DS__CUDART_NAMES };

static struct {
    void *library; /* the one in use; NULL: none */
    const char *name;
} ds__cudart_library = { NULL, "" };

static const char *const ds__cudart_places[] = { DS__CUDART_PLACES };

/* Patterns of the usual site-packages, below a variable of the environment if one is named. */
static const struct {
    const char *variable;
    const char *pattern;
} ds__cudart_packages[] = { { "VIRTUAL_ENV", "/lib*/python3*/site-packages" },
                            { "CONDA_PREFIX", "/lib/python3*/site-packages" },
                            { "HOME", "/.local/lib/python3*/site-packages" },
                            { NULL, "/usr/local/lib*/python3*/*-packages" },
                            { NULL, "/usr/lib*/python3*/*-packages" } };

/* Opens a soname in one of the places of a folder, which may be a pattern. NULL: it is in none. */
static void *ds__cudart_open_in(const char *base, const char *folder, const char *soname) {
    char pattern[DS__CUDART_PATH];
    char path[DS__CUDART_PATH];
    void *library = NULL;
    size_t count = sizeof ds__cudart_places / sizeof ds__cudart_places[0];
    for (size_t i = 0; i < count && !library; i++) {
        int n = snprintf(pattern, sizeof pattern, "%s%s/%s%s", base, folder, ds__cudart_places[i],
                         soname);
        if (n > 0 && (size_t)n < sizeof pattern && ds__os_last_match(pattern, path, sizeof path))
            library = ds__os_library_open(path);
    }
    return library;
}

/* Opens a soname in the usual site-packages. */
static void *ds__cudart_open_wheel(const char *soname) {
    void *library = NULL;
    size_t count = sizeof ds__cudart_packages / sizeof ds__cudart_packages[0];
    for (size_t i = 0; i < count && !library; i++) {
        const char *variable = ds__cudart_packages[i].variable;
        const char *base = variable ? ds__os_environment(variable) : "";
        if (base)
            library = ds__cudart_open_in(base, ds__cudart_packages[i].pattern, soname);
    }
    return library;
}

/* Opens the library of a step: the loaded ones, then those of the system; or the one that
   DEVSTREAM_CUDART names, then those in that folder. Returns 0 after the last step. */
static int ds__cudart_open(int step, const char *where, void **out, const char **out_name) {
    const char *soname = ds__cudart_sonames[step % DS__CUDART_SONAMES];
    *out_name = soname;
    *out = NULL;
    if (step >= 2 * DS__CUDART_SONAMES)
        return 0;
    if (!where) {
        *out =
            step < DS__CUDART_SONAMES ? ds__os_library_loaded(soname) : ds__os_library_open(soname);
    } else if (step >= DS__CUDART_SONAMES) {
        *out = strcmp(where, "wheels") == 0 ? ds__cudart_open_wheel(soname)
                                            : ds__cudart_open_in(where, "", soname);
    } else if (step == 0 && strcmp(where, "wheels") != 0) {
        *out = ds__os_library_open(where);
        *out_name = "DEVSTREAM_CUDART";
    }
    return 1;
}

/* Finds all functions. Returns NULL, or what the library lacks. */
static const char *ds__cudart_fill(void *library) {
    static const char *const names[] = { "cudaGetErrorName", "cudaGetErrorString",
                                         "cudaRuntimeGetVersion",
#define DS__CUDART_NAME(function, parameters) #function,
                                         DS__CUDART_FUNCTIONS(DS__CUDART_NAME)
#undef DS__CUDART_NAME
    };
    void *found[sizeof names / sizeof names[0]];
    struct ds__cudart_table table;
    struct ds__cudart_forms forms;
    _Static_assert(sizeof found == sizeof table, "the members are the names, in their order");
    memset(&forms, 0, sizeof forms);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found[i] = ds__os_library_symbol(library, names[i]);
        if (!found[i])
            return names[i];
    }

    memcpy(&table, found, sizeof table);
    int clean = table.cudaPeekAtLastError() == cudaSuccess; /* else the error is the program's */
    /* without a driver, 11.8 gives 35 instead of its version; then no device is found either */
    if (table.cudaRuntimeGetVersion(&forms.version) != cudaSuccess)
        forms.version = 11080;
    if (clean)
        (void)table.cudaGetLastError();
    if (forms.version < 11080)
        return "CUDA 11.8";
#ifdef CUDART_VERSION
    if (forms.version / 1000 != CUDART_VERSION / 1000)
        return "the major version of the headers that the program includes";
#endif
    for (size_t i = 0; i < sizeof ds__cudart_names / sizeof ds__cudart_names[0]; i++) {
        if (forms.version < ds__cudart_names[i].since ||
            forms.version >= ds__cudart_names[i].before)
            continue;
        void *form = ds__os_library_symbol(library, ds__cudart_names[i].function);
        if (!form)
            return ds__cudart_names[i].function;
        memcpy((char *)&forms + ds__cudart_names[i].member, &form, sizeof form);
    }
    ds__cudart = table;
    ds__cudart_forms = forms;
    return NULL;
}

/* Loads the next cudart of a search, or keeps the one in use at the first step. Returns 0 if there
   is none; the reason then says which libraries were looked for, or why one is not taken. */
static int ds__cudart_load(ds__cudart_search *search, char *reason, size_t size) {
    const char *where = ds__os_environment("DEVSTREAM_CUDART");
    void *library;
    const char *name;
    if (ds__cudart_library.library && search->step == 0 && !search->kept) {
        search->kept = 1;
        return 1;
    }
    while (ds__cudart_open(search->step, where, &library, &name)) {
        search->step++;
        if (!library)
            continue;
        const char *missing = ds__cudart_fill(library);
        if (!missing) {
            search->reported = 1;
            ds__cudart_library.library = library;
            ds__cudart_library.name = name;
            return 1;
        }
        snprintf(reason, size, "not taken: %s lacks %s", name, missing);
        search->reported = 1;
    }
    if (!search->reported)
        snprintf(reason, size, "not taken: no cudart (%s, %s, %s) was found %s%.60s",
                 ds__cudart_sonames[0], ds__cudart_sonames[1], ds__cudart_sonames[2],
                 where ? "in DEVSTREAM_CUDART="
                       : "by the system; DEVSTREAM_CUDART may name its folder",
                 where ? where : "");
    return 0;
}

/* Returns the name of the loaded library; "" if the program is linked with cudart. */
static const char *ds__cudart_name(void) {
    return ds__cudart_library.name;
}

/* Forgets the library, which is not taken; the next initialisation searches again. */
static void ds__cudart_drop(void) {
    ds__cudart_library.library = NULL;
    ds__cudart_library.name = "";
}

#endif

#endif
