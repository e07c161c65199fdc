#!/bin/bash
# Runs the programs of `make coverage-tests` and writes docs/coverage.md: coverage.sh FOLDER [RUN]...
# A run is a program of the folder, or PROGRAM@WAY; programs() has all of them. Without a run: all, and the page. A run whose result is
# newer than its program is not repeated, so the measurement can be in parts, but two at once must not have the same run.
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
failed=0

# The unit tests; the suite on both drivers, also under the check layer; the tests of faults of cudart; and process groups: with MPI, and
# by MPI on memory of GPUs.
programs() {
    (cd "$folder" && ls -d unit/test_* | grep -v '\.d$')
    echo conformance conformance@check ranks/collectives@mpi
    [ ! -e "$folder/conformance-standin" ] || echo conformance-standin conformance-standin@check fault/test_cuda ranks/collectives@gpu
}

# The run's command, in a shell whose environment is the run's own.
start() { # PROGRAM WAY
    case $1 in conformance-standin) export DS_TEST_DRIVER=cuda ;; esac
    case $2 in
    '') timeout 1500 "$folder/$1" ;;
    check) DEVSTREAM_CHECK=exit=3 timeout 1500 "$folder/$1" ;;
    mpi) RANKS="2 3" tests/ranks/run.sh "$folder/$1" ;;
    gpu) DS_TEST_DRIVER=cuda RANKS=2 tests/ranks/run.sh "$folder/$1" ;;
    *) echo "coverage: there is no way $2" && false ;;
    esac
}

run() { # RUN: its counters in NAME.lcov
    local name=${1##*/} program=${1%%@*} way='' status=0
    case $1 in *@*) way=${1#*@} ;; esac
    [ ! "$results/$name.lcov" -nt "$folder/$program" ] || return 0
    rm -f "$results/$name"-*.profraw
    (export LLVM_PROFILE_FILE=$results/$name-%m-%p%c.profraw && start "$program" "$way") >"$results/$name.log" 2>&1 || status=$?
    "$profdata" merge -sparse --failure-mode=all "$results/$name"-*.profraw -o "$results/$name.profdata" 2>>"$results/$name.log" &&
        "$cov" export -format=lcov "$folder/$program" -instr-profile="$results/$name.profdata" >"$results/$name.part" 2>>"$results/$name.log" &&
        mv "$results/$name.part" "$results/$name.lcov"
    rm -f "$results/$name"-*.profraw
    [ $status -eq 0 ] || { echo "FAIL  coverage: $1 ended with $status; $results/$name.log has its output"; failed=1; }
}

all=$#
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(programs)
for program in "$@"; do run "$program"; done
[ "$all" -gt 0 ] || python3 tests/coverage.py "$results" || failed=1
exit $failed
