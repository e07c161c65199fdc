"""Tests of the device type custom_cpu: make backend-paddle."""
import os
import subprocess
import sys
import unittest

# Before Paddle is imported: two devices, errors of devstream on stderr, and no reports of start-up.
for name, value in {"DEVSTREAM_CPU_DEVICES": "2", "DEVSTREAM_LOG": "1", "GLOG_minloglevel": "2"}.items():
    os.environ.setdefault(name, value)

import numpy
import paddle


class Documents(unittest.TestCase):
    """The examples of Paddle's documents, unchanged."""

    EXAMPLES = {
        "Stream": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s1 = paddle.device.Stream()
            >>> s2 = paddle.device.Stream('custom_cpu')
            >>> s3 = paddle.device.Stream('custom_cpu:0')
            >>> s4 = paddle.device.Stream(paddle.CustomPlace('custom_cpu', 0))
        """,
        "record_event": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s = paddle.device.Stream()
            >>> e1 = s.record_event()

            >>> e2 = paddle.device.Event()
            >>> s.record_event(e2)
        """,
        "wait_event": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s1 = paddle.device.Stream()
            >>> s2 = paddle.device.Stream()
            >>> e = paddle.device.Event()
            >>> e.record(s1)
            >>> s2.wait_event(e)
        """,
        "wait_stream": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s1 = paddle.device.Stream()
            >>> s2 = paddle.device.Stream()
            >>> s1.wait_stream(s2)
        """,
        "query": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s = paddle.device.Stream()
            >>> s.query()
        """,
        "synchronize": """
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> s = paddle.device.Stream()
            >>> s.synchronize()
        """,
    }

    def test_examples_of_the_document(self):
        for name, text in self.EXAMPLES.items():
            with self.subTest(name):
                self.run_example(text)

    def test_examples_in_the_wheel(self):
        """The docstrings have the same examples, and some for events."""
        count = 0
        for owner in (paddle.device.Stream, paddle.device.Event):
            # Event.elapsed_time: Paddle has no timing for custom devices.
            texts = {name: getattr(member, "__doc__", None) for name, member in vars(owner).items() if name != "elapsed_time"}
            for name, text in {"class": owner.__doc__, **texts}.items():
                if text and "custom_cpu" in text:
                    with self.subTest(owner.__name__ + "." + name):
                        self.run_example(text)
                    count += 1
        self.assertGreaterEqual(count, 10)

    def run_example(self, text):
        lines = [line.strip() for line in text.splitlines()]
        exec("\n".join(line[4:] for line in lines if line.startswith((">>>", "..."))), {})


class Streams(unittest.TestCase):
    def setUp(self):
        paddle.set_device("custom_cpu")

    def long_work(self):
        """Enqueues products that take half a second; the result is exactly 1 everywhere."""
        ones = paddle.ones([512, 512])
        result = ones
        for _ in range(10):
            result = paddle.matmul(result, ones) * (1 / 512)
        return result

    def test_operators_do_not_wait(self):
        event = paddle.device.Event()

        result = self.long_work()
        event.record()

        self.assertFalse(event.query())
        self.assertFalse(paddle.device.current_stream().query())
        event.synchronize()
        self.assertTrue(event.query())
        self.assertTrue((result.numpy() == 1).all())

    def test_a_stream_waits_for_an_event(self):
        side = paddle.device.Stream()
        result = self.long_work()
        event = paddle.device.current_stream().record_event()

        side.wait_event(event)
        with paddle.device.stream_guard(side):
            twice = result + result

        self.assertFalse(side.query())
        side.synchronize()
        self.assertTrue((twice.numpy() == 2).all())

    def test_a_stream_does_not_wait_for_another(self):
        side = paddle.device.Stream()
        self.long_work()

        side.synchronize()

        self.assertFalse(paddle.device.current_stream().query())
        paddle.device.synchronize()
        self.assertTrue(paddle.device.current_stream().query())


class Memory(unittest.TestCase):
    def run_alone(self, code, **environment):
        """Runs a program with other variables; returns what it printed."""
        program = "import paddle\npaddle.set_device('custom_cpu')\n" + code
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env={**os.environ, **environment}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_copies_between_host_and_devices(self):
        values = numpy.arange(100000, dtype="float32")

        there = paddle.to_tensor(values, place=paddle.CustomPlace("custom_cpu", 0))
        peer = there._copy_to(paddle.CustomPlace("custom_cpu", 1), True)

        self.assertEqual(str(peer.place), "Place(custom_cpu:1)")
        self.assertTrue((peer.numpy() == values).all())

    def test_a_full_device_frees_what_paddle_keeps(self):
        out = self.run_alone(
            "a = paddle.zeros([10 << 20]); del a\nprint(paddle.zeros([12 << 20])[5].item())",
            DEVSTREAM_CPU_MEMORY=str(64 << 20),
            DEVSTREAM_LOG="0",  # of the first try
        )

        self.assertEqual(out, "0.0\n")

    def test_a_device_without_memory_raises(self):
        out = self.run_alone(
            "try: paddle.zeros([20 << 20])\nexcept MemoryError as e: print(e)",
            DEVSTREAM_CPU_MEMORY=str(64 << 20),
            DEVSTREAM_LOG="0",
        )

        self.assertIn("Cannot allocate 80.000000MB memory on custom_cpu:0", out)

    def test_a_process_ends_with_work_and_objects(self):
        self.run_alone("s = paddle.device.Stream()\ne = s.record_event()\nx = paddle.ones([500, 500])\ny = paddle.matmul(x, x)")


class Operators(unittest.TestCase):
    """Results and gradients are compared with those of Paddle on the host."""

    def setUp(self):
        # Without its kernel on this device an operator fails, instead of running on the host.
        paddle.set_flags({"FLAGS_enable_api_kernel_fallback": False})

    def tearDown(self):
        paddle.set_flags({"FLAGS_enable_api_kernel_fallback": True})

    def compare(self, function, *shapes):
        random = numpy.random.RandomState(7)
        values = [numpy.asarray(random.randn(*shape), "float32") for shape in shapes]
        results = []
        for device in ("cpu", "custom_cpu"):
            paddle.set_device(device)
            inputs = [paddle.to_tensor(value, stop_gradient=False) for value in values]
            out = function(*inputs)
            out.backward(paddle.full_like(out, 0.5))
            results.append([tensor.numpy() for tensor in [out] + [x.grad for x in inputs]])
        for expected, got in zip(*results):
            numpy.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_elementwise(self):
        for shapes in ([5, 7], [5, 7]), ([5, 7], [7]), ([7], [5, 7]), ([5, 1], [3, 1, 7]), ([], [4]):
            with self.subTest(shapes=shapes):
                self.compare(lambda x, y: x + y, *shapes)
                self.compare(lambda x, y: x - y, *shapes)
                self.compare(lambda x, y: x * y, *shapes)
        self.compare(lambda x: x * 3 + 2, [9])
        self.compare(paddle.nn.functional.relu, [100, 100])

    def test_mean(self):
        for arguments in ({}, {"axis": 0}, {"axis": [0, -1], "keepdim": True}):
            with self.subTest(**arguments):
                self.compare(lambda x: paddle.mean(x, **arguments), [4, 5, 6])

    def test_matmul(self):
        for tx in (False, True):
            for ty in (False, True):
                with self.subTest(tx=tx, ty=ty):
                    self.compare(lambda x, y: paddle.matmul(x, y, tx, ty), [5, 3] if tx else [3, 5], [4, 5] if ty else [5, 4])
        self.compare(paddle.matmul, [2, 3, 5], [5, 4])
        self.compare(lambda x, y: paddle.matmul(x.t(), y), [5, 3], [5, 4])

    def test_training(self):
        """A perceptron learns the mean of its inputs, with the same losses as on the host."""
        losses = {}
        for device in ("cpu", "custom_cpu"):
            paddle.set_device(device)
            random = numpy.random.RandomState(3)
            x, w1, w2 = (random.randn(*shape).astype("float32") for shape in ([64, 8], [8, 16], [16, 1]))
            inputs, wanted = paddle.to_tensor(x), paddle.to_tensor(x.mean(1, keepdims=True))
            weights = [paddle.to_tensor(w * numpy.float32(0.3), stop_gradient=False) for w in (w1, w2)]
            optimizer = paddle.optimizer.SGD(0.1, parameters=weights)
            steps = []
            for _ in range(100):
                difference = paddle.nn.functional.relu(inputs @ weights[0]) @ weights[1] - wanted
                loss = (difference * difference).mean()
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                steps.append(loss)
            losses[device] = [loss.item() for loss in steps]
        numpy.testing.assert_allclose(losses["custom_cpu"], losses["cpu"], rtol=1e-3)
        self.assertLess(losses["cpu"][-1], losses["cpu"][0] / 10)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"\nbackend paddle: {result.testsRun - failed} passed, {failed} failed")
    sys.exit(failed > 0)
