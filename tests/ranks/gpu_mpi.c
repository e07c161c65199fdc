/* An MPI library that accepts memory of GPUs: the functions of libmpi_abi.so.1 with MPI_Isend,
   MPI_Irecv and MPI_Test in front of them, which copy between memory of a GPU and the host. CUDA's
   functions are those of the program. As such a library may, they refuse to run in a host function
   of a stream (the stand-in for cudart fails the test then), and use a stream of their own.

   All other functions get memory of GPUs as MPICH without CUDA does: it cannot be read there. */
#include <cuda_runtime_api.h>
#include <mpi_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A message in memory of a GPU. */
typedef struct message {
    struct message *next;
    const MPI_Request *request; /* its place: requests that are complete may all have one value */
    void *host;
    void *device; /* NULL: it is sent */
    size_t bytes;
} message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static message *messages;
static int count;

int MPIX_Query_cuda_support(void);
int gpu_mpi_messages(void);

int MPIX_Query_cuda_support(void) {
    return 1;
}

/* Returns the number of messages that were in memory of a GPU. */
int gpu_mpi_messages(void) {
    pthread_mutex_lock(&lock);
    int n = count;
    pthread_mutex_unlock(&lock);
    return n;
}

static void must(cudaError_t code, const char *call) {
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "gpu_mpi: %s: %s\n", call, cudaGetErrorString(code));
    abort();
}

static int is_on_gpu(const void *at, MPI_Count bytes) {
    struct cudaPointerAttributes a;
    if (!bytes)
        return 0;
    must(cudaPointerGetAttributes(&a, at), "cudaPointerGetAttributes");
    return a.type == cudaMemoryTypeDevice;
}

static void copy(void *to, const void *from, size_t bytes) {
    static cudaStream_t stream;
    pthread_mutex_lock(&lock);
    if (!stream)
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    pthread_mutex_unlock(&lock);
}

static message *message_make(void *device, size_t bytes) {
    message *m = calloc(1, sizeof *m);
    if (m)
        m->host = malloc(bytes);
    if (!m || !m->host)
        abort();
    m->device = device;
    m->bytes = bytes;
    return m;
}

static void message_list(message *m, const MPI_Request *request) {
    pthread_mutex_lock(&lock);
    m->request = request;
    m->next = messages;
    messages = m;
    count++;
    pthread_mutex_unlock(&lock);
}

int MPI_Isend_c(const void *at, MPI_Count bytes, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request *request) {
    if (type != MPI_BYTE || !is_on_gpu(at, bytes))
        return PMPI_Isend_c(at, bytes, type, to, tag, comm, request);
    message *m = message_make(NULL, (size_t)bytes);
    copy(m->host, at, m->bytes);
    int code = PMPI_Isend_c(m->host, bytes, type, to, tag, comm, request);
    message_list(m, request);
    return code;
}

int MPI_Irecv_c(void *at, MPI_Count bytes, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                MPI_Request *request) {
    if (type != MPI_BYTE || !is_on_gpu(at, bytes))
        return PMPI_Irecv_c(at, bytes, type, from, tag, comm, request);
    message *m = message_make(at, (size_t)bytes);
    int code = PMPI_Irecv_c(m->host, bytes, type, from, tag, comm, request);
    message_list(m, request);
    return code;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    int code = PMPI_Test(request, flag, status);
    message *m = NULL;
    if (code || !*flag)
        return code;
    pthread_mutex_lock(&lock);
    for (message **at = &messages; *at && !m; at = m ? at : &(*at)->next)
        if ((*at)->request == request) {
            m = *at;
            *at = m->next;
        }
    pthread_mutex_unlock(&lock);
    if (m && m->device)
        copy(m->device, m->host, m->bytes);
    if (m)
        free(m->host);
    free(m);
    return code;
}
