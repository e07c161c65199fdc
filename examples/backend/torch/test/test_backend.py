"""Tests of the backend; `make backend-torch` runs them. They need DEVSTREAM_CPU_DEVICES=2."""
import ctypes
import io
import sys
import threading
import unittest

import torch
from torch import nn

import torch_devstream  # noqa: F401

DEV = "devstream"


class Gate:
    """Blocks the current stream until the block ends. A call that waits for the stream inside of the
    block would never return; after 20 seconds the gate opens, and the test fails."""

    def __enter__(self):
        self.word = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.late = False
        torch.ops.devstream.wait_value(self.word, 1)
        self.timer = threading.Timer(20, self.open, [True])
        self.timer.start()
        return self

    def open(self, late=False):
        self.late = late
        self.word[0] = 1

    def __exit__(self, kind, error, trace):
        self.timer.cancel()
        if not self.late:
            self.open()
        torch.devstream.synchronize()
        if kind is None and self.late:
            raise AssertionError("a call inside of the block waited for the stream")


def pair(*size, dtype=torch.float32):
    """A tensor of the CPU and the same on the device."""
    host = torch.randn(*size).to(dtype)
    return host, host.to(DEV)


class Case(unittest.TestCase):
    def equal(self, on_device, on_host, tolerance=0):
        self.assertEqual(on_device.device.type, DEV)
        torch.testing.assert_close(on_device.cpu(), on_host, rtol=tolerance, atol=tolerance)


# Operators that must not wait; each takes two matrices of 4 x 4.
ASYNCHRONOUS = {
    "add": lambda a, b: a + b,
    "add broadcast": lambda a, b: a + b[0],
    "add scaled": lambda a, b: torch.add(a, b, alpha=2),
    "add number": lambda a, b: 1 + a * 2.5,
    "add in place": lambda a, b: a.add_(b, alpha=-0.5),
    "sub": lambda a, b: a - b.t(),
    "mul": lambda a, b: a.t() * b,
    "div": lambda a, b: a / (b * b + 1),
    "promote": lambda a, b: a.double() + b,
    "out": lambda a, b: torch.mul(a, b, out=torch.empty(0, device=a.device)),
    "compare": lambda a, b: (a > b) + (a < 0) + (a == b) + (a != b),
    "neg exp log": lambda a, b: torch.log(torch.exp(-a)),
    "sqrt rsqrt": lambda a, b: torch.sqrt(a * a + 1) + torch.rsqrt(b * b + 1),
    "tanh sigmoid relu": lambda a, b: torch.tanh(a) + torch.sigmoid(b) + torch.relu(a),
    "fill": lambda a, b: torch.full_like(a, 3) + torch.zeros_like(b) + b.fill_(7),
    "fill a view": lambda a, b: a[:, 1].zero_() + b.t()[0].fill_(2) + a[0],
    "sum": lambda a, b: a.sum() + b.sum(1) + a.sum((0, 1), keepdim=True),
    "mean": lambda a, b: a.mean() + b.mean(0),
    "mm": lambda a, b: a @ b.t(),
    "addmm": lambda a, b: torch.addmm(a[0], a, b, beta=0.5, alpha=2),
    "bmm": lambda a, b: torch.bmm(a.view(1, 4, 4), b.view(1, 4, 4)),
    "copy": lambda a, b: a.clone().t().contiguous().half().float() + b[::2].reshape(2, 4)[0],
    "copy a view": lambda a, b: a.t().copy_(b) + a,
}


