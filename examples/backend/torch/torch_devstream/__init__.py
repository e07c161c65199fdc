"""torch_devstream - the Python side: after `import torch_devstream`, "devstream" is a device type.

    import torch, torch_devstream
    x = torch.ones(4, device="devstream:1")
    with torch.devstream.stream(torch.devstream.Stream()):
        y = x + 1

torch.accelerator and the generic torch.Stream and torch.Event work on the device too; most of this
module only gives their functions the names that programs know from torch.cuda.
"""
import atexit
import os
import sys

import torch
from torch import accelerator as _accelerator

torch.ops.load_library(os.path.join(os.path.dirname(__file__), "libtorch_devstream.so"))
torch.utils.rename_privateuse1_backend("devstream")
torch._register_device_module("devstream", sys.modules[__name__])
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

# ---- devices ----

device_count = torch.ops.devstream.device_count
current_device = _accelerator.current_device_index
set_device = _accelerator.set_device_index
synchronize = _accelerator.synchronize
_forked = False


def device(device):
    """Context in which the device is current."""
    return _accelerator.device_index(_device(device).index)


def is_available():
    return device_count() > 0


def reset(index=None):
    """Clears the failure of a device, which an operator that raised on a worker has caused."""
    torch.ops.devstream.device_reset(current_device() if index is None else index)


def _is_in_bad_fork():
    """A child process must not use the devstream of its parent."""
    return _forked


def _mark_fork():
    global _forked
    _forked = True


def get_device_name(index=None):
    return f"devstream:{current_device() if index is None else index}"


# ---- streams and events ----

current_stream = _accelerator.current_stream
set_stream = _accelerator.set_stream


def Stream(device=None, priority=0):
    """A stream of the current device, or of `device`; priority -1 is urgent."""
    return torch.Stream(_device(device), priority=priority)


def Event(enable_timing=False):
    return torch.Event("devstream", enable_timing=enable_timing)


def stream(stream):
    """Context in which the stream is current: torch.Stream is a context manager itself."""
    return stream


def default_stream(device=None):
    """The stream of number 0."""
    private_use_1 = 20  # c10::DeviceType
    return torch.Stream(stream_id=0, device_index=_device(device).index, device_type=private_use_1)


def _device(device):
    """A torch.device with an index for None, an index, a name or a torch.device."""
    if device is None or isinstance(device, int):
        return torch.device("devstream", current_device() if device is None else device)
    device = torch.device(device)
    return device if device.index is not None else torch.device(device.type, current_device())


# ---- random numbers ----

initial_seed = _accelerator.random.initial_seed
get_rng_state = _accelerator.random.get_rng_state


def default_generator(device=None):
    return torch._C._accelerator_getDefaultGenerator(_device(device).index)


def set_rng_state(state, device=None):
    default_generator(device).set_state(state)


def manual_seed(seed):
    default_generator().manual_seed(seed)


def manual_seed_all(seed):
    """torch.manual_seed calls it."""
    for index in range(device_count()):
        default_generator(index).manual_seed(seed)


# ---- memory ----

memory_stats = _accelerator.memory_stats
memory_allocated = _accelerator.memory_allocated
max_memory_allocated = _accelerator.max_memory_allocated
memory_reserved = _accelerator.memory_reserved
max_memory_reserved = _accelerator.max_memory_reserved
reset_peak_memory_stats = _accelerator.reset_peak_memory_stats
empty_cache = _accelerator.empty_cache
mem_get_info = _accelerator.get_memory_info

# ---- DLPack ----

_dlpack_device = torch.Tensor.__dlpack_device__


def _dlpack_device_of_renamed(tensor):
    """torch 2.15 looks for the name "privateuse1", which a renamed backend no longer has."""
    if tensor.device.type == "devstream":
        return (torch.utils.dlpack.DLDeviceType.kDLExtDev, tensor.device.index)
    return _dlpack_device(tensor)


torch.Tensor.__dlpack_device__ = _dlpack_device_of_renamed


def _finish():
    """Ends the work before the interpreter's objects go away."""
    if not _forked:
        for index in range(device_count()):
            synchronize(index)


atexit.register(_finish)
os.register_at_fork(after_in_child=_mark_fork)
