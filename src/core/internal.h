/* core/internal.h - functions of the core that other layers use.

   Declares what the allocator, generators, tensors, topologies, plans and collectives use of the
   core beyond the public functions, driver entries and base/. No other function of core/ is for
   them.

   Invariants: if a function fails, it stores the sentence (base/error.h), its outputs are 0 or
   NULL, and nothing has happened, unless its comment says more.
   Locks: callers hold none that a driver call or a function of the user's may need.
   Threads: any, with a state (ds__api_enter). Handles are pinned or found valid by the callee. */
#ifndef DS__CORE_INTERNAL_H
#define DS__CORE_INTERNAL_H

#include "../api/init.h"
#include "../api/device.h"
#include "../api/stream.h"
#include "../api/event.h"
#include "../api/memory.h"
#include "../api/copy.h"
#include "../api/host_func.h"
#include "../api/dtype.h"
#include "../api/kernel.h"
#include "../api/graph.h"
#include "../api/capture.h"
#include "../base/activity.h"
#include "../base/capture_list.h"
#include "../base/graph_body.h"
#include "../base/module.h"
#include "../base/observe.h"
#include "../base/state.h"
#include "types.h"

/* ---- layers ---------------------------------------------------------------------------------- */

typedef struct ds__layer {
    const char *name;
    const ds__driver *(*apply)(const ds__driver *next, int backend);
    ds__observer_fn observer;
    ds_result (*configure)(const char *options); /* or NULL */
    ds_result (*start)(void);                    /* the last step of the start, or NULL */
} ds__layer;

/* The layers of devstream_check.h and devstream_trace.h, which define them; otherwise they have no
   name. */
static ds__layer ds__check_layer;
static ds__layer ds__trace_layer;

enum { DS__LAYER_OPTIONS = 512 }; /* size of the text of a layer's options */

/* ---- activity -------------------------------------------------------------------------------- */

/* Recordings that run at the same time. */
enum { DS__ACTIVITY_PROGRAM, DS__ACTIVITY_TRACE, DS__ACTIVITY_CLIENTS };

/* Start, end and flush a recording, as ds_activity_start, ds_activity_stop and ds_activity_flush do
   for the program. The callback of the trace layer also gets nodes of launches, and empty batches:
   it is invoked ten times in a second. */
static ds_result ds__activity_client_start(int client, const ds_activity_desc *desc, int records);
static ds_result ds__activity_client_stop(int client);
static ds_result ds__activity_client_flush(int client);
/* Asks the thread of the recordings to invoke the callbacks soon. Takes no lock. */
static void ds__activity_urge(void);

/* ---- calls ----------------------------------------------------------------------------------- */

/* The first step of a public function: records the call site, starts devstream if needed, and
   refuses calls that are not permitted. ds__api_enter_inline is for hot paths. */
static ds_result ds__api_enter(const char *fn);
static inline ds_result ds__api_enter_inline(const char *fn);

#define DS__ENTER(fn)                        \
    do {                                     \
        ds_result ds__r = ds__api_enter(fn); \
        if (DS__UNLIKELY(ds__r < 0))         \
            return ds__r;                    \
    } while (0)

/* Like ds__api_enter for a query that takes no lock and calls no driver: inside of user code that
   devstream runs, it is permitted. */
static ds_result ds__api_enter_query(const char *fn);

#define DS__ENTER_QUERY(fn)                        \
    do {                                           \
        ds_result ds__r = ds__api_enter_query(fn); \
        if (DS__UNLIKELY(ds__r < 0))               \
            return ds__r;                          \
    } while (0)

/* Calls a public function inside of the user's call. Errors name the user's call and its site. */
#define DS__KEEPING(r, call)             \
    do {                                 \
        const char *ds__fn = ds__tls.fn; \
        ds_site ds__site = ds__tls.site; \
        ds__tls.next_site = ds__site;    \
        ds__tls.unwatched++;             \
        r = call;                        \
        ds__tls.unwatched--;             \
        ds__tls.fn = ds__fn;             \
        ds__tls.site = ds__site;         \
    } while (0)

/* ds__sync_watched returns 1 if waits of the host must be reported, and ds__sync_tell reports one.
   A negative result forbids the wait. Only public functions call them, before they do anything. */
static inline int ds__sync_watched(void);
static ds_result ds__sync_tell(const char *format, ...);

/* Makes a release; what: an address, or the id of a handle. */
typedef ds_result (*ds__release_fn)(uint64_t what);

enum {
    DS__POSTPONED_MEMORY,  /* frees of the allocator */
    DS__POSTPONED_OBJECTS, /* destructions of objects */
    DS__POSTPONED_LISTS
};

