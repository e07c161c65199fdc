#!/usr/bin/env python3
"""Uses the stand-in for NCCL through nccl4py, NVIDIA's binding for Python, with a process for each rank: nccl4py_client.py LIBRARIES [RANKS]

LIBRARIES has libnccl.so.2 and libcudart.so of the stand-ins. Each result is compared with numpy. Without arguments for a rank the program
starts the ranks. A line for each test and a closing count.
"""
import ctypes
import glob
import os
import subprocess
import sys
import tempfile
import time

COUNT = 1000


class Cuda:
    """The functions of cudart that a test needs."""

    def __init__(self, folder, rank):
        self.lib = ctypes.CDLL(glob.glob(os.path.join(folder, 'libcudart.so*'))[0], mode=ctypes.RTLD_GLOBAL)
        self('cudaSetDevice', rank)
        stream = ctypes.c_void_p()
        self('cudaStreamCreate', ctypes.byref(stream))
        self.stream = stream.value

    def __call__(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise RuntimeError(f'{name}: error {code}')

    def put(self, array):
        address = ctypes.c_void_p()
        self('cudaMalloc', ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        self('cudaMemcpy', address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), 1)
        return address.value

    def get(self, address, array):
        self('cudaStreamSynchronize', ctypes.c_void_p(self.stream))
        self('cudaMemcpy', ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(address), ctypes.c_size_t(array.nbytes), 2)
        self('cudaFree', ctypes.c_void_p(address))
        return array


def inputs(np, dtype, rank, count=COUNT):
    return (np.arange(count) % 50 + rank + 1).astype(dtype)


def collectives(np, nccl, cuda, comm, rank, size):
    """Yields the name of each collective, its result on this rank and the expected one."""
    of_all = [inputs(np, np.float32, r, COUNT * size) for r in range(size)]
    part = slice(rank * COUNT, (rank + 1) * COUNT)
    sent = of_all[rank]
    float32, total = int(nccl.DataType.Float32), int(nccl.RedOp.Sum)

    def run(call, given, result):
        source, target = cuda.put(given), cuda.put(np.zeros(result, np.float32))
        call(source, target)
        cuda.get(source, np.zeros_like(given))
        return cuda.get(target, np.zeros(result, np.float32))

    yield 'all_reduce', run(lambda a, b: nccl.all_reduce(a, b, sent.size, float32, total, comm, cuda.stream), sent, sent.size), sum(of_all)
    yield 'broadcast', run(lambda a, b: nccl.broadcast(a, b, sent.size, float32, 1, comm, cuda.stream), sent, sent.size), of_all[1]
    reduced = run(lambda a, b: nccl.reduce(a, b, sent.size, float32, int(nccl.RedOp.Max), 0, comm, cuda.stream), sent, sent.size)
    yield 'reduce', reduced, np.maximum.reduce(of_all) if rank == 0 else np.zeros(sent.size, np.float32)
    yield ('all_gather', run(lambda a, b: nccl.all_gather(a, b, COUNT, float32, comm, cuda.stream), sent[:COUNT], COUNT * size),
           np.concatenate([x[:COUNT] for x in of_all]))
    yield ('reduce_scatter', run(lambda a, b: nccl.reduce_scatter(a, b, COUNT, float32, total, comm, cuda.stream), sent, COUNT),
           sum(of_all)[part])
    yield ('all_to_all', run(lambda a, b: nccl.allto_all(a, b, COUNT, float32, comm, cuda.stream), sent, sent.size),
           np.concatenate([x[part] for x in of_all]))
    gathered = run(lambda a, b: nccl.gather(a, b, COUNT, float32, 0, comm, cuda.stream), sent[:COUNT], COUNT * size)
    yield 'gather', gathered, np.concatenate([x[:COUNT] for x in of_all]) if rank == 0 else np.zeros(COUNT * size, np.float32)
    yield 'scatter', run(lambda a, b: nccl.scatter(a, b, COUNT, float32, 1, comm, cuda.stream), sent, COUNT), of_all[1][part]

    def ring(a, b):
        nccl.group_start()
        nccl.send(a, sent.size, float32, (rank + 1) % size, comm, cuda.stream)
        nccl.recv(b, sent.size, float32, (rank - 1) % size, comm, cuda.stream)
        nccl.group_end()
    yield 'send and recv', run(ring, sent, sent.size), of_all[(rank - 1) % size]


def rank_main(folder, rank, size, path):
    import numpy as np
    cuda = Cuda(folder, rank)
    from nccl.bindings import nccl
    if rank == 0:
        made = nccl.get_unique_id()
        with open(path + '.part', 'wb') as file:
            file.write(ctypes.string_at(made.ptr, 128))
        os.rename(path + '.part', path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, 'rb') as file:
        unique = ctypes.create_string_buffer(file.read(), 128)
    identity = nccl.UniqueId.from_ptr(ctypes.addressof(unique))
    comm = nccl.comm_init_rank(size, identity, rank)
    failed = 0
    for name, result, wanted in collectives(np, nccl, cuda, comm, rank, size):
        good = np.array_equal(result, wanted)
        failed += not good
        if rank == 0 or not good:
            print(f'{"ok   " if good else "FAIL "} nccl4py {name}, rank {rank} of {size}', flush=True)
    nccl.comm_finalize(comm)
    nccl.comm_destroy(comm)
    return failed


def main(folder, size=3):
    with tempfile.TemporaryDirectory() as here:
        path = os.path.join(here, 'id')
        ranks = [subprocess.Popen([sys.executable, __file__, folder, str(rank), str(size), path], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, 'LD_LIBRARY_PATH': folder}) for rank in range(size)]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    print(''.join(said), end='')
    passed = said[0].count('ok ')
    failed = sum(text.count('FAIL') for text in said) or sum(rank.returncode != 0 for rank in ranks)
    print(f'nccl4py: {passed} passed, {failed} failed')
    return failed != 0


if __name__ == '__main__':
    if len(sys.argv) == 5:
        sys.exit(rank_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:3])))
