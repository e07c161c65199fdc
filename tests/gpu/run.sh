#!/usr/bin/env bash
# What only a GPU can show, for `make check-gpu`: probes, the conformance suite on the CUDA driver, benchmarks. Writes
# docs/gpu/<date>-<GPU>.md, and the answers of the probes beside what was expected (expected.tsv) into <date>-<GPU>.json.
#     run.sh CONFORMANCE BENCHMARK [PART]...      programs that are linked with the real cudart; BENCHMARK may be ''
# PART: risks, probes, suite:K/N (the K-th of N shares of the suite's groups), bench, page; none: all, with N = 4.
# A part ends within PART_SECONDS (540). Work that does not fit is listed as not run. Each part keeps its results under OUT_DIR
# (build/gpu), so parts may run in separate calls, and the folders of separate checkouts may be joined; `page` writes what is there.
# Exit status 77: there is no GPU here; 1: a test failed or work was not run. What probes observe is no pass and no failure.
# Environment: CC (cc), CFLAGS (-O2), CUDA_HOME (/usr/local/cuda), CUDART=shared: link the probes with libcudart.so;
# GROUP_SECONDS (120) for a group, DS_TEST_TIMEOUT (60) for a test; DS_TEST_* as in tests/README.md.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 2 ] || { echo "usage: $0 CONFORMANCE BENCHMARK [PART]..." >&2; exit 2; }
suite=$(realpath "$1") bench=${2:+$(realpath "$2")}
shift 2
[ $# -gt 0 ] || set -- risks probes suite:1/4 suite:2/4 suite:3/4 suite:4/4 bench page
cd "$root" || exit 2
cc=${CC:-cc} cuda=${CUDA_HOME:-/usr/local/cuda} out=${OUT_DIR:-build/gpu}
part_seconds=${PART_SECONDS:-540} group_seconds=${GROUP_SECONDS:-120}
export DS_TEST_TIMEOUT=${DS_TEST_TIMEOUT:-60}
mkdir -p "$out"

# left: the seconds of this part that are left.
left() { echo $((stop - SECONDS)); }

commit() {
    local id
    id=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
    [ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || id="$id with changes"
    echo "$id"
}

# ---- probes ----

# A machine without a compiler or CUDA's headers uses a program that was built elsewhere and lies under OUT_DIR.
build_probes() { # build_probes NAME
    if ! command -v "$cc" >/dev/null || [ ! -e "$cuda/include/cuda_runtime_api.h" ]; then
        [ ! -x "$out/$1" ] || return 0
    fi
    local lib=$cuda/lib64 link="-lcudart_static -ldl -lrt"
    [ "${CUDART:-}" != shared ] && [ -e "$lib/libcudart_static.a" ] || link="-lcudart -ldl -Wl,-rpath,$lib"
    # shellcheck disable=SC2086
    $cc -std=c11 ${CFLAGS:--O2} -I"$cuda/include" "tests/gpu/$1.c" -o "$out/$1" -L"$lib" $link -pthread ||
        { echo "check-gpu: $1 does not build (CUDA_HOME is $cuda)" >&2; exit 2; }
}

# The GPU and its driver, for the page. Ends the script where there is none.
find_gpu() {
    build_probes risks
    "$out/risks" --device >"$out/device.new"
    local status=$?
    if [ $status -ne 0 ]; then
        [ $status -ne 77 ] || write_answers "$(cat "$out/device.new")"
        cat "$out/device.new"
        rm -f "$out/device.new"
        exit $status
    fi
    mv "$out/device.new" "$out/device"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 >"$out/smi"
    echo "$(uname -sm), $($cc --version 2>/dev/null | head -n 1), $(nproc) CPUs" >"$out/host"
}

run_probes() { # run_probes NAME: the rows are kept also when probes failed
    build_probes "$1"
    PROBES_SECONDS=$(left) "$out/$1" | tee "$out/$1.md"
    [ "${PIPESTATUS[0]}" -eq 0 ] || echo "some probes died, hung, could not be set up or were not run"
    [ "$1" != risks ] || write_answers
}

# The answers of the probes R1 to R15 beside the expected ones. Without a GPU each is skipped with the reason.
write_answers() { # write_answers [REASON]
    local smi=''
    [ ! -e "$out/smi" ] || smi=$(cat "$out/smi")
    awk -v reason="${1:-}" -v date="$(date -u +%Y-%m-%d)" -v device="$(cat "$out/device" 2>/dev/null)" \
        -v driver="${smi##*, }" -v commit="$(commit)" -f tests/gpu/answers.awk tests/gpu/expected.tsv \
        $([ -n "${1:-}" ] || echo "$out/risks.md") >"$out/answers.json"
    sed -n 's/^  "as_expected": /answers as expected: /p' "$out/answers.json" | tr -d '"'
}

# ---- the suite ----

# Reads a log and prints "status test" for each test that began. A test that began and neither passed nor was skipped has failed,
# also if the program died of it.
statuses() {
    awk '
        /^\[ RUN      \] / { running = $4; if (!runs[running]++) order[++n] = running }
        /^\[       OK \] / { passed[$4]++ }
        /^\[  SKIPPED \] / && $4 == running { skipped[$4]++; running = "" } # and not again in the list at the end
        END {
            for (i = 1; i <= n; i++) {
                t = order[i]
                print (runs[t] > passed[t] + skipped[t] ? "failed" : passed[t] ? "passed" : "skipped"), t
            }
        }' "$1"
}

# Runs one test; prints its status. The bracket ends its name, which may begin that of another test.
one_test() { # one_test GROUP TEST
    local limit=$((DS_TEST_TIMEOUT + 10)) cut='' status at=$SECONDS
    [ "$(left)" -ge $limit ] || { limit=$(left) cut=1; }
    [ "$limit" -ge 2 ] || { echo not-run; return; }
    DS_TEST_GROUP=$1 timeout -k 5 "$limit" "$suite" "$2 [" >"$log.one" 2>&1
    status=$?
    cat "$log.one" >>"$log"
    if [ $status -ge 124 ] && [ -n "$cut" ] && [ $((SECONDS - at)) -ge "$limit" ]; then
        echo not-run
    else
        statuses "$log.one" | awk -v test="$2" '$2 == test { found = $1 } END { print found ? found : "failed" }'
    fi
}

# Runs a group in a process of its own and keeps the statuses of its tests in $log.known. A test in which the process died has
# failed. The test that ran when the time of the group was over has no status: it runs once more alone.
run_whole() { # run_whole GROUP
    local limit=$group_seconds at=$SECONDS status running
    [ "$(left)" -ge "$limit" ] || limit=$(left)
    : >"$log.known"
    [ "$limit" -ge 2 ] || return
    DS_TEST_GROUP=$1 timeout -k 5 "$limit" "$suite" >"$log.group" 2>&1
    status=$?
    cat "$log.group" >>"$log"
    statuses "$log.group" >"$log.known"
    if grep -q '^\[==========\] .* run' "$log.group"; then
        [ $status -eq 0 ] || grep -q '^failed ' "$log.known" || echo "failed $1 (the end of its process)" >>"$results.tests"
        return
    fi
    running=$(tail -n 1 "$log.known" | cut -d' ' -f2)
    if [ $((SECONDS - at)) -ge "$limit" ]; then
        sed -i '$d' "$log.known"
        echo "$1: its $limit s were over in ${running:-its first test}" >>"$results.notes"
    else
        echo "$1: its process ended with status $status in ${running:-no test}" >>"$results.notes"
    fi
    tail -n 1 "$results.notes"
}

# Runs a group, then one by one the tests that its process did not reach.
run_group() { # run_group GROUP
    local test known
    run_whole "$1"
    for test in $(awk -v group="$1" '$1 == group { print $2 }' "$list"); do
        known=$(awk -v test="$test" '$2 == test { print $1 }' "$log.known")
        echo "${known:-$(one_test "$1" "$test")} $1 $test" >>"$results.tests"
    done
}

run_suite() { # run_suite K/N
    local k=${1%/*} n=${1#*/} group began
    case $k$n in *[!0-9]*) echo "check-gpu: suite:K/N, not suite:$1" >&2; exit 2 ;; esac
    [ "$k" -ge 1 ] && [ "$k" -le "$n" ] || { echo "check-gpu: there is no share $k of $n" >&2; exit 2; }
    results=$out/suite-$k-of-$n log=$out/suite-$k-of-$n.log list=$out/suite.list
    export DS_TEST_DRIVER=cuda CUDA_DEVICE_MAX_CONNECTIONS=32
    local plugin
    plugin=$(dirname "$suite")/plugin.so
    [ -n "${DS_TEST_PLUGIN:-}" ] || [ ! -e "$plugin" ] || export DS_TEST_PLUGIN=$plugin
    for old in "$out"/suite-*-of-*.tests; do # shares of another number would count tests twice
        case $old in *-of-"$n".tests) ;; *) rm -f "$old" "${old%.tests}.notes" ;; esac
    done
    "$suite" --list >"$list" || exit 2
    : >"$results.tests"
    : >"$results.notes"
    : >"$log"
    for group in $(cut -d' ' -f1 "$list" | uniq | awk -v k="$k" -v n="$n" '(NR - 1) % n == k - 1'); do
        began=$SECONDS
        run_group "$group"
        awk -v group="$group" -v seconds=$((SECONDS - began)) '
            $2 == group { count[$1]++ }
            END { print group ":", count["passed"] + 0, "passed,", count["failed"] + 0, "failed,", count["skipped"] + 0,
                "skipped,", count["not-run"] + 0, "not run,", seconds, "s" }' "$results.tests"
    done
    rm -f "$log.group" "$log.one" "$log.known"
}

