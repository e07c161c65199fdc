/* api_pools.c - steps of the API fuzzer: pools, checkpoints, resources. */
#include "api.h"

/* ---- pools ---- */

/* Memory of the device from the driver; sometimes there is none. */
static void *upstream_alloc(ptrdiff_t size, int device, void *stream) {
    static _Atomic unsigned calls;
    void *ptr = NULL;
    (void)stream;
    if (size <= 0)
        die("an upstream is asked for nothing");
    ds_device where = ds_backend_is_available(DS_DEVICE_CUDA) ? ds_cuda(device) : ds_cpu(device);
    if (++calls % 8 && CALL(ds_device_alloc(where, (size_t)size, &ptr)) < 0)
        ptr = NULL;
    return ptr;
}

static void upstream_free(void *ptr, ptrdiff_t size, int device, void *stream) {
    (void)size;
    (void)device;
    (void)stream;
    DS_IGNORE(ds_device_free(ptr));
}

static ds_resource any_resource(void);

static void step_pool_create(void) {
    ds_mem_config config = ds_mem_config_torch();
    ds_resource upstream = any_resource();
    ds_pool_desc desc = { .device = any_device(),
                          .config = odd() ? &config : NULL,
                          .use_on_oom = pick(2) != 0,
                          .no_split = odd(),
                          .shareable = odd(),
                          .limit = odd() ? any_size() : 0,
                          .label = any_text() };
    ds_pool pool;
    if (odd())
        desc.alloc_fn = upstream_alloc;
    if (desc.alloc_fn || odd())
        desc.free_fn = odd() ? NULL : upstream_free;
    if (desc.alloc_fn && ds_backend_is_available(DS_DEVICE_CUDA))
        desc.device = ds_cuda(0); /* the function must know the driver */
    else if (desc.alloc_fn)
        desc.device = ds_cpu(0);
    if (odd())
        desc.upstream = &upstream;
    if (odd())
        config.reserved[0] = byte() & 1;
    if (CALL_OUT(ds_pool_create(odd() ? NULL : &desc, MAYBE(pool)), pool) == DS_OK)
        keep_pool(pool);
}

static void step_pool(void) {
    ds_pool pool = any_pool();
    size_t released;
    uint64_t id[2];
    int count;
    switch (pick(7)) {
    case 0:
        CALL(ds_pool_destroy(pool));
        break;
    case 1:
        CALL(ds_pool_push(pool));
        break;
    case 2:
        CALL(ds_pool_pop());
        break;
    case 3:
        CALL(ds_capture_set_pool(any_stream(), pool));
        break;
    case 4:
        CALL_OUT(ds_pool_get_use_count(pool, MAYBE(count)), count);
        break;
    case 5:
        CALL_OUT(ds_pool_get_id(pool, MAYBE(id)), id);
        break;
    default:
        CALL_OUT(ds_pool_empty_cache(pool, MAYBE(released)), released);
    }
}

/* ---- checkpoints ---- */

static void changed_block(const ds_mem_block *block, void *user) {
    (void)user;
    if (block->state != DS_BLOCK_FREE && block->state != DS_BLOCK_LIVE)
        die("a restored block is neither free nor live");
}

/* Allocates, frees, saves and restores in a pool that nobody else has, since restoring frees blocks
   whoever holds them. */
static void step_checkpoint(void) {
    ds_stream stream = good_stream();
    ds_pool_checkpoint *saved = NULL;
    ds_device device;
    ds_pool pool;
    void *blocks[4] = { NULL };
    size_t count = 0;
    if (may_capture(stream) || CALL(ds_stream_get_device(stream, &device)) < 0 ||
        CALL(ds_pool_create(&(ds_pool_desc){ .device = device, .label = "saved" }, &pool)) < 0)
        return;
    for (unsigned left = pick(12); left > 0; left--) {
        unsigned i = pick(4);
        ds_mem_request request = { .size = small_size(), .stream = stream, .pool = pool };
        switch (pick(6)) {
        case 0:
        case 1:
            CALL(ds_mem_alloc_with(&request, &blocks[i]));
            break;
        case 2:
            CALL(ds_mem_free(blocks[i]));
            blocks[i] = NULL;
            break;
        case 3:
            CALL_VOID(ds_pool_checkpoint_destroy(saved));
            CALL_OUT(ds_pool_save(pool, &saved), saved);
            break;
        case 4:
            CALL(ds_pool_restore(odd() ? any_pool() : pool, saved, odd() ? NULL : changed_block,
                                 NULL));
            count = 1;
            break;
        default:
            CALL(ds_pool_check_live(pool, odd() ? NULL : blocks, pick(5)));
        }
        if (count)
            break;
    }
    CALL_VOID(ds_pool_checkpoint_destroy(saved));
    CALL(ds_pool_destroy(pool));
}

/* ---- resources ---- */

