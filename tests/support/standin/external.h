/* Work in streams that another library carries out: the stand-in for NCCL, which is a shared
   library of its own.

   An external operation is like a kernel: it holds its stream until the library tells its end, from
   any thread, and it holds none of the stand-in's threads. In a stream that captures it becomes a
   node, which is a kernel node for cudaGraphNodeGetType, and whose parameters cannot be asked for.
   Every launch of the graph puts the operation again. */
#ifndef STANDIN_EXTERNAL_H
#define STANDIN_EXTERNAL_H

#include <cuda_runtime_api.h>
#include <stddef.h>

/* Memory that an operation uses. It must not be freed before the operation has ended. */
typedef struct standin_buffer {
    const void *address; /* as the user sees it */
    size_t size;
} standin_buffer;

/* What is to be done. The stand-in has references, for operations that have not ended and for
   nodes. All callbacks are invoked under the stand-in's lock; none may call the stand-in. */
typedef struct standin_external standin_external;

struct standin_external {
    const char *name;
    /* An operation enters its stream; called in the order of submission, also of the nodes of a
       launch. Returns what ready and over get. `task` is valid until its end. */
    void *(*put)(standin_external *e, void *task);
    /* The stream has come to the operation. code: the error of its device, or 0. Returns whether
       the operation ends at once; otherwise it ends with end(task). */
    int (*ready)(void *put, int code);
    void (*over)(void *put); /* the operation has ended */
    /* A node has this content from now on (1) or not any more (-1). */
    void (*node)(standin_external *e, int change);
    void (*drop)(standin_external *e); /* the last reference of the stand-in is gone */
    const standin_buffer *buffers;
    size_t buffer_count;
    unsigned refs; /* the stand-in's */
};

/* How memory looks from a device. */
enum {
    STANDIN_REACHED,     /* all of it is memory of CUDA that the device reaches */
    STANDIN_NOT_OF_CUDA, /* memory of the host that is not pinned, or no memory */
    STANDIN_TOO_SHORT,   /* it ends behind its allocation */
    STANDIN_UNREACHED,   /* the device has no access */
    STANDIN_OF_ANOTHER   /* memory of another device to which this one has access */
};

/* Results are codes of cudaError_t. */
typedef struct standin_services {
    /* The device of the calling thread, whose context is made; or a negative code. */
    int (*current_device)(void);
    int (*device_error)(int device);
    int (*device_count)(void);
    /* stream NULL: the legacy stream of the device. The stand-in owns the reference that
       the caller has, also if the call fails. */
    int (*submit)(int device, cudaStream_t stream, standin_external *e);
    void (*end)(void *task);
    int (*look)(int device, const void *address, size_t size);
    /* Where memory of CUDA really lies. size: in: that is wanted; out: that lies there in one
       piece. NULL: it is no such memory. */
    char *(*reach)(const void *address, size_t *size);
    /* The stream is captured. */
    int (*captures)(int device, cudaStream_t stream);
    cudaError_t (*allocate)(void **out, size_t size);
    cudaError_t (*free)(void *pointer);
} standin_services;

const standin_services *standin_get_services(void);

#endif
