/* The strict stand-in for cudart: how a test steers and watches it.

   The stand-in is a test double of libcudart that carries out CUDA's rules on threads, on a machine
   without a GPU. It is written from CUDA's headers and documentation. It refuses what CUDA refuses
   and blocks where CUDA blocks; where CUDA leaves something open, it takes the least convenient
   behaviour that is allowed. What is undefined in CUDA (a handle that was never given out or is
   destroyed, memory freed under pending work, a graph launched whose memory, events or modules are
   gone) fails the test: one line on stderr, then abort().

   Streams capture, graphs are built, changed and launched as documented. What CUDA leaves open
   there: an error that a call in a capturing stream meets invalidates the capture, unless it is
   about the call's own arguments; an event that was last recorded in a capture cannot be used when
   that is over; an update of an executable lets a fill grow no further than it was when
   instantiated.

   Conditional nodes exist with headers of 12.8 or later. What CUDA leaves open there: a value
   without a default is no valid index of a body until a kernel sets it; a launch with a handle of
   another graph fails the device, also after an update from that graph; a child graph gets no
   conditional node; what a body may not hold is refused when the graph is instantiated.
   The linker of the driver (cuLinkCreate and its like) takes one text of PTX, and libraries whose
   content is not read. CUDA_ERROR_INVALID_PTX means that no library was added for
   cudaGraphSetConditional, from cuLinkComplete, or that the text was not linked, from
   cuModuleLoadData.

   Read once, at the first call into it:
     STANDIN_DEVICES         number of devices, 1 to 16 (4)
     STANDIN_PEERS           which devices reach each other: "all" (the default), "none", "half"
                             (those of the same half of the devices), or n*n characters 0 and 1, row
                             by row: character i*n+j says whether device i can reach the memory of
                             device j
     STANDIN_NVLINK          which of them do so over NVLink: "all", "none" (the default), or pairs:
                             "0-1,1-2"
     STANDIN_ENGINES         copy engines of each device: a number for each, with commas (3 each)
     STANDIN_MEMORY_CLOCK    kHz of the memory of each device, likewise (2619000)
     STANDIN_MAX_PEERS       devices that may have access to one device's mapped memory or pool, or
                             whose memory a device may have access to, besides the own one (8)
     STANDIN_FREE_WAITS      1: cudaFree waits for all work of the device, as on an H200 (0)
     STANDIN_MEMORY          bytes of memory of each device (8 GiB)
     STANDIN_ERROR           a number: every call returns it, as on a machine without a driver (35,
                             34) or without a GPU (100)
     STANDIN_REPORT          1: the reason of a failed kernel, and of an image that cannot be
                             loaded, is written to stderr
     STANDIN_NULL            1: as after standin_null(1)
     STANDIN_DRIVER_VERSION  the version that cudaDriverGetVersion returns (13000)

   All of it may be called from any thread, also where the program is linked with the real cudart
   and meets the stand-in as a shared library: look the names up with dlsym then. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

/* Calls so far, by all threads, of a runtime or driver function. A name that the stand-in does
   not have fails the test. */
unsigned long standin_calls(const char *name);

/* The log of the calling thread: from begin on the name of every runtime and driver function
   that it calls, in order, one space between two. Some carry an argument: cudaSetDevice:1, and
   the copies their kind, as cudaMemcpyAsync:H2D, D2H, D2D, H2H or Default. Take ends the log;
   its text stays valid until the thread's next begin. */
void standin_log_begin(void);
const char *standin_log_take(void);

/* The nth call from now, counted over all threads, fails with `code` and has no effect; but what
   frees or destroys does so and returns the code all the same (cudaFreeAsync, which is work for
   a stream, does not). Everything that returns an error code counts, except cudaGetLastError,
   cudaPeekAtLastError and those that ask for the name or text of an error. nth 0 switches it
   off. */
void standin_fail(unsigned long nth, int code);
int standin_failed(void); /* whether that call has come */

/* The nth call of this function from now, over all threads, and the calls of it after that fail
   likewise, `times` in all. times 0 switches it off. */
void standin_fail_calls(const char *name, unsigned long nth, unsigned long times, int code);

/* Created streams, events, allocations of device and host memory, registrations, modules, open
   captures, graphs (without those of nodes), executables, user objects, reservations of addresses,
   mappings and handles of memory, allocations of pools (until the stream has come to the free),
   green contexts and states of the linker that are alive: their number, and the kinds as one line
   ("2 graphs, 1 executable"). report may be NULL. */
