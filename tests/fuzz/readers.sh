#!/bin/bash
# Fuzzes targets, each for FUZZ_SECONDS (5): readers.sh FOLDER [TARGET]...
# Targets: the readers of texts and bytes from outside, which run without a TARGET; api and api-cuda: all public functions on the CPU
# driver and on the stand-in; ipc-cuda: ipc on the stand-in; all: everything.
# FUZZ_JOBS=2: two targets at a time. An input is begun with those of tests/fuzz/corpus; inputs that reach new code stay in
# build/corpus, or nowhere with FUZZ_CORPUS=. A report leaves its input in build/, and FUZZ_READER=NAME FOLDER/fuzz-readers FILE repeats it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
folder=$1
shift
own="names options topology start labels states tensors launch files ids"
# shellcheck disable=SC2086 # own is several words
[ $# -gt 0 ] || set -- $own ptx ipc ranks
# shellcheck disable=SC2086
if [ "$1" = all ]; then
    set -- api $own ptx ipc ranks
    if [ -e "$folder/fuzz-api-standin" ]; then set -- api-cuda ipc-cuda "$@"; else echo "skip  fuzz: the CUDA driver: no toolkit found (CUDA_HOME)"; fi
fi
export FUZZ_SECONDS=${FUZZ_SECONDS:-5}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1}
export ASAN_OPTIONS=${ASAN_OPTIONS-allocator_may_return_null=1}

# Prints the inputs of a reader from the closing lines of libFuzzer.
figures() {
    awk -v name="$1" '
        /number_of_executed_units/ { inputs = $2 }
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
        END { printf "fuzz  %s: %d inputs, %d edges\n", name, inputs, edges }' "$2"
}

# Prints a line that begins with "fuzz  ", or the report and a line that begins with "FAIL".
fuzz() { # TARGET
    local name=$1 reader=${1%-cuda} program=$folder/fuzz-readers log=build/fuzz-$1.log corpus=${FUZZ_CORPUS-build/corpus/readers-$1} standin=
    [ "$reader" = "$name" ] || export DS_TEST_DRIVER=cuda standin=-standin
    case $name in
    api | api-cuda) tests/fuzz/run.sh "$folder/fuzz-api$standin" | sed 's/^fuzz: 0/FAIL  0/; /^fuzz: 1/d'; return ;;
    ptx | ipc | ipc-cuda) program=$folder/fuzz-$reader$standin ;;
    ranks) python3 tests/fuzz/ranks.py "$FUZZ_SECONDS" "${FUZZ_SEED:-1}"; return ;;
    *) case " $own " in *" $name "*) ;; *) echo "FAIL  $name: no such target: $own ptx ipc ranks ipc-cuda api api-cuda"; return 1 ;; esac ;;
    esac
    [ -z "$corpus" ] || mkdir -p "$corpus"
    # malloc must fail for what no machine has, and not end the program: that is for the library to refuse.
    # shellcheck disable=SC2086
    FUZZ_READER=$name "$program" $corpus "tests/fuzz/corpus/$reader" -max_total_time="$FUZZ_SECONDS" -seed="${FUZZ_SEED:-1}" -max_len=2048 \
        -timeout=60 -malloc_limit_mb=1000000 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="build/fuzz-$name-" >"$log" 2>&1 ||
        { grep -av '^#[0-9]' "$log" | tail -n 60; echo "FAIL  $name: $log has all of it"; return 1; }
    figures "$name" "$log"
}

mkdir -p build
export -f fuzz figures
export folder own
printf '%s\n' "$@" | xargs -P "${FUZZ_JOBS:-1}" -I{} bash -c 'fuzz {}' | tee build/fuzz-readers.out
passed=$(grep -c '^fuzz  ' build/fuzz-readers.out)
echo "fuzz-readers: $passed passed, $(($# - passed)) failed"
[ "$passed" -eq $# ]
