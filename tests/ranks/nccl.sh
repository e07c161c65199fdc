#!/bin/sh
# Tests the engine "nccl" with a process for each rank, on the stand-ins for NCCL and cudart, and compares the declarations of
# NCCL with NVIDIA's headers: nccl.sh BUILD [NAME]
# NAME: only tests with this in their name. RANKS: numbers of ranks ("2 3"). CUDA: the folder of CUDA.
# Prints the line "ranks: N passed, M failed with R ranks" for each number, and a count of the headers. Exit 1: a test failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1 name=${2:-} status=0 passed=0 failed=0
files=$(mktemp -d) || exit 2
trap 'rm -rf "$files"' EXIT

headers=$(tests/ranks/nccl_headers.py)
if [ $? -ne 0 ]; then
    echo "$headers" | grep '^skip' || echo "skip  nccl.h: tests/ranks/nccl_headers.py failed"
    headers=
fi
for header in $headers; do
    said=
    if "${CC:-cc}" -std=gnu11 -w -fsyntax-only -Isrc -I"$(dirname "$header")" -I"$CUDA/include" tests/ranks/nccl_abi_check.c &&
        said=$(CUDA_HOME=$CUDA tests/support/nccl/abi/abi.sh "$header"); then
        passed=$((passed + 1)) && echo "ok    $header"
    else
        failed=$((failed + 1)) status=1 && echo "$said" && echo "FAIL  $header"
    fi
done
echo "headers: $passed passed, $failed failed"

# Runs a program with ranks as processes; the output of rank R is in $files/said-R. Returns 1 if one of them fails.
start() { # start RANKS PROGRAM [ARGUMENT]...
    ranks=$1 rank=0 list= wrong=0
    shift
    number=$((number + 1))
    rm -f "$files"/said-*
    while [ $rank -lt "$ranks" ]; do
        RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=1 STANDIN_DEVICES=16 \
            DEVSTREAM_RANKS_ENGINE=nccl DEVSTREAM_RANKS_ID="file:$files/id-$number" DEVSTREAM_NCCL_LIBRARY="$build/lib/libnccl.so.2" \
            DS_TEST_DRIVER=cuda DS_RANKS_ENGINE=nccl DS_RANKS_FILES="$files/$number-" \
            timeout -k 5 300 "$@" >"$files/said-$rank" 2>&1 &
        list="$list $!"
        rank=$((rank + 1))
    done
    for process in $list; do wait "$process" || wrong=1; done
    return $wrong
}
number=0
for ranks in ${RANKS:-2 3}; do
    # shellcheck disable=SC2086
    if start "$ranks" "$build/ranks/collectives" $name &&
        grep -q "^ranks: [1-9][0-9]* passed, 0 failed with $ranks ranks" "$files/said-0"; then
        grep -E '^(ok |ranks:)' "$files/said-0"
    else
        head -n 30 "$files"/said-*
        echo "FAIL  $ranks ranks"
        status=1
    fi
done

# A client that others have written: NVIDIA's binding for Python.
if [ -z "$name" ]; then
    python=build/nccl4py/bin/python
    if [ -x $python ] && $python -c 'import numpy, nccl.bindings' 2>/dev/null ||
        { { [ -z "${NO_INSTALL_DEPS:-}" ] || { echo 'NO_INSTALL_DEPS is set'; false; }; } &&
            python3 -m venv build/nccl4py &&
            timeout 300 $python -m pip --disable-pip-version-check install --quiet --only-binary=:all: numpy cuda-pathfinder &&
            timeout 300 $python -m pip --disable-pip-version-check install --quiet --only-binary=:all: --no-deps nccl4py==0.6.0; } >"$files/said" 2>&1; then
        $python tests/ranks/nccl4py_client.py "$build/lib" || status=1
    else
        echo "skip  ranks: nccl4py cannot be installed from PyPI: $(tail -n 1 "$files/said" | cut -c 1-120)"
    fi
fi

# Eight ranks as threads.
if [ -z "$name" ]; then
    DS_RANKS_SIZE=8 "$build/unit/test_ranks_nccl" >"$files/said" 2>&1 || status=1
    grep -E '^\[' "$files/said"
    [ $status = 0 ] || tail -n 30 "$files/said"
fi

# The weights of train_ranks are those of one process, bit for bit; ring checks its results.
passed=0 failed=0
head -n 165 examples/data/digits.csv >"$files/digits.csv"
example() { # example RANKS NAME PATTERN [ARGUMENT]...
    count=$1 program=$2 pattern=$3
    shift 3
    if start "$count" "$build/run/standin/$program" "$@" && grep -q "$pattern" "$files/said-0"; then
        passed=$((passed + 1)) && echo "ok    $program, $count ranks"
    else
        failed=$((failed + 1)) status=1
        head -n 20 "$files"/said-*
        echo "FAIL  $program, $count ranks"
    fi
}
if [ -z "$name" ]; then
    example 2 train_ranks 'bit for bit' --epochs 1 --devices 2 --check "$files/digits.csv"
    example 4 train_ranks 'bit for bit' --epochs 1 --check "$files/digits.csv"
    example 3 ring 'engine nccl, NCCL' --max 4K --factor 8 --iterations 2
    echo "examples: $passed passed, $failed failed"
fi
exit $status
