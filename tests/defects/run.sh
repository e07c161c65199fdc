#!/usr/bin/env bash
# Seeded defects: each is put into a copy of src/, the tests are built with it, and one must fail.
#     run.sh [PART]     the defects whose file or title contains PART
# Without PART and SHARE the tests are run without a defect first, and must pass.
# Prints a table; exit 1 if a defect survives, does not compile, or does not fit the code any more
# (regenerate it with tests/defects/refit.py). A file has the defects of one room; each is a title, the
# tests that are run first, and a unified diff, which must apply without fuzz:
#     by: fault | suite | cpu PART      the fault tests, the suite on the CUDA driver or on the CPU driver
#     by: unit NAME                     that unit test
# Environment: SHARE: only some of the defects (tests/turn.sh), but all must fit the code and name a test;
# FIT=1: only checks that; CUDA_HOME; JOBS at once (2); B: the folder of the make that has built the suite
# (build/cc); MUTANT_CC: the compiler for the library with a defect (clang if it is installed, since it is
# three times as fast as gcc without the optimiser).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
jobs=${JOBS:-2} part=${1:-} built=${B:-build/cc}
export DS_TEST_NCCL_OLD=$PWD/$built/lib-nccl-old/libnccl.so.2 DS_TEST_MPI=$PWD/$built
cc=${MUTANT_CC:-$(command -v clang || echo "${CC:-cc}")}
if [ -z "${CUDA_HOME:-}" ] && [ -z "${FIT:-}" ]; then echo "skip  defects: no toolkit found (CUDA_HOME)"; exit 0; fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# One folder per defect, with its title, tests, room and diff in files.
find tests/defects -name '*.diff' | sort | xargs awk -v work="$work" '
    /^title: / { n++; dir = sprintf("%s/%03d", work, n); system("mkdir -p " dir); keep("title", substr($0, 8)); next }
    /^by: / { keep("by", substr($0, 5)); next }
    FNR == 1 || !n { next }
    /^--- a\// { keep("room", substr($0, 7)) }
    { print >(dir "/diff") }
    function keep(name, text) { print text >(dir "/" name); close(dir "/" name) }'

verdict() { printf '%-9s %s\n' "$1" "$2" >"$dir/result"; } # WORD TEXT

# Puts the defect into a copy of the source tree, whose other files are links.
mutate() { # FOLDER
    cp -al src "$1/src" && cp "$1/src/${room#src/}" "$1/own" && mv "$1/own" "$1/src/${room#src/}" &&
        (cd "$1" && GIT_CEILING_DIRECTORIES=$work git apply -p1 diff 2>/dev/null)
}

# Runs tests until one fails, which `caught` names then: the processes are ended there, since the next test may
# hang on what that one left locked.
run() { # PROGRAM [PART]; fails when no test was run
    local process='' status=0 ran=0 failed='' running='the start' line
    while read -r line; do
        case $line in
        "process "*) process=${line#* } ;;
        "status "*) status=${line#* } && break ;;
        "[ RUN      ] "*) ran=$((ran + 1)) running=${line#*] } ;;
        "[       OK ] "*) running='the end' ;;
        "[  FAILED  ] test_"* | "[  ERROR   ] test_"*) failed=${line#*] } && break ;;
        esac
    done < <(timeout -k 5 600 stdbuf -oL "$@" 2>&1 & echo "process $!"; wait $!; echo "status $?")
    kill -KILL -- "-$process" 2>/dev/null # timeout has a group of its own
    if [ -n "$failed" ]; then caught=${failed%% *}
    elif [ "$status" -ne 0 ]; then caught="${running%% *} (ended with $status)"; fi
    [ -n "$caught" ] || [ "$ran" -gt 0 ]
}

