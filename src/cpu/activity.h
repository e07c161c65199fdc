/* cpu/activity.h - records of operations, and the paths of operations with notes.

   Writes records of activity (base/activity.h). An operation that is recorded has a note before it
   in the queue (ds__cpu_put_noted). The thread that runs it reads the clock before and after
   (ds__cpu_noted_begin, ds__cpu_noted_end), and writes the record before the operation is passed.
   These paths also handle the notes of the virtual clock, so that the usual paths test one word
   (ds__cpu.modes).

   Invariants: a note and its operation are enqueued together or not at all. Operations of lanes
   have no notes. A record is written before a wait for its operation returns.
   Locks: ds__cpu_put_noted expects the stream's put lock.
   Threads: submitters, and owners of streams. ds__cpu_activity_set is called by the thread that
   starts or ends a recording. */
#ifndef DS__CPU_ACTIVITY_H
#define DS__CPU_ACTIVITY_H

#include "../base/activity.h"
#include "types.h"
#include "failure.h"
#include "queue.h"
#include "clock.h"
#include "run.h"
#include "submit.h"

/* Keeps the id of an operation that was enqueued: after `submitted`, so that a thread that reads
   the id first and then `submitted` gets a number that includes the operation. The put lock is
   held. */
static void ds__cpu_last_set(ds__cpu_stream *s, const ds__op *op, uint64_t id) {
    if (op->kind != DS__OP_RECORD)
        atomic_store_explicit(&s->last_id, id, memory_order_release);
}

/* Enqueues an operation with the notes that it needs. The put lock is held. */
__attribute__((noinline)) static ds_result ds__cpu_put_noted(ds__cpu_stream *s, const ds__op *op) {
    ds__activity_note note;
    if (ds__cpu.fabric) {
        ds_result r = ds__cpu_put_clock(s);
        if (r < 0)
            return r;
    }
    if (s->kind == DS__STREAM_LANE || !ds__activity_note_begin(op, &note))
        return ds__cpu_put_plain(s, op);

    /* in place: a whole operation on the stack would be cleared first */
    size_t head_bytes = DS__CPU_NOTE_BYTES;
    char *at = ds__cpu_room(s, head_bytes + ds__cpu_op_bytes(op));
    if (!at) {
        ds__activity_cancel(&note);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to queue the operation");
    }
    ds__op *head = (ds__op *)(void *)at;
    head->kind = DS__CPU_OP_NOTE;
    head->line = note.thread;
    head->file = note.call;
    head->u.note.correlation_id = note.correlation_id;
    head->u.note.external_id = note.external_id;
    head->u.note.enqueue_time = note.enqueue_time;
    head->u.note.cause = note.cause;
    ds__cpu_fill_room((ds__op *)(void *)(at + head_bytes), op);
    /* as in ds__cpu_put_plain */
    atomic_store_explicit(&s->submitted,
                          atomic_load_explicit(&s->submitted, memory_order_relaxed) + 2,
                          memory_order_release);
    ds__cpu_last_set(s, op, note.correlation_id);
    return DS_OK;
}

/* Writes the record of an operation that ends now. f: the failure because of which it failed or did
   not run, or NULL. */
static void ds__cpu_note_write(const ds__cpu_stream *s, const ds__op *op, ds__activity_note *note,
                               const ds__cpu_failure *f) {
    ds_activity a = ds__activity_record(op, note, DS_DEVICE_CPU);
    a.result = f ? f->code : DS_OK;
    a.stream.id = ds__cpu_handle(s);
    a.device = ds_cpu(s->device);
    a.end_ns = ds__activity_clock();
    ds__activity_write(&a, note);
}

/* Takes the note of the next operation. */
static void ds__cpu_note_take(ds__cpu_stream *s, const ds__op *op) {
    s->note = (ds__activity_note){ .correlation_id = op->u.note.correlation_id,
                                   .external_id = op->u.note.external_id,
                                   .enqueue_time = op->u.note.enqueue_time,
                                   .cause = op->u.note.cause,
                                   .call = op->file,
                                   .thread = op->line };
}

/* Returns 1 if the operation is a node of a launch, and nodes have records. */
static int ds__cpu_is_node(const ds__cpu_stream *s, const ds__op *op) {
    return s->kind == DS__STREAM_LANE &&
           atomic_load_explicit(&ds__activity.nodes, memory_order_relaxed) &&
           ds__activity_kind_of(op) != DS_ACTIVITY_NONE;
}

/* Writes the record of a node that ends now, if its launch has a note. */
static void ds__cpu_node_write(ds__cpu_stream *s, const ds__op *op, const ds__cpu_failure *f) {
    uint64_t stream = 0;
    uint64_t launch = ds__cpu_launch_id(s, &stream);
    if (launch) {
        ds_activity a = ds__activity_record(op, &s->note, DS_DEVICE_CPU);
        if (!a.name)
            a.name = ds__activity_kind_name(a.kind);
        a.kind = (ds_activity_kind)DS__ACTIVITY_NODE;
        a.result = f ? f->code : DS_OK;
        a.stream.id = stream;
        a.device = ds_cpu(s->device);
        a.end_ns = ds__activity_clock();
        a.enqueue_ns = a.begin_ns;
        a.cause_id = launch;
        ds__activity_write(&a, NULL);
    }
}

