#!/bin/sh
# Builds the plugin under build/backend-paddle and runs its tests: make backend-paddle.
# There: venv, a virtual environment with the wheel of Paddle, and plugins, the folder for CUSTOM_DEVICE_ROOT.
# BACKEND_DOWNLOAD=no: installs nothing, and skips the tests if the wheel is not there yet. PADDLE=VERSION: another wheel.
set -eu
cd "$(dirname "$0")/../../.."
here=examples/backend/paddle
at=$(pwd)/build/backend-paddle
PADDLE=${PADDLE:-3.3.1}
CC=${CC:-cc}

skip() {
    echo "skip  backend-paddle: $1"
    exit 0
}
installed() {
    [ "$("$at/venv/bin/python" -c 'from importlib.metadata import version; print(version("paddlepaddle"))' 2>/dev/null)" = "$PADDLE" ]
}

command -v g++ >/dev/null || skip "there is no g++; clang refuses Paddle's headers"
if ! installed; then
    { [ "${BACKEND_DOWNLOAD:-}" != no ] && [ -z "${NO_INSTALL_DEPS:-}" ]; } ||
        skip "paddlepaddle $PADDLE is not installed, and BACKEND_DOWNLOAD=no or NO_INSTALL_DEPS is set"
    mkdir -p "$at"
    python3 -m venv "$at/venv" >"$at/log" 2>&1 || skip "python3 makes no virtual environment: $(tail -n 1 "$at/log")"
    # A proxy that hangs must not hang the build.
    timeout 900 "$at/venv/bin/python" -m pip --disable-pip-version-check install --quiet --retries 2 --only-binary=:all: \
        "paddlepaddle==$PADDLE" >"$at/log" 2>&1 || skip "pip installs no paddlepaddle $PADDLE: $(tail -n 1 "$at/log" | cut -c 1-200)"
fi

# Without importing Paddle, which takes a second.
paddle=$("$at/venv/bin/python" -c 'import importlib.util; print(importlib.util.find_spec("paddle").submodule_search_locations[0])')
mkdir -p "$at/plugins"
$CC -O2 -g -fPIC -I. -c devstream.c -o "$at/devstream.o" &
c=$!
# With -O3, gcc makes a vectorised form of the inner loop of the matrix product for adjacent elements.
flags="-std=c++17 -O3 -g -fPIC -fvisibility=hidden -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Werror"
g++ $flags -I. -isystem "$paddle/include" -c $here/kernels.cpp -o "$at/kernels.o" &
kernels=$!
g++ $flags -I. -isystem "$paddle/include" -c $here/runtime.cpp -o "$at/runtime.o"
wait $c && wait $kernels
g++ -shared "$at/runtime.o" "$at/kernels.o" "$at/devstream.o" -L"$paddle/libs" -l:libphi_core.so -l:libcommon.so -pthread \
    -o "$at/plugins/libcustom_cpu.so"

CUSTOM_DEVICE_ROOT=$at/plugins "$at/venv/bin/python" -B -W ignore $here/test_paddle.py "$@"
