/* tensor/internal.h - functions of tensors that other layers use.

   Declares the private functions of tensors that topologies, plans and collectives call: reading
   descriptions, arithmetic with shapes, and creation of tensors.

   Invariants: a function that fails stores the error message. A ds__name names the tensor in
   messages.
   Locks: callers do not hold ds__c.lock.
   Threads: any. */
#ifndef DS__TENSOR_INTERNAL_H
#define DS__TENSOR_INTERNAL_H

#include "types.h"

/* Prepares the allocator and tensors. */
static ds_result ds__tensor_setup(void);

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Returns a name as text, such as "input tensor at index 3". The text is valid until the thread's
   next call. */
static const char *ds__name_text(ds__name name);
/* Reads and checks a description. */
static ds_result ds__tensor_read(const ds_tensor *t, ds__name name, ds__dims *out);
/* Reads and checks data type, shape and strides; strides NULL: row-major. The address is NULL. */
static ds_result ds__dims_read(ds_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, ds__name name, ds__dims *out);
/* Returns the number of elements of a shape; -1: a size is negative, -2: the number overflows. */
static int64_t ds__count_of(int ndim, const int64_t *shape);
/* Computes row-major strides. */
static void ds__row_major(int ndim, const int64_t *shape, int64_t *strides);
/* Computes strides without gaps that keep the order of the dimensions in memory. */
static void ds__dense_like(const ds__dims *d, int64_t *strides);
static int ds__is_dense(const ds__dims *d);
/* Lists the dimensions whose size is not 1, from the longest stride to the shortest; returns their
   number. */
static int ds__by_stride(const ds__dims *d, int *order);
/* Moves the address by an index along a dimension, unless the tensor is empty. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by);
/* Computes count again. */
static void ds__dims_recount(ds__dims *d);
/* Replaces a negative dimension, which counts from the end; DS_ERR_INVALID_VALUE: out of range. */
static ds_result ds__dim_resolve(int *dim, int ndim);
#define DS__SHAPE_TEXT 200
/* Writes a shape as "[2, 3]" into DS__SHAPE_TEXT bytes; a long shape is cut. Returns `out`. */
static const char *ds__shape_text(int ndim, const int64_t *shape, char *out, size_t size);

/* ---- objects --------------------------------------------------------------------------------- */

/* Creates a tensor without gaps in memory of the stream's device; zero stream: in pinned memory. */
static ds_result ds__tensor_like(const ds__dims *like, ds_stream stream, ds_tensor **out);
/* Creates a view of `base` with the address, shape and strides of `d`. */
static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out);
/* Adds a user to the storage of a tensor; *out NULL: the tensor has no storage. Returns 1 if the
   tensor is an object. */
static int ds__tensor_share(const ds_tensor *t, ds__storage **out, unsigned *out_flags);

#endif