# ---- the benchmarks ----

run_bench() {
    if [ -z "$bench" ] || [ ! -x "$bench" ]; then
        echo "there is no benchmark program"
        return
    fi
    timeout -k 5 "$(left)" "$bench" 2>&1 | tee "$out/bench.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || echo "(it failed or its time was over)" | tee -a "$out/bench.log"
    echo | tee -a "$out/bench.log"
    timeout -k 5 "$(left)" python3 bench/peer_gpu.py 2>&1 | tee -a "$out/bench.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || echo "(no rows of PyTorch and CuPy: see above)" | tee -a "$out/bench.log"
}

# ---- the page ----

all_tests() { cat "$out"/suite-*-of-*.tests 2>/dev/null; }
count() { all_tests | grep -c "^$1 "; }

list_tests() { # list_tests STATUS TITLE
    [ "$(count "$1")" -gt 0 ] || return 0
    printf '\n%s:\n\n' "$2"
    all_tests | sed -n "s/^$1 \([^ ]*\) /- \1: /p"
}

# The parts that have left no results.
missing_parts() {
    local n k part
    for part in risks.md probes.md bench.log; do
        [ -e "$out/$part" ] || echo "${part%.*}"
    done
    n=$(ls "$out" | sed -n 's/^suite-[0-9]*-of-\([0-9]*\)\.tests$/\1/p' | head -n 1)
    for k in $(seq "${n:-4}"); do
        [ -e "$out/suite-$k-of-${n:-4}.tests" ] || echo "suite:$k/${n:-4}"
    done
}

