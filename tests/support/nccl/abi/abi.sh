#!/bin/sh
# Compares the stand-in's types and functions of NCCL with NVIDIA's header: abi.sh .../nccl.h...
# CUDA_HOME has the headers that nccl.h includes. One line for each header; the exit status is 1 when
# one differs. A wheel of NCCL (nvidia-nccl-cu13 on PyPI) has the header in nvidia/nccl/include.
set -eu
here=$(dirname "$0")
CC=${CC:-cc} CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
[ $# -gt 0 ] || { echo "skip  NCCL's header: set NCCL_HEADER to a nccl.h"; exit 0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0
for header; do
    version=$(sed -n 's/^#define NCCL_VERSION_CODE *\([0-9]*\)$/\1/p' "$header")
    cp "$header" "$out/nccl.h"
    build() { # build NAME [FLAGS]
        name=$1; shift
        $CC -std=c11 -w "$@" -DVERSION="$version" -I"$out" -I"$CUDA_HOME/include" -o "$out/$name" "$here/abi.c" &&
            "$out/$name" >"$out/$name.txt"
    }
    if build own && build real -DREAL='"nccl.h"' && diff "$out/own.txt" "$out/real.txt"; then
        echo "ok    nccl.h $version: $(wc -l <"$out/own.txt") values and offsets are the same"
    else
        echo "FAIL  nccl.h $version differs"
        status=1
    fi
done
exit $status
