"""Writes traces in the format of devstream's HTML trace: a page, then chunks with records of 64 bytes."""
import base64
import json
import os
import struct
import zlib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PAGE = os.path.join(ROOT, 'src', 'trace', 'page.html')
KERNEL, COPY, FILL, HOST, EVENT, WAIT, VALUES, LAUNCH, NODE, STEP = range(1, 11)
BLOCKED, RANGE, MARK, CALL = range(16, 20)
ALLOC, FREE, OOM, FREED = range(24, 28)
RACE = 32
NO_ROW = 0xffffffff
RECORD = struct.Struct('<2I3Q4IQ2I')
assert RECORD.size == 64


class Trace:
    def __init__(self, program='program', driver='cpu', unix_ns=1764000000000000000):
        self.head = {'version': 1, 'program': program, 'driver': driver, 'unix_ns': str(unix_ns)}
        self.strings, self.numbers = [], {'': 0}
        self.devices, self.streams, self.threads, self.records = [], [], [], []
        self.dropped, self.end = 0, None

    def text(self, s):
        if s not in self.numbers:
            self.strings.append(s)
            self.numbers[s] = len(self.strings)
        return self.numbers[s]

    def device(self, name):
        self.devices.append(name)
        return len(self.devices) - 1

    def stream(self, device, label='', number=None):
        self.streams.append([device, self.text(label), len(self.streams) if number is None else number])
        return len(self.streams) - 1

    def thread(self, number, name=''):
        self.threads.append([number, self.text(name)])
        return len(self.threads) - 1

    def add(self, kind, row, begin, end, enqueued=0, name='', call='', at='', amount=0, id=0, cause=0,
            flags=0, source=0, target=0):
        """A record; `at` is file:line, source and target are device indices + 1."""
        file, _, line = at.rpartition(':')
        self.records.append(RECORD.pack(
            kind | flags << 8 | source << 16 | target << 24, row, begin, end, enqueued, self.text(name),
            self.text(call), self.text(file), int(line or 0), amount, id, cause))
        return id

    def chunks(self, each=8192, deflate=True):
        """The chunks' texts. All strings stand in the first one, then `each` records in each."""
        head = dict(self.head, strings=self.strings, devices=self.devices, streams=self.streams,
                    threads=self.threads)
        found = []
        for i in range(0, max(1, len(self.records)), each):
            data = b''.join(self.records[i:i + each])
            if data:
                name = 'deflated' if deflate else 'records'
                head[name] = base64.b64encode(zlib.compress(data, 1) if deflate else data).decode()
            found.append(head)
            head = {}
        if self.dropped:
            found[-1]['dropped'] = self.dropped
        if self.end is not None:
            found[-1]['end'] = self.end
        text = [json.dumps(c, separators=(',', ':')).replace('<', '\\u003c') for c in found]
        return [f'<script type=application/x-devstream>{t}</script>\n' for t in text]

    def write(self, file, **options):
        with open(PAGE) as page, open(file, 'w') as out:
            out.write(page.read())
            out.writelines(self.chunks(**options))
        return file
