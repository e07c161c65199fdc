#!/bin/bash
# Builds devstream for Windows with mingw-w64 and runs it under Wine: windows.sh [PART]... (all parts if none is named)
#     library       devstream.c with gcc and clang, all warnings on; hello with each (60 s)
#     build         the conformance suite and the examples (150 s; again: 5 s; times are of an idle machine)
#     conformance   the suite on the CPU driver, a process per group; GROUPS_TO_RUN="a b" names groups, SHARE=N runs an N-th
#                   of them by turn (tests/turn.sh; with SHARE=8 at most 60 s)
#     conformance-clang   the same, library and tests compiled by clang with the headers of mingw-w64
#     ipc           events and memory between two processes: the group "sharing" alone (30 s)
#     dll           devstream.dll, its exports, and programs in C and C++ that link it (40 s)
#     cl            the declarations by the rules of Microsoft's compiler, with clang (5 s)
#     cuda          the CUDA driver compiles, and hello starts with it on a machine without a GPU (40 s)
#     examples      what tests/examples.sh runs, with the lines that must be the same as on Linux (40 s)
# It installs what it needs with tools/install-deps.sh unless NO_INSTALL is set. Each part counts; the last line is
# "windows: N passed, M failed". Skipped tests are counted by their reason.
set -u
cd "$(dirname "$0")/../.." || exit 2
[ -n "${NO_INSTALL:-}" ] || tools/install-deps.sh windows || exit 2
b=build/windows
wine=$(command -v wine64 || command -v wine || echo /usr/lib/wine/wine64)
export WINEDEBUG=-all WINEPREFIX=${WINEPREFIX:-$PWD/$b/prefix}
mkdir -p $b
passed=0 failed=0
warn="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Werror"

result() { # result NAME REASON: no reason is a pass
    if [ -z "$2" ]; then passed=$((passed + 1)); echo "ok    $1"; else failed=$((failed + 1)); echo "FAIL  $1: $2"; fi
}
run() { timeout "${LIMIT:-300}" "$wine" "$@"; }
# The first start of a prefix takes some seconds, and its messages belong to no test.
ready() { [ -e "$WINEPREFIX/system.reg" ] || run cmd /c exit >/dev/null 2>&1; }
compile() { make -s -f tests/ports/windows.mk -k -j"${JOBS:-2}" "$@" >$b/make.log 2>&1 || { tail -n 20 $b/make.log; return 1; }; }

part_library() {
    # clang has no runtime for mingw in most packages and takes gcc's
    gcc=$(x86_64-w64-mingw32-gcc -print-libgcc-file-name)
    for cc in x86_64-w64-mingw32-gcc "clang --target=x86_64-w64-mingw32"; do
        reason=
        name=${cc%% *}
        if ! command -v "$name" >/dev/null; then echo "skip  $name: it is not installed"; continue; fi
        libs=
        [ "$name" = x86_64-w64-mingw32-gcc ] || libs="-L$(dirname "$gcc")"
        # shellcheck disable=SC2086
        $cc -std=c11 -O1 -g0 $warn -I. -c devstream.c -o $b/library.o || reason="devstream.c does not compile"
        # shellcheck disable=SC2086
        [ -n "$reason" ] || $cc -std=c11 -O0 $warn -I. examples/hello.c -o $b/hello.exe $libs -static ||
            reason="hello does not link"
        [ -n "$reason" ] || [ "$(run $b/hello.exe | tr -d '\r')" = "hello from the stream, world" ] || reason="hello says something else"
        result "library, $name" "$reason"
    done
}

part_build() {
    reason=
    compile tests examples || reason="see above"
    result "build of the suite and the examples" "$reason"
}

