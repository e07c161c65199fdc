#!/bin/sh
# Puts the headers of several CUDA versions under build/cuda-headers/<version>/include, to compile against; nothing is
# installed. They come out of the wheels of cudart and nvcc (for crt/), through pip as it is set up here. A version that is
# there already costs nothing; the toolkit of CUDA_HOME is linked, not copied. One line per version says where it is or why
# it could not be had, and the exit status is 0 all the same: whoever needs a number of versions counts the lines.
#     cuda-headers.sh [version]...        default: 11.8 12.0 12.4 12.8, and what is in CUDA_HOME (/usr/local/cuda)
set -u
cd "$(dirname "$0")/.." || exit 1
at=build/cuda-headers
wanted=${*:-11.8 12.0 12.4 12.8}
CUDA_HOME=${CUDA_HOME-/usr/local/cuda}
mkdir -p $at || exit 1

version_of() { # version_of FOLDER: 12040 in its header becomes 12.4
    sed -n 's/^#define CUDART_VERSION *\([0-9]*\).*/\1/p' "$1/cuda_runtime_api.h" 2>/dev/null |
        awk '{ printf "%d.%d", $1 / 1000, $1 % 1000 / 10 }'
}
ready() { [ "$(version_of $at/"$1"/include)" = "$1" ] && [ -e $at/"$1"/include/crt/host_defines.h ]; }
fetch() { # fetch VERSION: prints why when it fails
    command -v unzip >/dev/null || { echo "unzip is not installed"; return 1; }
    python3 -m pip --version >/dev/null 2>&1 || { echo "python3 has no pip"; return 1; }
    new=$(mktemp -d "$at/.$1.XXXXXX") || return 1
    # Headers only, so the wheels of one platform serve all. A proxy that hangs must not hang the build.
    for part in runtime nvcc; do
        timeout 300 python3 -m pip --disable-pip-version-check download --quiet --retries 2 --no-deps --only-binary=:all: \
            --platform manylinux2014_x86_64 --dest "$new" "nvidia-cuda-$part-cu${1%%.*}==$1.*" >"$new/log" 2>&1 &&
            unzip -q "$new"/nvidia_cuda_${part}_*.whl '*/include/*' -d "$new" &&
            mv "$new"/nvidia/cuda_$part/include "$new/$part" || {
            grep -i 'error\|timed out' "$new/log" | tail -n 1 | cut -c 1-200 | grep . || echo "no wheel of $part, or a broken one"
            rm -rf "$new"
            return 1
        }
    done
    rm -rf "${at:?}/$1"
    mkdir -p "$at/$1"
    # Whoever runs beside this one and is first has put the same files there.
    { mv "$new/nvcc/crt" "$new/runtime/crt" && mv -T "$new/runtime" "$at/$1/include"; } 2>/dev/null
    rm -rf "$new"
    ready "$1" || { echo "the wheels do not hold the headers of this version"; return 1; }
}

for v in $wanted; do ready "$v" || fetch "$v" >"$at/.$v.why" 2>&1 & done
wait
here=$(version_of "$CUDA_HOME/include")
case " $wanted " in *" $here "*) ;; *)
    if [ -n "$here" ] && [ -e "$CUDA_HOME/include/crt/host_defines.h" ]; then
        mkdir -p "$at/$here" && ln -sfn "$(cd "$CUDA_HOME" && pwd)/include" "$at/$here/include" && wanted="$wanted $here"
    fi ;;
esac
for v in $wanted; do
    if ready "$v"; then echo "cuda headers $v: $at/$v/include"
    else echo "cuda headers $v: not to be had: $(tail -n 1 "$at/.$v.why")"; fi
    rm -f "$at/.$v.why"
done
