"""Traces with known content, for the tests of the page."""
import random

from chunks import (ALLOC, BLOCKED, CALL, COPY, EVENT, FILL, FREE, FREED, HOST, KERNEL, LAUNCH, MARK, NODE,
                    NO_ROW, OOM, RACE, RANGE, STEP, WAIT, Trace)


def small(scale=1, name='pipeline'):
    """Three streams on two devices, every kind of record and every cause of a gap. Times in us * scale."""
    t = Trace(name)
    a, b = t.device('cpu:0'), t.device('cpu:1')
    copies, compute, other = t.stream(a, 'copies'), t.stream(a, 'compute'), t.stream(b, number=7)
    main = t.thread(4711, 'main')

    def us(x):
        return round(x * 1000 * scale)

    def op(kind, row, begin, end, enqueued, **more):
        return t.add(kind, row, us(begin), us(end), us(enqueued), **more)

    # copies: copy, no gap, fill, host late (40..70), copy.
    op(COPY, copies, 10, 30, 5, call='ds_copy', at='src/pipeline.c:20', amount=20 << 20, id=1, target=1)
    op(FILL, copies, 30, 40, 6, call='ds_fill', at='src/pipeline.c:21', amount=1 << 20, id=2)
    op(EVENT, copies, 40, 40.1, 7, call='ds_event_record', at='src/pipeline.c:22', id=3)
    op(COPY, copies, 70, 100, 69, call='ds_copy', at='src/pipeline.c:30', amount=30 << 20, id=4, source=1)
    # compute: waits for the fill (20..40), kernel, starting (60..65), graph of two nodes that overlap, then a
    # gap of host late (90..110), waiting for the second copy's stream (110..120) and starting (120..122).
    op(KERNEL, compute, 12, 20, 8, name='scale', call='ds_kernel_launch', at='src/pipeline.c:24', amount=1000, id=5)
    op(WAIT, compute, 20, 40.1, 9, call='ds_stream_wait_event', at='src/pipeline.c:25', id=6, cause=3)
    op(KERNEL, compute, 40.1, 60, 10, name='scale', call='ds_kernel_launch', at='src/pipeline.c:26', amount=1000,
       id=7)
    op(LAUNCH, compute, 65, 90, 11, name='step', call='ds_graph_launch', at='src/pipeline.c:27', id=8)
    op(NODE, compute, 66, 80, 11, name='left', at='src/nodes.c:3', id=9, cause=8, flags=2)
    op(NODE, compute, 70, 89, 11, name='right', at='src/nodes.c:4', id=10, cause=8, flags=2)
    op(WAIT, compute, 110, 120, 105, call='ds_stream_wait_event', at='src/pipeline.c:31', id=11, cause=12)
    op(KERNEL, compute, 122, 150, 108, name='sum', call='ds_kernel_launch', at='src/pipeline.c:32', amount=5000,
       id=13)
    # The other device: a host function, the step of a collective, and an operation that is not complete.
    op(HOST, other, 80, 120, 75, name='log <b>&amp;', call='ds_stream_launch_host_func', at='src/pipeline.c:33', id=12)
    op(STEP, other, 121, 140, 110, name='all_reduce', call='ds_comm_all_reduce', at='src/pipeline.c:34',
       amount=4 << 20, id=14, source=1, target=2)
    t.add(KERNEL, other, us(145), 0, us(112), name='endless', call='ds_kernel_launch', at='src/pipeline.c:36', id=15,
          flags=4)
    # The host: nested ranges, a call, a mark, and two calls that block.
    op(RANGE, main, 2, 120, 0, name='epoch')
    op(RANGE, main, 3, 68, 0, name='load')
    op(BLOCKED, main, 45, 66, 0, call='ds_stream_synchronize', at='src/pipeline.c:28', cause=7)
    op(CALL, main, 109, 111, 0, call='ds_comm_all_reduce', at='src/pipeline.c:34')
    op(MARK, main, 115, 115, 0, name='checkpoint')
    op(BLOCKED, main, 125, 150, 0, call='ds_stream_synchronize', at='src/pipeline.c:40', cause=13)
    # Memory: 48 MiB at most; one block is pending for a while; one allocation fails.
    for kind, when, where, mib in ((ALLOC, 1, 0x1000, 32), (ALLOC, 2, 0x2000, 16), (FREE, 72, 0x1000, 32),
                                   (FREED, 100, 0x1000, 32), (OOM, 101, 0, 64), (FREE, 130, 0x2000, 16)):
        t.add(kind, copies, us(when), us(when), where, call='ds_mem_alloc', at='src/pipeline.c:10',
              amount=mib << 20)
    t.add(ALLOC, NO_ROW, us(4), us(4), 0x3000, call='ds_device_alloc', at='src/pipeline.c:11', amount=8 << 20,
          target=2)
    t.add(RACE, compute, us(121), us(121), name='ds_kernel_launch at src/pipeline.c:32 reads 4096 bytes that ds_copy '
          'at src/pipeline.c:30 writes; no order', amount=0, id=13, cause=4)
    t.end = us(160)
    return t


def random_trace(operations, seed=1, streams=8):
    """Operations of all streams in turn, with waits, gaps, ranges and memory. Returns the trace and a list of
    (kind, stream, begin, end, name, bytes) for statistics."""
    r, t, plain = random.Random(seed), Trace('random'), []
    devices = [t.device('cpu:0'), t.device('cpu:1')]
    rows = [t.stream(devices[i * 2 // streams], f'part {i}') for i in range(streams)]
    main, names = t.thread(1, 'main'), [f'kernel_{i}' for i in range(100)]
    now, last, id, host = [0] * streams, [0] * streams, 0, 0
    kinds = (KERNEL, KERNEL, KERNEL, KERNEL, COPY, COPY, FILL, WAIT, HOST, EVENT)
    calls = {KERNEL: 'ds_kernel_launch', COPY: 'ds_copy', FILL: 'ds_fill', WAIT: 'ds_stream_wait_event',
             HOST: 'ds_stream_launch_host_func', EVENT: 'ds_event_record'}
    while id < operations:
        k = id % streams
        id += 1
        host += 500
        kind, length = kinds[int(r.random() * 10)], 500 + int(r.random() * 7500)
        begin, cause, size = max(now[k], host) + int(r.random() * 400), 0, 0
        if kind == WAIT:
            begin, cause = max(now[k], host), last[k - 1]
            length = max(0, now[k - 1] - begin)
        elif kind == EVENT:
            length = 20
        elif kind in (COPY, FILL):
            size = 1 << 10 + int(r.random() * 10)
        name = names[int(r.random() * 100)] if kind == KERNEL else ''
        t.add(kind, rows[k], begin, begin + length, host - 100, name=name, call=calls[kind],
              at=f'src/file_{int(r.random() * 20)}.c:{int(r.random() * 1000)}', amount=size, id=id, cause=cause)
        plain.append((kind, k, begin, begin + length, name or calls[kind], size))
        now[k], last[k] = begin + length, id
        if k == streams - 1:
            host = max(host, min(now) - 20000)
        if id % 400 == 0:
            t.add(ALLOC, rows[0], host, host, id, call='ds_mem_alloc', at='src/memory.c:3', amount=1 << 20)
            t.add(FREE, rows[0], host + 1000, host + 1000, id, amount=1 << 20)
            t.add(RANGE, main, host, host + 50000, name='step')
    t.end = max(now)
    return t, plain