# Runs tests in the folder `dir` with the environment that they need. Some hang on a defect, others take their
# time without the optimiser.
run_in() { # cpu, suite, fault or unit; PART
    local driver=cuda deadline=20
    [ -n "${2:-}" ] || deadline=120
    [ "$1" != cpu ] || driver=cpu
    ln -sf "$(realpath "$built")"/*.so "$dir"/ # tests look for them beside the program
    DS_TEST_DRIVER=$driver DS_TEST_TIMEOUT=$deadline DEVSTREAM_CPU_DEVICES=2 DS_TEST_LOG= DS_TEST_PLUGIN="$dir/plugin.so" \
        run "$dir/$1" ${2:+"$2"}
}

compile() { $cc -O0 -w -I"$dir/src" "$@" 2>"$dir/log" || { verdict BROKEN "$title: $(head -n 1 "$dir/log")"; return 1; }; }

# Adds the objects of the suite. A room of api/ can have code that the tests compile, so the file of the test
# that PART names is compiled with the defect; if its kernels are also tested at other levels of the optimiser, in both forms.
tested() { # PART
    local object name level
    for object in "$built"/tests/conformance/*.o "$built"/tests/support/*.o; do
        name=$(basename "$object" .o) level=
        [[ $name != *_o[03] ]] || level=${name##*_o}
        if [[ ${room:-} = src/api/* && -n $1 ]] && grep -qs "test_[a-z0-9_]*$1" "tests/conformance/${name%_o[03]}.c"; then
            [ -z "$level" ] || tests/support/kernels/compile.sh -O"$level" tests/support/kernels/once.kernels.h "$dir/ptx/o$level" "$dir/src" >/dev/null ||
                { verdict BROKEN "$title: the kernels have no PTX"; return 1; }
            compile -O"${level:-0}" -std=gnu11 -I"$dir" -Itests/support -c "tests/conformance/$name.c" -o "$dir/$name.o" || return
            object=$dir/$name.o
        fi
        objects+=("$object")
    done
}

program() { # cpu, suite, fault, or unit TEST, which has the library in it: builds it in the folder, unless it is there
    [ -e "$dir/$1" ] && return
    local with="-DDEVSTREAM_CUDA -DDS__COUNT_LOCKS -I$CUDA_HOME/include" object=$dir/cuda.o objects=("$built"/standin/*.o)
    if [ "$1" = cpu ]; then with='' object=$dir/cpu.o objects=(); fi
    case $1 in
    unit)
        object=$built/native/${2#test_}.o # the CPU's forms, without the defect
        [ ! -e "$object" ] || objects+=("$object")
        local file=tests/unit/$2.c
        [ -e "$file" ] || file=tests/check/$2.c
        local flags=(-Wl,--export-dynamic-symbol=standin_watch)
        case $2 in *nccl*) objects+=("$built"/nccl/*.o) flags=(-Wl,--export-dynamic-symbol='standin_*' -Wl,--export-dynamic-symbol='nccl*') ;; esac
        compile -std=gnu11 $with -Itests/support "$file" "${objects[@]}" -o "$dir/unit" -lcmocka -pthread -ldl -lm "${flags[@]}"
        return ;;
    fault) objects+=("$built"/fault/objects/test_cuda.o) ;;
    *) tested "${2:-}" || return ;;
    esac
    [ -e "$object" ] || compile -std=c11 $with -c "$dir/src/devstream.c" -o "$object" || return
    compile "$object" "${objects[@]}" -o "$dir/$1" -lcmocka -pthread -ldl -lm
}

one() { # FOLDER: writes its line of the table to FOLDER/result
    local test part others caught='' began=$SECONDS
    dir=$1 title=$(cat "$1/title") room=$(cat "$1/room")
    mutate "$dir" || return
    # The tests that are named, then the others.
    read -r test part <"$dir/by" || true
    case $test in
    unit) others=() ;;
    cpu) others=(cpu) ;;
    *) others=(fault suite) ;;
    esac
    for tests in "$test $part" "${others[@]}" "$test $part" "$test $part"; do # some show in some interleavings only
        read -r test part <<<"$tests"
        program "$test" "$part" || return
        [ "$test" = unit ] && part=
        run_in "$test" "$part" || { verdict BROKEN "$title: no test is called so: $tests"; return; }
        [ -z "$caught" ] || break
    done
    if [ -n "$caught" ]; then verdict caught "$(printf '%-24s %-62s %s' "${room#src/}" "$title" "$caught")"; else verdict SURVIVED "$room: $title"; fi
    echo "$((SECONDS - began)) s $title" >"$dir/seconds"
    rm -rf "$dir"/*.o "$dir"/{cpu,suite,fault,unit} "$dir/src"
}
# All tests without a defect: one that fails would catch every defect.
sound() { # FOLDER
    local test caught=''
    dir=$1 title='no defect'
    cp -al src "$dir/src"
    for test in cpu suite fault $(sed -n 's/^unit //p' "$work"/*/by | sort -u); do
        case $test in
        test_*) rm -f "$dir/unit" && program unit "$test" && run_in unit ;;
        *) program "$test" && run_in "$test" ;;
        esac
        [ -z "$caught" ] || verdict UNSOUND "$test fails without a defect: $caught"
        [ -z "$caught" ] || return
    done
}
# The names of all tests, one line each: "unit NAME", "fault NAME", "cpu NAME [LINES]", "suite NAME [LINES]".
list_tests() {
    basename -s .c tests/unit/test_*.c tests/check/test_*.c | sed 's/^/unit /'
    grep -oh 'test_[a-z0-9_]*' tests/fault/*.c | sed 's/^/fault /'
    cat tests/conformance/*.c | tr '\n' ' ' | grep -oE 'DS_TEST(_[A-Z]+)*\( *test_[^"]*"[^"]*"' |
        sed -E 's/^DS_TEST([A-Z_]*)\( *(test_[a-z0-9_]*),[^"]*"(.*)"$/\1 \2 [\3]/' |
        while read -r line; do
            case $line in
            _CUDA*) echo "suite test_${line#*test_}" ;;
            _CPU*) echo "cpu test_${line#*test_}" ;;
            *) printf '%s\n' "cpu test_${line#*test_}" "suite test_${line#*test_}" ;;
            esac
        done
}
# Whether the defect can be put into the code, and its `by:` names a test.
fits() { # FOLDER
    local test part
    read -r test part <"$1/by" || true
    if ! git apply --check -p1 "$1/diff" 2>/dev/null; then
        printf '%-9s %s\n' STALE "$(cat "$1/room"): $(cat "$1/title")" >"$1/result"
    elif ! sed -n "s/^$test //p" "$work/tests" | grep -qF -- "$part"; then
        printf '%-9s %s\n' BROKEN "$(cat "$1/room"): $(cat "$1/title"): no test is called so: $test $part" >"$1/result"
    fi
}
export -f one program tested compile run run_in verdict mutate fits
export cc built work CUDA_HOME

list_tests >"$work/tests"
find "$work" -mindepth 1 -maxdepth 1 -type d | xargs -P "$jobs" -I{} bash -c 'fits {}'
if [ -n "${FIT:-}" ]; then
    cat "$work"/*/result 2>/dev/null && exit 1
    echo "defects: all of $(ls -d "$work"/*/ | wc -l) fit the code in $SECONDS s"
    exit 0
fi

chosen=()
for dir in "$work"/*/; do
    if grep -q -- "$part" "$dir/title" "$dir/room" && [ ! -e "$dir/result" ]; then chosen+=("${dir%/}"); fi
done
if [ -z "$part${SHARE:-}" ]; then
    mkdir "$work/sound" && sound "$work/sound"
fi
mapfile -t turn < <(tests/turn.sh "${chosen[@]}")
printf '%s\n' "${turn[@]}" | xargs -P "$jobs" -I{} bash -c 'one {}'

cat "$work"/*/result 2>/dev/null
# A result other than one of a chosen defect is a fault of the file or of the tests; a defect without a result has failed, too.
all=$(cat "$work"/*/result 2>/dev/null | wc -l)
[ "$all" -ge "${#turn[@]}" ] || all=${#turn[@]}
caught=$(cat "$work"/*/result 2>/dev/null | grep -c '^caught')
echo "the slowest: $(sort -nr "$work"/*/seconds 2>/dev/null | head -n 3 | paste -sd ,)"
echo "defects: $caught passed, $((all - caught)) failed in $SECONDS s"
[ "$all" -gt 0 ] && [ "$caught" -eq "$all" ]
