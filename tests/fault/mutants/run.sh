#!/usr/bin/env bash
# run.sh [PART]: puts each defect of defects.txt (whose title contains PART) into a copy of the header, builds the suite with it
# upon the stand-in and expects a test to fail. Prints a table; exit 1 when a defect survives or does not fit the code any more.
# Environment: SHARE: only some of the defects (tests/turn.sh), but all must fit the code; FIT=1: tells only which do not fit; CUDA_HOME, JOBS at once (2),
# B: the folder of the make that has built the suite (build/cc), MUTANT_CC: what compiles the headers with a defect (clang where it is
# there, which is three times as fast as gcc without the optimiser).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 2
jobs=${JOBS:-2} part=${1:-} built=${B:-build/cc}
cc=${MUTANT_CC:-$(command -v clang || echo "${CC:-cc}")}
if [ -z "${CUDA_HOME:-}" ] && [ -z "${FIT:-}" ]; then echo "skip  mutants: no toolkit found (CUDA_HOME)"; exit 0; fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# One folder per defect, with what it says in files.
awk -v work="$work" '
    /^#/ || /^$/ { next }
    $1 == "title" { n++; dir = sprintf("%s/%03d", work, n); system("mkdir -p " dir) }
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

verdict() { printf '%-9s %s\n' "$1" "$2" >"$dir/result"; } # WORD TEXT

# Runs tests until one fails, which `caught` names then: the program is ended there, since the next test may hang on what that one left locked.
run() { # PROGRAM [PART]; fails when no test was run
    local out status ran failed running
    out=$({ timeout 300 stdbuf -oL "$@" 2>&1 & echo "process $!"; wait $!; echo "status $?"; } | awk '
        $1 == "process" && !process { process = $2 }
        $1 == "status" { status = $2 }
        /^\[ RUN      \]/ { ran++; running = $4 }
        /^\[       OK \]/ { running = "the end" }
        /^\[  (FAILED|ERROR)  *\] test_/ && !failed { failed = $4; system("kill " process) }
        END { print ran + 0, failed ? failed : "-", running ? running : "the start"; print status }')
    { read -r ran failed running; read -r status; } <<<"$out"
    if [ "$failed" != - ]; then caught=$failed
    elif [ "$status" -ne 0 ]; then caught="$running (ended with $status)"; fi
    [ -n "$caught" ] || [ "$ran" -gt 0 ]
}

compile() { $cc -O0 -w "$@" 2>"$dir/log" || { verdict BROKEN "$title: $(head -n 1 "$dir/log")"; return 1; }; }

program() { # cpu, suite, fault, or unit TEST, which has the header in it: builds it in the folder, unless it is there
    [ -e "$dir/$1" ] && return
    local with="-DDEVSTREAM_CUDA -I$CUDA_HOME/include" object=$dir/cuda.o objects=("$built"/standin/*.o)
    if [ "$1" = cpu ]; then with='' object=$dir/cpu.o objects=(); fi
    case $1 in
    unit) compile -std=gnu11 $with -Itests/support "$dir/tests/unit/$2.c" "${objects[@]}" -o "$dir/unit" -lcmocka -pthread -ldl -lm; return ;;
    fault) objects+=("$built"/fault/objects/test_cuda.o) ;;
    *) objects+=("$built"/tests/conformance/*.o "$built"/tests/support/*.o) ;;
    esac
    [ -e "$object" ] || compile -std=c11 $with -c "$dir/devstream.c" -o "$object" || return
    compile "$object" "${objects[@]}" -o "$dir/$1" -lcmocka -pthread -ldl -lm
}

one() { # FOLDER: writes its line of the table to FOLDER/result
    local test part others caught='' began=$SECONDS driver
    dir=$1 title=$(cat "$1/title")
    mkdir -p "$dir/tests/unit"
    cp devstream*.h devstream.c "$dir"
    mutate "$dir" || return
    # The tests that are named, then the others.
    read -r test part <"$dir/by" || true
    case $test in
    unit) others=() && cp "tests/unit/$part.c" "$dir/tests/unit" ;;
    cpu) others=(cpu) ;;
    *) others=(fault suite) ;;
    esac
    for tests in "$test $part" "${others[@]}" "$test $part" "$test $part"; do # some show in some interleavings only
        read -r test part <<<"$tests"
        driver=cuda; [ "$test" = cpu ] && driver=cpu
        program "$test" "$part" || return
        [ "$test" = unit ] && part=
        DS_TEST_DRIVER=$driver DS_TEST_TIMEOUT=20 DEVSTREAM_CPU_DEVICES=2 DS_TEST_LOG= DS_TEST_PLUGIN="$(realpath "$built/plugin.so")" \
            run "$dir/$test" $part || { verdict BROKEN "$title: no test is called so: $tests"; return; }
        [ -z "$caught" ] || break
    done
    if [ -n "$caught" ]; then verdict caught "$(printf '%-62s %s' "$title" "$caught")"; else verdict SURVIVED "$title"; fi
    echo "$((SECONDS - began)) s $title" >"$dir/seconds"
    rm -f "$dir"/*.o "$dir"/{cpu,suite,fault,unit} "$dir"/*.[ch]
}
# Whether the defect can be put into the code, in a folder of its own since `one` may not run for it.
fits() { # FOLDER
    local dir=$1
    mutate "$dir" || verdict STALE "$(cat "$dir/title")"
    rm -f "$dir"/*.h
}
export -f one program compile run verdict mutate fits
export cc built work CUDA_HOME

find "$work" -mindepth 1 -maxdepth 1 -type d | xargs -P "$jobs" -I{} bash -c 'fits {}'
if [ -n "${FIT:-}" ]; then
    cat "$work"/*/result 2>/dev/null && exit 1
    echo "mutants: all of $(ls "$work" | wc -l) fit the code in $SECONDS s"
    exit 0
fi

chosen=()
for dir in "$work"/*/; do
    if grep -q -- "$part" "$dir/title" && [ ! -e "$dir/result" ]; then chosen+=("${dir%/}"); fi
done
tests/turn.sh "${chosen[@]}" | xargs -P "$jobs" -I{} bash -c 'one {}'

cat "$work"/*/result 2>/dev/null
all=$(cat "$work"/*/result 2>/dev/null | wc -l)
caught=$(cat "$work"/*/result 2>/dev/null | grep -c '^caught')
echo "the slowest: $(sort -nr "$work"/*/seconds 2>/dev/null | head -n 3 | paste -sd ,)"
echo "mutants: $caught passed, $((all - caught)) failed in $SECONDS s"
[ "$all" -gt 0 ] && [ "$caught" -eq "$all" ]
