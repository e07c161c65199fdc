#!/bin/sh
# Regenerates the PTX of the programs beside it: all, or those named. Only clang 14 gives the same text.
set -e
cd "$(dirname "$0")"
for source in ${*:-*.cu}; do
    ${CLANG:-clang-14} -O2 -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib -ffp-contract=off \
        -S -Wno-unknown-cuda-version "$source" -o "${source%.cu}.ptx"
done