# Runs groups and prints a line for each; the reasons of skipped tests are collected in $b/skipped.
groups() { # groups GROUP...
    : >$b/skipped
    for group in "$@"; do
        reason=
        began=$(date +%s)
        DS_TEST_GROUP=$group DS_TEST_PLUGIN=none run $b/conformance.exe >$b/group.txt 2>&1 || reason="status $?"
        tr -d '\r' <$b/group.txt >"$b/group-$group.txt"
        ok=$(grep -c '^\[       OK \]' "$b/group-$group.txt")
        skips=$(grep -c '^\[  SKIPPED \] test_.*' "$b/group-$group.txt")
        sed -n 's/^ *skipped: //p' "$b/group-$group.txt" >>$b/skipped
        [ -z "$reason" ] || grep -E '^ERROR|^\[   LINE|^\[  FAILED  \] test_|timed out|^\[ RUN' "$b/group-$group.txt" | tail -n 12
        result "conformance${COMPILER:+-$COMPILER}, $group: $ok tests, $((skips / 2)) skipped, $(($(date +%s) - began)) s" "$reason"
    done
    if [ -s $b/skipped ]; then echo "skipped tests by reason:" && sort $b/skipped | uniq -c | sort -rn; fi
}

part_conformance() {
    compile tests || { result "build of the suite" "see above"; return; }
    # shellcheck disable=SC2046
    groups $(tests/turn.sh ${GROUPS_TO_RUN:-$(run $b/conformance.exe --groups | tr -d '\r')})
}

part_conformance-clang() {
    if ! command -v clang >/dev/null; then echo "skip  conformance by clang: it is not installed"; return; fi
    mkdir -p build/windows-clang
    COMPILER=clang b=build/windows-clang part_conformance
}

part_ipc() {
    compile tests || { result "build of the suite" "see above"; return; }
    groups sharing
}

part_examples() {
    compile examples || { result "build of the examples" "see above"; return; }
    # tests/examples.sh runs programs without a suffix
    mkdir -p $b/linux/cpu
    for program in $b/run/*.exe; do
        name=$(basename "$program" .exe)
        printf '#!/bin/sh\nset -o pipefail\n"%s" "%s" "$@" | tr -d "\\r"\n' "$wine" "$PWD/$program" >"$b/linux/cpu/$name"
        sed -i '1s,sh,bash,' "$b/linux/cpu/$name"
        chmod +x "$b/linux/cpu/$name"
    done
    printf '#!/bin/bash\nset -o pipefail\n"%s" "%s" "$@" | tr -d "\\r"\n' "$wine" "$PWD/$b/expect.exe" >$b/linux/expect
    chmod +x $b/linux/expect
    tests/examples.sh $b/linux >$b/examples.txt 2>&1
    grep -E '^(ok|FAIL)' $b/examples.txt
    counts=$(tail -n 1 $b/examples.txt)
    failures=$(echo "$counts" | sed -n 's/.* passed, \([0-9]*\) failed/\1/p')
    passed=$((passed + $(echo "$counts" | sed -n 's/examples: \([0-9]*\) passed.*/\1/p')))
    failed=$((failed + ${failures:-1}))
    # what these programs print on Linux
    head -n 165 examples/data/digits.csv >$b/digits.csv
    export DEVSTREAM_CPU_DEVICES=3
    reason=
    run $b/run/demo.exe --total 300000 --piece 70001 2>&1 | grep -q '^checksum *7f03a504 ' || reason="another checksum"
    result "demo, the checksum of Linux" "$reason"
    reason=
    run $b/run/train.exe --epochs 1 $b/digits.csv 2>&1 | grep -q '^weights *dbedd36f *dbedd36f' || reason="other weights"
    result "train, the weights of Linux" "$reason"
    unset DEVSTREAM_CPU_DEVICES
    [ "${failures:-1}" = 0 ] || grep -v '^ok' $b/examples.txt | head -n 30
}

