#!/bin/bash
# Tests of the tools that write C and pictures from src/ and check its layers. Breaks each rule of
# tools/amalgamate.awk and tools/layers.awk in a small source tree and expects the sentence that says so.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

put() { mkdir -p "$(dirname "$work/src/$1")" && cat >"$work/src/$1"; }
room() { # PATH LINES...: a room with its guard
    local path=$1 guard
    guard=DS__$(echo "$path" | tr 'a-z/.' 'A-Z__')
    shift
    { printf '/* %s - a room. */\n#ifndef %s\n#define %s\n' "$path" "$guard" "$guard"; printf '%s\n' "$@"; echo '#endif'; } | put "$path"
}
entry() { # NAME OTHERS DECLARATIONS IMPLEMENTATION: lines of each part
    local upper
    upper=$(echo "$1" | tr 'a-z' 'A-Z')
    printf '%s\n' "/* $1.h */" "$2" "#ifndef ${upper}_H_INCLUDED" "#define ${upper}_H_INCLUDED" "$3" '#endif' \
        "#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(${upper}_H_IMPLEMENTED)" "#define ${upper}_H_IMPLEMENTED" "$4" '#endif' \
        '/* the end */' | put "$1.h"
}
tree() { # a tree that keeps every rule
    rm -rf "$work/src"
    room api/a.h 'int a(void);'
    room base/low.h '#include "../api/a.h"' 'static int low(void) { return 1; }'
    room core/mid.h '#include "../base/low.h"' 'static int mid(void) { return low(); }'
    room core/drivers.h '#ifdef DEVSTREAM_CUDA' '#include "../cuda/gpu.h"' '#endif'
    room cuda/gpu.h '#include "../base/low.h"' 'static int gpu(void) { return low(); }'
    room rng/fill.h '#include "../core/mid.h"' 'static int fill(void) { return mid(); }'
    entry devstream '' '#include "api/a.h"' '#include "core/mid.h"
#include "core/drivers.h"'
    entry devstream_rng '#include "devstream.h"' '' '#include "rng/fill.h"'
}
run() { rm -rf "$work/out"; mkdir -p "$work/out/single"; awk -f tools/amalgamate.awk src="$work/src" out="$work/out" devstream devstream_rng >"$work/said" 2>&1; }
verdict() { # NAME RESULT
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL  $1: $(cat "$work/said")"; fi
}
refused() { # NAME SENTENCE: the tree as it is now must give that sentence and exit status 1
    local status=0
    run || status=$?
    sed -i "s,$work/src/,,g" "$work/said"
    [ $status -eq 1 ] && grep -q '^amalgamate: ' "$work/said" && grep -qF -- "$2" "$work/said"
    verdict "$1" $?
}

tree
run && [ ! -s "$work/said" ] &&
    [ "$(grep -c 'static int low' "$work/out/devstream.h")" = 1 ] && ! grep -q 'static int low\|api/a' "$work/out/devstream_rng.h" &&
    [ "$(grep -c 'static int' "$work/out/single/devstream.h")" = 4 ] && ! grep -q 'include "' "$work/out/single/devstream.h" &&
    ! grep -q 'DS__BASE_LOW_H' "$work/out/devstream.h" && head -n 1 "$work/out/devstream.h" | grep -q '^/\* Generated from src/devstream.h'
verdict 'a tree that keeps the rules' $?

