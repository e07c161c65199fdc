#!/usr/bin/env bash
# compare.sh OLD NEW [PART...] - compares the speed of two commits: their programs take turns on this machine, and the ratios of
# neighbouring turns are printed with their spread. OLD and NEW are commits, tags or ".", the working tree with its changes.
# PART: queues calls pending streams copies graphs alloc comm (all). TURNS (5) is the number of turns of each program, CC and CFLAGS
# are the compiler and its flags. The programs are those of NEW; a program that does not compile with OLD's headers is OLD's own.
# A ratio is NEW's time divided by OLD's; for a bandwidth or a speed-up it is OLD's value divided by NEW's. Above 1, NEW is slower.
# Some 8 minutes with all parts. Exit status 1 if a program failed or a result was wrong; a slower row is not a failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
usage() { echo "usage: $0 OLD NEW [queues|calls|pending|streams|copies|graphs|alloc|comm]..." >&2; exit 2; }
[ $# -ge 2 ] || usage
old=$1 new=$2 turns=${TURNS:-5} cc=${CC:-cc} flags=${CFLAGS:--O2} out=$PWD/build/compare failed=0
shift 2
all="queues calls pending streams copies graphs alloc comm"
for part in "$@"; do [[ " $all " == *" $part "* ]] || usage; done
parts=${*:-$all}
case $turns in '' | *[!0-9]* | 0) echo "$0: TURNS is \"$turns\"; a number from 1 on is allowed" >&2; exit 2 ;; esac
for commit in "$old" "$new"; do
    [ "$commit" = . ] || git rev-parse -q --verify "$commit^{commit}" >/dev/null || { echo "$0: \"$commit\" is not a commit, a tag or \".\"" >&2; exit 2; }
done
rm -rf "$out" && mkdir -p "$out/old" "$out/new" || exit 2

# export_tree COMMIT FOLDER: the files of a commit, or of the working tree with new files that git does not ignore
export_tree() {
    if [ "$1" = . ]; then
        git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$2"
    else
        git archive "$1" | tar -x -C "$2"
    fi
}
export_tree "$old" "$out/old" && export_tree "$new" "$out/new" || exit 2

# compile SIDE PROGRAM LIBRARY: the program of NEW with the headers of the side, else the side's own
compile() {
    local side=$1 program=$2 library=$3 source
    for source in new "$side"; do
        # the sources include "../devstream.h": they must lie beside the side's headers
        rm -rf "$out/$side/bench.$source" && cp -r "$out/$source/bench" "$out/$side/bench.$source" || return 1
        $cc -std=gnu11 $flags "$out/$side/bench.$source/$program.c" "$out/$side/$library.o" -o "$out/$side/$program" -pthread -lm -ldl 2>"$out/$side/$program.log" && break
    done
    [ -x "$out/$side/$program" ] || { cat "$out/$side/$program.log" >&2; return 1; }
    [ "$source" = new ] || [ "$side" = new ] || echo "$program: NEW's does not compile with OLD's headers; the figures of OLD are those of its own program"
}
programs=""
for part in $parts; do
    case $part in
        queues | calls | pending | streams) programs+="streams " ;;
        *) programs+="$part " ;;
    esac
done
for side in old new; do
    for library in devstream devstream_alloc; do
        printf '#define DEVSTREAM_IMPLEMENTATION\n#include "%s.h"\n' "$library" >"$out/$side/$library.bench.c"
        [ $library = devstream ] && cp "$out/$side/devstream.c" "$out/$side/$library.bench.c"
        (cd "$out/$side" && $cc $flags -I. -c "$library.bench.c" -o "$library.o") || { echo "$0: $library of $side does not compile" >&2; exit 1; }
    done
    for program in $(printf '%s\n' $programs | sort -u); do
        library=devstream
        [ "$program" != alloc ] || library=devstream_alloc
        compile $side "$program" $library || { echo "$0: bench/$program.c of $side does not compile" >&2; exit 1; }
    done
done
if [[ " $parts " == *" alloc "* ]]; then
    export BENCH_TRACES=$out/traces
    mkdir -p "$BENCH_TRACES"
    for name in train serve rand; do
        xz -dc "$out/new/bench/data/$name.trace.xz" >"$BENCH_TRACES/$name.trace" || { echo "$0: bench/data/$name.trace.xz cannot be read (package xz-utils)" >&2; exit 1; }
    done
    $cc -std=gnu11 $flags "$out/new/bench/trace.c" -o "$out/trace" -lm || exit 1
    for name in vision table; do "$out/trace" $name 1 "$BENCH_TRACES/$name.trace" >/dev/null || exit 1; done
fi
$cc -std=gnu11 $flags "$out/new/bench/report.c" -o "$out/report" -lm && "$out/report" --rows >"$out/rows.tsv" || exit 1

# turn SIDE PART NUMBER: runs a part, and appends its rows with the side and the number of the turn
turn() {
    local program=$2 argument=
    case $2 in queues | calls | pending | streams) program=streams argument=$2 ;; esac
    : >"$out/results"
    BENCH_QUICK=1 BENCH_RESULTS=$out/results timeout 180 "$out/$1/$program" $argument >/dev/null ||
        { echo "$0: $2 of $1 ended with status $?" >&2; failed=1; }
    awk -F'\t' -v side="$1" -v turn="$3" '$2 == "devstream" || $2 == "plain" || $2 ~ / conf$/ {
        print side "\t" turn "\t" $1 ($2 == "devstream" ? "" : ", " $2) "\t" $3 }' "$out/results" >>"$out/all.tsv"
}
: >"$out/all.tsv"
for ((i = 1; i <= turns; i++)); do
    echo "turn $i of $turns" >&2
    for part in $parts; do
        # the side that begins changes, since the first one may find a cooler or a busier machine
        if ((i % 2)); then sides="old new"; else sides="new old"; fi
        for side in $sides; do turn $side "$part" $i; done
    done
done
! grep -q 'WRONG$' "$out/all.tsv" || { echo "$0: a result was wrong:" >&2; grep 'WRONG$' "$out/all.tsv" >&2; failed=1; }

echo "$old and $new, $turns turns, $(nproc) processors ($(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)), $($cc --version | head -n 1), flags \`$flags\`"
echo
awk -f bench/compare.awk "$out/rows.tsv" "$out/all.tsv"
echo
echo "Slower or faster: both quartiles are more than 5 % away from 1."
exit $failed
