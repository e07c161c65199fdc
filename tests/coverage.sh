#!/bin/bash
# Runs the programs of `make coverage-tests` one by one and writes docs/coverage.md: coverage.sh FOLDER [PROGRAM]...
# Without a program: all, and the page. A program whose result is newer than itself is not run again, so the run can be in parts.
# LLVM_COV, LLVM_PROFDATA: the tools of clang's version.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
folder=$1
shift
version=$(clang -dumpversion | cut -d. -f1)
cov=${LLVM_COV:-$(command -v "llvm-cov-$version" || command -v llvm-cov)} profdata=${LLVM_PROFDATA:-$(command -v "llvm-profdata-$version" || command -v llvm-profdata)}
[ -n "$cov" ] && [ -n "$profdata" ] || { echo "skip  coverage: llvm-cov and llvm-profdata of clang $version are not installed"; exit 0; }
results=$PWD/build/coverage
mkdir -p "$results"
export DEVSTREAM_CPU_DEVICES=2 DS_TEST_PLUGIN="$PWD/$folder/plugin.so" DS_TEST_TIMEOUT=${DS_TEST_TIMEOUT:-300}
all=$#
[ $# -gt 0 ] || set -- $(cd "$folder" && ls -d unit/test_* | grep -v '\.d$') conformance conformance-standin
failed=0

run() { # PROGRAM: its counters in NAME.lcov
    local name=${1##*/} program=$folder/$1 driver=cpu status=0
    [ "$name" != conformance-standin ] || driver=cuda
    [ ! "$results/$name.lcov" -nt "$program" ] || return 0
    rm -f "$results/$name"-*.profraw
    LLVM_PROFILE_FILE=$results/$name-%m-%p%c.profraw DS_TEST_DRIVER=$driver timeout 1500 "$program" >"$results/$name.log" 2>&1 || status=$?
    "$profdata" merge -sparse --failure-mode=all "$results/$name"-*.profraw -o "$results/$name.profdata" 2>>"$results/$name.log" &&
        "$cov" export -format=lcov "$program" -instr-profile="$results/$name.profdata" >"$results/$name.part" 2>>"$results/$name.log" &&
        mv "$results/$name.part" "$results/$name.lcov"
    rm -f "$results/$name"-*.profraw
    [ $status -eq 0 ] || { echo "FAIL  coverage: $1 ended with $status; $results/$name.log has its output"; failed=1; }
}

for program in "$@"; do run "$program"; done
[ "$all" -gt 0 ] || python3 tests/coverage.py "$results" || failed=1
exit $failed
