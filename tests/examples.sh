#!/bin/sh
# Runs the programs of examples/ that check themselves, on the CPU driver and on the stand-in for cudart, and compares the lines that
# must be the same on both: examples.sh FOLDER, with FOLDER/cpu/NAME and, if the toolkit is there, FOLDER/standin/NAME.
# The sizes are small, since the stand-in interprets the kernels. A line per example and a closing count. The examples also run under the
# check layer, which must not report anything, possible hazards included, and under the trace layer: FOLDER/expect compares the traces.
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

# Runs examples/topology.c with a number of devices, in a folder without the examples: each row must have times, and a described machine
# must be shown and announced if there is one device.
topology() { # topology DEVICES SIZE: SIZE is the number of devices of the machine that is shown
    reason=
    program=$(realpath "$folder/cpu/topology") || return
    if ! (cd "$dir" && DEVSTREAM_CPU_DEVICES=$1 timeout 300 "$program") >"$dir/topology" 2>&1; then
        reason="fails"
    elif [ "$(grep -c 'a described machine is shown' "$dir/topology")" -ne $(($1 == 1)) ]; then
        reason="does not say which machine is shown"
    else
        # the header of the matrix; the rows end with "predicted bound percent%"
        reason=$(awk -v size="$2" '
            NF && $1 == "GB/s" { shown = NF - 3 }
            /%$/ { rows++; if ($(NF - 2) <= 0 || $(NF - 1) <= 0 || $NF + 0 <= 0) wrong = "a row has no time: " $0 }
            /nan|inf/ { wrong = "a division by zero: " $0 }
            END { if (shown != size) wrong = "shows " shown " devices"; if (rows < 40) wrong = "has " rows + 0 " rows"; print wrong }' "$dir/topology")
    fi
    [ -z "$reason" ] || cat "$dir/topology"
    result "topology, devices: $1" "$reason"
}

# Runs examples/graph.c on both drivers: it must print the costs of submission of both ways. What it finds wrong with the arguments that it
# sets ends it with an error.
submission() {
    reason=
    for driver in cpu standin; do
        [ -x "$folder/$driver/graph" ] || continue
        timeout 300 "$folder/$driver/graph" --total 300000 --piece 20000 >"$dir/$driver" 2>&1 || reason="fails on $driver"
        for way in 'enqueued       ' 'graphs launched'; do
            grep -q "^$way .* to submit it [0-9.]* us of processor time, median [0-9.]* us\$" "$dir/$driver" || reason="${reason:-lacks a cost of submission on $driver}"
        done
        [ -z "$reason" ] || cat "$dir/$driver"
        timeout 300 "$folder/$driver/graph" --total 300000 --damage >"$dir/$driver" 2>&1
        [ $? -eq 2 ] || reason="${reason:-does not find damage on $driver}"
    done
    result "graph, costs of submission" "$reason"
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

# Runs one under the trace layer on both drivers, and compares the trace with what the program does.
trace() { # trace NAME [ARGUMENT]... -- KIND:NAME=COUNT...
    name=$1
    shift
    arguments=
    while [ "$1" != -- ]; do arguments="$arguments $1" && shift; done
    shift
    reason=
    for driver in cpu standin; do
        [ -x "$folder/$driver/$name" ] || continue
        [ $driver = cpu ] || set -- $(printf '%s\n' "$@" | grep -v ^9:) # launches of graphs have no nodes there
        # shellcheck disable=SC2086
        if ! DEVSTREAM_TRACE="$dir/trace.html" timeout 300 "$folder/$driver/$name" $arguments >"$dir/$driver" 2>&1; then
            reason="fails on $driver" && cat "$dir/$driver"
        elif ! wrong=$("$folder/expect" "$dir/trace.html" "$@"); then
            reason="the trace is wrong on $driver: $wrong"
        fi
    done
    result "$name under the trace layer" "$reason"
}

export DEVSTREAM_CPU_DEVICES=3
t '^check' jacobi 40 36 30 3
t '^check' matmul 33 20 50
t '^check' pipeline
t '^checksum' demo --total 300000 --piece 70001
t '^check' graph --total 300000
submission
t '^check' graph_while --n 20 --rounds 1
t '^weights' train --epochs 1 "$dir/digits.csv"
t '^weights' train_ranks --epochs 1 --devices 4 "$dir/digits.csv"
t '^# wrong' ring --devices 3 --max 4K --factor 8 --iterations 2
check hello
check devices --size 64K --runs 1
check memory --out "$dir/memory"
races
topology 1 8
topology 3 3
# Eight pieces of 64 rows; five pieces; five pieces enqueued and launched as graphs; two passes over two batches and a third one without
# slopes, each in four parts, with two arrays of weights.
trace pipeline -- 1:blur_rows=8 1:blur_columns=8 2:ds_copy=16
trace demo --total 300000 --piece 70001 -- 1:histogram=5 1:checksum=5 1:add_rows=6
trace graph --total 300000 -- 1:histogram=5 1:checksum=5 1:add_rows=5 2:ds_copy=10 3:ds_fill=5 8:ds_graph_launch=5 \
    9:histogram=5 9:checksum=5 9:add_rows=5 9:copy=10 9:fill=5
trace train --epochs 1 "$dir/digits.csv" -- 1:hidden=24 1:predict=24 1:unit_slopes=16 1:slopes_1=16 1:slopes_2=16 1:step=8 \
    19:ds_comm_scatter=6 19:ds_comm_gather_into=6 19:ds_comm_broadcast_coalesced=6 19:ds_comm_reduce_add_coalesced=4

echo "examples: $passed passed, $failed failed"
[ $failed -eq 0 ]