class Operators(Case):
    def test_results_are_those_of_the_cpu(self):
        for name, fn in ASYNCHRONOUS.items():
            with self.subTest(name):
                (a, on_a), (b, on_b) = pair(4, 4), pair(4, 4)
                self.equal(fn(on_a, on_b), fn(a, b))
                self.equal(on_a, a)
                self.equal(on_b, b)

    def test_operators_do_not_wait(self):
        for name, fn in ASYNCHRONOUS.items():
            with self.subTest(name):
                (a, on_a), (b, on_b) = pair(4, 4), pair(4, 4)
                with Gate():
                    result = fn(on_a, on_b)
                    self.assertFalse(torch.devstream.current_stream().query())
                self.equal(result, fn(a, b))

    def test_large_operands(self):
        (a, on_a), (b, on_b) = pair(300, 500), pair(500, 200)
        self.equal(on_a @ on_b, a @ b, 1e-4)
        self.equal(on_a.t() * 2 + on_a[0, 0].item(), a.t() * 2 + a[0, 0])

    def test_other_operators_fall_back_to_the_cpu(self):
        a, on_a = pair(5, 6)
        self.equal(torch.sort(on_a, 1).values, torch.sort(a, 1).values)
        self.equal(torch.softmax(on_a, 1), torch.softmax(a, 1))
        self.equal(torch.cat([on_a, on_a]), torch.cat([a, a]))
        self.equal(on_a[on_a > 0], a[a > 0])

    def test_types(self):
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.complex64):
            a, on_a = pair(3, 3, dtype=dtype)
            self.equal(on_a * 2 + on_a, a * 2 + a)
        a = torch.tensor([1 + 2j])
        self.equal(a.to(DEV).conj() * 1j, a.conj() * 1j)

    def test_a_number_on_the_cpu_counts_as_of_the_call(self):
        number = torch.tensor(2.0)
        x = torch.ones(2, device=DEV)
        with Gate():
            y = x * number
            number.fill_(100)
        self.equal(y, torch.full((2,), 2.0))

    def test_errors_come_from_the_call(self):
        a = torch.ones(2, 3, device=DEV)
        for bad in (lambda: a @ a, lambda: a + torch.ones(2, 4, device=DEV),
                    lambda: a + torch.ones(2, 3), lambda: a + torch.ones(2, 3, device="devstream:1"),
                    lambda: torch.add(a, a, out=torch.empty(2, 3, dtype=torch.int32, device=DEV))):
            with self.assertRaises(RuntimeError):
                bad()

    def test_a_failure_on_a_worker_is_reported_by_the_next_wait(self):
        x = torch.ones(3, dtype=torch.complex64, device=DEV)
        y = torch.ones(3, device=DEV)
        try:
            x > x  # ATen's CPU function refuses complex numbers, after the call has returned
            with self.assertRaisesRegex(RuntimeError, "a closure.*not implemented"):
                torch.devstream.synchronize()
            with self.assertRaises(RuntimeError):
                y.cpu()
        finally:
            torch.devstream.reset()
        self.equal(y + 1, torch.full((3,), 2.0))

    def test_resize_and_set(self):
        x = torch.arange(4.0, device=DEV)
        x.resize_(2, 3)
        self.equal(x.view(-1)[:4], torch.arange(4.0))
        y = torch.empty(0, device=DEV)
        y.set_(x.untyped_storage(), 1, (2,), (1,))
        self.equal(y, torch.tensor([1.0, 2.0]))
        x.data = torch.zeros(1, device=DEV)
        self.equal(x, torch.zeros(1))


