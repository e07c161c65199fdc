#!/usr/bin/env python3
"""Tests of the page of a trace (src/trace/page.html) in a headless browser.

    page.py [PART]        the tests with PART in their name
    page.py --measure     opens 10^6 operations five times, each in a new browser, and prints the times
    page.py --pictures F  writes pictures of the page into the folder F

The traces are written by chunks.py, and their statistics are computed here by other means than in the page.
"""
import json
import os
import statistics
import sys
import tempfile
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import samples  # noqa: E402
from browser import Browser, path  # noqa: E402
from chunks import COPY, EVENT, FILL, HOST, KERNEL, LAUNCH, NODE, PAGE, STEP, WAIT, Trace  # noqa: E402

OPERATIONS = int(os.environ.get('TRACE_OPERATIONS', 1000000))
CAUSES = ('waiting', 'host late', 'starting', 'no work')


class Case:
    """A browser and a folder for files, with short forms of what tests ask of the page."""

    def __init__(self, browser, folder):
        self.browser, self.folder = browser, folder
        self.js, self.key, self.frame = browser.js, browser.key, browser.frame

    def file(self, name):
        return os.path.join(self.folder, name)

    def show(self, trace, **options):
        return self.browser.open(trace.write(self.file('trace.html'), **options))

    def show_text(self, text):
        with open(self.file('trace.html'), 'w') as out:
            out.write(text)
        return self.browser.open(self.file('trace.html'))

    def text(self, selector):
        return self.js(f'document.querySelector({json.dumps(selector)}).textContent')

    def notes(self):
        return self.js("[...document.querySelectorAll('#notes p')].map(p => p.textContent)")

    def table(self, id):
        """The lines of a table, as lists of texts."""
        return self.js(f"""[...document.querySelectorAll('#{id} tbody tr')].map(
            r => [...r.cells].map(c => c.textContent))""")

    def click_line(self, id, line):
        self.js(f"document.querySelectorAll('#{id} tbody tr')[{line}].click()")
        self.frame()

    def view(self):
        return [float(x) for x in self.js("document.querySelector('#map').dataset.view").split()]

    def place(self, row, time, lane=0):
        """The place in the window of a time (ns) in the row with this name."""
        return self.js(f"""(() => {{
            const r = rows.find(q => q.name === {json.dumps(row)}), box = $('map').getBoundingClientRect();
            return [box.left + X({time}), box.top + r.y - $('box').scrollTop + 3 + ({lane} + 0.5) * LANE];
        }})()""")

    def click(self, row, time, lane=0):
        self.browser.click(*self.place(row, time, lane))

    def details(self):
        return self.js("""[...document.querySelectorAll('#pick dt')].map(
            t => [t.textContent, t.className ? '' : t.nextSibling.textContent])""")

    def details_of(self, term):
        return [text for name, text in self.details() if name == term]

    def colour(self, row, time, lane=0):
        """The colour of a pixel of the timeline as #rrggbb."""
        x, y = self.place(row, time, lane)
        return self.js(f"""(() => {{
            const box = $('map').getBoundingClientRect();
            const d = $('map').getContext('2d').getImageData({x} - box.left, {y} - box.top, 1, 1).data;
            return '#' + [...d.slice(0, 3)].map(v => v.toString(16).padStart(2, '0')).join('');
        }})()""")

    def compare(self, file, opens=True):
        self.browser.choose_file('#other', file)
        if opens:
            self.browser.wait('!!B')
        else:
            self.browser.wait("$('notes').textContent.includes('Cannot open')")
        self.frame()

    def pieces(self):
        """The idle times of each stream: [begin, end, cause] by the name of the row."""
        return self.js("""Object.fromEntries(A.streamRows.map(r => [r.name, [...r.pieces.b].slice(0, r.pieces.n)
            .map((b, j) => [b, r.pieces.e[j], GAPS[r.pieces.c[j]][0]])]))""")


def same(actual, expected):
    assert actual == expected, f'\n    actual   {actual}\n    expected {expected}'


def has(text, *parts):
    for part in parts:
        assert part in text, f'{part!r} is not in {text!r}'


# ---- statistics by other means than in the page ----

def measure(length, intervals):
    """The time that is covered, by marking each point of a line of cells between all ends."""
    ends = sorted({0, length, *(x for pair in intervals for x in pair)})
    cells = {end: i for i, end in enumerate(ends)}
    covered = [0] * len(ends)
    for begin, end in intervals:
        for i in range(cells[begin], cells[end]):
            covered[i] += 1
    return [(ends[i], ends[i + 1], covered[i]) for i in range(len(ends) - 1)]


