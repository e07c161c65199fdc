/* comm/result.h - checks, options and results of collectives.

   Compares participants with each other (ds__same_dtype, ds__same_shape,
   ds__memory_check_disjoint), creates and frees the tensors of results (ds__result_create,
   ds__results_destroy), and checks the options. DS__COMM_BEGIN opens a public function;
   DS__COMM_READY does the same without DS__ENTER.

   Invariants: an overlap is found only between tensors without gaps; other overlaps are the
   caller's responsibility. ds__results_destroy sets every result to NULL. DS__COMM_READY expects a
   variable `options` in the calling function and replaces NULL by the default options. While a
   capture is open, ds__results_lanes finds the lanes of all results before the first result is
   allocated.
   Locks: takes none itself. Expects that ds__c.lock is not held, because creating and freeing
   tensors takes the same lock.
   Threads: caller's threads, each with its own ds__work. */
#ifndef DS__COMM_RESULT_H
#define DS__COMM_RESULT_H

#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/internal.h"
#include "../topology/types.h"
#include "../plan/types.h"
#include "kernel.h"
#include "internal.h"
#include "types.h"
#include "step.h"
#include "join.h"

static ds_result ds__same_dtype(const ds__participant *p, ds__name name,
                                const ds__participant *like) {
    char one[DS_DTYPE_NAME_SIZE];
    char other[DS_DTYPE_NAME_SIZE];
    DS__REQUIRE(ds_dtype_equal(p->d.dtype, like->d.dtype), "%s has elements of type %s, not %s",
                ds__name_text(name), ds__dtype_name(p->d.dtype, one),
                ds__dtype_name(like->d.dtype, other));
    return DS_OK;
}

/* except: a dimension that may differ, or -1. */
static ds_result ds__same_shape(const ds__participant *p, ds__name name,
                                const ds__participant *like, int except) {
    char one[DS__SHAPE_TEXT];
    char other[DS__SHAPE_TEXT];
    int same = p->d.ndim == like->d.ndim;
    for (int d = 0; same && d < p->d.ndim; d++)
        same = d == except || p->d.shape[d] == like->d.shape[d];
    if (same)
        return DS_OK;
    ds__shape_text(p->d.ndim, p->d.shape, one, sizeof one);
    ds__shape_text(like->d.ndim, like->d.shape, other, sizeof other);
    return except < 0
               ? ds__fail(DS_ERR_INVALID_VALUE, "%s has the shape %s, not %s", ds__name_text(name),
                          one, other)
               : ds__fail(DS_ERR_INVALID_VALUE,
                          "%s has the shape %s, which differs from %s in more than dimension %d",
                          ds__name_text(name), one, other, except);
}

/* Checks data type and shape. */
static ds_result ds__same_form(const ds__participant *p, ds__name name, const ds__participant *like,
                               int except) {
    ds_result r = ds__same_dtype(p, name, like);
    return r < 0 ? r : ds__same_shape(p, name, like, except);
}

static int ds__same_strides(const ds__dims *d, const int64_t *strides) {
    for (int i = 0; i < d->ndim; i++)
        if (d->shape[i] != 1 && d->strides[i] != strides[i])
            return 0;
    return 1;
}

/* Returns 1 if two participants of one shape have the same elements in the same memory. */
static int ds__same_place(const ds__participant *a, const ds__participant *b) {
    return a->d.first == b->d.first && a->d.device.type == b->d.device.type &&
           ds__same_strides(&a->d, b->d.strides);
}

/* Returns 1 if two tensors without gaps share memory. */
static int ds__dims_collide(const ds__dims *a, const ds__dims *b) {
    return (uintptr_t)a->first < (uintptr_t)b->first + b->bytes &&
           (uintptr_t)b->first < (uintptr_t)a->first + a->bytes && a->count && b->count &&
           ds__is_dense(a) && ds__is_dense(b);
}

