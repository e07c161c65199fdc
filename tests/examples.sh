#!/bin/sh
# Runs the programs of examples/ that check themselves, on the CPU driver and on the stand-in for cudart, and compares the lines that
# must be the same on both: examples.sh FOLDER, with FOLDER/cpu/NAME and, if the toolkit is there, FOLDER/standin/NAME.
# The sizes are small, since the stand-in interprets the kernels. A line per example and a closing count. The examples also run under the
# check layer, which must not report anything, possible hazards included.
set -u
cd "$(dirname "$0")/.."
folder=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
head -n 165 examples/data/digits.csv >"$dir/digits.csv"

# Counts the result of an example.
result() { # result NAME REASON
    if [ -z "$2" ]; then passed=$((passed + 1)); echo "ok    $1"; else failed=$((failed + 1)); echo "FAIL  $1: $2"; fi
}

# Runs one under the check layer on both drivers.
check() { # check NAME ARGUMENTS...
    name=$1
    shift
    reason=
    for driver in cpu standin; do
        [ -x "$folder/$driver/$name" ] || continue
        : >"$dir/reports"
        DEVSTREAM_CHECK="possible,exit=3,output=$dir/reports" timeout 300 "$folder/$driver/$name" "$@" >"$dir/$driver" 2>&1
        status=$?
        if [ -s "$dir/reports" ]; then reason="reports on $driver"; elif [ $status -ne 0 ]; then reason="exit code $status on $driver"; fi
        [ -z "$reason" ] || cat "$dir/$driver" "$dir/reports"
    done
    result "$name under the check layer" "$reason"
}

# Runs one on both drivers, then under the check layer.
t() { # t LINES NAME ARGUMENTS...: LINES is a pattern of the lines that must be equal
    lines=$1 name=$2
    shift 2
    reason=
    for driver in cpu standin; do
        [ -x "$folder/$driver/$name" ] || continue
        if ! timeout 300 "$folder/$driver/$name" "$@" >"$dir/$driver" 2>&1; then
            reason="fails on $driver"
            cat "$dir/$driver"
        elif [ $driver = standin ] && ! grep -q 'cuda:0' "$dir/standin"; then
            reason="does not use the CUDA driver"
            cat "$dir/standin"
        fi
        # without times and rates
        sed -n "/$lines/{s/ ([^()]*)\$//;p}" "$dir/$driver" >"$dir/$driver.lines"
        [ -s "$dir/$driver.lines" ] || reason="${reason:-prints no line with $lines}"
    done
    if [ -z "$reason" ] && [ -x "$folder/standin/$name" ] && ! cmp -s "$dir/cpu.lines" "$dir/standin.lines"; then
        reason="the drivers differ"
        diff "$dir/cpu.lines" "$dir/standin.lines"
    fi
    result "$name" "$reason"
    check "$name" "$@"
}

# Runs each bug of examples/race.c on both drivers: the layer must report the bug on both alike, and nothing of the corrected form.
races() {
    for bug in $("$folder/cpu/race" | sed -n 's/^  \([a-z-]*\) .*/\1/p'); do
        reason=
        for driver in cpu standin; do
            [ -x "$folder/$driver/race" ] || continue
            timeout 300 "$folder/$driver/race" "$bug" >"$dir/$driver" 2>&1
            [ $? -eq 1 ] || reason="no report on $driver"
            timeout 300 "$folder/$driver/race" "$bug" fixed >"$dir/fixed" 2>&1 || reason="the corrected form fails on $driver"
            [ $driver = cpu ] || grep -q 'cuda:0' "$dir/fixed" || reason="does not use the CUDA driver"
            [ -z "$reason" ] || cat "$dir/$driver" "$dir/fixed"
            grep '^  key' "$dir/$driver" >"$dir/$driver.lines"
        done
        if [ -x "$folder/standin/race" ] && ! cmp -s "$dir/cpu.lines" "$dir/standin.lines"; then reason="${reason:-the drivers differ}"; fi
        result "race $bug" "$reason"
    done
}

export DEVSTREAM_CPU_DEVICES=3
t '^check' jacobi 40 36 30 3
t '^check' matmul 33 20 50
t '^check' pipeline
t '^checksum' demo --total 300000 --piece 70001
t '^check' graph --total 300000
t '^check' graph_while --n 20 --rounds 1
t '^weights' train --epochs 1 "$dir/digits.csv"
check hello
check devices --size 64K --runs 1
check memory --out "$dir/memory"
races

echo "examples: $passed passed, $failed failed"
[ $failed -eq 0 ]
