/* tensor/internal.h - functions of tensors that other layers use.

   Declares what topologies, plans and collectives use of tensors beyond the public functions:
   reading descriptions, arithmetic with shapes, results and shares of storages.

   Invariants: if a function fails, it stores the sentence. `what` and `index` name the tensor in
   sentences, as ds__dims_nth writes them.
   Locks: callers do not hold ds__c.lock.
   Threads: any. */
#ifndef DS__TENSOR_INTERNAL_H
#define DS__TENSOR_INTERNAL_H

#include "types.h"

/* Prepares the allocator and tensors. */
static ds_result ds__tensor_setup(void);

/* ---- descriptions ---------------------------------------------------------------------------- */

/* "input tensor at index 3"; of index -1 only the words. Valid until the thread's next call. */
static const char *ds__dims_nth(const char *what, int64_t index);
/* Reads and checks a description, or type, shape and strides; strides NULL: row-major. */
static ds_result ds__tensor_read(const ds_tensor *t, const char *what, int64_t index,
                                 ds__dims *out);
static ds_result ds__dims_read(ds_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, const char *what, int64_t index,
                               ds__dims *out);
/* Elements of a shape; -1: a negative size, -2: too many. */
static int64_t ds__count_of(int ndim, const int64_t *shape);
/* Row-major strides, and strides in the order in which the dimensions lie in memory now; both
   without gaps. */
static void ds__row_major(int ndim, const int64_t *shape, int64_t *strides);
static void ds__dense_like(const ds__dims *d, int64_t *strides);
static int ds__is_dense(const ds__dims *d);
/* The dimensions with more than one index, from the longest stride to the shortest; returns their
   number. */
static int ds__by_stride(const ds__dims *d, int *order);
/* Adds an index along a dimension to the address, if elements are left. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by);
/* Computes count, bytes and bounds again. */
static void ds__dims_recount(ds__dims *d);
/* A dimension from the front; -1: there is none. */
static int ds__tensor_dim(int dim, int ndim);
#define DS__SHAPE_TEXT 200
/* A shape as "[2, 3]", in DS__SHAPE_TEXT bytes. */
static const char *ds__shape_text(int ndim, const int64_t *shape, char *out, size_t size);

/* ---- objects --------------------------------------------------------------------------------- */

/* A new tensor with memory of the stream's device, or a view of `base`. */
static ds_result ds__tensor_like(const ds__dims *like, ds_stream stream, ds_tensor **out);
static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out);
/* Adds a user to the storage of a tensor; *out NULL: it has none. Returns 1 if the tensor is an
   object. */
static int ds__tensor_share(const ds_tensor *t, ds__storage **out, unsigned *out_flags);

#endif