static ds_result ds__memory_check_disjoint(const ds__participant *a, ds__name name,
                                           const ds__participant *b, ds__name other) {
    char text[100];
    if (!ds__dims_collide(&a->d, &b->d))
        return DS_OK;
    snprintf(text, sizeof text, "%s", ds__name_text(other));
    return ds__fail(DS_ERR_INVALID_VALUE, "%s shares memory with the %s", ds__name_text(name),
                    text);
}

/* Checks that the outputs share no memory with each other. */
static ds_result ds__outputs_check_disjoint(const ds__participant *p, size_t count) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i && r == DS_OK; k++)
            r = ds__memory_check_disjoint(&p[i], ds__name_of("output tensor", i), &p[k],
                                          ds__name_of("output tensor", k));
    return r;
}

/* Device and stream of a new result. */
typedef struct ds__destination {
    ds_device device;
    size_t index;  /* in the list of results, or DS__NO_LIST; for error messages */
    size_t stream; /* as in ds__given_stream */
} ds__destination;

static ds_result ds__comm_device(ds_device device, ds__name name, ds_device *out) {
    if (device.type == DS_DEVICE_HOST) {
        *out = (ds_device){ DS_DEVICE_HOST, 0 };
        return DS_OK;
    }
    ds_result r = ds__device_resolve(device, out);
    return r < 0 ? ds__fail_append(r, " (%s)", ds__name_text(name)) : r;
}

/* The destination of result i: devices[i] with the stream at this index. */
static ds_result ds__destination_at(const ds_device *devices, size_t i, ds__destination *out) {
    out->index = out->stream = i;
    return ds__comm_device(devices[i], ds__name_of("the device", i), &out->device);
}

static ds_result ds__destination_lane(ds__work *w, const ds__destination *to, uint32_t *lane) {
    return ds__lane_find(w, ds__given_stream(w->options, to->stream),
                         ds__name_of("result", to->index), to->device, lane);
}

/* Creates a tensor like `like` at a destination, and opens it as a participant. */
static ds_result ds__result_create(ds__work *w, const ds__dims *like, const ds__destination *to,
                                   ds__participant *p, ds_tensor **out) {
    ds_stream stream = { 0 };
    uint32_t lane;
    ds_result r = ds__destination_lane(w, to, &lane);
    if (r == DS_OK && like->bytes && DS__UNLIKELY(ds__captures_open()))
        r = ds__fork_capture(w);
    if (r < 0)
        return r;
    if (to->device.type != DS_DEVICE_HOST)
        stream = w->lane[lane].stream;
    r = ds__tensor_like(like, stream, out);
    return r < 0
               ? r
               : ds__participant_open(w, *out, ds__name_of("result", to->index), to->stream, 0, p);
}

/* Returns 1 if a result on the device shows the tensor itself (DS_COMM_ALIAS). */
static int ds__result_is_alias(const ds__work *w, ds_device device, const ds__participant *from) {
    return w->options->flags & DS_COMM_ALIAS && ds__same_device(device, from->d.device);
}

/* Frees results of a failed call, and sets them to NULL. */
static void ds__results_destroy(ds_tensor **out, size_t count) {
    ds__tls.mute++;
    for (size_t i = 0; i < count; i++) {
        if (out[i]) {
            ds_result r;
            DS__KEEPING(r, (ds_tensor_free)(out[i]));
            (void)r;
        }
        out[i] = NULL;
    }
    ds__tls.mute--;
}

/* While a capture is open, finds the lanes of all results before the first result is allocated:
   the lane that captures may be one of the last, and ds__fork_capture must know it. */
static ds_result ds__results_lanes(ds__work *w, const ds_device *devices, size_t count,
                                   const ds__participant *from) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK && DS__UNLIKELY(ds__captures_open()); i++) {
        ds__destination to;
        uint32_t lane;
        r = ds__destination_at(devices, i, &to);
        if (r == DS_OK && !ds__result_is_alias(w, to.device, from))
            r = ds__destination_lane(w, &to, &lane);
    }
    return r;
}

