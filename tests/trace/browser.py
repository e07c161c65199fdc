"""A headless Chromium for tests, driven through the DevTools protocol on two pipes.

Pipes need no client library: messages are JSON texts that end in a zero byte.
"""
import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')


def path():
    """The browser's command: BROWSER_FOR_TESTS or a known name in PATH; None if there is none."""
    given = os.environ.get('BROWSER_FOR_TESTS')
    return given or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, width=1400, height=1000):
        self.folder = tempfile.TemporaryDirectory(prefix='browser')
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def descriptors():
            os.dup2(theirs_in, 200)
            os.dup2(theirs_out, 201)
            os.dup2(200, 3)
            os.dup2(201, 4)

        self.process = subprocess.Popen(
            [path(), '--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run',
             '--disable-extensions', '--disable-background-networking', '--remote-debugging-pipe',
             f'--window-size={width},{height}', '--user-data-dir=' + self.folder.name, 'about:blank'],
            preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours_in, 'rb'), os.fdopen(ours_out, 'wb')
        self.number, self.session, self.rest, self.errors = 0, None, b'', []
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'DOM'):
            self.call(domain + '.enable')
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def call(self, method, **parameters):
        """Sends a command and returns its result; remembers exceptions of the page on the way."""
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': parameters}
        if self.session:
            message['sessionId'] = self.session
        self.output.write(json.dumps(message).encode() + b'\0')
        self.output.flush()
        while True:
            answer = self._receive()
            if answer.get('method') == 'Runtime.exceptionThrown':
                self.errors.append(answer['params']['exceptionDetails'])
            if answer.get('id') == self.number:
                if 'error' in answer:
                    raise RuntimeError(f'{method}: {answer["error"]["message"]}')
                return answer['result']

    def _receive(self):
        parts = [self.rest]
        while b'\0' not in parts[-1]:
            data = os.read(self.input.fileno(), 1 << 16)
            if not data:
                raise RuntimeError('the browser has ended')
            parts.append(data)
        message, _, self.rest = b''.join(parts).partition(b'\0')
        return json.loads(message)

    def open(self, file, seconds=60):
        """Opens a page and returns the milliseconds until the page was drawn for the first time."""
        self.errors = []
        self.call('Page.navigate', url='file://' + os.path.abspath(file))
        return float(self.wait('document.readyState === "complete" && '
                               'document.documentElement.dataset.ready', seconds))

    def wait(self, expression, seconds=20):
        """The value of the expression as soon as it is true."""
        code = f'''new Promise((resolve, reject) => {{
            const end = performance.now() + {seconds * 1000};
            const look = () => {{
                const value = {expression};
                if (value) resolve(value);
                else if (performance.now() > end) reject(new Error('not true in time'));
                else setTimeout(look, 10);
            }};
            look();
        }})'''
        return self.js(code)

    def js(self, expression):
        result = self.call('Runtime.evaluate', expression=expression, awaitPromise=True,
                           returnByValue=True)
        if 'exceptionDetails' in result:
            details = result['exceptionDetails']
            text = details.get('exception', {}).get('description') or details['text']
            raise RuntimeError(f'{expression[:200]}: {text}')
        return result['result'].get('value')

    def frame(self):
        """Waits until what was asked for is drawn."""
        self.js('new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))')

    def key(self, key, shift=False):
        text = key if len(key) == 1 else '\r' if key == 'Enter' else ''
        for kind in ('keyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=key, modifiers=8 if shift else 0,
                      **({'text': text} if text and kind == 'keyDown' else {}))
        self.frame()

    def mouse(self, kind, x, y, **more):
        self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, **more)

    def click(self, x, y):
        for kind in ('mouseMoved', 'mousePressed', 'mouseReleased'):
            more = {} if kind == 'mouseMoved' else {'button': 'left', 'clickCount': 1}
            self.mouse(kind, x, y, **more)
        self.frame()

    def type(self, selector, text):
        self.js(f'(e => {{ e.focus(); e.select(); }})(document.querySelector({json.dumps(selector)}))')
        self.call('Input.insertText', text=text)
        self.frame()

    def choose_file(self, selector, file):
        root = self.call('DOM.getDocument')['root']['nodeId']
        node = self.call('DOM.querySelector', nodeId=root, selector=selector)['nodeId']
        self.call('DOM.setFileInputFiles', nodeId=node, files=[os.path.abspath(file)])

    def scheme(self, name):
        self.call('Emulation.setEmulatedMedia',
                  features=[{'name': 'prefers-color-scheme', 'value': name}])
        self.frame()

    def picture(self, file, whole=False, of=None):
        """Writes a picture of the window, of the whole page, or of the element of a selector."""
        clip = {} if not of else {'clip': {'scale': 1, **self.js(
            f"""(({{x, y, width, height}}) => ({{x, y, width, height}}))(
                document.querySelector({json.dumps(of)}).getBoundingClientRect())""")}}
        data = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=whole, **clip)['data']
        with open(file, 'wb') as out:
            out.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.call('Browser.close')
        except (RuntimeError, OSError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        try:
            self.folder.cleanup()
        except OSError:
            pass