def idle_by_cause(works, waits, first, last):
    """Sums by cause: works are (begin, end, enqueued) of a stream, waits (begin, end)."""
    ends = {first, last}
    for begin, end, enqueued in works:
        ends.update((begin, end, min(max(first, enqueued), last)))
    for pair in waits:
        ends.update(pair)
    ends = sorted(ends)
    sums = dict.fromkeys(CAUSES, 0)
    begun = sorted(works)
    for begin, end in zip(ends, ends[1:]):
        if any(b <= begin and end <= e for b, e, _ in works):
            continue
        following = [q for b, _, q in begun if b >= end][:1]
        if any(b <= begin and end <= e for b, e in waits):
            cause = 'waiting'
        elif following and following[0] <= begin:
            cause = 'starting'
        elif following and begun[0][0] < begin:
            cause = 'host late'
        else:
            cause = 'no work'
        sums[cause] += end - begin
    return sums


# ---- tests: each is called with a Case ----

def test_rows_of_streams_threads_and_memory(c):
    c.show(samples.small())

    same(c.js("rows.map(r => r.heading || r.name)"), [
        'cpu:0', 'stream 0 copies', 'stream 1 compute', 'cpu:1', 'stream 7', 'host threads', 'thread 4711 main',
        'memory', 'cpu:0', 'cpu:1'])
    same(c.text('h1'), 'Trace of pipeline')
    has(c.text('#when'), 'cpu driver', '2025')
    same(c.notes(), [])


def test_records_without_compression_are_the_same(c):
    trace, _ = samples.random_trace(3000)
    c.show(trace, deflate=True, each=500)
    compressed = c.js('JSON.stringify([A.n, [...A.w], A.stats])')
    c.show(trace, deflate=False, each=700)

    same(c.js('JSON.stringify([A.n, [...A.w], A.stats])') == compressed, True)
    assert c.js('A.n') > 3000


def test_without_the_new_base64_functions(c):
    script = c.browser.call('Page.addScriptToEvaluateOnNewDocument', source='delete Uint8Array.fromBase64')
    c.show(samples.small(), deflate=False)
    c.browser.call('Page.removeScriptToEvaluateOnNewDocument', identifier=script['identifier'])

    same(c.js('[Uint8Array.fromBase64 === undefined, A.n]'), [True, len(samples.small().records)])


def test_large_traces_are_decoded_by_threads_or_without(c):
    trace, _ = samples.random_trace(80000)
    chunks = trace.chunks(each=4000)
    bad = [x.replace('"deflated":"', '"deflated":"AAAA') if i == 15 else x for i, x in enumerate(chunks)]
    with open(PAGE) as page:
        page = page.read()
    found = []
    for code in ('', 'delete window.Worker', "Worker = class { constructor() { throw new Error('no'); } }",
                 'Worker = class { postMessage() { setTimeout(() => this.onerror(), 20); } terminate() {} }'):
        script = c.browser.call('Page.addScriptToEvaluateOnNewDocument', source='workers = 0; if (window.Worker) '
                                'Worker = class extends Worker { constructor(u) { super(u); workers++; } };' + code)
        c.show_text(page + ''.join(chunks))
        found.append([c.js('A.n'), c.js('A.w.reduce((s, x) => (s * 31 + x) % 1000003)'), c.js('workers') > 0])
        c.show_text(page + ''.join(bad))
        found[-1].append(c.js('A.n'))
        c.browser.call('Page.removeScriptToEvaluateOnNewDocument', identifier=script['identifier'])

    same([len(trace.records), True, 60000], [found[0][0], found[0][2], found[0][3]])
    for other in found[1:]:
        same(other, [*found[0][:2], False, 60000])


def test_gaps_have_causes(c):
    c.show(samples.small())

    pieces = {name: [[b / 1000, e / 1000, cause] for b, e, cause in list] for name, list in c.pieces().items()}
    same(pieces['stream 0 copies'], [[1, 5, 'no work'], [5, 10, 'starting'], [40, 69, 'host late'],
                                     [69, 70, 'starting'], [100, 160, 'no work']])
    same(pieces['stream 1 compute'], [
        [1, 8, 'no work'], [8, 12, 'starting'], [20, 40.1, 'waiting'], [60, 65, 'starting'], [90, 108, 'host late'],
        [108, 110, 'starting'], [110, 120, 'waiting'], [120, 122, 'starting'], [150, 160, 'no work']])


def test_gaps_of_nodes_begin_at_the_launch(c):
    trace = Trace()
    device = trace.device('cpu:0')
    stream, lane = trace.stream(device, 'stream'), trace.stream(device, 'lane')
    for i, (enqueued, begin) in enumerate(((5000, 20000), (60000, 80000))):
        trace.add(LAUNCH, stream, begin, begin + 20000, enqueued, name='graph', id=10 * i + 1)
        trace.add(NODE, lane, begin + 1000, begin + 15000, begin + 1000, name='node', id=10 * i + 2, cause=10 * i + 1)
    trace.end = 100000
    c.show(trace)

    same(c.pieces()['stream 1 lane'], [[20000, 21000, 'starting'], [35000, 60000, 'host late'],
                                       [60000, 81000, 'starting'], [95000, 100000, 'no work']])
    c.click('stream 1 lane', 90000)
    same(c.details_of('Enqueued'), ['21 us before its begin'])