tree && room core/mid.h '#include "../base/gone.h"' 'int x;'
refused 'a room that is missing' 'base/gone.h is missing or empty; base/gone.h is included by core/mid.h'
tree && sed -i 's/DS__CORE_MID_H/DS__MID_H/' "$work/src/core/mid.h"
refused 'a guard of another name' 'core/mid.h:2: expected the guard DS__CORE_MID_H'
tree && sed -i '$d' "$work/src/core/mid.h"
refused 'a guard without an end' 'core/mid.h:5: expected the #endif of the guard'
tree && room core/mid.h 'int x;' '#include "../base/low.h"'
refused 'an include behind code' 'core/mid.h:5: an include behind code or inside of a conditional'
tree && room core/mid.h '#ifdef DEVSTREAM_CUDA' '#include "../base/low.h"' '#endif' 'int x;'
refused 'a conditional around an include of a room' 'core/mid.h:5: an include behind code or inside of a conditional'
tree && entry devstream '' '#include "api/a.h"' '#include "core/drivers.h"
#include "core/mid.h"'
refused 'a room met first inside of a conditional' 'core/mid.h needs base/low.h, which is met first inside of #ifdef DEVSTREAM_CUDA'
tree && room api/a.h '#include "../base/low.h"' 'int a(void);' && room base/low.h 'int low(void);'
refused 'a room of the implementation in the declarations' 'api/a.h needs base/low.h in the declarations, which have rooms of api/ only'
tree && room api/b.h 'int b(void);' && room core/mid.h '#include "../api/b.h"' 'int x;'
refused 'declarations met in the implementation' 'core/mid.h needs api/b.h in the implementation: list it in the declarations'
tree && room base/low.h '#include "../devstream.h"' 'int low(void);'
refused 'a room that includes an entry file' 'base/low.h includes the entry file devstream.h'
tree && room base/low.h '#include "../core/mid.h"' 'int low(void);'
refused 'rooms that include each other' 'circle: core/mid.h is included by base/low.h, which it includes by way of others'
tree && entry devstream_rng '' '' '#include "rng/fill.h"'
refused 'a room that two entry files would write' 'core/mid.h would be written by devstream.h and devstream_rng.h: list it in one that both include'
tree && entry devstream '#include "devstream_rng.h"' '#include "api/a.h"' '#include "core/mid.h"'
refused 'an entry file that is included before it is written' 'devstream.h includes devstream_rng.h, which must be named before it'
tree && entry devstream '#include "api/a.h"' '' ''
refused 'a room outside of both parts' 'devstream.h:2: an include of a room outside of both parts'
tree && printf '#ifndef DEVSTREAM_H_INCLUDED\n#endif\n' | put devstream.h
refused 'an entry file without an implementation' 'devstream.h has no implementation under #if defined(DEVSTREAM_IMPLEMENTATION)'

# The picture of the folders.
tree && awk -f tools/tree.awk "$work"/src/*/*.h >"$work/said" 2>&1 && [ "$(grep -c '<rect x' "$work/said")" = 5 ]
verdict 'the picture of the folders' $?
tree && room base/up.h '#include "../core/mid.h"' && ! awk -f tools/tree.awk "$work"/src/*/*.h >"$work/said" 2>&1 && grep -q 'a circle of folders goes through src/' "$work/said"
verdict 'folders that include each other' $?

