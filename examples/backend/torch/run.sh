#!/bin/sh
# Builds and tests the PyTorch backend (`make backend-torch`): makes a virtual environment in build/, installs PyTorch's wheel
# there through pip as it is set up here, compiles the extension, and runs its tests, or the script that is named: run.sh bench.py.
#   TORCH_PYTHON=python3  uses this interpreter, which has torch, instead of the virtual environment
#   NO_PACKAGES=1         installs nothing: skips unless the packages are there
# It prints one line "skip  backend-torch: REASON" and succeeds if the packages cannot be installed.
set -eu
cd "$(dirname "$0")/../../.."
here=examples/backend/torch
build=build/backend-torch
version=2.15.0
script=${1:-test_backend.py}
python=${TORCH_PYTHON:-$build/venv/bin/python}

skip() {
    echo "skip  backend-torch: $1"
    exit 0
}

imports() { "$python" -W ignore -c 'import torch._dynamo' >"$build/import.log" 2>&1; }

install() { timeout 1500 "$python" -m pip --disable-pip-version-check install --quiet --retries 2 "$@" >>"$build/pip.log" 2>&1; }

command -v "${CXX:-c++}" >/dev/null || skip "no C++ compiler (CXX)"
mkdir -p "$build"
if ! { [ -x "$python" ] || command -v "$python" >/dev/null; } || ! imports; then
    [ -z "${TORCH_PYTHON:-}" ] || skip "TORCH_PYTHON=$TORCH_PYTHON cannot import torch ($build/import.log)"
    [ -z "${NO_PACKAGES:-}" ] || skip "NO_PACKAGES is set, and $build/venv has no torch"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "no python3 of version 3.11 or newer"
    python3 -m venv "$build/venv" >"$build/pip.log" 2>&1 || skip "python3 cannot make a virtual environment ($build/pip.log)"
    # The wheel for CUDA needs some of NVIDIA's packages to be imported. Where the toolkit is installed these few are enough.
    install --no-deps "torch==$version" -r "$here/requirements.txt" || skip "pip cannot install torch $version ($build/pip.log)"
    imports || install "torch==$version" || skip "pip cannot install what torch $version needs ($build/pip.log)"
    imports || skip "torch cannot be imported ($build/import.log)"
fi

torch=$("$python" -W ignore -c 'import torch; print(torch.__path__[0])')
${MAKE:-make} --no-print-directory -j"$(nproc)" -f $here/Makefile B="$build" TORCH="$torch"
DEVSTREAM_CPU_DEVICES=2 PYTHONPATH=$build exec "$python" -W ignore $here/test/"$script"
