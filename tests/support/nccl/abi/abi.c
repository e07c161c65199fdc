/* Prints the layout and the values of NCCL's types: of the stand-in's header, or of NVIDIA's if
   REAL is its name. abi.sh compares the two. VERSION: of NVIDIA's header; what is newer is left
   out. With REAL, each function of the stand-in must have the type that NVIDIA declares. */
#ifdef REAL
#include REAL
#endif
#include "../nccl_api.h"

#include <stdio.h>

#define VALUE(name) printf("%s = %lld\n", #name, (long long)(name));
#define SIZE(type) printf("sizeof(%s) = %zu\n", #type, sizeof(type));
#define FIELD(type, field)                                                \
    printf("%s.%s at %zu of %zu\n", #type, #field, offsetof(type, field), \
           sizeof((type){ 0 }.field));

/* clang-format off */
#define VALUES(X) \
    X(NCCL_UNIQUE_ID_BYTES) X(NCCL_CONFIG_UNDEF_INT) X(NCCL_SPLIT_NOCOLOR) X(ncclSuccess) \
    X(ncclUnhandledCudaError) X(ncclSystemError) X(ncclInternalError) X(ncclInvalidArgument) \
    X(ncclInvalidUsage) X(ncclRemoteError) X(ncclInProgress) X(ncclSum) X(ncclProd) X(ncclMax) \
    X(ncclMin) X(ncclAvg) X(ncclNumOps) X(ncclMaxRedOp) X(ncclInt8) X(ncclChar) X(ncclUint8) \
    X(ncclInt32) X(ncclInt) X(ncclUint32) X(ncclInt64) X(ncclUint64) X(ncclFloat16) X(ncclHalf) \
    X(ncclFloat32) X(ncclFloat) X(ncclFloat64) X(ncclDouble) X(ncclScalarDevice) \
    X(ncclScalarHostImmediate)
#define VALUES_22400(X) X(ncclBfloat16) X(ncclFloat8e4m3) X(ncclFloat8e5m2) X(ncclNumTypes)
#define VALUES_22900(X) \
    X(NCCL_SHRINK_DEFAULT) X(NCCL_SHRINK_ABORT) X(NCCL_REVOKE_DEFAULT)
#define VALUES_23200(X) X(ncclTimeout) X(ncclNumResults)
#define SIZES(X) X(ncclComm_t) X(ncclUniqueId) X(ncclResult_t) X(ncclRedOp_t) X(ncclDataType_t) X(ncclScalarResidence_t)
#define SIZES_23200(X) X(ncclConfig_t) X(ncclCollConfig_t) X(ncclConfigExt_t) X(ncclSimInfo_t)
#define FIELDS(X) \
    X(ncclUniqueId, internal) X(ncclConfig_t, size) X(ncclConfig_t, magic) X(ncclConfig_t, version) \
    X(ncclConfig_t, blocking) X(ncclConfig_t, cgaClusterSize) X(ncclConfig_t, minCTAs) \
    X(ncclConfig_t, maxCTAs) X(ncclConfig_t, netName) X(ncclConfig_t, splitShare)
#define FIELDS_22900(X) \
    X(ncclConfig_t, trafficClass) X(ncclConfig_t, commName) X(ncclConfig_t, collnetEnable) \
    X(ncclConfig_t, CTAPolicy) X(ncclConfig_t, shrinkShare) X(ncclConfig_t, nvlsCTAs) \
    X(ncclConfig_t, nChannelsPerNetPeer) X(ncclConfig_t, nvlinkCentricSched) \
    X(ncclConfig_t, graphUsageMode) X(ncclConfig_t, numRmaCtx) \
    X(ncclSimInfo_t, size) X(ncclSimInfo_t, magic) X(ncclSimInfo_t, version) \
    X(ncclSimInfo_t, estimatedTime)
#define FIELDS_23200(X) \
    X(ncclConfig_t, maxP2pPeers) X(ncclConfig_t, graphStreamOrdering) \
    X(ncclConfig_t, launchOrderImplicit) X(ncclConfig_t, numRmaSig) X(ncclConfig_t, rmaEagerInit) \
    X(ncclConfig_t, hostCftMode) X(ncclConfig_t, nvlsHostMode) X(ncclConfigExt_t, next) \
    X(ncclConfigExt_t, key) X(ncclConfigExt_t, val) X(ncclCollConfig_t, size) \
    X(ncclCollConfig_t, magic) X(ncclCollConfig_t, version) X(ncclCollConfig_t, ext) \
    X(ncclCollConfig_t, minCTAs) X(ncclCollConfig_t, maxCTAs) X(ncclCollConfig_t, nvlsCTAs) \
    X(ncclCollConfig_t, cgaClusterSize) X(ncclCollConfig_t, algSelection) \
    X(ncclCollConfig_t, forceAlgSelection) X(ncclCollConfig_t, CTAPolicy) \
    X(ncclCollConfig_t, userProfilerTag) X(ncclCollConfig_t, launchCompletionEvent)
/* clang-format on */

#ifdef REAL
/* Each name and type must be that of the list. */
#define X(result, name, parameters)                                                   \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), result parameters), \
                   #name " has another type");
NCCL_FUNCTIONS_OLD(X)
#if VERSION >= 23100
NCCL_FUNCTIONS_NEW(X)
#endif
#undef X
#define INITIALIZER_VERSION NCCL_VERSION_CODE
#else
#define INITIALIZER_VERSION STANDIN_NCCL_CODE
#endif

/* The bytes of what a program passes, without the version. */
#define BYTES(type, initializer)                          \
    do {                                                  \
        type is_ = initializer;                           \
        const unsigned char *bytes_ = (const void *)&is_; \
        is_.version -= (unsigned)(INITIALIZER_VERSION);   \
        printf("%s =", #initializer);                     \
        for (size_t i_ = 0; i_ < sizeof is_; i_++)        \
            printf(" %02x", bytes_[i_]);                  \
        printf("\n");                                     \
    } while (0)

int main(void) {
    VALUES(VALUE)
    SIZES(SIZE)
    FIELDS(FIELD)
#if VERSION >= 22400
    VALUES_22400(VALUE)
#endif
#if VERSION >= 22900
    VALUES_22900(VALUE)
    FIELDS_22900(FIELD)
#endif
#if VERSION >= 23200
    VALUES_23200(VALUE)
    SIZES_23200(SIZE)
    FIELDS_23200(FIELD)
    BYTES(ncclConfig_t, NCCL_CONFIG_INITIALIZER);
    BYTES(ncclCollConfig_t, NCCL_COLLCONFIG_INITIALIZER);
    BYTES(ncclSimInfo_t, NCCL_SIM_INFO_INITIALIZER);
#endif
    return 0;
}
