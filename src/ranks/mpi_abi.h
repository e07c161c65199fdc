/* ranks/mpi_abi.h - types, constants and functions of MPI.

   Declares the part of MPI that the engine "mpi" uses: by the standard ABI (MPI 5.0, chapter 20) if
   the library is loaded at run time (DS__MPI_LOADED), otherwise from the program's mpi.h.

   Policy:
   1. Names and values of the ABI are declared here, so no header of MPI is needed.
      tests/ranks/mpi_abi_check.c compares all of them with mpi_abi.h.
   2. Functions with counts are those with large counts (MPI_Ibcast_c), which the ABI always has. A
      linked MPI before 4.0 has only counts of int (ds__mpi_count).
   3. mpi.h of MPICH has integers as handles, that of Open MPI has pointers. Other rooms use the
      types of this room, and only assign and pass them.

   Invariants: the parameters of a function are the same in each form but for the type of counts.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_MPI_ABI_H
#define DS__RANKS_MPI_ABI_H

#include "../os/os.h"

#if DS__MPI_LOADED

typedef struct ds__mpi_abi_comm *ds__mpi_comm;
typedef struct ds__mpi_abi_group *ds__mpi_group;
typedef struct ds__mpi_abi_request *ds__mpi_request;
typedef struct ds__mpi_abi_datatype *ds__mpi_datatype;
typedef struct ds__mpi_abi_op *ds__mpi_op;
typedef struct ds__mpi_abi_errhandler *ds__mpi_errhandler;
typedef int64_t ds__mpi_count;
typedef intptr_t ds__mpi_offset;

typedef struct ds__mpi_status {
    int source;
    int tag;
    int error;
    int internal[5];
} ds__mpi_status;

#define DS__MPI_COUNT_MAX ((size_t)INT64_MAX)

#define DS__MPI_COMM_NULL ((ds__mpi_comm)0x100)
#define DS__MPI_COMM_WORLD ((ds__mpi_comm)0x101)
#define DS__MPI_COMM_SELF ((ds__mpi_comm)0x102)
#define DS__MPI_REQUEST_NULL ((ds__mpi_request)0x180)
#define DS__MPI_ERRORS_RETURN ((ds__mpi_errhandler)0x143)
#define DS__MPI_IN_PLACE ((void *)1)
#define DS__MPI_STATUS_IGNORE ((ds__mpi_status *)0)

#define DS__MPI_SUM ((ds__mpi_op)0x21)
#define DS__MPI_MIN ((ds__mpi_op)0x22)
#define DS__MPI_MAX ((ds__mpi_op)0x23)
#define DS__MPI_PROD ((ds__mpi_op)0x24)

#define DS__MPI_DATATYPE_NULL ((ds__mpi_datatype)0x200)
#define DS__MPI_FLOAT ((ds__mpi_datatype)0x210)
#define DS__MPI_C_FLOAT_COMPLEX ((ds__mpi_datatype)0x212)
#define DS__MPI_DOUBLE ((ds__mpi_datatype)0x214)
#define DS__MPI_C_DOUBLE_COMPLEX ((ds__mpi_datatype)0x216)
#define DS__MPI_INT8_T ((ds__mpi_datatype)0x240)
#define DS__MPI_UINT8_T ((ds__mpi_datatype)0x241)
#define DS__MPI_BYTE ((ds__mpi_datatype)0x247)
#define DS__MPI_INT16_T ((ds__mpi_datatype)0x248)
#define DS__MPI_UINT16_T ((ds__mpi_datatype)0x249)
#define DS__MPI_INT32_T ((ds__mpi_datatype)0x250)
#define DS__MPI_UINT32_T ((ds__mpi_datatype)0x251)
#define DS__MPI_INT64_T ((ds__mpi_datatype)0x258)
#define DS__MPI_UINT64_T ((ds__mpi_datatype)0x259)

enum {
    DS__MPI_ANY_SOURCE = -1,
    DS__MPI_THREAD_SINGLE = 0,
    DS__MPI_THREAD_FUNNELED = 1024,
    DS__MPI_THREAD_SERIALIZED = 2048,
    DS__MPI_THREAD_MULTIPLE = 4096,
    DS__MPI_MAX_ERROR_STRING = 512,
    DS__MPI_MAX_LIBRARY_VERSION_STRING = 8192
};

#else

#include <mpi.h>

typedef MPI_Comm ds__mpi_comm;
typedef MPI_Group ds__mpi_group;
typedef MPI_Request ds__mpi_request;
typedef MPI_Datatype ds__mpi_datatype;
typedef MPI_Op ds__mpi_op;
typedef MPI_Errhandler ds__mpi_errhandler;
typedef MPI_Status ds__mpi_status;

#if MPI_VERSION >= 4
typedef MPI_Count ds__mpi_count;
typedef MPI_Aint ds__mpi_offset;
#define DS__MPI_COUNT_MAX ((size_t)INT64_MAX)
#define DS__MPI_COUNTED_NAME(name) MPI_##name##_c
#else
typedef int ds__mpi_count;
typedef int ds__mpi_offset;
#define DS__MPI_COUNT_MAX ((size_t)INT_MAX)
#define DS__MPI_COUNTED_NAME(name) MPI_##name
#endif

#define DS__MPI_COMM_NULL MPI_COMM_NULL
#define DS__MPI_COMM_WORLD MPI_COMM_WORLD
#define DS__MPI_COMM_SELF MPI_COMM_SELF
#define DS__MPI_REQUEST_NULL MPI_REQUEST_NULL
#define DS__MPI_ERRORS_RETURN MPI_ERRORS_RETURN
#define DS__MPI_IN_PLACE MPI_IN_PLACE
#define DS__MPI_STATUS_IGNORE MPI_STATUS_IGNORE

#define DS__MPI_SUM MPI_SUM
#define DS__MPI_MIN MPI_MIN
#define DS__MPI_MAX MPI_MAX
#define DS__MPI_PROD MPI_PROD

#define DS__MPI_DATATYPE_NULL MPI_DATATYPE_NULL
#define DS__MPI_FLOAT MPI_FLOAT
#define DS__MPI_C_FLOAT_COMPLEX MPI_C_FLOAT_COMPLEX
#define DS__MPI_DOUBLE MPI_DOUBLE
#define DS__MPI_C_DOUBLE_COMPLEX MPI_C_DOUBLE_COMPLEX
#define DS__MPI_INT8_T MPI_INT8_T
#define DS__MPI_UINT8_T MPI_UINT8_T
#define DS__MPI_BYTE MPI_BYTE
#define DS__MPI_INT16_T MPI_INT16_T
#define DS__MPI_UINT16_T MPI_UINT16_T
#define DS__MPI_INT32_T MPI_INT32_T
#define DS__MPI_UINT32_T MPI_UINT32_T
#define DS__MPI_INT64_T MPI_INT64_T
#define DS__MPI_UINT64_T MPI_UINT64_T

enum {
    DS__MPI_ANY_SOURCE = MPI_ANY_SOURCE,
    DS__MPI_THREAD_SINGLE = MPI_THREAD_SINGLE,
    DS__MPI_THREAD_FUNNELED = MPI_THREAD_FUNNELED,
    DS__MPI_THREAD_SERIALIZED = MPI_THREAD_SERIALIZED,
    DS__MPI_THREAD_MULTIPLE = MPI_THREAD_MULTIPLE,
    DS__MPI_MAX_ERROR_STRING = MPI_MAX_ERROR_STRING,
    DS__MPI_MAX_LIBRARY_VERSION_STRING = MPI_MAX_LIBRARY_VERSION_STRING
};

#endif

/* clang-format off */
/* X(function, parameters): functions without MPI_ in front, which return int. */
#define DS__MPI_FUNCTIONS(X) \
    X(Get_library_version, (char *version, int *length)) \
    X(Initialized, (int *flag)) \
    X(Finalized, (int *flag)) \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided)) \
    X(Query_thread, (int *provided)) \
    X(Finalize, (void)) \
    X(Error_string, (int code, char *text, int *length)) \
    X(Comm_rank, (ds__mpi_comm comm, int *rank)) \
    X(Comm_size, (ds__mpi_comm comm, int *size)) \
    X(Comm_group, (ds__mpi_comm comm, ds__mpi_group *group)) \
    X(Group_incl, (ds__mpi_group group, int n, const int ranks[], ds__mpi_group *out)) \
    X(Group_free, (ds__mpi_group *group)) \
    X(Comm_create_group, (ds__mpi_comm comm, ds__mpi_group group, int tag, ds__mpi_comm *out)) \
    X(Comm_idup, (ds__mpi_comm comm, ds__mpi_comm *out, ds__mpi_request *request)) \
    X(Comm_set_errhandler, (ds__mpi_comm comm, ds__mpi_errhandler errhandler)) \
    X(Comm_free, (ds__mpi_comm *comm)) \
    X(Test, (ds__mpi_request *request, int *flag, ds__mpi_status *status)) \
    X(Cancel, (ds__mpi_request *request)) \
    X(Ibarrier, (ds__mpi_comm comm, ds__mpi_request *request))

