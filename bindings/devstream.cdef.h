/* Declarations of devstream without macros, attributes and bodies, for cffi and other generators of
   bindings. In C, #include <stddef.h> and <stdint.h> first. Call ds_ functions in a shared library:
   each declared function is a symbol of it.
   Generated from single/devstream.h by `make headers`. Edit the files in src/, not this one. */
#define DEVSTREAM_VERSION_MAJOR 0
#define DEVSTREAM_VERSION_MINOR 1
#define DEVSTREAM_VERSION_PATCH 0
#define DS_DEVICE_NAME_SIZE 32
#define DS_BACKEND_COUNT 2
#define DS_CLOSURE_PAYLOAD_MAX 256
#define DS_DTYPE_NAME_SIZE 32
#define DS_KERNEL_MAX_PARAMS 256
#define DS_KERNEL_MAX_ARGS 4096
#define DS_CPU_MAX_DEVICES 160
#define DS_CPU_MAX_SPIN_NS 1000000000
#define DS_TENSOR_MAX_DIMS 64
#define DS_DLPACK_MAJOR 1
#define DS_DLPACK_MINOR 1
#define DS_RNG_STATE_SIZE 16
#define DS_RANKS_ID_SIZE 264
typedef enum ds_result {
    DS_OK = 0,
    DS_NOT_READY = 1,
    DS_ERR_INVALID_VALUE = -1,
    DS_ERR_INVALID_HANDLE = -2,
    DS_ERR_INVALID_DEVICE = -3,
    DS_ERR_NO_DEVICE = -4,
    DS_ERR_DEVICE_RANGE = -5,
    DS_ERR_DEVICE_MISMATCH = -6,
    DS_ERR_OUT_OF_MEMORY = -7,
    DS_ERR_LIMIT_EXCEEDED = -8,
    DS_ERR_UNSUPPORTED = -9,
    DS_ERR_NOT_PERMITTED = -10,
    DS_ERR_ILLEGAL_STATE = -11,
    DS_ERR_NOT_RECORDED = -12,
    DS_ERR_NO_TIMING = -13,
    DS_ERR_FAILED = -14,
    DS_ERR_FORKED = -15,
    DS_ERR_CROSS_DRIVER = -16,
    DS_ERR_DRIVER = -17,
    DS_ERR_SYSTEM = -18,
    DS_ERR_CAPTURE_UNSUPPORTED = -19,
    DS_ERR_CAPTURE_INVALIDATED = -20,
    DS_ERR_CAPTURE_MERGE = -21,
    DS_ERR_CAPTURE_UNMATCHED = -22,
    DS_ERR_CAPTURE_UNJOINED = -23,
    DS_ERR_CAPTURE_ISOLATION = -24,
    DS_ERR_CAPTURE_IMPLICIT = -25,
    DS_ERR_CAPTURED_EVENT = -26,
    DS_ERR_CAPTURE_WRONG_THREAD = -27,
    DS_ERR_GRAPH_UPDATE = -28,
    DS_ERR_PEER_DIED = -29,
    DS_ERR_WOULD_SYNCHRONIZE = -30,
    DS_ERR_TIMEOUT = -31,
    DS_ERR_ABORTED = -32,
    DS_ERR_MISMATCH = -33,
    DS_RESULT_FORCE_INT_ = 0x7fffffff
} ds_result;
typedef struct ds_site {
    const char *file;
    int line;
} ds_site;
const char *ds_result_get_name(ds_result result);
const char *ds_result_get_text(ds_result result);
const char *ds_error_get_last(void);
typedef struct ds_check_item {
    ds_result result;
    const char *text;
    const char *file;
    int line;
    const char *error;
} ds_check_item;
typedef void (*ds_check_fn)(const ds_check_item *item, void *user);
void ds_check_set_handler(ds_check_fn fn, void *user);
void ds_check_report(ds_result result, const char *text, const char *file, int line);
typedef enum ds_log_level {
    DS_LOG_SILENT = 0,
    DS_LOG_ERROR = 1,
    DS_LOG_WARNING = 2
} ds_log_level;
typedef struct ds_log_item {
    ds_log_level level;
    int id;
    const char *text;
    const char *file;
    int line;
} ds_log_item;
typedef void (*ds_log_fn)(const ds_log_item *item, void *user);
typedef struct ds_allocator {
    void *(*alloc_fn)(size_t size, void *user);
    void (*free_fn)(void *ptr, void *user);
    void *user;
} ds_allocator;
struct ds_cpu_desc;
enum {
    DS_INIT_PER_THREAD_DEFAULT_STREAM = 1,
    DS_INIT_NO_CUDA = 2
};
typedef struct ds_init_desc {
    const struct ds_cpu_desc *cpu;
    const char *layers;
    const char *fault;
    ds_log_fn log_fn;
    void *log_user;
    ds_log_level log_level;
    ds_allocator allocator;
    unsigned flags;
    const char *device;
    const char *check;
    const char *trace;
    uint64_t reserved[5];
} ds_init_desc;
int ds_version_get(void);
ds_result ds_init(const ds_init_desc *desc);
ds_result ds_shutdown(void);
ds_result ds_quiesce(void);
typedef enum ds_sync_debug_mode {
    DS_SYNC_DEBUG_DEFAULT = 0,
    DS_SYNC_DEBUG_WARN = 1,
    DS_SYNC_DEBUG_ERROR = 2
} ds_sync_debug_mode;
ds_result ds_sync_debug_set_mode(ds_sync_debug_mode mode);
ds_result ds_sync_debug_set_mode_text(const char *text);
ds_result ds_sync_debug_get_mode(ds_sync_debug_mode *out);
uintptr_t ds_handle_to_number(uint64_t id);
uint64_t ds_handle_from_number(uintptr_t number);
typedef enum ds_device_type {
    DS_DEVICE_CURRENT = 0,
    DS_DEVICE_HOST = 1,
    DS_DEVICE_CUDA = 2,
    DS_DEVICE_CPU = 12
} ds_device_type;
typedef struct ds_device {
    int32_t type;
    int32_t index;
} ds_device;
typedef struct ds_backend_info {
    const char *name;
    ds_device_type type;
    int available;
    int device_count;
    char reason[192];
    uint64_t reserved[4];
} ds_backend_info;
ds_result ds_backend_get_info(int index, ds_backend_info *out);
ds_result ds_backend_format(char *out, size_t size);
int ds_backend_is_available(ds_device_type type);
int ds_is_initialized(void);
ds_result ds_backend_format_arch_list(ds_device_type type, char *out, size_t size);
typedef struct ds_device_properties {
    char name[128];
    int major;
    int minor;
    size_t total_memory;
    int multiprocessors;
    unsigned char uuid[16];
    char pci[20];
    int unified_addressing;
    uint64_t reserved[16];
} ds_device_properties;
typedef enum ds_attribute {
    DS_ATTR_MAX_THREADS_PER_BLOCK = 1,
    DS_ATTR_MAX_BLOCK_X = 2,
    DS_ATTR_MAX_BLOCK_Y = 3,
    DS_ATTR_MAX_BLOCK_Z = 4,
    DS_ATTR_MAX_GRID_X = 5,
    DS_ATTR_MAX_GRID_Y = 6,
    DS_ATTR_MAX_GRID_Z = 7,
    DS_ATTR_SHARED_MEMORY_PER_BLOCK = 8,
    DS_ATTR_CONSTANT_MEMORY = 9,
    DS_ATTR_WARP_SIZE = 10,
    DS_ATTR_REGISTERS_PER_BLOCK = 12,
    DS_ATTR_CLOCK_RATE = 13,
    DS_ATTR_MULTIPROCESSORS = 16,
    DS_ATTR_KERNEL_TIMEOUT = 17,
    DS_ATTR_INTEGRATED = 18,
    DS_ATTR_CAN_MAP_HOST_MEMORY = 19,
    DS_ATTR_COMPUTE_MODE = 20,
    DS_ATTR_CONCURRENT_KERNELS = 31,
    DS_ATTR_ECC = 32,
    DS_ATTR_PCI_BUS = 33,
    DS_ATTR_PCI_DEVICE = 34,
    DS_ATTR_MEMORY_CLOCK_RATE = 36,
    DS_ATTR_MEMORY_BUS_WIDTH = 37,
    DS_ATTR_L2_SIZE = 38,
    DS_ATTR_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    DS_ATTR_COPY_ENGINES = 40,
    DS_ATTR_UNIFIED_ADDRESSING = 41,
    DS_ATTR_PCI_DOMAIN = 50,
    DS_ATTR_CAPABILITY_MAJOR = 75,
    DS_ATTR_CAPABILITY_MINOR = 76,
    DS_ATTR_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    DS_ATTR_REGISTERS_PER_MULTIPROCESSOR = 82,
    DS_ATTR_MANAGED_MEMORY = 83,
    DS_ATTR_PAGEABLE_MEMORY_ACCESS = 88,
    DS_ATTR_CONCURRENT_MANAGED_ACCESS = 89,
    DS_ATTR_COOPERATIVE_LAUNCH = 95,
    DS_ATTR_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    DS_ATTR_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
    DS_ATTR_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
    DS_ATTR_MEMORY_POOLS = 115,
    DS_ATTRIBUTE_FORCE_INT_ = 0x7fffffff
} ds_attribute;
ds_device ds_cpu(int index);
ds_device ds_cuda(int index);
ds_device ds_device_current(void);
ds_result ds_device_get_count(ds_device_type type, int *out_count);
ds_result ds_device_parse(const char *text, ds_device *out);
ds_result ds_device_format(ds_device device, char *out, size_t size);
ds_result ds_device_get_current(ds_device *out);
ds_device ds_device_at(int index);
ds_result ds_device_set_current(ds_device device);
ds_result ds_device_set_default(ds_device device);
ds_result ds_device_get_default(ds_device *out);
ds_result ds_device_push(ds_device device);
ds_result ds_device_pop(void);
ds_result ds_device_get_properties(ds_device device, ds_device_properties *out);
ds_result ds_device_get_name(ds_device device, char *out, size_t size);
ds_result ds_device_get_capability(ds_device device, int *out_major, int *out_minor);
ds_result ds_device_get_attribute(ds_device device, ds_attribute attribute, int64_t *out);
const char *ds_attribute_get_name(ds_attribute attribute);
ds_result ds_uuid_format(const unsigned char uuid[16], char *out, size_t size);
ds_result ds_device_get_memory_info(ds_device device, size_t *out_free, size_t *out_total);
ds_result ds_device_synchronize(ds_device device);
ds_result ds_device_reset(ds_device device);
ds_result ds_device_can_access_peer(ds_device device, ds_device peer, int *out);
ds_result ds_device_get_priority_range(ds_device device, int *out_least, int *out_greatest);
ds_result ds_device_get_utilization(ds_device device, unsigned *out_gpu_percent, unsigned *out_memory_percent);
ds_result ds_device_get_temperature(ds_device device, unsigned *out_celsius);
ds_result ds_device_get_power_draw(ds_device device, unsigned *out_milliwatts);
ds_result ds_device_get_clock_rate(ds_device device, unsigned *out_sm_mhz, unsigned *out_memory_mhz);
ds_result ds_device_set_label(ds_device device, const char *label);
ds_result ds_device_get_label(ds_device device, char *out, size_t size);
typedef struct ds_stream {
    uint64_t id;
} ds_stream;
enum {
    DS_STREAM_NON_BLOCKING = 0,
    DS_STREAM_BLOCKING = 1
};
enum {
    DS_PRIORITY_NORMAL = 0,
    DS_PRIORITY_HIGH = -1,
    DS_PRIORITY_HIGHEST = -1000000,
    DS_PRIORITY_LOWEST = 1000000
};
typedef struct ds_stream_desc {
    ds_device device;
    int priority;
    unsigned flags;
    const char *label;
    int multiprocessors;
    uint64_t reserved[3];
} ds_stream_desc;
ds_stream_desc ds_stream_desc_torch(void);
ds_stream_desc ds_stream_desc_paddle(void);
ds_stream_desc ds_stream_desc_cuda(void);
ds_stream_desc ds_stream_desc_cupy(void);
ds_stream_desc ds_stream_desc_mindspore(void);
ds_result ds_stream_priority_from_paddle(int paddle_priority, int *out_priority);
ds_result ds_stream_create(const ds_stream_desc *desc, ds_stream *out);
ds_result ds_stream_get_multiprocessors(ds_stream stream, int *out);
ds_result ds_stream_ref(ds_stream stream);
ds_result ds_stream_destroy(ds_stream stream);
ds_result ds_stream_query(ds_stream stream);
ds_result ds_stream_synchronize(ds_stream stream);
ds_result ds_stream_synchronize_for(ds_stream stream, uint64_t timeout_ns);
ds_result ds_stream_get_legacy(ds_device device, ds_stream *out);
ds_result ds_stream_get_per_thread(ds_device device, ds_stream *out);
ds_result ds_stream_get_default(ds_device device, ds_stream *out);
typedef enum ds_ownership {
    DS_BORROW = 0,
    DS_OWN = 1
} ds_ownership;
typedef struct ds_stream_native {
    int version;
    ds_device device;
    void *handle;
} ds_stream_native;
ds_result ds_stream_wrap(const ds_stream_native *native, ds_ownership ownership, void (*release_fn)(void *user), void *user, ds_stream *out);
ds_result ds_stream_export(ds_stream stream, ds_stream_native *out);
ds_result ds_stream_unwrap(ds_stream stream, ds_stream_native *out);
ds_result ds_stream_get_id(ds_stream stream, uint64_t *out);
ds_result ds_stream_get_device(ds_stream stream, ds_device *out);
ds_result ds_stream_get_flags(ds_stream stream, unsigned *out);
ds_result ds_stream_get_priority(ds_stream stream, int *out_effective, int *out_requested);
ds_result ds_stream_get_label(ds_stream stream, char *out, size_t size);
ds_result ds_stream_set_label(ds_stream stream, const char *label);
int ds_stream_equal(ds_stream a, ds_stream b);
enum {
    DS_PUSH_STRICT = 1,
    DS_PUSH_WAIT_PREV = 2,
    DS_POP_WAIT_BACK = 4
};
ds_result ds_stream_get_current(ds_device device, ds_stream *out);
ds_result ds_stream_set_current(ds_stream stream, unsigned flags, ds_stream *out_previous);
ds_result ds_stream_push(ds_stream stream, unsigned flags);
ds_result ds_stream_pop(void);
typedef struct ds_scope {
    int pushed;
    int once;
} ds_scope;
ds_scope ds_stream_scope_enter(ds_stream stream, unsigned flags);
void ds_stream_scope_leave(ds_scope *scope);
ds_scope ds_device_scope_enter(ds_device device);
void ds_device_scope_leave(ds_scope *scope);
typedef struct ds_event {
    uint64_t id;
} ds_event;
enum {
    DS_EVENT_DEFAULT = 0,
    DS_EVENT_TIMING = 1,
    DS_EVENT_BLOCKING_WAIT = 2,
    DS_EVENT_INTERPROCESS = 4,
    DS_EVENT_CUPY = 1
};
ds_result ds_event_create(unsigned flags, const char *label, ds_event *out);
ds_result ds_event_create_on(ds_device device, unsigned flags, const char *label, ds_event *out);
ds_result ds_event_destroy(ds_event event);
ds_result ds_event_record(ds_event event, ds_stream stream);
ds_result ds_stream_record_event(ds_stream stream, unsigned flags, ds_event *out);
ds_result ds_stream_wait_event(ds_stream stream, ds_event event);
ds_result ds_stream_wait_stream(ds_stream stream, ds_stream other);
ds_result ds_event_record_external(ds_event event, ds_stream stream);
ds_result ds_stream_wait_event_external(ds_stream stream, ds_event event);
ds_result ds_event_query(ds_event event);
ds_result ds_event_synchronize(ds_event event);
ds_result ds_event_synchronize_for(ds_event event, uint64_t timeout_ns);
ds_result ds_event_get_elapsed_ms(ds_event start, ds_event end, double *out_ms);
ds_result ds_event_get_device(ds_event event, ds_device *out);
ds_result ds_event_get_flags(ds_event event, unsigned *out);
typedef struct ds_ipc_event_handle {
    unsigned char bytes[64];
} ds_ipc_event_handle;
ds_result ds_event_export(ds_event event, ds_ipc_event_handle *out);
ds_result ds_event_import(ds_device device, const ds_ipc_event_handle *handle, ds_event *out);
typedef enum ds_memory_kind {
    DS_MEMORY_PAGEABLE = 0,
    DS_MEMORY_PINNED = 1,
    DS_MEMORY_REGISTERED = 2,
    DS_MEMORY_DEVICE = 3
} ds_memory_kind;
typedef struct ds_pointer_info {
    ds_memory_kind kind;
    ds_device device;
    void *base;
    size_t size;
    uint64_t reserved[4];
} ds_pointer_info;
ds_result ds_device_alloc(ds_device device, size_t size, void **out);
ds_result ds_device_alloc_pitch(ds_device device, size_t width, size_t height, void **out, size_t *out_pitch);
ds_result ds_device_free(void *ptr);
ds_result ds_pinned_alloc(size_t size, void **out);
enum {
    DS_PINNED_NUMA_NODE = 1,
    DS_PINNED_HUGE_PAGES = 2
};
typedef struct ds_pinned_desc {
    unsigned flags;
    int numa_node;
    uint64_t reserved[4];
} ds_pinned_desc;
ds_result ds_pinned_alloc_with(size_t size, const ds_pinned_desc *desc, void **out);
ds_result ds_pinned_free(void *ptr);
ds_result ds_pinned_register(void *ptr, size_t size);
ds_result ds_pinned_unregister(void *ptr);
ds_result ds_pointer_get_info(const void *ptr, ds_pointer_info *out);
ds_result ds_pointer_get_device(const void *ptr, ds_device *out);
ds_scope ds_device_of_scope_enter(const void *ptr);
ds_result ds_copy(void *dst, const void *src, size_t size, ds_stream stream);
enum {
    DS_COPY_HOST_STABLE = 1
};
ds_result ds_copy_with(void *dst, const void *src, size_t size, unsigned flags, ds_stream stream);
ds_result ds_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, ds_stream stream);
ds_result ds_copy_peer(void *dst, ds_device dst_device, const void *src, ds_device src_device, size_t size, ds_stream stream);
ds_result ds_copy_batch(void *const *dst, const void *const *src, const size_t *sizes, size_t count, ds_stream stream);
ds_result ds_fill(void *ptr, uint32_t value, size_t value_size, size_t count, ds_stream stream);
ds_result ds_fill_2d(void *ptr, size_t pitch, uint32_t value, size_t value_size, size_t width, size_t height, ds_stream stream);
ds_result ds_copy_sync(void *dst, const void *src, size_t size);
ds_result ds_fill_sync(void *ptr, uint32_t value, size_t value_size, size_t count);
typedef enum ds_value_kind {
    DS_VALUE_WRITE = 0,
    DS_VALUE_WAIT_GEQ = 1,
    DS_VALUE_WAIT_EQ = 2,
    DS_VALUE_WAIT_AND = 3,
    DS_VALUE_WAIT_NOR = 4
} ds_value_kind;
typedef struct ds_value_op {
    void *address;
    uint64_t value;
    ds_value_kind kind;
    unsigned size;
} ds_value_op;
enum {
    DS_VALUE_BATCH_MAX = 255
};
ds_result ds_stream_wait_value32(ds_stream stream, const void *address, uint32_t value, ds_value_kind condition);
ds_result ds_stream_wait_value64(ds_stream stream, const void *address, uint64_t value, ds_value_kind condition);
ds_result ds_stream_write_value32(ds_stream stream, void *address, uint32_t value);
ds_result ds_stream_write_value64(ds_stream stream, void *address, uint64_t value);
ds_result ds_stream_batch_values(ds_stream stream, const ds_value_op *ops, size_t count);
typedef void (*ds_host_fn)(void *user);
typedef void (*ds_callback_fn)(ds_stream stream, ds_result status, void *user);
ds_result ds_stream_launch_host_func(ds_stream stream, ds_host_fn fn, void *user, ds_host_fn dtor_fn);
typedef int (*ds_closure_fn)(void *payload);
ds_result ds_stream_launch_closure(ds_stream stream, ds_closure_fn fn, void *payload, size_t size, ds_host_fn dtor_fn);
ds_result ds_stream_add_callback(ds_stream stream, ds_callback_fn fn, void *user, ds_host_fn dtor_fn);
typedef enum ds_type_code {
    DS_CODE_INT = 0,
    DS_CODE_UINT = 1,
    DS_CODE_FLOAT = 2,
    DS_CODE_OPAQUE = 3,
    DS_CODE_BFLOAT = 4,
    DS_CODE_COMPLEX = 5,
    DS_CODE_BOOL = 6,
    DS_CODE_FLOAT8_E3M4 = 7,
    DS_CODE_FLOAT8_E4M3 = 8,
    DS_CODE_FLOAT8_E4M3B11FNUZ = 9,
    DS_CODE_FLOAT8_E4M3FN = 10,
    DS_CODE_FLOAT8_E4M3FNUZ = 11,
    DS_CODE_FLOAT8_E5M2 = 12,
    DS_CODE_FLOAT8_E5M2FNUZ = 13,
    DS_CODE_FLOAT8_E8M0FNU = 14,
    DS_CODE_FLOAT6_E2M3FN = 15,
    DS_CODE_FLOAT6_E3M2FN = 16,
    DS_CODE_FLOAT4_E2M1FN = 17
} ds_type_code;
typedef struct ds_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} ds_dtype;
ds_dtype ds_bool(void);
ds_dtype ds_int8(void);
ds_dtype ds_int16(void);
ds_dtype ds_int32(void);
ds_dtype ds_int64(void);
ds_dtype ds_uint8(void);
ds_dtype ds_uint16(void);
ds_dtype ds_uint32(void);
ds_dtype ds_uint64(void);
ds_dtype ds_float16(void);
ds_dtype ds_bfloat16(void);
ds_dtype ds_float32(void);
ds_dtype ds_float64(void);
ds_dtype ds_complex32(void);
ds_dtype ds_complex64(void);
ds_dtype ds_complex128(void);
ds_dtype ds_float8_e3m4(void);
ds_dtype ds_float8_e4m3(void);
ds_dtype ds_float8_e4m3b11fnuz(void);
ds_dtype ds_float8_e4m3fn(void);
ds_dtype ds_float8_e4m3fnuz(void);
ds_dtype ds_float8_e5m2(void);
ds_dtype ds_float8_e5m2fnuz(void);
ds_dtype ds_float8_e8m0fnu(void);
ds_dtype ds_float4_e2m1fn_x2(void);
size_t ds_dtype_get_size(ds_dtype dtype);
int ds_dtype_equal(ds_dtype a, ds_dtype b);
ds_result ds_dtype_format(ds_dtype dtype, char *out, size_t size);
ds_result ds_dtype_parse(const char *text, ds_dtype *out);
typedef struct ds_kernel {
    uint64_t id;
} ds_kernel;
typedef int (*ds_kernel_fn)(size_t first, size_t count, const void *args);
typedef enum ds_param_kind {
    DS_PARAM_VALUE = 0,
    DS_PARAM_READ = 1,
    DS_PARAM_WRITE = 2,
    DS_PARAM_READ_WRITE = 3,
    DS_PARAM_FIRST = 4,
    DS_PARAM_COUNT = 5
} ds_param_kind;
typedef struct ds_param {
    ds_param_kind kind;
    size_t offset;
    size_t size;
} ds_param;
typedef enum ds_extent_kind {
    DS_EXTENT_NONE = 0,
    DS_EXTENT_BYTES = 1,
    DS_EXTENT_COUNT = 2,
    DS_EXTENT_ITEMS = 3
} ds_extent_kind;
typedef struct ds_extent {
    ds_extent_kind kind;
    int atomic;
    size_t bytes;
    size_t offset;
    size_t stride;
    size_t count_param;
} ds_extent;
typedef struct ds_kernel_cuda {
    const void *image;
    size_t image_size;
    const char *entry;
    const void *native_fn;
    unsigned block;
    unsigned shared_bytes;
    unsigned items_per_block;
    unsigned blocks_per_multiprocessor;
    const char *const *image_pieces;
    uint64_t reserved[3];
} ds_kernel_cuda;
typedef struct ds_kernel_desc {
    const char *name;
    ds_kernel_fn cpu_fn;
    size_t args_size;
    const ds_param *params;
    size_t param_count;
    ds_kernel_cuda cuda;
    size_t grain;
    uint64_t (*bytes_fn)(size_t items, const void *args);
    const ds_extent *extents;
    void (*extents_fn)(const void *args, size_t *out_bytes);
    uint64_t reserved[6];
} ds_kernel_desc;
enum {
    DS_GRID_COOPERATIVE = 1,
    DS_GRID_OVERLAP = 2
};
typedef struct ds_grid {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    unsigned cluster[3];
    unsigned flags;
} ds_grid;
ds_result ds_kernel_create(const ds_kernel_desc *desc, ds_kernel *out);
ds_result ds_kernel_load(ds_kernel kernel, ds_device device);
ds_result ds_kernel_destroy(ds_kernel kernel);
ds_result ds_kernel_launch(ds_kernel kernel, size_t items, const void *args, size_t args_size, ds_stream stream);
ds_result ds_kernel_launch_grid(ds_kernel kernel, const ds_grid *grid, const void *args, size_t args_size, ds_stream stream);
typedef struct ds_graph {
    uint64_t id;
} ds_graph;
typedef struct ds_graph_node {
    uint64_t id;
} ds_graph_node;
typedef struct ds_graph_exec {
    uint64_t id;
} ds_graph_exec;
typedef enum ds_node_kind {
    DS_NODE_EMPTY = 0,
    DS_NODE_KERNEL = 1,
    DS_NODE_COPY = 2,
    DS_NODE_FILL = 3,
    DS_NODE_HOST = 4,
    DS_NODE_EVENT_RECORD = 5,
    DS_NODE_EVENT_WAIT = 6,
    DS_NODE_CHILD = 7,
    DS_NODE_NATIVE = 8,
    DS_NODE_VALUES = 9,
    DS_NODE_CONDITION = 10
} ds_node_kind;
typedef struct ds_kernel_node {
    ds_kernel kernel;
    size_t items;
    const ds_grid *grid;
    const void *args;
    size_t args_size;
    uint64_t reserved[3];
} ds_kernel_node;
typedef struct ds_copy_node {
    void *dst;
    const void *src;
    size_t width;
    size_t height;
    size_t dst_pitch;
    size_t src_pitch;
    uint64_t reserved[2];
} ds_copy_node;
typedef struct ds_fill_node {
    void *ptr;
    uint32_t value;
    size_t value_size;
    size_t width;
    size_t height;
    size_t pitch;
    uint64_t reserved[2];
} ds_fill_node;
typedef struct ds_host_node {
    ds_host_fn fn;
    void *user;
    ds_host_fn dtor_fn;
    uint64_t reserved[5];
} ds_host_node;
typedef struct ds_values_node {
    const ds_value_op *ops;
    size_t count;
    uint64_t reserved[6];
} ds_values_node;
typedef enum ds_condition_kind {
    DS_CONDITION_IF = 0,
    DS_CONDITION_WHILE = 1,
    DS_CONDITION_SWITCH = 2
} ds_condition_kind;
typedef struct ds_condition_node {
    ds_condition_kind kind;
    const uint32_t *word;
    const ds_graph *bodies;
    size_t count;
    uint64_t reserved[4];
} ds_condition_node;
typedef union ds_node_work {
    ds_kernel_node kernel;
    ds_copy_node copy;
    ds_fill_node fill;
    ds_host_node host;
    ds_values_node values;
    ds_condition_node condition;
    ds_event event;
    ds_graph child;
} ds_node_work;
typedef struct ds_node_desc {
    ds_node_kind kind;
    const char *label;
    ds_device device;
    int priority;
    ds_node_work u;
    uint64_t reserved[4];
} ds_node_desc;
typedef struct ds_graph_desc {
    ds_device device;
    const char *label;
    uint64_t reserved[4];
} ds_graph_desc;
ds_result ds_graph_create(const ds_graph_desc *desc, ds_graph *out);
ds_result ds_graph_destroy(ds_graph graph);
ds_result ds_graph_clone(ds_graph graph, ds_graph *out);
ds_result ds_graph_find_in_clone(ds_graph clone, ds_graph_node node, ds_graph_node *out);
ds_result ds_graph_add(ds_graph graph, const ds_node_desc *desc, const ds_graph_node *dependencies, size_t count, ds_graph_node *out);
ds_result ds_graph_add_edges(ds_graph graph, const ds_graph_node *from, const ds_graph_node *to, size_t count);
ds_result ds_graph_get_nodes(ds_graph graph, ds_graph_node *out, size_t room, size_t *out_count);
ds_result ds_graph_get_edges(ds_graph graph, ds_graph_node *out_from, ds_graph_node *out_to, size_t room, size_t *out_count);
ds_result ds_graph_get_node(ds_graph graph, ds_graph_node node, ds_node_desc *out, ds_site *out_site);
ds_result ds_graph_set_node(ds_graph graph, ds_graph_node node, const ds_node_desc *desc);
ds_result ds_graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn);
enum {
    DS_DOT_PLAIN = 0,
    DS_DOT_VERBOSE = 1,
    DS_DOT_KERNEL = 1 << 2,
    DS_DOT_COPY = 1 << 3,
    DS_DOT_FILL = 1 << 4,
    DS_DOT_HOST = 1 << 5,
    DS_DOT_EVENT = 1 << 6,
    DS_DOT_HANDLES = 1 << 10,
    DS_DOT_VALUES = 1 << 13,
    DS_DOT_CONDITION = 1 << 15
};
typedef int (*ds_write_fn)(const char *text, size_t size, void *user);
ds_result ds_graph_write_dot(ds_graph graph, unsigned flags, ds_write_fn write_fn, void *user);
ds_result ds_graph_write_dot_file(ds_graph graph, unsigned flags, const char *path);
enum {
    DS_GRAPH_AUTO_FREE_ON_LAUNCH = 1,
    DS_GRAPH_UPLOAD = 2,
    DS_GRAPH_DEVICE_LAUNCH = 4,
    DS_GRAPH_USE_NODE_PRIORITY = 8,
    DS_GRAPH_REPLACE_POINTERS = 256
};
typedef struct ds_graph_exec_desc {
    unsigned flags;
    ds_stream upload_stream;
    const char *label;
    uint64_t reserved[4];
} ds_graph_exec_desc;
ds_result ds_graph_instantiate(ds_graph graph, const ds_graph_exec_desc *desc, ds_graph_exec *out);
ds_result ds_graph_upload(ds_graph_exec exec, ds_stream stream);
ds_result ds_graph_launch(ds_graph_exec exec, ds_stream stream);
ds_result ds_graph_exec_destroy(ds_graph_exec exec);
typedef enum ds_graph_update_reason {
    DS_GRAPH_UPDATE_SUCCESS = 0,
    DS_GRAPH_UPDATE_ERROR = 1,
    DS_GRAPH_UPDATE_TOPOLOGY_CHANGED = 2,
    DS_GRAPH_UPDATE_NODE_TYPE_CHANGED = 3,
    DS_GRAPH_UPDATE_FUNCTION_CHANGED = 4,
    DS_GRAPH_UPDATE_PARAMETERS_CHANGED = 5,
    DS_GRAPH_UPDATE_NOT_SUPPORTED = 6,
    DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE = 7,
    DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED = 8
} ds_graph_update_reason;
typedef struct ds_graph_update_info {
    ds_graph_update_reason reason;
    ds_graph_node node;
    uint64_t reserved[4];
} ds_graph_update_info;
ds_result ds_graph_exec_update(ds_graph_exec exec, ds_graph graph, ds_graph_update_info *out);
ds_result ds_graph_exec_set_node(ds_graph_exec exec, ds_graph_node node, const ds_node_desc *desc);
ds_result ds_graph_exec_set_node_enabled(ds_graph_exec exec, ds_graph_node node, int enabled);
ds_result ds_graph_exec_get_node_enabled(ds_graph_exec exec, ds_graph_node node, int *out);
ds_result ds_graph_exec_replace_pointers(ds_graph_exec exec, void *const *old_pointers, void *const *new_pointers, size_t count, size_t *out_replaced);
typedef enum ds_capture_mode {
    DS_CAPTURE_GLOBAL = 0,
    DS_CAPTURE_THREAD_LOCAL = 1,
    DS_CAPTURE_RELAXED = 2
} ds_capture_mode;
typedef enum ds_capture_status {
    DS_CAPTURE_NONE = 0,
    DS_CAPTURE_ACTIVE = 1,
    DS_CAPTURE_INVALIDATED = 2
} ds_capture_status;
typedef struct ds_capture_info {
    ds_capture_status status;
    ds_capture_mode mode;
    uint64_t id;
    ds_graph graph;
    size_t dependency_count;
    ds_site begun;
    uint64_t reserved[4];
} ds_capture_info;
ds_result ds_capture_begin(ds_stream stream, ds_capture_mode mode);
ds_result ds_capture_begin_to_graph(ds_stream stream, ds_graph graph, const ds_graph_node *dependencies, size_t count, ds_capture_mode mode);
ds_result ds_capture_end(ds_stream stream, ds_graph *out);
ds_result ds_capture_end_recapture(ds_stream stream, ds_graph graph);
ds_result ds_capture_get_status(ds_stream stream, ds_capture_status *out);
ds_result ds_capture_get_info(ds_stream stream, ds_capture_info *out);
ds_result ds_capture_get_dependencies(ds_stream stream, ds_graph_node *out, size_t room, size_t *out_count);
enum {
    DS_CAPTURE_ADD_DEPENDENCIES = 0,
    DS_CAPTURE_SET_DEPENDENCIES = 1
};
ds_result ds_capture_update_dependencies(ds_stream stream, const ds_graph_node *nodes, size_t count, unsigned how);
ds_result ds_capture_exchange_mode(ds_capture_mode *mode);
typedef ds_result (*ds_capture_fn)(ds_stream stream, void *user);
ds_result ds_capture_function(ds_stream stream, ds_capture_fn fn, void *user, ds_graph *out);
typedef struct ds_domain {
    uint64_t id;
} ds_domain;
typedef struct ds_range {
    uint64_t id;
} ds_range;
typedef enum ds_payload_kind {
    DS_PAYLOAD_NONE = 0,
    DS_PAYLOAD_U64 = 1,
    DS_PAYLOAD_I64 = 2,
    DS_PAYLOAD_F64 = 3
} ds_payload_kind;
typedef union ds_payload_value {
    uint64_t u64;
    int64_t i64;
    double f64;
} ds_payload_value;
typedef struct ds_payload {
    ds_payload_kind kind;
    ds_payload_value value;
} ds_payload;
typedef struct ds_range_desc {
    const char *text;
    ds_domain domain;
    uint32_t color;
    uint32_t category;
    ds_payload payload;
    uint64_t reserved[4];
} ds_range_desc;
ds_result ds_domain_create(const char *name, ds_domain *out);
ds_result ds_range_mark(const char *text);
ds_result ds_range_mark_with(const ds_range_desc *desc);
int ds_range_push(const char *text);
int ds_range_push_with(const ds_range_desc *desc);
int ds_range_pop(void);
int ds_range_pop_in(ds_domain domain);
ds_result ds_range_start(const char *text, ds_range *out);
ds_result ds_range_start_with(const ds_range_desc *desc, ds_range *out);
ds_result ds_range_end(ds_range range);
typedef enum ds_range_kind {
    DS_RANGE_MARK = 0,
    DS_RANGE_PUSH = 1,
    DS_RANGE_POP = 2,
    DS_RANGE_START = 3,
    DS_RANGE_END = 4,
    DS_RANGE_STREAM_LABEL = 5,
    DS_RANGE_DEVICE_LABEL = 6,
    DS_RANGE_THREAD_LABEL = 7
} ds_range_kind;
typedef struct ds_range_event {
    ds_range_kind kind;
    int level;
    ds_domain domain;
    const char *domain_name;
    const char *text;
    uint32_t color;
    uint32_t category;
    ds_payload payload;
    const char *file;
    int line;
    ds_device device;
    uint64_t id;
    uint64_t thread;
    uint64_t time_ns;
} ds_range_event;
typedef void (*ds_range_fn)(const ds_range_event *event, void *user);
ds_result ds_range_set_hook(ds_range_fn fn, void *user);
ds_result ds_thread_set_label(const char *label);
typedef struct ds_range_scope {
    ds_domain domain;
    int pushed;
    int once;
} ds_range_scope;
ds_range_scope ds_range_scope_enter(const char *text);
ds_range_scope ds_range_scope_enter_with(const ds_range_desc *desc);
void ds_range_scope_leave(ds_range_scope *scope);
typedef enum ds_activity_kind {
    DS_ACTIVITY_NONE = 0,
    DS_ACTIVITY_KERNEL = 1,
    DS_ACTIVITY_COPY = 2,
    DS_ACTIVITY_FILL = 3,
    DS_ACTIVITY_HOST_FUNC = 4,
    DS_ACTIVITY_RECORD = 5,
    DS_ACTIVITY_WAIT = 6,
    DS_ACTIVITY_VALUES = 7,
    DS_ACTIVITY_GRAPH = 8
} ds_activity_kind;
typedef struct ds_activity {
    ds_activity_kind kind;
    ds_result result;
    ds_stream stream;
    ds_device device;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t enqueue_ns;
    uint64_t bytes;
    uint64_t count;
    uint64_t correlation_id;
    uint64_t external_id;
    const char *name;
    const char *call;
    const char *file;
    unsigned line;
    uint32_t thread;
    ds_device dst_device;
    ds_device src_device;
    uint64_t cause_id;
    uint64_t reserved[3];
} ds_activity;
typedef struct ds_activity_batch {
    const ds_activity *records;
    size_t count;
    uint64_t dropped;
    uint64_t reserved[4];
} ds_activity_batch;
typedef void (*ds_activity_fn)(const ds_activity_batch *batch, void *user);
typedef struct ds_activity_desc {
    ds_activity_fn fn;
    void *user;
    size_t capacity;
    unsigned kinds;
    uint64_t reserved[6];
} ds_activity_desc;
ds_result ds_activity_start(const ds_activity_desc *desc);
ds_result ds_activity_flush(void);
ds_result ds_activity_stop(void);
ds_result ds_activity_push_id(uint64_t id);
ds_result ds_activity_pop_id(uint64_t *out);
const char *ds_activity_kind_get_name(ds_activity_kind kind);
enum {
    DS_CPU_INLINE = 1,
    DS_CPU_NO_SPIN = 2,
    DS_CPU_LAX_CAPTURE = 4,
    DS_CPU_UNREACHABLE = 8
};
typedef struct ds_cpu_route {
    int64_t latency_ns;
    int direct;
    size_t hops;
    const int *link;
} ds_cpu_route;
enum {
    DS_CPU_DRY = 1
};
typedef struct ds_cpu_fabric {
    int devices;
    size_t links;
    const double *link_bytes_per_s;
    const ds_cpu_route *route;
    int engines;
    int64_t engine_ns;
    double memory_bytes_per_s;
    unsigned flags;
    uint64_t reserved[4];
} ds_cpu_fabric;
typedef struct ds_cpu_desc {
    int devices;
    int workers;
    size_t memory_limit;
    const unsigned char *peer_access;
    unsigned flags;
    uint64_t seed;
    const ds_cpu_fabric *fabric;
    const char *affinity;
    uint64_t reserved[7];
} ds_cpu_desc;
typedef struct ds_cpu_stats {
    uint64_t operations;
    uint64_t staged_copies;
    uint64_t inline_operations;
    uint64_t helped;
    int workers;
    int host_threads;
    int streams;
    size_t queue_bytes;
    uint64_t reserved[8];
} ds_cpu_stats;
ds_result ds_cpu_get_stats(ds_cpu_stats *out);
ds_result ds_cpu_get_clock(int64_t *out_ns);
ds_result ds_cpu_set_spin(int64_t ns);
ds_result ds_cpu_get_spin(int64_t *out_ns);
void ds_site_set(const char *file, int line);
typedef enum ds_mem_reuse {
    DS_REUSE_NEVER = 0,
    DS_REUSE_ON_SHORTAGE = 1,
    DS_REUSE_ALWAYS = 2
} ds_mem_reuse;
typedef enum ds_mem_statistics_level {
    DS_STATISTICS_FULL = 0,
    DS_STATISTICS_CURRENT = 1
} ds_mem_statistics_level;
typedef enum ds_mem_backend {
    DS_MEM_NATIVE = 0,
    DS_MEM_DRIVER_POOL = 1,
    DS_MEM_UNCACHED = 2
} ds_mem_backend;
typedef struct ds_mem_config {
    int backend;
    int expandable_segments;
    int best_fit_by_address;
    int single_pool;
    int reuse;
    int poll_on_alloc;
    int statistics;
    int debug;
    int poison;
    size_t guard_bytes;
    size_t max_split_size;
    size_t max_non_split_rounding;
    size_t small_segment_size;
    size_t large_segment_size;
    unsigned segment_growth;
    double garbage_collection_threshold;
    unsigned char roundup_power2_divisions[16];
    double memory_fraction;
    size_t limit;
    int throw_on_cudamalloc_oom;
    int graph_capture_record_stream_reuse;
    double expandable_segments_reserve;
    size_t pinned_max_round_threshold;
    size_t pinned_max_cached_size;
    size_t pinned_reserve_segment_size;
    int pinned_use_cuda_host_register;
    unsigned pinned_num_register_threads;
    uint64_t reserved[16];
} ds_mem_config;
ds_mem_config ds_mem_config_default(void);
ds_mem_config ds_mem_config_torch(void);
ds_mem_config ds_mem_config_cupy(void);
ds_result ds_mem_configure(ds_device device, const ds_mem_config *config);
ds_result ds_mem_configure_text(const char *text);
ds_result ds_mem_config_parse(const char *text, ds_mem_config *config);
ds_result ds_mem_get_config(ds_device device, ds_mem_config *out);
typedef struct ds_pool {
    uint64_t id;
} ds_pool;
ds_result ds_mem_alloc(size_t size, ds_stream stream, void **out);
typedef struct ds_mem_request {
    size_t size;
    ds_stream stream;
    ds_pool pool;
    size_t alignment;
    const char *label;
    uint64_t reserved[4];
} ds_mem_request;
ds_result ds_mem_alloc_with(const ds_mem_request *request, void **out);
ds_result ds_mem_free(void *ptr);
ds_result ds_mem_record_use(void *ptr, ds_stream stream);
ds_result ds_mem_record_stream(void *ptr, ds_stream stream);
typedef enum ds_mem_state {
    DS_BLOCK_FREE = 0,
    DS_BLOCK_LIVE = 1,
    DS_BLOCK_PENDING = 2,
    DS_BLOCK_UNMAPPED = 3
} ds_mem_state;
typedef struct ds_mem_block {
    void *ptr;
    size_t size;
    size_t requested;
    void *segment;
    size_t segment_size;
    ds_device device;
    uint64_t stream;
    ds_pool pool;
    ds_mem_state state;
    const char *label;
    ds_site site;
    uint64_t reserved[4];
} ds_mem_block;
typedef void (*ds_mem_block_fn)(const ds_mem_block *block, void *user);
ds_result ds_mem_get_block(const void *ptr, ds_mem_block *out);
void ds_mem_label_push(const char *label);
void ds_mem_label_pop(void);
ds_result ds_mem_empty_cache(ds_device device, size_t *out_released);
ds_result ds_mem_empty_stream_cache(ds_stream stream, size_t *out_released);
ds_result ds_mem_trim(ds_device device, size_t keep, size_t *out_released);
typedef void *(*ds_upstream_alloc_fn)(ptrdiff_t size, int device, void *stream);
typedef void (*ds_upstream_free_fn)(void *ptr, ptrdiff_t size, int device, void *stream);
typedef struct ds_resource ds_resource;
typedef struct ds_pool_desc {
    ds_device device;
    const ds_mem_config *config;
    ds_upstream_alloc_fn alloc_fn;
    ds_upstream_free_fn free_fn;
    const ds_resource *upstream;
    int use_on_oom;
    int no_split;
    int shareable;
    size_t limit;
    const char *label;
    uint64_t reserved[8];
} ds_pool_desc;
ds_result ds_pool_create(const ds_pool_desc *desc, ds_pool *out);
ds_result ds_pool_destroy(ds_pool pool);
ds_result ds_pool_push(ds_pool pool);
ds_result ds_pool_pop(void);
ds_result ds_capture_set_pool(ds_stream stream, ds_pool pool);
ds_result ds_pool_get_use_count(ds_pool pool, int *out);
ds_result ds_pool_get_id(ds_pool pool, uint64_t out_id[2]);
ds_result ds_pool_empty_cache(ds_pool pool, size_t *out_released);
typedef struct ds_pool_checkpoint ds_pool_checkpoint;
ds_result ds_pool_save(ds_pool pool, ds_pool_checkpoint **out);
ds_result ds_pool_restore(ds_pool pool, const ds_pool_checkpoint *checkpoint, ds_mem_block_fn fn, void *user);
void ds_pool_checkpoint_destroy(ds_pool_checkpoint *checkpoint);
ds_result ds_pool_check_live(ds_pool pool, void *const *ptrs, size_t count);
ds_result ds_mem_set_limit(ds_device device, size_t bytes);
ds_result ds_mem_get_limit(ds_device device, size_t *out);
ds_result ds_mem_set_fraction(ds_device device, double fraction);
ds_result ds_mem_get_fraction(ds_device device, double *out);
typedef int (*ds_mem_shortage_fn)(ds_device device, size_t size, void *user);
ds_result ds_mem_add_shortage_callback(ds_mem_shortage_fn fn, void *user);
ds_result ds_mem_remove_shortage_callback(ds_mem_shortage_fn fn, void *user);
typedef void (*ds_mem_oom_fn)(ds_device device, size_t needed, size_t total, size_t free, void *user);
ds_result ds_mem_add_oom_callback(ds_mem_oom_fn fn, void *user);
ds_result ds_mem_remove_oom_callback(ds_mem_oom_fn fn, void *user);
const char *ds_mem_get_last_report(void);
typedef struct ds_mem_stat {
    int64_t current;
    int64_t peak;
    int64_t allocated;
    int64_t freed;
} ds_mem_stat;
enum {
    DS_STAT_ALL = 0,
    DS_STAT_SMALL = 1,
    DS_STAT_LARGE = 2
};
typedef struct ds_mem_stats {
    ds_mem_stat allocation[3];
    ds_mem_stat segment[3];
    ds_mem_stat active[3];
    ds_mem_stat inactive_split[3];
    ds_mem_stat allocated_bytes[3];
    ds_mem_stat reserved_bytes[3];
    ds_mem_stat active_bytes[3];
    ds_mem_stat inactive_split_bytes[3];
    ds_mem_stat requested_bytes[3];
    ds_mem_stat oversize_allocations;
    ds_mem_stat oversize_segments;
    int64_t num_alloc_retries;
    int64_t num_ooms;
    int64_t num_sync_all_streams;
    int64_t num_device_alloc;
    int64_t num_device_free;
    int64_t num_oom_rejections;
    int64_t max_split_size;
    int64_t peak_bound;
    int64_t peak_bound_count;
    uint64_t reserved[48];
} ds_mem_stats;
ds_result ds_mem_get_stats(ds_device device, ds_mem_stats *out);
ds_result ds_pool_get_stats(ds_pool pool, ds_mem_stats *out);
ds_result ds_mem_stats_get_by_name(const ds_mem_stats *stats, const char *name, int64_t *out);
const char *ds_mem_stats_get_name(size_t index);
ds_result ds_mem_reset_peak_stats(ds_device device);
ds_result ds_mem_reset_accumulated_stats(ds_device device);
size_t ds_mem_get_allocated(ds_device device);
size_t ds_mem_get_max_allocated(ds_device device);
size_t ds_mem_get_reserved(ds_device device);
size_t ds_mem_get_max_reserved(ds_device device);
ds_result ds_mem_get_driver_pool_info(ds_device device, size_t *out_reserved, size_t *out_used);
ds_result ds_mem_write_summary(ds_device device, int abbreviated, ds_write_fn write_fn, void *user);
ds_result ds_mem_write_processes(ds_device device, ds_write_fn write_fn, void *user);
typedef struct ds_mem_history_desc {
    size_t entries;
    unsigned skip;
    uint64_t reserved[4];
} ds_mem_history_desc;
typedef enum ds_mem_action {
    DS_ACTION_ALLOC = 0,
    DS_ACTION_FREE_REQUESTED,
    DS_ACTION_FREE_COMPLETED,
    DS_ACTION_SEGMENT_ALLOC,
    DS_ACTION_SEGMENT_FREE,
    DS_ACTION_SEGMENT_MAP,
    DS_ACTION_SEGMENT_UNMAP,
    DS_ACTION_SNAPSHOT,
    DS_ACTION_OOM,
    DS_ACTION_ANNOTATION
} ds_mem_action;
ds_result ds_mem_history_start(const ds_mem_history_desc *desc);
ds_result ds_mem_history_stop(void);
ds_result ds_mem_annotate(ds_device device, const char *text);
typedef struct ds_mem_event {
    ds_mem_action action;
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;
    uint64_t time_ns;
    ds_site site;
    const char *label;
    ds_pool pool;
} ds_mem_event;
typedef void (*ds_mem_event_fn)(ds_device device, const ds_mem_event *event, void *user);
ds_result ds_mem_add_event_callback(ds_mem_event_fn fn, void *user);
ds_result ds_mem_remove_event_callback(ds_mem_event_fn fn, void *user);
typedef enum ds_mem_format {
    DS_SNAPSHOT_PICKLE = 0,
    DS_SNAPSHOT_JSON = 1,
    DS_SNAPSHOT_HTML = 2
} ds_mem_format;
enum {
    DS_SNAPSHOT_NO_HISTORY = 1
};
ds_result ds_mem_write_snapshot(ds_mem_format format, unsigned flags, ds_pool pool, ds_write_fn write_fn, void *user);
ds_result ds_mem_write_snapshot_file(ds_mem_format format, unsigned flags, const char *path);
ds_result ds_mem_for_each_block(ds_device device, ds_mem_block_fn fn, void *user);
ds_result ds_mem_pinned_alloc(size_t size, void **out);
ds_result ds_mem_pinned_free(void *ptr);
ds_result ds_mem_pinned_record_use(void *ptr, ds_stream stream);
ds_result ds_mem_pinned_owns(const void *ptr, int *out);
ds_result ds_mem_pinned_empty_cache(size_t *out_released);
ds_result ds_mem_pinned_set_limit(size_t bytes);
typedef struct ds_mem_duration {
    int64_t total;
    int64_t max;
    int64_t min;
    int64_t count;
    int64_t avg;
} ds_mem_duration;
typedef struct ds_mem_pinned_stats {
    ds_mem_stat allocations;
    ds_mem_stat allocated_bytes;
    ds_mem_stat active_requests;
    ds_mem_stat active_bytes;
    ds_mem_duration host_alloc_time;
    ds_mem_duration host_free_time;
    int64_t num_host_alloc;
    int64_t num_host_free;
    uint64_t reserved[16];
} ds_mem_pinned_stats;
ds_result ds_mem_pinned_get_stats(ds_mem_pinned_stats *out);
ds_result ds_mem_pinned_reset_peak_stats(void);
ds_result ds_mem_pinned_reset_accumulated_stats(void);
typedef ds_result (*ds_resource_alloc_fn)(void *user, size_t size, size_t alignment, ds_stream stream, void **out);
typedef ds_result (*ds_resource_free_fn)(void *user, void *ptr, size_t size, ds_stream stream);
struct ds_resource {
    ds_resource_alloc_fn alloc_fn;
    ds_resource_free_fn free_fn;
    void *user;
};
ds_result ds_resource_alloc(const ds_resource *resource, size_t size, size_t alignment, ds_stream stream, void **out);
ds_result ds_resource_free(const ds_resource *resource, void *ptr, size_t size, ds_stream stream);
ds_result ds_resource_create_device(ds_device device, ds_resource *out);
ds_result ds_resource_create_pool(ds_pool pool, ds_resource *out);
ds_result ds_resource_create_driver_pool(ds_resource *out);
ds_result ds_resource_create_functions(ds_resource_alloc_fn alloc_fn, ds_resource_free_fn free_fn, void *user, ds_resource *out);
ds_result ds_resource_create_limit(const ds_resource *upstream, size_t bytes, ds_resource *out);
ds_result ds_resource_create_stats(const ds_resource *upstream, ds_resource *out);
ds_result ds_resource_create_log(const ds_resource *upstream, ds_write_fn write_fn, void *user, ds_resource *out);
typedef int (*ds_resource_failure_fn)(size_t size, void *user);
ds_result ds_resource_create_on_failure(const ds_resource *upstream, ds_resource_failure_fn fn, void *user, ds_resource *out);
ds_result ds_resource_create_aligned(const ds_resource *upstream, size_t alignment, size_t threshold, ds_resource *out);
typedef struct ds_resource_stats {
    ds_mem_stat bytes;
    ds_mem_stat allocations;
    uint64_t reserved[8];
} ds_resource_stats;
ds_result ds_resource_get_stats(const ds_resource *resource, ds_resource_stats *out);
ds_result ds_resource_push_stats(const ds_resource *resource);
ds_result ds_resource_pop_stats(const ds_resource *resource, ds_resource_stats *out);
ds_result ds_resource_destroy(ds_resource *resource);
typedef struct ds_ipc_mem_handle {
    unsigned char bytes[256];
} ds_ipc_mem_handle;
ds_result ds_mem_export(const void *ptr, ds_ipc_mem_handle *out);
ds_result ds_mem_import(ds_device device, const ds_ipc_mem_handle *handle, ds_stream stream, void **out);
ds_result ds_mem_import_close(void *ptr, ds_stream stream);
ds_result ds_mem_ipc_collect(void);
ds_result ds_mem_validate(ds_device device);
enum {
    DS_TENSOR_CUDA_HOST = 3,
    DS_TENSOR_CUDA_MANAGED = 13
};
typedef struct ds_tensor {
    void *data;
    ds_device device;
    int32_t ndim;
    ds_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} ds_tensor;
