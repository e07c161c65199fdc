/* Compares the declarations of ranks/mpi_abi.h with mpi_abi.h of an MPI library. Compiles if they
   agree; the two values that are not constant expressions are compared at run time. */
#include "ranks/mpi_abi.h"

#include <mpi_abi.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define SAME_TYPE(a, b) _Static_assert(__builtin_types_compatible_p(a, b), #a " is not " #b)

SAME_TYPE(ds__mpi_count, MPI_Count);
SAME_TYPE(ds__mpi_offset, MPI_Aint);
SAME(sizeof(ds__mpi_comm), sizeof(MPI_Comm));
SAME(sizeof(ds__mpi_group), sizeof(MPI_Group));
SAME(sizeof(ds__mpi_request), sizeof(MPI_Request));
SAME(sizeof(ds__mpi_datatype), sizeof(MPI_Datatype));
SAME(sizeof(ds__mpi_op), sizeof(MPI_Op));
SAME(sizeof(ds__mpi_errhandler), sizeof(MPI_Errhandler));

SAME(sizeof(ds__mpi_status), sizeof(MPI_Status));
SAME(offsetof(ds__mpi_status, source), offsetof(MPI_Status, MPI_SOURCE));
SAME(offsetof(ds__mpi_status, tag), offsetof(MPI_Status, MPI_TAG));
SAME(offsetof(ds__mpi_status, error), offsetof(MPI_Status, MPI_ERROR));
SAME(offsetof(ds__mpi_status, internal), offsetof(MPI_Status, MPI_internal));

SAME((int)DS__MPI_ANY_SOURCE, (int)MPI_ANY_SOURCE);
SAME((int)DS__MPI_THREAD_SINGLE, (int)MPI_THREAD_SINGLE);
SAME((int)DS__MPI_THREAD_FUNNELED, (int)MPI_THREAD_FUNNELED);
SAME((int)DS__MPI_THREAD_SERIALIZED, (int)MPI_THREAD_SERIALIZED);
SAME((int)DS__MPI_THREAD_MULTIPLE, (int)MPI_THREAD_MULTIPLE);
SAME((int)DS__MPI_MAX_ERROR_STRING, (int)MPI_MAX_ERROR_STRING);
SAME((int)DS__MPI_MAX_LIBRARY_VERSION_STRING, (int)MPI_MAX_LIBRARY_VERSION_STRING);
SAME(0, MPI_SUCCESS);
SAME(1, MPI_ABI_VERSION);

/* The prototypes, with the types of the header in the parameters. */
#define ds__mpi_comm MPI_Comm
#define ds__mpi_group MPI_Group
#define ds__mpi_request MPI_Request
#define ds__mpi_datatype MPI_Datatype
#define ds__mpi_op MPI_Op
#define ds__mpi_errhandler MPI_Errhandler
#define ds__mpi_status MPI_Status
#define PROTOTYPE(function, parameters) \
    SAME_TYPE(__typeof__(int(*) parameters), __typeof__(&MPI_##function));
#define PROTOTYPE_COUNTED(function, parameters) \
    SAME_TYPE(__typeof__(int(*) parameters), __typeof__(&MPI_##function##_c));
DS__MPI_FUNCTIONS(PROTOTYPE)
DS__MPI_COUNTED_FUNCTIONS(PROTOTYPE_COUNTED)
SAME_TYPE(__typeof__(int (*)(int *, int *)), __typeof__(&MPI_Abi_get_version));

/* The handles, with an integer in place of their types: a pointer is no constant expression. */
#undef ds__mpi_comm
#undef ds__mpi_request
#undef ds__mpi_datatype
#undef ds__mpi_op
#undef ds__mpi_errhandler
#define ds__mpi_comm uintptr_t
#define ds__mpi_request uintptr_t
#define ds__mpi_datatype uintptr_t
#define ds__mpi_op uintptr_t
#define ds__mpi_errhandler uintptr_t
#define MPI_Comm uintptr_t
#define MPI_Request uintptr_t
#define MPI_Datatype uintptr_t
#define MPI_Op uintptr_t
#define MPI_Errhandler uintptr_t
SAME(DS__MPI_COMM_NULL, MPI_COMM_NULL);
SAME(DS__MPI_COMM_WORLD, MPI_COMM_WORLD);
SAME(DS__MPI_COMM_SELF, MPI_COMM_SELF);
SAME(DS__MPI_REQUEST_NULL, MPI_REQUEST_NULL);
SAME(DS__MPI_ERRORS_RETURN, MPI_ERRORS_RETURN);
SAME(DS__MPI_SUM, MPI_SUM);
SAME(DS__MPI_MIN, MPI_MIN);
SAME(DS__MPI_MAX, MPI_MAX);
SAME(DS__MPI_PROD, MPI_PROD);
SAME(DS__MPI_DATATYPE_NULL, MPI_DATATYPE_NULL);
SAME(DS__MPI_FLOAT, MPI_FLOAT);
SAME(DS__MPI_C_FLOAT_COMPLEX, MPI_C_FLOAT_COMPLEX);
SAME(DS__MPI_DOUBLE, MPI_DOUBLE);
SAME(DS__MPI_C_DOUBLE_COMPLEX, MPI_C_DOUBLE_COMPLEX);
SAME(DS__MPI_INT8_T, MPI_INT8_T);
SAME(DS__MPI_UINT8_T, MPI_UINT8_T);
SAME(DS__MPI_BYTE, MPI_BYTE);
SAME(DS__MPI_INT16_T, MPI_INT16_T);
SAME(DS__MPI_UINT16_T, MPI_UINT16_T);
SAME(DS__MPI_INT32_T, MPI_INT32_T);
SAME(DS__MPI_UINT32_T, MPI_UINT32_T);
SAME(DS__MPI_INT64_T, MPI_INT64_T);
SAME(DS__MPI_UINT64_T, MPI_UINT64_T);

/* The values that stay pointers. */
#undef ds__mpi_status

int main(void) {
    int same = DS__MPI_IN_PLACE == MPI_IN_PLACE;
    same &= (void *)DS__MPI_STATUS_IGNORE == (void *)MPI_STATUS_IGNORE;
    puts(same ? "mpi_abi_check: 1 passed, 0 failed" : "mpi_abi_check: 0 passed, 1 failed");
    return !same;
}
