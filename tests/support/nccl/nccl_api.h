/* The types and functions of NCCL 2.32.3 that the stand-in has: layouts and values are those of
   NCCL's ABI. tests/support/nccl/abi_check.c compares them with NVIDIA's header. */
#ifndef STANDIN_NCCL_API_H
#define STANDIN_NCCL_API_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef STANDIN_NCCL_OLD
#define STANDIN_NCCL_CODE 21803
#else
#define STANDIN_NCCL_CODE 23203
#endif

#ifndef NCCL_MAJOR
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1
#define NCCL_REVOKE_DEFAULT 0
#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_SIM_MAGIC 0x74685283

typedef struct ncclComm *ncclComm_t;

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclTimeout,
    ncclNumResults
} ncclResult_t;

typedef enum {
    ncclSum,
    ncclProd,
    ncclMax,
    ncclMin,
    ncclAvg,
    ncclNumOps,               /* operations that a program makes begin here */
    ncclMaxRedOp = 0x7fffffff /* so that the type has 32 bits */
} ncclRedOp_t;

typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes,
    ncclChar = ncclInt8,
    ncclInt = ncclInt32,
    ncclHalf = ncclFloat16,
    ncclFloat = ncclFloat32,
    ncclDouble = ncclFloat64
} ncclDataType_t;

typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

/* Programs of an older version pass a shorter one: `size` tells. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched,
        graphUsageMode, numRmaCtx, maxP2pPeers, graphStreamOrdering, launchOrderImplicit, numRmaSig,
        rmaEagerInit, hostCftMode, nvlsHostMode;
} ncclConfig_t;

#define STANDIN_NCCL_UNSET NCCL_CONFIG_UNDEF_INT
#define NCCL_CONFIG_INITIALIZER                                                                   \
    {                                                                                             \
        sizeof(ncclConfig_t), NCCL_API_MAGIC, STANDIN_NCCL_CODE, STANDIN_NCCL_UNSET,              \
            STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, NULL, STANDIN_NCCL_UNSET, \
            STANDIN_NCCL_UNSET, NULL, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, \
            STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET,       \
            STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET,       \
            STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET        \
    }

typedef struct ncclConfigExt {
    struct ncclConfigExt *next;

    struct {
        int vendorId, optionId;
    } key;

    union {
        int i;
        const char *s;
        void *raw;
    } val;
} ncclConfigExt_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    ncclConfigExt_t *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                            \
    {                                                                                          \
        sizeof(ncclCollConfig_t), NCCL_API_MAGIC, STANDIN_NCCL_CODE, NULL, STANDIN_NCCL_UNSET, \
            STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, STANDIN_NCCL_UNSET, NULL, 1,               \
            STANDIN_NCCL_UNSET, 0, NULL                                                        \
    }

typedef struct {
    size_t size;
    unsigned magic, version;
    float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
    { sizeof(ncclSimInfo_t), NCCL_SIM_MAGIC, STANDIN_NCCL_CODE, -1.0f }
#endif

/* X(result, name, parameters), by the version that brought the function. */
/* clang-format off */
#define NCCL_REDUCING const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op
#define NCCL_MOVING const void *send, void *recv, size_t count, ncclDataType_t type
#define NCCL_WHERE ncclComm_t comm, cudaStream_t stream
#define NCCL_HOW ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config
#define NCCL_FUNCTIONS_OLD(X) \
    X(ncclResult_t, ncclGetVersion, (int *version)) \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *id)) \
    X(ncclResult_t, ncclCommInitRank, (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)) \
    X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)) \
    X(ncclResult_t, ncclCommInitAll, (ncclComm_t *comms, int count, const int *devices)) \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t comm)) \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm)) \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) \
    X(ncclResult_t, ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)) \
    X(const char *, ncclGetErrorString, (ncclResult_t result)) \
    X(const char *, ncclGetLastError, (ncclComm_t comm)) \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *out)) \
    X(ncclResult_t, ncclCommCount, (ncclComm_t comm, int *count)) \
    X(ncclResult_t, ncclCommCuDevice, (ncclComm_t comm, int *device)) \
    X(ncclResult_t, ncclCommUserRank, (ncclComm_t comm, int *rank)) \
    X(ncclResult_t, ncclRedOpCreatePreMulSum, (ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm)) \
    X(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) \
    X(ncclResult_t, ncclReduce, (NCCL_REDUCING, int root, NCCL_WHERE)) \
    X(ncclResult_t, ncclBcast, (void *buffer, size_t count, ncclDataType_t type, int root, NCCL_WHERE)) \
    X(ncclResult_t, ncclBroadcast, (NCCL_MOVING, int root, NCCL_WHERE)) \
    X(ncclResult_t, ncclAllReduce, (NCCL_REDUCING, NCCL_WHERE)) \
    X(ncclResult_t, ncclReduceScatter, (NCCL_REDUCING, NCCL_WHERE)) \
    X(ncclResult_t, ncclAllGather, (NCCL_MOVING, NCCL_WHERE)) \
    X(ncclResult_t, ncclSend, (const void *send, size_t count, ncclDataType_t type, int peer, NCCL_WHERE)) \
    X(ncclResult_t, ncclRecv, (void *recv, size_t count, ncclDataType_t type, int peer, NCCL_WHERE)) \
    X(ncclResult_t, ncclGroupStart, (void)) \
    X(ncclResult_t, ncclGroupEnd, (void))