ds_tensor ds_tensor_of(void *data, ds_device device, ds_dtype dtype, int ndim, int64_t *shape);
void *ds_tensor_address(const ds_tensor *tensor);
ds_result ds_tensor_check(const ds_tensor *tensor);
int64_t ds_tensor_get_count(const ds_tensor *tensor);
size_t ds_tensor_get_size(const ds_tensor *tensor);
int ds_tensor_is_contiguous(const ds_tensor *tensor);
int ds_tensor_is_dense(const ds_tensor *tensor);
ds_result ds_tensor_alloc(ds_dtype dtype, int ndim, const int64_t *shape, ds_stream stream, ds_tensor **out);
ds_result ds_tensor_alloc_pinned(ds_dtype dtype, int ndim, const int64_t *shape, ds_tensor **out);
ds_result ds_tensor_alloc_like(const ds_tensor *like, ds_stream stream, ds_tensor **out);
enum {
    DS_TENSOR_READ_ONLY = 1
};
ds_result ds_tensor_wrap(const ds_tensor *tensor, unsigned flags, void (*release_fn)(void *user), void *user, ds_tensor **out);
ds_result ds_tensor_free(ds_tensor *tensor);
ds_result ds_tensor_get_flags(const ds_tensor *tensor, unsigned *out);
ds_result ds_tensor_view(const ds_tensor *tensor, int ndim, const int64_t *shape, ds_tensor **out);
ds_result ds_tensor_narrow(const ds_tensor *tensor, int dim, int64_t start, int64_t length, ds_tensor **out);
ds_result ds_tensor_slice(const ds_tensor *tensor, int dim, int64_t start, int64_t stop, int64_t step, ds_tensor **out);
ds_result ds_tensor_select(const ds_tensor *tensor, int dim, int64_t index, ds_tensor **out);
ds_result ds_tensor_permute(const ds_tensor *tensor, const int *order, ds_tensor **out);
ds_result ds_tensor_transpose(const ds_tensor *tensor, int dim0, int dim1, ds_tensor **out);
ds_result ds_tensor_as_real(const ds_tensor *tensor, ds_tensor **out);
ds_result ds_tensor_as_host(const ds_tensor *tensor, ds_tensor **out);
typedef struct ds_managed_tensor {
    ds_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct ds_managed_tensor *self);
} ds_managed_tensor;
typedef struct ds_dlpack_version {
    uint32_t major;
    uint32_t minor;
} ds_dlpack_version;
enum {
    DS_DLPACK_READ_ONLY = 1,
    DS_DLPACK_IS_COPIED = 2,
    DS_DLPACK_SUBBYTE_PADDED = 4
};
typedef struct ds_managed_tensor_versioned {
    ds_dlpack_version version;
    void *manager_ctx;
    void (*deleter)(struct ds_managed_tensor_versioned *self);
    uint64_t flags;
    ds_tensor tensor;
} ds_managed_tensor_versioned;
ds_result ds_tensor_import(ds_managed_tensor *managed, ds_tensor **out);
ds_result ds_tensor_import_versioned(ds_managed_tensor_versioned *managed, ds_tensor **out);
ds_result ds_tensor_export(const ds_tensor *tensor, ds_managed_tensor **out);
ds_result ds_tensor_export_versioned(const ds_tensor *tensor, ds_managed_tensor_versioned **out);
typedef enum ds_reduce_op {
    DS_REDUCE_SUM = 0,
    DS_REDUCE_PRODUCT = 1,
    DS_REDUCE_MAX = 2,
    DS_REDUCE_MIN = 3,
    DS_REDUCE_AVERAGE = 4
} ds_reduce_op;
typedef struct ds_ranks {
    uint64_t id;
} ds_ranks;
enum {
    DS_COMM_ALIAS = 1,
    DS_COMM_ANY_ORDER = 2
};
struct ds_topology;
struct ds_plan;
typedef struct ds_ranks_nccl {
    int min_ctas;
    int max_ctas;
    int nvls_ctas;
    int cga_cluster_size;
    const char *algorithm;
    int is_hint;
    int cta_policy;
    uint64_t reserved[4];
} ds_ranks_nccl;
typedef struct ds_ranks_options {
    const int64_t *sizes;
    const int64_t *out_sizes;
    uint64_t timeout_ns;
    const ds_ranks_nccl *nccl;
    uint64_t reserved[4];
} ds_ranks_options;
typedef struct ds_comm_options {
    const ds_stream *streams;
    size_t stream_count;
    ds_stream stream;
    unsigned flags;
    const struct ds_topology *topology;
    const struct ds_plan *plan;
    ds_ranks ranks;
    size_t root;
    const ds_ranks_options *ranks_options;
    const char *engine;
    uint64_t reserved[2];
} ds_comm_options;
ds_result ds_comm_broadcast(const ds_tensor *tensor, const ds_device *devices, size_t count, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_broadcast_into(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
ds_result ds_comm_broadcast_coalesced(const ds_tensor *const *tensors, size_t count, const ds_device *devices, size_t device_count, size_t buffer_size, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_scatter(const ds_tensor *tensor, const ds_device *devices, size_t count, const int64_t *chunk_sizes, int dim, const ds_comm_options *options, ds_tensor **out, size_t *out_count);
ds_result ds_comm_scatter_into(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, int dim, const ds_comm_options *options);
ds_result ds_comm_gather(const ds_tensor *const *tensors, size_t count, int dim, ds_device destination, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_gather_into(const ds_tensor *const *tensors, size_t count, int dim, const ds_tensor *out, const ds_comm_options *options);
ds_result ds_comm_reduce(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, ds_device destination, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_reduce_into(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, const ds_tensor *out, const ds_comm_options *options);
ds_result ds_comm_reduce_add(const ds_tensor *const *tensors, size_t count, ds_device destination, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_reduce_add_coalesced(const ds_tensor *const *tensors, size_t lists, size_t count, ds_device destination, size_t buffer_size, const ds_comm_options *options, ds_tensor **out);
ds_result ds_comm_all_reduce(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options);
ds_result ds_comm_all_gather(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
ds_result ds_comm_reduce_scatter(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options);
ds_result ds_comm_all_to_all(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
ds_result ds_comm_barrier(const ds_stream *streams, size_t count);
typedef enum ds_link_kind {
    DS_LINK_PCIE,
    DS_LINK_NVLINK,
    DS_LINK_NVSWITCH,
    DS_LINK_SOCKET,
    DS_LINK_NETWORK,
    DS_LINK_HOST,
    DS_LINK_KIND_COUNT
} ds_link_kind;
typedef struct ds_topology ds_topology;
ds_result ds_topology_create_of_text(const char *text, ds_topology **out);
ds_result ds_topology_create_of_file(const char *path, ds_topology **out);
enum {
    DS_TOPOLOGY_PROBE = 1
};
ds_result ds_topology_create_of_devices(const ds_device *devices, size_t count, unsigned flags, ds_topology **out);
void ds_topology_destroy(ds_topology *topology);
int ds_topology_get_size(const ds_topology *topology);
typedef enum ds_topology_format {
    DS_TOPOLOGY_MATRIX,
    DS_TOPOLOGY_DOT,
    DS_TOPOLOGY_TEXT
} ds_topology_format;
ds_result ds_topology_write(const ds_topology *topology, ds_topology_format format, ds_write_fn write_fn, void *user);
ds_result ds_topology_get_fabric(const ds_topology *topology, ds_cpu_fabric *out);
typedef enum ds_collective {
    DS_BROADCAST,
    DS_SCATTER,
    DS_GATHER,
    DS_REDUCE,
    DS_ALL_REDUCE,
    DS_ALL_GATHER,
    DS_REDUCE_SCATTER,
    DS_ALL_TO_ALL,
    DS_COLLECTIVE_COUNT
} ds_collective;
typedef enum ds_plan_order {
    DS_ORDER_AT_ONCE,
    DS_ORDER_LIST,
    DS_ORDER_ANY
} ds_plan_order;
typedef struct ds_plan_desc {
    ds_collective what;
    size_t bytes;
    int root;
    size_t item;
    ds_plan_order order;
    const char *algorithm;
    size_t pieces;
    const char *engine;
    uint64_t reserved[3];
} ds_plan_desc;
enum {
    DS_PLAN_INPUT,
    DS_PLAN_OUTPUT,
    DS_PLAN_SCRATCH
};
typedef struct ds_plan_location {
    int rank;
    int buffer;
    size_t offset;
} ds_plan_location;
typedef struct ds_plan_step {
    int rank;
    int lane;
    ds_plan_location to;
    size_t bytes;
    uint32_t from;
    uint32_t from_count;
    uint32_t after;
    uint32_t after_count;
    int64_t start_ns;
    int64_t done_ns;
} ds_plan_step;
typedef struct ds_plan {
    ds_plan_desc desc;
    int ranks;
    int ways;
    int lanes;
    size_t pieces;
    size_t piece_bytes;
    int64_t predicted_ns;
    int64_t bound_ns;
    size_t steps;
    const ds_plan_step *step;
    const ds_plan_location *location;
    const uint32_t *before;
    const size_t *scratch;
} ds_plan;
ds_result ds_plan_get(const ds_topology *topology, const ds_plan_desc *desc, const ds_plan **out);
ds_result ds_plan_write(const ds_topology *topology, const ds_plan *plan, ds_write_fn write_fn, void *user);
const char *ds_collective_get_name(ds_collective what);
typedef struct ds_rng {
    uint64_t id;
} ds_rng;
typedef enum ds_rng_mapping {
    DS_RNG_ELEMENT = 0,
    DS_RNG_TORCH = 1
} ds_rng_mapping;
typedef struct ds_rng_desc {
    ds_device device;
    uint64_t seed;
    ds_rng_mapping mapping;
    int multiprocessors;
    int threads_per_multiprocessor;
    const char *label;
    uint64_t reserved[4];
} ds_rng_desc;
typedef struct ds_rng_info {
    ds_device device;
    uint64_t seed;
    uint64_t offset;
    ds_rng_mapping mapping;
    int multiprocessors;
    int threads_per_multiprocessor;
    uint64_t reserved[4];
} ds_rng_info;
ds_result ds_rng_create(const ds_rng_desc *desc, ds_rng *out);
ds_result ds_rng_clone(ds_rng rng, ds_rng *out);
ds_result ds_rng_destroy(ds_rng rng);
ds_result ds_rng_get_default(ds_device device, ds_rng *out);
ds_result ds_rng_get_info(ds_rng rng, ds_rng_info *out);
ds_result ds_rng_set_mapping(ds_rng rng, ds_rng_mapping mapping, int multiprocessors, int threads_per_multiprocessor);
ds_result ds_rng_set_seed(ds_rng rng, uint64_t seed);
ds_result ds_rng_reseed(ds_rng rng, uint64_t *out_seed);
ds_result ds_rng_get_seed(ds_rng rng, uint64_t *out_seed);
ds_result ds_rng_get_offset(ds_rng rng, uint64_t *out_offset);
ds_result ds_rng_set_offset(ds_rng rng, uint64_t offset);
ds_result ds_rng_get_state(ds_rng rng, void *out, size_t size);
ds_result ds_rng_set_state(ds_rng rng, const void *state, size_t size);
ds_result ds_rng_set_device_seed(ds_device device, uint64_t seed);
ds_result ds_rng_set_seed_all(uint64_t seed);
ds_result ds_rng_reseed_device(ds_device device, uint64_t *out_seed);
ds_result ds_rng_reseed_all(uint64_t *out_seed);
ds_result ds_rng_get_device_seed(ds_device device, uint64_t *out_seed);
ds_result ds_rng_get_state_all(ds_device_type type, void *out, size_t capacity, size_t *out_count);
ds_result ds_rng_set_state_all(ds_device_type type, const void *states, size_t count);
ds_result ds_rng_uniform(ds_rng rng, ds_dtype dtype, void *out, size_t count, double from, double to, ds_stream stream);
ds_result ds_rng_normal(ds_rng rng, ds_dtype dtype, void *out, size_t count, double mean, double deviation, ds_stream stream);
ds_result ds_rng_exponential(ds_rng rng, ds_dtype dtype, void *out, size_t count, double rate, ds_stream stream);
ds_result ds_rng_integers(ds_rng rng, ds_dtype dtype, void *out, size_t count, int64_t low, int64_t high, ds_stream stream);
ds_result ds_rng_bernoulli(ds_rng rng, ds_dtype dtype, void *out, size_t count, double p, ds_stream stream);
ds_result ds_rng_bits(ds_rng rng, ds_dtype dtype, void *out, size_t count, ds_stream stream);
ds_result ds_rng_permutation(ds_rng rng, ds_dtype dtype, void *out, size_t count, ds_stream stream);
typedef enum ds_rng_kind {
    DS_RNG_UNIFORM = 0,
    DS_RNG_NORMAL = 1,
    DS_RNG_EXPONENTIAL = 2,
    DS_RNG_INTEGERS = 3,
    DS_RNG_BERNOULLI = 4,
    DS_RNG_BITS = 5,
    DS_RNG_PERMUTATION = 6
} ds_rng_kind;
typedef struct ds_rng_fill_desc {
    ds_rng_kind kind;
    ds_dtype dtype;
    void *out;
    size_t count;
    double a;
    double b;
    int64_t low;
    int64_t high;
    size_t first;
    size_t total;
    uint64_t reserved[4];
} ds_rng_fill_desc;
ds_result ds_rng_fill(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream);
typedef struct ds_kernel_dims {
    size_t n[3];
    uint32_t multiplier[2];
    uint32_t shift[2];
} ds_kernel_dims;
typedef struct ds_kernel_def {
    const char *name;
    const char *source;
    unsigned block;
    unsigned items_per_block;
    size_t args_size;
    const ds_param *params;
    size_t param_count;
    ds_kernel_fn cpu_fn;
    const char *const *ptx;
    uint64_t (*bytes_fn)(size_t items, const void *args);
    void (*extents_fn)(const void *args, size_t *out_bytes);
    uint64_t reserved[3];
    ds_kernel kernel;
    uint64_t epoch;
    struct ds_kernel_def *next;
} ds_kernel_def;
ds_result ds_kernel_def_get_kernel(ds_kernel_def *def, ds_kernel *out);
ds_result ds_kernel_def_launch(ds_kernel_def *def, ds_stream stream, const ds_kernel_dims *dims, const void *args);
typedef struct ds_kernel_block {
    unsigned index[3];
    unsigned grid[3];
    unsigned threads[3];
    int in_threads;
    char *scratch;
    size_t used;
} ds_kernel_block;
int ds_kernel_run_blocks(void (*block_fn)(ds_kernel_block *block, const void *args), const ds_kernel_dims *dims, size_t first, size_t count, const void *args);
void ds_kernel_block_overflow(void);
typedef enum ds_hazard {
    DS_HAZARD_NONE = 0,
    DS_HAZARD_READ_AFTER_WRITE = 1,
    DS_HAZARD_WRITE_AFTER_READ = 2,
    DS_HAZARD_WRITE_AFTER_WRITE = 3,
    DS_HAZARD_USE_BEFORE_ALLOC = 4,
    DS_HAZARD_FREE_IN_USE = 5,
    DS_HAZARD_USE_AFTER_FREE = 6,
    DS_HAZARD_REUSE = 7,
    DS_HAZARD_GRAPH_MEMORY = 8,
    DS_HAZARD_UNRECORDED_WAIT = 9,
    DS_HAZARD_COLLECTIVE_ORDER = 10
} ds_hazard;
typedef struct ds_hazard_access {
    const char *operation;
    const char *file;
    int line;
    unsigned thread;
    const char *stream;
    uint64_t sequence;
    const void *ptr;
    size_t width;
    size_t pitch;
    size_t rows;
    int inexact;
} ds_hazard_access;
typedef struct ds_hazard_report {
    ds_hazard hazard;
    int possible;
    uint64_t number;
    ds_hazard_access now;
    ds_hazard_access before;
    const char *label;
    const void *base;
    size_t bytes;
    const char *file;
    int line;
    const char *order;
    uint64_t missed;
    const char *fix;
    const char *key;
    const char *text;
    uint64_t reserved[6];
} ds_hazard_report;
typedef void (*ds_hazard_fn)(const ds_hazard_report *report, void *user);
typedef struct ds_check_stats {
    uint64_t reports;
    uint64_t repeated;
    uint64_t possible;
    uint64_t suppressed;
    uint64_t operations;
    uint64_t accesses;
    uint64_t inexact;
    uint64_t unchecked;
    uint64_t ranges;
    uint64_t records;
    uint64_t bytes;
    uint64_t timelines;
    uint64_t evicted;
    uint64_t undeclared;
    uint64_t reserved[6];
} ds_check_stats;
void ds_check_set_report_fn(ds_hazard_fn fn, void *user);
ds_result ds_check_get_stats(ds_check_stats *out);
const char *ds_hazard_get_name(ds_hazard hazard);
ds_result ds_check_host_read(const void *ptr, size_t bytes);
ds_result ds_check_host_write(const void *ptr, size_t bytes);
ds_result ds_check_release(const void *token);
ds_result ds_check_acquire(const void *token);
ds_result ds_check_declare_order(ds_stream from, ds_stream to);
ds_result ds_check_declare_memory(const void *ptr, size_t bytes, const char *label);
ds_result ds_check_forget_memory(const void *ptr);
ds_result ds_check_ignore(const void *ptr, size_t bytes);
ds_result ds_check_set_extents(const ds_extent *extents, size_t count);
typedef struct ds_check_point {
    uint32_t line;
    uint32_t reserved;
    uint64_t sequence;
} ds_check_point;
ds_result ds_check_get_point(ds_stream stream, ds_check_point *out);
ds_result ds_check_why(ds_check_point a, ds_check_point b, char *text, size_t size);
typedef struct ds_trace_desc {
    const char *file;
    const char *dump;
    size_t ring;
    uint64_t timeout_ns;
    int signal;
    int cupti;
    uint64_t reserved[6];
} ds_trace_desc;
typedef struct ds_trace_stats {
    uint64_t operations;
    uint64_t records;
    uint64_t dropped;
    uint64_t written;
    uint64_t bytes;
    uint64_t kept;
    uint64_t untimed;
    uint64_t reserved[5];
} ds_trace_stats;
ds_result ds_trace_start(const ds_trace_desc *desc);
ds_result ds_trace_stop(void);
ds_result ds_trace_flush(void);
ds_result ds_trace_dump(const char *path);
ds_result ds_trace_summary(char *text, size_t size);
ds_result ds_trace_standing(char *text, size_t size);
ds_result ds_trace_get_stats(ds_trace_stats *out);
enum {
    DS_RANKS_COMPARE = 1,
    DS_RANKS_NO_OTHER_MPI = 2
};
typedef struct ds_ranks_desc {
    const char *engine;
    int rank;
    int size;
    const char *id;
    const ds_device *devices;
    size_t device_count;
    void *mpi_comm;
    unsigned flags;
    uint64_t timeout_ns;
    const char *record;
    const char *label;
    uint64_t reserved[8];
} ds_ranks_desc;
typedef struct ds_ranks_info {
    int rank;
    int size;
    size_t device_count;
    size_t first_device;
    size_t own_devices;
    char engine[16];
    char library[128];
    uint64_t operations;
    uint64_t pending;
    uint64_t reserved[4];
} ds_ranks_info;
typedef struct ds_ranks_launch {
    char launcher[16];
    int rank;
    int size;
    int local_rank;
    int local_size;
} ds_ranks_launch;
ds_result ds_ranks_init(const ds_ranks_desc *desc, ds_ranks *out);
ds_result ds_ranks_finalize(ds_ranks ranks);
ds_result ds_ranks_split(ds_ranks ranks, int color, int key, ds_ranks *out);
ds_result ds_ranks_shrink(ds_ranks ranks, const int *excluded, size_t count, ds_ranks *out);
ds_result ds_ranks_grow_id(ds_ranks ranks, char *out, size_t size);
ds_result ds_ranks_grow(ds_ranks ranks, int size, ds_ranks *out);
ds_result ds_ranks_register(ds_ranks ranks, void *ptr, size_t size);
ds_result ds_ranks_deregister(ds_ranks ranks, void *ptr);
ds_result ds_ranks_abort(ds_ranks ranks, const char *reason);
ds_result ds_ranks_get_status(ds_ranks ranks);
ds_result ds_ranks_get_info(ds_ranks ranks, ds_ranks_info *out);
ds_result ds_ranks_id_create(const char *engine, char *out, size_t size);
void ds_ranks_launch_get(ds_ranks_launch *out);
enum {
    DS_RANKS_SEND = 0,
    DS_RANKS_RECEIVE = 1
};
typedef struct ds_ranks_transfer {
    const ds_tensor *tensor;
    int kind;
    size_t device;
    size_t peer;
} ds_ranks_transfer;
ds_result ds_ranks_exchange(const ds_ranks_transfer *transfers, size_t count, const ds_comm_options *options);
ds_result ds_ranks_send(const ds_tensor *tensor, size_t peer, const ds_comm_options *options);
ds_result ds_ranks_receive(const ds_tensor *tensor, size_t peer, const ds_comm_options *options);
ds_result ds_ranks_barrier(const ds_comm_options *options);