size_t standin_live(char *report, size_t size);

/* Bit i: device i has its primary context. Every call of the runtime makes that of the current
   device, except those that ask for devices and errors; so do cudaPointerGetAttributes and
   cudaThreadExchangeStreamCaptureMode. */
unsigned standin_contexts(void);

/* Returns a new context of the device that is not the primary one, as cuCtxCreate makes it, for
   cuCtxPushCurrent; it is not current. A call of the runtime fails the test while such a context is
   current. */
void *standin_context(int device);

/* On: copies, fills, launches (of graphs too), records and waits return success after their
   cheapest checks and do nothing; but while anything is captured they are as ever. */
void standin_null(int on);

/* On: no device starts another operation or host function; what runs goes on. Off again: they
   start. */
void standin_hold(int on);

/* An image that is no PTX (a cubin or fatbin), and a function known by its host address: the PTX
   that stands for them. The text of an image must stay as long as it may be loaded. */
void standin_register_image(const void *image, const char *ptx_text);
void standin_register_function(const void *function, const char *ptx_text, const char *entry);

/* Whether a device has virtual memory management (cuMemCreate and its like) and memory pools
   (cudaMallocAsync); both are on at first. */
void standin_virtual_memory(int device, int on);
void standin_memory_pools(int device, int on);

/* On: cuModuleLoadDataEx takes a text that calls cudaGraphSetConditional, as the compiler in the
   driver of a later CUDA may; off at first. */
void standin_conditions(int on);
/* Whether a device has clusters, cooperative launches and programmatic dependent launch; it is of
   compute capability 9.0 with them (the default), else of 8.0. */
void standin_launch_attributes(int device, int on);

/* Launches, and instantiated nodes, with each of these so far. */
void standin_launches_with(unsigned long *clusters, unsigned long *cooperatives,
                           unsigned long *overlaps);

/* How long cuModuleLoadDataEx compiles an image; 0 at first. */
void standin_load_delay(unsigned ms);

/* The next cudaLaunchHostFunc begins a relaxed capture on its stream, as another thread could. */
void standin_capture_meanwhile(void);
/* The next cudaStreamIsCapturing that finds a capture ends it after its answer, and destroys the
   graph, as another thread could. */
void standin_end_meanwhile(void);

/* How long each copy and each host function takes in addition; 0 at first. standin_overlaps: how
   many of them began since the last call of standin_work_delay while one of the other kind ran. */
void standin_work_delay(unsigned copy_ms, unsigned host_ms);
int standin_overlaps(void);

/* Whether all edges of graphs have data, as programmatic ones do (the default): a query of
   dependencies without room for the data is refused, also one that only counts (pytorch#168305). */
void standin_edge_data(int on);

/* gpuDirectRDMACapable memory: 0: the devices have none, 1: they have (the default); 2: they say
   so, but cuMemCreate refuses the flag; 3: they say so, but cuMemSetAccess fails for such memory,
   as on WSL2 (pytorch#192330). */
void standin_rdma(int how);

/* Mappings of memory that is gpuDirectRDMACapable. */
size_t standin_rdma_mappings(void);

/* Device work that has ended, as far as CUPTI tells it. */
typedef struct standin_work {
    enum { STANDIN_COPY, STANDIN_PEER_COPY, STANDIN_FILL, STANDIN_KERNEL } kind;

    unsigned correlation; /* of the call that submitted it */
    int device;
    unsigned stream;
    unsigned long long begin_ns, end_ns; /* CLOCK_MONOTONIC */
    unsigned long long bytes;
    unsigned long long node; /* of a graph; 0: none */
    const char *name;        /* of a kernel; stays while its module is loaded */
} standin_work;

/* Reports to a watcher: each call of the runtime or the driver by the thread that makes it, and
   device work by the thread that ran it, under the stand-in's lock, before an event behind it is
   complete. Neither may call the stand-in. */
typedef struct standin_watcher {
    void (*call)(unsigned correlation, int is_driver);
    void (*work)(const standin_work *work);
} standin_watcher;

/* There is one watcher; NULL ends that. */
void standin_watch(const standin_watcher *watcher);

/* Why the last kernel that failed did so, in the interpreter's words; "" if none has. */
void standin_kernel_error(char *text, size_t size);

/* Threads that run work of the devices or destructors of user objects at this moment; they end
   when idle for a second. */
size_t standin_threads(void);

#endif