#define NCCL_FUNCTIONS_NEW(X) \
    X(ncclResult_t, ncclMemAlloc, (void **out, size_t size)) \
    X(ncclResult_t, ncclMemFree, (void *pointer)) \
    X(ncclResult_t, ncclCommRegister, (ncclComm_t comm, void *buffer, size_t size, void **handle)) \
    X(ncclResult_t, ncclCommDeregister, (ncclComm_t comm, void *handle)) \
    X(ncclResult_t, ncclCommInitRankScalable, (ncclComm_t *out, int nranks, int rank, int id_count, ncclUniqueId *ids, ncclConfig_t *config)) \
    X(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t *info)) \
    X(ncclResult_t, ncclCommShrink, (ncclComm_t comm, int *excluded, int excluded_count, ncclComm_t *out, ncclConfig_t *config, int flags)) \
    X(ncclResult_t, ncclAlltoAll, (NCCL_MOVING, NCCL_WHERE)) \
    X(ncclResult_t, ncclGather, (NCCL_MOVING, int root, NCCL_WHERE)) \
    X(ncclResult_t, ncclScatter, (NCCL_MOVING, int root, NCCL_WHERE)) \
    X(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags)) \
    X(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id)) \
    X(ncclResult_t, ncclCommGrow, (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *out, ncclConfig_t *config)) \
    X(ncclResult_t, ncclReduceConfig, (NCCL_REDUCING, int root, NCCL_HOW)) \
    X(ncclResult_t, ncclBroadcastConfig, (NCCL_MOVING, int root, NCCL_HOW)) \
    X(ncclResult_t, ncclAllReduceConfig, (NCCL_REDUCING, NCCL_HOW)) \
    X(ncclResult_t, ncclReduceScatterConfig, (NCCL_REDUCING, NCCL_HOW)) \
    X(ncclResult_t, ncclAllGatherConfig, (NCCL_MOVING, NCCL_HOW)) \
    X(ncclResult_t, ncclAlltoAllConfig, (NCCL_MOVING, NCCL_HOW)) \
    X(ncclResult_t, ncclGatherConfig, (NCCL_MOVING, int root, NCCL_HOW)) \
    X(ncclResult_t, ncclScatterConfig, (NCCL_MOVING, int root, NCCL_HOW))
/* clang-format on */
#ifdef STANDIN_NCCL_OLD
#define NCCL_FUNCTIONS(X) NCCL_FUNCTIONS_OLD(X)
#else
#define NCCL_FUNCTIONS(X) NCCL_FUNCTIONS_OLD(X) NCCL_FUNCTIONS_NEW(X)
#endif

#ifndef NCCL_MAJOR
#define X(result, name, parameters) __attribute__((visibility("default"))) result name parameters;
NCCL_FUNCTIONS(X)
#undef X
#endif

#endif
