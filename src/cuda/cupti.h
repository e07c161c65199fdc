/* cuda/cupti.h - CUPTI: types, records and functions that are used, and the loading of the library.

   Declares the parts of CUPTI's records that devstream reads, and loads libcupti at run time
   (ds__cupti_load). cuda/activity_cupti.h uses both.

   Policy:
   1. A record has another struct in each version of CUPTI, but their first fields stay where they
      are. Only fields are declared whose offsets are equal in CUPTI 11.8 to 13.5; a test compares
      them with the headers (tests/compile/cupti.c).
   2. A libcupti that the process has loaded is preferred: two of them in one process disturb each
      other. Otherwise the newest version is loaded. DEVSTREAM_CUPTI has the path of another one.

   Invariants: `library` is NULL unless all functions are there and the version is high enough. The
   library stays loaded until the process ends, because CUPTI keeps threads and callbacks.
   Locks: ds__cupti.control is held by callers of ds__cupti_load.
   Threads: any. */
#ifndef DS__CUDA_CUPTI_H
#define DS__CUDA_CUPTI_H

#include "../base/error.h"
#include "types.h"

enum {
    DS__CUPTI_VERSION = 18, /* of CUDA 11.8 and 12.0; later ones are 130000 and more */
    DS__CUPTI_ONE_SUBSCRIBER = 39,
    DS__CUPTI_FORCED = 1,  /* of a flush: also buffers with incomplete records */
    DS__CUPTI_CUSTOM1 = 4, /* the kind of our external ids */
    /* kinds of records */
    DS__CUPTI_COPY = 1,
    DS__CUPTI_FILL = 2,
    DS__CUPTI_DRIVER = 4,
    DS__CUPTI_RUNTIME = 5,
    DS__CUPTI_KERNEL = 10,
    DS__CUPTI_PEER_COPY = 22,
    DS__CUPTI_EXTERNAL = 39
};

/* CUpti_ActivityKernel8 and later */
typedef struct ds__cupti_kernel {
    uint32_t kind;
    uint32_t unused0[3];
    uint64_t start; /* 0: no times could be taken */
    uint64_t end;
    uint64_t unused1;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t unused2[10];
    uint32_t correlation;
    uint64_t unused3;
    const char *name;
    uint64_t unused4[4];
    uint64_t node; /* of a graph; 0: none */
} ds__cupti_kernel;

/* CUpti_ActivityMemcpy5 and later */
typedef struct ds__cupti_copy {
    uint32_t kind;
    uint32_t unused0;
    uint64_t bytes;
    uint64_t start;
    uint64_t end;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t correlation;
    uint64_t unused1[2];
    uint64_t node;
} ds__cupti_copy;

/* CUpti_ActivityMemcpyPtoP4 and later */
typedef struct ds__cupti_peer_copy {
    uint32_t kind;
    uint32_t unused0;
    uint64_t bytes;
    uint64_t start;
    uint64_t end;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t unused1[4];
    uint32_t correlation;
    uint64_t unused2;
    uint64_t node;
} ds__cupti_peer_copy;

/* CUpti_ActivityMemset4 and later */
typedef struct ds__cupti_fill {
    uint32_t kind;
    uint32_t value;
    uint64_t bytes;
    uint64_t start;
    uint64_t end;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t correlation;
    uint64_t unused[2];
    uint64_t node;
} ds__cupti_fill;

/* CUpti_ActivityExternalCorrelation */
typedef struct ds__cupti_external {
    uint32_t kind;
    uint32_t external_kind;
    uint64_t id;
    uint32_t correlation;
    uint32_t unused;
} ds__cupti_external;

typedef void (*ds__cupti_request_fn)(uint8_t **buffer, size_t *size, size_t *records);
typedef void (*ds__cupti_complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                      size_t valid);
typedef void (*ds__cupti_callback_fn)(void *user, int domain, uint32_t id, const void *data);

/* X(member, name, parameters): all functions; each returns a code, 0 for success. */
#define DS__CUPTI_FUNCTIONS(X)                                                                   \
    X(version, cuptiGetVersion, (uint32_t * version))                                            \
    X(text, cuptiGetResultString, (int code, const char **out))                                  \
    X(time, cuptiGetTimestamp, (uint64_t * out))                                                 \
    X(subscribe, cuptiSubscribe, (void **out, ds__cupti_callback_fn fn, void *user))             \
    X(unsubscribe, cuptiUnsubscribe, (void *subscriber))                                         \
    X(enable, cuptiActivityEnable, (int kind))                                                   \
    X(disable, cuptiActivityDisable, (int kind))                                                 \
    X(callbacks, cuptiActivityRegisterCallbacks,                                                 \
      (ds__cupti_request_fn request, ds__cupti_complete_fn complete))                            \
    X(flush, cuptiActivityFlushAll, (uint32_t flag))                                             \
    X(next, cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, void **record))         \
    X(dropped, cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *out)) \
    X(push, cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id))                     \
    X(pop, cuptiActivityPopExternalCorrelationId, (int kind, uint64_t *out))

typedef struct ds__cupti_library {
    void *library;
    char name[256];
#define DS__CUPTI_MEMBER(member, name, parameters) int(*member) parameters;
    DS__CUPTI_FUNCTIONS(DS__CUPTI_MEMBER)
#undef DS__CUPTI_MEMBER
} ds__cupti_library;

/* Finds the functions. Returns the name of a missing one, or NULL. */
static const char *ds__cupti_functions_find(ds__cupti_library *l) {
    const char *lacks = NULL;
    void *found;
#define DS__CUPTI_FIND(member, name, parameters)      \
    found = ds__os_library_symbol(l->library, #name); \
    memcpy(&l->member, &found, sizeof l->member);     \
    lacks = found || lacks ? lacks : #name;
    DS__CUPTI_FUNCTIONS(DS__CUPTI_FIND)
#undef DS__CUPTI_FIND
    return lacks;
}

/* Opens the library of DEVSTREAM_CUPTI, or one with a usual name. */
static void ds__cupti_library_open(ds__cupti_library *l) {
    static const char *const names[] = { "libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8",
                                         "libcupti.so" };
    const char *path = ds__os_environment("DEVSTREAM_CUPTI");
    snprintf(l->name, sizeof l->name, "%s", path ? path : "libcupti.so");
    l->library = path ? ds__os_library_open(path) : NULL;
    for (size_t i = 0; i < 8 && !path && !l->library; i++) {
        const char *name = names[i % 4];
        snprintf(l->name, sizeof l->name, "%s", name);
        l->library = i < 4 ? ds__os_library_loaded(name) : ds__os_library_open(name);
    }
}

/* Loads the library, unless it is there. */
static ds_result ds__cupti_load(ds__cupti_library *l) {
    uint32_t version = 0;
    if (l->library)
        return DS_OK;
    ds__cupti_library_open(l);
    if (!l->library)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "trace: CUPTI (%.150s) cannot be loaded; set DEVSTREAM_CUPTI to the path "
                        "of libcupti, or leave out \"cupti\"",
                        l->name);
    const char *lacks = ds__cupti_functions_find(l);
    if (!lacks && l->version(&version) == 0 && version >= DS__CUPTI_VERSION)
        return DS_OK;
    ds__os_library_close(l->library);
    l->library = NULL;
    if (lacks)
        return ds__fail(DS_ERR_UNSUPPORTED, "trace: CUPTI (%.150s) lacks %s", l->name, lacks);
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "trace: CUPTI (%.150s) has version %u; at least %d, of CUDA 11.8, is needed",
                    l->name, (unsigned)version, DS__CUPTI_VERSION);
}

#endif
