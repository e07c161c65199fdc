/* base/driver.h - driver. */
#ifndef DS__BASE_DRIVER_H
#define DS__BASE_DRIVER_H

#include "../api/memory.h"
#include "../api/capture.h"
#include "object.h"
#include "operation.h"

/* X(entry, parameters, arguments): everything a driver does, but starting, reporting and ending.
   Stream and event arguments are the driver's own objects; device is an index. Makes the table, the
   fault layer and its names. Of what a device is like, which switches nothing on: device_link 1:
   the two, which differ, are joined by NVLink. device_speed copy engines, and bytes per second of
   its memory; 0: nobody says. Of virtual memory, which no open capture forbids: space_reserve
   addresses without memory. *out_page is the unit in which memory is mapped, and they are aligned
   to it; the
                  driver rounds the size up to it. DS_ERR_UNSUPPORTED: the device has no virtual
                  memory.
   space_map memory behind [at, at + size), whole pages of a reservation behind which there is none.
   This device and all
                  that reach it as peers read and write it. When it fails everything is as it was.
   space_unmap takes the memory of one or several space_maps back, all of it and nothing else. It
   waits for nothing: no work
                  uses the memory any more. When it fails nothing was done (DS_ERR_INVALID_VALUE:
                  the range is not that).
   Of the driver's own allocator, which keeps what is given back for later: async_alloc memory of
   the stream's device; work that is put on the stream from now on may use it, and what comes after
   that. async_free gives it back when the stream has come there, on any stream of the driver. When
   it fails nothing was given back.
                  A stream that captures is refused both (DS_ERR_CAPTURE_UNSUPPORTED), and the
                  capture goes on.
   async_trim returns what the allocator keeps to the device, down to so many bytes. async_info
   *out_reserved: what the allocator has of the device, *out_used: what of it is in use.
   run_together the inline rule for several streams: when nothing is pending on any of them run_fn
   is called, and until it returns
                  nobody can put work on them; *out_ran is 1 then. It copies and adds up,
                  DS__INLINE_BYTES in each step, and calls no entry. *out_ran 0: the work has to be
                  put on the streams, which is always right.
   Of memory for several processes: share_alloc like memory_alloc, for all that follows.
   share_export 64 bytes that name it, always the same. share_import it appears here, under some
   address, until share_close. DS_ERR_ILLEGAL_STATE: it is this process's own. */