other_answers() {
    awk -F '": ' '
        { value = $2; sub(/,$/, "", value); gsub(/^"|"$/, "", value); gsub(/\\"/, "\"", value) }
        /^      "probe"/ { probe = value }
        /^      "expected"/ { expected = value }
        /^      "answer"/ { answer = substr($0, index($0, "\": ") + 3); gsub(/^"|",$/, "", answer) }
        /^      "as_expected": false/ { other = 1 }
        /^      "otherwise"/ && other {
            printf "- %s: %s\n  Expected: `%s`. Consequence: %s\n", probe, answer, expected, substr($0, 21, length($0) - 21)
            other = 0
            n++
        }
        END { if (!n) print "None." }' "$out/answers.json"
}

page_text() { # page_text GPU DATE
    local smi missing
    smi=$(cat "$out/smi")
    printf '# %s, %s\n\n' "$1" "$2"
    printf -- '- driver: %s\n' "${smi:+${smi##*, }}"
    printf -- '- device: %s\n' "$(cat "$out/device")"
    printf -- '- devstream: %s\n' "$(sort -u "$out"/*.commit | paste -sd, | sed 's/,/, /g')"
    printf -- '- host: %s\n' "$(cat "$out/host")"
    missing=$(missing_parts | paste -sd, | sed 's/,/, /g')
    [ -z "$missing" ] || printf -- '- parts that were not run: %s\n' "$missing"
    printf '\n## Conformance suite on the CUDA driver\n\n'
    printf '%d passed, %d failed, %d skipped, %d not run.\n' \
        "$(count passed)" "$(count failed)" "$(count skipped)" "$(count not-run)"
    if [ -n "$(cat "$out"/suite-*.notes 2>/dev/null)" ]; then
        printf '\nGroups that ended early (what they had not reached ran test by test):\n\n'
        sed 's/^/- /' "$out"/suite-*.notes
    fi
    list_tests failed Failed
    list_tests not-run 'Not run'
    list_tests skipped Skipped
    if [ -e "$out/answers.json" ]; then
        printf '\n## Answers that differ from the expected ones\n\n'
        other_answers
    fi
    for part in risks probes; do
        [ -e "$out/$part.md" ] || continue
        printf '\n## %s\n\n' "$(echo $part | sed 's/^r/R/; s/^p/P/')"
        sed -n '/^|/p' "$out/$part.md"
    done
    if [ -e "$out/bench.log" ]; then
        printf '\n## Benchmarks\n\n```text\n'
        cat "$out/bench.log"
        printf '```\n'
    fi
}

