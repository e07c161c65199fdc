/* runtime.cpp - the device type custom_cpu for PaddlePaddle, on the CPU devices of devstream.

   Fills the table of functions that Paddle calls: C_DeviceInterface in device_ext.h, with devices,
   streams, events, memory, copies and callbacks. kernels.cpp has the operators.

   Handles: Paddle stores streams and events as pointers. The 64 bits of a devstream handle are the
   pointer, so no object is allocated for it.
   Memory: device memory is from devstream's caching allocator, host memory is pinned.
   Errors: Paddle's exception only has the status. DEVSTREAM_LOG=1 prints the reason.
   Threads: Paddle calls on any thread. The current device is per thread here and there. */
#include "paddle/phi/backends/device_ext.h"

#include "custom_cpu.h"

namespace {

C_Status status_of(ds_result result) {
    if (result == DS_OK)
        return C_SUCCESS;
    if (result == DS_NOT_READY)
        return C_WARNING; /* to a query of Paddle, any status but success means "pending" */
    if (result == DS_ERR_OUT_OF_MEMORY || result == DS_ERR_LIMIT_EXCEEDED)
        return C_FAILED;
    return C_ERROR;
}

ds_device device_of(C_Device device) {
    return ds_cpu(device->id);
}

ds_event event_of(C_Event event) {
    return ds_event{ reinterpret_cast<uint64_t>(event) };
}

/* ---- devices --------------------------------------------------------------------------------- */

C_Status device_get_count(size_t *count) {
    int devices = 0;
    ds_result result = ds_device_get_count(DS_DEVICE_CPU, &devices);
    *count = static_cast<size_t>(devices);
    return status_of(result);
}

C_Status device_get_list(size_t *list) {
    size_t count = 0;
    C_Status status = device_get_count(&count);
    for (size_t i = 0; i < count; i++)
        list[i] = i;
    return status;
}

C_Status device_set(C_Device device) {
    return status_of(ds_device_set_current(device_of(device)));
}

C_Status device_get(C_Device device) {
    ds_device current = {};
    ds_result result = ds_device_get_current(&current);
    device->id = current.index;
    return status_of(result);
}

C_Status device_synchronize(C_Device device) {
    return status_of(ds_device_synchronize(device_of(device)));
}

/* Paddle unloads this library after the call, so no thread may remain in it. */
C_Status runtime_finalize() {
    return status_of(ds_shutdown());
}

/* ---- streams and events ---------------------------------------------------------------------- */

/* Paddle's table has no argument for the priority. */
C_Status stream_create(C_Device device, C_Stream *out) {
    ds_stream_desc desc = ds_stream_desc_paddle();
    desc.device = device_of(device);
    ds_stream stream = {};
    ds_result result = ds_stream_create(&desc, &stream);
    *out = reinterpret_cast<C_Stream>(stream.id);
    return status_of(result);
}

C_Status stream_destroy(C_Device, C_Stream stream) {
    return status_of(ds_stream_destroy(stream_of(stream)));
}

C_Status stream_query(C_Device, C_Stream stream) {
    return status_of(ds_stream_query(stream_of(stream)));
}

C_Status stream_synchronize(C_Device, C_Stream stream) {
    return status_of(ds_stream_synchronize(stream_of(stream)));
}

C_Status stream_wait_event(C_Device, C_Stream stream, C_Event event) {
    return status_of(ds_stream_wait_event(stream_of(stream), event_of(event)));
}

struct Callback {
    C_Device_st device;
    C_Callback function;
    void *user_data;
};

void callback_run(ds_stream stream, ds_result result, void *user) {
    Callback *callback = static_cast<Callback *>(user);
    C_Status status = status_of(result);
    callback->function(&callback->device, reinterpret_cast<C_Stream>(stream.id),
                       callback->user_data, &status);
}

void callback_free(void *user) {
    delete static_cast<Callback *>(user);
}

C_Status stream_add_callback(C_Device device, C_Stream stream, C_Callback function,
                             void *user_data) {
    Callback *callback = new Callback{ *device, function, user_data };
    return status_of(
        ds_stream_add_callback(stream_of(stream), callback_run, callback, callback_free));
}

C_Status event_create(C_Device, C_Event *out) {
    ds_event event = {};
    ds_result result = ds_event_create(DS_EVENT_DEFAULT, nullptr, &event);
    *out = reinterpret_cast<C_Event>(event.id);
    return status_of(result);
}

C_Status event_destroy(C_Device, C_Event event) {
    return status_of(ds_event_destroy(event_of(event)));
}

C_Status event_record(C_Device, C_Stream stream, C_Event event) {
    return status_of(ds_event_record(event_of(event), stream_of(stream)));
}

C_Status event_query(C_Device, C_Event event) {
    return status_of(ds_event_query(event_of(event)));
}

C_Status event_synchronize(C_Device, C_Event event) {
    return status_of(ds_event_synchronize(event_of(event)));
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Paddle's own allocator takes chunks of memory by these two functions. They name no stream, so the
   chunks belong to the legacy stream. If memory is short, Paddle expects success and NULL: then it
   frees idle chunks and tries again. */
C_Status memory_alloc(C_Device device, void **out, size_t size) {
    *out = nullptr;
    ds_stream legacy = {};
    ds_result result = ds_stream_get_legacy(device_of(device), &legacy);
    if (result == DS_OK)
        result = ds_mem_alloc(size, legacy, out);
    C_Status status = status_of(result);
    return status == C_FAILED ? C_SUCCESS : status;
}

/* Waits as cudaFree does, since any stream may have used the chunk. Paddle frees chunks only if
   memory is short, in empty_cache and at the end. */
C_Status memory_free(C_Device device, void *ptr, size_t) {
    ds_result result = ds_device_synchronize(device_of(device));
    ds_result freed = ds_mem_free(ptr);
    return status_of(result < 0 ? result : freed);
}

C_Status host_alloc(C_Device, void **out, size_t size) {
    return status_of(ds_mem_pinned_alloc(size, out));
}

C_Status host_free(C_Device device, void *ptr, size_t) {
    ds_result result = ds_device_synchronize(device_of(device));
    ds_result freed = ds_mem_pinned_free(ptr);
    return status_of(result < 0 ? result : freed);
}

C_Status memory_set(C_Device, void *ptr, unsigned char value, size_t size) {
    return status_of(ds_fill_sync(ptr, value, 1, size));
}

/* devstream knows the device of a pointer, so one function serves all directions. Before a copy
   without a stream, Paddle waits for its current stream. */
C_Status copy_sync(C_Device, void *dst, const void *src, size_t size) {
    return status_of(ds_copy_sync(dst, src, size));
}

C_Status copy_async(C_Device, C_Stream stream, void *dst, const void *src, size_t size) {
    return status_of(ds_copy(dst, src, size, stream_of(stream)));
}

C_Status copy_peer(C_Device, C_Device, void *dst, const void *src, size_t size) {
    return status_of(ds_copy_sync(dst, src, size));
}

C_Status copy_peer_async(C_Device dst_device, C_Device src_device, C_Stream stream, void *dst,
                         const void *src, size_t size) {
    return status_of(ds_copy_peer(dst, device_of(dst_device), src, device_of(src_device), size,
                                  stream_of(stream)));
}

C_Status memory_stats(C_Device device, size_t *total, size_t *free) {
    return status_of(ds_device_get_memory_info(device_of(device), free, total));
}

/* ds_mem_alloc aligns to 512 bytes. */
C_Status chunk_min(C_Device, size_t *size) {
    *size = 512;
    return C_SUCCESS;
}

C_Status chunk_max(C_Device, size_t *size) {
    *size = size_t{ 64 } << 20;
    return C_SUCCESS;
}

} // namespace

/* Paddle calls this function after it has loaded the library. NULL fields are optional. */
extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams *params) {
    PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
    static char type[] = "custom_cpu";
    params->device_type = type;
    params->sub_device_type = type;

    C_DeviceInterface *table = params->interface;
    memset(table, 0, sizeof *table);
    table->size = sizeof *table;
    table->finalize = runtime_finalize;
    table->get_device_count = device_get_count;
    table->get_device_list = device_get_list;
    table->set_device = device_set;
    table->get_device = device_get;
    table->synchronize_device = device_synchronize;

    table->create_stream = stream_create;
    table->destroy_stream = stream_destroy;
    table->query_stream = stream_query;
    table->synchronize_stream = stream_synchronize;
    table->stream_wait_event = stream_wait_event;
    table->stream_add_callback = stream_add_callback;
    table->create_event = event_create;
    table->destroy_event = event_destroy;
    table->record_event = event_record;
    table->query_event = event_query;
    table->synchronize_event = event_synchronize;

    table->device_memory_allocate = memory_alloc;
    table->device_memory_deallocate = memory_free;
    table->host_memory_allocate = host_alloc;
    table->host_memory_deallocate = host_free;
    table->device_memory_set = memory_set;
    table->memory_copy_h2d = copy_sync;
    table->memory_copy_d2h = copy_sync;
    table->memory_copy_d2d = copy_sync;
    table->memory_copy_p2p = copy_peer;
    table->async_memory_copy_h2d = copy_async;
    table->async_memory_copy_d2h = copy_async;
    table->async_memory_copy_d2d = copy_async;
    table->async_memory_copy_p2p = copy_peer_async;
    table->device_memory_stats = memory_stats;
    table->device_min_chunk_size = chunk_min;
    table->device_max_chunk_size = chunk_max;
}