# Exports must be functions, since thread-local data cannot be exported: their addresses are in .text.
part_dll() {
    compile dll || { result "build of the DLL" "see above"; return; }
    reason=
    x86_64-w64-mingw32-objdump -p $b/dll/devstream.dll >$b/dll/exports.txt
    count=$(grep -cE '^\s*\[ *[0-9]+\].* ds_[a-z0-9_]+$' $b/dll/exports.txt)
    [ "$count" -gt 300 ] || reason="$count functions are exported"
    others=$(sed -n '/Ordinal\/Name Pointer/,$p' $b/dll/exports.txt | grep -E '^\s*\[ *[0-9]+\]' | awk '{print $NF}' | grep -v '^ds_' | tr '\n' ' ')
    [ -z "$others" ] || reason="$others"
    data=$(x86_64-w64-mingw32-nm -g $b/dll/devstream.dll | awk '$2 ~ /[DBR]/ && $3 ~ /^ds_/ { print $3 }' | tr '\n' ' ')
    [ -z "$data" ] || reason="data is exported: $data"
    result "DLL, $count exported functions" "$reason"
    for program in $b/dll/use*.exe; do
        reason=
        [ "$(cd $b/dll && run "$(basename "$program")" 2>&1 | tr -d '\r')" = right ] || reason="it fails"
        result "DLL, $(basename "$program")" "$reason"
    done
    command -v clang >/dev/null || echo "skip  DLL, C++: clang is not installed"
}

# Without a GPU and cudart: a program with the CUDA driver starts and uses the CPU driver. With the toolkit, its headers are used too.
part_cuda() {
    reason=
    # shellcheck disable=SC2086
    x86_64-w64-mingw32-gcc -std=c11 -O0 $warn -DDEVSTREAM_CUDA_DLOPEN -I. examples/hello.c -o $b/hello-cuda.exe -static ||
        reason="it does not compile"
    [ -n "$reason" ] || [ "$(run $b/hello-cuda.exe | tr -d '\r')" = "hello from the stream, world" ] || reason="hello says something else"
    result "CUDA driver without headers" "$reason"
    include=${CUDA_HOME:-/usr/local/cuda}/include
    if [ ! -e "$include/cuda_runtime_api.h" ]; then echo "skip  CUDA driver with CUDA's headers: they are not installed"; return; fi
    reason=
    # the warnings of CUDA's headers are not ours
    x86_64-w64-mingw32-gcc -std=c11 -Wall -Wextra -Werror -DDEVSTREAM_CUDA -isystem "$include" -I. -fsyntax-only devstream.c ||
        reason="it does not compile"
    result "CUDA driver with CUDA's headers, compiled only" "$reason"
}

# clang with cl's rules and without attributes, which cl does not have. The headers are clang's own; cl itself never ran.
part_cl() {
    cl=$(command -v clang-19 || command -v clang) || { echo "skip  cl: clang is not installed"; return; }
    for language in "c -std=c11" "c++ -std=c++14"; do
        for header in devstream.h devstream_alloc.h devstream_comm.h devstream_rng.h devstream_check.h devstream_trace.h devstream_ranks.h; do
            reason=
            # shellcheck disable=SC2086
            printf '#include "%s"\nds_result use(ds_stream s);\nds_result use(ds_stream s) { DS_CHECK(ds_stream_query(s)); return 0; }\n' $header |
                sed 's/return 0/return DS_OK/' |
                $cl --target=x86_64-pc-windows-msvc -fms-compatibility -fms-compatibility-version=19.30 -fsyntax-only -U__clang__ \
                    '-D__attribute__(x)=ds_no_attributes_' -D__extension__=ds_no_extension_ -Wgnu -Wlanguage-extension-token \
                    -Werror -x $language -I. - >$b/cl.txt 2>&1 || { reason="see above"; head -n 5 $b/cl.txt; }
            result "cl, $header as $language" "$reason"
        done
    done
}

ready
for part in "${@:-library build conformance conformance-clang dll cl cuda examples}"; do
    for one in $part; do
        part_began=$(date +%s)
        "part_$one" || exit 2
        echo "== $one: $(($(date +%s) - part_began)) s"
    done
done
echo "windows: $passed passed, $failed failed"
[ $failed -eq 0 ]
