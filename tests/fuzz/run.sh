#!/bin/bash
# Fuzzes for FUZZ_SECONDS (60), by default, and fails at the first report: run.sh PROGRAM [OPTIONS OF LIBFUZZER]
# The inputs that reach new code stay in build/corpus for the next run; FUZZ_CORPUS= begins afresh. A report leaves its input in build/.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
program=$1
shift
name=$(basename "$program")
corpus=${FUZZ_CORPUS-build/corpus/$name}
log=build/$name.log
start=$(mktemp -d) || exit 2
trap 'rm -rf "$start"' EXIT
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1}
[ -z "$corpus" ] || mkdir -p "$corpus"

# Programs of many steps, the same ones each time; from nothing the fuzzer would need long to make one.
for seed in {1..40}; do
    awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 30 * seed; i++) printf "\\0%03o", int(rand() * 256) }' |
        xargs -0 printf %b >"$start/$seed"
done

# malloc must fail for what no machine has, and not end the program: that is for the library to refuse.
# shellcheck disable=SC2086
"$program" $corpus "$start" -max_total_time="${FUZZ_SECONDS:-60}" -seed="${FUZZ_SEED:-1}" -max_len=2048 -len_control=0 -timeout=60 \
    -malloc_limit_mb=1000000 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="build/$name-" "$@" >"$log" 2>&1
status=$?
if [ $status -ne 0 ]; then
    grep -av '^#[0-9]' "$log" | tail -n 100
    echo "fuzz: 0 passed, 1 failed: $name; $log has all of it"
    exit 1
fi
awk -v name="$name" '
    /number_of_executed_units/ { inputs = $2 }
    /average_exec_per_sec/ { speed = $2 }
    / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
    END { printf "fuzz  %s: %d inputs, %d a second, %d edges\n", name, inputs, speed, edges }' "$log"
echo "fuzz: 1 passed, 0 failed"
