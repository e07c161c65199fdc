/* ranks/nccl_abi.h - NCCL's types, constants and functions.

   Declares what devstream uses of libnccl.so.2: version 2.18 and, as optional functions, of later
   versions. The tests compare the declarations with nccl.h of several versions.

   Source: nccl.h of the wheels nvidia-nccl-cu12 2.18.3 to 2.32.3, and NVIDIA's documentation of
   NCCL.
   Invariants: the layout of a configuration only grew at its end, and the library accepts a shorter
   one.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_NCCL_ABI_H
#define DS__RANKS_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ds__nccl_handle *ds__nccl_comm;

typedef struct ds__nccl_id {
    char bytes[128];
} ds__nccl_id;

/* Enums of NCCL, and the stream of cudart. */
typedef int ds__nccl_result;
typedef int ds__nccl_type;
typedef int ds__nccl_op;
typedef void *ds__nccl_stream;

enum {
    DS__NCCL_SUCCESS = 0,
    DS__NCCL_REMOTE_ERROR = 6,
    DS__NCCL_IN_PROGRESS = 7,
};

enum { DS__NCCL_SUM = 0, DS__NCCL_PROD = 1, DS__NCCL_MAX = 2, DS__NCCL_MIN = 3 };

enum {
    DS__NCCL_INT8 = 0,
    DS__NCCL_UINT8 = 1,
    DS__NCCL_INT32 = 2,
    DS__NCCL_UINT32 = 3,
    DS__NCCL_INT64 = 4,
    DS__NCCL_UINT64 = 5,
    DS__NCCL_FLOAT16 = 6,
    DS__NCCL_FLOAT32 = 7,
    DS__NCCL_FLOAT64 = 8,
    DS__NCCL_BFLOAT16 = 9
};

/* The configuration of a communicator, as 2.18 has it. */
typedef struct ds__nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
} ds__nccl_config;

/* The configuration of an operation, as 2.31 has it. */
typedef struct ds__nccl_how {
    size_t size;
    unsigned magic;
    unsigned version;
    void *ext;
    int min_ctas;
    int max_ctas;
    int nvls_ctas;
    int cga_cluster_size;
    const char *algorithm;
    int force_algorithm;
    int cta_policy;
    uint64_t tag;
} ds__nccl_how;

#define DS__NCCL_HOW_VERSION 23102
#define DS__NCCL_UNDEFINED INT_MIN
#define DS__NCCL_MAGIC 0xcafebeef
#define DS__NCCL_VERSION 21803
#define DS__NCCL_NO_COLOR (-1)
#define DS__NCCL_SHRINK_ABORT 1

/* X(function, parameters): functions of 2.18 without nccl in front, which return ncclResult_t. Data
   types, operators, results and streams are passed as NCCL does, with other names. */
#define DS__NCCL_FUNCTIONS(X)                                                                      \
    X(GetVersion, (int *version))                                                                  \
    X(GetUniqueId, (ds__nccl_id * id))                                                             \
    X(CommInitRankConfig,                                                                          \
      (ds__nccl_comm * comm, int size, ds__nccl_id id, int rank, ds__nccl_config *config))         \
    X(CommFinalize, (ds__nccl_comm comm))                                                          \
    X(CommDestroy, (ds__nccl_comm comm))                                                           \
    X(CommAbort, (ds__nccl_comm comm))                                                             \
    X(CommSplit,                                                                                   \
      (ds__nccl_comm comm, int color, int key, ds__nccl_comm *out, ds__nccl_config *config))       \
    X(CommGetAsyncError, (ds__nccl_comm comm, ds__nccl_result * error))                            \
    X(CommCount, (ds__nccl_comm comm, int *size))                                                  \
    X(CommUserRank, (ds__nccl_comm comm, int *rank))                                               \
    X(GroupStart, (void))                                                                          \
    X(GroupEnd, (void))                                                                            \
    X(AllReduce, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,     \
                  ds__nccl_comm comm, ds__nccl_stream stream))                                     \
    X(Reduce, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,        \
               int root, ds__nccl_comm comm, ds__nccl_stream stream))                              \
    X(Broadcast, (const void *in, void *out, size_t count, ds__nccl_type type, int root,           \
                  ds__nccl_comm comm, ds__nccl_stream stream))                                     \
    X(AllGather, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_comm comm, \
                  ds__nccl_stream stream))                                                         \
    X(ReduceScatter, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op, \
                      ds__nccl_comm comm, ds__nccl_stream stream))                                 \
    X(Send, (const void *at, size_t count, ds__nccl_type type, int rank, ds__nccl_comm comm,       \
             ds__nccl_stream stream))                                                              \
    X(Recv, (void *at, size_t count, ds__nccl_type type, int rank, ds__nccl_comm comm,             \
             ds__nccl_stream stream))

/* X(function, parameters): functions of later versions, which may be missing: CommRegister since
   2.19, CommShrink since 2.27, CommRevoke since 2.28.7, CommGrow since 2.29, those with Config at
   their end since 2.31. */
#define DS__NCCL_LATER_FUNCTIONS(X)                                                            \
    X(CommRegister, (ds__nccl_comm comm, void *at, size_t size, void **handle))                \
    X(CommDeregister, (ds__nccl_comm comm, void *handle))                                      \
    X(CommShrink, (ds__nccl_comm comm, int *excluded, int count, ds__nccl_comm *out,           \
                   ds__nccl_config *config, int flags))                                        \
    X(CommRevoke, (ds__nccl_comm comm, int flags))                                             \
    X(CommGetUniqueId, (ds__nccl_comm comm, ds__nccl_id * id))                                 \
    X(CommGrow, (ds__nccl_comm comm, int size, const ds__nccl_id *id, int rank,                \
                 ds__nccl_comm *out, ds__nccl_config *config))                                 \
    X(AllReduceConfig,                                                                         \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,            \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))                   \
    X(ReduceConfig,                                                                            \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op, int root,  \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))                   \
    X(BroadcastConfig, (const void *in, void *out, size_t count, ds__nccl_type type, int root, \
                        ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))  \
    X(AllGatherConfig, (const void *in, void *out, size_t count, ds__nccl_type type,           \
                        ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))  \
    X(ReduceScatterConfig,                                                                     \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,            \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))

/* X(function, parameters): functions that return a text. */
#define DS__NCCL_TEXT_FUNCTIONS(X)              \
    X(GetErrorString, (ds__nccl_result result)) \
    X(GetLastError, (ds__nccl_comm comm))

#define DS__NCCL_MEMBER(function, parameters) ds__nccl_result(*function) parameters;
#define DS__NCCL_TEXT_MEMBER(function, parameters) const char *(*function)parameters;

typedef struct ds__nccl_table {
    DS__NCCL_FUNCTIONS(DS__NCCL_MEMBER)
    DS__NCCL_LATER_FUNCTIONS(DS__NCCL_MEMBER)
    DS__NCCL_TEXT_FUNCTIONS(DS__NCCL_TEXT_MEMBER)
} ds__nccl_table;

#undef DS__NCCL_MEMBER
#undef DS__NCCL_TEXT_MEMBER

#endif