/* Postpones a free that the program makes inside of user code that devstream runs. */
static ds_result ds__postpone_memory(const char *fn, void *ptr, ds_memory_kind kind,
                                     ds__release_fn release_fn);
/* Makes the releases that were postponed. The caller holds no lock of devstream. */
static inline void ds__postponed_run(int list);

/* ---- devices --------------------------------------------------------------------------------- */

/* Replaces a zeroed device by the current one, and refuses one that does not exist. */
static ds_result ds__device_resolve(ds_device device, ds_device *out);
/* Reads the default device of the process at the start. */
static ds_result ds__device_default_read(void);

#define DS__RESOLVE(device)                                    \
    do {                                                       \
        ds_result ds__r = ds__device_resolve(device, &device); \
        if (DS__UNLIKELY(ds__r < 0))                           \
            return ds__r;                                      \
    } while (0)

/* Appends the label of the device to the sentence of an error; returns the result. */
static inline ds_result ds__device_error(ds_device device, ds_result r);
/* Returns the index of the driver of pinned memory: the first one that is available. */
static int ds__host_backend(void);
/* Writes the name of a type into a buffer of DS_DTYPE_NAME_SIZE; returns the buffer. */
static const char *ds__dtype_name(ds_dtype dtype, char *out);

/* ---- streams --------------------------------------------------------------------------------- */

/* Finds a stream and keeps it until ds__stream_unpin; NULL: the handle is not valid. */
static ds__stream *ds__stream_pin(ds_stream handle);
static inline void ds__stream_unpin(ds__stream *s);
/* Creates a stream of a resolved device; kind: DS__STREAM_*. */
static ds_result ds__stream_create(ds_device device, int kind, unsigned flags, int priority,
                                   const char *label, ds_stream *out);
/* Ends a stream of the library's own; a zero handle is allowed. */
static void ds__stream_end(ds_stream handle);
/* Returns the legacy stream of a device. */
static ds_result ds__stream_legacy_get(ds_device device, ds_stream *out);
/* Returns the thread's current stream of a device, at first the default stream. */
static ds_result ds__stream_current(ds_device device, ds_stream *out);
/* Waits for all work of a stream. Returns DS_NOT_READY if the time is over first. */
static inline ds_result ds__stream_sync(ds_stream stream, uint64_t timeout_ns);
/* Returns an operation of the running call; kind: DS__OP_* | flags << 8. */
static ds__op ds__op_init(int kind);
/* Enqueues an operation. */
static inline ds_result ds__stream_submit(ds__stream *s, const ds__op *op);
/* Makes a stream wait for the work that another stream has now. */
static ds_result ds__wait_stream(ds_stream stream, ds_stream other);

/* ---- events ---------------------------------------------------------------------------------- */

static ds_result ds__event_create(unsigned flags, const char *label, ds_event *out);
/* Finds an event and keeps it until ds__event_unpin; NULL: the handle is not valid. */
static ds__event *ds__event_pin(ds_event handle);
static inline void ds__event_unpin(ds__event *e);
/* Records an event on a stream; kind: DS__OP_RECORD, with flags. The first record that succeeds
   binds the event to the stream's device. */
static inline ds_result ds__event_record(ds_event event, ds_stream stream, int kind);
static inline ds_result ds__event_record_on(ds__event *e, ds__stream *s, int kind);
/* Records the event, or returns DS_NOT_READY if a capture is open. A later wait for the event does
   not invalidate a capture that begins meanwhile. */
static ds_result ds__event_record_outside(ds_event event, ds_stream stream);
/* Makes a stream wait for an event; kind: DS__OP_WAIT, with flags. */
static inline ds_result ds__wait_event(ds_stream stream, ds_event event, int kind);
/* Makes the host wait for an event. Returns DS_NOT_READY if the time is over first. */
static ds_result ds__event_sync(ds_event event, uint64_t timeout_ns);
/* Opens an event of another process by the 64 bytes of event_export. */
static ds_result ds__event_open(ds_device device, const unsigned char *handle, ds_event *out);

/* ---- captures -------------------------------------------------------------------------------- */

/* Makes the object that ds__capture_attachment attaches; gets the number of the capture. */
typedef ds_result (*ds__attachment_fn)(uint64_t capture, void *user, void **out);

/* An object that a capture keeps under a key. */
typedef struct ds__attachment {
    const void *key;
    ds__attachment_fn make_fn; /* makes the object if the capture has none under the key */
    void *user;                /* for make_fn */
    /* Runs once, when the last graph, clone, executable or launch that has the object is gone, on
       any thread. Must not call devstream. */
    ds_host_fn release_fn;
    ds__launch_fn launch_fn; /* or NULL */
    ds__launch_lock_fn launch_lock_fn;
} ds__attachment;

