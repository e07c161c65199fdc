/* A PTX interpreter: runs the device code that clang and nvcc emit for CUDA C on machines without a
   GPU.

   Of the PTX of

     clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib \
           -ffp-contract=off -S

   it computes, bit for bit, what a GPU computes. Other text may have instructions of which the PTX
   ISA leaves the last bits open; ptx_inexact names the first one. It is stricter than ptxas and a
   GPU: registers are used at their declared width only, no register is read before it is written,
   every access is checked for alignment and bounds. */
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>

typedef struct ptx_module ptx_module;
typedef struct ptx_function ptx_function;

/* Parses and checks a whole module.  NULL: `error` says which line and why. */
ptx_module *ptx_load(const char *text, char *error, size_t error_size);
/* no launch of it may be running */
void ptx_unload(ptx_module *m);
/* The first instruction whose result the PTX ISA does not define to the last bit, and why: an
   approximation, or an addition that may be fused. NULL: there is none. */
const char *ptx_inexact(const ptx_module *m);
/* an .entry; NULL: none */
const ptx_function *ptx_find(const ptx_module *m, const char *name);
const char *ptx_name(const ptx_function *f);
size_t ptx_param_count(const ptx_function *f);
size_t ptx_param_size(const ptx_function *f, size_t i);
/* bytes of statically declared shared memory */
size_t ptx_static_shared(const ptx_function *f);
/* The function of the device runtime library that the module declares .extern and does not define:
   cudaGraphSetConditional is the only one known. NULL: there is none. */
const char *ptx_external(const ptx_module *m);

typedef enum { PTX_OK, PTX_TRAP, PTX_BAD_ADDRESS, PTX_MISALIGNED, PTX_BAD_PROGRAM } ptx_status;

typedef struct ptx_memory {
    /* The host's pointer for an access of the device to `size` bytes at a global address; NULL:
       not allowed. Called by the thread that runs the launch, any number of times; the pointer
       is used for this one access. */
    void *(*reach)(void *user, uint64_t address, size_t size, int write);
    void *user;
} ptx_memory;

typedef struct ptx_launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes;     /* dynamic shared memory */
    int together;              /* all blocks run at once, by turns; else one after the other */
    const void *const *params; /* one pointer for each parameter */
    ptx_memory memory;
    /* may be NULL; polled now and then: true ends the launch with PTX_TRAP */
    int (*cancelled)(void *user);
    void *cancel_user;
} ptx_launch;

/* Runs the whole grid on the calling thread. Launches may run at the same time, of one module
   too. */
ptx_status ptx_run(const ptx_function *f, const ptx_launch *launch, char *error, size_t error_size);

/* What a call of cudaGraphSetConditional does: false ends the launch with PTX_TRAP. */
typedef struct ptx_conditions {
    int (*set)(void *user, uint64_t handle, uint32_t value);
    void *user;
} ptx_conditions;

/* Like ptx_run, for a kernel that may be of a graph. Under ptx_run such a call fails. */
ptx_status ptx_run_in_graph(const ptx_function *f, const ptx_launch *launch,
                            const ptx_conditions *conditions, char *error, size_t error_size);

#endif