write_page() {
    local gpu date page
    [ -e "$out/device" ] || { echo "there are no results in $out" >&2; exit 2; }
    gpu=$(cut -d, -f1 "$out/smi")
    [ -n "$gpu" ] || gpu=$(head -n 1 "$out/device" | cut -d, -f1)
    date=$(date -u +%Y-%m-%d)
    page=${PAGE_DIR:-docs/gpu}/$date-$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/^-//; s/-$//').md
    mkdir -p "$(dirname "$page")"
    page_text "$gpu" "$date" >"$page"
    [ ! -e "$out/answers.json" ] || cp "$out/answers.json" "${page%.md}.json"
    echo "written: $page; the suite's output: $out/suite-*.log"
}

for part; do
    case $part in
    risks|probes|suite:[0-9]*/[0-9]*|bench|page) ;;
    *) echo "check-gpu: there is no part $part: risks, probes, suite:K/N, bench, page" >&2; exit 2 ;;
    esac
done
for part; do
    echo "== $part"
    stop=$((SECONDS + part_seconds))
    [ "$part" = page ] || find_gpu
    case $part in
    risks|probes) run_probes "$part" ;;
    suite:*) run_suite "${part#suite:}" ;;
    bench) run_bench ;;
    page) write_page ;;
    esac
    [ "$part" = page ] || commit >"$out/$(echo "$part" | tr ':/' '--').commit"
done
if [ -n "$(all_tests)" ]; then
    all_tests | sed -n 's/^failed /failed: /p; s/^not-run /not run: /p'
    echo "gpu: $(count passed) passed, $(count failed) failed, $(count skipped) skipped, $(count not-run) not run"
fi
[ "$(count failed)" -eq 0 ] && [ "$(count not-run)" -eq 0 ] && ! grep -qs '\*\*not run\*\*' "$out"/*.md
