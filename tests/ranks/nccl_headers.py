#!/usr/bin/env python3
"""Takes nccl.h out of NVIDIA's wheels on PyPI, of which it reads only that part: nccl_headers.py [FOLDER [VERSION...]]

Prints the path of each header, FOLDER/VERSION/nccl.h (build/nccl without FOLDER). If the headers cannot be had, prints a line that
begins with "skip" and exits with 3.
"""
import json
import os
import subprocess
import sys
import urllib.request
import zipfile

VERSIONS = ('2.18.3', '2.19.3', '2.21.5', '2.24.3', '2.27.7', '2.29.7', '2.31.2', '2.32.3')
PACKAGE = 'nvidia-nccl-cu12'


class Remote:
    """A file of a server that is read by ranges of bytes."""

    def __init__(self, url):
        self.url = url
        self.at = 0
        with urllib.request.urlopen(urllib.request.Request(url, method='HEAD'), timeout=60) as answer:
            self.size = int(answer.headers['Content-Length'])

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, count=-1):
        end = self.size if count < 0 else min(self.size, self.at + count)
        if end <= self.at:
            return b''
        request = urllib.request.Request(self.url, headers={'Range': f'bytes={self.at}-{end - 1}'})
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status != 206:
                raise OSError('the server sends no ranges')
            data = answer.read()
        self.at += len(data)
        return data


def wheel(version):
    """The address of a wheel."""
    report = subprocess.run([sys.executable, '-m', 'pip', '--disable-pip-version-check', 'install', '--dry-run', '--quiet', '--no-deps',
                             '--ignore-installed', '--only-binary=:all:', '--report', '-', f'{PACKAGE}=={version}'],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300, check=True).stdout
    return json.loads(report)['install'][0]['download_info']['url']


def main(folder='build/nccl', *versions):
    for version in versions or VERSIONS:
        path = os.path.join(folder, version, 'nccl.h')
        if not os.path.exists(path):
            if os.environ.get('NO_INSTALL_DEPS'):
                print(f'skip  nccl.h {version}: NO_INSTALL_DEPS is set')
                return 3
            try:
                with zipfile.ZipFile(Remote(wheel(version))) as archive:
                    text = archive.read('nvidia/nccl/include/nccl.h')
            except (OSError, subprocess.SubprocessError, ValueError, KeyError, zipfile.BadZipFile) as error:
                print(f'skip  nccl.h {version}: {PACKAGE} cannot be read from PyPI ({type(error).__name__})')
                return 3
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'wb') as file:
                file.write(text)
        print(path)
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
