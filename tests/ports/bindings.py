"""A stream, an event, an allocation and a collective on two CPU devices, through cffi: bindings.py LIBRARY DECLARATIONS"""

import sys

from cffi import FFI

ffi = FFI()
with open(sys.argv[2]) as declarations:
    ffi.cdef(declarations.read())
ds = ffi.dlopen(sys.argv[1])


def check(result):
    if result < 0:
        raise RuntimeError(ffi.string(ds.ds_error_get_last()).decode())


class Handle:
    """A zeroed struct for a handle, whose value is handed to functions."""

    def __init__(self, kind):
        self.out = ffi.new(kind + ' *')

    @property
    def value(self):
        return self.out[0]


cpu = ffi.new('ds_cpu_desc *', {'devices': 2})
check(ds.ds_init(ffi.new('ds_init_desc *', {'cpu': cpu})))
version = 10000 * ds.DEVSTREAM_VERSION_MAJOR + 100 * ds.DEVSTREAM_VERSION_MINOR + ds.DEVSTREAM_VERSION_PATCH
assert ds.ds_version_get() == version, (ds.ds_version_get(), version)

# Streams, with memory of the caching allocator and a tensor each.
streams = ffi.new('ds_stream[2]')
values = ffi.new('int32_t[2]', [40, 2])
shape = ffi.new('int64_t[1]', [1])
tensors = ffi.new('ds_tensor[2]')
memory = []
for i in range(2):
    desc = ffi.new('ds_stream_desc *', {'device': ds.ds_cpu(i)})
    check(ds.ds_stream_create(desc, streams + i))
    address = ffi.new('void **')
    check(ds.ds_mem_alloc(4, streams[i], address))
    check(ds.ds_copy(address[0], values + i, 4, streams[i]))
    tensors[i] = ds.ds_tensor_of(address[0], ds.ds_cpu(i), ds.ds_int32(), 1, shape)
    memory.append(address[0])

# A collective; the other stream waits for it by an event.
tensor_list = ffi.new('ds_tensor *[2]', [tensors, tensors + 1])
options = ffi.new('ds_comm_options *', {'streams': streams, 'stream_count': 2})
check(ds.ds_comm_all_reduce(tensor_list, tensor_list, 2, ds.DS_REDUCE_SUM, options))
written = Handle('ds_event')
check(ds.ds_event_create(ds.DS_EVENT_DEFAULT, ffi.NULL, written.out))
check(ds.ds_event_record(written.value, streams[1]))
check(ds.ds_stream_wait_event(streams[0], written.value))
back = ffi.new('int32_t *')
check(ds.ds_copy(back, memory[1], 4, streams[0]))


# A host function in Python; ds_stream_synchronize releases the interpreter's lock.
@ffi.callback('void(void *)')
def hello(user):
    print('python: host function', ffi.from_handle(user))


word = ffi.new_handle('called')
check(ds.ds_stream_launch_host_func(streams[0], hello, word, ffi.NULL))
check(ds.ds_stream_synchronize(streams[0]))

# A refused call returns an error with a sentence.
assert ds.ds_event_record(ffi.new('ds_event *')[0], streams[0]) == ds.DS_ERR_INVALID_HANDLE
assert 'ds_event_record' in ffi.string(ds.ds_error_get_last()).decode()

check(ds.ds_event_destroy(written.value))
for i in range(2):
    check(ds.ds_mem_free(memory[i]))
    check(ds.ds_stream_destroy(streams[i]))
check(ds.ds_shutdown())
print('python:', back[0])
