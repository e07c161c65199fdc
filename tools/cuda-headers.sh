#!/bin/sh
# Puts the headers and the shared library of cudart of several CUDA versions under build/cuda-headers/VERSION/include and lib, to compile
# against and to load; nothing is installed. They come out of PyPI's wheels of cudart (1 to 3.5 MB each), through pip as it is set up here.
# A version that is there already costs nothing; the toolkit of CUDA_HOME is linked, not copied. One line per version says where its headers
# are or why they could not be had; the exit status is 0 all the same.
#     cuda-headers.sh [VERSION]...        default: all of `cuda-headers.sh --list`, and the one of CUDA_HOME (/usr/local/cuda)
set -u
cd "$(dirname "$0")/.." || exit 1
at=build/cuda-headers
# All versions from 11.8 for which there are wheels; there are none of 12.7.
all='11.8 12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5'
[ "${1:-}" != --list ] || { printf '%s\n' $all; exit 0; }
wanted=${*:-$all}
CUDA_HOME=${CUDA_HOME-/usr/local/cuda}
mkdir -p $at || exit 1

version_of() { # version_of FOLDER: 12040 in its header becomes 12.4
    sed -n 's/^#define CUDART_VERSION *\([0-9]*\).*/\1/p' "$1/cuda_runtime_api.h" 2>/dev/null |
        awk '{ printf "%d.%d", $1 / 1000, $1 % 1000 / 10 }'
}
ready() {
    [ "$(version_of $at/"$1"/include)" = "$1" ] && [ -e $at/"$1"/include/crt/host_defines.h ] && [ -e $at/"$1"/lib ]
}
wheel() { # wheel FOLDER PACKAGE VERSION: downloads and unpacks a wheel into FOLDER; prints why when it fails
    [ -z "${NO_INSTALL_DEPS:-}" ] || { echo "NO_INSTALL_DEPS is set"; return 1; }
    # The headers of one platform serve all. A proxy that hangs must not hang the build.
    timeout 300 python3 -m pip --disable-pip-version-check download --quiet --retries 2 --no-deps --only-binary=:all: \
        --platform manylinux2014_x86_64 --dest "$1" "$2==$3" >"$1/log" 2>&1 &&
        unzip -q "$1"/*.whl -d "$1" >>"$1/log" 2>&1 && return
    grep -i 'error\|timed out' "$1/log" | tail -n 1 | cut -c 1-200 | grep . || echo "no wheel $2 $3, or a broken one"
    return 1
}
fetch() { # fetch VERSION: prints why when it fails
    new=$(mktemp -d "$at/.$1.XXXXXX") || return 1
    package=nvidia-cuda-runtime-cu${1%%.*}
    [ "${1%%.*}" -lt 13 ] || package=nvidia-cuda-runtime
    wheel "$new" $package "$1.*" || { rm -rf "$new"; return 1; }
    rm -rf "${at:?}/$1"
    mkdir -p "$at/$1"
    # Another one that runs at the same time and is first has put the same files there.
    for part in "$new"/nvidia/*; do
        cp -R $at/crt/crt "$part/include/" && mv -T "$part/lib" "$at/$1/lib" && mv -T "$part/include" "$at/$1/include"
    done 2>/dev/null
    rm -rf "$new"
    ready "$1" || { echo "the wheels do not hold the headers of this version"; return 1; }
}
# The headers of cudart include those of nvcc's folder crt. In C these are macros of attributes, and one version of them serves all.
fetch_crt() {
    [ -z "${NO_INSTALL_DEPS:-}" ] || { echo "NO_INSTALL_DEPS is set"; return 1; }
    command -v unzip >/dev/null || { echo "unzip is not installed"; return 1; }
    python3 -m pip --version >/dev/null 2>&1 || { echo "python3 has no pip"; return 1; }
    new=$(mktemp -d "$at/.crt.XXXXXX") || return 1
    wheel "$new" nvidia-cuda-crt '13.5.*' || { rm -rf "$new"; return 1; }
    mkdir -p $at/crt
    mv -T "$new/nvidia/cu13/include/crt" $at/crt/crt 2>/dev/null
    rm -rf "$new"
    [ -e $at/crt/crt/host_defines.h ] || { echo "the wheel nvidia-cuda-crt does not hold crt/host_defines.h"; return 1; }
}

# The toolkit: one of the wanted versions, or without arguments also another one.
here=$(version_of "$CUDA_HOME/include")
case " $wanted " in
*" $here "*) ;;
*) if [ $# -eq 0 ] && [ -n "$here" ]; then wanted="$wanted $here"; else here=; fi ;;
esac
if [ -n "$here" ] && ! ready "$here" && [ -e "$CUDA_HOME/include/crt/host_defines.h" ]; then
    mkdir -p "$at/$here"
    ln -sfn "$(cd "$CUDA_HOME" && pwd)/include" "$at/$here/include" && ln -sfn "$(cd "$CUDA_HOME" && pwd)/lib64" "$at/$here/lib"
fi

missing=$(for v in $wanted; do ready "$v" || echo "$v"; done)
if [ -n "$missing" ] && [ ! -e $at/crt/crt/host_defines.h ] && ! why=$(fetch_crt); then
    for v in $missing; do echo "$why" >"$at/.$v.why"; done
    missing=
fi
for v in $missing; do fetch "$v" >"$at/.$v.why" 2>&1 & done
wait
for v in $wanted; do
    if ready "$v"; then echo "cuda headers $v: $at/$v/include"
    else echo "cuda headers $v: not to be had: $(tail -n 1 "$at/.$v.why")"; fi
    rm -f "$at/.$v.why"
done
