/* ranks/nccl_load.h - loads NCCL.

   Finds the functions of ranks/nccl_abi.h in the library of the environment variable
   DEVSTREAM_NCCL_LIBRARY, in the program, or in libnccl.so.2 (ds__nccl_load).

   Invariants: the functions of version 2.18 are all there after a successful load; later ones may
   be NULL. The library is never unloaded.
   Locks: ds__nccl_state.mutex.
   Threads: any. */
#ifndef DS__RANKS_NCCL_LOAD_H
#define DS__RANKS_NCCL_LOAD_H

#include "../os/os.h"
#include "../base/error.h"
#include "nccl_abi.h"

static ds__nccl_table ds__nccl;

static struct {
    ds__mutex mutex; /* of the load */
    int version;     /* as NCCL codes it, for example 22703; 0: not loaded */
} ds__nccl_state = { .mutex = DS__MUTEX_INIT };

/* Finds all functions. */
static ds_result ds__nccl_fill(void *library, const char *name) {
#define DS__NCCL_NAME(function, parameters) "nccl" #function,
    static const char *const names[] = { DS__NCCL_FUNCTIONS(DS__NCCL_NAME) DS__NCCL_LATER_FUNCTIONS(
        DS__NCCL_NAME) DS__NCCL_TEXT_FUNCTIONS(DS__NCCL_NAME) };
#undef DS__NCCL_NAME
#define DS__NCCL_ONE(function, parameters) +1

    enum {
        NEEDED = 0 DS__NCCL_FUNCTIONS(DS__NCCL_ONE),
        LATER = 0 DS__NCCL_LATER_FUNCTIONS(DS__NCCL_ONE)
    };

#undef DS__NCCL_ONE
    void *found[sizeof names / sizeof names[0]];
    _Static_assert(sizeof found == sizeof ds__nccl, "the members are the names, in their order");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int is_later = i >= NEEDED && i < NEEDED + LATER;
        found[i] = ds__os_library_symbol(library, names[i]);
        if (!found[i] && !is_later)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "%s has no function %s: NCCL 2.18 or newer is required", name,
                            names[i]);
    }
    memcpy(&ds__nccl, found, sizeof ds__nccl);
    return DS_OK;
}

/* Opens the library. *out NULL: the program has its functions. */
static ds_result ds__nccl_open(void **out, const char **out_name) {
    const char *where = ds__os_environment("DEVSTREAM_NCCL_LIBRARY");
    *out = NULL;
    *out_name = "the program";
    if (!where && ds__os_library_symbol(NULL, "ncclGetVersion"))
        return DS_OK;
    *out_name = where ? where : "libnccl.so.2";
    *out = ds__os_library_open(*out_name);
    if (*out)
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "NCCL cannot be loaded (%.200s): install it (for example pip install "
                    "nvidia-nccl-cu12) and name its libnccl.so.2 in DEVSTREAM_NCCL_LIBRARY",
                    *out_name);
}

/* Finds or loads NCCL, if that has not been done. */
static ds_result ds__nccl_load(void) {
    void *library;
    const char *name;
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__nccl_state.mutex);
    if (!ds__nccl_state.version) {
        r = ds__nccl_open(&library, &name);
        if (r == DS_OK)
            r = ds__nccl_fill(library, name);
        if (r == DS_OK && ds__nccl.GetVersion(&ds__nccl_state.version) != DS__NCCL_SUCCESS)
            r = ds__fail(DS_ERR_FAILED, "ncclGetVersion of %s failed", name);
    }
    ds__mutex_unlock(&ds__nccl_state.mutex);
    return r;
}

#endif