class Streams(Case):
    def test_streams_run_independently(self):
        x = torch.ones(4, device=DEV)
        torch.devstream.synchronize()
        with torch.devstream.Stream() as blocked, Gate():
            y = x + 1
            with torch.devstream.Stream() as free:
                z = x + 2
            free.synchronize()
            self.assertFalse(blocked.query())
            self.assertTrue(free.query())
        self.equal(y, torch.full((4,), 2.0))
        self.equal(z, torch.full((4,), 3.0))

    def test_wait_stream_and_events_order_streams(self):
        first, second, third = (torch.devstream.Stream() for _ in range(3))
        x = torch.zeros(1, device=DEV)
        torch.devstream.synchronize()
        with first, Gate():
            x += 1
            event = first.record_event()
            second.wait_event(event)
            with second:
                x *= 10
            third.wait_stream(second)
            with third:
                x += 5
            self.assertFalse(third.query())
        third.synchronize()
        self.equal(x, torch.tensor([15.0]))

    def test_the_current_stream_belongs_to_the_thread(self):
        default = torch.devstream.current_stream()
        self.assertEqual(default, torch.devstream.default_stream())
        found = []
        with torch.devstream.Stream() as stream:
            self.assertEqual(torch.devstream.current_stream(), stream)
            thread = threading.Thread(target=lambda: found.append(torch.devstream.current_stream()))
            thread.start()
            thread.join()
        self.assertEqual(found, [default])
        self.assertEqual(torch.devstream.current_stream(), default)

    def test_a_stream_brings_its_device(self):
        before = torch.devstream.current_stream(1)
        with torch.devstream.Stream(device="devstream:1") as stream:
            self.assertEqual(torch.devstream.current_device(), 1)
            self.assertEqual(torch.devstream.current_stream(), stream)
        self.assertEqual(torch.devstream.current_device(), 0)
        self.assertEqual(torch.devstream.current_stream(1), before)


class Events(Case):
    def test_query_and_synchronize(self):
        event = torch.devstream.Event()
        self.assertTrue(event.query())
        with Gate() as gate:
            event.record()
            self.assertFalse(event.query())
            gate.open()
            event.synchronize()
            self.assertTrue(event.query())

    def test_elapsed_time(self):
        start, end = (torch.devstream.Event(enable_timing=True) for _ in range(2))
        start.record()
        with Gate():
            end.record()
            threading.Event().wait(0.02)
        self.assertGreater(start.elapsed_time(end), 15)

    def test_without_timing(self):
        start, end = torch.devstream.Event(), torch.devstream.Event()
        start.record()
        end.record()
        end.synchronize()
        with self.assertRaises(ValueError):
            start.elapsed_time(end)


class Memory(Case):
    SIZE = 3 << 18  # floats: 3 MiB

    def setUp(self):
        torch.devstream.synchronize()
        torch.devstream.empty_cache()

    def test_a_block_is_reused_in_stream_order(self):
        with Gate():
            x = torch.ones(self.SIZE, device=DEV)
            address = x.data_ptr()
            y = x[:10].clone()
            del x
            z = torch.zeros(self.SIZE, device=DEV)
            self.assertEqual(z.data_ptr(), address)
        self.equal(y, torch.ones(10))
        self.equal(z[:10], torch.zeros(10))

    def test_another_stream_gets_another_block(self):
        x = torch.ones(self.SIZE, device=DEV)
        address = x.data_ptr()
        del x
        with torch.devstream.Stream():
            self.assertNotEqual(torch.empty(self.SIZE, device=DEV).data_ptr(), address)

    def test_record_stream_delays_the_reuse(self):
        side = torch.devstream.Stream()
        x = torch.ones(self.SIZE, device=DEV)
        address = x.data_ptr()
        side.wait_stream(torch.devstream.current_stream())
        with side, Gate():
            y = x + 1
            x.record_stream(side)
            del x
            with torch.devstream.default_stream():
                z = torch.zeros(self.SIZE, device=DEV)
                self.assertNotEqual(z.data_ptr(), address)
        del z
        self.equal(y, torch.full((self.SIZE,), 2.0))
        found = [torch.empty(self.SIZE, device=DEV) for _ in range(2)]
        self.assertIn(address, [block.data_ptr() for block in found])

    def test_figures(self):
        before = torch.devstream.memory_allocated()
        torch.devstream.reset_peak_memory_stats()
        x = torch.empty(self.SIZE, device=DEV)
        self.assertEqual(torch.devstream.memory_allocated() - before, x.nbytes)
        del x
        self.assertEqual(torch.devstream.memory_allocated(), before)
        self.assertGreaterEqual(torch.devstream.max_memory_allocated(), before + 4 * self.SIZE)
        self.assertGreaterEqual(torch.devstream.memory_reserved(), 4 * self.SIZE)
        torch.devstream.empty_cache()
        self.assertLess(torch.devstream.memory_reserved(), 4 * self.SIZE)
        free, total = torch.devstream.mem_get_info()
        self.assertLessEqual(free, total)
        self.assertEqual(torch.devstream.memory_stats()["allocated_bytes.all.current"], before)

    def test_out_of_memory(self):
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device=DEV)


