/* External operations, for the stand-in for NCCL: external.h has the rules. */
#include "core.h"
#include "external.h"

/* ---- operations and nodes ---- */

void si_external_hold(standin_external *e) {
    e->refs++;
}

void si_external_drop(standin_external *e) {
    if (!--e->refs)
        e->drop(e);
}

/* The operation is in no stream yet. */
op *si_external_op(standin_external *e, stream *s, int index) {
    op *o = si_new_op(OP_EXTERNAL, s, index);
    o->u.external.of = e;
    si_external_hold(e);
    for (size_t i = 0; i < e->buffer_count; i++)
        si_use_memory(o, e->buffers[i].address, e->buffers[i].size);
    o->refs++; /* until its end */
    o->u.external.put = e->put(e, o);
    return o;
}

/* Whether the operation, whose stream has come to it, has ended. */
int si_external_begin(op *o) {
    o->running = 1;
    return o->u.external.of->ready(o->u.external.put, sticky(o->device));
}

void si_external_over(op *o) {
    standin_external *e = o->u.external.of;
    if (o->u.external.put)
        e->over(o->u.external.put);
    si_external_drop(e);
}

void si_external_check(const char *call, const standin_external *e) {
    for (size_t i = 0; i < e->buffer_count; i++)
        if (!si_range_touching((uintptr_t)e->buffers[i].address, 1))
            si_fail_test("%s: memory of %s (%p) is freed", call, e->name, e->buffers[i].address);
}

/* ---- services ---- */

static int current_device(void) {
    int count, code = (int)cudaGetDeviceCount(&count);
    if (!code)
        code = si_context();
    return code ? -code : si_me.current;
}

static int device_error(int index) {
    return sticky(index);
}

static int device_count(void) {
    return si_config.devices;
}

/* NULL means the legacy stream of that device, whatever the thread's device is. */
static stream *stream_on(int index, cudaStream_t handle) {
    int before = si_me.current;
    si_me.current = index;
    stream *s = si_stream_of("an operation of NCCL", handle);
    si_me.current = before;
    return s;
}

static int put(int index, stream *s, standin_external *e) {
    int code = sticky(index);
    if (!code && s->device != index)
        code = cudaErrorInvalidResourceHandle;
    if (!code)
        code = si_capture_enqueue(s);
    if (code)
        return code;
    if (s->capture)
        si_capture_node(s, si_node_external(si_capture_graph(s), &s->deps, e, index));
    else
        si_submit_external(si_external_op(e, s, index));
    return 0;
}

static int submit(int index, cudaStream_t handle, standin_external *e) {
    int code = si_me.in_host_function ? (int)cudaErrorNotPermitted : si_config.error;
    lock();
    if (!code && !si_null())
        code = put(index, stream_on(index, handle), e);
    si_external_drop(e);
    unlock();
    return code;
}

static void end(void *task) {
    lock();
    si_end_external(task);
    unlock();
}

static int look(int index, const void *address, size_t size) {
    lock();
    int seen = si_look_at((uintptr_t)address, size, index);
    unlock();
    return seen;
}

static char *reach(const void *address, size_t *size) {
    char *memory = NULL;
    lock();
    range *r = si_range_touching((uintptr_t)address, 1);
    if (r) {
        size_t offset = (uintptr_t)address - r->start;
        memory = r->memory + offset;
        if (*size > r->size - offset)
            *size = r->size - offset;
    }
    unlock();
    return memory;
}

static int captures(int index, cudaStream_t handle) {
    lock();
    int is = stream_on(index, handle)->capture != NULL;
    unlock();
    return is;
}

const standin_services *standin_get_services(void) {
    static const standin_services services = { current_device, device_error, device_count,
                                               submit,         end,          look,
                                               reach,          captures,     cudaMalloc,
                                               cudaFree };
    return &services;
}