def test_gaps_of_a_random_trace(c):
    trace, plain = samples.random_trace(1500, seed=5)
    c.show(trace)

    sums = c.js('streamLines(A).map(x => [x.wait, x.late, x.start])')
    first, last = c.js('[A.from, A.to]')
    enqueued = {}
    for i, record in enumerate(plain):
        enqueued.setdefault(record[1], []).append((record, i))
    for stream, list in enqueued.items():
        queue = c.js(f'[...A.q].filter((q, i) => A.k[i] < 16 && A.r[i] === {stream})')
        works = [(r[2], r[3], q) for (r, _), q in zip(list, queue) if r[0] not in (WAIT, EVENT)]
        waits = [(r[2], r[3]) for r, _ in list if r[0] == WAIT]
        expected = idle_by_cause(works, waits, first, last)
        same(sums[stream], [expected[x] for x in CAUSES[:3]])
        assert sum(sums[stream]) > 0


def test_streams_of_a_random_trace(c):
    trace, plain = samples.random_trace(2000, seed=3)
    c.show(trace)

    lines = c.js('streamLines(A).map(x => [x.count, x.busy, x.overlap, x.rate])')
    length = c.js('A.to - A.from')
    busy = [[(r[2], r[3]) for r in plain if r[1] == s and r[0] not in (WAIT, EVENT)] for s in range(8)]
    for s, (count, share, overlap, rate) in enumerate(lines):
        mine = sum(e - b for b, e in busy[s])
        device = measure(max(r[3] for r in plain), sum(busy[s // 4 * 4:s // 4 * 4 + 4], []))
        others = sum(max(0, min(e, z) - max(b, a)) for b, e in busy[s] for a, z, n in device if n > 1)
        moved = [r for r in plain if r[1] == s and r[0] in (COPY, FILL, STEP)]
        same(count, len(busy[s]))
        same(round(share, 9), round(mine / length, 9))
        same(round(overlap, 9), round(others / mine, 9))
        same(round(rate, 3), round(sum(r[5] for r in moved) / sum(r[3] - r[2] for r in moved) * 1e9, 3))


def test_operations_of_a_random_trace(c):
    trace, plain = samples.random_trace(5000, seed=4)
    c.show(trace)

    stats = {(x['kind'], x['name']): [x['count'], x['total'], x['most'], x['amount']] for x in c.js('A.stats')}
    expected = {}
    for kind, _, begin, end, name, size in plain:
        count, total, most, amount = expected.get((kind, name), (0, 0, 0, 0))
        expected[kind, name] = [count + 1, total + end - begin, max(most, end - begin), amount + size]
    same({k: v for k, v in stats.items() if k[0] < 16}, expected)


def test_tables_of_a_small_trace(c):
    c.show(samples.small())

    same(c.table('streams')[0], ['stream 0 copies, cpu:0', '3', '38 %', '47 %', '891 GB/s', '0 ns', '29 us', '6 us',
                                 '30 us'])
    names = {line[0]: line[1:] for line in c.table('names')}
    same(names['scale'], ['kernel', '2', '27.9 us', '13.9 us', '19.9 us', '71.7 M/s'])
    same(names['ds_copy'], ['copy', '2', '50 us', '25 us', '30 us', '1.05 TB/s'])
    same(c.table('gaps')[0], ['stream 1 compute, cpu:0', '32 us', 'host late (56 %)',
                              'step, ds_graph_launch at src/pipeline.c:27', 'sum, ds_kernel_launch at src/pipeline.c:32'])
    same(c.table('waits')[2], ['stream 1 compute', '20.1 us', 'ds_stream_wait_event at src/pipeline.c:25',
                               'event record on stream 0 copies', 'ds_event_record at src/pipeline.c:22'])
    same(c.table('ooms'), [['ds_mem_alloc at src/pipeline.c:10', '64 MiB', '101 us']])


def test_a_heading_sorts(c):
    c.show(samples.small())
    before = [line[0] for line in c.table('names')]

    c.js("[...document.querySelectorAll('#names th button')].find(b => b.textContent.startsWith('Name')).click()")

    names = [line[0] for line in c.table('names')]
    same(names, sorted(names))
    assert names != before


def test_details_of_a_clicked_operation(c):
    c.show(samples.small())

    c.click('stream 1 compute', 140000)

    same(c.details()[0][0], 'kernel: sum (cpu:0, stream 1 compute)')
    same(c.details_of('Ran'), ['28 us, from 122 us to 150 us'])
    same(c.details_of('Call'), ['ds_kernel_launch at src/pipeline.c:32'])
    same(c.details_of('Enqueued'), ['14 us before its begin'])
    same(c.details_of('Idle before'), [
        '18 us host late', '2 us starting',
        '10 us waiting for host function log <b>&amp; on stream 7, ds_stream_launch_host_func at src/pipeline.c:33', '2 us starting'])
    same(c.details_of('Waiting for it'), ['host wait on thread 4711 main, 25 us, ds_stream_synchronize at src/pipeline.c:40'])
    has(c.details_of('Race')[0], 'no order')


def test_details_of_lanes_and_states(c):
    c.show(samples.small())

    c.click('stream 1 compute', 85000, 2)
    same(c.details()[0][0], 'graph node: right (cpu:0, stream 1 compute)')
    same(c.details_of('Launch'), ['graph launch step on stream 1 compute, ds_graph_launch at src/pipeline.c:27'])
    c.click('stream 7', 150000)
    same(c.details_of('State'), ['not complete when the trace ended'])
    same(c.details_of('Ran'), ['15 us, from 145 us to 160 us'])
    c.click('stream 0 copies', 80000)
    same(c.details_of('Bytes'), ['30 MiB, 1.05 TB/s, cpu:0 to host'])


def test_details_of_a_gap_lead_to_its_cause(c):
    c.show(samples.small())

    c.click('stream 1 compute', 30000)
    same(c.details()[0][0], 'Gap: waiting (cpu:0, stream 1 compute)')
    has(c.details_of('Waited for')[0], 'event record', 'src/pipeline.c:22')
    c.key('c')
    same(c.details()[0][0], 'event record: ds_event_record (cpu:0, stream 0 copies)')
    c.click('stream 0 copies', 60000)
    same(c.details()[0][0], 'Gap: host late (cpu:0, stream 0 copies)')
    same(c.details_of('Host'), ['stood for 21 us in host wait on thread 4711 main, ds_stream_synchronize at src/pipeline.c:28'])
    same([x[:12] for x in c.details_of('Before') + c.details_of('After')], ['fill on stre', 'copy on stre'])


def test_the_tip_names_the_operation_under_the_pointer(c):
    c.show(samples.small())

    c.browser.mouse('mouseMoved', *c.place('stream 0 copies', 20000))
    c.frame()

    has(c.text('#tip'), 'copy: ds_copy', 'Call: ds_copy at src/pipeline.c:20', 'Enqueued: 5 us before its begin',
        '20 MiB')
    same(c.js("getComputedStyle($('tip')).display"), 'block')


def test_the_tip_names_memory(c):
    c.show(samples.small())
    x, y = c.place('stream 0 copies', 80000)
    y += c.js("rows.find(r => r.memory).y - rows.find(r => r.name === 'stream 0 copies').y + 20")

    c.browser.mouse('mouseMoved', x, y)
    c.frame()

    has(c.text('#tip'), '16 MiB allocated', '32 MiB pending')
    same(c.js("A.rows.filter(r => r.memory).map(r => [r.name, r.peak / 1048576, [...r.live].map(x => x / 1048576)])"), [
        ['cpu:0', 48, [32, 48, 16, 16, 16, 0]], ['cpu:1', 8, [8]]])


def test_colours_of_operations_and_gaps(c):
    for scheme in ('light', 'dark'):
        c.browser.scheme(scheme)
        c.show(samples.small())

        colours = c.js("GAPS.map(x => css(x[1]))")
        same(c.colour('stream 1 compute', 25000), colours[0])
        same(c.colour('stream 1 compute', 95000), colours[1])
        same(c.colour('stream 1 compute', 62500), colours[2])
        same(c.colour('stream 0 copies', 95000), c.js('WORK[1][1]'))
        same(c.colour('stream 1 compute', 85000, 2), c.js('WORK[0][1]'))
    c.browser.scheme('light')


def test_arrows_lead_from_the_operation_to_the_end_of_the_wait(c):
    c.show(samples.small())

    c.js("""drawn = []; was = arrow; arrow = (x, y, z, v, colour, strong) => {
        drawn.push([round(timeAt(x)) / 1000, rows.find(r => y > r.y && y < r.y + r.h).name, round(timeAt(z)) / 1000,
                    rows.find(r => v > r.y && v < r.y + r.h).name, colour]);
        was(x, y, z, v, colour, strong);
    }; draw(); 0""")

    wait, race = c.js("[css('--arrow'), css('--bad')]")
    same(sorted(c.js('drawn')), [
        [40.1, 'stream 0 copies', 40.1, 'stream 1 compute', wait],
        [60, 'stream 1 compute', 66, 'thread 4711 main', wait],
        [100, 'stream 0 copies', 122, 'stream 1 compute', race],
        [120, 'stream 7', 120, 'stream 1 compute', wait],
        [150, 'stream 1 compute', 150, 'thread 4711 main', wait]])


def test_arrows_can_be_left_out(c):
    c.show(samples.small())
    same(c.js("$('map').dataset.arrows"), '4')

    c.js("$('arrows').click()")
    c.frame()

    same(c.js("$('map').dataset.arrows"), '0')


def test_races_are_listed_and_red(c):
    c.show(samples.small())

    same(len(c.table('races')), 1)
    has(c.table('races')[0][0], 'reads 4096 bytes that ds_copy at src/pipeline.c:30 writes')
    c.click_line('races', 0)
    same(c.details()[0][0], 'Race')
    has(c.details_of('Later')[0], 'kernel sum on stream 1 compute, ds_kernel_launch at src/pipeline.c:32')
    spot = c.js('shownArrows.map(a => [a.x, a.y])[0]')
    same(c.js(f"""(() => {{ const d = $('map').getContext('2d').getImageData({spot[0]} - 6, {spot[1]}, 1, 1).data;
        return d[0] > 150 && d[1] < 120 && d[2] < 120; }})()"""), True)


def test_a_race_is_read_by_a_click(c):
    c.show(samples.small())

    c.browser.click(*c.js("""(() => { const box = $('map').getBoundingClientRect(), a = shownArrows[0];
        return [a.x + box.left, a.y + box.top]; })()"""))

    same(c.details()[0][0], 'Race')


def test_keys_zoom_and_move(c):
    c.show(samples.small())
    begin, end = c.view()
    width, middle = end - begin, (begin + end) / 2

    c.key('w')
    same([round(x) for x in c.view()], [round(middle - 0.35 * width), round(middle + 0.35 * width)])
    c.key('s')
    same([round(x) for x in c.view()], [round(begin), round(end)])
    c.key('+')
    c.key('+')
    zoomed = c.view()
    same(round(zoomed[1] - zoomed[0]), round(0.49 * width))
    c.key('d')
    same([round(x) for x in c.view()], [round(x + 0.2 * 0.49 * width) for x in zoomed])
    c.key('a')
    c.key('-')
    c.js("$('map').focus()")
    c.key('ArrowRight')
    c.key('ArrowLeft')
    c.key('-')
    same([round(x) for x in c.view()], [round(begin), round(end)])
    c.key('w')
    c.key('f')
    same([round(x) for x in c.view()], [round(begin), round(end)])


def test_keys_select(c):
    c.show(samples.small())
    c.click('stream 0 copies', 20000)

    c.key('n')
    same(c.details()[0][0], 'fill: ds_fill (cpu:0, stream 0 copies)')
    c.key('p')
    same(c.details_of('Ran'), ['20 us, from 10 us to 30 us'])
    c.key('m')
    begin, end = c.view()
    assert 10000 - 50000 < begin < 10000 and 30000 < end < 80000 and end - begin < 101000, c.view()
    c.key('Escape')
    has(c.text('#pick'), 'Click an operation')


def test_help_opens_and_closes(c):
    c.show(samples.small())

    c.key('?')
    same(c.js("$('keys').open"), True)
    has(c.text('#keys'), 'zoom in and out', 'host had not enqueued the next operation')
    c.js("$('keys').querySelector('button').click()")
    same(c.js("$('keys').open"), False)


def test_the_wheel_zooms_at_the_pointer(c):
    c.show(samples.small())
    x, y = c.place('stream 1 compute', 100000)
    begin, end = c.view()

    c.browser.mouse('mouseWheel', x, y, deltaX=0, deltaY=-300)
    c.browser.wait(f"$('map').dataset.view !== '{c.js('view.from')} 0' && view.to - view.from < {end - begin} * 0.8")
    c.frame()

    same(round(c.place('stream 1 compute', 100000)[0]), round(x))


def test_dragging_moves(c):
    c.show(samples.small())
    c.key('w')
    x, y = c.place('stream 1 compute', 80000)

    c.browser.mouse('mousePressed', x, y, button='left', clickCount=1)
    c.browser.mouse('mouseMoved', x + 100, y, button='left', buttons=1)
    c.browser.mouse('mouseReleased', x + 100, y, button='left', clickCount=1)
    c.frame()

    same(round(c.place('stream 1 compute', 80000)[0]), round(x + 100))
    has(c.text('#pick'), 'Click an operation')


def test_search_finds_names_labels_and_files(c):
    c.show(samples.small())
    for text, count in (('LEFT', '1 match'), ('nodes.c', '2 matches'), ('compute', '8 matches'), ('nothing', '0 matches'),
                        ('ds_stream_synchronize', '2 matches')):
        c.browser.type('#find', text)
        same(c.text('#found'), count)


def test_search_selects_matches_in_turn(c):
    c.show(samples.small())
    c.key('/')
    same(c.js("document.activeElement.id"), 'find')

    c.browser.type('#find', 'nodes.c')
    c.key('Enter')
    same(c.details()[0][0], 'graph node: left (cpu:0, stream 1 compute)')
    c.key('Enter')
    same(c.details()[0][0], 'graph node: right (cpu:0, stream 1 compute)')
    c.key('Escape')
    same([c.text('#found'), c.js("$('find').value")], ['', ''])


def test_search_dims_other_operations(c):
    c.show(samples.small())
    c.browser.type('#find', 'left')

    same(c.colour('stream 1 compute', 78000, 1), c.js('WORK[0][1]'))
    assert c.colour('stream 1 compute', 130000) != c.js('WORK[0][1]')


def test_clicked_lines_select(c):
    c.show(samples.small())

    c.js("[...document.querySelectorAll('#names tbody tr')].find(r => r.cells[0].textContent === 'ds_copy').click()")
    same(c.details_of('Ran'), ['30 us, from 70 us to 100 us'])
    c.click_line('gaps', 0)
    same(c.details()[0][0], 'Gap: host late (cpu:0, stream 1 compute)')
    c.click_line('waits', 2)
    same(c.details()[0][0], 'wait: ds_stream_wait_event (cpu:0, stream 1 compute)')
    c.click_line('streams', 2)
    same({line[0] for line in c.table('gaps')}, {'stream 7, cpu:1'})


def test_a_cut_file_opens_up_to_the_last_whole_chunk(c):
    trace, _ = samples.random_trace(1000)
    with open(PAGE) as page:
        page = page.read()
    chunks = trace.chunks(each=200)
    whole, last = page + ''.join(chunks[:-1]), chunks[-1]
    records = 200 * (len(chunks) - 1)
    for keep in (10, 45, len(last) // 2, len(last) - 12, len(last) - 6):
        c.show_text(whole + last[:keep])
        same(c.js('A.n'), records)
        has(c.notes()[-1], 'ended irregularly')
        if keep > 40:
            has(c.notes()[0], '1 chunk at the end could not be read')

    c.show_text(whole)
    same([c.js('A.n'), len(c.notes())], [records, 1])
    c.show_text(whole + last)
    same([c.js('A.n'), c.notes()], [len(trace.records), []])


def test_damaged_records_end_the_trace(c):
    trace, _ = samples.random_trace(1000)
    with open(PAGE) as page:
        page = page.read()
    chunks = trace.chunks(each=300)
    chunks[2] = chunks[2].replace('"deflated":"', '"deflated":"AAAA')

    c.show_text(page + ''.join(chunks))

    same(c.js('A.n'), 600)
    has(c.notes()[0], '2 chunks at the end could not be read')


def test_dropped_records_are_told(c):
    trace = samples.small()
    trace.dropped = 1234
    c.show(trace)

    has(c.notes()[0], '1,234 records were dropped')


def test_an_empty_trace_says_so(c):
    c.show(Trace('nothing'))
    has(c.notes()[-1], 'This trace is empty')
    same(c.js("$('all').hidden"), True)

    with open(PAGE) as page:
        c.show_text(page.read())
    has(c.notes()[-1], 'This trace is empty')


def test_a_trace_with_memory_only(c):
    trace = Trace()
    trace.stream(trace.device('cpu:0'))
    trace.add(24, 0, 1000, 1000, 1, amount=4096)
    trace.end = 2000
    c.show(trace)

    same(c.js('rows.map(r => r.heading || r.name)'), ['memory', 'cpu:0'])


def test_records_of_later_kinds(c):
    trace = samples.small()
    trace.add(13, 0, 110000, 120000, 109000, name='later', id=98)
    trace.add(40, 0, 1000, 1000, 0, name='later')
    c.show(trace)

    c.click('stream 0 copies', 115000)

    same(c.details()[0][0], 'operation of kind 13: later (cpu:0, stream 0 copies)')
    same(c.js('rows.length'), 10)


def test_records_out_of_order(c):
    trace, plain = samples.random_trace(3000, seed=8)
    c.show(trace)
    expected = c.js('JSON.stringify([streamLines(A).map(x => [x.count, x.busy, x.overlap, x.wait, x.late, x.gap])])')

    trace.records.reverse()
    c.show(trace)

    same(c.js('JSON.stringify([streamLines(A).map(x => [x.count, x.busy, x.overlap, x.wait, x.late, x.gap])])'), expected)


def test_names_are_text(c):
    trace = samples.small()
    trace.add(KERNEL, 1, 155000, 158000, 1, name='</script><img src=x onerror="document.title=1">', id=99)
    c.show(trace)

    same(c.js("document.querySelectorAll('img').length"), 0)
    assert '</script><img src=x onerror="document.title=1">' in [line[0] for line in c.table('names')]


def test_comparison_shows_differences(c):
    samples.small(1.2).write(c.file('slower.html'))
    c.show(samples.small())

    c.compare(c.file('slower.html'))

    has(c.js("rows.filter(r => r.title).map(r => r.title)")[1], 'B: slower.html')
    names = {line[0]: line[1:] for line in c.table('names')}
    same(names['ds_copy'], ['copy', '2\u00b1 0', '50 us+10 us (+20 %)', '25 us+5 us (+20 %)', '30 us+6 us (+20 %)',
                            '1.05 TB/s\u2212175 GB/s (\u221217 %)'])
    same(c.table('streams')[1][4:6], ['-', '30.1 us+6.02 us (+20 %)'])
    same(c.table('streams')[0][5], '0 ns')
    # Both begin at the same place, and one time scale holds for both.
    same(c.js("[round(X(A.b[0] + A.shift) - X(B.b[0] + B.shift)), A.b[0], B.b[0]]"), [0, 10000, 12000])
    c.click('stream 0 copies', 20000)
    has(c.details()[0][0], 'A: cpu:0, stream 0 copies')


def test_comparison_ends(c):
    samples.small(1.2).write(c.file('slower.html'))
    c.show(samples.small())
    before = c.table('names')
    c.compare(c.file('slower.html'))

    c.js("$('apart').click()")
    c.frame()

    same(c.table('names'), before)
    same(c.js("rows.filter(r => r.title).length"), 0)


def test_comparison_of_other_operations(c):
    other = samples.small()
    other.add(KERNEL, 1, 151000, 153000, 150000, name='new_kernel', id=77)
    other.records = other.records[1:]  # without the first copy
    other.write(c.file('other.html'))
    c.show(samples.small())

    c.compare(c.file('other.html'))

    names = {line[0]: line[1:] for line in c.table('names')}
    same(names['new_kernel'][1:3], ['-only in B: 1', '-only in B: 2 us'])
    same(names['ds_copy'][1], '2\u22121 (\u221250 %)')


def test_comparison_runs_no_code_of_the_other_file(c):
    with open(samples.small(1.2).write(c.file('code.html'))) as file:
        text = file.read()
    with open(c.file('code.html'), 'w') as out:
        out.write('<img src=x onerror="document.title=1"><script>document.title = 1</script>' + text)
    c.show(samples.small())
    title = c.js('document.title')

    c.compare(c.file('code.html'))

    same([c.js('document.title'), c.js('B.n')], [title, len(samples.small().records)])


def test_comparison_refuses_other_files(c):
    with open(c.file('no.html'), 'w') as out:
        out.write('<p>no trace</p>')
    c.show(samples.small())

    c.compare(c.file('no.html'), opens=False)

    has(c.notes()[-1], 'Cannot open no.html', 'no records of a devstream trace')
    same(c.js('B'), None)


def test_contrast_and_names_of_controls(c):
    def light(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(a, b):
        a, b = sorted((light(a.replace('#fff', '#ffffff')[:7]), light(b.replace('#fff', '#ffffff')[:7])))
        return (b + 0.05) / (a + 0.05)

    for scheme in ('light', 'dark'):
        c.browser.scheme(scheme)
        c.show(samples.small())
        colours = c.js("Object.fromEntries(['text', 'soft', 'card', 'back', 'bad', 'good', 'arrow'].map(x => [x, css('--' + x)]))")
        for name in ('text', 'soft', 'bad', 'good', 'arrow'):
            for ground in ('card', 'back'):
                assert contrast(colours[name], colours[ground]) >= 4.5, (scheme, name, ground)
        for name, colour in c.js('WORK.concat(HOST)'):
            assert contrast(colour, '#ffffff') >= 4.5, (name, contrast(colour, '#ffffff'))
    c.browser.scheme('light')
    same(c.js("""[...document.querySelectorAll('button,input,canvas')].filter(e => !e.textContent.trim() && !e.ariaLabel &&
        !e.closest('label')).length"""), 0)
    same(c.js("[$('map').tabIndex, document.querySelector('tbody tr').tabIndex]"), [0, 0])


def test_many_operations_are_drawn_with_few_rectangles(c):
    trace, plain = samples.random_trace(OPERATIONS)
    ms = c.show(trace)
    print(f'      {len(trace.records)} records, {os.path.getsize(c.file("trace.html")) / 1e6:.1f} MB: drawn after '
          f'{ms:.0f} ms')

    c.js("""rectangles = 0; was = CanvasRenderingContext2D.prototype.fillRect;
        CanvasRenderingContext2D.prototype.fillRect = function(...a) { rectangles++; was.apply(this, a); }; 0""")
    most = c.js("""(() => { let most = 0; fit();
        for (let k = 0; k < 60; k++) { rectangles = 0; draw(); most = max(most, rectangles); zoom(0.8); }
        return most; })()""")
    assert most < 20000, most
    stats = {(x['kind'], x['name']): x for x in c.js('A.stats')}
    for kind, name in ((KERNEL, 'kernel_7'), (COPY, 'ds_copy'), (HOST, 'ds_stream_launch_host_func'), (FILL, 'ds_fill')):
        times = [end - begin for k, _, begin, end, n, _ in plain if k == kind and n == name]
        same([stats[kind, name][x] for x in ('count', 'total', 'most')], [len(times), sum(times), max(times)])


def test_thousands_of_streams(c):
    trace, _ = samples.random_trace(60000, streams=3000)
    c.show(trace)

    same(c.js("[A.streamRows.length, document.querySelectorAll('#streams tbody tr').length]"), [3000, 101])
    has(c.table('streams')[-1][0], 'and 2,900 more')
    shares = c.js('A.streamRows.map(r => r.overlap / r.busyTime)')
    assert all(0 < x <= 1 for x in shares)


def test_columns_show_the_shares_of_their_time(c):
    """Zoomed out, the height of a colour in a column of pixels is its share of the time."""
    trace = Trace()
    stream = trace.stream(trace.device('cpu:0'))
    for i in range(4000):  # 60 % kernels, 20 % copies, 20 % host late
        trace.add(KERNEL, stream, i * 1000, i * 1000 + 600, i * 1000 - 1 if i else 0, name='k', id=2 * i + 1)
        trace.add(COPY, stream, i * 1000 + 600, i * 1000 + 800, 0, call='ds_copy', id=2 * i + 2)
    trace.end = 4000 * 1000
    c.show(trace)

    column = c.js("""(() => { const r = rows[1], d = $('map').getContext('2d').getImageData(NAMES + 400, r.y + 3, 1, LANE - 2).data;
        const found = {}; for (let i = 0; i < d.length; i += 4) {
            const x = '#' + [d[i], d[i + 1], d[i + 2]].map(v => v.toString(16).padStart(2, '0')).join(''); found[x] = (found[x] || 0) + 1; }
        return [found[WORK[0][1]], found[WORK[1][1]], found[css('--late')]]; })()""")

    same(column, [9, 3, 3])


# ---- running ----

def run(part):
    tests = [(n[5:], f) for n, f in globals().items() if n.startswith('test_') and part in n]
    passed, failed = 0, []
    browser = None
    with tempfile.TemporaryDirectory(prefix='trace') as folder:
        for name, test in tests:
            browser = browser or Browser()
            try:
                test(Case(browser, folder))
                assert not browser.errors, browser.errors
                passed += 1
                print('ok   ', name, flush=True)
            except Exception:  # the browser may be in any state
                failed.append(name)
                print('FAIL ', name)
                print('\n'.join('      ' + line for line in traceback.format_exc().splitlines()[-9:]), flush=True)
                browser.close()
                browser = None
        if browser:
            browser.close()
    print(f'trace page: {passed} passed, {len(failed)} failed')
    return 1 if failed or not tests else 0


def measure_opening():
    times = []
    with tempfile.TemporaryDirectory(prefix='trace') as folder:
        trace, _ = samples.random_trace(OPERATIONS)
        file = trace.write(os.path.join(folder, 'trace.html'))
        for _ in range(5):
            browser = Browser()
            times.append(browser.open(file))
            browser.close()
        size = os.path.getsize(file) / 1e6
    print(f'{len(trace.records)} records, {size:.1f} MB: drawn after {", ".join(f"{t:.0f}" for t in times)} ms; median '
          f'{statistics.median(times):.0f} ms')
    return 0


def pictures(folder):
    browser = Browser()
    file = samples.small().write(os.path.join(folder, 'trace.html'))
    other = samples.small(1.2).write(os.path.join(folder, 'slower.html'))
    for scheme in ('light', 'dark'):
        browser.scheme(scheme)
        browser.open(file)
        browser.picture(os.path.join(folder, f'{scheme}.png'))
        browser.js('pick(find(A, byId(A, 13)), true); zoom(0.4, X(120000))')
        browser.frame()
        browser.picture(os.path.join(folder, f'{scheme}-details.png'))
        browser.choose_file('#other', other)
        browser.wait('!!B')
        browser.frame()
        browser.picture(os.path.join(folder, f'{scheme}-comparison.png'), whole=True)
    browser.close()
    return 0


if __name__ == '__main__':
    arguments = sys.argv[1:]
    if not path():
        print('skip  trace page: there is no browser (chromium)')
        sys.exit(0)
    if arguments[:1] == ['--measure']:
        sys.exit(measure_opening())
    if arguments[:1] == ['--pictures']:
        sys.exit(pictures(arguments[1]))
    sys.exit(run(arguments[0] if arguments else ''))