class Random(Case):
    def test_seeds_reproduce(self):
        for fill in (lambda: torch.rand(1000, device=DEV), lambda: torch.randn(7, 3, device=DEV),
                     lambda: torch.randint(5, 50, (99,), device=DEV),
                     lambda: torch.empty(50, 2, device=DEV).t().uniform_(-1, 1),
                     lambda: nn.functional.dropout(torch.ones(64, device=DEV))):
            torch.manual_seed(7)
            first, second = fill(), fill()
            torch.devstream.manual_seed(7)
            self.equal(fill(), first.cpu())
            self.assertFalse(torch.equal(first.cpu(), second.cpu()))

    def test_distributions(self):
        x = torch.rand(100000, device=DEV).cpu()
        self.assertTrue(0 <= x.min() and x.max() < 1)
        self.assertAlmostEqual(x.mean().item(), 0.5, delta=0.01)
        x = torch.empty(100000, device=DEV).normal_(3, 2).cpu()
        self.assertAlmostEqual(x.mean().item(), 3, delta=0.05)
        self.assertAlmostEqual(x.std().item(), 2, delta=0.05)
        x = torch.zeros(50, 2, device=DEV)
        x.t()[1:].uniform_(1, 2)
        self.assertTrue(x[:, 0].sum() == 0 and x[:, 1].min() >= 1)
        x = torch.randint(-3, 4, (1000,), device=DEV).cpu()
        self.assertEqual((x.min().item(), x.max().item()), (-3, 3))

    def test_generators_and_states(self):
        mine = torch.Generator(device=DEV).manual_seed(1)
        state = mine.get_state()
        first = torch.rand(5, device=DEV, generator=mine)
        copy = mine.clone_state()
        second = torch.rand(5, device=DEV, generator=mine)
        self.equal(torch.rand(5, device=DEV, generator=copy), second.cpu())
        mine.set_state(state)
        self.equal(torch.rand(5, device=DEV, generator=mine), first.cpu())
        self.assertEqual(mine.initial_seed(), 1)
        state = torch.devstream.get_rng_state()
        first = torch.rand(5, device=DEV)
        torch.devstream.set_rng_state(state)
        self.equal(torch.rand(5, device=DEV), first.cpu())
        with self.assertRaises(RuntimeError):
            torch.rand(5, device="devstream:1", generator=mine)

    def test_fills_do_not_wait(self):
        with Gate():
            torch.rand(100, device=DEV)
            torch.empty(4, 4, device=DEV).t()[1:].normal_()


