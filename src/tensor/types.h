/* tensor/types.h - types and state of tensors.

   Defines the checked description of a tensor (ds__dims), the counted storage (ds__storage),
   the tensor object (ds__tensor) and the process-wide state ds__c. ds__tensor_setup prepares
   the allocator and enters the module.

   Policy:
   1. A tensor that devstream creates is an object. A table finds objects by their address. All
      other descriptions were filled in by the program. The description of an object never changes.
   2. Objects share a storage. The storage counts its users; the last user frees the memory.
      Other libraries may keep a storage longer than ds_shutdown, so storages are allocated with
      malloc.
   3. A deleter may run inside a host function. The allocator postpones a free there.
   4. A function reads a description once, into a ds__dims. All members are checked there, and
      later arithmetic with the ds__dims cannot overflow.

   Invariants: each object holds at most one use of a storage, and so does each exported managed
   tensor. An object without a storage is a
   view of a description that is not an object, or has no bytes.
   Locks: ds__c.lock guards the table, and process-wide lists of topology/,
   plan/ and comm/. No other lock of devstream is taken under it. ds__tensor_setup calls
   ds__mem_setup before it takes the lock.
   Threads: any; deleters may also drop a storage on threads that run host functions. `ready`
   and the number of users are atomic; all other members of ds__c need the lock. */
#ifndef DS__TENSOR_TYPES_H
#define DS__TENSOR_TYPES_H

#include "../api/tensor.h"
#include "../base/module.h"
#include "../alloc/internal.h"

/* The name of a tensor in error messages: words, such as "input tensor", and the tensor's index in
   its list. Without a list the index is DS__NO_LIST. */
typedef struct ds__name {
    const char *words;
    size_t index;
} ds__name;

#define DS__NO_LIST SIZE_MAX

static inline ds__name ds__name_of(const char *words, size_t index) {
    return (ds__name){ words, index };
}

/* A tensor description, checked by ds__tensor_read. */
typedef struct ds__dims {
    char *first;      /* the element whose indices are all 0 */
    ds_device device; /* DS_DEVICE_HOST, or one of a driver */
    ds_device given;  /* as in the description */
    ds_dtype dtype;
    int ndim;
    size_t item;    /* bytes of an element */
    int64_t count;  /* elements */
    size_t bytes;   /* count * item */
    ptrdiff_t low;  /* begin of the bytes of all elements, relative to `first` */
    ptrdiff_t high; /* end of the bytes of all elements, relative to `first` */
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t strides[DS_TENSOR_MAX_DIMS];
} ds__dims;

/* Source of a storage's memory: device memory or pinned memory of the allocator, memory that the
   program wrapped, or a managed tensor of another library in either form. */
enum { DS__OF_ALLOCATOR, DS__OF_PINNED, DS__OF_OTHERS, DS__OF_MANAGED, DS__OF_VERSIONED };

typedef struct ds__storage {
    _Atomic int users;
    int kind;       /* DS__OF_* */
    uint32_t epoch; /* ds__g.epoch in which the memory is valid */
    void *ptr;      /* the memory, the argument of release_fn, or the managed tensor */
    void (*release_fn)(void *user);
} ds__storage;

typedef struct ds__tensor {
    ds_tensor t;             /* first member: the address of the object is the program's pointer */
    struct ds__tensor *next; /* in its bucket */
    ds__storage *storage;    /* NULL: no memory, or memory of a description that is not an object */
    unsigned flags;
    ds_site made;
    int64_t dims[]; /* sizes, then strides */
} ds__tensor;

#define DS__TENSOR_BUCKETS 1024

static struct {
    _Atomic int ready;
    ds__spinlock lock; /* protects the members below */
    ds__tensor *bucket[DS__TENSOR_BUCKETS];
} ds__c;

static void ds__tensors_deinit(void);

static const ds__module ds__tensor_module = { .shutdown = ds__tensors_deinit };

/* Prepares the allocator and the tensor module; without effect after the first call. */
static ds_result ds__tensor_setup(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__c.ready, memory_order_acquire)))
        return DS_OK;
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__c.lock);
    ds__module_add(DS__MODULE_TENSOR, &ds__tensor_module);
    atomic_store_explicit(&ds__c.ready, 1, memory_order_release);
    ds__spinlock_unlock(&ds__c.lock);
    return DS_OK;
}

#endif
