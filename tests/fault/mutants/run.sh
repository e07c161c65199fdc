#!/usr/bin/env bash
# run.sh [PART]: puts each defect of defects.txt (whose title contains PART) into a copy of the header, builds the suite with it
# upon the stand-in and expects a test to fail. Prints a table; exit 1 when a defect survives or does not fit the code any more.
# Environment: CC, CUDA_HOME, JOBS at once (2), B: the folder of the make that has built the suite (build/cc).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 2
cc=${CC:-cc} jobs=${JOBS:-2} part=${1:-}
built=${B:-build/$(basename "${cc%% *}")}
if [ -z "${CUDA_HOME:-}" ]; then echo "skip  mutants: no toolkit found (CUDA_HOME)"; exit 0; fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# One folder per defect, with what it says in files.
awk -v work="$work" '
    /^#/ || /^$/ { next }
    $1 == "title" { n++; dir = sprintf("%s/%02d", work, n); system("mkdir -p " dir) }
    { text = $0; sub(/^[^ ]+ */, "", text); name = $1; if (name == "-") name = "from"; if (name == "+") name = "to"; printf "%s", text >(dir "/" name); close(dir "/" name) }
' "$here/defects.txt"

# Replaces the text; fails when it is not there.
mutate() { # FOLDER
    touch "$1/to"
    local header=devstream.h
    [ -e "$1/of" ] && header=$(cat "$1/of")
    awk -v in_file="$1/in" -v from_file="$1/from" -v to_file="$1/to" '
        function slurp(file,    line, text) { text = ""; while ((getline line < file) > 0) text = text line; close(file); return text }
        BEGIN { anchor = slurp(in_file); from = slurp(from_file); to = slurp(to_file) }
        index($0, anchor) && !done { armed = 60 }
        armed > 0 && !done && (at = index($0, from)) { $0 = substr($0, 1, at - 1) to substr($0, at + length(from)); done = 1 }
        { armed--; print }
        END { exit !done }' "$header" >"$1/$header"
}

# A unit test that has the header in it.
one_unit() { # FOLDER TITLE TEST
    local dir=$1 title=$2 test=$3 caught
    cp "tests/unit/$test.c" "$dir/tests/unit"
    if ! $cc -O0 -std=gnu11 -w -DDEVSTREAM_CUDA -I"$CUDA_HOME/include" -Itests/support "$dir/tests/unit/$test.c" "$built"/standin/*.o \
        -o "$dir/$test" -lcmocka -pthread -ldl -lm 2>"$dir/log"; then
        printf 'BROKEN    %s: %s\n' "$title" "$(head -n 1 "$dir/log")" >"$dir/result"; return
    fi
    timeout 60 "$dir/$test" >"$dir/out" 2>&1
    local status=$?
    if [ $status -eq 0 ]; then
        printf 'SURVIVED  %s\n' "$title" >"$dir/result"
    else
        caught=$(sed -n 's/^\[  FAILED  \] \(test_[a-z0-9_]*\).*/\1/p' "$dir/out" | head -n 1)
        [ -n "$caught" ] || caught="$(sed -n 's/^\[ RUN      \] \(test_[a-z0-9_]*\).*/\1/p' "$dir/out" | tail -n 1) (ended with $status)"
        printf 'caught    %-62s %s\n' "$title" "$caught" >"$dir/result"
    fi
    cat "$dir/result"
}

one() { # FOLDER: writes its line of the table to FOLDER/result
    local dir=$1 by test part status caught=""
    local title; title=$(cat "$dir/title")
    mkdir -p "$dir/tests/unit"
    cp devstream*.h devstream.c "$dir"
    if ! mutate "$dir"; then printf 'STALE     %s\n' "$title" >"$dir/result"; return; fi
    read -r test part <"$dir/by" || true
    if [ "$test" = unit ]; then one_unit "$dir" "$title" "$part"; return; fi
    local cuda="-DDEVSTREAM_CUDA -I$CUDA_HOME/include" standin="$built/standin/*.o"
    [ "$test" = cpu ] && cuda='' standin=''
    if ! $cc -O0 -std=c11 -w $cuda -I"$dir" -c "$dir/devstream.c" -o "$dir/devstream.o" 2>"$dir/log"; then
        printf 'BROKEN    %s: %s\n' "$title" "$(head -n 1 "$dir/log")" >"$dir/result"; return
    fi
    $cc "$dir/devstream.o" "$built"/tests/conformance/*.o "$built"/tests/support/*.o $standin -o "$dir/suite" -lcmocka -pthread -ldl -lm || return
    [ "$test" = cpu ] || $cc "$dir/devstream.o" "$built"/fault/objects/test_cuda.o $standin -o "$dir/fault" -lcmocka -pthread -ldl -lm || return
    # The tests that are named, then the others.
    local others="fault suite" driver
    [ "$test" = cpu ] && others=cpu
    for run in "$test $part" $others; do
        read -r test part <<<"$run"
        driver=cuda
        [ "$test" = cpu ] && { driver=cpu; test=suite; }
        DS_TEST_DRIVER=$driver DS_TEST_TIMEOUT=20 DEVSTREAM_CPU_DEVICES=2 DS_TEST_LOG= DS_TEST_PLUGIN="$PWD/$built/plugin.so" \
            timeout 300 "$dir/$test" $part >"$dir/out" 2>&1
        status=$?
        [ $status -eq 0 ] && continue
        caught=$(sed -n 's/^\[  FAILED  \] \(test_[a-z0-9_]*\).*/\1/p' "$dir/out" | head -n 1)
        [ -n "$caught" ] || caught="$(sed -n 's/^\[ RUN      \] \(test_[a-z0-9_]*\).*/\1/p' "$dir/out" | tail -n 1) (ended with $status)"
        break
    done
    if [ -n "$caught" ]; then printf 'caught    %-62s %s\n' "$title" "$caught" >"$dir/result"
    else printf 'SURVIVED  %s\n' "$title" >"$dir/result"; fi
    cat "$dir/result"
}
export -f one one_unit mutate
export cc built work CUDA_HOME

for dir in "$work"/*/; do
    if grep -q -- "$part" "$dir/title"; then echo "${dir%/}"; fi
done | xargs -P "$jobs" -I{} bash -c 'one {} >/dev/null'

cat "$work"/*/result 2>/dev/null
all=$(cat "$work"/*/result 2>/dev/null | wc -l)
caught=$(cat "$work"/*/result 2>/dev/null | grep -c '^caught')
echo "mutants: $caught passed, $((all - caught)) failed"
[ "$all" -gt 0 ] && [ "$caught" -eq "$all" ]