class Copies(Case):
    def test_pinned_copies_do_not_wait(self):
        source = torch.arange(100000.0).pin_memory()
        target = torch.zeros(100000).pin_memory()
        self.assertTrue(source.is_pinned() and target.is_pinned())
        with Gate():
            x = source.to(DEV, non_blocking=True)
            target.copy_(x + 1, non_blocking=True)
            self.assertEqual(target.sum().item(), 0)
        self.assertTrue(torch.equal(target, torch.arange(100000.0) + 1))

    def test_pinned_memory_is_not_reused_before_the_copy(self):
        source = torch.full((100000,), 5.0).pin_memory()
        address = source.data_ptr()
        with Gate():
            x = source.to(DEV, non_blocking=True)
            del source
            other = torch.zeros(100000).pin_memory()
            self.assertNotEqual(other.data_ptr(), address)
        self.equal(x, torch.full((100000,), 5.0))

    def test_copies_without_non_blocking_wait(self):
        for target in (torch.zeros(8), torch.zeros(8).pin_memory()):
            with Gate() as gate:
                x = torch.ones(8, device=DEV)
                threading.Timer(0.02, gate.open).start()
                target.copy_(x)
                self.assertEqual(target.sum().item(), 8)

    def test_other_threads_run_while_one_waits(self):
        event = torch.devstream.Event()
        for wait in (event.synchronize, torch.devstream.current_stream().synchronize,
                     torch.devstream.synchronize):
            with Gate() as gate:
                event.record()
                threading.Timer(0.02, gate.open).start()
                wait()
                self.assertTrue(event.query())

    def test_item_waits(self):
        with Gate() as gate:
            x = torch.ones(8, device=DEV).sum()
            threading.Timer(0.02, gate.open).start()
            self.assertEqual(x.item(), 8)

    def test_strides_and_types_between_host_and_device(self):
        a = torch.randn(6, 4)
        x = torch.zeros(4, 6, dtype=torch.float64, device=DEV)
        x.t().copy_(a)
        self.equal(x, a.t().double())
        b = torch.zeros(4, 3, 2)
        b.permute(2, 1, 0).copy_(x.t().float().view(2, 3, 4)[:, :, :])
        self.assertTrue(torch.equal(b.permute(2, 1, 0), a.view(2, 3, 4)))
        x[1:3, ::2] = torch.ones(1, dtype=torch.int64)
        self.assertEqual(x.cpu()[2, 4].item(), 1)


    def test_save_and_load(self):
        file = io.BytesIO()
        torch.save(torch.arange(5.0, device="devstream:1"), file)
        file.seek(0)
        x = torch.load(file)
        self.assertEqual(x.device, torch.device("devstream:1"))
        self.equal(x, torch.arange(5.0))


class TwoDevices(Case):
    def test_copies_between_devices_follow_both_streams(self):
        x = torch.zeros(1000, device="devstream:0")
        y = torch.zeros(1000, device="devstream:1")
        with Gate():
            x += 1
            y.copy_(x)
            z = y * 2
            x += 5
            w = x.to("devstream:1", torch.float64)
            self.assertFalse(torch.devstream.current_stream(1).query())
        self.equal(z, torch.full((1000,), 2.0))
        self.equal(w, torch.full((1000,), 6.0, dtype=torch.float64))

    def test_a_copy_to_a_device_waits_for_its_stream(self):
        x = torch.ones(1000, device="devstream:0")
        y = torch.zeros(1000, device="devstream:1")
        with torch.devstream.device(1), Gate():
            z = y + 5
            y.copy_(x)
            self.assertFalse(torch.devstream.current_stream(0).query())
        self.equal(z, torch.full((1000,), 5.0))
        self.equal(y, torch.ones(1000))

    def test_the_current_device(self):
        self.assertEqual(torch.devstream.device_count(), 2)
        self.assertEqual(torch.ones(1, device=DEV).device.index, 0)
        with torch.devstream.device("devstream:1"):
            self.assertEqual(torch.devstream.current_device(), 1)
            self.assertEqual(torch.ones(1, device=DEV).device.index, 1)
        self.assertEqual(torch.devstream.current_device(), 0)
        x = torch.ones(3, device="devstream:1")
        self.assertEqual((x + x).device.index, 1)
        self.assertEqual(torch.devstream.current_device(), 0)

    def test_events_between_devices(self):
        x = torch.zeros(1, device="devstream:0")
        stream = torch.devstream.Stream(device=1)
        with Gate():
            x += 1
            stream.wait_event(torch.devstream.current_stream().record_event())
            self.assertFalse(stream.query())
        stream.synchronize()