/* Writes the record of a short launch in place. Each member is set, since clearing the whole record
   first takes longer than all the rest. */
static inline void ds__cpu_short_write(const ds__cpu_stream *s, const ds__op *note,
                                       const ds__op *op, ds_activity *a) {
    a->kind = DS_ACTIVITY_KERNEL;
    a->result = DS_OK;
    a->stream.id = ds__cpu_handle(s);
    a->device = ds_cpu(s->device);
    a->enqueue_ns = note->u.note.enqueue_time;
    a->bytes = 0;
    a->count = 1;
    a->correlation_id = note->u.note.correlation_id;
    a->external_id = note->u.note.external_id;
    a->name = ds__activity_name(op->u.kernel.kernel);
    a->call = note->file;
    a->file = op->file;
    a->line = op->file ? op->line : 0;
    a->thread = note->line;
    a->dst_device = a->src_device = (ds_device){ 0 };
    a->cause_id = 0;
    for (size_t i = 0; i < sizeof a->reserved / sizeof a->reserved[0]; i++)
        a->reserved[i] = 0;
}

/* Runs and passes a short launch with its note, and writes its record. *time: the end of the
   operation before, which is the begin of this one if it was enqueued by then; 0: not known. The
   end may be read a little early, which cannot contradict an order. */
static void ds__cpu_run_short_noted(ds__cpu_stream *s, const ds__op *note, const ds__op *op,
                                    uint64_t number, uint64_t *time) {
    uint64_t begin = *time >= note->u.note.enqueue_time ? *time : ds__activity_clock();
    int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
    if (DS__UNLIKELY(status != 0))
        ds__cpu_kernel_failed(s, op, status, number);
    uint64_t end = ds__activity_clock_early();
    *time = end;
    (void)ds__activity_name(op->u.kernel.kernel); /* its first call takes the lock */
    ds_activity *place = ds__activity_place();
    if (DS__LIKELY(place != NULL)) {
        ds__cpu_short_write(s, note, op, place);
        place->begin_ns = begin;
        place->end_ns = end;
        if (DS__UNLIKELY(status != 0))
            place->result = ds__cpu_failed(s, number)->code;
    }
    ds__activity_placed(place, note->u.note.correlation_id);
    s->head_at += (uint32_t)(DS__CPU_NOTE_BYTES + ds__cpu_op_bytes(op));
    ds__cpu_pass_short(s, number);
}

/* Takes the note of the next operation. If that is a short launch, runs it at once and returns 1:
   also the operation has passed. number: of the note. No thread waits for the number of a note, so
   no barrier is needed. */
__attribute__((noinline)) static int ds__cpu_run_note(ds__cpu_stream *s, const ds__op *note,
                                                      uint64_t number, uint64_t *time) {
    const ds__op *op = (const ds__op *)(const void *)((const char *)note + DS__CPU_NOTE_BYTES);
    if (op->kind == DS__OP_KERNEL && op->u.kernel.items == 1 && (number & 511u) != 1 &&
        ds__cpu_modes(DS__CPU_SLOWLY) == DS__CPU_NOTED && ds__cpu_is_known_short(s, op)) {
        ds__cpu_run_short_noted(s, note, op, number + 1, time);
        return 1;
    }
    ds__cpu_note_take(s, note);
    s->head_at += DS__CPU_NOTE_BYTES;
    atomic_store_explicit(&s->done, number, memory_order_release);
    return 0;
}

/* Does what precedes an operation: reads the clock for an operation with a note.
   An operation begins when its stream first comes to it, but a host function when its thread
   does. */
__attribute__((noinline)) static void ds__cpu_noted_begin(ds__cpu_stream *s, const ds__op *op) {
    int is_host = op->kind == DS__OP_HOST || op->kind == DS__OP_CALLBACK;
    if ((s->note.correlation_id || ds__cpu_is_node(s, op)) && (is_host || !s->note.begin_time))
        s->note.begin_time = ds__activity_clock();
}

/* Does what follows a complete operation, before it is passed: writes its record, and sets the
   virtual time of the stream. */
__attribute__((noinline)) static void ds__cpu_noted_end(ds__cpu_stream *s, const ds__op *op,
                                                        uint64_t number) {
    if (s->note.correlation_id)
        ds__cpu_note_write(s, op, &s->note, ds__cpu_failed(s, number));
    else if (s->note.begin_time)
        ds__cpu_node_write(s, op, ds__cpu_failed(s, number));
    s->note.begin_time = 0; /* the next operation may have no note */
    if (s->virt) {
        (void)ds__cpu_values_look(s->virt->time);
        ds__cpu_virtual_pass(s);
    }
}