/* Finds or makes the attachment of the capture of a stream. *out NULL: the stream does not
   capture. The caller drops *out (ds__object_unref), since another thread may end the capture and
   destroy its graph meanwhile. */
static ds_result ds__capture_attachment(ds__stream *s, const ds__attachment *a, ds__object **out);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocate device memory like ds_device_alloc, and pinned memory like ds_pinned_alloc. */
static ds_result ds__segment_alloc(ds_device device, size_t size, void **out);
static ds_result ds__pinned_segment_alloc(size_t size, void **out);
/* Frees such memory by its kind, DS_MEMORY_*. idle: the caller knows that no work uses the memory;
   otherwise the function waits for the work. If the wait fails, the memory is not freed. After the
   wait the memory is freed, even if the driver reports an error. */
static ds_result ds__segment_end(void *ptr, int kind, int idle);
/* Allocate and free segments that other processes can open. With a handle, the 64 bytes of
   share_export, and with `imported`: open and close those of other processes. */
static ds_result ds__shared_segment_create(ds_device device, const unsigned char *handle,
                                           size_t size, void **out);
static void ds__shared_segment_destroy(ds_device device, void *ptr, int imported);
/* Reserve and release address space for the entries space_map and space_unmap. *out_page: the unit
   of mappings. A release unmaps the mappings that are left; no work uses them any more. */
static ds_result ds__space_reserve(ds_device device, size_t size, size_t *out_page, void **out);
static void ds__space_release(ds_device device, void *at, size_t size);
/* Allocate and free memory of the driver's own allocator in the order of the stream. */
static ds_result ds__async_alloc(ds__stream *s, size_t size, void **out);
static ds_result ds__async_free(ds__stream *s, void *ptr);
/* Allocates memory of a resolved device like ds_device_alloc. */
static ds_result ds__alloc_device(ds_device device, size_t size, void **out);
/* Waits for the work that may use the memory, then releases it; kind: DS_MEMORY_*. Of two threads
   that end the same memory one is refused. */
static ds_result ds__memory_deinit(void *ptr, int kind, const char *what);

/* ---- copies and kernels ---------------------------------------------------------------------- */

/* Looks up the memory of an operand of `span` bytes and checks that it stays inside of its
   allocation. *known 0: devstream does not know the memory. */
static ds_result ds__copy_operand_find(const void *ptr, size_t span, const char *what,
                                       ds_pointer_info *out, int *known);

/* A copy of rows. Pitches and width are in bytes. */
typedef struct ds__copy_request {
    void *dst;
    const void *src;
    size_t dst_pitch;
    size_t src_pitch;
    size_t width;
    size_t height;
    const ds_device *dst_device; /* where the operands are; NULL: looked up */
    const ds_device *src_device;
    unsigned flags; /* DS_COPY_* */
} ds__copy_request;

/* The request of a copy of one row, of at least one byte. */
#define DS__COPY_ROW(to, from, size)          \
    ((ds__copy_request){ .dst = (to),         \
                         .src = (from),       \
                         .dst_pitch = (size), \
                         .src_pitch = (size), \
                         .width = (size),     \
                         .height = 1 })

/* Checks and enqueues a copy of at least one byte. */
static ds_result ds__copy_between(ds__stream *s, const ds__copy_request *copy);

/* The copies of a batch. */
typedef struct ds__copy_list {
    void *const *dst;
    const void *const *src;
    const size_t *sizes;
    size_t count;
} ds__copy_list;

/* Checks and enqueues a batch of copies. */
static ds_result ds__copy_batch(ds__stream *s, const ds__copy_list *list);
/* The fast path: enqueues a copy between known memory on at most one device, of the stream's
   driver. Returns 0 for all other copies. */
static inline int ds__copy_plain(ds__stream *s, void *dst, const void *src, size_t size,
                                 ds_result *out);
static ds_result ds__kernel_create(const ds_kernel_desc *desc, ds_kernel *out);
/* Enqueues a kernel over items, or over a grid of this many threads; 0 items: only checks. */
static ds_result ds__kernel_launch(ds_kernel kernel, size_t items, const ds_grid *grid,
                                   const void *args, size_t args_size, ds_stream stream);
/* Runs the destructor of a payload if the call was refused; returns the result. */
static ds_result ds__refuse_payload(ds_result r, void *user, ds_host_fn dtor_fn);

#endif