class DLManagedTensor(ctypes.Structure):
    """DLPack's exchange format."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def capsule_function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


class DLPack(Case):
    def test_export_names_the_device_of_devstream(self):
        x = torch.arange(6.0, device="devstream:1").view(2, 3)
        self.assertEqual(x.__dlpack_device__(), (12, 1))
        get = capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object,
                               ctypes.c_char_p)
        capsule = x.__dlpack__()
        seen = DLManagedTensor.from_address(get(capsule, b"dltensor"))
        self.assertEqual((seen.data, seen.device_type, seen.device_id), (x.data_ptr(), 12, 1))
        self.assertEqual((seen.code, seen.bits, list(seen.shape[:seen.ndim])), (2, 32, [2, 3]))

    def test_import_of_memory_that_another_library_owns(self):
        owner = torch.arange(6.0, device="devstream:1")
        deleted = []
        shape = (ctypes.c_int64 * 2)(3, 2)
        managed = DLManagedTensor(owner.data_ptr(), 12, 1, 2, 2, 32, 1, shape, None, 0, None,
                                  DLManagedTensor._fields_[-1][1](deleted.append))
        make = capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
                                ctypes.c_void_p)
        x = torch.from_dlpack(make(ctypes.addressof(managed), b"dltensor", None))
        self.assertEqual((x.data_ptr(), x.device), (owner.data_ptr(), owner.device))
        x += 1
        self.equal(owner, torch.arange(6.0) + 1)
        del x
        self.assertEqual(deleted, [ctypes.addressof(managed)])

    def test_import_of_a_tensor_shares_the_memory(self):
        x = torch.zeros(4, device="devstream:1")
        y = torch.from_dlpack(x)
        self.assertEqual((y.data_ptr(), y.device), (x.data_ptr(), x.device))
        y += 1
        self.equal(x, torch.ones(4))


def network(device):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(),
                          nn.Linear(16, 2))
    x, y = torch.randn(32, 8), torch.randn(32, 2)
    model = model.to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), x.to(device), y.to(device)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    error = model(x) - y
    loss = (error * error).mean()
    loss.backward()
    optimizer.step()
    return loss


class Training(Case):
    def test_a_training_equals_that_of_the_cpu(self):
        host, device = network("cpu"), network(DEV)
        for _ in range(5):
            self.equal(step(*device), step(*host).detach(), 1e-6)
        for on_device, on_host in zip(device[0].parameters(), host[0].parameters()):
            self.equal(on_device.detach(), on_host.detach(), 1e-6)

    def test_a_step_does_not_wait(self):
        host, device = network("cpu"), network(DEV)
        step(*host), step(*device)
        with Gate():
            loss = step(*device)
            self.assertFalse(torch.devstream.current_stream().query())
        self.equal(loss.detach(), step(*host).detach(), 1e-6)

    def test_threads_train_at_the_same_time(self):
        losses = {}

        def train(index, state):
            with torch.devstream.Stream(device=index % 2):
                losses[index] = [step(*state) for _ in range(20)][-1].item()

        states = [network(f"devstream:{index % 2}") for index in range(4)]
        torch.devstream.synchronize(0), torch.devstream.synchronize(1)
        threads = [threading.Thread(target=train, args=job) for job in enumerate(states)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        host = network("cpu")
        expected = [step(*host) for _ in range(20)][-1].item()
        self.assertEqual(sorted(losses), [0, 1, 2, 3])
        for loss in losses.values():
            self.assertAlmostEqual(loss, expected, delta=1e-6)

    def test_backward_runs_on_the_stream_of_forward(self):
        stream = torch.devstream.Stream()
        x = torch.ones(4, device=DEV, requires_grad=True)
        torch.devstream.synchronize()
        with stream, Gate():
            (x * 3).sum().backward()
            self.assertFalse(stream.query())
        self.equal(x.grad, torch.full((4,), 3.0))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"backend torch: {result.testsRun - failed} passed, {failed} failed")
    sys.exit(failed != 0)