# The layers. The rooms of a tree as clang-format leaves them: definitions begin in the first column.
layers() { # NAME SENTENCE: tools/layers.awk must say it of the tree as it is now, and fail; no sentence: it must not fail
    local status=0
    (cd "$work" && awk -f "$OLDPWD/tools/layers.awk" src/*/*.h) >"$work/said" 2>&1 || status=$?
    if [ -z "$2" ]; then [ $status -eq 0 ]; else [ $status -ne 0 ] && grep -qF -- "$2" "$work/said"; fi
    verdict "$1" $?
}
layered() { # a tree whose rng/ uses a function of core/ that core/internal.h declares
    tree
    room core/internal.h '#include "../base/low.h"' 'static int ds__mid(void);'
    room core/mid.h '#include "internal.h"' 'static int ds__mid(void) {' '    return 1;' '}' 'static int ds__own(void) {' '    return 1;' '}'
    room rng/fill.h '#include "../core/internal.h"' 'static int ds__fill(void) {' '    return ds__mid();' '}'
}
layered
layers 'layers that keep the rules' ''
layered && room base/low.h '#include "../core/internal.h"' 'int low(void);'
layers 'an include of a layer above' 'src/base/low.h includes core/internal.h'
layered && room base/low.h 'static int ds__low(void) {' '    return ds__mid();' '}'
layers 'a use of a layer above' 'src/base/low.h uses ds__mid of src/core/mid.h'
layered && room rng/fill.h '#include "../core/mid.h"' 'int x;'
layers 'an include of a room of another layer' 'src/rng/fill.h includes core/mid.h; of other layers only types.h and internal.h are'
layered && room rng/fill.h '#include "../core/internal.h"' 'static int ds__fill(void) {' '    return ds__own();' '}'
layers 'a use that internal.h does not declare' 'src/rng/fill.h uses ds__own of src/core/mid.h, which src/core/internal.h does not declare'
layered && room core/other.h '#include "internal.h"' 'static int ds__own(void);' 'static int ds__other(void) {' '    return ds__own();' '}'
layers 'a forward declaration in another room' 'src/core/other.h declares ds__own, which src/core/mid.h defines'
layered && room core/mid.h '#include "internal.h"' 'static int ds__mid(void) {' '    return (int)getpid();' '}'
layers 'a call of the system outside of os/' 'src/core/mid.h:6: is for src/os:     return (int)getpid();'
layered && room core/mid.h '#include "internal.h"' 'static void ds__mid(void) {' '    __asm__("nop");' '}'
layers 'an instruction outside of os/' 'src/core/mid.h:6: is for src/os'
layered && room core/mid.h '#include "internal.h"' '#ifdef DEVSTREAM_CUDA' 'int x;' '#endif'
layers 'a question for a macro of the program' 'src/core/mid.h:5: asks for a macro of the program'

# Limits of functions and of the names of tests.
limits() { # NAME SENTENCE LINES...: tools/density.py must say it of a file with these lines, and fail; no sentence: it must not fail
    local name=$1 sentence=$2 status
    printf '%s\n' "${@:3}" >"$work/limits.h"
    python3 tools/density.py --limits "$work/limits.h" >"$work/said" 2>&1
    status=$?
    if [ -z "$sentence" ]; then [ $status = 0 ]; else [ $status = 1 ] && grep -qF "$sentence" "$work/said"; fi
    verdict "$name" $?
}
if command -v python3 >/dev/null; then
    limits 'a function within the limits' '' 'static int f(int a) {' '    return a ? 1 : 2;' '}'
    # shellcheck disable=SC2046
    limits 'a function of 61 lines' 'f: 61 lines; at most 60 are allowed' 'static void f(void) {' $(printf 'g();\n%.0s' $(seq 59)) '}'
    limits 'seven parameters' 'f: 7 parameters; at most 6 are allowed' 'static int f(int a, int b, int c, int d, int e, int g, int h) {' '    return a;' '}'
    # shellcheck disable=SC2046
    limits 'sixteen decisions' 'f: 16 decisions; at most 15 are allowed' 'static void f(int a) {' $(printf 'if(a)g();\n%.0s' $(seq 16)) '}'
    limits 'five levels' 'f: 5 levels; at most 4 are allowed' 'static void f(int a) {' '    if (a) {' 'if (a) {' 'if (a) {' 'if (a) {' 'if (a) {' 'g();' '}' '}' '}' '}' '}' '}'
    limits 'a nested conditional' 'f: 1 nested ?:' 'static int f(int a) {' '    return a ? 1 : a > 2 ? 3 : 4;' '}'
else
    echo 'skip  tools: the limits of functions are not tested, since there is no python3'
fi
long=$(git grep -hoE '(cmocka_unit_test|DS_TEST)[a-z_]*\([a-z_0-9]{61,}' -- tests)
[ -z "$long" ]
verdict "names of tests have at most 60 characters$long" $?

# The comparison of flight recorders.
if command -v python3 >/dev/null; then
    python3 tests/tools/ranks.py >"$work/situations" || echo "tests/tools/ranks.py	failed" >>"$work/situations"
    while IFS=$'\t' read -r name result; do
        echo "$result" >"$work/said"
        [ "$result" = ok ]
        verdict "flight recorders: $name" $?
    done <"$work/situations"
else
    echo 'skip  tools: the comparison of flight recorders is not tested, since there is no python3'
fi

# The comparison of two commits.
printf 'queue1\tns/op\tone queue\ncopy_1m\tGB/s\tcopy of 1 MiB\nhop\tns/hop\thop\nnew_row\tns\tnew\n' >"$work/rows"
for turn in 1 2 3 4; do
    printf 'old\t%d\tqueue1\t10\nnew\t%d\tqueue1\t12\nold\t%d\tcopy_1m\t10\nnew\t%d\tcopy_1m\t20\n' $turn $turn $turn $turn
    printf 'old\t%d\thop\t100\nnew\t%d\thop\t%d\nnew\t%d\tnew_row\t7\n' $turn $turn $((turn % 2 ? 80 : 130)) $turn
done >"$work/turns"
awk -f bench/compare.awk "$work/rows" "$work/turns" >"$work/said"
grep -q '^| one queue, ns/op | 10.0 | 12.0 | 1.20 | 1.20 to 1.20 | \*\*slower\*\* |$' "$work/said" && grep -q '^| copy of 1 MiB, GB/s | 10.0 | 20.0 | 0.50 | 0.50 to 0.50 | faster |$' "$work/said"
verdict 'comparison: a ratio above 1 is slower, for times and bandwidths' $?
grep -q '^| hop, ns/hop | 100 | .* | 0.80 to 1.30 |  |$' "$work/said" && grep -q '^| new, ns | - | 7.00 | - | - | only one commit has a figure |$' "$work/said"
verdict 'comparison: wide spreads and new rows have no verdict' $?
for words in '' 'HEAD' 'HEAD . nothing' 'no-such-commit .'; do
    bench/compare.sh $words >"$work/said" 2>&1
    [ $? -eq 2 ] && [ -s "$work/said" ]
    verdict "comparison: \"$words\" is refused with a sentence" $?
done

# Parts of a suite by turns: each item gets its turn, and no commit has none.
for share in 2 3 17; do
    for turn in $(seq 0 $((share - 1))); do
        SHARE=$share TURN=$turn tests/turn.sh a b c d e | grep . || echo none
    done | sort -u >"$work/said"
    [ "$(tr -d '\n' <"$work/said")" = abcde ]
    verdict "turns: all of five items and never none, every ${share}th" $?
done
[ -z "$(SHARE=3 tests/turn.sh)" ] && [ "$(env -u SHARE tests/turn.sh a b | tr '\n' ' ')" = 'a b ' ]
verdict 'turns: nothing of nothing, and all without SHARE' $?

# Templates.
template() { printf '%s\n' "$@" | put comm/t.tmpl; awk -f tools/expand.awk path="$work/src/comm/t.tmpl" >"$work/said" 2>&1; }
template '//! for W N in 16 a, 32 b' 'int x$(N)[$(W)];' '//! for K in $(N) c' 'f$(K)_$(W)' '//! end' '//! end' >/dev/null
verdict 'a loop with fewer words than names' $((! $?))
template '//! for W N in 16 a, 32 b' 'int x$(N)[$(W)];' '//! for K in $(N), c' 'f$(K)_$(W)' '//! end' '//! end' &&
    [ "$(grep '^int\|^f' "$work/said" | tr '\n' ' ')" = 'int xa[16]; fa_16 fc_16 int xb[32]; fb_32 fc_32 ' ] && grep -q '#ifndef DS__COMM_T_GEN_H' "$work/said"
verdict 'loops in loops' $?
! template '//! for W in 16' 'x' && grep -q 'the loop has no end' "$work/said"
verdict 'a loop without an end' $?
! template 'x$(W)' && grep -q '$(W) is in no loop' "$work/said"
verdict 'a name outside of its loop' $?

echo "tools: $passed passed, $failed failed"
[ $failed -eq 0 ]