/* The same for functions with counts, whose names have _c behind in the ABI. */
#define DS__MPI_COUNTED_FUNCTIONS(X) \
    X(Get_count, (const ds__mpi_status *status, ds__mpi_datatype type, ds__mpi_count *count)) \
    X(Isend, (const void *at, ds__mpi_count count, ds__mpi_datatype type, int to, int tag, \
              ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Irecv, (void *at, ds__mpi_count count, ds__mpi_datatype type, int from, int tag, \
              ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ibcast, (void *at, ds__mpi_count count, ds__mpi_datatype type, int root, ds__mpi_comm comm, \
               ds__mpi_request *request)) \
    X(Iallreduce, (const void *in, void *out, ds__mpi_count count, ds__mpi_datatype type, \
                   ds__mpi_op op, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ireduce, (const void *in, void *out, ds__mpi_count count, ds__mpi_datatype type, \
                ds__mpi_op op, int root, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ireduce_scatter, (const void *in, void *out, const ds__mpi_count counts[], \
                        ds__mpi_datatype type, ds__mpi_op op, ds__mpi_comm comm, \
                        ds__mpi_request *request)) \
    X(Ireduce_scatter_block, (const void *in, void *out, ds__mpi_count count, \
                              ds__mpi_datatype type, ds__mpi_op op, ds__mpi_comm comm, \
                              ds__mpi_request *request)) \
    X(Iallgather, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                   ds__mpi_count out_count, ds__mpi_datatype out_type, ds__mpi_comm comm, \
                   ds__mpi_request *request)) \
    X(Iallgatherv, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                    const ds__mpi_count out_counts[], const ds__mpi_offset out_at[], \
                    ds__mpi_datatype out_type, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Igatherv, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                 const ds__mpi_count out_counts[], const ds__mpi_offset out_at[], \
                 ds__mpi_datatype out_type, int root, ds__mpi_comm comm, \
                 ds__mpi_request *request)) \
    X(Iscatterv, (const void *in, const ds__mpi_count counts[], const ds__mpi_offset at[], \
                  ds__mpi_datatype type, void *out, ds__mpi_count out_count, \
                  ds__mpi_datatype out_type, int root, ds__mpi_comm comm, \
                  ds__mpi_request *request)) \
    X(Ialltoallv, (const void *in, const ds__mpi_count counts[], const ds__mpi_offset at[], \
                   ds__mpi_datatype type, void *out, const ds__mpi_count out_counts[], \
                   const ds__mpi_offset out_at[], ds__mpi_datatype out_type, ds__mpi_comm comm, \
                   ds__mpi_request *request))
/* clang-format on */

#define DS__MPI_MEMBER(function, parameters) int(*function) parameters;

/* The functions. */
typedef struct ds__mpi_table {
    DS__MPI_FUNCTIONS(DS__MPI_MEMBER)
    DS__MPI_COUNTED_FUNCTIONS(DS__MPI_MEMBER)
} ds__mpi_table;

#undef DS__MPI_MEMBER

#endif
