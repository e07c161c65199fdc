/* Compares the declarations of ranks/nccl_abi.h with a nccl.h of version 2.18 or newer. Compiles if
   they agree. */
#include "ranks/nccl_abi.h"

#include <nccl.h>

#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a " is not " #b)
#define SAME_TYPE(a, b) _Static_assert(__builtin_types_compatible_p(a, b), #b " has another type")
#define SAME_MEMBER(a, b)                                          \
    SAME(offsetof(ds__nccl_config, a), offsetof(ncclConfig_t, b)); \
    SAME_TYPE(__typeof__(((ds__nccl_config *)0)->a), __typeof__(((ncclConfig_t *)0)->b))

SAME(DS__NCCL_SUCCESS, ncclSuccess);
SAME(DS__NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(DS__NCCL_IN_PROGRESS, ncclInProgress);
SAME(DS__NCCL_SUM, ncclSum);
SAME(DS__NCCL_PROD, ncclProd);
SAME(DS__NCCL_MAX, ncclMax);
SAME(DS__NCCL_MIN, ncclMin);
SAME(DS__NCCL_INT8, ncclInt8);
SAME(DS__NCCL_UINT8, ncclUint8);
SAME(DS__NCCL_INT32, ncclInt32);
SAME(DS__NCCL_UINT32, ncclUint32);
SAME(DS__NCCL_INT64, ncclInt64);
SAME(DS__NCCL_UINT64, ncclUint64);
SAME(DS__NCCL_FLOAT16, ncclFloat16);
SAME(DS__NCCL_FLOAT32, ncclFloat32);
SAME(DS__NCCL_FLOAT64, ncclFloat64);
#if NCCL_VERSION_CODE >= 22400 /* before, only with the headers of the type */
SAME(DS__NCCL_BFLOAT16, ncclBfloat16);
#endif
SAME(DS__NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(DS__NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR);

SAME(sizeof(ds__nccl_id), sizeof(ncclUniqueId));
SAME(sizeof(ds__nccl_comm), sizeof(ncclComm_t));
SAME(sizeof(ds__nccl_result), sizeof(ncclResult_t));
SAME(sizeof(ds__nccl_type), sizeof(ncclDataType_t));
SAME(sizeof(ds__nccl_op), sizeof(ncclRedOp_t));
SAME(sizeof(ds__nccl_stream), sizeof(cudaStream_t));

SAME_MEMBER(size, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cga_cluster_size, cgaClusterSize);
SAME_MEMBER(min_ctas, minCTAs);
SAME_MEMBER(max_ctas, maxCTAs);
SAME_MEMBER(net_name, netName);
SAME_MEMBER(split_share, splitShare);

/* The value of the macro NCCL_CONFIG_INITIALIZER. */
extern const ncclConfig_t initial;
const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;

#define ds__nccl_result ncclResult_t
#define ds__nccl_type ncclDataType_t
#define ds__nccl_op ncclRedOp_t
#define ds__nccl_stream cudaStream_t
#define ds__nccl_comm ncclComm_t
#define ds__nccl_id ncclUniqueId
#define ds__nccl_config ncclConfig_t
#if NCCL_VERSION_CODE < 21900
ncclResult_t ncclCommRegister(ncclComm_t, void *, size_t, void **);
ncclResult_t ncclCommDeregister(ncclComm_t, void *);
#endif
#if NCCL_VERSION_CODE < 22900
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *);
ncclResult_t ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
#endif
#if NCCL_VERSION_CODE < 23100
typedef ds__nccl_how ncclCollConfig_t;
ncclResult_t ncclAllReduceConfig(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                 ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
ncclResult_t ncclReduceConfig(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int,
                              ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
ncclResult_t ncclBroadcastConfig(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                                 cudaStream_t, const ncclCollConfig_t *);
ncclResult_t ncclAllGatherConfig(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
                                 cudaStream_t, const ncclCollConfig_t *);
ncclResult_t ncclReduceScatterConfig(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                     ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
#else
#define SAME_HOW(a, b)                                              \
    SAME(offsetof(ds__nccl_how, a), offsetof(ncclCollConfig_t, b)); \
    SAME(sizeof(((ds__nccl_how *)0)->a), sizeof(((ncclCollConfig_t *)0)->b))
SAME_HOW(size, size);
SAME_HOW(magic, magic);
SAME_HOW(version, version);
SAME_HOW(ext, ext);
SAME_HOW(min_ctas, minCTAs);
SAME_HOW(max_ctas, maxCTAs);
SAME_HOW(nvls_ctas, nvlsCTAs);
SAME_HOW(cga_cluster_size, cgaClusterSize);
SAME_HOW(algorithm, algSelection);
SAME_HOW(force_algorithm, forceAlgSelection);
SAME_HOW(cta_policy, CTAPolicy);
SAME_HOW(tag, userProfilerTag);
#endif
#if NCCL_VERSION_CODE < 22700
ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
#else
SAME(DS__NCCL_SHRINK_ABORT, NCCL_SHRINK_ABORT);
#endif
#if NCCL_VERSION_CODE < 22807
ncclResult_t ncclCommRevoke(ncclComm_t, int);
#endif
#define ds__nccl_how ncclCollConfig_t
#define PROTOTYPE(function, parameters) \
    SAME_TYPE(__typeof__(ncclResult_t(*) parameters), __typeof__(&nccl##function));
#define TEXT_PROTOTYPE(function, parameters) \
    SAME_TYPE(__typeof__(const char *(*)parameters), __typeof__(&nccl##function));
DS__NCCL_FUNCTIONS(PROTOTYPE)
DS__NCCL_LATER_FUNCTIONS(PROTOTYPE)
DS__NCCL_TEXT_FUNCTIONS(TEXT_PROTOTYPE)