/* Replaces NULL by the default options, and checks the options. */
static ds_result ds__comm_options_check(const ds_comm_options **o) {
    if (!*o)
        *o = &ds__comm_usual;
    DS__REQUIRE_RESERVED("ds_comm_options", *o);
    DS__REQUIRE(!((*o)->flags & ~(unsigned)(DS_COMM_ALIAS | DS_COMM_ANY_ORDER)),
                "unknown flags %#x; use DS_COMM_* flags", (*o)->flags);
    DS__REQUIRE((*o)->streams || !(*o)->stream_count, "streams is NULL, but stream_count is %zu",
                (*o)->stream_count);
    DS__REQUIRE((*o)->topology || !(*o)->plan, "options->plan is set without options->topology");
    DS__REQUIRE(!(*o)->plan || ((const ds__planned *)(*o)->plan)->topology == (*o)->topology->id,
                "the plan was created for another topology");
    DS__REQUIRE(!(*o)->engine || strcmp((*o)->engine, "nccl") == 0,
                "options->engine is \"%.40s\"; use NULL or \"nccl\"", (*o)->engine);
    DS__REQUIRE(!(*o)->ranks.id || !(*o)->engine,
                "options->engine is set with options->ranks, which has an engine");
    DS__REQUIRE((*o)->ranks.id || (!(*o)->root && !(*o)->ranks_options),
                "options has root or ranks_options, but no ranks");
    DS__REQUIRE(!(*o)->ranks.id || !(*o)->topology,
                "options->topology is set with options->ranks; a plan is for one process");
    return DS_OK;
}

/* Returns uninitialised participants until ds__work_end; NULL: out of memory, also in w->r. */
static ds__participant *ds__participants_alloc(ds__work *w, size_t count) {
    return ds__work_alloc(w, count, sizeof(ds__participant));
}

/* Destroys the streams of plans. Called by ds_shutdown. */
static void ds__sides_deinit(void) {
    for (size_t b = 0; b < DS_BACKEND_COUNT; b++)
        for (size_t i = 0; i < DS__MAX_DEVICES; i++) {
            ds__sides *all = ds__sides_of[b][i];
            for (int k = 0; all && k < all->count; k++)
                ds__stream_end(all->at[k]);
            ds__host_free(all);
            ds__sides_of[b][i] = NULL;
        }
}

/* Called by ds_shutdown. */
static void ds__comm_deinit(void) {
    ds__sides_deinit();
    ds__join_events_deinit();
    ds__comm_kernels_deinit();
}

static const ds__module ds__comm_module = { .shutdown = ds__comm_deinit };

/* Prepares tensors and the module of collectives. */
static ds_result ds__comm_setup(void) {
    ds_result r = ds__tensor_setup();
    if (r == DS_OK)
        ds__module_add(DS__MODULE_COMM, &ds__comm_module);
    return r;
}

static void ds__comm_load(ds_device device) {
    ds_result r = ds__comm_setup();
    for (int which = 0; r == DS_OK && which < DS__COMM_KERNELS; which++) {
        ds_kernel kernel;
        r = ds__comm_kernel(which, &kernel);
        if (r == DS_OK)
            DS__KEEPING(r, (ds_kernel_load)(kernel, device));
    }
    DS_IGNORE(r);
}

/* Opens a public function: enters it, prepares the module and checks `options`. */
#define DS__COMM_BEGIN(name) \
    DS__ENTER(name);         \
    DS__COMM_READY()
/* The same for a function that creates its results. instead: the function for a group. */
#define DS__COMM_BEGIN_CREATING(name, instead) \
    DS__ENTER(name);                           \
    DS__COMM_READY_CREATING(instead)
#define DS__COMM_READY_CREATING(instead)                            \
    do {                                                            \
        DS__COMM_READY();                                           \
        ds_result ds__r = ds__comm_refuse_across(options, instead); \
        if (ds__r < 0)                                              \
            return ds__r;                                           \
    } while (0)
#define DS__COMM_READY()                              \
    do {                                              \
        ds_result ds__r = ds__comm_setup();           \
        if (ds__r == DS_OK)                           \
            ds__r = ds__comm_options_check(&options); \
        if (ds__r < 0)                                \
            return ds__r;                             \
    } while (0)

#endif
