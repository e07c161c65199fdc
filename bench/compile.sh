#!/usr/bin/env bash
# compile.sh OUT [N] - what the headers cost a user's build: milliseconds of gcc -O2 over compiling an empty file, medians of
# N (5), printed as rows. OUT is a folder for the files. The three are compiled in turn, so that noise hits all of them.
set -euo pipefail
out=$1 n=${2:-5} cc=${CC:-cc}
here=$(cd "$(dirname "$0")/.." && pwd)
echo 'int nothing;' >"$out/empty.c"
printf '#include "devstream.h"\nint nothing;\n' >"$out/decl.c"
printf '#define DEVSTREAM_IMPLEMENTATION\n#include "devstream.h"\n' >"$out/impl.c"
for ((i = 0; i < n; i++)); do
    for what in empty decl impl; do
        t=${EPOCHREALTIME/[.,]/}
        "$cc" -O2 -I"$here" -c "$out/$what.c" -o "$out/$what.o"
        echo "$what $((${EPOCHREALTIME/[.,]/} - t))"
    done
done | sort -k1,1 -k2,2n | awk -v n="$n" -v OFS='\t' '
    { v[$1, ++k[$1]] = $2 }
    function median(w) { return n % 2 ? v[w, (n + 1) / 2] : (v[w, n / 2] + v[w, n / 2 + 1]) / 2 }
    END {
        print "compile_decl", "devstream", (median("decl") - median("empty")) / 1000
        print "compile_impl", "devstream", (median("impl") - median("empty")) / 1000
    }'
