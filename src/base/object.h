/* base/object.h - structs behind the handles.

   Defines the objects that a handle stands for: ds__stream, ds__event, ds__kernel, ds__graph and
   ds__exec. It also declares the struct names that rooms of base/ need from each other.

   Invariants: every object begins with its ds__slot, so the tables of base/handle.h can hold it.
   A stream's `id` is unique for the life of the process. An event's `driver` is set before its
   `native`. Launching threads read the first part of a kernel, workers write the part behind the
   padding.
   Locks: none are taken here. ds__g.label_lock guards the labels of streams. `lock` of a graph
   or executable guards its body, and `bind` of an event its device until the device is settled.
   Threads: any thread. Most other fields do not change after creation, or they are atomic. */
#ifndef DS__BASE_OBJECT_H
#define DS__BASE_OBJECT_H

#include "../api/kernel.h"
#include "handle.h"

typedef struct ds__driver ds__driver;
typedef struct ds__ranges ds__ranges;
typedef struct ds__body ds__body;
typedef struct ds__node ds__node;
typedef struct ds__object ds__object;
typedef struct ds__capture ds__capture;

enum {
    DS__STREAM_NEW = 0,
    DS__STREAM_LEGACY = 1,
    DS__STREAM_PER_THREAD = 2,
    DS__STREAM_LANE = 3 /* the CPU driver's, of an executable */
};

typedef struct ds__stream {
    ds__slot slot;
    const ds__driver *driver;
    void *native; /* the driver's stream */
    uint64_t id;  /* unique for the life of the process */
    ds_device device;
    int priority;
    int requested;
    int share; /* multiprocessors or threads that its work may use; 0: all */
    unsigned flags;
    uint8_t kind;              /* DS__STREAM_* */
    uint8_t borrowed;          /* 1: a wrapper that must not end the native stream */
    uint8_t of_legacy;         /* 1: a wrapper of the legacy stream */
    uint8_t prompt;            /* 1: to be reclaimed at once; set before the handle is stale */
    _Atomic uint8_t unwrapped; /* 1: the native stream was given away */
    _Atomic int owners;
    /* of a wrapper of a default stream: that stream, with a reference */
    ds_stream base;
    _Atomic(void *) module[DS__STREAM_MODULES]; /* the state that modules keep for the stream */
    char *label;
    void (*release_fn)(void *user);
    void *user;
    ds_site made;
} ds__stream;

typedef struct ds__event {
    ds__slot slot;
    _Atomic(void *) native; /* the driver's event, made at the first record */
    ds__spinlock bind;      /* of its device, until that is settled */
    /* 1: it stays on its device: a record has succeeded, or a graph or other processes know it */
    _Atomic int settled;
    int claims;  /* calls that are about to settle it */
    int binding; /* 1: a thread creates its native event */
    int imported;
    const ds__driver *driver; /* of the first record; set before `native` */
    _Atomic int64_t device;   /* -1 unbound, else type << 32 | index */
    /* the handle of the stream of the last record by a call, for sentences; 0: none */
    _Atomic uint64_t recorded_on;
    unsigned flags;
    char *label;
    ds_site made;
} ds__event;

/* A launch holds no reference: a destroyed kernel is freed after the work that was pending when
   no call could launch the kernel any more (core/kernel.h). */
/* Statuses with which the CPU form of a block kernel fails (ds_kernel_run_blocks). */
enum { DS__KERNEL_LOOP_LEFT = INT_MIN + 1, DS__KERNEL_SCRATCH_SPENT, DS__KERNEL_NO_SCRATCH };

typedef struct ds__kernel {
    ds__slot slot;
    ds_kernel_fn cpu_fn;
    size_t args_size;
    size_t grain;
    const char *name;
    ds_param *params;
    size_t param_count;
    ds_kernel_cuda cuda;
    ds_site made;
    _Atomic(void *) native; /* what the driver that loaded the kernel has of it */
    int ours; /* 1: a kernel of the library; its own error sentence describes the failure */
    uint64_t (*bytes_fn)(size_t items, const void *args);
    /* for layers (base/extent.h); at most one of both is set, and launches read neither */
    ds_extent *extents;
    void (*extents_fn)(const void *args, size_t *out_bytes);
    /* of a kernel of the library, in place of its extents: writes the width, the pitch and the
       number of the rows that a parameter accesses; returns 0 if they are not such rows */
    int (*rows_fn)(const void *args, size_t param, size_t out_rows[3]);
    /* threads that launch read the members above; workers write those below */
    char pad[64];
    _Atomic uint64_t estimate; /* a driver's: how long the kernel takes, as measured */
    /* a copy of the name that outlives the kernel (base/activity.h); NULL: none yet, or `ours` */
    _Atomic(const char *) recorded_name;
} ds__kernel;

typedef struct ds__graph {
    ds__slot slot;
    ds__mutex lock; /* held across calls of the driver */
    ds__body *body;
    _Atomic int capturing; /* captures that make it */
    char *label;
    ds_site made;
} ds__graph;

typedef struct ds__exec {
    ds__slot slot;
    ds__mutex lock; /* held across calls of the driver */
    const ds__driver *driver;
    ds__body *body; /* what later launches do */
    void *native;
    unsigned flags;
    char *label;
    ds_site made;
} ds__exec;

#endif