static ds_resource resources[16];
static unsigned next_resource;
static pthread_mutex_t resource_lock = PTHREAD_MUTEX_INITIALIZER;

/* One of the latest, ended ones too. */
static ds_resource any_resource(void) {
    unsigned how = byte();
    pthread_mutex_lock(&resource_lock);
    ds_resource resource = resources[how % (next_resource < 16 ? next_resource + 1 : 16)];
    if (how < 160 && next_resource > 3)
        resource = resources[(next_resource - 1 - (how & 3)) & 15];
    pthread_mutex_unlock(&resource_lock);
    if (how >= 248)
        resource.alloc_fn = NULL;
    else if (how >= 240)
        resource.user = (void *)(uintptr_t)number(8);
    return resource;
}

static void keep_resource(ds_resource resource) {
    pthread_mutex_lock(&resource_lock);
    resources[next_resource++ & 15] = resource;
    pthread_mutex_unlock(&resource_lock);
}

static ds_result own_alloc(void *user, size_t size, size_t alignment, ds_stream stream,
                           void **out) {
    (void)user;
    (void)alignment;
    (void)stream;
    return CALL(ds_pinned_alloc(size, out));
}

static ds_result own_free(void *user, void *ptr, size_t size, ds_stream stream) {
    (void)user;
    (void)size;
    (void)stream;
    return CALL(ds_pinned_free(ptr));
}

static int ask_again(size_t size, void *user) {
    static _Atomic unsigned calls;
    (void)user;
    if (!size)
        die("no memory for nothing");
    return ++calls % 4 == 0;
}

void furnish_resources(void) {
    ds_resource made;
    if (ds_resource_create_device(good_device(), &made) == DS_OK)
        keep_resource(made);
    if (ds_resource_create_stats(&made, &made) == DS_OK)
        keep_resource(made);
    if (ds_resource_create_pool((ds_pool){ 0 }, &made) == DS_OK)
        keep_resource(made);
}

static void step_resource_make(void) {
    ds_resource upstream = any_resource(), made;
    const ds_resource *up = odd() ? NULL : &upstream;
    ds_result result;
    switch (pick(9)) {
    case 0:
        result = CALL_OUT(ds_resource_create_device(any_device(), MAYBE(made)), made);
        break;
    case 1:
        result = CALL_OUT(ds_resource_create_pool(any_pool(), MAYBE(made)), made);
        break;
    case 2:
        result = CALL_OUT(ds_resource_create_driver_pool(MAYBE(made)), made);
        break;
    case 3:
        result = CALL_OUT(ds_resource_create_functions(odd() ? NULL : own_alloc,
                                                       odd() ? NULL : own_free, NULL, MAYBE(made)),
                          made);
        break;
    case 4:
        result = CALL_OUT(ds_resource_create_limit(up, any_size(), MAYBE(made)), made);
        break;
    case 5:
        result = CALL_OUT(ds_resource_create_stats(up, MAYBE(made)), made);
        break;
    case 6:
        result = CALL_OUT(ds_resource_create_log(up, odd() ? NULL : write_text, NULL, MAYBE(made)),
                          made);
        break;
    case 7:
        result = CALL_OUT(
            ds_resource_create_on_failure(up, odd() ? NULL : ask_again, NULL, MAYBE(made)), made);
        break;
    default:
        result =
            CALL_OUT(ds_resource_create_aligned(up, any_size(), small_size(), MAYBE(made)), made);
    }
    if (result == DS_OK)
        keep_resource(made);
}

/* Frees with the same numbers, as the functions demand. */
static void step_resource_alloc(void) {
    ds_resource resource = any_resource();
    ds_stream stream = any_stream();
    size_t size = any_size();
    void *ptr;
    ds_result result = CALL_OUT(ds_resource_alloc(odd() ? NULL : &resource, size,
                                                  odd() ? small_size() : 0, stream, MAYBE(ptr)),
                                ptr);
    if (result == DS_OK && !odd())
        CALL(ds_resource_free(&resource, ptr, size, stream));
}

static void step_resource(void) {
    ds_resource resource = any_resource();
    ds_resource_stats stats;
    switch (pick(5)) {
    case 0:
        CALL(ds_resource_get_stats(&resource, odd() ? NULL : &stats));
        break;
    case 1:
        CALL(ds_resource_push_stats(odd() ? NULL : &resource));
        break;
    case 2:
        CALL(ds_resource_pop_stats(&resource, odd() ? NULL : &stats));
        break;
    case 3:
        CALL(ds_resource_destroy(odd() ? NULL : &resource));
        break;
    default:
        CALL(ds_resource_free(&resource, NULL, small_size(), any_stream()));
    }
}

static const step_fn steps[] = { step_pool_create,    step_pool,          step_pool,
                                 step_checkpoint,     step_resource_make, step_resource_make,
                                 step_resource_alloc, step_resource };
const step_group pool_steps = { steps, COUNT(steps) };
