/* What the programs need of CUDA C, in place of CUDA's headers. Those that need no other thread
   are C for the host as well: test_ptx.c includes them, and its own compiler says what the PTX
   must compute. */
typedef signed char s8;
typedef unsigned char u8;
typedef short s16;
typedef unsigned short u16;
typedef int s32;
typedef unsigned u32;
typedef long long s64;
typedef unsigned long long u64;

#ifdef __CUDA__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define KERNEL extern "C" __global__ void

#define TID ((u32)__nvvm_read_ptx_sreg_tid_x())
#define NTID ((u32)__nvvm_read_ptx_sreg_ntid_x())
#define CTAID ((u32)__nvvm_read_ptx_sreg_ctaid_x())
#define NCTAID ((u32)__nvvm_read_ptx_sreg_nctaid_x())
#define BARRIER __syncthreads()
#else
#define __device__ static
#define __noinline__ __attribute__((no_sanitize("undefined")))
#define KERNEL __attribute__((no_sanitize("undefined"))) static void

static u32 host_tid, host_ntid, host_ctaid, host_nctaid;
#define TID host_tid
#define NTID host_ntid
#define CTAID host_ctaid
#define NCTAID host_nctaid
#endif
#define ITEM (CTAID * NTID + TID)
