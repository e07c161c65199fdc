#!/bin/bash
# Builds without the optimiser and runs the tests of a few rooms: quick.sh [LAYER/ROOM...]
# Without an argument: of the rooms and tests that differ from the last commit. Which tests those are is
# in tests/rooms.txt and tests/defects. clang is taken if it is there, since it compiles faster.
#     quick.sh --list [LAYER/ROOM...]    only prints the tests; fails if a room has none
# Environment: MAKE, CC.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
list=
if [ "${1:-}" = --list ]; then list=1 && shift; fi
if [ $# -eq 0 ] && [ -n "$list" ]; then
    # shellcheck disable=SC2046
    set -- $(cd src && find . -mindepth 2 -name '*.h' ! -name '*.gen.h' | sed 's,^\./,,' | sort)
fi

changed=$({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } 2>/dev/null | sort -u)
rooms=$* units='' groups=''
if [ $# -eq 0 ]; then
    rooms=$(echo "$changed" | sed -n 's,^src/\([a-z]*/.*\.h\)$,\1,p' | grep -v '\.gen\.h$')
    units=$(echo "$changed" | sed -n 's,^tests/unit/\(test_.*\)\.c$,\1,p')
    groups=$(echo "$changed" | sed -n 's,^tests/conformance/test_\(.*\)\.c$,\1,p')
fi

# Lines "WHERE group NAME" and "WHERE part NAME", each once.
tests_of() { # ROOM
    local room=${1%.h}.h pattern where names
    [ -e "src/$room" ] || { echo "quick: there is no room src/$room" >&2; return 1; }
    while read -r pattern where names; do
        # shellcheck disable=SC2254
        case $room in $pattern) for name in $names; do echo "$where group $name"; done ;; esac
    done < <(grep -v '^#' tests/rooms.txt)
    sed -n 's/^by: suite \(.*\)/cuda part \1/p; s/^by: \(cpu\|unit\|fault\) \(.*\)/\1 part \2/p' "tests/defects/${room%.h}.diff" 2>/dev/null || true
}
wanted=$(for room in $rooms; do
    found=$(tests_of "$room") || exit 1
    [ -n "$found" ] || { echo "quick: no line of tests/rooms.txt matches $room" >&2; exit 1; }
    echo "$found"
done) || exit 1
wanted=$({ echo "$wanted"; for name in $units; do echo "unit group $name"; done; for name in $groups; do echo "cpu group $name"; done; } |
    sed 's/^\(unit\|fault\) group/\1 part/' | grep . | sort -u)
[ -n "$wanted" ] || { echo "quick: nothing differs from the last commit; ROOM=alloc/arena names a room"; exit 0; }
# Each name must be that of a file.
missing=$(echo "$wanted" | while read -r where kind name; do
    case $where-$kind in
    unit-*) [ -e "tests/unit/$name.c" ] || [ -e "tests/check/$name.c" ] || echo "quick: there is no unit test $name" ;;
    *-group) [ -e "tests/conformance/test_$name.c" ] || echo "quick: there is no group $name" ;;
    esac
done)
if [ -n "$missing" ]; then echo "$missing" >&2; exit 1; fi
if [ -n "$list" ]; then echo "$wanted"; exit 0; fi

cc=${CC:-cc}
if [ "$cc" = cc ] && command -v clang >/dev/null; then cc=clang; fi
built=build/$(basename "$cc")-quick
cuda=
[ -z "${CUDA_HOME:-}" ] || cuda=1
targets="$built/plugin.so $built/nvml.so $built/nvml-old.so $built/conformance"
while read -r where _ name; do
    case $where in
    unit) targets="$targets $built/unit/$name" ;;
    cuda) [ -z "$cuda" ] || targets="$targets $built/conformance-standin" ;;
    fault) [ -z "$cuda" ] || targets="$targets $built/fault/test_cuda" ;;
    esac
done <<<"$wanted"
# shellcheck disable=SC2086
"${MAKE:-make}" --no-print-directory -s MODE=quick CC="$cc" -j"$(nproc)" $(echo "$targets" | tr ' ' '\n' | sort -u) || exit 1
compiled=$(($(date +%s) - began))

export DEVSTREAM_CPU_DEVICES=2 DS_TEST_TIMEOUT=60 DS_TEST_PLUGIN=$PWD/$built/plugin.so
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() { # WORDS...: a program and how it is called
    local log
    log=$(mktemp "$logs/XXXXXX.log")
    env "$@" >"$log" 2>&1 && grep -q '^\[       OK \]' "$log" && return
    echo "failed: $*" >>"$logs/failed"
    grep -q '^\[ RUN ' "$log" || echo "quick: no test was run by: $*"
    grep -E 'ERROR|LINE|FAILED|there is' "$log" | head -n 20
}
one() { # WHERE KIND NAME
    local name=$3
    case $1-$2 in
    cpu-group) run DS_TEST_DRIVER=cpu "DS_TEST_GROUP=$name" "$built/conformance" ;;
    cpu-part) run DS_TEST_DRIVER=cpu "$built/conformance" "$name" ;;
    unit-*) run "$built/unit/$name" ;;
    *) if [ -z "$cuda" ]; then echo "skip  $1 $name: no toolkit found (CUDA_HOME)"
       elif [ "$1" = fault ]; then run "$built/fault/test_cuda" "$name"
       elif [ "$2" = group ]; then run DS_TEST_DRIVER=cuda "DS_TEST_GROUP=$name" "$built/conformance-standin"
       else run DS_TEST_DRIVER=cuda "$built/conformance-standin" "$name"; fi ;;
    esac
}
export -f one run
export built cuda logs
# Groups first: they take longest.
# shellcheck disable=SC2016
echo "$wanted" | sort -k2,2 -s | xargs -P "$(nproc)" -L 1 bash -c 'one "$@"' one
failed=$(cat "$logs/failed" 2>/dev/null | wc -l)
[ "$failed" -eq 0 ] || cat "$logs/failed"
passed=$(cat "$logs"/*.log | grep -c '^\[       OK \]')
echo "quick: $(echo "$rooms" | wc -w) rooms, $passed tests passed, $failed programs failed, $(($(date +%s) - began)) s, $compiled of them to build"
[ "$failed" -eq 0 ]
