#!/bin/bash
# Checks the layers of src/ (docs/design.md, "Source tree"):
# - tools/layers.awk: includes, uses and forward declarations of the rooms;
# - each layer compiles together with the layers below it and nothing else, and every function that is used
#   there is defined there. This needs clang.
#     layers.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
wrong=0
awk -f tools/layers.awk src/*/*.h || wrong=1
command -v clang >/dev/null || { echo "skip  layers: none is compiled, since clang is not installed"; exit $wrong; }
flags=$(sed 's/-Wno-undefined-internal/-Werror=undefined-internal/' compile_flags.txt)
[ -z "${CUDA_HOME:-}" ] || flags="$flags -I$CUDA_HOME/include"
# Without CUDA's headers, cuda is compiled in the form that needs none; with them, in both forms.
[ -e "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime_api.h" ] || flags=${flags/-DDEVSTREAM_CUDA/-DDEVSTREAM_CUDA_DLOPEN}

# The layers that a layer may use, in the order of a compilation.
below() {
    case $1 in
    base) echo os ;;
    cpu | cuda) echo os base ;;
    core) echo os base cpu cuda ;;
    alloc | rng | kernel | check | trace) echo os base cpu cuda core ;;
    tensor) echo os base cpu cuda core alloc ;;
    topology) echo os base cpu cuda core alloc tensor ;;
    plan) echo os base cpu cuda core alloc tensor topology ;;
    comm) echo os base cpu cuda core alloc tensor topology plan ;;
    ranks) echo os base cpu cuda core alloc tensor topology plan comm ;;
    esac
}
for layer in os base cpu cuda core alloc rng kernel check trace tensor topology plan comm ranks; do
    [ -d "src/$layer" ] || continue
    text=$(for l in $(below $layer) $layer; do
        # Generated rooms belong to the room that lists them; templates of loops are included by others.
        grep -h "^#include \"$l/" src/devstream*.h
        [ "$l" != cpu ] && [ "$l" != cuda ] || grep -h "^#include \"../$l/" src/core/drivers.h | sed 's,"../,",'
    done)
    forms=-DDEVSTREAM_CUDA
    [ "$layer" != cuda ] || forms='-DDEVSTREAM_CUDA -DDEVSTREAM_CUDA_DLOPEN'
    for form in $forms; do
        # shellcheck disable=SC2086
        if ! message=$(printf '#define DEVSTREAM_IMPLEMENTATION\n#include "os/os.h"\n%s\n' "$text" |
            clang $flags $form -fsyntax-only -include src/devstream.h -x c - 2>&1); then
            grep error: <<<"$message" | sed "s/^/layer $layer: /" | head -n 20
            wrong=1
        fi
    done
done
[ $wrong -ne 0 ] || echo "layers: each is complete without those above it"
exit $wrong
