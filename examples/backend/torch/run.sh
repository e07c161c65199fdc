#!/bin/sh
# Builds the PyTorch backend under build/backend-torch and runs its tests: make backend-torch. run.sh bench.py: another script of test/.
# There: venv, a virtual environment with torch's wheel, and the package torch_devstream.
# BACKEND_DOWNLOAD=no: installs nothing, and skips the tests if the wheel is not there yet. TORCH=VERSION: another wheel.
# TORCH_PYTHON=python3: this interpreter, which has torch, instead of the virtual environment.
set -eu
cd "$(dirname "$0")/../../.."
here=examples/backend/torch
at=$(pwd)/build/backend-torch
TORCH=${TORCH:-2.15.0}
python=${TORCH_PYTHON:-$at/venv/bin/python}

skip() {
    echo "skip  backend-torch: $1"
    exit 0
}
imports() { "$python" -W ignore -c 'import torch._dynamo' >"$at/log" 2>&1; }
# A proxy that hangs must not hang the build.
install() {
    timeout 1500 "$python" -m pip --disable-pip-version-check install --quiet --retries 2 --only-binary=:all: "$@" >"$at/log" 2>&1
}
last() { tail -n 1 "$at/log" | cut -c 1-200; }

command -v "${CXX:-c++}" >/dev/null || skip "there is no C++ compiler (CXX=${CXX:-c++})"
mkdir -p "$at"
if ! imports; then
    [ -z "${TORCH_PYTHON:-}" ] || skip "$TORCH_PYTHON cannot import torch: $(last)"
    { [ "${BACKEND_DOWNLOAD:-}" != no ] && [ -z "${NO_INSTALL_DEPS:-}" ]; } ||
        skip "torch is not installed, and BACKEND_DOWNLOAD=no or NO_INSTALL_DEPS is set"
    python3 -m venv "$at/venv" >"$at/log" 2>&1 || skip "python3 makes no virtual environment: $(last)"
    # The wheel is made for CUDA and does not start without some of NVIDIA's packages. If the toolkit is installed, few are enough;
    # else torch's whole list of packages is installed, some GB.
    install --no-deps "torch==$TORCH" -r $here/requirements.txt || skip "pip installs no torch $TORCH: $(last)"
    imports || install "torch==$TORCH" || skip "pip does not install the packages of torch $TORCH: $(last)"
    imports || skip "torch cannot be imported: $(last)"
fi

# Without importing torch, which takes a second.
torch=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')
${MAKE:-make} --no-print-directory -j"$(nproc)" -f $here/Makefile B="$at" TORCH="$torch"
DEVSTREAM_CPU_DEVICES=2 DEVSTREAM_LOG=0 PYTHONPATH=$at PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1 \
    exec "$python" "$here/test/${1:-test_backend.py}"
