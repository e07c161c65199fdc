#!/bin/bash
# Fuzzes the readers of texts and bytes from outside, one after the other, each for FUZZ_SECONDS (5): readers.sh FOLDER [READER]...
# An input is begun with those of tests/fuzz/corpus; inputs that reach new code stay in build/corpus, or nowhere with FUZZ_CORPUS=.
# A report leaves its input in build/, and FUZZ_READER=NAME FOLDER/fuzz-readers FILE repeats it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
folder=$1
shift
own="names options topology start labels states tensors launch files ids"
[ $# -gt 0 ] || set -- $own ptx ipc ranks
seconds=${FUZZ_SECONDS:-5}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1}
export ASAN_OPTIONS=${ASAN_OPTIONS-allocator_may_return_null=1}
passed=0 failed=0

# Prints the inputs of a reader from the closing lines of libFuzzer.
figures() {
    awk -v name="$1" '
        /number_of_executed_units/ { inputs = $2 }
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
        END { printf "fuzz  %s: %d inputs, %d edges\n", name, inputs, edges }' "$2"
}

fuzz() { # READER
    local name=$1 program=$folder/fuzz-readers log=build/fuzz-$1.log corpus=${FUZZ_CORPUS-build/corpus/readers-$1}
    case $name in
    ptx | ipc) program=$folder/fuzz-$name ;;
    ranks) python3 tests/fuzz/ranks.py "$seconds" "${FUZZ_SEED:-1}"; return ;;
    *) case " $own " in *" $name "*) ;; *) echo "FAIL  $name: no such reader: $own ptx ipc ranks"; return 1 ;; esac ;;
    esac
    [ -z "$corpus" ] || mkdir -p "$corpus"
    # malloc must fail for what no machine has, and not end the program: that is for the library to refuse.
    # shellcheck disable=SC2086
    FUZZ_READER=$name "$program" $corpus "tests/fuzz/corpus/$name" -max_total_time="$seconds" -seed="${FUZZ_SEED:-1}" -max_len=2048 \
        -timeout=60 -malloc_limit_mb=1000000 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="build/fuzz-$name-" >"$log" 2>&1 ||
        { grep -av '^#[0-9]' "$log" | tail -n 60; echo "FAIL  $name: $log has all of it"; return 1; }
    figures "$name" "$log"
}

mkdir -p build
for reader in "$@"; do
    if fuzz "$reader"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "fuzz-readers: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