/* Runs a small copy or fill on the caller's thread like ds__cpu_run_small, and records it. Returns
   0 if it did not run. */
__attribute__((noinline)) static int ds__cpu_at_once_noted(ds__cpu_stream *s, const ds__op *op) {
    ds__activity_note note;
    /* with DS__CPU_UNREACHABLE, the path of all operations opens and closes the memory */
    if (ds__cpu_modes(DS__CPU_ORDERED | DS__CPU_UNREACHABLE))
        return 0;
    int noted = ds__activity_note_begin(op, &note);
    int ran = ds__cpu_run_small(s, op, noted ? &note : NULL);
    if (noted && !ran)
        ds__activity_cancel(&note);
    return ran;
}

static uint64_t ds__cpu_activity_last(const void *object, int is_event) {
    const ds__cpu_stream *s = object;
    return is_event ? ((const ds__cpu_event *)object)->cause : atomic_load(&s->last_id);
}

#define DS__CPU_RACES __attribute__((no_sanitize("thread"), no_sanitize("address")))

/* Copies bytes that another thread may change; memcpy would be checked. */
DS__CPU_RACES static void ds__cpu_standing_copy(void *to, const void *from, size_t size) {
    for (size_t i = 0; i < size; i++)
        ((volatile char *)to)[i] = ((const volatile char *)from)[i];
}

/* Copies the next operation of a stream, behind its note, and the note. Returns 0 if there is none,
   or if the stream went on meanwhile: then it does not stand. The owner may run the stream: the
   race is meant to be one, and memory of queues stays readable until the driver stops. */
DS__CPU_RACES static int ds__cpu_standing_read(ds__cpu_stream *s, ds__op *op,
                                               ds__activity_note *note) {
    uint64_t done = atomic_load(&s->done);
    const ds__cpu_block *block = s->head;
    if (done >= atomic_load(&s->submitted) || !block)
        return 0;
    const char *at = block->data + s->head_at;
    if (((const ds__op *)(const void *)at)->kind == DS__OP_JUMP && block->next)
        at = block->next->data;
    ds__cpu_standing_copy(note, &s->note, sizeof *note);
    ds__cpu_standing_copy(op, at, DS__CPU_NOTE_BYTES);
    if (op->kind == DS__CPU_OP_NOTE) {
        *note = (ds__activity_note){ .correlation_id = op->u.note.correlation_id,
                                     .external_id = op->u.note.external_id,
                                     .enqueue_time = op->u.note.enqueue_time,
                                     .cause = op->u.note.cause,
                                     .call = op->file,
                                     .thread = op->line };
        at += DS__CPU_NOTE_BYTES;
        ds__cpu_standing_copy(op, at, DS__CPU_NOTE_BYTES);
    }
    size_t bytes = op->kind <= DS__CPU_OP_NOTE ? ds__cpu_op_bytes(op) : 0;
    ds__cpu_standing_copy(op, at, bytes < sizeof *op ? bytes : sizeof *op);
    return atomic_load(&s->done) == done && note->correlation_id &&
           ds__activity_kind_of(op) != DS_ACTIVITY_NONE;
}

/* Makes the record of the operation at which a stream stands. Returns 0 if it has none. */
static int ds__cpu_standing_get(ds__cpu_stream *s, ds__activity_standing *out) {
    ds__op op;
    ds__activity_note note;
    ds__clock_line line = { .rate = 0 };
    memset(&op, 0, sizeof op);
    if (!ds__cpu_standing_read(s, &op, &note))
        return 0;
    out->record = ds__activity_record(&op, &note, DS_DEVICE_CPU);
    out->record.begin_ns = ds__activity_ns(&line, note.begin_time);
    out->record.enqueue_ns = ds__activity_ns(&line, note.enqueue_time);
    out->record.stream.id = ds__cpu_handle(s);
    out->record.device = ds_cpu(s->device);
    out->on = op.kind == DS__OP_WAIT ? ((ds__cpu_stream *)op.u.wait.stream)->handle : 0;
    return 1;
}

static size_t ds__cpu_activity_standing(ds__activity_standing *out, size_t room) {
    size_t count = 0;
    for (int i = 0; i < ds__cpu.devices; i++) {
        ds__cpu_device *d = &ds__cpu.device[i];
        ds__spinlock_lock(&d->lock);
        for (ds__cpu_stream *s = d->streams; s && count < room; s = s->all_next)
            if (s->kind != DS__STREAM_LANE)
                count += (size_t)ds__cpu_standing_get(s, &out[count]);
        ds__spinlock_unlock(&d->lock);
    }
    return count;
}

static void ds__cpu_activity_set(int on) {
    if (on)
        atomic_fetch_or(&ds__cpu.modes, (unsigned)DS__CPU_NOTED);
    else
        atomic_fetch_and(&ds__cpu.modes, ~(unsigned)DS__CPU_NOTED);
}

/* Writes nothing: records are complete when their operations are. */
static int ds__cpu_activity_collect(void) {
    return 0;
}

#endif
