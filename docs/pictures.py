#!/usr/bin/env python3
"""Makes the pictures of trace.md: pictures.py OBJECT FOLDER, with the object file of the library.

The example pipeline is traced twice, as it is and with a wait that is too strict. A headless Chromium draws both timelines.
Without a browser, the pictures of docs/ stay.
"""
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path.insert(0, os.path.join(root, 'tests', 'trace'))
from browser import Browser, path  # noqa: E402

WAIT = '    DS_CHECK(ds_stream_wait_stream(copy_in, copy_back));\n'
FIRST = '    DS_CHECK(ds_copy(s->device_in,'
NX, NY = 8000, 640


def write_input(file):
    with open(file, 'wb') as out:
        out.write(b'P5\n%d %d\n255\n' % (NX, NY))
        row = bytes(x * x // 64 % 256 for x in range(NX + NY))
        for y in range(NY):
            out.write(row[y:y + NX])


def trace(name, source, library, folder):
    """Compiles the program and runs it with the trace layer. Returns the path of the trace."""
    file = os.path.join(folder, name)
    with open(file + '.c', 'w') as out:
        out.write(source.replace('#define DEVSTREAM_IMPLEMENTATION\n', ''))
    subprocess.run([*os.environ.get('CC', 'cc').split(), '-O1', '-I' + root, '-I' + os.path.join(root, 'examples'), file + '.c',
                    library, '-o', file, '-pthread', '-ldl', '-lm'], check=True)
    subprocess.run([file, os.path.join(folder, 'in.pgm')], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, 'DEVSTREAM_TRACE': file + '.html'})
    return file + '.html'


def main(library, target):
    if not path():
        print('docs: there is no browser (chromium), so the pictures of traces are those of docs/')
        return
    with open(os.path.join(root, 'examples', 'pipeline.c')) as text:
        source = text.read()
    assert source.count(FIRST) == 1
    with tempfile.TemporaryDirectory() as folder:
        write_input(os.path.join(folder, 'in.pgm'))
        browser = Browser(1000, 900)
        for name, text in ('before', source.replace(FIRST, WAIT + FIRST)), ('after', source):
            browser.open(trace(name, text, library, folder))
            browser.frame()
            browser.picture(os.path.join(target, f'trace-{name}.png'), of='section:has(#map)')
        browser.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
