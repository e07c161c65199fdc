/* tensor/types.h - tensors. */
#ifndef DS__TENSOR_TYPES_H
#define DS__TENSOR_TYPES_H

#include "../api/tensor.h"
#include "../alloc/api_config.h"

/* Policy.
   1. A tensor of devstream's is an object that a table knows by its address, so that it is told
      from what others made; its description does not change.
   2. Objects share a storage, which counts them and gives the memory back. Other libraries may have
      one longer than ds_shutdown: it is made with malloc.
   3. What is freed where devstream cannot be called (by a deleter inside a host function) waits in
      a list for the next call.
   4. A function reads a description once, into a ds__dims: everything is checked there, and
      nothing after it can overflow. */

/* A description that was checked. */
typedef struct ds__dims {
    char *first;      /* the element whose indices are all 0 */
    ds_device device; /* DS_DEVICE_HOST, or one of a driver */
    ds_device given;  /* as the description has it */
    ds_dtype dtype;
    int ndim;
    size_t item;   /* bytes of an element */
    int64_t count; /* elements */
    size_t bytes;  /* of so many elements */
    /* low, high: from `first`: where the bytes of all elements begin and end */
    ptrdiff_t low;
    ptrdiff_t high;
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t strides[DS_TENSOR_MAX_DIMS];
} ds__dims;

enum { DS__OF_ALLOCATOR, DS__OF_PINNED, DS__OF_OTHERS, DS__OF_MANAGED, DS__OF_VERSIONED };

typedef struct ds__storage {
    struct ds__storage *next; /* in the list of those that wait */
    _Atomic int users;
    int kind;       /* DS__OF_* */
    uint32_t epoch; /* ds__g.epoch in which the memory is valid */
    void *ptr;      /* memory, or what is handed to release_fn, or the managed tensor */
    void (*release_fn)(void *user);
} ds__storage;

typedef struct ds__tensor {
    ds_tensor t;             /* first: the user's pointer */
    struct ds__tensor *next; /* in its bucket */
    ds__storage *storage;    /* NULL: a view of what is no object */
    unsigned flags;
    ds_site made;
    int64_t dims[]; /* sizes, then strides */
} ds__tensor;

#define DS__TENSOR_BUCKETS 1024

static struct {
    _Atomic int ready;
    ds__lock lock; /* of what follows */
    ds__tensor *bucket[DS__TENSOR_BUCKETS];
    ds__storage *waiting;
    _Atomic int waits;
} ds__c;

static void ds__comm_shutdown(void);

static ds_result ds__comm_setup(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__c.ready, memory_order_acquire)))
        return DS_OK;
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__lock_take(&ds__c.lock);
    atomic_store(&ds__upper.shutdown_fn, ds__comm_shutdown); /* which goes on to the allocator's */
    atomic_store_explicit(&ds__c.ready, 1, memory_order_release);
    ds__lock_give(&ds__c.lock);
    return DS_OK;
}

#endif