/* clang-format off */
#define DS__ENTRIES(X) \
    X(device_properties, (int device, ds_device_properties *out), (device, out)) \
    X(device_memory, (int device, size_t *out_free, size_t *out_total), \
      (device, out_free, out_total)) \
    X(device_synchronize, (int device), (device)) \
    X(device_reset, (int device), (device)) \
    X(device_peer, (int device, int peer, int *out), (device, peer, out)) \
    X(device_link, (int device, int peer, int *out), (device, peer, out)) \
    X(device_speed, (int device, int *out_engines, double *out_memory), \
      (device, out_engines, out_memory)) \
    X(priority_range, (int device, int *out_least, int *out_greatest), \
      (device, out_least, out_greatest)) \
    X(stream_create, (int device, int kind, unsigned flags, int *priority, void **out), \
      (device, kind, flags, priority, out)) \
    X(stream_query, (void *stream), (stream)) \
    X(stream_synchronize, (void *stream, uint64_t timeout_ns), (stream, timeout_ns)) \
    X(stream_wrap, \
      (int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out), \
      (device, native, own, out_flags, out_priority, out)) \
    X(stream_native, (void *stream, void **out), (stream, out)) \
    X(event_create, (int device, unsigned flags, void **out), (device, flags, out)) \
    X(event_query, (void *event), (event)) \
    X(event_synchronize, (void *event, uint64_t timeout_ns), (event, timeout_ns)) \
    X(event_elapsed, (void *start, void *end, double *out_ms), (start, end, out_ms)) \
    X(event_export, (void *event, unsigned char *out), (event, out)) \
    X(event_import, (int device, const unsigned char *handle, void **out), (device, handle, out)) \
    X(submit, (void *stream, const ds__op *op), (stream, op)) \
    X(run_together, \
      (void *const *streams, size_t count, void (*run_fn)(void *user), void *user, int *out_ran), \
      (streams, count, run_fn, user, out_ran)) \
    X(memory_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(space_reserve, (int device, size_t size, size_t *out_page, void **out), \
      (device, size, out_page, out)) \
    X(space_map, (int device, void *at, size_t size), (device, at, size)) \
    X(space_unmap, (int device, void *at, size_t size), (device, at, size)) \
    X(async_alloc, (int device, void *stream, size_t size, void **out), \
      (device, stream, size, out)) \
    X(async_free, (int device, void *stream, void *ptr, size_t size), (device, stream, ptr, size)) \
    X(async_trim, (int device, size_t keep), (device, keep)) \
    X(async_info, (int device, size_t *out_reserved, size_t *out_used), \
      (device, out_reserved, out_used)) \
    X(memory_wait, (int device), (device)) \
    X(share_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(share_export, (int device, void *base, size_t size, unsigned char *handle), \
      (device, base, size, handle)) \
    X(share_import, (int device, const unsigned char *handle, size_t size, void **out), \
      (device, handle, size, out)) \
    X(host_alloc, (size_t size, void **out), (size, out)) \
    X(host_register, (void *ptr, size_t size), (ptr, size)) \
    X(pointer_query, (const void *ptr, ds_pointer_info *out), (ptr, out)) \
    X(kernel_load, (int device, ds__kernel *kernel), (device, kernel)) \
    X(copy_now, (const ds__op *op), (op)) \
    X(capture_begin, (void *stream, ds__capture *capture, const uint32_t *deps, size_t count), \
      (stream, capture, deps, count)) \
    X(capture_end, (void *stream, ds__capture **out), (stream, out)) \
    X(capture_query, (void *stream, ds_capture_info *out), (stream, out)) \
    X(capture_dependencies, (void *stream, ds_graph_node *out, size_t room, size_t *out_count), \
      (stream, out, room, out_count)) \
    X(capture_update, (void *stream, const ds_graph_node *nodes, size_t count, int set), \
      (stream, nodes, count, set)) \
    X(capture_mode, (ds_capture_mode mode), (mode)) \
    X(graph_create, (ds__body *body), (body)) \
    X(graph_clone, (ds__body *from, ds__body *to), (from, to)) \
    X(graph_add, (ds__body *body, uint32_t index), (body, index)) \
    X(graph_edges, \
      (ds__body *body, const ds_graph_node *from, const ds_graph_node *to, size_t count), \
      (body, from, to, count)) \
    X(graph_set, (ds__body *body, uint32_t index, ds__node *fresh), (body, index, fresh)) \
    X(graph_attach, (ds__body *body, ds__object *object), (body, object)) \
    X(graph_instantiate, (ds__body *graph, ds__body *copy, unsigned flags, void **out), \
      (graph, copy, flags, out)) \
    X(exec_update, \
      (void *exec, ds__body *graph, ds_graph_update_reason *out_reason, uint32_t *out_node), \
      (exec, graph, out_reason, out_node)) \
    X(exec_set, (void *exec, uint32_t index, const ds__node *fresh), (exec, index, fresh)) \
    X(exec_enable, (void *exec, uint32_t index, int enabled), (exec, index, enabled))

/* clang-format on */

struct ds__driver {
    const char *name;
    ds_device_type type;
    void (*probe)(ds_backend_info *out); /* looks for devices; starts no thread */
    ds_result (*start)(void);            /* before the first entry is called */
    /* 0: nothing was ever put on it, and waiting for it would only wake it up */
    int (*device_used)(int device);
    void (*drain)(void);                  /* waits for all work; cannot fail */
    void (*stop)(void);                   /* drains, ends threads, frees */
    void (*stream_destroy)(void *stream); /* deferred until drained; cannot fail */
    void (*stream_unwrap)(void *stream);  /* the native handle will go to the caller */
    /* from now on the native stream may go at any time: it is not asked for any more */
    void (*stream_hide)(void *stream);
    /* drops the driver's object and lets the native stream live */
    void (*stream_forget)(void *stream);
    /* equal for two objects of one device: they are the same queue */
    const void *(*stream_identity)(void *stream);
    void (*event_destroy)(void *event);
    void (*kernel_destroy)(ds__kernel *kernel);    /* drops what kernel_load made */
    void (*capture_abandon)(ds__capture *capture); /* its streams leave it; at shutdown */
    void (*graph_destroy)(ds__body *body);         /* drops what the driver has of it */
    void (*exec_destroy)(void *exec);              /* launches on their way go on */
    /* *mark NULL: notes all pending work in it. 1: that work is over, *mark is freed and NULL;
       0: not yet (or no memory: asked again later) */
    int (*passed)(void **mark);
    /* gives it back, and does so whatever it returns; nothing uses the memory any more */
    ds_result (*memory_release)(ds_memory_kind kind, int device, void *ptr, size_t size);
    /* gives a reservation back, in which nothing is mapped */
    void (*space_release)(int device, void *at, size_t size);
    /* gives memory of share_alloc back, which no work uses */
    void (*share_release)(int device, void *base, size_t size);
    /* ends what share_import has made, which no work uses */
    void (*share_close)(int device, void *base, size_t size);
#define DS__MEMBER(entry, parameters, arguments) ds_result(*entry) parameters;
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

/* The inline rule, for every driver that runs on the caller's processor: when every stream that
   takes part is idle, the caller may run the library's own copy, fill or sum of at most this
   many bytes before returning; never the user's code. */
#define DS__INLINE_BYTES 16384u

static int ds__place_of(const ds__op *op, int at) {
    return op->places >> at & 255;
}

DS__SEAM static size_t ds__op_bytes(const ds__op *op) {
    return op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                   : op->u.fill.width * op->u.fill.height * op->u.fill.value_size;
}

#endif
