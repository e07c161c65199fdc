/* ranks/mpi_load.h - MPI found and loaded at run time.

   Fills the table of MPI's functions (ds__mpi) by ds__mpi_load. Functions are called by
   DS__MPI_CALL, which reports an error of MPI with the name of the call and MPI's text.

   Policy:
   1. A process has one MPI. If the program is linked with MPI, or has loaded one of
      ds__mpi_names, that library is used, and no other one is loaded.
   2. Otherwise the library that DEVSTREAM_MPI_LIBRARY names is loaded, or DS__MPI_ABI_NAME.
   3. The library must have the standard ABI: MPI_Abi_get_version has version 1. libmpi.so.12 of
      MPICH has this function too, and answers -1, because its handles are not those of the ABI.
   4. A program that defines DEVSTREAM_MPI is linked with MPI. Its table is filled from mpi.h.

   Invariants: either all functions are set, or none is. The library is never closed.
   Locks: callers hold ds__mpi_state.mutex (ranks/mpi_comm.h).
   Threads: the table is written before the first communicator is created, then only read. */
#ifndef DS__RANKS_MPI_LOAD_H
#define DS__RANKS_MPI_LOAD_H

#include "../base/error.h"
#include "mpi_abi.h"

static void *ds__mpi_handle; /* of the library; NULL: the process is linked with it */

#if DS__MPI_LOADED

static ds__mpi_table ds__mpi;

/* Libraries of which a process may have loaded one, the ABI's first: Python loads them without
   making their symbols visible. */
static const char *const ds__mpi_names[] = { DS__MPI_ABI_NAME, DS__MPI_OTHER_NAMES };

/* Returns DS_OK if the library has the ABI. library NULL: the process is linked with it. */
static ds_result ds__mpi_abi_check(void *library, const char *name, int in_process) {
    int (*get_version)(int *, int *);
    int major = -1;
    int minor = -1;
    void *found = ds__os_library_symbol(library, "MPI_Abi_get_version");
    memcpy(&get_version, &found, sizeof found);
    if (get_version && get_version(&major, &minor) == 0 && major == 1)
        return DS_OK;

    return ds__fail(DS_ERR_UNSUPPORTED, "%s does not have the standard ABI of MPI (version 1): %s",
                    name,
                    in_process ? "the process has this MPI, so no other one can be loaded; compile "
                                 "the program with DEVSTREAM_MPI and its mpi.h"
                               : "name a library with the ABI in DEVSTREAM_MPI_LIBRARY, for "
                                 "example " DS__MPI_ABI_NAME " of MPICH 5 (pip install mpich)");
}

/* Finds all functions. */
static ds_result ds__mpi_fill(void *library, const char *name) {
#define DS__MPI_NAME(function, parameters) "MPI_" #function,
#define DS__MPI_NAME_COUNTED(function, parameters) "MPI_" #function "_c",
    static const char *const names[] = { DS__MPI_FUNCTIONS(DS__MPI_NAME)
                                             DS__MPI_COUNTED_FUNCTIONS(DS__MPI_NAME_COUNTED) };
#undef DS__MPI_NAME
#undef DS__MPI_NAME_COUNTED
    void *found[sizeof names / sizeof names[0]];
    _Static_assert(sizeof found == sizeof ds__mpi, "the members are the names, in their order");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found[i] = ds__os_library_symbol(library, names[i]);
        if (!found[i])
            return ds__fail(DS_ERR_UNSUPPORTED, "%s has no function %s", name, names[i]);
    }
    memcpy(&ds__mpi, found, sizeof ds__mpi);
    ds__mpi_handle = library;
    return DS_OK;
}

/* Finds the MPI that the process has. Returns 0 if it has none. */
static int ds__mpi_find(void **out_library, const char **out_name) {
    *out_library = NULL;
    *out_name = "the MPI library of the program";
    if (ds__os_library_symbol(NULL, "MPI_Init"))
        return 1;
    for (size_t i = 0; i < sizeof ds__mpi_names / sizeof ds__mpi_names[0]; i++) {
        *out_library = ds__os_library_loaded(ds__mpi_names[i]);
        *out_name = ds__mpi_names[i];
        if (*out_library)
            return 1;
    }
    return 0;
}

/* Finds or loads MPI, if that has not been done. */
static ds_result ds__mpi_load(void) {
    void *library;
    const char *name;
    const char *error = NULL;
    if (ds__mpi.Initialized)
        return DS_OK;

    int in_process = ds__mpi_find(&library, &name);
    if (!in_process) {
        const char *where = ds__os_environment("DEVSTREAM_MPI_LIBRARY");
        name = where ? where : ds__mpi_names[0];
        library = ds__os_library_share(name, &error);
        if (!library)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "MPI cannot be loaded (%.300s): install a library with the standard "
                            "ABI of MPI (pip install mpich) and name its " DS__MPI_ABI_NAME
                            " in DEVSTREAM_MPI_LIBRARY",
                            error ? error : name);
    }
    ds_result r = ds__mpi_abi_check(library, name, in_process);
    return r < 0 ? r : ds__mpi_fill(library, name);
}

#else

#define DS__MPI_SYMBOL(function, parameters) MPI_##function,
#define DS__MPI_SYMBOL_COUNTED(function, parameters) DS__MPI_COUNTED_NAME(function),
static const ds__mpi_table ds__mpi = { DS__MPI_FUNCTIONS(DS__MPI_SYMBOL)
                                           DS__MPI_COUNTED_FUNCTIONS(DS__MPI_SYMBOL_COUNTED) };
#undef DS__MPI_SYMBOL
#undef DS__MPI_SYMBOL_COUNTED

static ds_result ds__mpi_load(void) {
    return DS_OK;
}

#endif

/* Writes MPI's text of an error code. */
static void ds__mpi_error_format(int code, char out[DS__MPI_MAX_ERROR_STRING + 1]) {
    int length = 0;
    if (ds__mpi.Error_string(code, out, &length) != 0)
        length = snprintf(out, DS__MPI_MAX_ERROR_STRING, "error %d", code);
    out[length] = 0;
}

/* Reports a call of MPI that has failed. */
__attribute__((cold, noinline)) static ds_result ds__mpi_failed(int code, const char *call) {
    char text[DS__MPI_MAX_ERROR_STRING + 1];
    ds__mpi_error_format(code, text);
    return ds__fail(DS_ERR_FAILED, "%s failed: %s", call, text);
}

static inline ds_result ds__mpi_result(int code, const char *call) {
    return DS__LIKELY(code == 0) ? DS_OK : ds__mpi_failed(code, call);
}

/* Calls a function of MPI; gives DS_OK, or reports its error and gives DS_ERR_FAILED. */
#define DS__MPI_CALL(function, ...) ds__mpi_result(ds__mpi.function(__VA_ARGS__), "MPI_" #function)

/* Returns 1 if the library says that it accepts memory of GPUs. MPICH and Open MPI have the
   function, which no standard has. */
static int ds__mpi_asks_cuda(void) {
    int (*query)(void);
    void *found = ds__os_library_symbol(ds__mpi_handle, "MPIX_Query_cuda_support");
    memcpy(&query, &found, sizeof found);
    return query && query() == 1;
}

#endif
