#!/usr/bin/env bash
# What only a GPU can show, for `make check-gpu`: the conformance suite on the CUDA driver, the probes, the benchmarks; writes
# docs/gpu/<date>-<GPU>.md.
#     run.sh CONFORMANCE [BENCHMARK]      programs that are linked with the real cudart; an absent benchmark is left out
# Exit status 77: there is no GPU here; 1: a test failed. What the probes answer is an observation, not a pass or a failure.
# Environment: CC (cc), CFLAGS (-O2), CUDA_HOME (/usr/local/cuda); DS_TEST_* as in tests/README.md.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 1 ] || { echo "usage: $0 CONFORMANCE [BENCHMARK]" >&2; exit 2; }
suite=$(realpath "$1") bench=${2:+$(realpath "$2")}
cd "$root" || exit 2
cc=${CC:-cc} cuda=${CUDA_HOME:-/usr/local/cuda} out=build/gpu
mkdir -p $out

lib=$cuda/lib64
link="-lcudart_static -ldl -lrt"
[ -e "$lib/libcudart_static.a" ] || link="-lcudart -Wl,-rpath,$lib"
# shellcheck disable=SC2086
$cc -std=c11 ${CFLAGS:--O2} -I"$cuda/include" tests/gpu/probes.c -o $out/probes -L"$lib" $link -pthread ||
    { echo "check-gpu: the probes do not build (CUDA_HOME is $cuda)" >&2; exit 2; }

echo "== probes"
$out/probes >$out/probes.md
status=$?
[ $status -eq 77 ] && { cat $out/probes.md; exit 77; }
cat $out/probes.md

# One run of everything. When it dies or hangs in a test, that test has failed, and those that it did not reach run one by one.
export DS_TEST_DRIVER=cuda CUDA_DEVICE_MAX_CONNECTIONS=32
plugin=$(dirname "$suite")/plugin.so
[ -n "${DS_TEST_PLUGIN:-}" ] || [ ! -e "$plugin" ] || export DS_TEST_PLUGIN=$plugin
log=$out/conformance.log
echo "== $suite"
timeout 900 "$suite" >$log 2>&1
status=$?
died=
if ! grep -q '^\[  PASSED  \]' $log; then
    died=1
    echo "the suite ended with $status before its end; the rest of it runs test by test"
    for name in $(grep -ho 'DS_TEST[A-Z_]*(test_[a-z0-9_]*' tests/conformance/*.c | sed 's/.*(//'); do
        grep -q "\[ RUN      \] $name\b" $log || timeout 120 "$suite" "$name" >>$log 2>&1
    done
fi
# A test that began and neither passed nor was skipped has failed, also when the program died of it.
awk '
    /^\[ RUN      \] / { running = $4; if (!runs[running]++) order[++n] = running }
    /^\[       OK \] / { passed[$4]++ }
    /^\[  SKIPPED \] / && $4 == running { skipped[$4]++; running = "" } # and not again in the list at the end
    END {
        for (i = 1; i <= n; i++) {
            t = order[i]
            print (runs[t] > passed[t] + skipped[t] ? "failed" : passed[t] ? "passed" : "skipped"), t
        }
    }' $log >$out/tests
count() { grep -c "^$1 " $out/tests; }

if [ -n "$bench" ] && [ -x "$bench" ]; then
    echo "== $bench"
    timeout 300 "$bench" 2>&1 | tee $out/bench.log
    [ "${PIPESTATUS[0]}" -eq 0 ] || echo "(it failed)" | tee -a $out/bench.log
else
    bench=
fi

smi=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
gpu=${smi%%,*}
[ -n "$gpu" ] || gpu=$(head -n 1 $out/probes.md | cut -d, -f1)
date=$(date -u +%Y-%m-%d)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
mkdir -p docs/gpu
page=docs/gpu/$date-$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/^-//; s/-$//').md
{
    printf '# %s, %s\n\n' "$gpu" "$date"
    printf -- '- driver: %s\n' "${smi:+${smi##*, }}"
    printf -- '- device: %s\n' "$(head -n 1 $out/probes.md)"
    printf -- '- devstream: %s\n' "$commit"
    printf -- '- host: %s, %s, %s CPUs\n\n' "$(uname -sm)" "$($cc --version | head -n 1)" "$(nproc)"
    printf '## Conformance suite on the CUDA driver\n\n'
    printf '%d passed, %d failed, %d skipped.\n' "$(count passed)" "$(count failed)" "$(count skipped)"
    [ -z "$died" ] || printf 'The suite died with status %d; what it had not reached ran test by test.\n' $status
    [ $status -eq 0 ] || [ -n "$died" ] || [ "$(count failed)" -gt 0 ] ||
        printf 'The suite ended with status %d all the same.\n' $status
    if [ "$(count failed)" -gt 0 ]; then
        printf '\nFailed:\n\n'
        sed -n 's/^failed /- /p' $out/tests
    fi
    if [ "$(count skipped)" -gt 0 ]; then
        printf '\nSkipped:\n\n'
        sed -n 's/^skipped /- /p' $out/tests
    fi
    printf '\n## Probes\n\n'
    sed -n '/^|/p' $out/probes.md
    if [ -n "$bench" ]; then
        printf '\n## Benchmarks\n\n```\n'
        cat $out/bench.log
        printf '```\n'
    fi
} >"$page"
echo "== written: $page; the suite's output: $log"
sed -n 's/^failed /failed: /p' $out/tests
echo "gpu: $(count passed) passed, $(count failed) failed, $(count skipped) skipped"
[ -s $out/tests ] && [ $status -eq 0 ] && [ "$(count failed)" -eq 0 ]
